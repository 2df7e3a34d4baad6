"""Mean-field kernels of topic models: the compiled ones follow the reference, the reference follows the calculus."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from scipy.special import digamma, gammaln, polygamma

from medlda_tools import documents_of, draw_documents
from reference.meanfield import (
    reference_meanfield_statistics,
    reference_meanfield_sweeps,
    reference_reverse_sweeps,
)
from regbayes.kernels.meanfield import (
    Prior,
    WordCounts,
    even_gamma,
    meanfield_statistics,
    meanfield_sweeps,
    padded,
    reverse_sweeps,
)
from regbayes.kernels.meanfield.documents import _exp_digamma, _trigamma
from regbayes.models.medlda.meanfield import TrainingDocuments


def case(n_topics=5, n_documents=40, n_words=30, tilted=True, seed=0, fractions=True):
    rng = np.random.default_rng(seed)
    X, _, _ = draw_documents(n_documents, n_words=n_words, length=30, seed=seed)
    X = X.tolil()
    X[3] = 0
    X = X.tocsr().astype(np.float32)
    X.eliminate_zeros()
    if fractions:
        X.data *= rng.uniform(0.5, 1.5, X.nnz).astype(np.float32)
    documents = WordCounts(X.indices.astype(np.int32), X.data, X.indptr.astype(np.int64))
    topics = np.zeros((n_words, padded(n_topics)), np.float32)
    topics[:, :n_topics] = rng.dirichlet(np.full(n_words, 0.5), n_topics).T
    prior = Prior(topics, rng.uniform(0.1, 1.5, n_topics).astype(np.float32))
    tilt = rng.standard_normal((n_documents if tilted else 0, padded(n_topics))).astype(np.float32)
    gamma = np.zeros((n_documents, padded(n_topics)), np.float32)
    lengths = np.asarray(X.sum(axis=1)).ravel()
    gamma[:, :n_topics] = prior.doc_prior + lengths[:, None] / n_topics
    return documents, prior, tilt, gamma, lengths.astype(float)


def test_special_functions_are_those_of_scipy():
    x = np.concatenate([np.geomspace(0.025, 1e4, 400), [1.0, 6.0, 1e6]]).astype(np.float32)
    found = np.array([_exp_digamma(v, np.float32(0.3)) for v in x])
    expected = np.exp(digamma(x.astype(float)) + 0.3)
    np.testing.assert_allclose(found, expected, rtol=2e-5)
    np.testing.assert_allclose([_trigamma(v) for v in x], polygamma(1, x.astype(float)), rtol=2e-6)


@pytest.mark.parametrize("tilted", [False, True])
@pytest.mark.parametrize("n_topics", [1, 5, 8, 19])
def test_compiled_sweeps_and_statistics_are_those_of_the_reference(n_topics, tilted):
    documents, prior, tilt, gamma, _ = case(n_topics, tilted=tilted)
    results = []
    for sweep, sum_topics in (
        (reference_meanfield_sweeps, reference_meanfield_statistics),
        (meanfield_sweeps, meanfield_statistics),
    ):
        found, words, docs = gamma.copy(), np.empty_like(prior.word_given_topic), np.empty_like(gamma)
        at_the_end = np.empty(40)
        sweeps = sweep(documents, prior, tilt, 7, -1.0, found, logs=at_the_end)
        logs = sum_topics(documents, prior, tilt, found, np.ones(40), words, docs)
        np.testing.assert_allclose(at_the_end, logs, rtol=1e-6)
        np.testing.assert_allclose(sum_topics(documents, prior, tilt, found, np.ones(40)), logs, rtol=1e-6)
        results.append((found, words, docs, logs))
        assert sweeps == 7 * 39  # one document is empty
    for expected, ours in zip(*results, strict=True):
        np.testing.assert_allclose(ours, expected, rtol=2e-4, atol=2e-5)
    found, words, docs, _ = results[1]
    np.testing.assert_allclose(found[3, :n_topics], prior.doc_prior)
    np.testing.assert_allclose(docs.sum(), documents.numbers.sum(), rtol=1e-5)
    np.testing.assert_allclose(words.sum(axis=0), docs.sum(axis=0), rtol=1e-4, atol=1e-5)


def test_sweeps_stop_where_little_changes():
    documents, prior, tilt, gamma, _ = case()
    loose, tight = gamma.copy(), gamma.copy()
    few = meanfield_sweeps(documents, prior, tilt, 100, 0.1, loose)
    many = meanfield_sweeps(documents, prior, tilt, 1000, 1e-6, tight)
    assert few < many
    again = tight.copy()
    meanfield_sweeps(documents, prior, tilt, 1, -1.0, again)
    np.testing.assert_allclose(again, tight, atol=1e-3)


def negative_bounds(prior, gamma, logs, lengths):
    K, alpha = len(prior.doc_prior), prior.doc_prior.astype(float)
    gamma = gamma[:, :K].astype(float)
    total = gamma.sum(axis=1)
    kl = gammaln(total) - gammaln(alpha.sum()) - (gammaln(gamma) - gammaln(alpha)).sum(axis=1)
    kl += ((gamma - alpha) * (digamma(gamma) - digamma(total)[:, None])).sum(axis=1)
    return kl - logs + lengths * digamma(total)


def infer(documents, prior, n_sweeps, dtype=np.float64):
    """Label-free sweeps from even proportions by the reference: gamma and the logarithms."""
    K, n = len(prior.doc_prior), len(documents.starts) - 1
    lengths = np.array([documents.numbers[a:b].sum() for a, b in pairwise(documents.starts)])
    gamma = np.zeros((n, prior.word_given_topic.shape[1]), dtype)
    gamma[:, :K] = prior.doc_prior + lengths[:, None] / K
    no_tilt = np.empty((0, gamma.shape[1]), np.float32)
    reference_meanfield_sweeps(documents, prior, no_tilt, n_sweeps, -1.0, gamma)
    return gamma, reference_meanfield_statistics(documents, prior, no_tilt, gamma, np.ones(n))


@pytest.mark.parametrize("n_sweeps", [1, 4])
def test_reversed_sweeps_are_the_derivative(n_sweeps):
    documents, prior, _, gamma, lengths = case(3, n_documents=8, n_words=12)
    rng = np.random.default_rng(1)
    weights, slopes = rng.uniform(0.2, 2.0, 8), np.zeros_like(gamma)
    slopes[:, :3] = rng.standard_normal((8, 3))
    topics = prior.word_given_topic.astype(np.float64)

    def objective(table):
        at = Prior(table, prior.doc_prior.astype(np.float64))
        found, logs = infer(documents, at, n_sweeps)
        return np.sum(slopes * found) + weights @ negative_bounds(at, found, logs, lengths), found

    _, last = objective(topics)
    found = reference_reverse_sweeps(documents, Prior(topics, prior.doc_prior), n_sweeps, last, slopes, weights)
    way = np.zeros_like(topics)
    way[:, :3] = rng.standard_normal((12, 3)) * topics[:, :3]
    step = 1e-5
    numerical = (objective(topics + step * way)[0] - objective(topics - step * way)[0]) / (2 * step)
    assert numerical == pytest.approx(np.sum(found * way), rel=1e-5)


@pytest.mark.parametrize("n_topics", [1, 5, 16])
def test_compiled_derivatives_are_those_of_the_reference(n_topics):
    documents, prior, _, gamma, _ = case(n_topics)
    rng = np.random.default_rng(2)
    slopes, weights = rng.standard_normal(gamma.shape).astype(np.float32), rng.uniform(0.2, 2.0, 40)
    slopes[:, n_topics:] = 0
    last = infer(documents, prior, 4, np.float32)[0]
    arguments = documents, prior, 4, last, slopes, weights
    expected, ours = reference_reverse_sweeps(*arguments), reverse_sweeps(*arguments)
    np.testing.assert_allclose(ours, expected, rtol=1e-3, atol=1e-4 * np.abs(expected).max())


# --- label-free inference of new documents, proportions integrated out


@pytest.mark.parametrize("n_topics", [1, 3, 8, 40])
def test_collapsed_inference_is_that_of_the_reference(n_topics):
    documents, prior, _, gamma, lengths = case(n_topics, tilted=False)
    no_tilt, results = np.empty((0, gamma.shape[1]), np.float32), []
    for sweep in (reference_meanfield_sweeps, meanfield_sweeps):
        results.append(gamma.copy())
        sweep(documents, prior, no_tilt, 30, 0.0, results[-1], True)
    np.testing.assert_allclose(results[1], results[0], rtol=1e-3, atol=2e-4)
    counts = results[1][:, :n_topics] - prior.doc_prior
    np.testing.assert_allclose(counts.sum(axis=1), lengths, rtol=1e-4)
    assert np.all(counts[3] == 0)


def test_collapsed_inference_climbs_to_a_stationary_point():
    """At the end, gamma is a stationary point of the posterior mode of proportions with prior + 1."""
    rng = np.random.default_rng(0)
    X, _, _ = draw_documents(5, n_words=30)
    topics = np.zeros((30, 8), np.float32)
    topics[:, :3] = rng.dirichlet(np.full(30, 0.5), 3).T
    gamma, prior = (
        even_gamma(np.asarray(X.sum(axis=1), dtype=float), np.full(3, 0.7)),
        Prior(topics, np.full(3, 0.7, np.float32)),
    )
    meanfield_sweeps(documents_of(X), prior, gamma[:0], 2000, 1e-7, gamma, True)

    def log_posterior(theta, row):
        return row @ np.log(topics[:, :3] @ theta) + 0.7 * np.log(theta).sum()

    for found, row in zip(gamma[:, :3].astype(float), X.toarray(), strict=True):
        theta = found / found.sum()
        for direction in np.eye(3) - 1 / 3:
            slope = (log_posterior(theta + 1e-4 * direction, row) - log_posterior(theta - 1e-4 * direction, row)) / 2e-4
            assert abs(slope) < 0.05


# --- blocks of documents, and documents that count more than once


def test_a_block_shares_the_entries_of_all():
    documents, prior, tilt, gamma, _ = case(7)
    whole, parts = gamma.copy(), gamma.copy()
    meanfield_sweeps(documents, prior, tilt, 3, 1e-3, whole)
    for first, last in ((0, 11), (11, 12), (12, 40)):
        rows = slice(first, last)
        meanfield_sweeps(documents.rows(first, last), prior, tilt[rows], 3, 1e-3, parts[rows])
    np.testing.assert_array_equal(parts, whole)


def test_a_document_that_counts_twice_is_there_twice():
    documents, prior, tilt, gamma, _ = case(5)
    weights = np.random.default_rng(0).integers(1, 4, 40).astype(float)
    rows = np.repeat(np.arange(40), weights.astype(int))
    entries = [np.arange(documents.starts[d], documents.starts[d + 1]) for d in rows]
    starts = np.concatenate([[0], np.cumsum([len(e) for e in entries])]).astype(np.int64)
    entries = np.concatenate(entries)
    repeated = WordCounts(documents.words[entries], documents.numbers[entries], starts)
    tables = [np.empty_like(prior.word_given_topic) for _ in range(2)]
    logs = meanfield_statistics(documents, prior, tilt, gamma, weights, tables[0])
    one = np.ones(len(rows))
    again = meanfield_statistics(repeated, prior, tilt[rows], gamma[rows], one, tables[1])
    np.testing.assert_array_equal(again, logs[rows])
    np.testing.assert_allclose(*tables, rtol=1e-5, atol=1e-6)
    slopes = np.random.default_rng(2).standard_normal(gamma.shape).astype(np.float32)
    slopes[:, 5:] = 0
    last = infer(documents, prior, 3, np.float32)[0]
    found = reference_reverse_sweeps(documents, prior, 3, last, weights[:, None] * slopes, weights)
    expected = reference_reverse_sweeps(repeated, prior, 3, last[rows], slopes[rows], one)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6 * np.abs(expected).max())


@pytest.mark.parametrize(
    ("n_entries", "n_words", "n_blocks"),
    [(0, 50, 1), (5, 50, 1), (10**6, 50, 8), (10**6, 50_000, 5), (10**7, 50, 64), (10**7, 50_000, 12)],
)
def test_blocks_hold_every_document_once(n_entries, n_words, n_blocks):
    starts = np.linspace(0, n_entries, 101).astype(np.int64)
    documents = TrainingDocuments(WordCounts(np.empty(0), np.empty(0), starts), np.ones(100), np.ones(100))
    blocks = documents.cut(n_words)
    assert [d for rows in blocks for d in range(rows.start, rows.stop)] == list(range(100))
    assert len(blocks) == n_blocks


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"words": np.array([0, 9], np.int32)}, "words must be rows"),
        ({"words": np.array([0, -1], np.int32)}, "words must be rows"),
        ({"starts": np.array([0, 3])}, "must fit each other"),
        ({"starts": np.array([2, 0])}, "must fit each other"),
    ],
)
def test_arrays_that_do_not_fit_raise(change, message):
    given = {"words": np.array([0, 1], np.int32), "numbers": np.ones(2, np.float32), "starts": np.array([0, 2])}
    prior, gamma = Prior(np.ones((2, 8), np.float32), np.ones(3, np.float32)), np.ones((1, 8), np.float32)
    with pytest.raises(ValueError, match=message):
        meanfield_sweeps(WordCounts(**given | change), prior, gamma[:0], 1, 0.0, gamma)
    with pytest.raises(ValueError, match="n_sweeps must be at most"):
        reverse_sweeps(WordCounts(**given), prior, 2**31 - 1, gamma, gamma, np.ones(1))
