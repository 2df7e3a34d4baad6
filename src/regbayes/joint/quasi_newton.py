"""Descent that never rises: limited-memory quasi-Newton directions and a backtracking line search.

For objectives whose value and exact gradient are known at a point, and too costly for more than one or two evaluations
a step. The caller owns the points; these functions see arrays and numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

import numpy as np

from regbayes._types import Reals
from regbayes.kernels.arrays import is_plain, sum_of

History = tuple[tuple[Reals, Reals], ...]

MEMORY = 10  # pairs that are kept
ARMIJO = 1e-4
CURVED = 1e-10  # cosine between a move and the change of the gradient, at least, for the pair to be kept


class HasObjective(Protocol):
    """A point whose objective is known."""

    @property
    def objective(self) -> float:
        """The objective."""


Point = TypeVar("Point", bound=HasObjective)


def dot(a: Reals, b: Reals) -> float:
    """Return the inner product of two arrays, wherever they lie."""
    return float(np.vdot(a, b)) if is_plain(a) else float(sum_of(a * b))


def norm(a: Reals) -> float:
    """Return the length of an array."""
    return float(np.linalg.norm(a)) if is_plain(a) else float(np.sqrt(dot(a, a)))


def update_history(history: History, move: Reals, change: Reals, memory: int = MEMORY) -> History:
    """Return the pairs with one more: a move, and the change of the gradient along it, if it shows curvature."""
    curved = dot(move, change) > CURVED * norm(move) * norm(change)
    return (*history, (move, change))[-memory:] if curved else history


def direction(
    gradient: Reals,
    history: Sequence[tuple[Reals, Reals]],
    first_length: float | None = None,
    precondition: Callable[[Reals], Reals] | None = None,
) -> Reals:
    """Return minus the gradient times the inverse curvature that the history suggests (Nocedal and Wright, 7.4).

    Parameters
    ----------
    gradient : array
    history : sequence of (move, change of the gradient)
        The oldest first, from `update_history`.
    first_length : float, default=None
        Length of the direction where there is no history. By default it is that of the preconditioned gradient.
    precondition : callable, default=None
        First guess at the inverse curvature: takes an array like the gradient and returns a new one, linear, symmetric
        and positive definite, scaled to the curvature along the last move where there is one. By default the identity.
    """
    q, shares = gradient, []
    for move, change in reversed(history):
        shares.append(dot(move, q) / dot(move, change))
        q = q - shares[-1] * change
    if precondition is not None:
        q = precondition(q)
    if history:
        move, change = history[-1]
        guess = change if precondition is None else precondition(change)
        q = q * (dot(move, change) / dot(change, guess))
    elif first_length is not None and norm(q) > 0.0:
        q = q * (first_length / norm(q))
    for (move, change), share in zip(history, reversed(shares), strict=True):
        q = q + (share - dot(change, q) / dot(move, change)) * move
    return -q


def backtrack(
    evaluate: Callable[[float], Point], objective: float, slope: float, max_trials: int
) -> tuple[Point, float] | None:
    """Shorten a step until the objective falls enough (Armijo's rule); return the point and the length, or None.

    Parameters
    ----------
    evaluate : callable
        From a length to the point there.
    objective, slope : float
        At length zero.
    max_trials : int
    """
    if not slope < 0:
        return None
    length = 1.0
    for _ in range(max_trials):
        moved = evaluate(length)
        rise = moved.objective - objective
        if rise <= ARMIJO * length * slope:
            return moved, length
        del moved  # the next trial needs the room
        length = shorten(length, rise, slope)
    return None


def shorten(length: float, rise: float, slope: float) -> float:
    """Return the next length to try after one that ended in a rise, or in too small a fall.

    It is the minimum of the parabola through what is known, kept between a tenth and a half of the last length.
    """
    curve = rise - slope * length
    best = -slope * length**2 / (2.0 * curve) if np.isfinite(curve) and curve > 0 else 0.0
    return min(max(best, 0.1 * length), 0.5 * length)


@dataclass(frozen=True)
class Search:
    """A point of a plain function of numbers, its gradient, and what is remembered."""

    position: Reals
    objective: float
    gradient: Reals
    history: History = ()


def descend(
    function: Callable[[Reals], tuple[float, Reals]],
    search: Search,
    *,
    first_length: float | None = None,
    longest: float = np.inf,
    max_trials: int = 20,
) -> Search | None:
    """Take one step down a function that returns its value and gradient; None where no step lowers it.

    Parameters
    ----------
    function : callable
    search : Search
    first_length : float, default=None
        Length of a step where nothing is remembered. By default it is that of the gradient.
    longest : float, default=inf
        Length of any step at most.
    max_trials : int, default=20
    """

    def evaluate(position: Reals) -> Search:
        return Search(position, *function(position))

    step = direction(search.gradient, search.history, first_length)
    step *= min(1.0, longest / max(float(np.linalg.norm(step)), np.finfo(np.float64).tiny))
    slope = dot(search.gradient, step)
    found = backtrack(lambda length: evaluate(search.position + length * step), search.objective, slope, max_trials)
    if found is not None:
        after = found[0]
        change = after.gradient - search.gradient
        return replace(after, history=update_history(search.history, after.position - search.position, change))
    if not search.history:
        return None
    # What is remembered of the curvature misleads: begin anew from the gradient.
    anew = replace(search, history=())
    return descend(function, anew, first_length=first_length, longest=longest, max_trials=max_trials)
