"""Margins on the posterior of the training documents, as in the paper's appendix B: mean field with a dual inside.

A round updates, in turn: topics of words and proportions of documents, which the multipliers tilt towards the margins;
the topics' words; the prior of the proportions and the variance of responses, if they are estimated; the multipliers
and the weights, by the large-margin solver. At fixed multipliers no update lowers the bound. Documents and multipliers
answer each other, so the regularized objective can rise over a round; then the round is done over with careful
documents, and the fit ends when that does not help either. docs/math.md eq. (59)-(65), with a Gaussian response
(105)-(110).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from scipy.special import digamma

from regbayes._types import Floats
from regbayes.engine import Status, StepResult
from regbayes.framework.margin_accuracy import Accuracy
from regbayes.kernels.types import padded
from regbayes.models.medlda import response as gaussian
from regbayes.models.medlda.margins import solve_readout
from regbayes.models.medlda.meanfield import UNTIL_SETTLED, MeanField, even_gamma
from regbayes.models.medlda.objective import expected_log_topics, proportion_divergence, topic_divergence
from regbayes.models.medlda.posterior_documents import coupled_update, update_documents, update_documents_carefully
from regbayes.models.medlda.posterior_state import Factors, Problem, moments_of, shares_of, tilt_of
from regbayes.models.medlda.updates import update_doc_prior

START_ROUNDS = 20  # from random topics, in which documents begin anew: while topics are vague they should not settle
ACCURACY = Accuracy(gap=1e-3, max_epochs=300.0)  # of the large-margin step
# What is tried in turn, until a round does not raise the objective:
UPDATES: tuple[Callable[[Problem, Factors], Factors], ...] = (
    update_documents,
    partial(update_documents_carefully, n_passes=1),
    partial(update_documents_carefully, n_passes=5),
)


@dataclass(frozen=True)
class Round:
    """Where the alternation stands."""

    factors: Factors
    terms: dict[str, float]

    @property
    def objective(self) -> float:
        """The regularized objective."""
        return sum(self.terms.values())


def start(problem: Problem, logits: Floats, doc_prior: Floats, n_rounds: int = 1) -> Round:
    """Go from the first topics some rounds without responses, and solve for the weights."""
    topics = np.exp(logits - logits.max(axis=0))
    topics /= topics.sum(axis=0)
    K, columns = len(doc_prior), padded(len(doc_prior))
    counts = np.zeros((len(topics), columns), np.float32)
    # As many tokens as the corpus has: the prior then smooths the first topics as it will the later ones.
    counts[:, :K] = topics * (problem.lengths.sum() / K)
    gamma = even_gamma(problem.lengths, doc_prior)
    factors = Factors(gamma, gamma[:0], counts, counts, np.zeros_like(gamma), doc_prior, 0.0, None)
    for _ in range(n_rounds):
        factors = update_topics(update_documents(problem, replace(factors, gamma=gamma)))
    if problem.response is not None:
        log_topics = expected_log_topics(factors.topic_counts[:, :K], problem.word_prior)
        log_phi = gaussian.first_topics(problem.documents, log_topics, factors.gamma[:, :K].astype(np.float64))
        factors = replace(factors, log_phi=log_phi, belief=gaussian.no_belief(problem.response, K))
        factors = coupled_update(problem, replace(factors, tilt=tilt_of(problem, factors)), n_sweeps=0)
    return _concluded(problem, factors)


def step(problem: Problem, at: Round) -> StepResult[Round]:
    """One round: with documents that follow the multipliers, or carefully where that would raise the objective."""
    for update in UPDATES:
        after = _round(problem, at.factors, update)
        if after.objective <= at.objective or problem.dual is None:
            return StepResult(after, after.terms, _diagnostics(after))
    return StepResult(at, at.terms, _diagnostics(at), Status.CONVERGED)


def _round(problem: Problem, factors: Factors, update: Callable[[Problem, Factors], Factors]) -> Round:
    factors = update_topics(update(problem, factors))
    if problem.estimate_doc_prior:
        factors = update_prior(factors)
    if problem.response is not None and problem.response.estimate:
        factors = update_response_variance(problem, factors)
    return _concluded(problem, factors)


def _diagnostics(at: Round) -> dict[str, float]:
    return {"gap": 0.0 if at.factors.readout is None else at.factors.readout.solution.gap}


def update_topics(factors: Factors) -> Factors:
    """Update the topics' words, docs/math.md eq. (63)."""
    return replace(factors, topic_counts=factors.word_topic)


