"""Tokens of a corpus laid out and counted by NumPy's sorting and counting."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from regbayes._types import Indices
from regbayes.kernels.corpus import Layout, Places
from regbayes.kernels.types import Assignments, CountTable, Tokens


def reference_tally(table: CountTable | Indices) -> Indices:
    """`tally` in plain NumPy."""
    return np.bincount(table.ravel())


def reference_count_tokens(tokens: Tokens, topics: Assignments, doc_topic: CountTable, word_topic: CountTable) -> None:
    """`count_tokens` in plain NumPy."""
    np.add.at(doc_topic, (np.repeat(tokens.documents, np.diff(tokens.starts)), topics), 1)
    np.add.at(word_topic, (tokens.words, topics), 1)


def reference_count_words(
    words: NDArray[np.signedinteger], numbers: NDArray[np.signedinteger], n_words: int
) -> Indices:
    """`count_words` in plain NumPy."""
    return np.bincount(words, weights=numbers, minlength=n_words).astype(np.int64)


def reference_lay_out(
    indptr: Indices,
    words: NDArray[np.signedinteger],
    numbers: NDArray[np.signedinteger],
    documents: Places,
    vocabulary: Places,
    n_groups: int,
) -> Layout:
    """`lay_out` in plain NumPy."""
    rows = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
    block = documents.groups[rows] * n_groups + vocabulary.groups[words]
    entries = np.argsort(block, kind="stable")
    block, places, numbers = block[entries], documents.places[rows[entries]], numbers[entries]
    begins = np.ones(len(entries), dtype=bool)
    begins[1:] = (places[1:] != places[:-1]) | (block[1:] != block[:-1])
    first = np.flatnonzero(begins)
    ends = np.concatenate([[0], np.cumsum(numbers)])
    starts = np.append(ends[first], ends[-1]).astype(np.int64)
    tokens = Tokens(np.repeat(vocabulary.places[words[entries]], numbers), places[first], starts)
    block_runs = np.searchsorted(block[first], np.arange(n_groups**2 + 1)).astype(np.int64)
    return Layout(tokens, block_runs, np.bincount(places, numbers, len(indptr) - 1).astype(np.int64))
