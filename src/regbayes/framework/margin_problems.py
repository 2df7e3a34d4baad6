"""The two large-margin duals as problems to climb: multipliers in a box, and one simplex of them per row."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from regbayes._types import Floats, Indices
from regbayes.engine import Status
from regbayes.framework.dual_ascent import Outcome, ascend
from regbayes.framework.primal_newton import SmoothPrimal
from regbayes.kernels.box import BoxRows, BoxState, box_check, box_epoch, box_scores, box_weights
from regbayes.kernels.simplex import SimplexRows, SimplexState, simplex_check, simplex_epoch, simplex_weights
from regbayes.kernels.types import Progress

# A hard margin's loss is infinite until it is met. Its gap is measured with a price per unit of violation that is
# this many times the largest multiplier: any price above the largest has the same solution.
PENALTY_FACTOR = 10.0
# A Newton step costs about as much as features / 16 passes of coordinate ascent, which gets the first say.
MIN_PATIENCE = 4.0
PATIENCE_PER_FEATURE = 8.0
# With so many rows for each weight the factors of the tasks cost little, and a Newton step little more than a pass.
MIN_ROWS_PER_WEIGHT = 10
MAX_NEWTON_STEPS = 50
MAX_NEWTON_SIZE = 20_000_000  # numbers in the second derivatives of all tasks


class SimplexAscent:
    """Passes over rows that each hold a simplex of multipliers."""

    def __init__(self, rows: SimplexRows, omega: Floats) -> None:
        n_rows, n_answers = omega.shape
        answers = np.tile(np.arange(n_answers, dtype=np.int16), (n_rows, 1))
        in_play = np.full(n_rows, n_answers, dtype=np.int16)
        self.rows = rows
        self.state = SimplexState(omega, simplex_weights(rows, omega), answers, in_play)
        self.has_hard_rows = bool(np.any(np.isinf(rows.total) & (rows.ridge == 0.0)))

    @property
    def n_rows(self) -> int:
        """How many rows there are."""
        return int(self.rows.labels.size)

    def visit(self, order: Indices, restart: bool) -> Progress:
        """Step through rows in the given order."""
        return simplex_epoch(self.rows, order, restart, self.state)

    def in_play(self, rows: Indices) -> Indices:
        """Return those of the rows that can still move."""
        return rows[self.state.n_answers[rows] > 0]

    def squared_norm(self) -> float:
        """Return twice the part of the primal objective that is not loss."""
        return float(np.vdot(self.state.weights, self.state.weights))

    def certificate(self) -> tuple[float, float]:
        """Return the primal objective and the duality gap."""
        if self.has_hard_rows:
            largest = float(self.state.omega.sum(axis=1).max(initial=0.0))
            self.rows = self.rows._replace(penalty=PENALTY_FACTOR * largest)
        loss, gap = simplex_check(self.rows, self.state)
        return 0.5 * self.squared_norm() + loss, max(gap, 0.0)


class BoxAscent:
    """Passes over rows with one multiplier each."""

    def __init__(self, rows: BoxRows, dual: Floats) -> None:
        self.rows = rows
        self.replace_dual(dual)
        unbounded = np.isinf(rows.lower) | np.isinf(rows.upper)
        self.has_hard_rows = bool(np.any(unbounded & (rows.ridge == 0.0)))

    @property
    def n_rows(self) -> int:
        """How many rows there are."""
        return int(self.rows.task.size)

    def visit(self, order: Indices, restart: bool) -> Progress:
        """Step through rows in the given order."""
        return box_epoch(self.rows, order, restart, self.state)

    def in_play(self, rows: Indices) -> Indices:
        """Return those of the rows that can still move."""
        return rows[self.state.active[rows]]

    def is_quadratic(self) -> bool:
        """Whether every loss is a parabola: a ridge, no tube and no bound."""
        rows = self.rows
        unbounded = np.all(np.isinf(rows.lower)) and np.all(np.isinf(rows.upper))
        return bool(unbounded and np.all(rows.ridge > 0.0) and not rows.absolute.any())

    def common(self) -> Floats:
        """Return the weights summed over the tasks of each group."""
        return sum_by_group(self.state.weights, self.rows.group)

    def expected_weights(self) -> Floats:
        """Return the posterior means of the tasks' weights, those they share included."""
        return np.asarray(self.state.weights + (self.rows.sharing * self.common())[self.rows.group])

    def replace_dual(self, dual: Floats) -> None:
        """Take other multipliers, with the weights they imply."""
        weights = box_weights(self.rows, dual)
        common = sum_by_group(weights, self.rows.group)
        self.state = BoxState(dual, weights, common, np.ones(dual.size, dtype=np.bool_))

    def squared_norm(self) -> float:
        """Return twice the part of the primal objective that is not loss."""
        weights, common = self.state.weights, self.common()
        return float(np.vdot(weights, weights) + self.rows.sharing * np.vdot(common, common))

    def certificate(self) -> tuple[float, float]:
        """Return the primal objective and the duality gap."""
        if self.has_hard_rows:
            largest = float(np.abs(self.state.dual).max(initial=0.0))
            self.rows = self.rows._replace(penalty=PENALTY_FACTOR * largest)
        loss, gap = box_check(self.rows, self.state)
        return 0.5 * self.squared_norm() + loss, max(gap, 0.0)


