"""`ILSVMClassifier`, `ILSVMRegressor` and `IBPFactorAnalysis` on a Dask cluster."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import dask.array as da
import numpy as np
from numpy.typing import NDArray

from regbayes._types import Floats, Integers
from regbayes.dask._bases import OnCluster, sample_size
from regbayes.dask.source import DaskSource, Reader, join_columns, read_missing
from regbayes.engine.source import Samples, Strata
from regbayes.estimators import ibp, ilsvm, ilsvm_regressor
from regbayes.estimators._bases import cost_matrix, warn_if_unscaled
from regbayes.estimators._features import TrainingRows, is_label_matrix, observe_values
from regbayes.estimators._sources import Moments, Spread, code_labels, read_numbers, spread_of_targets
from regbayes.joint.model import RowSums
from regbayes.joint.problem import RowBlock, SampledHead
from regbayes.margins.head import HEAD_POLICY
from regbayes.margins.targets import Classes, Targets
from regbayes.models.ilsvm.model import (
    UNLABELED,
    Data,
    Population,
    Rows,
    Settings,
    State,
    build_head,
    centre_rows,
)

Observed = tuple[Targets, Integers | None]  # observed targets and the indices of their samples (None: all)


# --- blocks of samples


@dataclass(frozen=True)
class ClassTargets:
    """Callable that builds the classification targets of a block."""

    classes: NDArray[Any]
    by_class: Floats  # (classes,): factors of C
    cost: Floats  # (classes, classes)
    unlabeled: Any

    def __call__(self, block: Samples) -> Observed:
        """Return the targets of a block."""
        codes = code_labels(block, self.classes, self.unlabeled, UNLABELED)
        labeled = np.flatnonzero(codes != UNLABELED)
        weights = self.by_class[codes[labeled]] * (1.0 if block.weights is None else block.weights[labeled])
        return Classes(codes[labeled], self.cost, weights), None if len(labeled) == len(block) else labeled


@dataclass(frozen=True)
class ValueTargets:
    """Callable that builds the regression or multi-label targets of a block."""

    mean: Floats  # (outputs,)
    scale: Floats  # (outputs,)
    signs: bool
    unlabeled: Any = None

    def __call__(self, block: Samples) -> Observed:
        """Return the targets of a block."""
        values = read_numbers(block, self.unlabeled)
        return observe_values((values - self.mean) / self.scale, block.weights, self.signs)


@dataclass(frozen=True)
class TargetCounts(RowSums):
    """Number and total weight of samples with targets."""

    n_rows: int
    weight: float


def count_targets(block: Samples, observe: Callable[[Samples], Observed]) -> TargetCounts:
    """Count the samples of a block that have targets."""
    targets, rows = observe(block)
    C = targets.C
    return TargetCounts(len(block) if rows is None else len(rows), float(C.sum()) / (1 if C.ndim == 1 else C.shape[1]))


def has_target(block: Samples, observe: Callable[[Samples], Observed]) -> Integers:
    """Return 0 for samples with a target and 1 for the others."""
    kinds, rows = np.zeros(len(block), dtype=np.int64), observe(block)[1]
    if rows is not None:
        kinds[:] = 1
        kinds[rows] = 0
    return kinds


@dataclass(frozen=True)
class Recipe:
    """Callable that converts a validated block to samples of the model."""

    mean: Floats  # (D,)
    observe: Callable[[Samples], Observed] | None
    settings: Settings | None = None

    def data(self, block: Samples) -> Data:
        """Return centered samples with their targets."""
        X = centre_rows(block.X, self.mean, block.weights)
        return Data(X) if self.observe is None else Data(X, *self.observe(block))


def hold(block: Samples, recipe: Recipe) -> RowBlock[Rows]:
    """Return samples in the model's form with their part of the head."""
    data, settings = recipe.data(block), recipe.settings
    assert settings is not None
    pieces = data.X.blocks
    lengths = tuple(map(len, pieces))
    supervised = data.targets is not None and settings.C > 0
    return RowBlock(pieces, lengths, build_head(data, settings).blocks(lengths, data.X.X) if supervised else None)


