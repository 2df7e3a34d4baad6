"""Newton's method on the primal, for smooth losses: weights are the only state, and rows lie in blocks anywhere.

Where every multiplier has a ridge (the squared hinge, the squared tube) the loss is piecewise quadratic in the weights,
and a few Newton steps (Mangasarian 2002; Keerthi and DeCoste, JMLR 2005) end where coordinate ascent would still be
creeping: many rows, few features, large C. A step needs nothing of the rows but sums over them, so blocks may be taken
by threads or lie on other machines; sums are taken in the order of the blocks.

The certificate is free. The multipliers are the slopes of the losses at the scores, and at those the duality gap is
``1/2 <g, covariance g>`` for the gradient g of the primal: Fenchel's inequality is an equality for every loss.

The squared multi-class hinge is not smooth where several classes tie. It is smoothed inside each row: a share delta of
the ridge acts on the squares of a row's multipliers and the rest on the square of their sum. With delta to 0 that is
the loss itself, at 1 a margin for each class. What the smoothing adds to the gap is measured, and is part of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from operator import methodcaller
from typing import Protocol

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from regbayes._types import Array, Floats, Integers, Reals
from regbayes.engine import Status
from regbayes.engine.executor import Executor, Serial
from regbayes.framework.coordinate_ascent import TaskLayout, sum_by_group
from regbayes.framework.dual_forms import BoxDual, SimplexDual

MAX_STEPS = 50
MAX_HALVINGS = 30
SUFFICIENT = 1e-4  # Armijo's constant
ROUNDING = 1e-14  # of the objective: what a step may seem to raise it by
SMOOTHING = (0.1, 0.03, 0.01, 0.003, 0.001, 0.0003)  # shares delta, in turn
SMOOTH_SHARE = 0.1  # of the gap that is asked for: what is left to the smoothed problem's own


@dataclass(frozen=True)
class BlockSums:
    """What Newton's method needs to know of some rows. Sums of two blocks are those of both."""

    loss: float  # smoothed, where it is
    excess: float  # of the smoothed loss over the loss itself
    bias: float  # what smoothing adds to the duality gap
    pulled: Floats  # (outputs, d): sum_i phi_i x_i, minus the gradient of the loss
    curvature: Floats  # (outputs, d, d): of the loss in each output's weights

    def __add__(self, other: BlockSums) -> BlockSums:
        return BlockSums(
            self.loss + other.loss,
            self.excess + other.excess,
            self.bias + other.bias,
            self.pulled + other.pulled,
            self.curvature + other.curvature,
        )


class Block(Protocol):
    """Some rows with their targets."""

    def sums(self, weights: Floats) -> BlockSums:
        """Look at the rows at given weights (outputs, d)."""

    def multipliers(self, weights: Floats) -> Floats:
        """Return phi, the slopes of the losses at the scores, with the sign of what they push scores to."""


