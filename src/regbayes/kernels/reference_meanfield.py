"""Mean-field kernels of topic models in plain NumPy: the definition that the compiled ones are tested against.

A document's topics are ``phi_wk`` proportional to ``p(w | k) exp(digamma(gamma_k) + tilt_k)`` for each of its words,
and its proportions are Dirichlet with parameters ``gamma = doc_prior + sum_w number_w phi_w``. docs/math.md 5.5, 5.6.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from scipy.special import digamma, polygamma

from regbayes._types import Floats, Singles
from regbayes.kernels.types_meanfield import Prior, WordCounts

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


def infer_by_sweeps(documents: WordCounts, prior: Prior, n_sweeps: int, gamma: Singles, n_threads: int = 1) -> Floats:
    """Make a fixed number of label-free sweeps from even proportions.

    Parameters
    ----------
    documents : WordCounts
    prior : Prior
    n_sweeps : int
    gamma : (documents, columns)
        Written, padding with zeros. The sweeps begin at ``doc_prior + length / topics``.
    n_threads : int
        Does not change the result.

    Returns
    -------
    (documents,)
        ``sum_w number_w log sum_k p(w | k) exp(digamma(gamma_k))`` at the last gamma.
    """
    del n_threads
    K, found = len(prior.doc_prior), np.zeros(len(documents.starts) - 1)
    gamma[...] = 0
    for d, number, p in _each(documents, prior):
        last = _history(number, p, prior, n_sweeps)[-1]
        gamma[d, :K] = last
        found[d] = number @ np.log(p @ _factors(last, None) + TINY)
    return found


def reverse_sweeps(
    documents: WordCounts,
    prior: Prior,
    n_sweeps: int,
    gamma: Singles,
    grad: Singles,
    weight: float,
    n_threads: int = 1,
) -> Singles:
    """Differentiate through the sweeps of `infer_by_sweeps`, which are made once more.

    Parameters
    ----------
    documents, prior, n_sweeps, gamma
        As `infer_by_sweeps` left them.
    grad : (documents, columns)
        Derivatives of an objective by gamma.
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
        history = [*_history(number, p, prior, n_sweeps - 1), gamma[d, :K].astype(np.float64)]
        t = _factors(history[-1], None)
        q = -weight * number / (p @ t + TINY)
        by_p += np.outer(q, t)
        g = grad[d, :K] + (weight * (history[-1] - prior.doc_prior) + (q @ p) * t) * polygamma(1, history[-1])
        for before, after in zip(history[-2::-1], history[:0:-1], strict=True):
            t = _factors(before, None)
            r = p @ t + TINY
            by_sum, by_t = g * t, g * (after - prior.doc_prior) / t
            q = number / r
            by_r = -(p @ by_sum) * q / r
            by_p += np.outer(q, by_sum) + np.outer(by_r, t)
            g = (by_t + by_r @ p) * t * polygamma(1, before)
        np.add.at(out[:, :K], words, by_p)
    return out.astype(np.float32)


def _history(number: Floats, p: Floats, prior: Prior, n_sweeps: int) -> list[Floats]:
    """Return gamma of one document before the first label-free sweep and after each."""
    found = [prior.doc_prior.astype(np.float64) + number.sum() / len(prior.doc_prior)]
    for _ in range(n_sweeps):
        t = _factors(found[-1], None)
        found.append(prior.doc_prior + t * ((number / (p @ t + TINY)) @ p))
    return found


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
