"""Whether rows are sums of on/off features and noise, and how much noise each input has. No label is looked at.

A factor analysis says how much of each input is its own: noise, whatever the others have in common. If on/off features
leave hardly more of the rows than that, the rows are what the model says, and the model is taken at its word: noise of
each input's own size, no temperature, and a generative part that labels do not bend. Of rows that vary by degrees,
on/off features leave a sixth of the signal or more; independent scores are no start there.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from regbayes._types import Floats
from regbayes.joint import descent
from regbayes.models.ilsvm.model import UNLABELED, Data, HostRows, ILSVMProblem, Settings, expected_residual
from regbayes.models.ilsvm.warmup import FEW_INPUTS, Evaluation, initial_params

FEWEST_INPUTS = 4  # whose noise can be told
ROWS_PER_INPUT = 5.0  # that tell it, at least
MOST_ROWS = 2000  # that are asked
ITERATIONS, SETTLED = 50, 2e-3  # of the factor analysis, and the change of a noise share at which it has settled
COUNT_EVERY = 5  # iterations between two counts of the factors
RIDGE = 1e-8  # on the correlations: inputs may be sums of others
LEAST_NOISE = 0.05  # of an input's variance: less is no noise, but inputs that determine each other
MOST_DETERMINED = 0.1  # of the inputs that may have no noise
LEAST_SIGNAL = 0.1  # of the noise: less is chance
STEPS = 6  # of descent before features are compared with the factors
HOPELESS = 0.2  # share of the signal left by a start that no descent makes good
LEFT = 0.08  # share of the signal that on/off features may leave
TAKEN = 0.04  # the same that they may take from the noise: inputs that are on or off themselves have it taken whole


def find_on_off(X: HostRows, settings: Settings) -> Settings:
    """Return the settings for rows that are sums of on/off features, with their noise, or that vary by degrees.

    Rows with many inputs or with factors for half of them, and few rows for each input, do not tell: settings are as
    they were.
    """
    D = X.n_inputs
    if settings.on_off is None or not FEWEST_INPUTS <= D <= FEW_INPUTS or X.total_weight < ROWS_PER_INPUT * D:
        return settings
    some = X.take(slice(None, None, -(-len(X) // MOST_ROWS)))
    noise, are_all = analyse_noise(some, settings.n_components)
    if not are_all:
        return settings
    if noise is not None:
        variance = float(np.exp(np.mean(np.log(noise))))
        told = settings.with_noise(variance, noise / variance)
        if _are_explained(some, replace(told, temperature=1.0)):
            return told
    return replace(settings, by_degrees=True)


def analyse_noise(X: HostRows, n_components: int) -> tuple[Floats | None, bool]:
    """Return the noise variance of each input by a factor analysis, and whether that had all factors there are.

    Principal factors of the correlations, in units of the noise of the last iteration; at first that is what the other
    inputs do not predict of an input, linearly, which is too much. Those count that vary by more
    than noise alone does (Marchenko and Pastur 1967), and half of the inputs at most. Inputs that do not vary have the
    geometric mean of the others.

    Returns
    -------
    noise : array of shape (D,) or None
        None: inputs determine each other.
    are_all : bool
        Whether there is room for more factors.
    """
    N, D = X.total_weight, X.n_inputs
    moments = X.combine(X.weigh(X.project(np.eye(D)))) / N
    varies = np.diag(moments) > np.finfo(np.float64).eps * np.diag(moments).max()
    if varies.sum() < FEWEST_INPUTS:
        return None, False
    spread = np.sqrt(np.diag(moments)[varies])
    correlations = moments[np.ix_(varies, varies)] / np.outer(spread, spread)
    d = len(correlations)
    edge, most = (1.0 + np.sqrt(d / N)) ** 2, max(1, min(n_components, d // 2))
    shares = 1.0 / np.diag(np.linalg.inv(correlations + RIDGE * np.eye(d)))  # what the other inputs do not predict
    shares = np.clip(shares, LEAST_NOISE, 1.0)
    K = 0
    for iteration in range(ITERATIONS):
        scale = np.sqrt(shares)
        values, vectors = np.linalg.eigh(correlations / np.outer(scale, scale))
        if iteration % COUNT_EVERY == 0:
            K = int(np.clip(np.sum(values > edge), 1, most))
        explained = np.square(vectors[:, -K:]) @ np.maximum(values[-K:] - 1.0, 0.0)
        before, shares = shares, np.clip(1.0 - shares * explained, LEAST_NOISE, 1.0)
        if np.abs(shares - before).max() < SETTLED:
            break
    if np.mean(shares <= LEAST_NOISE) > MOST_DETERMINED:
        return None, most > K
    noise = np.full(D, np.exp(np.mean(np.log(shares * spread**2))))
    noise[varies] = shares * spread**2
    return noise, most > K


def _are_explained(X: HostRows, settings: Settings) -> bool:
    """Return whether on/off features, at a temperature of one, leave hardly more of the rows than their noise."""
    unlabeled = Data(X, np.full(len(X), UNLABELED), np.ones(len(X)), np.zeros((1, 1)))
    problem = ILSVMProblem.of(unlabeled, replace(settings, C=0.0, generative_weight=1.0))
    search = descent.start(problem.joint, initial_params(X, problem.settings)[0])
    noise = settings.noise_variance * X.total_weight * X.n_inputs
    signal = search.at.stats.squared_norm - noise

    def left(at: Evaluation) -> float:
        return expected_residual(at.stats, at.params) - noise

    if signal < LEAST_SIGNAL * noise or left(search.at) > HOPELESS * signal:
        return False
    for _ in range(STEPS):
        search = descent.step(problem.joint, search).state
    return -TAKEN * signal <= left(search.at) <= LEFT * signal
