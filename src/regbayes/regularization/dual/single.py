"""A single multiplier: a root between bounds, found in a few passes over the atoms."""

from __future__ import annotations

import numpy as np

from regbayes._types import Floats
from regbayes.engine import Status
from regbayes.regularization.dual.problem import MOST_ROUNDING, Dual, DualSolution, Point, as_solution
from regbayes.regularization.dual_forms import BoxDual
from regbayes.regularization.log_partition import WeightedAtoms

FREE_NATS = 16.0  # a first step of a single multiplier up to which no care is taken
MOST_STEPS_OF_ONE = 200
CANCELLED = 1e-8  # of the square of a distance: a variance that is rounding beside it is taken about the mean
PIECE = 1 << 15  # atoms that are looked at together: what is computed of them stays in the cache


def solve_single(
    problem: Dual, partition: WeightedAtoms, box: BoxDual, start: Floats, max_iter: int
) -> DualSolution | None:
    """Solve for one multiplier: the root of a monotone function, between bounds, by steps of third order.

    Each look at the atoms is one pass of ``exp`` and four sums; the derivative of the variance that comes with it saves
    every second look. None where zero is not in the box.
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
        return as_solution(point, problem.certificate(point), Status.CONVERGED, 0)
    target = float(box.linear[0]) - side * absolute
    single = _SingleTilt(partition)
    nearer, farther = 0.0, limit  # the root lies between
    phi = float(np.clip(-start[0], min(0.0, limit), max(0.0, limit)))
    n_iter = 0
    while True:
        value, mean, variance, third = single.at(phi)
        point = Point(
            np.array([-phi]), np.array([phi]), value, np.array([mean]), value + box.conjugate(np.array([-phi]))
        )
        error, curvature = mean - target + ridge * phi, variance + ridge
        # A hundredth of the tolerance costs nothing here, and neither of a gap nor of a violation is anything left.
        close = abs(error) <= (0.01 * problem.most_violation + MOST_ROUNDING) * unit
        exact = close and abs(error) <= (0.01 * problem.most_violation + problem.rounding(point).violation) * unit
        at_limit = phi == limit and error * side < 0
        if (exact or at_limit) and problem.converged(point, problem.certificate(point)) and problem.is_settled(point):
            return as_solution(point, problem.certificate(point), Status.CONVERGED, n_iter)
        if error * side < 0:
            nearer = phi
        else:
            farther = phi
        n_iter += 1
        if n_iter > max_iter:
            return as_solution(point, problem.certificate(point), Status.ITERATION_LIMIT, max_iter)
        moved = _next_single(phi, error, curvature, third, nearer, farther, single.width)
        if n_iter > MOST_STEPS_OF_ONE or moved == phi or not np.isfinite(moved):
            found = problem.certificate(point)
            status = Status.CONVERGED if problem.converged(point, found) else Status.STALLED
            return as_solution(point, found, status, n_iter - 1)
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
        self.partition = partition
        self.log_weights = partition.log_weights
        self.level, self.even = float(partition.log_weights[0]), partition.even
        self.mean, self.before = float(partition.mean[0]), float(partition.base_covariance[0, 0])
        self._centre(self.mean)
        self.width = max(self.ends[1] - self.ends[0], float(np.finfo(np.float64).tiny))

    def _centre(self, center: float) -> None:
        """Take moments about a point from now on."""
        self.center = center
        self.away = self.partition.features[:, 0] - center
        self.ends = float(self.partition.lowest[0]) - center, float(self.partition.highest[0]) - center

    def at(self, phi: float) -> tuple[float, float, float, float]:
        """Return A, the mean, the variance and the third central moment under the tilt."""
        if phi == 0.0:  # known, but for the last: the first step does without
            return 0.0, self.mean, self.before, 0.0
        pieces = [self._sums(phi, slice(start, start + PIECE)) for start in range(0, len(self.away), PIECE)]
        top = max(own for own, _ in pieces)
        factors = np.exp([own - top for own, _ in pieces])
        total, *sums = (factors @ [sums for _, sums in pieces]).tolist()
        first, raw, raw_third = (each / total for each in sums)
        value = top + float(np.log(total)) + phi * self.center + (self.level if self.even else 0.0)
        variance = max(raw - first**2, 0.0)
        if variance < CANCELLED * first**2 and self.center + first != self.center:
            self._centre(self.center + first)  # an atom far out, which made the mean, has lost its mass
            return self.at(phi)
        return value, self.center + first, variance, raw_third - 3 * first * raw + 2 * first**3

    def _sums(self, phi: float, rows: slice) -> tuple[float, tuple[float, ...]]:
        """The largest score of some atoms, and relative to it their total weight and three moments about the mean."""
        away = self.away[rows]
        weights = phi * away
        if self.even:
            top = phi * (self.ends[1] if phi > 0 else self.ends[0])
        else:
            weights += self.log_weights[rows]
            top = float(weights.max())
        weights -= top
        np.exp(weights, out=weights)
        total, first = float(weights.sum()), float(weights @ away)
        weights *= away
        second = float(weights @ away)
        weights *= away
        return top, (total, first, second, float(weights @ away))
