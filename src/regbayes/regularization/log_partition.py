"""Log-partition functions ``A(phi) = log E_p exp<phi, psi>``, their gradients and Hessians.

The dual solver sees a posterior only through one of these two objects: weighted atoms (enumerated models, draws) or
a Gaussian with affine features. docs/math.md eq. (3).

Atoms are read in pieces that stay in the cache, several at a time where there are many of them, and no copy of all of
them is made. There is one exception: features whose values agree in most of their digits (time stamps), or are so large
or small that their squares are no numbers, are centred and scaled once (`WeightedAtoms.standardized`).
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
from scipy.special import logsumexp

from regbayes._types import Flags, Floats, Indices
from regbayes.engine import make_executor

CHUNK_BYTES = 1 << 20  # rows are weighted in pieces that stay in the cache, so no copy of all of them
HELD_BYTES = 1 << 17  # of which a copy costs less than what it saves
TOGETHER = 4  # such pieces, at least, that a thread takes one after the other
WIDE = 4096  # numbers, four rows of which ranges are taken from at the least
MIN_THREADED = 400_000  # numbers in the features from which on threads share the pieces
FEW = 16  # features up to which second moments are taken column by column, and a product beats a square
FUSED = 1_000_000  # atoms times features squared up to which second moments come with every evaluation
NEAR = 0.25  # of a feature's range: zero is not farther from it, and may be a reference point
FAR = 8.0  # standard deviations from zero at which a feature is centred: one digit is not missed
EXTREME = 2.0**60  # magnitudes whose powers are numbers, with room to spare, lie between one over this and this
PRECISION_ROWS = 64  # atoms that show whether features are in single precision
CONSTANT = 1e-12  # of its size: a feature that varies less than this does not vary
MIN_UNIT = 1e-4  # of a feature's range: the least that counts as its standard deviation


class LogPartition(Protocol):
    """What the dual solver needs to know of a posterior and its features."""

    @property
    def mean(self) -> Floats:
        """Expectation of the features before any tilt, shape (m,)."""

    @property
    def unit(self) -> Floats:
        """Standard deviation of each feature before any tilt, never zero, shape (m,): the units of the problem."""

    @property
    def lowest(self) -> Floats:
        """Smallest value of each feature on the support, shape (m,)."""

    @property
    def highest(self) -> Floats:
        """Largest value of each feature on the support, shape (m,)."""

    def standardized(self, blocks: Indices) -> tuple[LogPartition, Floats, Floats] | None:
        """Return the same with features ``(psi - center) / scale``, center and scale; None where nothing is gained.

        ``blocks`` numbers the features; those of one number keep one scale.
        """

    def evaluate(self, phi: Floats, last: bool = False) -> tuple[float, Floats]:
        """Return ``A(phi)`` and its gradient, the expectation of the features under the tilt.

        ``last`` says that the covariance there will hardly be asked for.
        """

    def covariance(self, phi: Floats) -> Floats:
        """Return the Hessian of A, the covariance of the features under the tilt, shape (m, m)."""


class _Sums(NamedTuple):
    """What a piece of the atoms adds to the partition function, relative to its own largest score."""

    top: float
    total: float
    first: Floats  # (m,)
    second: Floats | None  # (m, m), about a reference point


def _add_sums(parts: list[_Sums]) -> _Sums:
    """Sums over several pieces, relative to the largest score of all of them."""
    if len(parts) == 1:
        return parts[0]
    top = max(part.top for part in parts)
    factors = np.exp([part.top - top for part in parts])
    total = float(factors @ [part.total for part in parts])
    first = factors @ np.array([part.first for part in parts])
    seconds = [part.second for part in parts if part.second is not None]
    return _Sums(top, total, first, np.tensordot(factors, seconds, 1) if seconds else None)


class WeightedAtoms:
    """Atoms with log-weights: A is a log-sum-exp.

    Parameters
    ----------
    features : array of shape (n, m)
    log_weights : array of shape (n,)
        Normalised; ``-inf`` marks atoms outside the support, which are left out.
    """

    def __init__(self, features: Floats, log_weights: Floats) -> None:
        self.n_atoms = len(log_weights)
        self.support: Indices | None = None
        if not np.all(log_weights > -np.inf):
            self.support = np.flatnonzero(log_weights > -np.inf)
            features, log_weights = features[self.support], log_weights[self.support]
        self.features, self.log_weights = features, log_weights
        self._settle(features[int(np.argmax(log_weights))])

    def _settle(self, reference: Floats) -> None:
        """Look at the atoms before any tilt; moments are taken about a reference point near many of them.

        That is zero where it is not far, so that nothing has to be taken off; the likeliest atom otherwise.
        """
        self._divide()
        self.lowest, self.highest = self._ranges()
        # How far rounding puts values and targets of each feature: as they were given, also after they are centred.
        self.grain = self._precision() * np.maximum(np.abs(self.lowest), np.abs(self.highest))
        self.even = bool((self.log_weights == self.log_weights[0]).all())
        self._phi = np.zeros(len(reference))  # where the moments belong
        room = NEAR * (self.highest - self.lowest)
        near = (self.lowest <= room) & (self.highest >= -room)
        self._refer(np.where(near, 0.0, reference))
        self._value, self.mean, self._covariance = self._moments(self._phi, True)
        variances = self._covariance.diagonal()
        far = near & (np.square(self.mean) > FAR**2 * variances)
        if far.any():
            self._refer(np.where(near & ~far, 0.0, reference))
            self._value, self.mean, self._covariance = self._moments(self._phi, True)
            variances = self._covariance.diagonal()
        self._expectation, self.base_covariance = self.mean, self._covariance
        self.unit = find_units(np.sqrt(np.maximum(variances, 0.0)), self.mean, self.lowest, self.highest)

    def _precision(self) -> float:
        """Relative rounding of the features: that of single precision where a few atoms show it."""
        return find_precision(self.features[:: -(-len(self.features) // PRECISION_ROWS)])

    def _refer(self, reference: Floats) -> None:
        """Take moments about a point from now on."""
        self._reference, self._moved = reference, bool(reference.any())

    def _divide(self) -> None:
        """Cut the atoms into pieces, and say who takes them."""
        features = self.features
        n, m = features.shape
        self._rows = max(64, CHUNK_BYTES // (8 * m))
        n_pieces = -(-n // self._rows)
        n_chunks = 1 << max(0, (n_pieces // TOGETHER).bit_length() - 1)  # a power of two: threads have as many each
        many = -(-n_pieces // n_chunks) * self._rows
        self._chunks = [slice(start, min(start + many, n)) for start in range(0, n, many)]
        self._executor = make_executor(_n_threads() if features.size >= MIN_THREADED else 1)
        self.fused = features.size * m <= FUSED  # beyond, second moments are asked for
        # A few features of a few atoms are held column by column too: NumPy is slow where the last axis is short.
        held = m <= FEW and features.nbytes <= HELD_BYTES
        self._columns = np.ascontiguousarray(features.T) if held else None  # (m, n)
        self._rooms: list[Floats] = []  # for what is computed of a piece

    def _ranges(self) -> tuple[Floats, Floats]:
        if self._columns is not None:
            return self._columns.min(axis=1), self._columns.max(axis=1)
        if self.features.size < WIDE:
            return self.features.min(axis=0), self.features.max(axis=0)
        wide = max(1, WIDE // 4 // self.features.shape[1])  # rows side by side: short rows are slow to compare

        def ends(rows: slice) -> tuple[Floats, Floats]:
            m, even = self.features.shape[1], (rows.stop - rows.start) // wide * wide
            blocks, rest = self.features[rows][:even].reshape(-1, wide * m), self.features[rows][even:]
            size = max(1, self._rows // wide)  # blocks that stay in the cache
            pieces = [blocks[start : start + size] for start in range(0, len(blocks), size)]
            both = np.array([(piece.min(axis=0), piece.max(axis=0)) for piece in pieces])  # (pieces, 2, wide m)
            lows, highs = (both[:, side].reshape(-1, m) for side in (0, 1))
            return np.concatenate([lows, rest]).min(axis=0), np.concatenate([highs, rest]).max(axis=0)

        found = self._executor.map(ends, self._chunks)
        if len(found) == 1:
            return found[0]
        return np.min([low for low, _ in found], axis=0), np.max([high for _, high in found], axis=0)

    def _moments(self, phi: Floats, second: bool) -> tuple[float, Floats, Floats]:
        """``A(phi)``, the expectation, and the covariance (empty unless asked for), in one pass."""
        n, tilted = len(self.features), bool(phi.any())
        self._scores = np.empty(n) if tilted else np.zeros(n)
        with np.errstate(over="ignore", invalid="ignore"):
            if n <= self._rows:
                whole = self._sums(slice(0, n), phi, tilted, second)
            else:
                look = partial(self._sums_of_many, phi=phi, tilted=tilted, second=second)
                whole = _add_sums(self._executor.map(look, self._chunks))
            away = whole.first / whole.total
            covariance = np.empty((0, 0))
            if whole.second is not None:
                covariance = whole.second / whole.total - away[:, None] * away
        return whole.top + float(np.log(whole.total)), self._reference + away, covariance

    def _sums_of_many(self, rows: slice, phi: Floats, tilted: bool, second: bool) -> _Sums:
        """Sums over rows that are looked at in pieces."""
        starts = range(rows.start, rows.stop, self._rows)
        pieces = (slice(start, min(start + self._rows, rows.stop)) for start in starts)
        return _add_sums([self._sums(piece, phi, tilted, second) for piece in pieces])

    def _sums(self, rows: slice, phi: Floats, tilted: bool, second: bool) -> _Sums:
        """Sums over a piece."""
        part, reference, moved = self.features[rows], self._reference, self._moved
        even = self.even and not tilted
        if even:
            top, weights, total = float(self.log_weights[0]), np.ones(len(part)), float(len(part))
        else:
            scores = np.matmul(part, phi, out=self._scores[rows]) if tilted else self._scores[rows]
            weights = scores if self.even else scores + self.log_weights[rows]
            top = float(weights.max())
            weights = np.exp(np.subtract(weights, top, out=None if self.even else weights))
            total = float(weights.sum())
            top += float(self.log_weights[0]) if self.even else 0.0
        if not second:
            first = weights @ part
            return _Sums(top, total, first - total * reference if moved else first, None)
        rooms: list[Floats] = []
        if part.shape[1] <= FEW:
            columns = part.T if self._columns is None else self._columns
            if moved:
                columns = np.subtract(columns, reference[:, None], out=self._room(columns.shape, rooms))
            first, weighted = columns @ weights, columns
            if not even:
                weighted = np.multiply(columns, weights, out=self._room(columns.shape, rooms))
            found = _Sums(top, total, first, weighted @ columns.T)
        else:
            if moved:
                part = np.subtract(part, reference, out=self._room(part.shape, rooms))
            first = weights @ part
            if not even:
                room = part if moved else self._room(part.shape, rooms)
                part = np.multiply(part, np.sqrt(weights, out=weights)[:, None], out=room)
            found = _Sums(top, total, first, part.T @ part)
        self._rooms += rooms
        return found

    def _room(self, shape: tuple[int, ...], taken: list[Floats]) -> Floats:
        """Memory for a piece that was used before, where there is some: the first use of memory is slow."""
        taken.append(self._rooms.pop() if self._rooms else np.empty(self._rows * self.features.shape[1]))
        return taken[-1][: math.prod(shape)].reshape(shape)

    def _score(self, phi: Floats) -> Floats:
        """Return ``<phi, psi>`` of every supported atom; it is known where the last look was."""
        return self._scores if self._is_at(phi) else self.features @ phi

    def _is_at(self, phi: Floats) -> bool:
        """Whether the last look was here."""
        return phi is self._phi or (phi[0] == self._phi[0] and np.array_equal(self._phi, phi))

    def find_ends(self) -> tuple[Indices, Indices]:
        """Return the supported atom at which each feature is smallest, and the one at which it is largest."""
        n, m = self.features.shape
        lowest, highest, each = [], [], np.arange(m)
        size = max(64, CHUNK_BYTES // (8 * m))
        for start in range(0, n, size):  # columns side by side: NumPy is slow across rows
            columns = np.ascontiguousarray(self.features[start : start + size].T)
            lowest.append(start + columns.argmin(axis=1))
            highest.append(start + columns.argmax(axis=1))
        low, high = np.array(lowest), np.array(highest)
        at_low, at_high = self.features[low, each].argmin(axis=0), self.features[high, each].argmax(axis=0)
        return low[at_low, each], high[at_high, each]

    def span(self, direction: Floats) -> float:
        """Return how far a combination of the features reaches, from its smallest value to its largest."""
        return float(np.ptp(self._score(direction)))

    def log_weight_range(self, phi: Floats) -> float:
        """Return by how much the largest log-weight of the supported atoms under a tilt is above the smallest."""
        return float(np.ptp(self._score(phi) + self.log_weights))

    def living_variances(self, phi: Floats, nats: float) -> Floats:
        """Return the variances of features under a tilt, over the atoms that are at most so far behind the first."""
        log_weights = self._score(phi) + self.log_weights
        top = log_weights.max()
        alive = log_weights > top - nats
        weights, features = np.exp(log_weights[alive] - top), self.features[alive]
        weights /= weights.sum()
        return weights @ np.square(features - weights @ features)

    def tilt(self, phi: Floats) -> tuple[Floats, float]:
        """Return the log-weights of the supported atoms under a tilt, and its divergence from the weights before.

        Both are taken from the scores less the largest, of which rounding leaves more than of ``A(phi)``.
        """
        scores = self._score(phi) + self.log_weights
        scores -= scores.max()
        weights = np.exp(scores)
        total = float(weights.sum())
        scores -= math.log(total)
        return scores, max(float(weights @ (scores - self.log_weights)) / total, 0.0)

    def of_all(self, log_weights: Floats) -> Floats:
        """Return log-weights of the supported atoms as log-weights of all, shape (n,)."""
        if self.support is None:
            return log_weights
        spread = np.full(self.n_atoms, -np.inf)
        spread[self.support] = log_weights
        return spread

    def evaluate(self, phi: Floats, last: bool = False) -> tuple[float, Floats]:
        if not self._is_at(phi):
            self._value, self._expectation, self._covariance = self._moments(phi, self.fused and not last)
            self._phi = phi
        return self._value, self._expectation

    def has_covariance(self, phi: Floats) -> bool:
        """Whether the covariance there came with the last look."""
        return self._covariance.size > 0 and self._is_at(phi)

    def covariance(self, phi: Floats) -> Floats:
        self.evaluate(phi)
        if not self._covariance.size:
            self._refer(self._expectation)  # where second moments lose no digits
            _, _, self._covariance = self._moments(phi, True)
        return self._covariance

    def restrict(self, keep: Flags) -> tuple[WeightedAtoms, float]:
        """Condition on a subset of the supported atoms; return also the log of its probability."""
        log_weights = self.log_weights[keep]
        log_mass = float(logsumexp(log_weights))
        narrower = WeightedAtoms(np.ascontiguousarray(self.features[keep]), log_weights - log_mass)
        # What is constant on the face has its size about the mean, which may be rounding, for a unit of its own.
        narrower.unit = np.where(narrower.highest > narrower.lowest, narrower.unit, self.unit)
        narrower.grain, narrower.n_atoms = self.grain, self.n_atoms
        narrower.support = np.flatnonzero(keep) if self.support is None else self.support[keep]
        return narrower, log_mass

    def mapped(self, features: Floats) -> WeightedAtoms:
        """Return the same atoms with other features, one row for each supported atom."""
        other = WeightedAtoms(features, self.log_weights)
        other.n_atoms, other.support = self.n_atoms, self.support
        return other

    def standardized(self, blocks: Indices) -> tuple[WeightedAtoms, Floats, Floats] | None:
        """Return the atoms in the solver's own units (`standardize`), center and scale."""
        found = standardize(self, blocks)
        if found is not None:
            found[0].grain, found[0].n_atoms, found[0].support = self.grain / found[2], self.n_atoms, self.support
        return found

    def change_units(self, center: Floats | float, scale: Floats | float) -> WeightedAtoms:
        """Return the atoms with features ``(psi - center) / scale``."""
        moved = self.features - center
        moved /= scale
        return WeightedAtoms(moved, self.log_weights)

    def mean_about(self, center: Floats) -> Floats:
        """Return the expectation of the features less some numbers."""
        return np.exp(self.log_weights) @ (self.features - center)


