"""Log-partition functions ``A(phi) = log E_p exp<phi, psi>`` and derivatives.

The dual solver accesses a posterior only through weighted atoms (enumerated models, draws) or a Gaussian with affine
features. docs/math.md eq. (3).

Atoms in memory are processed in chunks that fit into the cache, without a copy of all of them. Features are centered
and scaled once (`WeightedAtoms.standardized`) if their values agree in most digits (time stamps), or if their squares
would overflow or underflow.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from scipy.special import logsumexp

from regbayes._types import Flags, Floats, Indices
from regbayes.engine.executor import make_executor, one_blas_thread
from regbayes.kernels import arrays
from regbayes.kernels.arrays import DeviceArray, namespace_of, to_device, to_host
from regbayes.kernels.arrays_atoms import AtomSums, score_atoms, sum_atoms

CHUNK_BYTES = 1 << 20  # size of a chunk of rows that fits into the cache
MIN_PIECES = 32  # smallest number of chunks for which several threads are used
FEW = 16  # features up to which second moments are computed column by column
FUSED = 1_000_000  # atoms times squared features up to which second moments are part of every evaluation
NEAR = 0.25  # relative to a feature's range: largest distance of zero for it to be the reference point
FAR = 8.0  # standard deviations from zero above which a feature is centered, at the loss of one digit
EXTREME = 2.0**60  # magnitudes between its inverse and this have powers within the range of float64
PRECISION_ROWS = 64  # atoms that are checked for single precision
CONSTANT = 1e-12  # relative variation below which a feature is constant
MIN_UNIT = 1e-4  # smallest unit of a feature, relative to its range


class LogPartition(Protocol):
    """Interface between the dual solver and a posterior with features."""

    @property
    def mean(self) -> Floats:
        """Expectation of the features before any tilt, shape (m,)."""

    @property
    def unit(self) -> Floats:
        """Standard deviation of each feature before any tilt, shape (m,); never zero."""

    @property
    def lowest(self) -> Floats:
        """Smallest value of each feature on the support, shape (m,)."""

    @property
    def highest(self) -> Floats:
        """Largest value of each feature on the support, shape (m,)."""

    def standardized(self, blocks: Indices) -> tuple[LogPartition, Floats, Floats] | None:
        """Return standardized features, centers and scales; None if not needed.

        The features become ``(psi - center) / scale``. Those with the same number in ``blocks`` share a scale.
        """

    def evaluate(self, phi: Floats, last: bool = False) -> tuple[float, Floats]:
        """Return ``A(phi)`` and its gradient, the tilted expectation of the features.

        ``last`` indicates that the covariance at phi is probably not needed.
        """

    def covariance(self, phi: Floats) -> Floats:
        """Return the Hessian of A, the covariance under the tilt, shape (m, m)."""


class WeightedAtoms:
    """Atoms with log-weights: A is a log-sum-exp, computed on the features' device.

    Parameters
    ----------
    held : array of shape (n, m), of any library
    log_weights : array of shape (n,)
        Normalized, on the host; atoms with ``-inf`` are outside the support and dropped.
    """

    def __init__(self, held: DeviceArray, log_weights: Floats) -> None:
        self.n_atoms = len(log_weights)
        self.support: Indices | None = None
        if not np.all(log_weights > -np.inf):
            self.support = np.flatnonzero(log_weights > -np.inf)
            held, log_weights = arrays.take_rows(held, self.support), log_weights[self.support]
        self.held, self.log_weights = held, log_weights
        n, m = held.shape
        xp = namespace_of(held)
        self._logs = log_weights if self._on_host else to_device(log_weights, held, xp.float64)
        # For larger problems, second moments are computed on demand. On a device, the number of calls is the cost.
        self.fused = n * m * m <= FUSED if self._on_host else m <= FEW
        self.lowest, self.highest = arrays.find_ranges(held)
        # Rounding of values and targets of each feature as given, also after centering.
        self.grain = self._precision() * np.maximum(np.abs(self.lowest), np.abs(self.highest))
        self._phi = np.zeros(m)  # the point of the cached moments
        # Moments are computed about a point near many atoms: zero if it is near, otherwise the likeliest atom.
        room = NEAR * (self.highest - self.lowest)
        near = (self.lowest <= room) & (self.highest >= -room)
        likeliest = np.asarray(to_host(held[int(np.argmax(log_weights)), :]), dtype=np.float64)
        self._reference = np.where(near, 0.0, likeliest)
        self._value, self.mean, self._covariance = self._moments(self._phi, True)
        far = near & (np.square(self.mean) > FAR**2 * self._covariance.diagonal())
        if far.any():
            self._reference = np.where(near & ~far, 0.0, likeliest)
            self._value, self.mean, self._covariance = self._moments(self._phi, True)
        self._expectation, self.base_covariance = self.mean, self._covariance
        spread = np.sqrt(np.maximum(self._covariance.diagonal(), 0.0))
        self.unit = find_units(spread, self.mean, self.lowest, self.highest)

    @property
    def _on_host(self) -> bool:
        return isinstance(self.held, np.ndarray)

    @cached_property
    def features(self) -> Floats:
        """The features on the host, (n, m), in double precision."""
        return self.held if self._on_host else np.ascontiguousarray(to_host(self.held), dtype=np.float64)

    def _precision(self) -> float:
        """Return the features' relative rounding, single precision if detected."""
        if not self._on_host:
            return float(namespace_of(self.held).finfo(self.held.dtype).eps)
        return find_precision(self.held[:: -(-len(self.held) // PRECISION_ROWS)])

    def _moments(self, phi: Floats, second: bool) -> tuple[float, Floats, Floats]:
        """Return ``A(phi)``, the expectation, and the covariance (empty unless requested)."""
        with np.errstate(over="ignore", invalid="ignore"):
            sums = self._sum(phi, self._reference, second)
            self._scores, away, covariance = sums.scores, sums.first / sums.total, np.empty((0, 0))
            if sums.second is not None:
                covariance = sums.second / sums.total - away[:, None] * away
        return sums.top + float(np.log(sums.total)), self._reference + away, covariance

    def _sum(self, phi: Floats, reference: Floats, second: bool) -> AtomSums:
        """Sum over pieces, in several threads if there are many on the host."""
        n, m = self.held.shape
        size = max(64, CHUNK_BYTES // (8 * m)) if self._on_host else max(1, arrays.ROOM // m)

        def sum_piece(rows: slice) -> AtomSums:
            return sum_atoms(self.held[rows, :], self._logs[rows], phi, reference, second)

        pieces = arrays.pieces(n, size)
        if len(pieces) == 1:
            return sum_piece(pieces[0])
        with one_blas_thread() as n_threads:
            executor = make_executor(n_threads if self._on_host and len(pieces) >= MIN_PIECES else 1)
            parts = executor.map(sum_piece, pieces)
        top = max(part.top for part in parts)
        factors = np.exp([part.top - top for part in parts])
        seconds = [part.second for part in parts if part.second is not None]
        return AtomSums(
            top,
            float(factors @ [part.total for part in parts]),
            factors @ np.array([part.first for part in parts]),
            np.tensordot(factors, seconds, 1) if seconds else None,
            arrays.join([part.scores for part in parts]),
        )

    def _score(self, phi: Floats) -> DeviceArray:
        """Return ``<phi, psi>`` of every supported atom, on the features' device."""
        return self._scores if self._is_at(phi) else score_atoms(self.held, phi)

    def _log_weights(self, phi: Floats) -> Floats:
        """Return tilted log-weights of the supported atoms up to a constant, on the host."""
        return np.asarray(to_host(self._score(phi) + self._logs), dtype=np.float64)

    def _is_at(self, phi: Floats) -> bool:
        """Whether the last evaluation was at phi."""
        return phi is self._phi or (phi[0] == self._phi[0] and np.array_equal(self._phi, phi))

    def find_ends(self) -> tuple[Indices, Indices]:
        """Return the supported atoms with each feature's smallest and largest value."""
        return self.features.argmin(axis=0), self.features.argmax(axis=0)

    def span(self, direction: Floats) -> float:
        """Return the range of a combination of the features."""
        lowest, highest = arrays.find_ranges(self._score(direction)[:, None])
        return float(highest[0] - lowest[0])

    def log_weight_range(self, phi: Floats) -> float:
        """Return the range of the tilted log-weights of the supported atoms."""
        return float(np.ptp(self._log_weights(phi)))

    def living_variances(self, phi: Floats, nats: float) -> Floats:
        """Return tilted variances over the atoms that are within some nats of the first."""
        logs = self._log_weights(phi)
        logs = logs - logs.max()
        weights = np.where(logs > -nats, np.exp(logs), 0.0)
        xp = namespace_of(self.held)
        there, held = to_device(weights / weights.sum(), self.held, xp.float64), xp.astype(self.held, xp.float64)
        return np.asarray(to_host(there @ (held - there @ held) ** 2), dtype=np.float64)

    def tilt(self, phi: Floats) -> tuple[Floats, float]:
        """Return the tilted log-weights of the supported atoms, and their KL divergence.

        Both are computed from the scores minus their maximum, which is more precise than ``A(phi)``.
        """
        scores = self._log_weights(phi)
        scores = scores - scores.max()  # the array of another library may be read-only
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
        """Whether the last evaluation computed the covariance at phi."""
        return self._covariance.size > 0 and self._is_at(phi)

    def covariance(self, phi: Floats) -> Floats:
        self.evaluate(phi)
        if not self._covariance.size:
            self._reference = self._expectation  # where second moments lose no digits
            _, _, self._covariance = self._moments(phi, True)
        return self._covariance

    def restrict(self, keep: Flags) -> tuple[WeightedAtoms, float]:
        """Condition on some of the supported atoms; return also their log-probability."""
        log_weights = self.log_weights[keep]
        log_mass = float(logsumexp(log_weights))
        narrower = WeightedAtoms(np.ascontiguousarray(self.features[keep]), log_weights - log_mass)
        # A feature that is constant on the face would get its mean as unit, which may be rounding.
        narrower.unit = np.where(narrower.highest > narrower.lowest, narrower.unit, self.unit)
        narrower.grain, narrower.n_atoms = self.grain, self.n_atoms
        narrower.support = np.flatnonzero(keep) if self.support is None else self.support[keep]
        return narrower, log_mass

    def standardized(self, blocks: Indices) -> tuple[WeightedAtoms, Floats, Floats] | None:
        """Return the atoms in the solver's units (`standardize`), center and scale."""
        found = standardize(self, blocks)
        if found is not None:
            found[0].grain, found[0].n_atoms, found[0].support = self.grain / found[2], self.n_atoms, self.support
        return found

    def change_units(self, center: Floats | float, scale: Floats | float) -> WeightedAtoms:
        """Return the atoms with features ``(psi - center) / scale``."""
        m, xp = self.held.shape[1], namespace_of(self.held)
        about, unit = (to_device(np.broadcast_to(by, (m,)), self._logs) for by in (center, scale))
        moved = xp.astype(self.held, xp.float64, copy=False) - about  # differences require all digits
        return WeightedAtoms(moved / unit, self.log_weights)

    def mean_about(self, center: Floats) -> Floats:
        """Return the expectation of the features minus a center."""
        sums = self._sum(np.zeros(len(center)), center, True)
        return sums.first / sums.total


def standardize(atoms: Any, blocks: Indices) -> tuple[Any, Floats, Floats] | None:
    """Return standardized atoms, center and scale; None if not needed.

    Features become ``(psi - center) / scale``. Features of a block share the largest scale. Scales are powers of two,
    so that division is exact.
    """
    found = find_scales(np.maximum(np.abs(atoms.lowest / 2), np.abs(atoms.highest / 2)), blocks)
    scaled = atoms if found is None else atoms.change_units(0.0, found)
    size = np.abs(scaled.mean)
    far = size > FAR * np.minimum(scaled.unit, size)
    if scaled is atoms and not far.any():
        return None
    scale = np.ones(len(far)) if found is None else found
    center = np.where(far, scaled.mean, 0.0)
    if far.any():  # the mean of values that agree in most digits is refined by the mean of differences
        center = center + np.where(far, scaled.mean_about(center), 0.0)
        scaled = scaled.change_units(center, 1.0)
    return scaled, center * scale, scale


def find_scales(sizes: Floats, blocks: Indices) -> Floats | None:
    """Return scales that keep squares within range; None if not needed.

    Scales are powers of two, and equal within a block.
    """
    if sizes.max() <= EXTREME and (sizes.min() >= 1 / EXTREME or not ((sizes < 1 / EXTREME) & (sizes > 0)).any()):
        return None
    largest = np.zeros(int(blocks.max()) + 1)
    np.maximum.at(largest, blocks, sizes)
    return np.where(largest > 0, np.exp2(np.floor(np.log2(np.where(largest > 0, largest, 1.0)))), 1.0)[blocks]


def find_precision(rows: Floats) -> float:
    """Return the relative rounding, that of float32 if the numbers appear to be."""
    with np.errstate(over="ignore"):
        single = np.array_equal(rows.astype(np.float32), rows)
    mantissas = np.frexp(rows)[0] * 2.0**16 if single else rows  # integers are exact in both
    kind = np.float32 if single and np.any(mantissas % 1) else np.float64
    return float(np.finfo(kind).eps)


def find_units(spread: Floats, mean: Floats, lowest: Floats, highest: Floats) -> Floats:
    """Return standard deviations, with a minimum for nearly constant features."""
    largest = np.maximum(np.abs(lowest), np.abs(highest))
    unit = np.maximum(spread, MIN_UNIT * (highest - lowest))
    constant = unit <= np.maximum(CONSTANT * np.abs(mean), 1e-300)
    varies = highest > lowest
    return np.where(~constant | varies & (unit > 0), unit, np.where(largest > 0, largest, 1.0))


@dataclass(frozen=True)
class GaussianAffine:
    """Affine features ``psi(w) = F w + f`` of a Gaussian: A is quadratic."""

    mean: Floats  # (m,): F mean + f
    factor: Floats  # (m, d): F R with covariance R R'
    grain: Floats  # (m,): rounding error of a mean or a target

    def standardized(self, blocks: Indices) -> tuple[GaussianAffine, Floats, Floats]:
        size = np.max(np.abs(self.factor), axis=1, initial=0.0)
        found = find_scales(size, blocks)
        scale = np.ones(len(size)) if found is None else found
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
