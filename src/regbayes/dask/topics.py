"""`MedLDAClassifier` and `MedLDARegressor` over documents on a cluster, by mean field."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple, dataclass, replace
from functools import partial
from operator import add
from typing import Any, ClassVar, Self

import numpy as np

from regbayes._types import Floats, Integers
from regbayes.dask._bases import (
    Labels,
    Moments,
    OnClusterLearner,
    code_labels,
    in_memory,
    lazily,
    sample_size,
    with_defaults,
)
from regbayes.dask.rows import READ_COUNTS, DaskSource
from regbayes.engine.source import Samples, Strata
from regbayes.estimators import medlda, medlda_regressor
from regbayes.estimators._bases import FitReporter, cost_matrix, fit_data, one_blas_thread, warn_of_status
from regbayes.estimators._topics import TopicModel, as_documents
from regbayes.joint.problem import JointProblem, RowBlock, SampledHead
from regbayes.kernels.meanfield import lengths_of
from regbayes.margins.targets import Targets
from regbayes.models.medlda import meanfield

# --- on the workers


@dataclass(frozen=True)
class Recipe:
    """All that makes a block of documents with targets from a block as it was read."""

    ask: Callable[[Samples], Targets | None]  # what is asked of documents with such responses
    settings: meanfield.Settings
    in_order: bool = False  # whether sums over documents on a device are always taken in the same order

    def documents(self, block: Samples) -> tuple[Any, Targets | None]:
        """Return the documents that have words, where they lie, and their targets."""
        counts, settings = as_documents(block.X), self.settings
        meanfield.check_order(counts, settings, self.in_order)
        shape = block.X.shape[1], settings.n_components
        return meanfield.select_documents(counts, self.ask(block), block.weights, *shape, self.in_order)


def hold(block: Samples, recipe: Recipe) -> RowBlock[Any] | None:
    """Return documents as the model takes them, in pieces, with what is asked of them; None without a word."""
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
class Words:
    """How many documents there are, with words and without, and what those with words count."""

    n_documents: int  # all of them
    n_filled: int
    weight: float  # of those with words
    n_words: float
    n_entries: int

    def __add__(self, other: Words) -> Words:
        return Words(*map(add, astuple(self), astuple(other)))

    def check(self) -> None:
        """Raise where there is nothing to learn from."""
        if self.n_documents < 2:
            raise ValueError(f"X has {self.n_documents} row(s) that count, and a minimum of 2 is required")
        if self.n_filled == 0:
            raise ValueError("X has no words: all documents are empty")


def count_words(block: Samples) -> Words:
    """Say how many documents and words a block has."""
    counts = as_documents(block.X)
    lengths, n_entries = lengths_of(counts), int(counts.numbers.shape[0])
    weights = np.ones(len(block)) if block.weights is None else block.weights
    filled = lengths > 0
    n_filled, n_words = int(np.count_nonzero(filled)), float(weights @ lengths)
    return Words(len(block), n_filled, float(weights[filled].sum()), n_words, n_entries)


@dataclass(frozen=True)
class Indicators:
    """Indicators of several labels: how many rows have each first, which is their kind."""

    n_labels: int
    counts: Integers  # (n_labels,)

    def __add__(self, other: Indicators) -> Indicators:
        if self.n_labels != other.n_labels:
            raise ValueError(f"y has {self.n_labels} labels in some blocks and {other.n_labels} in others")
        return Indicators(self.n_labels, self.counts + other.counts)


def read_classes(block: Samples) -> Labels | Indicators:
    """Return the classes of a block, or what there is to say of indicators."""
    y = block.y
    assert y is not None
    if y.ndim == 1:
        return Labels.of(block)
    if not np.all((y == 0) | (y == 1)):
        raise ValueError("indicators of labels in y must be 0 or 1")
    return Indicators(y.shape[1], np.bincount(y.argmax(axis=1), minlength=y.shape[1]))


def read_numbers(block: Samples) -> Moments:
    """Return mean and spread of the numbers of a block."""
    return Moments.of(_columns(block), block.weights)


def _columns(block: Samples) -> Floats:
    assert block.y is not None
    try:
        values = block.y.astype(np.float64)
    except (TypeError, ValueError):
        raise ValueError(f"y must hold numbers, got {block.y[:1].tolist()} in a block") from None
    return values[:, None] if values.ndim == 1 else values


def _first_label(block: Samples) -> Integers:
    assert block.y is not None
    return block.y.argmax(axis=1)


# --- on the client


class OnClusterTopics(OnClusterLearner):
    """Topics of documents on a cluster."""

    _local_only: ClassVar[dict[str, Any]] = {"inference": "gibbs", "loss": ("hinge", "epsilon_insensitive")}
    _read_targets: ClassVar[Callable[[Samples], Any]]
    transform = lazily(TopicModel.transform)

    def _note_targets(self, found: Any, n_documents: int) -> Strata:
        """Learn what targets are; return the kinds of documents that they make."""
        raise NotImplementedError

    def _asking(self, found: Any) -> Callable[[Samples], Targets | None]:
        """Return what makes margins of a block's targets, once these are known."""
        raise NotImplementedError

    def _fit_rows(self, X: Any, y: Any, sample_weight: Any, client: Any) -> Self:
        source = self._place(client, READ_COUNTS, X, y, sample_weight)
        every: Words = source.summarize(count_words)
        every.check()
        found = source.summarize(type(self)._read_targets)
        strata = self._note_targets(found, every.n_documents)
        self._mean_length = every.n_words / every.weight
        settings = replace(self._label_free_settings(), squared=True)
        recipe = Recipe(self._asking(found), settings, bool(self.deterministic))
        sample = self._draw(source, strata, every)
        logits = self._first_logits(source, recipe)
        held = source.persist(hold, recipe)
        del source  # what was read lives on in what is held
        here = hold(sample, recipe)
        assert here is not None
        documents, asked = recipe.documents(sample)
        head = None
        if asked is not None:
            share = min(sum(here.lengths) / every.n_filled, 1.0)
            head = SampledHead(meanfield.make_head(documents, asked, settings), here, share)
        problem = JointProblem(meanfield.make_model(settings), held, head, meanfield.OPTIONS)
        topics = meanfield.make_topics(logits.astype(np.float32))
        most = settings.max_iter
        with one_blas_thread(), FitReporter(self, most, fit_data(X, y), self._attributes, self.verbose) as reporter:
            result = meanfield.descend(problem, topics, settings, [reporter])
            self._set_fitted(self._attributes(result.state), result)
        warn_of_status(self, result)
        return self

    def _first_logits(self, source: DaskSource, recipe: Recipe) -> Floats:
        """Return where topics begin: at an earlier fit, or the words of the classes."""
        earlier, settings = self._earlier_topics(self.n_features_in_), recipe.settings
        if earlier is not None:
            return np.log(np.maximum(earlier.word_given_topic, meanfield.FLOOR))
        counts = source.summarize(count_groups, recipe)
        return meanfield.draw_logits(counts, settings.n_components, np.random.default_rng(settings.seed))

    def _plain_like(self, **changed: Any) -> Any:
        """Return the plain estimator with what is known of targets and lengths by now."""
        local = self._plain(**self.get_params(deep=False) | changed)
        names = ("classes_", "_several", "_mean_length", "_mean", "_scale")
        vars(local).update({name: vars(self)[name] for name in names if name in vars(self)})
        return local

    def _draw(self, source: DaskSource, strata: Strata, every: Words) -> Samples:
        """Bring a sample here, in an order of which every beginning is a sample."""
        n_outputs = max(len(strata.sizes), 1)
        row_bytes = 12.0 * every.n_entries / max(every.n_documents, 1)
        wanted = sample_size(int(self.n_components) + 1, n_outputs, n_outputs > 2, row_bytes)
        return source.sample(wanted, strata)


