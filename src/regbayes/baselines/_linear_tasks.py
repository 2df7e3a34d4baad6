"""What the multi-task baselines share: reading tasks, standardising, predicting and scoring.

A baseline says how it learns from a `TaskProblem` and how rows are scored for every output; the two base classes here
do the rest, with the inputs and the words about bad input of the package's own multi-task models.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin, _fit_context
from sklearn.callback import CallbackSupportMixin, with_callbacks
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted, validate_data

from regbayes._registry import Saveable
from regbayes._types import Floats
from regbayes.engine import FitResult
from regbayes.estimators._common import NOT_NEGATIVE, one_blas_thread
from regbayes.estimators._labels import labelled_cells, labels_of_tasks, read_labels, scores_of_tasks
from regbayes.estimators._multitask import check_task_given, standardized
from regbayes.estimators._reporting import FitReporter, warn_of_status
from regbayes.estimators._tasks import Targets, check_no_empty_task, known_codes, read_targets
from regbayes.estimators.metrics import explained_variance_pooled, task_accuracy
from regbayes.models.linear_tasks.problem import LinearTasks, Loss
from regbayes.models.mt_ilsvm.cells import Cells, Outputs, regression_cells

TASK_CONSTRAINTS: dict[str, list[Any]] = {"scale_inputs": ["boolean"]}
ITERATION_CONSTRAINTS: dict[str, list[Any]] = {
    "max_iter": [Interval(Integral, 1, None, closed="left")],
    "tol": [NOT_NEGATIVE],
    "verbose": ["verbose"],
}
LABEL_CONSTRAINTS: dict[str, Any] = {
    "class_weight": [dict, list, StrOptions({"balanced"}), None],
    "unlabeled": "no_validation",
}


@dataclass(frozen=True)
class TaskProblem:
    """What a baseline learns from."""

    X: Floats  # (N, d): standardised
    cells: Cells  # targets: standardised numbers, or -1 and 1
    outputs: Outputs
    data: dict[str, Any]  # what the user gave, for callbacks

    @property
    def n_outputs(self) -> int:
        """Number of outputs."""
        return len(self.outputs.tasks)

    def balanced(self) -> TaskProblem:
        """The same with weights by which outputs count alike, however many targets they have: 1 on average."""
        counts = np.bincount(self.cells.outputs, minlength=self.n_outputs)
        share = len(self.cells) / (self.n_outputs * np.maximum(counts, 1))
        weights = self.cells.weights * share[self.cells.outputs]
        return replace(self, cells=replace(self.cells, weights=weights))

    def linear(self, loss: Loss, constant: float) -> LinearTasks:
        """The problem of linear scores; a constant above 0 is the column that carries the intercepts."""
        X = np.column_stack([self.X, np.full(len(self.X), constant)]) if constant else self.X
        return LinearTasks(X, self.cells, self.n_outputs, loss)


class TaskModel(Saveable, CallbackSupportMixin):
    """An estimator for several tasks."""

    @property
    def _serves_new_tasks(self) -> bool:
        """Whether tasks without targets are served, with the last score."""
        return False

    _remedy = "It has no weights."  # what a user can do about a task without targets

    @abstractmethod
    def _learn(self, problem: TaskProblem) -> None:
        """Set the fitted attributes."""

    @abstractmethod
    def _scores(self, X: Floats) -> Floats:
        """Return the scores of standardised rows for every output, (n, M); of new tasks in further columns."""

    @abstractmethod
    def _read(self, X: Floats, y: Any, task: Any) -> tuple[Targets, Cells, Outputs]:
        """Read targets."""

    @with_callbacks
    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: ArrayLike, y: ArrayLike, task: ArrayLike | None = None) -> Self:
        """Learn the tasks.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        y : array-like of shape (n_samples, n_tasks) or (n_samples,)
            Targets, NaN or None where missing: a column per task, or with ``task`` one per row. A vector without
            ``task`` is one task.
        task : array-like of shape (n_samples,), default=None
            The task of each row.

        Returns
        -------
        self
        """
        X = validate_data(self, X, dtype=np.float64, ensure_min_samples=2)
        targets, cells, outputs = self._read(X, y, task)
        if not self._serves_new_tasks or targets.layout != "ragged":  # columns have units, which need targets
            check_no_empty_task(targets, "Leave it out.")
        centred, self.mean_, self.scale_ = standardized(X, self.scale_inputs)
        self.tasks_, self._layout, self._outputs = targets.ids, targets.layout, outputs
        data = {"X": X, "y": y} if task is None else {"X": X, "y": y, "metadata": {"task": task}}
        with one_blas_thread():
            self._learn(TaskProblem(centred, cells, outputs, data))
        return self

    def _run(
        self,
        problem: TaskProblem,
        fit: Callable[[Sequence[Any]], FitResult[Any]],
        attributes: Callable[[Any], dict[str, Any]],
    ) -> None:
        """Run an iterative fit: callbacks, progress bar, fitted attributes, trace, warnings."""
        with FitReporter(self, int(self.max_iter), problem.data, attributes, self.verbose) as reporter:
            result = fit([reporter])
            for name, value in attributes(result.state).items():
                setattr(self, name, value)
            self.trace_, self.n_iter_ = result.trace, result.n_iter
        warn_of_status(self, result)

    def _all_scores(self, X: ArrayLike, task: ArrayLike | None) -> Floats:
        """Return scores: for every output, (n, M); with tasks, those of each row's own, (n, outputs of a task)."""
        check_is_fitted(self, "tasks_")
        X = validate_data(self, X, dtype=np.float64, reset=False)
        check_task_given(type(self).__name__, self._layout, task)
        scores = self._scores(np.asarray((X - self.mean_) / self.scale_))
        if self._layout != "ragged":
            return scores[:, : len(self._outputs.tasks)]
        codes = known_codes(self.tasks_, task, len(X), allow_unseen=self._serves_new_tasks, remedy=self._remedy)
        n_outputs = len(self._outputs.tasks) // len(self.tasks_)
        return np.take_along_axis(scores, (codes[:, None] * n_outputs + np.arange(n_outputs)) % scores.shape[1], axis=1)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


