"""Rows less their mean, without a copy of them: the inputs are the largest array of a fit, and its user's."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from regbayes._types import Floats, Integers
from regbayes.kernels.chunks import chunk_bounds


@dataclass(frozen=True)
class Rows:
    """Centred rows: what the model calls x. Products are taken with the rows as they are and corrected by the mean."""

    X: Floats  # (N, D), as they came
    mean: Floats  # (D,)
    squared_norms: Floats  # (N,): of the centred rows

    @classmethod
    def centred(cls, X: Floats, mean: Floats | None = None) -> Rows:
        """Return rows less a mean: their own, unless it is given."""
        mean = X.mean(axis=0) if mean is None else mean
        norms = np.empty(len(X))
        for first, last in chunk_bounds(len(X)):
            part = X[first:last] - mean
            norms[first:last] = np.einsum("nd,nd->n", part, part)
        return cls(X, mean, norms)

    def __len__(self) -> int:
        return len(self.X)

    @property
    def n_inputs(self) -> int:
        """D."""
        return int(self.X.shape[1])

    @property
    def mean_square(self) -> float:
        """Mean squared length of the rows."""
        return float(self.squared_norms.sum()) / len(self)

    def take(self, rows: Integers | slice) -> Rows:
        """Return some of the rows, less the same mean."""
        return Rows(self.X[rows], self.mean, self.squared_norms[rows])

    def array(self) -> Floats:
        """Return the rows themselves, shape (N, D)."""
        return np.asarray(self.X - self.mean)

    def project(self, directions: Floats) -> Floats:
        """Return the products of the rows with directions (K, D), shape (N, K)."""
        products = self.X @ directions.T
        products -= directions @ self.mean
        return np.asarray(products)

    def combine(self, weights: Floats) -> Floats:
        """Return sums of the rows with weights (N, K), shape (K, D)."""
        sums = weights.T @ self.X
        sums -= weights.sum(axis=0)[:, None] * self.mean
        return np.asarray(sums)