def update_prior(factors: Factors) -> Factors:
    """Update the Dirichlet parameters of the proportions by empirical Bayes."""
    gamma = factors.gamma[:, : factors.n_topics].astype(np.float64)
    expected = digamma(gamma) - digamma(gamma.sum(axis=1))[:, None]
    return replace(factors, doc_prior=update_doc_prior(factors.doc_prior, expected.sum(axis=0), len(gamma)))


def update_response_variance(problem: Problem, factors: Factors) -> Factors:
    """Update the variance of the responses by empirical Bayes, docs/math.md eq. (109)."""
    assert problem.response is not None
    assert factors.belief is not None
    seen = moments_of(problem, factors)
    return replace(factors, belief=gaussian.update_variance(seen, problem.response, factors.belief))


def word_terms(problem: Problem, factors: Factors) -> dict[str, float]:
    """Return the terms of the negative bound on the log-probability of the words, docs/math.md eq. (60)."""
    K = factors.n_topics
    counts = factors.word_topic[:, :K].astype(np.float64)
    log_topics = expected_log_topics(factors.topic_counts[:, :K], problem.word_prior)
    gamma = factors.gamma[:, :K].astype(np.float64)
    return {
        "words": -float(np.vdot(counts, log_topics)) - factors.entropy,
        "proportions": proportion_divergence(gamma, factors.doc_prior),
        "topics": topic_divergence(factors.topic_counts[:, :K], problem.word_prior),
    }


def response_terms(problem: Problem, factors: Factors) -> dict[str, float]:
    """Return the terms that a Gaussian response adds, docs/math.md eq. (110); none without one."""
    if problem.response is None or factors.belief is None:
        return {}
    return gaussian.terms(moments_of(problem, factors), problem.response, factors.belief)


def _weight_terms(problem: Problem, factors: Factors) -> dict[str, float]:
    """Return the terms of the regularized objective that depend on the weights."""
    assert problem.dual is not None
    assert factors.readout is not None
    weights = factors.readout.weights
    terms = {"weights": 0.5 * float(np.vdot(weights, weights)) / problem.dual.weight_variance}
    terms |= response_terms(problem, factors)
    return terms | {"margin": float(np.sum(problem.dual.losses(shares_of(problem, factors) @ weights.T)))}


def _concluded(problem: Problem, factors: Factors) -> Round:
    """Solve for multipliers and weights, and evaluate the regularized objective."""
    words = word_terms(problem, factors)
    if problem.dual is None:
        return Round(factors, words)
    solved = _solved(problem, factors)
    terms = _weight_terms(problem, solved)
    if factors.readout is not None:
        # The solver stops at a gap; the weights before can be better still.
        kept = _with_weights(solved, factors.readout.weights)
        before = _weight_terms(problem, kept)
        if sum(before.values()) < sum(terms.values()):
            solved, terms = kept, before
    return Round(solved, words | terms)


def _solved(problem: Problem, factors: Factors) -> Factors:
    assert problem.dual is not None
    before = None if factors.readout is None else factors.readout.solution.dual
    if problem.response is None or factors.belief is None:
        return replace(factors, readout=solve_readout(shares_of(problem, factors), problem.dual, before, ACCURACY))
    seen, variance = moments_of(problem, factors), factors.belief.variance
    belief, readout = gaussian.solve_weights(seen, problem.response, problem.dual, variance, before, ACCURACY)
    return replace(factors, belief=belief, readout=readout)


def _with_weights(factors: Factors, weights: Floats) -> Factors:
    """Return the factors with other expected weights."""
    assert factors.readout is not None
    belief = None if factors.belief is None else replace(factors.belief, mean=weights)
    return replace(factors, belief=belief, readout=replace(factors.readout, weights=weights))


def terms_of(at: Round) -> dict[str, float]:
    """Return the terms of the regularized objective."""
    return at.terms


def finished(problem: Problem, at: Round) -> MeanField:
    """Return the fitted model."""
    factors, K = at.factors, at.factors.n_topics
    counts = factors.topic_counts[:, :K]
    table = np.exp(expected_log_topics(counts, problem.word_prior)).astype(np.float32)
    weights = np.zeros((0, K)) if factors.readout is None else factors.readout.folded
    total = factors.doc_topic[:, :K].sum(axis=0, dtype=np.float64)
    pseudo = (counts + np.float32(problem.word_prior)).astype(np.float32)
    variance = None if factors.belief is None else factors.belief.variance
    return MeanField(table, pseudo, factors.doc_prior, weights, total / total.sum(), UNTIL_SETTLED, variance)
