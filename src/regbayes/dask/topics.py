"""Mean-field `MedLDAClassifier` and `MedLDARegressor` on a Dask cluster."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from regbayes.dask._bases import OnCluster, sample_size, with_defaults
from regbayes.dask.source import DaskSource, Reader, check_counts, check_counts_there
from regbayes.engine.source import Samples, Strata
from regbayes.estimators import medlda
from regbayes.estimators._bases import FitReporter, cost_matrix, one_blas_thread, warn_of_status
from regbayes.estimators._features import is_label_matrix
from regbayes.estimators._sources import code_labels, read_numbers, spread_of_targets
from regbayes.estimators._topics import as_documents
from regbayes.joint.model import RowSums
from regbayes.joint.problem import JointProblem, RowBlock, SampledHead
from regbayes.kernels.meanfield import lengths_of
from regbayes.margins.targets import Targets
from regbayes.models.medlda import meanfield


@dataclass(frozen=True)
class Recipe:
    """Parameters for converting a validated block to documents with targets."""

    plain: Any  # plain estimator with the classes or the units of targets
    ask: Callable[[Any, Samples], Targets | None]  # returns the targets of a block
    settings: meanfield.Settings
    in_order: bool = False  # whether sums on a GPU have a fixed order

    def documents(self, block: Samples) -> tuple[Any, Targets | None]:
        """Return the nonempty documents, on their device, and their targets."""
        counts, settings = as_documents(block.X), self.settings
        meanfield.check_order(counts, settings, self.in_order)
        shape = block.X.shape[1], settings.n_components
        return meanfield.select_documents(counts, self.ask(self.plain, block), block.weights, *shape, self.in_order)


def hold(block: Samples, recipe: Recipe) -> RowBlock[Any] | None:
    """Return documents in the model's form; None if all are empty."""
    documents, targets = recipe.documents(block)
    if not len(documents):
        return None
    head = None if targets is None else meanfield.make_head(documents, targets, recipe.settings)
    pieces = [documents.rows(rows) for rows in documents.cut(block.X.shape[1]) if rows.stop > rows.start]
    lengths = tuple(map(len, pieces))
    return RowBlock(pieces, lengths, None if head is None else head.blocks(lengths, documents.lengths))


def count_groups(block: Samples, recipe: Recipe) -> meanfield.GroupCounts:
    """Count the words of a block and of its classes."""
    documents, targets = recipe.documents(block)
    membership = meanfield.find_membership(targets)
    return meanfield.count_groups(documents, block.X.shape[1], membership, recipe.settings.n_components)


@dataclass(frozen=True)
class Words(RowSums):
    """Numbers of nonempty documents and words."""

    n_documents: int
    weight: float  # total weight of the documents
    n_words: float
    n_entries: int


def count_words(block: Samples) -> Words:
    """Count the documents and words of a block."""
    counts = as_documents(block.X)
    lengths, weights = lengths_of(counts), np.ones(len(block)) if block.weights is None else block.weights
    filled = lengths > 0
    return Words(int(filled.sum()), float(weights @ filled), float(weights @ lengths), int(counts.numbers.shape[0]))


def ask_labels(plain: Any, block: Samples) -> Targets | None:
    """Return classification or multi-label targets."""
    if plain._several:
        return plain._signs(read_numbers(block).astype(np.int64), None)
    codes = code_labels(block, plain.classes_, None, 0)
    return (plain._signs if len(plain.classes_) == 2 else plain._classes)(codes, None)


def ask_numbers(plain: Any, block: Samples) -> Targets | None:
    """Return regression targets."""
    return plain._numbers(read_numbers(block))


