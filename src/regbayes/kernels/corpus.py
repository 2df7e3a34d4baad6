"""Tokens of a corpus in blocks that can be sampled in parallel.

Documents and words are each divided into the same number of groups. A block contains the tokens of one group of
documents and one group of words. Blocks on one (broken) diagonal share neither documents nor words, so threads can
sample them in parallel (Yan, Xu and Qi, NIPS 2009, "Parallel inference for latent Dirichlet allocation on graphics
processing units"). Only the topic totals, which change least, are then outdated by one diagonal. Blocks depend on the
corpus alone, and so do the draws, for any number of threads. With one block nothing is outdated and the sampler is
exact.

Operations on single tokens use a few bytes per token and at most two passes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from regbayes._types import Indices, Integers
from regbayes.kernels._compile import compiled, read_only
from regbayes.kernels.meanfield import WordCounts
from regbayes.kernels.types import Assignments, CountTable, Tokens, Words

TOKENS_PER_GROUP = 250_000
MOST_GROUPS = 16
FEWEST_GROUPS = 4  # minimum number of groups of a large corpus, for parallel threads
TOKENS_PER_RUN = 12  # average tokens of a document in a block


class Layout(NamedTuple):
    """Tokens in blocks of a group of documents and a group of words."""

    tokens: Tokens
    block_runs: Indices
    """(groups^2 + 1,): where blocks begin among the runs."""
    lengths: Indices
    """(documents,): tokens of each."""


class Places(NamedTuple):
    """New positions of documents or words, by group."""

    groups: Words
    """(documents or words,): the group of each."""
    places: Words
    """(documents or words,): the new number of each."""


@compiled
def _tally(table: NDArray[np.signedinteger], found: Indices) -> None:
    n_zero = table.size
    for value in table:
        if value:  # most are zero, and repeated additions to one address are slow
            found[value] += 1
            n_zero -= 1
    found[0] = n_zero


def tally(table: CountTable | Indices) -> Indices:
    """Return the frequency of each value in a table of counts, up to its maximum."""
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
    """Add tokens to the tables of counts in place."""
    _count_tokens(
        read_only(tokens.words),
        read_only(tokens.documents),
        read_only(tokens.starts),
        read_only(topics),
        doc_topic,
        word_topic,
    )


@compiled
def _count_words(words: NDArray[np.signedinteger], numbers: NDArray[np.signedinteger], found: Indices) -> None:
    for e in range(words.size):
        found[words[e]] += numbers[e]


def count_words(words: NDArray[np.signedinteger], numbers: NDArray[np.signedinteger], n_words: int) -> Indices:
    """Return the frequency of each word, shape (n_words,)."""
    found = np.zeros(n_words, dtype=np.int64)
    _count_words(read_only(words), read_only(numbers), found)
    return found


@compiled
def _measure_blocks(
    indptr: Indices,
    words: NDArray[np.signedinteger],
    numbers: NDArray[np.signedinteger],
    document_groups: Words,
    word_groups: Words,
    n_groups: int,
    n_tokens: Indices,
    n_runs: Indices,
) -> None:
    """Count the tokens and runs of each block."""
    seen = np.full(n_tokens.size, -1, np.int64)
    for row in range(indptr.size - 1):
        first_block = np.int64(document_groups[row]) * n_groups
        for e in range(indptr[row], indptr[row + 1]):
            block = first_block + word_groups[words[e]]
            n_tokens[block] += numbers[e]
            n_runs[block] += seen[block] != row
            seen[block] = row


@compiled
def _fill_blocks(
    indptr: Indices,
    words: NDArray[np.signedinteger],
    numbers: NDArray[np.signedinteger],
    document_groups: Words,
    word_groups: Words,
    document_places: Words,
    word_places: Words,
    n_groups: int,
    next_token: Indices,
    next_run: Indices,
    token_words: Words,
    run_documents: Words,
    starts: Indices,
    lengths: Indices,
) -> None:
    """Write the tokens; ``next_token`` and ``next_run`` are the positions in each block and are advanced."""
    seen = np.full(next_token.size, -1, np.int64)
    for row in range(indptr.size - 1):
        first_block, length = np.int64(document_groups[row]) * n_groups, 0
        for e in range(indptr[row], indptr[row + 1]):
            block, word = first_block + word_groups[words[e]], word_places[words[e]]
            at = next_token[block]
            if seen[block] != row:
                seen[block] = row
                run_documents[next_run[block]] = document_places[row]
                starts[next_run[block]] = at
                next_run[block] += 1
            for i in range(at, at + numbers[e]):
                token_words[i] = word
            next_token[block] = at + numbers[e]
            length += numbers[e]
        lengths[document_places[row]] = length


def lay_out(
    indptr: Indices,
    words: NDArray[np.signedinteger],
    numbers: NDArray[np.signedinteger],
    documents: Places,
    vocabulary: Places,
    n_groups: int,
) -> Layout:
    """List the tokens of a matrix of counts in compressed rows, block by block.

    Block ``i n_groups + j`` contains the tokens of document group i and word group j, in the order of the rows.

    Parameters
    ----------
    indptr : (documents + 1,)
    words, numbers : (entries,)
        Columns and their counts, at least one.
    documents, vocabulary : Places
    n_groups : int
    """
    rows = read_only(indptr), read_only(words), read_only(numbers)
    n_tokens, n_runs = np.zeros(n_groups**2, np.int64), np.zeros(n_groups**2, np.int64)
    groups = read_only(documents.groups), read_only(vocabulary.groups)
    _measure_blocks(*rows, *groups, n_groups, n_tokens, n_runs)
    block_tokens = np.concatenate([[0], np.cumsum(n_tokens)])
    block_runs = np.concatenate([[0], np.cumsum(n_runs)])
    tokens = Tokens(
        np.empty(block_tokens[-1], np.int32), np.empty(block_runs[-1], np.int32), np.empty(block_runs[-1] + 1, np.int64)
    )
    tokens.starts[-1] = block_tokens[-1]
    lengths = np.empty(len(indptr) - 1, np.int64)
    _fill_blocks(
        *rows,
        *groups,
        read_only(documents.places),
        read_only(vocabulary.places),
        n_groups,
        block_tokens[:-1].copy(),
        block_runs[:-1].copy(),
        tokens.words,
        tokens.documents,
        tokens.starts,
        lengths,
    )
    return Layout(tokens, block_runs, lengths)


# --- A corpus


@dataclass(frozen=True)
class Corpus:
    """Tokens in sampling order, with documents and words renumbered by group."""

    tokens: Tokens
    block_runs: Integers  # (groups^2 + 1,): first run of each block; block (i, j) is number i groups + j
    document_order: Integers  # (N,): the row of X that each document was
    word_order: Integers  # (V,): the column of X that each word was
    lengths: Integers  # (N,)

    @property
    def n_groups(self) -> int:
        """Number of groups of documents, and of words."""
        return int(np.sqrt(len(self.block_runs) - 1))

    @property
    def n_tokens(self) -> int:
        """Total number of tokens."""
        return len(self.tokens.words)

    def diagonals(self) -> list[list[int]]:
        """Lists of blocks that can be sampled in parallel."""
        n = self.n_groups
        return [[i * n + (i + shift) % n for i in range(n)] for shift in range(n)]


def default_groups(n_tokens: int, n_documents: int) -> int:
    """Return the number of groups for a corpus: a power of two, one for a small corpus.

    Each document has a fixed cost in each group of words, so corpora of short documents have fewer groups.
    """
    most = min(MOST_GROUPS, max(FEWEST_GROUPS, n_tokens // (TOKENS_PER_RUN * max(n_documents, 1))))
    groups = 1
    while 2 * groups <= most and n_tokens >= TOKENS_PER_GROUP * 2 * groups:
        groups *= 2
    return groups


def build_corpus(documents: WordCounts, n_words: int, n_groups: int | None = None) -> Corpus:
    """Lay out the tokens of documents.

    Parameters
    ----------
    documents : WordCounts
        Counts must be whole numbers.
    n_words : int
        The size of the vocabulary, V.
    n_groups : int, default=None
        Number of groups of documents, and of words; `default_groups` by default.
    """
    indptr, indices = documents.starts, documents.words
    numbers = documents.numbers.astype(np.int32, copy=False)
    n_documents = len(indptr) - 1
    if n_groups is None:
        n_groups = default_groups(int(numbers.sum(dtype=np.int64)), n_documents)
    document_group = (np.arange(n_documents) % n_groups).astype(np.int32)
    frequency = count_words(indices, numbers, n_words)
    word_group = np.empty(n_words, dtype=np.int32)
    word_group[np.argsort(-frequency, kind="stable")] = np.arange(n_words) % n_groups
    document_order, new_document = _by_group(document_group)
    word_order, new_word = _by_group(word_group)
    places, vocabulary = Places(document_group, new_document), Places(word_group, new_word)
    tokens, block_runs, lengths = lay_out(indptr, indices, numbers, places, vocabulary, n_groups)
    return Corpus(tokens, block_runs, document_order, word_order, lengths)


def _by_group(group: NDArray[np.int32]) -> tuple[Integers, NDArray[np.int32]]:
    """Return the members in the order of their groups, and the position of each in it."""
    order = np.argsort(group, kind="stable")
    place = np.empty_like(group)
    place[order] = np.arange(len(order))
    return order, place
