"""Collapsed Gibbs sampling of supervised topic models.

A token's topic is drawn given all others, reweighted by an exponential of a quadratic in the topic proportions of its
document. The weights of all topics of a token are computed in one vectorized pass over contiguous rows of counts. For
usual numbers of topics this is faster than sparse lists. The contribution of the quadratic is cached per document.
Removing a token from topic k shifts it by a vector that depends only on the document and k, which is computed once for
each occurring topic.

Weights are normal given the topics and are drawn from sums over documents.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from regbayes._types import Floats, Indices, Singles
from regbayes.kernels._compile import all_read_only, compiled, compiled_inline, read_only
from regbayes.kernels._exponential import exp
from regbayes.kernels.types import SPAN, Tilt, Tokens, TopicCounts

_ZERO = np.float32(0.0)


class WeightStatistics(NamedTuple):
    """Sums over documents for the weights, with shares ``m = counts / length``."""

    precision: Floats  # (responses, topics, topics): ``sum_d quadratic_dl m_d m_d'``
    linear: Floats  # (responses, topics): ``sum_d linear_dl m_d``


# --- Topics of tokens


@compiled_inline
def _write_rows(weights: Singles, slopes: Singles, bends: Singles, out: Singles) -> None:
    """Write ``out_k = sum_l w_lk (slope_l + bend_l w_lk)``, four rows at a time to reduce memory traffic."""
    n_topics, n_responses = weights.shape[1], weights.shape[0]
    for k in range(n_topics):
        out[k] = _ZERO
    row = 0
    while row + 4 <= n_responses:
        a0, a1, a2, a3 = slopes[row], slopes[row + 1], slopes[row + 2], slopes[row + 3]
        b0, b1, b2, b3 = bends[row], bends[row + 1], bends[row + 2], bends[row + 3]
        for k in range(n_topics):
            w0, w1, w2, w3 = weights[row, k], weights[row + 1, k], weights[row + 2, k], weights[row + 3, k]
            out[k] += w0 * (a0 + b0 * w0) + w1 * (a1 + b1 * w1) + w2 * (a2 + b2 * w2) + w3 * (a3 + b3 * w3)
        row += 4
    while row < n_responses:
        a0, b0 = slopes[row], bends[row]
        for k in range(n_topics):
            out[k] += weights[row, k] * (a0 + b0 * weights[row, k])
        row += 1


@compiled_inline
def _tilt_of_document(
    counts: NDArray[np.int32],
    linear: Floats,
    quadratic: Floats,
    weights: Singles,
    per_token: float,
    slopes: Singles,
    bends: Singles,
    tilt: Singles,
) -> None:
    """Write the change of the exponent by an additional token in each topic, without removing one."""
    for response in range(weights.shape[0]):
        score = _ZERO
        for k in range(weights.shape[1]):
            score += weights[response, k] * np.float32(counts[k])
        slopes[response] = (linear[response] - quadratic[response] * np.float64(score) * per_token) * per_token
        bends[response] = -0.5 * quadratic[response] * per_token * per_token
    _write_rows(weights, slopes, bends, tilt)


@compiled_inline
def _shift_of_topic(
    topic: int,
    quadratic: Floats,
    weights: Singles,
    per_token: float,
    slopes: Singles,
    bends: Singles,
    shift: Singles,
) -> None:
    """Write the change of each topic's exponent when a token is removed from ``topic``."""
    for response in range(weights.shape[0]):
        slopes[response] = quadratic[response] * per_token * per_token * weights[response, topic]
        bends[response] = _ZERO
    _write_rows(weights, slopes, bends, shift)


@compiled_inline
def _draw(
    uniform: Any,
    counts: NDArray[np.int32],
    row: NDArray[np.int32],
    alpha: Any,
    beta: Any,
    inverse: Singles,
    factor: Singles,
    n_topics: int,
    p: Singles,
    sums: Singles,
) -> int:
    """Return the topic for a uniform draw; ``p`` and ``sums``, of all topics and of spans, are scratch.

    Sums over spans of topics make the lookup take a few steps.
    """
    total = _ZERO
    for s in range(sums.size):
        part = _ZERO
        for j in range(SPAN):
            k = s * SPAN + j
            value = (np.float32(counts[k]) + alpha) * (np.float32(row[k]) + beta) * (inverse[k] * factor[k])
            p[k] = value
            part += value
        sums[s] = part
        total += part
    left = uniform * total
    s = 0
    while s < sums.size - 1 and left >= sums[s]:
        left -= sums[s]
        s += 1
    k, last = s * SPAN, min((s + 1) * SPAN, n_topics) - 1
    while k < last and left >= p[k]:
        left -= p[k]
        k += 1
    return k


