"""Targets of several tasks: reading and standardization.

Targets have one of two layouts. A matrix has a row for each sample and a column for each task, with missing values.
Ragged tasks have one target for each sample, and its task. A vector is a single task.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import check_array, check_consistent_length, column_or_1d

from regbayes._types import Flags, Floats, Integers
from regbayes.engine import row_blocks
from regbayes.engine.mapped import StandardRows
from regbayes.estimators._bases import check_unlabeled, find_missing
from regbayes.kernels.arrays import find_ranges, is_plain, sum_squares, take_rows, to_device
from regbayes.margins.targets import Outputs
from regbayes.models.ilsvm.model import Rows

Layout = Literal["single", "matrix", "ragged"]

NAMED_IN_MESSAGES = 5
MANY, MOST = 50_000, 0.25  # number and share of observed targets from which on a matrix is not converted to a list


# --- Targets


@dataclass(frozen=True)
class Targets:
    """The observed targets of all tasks."""

    layout: Layout
    ids: NDArray[Any]  # (n_tasks,): names of the tasks
    rows: Integers  # (n,): sample of each target
    tasks: Integers  # (n,): index into ids
    values: NDArray[Any]  # (n,)

    @property
    def counts(self) -> Integers:
        """Number of observed targets of each task, (n_tasks,)."""
        return np.bincount(self.tasks, minlength=len(self.ids))


@dataclass(frozen=True)
class TargetMatrix:
    """The targets of all tasks as a matrix, which is read one task at a time."""

    ids: NDArray[Any]  # (n_tasks,): names of the tasks
    values: NDArray[Any]  # (n, n_tasks)
    observed: Flags  # (n, n_tasks)
    layout: Layout = "matrix"

    @property
    def counts(self) -> Integers:
        """Number of observed targets of each task, (n_tasks,)."""
        return np.count_nonzero(self.observed, axis=0)

    def column(self, task: int) -> Targets:
        """Return the observed targets of one task, as a single task."""
        rows = np.flatnonzero(self.observed[:, task])
        return Targets("matrix", self.ids[task : task + 1], rows, np.zeros_like(rows), self.values[rows, task])


def read_targets(y: Any, task: Any, X: Floats, *, numeric: bool, unlabeled: Any = None) -> Targets:
    """Return the observed targets."""
    found = find_targets(_check_targets(y, X, numeric), task, unlabeled, getattr(y, "columns", ()))
    if not len(found.rows):
        raise ValueError("y has no observed target: every value is missing")
    return found


def read_matrix(y: Any, task: Any, X: Floats, *, numeric: bool, unlabeled: Any = None) -> TargetMatrix | None:
    """Return the targets as a matrix if they are many and most are observed; None otherwise.

    The parameters are those of `read_targets`, whose result takes several times the memory.
    """
    if task is not None or y is None:
        return None
    values = _check_targets(y, X, numeric)
    if values.ndim != 2 or values.size < MANY:
        return None
    observed = _find_observed(values, unlabeled)
    if np.count_nonzero(observed) < MOST * values.size:
        return None
    return TargetMatrix(column_names(getattr(y, "columns", ()), values.shape[1]), values, observed)


def find_targets(values: NDArray[Any], task: Any, unlabeled: Any, names: Any = ()) -> Targets:
    """Return the observed targets, possibly none; ``names`` are those of the columns of a matrix."""
    observed = _find_observed(values, unlabeled)
    if task is not None:
        return _find_ragged(values, task, observed)
    if values.ndim == 1:
        rows = np.flatnonzero(observed)
        return Targets("single", np.zeros(1, dtype=np.int64), rows, np.zeros_like(rows), values[rows])
    tasks, rows = np.nonzero(observed.T)
    return Targets("matrix", column_names(names, values.shape[1]), rows, tasks, values[rows, tasks])


def _find_observed(values: NDArray[Any], unlabeled: Any) -> Flags:
    observed = ~find_missing(values)
    if unlabeled is not None:
        check_unlabeled(unlabeled)
        observed &= np.asarray(values != unlabeled, dtype=bool)
    return observed


def _check_targets(y: Any, X: Floats, numeric: bool) -> NDArray[Any]:
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


def _find_ragged(values: NDArray[Any], task: Any, observed: Flags) -> Targets:
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


def in_order_of_tasks(targets: Any, n_rows: int) -> tuple[Any, Integers | None]:
    """Return ragged targets sorted by task, and the order of the samples or None.

    The samples of a task are then adjacent in memory. Samples without a target come last.
    """
    if targets.layout != "ragged":
        return targets, None
    with_target = targets.rows[np.argsort(targets.tasks, kind="stable")]
    order = np.concatenate([with_target, np.setdiff1d(np.arange(n_rows), with_target)])
    place = np.empty(n_rows, dtype=np.int64)
    place[order] = np.arange(n_rows)
    return replace(targets, rows=place[targets.rows]), order


def checked_ids(task: ArrayLike, n_rows: int) -> NDArray[Any]:
    """Return the tasks of samples as a sortable array of one type."""
    shape = np.shape(task)
    if len(shape) != 1 and not (len(shape) == 2 and shape[1] == 1):
        raise ValueError(f"task must be of shape (n_samples,), got {shape}")
    ids = column_or_1d(task)
    if len(ids) != n_rows:
        raise ValueError(f"task must have one entry per row: it has {len(ids)}, and there are {n_rows} rows")
    if np.any(find_missing(ids)):
        raise ValueError("task contains NaN or None; every row must say which task it belongs to")
    return natural(ids, "task")


def known_codes(ids: NDArray[Any], task: ArrayLike, n_rows: int, *, allow_unseen: bool, remedy: str) -> Integers:
    """Return the index of each sample's task; -1 for unseen tasks if ``allow_unseen``.

    ``remedy`` ends the error message for unseen tasks.
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
    """Raise an error for tasks without observed targets; ``remedy`` ends the message."""
    empty = targets.counts == 0
    if np.any(empty):
        raise ValueError(f"no target is observed for task {listed(targets.ids[empty])}. {remedy}")


