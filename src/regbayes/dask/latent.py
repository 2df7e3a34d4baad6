"""`ILSVMClassifier` and `IBPFactorAnalysis` over rows on a cluster."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial, reduce
from operator import add
from typing import Any, ClassVar, Self

import dask.array as da
import numpy as np
from numpy.typing import NDArray
from sklearn.base import _fit_context
from sklearn.callback import with_callbacks

from regbayes._types import Floats
from regbayes.dask._bases import (
    START_ROWS,
    Labels,
    Moments,
    OnCluster,
    OnClusterLearner,
    Start,
    code_labels,
    find_probability_range,
    find_range,
    fit_rows,
    fit_start,
    in_memory,
    lazily,
    sample_size,
    survey_blocks,
)
from regbayes.dask.blocks import DaskBlocks
from regbayes.dask.rows import READ_ROWS, draw_sample, join_columns
from regbayes.engine import AbsoluteChange
from regbayes.engine.source import Samples, Strata
from regbayes.estimators import ibp, ilsvm
from regbayes.estimators._bases import (
    CUT_SHORT,
    cost_matrix,
    fit_data,
)
from regbayes.estimators.ilsvm import make_settings, make_supervision
from regbayes.joint import descent
from regbayes.joint.problem import JointProblem, RowBlock, SampledHead
from regbayes.margins.head import MAX_ASCENT_SCORES, Tolerance
from regbayes.models.ilsvm.fit import pad_state
from regbayes.models.ilsvm.model import (
    FINAL,
    PATIENCE,
    UNLABELED,
    BinaryFeatures,
    Data,
    ILSVMProblem,
    Params,
    Rows,
    Settings,
    State,
    Stats,
    build_head,
    centre_rows,
)
from regbayes.models.ilsvm.slab import SlabFeatures, convert_params
from regbayes.models.ilsvm.starts import drop_empty

NO_COST = np.zeros((1, 1))


# --- on the workers


@dataclass(frozen=True)
class Recipe:
    """All that makes a block of the model's rows from a block as it was read."""

    mean: Floats  # (D,)
    settings: Settings
    cost: Floats  # (classes, classes)
    supervised: bool
    classes: NDArray[Any] | None = None
    by_class: Floats | None = None  # (classes,): factors on C
    unlabeled: Any = None

    def data(self, block: Samples) -> Data:
        """Return rows and what is known of them."""
        counts = np.ones(len(block)) if block.weights is None else block.weights
        labels = np.full(len(block), UNLABELED, dtype=np.int64)
        if self.classes is not None:
            assert self.by_class is not None
            labels = code_labels(block, self.classes, self.unlabeled, UNLABELED)
            counts = counts * np.where(labels == UNLABELED, 1.0, self.by_class[labels])
        return Data(centre_rows(block.X, self.mean, block.weights), labels, counts, self.cost)


def hold(block: Samples, recipe: Recipe) -> RowBlock[Rows]:
    """Return rows as the model takes them, in pieces, with what is asked of them."""
    data = recipe.data(block)
    pieces = data.X.blocks()
    lengths = tuple(map(len, pieces))
    head = build_head(data, recipe.settings).blocks(lengths, data.X.X) if recipe.supervised else None
    return RowBlock(pieces, lengths, head)


def survey(block: Samples, labeled: bool, unlabeled: Any) -> tuple[int, Moments, Labels | None]:
    """Say how many rows a block has, and sum up what they are."""
    moments = Moments.of(block.X, block.weights)
    return len(block), moments, Labels.of(block, unlabeled) if labeled else None


# --- on the client