@dataclass(frozen=True)
class BoxBlock:
    """Rows whose outputs are judged one by one: signs or numbers, some of them missing."""

    features: Reals  # (f, d)
    form: BoxDual  # conjugate of the losses of *minus* the scores, cell by cell; every ridge is positive
    cells: tuple[tuple[Array | slice, Array | slice], ...]  # for each output, its rows and its cells

    @classmethod
    def of(cls, features: Reals, form: BoxDual, layout: TaskLayout) -> BoxBlock:
        """Return the block of a layout of cells."""
        order = np.argsort(layout.task, kind="stable")
        ends = np.searchsorted(layout.task[order], np.arange(len(layout.group) + 1))
        by_output = [order[ends[t] : ends[t + 1]] for t in range(len(layout.group))]
        return cls(
            features, form, tuple((_as_slice(layout.feature_row[cells]), _as_slice(cells)) for cells in by_output)
        )

    @classmethod
    def dense(cls, features: Reals, form: BoxDual) -> BoxBlock:
        """Return the block of rows that have every output, cells laid out row by row."""
        n_outputs = len(form) // max(len(features), 1)
        everything = slice(None)
        return cls(features, form, tuple((everything, slice(output, None, n_outputs)) for output in range(n_outputs)))

    def multipliers(self, weights: Floats) -> Floats:
        """Return phi of every cell, shape (cells,)."""
        return self.form.derivatives(-self._scores(weights))

    def sums(self, weights: Floats) -> BlockSums:
        """Look at the rows at given weights (outputs, d)."""
        form, scores = self.form, self._scores(weights)
        phi = form.derivatives(-scores)
        away = -scores - form.linear
        loss = float(phi @ away - form.absolute @ np.abs(phi) - 0.5 * form.ridge @ np.square(phi))
        curved = (phi > form.lower) & (phi < form.upper) & ((form.absolute == 0.0) | (phi != 0.0))
        d = weights.shape[1]
        pulled, curvature = np.zeros_like(weights), np.zeros((len(weights), d, d))
        for output, (rows, cells) in enumerate(self.cells):
            x = self.features[rows]
            pulled[output] = phi[cells] @ x
            bent = curved[cells]
            bent = slice(None) if bent.all() else bent
            scaled = x[bent] / np.sqrt(form.ridge[cells][bent])[:, None]
            curvature[output] = scaled.T @ scaled
        return BlockSums(loss, 0.0, 0.0, pulled, curvature)

    def _scores(self, weights: Floats) -> Floats:
        scores = np.empty(self.form.linear.size)
        for output, (rows, cells) in enumerate(self.cells):
            scores[cells] = self.features[rows] @ weights[output]
        return scores


def _as_slice(index: Array) -> Array | slice:
    """Return neighbours as a slice, which reads them where they lie."""
    if not len(index) or index[-1] - index[0] != len(index) - 1 or np.any(np.diff(index) != 1):
        return index
    return slice(int(index[0]), int(index[-1]) + 1)


