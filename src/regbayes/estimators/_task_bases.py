"""Bases of the estimators of several tasks: reading tasks, standardising, predicting and scoring.

An estimator says how it learns from a `TaskProblem` and how rows are scored for every output; the bases do the rest.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import ClassifierMixin, RegressorMixin, _fit_context
from sklearn.callback import with_callbacks
from sklearn.utils.validation import check_is_fitted

from regbayes._types import Floats, Integers
from regbayes.engine.executor import row_blocks
from regbayes.engine.mapped import StandardRows
from regbayes.estimators._arrays import answer_beside, bring_beside, bring_targets, on_host
from regbayes.estimators._bases import (
    IterativeEstimator,
    fit_beside,
    fit_data,
    keep_on_failure,
    one_blas_thread,
    read_rows,
)
from regbayes.estimators._calibration import NoProbabilities
from regbayes.estimators._labels import (
    class_factors,
    labels_of_tasks,
    observe_label_matrix,
    observe_labels,
    read_labels,
    scores_of_tasks,
)
from regbayes.estimators._tasks import (
    Layout,
    TargetMatrix,
    Targets,
    check_no_empty_task,
    in_order_of_tasks,
    known_codes,
    read_matrix,
    read_targets,
    take_weighted_rows,
)
from regbayes.estimators.metrics import explained_variance_pooled, task_accuracy
from regbayes.kernels.arrays import find_ranges, is_mapped, is_plain, sum_squares, take_rows, to_device, to_host
from regbayes.margins.targets import Observations, ObservedMatrix, Outputs, fill_matrix, observe_numbers
from regbayes.models.ilsvm.device import DeviceRows


@dataclass(frozen=True)
class TaskProblem:
    """What an estimator of several tasks learns from."""

    X: Floats  # (N, d): standardised
    row_weights: Floats | None  # (N,): how often each row counts, positive; None where all count once
    observations: Any  # targets: numbers, or -1 and 1; the weights of rows are not in theirs. A matrix if `_in_blocks`
    outputs: Outputs
    data: dict[str, Any]  # what the user gave, for callbacks

    @property
    def n_outputs(self) -> int:
        """Number of outputs."""
        return len(self.outputs)

    @cached_property
    def counts(self) -> Floats:
        """How often each row counts, (N,)."""
        return np.ones(self.X.shape[0]) if self.row_weights is None else self.row_weights

    @cached_property
    def counted(self) -> Observations:
        """The observations, with the weights of rows in theirs."""
        seen = self.observations
        return replace(seen, weights=seen.weights * self.counts[seen.rows])


class TaskModel(IterativeEstimator):
    """An estimator for several tasks."""

    _sorts_rows: ClassVar[bool] = False  # whether rows of a task are brought together, for speed
    _in_blocks: ClassVar[bool] = False  # whether rows of a mapped file stay there, and many targets in their matrix
    _remedy: ClassVar[str] = "It has no weights."  # what a user can do about a task without targets

    @property
    def _serves_new_tasks(self) -> bool:
        """Whether tasks without targets are served, with what tasks share."""
        return False

    @abstractmethod
    def _read_targets(self, y: Any, task: Any, X: Floats) -> Targets | TargetMatrix:
        """Read what the user gave."""

    @abstractmethod
    def _observe(self, targets: Any, weights: Floats | None) -> tuple[Observations | ObservedMatrix, Outputs]:
        """Return what the model sees of the targets of rows with weights, which are not in the observations'."""

    @abstractmethod
    def _learn(self, problem: TaskProblem) -> None:
        """Set the fitted attributes."""

    @abstractmethod
    def _scores(self, X: Floats) -> Floats:
        """Return the scores of standardised rows for every output, (n, M); of what tasks share in further columns."""

    def _own_scores(self, X: Floats, outputs: Integers) -> Floats:
        """Return the scores of standardised rows for some outputs of each, (n, c); -1 - g is what group g shares."""
        return np.take_along_axis(self._scores(X), outputs, axis=1)

    def _check_tasks(self, targets: Targets | TargetMatrix) -> None:
        """Check that there is something that serves every task."""
        if not self._serves_new_tasks or targets.layout != "ragged":  # columns have units, which need targets
            check_no_empty_task(targets, "Leave it out.")

    @with_callbacks
    @_fit_context(prefer_skip_nested_validation=True)
    def fit(
        self, X: ArrayLike, y: ArrayLike, task: ArrayLike | None = None, sample_weight: ArrayLike | None = None
    ) -> Self:
        """Learn the tasks.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        y : array-like of shape (n_samples, n_tasks) or (n_samples,)
            Targets, NaN or None where missing: a column per task, or with ``task`` one per row. A vector without
            ``task`` is one task.
        task : array-like of shape (n_samples,), default=None
            The task of each row.
        sample_weight : array-like of shape (n_samples,), default=None
            How often each row counts, in all that is learned: 2 is the row twice, 0 is the row left out.

        Returns
        -------
        self
        """
        with keep_on_failure(self), one_blas_thread():
            given = rows = read_rows(self, X, ensure_min_samples=2)
            if not is_plain(rows):
                y, task, sample_weight = bring_targets(rows, y=y, task=task, sample_weight=sample_weight)
            data = fit_data(rows, y, task=task, sample_weight=sample_weight)
            rows, y, task, weights = take_weighted_rows(rows, y, task, sample_weight)
            targets, order = self._read_targets(y, task, rows), None
            self._check_tasks(targets)
            if self._sorts_rows:
                targets, order = in_order_of_tasks(targets, rows.shape[0])
            stays = self._in_blocks and is_mapped(rows)
            centred, self.mean_, self.scale_ = standardized(rows, self.scale_inputs, order, weights, stays)
            weights = weights if weights is None or order is None else weights[order]
            observations, self._outputs = self._observe(targets, weights)
            self.tasks_, self._layout = targets.ids, targets.layout
            del targets  # the model has them as it needs them
            with fit_beside(self, given):
                self._learn(TaskProblem(centred, weights, observations, self._outputs, data))
        return self

    def _standard_rows(self, X: ArrayLike) -> Any:
        check_is_fitted(self, "tasks_")
        X, mean, scale = read_rows(self, X, reset=False), to_host(self.mean_), to_host(self.scale_)
        if not is_plain(X):
            return (X - to_device(mean, X)) / to_device(scale, X)
        if self._in_blocks and is_mapped(X):
            return StandardRows(X, mean, scale)
        centred = X - mean
        centred /= scale
        return centred

    def _score_rows(self, X: ArrayLike, task: ArrayLike | None) -> tuple[Floats, Integers]:
        """Return scores and tasks of rows: for every output, (n, M); with ``task``, for those of each row's own."""
        rows = self._standard_rows(X)
        if task is not None and not is_plain(rows):
            task = bring_beside(task, rows, "task")
        check_task_given(type(self).__name__, self._layout, task)
        if self._layout != "ragged":
            return self._scores(rows)[:, : len(self._outputs)], np.zeros(rows.shape[0], dtype=np.int64)
        codes = known_codes(
            to_host(self.tasks_), task, rows.shape[0], allow_unseen=self._serves_new_tasks, remedy=self._remedy
        )
        n_outputs = len(self._outputs) // len(to_host(self.tasks_))
        own = codes[:, None] * n_outputs + np.arange(n_outputs)
        shared = -1 - self._outputs.groups[:n_outputs]  # a task that was not seen has what its class's group shares
        return self._own_scores(rows, np.where(codes[:, None] >= 0, own, shared)), codes

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


