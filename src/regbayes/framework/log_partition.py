"""Log-partition functions ``A(phi) = log E_p exp<phi, psi>``, their gradients and Hessians.

The dual solver sees a posterior only through one of these two objects: weighted atoms (enumerated models, draws) or
a Gaussian with affine features. docs/math.md eq. (3).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

Floats = NDArray[np.float64]
CHUNK_BYTES = 4 << 20  # rows are centred and weighted in pieces of this size: memory stays that of the features


class LogPartition(Protocol):
    """What the dual solver needs to know of a posterior and its features."""

    @property
    def mean(self) -> Floats:
        """Expectation of the features before any tilt, shape (m,)."""

    @property
    def spread(self) -> Floats:
        """Standard deviation of each feature before any tilt, shape (m,): the units of the problem."""

    @property
    def lowest(self) -> Floats:
        """Smallest value of each feature on the support, shape (m,)."""

    @property
    def highest(self) -> Floats:
        """Largest value of each feature on the support, shape (m,)."""

    def evaluate(self, phi: Floats) -> tuple[float, Floats]:
        """Return ``A(phi)`` and its gradient, the expectation of the features under the tilt."""

    def covariance(self, phi: Floats) -> Floats:
        """Return the Hessian of A, the covariance of the features under the tilt, shape (m, m)."""


class WeightedAtoms:
    """Atoms with log-weights: A is a log-sum-exp.

    Parameters
    ----------
    features : array of shape (n, m)
    log_weights : array of shape (n,)
        Normalised; ``-inf`` marks atoms outside the support.
    """

    def __init__(self, features: Floats, log_weights: Floats) -> None:
        self.features = features
        self.log_weights = log_weights
        self._phi: Floats | None = None
        self._weights = np.exp(log_weights)
        self.mean = self._weights @ features
        self.spread = np.sqrt(np.maximum(np.diag(self._covariance(self._weights, self.mean)), 0.0))
        support = features if np.all(np.isfinite(log_weights)) else features[np.isfinite(log_weights)]
        self.lowest, self.highest = support.min(axis=0), support.max(axis=0)

    def tilted_log_weights(self, phi: Floats) -> tuple[Floats, float]:
        """Return the normalised log-weights under the tilt, and ``A(phi)``."""
        scores = self.features @ phi
        scores += self.log_weights
        value = float(logsumexp(scores))
        scores -= value
        return scores, value

    def evaluate(self, phi: Floats) -> tuple[float, Floats]:  # noqa: D102
        self._weights, value = self.tilted_log_weights(phi)
        np.exp(self._weights, out=self._weights)
        self._phi = phi
        return value, self._weights @ self.features

    def covariance(self, phi: Floats) -> Floats:  # noqa: D102
        if self._phi is None or not np.array_equal(self._phi, phi):
            self.evaluate(phi)
        return self._covariance(self._weights, self._weights @ self.features)

    def _covariance(self, weights: Floats, mean: Floats) -> Floats:
        n, m = self.features.shape
        rows = max(1, CHUNK_BYTES // (8 * m))
        total = np.zeros((m, m))
        for start in range(0, n, rows):
            centred = self.features[start : start + rows] - mean
            total += (centred * weights[start : start + rows, None]).T @ centred
        return total

    def restrict(self, keep: NDArray[np.bool_]) -> tuple[WeightedAtoms, float]:
        """Condition on a subset of the atoms; return also the log of its probability."""
        log_weights = np.where(keep, self.log_weights, -np.inf)
        log_mass = float(logsumexp(log_weights))
        return WeightedAtoms(self.features, log_weights - log_mass), log_mass


@dataclass(frozen=True)
class GaussianAffine:
    """Affine features ``psi(w) = F w + f`` of a Gaussian: A is quadratic."""

    mean: Floats  # (m,): F mean + f
    factor: Floats  # (m, d): F R with covariance R R'

    @property
    def spread(self) -> Floats:  # noqa: D102
        return np.sqrt(np.einsum("ij,ij->i", self.factor, self.factor))

    @property
    def lowest(self) -> Floats:  # noqa: D102
        return np.where(self.spread > 0, -np.inf, self.mean)

    @property
    def highest(self) -> Floats:  # noqa: D102
        return np.where(self.spread > 0, np.inf, self.mean)

    def evaluate(self, phi: Floats) -> tuple[float, Floats]:  # noqa: D102
        moved = self.factor.T @ phi
        return float(phi @ self.mean + 0.5 * moved @ moved), self.mean + self.factor @ moved

    def covariance(self, phi: Floats) -> Floats:  # noqa: D102
        return self.factor @ self.factor.T
