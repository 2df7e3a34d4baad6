"""Spike-and-slab iLSVM compared with quadrature, differences and symmetries, and its estimators."""

from __future__ import annotations

import warnings
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from scipy.stats import norm
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

import regbayes
from ilsvm_model_tools import EXACT, make_data, make_settings, pad, repeat_rows, start_of
from reference_tools import fits_its_rows
from regbayes import IBPFactorAnalysis, ILSVMClassifier
from regbayes.models.ilsvm import fit
from regbayes.models.ilsvm.model import (
    Data,
    ILSVMProblem,
    Params,
    centre_rows,
    expected_residual,
    update_prior_blocks,
)
from regbayes.models.ilsvm.slab import SlabFeatures, SlabParams, convert_params
from regbayes.models.ilsvm.starts import start
from regbayes.models.indian_buffet import kl_sticks, stick_expectations

SLAB = {"slab": "half-normal", "price": 1.0}


def make_slab_problem(seed, settings_changes=None, **data_changes):
    data = make_data(seed, **data_changes)
    settings = make_settings(data.X, **(SLAB | (settings_changes or {})))
    problem = ILSVMProblem(data, settings, SlabFeatures)
    begin = convert_params(start_of(problem), settings)
    rng = np.random.default_rng(seed)
    loadings = rng.standard_normal(begin.loadings.shape) / np.sqrt(begin.mean_field.precision)
    offset = 0.3 * rng.standard_normal(loadings.shape[1])
    return problem, replace(begin, loadings=loadings, offset=offset, variances=rng.uniform(0.01, 0.1, len(loadings)))


# --- the objective and its gradient ----------------------------------------------------------------------------------


@pytest.mark.parametrize("n_sweeps", [1, 2, 4])
@pytest.mark.parametrize("weighted", [False, True])
def test_gradient_of_generative_part_agrees_with_differences(n_sweeps, weighted):
    """Without a head J is accurate to rounding, so fourth-order differences are accurate too."""
    times = np.random.default_rng(0).uniform(0.5, 3.0, 60) if weighted else None
    problem, params = make_slab_problem(1, {"n_sweeps": n_sweeps, "C": 0.0}, row_weights=times)
    at, inferred = problem.joint.evaluate(params, None, EXACT)
    gradient = problem.joint.gradient(at, inferred)
    direction = np.random.default_rng(2).standard_normal(gradient.shape)

    def value(step):
        moved = problem.joint.model.move(params, problem.joint.model.position(params) + step * direction)
        return problem.joint.evaluate(moved, None, EXACT)[0].objective

    h = 1e-3
    numeric = (8.0 * (value(h) - value(-h)) - (value(2 * h) - value(-2 * h))) / (12.0 * h)
    assert numeric == pytest.approx(np.vdot(gradient, direction), rel=1e-7)


@pytest.mark.parametrize("n_sweeps", [1, 3])
@pytest.mark.parametrize("fit_intercept", [False, True])
@pytest.mark.parametrize("one_vs_rest", [False, True])
def test_gradient_of_objective_agrees_with_differences(n_sweeps, fit_intercept, one_vs_rest):
    changes = {"n_sweeps": n_sweeps, "fit_intercept": fit_intercept, "one_vs_rest": one_vs_rest}
    problem, params = make_slab_problem(1, changes | {"input_scale": 0.2, "C": 0.3}, n_unlabeled=8)
    at, inferred = problem.joint.evaluate(params, None, EXACT)
    gradient = problem.joint.gradient(at, inferred)
    direction = np.random.default_rng(2).standard_normal(gradient.shape)

    def value(step):
        moved = problem.joint.model.move(params, problem.joint.model.position(params) + step * direction)
        return problem.joint.evaluate(moved, at.warm_start, EXACT)[0].objective

    h = 1e-4
    assert (value(h) - value(-h)) / (2 * h) == pytest.approx(np.vdot(gradient, direction), rel=2e-4, abs=1e-4)


