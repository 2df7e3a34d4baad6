"""Squared losses of rows that have some outputs and not others, held with few bytes a cell, for Newton's method.

A cell is an output of a row that something is asked of. Its loss is a parabola, on one side or both, with a tube or
without: a `BoxDual` whose ridge is positive and whose bounds are zero or infinite. Of many cells most numbers are the
same, so they are held once, or once for each row or output; signs take a byte. Where most cells of a block exist they
are a matrix with holes, and a pass is two products of matrices; where few exist they are a list, output by output.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import pairwise
from operator import add
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from regbayes._types import Floats, Integers, Reals
from regbayes.kernels import cells as kernels
from regbayes.margins.newton import EASED, BlockSums, Columns, cut_sample
from regbayes.regularization.dual_forms import BoxDual

MIN_SHARE = 0.25  # of the cells of a block's rows and outputs: where fewer exist, products with all of them do not pay
MAX_RUNS = 64  # of blocks, whatever the number of workers: each has sums of its own, as large as all weights


@dataclass(frozen=True)
class CellLosses:
    """Losses of *minus* the scores of cells (n, m), or of a list of cells (c,), as few numbers.

    The derivative of a loss is ``stiffness * shrink(away)`` of ``away = -score - linear``, where `shrink` takes off a
    tube of half-width `absolute` and what lies on the wrong side. Shapes of fields broadcast to that of the cells.
    """

    linear: NDArray[Any]  # minus the targets
    absolute: NDArray[Any]
    stiffness: NDArray[Any]  # one over the ridge
    side: NDArray[np.int8] | None  # 1 or -1: the sign that multipliers have; 0: there is no cell; None: either sign
    seen: NDArray[np.bool_] | None  # whether there is a cell, where multipliers have either sign; None: everywhere

    @classmethod
    def of(cls, form: BoxDual, rows: Integers, columns: Integers, shape: tuple[int, int]) -> CellLosses:
        """Return those of cells at rows and columns of a matrix, with nothing asked elsewhere.

        A cell whose multiplier can only be zero, because it costs nothing, is left out.
        """
        fixed = (form.lower == 0.0) & (form.upper == 0.0)
        if fixed.any():
            form, rows, columns = form.take(~fixed), rows[~fixed], columns[~fixed]
        side, seen = _sides(form), None
        if side is not None:
            side = _spread(side, rows, columns, shape)
        elif len(form) < shape[0] * shape[1]:
            seen = _spread(np.ones(len(form), dtype=np.bool_), rows, columns, shape)
        return cls(
            linear=_spread_few(form.linear, rows, columns, shape),
            absolute=_spread_few(form.absolute, rows, columns, shape),
            stiffness=_spread_few(1.0 / form.ridge, rows, columns, shape),
            side=side,
            seen=seen,
        )

    @classmethod
    def of_list(cls, form: BoxDual) -> CellLosses:
        """Return those of a list of cells."""
        return cls(_few(form.linear), _few(form.absolute), _few(1.0 / form.ridge), _sides(form), None)

    @property
    def forms(self) -> kernels.CellForms:
        """What is asked of the cells, as kernels take it: a matrix of them, or a list as a column."""
        return kernels.make_forms(self.linear, self.absolute, self.stiffness, self.side, self.seen)

    def evaluate(self, scores: Floats) -> tuple[float, Floats]:
        """Return the sum of the losses, and the multipliers; the scores are overwritten."""
        away = self._shrink(scores)
        if self.stiffness.ndim:
            phi = away * self.stiffness
            loss = 0.5 * float(np.vdot(phi, away))
        else:
            loss = 0.5 * float(self.stiffness * np.vdot(away, away))
            phi = np.multiply(away, self.stiffness, out=away)
        if self.side is not None:
            phi *= self.side
        return loss, phi

    def _shrink(self, scores: Floats) -> Floats:
        """Return what stiffness multiplies, where it has a side its size."""
        away = np.negative(scores, out=scores)
        away -= self.linear
        if self.absolute.any():
            away -= np.clip(away, -self.absolute, self.absolute)
        if self.side is not None:
            away *= self.side
            np.maximum(away, 0.0, out=away)
        elif self.seen is not None:
            away *= self.seen
        return away


class CellBlock(ABC):
    """Some rows with the cells that exist of them."""

    features: Reals | Columns  # (n, d)
    losses: CellLosses
    mixes: ClassVar[bool] = False

    @abstractmethod
    def scores(self, weights: Floats) -> Floats:
        """Return the scores of the cells, as the losses have them, for weights (outputs, d)."""

    @abstractmethod
    def combine(self, phi: Floats, n_outputs: int) -> Floats:
        """Return the sums of rows with multipliers of the cells, shape (outputs, d)."""

    @abstractmethod
    def add_curvature(self, weights: Floats, found: Floats) -> None:
        """Add the loss's second derivative to that of other rows (outputs, d, d)."""

    @abstractmethod
    def pull_back(self, phi: Floats, weights: Floats) -> Floats:
        """Return the sum over the outputs of each row's multipliers times weights (outputs, k), shape (n, k)."""

    def multipliers(self, weights: Floats) -> Floats:
        """Return phi, as the losses have the cells."""
        return self.losses.evaluate(self.scores(weights))[1]

    def sums(self, weights: Floats) -> BlockSums:
        """Evaluate the rows at given weights (outputs, d)."""
        loss, phi = self.losses.evaluate(self.scores(weights))
        return BlockSums(loss, 0.0, 0.0, self.combine(phi, len(weights)))

    def curvature(self, weights: Floats) -> Floats:
        """Return the loss's second derivative in each output's weights, shape (outputs, d, d)."""
        found = np.zeros((*weights.shape, weights.shape[1]))
        self.add_curvature(weights, found)
        return found

    def ease(self) -> list[Self]:
        """Return the rows with small prices, which rise."""
        losses = self.losses
        return [
            replace(self, losses=replace(losses, stiffness=losses.stiffness / factor))  # type: ignore[type-var]
            for factor in EASED[:-1]
        ]

    def _array(self) -> Reals:
        return self.features if isinstance(self.features, np.ndarray) else self.features.array()


