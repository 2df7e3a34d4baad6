"""Linear heads of several tasks that may share weights, some of whose targets are missing.

Two solvers, as for one task. Few observations, and plain hinges, are solved over one array of what outputs see of the
rows, with a multiplier for each observation. Many with squared losses are taken by Newton's method in the blocks in
which rows lie: weights are all that is kept, and observations are held with few bytes each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import pairwise
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix

from regbayes._registry import persistable
from regbayes._types import Floats, Integers, Reals
from regbayes.engine import Executor, Serial, Status
from regbayes.margins.cells import CellBlock, CellTargets, runs_of, sampled_cells
from regbayes.margins.coordinate_ascent import sum_by_group
from regbayes.margins.head import (
    MAX_CURVATURE,
    MIN_ROWS_PER_WEIGHT,
    HeadView,
    Tolerance,
    afford_sample,
    design,
    solve_tasks,
)
from regbayes.margins.newton import Cutoff, SharedPrior, solve_boxes
from regbayes.margins.targets import Loss, Observations, ObservedMatrix, Outputs
from regbayes.regularization.dual_forms import BoxDual

MIN_BLOCK_TARGETS = 50_000  # fewer are left to the solvers over one array, which then are faster
MAX_SAMPLE_SHARE = 0.5  # of the observations: a larger sample costs as much as all of them
EXACT_LOOKS, COLUMNS_PER_LOOK = 2, 7  # at the rows, in an exact step; and its curvature takes as long as more of them
OFTEN = 0.25  # of the rows: outputs that so many have share the rows that are drawn


@persistable(name="regbayes.MultiTaskWeights")
@dataclass(frozen=True)
class TaskWeights:
    """Weights of the outputs of several tasks, and the multipliers that they come from.

    M outputs in G groups, which see P columns: features, inputs if they are beside them, the constant if there is one.
    """

    weights: Floats  # (M, P): the mean weights of each output
    shared: Floats  # (G, P): the part of them that the outputs of a group have in common
    groups: Integers  # (M,): the group of each output
    multipliers: Floats  # (n,): phi of the observations; none where these were many


@dataclass(frozen=True)
class TaskHead:
    """What rows of several tasks ask for, some of it missing, and what the linear heads of their outputs see of them.

    Weights are ``own + sharing * common``, all standard normal a priori; outputs of one group have `common` in common.

    Parameters
    ----------
    observations : Observations or ObservedMatrix
        At least one; its rows are those of the features. A matrix for rows that are taken in blocks alone.
    outputs : Outputs
    loss : {"hinge", "squared_hinge", "epsilon_insensitive", "squared_epsilon_insensitive"}
    C : float
        Price of one unit of loss; the observations have weights on top of it.
    epsilon : float, default=0.0
        Half-width of the free tube around numbers.
    sharing : float, default=0.0
    fit_intercept : bool, default=True
        Whether outputs see a constant, whose weight is penalised as others are.
    inputs : (n, D), default=None
        What outputs see beside the features.
    input_factor : float, default=1.0
        What the inputs are multiplied by.
    in_blocks : bool, default=None
        Whether rows are taken in the blocks in which they lie, which squared losses allow. By default, where
        observations are many.
    """

    observations: Observations | ObservedMatrix
    outputs: Outputs
    loss: Loss
    C: float
    epsilon: float = 0.0
    sharing: float = 0.0
    fit_intercept: bool = True
    inputs: Floats | None = None
    input_factor: float = 1.0
    in_blocks: bool | None = None

    @cached_property
    def form(self) -> BoxDual:
        """The conjugate of the loss as a function of minus the scores: docs/math.md eq. (44)."""
        return self.observations.as_list().dual_form(self.loss, self.C, self.epsilon)

    def design(self, features: Reals | Sequence[Reals]) -> Floats:
        """Return what outputs see of the rows, shape (n, P), from their features, which may come in blocks."""
        return design(features, None, self.inputs, self.fit_intercept, self.input_factor)

    def gathers(self, n_features: int) -> bool:
        """Whether features of all rows are wanted in one array: `design` takes them as they come."""
        return False

    def takes_blocks(self, n_features: int) -> bool:
        """Whether rows with so many features are taken in the blocks in which they lie."""
        if self.in_blocks is not None:
            return self.in_blocks
        n_weights, n_columns = len(self.outputs) * self.n_columns(n_features), self.n_columns(n_features)
        enough = max(MIN_BLOCK_TARGETS, MIN_ROWS_PER_WEIGHT * n_weights)
        is_smooth = self.loss.startswith("squared") and n_weights * n_columns <= MAX_CURVATURE
        return is_smooth and len(self.observations) >= enough

    def n_columns(self, n_features: int) -> int:
        """Return how many columns outputs see beside so many features, these included."""
        return n_features + int(self.fit_intercept) + (0 if self.inputs is None else self.inputs.shape[1])

    def solve(
        self,
        features: Reals | Sequence[Reals],
        warm_start: TaskWeights | None,
        tolerance: Tolerance,
        executor: Executor | None = None,
    ) -> SolvedTasks:
        """Solve for the weights at features (n, K), which may come in blocks, from the weights of an earlier solve.

        The executor takes the blocks, where rows stay in them.
        """
        blocks = [features] if isinstance(features, np.ndarray) else list(features)
        n_features = blocks[0].shape[1]
        if self.takes_blocks(n_features):
            return self._solve_blocks(blocks, warm_start, tolerance, executor or Serial())
        return self.solve_design(self.design(blocks), n_features, warm_start, tolerance)

    def _solve_blocks(
        self, blocks: Sequence[Reals], warm_start: TaskWeights | None, tolerance: Tolerance, executor: Executor
    ) -> BlockwiseTasks:
        """Take Newton steps: rows stay where they are, and weights are all that is kept."""
        parts = self.parts(tuple(len(block) for block in blocks), executor)
        seen = [part.columns(block) for part, block in zip(parts, blocks, strict=True)]
        rows = runs_of([part.targets.bind(columns) for part, columns in zip(parts, seen, strict=True)])
        n_features = blocks[0].shape[1]
        is_exact = self._prefers_exact(tolerance.gap, sum(map(len, blocks)), self.n_columns(n_features))

        def sample(level: int) -> list[CellBlock] | None:
            if is_exact:
                return None
            n_each = len(self.observations) // len(self.outputs)
            draw = self._draw(afford_sample(n_each, self.n_columns(n_features)) * 2**level)
            if draw is None:
                return None
            pairs = zip(parts, seen, strict=True)
            seen_there = np.concatenate([part.pick(x, draw.rows) for part, x in pairs])
            return sampled_cells(seen_there, draw.form, draw.places)

        found = self.solve_newton(rows, sample, n_features, warm_start, tolerance, executor)
        return replace(found, parts={(part.rows.start, part.rows.stop): part for part in parts})

    def _prefers_exact(self, gap: float, n_rows: int, n_columns: int) -> bool:
        """Whether losses are parabolas and one step, with the curvature of all rows, takes less time than several.

        With that of a sample the gap falls to about a tenth with every look. A row has a curvature for each of its
        targets, and one for all of them where no target is missing.
        """
        is_quadratic = self.loss == "squared_epsilon_insensitive" and self.epsilon == 0.0
        n_each = len(self.observations) / n_rows
        n_looks = (1.0 if n_each == len(self.outputs) else n_each) * n_columns / COLUMNS_PER_LOOK
        return is_quadratic and EXACT_LOOKS + n_looks < 1.0 - np.log10(max(gap, np.finfo(np.float64).tiny))

    def solve_newton(
        self,
        rows: Sequence[Any],
        sample: Callable[[int], Sequence[Any] | None],
        n_features: int,
        warm_start: TaskWeights | None,
        tolerance: Tolerance,
        executor: Executor,
        prior: SharedPrior | None = None,
    ) -> BlockwiseTasks:
        """Take Newton steps over rows that may lie anywhere; arguments as those of `MarginHead.solve_newton`."""
        start = np.zeros((len(self.outputs), self.n_columns(n_features)))
        if warm_start is not None and warm_start.weights.shape == start.shape:
            start = warm_start.weights
        prior = SharedPrior(self.outputs.groups, self.sharing) if prior is None else prior
        found = solve_boxes(
            rows,
            prior,
            start,
            tol=tolerance.gap,
            max_passes=tolerance.max_epochs,
            executor=executor,
            sample=sample,
            cutoff=Cutoff(tolerance.ceiling, tolerance.enough),
        )
        weights = TaskWeights(found.weights, prior.shared(found.weights), self.outputs.groups, np.zeros(0))
        penalty = self.penalty(weights)
        return BlockwiseTasks(
            weights=weights,
            terms={"kl_weights": penalty, "margin": found.value - penalty},
            value=found.value,
            gap=found.gap,
            status=found.status,
            n_passes=found.n_passes,
            n_features=n_features,
        )

    def penalty(self, weights: TaskWeights) -> float:
        """Return the divergence of weights from their prior."""
        own = weights.weights - weights.shared[weights.groups]
        penalty = 0.5 * float(np.vdot(own, own))
        if self.sharing > 0:
            penalty += 0.5 * float(np.vdot(weights.shared, weights.shared)) / self.sharing**2
        return penalty

    def parts(self, n_rows: tuple[int, ...], executor: Executor) -> list[TaskPart]:
        """Return what belongs to blocks of so many rows; kept, because a descent asks a thousand times."""
        if n_rows not in self._kept_parts:
            ends = np.cumsum([0, *n_rows])
            make = partial(self._part, observed_in=self.observations.cut(ends, len(self.outputs)))
            blocks = list(enumerate(slice(first, end) for first, end in pairwise(ends.tolist())))
            self._kept_parts[n_rows] = executor.map(make, blocks)
        return self._kept_parts[n_rows]

    @cached_property
    def _kept_parts(self) -> dict[tuple[int, ...], list[TaskPart]]:
        return {}

    @cached_property
    def cells(self) -> list[slice]:
        """The observations of each output."""
        edges = self.observations.edges(len(self.outputs))
        return [slice(first, end) for first, end in pairwise(edges.tolist())]

    def _part(self, block: tuple[int, slice], observed_in: Callable[[int], Observations]) -> TaskPart:
        index, rows = block
        observed = observed_in(index)
        form = observed.dual_form(self.loss, self.C, self.epsilon)
        asked = CellTargets.of(form, observed.rows, observed.outputs, rows.stop - rows.start, len(self.outputs))
        inputs = None if self.inputs is None else self.inputs[rows]
        return TaskPart(rows, asked, inputs, self.input_factor, self.fit_intercept)

    def _draw(self, n_wanted: int) -> Draw | None:
        """Return about so many observations of each output, all where it has no more; None: all of all outputs.

        Outputs that most rows have share the rows that are drawn, so that few rows are looked at.
        """
        if n_wanted not in self._draws:
            self._draws[n_wanted] = self._make_draw(n_wanted)
        return self._draws[n_wanted]

    @cached_property
    def _draws(self) -> dict[int, Draw | None]:
        return {}

    def _make_draw(self, n_wanted: int) -> Draw | None:
        counts = np.array([cells.stop - cells.start for cells in self.cells])
        if np.minimum(counts, n_wanted).sum() > MAX_SAMPLE_SHARE * counts.sum():
            return None
        rows_of, having = self.observations.rows_of, np.flatnonzero(counts)
        rng, n_rows = np.random.default_rng(0), 1 + max(int(rows_of(output)[-1]) for output in having.tolist())
        order, offsets = rng.permutation(n_rows), rng.random(n_wanted)
        drawn: list[Integers] = []
        for output, (cells, n) in enumerate(zip(self.cells, counts.tolist(), strict=True)):
            if n <= n_wanted:
                drawn.append(np.arange(cells.start, cells.stop))
            elif n < OFTEN * n_rows:  # one of every few neighbours
                drawn.append(cells.start + ((np.arange(n_wanted) + offsets) * (n / n_wanted)).astype(np.int64))
            else:
                rows, own = np.sort(order[: -(-n_wanted * n_rows // n)]), rows_of(output)
                at = np.minimum(np.searchsorted(own, rows), n - 1)
                drawn.append(cells.start + at[own[at] == rows])
        return self.stand_for(drawn, counts)

    def stand_for(self, drawn: Sequence[Integers], counts: Integers) -> Draw:
        """Return observations that were drawn of each output as if they were all, of which each has so many."""
        chosen = self.observations.take(np.concatenate(drawn))
        share = np.repeat([len(mine) / max(n, 1) for mine, n in zip(drawn, counts, strict=True)], list(map(len, drawn)))
        form = chosen.dual_form(self.loss, self.C, self.epsilon)
        rows, places = np.unique(chosen.rows, return_inverse=True)
        edges = np.cumsum([0, *map(len, drawn)])
        split = [places[first:end] for first, end in pairwise(edges.tolist())]
        return Draw(rows, replace(form, ridge=share * form.ridge), split)

    def solve_design(
        self, columns: Floats, n_features: int, warm_start: TaskWeights | None, tolerance: Tolerance
    ) -> FittedTasks:
        """Solve for the weights at what outputs see of the rows, of which the first columns are features."""
        found = solve_tasks(
            columns,
            self.form,
            self.observations.as_list().layout(self.outputs, self.sharing),
            warm_start=None if warm_start is None or not len(warm_start.multipliers) else warm_start.multipliers,
            warm_weights=None if warm_start is None else warm_start.weights,
            tol=tolerance.gap,
            max_epochs=tolerance.max_epochs,
        )
        weights = TaskWeights(found.weights, found.shared_weights, self.outputs.groups, found.dual)
        penalty = self.penalty(weights)
        return FittedTasks(
            weights=weights,
            terms={"kl_weights": penalty, "margin": found.primal - penalty},
            value=found.primal,
            gap=found.gap,
            problem=self,
            n_rows=len(columns),
            n_features=n_features,
        )

    def bound(self, columns: Floats, multipliers: Floats) -> float:
        """Return the dual value at given multipliers: at what outputs see of the rows no weights can cost less."""
        form, phi = self.form, multipliers
        sums = self.lay_out(phi, len(columns)) @ columns
        penalty = 0.5 * float(np.vdot(sums, sums))
        if self.sharing > 0:
            by_group = sum_by_group(sums, self.outputs.groups)
            penalty += 0.5 * self.sharing**2 * float(np.vdot(by_group, by_group))
        return -penalty - float(form.linear @ phi + form.absolute @ np.abs(phi) + 0.5 * form.ridge @ np.square(phi))

    def lay_out(self, values: Floats, n_rows: int) -> Floats | csr_matrix:
        """Return values of the observations as a matrix (M, n_rows), a dense one where every row has every output."""
        if len(values) == len(self.outputs) * n_rows:
            return values.reshape(len(self.outputs), n_rows)
        return self.observations.as_list().matrix(values, len(self.outputs), n_rows)


@dataclass(frozen=True)
class TaskPart:
    """What belongs to a block of rows."""

    rows: slice
    targets: CellTargets
    inputs: Floats | None  # (n, D)
    input_factor: float
    fit_intercept: bool

    def columns(self, features: Reals) -> TaskColumns:
        """Return what outputs see of the rows."""
        return TaskColumns(features, self.inputs, self.input_factor, self.fit_intercept)

    def gradient(self, features: Reals, weights: Floats) -> Floats:
        """Return the derivative of the value by the features of the rows, by Danskin's theorem, (n, K)."""
        block: CellBlock = self.targets.bind(self.columns(features))
        return block.pull_back(block.multipliers(weights), -weights[:, : features.shape[1]])

    def pick(self, columns: TaskColumns, drawn: Integers) -> Floats:
        """Return what outputs see of those rows that were drawn, numbered as all rows are, (n, P)."""
        first, end = np.searchsorted(drawn, [self.rows.start, self.rows.stop])
        return columns.array(drawn[first:end] - self.rows.start)