def quadrature_rows(params, rows, n_nodes=60):
    """Return for each row nodes and weights of the inferred distribution of its features (K = 2)."""
    swept, projections = params.sweep(rows)
    found = []
    for row in range(len(rows)):
        features, amounts = [], np.zeros(2)
        for k in range(2):  # a feature depends on preceding features only
            drive = projections[row, k] - params.mean_field.coupling[k] @ np.where(np.arange(2) == k, 0.0, amounts)
            precision = params.amount_precisions[k]
            nodes, mass = np.polynomial.legendre.leggauss(n_nodes)
            widest = max(drive / precision, 0.0) + 10.0 / np.sqrt(precision)
            v = 0.5 * widest * (nodes + 1.0)
            density = mass * np.exp(drive * v - 0.5 * precision * v**2)
            psi = swept.psi[row, k]
            features.append((np.append(0.0, v), np.append(1.0 - psi, psi * density / density.sum())))
            amounts[k] = swept.amounts[row, k]
        found.append(features)
    return found


def test_expected_residual_agrees_with_quadrature():
    problem, params = make_slab_problem(12, {"n_components": 2}, n=4, D=3)
    X = problem.data.X
    stats = problem.joint.model.infer(X, params).stats
    total = 0.0
    for row, ((v0, p0), (v1, p1)) in zip(X.array(), quadrature_rows(params, X), strict=True):
        amounts = np.stack([np.broadcast_to(v0[:, None], (len(v0), len(v1))), np.broadcast_to(v1, (len(v0), len(v1)))])
        expected = np.einsum("kij,kd->ijd", amounts, params.loadings)
        squares = np.square(row - params.offset - expected).sum(axis=2) + 3.0 * np.einsum(
            "kij,k->ij", amounts**2, params.variances
        )
        total += p0 @ squares @ p1
    assert expected_residual(stats, params) == pytest.approx(total, rel=1e-8)


def test_terms_of_one_feature_are_the_log_evidence():
    """Mean field is exact for one feature, so the rows' part of J over r is their negative log-evidence."""
    problem, params = make_slab_problem(3, {"n_components": 1, "C": 0.0, "temperature": 2.5}, n=6, D=3)
    X, T, noise = problem.data.X, params.temperature, params.noise_variance
    at, _ = problem.joint.evaluate(params, None, EXACT)
    expected = stick_expectations(params.sticks)
    nodes, mass = np.polynomial.legendre.leggauss(400)
    v, mass = 6.0 * (nodes + 1.0), 6.0 * mass
    likelihoods = (
        np.square(X.array()[:, None, :] - params.offset - v[:, None] * params.loadings[0]).sum(axis=2)
        + 3 * v**2 * params.variances
    )
    off = np.exp(-0.5 * np.square(X.array() - params.offset).sum(axis=1) / (noise * T) + expected.log_rest[0])
    on = np.exp(-0.5 * likelihoods / (noise * T)) @ (mass * 2.0 * norm.pdf(v))
    evidence = np.log(off + on * np.exp(expected.log_use[0] - params.price)) - 1.5 * np.log(2 * np.pi * noise) / T
    nodes, mass = np.polynomial.hermite.hermgauss(4)  # exact for the loadings, whose log-densities are quadratic
    mean, deviation = params.loadings[0], np.sqrt(params.variances[0])
    loadings = mean + np.sqrt(2.0) * deviation * nodes[:, None]
    apart = norm.logpdf(loadings, mean, deviation) - norm.logpdf(loadings, 0.0, np.sqrt(params.prior_variance))
    kl_loadings = mass @ apart.sum(axis=1) / np.sqrt(np.pi)
    rest = kl_loadings / T + kl_sticks(params.sticks, problem.settings.alpha)
    total = problem.settings.generative_weight * (rest - evidence.sum())
    assert at.objective == pytest.approx(total, rel=1e-9)


