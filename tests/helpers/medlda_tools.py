"""What the tests of MedLDA share: documents drawn from the model, and corpora small enough to enumerate."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from regbayes.kernels.corpus import Corpus, build_corpus
from regbayes.kernels.meanfield import WordCounts
from regbayes.margins.targets import Numbers, Signs
from regbayes.models.medlda import posterior, response
from regbayes.models.medlda.gibbs import Responses, Settings
from regbayes.models.medlda.posterior import Factors, Head, Problem, moments_of, shares_of


def draw_documents(
    n_documents: int = 300,
    n_topics: int = 4,
    n_words: int = 60,
    length: int = 50,
    seed: int = 0,
    concentration: float = 0.2,
) -> tuple[csr_array, NDArray[np.float64], NDArray[np.float64]]:
    """Counts drawn from latent Dirichlet allocation, with the proportions of documents and the words of topics."""
    rng = np.random.default_rng(seed)
    topics = rng.dirichlet(np.full(n_words, 0.1), n_topics)
    proportions = rng.dirichlet(np.full(n_topics, concentration), n_documents)
    counts = np.array([rng.multinomial(length, p) for p in proportions @ topics])
    return csr_array(counts), proportions, topics


def documents_of(X: Any, dtype: Any = np.float32) -> WordCounts:
    """Documents as models take them."""
    X = csr_array(X)
    return WordCounts(X.indices.astype(np.int32), X.data.astype(dtype), X.indptr.astype(np.int64))


def corpus_of(X: Any, n_groups: int = 1) -> Corpus:
    return build_corpus(documents_of(X, np.int32), csr_array(X).shape[1], n_groups)


def token_documents(corpus: Corpus) -> NDArray[np.int32]:
    """The document of each token."""
    return np.repeat(corpus.tokens.documents, np.diff(corpus.tokens.starts))


def settings(n_components: int = 2, **changes: Any) -> Settings:
    values = {
        "doc_topic_prior": 0.7,
        "topic_word_prior": 0.4,
        "weight_variance": 1.5,
        "n_sweeps": 10,
        "n_burn_in": 0,
        "n_warm_up": 0,
        "propose": False,
        "seed": 0,
    }
    return Settings(n_components=n_components, **values | changes)


def log_words(X: NDArray[np.int64], topics: list[NDArray[np.int64]], s: Settings) -> float:
    """The log-probability of words and topics by the chain rule: an urn for each document and each topic."""
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
    """C times loss of a score, written out once more."""
    C = responses.C[document, response]
    if isinstance(responses, Signs):
        return C * np.clip(responses.margin - responses.signs[document, response] * score, 0, None)
    assert isinstance(responses, Numbers)
    return C * np.clip(np.abs(responses.values[document, response] - score) - responses.epsilon, 0, None)


def bound(problem: Problem, factors: Factors) -> float:
    """The bound on the log-probability of words and responses, docs/math.md eq. (60) and (110)."""
    terms = posterior.word_terms(problem, factors) | posterior.response_terms(problem, factors)
    return -sum(terms.values())


def lagrangian(problem: Problem, factors: Factors, head: Head | None) -> float:
    """The bound plus what fixed multipliers reward in it: no update lowers it.

    Weights are those of ``head`` too, unless a Gaussian response gives them a distribution.
    """
    found = bound(problem, factors)
    if head is not None:
        weights = head.weights if factors.weights is None else factors.weights.mean
        found += float(np.vdot(head.multipliers, shares_of(problem, factors) @ weights.T))
    return found


def update_weights(problem: Problem, factors: Factors) -> Factors:
    """The distribution of the weights at fixed multipliers, docs/math.md eq. (107), by its definition."""
    seen, multipliers, weights = moments_of(problem, factors), factors.head.multipliers, factors.weights
    means, covariances = [], []
    for y, variance, u in zip(problem.response.values.T, weights.variance, multipliers.T, strict=True):
        base = response.base_measure(seen, y, variance, problem.response.weight_variance)
        covariances.append(np.linalg.inv(base.precision))
        means.append(covariances[-1] @ (seen.shares.T @ (y / variance + u)))
    weights = replace(weights, mean=np.array(means), covariance=np.array(covariances))
    return replace(factors, weights=weights, head=replace(factors.head, weights=weights.mean))


def first_round(problem: Problem, logits: NDArray[np.float64], doc_prior: NDArray[np.float64]) -> posterior.Round:
    """The start of the rounds, after a warm-up of one."""
    begun = posterior.Round(posterior.first_factors(problem, logits, doc_prior), {})
    return posterior.begin_rounds(problem, posterior.warm_up_step(problem, begun).state.factors)


def after_a_round(problem: Problem, factors: Factors) -> Factors:
    """The factors after a round that is taken whatever it does to the objective."""
    return posterior.step(problem, posterior.Round(factors, {"anything": np.inf})).state.factors
