"""Log-partition functions ``A(phi) = log E_p exp<phi, psi>``, their gradients and Hessians.

The dual solver sees a posterior only through one of these two objects: weighted atoms (enumerated models, draws) or
a Gaussian with affine features. docs/math.md eq. (3).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from scipy.special import logsumexp

from regbayes._types import Flags, Floats

CHUNK_BYTES = 1 << 19  # rows are centred and weighted in pieces that stay in the cache, so no copy of all of them


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
        self._weights = np.exp(log_weights)
        self.mean = self._weights @ features
        self._phi = np.zeros(features.shape[1])  # where the weights, and the covariance once asked for, belong
        self._covariance: Floats | None = None
        self.spread = np.sqrt(np.maximum(np.diag(self.covariance(self._phi)), 0.0))
        support = features if np.all(np.isfinite(log_weights)) else features[np.isfinite(log_weights)]
        self.lowest, self.highest = support.min(axis=0), support.max(axis=0)

    def tilted_log_weights(self, phi: Floats) -> tuple[Floats, float]:
        """Return the normalised log-weights under the tilt, and ``A(phi)``."""
        scores = self.features @ phi
        scores += self.log_weights
        value = float(logsumexp(scores))
        scores -= value
        return scores, value

    def evaluate(self, phi: Floats) -> tuple[float, Floats]:
        weights = self.features @ phi
        weights += self.log_weights
        top = float(weights.max())
        weights -= top
        np.exp(weights, out=weights)
        total = float(weights.sum())
        weights /= total
        self._phi, self._weights, self._covariance = phi, weights, None
        return top + float(np.log(total)), weights @ self.features

    def covariance(self, phi: Floats) -> Floats:
        if not np.array_equal(self._phi, phi):
            self.evaluate(phi)
        if self._covariance is None:
            self._covariance = weighted_covariance(self.features, self._weights, self._weights @ self.features)
        return self._covariance

    def restrict(self, keep: Flags) -> tuple[WeightedAtoms, float]:
        """Condition on a subset of the atoms; return also the log of its probability."""
        log_weights = np.where(keep, self.log_weights, -np.inf)
        log_mass = float(logsumexp(log_weights))
        return WeightedAtoms(self.features, log_weights - log_mass), log_mass


def weighted_covariance(features: Floats, weights: Floats, mean: Floats) -> Floats:
    """Return ``sum_i w_i (x_i - mean)(x_i - mean)'`` in one pass, with one small buffer."""
    n, m = features.shape
    rows = max(1, CHUNK_BYTES // (8 * m))
    roots, buffer, total = np.sqrt(weights), np.empty((rows, m)), np.zeros((m, m))
    for start in range(0, n, rows):
        part = buffer[: min(rows, n - start)]
        np.subtract(features[start : start + rows], mean, out=part)
        part *= roots[start : start + rows, None]
        total += part.T @ part
    return total


@dataclass(frozen=True)
class GaussianAffine:
    """Affine features ``psi(w) = F w + f`` of a Gaussian: A is quadratic."""

    mean: Floats  # (m,): F mean + f
    factor: Floats  # (m, d): F R with covariance R R'

    @property
    def spread(self) -> Floats:
        spread: Floats = np.sqrt(np.einsum("ij,ij->i", self.factor, self.factor))
        return spread

    @property
    def lowest(self) -> Floats:
        return np.where(self.spread > 0, -np.inf, self.mean)

    @property
    def highest(self) -> Floats:
        return np.where(self.spread > 0, np.inf, self.mean)

    def evaluate(self, phi: Floats) -> tuple[float, Floats]:
        moved = self.factor.T @ phi
        return float(phi @ self.mean + 0.5 * moved @ moved), self.mean + self.factor @ moved

    def covariance(self, phi: Floats) -> Floats:
        return self.factor @ self.factor.T
