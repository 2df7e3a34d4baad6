"""Metrics for targets of several tasks, missing ones among them.

Targets are given as to the estimators: a matrix with a column per task and NaN where a target is missing, or one
target for each sample, and its task in addition.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import check_consistent_length
from sklearn.utils.validation import _check_sample_weight

from regbayes._types import Floats
from regbayes.estimators._task_bases import Targets, read_targets

__all__ = ["explained_variance_pooled", "explained_variance_within_tasks", "subset_accuracy", "task_accuracy"]


def task_accuracy(
    y_true: ArrayLike, y_pred: ArrayLike, *, unlabeled: Any = None, sample_weight: ArrayLike | None = None
) -> float:
    """Return the accuracy per label: the share of observed labels that are predicted.

    Of an indicator matrix it is 1 minus the Hamming loss.

    Parameters
    ----------
    y_true : array-like of shape (n_samples,) or (n_samples, n_tasks)
        Labels, NaN or None where missing.
    y_pred : array-like of the same shape
    unlabeled : object, default=None
        A further value of ``y_true`` that marks a missing label.
    sample_weight : array-like of shape (n_samples,), default=None
        How much the labels of each row count.
    """
    targets, predicted = _take_observed(y_true, y_pred, None, numeric=False, unlabeled=unlabeled)
    return float(np.average(targets.values == predicted, weights=_weights(sample_weight, y_pred, targets)))


def subset_accuracy(
    y_true: ArrayLike, y_pred: ArrayLike, *, unlabeled: Any = None, sample_weight: ArrayLike | None = None
) -> float:
    """Return the share of samples whose observed labels are all predicted, as scikit-learn's ``accuracy_score``.

    The parameters are those of `task_accuracy`; samples without a label are left out.
    """
    targets, predicted = _take_observed(y_true, y_pred, None, numeric=False, unlabeled=unlabeled)
    wrong = np.bincount(targets.rows, targets.values != predicted, minlength=len(np.asarray(y_pred)))
    weights = np.zeros(len(wrong))
    weights[targets.rows] = _weights(sample_weight, y_pred, targets)
    return float(np.average(wrong == 0, weights=weights))


def explained_variance_pooled(
    y_true: ArrayLike, y_pred: ArrayLike, task: ArrayLike | None = None, sample_weight: ArrayLike | None = None
) -> float:
    """Return ``1 - SSE / sum (y - mean of all y)^2`` over all observed targets, whatever their task.

    What sets one task apart from another counts as variance to explain, so predicting every task's mean already
    explains some. Not to be confused with scikit-learn's ``explained_variance_score``, which forgives a bias.

    Parameters
    ----------
    y_true, y_pred : array-like of shape (n_samples,) or (n_samples, n_tasks)
        Targets, NaN where missing, and predictions.
    task : array-like of shape (n_samples,), default=None
        Not needed; accepted so that both readings are called alike.
    sample_weight : array-like of shape (n_samples,), default=None
        How much the targets of each row count.

    See Also
    --------
    explained_variance_within_tasks : What is explained beyond the tasks' means.
    """
    targets, predicted = _take_observed(y_true, y_pred, task)
    weights = _weights(sample_weight, y_pred, targets)
    return _explain_variance(targets.values, predicted, np.average(targets.values, weights=weights), weights)


def explained_variance_within_tasks(
    y_true: ArrayLike, y_pred: ArrayLike, task: ArrayLike | None = None, sample_weight: ArrayLike | None = None
) -> float:
    """Return ``1 - SSE / sum (y - mean of its task's y)^2`` over all observed targets.

    Predicting every task's mean explains nothing. This is never above `explained_variance_pooled`.

    Parameters
    ----------
    y_true, y_pred : array-like of shape (n_samples,) or (n_samples, n_tasks)
        Targets, NaN where missing, and predictions.
    task : array-like of shape (n_samples,), default=None
        The task of each row, where there is one target per row. Columns of a matrix are tasks.
    sample_weight : array-like of shape (n_samples,), default=None
        How much the targets of each row count.

    See Also
    --------
    explained_variance_pooled : What is explained beyond one mean for all.
    """
    targets, predicted = _take_observed(y_true, y_pred, task)
    weights, n_tasks = _weights(sample_weight, y_pred, targets), len(targets.ids)
    sums = np.bincount(targets.tasks, weights=weights * targets.values, minlength=n_tasks)
    totals = np.bincount(targets.tasks, weights=weights, minlength=n_tasks)
    means = sums / np.where(totals > 0, totals, 1.0)
    return _explain_variance(targets.values, predicted, means[targets.tasks], weights)


def _explain_variance(values: Floats, predicted: Floats, centres: Floats | float, weights: Floats) -> float:
    error, spread = weights @ (values - predicted) ** 2, weights @ (values - centres) ** 2
    if spread == 0:  # as scikit-learn's r2_score: nothing to explain
        return 1.0 if error == 0 else 0.0
    return float(1.0 - error / spread)


def _weights(sample_weight: ArrayLike | None, y_pred: ArrayLike, targets: Targets) -> Floats:
    """Return the weight of each observed target: that of its row."""
    weights = _check_sample_weight(sample_weight, y_pred, dtype=np.float64, ensure_non_negative=True)[targets.rows]
    if not weights.any():
        raise ValueError("sample_weight is zero for every row with an observed target")
    return np.asarray(weights)


def _take_observed(
    y_true: ArrayLike, y_pred: ArrayLike, task: ArrayLike | None, *, numeric: bool = True, unlabeled: Any = None
) -> tuple[Targets, NDArray[Any]]:
    """Return the observed targets and the predictions of them."""
    predicted = np.asarray(y_pred)
    check_consistent_length(y_true, predicted)
    targets = read_targets(y_true, task, predicted, numeric=numeric, unlabeled=unlabeled)
    wanted, given = np.shape(y_true)[1:] or (1,), predicted.shape[1:] or (1,)
    if wanted != given:
        raise ValueError(f"y_pred has shape {predicted.shape}, but y_true has {np.shape(y_true)}")
    return targets, predicted.reshape(-1, *given)[targets.rows, targets.tasks if wanted != (1,) else 0]
