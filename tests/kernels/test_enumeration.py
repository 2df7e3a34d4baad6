"""Few on/off features by enumeration: kernels against brute force and differences, and the model that uses them."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from scipy.special import logsumexp
from scipy.stats import norm

from ilsvm_model_tools import EXACT as SOLVED
from ilsvm_model_tools import make_problem, start_of
from regbayes.kernels.enumeration import MOST_COUPLED, enumerate_features, reverse_enumerated
from regbayes.models.ilsvm.model import EXACT, expected_residual
from regbayes.models.indian_buffet import stick_expectations


def draw(n=7, k=4, seed=0, apart=()):
    rng = np.random.default_rng(seed)
    root = rng.standard_normal((k, k))
    coupling = root @ root.T
    for feature in apart:
        coupling[feature, np.arange(k) != feature] = coupling[np.arange(k) != feature, feature] = 0.0
    return 3.0 * rng.standard_normal((n, k)), coupling, rng.uniform(0.5, 2.0, n)


def brute_force(theta, coupling):
    """Every state in turn: its log-weight for each row."""
    states = np.array(list(product([0.0, 1.0], repeat=theta.shape[1])))
    pairs = coupling - np.diag(np.diag(coupling))
    return states, np.array([theta @ s - sum(pairs[i, j] * s[i] * s[j] for i in range(len(s)) for j in range(i))
                             for s in states]).T  # fmt: skip


@pytest.mark.parametrize("apart", [(), (1,), (0, 1, 2, 3)])
def test_the_posterior_is_that_of_brute_force(apart):
    theta, coupling, weights = draw(apart=apart)
    states, logits = brute_force(theta, coupling)
    total = logsumexp(logits, axis=1)
    P = np.exp(logits - total[:, None])
    found = enumerate_features(theta, coupling, weights)
    assert found.psi == pytest.approx(P @ states, abs=1e-12)
    assert found.log_partitions == pytest.approx(total, rel=1e-12)
    assert found.entropies == pytest.approx(-(P * np.log(P)).sum(axis=1), abs=1e-11)
    assert found.second_moment == pytest.approx((states.T * (weights @ P)) @ states, rel=1e-11)


@pytest.mark.parametrize("apart", [(), (2,), (0, 2), (0, 1, 2, 3)])
def test_the_reverse_agrees_with_differences(apart):
    theta, coupling, _ = draw(apart=apart)
    grad = np.random.default_rng(5).standard_normal(theta.shape)
    found = reverse_enumerated(grad, theta, coupling)

    def value(theta, coupling):
        return float(np.vdot(grad, enumerate_features(theta, coupling).psi))

    h, rng = 1e-6, np.random.default_rng(6)
    move = rng.standard_normal(theta.shape)
    slope = (value(theta + h * move, coupling) - value(theta - h * move, coupling)) / (2 * h)
    assert slope == pytest.approx(np.vdot(found.theta, move), rel=1e-6)
    turn = rng.standard_normal(coupling.shape)
    turn = np.where(np.eye(4, dtype=bool), 0.0, turn + turn.T)  # features that were apart are coupled by it
    slope = (value(theta, coupling + h * turn) - value(theta, coupling - h * turn)) / (2 * h)
    assert slope == pytest.approx(np.vdot(found.coupling, turn), rel=1e-6)


def test_logits_of_any_size_and_many_features_that_are_not_coupled_are_no_trouble():
    theta = np.array([[800.0, -800.0, 0.0]])
    found = enumerate_features(theta, np.zeros((3, 3)))
    assert found.psi == pytest.approx(np.array([[1.0, 0.0, 0.5]]))
    assert found.log_partitions == pytest.approx(800.0 + np.log(2.0))
    coupled = enumerate_features(theta, np.full((3, 3), 1600.0))
    assert coupled.psi == pytest.approx(np.array([[1.0, 0.0, 0.0]]))
    assert enumerate_features(np.zeros((2, 60)), np.eye(60)).psi == pytest.approx(0.5)
    with pytest.raises(ValueError, match="can be enumerated, got"):
        enumerate_features(np.zeros((1, 60)), np.ones((60, 60)))
    assert MOST_COUPLED < 60


# --- the model


def exact_problem(seed=1, **changes):
    rng = np.random.default_rng(seed)
    problem = make_problem(seed, {"C": 0.3, **changes}, n_unlabeled=8, row_weights=rng.uniform(0.5, 2.0, 60))
    logs = rng.uniform(-1.0, 1.0, 7)
    params = replace(
        start_of(problem), offset=rng.standard_normal(7), noise_ratios=np.exp(logs - logs.mean()), n_sweeps=EXACT
    )
    return problem, replace(params, loadings=4.0 * params.loadings)


def test_the_gradient_of_the_objective_agrees_with_differences():
    problem, params = exact_problem()
    at, inferred = problem.joint.evaluate(params, None, SOLVED)
    gradient, model = problem.joint.gradient(at, inferred), problem.joint.model
    direction = np.random.default_rng(2).standard_normal(gradient.shape)

    def value(step):
        moved = model.move(params, model.position(params) + step * direction)
        return problem.joint.evaluate(moved, at.warm_start, SOLVED)[0].objective

    h = 1e-4
    assert (value(h) - value(-h)) / (2 * h) == pytest.approx(np.vdot(gradient, direction), rel=2e-4, abs=1e-4)


def test_no_other_posterior_has_a_lower_objective_and_mean_field_has_a_higher_one():
    problem, params = exact_problem(C=0.0)
    lowest = problem.joint.evaluate(params, None, SOLVED)[0].objective
    for n_sweeps in (1, 2, 50):
        assert problem.joint.evaluate(replace(params, n_sweeps=n_sweeps), None, SOLVED)[0].objective > lowest


def test_bounds_are_sums_over_all_states_and_residuals_those_of_all_states():
    problem, params = exact_problem()
    params, X = replace(params, temperature=1.0, variances=np.linspace(0.05, 0.2, 5)), problem.data.X
    expected, noise = stick_expectations(params.sticks), params.noise_variance * params.noise_ratios
    logs, left = [], []
    for bits in product([0.0, 1.0], repeat=5):
        z = np.array(bits)
        mean = params.offset + z @ params.loadings
        density = norm.logpdf(X.array(), mean, np.sqrt(noise)).sum(axis=1)
        spread = 0.5 * 7 * z @ params.variances / params.noise_variance
        logs.append(z @ expected.log_use + (1.0 - z) @ expected.log_rest + density - spread)
        left.append((np.square(X.array() - mean) / params.noise_ratios).sum(axis=1) + 7 * z @ params.variances)
    total = logsumexp(logs, axis=0)
    assert params.bound(X) == pytest.approx(total, rel=1e-10)
    stats = problem.joint.model.infer(X, params).stats
    assert expected_residual(stats, params) == pytest.approx(
        float(X.weights @ (np.exp(logs - total) * left).sum(axis=0)), rel=1e-10
    )
    warm = replace(params, temperature=3.0)
    assert np.all(warm.bound(X) < total)