@dataclass(frozen=True)
class TaskColumns:
    """What outputs see of rows, without a copy of it: `TaskHead.design`, as products with it."""

    features: Reals  # (n, K)
    inputs: Floats | None  # (n, D)
    input_factor: float
    fit_intercept: bool

    def __len__(self) -> int:
        return len(self.features)

    def scores(self, weights: Floats) -> Floats:
        """Return the products with weights (outputs, P), shape (n, outputs)."""
        K = self.features.shape[1]
        found = self.features @ weights[:, :K].T
        if self.inputs is not None:
            found += self.inputs @ (self.input_factor * weights[:, K : K + self.inputs.shape[1]]).T
        if self.fit_intercept:
            found += weights[:, -1]
        return found

    def combine(self, coefficients: Floats) -> Floats:
        """Return the sums of rows with coefficients (n, outputs), shape (outputs, P)."""
        parts = [coefficients.T @ self.features]
        if self.inputs is not None:
            parts.append(self.input_factor * (coefficients.T @ self.inputs))
        if self.fit_intercept:
            parts.append((np.ones(len(coefficients)) @ coefficients)[:, None])
        return np.hstack(parts)

    def split(self, weights: Floats) -> tuple[Any, Floats, Floats] | None:
        """Return features, weights and constants that make the scores; None where there are inputs too."""
        if self.inputs is not None:
            return None
        K = self.features.shape[1]
        return self.features, weights[:, :K], weights[:, -1].copy() if self.fit_intercept else np.zeros(len(weights))

    def join_sums(self, pulled: Floats, totals: Floats) -> Floats:
        """Return what `combine` does from sums of the features' rows, (outputs, P)."""
        return np.hstack([pulled, totals[:, None]]) if self.fit_intercept else pulled

    def array(self, rows: Integers | slice = slice(None)) -> Floats:
        """Return what is seen of all rows or some as an array, (n, P)."""
        inputs = None if self.inputs is None else self.inputs[rows]
        return design(self.features[rows], None, inputs, self.fit_intercept, self.input_factor)


