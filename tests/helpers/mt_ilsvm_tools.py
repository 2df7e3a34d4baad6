"""Small problems for the tests of MT-iLSVM."""

from __future__ import annotations

import numpy as np

from regbayes.margins.head import Tolerance
from regbayes.margins.targets import observe_classes, observe_numbers
from regbayes.models.indian_buffet import Sticks
from regbayes.models.mt_ilsvm import fit as model_fit
from regbayes.models.mt_ilsvm.fit import prepare
from regbayes.models.mt_ilsvm.model import Latent, Settings

EXACT = Tolerance(1e-13, 1000.0)
LOSSES = ("hinge", "squared_hinge", "epsilon_insensitive", "squared_epsilon_insensitive")


def is_regression(loss):
    return "insensitive" in loss


def cells_of(Y, loss):
    """Return the observed cells of a matrix of numbers or of 0/1 labels."""
    rows, tasks = np.nonzero(~np.isnan(Y))
    values = Y[rows, tasks]
    if is_regression(loss):
        return observe_numbers(rows, tasks, values, Y.shape[1])
    return observe_classes(rows, tasks, values.astype(np.int64), np.full(Y.shape[1], 2))


def toy(seed, n_rows=24, n_columns=5, n_tasks=3, loss="squared_hinge", missing=0.0):
    """Simulate correlated inputs and targets that depend on them."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n_rows, n_columns)) @ rng.standard_normal((n_columns, n_columns))
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    Y = X @ rng.standard_normal((n_columns, n_tasks)) + 0.5 * rng.standard_normal((n_rows, n_tasks))
    if not is_regression(loss):
        Y = (Y > 0).astype(float)
    Y[rng.random(Y.shape) < missing] = np.nan
    return X, Y


def toy_latent(seed, n_columns=5, n_features=3, scale=1.0):
    rng = np.random.default_rng(seed)
    sticks = Sticks(rng.gamma(2.0, 2.0, n_features) + 0.1, rng.gamma(2.0, 2.0, n_features) + 0.1)
    return Latent(scale * rng.standard_normal((n_columns, n_features)), sticks, 0.6, 0.8)


def toy_problem(seed, loss="squared_hinge", missing=0.0, **settings):
    X, Y = toy(seed, loss=loss, missing=missing)
    cells, outputs = cells_of(Y, loss)
    return prepare(X, cells, outputs, small_settings(loss, **settings)), X, Y


def fit(X, cells, outputs, settings, start, *, callbacks=(), **options):
    """Fit the model to samples in memory."""
    return model_fit.fit(prepare(X, cells, outputs, settings, **options), start, callbacks)


def exact(problem, latent, warm_start=None):
    """Evaluate the objective at given features, with an exact head."""
    return problem.evaluate(problem.model.at(latent), warm_start, EXACT)


def exact_gradient(problem, latent):
    """Return gradients of the objective by parameters, of margins by probabilities."""
    at, inferred = exact(problem, latent)
    pulled = problem.pull_back(at, inferred)
    return problem.model.gradient(at.params, at.stats, pulled), pulled.psi


def small_settings(loss="squared_hinge", **given):
    """Return settings of short fits; tol=0 solves SVM subproblems exactly."""
    chosen = {
        "n_components": 3,
        "C": 0.3,
        "epsilon": 0.1,
        "task_sharing": 0.0,
        "temperature": 0.05,
        "generative_weight": 1.5,
        "start_iter": 15,
        "max_iter": 12,
        "tol": 0.0,
        **given,
    }
    return Settings(loss=loss, **chosen)


def noise_for(X, n_features=3, seed=0):
    return np.random.default_rng(seed).standard_normal((X.shape[1], n_features))
