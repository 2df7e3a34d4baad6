"""Tokens of a corpus in blocks that can be sampled in parallel.

Documents and words are each divided into the same number of groups. A block contains the tokens of one group of
documents and one group of words. Blocks on one (broken) diagonal share neither documents nor words, so threads can
sample them in parallel (Yan, Xu and Qi, NIPS 2009, "Parallel inference for latent Dirichlet allocation on graphics
processing units"). Only the topic totals, which change least, are then outdated by one diagonal. Blocks depend on the
corpus alone, and so do the draws, for any number of threads. With one block nothing is outdated and the sampler is
exact.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from regbayes._types import Indices, Integers
from regbayes.kernels._compile import all_read_only, compiled, read_only
from regbayes.kernels.meanfield import WordCounts
from regbayes.kernels.types import Assignments, CountTable, Tokens, Words

TOKENS_PER_GROUP = 250_000
MOST_GROUPS = 16
FEWEST_GROUPS = 4  # minimum number of groups of a large corpus, for parallel threads
TOKENS_PER_RUN = 12  # average tokens of a document in a block


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
    _count_tokens(*all_read_only(tokens), read_only(topics), doc_topic, word_topic)


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
    words, numbers = documents.words, documents.numbers.astype(np.int32, copy=False)
    n_documents = len(documents.starts) - 1
    if n_groups is None:
        n_groups = default_groups(int(numbers.sum(dtype=np.int64)), n_documents)
    document_group, word_group = np.arange(n_documents) % n_groups, np.empty(n_words, dtype=np.int64)
    frequency = np.bincount(words, numbers, n_words)
    word_group[np.argsort(-frequency, kind="stable")] = np.arange(n_words) % n_groups
    (document_order, new_document), (word_order, new_word) = map(_by_group, (document_group, word_group))
    # Entries of the matrix in the order of their blocks, and within a block in the order of the rows.
    rows = np.repeat(np.arange(n_documents), np.diff(documents.starts))
    block = document_group[rows] * n_groups + word_group[words]
    entries = np.argsort(block, kind="stable")
    block, own, numbers = block[entries], new_document[rows[entries]], numbers[entries]
    is_first = np.ones(len(entries), dtype=bool)  # of its run
    is_first[1:] = (own[1:] != own[:-1]) | (block[1:] != block[:-1])
    first, ends = np.flatnonzero(is_first), np.concatenate([[0], np.cumsum(numbers, dtype=np.int64)])
    tokens = Tokens(np.repeat(new_word[words[entries]], numbers), own[first], ends[np.append(first, -1)])
    block_runs = np.searchsorted(block[first], np.arange(n_groups**2 + 1))
    lengths = np.bincount(own, numbers, n_documents).astype(np.int64)
    return Corpus(tokens, block_runs, document_order, word_order, lengths)


def _by_group(group: Integers) -> tuple[Integers, NDArray[np.int32]]:
    """Return the members in the order of their groups, and the position of each in it."""
    order = np.argsort(group, kind="stable")
    place = np.empty(len(order), dtype=np.int32)
    place[order] = np.arange(len(order))
    return order, place
