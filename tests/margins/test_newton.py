"""Newton's method on sums over samples compared with CVXPY, liblinear and the explicit dual."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest

from large_margin_tools import (
    binary_data,
    hinge_loss,
    minimise,
    missed_margins,
    multi_class_data,
    tube_loss,
)
from regbayes.engine import Status, Threads
from regbayes.margins.ascent import SimplexAscent, ascend
from regbayes.margins.design import Design
from regbayes.margins.newton import SharedPrior, minimize
from regbayes.margins.rows import MAX_DENSE
from regbayes.margins.targets import Cells, Classes, Numbers, Observations, Signs, zero_one_cost
from regbayes.regularizers import MultiClassSquaredHinge

EXACT = 1e-13  # relative duality gap of an accurate solve
EPSILON = 0.2
SMOOTHING = (0.1, 0.03, 0.01, 0.003, 0.001, 0.0003)


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def see(targets, X, smoothing=SMOOTHING[0]):
    return targets.block_losses().see(Design(X), smoothing)


def solve(targets, X, smoothing=SMOOTHING[0], start=None, tol=EXACT, **options):
    start = np.zeros((targets.n_outputs, X.shape[1])) if start is None else start
    return minimize([see(targets, X, smoothing)], SharedPrior(np.arange(len(start))), start, tol=tol, **options)


class Tasks:
    """Outputs of samples with missing targets, for tasks that may share weights."""

    def __init__(self, rng, loss, sharing=0.0, n=80, d=4):
        self.prior = SharedPrior(np.array([0, 1, 0, 1, 0]), sharing)
        self.X = rng.normal(size=(n, d)) + 0.3
        self.task, self.row = np.nonzero(rng.random((5, n)) < (0.6 if loss == "hinge" else 0.2))  # a matrix, a list
        C = rng.uniform(0.1, 3.0, self.row.size)
        scores = np.sum(self.X[self.row] * rng.normal(size=(5, d))[self.task], axis=1) + rng.normal(size=self.row.size)
        values = np.where(scores > 0, 1.0, -1.0) if loss == "hinge" else scores
        self.loss = hinge_loss(values, C, True) if loss == "hinge" else tube_loss(values, C, True, EPSILON)
        observed = Observations(self.row, self.task, values, C)
        self.targets = Cells(observed, n, 5, 1.0, None if loss == "hinge" else EPSILON)
        self.rows, self.zeros = see(self.targets, self.X), np.zeros((5, d))

    def solve(self, start=None, tol=EXACT, **options):
        return minimize([self.rows], self.prior, self.zeros if start is None else start, tol=tol, **options)

    def multipliers(self, weights):
        """Return the multipliers of the observations from their sums."""
        return self.rows.pull_back(weights, np.eye(5))[self.row, self.task]


def classes(rng, n=70, d=4, n_classes=4, C=1.0, spread=1.2):
    """Return classes with costs and values of C, some of them zero."""
    X, labels = multi_class_data(rng, n=n, d=d, n_classes=n_classes, spread=spread)
    cost = rng.uniform(0.5, 2.0, size=(n_classes, n_classes)) * zero_one_cost(n_classes)
    prices = C * rng.uniform(0.2, 1.8, size=n)
    prices[rng.random(n) < 0.1] = 0.0
    return X, Classes(labels, cost, prices)


# --- liblinear --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sharing", [0.0, 1.5])
def test_squared_residuals_of_tasks_match_ridge_regression(rng, sharing):
    """One step is exact, and ridge regression of all tasks has prior covariance ``I + sharing^2``."""
    n, d, C = 600, 3, 0.7
    X, y, task = rng.standard_normal((n, d)), rng.standard_normal(n), np.sort(rng.integers(4, size=n))
    targets = Cells(Observations(np.arange(n), task, y, np.ones(n)), n, 4, C, 0.0)
    prior = SharedPrior(np.zeros(4, dtype=int), sharing)
    found = minimize([see(targets, X)], prior, np.zeros((4, d)), tol=1e-12)
    stacked = np.zeros((n, 4, d))
    stacked[np.arange(n), task] = X
    flat = stacked.reshape(n, -1)
    covariance = np.kron(np.eye(4) + sharing**2, np.eye(d))
    expected = np.linalg.solve(np.linalg.inv(covariance) + 2 * C * flat.T @ flat, 2 * C * flat.T @ y)
    np.testing.assert_allclose(found.weights, expected.reshape(4, d), atol=1e-10)
    assert found.n_passes == 2


# --- certificates -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sharing", [0.0, 0.7])
@pytest.mark.parametrize("loss", ["hinge", "tube"])
def test_gap_of_tasks_matches_the_explicit_dual(rng, loss, sharing):
    tasks = Tasks(rng, loss, sharing)
    weights = rng.normal(size=tasks.zeros.shape)
    found = tasks.solve(weights, tol=0.0, max_passes=1)  # only evaluates the start
    np.testing.assert_array_equal(found.weights, weights)
    covariance = np.eye(5) + sharing**2 * (tasks.prior.group[:, None] == tasks.prior.group)
    scores, phi = np.sum(tasks.X[tasks.row] * weights[tasks.task], axis=1), tasks.multipliers(weights)
    primal = 0.5 * np.vdot(weights, np.linalg.solve(covariance, weights)) + tasks.loss.value(scores)
    pulled = np.zeros_like(weights)
    np.add.at(pulled, tasks.task, phi[:, None] * tasks.X[tasks.row])
    dual = -tasks.loss.conjugate(-phi) - 0.5 * np.vdot(pulled, covariance @ pulled)
    assert found.value == pytest.approx(primal, rel=1e-12)
    assert found.gap == pytest.approx(primal - dual, rel=1e-10)
    assert (found.n_passes, found.status) == (1, Status.ITERATION_LIMIT)


@pytest.mark.parametrize("smoothing", [1.0, 0.1, 0.003])
def test_gap_of_classes_matches_the_explicit_dual(rng, smoothing):
    X, targets = classes(rng)
    weights = rng.normal(size=(targets.n_outputs, X.shape[1]))
    rows, loss = see(targets, X, smoothing), MultiClassSquaredHinge(targets.C, targets.cost, targets.labels)
    found = solve(targets, X, smoothing, weights, tol=0.0, max_passes=1)
    scores = X @ weights.T
    away = scores - np.take_along_axis(scores, targets.labels[:, None], axis=1)
    primal = 0.5 * np.sum(weights**2) + loss.value(away.ravel())
    phi = rows.pull_back(weights, np.eye(len(weights)))
    np.testing.assert_allclose(phi.sum(axis=1), 0.0, atol=1e-9)
    omega = np.where(np.eye(targets.n_outputs, dtype=bool)[targets.labels], 0.0, -phi)
    assert omega.min() >= 0.0
    dual = -loss.conjugate(omega.ravel()) - 0.5 * np.sum((phi.T @ X) ** 2)
    assert found.value - found.excess == pytest.approx(primal, rel=1e-12)
    assert found.gap + found.bias == pytest.approx(primal - dual, rel=1e-10)
    assert found.gap == pytest.approx(0.5 * np.sum((weights - phi.T @ X) ** 2), rel=1e-10)


@pytest.mark.parametrize("C", [0.02, 0.5])
def test_smoothed_solutions_converge_to_the_exact_loss(rng, C):
    X, targets = classes(rng, C=C)
    problem = SimplexAscent(X, targets.dual_form(squared=True), targets.labels)
    exact = ascend(problem, 1e-10, 1e5, seed=0)
    excesses, start = [], None
    for smoothing in SMOOTHING:
        found = solve(targets, X, smoothing, start)
        assert found.value - found.excess >= exact.primal - exact.gap
        assert found.excess >= 0.0  # the smoothed loss is an upper bound
        excesses.append(found.value - exact.primal)
        start = found.weights
    assert np.all(np.diff(excesses) < 0)
    # By strong convexity, half the squared distance of the weights is at most the suboptimality.
    distance = 0.5 * np.sum((found.weights - exact.weights) ** 2)
    assert distance <= 2.0 * (found.gap + found.bias + exact.gap)


def test_number_of_passes_is_limited(rng):
    X, targets = classes(rng, C=20.0)
    few, more = solve(targets, X, tol=1e-4, max_passes=3), solve(targets, X, tol=1e-4)
    assert few.status is Status.ITERATION_LIMIT
    assert few.n_passes < more.n_passes
    assert few.value - few.gap <= more.value < few.value


# --- derivatives ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", ["hinge", "tube"])
def test_sums_of_tasks_are_derivatives_of_the_loss(rng, loss):
    tasks, size = Tasks(rng, loss), 1e-6
    rows, weights, step = tasks.rows, *rng.normal(size=(2, *tasks.zeros.shape))
    before, after, at = (rows.sums(weights + side * size * step) for side in (-1, 1, 0))
    scores = np.sum(tasks.X[tasks.row] * weights[tasks.task], axis=1)
    assert at.loss == pytest.approx(tasks.loss.value(scores), rel=1e-12)
    assert (after.loss - before.loss) / (2 * size) == pytest.approx(-np.vdot(at.pulled, step), rel=1e-7)
    bend = (before.pulled - after.pulled) / (2 * size)
    np.testing.assert_allclose(np.einsum("tij,tj->ti", rows.curvature(weights), step), bend, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("smoothing", [1.0, 0.1, 0.003])
@pytest.mark.parametrize("size", [(70, 4, 4), (60, 80, 13)])  # full second derivative, and by class
def test_sums_of_classes_are_derivatives_of_the_loss(rng, smoothing, size):
    n, d, n_classes = size
    X, targets = classes(rng, n, d, n_classes)
    rows, shape, width = see(targets, X, smoothing), (n_classes, d), 1e-7
    weights, step = rng.normal(size=shape) / np.sqrt(d), rng.normal(size=shape)
    before, after = rows.sums(weights - width * step), rows.sums(weights + width * step)
    slope, bend = (after.loss - before.loss) / (2 * width), (before.pulled - after.pulled) / (2 * width)
    at, product, curvature = rows.sums(weights), rows.product(weights, step), rows.curvature(weights)
    assert slope == pytest.approx(-np.vdot(at.pulled, step), rel=1e-5)
    scale = np.abs(bend).max()
    np.testing.assert_allclose(product, bend, rtol=1e-4, atol=1e-5 * scale)
    if n_classes * d <= MAX_DENSE:
        np.testing.assert_allclose(np.tensordot(curvature, step, axes=2), product, rtol=1e-9, atol=1e-11 * scale)
        return
    for c in range(n_classes):
        only = np.zeros(shape)
        only[c] = step[c]
        np.testing.assert_allclose(curvature[c] @ step[c], rows.product(weights, only)[c], rtol=1e-9)


def test_fully_smoothed_class_losses_are_a_margin_per_class(rng):
    """At delta = 1 the loss is a sum of binary margins over the wrong classes (Weston and Watkins)."""
    X, targets = classes(rng)
    weights = rng.normal(size=(targets.n_outputs, X.shape[1]))
    scores = X @ weights.T
    missed = targets.cost[targets.labels] + scores - np.take_along_axis(scores, targets.labels[:, None], axis=1)
    wrong = 1.0 - np.eye(targets.n_outputs)[targets.labels]
    expected = np.sum(targets.C[:, None] * wrong * np.maximum(missed, 0.0) ** 2)
    assert see(targets, X, 1.0).sums(weights).loss == pytest.approx(expected, rel=1e-9)


def test_shared_prior_is_that_of_common_plus_own_weights(rng):
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


# --- hard problems ----------------------------------------------------------------------------------------------------


def test_two_classes_match_one_binary_margin(rng):
    """With one wrong class there is nothing to smooth; the difference is a binary margin with twice the variance."""
    X, signs = binary_data(rng)
    C = np.full(len(X), 0.7)
    found = solve(Classes((signs > 0).astype(int), zero_one_cost(2), C), X, tol=1e-12)
    expected = solve(Signs(signs[:, None], C[:, None]), np.sqrt(2.0) * X)
    assert found.bias == pytest.approx(0.0, abs=1e-9)
    assert found.value == pytest.approx(expected.value, rel=1e-9)
    np.testing.assert_allclose(found.weights[1] - found.weights[0], np.sqrt(2.0) * expected.weights[0], atol=1e-5)


def test_many_class_weights_match_cvxpy(rng):
    """Too many weights for a full second derivative, with separable classes and a large C."""
    X, targets = classes(rng, n=50, d=80, n_classes=13, spread=4.0)
    weights = cp.Variable((13, 80))
    assert weights.size > MAX_DENSE
    margins = missed_margins(X, targets.labels, weights, targets.cost)
    level = cp.Variable((len(X), 1), nonneg=True)
    over = cp.multiply(targets.C[:, None], cp.square(cp.pos(margins - level @ np.ones((1, 13)))))
    wrong = 1.0 - np.eye(13)[targets.labels]
    loss = cp.sum(cp.multiply(targets.C[:, None], cp.square(level))) / 0.9 + cp.sum(cp.multiply(wrong, over)) / 0.1
    optimum = minimise(0.5 * cp.sum_squares(weights) + loss)
    found = solve(targets, X, 0.1, tol=1e-11)
    assert found.status is Status.CONVERGED
    assert found.value == pytest.approx(optimum, rel=1e-6)


@pytest.mark.parametrize("loss", ["hinge", "tube"])
def test_separable_data_are_solved(rng, loss):
    X, C = rng.normal(size=(60, 80)), np.full((60, 1), 100.0)
    signs, values = np.where(rng.random((60, 1)) < 0.5, 1.0, -1.0), rng.normal(size=(60, 1))
    targets = Signs(signs, C) if loss == "hinge" else Numbers(values, C, EPSILON)
    weights = cp.Variable((1, 80))
    scores = X @ weights.T
    slack = 1 - cp.multiply(signs, scores) if loss == "hinge" else cp.abs(values - scores) - EPSILON
    optimum = minimise(0.5 * cp.sum_squares(weights) + cp.sum(cp.multiply(C, cp.square(cp.pos(slack)))))
    found = solve(targets, X)
    assert found.status is Status.CONVERGED
    assert found.value == pytest.approx(optimum, rel=1e-6)


def test_solution_is_bitwise_identical_for_any_number_of_threads(rng):
    X, targets = classes(rng, n=80, n_classes=13, d=80, C=0.001)
    cut = [slice(0, 5), slice(5, 12), slice(12, 71), slice(71, 80)]
    rows = [see(targets.take(part), X[part]) for part in cut]
    prior, start = SharedPrior(np.arange(13)), np.zeros((13, 80))
    one, *others = (minimize(rows, prior, start, tol=1e-20, executor=Threads(n)) for n in (1, 2, 5))
    whole = minimize([see(targets, X)], prior, start, tol=1e-20)
    np.testing.assert_allclose(one.weights, whole.weights, atol=1e-10)
    for other in others:
        np.testing.assert_array_equal(one.weights, other.weights)
        assert (one.value, one.gap, one.n_passes) == (other.value, other.gap, other.n_passes)


def test_single_class_gives_zero_weights(rng):
    targets = Classes(np.zeros(10, dtype=int), zero_one_cost(1), np.ones(10))
    found = solve(targets, rng.normal(size=(10, 3)), tol=1e-6)
    assert (found.status, found.value) == (Status.CONVERGED, 0.0)
