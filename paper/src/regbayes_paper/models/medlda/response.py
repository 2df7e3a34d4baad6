"""The Gaussian response of the paper's appendix B: numbers that the topics generate, beside the margins asked of them.

``y_d ~ N(eta^T zbar_d, delta^2)``. The likelihood is quadratic in the shares of topics, so that words of a document are
coupled and their topics have to be kept: ``log_phi`` holds them for every entry of the corpus. The weights are normal
with a precision that the documents raise, and the margins are met with that normal distribution as the base measure.
docs/math.md eq. (105)-(110).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve, solve_triangular
from scipy.sparse import csr_array
from scipy.special import digamma

from regbayes._types import Floats, Integers, Singles
from regbayes.engine import Executor, row_blocks
from regbayes.kernels.meanfield import WordCounts
from regbayes.margins.head import FittedHead, MarginHead, Tolerance
from regbayes.margins.targets import Numbers
from regbayes.models.medlda.meanfield import TrainingDocuments

N_SWEEPS = 5  # over the documents in a round; they go on from there in the next
SMALLEST_VARIANCE = 1e-6  # of the response: constant numbers would have none


@dataclass(frozen=True)
class Response:
    """What is observed, and whether its variance is estimated."""

    values: Floats  # (N, L)
    weight_variance: float
    variance: float  # delta^2, or where its estimate begins
    estimate: bool


@dataclass(frozen=True)
class WeightPosterior:
    """The distribution of the weights, normal for each response, and the variance of the responses."""

    mean: Floats  # (L, K)
    covariance: Floats  # (L, K, K)
    variance: Floats  # (L,): delta^2

    @property
    def curvature(self) -> Floats:
        """Sum over responses of E[eta eta^T] / delta^2, shape (K, K)."""
        return np.einsum("l,ljk->jk", 1.0 / self.variance, second_moments(self))


@dataclass(frozen=True)
class Base:
    """The normal distribution of one response's weights that margins start from."""

    precision: Floats  # (K, K)
    mean: Floats  # (K,)


@dataclass(frozen=True)
class Moments:
    """Of the shares of topics in documents."""

    shares: Floats  # (N, K): E[zbar]
    second: Floats  # (K, K): E[zbar zbar^T], summed over documents, each as often as it counts
    weights: Floats  # (N,): how often that is


@dataclass(frozen=True)
class SolvedMargins:
    """What the large-margin step found for all responses."""

    multipliers: Floats  # (N, L)
    gap: float


@dataclass(frozen=True)
class QuadraticTilt:
    """What margins and responses add to a document's bound: a quadratic function of its shares of topics."""

    linear: Floats  # (N, K): the linear part, for each token
    curvature: Floats  # (K, K): of the quadratic part, `WeightPosterior.curvature`


@dataclass(frozen=True)
class WordTopics:
    """Topics of every entry of the corpus, and their sums."""

    log_phi: Singles  # (entries, K)
    gamma: Floats  # (N, K)
    word_topic: Floats  # (V, K): expected tokens, of each document as often as it counts
    doc_topic: Floats  # (N, K): expected tokens
    entropy: Floats  # (N,): E[log theta - log q(z)], summed over tokens
    words: Floats  # (N,): E[log beta], summed over tokens
    own: Floats  # (N,): phi^T curvature phi, summed over tokens
    overlap: Floats  # (K, K): sum over tokens of phi phi^T / length^2, of each document as often as it counts


def second_moments(weights: WeightPosterior) -> Floats:
    """Return E[eta eta^T] of each response, shape (L, K, K)."""
    return weights.covariance + weights.mean[:, :, None] * weights.mean[:, None, :]


def zero_weights(response: Response, n_topics: int) -> WeightPosterior:
    """Return weights that are known to be zero: responses then say nothing about topics."""
    L = response.values.shape[1]
    return WeightPosterior(np.zeros((L, n_topics)), np.zeros((L, n_topics, n_topics)), np.full(L, response.variance))


def moments(shares: Floats, lengths: Floats, overlap: Floats, weights: Floats) -> Moments:
    """Return the first two moments of the shares, docs/math.md eq. (105)."""
    weighted = shares * weights[:, None]
    return Moments(
        shares, weighted.T @ shares + np.diag(np.sum(weighted / lengths[:, None], axis=0)) - overlap, weights
    )