# --- estimators


class OnClusterFeatures(OnCluster):
    """Base of latent-feature estimators on a cluster, with or without targets."""

    def _read_targets(self, source: DaskSource) -> tuple[Callable[[Samples], Observed] | None, Strata, int]:
        """Return the builder of a block's targets, the strata and the number of outputs."""
        return None, Strata.alone(len(source)), 1

    def _fit_source(self, source: DaskSource, data: dict[str, Any]) -> None:
        found: Moments = source.summarize(Moments.of_block)
        moments = found.rounded()
        observe, strata, n_outputs = self._read_targets(source)
        given, D = {"multi_class": "ovr", "include_inputs": False} | self.get_params(deep=False), len(moments.mean)
        n_columns = int(given["n_components"]) + 1 + D * bool(given["include_inputs"])
        mixes = len(strata.sizes) > 2 and given["multi_class"] != "ovr" and not given["include_inputs"]
        sample = source.sample(sample_size(n_columns, n_outputs, mixes, 8.0 * D), strata)
        warn_if_unscaled(sample.X)
        recipe = Recipe(moments.mean, observe)
        here = recipe.data(sample)
        # "auto" parameters are resolved on the local sample with the variances of all samples.
        totals, variances = here.X.totals, moments.squares / moments.weight
        known = replace(totals, squares=totals.n_rows * variances, mean_square=float(variances.sum()))
        vars(here.X)["totals"] = known
        settings = self._make_settings(here, HEAD_POLICY.max_ascent_scores)
        recipe, head, counts = replace(recipe, settings=settings), None, TargetCounts(0, 0.0)
        if observe is not None:
            counts = source.summarize(count_targets, observe)
        held = source.persist(hold, recipe)
        if observe is not None and settings.C > 0:
            labeled = sample if here.rows is None else sample.take(here.rows)
            share = min(len(labeled) / counts.n_rows, 1.0)
            head = SampledHead(build_head(recipe.data(labeled), settings), hold(labeled, recipe), share)
        self.n_samples_seen_ = float(moments.weight)
        population = Population(held, head, self.n_samples_seen_, counts.weight)
        training = TrainingRows(sample.X, sample.weights, sample.X, data)
        self._learn(training, (replace(here, population=population), settings))

    def _attributes(self, state: State, used: Integers | None = None) -> dict[str, Any]:
        found, nothing = super()._attributes(state, used), np.empty((0, len(state.params.loadings)))
        for of_all_samples in ("embedding_", "probabilities_"):
            found.pop(of_all_samples, None)
        on = None if state.probabilities is None else nothing
        kept = {"_state": replace(state, embedding=nothing, probabilities=on)}
        return found | kept | {"n_samples_seen_": self.n_samples_seen_}

    def _strata(self, source: DaskSource, observe: Callable[[Samples], Observed]) -> Strata:
        """Return the strata of labeled and unlabeled samples."""
        n_targeted = source.summarize(count_targets, observe).n_rows
        if n_targeted == 0:
            raise ValueError("y has no observed target: every value is missing.")
        return Strata(np.array([n_targeted, len(source) - n_targeted]), partial(has_target, observe=observe))