@dataclass(frozen=True)
class SimplexBlock:
    """Rows that belong to one of several classes each."""

    features: Reals  # (n, d)
    form: SimplexDual  # every total is infinite, and every ridge positive
    labels: Integers  # (n,)
    smoothing: float = SMOOTHING[0]  # delta

    def multipliers(self, weights: Floats) -> Floats:
        """Return phi of every class, shape (n, classes)."""
        return self._by_scores(self._solve_rows(weights)[0])

    def sums(self, weights: Floats) -> BlockSums:
        """Look at the rows at given weights (classes, d)."""
        omega, margins, active = self._solve_rows(weights)
        ridge = np.where(np.isinf(self.form.ridge), 1.0, self.form.ridge)  # of rows that are out, of no consequence
        total, squares = omega.sum(axis=1), np.square(omega).sum(axis=1)
        mixed = (1.0 - self.smoothing) * np.square(total) + self.smoothing * squares
        loss = np.einsum("nc,nc->n", omega, np.where(active, margins, 0.0)) - 0.5 * ridge * mixed
        worst = np.maximum(margins.max(axis=1), 0.0)
        exact = np.where(np.isinf(self.form.ridge), 0.0, 0.5 * np.square(worst) / ridge)
        bias = exact - loss + 0.5 * ridge * self.smoothing * (np.square(total) - squares)
        own, shared, count = self._curvature(active)
        slopes = np.where(active, (own - shared)[:, None], 0.0)
        slopes[np.arange(len(slopes)), self.labels] = count * (own - shared * count)
        curvature = np.stack([(self.features * slope[:, None]).T @ self.features for slope in slopes.T])
        pulled = self._by_scores(omega).T @ self.features
        return BlockSums(float(loss.sum()), float((loss - exact).sum()), float(bias.sum()), pulled, curvature)

    def product(self, weights: Floats, direction: Floats) -> Floats:
        """Return the loss's second derivative times a direction, shape (classes, d)."""
        _, _, active = self._solve_rows(weights)
        own, shared, _ = self._curvature(active)
        change = self.features @ direction.T
        change -= np.take_along_axis(change, self.labels[:, None], axis=1)
        change = np.where(active, change, 0.0)
        omega = np.where(active, own[:, None] * change - (shared * change.sum(axis=1))[:, None], 0.0)
        return -self._by_scores(omega).T @ self.features

    def _solve_rows(self, weights: Floats) -> tuple[Floats, Floats, Array]:
        """Return each row's multipliers, the margins that its classes miss, and which of them have a multiplier."""
        scores = self.features @ weights.T
        rows = np.arange(len(scores))
        margins = scores - scores[rows, self.labels][:, None] - self.form.linear[self.form.row]
        margins[rows, self.labels] = -np.inf
        wanted = margins / np.where(np.isinf(self.form.ridge), 1.0, self.form.ridge)[:, None]
        wanted[np.isinf(self.form.ridge)] = -np.inf
        # omega_c = max(0, wanted_c - (1 - delta) total) / delta: the largest few are positive, and their number is
        # the last at which the smallest of them still would be.
        descending = -np.sort(-wanted, axis=1)
        count = np.arange(1, wanted.shape[1] + 1)
        totals = np.cumsum(descending, axis=1) / (self.smoothing + (1.0 - self.smoothing) * count)
        n_active = np.sum(descending > (1.0 - self.smoothing) * np.maximum(totals, 0.0), axis=1)
        total = np.where(n_active > 0, np.take_along_axis(totals, np.maximum(n_active - 1, 0)[:, None], 1)[:, 0], 0.0)
        over = wanted - ((1.0 - self.smoothing) * total)[:, None]
        active = (over > 0.0) & (n_active > 0)[:, None]
        return np.where(active, over / self.smoothing, 0.0), margins, active

    def _curvature(self, active: Array) -> tuple[Floats, Floats, Floats]:
        """Return how multipliers follow margins: ``own`` times each less ``shared`` times the sum; and their number."""
        count = active.sum(axis=1).astype(np.float64)
        with np.errstate(divide="ignore"):
            own = 1.0 / (self.form.ridge * self.smoothing)
        own = np.where(np.isinf(self.form.ridge), 0.0, own)
        shared = own * (1.0 - self.smoothing) / (self.smoothing + (1.0 - self.smoothing) * count)
        return own, shared, count

    def _by_scores(self, omega: Floats) -> Floats:
        phi = -omega
        phi[np.arange(len(phi)), self.labels] += omega.sum(axis=1)
        return phi


@dataclass(frozen=True)
class SharedPrior:
    """Standard normal weights ``w_t = own_t + rho common_group(t)``.

    Written in the weights of the tasks, minus the log-density of a group is ``1/2 sum_t |w_t|^2 - c/2 |sum_t w_t|^2``
    with ``c = rho^2 / (1 + rho^2 tasks)``: the Newton system has one block per task plus a term that only their sum
    sees.
    """

    group: Integers  # (tasks,)
    sharing: float = 0.0  # rho

    @property
    def coupling(self) -> Floats:
        """``c`` of each group, shape (groups,)."""
        return self.sharing**2 / (1.0 + self.sharing**2 * np.bincount(self.group).astype(np.float64))

    def precision(self, weights: Floats) -> Floats:
        """Return the prior precision times weights."""
        if self.sharing == 0.0:
            return weights
        return weights - (self.coupling[:, None] * sum_by_group(weights, self.group))[self.group]

    def covariance(self, pulled: Floats) -> Floats:
        """Return the prior covariance times what the multipliers sum up to: the weights that they imply."""
        if self.sharing == 0.0:
            return pulled
        return pulled + self.sharing**2 * sum_by_group(pulled, self.group)[self.group]

    def shared(self, weights: Floats) -> Floats:
        """Return what the likeliest split gives the groups: the part of its tasks' weights in common, (groups, d)."""
        if self.sharing == 0.0:
            return np.zeros((len(self.coupling), weights.shape[1]))
        return self.coupling[:, None] * sum_by_group(weights, self.group)

    def solve(self, curvature: Floats, right: Floats) -> Floats:
        """Solve ``(precision + curvature) x = right`` for a curvature with a block per task (tasks, d, d)."""
        blocks = curvature + np.eye(right.shape[1])
        found = _solve_each(blocks, right)
        if self.sharing == 0.0:
            return found
        inverses = np.linalg.inv(blocks)
        summed = np.zeros((len(self.coupling), *inverses.shape[1:]))
        np.add.at(summed, self.group, inverses)
        by_sum = np.eye(right.shape[1]) - self.coupling[:, None, None] * summed
        sums = sum_by_group(found, self.group)
        shared = self.coupling[:, None] * _solve_each(by_sum, sums)
        return found + np.einsum("tij,tj->ti", inverses, shared[self.group])


