"""Labels of several tasks: classes, factors on C, observations of the model, and the base of the classifiers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.multiclass import check_classification_targets

from regbayes._types import Floats, Integers
from regbayes.estimators._bases import cost_matrix, pick_classes
from regbayes.estimators._task_bases import (
    Layout,
    TargetMatrix,
    Targets,
    listed,
    natural,
)
from regbayes.margins.targets import Observations, ObservedMatrix, Outputs, fill_matrix, observe_classes


@dataclass(frozen=True)
class Labels:
    """Observed labels as codes of the classes of their task."""

    classes: list[NDArray[Any]]  # classes of each task
    codes: Integers  # (n,)

    @property
    def widths(self) -> Integers:
        """Number of classes of each task."""
        return np.array([len(classes) for classes in self.classes])

    @property
    def alike(self) -> bool:
        """Whether all tasks have the same classes."""
        return all(np.array_equal(classes, self.classes[0]) for classes in self.classes)

    @property
    def common_classes(self) -> NDArray[Any] | list[NDArray[Any]]:
        """The common classes of all tasks, or a list by task if they differ."""
        return self.classes[0] if self.alike else self.classes

    def places(self, tasks: Integers) -> Integers:
        """Return the indices of labels among the classes of all tasks, one task after another."""
        return np.asarray(np.concatenate([[0], np.cumsum(self.widths)])[tasks] + self.codes, dtype=np.int64)

    def count(self, targets: Targets, sample_weight: Floats | None) -> Floats:
        """Return the total weight of each class of each task, one task after another."""
        counted = None if sample_weight is None else sample_weight[targets.rows]
        counts = np.bincount(self.places(targets.tasks), counted, minlength=int(self.widths.sum()))
        return counts.astype(np.float64)


def read_labels(targets: Targets) -> Labels:
    """Return the classes of each task and the labels as codes.

    Ragged tasks share all classes. Each column of a matrix has the classes observed in it. If the whole matrix has only
    two classes, as an indicator matrix has, each column has both.
    """
    if targets.layout != "matrix":
        values = natural(targets.values, "y")
        check_classification_targets(values)
        classes, codes = np.unique(values, return_inverse=True)
        check_two(len(classes))
        return Labels([classes] * len(targets.ids), codes.astype(np.int64))
    starts = np.searchsorted(targets.tasks, np.arange(len(targets.ids) + 1))
    columns = [natural(targets.values[a:b], "a column of y") for a, b in pairwise(starts)]
    for column in columns:
        check_classification_targets(column)
    found = complete_classes([np.unique(column) for column in columns], targets.ids)
    coded = [np.searchsorted(classes, column) for classes, column in zip(found, columns, strict=True)]
    return Labels(found, np.concatenate(coded).astype(np.int64))


def observe_label_matrix(
    targets: TargetMatrix, class_weight: Any, cost: ArrayLike | None, sample_weight: Floats | None
) -> tuple[ObservedMatrix, Outputs, Labels]:
    """Return the observations of `observe_labels` as a matrix, read one task at a time, and their classes."""
    n_rows, n_tasks = targets.values.shape
    found = []
    for task in range(n_tasks):
        column = natural(targets.column(task).values, "a column of y")
        check_classification_targets(column)
        found.append(np.unique(column))
    whole = Labels(complete_classes(found, targets.ids), np.zeros(0, dtype=np.int64))
    ends = np.cumsum([0, *whole.widths])

    def read(task: int) -> tuple[Targets, Labels]:
        own, classes = targets.column(task), whole.classes[task]
        codes = np.searchsorted(classes, natural(own.values, "a column of y"))
        return own, Labels([classes], codes.astype(np.int64))

    counts = [labels.count(own, sample_weight) for own, labels in map(read, range(n_tasks))]
    factors = class_factors(class_weight, whole.classes, np.concatenate(counts))
    nothing = Targets("matrix", targets.ids, whole.codes, whole.codes, np.zeros(0))
    outputs = observe_labels(nothing, whole, factors, cost)[1]
    firsts = np.searchsorted(outputs.tasks, np.arange(n_tasks))

    def observe(task: int) -> tuple[int, Observations]:
        own = None if factors is None else factors[ends[task] : ends[task + 1]]
        return int(firsts[task]), observe_labels(*read(task), own, cost)[0]

    return fill_matrix(map(observe, range(n_tasks)), len(outputs), n_rows, numbers=False), outputs, whole


def complete_classes(found: list[NDArray[Any]], ids: NDArray[Any]) -> list[NDArray[Any]]:
    """Give tasks with one class or none the classes of the others, if these are unique."""
    observed = [classes for classes in found if len(classes)]
    distinct = {tuple(classes.tolist()) for classes in observed}
    union = {label for labels in distinct for label in labels}
    if len(union) < 2:
        check_two(len(union))
    one_type = len({classes.dtype.kind in "US" for classes in observed}) == 1
    if len(union) == 2 and one_type:
        both = np.unique(np.concatenate(observed))
        return [both] * len(found)
    if len(distinct) == 1:
        return [classes if len(classes) else observed[0] for classes in found]
    short = np.array([len(classes) < 2 for classes in found])
    if np.any(short):
        raise ValueError(
            f"fewer than 2 classes are observed for task {listed(ids[short])}, so there is nothing to tell "
            "apart. Leave it out."
        )
    return found


def check_two(n_classes: int) -> None:
    """Raise an error for a single class."""
    if n_classes < 2:
        raise ValueError(f"labels of at least 2 classes are needed, got {n_classes} class(es)")


def observe_labels(
    targets: Targets,
    labels: Labels,
    factors: Floats | None = None,
    cost: ArrayLike | None = None,
) -> tuple[Observations, Outputs]:
    """Return the model's observations and outputs.

    Tasks with the same classes share weights by class.
    ``factors`` on C are those of `class_factors`. Sample weights are passed to the model separately.
    """
    weights = None if factors is None else factors[labels.places(targets.tasks)]
    table = None if cost is None else _common_cost(cost, labels)
    observations, outputs = observe_classes(targets.rows, targets.tasks, labels.codes, labels.widths, weights, table)
    kinds = {classes: kind for kind, classes in enumerate(dict.fromkeys(tuple(c.tolist()) for c in labels.classes))}
    kind = np.array([kinds[tuple(classes.tolist())] for classes in labels.classes])
    pairs = np.stack([kind[outputs.tasks], outputs.classes], axis=1)
    outputs = replace(outputs, groups=np.unique(pairs, axis=0, return_inverse=True)[1].ravel().astype(np.int64))
    return observations, outputs


def class_factors(class_weight: Any, classes: Sequence[NDArray[Any]], counts: Floats) -> Floats | None:
    """Return the factor on C of each class of each task, one task after another; None if all are 1."""
    if class_weight is None:
        return None
    widths, n_tasks = [len(own) for own in classes], len(classes)
    if isinstance(class_weight, str):
        first = np.cumsum([0, *widths[:-1]])
        seen = np.maximum(np.add.reduceat((counts > 0).astype(float), first), 1.0)
        shares = np.repeat(np.add.reduceat(counts, first) / seen, widths)
        return np.asarray(shares / np.where(counts > 0, counts, 1.0))
    per_task = [class_weight] * n_tasks if isinstance(class_weight, Mapping) else list(class_weight)
    if not all(isinstance(given, Mapping) for given in per_task):
        raise ValueError(
            f"class_weight must be a dict, a list with a dict for each task or 'balanced'; got {class_weight!r}"
        )
    if len(per_task) != n_tasks:
        raise ValueError(f"class_weight lists {len(per_task)} dicts, but there are {n_tasks} tasks")
    _check_known(per_task, classes)
    pairs = zip(per_task, classes, strict=True)
    factors = np.array([float(given.get(label, 1.0)) for given, own in pairs for label in own.tolist()])
    wrong = ~((factors >= 0) & np.isfinite(factors))
    if wrong.any():
        raise ValueError(f"class_weight must be finite and not negative, got {factors[wrong][0]}")
    if not factors[counts > 0].any():
        raise ValueError("class_weight is zero for every class that is observed")
    return factors


def _check_known(per_task: Sequence[Mapping[Any, float]], classes: Sequence[NDArray[Any]]) -> None:
    known = {label for these in classes for label in these.tolist()}
    unknown = [label for given in per_task for label in given if label not in known]
    if unknown:
        raise ValueError(f"class_weight has {unknown[0]!r}, which is a class of no task; classes are {sorted(known)}")


def _common_cost(cost: ArrayLike, labels: Labels) -> Floats:
    """Return the costs of wrong predictions of tasks that all have the same classes."""
    if not labels.alike:
        raise ValueError("cost needs tasks with the same classes; use class_weight for tasks with different ones")
    return cost_matrix(cost, int(labels.widths[0]))


def scores_of_tasks(scores: Floats, layout: Layout, outputs: Outputs) -> Floats | list[Floats]:
    """Arrange the scores of all outputs by task, for samples that belong to every task.

    A single task has a vector or a column per class. Several have a matrix, or a list with more than two classes.
    """
    if layout == "single":
        return scores[:, 0] if scores.shape[1] == 1 else scores
    n_tasks = int(outputs.tasks[-1]) + 1
    if scores.shape[1] == n_tasks:
        return scores
    edges = np.searchsorted(outputs.tasks, np.arange(n_tasks + 1)).tolist()
    return [scores[:, a] if b - a == 1 else scores[:, a:b] for a, b in pairwise(edges)]


def labels_of_tasks(
    scores: Floats | list[Floats], layout: Layout, classes: NDArray[Any] | list[NDArray[Any]]
) -> NDArray[Any]:
    """Return the predicted labels: a column per task of a matrix, one per sample otherwise."""
    if layout != "matrix":
        return pick_classes(np.asarray(scores), np.asarray(classes))
    by_task = scores if isinstance(scores, list) else list(scores.T)
    classes = classes if isinstance(classes, list) else [classes] * len(by_task)
    columns = [pick_classes(*pair) for pair in zip(by_task, classes, strict=True)]
    if len({column.dtype.kind in "US" for column in columns}) > 1:  # text and numbers together
        columns = [column.astype(object) for column in columns]
    return np.stack(columns, axis=1)
