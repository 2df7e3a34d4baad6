"""A linear head over rows on a device: `MarginHead` with blocks that lie there, for losses that are squared.

Newton's method (`margins/newton.py`) and all that is K-sized stay on the host. A look at the rows is a product with
weights, a function of each row's scores and a product back, on the device; numbers of the size of the weights come
back. Rows without targets have a price of zero.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from regbayes._types import Floats, Integers
from regbayes.engine import Executor
from regbayes.engine.source import order_sample
from regbayes.kernels import arrays, arrays_losses
from regbayes.kernels.arrays import DeviceArray, namespace_of, to_device, to_host
from regbayes.kernels.arrays_losses import ClassRows, HingeRows, RowLosses, TubeRows
from regbayes.margins.head import BlockwiseHead, HeadPart, HeadView, LinearHead, MarginHead, Tolerance
from regbayes.margins.newton import EASED, MAX_DENSE, SMOOTHING, BlockSums, SharedPrior
from regbayes.margins.targets import Classes

MORE_ROWS = 4  # times as many as on the host that the curvature comes from: there they cost little, and save passes
PASS_ROOM = 1 << 27  # numbers in the scores that a look at the rows holds: few pieces, for each costs launches
SQUARE_BLOCK = 8  # columns whose products with others are one operation
SQUARE_ROOM = 1 << 26  # numbers in products of columns, for the same reason
MAX_WHOLE = 4096  # weights of classes: of more, their second derivative is not held as a whole on a device either


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


class DeviceWeights(NamedTuple):
    """Weights of outputs as products with rows on a device take them."""

    features: DeviceArray  # (outputs, K)
    inputs: DeviceArray | None  # (outputs, D)
    constant: DeviceArray  # (outputs,): what every row has


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

    def cut(self, rows: slice) -> DeviceColumns:
        """Return some of the rows."""
        if len(self) == rows.stop - rows.start:
            return self
        inputs = None if self.inputs is None else self.inputs[rows]
        return replace(self, features=self.features[:, rows], inputs=inputs)

    def place(self, weights: Floats) -> DeviceWeights:
        """Return weights (outputs, d) on the device, in one transfer."""
        scaled, (K, M), inputs = self.scale * weights, (self.features.shape[0], len(weights)), self.inputs
        constant = (scaled[:, -1] if self.fit_intercept else 0.0) - scaled[:, :K] @ self.centre
        parts = [scaled[:, :K].ravel()]
        if inputs is not None:
            own = inputs.factor * scaled[:, K : K + inputs.shape[1]]
            constant = constant - own @ inputs.mean
            parts.append(own.ravel())
        there = to_device(np.concatenate([*parts, constant]), self.features)
        xp, ends = namespace_of(there), np.cumsum([0, *map(len, parts)]).tolist()
        shaped = [xp.reshape(there[first:end], (M, -1)) for first, end in pairwise(ends)]
        return DeviceWeights(shaped[0], None if inputs is None else shaped[1], there[ends[-1] :])

    def products(self, weights: DeviceWeights) -> DeviceArray:
        """Return the products with weights, (outputs, n), a constant of each output apart."""
        found = weights.features @ self.features
        if self.inputs is not None:
            found += weights.inputs @ self.inputs.X.T
        return found

    def scores(self, weights: Floats) -> DeviceArray:
        """Return the products with weights (outputs, d), shape (outputs, n)."""
        there = self.place(weights)
        found = self.products(there)
        found += there.constant[:, None]
        return found

    def sum_rows(self, coefficients: DeviceArray) -> DeviceArray:
        """Return the sums of features and inputs with coefficients (outputs, n), as they are, in double precision."""
        found = [arrays.multiply_rows(coefficients, self.features)]
        if self.inputs is not None:
            found.append(arrays.multiply_rows(coefficients, self.inputs.X.T))
        return arrays.join(found, axis=1)

    def finish(self, sums: Floats, totals: Floats) -> Floats:
        """Return the sums of rows (outputs, d) from those of `sum_rows` and of coefficients (outputs,), on the host."""
        K, inputs, totals = self.features.shape[0], self.inputs, totals[:, None]
        parts = [sums[:, :K] - totals * self.centre]
        if inputs is not None:
            parts.append(inputs.factor * (sums[:, K:] - totals * inputs.mean))
        if self.fit_intercept:
            parts.append(totals)
        return self.scale * np.hstack(parts)

    def combine(self, coefficients: DeviceArray) -> Floats:
        """Return the sums of rows with coefficients (outputs, n), shape (outputs, d), on the host."""
        totals = arrays.sum_of(coefficients, axis=1)
        return self.finish(*arrays.gather(self.sum_rows(coefficients), totals))

    @property
    def is_whole(self) -> bool:
        """Whether the features are all that is seen, as it is seen."""
        return self.inputs is None and not self.fit_intercept and self.scale == 1.0 and not self.centre.any()

    def take(self, rows: DeviceArray | None = None) -> DeviceColumns:
        """Return all rows or some as one array of what is seen of them, (d, n)."""
        if rows is None and self.is_whole:
            return self
        xp, features, inputs = namespace_of(self.features), self.features, self.inputs
        if rows is not None:
            features = xp.take(features, rows, axis=1)
        parts = [features - to_device(self.centre, features)[:, None]]
        if inputs is not None:
            X = inputs.X if rows is None else xp.take(inputs.X, rows, axis=0)
            parts.append(inputs.factor * (X - to_device(inputs.mean, features)).T)
        if self.fit_intercept:
            parts.append(xp.ones((1, features.shape[1]), dtype=features.dtype, device=features.device))
        seen = arrays.join(parts)
        if self.scale != 1.0:
            seen *= self.scale
        return DeviceColumns(seen, np.zeros(seen.shape[0]))


Targets = HingeRows | TubeRows | ClassRows


def cut_targets(targets: Any, rows: Any) -> Any:
    """Return what some rows ask for: a slice of them, or places on the device."""

    def pick(values: Any) -> Any:
        if values is None or values.shape[-1] == 1:
            return values
        if isinstance(rows, slice):
            return values[rows] if values.ndim == 1 else values[:, rows]
        return namespace_of(values).take(values, rows, axis=values.ndim - 1)

    of_rows = [name for name in ("C", "labels", "signs", "values", "cost") if hasattr(targets, name)]
    return replace(targets, **{name: pick(getattr(targets, name)) for name in of_rows})


@dataclass(frozen=True)
class DeviceBlock:
    """Rows on a device as Newton's method sees them: a `regbayes.margins.newton.Block`.

    Scores are taken in pieces, so that no array of outputs x rows is held. A curvature that is kept stays on the
    device, for a `DevicePrior`.
    """

    columns: DeviceColumns
    rows: Targets
    keeps_curvature: bool = False
    keeps_multipliers: bool = False  # those of the last look, where they are held at once
    _bent: list[Any] = field(default_factory=list, init=False, repr=False, compare=False)  # weights, multipliers there
    _squares: list[Any] = field(default_factory=list, init=False, repr=False, compare=False)  # pairs, their products

    def __len__(self) -> int:
        return len(self.columns)

    @property
    def mixes(self) -> bool:
        """Whether outputs mix in the second derivative."""
        return isinstance(self.rows, ClassRows)

    def evaluate(self, weights: Floats) -> Iterator[tuple[DeviceColumns, RowLosses]]:
        """Look at the rows at given weights (outputs, d), piece by piece."""
        there = self.columns.place(weights)
        for rows in arrays.pieces(len(self), max(1, PASS_ROOM // len(weights))):
            columns = self.columns.cut(rows)
            targets = self.rows if columns is self.columns else cut_targets(self.rows, rows)
            yield columns, targets.evaluate(columns.products(there), there.constant)

    def known_multipliers(self, weights: Floats) -> DeviceArray | None:
        """Return phi, (outputs, n), if these very weights were those of the last look and it was kept."""
        return self._bent[1] if self._bent and self._bent[0] is weights else None

    def multipliers(self, weights: Floats) -> DeviceArray:
        """Return phi, (outputs, n)."""
        return arrays.join([seen.multipliers for _, seen in self.evaluate(weights)], axis=1)

    def pull_back(self, weights: Floats, matrix: Floats) -> DeviceArray:
        """Return a matrix (k, outputs) times phi, (k, n)."""
        there = to_device(matrix, self.columns.features)
        return arrays.join([there @ seen.multipliers for _, seen in self.evaluate(weights)], axis=1)

    def sums(self, weights: Floats) -> BlockSums:
        """Look at the rows at given weights (outputs, d); one transfer brings what was found."""
        found = []
        self._bent.clear()  # the multipliers of before need not be held beside those of now
        for columns, seen in self.evaluate(weights):
            numbers = [seen.loss, seen.excess, seen.bias] if self.mixes else [seen.loss]
            found.append(_pack(*numbers, seen.totals, columns.sum_rows(seen.multipliers)))
            if self.keeps_multipliers and len(columns) == len(self):
                self._bent[:] = weights, seen.multipliers
        n, M = (3 if self.mixes else 1), len(weights)
        host = np.add.reduce(arrays.gather(*found)) if len(found) > 1 else to_host(found[0])
        loss, excess, bias = host[:3].tolist() if self.mixes else (float(host[0]), 0.0, 0.0)
        pulled = self.columns.finish(host[n + M :].reshape(M, -1), host[n : n + M])
        return BlockSums(loss, excess, bias, pulled)

    def curvature(self, weights: Floats) -> Any:
        """Return the loss's second derivative, whole or in blocks, as blocks of NumPy arrays do."""
        seen, phi, targets = self.columns.take().features, self.multipliers(weights), self.rows
        if isinstance(targets, ClassRows) and weights.size <= (MAX_WHOLE if self.keeps_curvature else MAX_DENSE):
            found = _bend_pairs(seen, targets, phi)
        elif seen.shape[0] > 2 * len(weights):
            found = arrays_losses.weigh_grams(seen, _bend_outputs(targets, phi))
        else:  # of many outputs, for which products of columns are the same
            found = self._weigh_squares(seen, _bend_outputs(targets, phi))
        return found if self.keeps_curvature else arrays.gather(found)[0]

    def _weigh_squares(self, seen: DeviceArray, weights: DeviceArray) -> DeviceArray:
        """Return ``sum_n weights_on x_n x_n'`` of each output, (outputs, d, d), from (d, n) and (outputs, n).

        Products of columns that fit at once are kept: a sample is looked at in every step of a solve.
        """
        xp, (d, n), M, kept = namespace_of(seen), seen.shape, weights.shape[0], self._squares
        if not kept:
            kept.append(_Squares.of(d, seen))
        squares, total = kept[0], None
        parts = arrays.pieces(n, max(1, SQUARE_ROOM // len(squares)))
        for rows in parts:
            products = kept[1] if len(kept) > 1 else squares.multiply(seen[:, rows])
            kept[1:] = [products] if len(parts) == 1 else []
            found = arrays.multiply_rows(weights[:, rows], products)
            total = found if total is None else total + found
        return xp.reshape(xp.take(total, xp.reshape(squares.places, (-1,)), axis=1), (M, d, d))

    def product(self, weights: Floats, direction: Floats) -> Floats:
        """Return the loss's second derivative times a direction, (outputs, d)."""
        if self.known_multipliers(weights) is None:  # a system is solved with many products at the same weights
            self._bent[:] = weights, self.multipliers(weights)
        there = self.columns.place(direction)
        bent = self.rows.multiply_curvature(self.columns.products(there), self._bent[1], there.constant)
        return self.columns.finish(*arrays.gather(self.columns.sum_rows(bent.coefficients), bent.totals))

    def ease(self) -> list[DeviceBlock]:
        """Return the rows in easier problems: small prices, which rise; then smoothed less."""
        rows = self.rows
        if not isinstance(rows, ClassRows):
            return [replace(self, rows=replace(rows, C=rows.C / factor)) for factor in EASED[:-1]]
        first = replace(rows, smoothing=max(SMOOTHING[0], rows.smoothing))
        eased = [replace(first, C=rows.C / factor) for factor in EASED]
        eased += [replace(rows, smoothing=share) for share in SMOOTHING[1:] if share > rows.smoothing]
        return [replace(self, rows=easier) for easier in eased]


def _pack(*parts: DeviceArray) -> DeviceArray:
    """Return small arrays as one, in double precision."""
    xp = namespace_of(parts[0])
    return xp.concat([xp.astype(xp.reshape(part, (-1,)), xp.float64, copy=False) for part in parts])


def _bend_outputs(targets: Targets, phi: DeviceArray) -> DeviceArray:
    """Return the second derivatives by each output's score, (outputs, n), at multipliers (outputs, n)."""
    xp = namespace_of(phi)
    if not isinstance(targets, ClassRows):
        return targets.multiply_curvature(xp.ones_like(phi), phi).coefficients
    signed, own, shared = _sign_classes(targets, phi)
    return own * xp.abs(signed) - shared * signed * signed


def _bend_pairs(seen: DeviceArray, targets: ClassRows, phi: DeviceArray) -> DeviceArray:
    """Return the second derivative of classes' losses by all weights, (classes, d, classes, d).

    The block of a pair of classes is a sum of ``x x'`` with a number for each row, so one product of matrices has all
    pairs. In a row's scores: ``own (diag(active) - e_y active' - active e_y' + count e_y e_y') - shared signed
    signed'``, and of two classes one is the true one where their signs differ.
    """
    xp, (L, n) = namespace_of(phi), phi.shape
    pairs, squares, total = _Pairs.of(L, phi), _Squares.of(seen.shape[0], phi), None
    for rows in arrays.pieces(n, max(1, SQUARE_ROOM // (len(pairs) + len(squares)))):
        signed, own, shared = _sign_classes(cut_targets(targets, rows), phi[:, rows])
        both = pairs.multiply(signed)
        bent = xp.where(both < 0.0, -own, xp.zeros_like(own)) - shared * both
        bent[:L, :] += own * xp.abs(signed)
        found = arrays.multiply_rows(bent, squares.multiply(seen[:, rows]))
        total = found if total is None else total + found
    places = pairs.places[:, None, :, None] * len(squares) + squares.places[None, :, None, :]
    return xp.reshape(xp.take(xp.reshape(total, (-1,)), xp.reshape(places, (-1,))), places.shape)


def _sign_classes(targets: ClassRows, phi: DeviceArray) -> tuple[DeviceArray, DeviceArray, DeviceArray]:
    """Return 1 for classes with a multiplier and minus their number for the true one, (classes, n), and slopes."""
    xp, active = namespace_of(phi), phi < 0.0
    own, shared, count = targets.differentiate(active)
    truth = arrays_losses.true_classes(targets.labels, phi)
    return xp.where(truth, -count, xp.astype(active, phi.dtype)), own, shared


@dataclass(frozen=True)
class _Pairs:
    """All pairs of d things, each once: first each with itself."""

    first: DeviceArray  # (d (d + 1) / 2,)
    second: DeviceArray
    places: DeviceArray  # (d, d): where the pair of two is

    @classmethod
    def of(cls, d: int, like: DeviceArray) -> _Pairs:
        """Return the pairs where an array lies."""
        first, second = (np.append(np.arange(d), others) for others in np.triu_indices(d, 1))
        places = np.zeros((d, d), dtype=np.int64)
        places[first, second] = places[second, first] = np.arange(len(first))
        return cls(*(arrays.integers_to_device(each, like) for each in (first, second, places)))

    def __len__(self) -> int:
        return int(self.first.shape[0])

    def multiply(self, rows: DeviceArray) -> DeviceArray:
        """Return the products of each pair of rows (d, n), (pairs, n)."""
        xp = namespace_of(rows)
        found = xp.take(rows, self.first, axis=0)
        found *= xp.take(rows, self.second, axis=0)
        return found


@dataclass(frozen=True)
class _Squares:
    """Products of any two of d columns: some columns at a time with all from the first of them on, some pairs twice."""

    blocks: list[tuple[slice, slice]]  # columns, and where their products are
    places: DeviceArray  # (d, d): where the product of two is

    @classmethod
    def of(cls, d: int, like: DeviceArray) -> _Squares:
        """Return the products of columns that lie where an array does."""
        blocks, places, end = [], np.zeros((d, d), dtype=np.int64), 0
        for some in arrays.pieces(d, SQUARE_BLOCK):
            own = end + np.arange((some.stop - some.start) * (d - some.start)).reshape(-1, d - some.start)
            places[some.start :, some], places[some, some.start :] = own.T, own
            blocks.append((some, slice(end, end + own.size)))
            end += own.size
        return cls(blocks, arrays.integers_to_device(places, like))

    def __len__(self) -> int:
        return self.blocks[-1][1].stop

    def multiply(self, columns: DeviceArray) -> DeviceArray:
        """Return the products of columns (d, n)."""
        xp, n = namespace_of(columns), columns.shape[1]
        found = xp.empty((len(self), n), dtype=columns.dtype, device=columns.device)
        for some, there in self.blocks:
            arrays.multiply_into(columns[some, None, :], columns[None, some.start :, :], found[there, :])
        return found


@dataclass(frozen=True)
class DevicePrior(SharedPrior):
    """The prior of weights, whose systems are solved where the curvature lies."""

    def solve(self, curvature: Any, right: Floats) -> Floats:
        """Solve ``(precision + curvature) x = right``; the curvature is on a device, the rest on the host."""
        xp, (n_tasks, d), there = namespace_of(curvature), right.shape, to_device(right, curvature)
        n = n_tasks * d if curvature.ndim == 4 else d  # of the one system, or of each
        shape = (-1, n, n) if curvature.ndim == 3 else (n, n)
        systems = xp.reshape(curvature, shape) + xp.eye(n, dtype=curvature.dtype, device=curvature.device)
        found = _solve(systems, xp.reshape(there, (*shape[:-1], 1)))
        if self.sharing > 0.0:
            members = np.equal.outer(np.arange(len(self.coupling)), self.group) * 1.0  # (groups, tasks)
            add, coupling = to_device(members, curvature), to_device(self.coupling, curvature)[:, None, None]
            inverses = xp.linalg.inv(systems)
            by_sum = -coupling * xp.reshape(add @ xp.reshape(inverses, (n_tasks, -1)), (-1, d, d))
            by_sum += xp.eye(d, dtype=curvature.dtype, device=curvature.device)
            shared = coupling * xp.linalg.solve(by_sum, (add @ found[:, :, 0])[:, :, None])
            found = found + inverses @ (add.T @ shared[:, :, 0])[:, :, None]
        return arrays.gather(xp.reshape(found, right.shape))[0]


def _solve(systems: DeviceArray, right: DeviceArray) -> DeviceArray:
    """Solve positive definite systems, one or a stack of them: by factors of Cholesky where the library can."""
    xp = namespace_of(systems)
    if hasattr(xp, "cholesky_solve"):  # PyTorch's
        factors, failed = xp.linalg.cholesky_ex(systems)
        if not bool(failed.any()):  # single precision can leave too little
            return xp.cholesky_solve(right, factors)
    return xp.linalg.solve(systems, right)


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
        found = self.newton_block(part, features, view).pull_back(weights, -latent.T)
        if common is not None:
            shared = to_device(common, found)[:, None]
            found += shared if part.row_weights is None else shared * part.row_weights
        return found.T

    def _solve_blocks(
        self, blocks: Sequence[DeviceArray], warm_start: Any, tolerance: Tolerance, executor: Executor
    ) -> BlockwiseHead:
        parts = self.parts(tuple(block.shape[0] for block in blocks))
        weight, sums = self.sum_features(blocks)
        view = self.view(weight, sums, tolerance.smoothing)
        rows = [
            replace(self.newton_block(part, block, view), keeps_curvature=True)
            for part, block in zip(parts, blocks, strict=True)
        ]

        def sample(level: int) -> list[DeviceBlock] | None:
            drawn = self._draw(level, len(view.centre), parts)
            if drawn is None:
                return None
            places, targets = drawn
            seen = [
                row.columns.take(place).features for row, place in zip(rows, places, strict=True) if place is not None
            ]
            whole = arrays.join(seen, axis=1)
            return [DeviceBlock(DeviceColumns(whole, np.zeros(whole.shape[0])), self._smooth(targets, view), True)]

        start = warm_start if isinstance(warm_start, LinearHead) else None
        prior = DevicePrior(np.arange(self.targets.n_outputs))
        found = self.solve_newton(rows, sample, view, weight, start, tolerance, executor, prior)
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
