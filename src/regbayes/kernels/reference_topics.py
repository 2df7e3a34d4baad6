"""Topic sweeps, sums for the weights, and label-free topic proportions in plain NumPy."""

from __future__ import annotations

import numpy as np

from regbayes.kernels.types import Floats, Indices
from regbayes.kernels.types_topics import (
    LOWEST_EXPONENT,
    Scores,
    Singles,
    Tilt,
    Tokens,
    TopicCounts,
    WeightStatistics,
    Words,
)


def sample_topics(
    tokens: Tokens,
    first_run: int,
    last_run: int,
    tilt: Tilt,
    doc_prior: float,
    word_prior: float,
    uniforms: Singles,
    counts: TopicCounts,
) -> int:
    """Draw the topic of one token after another from its conditional distribution given all others.

    The distribution over all assignments is that of latent Dirichlet allocation with symmetric priors, proportions
    and topics integrated out, times the tilt of each document, docs/math.md eq. (53). With a token of word w in
    document d taken out, topic k has the weight

        (doc_topic_dk + doc_prior) (word_topic_wk + word_prior) / (topic_total_k + words * word_prior)
        * exp(sum_l linear_l f_lk - quadratic_l f_lk^2 / 2),

    where ``f_lk`` is the score of the document with the token in topic k.

    Parameters
    ----------
    tokens, tilt
        The corpus and the documents' tilts.
    first_run, last_run : int
        The runs to sweep over, half open.
    doc_prior, word_prior : float
        Positive.
    uniforms : (tokens of the runs,)
        In [0, 1): one draw per token.
    counts : TopicCounts
        Written. ``word_topic`` may contain tokens of other corpora beside these.

    Returns
    -------
    int
        How many tokens changed their topic.
    """
    n_changed, offset = 0, tokens.starts[first_run]
    n_topics = counts.topic_total.size
    weights = tilt.weights[:, :n_topics].astype(np.float64)
    mass = word_prior * counts.word_topic.shape[0]
    for run in range(first_run, last_run):
        document = tokens.documents[run]
        linear, quadratic = tilt.linear[document], tilt.quadratic[document]
        in_document = counts.doc_topic[document, :n_topics]
        for i in range(tokens.starts[run], tokens.starts[run + 1]):
            old, of_word = counts.topics[i], counts.word_topic[tokens.words[i], :n_topics]
            for table in (in_document, of_word, counts.topic_total):
                table[old] -= 1
            scores = ((weights @ in_document)[:, None] + weights) / tilt.lengths[document]
            exponent = linear @ scores - 0.5 * quadratic @ scores**2
            p = (in_document + doc_prior) * (of_word + word_prior) / (counts.topic_total + mass)
            p = np.cumsum(p * np.exp(exponent - exponent.max()))
            new = min(int(np.searchsorted(p, uniforms[i - offset] * p[-1], side="right")), n_topics - 1)
            for table in (in_document, of_word, counts.topic_total):
                table[new] += 1
            counts.topics[i] = new
            n_changed += int(new != old)
    return n_changed


