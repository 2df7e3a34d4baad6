"""Newton's method on the primal for squared losses, over blocks of samples.

Squared losses are piecewise quadratic in the weights. A few Newton steps (Mangasarian 2002; Keerthi and DeCoste, JMLR
2005) converge where coordinate ascent is slow: many samples, few features, large C. A step needs only sums over
samples, so threads, devices or other machines may process the blocks. Sums are taken in block order.

The certificate needs no extra work. The multipliers are the slopes of the losses at the scores, where the duality gap
is ``1/2 <g, covariance g>`` for the gradient g of the primal, because Fenchel's inequality is an equality.

Only the certificate needs all samples. The curvature may come from a subsample (Byrd, Chin, Neveitt and Nocedal 2011).
A step is then a pass with two products, and the subsample doubles when a step gains too little.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from operator import methodcaller
from typing import Any, Protocol, Self

import numpy as np
from scipy.sparse.linalg import LinearOperator, cg

from regbayes._types import Floats, Integers
from regbayes.engine import Executor, Serial, Status
from regbayes.engine.line_search import backtrack
from regbayes.kernels.arrays import DeviceArray, gather, namespace_of, to_device
from regbayes.margins.ascent import sum_by_group
from regbayes.margins.rows import BlockSums

MAX_STEPS = 100
EASED, EASED_TOL = tuple(4.0**-k for k in range(7, -1, -1)), 1e-3  # successive factors on C, and gap before the last
ROUNDING = 1e-14  # relative increase of the objective that rounding can explain
MIN_PROGRESS = 0.25  # share of the gap above which a step doubles the subsample


class Rows(Protocol):
    """Samples with targets: a block of `regbayes.margins.rows`, or all remote samples."""

    @property
    def mixes(self) -> bool:
        """Whether the second derivative couples outputs."""

    def sums(self, weights: Floats) -> BlockSums:
        """Evaluate the samples at given weights (outputs, d)."""

    def curvature(self, weights: Floats) -> Any:
        """Return the loss's second derivative, (outputs, d, outputs, d), or its diagonal blocks, (outputs, d, d)."""

    def product(self, weights: Floats, direction: Floats) -> Floats:
        """Return the loss's second derivative times a direction, (outputs, d), for coupled outputs."""

    def scale(self, factor: float) -> Self:
        """Return the samples with losses times a factor."""


@dataclass(frozen=True)
class SharedPrior:
    """Standard normal prior of the parts of ``w_t = own_t + rho common_group(t)``.

    The negative log-density of a group is ``1/2 sum_t |w_t|^2 - c/2 |sum_t w_t|^2``, ``c = rho^2 / (1 + rho^2 tasks)``.
    The Newton system has one block per task plus a term that depends on the sum of the tasks.
    """

    group: Integers  # (tasks,)
    sharing: float = 0.0  # rho

    @property
    def coupling(self) -> Floats:
        """``c`` of each group, shape (groups,)."""
        return self.sharing**2 / (1.0 + self.sharing**2 * np.bincount(self.group).astype(np.float64))

    def precision(self, weights: Floats) -> Floats:
        """Return the prior precision times weights."""
        return weights - self.shared(weights)[self.group] if self.sharing > 0.0 else weights

    def covariance(self, pulled: Floats) -> Floats:
        """Multiply summed multipliers by the prior covariance, which gives the implied weights."""
        if self.sharing == 0.0:
            return pulled
        return pulled + self.sharing**2 * sum_by_group(pulled, self.group)[self.group]

    def shared(self, weights: Floats) -> Floats:
        """Return the most likely common part of the weights of each group, (groups, d)."""
        return self.coupling[:, None] * sum_by_group(weights, self.group)

    def solve(self, curvature: DeviceArray, right: Floats) -> Floats:
        """Solve ``(precision + curvature) x = right`` on the curvature's device, by task or for the full matrix."""
        xp, (n_tasks, d), there = namespace_of(curvature), right.shape, to_device(right, curvature)
        kind = {"dtype": curvature.dtype, "device": curvature.device}
        if curvature.ndim == 4:
            whole = xp.reshape(curvature, (n_tasks * d, n_tasks * d)) + xp.eye(n_tasks * d, **kind)
            return gather(xp.linalg.solve(whole, xp.reshape(there, (-1, 1))))[0].reshape(right.shape)
        blocks = curvature + xp.eye(d, **kind)
        if self.sharing == 0.0:
            found = xp.linalg.solve(blocks, there[:, :, None])
        else:
            members = np.equal.outer(np.arange(len(self.coupling)), self.group) * 1.0  # (groups, tasks)
            add, coupling = to_device(members, curvature), to_device(self.coupling, curvature)[:, None, None]
            inverses = xp.linalg.inv(blocks)
            found = inverses @ there[:, :, None]
            by_sum = -coupling * xp.reshape(add @ xp.reshape(inverses, (n_tasks, -1)), (-1, d, d)) + xp.eye(d, **kind)
            shared = coupling * xp.linalg.solve(by_sum, (add @ found[:, :, 0])[:, :, None])
            found = found + inverses @ (add.T @ shared[:, :, 0])[:, :, None]
        return gather(found)[0].reshape(right.shape)


@dataclass(frozen=True)
class NewtonSolution:
    """Weights and their certificate for the smoothed loss."""

    weights: Floats  # (outputs, d)
    value: float  # value of the primal objective
    gap: float  # upper bound on the value minus its minimum
    pulled: Floats  # (outputs, d): sum_i phi_i x_i
    n_passes: int  # evaluations, and products with the curvature of all samples
    status: Status  # CONVERGED, ITERATION_LIMIT or STALLED
    excess: float  # increase of the value by smoothing
    bias: float  # increase of the gap by smoothing


