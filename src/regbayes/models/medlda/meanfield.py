"""Mean-field MedLDA with margins on label-free features.

S mean-field sweeps infer the topics of a document *without its response*, for training and new documents alike. This is
RegBayes over a smaller family. Margins act on the word distributions through the sweeps, with exact gradients. The
model is a `JointModel` whose position is the logits of the topics; `joint.descent` fits it, so J never increases.
docs/math.md 5.6, eq. (66)-(71). Without targets the model is latent Dirichlet allocation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import pairwise
from typing import Any

import numpy as np

from regbayes._registry import persistable
from regbayes._types import Floats
from regbayes.engine import DiminishingReturns, Executor, FitResult, Progress, Status
from regbayes.joint import descent
from regbayes.joint.descent import DescentOptions, Search, ToleranceSchedule
from regbayes.joint.model import Inferred, JointModel, RowSums
from regbayes.joint.problem import Evaluation, JointProblem, hold_rows
from regbayes.kernels import cuda
from regbayes.kernels.arrays import DeviceArray, gather, is_plain, namespace_of, sum_of, to_device, to_host
from regbayes.kernels.arrays_topics import (
    Documents,
    SortedEntries,
    hold_documents,
    infer_documents,
    reverse_documents,
)
from regbayes.kernels.meanfield import WordCounts, as_table, lengths_of
from regbayes.margins.design import Inputs
from regbayes.margins.head import Head, LinearHead, Tolerance
from regbayes.margins.targets import Classes, Signs, Targets
from regbayes.models.medlda.topics import FittedTopics

Callback = Callable[[Progress[FittedTopics]], bool | None]

# Blocks of documents, whose separate tables of words by topics in the backward pass take memory. Each rule has the
# maximum number of blocks, the minimum entries per word of the vocabulary, and the minimum entries of a block. A thread
# keeps at most two tables for any number of blocks.
BLOCK_RULES = ((8, 4, 1 << 15), (64, 16, 1 << 17))

FIRST_MOVE = 0.1  # root mean square of the first change of the logits
FINAL = Tolerance(gap=1e-4, max_epochs=300.0, smoothing=0.03)  # accuracy of the head at the final topics
OPTIONS = DescentOptions(
    tolerance=ToleranceSchedule(
        first=Tolerance(gap=1e-3, max_epochs=20.0), gap_share=0.1, gap_range=(1e-6, 1e-3), epoch_range=(10.0, 40.0)
    ),
    memory=3,  # pairs of tables of words by topics; ten were not better
)

FLOOR = 1e-8  # minimum probability of a word in warm-started topics
CLASS_NOISE = 0.5  # standard deviation of the logits around those of the classes: separates topics of the same class
CORPUS_NOISE = 0.1  # standard deviation of the logits around those of the corpus
SMOOTHING = 1.0  # words of the corpus distribution added to each class, per word of the vocabulary


# --- Model and documents


@dataclass(frozen=True)
class TrainingDocuments:
    """Nonempty documents and their sample weights."""

    counts: WordCounts
    lengths: Any  # (N,), double, on the device of the documents
    weights: Floats  # (N,), in host memory
    order: SortedEntries | None = None  # order of the entries for deterministic sums on a device

    def __len__(self) -> int:
        return len(self.weights)

    @cached_property
    def documents(self) -> Documents:
        """The documents in the form that the kernels take."""
        return Documents(self.counts, self.order)

    @cached_property
    def counted(self) -> Any:
        """The weights on the device of the documents, (N,), double."""
        return self.weights if is_plain(self.lengths) else to_device(self.weights, self.lengths)

    def rows(self, rows: slice) -> TrainingDocuments:
        """Return a slice of the documents."""
        if rows == slice(0, len(self)):
            return self
        return TrainingDocuments(self.counts.rows(rows.start, rows.stop), self.lengths[rows], self.weights[rows])

    def count_words(self, n_words: int, weights: Floats) -> Floats:
        """Return the counts of the words over weighted documents, in host memory, shape (V,)."""
        words, numbers, starts = self.documents.here
        row = np.repeat(np.arange(len(self)), np.diff(starts))
        entries = slice(int(starts[0]), int(starts[-1]))
        return np.bincount(words[entries], numbers[entries] * weights[row], n_words).astype(np.float64)

    def cut(self, n_words: int) -> list[slice]:
        """Cut documents into blocks, fewer for large vocabularies, as a function of the corpus alone."""
        if not is_plain(self.lengths):
            return [slice(0, len(self))]  # one block keeps a device busy
        starts = self.counts.starts - self.counts.starts[0]
        n_entries = int(starts[-1])
        allowed = (min(n_entries // max(per_word * n_words, fewest), most) for most, per_word, fewest in BLOCK_RULES)
        n_blocks = max(1, *allowed)
        cuts = np.searchsorted(starts, np.arange(1, n_blocks) * (n_entries / n_blocks))
        edges = [0, *np.minimum(cuts, len(self)).tolist(), len(self)]
        return [slice(first, last) for first, last in pairwise(edges)]


def select_documents(
    documents: WordCounts,
    targets: Targets | None,
    sample_weight: Floats | None,
    n_words: int = 0,
    n_topics: int = 0,
    in_order: bool = False,
) -> tuple[TrainingDocuments, Targets | None]:
    """Return the nonempty documents and their targets, with C multiplied by the sample weights.

    With ``in_order``, sums on a device are taken in a fixed order for ``n_words`` and ``n_topics``.
    """
    lengths, starts = lengths_of(documents), to_host(documents.starts)
    rows = np.flatnonzero(lengths > 0)
    weights = np.ones(len(rows)) if sample_weight is None else sample_weight[rows].astype(np.float64)
    if targets is not None:
        targets = targets.take(rows)
        targets = replace(targets, C=(targets.C.T * weights).T)
    kept, held = np.append(starts[rows], starts[-1]), lengths[rows]
    if is_plain(documents.numbers):
        return TrainingDocuments(documents._replace(starts=kept), held, weights), targets
    xp = namespace_of(documents.numbers)
    if len(rows) < len(lengths):
        documents = documents._replace(starts=to_device(kept, documents.words, xp.int64))
    there = to_device(held, documents.numbers, xp.float64)
    order = hold_documents(documents, n_words, n_topics, in_order).order
    return TrainingDocuments(documents, there, weights, order), targets


@persistable(name="regbayes.medlda.TopicLogits")
@dataclass(frozen=True)
class TopicLogits:
    """Topics as parameters of the descent."""

    logits: Any  # (V, K): log-probabilities of words in topics, up to a constant for each topic
    table: Any  # (V, columns): probabilities, padded for compiled loops
    log_sum: float  # sum of the logarithms of all probabilities


def make_topics(logits: DeviceArray) -> TopicLogits:
    """Return the topics for logits, in their precision."""
    xp = namespace_of(logits)
    shifted = logits - xp.max(logits, axis=0)
    weight = xp.exp(shifted)
    mass = sum_of(weight, axis=0)
    log_sum = float(sum_of(shifted)) - logits.shape[0] * float(xp.sum(xp.log(mass)))
    table = weight / mass
    single = isinstance(table, np.ndarray) and logits.dtype == np.float32
    return TopicLogits(logits, as_table(table) if single else xp.astype(table, logits.dtype, copy=False), log_sum)


@persistable(name="regbayes.medlda.BoundSums")
@dataclass(frozen=True)
class BoundSums(RowSums):
    """Sums over documents."""

    likelihood: float  # negative log-likelihood of words and topics
    kl_proportions: float
    tokens: Floats  # (K,): expected tokens in topics


@dataclass(frozen=True)
class TableSums(RowSums):
    """Sums over documents of derivatives with respect to the word probabilities."""

    by_table: Any  # (V, columns)


@dataclass(frozen=True)
class WordInputs:
    """Words as inputs of the head in addition to topics, reduced to few directions."""

    values: Floats  # (N, R): tf-idf of the documents along the directions
    directions: Floats  # (R, V)


@dataclass(frozen=True)
class LabelFreeTopics(JointModel[TrainingDocuments, TopicLogits, BoundSums, TableSums]):
    """Topic model with a fixed number of label-free sweeps per document."""

    doc_prior: Floats  # (K,)
    word_prior: float
    n_sweeps: int
    word_directions: Floats | None = None  # (R, V): those of the head's `WordInputs`

    def infer(self, rows: TrainingDocuments, params: TopicLogits) -> Inferred[BoundSums]:
        """Infer documents, docs/math.md eq. (66); the features are topic shares and the cache is gamma."""
        found = infer_documents(rows.documents, self._table(rows, params), self.doc_prior, self.n_sweeps, keep_all=True)
        K = len(self.doc_prior)
        prior = self.doc_prior if is_plain(rows.lengths) else to_device(self.doc_prior, rows.lengths)
        tokens = found.gamma[:, :K] - prior  # in double precision, like the prior
        sums = (rows.counted @ part for part in (found.likelihoods, found.divergences, tokens))
        likelihood, divergence, by_topic = gather(*sums)
        tokens /= rows.lengths[:, None]
        return Inferred(tokens, BoundSums(-float(likelihood), float(divergence), by_topic), cache=found.gammas)

    def pull_back(
        self, rows: TrainingDocuments, params: TopicLogits, inferred: Inferred[BoundSums], gradient: Any
    ) -> TableSums:
        """Differentiate the bound and the head's value through the sweeps, docs/math.md eq. (69), (70)."""
        gammas, K = inferred.cache, len(self.doc_prior)
        xp = namespace_of(gammas)
        by_gamma = xp.zeros((gammas.shape[0], gammas.shape[2]), dtype=gammas.dtype, device=gammas.device)
        if gradient is not None:
            by_gamma[:, :K] = xp.astype(gradient / rows.lengths[:, None], gammas.dtype)
        weights = xp.astype(rows.counted, gammas.dtype)
        table = self._table(rows, params)
        found = reverse_documents(rows.documents, table, self.doc_prior, self.n_sweeps, gammas, by_gamma, weights)
        if is_plain(params.table) and not is_plain(found):  # parameters of a cluster are on the host
            return TableSums(to_host(found).astype(np.float32))
        return TableSums(found)

    def terms(self, params: TopicLogits, stats: BoundSums) -> dict[str, float]:
        """Return the negative bound on the log-probability of the words, and the negative log prior of the topics."""
        return {
            "likelihood": stats.likelihood,
            "kl_proportions": stats.kl_proportions,
            "kl_topics": -self.word_prior * params.log_sum,
        }

    def gradient(self, params: TopicLogits, stats: BoundSums, pulled: TableSums) -> Any:
        """Return the derivatives with respect to the logits, docs/math.md eq. (71)."""
        K = len(self.doc_prior)
        topics = params.table[:, :K]
        xp = namespace_of(topics)
        found = pulled.by_table[:, :K] * topics
        total = sum_of(found, axis=0) - self.word_prior * topics.shape[0]
        found -= topics * xp.astype(total, found.dtype)
        found -= self.word_prior
        return xp.astype(found, topics.dtype, copy=False)

    def position(self, params: TopicLogits) -> Any:
        """Return the logits."""
        return params.logits

    def move(self, params: TopicLogits, position: Any) -> TopicLogits:
        """Return the topics for these logits."""
        return make_topics(namespace_of(position).astype(position, params.logits.dtype, copy=False))

    def first_length(self, params: TopicLogits) -> float:
        """Return the length of the first step in logits."""
        return FIRST_MOVE * math.sqrt(math.prod(params.logits.shape))

    def _table(self, rows: TrainingDocuments, params: TopicLogits) -> Any:
        if is_plain(rows.lengths) or not is_plain(params.table):
            return params.table
        return to_device(params.table[:, : len(self.doc_prior)], rows.counts.numbers)


