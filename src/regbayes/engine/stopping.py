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


def _converged(objectives: Sequence[float], patience: int, is_small: Callable[[float, float], bool]) -> Status | None:
    recent = objectives[-(patience + 1) :]
    small = len(recent) > patience and all(is_small(before, after) for before, after in pairwise(recent))
    return Status.CONVERGED if small else None
