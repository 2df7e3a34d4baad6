"""The objective J as a sum of named terms, constants kept, docs/math.md eq. (25), (29)-(30)."""

from __future__ import annotations

import numpy as np

from regbayes._types import Floats
from regbayes.models.ilsvm.inference import Stats
from regbayes.models.ilsvm.state import Globals
from regbayes.priors.indian_buffet import cross_entropy_features, kl_sticks, stick_expectations


def second_moment(stats: Stats) -> Floats:
    """``sum_n E[z_n z_n']``, shape (K, K)."""
    moment = stats.gram.copy()
    np.fill_diagonal(moment, stats.counts)
    return np.asarray(moment)


def expected_residual(stats: Stats, g: Globals) -> float:
    """``sum_n E||x_n - W z_n||^2``, docs/math.md eq. (25)."""
    products = float(np.vdot(second_moment(stats), g.loadings @ g.loadings.T))
    spread = float(g.loadings.shape[1] * (stats.counts @ g.variances))
    return stats.squared_norm - 2.0 * stats.explained + products + spread


def kl_of_each_loading(g: Globals) -> Floats:
    """``KL(q(W_k) || p(W_k))``, shape (K,)."""
    ratio = g.variances / g.prior_variance
    squares = np.einsum("kd,kd->k", g.loadings, g.loadings) / g.prior_variance
    return np.asarray(0.5 * (g.loadings.shape[1] * (ratio - 1.0 - np.log(ratio)) + squares))


def generative_terms(stats: Stats, g: Globals, alpha: float, weight: float) -> dict[str, float]:
    """``r F_T / T`` term by term."""
    T, D = g.temperature, g.loadings.shape[1]
    log_normaliser = 0.5 * stats.n_rows * D * np.log(2.0 * np.pi * g.noise_variance)
    likelihood = 0.5 * expected_residual(stats, g) / g.noise_variance + log_normaliser
    features = cross_entropy_features(stick_expectations(g.sticks), stats.counts, stats.n_rows)
    return {
        "likelihood": weight * float(likelihood) / T,
        "kl_features": weight * (features / T - stats.entropy),
        "kl_loadings": weight * float(kl_of_each_loading(g).sum()) / T,
        "kl_sticks": weight * kl_sticks(g.sticks, alpha) / T,
    }
