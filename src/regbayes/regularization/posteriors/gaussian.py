"""A Gaussian posterior with affine features."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtri

from regbayes._registry import persistable
from regbayes._types import Floats
from regbayes.kernels.arrays import is_plain, to_host
from regbayes.regularization.features import Combination, Features, OnEvent, Picked, pick_columns
from regbayes.regularization.log_partition import GaussianAffine
from regbayes.regularization.posteriors.base import (
    Expectations,
    Posterior,
    as_features,
    as_multipliers,
    as_probabilities,
)


@final
@persistable
class Gaussian(Posterior):
    """A Gaussian posterior; its features are affine functions of the variable.

    Parameters
    ----------
    mean : array of shape (d,)
    covariance : array of shape (d, d) or (d,)
        A vector is a diagonal covariance.
    log_evidence : float, default=None
        ``log p(D)``, if known; required by `empirical_bayes`.

    Examples
    --------
    >>> from regbayes import E, Gaussian, regularize
    >>> result = regularize(Gaussian([0.0, 1.0], [1.0, 4.0]), E([1.0, 1.0]) == 3)  # the mean of the sum
    >>> result.posterior.mean.round(3)
    array([0.4, 2.6])
    """

    def __init__(self, mean: ArrayLike, covariance: ArrayLike, *, log_evidence: float | None = None) -> None:
        self.log_evidence = log_evidence
        self.mean = np.atleast_1d(np.asarray(to_host(mean), dtype=np.float64))
        self.covariance = np.asarray(to_host(covariance), dtype=np.float64)
        d = self.mean.size
        if self.mean.ndim != 1 or d == 0 or self.covariance.shape not in ((d,), (d, d)):
            raise ValueError(
                f"mean must have shape (d,) and covariance (d, d) or (d,); got {self.mean.shape} "
                f"and {self.covariance.shape}"
            )
        if not (np.all(np.isfinite(self.mean)) and np.all(np.isfinite(self.covariance))):
            raise ValueError("mean and covariance must be finite")
        self._factor = _covariance_factor(self.covariance)

    @property
    def size(self) -> int:
        """Number of variables."""
        return self.mean.size

    def evaluate(self, features: Any) -> Features:
        """Return the features as the rows ``[coefficients, constant]`` of an affine map.

        Parameters
        ----------
        features : array of shape (d,) or (m, d), or callable
            Coefficients of linear features, or an affine function of one vector of shape (d,) (checked at some points),
            or a list of these.
        """
        if isinstance(features, Picked):
            inner = self.evaluate(features.features)
            columns = pick_columns(inner.names, features.index)
            return Features(inner.values[columns], tuple(inner.names[i] for i in columns))
        if isinstance(features, Combination):
            parts = [self.evaluate(part) for part in features.parts]
            names = features.name([part.names for part in parts])
            rows = features.combine([part.values for part in parts])
            rows[:, :-1] -= features.constant  # the constant belongs to the last column alone
            return Features(rows, names)
        items = [features]
        if isinstance(features, list | tuple) and any(callable(item) or np.ndim(item) > 0 for item in features):
            items = list(features)
        rows = np.concatenate([_affine_rows(item, self.size) for item in items])
        if not np.all(np.isfinite(rows)):
            raise ValueError("features must be finite")
        return Features(rows, tuple(f"psi[{i}]" for i in range(len(rows))))

    def join(self, parts: Sequence[Features]) -> Features:
        """Stack the rows of several affine maps."""
        names = tuple(name for part in parts for name in part.names)
        return Features(np.concatenate([part.values for part in parts]), names)

    def bind(self, features: Features) -> GaussianAffine:
        """Return the quadratic log-partition function of an affine map."""
        coefficients, constants = features.values[:, :-1], features.values[:, -1]
        factor = coefficients * self._factor if self._factor.ndim == 1 else coefficients @ self._factor
        grain = np.finfo(np.float64).eps * (np.abs(coefficients) @ np.abs(self.mean) + np.abs(constants))
        return GaussianAffine(coefficients @ self.mean + constants, factor, grain)

    def tilt(self, features: Any, multipliers: ArrayLike) -> Gaussian:
        """Return ``q ∝ p exp<multipliers, features>``, which has the same covariance."""
        rows = as_features(self, features).values
        slope = as_multipliers(multipliers, len(rows)) @ rows[:, :-1]
        move = self.covariance * slope if self.covariance.ndim == 1 else self.covariance @ slope
        return Gaussian(self.mean + move, self.covariance)

    def shift(self, move: Floats) -> Gaussian:
        """Return the same Gaussian with its mean moved by R ``move``, R R' = covariance."""
        return Gaussian(
            self.mean + (self._factor * move if self._factor.ndim == 1 else self._factor @ move), self.covariance
        )

    def expectation(self, features: Any) -> Floats:
        """Return the expectation of each affine feature, shape (m,)."""
        return self.bind(as_features(self, features)).mean.view(Expectations)

    def sd(self, features: Any) -> Floats:
        """Return the standard deviation of each affine feature, shape (m,)."""
        return self.bind(as_features(self, features)).spread

    def quantile(self, features: Any, probabilities: ArrayLike) -> Floats:
        """Return quantiles, shape (m,) for one probability and (m, k) for k."""
        evaluated = as_features(self, features)
        quantiles: Floats = np.add.outer(np.zeros(len(evaluated.names)), ndtri(as_probabilities(probabilities)))
        columns = (slice(None),) + (None,) * (quantiles.ndim - 1)
        return self.expectation(evaluated)[columns] + self.sd(evaluated)[columns] * quantiles

    def sample(self, rng: np.random.Generator | int | None = None, size: int = 1) -> Floats:
        """Draw vectors, shape (size, d)."""
        noise = np.random.default_rng(rng).standard_normal((size, self.size))
        return self.mean + (noise * self._factor if self._factor.ndim == 1 else noise @ self._factor.T)

    def __repr__(self) -> str:
        return f"Gaussian({self.size} variables, {'diagonal' if self.covariance.ndim == 1 else 'dense'} covariance)"