# --- Fit


@persistable(name="regbayes.medlda.meanfield.Settings")
@dataclass(frozen=True)
class Settings:
    """Settings of a fit."""

    n_components: int  # K
    doc_topic_prior: float  # alpha, Dirichlet parameter of each topic
    topic_word_prior: float
    weight_variance: float  # v^2
    squared: bool  # whether losses are squared
    n_sweeps: int  # sweeps of label-free inference
    max_iter: int
    tol: float  # stops when five steps gain less than this share of the total decrease
    seed: int


def fit(  # noqa: PLR0913 - options, all by name
    documents: WordCounts,
    n_words: int,
    targets: Targets | None,
    settings: Settings,
    *,
    executor: Executor,
    sample_weight: Floats | None = None,
    start: FittedTopics | None = None,
    callbacks: Sequence[Callback] = (),
    in_order: bool = False,
    words: WordInputs | None = None,
) -> FitResult[FittedTopics]:
    """Fit topics and weights.

    Parameters
    ----------
    documents : WordCounts
        Empty documents are dropped.
    n_words : int
        The size of the vocabulary.
    targets : Targets or None
        Targets of all documents. None is latent Dirichlet allocation.
    settings : Settings
    executor : Executor
        Executes the blocks of documents; the result does not depend on it.
    sample_weight : (N,), default=None
        Positive weight of each document, 1 by default.
    start : FittedTopics, default=None
        Topics to warm-start from.
    callbacks : sequence of callable
        Each receives the `Progress` of every step.
    in_order : bool, default=False
        Whether sums on a device are always taken in the same order.
    words : WordInputs, default=None
        Words of all documents, as inputs of the head.

    Returns
    -------
    FitResult
        The objective in its trace never increases.
    """
    check_order(documents, settings, in_order)
    kept, asked = select_documents(documents, targets, sample_weight, n_words, settings.n_components, in_order)
    if words is not None:
        words = replace(words, values=words.values[lengths_of(documents) > 0])
    problem = label_free_problem(kept, n_words, asked, settings, executor, words)
    logits = first_logits(kept, n_words, asked, settings.n_components, settings.seed, start)
    numbers = documents.numbers
    topics = make_topics(logits.astype(numbers.dtype) if is_plain(numbers) else to_device(logits, numbers))
    return descend(problem, topics, settings, callbacks)


