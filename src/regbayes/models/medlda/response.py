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
from regbayes.engine import Status
from regbayes.framework.dual_forms import BoxDual
from regbayes.framework.large_margin import MarginSolution, solve_box
from regbayes.framework.margin_accuracy import Accuracy
from regbayes.kernels.chunks import map_chunks
from regbayes.kernels.meanfield import WordCounts
from regbayes.models.medlda.margins import Dual, Readout

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
class Belief:
    """The distribution of the weights, normal for each response, and the variance of the responses."""

    mean: Floats  # (L, K)
    covariance: Floats  # (L, K, K)
    variance: Floats  # (L,): delta^2

    @property
    def curvature(self) -> Floats:
        """Sum over responses of E[eta eta^T] / delta^2, shape (K, K)."""
        return np.asarray(np.einsum("l,ljk->jk", 1.0 / self.variance, second_moments(self)))


@dataclass(frozen=True)
class Base:
    """The normal distribution of one response's weights that margins start from."""

    precision: Floats  # (K, K)
    mean: Floats  # (K,)


@dataclass(frozen=True)
class Moments:
    """Of the shares of topics in documents."""

    shares: Floats  # (N, K): E[zbar]
    second: Floats  # (K, K): E[zbar zbar^T], summed over documents


@dataclass(frozen=True)
class Reward:
    """What margins and responses add to a document's bound: a quadratic function of its shares of topics."""

    tilt: Floats  # (N, K): the linear part, for each token
    curvature: Floats  # (K, K): of the quadratic part, `Belief.curvature`


@dataclass(frozen=True)
class WordTopics:
    """Topics of every entry of the corpus, and their sums."""

    log_phi: Singles  # (entries, K)
    gamma: Floats  # (N, K)
    word_topic: Floats  # (V, K): expected tokens
    doc_topic: Floats  # (N, K): expected tokens
    entropy: Floats  # (N,): E[log theta - log q(z)], summed over tokens
    words: Floats  # (N,): E[log beta], summed over tokens
    own: Floats  # (N,): phi^T curvature phi, summed over tokens
    overlap: Floats  # (K, K): sum over tokens of phi phi^T / length^2


def second_moments(belief: Belief) -> Floats:
    """Return E[eta eta^T] of each response, shape (L, K, K)."""
    return belief.covariance + belief.mean[:, :, None] * belief.mean[:, None, :]


def no_belief(response: Response, n_topics: int) -> Belief:
    """Return weights that are known to be zero: responses then say nothing about topics."""
    L = response.values.shape[1]
    return Belief(np.zeros((L, n_topics)), np.zeros((L, n_topics, n_topics)), np.full(L, response.variance))


def moments(shares: Floats, lengths: Floats, overlap: Floats) -> Moments:
    """Return the first two moments of the shares, docs/math.md eq. (105)."""
    return Moments(shares, shares.T @ shares + np.diag(np.sum(shares / lengths[:, None], axis=0)) - overlap)


def infer_words(
    documents: WordCounts,
    log_topics: Floats,
    doc_prior: Floats,
    reward: Reward,
    log_phi: Singles,
    gamma: Floats,
    n_sweeps: int,
    n_threads: int,
) -> WordTopics:
    """Update topics of words and proportions in turn, docs/math.md eq. (106), (62); no sweep lowers the bound.

    Parameters
    ----------
    documents : WordCounts
        None is empty.
    log_topics : (V, K)
        E[log beta].
    doc_prior : (K,)
    reward : Reward
    log_phi : (entries, K)
        The start.
    gamma : (N, K)
        The start.
    n_sweeps : int
    n_threads : int
        Does not change the result.
    """
    tilt, curvature = reward.tilt, reward.curvature
    logs, after_phi, after_gamma = log_topics.astype(np.float32), log_phi.copy(), gamma.copy()
    n_documents, K = gamma.shape
    doc_topic = np.empty((n_documents, K))
    entropy, words, own = np.empty(n_documents), np.empty(n_documents), np.empty(n_documents)

    def work(_chunk: int, first: int, last: int) -> tuple[Floats, Floats]:
        begin, end = int(documents.starts[first]), int(documents.starts[last])
        part = _Part.of(documents, first, last, len(log_topics))
        found, phi = after_phi[begin:end], np.exp(after_phi[begin:end])
        exponent = logs[part.words] + _by_entry(tilt[first:last] - 0.5 * np.diag(curvature) / part.squares, part)
        at = after_gamma[first:last]
        for _ in range(n_sweeps):
            phi = _sweep(part, exponent, digamma(at), curvature, found, phi)
            at[...] = doc_prior + part.by_document @ phi
        sums = part.by_document @ phi
        doc_topic[first:last] = sums
        expected = digamma(at) - digamma(at.sum(axis=1))[:, None]
        surprise = part.by_document @ np.einsum("ek,ek->e", phi, found, dtype=np.float64)
        entropy[first:last] = np.sum(sums * expected, axis=1) - surprise
        words[first:last] = part.by_document @ np.einsum("ek,ek->e", phi, logs[part.words], dtype=np.float64)
        own[first:last] = part.by_document @ np.einsum("ek,ek->e", phi @ curvature.astype(np.float32), phi)
        weighted = phi.astype(np.float64) * np.sqrt(part.numbers / part.squares[part.row, 0])[:, None]
        return part.by_word @ phi, weighted.T @ weighted

    results = map_chunks(work, n_documents, n_threads)
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
    by_word: csr_array  # (V, entries)

    @classmethod
    def of(cls, documents: WordCounts, first: int, last: int, n_words: int) -> _Part:
        starts = documents.starts[first : last + 1] - documents.starts[first]
        entries = slice(documents.starts[first], documents.starts[last])
        words, numbers = documents.words[entries], documents.numbers[entries]
        row, column = np.repeat(np.arange(last - first), np.diff(starts)), np.arange(len(words))
        by_document = csr_array((numbers, column, starts), shape=(last - first, len(words)))
        by_word = csr_array((numbers, (words, column)), shape=(n_words, len(words)))
        lengths = np.asarray(by_document.sum(axis=1, dtype=np.float64))[:, None]
        return cls(words, numbers, row, lengths, by_document, by_word)

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
    return np.asarray(found)


