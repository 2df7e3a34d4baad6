"""Mean field over documents on a device: `meanfield` with documents and tables that lie there.

The corpus, what inference finds for it and the tables of words by topics stay on the device; sums of the size of the
topics and the weights of the head come to the host, where Newton's method and the decisions of the descent are.

    documents                  what is held, and how much memory a document takes
    model and head             the JointModel, and margins of all kinds of targets
    fit, new documents         from documents and targets to `FittedTopics`; proportions and bounds by them
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from regbayes._types import Floats, Integers
from regbayes.engine import DiminishingReturns, FitResult
from regbayes.engine.source import order_sample
from regbayes.joint import descent
from regbayes.joint.descent import Search
from regbayes.joint.model import Inferred
from regbayes.joint.problem import Evaluation, JointProblem, hold_rows
from regbayes.kernels.arrays import DeviceArray, gather, namespace_of, sum_of, to_device, to_host
from regbayes.kernels.arrays_losses import HingeRows, TubeRows
from regbayes.kernels.arrays_topics import (
    DeviceDocuments,
    add_at,
    hold_documents,
    infer_documents,
    prior_divergence,
    reverse_documents,
)
from regbayes.kernels.meanfield import WordCounts, cuda
from regbayes.margins.device import DeviceHead
from regbayes.margins.targets import Classes, Numbers, Targets
from regbayes.models.medlda import meanfield
from regbayes.models.medlda.meanfield import (
    FINAL,
    OPTIONS,
    BoundSums,
    Callback,
    LabelFreeTopics,
    Settings,
    TableSums,
    TopicLogits,
    TrainingDocuments,
    first_logits,
)
from regbayes.models.medlda.topics import UNTIL_SETTLED, FittedTopics

ROW_ARRAYS = 5  # of documents by topics, in double precision, that a fit has at its most, beside what sweeps found
TABLES = 16  # of words by topics: what L-BFGS remembers, and what it works with
COUNTED_ENTRIES = 1 << 24  # whose words are counted at once


# --- Documents


@dataclass(frozen=True)
class DeviceCorpus:
    """Documents as they were given, and the size of the vocabulary."""

    counts: WordCounts  # arrays of the device; numbers have the precision of the work
    n_words: int
    starts: Integers  # (N + 1,): where documents begin, on the host

    @property
    def shape(self) -> tuple[int, int]:
        """Documents and words, as of a matrix of counts."""
        return len(self.starts) - 1, self.n_words

    @cached_property
    def lengths(self) -> Floats:
        """Words of each document, on the host, shape (N,)."""
        numbers = self.counts.numbers
        xp = namespace_of(numbers)
        zero = xp.zeros(1, dtype=xp.float64, device=numbers.device)
        ends = xp.concat([zero, xp.cumulative_sum(xp.astype(numbers, xp.float64))])
        return np.diff(to_host(xp.take(ends, self.counts.starts)))

    def __getitem__(self, rows: Integers) -> DeviceCorpus:
        """Return some documents."""
        if len(rows) == self.shape[0] and np.array_equal(rows, np.arange(len(rows))):
            return self
        words, numbers, _ = self.counts
        xp, sizes = namespace_of(words), np.diff(self.starts)[rows]
        starts = np.concatenate([[0], np.cumsum(sizes)])
        entries = to_device(np.repeat(self.starts[rows] - starts[:-1], sizes) + np.arange(starts[-1]), words, xp.int64)
        there = to_device(starts, words, xp.int64)
        return DeviceCorpus(WordCounts(xp.take(words, entries), xp.take(numbers, entries), there), self.n_words, starts)

    def on_host(self) -> WordCounts:
        """Return the documents as they are on the host."""
        return WordCounts(*map(to_host, self.counts))


def n_bytes(
    n_documents: int, n_entries: int, n_words: int, n_topics: int, n_sweeps: int, itemsize: int
) -> tuple[float, float]:
    """Return the memory that a document takes in a fit, on average, and what tables of words by topics take."""
    of_topics = (8.0 * ROW_ARRAYS + itemsize * n_sweeps) * n_topics
    per_document = (4 + itemsize) * n_entries / max(n_documents, 1) + of_topics
    return per_document, float(TABLES * itemsize * n_words * n_topics)


@dataclass(frozen=True)
class DeviceTraining:
    """Documents with words, and how often each counts."""

    documents: DeviceDocuments
    lengths: DeviceArray  # (N,), double
    weights: Floats  # (N,), on the host
    weighed: DeviceArray  # (N,), double: the same on the device

    def __len__(self) -> int:
        return len(self.weights)

    def count_words(self, n_words: int, weights: Floats) -> Floats:
        """Return how often each word occurs in documents that count so often, on the host, shape (V,)."""
        words, numbers, starts = self.documents.counts
        xp, factors = namespace_of(words), to_device(weights, self.lengths)
        found = xp.zeros(n_words, dtype=xp.float64, device=words.device)
        begin, end = int(self.documents.starts[0]), int(self.documents.starts[-1])
        for first in range(begin, end, COUNTED_ENTRIES):
            entries = slice(first, min(first + COUNTED_ENTRIES, end))
            places = xp.arange(entries.start, entries.stop, dtype=xp.int64, device=words.device)
            document = xp.searchsorted(starts, places, side="right") - 1
            each = xp.take(factors, document) * xp.astype(numbers[entries], xp.float64)
            found = add_at(found, xp.astype(words[entries], xp.int64), each)
        return to_host(found)


def select_documents(
    corpus: DeviceCorpus, targets: Targets | None, sample_weight: Floats | None, n_topics: int, in_order: bool
) -> tuple[DeviceTraining, Targets | None]:
    """Return the documents that have words, and what is asked of them, with a C that counts as the documents do."""
    rows = np.flatnonzero(corpus.lengths > 0)
    starts = np.append(corpus.starts[rows], corpus.starts[-1])
    counts = corpus.counts
    if len(rows) < corpus.shape[0]:
        counts = counts._replace(starts=to_device(starts, counts.words, namespace_of(counts.words).int64))
    weights = np.ones(len(rows)) if sample_weight is None else sample_weight[rows].astype(np.float64)
    if targets is not None:
        targets = targets.take(rows)
        targets = replace(targets, C=(targets.C.T * weights).T)
    documents = hold_documents(counts, corpus.n_words, n_topics, in_order)
    double = namespace_of(counts.words).float64
    lengths = to_device(corpus.lengths[rows], counts.numbers, double)
    return DeviceTraining(documents, lengths, weights, to_device(weights, counts.numbers, double)), targets


# --- Model and head


def make_topics(logits: DeviceArray) -> TopicLogits:
    """Return the topics that logits stand for, on the device and not padded."""
    xp = namespace_of(logits)
    shifted = logits - xp.max(logits, axis=0)
    weight = xp.exp(shifted)
    mass = sum_of(weight, axis=0)
    log_sum = float(sum_of(shifted)) - logits.shape[0] * float(xp.sum(xp.log(mass)))
    return TopicLogits(logits, weight / xp.astype(mass, logits.dtype), log_sum)


@dataclass(frozen=True)
class DeviceTopics(LabelFreeTopics):
    """`LabelFreeTopics` whose documents and tables lie on a device."""

    def infer(self, rows: Any, params: TopicLogits) -> Inferred[BoundSums]:
        """Make the sweeps; features are the shares of topics, and what every sweep found is kept."""
        found = infer_documents(rows.documents, params.table, self.doc_prior, self.n_sweeps, keep_all=True)
        tokens = found.gamma - to_device(self.doc_prior, rows.lengths)  # in double precision, as what is taken off
        likelihood, apart, by_topic = gather(
            rows.weighed @ found.likelihoods, rows.weighed @ found.divergences, rows.weighed @ tokens
        )
        divergence = float(apart) + float(rows.weights.sum()) * prior_divergence(self.doc_prior)
        tokens /= rows.lengths[:, None]
        return Inferred(tokens, BoundSums(-float(likelihood), divergence, by_topic), cache=found.gammas)

    def pull_back(
        self, rows: Any, params: TopicLogits, inferred: Inferred[BoundSums], gradient: DeviceArray | None
    ) -> TableSums:
        """Differentiate the bound and the head's value through the sweeps."""
        gammas = inferred.cache
        xp, (n, _, K) = namespace_of(gammas), gammas.shape
        by_gamma = xp.zeros((n, K), dtype=gammas.dtype, device=gammas.device)  # laid out as the kernels read it
        if gradient is not None:
            by_gamma[:, :] = xp.astype(gradient / rows.lengths[:, None], gammas.dtype)
        weights = xp.astype(rows.weighed, gammas.dtype)
        table = reverse_documents(rows.documents, params.table, self.doc_prior, gammas, by_gamma, weights)
        return TableSums(table)

    def gradient(self, params: TopicLogits, stats: BoundSums, pulled: TableSums) -> DeviceArray:
        """Return the derivatives by the logits."""
        xp = namespace_of(params.table)
        found = pulled.by_table * params.table
        total = xp.sum(found, axis=0) - self.word_prior * params.table.shape[0]
        found -= params.table * total
        found -= self.word_prior
        return xp.astype(found, params.table.dtype)

    def move(self, params: TopicLogits, position: DeviceArray) -> TopicLogits:
        """Return topics with these logits."""
        return make_topics(position)

    def first_length(self, params: TopicLogits) -> float:
        """Return the length of the first step, in the units of logits."""
        return meanfield.FIRST_MOVE * math.sqrt(math.prod(params.logits.shape))


