"""Linear max-margin head, with its value and gradient by the features.

Sign convention: a positive multiplier phi increases its score. Weights are sums of ``phi_i x_i``, and the derivative of
the value with respect to a score is minus its multiplier.

The columns of the head are the features of a sample, optional inputs, and a constant for the intercept. The intercept
is penalized like other weights, so features can be centered first to keep it small. Outputs of several tasks may share
weights.

There are two solvers. Dual coordinate ascent takes any loss, and needs the columns of all samples in one array.
Newton's method takes squared losses and needs only sums over samples, which may be in blocks on other devices.
`Head.prefers_ascent` chooses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from regbayes._registry import persistable
from regbayes._types import Floats, Integers, Reals
from regbayes.engine import Executor, Serial, Status, row_blocks
from regbayes.engine.source import order_sample
from regbayes.kernels import arrays
from regbayes.kernels.arrays import DeviceArray
from regbayes.margins.ascent import BoxAscent, SimplexAscent, TaskLayout, ascend
from regbayes.margins.design import Design, Inputs, stack_designs
from regbayes.margins.newton import NewtonSolution, Rows, Sample, SharedPrior, minimize
from regbayes.margins.rows import BlockLosses, MarginRows
from regbayes.margins.targets import Cells, Classes, Numbers, Signs, Targets
from regbayes.regularization.dual_forms import DualForm, SimplexDual

SMALLEST_GAP, PATIENT_EPOCHS = 1e-8, 300.0  # relative gap and passes of the most accurate solve in a descent
MIN_PASSES = 12.0  # minimum limit on the passes of Newton's method over the samples


@dataclass(frozen=True)
class HeadPolicy:
    """Choice of the solver, and size of the subsample for the curvature.

    ``benchmarks/bench_heads.py`` prints the times of both solvers.
    """

    max_ascent_scores: int = 100_000  # targets up to which coordinate ascent is faster, if few passes are allowed
    max_ascent_epochs: float = 2.0  # passes up to which it is faster; does not apply to multi-class losses
    max_ascent_penalty: float = 1_000.0  # mean C above which a squared loss is nearly a hard margin
    max_curvature: int = 20_000_000  # maximum entries of the second derivatives for Newton's method
    max_class_weights: int = 2_000  # maximum weights of a multi-class head for Newton's method
    sample_per_weight: int = 30  # initial samples for the curvature, per weight of an output


HEAD_POLICY = HeadPolicy()


@persistable(name="regbayes.margins.Tolerance")
@dataclass(frozen=True)
class Tolerance:
    """Accuracy of the large-margin solve."""

    gap: float  # duality gap relative to the value
    max_epochs: float  # maximum passes over the samples
    smoothing: float = 0.1  # smoothing of the squared multi-class hinge in Newton's method

    def tighten(self) -> Tolerance | None:
        """Return a smaller tolerance for when no step lowers the objective, or None at the limit."""
        if self.gap <= SMALLEST_GAP:
            return None
        return replace(self, gap=max(0.1 * self.gap, SMALLEST_GAP), max_epochs=PATIENT_EPOCHS)


@persistable(name="regbayes.LinearHead")
@dataclass(frozen=True)
class LinearHead:
    """Weights of outputs on features, inputs and a constant, for prediction."""

    weights: Floats  # (outputs, K [+ D] [+ 1])
    centre: Floats  # (K,): subtracted from the features
    fit_intercept: bool  # whether the last weight is that of a constant

    def scores(self, features: DeviceArray, inputs: Inputs | None = None) -> DeviceArray:
        """Return the scores of samples on the device of their features, shape (n, outputs)."""
        return Design(features, self.centre, inputs, self.fit_intercept).scores(self.weights).T

    @property
    def feature_weights(self) -> Floats:
        """Weights of the features, shape (outputs, K)."""
        return self.weights[:, : len(self.centre)]


@persistable(name="regbayes.margins.WarmStart")
@dataclass(frozen=True)
class WarmStart:
    """Result of an earlier solve, where available."""

    weights: Floats | None = None  # (outputs, d), as those of a `LinearHead`
    multipliers: Floats | None = None  # multipliers of all targets from coordinate ascent


@dataclass(frozen=True)
class FeatureSums:
    """Total weight of the samples with targets, and the sum of their features."""

    weight: float
    features: Floats  # (K,)

    def __add__(self, other: FeatureSums) -> FeatureSums:
        return FeatureSums(self.weight + other.weight, self.features + other.features)


@persistable(name="regbayes.margins.View")
@dataclass(frozen=True)
class View:
    """Preprocessing of samples by a head."""

    centre: Floats | None  # (K,): subtracted from the features
    smoothing: float  # smoothing of the squared multi-class hinge


@persistable(name="regbayes.margins.Slope")
@dataclass(frozen=True)
class Slope:
    """Quantities of a solved head for the gradient by the features."""

    view: View
    weights: Floats  # (outputs, d), with standard normal prior
    common: Floats | None  # (K,): term of the gradient from centering, for a sample of weight one


@dataclass(frozen=True)
class HeadBlock:
    """Targets and head inputs of a block, on the device of the samples."""

    n_rows: int  # samples with or without targets
    rows: Integers | None  # indices of the samples with targets; None: all
    losses: BlockLosses | None  # squared losses
    inputs: Inputs | None  # inputs of the samples with targets
    weight: float  # total weight of the samples with targets
    row_weights: DeviceArray | None  # weight of each in the mean of the features
    fit_intercept: bool
    scale: float

    def design(self, features: DeviceArray, view: View) -> Design:
        """Return the columns of the samples with targets."""
        seen = features if self.rows is None else features[self.rows]
        return Design(seen, view.centre, self.inputs, self.fit_intercept, self.scale)

    def sum_features(self, features: DeviceArray) -> FeatureSums:
        """Return the sum of the features of the samples with targets."""
        seen = features if self.rows is None else features[self.rows]
        if self.row_weights is not None:
            seen = seen * self.row_weights[:, None]
        return FeatureSums(self.weight, arrays.gather(arrays.sum_of(seen, axis=0))[0])

    def see(self, features: DeviceArray, view: View, factor: float = 1.0) -> MarginRows:
        """Return the samples in the form of Newton's method, with losses times a factor."""
        assert self.losses is not None
        found = self.losses.see(self.design(features, view), view.smoothing)
        return found if factor == 1.0 else found.scale(factor)

    def gradient(self, features: DeviceArray, slope: Slope) -> DeviceArray:
        """Return the derivative of the head's value by the features, by Danskin's theorem, (n, K).

        Features are centered on their own mean, which adds a common term to the gradient of all samples with targets.
        """
        latent = self.scale * slope.weights[:, : features.shape[1]]
        return self.spread(self.see(features, slope.view).pull_back(slope.weights, -latent), slope.common)

    def spread(self, found: DeviceArray, common: Floats | None) -> DeviceArray:
        """Add the common term to values of the samples with targets, and insert zeros for other samples."""
        if common is not None:
            shared = arrays.to_device(common[None], found)
            found += shared if self.row_weights is None else self.row_weights[:, None] * shared
        if self.rows is None:
            return found
        whole = np.zeros((self.n_rows, found.shape[1]))
        whole[self.rows] = found
        return whole


