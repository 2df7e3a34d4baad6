"""Backtracking line search: the first of a sequence of step lengths that lowers an objective enough."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol, TypeVar

ARMIJO = 1e-4  # of the fall that the slope promises, which a step has to reach
SHORTEST, LONGEST = 0.1, 0.5  # factors on a length that failed


class Point(Protocol):
    """What an evaluation returns."""

    @property
    def objective(self) -> float:
        """The value there."""


Found = TypeVar("Found", bound=Point)


def backtrack(
    evaluate: Callable[[float], Found | None],
    value: float,
    slope: float,
    *,
    max_trials: int,
    length: float = 1.0,
    noise: float = 0.0,
    shortest: float = SHORTEST,
) -> tuple[float, Found] | None:
    """Return the first length that meets Armijo's condition and the point there; None if none of the trials does.

    Parameters
    ----------
    evaluate : callable
        From a length to a point. None stands for one that is not defined, or known not to be lower.
    value, slope : float
        Objective at length 0 and its derivative by the length, not positive. With slope 0 the objective may not rise.
    max_trials : int
    length : float, default=1.0
        The first length to try.
    noise : float, default=0.0
        A rise that rounding explains.
    shortest : float, default=0.1
        Factor on the length at least, from one trial to the next.
    """
    for _ in range(max_trials):
        point = evaluate(length)
        rise = math.inf if point is None else point.objective - value
        if point is not None and rise <= ARMIJO * length * slope + noise:
            return length, point
        del point  # the next trial needs the memory
        length = shorten(length, rise, slope, shortest)
    return None


def shorten(length: float, rise: float, slope: float, shortest: float = SHORTEST) -> float:
    """Return the minimum of the parabola through value, slope and rise, within factors of the last length."""
    curve = rise - slope * length
    best = -slope * length**2 / (2.0 * curve) if math.isfinite(curve) and curve > 0 else 0.0
    return min(max(best, shortest * length), LONGEST * length)