@dataclass(frozen=True)
class Draw:
    """Observations that stand for all."""

    rows: Integers  # (r,): of all rows, ascending
    form: BoxDual  # of the observations, one output after another; prices are those of all that they stand for
    places: Sequence[Integers]  # for each output, where its rows are among those


@dataclass(frozen=True)
class FittedTasks:
    """The solved large-margin problem of several tasks at given features."""

    weights: TaskWeights
    terms: Mapping[str, float]  # kl_weights: from their prior, |own|^2 / 2 + |common|^2 / 2; margin: the loss
    value: float  # their sum
    gap: float  # it is above its minimum by this at most
    problem: TaskHead
    n_rows: int
    n_features: int

    @property
    def warm_start(self) -> TaskWeights:
        """What the next solve may start from."""
        return self.weights

    @cached_property
    def _by_row(self) -> Floats | csr_matrix:
        """The multipliers, shape (n_rows, M)."""
        found = self.problem.lay_out(self.weights.multipliers, self.n_rows).T
        return found if isinstance(found, np.ndarray) else found.tocsr()

    def gradient(self, rows: slice, features: Reals | None = None) -> Floats:
        """Return the derivative of the value by the features of some rows, by Danskin's theorem, shape (n, K)."""
        return self._by_row[rows] @ -self.weights.weights[:, : self.n_features]