def listed(ids: NDArray[Any]) -> str:
    """Return the first few tasks as text for a message."""
    shown = ", ".join(repr(name) for name in ids[:NAMED_IN_MESSAGES].tolist())
    more = len(ids) - NAMED_IN_MESSAGES
    return f"{shown} and {more} more" if more > 0 else shown


def natural(values: NDArray[Any], name: str) -> NDArray[Any]:
    """Return an object array as an array of strings, numbers or booleans."""
    if values.dtype.kind != "O":
        return values
    kinds = {"text" if isinstance(value, str | bytes) else "other" for value in values.tolist()}
    if len(kinds) > 1:
        raise ValueError(f"{name} mixes text with other types; use one type")
    return np.array(values.tolist()) if len(values) else np.zeros(0)


def column_names(given: Any, n_tasks: int) -> NDArray[Any]:
    """Return the column names of a data frame if they are strings, and column numbers otherwise."""
    names = list(given)
    if len(names) == n_tasks and all(isinstance(name, str) for name in names):
        return np.array(names)
    return np.arange(n_tasks)


# --- Bases


@dataclass(frozen=True)
class TaskProblem:
    """Training data of an estimator of several tasks."""

    X: Floats  # (N, d): standardized
    row_weights: Floats | None  # (N,): weight of each sample, positive; None if all count once
    observations: Any  # targets without sample weights: numbers, or -1 and 1; a matrix if `_in_blocks`
    outputs: Outputs
    data: dict[str, Any]  # data of the fit for callbacks

    @property
    def n_outputs(self) -> int:
        """Number of outputs."""
        return len(self.outputs)


def measure_targets(
    targets: Targets, weights: Floats | None, units: Literal["task", "pooled"] | None
) -> tuple[Floats, Floats]:
    """Return the mean and the scale of each task's targets."""
    n_tasks = len(targets.ids)
    counted = None if weights is None else weights[targets.rows]
    if units is None:
        return np.zeros(n_tasks), np.ones(n_tasks)
    if units == "pooled":
        _, mean, scale = standardized(targets.values[:, None], scaled=True, sample_weight=counted, name="y")
        return np.repeat(mean, n_tasks), np.repeat(scale, n_tasks)
    by_task = np.split(np.argsort(targets.tasks, kind="stable"), np.cumsum(targets.counts)[:-1])
    found = [
        standardized(
            targets.values[here, None], True, sample_weight=None if counted is None else counted[here], name="y"
        )[1:]
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
    name: str = "X",
) -> tuple[Any, Floats, Floats]:
    """Return X with centered and optionally scaled columns, the means and the scales.

    Large values do not overflow. A constant column has scale 1. A column that is constant up to rounding is divided by
    its largest value, so that it stays small. With ``order`` the samples are sorted. X is copied once, or not at all
    with ``stays``, which standardizes its blocks when they are read.
    """
    if not is_plain(X):
        return standardized_there(X, scaled, order, sample_weight)
    highest, lowest = X.max(axis=0).astype(np.float64), X.min(axis=0).astype(np.float64)
    peak = np.maximum(highest, -lowest)
    unit = np.where(peak > 0, peak, 1.0)
    fixed = highest / unit == lowest / unit
    small_mean = _moment_of_rows(X, unit, 0.0, 1, sample_weight)
    spread = np.sqrt(_moment_of_rows(X, unit, small_mean, 2, sample_weight))
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
    squares = 0.0
    with np.errstate(over="ignore"):
        for rows in row_blocks(len(X)):
            part = np.asarray(centred[rows])
            squares += float(np.vdot(part, part))
    if not np.isfinite(squares):
        raise ValueError(f"{name} has values too large to square: rescale {name}")
    return centred, mean, scale


def standardized_there(
    X: Any, scaled: bool, order: Integers | None, sample_weight: Floats | None
) -> tuple[Any, Floats, Floats]:
    """Return samples on a device as `standardized` does, with means and scales in host memory."""
    rows = Rows.centre(X, weights=sample_weight)
    lowest, highest = find_ranges(X)
    mean = np.where(highest == lowest, lowest, rows.mean)
    n_rows = X.shape[0] if sample_weight is None else sample_weight.sum()
    spread = np.sqrt(sum_squares(X, mean, sample_weight) / n_rows)
    small = spread <= 10 * np.finfo(np.float64).eps * np.maximum(np.abs(lowest), np.abs(highest))
    scale = np.where(small, np.where(highest == lowest, 1.0, np.maximum(np.abs(lowest), np.abs(highest))), spread)
    scale = scale if scaled else np.ones_like(mean)
    if not np.all(np.isfinite(scale)):
        raise ValueError("X has values too large to square; rescale X")
    X = X if order is None else take_rows(X, order)
    return (X - to_device(mean, X)) / to_device(scale, X), mean, scale


def _moment_of_rows(X: Floats, unit: Floats, about: Floats | float, power: int, sample_weight: Floats | None) -> Floats:
    """Return the mean of a power of the deviations of samples from a point, in units of each column, by blocks."""
    total = np.zeros(X.shape[1])
    for rows in row_blocks(len(X)):
        powers = (X[rows] / unit - about) ** power
        total += powers.sum(axis=0) if sample_weight is None else sample_weight[rows] @ powers
    return total / (len(X) if sample_weight is None else sample_weight.sum())