Problem = JointProblem[TrainingDocuments, TopicLogits, BoundSums]


def make_model(settings: Settings) -> LabelFreeTopics:
    """Return the model that the settings specify."""
    doc_prior = np.full(settings.n_components, settings.doc_topic_prior)
    return LabelFreeTopics(doc_prior, settings.topic_word_prior, settings.n_sweeps)


def label_free_problem(
    documents: TrainingDocuments,
    n_words: int,
    targets: Targets | None,
    settings: Settings,
    executor: Executor,
    words: WordInputs | None = None,
) -> Problem:
    """Return the descent problem of the model with a head on its shares, and on words if given."""
    model, head = make_model(settings), None if targets is None else make_head(documents, targets, settings)
    if words is not None and head is not None:
        model, head = replace(model, word_directions=words.directions), replace(head, inputs=Inputs(words.values))
    blocks = hold_rows([documents.rows(rows) for rows in documents.cut(n_words)], executor)
    return JointProblem(model, blocks, head, OPTIONS)


def make_head(documents: TrainingDocuments, targets: Targets, settings: Settings) -> Head:
    """Return a head with an intercept on the shares, centered because they are far from zero."""
    variance = settings.weight_variance
    return Head(targets, settings.squared, weight_variance=variance, row_weights=documents.weights)