def propose_topics(
    tokens: Tokens,
    first_run: int,
    last_run: int,
    tilt: Tilt,
    scores: Scores,
    doc_prior: float,
    word_prior: float,
    uniforms: Singles,
    counts: TopicCounts,
) -> int:
    """As `sample_topics`, with a tilt that is proposed and then accepted, for many topics and responses.

    The proposal has the weights of `sample_topics`, with the slope of the tilt at ``scores.guess`` in the place of the
    document's score without the token; a Metropolis-Hastings step corrects for it. The distribution that is left
    invariant is the same, as long as the guess does not depend on the topics. docs/math.md eq. (58).

    Parameters
    ----------
    tokens, first_run, last_run, tilt, doc_prior, word_prior, counts
        As in `sample_topics`.
    scores : Scores
        Its ``current`` is written.
    uniforms : (2, tokens of the runs)
        In [0, 1): for proposals and for acceptances.

    Returns
    -------
    int
        How many tokens changed their topic.
    """
    n_changed, offset = 0, tokens.starts[first_run]
    n_topics = counts.topic_total.size
    weights = tilt.weights[:, :n_topics].astype(np.float64)
    mass = word_prior * counts.word_topic.shape[0]
    for run in range(first_run, last_run):
        document = tokens.documents[run]
        linear, quadratic = tilt.linear[document], tilt.quadratic[document]
        in_document, per_token = counts.doc_topic[document, :n_topics], 1.0 / tilt.lengths[document]
        current = scores.current[document]
        guess = current.copy() if scores.follow else scores.guess[document]
        bend = 0.5 * (quadratic @ weights**2) * per_token**2
        exponent = ((linear - quadratic * guess) @ weights) * per_token - bend
        exponent = np.maximum(exponent - exponent.max(), LOWEST_EXPONENT)
        for i in range(tokens.starts[run], tokens.starts[run + 1]):
            old, of_word = counts.topics[i], counts.word_topic[tokens.words[i], :n_topics]
            for table in (in_document, of_word, counts.topic_total):
                table[old] -= 1
            p = (in_document + doc_prior) * (of_word + word_prior) / (counts.topic_total + mass)
            p = np.cumsum(p * np.exp(exponent))
            new = min(int(np.searchsorted(p, uniforms[0, i - offset] * p[-1], side="right")), n_topics - 1)
            step = (weights[:, new] - weights[:, old]) * per_token
            without = current - weights[:, old] * per_token
            true_change = step @ (linear - quadratic * without) - bend[new] + bend[old]
            if np.log(max(uniforms[1, i - offset], 1e-38)) >= true_change - exponent[new] + exponent[old]:
                new = old
            elif new != old:
                current += step
                n_changed += 1
            for table in (in_document, of_word, counts.topic_total):
                table[new] += 1
            counts.topics[i] = new
    return n_changed


def weight_statistics(tilt: Tilt, counts: TopicCounts, n_threads: int = 1) -> WeightStatistics:
    """Sum over documents what the weights' normal distribution needs, docs/math.md eq. (55).

    Parameters
    ----------
    tilt, counts
        Documents, with their tilts. The weights of the tilt are not used.
    n_threads : int
        Does not change the result.
    """
    del n_threads
    proportions = counts.doc_topic[:, : counts.topic_total.size] / tilt.lengths[:, None]
    precision = np.einsum("dl,dj,dk->ljk", tilt.quadratic, proportions, proportions)
    return WeightStatistics(precision, tilt.linear.T @ proportions)


def infer_proportions(
    words: Words,
    numbers: Singles,
    starts: Indices,
    word_given_topic: Singles,
    doc_prior: float,
    max_sweeps: int,
    tol: float,
    out: Floats,
    n_threads: int = 1,
) -> int:
    """Write the expected number of each document's tokens in each topic, given the topics alone.

    A sweep sets ``n_k = sum_w number_w r_wk`` with ``r_wk`` proportional to ``(n_k + doc_prior) p(w | k)``, all words
    at once, docs/math.md eq. (56). A document is done when the absolute changes of its n sum to at most ``tol``
    times its length.

    Parameters
    ----------
    words, numbers : (entries,)
        Words of the documents and how often they occur.
    starts : (documents + 1,)
        Where documents begin among the entries.
    word_given_topic : (vocabulary, columns)
        Positive, except for padding.
    doc_prior : float
    max_sweeps : int
    tol : float
    out : (documents, topics)
        Written; zero for empty documents.
    n_threads : int
        Does not change the result.

    Returns
    -------
    int
        The sweeps that the slowest document took.
    """
    del n_threads
    n_topics, slowest = out.shape[1], 0
    topics = word_given_topic[:, :n_topics].astype(np.float64)
    for document in range(len(starts) - 1):
        entries = slice(starts[document], starts[document + 1])
        number, p = numbers[entries].astype(np.float64), topics[words[entries]]
        length = number.sum()
        out[document] = length / n_topics
        for sweep in range(max_sweeps if length > 0 else 0):
            weight = (out[document] + doc_prior) * p
            found = (number / weight.sum(axis=1)) @ weight
            change = np.abs(found - out[document]).sum()
            out[document] = found
            slowest = max(slowest, sweep + 1)
            if change <= tol * length:
                break
    return slowest