@dataclass(frozen=True)
class Learning:
    """The descent over all rows."""

    problem: JointProblem[Rows, Params, Stats]
    settings: Settings

    def finish(self, search: descent.Search[Params, Stats], tolerance: Tolerance | None = FINAL) -> State:
        """Solve for the head once more; no tolerance: as it is. Of all rows' features the extremes stand for them."""
        at, settings = search.at, self.settings
        params = replace(at.params, temperature=settings.temperature)
        found, inference = self.problem.evaluate(params, at.warm_start, tolerance or Tolerance(1.0, 0.0))
        shared = inference.shared
        features = self.problem.blocks.map_sum(find_range, shared).array()
        on = self.problem.blocks.map_sum(find_probability_range, shared).array() if settings.slab else None
        head = None if found.head is None else found.head.head
        return pad_state(State(params, features, head, None, settings.input_scale, on), settings)


class OnClusterFeatures(OnCluster):
    """Binary features of rows on a cluster, with labels or without."""

    def _fit_rows(self, X: Any, y: Any, sample_weight: Any, client: Any) -> Self:
        rows = self._place(client, READ_ROWS, X, y, sample_weight)
        lengths, moments, labels = self._survey(rows, y is not None)
        recipe = self._recipe(moments, labels)
        settings = recipe.settings
        sample = self._draw(rows, lengths, labels, recipe)
        start = self._start_from(sample, recipe)
        settings = settings.follow(start.params)
        recipe = replace(recipe, settings=settings)
        held = rows.change(hold, [(recipe,) if length else None for length in lengths])
        del rows  # what was read lives on in what is held
        learning = Learning(_make_problem(held, sample, recipe, labels, moments), settings)

        def attributes(state: State) -> dict[str, Any]:
            found = self._attributes(state)
            nothing = np.empty((0, settings.n_components))
            for of_all_rows in ("embedding_", "probabilities_"):
                found.pop(of_all_rows, None)
            on = None if state.probabilities is None else nothing
            return found | {"_state": replace(state, embedding=nothing, probabilities=on)}

        self.mean_ = recipe.mean
        with self._fitting(attributes, {"descent": settings.max_iter}, fit_data(X, y), self.verbose) as reporter:
            reporter.result = fit_rows(
                learning.problem,
                start,
                learning.finish,
                max_iter=settings.max_iter,
                stop=AbsoluteChange(settings.tol * _unit(recipe, moments, labels), PATIENCE),
                reporter=reporter,
                stage="descent",
            )
            if reporter.result.state is start.state:
                self.mean_ = start.local.mean_
            result, model = reporter.result, learning.problem.model
            assert isinstance(model, BinaryFeatures)
            self.objective_ = model.normalise(result.objective, drop_empty(result.state.params), moments.weight)
        self.n_samples_seen_ = float(moments.weight)  # of which no features are kept that could be counted
        if reporter.result.status not in CUT_SHORT:  # the number of features is not to be judged by half a fit
            self._judge_features(recipe.data(sample), settings)
        return self

    feature_probabilities = lazily(ilsvm.ILSVMClassifier.feature_probabilities)

    def _survey(self, rows: DaskBlocks, labeled: bool) -> tuple[list[int], Moments, Labels | None]:
        unlabeled = getattr(self, "unlabeled", None)
        lengths, moments, labels = zip(*survey_blocks(rows, survey, labeled, unlabeled)[0], strict=True)
        if sum(lengths) < 2:
            raise ValueError(f"X has {sum(lengths)} row(s) that count, and a minimum of 2 is required")
        joined = reduce(add, moments)
        with np.errstate(over="ignore", invalid="ignore"):
            square = float(joined.squares.sum() / joined.weight)
        if not np.isfinite(square):
            raise ValueError("X is too large to square it: give it in other units")
        found = None
        if labeled:
            found = reduce(add, labels)
            found.check(self, unlabeled)
        return list(lengths), joined, found

    def _recipe(self, moments: Moments, labels: Labels | None) -> Recipe:
        mean_square, D = float(moments.squares.sum() / moments.weight), len(moments.mean)
        parameters = self.get_params(deep=False)
        if labels is None:
            settings = ibp.make_unsupervised_settings(parameters, mean_square, D)
            return Recipe(moments.mean, settings, NO_COST, supervised=False)
        share = 1.0 - labels.rest_weight / moments.weight
        # Newton's method solves for the weights however few the samples are.
        supervision = make_supervision(parameters, len(labels.classes), share, MAX_ASCENT_SCORES)
        self.classes_ = labels.classes
        self.multi_class_ = "ovr" if supervision.one_vs_rest else "crammer_singer"
        return Recipe(
            moments.mean,
            make_settings(parameters, mean_square, D, supervision),
            cost_matrix(self.cost, len(labels.classes)),
            supervised=supervision.C > 0,
            classes=labels.classes,
            by_class=labels.weights_by_class(self.class_weight),
            unlabeled=self.unlabeled,
        )

    def _draw(self, rows: DaskBlocks, lengths: list[int], labels: Labels | None, recipe: Recipe) -> Samples:
        """Bring a sample here, in an order of which every beginning is a sample."""
        settings, D = recipe.settings, len(recipe.mean)
        n_columns = settings.n_components + 1 + (D if settings.input_scale else 0)
        if labels is None:
            strata, n_outputs = Strata.alone(sum(lengths)), 1
        else:
            n_outputs = len(labels.classes)
            kinds_of = partial(code_labels, classes=labels.classes, unlabeled=recipe.unlabeled, rest=n_outputs)
            strata = Strata(np.append(labels.counts, labels.n_rest), kinds_of)
        wanted = sample_size(n_columns, n_outputs, not settings.one_vs_rest, 8.0 * D)
        return draw_sample(rows, lengths, strata, wanted)

    def _start_from(self, sample: Samples, recipe: Recipe) -> Start:
        """Return where the descent starts: at the plain estimator's fit of a sample, or at an earlier fit of this."""
        settings, previous = recipe.settings, getattr(self, "_state", None) if self.warm_start else None
        start, mean = Start(None), getattr(self, "mean_", recipe.mean)
        if previous is None or previous.params.loadings.shape != (settings.n_components, len(recipe.mean)):
            local = self._plain(**self.get_params(deep=False))
            interrupted = fit_start(local, sample.take(slice(START_ROWS)))
            previous, mean = local._state, local.mean_
            start = Start(None, local, previous, interrupted)
        settings = settings.follow(previous.params)
        params = drop_empty(convert_params(previous.params, settings))
        noise = params.noise_variance if settings.estimate_noise else settings.noise_variance
        prior = params.prior_variance if settings.estimate_prior else settings.prior_variance
        changed = {
            "noise_variance": noise,
            "noise_ratios": settings.noise_ratios,
            "prior_variance": prior,
            "temperature": settings.temperature,
        }
        offset = params.offset + mean - recipe.mean  # the same, above the mean of all rows
        return replace(start, params=replace(params, **changed, offset=offset, n_sweeps=settings.n_sweeps))


