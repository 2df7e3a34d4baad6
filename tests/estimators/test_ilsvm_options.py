"""Test the effect of the options of iLSVM's estimators, and their invariances."""

from __future__ import annotations

import warnings

import cvxpy as cp
import numpy as np
import pytest
from scipy.special import logsumexp
from sklearn.datasets import load_wine

from ilsvm_estimator_tools import digits, ibp, ilsvm, ilsvm_cv, overlapping
from reference_tools import fits_its_rows
from regbayes import ILSVMClassifier

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

X, y = digits()


# --- costs and weights


@pytest.mark.parametrize("loss", ["hinge", "squared_hinge"])
def test_cost_and_class_weight_match_cvxpy(loss):
    """CVXPY finds no better classifier on the same features."""
    X, y = overlapping(90)
    cost = np.array([[0.0, 3.0, 1.0], [0.5, 0.0, 1.0], [1.0, 2.0, 0.0]])
    price = {0: 0.3, 1: 2.0, 2: 1.0}
    fitted = ilsvm(loss=loss, cost=cost, class_weight=price, C=0.7, tol=1e-4).fit(X, y)
    centre = fitted.embedding_.mean(axis=0)
    rows = np.column_stack([fitted.embedding_ - centre, np.ones(len(X))])

    weights = cp.Variable((3, rows.shape[1]))
    scores = rows @ weights.T
    right = cp.sum(cp.multiply(scores, np.eye(3)[y]), axis=1, keepdims=True)
    worst = cp.max(scores - right @ np.ones((1, 3)) + cost[y], axis=1)
    prices = 0.7 * np.array([price[label] for label in y])
    value = 0.5 * cp.sum_squares(weights) + prices @ (worst if loss == "hinge" else cp.square(cp.pos(worst)))
    best = cp.Problem(cp.Minimize(value)).solve(solver=cp.CLARABEL)
    weights.value = np.column_stack([fitted.coef_features_, fitted.intercept_ + fitted.coef_features_ @ centre])
    assert best <= value.value * (1 + 1e-6) <= best * (1 + 1e-3)


def test_unit_cost_is_the_default():
    np.testing.assert_array_equal(
        ilsvm(cost=1.0 - np.eye(4)).fit(X, y).coef_features_, ilsvm().fit(X, y).coef_features_
    )


def test_balanced_class_weight_matches_formula():
    rows = np.concatenate([np.flatnonzero(y == 0), np.flatnonzero(y > 0)[:40]])
    X_few, y_few = X[rows], y[rows]
    counts = np.bincount(y_few)
    weights = {label: len(rows) / (4 * n) for label, n in enumerate(counts)}
    assert len(set(weights.values())) > 1
    balanced, same = (ilsvm(class_weight=weight).fit(X_few, y_few) for weight in ("balanced", weights))
    np.testing.assert_allclose(balanced.components_, same.components_, rtol=1e-12)


def test_equal_class_weights_match_larger_C():
    dear = ilsvm(C=3.0, generative_weight=0.1).fit(X, y)
    heavy = ilsvm(C=1.0, generative_weight=0.1, class_weight=dict.fromkeys(range(4), 3.0)).fit(X, y)
    np.testing.assert_allclose(heavy.coef_features_, dear.coef_features_, rtol=1e-9)


# --- unlabeled samples


def test_unlabeled_samples_affect_features_but_add_no_class():
    hidden = np.arange(len(y)) % 2 == 0
    by_number = ilsvm(unlabeled=-1).fit(X, np.where(hidden, -1, y))
    by_name = ilsvm(unlabeled="?").fit(X, np.where(hidden, "?", y.astype(str)))
    np.testing.assert_array_equal(by_number.classes_, np.arange(4))
    np.testing.assert_array_equal(by_name.classes_, np.arange(4).astype(str))
    np.testing.assert_array_equal(by_number.components_, by_name.components_)
    assert by_number.embedding_.shape == (len(X), by_number.n_components_)
    alone = ilsvm().fit(X[~hidden], y[~hidden])
    assert not np.allclose(alone.components_, by_number.components_)


def test_transductive_fit_increases_margins_of_unlabeled():
    X, y = overlapping(200)
    X, y = X[y < 2], y[y < 2]
    labels = np.where(np.arange(len(y)) < 40, y, -1)
    distances = [
        np.mean(np.abs(ilsvm(unlabeled=-1, transductive=t).fit(X, labels).decision_function(X[40:])))
        for t in (False, True)
    ]
    assert distances[1] > 1.05 * distances[0]


