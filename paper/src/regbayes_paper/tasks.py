"""Targets of several tasks, and base classes of multi-task estimators.

Targets are a matrix with one column per task, where NaN marks a missing target, or a vector with ``task=`` for the task
of each sample. A vector without ``task=`` is a single task. Labels are binary.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.metrics import r2_score
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_array, check_consistent_length, check_is_fitted, column_or_1d, validate_data

from regbayes_paper._types import Flags, Floats, Integers


@dataclass(frozen=True)
class TaskProblem:
    """Samples (standardized, unless the model disables it), and the observed targets sorted by task."""

    X: Floats  # (N, d)
    rows: Integers  # (n,): index of the sample of each target
    outputs: Integers  # (n,): task of each target, ascending
    targets: Floats  # (n,): standardized numbers, or -1 and 1
    n_outputs: int

    @cached_property
    def slices(self) -> list[slice]:
        """The targets of each task."""
        starts = np.searchsorted(self.outputs, np.arange(self.n_outputs + 1))
        return [slice(a, b) for a, b in pairwise(starts.tolist())]

    def with_constant(self, value: float = 1.0) -> TaskProblem:
        """Return the problem with a constant last column."""
        return replace(self, X=np.column_stack([self.X, np.full(len(self.X), value)]))

    def scores(self, weights: Floats) -> Floats:
        """Return the score of each target's sample for weights of shape (n_outputs, d)."""
        found = np.empty(len(self.rows))
        for weight, part in zip(weights, self.slices, strict=True):
            found[part] = self.X[self.rows[part]] @ weight
        return found

    def sums(self, values: Floats) -> Floats:
        """Return ``sum value_n x_n`` over the targets of each task, (n_outputs, d)."""
        return np.stack([values[part] @ self.X[self.rows[part]] for part in self.slices])

    def grams(self, values: Floats) -> Floats:
        """Return ``sum value_n x_n x_n'`` over the targets of each task, (n_outputs, d, d)."""
        parts = [(self.X[self.rows[part]], values[part]) for part in self.slices]
        return np.stack([(X * value[:, None]).T @ X for X, value in parts])


class TaskModel(BaseEstimator, ABC):
    """Base class of models with a score for every task."""

    center_inputs = True
    scale_inputs = True  # whether inputs are divided by their standard deviations

    @abstractmethod
    def _learn(self, problem: TaskProblem) -> None:
        """Set the fitted attributes."""

    @abstractmethod
    def _encode(self, y: Any, observed: Flags) -> Floats:
        """Return targets as standardized numbers, or as -1 and 1."""

    def _scores(self, X: Floats) -> Floats:
        """Return the scores of standardized samples, (N, n_tasks)."""
        return X @ self.coef_.T + self.intercept_

    def fit(self, X: ArrayLike, y: ArrayLike, task: ArrayLike | None = None) -> Self:
        """Fit the model.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        y : array-like of shape (n_samples,) or (n_samples, n_tasks)
            Targets; NaN marks a missing one.
        task : array-like of shape (n_samples,), default=None
            The task of each sample, if y is a vector.
        """
        if y is None:
            raise ValueError(f"{type(self).__name__} requires y to be passed, but the target y is None.")
        rows = validate_data(self, X, dtype=np.float64, ensure_min_samples=2)
        values = check_array(y, dtype=None, ensure_2d=False, ensure_all_finite="allow-nan", input_name="y")
        check_consistent_length(rows, values)
        values = values if values.ndim == 2 and task is None and values.shape[1] > 1 else column_or_1d(values)
        observed = values == values
        if not np.any(observed):
            raise ValueError("y must have an observed target; every value is missing.")
        self._single = values.ndim == 1 and task is None
        self._ragged = task is not None
        if task is not None:
            self.tasks_, codes = np.unique(column_or_1d(task), return_inverse=True)
            check_consistent_length(rows, codes)
            order = np.argsort(codes, kind="stable")
            places, outputs = order, codes[order]
        else:
            self.tasks_ = np.arange(1 if values.ndim == 1 else values.shape[1])
            outputs, places = (array.ravel() for array in np.indices((len(self.tasks_), len(rows))))
        kept = observed[places] if values.ndim == 1 else observed[places, outputs]
        places, outputs = places[kept], outputs[kept]
        empty = np.setdiff1d(np.arange(len(self.tasks_)), outputs)
        if len(empty):
            raise ValueError(f"y must have a target of every task; task {self.tasks_[empty].tolist()[0]!r} has none.")
        encoded = self._encode(values, observed)
        targets = encoded[places] if values.ndim == 1 else encoded[places, outputs]
        self.mean_ = rows.mean(axis=0) * self.center_inputs
        self.scale_ = np.where((np.ptp(rows, axis=0) > 0) & self.scale_inputs, rows.std(axis=0), 1.0)
        standard = (rows - self.mean_) / self.scale_
        self._learn(TaskProblem(standard, places, outputs.astype(np.int64), targets, len(self.tasks_)))
        if hasattr(self, "objectives_"):
            self.n_iter_ = len(self.objectives_)
        return self

    def _task_scores(self, X: ArrayLike, task: ArrayLike | None) -> tuple[Floats, Integers | None]:
        """Return the scores of all tasks, or of each sample's task, and the tasks of the samples if given."""
        check_is_fitted(self)
        rows = validate_data(self, X, dtype=np.float64, reset=False)
        scores = self._scores((rows - self.mean_) / self.scale_)
        if self._ragged != (task is not None):
            raise ValueError("task must be given to predict exactly if it was given to fit.")
        if task is None:
            return (scores[:, 0] if self._single else scores), None
        asked = column_or_1d(task)
        codes = np.minimum(np.searchsorted(self.tasks_, asked), len(self.tasks_) - 1)
        unseen = self.tasks_[codes] != asked
        if np.any(unseen):
            raise ValueError(f"task must hold tasks of fit; got {asked[unseen].tolist()[0]!r}.")
        return np.take_along_axis(scores, codes[:, None], axis=1)[:, 0], codes

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        tags.target_tags.multi_output = True
        return tags