class HasUnits(Protocol):
    """Features that can be given in other units."""

    lowest: Floats
    highest: Floats
    mean: Floats
    unit: Floats

    def change_units(self, center: Floats | float, scale: Floats | float) -> Any:
        """Return the same with features ``(psi - center) / scale``."""

    def mean_about(self, center: Floats) -> Floats:
        """Return the expectation of the features less some numbers."""


Atoms = TypeVar("Atoms", bound=HasUnits)


def standardize(atoms: Atoms, blocks: Indices) -> tuple[Atoms, Floats, Floats] | None:
    """Return atoms with features ``(psi - center) / scale``, center and scale; None where nothing is gained.

    Features of one block keep one scale, the largest. Scales are powers of two, so dividing rounds nothing.
    """
    found = find_scales(np.maximum(np.abs(atoms.lowest / 2), np.abs(atoms.highest / 2)), blocks)
    scaled = atoms if found is None else atoms.change_units(0.0, found)
    size = np.abs(scaled.mean)
    far = size > FAR * np.minimum(scaled.unit, size)
    if scaled is atoms and not far.any():
        return None
    scale = np.ones(len(far)) if found is None else found
    center = np.where(far, scaled.mean, 0.0)
    if far.any():  # a mean of values that agree in most digits is known to the last of them, through differences
        center = center + np.where(far, scaled.mean_about(center), 0.0)
        scaled = scaled.change_units(center, 1.0)
    return scaled, center * scale, scale


