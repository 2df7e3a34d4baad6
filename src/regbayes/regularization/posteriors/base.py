"""The posterior interface: log-partition, tilt and expectations."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from regbayes._registry import Saveable
from regbayes._types import Floats
from regbayes.kernels.arrays import join_columns
from regbayes.regularization.features import Features
from regbayes.regularization.log_partition import LogPartition


class Expectations(np.ndarray[Any, np.dtype[np.float64]]):
    """Expectations, shape (m,); a single one converts to ``float``."""

    def __float__(self) -> float:
        if self.size != 1:
            raise TypeError(f"these are {self.size} expectations; take one by its index before float()")
        return float(self.item())

    def __format__(self, spec: str) -> str:
        return format(float(self), spec) if spec and self.size == 1 else super().__format__(spec)


class Posterior(Saveable, ABC):
    """Interface of posteriors for `regularize`."""

    is_drawn: ClassVar[bool] = False  # whether draws represent it, so that the solution has a Monte Carlo error
    log_evidence: float | None = None  # log p(D), if known: empirical Bayes compares models by it

    @abstractmethod
    def evaluate(self, features: Any) -> Features:
        """Return the features in the posterior's own form, with a name for each."""

    def join(self, parts: Sequence[Features]) -> Features:
        """Join several sets of evaluated features, such as columns of atoms."""
        names = tuple(name for part in parts for name in part.names)
        return parts[0] if len(parts) == 1 else Features(join_columns([part.values for part in parts]), names)

    @abstractmethod
    def bind(self, features: Features) -> LogPartition:
        """Return the log-partition function of evaluated features."""

    @abstractmethod
    def tilt(self, features: Any, multipliers: ArrayLike) -> Posterior:
        """Return ``q ∝ p exp<multipliers, features>``."""

    @abstractmethod
    def expectation(self, features: Any) -> Floats:
        """Return the expectation of each feature, shape (m,)."""

    @abstractmethod
    def sd(self, features: Any) -> Floats:
        """Return the standard deviation of each feature, shape (m,)."""

    @abstractmethod
    def quantile(self, features: Any, probabilities: ArrayLike) -> Floats:
        """Return quantiles of each feature, shape (m,) for one probability, (m, k) for k."""

    def interval(self, features: Any, probability: float = 0.94) -> Floats:
        """Return the equal-tailed interval of each feature, shape (m, 2)."""
        if not 0 < probability < 1:
            raise ValueError(f"probability must lie between 0 and 1, got {probability!r}")
        return self.quantile(features, [(1 - probability) / 2, (1 + probability) / 2])

    @abstractmethod
    def sample(self, rng: np.random.Generator | int | None = None, size: int = 1) -> Any:
        """Draw from the posterior."""

    def log_partition(self, features: Any, multipliers: ArrayLike) -> float:
        """Return ``log E exp<multipliers, features>``."""
        bound = self.bind(as_features(self, features))
        return bound.evaluate(as_multipliers(multipliers, len(bound.mean)))[0]


def as_features(posterior: Posterior, features: Any) -> Features:
    """Evaluate features, unless they are evaluated already."""
    return features if isinstance(features, Features) else posterior.evaluate(features)


def as_probabilities(probabilities: ArrayLike) -> Floats:
    """Return quantile levels as an array of numbers from 0 to 1."""
    levels = np.asarray(probabilities, dtype=np.float64)
    if levels.ndim > 1 or not np.all((levels >= 0) & (levels <= 1)):
        raise ValueError(f"probabilities must be numbers from 0 to 1, got {probabilities!r}")
    return levels


def as_multipliers(multipliers: ArrayLike, size: int) -> Floats:
    """Return the multipliers as one number per feature."""
    phi = np.atleast_1d(np.asarray(multipliers, dtype=np.float64))
    if phi.shape != (size,):
        raise ValueError(f"multipliers must have one entry per feature, shape ({size},), got {phi.shape}")
    return phi
