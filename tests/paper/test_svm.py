"""SVM solvers against liblinear and CVXPY, and L-BFGS on a quadratic."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest
from sklearn.svm import LinearSVC, LinearSVR

from regbayes_paper.descent import minimize
from regbayes_paper.svm import Boxes, class_losses, solve_boxes, solve_classes

RNG = np.random.default_rng(0)
X = RNG.standard_normal((60, 4))
LABELS = np.argmax(X @ RNG.standard_normal((4, 3)) + 0.5 * RNG.standard_normal((60, 3)), axis=1)
SIGNS = np.where(LABELS == 0, 1.0, -1.0)


def test_solve_classes_matches_liblinear():
    found = solve_classes(X, LABELS, 3, np.full(60, 0.3), tol=1e-10)
    theirs = LinearSVC(multi_class="crammer_singer", C=0.3, fit_intercept=False, tol=1e-9, max_iter=100_000)
    np.testing.assert_allclose(found.weights, theirs.fit(X, LABELS).coef_, atol=1e-4)


@pytest.mark.parametrize("squared", [False, True])
def test_solve_classes_with_several_C_matches_cvxpy(squared):
    C = RNG.uniform(0.0, 1.0, 60) * (np.arange(60) % 5 > 0)
    found = solve_classes(X, LABELS, 3, C, squared=squared, tol=1e-10)
    W = cp.Variable((3, 4))
    scores = X @ W.T
    own = cp.sum(cp.multiply(scores, np.eye(3)[LABELS]), axis=1, keepdims=True)
    hinge = cp.max(1.0 - np.eye(3)[LABELS] - own @ np.ones((1, 3)) + scores, axis=1)
    loss = C @ (cp.square(cp.pos(hinge)) if squared else hinge)
    problem = cp.Problem(cp.Minimize(0.5 * cp.sum_squares(W) + loss))
    problem.solve(solver=cp.CLARABEL)
    assert found.objective == pytest.approx(problem.value, rel=1e-6)
    np.testing.assert_allclose(found.weights, found.multipliers.T @ X, atol=1e-9)
    assert found.loss == pytest.approx(float(class_losses(X @ found.weights.T, LABELS, C, squared).sum()))
    warm = solve_classes(X, LABELS, 3, C, squared=squared, start=found.multipliers, tol=1e-6, max_epochs=1)
    np.testing.assert_array_equal(warm.multipliers, found.multipliers)


def test_solve_boxes_for_two_classes_matches_liblinear():
    boxes = Boxes(SIGNS, np.full(60, 0.5), one_sided=True)
    theirs = LinearSVC(loss="hinge", C=0.5, fit_intercept=False, tol=1e-10, max_iter=100_000).fit(X, SIGNS)
    np.testing.assert_allclose(solve_boxes(X, boxes, tol=1e-12).weights, theirs.coef_, atol=1e-4)


def test_solve_boxes_for_numbers_matches_liblinear():
    y = X @ [1.0, -2.0, 0.0, 0.5] + 0.3 * RNG.standard_normal(60)
    boxes = Boxes(y, np.full(60, 0.5), epsilon=0.1)
    theirs = LinearSVR(C=0.5, epsilon=0.1, fit_intercept=False, tol=1e-10, max_iter=100_000)
    np.testing.assert_allclose(solve_boxes(X, boxes, tol=1e-12).weights[0], theirs.fit(X, y).coef_, atol=1e-4)


def test_minimize_handles_infinite_values():
    scales = np.array([1.0, 10.0, 100.0])

    def function(x):
        if np.any(x < 0.0):
            return np.inf, np.full(3, np.nan), None
        return 0.5 * float(scales @ (x - 0.1) ** 2), scales * (x - 0.1), None

    x, _, values = minimize(function, np.array([5.0, 4.0, 3.0]), 200, 1e-14)
    np.testing.assert_allclose(x, 0.1, atol=1e-5)
    assert np.all(np.diff(values) <= 0)
