"""Optimization loops: block updates until convergence, and L-BFGS."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from regbayes_paper._types import Floats

State = TypeVar("State")

MEMORY = 10  # number of L-BFGS correction pairs
ARMIJO = 1e-4  # least decrease of a step, as a share of the predicted decrease
TRIALS = 30  # maximum number of step lengths in a line search, each half of the previous one


def alternate(
    step: Callable[[State], tuple[State, float]], state: State, max_iter: int, tol: float
) -> tuple[State, list[float]]:
    """Repeat a step, which returns state and objective, until the relative decrease of the objective is below tol."""
    objectives: list[float] = []
    for _ in range(max_iter):
        state, objective = step(state)
        objectives.append(objective)
        if len(objectives) > 1 and objectives[-2] - objective <= tol * abs(objective):
            break
    return state, objectives


def minimize(
    function: Callable[[Floats], tuple[float, Floats, Any]], x: Floats, max_iter: int, tol: float
) -> tuple[Floats, Any, list[float]]:
    """Minimize a function, which may be infinite at some points, by L-BFGS with backtracking.

    The function returns value, gradient and additional output. Minimization stops if a step decreases the value by less
    than ``tol``. Returned are the last point, its additional output, and all values.
    """
    value, gradient, kept = function(x)
    pairs: list[tuple[Floats, Floats]] = []
    values = [value]
    for _ in range(max_iter):
        direction = _direction(gradient, pairs)
        slope = float(np.vdot(gradient, direction))
        if slope == 0.0:
            break
        length = 1.0 if pairs else min(1.0, 1.0 / float(np.linalg.norm(gradient)))
        for _ in range(TRIALS):
            moved = x + length * direction
            found = function(moved)
            if found[0] <= value + ARMIJO * length * slope:
                break
            length *= 0.5
        else:
            if not pairs:
                break
            pairs = []  # the curvature estimate is poor: restart along the gradient
            continue
        change = found[1] - gradient
        if np.vdot(change, moved - x) > 0:
            pairs = [*pairs[-MEMORY + 1 :], (moved - x, change)]
        x, (value, gradient, kept) = moved, found
        values.append(value)
        if values[-2] - value <= tol:
            break
    return x, kept, values


def _direction(gradient: Floats, pairs: list[tuple[Floats, Floats]]) -> Floats:
    """Return the L-BFGS direction by the two-loop recursion."""
    found, weights = -gradient, []
    for moved, change in reversed(pairs):
        weight = np.vdot(moved, found) / np.vdot(moved, change)
        weights.append(weight)
        found = found - weight * change
    if pairs:
        moved, change = pairs[-1]
        found = found * (np.vdot(moved, change) / np.vdot(change, change))
    for (moved, change), weight in zip(pairs, reversed(weights), strict=True):
        found = found + (weight - np.vdot(change, found) / np.vdot(moved, change)) * moved
    return found
