"""Compiled counting of tokens."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from regbayes.kernels._compile import compiled
from regbayes.kernels.types import Indices, read_only
from regbayes.kernels.types_topics import Assignments, CountTable, Tokens, Words


@compiled
def _tally(table: NDArray[np.signedinteger], found: Indices) -> None:
    n_zero = table.size
    for value in table:
        if value:  # most are zero, and adding to one place over and over waits for itself
            found[value] += 1
            n_zero -= 1
    found[0] = n_zero


def tally(table: CountTable | Indices) -> Indices:
    """Compiled twin of ``reference.tally``."""
    found = np.zeros(int(table.max()) + 1, dtype=np.int64)
    _tally(read_only(table.reshape(-1)), found)
    return found


@compiled
def _count_tokens(
    words: Words, documents: Words, starts: Indices, topics: Assignments, doc_topic: CountTable, word_topic: CountTable
) -> None:
    for run in range(documents.size):
        in_document = doc_topic[documents[run]]
        for i in range(starts[run], starts[run + 1]):
            in_document[topics[i]] += 1
            word_topic[words[i], topics[i]] += 1


def count_tokens(tokens: Tokens, topics: Assignments, doc_topic: CountTable, word_topic: CountTable) -> None:
    """Compiled twin of ``reference.count_tokens``."""
    _count_tokens(
        read_only(tokens.words),
        read_only(tokens.documents),
        read_only(tokens.starts),
        read_only(topics),
        doc_topic,
        word_topic,
    )