def _make_problem(
    held: DaskBlocks, sample: Samples, recipe: Recipe, labels: Labels | None, moments: Moments
) -> JointProblem[Rows, Params, Stats]:
    """Return the descent problem over all rows; the sample has those of its rows that have a label."""
    n_all = int(moments.weight)
    if labels is not None:
        labeled = recipe.data(sample).labels != UNLABELED
        sample = sample if labeled.all() else sample.take(np.flatnonzero(labeled))
        n_all = int(labels.counts.sum())
    kind = SlabFeatures if recipe.settings.slab else BinaryFeatures
    local = ILSVMProblem(recipe.data(sample), replace(recipe.settings, C=0.0), kind).joint  # of it no margins
    below = recipe.settings.tol * _unit(recipe, moments, labels)
    options = replace(local.options, blocks_below=below if np.isfinite(local.options.blocks_below) else -np.inf)
    head = None
    if recipe.supervised:
        here = build_head(recipe.data(sample), recipe.settings)
        head = SampledHead(here, hold(sample, recipe), min(len(sample) / n_all, 1.0))
    return JointProblem(local.model, held, head, options)


def _unit(recipe: Recipe, moments: Moments, labels: Labels | None) -> float:
    """Return what one unit of every labelled row's loss is worth in J, as `ILSVMProblem.unit`."""
    settings = recipe.settings
    nat = settings.generative_weight / settings.temperature * moments.weight
    return nat if labels is None else max(nat, settings.C * float(labels.weights @ recipe.by_class))


