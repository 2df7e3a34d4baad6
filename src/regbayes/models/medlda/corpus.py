"""A corpus as tokens, cut into blocks that can be sampled at the same time.

Documents and words are each dealt into the same number of groups, and a block holds the tokens of one group of
documents and one group of words. Blocks on one (broken) diagonal share neither documents nor words, so threads can work
on them together; of all the counts only the topics' totals are then a diagonal old, and they are the ones that change
least (Yan, Xu and Qi, NIPS 2009, "Parallel inference for latent Dirichlet allocation on graphics processing units").
How a corpus is cut depends on the corpus alone, and so do the draws: the number of threads changes nothing. With one
block nothing is old and the sampler is exact.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from regbayes._types import Integers
from regbayes.kernels.counting import Places, count_words, lay_out
from regbayes.kernels.meanfield import WordCounts
from regbayes.kernels.types import Tokens

TOKENS_PER_GROUP = 250_000
MOST_GROUPS = 16
FEWEST_GROUPS = 4  # of a large corpus, so that threads find work
TOKENS_PER_RUN = 12  # of a document in a block, on average


@dataclass(frozen=True)
class Corpus:
    """Tokens in the order of sampling. Documents and words are renumbered, so that groups lie together in memory."""

    tokens: Tokens
    block_runs: Integers  # (groups^2 + 1,): where blocks begin among the runs; block (i, j) is number i groups + j
    document_order: Integers  # (N,): the row of X that each document was
    word_order: Integers  # (V,): the column of X that each word was
    lengths: Integers  # (N,)

    @property
    def n_groups(self) -> int:
        """Groups of documents, and of words."""
        return int(np.sqrt(len(self.block_runs) - 1))

    @property
    def n_tokens(self) -> int:
        """All tokens."""
        return len(self.tokens.words)

    def diagonals(self) -> list[list[int]]:
        """The blocks, in an order in which those of each list can be sampled at the same time."""
        n = self.n_groups
        return [[i * n + (i + shift) % n for i in range(n)] for shift in range(n)]


def default_groups(n_tokens: int, n_documents: int) -> int:
    """Return how many groups a corpus is cut into: a power of two, one for a small corpus.

    What a document costs, whatever its length, it costs once in each group of words, so short ones have fewer groups.
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
        Of whole numbers of words.
    n_words : int
        The size of the vocabulary, V.
    n_groups : int, default=None
        Groups of documents, and of words; None is `default_groups`.
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
    """Return the members in the order of their groups, and the place of each in it."""
    order = np.argsort(group, kind="stable")
    place = np.empty_like(group)
    place[order] = np.arange(len(order))
    return order, place
