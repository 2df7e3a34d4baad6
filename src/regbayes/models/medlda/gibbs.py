"""Collapsed Gibbs sampler for MedLDA with the expected loss.

It draws the topics of single tokens, the weights and the augmentation variables from their conditional distributions.
Topic proportions and word distributions are integrated out. The fit averages over the chain. docs/math.md 5.1-5.4.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cholesky, solve_triangular
from scipy.special import gammaln

from regbayes._registry import persistable
from regbayes._types import Floats, Integers, Singles, check_arrays
from regbayes.engine import Executor, FitResult, Progress, Serial, StepResult, row_blocks, run
from regbayes.kernels.corpus import Corpus, build_corpus, count_tokens
from regbayes.kernels.meanfield import WordCounts, lengths_of, padded
from regbayes.kernels.topics import (
    WeightStatistics,
    sample_topics,
    weight_statistics,
)
from regbayes.kernels.types import Tilt, TopicCounts
from regbayes.margins.head import Head, Tolerance
from regbayes.margins.targets import Numbers, Signs
from regbayes.models.medlda.topics import UNTIL_SETTLED, FittedTopics, proportions
from regbayes.regularization.dual_forms import BoxDual

Responses = Signs | Numbers
Callback = Callable[[Progress[FittedTopics]], bool | None]

N_PARTS = 4  # parts of the documents, or of the responses, when weights are drawn
MOST_CELLS = 4_000_000  # entries of the separate sums for each part of the documents

REFIT_C = 10.0  # penalty of the refit at C = 1, which competes with the prior of the weights only
REFIT_TOLERANCE = Tolerance(gap=1e-2, max_epochs=50.0)  # loose, since the topics are noisy averages


# --- State


@dataclass(frozen=True)
class Settings:
    """Settings of the sampler."""

    n_components: int  # K
    doc_topic_prior: float  # alpha, Dirichlet parameter of each topic
    topic_word_prior: float  # beta, Dirichlet parameter of each word
    weight_variance: float  # v^2
    n_sweeps: int
    n_burn_in: int  # sweeps before averaging
    n_warm_up: int  # sweeps over which C increases from zero
    seed: int
    n_groups: int | None = None  # number of document groups and of word groups; None: from the corpus
    refit: bool = True  # whether prediction weights are refitted at the end instead of averaged over the chain


@persistable(name="regbayes.medlda.GramStats")
@dataclass(frozen=True)
class GramStats:
    """Sums over documents for least-squares weights on the label-free topic shares."""

    precision: Floats  # (K, K)
    linear: Floats  # (L, K)

    def _check_loaded(self) -> None:
        check_arrays(self, linear="LK", precision="KK")


@persistable(name="regbayes.medlda.StreamingPosterior")
@dataclass(frozen=True)
class StreamingPosterior:
    """Posterior of the documents so far, the prior for later documents."""

    word_topic: NDArray[np.int32]  # (V, K): word-topic counts of the last sweep
    precision: Floats  # (L, K, K): precision of the weights
    linear: Floats  # (L, K): precision times mean of the weights
    gram: GramStats | None = None  # None: weights are not refitted

    def _check_loaded(self) -> None:
        check_arrays(self, word_topic="VK", linear="LK", precision="LKK")
        if self.gram is not None and self.gram.linear.shape != self.linear.shape:
            raise ValueError("gram does not fit the weights")
        if self.word_topic.dtype != np.int32 or self.word_topic.min(initial=0) < 0:
            raise ValueError("word_topic must hold counts in 32-bit integers")
        if int(self.word_topic.sum(dtype=np.float64)) > np.iinfo(np.int32).max:
            raise ValueError("word_topic has more tokens than 32-bit integers can count")

    def mean_weights(self) -> Floats:
        """Return the mean of the weights, shape (L, K)."""
        return np.linalg.solve(self.precision, self.linear[:, :, None])[:, :, 0].astype(np.float64, copy=False)


@dataclass(frozen=True)
class Problem:
    """Data and settings of a chain, in the order of the corpus."""

    corpus: Corpus
    responses: Responses | None  # None: plain latent Dirichlet allocation
    settings: Settings
    earlier: StreamingPosterior | None = None  # posterior of earlier documents
    executor: Executor = field(default_factory=Serial)

    @property
    def n_responses(self) -> int:
        """Number of responses, L."""
        return 0 if self.responses is None else self.responses.n_outputs

    @cached_property
    def form(self) -> BoxDual:
        """Conjugate of the loss of all documents, for monitoring the objective."""
        assert self.responses is not None
        return self.responses.dual_form(squared=False)


@persistable(name="regbayes.medlda.Averages")
@dataclass(frozen=True)
class Averages:
    """Sums over the sweeps after burn-in."""

    n_kept: int
    word_topic: Singles  # (V, columns), in the corpus's order of words
    weights: Floats  # (L, K)


@persistable(name="regbayes.medlda.Chain", replace={"counts": tuple})
@dataclass(frozen=True)
class Chain:
    """State of the chain after a sweep."""

    counts: TopicCounts
    weights: Floats  # (L, K)
    linear: Floats  # (N, L): linear term of the loss given the augmentation variables
    quadratic: Floats  # (N, L): quadratic term of the loss given the augmentation variables
    scores: Floats  # (N, L)
    sweep: int  # number of sweeps so far
    averages: Averages | None  # None during burn-in

    def _check_loaded(self) -> None:
        counts = TopicCounts(*self.counts)
        object.__setattr__(self, "counts", counts)  # files have tuples
        check_arrays(counts, topics="n", doc_topic="NC", word_topic="VC", topic_total="K")
        if min(array.min(initial=0) for array in counts) < 0 or counts.topics.max(initial=0) >= len(counts.topic_total):
            raise ValueError("topics and counts are out of range")


@dataclass(frozen=True)
class Checkpoint:
    """A chain to resume, with a fingerprint of its problem."""

    chain: Chain
    fingerprint: tuple[int, ...]


@dataclass(frozen=True)
class GibbsFit:
    """Averages for prediction, posterior for later documents, and chain to resume."""

    fitted: FittedTopics
    posterior: StreamingPosterior
    checkpoint: Checkpoint


# --- Fit


def fit(  # noqa: PLR0913 - options, all by name
    documents: WordCounts,
    n_words: int,
    responses: Responses | None,
    settings: Settings,
    *,
    executor: Executor,
    earlier: StreamingPosterior | None = None,
    resume: Checkpoint | None = None,
    init_from: StreamingPosterior | None = None,
    callbacks: Sequence[Callback] = (),
) -> FitResult[GibbsFit]:
    """Run the chain.

    Parameters
    ----------
    documents : WordCounts
        Counts must be whole numbers.
    n_words : int
        The size of the vocabulary.
    responses : Responses or None
        Responses of the documents. None is latent Dirichlet allocation.
    settings : Settings
    executor : Executor
        Executes the blocks of the corpus; the result does not depend on it.
    earlier : StreamingPosterior, default=None
        Posterior of earlier documents, used as the prior.
    resume : Checkpoint, default=None
        Chain to resume if its documents and numbers of topics and responses match.
    init_from : StreamingPosterior, default=None
        Otherwise, initial topics and weights if their sizes match. They do not affect the prior.
    callbacks : sequence of callable
        Each receives the `Progress` of every sweep.

    Returns
    -------
    FitResult
        The objective in its trace is the negative log joint density after each sweep, up to a constant.
    """
    corpus = build_corpus(documents, n_words, settings.n_groups)
    n_responses = 0 if responses is None else responses.n_outputs
    fingerprint = _fingerprint(corpus, settings, n_responses)
    chain = None if resume is None or resume.fingerprint != fingerprint else resume.chain
    if init_from is not None and init_from.linear.shape != (n_responses, settings.n_components):
        init_from = None
    known = not (earlier is None and init_from is None and chain is None)
    problem = Problem(
        corpus,
        _sort_responses(responses, corpus),
        replace(settings, n_warm_up=0) if known else settings,  # a warm start needs no warm-up
        _sort_posterior(_fill_posterior(earlier, n_responses, settings), corpus),
        executor,
    )
    result = run(
        partial(step, problem),
        start(problem, _sort_posterior(init_from, corpus)) if chain is None else chain,
        max_iter=settings.n_sweeps,
        callbacks=callbacks,
        view=partial(summarize, problem),
        keep="last",
    )
    end = result.state
    fitted, posterior = summarize(problem, end), posterior_of(problem, end)
    if settings.refit and responses is not None:
        gram = None if earlier is None else earlier.gram
        weights, gram = refit_weights(documents, fitted, responses, settings.weight_variance, gram, executor)
        fitted, posterior = replace(fitted, weights=weights), replace(posterior, gram=gram)
    return FitResult(
        GibbsFit(fitted, posterior, Checkpoint(end, fingerprint)),
        result.trace,
        result.status,
        result.n_iter,
        result.kept_iteration,
        result.objective,
    )


def _fingerprint(corpus: Corpus, settings: Settings, n_responses: int) -> tuple[int, ...]:
    """Return a fingerprint of the documents and the numbers of topics and responses, for resuming a chain."""
    checksums = [zlib.crc32(array.tobytes()) for array in corpus.tokens]
    shape = (len(corpus.lengths), len(corpus.word_order), corpus.n_groups)
    return (*checksums, *shape, settings.n_components, n_responses)


def _fill_posterior(
    earlier: StreamingPosterior | None, n_responses: int, settings: Settings
) -> StreamingPosterior | None:
    """Extend the posterior of earlier documents to new responses, which get the prior."""
    if earlier is None or len(earlier.linear) == n_responses:
        return earlier
    prior = prior_precision(n_responses, settings.n_components, settings.weight_variance)
    return StreamingPosterior(earlier.word_topic, prior, np.zeros((n_responses, settings.n_components)))


def _sort_responses(responses: Responses | None, corpus: Corpus) -> Responses | None:
    if responses is None:
        return None
    taken = responses.take(corpus.document_order)
    # Empty documents have no topic shares to score; their losses would only add a constant.
    return replace(taken, C=np.where(corpus.lengths[:, None] > 0, taken.C, 0.0))


def _sort_posterior(posterior: StreamingPosterior | None, corpus: Corpus) -> StreamingPosterior | None:
    return None if posterior is None else replace(posterior, word_topic=posterior.word_topic[corpus.word_order])


# --- Start and step


def start(problem: Problem, init_from: StreamingPosterior | None = None) -> Chain:
    """Initialize a chain.

    Parameters
    ----------
    problem : Problem
    init_from : StreamingPosterior, default=None
        Initial topics and weights, by default those of the problem's earlier documents. Without either, topics of
        tokens are random and weights are zero.
    """
    corpus, settings = problem.corpus, problem.settings
    init_from = problem.earlier if init_from is None else init_from
    rng = _generator(settings, 0, 0)
    K = settings.n_components
    if init_from is None:
        topics = rng.integers(0, K, corpus.n_tokens, dtype=np.int16)
        weights: Floats = np.zeros((problem.n_responses, K))
    else:
        topics = _draw_by_topics(problem, init_from, rng.random(corpus.n_tokens, dtype=np.float32))
        weights = init_from.mean_weights()
    counts = _count(problem, topics)
    if problem.responses is None:
        nothing = np.zeros((len(corpus.lengths), 0))
        return Chain(counts, weights[:0], nothing, nothing, nothing, 0, None)
    scores = document_scores(problem, counts, weights)
    return Chain(counts, weights, *expected_quadratics(_warm_responses(problem, 0), scores), scores, 0, None)


def step(problem: Problem, chain: Chain) -> StepResult[Chain]:
    """Sweep over the tokens, draw weights and augmentation variables, and update averages after burn-in."""
    settings, sweep = problem.settings, chain.sweep + 1
    topics, doc_topic, word_topic, topic_total = chain.counts
    counts = TopicCounts(topics.copy(), doc_topic.copy(), word_topic.copy(), topic_total.copy())
    chain = replace(chain, counts=counts, sweep=sweep)
    n_changed = _sample_topics(problem, chain)
    terms = {"likelihood": -log_joint(problem, counts)}
    if problem.responses is not None:
        rng = _generator(settings, sweep, problem.corpus.n_groups**2)
        weights = draw_weights(weight_posterior(problem, chain), rng.standard_normal(chain.weights.shape))
        scores = document_scores(problem, chain.counts, weights)
        shape = (len(list_hinges(problem.responses)), *scores.shape)
        drawn = draw_quadratics(_warm_responses(problem, sweep), scores, rng.standard_normal(shape), rng.random(shape))
        chain = replace(chain, weights=weights, linear=drawn[0], quadratic=drawn[1], scores=scores)
        terms |= _response_terms(problem, scores, weights)
    if sweep > settings.n_burn_in:
        chain = replace(chain, averages=_update_averages(chain))
    return StepResult(chain, terms, {"changed": n_changed / max(problem.corpus.n_tokens, 1)})


def _warm_responses(problem: Problem, sweep: int) -> Responses:
    """Return the responses with the C of the next sweep."""
    assert problem.responses is not None
    n_warm_up = problem.settings.n_warm_up
    if sweep >= n_warm_up:
        return problem.responses
    return replace(problem.responses, C=problem.responses.C * ((sweep + 1) / (n_warm_up + 1)))


def _generator(settings: Settings, sweep: int, part: int) -> np.random.Generator:
    """Return the random generator for one part of a sweep, independent of the thread."""
    return np.random.Generator(np.random.SFC64(np.random.SeedSequence([settings.seed, sweep, part])))


def _update_averages(chain: Chain) -> Averages:
    """Add the state after a sweep to the averages."""
    old, word_topic = chain.averages, chain.counts.word_topic.astype(np.float32)
    if old is None:
        return Averages(1, word_topic, chain.weights)
    word_topic += old.word_topic
    return Averages(old.n_kept + 1, word_topic, old.weights + chain.weights)


# --- Topics


def _count(problem: Problem, topics: NDArray[np.int16]) -> TopicCounts:
    """Count tokens by document, word and topic, and add the counts of earlier documents."""
    corpus, K = problem.corpus, problem.settings.n_components
    columns = padded(K)
    N, V = len(corpus.lengths), len(corpus.word_order)
    doc_topic, word_topic = np.zeros((N, columns), dtype=np.int32), np.zeros((V, columns), dtype=np.int32)
    count_tokens(corpus.tokens, topics, doc_topic, word_topic)
    if problem.earlier is not None:
        word_topic[:, :K] += problem.earlier.word_topic
    return TopicCounts(topics, doc_topic, word_topic, word_topic[:, :K].sum(axis=0, dtype=np.int64))


def _draw_by_topics(problem: Problem, init_from: StreamingPosterior, uniforms: Singles) -> NDArray[np.int16]:
    """Draw each token's topic from its word's distribution over topics in an earlier posterior."""
    p = init_from.word_topic + problem.settings.topic_word_prior
    p /= p.sum(axis=0)
    cumulative = np.cumsum(p / p.sum(axis=1, keepdims=True), axis=1).astype(np.float32)
    topics = np.empty(len(uniforms), dtype=np.int16)
    words = problem.corpus.tokens.words

    def draw(tokens: slice) -> None:
        below = cumulative[words[tokens]] <= uniforms[tokens, None]
        topics[tokens] = np.minimum(below.sum(axis=1), problem.settings.n_components - 1)

    problem.executor.map(draw, row_blocks(len(uniforms)))
    return topics


def _tilt(problem: Problem, chain: Chain) -> Tilt:
    weights = np.zeros((problem.n_responses, padded(problem.settings.n_components)), dtype=np.float32)
    weights[:, : problem.settings.n_components] = chain.weights
    return Tilt(np.maximum(problem.corpus.lengths, 1), chain.linear, chain.quadratic, weights)


def _sample_topics(problem: Problem, chain: Chain) -> int:
    """Sweep over all blocks in place; return the number of changed tokens."""
    total, n_changed = chain.counts.topic_total, 0
    sample = partial(_sample_block, problem, chain, _tilt(problem, chain))
    for diagonal in problem.corpus.diagonals():
        for changed, difference in problem.executor.map(sample, diagonal):
            total += difference
            n_changed += changed
    return n_changed


def _sample_block(problem: Problem, chain: Chain, tilt: Tilt, block: int) -> tuple[int, Integers]:
    """Sweep over a block; return the number of changed tokens and the change of the topic totals."""
    corpus, settings, tokens = problem.corpus, problem.settings, problem.corpus.tokens
    first, last = int(corpus.block_runs[block]), int(corpus.block_runs[block + 1])
    n_tokens = int(tokens.starts[last] - tokens.starts[first])
    rng, priors = _generator(settings, chain.sweep, block), (settings.doc_topic_prior, settings.topic_word_prior)
    counts = chain.counts._replace(topic_total=chain.counts.topic_total.copy())
    uniforms = rng.random(n_tokens, dtype=np.float32)
    changed = sample_topics(tokens, first, last, tilt, *priors, uniforms, counts)
    return changed, counts.topic_total - chain.counts.topic_total


# --- Weights


def _split(n: int, n_parts: int) -> list[slice]:
    edges = np.linspace(0, n, n_parts + 1).astype(np.int64).tolist()
    return [slice(first, last) for first, last in pairwise(edges)]


def prior_precision(n_responses: int, n_topics: int, weight_variance: float) -> Floats:
    """Return the prior precision of the weights, (L, K, K)."""
    return np.repeat(np.eye(n_topics)[None] / weight_variance, n_responses, axis=0)


def weight_posterior(problem: Problem, chain: Chain) -> WeightStatistics:
    """Return precision and linear term of the normal distribution of the weights, docs/math.md eq. (55)."""
    (L, K), tilt = chain.weights.shape, _tilt(problem, chain)
    n_parts = N_PARTS if K * K * L <= MOST_CELLS else 1
    parts = problem.executor.map(partial(weight_statistics, tilt, chain.counts), _split(len(tilt.lengths), n_parts))
    precision, linear = (sum(sums[1:], sums[0]) for sums in zip(*parts, strict=True))
    if problem.earlier is not None:
        return WeightStatistics(precision + problem.earlier.precision, linear + problem.earlier.linear)
    return WeightStatistics(precision + prior_precision(L, K, problem.settings.weight_variance), linear)


def draw_weights(posterior: WeightStatistics, normals: Floats) -> Floats:
    """Draw each response's weights from a normal with this precision and ``precision @ mean = linear``."""
    weights = np.empty_like(normals)
    for response, (precision, linear) in enumerate(zip(posterior.precision, posterior.linear, strict=True)):
        factor = cholesky(precision, lower=True, check_finite=False)
        halfway = solve_triangular(factor, linear, lower=True, check_finite=False)
        weights[response] = solve_triangular(
            factor, halfway + normals[response], lower=True, trans=1, check_finite=False
        )
    return weights