def _solve_each(systems: Floats, right: Floats) -> Floats:
    """Solve a linear system for each task: systems (tasks, d, d), right (tasks, d)."""
    return np.linalg.solve(systems, right[:, :, None])[:, :, 0].astype(np.float64, copy=False)


@dataclass(frozen=True)
class NewtonSolution:
    """Weights and their certificate."""

    weights: Floats  # (outputs, d)
    value: float  # of the primal, without smoothing
    gap: float  # above the minimum by this at most, what smoothing adds included
    n_passes: int  # over all rows, products with the curvature included
    status: Status  # CONVERGED, ITERATION_LIMIT or STALLED: no step lowers the objective any more
    smoothing: float = 0.0  # delta


def solve_boxes(
    blocks: Sequence[BoxBlock],
    prior: SharedPrior,
    start: Floats,
    *,
    tol: float,
    max_passes: float = np.inf,
    executor: Executor | None = None,
) -> NewtonSolution:
    """Minimise squared hinges or tubes plus the prior, to a duality gap of ``tol`` times the value.

    Parameters
    ----------
    blocks : sequence of BoxBlock
    prior : SharedPrior
    start : (outputs, d)
    tol : float
    max_passes : float
        Over the rows.
    executor : Executor, default=None
        Takes the blocks; one after another by default.
    """
    return _descend(_Problem(blocks, prior, executor or Serial()), start, tol, max_passes)


def solve_simplexes(
    blocks: Sequence[SimplexBlock],
    start: Floats,
    *,
    tol: float,
    max_passes: float = np.inf,
    executor: Executor | None = None,
) -> NewtonSolution:
    """Minimise the squared multi-class hinge plus standard normal weights, smoothed less and less.

    The smoothing ends where the gap, its own bias included, is at most ``tol`` times the value. Arguments as in
    `solve_boxes`.
    """
    prior, best, n_passes = SharedPrior(np.arange(len(start))), None, 0
    for smoothing in SMOOTHING:
        smoothed = [replace(block, smoothing=smoothing) for block in blocks]
        problem = _Problem(smoothed, prior, executor or Serial())
        found = _descend(problem, start if best is None else best.weights, SMOOTH_SHARE * tol, max_passes - n_passes)
        n_passes += found.n_passes
        if best is None or found.gap < best.gap:
            best = replace(found, smoothing=smoothing)
        if best.gap <= tol * abs(best.value) or n_passes >= max_passes:
            break
    assert best is not None
    status = Status.CONVERGED if best.gap <= tol * abs(best.value) else found.status
    if status is Status.CONVERGED and best.gap > tol * abs(best.value):
        status = Status.STALLED  # the smoothed problems were solved, and none is close enough
    return replace(best, n_passes=n_passes, status=status)


