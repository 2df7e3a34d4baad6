"""A linear head over rows on a device: `MarginHead` with blocks that lie there, for losses that are squared.

Newton's method (`framework/newton.py`) and all that is K-sized stay on the host. A look at the rows is a product with
weights, a function of each row's scores and a product back, on the device; numbers of the size of the weights come
back. Rows without targets have a price of zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from regbayes._types import Floats, Integers
from regbayes.engine import Executor
from regbayes.framework.newton import EASED, MAX_DENSE, SMOOTHING, BlockSums
from regbayes.kernels import arrays
from regbayes.kernels.arrays import ClassRows, DeviceArray, HingeRows, TubeRows, namespace_of, to_device
from regbayes.margins.head import BlockwiseHead, HeadPart, HeadView, LinearHead, MarginHead, Tolerance, order_sample
from regbayes.margins.targets import Classes

MORE_ROWS = 4  # times as many as on the host that the curvature comes from: there they cost little, and save passes


@dataclass(frozen=True)
class DeviceInputs:
    """Inputs that the head sees beside the features: rows less their mean, times a factor, without a copy of them."""

    X: DeviceArray  # (n, D)
    mean: Floats  # (D,)
    factor: float

    @property
    def shape(self) -> tuple[int, ...]:
        """Rows and columns."""
        return tuple(self.X.shape)

    def __getitem__(self, rows: slice) -> DeviceInputs:
        return replace(self, X=self.X[rows, :])


@dataclass(frozen=True)
class DeviceColumns:
    """What a linear head sees of rows on a device, as products with it."""

    features: DeviceArray  # (K, n)
    centre: Floats  # (K,)
    inputs: DeviceInputs | None = None
    fit_intercept: bool = False
    scale: float = 1.0

    def __len__(self) -> int:
        return int(self.features.shape[1])

    def scores(self, weights: Floats) -> DeviceArray:
        """Return the products with weights (outputs, d), shape (outputs, n)."""
        scaled, K, inputs = self.scale * weights, self.features.shape[0], self.inputs
        constant = (scaled[:, -1] if self.fit_intercept else 0.0) - scaled[:, :K] @ self.centre
        found = to_device(scaled[:, :K], self.features) @ self.features
        if inputs is not None:
            own = inputs.factor * scaled[:, K : K + inputs.shape[1]]
            constant = constant - own @ inputs.mean
            found += to_device(own, self.features) @ inputs.X.T
        found += to_device(constant, self.features)[:, None]
        return found

    def combine(self, coefficients: DeviceArray) -> DeviceArray:
        """Return the sums of rows with coefficients (outputs, n), shape (outputs, d), in double precision."""
        xp = namespace_of(coefficients)
        totals = arrays.sum_of(coefficients, axis=1)[:, None]
        centre = to_device(self.centre, self.features, xp.float64)
        parts = [arrays.multiply_rows(coefficients, self.features) - totals * centre]
        if self.inputs is not None:
            mean = to_device(self.inputs.mean, self.features, xp.float64)
            parts.append(self.inputs.factor * (arrays.multiply_rows(coefficients, self.inputs.X.T) - totals * mean))
        if self.fit_intercept:
            parts.append(totals)
        return self.scale * arrays.join(parts, axis=1)

    def take(self, rows: DeviceArray | None = None) -> DeviceColumns:
        """Return all rows or some as one array of what is seen of them, (d, n)."""
        xp, features, inputs = namespace_of(self.features), self.features, self.inputs
        if rows is not None:
            features = xp.take(features, rows, axis=1)
        parts = [features - to_device(self.centre, features)[:, None]]
        if inputs is not None:
            X = inputs.X if rows is None else xp.take(inputs.X, rows, axis=0)
            parts.append(inputs.factor * (X - to_device(inputs.mean, features)).T)
        if self.fit_intercept:
            parts.append(xp.ones((1, features.shape[1]), dtype=features.dtype, device=features.device))
        seen = self.scale * arrays.join(parts)
        return DeviceColumns(seen, np.zeros(seen.shape[0]))


@dataclass(frozen=True)
class DeviceBlock:
    """Rows on a device as Newton's method sees them: a `regbayes.framework.newton.Block`."""

    columns: DeviceColumns
    rows: HingeRows | TubeRows | ClassRows
    _bent: list[Any] = field(default_factory=list, init=False, repr=False, compare=False)  # weights, and slopes there

    def __len__(self) -> int:
        return len(self.columns)

    @property
    def mixes(self) -> bool:
        """Whether outputs mix in the second derivative."""
        return isinstance(self.rows, ClassRows)

    def multipliers(self, weights: Floats) -> DeviceArray:
        """Return phi, (outputs, n)."""
        return self.rows.look(self.columns.scores(weights)).multipliers

    def sums(self, weights: Floats) -> BlockSums:
        """Look at the rows at given weights (outputs, d)."""
        seen = self.rows.look(self.columns.scores(weights))
        loss, excess, bias, pulled = arrays.gather(
            seen.loss, seen.excess, seen.bias, self.columns.combine(seen.multipliers)
        )
        return BlockSums(float(loss), float(excess), float(bias), pulled)

    def curvature(self, weights: Floats) -> Floats:
        """Return the loss's second derivative, whole or in blocks, as the law does."""
        columns, rows = self.columns.take(), self.rows
        scores = self.columns.scores(weights)
        if not isinstance(rows, ClassRows):
            return arrays.gather(arrays.weigh_grams(columns.features, rows.curvatures(scores)))[0]
        xp = namespace_of(scores)
        active, truth = rows.active(scores)
        own, shared, count = rows.slopes(active)
        signed = xp.where(truth, -count, xp.astype(active, scores.dtype))
        diagonal = own * xp.abs(signed) - shared * signed * signed
        blocks = arrays.gather(arrays.weigh_grams(columns.features, diagonal))[0]
        if weights.size > MAX_DENSE:
            return blocks
        found = np.zeros(2 * weights.shape)
        for c in range(len(weights)):
            found[c, :, c] = blocks[c]
            if c == 0:
                continue
            either = xp.astype(truth[:c, :] | truth[c : c + 1, :], scores.dtype)
            both = xp.astype((signed[:c, :] != 0.0) & (signed[c : c + 1, :] != 0.0), scores.dtype)
            mixed = -both * (shared * signed[c : c + 1, :] * signed[:c, :] + own * either)
            for other, block in enumerate(arrays.gather(arrays.weigh_grams(columns.features, mixed))[0]):
                found[c, :, other] = block
                found[other, :, c] = block.T
        return found

    def product(self, weights: Floats, direction: Floats) -> Floats:
        """Return the loss's second derivative times a direction, (outputs, d)."""
        rows, change = self.rows, self.columns.scores(direction)
        if not isinstance(rows, ClassRows):
            bent = rows.curvatures(self.columns.scores(weights)) * change
            return arrays.gather(self.columns.combine(bent))[0]
        xp = namespace_of(change)
        if not self._bent or self._bent[0] is not weights:  # a system is solved with many products at the same weights
            active, truth = rows.active(self.columns.scores(weights))
            own, shared, _ = rows.slopes(active)
            self._bent[:] = weights, truth, xp.astype(active, change.dtype), own, shared
        _, truth, among, own, shared = self._bent
        change = among * (change - xp.sum(xp.where(truth, change, xp.zeros_like(change)), axis=0))
        omega = among * (own * change - shared * xp.sum(change, axis=0))
        return arrays.gather(self.columns.combine(xp.where(truth, -xp.sum(omega, axis=0), omega)))[0]

    def ease(self) -> list[DeviceBlock]:
        """Return the rows in easier problems, as the law does: small prices, which rise; then smoothed less."""
        rows = self.rows
        if not isinstance(rows, ClassRows):
            return [replace(self, rows=replace(rows, C=rows.C / factor)) for factor in EASED[:-1]]
        first = replace(rows, smoothing=max(SMOOTHING[0], rows.smoothing))
        eased = [replace(first, C=rows.C / factor) for factor in EASED]
        eased += [replace(rows, smoothing=share) for share in SMOOTHING[1:] if share > rows.smoothing]
        return [replace(self, rows=easier) for easier in eased]