@persistable(name="regbayes.margins.SolvedHead", skip=("problem",))
@dataclass(frozen=True)
class SolvedHead:
    """Solved large-margin problem at given features: head, certificate and gradients.

    Newton's method smooths the multi-class loss; value, gap and gradient are those of the smoothed loss.
    """

    head: LinearHead
    shared: Floats  # (groups, d): common part of the weights of each group
    terms: Mapping[str, float]  # kl_weights: KL divergence of the weights from their prior; margin: the loss
    gap: float  # upper bound on the value minus its minimum
    status: Status
    n_passes: float  # passes over the samples
    slope: Slope
    bias: float = 0.0  # increase of the gap of the exact loss by smoothing
    dual: Floats | None = None  # multipliers of all targets from coordinate ascent
    problem: Head | None = None  # None if the samples are remote

    @property
    def value(self) -> float:
        """The minimum found."""
        return sum(self.terms.values())

    @property
    def warm_start(self) -> WarmStart:
        """Warm start of the next solve."""
        return WarmStart(self.head.weights, self.dual)

    @cached_property
    def _by_row(self) -> Any:
        """Multipliers of the scores of samples with targets as a dense or sparse array, (n, outputs)."""
        assert self.dual is not None
        assert self.problem is not None
        return self.problem.score_multipliers(self.dual)

    def gradient(self, rows: slice, features: DeviceArray) -> DeviceArray:
        """Return the derivative of the value by the features of a slice of samples, (n, K)."""
        assert self.problem is not None
        block = self.problem.block(rows, features)
        if self.dual is None:
            return block.gradient(features, self.slope)
        return block.spread(self._by_row[self.problem.place(rows)] @ -self.head.feature_weights, self.slope.common)


