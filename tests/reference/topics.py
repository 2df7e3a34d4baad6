"""Collapsed Gibbs sampling of supervised topic models in plain NumPy, one token at a time."""

from __future__ import annotations

import numpy as np

from regbayes._types import Singles
from regbayes.kernels.topics import WeightStatistics
from regbayes.kernels.types import Tilt, Tokens, TopicCounts


def reference_sample_topics(
    tokens: Tokens,
    first_run: int,
    last_run: int,
    tilt: Tilt,
    doc_prior: float,
    word_prior: float,
    uniforms: Singles,
    counts: TopicCounts,
) -> int:
    """`sample_topics` in plain NumPy."""
    n_changed, offset = 0, tokens.starts[first_run]
    n_topics = counts.topic_total.size
    weights = tilt.weights[:, :n_topics].astype(np.float64)
    mass = word_prior * counts.word_topic.shape[0]
    for run in range(first_run, last_run):
        document = tokens.documents[run]
        linear, quadratic = tilt.linear[document], tilt.quadratic[document]
        in_document = counts.doc_topic[document, :n_topics]
        for i in range(tokens.starts[run], tokens.starts[run + 1]):
            old, of_word = counts.topics[i], counts.word_topic[tokens.words[i], :n_topics]
            for table in (in_document, of_word, counts.topic_total):
                table[old] -= 1
            scores = ((weights @ in_document)[:, None] + weights) / tilt.lengths[document]
            exponent = linear @ scores - 0.5 * quadratic @ scores**2
            p = (in_document + doc_prior) * (of_word + word_prior) / (counts.topic_total + mass)
            p = np.cumsum(p * np.exp(exponent - exponent.max()))
            new = min(int(np.searchsorted(p, uniforms[i - offset] * p[-1], side="right")), n_topics - 1)
            for table in (in_document, of_word, counts.topic_total):
                table[new] += 1
            counts.topics[i] = new
            n_changed += int(new != old)
    return n_changed


def reference_weight_statistics(tilt: Tilt, counts: TopicCounts) -> WeightStatistics:
    """`weight_statistics` in plain NumPy."""
    proportions = counts.doc_topic[:, : counts.topic_total.size] / tilt.lengths[:, None]
    precision = np.einsum("dl,dj,dk->ljk", tilt.quadratic, proportions, proportions)
    return WeightStatistics(precision, tilt.linear.T @ proportions)
