"""A linear head under margins: from features of rows to weights, their value, and the gradient they send back.

One convention of signs: a multiplier phi is positive where it pushes a score up. Weights are sums of ``phi_i x_i``, and
the derivative of the value by a score is minus its multiplier.

What the head sees of a row are its features, inputs beside them if there are any, and a constant if there is to be an
intercept. The intercept is the weight of that constant and is penalised as others are, so features can be centred
first: it should not have to make up for features that are far from zero.

Two solvers. Dual coordinate ascent takes any loss and needs the features of all rows in one array; Newton's method
takes smooth losses and sees sums over the rows alone. Over one array ascent has the first say (`solve_tasks`): it is
fast where rows are few for each weight or a warm start is close, and creeps where they are many and C is large. Where
rows are many and losses squared, Newton's method takes them in the blocks in which they lie, and weights are all that
it keeps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from regbayes._registry import persistable
from regbayes._types import Floats, Integers, Reals
from regbayes.engine import Executor, Serial, Status
from regbayes.engine.source import order_sample
from regbayes.margins.cells import CellLosses, CellMatrix
from regbayes.margins.coordinate_ascent import (
    DEFAULT_MAX_EPOCHS,
    DEFAULT_TOL,
    BoxAscent,
    MarginSolution,
    SimplexAscent,
    TaskLayout,
    ascend,
)
from regbayes.margins.newton import (
    MAX_DENSE,
    BoxBlock,
    SharedPrior,
    SimplexBlock,
    cut_sample,
    solve_boxes,
    solve_smoothed,
)
from regbayes.margins.targets import Classes, Numbers, Targets, layout_of
from regbayes.regularization.dual_forms import BoxDual, DualForm, SimplexDual

SMALLEST_GAP = 1e-8  # beyond this a verdict on a step is not worth waiting for
PATIENT_EPOCHS = 300.0
TIGHTEN = 0.1  # factor on the gap where no step seemed to lower the objective
MIN_BLOCK_ROWS = 10_000  # with targets: fewer are left to coordinate ascent, which then is faster
MAX_CLASS_WEIGHTS = 2_000  # of a multi-class margin: beyond, the curvature of a sample no longer leads anywhere
MAX_CURVATURE = 20_000_000  # numbers in the second derivatives of all outputs
SAMPLE_PER_WEIGHT = 50  # rows that the curvature is first taken from, for each weight of an output
MOST_PER_WEIGHT = 400  # the same where rows are many, so that steps gain more
ROWS_PER_SAMPLED = 2  # and columns: of fewer rows such a sample's curvature would cost much beside a pass over all
CLASS_SAMPLE_PER_WEIGHT = 20  # the same for each weight of a multi-class margin
MIN_PASSES = 12.0  # over the rows, that Newton's method may take
# A Newton step costs about as much as features / 16 passes of coordinate ascent, which gets the first say.
MIN_PATIENCE = 4.0
PATIENCE_PER_FEATURE = 8.0
# With so many rows for each weight the factors of the tasks cost little, and a Newton step little more than a pass.
MIN_ROWS_PER_WEIGHT = 10
# Newton steps converge quadratically: a gap far below the one asked for costs a step at most, and a descent over
# features, which the gap blurs, gains more by it.
NEWTON_SHARE = 0.01

NewtonBlock = CellMatrix | SimplexBlock


@dataclass(frozen=True)
class Tolerance:
    """When a large-margin step is good enough."""

    gap: float  # duality gap, relative to the value
    max_epochs: float  # passes over the rows
    smoothing: float = 0.1  # of the squared multi-class hinge, where Newton's method solves it
    ceiling: float = np.inf  # a value of no interest: where it is plain that it is exceeded, Newton's method may end
    enough: float = 0.0  # what may be left to gain, as its steps suggest it, whatever the gap is

    def tighten(self) -> Tolerance | None:
        """Return the tolerance to look again with where no step lowers the objective; None where that is hopeless."""
        return (
            replace(self, gap=max(TIGHTEN * self.gap, SMALLEST_GAP), max_epochs=PATIENT_EPOCHS)
            if self.gap > SMALLEST_GAP
            else None
        )


@dataclass(frozen=True)
class MarginHead:
    """What rows ask for, the loss of missing it, and what a linear head sees of them.

    Parameters
    ----------
    targets : Targets
        Of the rows that have any.
    squared : bool
        Whether losses are squared.
    fit_intercept : bool, default=True
    centred : bool, default=True
        Whether features are seen less their mean over the rows with targets, where there is an intercept.
    weight_variance : float, default=1.0
        Of the weights a priori.
    inputs : (n, D), default=None
        Columns that the head sees beside the features of the rows with targets, as they are.
    rows : (n,), default=None
        Which rows have targets; all by default.
    row_weights : (n,), default=None
        How often each row with targets counts in the mean that is taken off. Its prices have the factor already.
    in_blocks : bool, default=None
        Whether rows are taken in the blocks in which they lie, which squared losses allow. By default, where they are
        many.
    """

    targets: Targets
    squared: bool
    fit_intercept: bool = True
    centred: bool = True
    weight_variance: float = 1.0
    inputs: Floats | None = None
    rows: Integers | None = None
    row_weights: Floats | None = None
    in_blocks: bool | None = None

    @cached_property
    def form(self) -> DualForm:
        """Conjugate of the loss of all rows: of differences to the true class's score, or of minus the scores."""
        return self.targets.dual_form(self.squared)

    @property
    def mixes(self) -> bool:
        """Whether outputs mix in a row's loss: that of several classes."""
        return isinstance(self.targets, Classes)

    @cached_property
    def layout(self) -> TaskLayout:
        """Of the scores, row by row."""
        return layout_of(len(self.targets), self.targets.n_outputs)

    def gathers(self, n_features: int) -> bool:
        """Whether so many features of all rows are wanted in one array."""
        if self.in_blocks is not None:
            return not self.in_blocks
        if not self.squared or len(self.targets) < MIN_BLOCK_ROWS:
            return True
        n_columns = self.n_columns(n_features)
        n_numbers, most = (n_columns, MAX_CLASS_WEIGHTS) if self.mixes else (n_columns**2, MAX_CURVATURE)
        return self.targets.n_outputs * n_numbers > most

    def solve(
        self,
        features: Reals | Sequence[Reals],
        warm_start: Floats | LinearHead | None,
        tolerance: Tolerance,
        executor: Executor | None = None,
    ) -> SolvedHead:
        """Solve for the weights at the features of all rows (N, K), which may come in blocks of rows.

        Parameters
        ----------
        features : array, or sequence of them
        warm_start : (n, outputs), LinearHead or None
            Multipliers or weights of an earlier solve.
        tolerance : Tolerance
        executor : Executor, default=None
            Takes the blocks, where rows stay in them.
        """
        blocks = [features] if isinstance(features, np.ndarray) else list(features)
        if not self.gathers(blocks[0].shape[1]):
            return self._solve_blocks(blocks, warm_start, tolerance, executor or Serial())
        multipliers = None if isinstance(warm_start, LinearHead) else warm_start
        everywhere = np.concatenate(blocks) if len(blocks) > 1 else blocks[0]
        seen = everywhere if self.rows is None else everywhere[self.rows]
        centre, scale = np.zeros(seen.shape[1]), float(np.sqrt(self.weight_variance))
        if self.fit_intercept and self.centred and len(seen):
            weights = self.row_weights
            centre = seen.mean(axis=0, dtype=np.float64) if weights is None else weights @ seen / weights.sum()
        columns = design(seen, centre, self.inputs, self.fit_intercept)
        if scale != 1.0:
            columns *= scale  # weights are standard normal a priori then
        form, targets = self.form, self.targets
        if isinstance(form, SimplexDual):
            assert isinstance(targets, Classes)
            start = None if multipliers is None else simplex_multipliers(multipliers, targets.labels, form)
            problem = SimplexAscent(columns, form, targets.labels, start)
            found = problem.solution(ascend(problem, tolerance.gap, tolerance.max_epochs, seed=0))
            phi = score_multipliers(found.dual, targets.labels)
        else:
            shape = len(targets), targets.n_outputs
            start = None if multipliers is None else multipliers.ravel()
            found = solve_tasks(
                columns, form, self.layout, warm_start=start, tol=tolerance.gap, max_epochs=tolerance.max_epochs
            )
            phi = found.dual.reshape(shape)
        penalty = 0.5 * float(np.vdot(found.weights, found.weights))
        head, common = LinearHead(scale * found.weights, centre, self.fit_intercept), None
        if self.fit_intercept and self.centred and len(phi):
            weight = len(phi) if self.row_weights is None else self.row_weights.sum()
            common = phi.sum(axis=0) @ head.feature_weights / weight
        return FittedHead(
            head=head,
            multipliers=phi,
            terms={"kl_weights": penalty, "margin": found.primal - penalty},
            value=found.primal,
            gap=found.gap,
            status=found.status,
            problem=self,
            n_rows=len(everywhere),
            common=common,
        )

    def _solve_blocks(
        self,
        blocks: Sequence[Reals],
        warm_start: Floats | LinearHead | None,
        tolerance: Tolerance,
        executor: Executor,
    ) -> BlockwiseHead:
        """Take Newton steps: rows stay where they are, and weights are all that is kept."""
        parts = self.parts(tuple(len(block) for block in blocks))
        weight, sums = self.sum_features(blocks, executor)
        view = self.view(weight, sums, tolerance.smoothing)
        rows = [self.newton_block(part, block, view) for part, block in zip(parts, blocks, strict=True)]
        if warm_start is not None and not isinstance(warm_start, LinearHead):  # the weights that multipliers imply
            pairs = zip(rows, parts, strict=True)
            implied = np.add.reduce([row.features.combine(warm_start[part.targets]) for row, part in pairs])
            warm_start = LinearHead(np.sqrt(self.weight_variance) * implied, view.centre, self.fit_intercept)

        def sample(level: int) -> list[NewtonBlock] | None:
            n_drawn = self.n_sampled(level, len(view.centre))
            if not self.mixes:
                n_drawn = max(n_drawn, afford_sample(len(self.targets), self.n_columns(len(view.centre))) * 2**level)
            if n_drawn >= len(self.targets):
                return None
            drawn = np.sort(self._draw_order[:n_drawn])
            picked = np.concatenate([part.pick(block, drawn) for part, block in zip(parts, blocks, strict=True)])
            inputs, scale = None if self.inputs is None else self.inputs[drawn], float(np.sqrt(self.weight_variance))
            seen: Any = Columns(picked, view.centre, inputs, self.fit_intercept, scale)
            if inputs is None or isinstance(inputs, np.ndarray):
                seen = seen.array()  # once; inputs of a file are read piece by piece
            return self.sampled_blocks(seen, drawn, view, n_drawn / len(self.targets))

        found = self.solve_newton(rows, sample, view, weight, warm_start, tolerance, executor)
        return replace(found, parts=parts)

    def solve_newton(
        self,
        rows: Sequence[Any],
        sample: Callable[[int], Sequence[Any] | None],
        view: HeadView,
        weight: float,
        warm_start: LinearHead | None,
        tolerance: Tolerance,
        executor: Executor,
        prior: SharedPrior | None = None,
    ) -> BlockwiseHead:
        """Take Newton steps over rows that may lie anywhere.

        Parameters
        ----------
        rows : sequence of `regbayes.margins.newton.Block`
            All of them, as the view has them.
        sample : callable
            Rows that the curvature comes from: `regbayes.margins.newton.Sample`.
        view : HeadView
        weight : float
            What the rows with targets count together.
        warm_start, tolerance, executor
            As in `solve`.
        prior : SharedPrior, default=None
            Of the weights, standard normal: how systems are solved. By default on the host.
        """
        scale = float(np.sqrt(self.weight_variance))
        start = np.zeros((self.targets.n_outputs, self.n_columns(len(view.centre))))
        if warm_start is not None and warm_start.weights.shape == start.shape:
            start = warm_start.weights / scale
        options: dict[str, Any] = {"tol": tolerance.gap, "executor": executor, "sample": sample}
        options["max_passes"] = max(tolerance.max_epochs, MIN_PASSES)
        prior = SharedPrior(np.arange(len(start))) if prior is None else prior
        if self.mixes:
            found = solve_smoothed(rows, start, prior=prior, **options)
        else:
            found = solve_boxes(rows, prior, start, **options)
        penalty = 0.5 * float(np.vdot(found.weights, found.weights))
        head, common = LinearHead(scale * found.weights, view.centre, self.fit_intercept), None
        if self.fit_intercept and self.centred and weight > 0:
            common = found.pulled[:, -1] / scale @ head.feature_weights / weight
        return BlockwiseHead(
            head=head,
            terms={"kl_weights": penalty, "margin": found.value + found.excess - penalty},
            value=found.value + found.excess,
            gap=found.gap - found.bias,
            bias=found.bias,
            status=found.status,
            n_passes=found.n_passes,
            problem=self,
            view=view,
            weights=found.weights,
            common=common,
        )

    def sum_features(self, blocks: Sequence[Reals], executor: Executor | None = None) -> tuple[float, Floats]:
        """Return what the rows with targets count together, and the sum of their features (K,)."""
        pairs = list(zip(self.parts(tuple(len(block) for block in blocks)), blocks, strict=True))
        weight = float(len(self.targets)) if self.row_weights is None else float(self.row_weights.sum())
        return weight, (executor or Serial()).map_reduce(_sum_features, pairs)

    def view(self, weight: float, sums: Floats, smoothing: float) -> HeadView:
        """Return how the head sees rows with targets that count so much together, and whose features have such sums."""
        is_centred = self.fit_intercept and self.centred and weight > 0
        return HeadView(sums / weight if is_centred else np.zeros(len(sums)), smoothing)

    def newton_block(self, part: HeadPart, features: Reals, view: HeadView) -> Any:
        """Return a block of rows as Newton's method sees it."""
        scale = float(np.sqrt(self.weight_variance))
        columns = Columns(part.take(features), view.centre, part.inputs, self.fit_intercept, scale)
        if isinstance(self.targets, Classes):
            return SimplexBlock(columns, part.form, self.targets.labels[part.targets], view.smoothing)
        return CellMatrix(columns, part.form, None)

    def gradient_of(
        self, part: HeadPart, features: Reals, view: HeadView, weights: Floats, common: Floats | None
    ) -> Floats:
        """Return the derivative of the value by the features of a block of rows, by Danskin's theorem, (n, K).

        Features that are centred are so on their own mean: what a row gains all rows with targets share (``common``).
        """
        latent = np.sqrt(self.weight_variance) * weights[:, : len(view.centre)]
        found = self.newton_block(part, features, view).multipliers(weights) @ -latent
        if common is not None:
            found += common if part.row_weights is None else part.row_weights[:, None] * common
        if part.rows is None:
            return found
        spread = np.zeros((part.n_rows, found.shape[1]))
        spread[part.rows] = found
        return spread

    def sampled_blocks(self, columns: Any, drawn: Integers, view: HeadView, share: float) -> list[NewtonBlock]:
        """Return some of the rows, which are a share of all, as if they were all, in pieces that threads can share."""
        n_columns = columns.shape[1]
        n_weights = self.targets.n_outputs * n_columns
        n_numbers = n_weights * (n_weights if self.mixes and n_weights <= MAX_DENSE else n_columns)
        return [
            self._sampled_block(columns[rows], drawn[rows], view, share) for rows in cut_sample(len(drawn), n_numbers)
        ]

    def _sampled_block(self, columns: Any, drawn: Integers, view: HeadView, share: float) -> NewtonBlock:
        form: Any = self.targets.take(drawn).dual_form(self.squared)
        form = replace(form, ridge=share * form.ridge)
        if isinstance(self.targets, Classes):
            return SimplexBlock(columns, form, self.targets.labels[drawn], view.smoothing)
        return CellMatrix(columns, self._losses_of(form), None)

    def n_sampled(self, level: int, n_features: int) -> int:
        """Return how many rows with targets the curvature is taken from."""
        n_columns = self.n_columns(n_features)
        if self.mixes:
            return CLASS_SAMPLE_PER_WEIGHT * self.targets.n_outputs * n_columns * 2**level
        return SAMPLE_PER_WEIGHT * n_columns * 2**level

    def n_columns(self, n_features: int) -> int:
        """Return how many columns the head sees beside so many features, these included."""
        return n_features + int(self.fit_intercept) + (0 if self.inputs is None else self.inputs.shape[1])

    @cached_property
    def _draw_order(self) -> Integers:
        targets = self.targets
        if isinstance(targets, Numbers):
            return order_sample(None, len(targets))
        return order_sample(targets.labels if isinstance(targets, Classes) else targets.signs.argmax(1), len(targets))

    def parts(self, n_rows: tuple[int, ...]) -> list[HeadPart]:
        """Return what belongs to blocks of so many rows; kept, because a descent asks a thousand times."""
        if n_rows not in self._kept_parts:
            if self.rows is not None and np.any(np.diff(self.rows) <= 0):
                raise ValueError("rows must ascend where they are taken in blocks")
            ends = np.cumsum(n_rows)
            self._kept_parts[n_rows] = [self._part(int(end) - n, int(end)) for n, end in zip(n_rows, ends, strict=True)]
        return self._kept_parts[n_rows]

    @cached_property
    def _kept_parts(self) -> dict[tuple[int, ...], list[HeadPart]]:
        return {}

    def _part(self, first: int, end: int) -> HeadPart:
        of_rows, targets = None, slice(first, end)
        if self.rows is not None:
            begin, stop = (int(place) for place in np.searchsorted(self.rows, [first, end]))
            of_rows, targets = self.rows[begin:stop] - first, slice(begin, stop)
        if self.mixes:
            form: Any = self.form.take(targets)
        else:
            form = self._losses_of(self.targets.take(targets).dual_form(self.squared))
        return HeadPart(
            first=first,
            n_rows=end - first,
            rows=of_rows,
            targets=targets,
            form=form,
            inputs=None if self.inputs is None else self.inputs[targets],
            row_weights=None if self.row_weights is None else self.row_weights[targets],
        )

    def _losses_of(self, form: Any) -> CellLosses:
        """Return the losses of some rows that have every output, with few bytes a cell."""
        shape = len(form) // self.targets.n_outputs, self.targets.n_outputs
        rows, outputs = (index.ravel() for index in np.indices(shape))
        return CellLosses.of(form, rows, outputs, shape)

    def losses(self, scores: Floats) -> Floats:
        """Return the loss of each row at given scores (n, outputs), shape (n,)."""
        if isinstance(self.form, SimplexDual):
            assert isinstance(self.targets, Classes)
            return self.form.values(scores - np.take_along_axis(scores, self.targets.labels[:, None], axis=1))
        return self.form.values(-scores.ravel()).reshape(scores.shape).sum(axis=1)

    def multipliers(self, scores: Floats) -> Floats:
        """Return minus the derivative of the loss by given scores, (n, outputs); at a kink, on one of its sides."""
        if isinstance(self.form, SimplexDual):
            assert isinstance(self.targets, Classes)
            labels = self.targets.labels
            omega = self.form.derivatives(scores - np.take_along_axis(scores, labels[:, None], axis=1))
            return score_multipliers(omega, labels)
        return self.form.derivatives(-scores.ravel()).reshape(scores.shape)


