"""`ILSVMClassifier` and `IBPFactorAnalysis` on a Dask cluster."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import dask.array as da
import numpy as np
from numpy.typing import NDArray

from regbayes._types import Floats, Integers
from regbayes.dask._bases import OnCluster, sample_size
from regbayes.dask.source import DaskSource, join_columns
from regbayes.engine.source import Samples, Strata
from regbayes.estimators import ibp, ilsvm
from regbayes.estimators._bases import TrainingRows, cost_matrix, warn_if_unscaled
from regbayes.estimators._sources import Labels, Moments, code_labels
from regbayes.estimators.ilsvm import make_settings, make_supervision
from regbayes.joint.problem import RowBlock, SampledHead
from regbayes.margins.head import HEAD_POLICY
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
        return Data.of_classes(centre_rows(block.X, self.mean, block.weights), labels, counts, self.cost)


def hold(block: Samples, recipe: Recipe) -> RowBlock[Rows]:
    """Return rows as the model takes them, in pieces, with what is asked of them."""
    data = recipe.data(block)
    pieces = data.X.blocks()
    lengths = tuple(map(len, pieces))
    head = build_head(data, recipe.settings).blocks(lengths, data.X.X) if recipe.supervised else None
    return RowBlock(pieces, lengths, head)


class OnClusterFeatures(OnCluster):
    """Latent features of samples on a cluster, with labels or without."""

    def _fit_source(self, source: DaskSource, data: dict[str, Any]) -> None:
        found: Moments = source.summarize(Moments.of_block)
        moments = found.rounded()
        unlabeled = getattr(self, "unlabeled", None)
        labels: Labels | None = None
        if self.__sklearn_tags__().target_tags.required:
            labels = source.summarize(Labels.of, unlabeled)
            labels.check(self, unlabeled)
        recipe = self._recipe(moments, labels)
        sample = self._draw(source, labels, recipe)
        warn_if_unscaled(sample.X)
        held = source.persist(hold, recipe)
        here, head, label_weight = recipe.data(sample), None, 0.0
        if labels is not None and recipe.supervised:
            assert recipe.by_class is not None
            labeled = sample.take(here.labeled) if len(here.labeled) < len(sample) else sample
            of_labeled = build_head(recipe.data(labeled), recipe.settings)
            head = SampledHead(of_labeled, hold(labeled, recipe), min(len(labeled) / int(labels.counts.sum()), 1.0))
            label_weight = float(labels.weights @ recipe.by_class)
        population = Population(held, head, float(moments.weight), label_weight)
        self.n_samples_seen_ = float(moments.weight)
        training = TrainingRows(sample.X, sample.weights, sample.X, data)
        self._learn(training, (replace(here, population=population), recipe.settings))

    def _attributes(self, state: State, used: Integers | None = None) -> dict[str, Any]:
        found, nothing = super()._attributes(state, used), np.empty((0, len(state.params.loadings)))
        for of_all_samples in ("embedding_", "probabilities_"):
            found.pop(of_all_samples, None)
        on = None if state.probabilities is None else nothing
        kept = {"_state": replace(state, embedding=nothing, probabilities=on)}
        return found | kept | {"n_samples_seen_": self.n_samples_seen_}

    def _recipe(self, moments: Moments, labels: Labels | None) -> Recipe:
        mean_square, D = moments.mean_square, len(moments.mean)
        parameters = self.get_params(deep=False)
        if labels is None:
            settings = ibp.make_unsupervised_settings(parameters, mean_square, D)
            return Recipe(moments.mean, settings, NO_COST, supervised=False)
        if self.cost is not None and self.multi_class == "ovr":
            raise ValueError('cost is for multi_class="crammer_singer": margins against the rest know no wrong answers')
        share = 1.0 - labels.rest_weight / moments.weight
        # Newton's method solves for the weights however few the samples are.
        supervision = make_supervision(parameters, len(labels.classes), share, HEAD_POLICY.max_ascent_scores)
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
        """Return a sample, in an order of which every beginning is a sample."""
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


class ILSVMClassifier(OnClusterFeatures, ilsvm.ILSVMClassifier):
    """`regbayes.ILSVMClassifier` for samples on the workers of a Dask cluster.

    Parameters and fitted attributes are those of the plain estimator, without ``embedding_``, which `transform` returns
    lazily. The structure search runs on a sample, on the client; then every step sees all samples, where they are.
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


class IBPFactorAnalysis(OnClusterFeatures, ibp.IBPFactorAnalysis):
    """`regbayes.IBPFactorAnalysis` for samples on the workers of a Dask cluster.

    Parameters and fitted attributes are those of the plain estimator, without ``embedding_``, which `transform` returns
    lazily.
    """

    def inverse_transform(self, X: Any) -> Any:
        """Return the expected samples given their features, shape (n_samples, n_features), lazily for collections."""
        if not isinstance(X, da.Array):
            return super().inverse_transform(X)
        return join_columns(X) @ self.components_ + self.offset_

    def score(self, X: Any, y: Any = None) -> float:
        """Return the mean of `score_samples`."""
        return float(np.mean(np.asarray(self.score_samples(X))))
