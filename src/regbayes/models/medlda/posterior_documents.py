"""Documents of the posterior scheme: topics of words and proportions, which margins and responses tilt.

At fixed multipliers `update_documents` raises the bound. But the multipliers are those of the documents as they were,
and documents that follow them all the way can overshoot the margins: with a high price they are thrown from one topic
to the other in turn. `update_documents_carefully` goes only part of the way where that lowers a document's own share of
the regularized objective, loss included. docs/math.md 5.5.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy.special import digamma

from regbayes._types import Flags, Floats, Integers, Singles
from regbayes.kernels.meanfield import Prior, WordCounts, meanfield_statistics, meanfield_sweeps
from regbayes.models.medlda import response as gaussian
from regbayes.models.medlda.meanfield import as_table, word_bounds
from regbayes.models.medlda.objective import expected_log_topics, proportion_divergences
from regbayes.models.medlda.posterior_state import Factors, Problem, tilt_of
from regbayes.models.medlda.response import Reward, WordTopics

MAX_SWEEPS = 20  # over a document in a round; it goes on from there in the next
TOL = 1e-3  # of a document's length: changes of its topics' tokens, summed
WAYS = (1.0, 0.5, 0.25, 0.12, 0.03)  # shares of the way to the new tilt that a document tries


def update_documents(problem: Problem, factors: Factors) -> Factors:
    """Update topics of words and proportions of documents, at fixed multipliers: docs/math.md eq. (61), (62), (106)."""
    tilt = tilt_of(problem, factors)
    if factors.belief is not None:
        return coupled_update(problem, replace(factors, tilt=tilt), gaussian.N_SWEEPS)
    gamma, prior = factors.gamma.copy(), _prior(problem, factors)
    meanfield_sweeps(problem.documents, prior, tilt, MAX_SWEEPS, TOL, gamma, problem.n_threads)
    return _summed(problem, replace(factors, gamma=gamma, tilt=tilt), prior)


def update_documents_carefully(problem: Problem, factors: Factors, n_passes: int) -> Factors:
    """Update each document as far towards its new tilt as lowers its share of the regularized objective.

    The first pass goes towards the tilt of the multipliers. Later ones go down the slope of the loss at the scores that
    the documents have by then.
    """
    wanted = tilt_of(problem, factors)
    start = factors.tilt if len(factors.tilt) else np.zeros_like(wanted)
    everything = np.arange(len(wanted))
    found = _tried(problem, factors, everything, start, 0)
    for i in range(n_passes):
        if i:
            wanted = _downhill(problem, factors, found)
        before, left = found.tilt.copy(), everything
        for way in WAYS:
            tilt = before[left] + np.float32(way) * (wanted[left] - before[left])
            trial = _tried(problem, factors, left, tilt, MAX_SWEEPS if factors.belief is None else gaussian.N_SWEEPS)
            better = trial.values < found.values[left]
            found.take(problem.documents, left, trial, better)
            left = left[~better]
            if not len(left):
                break
    moved = replace(factors, gamma=found.gamma, tilt=found.tilt, log_phi=found.log_phi)
    if factors.belief is not None:
        return coupled_update(problem, moved, n_sweeps=0)
    return _summed(problem, moved, _prior(problem, factors))


def _downhill(problem: Problem, factors: Factors, at: _Tried) -> Singles:
    """Return the tilt that the losses ask for at the scores that documents have."""
    assert problem.dual is not None
    assert factors.readout is not None
    pull = problem.dual.pulls(at.shares @ factors.readout.weights.T)
    return tilt_of(problem, replace(factors, readout=replace(factors.readout, pull=pull)))


def coupled_update(problem: Problem, factors: Factors, n_sweeps: int) -> Factors:
    """Sweep over documents whose words a Gaussian response couples, at their tilt: docs/math.md eq. (106)."""
    found = _sweep_coupled(problem, factors, np.arange(len(factors.gamma)), factors.tilt, n_sweeps)
    return replace(
        factors,
        gamma=as_table(found.gamma),
        doc_topic=as_table(found.doc_topic),
        word_topic=as_table(found.word_topic),
        entropy=float(found.entropy.sum()),
        log_phi=found.log_phi,
        overlap=found.overlap,
    )


@dataclass
class _Tried:
    """Some documents at some tilt, and each one's share of the regularized objective."""

    gamma: Singles  # (rows, columns)
    tilt: Singles  # (rows, columns)
    shares: Floats  # (rows, K)
    values: Floats  # (rows,)
    log_phi: Singles | None  # (entries of the rows, K)

    def take(self, documents: WordCounts, rows: Integers, other: _Tried, better: Flags) -> None:
        """Replace documents by what was tried for them; this one holds all documents, ``other`` holds ``rows``."""
        kept = rows[better]
        self.gamma[kept], self.tilt[kept] = other.gamma[better], other.tilt[better]
        self.shares[kept], self.values[kept] = other.shares[better], other.values[better]
        if self.log_phi is not None and other.log_phi is not None:
            entries = np.repeat(better, np.diff(documents.starts)[rows])
            self.log_phi[_entries_of(documents, kept)] = other.log_phi[entries]


