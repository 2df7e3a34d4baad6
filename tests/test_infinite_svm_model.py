"""The infinite SVM's parts against theorems and other solvers: blocks, rows' own problems, the whole descent."""

from __future__ import annotations

from dataclasses import replace

import cvxpy as cp
import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score
from sklearn.mixture import BayesianGaussianMixture
from sklearn.svm import LinearSVC

from infinite_svm_tools import labelled, planted, settings, some_responsibilities
from regbayes.models.infinite_svm import fit, init, margins, predict, updates
from regbayes.models.infinite_svm.margins import RowProblems
from regbayes.models.infinite_svm.objective import generative_terms
from regbayes.priors.dirichlet_process import best_order
from regbayes.priors.normal_gamma import NormalGammaPrior

both_losses = pytest.mark.parametrize("squared", [False, True], ids=["hinge", "squared hinge"])
X, Y, CLUSTER = planted(80, n_classes=3)
Q = some_responsibilities(80, 3)
DATA = labelled(X, Y)


def problem(**changes):
    chosen = settings(X, **changes)
    return fit.Problem(DATA, chosen, margins.build_dual(DATA, chosen) if chosen.C > 0 else None)


def objective(at, chosen, q=None, g=None, classifier=None):
    """J with every block given, from its definition."""
    q, g = at.responsibilities if q is None else q, at.globals if g is None else g
    classifier = at.margins.classifier if classifier is None else classifier
    rows = classifier.inputs(X)
    scores = np.array(
        [sum(q[n, k] * classifier.weights[k] @ rows[n] for k in range(q.shape[1])) for n in range(len(X))]
    )
    hinge = np.array([max(DATA.cost[y, a] - s[y] + s[a] for a in range(3)) for y, s in zip(Y, scores, strict=True)])
    loss = chosen.C * np.sum(hinge**2 if chosen.squared else hinge)
    return sum(generative_terms(X, q, g, chosen).values()) + 0.5 * np.sum(classifier.weights**2) + loss


# --- the objective and its blocks


@both_losses
@pytest.mark.parametrize("fit_intercept", [False, True])
def test_terms_add_up_to_the_objective(squared, fit_intercept):
    at_hand = problem(squared=squared, fit_intercept=fit_intercept)
    at = fit.evaluated(at_hand, Q, None)
    assert sum(at.terms.values()) == pytest.approx(objective(at, at_hand.settings), rel=1e-9)
    assert at.margins.value == pytest.approx(at.terms["kl_weights"] + at.terms["margin"])


@both_losses
def test_no_block_can_be_improved_by_itself(squared):
    at_hand = problem(squared=squared, max_iter=5)
    at = fit.evaluated(at_hand, Q, None)
    q, _ = updates.update_responsibilities(
        DATA, at_hand.settings, at.globals, at.margins.classifier, at.margins.multipliers, Q
    )
    moved = replace(at, responsibilities=q)
    best = objective(moved, at_hand.settings)
    assert best < objective(at, at_hand.settings)
    rng = np.random.default_rng(0)
    for size in (1e-1, 1e-2):
        tilted = q * np.exp(size * rng.standard_normal(q.shape))
        tilted /= tilted.sum(axis=1, keepdims=True)
        assert objective(moved, at_hand.settings, q=tilted) > best - 1e-5
    before = objective(at, at_hand.settings)
    classifier = at.margins.classifier
    for _ in range(10):
        shaken = replace(classifier, weights=classifier.weights + 0.05 * rng.standard_normal(classifier.weights.shape))
        assert objective(at, at_hand.settings, classifier=shaken) > before
    other = updates.update_globals(X, 0.9 * Q + 0.1 / 3, at_hand.settings)
    assert objective(at, at_hand.settings, g=other) > before


# --- a row's own problem


def row_problems(squared, n=12, n_answers=4, price=2.0, seed=0):
    rng = np.random.default_rng(seed)
    labels = rng.integers(n_answers, size=n)
    scores = 2.0 * rng.standard_normal((n, 3, n_answers))
    cost = rng.uniform(0.5, 2.0, size=(n, n_answers))
    cost[np.arange(n), labels] = 0.0
    gains = np.take_along_axis(scores, labels[:, None, None], axis=2) - scores
    return RowProblems(3.0 * rng.standard_normal((n, 3)), gains, cost, labels, np.full(n, price), squared)


