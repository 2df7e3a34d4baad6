"""Monotone descent, compared with SciPy's L-BFGS-B, on quadratics, and where no step decreases the objective."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import expit

from regbayes.joint.descent import MEMORY, ToleranceSchedule, direction, dot, update_history
from regbayes.margins.head import SMALLEST_GAP, Tolerance

RNG = np.random.default_rng(0)
ROWS, TARGETS = RNG.standard_normal((80, 12)) * np.linspace(0.2, 5.0, 12), RNG.choice([-1.0, 1.0], 80)
RIDGE = 0.1


@dataclass(frozen=True)
class Point:
    x: np.ndarray
    objective: float
    gradient: np.ndarray


def logistic(x):
    """Ridge-penalized logistic regression, which is convex, smooth and badly scaled."""
    margins = TARGETS * (ROWS @ x)
    objective = float(np.logaddexp(0.0, -margins).sum() + 0.5 * RIDGE * x @ x)
    return Point(x, objective, -ROWS.T @ (TARGETS * expit(-margins)) + RIDGE * x)


def rosenbrock(x):
    """Rosenbrock function, a nonconvex curved valley."""
    objective = 100.0 * (x[1] - x[0] ** 2) ** 2 + (1.0 - x[0]) ** 2
    slope = 200.0 * (x[1] - x[0] ** 2)
    return Point(x, objective, np.array([-2.0 * slope * x[0] - 2.0 * (1.0 - x[0]), slope]))


def descend(function, start, n_steps, precondition=None):
    """Return all iterates of descent steps."""
    points, history = [function(start)], ()
    for _ in range(n_steps):
        at = points[-1]
        way = direction(at.gradient, history, 1.0, precondition)
        trials = (function(at.x + 0.5**halvings * way) for halvings in range(40))
        slope = dot(at.gradient, way)
        enough = (p for i, p in enumerate(trials) if p.objective <= at.objective + 1e-4 * 0.5**i * slope)
        moved = next(enough, None) if slope < 0 else None
        if moved is None:
            break
        history = update_history(history, moved.x - at.x, moved.gradient - at.gradient)
        points.append(moved)
    return points


@pytest.mark.parametrize("scaled", [False, True])
def test_descent_on_a_convex_problem_matches_lbfgsb(scaled):
    curvature = 0.25 * np.square(ROWS).sum(axis=0) + RIDGE
    points = descend(logistic, np.zeros(12), 400, (lambda q: q / curvature) if scaled else None)
    oracle = minimize(
        lambda x: (logistic(x).objective, logistic(x).gradient),
        np.zeros(12),
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": 1000, "ftol": 1e-15, "gtol": 1e-9},
    )
    assert points[-1].objective == pytest.approx(oracle.fun, rel=1e-9)
    np.testing.assert_allclose(points[-1].x, oracle.x, atol=1e-4)


def test_descent_is_monotone_and_reaches_the_rosenbrock_minimum():
    points = descend(rosenbrock, np.array([-1.2, 1.0]), 400)
    assert np.all(np.diff([point.objective for point in points]) < 0)
    np.testing.assert_allclose(points[-1].x, [1.0, 1.0], atol=1e-4)


def test_direction_with_full_history_is_the_newton_direction():
    root = np.random.default_rng(1).standard_normal((5, 5))
    curvature = root @ root.T + np.eye(5)
    _, axes = np.linalg.eigh(curvature)  # conjugate directions, whose curvatures do not interact
    history = ()
    for axis in axes.T:
        history = update_history(history, axis, curvature @ axis)
    gradient = np.arange(1.0, 6.0)
    np.testing.assert_allclose(direction(gradient, history), -np.linalg.solve(curvature, gradient), rtol=1e-10)


def test_direction_with_exact_preconditioner_is_newtons():
    curvature = np.diag([1.0, 10.0, 100.0])
    gradient = np.array([3.0, -2.0, 1.0])
    newton = -np.linalg.solve(curvature, gradient)

    def precondition(q):
        return np.linalg.solve(curvature, q)

    np.testing.assert_allclose(direction(gradient, (), precondition=precondition), newton)
    move = np.array([1.0, 1.0, 0.0])
    history = update_history((), move, curvature @ move)
    np.testing.assert_allclose(direction(gradient, history, precondition=precondition), newton)


def test_direction_without_history_has_the_given_length():
    gradient = np.array([3.0, 4.0])
    np.testing.assert_allclose(direction(gradient, (), 0.5), [-0.3, -0.4])
    np.testing.assert_allclose(direction(gradient, ()), -gradient)
    np.testing.assert_array_equal(direction(np.zeros(2), (), 0.5), np.zeros(2))


def test_direction_with_any_history_is_a_descent_direction():
    rng = np.random.default_rng(2)
    for _ in range(50):
        history = ()
        for _ in range(6):
            history = update_history(history, rng.standard_normal(4), rng.standard_normal(4))
        gradient = rng.standard_normal(4)
        assert dot(gradient, direction(gradient, history, 1.0)) < 0


def test_update_history_skips_moves_without_positive_curvature():
    move = np.array([1.0, 0.0])
    kept = update_history((), move, np.array([2.0, 0.0]))
    assert len(kept) == 1
    for change in ([-1.0, 0.0], [0.0, 1.0], [0.0, 0.0], [np.nan, 0.0]):
        assert update_history(kept, move, np.array(change)) is kept


def test_update_history_drops_the_oldest_moves():
    history = ()
    for size in range(1, MEMORY + 4):
        history = update_history(history, np.full(1, float(size)), np.ones(1))
    assert [move[0] for move, _ in history] == [float(size) for size in range(4, MEMORY + 4)]


def test_direction_keeps_single_precision():
    gradient = np.ones(3, np.float32)
    history = update_history((), gradient, 2 * gradient)
    assert direction(gradient, history).dtype == np.float32


SCHEDULE = ToleranceSchedule(Tolerance(1e-2, 3.0), gap_share=0.1, gap_range=(1e-6, 1e-2), epoch_range=(3.0, 10.0))


def test_tighten_ends_at_a_limit():
    tolerance, looks = SCHEDULE.first, 0
    while (tighter := tolerance.tighten()) is not None:
        assert tighter.gap < tolerance.gap
        tolerance, looks = tighter, looks + 1
    assert tolerance.gap == SMALLEST_GAP
    assert looks <= 7
