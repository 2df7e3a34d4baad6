"""`MultiTaskILSVMClassifier` and `MultiTaskILSVMRegressor` over rows on a cluster.

All that the generative part needs of rows is ``X^T X``, which blocks add up, so the fit starts where that of rows in
memory does. Only the large-margin step goes to the rows.
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
from sklearn.base import _fit_context
from sklearn.callback import with_callbacks
from sklearn.utils.multiclass import check_classification_targets

from regbayes._types import Floats, Integers
from regbayes.dask._bases import SAMPLE_BYTES, Moments, OnCluster, join_classes, lazily
from regbayes.dask.rows import HOST, READ_TASKS, DaskSource, is_collection
from regbayes.engine import Serial, row_blocks
from regbayes.engine.source import Ranges, Samples
from regbayes.estimators import multitask
from regbayes.estimators._bases import fit_data, one_blas_thread
from regbayes.estimators._labels import (
    Labels,
    TaskClassifier,
    check_two,
    class_factors,
    complete_classes,
    judge_signs,
    observe_labels,
    scores_of_tasks,
)
from regbayes.estimators._task_bases import Layout, Targets, column_names, find_targets, natural
from regbayes.estimators.metrics import explained_variance_pooled, subset_accuracy
from regbayes.joint.descent import DescentOptions
from regbayes.joint.model import RowSums
from regbayes.joint.problem import RowBlock, SampledHead, Version
from regbayes.kernels.arrays import is_plain, namespace_of, pieces, sum_of, take_rows, to_device
from regbayes.margins.head import SAMPLE_PER_WEIGHT, Head, View
from regbayes.margins.targets import Observations, Outputs, observe_numbers
from regbayes.models.mt_ilsvm import model as mt_ilsvm
from regbayes.models.mt_ilsvm.device import BLOCK_ROWS, DeviceTaskModel
from regbayes.models.mt_ilsvm.fit import Problem, build_head, first_model
from regbayes.models.mt_ilsvm.model import Settings, State, find_rows

# --- what is known of rows before anything is learned


@dataclass(frozen=True)
class Answers:
    """The classes of one question, and what the labels of each count in every task that asks it."""

    classes: NDArray[Any]
    weights: Floats  # (tasks, classes)

    def __add__(self, other: Answers) -> Answers:
        classes = join_classes(self.classes, other.classes)
        weights = np.zeros((len(self.weights), len(classes)))
        for part in (self, other):
            weights[:, np.searchsorted(classes, part.classes)] += part.weights
        return Answers(classes, weights)

    def of_tasks(self, places: Integers, n_tasks: int) -> Answers:
        """Return it with its tasks among others."""
        return Answers(self.classes, _put(self.weights, places, n_tasks))


@dataclass(frozen=True)
class Survey:
    """What there is to know of rows and of their targets."""

    layout: Layout
    n_rows: int
    moments: Moments  # of the inputs
    extent: Ranges
    ids: NDArray[Any]  # of the tasks
    counts: Integers  # (tasks,): observed targets
    numbers: tuple[Moments, Ranges] | None  # of each task's targets
    labels: tuple[Answers, ...]  # one for each column of a matrix, and one for all ragged tasks

    def __add__(self, other: Survey) -> Survey:
        ids = self.ids
        if self.layout == "ragged":
            _check_ids(self.ids, other.ids)
            ids = np.union1d(self.ids, other.ids)
        elif len(self.ids) != len(other.ids):
            raise ValueError(f"y has {len(self.ids)} columns in some blocks and {len(other.ids)} in others")
        one, two = self._of_tasks(ids), other._of_tasks(ids)
        numbers = None
        if one.numbers is not None and two.numbers is not None:
            numbers = one.numbers[0] + two.numbers[0], one.numbers[1] + two.numbers[1]
        return Survey(
            self.layout,
            self.n_rows + other.n_rows,
            self.moments + other.moments,
            self.extent + other.extent,
            ids,
            one.counts + two.counts,
            numbers,
            tuple(map(add, one.labels, two.labels)),
        )

    def _of_tasks(self, ids: NDArray[Any]) -> Survey:
        """Return it with its tasks among others."""
        if len(ids) == len(self.ids):
            return self
        places, n, numbers = np.searchsorted(ids, self.ids), len(ids), self.numbers
        if numbers is not None:
            moments = Moments(*(_put(part, places, n) for part in vars(numbers[0]).values()))
            lowest, highest = np.full(n, np.inf), np.full(n, -np.inf)
            lowest[places], highest[places] = numbers[1].lowest, numbers[1].highest
            numbers = moments, Ranges(lowest, highest)
        labels = tuple(answers.of_tasks(places, n) for answers in self.labels)
        return replace(self, ids=ids, counts=_put(self.counts, places, n), numbers=numbers, labels=labels)


def _put(values: NDArray[Any], places: Integers, n: int) -> NDArray[Any]:
    found = np.zeros((n, *values.shape[1:]), dtype=values.dtype)
    found[places] = values
    return found


def _check_ids(one: NDArray[Any], other: NDArray[Any]) -> None:
    if len(one) and len(other) and (one.dtype.kind in "US") != (other.dtype.kind in "US"):
        raise ValueError("task has text in some blocks and numbers in others: give all blocks one dtype")


def measure(moments: Moments, extent: Ranges, scaled: bool) -> tuple[Floats, Floats]:
    """Return mean and scale of columns: 1 for a constant one, its size for one that is constant up to rounding."""
    fixed, size = extent.lowest == extent.highest, np.maximum(np.abs(extent.lowest), np.abs(extent.highest))
    spread = np.sqrt(moments.squares / np.where(moments.weight > 0, moments.weight, 1.0))
    scale = np.where(spread > 10 * np.finfo(np.float64).eps * size, spread, size)
    mean = np.where(fixed, extent.lowest, moments.mean)
    return mean, np.where(fixed, 1.0, scale) if scaled else np.ones_like(mean)


# --- on the workers


@dataclass(frozen=True)
class Reading:
    """How targets are read."""

    layout: Layout
    numeric: bool
    unlabeled: Any = None

    def targets(self, block: Samples) -> Targets:
        """Return the observed targets of a block."""
        values = block.y
        assert values is not None
        if self.numeric:
            try:
                values = values.astype(np.float64)
            except (TypeError, ValueError):
                raise ValueError(f"y must hold numbers, got {values[:1].tolist()} in a block") from None
        return find_targets(values, block.task, self.unlabeled)

    def survey(self, block: Samples) -> Survey:
        """Sum up what a block has."""
        targets = self.targets(block)
        weights = np.ones(len(targets.rows)) if block.weights is None else block.weights[targets.rows]
        numbers = _sum_up(targets.tasks, targets.values, weights, len(targets.ids)) if self.numeric else None
        labels = () if self.numeric else tuple(self._answers(targets, weights))
        nothing = np.full(block.X.shape[1], np.inf)
        extent = Ranges.of([block.X]) if len(block) else Ranges(nothing, -nothing)
        moments = Moments.of(block.X, block.weights)
        return Survey(self.layout, len(block), moments, extent, targets.ids, targets.counts, numbers, labels)

    def _answers(self, targets: Targets, weights: Floats) -> list[Answers]:
        together = self.layout != "matrix"
        starts = [0, len(targets.rows)]
        if not together:
            starts = np.searchsorted(targets.tasks, np.arange(len(targets.ids) + 1)).tolist()
        found = []
        for first, end in pairwise(starts):
            values = natural(targets.values[first:end], "y" if together else "a column of y")
            if len(values):
                check_classification_targets(values)
            classes, codes = np.unique(values, return_inverse=True)
            tasks = targets.tasks[first:end] if together else np.zeros(end - first, dtype=np.int64)
            table = np.zeros((len(targets.ids) if together else 1, len(classes)))
            np.add.at(table, (tasks, codes), weights[first:end])
            found.append(Answers(classes, table))
        return found


def _sum_up(tasks: Integers, values: Floats, weights: Floats, n_tasks: int) -> tuple[Moments, Ranges]:
    total = np.bincount(tasks, weights, minlength=n_tasks)
    mean = np.bincount(tasks, weights * values, minlength=n_tasks) / np.where(total > 0, total, 1.0)
    squares = np.bincount(tasks, weights * np.square(values - mean[tasks]), minlength=n_tasks)
    lowest, highest = np.full(n_tasks, np.inf), np.full(n_tasks, -np.inf)
    np.minimum.at(lowest, tasks, values)
    np.maximum.at(highest, tasks, values)
    return Moments(total, mean, squares), Ranges(lowest, highest)


@dataclass(frozen=True)
class Recipe:
    """All that makes a block of the model's rows from a block as it was read."""

    reading: Reading
    mean: Floats  # (D,)
    scale: Floats  # (D,)
    ids: NDArray[Any]  # of the tasks
    target_units: tuple[Floats, Floats] | None = None  # mean and scale of each task's numbers
    classes: list[NDArray[Any]] | None = None  # of each task
    factors: Floats | None = None  # of each class of each task
    cost: Any = None
    settings: Settings = field(default_factory=Settings)
    input_scale: float = 1.0

    def standardize(self, X: Any) -> Any:
        """Return rows as the model takes them, where they lie."""
        mean, scale = (part if is_plain(X) else to_device(part, X) for part in (self.mean, self.scale))
        found = X - mean
        found /= scale
        return found

    def arrange(self, X: Any, order: Integers) -> Any:
        """Return some rows as the model takes them."""
        if not is_plain(X):
            return self.standardize(take_rows(X, order))
        found = np.empty((len(order), len(self.mean)))
        for rows in row_blocks(len(order)):  # no second copy of them all
            found[rows] = self.standardize(X[order[rows]])
        return found

    def observe(self, targets: Targets) -> tuple[Observations, Outputs]:
        """Return what is asked of rows with such targets; weights of rows are not in it."""
        if self.target_units is not None:
            mean, scale = (part[targets.tasks] for part in self.target_units)
            return observe_numbers(targets.rows, targets.tasks, (targets.values - mean) / scale, len(self.ids))
        assert self.classes is not None
        codes = np.empty(len(targets.values), dtype=np.int64)
        if self.reading.layout != "matrix":
            codes[:] = np.searchsorted(self.classes[0], natural(targets.values, "y"))
        else:
            edges = np.searchsorted(targets.tasks, np.arange(len(self.ids) + 1))
            for classes, first, end in zip(self.classes, edges[:-1], edges[1:], strict=True):
                codes[first:end] = np.searchsorted(classes, natural(targets.values[first:end], "a column of y"))
        return observe_labels(targets, Labels(self.classes, codes), self.factors, self.cost)

    def targets(self, block: Samples) -> Targets:
        """Return the observed targets of a block, with tasks numbered as all are."""
        found = self.reading.targets(block)
        if self.reading.layout != "ragged":
            return found
        return replace(found, ids=self.ids, tasks=np.searchsorted(self.ids, found.ids)[found.tasks])

    def weigh(self, block: Samples) -> Observations:
        """Return what is asked of the rows of a block, each as often as it counts."""
        observed = self.observe(self.targets(block))[0]
        if block.weights is None:
            return observed
        return replace(observed, weights=block.weights[observed.rows] * observed.weights)

    @property
    def outputs(self) -> Outputs:
        """What outputs stand for, which no row is needed for."""
        nothing = np.zeros(0, dtype=np.int64)
        values = np.zeros(0) if self.classes is None else self.classes[0][:0]
        return self.observe(Targets(self.reading.layout, self.ids, nothing, nothing, values))[1]

    def head(self, observations: Observations, X: Any) -> Head:
        """Return the head of rows."""
        return build_head(self.settings, observations, self.outputs, X, self.input_scale)