def find_scales(sizes: Floats, blocks: Indices) -> Floats | None:
    """Return units for features of such sizes in which squares are numbers; None where all sizes are ordinary.

    They are powers of two, and equal within a block.
    """
    if sizes.max() <= EXTREME and (sizes.min() >= 1 / EXTREME or not ((sizes < 1 / EXTREME) & (sizes > 0)).any()):
        return None
    largest = np.zeros(int(blocks.max()) + 1)
    np.maximum.at(largest, blocks, sizes)
    return np.where(largest > 0, np.exp2(np.floor(np.log2(np.where(largest > 0, largest, 1.0)))), 1.0)[blocks]


def find_precision(rows: Floats) -> float:
    """Return the relative rounding of numbers: that of single precision where they need it and are in it."""
    with np.errstate(over="ignore"):
        single = np.array_equal(rows.astype(np.float32), rows)
    mantissas = np.frexp(rows)[0] * 2.0**16 if single else rows  # integers and fractions of two have few digits
    kind = np.float32 if single and np.any(mantissas % 1) else np.float64
    return float(np.finfo(kind).eps)


def find_units(spread: Floats, mean: Floats, lowest: Floats, highest: Floats) -> Floats:
    """Return standard deviations, with a floor for features that hardly vary under p, or not at all."""
    largest = np.maximum(np.abs(lowest), np.abs(highest))
    unit = np.maximum(spread, MIN_UNIT * (highest - lowest))
    constant = unit <= np.maximum(CONSTANT * np.abs(mean), 1e-300)
    varies = highest > lowest
    return np.where(~constant | varies & (unit > 0), unit, np.where(largest > 0, largest, 1.0))