@dataclass(frozen=True)
class BlockwiseTasks:
    """The large-margin problem of several tasks solved over blocks: multipliers are read off the weights, by block."""

    weights: TaskWeights
    terms: Mapping[str, float]
    value: float
    gap: float
    status: Status
    n_passes: int
    n_features: int
    parts: Mapping[tuple[int, int], TaskPart] = field(default_factory=dict)
    """Of the rows, where they are in this process, by their first rows and ends."""

    @property
    def warm_start(self) -> TaskWeights:
        """What the next solve may start from."""
        return self.weights

    def gradient(self, rows: slice, features: Reals) -> Floats:
        """Return the derivative of the value by the features of a block of rows, by Danskin's theorem, (n, K)."""
        return self.parts[rows.start, rows.stop].gradient(features, self.weights.weights)


SolvedTasks = FittedTasks | BlockwiseTasks


@dataclass(frozen=True)
class TaskRows:
    """What is asked of rows that lie in a block elsewhere: all that trips to them need, with few bytes a target."""

    kept: Sequence[TaskPart]

    def parts(self, lengths: tuple[int, ...]) -> Sequence[TaskPart]:
        """Return what belongs to the pieces of the block."""
        return self.kept

    def newton_block(self, part: TaskPart, features: Reals, view: HeadView | None = None) -> CellBlock:
        """Return a piece as Newton's method sees it."""
        return part.targets.bind(part.columns(features))

    def gradient_of(
        self, part: TaskPart, features: Reals, view: HeadView | None, weights: Floats, common: Floats | None
    ) -> Floats:
        """Return the derivative of the value by the features of a piece; nothing is centred, and nothing in common."""
        return part.gradient(features, weights)
