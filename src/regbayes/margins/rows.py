"""Sums, curvature and products of samples for Newton's method.

A squared loss by output (`CellRows`) has a separate second derivative for each output. The multi-class loss
(`ClassRows`) couples them. It is smoothed within each sample: a share delta of the ridge acts on the squares of a
sample's multipliers and the rest on the square of their sum. As delta goes to 0 it is the exact loss, and at 1 it is
one margin per class. The increase of the gap by smoothing is computed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import numpy as np

from regbayes._types import Floats, Integers
from regbayes.kernels import arrays
from regbayes.kernels.arrays import DeviceArray, namespace_of, to_device
from regbayes.kernels.box import score_cells, sum_cells
from regbayes.kernels.losses import ClassLosses, Losses, LossSums, TubeLosses, true_classes, weigh_grams
from regbayes.margins.design import Design

MAX_CACHED, MAX_HELD = 1 << 17, 1 << 27  # scores in memory at once, for NumPy (CPU cache) and on devices
MAX_DENSE = 1000  # class weights up to which the full second derivative is stored


@dataclass(frozen=True)
class BlockSums:
    """Additive sums over samples for Newton's method."""

    loss: float  # smoothed if the loss is smoothed
    excess: float  # smoothed loss minus exact loss
    bias: float  # increase of the duality gap by smoothing
    pulled: Floats  # (outputs, d): sum_i phi_i x_i, minus the gradient of the loss

    def __add__(self, other: BlockSums) -> BlockSums:
        return BlockSums(
            self.loss + other.loss, self.excess + other.excess, self.bias + other.bias, self.pulled + other.pulled
        )


@dataclass(frozen=True)
class CellList:
    """Pairs of sample and output with a target, ordered by output and then by sample."""

    rows: Integers  # (cells,)
    outputs: Integers  # (cells,)

    def scores(self, columns: Floats, weights: Floats) -> Floats:
        """Return the scores of the targets, (1, cells)."""
        found = np.empty((1, len(self.rows)))
        score_cells(columns, self.rows, self.outputs, weights, found[0])
        return found


@dataclass(frozen=True)
class BlockLosses:
    """Squared losses of a block as a matrix (outputs, n) or a list (1, cells)."""

    losses: Losses
    outputs: slice | Integers = field(default_factory=lambda: slice(None))  # outputs of the matrix
    cells: CellList | None = None  # cells of the list

    def see(self, design: Design, smoothing: float) -> MarginRows:
        """Combine the losses with the columns of a head."""
        if isinstance(self.losses, ClassLosses):
            return ClassRows(design, replace(self.losses, smoothing=smoothing))
        if self.cells is None:
            return CellRows(design, self.losses, self.outputs)
        return ListedRows(design, self.losses, self.cells)


@dataclass(frozen=True)
class MarginRows:
    """Samples with their targets, as `regbayes.margins.newton.Rows`."""

    design: Design
    losses: Any  # losses of `regbayes.kernels.losses`
    mixes: ClassVar[bool] = False

    def scale(self, factor: float | Floats) -> Self:
        """Multiply the losses by a factor, or by one for each output."""
        return replace(self, losses=self.losses.scale(factor))

    def pull_back(self, weights: Floats, matrix: Floats) -> DeviceArray:
        """Return the multipliers at given weights times a matrix (outputs, k), shape (n, k)."""
        raise NotImplementedError


