"""Topic sweeps, sums for the weights, and label-free topic proportions in plain NumPy."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from regbayes._types import Floats, Indices, Singles
from regbayes.kernels.types_topics import (
    LOWEST_EXPONENT,
    Assignments,
    CountTable,
    Layout,
    Places,
    Tilt,
    Tokens,
    TopicCounts,
    WeightPrior,
    WeightStatistics,
    WordLists,
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
    scores: Floats,
    portion: int,
    doc_prior: float,
    word_prior: float,
    uniforms: Singles,
    counts: TopicCounts,
    lists: WordLists,
) -> int:
    """As `sample_topics`, with a tilt that is proposed and then accepted, for many topics and responses.

    The proposal has the weights of `sample_topics`, with the slope of the tilt at a guess in the place of the
    document's score without the token, and a Metropolis-Hastings step corrects for it, docs/math.md eq. (58). Tokens
    are taken in portions, and the guess is what the document's tokens outside the portion say: proposals do not depend
    on the topic that they replace, so the distribution that is left invariant is the same.

    Parameters
    ----------
    tokens, first_run, last_run, tilt, doc_prior, word_prior, counts
        As in `sample_topics`.
    scores : (documents, responses)
        Of the current topics. Written.
    portion : int
        Tokens that share a guess; less in a document that has less than four times as many. Without responses there is
        nothing to guess.
    uniforms : (2, tokens of the runs)
        In [0, 1): for proposals and for acceptances.
    lists : WordLists
        Of ``counts.word_topic``, from `list_words`. Kept up to date by backends that use them.

    Returns
    -------
    int
        How many tokens changed their topic.
    """
    del lists
    n_changed, offset = 0, tokens.starts[first_run]
    n_topics = counts.topic_total.size
    weights = tilt.weights[:, :n_topics].astype(np.float64)
    mass = word_prior * counts.word_topic.shape[0]
    for run in range(first_run, last_run):
        document = tokens.documents[run]
        linear, quadratic, length = tilt.linear[document], tilt.quadratic[document], tilt.lengths[document]
        in_document, current = counts.doc_topic[document, :n_topics], scores[document]
        bend = 0.5 * (quadratic @ weights**2) / length**2
        for begin, end in portions(tokens.starts[run], tokens.starts[run + 1], length, portion, len(linear)):
            inside = weights[:, counts.topics[begin:end]].sum(axis=1)
            guess = (current - inside / length) * (length - 1) / max(length - (end - begin), 1)
            exponent = ((linear - quadratic * guess) @ weights) / length - bend
            exponent = np.maximum(exponent - exponent.max(), LOWEST_EXPONENT)
            for i in range(begin, end):
                old, of_word = counts.topics[i], counts.word_topic[tokens.words[i], :n_topics]
                for table in (in_document, of_word, counts.topic_total):
                    table[old] -= 1
                side = (in_document + doc_prior) / (counts.topic_total + mass) * np.exp(exponent)
                new = _draw_of_two(uniforms[0, i - offset], side * of_word, side * word_prior)
                step = (weights[:, new] - weights[:, old]) / length
                true_change = step @ (linear - quadratic * (current + 0.5 * step))
                if np.log(max(uniforms[1, i - offset], 1e-38)) >= true_change - exponent[new] + exponent[old]:
                    new = old
                elif new != old:
                    current += step
                    n_changed += 1
                for table in (in_document, of_word, counts.topic_total):
                    table[new] += 1
                counts.topics[i] = new
    return n_changed


def portions(begin: int, end: int, length: int, portion: int, n_responses: int) -> list[tuple[int, int]]:
    """Cut a run of a document into the portions of `propose_topics`."""
    size = max(1, min(portion, length // 4)) if n_responses else max(1, end - begin)
    return [(first, min(first + size, end)) for first in range(begin, end, size)]


def _draw_of_two(uniform: float, first: Floats, second: Floats) -> int:
    """Draw from the sum of two rows of weights: the uniform number stands for places in the first, then the second."""
    left = uniform * (first.sum() + second.sum())
    row = first if left < first.sum() else second
    left -= 0.0 if row is first else first.sum()
    return min(int(np.searchsorted(np.cumsum(row), left, side="right")), len(row) - 1)


def list_words(counts: TopicCounts) -> WordLists:
    """List the topics of each word."""
    rows = counts.word_topic[:, : counts.topic_total.size]
    room = np.minimum(rows.sum(axis=1, dtype=np.int64), rows.shape[1])
    starts = np.concatenate([[0], np.cumsum(room)])
    topics, numbers = np.zeros(starts[-1], np.int16), np.zeros(starts[-1], np.int32)
    for word, row in enumerate(rows):
        present = np.flatnonzero(row)
        listed = slice(starts[word], starts[word] + len(present))
        topics[listed], numbers[listed] = present, row[present]
    return WordLists(starts, topics, numbers, np.count_nonzero(rows, axis=1).astype(np.int32))


def count_words(words: NDArray[np.signedinteger], numbers: NDArray[np.signedinteger], n_words: int) -> Indices:
    """Return how often each word occurs, shape (n_words,)."""
    return np.bincount(words, weights=numbers, minlength=n_words).astype(np.int64)


def lay_out(
    indptr: Indices,
    words: NDArray[np.signedinteger],
    numbers: NDArray[np.signedinteger],
    documents: Places,
    vocabulary: Places,
    n_groups: int,
) -> Layout:
    """Write out the tokens of a matrix of counts in compressed rows, block by block.

    Block ``i n_groups + j`` has the tokens of document group i and word group j, in the order of the rows.

    Parameters
    ----------
    indptr : (documents + 1,)
    words, numbers : (entries,)
        Columns, and how often they occur, at least once.
    documents, vocabulary : Places
    n_groups : int
    """
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


def tally(table: CountTable | Indices) -> Indices:
    """Return how often each value occurs in a table of counts, up to its largest."""
    return np.bincount(table.ravel())


def count_tokens(tokens: Tokens, topics: Assignments, doc_topic: CountTable, word_topic: CountTable) -> None:
    """Add tokens to the tables of counts."""
    np.add.at(doc_topic, (np.repeat(tokens.documents, np.diff(tokens.starts)), topics), 1)
    np.add.at(word_topic, (tokens.words, topics), 1)


def sweep_weights(
    tilt: Tilt,
    counts: TopicCounts,
    prior: WeightPrior,
    normals: Floats,
    weights: Floats,
    scores: Floats,
    n_threads: int = 1,
) -> None:
    """Draw weights one after another from their normal distributions given all others, docs/math.md eq. (55).

    First all weights of a response are shifted together, which moves all scores alike and what single weights do
    slowly; then comes topic after topic. Only documents that have the topic count, so a sweep costs what the shares of
    topics have entries.

    Parameters
    ----------
    tilt, counts
        Documents, with their tilts. The weights of the tilt are not used.
    prior : WeightPrior
    normals : (responses, topics + 1)
        Standard normal draws; the last is for the shift.
    weights : (responses, topics)
        Written.
    scores : (documents, responses)
        Of these weights. Written.
    n_threads : int
        Does not change the result.
    """
    del n_threads
    n_topics = counts.topic_total.size
    shares = counts.doc_topic[:, :n_topics] / tilt.lengths[:, None]
    directions = np.vstack([np.ones(n_topics), np.eye(n_topics)])
    for response in range(len(weights)):
        quadratic, score, w = tilt.quadratic[:, response], scores[:, response], weights[response]
        for direction, normal in zip(directions, np.roll(normals[response], 1), strict=True):
            along = shares @ direction
            slope = along @ (tilt.linear[:, response] - quadratic * score)
            slope += direction @ (prior.linear[response] - prior.precision[response] * w)
            precision = quadratic @ along**2 + prior.precision[response] @ direction**2
            change = slope / precision + normal / np.sqrt(precision)
            w += change * direction
            score += change * along


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