def quadratic_costs(own: Floats, doc_topic: Floats, lengths: Floats, curvature: Floats) -> Floats:
    """Return half the trace of curvature times E[zbar zbar^T], of each document, shape (N,)."""
    together = np.einsum("dk,dk->d", doc_topic @ curvature, doc_topic)
    return np.asarray(0.5 * (together - own + doc_topic @ np.diag(curvature)) / lengths**2)


def solve_weights(
    seen: Moments, response: Response, dual: Dual, variance: Floats, warm_start: Floats | None, accuracy: Accuracy
) -> tuple[Belief, Readout]:
    """Return the distribution of the weights that meets the margins, docs/math.md eq. (107), (108).

    The base measure is what likelihood and prior say without margins. In coordinates in which it is standard normal
    the margins are the large-margin problem of the framework, with targets less the mean predictions of the base.
    """
    n, K = seen.shares.shape
    means, covariances, solutions = [], [], []
    for i, (y, spread) in enumerate(zip(response.values.T, variance, strict=True)):
        base = base_measure(seen, y, spread, response.weight_variance)
        root = np.linalg.cholesky(base.precision)
        form = _form_of(dual, i, seen.shares @ base.mean)
        features = solve_triangular(root, seen.shares.T, lower=True).T
        before = None if warm_start is None else np.ascontiguousarray(warm_start.reshape(n, -1)[:, i])
        solution = solve_box(features, form, warm_start=before, tol=accuracy.gap, max_epochs=accuracy.max_epochs)
        means.append(base.mean + solve_triangular(root.T, solution.weights[0]))
        covariances.append(cho_solve((root, True), np.eye(K)))
        solutions.append(solution)
    belief = Belief(np.array(means), np.array(covariances), variance)
    return belief, as_readout(belief.mean, solutions)


def base_measure(seen: Moments, values: Floats, variance: float, weight_variance: float) -> Base:
    """Return the normal distribution of one response's weights without margins: Bayesian linear regression."""
    precision = np.eye(len(seen.second)) / weight_variance + seen.second / variance
    return Base(precision, cho_solve(cho_factor(precision), seen.shares.T @ values / variance))


def squared_residuals(seen: Moments, values: Floats, belief: Belief) -> Floats:
    """Return the expected squared residuals, summed over documents, shape (L,)."""
    across = np.einsum("dl,dl->l", values, seen.shares @ belief.mean.T)
    spread = np.einsum("ljk,jk->l", second_moments(belief), seen.second)
    return np.asarray(np.sum(values**2, axis=0) - 2.0 * across + spread)


def update_variance(seen: Moments, response: Response, belief: Belief) -> Belief:
    """Return the belief with the variance of the responses that fits best, docs/math.md eq. (109)."""
    found = squared_residuals(seen, response.values, belief) / len(response.values)
    return replace(belief, variance=np.maximum(found, SMALLEST_VARIANCE))


def terms(seen: Moments, response: Response, belief: Belief) -> dict[str, float]:
    """Return the negative expected log-likelihood of the responses and the divergence of the weights, eq. (110)."""
    n, K = seen.shares.shape
    v = response.weight_variance
    residuals = squared_residuals(seen, response.values, belief)
    cost = 0.5 * n * np.log(2.0 * np.pi * belief.variance) + 0.5 * residuals / belief.variance
    traces = np.trace(belief.covariance, axis1=1, axis2=2) + np.sum(belief.mean**2, axis=1)
    divergence = 0.5 * (traces / v - K + K * np.log(v) - np.linalg.slogdet(belief.covariance)[1])
    return {"responses": float(np.sum(cost)), "weights": float(np.sum(divergence))}


def as_readout(means: Floats, solutions: list[MarginSolution]) -> Readout:
    """Return the solved margins of all responses as one readout."""
    n_responses, K = means.shape
    pull = np.stack([solution.dual for solution in solutions], axis=1)
    primal, gap = sum(s.primal for s in solutions), sum(s.gap for s in solutions)
    merged = MarginSolution(
        dual=pull.ravel(),
        weights=np.vstack([solution.weights for solution in solutions]),
        shared_weights=np.zeros((0, K)),
        primal=primal,
        dual_value=primal - gap,
        gap=gap,
        n_epochs=max(solution.n_epochs for solution in solutions),
        status=next((s.status for s in solutions if s.status is not Status.CONVERGED), Status.CONVERGED),
    )
    return Readout(merged, means, np.zeros(n_responses), np.zeros(K), pull, False)


def _form_of(dual: Dual, i: int, offset: Floats) -> BoxDual:
    """Return the conjugate of one response's losses, with scores that begin at an offset."""
    assert isinstance(dual.form, BoxDual)
    form, each = dual.form, slice(i, None, dual.n_responses)
    linear = form.linear[each] + offset
    return BoxDual(linear, form.absolute[each], form.ridge[each], form.lower[each], form.upper[each])
