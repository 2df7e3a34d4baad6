"""The dual solver: maximise ``-A(phi) - g*(-phi)``, docs/math.md eq. (2).

Written in ``u = -phi``, stacked over the elementary regularizers so that a sum needs no conjugate of its own, the
dual is a smooth convex function of ``u`` plus conjugates known as a box or by their proximal maps. A proximal Newton
method minimises it: the quadratic model is solved by `box_quadratic` or `composite`, a line search makes every step a
descent step, and the duality gap is the stopping rule. An iteration takes one covariance of the features, a pass over
them for each point that the line search tries, and the quadratic model.

A single multiplier has a method of its own (`_solve_single`). Where Newton's method gives up there are three more ways:
weights that span many nats are approached from flatter ones, steep prices from milder ones, and equalities that are
nearly combinations of others are replaced by what is left of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import scipy.linalg
from scipy.linalg.lapack import dpotrf

from regbayes._types import Flags, Floats
from regbayes.engine import Status
from regbayes.framework.box_quadratic import Curvature, minimize_box_quadratic
from regbayes.framework.composite import Piece, Stack, block_scale, minimize_composite, prox_conjugate
from regbayes.framework.log_partition import MOST_FUSED, GaussianAffine, LogPartition, WeightedAtoms
from regbayes.framework.regularizers.base import TINY_STEP, BoxDual

ARMIJO = 1e-4
MAX_HALVINGS = 60
EPSILON = 8 * float(np.finfo(np.float64).eps)
MOST_VIOLATION = 1e-4  # standard deviations: however coarse the tolerance, a hard constraint is met as well as this
MOST_ROUNDING = 1e-8  # of a gap or a violation that rounding may account for
MIN_DAMPING = 1e-13  # in variances: a feature that the tilt has made constant keeps its unit
DIVERGING_NATS = 60.0  # a tilt that spans this many more than the weights did is looked at: is there a limit?
MIN_STEPS = 4  # before that look
FALLS_QUICKLY = 0.2  # share of an error that a step may leave for its covariance to be corrected, not taken anew
LAST_STEP = 1e-5  # error from which one more step, whose error is about the square, should be the last
SLOW_STEPS = 12  # after which equalities that are nearly combinations of others are looked for
SLOW_LOOK = 20  # steps after which a violation that is left is looked at in any case
FREE_NATS = 16.0  # a first step of a single multiplier up to which no care is taken
MOST_STEPS_OF_ONE = 200
TEMPERED_NATS = 30.0  # log-weights that span less than this are not flattened
MILDEST, MILDER_STEP, LEAST_STEP = 1e-8, 10.0, 1.05  # prices in units of those asked for, and the steps on the way back
STAGE_TOLERANCE = 1e-8  # of stages on that way: what the next one is extrapolated from
LEAST_NATS = 0.01
FIRST_NATS, MOST_STAGES = 5.0, 100  # of the way back from even weights: its first stage, and how many at most
COLLINEAR = 1e-3  # standard deviation of a feature given others, in its own: below it they are taken apart
MOST_GROUPED = 1000  # multipliers up to which simplexes are for the interior point, whose systems are dense
HIDDEN = 1e-4  # the same, from which on a solution is not taken at its word
REDUNDANT = 1e-13  # below it nothing is left to take apart


@dataclass(frozen=True)
class DualSolution:
    """Where the dual solver stopped, with its certificate."""

    stacked: Floats  # (M,): u, one entry per elementary regularizer's coordinate; a warm start for the next solve
    multipliers: Floats  # (m,): phi, the tilt
    expectation: Floats  # (m,): E_q[psi]
    log_partition: float  # A(phi)
    primal: float
    dual: float
    gap: float
    violation: float  # how far E_q[psi] lies outside the regularizer's domain, in standard deviations
    status: Status  # CONVERGED, STALLED, ITERATION_LIMIT, or DIVERGED: multipliers that grow without limit
    n_iter: int
    log_weights: Floats | None = None  # (supported atoms,): of the tilt, where the multipliers alone would lose digits


@dataclass(frozen=True)
class _Point:
    """A dual iterate and everything evaluated at it."""

    u: Floats
    phi: Floats
    log_partition: float
    expectation: Floats
    objective: float


class _Certificate(NamedTuple):
    gap: float
    violation: float


class _Held(NamedTuple):
    """A covariance, and where it belongs."""

    covariance: Floats
    phi: Floats
    expectation: Floats
    error: float


class _Dual:
    """The stacked dual: ``A(-L'u) + g*(u)``."""

    def __init__(self, partition: LogPartition, stack: Stack, tol: float) -> None:
        self.partition, self.stack, self.index = partition, stack, stack.index
        # Whether every feature is seen once, in order: then nothing has to be picked.
        self.whole = len(stack) == stack.n_features and bool((stack.index == np.arange(len(stack))).all())
        self.unit = partition.unit if self.whole else partition.unit[stack.index]
        self.tol, self.most_violation = tol, min(tol, MOST_VIOLATION)
        # Whether the dual is smooth everywhere: a Newton step is then one linear system.
        self.smooth = stack.box is not None and stack.box.is_smooth
        self.step = np.empty(0) if stack.box is not None else block_scale(stack.pieces, 1 / self.unit**2) ** 2
        self.along = self._along()
        self.constant = self._constants()
        self._held: _Held | None = None
        self._rounding_at: _Point | None = None  # where the last rounding belongs
        self._rounding = _Certificate(0.0, 0.0)
        if isinstance(partition, WeightedAtoms):
            self.magnitude = np.maximum(np.abs(partition.lowest), np.abs(partition.highest))
            self.most_units = float(np.max((partition.highest - partition.lowest) / partition.unit))

    def _constants(self) -> tuple[Flags, Floats] | None:
        """Features that no tilt moves, whose multipliers are known: what their regularizers say of that one value."""
        constant = (self.partition.highest == self.partition.lowest)[self.index]
        if self.stack.box is None or not np.any(constant):
            return None
        known = self.stack.box.derivatives(self.partition.lowest[self.index])
        return constant & np.isfinite(known), np.where(constant & np.isfinite(known), known, 0.0)

    def _along(self) -> Floats:
        """Units in which the way to a domain is measured: a constant takes that of what varies in its block.

        Its own is its size, beside which a way that other features have to go may be nothing.
        """
        constant = (self.partition.highest == self.partition.lowest)[self.index]
        if self.stack.box is not None or not np.any(constant):
            return self.unit
        along = self.unit.copy()
        for p in self.stack.pieces:
            for start in range(p.start, p.stop, p.block_size):
                block = slice(start, start + p.block_size)
                if np.any(constant[block]) and not np.all(constant[block]):
                    largest = np.max(self.unit[block][~constant[block]])
                    along[block] = np.where(constant[block], largest, self.unit[block])
        return along

    def pinned(self, box: BoxDual) -> BoxDual:
        """The box with the multipliers of constants fixed."""
        if self.constant is None:
            return box
        at, value = self.constant
        return replace(box, lower=np.where(at, value, box.lower), upper=np.where(at, value, box.upper))

    def at(self, u: Floats, last: bool = False) -> _Point:
        phi = -u if self.whole else -self.stack.add_up(u)
        value, expectation = self.partition.evaluate(phi, last)
        return _Point(u, phi, value, expectation, value + self.stack.conjugate(u))

    def enter_domain(self, u: Floats) -> Floats:
        """Return u where the conjugates are finite, and otherwise a point well inside their domain near u."""
        if np.isfinite(self.stack.conjugate(u)):
            return u
        if self.stack.box is not None:
            return self.stack.clip(u)
        inside = prox_conjugate(self.stack.pieces, u, block_scale(self.stack.pieces, self.unit**2) ** 2)
        return inside if np.isfinite(self.stack.conjugate(inside)) else self.stack.start()

    def seen(self, point: _Point) -> Floats:
        """The expectations as the stacked regularizers see them, shape (M,)."""
        return point.expectation if self.whole else point.expectation[self.index]

    def covariance(self, point: _Point, error: float) -> Floats:
        """The Hessian of A at a point, or a good enough one.

        Many atoms with many features: a covariance costs several evaluations. While errors fall quickly, the last one
        is corrected by what the expectations did since (Broyden, Fletcher, Goldfarb and Shanno).
        """
        partition, held = self.partition, self._held
        if not isinstance(partition, WeightedAtoms) or len(partition.mean) <= MOST_FUSED:
            return partition.covariance(point.phi)
        if held is None or error > FALLS_QUICKLY * held.error:
            found = partition.covariance(point.phi)
        else:
            moved, gained = point.phi - held.phi, point.expectation - held.expectation
            curved, along = held.covariance @ moved, float(moved @ gained)
            if not along > 0:
                return partition.covariance(point.phi)
            found = held.covariance - np.outer(curved, curved / (moved @ curved)) + np.outer(gained, gained / along)
        self._held = _Held(found, point.phi, point.expectation, error)
        return found

    def certificate(self, point: _Point) -> _Certificate:
        """Return a bound on the Fenchel-Young gap, and the violation in standard deviations; docs/math.md eq. (7)."""
        x = self.seen(point)
        if self.stack.box is not None:
            return _box_certificate(self.stack.box, point.u, x, self.unit, self.most_violation)
        gap, violation = 0.0, 0.0
        for p in self.stack.pieces:
            s = slice(p.start, p.stop)
            near = nearest_in_domain(p.regularizer, x[s], self.unit[s])
            own, off = self._charged(p, near, x[s], point.u[s])
            # A steep price times the last digit of x is a gap that nothing closes: the edge is taken, as for a box.
            edge = np.asarray(p.regularizer.prox(x[s] + self.step[s] * point.u[s], self.step[s]), dtype=np.float64)
            if np.all(np.abs(edge - x[s]) <= self.most_violation * self.along[s]):
                at_edge, off_edge = self._charged(p, edge, x[s], point.u[s])
                own, off = (at_edge, off_edge) if at_edge < own else (own, off)
            gap, violation = gap + own, max(violation, off)
        return _Certificate(gap, violation)

    def _charged(self, p: Piece, y: Floats, x: Floats, u: Floats) -> _Certificate:
        """The gap of one part at y instead of x, with what its multipliers ask for the way; and that way."""
        away = np.abs(y - x)
        gap = abs(p.regularizer.fenchel_young(y, u))
        if not np.any(away):
            return _Certificate(gap, 0.0)
        off = _in_deviations(away, self.along[p.start : p.stop], p.block_size)
        return _Certificate(gap + float(np.abs(u) @ away + 0.5 * np.sum(off**2)), float(np.max(off)))

    def rounding(self, point: _Point) -> _Certificate:
        """How far off rounding alone may put the gap and the violation: features far from zero have few digits left.

        Weights of a tilt over many nats are known to fewer digits too; more than a hair is never put down to that.
        """
        if self._rounding_at is point:
            return self._rounding
        x = np.abs(self.seen(point))
        gap, violation = float(np.abs(point.u) @ x) + abs(point.log_partition), float((x / self.unit).max())
        if isinstance(self.partition, WeightedAtoms):
            nats = float(np.abs(point.phi) @ self.magnitude)
            gap, violation = gap + nats, violation + nats * self.most_units
        elif isinstance(self.partition, GaussianAffine):
            # Multipliers of more features than there are dimensions cancel each other in the sum over features.
            size = np.abs(self.partition.factor)
            added = (size @ (size.T @ np.abs(point.phi)))[self.index]
            gap, violation = gap + float(np.abs(point.u) @ added), violation + float(np.max(added / self.unit))
        self._rounding_at, self._rounding = (
            point,
            _Certificate(
                min(EPSILON * gap, MOST_ROUNDING * (1 + abs(point.objective))), min(EPSILON * violation, MOST_ROUNDING)
            ),
        )
        return self._rounding

    def converged(self, point: _Point, found: _Certificate) -> bool:
        if not np.isfinite(point.objective):
            return False
        slack = self.rounding(point)
        close = found.gap <= self.tol * (1 + abs(point.objective)) + slack.gap
        return close and found.violation <= self.most_violation + slack.violation


def _box_certificate(box: BoxDual, u: Floats, x: Floats, unit: Floats, most: float) -> _Certificate:
    """The certificate of a box, coordinate by coordinate, each at the point near x that bounds its gap best.

    A hard constraint is met up to rounding, and so is a steep one that is met exactly: its price times the last digit
    of x would be a gap that nothing can close. Both are taken at the edge, and the way there is charged for.
    """
    if box.is_linear:  # equalities
        away = np.abs(x - box.linear)
        off = away / unit
        return _Certificate(float(np.abs(u) @ away + 0.5 * (off @ off)), float(off.max()))
    low, high = box.domain()
    inside = np.clip(x, low, high)
    edge = np.where(u > 0, box.linear + box.absolute, box.linear - box.absolute)
    to_edge = np.where((u != 0) & (np.abs(edge - x) <= most * unit), edge, inside)
    at_inside, at_edge = (_fenchel_young(box, u, y) + np.abs(u) * np.abs(y - x) for y in (inside, to_edge))
    off = np.where(at_edge < at_inside, np.abs(to_edge - x), np.abs(inside - x)) / unit
    outside = np.abs(inside - x) / unit
    gap = float(np.sum(np.minimum(at_inside, at_edge) + 0.5 * outside**2))
    return _Certificate(gap, float(np.max(off, initial=0.0)))


def _fenchel_young(box: BoxDual, u: Floats, x: Floats) -> Floats:
    """``g_i(x_i) + g_i*(u_i) - u_i x_i`` of each coordinate, for x in the domain."""
    away = x - box.linear
    excess = np.maximum(np.abs(away) - box.absolute, 0.0)
    side = np.where(away > 0, box.upper, -box.lower)  # how steep g may be on this side
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        best = np.where(excess > 0, np.minimum(excess / box.ridge, side), 0.0)
        value = np.where(np.isfinite(best), best * excess - 0.5 * box.ridge * best**2, 0.0)
    return np.abs(value - u * away + box.absolute * np.abs(u) + 0.5 * box.ridge * u**2)


def _in_deviations(away: Floats, unit: Floats, block: int) -> Floats:
    """A move of each block in standard deviations along it: features of one ball may have different units."""
    rows, units = away.reshape(-1, block), unit.reshape(-1, block)
    longest = np.max(rows, axis=1, keepdims=True)
    rows = np.divide(rows, longest, out=np.zeros_like(rows), where=longest > 0)
    largest = np.max(units, axis=1, keepdims=True)
    along = np.sqrt(np.sum((rows * (units / largest)) ** 2, axis=1)) * largest[:, 0]
    return np.divide(np.sum(rows**2, axis=1) * longest[:, 0], along, out=np.zeros(len(rows)), where=along > 0)


def nearest_in_domain(regularizer: object, x: Floats, unit: Floats) -> Floats:
    """A regularizer's nearest point of its domain; x itself where it is in the domain."""
    if np.isfinite(regularizer.value(x)):  # type: ignore[attr-defined]
        return x
    step = TINY_STEP * float(np.mean(unit)) ** 2
    return np.asarray(regularizer.prox(x, step), dtype=np.float64)  # type: ignore[attr-defined]


def solve_dual(
    partition: LogPartition,
    stack: Stack,
    *,
    tol: float = 1e-9,
    max_iter: int = 200,
    warm_start: Floats | None = None,
    watch: bool = True,
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
    watch : bool, default=True
        Whether to stop, DIVERGED, once multipliers have grown so far that they may have no limit.
    """
    problem = _Dual(partition, stack, tol)
    start = problem.enter_domain(stack.start() if warm_start is None else warm_start)
    box = stack.box
    if len(stack) == 1 and box is not None and isinstance(partition, WeightedAtoms) and max_iter > 0:
        found = _solve_single(problem, partition, box, start, max_iter)
        if found is not None:
            return found
    if problem.constant is not None and max_iter > 0:
        start = np.where(problem.constant[0], problem.constant[1], start)
    found = _newton(problem, start, max_iter, watch)
    if found.status is Status.CONVERGED and found.n_iter > 0 and _is_collinear(problem):
        # What is left of a feature given others may be less than the tolerance, and its multiplier large.
        assert isinstance(partition, WeightedAtoms)
        other = _taken_apart(problem, partition, max_iter, found)
        return other if other is not None and other.status is Status.CONVERGED else found
    if found.status is Status.STALLED and isinstance(partition, WeightedAtoms):
        for helped in (_taken_apart, _from_milder_prices, _from_flatter_weights):
            other = helped(problem, partition, max_iter, found)
            if other is not None and other.status is Status.CONVERGED:
                return other
    return found


def _newton(problem: _Dual, start: Floats, max_iter: int, watch: bool) -> DualSolution:
    point = problem.at(start)
    damping = 1e-10
    certificates: list[_Certificate] = []
    objectives: list[float] = []
    for n_iter in range(max_iter + 1):
        found = problem.certificate(point)
        certificates.append(found)
        objectives.append(point.objective)
        if problem.converged(point, found):
            status = Status.CONVERGED
            break
        if _runs_away(certificates) or _stalls(objectives, certificates):
            status = Status.STALLED
            break
        if n_iter == SLOW_STEPS and _is_collinear(problem):
            status = Status.STALLED
            break
        if watch and n_iter >= MIN_STEPS and _diverges(problem, point, found.violation, n_iter):
            status = Status.DIVERGED
            break
        if n_iter == max_iter:
            status = Status.ITERATION_LIMIT
            break
        error = min(1e-3, max(found.violation, found.gap / (1 + abs(point.objective))))
        accepted, damping = _newton_step(problem, point, damping, error)
        if accepted is None:
            status = Status.STALLED
            break
        point = accepted
    return _solution(point, found, status, n_iter)


def _diverges(problem: _Dual, point: _Point, violation: float, n_iter: int) -> bool:
    """Whether the tilt spans so many nats that its multipliers may have no limit."""
    partition = problem.partition
    if not isinstance(partition, WeightedAtoms):
        return violation > MOST_VIOLATION  # one step solves a Gaussian with equalities or bounds that can be met
    if n_iter == SLOW_LOOK and violation > MOST_VIOLATION:
        return True
    reach = np.abs(point.phi) @ (partition.highest - partition.lowest)
    if reach < DIVERGING_NATS:
        return False
    most = DIVERGING_NATS + float(np.ptp(partition.log_weights))
    return bool(reach > most and partition.span(point.phi) > most)


def _runs_away(certificates: list[_Certificate]) -> bool:
    """Whether multipliers grow without bringing the expectations any closer to the domain: a dual without bound."""
    now = certificates[-1].violation
    return len(certificates) > 25 and now > 1e-6 and now > 0.5 * certificates[-16].violation


def _stalls(objectives: list[float], certificates: list[_Certificate]) -> bool:
    """Whether the last steps did so little for the objective and the gap that rounding must be all that is left."""
    if len(objectives) <= 10:
        return False
    gap, before = certificates[-1].gap, min(found.gap for found in certificates[:-9])
    return objectives[-10] - objectives[-1] < 1e-3 * gap < np.inf and gap > 0.5 * before


def _model_minimum(problem: _Dual, point: _Point, damping: float, error: float) -> Floats:
    """Minimise the quadratic model of A plus the conjugates."""
    index, partition, stack = problem.index, problem.partition, problem.stack
    floor = max(damping, MIN_DAMPING) * problem.unit**2
    x, box = problem.seen(point), stack.model(point.u)
    if box is not None and isinstance(partition, GaussianAffine) and 2 * partition.factor.shape[1] < len(index):
        curvature = Curvature(floor, factor=partition.factor[index])
        return minimize_box_quadratic(curvature, box.linear - x - curvature @ point.u, problem.pinned(box), point.u)
    if box is not None and problem.smooth and problem.constant is None:
        slope = box.linear + box.ridge * point.u - x
        covariance = problem.covariance(point, float(np.max(np.abs(slope) / problem.unit)))
        hessian = covariance if problem.whole else covariance[np.ix_(index, index)]
        return point.u - Curvature(floor + box.ridge, matrix=hessian).solver(0.0)(slope)
    covariance = partition.covariance(point.phi)
    hessian = covariance if problem.whole else covariance[np.ix_(index, index)]
    if box is not None:
        curvature = Curvature(floor, matrix=hessian)
        return minimize_box_quadratic(curvature, box.linear - x - curvature @ point.u, problem.pinned(box), point.u)
    grouped = stack.grouped_model(point.u) if len(index) <= MOST_GROUPED else None
    if grouped is not None:
        curvature = Curvature(floor, matrix=hessian + grouped.coupling)
        linear = grouped.box.linear - x - hessian @ point.u - floor * point.u
        return stack.clip(minimize_box_quadratic(curvature, linear, grouped.box, point.u, grouped.groups))
    hessian = hessian + np.diag(floor)
    linear = -x - hessian @ point.u
    return minimize_composite(hessian, linear, stack.pieces, point.u, tol=max(1e-14, 1e-4 * error**2))[0]


def _newton_step(problem: _Dual, point: _Point, damping: float, error: float) -> tuple[_Point | None, float]:
    """One proximal Newton step with backtracking; None when no step descends any further."""
    target = _model_minimum(problem, point, damping, error)
    direction = target - point.u
    here, there = point.objective - point.log_partition, problem.stack.conjugate(target)
    predicted = there - here - float(problem.seen(point) @ direction)
    noise = 4e-15 * (1 + abs(point.objective)) + 2 * problem.rounding(point).gap
    if not predicted < -noise:
        # The objective is too coarse to tell by how much it would fall; the certificate is not.
        trial = problem.at(target, last=True)
        if max(problem.certificate(trial)) < 0.98 * max(problem.certificate(point)):
            return trial, damping / 10
        return (None, damping) if damping > 1e-2 else (point, max(damping * 100, 1e-8))
    length = 1.0
    for halvings in range(MAX_HALVINGS):
        trial = problem.at(problem.stack.clip(point.u + length * direction), last=error < LAST_STEP)
        if trial.objective <= point.objective + ARMIJO * length * predicted + noise:
            if length < 0.25:
                trial = _lengthened(problem, point, direction, length, trial)
            return trial, damping / 10 if length == 1.0 else min(damping * 10, 1.0)
        length = min(0.5 * length, _careful_length(problem, direction)) if halvings == 0 else 0.5 * length
    return None, damping


def _lengthened(problem: _Dual, point: _Point, direction: Floats, length: float, trial: _Point) -> _Point:
    """Go on along a direction by doublings as long as the objective falls: a careful step may have been too careful.

    Where one atom has all the mass there is no curvature, and the next one may be thousands of nats away.
    """
    while 2 * length < 1:
        length *= 2
        farther = problem.at(problem.stack.clip(point.u + length * direction))
        if not farther.objective < trial.objective:
            break
        trial = farther
    return trial


def _careful_length(problem: _Dual, direction: Floats) -> float:
    """A step that the log-partition can bear: as many nats as the logarithm of what was asked for.

    A log-sum-exp changes its curvature by a factor of e for every nat that the scores move apart. One atom may be
    ahead by hundreds: the curvature there is e^-100, and a Newton step 10^40 too long.
    """
    if not isinstance(problem.partition, WeightedAtoms):
        return 0.5
    with np.errstate(over="ignore", invalid="ignore"):
        nats = problem.partition.span(problem.stack.add_up(direction))
    if not np.isfinite(nats):
        return 1e-30
    return 2 * float(np.log1p(nats)) / nats if nats > 1 else 0.5


def _solution(point: _Point, found: _Certificate, status: Status, n_iter: int) -> DualSolution:
    dual = -point.objective
    return DualSolution(
        stacked=point.u,
        multipliers=point.phi,
        expectation=point.expectation,
        log_partition=point.log_partition,
        primal=dual + found.gap,
        dual=dual,
        gap=found.gap,
        violation=found.violation,
        status=status,
        n_iter=n_iter,
    )


def _solve_single(
    problem: _Dual, partition: WeightedAtoms, box: BoxDual, start: Floats, max_iter: int
) -> DualSolution | None:
    """Solve for one multiplier: the root of a monotone function, between bounds, by steps of third order.

    Each look at the atoms is one pass of ``exp`` and three sums over a vector; the derivative of the variance that
    comes with them saves every second look. None where zero is not in the box.
    """
    low, high = float(box.lower[0]), float(box.upper[0])
    if not low <= 0.0 <= high:
        return None
    slope = float(box.linear[0]) - float(partition.mean[0])
    absolute, ridge, unit = float(box.absolute[0]), float(box.ridge[0]), float(problem.unit[0])
    side = -1 if slope + absolute < 0 < high else 1 if slope - absolute > 0 > low else 0  # the sign of phi
    limit = (high if side < 0 else -low) * side
    if side == 0:
        point = problem.at(np.zeros(1))
        return _solution(point, problem.certificate(point), Status.CONVERGED, 0)
    target = float(box.linear[0]) - side * absolute
    single = _SingleTilt(partition)
    nearer, farther = 0.0, limit  # the root lies between
    phi = float(np.clip(-start[0], min(0.0, limit), max(0.0, limit)))
    n_iter = 0
    while True:
        value, mean, variance, third = single.at(phi)
        point = _Point(
            np.array([-phi]), np.array([phi]), value, np.array([mean]), value + box.conjugate(np.array([-phi]))
        )
        found = problem.certificate(point)
        error, curvature = mean - target + ridge * phi, variance + ridge
        # A hundredth of the tolerance costs nothing here, and neither of a gap nor of a violation is anything left.
        exact = abs(error) <= 0.01 * problem.most_violation * unit + problem.rounding(point).violation * unit
        at_limit = phi == limit and error * side < 0
        if (exact or at_limit) and problem.converged(point, found):
            return _solution(point, found, Status.CONVERGED, n_iter)
        if error * side < 0:
            nearer = phi
        else:
            farther = phi
        n_iter += 1
        if n_iter > max_iter:
            return _solution(point, found, Status.ITERATION_LIMIT, max_iter)
        moved = _next_single(phi, error, curvature, third, nearer, farther, single.width)
        if n_iter > MOST_STEPS_OF_ONE or moved == phi or not np.isfinite(moved):
            status = Status.CONVERGED if problem.converged(point, found) else Status.STALLED
            return _solution(point, found, status, n_iter - 1)
        phi = moved


def _next_single(
    phi: float, error: float, curvature: float, third: float, nearer: float, farther: float, width: float
) -> float:
    """The next multiplier to look at: Halley's step where it stays between the bounds, and otherwise their middle."""
    newton = -error / curvature if curvature > 0 else np.copysign(np.inf, farther - nearer)
    bend = 1 + 0.5 * newton * third / curvature if curvature > 0 else 1.0
    step = newton / bend if 0.5 < bend < 2 else newton
    nats = abs(step) * width
    if nats > FREE_NATS:
        most = FREE_NATS + 2 * float(np.log1p(min(nats, 1e300))) + 3 * abs(phi) * width
        step = float(np.copysign(min(abs(step), most / width), step))
    moved = phi + step
    inside = min(nearer, farther) < moved < max(nearer, farther)
    if inside or moved == farther:
        return moved
    if np.isfinite(farther):
        middle = 0.5 * (nearer + farther)
        return farther if phi != farther and not np.isfinite(newton) else middle
    return 2 * nearer + float(np.copysign(FREE_NATS / width, farther))


class _SingleTilt:
    """Atoms with one feature, as a contiguous vector about its mean."""

    def __init__(self, partition: WeightedAtoms) -> None:
        self.center = float(partition.mean[0])
        self.away = partition.features[:, 0] - self.center
        self.square = np.square(self.away)
        self.log_weights = partition.log_weights
        self.level = float(partition.log_weights[0])
        self.even = bool(np.all(partition.log_weights == self.level))
        self.ends = float(partition.lowest[0]) - self.center, float(partition.highest[0]) - self.center
        self.before = float(partition.base_covariance[0, 0])
        self.width = max(self.ends[1] - self.ends[0], float(np.finfo(np.float64).tiny))

    def at(self, phi: float) -> tuple[float, float, float, float]:
        """Return A, the mean, the variance and the third central moment under the tilt."""
        if phi == 0.0:  # known, but for the last: the first step does without
            return 0.0, self.center, self.before, 0.0
        scores = phi * self.away
        if self.even:
            top = phi * (self.ends[1] if phi > 0 else self.ends[0])
        else:
            scores += self.log_weights
            top = float(scores.max())
        scores -= top
        weights = np.exp(scores, out=scores)
        total = float(weights.sum())
        first = float(weights @ self.away) / total
        weights_away = weights * self.away
        raw = float(weights_away @ self.away) / total
        raw_third = float(weights_away @ self.square) / total
        value = top + float(np.log(total)) + phi * self.center + (self.level if self.even else 0.0)
        variance = max(raw - first**2, 0.0)
        return value, self.center + first, variance, raw_third - 3 * first * raw + 2 * first**3


def _from_flatter_weights(
    problem: _Dual, partition: WeightedAtoms, max_iter: int, stalled: DualSolution
) -> DualSolution | None:
    """Approach weights that span many nats from even ones, whose solutions lead to each other.

    The multipliers at weights ``w^t`` are nearly linear in t once a few atoms have all the mass, so two solutions
    tell where the next will be.
    """
    spread = float(np.ptp(partition.log_weights))
    if spread < TEMPERED_NATS:
        return None
    known: list[tuple[float, Floats]] = []
    temperature, width = 0.0, FIRST_NATS / spread
    for _ in range(MOST_STAGES):
        log_weights = temperature * partition.log_weights
        flatter = WeightedAtoms(partition.features, log_weights - np.logaddexp.reduce(log_weights))
        stage = _Dual(flatter, problem.stack, problem.tol if temperature == 1 else 1e-6)
        solution = _newton(stage, stage.enter_domain(_extrapolated(known, temperature, problem.stack)), 40, watch=False)
        if solution.status is Status.CONVERGED:
            if temperature == 1:
                return replace(solution, n_iter=min(stalled.n_iter + solution.n_iter, max_iter))
            known = [*known[-1:], (temperature, solution.stacked)]
            width *= 2.0 if solution.n_iter <= 6 else 1.0
        elif known:
            width *= 0.25
        else:
            return None
        if width * spread < LEAST_NATS:
            return None
        temperature = min(1.0, known[-1][0] + width)
    return None


def _from_milder_prices(
    problem: _Dual, partition: WeightedAtoms, max_iter: int, stalled: DualSolution
) -> DualSolution | None:
    """Approach steep prices from milder ones: multipliers grow with the prices where these cannot get what they ask.

    Once it is settled which atoms have mass, the multipliers are linear in the prices but for terms of one over them.
    """
    box = problem.stack.box
    if box is not None and not np.any(np.isfinite(box.lower * box.upper) & (box.lower < box.upper) | (box.ridge > 0)):
        return None  # all prices are infinite
    known: list[tuple[float, Floats]] = []
    factor, ratio, n_iter = MILDEST, MILDER_STEP, stalled.n_iter
    for _ in range(MOST_STAGES):
        stack = problem.stack.scaled(factor) if factor < 1 else problem.stack
        stage = _Dual(partition, stack, problem.tol if factor == 1 else STAGE_TOLERANCE)
        begin = _extrapolated(known, factor, stack)
        if len(known) == 1:
            begin = stack.clip(known[0][1] * (factor / known[0][0]))
        solution = _newton(stage, stage.enter_domain(begin), 60, watch=False)
        n_iter += solution.n_iter
        if solution.status is Status.CONVERGED:
            if factor == 1:
                return replace(solution, n_iter=min(n_iter, max_iter))
            known = [*known[-1:], (factor, solution.stacked)]
            ratio = min(ratio**1.5, MILDER_STEP)
        else:
            ratio = ratio**0.5
        if not known or ratio < LEAST_STEP:
            return None
        factor = min(1.0, known[-1][0] * ratio)
    return None


def _extrapolated(known: list[tuple[float, Floats]], temperature: float, stack: Stack) -> Floats:
    if not known:
        return stack.start()
    if len(known) == 1:
        return known[0][1]
    (before, u_before), (last, u_last) = known
    return stack.clip(u_last + (u_last - u_before) * ((temperature - last) / (last - before)))


def _equalities(box: BoxDual) -> Flags:
    return box.is_free & (box.ridge == 0)


def _is_collinear(problem: _Dual) -> bool:
    """Whether equalities are so nearly combinations of others that rounding hides what is left of them."""
    box = problem.stack.box
    if box is None or not isinstance(problem.partition, WeightedAtoms):
        return False
    features = problem.index[_equalities(box)]
    if len(features) < 2:
        return False
    unit = problem.partition.unit[features]
    correlation = problem.partition.base_covariance[np.ix_(features, features)] / unit / unit[:, None]
    root, failed = dpotrf(correlation, lower=1, clean=0)
    return failed != 0 or bool(np.min(np.diag(root)) < HIDDEN)


def _taken_apart(problem: _Dual, partition: WeightedAtoms, max_iter: int, stalled: DualSolution) -> DualSolution | None:
    """Solve with equalities that are nearly combinations of others replaced by uncorrelated combinations of them.

    Two features that agree to eight digits have a covariance in which their difference is rounding; the difference of
    their values is not. An equality's multiplier may have any sign, so combinations of equalities are equalities.
    """
    box = problem.stack.box
    if box is None or len(problem.stack) != problem.stack.n_features:
        return None
    equal = _equalities(box)
    if int(equal.sum()) < 2:
        return None
    center, unit = partition.mean[equal], partition.unit[equal]
    scaled = (partition.features[:, equal] - center) / unit
    # Where a few atoms have all the weight, what the others would say of the features counts too.
    flatter = partition.log_weights * min(1.0, TEMPERED_NATS / max(float(np.ptp(partition.log_weights)), 1.0))
    roots = np.exp(0.5 * (flatter - np.logaddexp.reduce(flatter)))
    triangle, order = scipy.linalg.qr(scaled * roots[:, None], mode="r", pivoting=True, check_finite=False)
    sizes = np.abs(np.diag(triangle))
    if np.min(sizes) >= COLLINEAR * sizes[0]:
        return None
    order = order[: int(np.sum(sizes > REDUNDANT * sizes[0]))]
    triangle = triangle[: len(order), : len(order)]
    apart = scipy.linalg.solve_triangular(triangle, scaled[:, order].T, trans="T", check_finite=False).T
    aim = ((box.linear[equal] - center) / unit)[order]
    aim = scipy.linalg.solve_triangular(triangle, aim, trans="T", check_finite=False)
    others, k = box.take(~equal), len(order)
    none, free = np.zeros(k), np.full(k, np.inf)
    names = ("linear", "absolute", "ridge", "lower", "upper")
    both = zip((aim, none, none, -free, free), (getattr(others, name) for name in names), strict=True)
    mapped = WeightedAtoms(np.hstack([apart, partition.features[:, ~equal]]), partition.log_weights)
    stage = _Dual(mapped, Stack.of_box(BoxDual(*(np.concatenate(pair) for pair in both))), problem.tol)
    solution = _newton(stage, stage.stack.start(), max_iter, watch=False)
    if solution.status is Status.STALLED:
        solution = _from_flatter_weights(stage, mapped, max_iter, solution) or solution
    stacked, expectation = np.zeros(len(equal)), np.empty(len(equal))
    stacked[np.flatnonzero(equal)[order]] = (
        scipy.linalg.solve_triangular(triangle, solution.stacked[:k], check_finite=False) / unit[order]
    )
    log_weights = mapped.tilted_log_weights(solution.multipliers, solution.log_partition)
    expectation[equal] = center + unit * (np.exp(log_weights) @ scaled)
    stacked[~equal], expectation[~equal] = solution.stacked[k:], solution.expectation[k:]
    dropped = np.abs(expectation - box.linear)[equal] / unit
    if np.max(dropped) > problem.most_violation + problem.rounding(problem.at(stacked)).violation:
        return None  # an equality that says the same as others, and asks for something else
    return replace(
        solution,
        stacked=stacked,
        multipliers=-stacked,
        expectation=expectation,
        log_partition=solution.log_partition - float(stacked[equal] @ center),
        violation=max(solution.violation, float(np.max(dropped))),
        log_weights=log_weights,
        n_iter=min(stalled.n_iter + solution.n_iter, max_iter),
    )
