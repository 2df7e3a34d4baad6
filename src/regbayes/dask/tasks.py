"""`MultiTaskILSVMClassifier` and `MultiTaskILSVMRegressor` on a Dask cluster.

The generative part needs only ``X^T X``, a sum over blocks, so the initialization equals that of a fit in memory. Only
the SVM subproblem visits the samples.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import pairwise
from operator import add
from typing import Any, ClassVar, Self

import dask
import numpy as np
from numpy.typing import NDArray
from sklearn.base import _fit_context, is_classifier
from sklearn.callback import with_callbacks
from sklearn.utils.multiclass import check_classification_targets

from regbayes._types import Floats, Integers
from regbayes.dask._bases import OnCluster, sample_size
from regbayes.dask.source import DaskSource, Reader, is_collection, read_missing
from regbayes.engine.source import Ranges, Samples, Strata, cut_rows
from regbayes.estimators import multitask
from regbayes.estimators._bases import one_blas_thread
from regbayes.estimators._labels import (
    Labels,
    check_two,
    class_factors,
    complete_classes,
    observe_labels,
    scores_of_tasks,
)
from regbayes.estimators._sources import Moments, Spread, join_classes, read_numbers
from regbayes.estimators._task_bases import Layout, Targets, column_names, find_targets, natural
from regbayes.estimators.metrics import explained_variance_pooled, subset_accuracy
from regbayes.joint.descent import DescentOptions
from regbayes.joint.model import RowSums
from regbayes.joint.problem import RowBlock, SampledHead
from regbayes.kernels.arrays import take_rows, to_device
from regbayes.margins.targets import Observations, Outputs, observe_numbers
from regbayes.models.mt_ilsvm import model as mt_ilsvm
from regbayes.models.mt_ilsvm.fit import Problem, build_head, first_model
from regbayes.models.mt_ilsvm.model import Settings

# --- summaries


@dataclass(frozen=True)
class Kinds:
    """The tasks of a block and their classes."""

    layout: Layout
    ids: NDArray[Any]
    classes: tuple[NDArray[Any], ...]  # classes per column of a matrix, or of all tasks together; empty for regression

    def __add__(self, other: Kinds) -> Kinds:
        ids = self.ids
        if self.layout == "ragged":
            ids = join_classes(self.ids, other.ids, "task has")
        elif len(self.ids) != len(other.ids):
            raise ValueError(f"y has {len(self.ids)} columns in some blocks and {len(other.ids)} in others")
        return Kinds(self.layout, ids, tuple(map(join_classes, self.classes, other.classes)))


def find_kinds(block: Samples, recipe: Recipe) -> Kinds:
    """Return the tasks of a block and their classes."""
    targets = recipe.targets(block)
    columns = [] if recipe.numeric else recipe.split(targets)
    for values in filter(len, columns):
        check_classification_targets(values)
    return Kinds(recipe.layout, targets.ids, tuple(map(np.unique, columns)))


def spread_of_inputs(block: Samples) -> Spread:
    """Return moments and ranges of the columns of a block."""
    return Spread(Moments.of_block(block), Ranges.of([block.X]))


# --- blocks of samples


@dataclass(frozen=True)
class Recipe:
    """Parameters for converting a validated block to samples of the model."""

    layout: Layout
    numeric: bool
    unlabeled: Any = None
    ids: NDArray[Any] | None = None  # names of the tasks; None: those of each block
    mean: Any = None  # (D,)
    scale: Any = None  # (D,)
    target_units: tuple[Floats, Floats] | None = None  # mean and scale of the targets of each task
    classes: list[NDArray[Any]] | None = None  # classes of each task
    factors: Floats | None = None  # factors of C for each class of each task
    cost: Any = None
    settings: Settings = field(default_factory=Settings)
    input_scale: float = 1.0

    def standardize(self, X: Any) -> Any:
        """Return standardized samples."""
        return (X - to_device(self.mean, X)) / to_device(self.scale, X)

    def targets(self, block: Samples) -> Targets:
        """Return the observed targets of a block, with global task numbers."""
        assert block.y is not None
        values = read_numbers(block).reshape(block.y.shape) if self.numeric else block.y
        found = find_targets(values, block.task, self.unlabeled)
        if self.layout != "ragged" or self.ids is None:
            return found
        return replace(found, ids=self.ids, tasks=np.searchsorted(self.ids, found.ids)[found.tasks])

    def split(self, targets: Targets) -> list[NDArray[Any]]:
        """Return the labels of each column of a matrix, or of all tasks together."""
        if self.layout != "matrix":
            return [natural(targets.values, "y")]
        edges = np.searchsorted(targets.tasks, np.arange(len(targets.ids) + 1))
        return [natural(targets.values[first:end], "a column of y") for first, end in pairwise(edges)]

    def labels(self, targets: Targets) -> Labels:
        """Encode labels as indices into the classes of their task."""
        assert self.classes is not None
        pairs = zip(self.classes, self.split(targets), strict=False)
        codes = [np.searchsorted(classes, values) for classes, values in pairs]
        return Labels(self.classes, np.concatenate(codes).astype(np.int64))

    def observe(self, targets: Targets, weights: Floats | None = None) -> tuple[Observations, Outputs]:
        """Return the observations of the model, multiplied by the sample weights."""
        if self.target_units is None:
            observed, outputs = observe_labels(targets, self.labels(targets), self.factors, self.cost)
        else:
            mean, scale = (part[targets.tasks] for part in self.target_units)
            values = (targets.values - mean) / scale
            observed, outputs = observe_numbers(targets.rows, targets.tasks, values, len(self.ids))
        if weights is not None:
            observed = replace(observed, weights=weights[observed.rows] * observed.weights)
        return observed, outputs

    @property
    def outputs(self) -> Outputs:
        """Description of the outputs."""
        nothing = np.zeros(0, dtype=np.int64)
        values = np.zeros(0) if self.classes is None else self.classes[0][:0]
        return self.observe(Targets(self.layout, self.ids, nothing, nothing, values))[1]


def spread_of_numbers(block: Samples, recipe: Recipe) -> Spread:
    """Return moments and ranges of the targets of each task."""
    targets = recipe.targets(block)
    weights = None if block.weights is None else block.weights[targets.rows]
    return Spread.of_groups(targets.values, targets.tasks, weights, len(recipe.ids))


def count_targets(block: Samples, recipe: Recipe) -> Integers:
    """Count the observed targets of each task."""
    return recipe.targets(block).counts


def count_labels(block: Samples, recipe: Recipe) -> Floats:
    """Return the total weight of the labels of each class and task."""
    targets = recipe.targets(block)
    return recipe.labels(targets).count(targets, block.weights)


def sum_moments(block: Samples, recipe: Recipe) -> mt_ilsvm.Moments:
    """Return the moments of a block for the generative part."""
    return replace(mt_ilsvm.sum_moments(recipe.standardize(block.X), block.weights), there=None)


@dataclass(frozen=True)
class Counts(RowSums):
    """Numbers of observations."""

    total: float  # total weight of the observations
    by_output: Integers


def count_observations(block: Samples, recipe: Recipe) -> Counts:
    """Count the observations of a block."""
    observed, outputs = recipe.observe(recipe.targets(block))
    total = len(observed) if block.weights is None else block.weights[observed.rows].sum()
    return Counts(float(total), np.bincount(observed.outputs, minlength=len(outputs)))


def hold(block: Samples, recipe: Recipe) -> RowBlock[Any] | None:
    """Return the standardized samples with targets, sorted by task."""
    targets = recipe.targets(block)
    if recipe.layout == "ragged":
        order = targets.rows[np.argsort(targets.tasks, kind="stable")]
    else:
        order = np.unique(targets.rows)
    if not len(order):
        return None
    place = np.zeros(len(block), dtype=np.int64)
    place[order] = np.arange(len(order))
    observed, outputs = recipe.observe(targets, block.weights)
    X = take_rows(block.X, order)  # a copy that may be modified
    X -= to_device(recipe.mean, X)
    X /= to_device(recipe.scale, X)
    observed = replace(observed, rows=place[observed.rows])
    head = build_head(recipe.settings, observed, outputs, X, recipe.input_scale)
    pieces = [X[rows, :] for rows in cut_rows(X, wide=True)]
    lengths = tuple(int(piece.shape[0]) for piece in pieces)
    return RowBlock(pieces, lengths, head.blocks(lengths, X))


# --- estimators


@dataclass
class Placed:
    """Samples on workers and their summaries."""

    source: DaskSource
    recipe: Recipe
    data: dict[str, Any]


class OnClusterTasks(OnCluster):
    """Base of multi-task estimators on a cluster."""

    def _make_reader(self, n_columns: int, y: Any) -> Reader:
        return Reader(n_columns, targets=read_missing)

    @with_callbacks
    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any, task: Any = None, sample_weight: Any = None, client: Any = None) -> Self:
        """Fit to samples on the workers of a Dask cluster.

        Parameters
        ----------
        X : dask array or DataFrame of shape (n_samples, n_features)
            Chunks of PyTorch or CuPy stay on their devices.
        y : dask array, Series or DataFrame of shape (n_samples, n_tasks) or (n_samples,)
            Targets with NaN or None for missing values: one column per task, or one value per sample with ``task``. A
            vector without ``task`` is a single task.
        task : dask array or Series of shape (n_samples,), default=None
            Task of each sample.
        sample_weight : dask array or Series of shape (n_samples,), default=None
            Sample weights.
        client : distributed.Client, default=None
            Dask client; by default the current one.

        Returns
        -------
        self
        """
        return self._fit(X, y, sample_weight, task, client)

    def _fit_source(self, source: DaskSource, data: dict[str, Any]) -> None:
        y, ragged = data["y"], "task" in data.get("metadata", {})
        layout: Layout = "ragged" if ragged else "single" if getattr(y, "ndim", 1) == 1 else "matrix"
        recipe = Recipe(layout, not is_classifier(self), getattr(self, "unlabeled", None))
        kinds: Kinds = source.summarize(find_kinds, recipe)
        if layout == "matrix":
            kinds = replace(kinds, ids=column_names(getattr(y, "columns", ()), len(kinds.ids)))
        spread: Spread = source.summarize(spread_of_inputs)
        if not np.all(np.isfinite(spread.moments.squares)):
            raise ValueError("X is too large to square it: give it in other units")
        self.mean_, self.scale_ = spread.measure(self.scale_inputs)
        recipe = replace(recipe, ids=kinds.ids, mean=self.mean_, scale=self.scale_)
        counts: Integers = source.summarize(count_targets, recipe)
        if not counts.any():
            raise ValueError("y has no observed target: every value is missing")
        nothing, of_each = np.zeros(0, dtype=np.int64), np.flatnonzero(counts)
        self._check_tasks(Targets(layout, kinds.ids, nothing, of_each, nothing))
        recipe = self._read_recipe(source, recipe, kinds)
        self.tasks_, self._layout, self._outputs = kinds.ids, layout, recipe.outputs
        with one_blas_thread():
            self._learn(Placed(source, recipe, data))

    def _read_recipe(self, source: DaskSource, recipe: Recipe, kinds: Kinds) -> Recipe:
        """Return the recipe with the parameters of the targets."""
        raise NotImplementedError

    def _prepare(self, problem: Any, settings: Settings) -> Problem:
        placed: Placed = problem
        source, recipe = placed.source, replace(placed.recipe, settings=settings)
        moments: mt_ilsvm.Moments = source.summarize(sum_moments, recipe)
        recipe = replace(recipe, input_scale=float(np.sqrt(moments.mean_square)))
        D, n_tasks, ragged = len(recipe.mean), len(recipe.ids), recipe.layout == "ragged"
        n_columns = settings.n_components + settings.fit_intercept + settings.include_inputs * D
        sample = source.sample(sample_size(n_columns, n_tasks, ragged, 8.0 * D), Strata.alone(len(source)))
        (observed, outputs), X = recipe.observe(recipe.targets(sample), sample.weights), recipe.standardize(sample.X)
        counts: Counts = source.summarize(count_observations, recipe)
        drawn = np.bincount(observed.outputs, minlength=len(outputs))
        share = np.maximum(drawn, 1) / np.maximum(counts.by_output, 1)
        head = build_head(settings, observed, outputs, X, recipe.input_scale)
        return Problem(
            first_model(settings, moments, counts.total),
            source.persist(hold, recipe),
            SampledHead(head, RowBlock([X], (len(X),)), share),
            DescentOptions(),
            settings,
            moments,
            counts.total,
        )


class MultiTaskILSVMClassifier(OnClusterTasks, multitask.MultiTaskILSVMClassifier):
    """`regbayes.MultiTaskILSVMClassifier` for samples on the workers of a Dask cluster.

    Parameters and fitted attributes are those of the plain estimator. The fit agrees with it up to rounding and the
    accuracy of the weights. ``loss="hinge"`` is not supported.

    Examples
    --------
    >>> from distributed import Client
    >>> from regbayes.dask import MultiTaskILSVMClassifier
    >>> client = Client()  # doctest: +SKIP
    >>> model = MultiTaskILSVMClassifier(n_components=20).fit(X, Y)  # doctest: +SKIP
    >>> model.predict(X).compute()  # doctest: +SKIP
    """

    _local_only: ClassVar[dict[str, Any]] = {"loss": ("hinge",)}

    def _read_recipe(self, source: DaskSource, recipe: Recipe, kinds: Kinds) -> Recipe:
        if kinds.layout == "matrix":
            classes = complete_classes(list(kinds.classes), kinds.ids)
        else:
            check_two(len(kinds.classes[0]))
            classes = [kinds.classes[0]] * len(kinds.ids)
        self.classes_ = Labels(classes, np.zeros(0, dtype=np.int64)).common_classes
        recipe = replace(recipe, classes=classes, cost=self.cost)
        factors = class_factors(self.class_weight, classes, source.summarize(count_labels, recipe))
        return replace(recipe, factors=factors)

    def decision_function(self, X: Any, task: Any = None) -> Any:
        """Return the scores of the plain estimator, lazily for collections."""
        if not is_collection(X):
            return self.to_local().decision_function(X, task)
        layout: Layout = "matrix" if self._layout == "matrix" else "single"
        return scores_of_tasks(self._answer(_score_rows, X, task), layout, self._outputs)

    def score(self, X: Any, y: Any, task: Any = None, sample_weight: Any = None) -> float:
        """Return the fraction of samples whose observed labels are all predicted correctly."""
        answers, y, sample_weight = dask.compute(self.predict(X, task), y, sample_weight)
        return subset_accuracy(y, answers, unlabeled=self.unlabeled, sample_weight=sample_weight)


def _score_rows(model: Any, X: Any, task: Any = None) -> Floats:
    return model._score_rows(X, task)[0]


class MultiTaskILSVMRegressor(OnClusterTasks, multitask.MultiTaskILSVMRegressor):
    """`regbayes.MultiTaskILSVMRegressor` for samples on the workers of a Dask cluster.

    Parameters and fitted attributes are those of the plain estimator. The fit agrees with it up to rounding and the
    accuracy of the weights. ``loss="epsilon_insensitive"`` is not supported.

    Examples
    --------
    >>> import dask.array as da
    >>> from distributed import Client
    >>> from regbayes.dask import MultiTaskILSVMRegressor
    >>> X = da.random.default_rng(0).normal(size=(100, 4), chunks=(50, 4))
    >>> with Client(processes=False, dashboard_address=":0"):
    ...     MultiTaskILSVMRegressor(8, tol=0.1, random_state=0).fit(X, X[:, :2]).predict(X).shape
    (100, 2)
    """

    _local_only: ClassVar[dict[str, Any]] = {"loss": ("epsilon_insensitive",)}

    def _read_recipe(self, source: DaskSource, recipe: Recipe, kinds: Kinds) -> Recipe:
        units, n_tasks = self._target_units(kinds.layout), len(kinds.ids)
        found: Spread = source.summarize(spread_of_numbers, recipe)
        if units is None:
            self.target_mean_, self.target_scale_ = np.zeros(n_tasks), np.ones(n_tasks)
        elif units == "task":
            self.target_mean_, self.target_scale_ = found.measure(scaled=True)
        else:
            moments, ranges = found.moments, found.ranges
            each = [Moments(*part) for part in zip(moments.weight, moments.mean, moments.squares, strict=True)]
            whole = Spread(reduce(add, each), Ranges(np.min(ranges.lowest), np.max(ranges.highest)))
            self.target_mean_, self.target_scale_ = (np.repeat(part, n_tasks) for part in whole.measure(scaled=True))
        return replace(recipe, target_units=(self.target_mean_, self.target_scale_))

    def score(self, X: Any, y: Any, task: Any = None, sample_weight: Any = None) -> float:
        """Return the pooled R² of all observed targets."""
        answers, y, sample_weight = dask.compute(self.predict(X, task), y, sample_weight)
        return explained_variance_pooled(y, answers, sample_weight=sample_weight)
