"""Constraints that only a face of the reachable expectations meets: the limits behind infinite multipliers.

Remark 2 of the paper: asking ``E[psi] == 0`` of a psi that is never negative forces all mass onto ``psi = 0``. No
finite tilt does that, the dual value stays bounded while the multiplier runs away, and the solution is the posterior
conditioned on a face. Conditioning first is exact and leaves a problem with finite multipliers. docs/math.md eq. (9).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from regbayes._types import Flags, Floats
from regbayes.regularization.composite import Stack
from regbayes.regularization.log_partition import LogPartition, WeightedAtoms

MIN_NATS = 12.0  # a tilt that spans less leaves visible mass everywhere
FLAT = 1e-6  # variance of a combination of features, in units of the untilted ones, that is left on a face
ROUNDING = 1e-14  # of a feature's range and of its size: expectations this close to the edge are on it


@dataclass(frozen=True)
class Face:
    """A face of the support, and the multipliers that went to infinity to reach it."""

    partition: LogPartition  # conditioned on the face
    log_mass: float  # log-probability of the face
    infinite: Floats  # (m,): -inf, +inf, or 0 where the multiplier is finite

    def narrow(self, keep: Flags, direction: Floats) -> Face:
        """Condition on some of the atoms, towards which multipliers grow in a direction."""
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
    """Whether every domain reaches inside its feature's range: nothing is out of reach then, and no edge is forced."""
    low, high = stack.domain
    lowest, highest = partition.lowest[stack.index], partition.highest[stack.index]
    slack = _bound_rounding(lowest, highest)
    return bool(((low < highest - slack) & (high > lowest + slack)).all())


def find_out_of_reach(partition: LogPartition, stack: Stack) -> OutOfReach | None:
    """Look for one expectation that cannot enter its domain whatever the weights."""
    low, high = stack.domain
    lowest, highest = partition.lowest[stack.index], partition.highest[stack.index]
    slack = _bound_rounding(lowest, highest)
    too_low, too_high = low > highest + slack, high < lowest - slack
    # An open end is the next number to it, and rounding must not move a feature across.
    too_low |= (low > highest) & (low == np.finfo(np.float64).smallest_subnormal)
    for outside, needed, reachable in ((too_low, low, highest), (too_high, high, lowest)):
        if np.any(outside):
            i = int(np.argmax(outside))
            return OutOfReach(int(stack.index[i]), float(needed[i]), float(reachable[i]))
    return None


def narrow_to_face(face: Face, stack: Stack) -> Face:
    """Condition on the atoms that the domain leaves possible, until no feature touches its domain at an edge only."""
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
    """Whether a tilt may stand for a limit: it spans many nats, and some features hardly vary any more."""
    if not isinstance(partition, WeightedAtoms):
        return False
    most = float(np.abs(multipliers) @ (partition.highest - partition.lowest))  # saves a pass over the features
    if most < MIN_NATS or partition.span(multipliers) < MIN_NATS:
        return False
    unit = partition.unit
    return bool(np.linalg.eigvalsh(partition.covariance(multipliers) / np.outer(unit, unit))[0] < FLAT)


def _bound_rounding(lowest: Floats, highest: Floats) -> Floats:
    """How far rounding may put an expectation from an edge of its range."""
    rounding: Floats = ROUNDING * ((highest - lowest) + np.maximum(np.abs(lowest), np.abs(highest)))
    return rounding


def _find_touched_edge(partition: LogPartition, stack: Stack) -> tuple[int, int] | None:
    """A feature that varies, but whose domain contains only an end of its range; and which end."""
    low, high = stack.domain
    lowest, highest = partition.lowest[stack.index], partition.highest[stack.index]
    slack = _bound_rounding(lowest, highest)
    varies = highest > lowest + 2 * slack
    mean = partition.mean[stack.index]  # where it is at the edge already, nothing has to be forced there
    at_high, at_low = varies & (low >= highest - slack), varies & (high <= lowest + slack)
    for touched, sign in ((at_high & (mean < highest - slack), 1), (at_low & (mean > lowest + slack), -1)):
        if np.any(touched):
            return int(stack.index[np.argmax(touched)]), sign
    return None
