"""The bound of variational MedLDA, term by term. docs/math.md eq. (60)."""

from __future__ import annotations

import numpy as np
from scipy.special import digamma, gammaln

from regbayes._types import Floats, Reals


def expected_log_topics(word_topic: Reals, word_prior: float) -> Floats:
    """Return the expected logarithms of the words' probabilities in topics, shape (V, K).

    Parameters
    ----------
    word_topic : (V, K)
        Expected tokens.
    word_prior : float
        Dirichlet parameter of a word in a topic. Zero: topics are parameters, estimated by maximum likelihood; words
        that a topic never has get a probability that is next to nothing.
    """
    counts = word_topic.astype(np.float64)
    if word_prior > 0:
        pseudo = counts + word_prior
        return np.asarray(digamma(pseudo) - digamma(pseudo.sum(axis=0)))
    tiny = np.finfo(np.float32).tiny
    share = counts / np.maximum(counts.sum(axis=0), tiny)
    return np.asarray(np.log(np.maximum(share, tiny)))


def topic_divergence(word_topic: Reals, word_prior: float) -> float:
    """Return the divergence of the topics' Dirichlet distributions from their prior; zero for parameters."""
    if word_prior == 0:
        return 0.0
    V, K = word_topic.shape
    pseudo = word_topic.astype(np.float64) + word_prior
    total = pseudo.sum(axis=0)
    prior = K * (gammaln(V * word_prior) - V * gammaln(word_prior))
    expected = digamma(pseudo) - digamma(total)
    found = np.sum(gammaln(total)) - np.sum(gammaln(pseudo)) - prior
    return float(found + np.vdot(pseudo - word_prior, expected))


def proportion_divergences(gamma: Floats, doc_prior: Floats) -> Floats:
    """Return the divergence of each document's Dirichlet distribution from the prior, shape (N,)."""
    total = gamma.sum(axis=1)
    expected = digamma(gamma) - digamma(total)[:, None]
    found = gammaln(total) - np.sum(gammaln(gamma), axis=1)
    found -= gammaln(doc_prior.sum()) - np.sum(gammaln(doc_prior))
    return np.asarray(found + np.sum((gamma - doc_prior) * expected, axis=1))


def proportion_divergence(gamma: Floats, doc_prior: Floats) -> float:
    """Return the sum of `proportion_divergences`."""
    return float(np.sum(proportion_divergences(gamma, doc_prior)))