def feasible(problems, rng):
    omega = rng.uniform(size=problems.cost.shape)
    if problems.squared:
        omega[np.arange(len(omega)), problems.labels] = 0.0
        return omega
    return omega / omega.sum(axis=1, keepdims=True) * problems.price[:, None]


@both_losses
@pytest.mark.parametrize("price", [0.1, 2.0, 50.0, 1000.0])
def test_a_rows_problem_against_cvxpy(squared, price):
    problems = row_problems(squared, price=price)
    q, omega = margins.solve_rows(problems, feasible(problems, np.random.default_rng(1)))
    np.testing.assert_allclose(q.sum(axis=1), 1.0)
    assert np.all(omega >= 0)
    if not squared:
        np.testing.assert_allclose(omega.sum(axis=1), price)
    for n in range(0, len(q), 3):
        z = cp.Variable(3, nonneg=True)
        hinge = cp.max(problems.cost[n] - problems.gains[n].T @ z)
        loss = cp.square(cp.pos(hinge)) if squared else hinge
        value = -cp.sum(cp.entr(z)) - problems.logits[n] @ z + price * loss
        expected = cp.Problem(cp.Minimize(value), [cp.sum(z) == 1]).solve(solver=cp.CLARABEL)
        found = problems.value(q)[n]
        assert found == pytest.approx(expected, rel=1e-5, abs=1e-4)


@both_losses
def test_rows_that_count_for_nothing_follow_their_logits(squared):
    problems = replace(row_problems(squared), price=np.zeros(12))
    q, omega = margins.solve_rows(problems, np.zeros((12, 4)))
    expected = np.exp(problems.logits) / np.exp(problems.logits).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(q, expected, rtol=1e-12)
    assert not np.any(omega)


# --- the descent


@both_losses
@pytest.mark.parametrize("merge", [False, True])
def test_the_objective_never_rises(squared, merge):
    chosen = settings(X, squared=squared, merge=merge, C=2.0, n_components=5)
    start = init.initial_responsibilities(X, chosen, np.random.default_rng(0))
    result = fit.fit(DATA, chosen, start)
    objectives = result.trace.objective
    assert result.trace.rises.largest <= 1e-9 * abs(objectives[0])
    assert objectives[-1] < objectives[0] - 1.0


def test_the_trace_is_that_of_the_state():
    chosen = settings(X, n_components=5, refit=False)
    result = fit.fit(DATA, chosen, init.initial_responsibilities(X, chosen, np.random.default_rng(0)))
    classifier = result.state.classifier
    terms = generative_terms(X, result.state.responsibilities, result.state.globals, chosen)
    loss = margins.total_loss(DATA, result.state.responsibilities, classifier, chosen)
    total = sum(terms.values()) + margins.half_squares(classifier) + loss
    last, gap = result.trace.objective[result.kept_iteration], result.trace.diagnostics["gap"][result.kept_iteration]
    assert last - gap - 1e-9 <= total <= last + 1e-9  # the last classifiers are solved for once more


def test_classifiers_are_kept_where_new_ones_are_dearer():
    at_hand = problem()
    at = fit.evaluated(at_hand, Q, None)
    poor = replace(at.margins.classifier, weights=np.zeros_like(at.margins.classifier.weights))
    assert margins.keep_better(at.margins, poor, DATA, Q, at_hand.settings) is at.margins
    worse = replace(at.margins, classifier=poor, loss=margins.total_loss(DATA, Q, poor, at_hand.settings))
    kept = margins.keep_better(worse, at.margins.classifier, DATA, Q, at_hand.settings)
    assert kept.value == pytest.approx(at.margins.value, rel=1e-9)


# --- one component