@dataclass(frozen=True)
class DeviceHead(MarginHead):
    """Margins of classes over rows on a device. Features are (n, K) for whoever asks, and (K, n) in memory.

    Parameters
    ----------
    targets : Classes
        Of all rows; those without a label have a price of zero.
    inputs : DeviceInputs, default=None
    row_weights : (N,), default=None
        How often each row counts in the mean that is taken off the features; none without a label.
    like : array
        Where the rows lie, and their type.
    one_vs_rest : bool
        Whether a row has a margin for each class, or one.
    """

    targets: Classes
    inputs: Any = None
    like: DeviceArray = None
    one_vs_rest: bool = False

    form: Any = field(init=False, default=None)

    def __post_init__(self) -> None:
        if not self.squared:
            raise ValueError("rows on a device have squared losses: multipliers are not kept")

    @property
    def mixes(self) -> bool:
        """Whether outputs mix in a row's loss."""
        return not self.one_vs_rest

    def gathers(self, n_features: int) -> bool:
        """Rows stay in their blocks."""
        return False

    def n_sampled(self, level: int, n_features: int) -> int:
        """Return how many rows with targets the curvature is taken from."""
        return MORE_ROWS * super().n_sampled(level, n_features)

    def sum_features(self, blocks: Sequence[DeviceArray], executor: Executor | None = None) -> tuple[float, Floats]:
        """Return what the rows with targets count together, and the sum of their features (K,)."""
        parts = self.parts(tuple(block.shape[0] for block in blocks))
        sums = [
            arrays.sum_of(block.T if part.row_weights is None else block.T * part.row_weights, axis=1)
            for part, block in zip(parts, blocks, strict=True)
        ]
        weight = float(len(self.targets)) if self.row_weights is None else float(self.row_weights.sum())
        return weight, np.add.reduce(arrays.gather(*sums))

    def newton_block(self, part: HeadPart, features: DeviceArray, view: HeadView) -> DeviceBlock:
        """Return a block of rows as Newton's method sees it."""
        scale = float(np.sqrt(self.weight_variance))
        inputs: Any = part.inputs
        columns = DeviceColumns(features.T, view.centre, inputs, self.fit_intercept, scale)
        return DeviceBlock(columns, self._smooth(part.form, view))

    def gradient_of(
        self, part: HeadPart, features: DeviceArray, view: HeadView, weights: Floats, common: Floats | None
    ) -> DeviceArray:
        """Return the derivative of the value by the features of a block of rows, by Danskin's theorem, (n, K)."""
        latent = np.sqrt(self.weight_variance) * weights[:, : len(view.centre)]
        phi = self.newton_block(part, features, view).multipliers(weights)
        found = to_device(-latent.T, phi) @ phi
        if common is not None:
            shared = to_device(common, phi)[:, None]
            found += shared if part.row_weights is None else shared * part.row_weights
        return found.T

    def _solve_blocks(
        self, blocks: Sequence[DeviceArray], warm_start: Any, tolerance: Tolerance, executor: Executor
    ) -> BlockwiseHead:
        parts = self.parts(tuple(block.shape[0] for block in blocks))
        weight, sums = self.sum_features(blocks)
        view = self.view(weight, sums, tolerance.smoothing)
        rows = [self.newton_block(part, block, view) for part, block in zip(parts, blocks, strict=True)]

        def sample(level: int) -> list[DeviceBlock] | None:
            drawn = self._draw(level, len(view.centre), parts)
            if drawn is None:
                return None
            places, targets = drawn
            seen = [
                row.columns.take(place).features for row, place in zip(rows, places, strict=True) if place is not None
            ]
            whole = arrays.join(seen, axis=1)
            return [DeviceBlock(DeviceColumns(whole, np.zeros(whole.shape[0])), self._smooth(targets, view))]

        start = warm_start if isinstance(warm_start, LinearHead) else None
        found = self.solve_newton(rows, sample, view, weight, start, tolerance, executor)
        return replace(found, parts=parts)

    def _smooth(self, targets: Any, view: HeadView) -> Any:
        return replace(targets, smoothing=view.smoothing) if isinstance(targets, ClassRows) else targets

    def _part(self, first: int, end: int) -> HeadPart:
        rows = slice(first, end)
        weights = None if self.row_weights is None else to_device(self.row_weights[rows], self.like)
        inputs = None if self.inputs is None else self.inputs[rows]
        return HeadPart(first, end - first, None, rows, self._targets_of(rows), inputs, weights)

    def _targets_of(self, rows: Any, share: float = 1.0) -> HingeRows | ClassRows:
        """Return what some rows ask for, as if they were all where they are a share of them."""
        labels, prices = self.targets.labels[rows], self.targets.C[rows] / share
        there, C = arrays.integers_to_device(labels, self.like), to_device(prices, self.like)
        if self.one_vs_rest:
            return HingeRows(C, labels=there)
        cost, n_classes = self.targets.cost, len(self.targets.cost)
        plain = np.array_equal(cost, 1.0 - np.eye(n_classes))
        return ClassRows(C, there, None if plain else to_device(cost.T[:, labels], self.like), SMOOTHING[0])

    def _draw(self, level: int, n_features: int, parts: Sequence[HeadPart]) -> Any:
        """Return the places of sampled rows in each part (None: of none) and what they ask for; None: all rows."""
        order = self._labeled_order
        n_drawn = self.n_sampled(level, n_features)
        if n_drawn >= len(order):
            return None
        if n_drawn not in self._kept_samples:
            drawn = np.sort(order[:n_drawn])
            ends = np.searchsorted(drawn, [part.first + part.n_rows for part in parts])
            cut = zip(parts, np.split(drawn, ends[:-1]), strict=True)
            places = [arrays.integers_to_device(own - part.first, self.like) if len(own) else None for part, own in cut]
            self._kept_samples[n_drawn] = places, self._targets_of(drawn, n_drawn / len(order))
        return self._kept_samples[n_drawn]

    @cached_property
    def _kept_samples(self) -> dict[int, Any]:
        return {}

    @cached_property
    def _labeled_order(self) -> Integers:
        """Rows with targets, in an order of which every beginning has its share of each class."""
        labeled = np.flatnonzero(self.targets.C > 0)
        return labeled[order_sample(self.targets.labels[labeled], len(labeled))]
