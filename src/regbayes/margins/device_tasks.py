"""Linear heads of several tasks over rows on a device: `TaskHead` with targets as one dense matrix there.

A target that is missing has a sign or a price of zero. The solver is that of blocks: Newton's method on the host, looks
at the rows and systems on the device (`regbayes.margins.device`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from regbayes._types import Floats, Integers
from regbayes.engine import Executor
from regbayes.kernels import arrays
from regbayes.kernels.arrays import DeviceArray, integers_to_device, namespace_of, to_device
from regbayes.kernels.arrays_losses import HingeRows, TubeRows
from regbayes.margins.device import DeviceBlock, DeviceColumns, DeviceInputs, DevicePrior, cut_targets
from regbayes.margins.head import HeadView, Tolerance
from regbayes.margins.tasks import MAX_SAMPLE_SHARE, BlockwiseTasks, TaskHead, TaskWeights

SAMPLE_PER_OUTPUT = 800  # rows that the curvature is first taken from, for each weight of an output: a pass costs more


@dataclass(frozen=True)
class DevicePart:
    """What belongs to a block of rows."""

    rows: slice
    targets: HingeRows | TubeRows
    inputs: DeviceInputs | None


@dataclass(frozen=True)
class DeviceTaskHead(TaskHead):
    """What rows of several tasks on a device ask for.

    Parameters
    ----------
    inputs : DeviceInputs, default=None
        What outputs see beside the features; ``input_factor`` is in it.
    targets : HingeRows or TubeRows
        Of all rows, (outputs, n).
    counts : array of shape (outputs,)
        How many targets each output has.
    """

    inputs: Any = None
    targets: Any = None
    counts: Floats = field(default_factory=lambda: np.zeros(0))

    def takes_blocks(self, n_features: int) -> bool:
        """Rows stay in their blocks."""
        return True

    def _solve_blocks(
        self, blocks: Sequence[DeviceArray], warm_start: TaskWeights | None, tolerance: Tolerance, executor: Executor
    ) -> DeviceTasks:
        parts = self.parts(tuple(block.shape[0] for block in blocks))
        rows = [
            replace(self.newton_block(part, block), keeps_curvature=True, keeps_multipliers=True)
            for part, block in zip(parts, blocks, strict=True)
        ]
        n_features = blocks[0].shape[1]

        def sample(level: int) -> list[DeviceBlock] | None:
            drawn = self._draw_rows(SAMPLE_PER_OUTPUT * self.n_columns(n_features) * 2**level, parts, blocks[0])
            if drawn is None:
                return None
            places, targets = drawn
            seen = [
                row.columns.take(place).features for row, place in zip(rows, places, strict=True) if place is not None
            ]
            whole = arrays.join(seen, axis=1)
            return [DeviceBlock(DeviceColumns(whole, np.zeros(whole.shape[0])), targets, keeps_curvature=True)]

        prior = DevicePrior(self.outputs.groups, self.sharing)
        found = self.solve_newton(rows, sample, n_features, warm_start, tolerance, executor, prior)
        places = [(part.rows.start, part.rows.stop) for part in parts]
        held = dict(zip(places, parts, strict=True))
        known = {place: row.known_multipliers(found.weights.weights) for place, row in zip(places, rows, strict=True)}
        return DeviceTasks(**vars(found), problem=self, held=held, known=known)

    def parts(self, n_rows: tuple[int, ...], executor: Executor | None = None) -> Any:
        """Return what belongs to blocks of so many rows; kept, because a descent asks a thousand times."""
        if n_rows not in self._kept_parts:
            ends = np.cumsum([0, *n_rows]).tolist()
            self._kept_parts[n_rows] = [self._part_of(slice(first, end)) for first, end in pairwise(ends)]
        return self._kept_parts[n_rows]

    def _part_of(self, rows: slice) -> DevicePart:
        return DevicePart(rows, cut_targets(self.targets, rows), None if self.inputs is None else self.inputs[rows])

    def newton_block(self, part: DevicePart, features: DeviceArray, view: HeadView | None = None) -> DeviceBlock:
        """Return a block of rows as Newton's method sees it; there is nothing that they would be seen by."""
        columns = DeviceColumns(features.T, np.zeros(features.shape[1]), part.inputs, self.fit_intercept)
        return DeviceBlock(columns, part.targets)

    def gradient_of(
        self, part: DevicePart, features: DeviceArray, view: HeadView | None, weights: Floats, common: Floats | None
    ) -> DeviceArray:
        """Return the derivative of the value by the features of a block, by Danskin's theorem, (n, K)."""
        return self.newton_block(part, features).pull_back(weights, -weights[:, : features.shape[1]].T).T

    def _draw_rows(self, n_wanted: int, parts: Sequence[DevicePart], like: DeviceArray) -> Any:
        """Return rows among which every output has about so many targets, and these, which stand for all.

        Rows are places in each part (None: of none). None where all rows are wanted.
        """
        n_rows = parts[-1].rows.stop
        n = int(np.ceil(n_wanted * n_rows / max(float(self.counts.min()), 1.0)))
        if n > MAX_SAMPLE_SHARE * n_rows:
            return None
        if n not in self._kept_samples:
            drawn = np.sort(self._order[:n])
            cut = np.split(drawn, np.searchsorted(drawn, [part.rows.stop for part in parts[:-1]]))
            places = [
                integers_to_device(own - part.rows.start, like) if len(own) else None
                for own, part in zip(cut, parts, strict=True)
            ]
            targets = cut_targets(self.targets, integers_to_device(drawn, like))
            self._kept_samples[n] = places, replace(targets, C=targets.C * (n_rows / n))
        return self._kept_samples[n]

    @cached_property
    def _kept_samples(self) -> dict[int, Any]:
        return {}

    @cached_property
    def _kept_parts(self) -> dict[tuple[int, ...], Any]:
        return {}

    @cached_property
    def _order(self) -> Integers:
        name = "signs" if isinstance(self.targets, HingeRows) else "values"
        return np.random.default_rng(0).permutation(getattr(self.targets, name).shape[1])


