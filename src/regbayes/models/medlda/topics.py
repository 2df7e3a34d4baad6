"""Fitted topics and label-free prediction for documents.

The sampler (`gibbs`) and mean field (`meanfield`) return the same type of fit and share the kernel for new documents.
docs/math.md 5.4.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from regbayes._registry import persistable
from regbayes._types import Floats, Integers, Singles, check_arrays
from regbayes.engine import Executor, row_blocks
from regbayes.kernels.arrays import DeviceArray, is_plain, join, namespace_of, to_device, to_host
from regbayes.kernels.arrays_topics import Documents, InferredDocuments, infer_documents
from regbayes.kernels.meanfield import (
    Prior,
    WordCounts,
    as_table,
    even_gamma,
    lengths_of,
    log_likelihoods,
    meanfield_sweeps,
    proportion_divergences,
)

UNTIL_SETTLED = 0  # value of n_sweeps for sweeping until convergence
MAX_SWEEPS = 100  # maximum sweeps for a document that does not converge
MAX_LOADED_SWEEPS = 10_000  # maximum n_sweeps accepted from a file, so that inference ends
TOL = 1e-3  # summed change of expected tokens by topic at convergence, relative to document length
MIN_WORDS = 1e-6  # minimum words of a document; fewer vanish in single precision next to the prior
BOUND_SWEEPS = 19  # mean-field sweeps after collapsed inference before the bound is evaluated


@dataclass(frozen=True)
class DeviceCorpus:
    """Documents on a device as a matrix of counts."""

    counts: WordCounts  # the dtype is the working precision
    n_words: int
    starts: Integers  # (N + 1,): first entry of each document, in host memory

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of documents and words."""
        return len(self.starts) - 1, self.n_words

    @cached_property
    def lengths(self) -> Floats:
        """Number of words of each document, in host memory, shape (N,)."""
        return lengths_of(self.counts)

    def __getitem__(self, rows: Integers) -> DeviceCorpus:
        """Return selected documents."""
        if np.array_equal(rows, np.arange(self.shape[0])):
            return self
        words, numbers, _ = self.counts
        xp, sizes = namespace_of(words), np.diff(self.starts)[rows]
        starts = np.concatenate([[0], np.cumsum(sizes)])
        entries = to_device(np.repeat(self.starts[rows] - starts[:-1], sizes) + np.arange(starts[-1]), words, xp.int64)
        there = to_device(starts, words, xp.int64)
        return DeviceCorpus(WordCounts(xp.take(words, entries), xp.take(numbers, entries), there), self.n_words, starts)

    @staticmethod
    def concat(parts: Sequence[DeviceCorpus]) -> DeviceCorpus:
        """Concatenate the documents of several corpora."""
        words, numbers = (join([part.counts[place] for part in parts]) for place in (0, 1))
        ends = np.cumsum([0, *(part.starts[-1] for part in parts)])
        starts = np.concatenate([[0], *(part.starts[1:] + end for part, end in zip(parts, ends, strict=False))])
        there = to_device(starts, words, namespace_of(words).int64)
        return DeviceCorpus(WordCounts(words, numbers, there), parts[0].n_words, starts)

    def on_host(self) -> WordCounts:
        """Copy the documents to host memory."""
        return WordCounts(*map(to_host, self.counts))


@persistable(name="regbayes.medlda.FittedTopics")
@dataclass(frozen=True)
class FittedTopics:
    """Fitted topics and weights for prediction."""

    word_given_topic: Singles  # (V, K): probabilities
    topic_total: Floats  # (K,): expected tokens of each topic, including the prior
    doc_prior: Floats  # (K,): Dirichlet parameters of the proportions
    weights: Floats  # (L, K): weights of the topic shares, including the intercept; L = 0 without responses
    shares: Floats  # (K,): topic shares of the corpus, for documents without words
    n_sweeps: int  # sweeps of label-free inference, or UNTIL_SETTLED
    collapsed: bool  # whether inference integrates out proportions, eq. (56), instead of mean field
    word_weights: Floats | None = None  # (L, V): weights of the tf-idf of words, in addition to topics

    def _check_loaded(self) -> None:
        check_arrays(self, word_given_topic="VK", topic_total="K", doc_prior="K", shares="K", weights="LK")
        if self.word_weights is not None and self.word_weights.shape != (len(self.weights), len(self.word_given_topic)):
            raise ValueError("word_weights must have a row for each response and a column for each word")
        if not 0 <= self.n_sweeps <= MAX_LOADED_SWEEPS:
            raise ValueError(f"n_sweeps must be between 0 and {MAX_LOADED_SWEEPS}; got {self.n_sweeps!r}")
        if min(self.word_given_topic.min(), self.topic_total.min(), self.doc_prior.min()) < 0:
            raise ValueError("probabilities, counts and priors must not be negative")

    @property
    def n_topics(self) -> int:
        """Number of topics, K."""
        return self.word_given_topic.shape[1]

    def components(self) -> Singles:
        """Return the expected tokens of words in topics, including the prior, shape (K, V)."""
        return np.ascontiguousarray((self.word_given_topic * self.topic_total.astype(np.float32)).T)

    def prior(self) -> Prior:
        """Return the parameters of label-free inference."""
        return Prior(as_table(self.word_given_topic), self.doc_prior.astype(np.float32))


