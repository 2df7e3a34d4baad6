"""The records that mean-field kernels of topic models speak."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from regbayes._types import Indices, Singles

Words = NDArray[np.int32]

MOST_GROUPS = 8
ENTRIES_PER_WORD = 4  # entries of a group, at least, for each word of the vocabulary: its table must be worth its sum


class WordCounts(NamedTuple):
    """Documents in compressed rows: which words, and how often; numbers need not be whole."""

    words: Words
    """(entries,)"""
    numbers: Singles
    """(entries,): positive."""
    starts: Indices
    """(documents + 1,): where documents begin among the entries."""


class Prior(NamedTuple):
    """What is known of the topics when documents are inferred."""

    word_given_topic: Singles
    """(vocabulary, columns): not negative; padding is zero. Topics need not sum to one."""
    doc_prior: Singles
    """(topics,): positive Dirichlet parameters."""


def group_bounds(starts: Indices, n_words: int) -> list[tuple[int, int]]:
    """Cut documents into groups, each with a table of words by topics of its own: a function of the corpus alone."""
    n_documents, n_entries = len(starts) - 1, int(starts[-1])
    n_groups = int(np.clip(n_entries // max(ENTRIES_PER_WORD * n_words, 1 << 15), 1, MOST_GROUPS))
    cuts = np.searchsorted(starts, np.arange(1, n_groups) * (n_entries / n_groups))
    edges = [0, *np.minimum(cuts, n_documents).tolist(), n_documents]
    return list(pairwise(edges))