@dataclass(frozen=True)
class HeadView:
    """How a head sees rows: all but its weights."""

    centre: Floats  # (K,): taken off the features
    smoothing: float  # of the squared multi-class hinge


@dataclass(frozen=True)
class HeadPart:
    """What belongs to a block of rows."""

    first: int  # row of all
    n_rows: int  # with targets or without
    rows: Integers | None  # which of them have targets; None: all
    targets: slice  # where these are among all targets
    form: Any  # the conjugate of their losses; of outputs that are judged one by one with few bytes a cell
    inputs: Floats | None  # of the rows with targets
    row_weights: Floats | None

    def take(self, features: Reals) -> Reals:
        """Return the features of the rows with targets."""
        return features if self.rows is None else features[self.rows]

    def pick(self, features: Reals, drawn: Integers) -> Reals:
        """Return the features of those rows that were drawn, numbered as targets are, (n, K)."""
        first, end = np.searchsorted(drawn, [self.targets.start, self.targets.stop])
        return self.take(features)[drawn[first:end] - self.targets.start]


def _sum_features(block: tuple[HeadPart, Reals]) -> Floats:
    part, features = block[0], block[0].take(block[1])
    return features.sum(axis=0, dtype=np.float64) if part.row_weights is None else part.row_weights @ features