@dataclass(frozen=True)
class CellMatrix(CellBlock):
    """Rows that have most of some outputs."""

    features: Reals | Columns  # (n, d)
    losses: CellLosses  # (n, m)
    outputs: Integers | None  # (m,): those that any of the rows has; None: all

    def scores(self, weights: Floats) -> Floats:
        """Return the scores, shape (n, m)."""
        own = self._own(weights)
        return self.features @ own.T if isinstance(self.features, np.ndarray) else self.features.scores(own)

    def combine(self, phi: Floats, n_outputs: int) -> Floats:
        """Return the sums of rows with multipliers (n, m), shape (outputs, d)."""
        own = phi.T @ self.features if isinstance(self.features, np.ndarray) else self.features.combine(phi)
        return self._spread(own, n_outputs)

    def multipliers(self, weights: Floats) -> Floats:
        """Return phi, shape (n, m)."""
        own = self._own(weights)
        at = split_columns(self.features, own)
        if at is None:
            return super().multipliers(weights)
        phi = np.empty((len(self.features), len(own)))
        kernels.find_multipliers(*at, self.losses.forms, phi)
        return phi

    def sums(self, weights: Floats) -> BlockSums:
        """Evaluate the rows at given weights (outputs, d)."""
        own = self._own(weights)
        at = split_columns(self.features, own)
        if at is None:
            return super().sums(weights)
        room = np.empty((min(len(self.features), kernels.PIECE_ROWS), len(own)))
        seen = kernels.evaluate(*at, self.losses.forms, room)
        pulled = seen.pulled
        if not isinstance(self.features, np.ndarray):
            pulled = self.features.join_sums(seen.pulled, seen.totals)
        return BlockSums(seen.loss, 0.0, 0.0, self._spread(pulled, len(weights)))

    def add_curvature(self, weights: Floats, found: Floats) -> None:
        """Add the loss's second derivative to that of other rows (outputs, d, d)."""
        features, own = np.ascontiguousarray(self._array(), dtype=np.float64), self._own(weights)
        mine = found if self.outputs is None else np.zeros((len(own), *found.shape[1:]))
        kernels.add_curvature(features, own, self.losses.forms, mine)
        if self.outputs is not None:
            found[self.outputs] += mine

    def pull_back(self, phi: Floats, weights: Floats) -> Floats:
        """Return each row's multipliers (n, m) times weights (outputs, k), shape (n, k)."""
        return phi @ self._own(weights)

    def _own(self, weights: Floats) -> Floats:
        return weights if self.outputs is None else weights[self.outputs]

    def _spread(self, own: Floats, n_outputs: int) -> Floats:
        if self.outputs is None:
            return own
        found = np.zeros((n_outputs, own.shape[1]))
        found[self.outputs] = own
        return found