def test_row_bounds_are_tight_for_orthogonal_loadings():
    problem, params = make_slab_problem(5, {"n_components": 2, "n_sweeps": 60}, n=8, D=4)
    X = problem.data.X
    rng = np.random.default_rng(6)
    orthogonal = np.linalg.qr(rng.standard_normal((4, 2)))[0].T * [[1.0], [1.5]]
    nodes, mass = np.polynomial.legendre.leggauss(120)
    v, mass = 5.0 * (nodes + 1.0), 5.0 * mass * 2.0 * norm.pdf(5.0 * (nodes + 1.0))
    values, weights = np.append(0.0, v), mass
    for loadings, tight in ((rng.standard_normal((2, 4)), False), (orthogonal, True)):
        at_one = replace(params, loadings=loadings, temperature=1.0, price=0.0)
        expected = stick_expectations(at_one.sticks)
        first, second = (
            np.append(np.exp(rest), np.exp(use) * weights)
            for use, rest in zip(expected.log_use, expected.log_rest, strict=True)
        )
        exact = []
        for row in X.array():
            left = row - at_one.offset - values[:, None, None] * loadings[0] - values[None, :, None] * loadings[1]
            squares = np.square(left).sum(axis=2)
            squares += 4.0 * (values[:, None] ** 2 * at_one.variances[0] + values**2 * at_one.variances[1])
            exact.append(np.log(first @ np.exp(-0.5 * squares / at_one.noise_variance) @ second))
        exact = np.array(exact) - 2.0 * np.log(2 * np.pi * at_one.noise_variance)
        bounds = at_one.bound(X)
        assert np.all(bounds <= exact + 1e-9)
        assert not tight or bounds == pytest.approx(exact, abs=1e-6)


def test_sticks_and_variance_updates_never_raise_the_objective():
    problem, params = make_slab_problem(7, {"C": 0.0})
    model = problem.joint.model
    stats = model.infer(problem.data.X, params).stats

    def value(at):
        return sum(model.terms(at, stats).values())

    best = update_prior_blocks(params, stats, problem.settings.alpha)
    assert value(best) < value(params)
    rng = np.random.default_rng(2)
    for _ in range(20):
        moved = replace(best, variances=best.variances * np.exp(0.1 * rng.standard_normal(len(best.variances))))
        assert value(moved) > value(best)


def test_objective_counts_weight_two_as_row_twice():
    times = np.random.default_rng(0).integers(1, 4, 60)
    heavy = make_data(30, n_unlabeled=8, row_weights=times.astype(float))
    repeated = repeat_rows(heavy, times)
    settings = make_settings(repeated.X, C=0.0, **SLAB)
    params = convert_params(start_of(ILSVMProblem(repeated, settings)), settings)
    found = []
    for data in (heavy, repeated):
        problem = ILSVMProblem(data, settings, SlabFeatures)
        at, inferred = problem.joint.evaluate(params, None, EXACT)
        found.append((at, problem.joint.gradient(at, inferred)))
    (at, gradient), (there, expected) = found
    assert dict(at.terms) == pytest.approx(dict(there.terms), rel=1e-10)
    assert gradient == pytest.approx(expected, abs=1e-10 * np.abs(expected).max())


def test_statistics_of_blocks_are_additive():
    problem, params = make_slab_problem(8)
    X, model = problem.data.X, problem.joint.model
    whole = model.infer(X, params)
    parts = [model.infer(X.take(rows), params) for rows in (slice(0, 23), slice(23, 60))]
    joined = parts[0].stats + parts[1].stats
    for name in ("counts", "first_moment", "second_moment", "explained", "entropy"):
        assert getattr(joined, name) == pytest.approx(getattr(whole.stats, name), rel=1e-10)
    assert np.vstack([part.features for part in parts]) == pytest.approx(whole.features, abs=1e-12)


def test_features_without_loadings_do_not_affect_the_others():
    problem, params = make_slab_problem(9)
    X = problem.data.X
    padded = pad(params, 8, problem.settings.alpha)
    assert padded.infer(X)[:, :5] == pytest.approx(params.infer(X), abs=1e-12)
    assert np.ptp(padded.infer(X)[:, 5:], axis=0) == pytest.approx(0.0, abs=1e-12)


def test_convert_params_gives_the_requested_feature_type():
    problem, params = make_slab_problem(10)
    assert isinstance(params, SlabParams)
    binary = convert_params(params, replace(problem.settings, slab=None))
    assert type(binary) is Params
    assert np.array_equal(binary.loadings, params.loadings)


