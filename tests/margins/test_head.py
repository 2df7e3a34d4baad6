"""The max-margin head compared with CVXPY, finite differences, and equivalent problems."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from itertools import pairwise
from operator import add

import cvxpy as cp
import numpy as np
import pytest

from head_tools import KINDS, OPTIONS, K, N, cvxpy_problem, make_head, make_targets, seen_by
from large_margin_tools import minimise
from regbayes.engine import Status, Threads
from regbayes.margins.design import Inputs
from regbayes.margins.head import (
    HEAD_POLICY,
    FeatureSums,
    Head,
    Tolerance,
    WarmStart,
)
from regbayes.margins.targets import Cells, Classes, ObservedMatrix, Signs, fill_matrix, observe_classes, zero_one_cost

EXACT = {"ascend": Tolerance(gap=1e-11, max_epochs=2e4), "minimize": Tolerance(gap=1e-13, max_epochs=200.0)}
LOSSES = [("ascend", False), ("ascend", True), ("minimize", True)]
CUTS = ([N], [5, 0, 19], [1, 3, 20], [5, 0, 12, 7])


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def blocks_of(features, cut=(5, 0, 19)):
    return np.split(features, np.cumsum(cut)[:-1])


def solve(head, features, solver, warm_start=None, cut=(5, 0, 19), **options):
    return getattr(head, solver)(blocks_of(features, cut), warm_start, EXACT[solver], **options)


def gradient_of(fitted, features, cut=(5, 0, 19)):
    ends = np.cumsum([0, *cut])
    slices = [slice(first, end) for first, end in pairwise(ends)]
    return np.concatenate([fitted.gradient(rows, features[rows]) for rows in slices])


# --- oracles ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("solver", "squared"), LOSSES)
@pytest.mark.parametrize("kind", KINDS)
def test_head_matches_cvxpy(rng, kind, solver, squared):
    head, features = make_head(kind, squared, rng, inputs=True, rows=True, weighted=True, weight_variance=1.7)
    fitted = solve(head, features, solver)
    smoothing = 0.1 if head.mixes and solver == "minimize" else 0.0
    objective, weights = cvxpy_problem(head, features, smoothing)
    optimum = minimise(objective)
    assert fitted.status is Status.CONVERGED
    assert fitted.value == pytest.approx(optimum, rel=1e-6)
    np.testing.assert_allclose(fitted.head.weights, weights.value, atol=3e-4)
    scores = fitted.head.scores(features, head.inputs)
    seen = slice(None) if head.rows is None else head.rows
    np.testing.assert_allclose(scores[seen], seen_by(head, features) @ fitted.head.weights.T)
    assert fitted.value == pytest.approx(sum(fitted.terms.values()), rel=1e-12)


@pytest.mark.parametrize("squared", [False, True])
@pytest.mark.parametrize("n_classes", [2, 3])
def test_hard_margins_match_cvxpy(rng, n_classes, squared):
    """C = inf has the same solution for both losses: the smallest weights that meet all margins."""
    labels = rng.integers(n_classes, size=N)
    features = 3.0 * np.eye(K)[labels] + rng.normal(scale=0.3, size=(N, K))
    classes = Classes(labels, zero_one_cost(n_classes), np.full(N, np.inf))
    targets = classes if n_classes > 2 else Signs(2 * labels[:, None] - 1, np.full((N, 1), np.inf))
    head = Head(targets, squared)
    weights = cp.Variable((targets.n_outputs, K + 1))
    scores = np.column_stack([features - features.mean(axis=0), np.ones(N)]) @ weights.T
    margins = [cp.multiply(2 * labels[:, None] - 1, scores) >= 1]
    if n_classes > 2:
        own = cp.reshape(cp.sum(cp.multiply(scores, np.eye(n_classes)[labels]), axis=1), (N, 1), order="C")
        margins = [own - scores >= 1.0 - np.eye(n_classes)[labels]]
    problem = cp.Problem(cp.Minimize(0.5 * cp.sum_squares(weights)), margins)
    problem.solve(solver=cp.CLARABEL)
    found = head.solve(features, None, Tolerance(1e-10, 2e4))
    assert found.status is Status.CONVERGED
    assert found.value == pytest.approx(problem.value, rel=1e-6)
    np.testing.assert_allclose(found.head.weights, weights.value, atol=1e-5)
    mixed = head.solve(rng.normal(size=(N, 2)), None, Tolerance(1e-10, 2e4))
    assert mixed.status is Status.DIVERGED  # no weights meet the margins


@pytest.mark.parametrize("smoothing", [1.0, 0.03])
def test_smoothed_class_losses_are_certified_for_the_exact_loss(smoothing, rng):
    head, features = make_head("classes", True, rng)
    found = head.minimize([features], None, replace(EXACT["minimize"], smoothing=smoothing))
    assert found.value == pytest.approx(minimise(cvxpy_problem(head, features, smoothing)[0]), rel=1e-6)
    assert found.gap <= 1e-12 * found.value
    exact = solve(head, features, "ascend").value
    assert found.value >= exact * (1.0 - 1e-9)  # smoothing increases the loss
    scores = found.head.scores(features)
    away = scores - np.take_along_axis(scores, head.targets.labels[:, None], axis=1)
    itself = found.terms["kl_weights"] + head.form.values(away).sum()
    assert itself - exact <= found.gap + found.bias + 1e-9


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize(("solver", "squared"), LOSSES)
@pytest.mark.parametrize("kind", KINDS)
def test_gradient_is_the_derivative_of_the_value(kind, solver, squared, options):
    rng = np.random.default_rng(len(options))
    head, features = make_head(kind, squared, rng, **OPTIONS[options])
    fitted = solve(head, features, solver)
    gradient = gradient_of(fitted, features)
    assert gradient.shape == features.shape
    step = 1e-5 * rng.normal(size=features.shape)
    ahead, behind = (solve(head, features + side * step, solver, fitted.warm_start).value for side in (1, -1))
    assert 0.5 * (ahead - behind) == pytest.approx(np.vdot(gradient, step), rel=1e-4, abs=1e-9)


# --- the same problem -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "classes"])
def test_both_solvers_find_the_same_head(kind, options, rng):
    head, features = make_head(kind, True, rng, weight_variance=1.7, **OPTIONS[options])
    found, expected = solve(head, features, "minimize"), solve(head, features, "ascend")
    assert found.value == pytest.approx(expected.value, rel=1e-9)
    np.testing.assert_allclose(found.head.weights, expected.head.weights, atol=1e-5)
    np.testing.assert_allclose(found.shared, expected.shared, atol=1e-5)
    np.testing.assert_allclose(gradient_of(found, features), gradient_of(expected, features), atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_blocks_and_threads_do_not_change_the_head(kind, rng):
    head, features = make_head(kind, True, rng, inputs=True, rows=True, weighted=True)
    first = solve(head, features, "minimize")
    for cut in CUTS:
        other = solve(head, features, "minimize", cut=cut)
        np.testing.assert_allclose(other.head.weights, first.head.weights, atol=1e-10)
        np.testing.assert_allclose(gradient_of(other, features, cut), gradient_of(first, features), atol=1e-9)
    for n_threads in (2, 5):
        other = solve(head, features, "minimize", executor=Threads(n_threads))
        np.testing.assert_array_equal(other.head.weights, first.head.weights)
        np.testing.assert_array_equal(gradient_of(other, features), gradient_of(first, features))


@pytest.mark.parametrize("kind", KINDS)
def test_sums_over_remote_blocks_find_the_same_head(kind, rng):
    head, features = make_head(kind, True, rng, inputs=True, rows=True, weighted=True)
    expected, parts = solve(head, features, "minimize"), blocks_of(features)
    blocks = list(zip(head.blocks(tuple(map(len, parts))), parts, strict=True))

    def map_sum(what, view, factor, *at):
        return reduce(add, (getattr(block.see(part, view, factor), what)(*at) for block, part in blocks))

    sums = reduce(add, (block.sum_features(part) for block, part in blocks))
    assert isinstance(sums, FeatureSums)
    found = head.solve_sums(map_sum, sums, lambda level, view: None, None, EXACT["minimize"])
    np.testing.assert_allclose(found.head.weights, expected.head.weights, atol=1e-12)
    gradient = np.concatenate([block.gradient(part, found.slope) for block, part in blocks])
    np.testing.assert_allclose(gradient, gradient_of(expected, features), atol=1e-12)


def test_matrix_of_targets_matches_their_list(rng):
    rows, tasks = np.nonzero(rng.random((N, 4)) < 0.6)
    observed, outputs = observe_classes(rows, tasks, rng.integers(2, size=len(rows)), np.full(4, 2))
    matrix = fill_matrix([(0, observed)], 4, N, numbers=False)
    assert isinstance(matrix, ObservedMatrix)
    features = rng.normal(size=(N, K))
    made = [Head(Cells(seen, N, 4, 0.5, None), True, groups=outputs.groups, sharing=0.5) for seen in (observed, matrix)]
    for solver in EXACT:
        of_list, of_matrix = (solve(head, features, solver) for head in made)
        np.testing.assert_array_equal(of_matrix.head.weights, of_list.head.weights)


@pytest.mark.parametrize(("solver", "squared"), LOSSES)
@pytest.mark.parametrize("kind", KINDS)
def test_weight_variance_scales_the_columns(rng, kind, solver, squared):
    v = 2.3
    head, features = make_head(kind, squared, rng, inputs=True, weight_variance=v)
    columns = np.sqrt(v) * seen_by(head, features)
    plain = replace(head, weight_variance=1.0, inputs=None, fit_intercept=False)
    wide, scaled = solve(head, features, solver), solve(plain, columns, solver)
    assert wide.value == pytest.approx(scaled.value, rel=1e-11)
    np.testing.assert_allclose(wide.head.weights, np.sqrt(v) * scaled.head.weights, atol=1e-5)
    by_features = np.sqrt(v) * gradient_of(scaled, columns)[:, :K]
    np.testing.assert_allclose(gradient_of(wide, features), by_features - by_features.mean(axis=0), atol=1e-5)


@pytest.mark.parametrize(("solver", "squared"), LOSSES)
@pytest.mark.parametrize("kind", KINDS)
def test_shifted_centered_features_give_the_same_solution(rng, kind, solver, squared):
    head, features = make_head(kind, squared, rng, rows=True, weighted=True)
    moved = features + rng.normal(size=K)
    here, there = solve(head, features, solver), solve(head, moved, solver)
    assert there.value == pytest.approx(here.value, rel=1e-10)
    np.testing.assert_allclose(there.head.scores(moved), here.head.scores(features), atol=1e-5)
    np.testing.assert_allclose(gradient_of(here, features).sum(axis=0), 0.0, atol=1e-9)


@pytest.mark.parametrize(("solver", "squared"), LOSSES)
@pytest.mark.parametrize("kind", KINDS)
def test_single_precision_features_give_the_same_solution(rng, kind, solver, squared):
    head, features = make_head(kind, squared, rng)
    single = features.astype(np.float32)
    low, high = solve(head, single, solver), solve(head, single.astype(np.float64), solver)
    assert low.value == pytest.approx(high.value, rel=1e-10)
    assert low.head.weights.dtype == gradient_of(low, single).dtype == np.float64


@pytest.mark.parametrize(("solver", "squared"), LOSSES)
def test_arguments_are_not_modified(rng, solver, squared):
    for kind in KINDS:
        head, features = make_head(kind, squared, rng, inputs=True, rows=True, weighted=True, weight_variance=2.0)
        start = solve(head, features, solver).warm_start
        given = [features, start.weights, start.multipliers, head.inputs.X, head.rows, head.row_weights]
        frozen = [array for array in given if array is not None]
        for array in frozen:
            array.flags.writeable = False
        copies = [array.copy() for array in frozen]
        gradient_of(solve(head, features, solver, start), features)
        for array, copy in zip(frozen, copies, strict=True):
            np.testing.assert_array_equal(array, copy)


@pytest.mark.parametrize(("solver", "squared"), LOSSES)
@pytest.mark.parametrize("kind", KINDS)
def test_warm_start_at_the_solution_needs_no_steps(rng, kind, solver, squared):
    head, features = make_head(kind, squared, rng, inputs=True)
    found = solve(head, features, solver)
    again = getattr(head, solver)([features], found.warm_start, Tolerance(1e-8, 200.0))
    assert again.n_passes <= 2.0
    assert again.value == pytest.approx(found.value, rel=1e-7)
    if squared and kind != "classes":  # Newton's method can start from weights of any solver
        assert head.minimize([features], found.warm_start, Tolerance(1e-7, 12.0)).n_passes == 1


@pytest.mark.parametrize("kind", ["classes", "one_vs_rest"])
def test_samples_without_targets_give_zero_weights(kind, rng):
    targets = make_targets(kind, rng).take(np.arange(0))
    head = Head(targets, True, rows=np.arange(0), inputs=Inputs(rng.normal(size=(N, 2))))
    (block,), features = head.blocks((N,)), rng.normal(size=(N, K))
    assert block.sum_features(features).weight == 0.0
    found = solve(head, features, "minimize")
    assert found.value == 0.0
    np.testing.assert_array_equal(found.head.weights, 0.0)
    np.testing.assert_array_equal(gradient_of(found, features), 0.0)


def test_unsorted_rows_raise(rng):
    with pytest.raises(ValueError, match="rows must ascend"):
        Head(make_targets("signs", rng, 3), True, rows=np.array([2, 0, 1]))


# --- many samples -----------------------------------------------------------------------------------------------------


def many_samples(kind, rng, n=12_000, n_features=8, n_outputs=5):
    features = rng.random((n, n_features)) * (rng.random((n, n_features)) < 0.4)
    scores = 4.0 * features @ rng.normal(size=(n_features, n_outputs)) + rng.gumbel(size=(n, n_outputs))
    labels = np.argmax(scores + np.array([1.0, 0.0, 0.0, 0.0, -3.0]), axis=1)  # the last class is rare
    if kind in ("classes", "one_vs_rest"):
        classes = Classes(labels, zero_one_cost(n_outputs), np.ones(n))
        return Head(classes if kind == "classes" else classes.one_vs_rest(), True), features
    there = rng.random((n, n_outputs)) < np.array([0.9, 0.9, 0.8, 0.7, 0.05])  # the last task is rare
    there = np.arange(n)[:, None] * n_outputs // n == np.arange(n_outputs) if kind == "list" else there
    rows, tasks = np.nonzero(there)
    observed, outputs = observe_classes(rows, tasks, (scores[there] > 0.5).astype(int), np.full(n_outputs, 2))
    return Head(
        Cells(observed, n, n_outputs, 0.5, None), True, groups=outputs.groups, sharing=0.7, centred=False
    ), features


@pytest.mark.parametrize(("kind", "tol"), [("one_vs_rest", 1e-4), ("classes", 1e-3), ("cells", 1e-4), ("list", 1e-4)])
def test_few_passes_solve_many_samples_to_a_certified_gap(kind, tol, rng):
    head, features = many_samples(kind, rng)
    blocks = [features[:7000], features[7000:]]
    found = head.minimize(blocks, None, Tolerance(tol, 12.0))
    exact = head.minimize(blocks, found.warm_start, EXACT["minimize"])
    assert found.n_passes <= 12
    assert found.gap <= tol * found.value
    assert 0.0 <= found.value - exact.value <= found.gap * (1.0 + 1e-9)  # the certificate bounds the suboptimality
    moved = [block + 0.01 * rng.normal(size=block.shape) for block in blocks]
    again = head.minimize(moved, found.warm_start, Tolerance(tol, 12.0))
    assert again.n_passes <= 5
    assert again.gap <= tol * again.value


@pytest.mark.parametrize("kind", ["one_vs_rest", "classes", "list"])
def test_pieces_of_a_subsample_have_its_curvature(kind, rng):
    """The second derivative of a subsample that represents all samples is that of its losses, over its share."""
    head, features = many_samples(kind, rng, n=4000)
    sums = FeatureSums(4000.0, features.sum(axis=0))
    view, weights = head.view(sums, 0.1), rng.normal(size=(5, 9))
    drawn = np.sort(rng.permutation(4000)[:3000])
    (block,) = replace(head, targets=head.targets.take(drawn)).blocks((3000,))
    whole = block.see(features[drawn], view)
    pieces = head.sample_rows(whole.design.array(), drawn, view, 0.75)
    assert len(pieces) == 2
    found = sum(piece.curvature(weights) for piece in pieces)
    np.testing.assert_allclose(found, whole.curvature(weights) / 0.75, atol=1e-9)


def test_solver_is_chosen_by_scores_and_passes(rng):
    most, n_passes = HEAD_POLICY.max_ascent_scores // 2, HEAD_POLICY.max_ascent_epochs
    rough, fine = Tolerance(1e-2, n_passes), Tolerance(1e-4, n_passes + 1.0)
    signs = Signs(rng.choice([-1, 1], (most, 2)), np.ones((most, 2)))
    few, columns = Head(signs, True), np.zeros((1, 10))
    many = Head(replace(signs, signs=np.ones((10**5, 2)), C=np.ones((10**5, 2))), True)
    assert few.prefers_ascent(columns, rough)
    assert not few.prefers_ascent(columns, fine)
    assert not many.prefers_ascent(columns, rough)
    assert replace(many, squared=False).prefers_ascent(columns, fine)  # a hinge has no curvature
    assert many.prefers_ascent(np.zeros((1, 4000)), fine)  # too many weights for a curvature matrix
    classes = Classes(np.arange(1000) % 60, zero_one_cost(60), np.ones(1000))
    assert Head(classes, True).prefers_ascent(columns, fine)  # Newton's method would smooth the loss


@pytest.mark.parametrize("n_classes", [2, 4])
def test_large_C_takes_few_passes(n_classes, rng):
    columns = rng.standard_normal((300, 5))
    labels = np.argmax(columns @ rng.standard_normal((5, n_classes)) + rng.standard_normal((300, n_classes)), axis=1)
    head = Head(Classes(labels, zero_one_cost(n_classes), np.full(300, 1e6)), squared=True)
    found = head.solve(columns, None, Tolerance(1e-3, 300.0))
    assert found.gap <= 1e-3 * found.value
    assert found.n_passes < 100


def test_solve_takes_the_preferred_solver(rng):
    head, features = make_head("signs", True, rng)
    assert head.solve(features, None, Tolerance(1e-2, 1.0)).dual is not None
    fine = head.solve([features], WarmStart(), Tolerance(1e-6, 50.0))
    assert fine.dual is None
    assert fine.warm_start.multipliers is None
