"""Mean field with margins on what prediction sees: descent over the topics, through label-free inference.

Topics of a document are what S sweeps of mean field find for it *without its response*, for training and new documents
alike: RegBayes over a smaller family. Margins then act on the topics' words through the sweeps, and the exact gradient
goes back through them. It is a `JointModel` with the logits of the topics as its position, so `joint.descent` fits it
and J never rises. docs/math.md 5.6, eq. (66)-(71).

    model and documents        the JointModel, and blocks of documents
    fit                        from documents and targets to `FittedTopics`
    first topics               at the words of the classes, or at those of the corpus

Without targets the head is left out, and what remains is latent Dirichlet allocation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from regbayes._registry import persistable
from regbayes._types import Floats, Integers, Reals, Singles
from regbayes.engine import DiminishingReturns, Executor, FitResult, Progress
from regbayes.joint import descent
from regbayes.joint.descent import DescentOptions, Search, ToleranceSchedule
from regbayes.joint.model import Inferred, JointModel, RowSums
from regbayes.joint.problem import Evaluation, JointProblem, hold_rows
from regbayes.kernels.arrays import to_host
from regbayes.kernels.meanfield import Prior, WordCounts, meanfield_sweeps, reverse_sweeps
from regbayes.margins.head import LinearHead, MarginHead, Tolerance
from regbayes.margins.targets import Classes, Signs, Targets
from regbayes.models.medlda.topics import (
    FittedTopics,
    as_table,
    even_gamma,
    lengths_of,
    log_likelihoods,
    no_tilt,
    proportion_divergences,
)

Callback = Callable[[Progress[FittedTopics]], bool | None]

# Blocks of documents: each has a table of words by topics of its own in the backward pass, which must be worth its sum.
# So many blocks at most, where each has so many entries for each word of the vocabulary, and so many in all. A thread
# holds two tables at most, however many blocks there are.
BLOCK_RULES = ((8, 4, 1 << 15), (64, 16, 1 << 17))

FIRST_MOVE = 0.1  # root mean square of the first change of the logits
FINAL = Tolerance(gap=1e-4, max_epochs=300.0, smoothing=0.03)  # of the head, once the topics stand
OPTIONS = DescentOptions(
    tolerance=ToleranceSchedule(
        first=Tolerance(gap=1e-3, max_epochs=20.0), gap_share=0.1, gap_range=(1e-6, 1e-3), epoch_range=(10.0, 40.0)
    ),
    memory=3,  # pairs of tables of words by topics; ten did no better
)

FLOOR = 1e-8  # probability that a word of earlier topics begins with, at least
CLASS_NOISE = 0.5  # standard deviation of the logits around those of the classes: it parts topics of the same class
CORPUS_NOISE = 0.1  # and around those of the corpus
SMOOTHING = 1.0  # words of the whole corpus that are added to a class, for each word of the vocabulary


# --- Model and documents


@dataclass(frozen=True)
class TrainingDocuments:
    """Documents with words, and how often each counts. A block of them shares the entries of all."""

    counts: WordCounts
    lengths: Floats  # (N,)
    weights: Floats  # (N,)

    def __len__(self) -> int:
        return len(self.lengths)

    def rows(self, rows: slice) -> TrainingDocuments:
        """Return some documents in a row."""
        return TrainingDocuments(self.counts.rows(rows.start, rows.stop), self.lengths[rows], self.weights[rows])

    def count_words(self, n_words: int, weights: Floats) -> Floats:
        """Return how often each word occurs in documents that count so often, shape (V,)."""
        words, numbers, starts = self.counts
        row = np.repeat(np.arange(len(self)), np.diff(starts))
        entries = slice(starts[0], starts[-1])
        return np.bincount(words[entries], numbers[entries] * weights[row], n_words).astype(np.float64)

    def cut(self, n_words: int) -> list[slice]:
        """Cut documents into blocks, few where the vocabulary is large: a function of the corpus alone."""
        starts = self.counts.starts - self.counts.starts[0]
        n_entries = int(starts[-1])
        allowed = (min(n_entries // max(per_word * n_words, fewest), most) for most, per_word, fewest in BLOCK_RULES)
        n_blocks = max(1, *allowed)
        cuts = np.searchsorted(starts, np.arange(1, n_blocks) * (n_entries / n_blocks))
        edges = [0, *np.minimum(cuts, len(self)).tolist(), len(self)]
        return [slice(first, last) for first, last in pairwise(edges)]


def select_documents(
    documents: WordCounts, targets: Targets | None, sample_weight: Floats | None
) -> tuple[TrainingDocuments, Targets | None]:
    """Return the documents that have words, and what is asked of them, with a C that counts as the documents do."""
    rows = np.flatnonzero(np.diff(documents.starts) > 0)
    kept = documents._replace(starts=np.append(documents.starts[rows], documents.starts[-1]))
    weights = np.ones(len(rows)) if sample_weight is None else sample_weight[rows].astype(np.float64)
    if targets is not None:
        targets = targets.take(rows)
        targets = replace(targets, C=(targets.C.T * weights).T)
    return TrainingDocuments(kept, lengths_of(kept), weights), targets


@persistable(name="regbayes.medlda.TopicLogits")
@dataclass(frozen=True)
class TopicLogits:
    """The topics: parameters of the descent."""

    logits: Singles  # (V, K): log-probabilities of words in topics, up to a constant for each topic
    table: Singles  # (V, columns): probabilities, padded
    log_sum: float  # of all probabilities' logarithms


def make_topics(position: Reals) -> TopicLogits:
    """Return the topics that logits stand for."""
    logits = position.astype(np.float32, copy=False)
    shifted = logits - logits.max(axis=0)
    weight = np.exp(shifted)
    mass = weight.sum(axis=0, dtype=np.float64)
    log_sum = float(shifted.sum(dtype=np.float64)) - len(logits) * float(np.sum(np.log(mass)))
    return TopicLogits(logits, as_table(weight / mass), log_sum)


@persistable(name="regbayes.medlda.BoundSums")
@dataclass(frozen=True)
class BoundSums(RowSums):
    """Sums over documents."""

    likelihood: float  # negative, of words and their topics
    kl_proportions: float
    tokens: Floats  # (K,): expected tokens in topics


@dataclass(frozen=True)
class TableSums(RowSums):
    """Sums over documents of derivatives by the probabilities of words in topics."""

    by_table: Singles  # (V, columns)


@dataclass(frozen=True)
class LabelFreeTopics(JointModel[TrainingDocuments, TopicLogits, BoundSums, TableSums]):
    """Topics that are points, and documents by a fixed number of label-free sweeps."""

    doc_prior: Floats  # (K,)
    word_prior: float
    n_sweeps: int

    def infer(self, rows: TrainingDocuments, params: TopicLogits) -> Inferred[BoundSums]:
        """Make the sweeps, docs/math.md eq. (66); features are the shares of topics, gamma is what is kept."""
        prior, columns, logs = self._prior(params), even_gamma(rows.lengths, self.doc_prior), np.empty(len(rows))
        meanfield_sweeps(rows.counts, prior, no_tilt(columns), self.n_sweeps, -1.0, columns, logs=logs)
        gamma = columns[:, : len(self.doc_prior)].astype(np.float64)
        tokens = gamma - self.doc_prior
        sums = BoundSums(
            likelihood=-float(rows.weights @ log_likelihoods(logs, gamma, rows.lengths)),
            kl_proportions=float(rows.weights @ proportion_divergences(gamma, self.doc_prior)),
            tokens=rows.weights @ tokens,
        )
        return Inferred(tokens / rows.lengths[:, None], sums, cache=columns)

    def pull_back(
        self, rows: TrainingDocuments, params: TopicLogits, inferred: Inferred[BoundSums], gradient: Floats | None
    ) -> TableSums:
        """Differentiate the bound and the head's value through the sweeps, docs/math.md eq. (69), (70)."""
        by_gamma = np.zeros_like(inferred.cache)
        if gradient is not None:
            by_gamma[:, : len(self.doc_prior)] = gradient / rows.lengths[:, None]
        prior = self._prior(params)
        return TableSums(reverse_sweeps(rows.counts, prior, self.n_sweeps, inferred.cache, by_gamma, rows.weights))

    def terms(self, params: TopicLogits, stats: BoundSums) -> dict[str, float]:
        """Return the negative bound on the words' log-probability and minus the logarithm of the topics' prior."""
        return {
            "likelihood": stats.likelihood,
            "kl_proportions": stats.kl_proportions,
            "kl_topics": -self.word_prior * params.log_sum,
        }

    def gradient(self, params: TopicLogits, stats: BoundSums, pulled: TableSums) -> Singles:
        """Return the derivatives by the logits, docs/math.md eq. (71)."""
        topics = params.table[:, : len(self.doc_prior)]
        found = pulled.by_table[:, : len(self.doc_prior)] * topics
        total = found.sum(axis=0, dtype=np.float64) - self.word_prior * len(topics)
        found -= topics * total.astype(np.float32)
        found -= np.float32(self.word_prior)
        return found

    def position(self, params: TopicLogits) -> Singles:
        """Return the logits."""
        return params.logits

    def move(self, params: TopicLogits, position: Reals) -> TopicLogits:
        """Return topics with these logits."""
        return make_topics(position)

    def first_length(self, params: TopicLogits) -> float:
        """Return the length of the first step, in the units of logits."""
        return FIRST_MOVE * float(np.sqrt(params.logits.size))

    def _prior(self, params: TopicLogits) -> Prior:
        return Prior(params.table, self.doc_prior.astype(np.float32))