@dataclass(frozen=True)
class Columns:
    """What a linear head sees of rows, without a copy of it: `design` times a factor, as products with it."""

    features: Reals  # (n, K)
    centre: Floats  # (K,)
    inputs: Floats | None  # (n, D)
    fit_intercept: bool
    scale: float

    def __len__(self) -> int:
        return len(self.features)

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of the design."""
        n_inputs = 0 if self.inputs is None else self.inputs.shape[1]
        return len(self), self.features.shape[1] + n_inputs + int(self.fit_intercept)

    def __getitem__(self, rows: slice) -> Columns:
        """Return some of the rows."""
        return replace(self, features=self.features[rows], inputs=None if self.inputs is None else self.inputs[rows])

    def scores(self, weights: Floats) -> Floats:
        """Return the products with weights (outputs, d), shape (n, outputs)."""
        scaled, K = self.scale * weights, self.features.shape[1]
        found = self.features @ scaled[:, :K].T
        if self.inputs is not None:
            found += self.inputs @ scaled[:, K : K + self.inputs.shape[1]].T
        found += (scaled[:, -1] if self.fit_intercept else 0.0) - scaled[:, :K] @ self.centre
        return found

    def combine(self, coefficients: Floats) -> Floats:
        """Return the sums of rows with coefficients (n, outputs), shape (outputs, d)."""
        totals = coefficients.sum(axis=0)[:, None]
        parts = [coefficients.T @ self.features - totals * self.centre]
        if self.inputs is not None:
            parts.append(coefficients.T @ self.inputs)
        if self.fit_intercept:
            parts.append(totals)
        return self.scale * np.hstack(parts)

    def split(self, weights: Floats) -> tuple[Any, Floats, Floats] | None:
        """Return features, weights and constants that make the scores; None where there are inputs too."""
        if self.inputs is not None:
            return None
        scaled, K = self.scale * weights, self.features.shape[1]
        constant = (scaled[:, -1] if self.fit_intercept else 0.0) - scaled[:, :K] @ self.centre
        return self.features, scaled[:, :K], constant

    def join_sums(self, pulled: Floats, totals: Floats) -> Floats:
        """Return what `combine` does from sums of the features' rows, (outputs, d)."""
        parts = [pulled - totals[:, None] * self.centre, *([totals[:, None]] if self.fit_intercept else [])]
        return self.scale * np.hstack(parts)

    def array(self) -> Floats:
        """Return what is seen of the rows as an array, (n, d)."""
        return self.scale * design(self.features, self.centre, self.inputs, self.fit_intercept)