class TaskRegressor(RegressorMixin, TaskModel):
    """Numbers of several tasks."""

    def _read_targets(self, y: Any, task: Any, X: Floats) -> Targets | TargetMatrix:
        found = read_matrix(y, task, X, numeric=True) if self._in_blocks else None
        return found or read_targets(y, task, X, numeric=True)

    def _target_units(self, layout: Layout) -> Literal["task", "pooled"] | None:
        """Return whether targets are standardised task by task, all together, or not at all."""
        return "pooled" if layout == "ragged" else "task"

    def _observe(self, targets: Any, weights: Floats | None) -> tuple[Observations | ObservedMatrix, Outputs]:
        units = self._target_units(targets.layout)
        if isinstance(targets, TargetMatrix):
            return self._observe_matrix(targets, weights, units)
        self.target_mean_, self.target_scale_ = _measure_targets(targets, weights, units)
        values = (targets.values - self.target_mean_[targets.tasks]) / self.target_scale_[targets.tasks]
        return observe_numbers(targets.rows, targets.tasks, values, len(targets.ids))

    def _observe_matrix(
        self, targets: TargetMatrix, weights: Floats | None, units: Literal["task", "pooled"] | None
    ) -> tuple[ObservedMatrix, Outputs]:
        n_rows, n_tasks = targets.values.shape
        self.target_mean_, self.target_scale_ = np.zeros(n_tasks), np.ones(n_tasks)

        def observe(task: int) -> tuple[int, Observations]:
            own, here = targets.column(task), slice(task, task + 1)
            self.target_mean_[here], self.target_scale_[here] = _measure_targets(own, weights, units)
            values = (own.values - self.target_mean_[task]) / self.target_scale_[task]
            return task, observe_numbers(own.rows, own.tasks, values, 1)[0]

        nothing = np.zeros(0, dtype=np.int64)
        outputs = observe_numbers(nothing, nothing, np.zeros(0), n_tasks)[1]
        return fill_matrix(map(observe, range(n_tasks)), n_tasks, n_rows, numbers=True), outputs

    def predict(self, X: ArrayLike, task: ArrayLike | None = None) -> Floats:
        """Return predictions, shape (n_samples, n_tasks) after ``fit(X, Y)`` and (n_samples,) otherwise.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        task : array-like of shape (n_samples,), default=None
            The task of each row, if ``fit`` was told.
        """
        scores, tasks = self._score_rows(X, task)
        scale, mean = to_host(self.target_scale_), to_host(self.target_mean_)
        if self._layout == "matrix":
            return answer_beside(scores * scale + mean, X)
        # -1, a task that was not seen, has the last one's unit: new tasks are served where all have the same.
        return answer_beside(scores[:, 0] * scale[tasks] + mean[tasks], X)

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
        y, predicted, sample_weight = on_host(y, self.predict(X, task), sample_weight)
        return explained_variance_pooled(y, predicted, sample_weight=sample_weight)