# --- Fit


@persistable(name="regbayes.medlda.meanfield.Settings")
@dataclass(frozen=True)
class Settings:
    """How to fit."""

    n_components: int  # K
    doc_topic_prior: float  # alpha, of each topic
    topic_word_prior: float
    weight_variance: float  # v^2
    squared: bool  # whether losses are squared
    n_sweeps: int  # of label-free inference
    max_iter: int
    tol: float  # share of the objective's whole decrease that five steps may gain in the end
    seed: int


def fit(
    documents: WordCounts,
    n_words: int,
    targets: Targets | None,
    settings: Settings,
    *,
    executor: Executor,
    sample_weight: Floats | None = None,
    start: FittedTopics | None = None,
    callbacks: Sequence[Callback] = (),
) -> FitResult[FittedTopics]:
    """Fit topics and weights.

    Parameters
    ----------
    documents : WordCounts
        Empty ones are left out.
    n_words : int
        The size of the vocabulary.
    targets : Targets or None
        Of all documents. None is latent Dirichlet allocation.
    settings : Settings
    executor : Executor
        For blocks of documents; the result does not depend on it.
    sample_weight : (N,), default=None
        How often each document counts, more than never; 1 by default.
    start : FittedTopics, default=None
        Topics to begin with.
    callbacks : sequence of callable
        Each sees the `Progress` of every step.

    Returns
    -------
    FitResult
        The objective never rises in its trace.
    """
    kept, asked = select_documents(documents, targets, sample_weight)
    problem = label_free_problem(kept, n_words, asked, settings, executor)
    logits = first_logits(kept, n_words, asked, settings.n_components, settings.seed, start)
    result: FitResult[Any] = descent.fit_joint(
        problem,
        make_topics(logits),
        max_iter=settings.max_iter,
        stop=DiminishingReturns(settings.tol),
        callbacks=callbacks,
        view=partial(finish, problem),
    )
    return replace(result, state=finish(problem, result.state))


