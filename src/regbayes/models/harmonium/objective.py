"""The objective as a sum of named terms, constants kept, docs/math.md eq. (84)-(89)."""

from __future__ import annotations

import numpy as np

from regbayes._types import Floats
from regbayes.models.harmonium.state import Globals
from regbayes.models.harmonium.units import Visible


def log_normaliser(weights: Floats) -> float:
    """``log Z`` in mean field, eq. (84): exact for Gaussian units, and infinite where the mean field is unstable."""
    rest = np.eye(weights.shape[1]) - weights.T @ weights
    try:
        factor = np.linalg.cholesky(rest)
    except np.linalg.LinAlgError:
        return np.inf
    return float(-np.log(np.diag(factor)).sum())


def normaliser_gradient(weights: Floats) -> Floats:
    """Gradient of ``log Z``, shape (D, K)."""
    rest = np.eye(weights.shape[1]) - weights.T @ weights
    return np.asarray(np.linalg.solve(rest, weights.T).T)


def row_log_densities(X: Floats, statistics: Floats, g: Globals, visible: Visible) -> Floats:
    """Log-density of rows in mean field, eq. (83), shape (n,)."""
    hidden = statistics @ g.weights
    tilt = statistics @ g.biases + 0.5 * np.square(hidden).sum(axis=1)
    return np.asarray(visible.log_base(X) + tilt - log_normaliser(g.weights))


def reconstruction_costs(X: Floats, statistics: Floats, g: Globals, visible: Visible) -> Floats:
    """``-log p(x | E[h | x])`` of rows, eq. (89), shape (n,)."""
    natural = g.biases + (statistics @ g.weights) @ g.weights.T
    explained = np.einsum("nd,nd->n", natural, statistics) - visible.log_tilt(natural, X)
    return np.asarray(-visible.log_base(X) - explained)
