"""Targets of several tasks: from what a user gives to a list of observed targets, and which task is which.

There are two ways in. A matrix has a row per example and a column per task, with holes. Ragged tasks have one target
per row and say beside it which task it belongs to. One vector is one task.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import _safe_indexing, check_array, check_consistent_length, column_or_1d
from sklearn.utils._missing import is_scalar_nan
from sklearn.utils.validation import _check_sample_weight

from regbayes._types import Flags, Floats, Integers
from regbayes.kernels.arrays import is_plain, take_rows

Layout = Literal["single", "matrix", "ragged"]

NAMED_IN_MESSAGES = 5
MANY, MOST = 50_000, 0.25  # targets, and the share of a matrix that is observed, from which on it stays one
SHARE_NEW = "Set task_sharing and unseen_tasks='shared' to serve new tasks with the weights that all tasks share."
SHARE_EMPTY = (
    "Leave it out, or set task_sharing and unseen_tasks='shared' to serve it with the weights that all tasks share."
)


@dataclass(frozen=True)
class Targets:
    """The observed targets of all tasks."""

    layout: Layout
    ids: NDArray[Any]  # (n_tasks,): what the user calls each task
    rows: Integers  # (n,): where each observed target belongs
    tasks: Integers  # (n,): index into ids
    values: NDArray[Any]  # (n,)

    @property
    def counts(self) -> Integers:
        """Observed targets of each task, (n_tasks,)."""
        return np.bincount(self.tasks, minlength=len(self.ids))


@dataclass(frozen=True)
class TargetMatrix:
    """The targets of all tasks where most are observed: as they were given, and looked at one task after another."""

    ids: NDArray[Any]  # (n_tasks,): what the user calls each task
    values: NDArray[Any]  # (n, n_tasks)
    observed: Flags  # (n, n_tasks)
    layout: Layout = "matrix"

    @property
    def counts(self) -> Integers:
        """Observed targets of each task, (n_tasks,)."""
        return np.count_nonzero(self.observed, axis=0)

    def column(self, task: int) -> Targets:
        """Return the observed targets of one task, as if it were the only one."""
        rows = np.flatnonzero(self.observed[:, task])
        return Targets("matrix", self.ids[task : task + 1], rows, np.zeros_like(rows), self.values[rows, task])


def read_targets(y: Any, task: Any, X: Floats, *, numeric: bool, unlabeled: Any = None) -> Targets:
    """Return the observed targets.

    Parameters
    ----------
    y : array-like of shape (n_samples,) or (n_samples, n_tasks)
        NaN and None mark a missing target.
    task : array-like of shape (n_samples,) or None
        The task of each row, where there is one target per row.
    X : (n_samples, d)
        The rows, for their number.
    numeric : bool
        Whether targets are numbers; labels may be anything that can be sorted.
    unlabeled : object
        A further value that marks a missing target.
    """
    found = find_targets(_checked_targets(y, X, numeric), task, unlabeled, getattr(y, "columns", ()))
    if not len(found.rows):
        raise ValueError("y has no observed target: every value is missing")
    return found


def read_matrix(y: Any, task: Any, X: Floats, *, numeric: bool, unlabeled: Any = None) -> TargetMatrix | None:
    """Return targets as they were given, where they are many and most are observed; None elsewhere.

    Arguments are those of `read_targets`, whose list takes several times as much.
    """
    if task is not None or y is None:
        return None
    values = _checked_targets(y, X, numeric)
    if values.ndim != 2 or values.size < MANY:
        return None
    observed = _observed(values, unlabeled)
    if np.count_nonzero(observed) < MOST * values.size:
        return None
    return TargetMatrix(column_names(getattr(y, "columns", ()), values.shape[1]), values, observed)


def find_targets(values: NDArray[Any], task: Any, unlabeled: Any, names: Any = ()) -> Targets:
    """Return the observed ones of some targets, which may be none; a matrix may have names of its columns."""
    observed = _observed(values, unlabeled)
    if task is not None:
        return _ragged(values, task, observed)
    if values.ndim == 1:
        rows = np.flatnonzero(observed)
        return Targets("single", np.zeros(1, dtype=np.int64), rows, np.zeros_like(rows), values[rows])
    tasks, rows = np.nonzero(observed.T)
    return Targets("matrix", column_names(names, values.shape[1]), rows, tasks, values[rows, tasks])


def _observed(values: NDArray[Any], unlabeled: Any) -> Flags:
    observed = ~_missing(values)
    if unlabeled is not None:
        observed &= np.asarray(values != unlabeled, dtype=bool)
    return observed


def _checked_targets(y: Any, X: Floats, numeric: bool) -> NDArray[Any]:
    if y is None:
        raise ValueError("this estimator requires y to be passed, but the target y is None")
    values = check_array(
        y,
        dtype=np.float64 if numeric else None,
        ensure_2d=False,
        ensure_min_samples=0,
        ensure_min_features=0,
        ensure_all_finite="allow-nan",
        input_name="y",
    )
    if values.ndim == 0 or (values.ndim == 2 and values.shape[1] == 0):
        raise ValueError(f"y must be of shape (n_samples,) or (n_samples, n_tasks), got {values.shape}")
    check_consistent_length(X if is_plain(X) else np.empty(X.shape[0]), values)
    return values


def _ragged(values: NDArray[Any], task: Any, observed: Flags) -> Targets:
    if values.ndim == 2 and values.shape[1] > 1:
        raise ValueError(
            f"y has shape {values.shape}, a column per task; with task= it must have one target per row. "
            "Give either a matrix, or one target per row and its task."
        )
    values, observed = values.ravel(), observed.ravel()
    named = checked_ids(task, len(values))
    ids, codes = np.unique(named, return_inverse=True)
    rows = np.flatnonzero(observed)
    return Targets("ragged", ids, rows, codes[rows].astype(np.int64), values[rows])


def take_weighted_rows(X: Floats, y: Any, task: Any, sample_weight: Any) -> tuple[Floats, Any, Any, Floats | None]:
    """Return the rows whose weight is not zero, and their weights; None where each counts once."""
    if sample_weight is None:
        return X, y, task, None
    rows = X if is_plain(X) else np.empty((X.shape[0], 0))
    weights = _check_sample_weight(sample_weight, rows, dtype=np.float64, ensure_non_negative=True)
    kept = np.flatnonzero(weights)
    if len(kept) < len(weights):
        if y is not None:
            check_consistent_length(rows, y)
        X, weights = X[kept] if is_plain(X) else take_rows(X, kept), weights[kept]
        y, task = (None if given is None else _safe_indexing(given, kept) for given in (y, task))
    return X, y, task, None if np.all(weights == 1.0) else weights


def in_order_of_tasks(targets: Any, n_rows: int) -> tuple[Any, Integers | None]:
    """Return ragged targets for rows that are sorted by task, and that order of the rows; None leaves it as it is.

    A pass over the targets of a task is then a pass over neighbours in memory. Rows without a target come last.
    """
    if targets.layout != "ragged":
        return targets, None
    with_target = targets.rows[np.argsort(targets.tasks, kind="stable")]
    order = np.concatenate([with_target, np.setdiff1d(np.arange(n_rows), with_target)])
    place = np.empty(n_rows, dtype=np.int64)
    place[order] = np.arange(n_rows)
    return replace(targets, rows=place[targets.rows]), order


def checked_ids(task: ArrayLike, n_rows: int) -> NDArray[Any]:
    """Return the tasks of rows as a sortable array of one type."""
    shape = np.shape(task)
    if len(shape) != 1 and not (len(shape) == 2 and shape[1] == 1):
        raise ValueError(f"task must be of shape (n_samples,), got {shape}")
    ids = column_or_1d(task)
    if len(ids) != n_rows:
        raise ValueError(f"task must have one entry per row: it has {len(ids)}, and there are {n_rows} rows")
    if np.any(_missing(ids)):
        raise ValueError("task contains NaN or None; every row must say which task it belongs to")
    return natural(ids, "task")


def known_codes(ids: NDArray[Any], task: ArrayLike, n_rows: int, *, allow_unseen: bool, remedy: str) -> Integers:
    """Return the index of each row's task, -1 where it was not seen in training and that is allowed.

    ``remedy`` ends the message where it is not: what the user of this estimator can do.
    """
    asked = checked_ids(task, n_rows)
    if (asked.dtype.kind in "US") != (ids.dtype.kind in "US"):
        raise ValueError(f"task has dtype {asked.dtype}, but in training it had {ids.dtype}")
    place = np.minimum(np.searchsorted(ids, asked), len(ids) - 1)
    seen = ids[place] == asked
    if not allow_unseen and not np.all(seen):
        raise ValueError(f"task contains {listed(np.unique(asked[~seen]))}, which had no target in training. {remedy}")
    return np.where(seen, place, -1).astype(np.int64)


def check_no_empty_task(targets: Targets | TargetMatrix, remedy: str) -> None:
    """Refuse tasks that have no observed target, and end with what the user can do."""
    empty = targets.counts == 0
    if np.any(empty):
        raise ValueError(f"no target is observed for task {listed(targets.ids[empty])}. {remedy}")


def listed(ids: NDArray[Any]) -> str:
    """Name tasks in a message, not too many of them."""
    shown = ", ".join(repr(name) for name in ids[:NAMED_IN_MESSAGES].tolist())
    more = len(ids) - NAMED_IN_MESSAGES
    return f"{shown} and {more} more" if more > 0 else shown


def natural(values: NDArray[Any], name: str) -> NDArray[Any]:
    """Return an object array as the array of strings, numbers or booleans that it holds."""
    if values.dtype.kind != "O":
        return values
    kinds = {"text" if isinstance(value, str | bytes) else "other" for value in values.tolist()}
    if len(kinds) > 1:
        raise ValueError(f"{name} mixes text with other types; use one type")
    return np.array(values.tolist()) if len(values) else np.zeros(0)


def _missing(values: NDArray[Any]) -> Flags:
    if values.dtype.kind == "f":
        return np.isnan(values)
    if values.dtype.kind != "O":
        return np.zeros(values.shape, dtype=bool)
    flat = [value is None or is_scalar_nan(value) or type(value).__name__ == "NAType" for value in values.ravel()]
    return np.array(flat, dtype=bool).reshape(values.shape)


def column_names(given: Any, n_tasks: int) -> NDArray[Any]:
    """Return the names of the columns of a data frame, if they are names, and numbers otherwise."""
    names = list(given)
    if len(names) == n_tasks and all(isinstance(name, str) for name in names):
        return np.array(names)
    return np.arange(n_tasks)