@dataclass(frozen=True)
class CellList(CellBlock):
    """Rows that have few of the outputs that any of them has."""

    features: Reals | Columns  # (n, d)
    losses: CellLosses  # (c,): output by output
    listed: kernels.Listed  # where the cells are

    def scores(self, weights: Floats) -> Floats:
        """Return the scores, shape (c,)."""
        features, found = self._array(), np.empty(len(self.listed.rows))
        for output, cells in self._segments():
            found[cells] = features[self.listed.rows[cells]] @ weights[output]
        return found

    def combine(self, phi: Floats, n_outputs: int) -> Floats:
        """Return the sums of rows with multipliers (c,), shape (outputs, d)."""
        features = self._array()
        found = np.zeros((n_outputs, features.shape[1]))
        for output, cells in self._segments():
            found[output] = phi[cells] @ features[self.listed.rows[cells]]
        return found

    def multipliers(self, weights: Floats) -> Floats:
        """Return phi, shape (c,)."""
        at = split_columns(self.features, weights)
        if at is None:
            return super().multipliers(weights)
        phi = np.empty((len(self.listed.rows), 1))
        kernels.evaluate_list(*at, self.losses.forms, self.listed, phi, sums=False)
        return phi[:, 0]

    def sums(self, weights: Floats) -> BlockSums:
        """Evaluate the rows at given weights (outputs, d)."""
        at = split_columns(self.features, weights)
        if at is None:
            return super().sums(weights)
        seen = kernels.evaluate_list(*at, self.losses.forms, self.listed, np.empty((len(self.listed.rows), 1)))
        pulled = seen.pulled
        if not isinstance(self.features, np.ndarray):
            pulled = self.features.join_sums(seen.pulled, seen.totals)
        return BlockSums(seen.loss, 0.0, 0.0, pulled)

    def add_curvature(self, weights: Floats, found: Floats) -> None:
        """Add the loss's second derivative to that of other rows (outputs, d, d)."""
        features = np.ascontiguousarray(self._array(), dtype=np.float64)
        kernels.add_list_curvature(features, weights, self.losses.forms, self.listed, found)

    def pull_back(self, phi: Floats, weights: Floats) -> Floats:
        """Return the sum over each row's cells of multipliers (c,) times weights (outputs, k), shape (n, k)."""
        found = np.zeros((len(self.features), weights.shape[1]))
        kernels.pull_back_list(phi[:, None], weights, self.listed, found)
        return found

    def _segments(self) -> Iterator[tuple[int, slice]]:
        """Yield the outputs, and where their cells are."""
        yield from zip(
            self.listed.outputs.tolist(), (slice(*pair) for pair in pairwise(self.listed.edges)), strict=True
        )


@dataclass(frozen=True)
class CellRun:
    """Blocks that follow one another and are summed by one worker, in place."""

    blocks: Sequence[CellBlock]
    mixes: ClassVar[bool] = False

    def sums(self, weights: Floats) -> BlockSums:
        """Evaluate the rows at given weights (outputs, d)."""
        return reduce(add, (block.sums(weights) for block in self.blocks))

    def curvature(self, weights: Floats) -> Floats:
        """Return the loss's second derivative in each output's weights, shape (outputs, d, d)."""
        found = np.zeros((*weights.shape, weights.shape[1]))
        for block in self.blocks:
            block.add_curvature(weights, found)
        return found

    def ease(self) -> list[CellRun]:
        """Return the rows with small prices, which rise."""
        return [CellRun(blocks) for blocks in zip(*(block.ease() for block in self.blocks), strict=True)]


def split_columns(features: Reals | Columns, weights: Floats) -> tuple[Floats, Floats, Floats] | None:
    """Return an array, weights and constants of outputs that scores are made of; None: kernels cannot have them."""
    found: Any = features, weights, np.zeros(len(weights))
    if not isinstance(features, np.ndarray):
        found = features.split(weights)
    if found is None or found[0].dtype != np.float64 or not found[0].flags.c_contiguous:
        return None
    array, own, constant = found
    return array, own, constant


