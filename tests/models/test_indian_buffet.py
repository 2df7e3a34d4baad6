"""The Indian buffet prior compared with Monte Carlo, direct O(K^2) formulas, and numerical minimization."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.special import digamma, logsumexp
from scipy.stats import beta

from regbayes.models.indian_buffet import (
    Sticks,
    cross_entropy_features,
    kl_sticks,
    prior_sticks,
    stick_expectations,
    stick_weights,
    update_sticks,
)


def random_sticks(rng, n_features):
    return Sticks(rng.gamma(2.0, 2.0, n_features) + 0.1, rng.gamma(2.0, 2.0, n_features) + 0.1)


def bound_terms(sticks):
    """Return t_m from its definition, one at a time."""
    g1, g2 = sticks.first, sticks.second
    return np.array(
        [digamma(g2[m]) + digamma(g1[:m]).sum() - digamma((g1 + g2)[: m + 1]).sum() for m in range(len(g1))]
    )


def majorizer(sticks, weights, counts, n_rows, alpha):
    """Return KL of the sticks plus the bound on -E[log p(Z | nu)] at fixed multinomial weights q_km."""
    t = bound_terms(sticks)
    log_use = np.cumsum(digamma(sticks.first) - digamma(sticks.first + sticks.second))
    total = kl_sticks(sticks, alpha) - counts @ log_use
    for k, q in enumerate(weights):
        total -= (n_rows - counts[k]) * (q @ t[: k + 1] - np.sum(q * np.log(np.maximum(q, 1e-300))))
    return total


def fixed_weights(sticks):
    t = bound_terms(sticks)
    return [np.exp(t[: k + 1] - logsumexp(t[: k + 1])) for k in range(len(t))]


@given(st.integers(0, 10_000), st.integers(1, 7))
@settings(max_examples=25, deadline=None)
def test_expectations_agree_with_monte_carlo_and_bound(seed, n_features):
    rng = np.random.default_rng(seed)
    sticks = random_sticks(rng, n_features)
    expected = stick_expectations(sticks)
    nu = rng.beta(sticks.first, sticks.second, size=(40_000, n_features))
    log_pi = np.cumsum(np.log(nu), axis=1)
    error = 5 * log_pi.std(axis=0) / 200 + 1e-3
    assert np.all(np.abs(log_pi.mean(axis=0) - expected.log_use) < error)
    log_rest = np.log1p(-np.exp(np.minimum(log_pi, -1e-12)))
    assert np.all(expected.log_rest <= log_rest.mean(axis=0) + 5 * log_rest.std(axis=0) / 200 + 1e-3)


def test_bound_is_exact_for_the_first_stick():
    sticks = random_sticks(np.random.default_rng(3), 4)
    expected = stick_expectations(sticks)
    exact, _ = quad(lambda v: np.log1p(-v) * beta(sticks.first[0], sticks.second[0]).pdf(v), 0, 1)
    assert expected.log_rest[0] == pytest.approx(exact, abs=1e-6)


@given(st.integers(0, 10_000), st.integers(1, 8))
@settings(max_examples=30, deadline=None)
def test_update_minimizes_the_majorizer(seed, n_features):
    rng = np.random.default_rng(seed)
    sticks, alpha, n_rows = random_sticks(rng, n_features), rng.gamma(2.0), 30.0
    counts = rng.uniform(0, n_rows, n_features)
    weights = fixed_weights(sticks)
    moved = update_sticks(sticks, counts, n_rows, alpha)
    best = majorizer(moved, weights, counts, n_rows, alpha)
    for _ in range(40):
        noise = np.exp(rng.normal(scale=rng.choice([1e-3, 0.1, 1.0]), size=(2, n_features)))
        other = Sticks(moved.first * noise[0], moved.second * noise[1])
        assert majorizer(other, weights, counts, n_rows, alpha) >= best - 1e-9 * (1 + abs(best))


@given(st.integers(0, 10_000), st.integers(1, 8))
@settings(max_examples=30, deadline=None)
def test_repeated_updates_never_raise_the_bound(seed, n_features):
    rng = np.random.default_rng(seed)
    sticks, alpha, n_rows = random_sticks(rng, n_features), rng.gamma(2.0), 25.0
    counts = rng.uniform(0, n_rows, n_features)

    def objective(s):
        return kl_sticks(s, alpha) + cross_entropy_features(stick_expectations(s), counts, n_rows)

    values = [objective(sticks)]
    for _ in range(15):
        sticks = update_sticks(sticks, counts, n_rows, alpha)
        values.append(objective(sticks))
    assert np.all(np.diff(values) <= 1e-9 * (1 + np.abs(values[:-1])))


def test_kl_agrees_with_quadrature():
    sticks, alpha = Sticks(np.array([1.7]), np.array([2.3])), 3.1
    q, p = beta(1.7, 2.3), beta(alpha, 1.0)
    exact, _ = quad(lambda v: q.pdf(v) * (q.logpdf(v) - p.logpdf(v)), 1e-12, 1 - 1e-12)
    assert kl_sticks(sticks, alpha) == pytest.approx(exact, abs=1e-8)
    assert kl_sticks(prior_sticks(alpha, 5), alpha) == pytest.approx(0.0, abs=1e-12)


def test_zero_rows_give_the_prior():
    moved = update_sticks(random_sticks(np.random.default_rng(0), 6), np.zeros(6), 0.0, 2.5)
    assert np.allclose(moved.first, 2.5)
    assert np.allclose(moved.second, 1.0)


def test_stick_weights_decrease():
    weights = stick_weights(random_sticks(np.random.default_rng(1), 9))
    assert np.all(np.diff(weights) < 0)
    assert weights[0] < 1
