"""Mean-field kernels of topic models, in single precision.

The topics of a word are ``phi_wk`` proportional to ``p(w | k) exp(digamma(gamma_k))``. The proportions of a document
are Dirichlet with parameters ``gamma = doc_prior + sum_w number_w phi_w``. docs/math.md 5.5, 5.6. Functions take one
block of documents and run in the caller's thread; a block may share its entries with others.

Most of the work is two vectorized passes over the topics of a document's words. The rest is ``exp(digamma(x))`` for
every topic in every sweep, which is branch-free so that it is vectorized too.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy.special import digamma, gammaln

from regbayes._types import Array, Floats, Indices, Reals, Singles
from regbayes.kernels._compile import all_read_only, compiled, compiled_as_written, compiled_inline, read_only
from regbayes.kernels._exponential import exp
from regbayes.kernels.arrays import is_plain, namespace_of, to_host
from regbayes.kernels.binary import MAX_SWEEPS
from regbayes.kernels.types import SPAN, Words

TINY = 1e-30  # avoids division by zero for words without probability in any topic
_ZERO = np.float32(0.0)


class WordCounts(NamedTuple):
    """Documents in compressed rows of words and counts, which may be fractions."""

    words: Words  # (entries,)
    numbers: Array  # (entries,): positive; single precision for the functions below
    starts: Indices  # (documents + 1,): where documents begin among the entries

    def rows(self, first: int, last: int) -> WordCounts:
        """Return documents ``first`` to ``last``, half open, sharing the entries."""
        return self._replace(starts=self.starts[first : last + 1])


class Prior(NamedTuple):
    """Topics and prior for the inference of documents."""

    word_given_topic: Singles  # (vocabulary, columns): not negative; padding is zero. Topics need not sum to one.
    doc_prior: Singles  # (topics,): positive Dirichlet parameters


@compiled_as_written
def _exp_digamma(x: Any) -> Any:
    """Return exp(digamma(x)) for x > 0.

    digamma(x) is digamma(x + 6) minus six reciprocals, and exp(digamma(u + 1/2)) is
    u + 1 / (24 u) - 37 / (5760 u^3) + ...
    """
    one, five = np.float32(1.0), np.float32(5.0)
    p = x * (x + five)
    way = (x + x + five) * (one / p + one / (p + np.float32(4.0)) + one / (p + np.float32(6.0)))
    u = x + np.float32(5.5)
    inverse = one / u
    return (u + inverse * (np.float32(1 / 24) - np.float32(37 / 5760) * inverse * inverse)) * exp(-way)


@compiled_as_written
def _trigamma(x: Any) -> Any:
    """Return the derivative of digamma at x > 0."""
    found, one = _ZERO, np.float32(1.0)
    for i in range(6):
        step = x + np.float32(i)
        found += one / (step * step)
    inverse = one / (x + np.float32(6.0))
    square = inverse * inverse
    series = np.float32(1 / 6) - np.float32(1 / 30) * square
    return found + inverse + np.float32(0.5) * square + square * inverse * series


@compiled_inline
def _write_factors(gamma: Singles, collapsed: bool, n_topics: int, t: Singles) -> None:
    """Write ``exp(digamma(gamma))``, or gamma itself, without changing the padding."""
    for k in range(n_topics):
        t[k] = gamma[k] if collapsed else _exp_digamma(gamma[k])


@compiled_inline
def _dot(a: Singles, b: Singles) -> Any:
    found = _ZERO
    for k in range(a.size):
        found += a[k] * b[k]
    return found


@compiled_inline
def _sweep_document(
    words: Words,
    numbers: Singles,
    begin: int,
    end: int,
    topics: Singles,
    doc_prior: Singles,
    t: Singles,
    sums: Singles,
    before: Singles,
    after: Singles,
) -> Any:
    """Write gamma after a sweep with the factors ``t``; return its absolute change. ``sums`` is scratch."""
    sums[:] = _ZERO
    for i in range(begin, end):
        p = topics[words[i]]
        share = numbers[i] / (_dot(p, t) + np.float32(TINY))
        for k in range(sums.size):
            sums[k] += share * p[k]
    change = _ZERO
    for k in range(doc_prior.size):
        found = doc_prior[k] + t[k] * sums[k]
        change += abs(found - before[k])
        after[k] = found
    return change


@compiled
def _sweep_documents(
    words: Words,
    numbers: Singles,
    starts: Indices,
    topics: Singles,
    doc_prior: Singles,
    max_sweeps: int,
    tol: np.float32,
    collapsed: bool,
    gamma: Singles,
    logs: Floats,
) -> int:
    n_topics, columns = doc_prior.size, topics.shape[1]
    t, sums = np.zeros(columns, np.float32), np.zeros(columns, np.float32)
    with_logs, total = len(logs) > 0, 0
    for d in range(starts.size - 1):
        row, begin, end = gamma[d], starts[d], starts[d + 1]
        if begin == end:
            for k in range(n_topics):
                row[k] = doc_prior[k]
            if with_logs:
                logs[d] = 0.0
            continue
        length = _ZERO
        for i in range(begin, end):
            length += numbers[i]
        for _ in range(max_sweeps):
            _write_factors(row, collapsed, n_topics, t)
            change = _sweep_document(words, numbers, begin, end, topics, doc_prior, t, sums, row, row)
            total += 1
            if change <= tol * length:
                break
        if with_logs:  # while the rows of its words are in the cache
            _write_factors(row, False, n_topics, t)
            log_sum = 0.0
            for i in range(begin, end):
                log_sum += numbers[i] * np.log(np.float64(_dot(topics[words[i]], t) + np.float32(TINY)))
            logs[d] = log_sum
    return total


def meanfield_sweeps(
    documents: WordCounts,
    prior: Prior,
    max_sweeps: int,
    tol: float,
    gamma: Singles,
    collapsed: bool = False,
    logs: Floats | None = None,
) -> int:
    """Alternate between topics of words and proportions for each document separately.

    Parameters
    ----------
    documents : WordCounts
    prior : Prior
    max_sweeps : int
    tol : float
        A document has converged when the absolute changes of its gamma sum to at most this times its length.
    gamma : (documents, columns)
        Initial values, overwritten by the result; columns beyond the topics do not change.
    collapsed : bool, default=False
        Whether word weights are gamma instead of ``exp(digamma(gamma))``, docs/math.md eq. (56).
    logs : (documents,), optional
        Output array for ``sum_w number_w log sum_k p(w | k) exp(digamma(gamma_k))`` at the last gamma.

    Returns
    -------
    int
        Total number of sweeps over all documents.
    """
    written = np.empty(0) if logs is None else logs
    _check_shapes(documents, prior, max_sweeps, gamma)
    return _sweep_documents(
        *all_read_only((*documents, *prior)), max_sweeps, np.float32(tol), bool(collapsed), gamma, written
    )


@compiled
def _reverse_documents(
    words: Words,
    numbers: Singles,
    starts: Indices,
    topics: Singles,
    doc_prior: Singles,
    n_sweeps: int,
    last_gamma: Singles,
    grad: Singles,
    weights: Singles,
    table: Singles,
) -> None:
    n_topics, columns = doc_prior.size, topics.shape[1]
    t, g = np.zeros(columns, np.float32), np.zeros(columns, np.float32)
    by_sum, by_t = np.zeros(columns, np.float32), np.zeros(columns, np.float32)
    history = np.zeros((n_sweeps + 1, columns), np.float32)
    for d in range(starts.size - 1):
        begin, end, weight = starts[d], starts[d + 1], weights[d]
        # Recompute the sweeps, since storing them would take the memory of several corpora.
        length = _ZERO
        for i in range(begin, end):
            length += numbers[i]
        for k in range(n_topics):
            history[0, k] = doc_prior[k] + length / np.float32(n_topics)
        for sweep in range(n_sweeps - 1):
            before, after = history[sweep], history[sweep + 1]
            _write_factors(before, False, n_topics, t)
            _sweep_document(words, numbers, begin, end, topics, doc_prior, t, by_sum, before, after)
        history[n_sweeps] = last_gamma[d]
        gamma = history[n_sweeps]
        _write_factors(gamma, False, n_topics, t)
        by_t[:] = _ZERO
        for i in range(begin, end):
            p, row = topics[words[i]], table[words[i]]
            share = -weight * numbers[i] / (_dot(p, t) + np.float32(TINY))
            for k in range(columns):
                by_t[k] += share * p[k]
                row[k] += share * t[k]
        for k in range(n_topics):
            g[k] = grad[d, k] + (weight * (gamma[k] - doc_prior[k]) + by_t[k] * t[k]) * _trigamma(gamma[k])
        for sweep in range(n_sweeps - 1, -1, -1):
            gamma, after = history[sweep], history[sweep + 1]
            _write_factors(gamma, False, n_topics, t)
            for k in range(n_topics):
                by_sum[k] = g[k] * t[k]
                by_t[k] = g[k] * (after[k] - doc_prior[k]) / t[k]
            for k in range(n_topics, columns):
                by_sum[k] = _ZERO
            for i in range(begin, end):
                p, row = topics[words[i]], table[words[i]]
                r, through = np.float32(TINY), _ZERO
                for k in range(columns):
                    r += t[k] * p[k]
                    through += by_sum[k] * p[k]
                share = numbers[i] / r
                by_r = -through * share / r
                for k in range(columns):
                    row[k] += by_sum[k] * share + by_r * t[k]
                    by_t[k] += by_r * p[k]
            for k in range(n_topics):
                g[k] = by_t[k] * t[k] * _trigamma(gamma[k])


def reverse_sweeps(
    documents: WordCounts, prior: Prior, n_sweeps: int, gamma: Singles, grad: Singles, weights: Floats
) -> Singles:
    """Differentiate through a fixed number of sweeps from uniform proportions, which are recomputed.

    Parameters
    ----------
    documents, prior
        As in `meanfield_sweeps`.
    n_sweeps : int
    gamma : (documents, columns)
        Result of sweeps that started at ``doc_prior + length / topics``.
    grad : (documents, columns)
        Derivatives of an objective by gamma.
    weights : (documents,)
        Weight of each document's negative bound in the objective. The negative bound is the divergence of the Dirichlet
        distribution of gamma from that of ``doc_prior``, minus the ``logs`` of `meanfield_sweeps`.

    Returns
    -------
    (vocabulary, columns)
        Derivatives by ``word_given_topic``.
    """
    _check_shapes(documents, prior, n_sweeps, gamma, grad)
    table = np.zeros(prior.word_given_topic.shape, np.float32)
    weighted = read_only(weights.astype(np.float32))
    known = all_read_only((*documents, *prior))
    _reverse_documents(*known, n_sweeps, read_only(gamma), read_only(grad), weighted, table)
    return table


def _check_shapes(documents: WordCounts, prior: Prior, n_sweeps: int, gamma: Array, *others: Array) -> None:
    """Raise if a compiled loop would read out of bounds or hardly end; tables other than gamma may be empty."""
    (words, numbers, starts), (topics, doc_prior) = documents, prior
    first, last, shape = int(starts[0]), int(starts[-1]), (len(starts) - 1, topics.shape[1])
    used = words[first:last]
    fits = first >= 0 and last <= len(words) == len(numbers) and not np.any(np.diff(starts) < 0)
    fits = fits and doc_prior.size <= shape[1] and gamma.shape == shape
    if not fits or any(len(part) and part.shape != shape for part in others):
        raise ValueError(f"documents, topics {topics.shape} and tables of documents {shape} must fit each other")
    if len(used) and not 0 <= used.min() <= used.max() < len(topics):
        raise ValueError(f"words must be rows of the topics, of which there are {len(topics)}")
    if n_sweeps > MAX_SWEEPS:
        raise ValueError(f"n_sweeps must be at most {MAX_SWEEPS}, got {n_sweeps}")


# --- conversion of inputs and outputs


def padded(n_topics: int) -> int:
    """Return the number of columns of tables for ``n_topics`` topics."""
    return -(-n_topics // SPAN) * SPAN


def as_table(topics: Reals) -> Singles:
    """Convert a table of words by topics to single precision, padded with zeros."""
    table = np.zeros((len(topics), padded(topics.shape[1])), np.float32)
    table[:, : topics.shape[1]] = topics
    return table


def lengths_of(documents: WordCounts) -> Floats:
    """Return the number of words of each document, which may be on a device, shape (N,)."""
    starts, numbers = to_host(documents.starts), documents.numbers
    first, last = int(starts[0]), int(starts[-1])
    if is_plain(numbers):
        sums = np.concatenate([[0.0], np.cumsum(numbers[first:last], dtype=np.float64)])
        return np.diff(sums[starts - first])
    xp = namespace_of(numbers)
    zero = xp.zeros(1, dtype=xp.float64, device=numbers.device)
    ends = xp.concat([zero, xp.cumulative_sum(xp.astype(numbers[first:last], xp.float64))])
    return np.diff(to_host(xp.take(ends, documents.starts - first)))


def even_gamma(lengths: Floats, doc_prior: Floats) -> Singles:
    """Return the initial gamma of label-free inference, with equal topic shares, shape (N, columns)."""
    K = len(doc_prior)
    gamma = np.zeros((len(lengths), padded(K)), np.float32)
    gamma[:, :K] = doc_prior + lengths[:, None] / K
    return gamma


def log_likelihoods(logs: Floats, gamma: Floats, lengths: Floats) -> Floats:
    """Return E[log p(w, z | theta) - log q(z)] of each document, docs/math.md eq. (68), shape (N,).

    Parameters
    ----------
    logs : (N,)
        As from `meanfield_sweeps`, without the normalizers of E[log theta].
    gamma : (N, K)
    lengths : (N,)
    """
    return logs - lengths * digamma(gamma.sum(axis=1))


def proportion_divergences(gamma: Floats, doc_prior: Floats) -> Floats:
    """Return the KL divergence of each document's Dirichlet distribution from the prior, shape (N,)."""
    total = gamma.sum(axis=1)
    expected = digamma(gamma) - digamma(total)[:, None]
    found = gammaln(total) - np.sum(gammaln(gamma), axis=1)
    found -= gammaln(doc_prior.sum()) - np.sum(gammaln(doc_prior))
    return found + np.sum((gamma - doc_prior) * expected, axis=1)
