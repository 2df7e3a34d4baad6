"""What the tests of margins on the posterior share: the bound, what multipliers reward, and single rounds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from regbayes_paper.models.medlda import posterior, response
from regbayes_paper.models.medlda.posterior import Factors, Head, Problem, moments_of, shares_of


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
