"""What fitted topics say about new documents, without their responses."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.special import digamma, gammaln

from regbayes._types import Floats, Integers, Singles
from regbayes.kernels.chunks import map_chunks
from regbayes.kernels.proportions import infer_proportions
from regbayes.kernels.types import padded
from regbayes.models.medlda.state import Fitted

MAX_SWEEPS = 100
BOUND_SWEEPS = 20
TOL = 1e-3  # of a document's length: changes of its topics' tokens, summed


@dataclass(frozen=True)
class Documents:
    """Documents in compressed rows; numbers of words need not be whole."""

    words: NDArray[np.int32]  # (entries,)
    numbers: Singles  # (entries,)
    starts: Integers  # (documents + 1,)


def topic_words(fitted: Fitted) -> Singles:
    """Return the probability of each word in each topic, shape (V, columns); padding is zero."""
    V, K = fitted.word_topic.shape
    found = np.zeros((V, padded(K)), dtype=np.float32)
    mass = fitted.topic_total + V * fitted.topic_word_prior
    found[:, :K] = (fitted.word_topic + np.float32(fitted.topic_word_prior)) / mass.astype(np.float32)
    return found


def infer_counts(documents: Documents, fitted: Fitted, topics: Singles, n_threads: int) -> Floats:
    """Return the expected number of each document's tokens in each topic, shape (documents, K)."""
    out = np.empty((len(documents.starts) - 1, fitted.word_topic.shape[1]))
    infer_proportions(
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

    The mean-field bound of latent Dirichlet allocation, at its maximum: coordinate ascent starts where label-free
    inference ends.
    """
    topics = topic_words(fitted)
    counts = infer_counts(documents, fitted, topics, n_threads)
    found = np.empty(len(counts))

    def work(_: int, first: int, last: int) -> None:
        entries = slice(documents.starts[first], documents.starts[last])
        document = np.repeat(np.arange(last - first), np.diff(documents.starts[first : last + 1]))
        p = topics[documents.words[entries], : counts.shape[1]].astype(np.float64)
        numbers = documents.numbers[entries].astype(np.float64)
        found[first:last] = _mean_field_bound(document, numbers, p, counts[first:last], fitted.doc_topic_prior)

    map_chunks(work, len(found), n_threads)
    return found


def _mean_field_bound(document: Integers, numbers: Floats, p: Floats, counts: Floats, alpha: float) -> Floats:
    """Maximise the bound of some documents over their counts of topics; entry e is ``numbers[e]`` times a word.

    Parameters
    ----------
    document, numbers : (entries,)
    p : (entries, K)
        Probability of each entry's word in each topic.
    counts : (documents, K)
        The start.
    alpha : float
    """
    n, K = counts.shape
    of_documents = csr_array((numbers, (document, np.arange(len(document)))), shape=(n, len(document)))
    for _ in range(BOUND_SWEEPS):
        gamma = counts + alpha
        expected_log = digamma(gamma) - digamma(gamma.sum(axis=1, keepdims=True))
        weight = np.exp(expected_log)[document] * p
        total = weight.sum(axis=1, keepdims=True)
        counts = of_documents @ (weight / total)
    bound = of_documents @ np.log(total[:, 0])
    bound += np.sum(gammaln(gamma) - gammaln(alpha) + (alpha - gamma) * expected_log, axis=1)
    return np.asarray(bound + gammaln(K * alpha) - gammaln(gamma.sum(axis=1)))
