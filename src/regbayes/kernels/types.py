"""Array types and records that several families of kernels share."""

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

SATISFIED = 1e-12
"""A row whose optimality conditions are violated by no more is left alone: the step would be rounding noise."""


class Tokens(NamedTuple):
    """The tokens of a corpus, in runs of one document each."""

    words: Words  # (tokens,)
    documents: Words  # (runs,): the document of each run
    starts: Indices  # (runs + 1,): where runs begin among the tokens


class Tilt(NamedTuple):
    """A factor ``exp(sum_l linear_l f_l - quadratic_l f_l^2 / 2)`` per document.

    The scores f are ``weights @ (counts / length)``.
    """

    lengths: Indices  # (documents,): tokens of each document, at least 1
    linear: Floats  # (documents, responses)
    quadratic: Floats  # (documents, responses): not negative
    weights: Singles  # (responses, columns): padding is zero. No responses: no tilt.


class TopicCounts(NamedTuple):
    """Counts of tokens by topic, updated in place by a sweep."""

    topics: Assignments  # (tokens,)
    doc_topic: CountTable  # (documents, columns)
    word_topic: CountTable  # (words, columns)
    topic_total: Indices  # (topics,): not padded