@dataclass(frozen=True)
class MatrixRows(MarginRows):
    """Samples with a dense matrix of targets, evaluated in pieces to limit memory."""

    outputs: slice | Integers = field(default_factory=lambda: slice(None))

    def evaluate(self, weights: Floats) -> Iterator[tuple[Design, Any, LossSums]]:
        """Yield the columns, losses and loss sums of each piece at given weights (outputs, d)."""
        own, n = weights[self.outputs], self.design.shape[0]
        most = MAX_CACHED if arrays.is_plain(self.design.features) else MAX_HELD
        for rows in arrays.pieces(n, max(1, most // max(len(own), 1))):
            is_all = rows.stop - rows.start == n
            design = self.design if is_all else self.design[rows]
            losses = self.losses if is_all else self.losses.take(rows)
            yield design, losses, losses.evaluate(design.scores(own))

    def sums(self, weights: Floats) -> BlockSums:
        """Evaluate the samples at given weights (outputs, d)."""
        loss = excess = bias = 0.0
        pulled = np.zeros(weights.shape)
        for design, _, seen in self.evaluate(weights):
            loss, excess, bias = loss + float(seen.loss), excess + float(seen.excess), bias + float(seen.bias)
            pulled[self.outputs] += design.combine(seen.multipliers)
        return BlockSums(loss, excess, bias, pulled)

    def pull_back(self, weights: Floats, matrix: Floats) -> DeviceArray:
        """Return the multipliers at given weights times a matrix (outputs, k), shape (n, k)."""
        own, features = matrix[self.outputs], self.design.features
        if arrays.is_plain(features):
            return arrays.join([seen.multipliers.T @ own for _, _, seen in self.evaluate(weights)])
        right = to_device(own.T, features)  # (k, n) in memory, the layout of features on devices
        return arrays.join([right @ seen.multipliers for _, _, seen in self.evaluate(weights)], axis=1).T


class CellRows(MatrixRows):
    """Samples with separate losses by output, some of them missing."""

    def curvature(self, weights: Floats) -> DeviceArray:
        """Return the loss's second derivative for each output, shape (outputs, d, d)."""
        total: Any = None
        for design, losses, seen in self.evaluate(weights):
            columns, bent = design.array(), losses.bend(seen.multipliers)
            is_plain = isinstance(bent, np.ndarray)
            found = _sum_squares(columns, bent, losses) if is_plain else weigh_grams(columns.T, bent)
            total = found if total is None else total + found
        if isinstance(self.outputs, slice):
            return total
        whole = np.zeros((*weights.shape, weights.shape[1]))
        whole[self.outputs] = total
        return whole


def _sum_squares(columns: Floats, bent: Floats, losses: Any) -> Floats:
    """Return ``sum_n bent_on x_n x_n'``, (outputs, d, d)."""
    if isinstance(losses, TubeLosses) and losses.is_shared:
        return np.broadcast_to((columns * bent[0][:, None]).T @ columns, (len(bent), *2 * columns.shape[1:]))
    found = np.empty((len(bent), *2 * columns.shape[1:]))
    for output, weights in enumerate(bent):
        found[output] = _sum_active(columns, weights)
    return found


def _sum_active(columns: Floats, weights: Floats) -> Floats:
    """Return ``sum_n weights_n x_n x_n'`` over samples with nonzero weight."""
    among = np.flatnonzero(weights)
    scaled = columns[among] * np.sqrt(weights[among])[:, None]
    found: Floats = scaled.T @ scaled
    return found


@dataclass(frozen=True)
class ListedRows(MarginRows):
    """Samples in host memory with a sparse list of targets."""

    cells: CellList

    def _evaluate(self, columns: Floats, weights: Floats) -> LossSums:
        found: LossSums = self.losses.evaluate(self.cells.scores(columns, weights))
        return found

    def sums(self, weights: Floats) -> BlockSums:
        """Evaluate the samples at given weights (outputs, d)."""
        columns, pulled = self.design.array(), np.zeros(weights.shape)
        seen = self._evaluate(columns, weights)
        sum_cells(columns, self.cells.rows, self.cells.outputs, seen.multipliers[0], pulled)
        return BlockSums(float(seen.loss), 0.0, 0.0, pulled)

    def curvature(self, weights: Floats) -> Floats:
        """Return the loss's second derivative for each output, shape (outputs, d, d)."""
        columns, found = self.design.array(), np.zeros((*weights.shape, weights.shape[1]))
        bent = self.losses.bend(self._evaluate(columns, weights).multipliers)[0]
        active = np.flatnonzero(bent)
        outputs, scaled = self.cells.outputs[active], columns[self.cells.rows[active]] * np.sqrt(bent[active])[:, None]
        present, starts = np.unique(outputs, return_index=True)
        for output, some in zip(present, np.split(scaled, starts[1:]), strict=False):
            found[output] = some.T @ some
        return found

    def pull_back(self, weights: Floats, matrix: Floats) -> Floats:
        """Sum multipliers times a matrix (outputs, k) over each sample's outputs, shape (n, k)."""
        phi = self._evaluate(self.design.array(), weights).multipliers[0]
        found = np.zeros((self.design.shape[0], matrix.shape[1]))
        sum_cells(matrix, self.cells.outputs, self.cells.rows, phi, found)
        return found

    def scale(self, factor: float | Floats) -> Self:
        """Multiply the losses by a factor, or by one for each output."""
        if isinstance(factor, np.ndarray):
            return replace(self, losses=replace(self.losses, C=self.losses.C * factor[self.cells.outputs]))
        return super().scale(factor)


class ClassRows(MatrixRows):
    """Samples with one of several classes each."""

    mixes = True

    def curvature(self, weights: Floats) -> DeviceArray:
        """Return the full second derivative of the loss, or its diagonal blocks if there are too many weights."""
        whole, total = weights.size <= MAX_DENSE, None
        for design, losses, seen in self.evaluate(weights):
            columns, signed, own, shared = design.array(), *_sign_classes(losses, seen.multipliers)
            of_pairs = _sum_active_pairs if isinstance(columns, np.ndarray) else _sum_pairs
            found = of_pairs(columns, signed, own, shared, whole)
            total = found if total is None else total + found
        return total

    def product(self, weights: Floats, direction: Floats) -> Floats:
        """Return the loss's second derivative times a direction, shape (classes, d)."""
        found = np.zeros(weights.shape)
        for design, losses, seen in self.evaluate(weights):
            found += design.combine(losses.multiply(design.scores(direction), seen.multipliers))
        return found


def _sign_classes(losses: Any, phi: DeviceArray) -> tuple[DeviceArray, DeviceArray, DeviceArray]:
    """Return signs, (classes, n), and slopes: 1 for active classes, minus their number for the true class.

    Let ``active`` be the wrong classes with a multiplier and y the true class. The second derivative by a sample's
    scores is ``own (diag(active) - e_y active' - active e_y' + count e_y e_y') - shared signed signed'``.
    """
    xp, active = namespace_of(phi), phi < 0.0
    own, shared, count = losses.differentiate(active)
    return xp.where(true_classes(losses.labels, phi), -count, xp.astype(active, phi.dtype)), own, shared


def _sum_active_pairs(x: Floats, signed: Floats, own: Floats, shared: Floats, whole: bool) -> Floats:
    """Sum over samples for pairs of classes, using only the active classes of each sample."""
    L, d = len(signed), x.shape[1]
    found = np.zeros((L, d, L, d) if whole else (L, d, d))
    for c in range(L):
        among = np.flatnonzero(signed[c])
        seen, toward, mine = x[among], -shared[among] * signed[c, among], own[among]
        diagonal = (seen * (toward * signed[c, among] + mine * np.abs(signed[c, among]))[:, None]).T @ seen
        if not whole:
            found[c] = diagonal
            continue
        found[c, :, c] = diagonal
        for other in range(c):
            both = np.flatnonzero(signed[other, among])
            signs = signed[other, among[both]]
            is_true = (signed[c, among[both]] < 0.0) | (signs < 0.0)
            weight = toward[both] * signs - mine[both] * is_true
            found[c, :, other] = (seen[both] * weight[:, None]).T @ seen[both]
            found[other, :, c] = found[c, :, other].T
    return found


def _sum_pairs(x: DeviceArray, signed: DeviceArray, own: DeviceArray, shared: DeviceArray, whole: bool) -> DeviceArray:
    """Sum over all samples for each pair of classes."""
    xp, L = namespace_of(signed), signed.shape[0]
    diagonal = own * xp.abs(signed) - shared * signed * signed
    if not whole:
        return weigh_grams(x.T, diagonal)
    classes = []
    for c in range(L):
        both = signed * signed[c, :]
        bent = xp.where(both < 0.0, -own, xp.zeros_like(own)) - shared * both
        bent[c, :] = diagonal[c, :]
        classes.append(weigh_grams(x.T, bent))
    return xp.permute_dims(xp.stack(classes), (0, 2, 1, 3))
