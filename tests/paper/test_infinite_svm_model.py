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
from regbayes.engine import row_blocks
from regbayes.margins.head import Tolerance
from regbayes_paper.models import infinite_svm
from regbayes_paper.models.infinite_svm import (
    Margins,
    Problem,
    RowProblems,
    evaluate,
    fit,
    generative_terms,
    infer_responsibilities,
    keep_better,
    make_blank,
    merge_gains,
    solve_classifiers,
    start_responsibilities,
    update_params,
    update_responsibilities,
)
from regbayes_paper.priors.dirichlet_process import best_order
from regbayes_paper.priors.normal_gamma import NormalGammaPrior

both_losses = pytest.mark.parametrize("squared", [False, True], ids=["hinge", "squared hinge"])
X, Y, CLUSTER = planted(80, n_classes=3)
Q = some_responsibilities(80, 3)
DATA = labelled(X, Y)


def problem(**changes):
    return Problem.of(DATA, settings(X, **changes))


def with_price(C):
    return labelled(X, Y, C=C)


def paid(classifier, data, q, chosen):
    """What classifiers cost at given responsibilities."""
    head = infinite_svm.make_head(data, chosen)
    return classifier.kl_weights + head.losses(classifier.scores(data.X, q)).sum()


def objective(at, chosen, q=None, g=None, classifier=None):
    """J with every block given, from its definition."""
    q, g = at.responsibilities if q is None else q, at.params if g is None else g
    classifier = at.margins.classifiers if classifier is None else classifier
    rows = np.column_stack([X - X.mean(axis=0), np.ones(80)]) if classifier.fit_intercept else X
    scores = np.array(
        [sum(q[n, k] * classifier.weights[k] @ rows[n] for k in range(q.shape[1])) for n in range(len(X))]
    )
    hinge = np.array([max(float(y != a) - s[y] + s[a] for a in range(3)) for y, s in zip(Y, scores, strict=True)])
    loss = 0.5 * np.sum(hinge**2 if chosen.squared else hinge)
    return sum(generative_terms(DATA, q, g, chosen).values()) + 0.5 * np.sum(classifier.weights**2) + loss


# --- the objective and its blocks


@both_losses
@pytest.mark.parametrize("fit_intercept", [False, True])
def test_terms_add_up_to_the_objective(squared, fit_intercept):
    at_hand = problem(squared=squared, fit_intercept=fit_intercept)
    at = evaluate(at_hand, Q, None)
    assert sum(at.terms.values()) == pytest.approx(objective(at, at_hand.settings), rel=1e-9)
    assert at.margins.value == pytest.approx(at.terms["kl_weights"] + at.terms["margin"])


@both_losses
def test_no_block_can_be_improved_by_itself(squared):
    at_hand = problem(squared=squared, max_iter=5)
    at = evaluate(at_hand, Q, None)
    q, _ = update_responsibilities(DATA, at_hand.settings, at.params, at.margins, at_hand.head, Q)
    moved = replace(at, responsibilities=q)
    best = objective(moved, at_hand.settings)
    assert best < objective(at, at_hand.settings)
    rng = np.random.default_rng(0)
    for size in (1e-1, 1e-2):
        tilted = q * np.exp(size * rng.standard_normal(q.shape))
        tilted /= tilted.sum(axis=1, keepdims=True)
        assert objective(moved, at_hand.settings, q=tilted) > best - 1e-5
    before = objective(at, at_hand.settings)
    classifier = at.margins.classifiers
    for _ in range(10):
        shaken = replace(classifier, weights=classifier.weights + 0.05 * rng.standard_normal(classifier.weights.shape))
        assert objective(at, at_hand.settings, classifier=shaken) > before
    other = update_params(DATA, 0.9 * Q + 0.1 / 3, at_hand.settings)
    assert objective(at, at_hand.settings, g=other) > before


# --- a row's own problem


def row_problems(squared, n=12, n_answers=4, C=2.0, seed=0):
    rng = np.random.default_rng(seed)
    labels = rng.integers(n_answers, size=n)
    scores = 2.0 * rng.standard_normal((n, 3, n_answers))
    cost = rng.uniform(0.5, 2.0, size=(n, n_answers))
    cost[np.arange(n), labels] = 0.0
    gains = np.take_along_axis(scores, labels[:, None, None], axis=2) - scores
    return RowProblems(3.0 * rng.standard_normal((n, 3)), gains, cost, labels, np.full(n, C), squared)


def feasible(problems, rng):
    omega = rng.uniform(size=problems.cost.shape)
    if problems.squared:
        omega[np.arange(len(omega)), problems.labels] = 0.0
        return omega
    return omega / omega.sum(axis=1, keepdims=True) * problems.C[:, None]


