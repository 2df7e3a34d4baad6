"""Mean field of documents: what topics say about them, and the bound on their log-probability. docs/math.md 5.5."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import digamma, gammaln

from regbayes._registry import persistable
from regbayes._types import Floats, Reals, Singles
from regbayes.kernels.meanfield import Prior, WordCounts, meanfield_statistics, meanfield_sweeps
from regbayes.kernels.types import padded
from regbayes.models.medlda.predict import MAX_SWEEPS, TOL, Documents

UNTIL_SETTLED = 0  # sweeps


@persistable(name="regbayes.medlda.MeanField")
@dataclass(frozen=True)
class MeanField:
    """What a variational fit leaves behind: all that prediction needs."""

    word_given_topic: Singles  # (V, K): probabilities, or exp of the expected logarithms of them
    word_topic: Singles  # (V, K): pseudo-counts; columns divided by their sums are the expected topics
    doc_prior: Floats  # (K,): Dirichlet parameters of the proportions
    weights: Floats  # (L, K): with the intercept inside
    shares: Floats  # (K,): of the corpus, for documents without words
    n_sweeps: int  # that label-free inference makes, or UNTIL_SETTLED
    response_variance: Floats | None = None  # (L,): of a Gaussian response


def as_word_counts(documents: Documents) -> WordCounts:
    """Return documents as kernels take them."""
    return WordCounts(documents.words, documents.numbers, documents.starts)


def as_table(topics: Reals) -> Singles:
    """Return a table of words by topics as kernels take it: single precision, padded with zeros."""
    table = np.zeros((len(topics), padded(topics.shape[1])), np.float32)
    table[:, : topics.shape[1]] = topics
    return table


def lengths_of(documents: WordCounts | Documents) -> Floats:
    """Return the numbers of words of documents, shape (N,)."""
    sums = np.concatenate([[0.0], np.cumsum(documents.numbers, dtype=np.float64)])
    return np.asarray(np.diff(sums[documents.starts]))


def even_gamma(lengths: Floats, doc_prior: Floats) -> Singles:
    """Return the start of label-free inference: every topic has the same share. Shape (N, columns)."""
    K = len(doc_prior)
    gamma = np.zeros((len(lengths), padded(K)), np.float32)
    gamma[:, :K] = doc_prior + lengths[:, None] / K
    return gamma


def infer_gamma(documents: WordCounts, fitted: MeanField, n_threads: int) -> Singles:
    """Return the Dirichlet parameters that label-free inference finds, shape (N, columns)."""
    gamma = even_gamma(lengths_of(documents), fitted.doc_prior)
    prior = Prior(as_table(fitted.word_given_topic), fitted.doc_prior.astype(np.float32))
    untilted = np.empty((0, gamma.shape[1]), np.float32)
    settled = fitted.n_sweeps == UNTIL_SETTLED
    limits = (MAX_SWEEPS, TOL) if settled else (fitted.n_sweeps, -1.0)
    meanfield_sweeps(documents, prior, untilted, *limits, gamma, n_threads)
    return gamma


def proportions(documents: Documents, fitted: MeanField, n_threads: int) -> Floats:
    """Return the expected share of each topic among each document's tokens; of an empty one, that of the corpus."""
    gamma = infer_gamma(as_word_counts(documents), fitted, n_threads)
    counts = np.maximum(gamma[:, : len(fitted.doc_prior)] - fitted.doc_prior, 0.0)
    counts[np.diff(documents.starts) == 0] = fitted.shares
    return np.asarray(counts / counts.sum(axis=1, keepdims=True))


def bounds(documents: Documents, fitted: MeanField, n_threads: int) -> Floats:
    """Return a lower bound on each document's log-probability given the topics, shape (N,)."""
    counted = as_word_counts(documents)
    gamma = infer_gamma(counted, fitted, n_threads)
    prior = Prior(as_table(fitted.word_given_topic), fitted.doc_prior.astype(np.float32))
    untilted = np.empty((0, gamma.shape[1]), np.float32)
    logs = meanfield_statistics(counted, prior, untilted, gamma, None, np.empty_like(gamma), n_threads)
    return word_bounds(
        logs, gamma[:, : len(fitted.doc_prior)].astype(np.float64), lengths_of(counted), fitted.doc_prior
    )


def word_bounds(logs: Floats, gamma: Floats, lengths: Floats, doc_prior: Floats) -> Floats:
    """Return each document's bound, from the logarithms that kernels return. Shape (N,).

    Parameters
    ----------
    logs : (N,)
        As from ``meanfield_statistics``: without the normalisers of E[log theta].
    gamma : (N, K)
    lengths : (N,)
    doc_prior : (K,)
    """
    total = gamma.sum(axis=1)
    at_total = digamma(total)
    divergence = gammaln(total) - gammaln(doc_prior.sum()) + np.sum(gammaln(doc_prior))
    divergence += np.sum((gamma - doc_prior) * digamma(gamma) - gammaln(gamma), axis=1)
    divergence -= (total - doc_prior.sum()) * at_total
    return np.asarray(logs - lengths * at_total - divergence)
