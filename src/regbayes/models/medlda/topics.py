"""Fitted topics, and what they say about documents without a look at responses.

Both ways to infer, the sampler (`gibbs`) and mean field (`meanfield`), end here: one type of fit, one kernel for new
documents. docs/math.md 5.4.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import digamma, gammaln

from regbayes._registry import persistable
from regbayes._types import Floats, Reals, Singles
from regbayes.engine import Executor, row_blocks
from regbayes.kernels.corpus import padded
from regbayes.kernels.meanfield import Prior, WordCounts, meanfield_sweeps

UNTIL_SETTLED = 0  # sweeps
MAX_SWEEPS = 100  # until a document has settled
TOL = 1e-3  # of a document's length: changes of its topics' tokens, summed
BOUND_SWEEPS = 19  # of mean field, from collapsed proportions on, before the bound is evaluated


@persistable(name="regbayes.medlda.FittedTopics")
@dataclass(frozen=True)
class FittedTopics:
    """What a fit leaves behind: all that prediction needs."""

    word_given_topic: Singles  # (V, K): probabilities
    topic_total: Floats  # (K,): expected tokens of each topic, those of the prior included
    doc_prior: Floats  # (K,): Dirichlet parameters of the proportions
    weights: Floats  # (L, K): of the shares of topics, with the intercept inside; L = 0 without responses
    shares: Floats  # (K,): of the corpus, for documents without words
    n_sweeps: int  # that label-free inference makes, or UNTIL_SETTLED
    collapsed: bool  # whether it is that of (56), with proportions integrated out, or mean field

    @property
    def n_topics(self) -> int:
        """The number of topics, K."""
        return self.word_given_topic.shape[1]

    def components(self) -> Singles:
        """Return the expected tokens of words in topics, those of the prior included, shape (K, V)."""
        return np.ascontiguousarray((self.word_given_topic * self.topic_total.astype(np.float32)).T)

    def prior(self) -> Prior:
        """Return what label-free inference knows."""
        return Prior(as_table(self.word_given_topic), self.doc_prior.astype(np.float32))


def as_table(topics: Reals) -> Singles:
    """Return a table of words by topics as kernels take it: single precision, padded with zeros."""
    table = np.zeros((len(topics), padded(topics.shape[1])), np.float32)
    table[:, : topics.shape[1]] = topics
    return table


def lengths_of(documents: WordCounts) -> Floats:
    """Return the numbers of words of documents, shape (N,)."""
    first, last = documents.starts[0], documents.starts[-1]
    sums = np.concatenate([[0.0], np.cumsum(documents.numbers[first:last], dtype=np.float64)])
    return np.diff(sums[documents.starts - first])


def even_gamma(lengths: Floats, doc_prior: Floats) -> Singles:
    """Return the start of label-free inference: every topic has the same share. Shape (N, columns)."""
    K = len(doc_prior)
    gamma = np.zeros((len(lengths), padded(K)), np.float32)
    gamma[:, :K] = doc_prior + lengths[:, None] / K
    return gamma


def no_tilt(gamma: Singles) -> Singles:
    """Return what kernels take where nothing tilts the topics of words."""
    return np.empty((0, gamma.shape[1]), np.float32)


def infer_gamma(documents: WordCounts, fitted: FittedTopics, prior: Prior, logs: Floats | None = None) -> Singles:
    """Return the Dirichlet parameters that label-free inference finds for a block of documents, (N, columns)."""
    gamma = even_gamma(lengths_of(documents), fitted.doc_prior)
    limits = (MAX_SWEEPS, TOL) if fitted.n_sweeps == UNTIL_SETTLED else (fitted.n_sweeps, -1.0)
    meanfield_sweeps(documents, prior, no_tilt(gamma), *limits, gamma, fitted.collapsed, logs)
    return gamma


def proportions(documents: WordCounts, fitted: FittedTopics, executor: Executor) -> Floats:
    """Return the expected share of each topic among each document's tokens; of an empty one, that of the corpus."""
    prior, K = fitted.prior(), fitted.n_topics
    shares = np.empty((len(documents.starts) - 1, K))

    def infer(rows: slice) -> None:
        gamma = infer_gamma(documents.rows(rows.start, rows.stop), fitted, prior)
        counts = np.maximum(gamma[:, :K] - fitted.doc_prior, 0.0)
        counts[np.diff(documents.starts[rows.start : rows.stop + 1]) == 0] = fitted.shares
        shares[rows] = counts / counts.sum(axis=1, keepdims=True)

    executor.map(infer, row_blocks(len(shares)))
    return shares


def bounds(documents: WordCounts, fitted: FittedTopics, executor: Executor) -> Floats:
    """Return a lower bound on each document's log-probability given the topics, shape (N,).

    It is that of mean field. Coordinate ascent on it starts where collapsed inference ends.
    """
    prior, K = fitted.prior(), fitted.n_topics
    found = np.empty(len(documents.starts) - 1)

    def bound(rows: slice) -> None:
        block, logs = documents.rows(rows.start, rows.stop), found[rows]
        columns = infer_gamma(block, fitted, prior, logs)
        if fitted.collapsed:
            meanfield_sweeps(block, prior, no_tilt(columns), BOUND_SWEEPS, -1.0, columns, logs=logs)
        gamma = columns[:, :K].astype(np.float64)
        found[rows] = log_likelihoods(logs, gamma, lengths_of(block)) - proportion_divergences(gamma, fitted.doc_prior)

    executor.map(bound, row_blocks(len(found)))
    return found


def log_likelihoods(logs: Floats, gamma: Floats, lengths: Floats) -> Floats:
    """Return E[log p(w, z | theta) - log q(z)] of each document, without a tilt: docs/math.md eq. (68), shape (N,).

    Parameters
    ----------
    logs : (N,)
        As from ``meanfield_statistics``: without the normalisers of E[log theta].
    gamma : (N, K)
    lengths : (N,)
    """
    return logs - lengths * digamma(gamma.sum(axis=1))


def proportion_divergences(gamma: Floats, doc_prior: Floats) -> Floats:
    """Return the divergence of each document's Dirichlet distribution from the prior, shape (N,)."""
    total = gamma.sum(axis=1)
    expected = digamma(gamma) - digamma(total)[:, None]
    found = gammaln(total) - np.sum(gammaln(gamma), axis=1)
    found -= gammaln(doc_prior.sum()) - np.sum(gammaln(doc_prior))
    return found + np.sum((gamma - doc_prior) * expected, axis=1)
