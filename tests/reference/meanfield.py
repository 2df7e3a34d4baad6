"""Mean field of topic models in plain NumPy and double precision, one document at a time."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from scipy.special import digamma, polygamma

from regbayes._types import Floats, Singles
from regbayes.kernels.meanfield import TINY, Prior, WordCounts


def reference_meanfield_sweeps(
    documents: WordCounts,
    prior: Prior,
    max_sweeps: int,
    tol: float,
    gamma: Singles,
    collapsed: bool = False,
    logs: Floats | None = None,
) -> int:
    """`meanfield_sweeps` in plain NumPy."""
    K, total = len(prior.doc_prior), 0
    for d, number, p in _each(documents, prior):
        for _ in range(max_sweeps if number.size else 0):
            at = gamma[d, :K]
            t = at.astype(np.float64) if collapsed else _factors(at)
            found = prior.doc_prior + t * ((number / (p @ t + TINY)) @ p)
            change = float(np.abs(found - gamma[d, :K]).sum())
            gamma[d, :K] = found
            total += 1
            if change <= tol * number.sum():
                break
        if number.size == 0:
            gamma[d, :K] = prior.doc_prior
        if logs is not None:
            logs[d] = number @ np.log(p @ _factors(gamma[d, :K]) + TINY)
    return total


def reference_reverse_sweeps(
    documents: WordCounts,
    prior: Prior,
    n_sweeps: int,
    gamma: Singles,
    grad: Singles,
    weights: Floats,
) -> Singles:
    """`reverse_sweeps` in plain NumPy."""
    K = len(prior.doc_prior)
    out = np.zeros(prior.word_given_topic.shape)
    for d, number, p in _each(documents, prior):
        words = documents.words[documents.starts[d] : documents.starts[d + 1]]
        by_p = np.zeros_like(p)
        history = [*_history(number, p, prior, n_sweeps - 1), gamma[d, :K].astype(np.float64)]
        t, weight = _factors(history[-1]), weights[d]
        q = -weight * number / (p @ t + TINY)
        by_p += np.outer(q, t)
        g = grad[d, :K] + (weight * (history[-1] - prior.doc_prior) + (q @ p) * t) * polygamma(1, history[-1])
        for before, after in zip(history[-2::-1], history[:0:-1], strict=True):
            t = _factors(before)
            r = p @ t + TINY
            by_sum, by_t = g * t, g * (after - prior.doc_prior) / t
            q = number / r
            by_r = -(p @ by_sum) * q / r
            by_p += np.outer(q, by_sum) + np.outer(by_r, t)
            g = (by_t + by_r @ p) * t * polygamma(1, before)
        np.add.at(out[:, :K], words, by_p)
    return out.astype(prior.word_given_topic.dtype)


def _history(number: Floats, p: Floats, prior: Prior, n_sweeps: int) -> list[Floats]:
    """Return gamma of one document before the first label-free sweep and after each."""
    found = [prior.doc_prior.astype(np.float64) + number.sum() / len(prior.doc_prior)]
    for _ in range(n_sweeps):
        t = _factors(found[-1])
        found.append(prior.doc_prior + t * ((number / (p @ t + TINY)) @ p))
    return found


def _each(documents: WordCounts, prior: Prior) -> Iterator[tuple[int, Floats, Floats]]:
    """Yield the number, counts and word probabilities of every document."""
    K = len(prior.doc_prior)
    for d in range(len(documents.starts) - 1):
        entries = slice(documents.starts[d], documents.starts[d + 1])
        p = prior.word_given_topic[documents.words[entries], :K].astype(np.float64)
        yield d, documents.numbers[entries].astype(np.float64), p


def _factors(gamma: Floats | Singles) -> Floats:
    factors: Floats = np.exp(digamma(gamma.astype(np.float64)))
    return factors
