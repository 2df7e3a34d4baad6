"""When to stop: rules that look at the objective's course and nothing else."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
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
        if not self.tol >= 0:
            raise ValueError(f"tol must be a number >= 0, got {self.tol!r}")
        if self.patience < 1:
            raise ValueError(f"patience must be at least 1, got {self.patience!r}")

    def __call__(self, objectives: Sequence[float]) -> Status | None:
        """Return ``Status.CONVERGED`` if the objectives so far meet the rule, None if they do not."""
        return _converged(objectives, self.patience, self._is_small)

    def _is_small(self, before: float, after: float) -> bool:
        # Leaving an infeasible start, worth +inf, is no small change although inf <= tol * inf.
        return math.isfinite(before) and abs(after - before) <= self.tol * max(abs(before), abs(after), 1.0)


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
        if not self.limit >= 0:
            raise ValueError(f"limit must be a number >= 0, got {self.limit!r}")
        if self.patience < 1:
            raise ValueError(f"patience must be at least 1, got {self.patience!r}")

    def __call__(self, objectives: Sequence[float]) -> Status | None:
        """Return ``Status.CONVERGED`` if the objectives so far meet the rule, None if they do not."""
        return _converged(objectives, self.patience, lambda before, after: abs(after - before) <= self.limit)


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
        if not self.tol >= 0:
            raise ValueError(f"tol must be a number >= 0, got {self.tol!r}")
        if self.window < 1:
            raise ValueError(f"window must be at least 1, got {self.window!r}")

    def __call__(self, objectives: Sequence[float]) -> Status | None:
        """Return ``Status.CONVERGED`` if the objectives so far meet the rule, None if they do not."""
        if self.tol == 0 or len(objectives) <= self.window:
            return None
        first, before, now = objectives[0], objectives[-1 - self.window], objectives[-1]
        if not math.isfinite(before):
            return None
        small = max(self.tol * (first - now), self.least * abs(now)) if math.isfinite(first) else self.least * abs(now)
        return Status.CONVERGED if before - now <= small else None


def _converged(objectives: Sequence[float], patience: int, is_small: Callable[[float, float], bool]) -> Status | None:
    recent = objectives[-(patience + 1) :]
    small = len(recent) > patience and all(is_small(before, after) for before, after in pairwise(recent))
    return Status.CONVERGED if small else None
