"""Updates of the generative part, one pure function per block: docs/math.md section 4."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from scipy.special import expit

from regbayes._types import Floats
from regbayes.models.mt_ilsvm.objective import expected_residual, feature_products
from regbayes.models.mt_ilsvm.rows import RowStats
from regbayes.models.mt_ilsvm.state import Factors, Latent
from regbayes.priors import indian_buffet
from regbayes.priors.indian_buffet import cross_entropy_features, kl_sticks, stick_expectations

VARIANCE_FLOOR = 1e-8
"""Smallest noise variance, relative to the mean square of the inputs; exact fits end there, not at zero."""


def update_factors(latent: Latent, stats: RowStats, covariance: Literal["isotropic", "full"]) -> Factors:
    """Return the q(w) that is optimal for q(Z), docs/math.md eq. (41): one K x K system for all rows."""
    psi, U = latent.psi, feature_products(latent.psi)
    n_features = psi.shape[1]
    precision = U / latent.noise_variance
    precision[np.diag_indices(n_features)] += 1.0 / latent.weight_variance
    best_covariance = cho_solve(cho_factor(precision), np.eye(n_features))
    projection = psi @ best_covariance / latent.noise_variance
    spread = best_covariance if covariance == "full" else np.eye(n_features) * (n_features / np.trace(precision))
    cross = stats.gram @ projection
    return Factors(projection, spread, cross, projection.T @ cross + stats.n_rows * spread)


def feature_logits(latent: Latent, factors: Factors, temperature: float) -> Floats:
    """Return theta of docs/math.md eq. (46), (D, K): the logits of Z that the generative part alone asks for.

    The gradient of ``F_T`` with respect to the logits is ``T psi (1 - psi) (logits - feature_logits)``.
    """
    psi = latent.psi
    M = factors.second_moment / latent.noise_variance
    own = np.diag(M)
    others = psi @ M - psi * own
    prior = stick_expectations(latent.sticks).log_odds
    return np.asarray((prior - 0.5 * own + factors.cross / latent.noise_variance - others) / temperature)


def update_features(latent: Latent, factors: Factors, temperature: float, pull: Floats) -> Latent:
    """One exact pass over q(Z), feature by feature, for q(w) and the margins' multipliers as they are.

    ``pull`` (D, K) is what the margins add to the logits.
    """
    psi = latent.psi
    M = factors.second_moment / latent.noise_variance
    prior = stick_expectations(latent.sticks).log_odds
    logits = np.empty_like(psi)
    for k in range(psi.shape[1]):
        others = psi @ M[:, k] - psi[:, k] * M[k, k]
        generative = prior[k] - 0.5 * M[k, k] + factors.cross[:, k] / latent.noise_variance - others
        logits[:, k] = generative / temperature + pull[:, k]
        psi[:, k] = expit(logits[:, k])
    return replace(latent, logits=logits)


def update_sticks(latent: Latent, alpha: float) -> Latent:
    """One majorise-minimise step of q(nu), kept only where it lowers the objective (rounding aside, it always does)."""
    counts, n_columns = latent.psi.sum(axis=0), float(len(latent.logits))
    new = indian_buffet.update_sticks(latent.sticks, counts, n_columns, alpha)

    def cost(sticks: indian_buffet.Sticks) -> float:
        return kl_sticks(sticks, alpha) + cross_entropy_features(stick_expectations(sticks), counts, n_columns)

    return replace(latent, sticks=new) if cost(new) <= cost(latent.sticks) else latent


def update_noise_variance(latent: Latent, factors: Factors, stats: RowStats) -> Latent:
    """Set lambda^2 to its optimum for q(Z) and q(w), docs/math.md eq. (42)."""
    size = stats.n_rows * len(latent.logits)
    residual = expected_residual(latent.psi, factors, stats) / size
    return replace(latent, noise_variance=max(residual, VARIANCE_FLOOR * stats.mean_square))


def update_weight_variance(latent: Latent, factors: Factors, stats: RowStats) -> Latent:
    """Set sigma0^2 to its optimum for q(w), docs/math.md eq. (42)."""
    size = stats.n_rows * latent.logits.shape[1]
    return replace(latent, weight_variance=float(np.trace(factors.second_moment)) / size)