def test_transductive_labels_use_class_weight():
    labels = np.where(np.arange(160) < 60, y, -1)
    same = {"unlabeled": -1, "transductive": True, "generative_weight": 0.1, "max_iter": 5}
    dear = ilsvm(C=3.0, **same).fit(X, labels)
    heavy = ilsvm(C=1.0, class_weight=dict.fromkeys(range(4), 3.0), **same).fit(X, labels)
    np.testing.assert_allclose(heavy.components_, dear.components_, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(heavy.coef_features_, dear.coef_features_, rtol=1e-5, atol=1e-8)


def test_transductive_has_no_effect_with_all_labels():
    np.testing.assert_array_equal(ilsvm(transductive=True).fit(X, y).coef_features_, ilsvm().fit(X, y).coef_features_)


# --- temperature, variances and automatic settings


@pytest.mark.parametrize("make", [ilsvm, ibp], ids=["iLSVM", "IBP"])
def test_lower_temperature_gives_more_binary_features(make):
    spreads = []
    for temperature in (0.2, 0.01):  # not monotone in between: the number of features varies
        fitted = make(temperature=temperature, max_iter=40).fit(X, y)
        psi = fitted.embedding_[:, np.any(fitted.components_ != 0.0, axis=1)]
        spreads.append(np.mean(psi * (1 - psi)))
    assert spreads[0] > 1.44 * spreads[1]


def test_auto_matches_documented_values():
    auto = ilsvm().fit(X, y)
    variance = 0.5 * np.mean((X - X.mean(axis=0)) ** 2)
    written = ilsvm(
        temperature=0.2, generative_weight=0.03, noise_variance=variance, prior_variance=variance / 0.3
    ).fit(X, y)
    np.testing.assert_allclose(written.components_, auto.components_, rtol=1e-6, atol=1e-8)
    assert auto.noise_variance_ == pytest.approx(variance)
    np.testing.assert_array_equal(ibp(temperature=0.01).fit(X).components_, ibp().fit(X).components_)


@pytest.mark.parametrize(
    ("options", "written"),
    [
        ({"temperature": 0.05}, {"C": 0.5, "generative_weight": 0.03}),
        ({"temperature": 0.8}, {"C": 1.0}),
        ({"include_inputs": True}, {"multi_class": "ovr", "generative_weight": 0.12}),
        ({"include_inputs": True, "cost": 1.0 - np.eye(4)}, {"multi_class": "crammer_singer"}),
        ({"multi_class": "ovr", "C": 0.3}, {"generative_weight": 0.036}),
    ],
    ids=["cold", "warm", "inputs", "costs", "margins"],
)
def test_auto_depends_on_other_options(options, written):
    auto, by_hand = (ilsvm(**o).fit(X, y) for o in (options, options | written))
    np.testing.assert_allclose(by_hand.components_, auto.components_, rtol=1e-6, atol=1e-8)


def test_refit_without_inputs_removes_coef_inputs():
    fitted = ilsvm(include_inputs=True, max_iter=3).fit(X, y)
    assert fitted.coef_inputs_.shape == (4, X.shape[1])
    assert not hasattr(fitted.set_params(include_inputs=False).fit(X, y), "coef_inputs_")
    search = ilsvm_cv(Cs=(1.0,), include_inputs=(True,), cv=2, max_iter=3).fit(X, y)
    assert search.coef_inputs_.shape == (4, X.shape[1])
    assert not hasattr(search.set_params(include_inputs=(False,)).fit(X, y), "coef_inputs_")


@pytest.mark.parametrize("n_sweeps", [1, 2])
def test_tiny_C_matches_factor_analysis(n_sweeps):
    same = {"temperature": 0.05, "n_sweeps": n_sweeps, "max_iter": 10, "tol": 0.0}
    free = ilsvm(C=1e-10, generative_weight=1.0, **same).fit(X, y)
    alone = ibp(**same).fit(X)
    np.testing.assert_allclose(free.embedding_, alone.embedding_, atol=1e-4)
    np.testing.assert_allclose(free.components_, alone.components_, atol=1e-3 * np.abs(alone.components_).max())


def test_two_classes_with_inputs_match_crammer_singer():
    some = y < 2
    auto, by_hand = (
        ilsvm(include_inputs=True, multi_class=margin).fit(X[some], y[some]) for margin in ("auto", "crammer_singer")
    )
    np.testing.assert_array_equal(by_hand.coef_features_, auto.coef_features_)


def test_auto_generative_weight_drops_with_unlabeled_share():
    hidden = np.where(np.arange(160) < 120, -1, y)
    auto = ilsvm(unlabeled=-1).fit(X, hidden)
    by_hand = ilsvm(unlabeled=-1, generative_weight=0.03 * 0.25**0.75).fit(X, hidden)
    np.testing.assert_allclose(by_hand.components_, auto.components_, rtol=1e-6, atol=1e-8)


def test_estimated_variances_improve_score():
    estimated = ibp(20, noise_variance="estimate", prior_variance="estimate", temperature=0.02, max_iter=60).fit(X)
    # The noise variance includes the posterior uncertainty of the features.
    left_over = np.mean((X - estimated.offset_ - estimated.embedding_ @ estimated.components_) ** 2)
    assert left_over < estimated.noise_variance_ < np.mean((X - estimated.mean_) ** 2)
    assert estimated.score(X) > ibp(20, temperature=0.02, max_iter=60).fit(X).score(X)


@pytest.mark.parametrize("make", [ilsvm, ibp], ids=["iLSVM", "IBP"])
def test_one_variance_can_be_given_and_one_estimated(make):
    options = {"temperature": 0.02, "max_iter": 40}
    noise = make(noise_variance="estimate", prior_variance=4.0, **options).fit(X, y)
    prior = make(noise_variance=9.0, prior_variance="estimate", **options).fit(X, y)
    auto = make(**options).fit(X, y)
    assert noise.prior_variance_ == 4.0
    assert noise.noise_variance_ != auto.noise_variance_
    assert prior.noise_variance_ == 9.0
    assert prior.prior_variance_ != pytest.approx(9.0 / 0.3)


# --- objective


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"loss": "hinge"},
        {"include_inputs": True},
        {"multi_class": "ovr", "loss": "hinge"},
        {"n_sweeps": 2},
        {"noise_variance": "estimate", "prior_variance": "estimate"},
        {"C": 100.0},
    ],
    ids=str,
)
def test_objective_sums_its_terms_and_never_rises(options):
    trace = ilsvm(max_iter=25, **options).fit(X, y).trace_
    terms = {"likelihood", "kl_features", "kl_loadings", "kl_sticks", "kl_weights", "margin"}
    assert set(trace.terms) == terms
    np.testing.assert_allclose(sum(trace.terms.values()), trace.objective, rtol=1e-12)
    assert trace.rises.largest <= 1e-12 * np.abs(trace.objective).max()
    assert trace.objective[-1] < trace.objective[0]