@dataclass(frozen=True)
class TopicsHead(DeviceHead):
    """Margins of classes, signs or numbers over documents on a device."""

    targets: Any

    @property
    def mixes(self) -> bool:
        """Whether outputs mix in a row's loss: that of several classes."""
        return isinstance(self.targets, Classes)

    def _targets_of(self, rows: Any, share: float = 1.0) -> Any:
        targets = self.targets
        if isinstance(targets, Classes):
            return super()._targets_of(rows, share)
        C = to_device(targets.C[rows].T / share, self.like)
        if isinstance(targets, Numbers):
            return TubeRows(C, to_device(targets.values[rows].T, self.like), targets.epsilon)
        return HingeRows(C, signs=to_device(targets.signs[rows].T, self.like), margin=targets.margin)

    @cached_property
    def _labeled_order(self) -> Integers:
        targets, kinds = self.targets, None
        if not isinstance(targets, Numbers):
            kinds = targets.labels if isinstance(targets, Classes) else targets.signs.argmax(1)
        return order_sample(kinds, len(targets))


def check_order(corpus: DeviceCorpus, settings: Settings, in_order: bool) -> None:
    """Refuse sums in the same order where the kernels have none."""
    K, numbers = settings.n_components, corpus.counts.numbers
    if in_order and cuda.is_cuda(numbers) and not cuda.takes(numbers, K, settings.n_sweeps):
        raise ValueError(f"deterministic=True takes at most {cuda.MOST_TOPICS} topics and few sweeps on a GPU; got {K}")


