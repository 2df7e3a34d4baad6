"""The dual solver: maximise ``-A(phi) - g*(-phi)``, docs/math.md eq. (2).

Written in ``u = -phi``, stacked over the elementary regularizers so that a sum needs no conjugate of its own, the
dual is a smooth convex function of ``u`` plus conjugates known by their proximal maps. A proximal Newton method
minimises it: the quadratic model is solved by `composite`, a line search makes every step a descent step, and the
duality gap is the stopping rule. An iteration takes one covariance of the features, a pass over them for each point
that the line search tries, and the quadratic model, whose linear systems cost the cube of the number of multipliers.
Where these are many and the posterior is Gaussian, coordinate ascent does the work instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from regbayes._types import Flags, Floats
from regbayes.engine import Status
from regbayes.framework.composite import (
    Piece,
    Stack,
    block_scale,
    clip_to_domain,
    conjugate_of,
    minimize_composite,
    prox_conjugate,
)
from regbayes.framework.coordinate_ascent import TaskLayout
from regbayes.framework.dual_forms import BoxDual
from regbayes.framework.log_partition import GaussianAffine, LogPartition
from regbayes.framework.regularizers.base import TINY_STEP
from regbayes.framework.solvers import solve_tasks

ARMIJO = 1e-4
MAX_HALVINGS = 50
EPSILON = 8 * float(np.finfo(np.float64).eps)
UNREACHABLE = 1e15  # an expectation that no hard constraint admits
COORDINATE_MIN_SIZE = 200  # multipliers above which a Gaussian's box dual is solved by coordinates
NEWTON_MAX_SIZE = 1000  # multipliers above which no Newton step follows them
COORDINATE_TOL = 0.1  # of the tolerance: the two gaps are relative to slightly different things
COORDINATE_EPOCHS = 20_000.0
MIN_DAMPING = 1e-13  # in variances: a feature that the tilt has made constant keeps its unit
ELASTIC_PATH = 10.0 ** -np.arange(1, 8)  # softness, in variances of the features
SETTLED = 0.6  # of the violation one step earlier: where there need be none, a tenth of the softness leaves a tenth


@dataclass(frozen=True)
class DualSolution:
    """Where the dual solver stopped, with its certificate."""

    stacked: Floats  # (M,): u, one entry per elementary regularizer's coordinate; a warm start for the next solve
    multipliers: Floats  # (m,): phi, the tilt
    expectation: Floats  # (m,): E_q[psi]
    primal: float
    dual: float
    gap: float
    violation: float  # how far E_q[psi] lies outside the regularizer's domain, in standard deviations
    status: Status  # CONVERGED, STALLED or ITERATION_LIMIT
    n_iter: int


@dataclass(frozen=True)
class _Point:
    """A dual iterate and everything evaluated at it."""

    u: Floats
    phi: Floats
    log_partition: float
    expectation: Floats
    objective: float


class _Dual:
    """The stacked dual: ``A(-L'u) + g*(u) + 1/2 sum_i elastic_i u_i^2``.

    The elastic term is zero except when feasibility is in question: it lets each hard constraint give way at a
    quadratic price (its conjugate in the primal), so that a solution always exists.
    """

    def __init__(self, partition: LogPartition, stack: Stack, elastic: float = 0.0) -> None:
        self.partition = partition
        self.stack = stack
        self.pieces, self.index = stack.pieces, stack.index
        self.unit = units(partition)
        self.elastic = elastic * self.hard() * self.unit[self.index] ** 2

    def hard(self) -> Flags:
        """Which stacked coordinates belong to a regularizer that is infinite somewhere."""
        hard = np.zeros(len(self.index), dtype=np.bool_)
        for p in self.pieces:
            far = UNREACHABLE * (1 + self.unit[self.index[p.start : p.stop]])
            hard[p.start : p.stop] = np.isinf(p.regularizer.value(far)) or np.isinf(p.regularizer.value(-far))
        return hard

    def tilt(self, u: Floats) -> Floats:
        return -self.stack.add_up(u)

    def at(self, u: Floats, conjugate: float | None = None) -> _Point:
        phi = self.tilt(u)
        value, expectation = self.partition.evaluate(phi)
        conjugate = conjugate_of(self.pieces, u) if conjugate is None else conjugate
        objective = value + conjugate + 0.5 * float(self.elastic @ u**2)
        return _Point(u, phi, value, expectation, objective)

    def enter_domain(self, u: Floats) -> Floats:
        """Return u where the conjugates are finite, and otherwise a point well inside their domain near u."""
        if np.isfinite(conjugate_of(self.pieces, u)):
            return u
        return prox_conjugate(self.pieces, u, block_scale(self.pieces, self.unit[self.index] ** 2) ** 2)

    def certificate(self, point: _Point) -> tuple[float, float]:
        """Fenchel-Young gap, term by term, and the violation of the domain in units of standard deviations.

        A hard constraint is met only up to rounding; its gap is measured at the nearest point of the domain, and the
        distance to that point is the violation.
        """
        x = point.expectation[self.index] - self.elastic * point.u
        nearest = nearest_in_domain(self.pieces, x, self.unit[self.index])
        gap = 0.0
        for p in self.pieces:
            s = slice(p.start, p.stop)
            value, conjugate = p.regularizer.value(nearest[s]), p.regularizer.conjugate(point.u[s])
            gap += abs(value + conjugate - float(point.u[s] @ x[s]))
        violation = float(np.max(np.abs(nearest - x) / self.unit[self.index], initial=0.0))
        return gap, violation

    def rounding(self, point: _Point) -> tuple[float, float]:
        """How far off rounding alone may put the gap and the violation: features far from zero have few digits left."""
        x = np.abs(point.expectation[self.index])
        return EPSILON * float(np.abs(point.u) @ x), EPSILON * float(np.max(x / self.unit[self.index], initial=0.0))


def units(partition: LogPartition) -> Floats:
    """Standard deviations of the features, with a floor for features that do not vary."""
    spread = partition.spread
    floor = np.maximum(1e-12 * np.abs(partition.mean), 1e-300)
    return np.where(spread > floor, spread, np.where(partition.mean != 0, np.abs(partition.mean), 1.0))


def nearest_in_domain(pieces: Sequence[Piece], x: Floats, unit: Floats) -> Floats:
    """Each piece's nearest point of its domain; x itself where it is in the domain."""
    nearest = x.copy()
    for p in pieces:
        s = slice(p.start, p.stop)
        if np.isinf(p.regularizer.value(x[s])):
            step = TINY_STEP * float(np.mean(unit[s])) ** 2
            nearest[s] = p.regularizer.prox(x[s], step)
    return nearest


def solve_dual(
    partition: LogPartition,
    stack: Stack,
    *,
    tol: float = 1e-9,
    max_iter: int = 200,
    warm_start: Floats | None = None,
    elastic: float = 0.0,
) -> DualSolution:
    """Maximise the dual and return the solution with its certificate.

    Parameters
    ----------
    partition : LogPartition
        The posterior as its features see it.
    stack : Stack
        The regularizer's elementary parts.
    tol : float, default=1e-9
        Stop when the gap is below ``tol (1 + |dual|)`` and the violation below tol standard deviations.
    max_iter : int, default=200
        Newton steps at most.
    warm_start : array of shape (M,), default=None
        The ``stacked`` of an earlier solution of a problem with the same regularizer structure.
    elastic : float, default=0.0
        Price of the elastic term; 0 is the problem itself.
    """
    if not tol > 0:
        raise ValueError(f"tol must be positive, got {tol!r}")
    if max_iter < 0:
        raise ValueError(f"max_iter must be at least 0, got {max_iter!r}")
    problem = _Dual(partition, stack, elastic)
    start = np.zeros(len(problem.index)) if warm_start is None else np.asarray(warm_start, dtype=np.float64)
    if start.shape != problem.index.shape:
        raise ValueError(f"warm_start must have shape {problem.index.shape}, got {start.shape}")
    start = problem.enter_domain(start)
    use_newton = True
    if len(start) > COORDINATE_MIN_SIZE and (found := _by_coordinates(problem, start, tol)) is not None:
        start = found
        # Newton steps would take too long, or run after multipliers that have no limit: what coordinates reach is all.
        use_newton = len(start) <= NEWTON_MAX_SIZE and not np.any(problem.hard())
    point = problem.at(start)
    damping = 1e-10
    violations: list[float] = []
    objectives: list[float] = []
    for n_iter in range(max_iter + 1):
        gap, violation = problem.certificate(point)
        gap_rounding, rounding = problem.rounding(point)
        violations.append(violation)
        objectives.append(point.objective)
        if gap <= tol * (1 + abs(point.objective)) + gap_rounding and violation <= tol + rounding:
            status = Status.CONVERGED
            break
        if not use_newton or (not elastic and _runs_away(violations)) or _stalls(objectives, gap):
            status = Status.STALLED
            break
        if n_iter == max_iter:
            status = Status.ITERATION_LIMIT
            break
        error = min(1e-3, max(violation, gap / (1 + abs(point.objective))))
        accepted, damping = _newton_step(problem, point, damping, error)
        if accepted is None:
            status = Status.STALLED
            break
        point = accepted
    return _solution(point, gap, violation, status, n_iter)


def _by_coordinates(problem: _Dual, start: Floats, tol: float) -> Floats | None:
    """Solve a Gaussian's dual over a box one multiplier at a time; None where it is not of that kind.

    A Newton step costs the cube of the number of multipliers, a pass over coordinates only their number: with
    thousands of margins (a support vector machine is one) this is the only way.
    """
    form = problem.stack.regularizer.dual_form(problem.stack.n_features)
    if not isinstance(problem.partition, GaussianAffine) or not isinstance(form, BoxDual):
        return None
    tilted = replace(form, linear=form.linear - problem.partition.mean, ridge=form.ridge + problem.elastic)
    n = len(tilted.linear)
    one_task = TaskLayout(np.arange(n), np.zeros(n, dtype=np.int64), np.zeros(1, dtype=np.int64))
    solution = solve_tasks(
        problem.partition.factor,
        tilted,
        one_task,
        warm_start=start,
        tol=COORDINATE_TOL * tol,
        max_epochs=COORDINATE_EPOCHS,
    )
    return solution.dual


def _runs_away(violations: list[float]) -> bool:
    """Whether multipliers grow without bringing the expectations any closer to the domain: a dual without bound."""
    return len(violations) > 25 and violations[-1] > 1e-6 and violations[-1] > 0.5 * violations[-16]


def _stalls(objectives: list[float], gap: float) -> bool:
    """Whether the last steps did so little for the gap that rounding must be all that is left of them."""
    return len(objectives) > 10 and objectives[-10] - objectives[-1] < 1e-3 * gap < np.inf


def _newton_step(problem: _Dual, point: _Point, damping: float, error: float) -> tuple[_Point | None, float]:
    """One proximal Newton step with backtracking; None when no step descends any further."""
    index = problem.index
    covariance = problem.partition.covariance(point.phi)
    hessian = covariance[np.ix_(index, index)]  # a copy
    floor = max(damping, MIN_DAMPING) * problem.unit[index] ** 2
    hessian[np.diag_indices_from(hessian)] += floor + problem.elastic
    gradient = problem.elastic * point.u - point.expectation[index]
    target, _ = minimize_composite(
        hessian, gradient - hessian @ point.u, problem.pieces, point.u, tol=max(1e-14, 1e-4 * error**2)
    )
    direction = target - point.u
    here, there = conjugate_of(problem.pieces, point.u), conjugate_of(problem.pieces, target)
    predicted = float(gradient @ direction) + there - here
    noise = 4e-15 * (1 + abs(point.objective)) + 2 * problem.rounding(point)[0]
    if predicted > -noise:
        # The objective is too coarse to tell by how much it would fall; the certificate is not.
        trial = problem.at(target, there)
        if max(problem.certificate(trial)) < 0.9 * max(problem.certificate(point)):
            return trial, damping / 10
        return (None, damping) if damping > 1e-2 else (point, max(damping * 100, 1e-8))
    length = 1.0
    for _ in range(MAX_HALVINGS):
        trial = problem.at(clip_to_domain(problem.pieces, point.u + length * direction))
        if trial.objective <= point.objective + ARMIJO * length * predicted + noise:
            return trial, damping / 10 if length == 1.0 else min(damping * 10, 1.0)
        length *= 0.5
    return None, damping


def _solution(point: _Point, gap: float, violation: float, status: Status, n_iter: int) -> DualSolution:
    dual = -point.objective
    return DualSolution(
        stacked=point.u,
        multipliers=point.phi,
        expectation=point.expectation,
        primal=dual + gap,
        dual=dual,
        gap=gap,
        violation=violation,
        status=status,
        n_iter=n_iter,
    )


def minimal_violation(partition: LogPartition, stack: Stack, max_iter: int = 60) -> Floats | None:
    """How far each stacked constraint must give way, in the features' units; None when every one can be met.

    Solves the problem with elastic constraints at ever higher prices, docs/math.md eq. (10). Where the constraints
    can be met, the violation shrinks in proportion to the price; where they cannot, it settles at the smallest
    there is. Small steps keep each solution within reach of the next.
    """
    unit = units(partition)
    violation: Floats | None = None
    if not np.any(_Dual(partition, stack).hard()):
        return None
    size, settled, warm = np.inf, False, None
    for softness in ELASTIC_PATH:
        solution = solve_dual(partition, stack, tol=1e-6, max_iter=max_iter, warm_start=warm, elastic=softness)
        if solution.status is not Status.CONVERGED:
            break
        problem = _Dual(partition, stack, softness)
        violation, warm = problem.elastic * solution.stacked, solution.stacked
        before, size = size, float(np.max(np.abs(violation) / unit[problem.index]))
        settled = size > SETTLED * before
        if size > 0.999 * before:  # what is left to settle is a tenth of a thousandth
            break
    return violation if settled and size > 1e-6 else None


def with_log_mass(solution: DualSolution, log_mass: float) -> DualSolution:
    """Account for a restriction of the support to a set of that log-probability."""
    return replace(solution, primal=solution.primal - log_mass, dual=solution.dual - log_mass)