def test_unsupervised_objective_has_no_margin_and_never_rises():
    trace = ibp().fit(X).trace_
    assert set(trace.terms) == {"likelihood", "kl_features", "kl_loadings", "kl_sticks"}
    assert trace.rises.count == 0


def test_posterior_margins_report_rises_of_objective():
    fitted = ilsvm(margins="posterior", max_iter=60).fit(X, y)
    changes = np.diff(fitted.trace_.objective)
    assert fitted.trace_.rises.count == np.sum(changes > 0)
    assert fitted.trace_.rises.total == pytest.approx(changes[changes > 0].sum())
    assert fitted.n_iter_ == len(changes)
    assert not np.allclose(fitted.decision_function(X), ilsvm(max_iter=60).fit(X, y).decision_function(X))


@pytest.mark.parametrize("temperature", ["auto", 1 / 64], ids=["soft", "plain posterior"])
def test_posterior_margins_do_not_collapse(temperature):
    """With the paper's updates the features collapse to zero."""
    fitted = ilsvm(margins="posterior", temperature=temperature).fit(X, y)
    assert fitted.n_components_ >= 4
    assert 0.2 < fitted.embedding_.mean() < 0.8
    assert fits_its_rows(fitted.predict(X), y)


def test_more_sweeps_approach_fixed_point():
    fitted = ilsvm(warm_start=True).fit(X, y).set_params(max_iter=0)
    once, many, more = (fitted.set_params(n_sweeps=n).fit(X, y).transform(X) for n in (1, 60, 61))
    assert np.abs(more - many).max() < 1e-3 * np.abs(many - once).max()


# --- symmetries


