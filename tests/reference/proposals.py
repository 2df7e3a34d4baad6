"""Topic proposals and their acceptance in plain NumPy, one token at a time."""

from __future__ import annotations

import numpy as np

from regbayes._types import Floats, Singles
from regbayes.kernels._exponential import LOWEST
from regbayes.kernels.proposals import WordLists
from regbayes.kernels.types import Tilt, Tokens, TopicCounts


def reference_list_words(counts: TopicCounts) -> WordLists:
    """`list_words` in plain NumPy."""
    rows = counts.word_topic[:, : counts.topic_total.size]
    room = np.minimum(rows.sum(axis=1, dtype=np.int64), rows.shape[1])
    starts = np.concatenate([[0], np.cumsum(room)])
    topics, numbers = np.zeros(starts[-1], np.int16), np.zeros(starts[-1], np.int32)
    for word, row in enumerate(rows):
        present = np.flatnonzero(row)
        listed = slice(starts[word], starts[word] + len(present))
        topics[listed], numbers[listed] = present, row[present]
    return WordLists(starts, topics, numbers, np.count_nonzero(rows, axis=1).astype(np.int32))


def reference_propose_topics(
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
) -> int:
    """`propose_topics` in plain NumPy."""
    n_changed, offset = 0, tokens.starts[first_run]
    n_topics = counts.topic_total.size
    weights = tilt.weights[:, :n_topics].astype(np.float64)
    mass = word_prior * counts.word_topic.shape[0]
    for run in range(first_run, last_run):
        document = tokens.documents[run]
        linear, quadratic, length = tilt.linear[document], tilt.quadratic[document], tilt.lengths[document]
        in_document, current = counts.doc_topic[document, :n_topics], scores[document]
        bend = 0.5 * (quadratic @ weights**2) / length**2
        for begin, end in portions(tokens.starts[run], tokens.starts[run + 1], length, portion, len(linear)):
            inside = weights[:, counts.topics[begin:end]].sum(axis=1)
            guess = (current - inside / length) * (length - 1) / max(length - (end - begin), 1)
            exponent = ((linear - quadratic * guess) @ weights) / length - bend
            exponent = np.maximum(exponent - exponent.max(), LOWEST)
            for i in range(begin, end):
                old, of_word = counts.topics[i], counts.word_topic[tokens.words[i], :n_topics]
                for table in (in_document, of_word, counts.topic_total):
                    table[old] -= 1
                side = (in_document + doc_prior) / (counts.topic_total + mass) * np.exp(exponent)
                new = _draw_of_two(uniforms[0, i - offset], side * of_word, side * word_prior)
                step = (weights[:, new] - weights[:, old]) / length
                true_change = step @ (linear - quadratic * (current + 0.5 * step))
                if np.log(max(uniforms[1, i - offset], 1e-38)) >= true_change - exponent[new] + exponent[old]:
                    new = old
                elif new != old:
                    current += step
                    n_changed += 1
                for table in (in_document, of_word, counts.topic_total):
                    table[new] += 1
                counts.topics[i] = new
    return n_changed


def portions(begin: int, end: int, length: int, portion: int, n_responses: int) -> list[tuple[int, int]]:
    """Cut a run of a document into the portions of `propose_topics`."""
    size = max(1, min(portion, length // 4)) if n_responses else max(1, end - begin)
    return [(first, min(first + size, end)) for first in range(begin, end, size)]


def _draw_of_two(uniform: float, first: Floats, second: Floats) -> int:
    """Draw from the sum of two rows of weights: the uniform number stands for places in the first, then the second."""
    left = uniform * (first.sum() + second.sum())
    row = first if left < first.sum() else second
    left -= 0.0 if row is first else first.sum()
    return min(int(np.searchsorted(np.cumsum(row), left, side="right")), len(row) - 1)
