"""The sampler: topics, weights, augmentation variables, each from its conditional distribution given the rest.

Proportions of documents and words of topics are integrated out. docs/math.md eq. (53)-(55).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cholesky, solve_triangular
from scipy.special import gammaln

from regbayes._types import Floats, Integers, Singles
from regbayes.engine import StepResult
from regbayes.kernels.chunks import chunk_bounds, map_chunks, map_tasks
from regbayes.kernels.counting import count_tokens, tally
from regbayes.kernels.proportions import WeightPrior, WeightStatistics, sweep_weights, weight_statistics
from regbayes.kernels.proposals import WordLists, list_words, propose_topics
from regbayes.kernels.topics import sample_topics
from regbayes.kernels.types import Tilt, TopicCounts, padded
from regbayes.models.medlda.augmentation import draw_quadratics, expected_quadratics, losses, n_variables
from regbayes.models.medlda.corpus import Corpus
from regbayes.models.medlda.state import Averages, Chain, Memory, Responses, Settings

MOST_DRAWN = 4000  # topics times responses: beyond, proposing is faster than drawing
MOST_DRAWN_ALONE = 250  # topics, without responses
PORTION = 16  # tokens of a document whose proposals share a guess of its scores
MOST_DRAWN_TOGETHER = 300  # topics: beyond, weights are drawn one after another, since the cube of their number counts


def prefers_proposals(n_topics: int, n_responses: int) -> bool:
    """Whether topics are best proposed and accepted, because their exact distributions cost too much."""
    return n_topics * n_responses > MOST_DRAWN or (n_responses == 0 and n_topics > MOST_DRAWN_ALONE)


@dataclass(frozen=True)
class Problem:
    """What the chain is about. Responses and memory are in the corpus's order of documents and words."""

    corpus: Corpus
    responses: Responses | None  # None: plain latent Dirichlet allocation
    settings: Settings
    memory: Memory | None = None

    @property
    def n_responses(self) -> int:
        """L."""
        return 0 if self.responses is None else self.responses.prices.shape[1]


def start(problem: Problem, hint: Memory | None = None) -> Chain:
    """Begin a chain.

    Parameters
    ----------
    problem : Problem
    hint : Memory, default=None
        Topics and weights to begin at, by default those of the problem's memory. Without either, tokens get topics at
        random and weights are zero.
    """
    corpus, settings = problem.corpus, problem.settings
    hint = problem.memory if hint is None else hint
    rng = _generator(settings, 0, 0)
    K = settings.n_components
    if hint is None:
        topics = rng.integers(0, K, corpus.n_tokens, dtype=np.int16)
        weights: Floats = np.zeros((problem.n_responses, K))
    else:
        topics = _draw_by_topics(problem, hint, rng.random(corpus.n_tokens, dtype=np.float32))
        weights = _mean_weights(hint)
    counts = _count(problem, topics)
    if problem.responses is None:
        nothing = np.zeros((len(corpus.lengths), 0))
        return Chain(counts, weights[:0], nothing, nothing, nothing, 0, None)
    scores = document_scores(problem, counts, weights)
    return Chain(counts, weights, *expected_quadratics(_risen(problem, 0), scores), scores, 0, None)


def step(problem: Problem, chain: Chain) -> StepResult[Chain]:
    """Sweep over the tokens, then draw weights and augmentation variables; take averages once burnt in."""
    settings, sweep = problem.settings, chain.sweep + 1
    topics, doc_topic, word_topic, topic_total = chain.counts
    counts = TopicCounts(topics.copy(), doc_topic.copy(), word_topic.copy(), topic_total.copy())
    chain = replace(chain, counts=counts, sweep=sweep)
    n_changed = _sample_topics(problem, chain)
    terms = {"words": -log_joint(problem, counts)}
    if problem.responses is not None:
        rng = _generator(settings, sweep, problem.corpus.n_groups**2)
        weights, scores = update_weights(problem, chain, rng)
        shape = (n_variables(problem.responses), *scores.shape)
        drawn = draw_quadratics(_risen(problem, sweep), scores, rng.standard_normal(shape), rng.random(shape))
        chain = replace(chain, weights=weights, linear=drawn[0], quadratic=drawn[1], scores=scores)
        terms |= _response_terms(problem, scores, weights)
    if sweep > settings.n_burn_in:
        chain = replace(chain, averages=_averaged(chain))
    return StepResult(chain, terms, {"changed": n_changed / max(problem.corpus.n_tokens, 1)})


def _risen(problem: Problem, sweep: int) -> Responses:
    """Return the responses at the prices of the next sweep."""
    assert problem.responses is not None
    n_rising = problem.settings.n_rising
    if sweep >= n_rising:
        return problem.responses
    return replace(problem.responses, prices=problem.responses.prices * ((sweep + 1) / (n_rising + 1)))


def _generator(settings: Settings, sweep: int, part: int) -> np.random.Generator:
    """Return the random numbers of one part of one sweep: the same whichever thread comes to it first."""
    return np.random.Generator(np.random.SFC64(np.random.SeedSequence([settings.seed, sweep, part])))