def document_scores(problem: Problem, counts: TopicCounts, weights: Floats) -> Floats:
    """Return the scores of all documents, shape (N, L), zero for empty ones."""
    lengths = np.maximum(problem.corpus.lengths, 1)
    scores = np.empty((len(lengths), len(weights)))
    loads = np.ascontiguousarray(weights.T)

    def score(rows: slice) -> None:
        scores[rows] = (counts.doc_topic[rows, : len(loads)].astype(np.float64) @ loads) / lengths[rows, None]

    problem.executor.map(score, row_blocks(len(lengths)))
    return scores


# --- Augmentation variables
#
# Losses are scale mixtures of normals: ``exp(-2 max(0, u))`` is the integral over lambda > 0 of
# ``exp(-(lambda + u)^2 / (2 lambda)) / sqrt(2 pi lambda)`` (Polson and Scott, Bayesian Analysis 2011). This makes the
# other conditionals conjugate. Given lambda, the loss of a score f is ``linear f - quadratic f^2 / 2``; given f,
# 1 / lambda is inverse Gaussian. docs/math.md eq. (51), (52).


def list_hinges(responses: Responses) -> list[tuple[Any, Floats]]:
    """Return signs s and thresholds b of the hinges ``max(0, s (b - score))`` whose sum is the loss."""
    if isinstance(responses, Signs):
        return [(responses.signs, responses.margin * responses.signs)]
    return [(1.0, responses.values - responses.epsilon), (-1.0, responses.values + responses.epsilon)]


