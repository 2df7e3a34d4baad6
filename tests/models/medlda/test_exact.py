"""Correctness of the sampler: enumerated assignments, and a joint distribution test."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from scipy.stats import chi2, invgauss, kstest

from medlda_tools import corpus_of, log_words, loss, settings
from regbayes.margins.targets import Numbers, Signs
from regbayes.models.medlda import gibbs
from regbayes.models.medlda.gibbs import Problem, draw_inverse, draw_quadratics, list_hinges

X = np.array([[2, 0, 1], [0, 1, 1], [1, 0, 0]])
MARGINS = Signs(
    signs=np.array([[1.0, -1.0], [-1.0, -1.0], [1.0, 1.0]]),
    C=np.array([[3.0, 2.0], [4.0, 0.0], [1.0, 6.0]]),
    margin=0.8,
)
TARGETS = Numbers(values=np.array([[1.0], [-0.5], [0.4]]), C=np.array([[6.0], [4.0], [3.0]]), epsilon=0.2)


def enumerated(responses, s):
    """Return expectations that are invariant to label switching: scores, squares, and tokens that share a topic."""
    lengths = X.sum(axis=1)
    grid = np.linspace(-7, 7, 141) * np.sqrt(s.weight_variance)
    eta = np.stack(np.meshgrid(grid, grid, indexing="ij"))
    log_prior = -0.5 * np.sum(eta**2, axis=0) / s.weight_variance
    L = responses.C.shape[1]
    log_weights, scores, squares, together = [], [], [], []
    for assignment in product(range(2), repeat=int(lengths.sum())):
        topics = np.split(np.array(assignment), np.cumsum(lengths)[:-1])
        shares = np.array([np.bincount(z, minlength=2) / len(z) for z in topics])
        log_weight, mean, square = log_words(X, topics, s), np.empty((len(X), L)), np.empty((len(X), L))
        for response in range(L):
            f = np.tensordot(shares, eta, 1)
            losses = sum(loss(responses, d, response, f[d]) for d in range(len(X)))
            density = np.exp(log_prior - losses)
            log_weight += np.log(density.sum())
            mean[:, response] = (f * density).sum(axis=(1, 2)) / density.sum()
            square[:, response] = (f**2 * density).sum(axis=(1, 2)) / density.sum()
        log_weights.append(log_weight)
        scores.append(mean)
        squares.append(square)
        together.append(np.equal.outer(assignment, assignment))
    p = np.exp(np.array(log_weights) - max(log_weights))
    p /= p.sum()
    return [np.tensordot(p, np.array(values, dtype=float), 1) for values in (scores, squares, together)]


def batch_errors(draws, n_batches=30):
    batches = np.array([batch.mean(axis=0) for batch in np.array_split(draws, n_batches)])
    return batches.mean(axis=0), batches.std(axis=0, ddof=1) / np.sqrt(n_batches)


def chain_of(problem, n_sweeps):
    chain = gibbs.start(problem)
    for _ in range(n_sweeps):
        chain = gibbs.step(problem, chain).state
        yield chain


@pytest.mark.parametrize("responses", [MARGINS, TARGETS], ids=["margins", "targets"])
def test_chain_has_the_enumerated_expectations(responses):
    s = settings(2)
    problem = Problem(corpus_of(X), responses, s)
    scores, together = [], []
    for chain in chain_of(problem, 4000):
        scores.append(gibbs.document_scores(problem, chain.counts, chain.weights))
        together.append(np.equal.outer(chain.counts.topics, chain.counts.topics))
    found = np.array(scores), np.array(scores) ** 2, np.array(together, dtype=float)
    for name, draws, expected in zip(("score", "square", "together"), found, enumerated(responses, s), strict=True):
        mean, error = batch_errors(draws[200:])
        assert np.max(np.abs(mean - expected) / (error + 1e-6)) < 4.5, (name, mean, expected, error)
        assert np.max(error) < 0.1 * max(1, np.abs(expected).max())


def test_chain_without_responses_has_enumerated_expectations():
    s = settings(2, n_burn_in=10**9)
    nothing = Signs(MARGINS.signs, np.zeros_like(MARGINS.C), 1.0)
    together = [
        np.equal.outer(chain.counts.topics, chain.counts.topics)
        for chain in chain_of(Problem(corpus_of(X), None, s), 4000)
    ]
    mean, error = batch_errors(np.array(together, dtype=float))
    assert np.max(np.abs(mean - enumerated(nothing, s)[2]) / (error + 1e-6)) < 4.5


def test_joint_distribution_with_redrawn_words_is_invariant():
    """Geweke (2004): redrawing words given topics and the rest given words keeps the joint distribution.

    Independent draws from it are weighted draws from the prior, since the responses enter as a factor.
    """
    n_documents, length, V, K = 4, 5, 3, 2
    s = settings(K, n_burn_in=10**9)
    responses = Signs(np.array([[1.0], [-1.0], [1.0], [-1.0]]), np.full((n_documents, 1), 1.5), 0.6)
    rng = np.random.default_rng(0)

    def summary(shares, weights, word_topic):
        scores = shares @ weights
        return [scores @ responses.signs[:, 0], scores @ scores, np.sum(shares**2), np.sum(word_topic**2.0)]

    def words_given(topics):
        words_of = rng.dirichlet(np.full(V, s.topic_word_prior), K)
        return (rng.random(topics.shape)[..., None] > np.cumsum(words_of, axis=1)[topics]).sum(axis=-1).clip(max=V - 1)

    forward, log_weights = [], []
    for _ in range(15000):
        proportions = rng.dirichlet(np.full(K, s.doc_topic_prior), n_documents)
        topics = (rng.random((n_documents, length)) < proportions[:, 1:]).astype(int)
        shares = np.stack([1 - topics.mean(axis=1), topics.mean(axis=1)], axis=1)
        weights = np.sqrt(s.weight_variance) * rng.standard_normal(K)
        word_topic = np.zeros((V, K))
        np.add.at(word_topic, (words_given(topics), topics), 1)
        forward.append(summary(shares, weights, word_topic))
        log_weights.append(-sum(loss(responses, d, 0, shares[d] @ weights) for d in range(n_documents)))
    p = np.exp(np.array(log_weights))
    forward = np.array(forward)
    expected = p @ forward / p.sum()
    spread = np.sqrt((p**2) @ (forward - expected) ** 2) / p.sum()

    corpus = corpus_of(np.full((n_documents, V), 2))  # arbitrary words, which are redrawn
    corpus = replace(corpus, lengths=np.full(n_documents, length))
    starts, documents = np.arange(n_documents + 1) * length, np.arange(n_documents, dtype=np.int32)
    tokens = corpus.tokens._replace(words=np.zeros(n_documents * length, np.int32), starts=starts, documents=documents)
    problem = Problem(replace(corpus, tokens=tokens), responses, s)
    chain, seen = gibbs.start(problem), []
    for _ in range(4000):
        chain = gibbs.step(problem, chain).state
        words = words_given(chain.counts.topics.astype(int)).astype(np.int32)
        problem = replace(problem, corpus=replace(problem.corpus, tokens=tokens._replace(words=words)))
        word_topic = np.zeros_like(chain.counts.word_topic)
        np.add.at(word_topic, (words, chain.counts.topics), 1)
        chain = replace(chain, counts=chain.counts._replace(word_topic=word_topic))
        seen.append(summary(chain.counts.doc_topic[:, :K] / length, chain.weights[0], word_topic))
    mean, error = batch_errors(np.array(seen))
    assert np.max(np.abs(mean - expected) / np.hypot(error, spread)) < 4


# --- augmentation


@pytest.mark.parametrize("u", [1e-3, 0.3, 2.0, 50.0])
def test_inverse_draws_are_inverse_gaussian(u):
    rng = np.random.default_rng(0)
    draws = draw_inverse(np.full(20000, -u), rng.standard_normal(20000), rng.random(20000))
    assert kstest(draws, invgauss(1 / u).cdf).pvalue > 1e-3  # scipy's mean is mu times the scale, the shape


def test_inverse_draws_at_zero_violation_are_chi_squared():
    rng = np.random.default_rng(1)
    for u in (0.0, 1e-300, 1e-12):
        draws = draw_inverse(np.full(20000, u), rng.standard_normal(20000), rng.random(20000))
        assert np.all(np.isfinite(draws) & (draws > 0))
        assert kstest(1 / draws, chi2(1).cdf).pvalue > 1e-3


def test_inverse_draws_at_huge_violations_do_not_cancel():
    draws = draw_inverse(np.full(1000, 1e9), np.random.default_rng(0).standard_normal(1000), np.full(1000, 0.3))
    np.testing.assert_allclose(1e9 * draws, 1.0, rtol=1e-3)


@pytest.mark.parametrize("responses", [MARGINS, TARGETS], ids=["margins", "targets"])
def test_quadratics_average_to_the_slope_of_the_loss(responses):
    """By Danskin's theorem, E[quadratic | score] and E[linear | score] give the slope of the loss."""
    rng, score = np.random.default_rng(0), 0.25
    scores = np.full(responses.C.shape, score)
    shape = (len(list_hinges(responses)), *scores.shape)
    draws = [
        np.subtract(*(part * factor for part, factor in zip(pair, (1.0, score), strict=True)))
        for pair in (
            draw_quadratics(responses, scores, rng.standard_normal(shape), rng.random(shape)) for _ in range(20000)
        )
    ]
    step = 1e-5
    for d, response in np.ndindex(*scores.shape):
        slope = -(loss(responses, d, response, score + step) - loss(responses, d, response, score - step)) / (2 * step)
        values = np.array(draws)[:, d, response]
        assert abs(values.mean() - slope) < 5 * values.std() / np.sqrt(len(values)) + 1e-9