class TaskClassifier(ClassifierMixin, TaskModel):
    """Labels of several tasks."""

    cost: Any = None  # every wrong class costs the same
    predict_proba = NoProbabilities()

    def _read_targets(self, y: Any, task: Any, X: Floats) -> Targets | TargetMatrix:
        given: dict[str, Any] = {"numeric": False, "unlabeled": self.unlabeled}
        found = read_matrix(y, task, X, **given) if self._in_blocks else None
        return found or read_targets(y, task, X, **given)

    def _observe(self, targets: Any, weights: Floats | None) -> tuple[Observations | ObservedMatrix, Outputs]:
        if isinstance(targets, TargetMatrix):
            found, outputs, labels = observe_label_matrix(targets, self.class_weight, self.cost, weights)
            self.classes_ = labels.common_classes
            return found, outputs
        labels = read_labels(targets)
        self.classes_ = labels.common_classes
        factors = class_factors(self.class_weight, labels.classes, labels.count(targets, weights))
        return observe_labels(targets, labels, factors, self.cost)

    def _judge_scores(self, problem: TaskProblem, scores: Floats) -> str:
        """Return what is wrong with the scores of the observations, (n,).

        Wrong signs should weigh no more than those of one sign for each output.
        """
        return judge_signs(*sum_signs(problem.counted, scores, problem.n_outputs))

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
        return answer_beside(self._decide(X, task), X)

    def _decide(self, X: ArrayLike, task: ArrayLike | None) -> Floats | list[Floats]:
        scores, _ = self._score_rows(X, task)
        layout: Layout = "matrix" if self._layout == "matrix" else "single"  # rows know their task: one answer each
        return scores_of_tasks(scores, layout, self._outputs)

    def predict(self, X: ArrayLike, task: ArrayLike | None = None) -> NDArray[Any]:
        """Return classes, shape (n_samples, n_tasks) after ``fit(X, Y)`` and (n_samples,) otherwise.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        task : array-like of shape (n_samples,), default=None
            The task of each row, if ``fit`` was told.
        """
        scores = self._decide(X, task)
        classes = self.classes_ if isinstance(self.classes_, list) else to_host(self.classes_)
        return answer_beside(labels_of_tasks(scores, self._layout, classes), X)

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
        y, predicted, sample_weight = on_host(y, self.predict(X, task), sample_weight)
        return task_accuracy(y, predicted, unlabeled=self.unlabeled, sample_weight=sample_weight)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        return tags


def sum_signs(seen: Observations, scores: Floats, n_outputs: int) -> tuple[float, Floats, Floats]:
    """Return what scores of the wrong sign weigh, and what targets of either sign do, by output."""
    wrong = float(seen.weights @ ((scores > 0) != (seen.targets > 0)))
    signs = (seen.weights * (sign * seen.targets > 0) for sign in (-1, 1))
    negative, positive = (np.bincount(seen.outputs, own, minlength=n_outputs).astype(np.float64) for own in signs)
    return wrong, negative, positive


def judge_signs(wrong: float, negative: Floats, positive: Floats) -> str:
    """Return what is wrong with answers whose faults weigh so much, where signs of each output weigh so much."""
    constant = float(np.minimum(negative, positive).sum())
    if wrong <= constant * (1.0 + 1e-9):
        return ""
    return (
        f"does worse on its training rows than one answer for each task: wrong answers weigh {wrong:.4g}, those of "
        f"the most frequent ones {constant:.4g}"
    )


