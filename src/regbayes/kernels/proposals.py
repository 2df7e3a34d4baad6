"""Topic sweeps for many topics: proposals from short lists of words' topics, accepted or not.

The weights of a proposal are a row that belongs to the document times one that belongs to the word. The document's is
kept from token to token. Of the word's only the topics that it has are visited, in a short list, and what is left, the
prior of words, is one sum over topics that is kept too. The row of a word that has many topics is read as a whole,
which the compiler vectorises. So a token costs what its word has topics, and all topics are gone through only where a
portion of a document begins.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from regbayes._types import Floats, Indices, Singles
from regbayes.kernels._compile import compiled, compiled_inline, read_only
from regbayes.kernels._exponential import LOWEST, exp
from regbayes.kernels.types import Assignments, CountTable, Tilt, Tokens, TopicCounts, Words

_ZERO = np.float32(0.0)
_GROUP = 32  # topics that are summed together, so that looking up a draw takes two short walks
_DENSE_SHARE = 4  # a word with more than a quarter of the topics is read as a row


class WordLists(NamedTuple):
    """The topics of each word with their counts, in short lists: word w begins at ``starts[w]``, topics ascend."""

    starts: Indices
    """(words + 1,): room for as many topics as the word can ever have."""
    topics: Assignments
    """(room,)"""
    numbers: Words
    """(room,)"""
    sizes: Words
    """(words,): how many topics are listed; negative for a word that has so many that its row is read instead."""


@compiled
def _fill_lists(
    word_topic: CountTable, n_topics: int, starts: Indices, topics: Assignments, numbers: Words, sizes: Words
) -> None:
    for word in range(word_topic.shape[0]):
        row, n_present = word_topic[word], 0
        for k in range(n_topics):
            n_present += row[k] > 0
        if n_present * _DENSE_SHARE > n_topics:
            sizes[word] = -1
            continue
        at = starts[word]
        sizes[word] = n_present
        for k in range(n_topics):
            if row[k] > 0:
                topics[at] = k
                numbers[at] = row[k]
                at += 1


def list_words(counts: TopicCounts) -> WordLists:
    """List the topics of each word; one that has many is left out."""
    n_topics = counts.topic_total.size
    room = np.minimum(counts.word_topic[:, :n_topics].sum(axis=1, dtype=np.int64), n_topics)
    starts = np.concatenate([[0], np.cumsum(room)])
    topics, numbers = np.zeros(starts[-1], np.int16), np.zeros(starts[-1], np.int32)
    lists = WordLists(starts, topics, numbers, np.empty(len(room), np.int32))
    _fill_lists(read_only(counts.word_topic), n_topics, read_only(starts), topics, numbers, lists.sizes)
    return lists


@compiled_inline
def _shift_list(topics: Assignments, numbers: Words, at: int, size: int, left: int, entered: int) -> int:
    """Take one token out of the listed topic ``left``, whose count is down by one already, and put it into another.

    Returns the new size of the list.
    """
    e = at
    while topics[e] != left:
        e += 1
    if numbers[e] == 0:
        size -= 1
        for f in range(e, at + size):
            topics[f] = topics[f + 1]
            numbers[f] = numbers[f + 1]
    e = at
    while e < at + size and topics[e] < entered:
        e += 1
    if e < at + size and topics[e] == entered:
        numbers[e] += 1
        return size
    for f in range(at + size, e, -1):
        topics[f] = topics[f - 1]
        numbers[f] = numbers[f - 1]
    topics[e] = entered
    numbers[e] = 1
    return size + 1


@compiled_inline
def _walk(left: Any, values: Singles, first: int, last: int) -> int:
    """Return the place in [first, last) where the running sum of values passes ``left``."""
    k = first
    while k < last - 1 and left >= values[k]:
        left -= values[k]
        k += 1
    return k


@compiled_inline
def _walk_groups(left: Any, values: Singles, groups: Singles, n_topics: int) -> int:
    """As `_walk`, over all topics, with the sums of groups of them known."""
    g = 0
    while g < groups.size - 1 and left >= groups[g]:
        left -= groups[g]
        g += 1
    return _walk(left, values, g * _GROUP, min((g + 1) * _GROUP, n_topics))


@compiled_inline
def _sum_groups(values: Singles, groups: Singles) -> Any:
    """Write the sums of groups; return the sum of all."""
    total = _ZERO
    for g in range(groups.size):
        part = _ZERO
        for k in range(g * _GROUP, min((g + 1) * _GROUP, values.size)):
            part += values[k]
        groups[g] = part
        total += part
    return total


@compiled_inline
def _add_rows(weights: Singles, slopes: Singles, out: Singles) -> None:
    """Add ``sum_l slope_l w_lk`` to ``out``, four rows at a time to spare the memory of ``out``."""
    n_topics, n_responses = weights.shape[1], weights.shape[0]
    row = 0
    while row + 4 <= n_responses:
        a0, a1, a2, a3 = slopes[row], slopes[row + 1], slopes[row + 2], slopes[row + 3]
        for k in range(n_topics):
            out[k] += (
                a0 * weights[row, k] + a1 * weights[row + 1, k] + a2 * weights[row + 2, k] + a3 * weights[row + 3, k]
            )
        row += 4
    while row < n_responses:
        for k in range(n_topics):
            out[k] += slopes[row] * weights[row, k]
        row += 1


@compiled_inline
def _exponents(
    scores: Floats,
    inside: Floats,
    length: int,
    n_inside: int,
    linear: Floats,
    quadratic: Floats,
    weights: Singles,
    bend: Singles,
    slopes: Singles,
    n_topics: int,
    exponent: Singles,
) -> None:
    """Write the exponents of a portion's proposals, at most zero: the tilt where the document's other tokens put it."""
    rest, per_token = max(length - n_inside, 1), 1.0 / length
    for response in range(slopes.size):
        guess = (scores[response] - inside[response] * per_token) * (length - 1) / rest
        slopes[response] = (linear[response] - quadratic[response] * guess) * per_token
    for k in range(bend.size):
        exponent[k] = bend[k]
    _add_rows(weights, slopes, exponent)
    highest = np.float32(-np.inf)
    for k in range(n_topics):
        highest = max(highest, exponent[k])
    for k in range(exponent.size):
        exponent[k] = min(max(exponent[k] - highest, LOWEST), _ZERO)


@compiled
def _propose_runs(
    words: Words,
    documents: Words,
    starts: Indices,
    first_run: int,
    last_run: int,
    lengths: Indices,
    linear: Floats,
    quadratic: Floats,
    weights: Singles,
    squares: Singles,
    loads: Singles,
    scores: Floats,
    portion: int,
    doc_prior: float,
    word_prior: float,
    uniforms: Singles,
    topics: Assignments,
    doc_topic: CountTable,
    word_topic: CountTable,
    topic_total: Indices,
    list_starts: Indices,
    list_topics: Assignments,
    list_numbers: Words,
    list_sizes: Words,
) -> int:
    """Sweep over the runs of a block; see `propose_topics`. ``loads`` are the weights, transposed."""
    n_columns, n_responses, n_topics = doc_topic.shape[1], weights.shape[0], topic_total.size
    n_groups = (n_columns + _GROUP - 1) // _GROUP
    alpha, beta = np.float32(doc_prior), np.float32(word_prior)
    mass = np.float64(word_prior) * word_topic.shape[0]
    inverse = np.zeros(n_columns, np.float32)
    for k in range(n_topics):
        inverse[k] = np.float32(1.0 / (topic_total[k] + mass))
    bend, exponent = np.zeros(n_columns, np.float32), np.zeros(n_columns, np.float32)
    factor, side, p = np.ones(n_columns, np.float32), np.zeros(n_columns, np.float32), np.zeros(n_columns, np.float32)
    groups, word_groups = np.empty(n_groups, np.float32), np.empty(n_groups, np.float32)
    slopes, pull = np.empty(n_responses, np.float32), np.empty(n_responses)
    inside, step = np.empty(n_responses), np.empty(n_responses)
    n_changed, offset = 0, starts[first_run]
    for run in range(first_run, last_run):
        document = documents[run]
        counts, length = doc_topic[document], lengths[document]
        of_linear, of_quadratic, current = linear[document], quadratic[document], scores[document]
        per_token = 1.0 / length
        size = max(1, min(portion, length // 4)) if n_responses else starts[run + 1] - starts[run]
        for response in range(n_responses):
            slopes[response] = -0.5 * of_quadratic[response] * per_token * per_token
            pull[response] = of_linear[response] - of_quadratic[response] * current[response]
        for k in range(n_columns):
            bend[k] = _ZERO
        _add_rows(squares, slopes, bend)
        begin, run_end = starts[run], starts[run + 1]
        while begin < run_end:
            end = min(begin + size, run_end)
            if n_responses:
                for response in range(n_responses):
                    inside[response] = 0.0
                for i in range(begin, end):
                    load = loads[topics[i]]
                    for response in range(n_responses):
                        inside[response] += load[response]
                rest = end - begin, of_linear, of_quadratic, weights, bend, slopes, n_topics
                _exponents(current, inside, length, *rest, exponent)
                for k in range(n_columns):
                    factor[k] = exp(exponent[k])
            for k in range(n_columns):
                side[k] = (np.float32(counts[k]) + alpha) * inverse[k] * factor[k]
            smooth = _sum_groups(side, groups)
            for i in range(begin, end):
                old, word = int(topics[i]), words[i]
                counts[old] -= 1
                topic_total[old] -= 1
                inverse[old] = np.float32(1.0 / (topic_total[old] + mass))
                value = (np.float32(counts[old]) + alpha) * inverse[old] * factor[old]
                smooth += value - side[old]
                groups[old // _GROUP] += value - side[old]
                side[old] = value
                # --- the topics that the word has
                at, n_listed = list_starts[word], list_sizes[word]
                counted = word_topic[word]
                if n_listed >= 0:
                    where = at
                    while list_topics[where] != old:
                        where += 1
                    list_numbers[where] -= 1
                    of_word = _ZERO
                    for e in range(n_listed):
                        p[e] = side[list_topics[at + e]] * np.float32(list_numbers[at + e])
                        of_word += p[e]
                else:
                    counted[old] -= 1
                    for k in range(n_columns):
                        p[k] = side[k] * np.float32(counted[k])
                    of_word = _sum_groups(p, word_groups)
                # --- the proposal
                left = uniforms[0, i - offset] * (of_word + beta * smooth)
                if left >= of_word:
                    new = _walk_groups((left - of_word) / beta, side, groups, n_topics)
                elif n_listed >= 0:
                    new = int(list_topics[at + _walk(left, p, 0, n_listed)])
                else:
                    new = _walk_groups(left, p, word_groups, n_topics)
                # --- is it accepted?
                if new != old:
                    gain = np.float64(exponent[old]) - np.float64(exponent[new])
                    before, after = loads[old], loads[new]
                    for response in range(n_responses):
                        move = (np.float64(after[response]) - np.float64(before[response])) * per_token
                        gain += move * (pull[response] - 0.5 * of_quadratic[response] * move)
                        step[response] = move
                    if gain >= 0.0 or uniforms[1, i - offset] < np.exp(gain):
                        n_changed += 1
                        topics[i] = new
                        for response in range(n_responses):
                            pull[response] -= of_quadratic[response] * step[response]
                            current[response] += step[response]
                    else:
                        new = old
                # --- the token back into the counts
                counts[new] += 1
                topic_total[new] += 1
                inverse[new] = np.float32(1.0 / (topic_total[new] + mass))
                value = (np.float32(counts[new]) + alpha) * inverse[new] * factor[new]
                smooth += value - side[new]
                groups[new // _GROUP] += value - side[new]
                side[new] = value
                if n_listed < 0:
                    counted[new] += 1
                elif new == old:
                    list_numbers[where] += 1
                else:
                    counted[old] -= 1
                    counted[new] += 1
                    list_sizes[word] = _shift_list(list_topics, list_numbers, at, n_listed, old, new)
            begin = end
    return n_changed


def propose_topics(
    tokens: Tokens,
    first_run: int,
    last_run: int,
    tilt: Tilt,
    scores: Floats,
    portion: int,
    doc_prior: float,
    word_prior: float,
    uniforms: Singles,
    counts: TopicCounts,
    lists: WordLists,
) -> int:
    """As `sample_topics`, with a tilt that is proposed and then accepted, for many topics and responses.

    The proposal has the weights of `sample_topics`, with the slope of the tilt at a guess in the place of the
    document's score without the token, and a Metropolis-Hastings step corrects for it, docs/math.md eq. (58). Tokens
    are taken in portions, and the guess is what the document's tokens outside the portion say: proposals do not depend
    on the topic that they replace, so the distribution that is left invariant is the same.

    Parameters
    ----------
    tokens, first_run, last_run, tilt, doc_prior, word_prior, counts
        As in `sample_topics`.
    scores : (documents, responses)
        Of the current topics. Written.
    portion : int
        Tokens that share a guess; less in a document that has less than four times as many. Without responses there is
        nothing to guess.
    uniforms : (2, tokens of the runs)
        In [0, 1): for proposals and for acceptances.
    lists : WordLists
        Of ``counts.word_topic``, from `list_words`. Kept up to date.

    Returns
    -------
    int
        How many tokens changed their topic.
    """
    loads: Singles = np.ascontiguousarray(tilt.weights.T)
    return _propose_runs(
        read_only(tokens.words),
        read_only(tokens.documents),
        read_only(tokens.starts),
        first_run,
        last_run,
        read_only(tilt.lengths),
        read_only(tilt.linear),
        read_only(tilt.quadratic),
        read_only(tilt.weights),
        read_only(tilt.weights**2),
        read_only(loads),
        scores,
        portion,
        float(doc_prior),
        float(word_prior),
        read_only(uniforms),
        *counts,
        read_only(lists.starts),
        lists.topics,
        lists.numbers,
        lists.sizes,
    )