Problem = JointProblem[TrainingDocuments, TopicLogits, BoundSums]


def label_free_problem(
    documents: TrainingDocuments, n_words: int, targets: Targets | None, settings: Settings, executor: Executor
) -> Problem:
    """Return the model with a head over its shares: centred, because they are far from zero, with an intercept."""
    head = None
    if targets is not None:
        variance = settings.weight_variance
        head = MarginHead(targets, settings.squared, weight_variance=variance, row_weights=documents.weights)
    doc_prior = np.full(settings.n_components, settings.doc_topic_prior)
    model = LabelFreeTopics(doc_prior, settings.topic_word_prior, settings.n_sweeps)
    blocks = hold_rows([documents.rows(rows) for rows in documents.cut(n_words)], executor)
    return JointProblem(model, blocks, head, OPTIONS)


def finish(problem: Problem, search: Search[TopicLogits, BoundSums]) -> FittedTopics:
    """Return the fitted model: the topics, and the head solved for once more, accurately."""
    at, model = search.at, problem.model
    assert isinstance(model, LabelFreeTopics)
    if problem.head is None:
        return fitted_topics(at, model, None)
    return fitted_topics(at, model, problem.solve(problem.infer(at.params), at.warm_start, FINAL).head)


def fitted_topics(
    at: Evaluation[TopicLogits, BoundSums], model: LabelFreeTopics, head: LinearHead | None
) -> FittedTopics:
    """Return what prediction needs of the topics at which a descent ended, and of a head if there is one."""
    return FittedTopics(
        word_given_topic=np.ascontiguousarray(to_host(at.params.table)[:, : len(model.doc_prior)]),
        topic_total=at.stats.tokens,
        doc_prior=model.doc_prior,
        weights=np.zeros((0, len(model.doc_prior))) if head is None else fold_intercept(head),
        shares=at.stats.tokens / at.stats.tokens.sum(),
        n_sweeps=model.n_sweeps,
        collapsed=False,
    )


