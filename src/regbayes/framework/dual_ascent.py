"""How the dual of a large-margin problem is climbed: passes over the rows until the duality gap is small.

A pass over all rows tells which of them can still move; cheap passes over those alone follow until their part of the
gap is small against what it was, and then all rows are looked at again. What the passes are passes of, a box or a
simplex per row, is no concern of this module.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from regbayes._types import Indices
from regbayes.engine import Status
from regbayes.kernels.types import Progress

# Passes over the rows in play end when their gap has fallen by this factor, or after so many.
SHRINK_FACTOR = 0.2
MAX_SHORT_PASSES = 100
# What a pass sees of the gap, it sees before its steps: the gap itself is worth computing from this factor on.
CHECK_FACTOR = 3.0
# More rows than this do not fit the cache: they are visited in random order within random blocks.
MOST_SCATTERED = 30_000
BLOCK_ROWS = 32  # larger blocks are of one task, and tasks that share weights then take more passes


class Ascent(Protocol):
    """A dual problem with its multipliers, as the passes see it."""

    @property
    def n_rows(self) -> int:
        """How many rows there are."""

    def visit(self, order: Indices, restart: bool) -> Progress:
        """Step through rows in the given order; with ``restart``, those set aside too."""

    def in_play(self, rows: Indices) -> Indices:
        """Return those of the rows that can still move."""

    def squared_norm(self) -> float:
        """Return the part of the primal objective that is not loss, times two."""

    def certificate(self) -> tuple[float, float]:
        """Return the primal objective and the duality gap."""


@dataclass(frozen=True)
class Outcome:
    """Where the ascent stopped."""

    primal: float
    gap: float
    n_epochs: float
    status: Status


def ascend(problem: Ascent, tol: float, max_epochs: float, seed: int) -> Outcome:
    """Climb until the duality gap is at most ``tol`` times the primal objective.

    Parameters
    ----------
    problem : Ascent
        Its multipliers are written.
    tol : float
        Bound on the gap relative to the primal objective.
    max_epochs : float
        Limit on row visits, in units of the number of rows. With zero nothing moves; otherwise at least one pass over
        all rows is made.
    seed : int
        For the order of visits, drawn anew for every pass.

    Returns
    -------
    Outcome
    """
    if max_epochs <= 0.0:
        primal, gap = problem.certificate()
        return Outcome(primal, gap, 0.0, Status.CONVERGED if gap <= tol * abs(primal) else Status.ITERATION_LIMIT)
    rng = np.random.default_rng(seed)
    everything = np.arange(problem.n_rows)
    limit = max_epochs * problem.n_rows
    n_visits = 0
    while True:
        order = shuffled(everything, rng)
        progress = problem.visit(order, restart=True)
        n_visits += order.size
        target = tol * abs(0.5 * problem.squared_norm() + progress.loss)
        level = SHRINK_FACTOR * max(progress.gap, target)
        for short_pass in range(MAX_SHORT_PASSES + 1):
            status = _state_of(progress, n_visits >= limit)
            is_last = short_pass == MAX_SHORT_PASSES or progress.gap <= level
            if status is not None or (progress.gap <= CHECK_FACTOR * target and (short_pass == 0 or is_last)):
                primal, gap = problem.certificate()
                status = Status.CONVERGED if gap <= tol * abs(primal) else status
                if status is not None:
                    return Outcome(primal, gap, n_visits / max(problem.n_rows, 1), status)
            if is_last:
                break
            order = shuffled(problem.in_play(order), rng)
            progress = problem.visit(order, restart=False)
            n_visits += order.size


def shuffled(rows: Indices, rng: np.random.Generator) -> Indices:
    """Return rows in random order; many of them in random blocks, and in random order within each.

    Memory is then read block by block. Neighbours in ``rows`` stay close, so passes over fewer and fewer rows do too.
    """
    if rows.size <= MOST_SCATTERED:
        return rng.permutation(rows)
    n_even = rows.size - rows.size % BLOCK_ROWS
    blocks = rng.permuted(rows[:n_even].reshape(-1, BLOCK_ROWS), axis=1)
    return np.concatenate([rng.permutation(blocks).ravel(), rng.permutation(rows[n_even:])])


def _state_of(progress: Progress, out_of_visits: bool) -> Status | None:
    """Return how the ascent must end now, if it must."""
    if np.isinf(progress.violation) or np.isnan(progress.gap):
        return Status.DIVERGED
    return Status.ITERATION_LIMIT if out_of_visits else None