def sum_moments(block: Samples, recipe: Recipe) -> mt_ilsvm.Moments:
    """Return what the generative part needs of all rows of a block."""
    D, weights = len(recipe.mean), block.weights
    found = mt_ilsvm.Moments(np.zeros((D, D)), 0.0)
    if not len(block):
        return found
    for rows in row_blocks(len(block)) if is_plain(block.X) else pieces(len(block), BLOCK_ROWS):
        some = find_rows(recipe.standardize(block.X[rows, :]))
        own = some.sum_moments(None if weights is None else weights[rows], Serial())
        found = found + mt_ilsvm.Moments(own.gram, own.n_rows)  # and not the device's
    return found


@dataclass(frozen=True)
class Counts(RowSums):
    """How many observations samples have."""

    total: float  # each as often as its row counts
    by_output: Integers


def count_observations(block: Samples, recipe: Recipe) -> Counts:
    """Count the observations of a block."""
    observed, outputs = recipe.observe(recipe.targets(block))
    total = len(observed) if block.weights is None else block.weights[observed.rows].sum()
    return Counts(float(total), np.bincount(observed.outputs, minlength=len(outputs)))


def hold(block: Samples, recipe: Recipe) -> RowBlock[Any] | None:
    """Return the rows that have targets as the model takes them, in pieces; those of a task are neighbours."""
    targets = recipe.targets(block)
    if recipe.reading.layout == "ragged":
        order = targets.rows[np.argsort(targets.tasks, kind="stable")]
    else:
        order = np.unique(targets.rows)
    if not len(order):
        return None
    place = np.zeros(len(block), dtype=np.int64)
    place[order] = np.arange(len(order))
    observed = recipe.weigh(block)
    rows = find_rows(recipe.arrange(block.X, order))
    head = recipe.head(replace(observed, rows=place[observed.rows]), rows.X)
    blocks = rows.blocks()
    lengths = tuple(part.shape[0] for part in blocks)
    return RowBlock(blocks, lengths, head.blocks(lengths, rows.X))


