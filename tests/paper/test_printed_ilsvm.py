"""Algorithm 3: optimality of block updates, and enumeration of small models."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from scipy.special import expit, softmax
from scipy.stats import multivariate_normal
from sklearn.datasets import load_iris
from sklearn.utils.estimator_checks import parametrize_with_checks

from regbayes_paper.printed_ilsvm import PrintedILSVMClassifier, Problem, sample_at_multipliers

RNG = np.random.default_rng(0)
X = RNG.standard_normal((30, 5)) + 2.0 * (np.arange(30) % 3 == 0)[:, None]
PROBLEM = Problem(X - X.mean(axis=0), np.arange(30) % 3, 3, np.where(np.arange(30) < 24, 0.7, 0.0), 1.5, 1e-3)


@parametrize_with_checks([PrintedILSVMClassifier(3, C=10.0, random_state=0)])
def test_scikit_learn_checks_pass(estimator, check):
    check(estimator)


@pytest.fixture
def state():
    found = PROBLEM.start(4, "half", np.random.RandomState(0))
    found = replace(found, psi=RNG.uniform(0.1, 0.9, found.psi.shape), noise=RNG.uniform(0.5, 2.0, 30))
    return PROBLEM.update_classifier(PROBLEM.update_weights(PROBLEM.update_sticks(found)), 1e-8, 1000)


def test_errors_match_enumeration_of_features(state):
    """``errors`` is E |x - W z|^2 over binary z and Gaussian W."""
    expected = np.zeros(30)
    for z in product([0.0, 1.0], repeat=4):
        weight = np.prod(np.where(z, state.psi, 1.0 - state.psi), axis=1)
        rest = np.sum((PROBLEM.X - np.array(z) @ state.means) ** 2, axis=1)
        expected += weight * (rest + 5 * state.spread @ np.array(z))
    np.testing.assert_allclose(PROBLEM.errors(state), expected)


def test_coordinate_updates_minimize_lagrangian(state):
    """Each update of a feature, weight or variance minimizes the Lagrangian."""

    def rises(updated, name, index, moves):
        best = PROBLEM.lagrangian(updated)
        for move in moves:
            array = np.array(getattr(updated, name), dtype=float)
            array[index] = move(array[index])
            value = array if array.ndim else float(array)
            assert PROBLEM.lagrangian(replace(updated, **{name: value})) > best, name

    both = [lambda a: a + 1e-3, lambda a: a - 1e-3]
    features = PROBLEM.update_features(state)  # only the last feature is optimal given the final values of all others
    assert PROBLEM.lagrangian(features) < PROBLEM.lagrangian(state)
    for n in (0, 7, 29):
        rises(features, "psi", (n, 3), both)
    weights = PROBLEM.update_weights(state)
    assert PROBLEM.lagrangian(weights) <= PROBLEM.lagrangian(state)
    for d in range(5):
        rises(weights, "means", (3, d), both)
    for k in range(4):
        rises(weights, "spread", k, [lambda a: 1.01 * a, lambda a: 0.99 * a])
    noise = PROBLEM.update_noise(state)
    assert np.all(noise.noise > PROBLEM.floor)
    for n in (0, 11):
        rises(noise, "noise", n, [lambda a: 1.01 * a, lambda a: 0.99 * a])
    rises(PROBLEM.update_prior_variance(state), "prior_variance", (), [lambda a: 1.01 * a, lambda a: 0.99 * a])


def test_update_classifier_minimizes_kl_plus_hinge_losses(state):
    best = PROBLEM.objective(state)
    for size in (1e-3, 1e-1):
        for _ in range(20):
            moved = state.classifier + size * RNG.standard_normal(state.classifier.shape)
            assert PROBLEM.objective(replace(state, classifier=moved)) > best - 1e-5
    np.testing.assert_allclose(state.classifier, state.multipliers.T @ state.psi, atol=1e-9)
    assert not np.any(state.multipliers[24:])  # samples without margins


def test_inner_loop_does_not_increase_lagrangian(state):
    values = [PROBLEM.lagrangian(state)]
    for _ in range(20):
        for update in (PROBLEM.update_sticks, PROBLEM.update_weights, PROBLEM.update_features):
            state = update(state)
            values.append(PROBLEM.lagrangian(state))
    assert np.all(np.diff(values) <= 1e-9)


def test_decaying_start_has_decreasing_feature_probabilities():
    psi = PROBLEM.start(6, "decaying", np.random.RandomState(0)).psi
    np.testing.assert_allclose(psi.mean(axis=0), 0.6 ** np.arange(1, 7), atol=0.03)
    half = PROBLEM.start(6, "half", np.random.RandomState(0)).psi
    assert half.mean() == pytest.approx(0.5, abs=0.01)
    assert half.std() == pytest.approx(np.sqrt(1e-3), rel=0.1)


def test_gibbs_draws_match_moments_of_enumerated_posterior():
    """Compare with q(Z, W, eta) at fixed multipliers: enumerate Z and integrate W and eta analytically."""
    rng, N, K, D, L = np.random.default_rng(1), 3, 2, 2, 2
    tiny = Problem(rng.standard_normal((N, D)), np.array([0, 1, 0]), L, np.ones(N), 1.0, 1e-3)
    multipliers = 0.8 * rng.standard_normal((N, 1)) * np.array([[1.0, -1.0]])
    state = tiny.start(K, "half", np.random.RandomState(0))
    state = replace(state, multipliers=multipliers, noise=np.array([0.5, 1.0, 0.7]), prior_variance=1.3)
    log_odds = np.array([0.4, -0.5])
    table = np.array(list(product([0.0, 1.0], repeat=N * K))).reshape(-1, N, K)
    logs = []
    for Z in table:
        spread = 1.3 * Z @ Z.T + np.diag(state.noise)
        evidence = sum(multivariate_normal(np.zeros(N), spread).logpdf(column) for column in tiny.X.T)
        logs.append(evidence + Z.sum(axis=0) @ log_odds + 0.5 * np.sum((multipliers.T @ Z) ** 2))
    exact = np.tensordot(softmax(logs), table, axes=1)
    draws = list(sample_at_multipliers(tiny, state, log_odds, 20_000, rng))
    found = np.mean([Z for Z, _, _ in draws], axis=0)
    np.testing.assert_allclose(found, exact, atol=0.02)
    etas = np.mean([eta for _, _, eta in draws], axis=0)
    np.testing.assert_allclose(etas, multipliers.T @ exact, atol=0.05)
    assert expit(log_odds[0]) != pytest.approx(exact[0, 0], abs=0.05)  # the posterior differs from the prior


def test_fit_depends_on_seed_and_accepts_unlabeled_samples():
    X, y = load_iris(return_X_y=True)
    fits = [PrintedILSVMClassifier(5, C=20.0, random_state=seed).fit(X, y) for seed in (0, 1)]
    assert not np.allclose(fits[0].state_.psi, fits[1].state_.psi, atol=1e-3)
    assert max(fit.score(X, y) for fit in fits) > 0.6
    hidden = np.where(np.arange(150) % 2, y, -1)
    joint = PrintedILSVMClassifier(5, C=20.0, unlabeled=-1, random_state=0).fit(X, hidden)
    np.testing.assert_array_equal(joint.classes_, [0, 1, 2])
    assert not np.any(joint.state_.multipliers[::2])
