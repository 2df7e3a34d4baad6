"""Mean-field kernels of topic models match the reference, and the reference matches derivatives."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from scipy.special import digamma, gammaln, polygamma

from medlda_tools import documents_of, draw_documents
from reference.meanfield import reference_meanfield_sweeps, reference_reverse_sweeps
from regbayes.kernels.meanfield import (
    Prior,
    WordCounts,
    _exp_digamma,
    _trigamma,
    even_gamma,
    meanfield_sweeps,
    padded,
    reverse_sweeps,
)


def case(n_topics=5, n_documents=40, n_words=30):
    """Return documents with fractional counts, one of them empty, topics, and a start."""
    rng = np.random.default_rng(0)
    X, _, _ = draw_documents(n_documents, n_words=n_words, length=30, seed=0)
    X = X.tolil()
    X[3] = 0
    X = X.tocsr().astype(np.float32)
    X.eliminate_zeros()
    X.data *= rng.uniform(0.5, 1.5, X.nnz).astype(np.float32)
    documents = WordCounts(X.indices.astype(np.int32), X.data, X.indptr.astype(np.int64))
    topics = np.zeros((n_words, padded(n_topics)), np.float32)
    topics[:, :n_topics] = rng.dirichlet(np.full(n_words, 0.5), n_topics).T
    prior = Prior(topics, rng.uniform(0.1, 1.5, n_topics).astype(np.float32))
    lengths = np.asarray(X.sum(axis=1), dtype=float).ravel()
    return documents, prior, even_gamma(lengths, prior.doc_prior), lengths


def test_special_functions_match_scipy():
    x = np.concatenate([np.geomspace(0.025, 1e4, 400), [1.0, 6.0, 1e6]]).astype(np.float32)
    found = np.array([_exp_digamma(v) for v in x])
    np.testing.assert_allclose(found, np.exp(digamma(x.astype(float))), rtol=2e-5)
    np.testing.assert_allclose([_trigamma(v) for v in x], polygamma(1, x.astype(float)), rtol=2e-6)


@pytest.mark.parametrize("collapsed", [False, True])
@pytest.mark.parametrize("n_topics", [1, 5, 8, 19])
def test_compiled_sweeps_match_reference(n_topics, collapsed):
    documents, prior, gamma, lengths = case(n_topics)
    results = []
    for sweep in (reference_meanfield_sweeps, meanfield_sweeps):
        found, logs = gamma.copy(), np.empty(40)
        assert sweep(documents, prior, 7, -1.0, found, collapsed, logs) == 7 * 39  # one document is empty
        results.append((found, logs))
    for expected, ours in zip(*results, strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-3, atol=2e-4)
    counts = results[1][0][:, :n_topics] - prior.doc_prior
    np.testing.assert_allclose(counts.sum(axis=1), lengths, rtol=1e-4)
    assert np.all(counts[3] == 0)


def test_sweeps_stop_at_small_changes():
    documents, prior, gamma, _ = case()
    loose, tight = gamma.copy(), gamma.copy()
    assert meanfield_sweeps(documents, prior, 100, 0.1, loose) < meanfield_sweeps(documents, prior, 1000, 1e-6, tight)
    again = tight.copy()
    meanfield_sweeps(documents, prior, 1, -1.0, again)
    np.testing.assert_allclose(again, tight, atol=1e-3)


def infer(documents, prior, n_sweeps, dtype=np.float64):
    """Return gamma and the logarithms of the reference from uniform proportions."""
    K = len(prior.doc_prior)
    lengths = np.array([documents.numbers[a:b].sum() for a, b in pairwise(documents.starts)])
    gamma, logs = np.zeros((len(lengths), prior.word_given_topic.shape[1]), dtype), np.empty(len(lengths))
    gamma[:, :K] = prior.doc_prior + lengths[:, None] / K
    reference_meanfield_sweeps(documents, prior, n_sweeps, -1.0, gamma, logs=logs)
    return gamma, logs


@pytest.mark.parametrize("n_sweeps", [1, 4])
def test_reference_of_reversed_sweeps_is_the_derivative(n_sweeps):
    documents, prior, gamma, lengths = case(3, n_documents=8, n_words=12)
    rng = np.random.default_rng(1)
    weights, slopes = rng.uniform(0.2, 2.0, 8), np.zeros_like(gamma)
    slopes[:, :3] = rng.standard_normal((8, 3))
    topics, alpha = prior.word_given_topic.astype(np.float64), prior.doc_prior.astype(np.float64)

    def objective(table):
        found, logs = infer(documents, Prior(table, alpha), n_sweeps)
        used = found[:, :3]
        total = used.sum(axis=1)
        divergences = gammaln(total) - gammaln(alpha.sum()) - (gammaln(used) - gammaln(alpha)).sum(axis=1)
        divergences += ((used - alpha) * (digamma(used) - digamma(total)[:, None])).sum(axis=1)
        return np.sum(slopes * found) + weights @ (divergences - logs + lengths * digamma(total)), found

    _, last = objective(topics)
    found = reference_reverse_sweeps(documents, Prior(topics, alpha), n_sweeps, last, slopes, weights)
    way = np.zeros_like(topics)
    way[:, :3] = rng.standard_normal((12, 3)) * topics[:, :3]
    step = 1e-5
    numerical = (objective(topics + step * way)[0] - objective(topics - step * way)[0]) / (2 * step)
    assert numerical == pytest.approx(np.sum(found * way), rel=1e-5)


@pytest.mark.parametrize("n_topics", [1, 5, 16])
def test_compiled_derivatives_match_reference(n_topics):
    documents, prior, gamma, _ = case(n_topics)
    rng = np.random.default_rng(2)
    slopes, weights = rng.standard_normal(gamma.shape).astype(np.float32), rng.uniform(0.2, 2.0, 40)
    slopes[:, n_topics:] = 0
    last = infer(documents, prior, 4, np.float32)[0]
    arguments = documents, prior, 4, last, slopes, weights
    expected, ours = reference_reverse_sweeps(*arguments), reverse_sweeps(*arguments)
    np.testing.assert_allclose(ours, expected, rtol=1e-3, atol=1e-4 * np.abs(expected).max())


def test_collapsed_inference_reaches_a_stationary_point():
    """At the end, gamma is a stationary point of the posterior mode of proportions with prior + 1."""
    rng = np.random.default_rng(0)
    X, _, _ = draw_documents(5, n_words=30)
    topics = np.zeros((30, 8), np.float32)
    topics[:, :3] = rng.dirichlet(np.full(30, 0.5), 3).T
    gamma = even_gamma(np.asarray(X.sum(axis=1), dtype=float), np.full(3, 0.7))
    meanfield_sweeps(documents_of(X), Prior(topics, np.full(3, 0.7, np.float32)), 2000, 1e-7, gamma, True)

    def log_posterior(theta, row):
        return row @ np.log(topics[:, :3] @ theta) + 0.7 * np.log(theta).sum()

    for found, row in zip(gamma[:, :3].astype(float), X.toarray(), strict=True):
        theta = found / found.sum()
        for direction in np.eye(3) - 1 / 3:
            slope = (log_posterior(theta + 1e-4 * direction, row) - log_posterior(theta - 1e-4 * direction, row)) / 2e-4
            assert abs(slope) < 0.05


def test_blocks_share_the_entries_of_all_documents():
    documents, prior, gamma, _ = case(7)
    whole, parts = gamma.copy(), gamma.copy()
    meanfield_sweeps(documents, prior, 3, 1e-3, whole)
    for first, last in ((0, 11), (11, 12), (12, 40)):
        meanfield_sweeps(documents.rows(first, last), prior, 3, 1e-3, parts[first:last])
    np.testing.assert_array_equal(parts, whole)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"words": np.array([0, 9], np.int32)}, "words must be rows"),
        ({"words": np.array([0, -1], np.int32)}, "words must be rows"),
        ({"starts": np.array([0, 3])}, "must fit each other"),
        ({"starts": np.array([2, 0])}, "must fit each other"),
    ],
)
def test_arrays_of_wrong_shape_raise(change, message):
    given = {"words": np.array([0, 1], np.int32), "numbers": np.ones(2, np.float32), "starts": np.array([0, 2])}
    prior, gamma = Prior(np.ones((2, 8), np.float32), np.ones(3, np.float32)), np.ones((1, 8), np.float32)
    with pytest.raises(ValueError, match=message):
        meanfield_sweeps(WordCounts(**given | change), prior, 1, 0.0, gamma)
    with pytest.raises(ValueError, match="n_sweeps must be at most"):
        reverse_sweeps(WordCounts(**given), prior, 2**31 - 1, gamma, gamma, np.ones(1))
