"""Metrics for targets of several tasks, which may be missing.

Targets have the form that the estimators accept: a matrix with a column per task and NaN where a target is missing, or
one target and one task for each sample.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.metrics import r2_score
from sklearn.utils import check_consistent_length
from sklearn.utils.validation import _check_sample_weight

from regbayes._types import Floats
from regbayes.estimators._task_bases import Targets, read_targets

__all__ = ["explained_variance_pooled", "explained_variance_within_tasks", "subset_accuracy", "task_accuracy"]


def task_accuracy(
    y_true: ArrayLike, y_pred: ArrayLike, *, unlabeled: Any = None, sample_weight: ArrayLike | None = None
) -> float:
    """Return the accuracy per label: the share of observed labels that are predicted.

    For an indicator matrix it is 1 minus the Hamming loss.

    Parameters
    ----------
    y_true : array-like of shape (n_samples,) or (n_samples, n_tasks)
        Labels, NaN or None where missing.
    y_pred : array-like of the same shape
    unlabeled : object, default=None
        Another value of ``y_true`` that marks a missing label.
    sample_weight : array-like of shape (n_samples,), default=None
        Weight of each sample's labels.

    Examples
    --------
    >>> from regbayes.metrics import task_accuracy
    >>> task_accuracy([[1, 0], [1, float("nan")], [0, 1]], [[1, 1], [1, 0], [0, 1]])
    0.8
    """
    targets, predicted = _take_observed(y_true, y_pred, None, numeric=False, unlabeled=unlabeled)
    return float(np.average(targets.values == predicted, weights=_weights(sample_weight, y_pred, targets)))


def subset_accuracy(
    y_true: ArrayLike, y_pred: ArrayLike, *, unlabeled: Any = None, sample_weight: ArrayLike | None = None
) -> float:
    """Return the share of samples whose observed labels are all predicted.

    Without missing labels it is scikit-learn's ``accuracy_score``. The parameters are those of `task_accuracy`. Samples
    without a label are left out.

    Examples
    --------
    >>> from regbayes.metrics import subset_accuracy
    >>> subset_accuracy([[1, 0], [1, float("nan")]], [[1, 1], [1, 0]])
    0.5
    """
    targets, predicted = _take_observed(y_true, y_pred, None, numeric=False, unlabeled=unlabeled)
    wrong = np.bincount(targets.rows, targets.values != predicted, minlength=len(np.asarray(y_pred)))
    weights = np.zeros(len(wrong))
    weights[targets.rows] = _weights(sample_weight, y_pred, targets)
    return float(np.average(wrong == 0, weights=weights))


def explained_variance_pooled(
    y_true: ArrayLike, y_pred: ArrayLike, task: ArrayLike | None = None, sample_weight: ArrayLike | None = None
) -> float:
    """Return ``1 - SSE / sum (y - mean of all y)^2`` over all observed targets.

    Differences between tasks count as variance, so predicting the means of tasks that differ scores above 0. Unlike
    scikit-learn's ``explained_variance_score``, the score decreases with a bias of the predictions.

    Parameters
    ----------
    y_true, y_pred : array-like of shape (n_samples,) or (n_samples, n_tasks)
        Targets, NaN where missing, and predictions.
    task : array-like of shape (n_samples,), default=None
        Ignored; accepted for consistency with `explained_variance_within_tasks`.
    sample_weight : array-like of shape (n_samples,), default=None
        Weight of each sample's targets.

    See Also
    --------
    explained_variance_within_tasks : Share of the variance within tasks that is explained.

    Examples
    --------
    >>> from regbayes.metrics import explained_variance_pooled
    >>> explained_variance_pooled([[1.0, 5.0], [3.0, 7.0]], [[2.0, 6.0], [2.0, 6.0]])
    0.8
    """
    targets, predicted = _take_observed(y_true, y_pred, task)
    return float(r2_score(targets.values, predicted, sample_weight=_weights(sample_weight, y_pred, targets)))


def explained_variance_within_tasks(
    y_true: ArrayLike, y_pred: ArrayLike, task: ArrayLike | None = None, sample_weight: ArrayLike | None = None
) -> float:
    """Return ``1 - SSE / sum (y - mean of its task's y)^2`` over all observed targets.

    Predicting every task's mean has a score of 0. The score is at most that of `explained_variance_pooled`.

    Parameters
    ----------
    y_true, y_pred : array-like of shape (n_samples,) or (n_samples, n_tasks)
        Targets, NaN where missing, and predictions.
    task : array-like of shape (n_samples,), default=None
        The task of each sample, if there is one target per sample. Columns of a matrix are tasks.
    sample_weight : array-like of shape (n_samples,), default=None
        Weight of each sample's targets.

    See Also
    --------
    explained_variance_pooled : Share of the variance around the overall mean that is explained.

    Examples
    --------
    >>> from regbayes.metrics import explained_variance_within_tasks
    >>> explained_variance_within_tasks([[1.0, 5.0], [3.0, 7.0]], [[2.0, 6.0], [2.0, 6.0]])
    0.0
    """
    targets, predicted = _take_observed(y_true, y_pred, task)
    weights, n_tasks = _weights(sample_weight, y_pred, targets), len(targets.ids)
    sums = np.bincount(targets.tasks, weights=weights * targets.values, minlength=n_tasks)
    totals = np.bincount(targets.tasks, weights=weights, minlength=n_tasks)
    means = (sums / np.where(totals > 0, totals, 1.0))[targets.tasks]
    return float(r2_score(targets.values - means, predicted - means, sample_weight=weights))


def _weights(sample_weight: ArrayLike | None, y_pred: ArrayLike, targets: Targets) -> Floats:
    """Return the weight of each observed target."""
    weights = _check_sample_weight(sample_weight, y_pred, dtype=np.float64, ensure_non_negative=True)[targets.rows]
    if not weights.any():
        raise ValueError("sample_weight is zero for every row with an observed target")
    return np.asarray(weights)


def _take_observed(
    y_true: ArrayLike, y_pred: ArrayLike, task: ArrayLike | None, *, numeric: bool = True, unlabeled: Any = None
) -> tuple[Targets, NDArray[Any]]:
    """Return the observed targets and their predictions."""
    predicted = np.asarray(y_pred)
    check_consistent_length(y_true, predicted)
    targets = read_targets(y_true, task, predicted, numeric=numeric, unlabeled=unlabeled)
    wanted, given = np.shape(y_true)[1:] or (1,), predicted.shape[1:] or (1,)
    if wanted != given:
        raise ValueError(f"y_pred has shape {predicted.shape}, but y_true has {np.shape(y_true)}")
    return targets, predicted.reshape(-1, *given)[targets.rows, targets.tasks if wanted != (1,) else 0]