@persistable(name="regbayes.LinearHead")
@dataclass(frozen=True)
class LinearHead:
    """Weights of outputs on features, inputs beside them and a constant: all that prediction needs."""

    weights: Floats  # (outputs, K [+ D] [+ 1])
    centre: Floats  # (K,): taken off the features
    fit_intercept: bool  # whether the last weight is that of a constant

    def scores(self, features: Reals, inputs: Floats | None = None) -> Floats:
        """Return the scores of rows, shape (n, outputs)."""
        return design(features, self.centre, inputs, self.fit_intercept) @ self.weights.T

    @property
    def feature_weights(self) -> Floats:
        """Weights of the features, shape (outputs, K)."""
        return self.weights[:, : len(self.centre)]


@dataclass(frozen=True)
class FittedHead:
    """The solved large-margin problem at given features: the head, its certificate, and what it sends back."""

    head: LinearHead
    multipliers: Floats  # (n, outputs): phi of the rows with targets
    terms: Mapping[str, float]  # kl_weights: half the weights' squared norm, in units of the prior; margin: the loss
    value: float  # their sum
    gap: float  # it is above its minimum by this at most
    status: Status
    problem: MarginHead
    n_rows: int  # all rows, with targets or without
    common: Floats | None  # (K,): what the mean that is taken off adds to the gradient of a row that counts once

    @property
    def warm_start(self) -> Floats:
        """What the next solve may start from."""
        return self.multipliers

    @cached_property
    def _order(self) -> Integers:
        """Places of the rows with targets, by their numbers: those of a block are found without a look at all."""
        assert self.problem.rows is not None
        return np.argsort(self.problem.rows, kind="stable")

    def gradient(self, rows: slice, features: Reals | None = None) -> Floats:
        """Return the derivative of the value by the features of some rows, by Danskin's theorem, shape (n, K).

        Features that are centred are so on their own mean: what a row gains all rows with targets share.
        """
        problem = self.problem
        first, end, _ = rows.indices(self.n_rows)
        seen: Any = rows
        if problem.rows is not None:
            seen = self._order[slice(*np.searchsorted(problem.rows, (first, end), sorter=self._order))]
        found = self.multipliers[seen] @ -self.head.feature_weights
        if self.common is not None:
            found += self.common if problem.row_weights is None else problem.row_weights[seen, None] * self.common
        if problem.rows is None:
            return found
        spread = np.zeros((end - first, found.shape[1]))  # rows without targets push nothing
        spread[problem.rows[seen] - first] = found
        return spread