def solve_box_dual(
    problem: BoxAscent, tol: float, max_epochs: float, seed: int, weights: Floats | None = None
) -> Outcome:
    """Climb by coordinate ascent; if it has not arrived soon and all losses are smooth, finish by Newton's method.

    Where there are many rows for each weight and ascent would have far to go, Newton's method comes first. It starts
    from ``weights`` (tasks, d), or from those that the multipliers imply.
    """
    n_tasks, n_features = problem.state.weights.shape
    is_smooth = bool(np.all(problem.rows.ridge > 0.0)) and n_tasks * n_features**2 <= MAX_NEWTON_SIZE
    patience = max(MIN_PATIENCE, n_features / PATIENCE_PER_FEATURE)
    if not is_smooth or max_epochs <= patience:
        return ascend(problem, tol, max_epochs, seed)
    if problem.n_rows >= MIN_ROWS_PER_WEIGHT * n_tasks * n_features and _is_far(problem):
        outcome = _newton(problem, tol, 0.0, max_epochs, weights)
    else:
        outcome = ascend(problem, tol, patience, seed)
        if outcome.status is Status.ITERATION_LIMIT:
            outcome = _newton(problem, tol, outcome.n_epochs, max_epochs)
    left = max_epochs - outcome.n_epochs
    if outcome.status is not Status.ITERATION_LIMIT or left <= 0.0:
        return outcome
    last = ascend(problem, tol, left, seed)
    return replace(last, n_epochs=outcome.n_epochs + last.n_epochs)


def _is_far(problem: BoxAscent) -> bool:
    """Whether Newton's method would arrive before coordinate ascent.

    One step is exact for quadratic losses; and ascent is slow to mend multipliers that are worse than none, as those of
    an earlier solution are where many rows have moved, however little.
    """
    if problem.is_quadratic():
        return True
    primal, gap = problem.certificate()
    return primal - gap < 0.0


def _newton(
    problem: BoxAscent, tol: float, n_epochs: float, max_epochs: float, weights: Floats | None = None
) -> Outcome:
    """Take Newton steps until the gap is small, they run out, or they no longer help."""
    primal = SmoothPrimal(problem.rows)
    weights = problem.expected_weights() if weights is None else weights
    scores = box_scores(problem.rows, weights)
    for _ in range(MAX_NEWTON_STEPS):
        weights, scores, fell = primal.descend(weights, scores)
        problem.replace_dual(primal.multipliers(scores))
        value, gap = problem.certificate()
        n_epochs += 1.0
        if gap <= tol * abs(value):
            return Outcome(value, gap, n_epochs, Status.CONVERGED)
        if not fell or n_epochs >= max_epochs:
            break
    return Outcome(value, gap, n_epochs, Status.ITERATION_LIMIT)


def sum_by_group(weights: Floats, group: Indices) -> Floats:
    """Return the rows of ``weights`` summed by group."""
    common = np.zeros((int(group.max(initial=-1)) + 1, weights.shape[1]))
    np.add.at(common, group, weights)
    return common