def check_order(documents: WordCounts, settings: Settings, in_order: bool) -> None:
    """Raise an error if the kernels cannot sum in a fixed order."""
    K, numbers = settings.n_components, documents.numbers
    if in_order and cuda.is_cuda(numbers) and not cuda.takes(numbers, K, settings.n_sweeps):
        raise ValueError(f"deterministic=True takes at most {cuda.MOST_TOPICS} topics and few sweeps on a GPU; got {K}")


def descend(
    problem: Problem, topics: TopicLogits, settings: Settings, callbacks: Sequence[Callback] = ()
) -> FitResult[FittedTopics]:
    """Descend from initial topics over local or remote documents, and solve for the head at the end."""
    result: FitResult[Any] = descent.fit_joint(
        problem,
        topics,
        max_iter=settings.max_iter,
        stop=DiminishingReturns(settings.tol),
        callbacks=callbacks,
        view=partial(finish, problem),
    )
    try:
        return replace(result, state=finish(problem, result.state))
    except KeyboardInterrupt:  # the result has the head of the last step and an interrupted status
        return replace(result, state=finish(problem, result.state, None), status=Status.INTERRUPTED)


def finish(
    problem: Problem, search: Search[TopicLogits, BoundSums], tolerance: Tolerance | None = FINAL
) -> FittedTopics:
    """Return the fitted model; a tolerance solves for the head once more, None keeps it."""
    at, model, head = search.at, problem.model, search.at.head
    assert isinstance(model, LabelFreeTopics)
    if head is not None and tolerance is not None:
        head = problem.solve(problem.infer(at.params), at.warm_start, tolerance)
    return fitted_topics(at, model, None if head is None else head.head)