def infer_gamma(documents: WordCounts, fitted: FittedTopics, prior: Prior, logs: Floats | None = None) -> Singles:
    """Return the Dirichlet parameters from label-free inference for a block of documents, (N, columns)."""
    gamma = even_gamma(lengths_of(documents), fitted.doc_prior)
    limits = (MAX_SWEEPS, TOL) if fitted.n_sweeps == UNTIL_SETTLED else (fitted.n_sweeps, -1.0)
    meanfield_sweeps(documents, prior, *limits, gamma, fitted.collapsed, logs)
    return gamma


def proportions(documents: WordCounts, fitted: FittedTopics, executor: Executor) -> Floats:
    """Return the expected topic shares of each document; empty documents get those of the corpus."""
    if not is_plain(documents.numbers):
        return _proportions_there(documents, fitted)
    prior, K = fitted.prior(), fitted.n_topics
    shares = np.empty((len(documents.starts) - 1, K))

    def infer(rows: slice) -> None:
        gamma = infer_gamma(documents.rows(rows.start, rows.stop), fitted, prior)
        counts = np.maximum(gamma[:, :K] - fitted.doc_prior, 0.0)
        counts[lengths_of(documents.rows(rows.start, rows.stop)) < MIN_WORDS] = fitted.shares
        shares[rows] = counts / counts.sum(axis=1, keepdims=True)

    executor.map(infer, row_blocks(len(shares)))
    return shares


def bounds(documents: WordCounts, fitted: FittedTopics, executor: Executor) -> Floats:
    """Return a lower bound on each document's log-probability given the topics, shape (N,).

    The bound is that of mean field. Coordinate ascent on it starts from the collapsed inference.
    """
    if not is_plain(documents.numbers):
        inferred = _infer_there(documents, fitted)
        return to_host(inferred.likelihoods - inferred.divergences)
    prior, K = fitted.prior(), fitted.n_topics
    found = np.empty(len(documents.starts) - 1)

    def bound(rows: slice) -> None:
        block, logs = documents.rows(rows.start, rows.stop), found[rows]
        columns = infer_gamma(block, fitted, prior, logs)
        if fitted.collapsed:
            meanfield_sweeps(block, prior, BOUND_SWEEPS, -1.0, columns, logs=logs)
        gamma = columns[:, :K].astype(np.float64)
        found[rows] = log_likelihoods(logs, gamma, lengths_of(block)) - proportion_divergences(gamma, fitted.doc_prior)

    executor.map(bound, row_blocks(len(found)))
    return found


def takes_devices(fitted: FittedTopics) -> bool:
    """Return whether a fit can infer documents on a device: mean field with a fixed number of sweeps."""
    return not fitted.collapsed and fitted.n_sweeps != UNTIL_SETTLED


def _infer_there(documents: WordCounts, fitted: FittedTopics) -> InferredDocuments:
    topics = to_device(fitted.word_given_topic, documents.numbers)
    return infer_documents(Documents(documents), topics, fitted.doc_prior, fitted.n_sweeps)


def _proportions_there(documents: WordCounts, fitted: FittedTopics) -> DeviceArray:
    gamma = _infer_there(documents, fitted).gamma
    xp = namespace_of(gamma)
    counts = xp.clip(gamma - to_device(fitted.doc_prior, gamma), 0.0, None)
    empty = to_device(lengths_of(documents) < MIN_WORDS, gamma, xp.bool)
    counts = xp.where(empty[:, None], to_device(fitted.shares, gamma)[None, :], counts)
    return counts / xp.sum(counts, axis=1)[:, None]