def make_head(documents: DeviceTraining, targets: Targets | None, settings: Settings) -> TopicsHead | None:
    """Return the head of documents, or None without targets."""
    if targets is None:
        return None
    return TopicsHead(
        targets,
        settings.squared,
        weight_variance=settings.weight_variance,
        row_weights=documents.weights,
        like=documents.lengths,
    )


# --- Fit


def fit(
    corpus: DeviceCorpus,
    targets: Targets | None,
    settings: Settings,
    *,
    in_order: bool = False,
    sample_weight: Floats | None = None,
    start: FittedTopics | None = None,
    callbacks: Sequence[Callback] = (),
) -> FitResult[FittedTopics]:
    """Fit topics and weights, as `meanfield.fit` does; losses are squared.

    Parameters
    ----------
    corpus : DeviceCorpus
    targets, settings, sample_weight, start, callbacks
        As in `meanfield.fit`.
    in_order : bool, default=False
        Whether sums over documents are always taken in the same order, so that a fit has the same bits every time.
    """
    check_order(corpus, settings, in_order)
    kept, asked = select_documents(corpus, targets, sample_weight, settings.n_components, in_order)
    head = make_head(kept, asked, settings)
    doc_prior = np.full(settings.n_components, settings.doc_topic_prior)
    model = DeviceTopics(doc_prior, settings.topic_word_prior, settings.n_sweeps)
    problem: Any = JointProblem(model, hold_rows([kept]), head, OPTIONS)
    counted: Any = kept
    if in_order:  # sums by word on a device have no order
        host = corpus.on_host()
        selected = host._replace(starts=kept.documents.starts)
        counted = TrainingDocuments(selected, to_host(kept.lengths), kept.weights)
    logits = first_logits(counted, corpus.n_words, asked, settings.n_components, settings.seed, start)
    result: FitResult[Any] = descent.fit_joint(
        problem,
        make_topics(to_device(logits, corpus.counts.numbers)),
        max_iter=settings.max_iter,
        stop=DiminishingReturns(settings.tol),
        callbacks=callbacks,
        view=partial(finish, problem),
    )
    return replace(result, state=finish(problem, result.state))