def _covariance_factor(covariance: Floats) -> Floats:
    """Return R with R R' = covariance, or the diagonal of R."""
    if covariance.ndim == 1:
        if np.any(covariance < 0):
            raise ValueError("covariance must be positive semi-definite, got a negative variance")
        return np.sqrt(covariance)
    scale = float(np.max(np.abs(covariance)))
    if not np.allclose(covariance, covariance.T, rtol=0, atol=1e-10 * scale):
        raise ValueError("covariance must be symmetric")
    values, vectors = np.linalg.eigh(covariance)
    if values[0] < -1e-10 * scale:
        raise ValueError(f"covariance must be positive semi-definite, got the eigenvalue {values[0]:.3g}")
    # The symmetric root does not depend on the signs of the eigenvectors, so that draws of a seed are reproducible.
    root: Floats = (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T
    return root


def _affine_rows(feature: Any, d: int) -> Floats:
    """Return an affine map as rows of coefficients and a constant."""
    if isinstance(feature, OnEvent):
        raise TypeError("given(event) is not affine; draw from the Gaussian and use Samples")
    if not callable(feature):
        feature = feature if is_plain(feature) else to_host(feature)
        if np.asarray(feature).dtype.kind not in "biuf":
            raise TypeError(
                f"features of a Gaussian are arrays of coefficients or affine functions, got {feature!r}; "
                "its variables have no names"
            )
        rows = np.atleast_2d(np.asarray(feature, dtype=np.float64))
        if rows.ndim != 2 or rows.shape[1] != d:
            raise ValueError(f"features of a Gaussian must have shape ({d},) or (m, {d}), got {np.shape(feature)}")
        return np.hstack([rows, np.zeros((len(rows), 1))])

    def call(point: Floats) -> Floats:
        try:
            return np.atleast_1d(np.asarray(feature(point), dtype=np.float64))
        except IndexError as error:  # probably written for draws
            raise ValueError(
                f"a feature function of a Gaussian is called with one vector of shape ({d},), not with draws, and this "
                f"one could not take it: {error}"
            ) from error

    constant = call(np.zeros(d))
    coefficients = np.stack([call(unit) - constant for unit in np.eye(d)], axis=1)
    probe = np.linspace(-1.5, 2.5, d) + 0.37
    expected = coefficients @ probe + constant
    size = 1 + np.max(np.abs(coefficients), initial=0.0) + np.max(np.abs(constant))
    if not np.allclose(call(probe), expected, rtol=0, atol=1e-8 * d * size):
        raise ValueError(
            "a feature function of a Gaussian must be affine, and this one is not; "
            "draw from the Gaussian and use Samples for other functions"
        )
    return np.hstack([coefficients, constant[:, None]])
