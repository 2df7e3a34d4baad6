"""Weight vectors of several outputs: the losses of observed targets, and the solver of their coupled ridge problems.

An output is a number of a task, or the score of a class. The losses are quadratic, or quadratic up to a margin, so for
given penalties the weights are the solution of one linear system, or of a few.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
from scipy.linalg import lapack

from regbayes._types import Flags, Floats, Integers
from regbayes.models.mt_ilsvm.cells import Cells

Loss = Literal["squared", "squared_hinge", "logistic"]  # of the last, logistic.py has the bounds
Product = Callable[[Floats], Floats]

NEWTON_STEPS = 50
HALVINGS = 30
CG_TOLERANCE = 1e-10
NEARLY_SINGULAR = 1e-5  # ratio of pivots in a Cholesky factor, the root of that in the system
SETTLED = 1e-12  # relative fall of the objective at which Newton's method has nothing left to do


@dataclass(frozen=True)
class LinearTasks:
    """Inputs, observed targets and their loss.

    The loss of a target is ``weight / 2 (target - score)²``, for a squared hinge only where the margin is violated.
    """

    X: Floats  # (N, d): standardised; a constant last column carries the intercepts, if there are any
    cells: Cells
    n_outputs: int
    loss: Loss

    @property
    def starts(self) -> Integers:
        """Where each output's cells begin, and where the last end, (M + 1,)."""
        return np.searchsorted(self.cells.outputs, np.arange(self.n_outputs + 1))

    def scores(self, W: Floats) -> Floats:
        """Return the score of every cell for weights (M, d)."""
        found = np.empty(len(self.cells))
        for m, here in enumerate(self.slices()):
            found[here] = self.X[self.cells.rows[here]] @ W[m]
        return found

    def slices(self) -> list[slice]:
        """The cells of each output."""
        return [slice(a, b) for a, b in pairwise(self.starts.tolist())]

    def active(self, scores: Floats) -> Flags:
        """Which cells have a loss: all, or those whose margin is violated."""
        if self.loss == "squared":
            return np.ones(len(scores), dtype=bool)
        return np.asarray(self.cells.targets * scores < 1.0)

    def value(self, W: Floats) -> float:
        """The loss of weights."""
        scores = self.scores(W)
        rest = (self.cells.targets - scores)[self.active(scores)]
        return 0.5 * float(np.sum(self.cells.weights[self.active(scores)] * rest**2))

    def moments(self, active: Flags) -> tuple[Floats, Floats]:
        """Return ``sum weight x xᵀ`` and ``sum weight x target`` over the active cells of each output."""
        d = self.X.shape[1]
        grams, sums = np.zeros((self.n_outputs, d, d)), np.zeros((self.n_outputs, d))
        for m, here in enumerate(self.slices()):
            on = active[here]
            rows = self.X[self.cells.rows[here][on]]
            weighted = rows * self.cells.weights[here][on, None]
            grams[m], sums[m] = rows.T @ weighted, weighted.T @ self.cells.targets[here][on]
        return grams, sums


@dataclass(frozen=True)
class Penalty:
    """``1/2 sum_mj columns_j V_mj²`` for weights ``W = mixing V``."""

    columns: Floats  # (d,): prices of the columns, 0 where they go free
    mixing: Floats | None = None  # (M, M), symmetric; None is the identity

    def weights(self, V: Floats) -> Floats:
        """Return W."""
        return V if self.mixing is None else self.mixing @ V

    def value(self, V: Floats) -> float:
        """The penalty."""
        return 0.5 * float(np.sum(self.columns * V**2))


def solve(problem: LinearTasks, penalty: Penalty, start: Floats) -> Floats:
    """Return the V that minimises loss plus penalty: one Newton step for squared losses, a few for margins.

    Parameters
    ----------
    problem : LinearTasks
    penalty : Penalty
    start : (M, d)
        Where Newton's method starts; of no consequence where one step is all.
    """
    if problem.loss == "squared":
        grams, sums = problem.moments(np.ones(len(problem.cells), dtype=bool))
        return ridge(grams, sums, penalty, start)
    V, value = start, _total(problem, penalty, start)
    for _ in range(NEWTON_STEPS):
        active = problem.active(problem.scores(penalty.weights(V)))
        grams, sums = problem.moments(active)
        direction = ridge(grams, sums, penalty, V) - V
        reached, after = _best_step(problem, penalty, V, direction)
        if not after < value - SETTLED * abs(value):
            return V
        V, value = reached, after
    return V


def _total(problem: LinearTasks, penalty: Penalty, V: Floats) -> float:
    return problem.value(penalty.weights(V)) + penalty.value(V)


def _best_step(problem: LinearTasks, penalty: Penalty, V: Floats, direction: Floats) -> tuple[Floats, float]:
    """Halve the step until the objective falls; return where that is, and the objective there."""
    before = _total(problem, penalty, V)
    for halved in range(HALVINGS):
        reached = V + 0.5**halved * direction
        after = _total(problem, penalty, reached)
        if after < before:
            break
    return reached, after


def ridge(grams: Floats, sums: Floats, penalty: Penalty, start: Floats) -> Floats:
    """Solve ``mixing (gram_m (mixing V)_m) + columns V = mixing sums`` for V, (M, d).

    Without mixing every output is a system of its own. With it they are one system, too large to write down where
    tasks are many, and conjugate gradients solve it: products with it are cheap.
    """
    if penalty.mixing is None:
        systems = grams + np.diag(penalty.columns)
        rest = sums - (systems @ start[:, :, None])[:, :, 0]
        return np.asarray(start + np.stack([_shortest(a, b) for a, b in zip(systems, rest, strict=True)]))
    S = penalty.mixing

    def product(V: Floats) -> Floats:
        return np.asarray(S @ (grams @ (S @ V)[:, :, None])[:, :, 0] + penalty.columns * V)

    diagonal = S**2 @ np.einsum("mjj->mj", grams) + penalty.columns
    return _conjugate_gradients(product, S @ sums, np.where(diagonal > 0, diagonal, 1.0), start)


def _shortest(system: Floats, right: Floats) -> Floats:
    """Solve a system that may be singular; of several solutions, where free columns leave some, the shortest.

    A step is what is solved for, so what no target asks for stays as it was.
    """
    root, failed = lapack.dpotrf(system, lower=True, clean=False)
    sizes = np.diag(root)
    if failed or sizes.min(initial=1.0) < NEARLY_SINGULAR * sizes.max(initial=1.0):
        return np.asarray(np.linalg.lstsq(system, right, rcond=None)[0])
    return np.asarray(lapack.dpotrs(root, right, lower=True)[0])


def _conjugate_gradients(product: Product, right: Floats, diagonal: Floats, start: Floats) -> Floats:
    """Solve a symmetric system, preconditioned by its diagonal."""
    x, residual = start, right - product(start)
    enough = CG_TOLERANCE * float(np.linalg.norm(right))
    scaled = residual / diagonal
    direction, inner = scaled, float(np.sum(residual * scaled))
    for _ in range(20 * right.size):
        if np.linalg.norm(residual) <= enough:
            break
        along = product(direction)
        step = inner / float(np.sum(direction * along))
        x, residual = x + step * direction, residual - step * along
        scaled = residual / diagonal
        before, inner = inner, float(np.sum(residual * scaled))
        direction = scaled + inner / before * direction
    return x
