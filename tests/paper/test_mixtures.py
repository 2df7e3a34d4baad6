"""Harmoniums and the infinite SVM: densities, gradients, and optimality of block updates."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import check_grad
from scipy.special import betaln, softmax
from scipy.stats import gamma, multivariate_normal, multivariate_t
from sklearn.datasets import load_iris
from sklearn.decomposition import PCA
from sklearn.utils.estimator_checks import parametrize_with_checks

from regbayes_paper.baselines import (
    ExponentialFamilyHarmonium,
    InfiniteSVMClassifier,
    MaxMarginHarmoniumClassifier,
    harmonium,
    infinite_svm,
)
from regbayes_paper.baselines.harmonium import MarginProblem, likeliest_weights
from regbayes_paper.baselines.infinite_svm import Mixture, NormalGamma, Problem


@parametrize_with_checks(
    [
        ExponentialFamilyHarmonium(2),
        MaxMarginHarmoniumClassifier(2, C=1.0, max_iter=20, random_state=0),
        InfiniteSVMClassifier(3, max_iter=20, random_state=0),
    ]
)
def test_scikit_learn_checks_pass(estimator, check):
    check(estimator)


# --- Harmoniums


def test_gaussian_harmonium_matches_probabilistic_pca():
    X = np.random.default_rng(0).standard_normal((200, 6)) @ np.diag([3.0, 2.0, 1.0, 1.0, 0.5, 0.5])
    model, theirs = ExponentialFamilyHarmonium(2).fit(X), PCA(2).fit(X)
    covariance = theirs.get_covariance() * 199 / 200
    expected = multivariate_normal(X.mean(axis=0), covariance).logpdf(X)
    np.testing.assert_allclose(model.score_samples(X), expected, rtol=1e-8)


@pytest.mark.parametrize("n_components", [1, 3, 6])
def test_likeliest_weights_maximize_likelihood(n_components):
    rng = np.random.default_rng(0)
    t = rng.standard_normal((100, 5)) @ np.diag([2.0, 1.5, 1.1, 0.8, 0.5])

    def cost(W):
        return len(t) * harmonium.log_normalizer(W) - 0.5 * np.square(t @ W).sum()

    W = likeliest_weights(t, n_components)
    assert all(cost(W + 0.01 * rng.standard_normal(W.shape)) > cost(W) for _ in range(20))


@pytest.mark.parametrize("squared", [False, True])
def test_gradient_with_margins_matches_finite_differences(squared):
    X, y = load_iris(return_X_y=True)
    problem = MarginProblem((X - X.mean(axis=0))[::5], y[::5], 3, 0.2, squared, 0.05)
    W = 0.1 * np.random.default_rng(0).standard_normal(8)

    def evaluate(flat):
        start = None
        for _ in range(50):  # the hinge loss converges slowly
            start = problem.solve(problem.t @ flat.reshape(4, 2), start, tol=1e-12).multipliers
        return problem.evaluate(flat, start)

    gradient = evaluate(W)[1]
    error = check_grad(lambda flat: evaluate(flat)[0], lambda _: gradient, W, epsilon=1e-4)
    assert error < 1e-2 * np.linalg.norm(gradient)


def test_max_margin_harmonium_decreases_objective_and_predicts():
    X, y = load_iris(return_X_y=True)
    model = MaxMarginHarmoniumClassifier(3, C=1.0, random_state=0).fit(X, y)
    assert np.all(np.diff(model.objectives_) <= 0)
    assert model.score(X, y) > 0.95


# --- The infinite SVM


def planted(n_rows, seed=0):
    """Draw four clusters in the plane, each with its own linear rule."""
    rules = np.random.default_rng(0).standard_normal((4, 2, 2))
    rng = np.random.default_rng(seed + 1)
    cluster = rng.choice(4, size=n_rows, p=[0.4, 0.3, 0.2, 0.1])
    offset = rng.standard_normal((n_rows, 2))
    y = np.argmax(np.einsum("nd,nad->na", offset, rules[cluster]), axis=1)
    return 7.0 * np.array([[0, 0], [1, 0], [0, 1], [1, 1]])[cluster] + offset, y, cluster


PRIOR = NormalGamma(np.array([0.3, -0.2]), np.array(0.5), np.array(1.5), np.array([1.0, 2.0]))


def log_evidence(X):
    """Return the log-evidence of one component, a multivariate t distribution for each column."""
    spread = np.eye(len(X)) + 1.0 / PRIOR.scale
    columns = zip(X.T, PRIOR.centre, PRIOR.rate / PRIOR.shape, strict=True)
    return sum(multivariate_t(np.full(len(X), m), r * spread, 2 * PRIOR.shape).logpdf(x) for x, m, r in columns)


def test_log_likelihoods_match_monte_carlo_expectations():
    X = np.random.default_rng(0).standard_normal((6, 2))
    q = np.ones((6, 1))
    found = Mixture.of(X, q, 1.0, PRIOR).components
    rng = np.random.default_rng(1)
    precision = gamma.rvs(found.shape[0], scale=1 / found.rate[0], size=(200_000, 2), random_state=rng)
    means = found.centre[0] + rng.standard_normal(precision.shape) / np.sqrt(found.scale[0] * precision)
    density = 0.5 * np.log(precision / (2 * np.pi)) - 0.5 * precision * (X[0] - means) ** 2
    assert found.log_likelihoods(X)[0, 0] == pytest.approx(density.sum(axis=1).mean(), abs=0.01)


def test_mixture_updates_minimize_free_energy_above_evidence():
    X, rng = planted(12)[0] / 4, np.random.default_rng(0)
    q = rng.dirichlet(np.ones(2), 12)
    mixture = Mixture.of(X, q, 0.7, PRIOR)
    best = mixture.free_energy(X, q, 0.7, PRIOR)
    for _ in range(20):
        other = Mixture.of(X, np.abs(q + 0.05 * rng.standard_normal(q.shape)), 0.7, PRIOR)
        assert other.free_energy(X, q, 0.7, PRIOR) > best
    one = np.ones((12, 1))
    # With a single component q is the posterior, so the bound is exact up to the stick's probability.
    energy = Mixture.of(X, one, 0.7, PRIOR).free_energy(X, one, 0.7, PRIOR)
    assert -energy == pytest.approx(log_evidence(X) + betaln(13.0, 0.7) + np.log(0.7))


@pytest.mark.parametrize("squared", [False, True])
def test_infinite_svm_steps_do_not_increase_objective(squared):
    X, y, _ = planted(80)
    prior = replace(PRIOR, centre=X.mean(axis=0))
    inputs = np.column_stack([X - X.mean(axis=0), np.ones(80)])
    problem = Problem(X, inputs, y, 2, 2.0, squared, 1.0, prior, 0.5)
    at, value = problem.conclude(infinite_svm.start_responsibilities(X, 4, 1.0, 0))
    for _ in range(5):
        q = problem.update_responsibilities(at)
        np.testing.assert_allclose(q.sum(axis=1), 1.0)
        at, after = problem.step(at)
        assert after <= value + 1e-9
        value = after
    losses = problem.losses(infinite_svm.spread(at.q, inputs) @ at.machine.weights.T)
    assert at.machine.loss == pytest.approx(losses.sum())


def test_infinite_svm_recovers_simulated_rules():
    X, y, cluster = planted(400)
    X_new, y_new, _ = planted(2000, seed=1)
    model = InfiniteSVMClassifier(10, random_state=0).fit(X, y)
    assert model.n_components_ == 4
    assert model.score(X_new, y_new) > 0.9
    found = model.transform(X).argmax(axis=1)
    assert len({(a, b) for a, b in zip(cluster, found, strict=True)}) == 4
    np.testing.assert_allclose(model.transform(X), softmax(model.mixture_.logits(X), axis=1))
    original = InfiniteSVMClassifier(10, C=10.0, refit_classifiers=False, random_state=0).fit(X, y)
    assert original.score(X_new, y_new) < InfiniteSVMClassifier(10, C=10.0, random_state=0).fit(X, y).score(
        X_new, y_new
    )