class _Problem:
    """The primal objective as a function of the weights, over all blocks."""

    def __init__(self, blocks: Sequence[Block], prior: SharedPrior, executor: Executor) -> None:
        self.blocks, self.prior, self.executor = blocks, prior, executor
        self.n_passes = 0

    def at(self, weights: Floats) -> _Point:
        self.n_passes += 1
        sums = self.executor.map_reduce(methodcaller("sums", weights), self.blocks)
        held = self.prior.precision(weights)
        gradient = held - sums.pulled
        penalty = 0.5 * float(np.vdot(held, weights))
        gap = 0.5 * float(np.vdot(gradient, self.prior.covariance(gradient)))
        return _Point(weights, penalty + sums.loss, sums, gradient, gap)

    def direction(self, at: _Point) -> Floats:
        """Return the Newton direction; by conjugate gradients where the classes' curvatures mix."""
        curvature = at.sums.curvature
        mixing = [block for block in self.blocks if isinstance(block, SimplexBlock)]
        if not mixing:
            return -self.prior.solve(curvature, at.gradient)
        factors = [cho_factor(block + np.eye(len(block))) for block in curvature]

        def precondition(v: Floats) -> Floats:
            return np.stack([cho_solve(factor, row) for factor, row in zip(factors, v, strict=True)])

        def product(v: Floats) -> Floats:
            self.n_passes += 1
            bent = self.executor.map_reduce(lambda block: block.product(at.weights, v), mixing)
            return self.prior.precision(v) + bent

        return _conjugate_gradients(product, -at.gradient, precondition)


@dataclass(frozen=True)
class _Point:
    weights: Floats
    objective: float  # smoothed, where it is
    sums: BlockSums
    gradient: Floats
    gap: float  # of the smoothed problem

    def solution(self, n_passes: int, status: Status) -> NewtonSolution:
        value = self.objective - self.sums.excess
        return NewtonSolution(self.weights, value, self.gap + self.sums.bias, n_passes, status)


def _descend(problem: _Problem, start: Floats, tol: float, max_passes: float) -> NewtonSolution:
    """Take Newton steps until the gap of the (smoothed) problem is small."""
    at = problem.at(start)
    for _ in range(MAX_STEPS):
        if at.gap <= tol * abs(at.objective):
            return at.solution(problem.n_passes, Status.CONVERGED)
        if problem.n_passes >= max_passes:
            break
        moved = _line_search(problem, at)
        if moved is None:
            return at.solution(problem.n_passes, Status.STALLED)
        at = moved
    return at.solution(problem.n_passes, Status.ITERATION_LIMIT)


def _line_search(problem: _Problem, at: _Point) -> _Point | None:
    """Halve the step until the objective falls enough; the first one nearly always does."""
    direction = problem.direction(at)
    slope = float(np.vdot(at.gradient, direction))
    length = 1.0
    for _ in range(MAX_HALVINGS):
        moved = problem.at(at.weights + length * direction)
        if moved.objective <= at.objective + SUFFICIENT * length * slope + ROUNDING * abs(at.objective):
            return moved if moved.gap < at.gap or moved.objective < at.objective else None
        length *= 0.5
    return None


def _conjugate_gradients(
    product: Callable[[Floats], Floats], right: Floats, precondition: Callable[[Floats], Floats]
) -> Floats:
    """Solve a symmetric system roughly: the closer to the solution the problem is, the less roughly."""
    x, residual = np.zeros_like(right), right
    scaled = precondition(residual)
    direction, inner = scaled, float(np.vdot(residual, scaled))
    first = inner
    share = min(0.1, float(np.sqrt(first)))
    for _ in range(10 * right.size):
        if inner <= share**2 * first:
            break
        along = product(direction)
        step = inner / float(np.vdot(direction, along))
        x, residual = x + step * direction, residual - step * along
        scaled = precondition(residual)
        before, inner = inner, float(np.vdot(residual, scaled))
        direction = scaled + (inner / before) * direction
    return x
