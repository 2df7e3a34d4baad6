"""Small data and fast estimators for the tests of the iLSVM estimators."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits

from regbayes import IBPFactorAnalysis, ILSVMClassifier, ILSVMClassifierCV, ILSVMRegressor, ILSVMRegressorCV


def digits(n_classes: int = 4, n_rows: int = 160) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return the first images of the digits data set, restricted to the first classes."""
    X, y = load_digits(n_class=n_classes, return_X_y=True)
    return X[:n_rows], y[:n_rows]


def overlapping(n_rows: int = 300, seed: int = 0) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Simulate three overlapping classes, which every classifier confuses."""
    rng = np.random.default_rng(seed)
    y = np.arange(n_rows) % 3
    centres = np.array([[0.0, 0.0, 0.0], [1.2, 0.0, 0.5], [0.0, 1.2, -0.5]])
    return centres[y] + rng.standard_normal((n_rows, 3)), y


def ilsvm(n_components: int = 6, **parameters: Any) -> ILSVMClassifier:
    return ILSVMClassifier(n_components, **{"max_iter": 15, "random_state": 0} | parameters)


def ilsvm_cv(n_components: int = 4, **parameters: Any) -> ILSVMClassifierCV:
    quick = {"Cs": (0.1, 1.0), "cv": 2, "max_iter": 4, "random_state": 0}
    return ILSVMClassifierCV(n_components, **quick | parameters)


def ilsvm_regressor(n_components: int = 6, **parameters: Any) -> ILSVMRegressor:
    return ILSVMRegressor(n_components, **{"max_iter": 15, "random_state": 0} | parameters)


def ilsvm_regressor_cv(n_components: int = 4, **parameters: Any) -> ILSVMRegressorCV:
    quick = {"Cs": (0.1, 1.0), "generative_weights": ("auto",), "cv": 2, "max_iter": 4, "random_state": 0}
    return ILSVMRegressorCV(n_components, **quick | parameters)


def ibp(n_components: int = 6, **parameters: Any) -> IBPFactorAnalysis:
    return IBPFactorAnalysis(n_components, **{"slab": None, "max_iter": 15, "random_state": 0} | parameters)


class Watch:
    """Callback that records and scores tasks and stops after `stop_after` of them."""

    def __init__(self, stop_after=10**9):
        self.stop_after = stop_after
        self.tasks = []
        self.parents = []
        self.scores = []

    def setup(self, estimator, context): ...

    def teardown(self, estimator, context): ...

    def on_fit_task_begin(self, estimator, context): ...

    def on_fit_task_end(self, estimator, context, *, X=None, y=None, fitted_estimator=None):
        self.tasks.append(context.task_name)
        self.parents.append(None if context.parent is None else context.parent.task_name)
        self.scores.append(fitted_estimator.score(X, y))
        return len(self.tasks) >= self.stop_after