class TaskRegressor(RegressorMixin, TaskModel):
    """Base class of regressors. Targets are standardized by column if y is a matrix, otherwise jointly."""

    def _encode(self, y: Any, observed: Flags) -> Floats:
        values = np.asarray(y, dtype=np.float64)
        self.target_mean_, spread = np.nanmean(values, axis=0), np.nanstd(values, axis=0)
        self.target_scale_ = np.where(spread > 0, spread, 1.0)
        return (values - self.target_mean_) / self.target_scale_

    def predict(self, X: ArrayLike, task: ArrayLike | None = None) -> Floats:
        """Predict the targets of samples of known tasks."""
        scores, _ = self._task_scores(X, task)
        return scores * self.target_scale_ + self.target_mean_

    def score(self, X: ArrayLike, y: ArrayLike, task: ArrayLike | None = None) -> float:
        """Return the coefficient of determination."""
        return float(r2_score(y, self.predict(X, task)))


class TaskClassifier(ClassifierMixin, TaskModel):
    """Base class of classifiers with the same two classes in all tasks."""

    def _encode(self, y: Any, observed: Flags) -> Floats:
        if y.ndim == 1:
            check_classification_targets(y[observed])
        self.classes_ = np.unique(y[observed])
        if len(self.classes_) > 2:
            raise ValueError(
                f"Only binary classification is supported. The type of the target is multiclass: y has "
                f"{len(self.classes_)} classes."
            )
        return np.where(y == self.classes_[-1], 1.0, -1.0)

    def decision_function(self, X: ArrayLike, task: ArrayLike | None = None) -> Floats:
        """Return scores, which are positive for the second class."""
        return self._task_scores(X, task)[0]

    def predict(self, X: ArrayLike, task: ArrayLike | None = None) -> Any:
        """Predict the classes of samples of known tasks."""
        scores = self.decision_function(X, task)
        return self.classes_[np.where(scores > 0, -1, 0)]

    def score(self, X: ArrayLike, y: ArrayLike, task: ArrayLike | None = None) -> float:
        """Return the accuracy over all labels."""
        return float(np.mean(self.predict(X, task) == np.asarray(y)))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        return tags