def runs_of(blocks: Sequence[CellBlock]) -> list[CellRun]:
    """Return blocks in runs, a function of their number alone."""
    n_runs = min(len(blocks), MAX_RUNS)
    edges = np.linspace(0, len(blocks), n_runs + 1).astype(np.int64).tolist()
    return [CellRun(blocks[first:end]) for first, end in pairwise(edges)]


@dataclass(frozen=True)
class CellTargets:
    """What is asked of a block of rows, without what a head sees of them."""

    losses: CellLosses
    outputs: Integers | None  # of a matrix, those that any of the rows has; None: all
    listed: kernels.Listed | None  # where the cells of a list are; None: a matrix

    @classmethod
    def of(cls, form: BoxDual, rows: Integers, outputs: Integers, n_rows: int, n_outputs: int) -> CellTargets:
        """Return cells, which are ordered by output and then by row, as a matrix where most of it exists."""
        present, starts = np.unique(outputs, return_index=True)
        if not len(form) or len(form) < MIN_SHARE * n_rows * len(present):
            listed = kernels.Listed(rows.astype(np.int32), present.astype(np.int64), np.append(starts, len(form)))
            return cls(CellLosses.of_list(form), None, listed)
        columns = np.searchsorted(present, outputs)
        losses = CellLosses.of(form, rows, columns, (n_rows, len(present)))
        return cls(losses, None if len(present) == n_outputs else present, None)

    def bind(self, features: Reals | Columns) -> CellBlock:
        """Return the rows as Newton's method sees them."""
        if self.listed is None:
            return CellMatrix(features, self.losses, self.outputs)
        return CellList(features, self.losses, self.listed)


def sampled_cells(features: Reals, form: BoxDual, rows: Sequence[Integers]) -> list[CellBlock]:
    """Return cells that stand for others: for each output rows of some features, cells one output after another.

    They come in pieces that threads can share.
    """
    places, outputs = np.concatenate(rows), np.repeat(np.arange(len(rows)), [len(mine) for mine in rows])
    found = []
    for piece in cut_sample(len(features), len(rows) * features.shape[1] ** 2):
        mine = np.flatnonzero((places >= piece.start) & (places < piece.stop))
        n_rows = piece.stop - piece.start
        own = CellTargets.of(form.take(mine), places[mine] - piece.start, outputs[mine], n_rows, len(rows))
        found.append(own.bind(features[piece]))
    return found


def _sides(form: BoxDual) -> NDArray[np.int8] | None:
    """Return the signs that multipliers have; None where they may have either."""
    below, above = np.isneginf(form.lower), np.isposinf(form.upper)
    if np.all(below & above):
        return None
    one_sided = (below & (form.upper == 0.0)) | (above & (form.lower == 0.0))
    if not np.all(one_sided):
        raise ValueError("multipliers must be free, or bounded by zero on one side and by nothing on the other")
    return np.where(above, 1, -1).astype(np.int8)


def _few(values: Floats) -> NDArray[Any]:
    """Return numbers in the smallest type that holds them exactly; once where all are the same."""
    if not len(values) or np.all(values == values[0]):
        return np.array(values[0] if len(values) else 0.0)
    for kind in (np.int8, np.float32):
        with np.errstate(invalid="ignore", over="ignore"):
            small = values.astype(kind)
        if np.array_equal(small, values):
            return small
    return values


def _spread_few(values: Floats, rows: Integers, columns: Integers, shape: tuple[int, int]) -> NDArray[Any]:
    """Return numbers of cells as a matrix; as a column or a row where its columns or rows are the same."""
    few = _few(values)
    if few.ndim == 0:
        return few
    for index, length, place in ((rows, shape[0], (slice(None), None)), (columns, shape[1], (None, slice(None)))):
        once = np.zeros(length, dtype=few.dtype)
        once[index] = few
        if np.array_equal(once[index], few):
            return once[place]
    return _spread(few, rows, columns, shape)


def _spread(values: NDArray[Any], rows: Integers, columns: Integers, shape: tuple[int, int]) -> NDArray[Any]:
    found = np.zeros(shape, dtype=values.dtype)
    found[rows, columns] = values
    return found