@both_losses
@pytest.mark.parametrize("C", [0.1, 2.0, 50.0, 1000.0])
def test_a_rows_problem_against_cvxpy(squared, C):
    problems = row_problems(squared, C=C)
    q, omega = problems.solve(feasible(problems, np.random.default_rng(1)))
    np.testing.assert_allclose(q.sum(axis=1), 1.0)
    assert np.all(omega >= 0)
    if not squared:
        np.testing.assert_allclose(omega.sum(axis=1), C)
    for n in range(0, len(q), 3):
        z = cp.Variable(3, nonneg=True)
        hinge = cp.max(problems.cost[n] - problems.gains[n].T @ z)
        loss = cp.square(cp.pos(hinge)) if squared else hinge
        value = -cp.sum(cp.entr(z)) - problems.logits[n] @ z + C * loss
        expected = cp.Problem(cp.Minimize(value), [cp.sum(z) == 1]).solve(solver=cp.CLARABEL)
        found = problems.value(q)[n]
        assert found == pytest.approx(expected, rel=1e-5, abs=1e-4)


@both_losses
def test_rows_that_count_for_nothing_follow_their_logits(squared):
    problems = replace(row_problems(squared), C=np.zeros(12))
    q, omega = problems.solve(np.zeros((12, 4)))
    expected = np.exp(problems.logits) / np.exp(problems.logits).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(q, expected, rtol=1e-12)
    assert not np.any(omega)


# --- the descent


@both_losses
@pytest.mark.parametrize("merge", [False, True])
def test_the_objective_never_rises(squared, merge):
    chosen = settings(X, squared=squared, merge=merge, n_components=5)
    start = start_responsibilities(DATA, chosen, np.random.default_rng(0))
    result = fit(with_price(2.0), chosen, start)
    objectives = result.trace.objective
    assert result.trace.rises.largest <= 1e-9 * abs(objectives[0])
    assert objectives[-1] < objectives[0] - 1.0


def test_the_trace_is_that_of_the_state():
    chosen = settings(X, n_components=5, refit=False)
    result = fit(DATA, chosen, start_responsibilities(DATA, chosen, np.random.default_rng(0)))
    terms = generative_terms(DATA, result.state.responsibilities, result.state.params, chosen)
    total = sum(terms.values()) + paid(result.state.classifiers, DATA, result.state.responsibilities, chosen)
    last, gap = result.trace.objective[result.kept_iteration], result.trace.diagnostics["gap"][result.kept_iteration]
    assert last - gap - 1e-9 <= total <= last + 1e-9  # the last classifiers are solved for once more


def test_classifiers_are_kept_where_new_ones_are_dearer():
    at_hand = problem()
    at = evaluate(at_hand, Q, None)
    poor = replace(at.margins.classifiers, weights=np.zeros_like(at.margins.classifiers.weights))
    assert keep_better(at.margins, poor, DATA, Q, at_hand.head) is at.margins
    worse = Margins(poor, at.margins.multipliers, paid(poor, DATA, Q, at_hand.settings), at.margins.gap)
    kept = keep_better(worse, at.margins.classifiers, DATA, Q, at_hand.head)
    assert kept.value == pytest.approx(at.margins.value, rel=1e-9)


# --- one component


@pytest.mark.parametrize("n_classes", [2, 3])
def test_one_component_is_liblinears_multi_class_svm(n_classes):
    rows, labels, _ = planted(120, n_classes=n_classes, apart=1.0)
    rows = (rows - rows.mean(axis=0)) / rows.std(axis=0)
    rows = np.column_stack([rows, np.square(rows)])
    data = labelled(rows, labels, C=0.3)
    chosen = settings(rows, n_components=1, squared=False, fit_intercept=False)
    found = fit(data, chosen, np.ones((120, 1))).state.classifiers
    svm = LinearSVC(C=0.3, multi_class="crammer_singer", fit_intercept=False, tol=1e-10, max_iter=10**6)
    weights = svm.fit(rows, labels).coef_
    if n_classes == 2:  # liblinear's difference of two classes
        np.testing.assert_allclose(found.weights[0, 1] - found.weights[0, 0], weights[0], atol=1e-3)
    else:
        np.testing.assert_allclose(found.weights[0], weights, atol=1e-3)
    full = weights if n_classes == 3 else np.vstack([-weights / 2, weights / 2])
    value, expected = (
        paid(classifier, data, np.ones((120, 1)), chosen) for classifier in (found, replace(found, weights=full[None]))
    )
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
    g = update_params(labelled(rows, np.zeros(130, dtype=int)), q, settings(rows, prior=prior))
    np.testing.assert_allclose(g.components.centre, model.means_, atol=1e-5)
    np.testing.assert_allclose(1 / g.components.precision, model.covariances_, rtol=1e-5)
    np.testing.assert_allclose(g.sticks.first, model.weight_concentration_[0], rtol=1e-5)
    np.testing.assert_allclose(g.sticks.second, model.weight_concentration_[1], rtol=1e-5)
    np.testing.assert_allclose(infer_responsibilities(rows, g), q, atol=1e-5)


