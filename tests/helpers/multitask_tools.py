"""Small data and fast estimators for the tests of the multi-task estimators."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from regbayes import (
    MultiTaskILSVMClassifier,
    MultiTaskILSVMClassifierCV,
    MultiTaskILSVMRegressor,
    MultiTaskILSVMRegressorCV,
)

QUICK = {"temperature": 0.05, "max_iter": 12, "random_state": 0}
QUICK_SEARCH = {"temperatures": (0.05,), "cv": 2, "max_iter": 8, "random_state": 0}


def numbers(seed: int = 0, n_rows: int = 60, n_columns: int = 6, n_tasks: int = 3):
    """Simulate inputs of different scales, and targets that depend on them."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n_rows, n_columns)) @ rng.standard_normal((n_columns, n_columns))
    Y = X @ rng.standard_normal((n_columns, n_tasks)) + rng.standard_normal((n_rows, n_tasks))
    return 3.0 + X * np.geomspace(0.1, 10.0, n_columns), Y


def labels(seed: int = 0, **sizes: int):
    X, Y = numbers(seed, **sizes)
    return X, (np.median(Y, axis=0) < Y).astype(int)


def holes(Y: Any, share: float = 0.3, seed: int = 1):
    """Return the targets with missing values, except in the first ten samples."""
    Y = np.array(Y, dtype=float)
    missing = np.random.default_rng(seed).random(Y.shape) < share
    missing[:10] = False
    Y[missing] = np.nan
    return Y


def groups(seed: int = 0, n_rows: int = 120, n_groups: int = 4):
    """Simulate ragged tasks: inputs, and the target and task of each sample."""
    X, Y = numbers(seed, n_rows=n_rows, n_tasks=n_groups)
    names = np.array(["north", "south", "east", "west"])[:n_groups]
    code = np.random.default_rng(seed + 1).permutation(np.arange(n_rows) % n_groups)
    return X, (Y.mean(axis=1) + 0.5 * Y[np.arange(n_rows), code]), names[code]


def classifier(n_components: int = 4, **parameters: Any) -> MultiTaskILSVMClassifier:
    return MultiTaskILSVMClassifier(n_components, **QUICK | parameters)


def regressor(n_components: int = 4, **parameters: Any) -> MultiTaskILSVMRegressor:
    return MultiTaskILSVMRegressor(n_components, **QUICK | parameters)


def classifier_cv(n_components: int = 4, **parameters: Any) -> MultiTaskILSVMClassifierCV:
    return MultiTaskILSVMClassifierCV(n_components, **{"Cs": (0.03, 0.3)} | QUICK_SEARCH | parameters)


def regressor_cv(n_components: int = 4, **parameters: Any) -> MultiTaskILSVMRegressorCV:
    return MultiTaskILSVMRegressorCV(n_components, **{"Cs": (0.03, 0.3)} | QUICK_SEARCH | parameters)


MAKERS = {
    "classifier": classifier,
    "regressor": regressor,
    "classifier CV": classifier_cv,
    "regressor CV": regressor_cv,
}
every_estimator = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS.keys())


def data_for(make):
    return numbers() if make in (regressor, regressor_cv) else labels()


def ragged_for(make):
    X, y, task = groups()
    return (X, y, task) if make in (regressor, regressor_cv) else (X, (y > np.median(y)).astype(int), task)