@pytest.mark.parametrize("n_classes", [2, 3])
def test_one_component_is_liblinears_multi_class_svm(n_classes):
    rows, labels, _ = planted(120, n_classes=n_classes, apart=1.0)
    rows = (rows - rows.mean(axis=0)) / rows.std(axis=0)
    rows = np.column_stack([rows, np.square(rows)])
    data = labelled(rows, labels)
    chosen = settings(rows, n_components=1, C=0.3, squared=False, fit_intercept=False)
    found = fit.fit(data, chosen, np.ones((120, 1))).state
    svm = LinearSVC(C=0.3, multi_class="crammer_singer", fit_intercept=False, tol=1e-10, max_iter=10**6)
    weights = svm.fit(rows, labels).coef_
    if n_classes == 2:  # liblinear's difference of two classes
        np.testing.assert_allclose(
            found.classifier.weights[0, 1] - found.classifier.weights[0, 0], weights[0], atol=1e-3
        )
    else:
        np.testing.assert_allclose(found.classifier.weights[0], weights, atol=1e-3)
    value = margins.half_squares(found.classifier) + margins.total_loss(
        data, np.ones((120, 1)), found.classifier, chosen
    )
    full = weights if n_classes == 3 else np.vstack([-weights / 2, weights / 2])
    oracle = replace(found.classifier, weights=full[None])
    expected = margins.half_squares(oracle) + margins.total_loss(data, np.ones((120, 1)), oracle, chosen)
    assert value == pytest.approx(expected, rel=1e-6)


# --- no labels


def test_without_labels_it_is_scikit_learns_mixture():
    """In one dimension scikit-learn's diagonal precisions are gammas, and its answer is where ours stays."""
    rng = np.random.default_rng(0)
    rows = np.concatenate([rng.normal(-3, 0.5, 60), rng.normal(0, 1, 40), rng.normal(5, 0.7, 30)])[:, None]
    model = BayesianGaussianMixture(
        n_components=5,
        covariance_type="diag",
        weight_concentration_prior=0.7,
        mean_precision_prior=0.3,
        mean_prior=[0.2],
        degrees_of_freedom_prior=3.0,
        covariance_prior=[1.2],
        tol=1e-14,
        max_iter=20_000,
        reg_covar=0.0,
        random_state=0,
    ).fit(rows)
    prior = NormalGammaPrior(np.array([0.2]), 0.3, 1.5, np.array([0.6]))
    q = model.predict_proba(rows)
    g = updates.update_globals(rows, q, settings(rows, prior=prior))
    np.testing.assert_allclose(g.components.centre, model.means_, atol=1e-5)
    np.testing.assert_allclose(1 / g.components.precision, model.covariances_, rtol=1e-5)
    np.testing.assert_allclose(g.sticks.first, model.weight_concentration_[0], rtol=1e-5)
    np.testing.assert_allclose(g.sticks.second, model.weight_concentration_[1], rtol=1e-5)
    np.testing.assert_allclose(updates.label_free(rows, g), q, atol=1e-5)


def test_without_labels_planted_clusters_are_found_as_scikit_learn_finds_them():
    rows, labels, cluster = planted(400)
    chosen = settings(rows, n_components=10, C=0.0)
    state = fit.fit(
        labelled(rows, labels), chosen, init.initial_responsibilities(rows, chosen, np.random.default_rng(0))
    ).state
    found = state.responsibilities.argmax(axis=1)
    theirs = BayesianGaussianMixture(
        n_components=4, covariance_type="diag", random_state=0, max_iter=500, n_init=3
    ).fit_predict(rows)
    assert adjusted_rand_score(cluster, found) > 0.99
    assert adjusted_rand_score(theirs, found) > 0.98
    assert len(np.unique(found)) == 4


def test_a_price_near_nothing_is_no_price():
    free, cheap = (fit.fit(DATA, replace(settings(X), C=C), Q).state.responsibilities for C in (0.0, 1e-7))
    np.testing.assert_allclose(cheap, free, atol=1e-4)


# --- the start


def test_merging_gains_what_the_bound_says():
    chosen = settings(X, C=0.0, n_components=4)
    q = np.sort(some_responsibilities(80, 4, seed=3), axis=1)[:, ::-1]

    def bound(responsibilities):
        responsibilities = responsibilities[:, best_order(responsibilities.sum(axis=0))]
        g = updates.update_globals(X, responsibilities, chosen)
        return -sum(generative_terms(X, responsibilities, g, replace(chosen, generative_weight=1.0)).values())

    gains, pairs = init.merge_gains(X, q, chosen)
    assert len(pairs) == 6
    for gain, (i, j) in zip(gains, pairs, strict=True):
        joined = q.copy()
        joined[:, i] += joined[:, j]
        joined[:, j] = 0.0
        assert gain == pytest.approx(bound(joined) - bound(q), rel=1e-9, abs=1e-7)