@dataclass(frozen=True)
class BlockwiseHead:
    """The large-margin problem solved over blocks of rows: its multipliers are read off the weights, block by block.

    The value is that of the loss as it is smoothed, and so are its gap and gradient; ``bias`` is what smoothing adds to
    the gap of the loss itself.
    """

    head: LinearHead
    terms: Mapping[str, float]
    value: float
    gap: float
    bias: float
    status: Status
    n_passes: int
    problem: MarginHead
    view: HeadView
    weights: Floats  # (outputs, d), standard normal a priori
    common: Floats | None  # (K,): what the mean that is taken off adds to the gradient of a row that counts once
    parts: Sequence[HeadPart] = ()  # of the rows, where they are in this process

    @property
    def warm_start(self) -> LinearHead:
        """What the next solve may start from."""
        return self.head

    multipliers = None  # of rows: none are kept

    def gradient(self, rows: slice, features: Reals) -> Floats:
        """Return the derivative of the value by the features of a block of rows, by Danskin's theorem, (n, K)."""
        part = next(part for part in self.parts if slice(part.first, part.first + part.n_rows) == rows)
        return self.problem.gradient_of(part, features, self.view, self.weights, self.common)


SolvedHead = FittedHead | BlockwiseHead


def design(
    features: Reals | Sequence[Reals],
    centre: Floats | None,
    inputs: Floats | None,
    fit_intercept: bool,
    input_factor: float = 1.0,
) -> Floats:
    """Return what a linear head sees of rows: centred features, inputs if there are any, a constant if wanted.

    Features may come in blocks of rows, which saves a copy of them all.
    """
    blocks = [features] if isinstance(features, np.ndarray) else features
    n, K = sum(map(len, blocks)), blocks[0].shape[1]
    n_inputs = 0 if inputs is None else inputs.shape[1]
    columns = np.empty((n, K + n_inputs + int(fit_intercept)))
    first = 0
    for block in blocks:
        out = columns[first : first + len(block), :K]
        if centre is None:
            out[...] = block
        else:
            np.subtract(block, centre, out=out)
        first += len(block)
    if inputs is not None:
        np.multiply(inputs, input_factor, out=columns[:, K : K + n_inputs])
    if fit_intercept:
        columns[:, -1] = 1.0
    return columns