@compiled
def _sample_visits(
    words: NDArray[np.int32],
    documents: NDArray[np.int32],
    starts: Indices,
    first_visit: int,
    last_visit: int,
    lengths: Indices,
    linear: Floats,
    quadratic: Floats,
    weights: Singles,
    doc_prior: float,
    word_prior: float,
    uniforms: Singles,
    topics: NDArray[np.int16],
    doc_topic: NDArray[np.int32],
    word_topic: NDArray[np.int32],
    topic_total: Indices,
) -> int:
    """Sweep over the runs of a block; see `sample_topics`."""
    n_topics, n_responses = doc_topic.shape[1], weights.shape[0]  # includes padding topics, whose weights are zero
    alpha, beta = np.float32(doc_prior), np.float32(word_prior)
    mass = np.float64(word_prior) * word_topic.shape[0]
    inverse = np.empty(n_topics, np.float32)
    for k in range(n_topics):
        inverse[k] = np.float32(1.0 / (topic_total[k] + mass)) if k < topic_total.size else _ZERO
    p, tilt, factor = np.empty(n_topics, np.float32), np.empty(n_topics, np.float32), np.ones(n_topics, np.float32)
    slopes, bends = np.empty(n_responses, np.float32), np.empty(n_responses, np.float32)
    shifts = np.empty((n_topics if n_responses else 0, n_topics), np.float32)
    stamp = np.full(n_topics, -1, np.int64)
    sums = np.empty(n_topics // SPAN, np.float32)
    n_changed, offset = 0, starts[first_visit]
    for visit in range(first_visit, last_visit):
        document = documents[visit]
        counts = doc_topic[document]
        per_token = 1.0 / lengths[document]
        if n_responses:
            _tilt_of_document(counts, linear[document], quadratic[document], weights, per_token, slopes, bends, tilt)
        for i in range(starts[visit], starts[visit + 1]):
            old = int(topics[i])
            row = word_topic[words[i]]
            counts[old] -= 1
            row[old] -= 1
            topic_total[old] -= 1
            inverse[old] = np.float32(1.0 / (topic_total[old] + mass))
            if n_responses:
                if stamp[old] != visit:
                    _shift_of_topic(old, quadratic[document], weights, per_token, slopes, bends, shifts[old])
                    stamp[old] = visit
                shift = shifts[old]
                highest = np.float32(-np.inf)
                for k in range(topic_total.size):  # excludes padding, whose exponent may exceed all others
                    highest = max(highest, tilt[k] + shift[k])
                for k in range(topic_total.size):
                    factor[k] = exp(tilt[k] + shift[k] - highest)
            k = _draw(uniforms[i - offset], counts, row, alpha, beta, inverse, factor, topic_total.size, p, sums)
            if k != old:
                n_changed += 1
                topics[i] = k
                if n_responses:
                    if stamp[k] != visit:
                        _shift_of_topic(k, quadratic[document], weights, per_token, slopes, bends, shifts[k])
                        stamp[k] = visit
                    for j in range(n_topics):
                        tilt[j] += shifts[old, j] - shifts[k, j]
            counts[k] += 1
            row[k] += 1
            topic_total[k] += 1
            inverse[k] = np.float32(1.0 / (topic_total[k] + mass))
    return n_changed


def sample_topics(
    tokens: Tokens,
    first_run: int,
    last_run: int,
    tilt: Tilt,
    doc_prior: float,
    word_prior: float,
    uniforms: Singles,
    counts: TopicCounts,
) -> int:
    """Draw the topics of tokens sequentially from their conditional distributions given all others.

    The distribution over all assignments is that of latent Dirichlet allocation with symmetric priors, with proportions
    and topics integrated out, times the tilt of each document, docs/math.md eq. (53). After removing a token of word w
    in document d, topic k has the weight

        (doc_topic_dk + doc_prior) (word_topic_wk + word_prior) / (topic_total_k + words * word_prior)
        * exp(sum_l linear_l f_lk - quadratic_l f_lk^2 / 2),

    where ``f_lk`` is the score of the document with the token in topic k.

    Parameters
    ----------
    tokens, tilt
        The corpus and the tilts of its documents.
    first_run, last_run : int
        The runs to sweep over, half open.
    doc_prior, word_prior : float
        Positive.
    uniforms : (tokens of the runs,)
        In [0, 1): one draw per token.
    counts : TopicCounts
        Updated in place. ``word_topic`` may include tokens of other corpora.

    Returns
    -------
    int
        Number of tokens that changed their topic.
    """
    given: Any = *all_read_only(tokens), first_run, last_run, *all_read_only(tilt), float(doc_prior), float(word_prior)
    n_changed: int = _sample_visits(*(*given, read_only(uniforms), *counts))
    return n_changed


# --- Weights of topics


@compiled
def _sum_documents(
    doc_topic: NDArray[np.int32],
    lengths: Indices,
    linear: Floats,
    quadratic: Floats,
    first: int,
    last: int,
    precision: Floats,
    sums: Floats,
) -> None:
    """Add documents to ``precision`` (topics, topics, responses), its upper half, and to ``sums``."""
    n_topics, n_responses = sums.shape
    present, share = np.empty(n_topics, np.int64), np.empty(n_topics)
    for document in range(first, last):
        n_present = 0
        for k in range(n_topics):
            if doc_topic[document, k]:
                present[n_present] = k
                share[n_present] = doc_topic[document, k] / lengths[document]
                n_present += 1
        for a in range(n_present):
            target = sums[present[a]]
            for response in range(n_responses):
                target[response] += share[a] * linear[document, response]
            for b in range(a, n_present):
                cell, product = precision[present[a], present[b]], share[a] * share[b]
                for response in range(n_responses):
                    cell[response] += product * quadratic[document, response]


def weight_statistics(tilt: Tilt, counts: TopicCounts, rows: slice) -> WeightStatistics:
    """Return the sums over documents for the normal distribution of the weights, docs/math.md eq. (55).

    Topics without tokens in a document are skipped.

    Parameters
    ----------
    tilt, counts
        Documents with their tilts, whose weights are not used.
    rows : slice
        The documents to sum over.
    """
    n_topics, n_responses = counts.topic_total.size, tilt.linear.shape[1]
    precision, sums = np.zeros((n_topics, n_topics, n_responses)), np.zeros((n_topics, n_responses))
    known = all_read_only((counts.doc_topic, tilt.lengths, tilt.linear, tilt.quadratic))
    _sum_documents(*known, rows.start, rows.stop, precision, sums)
    full = np.ascontiguousarray(np.moveaxis(precision, 2, 0))
    for of_response in full:
        of_response += np.triu(of_response, 1).T
    return WeightStatistics(full, np.ascontiguousarray(sums.T))
