"""Targets of samples (classes, signs or numbers) and their losses.

A loss is a regularizer of the scores of all samples. Coordinate ascent uses its dual form
(`regbayes.regularization.dual_forms`), Newton's method its values and derivatives (`regbayes.kernels.losses`). C is
part of the targets; cells with C = 0 have no loss.

In multi-task data samples have targets for some outputs only (`Cells`). A task with numbers or two classes has one
output, and a task with more classes has a one-vs-rest output per class. Unlike a simplex of multipliers per sample,
this makes every problem the same box-constrained dual. A multi-class task equals the multi-label problem of its
indicator matrix, and tasks can share weights class by class.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from regbayes._registry import persistable
from regbayes._types import Array, Flags, Floats, Integers
from regbayes.kernels.losses import ClassLosses, HingeLosses, TubeLosses
from regbayes.margins.rows import BlockLosses, CellList
from regbayes.regularization.dual_forms import BoxDual, SimplexDual, classes_form, hinge_form, tube_form

MIN_SHARE = 0.25  # minimum share of observed cells for a dense matrix of targets


def zero_one_cost(n_classes: int) -> Floats:
    """Return the cost of 1 for every wrong class, shape (n_classes, n_classes)."""
    return 1.0 - np.eye(n_classes)


class SampleTargets:
    """Targets that all samples have, as arrays with samples on the first axis."""

    C: Floats

    def __len__(self) -> int:
        return len(self.C)

    @property
    def n_outputs(self) -> int:
        """Number of scores of a sample."""
        return int(self.C.shape[1])

    def _map(self, change: Callable[[Any], Any]) -> Self:
        names = ("labels", "signs", "values", "C")
        found = {name: change(getattr(self, name)) for name in names if hasattr(self, name)}
        return replace(self, **found)  # type: ignore[type-var]

    def take(self, rows: Any) -> Self:
        """Return the targets of selected samples."""
        return self._map(lambda values: values[rows])

    def spread(self, rows: Integers, n_rows: int) -> Self:
        """Return the targets of ``n_rows`` samples, with zero loss for the others."""

        def put(values: Array) -> Array:
            found = np.zeros((n_rows, *values.shape[1:]), dtype=values.dtype)
            found[rows] = values
            return found

        return self._map(put)


@dataclass(frozen=True)
class Classes(SampleTargets):
    """Class labels; the true class's score should exceed others by their cost."""

    labels: Integers  # (n,)
    cost: Floats  # (classes, classes): cost[true, predicted], zero on the diagonal
    C: Floats  # (n,)

    def __post_init__(self) -> None:
        n_classes = len(self.cost)
        if self.cost.shape != (n_classes, n_classes) or np.any(np.diag(self.cost) != 0.0):
            raise ValueError("cost must be a square matrix, with zeros for the true classes")
        if self.labels.size and not (self.labels.min() >= 0 and self.labels.max() < n_classes):
            raise ValueError(f"labels must lie in 0 .. {n_classes - 1}, the columns of cost")

    @property
    def n_outputs(self) -> int:
        """Number of scores of a sample."""
        return len(self.cost)

    def dual_form(self, squared: bool) -> SimplexDual:
        """Return the conjugate of the (squared) multi-class hinge, in scores minus that of the true class."""
        return classes_form(self.cost, self.labels, self.C, squared)

    def block_losses(self) -> BlockLosses:
        """Return the squared losses without smoothing."""
        is_plain = np.array_equal(self.cost, zero_one_cost(self.n_outputs))
        cost = np.ones((1, 1)) if is_plain else np.ascontiguousarray(self.cost.T)
        return BlockLosses(ClassLosses(self.C, self.labels, cost, smoothing=1.0))

    def one_vs_rest(self) -> Signs:
        """Return one-vs-rest signs for each class, without costs."""
        signs = np.full((len(self), self.n_outputs), -1, dtype=np.int8)
        signs[np.arange(len(self)), self.labels] = 1
        return Signs(signs, np.broadcast_to(self.C[:, None], signs.shape))


@dataclass(frozen=True)
class Signs(SampleTargets):
    """Signs by sample and output; ``sign * score`` should reach the margin."""

    signs: NDArray[Any]  # (n, outputs): 1 or -1
    C: Floats  # (n, outputs)
    margin: float = 1.0

    def dual_form(self, squared: bool) -> BoxDual:
        """Return the conjugate of the (squared) hinge, in negative scores, row by row."""
        return hinge_form(self.C.ravel(), squared, self.signs.ravel(), self.margin)

    def block_losses(self) -> BlockLosses:
        """Return the squared losses."""
        signs = np.ascontiguousarray(self.signs.T, dtype=np.int8)
        return BlockLosses(HingeLosses(_few(self.C.T), signs, self.margin))