def score_multipliers(omega: Floats, labels: Integers) -> Floats:
    """Return multipliers of scores from those of a simplex: they push the true class's score up, and others' down."""
    phi = -omega
    phi[np.arange(len(phi)), labels] += omega.sum(axis=1)
    return phi


def simplex_multipliers(phi: Floats, labels: Integers, form: SimplexDual) -> Floats:
    """Return multipliers of a simplex from those of scores; where their sum is fixed the true class has the rest."""
    omega = np.maximum(-phi, 0.0)
    rows = np.arange(len(phi))
    omega[rows, labels] = 0.0
    rest = np.maximum(form.total - omega.sum(axis=1), 0.0)
    omega[rows, labels] = np.where(np.isfinite(form.total), rest, 0.0)
    return omega


def afford_sample(n_rows: int, n_columns: int) -> int:
    """Return how many rows the curvature of an output is first taken from, of so many."""
    affordable = min(n_rows // (ROWS_PER_SAMPLED * n_columns), MOST_PER_WEIGHT * n_columns)
    return max(SAMPLE_PER_WEIGHT * n_columns, affordable)


def solve_tasks(
    features: Reals,
    form: BoxDual,
    layout: TaskLayout,
    *,
    warm_start: Floats | None = None,
    warm_weights: Floats | None = None,
    tol: float = DEFAULT_TOL,
    max_epochs: float = DEFAULT_MAX_EPOCHS,
    seed: int = 0,
) -> MarginSolution:
    """Solve a large-margin problem over a box, for one task or several that share weights, by whichever is faster.

    Parameters
    ----------
    features, form, layout, warm_start
        As in `regbayes.margins.coordinate_ascent.BoxAscent`.
    tol : float
        Stop when the duality gap is at most this fraction of the primal objective.
    max_epochs : float
        Limit on row visits, in units of n; a Newton step counts as one epoch. Zero evaluates the warm start; otherwise
        all rows are visited at least once.
    seed : int
        For the order in which rows are visited.
    warm_weights : (tasks, d), optional
        Weights of an earlier solution: a better start for Newton's method than those that multipliers imply, where
        the features have changed.
    """
    n_tasks, n_features = len(layout.group), features.shape[1]
    if warm_weights is not None and warm_weights.shape != (n_tasks, n_features):
        raise ValueError(f"warm_weights must have shape {(n_tasks, n_features)}; got {warm_weights.shape}")
    is_smooth = bool(np.all(form.ridge > 0.0)) and n_tasks * n_features**2 <= MAX_CURVATURE
    patience = max(MIN_PATIENCE, n_features / PATIENCE_PER_FEATURE)
    if not is_smooth or max_epochs <= patience:
        problem = BoxAscent(features, form, layout, warm_start)
        return problem.solution(ascend(problem, tol, max_epochs, seed))
    has_many_rows = len(form) >= MIN_ROWS_PER_WEIGHT * n_tasks * n_features
    start, n_epochs = warm_weights, 0.0
    if has_many_rows and form.is_smooth:  # parabolas, of which one step is exact, from anywhere
        start = np.zeros((n_tasks, n_features)) if start is None else start
    else:
        problem = BoxAscent(features, form, layout, warm_start)
        # Many rows have moved, however little: their multipliers may be worse than none, and ascent slow to mend them.
        primal, gap = problem.certificate() if has_many_rows else (0.0, 0.0)
        if primal - gap < 0.0:
            start = problem.expected_weights() if start is None else start
        else:
            outcome = ascend(problem, tol, patience, seed)
            if outcome.status is not Status.ITERATION_LIMIT:
                return problem.solution(outcome)
            start, n_epochs = problem.expected_weights(), outcome.n_epochs
    block, prior = BoxBlock.of(features, form, layout), SharedPrior(layout.group, layout.sharing)
    # The look at the start is not counted, for ascent has had it.
    found = solve_boxes([block], prior, start, tol=NEWTON_SHARE * tol, max_passes=max_epochs - n_epochs + 1.0)
    dual, n_epochs = block.multipliers(found.weights), n_epochs + max(found.n_passes - 1, 1)
    is_close = found.gap <= tol * abs(found.value)
    if is_close or n_epochs >= max_epochs:
        status, shared = (Status.CONVERGED if is_close else Status.ITERATION_LIMIT), prior.shared(found.weights)
        return MarginSolution(dual, found.weights, shared, found.value, found.gap, n_epochs, status)
    problem = BoxAscent(features, form, layout, dual)
    last = ascend(problem, tol, max_epochs - n_epochs, seed)
    return problem.solution(replace(last, n_epochs=n_epochs + last.n_epochs))