def finish(problem: Any, search: Search[TopicLogits, BoundSums]) -> FittedTopics:
    """Return the fitted model on the host: the topics, and the head solved for once more, accurately."""
    at: Evaluation[TopicLogits, BoundSums] = search.at
    model: DeviceTopics = problem.model
    if problem.head is None:
        return meanfield.fitted_topics(at, model, None)
    return meanfield.fitted_topics(at, model, problem.solve(problem.infer(at.params), at.warm_start, FINAL).head)


# --- New documents


def takes(fitted: FittedTopics) -> bool:
    """Whether documents on a device can be inferred by a fit: that of mean field with its number of sweeps."""
    return not fitted.collapsed and fitted.n_sweeps != UNTIL_SETTLED


def proportions(corpus: DeviceCorpus, fitted: FittedTopics) -> DeviceArray:
    """Return the expected share of each topic among each document's tokens; of an empty one, that of the corpus."""
    numbers = corpus.counts.numbers
    documents = hold_documents(corpus.counts, corpus.n_words, fitted.n_topics)
    topics = to_device(fitted.word_given_topic, numbers)
    gamma = infer_documents(documents, topics, fitted.doc_prior, fitted.n_sweeps).gamma
    xp = namespace_of(gamma)
    counts = xp.clip(gamma - to_device(fitted.doc_prior, gamma), 0.0, None)
    empty = to_device(corpus.lengths == 0, gamma, xp.bool)
    counts = xp.where(empty[:, None], to_device(fitted.shares, gamma)[None, :], counts)
    return counts / xp.sum(counts, axis=1)[:, None]


def bound(corpus: DeviceCorpus, fitted: FittedTopics) -> float:
    """Return a lower bound on the log-probability of all documents given the topics."""
    documents = hold_documents(corpus.counts, corpus.n_words, fitted.n_topics)
    topics = to_device(fitted.word_given_topic, corpus.counts.numbers)
    found = infer_documents(documents, topics, fitted.doc_prior, fitted.n_sweeps)
    likelihood, apart = gather(sum_of(found.likelihoods), sum_of(found.divergences))
    return float(likelihood) - float(apart) - len(documents) * prior_divergence(fitted.doc_prior)
