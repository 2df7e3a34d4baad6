"""Closed-form updates of one block each."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from regbayes._types import Floats
from regbayes.kernels.sweeps import sweep_features
from regbayes.models.ilsvm.inference import Stats, base_logits
from regbayes.models.ilsvm.objective import expected_residual, second_moment
from regbayes.models.ilsvm.rows import Rows
from regbayes.models.ilsvm.state import Globals, Settings
from regbayes.priors.indian_buffet import update_sticks

VARIANCE_FLOOR = 1e-8  # of the inputs' mean square: a model that explains the rows exactly stays proper


def update_prior_blocks(g: Globals, stats: Stats, alpha: float) -> Globals:
    """Sticks (one majorise-minimise step) and loading variances, docs/math.md eq. (23) and (28)."""
    sticks = update_sticks(g.sticks, stats.counts, stats.n_rows, alpha)
    return replace(g, sticks=sticks, variances=loading_variances(g, stats))


def loading_variances(g: Globals, stats: Stats) -> Floats:
    """``s_k``, docs/math.md eq. (28)."""
    return np.asarray(1.0 / (1.0 / g.prior_variance + stats.counts / g.noise_variance))


def update_loadings(g: Globals, stats: Stats, cross: Floats) -> Globals:
    """Means and variances of the loadings at fixed features: one linear system, docs/math.md eq. (28).

    ``cross`` is the sum of ``psi_n x_n'``, shape (K, D).
    """
    system = second_moment(stats) / g.noise_variance
    system[np.diag_indices_from(system)] += 1.0 / g.prior_variance
    loadings = np.asarray(cho_solve(cho_factor(system), cross / g.noise_variance))
    return replace(g, loadings=loadings, variances=loading_variances(g, stats))


def update_variances(g: Globals, stats: Stats, settings: Settings) -> Globals:
    """Noise and prior variance by empirical Bayes, those of them that are to be estimated, with a floor."""
    K, D = g.loadings.shape
    floor = VARIANCE_FLOOR * stats.squared_norm / (stats.n_rows * D)
    noise, prior = g.noise_variance, g.prior_variance
    if settings.estimate_noise:
        noise = max(expected_residual(stats, g) / (stats.n_rows * D), floor)
    if settings.estimate_prior:
        squares = float(np.vdot(g.loadings, g.loadings)) + D * float(np.sum(g.variances))
        prior = max(squares / (K * D), floor)
    return replace(g, noise_variance=noise, prior_variance=prior)


def update_features(X: Rows, psi: Floats, pull: Floats, g: Globals) -> Floats:
    """One sweep over the features of rows from where they are, docs/math.md eq. (27).

    Parameters
    ----------
    X : Rows
        n of them.
    psi : array of shape (n, K)
    pull : array of shape (n, K)
        What the margins add to the logits; zero for rows without a label.
    g : Globals
    """
    out = np.empty_like(psi)
    sweep_features(base_logits(X, g) + pull, g.coupling, psi, 1, out)
    return out
