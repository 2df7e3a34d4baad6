"""Margins on the posterior of the training documents, as in the paper's appendix B: mean field with a dual inside.

A round updates, in turn: topics of words and proportions of documents, which the multipliers tilt towards the margins;
the topics' words; the prior of the proportions, if it is estimated; the multipliers and the weights, by the
large-margin solver. At fixed multipliers no update lowers the bound; over rounds the regularized objective may rise,
since documents and multipliers play against each other, and the best round is kept. docs/math.md eq. (59)-(65). With a
Gaussian response, eq. (105)-(110), words keep their topics and the weights a covariance.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray
from scipy.special import digamma

from regbayes.engine import StepResult
from regbayes.kernels.dispatch import Backend, get_backend
from regbayes.kernels.types_meanfield import Prior, Singles, WordCounts
from regbayes.kernels.types_topics import padded
from regbayes.models.medlda import response as gaussian
from regbayes.models.medlda.margins import Accuracy, Dual, Readout, solve_readout
from regbayes.models.medlda.meanfield import UNTIL_SETTLED, MeanField, as_table, even_gamma
from regbayes.models.medlda.objective import expected_log_topics, proportion_divergence, topic_divergence
from regbayes.models.medlda.response import Belief, Moments, Response, Reward
from regbayes.models.medlda.updates import update_doc_prior

Floats = NDArray[np.float64]

MAX_SWEEPS = 20  # over a document in a round; it goes on from there in the next
TOL = 1e-3  # of a document's length: changes of its topics' tokens, summed
START_ROUNDS = 20  # from random topics, in which documents begin anew: while topics are vague they should not settle
ACCURACY = Accuracy(gap=1e-3, max_epochs=50.0)  # of the large-margin step


@dataclass(frozen=True)
class Problem:
    """What stays the same through a fit. No document is empty."""

    documents: WordCounts
    lengths: Floats  # (N,)
    dual: Dual | None  # None: latent Dirichlet allocation
    word_prior: float  # zero: topics by maximum likelihood
    estimate_doc_prior: bool
    n_threads: int
    response: Response | None = None  # None: margins are all that is known of the numbers
    backend: Backend = field(default_factory=get_backend)


@dataclass(frozen=True)
class Factors:
    """The distributions: proportions of documents, words of topics, weights."""

    gamma: Singles  # (N, columns)
    topic_counts: Singles  # (V, columns): topics are Dirichlet with these parameters plus the prior's, or the shares of
    # these where they are estimated
    word_topic: Singles  # (V, columns): expected tokens
    doc_topic: Singles  # (N, columns): expected tokens
    doc_prior: Floats  # (K,)
    entropy: float  # E[log theta - log q(z)], summed over tokens
    readout: Readout | None
    # With a Gaussian response:
    log_phi: Singles | None = None  # (entries, K): topics of words
    overlap: Floats | None = None  # (K, K): sum over tokens of phi phi^T / length^2
    belief: Belief | None = None

    @property
    def n_topics(self) -> int:
        """K."""
        return len(self.doc_prior)


@dataclass(frozen=True)
class Round:
    """Where the alternation stands."""

    factors: Factors
    terms: dict[str, float]


def start(problem: Problem, logits: Floats, doc_prior: Floats, n_rounds: int = 1) -> Round:
    """Go from the first topics some rounds without responses, and solve for the weights."""
    topics = np.exp(logits - logits.max(axis=0))
    topics /= topics.sum(axis=0)
    K, columns = len(doc_prior), padded(len(doc_prior))
    counts = np.zeros((len(topics), columns), np.float32)
    # As many tokens as the corpus has: the prior then smooths the first topics as it will the later ones.
    counts[:, :K] = topics * (problem.lengths.sum() / K)
    gamma = even_gamma(problem.lengths, doc_prior)
    factors = Factors(gamma, counts, counts, np.zeros_like(gamma), doc_prior, 0.0, None)
    for _ in range(n_rounds):
        factors = update_topics(update_documents(problem, replace(factors, gamma=gamma)))
    if problem.response is not None:
        log_topics = expected_log_topics(factors.topic_counts[:, :K], problem.word_prior)
        log_phi = gaussian.first_topics(problem.documents, log_topics, factors.gamma[:, :K].astype(np.float64))
        factors = replace(factors, log_phi=log_phi, belief=gaussian.no_belief(problem.response, K))
        factors = _update_coupled_documents(problem, factors, n_sweeps=0)
    return _concluded(problem, factors)


def step(problem: Problem, at: Round) -> StepResult[Round]:
    """One round."""
    factors = update_topics(update_documents(problem, at.factors))
    if problem.estimate_doc_prior:
        factors = update_prior(factors)
    if problem.response is not None and problem.response.estimate:
        factors = update_response_variance(problem, factors)
    after = _concluded(problem, factors)
    gap = 0.0 if after.factors.readout is None else after.factors.readout.solution.gap
    return StepResult(after, after.terms, {"gap": gap})


def update_documents(problem: Problem, factors: Factors) -> Factors:
    """Update topics of words and proportions of documents, at fixed multipliers: docs/math.md eq. (61), (62)."""
    if factors.belief is not None:
        return _update_coupled_documents(problem, factors, gaussian.N_SWEEPS)
    K = factors.n_topics
    log_topics = expected_log_topics(factors.topic_counts[:, :K], problem.word_prior)
    table = np.zeros_like(factors.topic_counts)
    table[:, :K] = np.exp(log_topics)
    prior = Prior(table, factors.doc_prior.astype(np.float32))
    tilt, gamma = tilt_of(problem, factors), factors.gamma.copy()
    problem.backend.meanfield_sweeps(problem.documents, prior, tilt, MAX_SWEEPS, TOL, gamma, problem.n_threads)
    word_topic, doc_topic = np.empty_like(table), np.empty_like(gamma)
    logs = problem.backend.meanfield_statistics(
        problem.documents, prior, tilt, gamma, word_topic, doc_topic, problem.n_threads
    )
    # The logarithms hold words and tilt too; they have terms of their own.
    entropy = float(logs.sum()) - float(np.vdot(word_topic[:, :K].astype(np.float64), log_topics))
    entropy -= float(np.vdot(problem.lengths, digamma(gamma[:, :K].sum(axis=1, dtype=np.float64))))
    if len(tilt):
        entropy -= float(np.vdot(tilt[:, :K].astype(np.float64), doc_topic[:, :K]))
    return replace(factors, gamma=gamma, doc_topic=doc_topic, word_topic=word_topic, entropy=entropy)


def _update_coupled_documents(problem: Problem, factors: Factors, n_sweeps: int) -> Factors:
    """Update topics of words and proportions where a Gaussian response couples the words: docs/math.md eq. (106)."""
    assert factors.belief is not None
    assert factors.log_phi is not None
    K = factors.n_topics
    found = gaussian.infer_words(
        problem.documents,
        expected_log_topics(factors.topic_counts[:, :K], problem.word_prior),
        factors.doc_prior,
        Reward(tilt_of(problem, factors)[:, :K].astype(np.float64), factors.belief.curvature),
        factors.log_phi,
        factors.gamma[:, :K].astype(np.float64),
        n_sweeps,
        problem.n_threads,
    )
    return replace(
        factors,
        gamma=as_table(found.gamma),
        doc_topic=as_table(found.doc_topic),
        word_topic=as_table(found.word_topic),
        entropy=float(found.entropy.sum()),
        log_phi=found.log_phi,
        overlap=found.overlap,
    )


def tilt_of(problem: Problem, factors: Factors) -> Singles:
    """Return what margins and responses add to the log-weights of topics, for each token; no rows without both."""
    shape, K = factors.gamma.shape, factors.n_topics
    if factors.readout is None and factors.belief is None:
        return np.empty((0, shape[1]), np.float32)
    reward = np.zeros((shape[0], K)) if factors.readout is None else -factors.readout.slopes()
    if problem.response is not None and factors.belief is not None:
        reward += (problem.response.values / factors.belief.variance) @ factors.belief.mean
    tilt = np.zeros(shape, np.float32)
    tilt[:, :K] = reward / problem.lengths[:, None]
    return tilt


def update_topics(factors: Factors) -> Factors:
    """Update the topics' words, docs/math.md eq. (63)."""
    return replace(factors, topic_counts=factors.word_topic)


