"""The records that topic kernels speak."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from regbayes._types import Floats, Indices, Singles

Words = NDArray[np.int32]
Assignments = NDArray[np.int16]
CountTable = NDArray[np.int32]

SPAN = 8
"""Tables of counts have a number of columns that is a multiple of this; columns beyond the topics stay zero."""

LOWEST_EXPONENT = -50.0
"""Relative to the highest. Much lower, products of it leave the normal numbers of single precision, on which arithmetic
crawls; a weight of exp(-50) is never drawn."""


def padded(n_topics: int) -> int:
    """Return the number of columns of tables for so many topics."""
    return -(-n_topics // SPAN) * SPAN


class Tokens(NamedTuple):
    """The tokens of a corpus, in runs that belong to one document each."""

    words: Words
    """(tokens,)"""
    documents: Words
    """(runs,): the document of each run."""
    starts: Indices
    """(runs + 1,): where runs begin among the tokens."""


class Layout(NamedTuple):
    """Tokens in blocks of a group of documents and a group of words each."""

    tokens: Tokens
    block_runs: Indices
    """(groups^2 + 1,): where blocks begin among the runs."""
    lengths: Indices
    """(documents,): tokens of each."""


class Places(NamedTuple):
    """Where documents, or words, go: group by group."""

    groups: Words
    """(documents or words,): the group of each."""
    places: Words
    """(documents or words,): the new number of each."""


class Tilt(NamedTuple):
    """A factor ``exp(sum_l linear_l f_l - quadratic_l f_l^2 / 2)`` per document, with scores f.

    The scores are ``weights @ (counts / length)``.
    """

    lengths: Indices
    """(documents,): tokens of each document, at least 1."""
    linear: Floats
    """(documents, responses)"""
    quadratic: Floats
    """(documents, responses): not negative."""
    weights: Singles
    """(responses, columns): padding is zero. No responses: no tilt."""


class TopicCounts(NamedTuple):
    """How many tokens have which topic; what a sweep writes."""

    topics: Assignments
    """(tokens,)"""
    doc_topic: CountTable
    """(documents, columns)"""
    word_topic: CountTable
    """(words, columns)"""
    topic_total: Indices
    """(topics,): not padded."""


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
