"""Transform equalities that are combinations of others, exactly or nearly.

Examples are shares that sum to one, and two features that agree in eight digits. The covariance of such features loses
the variance of one given the others to rounding, but their values do not. A QR factorization of the values gives
uncorrelated combinations of the equalities, for which the dual is solved. An equality implied by others up to rounding
is dropped, and its multiplier is zero.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import scipy.linalg
from scipy.linalg.lapack import dpotrf

from regbayes._types import Floats, Indices
from regbayes.regularization.composite import Piece, Stack
from regbayes.regularization.dual.problem import DualSolution
from regbayes.regularization.log_partition import GaussianAffine, LogPartition, WeightedAtoms
from regbayes.regularization.regularizers.targets import Equal

COLLINEAR = 1e-3  # conditional relative to marginal standard deviation below which the covariance loses six digits
FEATURE_ROUNDINGS = 32.0  # rounding error of a feature computed in a few dozen steps, in units of its last digit
TARGET_ROUNDINGS = 4.0  # rounding error of a target, in units of its last digit
NEGLIGIBLE = 1e-9  # standard deviations: smaller noise does not affect the order of the equalities
ALIKE = 3.0  # orders of magnitude of noise that are ranked equal
FLAT_NATS = 30.0  # largest range of log-weights here, so that atoms without mass also determine collinearity


@dataclass(frozen=True, eq=False)
class Conditioned:
    """A problem with uncorrelated combinations of equalities, then other features."""

    partition: LogPartition
    stack: Stack
    places: Indices  # (k,): stacked coordinates of the equalities in the given problem
    rest: Indices  # (M - k,): the other stacked coordinates
    kept: Indices  # (r,): indices of the kept equalities, in the order of the combinations
    triangle: Floats  # (r, r): kept scaled features = combinations times this matrix
    values: Floats  # (n, k) of atoms or (d, k) of a Gaussian: the scaled features of all equalities
    center: Floats  # (k,)
    unit: Floats  # (k,)
    coarse: Floats  # (k,): rounding error of the attained targets, in these units
    feature: Indices  # (k,): feature of each equality
    others: Indices  # features of the other parts
    n_features: int

    def to_given(self, stacked: Floats) -> Floats:
        """Return stacked multipliers of the given problem."""
        given, r = np.zeros(len(self.places) + len(self.rest)), len(self.kept)
        own = scipy.linalg.solve_triangular(self.triangle, stacked[:r], check_finite=False)
        given[self.places[self.kept]] = own / self.unit[self.kept]
        given[self.rest] = stacked[r:]
        return given

    def from_given(self, stacked: Floats) -> Floats:
        """Return stacked multipliers of this problem."""
        own = self.triangle @ (stacked[self.places] * self.unit)[self.kept]
        return np.concatenate([own, stacked[self.rest]])

    @property
    def back(self) -> Floats:
        """The matrix (m, k) from multipliers of this problem to those of the given one."""
        r, m = len(self.kept), self.n_features
        back = np.zeros((m, self.stack.n_features))
        own = scipy.linalg.solve_triangular(self.triangle, np.eye(r), check_finite=False)
        np.add.at(back[:, :r], self.feature[self.kept], own / self.unit[self.kept][:, None])
        back[self.others, np.arange(r, back.shape[1])] += 1.0
        return back

    def solution(self, found: DualSolution, given: Stack, most: float) -> DualSolution | None:
        """Return the solution of the given problem; None if it misses a dropped equality.

        ``most`` is the tolerance in standard deviations, to which the rounding of the features is added.
        """
        stacked, log_weights, kl, move = self.to_given(found.stacked), None, None, None
        if isinstance(self.partition, WeightedAtoms):
            log_weights, kl = self.partition.tilt(found.multipliers)
            reached = np.exp(log_weights) @ self.values
        else:
            assert isinstance(self.partition, GaussianAffine)
            move = self.partition.factor.T @ found.multipliers
            reached = move @ self.values
        off = np.abs(reached - (given.targets[self.places] - self.center) / self.unit)
        if np.any(np.delete(off - self.coarse, self.kept) > most):
            return None
        expectation, r = np.empty(given.n_features), len(self.kept)
        expectation[given.index[self.rest]] = found.expectation[self.stack.index[r:]]
        expectation[given.index[self.places]] = self.center + self.unit * reached
        return replace(
            found,
            stacked=stacked,
            multipliers=0.0 - given.add_up(stacked),
            expectation=expectation,
            log_partition=found.log_partition - float(stacked[self.places] @ self.center),
            violation=max(found.violation, float(off.max())),
            log_weights=log_weights,
            kl=kl,
            move=move,
        )


def condition(partition: LogPartition, stack: Stack) -> Conditioned | None:
    """Combine nearly collinear equalities.

    None if no equalities are nearly collinear, or if targets of redundant equalities differ.
    """
    places = np.flatnonzero(np.isfinite(stack.targets))
    if len(places) < 2 or not isinstance(partition, WeightedAtoms | GaussianAffine):
        return None
    index = stack.index[places]
    if not _is_collinear(partition, index):
        return None
    unit = partition.unit[index]
    values, center, noise, triangle = _factor(partition, index, unit)
    if not np.all(np.isfinite(triangle)):
        return None
    aim, exact = (stack.targets[places] - center) / unit, TARGET_ROUNDINGS * partition.grain[index] / unit
    kept, coarse = _find_independent(triangle, values, aim, noise, exact, isinstance(partition, WeightedAtoms))
    rest = np.delete(np.arange(len(stack)), places)
    if kept is None or len(kept) > len(triangle) or len(kept) + len(rest) == 0:
        return None
    own = triangle[:, kept]
    if len(kept):
        own, order = scipy.linalg.qr(own, mode="r", pivoting=True, check_finite=False)
        kept = kept[order]
    r, own = len(kept), own[: len(kept)]
    aim, combined = (
        scipy.linalg.solve_triangular(own, given[..., kept].T, trans="T", check_finite=False) for given in (aim, values)
    )
    others, seen = np.unique(stack.index[rest], return_inverse=True)
    pieces = [Piece(Equal(aim), 0, r)] if r else []
    for p in stack.pieces:
        if not np.isfinite(stack.targets[p.start]):
            start = pieces[-1].stop if pieces else 0
            pieces.append(Piece(p.regularizer, start, start + p.stop - p.start))
    inner = Stack(r + len(others), tuple(pieces), np.concatenate([np.arange(r), r + seen]))
    mapped = _with_combinations(partition, combined, others)
    m = stack.n_features
    return Conditioned(mapped, inner, places, rest, kept, own, values, center, unit, coarse, index, others, m)


def _with_combinations(partition: WeightedAtoms | GaussianAffine, combined: Floats, others: Indices) -> LogPartition:
    """Return a log-partition of combinations (r, n or d) and of some of the features."""
    if isinstance(partition, WeightedAtoms):
        return WeightedAtoms(np.hstack([combined.T, partition.features[:, others]]), partition.log_weights)
    mean, grain = (np.append(np.zeros(len(combined)), own[others]) for own in (partition.mean, partition.grain))
    return GaussianAffine(mean, np.vstack([combined, partition.factor[others]]), grain)


def _factor(partition: WeightedAtoms | GaussianAffine, index: Indices, unit: Floats) -> tuple[Floats, ...]:
    """Return scaled features, centers, noise and the triangle of their QR."""
    if isinstance(partition, GaussianAffine):
        values = (partition.factor[index] / unit[:, None]).T
        noise = np.full(len(index), FEATURE_ROUNDINGS * np.finfo(np.float64).eps)
        return values, partition.mean[index], noise, scipy.linalg.qr(values, mode="r", check_finite=False)[0]
    # Center at medians: a single outlier would move the mean so far that the other values lose their digits.
    chosen = partition.features[:, index]
    center = np.median(chosen, axis=0)
    values, noise = (chosen - center) / unit, FEATURE_ROUNDINGS * partition.grain[index] / unit
    flatter = partition.log_weights * min(1.0, FLAT_NATS / max(float(np.ptp(partition.log_weights)), 1.0))
    roots = np.exp(0.5 * (flatter - np.logaddexp.reduce(flatter)))[:, None]
    triangle = scipy.linalg.qr(np.hstack([roots, values * roots]), mode="r", check_finite=False)[0]
    return values, center, noise, triangle[1:, 1:]  # the triangle without the constant


def _is_collinear(partition: WeightedAtoms | GaussianAffine, index: Indices) -> bool:
    """Whether some features are nearly collinear in the untilted covariance."""
    unit = partition.unit[index]
    if isinstance(partition, WeightedAtoms):
        correlation = partition.base_covariance[np.ix_(index, index)] / unit / unit[:, None]
    else:
        rows = partition.factor[index] / unit[:, None]
        correlation = rows @ rows.T
    root, failed = dpotrf(correlation, lower=1, clean=0, overwrite_a=1)
    return failed != 0 or bool(root.diagonal().min() < COLLINEAR)


def _find_independent(
    triangle: Floats, values: Floats, aim: Floats, noise: Floats, exact: Floats, has_offset: bool
) -> tuple[Indices | None, Floats]:
    """Return equalities not implied by less noisy ones, and rounding of the others.

    None if the targets of the others are inconsistent. ``noise`` is the noise of the values, ``exact`` of the targets.
    """
    kept: list[int] = []
    coarse = np.zeros(len(aim))
    grade = np.round(np.log10(np.maximum(noise, NEGLIGIBLE)) / ALIKE)
    for d in np.argsort(grade, kind="stable"):
        slope = np.zeros(len(aim))
        slope[kept] = np.linalg.lstsq(triangle[:, kept], triangle[:, d], rcond=None)[0]
        slope[np.abs(slope) <= noise[d]] = 0.0
        allowed = noise[d] + float(np.abs(slope) @ noise)
        if np.linalg.norm(triangle[:, d] - triangle @ slope) > allowed:
            kept.append(d)
            continue
        offset = 0.0
        if has_offset:
            left = values[:, d] - values @ slope
            offset = 0.5 * float(left.min() + left.max())
            if np.ptp(left) > 4 * allowed:  # a few atoms differ
                kept.append(d)
                continue
        far = float(np.max(np.abs(aim[slope != 0]), initial=0.0))
        coarse[d] = allowed * (1 + far) + exact[d] + float(np.abs(slope) @ exact)
        if abs(aim[d] - float(slope @ aim) - offset) > coarse[d]:
            return None, coarse
    return np.array(kept, dtype=np.intp), coarse
