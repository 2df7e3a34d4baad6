"""Mean-field kernels of topic models in plain NumPy: the definition that the compiled ones are tested against.

A document's topics are ``phi_wk`` proportional to ``p(w | k) exp(digamma(gamma_k) + tilt_k)`` for each of its words,
and its proportions are Dirichlet with parameters ``gamma = doc_prior + sum_w number_w phi_w``. docs/math.md 5.5, 5.6.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from scipy.special import digamma, polygamma

from regbayes.kernels.types import Floats
from regbayes.kernels.types_meanfield import Prior, Singles, WordCounts

TINY = 1e-30  # keeps words that no topic explains from dividing by zero


def meanfield_sweeps(
    documents: WordCounts, prior: Prior, tilt: Singles, max_sweeps: int, tol: float, gamma: Singles, n_threads: int = 1
) -> int:
    """Alternate between topics of words and proportions of documents, for each document by itself.

    Parameters
    ----------
    documents : WordCounts
    prior : Prior
    tilt : (documents, columns) or (0, columns)
        What is added to the log-weights of the topics of each token; no rows: nothing.
    max_sweeps : int
    tol : float
        A document is done when the absolute changes of its gamma sum to at most this times its length.
    gamma : (documents, columns)
        Read as the start and overwritten; columns beyond the topics are left alone.
    n_threads : int
        Does not change the result.

    Returns
    -------
    int
        Sweeps, summed over the documents.
    """
    del n_threads
    K, total = len(prior.doc_prior), 0
    for d, number, p in _each(documents, prior):
        for _ in range(max_sweeps if number.size else 0):
            t = _factors(gamma[d, :K], tilt[d, :K] if len(tilt) else None)
            found = prior.doc_prior + t * ((number / (p @ t + TINY)) @ p)
            change = float(np.abs(found - gamma[d, :K]).sum())
            gamma[d, :K] = found
            total += 1
            if change <= tol * number.sum():
                break
        if number.size == 0:
            gamma[d, :K] = prior.doc_prior
    return total


def meanfield_statistics(
    documents: WordCounts,
    prior: Prior,
    tilt: Singles,
    gamma: Singles,
    word_topic: Singles | None,
    doc_topic: Singles,
    n_threads: int = 1,
) -> Floats:
    """Sum the topics of words that belong to given proportions.

    Parameters
    ----------
    documents, prior, tilt
        As in `meanfield_sweeps`.
    gamma : (documents, columns)
    word_topic : (vocabulary, columns), optional
        Written: expected tokens of each word in each topic.
    doc_topic : (documents, columns)
        Written: expected tokens of each document in each topic; padding is zero.
    n_threads : int
        Does not change the result.

    Returns
    -------
    (documents,)
        ``sum_w number_w log sum_k p(w | k) exp(digamma(gamma_k) + tilt_k)``.
    """
    del n_threads
    K = len(prior.doc_prior)
    found = np.zeros(len(documents.starts) - 1)
    doc_topic[...] = 0
    if word_topic is not None:
        word_topic[...] = 0
    for d, number, p in _each(documents, prior):
        words = documents.words[documents.starts[d] : documents.starts[d + 1]]
        t = _factors(gamma[d, :K], tilt[d, :K] if len(tilt) else None)
        r = p @ t + TINY
        phi = (number / r)[:, None] * p * t
        found[d] = number @ np.log(r)
        doc_topic[d, :K] = phi.sum(axis=0)
        if word_topic is not None:
            np.add.at(word_topic[:, :K], words, phi.astype(np.float32))
    return found


def infer_by_sweeps(documents: WordCounts, prior: Prior, history: Singles, n_threads: int = 1) -> Floats:
    """Make a fixed number of label-free sweeps from even proportions, and remember all of them.

    Parameters
    ----------
    documents : WordCounts
    prior : Prior
    history : (sweeps + 1, documents, columns)
        Written: gamma before the first sweep, ``doc_prior + length / topics``, and after each.
    n_threads : int
        Does not change the result.

    Returns
    -------
    (documents,)
        ``sum_w number_w log sum_k p(w | k) exp(digamma(gamma_k))`` at the last gamma.
    """
    del n_threads
    K, found = len(prior.doc_prior), np.zeros(len(documents.starts) - 1)
    history[...] = 0
    for d, number, p in _each(documents, prior):
        gamma = prior.doc_prior.astype(np.float64) + number.sum() / K
        history[0, d, :K] = gamma
        for sweep in range(1, len(history)):
            t = _factors(gamma, None)
            gamma = prior.doc_prior + t * ((number / (p @ t + TINY)) @ p)
            history[sweep, d, :K] = gamma
        found[d] = number @ np.log(p @ _factors(gamma, None) + TINY)
    return found


def reverse_sweeps(
    documents: WordCounts, prior: Prior, history: Singles, grad: Singles, weight: float, n_threads: int = 1
) -> Singles:
    """Differentiate through the sweeps of `infer_by_sweeps`.

    Parameters
    ----------
    documents, prior, history
        As `infer_by_sweeps` left them.
    grad : (documents, columns)
        Derivatives of an objective by the last gamma.
    weight : float
        The objective also has ``weight`` times the negative bound: the divergence of the Dirichlet distribution of
        gamma from that of ``doc_prior``, less what `infer_by_sweeps` returned.
    n_threads : int
        Does not change the result.

    Returns
    -------
    (vocabulary, columns)
        Derivatives by ``word_given_topic``.
    """
    del n_threads
    K = len(prior.doc_prior)
    out = np.zeros(prior.word_given_topic.shape)
    for d, number, p in _each(documents, prior):
        words = documents.words[documents.starts[d] : documents.starts[d + 1]]
        by_p = np.zeros_like(p)
        gamma = history[-1, d, :K].astype(np.float64)
        t = _factors(gamma, None)
        q = -weight * number / (p @ t + TINY)
        by_p += np.outer(q, t)
        g = grad[d, :K] + (weight * (gamma - prior.doc_prior) + (q @ p) * t) * polygamma(1, gamma)
        for before, after in zip(history[-2::-1, d, :K], history[:0:-1, d, :K], strict=True):
            gamma = before.astype(np.float64)
            t = _factors(gamma, None)
            r = p @ t + TINY
            by_sum, by_t = g * t, g * (after.astype(np.float64) - prior.doc_prior) / t
            q = number / r
            by_r = -(p @ by_sum) * q / r
            by_p += np.outer(q, by_sum) + np.outer(by_r, t)
            g = (by_t + by_r @ p) * t * polygamma(1, gamma)
        np.add.at(out[:, :K], words, by_p)
    return out.astype(np.float32)


def _each(documents: WordCounts, prior: Prior) -> Iterator[tuple[int, Floats, Floats]]:
    """Yield every document: its number, how often its words occur, and their probabilities in the topics."""
    K = len(prior.doc_prior)
    for d in range(len(documents.starts) - 1):
        entries = slice(documents.starts[d], documents.starts[d + 1])
        p = prior.word_given_topic[documents.words[entries], :K].astype(np.float64)
        yield d, documents.numbers[entries].astype(np.float64), p


def _factors(gamma: Floats | Singles, tilt: Floats | Singles | None) -> Floats:
    exponent = digamma(gamma.astype(np.float64))
    return np.asarray(np.exp(exponent if tilt is None else exponent + tilt))