def update_prior(factors: Factors) -> Factors:
    """Update the Dirichlet parameters of the proportions by empirical Bayes."""
    gamma = factors.gamma[:, : factors.n_topics].astype(np.float64)
    expected = digamma(gamma) - digamma(gamma.sum(axis=1))[:, None]
    return replace(factors, doc_prior=update_doc_prior(factors.doc_prior, expected.sum(axis=0), len(gamma)))


def update_response_variance(problem: Problem, factors: Factors) -> Factors:
    """Update the variance of the responses by empirical Bayes, docs/math.md eq. (109)."""
    assert problem.response is not None
    assert factors.belief is not None
    seen = moments_of(problem, factors)
    return replace(factors, belief=gaussian.update_variance(seen, problem.response, factors.belief))


def update_weights(problem: Problem, factors: Factors) -> Factors:
    """Update the distribution of the weights at fixed multipliers, docs/math.md eq. (107)."""
    assert problem.response is not None
    assert factors.belief is not None
    assert factors.readout is not None
    seen, readout = moments_of(problem, factors), factors.readout
    belief = gaussian.update_weights(seen, problem.response, factors.belief, readout.pull)
    return replace(factors, belief=belief, readout=replace(readout, weights=belief.mean))


def shares_of(problem: Problem, factors: Factors) -> Floats:
    """Return the expected shares of topics in documents, shape (N, K)."""
    return np.asarray(factors.doc_topic[:, : factors.n_topics] / problem.lengths[:, None], dtype=np.float64)


