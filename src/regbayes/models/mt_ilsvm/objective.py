"""The generative part of the objective as a sum of named terms, constants kept: docs/math.md eq. (45).

Every function takes q(Z), q(w) and the sticks as they are, optimal for each other or not, so that an update can be
tested against perturbations of its own block.
"""

from __future__ import annotations

import numpy as np

from regbayes._types import Floats
from regbayes.models.mt_ilsvm.rows import RowStats
from regbayes.models.mt_ilsvm.state import Factors, Latent
from regbayes.priors.indian_buffet import cross_entropy_features, kl_sticks, stick_expectations


def feature_products(psi: Floats) -> Floats:
    """Return ``U = E[Z^T Z]``, (K, K), of docs/math.md eq. (40)."""
    products = psi.T @ psi
    np.fill_diagonal(products, psi.sum(axis=0))
    return np.asarray(products)


def feature_entropy(logits: Floats) -> float:
    """Return the entropy of q(Z), from logits so that it stays exact where psi rounds to 0 or 1."""
    magnitude = np.abs(logits)
    odds = np.exp(-magnitude)  # of the less likely value
    return float(np.sum(np.log1p(odds) + magnitude * odds / (1.0 + odds)))


def expected_residual(psi: Floats, factors: Factors, stats: RowStats) -> float:
    """Return ``sum_n E||x_n - Z w_n||^2``, docs/math.md eq. (40)."""
    fitted = float(np.sum(psi * factors.cross))
    return stats.squared_norm - 2.0 * fitted + float(np.sum(feature_products(psi) * factors.second_moment))


def generative_terms(
    latent: Latent, factors: Factors, stats: RowStats, alpha: float, temperature: float
) -> dict[str, float]:
    """Return the named terms of ``F_T``: the free energy with the entropy of Z counted ``temperature`` times."""
    psi, noise_variance, weight_variance = latent.psi, latent.noise_variance, latent.weight_variance
    n, (n_columns, n_features) = stats.n_rows, psi.shape
    log_determinant = float(np.linalg.slogdet(factors.covariance)[1])
    kl_factors = 0.5 * float(np.trace(factors.second_moment)) / weight_variance
    kl_factors += 0.5 * n * (n_features * (float(np.log(weight_variance)) - 1.0) - log_determinant)
    likelihood = 0.5 * n * n_columns * float(np.log(2.0 * np.pi * noise_variance))
    likelihood += 0.5 * expected_residual(psi, factors, stats) / noise_variance
    return {
        "kl_sticks": kl_sticks(latent.sticks, alpha),
        "features": cross_entropy_features(stick_expectations(latent.sticks), psi.sum(axis=0), float(n_columns)),
        "entropy": -temperature * feature_entropy(latent.logits),
        "kl_factors": kl_factors,
        "likelihood": likelihood,
    }