def check_task_given(name: str, layout: Layout, task: Any) -> None:
    """Check that tasks are named when predicting if they were when fitting, and only then."""
    if layout == "ragged" and task is None:
        raise ValueError(f"{name} was fitted with task=, the task of each row; prediction needs task= too")
    if layout != "ragged" and task is not None:
        raise ValueError(f"{name} was fitted without task=, so it predicts every task of every row; leave task out")


def _measure_targets(
    targets: Targets, weights: Floats | None, units: Literal["task", "pooled"] | None
) -> tuple[Floats, Floats]:
    """Return the mean and the scale of each task's targets, of rows that may have weights."""
    n_tasks = len(targets.ids)
    counted = None if weights is None else weights[targets.rows]
    if units is None:
        return np.zeros(n_tasks), np.ones(n_tasks)
    if units == "pooled":
        _, mean, scale = standardized(targets.values[:, None], scaled=True, sample_weight=counted)
        return np.repeat(mean, n_tasks), np.repeat(scale, n_tasks)
    by_task = np.split(np.argsort(targets.tasks, kind="stable"), np.cumsum(targets.counts)[:-1])
    found = [
        standardized(targets.values[here, None], True, sample_weight=None if counted is None else counted[here])[1:]
        for here in by_task
    ]
    means, scales = np.array(found)[:, :, 0].T
    return means, scales


def standardized(
    X: Floats,
    scaled: bool,
    order: Integers | None = None,
    sample_weight: Floats | None = None,
    stays: bool = False,
) -> tuple[Any, Floats, Floats]:
    """Return X with centred and, if asked, scaled columns, and the means and scales; large values do not overflow.

    A constant column has scale 1. One that is constant up to rounding has its size as scale, so that it stays small.
    With ``order`` the rows come back in that order. No other copy of X is made; none at all where it ``stays`` where it
    is, and is standardised when it is looked at.
    """
    if not is_plain(X):
        return standardized_there(X, scaled, order, sample_weight)
    highest, lowest = X.max(axis=0).astype(np.float64), X.min(axis=0).astype(np.float64)
    peak = np.maximum(highest, -lowest)
    unit = np.where(peak > 0, peak, 1.0)
    fixed = highest / unit == lowest / unit
    small_mean = _mean_of_rows(lambda rows: rows / unit, X, sample_weight)
    spread = np.sqrt(_mean_of_rows(lambda rows: (rows / unit - small_mean) ** 2, X, sample_weight))
    mean = np.where(fixed, X[0], small_mean * unit)
    scale = np.where(spread > 10 * np.finfo(np.float64).eps, spread, 1.0) * unit
    scale = np.where(fixed, 1.0, scale) if scaled else np.ones_like(mean)
    if stays:
        centred: Any = StandardRows(X, mean, scale, order)
    else:
        centred = np.empty(X.shape)
        if order is None:
            np.subtract(X, mean, out=centred)
        else:
            np.take(X, order, axis=0, out=centred, mode="clip")  # the default mode would make a copy
            centred -= mean
        centred /= scale
    with np.errstate(over="ignore"):
        parts = (np.asarray(centred[rows]) for rows in row_blocks(len(X)))
        if not np.isfinite(sum(np.vdot(part, part) for part in parts)):
            raise ValueError("X has values too large to square; set scale_inputs=True, or rescale X")
    return centred, mean, scale


def standardized_there(
    X: Any, scaled: bool, order: Integers | None, sample_weight: Floats | None
) -> tuple[Any, Floats, Floats]:
    """Return rows on a device as `standardized` does, with means and scales on the host."""
    rows = DeviceRows.centre(X, weights=sample_weight)
    lowest, highest = find_ranges(X)
    mean = np.where(highest == lowest, lowest, rows.mean)
    spread = np.sqrt(sum_squares(X, mean, sample_weight) / rows.total_weight)
    small = spread <= 10 * np.finfo(np.float64).eps * np.maximum(np.abs(lowest), np.abs(highest))
    scale = np.where(small, np.where(highest == lowest, 1.0, np.maximum(np.abs(lowest), np.abs(highest))), spread)
    scale = scale if scaled else np.ones_like(mean)
    if not np.all(np.isfinite(scale)):
        raise ValueError("X has values too large to square; rescale X")
    X = X if order is None else take_rows(X, order)
    return (X - to_device(mean, X)) / to_device(scale, X), mean, scale


def _mean_of_rows(function: Callable[[Floats], Floats], X: Floats, sample_weight: Floats | None) -> Floats:
    """Return the mean over rows of a function of them, block by block."""
    if sample_weight is None:
        return np.sum([function(X[rows]).sum(axis=0) for rows in row_blocks(len(X))], axis=0) / len(X)
    sums = [sample_weight[rows] @ function(X[rows]) for rows in row_blocks(len(X))]
    return np.sum(sums, axis=0) / sample_weight.sum()
