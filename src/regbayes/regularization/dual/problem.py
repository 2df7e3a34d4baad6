"""The stacked dual ``A(-L'u) + g*(u)``, docs/math.md eq. (2), and certificates."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from regbayes._types import Flags, Floats
from regbayes.engine import Status
from regbayes.regularization.composite import Piece, Stack, block_scale, prox_conjugate
from regbayes.regularization.dual_forms import BoxDual
from regbayes.regularization.log_partition import GaussianAffine, LogPartition, WeightedAtoms
from regbayes.regularization.regularizers.base import TINY_STEP, Regularizer

EPSILON = 8 * float(np.finfo(np.float64).eps)
MOST_VIOLATION = 1e-4  # standard deviations: largest violation of a hard constraint at any tolerance
DEAD_NATS = 16.0  # an atom this far behind the first one, about 1e-7 of its mass, is negligible
MOST_ROUNDING = 1e-8  # largest relative gap or violation that may be attributed to rounding
FALLS_QUICKLY = (
    0.2  # share of an error that a step may leave for its covariance to be corrected instead of computed again
)


@dataclass(frozen=True)
class DualSolution:
    """Final iterate of the dual solver and its certificate."""

    stacked: Floats  # (M,): u, one entry per coordinate of the elementary regularizers; a warm start
    multipliers: Floats  # (m,): phi, the tilt
    expectation: Floats  # (m,): E_q[psi]
    log_partition: float  # A(phi)
    primal: float
    dual: float
    gap: float
    violation: float  # distance of E_q[psi] from the regularizer's domain, in standard deviations
    status: Status  # CONVERGED, STALLED, ITERATION_LIMIT, or DIVERGED (unbounded multipliers)
    n_iter: int
    log_weights: Floats | None = None  # (supported atoms,): set if the multipliers alone would lose precision
    kl: float | None = None  # KL(q || p), likewise
    move: Floats | None = None  # (d,): the same for a Gaussian: the change of its mean in standard units


@dataclass(frozen=True)
class Point:
    """A dual iterate and everything evaluated at it."""

    u: Floats
    phi: Floats
    log_partition: float
    expectation: Floats
    objective: float


class Certificate(NamedTuple):
    """Upper bounds of the optimality gap and of the constraint violation.

    ``gap`` evaluates a steep penalty at a kink within rounding of the expectation. ``bound`` evaluates each part at the
    expectation if it is finite there. If this exceeds the tolerance, the cost of rounding is excluded.
    """

    gap: float
    violation: float
    bound: float


class _Held(NamedTuple):
    """A covariance and the point at which it was computed."""

    covariance: Floats
    phi: Floats
    expectation: Floats
    error: float


class Dual:
    """The stacked dual: ``A(-L'u) + g*(u)``."""

    def __init__(self, partition: LogPartition, stack: Stack, tol: float) -> None:
        self.partition, self.stack, self.index = partition, stack, stack.index
        # If each feature occurs once, in order, no indexing is required.
        self.whole = len(stack) == stack.n_features and bool((stack.index == np.arange(len(stack))).all())
        self.unit = partition.unit if self.whole else partition.unit[stack.index]
        self.tol, self.most_violation = tol, min(tol, MOST_VIOLATION)
        # If the dual is smooth everywhere, a Newton step is one linear system.
        self.smooth = stack.box is not None and stack.box.is_smooth
        self.step = np.empty(0) if stack.box is not None else block_scale(stack.pieces, 1 / self.unit**2) ** 2
        self.constant: tuple[Flags, Floats] | None = None  # constant features, and their multipliers
        constant = partition.highest == partition.lowest
        if constant.any():
            self.constant = self._constants(constant[stack.index])
        self._held: _Held | None = None
        self._certified: tuple[Point, Certificate] | None = None  # the last certificate and its point
        self._rounded: tuple[Point, Certificate] | None = None  # the last rounding error and its point
        if isinstance(partition, WeightedAtoms):
            self.magnitude = np.maximum(np.abs(partition.lowest), np.abs(partition.highest))
            self.most_units = float(((partition.highest - partition.lowest) / partition.unit).max())

    def _constants(self, constant: Flags) -> tuple[Flags, Floats] | None:
        """Return constant features and multipliers that the regularizers determine."""
        if self.stack.box is None:
            return None
        known = self.stack.box.derivatives(self.partition.lowest[self.index])
        return constant & np.isfinite(known), np.where(constant & np.isfinite(known), known, 0.0)

    def pinned(self, box: BoxDual) -> BoxDual:
        """The box with the multipliers of constants fixed."""
        if self.constant is None:
            return box
        at, value = self.constant
        return replace(box, lower=np.where(at, value, box.lower), upper=np.where(at, value, box.upper))

    def at(self, u: Floats, last: bool = False) -> Point:
        """Evaluate the dual; ``last`` if the covariance is probably not needed there."""
        phi = -u if self.whole else -self.stack.add_up(u)
        value, expectation = self.partition.evaluate(phi, last)
        return Point(u, phi, value, expectation, value + self.stack.conjugate(u))

    def enter_domain(self, u: Floats) -> Floats:
        """Return u, or a nearby point inside the conjugates' domain."""
        if np.isfinite(self.stack.conjugate(u)):
            return u
        if self.stack.box is not None:
            return self.stack.clip(u)
        inside = prox_conjugate(self.stack.pieces, u, block_scale(self.stack.pieces, self.unit**2) ** 2)
        return inside if np.isfinite(self.stack.conjugate(inside)) else self.stack.start()

    def seen(self, point: Point) -> Floats:
        """The expectations as the stacked regularizers see them, shape (M,)."""
        return point.expectation if self.whole else point.expectation[self.index]

    def covariance(self, point: Point, slope: Floats) -> Floats:
        """Return the Hessian of A, or an approximation that is good enough.

        With many atoms and features, a covariance is as expensive as several evaluations. While errors fall quickly, a
        BFGS update of the last covariance is used.
        """
        partition, held = self.partition, self._held
        if not isinstance(partition, WeightedAtoms):
            return partition.covariance(point.phi)
        error = float((np.abs(slope) / self.unit).max())
        if held is None or error > FALLS_QUICKLY * held.error or partition.has_covariance(point.phi):
            found = partition.covariance(point.phi)
        else:
            moved, gained = point.phi - held.phi, point.expectation - held.expectation
            curved, along = held.covariance @ moved, float(moved @ gained)
            if not along > 0:
                return partition.covariance(point.phi)
            found = held.covariance - curved[:, None] * (curved / (moved @ curved))
            found += gained[:, None] * (gained / along)
        self._held = _Held(found, point.phi, point.expectation, error)
        return found

    def certificate(self, point: Point) -> Certificate:
        """Return bounds of the Fenchel-Young gap and the violation; docs/math.md eq. (7)."""
        if self._certified is None or self._certified[0] is not point:
            self._certified = point, self._certify(point)
        return self._certified[1]

    def _certify(self, point: Point) -> Certificate:
        x = self.seen(point)
        if self.stack.box is not None:
            box, domain, close = self.stack.box, self.stack.domain, self.tol * (1 + abs(point.objective))
            return _box_certificate(box, domain, point.u, x, self.unit, self.most_violation, close)
        gap, violation, bound = 0.0, 0.0, 0.0
        for p in self.stack.pieces:
            s = slice(p.start, p.stop)
            near = nearest_in_domain(p.regularizer, x[s], self.unit[s])
            own, off, value = self._charge(p, near, x[s], point.u[s])
            # A steep penalty times rounding is an irreducible gap, so that the edge is used, as for a box.
            edge = np.asarray(p.regularizer.prox(x[s] + self.step[s] * point.u[s], self.step[s]), dtype=np.float64)
            if np.all(np.abs(edge - x[s]) <= self.most_violation * self.unit[s]):
                at_edge, off_edge, _ = self._charge(p, edge, x[s], point.u[s])
                own, off = (at_edge, off_edge) if at_edge < own else (own, off)
                if value > self.tol and np.all(np.abs(edge - x[s]) <= EPSILON * (np.abs(x[s]) + self.unit[s])):
                    value = own  # excludes the cost of rounding
            gap, violation, bound = gap + own, max(violation, off), bound + value
        return Certificate(gap, violation, bound)

    def _charge(self, p: Piece, y: Floats, x: Floats, u: Floats) -> Certificate:
        """Return the certificate of one part at y instead of x, plus the cost of the move."""
        away = np.abs(y - x)
        gap = abs(p.regularizer.fenchel_young(y, u))
        if not np.any(away):
            return Certificate(gap, 0.0, gap)
        off = _in_deviations(away, self.unit[p.start : p.stop], p.block_size)
        gap += float(np.abs(u) @ away + 0.5 * np.sum(off**2))
        return Certificate(gap, float(np.max(off)), gap)

    def rounding(self, point: Point) -> Certificate:
        """Return the gap and the violation that rounding may cause.

        Log-weights over many nats are rounded more, but only a small share is attributed to it.
        """
        if self._rounded is None or self._rounded[0] is not point:
            self._rounded = point, self._round(point)
        most, found = MOST_ROUNDING * (1 + abs(point.objective)), self._rounded[1]
        return Certificate(min(found.gap, most), min(found.violation, MOST_ROUNDING), most)

    def _round(self, point: Point) -> Certificate:
        x = np.abs(self.seen(point))
        gap, violation = float(np.abs(point.u) @ x) + abs(point.log_partition), float((x / self.unit).max())
        if isinstance(self.partition, WeightedAtoms):
            nats = float(np.abs(point.phi) @ self.magnitude)
            gap, violation = gap + nats, violation + nats * self.most_units
        elif isinstance(self.partition, GaussianAffine):
            # If features outnumber dimensions, their multipliers cancel each other in the sum over features.
            size = np.abs(self.partition.factor)
            added = (size @ (size.T @ np.abs(point.phi)))[self.index]
            gap, violation = gap + float(np.abs(point.u) @ added), violation + float(np.max(added / self.unit))
        return Certificate(EPSILON * gap, EPSILON * violation, EPSILON * gap)

    def as_solution(self, point: Point, found: Certificate, status: Status, n_iter: int) -> DualSolution:
        """Build the solution; if not converged, rounding lowers the dual bound."""
        dual, gap = -point.objective, found.bound
        if status is not Status.CONVERGED:
            lost = self._round(point).gap
            if isinstance(self.partition, WeightedAtoms | GaussianAffine):  # targets are rounded like features
                lost += 8 * float(np.abs(point.u) @ self.partition.grain[self.index])
            dual, gap = dual - lost, gap + lost
        return DualSolution(
            stacked=point.u,
            multipliers=point.phi,
            expectation=point.expectation,
            log_partition=point.log_partition,
            primal=dual + gap,
            dual=dual,
            gap=gap,
            violation=found.violation,
            status=status,
            n_iter=n_iter,
        )

    def converged(self, point: Point, found: Certificate) -> bool:
        """Whether a certificate is within the tolerance, up to rounding."""
        if not np.isfinite(point.objective):
            return False
        size = 1 + abs(point.objective)
        if found.gap > (self.tol + MOST_ROUNDING) * size or found.violation > self.most_violation + MOST_ROUNDING:
            return False  # exceeds any rounding error
        slack = self.rounding(point)
        close = found.gap <= self.tol * size + slack.gap
        return close and found.violation <= self.most_violation + slack.violation

    def is_settled(self, point: Point) -> bool:
        """Whether the remaining violations are negligible for atoms with mass.

        With one extreme outlier, the standard deviation before the tilt is the outlier's, and a tiny fraction of it may
        be the whole constraint. Moving an expectation of variance ``v`` by ``x`` costs about ``x^2 / 2v``.
        """
        partition = self.partition
        if not isinstance(partition, WeightedAtoms):
            return True
        if np.abs(point.phi) @ (partition.highest - partition.lowest) < DEAD_NATS:
            return True  # no atom has lost its mass
        x = self.seen(point)
        away = np.maximum(np.abs(x - np.clip(x, *self.stack.domain)) - EPSILON * np.abs(x), 0.0)
        if not away.any() or partition.log_weight_range(point.phi) < DEAD_NATS:
            return True
        variances = partition.living_variances(point.phi, DEAD_NATS)
        varies = (variances > np.square(4 * partition.grain))[self.index]  # others vary through negligible atoms only
        cost = np.sum(np.square(away[varies]) / variances[self.index][varies])
        return bool(cost <= 2 * self.tol * (1 + abs(point.objective)))


def _box_certificate(
    box: BoxDual, domain: tuple[Floats, Floats], u: Floats, x: Floats, unit: Floats, most: float, close: float
) -> Certificate:
    """Return the certificate of a box.

    Hard constraints are met up to rounding. A steep penalty times rounding would be an irreducible gap. Both are
    evaluated at the edge, and the move to it is charged.
    """
    if box.is_linear:  # equalities
        away = np.abs(x - box.low)
        off = away / unit
        gap = float(np.abs(u) @ away + 0.5 * (off @ off))
        return Certificate(gap, float(off.max()), gap)
    low, high = domain
    inside = np.clip(x, low, high)
    edge = np.where(u > 0, np.minimum(box.high, high), np.maximum(box.low, low))
    to_edge = np.where((u != 0) & (np.abs(edge - x) <= most * unit), edge, inside)
    at_inside, at_edge = (_fenchel_young(box, u, y) + np.abs(u) * np.abs(y - x) for y in (inside, to_edge))
    off = np.where(at_edge < at_inside, np.abs(to_edge - x), np.abs(inside - x)) / unit
    squares = 0.5 * np.square((inside - x) / unit)
    gap, bound = (float(np.sum(own + squares)) for own in (np.minimum(at_inside, at_edge), at_inside))
    if bound > close:  # exclude the cost of rounding
        rounded = np.abs(edge - x) <= EPSILON * (np.abs(x) + unit)
        bound = float(np.sum(np.where(rounded, np.minimum(at_inside, at_edge), at_inside) + squares))
    return Certificate(gap, float(np.max(off, initial=0.0)), bound)


def _fenchel_young(box: BoxDual, u: Floats, x: Floats) -> Floats:
    """``g_i(x_i) + g_i*(u_i) - u_i x_i`` of each coordinate, for x in the domain."""
    near = np.clip(x, box.low, box.high)
    excess, side = np.abs(x - near), np.where(x > near, box.upper, -box.lower)  # largest slope of g on this side
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        best = np.where(excess > 0, np.minimum(excess / box.ridge, side), 0.0)
        value = np.where(np.isfinite(best), best * excess - 0.5 * box.ridge * best**2, 0.0)
    # g*(u) - u x is u times the distance from x to the edge on the side of u.
    return np.abs(value + u * (np.where(u > 0, box.high, box.low) - x) + 0.5 * box.ridge * u**2)


def _in_deviations(away: Floats, unit: Floats, block: int) -> Floats:
    """Return each block's move in standard deviations along its direction."""
    rows, units = away.reshape(-1, block), unit.reshape(-1, block)
    longest = np.max(rows, axis=1, keepdims=True)
    rows = np.divide(rows, longest, out=np.zeros_like(rows), where=longest > 0)
    largest = np.max(units, axis=1, keepdims=True)
    along = np.sqrt(np.sum((rows * (units / largest)) ** 2, axis=1)) * largest[:, 0]
    return np.divide(np.sum(rows**2, axis=1) * longest[:, 0], along, out=np.zeros(len(rows)), where=along > 0)


def nearest_in_domain(regularizer: Regularizer, x: Floats, unit: Floats) -> Floats:
    """Return the nearest point of a regularizer's domain."""
    if np.isfinite(regularizer.value(x)):
        return x
    step = TINY_STEP * float(np.mean(unit)) ** 2
    return np.asarray(regularizer.prox(x, step), dtype=np.float64)
