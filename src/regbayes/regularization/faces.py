"""Faces of the reachable expectations: the limits at infinite multipliers.

Remark 2 of the paper: ``E[psi] == 0`` for a nonnegative psi forces all mass onto ``psi = 0``. No finite multiplier
attains it. The dual value stays bounded while the multiplier diverges, and the solution is the posterior conditioned
on a face. Conditioning first is exact and leaves a problem with finite multipliers. docs/math.md eq. (9).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from regbayes._types import Flags, Floats
from regbayes.regularization.composite import Stack
from regbayes.regularization.log_partition import LogPartition, WeightedAtoms

MIN_NATS = 12.0  # a tilt that spans less leaves visible mass on all atoms
FLAT = 1e-6  # variance of a combination of features, relative to the untilted one, that counts as zero on a face
ROUNDING = 1e-14  # relative to a feature's range and size: expectations this close to the edge are on it


@dataclass(frozen=True)
class Face:
    """A face of the support, and the infinite multipliers that select it."""

    partition: LogPartition  # conditioned on the face
    log_mass: float  # log-probability of the face
    infinite: Floats  # (m,): -inf, +inf, or 0 where the multiplier is finite

    def narrow(self, keep: Flags, direction: Floats) -> Face:
        """Condition on the atoms that infinite multipliers in a direction select."""
        assert isinstance(self.partition, WeightedAtoms)
        partition, log_mass = self.partition.restrict(keep)
        reach = np.abs(direction * self.partition.unit)
        grown = (reach > 1e-6 * np.max(reach)) & (self.infinite == 0)
        infinite = np.where(grown, np.copysign(np.inf, direction), self.infinite)
        return Face(partition, self.log_mass + log_mass, infinite)


@dataclass(frozen=True)
class OutOfReach:
    """A feature whose values all lie outside the regularizer's domain."""

    feature: int
    needed: float  # the nearest expectation that the regularizer admits
    reachable: float  # the nearest expectation that the support can have


def is_interior(partition: LogPartition, stack: Stack) -> bool:
    """Whether every domain intersects the interior of its feature's range."""
    low, high = stack.domain
    lowest, highest = partition.lowest[stack.index], partition.highest[stack.index]
    slack = _bound_rounding(lowest, highest)
    return bool(((low < highest - slack) & (high > lowest + slack)).all())


def find_out_of_reach(partition: LogPartition, stack: Stack) -> OutOfReach | None:
    """Find an expectation that cannot enter its domain for any weights."""
    low, high = stack.domain
    lowest, highest = partition.lowest[stack.index], partition.highest[stack.index]
    slack = _bound_rounding(lowest, highest)
    too_low, too_high = low > highest + slack, high < lowest - slack
    # An open end is the next floating-point number, and rounding must not move a feature across it.
    too_low |= (low > highest) & (low == np.finfo(np.float64).smallest_subnormal)
    for outside, needed, reachable in ((too_low, low, highest), (too_high, high, lowest)):
        if np.any(outside):
            i = int(np.argmax(outside))
            return OutOfReach(int(stack.index[i]), float(needed[i]), float(reachable[i]))
    return None


def narrow_to_face(face: Face, stack: Stack) -> Face:
    """Condition on atoms until no feature touches its domain only at an edge."""
    n_features = stack.n_features
    for _ in range(n_features):
        if not isinstance(face.partition, WeightedAtoms):
            break
        side = _find_touched_edge(face.partition, stack)
        if side is None:
            break
        feature, sign = side
        lowest, highest = face.partition.lowest[feature], face.partition.highest[feature]
        edge, slack = highest if sign > 0 else lowest, _bound_rounding(lowest, highest)
        on_edge = np.abs(face.partition.features[:, feature] - edge) <= slack
        face = face.narrow(on_edge, np.where(np.arange(n_features) == feature, float(sign), 0.0))
    return face


def may_be_on_face(partition: LogPartition, multipliers: Floats) -> bool:
    """Whether a large tilt leaves some combination of features nearly constant."""
    if not isinstance(partition, WeightedAtoms):
        return False
    most = float(np.abs(multipliers) @ (partition.highest - partition.lowest))  # a cheap upper bound
    if most < MIN_NATS or partition.span(multipliers) < MIN_NATS:
        return False
    unit = partition.unit
    return bool(np.linalg.eigvalsh(partition.covariance(multipliers) / np.outer(unit, unit))[0] < FLAT)


def _bound_rounding(lowest: Floats, highest: Floats) -> Floats:
    """Return how far rounding may move an expectation from an edge of its range."""
    rounding: Floats = ROUNDING * ((highest - lowest) + np.maximum(np.abs(lowest), np.abs(highest)))
    return rounding


def _find_touched_edge(partition: LogPartition, stack: Stack) -> tuple[int, int] | None:
    """Find a feature whose domain contains only an end; return it with a sign."""
    low, high = stack.domain
    lowest, highest = partition.lowest[stack.index], partition.highest[stack.index]
    slack = _bound_rounding(lowest, highest)
    varies = highest > lowest + 2 * slack
    mean = partition.mean[stack.index]  # a mean already at the edge forces nothing
    at_high, at_low = varies & (low >= highest - slack), varies & (high <= lowest + slack)
    for touched, sign in ((at_high & (mean < highest - slack), 1), (at_low & (mean > lowest + slack), -1)):
        if np.any(touched):
            return int(stack.index[np.argmax(touched)]), sign
    return None