def draw_quadratics(responses: Responses, scores: Floats, normals: Floats, uniforms: Floats) -> tuple[Floats, Floats]:
    """Draw the augmentation variables given the scores; return their ``linear`` and ``quadratic`` terms.

    Parameters
    ----------
    responses : Responses
    scores : (N, L)
    normals, uniforms : (hinges, N, L)
        Standard normal draws, and draws from [0, 1), for each of `list_hinges`.
    """
    c, hinges = 0.5 * responses.C, list_hinges(responses)
    draws = zip(hinges, normals, uniforms, strict=True)
    return _quadratics(responses, [draw_inverse(c * s * (b - scores), *drawn) for (s, b), *drawn in draws])


def expected_quadratics(responses: Responses, scores: Floats) -> tuple[Floats, Floats]:
    """Return ``linear`` and ``quadratic`` at the mean of lambda given the scores, ``1 + |u|``.

    The mean of 1 / lambda itself is infinite if a score is at its margin.
    """
    c = 0.5 * responses.C
    return _quadratics(responses, [1.0 / (1.0 + c * np.abs(b - scores)) for _, b in list_hinges(responses)])


def _quadratics(responses: Responses, inverses: Sequence[Floats]) -> tuple[Floats, Floats]:
    """Return ``linear`` and ``quadratic`` given 1 / lambda of each hinge."""
    c, hinges = 0.5 * responses.C, list_hinges(responses)
    quadratics = [c * c * inverse for inverse in inverses]
    linear = [c * s + quadratic * b for (s, b), quadratic in zip(hinges, quadratics, strict=True)]
    return np.sum(linear, axis=0), np.sum(quadratics, axis=0)