def test_without_labels_planted_clusters_are_found_as_scikit_learn_finds_them():
    rows, labels, cluster = planted(400)
    chosen, data = settings(rows, n_components=10), labelled(rows, labels, C=0.0)
    state = fit(data, chosen, start_responsibilities(data, chosen, np.random.default_rng(0))).state
    found = state.responsibilities.argmax(axis=1)
    theirs = BayesianGaussianMixture(
        n_components=4, covariance_type="diag", random_state=0, max_iter=500, n_init=3
    ).fit_predict(rows)
    assert adjusted_rand_score(cluster, found) > 0.99
    assert adjusted_rand_score(theirs, found) > 0.98
    assert len(np.unique(found)) == 4


def test_a_price_near_nothing_is_no_price():
    free, cheap = (fit(with_price(C), settings(X), Q).state.responsibilities for C in (0.0, 1e-7))
    np.testing.assert_allclose(cheap, free, atol=1e-4)


# --- the start


def test_merging_gains_what_the_bound_says():
    chosen = settings(X, n_components=4)
    q = np.sort(some_responsibilities(80, 4, seed=3), axis=1)[:, ::-1]

    def bound(responsibilities):
        responsibilities = responsibilities[:, best_order(responsibilities.sum(axis=0))]
        g = update_params(DATA, responsibilities, chosen)
        return -sum(generative_terms(DATA, responsibilities, g, replace(chosen, generative_weight=1.0)).values())

    gains, pairs = merge_gains(DATA, q, chosen)
    assert len(pairs) == 6
    for gain, (i, j) in zip(gains, pairs, strict=True):
        joined = q.copy()
        joined[:, i] += joined[:, j]
        joined[:, j] = 0.0
        assert gain == pytest.approx(bound(joined) - bound(q), rel=1e-9, abs=1e-7)


@pytest.mark.parametrize("seed", range(3))
def test_the_start_finds_clusters_whatever_the_seed(seed):
    rows, labels, cluster = planted(300)
    chosen, data = settings(rows, n_components=12), labelled(rows, labels)
    q = start_responsibilities(data, chosen, np.random.default_rng(seed))
    assert adjusted_rand_score(cluster, q.argmax(axis=1)) > 0.98
    unmerged = start_responsibilities(data, replace(chosen, merge=False), np.random.default_rng(seed))
    assert len(np.unique(unmerged.argmax(axis=1))) == 12
    assert np.all(np.diff(unmerged.sum(axis=0)) <= 0)


# --- new rows


def test_scores_are_averages_over_components():
    state = fit(DATA, settings(X, max_iter=3), Q).state
    q = infer_responsibilities(X, state.params)
    rows = np.column_stack([X - X.mean(axis=0), np.ones(80)])
    expected = np.array([sum(q[n, k] * state.classifiers.weights[k] @ rows[n] for k in range(3)) for n in range(80)])
    np.testing.assert_allclose(infinite_svm.score(X, state), expected, rtol=1e-9, atol=1e-12)


def test_many_rows_are_taken_in_blocks_and_each_is_seen_by_itself():
    """Rows that fill several blocks, against the same rows few at a time."""
    at_hand = problem()
    at = evaluate(at_hand, Q, None)
    q, multipliers = update_responsibilities(DATA, at_hand.settings, at.params, at.margins, at_hand.head, Q)
    times = 130
    many = labelled(np.tile(X, (times, 1)), np.tile(Y, times))
    assert len(row_blocks(len(many.X))) > 1
    margins = replace(at.margins, multipliers=np.tile(at.margins.multipliers, (times, 1)))
    head = infinite_svm.make_head(many, at_hand.settings)
    found = update_responsibilities(many, at_hand.settings, at.params, margins, head, np.tile(Q, (times, 1)))
    np.testing.assert_allclose(found[0], np.tile(q, (times, 1)), atol=1e-9)
    np.testing.assert_allclose(found[1], np.tile(multipliers, (times, 1)), atol=1e-9)
    scores = at.margins.classifiers.scores(many.X, np.tile(Q, (times, 1)))
    np.testing.assert_allclose(scores, np.tile(at.margins.classifiers.scores(X, Q), (times, 1)), atol=1e-12)


