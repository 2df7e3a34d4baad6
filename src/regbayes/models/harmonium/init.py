"""Where a fit starts: units from the columns of a view, and weights from a singular value decomposition."""

from __future__ import annotations

import numpy as np

from regbayes._types import Floats
from regbayes.models.harmonium.state import Data, Globals, Settings
from regbayes.models.harmonium.units import BernoulliUnits, GaussianUnits, PoissonUnits
from regbayes.models.harmonium.updates import Spectrum, spectrum, update_weights

NOISE_SHARE = 0.5  # of a view's variance that is put down to noise where half of it is
NOISE_FLOOR = 0.01  # of a view's variance that is put down to noise at least
PRIOR_COUNT = 1.0  # of a one and of a zero, before any were seen; and of every column of counts
SHORT = 0.1  # length of weights whose direction pays only through the margins


def half_variance(x: Floats) -> float:
    """Half of a view's variance."""
    return NOISE_SHARE * float(np.square(x - x.mean(axis=0)).mean())


def residual_variance(x: Floats, n_components: int) -> float:
    """Variance per column that is left beside some principal components: the likeliest noise of Gaussian units.

    At least a hundredth of the view's variance, so that something is left to noise with any number of components.
    """
    centred = x - x.mean(axis=0)
    mean = float(np.square(centred).mean())
    rest = x.shape[1] - n_components
    if rest <= 0 or mean == 0:
        return NOISE_FLOOR * mean
    explained = float(spectrum(centred, n_components).values.sum())
    return float(max((mean * x.shape[1] - explained) / rest, NOISE_FLOOR * mean))


def gaussian_units(x: Floats, noise_variance: float) -> GaussianUnits:
    """Units with the columns' means and a common variance; one where it is zero, for columns that do not vary."""
    scale = np.sqrt(noise_variance) if noise_variance > 0 else 1.0
    return GaussianUnits(x.mean(axis=0), np.full(x.shape[1], scale))


def bernoulli_units(x: Floats) -> BernoulliUnits:
    """Units with the columns' shares of ones, kept off zero and one."""
    return BernoulliUnits((x.sum(axis=0) + PRIOR_COUNT) / (len(x) + 2.0 * PRIOR_COUNT))


def poisson_units(x: Floats) -> PoissonUnits:
    """Units with the columns' shares of all counts, kept off zero."""
    counts = x.sum(axis=0) + PRIOR_COUNT
    return PoissonUnits(counts / counts.sum(), float(x.sum(axis=1).mean()))


def initial_globals(data: Data, settings: Settings, found: Spectrum, rng: np.random.Generator) -> Globals:
    """Weights that are best in mean field, docs/math.md eq. (86).

    Hidden units that nothing is left for in the likelihood get short weights if margins may use them: along further
    singular directions, and along random combinations of rows where there are none.
    """
    K = settings.n_components
    weights = update_weights(found, K)
    weak = np.flatnonzero(~np.any(weights, axis=0))
    if settings.C > 0 and len(weak):
        directions = found.directions[:, weak[weak < len(found.values)]]
        combined = data.statistics.T @ rng.standard_normal((len(data.X), len(weak) - directions.shape[1]))
        lengths = np.linalg.norm(combined, axis=0)
        combined = np.divide(combined, lengths, out=np.zeros_like(combined), where=lengths > 0)
        weights[:, weak] = SHORT * np.hstack([directions, combined])
        weights = _with_room(weights, 1.0 - 1.0 / max(float(found.values[0]), 1.0) if len(found.values) else 0.0)
    return Globals(weights, np.zeros(len(weights)))


def _with_room(weights: Floats, longest: float) -> Floats:
    """Shorten weights that are too long together: at most half of what the longest leaves to one is used up."""
    together = float(np.linalg.norm(weights, ord=2)) ** 2
    limit = 0.5 * (1.0 + longest)
    return weights if together <= limit else np.asarray(weights * np.sqrt(limit / together))