def test_fit_does_not_depend_on_column_order():
    order = np.random.default_rng(0).permutation(X.shape[1])
    fitted, permuted = ilsvm(max_iter=8).fit(X, y), ilsvm(max_iter=8).fit(X[:, order], y)
    np.testing.assert_allclose(permuted.components_, fitted.components_[:, order], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(permuted.coef_features_, fitted.coef_features_, rtol=1e-3, atol=1e-4)


def test_fit_does_not_depend_on_sample_order():
    """Both fits share one initialization, because it depends on the sample order."""
    order = np.random.default_rng(0).permutation(len(X))
    fits = [ibp(warm_start=True, max_iter=0).fit(X[:50]).set_params(max_iter=8) for _ in range(2)]
    fits[0].fit(X)
    fits[1].fit(X[order])
    np.testing.assert_allclose(fits[1].components_, fits[0].components_, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(fits[1].embedding_, fits[0].embedding_[order], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("factor", [1e8, 1e-8, 2.0**-20])
@pytest.mark.parametrize("include_inputs", [False, True])
def test_fit_does_not_depend_on_units(factor, include_inputs):
    options = {"include_inputs": include_inputs, "max_iter": 8, "tol": 0.0}
    fitted, scaled = ilsvm(**options).fit(X, y), ilsvm(**options).fit(factor * X, y)
    np.testing.assert_allclose(scaled.embedding_, fitted.embedding_, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(scaled.components_, factor * fitted.components_, rtol=1e-3, atol=1e-4 * factor)
    np.testing.assert_allclose(scaled.decision_function(factor * X), fitted.decision_function(X), rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("factor", [0.01, 1000.0])
def test_choice_of_rotation_does_not_depend_on_units(factor):
    """Units add a constant to every objective, which must not decide near ties."""
    rows, labels = load_wine(return_X_y=True)
    rows = (rows - rows.mean(axis=0)) / rows.std(axis=0)
    fitted, scaled = (ILSVMClassifier(10, max_iter=8, tol=0.0).fit(c * rows, labels) for c in (1.0, factor))
    np.testing.assert_allclose(scaled.embedding_, fitted.embedding_, rtol=1e-3, atol=1e-5)


def test_fit_does_not_depend_on_shift_of_inputs():
    fitted, shifted = ilsvm(max_iter=8).fit(X, y), ilsvm(max_iter=8).fit(X + 1000.0, y)
    np.testing.assert_allclose(shifted.mean_, fitted.mean_ + 1000.0)
    np.testing.assert_allclose(shifted.components_, fitted.components_, rtol=1e-3, atol=1e-4)


# --- the unsupervised model


def test_inverse_transform_reconstructs_X():
    fitted = ibp(20, temperature=0.02, max_iter=60).fit(X)
    rebuilt = fitted.inverse_transform(fitted.transform(X))
    np.testing.assert_allclose(rebuilt, fitted.embedding_ @ fitted.components_ + fitted.offset_)
    assert np.mean((X - rebuilt) ** 2) < 0.5 * np.mean((X - fitted.mean_) ** 2)
    with pytest.raises(ValueError, match=f"requires {fitted.n_components_}"):
        fitted.inverse_transform(X)


def test_score_samples_is_lower_bound_on_log_density():
    """The density sums over all 2^K feature vectors at the expected parameters."""
    rows = X[:, 20:24]
    fitted = ibp(5, temperature=0.3, max_iter=10).fit(rows)
    sets = (np.arange(2**fitted.n_components_)[:, None] >> np.arange(fitted.n_components_)) & 1
    usual = fitted.stick_weights_
    log_prior = (np.log(usual) * sets + np.log1p(-usual) * (1 - sets)).sum(axis=1)
    means = sets @ fitted.components_ + fitted.offset_
    squares = ((rows[:, None, :] - means) ** 2).sum(axis=2)
    variance = fitted.noise_variance_
    log_density = logsumexp(log_prior - 0.5 * squares / variance, axis=1) - 2 * np.log(2 * np.pi * variance)
    bounds = fitted.score_samples(rows)
    assert np.all(bounds <= log_density + 0.1)  # by Jensen's inequality
    assert fitted.score(rows) == pytest.approx(bounds.mean())


def test_transform_temperature_affects_transform_only():
    warm = ibp(temperature=0.02, transform_temperature=0.2).fit(X)
    same = ibp(temperature=0.02).fit(X)
    np.testing.assert_array_equal(warm.embedding_, same.embedding_)
    psi, cold = warm.transform(X), same.transform(X)
    assert np.mean(psi * (1 - psi)) > 2 * np.mean(cold * (1 - cold))


# --- defaults


def test_defaults_fit_digits_without_warning():
    X, y = digits(10, 1797)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fitted = ILSVMClassifier(random_state=0).fit(X, y)
    assert 5 < fitted.n_components_ < 50
