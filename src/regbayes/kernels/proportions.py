"""Passes over documents: what their topic proportions say about the weights, and proportions of new ones."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from regbayes._types import Floats, Indices, Singles
from regbayes.kernels._compile import compiled
from regbayes.kernels.chunks import map_chunks, map_tasks
from regbayes.kernels.types import CountTable, Tilt, TopicCounts, Words, read_only

_ZERO = np.float32(0.0)


class WeightStatistics(NamedTuple):
    """Sums over documents that the weights' normal distribution needs, with proportions ``m = counts / length``."""

    precision: Floats
    """(responses, topics, topics): ``sum_d quadratic_dl m_d m_d'``."""
    linear: Floats
    """(responses, topics): ``sum_d linear_dl m_d``."""


class WeightPrior(NamedTuple):
    """What is known of single weights before the documents: ``exp(linear w - precision w^2 / 2)`` for each."""

    precision: Floats
    """(responses, topics)"""
    linear: Floats
    """(responses, topics)"""


# --- The law, in plain NumPy


def reference_weight_statistics(tilt: Tilt, counts: TopicCounts) -> WeightStatistics:
    """`weight_statistics` in plain NumPy: the law."""
    proportions = counts.doc_topic[:, : counts.topic_total.size] / tilt.lengths[:, None]
    precision = np.einsum("dl,dj,dk->ljk", tilt.quadratic, proportions, proportions)
    return WeightStatistics(precision, tilt.linear.T @ proportions)


def reference_sweep_weights(
    tilt: Tilt,
    counts: TopicCounts,
    prior: WeightPrior,
    normals: Floats,
    weights: Floats,
    scores: Floats,
) -> None:
    """`sweep_weights` in plain NumPy: the law."""
    n_topics = counts.topic_total.size
    shares = counts.doc_topic[:, :n_topics] / tilt.lengths[:, None]
    directions = np.vstack([np.ones(n_topics), np.eye(n_topics)])
    for response in range(len(weights)):
        quadratic, score, w = tilt.quadratic[:, response], scores[:, response], weights[response]
        for direction, normal in zip(directions, np.roll(normals[response], 1), strict=True):
            along = shares @ direction
            slope = along @ (tilt.linear[:, response] - quadratic * score)
            slope += direction @ (prior.linear[response] - prior.precision[response] * w)
            precision = quadratic @ along**2 + prior.precision[response] @ direction**2
            change = slope / precision + normal / np.sqrt(precision)
            w += change * direction
            score += change * along


def reference_infer_proportions(
    words: Words,
    numbers: Singles,
    starts: Indices,
    word_given_topic: Singles,
    doc_prior: float,
    max_sweeps: int,
    tol: float,
    out: Floats,
) -> int:
    """`infer_proportions` in plain NumPy: the law."""
    n_topics, slowest = out.shape[1], 0
    topics = word_given_topic[:, :n_topics].astype(np.float64)
    for document in range(len(starts) - 1):
        entries = slice(starts[document], starts[document + 1])
        number, p = numbers[entries].astype(np.float64), topics[words[entries]]
        length = number.sum()
        out[document] = length / n_topics
        for sweep in range(max_sweeps if length > 0 else 0):
            weight = (out[document] + doc_prior) * p
            found = (number / weight.sum(axis=1)) @ weight
            change = np.abs(found - out[document]).sum()
            out[document] = found
            slowest = max(slowest, sweep + 1)
            if change <= tol * length:
                break
    return slowest


# --- The compiled loops


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


_MOST_CELLS = 4_000_000  # of a sum of its own for each part of the documents


_N_PARTS = 4


