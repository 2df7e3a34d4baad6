"""Dual coordinate ascent compared with liblinear, CVXPY and the theory of quadratic programs."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest
from sklearn.svm import LinearSVC, LinearSVR

from large_margin_tools import (
    BINARY,
    LIBLINEAR,
    MULTI_CLASS,
    REGRESSION,
    TIGHT,
    binary_data,
    multi_class_data,
    multi_class_primal,
    signs_form,
    solve_classes,
    solve_one_task,
    solve_tasks,
    tube_form,
)
from regbayes.engine import Status
from regbayes.margins import ascent
from regbayes.margins.ascent import TaskLayout
from regbayes.margins.targets import zero_one_cost
from regbayes.regularization.posteriors import Gaussian
from regbayes.regularization.regularize import regularize
from regbayes.regularization.regularizers import Hinge


@pytest.fixture
def rng():
    return np.random.default_rng(0)


# --- liblinear ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", BINARY)
@pytest.mark.parametrize("C", [0.02, 1.0])
@pytest.mark.parametrize("intercept", [False, True])
def test_box_matches_liblinear_classifier(rng, loss, C, intercept):
    X, signs = binary_data(rng)
    expected = LinearSVC(C=C, loss=loss, dual=True, fit_intercept=intercept, **LIBLINEAR).fit(X, signs)
    seen = np.column_stack([X, np.ones(len(X))]) if intercept else X
    form = signs_form(signs, C, squared=loss == "squared_hinge")
    solution = solve_one_task(seen, form, tol=TIGHT, max_epochs=1e5)
    np.testing.assert_allclose(solution.weights[0, : X.shape[1]], expected.coef_[0], atol=1e-6)
    if intercept:
        assert solution.weights[0, -1] == pytest.approx(expected.intercept_[0], abs=1e-6)
    assert solution.status is Status.CONVERGED


@pytest.mark.parametrize("loss", REGRESSION)
@pytest.mark.parametrize("C", [0.02, 1.0])
def test_box_matches_liblinear_regressor(rng, loss, C):
    X, _ = binary_data(rng)
    targets = X @ rng.normal(size=X.shape[1]) + rng.normal(size=len(X))
    expected = LinearSVR(C=C, epsilon=0.3, loss=loss, dual=True, fit_intercept=False, **LIBLINEAR).fit(X, targets)
    solution = solve_one_task(X, REGRESSION[loss](targets, 0.3, C), tol=TIGHT, max_epochs=1e5)
    np.testing.assert_allclose(solution.weights[0], expected.coef_, atol=1e-6)


@pytest.mark.parametrize("C", [0.02, 0.5])
def test_simplex_matches_liblinear_crammer_singer(rng, C):
    X, labels = multi_class_data(rng)
    model = LinearSVC(C=C, multi_class="crammer_singer", fit_intercept=False, **LIBLINEAR)
    weight = rng.uniform(0.5, 2.0, size=len(X))
    cost = zero_one_cost(4)
    plain = solve_classes(X, labels, cost, C, tol=TIGHT)
    np.testing.assert_allclose(plain.weights, model.fit(X, labels).coef_, atol=1e-6)
    weighted = solve_classes(X, labels, cost, C * weight, tol=TIGHT)
    np.testing.assert_allclose(weighted.weights, model.fit(X, labels, sample_weight=weight).coef_, atol=1e-6)


@pytest.mark.parametrize("power", [1, 2])
def test_box_matches_regularize_for_a_gaussian_posterior(rng, power):
    X, signs = binary_data(rng, n=30, d=4)
    mean = rng.normal(size=4)
    margins = X * signs[:, None]
    regularizer = Hinge(C=0.7, power=power).reflect(1.0)
    expected = regularize(Gaussian(mean, np.ones(4)), margins, regularizer)
    shifted = regularizer.shift(-margins @ mean).dual_form(30)
    solution = solve_one_task(margins, shifted, tol=TIGHT)
    np.testing.assert_allclose(mean - solution.weights[0], expected.posterior.mean, atol=1e-5)


# --- CVXPY ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", MULTI_CLASS)
@pytest.mark.parametrize("costs", ["matrix", "rows"])
def test_simplex_matches_cvxpy(rng, loss, costs):
    n, n_classes, by_row = 40, 3, costs == "rows"
    X, labels = multi_class_data(rng, n=n, n_classes=n_classes)
    C = rng.uniform(0.1, 0.5, size=n)
    cost = rng.uniform(0.5, 2.0, size=(n if by_row else n_classes, n_classes))
    cost_row = np.arange(n) if by_row else labels
    cost[cost_row, labels] = 0.0
    weights = cp.Variable((n_classes, X.shape[1]))
    scores = X @ weights.T
    own = cp.sum(cp.multiply(scores, np.eye(n_classes)[labels]), axis=1)
    slack = cp.max(cost[cost_row] + scores - cp.reshape(own, (n, 1), order="C"), axis=1)
    losses = cp.multiply(C, cp.square(cp.pos(slack)) if loss == "squared_hinge" else slack)
    problem = cp.Problem(cp.Minimize(0.5 * cp.sum_squares(weights) + cp.sum(losses)))
    problem.solve(solver=cp.CLARABEL)
    solution = solve_classes(X, labels, cost, C, loss, by_row=by_row, tol=1e-10, max_epochs=1e5)
    assert solution.status is Status.CONVERGED
    assert solution.primal == pytest.approx(problem.value, rel=1e-7)
    np.testing.assert_allclose(solution.weights, weights.value, atol=1e-4)


@pytest.mark.parametrize("sharing", [0.0, 0.5, 3.0])
@pytest.mark.parametrize("loss", ["hinge", "tube"])
def test_coupled_tasks_match_cvxpy(rng, sharing, loss):
    n, d, group = 60, 4, np.array([0, 0, 1, 0, 1])
    X, _ = binary_data(rng, n=25, d=d)
    feature_row, task = rng.integers(25, size=n), rng.integers(5, size=n)
    targets = np.where(rng.random(n) > 0.4, 1.0, -1.0) if loss == "hinge" else rng.normal(size=n)
    C = 0.4
    own, common = cp.Variable((5, d)), cp.Variable((2, d))
    scores = cp.sum(cp.multiply(X[feature_row], own[task] + sharing * common[group[task]]), axis=1)
    slack = 1 - cp.multiply(targets, scores) if loss == "hinge" else cp.abs(targets - scores) - 0.1
    objective = 0.5 * cp.sum_squares(own) + 0.5 * cp.sum_squares(common) + C * cp.sum(cp.pos(slack))
    problem = cp.Problem(cp.Minimize(objective))
    problem.solve(solver=cp.CLARABEL)
    form = signs_form(targets, C) if loss == "hinge" else tube_form(targets, 0.1, C)
    solution = solve_tasks(X, form, TaskLayout(feature_row, task, group, sharing), tol=TIGHT)
    assert solution.primal == pytest.approx(problem.value, rel=1e-7)
    np.testing.assert_allclose(solution.weights, own.value + sharing * common.value[group], atol=1e-4)


# --- theory ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", MULTI_CLASS)
@pytest.mark.parametrize("tol", [1e-1, 1e-4])
def test_simplex_certificate_bounds_the_suboptimality(rng, loss, tol):
    X, labels = multi_class_data(rng)
    cost, C = zero_one_cost(4), 0.3
    solution = solve_classes(X, labels, cost, C, loss, tol=tol)
    squared = loss == "squared_hinge"
    assert solution.primal == pytest.approx(multi_class_primal(X, labels, cost, C, solution.weights, squared))
    signed = (np.eye(4)[labels] * solution.dual.sum(axis=1, keepdims=True) - solution.dual).T
    np.testing.assert_allclose(signed @ X, solution.weights, atol=1e-10)
    value = np.sum(solution.dual * cost[labels]) - 0.5 * np.sum(solution.weights**2)
    if squared:
        value -= np.sum(solution.dual.sum(axis=1) ** 2) / (4 * C)
    assert solution.primal - solution.gap == pytest.approx(value, rel=1e-9)
    assert 0.0 <= solution.gap <= tol * solution.primal
    optimum = solve_classes(X, labels, cost, C, loss, tol=1e-9, max_epochs=1e5)
    assert solution.primal - solution.gap <= optimum.primal
    assert solution.primal >= optimum.primal - optimum.gap


@pytest.mark.parametrize("loss", BINARY)
def test_order_of_visits_does_not_change_the_solution(rng, loss):
    """Repeated rows with a fraction of C are the same problem, but large enough to be visited by blocks."""
    X, signs = binary_data(rng)
    margins, times = X * signs[:, None], 260
    few = solve_one_task(margins, BINARY[loss](len(X), 0.5), tol=1e-8, max_epochs=1e5)
    assert times * len(X) > ascent.CACHED_ROWS > len(X)
    many = BINARY[loss](times * len(X), 0.5 / times)
    blocked = solve_one_task(np.tile(margins, (times, 1)), many, tol=1e-8, max_epochs=1e5)
    assert few.status is blocked.status is Status.CONVERGED
    np.testing.assert_allclose(blocked.weights, few.weights, atol=1e-4)
    assert abs(blocked.primal - few.primal) <= 1e-8 * few.primal