def draw_inverse(u: Floats, normals: Floats, uniforms: Floats) -> Floats:
    """Draw ``1 / lambda`` given u: inverse Gaussian with mean ``1 / |u|`` and shape 1.

    The roots of Michael, Schucany and Haas (The American Statistician 1976) are written to avoid cancellation. At
    u = 0, lambda is chi-squared with one degree of freedom.
    """
    t = np.abs(u)
    y = normals**2
    smaller = 1.0 / np.maximum(t + 0.5 * y + np.sqrt(y * (0.25 * y + t)), np.finfo(np.float64).tiny)
    ratio = smaller * t  # ratio of the smaller root to the mean, in [0, 1]
    use_larger = uniforms * (1.0 + ratio) > 1.0
    larger = 1.0 / np.maximum(smaller * t * t, np.finfo(np.float64).tiny)
    return np.where(use_larger, larger, smaller)


# --- Objective


def log_joint(problem: Problem, counts: TopicCounts) -> float:
    """Return the log-probability of words and topics, with topic and word proportions integrated out."""
    settings = problem.settings
    K, V = settings.n_components, len(problem.corpus.word_order)
    alpha, beta = settings.doc_topic_prior, settings.topic_word_prior
    of_documents = _log_rising(counts.doc_topic, alpha) - _log_rising(problem.corpus.lengths, K * alpha)
    return of_documents + _log_rising(counts.word_topic, beta) - _log_rising(counts.topic_total, V * beta)