@dataclass(frozen=True)
class Numbers(SampleTargets):
    """Numbers by sample and output; errors above epsilon have a loss."""

    values: Floats  # (n, outputs)
    C: Floats  # (n, outputs)
    epsilon: float = 0.0

    def dual_form(self, squared: bool) -> BoxDual:
        """Return the conjugate of the (squared) epsilon-insensitive loss, in negative scores, row by row."""
        return tube_form(-self.values.ravel(), self.epsilon, self.C.ravel(), squared)

    def block_losses(self) -> BlockLosses:
        """Return the squared losses."""
        values = np.ascontiguousarray(self.values.T, dtype=np.float64)
        return BlockLosses(TubeLosses(_few(self.C.T), values, self.epsilon))


def _few(C: Floats) -> Floats:
    """Compress C (outputs, n) if it is the same for all outputs, or for all cells."""
    if not C.size or not np.ptp(C):
        return np.full((1, 1), C[0, 0] if C.size else 0.0)
    return np.ascontiguousarray(C if np.any(np.ptp(C, axis=0)) else C[:1])


@persistable(name="regbayes.MultiTaskOutputs")
@dataclass(frozen=True)
class Outputs:
    """Meaning of the outputs of several tasks."""

    tasks: Integers  # (M,): the task of each output
    classes: Integers  # (M,): class of the score; the second of two classes; 0 for a number
    groups: Integers  # (M,): group of each output, which may share weights

    def __len__(self) -> int:
        return len(self.tasks)


@dataclass(frozen=True)
class Observations:
    """Sparse targets of rows and outputs, ordered by output and then by row."""

    rows: Integers  # (n,)
    outputs: Integers  # (n,)
    targets: Floats  # (n,): -1 or 1 for classes, a number for regression
    weights: Floats  # (n,): positive factors on C

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, cells: Any) -> Observations:
        """Return selected observations."""
        return Observations(self.rows[cells], self.outputs[cells], self.targets[cells], self.weights[cells])

    def edges(self, n_outputs: int) -> Integers:
        """Return the boundaries of the observations of each output, (n_outputs + 1,)."""
        return np.searchsorted(self.outputs, np.arange(n_outputs + 1))

    def between(self, first: int, end: int, n_outputs: int) -> Observations:
        """Return the observations of a range of rows, renumbered from its first row."""
        edges = self.edges(n_outputs).tolist()
        places = [np.searchsorted(self.rows[a:b], [first, end]) + a for a, b in pairwise(edges)]
        found = self.take(np.concatenate([np.arange(*place) for place in places]))
        return replace(found, rows=found.rows - first)

    def count(self, sample_weight: Floats) -> tuple[Observations, float]:
        """Multiply by sample weights; return the observations and their weighted number."""
        counts = sample_weight[self.rows]
        return replace(self, weights=counts * self.weights), float(counts.sum())

    def find_rows(self, n_rows: int) -> Flags:
        """Return which rows have observations, (n_rows,)."""
        found = np.zeros(n_rows, dtype=np.bool_)
        found[self.rows] = True
        return found

    def keep_rows(self, kept: Flags) -> Observations:
        """Renumber the rows after dropping rows without observations."""
        return replace(self, rows=np.cumsum(kept)[self.rows] - 1)

    def as_list(self) -> Observations:
        """Return this list."""
        return self


@dataclass(frozen=True)
class ObservedMatrix:
    """Dense matrix of observations with missing values.

    Labels are bytes, and numbers are doubles. Cells are numbered like those of the equivalent list.
    """

    targets: NDArray[Any]  # (M, n): -1 or 1, 0 if missing; or numbers, NaN if missing
    weights: Floats  # broadcasts to the shape of targets

    def __len__(self) -> int:
        return int(self._edges[-1])

    def is_seen(self, rows: slice = slice(None)) -> Flags:
        """Return the mask of observed targets for some rows."""
        given = self.targets[:, rows]
        return given != 0 if given.dtype == np.int8 else ~np.isnan(given)

    @cached_property
    def _edges(self) -> Integers:
        return np.cumsum([0, *np.count_nonzero(self.is_seen(), axis=1)])

    def edges(self, n_outputs: int) -> Integers:
        """Return the boundaries of the observations of each output, (n_outputs + 1,)."""
        return self._edges

    def between(self, first: int, end: int, n_outputs: int) -> Observations:
        """Return the observations of a range of rows, renumbered from its first row, as a list."""
        outputs, rows = np.nonzero(self.is_seen(slice(first, end)))
        found = self._at(rows + first, outputs)
        return replace(found, rows=rows)

    def count(self, sample_weight: Floats) -> tuple[ObservedMatrix, float]:
        """Multiply by sample weights; return the observations and their weighted number."""
        total = np.count_nonzero(self.is_seen(), axis=0) @ sample_weight
        return replace(self, weights=self.weights * sample_weight), float(total)

    def find_rows(self, n_rows: int) -> Flags:
        """Return which rows have observations, (n_rows,)."""
        found: Flags = np.any(self.is_seen(), axis=0)
        return found

    def keep_rows(self, kept: Flags) -> ObservedMatrix:
        """Renumber the rows after dropping rows without observations."""
        own = self.weights if self.weights.shape[1] == 1 else self.weights[:, kept]
        return ObservedMatrix(self.targets[:, kept], own)

    def as_list(self) -> Observations:
        """Return all observations as a list."""
        outputs, rows = np.nonzero(self.is_seen())
        return self._at(rows, outputs)

    def _at(self, rows: Integers, outputs: Integers) -> Observations:
        weights = np.broadcast_to(self.weights, self.targets.shape)[outputs, rows]
        return Observations(rows, outputs, self.targets[outputs, rows].astype(np.float64), weights)