class ILSVMClassifier(OnClusterFeatures, ilsvm.ILSVMClassifier):
    """`regbayes.ILSVMClassifier` for samples on the workers of a Dask cluster.

    Parameters and fitted attributes are those of the plain estimator, except for ``embedding_``; `transform` computes
    it lazily. The structure search runs on a subsample on the client. Later steps use all samples on the workers.
    ``loss="hinge"``, ``margins="posterior"`` and ``transductive=True`` are not supported.

    Examples
    --------
    >>> from dask.array import from_array
    >>> from distributed import Client
    >>> from regbayes.dask import ILSVMClassifier
    >>> client = Client()  # doctest: +SKIP
    >>> model = ILSVMClassifier(n_components=20).fit(X, y)  # doctest: +SKIP
    >>> model.predict(X).compute()  # doctest: +SKIP
    """

    _local_only: ClassVar[dict[str, Any]] = {"loss": ("hinge",), "margins": ("posterior",), "transductive": (True,)}

    def _make_reader(self, n_columns: int, y: Any) -> Reader:
        self._several = is_label_matrix(y)
        return Reader(n_columns, targets=read_missing) if self._several else Reader(n_columns)

    def _read_targets(self, source: DaskSource) -> tuple[Callable[[Samples], Observed], Strata, int]:
        if self._several:
            self._kind.check()
            n_labels = self._count_labels(source, self.unlabeled)
            signs = ValueTargets(np.zeros(n_labels), np.ones(n_labels), True, self.unlabeled)
            return signs, self._strata(source, signs), n_labels
        labels, strata = self._read_classes(source, self.unlabeled)
        cost, by_class = cost_matrix(self.cost, len(self.classes_)), labels.weights_by_class(self.class_weight)
        return ClassTargets(self.classes_, by_class, cost, self.unlabeled), strata, len(self.classes_)


class ILSVMRegressor(OnClusterFeatures, ilsvm_regressor.ILSVMRegressor):
    """`regbayes.ILSVMRegressor` for samples on the workers of a Dask cluster.

    Parameters and fitted attributes are those of the plain estimator, except for ``embedding_``; `transform` computes
    it lazily.

    Examples
    --------
    >>> import dask.array as da
    >>> from distributed import Client
    >>> from regbayes.dask import ILSVMRegressor
    >>> X = da.random.default_rng(0).normal(size=(100, 4), chunks=(50, 4))
    >>> with Client(processes=False, dashboard_address=":0"):
    ...     ILSVMRegressor(10, tol=0.1, random_state=0).fit(X, X[:, :2]).predict(X).shape
    (100, 2)
    """

    def _make_reader(self, n_columns: int, y: Any) -> Reader:
        self._is_single = getattr(y, "ndim", 1) == 1
        return Reader(n_columns, targets=read_missing)

    def _read_targets(self, source: DaskSource) -> tuple[Callable[[Samples], Observed], Strata, int]:
        found: Spread = source.summarize(spread_of_targets)
        moments = found.moments
        if not np.all(moments.weight > 0):
            raise ValueError("`y` has an output without any observed target.")
        scale = np.sqrt(moments.squares / moments.weight)
        self.target_mean_ = moments.mean
        self.target_scale_ = np.where(scale > 10 * np.finfo(np.float64).eps * np.abs(moments.mean), scale, 1.0)
        self.target_range_ = found.ranges.array()
        numbers = ValueTargets(self.target_mean_, self.target_scale_, signs=False)
        return numbers, self._strata(source, numbers), len(scale)


class IBPFactorAnalysis(OnClusterFeatures, ibp.IBPFactorAnalysis):
    """`regbayes.IBPFactorAnalysis` for samples on the workers of a Dask cluster.

    Parameters and fitted attributes are those of the plain estimator, except for ``embedding_``; `transform` computes
    it lazily.

    Examples
    --------
    >>> import dask.array as da
    >>> from distributed import Client
    >>> from regbayes.dask import IBPFactorAnalysis
    >>> X = da.random.default_rng(0).normal(size=(100, 4), chunks=(50, 4)).cumsum(axis=1)
    >>> with Client(processes=False, dashboard_address=":0"):
    ...     IBPFactorAnalysis(10, tol=0.1, random_state=0).fit(X).score_samples(X).shape
    (100,)
    """

    def inverse_transform(self, X: Any) -> Any:
        """Return the expected samples given their features, lazily for collections."""
        if not isinstance(X, da.Array):
            return super().inverse_transform(X)
        return join_columns(X) @ self.components_ + self.offset_