def _log_rising(counts: NDArray[np.int32] | Integers, prior: float) -> float:
    """Return the sum of ``log(Gamma(count + prior) / Gamma(prior))``."""
    if counts.size == 0:
        return 0.0
    if counts.max() < 1_000_000:
        how_often = np.bincount(counts.ravel())
        values = np.flatnonzero(how_often)
        return float(how_often[values] @ (gammaln(values + prior) - gammaln(prior)))
    positive = counts[counts > 0]
    return float(np.sum(gammaln(positive + prior)) - positive.size * gammaln(prior))


def _response_terms(problem: Problem, scores: Floats, weights: Floats) -> dict[str, float]:
    """Return the terms of responses and weights in the negative log posterior."""
    margin = float(problem.form.values(-scores.ravel()).sum())
    if problem.earlier is None:
        penalty = 0.5 * float(np.vdot(weights, weights)) / problem.settings.weight_variance
    else:
        loads = np.einsum("ljk,lk->lj", problem.earlier.precision, weights)
        penalty = float(np.vdot(weights, 0.5 * loads - problem.earlier.linear))
    return {"kl_weights": penalty, "margin": margin}


# --- Results


def summarize(problem: Problem, chain: Chain) -> FittedTopics:
    """Return the averages of the chain, or its last state during burn-in, in the order of X's columns."""
    settings, K = problem.settings, problem.settings.n_components
    if chain.averages is None:
        word_topic, weights = chain.counts.word_topic.astype(np.float32), chain.weights
    else:
        n_kept = chain.averages.n_kept
        word_topic, weights = chain.averages.word_topic / np.float32(n_kept), chain.averages.weights / n_kept
    table = np.empty((len(word_topic), K), dtype=np.float32)
    table[problem.corpus.word_order] = word_topic[:, :K]
    tokens = table.sum(axis=0, dtype=np.float64)
    total = tokens + len(table) * settings.topic_word_prior
    table += np.float32(settings.topic_word_prior)
    table /= total.astype(np.float32)
    overall = tokens + settings.doc_topic_prior
    return FittedTopics(
        word_given_topic=table,
        topic_total=total,
        doc_prior=np.full(K, settings.doc_topic_prior),
        weights=weights,
        shares=overall / overall.sum(),
        n_sweeps=UNTIL_SETTLED,
        collapsed=True,
    )