def _tried(problem: Problem, factors: Factors, rows: Integers, tilt: Singles, n_sweeps: int) -> _Tried:
    """Sweep over some documents at a tilt, and evaluate them."""
    assert problem.dual is not None
    assert factors.readout is not None
    K, lengths = factors.n_topics, problem.lengths[rows]
    if factors.belief is not None:
        found = _sweep_coupled(problem, factors, rows, tilt, n_sweeps)
        gamma, log_phi, doc_topic = as_table(found.gamma), found.log_phi, found.doc_topic
        costs = proportion_divergences(found.gamma, factors.doc_prior) - found.entropy - found.words
        costs += gaussian.quadratic_costs(found.own, doc_topic, lengths, factors.belief.curvature)
        assert problem.response is not None
        reward = (problem.response.values[rows] / factors.belief.variance) @ factors.belief.mean
        costs -= np.sum(reward * doc_topic, axis=1) / lengths
    else:
        prior, documents = _prior(problem, factors), _rows_of(problem.documents, rows)
        gamma, log_phi, columns = factors.gamma[rows], None, np.empty((len(rows), tilt.shape[1]), np.float32)
        if n_sweeps:
            meanfield_sweeps(documents, prior, tilt, n_sweeps, TOL, gamma, problem.n_threads)
        logs = meanfield_statistics(documents, prior, tilt, gamma, None, columns, problem.n_threads)
        doc_topic = columns[:, :K].astype(np.float64)
        costs = np.sum(tilt[:, :K] * doc_topic, axis=1)  # the logarithms hold the tilt, which is no part of the bound
        costs -= word_bounds(logs, gamma[:, :K].astype(np.float64), lengths, factors.doc_prior)
    scores = np.zeros((len(problem.lengths), len(factors.readout.weights)))
    shares = doc_topic / lengths[:, None]
    scores[rows] = shares @ factors.readout.weights.T
    return _Tried(gamma, tilt.copy(), shares, costs + problem.dual.losses(scores)[rows], log_phi)


def _sweep_coupled(problem: Problem, factors: Factors, rows: Integers, tilt: Singles, n_sweeps: int) -> WordTopics:
    assert factors.belief is not None
    assert factors.log_phi is not None
    K, everything = factors.n_topics, len(rows) == len(factors.gamma)
    log_phi = factors.log_phi if everything else factors.log_phi[_entries_of(problem.documents, rows)]
    return gaussian.infer_words(
        _rows_of(problem.documents, rows),
        expected_log_topics(factors.topic_counts[:, :K], problem.word_prior),
        factors.doc_prior,
        Reward(tilt[:, :K].astype(np.float64), factors.belief.curvature),
        log_phi,
        factors.gamma[rows, :K].astype(np.float64),
        n_sweeps,
        problem.n_threads,
    )


def _prior(problem: Problem, factors: Factors) -> Prior:
    table = as_table(np.exp(expected_log_topics(factors.topic_counts[:, : factors.n_topics], problem.word_prior)))
    return Prior(table, factors.doc_prior.astype(np.float32))


def _summed(problem: Problem, factors: Factors, prior: Prior) -> Factors:
    """Sum the topics of words that belong to proportions and tilt."""
    K, gamma, tilt = factors.n_topics, factors.gamma, factors.tilt
    word_topic, doc_topic = np.empty_like(prior.word_given_topic), np.empty_like(gamma)
    logs = meanfield_statistics(problem.documents, prior, tilt, gamma, word_topic, doc_topic, problem.n_threads)
    log_topics = expected_log_topics(factors.topic_counts[:, :K], problem.word_prior)
    # The logarithms hold words and tilt too; they have terms of their own.
    entropy = float(logs.sum()) - float(np.vdot(word_topic[:, :K].astype(np.float64), log_topics))
    entropy -= float(np.vdot(problem.lengths, digamma(gamma[:, :K].sum(axis=1, dtype=np.float64))))
    if len(tilt):
        entropy -= float(np.vdot(tilt[:, :K].astype(np.float64), doc_topic[:, :K]))
    return replace(factors, doc_topic=doc_topic, word_topic=word_topic, entropy=entropy)


def _entries_of(documents: WordCounts, rows: Integers) -> Integers:
    """Return the entries of some documents, in their order."""
    numbers = np.diff(documents.starts)[rows]
    first = np.repeat(documents.starts[rows] - np.concatenate([[0], np.cumsum(numbers)[:-1]]), numbers)
    return np.asarray(first + np.arange(numbers.sum()))


def _rows_of(documents: WordCounts, rows: Integers) -> WordCounts:
    if len(rows) == len(documents.starts) - 1:
        return documents
    entries = _entries_of(documents, rows)
    starts = np.concatenate([[0], np.cumsum(np.diff(documents.starts)[rows])]).astype(np.int64)
    return WordCounts(documents.words[entries], documents.numbers[entries], starts)
