"""When to stop: rules that look at the objective's course and nothing else."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from regbayes.engine.result import Status


@dataclass(frozen=True)
class RelativeChange:
    """Converged once the last ``patience`` changes of the objective were all small.

    A change from ``f`` to ``f'`` is small when ``|f' - f| <= tol * max(|f|, |f'|, 1)``. Objectives here are measured in
    nats, so the floor of one nat keeps the rule sensible when an objective passes through zero.

    Parameters
    ----------
    tol : float
        Largest relative change that counts as small; 0 asks for no change at all.
    patience : int, default=1
        How many small changes in a row it takes. More than one protects against a single slow iteration.
    """

    tol: float
    patience: int = 1

    def __post_init__(self) -> None:
        _check("tol", self.tol, "patience", self.patience)

    def __call__(self, objectives: Sequence[float]) -> Status | None:
        """Return ``Status.CONVERGED`` if the objectives so far meet the rule, None if they do not."""
        # Leaving an infeasible start, worth +inf, is no small change although inf <= tol * inf.
        recent = _recent_changes(objectives, self.patience)
        small = [math.isfinite(a) and abs(b - a) <= self.tol * max(abs(a), abs(b), 1.0) for a, b in recent]
        return Status.CONVERGED if small and all(small) else None


@dataclass(frozen=True)
class AbsoluteChange:
    """Converged once the last ``patience`` changes of the objective were all within a limit.

    For objectives that contain constants of any size, those of a Gaussian likelihood for instance: what is small beside
    them says nothing.

    Parameters
    ----------
    limit : float
        Largest change that counts as small, in units of the objective; 0 asks for no change at all.
    patience : int, default=1
        How many small changes in a row it takes.
    """

    limit: float
    patience: int = 1

    def __post_init__(self) -> None:
        _check("limit", self.limit, "patience", self.patience)

    def __call__(self, objectives: Sequence[float]) -> Status | None:
        """Return ``Status.CONVERGED`` if the objectives so far meet the rule, None if they do not."""
        small = [abs(b - a) <= self.limit for a, b in _recent_changes(objectives, self.patience)]
        return Status.CONVERGED if small and all(small) else None


@dataclass(frozen=True)
class DiminishingReturns:
    """Converged once the last ``window`` iterations together lowered the objective by a small share of all so far.

    For objectives that fall quickly at first and hardly at all for a long time afterwards, whatever constants they
    contain. A start that is next to the end has no quick part: less than ``least`` of the objective is no gain at all.

    Parameters
    ----------
    tol : float
        Largest share that counts as small; 0 leaves the end to the iteration limit.
    window : int, default=5
        Iterations that are judged together.
    least : float, default=1e-6
        Largest relative gain of the window that is none.
    """

    tol: float
    window: int = 5
    least: float = 1e-6

    def __post_init__(self) -> None:
        _check("tol", self.tol, "window", self.window)

    def __call__(self, objectives: Sequence[float]) -> Status | None:
        """Return ``Status.CONVERGED`` if the objectives so far meet the rule, None if they do not."""
        if self.tol == 0 or len(objectives) <= self.window:
            return None
        first, before, now = objectives[0], objectives[-1 - self.window], objectives[-1]
        if not math.isfinite(before):
            return None
        small = max(self.tol * (first - now), self.least * abs(now)) if math.isfinite(first) else self.least * abs(now)
        return Status.CONVERGED if before - now <= small else None


def _recent_changes(objectives: Sequence[float], count: int) -> list[tuple[float, float]]:
    """Return the last changes as pairs of objectives, before and after; none as long as there are fewer."""
    return list(pairwise(objectives[-count - 1 :])) if len(objectives) > count else []


def _check(tolerance: str, small: float, span: str, count: int) -> None:
    if not small >= 0:
        raise ValueError(f"{tolerance} must be a number >= 0, got {small!r}")
    if count < 1:
        raise ValueError(f"{span} must be at least 1, got {count!r}")
