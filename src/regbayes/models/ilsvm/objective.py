"""The objective J as a sum of named terms, constants kept, docs/math.md eq. (25), (29)-(30)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from regbayes.models.ilsvm.inference import Stats
from regbayes.models.ilsvm.state import Globals
from regbayes.priors.indian_buffet import cross_entropy_features, kl_sticks, stick_expectations

Floats = NDArray[np.float64]


def expected_residual(stats: Stats, g: Globals) -> float:
    """``sum_n E||x_n - W z_n||^2``."""
    D = g.loadings.shape[1]
    inner = g.loadings @ g.loadings.T
    squares = np.diag(inner)
    pairs = float(np.sum(stats.gram * inner) - np.diag(stats.gram) @ squares)
    own = float(stats.counts @ (squares + D * g.variances))
    return stats.squared_norm - 2.0 * float(np.sum(stats.cross * g.loadings)) + pairs + own


def kl_loadings(g: Globals) -> float:
    """``KL(q(W) || p(W))``."""
    D = g.loadings.shape[1]
    ratio = g.variances / g.prior_variance
    squares = float(np.vdot(g.loadings, g.loadings)) / g.prior_variance
    return 0.5 * float(D * np.sum(ratio - 1.0 - np.log(ratio))) + 0.5 * squares


def generative_terms(stats: Stats, g: Globals, alpha: float, weight: float) -> dict[str, float]:
    """``r F_T / T`` term by term."""
    T, D = g.temperature, g.loadings.shape[1]
    log_normaliser = 0.5 * stats.n_rows * D * np.log(2.0 * np.pi * g.noise_variance)
    likelihood = 0.5 * expected_residual(stats, g) / g.noise_variance + log_normaliser
    features = cross_entropy_features(stick_expectations(g.sticks), stats.counts, stats.n_rows)
    return {
        "likelihood": weight * float(likelihood) / T,
        "kl_features": weight * (features / T - stats.entropy),
        "kl_loadings": weight * kl_loadings(g) / T,
        "kl_sticks": weight * kl_sticks(g.sticks, alpha) / T,
    }


def generative_gradient(stats: Stats, g: Globals, weight: float) -> Floats:
    """Gradient of ``r F_T / T`` with respect to the loadings at fixed features, docs/math.md eq. (34), shape (K, D)."""
    second = stats.gram.copy()
    np.fill_diagonal(second, stats.counts)
    slope = (second @ g.loadings - stats.cross) / g.noise_variance + g.loadings / g.prior_variance
    return np.asarray(weight / g.temperature * slope)
