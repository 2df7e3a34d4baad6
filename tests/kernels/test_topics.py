"""The topic kernels match the reference, and the reference matches the definition."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from scipy.sparse import csr_array
from scipy.special import gammaln

from medlda_tools import corpus_of, draw_documents, token_documents
from reference.topics import reference_sample_topics, reference_weight_statistics
from regbayes.kernels.corpus import build_corpus, count_tokens
from regbayes.kernels.meanfield import WordCounts, padded
from regbayes.kernels.topics import (
    sample_topics,
    weight_statistics,
)
from regbayes.kernels.types import Tilt, TopicCounts


def random_case(n_topics, n_responses, seed=0, n_groups=1, length=40):
    rng = np.random.default_rng(seed)
    X, _, _ = draw_documents(30, n_words=25, length=length, seed=seed)
    corpus = corpus_of(X, n_groups)
    topics = rng.integers(0, n_topics, corpus.n_tokens).astype(np.int16)
    doc_topic, word_topic = np.zeros((30, padded(n_topics)), np.int32), np.zeros((25, padded(n_topics)), np.int32)
    np.add.at(doc_topic, (token_documents(corpus), topics), 1)
    np.add.at(word_topic, (corpus.tokens.words, topics), 1)
    counts = TopicCounts(topics, doc_topic, word_topic, word_topic[:, :n_topics].sum(0).astype(np.int64))
    weights = np.zeros((n_responses, padded(n_topics)), np.float32)
    weights[:, :n_topics] = 3 * rng.standard_normal((n_responses, n_topics))
    linear, quadratic = 30 * rng.standard_normal((30, n_responses)), rng.exponential(100.0, (30, n_responses))
    return (
        corpus,
        counts,
        Tilt(corpus.lengths, linear, quadratic, weights),
        rng.random(corpus.n_tokens, dtype=np.float32),
    )


def copied(counts):
    return TopicCounts(*(table.copy() for table in counts))


@pytest.mark.parametrize("n_topics", [1, 2, 7, 8, 40])
@pytest.mark.parametrize("n_responses", [0, 1, 5])
def test_compiled_sweeps_match_the_reference(n_topics, n_responses):
    corpus, counts, tilt, uniforms = random_case(n_topics, n_responses)
    expected, found = copied(counts), copied(counts)
    n_runs = len(corpus.tokens.documents)
    changes = [
        sample(corpus.tokens, 0, n_runs, tilt, 0.3, 0.05, uniforms, written)
        for sample, written in ((reference_sample_topics, expected), (sample_topics, found))
    ]
    for name, theirs, ours in zip(TopicCounts._fields, expected, found, strict=True):
        np.testing.assert_array_equal(ours, theirs, err_msg=name)
    assert changes[0] == changes[1] == np.count_nonzero(expected.topics != counts.topics)
    assert changes[0] > 0 or n_topics == 1


def scores_of(counts, tilt):
    n_topics = counts.topic_total.size
    weights = tilt.weights[:, :n_topics].astype(np.float64)
    return counts.doc_topic[:, :n_topics] @ weights.T / tilt.lengths[:, None]


@pytest.mark.parametrize("n_groups", [1, 3])
def test_layout_lists_the_tokens_of_each_block(n_groups):
    rng = np.random.default_rng(0)
    X = csr_array(rng.poisson(0.3, (20, 15)) * (rng.random((20, 1)) > 0.2))
    corpus = build_corpus(WordCounts(X.indices, X.data, X.indptr.astype(np.int64)), 15, n_groups)
    documents, words = token_documents(corpus), corpus.tokens.words
    expected = X.toarray()[corpus.document_order][:, corpus.word_order]
    found = np.zeros_like(expected)
    np.add.at(found, (documents, words), 1)
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(corpus.lengths, expected.sum(axis=1))
    groups = [np.sort(np.arange(n) % n_groups) for n in X.shape]  # documents and words are in the order of groups
    block = np.repeat(np.arange(n_groups**2), np.diff(corpus.tokens.starts[corpus.block_runs]))
    np.testing.assert_array_equal(block, groups[0][documents] * n_groups + groups[1][words])
    of_runs = np.repeat(np.arange(n_groups**2), np.diff(corpus.block_runs)), corpus.tokens.documents
    assert len(set(zip(*of_runs, strict=True))) == len(corpus.tokens.documents)  # one run of a document in a block


def test_counts_of_tokens_match_numpy():
    corpus, counts, _, _ = random_case(9, 0)
    doc_topic, word_topic = np.zeros_like(counts.doc_topic), np.zeros_like(counts.word_topic)
    count_tokens(corpus.tokens, counts.topics, doc_topic, word_topic)
    np.testing.assert_array_equal(doc_topic, counts.doc_topic)
    np.testing.assert_array_equal(word_topic, counts.word_topic)


def test_part_of_the_runs_uses_its_own_draws():
    corpus, counts, tilt, uniforms = random_case(5, 2, n_groups=3)
    first, last = corpus.block_runs[4], corpus.block_runs[5]
    tokens = slice(corpus.tokens.starts[first], corpus.tokens.starts[last])
    expected, found = copied(counts), copied(counts)
    for sample, written in ((reference_sample_topics, expected), (sample_topics, found)):
        sample(corpus.tokens, first, last, tilt, 0.3, 0.05, uniforms[tokens], written)
    np.testing.assert_array_equal(found.topics, expected.topics)
    untouched = np.ones(corpus.n_tokens, bool)
    untouched[tokens] = False
    np.testing.assert_array_equal(found.topics[untouched], counts.topics[untouched])


def test_reference_samples_the_conditional_of_the_joint_density():
    """Compare with the conditional of one token from the urn scheme and the tilt of whole documents."""
    corpus, counts, tilt, _ = random_case(3, 2, length=6)
    i, document, word = 0, corpus.tokens.documents[0], corpus.tokens.words[0]
    alpha, beta, V = 0.3, 0.05, 25
    weights = []
    for k in range(3):
        moved = copied(counts)
        old = moved.topics[i]
        for table, row in ((moved.doc_topic, document), (moved.word_topic, word)):
            table[row, old] -= 1
            table[row, k] += 1
        total = moved.word_topic.sum(axis=0)[:3]
        log = gammaln(moved.doc_topic[:, :3] + alpha).sum() + gammaln(moved.word_topic[:, :3] + beta).sum()
        log -= gammaln(total + V * beta).sum()
        scores = tilt.weights[:, :3] @ moved.doc_topic[document, :3] / tilt.lengths[document]
        log += tilt.linear[document] @ scores - 0.5 * tilt.quadratic[document] @ scores**2
        weights.append(log)
    p = np.exp(np.array(weights) - max(weights))
    p /= p.sum()
    grid = (np.arange(400, dtype=np.float32) + 0.5) / 400
    drawn = []
    for u in grid:
        swept = copied(counts)
        one = corpus.tokens._replace(starts=np.array([0, 1]), documents=corpus.tokens.documents[:1])
        reference_sample_topics(one, 0, 1, tilt, alpha, beta, np.array([u], np.float32), swept)
        drawn.append(swept.topics[0])
    np.testing.assert_allclose(np.bincount(drawn, minlength=3) / 400, p, atol=1 / 400)


@pytest.mark.parametrize("factor", [1e2, 1e8, 1e30])
def test_extreme_tilts_neither_overflow_nor_lose_tokens(factor):
    corpus, counts, tilt, uniforms = random_case(5, 2)
    extreme = tilt._replace(linear=factor * tilt.linear, quadratic=factor * tilt.quadratic)
    expected, found = copied(counts), copied(counts)
    for sample, written in ((reference_sample_topics, expected), (sample_topics, found)):
        sample(corpus.tokens, 0, len(corpus.tokens.documents), extreme, 0.3, 0.05, uniforms, written)
    # Exponents of many thousands have errors above one nat in single precision.
    assert factor > 1e3 or np.mean(found.topics == expected.topics) > 0.99
    assert found.doc_topic.sum() == found.word_topic.sum() == found.topic_total.sum() == corpus.n_tokens
    assert np.all((found.topics >= 0) & (found.topics < 5))
    assert found.doc_topic.min() >= 0


@pytest.mark.parametrize("edges", [(0, 30), (0, 7, 7, 30)], ids=["together", "in parts"])
@pytest.mark.parametrize("n_responses", [1, 6])
def test_weight_statistics_match_the_reference(n_responses, edges):
    _, counts, tilt, _ = random_case(11, n_responses)
    expected = reference_weight_statistics(tilt, counts)
    parts = [weight_statistics(tilt, counts, slice(*part)) for part in pairwise(edges)]
    np.testing.assert_allclose(sum(p.precision for p in parts), expected.precision, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(sum(p.linear for p in parts), expected.linear, rtol=1e-12, atol=1e-12)