@dataclass(frozen=True, kw_only=True)
class DeviceTasks(BlockwiseTasks):
    """The large-margin problem of several tasks solved over rows on a device."""

    problem: DeviceTaskHead
    held: dict[tuple[int, int], DevicePart]  # by their first rows and ends
    known: dict[tuple[int, int], DeviceArray | None]  # multipliers of blocks, until their gradient was asked for

    def gradient(self, rows: slice, features: DeviceArray) -> DeviceArray:
        """Return the derivative of the value by the features of a block of rows, by Danskin's theorem, (n, K)."""
        place, weights = (rows.start, rows.stop), self.weights.weights
        known = self.known.pop(place, None)
        if known is not None:
            return (to_device(-weights[:, : self.n_features].T, features) @ known).T
        return self.problem.gradient_of(self.held[place], features, None, weights, None)


def lay_out_targets(head: TaskHead, n_rows: int, like: DeviceArray) -> HingeRows | TubeRows:
    """Return the observations of a head as a dense matrix on a device: signs of a byte, or numbers and their prices.

    A sign of zero asks for nothing, and so does a price of zero. Prices that differ from row to row alone, as weights
    of rows make them, have a number for each row.
    """
    observed, n_outputs = head.observations.as_list(), len(head.outputs)
    at, prices = (observed.outputs, observed.rows), head.C * observed.weights
    is_signed, is_full = head.loss == "squared_hinge", len(observed) == n_outputs * n_rows
    dense = np.zeros((n_outputs, n_rows), dtype=np.int8 if is_signed else np.float64)
    dense[at] = observed.targets
    targets = to_device(dense, like, namespace_of(like).int8 if is_signed else None)
    of_rows = np.zeros(n_rows)
    of_rows[observed.rows] = prices
    if (is_signed or is_full) and np.array_equal(of_rows[observed.rows], prices):
        C = prices[:1, None] if np.all(prices == prices[0]) else of_rows
    else:
        C = np.zeros((n_outputs, n_rows))
        C[at] = prices
    if is_signed:
        return HingeRows(to_device(C, like), signs=targets)
    return TubeRows(to_device(C, like), targets, head.epsilon)


def make_device_head(head: TaskHead, X: DeviceArray) -> DeviceTaskHead:
    """Return the head of rows on a device, from one whose observations are on the host."""
    inputs = None
    if head.inputs is not None:
        inputs = DeviceInputs(X, np.zeros(X.shape[1]), float(head.input_factor))
    return DeviceTaskHead(
        head.observations.take(slice(0)),  # they are laid out
        head.outputs,
        head.loss,
        head.C,
        head.epsilon,
        head.sharing,
        head.fit_intercept,
        inputs=inputs,
        input_factor=head.input_factor,
        in_blocks=True,
        targets=lay_out_targets(head, X.shape[0], X),
        counts=np.diff(head.observations.edges(len(head.outputs))).astype(np.float64),
    )
