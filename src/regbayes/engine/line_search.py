"""Backtracking line search with Armijo's condition."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol, TypeVar

ARMIJO = 1e-4  # required fraction of the decrease predicted by the slope
SHORTEST, LONGEST = 0.1, 0.5  # minimum and maximum factor on a rejected length


class Point(Protocol):
    """Result of an evaluation."""

    @property
    def objective(self) -> float:
        """Objective at the point."""


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
    """Return the first length that meets Armijo's condition and its point, or None if no trial does.

    Parameters
    ----------
    evaluate : callable
        Maps a length to a point, or to None if undefined or known not to decrease the objective.
    value, slope : float
        Objective at length 0 and its nonpositive derivative. With slope 0 the objective must not increase.
    max_trials : int
    length : float, default=1.0
        The first length to try.
    noise : float, default=0.0
        Increase of the objective that rounding can explain.
    shortest : float, default=0.1
        Minimum factor on the length from one trial to the next.

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> from regbayes.engine import backtrack
    >>> backtrack(lambda t: SimpleNamespace(objective=(2 * t - 1) ** 2), value=1.0, slope=-4.0, max_trials=5)
    (0.5, namespace(objective=0.0))
    """
    for _ in range(max_trials):
        point = evaluate(length)
        rise = math.inf if point is None else point.objective - value
        if point is not None and rise <= ARMIJO * length * slope + noise:
            return length, point
        del point  # frees memory for the next trial
        length = shorten(length, rise, slope, shortest)
    return None


def shorten(length: float, rise: float, slope: float, shortest: float = SHORTEST) -> float:
    """Minimize the parabola through value, slope and increase, within factors of the last length."""
    curve = rise - slope * length
    best = -slope * length**2 / (2.0 * curve) if math.isfinite(curve) and curve > 0 else 0.0
    return min(max(best, shortest * length), LONGEST * length)