@dataclass(frozen=True)
class KindsOfRows:
    """The kind of a row is that of its targets that is drawn most often; the last kind has none."""

    recipe: Recipe
    rates: Floats  # (tasks,)

    def __call__(self, block: Samples) -> Integers:
        """Return the kinds of a block's rows."""
        targets = self.recipe.targets(block)
        kinds = np.full(len(block), len(self.rates), dtype=np.int64)
        order = np.argsort(self.rates[targets.tasks], kind="stable")
        kinds[targets.rows[order]] = targets.tasks[order]  # of several, the last
        return kinds


def count_kinds(block: Samples, kinds: KindsOfRows) -> Integers:
    """Return how many rows of each kind a block has."""
    return np.bincount(kinds(block), minlength=len(kinds.rates) + 1)


@dataclass(frozen=True)
class Judged(RowSums):
    """What wrong signs weigh, and what signs of each output do."""

    wrong: float
    negative: Floats  # (outputs,)
    positive: Floats  # (outputs,)


def judge(block: RowBlock[Any], version: Version, weights: Floats) -> Judged:
    """Judge the signs of scores, in units of the stiffness of losses."""
    assert block.head is not None
    found = Judged(0.0, np.zeros(len(weights)), np.zeros(len(weights)))
    for head, seen in zip(block.head, block.infer(version), strict=True):
        asked = head.losses
        assert asked is not None
        losses: Any = asked.losses
        scores = asked.scores(head.design(seen.features, View(None, 0.0)), weights)
        xp = namespace_of(scores)
        signs, stiffness = xp.astype(losses.signs, scores.dtype), 2.0 * losses.C
        wrong = stiffness * xp.astype((signs != 0.0) & ((scores > 0.0) != (signs > 0.0)), scores.dtype)
        negative, positive = (
            asked.sum_outputs(stiffness * xp.astype(side * signs > 0.0, scores.dtype), len(weights))
            for side in (-1.0, 1.0)
        )
        found = found + Judged(float(sum_of(wrong)), negative, positive)
    return found