@dataclass(frozen=True)
class Head:
    """Targets of samples with their loss, and the columns of a linear head.

    Parameters
    ----------
    targets : Targets or Cells
        Targets of the labeled samples.
    squared : bool
        Whether losses are squared.
    fit_intercept : bool, default=True
    centred : bool, default=True
        Whether to subtract the mean of the features over samples with targets, if there is an intercept.
    weight_variance : float, default=1.0
        Prior variance of the weights.
    inputs : Inputs, default=None
        Additional columns for all samples.
    rows : (n,), default=None
        Ascending indices of the samples with targets; all by default.
    row_weights : (n,), default=None
        Weights of the samples with targets in the mean of the features. C must already include them.
    groups : (outputs,), default=None
        Outputs of one group share weights ``own + sharing * common``, with standard normal priors.
    sharing : float, default=0.0
    """

    targets: Targets | Cells
    squared: bool
    fit_intercept: bool = True
    centred: bool = True
    weight_variance: float = 1.0
    inputs: Inputs | None = None
    rows: Integers | None = None
    row_weights: Floats | None = None
    groups: Integers | None = None
    sharing: float = 0.0
    _kept: dict[Any, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.rows is not None and np.any(np.diff(self.rows) <= 0):
            raise ValueError("rows must ascend.")

    # --- blocks of samples

    @property
    def mixes(self) -> bool:
        """Whether the outputs of a sample are coupled by a multi-class loss."""
        return isinstance(self.targets, Classes)

    @cached_property
    def is_hard(self) -> bool:
        """Whether some margins must be met: their C is infinite."""
        return bool(np.isinf(np.max(self.targets.C, initial=0.0)))

    @cached_property
    def form(self) -> DualForm:
        """Conjugate of the total loss, in differences to the true class's score or in negative scores."""
        return self.targets.dual_form(self.squared)

    @cached_property
    def prior(self) -> SharedPrior:
        """Prior of the weights in the solvers."""
        return SharedPrior(np.arange(self.targets.n_outputs) if self.groups is None else self.groups, self.sharing)

    @property
    def scale(self) -> float:
        """Factor on all columns that makes the prior of the weights standard normal."""
        return float(np.sqrt(self.weight_variance))

    def n_columns(self, n_features: int) -> int:
        """Return the number of columns of the head, including ``n_features`` features."""
        return n_features + int(self.fit_intercept) + (0 if self.inputs is None else self.inputs.n_columns)

    def place(self, rows: slice) -> slice:
        """Return the slice of the targets of a slice of samples."""
        if self.rows is None:
            return rows
        first, end, _ = rows.indices(int(self.rows[-1]) + 1 if rows.stop is None else rows.stop)
        return slice(*np.searchsorted(self.rows, [first, end]).tolist())

    def blocks(self, lengths: tuple[int, ...], like: DeviceArray = None) -> list[HeadBlock]:
        """Return the targets of blocks of these lengths on the device of an array, cached for a descent."""
        if ("blocks", lengths) not in self._kept:
            slices = [slice(first, end) for first, end in pairwise(np.cumsum([0, *lengths]).tolist())]
            found = [self._make_block(own, self._cut(own), like) for own in slices]
            self._kept["blocks", lengths] = found
            self._kept.update({("block", own.start, own.stop): b for own, b in zip(slices, found, strict=True)})
        return list(self._kept["blocks", lengths])

    def block(self, rows: slice, features: DeviceArray) -> HeadBlock:
        """Return the targets of a slice of samples, on the device of their features."""
        first, end, _ = rows.indices(features.shape[0] if rows.stop is None else rows.stop)
        if ("block", first, end) not in self._kept:
            self._kept["block", first, end] = self._make_block(
                slice(first, end), self._cut(slice(first, end)), features
            )
        found: HeadBlock = self._kept["block", first, end]
        return found

    def _cut(self, rows: slice) -> Targets | Cells:
        targets = self.targets
        return targets.between(rows.start, rows.stop) if isinstance(targets, Cells) else targets.take(self.place(rows))

    def _make_block(self, rows: slice, targets: Any, like: DeviceArray) -> HeadBlock:
        n_rows, place, is_plain = rows.stop - rows.start, self.place(rows), arrays.is_plain(like)
        own = None if self.rows is None else self.rows[place] - rows.start
        weights = None if self.row_weights is None else self.row_weights[place]
        weight = float(len(targets)) if weights is None else float(weights.sum())
        inputs = None if self.inputs is None else self.inputs[rows]
        if own is not None and is_plain and inputs is not None:
            inputs = inputs[own]
        if own is not None and not is_plain:  # samples without targets have zero loss and weight
            targets = targets.spread(own, n_rows)
            there = np.zeros(n_rows)
            there[own] = 1.0 if weights is None else weights
            own, weights = None, there
        losses: BlockLosses | None = None
        if self.squared and not self.is_hard:
            losses = targets.block_losses(whole=not is_plain) if isinstance(targets, Cells) else targets.block_losses()
        if losses is not None and not is_plain:
            losses = replace(losses, losses=losses.losses.place(like))
            weights = None if weights is None else arrays.to_device(weights, like)
        return HeadBlock(n_rows, own, losses, inputs, weight, weights, self.fit_intercept, self.scale)

    def view(self, sums: FeatureSums, smoothing: float) -> View:
        """Return the preprocessing for samples with these sums of features."""
        is_centred = self.fit_intercept and self.centred and sums.weight > 0
        return View(sums.features / sums.weight if is_centred else None, smoothing)

    # --- solvers

    def prefers_ascent(self, features: DeviceArray, tolerance: Tolerance) -> bool:
        """Return whether coordinate ascent is faster, or Newton's method impossible, as with hard margins.

        Newton's method smooths multi-class losses, so coordinate ascent solves them if there are few scores. Newton's
        method solves problems with large C, such as from survey weights, since its steps do not depend on C.
        """
        if not arrays.is_plain(features):
            return False
        n_columns, n_outputs = self.n_columns(features.shape[1]), self.targets.n_outputs
        fits = n_outputs * n_columns <= HEAD_POLICY.max_class_weights
        if not self.mixes:
            fits = n_outputs * n_columns**2 <= HEAD_POLICY.max_curvature
        if not (self.squared and fits) or self.is_hard:
            return True
        if isinstance(self.targets, Numbers) and self.targets.epsilon == 0.0:
            return False  # one Newton step is exact
        if len(self.targets) * n_outputs > HEAD_POLICY.max_ascent_scores:
            return False
        is_rough = self.mixes or tolerance.max_epochs <= HEAD_POLICY.max_ascent_epochs
        C = self.targets.C
        return is_rough and float(np.sum(C)) <= HEAD_POLICY.max_ascent_penalty * np.size(C)

    def solve(
        self,
        features: DeviceArray | Sequence[DeviceArray],
        warm_start: WarmStart | None,
        tolerance: Tolerance,
        executor: Executor | None = None,
    ) -> SolvedHead:
        """Solve for the weights at the features of all samples (N, K), which may come in blocks.

        Parameters
        ----------
        features : array, or sequence of them
            Features as arrays of one library.
        warm_start : WarmStart or None
        tolerance : Tolerance
        executor : Executor, default=None
            Executes the blocks.
        """
        blocks: list[Any] = [features] if hasattr(features, "shape") else list(features)
        if not self.prefers_ascent(blocks[0], tolerance):
            return self.minimize(blocks, warm_start, tolerance, executor)
        return self.ascend(blocks, warm_start, tolerance)

    def ascend(self, blocks: Sequence[Reals], warm_start: WarmStart | None, tolerance: Tolerance) -> SolvedHead:
        """Solve by dual coordinate ascent on one array of the columns of all samples."""
        parts = self.blocks(tuple(map(len, blocks)))
        pairs = list(zip(parts, blocks, strict=True))
        sums = Serial().map_reduce(lambda pair: pair[0].sum_features(pair[1]), pairs)
        view = self.view(sums, 0.0)
        columns = stack_designs([part.design(block, view) for part, block in pairs])
        start = None if warm_start is None else warm_start.multipliers
        problem: Any
        if isinstance(self.form, SimplexDual):
            assert isinstance(self.targets, Classes)
            problem = SimplexAscent(columns, self.form, self.targets.labels, start)
        else:
            problem = BoxAscent(columns, self.form, self._layout, None if start is None else start.ravel())
        found = ascend(problem, tolerance.gap, tolerance.max_epochs, seed=0)
        certificate: dict[str, Any] = {"gap": found.gap, "status": found.status, "n_passes": found.n_epochs}
        dual = found.dual if isinstance(self.targets, Cells) else found.dual.reshape(len(self.targets), -1)
        totals = None if view.centre is None else np.ravel(self.score_multipliers(dual).sum(axis=0))
        return self._solved(found.weights, found.primal, view, sums, totals, **certificate, dual=dual, problem=self)

    def score_multipliers(self, dual: Floats) -> Any:
        """Return the multipliers of the scores, (n, outputs): those of a simplex are positive for the true class."""
        if isinstance(self.targets, Cells):
            return self.targets.by_row(dual)
        if not isinstance(self.targets, Classes):
            return dual
        phi = -dual
        phi[np.arange(len(phi)), self.targets.labels] += dual.sum(axis=1)
        return phi

    @cached_property
    def _layout(self) -> TaskLayout:
        """Layout of the scores, target by target."""
        targets = self.targets
        if isinstance(targets, Cells):
            return TaskLayout(targets.cells.rows, targets.cells.outputs, self.prior.group, self.sharing)
        rows, outputs = (index.ravel() for index in np.indices((len(targets), targets.n_outputs)))
        return TaskLayout(rows, outputs, self.prior.group, self.sharing)

    def minimize(
        self,
        blocks: Sequence[DeviceArray],
        warm_start: WarmStart | None,
        tolerance: Tolerance,
        executor: Executor | None = None,
    ) -> SolvedHead:
        """Solve by Newton's method on blocks of samples."""
        executor = executor or Serial()
        parts = self.blocks(tuple(int(block.shape[0]) for block in blocks), blocks[0])
        pairs = list(zip(parts, blocks, strict=True))
        sums = executor.map_reduce(lambda pair: pair[0].sum_features(pair[1]), pairs)
        view, n_features = self.view(sums, tolerance.smoothing), blocks[0].shape[1]

        def sample(level: int) -> list[Rows] | None:
            n_drawn = self.n_sampled(level, n_features)
            if 2 * n_drawn > len(self.targets):
                return None
            drawn, seen, first = np.sort(self._order[:n_drawn]), [], 0
            among = drawn if self.rows is None or arrays.is_plain(blocks[0]) else self.rows[drawn]
            for part, block in pairs:
                n_own = part.n_rows if part.rows is None else len(part.rows)
                own = among[slice(*np.searchsorted(among, [first, first + n_own]))] - first
                seen.append(part.design(block, view)[own])
                first += n_own
            return self.sample_rows(stack_designs(seen), drawn, view, n_drawn / len(self.targets))

        rows: list[Any] = [part.see(block, view) for part, block in pairs]
        found = self._minimize(rows, sums, view, sample, warm_start, tolerance, executor)
        return replace(found, problem=self)

    def solve_sums(
        self,
        map_sum: Callable[..., Any],
        sums: FeatureSums,
        sample: Callable[[int, View], list[Rows] | None],
        warm_start: WarmStart | None,
        tolerance: Tolerance,
    ) -> SolvedHead:
        """Solve by Newton's method on remote samples.

        Parameters
        ----------
        map_sum : callable
            ``map_sum(what, view, factor, *at)`` is the sum over all blocks of ``getattr(rows, what)(*at)``, where
            ``rows`` is `HeadBlock.see` for this view and factor.
        sums : FeatureSums
            Sums of all samples.
        sample : callable
            Maps a level and a view to the subsample for the curvature (`sample_rows`), or to None for all samples.
        warm_start, tolerance
            As in `solve`.
        """
        view = self.view(sums, tolerance.smoothing)
        rows = RemoteRows(map_sum, view, self.mixes)
        return self._minimize([rows], sums, view, lambda level: sample(level, view), warm_start, tolerance, Serial())

    def n_sampled(self, level: int, n_features: int) -> int:
        """Return the number of samples for the curvature."""
        per_column = self.targets.n_outputs if self.mixes else 1.0 / self._least_share
        return int(HEAD_POLICY.sample_per_weight * self.n_columns(n_features) * per_column * 2**level)

    @cached_property
    def _least_share(self) -> float:
        """Smallest share of samples among the outputs."""
        if not isinstance(self.targets, Cells):
            return 1.0
        counts = np.diff(self.targets.observed.edges(self.targets.n_outputs))
        return float(counts[counts > 0].min()) / len(self.targets)

    @cached_property
    def _order(self) -> Integers:
        """Order of the targets in which every prefix is stratified by class."""
        targets = self.targets
        kinds = targets.labels if isinstance(targets, Classes) else None
        return order_sample(targets.signs.argmax(1) if isinstance(targets, Signs) else kinds, len(targets))

    def sample_rows(self, columns: DeviceArray, drawn: Integers, view: View, share: Any) -> list[Rows]:
        """Return a subsample scaled to represent all samples, in pieces for threads.

        Parameters
        ----------
        columns : (n, d)
            Columns of the subsample.
        drawn : (n,)
            Ascending indices of its targets.
        view : View
        share : float, or (outputs,)
            Fraction of all targets in the subsample.
        """
        key = "sample", len(drawn)
        if key not in self._kept:
            cuts = row_blocks(len(drawn)) if arrays.is_plain(columns) else [slice(0, len(drawn))]
            plain = replace(self, inputs=None, rows=None, row_weights=None)
            self._kept[key] = [
                (own, plain._make_block(slice(0, own.stop - own.start), self.targets.take(drawn[own]), columns))
                for own in cuts
            ]
        factor = 1.0 / share
        pieces = [(part.losses, Design(columns)[own]) for own, part in self._kept[key]]
        return [losses.see(design, view.smoothing).scale(factor) for losses, design in pieces]

    def _minimize(
        self,
        rows: Sequence[Rows],
        sums: FeatureSums,
        view: View,
        sample: Sample,
        warm_start: WarmStart | None,
        tolerance: Tolerance,
        executor: Executor,
    ) -> SolvedHead:
        start = np.zeros((self.targets.n_outputs, self.n_columns(len(sums.features))))
        if warm_start is not None and warm_start.weights is not None and warm_start.weights.shape == start.shape:
            start = warm_start.weights / self.scale
        found: NewtonSolution = minimize(
            rows,
            self.prior,
            start,
            tol=tolerance.gap,
            max_passes=max(tolerance.max_epochs, MIN_PASSES),
            executor=executor,
            sample=sample,
        )
        totals = None if view.centre is None else found.pulled[:, -1] / self.scale
        certificate = {"gap": found.gap, "bias": found.bias, "status": found.status, "n_passes": found.n_passes}
        return self._solved(found.weights, found.value, view, sums, totals, **certificate)

    def _solved(
        self, weights: Floats, value: float, view: View, sums: FeatureSums, totals: Floats | None, **certificate: Any
    ) -> SolvedHead:
        """Return the solution for weights in the scale of the standard normal prior."""
        penalty = 0.5 * float(np.vdot(self.prior.precision(weights), weights))
        centre = np.zeros(len(sums.features)) if view.centre is None else view.centre
        head = LinearHead(self.scale * weights, centre, self.fit_intercept)
        common = None if totals is None else totals @ head.feature_weights / sums.weight
        terms = {"kl_weights": penalty, "margin": value - penalty}
        shared = self.scale * self.prior.shared(weights)
        return SolvedHead(head=head, shared=shared, terms=terms, slope=Slope(view, weights, common), **certificate)


@dataclass(frozen=True)
class RemoteRows:
    """All remote samples as one block of Newton's method, evaluated by ordered sums."""

    map_sum: Callable[..., Any]
    view: View
    mixes: bool
    factor: float = 1.0

    def sums(self, weights: Floats) -> Any:
        """Evaluate the samples at given weights."""
        return self.map_sum("sums", self.view, self.factor, weights)

    def curvature(self, weights: Floats) -> Any:
        """Return the loss's second derivative over all samples."""
        return self.map_sum("curvature", self.view, self.factor, weights)

    def product(self, weights: Floats, direction: Floats) -> Floats:
        """Return the loss's second derivative times a direction."""
        found: Floats = self.map_sum("product", self.view, self.factor, weights, direction)
        return found

    def scale(self, factor: float) -> RemoteRows:
        """Return the samples with losses times a factor."""
        return replace(self, factor=factor)
