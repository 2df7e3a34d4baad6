"""Dirichlet-process sticks and normal-gamma components against sampling, quadrature and perturbation."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
from scipy import stats

from regbayes_paper.priors import dirichlet_process as process
from regbayes_paper.priors import normal_gamma as gaussian
from regbayes_paper.priors.dirichlet_process import Sticks
from regbayes_paper.priors.normal_gamma import Components, NormalGammaPrior

PRIOR = NormalGammaPrior(np.array([0.5, -1.0]), 0.4, 1.7, np.array([0.8, 2.0]))
X = np.random.default_rng(0).normal([1.0, -2.0], [1.0, 3.0], size=(30, 2))
Q = np.random.default_rng(1).dirichlet([1.0, 1.0, 0.3], size=30)
COUNTS = np.array([3.5, 0.0, 6.25, 1.0])


def test_weights_of_sticks_against_draws():
    sticks = Sticks(np.array([2.0, 1.5, 3.0]), np.array([3.0, 0.8, 2.0]))
    v = np.random.default_rng(0).beta(sticks.first, sticks.second, size=(200_000, 3))
    pi = v * np.concatenate([np.ones((len(v), 1)), np.cumprod(1 - v, axis=1)[:, :-1]], axis=1)
    np.testing.assert_allclose(process.expected_weights(sticks), pi.mean(axis=0), atol=3e-3)
    np.testing.assert_allclose(process.log_weights(sticks), np.log(pi).mean(axis=0), atol=3e-2)


def test_kl_of_sticks_against_quadrature():
    grid = np.linspace(0, 1, 200_002)[1:-1]
    expected = 0.0
    for a, b in ((2.0, 3.0), (1.5, 0.8)):
        log_q, log_p = stats.beta(a, b).logpdf(grid), stats.beta(1.0, 0.7).logpdf(grid)
        expected += np.sum(np.exp(log_q) * (log_q - log_p)) * (grid[1] - grid[0])
    assert process.kl_sticks(Sticks(np.array([2.0, 1.5]), np.array([3.0, 0.8])), 0.7) == pytest.approx(
        expected, abs=1e-3
    )


def bound_of_sticks(sticks, alpha):
    return process.kl_sticks(sticks, alpha) - COUNTS @ process.log_weights(sticks)


@pytest.mark.parametrize("alpha", [0.3, 2.0])
def test_sticks_are_best_and_their_bound_is_the_evidence(alpha):
    sticks = process.update_sticks(COUNTS, alpha)
    best = bound_of_sticks(sticks, alpha)
    assert -best == pytest.approx(float(process.log_evidence(COUNTS, alpha)), rel=1e-12)
    rng = np.random.default_rng(0)
    for _ in range(20):
        factor = np.exp(0.1 * rng.standard_normal((2, 4)))
        assert bound_of_sticks(Sticks(sticks.first * factor[0], sticks.second * factor[1]), alpha) > best


def test_falling_counts_are_the_best_order():
    values = {order: float(process.log_evidence(COUNTS[list(order)], 0.7)) for order in permutations(range(4))}
    assert max(values, key=values.__getitem__) == tuple(process.best_order(COUNTS))


def test_the_evidence_of_two_rows_is_that_of_the_process():
    """Two rows share a component with probability 1 / (1 + alpha), summed over all components."""
    alpha, far = 0.7, 400
    together = sum(np.exp(process.log_evidence(2.0 * np.eye(far)[k], alpha)) for k in range(far))
    assert together == pytest.approx(1.0 / (1.0 + alpha), rel=1e-6)


def draws(components):
    """Draws of means and precisions, for expectations by sampling."""
    rng = np.random.default_rng(3)
    precision = rng.gamma(components.shape[:, None], 1.0 / components.rate, size=(40_000, *components.rate.shape))
    mean = components.centre + rng.standard_normal(precision.shape) / np.sqrt(components.scale[:, None] * precision)
    return mean, precision


def test_expected_log_likelihoods_against_draws():
    components = gaussian.update_components(X, Q, PRIOR)
    mean, precision = draws(components)
    drawn = stats.norm.logpdf(X[0], mean, 1.0 / np.sqrt(precision)).sum(axis=2).mean(axis=0)
    np.testing.assert_allclose(gaussian.log_likelihoods(X[:1], components)[0], drawn, atol=0.05)


def test_kl_of_components_against_draws():
    components = gaussian.update_components(X, Q, PRIOR)
    mean, precision = draws(components)

    def log_p(shape, rate, centre, scale):
        gamma = stats.gamma.logpdf(precision, shape, scale=1.0 / rate)
        return gamma + stats.norm.logpdf(mean, centre, 1.0 / np.sqrt(scale * precision))

    own = log_p(components.shape[:, None], components.rate, components.centre, components.scale[:, None])
    difference = own - log_p(PRIOR.shape, PRIOR.rate, PRIOR.centre, PRIOR.scale)
    drawn = difference.sum(axis=(1, 2))
    error = 5 * drawn.std() / np.sqrt(len(drawn))
    assert gaussian.kl_components(components, PRIOR) == pytest.approx(drawn.mean(), abs=error)


def bound_of_components(components):
    return gaussian.kl_components(components, PRIOR) - np.vdot(Q, gaussian.log_likelihoods(X, components))


def test_components_are_best_and_their_bound_is_the_evidence():
    components = gaussian.update_components(X, Q, PRIOR)
    best = bound_of_components(components)
    evidence = gaussian.log_evidence(gaussian.sums(X, Q, PRIOR), PRIOR)
    assert -best == pytest.approx(evidence.sum(), rel=1e-12)
    rng = np.random.default_rng(0)
    for name in ("centre", "scale", "shape", "rate"):
        values = getattr(components, name)
        moved = values * np.exp(0.05 * rng.standard_normal(values.shape))
        assert bound_of_components(replace(components, **{name: moved})) > best


def test_the_evidence_of_one_row_is_students():
    prior = PRIOR
    scale = np.sqrt(prior.rate * (1 + 1 / prior.scale) / prior.shape)
    expected = stats.t.logpdf(X[0], 2 * prior.shape, prior.centre, scale).sum()
    found = gaussian.log_evidence(gaussian.sums(X[:1], np.ones((1, 1)), prior), prior)
    assert found[0] == pytest.approx(expected, rel=1e-12)


def test_components_without_rows_are_the_prior():
    components = gaussian.update_components(X, np.zeros((30, 1)), PRIOR)
    expected = Components(PRIOR.centre[None], np.array([PRIOR.scale]), np.array([PRIOR.shape]), PRIOR.rate[None])
    for name in ("centre", "scale", "shape", "rate"):
        np.testing.assert_array_equal(getattr(components, name), getattr(expected, name))
    assert gaussian.kl_components(components, PRIOR) == pytest.approx(0.0, abs=1e-12)


def test_sums_of_parts_are_those_of_the_whole():
    both = gaussian.sums(X[:10], Q[:10], PRIOR) + gaussian.sums(X[10:], Q[10:], PRIOR)
    whole = gaussian.sums(X, Q, PRIOR)
    for name in ("counts", "total", "squares"):
        np.testing.assert_allclose(getattr(both[1:], name), getattr(whole, name)[1:], rtol=1e-12)


def test_rows_far_from_zero_lose_no_digits():
    near = gaussian.update_components(X, Q, PRIOR)
    far = gaussian.update_components(X + 1e6, Q, replace(PRIOR, centre=PRIOR.centre + 1e6))
    np.testing.assert_allclose(far.rate, near.rate, rtol=1e-7)
