"""Small problems and their settings for the tests of the iLSVM model."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from regbayes.margins.head import Tolerance
from regbayes.margins.targets import zero_one_cost
from regbayes.models.ilsvm import starts
from regbayes.models.ilsvm.model import UNLABELED, Data, ILSVMProblem, Settings, centre_rows
from regbayes.models.indian_buffet import Sticks, prior_sticks

EXACT = Tolerance(gap=1e-10, max_epochs=20_000.0)
ESTIMATED = {"estimate_noise": True, "estimate_prior": True}


def half_the_variance(X):
    """Return half the average variance of the inputs, the default noise variance."""
    return 0.5 * X.totals.mean_square / X.n_inputs


def make_settings(X, **changes):
    noise = half_the_variance(X)
    values = {
        "n_components": 5,
        "alpha": 2.0,
        "C": 1.0,
        "squared": True,
        "one_vs_rest": False,
        "temperature": starts.soft_temperature(X, noise),
        "generative_weight": 0.1,
        "noise_variance": noise,
        "prior_variance": noise / 0.3,
        "estimate_noise": False,
        "estimate_prior": False,
        "fit_intercept": True,
        "input_scale": 0.0,
        "n_sweeps": 1,
        "max_iter": 20,
        "tol": 0.0,
        "n_threads": 1,
    }
    return Settings(**(values | changes))


def make_data(seed, n=60, D=7, n_classes=3, n_unlabeled=0, row_weights=None):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, n_classes, n)
    X = rng.standard_normal((n, D)) + 2.0 * rng.standard_normal((n_classes, D))[labels]
    labels[:n_unlabeled] = UNLABELED
    weights = rng.uniform(0.5, 2.0, n)
    if row_weights is not None:
        weights *= row_weights
    return Data.of_classes(centre_rows(X, weights=row_weights), labels, weights, zero_one_cost(n_classes))


def labels_of(data):
    """Return the class of each sample, or UNLABELED."""
    labels = np.full(len(data.X), UNLABELED)
    labels[data.labeled] = data.targets.labels
    return labels


def repeat_rows(data, times):
    """Return unweighted data in which sample i is repeated ``times[i]`` times."""
    weights = np.ones(len(data.X))
    weights[data.labeled] = data.targets.C
    rows = np.repeat(np.arange(len(times)), times)
    X = centre_rows(data.X.X[rows])
    return Data.of_classes(X, labels_of(data)[rows], (weights / times)[rows], data.targets.cost)


def make_problem(seed, settings_changes=None, **data_changes):
    data = make_data(seed, **data_changes)
    settings = make_settings(data.X, **(settings_changes or {}))
    return ILSVMProblem(data, settings)


def start_of(problem, seed=0):
    return starts.random_params(problem.data.X, problem.settings, np.random.default_rng(seed))


def pad(params, n_components, alpha):
    """Return the parameters padded with features of zero loadings.

    A stick depends only on earlier ones, so the existing features do not change.
    """
    missing = n_components - len(params.loadings)
    prior = prior_sticks(alpha, missing)
    return replace(
        params,
        loadings=np.vstack([params.loadings, np.zeros((missing, params.loadings.shape[1]))]),
        variances=np.concatenate([params.variances, np.full(missing, params.prior_variance)]),
        sticks=Sticks(
            np.concatenate([params.sticks.first, prior.first]), np.concatenate([params.sticks.second, prior.second])
        ),
    )
