"""Constraints that only a face of the reachable expectations meets: the limits behind infinite multipliers.

Remark 2 of the paper: asking ``E[psi] == 0`` of a psi that is never negative forces all mass onto ``psi = 0``. No
finite tilt does that, the dual value stays bounded while the multiplier runs away, and the answer is the posterior
conditioned on a face. Conditioning first is exact and leaves a problem with finite multipliers. docs/math.md eq. (9).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from regbayes._types import Flags, Floats
from regbayes.regularization.composite import Piece, Stack
from regbayes.regularization.dual import DualSolution
from regbayes.regularization.log_partition import LogPartition, WeightedAtoms

MIN_NATS = 12.0  # a tilt that spans less leaves visible mass everywhere
FLAT = 1e-6  # variance, in units of the untilted one, and outside mass at which a direction counts as settled
RAY_LENGTH = 1e10  # times a direction that spans MIN_NATS: there a conjugate shows its slope at infinity
ON_FACE = 1e-13  # of the span of a direction: a domain this close to the face touches it and nothing beyond
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


def find_flat_face(face: Face, stack: Stack, solution: DualSolution) -> Face | None:
    """Look for a face on which a tilt has settled whatever its direction, once the rest has lost its mass.

    The signature is a direction of the multipliers in which the tilted features no longer vary, although they did
    before: there the tilt has done all that it can. It is a face only if the dual does not mind how far the
    multipliers go: a soft constraint can take nearly all mass from somewhere at a finite penalty.
    """
    partition = face.partition
    if not isinstance(partition, WeightedAtoms):
        return None
    found = _find_settled_direction(partition, solution.multipliers)
    if found is None:
        return None
    direction, keep = found
    scores = partition.features @ direction
    top, span = float(scores[keep].max()), float(np.ptp(scores))
    if span < MIN_NATS or scores[~keep].max() >= top:
        return None  # what is left of the direction does not lead there: other atoms are as far out, or all of them
    if top + _slope_of_conjugate(stack, solution.stacked, direction) > ON_FACE * span:
        return None
    return face.narrow(keep, direction)


def _find_settled_direction(partition: WeightedAtoms, multipliers: Floats) -> tuple[Floats, Flags] | None:
    """The part of the multipliers that acts as a constant on the atoms that still have mass; and those atoms."""
    if np.abs(multipliers) @ (partition.highest - partition.lowest) < MIN_NATS:
        return None
    if partition.span(multipliers) < MIN_NATS:  # a pass over the features; the covariance would take several
        return None
    unit = partition.unit
    values, vectors = np.linalg.eigh(partition.covariance(multipliers) / np.outer(unit, unit))
    flat = vectors[:, values < FLAT]
    direction = flat @ (flat.T @ (multipliers * unit)) / unit
    if partition.span(direction) < MIN_NATS:
        return None
    scores = partition.features @ direction
    top, bottom = float(scores.max()), float(scores.min())
    keep = scores >= top - 1e-7 * (top - bottom)
    outside = (partition.features @ multipliers + partition.log_weights)[~keep] - partition.evaluate(multipliers)[0]
    if np.all(keep) or float(np.exp(outside).sum()) > FLAT:
        return None
    # The eigenvectors are those of a covariance that still feels the atoms outside; on the face itself be exact.
    on_face = (partition.features[keep] - partition.features[keep].mean(axis=0)) / unit
    _, spread, axes = np.linalg.svd(on_face, full_matrices=False)
    rounded = 8 * float(np.max(partition.grain / unit)) * np.sqrt(len(on_face))
    within = axes[spread > max(rounded, ON_FACE * float(np.max(spread, initial=0.0)))]
    scaled = direction * unit
    return (scaled - within.T @ (within @ scaled)) / unit, keep


def _slope_of_conjugate(stack: Stack, stacked: Floats, direction: Floats) -> float:
    """How fast the conjugate grows as the multipliers go far along a direction; inf where it ends.

    Where several elementary regularizers see one coordinate, the one that grows least takes it.
    """
    slopes = np.where(direction != 0, np.inf, 0.0)

    def slope(p: Piece, u: Floats, move: Floats) -> float:
        here, there = p.regularizer.conjugate(u), p.regularizer.conjugate(u - RAY_LENGTH * move)
        return (there - here) / RAY_LENGTH

    for p in sorted(stack.pieces, key=lambda p: p.regularizer.block_size != 1):
        i, u = stack.index[p.start : p.stop], stacked[p.start : p.stop]
        if p.regularizer.block_size == 1:
            for place in np.flatnonzero(direction[i]):
                move = np.where(np.arange(len(i)) == place, direction[i], 0.0)
                slopes[i[place]] = min(slopes[i[place]], slope(p, u, move))
        else:
            together = slope(p, u, direction[i])
            if together < np.sum(slopes[i]):
                slopes[i] = together / len(i)
    return float(np.sum(slopes))


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