class TaskRegressor(TaskModel, RegressorMixin, BaseEstimator):
    """Numbers of several tasks."""

    def _read(self, X: Floats, y: Any, task: Any) -> tuple[Targets, Cells, Outputs]:
        targets = read_targets(y, task, X, numeric=True)
        self.target_mean_, self.target_scale_ = _target_units(targets)
        values = (targets.values - self.target_mean_[targets.tasks]) / self.target_scale_[targets.tasks]
        return targets, *regression_cells(targets.rows, targets.tasks, values, len(targets.ids))

    def predict(self, X: ArrayLike, task: ArrayLike | None = None) -> Floats:
        """Return predictions, shape (n_samples, n_tasks) after ``fit(X, Y)`` and (n_samples,) otherwise.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        task : array-like of shape (n_samples,), default=None
            The task of each row, if ``fit`` was told.
        """
        scores = self._all_scores(X, task)
        if self._layout == "matrix":
            return scores * self.target_scale_ + self.target_mean_
        return scores[:, 0] * self.target_scale_[0] + self.target_mean_[0]  # all tasks have one unit

    def score(
        self, X: ArrayLike, y: ArrayLike, task: ArrayLike | None = None, sample_weight: ArrayLike | None = None
    ) -> float:
        """Return R² over all observed targets, pooled: `regbayes.metrics.explained_variance_pooled`.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        y : array-like of shape (n_samples, n_tasks) or (n_samples,)
            Targets, missing ones left out.
        task : array-like of shape (n_samples,), default=None
            The task of each row, if ``fit`` was told.
        sample_weight : array-like of shape (n_samples,), default=None
            How much the targets of each row count.
        """
        return explained_variance_pooled(y, self.predict(X, task), sample_weight=sample_weight)


