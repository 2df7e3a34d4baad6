"""Where a fit starts: rules that turn "auto" into numbers, and data-driven loadings."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from regbayes.models.ilsvm.state import Globals, Settings
from regbayes.priors.indian_buffet import prior_sticks, update_sticks

Floats = NDArray[np.float64]

NOISE_SHARE = 0.5  # of the inputs' variance that is put down to noise when nothing is said
PRIOR_RATIO = 1 / 0.3  # prior variance of a loading, in noise variances
STICK_ROUNDS = 5  # majorise-minimise steps for the first sticks
START_SPREAD = 1.0  # standard deviation of a feature's logit over the rows at the start


def default_noise_variance(X: Floats) -> float:
    """Half of the inputs' mean square. It scales as the inputs do; only its product with the temperature matters."""
    mean_square = float(np.vdot(X, X)) / X.size
    return NOISE_SHARE * mean_square if mean_square > 0 else 1.0


def random_loadings(X: Floats, settings: Settings, rng: np.random.Generator) -> Floats:
    """Random combinations of the rows, scaled so that every feature's logit varies by about one over the rows."""
    n, D = X.shape
    K = settings.n_components
    directions = rng.standard_normal((K, n)) @ X / np.sqrt(n)
    lengths = np.linalg.norm(directions, axis=1, keepdims=True)
    empty = lengths[:, 0] == 0
    directions[empty] = rng.standard_normal((int(empty.sum()), D))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    spread = (X @ directions.T).std(axis=0)
    precision = 1.0 / (settings.noise_variance * settings.temperature)
    floor = np.sqrt(settings.noise_variance) * 1e-3
    return np.asarray(directions * (START_SPREAD / (precision * np.maximum(spread, floor)))[:, None])


def initial_globals(X: Floats, settings: Settings, rng: np.random.Generator) -> Globals:
    """Random loadings, and sticks and variances as if every feature were on in half of the rows."""
    K, half = settings.n_components, 0.5 * len(X)
    sticks = prior_sticks(settings.alpha, K)
    for _ in range(STICK_ROUNDS):
        sticks = update_sticks(sticks, np.full(K, half), float(len(X)), settings.alpha)
    variance = 1.0 / (1.0 / settings.prior_variance + half / settings.noise_variance)
    return Globals(
        loadings=random_loadings(X, settings, rng),
        variances=np.full(K, variance),
        sticks=sticks,
        noise_variance=settings.noise_variance,
        prior_variance=settings.prior_variance,
        temperature=settings.temperature,
        n_sweeps=settings.n_sweeps,
    )