def test_refitted_classifiers_are_those_of_what_prediction_sees():
    chosen, data = settings(X, n_components=5), with_price(2.0)
    start = start_responsibilities(data, chosen, np.random.default_rng(0))
    refitted, original = (fit(data, replace(chosen, refit=refit), start).state for refit in (True, False))
    np.testing.assert_array_equal(refitted.responsibilities, original.responsibilities)
    q = infer_responsibilities(X, refitted.params)

    def value(state, at):
        return paid(state.classifiers, data, at, chosen)

    assert value(refitted, q) < value(original, q)
    assert value(original, original.responsibilities) < value(refitted, original.responsibilities)


def test_rows_classes_and_components_may_change_places():
    chosen = settings(X, max_iter=8, n_components=5)
    start = start_responsibilities(DATA, chosen, np.random.default_rng(0))
    base = fit(DATA, chosen, start)
    rows = np.random.default_rng(0).permutation(80)
    shuffled = fit(labelled(X[rows], Y[rows]), chosen, start[rows])
    renamed = fit(labelled(X, (Y + 1) % 3), chosen, start)
    turned = fit(DATA, chosen, start[:, ::-1])
    answers = infinite_svm.score(X, base.state).argmax(axis=1)
    for other, shift in ((shuffled, 0), (renamed, 1), (turned, 0)):
        assert other.trace.objective[-1] == pytest.approx(base.trace.objective[-1], rel=1e-3)
        assert np.mean((infinite_svm.score(X, other.state).argmax(axis=1) - shift) % 3 == answers) > 0.96


# --- rows that count more than once


COUNTS = np.random.default_rng(5).integers(1, 4, 80)


@both_losses
def test_a_row_of_weight_two_is_the_row_twice(squared):
    """The terms, the start's merges and every block at the same point."""
    weighted, repeated = labelled(X, Y, COUNTS.astype(float)), labelled(X.repeat(COUNTS, axis=0), Y.repeat(COUNTS))
    chosen, q = settings(X, squared=squared), Q.repeat(COUNTS, axis=0)
    one, two = update_params(weighted, Q, chosen), update_params(repeated, q, chosen)
    np.testing.assert_allclose(one.sticks.first, two.sticks.first, rtol=1e-12)
    np.testing.assert_allclose(one.components.rate, two.components.rate, rtol=1e-12)
    expected = generative_terms(repeated, q, two, chosen)
    for name, value in generative_terms(weighted, Q, one, chosen).items():
        assert value == pytest.approx(expected[name], rel=1e-12)
    np.testing.assert_allclose(merge_gains(weighted, Q, chosen)[0], merge_gains(repeated, q, chosen)[0], rtol=1e-10)
    problems = [Problem.of(data, chosen) for data in (weighted, repeated)]
    tight = Tolerance(gap=1e-9, max_epochs=50_000.0)
    solved, again = (
        solve_classifiers(problem.data, at, problem.head, make_blank(problem.data, chosen), None, tight)
        for problem, at in zip(problems, (Q, q), strict=True)
    )
    assert solved.value == pytest.approx(again.value, rel=2e-9)
    both = [paid(solved.classifiers, data, at, chosen) for data, at in ((weighted, Q), (repeated, q))]
    assert both[0] == pytest.approx(both[1], rel=1e-12)
    spread = replace(solved, multipliers=(solved.multipliers / COUNTS[:, None]).repeat(COUNTS, axis=0))
    (moved, phi), (again, psi) = (
        update_responsibilities(data, chosen, one, margins, problem.head, before)
        for data, margins, problem, before in zip((weighted, repeated), (solved, spread), problems, (Q, q), strict=True)
    )
    np.testing.assert_allclose(moved.repeat(COUNTS, axis=0), again, atol=1e-5)  # each row to its own gap
    np.testing.assert_allclose((phi / COUNTS[:, None]).repeat(COUNTS, axis=0), psi, atol=1e-4)


def test_fits_with_weights_end_where_those_of_repeated_rows_do():
    weighted, repeated = labelled(X, Y, COUNTS.astype(float)), labelled(X.repeat(COUNTS, axis=0), Y.repeat(COUNTS))
    chosen = settings(X, n_components=5, max_iter=30)
    start = start_responsibilities(weighted, chosen, np.random.default_rng(0))
    one, two = fit(weighted, chosen, start), fit(repeated, chosen, start.repeat(COUNTS, axis=0))
    assert one.trace.objective[-1] == pytest.approx(two.trace.objective[-1], rel=1e-4)
    scores = [infinite_svm.score(X, found.state) for found in (one, two)]
    np.testing.assert_allclose(scores[0], scores[1], atol=0.02 * np.abs(scores[0]).max())
