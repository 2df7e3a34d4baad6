"""Targets of rows, of one question or of several, as labels or numbers that are ready to be counted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from sklearn.base import is_classifier, is_regressor
from sklearn.utils.multiclass import type_of_target

from regbayes._types import Integers
from regbayes.estimators._task_bases import Layout, Targets, natural, read_targets
from regbayes.kernels.arrays import to_host


@dataclass(frozen=True)
class Outcomes:
    """The observed targets of all tasks, and what they are called.

    A label is a code into the classes of its task. `values` holds codes for classes and the targets themselves for
    numbers; `predicted` is like it, NaN or -1 where nothing was predicted.
    """

    kind: Literal["classes", "numbers"]
    layout: Layout
    task_names: list[str]  # (tasks,)
    class_names: list[list[str]]  # of each task; empty lists for numbers
    classes: list[NDArray[Any]]  # of each task
    rows: Integers  # (n,)
    tasks: Integers  # (n,)
    values: NDArray[Any]  # (n,)
    predicted: NDArray[Any] | None  # (n,)

    @property
    def pooled_classes(self) -> bool:
        """Whether all targets are answers to one question, which a confusion matrix can show."""
        return self.kind == "classes" and self.layout != "matrix"


def label_text(label: Any) -> str:
    """Return a label as text; 1.0, which is what a hole makes of 1, is "1"."""
    value = label.item() if isinstance(label, np.generic) else label
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def target_kind(estimator: Any, y: Any) -> Literal["classes", "numbers"]:
    """Say whether targets are labels or numbers: the estimator decides, or for an unsupervised one what they are."""
    if is_classifier(estimator):
        return "classes"
    if is_regressor(estimator):
        return "numbers"
    return "numbers" if type_of_target(y, input_name="y").startswith("continuous") else "classes"


def read_outcomes(
    estimator: Any, model: Any, X: Any, y: Any, task: Any, predictions: Any, target_names: Sequence[str] | None
) -> Outcomes:
    """Return observed targets with predictions of them.

    Parameters
    ----------
    estimator, model : what was fitted, and the model inside it
    X : the rows, for their number
    y, task : targets, as to ``fit``
    predictions : what is predicted for them, in the shape of y; None if nothing is
    target_names : names of the classes, or of the columns of a matrix
    """
    kind = target_kind(estimator, y)
    unlabeled = getattr(model, "unlabeled", None)
    targets = read_targets(y, task, X, numeric=kind == "numbers", unlabeled=unlabeled)
    answers = None if predictions is None else _at_targets(predictions, targets, len(np.asarray(y)))
    task_names = _task_names(targets, target_names)
    if kind == "numbers":
        empty: list[Any] = [[] for _ in targets.ids]
        predicted = None if answers is None else answers.astype(np.float64)
        return Outcomes(
            kind,
            targets.layout,
            task_names,
            empty,
            empty,
            targets.rows,
            targets.tasks,
            targets.values.astype(np.float64),
            predicted,
        )
    known = getattr(estimator, "classes_", getattr(model, "classes_", None))
    if targets.layout == "matrix" and not hasattr(model, "tasks_"):
        known = None  # of indicators, as scikit-learn has them: the classes are the columns' numbers
    classes = _classes(targets, answers, known)
    codes = _encode(targets.values, targets.tasks, classes)
    coded = None if answers is None else _encode(answers, targets.tasks, classes)
    names = [_class_names(these, targets, target_names) for these in classes]
    return Outcomes(kind, targets.layout, task_names, names, classes, targets.rows, targets.tasks, codes, coded)


def _at_targets(predictions: Any, targets: Targets, n_rows: int) -> NDArray[Any]:
    found = np.asarray(predictions)
    n_columns = len(targets.ids) if targets.layout == "matrix" else 1
    if found.ndim not in (1, 2) or found.reshape(len(found), -1).shape != (n_rows, n_columns):
        raise ValueError(
            f"predictions must have the shape of y: {n_rows} rows and {n_columns} column(s); got {found.shape}"
        )
    columns = found.reshape(len(found), -1)
    return np.asarray(columns[targets.rows, targets.tasks if n_columns > 1 else 0])


def _task_names(targets: Targets, target_names: Sequence[str] | None) -> list[str]:
    if targets.layout == "matrix" and target_names is not None:
        if len(target_names) != len(targets.ids):
            raise ValueError(f"target_names has {len(target_names)} names, but y has {len(targets.ids)} columns")
        return [str(name) for name in target_names]
    return [label_text(name) for name in targets.ids]


def _class_names(classes: NDArray[Any], targets: Targets, target_names: Sequence[str] | None) -> list[str]:
    if targets.layout == "matrix" or target_names is None:
        return [label_text(label) for label in classes]
    if len(target_names) != len(classes):
        raise ValueError(
            f"target_names has {len(target_names)} names, but there are {len(classes)} classes: "
            f"{', '.join(label_text(label) for label in classes[:10])}"
        )
    return [str(name) for name in target_names]


def _classes(targets: Targets, answers: NDArray[Any] | None, known: Any) -> list[NDArray[Any]]:
    """Return the classes of each task: those the estimator knows, and any other that occurs."""
    n_tasks = len(targets.ids)
    given = [np.zeros(0)] * n_tasks if known is None else known if isinstance(known, list) else [known] * n_tasks
    pooled = targets.layout != "matrix"
    found = []
    for place in range(n_tasks):
        mine = slice(None) if pooled else targets.tasks == place
        parts = [to_host(given[place]), targets.values[mine]] + ([] if answers is None else [answers[mine]])
        parts = [natural(np.asarray(part), "y") for part in parts if len(part)]
        if len({part.dtype.kind in "US" for part in parts}) > 1:
            raise ValueError("y has other labels than the estimator was fitted to: text beside numbers")
        found.append(np.unique(np.concatenate(parts)) if parts else np.zeros(0))
        if pooled:
            return found * n_tasks
    return found


def _encode(values: NDArray[Any], tasks: Integers, classes: list[NDArray[Any]]) -> Integers:
    codes = np.empty(len(values), dtype=np.int64)
    for place in np.unique(tasks):
        mine = tasks == place
        codes[mine] = np.searchsorted(classes[place], natural(np.asarray(values[mine]), "y"))
    return codes