# --- on the client


@dataclass
class Placed:
    """Rows as workers have read them, and all that is known of them."""

    source: DaskSource | None  # None: its rows have been made the model's
    recipe: Recipe
    survey: Survey
    data: dict[str, Any]
    prepared: Problem | None = None


def judge_fit(problem: Problem, state: State) -> str:
    """Return what is wrong with the signs of scores."""
    shared = problem.infer(problem.model.at(state.latent)).shared
    found: Judged = problem.blocks.map_sum(judge, shared, state.tasks.weights)
    unit = 2.0 * problem.settings.C  # the stiffness of a squared loss that counts once
    return judge_signs(found.wrong / unit, found.negative / unit, found.positive / unit)


class OnClusterTasks(OnCluster):
    """Several tasks over rows on a cluster."""

    transform = lazily(multitask.LatentTasks.transform)

    @with_callbacks
    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any, task: Any = None, sample_weight: Any = None, client: Any = None) -> Self:
        """Learn the tasks.

        Parameters
        ----------
        X : dask array or DataFrame of shape (n_samples, n_features)
            Blocks of PyTorch or CuPy stay on their devices.
        y : dask array, Series or DataFrame of shape (n_samples, n_tasks) or (n_samples,)
            Targets, NaN or None where missing: a column per task, or with ``task`` one per row. A vector without
            ``task`` is one task.
        task : dask array or Series of shape (n_samples,), default=None
            The task of each row.
        sample_weight : dask array or Series of shape (n_samples,), default=None
            How often each row counts.
        client : distributed.Client, default=None
            The default client, if none is given.

        Returns
        -------
        self
        """
        if y is None:
            raise ValueError(f"{type(self).__name__} requires y to be passed, but the target y is None")
        with self._workers_of(client) as found:
            return self._fit_rows(X, y, task, sample_weight, found)

    def _fit_rows(self, X: Any, y: Any, task: Any, sample_weight: Any, client: Any) -> Self:
        layout: Layout = "ragged" if task is not None else "single" if getattr(y, "ndim", 1) == 1 else "matrix"
        reading = Reading(layout, not isinstance(self, TaskClassifier), getattr(self, "unlabeled", None))
        source = self._place(client, READ_TASKS, X, y, sample_weight, task)
        found: Survey = source.summarize(reading.survey)
        if layout == "matrix":
            found = replace(found, ids=column_names(getattr(y, "columns", ()), len(found.ids)))
        self._check_survey(found)
        self.mean_, self.scale_ = measure(found.moments, found.extent, self.scale_inputs)
        recipe = self._read_recipe(Recipe(reading, self.mean_, self.scale_, found.ids), found)
        self.tasks_, self._layout = found.ids, layout
        self._outputs = recipe.outputs
        data = fit_data(X, y, task=task, sample_weight=sample_weight)
        placed = Placed(source, recipe, found, data)
        del source
        with one_blas_thread():
            self._learn(placed)
        return self

    def _check_survey(self, found: Survey) -> None:
        if found.n_rows < 2:
            raise ValueError(f"X has {found.n_rows} row(s) that count, and a minimum of 2 is required")
        if not found.counts.any():
            raise ValueError("y has no observed target: every value is missing")
        if not np.all(np.isfinite(found.moments.squares)):
            raise ValueError("X is too large to square it: give it in other units")
        self._check_tasks(found)

    def _read_recipe(self, recipe: Recipe, found: Survey) -> Recipe:
        """Learn what targets are."""
        raise NotImplementedError

    def _prepare(self, placed: Any, settings: Settings) -> Problem:
        """Return what the model's fit works on: rows as the model takes them, where they are, and a sample here."""
        source, recipe = placed.source, replace(placed.recipe, settings=settings)
        moments: mt_ilsvm.Moments = source.summarize(sum_moments, recipe)
        recipe = replace(recipe, input_scale=float(np.sqrt(moments.mean_square)))
        counts: Counts = source.summarize(count_observations, recipe)
        sample = self._draw(source, placed, recipe)
        observed, X = recipe.weigh(sample), recipe.standardize(sample.X)
        head = recipe.head(observed, X)
        drawn = np.bincount(observed.outputs, minlength=len(counts.by_output))
        share = np.maximum(drawn, 1) / np.maximum(counts.by_output, 1)
        held = source.persist(hold, recipe)
        kind = mt_ilsvm.MultiTaskModel if source.kind == HOST else DeviceTaskModel
        placed.source = None  # what was read lives on in what is held
        placed.prepared = Problem(
            first_model(settings, moments, counts.total, kind),
            held,
            SampledHead(head, RowBlock([X], (len(X),)), share),
            DescentOptions(),
            settings,
            moments,
            counts.total,
        )
        return placed.prepared

    def _draw(self, source: DaskSource, placed: Placed, recipe: Recipe) -> Samples:
        """Bring rows here, as many of each task as the curvature of its weights needs."""
        settings, D, of_tasks = recipe.settings, len(recipe.mean), placed.survey.counts
        n_columns = settings.n_components + settings.fit_intercept + settings.include_inputs * D
        rates = np.minimum(SAMPLE_PER_WEIGHT * n_columns / np.maximum(of_tasks, 1), 1.0)
        kinds = KindsOfRows(recipe, rates)
        expected = float(source.summarize(count_kinds, kinds)[:-1] @ rates)
        rates = rates * min(1.0, SAMPLE_BYTES / (8.0 * D) / max(expected, 1.0))
        return source.share(kinds, np.append(rates, 0.0)).samples

    def _find_fault(self, placed: Any, state: State) -> str:
        return judge_fit(placed.prepared, state) if isinstance(self, TaskClassifier) else ""