def fold_intercept(head: LinearHead) -> Floats:
    """Return the weights with the intercept inside, for shares that sum to one, shape (L, K)."""
    weights = head.feature_weights
    return weights + (head.weights[:, -1] - weights @ head.centre)[:, None]


# --- First topics


def first_logits(
    documents: TrainingDocuments,
    n_words: int,
    targets: Targets | None,
    n_topics: int,
    seed: int,
    start: FittedTopics | None,
) -> Floats:
    """Return where topics begin: at earlier ones, or the words of the classes, where there are any."""
    rng = np.random.default_rng(seed)
    if start is not None:
        return np.log(np.maximum(start.word_given_topic, FLOOR)).astype(np.float64)
    if isinstance(targets, Classes):
        return class_logits(documents, n_words, n_topics, np.eye(targets.n_outputs)[targets.labels], rng)
    if isinstance(targets, Signs):
        positive = (targets.signs > 0).astype(np.float64)
        # With a single response the documents that do not have it are a class as well.
        membership = np.hstack([positive, 1.0 - positive]) if positive.shape[1] == 1 else positive
        return class_logits(documents, n_words, n_topics, membership, rng)
    return random_logits(documents, n_words, n_topics, rng)


def random_logits(documents: TrainingDocuments, n_words: int, n_topics: int, rng: np.random.Generator) -> Floats:
    """Return log-probabilities of words in topics: those of the corpus, with noise. Shape (V, K)."""
    frequency = documents.count_words(n_words, documents.weights) + 0.5
    return np.log(frequency)[:, None] + CORPUS_NOISE * rng.standard_normal((n_words, n_topics))


def class_logits(
    documents: TrainingDocuments, n_words: int, n_topics: int, membership: Floats, rng: np.random.Generator
) -> Floats:
    """Return log-probabilities of words in topics: those of the classes in turn, smoothed, with noise. Shape (V, K).

    Parameters
    ----------
    documents : TrainingDocuments
    n_words, n_topics : int
    membership : (N, L)
        How much each document belongs to each class. Where classes are more than topics, several share one.
    rng : Generator
    """
    n_groups = min(membership.shape[1], n_topics)
    owner: Integers = np.arange(membership.shape[1]) % n_groups
    frequency = documents.count_words(n_words, documents.weights) + 0.5
    logits = np.empty((n_words, n_groups))
    for group in range(n_groups):
        count = documents.count_words(n_words, documents.weights * membership[:, owner == group].sum(axis=1))
        smooth = count + SMOOTHING * frequency / frequency.mean()
        logits[:, group] = np.log(smooth / smooth.sum())
    return logits[:, np.arange(n_topics) % n_groups] + CLASS_NOISE * rng.standard_normal((n_words, n_topics))
