"""Features that follow from others: shares that sum to one, all of which are asked for, or one feature asked for twice.

Such constraints agree with each other or not, and that is a matter of rounding: in single precision four shares sum to
one within 1e-7. Left as they are, the solver takes that noise for a direction in which the posterior can be tilted, by
multipliers in the millions. Here the last feature of such a combination becomes what the others say of it, exactly,
and its multiplier goes to the others: 0 remains, which says that its constraint follows from theirs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from regbayes._types import Floats, Indices
from regbayes.kernels import arrays
from regbayes.kernels.arrays import DeviceArray
from regbayes.kernels.arrays_atoms import score_atoms
from regbayes.regularization.composite import Stack

ROUNDINGS = 32.0  # of a feature's largest value: noise of what is computed in a few dozen steps
MOST_ROWS = 2000  # draws that show which features are combinations
CHANCE = 10  # different draws beyond two for each feature with which a combination is no accident
MOST = 64  # equalities among which combinations are looked for
FEW_ROWS, SLACK = 64, 10.0  # draws beside two for each feature of a first look, and what it may underrate rounding by


@dataclass(frozen=True, eq=False)
class Redundancy:
    """Features that are combinations of earlier ones, all of them constrained to a number."""

    features: Indices  # (k,)
    slopes: Floats  # (k, m): of the others in each
    offsets: Floats  # (k,)

    def settle(self, values: DeviceArray) -> DeviceArray:
        """Return features of draws, (n, m), with these replaced by their combinations where that is rounding alone."""
        xp = arrays.namespace_of(values)
        settled = xp.astype(values, xp.float64, copy=True)
        for d, combined in self._find_holding(values):
            settled[:, int(self.features[d])] = combined
        return settled

    def restrict(self, values: DeviceArray) -> Redundancy | None:
        """Return what of this holds at other draws too, whose features are (n, m)."""
        holding = [d for d, _ in self._find_holding(values)]
        if len(holding) == len(self.features):
            return self
        if not holding:
            return None
        return Redundancy(self.features[holding], self.slopes[holding], self.offsets[holding])

    def _find_holding(self, values: DeviceArray) -> Iterator[tuple[int, DeviceArray]]:
        """Which of these, and their combinations of the others, (n,), where they are the same up to rounding."""
        xp = arrays.namespace_of(values)
        noise = _noise(_choose_rows(values, MOST_ROWS), _find_largest(values))
        for d, (feature, slope, offset) in enumerate(zip(self.features, self.slopes, self.offsets, strict=True)):
            combined = score_atoms(values, None, slope) + float(offset)
            if float(xp.max(xp.abs(values[:, int(feature)] - combined))) <= 2 * (
                noise[feature] + np.abs(slope) @ noise
            ):
                yield d, combined

    @cached_property
    def folding(self) -> Floats:
        """The matrix (m, m) that gives the multipliers of these features to those that they follow from."""
        folding = np.eye(self.slopes.shape[1])
        for d, slope in zip(self.features, self.slopes, strict=True):  # of features that are kept alone
            folding[:, d] = slope
        return folding

    def fold(self, multipliers: Floats, stacked: Floats, stack: Stack) -> tuple[Floats, Floats]:
        """Return multipliers and their stacked form, of the same tilt and the same value, with 0 at these features."""
        phi, moved = self.folding @ multipliers, stacked.copy()
        for i in {*self.features, *np.flatnonzero(np.any(self.slopes != 0, axis=0))}:
            places = np.flatnonzero(stack.index == i)
            moved[places] = 0.0
            moved[places[0]] = -phi[i]
        return phi, moved


def find_redundancy(values: DeviceArray, stack: Stack) -> Redundancy | None:
    """Look among equalities for features, (n, m), that are combinations of earlier ones at all draws."""
    asked = _targets(stack)
    equal = np.flatnonzero(np.isfinite(asked))
    if not 2 <= len(equal) <= MOST or not _may_combine(values, equal):
        return None
    rows = _choose_rows(values, MOST_ROWS)
    noise, centre, spread = _noise(rows, _find_largest(values)), rows.mean(axis=0), rows.std(axis=0)
    centred = rows - centre
    n_different = len(np.unique(rows[:, equal], axis=0))
    kept: list[int] = []
    found: list[tuple[int, Floats, float]] = []
    for d in equal:
        if spread[d] <= noise[d] or n_different < 2 * (len(kept) + 1) + CHANCE:
            continue
        slope = np.zeros(values.shape[1])
        if kept:
            fit = np.linalg.lstsq(centred[:, kept] / spread[kept], centred[:, d], rcond=1e-9)[0]
            slope[kept] = fit / spread[kept]
            slope[np.abs(slope) * spread <= noise[d]] = 0.0
        coarse = noise[d] + np.abs(slope) @ noise
        if np.max(np.abs(centred[:, d] - centred @ slope)) > coarse:
            kept.append(int(d))
            continue
        offset = float(centre[d] - slope @ centre)
        used = slope != 0
        missed = asked[d] - float(slope[used] @ asked[used]) - offset
        far = np.max(np.abs(asked[used] - centre[used]) / spread[used], initial=0.0)
        # What is asked agrees up to rounding, carried to where it is asked: then it agrees.
        found.append((int(d), slope, offset + missed if abs(missed) <= coarse * (1 + far) else offset))
    if not found:
        return None
    features, slopes, offsets = zip(*found, strict=True)
    return Redundancy(np.array(features), np.array(slopes), np.array(offsets))


def _targets(stack: Stack) -> Floats:
    """What each expectation has to be, shape (m,); NaN where it is not held to one number."""
    asked = np.full(stack.n_features, np.nan)
    if stack.n_features < 2:
        return asked
    low, high = stack.domain
    least, most = np.full(stack.n_features, np.inf), np.full(stack.n_features, -np.inf)
    np.minimum.at(least, stack.index, np.where(low == high, low, -np.inf))
    np.maximum.at(most, stack.index, np.where(low == high, low, np.inf))
    return np.where(least == most, least, asked)


def _choose_rows(values: DeviceArray, most: int) -> Floats:
    """Features of some draws, from all parts of the run, on the host."""
    rows = values[:: -(-values.shape[0] // most), :]
    return rows if isinstance(rows, np.ndarray) else np.asarray(arrays.to_host(rows), dtype=np.float64)


def _may_combine(values: DeviceArray, chosen: Indices) -> bool:
    """Whether a few draws leave it open that some of these features are combinations of others, up to rounding.

    Every problem with equalities is asked, so it has to take little beside the solution of a small one.
    """
    rows = _choose_rows(values, FEW_ROWS + 2 * len(chosen))
    if len(chosen) < values.shape[1]:
        rows = rows[:, chosen]
    noise = _noise(rows, np.abs(rows).max(axis=0))
    noise[noise == 0.0] = 1.0
    rows = (rows - rows.sum(axis=0) / len(rows)) / noise  # no squares of large numbers
    gram = rows.T @ rows / len(rows)
    spread = np.sqrt(gram.diagonal())
    varies = spread > 1.0
    if not varies.all():
        gram, spread = gram[np.ix_(varies, varies)], spread[varies]
    if len(spread) < 2:
        return False
    least = np.linalg.eigvalsh(gram / (spread[:, None] * spread))[0]
    return bool(least <= len(spread) * max((SLACK / spread.min()) ** 2, ROUNDINGS * np.finfo(np.float64).eps))


def _noise(rows: Floats, largest: Floats) -> Floats:
    """Rounding errors of features, by their largest values and the type that the numbers of some draws fit in; (m,)."""
    with np.errstate(over="ignore"):
        single = np.array_equal(rows.astype(np.float32), rows)
    eps = np.finfo(np.float32 if single else np.float64).eps
    return ROUNDINGS * float(eps) * largest


def _find_largest(values: DeviceArray) -> Floats:
    """The largest distance of each feature from zero, (m,)."""
    lowest, highest = arrays.find_ranges(values)
    return np.maximum(-lowest, highest)