class ILSVMClassifier(OnClusterFeatures, OnClusterLearner, ilsvm.ILSVMClassifier):
    """`regbayes.ILSVMClassifier` over rows on the workers of a Dask cluster.

    Parameters and fitted attributes are those of the plain estimator, but there is no ``embedding_``: `transform` gives
    it, lazily. The fit starts at that of a sample, on the client; then every step sees all rows, where they are.
    ``loss="hinge"``, ``margins="posterior"`` and ``transductive=True`` keep something of every row in one place and
    are not for a cluster.

    Examples
    --------
    >>> from dask.array import from_array
    >>> from distributed import Client
    >>> from regbayes.dask import ILSVMClassifier
    >>> client = Client()  # doctest: +SKIP
    >>> model = ILSVMClassifier(n_components=20).fit(X, y)  # doctest: +SKIP
    >>> model.predict(X).compute()  # doctest: +SKIP
    """

    _plain: ClassVar[type[Any]] = ilsvm.ILSVMClassifier
    _refused: ClassVar[dict[str, tuple[Any, str]]] = {
        "loss": ("hinge", 'it needs multipliers of all rows in one place. Use loss="squared_hinge"'),
        "margins": ("posterior", 'it keeps the features of all rows. Use margins="consistent"'),
        "transductive": (
            True,
            "guessed labels are kept for all rows. Use unlabeled= alone, or fit the plain estimator on a part",
        ),
    }

    predict = lazily(ilsvm.ILSVMClassifier.predict)
    decision_function = lazily(ilsvm.ILSVMClassifier.decision_function)
    transform = lazily(ilsvm.ILSVMClassifier.transform)
    partial_fit = in_memory(ilsvm.ILSVMClassifier.partial_fit)
    fit_weights = in_memory(ilsvm.ILSVMClassifier.fit_weights)

    def _check_refused(self) -> None:
        super()._check_refused()
        if self.cost is not None and self.multi_class == "ovr":
            raise ValueError('cost is for multi_class="crammer_singer": margins against the rest know no wrong answers')


class IBPFactorAnalysis(OnClusterFeatures, ibp.IBPFactorAnalysis):
    """`regbayes.IBPFactorAnalysis` over rows on the workers of a Dask cluster.

    Parameters and fitted attributes are those of the plain estimator, but there is no ``embedding_``: `transform` gives
    it, lazily.
    """

    _plain: ClassVar[type[Any]] = ibp.IBPFactorAnalysis
    transform = lazily(ibp.IBPFactorAnalysis.transform)
    score_samples = lazily(ibp.IBPFactorAnalysis.score_samples)
    partial_fit = in_memory(ibp.IBPFactorAnalysis.partial_fit)

    @with_callbacks
    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any = None, sample_weight: Any = None, client: Any = None) -> Self:
        """Learn the features of rows.

        Parameters
        ----------
        X : dask array or DataFrame of shape (n_samples, n_features)
            Blocks of PyTorch or CuPy stay on their devices.
        y : ignored
        sample_weight : dask array or Series of shape (n_samples,), default=None
            How often each row counts.
        client : distributed.Client, default=None
            The default client, if none is given.

        Returns
        -------
        self
        """
        with self._workers_of(client) as found:
            return self._fit_rows(X, None, sample_weight, found)

    def inverse_transform(self, X: Any) -> Any:
        """Return the expected rows given their features, which may be lazy too, shape (n_samples, n_features)."""
        if not isinstance(X, da.Array):
            return super().inverse_transform(X)
        return join_columns(X) @ self._state.params.loadings + self.offset_

    def score(self, X: Any, y: Any = None) -> float:
        """Return the mean of `score_samples`."""
        return float(np.mean(np.asarray(self.score_samples(X))))