@dataclass(frozen=True)
class Cells:
    """Sparse targets; an observation costs ``C weight`` times its loss."""

    observed: Observations | ObservedMatrix
    n_rows: int
    n_outputs: int
    C: float
    epsilon: float | None  # half-width of the free tube around numbers; None: targets are signs

    def __len__(self) -> int:
        return self.n_rows

    @cached_property
    def cells(self) -> Observations:
        """The observations as a list."""
        return self.observed.as_list()

    def take(self, rows: Integers) -> Cells:
        """Return the targets of samples at ascending indices."""
        if isinstance(self.observed, ObservedMatrix):
            given: Any = self.observed
            weights = given.weights if given.weights.shape[1] == 1 else given.weights[:, rows]
            return replace(self, observed=ObservedMatrix(given.targets[:, rows], weights), n_rows=len(rows))
        place = np.full(self.n_rows, -1)
        place[rows] = np.arange(len(rows))
        found = self.cells.take(np.flatnonzero(place[self.cells.rows] >= 0))
        return replace(self, observed=replace(found, rows=place[found.rows]), n_rows=len(rows))

    def between(self, first: int, end: int) -> Cells:
        """Return the targets of a range of samples."""
        return replace(self, observed=self.observed.between(first, end, self.n_outputs), n_rows=end - first)

    def dual_form(self, squared: bool) -> BoxDual:
        """Return the conjugate of the losses in negative scores, docs/math.md eq. (44)."""
        prices, targets = self.C * self.cells.weights, self.cells.targets
        if self.epsilon is None:
            return hinge_form(prices, squared, targets, margin=1.0)
        return tube_form(-targets, self.epsilon, prices, squared)

    def block_losses(self, whole: bool = False) -> BlockLosses:
        """Return the squared losses as a matrix if dense or ``whole``, otherwise as a list."""
        seen = self.cells
        present = np.unique(seen.outputs)
        if whole or len(seen) >= MIN_SHARE * self.n_rows * len(present) > 0:
            outputs = np.arange(self.n_outputs) if whole else present
            place = np.searchsorted(outputs, seen.outputs), seen.rows
            losses = self._losses(place, (len(outputs), self.n_rows))
            return BlockLosses(losses, slice(None) if len(outputs) == self.n_outputs else outputs)
        place = np.zeros(len(seen), dtype=np.int64), np.arange(len(seen))
        return BlockLosses(self._losses(place, (1, len(seen))), cells=CellList(seen.rows, seen.outputs))

    def _losses(self, place: tuple[Integers, Integers], shape: tuple[int, int]) -> HingeLosses | TubeLosses:
        """Return the losses in a matrix (outputs, n), zero for missing observations."""
        seen = self.cells
        prices, is_full = self.C * seen.weights, len(seen) == shape[0] * shape[1]
        by_row = np.zeros(shape[1])
        by_row[place[1]] = prices
        if np.all(prices == prices[:1]) and (is_full or self.epsilon is None):
            C = np.full((1, 1), prices[0] if len(prices) else 0.0)
        elif np.array_equal(by_row[place[1]], prices) and (is_full or self.epsilon is None):
            C = by_row[None]
        else:
            C = np.zeros(shape)
            C[place] = prices
        values = np.zeros(shape, dtype=np.int8 if self.epsilon is None else np.float64)
        values[place] = seen.targets
        return HingeLosses(C, values) if self.epsilon is None else TubeLosses(C, values, self.epsilon)

    def by_row(self, dual: Floats) -> Floats | csr_matrix:
        """Return the multipliers as a matrix (n_rows, outputs), dense if all are observed."""
        if len(dual) == self.n_outputs * self.n_rows:
            return dual.reshape(self.n_outputs, self.n_rows).T
        edges = self.cells.edges(self.n_outputs)
        return csr_matrix((dual, self.cells.rows, edges), shape=(self.n_outputs, self.n_rows)).T.tocsr()


