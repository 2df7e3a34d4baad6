"""What the posterior scheme knows: the problem, the distributions, and what follows from them at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from regbayes._types import Floats, Singles
from regbayes.kernels.meanfield import WordCounts
from regbayes.models.medlda import response as gaussian
from regbayes.models.medlda.margins import Dual, Readout
from regbayes.models.medlda.response import Belief, Moments, Response


@dataclass(frozen=True)
class Problem:
    """What stays the same through a fit. No document is empty."""

    documents: WordCounts
    lengths: Floats  # (N,)
    dual: Dual | None  # None: latent Dirichlet allocation
    word_prior: float  # zero: topics by maximum likelihood
    estimate_doc_prior: bool
    n_threads: int
    response: Response | None = None  # None: margins are all that is known of the numbers


@dataclass(frozen=True)
class Factors:
    """The distributions: proportions of documents, words of topics, weights."""

    gamma: Singles  # (N, columns)
    tilt: Singles  # (N, columns), or no rows: what the topics of words were tilted with
    topic_counts: Singles  # (V, columns): topics are Dirichlet with these parameters plus the prior's, or the shares of
    # these where they are estimated
    word_topic: Singles  # (V, columns): expected tokens
    doc_topic: Singles  # (N, columns): expected tokens
    doc_prior: Floats  # (K,)
    entropy: float  # E[log theta - log q(z)], summed over tokens
    readout: Readout | None
    # With a Gaussian response:
    log_phi: Singles | None = None  # (entries, K): topics of words
    overlap: Floats | None = None  # (K, K): sum over tokens of phi phi^T / length^2
    belief: Belief | None = None

    @property
    def n_topics(self) -> int:
        """K."""
        return len(self.doc_prior)


def tilt_of(problem: Problem, factors: Factors) -> Singles:
    """Return what margins and responses add to the log-weights of topics, for each token; no rows without both."""
    shape, K = factors.gamma.shape, factors.n_topics
    if factors.readout is None and factors.belief is None:
        return np.empty((0, shape[1]), np.float32)
    reward = np.zeros((shape[0], K)) if factors.readout is None else -factors.readout.slopes()
    if problem.response is not None and factors.belief is not None:
        reward += (problem.response.values / factors.belief.variance) @ factors.belief.mean
    tilt = np.zeros(shape, np.float32)
    tilt[:, :K] = reward / problem.lengths[:, None]
    return tilt


def shares_of(problem: Problem, factors: Factors) -> Floats:
    """Return the expected shares of topics in documents, shape (N, K)."""
    return np.asarray(factors.doc_topic[:, : factors.n_topics] / problem.lengths[:, None], dtype=np.float64)


def moments_of(problem: Problem, factors: Factors) -> Moments:
    """Return the first two moments of the shares, where a Gaussian response asks for them."""
    assert factors.overlap is not None
    return gaussian.moments(shares_of(problem, factors), problem.lengths, factors.overlap)
