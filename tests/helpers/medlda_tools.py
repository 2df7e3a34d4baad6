"""Simulated documents and small corpora for the tests of MedLDA."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from regbayes.kernels.corpus import Corpus, build_corpus
from regbayes.kernels.meanfield import WordCounts
from regbayes.margins.targets import Classes, Numbers, Signs
from regbayes.models.medlda.gibbs import Responses, Settings


def draw_documents(
    n_documents: int = 300,
    n_topics: int = 4,
    n_words: int = 60,
    length: int = 50,
    seed: int = 0,
    concentration: float = 0.2,
) -> tuple[csr_array, NDArray[np.float64], NDArray[np.float64]]:
    """Simulate latent Dirichlet allocation; return counts, proportions, topics."""
    rng = np.random.default_rng(seed)
    topics = rng.dirichlet(np.full(n_words, 0.1), n_topics)
    proportions = rng.dirichlet(np.full(n_topics, concentration), n_documents)
    counts = np.array([rng.multinomial(length, p) for p in proportions @ topics])
    return csr_array(counts), proportions, topics


def responses_of(proportions: NDArray[np.float64]) -> dict[str, Classes | Signs | Numbers]:
    """Return classes, labels and numbers that depend on the topic proportions."""
    signs = np.where(proportions[:, :2] > 0.3, 1.0, -1.0)
    numbers = (proportions @ [[2.0], [-1.0], [0.5], [0.0]] - 0.4) / 0.6
    return {
        "classes": Classes(np.argmax(proportions[:, :3], axis=1), 1 - np.eye(3), np.full(len(proportions), 30.0)),
        "labels": Signs(signs, np.full(signs.shape, 30.0), 1.0),
        "numbers": Numbers(numbers, np.full(numbers.shape, 30.0), 0.1),
    }


def documents_of(X: Any, dtype: Any = np.float32) -> WordCounts:
    """Return the documents in the format of the models."""
    X = csr_array(X)
    return WordCounts(X.indices.astype(np.int32), X.data.astype(dtype), X.indptr.astype(np.int64))


def corpus_of(X: Any, n_groups: int = 1) -> Corpus:
    return build_corpus(documents_of(X, np.int32), csr_array(X).shape[1], n_groups)


def token_documents(corpus: Corpus) -> NDArray[np.int32]:
    """Return the document of each token."""
    return np.repeat(corpus.tokens.documents, np.diff(corpus.tokens.starts))


def settings(n_components: int = 2, **changes: Any) -> Settings:
    values = {
        "doc_topic_prior": 0.7,
        "topic_word_prior": 0.4,
        "weight_variance": 1.5,
        "n_sweeps": 10,
        "n_burn_in": 0,
        "n_warm_up": 0,
        "seed": 0,
    }
    return Settings(n_components=n_components, **values | changes)


def log_words(X: NDArray[np.int64], topics: list[NDArray[np.int64]], s: Settings) -> float:
    """Return the log-probability of words and topics by the chain rule of Pólya urns."""
    K, V = s.n_components, X.shape[1]
    word_topic, total, found = np.zeros((V, K)), np.zeros(K), 0.0
    for row, of_document in zip(X, topics, strict=True):
        in_document = np.zeros(K)
        for word, k in zip(np.repeat(np.arange(V), row), of_document, strict=True):
            found += np.log(in_document[k] + s.doc_topic_prior) - np.log(in_document.sum() + K * s.doc_topic_prior)
            found += np.log(word_topic[word, k] + s.topic_word_prior) - np.log(total[k] + V * s.topic_word_prior)
            in_document[k] += 1
            word_topic[word, k] += 1
            total[k] += 1
    return float(found)


def loss(responses: Responses, document: int, response: int, score: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return C times the loss of a score, from its definition."""
    C = responses.C[document, response]
    if isinstance(responses, Signs):
        return C * np.clip(responses.margin - responses.signs[document, response] * score, 0, None)
    assert isinstance(responses, Numbers)
    return C * np.clip(np.abs(responses.values[document, response] - score) - responses.epsilon, 0, None)
