"""Predictors for rows of many tasks, made of scikit-learn's: what a user would try before a multi-task model.

All are called as the package's own multi-task models are: ``fit(X, y, task=...)`` and ``predict(X, task=...)``.
"""

from __future__ import annotations

from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, hstack
from sklearn.base import BaseEstimator, RegressorMixin, clone
from sklearn.preprocessing import MinMaxScaler, OneHotEncoder, StandardScaler
from sklearn.utils.metaestimators import available_if

from regbayes._types import Floats

How = Literal["ignore", "columns", "separate", "deviations"]


class TaskAdapter(RegressorMixin, BaseEstimator):
    """A regressor, or a classifier of two classes, of scikit-learn on standardised rows of many tasks.

    Parameters
    ----------
    estimator : regressor or classifier
    how : {"ignore", "columns", "separate", "deviations"}
        Whether it sees nothing of the tasks, a 0/1 column for each, is fitted to each by itself, or sees the inputs and
        a constant once more in columns of the row's own task, so that each task deviates from common weights.
    deviation : float, default=1.0
        Factor of the columns of a task's own: the smaller, the more a deviation costs.
    """

    def __init__(self, estimator: Any, how: How = "ignore", deviation: float = 1.0) -> None:
        self.estimator = estimator
        self.how = how
        self.deviation = deviation

    def fit(self, X: Floats, y: NDArray[Any], task: NDArray[Any]) -> Self:
        """Fit one predictor, or one for each task."""
        self.scaler_ = StandardScaler().fit(X)
        rows = self.scaler_.transform(X)
        if self.how == "separate":
            self.by_task_ = {t: clone(self.estimator).fit(rows[task == t], y[task == t]) for t in np.unique(task)}
            return self
        self.encoder_ = OneHotEncoder(sparse_output=self.how == "deviations").fit(task[:, None])
        self.estimator_ = clone(self.estimator).fit(self._with_columns(rows, task), y)
        return self

    def predict(self, X: Floats, task: NDArray[Any]) -> NDArray[Any]:
        """Predict rows of known tasks."""
        return self._ask("predict", X, task)

    @available_if(lambda self: hasattr(self.estimator, "decision_function"))
    def decision_function(self, X: Floats, task: NDArray[Any]) -> Floats:
        """Return the scores of rows of known tasks, above zero for the second class."""
        return self._ask("decision_function", X, task)

    def _ask(self, method: str, X: Floats, task: NDArray[Any]) -> Any:
        rows = self.scaler_.transform(X)
        if self.how != "separate":
            return getattr(self.estimator_, method)(self._with_columns(rows, task))
        out = np.empty(len(rows))
        for t in np.unique(task):
            out[task == t] = getattr(self.by_task_[t], method)(rows[task == t])
        return out

    def _with_columns(self, rows: Floats, task: NDArray[Any]) -> Any:
        if self.how == "ignore":
            return rows
        member = self.encoder_.transform(task[:, None])
        if self.how == "columns":
            return np.hstack([rows, member])
        own = [member.multiply(column[:, None]) for column in (*rows.T, np.ones(len(rows)))]
        return hstack([csr_array(rows), *(self.deviation * block for block in own)], format="csr")


class RangeScaled(RegressorMixin, BaseEstimator):
    """A multi-task regressor on inputs whose columns all go from 0 to 1, so that 0/1 columns stay as they are.

    A rare category then costs what a frequent one does. Standardised, it has large values, and needs but small weights.

    Parameters
    ----------
    estimator : regressor
    """

    def __init__(self, estimator: Any) -> None:
        self.estimator = estimator

    def fit(self, X: Floats, y: Floats, task: NDArray[Any]) -> Self:
        """Fit to scaled rows."""
        self.scaler_ = MinMaxScaler().fit(X)
        self.estimator_ = clone(self.estimator).fit(self.scaler_.transform(X), y, task)
        return self

    def predict(self, X: Floats, task: NDArray[Any]) -> Floats:
        """Predict rows of known tasks."""
        return np.asarray(self.estimator_.predict(self.scaler_.transform(X), task))


class TaskDeviationRidge(RegressorMixin, BaseEstimator):
    """Ridge regression with task terms: common weights, and a deviation from them for each task.

    It minimises the squared errors plus ``alpha`` times the squared common weights (the intercept goes free), plus
    ``slope_alpha`` and ``intercept_alpha`` times the squared deviations of the tasks' slopes and intercepts. This is
    the best linear prediction in a mixed-effects model with those ratios of variances.

    Parameters
    ----------
    alpha, slope_alpha, intercept_alpha : float
    """

    def __init__(self, alpha: float = 10.0, slope_alpha: float = 100.0, intercept_alpha: float = 10.0) -> None:
        self.alpha = alpha
        self.slope_alpha = slope_alpha
        self.intercept_alpha = intercept_alpha

    def fit(self, X: Floats, y: Floats, task: NDArray[Any]) -> Self:
        """Solve for the common weights with the deviations eliminated, and then for these."""
        self.scaler_ = StandardScaler().fit(X)
        rows = self._rows(X)
        d = rows.shape[1]
        penalty = np.diag([self.intercept_alpha, *[self.slope_alpha] * (d - 1)])
        ridge = np.diag([0.0, *[self.alpha] * (d - 1)])
        tasks = np.unique(task)
        grams, moments = np.empty((len(tasks), d, d)), np.empty((len(tasks), d))
        for i, t in enumerate(tasks):
            own = rows[task == t]
            grams[i], moments[i] = own.T @ own, own.T @ y[task == t]
        # With the deviation at its best, a task weighs in with penalty (gram + penalty)^-1 in place of the identity.
        shrink = np.linalg.solve(grams + penalty, np.concatenate([grams, moments[:, :, None]], axis=2))
        remaining = penalty @ shrink
        self.coef_ = np.linalg.solve(remaining[:, :, :d].sum(axis=0) + ridge, remaining[:, :, d].sum(axis=0))
        rest = moments - grams @ self.coef_
        self.tasks_, self.deviations_ = tasks, np.linalg.solve(grams + penalty, rest[:, :, None])[:, :, 0]
        return self

    def predict(self, X: Floats, task: NDArray[Any]) -> Floats:
        """Predict rows of known tasks."""
        weights = self.coef_ + self.deviations_[np.searchsorted(self.tasks_, task)]
        return np.asarray(np.sum(self._rows(X) * weights, axis=1))

    def _rows(self, X: Floats) -> Floats:
        return np.hstack([np.ones((len(X), 1)), self.scaler_.transform(X)])