def weight_statistics(tilt: Tilt, counts: TopicCounts, n_threads: int = 1) -> WeightStatistics:
    """Sum over documents what the weights' normal distribution needs, docs/math.md eq. (55).

    Topics that a document does not have cost nothing.

    Parameters
    ----------
    tilt, counts
        Documents, with their tilts. The weights of the tilt are not used.
    n_threads : int
        Does not change the result.
    """
    n_topics, (n_documents, n_responses) = counts.topic_total.size, tilt.linear.shape
    n_parts = _N_PARTS if n_topics * n_topics * n_responses <= _MOST_CELLS else 1
    precision, sums = np.zeros((n_parts, n_topics, n_topics, n_responses)), np.zeros((n_parts, n_topics, n_responses))
    bounds = np.linspace(0, n_documents, n_parts + 1).astype(np.int64)
    doc_topic, lengths = read_only(counts.doc_topic), read_only(tilt.lengths)
    linear, quadratic = read_only(tilt.linear), read_only(tilt.quadratic)

    def work(part: int) -> None:
        rows = int(bounds[part]), int(bounds[part + 1])
        _sum_documents(doc_topic, lengths, linear, quadratic, *rows, precision[part], sums[part])

    map_tasks(work, n_parts, n_threads)
    for part in range(1, n_parts):
        precision[0] += precision[part]
    full = np.ascontiguousarray(np.moveaxis(precision[0], 2, 0))
    for of_response in full:
        of_response += np.triu(of_response, 1).T
    return WeightStatistics(full, np.ascontiguousarray(sums.sum(axis=0).T))


@compiled
def _topic_columns(
    doc_topic: CountTable,
    lengths: Indices,
    starts: Indices,
    documents: NDArray[np.int32],
    shares: Floats,
    whole: Floats,
) -> None:
    """Write the documents of each topic and its shares in them; ``starts`` are moved to the ends.

    ``whole`` are the shares of all topics together: 1, but 0 in an empty document.
    """
    for document in range(doc_topic.shape[0]):
        whole[document] = 0.0
        for k in range(starts.size):
            if doc_topic[document, k]:
                whole[document] = 1.0
                documents[starts[k]] = document
                shares[starts[k]] = doc_topic[document, k] / lengths[document]
                starts[k] += 1


@compiled
def _sweep_weights(
    starts: Indices,
    documents: NDArray[np.int32],
    shares: Floats,
    whole: Floats,
    linear: Floats,
    quadratic: Floats,
    prior_precision: Floats,
    prior_linear: Floats,
    normals: Floats,
    first: int,
    last: int,
    weights: Floats,
    scores: Floats,
) -> None:
    """Sweep over the weights of responses ``first`` to ``last``; see `sweep_weights`."""
    n_topics = starts.size - 1
    slope, precision, change = np.empty(last - first), np.empty(last - first), np.empty(last - first)
    for position in range(-1, n_topics):
        k = position if position >= 0 else n_topics  # the shift of all weights comes first
        for r in range(last - first):
            known, load, row = prior_linear[first + r], prior_precision[first + r], weights[first + r]
            slope[r], precision[r] = 0.0, 0.0
            for j in range(0 if position < 0 else k, n_topics if position < 0 else k + 1):
                slope[r] += known[j] - load[j] * row[j]
                precision[r] += load[j]
        begin, end = (starts[k], starts[k + 1]) if position >= 0 else (0, linear.shape[0])
        for e in range(begin, end):
            document, share = (documents[e], shares[e]) if position >= 0 else (np.int32(e), whole[e])
            for r in range(last - first):
                b = quadratic[document, first + r] * share
                slope[r] += share * linear[document, first + r] - b * scores[document, first + r]
                precision[r] += b * share
        for r in range(last - first):
            change[r] = slope[r] / precision[r] + normals[first + r, k] / np.sqrt(precision[r])
            if position >= 0:
                weights[first + r, k] += change[r]
            else:
                for j in range(n_topics):
                    weights[first + r, j] += change[r]
        for e in range(begin, end):
            document, share = (documents[e], shares[e]) if position >= 0 else (np.int32(e), whole[e])
            for r in range(last - first):
                scores[document, first + r] += share * change[r]