def infer_words(
    documents: TrainingDocuments,
    log_topics: Floats,
    doc_prior: Floats,
    tilt: QuadraticTilt,
    log_phi: Singles,
    gamma: Floats,
    n_sweeps: int,
    executor: Executor,
) -> WordTopics:
    """Update topics of words and proportions in turn, docs/math.md eq. (106), (62); no sweep lowers the bound.

    Parameters
    ----------
    documents : TrainingDocuments
        With entries that begin at zero.
    log_topics : (V, K)
        E[log beta].
    doc_prior : (K,)
    tilt : QuadraticTilt
    log_phi : (entries, K)
        The start.
    gamma : (N, K)
        The start.
    n_sweeps : int
    executor : Executor
        For blocks of documents; does not change the result.
    """
    curvature, counts = tilt.curvature, documents.counts
    logs, after_phi, after_gamma = log_topics.astype(np.float32), log_phi.copy(), gamma.copy()
    n_documents, K = gamma.shape
    doc_topic = np.empty((n_documents, K))
    entropy, words, own = np.empty(n_documents), np.empty(n_documents), np.empty(n_documents)

    def infer(rows: slice) -> tuple[Floats, Floats]:
        part = _Part.of(documents.rows(rows), len(log_topics))
        entries = slice(int(counts.starts[rows.start]), int(counts.starts[rows.stop]))
        found, phi = after_phi[entries], np.exp(after_phi[entries])
        exponent = logs[part.words] + _by_entry(tilt.linear[rows] - 0.5 * np.diag(curvature) / part.squares, part)
        at = after_gamma[rows]
        for _ in range(n_sweeps):
            phi = _sweep(part, exponent, digamma(at), curvature, found, phi)
            at[...] = doc_prior + part.by_document @ phi
        sums = part.by_document @ phi
        doc_topic[rows] = sums
        expected = digamma(at) - digamma(at.sum(axis=1))[:, None]
        surprise = part.by_document @ np.einsum("ek,ek->e", phi, found, dtype=np.float64)
        entropy[rows] = np.sum(sums * expected, axis=1) - surprise
        words[rows] = part.by_document @ np.einsum("ek,ek->e", phi, logs[part.words], dtype=np.float64)
        own[rows] = part.by_document @ np.einsum("ek,ek->e", phi @ curvature.astype(np.float32), phi)
        per_token = part.numbers * documents.weights[rows][part.row] / part.squares[part.row, 0]
        weighted = phi.astype(np.float64) * np.sqrt(per_token)[:, None]
        return part.by_word @ phi, weighted.T @ weighted

    results = executor.map(infer, row_blocks(n_documents))
    word_topic, overlap = (np.sum([pair[i] for pair in results], axis=0) for i in (0, 1))
    return WordTopics(after_phi, after_gamma, word_topic, doc_topic, entropy, words, own, overlap)


@dataclass(frozen=True)
class _Part:
    """Some documents, as sparse matrices over their entries."""

    words: NDArray[np.int32]  # (entries,)
    numbers: Singles  # (entries,)
    row: Integers  # (entries,): the document
    lengths: Floats  # (documents, 1)
    by_document: csr_array  # (documents, entries)
    by_word: csr_array  # (V, entries): documents count as often as they do

    @classmethod
    def of(cls, documents: TrainingDocuments, n_words: int) -> _Part:
        counts = documents.counts
        starts = counts.starts - counts.starts[0]
        entries = slice(counts.starts[0], counts.starts[-1])
        words, numbers = counts.words[entries], counts.numbers[entries]
        row, column = np.repeat(np.arange(len(documents)), np.diff(starts)), np.arange(len(words))
        by_document = csr_array((numbers, column, starts), shape=(len(documents), len(words)))
        weighted = (numbers * documents.weights[row]).astype(np.float32)
        by_word = csr_array((weighted, (words, column)), shape=(n_words, len(words)))
        return cls(words, numbers, row, documents.lengths[:, None], by_document, by_word)

    @property
    def squares(self) -> Floats:
        return self.lengths**2


def _by_entry(rows: Floats, part: _Part) -> Singles:
    return rows.astype(np.float32)[part.row]


def _sweep(
    part: _Part, exponent: Singles, expected: Floats, curvature: Floats, log_phi: Singles, phi: Singles
) -> Singles:
    """Update the topics of all words at once; write their logarithms, return them. docs/math.md eq. (106).

    The curvature's part is linearised where the words are, and a divergence from there makes that a lower bound: its
    weight is a quarter of the largest squared distance between two topics, over the length.
    """
    diagonal = np.diag(curvature)
    widest = float(np.max(diagonal[:, None] + diagonal - 2.0 * curvature))
    damping = (0.25 * widest / part.lengths[:, 0]).astype(np.float32)[part.row, None]
    together = np.asarray(part.by_document @ phi, dtype=np.float64) @ curvature / part.squares
    found = phi @ curvature.astype(np.float32)  # a token does not meet itself
    found /= part.squares.astype(np.float32)[part.row]
    found += exponent
    found += _by_entry(expected - together, part)
    found += damping * log_phi
    found /= 1.0 + damping
    found -= found.max(axis=1, keepdims=True)
    np.exp(found, out=phi)
    total = phi.sum(axis=1, keepdims=True)
    np.subtract(found, np.log(total), out=log_phi)
    phi /= total
    return phi