def fitted_topics(
    at: Evaluation[TopicLogits, BoundSums], model: LabelFreeTopics, head: LinearHead | None
) -> FittedTopics:
    """Return the topics at which a descent ended, with an optional head, for prediction."""
    return FittedTopics(
        word_given_topic=np.ascontiguousarray(to_host(at.params.table)[:, : len(model.doc_prior)]),
        topic_total=at.stats.tokens,
        doc_prior=model.doc_prior,
        weights=np.zeros((0, len(model.doc_prior))) if head is None else fold_intercept(head),
        shares=at.stats.tokens / at.stats.tokens.sum(),
        n_sweeps=model.n_sweeps,
        collapsed=False,
        word_weights=None
        if head is None or model.word_directions is None
        else head.weights[:, len(model.doc_prior) : -1] @ model.word_directions,
    )


def fold_intercept(head: LinearHead) -> Floats:
    """Fold the intercept into the weights of shares that sum to one, shape (L, K)."""
    weights = head.feature_weights
    return weights + (head.weights[:, -1] - weights @ head.centre)[:, None]


# --- Initial topics


@dataclass(frozen=True)
class GroupCounts(RowSums):
    """Counts of the words in documents."""

    corpus: Floats  # (V,)
    groups: Floats  # (V, G): counts by group of documents; G = 0 without classes


def first_logits(
    documents: TrainingDocuments,
    n_words: int,
    targets: Targets | None,
    n_topics: int,
    seed: int,
    start: FittedTopics | None,
) -> Floats:
    """Return initial logits from earlier topics, from the words of the classes, or from the corpus."""
    if start is not None:
        return np.log(np.maximum(start.word_given_topic, FLOOR)).astype(np.float64)
    counts = count_groups(documents, n_words, find_membership(targets), n_topics)
    return draw_logits(counts, n_topics, np.random.default_rng(seed))


def find_membership(targets: Targets | None) -> Floats | None:
    """Return the membership of documents in classes, (N, L), or None without classes."""
    if isinstance(targets, Classes):
        return np.eye(targets.n_outputs)[targets.labels]
    if isinstance(targets, Signs):
        positive = (targets.signs > 0).astype(np.float64)
        # With a single response, the negative documents form a second class.
        return np.hstack([positive, 1.0 - positive]) if positive.shape[1] == 1 else positive
    return None


def count_groups(documents: TrainingDocuments, n_words: int, membership: Floats | None, n_topics: int) -> GroupCounts:
    """Count the words of the corpus and of groups of classes, at most one per topic."""
    corpus = documents.count_words(n_words, documents.weights)
    if membership is None:
        return GroupCounts(corpus, np.zeros((n_words, 0)))
    n_groups = min(membership.shape[1], n_topics)
    owner = np.arange(membership.shape[1]) % n_groups
    shares = (membership[:, owner == group].sum(axis=1) for group in range(n_groups))
    return GroupCounts(corpus, np.stack([documents.count_words(n_words, documents.weights * of) for of in shares], 1))


def draw_logits(counts: GroupCounts, n_topics: int, rng: np.random.Generator) -> Floats:
    """Draw noisy logits of topics, (V, K), around the groups in turn or around the corpus."""
    frequency, (n_words, n_groups) = counts.corpus + 0.5, counts.groups.shape
    if n_groups == 0:
        return np.log(frequency)[:, None] + CORPUS_NOISE * rng.standard_normal((n_words, n_topics))
    smooth = counts.groups + SMOOTHING * (frequency / frequency.mean())[:, None]
    logits = np.log(smooth / smooth.sum(axis=0))
    return logits[:, np.arange(n_topics) % n_groups] + CLASS_NOISE * rng.standard_normal((n_words, n_topics))