class TaskClassifier(TaskModel, ClassifierMixin, BaseEstimator):
    """Labels of several tasks."""

    def _read(self, X: Floats, y: Any, task: Any) -> tuple[Targets, Cells, Outputs]:
        targets = read_targets(y, task, X, numeric=False, unlabeled=self.unlabeled)
        labels = read_labels(targets)
        self.classes_ = labels.common_classes
        return targets, *labelled_cells(targets, labels, self.class_weight)

    def decision_function(self, X: ArrayLike, task: ArrayLike | None = None) -> Floats | list[Floats]:
        """Return scores: above zero for the second of two classes; a column for each of more.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        task : array-like of shape (n_samples,), default=None
            The task of each row, if ``fit`` was told.

        Returns
        -------
        array of shape (n_samples, n_tasks) after ``fit(X, Y)``, or a list with an entry per task if some have more
        than two classes; (n_samples,) or (n_samples, n_classes) after ``fit(X, y)`` and ``fit(X, y, task=...)``.
        """
        layout = "matrix" if self._fitted_layout == "matrix" else "single"  # rows know their task: one answer each
        return scores_of_tasks(self._all_scores(X, task), layout, self._outputs)

    @property
    def _fitted_layout(self) -> str:
        check_is_fitted(self, "tasks_")
        return str(self._layout)

    def predict(self, X: ArrayLike, task: ArrayLike | None = None) -> NDArray[Any]:
        """Return classes, shape (n_samples, n_tasks) after ``fit(X, Y)`` and (n_samples,) otherwise.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        task : array-like of shape (n_samples,), default=None
            The task of each row, if ``fit`` was told.
        """
        return labels_of_tasks(self.decision_function(X, task), self._layout, self.classes_)

    def score(
        self, X: ArrayLike, y: ArrayLike, task: ArrayLike | None = None, sample_weight: ArrayLike | None = None
    ) -> float:
        """Return the accuracy over all observed labels; of an indicator matrix, 1 less the Hamming loss.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        y : array-like of shape (n_samples, n_tasks) or (n_samples,)
            Labels, missing ones left out of the average.
        task : array-like of shape (n_samples,), default=None
            The task of each row, if ``fit`` was told.
        sample_weight : array-like of shape (n_samples,), default=None
            How much the labels of each row count.
        """
        return task_accuracy(y, self.predict(X, task), unlabeled=self.unlabeled, sample_weight=sample_weight)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        return tags


class LinearScores:
    """Scores that are linear in the standardised rows: ``(X - mean_) / scale_ @ coef_.T + intercept_``."""

    coef_: Floats
    intercept_: Floats

    def _scores(self, X: Floats) -> Floats:
        return np.asarray(X @ self.coef_.T + self.intercept_)


def linear_attributes(weights: Floats, constant: float) -> dict[str, Any]:
    """Return the coefficients and intercepts of weights whose last column belongs to the constant, if there is one."""
    if not constant:
        return {"coef_": weights, "intercept_": np.zeros(len(weights))}
    return {"coef_": weights[:, :-1], "intercept_": weights[:, -1] * constant}


def _target_units(targets: Targets) -> tuple[Floats, Floats]:
    """Return the mean and the scale of each task's targets: one for all with ``task=``, else each its own."""
    n_tasks = len(targets.ids)
    if targets.layout == "ragged":
        _, mean, scale = standardized(targets.values[:, None], scaled=True)
        return np.repeat(mean, n_tasks), np.repeat(scale, n_tasks)
    seen = targets.counts > 0
    means, scales = np.zeros(n_tasks), np.ones(n_tasks)
    for t in np.flatnonzero(seen):
        _, mean, scale = standardized(targets.values[targets.tasks == t, None], scaled=True)
        means[t], scales[t] = mean[0], scale[0]
    return means, scales
