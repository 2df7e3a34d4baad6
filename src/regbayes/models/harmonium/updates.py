"""Updates of one block each: weights in mean field, and what one step of contrastive divergence asks for."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy.linalg import eigh

from regbayes._types import Floats, Indices
from regbayes.models.harmonium.state import Globals
from regbayes.models.harmonium.units import Visible

LONGEST = 1.0 - 1e-4  # largest squared singular value that weights of unbounded units may have


@dataclass(frozen=True)
class Spectrum:
    """The largest eigenvalues of the statistics' second moment, descending, and their directions."""

    values: Floats  # (k,)
    directions: Floats  # (D, k), orthonormal


def spectrum(statistics: Floats, k: int) -> Spectrum:
    """Return the k largest eigenvalues of ``S = sum_n t_n t_n' / N``, or as many as are not zero."""
    n, D = statistics.shape
    wide = n < D
    gram = statistics @ statistics.T if wide else statistics.T @ statistics
    size = len(gram)
    values, vectors = eigh(gram / n, subset_by_index=(max(size - k, 0), size - 1))
    values, vectors = values[::-1], vectors[:, ::-1]
    kept = values > 1e-12 * max(float(values[0]), np.finfo(np.float64).tiny)
    values, vectors = values[kept], vectors[:, kept]
    if wide:
        vectors = statistics.T @ vectors / np.sqrt(n * values)
    largest = np.argmax(np.abs(vectors), axis=0)  # signs of eigenvectors are arbitrary: fix them
    return Spectrum(values, vectors * np.where(vectors[largest, np.arange(len(values))] < 0, -1.0, 1.0))


def update_weights(found: Spectrum, n_components: int) -> Floats:
    """Weights that minimise the mean-field negative log-likelihood, docs/math.md eq. (86), shape (D, K).

    Hidden units beyond the eigenvalues that exceed one have no weights.
    """
    weights = np.zeros((len(found.directions), n_components))
    k = min(n_components, len(found.values))
    lengths = np.sqrt(np.maximum(1.0 - 1.0 / found.values[:k], 0.0))
    weights[:, :k] = found.directions[:, :k] * lengths
    return weights


@dataclass(frozen=True)
class Contrast:
    """An estimate of the negative log-likelihood's gradient, per row."""

    weights: Floats  # (D, K)
    biases: Floats  # (D,)


def contrast(
    X: Floats, statistics: Floats, g: Globals, visible: Visible, n_gibbs: int, rng: np.random.Generator
) -> Contrast:
    """Contrastive divergence (Hinton 2002): statistics of rows after some Gibbs steps, less those before, eq. (88)."""
    rows, t = X, statistics
    for _ in range(n_gibbs):
        hidden = t @ g.weights + rng.standard_normal((len(t), g.weights.shape[1]))
        rows = visible.draw(g.biases + hidden @ g.weights.T, rows, rng)
        t = visible.statistic(rows)
    weights = t.T @ (t @ g.weights) - statistics.T @ (statistics @ g.weights)
    return Contrast(weights / len(t), (t - statistics).mean(axis=0))


def clip_weights(g: Globals, unbounded: Indices) -> Globals:
    """Shorten the weights of unbounded units where the model would have no normaliser."""
    if not len(unbounded):
        return g
    left, lengths, right = np.linalg.svd(g.weights[unbounded], full_matrices=False)
    if lengths[0] ** 2 <= LONGEST:
        return g
    weights = g.weights.copy()
    weights[unbounded] = (left * np.minimum(lengths, np.sqrt(LONGEST))) @ right
    return replace(g, weights=weights)
