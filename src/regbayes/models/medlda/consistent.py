"""Margins on what prediction sees: descent over the topics, through label-free inference.

Topics of a document are what S sweeps of mean field find for it *without its response*, for training and new documents
alike: RegBayes over a smaller family. Margins then act on the topics' words through the sweeps, and the exact gradient
goes back through them. L-BFGS with a backtracking line search: J never rises. docs/math.md eq. (66)-(71).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from regbayes._types import Floats, Singles
from regbayes.engine import Status, StepResult
from regbayes.framework.margin_accuracy import Accuracy, AccuracyRule
from regbayes.joint import quasi_newton
from regbayes.joint.quasi_newton import Moves
from regbayes.kernels.meanfield import Prior, WordCounts, infer_by_sweeps, reverse_sweeps
from regbayes.kernels.types import padded
from regbayes.models.medlda.margins import Dual, Readout, solve_readout
from regbayes.models.medlda.meanfield import MeanField, word_bounds

MAX_TRIALS = 10
N_PAIRS = 3  # that L-BFGS remembers, each two tables of words by topics; ten did no better
FIRST_MOVE = 0.1  # root mean square of the first change of the logits
FIRST = Accuracy(gap=1e-3, max_epochs=20.0)  # of the large-margin step
FINAL = Accuracy(gap=1e-4, max_epochs=300.0)  # once the topics stand
RULE = AccuracyRule(gap_share=0.1, gap_range=(1e-6, 1e-3), epoch_range=(10.0, 40.0))


@dataclass(frozen=True)
class Problem:
    """What stays the same through a fit. No document is empty."""

    documents: WordCounts
    lengths: Floats  # (N,)
    dual: Dual
    doc_prior: Floats  # (K,)
    word_prior: float
    n_sweeps: int
    n_threads: int

    @property
    def n_topics(self) -> int:
        """K."""
        return len(self.doc_prior)


@dataclass(frozen=True)
class Evaluation:
    """J at some logits, and what was computed on the way."""

    logits: Singles  # (V, K): log-probabilities of words in topics, up to a constant for each topic
    readout: Readout
    terms: dict[str, float]
    topics: Singles  # (V, columns)
    gamma: Singles  # (N, columns)

    @property
    def objective(self) -> float:
        """J."""
        return sum(self.terms.values())

    @property
    def multipliers(self) -> Floats:
        """Multipliers to start the next large-margin solve from."""
        return self.readout.solution.dual


@dataclass(frozen=True)
class Search:
    """An accepted point, its gradient, and what L-BFGS remembers."""

    at: Evaluation
    gradient: Singles  # (V, K)
    moves: Moves = ()
    accuracy: Accuracy = FIRST


def evaluate(problem: Problem, logits: Singles, warm_start: Floats | None, accuracy: Accuracy) -> Evaluation:
    """Compute J: inference, bound, large-margin step."""
    K, N = problem.n_topics, len(problem.lengths)
    shifted = logits - logits.max(axis=0)
    weight = np.exp(shifted)
    mass = weight.sum(axis=0, dtype=np.float64)
    topics = np.zeros((len(logits), padded(K)), np.float32)
    topics[:, :K] = weight / mass
    columns = np.empty((N, padded(K)), np.float32)
    prior = Prior(topics, problem.doc_prior.astype(np.float32))
    logs = infer_by_sweeps(problem.documents, prior, problem.n_sweeps, columns, problem.n_threads)
    gamma = columns[:, :K].astype(np.float64)
    log_sum = float(shifted.sum(dtype=np.float64)) - len(logits) * float(np.sum(np.log(mass)))
    shares = (gamma - problem.doc_prior) / problem.lengths[:, None]
    readout = solve_readout(shares, problem.dual, warm_start, accuracy)
    squares = 0.5 * float(np.vdot(readout.solution.weights, readout.solution.weights))
    terms = {
        "words": -float(np.sum(word_bounds(logs, gamma, problem.lengths, problem.doc_prior))),
        "topics": -problem.word_prior * log_sum,
        "weights": squares,
        "margin": readout.solution.primal - squares,
    }
    return Evaluation(logits, readout, terms, topics, columns)


def gradient(problem: Problem, at: Evaluation) -> Singles:
    """Return the derivatives of J by the logits, docs/math.md eq. (69)-(71), shape (V, K)."""
    K = problem.n_topics
    by_gamma = np.zeros(at.gamma.shape, np.float32)
    by_gamma[:, :K] = at.readout.slopes() / problem.lengths[:, None]
    prior = Prior(at.topics, problem.doc_prior.astype(np.float32))
    table = reverse_sweeps(problem.documents, prior, problem.n_sweeps, at.gamma, by_gamma, 1.0, problem.n_threads)
    found = table[:, :K]
    topics = at.topics[:, :K]
    found *= topics
    total = found.sum(axis=0, dtype=np.float64) - problem.word_prior * len(topics)
    found -= topics * total.astype(np.float32)
    found -= np.float32(problem.word_prior)
    return np.ascontiguousarray(found)


def start(problem: Problem, logits: Floats) -> Search:
    """Evaluate the start."""
    at = evaluate(problem, logits.astype(np.float32), None, FIRST)
    return Search(at, gradient(problem, at))


def step(problem: Problem, search: Search) -> StepResult[Search]:
    """One L-BFGS step."""
    search, moved, length = _downhill(problem, search)
    if moved is None:
        return StepResult(search, search.at.terms, _diagnostics(search.at, 0.0), Status.CONVERGED)
    slope = gradient(problem, moved)
    change = slope - search.gradient
    moves = quasi_newton.remember(search.moves, moved.logits - search.at.logits, change, N_PAIRS)
    accuracy = RULE.after(search.accuracy, search.at.objective - moved.objective, moved.readout.solution)
    after = Search(moved, slope, moves, accuracy)
    return StepResult(after, moved.terms, _diagnostics(moved, length))


def _diagnostics(at: Evaluation, length: float) -> dict[str, float]:
    return {"step": length, "gap": at.readout.solution.gap}


def _downhill(problem: Problem, search: Search) -> tuple[Search, Evaluation | None, float]:
    """Find a step that lowers J; where there is none, try once more without memory, then with a smaller gap."""
    while True:
        found = _line_search(problem, search)
        if found is not None:
            return search, *found
        if search.moves:
            search = replace(search, moves=())
        else:
            sharper = search.accuracy.sharper()
            if sharper is None:
                return search, None, 0.0
            search = _sharpened(problem, search, sharper)


def _line_search(problem: Problem, search: Search) -> tuple[Evaluation, float] | None:
    at = search.at
    first = FIRST_MOVE * float(np.sqrt(at.logits.size))
    way = quasi_newton.direction(search.gradient, search.moves, first)
    slope = quasi_newton.dot(search.gradient, way)

    def trial(length: float) -> Evaluation:
        return evaluate(problem, at.logits + np.float32(length) * way, at.multipliers, search.accuracy)

    return quasi_newton.backtrack(trial, at.objective, slope, MAX_TRIALS)


def _sharpened(problem: Problem, search: Search, accuracy: Accuracy) -> Search:
    """Solve for the weights more accurately: what looked like a rise may have been the gap."""
    at = evaluate(problem, search.at.logits, search.at.multipliers, accuracy)
    slope = gradient(problem, at)
    if at.objective > search.at.objective:  # a smaller gap can come with a slightly higher value: keep the lower one
        at = search.at
    return Search(at, slope, (), accuracy)


def terms_of(search: Search) -> dict[str, float]:
    """Return the terms of J."""
    return search.at.terms


def finished(problem: Problem, search: Search) -> MeanField:
    """Return the fitted model: the topics, and the weights solved for once more, accurately."""
    at, K = search.at, problem.n_topics
    gamma = at.gamma[:, :K].astype(np.float64)
    shares = (gamma - problem.doc_prior) / problem.lengths[:, None]
    weights = solve_readout(shares, problem.dual, at.multipliers, FINAL).folded
    total = np.sum(gamma - problem.doc_prior, axis=0)
    topics = np.ascontiguousarray(at.topics[:, :K])
    counts = (topics * total.astype(np.float32)).astype(np.float32)
    return MeanField(topics, counts, problem.doc_prior, weights, total / total.sum(), problem.n_sweeps)
