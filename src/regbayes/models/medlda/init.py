"""Where topics begin: at the words of the classes, or at those of the corpus."""

from __future__ import annotations

import numpy as np

from regbayes._types import Floats
from regbayes.kernels.meanfield import WordCounts

CLASS_NOISE = 0.5  # standard deviation of the logits around those of the classes: it parts topics of the same class
CORPUS_NOISE = 0.1  # and around those of the corpus
SMOOTHING = 1.0  # words of the whole corpus that are added to a class, for each word of the vocabulary


def word_frequencies(documents: WordCounts, n_words: int) -> Floats:
    """Return how often each word occurs, plus one half, shape (V,)."""
    return np.asarray(np.bincount(documents.words, documents.numbers, n_words) + 0.5, dtype=np.float64)


def random_logits(documents: WordCounts, n_words: int, n_topics: int, rng: np.random.Generator) -> Floats:
    """Return log-probabilities of words in topics: those of the corpus, with noise. Shape (V, K)."""
    noise = CORPUS_NOISE * rng.standard_normal((n_words, n_topics))
    return np.asarray(np.log(word_frequencies(documents, n_words))[:, None] + noise)


def class_logits(
    documents: WordCounts, n_words: int, n_topics: int, membership: Floats, rng: np.random.Generator
) -> Floats:
    """Return log-probabilities of words in topics: those of the classes in turn, smoothed, with noise. Shape (V, K).

    Parameters
    ----------
    documents : WordCounts
    n_words, n_topics : int
    membership : (N, L)
        How much each document belongs to each class. Where classes are more than topics, several share one.
    rng : Generator
    """
    n_groups = min(membership.shape[1], n_topics)
    owner = np.arange(membership.shape[1]) % n_groups
    frequency = word_frequencies(documents, n_words)
    row = np.repeat(np.arange(len(membership)), np.diff(documents.starts))
    logits = np.empty((n_words, n_groups))
    for group in range(n_groups):
        weight = membership[:, owner == group].sum(axis=1)
        count = np.bincount(documents.words, documents.numbers * weight[row], n_words)
        smooth = count + SMOOTHING * frequency / frequency.mean()
        logits[:, group] = np.log(smooth / smooth.sum())
    return logits[:, np.arange(n_topics) % n_groups] + CLASS_NOISE * rng.standard_normal((n_words, n_topics))