def _n_threads() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True)
class GaussianAffine:
    """Affine features ``psi(w) = F w + f`` of a Gaussian: A is quadratic."""

    mean: Floats  # (m,): F mean + f
    factor: Floats  # (m, d): F R with covariance R R'
    grain: Floats  # (m,): how far rounding may put a mean or a target

    def standardized(self, blocks: Indices) -> tuple[GaussianAffine, Floats, Floats]:
        size = np.max(np.abs(self.factor), axis=1, initial=0.0)
        largest = np.zeros(int(blocks.max()) + 1)
        np.maximum.at(largest, blocks, size)
        extreme = (largest > EXTREME) | ((largest < 1 / EXTREME) & (largest > 0))
        scale = np.where(extreme, np.exp2(np.floor(np.log2(np.where(extreme, largest, 1.0)))), 1.0)[blocks]
        return GaussianAffine(np.zeros(len(size)), self.factor / scale[:, None], self.grain / scale), self.mean, scale

    @property
    def spread(self) -> Floats:
        """Standard deviation of each feature, zero for constants."""
        spread: Floats = np.sqrt(np.einsum("ij,ij->i", self.factor, self.factor))
        return spread

    @property
    def unit(self) -> Floats:
        spread = self.spread
        varies = spread > np.maximum(CONSTANT * np.abs(self.mean), 1e-300)
        return np.where(varies, spread, np.where(self.mean != 0, np.abs(self.mean), 1.0))

    @property
    def lowest(self) -> Floats:
        return np.where(self.spread > 0, -np.inf, self.mean)

    @property
    def highest(self) -> Floats:
        return np.where(self.spread > 0, np.inf, self.mean)

    def evaluate(self, phi: Floats, last: bool = False) -> tuple[float, Floats]:
        moved = self.factor.T @ phi
        return float(phi @ self.mean + 0.5 * moved @ moved), self.mean + self.factor @ moved

    def covariance(self, phi: Floats) -> Floats:
        return self.factor @ self.factor.T
