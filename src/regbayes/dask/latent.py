"""`ILSVMClassifier` and `IBPFactorAnalysis` over rows on a cluster."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Self

import dask.array as da
import numpy as np
from numpy.typing import NDArray
from sklearn.base import _fit_context
from sklearn.callback import with_callbacks

from regbayes._types import Floats
from regbayes.dask._bases import (
    Labels,
    Moments,
    OnCluster,
    OnClusterLearner,
    code_labels,
    in_memory,
    lazily,
    sample_size,
)
from regbayes.dask.rows import READ_ROWS, DaskSource, join_columns
from regbayes.engine.source import Samples, Strata
from regbayes.estimators import ibp, ilsvm
from regbayes.estimators._bases import TrainingRows, cost_matrix, fit_data, warn_if_unscaled
from regbayes.estimators.ilsvm import make_settings, make_supervision
from regbayes.joint.problem import RowBlock, SampledHead
from regbayes.margins.head import MAX_ASCENT_SCORES
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


# --- on the client


class OnClusterFeatures(OnCluster):
    """Binary features of rows on a cluster, with labels or without."""

    def _fit_rows(self, X: Any, y: Any, sample_weight: Any, client: Any) -> Self:
        source = self._place(client, READ_ROWS, X, y, sample_weight)
        moments, labels = self._summarize(source, y is not None)
        recipe = self._recipe(moments, labels)
        sample = self._draw(source, labels, recipe)
        warn_if_unscaled(sample.X)
        held = source.persist(hold, recipe)
        del source  # what was read lives on in what is held
        data = recipe.data(sample)
        head, label_weight = None, 0.0
        if labels is not None and recipe.supervised:
            assert recipe.by_class is not None
            labeled = sample.take(data.labeled) if len(data.labeled) < len(sample) else sample
            here = build_head(recipe.data(labeled), recipe.settings)
            head = SampledHead(here, hold(labeled, recipe), min(len(labeled) / int(labels.counts.sum()), 1.0))
            label_weight = float(labels.weights @ recipe.by_class)
        population = Population(held, head, float(moments.weight), label_weight)
        self.n_samples_seen_ = float(moments.weight)  # of which no features are kept that could be counted
        training = TrainingRows(sample.X, sample.weights, sample.X, fit_data(X, y))
        self._learn(training, (replace(data, population=population), recipe.settings))
        return self

    def _attributes(self, state: State) -> dict[str, Any]:
        found, nothing = super()._attributes(state), np.empty((0, len(state.params.loadings)))
        for of_all_rows in ("embedding_", "probabilities_"):
            found.pop(of_all_rows, None)
        on = None if state.probabilities is None else nothing
        kept = {"_state": replace(state, embedding=nothing, probabilities=on)}
        return found | kept | {"n_samples_seen_": self.n_samples_seen_}

    feature_probabilities = lazily(ilsvm.ILSVMClassifier.feature_probabilities)

    def _summarize(self, source: DaskSource, labeled: bool) -> tuple[Moments, Labels | None]:
        if len(source) < 2:
            raise ValueError(f"X has {len(source)} row(s) that count, and a minimum of 2 is required")
        moments: Moments = source.summarize(Moments.of_block)
        with np.errstate(over="ignore", invalid="ignore"):
            square = float(moments.squares.sum() / moments.weight)
        if not np.isfinite(square):
            raise ValueError("X is too large to square it: give it in other units")
        if not labeled:
            return moments, None
        unlabeled = getattr(self, "unlabeled", None)
        labels: Labels = source.summarize(Labels.of, unlabeled)
        labels.check(self, unlabeled)
        return moments, labels

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

    def _draw(self, source: DaskSource, labels: Labels | None, recipe: Recipe) -> Samples:
        """Bring a sample here, in an order of which every beginning is a sample."""
        settings, D = recipe.settings, len(recipe.mean)
        n_columns = settings.n_components + 1 + (D if settings.input_scale else 0)
        if labels is None:
            strata, n_outputs = Strata.alone(len(source)), 1
        else:
            n_outputs = len(labels.classes)
            kinds_of = partial(code_labels, classes=labels.classes, unlabeled=recipe.unlabeled, rest=n_outputs)
            strata = Strata(np.append(labels.counts, labels.n_rest), kinds_of)
        wanted = sample_size(n_columns, n_outputs, not settings.one_vs_rest, 8.0 * D)
        return source.sample(wanted, strata)


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
    _local_only: ClassVar[dict[str, Any]] = {"loss": "hinge", "margins": "posterior", "transductive": True}

    predict = lazily(ilsvm.ILSVMClassifier.predict)
    decision_function = lazily(ilsvm.ILSVMClassifier.decision_function)
    transform = lazily(ilsvm.ILSVMClassifier.transform)
    partial_fit = in_memory(ilsvm.ILSVMClassifier.partial_fit)
    fit_weights = in_memory(ilsvm.ILSVMClassifier.fit_weights)

    def _check_options(self) -> None:
        super()._check_options()
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