class MedLDAClassifier(OnClusterTopics, medlda.MedLDAClassifier):
    """`regbayes.MedLDAClassifier` over documents on the workers of a Dask cluster, by mean field.

    Parameters and fitted attributes are those of the plain estimator, but ``inference="variational"`` is the default
    and the only one, with squared losses. Blocks of X may be sparse.
    """

    _plain: ClassVar[type[Any]] = medlda.MedLDAClassifier
    _read_targets: ClassVar[Callable[[Samples], Any]] = staticmethod(read_classes)
    __init__ = with_defaults(medlda.MedLDAClassifier.__init__, inference="variational")

    predict = lazily(medlda.MedLDAClassifier.predict)
    decision_function = lazily(medlda.MedLDAClassifier.decision_function)
    partial_fit = in_memory(medlda.MedLDAClassifier.partial_fit)
    fit_weights = in_memory(medlda.MedLDAClassifier.fit_weights)

    def _note_targets(self, found: Labels | Indicators, n_documents: int) -> Strata:
        self._several = isinstance(found, Indicators)
        if isinstance(found, Indicators):
            if self.cost is not None or self.class_weight is not None:
                raise ValueError("cost and class_weight are for classes, but y has indicators of several labels")
            self.classes_ = np.arange(found.n_labels)
            return Strata(found.counts, _first_label)
        found.check(self)
        self.classes_ = found.classes
        cost_matrix(self.cost, len(found.classes))
        return Strata(found.counts, partial(code_labels, classes=found.classes, unlabeled=None, rest=0))

    def _asking(self, found: Labels | Indicators) -> Callable[[Samples], Targets | None]:
        if isinstance(found, Indicators):
            return partial(_ask_indicators, local=self._plain_like())
        factors = found.weights_by_class(self.class_weight).tolist()
        by_class = dict(zip(found.classes.tolist(), factors, strict=True))
        return partial(_ask_classes, local=self._plain_like(class_weight=by_class))