Targets = Classes | Signs | Numbers


def fill_matrix(
    parts: Iterable[tuple[int, Observations]], n_outputs: int, n_rows: int, numbers: bool
) -> ObservedMatrix:
    """Collect observations by task, each given with the task's first output, in a matrix."""
    targets = np.full((n_outputs, n_rows), np.nan) if numbers else np.zeros((n_outputs, n_rows), dtype=np.int8)
    weights = np.ones((1, 1))
    for first, own in parts:
        place = first + own.outputs, own.rows
        targets[place] = own.targets
        if weights.shape != targets.shape and np.any(own.weights != 1.0):
            weights = np.ones(targets.shape)
        if weights.shape == targets.shape:
            weights[place] = own.weights
    return ObservedMatrix(targets, weights)


def observe_numbers(
    rows: Integers, tasks: Integers, targets: Floats, n_tasks: int, weights: Floats | None = None
) -> tuple[Observations, Outputs]:
    """Return the observations of numbers, with one output per task in a single group.

    Parameters
    ----------
    rows, tasks : (n,)
        Row and task of each observed target.
    targets : (n,)
    n_tasks : int
    weights : (n,), optional
        Weight of each target's loss; targets with weight 0 are dropped.
    """
    nothing = np.zeros(n_tasks, dtype=np.int64)
    return _order(rows, tasks, np.asarray(targets, dtype=np.float64), weights), Outputs(
        np.arange(n_tasks), nothing, nothing
    )


def observe_classes(
    rows: Integers,
    tasks: Integers,
    labels: Integers,
    n_classes: Integers,
    weights: Floats | None = None,
    cost: Floats | None = None,
) -> tuple[Observations, Outputs]:
    """Return the observations of class labels.

    Parameters
    ----------
    rows, tasks : (n,)
        Row and task of each observed label.
    labels : (n,)
        Codes ``0 .. n_classes[task] - 1``.
    n_classes : (n_tasks,)
        Number of classes of each task, at least two. Outputs of two-class tasks form one group. Outputs of larger tasks
        are grouped by code, so use the same codes for tasks with the same classes.
    weights : (n,), optional
        Weight of each label's losses; labels with weight 0 are dropped.
    cost : (classes, classes), optional
        For tasks with the same number of classes, the cost of predicting column when row is true, 1 by default. It
        multiplies the loss of the wrong class's output. The loss of the true class's output, or of the only output, is
        multiplied by the mean cost of wrong classes.
    """
    width = np.where(n_classes == 2, 1, n_classes)  # outputs per task
    first = np.concatenate([[0], np.cumsum(width)])  # each task's first output
    tasks_of = np.repeat(np.arange(len(width)), width)
    offset = np.arange(first[-1]) - first[tasks_of]
    classes = np.where(width[tasks_of] == 1, 1, offset)
    group_names = np.where(width[tasks_of] == 1, -1, offset)
    outputs = Outputs(tasks_of, classes, np.unique(group_names, return_inverse=True)[1].astype(np.int64))

    copies = width[tasks]  # each label gives one observation per output of its task
    source = np.repeat(np.arange(len(rows)), copies)
    ends = np.cumsum(copies)
    within = np.arange(len(source)) - np.repeat(ends - copies, copies)
    output = first[tasks[source]] + within
    is_true = labels[source] == classes[output]
    factors = np.ones(len(source)) if weights is None else np.asarray(weights, dtype=np.float64)[source]
    if cost is not None:
        mean = (cost.sum(axis=1) - cost.diagonal()) / (len(cost) - 1)
        own, is_mean = labels[source], is_true | (copies[source] == 1)
        factors = factors * np.where(is_mean, mean[own], cost[own, classes[output]])
    return _order(rows[source], output, np.where(is_true, 1.0, -1.0), factors), outputs


def _order(rows: Integers, outputs: Integers, targets: Floats, weights: Floats | None) -> Observations:
    """Sort by output and row, so that a fit does not depend on the order of the targets."""
    weights = np.ones(len(rows)) if weights is None else np.asarray(weights, dtype=np.float64)
    order = np.lexsort((rows, outputs))
    order = order[weights[order] > 0]
    return Observations(
        np.asarray(rows[order], dtype=np.int64),
        np.asarray(outputs[order], dtype=np.int64),
        targets[order],
        weights[order],
    )