@pytest.mark.parametrize("seed", range(3))
def test_the_start_finds_clusters_whatever_the_seed(seed):
    rows, _, cluster = planted(300)
    chosen = settings(rows, n_components=12)
    q = init.initial_responsibilities(rows, chosen, np.random.default_rng(seed))
    assert adjusted_rand_score(cluster, q.argmax(axis=1)) > 0.98
    unmerged = init.initial_responsibilities(rows, replace(chosen, merge=False), np.random.default_rng(seed))
    assert len(np.unique(unmerged.argmax(axis=1))) == 12
    assert np.all(np.diff(unmerged.sum(axis=0)) <= 0)


# --- new rows


def test_scores_are_averages_over_components():
    state = fit.fit(DATA, settings(X, max_iter=3), Q).state
    q = predict.responsibilities(X, state)
    rows = state.classifier.inputs(X)
    expected = np.array([sum(q[n, k] * state.classifier.weights[k] @ rows[n] for k in range(3)) for n in range(80)])
    np.testing.assert_allclose(predict.decide(X, state), expected, rtol=1e-9, atol=1e-12)


def test_chunks_of_rows_change_nothing():
    """More rows than are looked at together: the same few again and again."""
    chosen = settings(X, max_iter=4)
    state = fit.fit(DATA, chosen, Q).state
    n_times = margins.CHUNK_CELLS // (3 * 3 * len(X)) + 2
    many = labelled(np.tile(X, (n_times, 1)), np.tile(Y, n_times))
    assert len(margins.chunks(len(many.X), state.classifier)) == 2
    decided = predict.decide(many.X, state).reshape(n_times, len(X), 3)
    np.testing.assert_allclose(decided, np.tile(predict.decide(X, state), (n_times, 1, 1)), rtol=1e-9, atol=1e-12)
    few, much = (
        margins.total_loss(data, np.tile(Q, (len(data.X) // len(X), 1)), state.classifier, chosen)
        for data in (DATA, many)
    )
    assert much == pytest.approx(n_times * few, rel=1e-9)


def test_rows_have_responsibilities_of_their_own():
    chosen = settings(X, max_iter=4)
    state = fit.fit(DATA, chosen, Q).state
    omega = np.random.default_rng(0).random((len(X), 3))

    def updated(rows):
        data = replace(DATA, X=X[rows], labels=Y[rows], weights=DATA.weights[rows])
        return updates.update_responsibilities(data, chosen, state.globals, state.classifier, omega[rows], Q[rows])

    for whole, *parts in zip(*(updated(rows) for rows in (slice(0, 80), slice(0, 30), slice(30, 80))), strict=True):
        np.testing.assert_allclose(np.concatenate(parts), whole, rtol=1e-9, atol=1e-12)


def test_refitted_classifiers_are_those_of_what_prediction_sees():
    chosen = settings(X, n_components=5, C=2.0)
    start = init.initial_responsibilities(X, chosen, np.random.default_rng(0))
    refitted, original = (fit.fit(DATA, replace(chosen, refit=refit), start).state for refit in (True, False))
    np.testing.assert_array_equal(refitted.responsibilities, original.responsibilities)
    q = updates.label_free(X, refitted.globals)

    def value(classifier, at):
        return margins.half_squares(classifier) + margins.total_loss(DATA, at, classifier, chosen)

    assert value(refitted.classifier, q) < value(original.classifier, q)
    assert value(original.classifier, original.responsibilities) < value(refitted.classifier, original.responsibilities)


def test_rows_classes_and_components_may_change_places():
    chosen = settings(X, max_iter=8, n_components=5)
    start = init.initial_responsibilities(X, chosen, np.random.default_rng(0))
    base = fit.fit(DATA, chosen, start)
    rows = np.random.default_rng(0).permutation(80)
    shuffled = fit.fit(labelled(X[rows], Y[rows]), chosen, start[rows])
    renamed = fit.fit(labelled(X, (Y + 1) % 3), chosen, start)
    turned = fit.fit(DATA, chosen, start[:, ::-1])
    answers = predict.decide(X, base.state).argmax(axis=1)
    for other, shift in ((shuffled, 0), (renamed, 1), (turned, 0)):
        assert other.trace.objective[-1] == pytest.approx(base.trace.objective[-1], rel=1e-3)
        assert np.mean((predict.decide(X, other.state).argmax(axis=1) - shift) % 3 == answers) > 0.96