class MultiTaskILSVMClassifier(OnClusterTasks, multitask.MultiTaskILSVMClassifier):
    """`regbayes.MultiTaskILSVMClassifier` over rows on the workers of a Dask cluster.

    Parameters and fitted attributes are those of the plain estimator, and so is the fit, but for rounding and for how
    accurately weights are solved for. ``loss="hinge"`` needs multipliers of all rows in one place and is not for a
    cluster.

    Examples
    --------
    >>> from distributed import Client
    >>> from regbayes.dask import MultiTaskILSVMClassifier
    >>> client = Client()  # doctest: +SKIP
    >>> model = MultiTaskILSVMClassifier(n_components=20).fit(X, Y)  # doctest: +SKIP
    >>> model.predict(X).compute()  # doctest: +SKIP
    """

    _plain: ClassVar[type[Any]] = multitask.MultiTaskILSVMClassifier
    _local_only: ClassVar[dict[str, Any]] = {"loss": "hinge"}
    predict = lazily(multitask.MultiTaskILSVMClassifier.predict)

    def _read_recipe(self, recipe: Recipe, found: Survey) -> Recipe:
        seen = [answers.classes for answers in found.labels]
        if found.layout == "matrix":
            classes = complete_classes(seen, found.ids)
        else:
            check_two(len(seen[0]))
            classes = seen * len(found.ids)
        counts = []
        for task, own in enumerate(classes):
            answers, place = (found.labels[task], 0) if found.layout == "matrix" else (found.labels[0], task)
            weights = np.zeros(len(own))
            weights[np.searchsorted(own, answers.classes)] = answers.weights[place]
            counts.append(weights)
        self.classes_ = Labels(classes, np.zeros(0, dtype=np.int64)).common_classes
        factors = class_factors(self.class_weight, classes, np.concatenate(counts))
        return replace(recipe, classes=classes, factors=factors, cost=self.cost)

    def decision_function(self, X: Any, task: Any = None) -> Any:
        """Return scores as the plain estimator does, lazily for collections."""
        if not is_collection(X):
            return self.to_local().decision_function(X, task)
        layout: Layout = "matrix" if self._layout == "matrix" else "single"
        return scores_of_tasks(self._answer(_score_rows, X, task), layout, self._outputs)

    def score(self, X: Any, y: Any, task: Any = None, sample_weight: Any = None) -> float:
        """Return the share of samples whose observed labels are all predicted."""
        answers, y, sample_weight = dask.compute(self.predict(X, task), y, sample_weight)
        return subset_accuracy(y, answers, unlabeled=self.unlabeled, sample_weight=sample_weight)


