"""Linear heads of several tasks over rows on a device: `TaskHead` with targets as one dense matrix there.

A target that is missing has a price of zero. The solver is that of blocks: Newton's method on the host, looks at the
rows on the device (`regbayes.margins.device`).
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
from regbayes.kernels.arrays import DeviceArray, HingeRows, TubeRows, integers_to_device, to_device
from regbayes.margins.device import MORE_ROWS, DeviceBlock, DeviceColumns, DeviceInputs
from regbayes.margins.head import SAMPLE_PER_WEIGHT, Tolerance
from regbayes.margins.tasks import MAX_SAMPLE_SHARE, BlockwiseTasks, TaskHead, TaskWeights


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
        ends = np.cumsum([0, *(block.shape[0] for block in blocks)])
        parts = {(int(a), int(b)): self._rows_of(slice(int(a), int(b))) for a, b in pairwise(ends)}
        rows = [
            DeviceBlock(self._columns(block, place), targets)
            for block, (place, targets) in zip(blocks, parts.items(), strict=True)
        ]
        n_features = blocks[0].shape[1]

        def sample(level: int) -> list[DeviceBlock] | None:
            drawn = self._draw_rows(
                MORE_ROWS * SAMPLE_PER_WEIGHT * self.n_columns(n_features) * 2**level, int(ends[-1])
            )
            if drawn is None:
                return None
            cut = np.split(drawn, np.searchsorted(drawn, ends[1:-1]))
            seen = [
                row.columns.take(integers_to_device(own - first, blocks[0])).features
                for row, own, first in zip(rows, cut, ends[:-1], strict=True)
                if len(own)
            ]
            whole = arrays.join(seen, axis=1)
            targets = self._rows_of(integers_to_device(drawn, blocks[0]), len(drawn) / int(ends[-1]))
            return [DeviceBlock(DeviceColumns(whole, np.zeros(whole.shape[0])), targets)]

        found = self.solve_newton(rows, sample, n_features, warm_start, tolerance, executor)
        return DeviceTasks(**vars(found), problem=self, targets=parts)

    def _columns(self, features: DeviceArray, place: tuple[int, int]) -> DeviceColumns:
        """Return what outputs see of a block of rows."""
        inputs = None if self.inputs is None else self.inputs[slice(*place)]
        return DeviceColumns(features.T, np.zeros(features.shape[1]), inputs, self.fit_intercept)

    def _rows_of(self, rows: Any, share: float = 1.0) -> HingeRows | TubeRows:
        """Return the targets of a slice of the rows, or of places on the device, which stand for all as a share."""
        targets = self.targets

        def pick(values: Any) -> Any:
            if values is None or values.shape[1] == 1:
                return values
            if isinstance(rows, slice):
                return values[:, rows]
            return arrays.namespace_of(values).take(values, rows, axis=1)

        changed = {"C": pick(targets.C) / share if share < 1.0 else pick(targets.C)}
        name = "signs" if isinstance(targets, HingeRows) else "values"
        return replace(targets, **changed, **{name: pick(getattr(targets, name))})

    def _draw_rows(self, n_wanted: int, n_rows: int) -> Integers | None:
        """Return rows among which every output has about so many targets; None where all rows are wanted."""
        n = int(np.ceil(n_wanted * n_rows / max(float(self.counts.min()), 1.0)))
        return None if n > MAX_SAMPLE_SHARE * n_rows else np.sort(self._order[:n])

    @cached_property
    def _order(self) -> Integers:
        name = "signs" if isinstance(self.targets, HingeRows) else "values"
        return np.random.default_rng(0).permutation(getattr(self.targets, name).shape[1])


@dataclass(frozen=True, kw_only=True)
class DeviceTasks(BlockwiseTasks):
    """The large-margin problem of several tasks solved over rows on a device."""

    problem: DeviceTaskHead
    targets: dict[tuple[int, int], Any]

    def gradient(self, rows: slice, features: DeviceArray) -> DeviceArray:
        """Return the derivative of the value by the features of a block of rows, by Danskin's theorem, (n, K)."""
        place, weights = (rows.start, rows.stop), self.weights.weights
        phi = DeviceBlock(self.problem._columns(features, place), self.targets[place]).multipliers(weights)
        return (to_device(-weights[:, : self.n_features].T, phi) @ phi).T


def lay_out_targets(head: TaskHead, n_rows: int, like: DeviceArray) -> HingeRows | TubeRows:
    """Return the observations of a head as a dense matrix on a device, a price of zero where there is none."""
    observed, n_outputs = head.observations.as_list(), len(head.outputs)
    prices = head.C * observed.weights
    if len(observed) == n_outputs * n_rows:
        targets = to_device(observed.targets.reshape(n_outputs, n_rows), like)
        same = bool(np.all(prices == prices[0]))
        C = to_device(prices[:1, None] if same else prices.reshape(n_outputs, n_rows), like)
    else:
        dense = np.zeros((2, n_outputs, n_rows))
        dense[0, observed.outputs, observed.rows], dense[1, observed.outputs, observed.rows] = observed.targets, prices
        targets, C = to_device(dense[0], like), to_device(dense[1], like)
    if head.loss == "squared_hinge":
        return HingeRows(C, signs=targets)
    return TubeRows(C, targets, head.epsilon)


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