def first_topics(documents: WordCounts, log_topics: Floats, gamma: Floats) -> Singles:
    """Return the logarithms of the topics of words that belong to proportions, without responses, (entries, K)."""
    row = np.repeat(np.arange(len(gamma)), np.diff(documents.starts))
    found = log_topics.astype(np.float32)[documents.words] + digamma(gamma).astype(np.float32)[row]
    found -= found.max(axis=1, keepdims=True)
    found -= np.log(np.sum(np.exp(found), axis=1, keepdims=True))
    return found


def quadratic_costs(own: Floats, doc_topic: Floats, lengths: Floats, curvature: Floats) -> Floats:
    """Return half the trace of curvature times E[zbar zbar^T], of each document, shape (N,)."""
    together = np.einsum("dk,dk->d", doc_topic @ curvature, doc_topic)
    return 0.5 * (together - own + doc_topic @ np.diag(curvature)) / lengths**2


def solve_weights(
    seen: Moments,
    response: Response,
    head: MarginHead,
    variance: Floats,
    warm_start: Floats | None,
    tolerance: Tolerance,
) -> tuple[WeightPosterior, SolvedMargins]:
    """Return the distribution of the weights that meets the margins, docs/math.md eq. (107), (108).

    The base measure is what likelihood and prior say without margins. In coordinates in which it is standard normal
    the margins are the large-margin problem of the framework, with targets less the mean predictions of the base.
    """
    targets = head.targets
    assert isinstance(targets, Numbers)
    means, covariances, solved = [], [], []
    for i, (y, spread) in enumerate(zip(response.values.T, variance, strict=True)):
        base = base_measure(seen, y, spread, response.weight_variance)
        root = np.linalg.cholesky(base.precision)
        left = targets.values[:, [i]] - (seen.shares @ base.mean)[:, None]
        numbers = Numbers(left, targets.C[:, [i]], targets.epsilon)
        standard = MarginHead(numbers, head.squared, fit_intercept=False, in_blocks=False)
        features = solve_triangular(root, seen.shares.T, lower=True).T
        found = standard.solve(features, None if warm_start is None else warm_start[:, [i]], tolerance)
        assert isinstance(found, FittedHead)
        means.append(base.mean + solve_triangular(root.T, found.head.weights[0]))
        covariances.append(cho_solve((root, True), np.eye(len(root))))
        solved.append(found)
    margins = SolvedMargins(np.hstack([found.multipliers for found in solved]), sum(found.gap for found in solved))
    return WeightPosterior(np.array(means), np.array(covariances), variance), margins


def base_measure(seen: Moments, values: Floats, variance: float, weight_variance: float) -> Base:
    """Return the normal distribution of one response's weights without margins: Bayesian linear regression."""
    precision = np.eye(len(seen.second)) / weight_variance + seen.second / variance
    return Base(precision, cho_solve(cho_factor(precision), seen.shares.T @ (seen.weights * values) / variance))


def squared_residuals(seen: Moments, values: Floats, weights: WeightPosterior) -> Floats:
    """Return the expected squared residuals, summed over documents, shape (L,)."""
    across = np.einsum("d,dl,dl->l", seen.weights, values, seen.shares @ weights.mean.T)
    spread = np.einsum("ljk,jk->l", second_moments(weights), seen.second)
    return seen.weights @ values**2 - 2.0 * across + spread


def update_variance(seen: Moments, response: Response, weights: WeightPosterior) -> WeightPosterior:
    """Return the weights with the variance of the responses that fits best, docs/math.md eq. (109)."""
    found = squared_residuals(seen, response.values, weights) / seen.weights.sum()
    return replace(weights, variance=np.maximum(found, SMALLEST_VARIANCE))


def terms(seen: Moments, response: Response, weights: WeightPosterior) -> dict[str, float]:
    """Return the negative expected log-likelihood of the responses and the divergence of the weights, eq. (110)."""
    n, K, v = float(seen.weights.sum()), seen.shares.shape[1], response.weight_variance
    residuals = squared_residuals(seen, response.values, weights)
    cost = 0.5 * n * np.log(2.0 * np.pi * weights.variance) + 0.5 * residuals / weights.variance
    traces = np.trace(weights.covariance, axis1=1, axis2=2) + np.sum(weights.mean**2, axis=1)
    divergence = 0.5 * (traces / v - K + K * np.log(v) - np.linalg.slogdet(weights.covariance)[1])
    return {"kl_weights": float(np.sum(divergence)), "response": float(np.sum(cost))}