def _ask_classes(block: Samples, local: Any) -> Targets | None:
    codes = code_labels(block, local.classes_, None, 0)
    return (local._signs if len(local.classes_) == 2 else local._classes)(codes, None)


def _ask_indicators(block: Samples, local: Any) -> Targets | None:
    assert block.y is not None
    return local._signs(block.y.astype(np.int64), None)


class MedLDARegressor(OnClusterTopics, medlda_regressor.MedLDARegressor):
    """`regbayes.MedLDARegressor` over documents on the workers of a Dask cluster, by mean field.

    Parameters and fitted attributes are those of the plain estimator, but ``inference="variational"`` is the default
    and the only one, with squared losses. Blocks of X may be sparse.
    """

    _plain: ClassVar[type[Any]] = medlda_regressor.MedLDARegressor
    _read_targets: ClassVar[Callable[[Samples], Any]] = staticmethod(read_numbers)
    __init__ = with_defaults(medlda_regressor.MedLDARegressor.__init__, inference="variational")

    predict = lazily(medlda_regressor.MedLDARegressor.predict)
    partial_fit = in_memory(medlda_regressor.MedLDARegressor.partial_fit)
    fit_weights = in_memory(medlda_regressor.MedLDARegressor.fit_weights)

    def _fit_rows(self, X: Any, y: Any, sample_weight: Any, client: Any) -> Self:
        self._single = getattr(y, "ndim", 1) == 1 or y.shape[1] == 1
        return super()._fit_rows(X, y, sample_weight, client)

    def _note_targets(self, found: Moments, n_documents: int) -> Strata:
        self._mean, scale = found.mean, np.sqrt(found.squares / found.weight)
        self._scale = np.where(scale > 0, scale, 1.0)
        return Strata.alone(n_documents)

    def _asking(self, found: Moments) -> Callable[[Samples], Targets | None]:
        return partial(_ask_numbers, local=self._plain_like())


def _ask_numbers(block: Samples, local: Any) -> Targets | None:
    return local._numbers(_columns(block))