def moments_of(problem: Problem, factors: Factors) -> Moments:
    """Return the first two moments of the shares, where a Gaussian response asks for them."""
    assert factors.overlap is not None
    return gaussian.moments(shares_of(problem, factors), problem.lengths, factors.overlap)


def bound_terms(problem: Problem, factors: Factors) -> dict[str, float]:
    """Return the terms of the negative bound on the log-probability of words and responses, eq. (60) and (110)."""
    K = factors.n_topics
    counts = factors.word_topic[:, :K].astype(np.float64)
    log_topics = expected_log_topics(factors.topic_counts[:, :K], problem.word_prior)
    gamma = factors.gamma[:, :K].astype(np.float64)
    terms = {
        "words": -float(np.vdot(counts, log_topics)) - factors.entropy,
        "proportions": proportion_divergence(gamma, factors.doc_prior),
        "topics": topic_divergence(factors.topic_counts[:, :K], problem.word_prior),
    }
    if problem.response is not None and factors.belief is not None:
        terms |= gaussian.terms(moments_of(problem, factors), problem.response, factors.belief)
    return terms


def lagrangian(problem: Problem, factors: Factors, readout: Readout | None) -> float:
    """Return the bound plus what fixed multipliers reward in it: no update of `factors` lowers it.

    Weights are those of ``readout`` too, unless a Gaussian response gives them a distribution.
    """
    found = -sum(bound_terms(problem, factors).values())
    if readout is not None:
        weights = readout.weights if factors.belief is None else factors.belief.mean
        found += float(np.vdot(readout.pull, shares_of(problem, factors) @ weights.T))
    return found


def _concluded(problem: Problem, factors: Factors) -> Round:
    """Solve for multipliers and weights, and evaluate the regularized objective."""
    if problem.dual is None:
        return Round(factors, bound_terms(problem, factors))
    before = None if factors.readout is None else factors.readout.solution.dual
    if problem.response is not None and factors.belief is not None:
        belief, readout = gaussian.solve_weights(
            moments_of(problem, factors), problem.response, problem.dual, factors.belief.variance, before, ACCURACY
        )
        factors = replace(factors, belief=belief, readout=readout)
    else:
        readout = solve_readout(shares_of(problem, factors), problem.dual, before, ACCURACY)
        factors = replace(factors, readout=readout)
    squares = 0.5 * float(np.vdot(readout.solution.weights, readout.solution.weights))
    terms = bound_terms(problem, factors)
    terms.setdefault("weights", squares)
    return Round(factors, terms | {"margin": readout.solution.primal - squares})


def terms_of(at: Round) -> dict[str, float]:
    """Return the terms of the regularized objective."""
    return at.terms


def finished(problem: Problem, at: Round) -> MeanField:
    """Return the fitted model."""
    factors, K = at.factors, at.factors.n_topics
    counts = factors.topic_counts[:, :K]
    table = np.exp(expected_log_topics(counts, problem.word_prior)).astype(np.float32)
    weights = np.zeros((0, K)) if factors.readout is None else factors.readout.folded
    total = factors.doc_topic[:, :K].sum(axis=0, dtype=np.float64)
    pseudo = (counts + np.float32(problem.word_prior)).astype(np.float32)
    variance = None if factors.belief is None else factors.belief.variance
    return MeanField(table, pseudo, factors.doc_prior, weights, total / total.sum(), UNTIL_SETTLED, variance)
