"""Mean-field kernels of topic models: the compiled ones follow the reference, the reference follows the calculus."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import digamma, gammaln, polygamma

from medlda_tools import draw_documents
from regbayes.kernels import meanfield
from regbayes.kernels.meanfield import Prior, WordCounts, _exp_digamma, _trigamma, group_bounds
from regbayes.kernels.types import padded


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
        (meanfield.reference_meanfield_sweeps, meanfield.reference_meanfield_statistics),
        (meanfield.meanfield_sweeps, meanfield.meanfield_statistics),
    ):
        found, words, docs = gamma.copy(), np.empty_like(prior.word_given_topic), np.empty_like(gamma)
        sweeps = sweep(documents, prior, tilt, 7, -1.0, found)
        logs = sum_topics(documents, prior, tilt, found, words, docs)
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
    few = meanfield.meanfield_sweeps(documents, prior, tilt, 100, 0.1, loose)
    many = meanfield.meanfield_sweeps(documents, prior, tilt, 1000, 1e-6, tight)
    assert few < many
    again = tight.copy()
    meanfield.meanfield_sweeps(documents, prior, tilt, 1, -1.0, again)
    np.testing.assert_allclose(again, tight, atol=1e-3)


def negative_bound(prior, gamma, logs, lengths):
    K, alpha = len(prior.doc_prior), prior.doc_prior.astype(float)
    gamma = gamma[:, :K].astype(float)
    total = gamma.sum(axis=1)
    kl = gammaln(total) - gammaln(alpha.sum()) - (gammaln(gamma) - gammaln(alpha)).sum(axis=1)
    kl += ((gamma - alpha) * (digamma(gamma) - digamma(total)[:, None])).sum(axis=1)
    return float(np.sum(kl - logs + lengths * digamma(total)))


@pytest.mark.parametrize("n_sweeps", [1, 4])
def test_reversed_sweeps_are_the_derivative(n_sweeps):
    documents, prior, _, gamma, lengths = case(3, n_documents=8, n_words=12)
    rng = np.random.default_rng(1)
    slopes = np.zeros_like(gamma)
    slopes[:, :3] = rng.standard_normal((8, 3))
    topics = prior.word_given_topic.astype(np.float64)

    def objective(table):
        at = Prior(table, prior.doc_prior.astype(np.float64))
        found = np.zeros(gamma.shape)
        logs = meanfield.reference_infer_by_sweeps(documents, at, n_sweeps, found)
        return np.sum(slopes * found) + 0.7 * negative_bound(at, found, logs, lengths), found

    _, last = objective(topics)
    found = meanfield.reference_reverse_sweeps(documents, Prior(topics, prior.doc_prior), n_sweeps, last, slopes, 0.7)
    way = np.zeros_like(topics)
    way[:, :3] = rng.standard_normal((12, 3)) * topics[:, :3]
    step = 1e-5
    numerical = (objective(topics + step * way)[0] - objective(topics - step * way)[0]) / (2 * step)
    assert numerical == pytest.approx(np.sum(found * way), rel=1e-5)


@pytest.mark.parametrize("n_topics", [1, 5, 16])
def test_compiled_inference_and_its_derivative_are_those_of_the_reference(n_topics):
    documents, prior, _, gamma, _ = case(n_topics)
    slopes = np.random.default_rng(2).standard_normal(gamma.shape).astype(np.float32)
    slopes[:, n_topics:] = 0
    results = []
    for infer, reverse in (
        (meanfield.reference_infer_by_sweeps, meanfield.reference_reverse_sweeps),
        (meanfield.infer_by_sweeps, meanfield.reverse_sweeps),
    ):
        last = np.full(gamma.shape, np.nan, np.float32)
        logs = infer(documents, prior, 4, last)
        results.append((last, logs, reverse(documents, prior, 4, last, slopes, 0.3)))
    for expected, ours in zip(*results, strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-3, atol=1e-4 * np.abs(expected).max())


def test_threads_and_groups_do_not_change_a_bit():
    documents, prior, tilt, gamma, _ = case(7, n_documents=6000, n_words=200)
    assert len(group_bounds(documents.starts, 200)) > 1
    results = []
    for n_threads in (1, 3):
        found, words, docs = gamma.copy(), np.empty_like(prior.word_given_topic), np.empty_like(gamma)
        meanfield.meanfield_sweeps(documents, prior, tilt, 3, 1e-3, found, n_threads)
        logs = meanfield.meanfield_statistics(documents, prior, tilt, found, words, docs, n_threads)
        last = np.empty(gamma.shape, np.float32)
        meanfield.infer_by_sweeps(documents, prior, 2, last, n_threads)
        table = meanfield.reverse_sweeps(documents, prior, 2, last, gamma, 1.0, n_threads)
        results.append((found, words, docs, logs, last, table))
    for one, several in zip(*results, strict=True):
        np.testing.assert_array_equal(one, several)


@pytest.mark.parametrize("n_entries", [0, 5, 10**6])
def test_groups_hold_every_document_once(n_entries):
    starts = np.linspace(0, n_entries, 101).astype(np.int64)
    bounds = group_bounds(starts, 50)
    assert [d for first, last in bounds for d in range(first, last)] == list(range(100))
