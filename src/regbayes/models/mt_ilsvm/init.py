"""Where a fit starts, and how its parts are scaled against each other."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from scipy.linalg import eigh
from scipy.special import expit

from regbayes._types import Floats
from regbayes.models.mt_ilsvm.rows import RowStats
from regbayes.models.mt_ilsvm.state import Latent, Scales, Settings
from regbayes.priors.indian_buffet import Sticks, prior_sticks, update_sticks

START_LOGIT = 2.0
"""Root mean square of the logits that the principal directions start from."""
NOISE_LOGIT = 0.1
"""Size of the noise that tells apart features which would start alike."""
TEMPERATURES = (0.1, 0.03, 0.01, 0.003, 0.001, 0.0)
"""Temperatures tried for the factor analysis that starts a fit, from hot to cold."""
AUTO_HEAT, AUTO_TEMPERATURE = 3.0, 0.03
"""How much hotter than that start an automatic temperature is, and what it is at least."""
UNUSED_RANGE = 0.1
"""A feature whose probabilities differ less over the columns tells no column from another."""
GRADED = 0.15
"""Mean of psi (1 - psi) above which the features have melted; it is 0.25 where all are 1/2."""
LOST = 0.2
"""The same while the factor analysis goes on: from there it was never seen to come back."""
AUTO_GENERATIVE, LARGE_PRICE = 150.0, 0.03
"""An automatic generative weight has ``r = AUTO_GENERATIVE tau K C^2 / (1 + C / LARGE_PRICE)``.

It is r / tau that multiplies the likelihood, and more features need more of it. At small C the weights are proportional
to C, so what the margins add to the logits is proportional to C^2 / r; at large C the weights no longer grow, and it is
proportional to C / r. docs/notes/mt_ilsvm.md has the measurements."""


def resolve_scales(settings: Settings, tau: float, n_rows: float, n_targets: float) -> Scales:
    """Turn temperature and generative weight into the numbers that the objective has; see `Scales`."""
    counted = max(n_rows, n_targets)
    temperature = max(1.0, tau * counted)
    per_row = n_targets / n_rows
    if settings.generative_weight == "auto":
        price = settings.C / (1.0 + settings.C / LARGE_PRICE)
        weight = AUTO_GENERATIVE * settings.n_components * price * temperature / counted * per_row
    else:
        weight = settings.generative_weight
    generative = settings.C * weight / per_row if n_targets > 0 else 1.0
    return Scales(counted / n_rows, tau, temperature, weight, generative)


def have_melted(latent: Latent) -> bool:
    """Whether a factor analysis was too hot to find features."""
    return _graded(latent) > GRADED


def are_melting(latent: Latent) -> bool:
    """Whether a factor analysis that still goes on will end with features that have melted."""
    return _graded(latent) > LOST


def _graded(latent: Latent) -> float:
    psi = latent.psi
    return float(np.mean(psi * (1.0 - psi)))


def start_latent(stats: RowStats, settings: Settings, noise: Floats) -> Latent:
    """Return logits along the principal directions of the inputs, one feature for each sign.

    A binary feature of the columns can follow a direction of either sign only one way, so each direction gives two.

    Parameters
    ----------
    noise : (D, K)
        Standard normal numbers. Beyond twice the rank of the inputs they are all that a feature starts from.
    """
    n_columns, n_features = len(stats.gram), settings.n_components
    n_directions = min((n_features + 1) // 2, n_columns)
    values, vectors = eigh(stats.gram, subset_by_index=[n_columns - n_directions, n_columns - 1])
    values, vectors = values[::-1], vectors[:, ::-1]
    vectors = vectors[:, values > 1e-10 * max(values[0], 1e-300)]
    # Fix the signs, which an eigen-solver leaves open, by something that does not change with the order of columns.
    vectors = vectors * np.where((vectors**3).sum(axis=0) < 0, -1.0, 1.0)
    pairs = np.stack([vectors, -vectors], axis=2).reshape(n_columns, -1)[:, :n_features]
    logits = NOISE_LOGIT * noise
    logits[:, : pairs.shape[1]] += START_LOGIT * np.sqrt(n_columns) * pairs
    logits, sticks = in_order_of_use(logits, settings.alpha)
    mean_square = stats.mean_square
    return Latent(
        logits=logits,
        sticks=sticks,
        noise_variance=0.5 * mean_square if settings.noise_variance is None else settings.noise_variance,
        weight_variance=mean_square if settings.weight_variance is None else settings.weight_variance,
    )


def in_order_of_use(logits: Floats, alpha: float) -> tuple[Floats, Sticks]:
    """Return features in falling order of use, which is what sticks expect, and sticks that suit them."""
    n_columns, n_features = logits.shape
    counts = expit(logits).sum(axis=0)
    order = np.argsort(-counts, kind="stable")
    sticks = prior_sticks(alpha, n_features)
    for _ in range(5):
        sticks = update_sticks(sticks, counts[order], float(n_columns), alpha)
    return logits[:, order], sticks


def revive(latent: Latent, noise: Floats, alpha: float, tempered: bool) -> Latent:
    """Start features that a factor analysis has switched off once more, from noise.

    Nothing pulls at a feature that no column has, nor at one that all columns have alike: the margins cannot bring it
    back. Where inputs are few or uncorrelated that can be any number of features, all of them at worst. Tempered
    features are a budget that is there to be used, so each is started again. Without tempering the number of features
    is what the data ask for, and they are started again only if none is left.
    """
    psi = latent.psi
    highest, lowest = psi.max(axis=0), psi.min(axis=0)
    unused = (highest < 0.5) | (highest - lowest < UNUSED_RANGE)
    if not (unused.any() if tempered else unused.all()):
        return latent
    logits, sticks = in_order_of_use(np.where(unused, noise, latent.logits), alpha)
    return replace(latent, logits=logits, sticks=sticks)
