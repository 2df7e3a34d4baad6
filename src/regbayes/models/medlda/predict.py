"""What fitted topics say about new documents, without their responses."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import digamma, gammaln

from regbayes.kernels.chunks import map_chunks
from regbayes.kernels.dispatch import get_backend
from regbayes.kernels.types_topics import padded
from regbayes.models.medlda.state import Fitted

Floats = NDArray[np.float64]

MAX_SWEEPS = 100
TOL = 1e-3  # of a document's length: changes of its topics' tokens, summed


@dataclass(frozen=True)
class Documents:
    """Documents in compressed rows; numbers of words need not be whole."""

    words: NDArray[np.int32]  # (entries,)
    numbers: NDArray[np.float32]  # (entries,)
    starts: NDArray[np.int64]  # (documents + 1,)


def topic_words(fitted: Fitted) -> NDArray[np.float32]:
    """Return the probability of each word in each topic, shape (V, columns); padding is zero."""
    V, K = fitted.word_topic.shape
    found = np.zeros((V, padded(K)), dtype=np.float32)
    mass = fitted.topic_total + V * fitted.topic_word_prior
    found[:, :K] = (fitted.word_topic + np.float32(fitted.topic_word_prior)) / mass.astype(np.float32)
    return found


def infer_counts(documents: Documents, fitted: Fitted, topics: NDArray[np.float32], n_threads: int) -> Floats:
    """Return the expected number of each document's tokens in each topic, shape (documents, K)."""
    out = np.empty((len(documents.starts) - 1, fitted.word_topic.shape[1]))
    get_backend().infer_proportions(
        documents.words,
        documents.numbers,
        documents.starts,
        topics,
        fitted.doc_topic_prior,
        MAX_SWEEPS,
        TOL,
        out,
        n_threads,
    )
    return out


def proportions(documents: Documents, fitted: Fitted, n_threads: int) -> Floats:
    """Return the expected share of each topic among each document's tokens; of an empty one, that of the corpus."""
    counts = infer_counts(documents, fitted, topic_words(fitted), n_threads)
    total = counts.sum(axis=1, keepdims=True)
    overall = fitted.topic_total + fitted.doc_topic_prior
    return np.asarray(np.where(total > 0, counts / np.maximum(total, 1e-30), overall / overall.sum()))


def bounds(documents: Documents, fitted: Fitted, n_threads: int) -> Floats:
    """Return a lower bound on each document's log-probability given the topics, shape (documents,).

    The mean-field bound with a Dirichlet for the proportions, which is put where label-free inference finds them.
    """
    topics = topic_words(fitted)
    counts = infer_counts(documents, fitted, topics, n_threads)
    K, alpha = counts.shape[1], fitted.doc_topic_prior
    gamma = counts + alpha
    total = gamma.sum(axis=1)
    expected_log = digamma(gamma) - digamma(total)[:, None]
    found = gammaln(K * alpha) - K * gammaln(alpha) - gammaln(total)
    found += np.sum(gammaln(gamma) + (alpha - gamma) * expected_log, axis=1)
    factors = np.exp(expected_log)

    def work(_: int, first: int, last: int) -> None:
        entries = slice(documents.starts[first], documents.starts[last])
        row = np.repeat(np.arange(first, last), np.diff(documents.starts[first : last + 1]))
        p = np.einsum("ek,ek->e", factors[row], topics[documents.words[entries], :K])
        found[first:last] += np.bincount(row - first, documents.numbers[entries] * np.log(p), last - first)

    map_chunks(work, len(found), n_threads)
    return np.asarray(found)
