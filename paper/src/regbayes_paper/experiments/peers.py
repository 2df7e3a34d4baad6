"""Ridge regression with task-specific deviations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.preprocessing import StandardScaler

from regbayes_paper._types import Floats


@dataclass(eq=False, repr=False)
class TaskDeviationRidge(RegressorMixin, BaseEstimator):
    """Ridge regression with common weights and a deviation for each task.

    It minimizes the squared errors plus ``alpha`` times the squared common weights (the intercept is free), plus
    ``slope_alpha`` and ``intercept_alpha`` times the squared deviations of the tasks' slopes and intercepts. This is
    the best linear unbiased prediction in a mixed-effects model with these variance ratios.

    Parameters
    ----------
    alpha, slope_alpha, intercept_alpha : float
    """

    alpha: float = 10.0
    slope_alpha: float = 100.0
    intercept_alpha: float = 10.0

    def fit(self, X: Floats, y: Floats, task: Any) -> Self:
        """Solve for the common weights with the deviations eliminated, then for the deviations."""
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
        # Eliminating the deviation of a task replaces the identity by penalty (gram + penalty)^-1.
        shrink = np.linalg.solve(grams + penalty, np.concatenate([grams, moments[:, :, None]], axis=2))
        remaining = penalty @ shrink
        self.coef_ = np.linalg.solve(remaining[:, :, :d].sum(axis=0) + ridge, remaining[:, :, d].sum(axis=0))
        rest = moments - grams @ self.coef_
        self.tasks_, self.deviations_ = tasks, np.linalg.solve(grams + penalty, rest[:, :, None])[:, :, 0]
        return self

    def predict(self, X: Floats, task: Any) -> Floats:
        """Predict samples of known tasks."""
        weights = self.coef_ + self.deviations_[np.searchsorted(self.tasks_, task)]
        return np.asarray(np.sum(self._rows(X) * weights, axis=1))

    def _rows(self, X: Floats) -> Floats:
        return np.hstack([np.ones((len(X), 1)), self.scaler_.transform(X)])
