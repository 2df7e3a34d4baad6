"""Targets as a list of cells (row, output, target): multi-label, ragged and multi-class data in one form.

A task with numbers or with two classes has one output. A task with more classes has one output per class, which asks
"this class or another?". One-vs-rest rather than one simplex of multipliers per row, because then every problem is the
same box-constrained dual with the same certificate, a multi-class task is exactly the multi-label problem of its
indicator matrix, and weights can be shared between tasks class by class.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_matrix

from regbayes._registry import persistable
from regbayes._types import Flags, Floats, Integers
from regbayes.framework.dual_forms import BoxDual
from regbayes.models.mt_ilsvm.state import Loss


@persistable(name="regbayes.MultiTaskOutputs")
@dataclass(frozen=True)
class Outputs:
    """What the model's outputs stand for."""

    tasks: Integers  # (M,): the task of each output
    classes: Integers  # (M,): the class whose score it is; the second of two classes; 0 for a number
    groups: Integers  # (M,): outputs of one group may share weights

    @property
    def n_groups(self) -> int:
        """Number of groups."""
        return int(self.groups.max(initial=-1)) + 1


@dataclass(frozen=True)
class Cells:
    """Observed targets, ordered by output and then by row."""

    rows: Integers  # (n,): index into the rows of X
    outputs: Integers  # (n,)
    targets: Floats  # (n,): -1 or 1 for classes, a number for regression
    weights: Floats  # (n,): what multiplies C, positive

    def __len__(self) -> int:
        return len(self.rows)

    def matrix(self, values: Floats, n_outputs: int, n_rows: int) -> csr_matrix:
        """Lay values of the cells out as a sparse matrix (n_outputs, n_rows)."""
        starts = np.searchsorted(self.outputs, np.arange(n_outputs + 1))
        return csr_matrix((values, self.rows, starts), shape=(n_outputs, n_rows))


def regression_cells(
    rows: Integers, tasks: Integers, targets: Floats, n_tasks: int, weights: Floats | None = None
) -> tuple[Cells, Outputs]:
    """Return the cells of numeric targets: an output per task, all in one group.

    Parameters
    ----------
    rows, tasks : (n,)
        Where each observed target belongs.
    targets : (n,)
    n_tasks : int
    weights : (n,), optional
        Weight of each target's loss; those of weight 0 are left out.
    """
    every = np.arange(n_tasks)
    outputs = Outputs(every, np.zeros(n_tasks, dtype=np.int64), np.zeros(n_tasks, dtype=np.int64))
    return _ordered(rows, tasks, np.asarray(targets, dtype=np.float64), weights), outputs


def classification_cells(
    rows: Integers,
    tasks: Integers,
    labels: Integers,
    n_classes: Integers,
    weights: Floats | None = None,
    costs: Sequence[Floats] | None = None,
) -> tuple[Cells, Outputs]:
    """Return the cells of class labels.

    Parameters
    ----------
    rows, tasks : (n,)
        Where each observed label belongs.
    labels : (n,)
        Codes ``0 .. n_classes[task] - 1``.
    n_classes : (n_tasks,)
        Classes of each task, at least two. Outputs of two-class tasks form one group; those of larger tasks are
        grouped by code, so code them alike where tasks share their classes.
    weights : (n,), optional
        Weight of each label's losses; those of weight 0 are left out.
    costs : sequence of (classes, classes), optional
        For each task the cost of answering column when row is true, 1 by default. It multiplies the loss of the wrong
        answer's output; the loss of the right answer's output, or of the only one, is multiplied by the mean cost of
        wrong answers.
    """
    width = np.where(n_classes == 2, 1, n_classes)  # outputs per task
    first = np.concatenate([[0], np.cumsum(width)])  # each task's first output
    tasks_of = np.repeat(np.arange(len(width)), width)
    offset = np.arange(first[-1]) - first[tasks_of]
    classes = np.where(width[tasks_of] == 1, 1, offset)
    group_names = np.where(width[tasks_of] == 1, -1, offset)
    outputs = Outputs(tasks_of, classes, np.unique(group_names, return_inverse=True)[1].astype(np.int64))

    copies = width[tasks]  # a label is one cell for every output of its task
    source = np.repeat(np.arange(len(rows)), copies)
    ends = np.cumsum(copies)
    within = np.arange(len(source)) - np.repeat(ends - copies, copies)
    output = first[tasks[source]] + within
    right = labels[source] == classes[output]
    spread = np.ones(len(source)) if weights is None else np.asarray(weights, dtype=np.float64)[source]
    if costs is not None:
        spread = spread * _cost_of(costs, tasks[source], labels[source], classes[output], right | (copies[source] == 1))
    return _ordered(rows[source], output, np.where(right, 1.0, -1.0), spread), outputs


def _cost_of(costs: Sequence[Floats], tasks: Integers, labels: Integers, answers: Integers, mean: Flags) -> Floats:
    """Return what an answer costs, or the mean over wrong answers where that is asked for."""
    widest = max(len(table) for table in costs)
    tables, means = np.zeros((len(costs), widest, widest)), np.zeros((len(costs), widest))
    for task, table in enumerate(costs):
        n = len(table)
        tables[task, :n, :n] = table
        means[task, :n] = (np.sum(table, axis=1) - np.diag(table)) / (n - 1)
    return np.where(mean, means[tasks, labels], tables[tasks, labels, answers])


def _ordered(rows: Integers, outputs: Integers, targets: Floats, weights: Floats | None) -> Cells:
    """Sort cells by output and row, so that a fit does not depend on the order in which targets were given."""
    weights = np.ones(len(rows)) if weights is None else np.asarray(weights, dtype=np.float64)
    order = np.lexsort((rows, outputs))
    order = order[weights[order] > 0]
    return Cells(
        np.asarray(rows[order], dtype=np.int64),
        np.asarray(outputs[order], dtype=np.int64),
        targets[order],
        weights[order],
    )


def box_dual(cells: Cells, loss: Loss, C: float, epsilon: float = 0.0) -> BoxDual:
    """Write the losses of all cells in dual form, docs/math.md eq. (44), for *signed* multipliers.

    A hinge is the loss of a number, -1 or 1, that may not be missed on one side: no tube, and a box that ends at
    zero on the other side. So all four losses differ in their numbers only, and the weights are always the sum of
    multipliers times features.
    """
    n, price = len(cells), C * cells.weights
    squared = loss in ("squared_hinge", "squared_epsilon_insensitive")
    bound = np.full(n, np.inf) if squared else price
    ridge = 1.0 / (2.0 * price) if squared else np.zeros(n)
    if loss in ("hinge", "squared_hinge"):
        lower = np.where(cells.targets > 0, 0.0, -bound)
        upper = np.where(cells.targets > 0, bound, 0.0)
        return BoxDual(-cells.targets, np.zeros(n), ridge, lower, upper)
    return BoxDual(-cells.targets, np.full(n, epsilon), ridge, -bound, bound)