class OnClusterTopics(OnCluster):
    """Base of topic models on a cluster."""

    _local_only: ClassVar[dict[str, Any]] = {
        "inference": ("gibbs",),
        "loss": ("hinge", "epsilon_insensitive"),
        "include_inputs": (True,),
    }
    _ask: ClassVar[staticmethod[[Any, Samples], Targets | None]]

    def _make_reader(self, n_columns: int, y: Any) -> Reader:
        return Reader(n_columns, check_counts, check_counts_there)

    def _read_targets(self, source: DaskSource, plain: Any, several: bool) -> Strata:
        """Set attributes of the targets, and parameters of the plain estimator that depend on them."""
        raise NotImplementedError

    def _fit_source(self, source: DaskSource, data: dict[str, Any]) -> None:
        words: Words = source.summarize(count_words)
        if words.n_documents == 0:
            raise ValueError("X has no words: all documents are empty")
        plain = self._plain(**self.get_params(deep=False))
        strata = self._read_targets(source, plain, is_label_matrix(data["y"]))
        self._mean_length = words.n_words / words.weight
        known = ("classes_", "_several", "_mean_length", "_mean", "_scale")
        vars(plain).update({name: vars(self)[name] for name in known if name in vars(self)})
        settings = replace(self._label_free_settings(), squared=True)
        recipe = Recipe(plain, type(self)._ask, settings, bool(self.deterministic))
        n_outputs = max(len(strata.sizes), 1)
        row_bytes = 12.0 * words.n_entries / len(source)
        sample = source.sample(sample_size(int(self.n_components) + 1, n_outputs, n_outputs > 2, row_bytes), strata)
        earlier = self._earlier_topics(self.n_features_in_)
        if earlier is not None:
            logits = np.log(np.maximum(earlier.word_given_topic, meanfield.FLOOR))
        else:
            counts, rng = source.summarize(count_groups, recipe), np.random.default_rng(settings.seed)
            logits = meanfield.draw_logits(counts, settings.n_components, rng)
        held = source.persist(hold, recipe)
        here, (documents, asked), head = hold(sample, recipe), recipe.documents(sample), None
        if asked is not None:
            assert here is not None
            share = min(sum(here.lengths) / words.n_documents, 1.0)
            head = SampledHead(meanfield.make_head(documents, asked, settings), here, share)
        problem = JointProblem(meanfield.make_model(settings), held, head, meanfield.OPTIONS)
        topics, most = meanfield.make_topics(logits.astype(np.float32)), settings.max_iter
        with one_blas_thread(), FitReporter(self, most, data, self._attributes, self.verbose) as reporter:
            result = meanfield.descend(problem, topics, settings, [reporter])
            self._set_fitted(self._attributes(result.state), result)
        warn_of_status(self, result)


class MedLDAClassifier(OnClusterTopics, medlda.MedLDAClassifier):
    """`regbayes.MedLDAClassifier` for documents on the workers of a Dask cluster.

    Parameters and fitted attributes are those of the plain estimator. Only ``inference="variational"`` (the default)
    and squared losses are supported. Chunks of `X` may be sparse.

    Examples
    --------
    >>> import dask.array as da
    >>> from distributed import Client
    >>> from regbayes.dask import MedLDAClassifier
    >>> X = da.random.default_rng(0).poisson(1.0, size=(100, 20), chunks=(50, 20))
    >>> with Client(processes=False, dashboard_address=":0"):
    ...     MedLDAClassifier(2, tol=0.1, random_state=0).fit(X, X[:, 0] > 0).predict(X).shape
    (100,)
    """

    _ask = staticmethod(ask_labels)
    __init__ = with_defaults(medlda.MedLDAClassifier.__init__, inference="variational")

    def _read_targets(self, source: DaskSource, plain: Any, several: bool) -> Strata:
        self._several = several
        if not several:
            labels, strata = self._read_classes(source)
            cost_matrix(self.cost, len(self.classes_))
            # "balanced" refers to all documents, not to those of one block.
            plain.class_weight = dict(
                zip(self.classes_.tolist(), labels.weights_by_class(self.class_weight), strict=True)
            )
            return strata
        if self.cost is not None or self.class_weight is not None:
            raise ValueError("cost and class_weight are for classes, but y has indicators of several labels")
        self._count_labels(source)
        return Strata.alone(len(source))


class MedLDARegressor(OnClusterTopics, medlda.MedLDARegressor):
    """`regbayes.MedLDARegressor` for documents on the workers of a Dask cluster.

    Parameters and fitted attributes are those of the plain estimator. Only ``inference="variational"`` (the default)
    and squared losses are supported. Chunks of `X` may be sparse.

    Examples
    --------
    >>> import dask.array as da
    >>> from distributed import Client
    >>> from regbayes.dask import MedLDARegressor
    >>> X = da.random.default_rng(0).poisson(1.0, size=(100, 20), chunks=(50, 20))
    >>> with Client(processes=False, dashboard_address=":0"):
    ...     MedLDARegressor(2, tol=0.1, random_state=0).fit(X, X[:, 0]).predict(X).shape
    (100,)
    """

    _ask = staticmethod(ask_numbers)
    __init__ = with_defaults(medlda.MedLDARegressor.__init__, inference="variational")

    def _read_targets(self, source: DaskSource, plain: Any, several: bool) -> Strata:
        self._single, moments = not several, source.summarize(spread_of_targets).moments
        scale = np.sqrt(moments.squares / moments.weight)
        self._mean, self._scale = moments.mean, np.where(scale > 0, scale, 1.0)
        return Strata.alone(len(source))