def _tilt(problem: Problem, chain: Chain) -> Tilt:
    weights = np.zeros((problem.n_responses, padded(problem.settings.n_components)), dtype=np.float32)
    weights[:, : problem.settings.n_components] = chain.weights
    return Tilt(np.maximum(problem.corpus.lengths, 1), chain.linear, chain.quadratic, weights)


def _sample_topics(problem: Problem, chain: Chain) -> int:
    """Sweep over all blocks, in place; return how many tokens changed."""
    total, n_changed = chain.counts.topic_total, 0
    tilt, scores = _tilt(problem, chain), chain.scores.copy()
    lists = list_words(chain.counts) if problem.settings.propose else None
    for diagonal in problem.corpus.diagonals():
        work = partial(_sample_block, problem, chain, tilt, scores, lists, diagonal)
        results = map_tasks(work, len(diagonal), problem.settings.n_threads)
        for changed, difference in results:
            total += difference
            n_changed += changed
    return n_changed


def _sample_block(
    problem: Problem,
    chain: Chain,
    tilt: Tilt,
    scores: Floats,
    lists: WordLists | None,
    blocks: list[int],
    position: int,
) -> tuple[int, Integers]:
    """Sweep over one of the blocks; return how many tokens changed and what they add to the topics' totals."""
    corpus, settings, tokens = problem.corpus, problem.settings, problem.corpus.tokens
    block = blocks[position]
    first, last = int(corpus.block_runs[block]), int(corpus.block_runs[block + 1])
    n_tokens = int(tokens.starts[last] - tokens.starts[first])
    rng, priors = _generator(settings, chain.sweep, block), (settings.doc_topic_prior, settings.topic_word_prior)
    counts = chain.counts._replace(topic_total=chain.counts.topic_total.copy())
    if lists is not None:
        uniforms = rng.random((2, n_tokens), dtype=np.float32)
        changed = propose_topics(tokens, first, last, tilt, scores, PORTION, *priors, uniforms, counts, lists)
    else:
        uniforms = rng.random(n_tokens, dtype=np.float32)
        changed = sample_topics(tokens, first, last, tilt, *priors, uniforms, counts)
    return changed, counts.topic_total - chain.counts.topic_total


