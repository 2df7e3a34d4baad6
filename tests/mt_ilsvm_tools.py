"""Small problems for the tests of MT-iLSVM."""

from __future__ import annotations

import numpy as np

from regbayes.models.mt_ilsvm.cells import classification_cells, regression_cells
from regbayes.models.mt_ilsvm.fit import prepare
from regbayes.models.mt_ilsvm.state import Latent, Settings
from regbayes.priors.indian_buffet import Sticks

LOSSES = ("hinge", "squared_hinge", "epsilon_insensitive", "squared_epsilon_insensitive")


def is_regression(loss):
    return "insensitive" in loss


def cells_of(Y, loss):
    """The cells of a matrix of numbers or of 0/1 labels, NaN where missing."""
    rows, tasks = np.nonzero(~np.isnan(Y))
    values = Y[rows, tasks]
    if is_regression(loss):
        return regression_cells(rows, tasks, values, Y.shape[1])
    return classification_cells(rows, tasks, values.astype(np.int64), np.full(Y.shape[1], 2))


def toy(seed, n_rows=24, n_columns=5, n_tasks=3, loss="squared_hinge", missing=0.0):
    """Correlated inputs and targets that depend on them."""
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
    return prepare(X, cells, outputs, small_settings(loss, gap_tol=1e-13, **settings)), X, Y


def small_settings(loss="squared_hinge", **given):
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
        "gap_tol": 1e-12,
        **given,
    }
    return Settings(loss=loss, **chosen)


def noise_for(X, n_features=3, seed=0):
    return np.random.default_rng(seed).standard_normal((X.shape[1], n_features))