Sample = Callable[[int], Sequence[Rows] | None]
"""Samples that the curvature comes from, more at every level; None where all are wanted."""


def minimize(
    rows: Sequence[Rows],
    prior: SharedPrior,
    start: Floats,
    *,
    tol: float,
    max_passes: float = np.inf,
    executor: Executor | None = None,
    sample: Sample | None = None,
) -> NewtonSolution:
    """Minimize squared losses plus the prior, to a duality gap of ``tol`` times the value.

    If all margins can be met and C is large, the solution is at a corner of many pieces of the loss, and each step gets
    little farther than the next piece. Solutions for smaller C are close to each other. If steps do not converge, they
    restart from the smallest of a sequence of C.

    Parameters
    ----------
    rows : sequence of Rows
    prior : SharedPrior
    start : (outputs, d)
    tol, max_passes : float
    executor : Executor, default=None
        Executes the blocks, serially by default.
    sample : callable, default=None
        Subsample for the curvature by level; by default all samples.
    """
    problem = _Problem(rows, prior, executor or Serial(), sample)
    first = found = _descend(problem, start, tol, max_passes)
    if found.status is not Status.ITERATION_LIMIT:
        return found
    for factor in EASED:
        if found.n_passes >= max_passes:
            return replace(first, n_passes=found.n_passes)
        eased = _Problem([part.scale(factor) for part in rows], prior, problem.executor, n_passes=found.n_passes)
        found = _descend(eased, found.weights, tol if factor == 1.0 else max(tol, EASED_TOL), max_passes)
    return found


@dataclass(frozen=True)
class _Point:
    weights: Floats
    objective: float
    sums: BlockSums
    gradient: Floats
    gap: float


@dataclass
class _Problem:
    """Primal objective as a function of the weights, over all blocks."""

    rows: Sequence[Rows]
    prior: SharedPrior
    executor: Executor
    sample: Sample | None = None
    level: int = 0
    n_passes: int = 0

    def __post_init__(self) -> None:
        self.sampled = None if self.sample is None else self.sample(0)

    def refine(self) -> bool:
        """Use more samples for the curvature; return whether there are more."""
        if self.sample is None or self.sampled is None:
            return False
        self.level += 1
        self.sampled = self.sample(self.level)
        return True

    def at(self, weights: Floats) -> _Point:
        self.n_passes += 1
        sums = self.executor.map_reduce(methodcaller("sums", weights), self.rows)
        held = self.prior.precision(weights)
        gradient = held - sums.pulled
        gap = 0.5 * float(np.vdot(gradient, self.prior.covariance(gradient)))
        return _Point(weights, 0.5 * float(np.vdot(held, weights)) + sums.loss, sums, gradient, gap)

    def direction(self, at: _Point) -> Floats:
        """Return the Newton direction, by conjugate gradients for many coupled classes."""
        rows = self.rows if self.sampled is None else self.sampled
        curvature = self.executor.map_reduce(methodcaller("curvature", at.weights), rows)
        if not rows[0].mixes or curvature.ndim == 4:
            return -self.prior.solve(curvature, at.gradient)
        shape = at.gradient.shape
        inverses = np.linalg.inv(gather(curvature)[0] + np.eye(shape[1]))

        def precondition(flat: Floats) -> Floats:
            return (inverses @ flat.reshape(*shape, 1)).ravel()

        def multiply(flat: Floats) -> Floats:
            self.n_passes += self.sampled is None
            v = flat.reshape(shape)
            bent = self.executor.map_reduce(methodcaller("product", at.weights, v), rows)
            return (self.prior.precision(v) + bent).ravel()

        size, right = at.gradient.size, -at.gradient.ravel()
        # Solve the system more accurately as the expected gain decreases.
        share = min(0.3, float(np.sqrt(right @ precondition(right) / max(at.objective, 1e-300))))
        # SciPy would compute a product to infer the dtype.
        system, inverse = (LinearOperator((size, size), f, dtype=np.float64) for f in (multiply, precondition))
        found, _ = cg(system, right, rtol=share, M=inverse)
        return found.reshape(shape)

    def step(self, at: _Point) -> _Point | None:
        """Return a better point in the Newton direction, or None."""
        direction = self.direction(at)
        slope, noise = float(np.vdot(at.gradient, direction)), ROUNDING * abs(at.objective)
        move = lambda length: self.at(at.weights + length * direction)  # noqa: E731
        found = backtrack(move, at.objective, slope, max_trials=30, noise=noise)
        if found is None or not (found[1].gap < at.gap or found[1].objective < at.objective):
            return None
        return found[1]


def _descend(problem: _Problem, start: Floats, tol: float, max_passes: float) -> NewtonSolution:
    """Take Newton steps until the gap is small."""
    at, status = problem.at(start), Status.ITERATION_LIMIT
    for _ in range(MAX_STEPS):
        if at.gap <= tol * abs(at.objective):
            status = Status.CONVERGED
        if status is Status.CONVERGED or problem.n_passes >= max_passes:
            break
        moved = problem.step(at)
        if moved is None and problem.refine():
            continue
        if moved is None:
            status = Status.STALLED
            break
        if moved.gap > MIN_PROGRESS * at.gap:
            problem.refine()
        at = moved
    sums, n_passes = at.sums, problem.n_passes
    return NewtonSolution(at.weights, at.objective, at.gap, sums.pulled, n_passes, status, sums.excess, sums.bias)
