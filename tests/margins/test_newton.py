"""Newton's method over blocks of rows against CVXPY, liblinear and the dual written out."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest
from sklearn.svm import LinearSVC, LinearSVR

from large_margin_tools import (
    LIBLINEAR,
    binary_data,
    box_form,
    hinge_loss,
    minimise,
    missed_margins,
    multi_class_data,
    tube_loss,
)
from regbayes.engine import Serial, Status, Threads
from regbayes.margins.coordinate_ascent import SimplexAscent, TaskLayout, ascend
from regbayes.margins.newton import (
    MAX_DENSE,
    SMOOTHING,
    BoxBlock,
    Cutoff,
    SharedPrior,
    SimplexBlock,
    solve_boxes,
    solve_smoothed,
)
from regbayes.margins.targets import Classes, Numbers, Signs, zero_one_cost
from regbayes.regularizers import MultiClassSquaredHinge
from row_boxes import RowBoxes

EXACT = 1e-13  # relative duality gap
EPSILON = 0.2


@pytest.fixture
def rng():
    return np.random.default_rng(0)


class Cells:
    """Outputs of rows, some of them missing and some without a price, for tasks that may share weights."""

    def __init__(self, rng, loss, sharing=0.0, n=80, d=4):
        self.group, self.sharing = np.array([0, 1, 0, 1, 0]), sharing
        self.X = rng.normal(size=(n, d)) + 0.3
        row, task = np.nonzero(rng.random((n, 5)) < 0.6)
        order = rng.permutation(row.size)  # cells need not be sorted
        self.row, self.task = row[order], task[order]
        self.C = rng.uniform(0.0, 3.0, row.size)
        self.C[rng.random(row.size) < 0.2] = 0.0
        scores = np.sum(self.X[self.row] * rng.normal(size=(5, d))[self.task], axis=1) + rng.normal(size=row.size)
        self.is_hinge = loss == "hinge"
        self.targets = np.where(scores > 0, 1.0, -1.0) if self.is_hinge else scores
        self.loss = hinge_loss(self.targets, self.C, True) if self.is_hinge else None
        if not self.is_hinge:
            self.loss = tube_loss(self.targets, self.C, True, EPSILON if loss == "tube" else 0.0)
        self.epsilon = EPSILON if loss == "tube" else 0.0
        self.form = box_form(self.loss, row.size)
        self.prior = SharedPrior(self.group, sharing)
        self.zeros = np.zeros((5, d))

    def block(self, first=0, last=None):
        """The block of some of the rows."""
        last = len(self.X) if last is None else last
        cells = np.flatnonzero((self.row >= first) & (self.row < last))
        layout = TaskLayout(self.row[cells] - first, self.task[cells], self.group, self.sharing)
        return BoxBlock.of(self.X[first:last], self.form.take(cells), layout)

    def blocks(self, ends):
        return [self.block(first, last) for first, last in zip([0, *ends], [*ends, len(self.X)], strict=True)]

    def scores(self, weights):
        return np.sum(self.X[self.row] * weights[self.task], axis=1)

    def covariance(self):
        """Of the weights of the tasks, a priori."""
        return np.eye(5) + self.sharing**2 * (self.group[:, None] == self.group)


def classes(rng, n=70, d=4, n_classes=4, C=1.0, spread=1.2):
    """Classes with costs and prices, some of them zero."""
    X, labels = multi_class_data(rng, n=n, d=d, n_classes=n_classes, spread=spread)
    cost = rng.uniform(0.5, 2.0, size=(n_classes, n_classes)) * zero_one_cost(n_classes)
    prices = C * rng.uniform(0.2, 1.8, size=n)
    prices[rng.random(n) < 0.1] = 0.0
    return X, Classes(labels, cost, prices)


def simplex_block(X, targets, smoothing=SMOOTHING[0], rows=slice(None)):
    form = targets.dual_form(squared=True)
    return SimplexBlock(X[rows], form.take(rows), targets.labels[rows], smoothing)


def ascend_classes(X, targets):
    """The solution of the loss itself by coordinate ascent, as `MarginHead` finds it over one array."""
    problem = SimplexAscent(X, targets.dual_form(squared=True), targets.labels)
    return problem.solution(ascend(problem, 1e-10, 1e5, seed=0))


def no_weights(X, targets):
    return np.zeros((targets.n_outputs, X.shape[1]))


def smoothed_loss(targets, margins, smoothing):
    """The loss of a row, ``max_omega <omega, m> - 1/(4 C) [(1 - delta) (sum omega)^2 + delta |omega|^2]``.

    The conjugate of a sum of two parts is the infimal convolution of theirs, and of the first only a level t is left:
    ``min_t C t^2 / (1 - delta) + C / delta sum_c max(0, m_c - t)^2``.
    """
    n, n_classes = len(targets), targets.n_outputs
    wrong = 1.0 - np.eye(n_classes)[targets.labels]
    if smoothing == 1.0:
        return cp.sum(cp.multiply(targets.C[:, None] * wrong, cp.square(cp.pos(margins))))
    level = cp.Variable((n, 1), nonneg=True)
    over = cp.square(cp.pos(margins - level @ np.ones((1, n_classes))))
    by_level = cp.multiply(targets.C[:, None], cp.square(level)) / (1.0 - smoothing)
    return cp.sum(by_level) + cp.sum(cp.multiply(targets.C[:, None] * wrong, over)) / smoothing


# --- one-vs-rest and tubes --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sharing", [0.0, 0.7, 3.0])
@pytest.mark.parametrize("loss", ["hinge", "tube", "parabola"])
def test_boxes_are_the_solution_cvxpy_finds(rng, loss, sharing):
    cells = Cells(rng, loss, sharing)
    own, common = cp.Variable(cells.zeros.shape), cp.Variable((2, cells.zeros.shape[1]))
    weights = own[cells.task] + sharing * common[cells.group[cells.task]]
    scores = cp.sum(cp.multiply(cells.X[cells.row], weights), axis=1)
    slack = 1 - cp.multiply(cells.targets, scores) if cells.is_hinge else cp.abs(cells.targets - scores) - cells.epsilon
    losses = cells.C @ cp.square(cp.pos(slack))
    optimum = minimise(0.5 * cp.sum_squares(own) + 0.5 * cp.sum_squares(common) + losses)
    found = solve_boxes(cells.blocks([17, 50]), cells.prior, cells.zeros, tol=EXACT)
    assert found.status is Status.CONVERGED
    assert found.value == pytest.approx(optimum, rel=1e-6)
    assert 0.0 <= found.gap <= EXACT * found.value
    np.testing.assert_allclose(found.weights, own.value + sharing * common.value[cells.group], atol=1e-4)
    np.testing.assert_allclose(cells.prior.shared(found.weights), sharing * common.value, atol=1e-4)


@pytest.mark.parametrize("C", [0.02, 1.0, 50.0])
@pytest.mark.parametrize("intercept", [False, True])
def test_one_vs_rest_is_liblinears(rng, C, intercept):
    X, labels = multi_class_data(rng)
    expected = LinearSVC(C=C, loss="squared_hinge", dual=False, fit_intercept=intercept, **LIBLINEAR).fit(X, labels)
    seen = np.column_stack([X, np.ones(len(X))]) if intercept else X
    theirs = np.column_stack([expected.coef_, expected.intercept_]) if intercept else expected.coef_
    targets = Classes(labels, zero_one_cost(4), np.full(len(X), C)).one_vs_rest()
    block = RowBoxes(seen, targets.dual_form(squared=True))
    found = solve_boxes([block], SharedPrior(np.arange(4)), np.zeros_like(theirs), tol=EXACT)
    slack = np.maximum(0.0, 1.0 - targets.signs * (seen @ theirs.T))
    assert found.value == pytest.approx(0.5 * np.sum(theirs**2) + C * np.sum(slack**2), rel=1e-6)
    np.testing.assert_allclose(found.weights, theirs, atol=1e-5)


@pytest.mark.parametrize("C", [0.02, 1.0, 50.0])
@pytest.mark.parametrize("intercept", [False, True])
def test_tubes_are_liblinears(rng, C, intercept):
    X, _ = binary_data(rng)
    y = X @ rng.normal(size=X.shape[1]) + rng.normal(size=len(X))
    model = LinearSVR(
        C=C, epsilon=EPSILON, loss="squared_epsilon_insensitive", dual=False, fit_intercept=intercept, **LIBLINEAR
    ).fit(X, y)
    seen = np.column_stack([X, np.ones(len(X))]) if intercept else X
    theirs = np.append(model.coef_, model.intercept_) if intercept else model.coef_
    form = Numbers(y[:, None], np.full((len(X), 1), C), EPSILON).dual_form(squared=True)
    block = RowBoxes(seen, form)
    found = solve_boxes([block], SharedPrior(np.zeros(1, dtype=int)), np.zeros((1, theirs.size)), tol=EXACT)
    slack = np.maximum(0.0, np.abs(y - seen @ theirs) - EPSILON)
    assert found.value == pytest.approx(0.5 * np.sum(theirs**2) + C * np.sum(slack**2), rel=1e-6)
    np.testing.assert_allclose(found.weights[0], theirs, atol=1e-5)


@pytest.mark.parametrize("sharing", [0.0, 0.7])
@pytest.mark.parametrize("loss", ["hinge", "tube"])
def test_the_gap_of_boxes_is_that_of_the_dual_written_out(rng, loss, sharing):
    cells = Cells(rng, loss, sharing)
    weights = rng.normal(size=cells.zeros.shape)
    block = cells.block()
    found = solve_boxes([block], cells.prior, weights, tol=0.0, max_passes=1)  # looks at the start, and no more
    np.testing.assert_array_equal(found.weights, weights)
    penalty = 0.5 * np.vdot(weights, np.linalg.solve(cells.covariance(), weights))
    primal = penalty + cells.loss.value(cells.scores(weights))
    phi = block.multipliers(weights)
    pulled = np.zeros_like(weights)
    np.add.at(pulled, cells.task, phi[:, None] * cells.X[cells.row])
    dual = -cells.loss.conjugate(-phi) - 0.5 * np.vdot(pulled, cells.covariance() @ pulled)
    assert found.value == pytest.approx(primal, rel=1e-12)
    assert found.gap == pytest.approx(primal - dual, rel=1e-10)
    assert found.n_passes == 1
    assert found.status is Status.ITERATION_LIMIT


@pytest.mark.parametrize("loss", ["hinge", "tube"])
def test_steps_end_where_the_minimum_is_plainly_too_high(rng, loss):
    cells = Cells(rng, loss, n=400)
    best = solve_boxes([cells.block()], cells.prior, cells.zeros, tol=EXACT)
    low = solve_boxes([cells.block()], cells.prior, cells.zeros, tol=EXACT, cutoff=Cutoff(0.5 * best.value))
    assert low.status is Status.STOPPED
    assert low.n_passes < best.n_passes
    near = solve_boxes([cells.block()], cells.prior, 1.02 * best.weights, tol=EXACT, cutoff=Cutoff(0.9 * best.value))
    assert (near.status, near.n_passes) == (Status.STOPPED, 1)  # what the first step promises is too little
    assert low.value > 0.5 * best.value
    high = solve_boxes([cells.block()], cells.prior, cells.zeros, tol=EXACT, cutoff=Cutoff(1.001 * best.value))
    assert high.status is Status.CONVERGED
    np.testing.assert_array_equal(high.weights, best.weights)


@pytest.mark.parametrize("loss", ["hinge", "tube"])
def test_steps_end_where_little_is_left_to_gain(rng, loss):
    cells = Cells(rng, loss, n=400)
    best = solve_boxes([cells.block()], cells.prior, cells.zeros, tol=EXACT)
    enough = 1e-2 * best.value
    found = solve_boxes([cells.block()], cells.prior, cells.zeros, tol=EXACT, cutoff=Cutoff(enough=enough))
    assert found.status is Status.CONVERGED
    assert found.n_passes < best.n_passes
    assert found.gap > EXACT * found.value  # the certificate says what it always says
    assert best.value <= found.value <= best.value + enough


def test_the_prior_is_of_weights_that_tasks_share(rng):
    group, rho, d = np.array([0, 1, 0, 1, 0]), 1.3, 3
    prior = SharedPrior(group, rho)
    covariance = np.kron(np.eye(5) + rho**2 * (group[:, None] == group), np.eye(d))
    v = rng.normal(size=(5, d))
    np.testing.assert_allclose(prior.covariance(v).ravel(), covariance @ v.ravel(), rtol=1e-12)
    np.testing.assert_allclose(prior.precision(prior.covariance(v)), v, rtol=1e-11, atol=1e-12)
    curvature = np.array([root @ root.T for root in rng.normal(size=(5, d, d))])
    whole = np.linalg.inv(covariance)
    for t, block in enumerate(curvature):
        whole[t * d : (t + 1) * d, t * d : (t + 1) * d] += block
    np.testing.assert_allclose(prior.solve(curvature, v).ravel(), np.linalg.solve(whole, v.ravel()), rtol=1e-9)


@pytest.mark.parametrize("loss", ["hinge", "tube"])
def test_sums_are_derivatives_of_the_loss(rng, loss):
    cells = Cells(rng, loss)
    block, weights, step = cells.block(), rng.normal(size=cells.zeros.shape), rng.normal(size=cells.zeros.shape)
    size = 1e-6
    before, after = block.sums(weights - size * step), block.sums(weights + size * step)
    slope, bend = (after.loss - before.loss) / (2 * size), (before.pulled - after.pulled) / (2 * size)
    at = block.sums(weights)
    assert at.loss == pytest.approx(cells.loss.value(cells.scores(weights)), rel=1e-12)
    assert slope == pytest.approx(-np.vdot(at.pulled, step), rel=1e-7)
    np.testing.assert_allclose(np.einsum("tij,tj->ti", block.curvature(weights), step), bend, rtol=1e-6, atol=1e-6)


def test_dense_rows_are_their_cells(rng):
    X = rng.normal(size=(20, 3))
    signs = np.where(rng.random((20, 4)) < 0.5, 1.0, -1.0)
    form = Signs(signs, rng.uniform(size=(20, 4))).dual_form(squared=True)
    layout = TaskLayout(np.repeat(np.arange(20), 4), np.tile(np.arange(4), 20), np.arange(4))
    dense, cells, weights = RowBoxes(X, form), BoxBlock.of(X, form, layout), rng.normal(size=(4, 3))
    np.testing.assert_allclose(dense.multipliers(weights).ravel(), cells.multipliers(weights), rtol=1e-13)
    np.testing.assert_allclose(dense.sums(weights).pulled, cells.sums(weights).pulled, rtol=1e-13)
    np.testing.assert_allclose(dense.curvature(weights), cells.curvature(weights), rtol=1e-13)


# --- classes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("C", [0.05, 1.0, 20.0])
@pytest.mark.parametrize("smoothing", [1.0, *SMOOTHING])
def test_the_smoothed_problem_is_the_one_cvxpy_solves(rng, smoothing, C):
    X, targets = classes(rng, C=C)
    weights = cp.Variable((targets.n_outputs, X.shape[1]))
    margins = missed_margins(X, targets.labels, weights, targets.cost)
    optimum = minimise(0.5 * cp.sum_squares(weights) + smoothed_loss(targets, margins, smoothing))
    found = solve_smoothed([simplex_block(X, targets, smoothing)], no_weights(X, targets), tol=EXACT)
    assert found.status is Status.CONVERGED
    assert found.value + found.excess == pytest.approx(optimum, rel=1e-6)
    assert 0.0 <= found.gap - found.bias <= EXACT * (found.value + found.excess)
    np.testing.assert_allclose(found.weights, weights.value, atol=1e-3 if smoothing < 0.003 else 1e-4)


@pytest.mark.parametrize("C", [0.05, 1.0, 20.0])
@pytest.mark.parametrize("smoothing", [0.1, 0.003])
@pytest.mark.parametrize("tol", [1e-1, 1e-4])
def test_the_certificate_to_the_unsmoothed_problem_is_true(rng, tol, smoothing, C):
    X, targets = classes(rng, C=C)
    weights = cp.Variable((targets.n_outputs, X.shape[1]))
    slack = cp.max(missed_margins(X, targets.labels, weights, targets.cost), axis=1)
    optimum = minimise(0.5 * cp.sum_squares(weights) + targets.C @ cp.square(cp.pos(slack)))
    found = solve_smoothed([simplex_block(X, targets, smoothing)], no_weights(X, targets), tol=tol)
    assert found.status is Status.CONVERGED
    assert found.gap - found.bias <= tol * (found.value + found.excess)
    assert found.value - found.gap <= optimum * (1 + 1e-7)
    assert found.value >= optimum * (1 - 1e-7)


@pytest.mark.parametrize("C", [0.02, 0.5])
def test_smoothed_less_and_less_is_coordinate_ascents_solution(rng, C):
    X, targets = classes(rng, C=C)
    exact = ascend_classes(X, targets)
    excesses, start = [], no_weights(X, targets)
    for smoothing in SMOOTHING:
        found = solve_smoothed([simplex_block(X, targets, smoothing)], start, tol=EXACT)
        assert found.value >= exact.primal - exact.gap
        assert found.excess >= 0.0  # a smoothed loss is above the loss
        excesses.append(found.value + found.excess - exact.primal)
        start = found.weights
    assert np.all(np.diff(excesses) < 0)
    assert 0.0 < found.gap <= 2e-4 * found.value
    # Strong convexity: half the squared distance of the weights is at most what the value is above the minimum.
    distance = 0.5 * np.sum((found.weights - exact.weights) ** 2)
    assert distance <= 2.0 * (found.gap + exact.gap)


def test_two_classes_are_one_margin(rng):
    """With one other class there is nothing to smooth: a binary margin of the difference, of twice the variance."""
    X, signs = binary_data(rng)
    targets = Classes((signs > 0).astype(int), zero_one_cost(2), np.full(len(X), 0.7))
    found = solve_smoothed([simplex_block(X, targets)], no_weights(X, targets), tol=1e-12)
    form = box_form(hinge_loss(signs, np.full(len(X), 0.7), True), len(X))
    binary = RowBoxes(np.sqrt(2.0) * X, form)
    expected = solve_boxes([binary], SharedPrior(np.zeros(1, dtype=int)), np.zeros((1, X.shape[1])), tol=EXACT)
    assert found.bias == pytest.approx(0.0, abs=1e-9)
    assert found.value == pytest.approx(expected.value, rel=1e-9)
    np.testing.assert_allclose(found.weights[1] - found.weights[0], np.sqrt(2.0) * expected.weights[0], atol=1e-5)


def test_without_a_shared_ridge_every_class_has_a_margin_of_its_own(rng):
    """At delta = 1 a loss is a sum over the wrong classes (Weston and Watkins), each a binary margin."""
    X, targets = classes(rng)
    scores = X @ rng.normal(size=(X.shape[1], targets.n_outputs))
    weights = np.linalg.lstsq(X, scores, rcond=None)[0].T
    at = simplex_block(X, targets, 1.0).sums(weights)
    missed = targets.cost[targets.labels] + scores - np.take_along_axis(scores, targets.labels[:, None], axis=1)
    assert at.loss == pytest.approx(np.sum(targets.C[:, None] * np.maximum(missed, 0.0) ** 2), rel=1e-9)


@pytest.mark.parametrize("smoothing", [1.0, 0.1, 0.003])
def test_the_gap_of_classes_is_that_of_the_dual_written_out(rng, smoothing):
    X, targets = classes(rng)
    weights = rng.normal(size=(targets.n_outputs, X.shape[1]))
    block = simplex_block(X, targets, smoothing)
    loss = MultiClassSquaredHinge(targets.C, targets.cost, targets.labels)
    found = solve_smoothed([block], weights, tol=0.0, max_passes=1)
    scores = X @ weights.T
    primal = 0.5 * np.sum(weights**2) + loss.value(
        (scores - np.take_along_axis(scores, targets.labels[:, None], axis=1)).ravel()
    )
    phi = block.multipliers(weights)
    np.testing.assert_allclose(phi.sum(axis=1), 0.0, atol=1e-9)
    omega = np.where(np.eye(targets.n_outputs, dtype=bool)[targets.labels], 0.0, -phi)
    assert omega.min() >= 0.0
    dual = -loss.conjugate(omega.ravel()) - 0.5 * np.sum((phi.T @ X) ** 2)
    assert found.value == pytest.approx(primal, rel=1e-12)
    assert found.gap == pytest.approx(primal - dual, rel=1e-10)
    smoothed_gap = 0.5 * np.sum((weights - phi.T @ X) ** 2)
    assert found.gap - found.bias == pytest.approx(smoothed_gap, rel=1e-10)


@pytest.mark.parametrize("smoothing", [1.0, 0.1, 0.003])
@pytest.mark.parametrize("size", [(70, 4, 4), (60, 80, 13)])  # the second derivative as a whole, and by class
def test_class_sums_are_derivatives_of_the_loss(rng, smoothing, size):
    n, d, n_classes = size
    X, targets = classes(rng, n, d, n_classes)
    block, shape = simplex_block(X, targets, smoothing), (n_classes, d)
    weights, step = rng.normal(size=shape) / np.sqrt(d), rng.normal(size=shape)
    width = 1e-7
    before, after = block.sums(weights - width * step), block.sums(weights + width * step)
    slope, bend = (after.loss - before.loss) / (2 * width), (before.pulled - after.pulled) / (2 * width)
    at, product, curvature = block.sums(weights), block.product(weights, step), block.curvature(weights)
    assert slope == pytest.approx(-np.vdot(at.pulled, step), rel=1e-5)
    scale = np.abs(bend).max()
    np.testing.assert_allclose(product, bend, rtol=1e-4, atol=1e-5 * scale)
    if n_classes * d <= MAX_DENSE:
        np.testing.assert_allclose(np.tensordot(curvature, step, axes=2), product, rtol=1e-9, atol=1e-11 * scale)
        return
    for c in range(n_classes):
        only = np.zeros(shape)
        only[c] = step[c]
        np.testing.assert_allclose(curvature[c] @ step[c], block.product(weights, only)[c], rtol=1e-9)


def test_many_weights_are_the_solution_cvxpy_finds(rng):
    """More weights than a second derivative is held for as a whole, and margins that all can be met, at a large C."""
    X, targets = classes(rng, n=50, d=80, n_classes=13, spread=4.0)
    weights = cp.Variable((13, 80))
    assert weights.size > MAX_DENSE
    margins = missed_margins(X, targets.labels, weights, targets.cost)
    optimum = minimise(0.5 * cp.sum_squares(weights) + smoothed_loss(targets, margins, 0.01))
    found = solve_smoothed([simplex_block(X, targets, 0.01)], no_weights(X, targets), tol=1e-11)
    assert found.status is Status.CONVERGED
    assert found.value + found.excess == pytest.approx(optimum, rel=1e-6)
    np.testing.assert_allclose(found.weights, weights.value, atol=1e-4)


@pytest.mark.parametrize("loss", ["hinge", "tube"])
def test_boxes_whose_margins_can_all_be_met_are_the_solution_cvxpy_finds(rng, loss):
    X = rng.normal(size=(60, 80))
    signs = np.where(rng.random(60) < 0.5, 1.0, -1.0)
    targets, C = signs if loss == "hinge" else rng.normal(size=60), np.full(60, 100.0)
    found_loss = hinge_loss(signs, C, True) if loss == "hinge" else tube_loss(targets, C, True, EPSILON)
    weights = cp.Variable(80)
    slack = 1 - cp.multiply(signs, X @ weights) if loss == "hinge" else cp.abs(targets - X @ weights) - EPSILON
    optimum = minimise(0.5 * cp.sum_squares(weights) + C @ cp.square(cp.pos(slack)))
    block = RowBoxes(X, box_form(found_loss, 60))
    found = solve_boxes([block], SharedPrior(np.zeros(1, dtype=int)), np.zeros((1, 80)), tol=EXACT)
    assert found.status is Status.CONVERGED
    assert found.value == pytest.approx(optimum, rel=1e-6)


# --- blocks and workers -----------------------------------------------------------------------------------------------


def solve_cells(rng, ends, executor, loss="hinge"):
    cells = Cells(rng, loss, sharing=0.7)
    return solve_boxes(cells.blocks(ends), cells.prior, cells.zeros, tol=1e-20, executor=executor)


def solve_classes(rng, ends, executor, n_classes=4, d=4, C=1.0, smoothing=0.01):
    X, targets = classes(rng, n=80, n_classes=n_classes, d=d, C=C)
    bounds = zip([0, *ends], [*ends, len(X)], strict=True)
    blocks = [simplex_block(X, targets, smoothing, slice(first, last)) for first, last in bounds]
    return solve_smoothed(blocks, no_weights(X, targets), tol=1e-20, executor=executor)


def solve_many_weights(rng, ends, executor):
    return solve_classes(rng, ends, executor, n_classes=13, d=80, C=0.001, smoothing=0.1)


PROBLEMS = {
    "hinge": solve_cells,
    "tube": lambda *arguments: solve_cells(*arguments, loss="tube"),
    "classes": solve_classes,
    "many weights": solve_many_weights,
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_the_same_bits_for_any_number_of_workers(name):
    ends = [5, 11, 12, 30, 44, 71]
    found = [
        PROBLEMS[name](np.random.default_rng(3), ends, executor)
        for executor in (Serial(), Threads(1), Threads(2), Threads(5))
    ]
    for other in found[1:]:
        np.testing.assert_array_equal(found[0].weights, other.weights)
        assert (found[0].value, found[0].gap, found[0].n_passes) == (other.value, other.gap, other.n_passes)


@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize("ends", [[40], [1, 2, 3], [7, 7, 60], list(range(1, 80))], ids=["two", "few", "empty", "rows"])
def test_any_split_into_blocks_agrees(name, ends):
    whole = PROBLEMS[name](np.random.default_rng(3), [], Serial())
    split = PROBLEMS[name](np.random.default_rng(3), ends, Serial())
    np.testing.assert_allclose(split.weights, whole.weights, rtol=1e-10, atol=1e-10)
    assert split.value == pytest.approx(whole.value, rel=1e-10)


# --- limits -----------------------------------------------------------------------------------------------------------


def test_passes_are_limited(rng):
    X, targets = classes(rng, C=20.0)
    few = solve_smoothed([simplex_block(X, targets)], no_weights(X, targets), tol=1e-4, max_passes=3)
    assert few.status is Status.ITERATION_LIMIT
    more = solve_smoothed([simplex_block(X, targets)], no_weights(X, targets), tol=1e-4)
    assert few.n_passes < more.n_passes
    assert few.value - few.gap <= more.value < few.value


def test_a_warm_start_at_the_solution_is_only_looked_at(rng):
    cells = Cells(rng, "hinge", sharing=0.5)
    found = solve_boxes([cells.block()], cells.prior, cells.zeros, tol=1e-10)
    again = solve_boxes([cells.block()], cells.prior, found.weights, tol=1e-10)
    assert again.n_passes == 1
    np.testing.assert_array_equal(again.weights, found.weights)


def test_without_prices_there_are_no_weights(rng):
    X, targets = classes(rng)
    nothing = Classes(targets.labels, targets.cost, np.zeros(len(X)))
    found = solve_smoothed([simplex_block(X, nothing)], rng.normal(size=(4, 4)), tol=1e-6)
    np.testing.assert_allclose(found.weights, 0.0, atol=1e-12)
    assert found.value == pytest.approx(0.0, abs=1e-20)


def test_a_single_class_asks_for_nothing(rng):
    X = rng.normal(size=(10, 3))
    targets = Classes(np.zeros(10, dtype=int), zero_one_cost(1), np.ones(10))
    found = solve_smoothed([simplex_block(X, targets)], np.zeros((1, 3)), tol=1e-6)
    assert found.status is Status.CONVERGED
    assert found.value == 0.0