def _score_rows(model: Any, X: Any, task: Any = None) -> Floats:
    return model._score_rows(X, task)[0]


class MultiTaskILSVMRegressor(OnClusterTasks, multitask.MultiTaskILSVMRegressor):
    """`regbayes.MultiTaskILSVMRegressor` over rows on the workers of a Dask cluster.

    Parameters and fitted attributes are those of the plain estimator, and so is the fit, but for rounding and for how
    accurately weights are solved for. ``loss="epsilon_insensitive"`` needs multipliers of all rows in one place and is
    not for a cluster.
    """

    _plain: ClassVar[type[Any]] = multitask.MultiTaskILSVMRegressor
    _local_only: ClassVar[dict[str, Any]] = {"loss": "epsilon_insensitive"}
    predict = lazily(multitask.MultiTaskILSVMRegressor.predict)

    def _read_recipe(self, recipe: Recipe, found: Survey) -> Recipe:
        units, n_tasks = self._target_units(found.layout), len(found.ids)
        assert found.numbers is not None
        moments, extent = found.numbers
        if units is None:
            self.target_mean_, self.target_scale_ = np.zeros(n_tasks), np.ones(n_tasks)
        elif units == "task":
            self.target_mean_, self.target_scale_ = measure(moments, extent, scaled=True)
        else:
            each = [Moments(*part) for part in zip(moments.weight, moments.mean, moments.squares, strict=True)]
            whole = Ranges(np.min(extent.lowest), np.max(extent.highest))
            mean, scale = measure(reduce(add, each), whole, scaled=True)
            self.target_mean_, self.target_scale_ = np.repeat(mean, n_tasks), np.repeat(scale, n_tasks)
        return replace(recipe, target_units=(self.target_mean_, self.target_scale_))

    def score(self, X: Any, y: Any, task: Any = None, sample_weight: Any = None) -> float:
        """Return R² over all observed targets, pooled."""
        answers, y, sample_weight = dask.compute(self.predict(X, task), y, sample_weight)
        return explained_variance_pooled(y, answers, sample_weight=sample_weight)