def update_weights(problem: Problem, chain: Chain, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Draw the weights given topics and augmentation variables; return them and the scores of the documents."""
    settings = problem.settings
    if settings.n_components <= MOST_DRAWN_TOGETHER:
        weights = draw_weights(weight_posterior(problem, chain), rng.standard_normal(chain.weights.shape))
        return weights, document_scores(problem, chain.counts, weights)
    L, K = chain.weights.shape
    if problem.memory is None:
        prior = WeightPrior(prior_precision(L, K, settings.weight_variance), np.zeros((L, K)))
    else:
        prior = WeightPrior(problem.memory.precision, problem.memory.linear)
    weights, scores = chain.weights.copy(), document_scores(problem, chain.counts, chain.weights)
    sweep_weights(
        _tilt(problem, chain), chain.counts, prior, rng.standard_normal((L, K + 1)), weights, scores, settings.n_threads
    )
    return weights, scores


def prior_precision(n_responses: int, n_topics: int, weight_variance: float) -> Floats:
    """Return the precision of the weights' prior as `Memory` has it: its diagonal where there are many topics."""
    if n_topics > MOST_DRAWN_TOGETHER:
        return np.full((n_responses, n_topics), 1.0 / weight_variance)
    return np.repeat(np.eye(n_topics)[None] / weight_variance, n_responses, axis=0)


def weight_posterior(problem: Problem, chain: Chain) -> WeightStatistics:
    """Return the precision of the weights' normal distribution and that times its mean."""
    settings, (L, K) = problem.settings, chain.weights.shape
    statistics = weight_statistics(_tilt(problem, chain), chain.counts, settings.n_threads)
    if problem.memory is not None:
        statistics.precision[...] += problem.memory.precision
        statistics.linear[...] += problem.memory.linear
    else:
        statistics.precision[...] += prior_precision(L, K, settings.weight_variance)
    return statistics


def posterior_precision(problem: Problem, chain: Chain) -> Floats:
    """Return the precision of the weights as `Memory` has it."""
    if problem.settings.n_components <= MOST_DRAWN_TOGETHER:
        return weight_posterior(problem, chain).precision
    L, K = chain.weights.shape
    if problem.memory is None:
        found = prior_precision(L, K, problem.settings.weight_variance)
    else:
        found = problem.memory.precision.copy()
    lengths = np.maximum(problem.corpus.lengths, 1)
    for first, last in chunk_bounds(len(lengths)):
        shares = chain.counts.doc_topic[first:last, :K] / lengths[first:last, None]
        found += chain.quadratic[first:last].T @ shares**2
    return found


def _mean_weights(memory: Memory) -> Floats:
    if memory.precision.ndim == 2:
        return memory.linear / memory.precision
    return np.asarray(np.linalg.solve(memory.precision, memory.linear[:, :, None])[:, :, 0], dtype=np.float64)


def draw_weights(posterior: WeightStatistics, normals: Floats) -> Floats:
    """Draw each response's weights from the normal with this precision and ``precision @ mean = linear``."""
    weights = np.empty_like(normals)
    for response, (precision, linear) in enumerate(zip(posterior.precision, posterior.linear, strict=True)):
        factor = cholesky(precision, lower=True, check_finite=False)
        halfway = solve_triangular(factor, linear, lower=True, check_finite=False)
        weights[response] = solve_triangular(
            factor, halfway + normals[response], lower=True, trans=1, check_finite=False
        )
    return weights


def document_scores(problem: Problem, counts: TopicCounts, weights: Floats) -> Floats:
    """Return the scores of all documents, shape (N, L); zero for empty ones."""
    lengths = np.maximum(problem.corpus.lengths, 1)
    scores = np.empty((len(lengths), len(weights)))
    loads = np.ascontiguousarray(weights.T)

    def work(_: int, first: int, last: int) -> None:
        rows = counts.doc_topic[first:last, : len(loads)].astype(np.float64)
        scores[first:last] = (rows @ loads) / lengths[first:last, None]

    map_chunks(work, len(lengths), problem.settings.n_threads)
    return scores


def log_joint(problem: Problem, counts: TopicCounts) -> float:
    """Return the log-probability of words and topics, with proportions and topics' words integrated out."""
    settings = problem.settings
    K, V = settings.n_components, len(problem.corpus.word_order)
    alpha, beta = settings.doc_topic_prior, settings.topic_word_prior
    of_documents = _log_rising(counts.doc_topic, alpha) - _log_rising(problem.corpus.lengths, K * alpha)
    return of_documents + _log_rising(counts.word_topic, beta) - _log_rising(counts.topic_total, V * beta)


def _log_rising(counts: NDArray[np.int32] | Integers, prior: float) -> float:
    """Return the sum of ``log(Gamma(count + prior) / Gamma(prior))``; zeros add nothing."""
    if counts.size == 0:
        return 0.0
    if counts.max() < 1_000_000:
        how_often = tally(counts)
        values = np.flatnonzero(how_often)
        return float(how_often[values] @ (gammaln(values + prior) - gammaln(prior)))
    positive = counts[counts > 0]
    return float(np.sum(gammaln(positive + prior)) - positive.size * gammaln(prior))


def _response_terms(problem: Problem, scores: Floats, weights: Floats) -> Mapping[str, float]:
    """What responses and weights add to the negative logarithm of the posterior."""
    assert problem.responses is not None
    margin = float(np.vdot(problem.responses.prices, losses(problem.responses, scores)))
    if problem.memory is None:
        return {"margin": margin, "weights": 0.5 * float(np.vdot(weights, weights)) / problem.settings.weight_variance}
    loads = times_precision(problem.memory.precision, weights)
    return {"margin": margin, "weights": float(np.vdot(weights, 0.5 * loads - problem.memory.linear))}


def times_precision(precision: Floats, weights: Floats) -> Floats:
    """Return the precision that `Memory` has times weights, shape (L, K)."""
    return precision * weights if precision.ndim == 2 else np.einsum("ljk,lk->lj", precision, weights)


def _averaged(chain: Chain) -> Averages:
    """Take the state after a sweep into the averages."""
    old, word_topic = chain.averages, chain.counts.word_topic.astype(np.float32)
    if old is None:
        return Averages(1, word_topic, chain.weights)
    word_topic += old.word_topic
    return Averages(old.n_kept + 1, word_topic, old.weights + chain.weights)


def _count(problem: Problem, topics: NDArray[np.int16]) -> TopicCounts:
    """Count tokens by document, word and topic, on top of what earlier documents left."""
    corpus, K = problem.corpus, problem.settings.n_components
    columns = padded(K)
    N, V = len(corpus.lengths), len(corpus.word_order)
    doc_topic, word_topic = np.zeros((N, columns), dtype=np.int32), np.zeros((V, columns), dtype=np.int32)
    count_tokens(corpus.tokens, topics, doc_topic, word_topic)
    if problem.memory is not None:
        word_topic[:, :K] += problem.memory.word_topic
    return TopicCounts(topics, doc_topic, word_topic, word_topic[:, :K].sum(axis=0, dtype=np.int64))


def _draw_by_topics(problem: Problem, hint: Memory, uniforms: Singles) -> NDArray[np.int16]:
    """Draw each token's topic from what earlier documents say about its word."""
    p = hint.word_topic + problem.settings.topic_word_prior
    p /= p.sum(axis=0)
    cumulative = np.cumsum(p / p.sum(axis=1, keepdims=True), axis=1).astype(np.float32)
    topics = np.empty(len(uniforms), dtype=np.int16)
    words = problem.corpus.tokens.words

    def work(_: int, first: int, last: int) -> None:
        below = cumulative[words[first:last]] <= uniforms[first:last, None]
        topics[first:last] = np.minimum(below.sum(axis=1), problem.settings.n_components - 1)

    map_chunks(work, len(uniforms), problem.settings.n_threads)
    return topics
