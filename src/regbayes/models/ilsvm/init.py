"""Where a fit starts: rules that turn "auto" into numbers, and data-driven loadings."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from regbayes._types import Floats, Integers
from regbayes.models.ilsvm.rows import Rows
from regbayes.models.ilsvm.state import UNLABELED, Globals, Settings
from regbayes.priors.indian_buffet import prior_sticks, update_sticks

NOISE_SHARE = 0.5  # of the inputs' variance that is put down to noise when nothing is said
PRIOR_RATIO = 1 / 0.3  # prior variance of a loading, in noise variances
SIGNAL = 10.0  # mean squared length of rows in units of tempered noise where features are graded
EARLY_ROWS = 4096  # what the start-up makes do with
START_ROWS = 1000  # whose combinations the loadings start from
STICK_ROUNDS = 5  # majorise-minimise steps for the first sticks
ROUNDING = 1e-6  # graded features are the default: rounding must not decide whether there is anything to cool down
START_SPREAD = 1.0  # standard deviation of a feature's logit over the rows at the start
START_LENGTH = 2.0  # largest squared length of a loading at the start, in units of the tempered noise


def default_noise_variance(X: Rows) -> float:
    """Half of the inputs' mean square. It scales as the inputs do; only its product with the temperature matters."""
    mean_square = X.mean_square / X.n_inputs
    return NOISE_SHARE * mean_square if mean_square > 0 else 1.0


def graded_temperature(X: Rows, noise_variance: float) -> float:
    """Return the temperature at which rows have a squared length of `SIGNAL` on average, in units of tempered noise.

    Features are graded there and predict best. Training starts at it, also when colder features are wanted.
    """
    return max(1.0, X.mean_square / (SIGNAL * noise_variance))


def draw_early_rows(labels: Integers, rng: np.random.Generator) -> Integers | None:
    """Draw the rows for the start-up of a fit, or None where it can have them all.

    Of rows with and without a label, each kind gets its share of the places, labelled rows at least half of them.
    """
    if len(labels) <= 2 * EARLY_ROWS:
        return None
    labeled, rest = np.flatnonzero(labels != UNLABELED), np.flatnonzero(labels == UNLABELED)
    share = max(0.5, len(labeled) / len(labels)) if len(labeled) else 0.0
    n_labeled = min(len(labeled), round(share * EARLY_ROWS))
    chosen = [rng.choice(labeled, n_labeled, replace=False), rng.choice(rest, EARLY_ROWS - n_labeled, replace=False)]
    return np.sort(np.concatenate(chosen))


def draw_seed(rng: np.random.Generator) -> int:
    """Draw the seed of the features that the start-up adds."""
    return int(rng.integers(2**31))


def random_loadings(X: Rows, settings: Settings, rng: np.random.Generator) -> Floats:
    """Random combinations of rows, scaled so that every feature's logit varies by about one over the rows."""
    some = rng.choice(len(X), min(len(X), START_ROWS), replace=False)
    n, K = len(some), settings.n_components
    rows = X.take(some).array()
    directions = rng.standard_normal((K, n)) @ rows / np.sqrt(n)
    lengths = np.linalg.norm(directions, axis=1, keepdims=True)
    empty = lengths[:, 0] == 0
    directions[empty] = rng.standard_normal((int(empty.sum()), X.n_inputs))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    spread = (rows @ directions.T).std(axis=0)
    precision = 1.0 / (settings.noise_variance * settings.temperature)
    # Half the squared length is what a feature has against it: longer ones would start out off in all rows.
    longest = np.sqrt(START_LENGTH / precision)
    with np.errstate(divide="ignore"):
        lengths = np.minimum(START_SPREAD / (precision * spread), longest)
    return np.asarray(directions * lengths[:, None])


def initial_globals(X: Rows, settings: Settings, rng: np.random.Generator) -> Globals:
    """Random loadings, and sticks and variances as if every feature were on in half of the rows.

    The start is never colder than the temperature at which features are graded.
    """
    graded = graded_temperature(X, settings.noise_variance)
    if graded > (1.0 + ROUNDING) * settings.temperature:
        settings = replace(settings, temperature=graded)
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