def sweep_weights(
    tilt: Tilt,
    counts: TopicCounts,
    prior: WeightPrior,
    normals: Floats,
    weights: Floats,
    scores: Floats,
    n_threads: int = 1,
) -> None:
    """Draw weights one after another from their normal distributions given all others, docs/math.md eq. (55).

    First all weights of a response are shifted together, which moves all scores alike and what single weights do
    slowly; then comes topic after topic. Only documents that have the topic count, so a sweep costs what the shares of
    topics have entries.

    Parameters
    ----------
    tilt, counts
        Documents, with their tilts. The weights of the tilt are not used.
    prior : WeightPrior
    normals : (responses, topics + 1)
        Standard normal draws; the last is for the shift.
    weights : (responses, topics)
        Written.
    scores : (documents, responses)
        Of these weights. Written.
    n_threads : int
        Does not change the result.
    """
    n_topics, n_responses = counts.topic_total.size, len(weights)
    present = np.count_nonzero(counts.doc_topic[:, :n_topics], axis=0)
    starts = np.concatenate([[0], np.cumsum(present)]).astype(np.int64)
    documents, shares, whole = np.empty(starts[-1], np.int32), np.empty(starts[-1]), np.empty(len(scores))
    _topic_columns(read_only(counts.doc_topic), read_only(tilt.lengths), starts[:-1].copy(), documents, shares, whole)
    bounds = np.linspace(0, n_responses, min(_N_PARTS, n_responses) + 1).astype(np.int64)

    def work(part: int) -> None:
        _sweep_weights(
            read_only(starts),
            read_only(documents),
            read_only(shares),
            read_only(whole),
            read_only(tilt.linear),
            read_only(tilt.quadratic),
            read_only(prior.precision),
            read_only(prior.linear),
            read_only(normals),
            int(bounds[part]),
            int(bounds[part + 1]),
            weights,
            scores,
        )

    map_tasks(work, len(bounds) - 1, n_threads)


@compiled
def _infer_documents(
    words: Words,
    numbers: Singles,
    starts: Indices,
    topics: Singles,
    doc_prior: float,
    max_sweeps: int,
    tol: float,
    out: Floats,
    first: int,
    last: int,
) -> int:
    """Infer some documents; see `infer_proportions`."""
    n_topics, n_columns = out.shape[1], topics.shape[1]
    alpha = np.float32(doc_prior)
    current, found = np.empty(n_columns, np.float32), np.empty(n_columns, np.float32)
    slowest = 0
    for document in range(first, last):
        length = _ZERO
        for i in range(starts[document], starts[document + 1]):
            length += numbers[i]
        for k in range(n_columns):
            current[k] = length / np.float32(n_topics) + alpha
        for sweep in range(max_sweeps if length > 0 else 0):
            for k in range(n_columns):
                found[k] = _ZERO
            for i in range(starts[document], starts[document + 1]):
                row = topics[words[i]]
                total = _ZERO
                for k in range(n_columns):
                    total += current[k] * row[k]
                factor = numbers[i] / total
                for k in range(n_columns):
                    found[k] += row[k] * factor
            change = _ZERO
            for k in range(n_columns):
                value = found[k] * current[k] + alpha
                change += abs(value - current[k])
                current[k] = value
            slowest = max(slowest, sweep + 1)
            if change <= tol * length:
                break
        for k in range(n_topics):
            out[document, k] = current[k] - alpha
    return slowest


def infer_proportions(
    words: Words,
    numbers: Singles,
    starts: Indices,
    word_given_topic: Singles,
    doc_prior: float,
    max_sweeps: int,
    tol: float,
    out: Floats,
    n_threads: int = 1,
) -> int:
    """Write the expected number of each document's tokens in each topic, given the topics alone.

    A sweep sets ``n_k = sum_w number_w r_wk`` with ``r_wk`` proportional to ``(n_k + doc_prior) p(w | k)``, all words
    at once, docs/math.md eq. (56). A document is done when the absolute changes of its n sum to at most ``tol``
    times its length. Single precision.

    Parameters
    ----------
    words, numbers : (entries,)
        Words of the documents and how often they occur.
    starts : (documents + 1,)
        Where documents begin among the entries.
    word_given_topic : (vocabulary, columns)
        Positive, except for padding.
    doc_prior : float
    max_sweeps : int
    tol : float
    out : (documents, topics)
        Written; zero for empty documents.
    n_threads : int
        Does not change the result.

    Returns
    -------
    int
        The sweeps that the slowest document took.
    """
    words, numbers, starts, topics = (
        read_only(words),
        read_only(numbers),
        read_only(starts),
        read_only(word_given_topic),
    )

    def work(_chunk: int, first: int, last: int) -> int:
        return _infer_documents(
            words, numbers, starts, topics, float(doc_prior), max_sweeps, float(tol), out, first, last
        )

    return max(map_chunks(work, len(starts) - 1, n_threads), default=0)