# --- the start and the fit -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("C", [0.0, 1.0])
def test_start_has_two_features_per_direction(C):
    """Rows vary along two directions; labels add features for each class, which come first."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 2)) @ (3.0 * rng.normal(size=(2, 12))) + 0.3 * rng.normal(size=(200, 12))
    data = replace(make_data(0, n=200), X=centre_rows(X))
    data = data if C else Data(data.X)
    loadings = start(data, make_settings(data.X, **SLAB, n_components=20, C=C)).loadings
    n_classes = 3 if C else 0
    assert len(loadings) == n_classes + 4
    assert loadings[n_classes:][:2] == pytest.approx(-loadings[n_classes:][2:], abs=1e-12)


def test_descent_never_increases():
    data = make_data(12, n=120)
    settings = make_settings(data.X, C=0.1, generative_weight=0.001, temperature=0.3, max_iter=15, **SLAB)
    result = fit.fit(data, settings, start_of(ILSVMProblem(data, settings)))
    assert result.trace.rises.count == 0 if hasattr(result.trace.rises, "count") else not result.trace.rises
    assert result.state.probabilities.shape == result.state.embedding.shape


# --- the estimators --------------------------------------------------------------------------------------------------


def planted(seed, n=240, n_features=4, D=16):
    """Return rows that are sums of parts with nonnegative activations, and labels that depend on the active parts."""
    rng = np.random.default_rng(seed)
    on = rng.random((n, n_features)) < 0.3
    amounts = on * (1.0 + np.abs(rng.standard_normal((n, n_features))))
    loadings = np.zeros((n_features, D))
    for k in range(n_features):
        loadings[k, k * D // n_features : (k + 1) * D // n_features] = 2.0
    labels = on[:, 0].astype(int) + 2 * on[:, 1].astype(int)
    return amounts @ loadings + 0.5 * rng.standard_normal((n, D)), labels, amounts


@pytest.fixture(scope="module")
def fitted():
    X, y, _ = planted(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return ILSVMClassifier(6, slab="half-normal", max_iter=30, random_state=0).fit(X, y), X, y


def test_scores_are_linear_in_the_feature_values(fitted):
    model, X, y = fitted
    assert model.transform(X) @ model.coef_features_.T + model.intercept_ == pytest.approx(
        model.decision_function(X), abs=1e-9
    )
    assert model.embedding_ == pytest.approx(model.transform(X), abs=1e-12)
    psi = model.feature_probabilities(X)
    assert model.probabilities_ == pytest.approx(psi, abs=1e-12)
    assert np.all((psi >= 0.0) & (psi <= 1.0))
    assert np.all(model.transform(X) >= 0.0)
    assert fits_its_rows(model.predict(X), y)
    used = np.ptp(psi, axis=0) > 0.1
    assert model.n_components_ == used.sum()


def test_transform_of_binary_features_returns_probabilities():
    X, y, _ = planted(1)
    model = ILSVMClassifier(4, max_iter=3, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(X, y)
    assert np.array_equal(model.feature_probabilities(X), model.transform(X))
    assert not hasattr(model, "probabilities_")


def test_loaded_model_is_equal(fitted, tmp_path):
    model, X, _ = fitted
    model.save(tmp_path / "model.rgb")
    again = regbayes.load(tmp_path / "model.rgb")
    assert np.array_equal(again.decision_function(X), model.decision_function(X))
    assert np.array_equal(again.feature_probabilities(X), model.feature_probabilities(X))


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_unlabeled_weighted_warm_starts_work_with_inputs(fitted):
    _, X, y = fitted
    weights = np.ones(len(X))
    weights[:5] = 0.0
    hidden = y.copy()
    hidden[5:15] = -1
    model = ILSVMClassifier(
        5, slab="half-normal", include_inputs=True, unlabeled=-1, warm_start=True, max_iter=5, random_state=0
    ).fit(X, hidden, sample_weight=weights)
    assert model.probabilities_.shape == model.embedding_.shape == (len(X), 5)
    scores = model.transform(X) @ model.coef_features_.T + X @ model.coef_inputs_.T
    offset = model.decision_function(X) - scores
    assert np.ptp(offset, axis=0) == pytest.approx(0.0, abs=1e-8)
    before = model.trace_.objective[-1]
    model.fit(X, hidden, sample_weight=weights)
    assert model.trace_.objective[0] == pytest.approx(before, rel=1e-3)
    model.set_params(slab=None, temperature=0.02).fit(X, hidden, sample_weight=weights)  # warm-starts binary features
    assert not hasattr(model, "probabilities_")
    assert model.embedding_.max() <= 1.0


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_threads_and_units_of_inputs_do_not_matter(fitted):
    model, X, y = fitted
    threads = clone(model).set_params(n_jobs=2).fit(X, y)
    assert np.array_equal(threads.transform(X), model.transform(X))
    scaled = clone(model).fit(1024.0 * X, y)
    assert scaled.feature_probabilities(1024.0 * X) == pytest.approx(model.feature_probabilities(X), abs=1e-6)


def test_alternation_with_slab_raises(fitted):
    _, X, y = fitted
    with pytest.raises(ValueError, match="slab"):
        ILSVMClassifier(slab="half-normal", margins="posterior").fit(X, y)
    with pytest.raises(ValueError, match="half-normal"):
        ILSVMClassifier(slab="gaussian").fit(X, y)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_simulated_feature_values_are_recovered_without_labels():
    X, _, amounts = planted(2, n=400)
    model = IBPFactorAnalysis(8, slab="half-normal", random_state=0).fit(X)
    found = model.transform(X)
    in_use = found[:, np.ptp(found, axis=0) > 1e-3]  # other features are constant, with undefined correlations
    correlation = np.abs(np.corrcoef(amounts.T, in_use.T)[:4, 4:])
    assert np.all(correlation.max(axis=1) > 0.95)
    assert model.inverse_transform(found).shape == X.shape
    assert np.all(np.isfinite(model.score_samples(X)))
    left = np.square(X - model.inverse_transform(found)).sum() / np.square(X - X.mean(axis=0)).sum()
    assert left < 0.2


def test_plots_and_report_show_real_valued_features(fitted):
    pytest.importorskip("matplotlib")
    from regbayes.plots import FeatureUseDisplay
    from regbayes.report import collect, render

    model, X, y = fitted
    shown = FeatureUseDisplay.from_estimator(model, X, y)
    assert np.all(shown.overall <= 1.0)
    assert len(shown.features) == model.n_components_
    page = render(collect(model, X, y))
    assert "<html" in page


def test_kernel_accepts_every_pair_of_settings():
    """Real-valued features at extreme temperatures are finite."""
    X, y, _ = planted(3, n=60)
    for temperature, n_sweeps in product((1e-6, 100.0), (1, 2)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            model = ILSVMClassifier(3, slab="half-normal", temperature=temperature, n_sweeps=n_sweeps, max_iter=2).fit(
                X, y
            )
        assert np.all(np.isfinite(model.decision_function(X)))


def test_noise_ratios_are_scales_of_the_inputs():
    """The product of the ratios is one, so no term of the objective changes."""
    data = make_data(5, n=80)
    roots = np.exp(np.linspace(-0.5, 0.5, data.X.n_inputs))
    settings = make_settings(data.X, **SLAB)
    scaled = replace(data, X=centre_rows(data.X.X / roots))
    params = convert_params(start_of(ILSVMProblem(scaled, settings)), settings)
    there = replace(params, loadings=params.loadings * roots, offset=params.offset * roots, noise_ratios=roots**2)
    expected, inferred = ILSVMProblem(scaled, settings, SlabFeatures).joint.evaluate(params, None, EXACT)
    problem = ILSVMProblem(data, replace(settings, noise_ratios=roots**2), SlabFeatures)
    found, seen = problem.joint.evaluate(there, None, EXACT)
    assert found.objective == pytest.approx(expected.objective, rel=1e-9)
    gradient = ILSVMProblem(scaled, settings, SlabFeatures).joint.gradient(expected, inferred)
    assert problem.joint.gradient(found, seen) == pytest.approx(gradient, abs=1e-6 * np.abs(gradient).max())
    rows = params.bound(scaled.X)
    assert there.bound(data.X) == pytest.approx(rows, rel=1e-9)