def posterior_of(problem: Problem, chain: Chain) -> StreamingPosterior:
    """Return the posterior as a prior for later documents.

    The weights are normal around their mean over the chain. Their precision is that of the last sweep with the
    augmentation variables at their expected values.
    """
    K = problem.settings.n_components
    word_topic = np.empty((len(chain.counts.word_topic), K), dtype=np.int32)
    word_topic[problem.corpus.word_order] = chain.counts.word_topic[:, :K]
    if problem.responses is None:
        prior = prior_precision(0, K, problem.settings.weight_variance)
        return StreamingPosterior(word_topic, prior, np.zeros((0, K)))
    weights = chain.weights if chain.averages is None else chain.averages.weights / chain.averages.n_kept
    linear, quadratic = expected_quadratics(problem.responses, chain.scores)
    precision = weight_posterior(problem, replace(chain, linear=linear, quadratic=quadratic)).precision
    return StreamingPosterior(word_topic, precision, np.einsum("ljk,lk->lj", precision, weights))


def refit_weights(
    documents: WordCounts,
    fitted: FittedTopics,
    responses: Responses,
    weight_variance: float,
    earlier: GramStats | None,
    executor: Executor,
) -> tuple[Floats, GramStats]:
    """Return weights for prediction, shape (L, K), and the sums of these documents, docs/math.md eq. (57).

    The chain's topics of a training document depend on its response, so they are more extreme than those of a new
    document, and the chain's weights are too small for new documents. Refitting the weights at the label-free shares of
    the training documents, with the same losses and prior, removes this bias. Margin losses need all documents. If only
    sums of earlier documents are available, the refit uses least squares.
    """
    documents = documents._replace(numbers=documents.numbers.astype(np.float32, copy=False))
    shares, lengths = proportions(documents, fitted, executor), lengths_of(documents)
    mean_length = max(lengths.sum(), 1.0) / max(np.count_nonzero(lengths), 1)
    C = np.where(lengths[:, None] > 0, responses.C * (REFIT_C / mean_length), 0.0)
    lighter = replace(responses, C=C)
    gram = sum_gram(shares, lighter, earlier)
    if earlier is None:
        head = Head(lighter, squared=False, fit_intercept=False, weight_variance=weight_variance)
        return head.solve(shares, None, REFIT_TOLERANCE).head.weights, gram
    prior = np.eye(shares.shape[1]) / weight_variance
    weights = np.linalg.solve(gram.precision + prior, gram.linear.T).T
    return weights.astype(np.float64, copy=False), gram


def sum_gram(shares: Floats, responses: Responses, earlier: GramStats | None) -> GramStats:
    """Add documents to the sums, weighted by their mean C because all responses share one precision."""
    weighted = shares * responses.C.mean(axis=1, keepdims=True)
    values = responses.margin * responses.signs if isinstance(responses, Signs) else responses.values
    new = GramStats(weighted.T @ shares, values.T @ weighted)
    return new if earlier is None else GramStats(earlier.precision + new.precision, earlier.linear + new.linear)
