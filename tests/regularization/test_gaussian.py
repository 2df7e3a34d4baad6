"""Gaussian posteriors equal SVMs and the limit of many draws."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest
from sklearn.svm import LinearSVC, LinearSVR

from regbayes import E, Gaussian, InfeasibleError, NotConvergedWarning, Samples, regularize
from regbayes.regularizers import (
    AtMost,
    Ball,
    EpsilonInsensitive,
    Equal,
    Hinge,
    MultiClassHinge,
    Ridge,
)

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 5))
Y = np.where(X @ RNG.normal(size=5) + RNG.normal(size=60) > 0, 1.0, -1.0)
TARGET = X @ RNG.normal(size=5) + 0.3 * RNG.normal(size=60)
EXACT = {"fit_intercept": False, "tol": 1e-9, "max_iter": 1_000_000, "random_state": 0}


def prior(d: int = 5) -> Gaussian:
    return Gaussian(np.zeros(d), np.ones(d))


@pytest.mark.parametrize("C", [0.01, 0.3, 10.0])
def test_hinge_margins_equal_liblinear_svm(C):
    result = regularize(prior(), Y[:, None] * X, Hinge(C).reflect(1.0))
    machine = LinearSVC(loss="hinge", C=C, dual=True, **EXACT).fit(X, Y)
    np.testing.assert_allclose(result.posterior.mean, machine.coef_[0], atol=1e-6)
    w = machine.coef_[0]
    objective = 0.5 * w @ w + C * np.sum(np.maximum(0, 1 - Y * (X @ w)))
    assert result.primal == pytest.approx(objective, abs=1e-7)
    # The multipliers are the dual coefficients of the SVM: bounded, and zero for samples beyond the margin.
    margin = Y * (X @ w)
    assert np.all((result.multipliers >= -1e-12) & (result.multipliers <= C + 1e-12))
    assert np.all(np.abs(result.multipliers[margin > 1 + 1e-6]) < 1e-9)
    np.testing.assert_allclose(result.multipliers[margin < 1 - 1e-6], C, atol=1e-9)


@pytest.mark.parametrize("C", [0.01, 0.3, 10.0])
def test_squared_hinge_margins_equal_liblinear_svm(C):
    result = regularize(prior(), E(Y[:, None] * X).regularized(Hinge(C, power=2).reflect(1.0)))
    machine = LinearSVC(loss="squared_hinge", C=C, dual=True, **EXACT).fit(X, Y)
    np.testing.assert_allclose(result.posterior.mean, machine.coef_[0], atol=1e-6)


@pytest.mark.parametrize(("C", "epsilon"), [(0.03, 0.1), (1.0, 0.5), (1.0, 0.0)])
def test_epsilon_insensitive_equals_liblinear_svr(C, epsilon):
    result = regularize(prior(), X, EpsilonInsensitive(TARGET, epsilon, C))
    machine = LinearSVR(loss="epsilon_insensitive", C=C, epsilon=epsilon, dual=True, **EXACT).fit(X, TARGET)
    np.testing.assert_allclose(result.posterior.mean, machine.coef_, atol=1e-6)


def test_multi_class_hinge_equals_crammer_singer_svm():
    n, d, k, C = 25, 3, 3, 0.4
    rows = X[:n, :d]
    labels = np.argmax(rows @ RNG.normal(size=(d, k)) + RNG.normal(size=(n, k)), axis=1)
    wrong = 1.0 - np.eye(k)[labels]  # (n, k): one for every class but the true one
    # psi_ny = <w_y, x_n> - <w_label, x_n>, a linear function of the concatenated weight vectors
    sign = np.eye(k)[None, :, :] - np.eye(k)[labels][:, None, :]
    features = (sign[:, :, :, None] * rows[:, None, None, :]).reshape(n * k, k * d)
    result = regularize(prior(k * d), features, MultiClassHinge(C, wrong))
    machine = LinearSVC(multi_class="crammer_singer", C=C, **EXACT).fit(rows, labels)
    np.testing.assert_allclose(result.posterior.mean.reshape(k, d), machine.coef_, atol=1e-6)


def test_ridge_equals_ridge_regression():
    result = regularize(prior(), X, Ridge(TARGET, 0.7))
    np.testing.assert_allclose(
        result.posterior.mean, np.linalg.solve(X.T @ X / 0.7 + np.eye(5), X.T @ TARGET / 0.7), atol=1e-6
    )


def covariance(d: int) -> np.ndarray:
    root = RNG.normal(size=(d, d))
    return root @ root.T / d + 0.1 * np.eye(d)


def test_equalities_shift_the_mean_as_conditioning_does():
    # The mean moves as under conditioning on A w = b; the covariance does not change under expectation constraints.
    mean, sigma, A, b = RNG.normal(size=4), covariance(4), RNG.normal(size=(2, 4)), RNG.normal(size=2)
    result = regularize(Gaussian(mean, sigma), A, Equal(b))
    gain = sigma @ A.T @ np.linalg.inv(A @ sigma @ A.T)
    np.testing.assert_allclose(result.posterior.mean, mean + gain @ (b - A @ mean), atol=1e-8)
    np.testing.assert_allclose(result.posterior.covariance, sigma)
    moved = result.posterior.mean - mean
    assert result.kl == pytest.approx(0.5 * moved @ np.linalg.solve(sigma, moved), rel=1e-8)


def test_full_covariance_equals_change_of_variables():
    sigma = covariance(5)
    root = np.linalg.cholesky(sigma)
    result = regularize(Gaussian(np.zeros(5), sigma), Y[:, None] * X, Hinge(0.3).reflect(1.0))
    machine = LinearSVC(loss="hinge", C=0.3, dual=True, **EXACT).fit(X @ root, Y)
    np.testing.assert_allclose(result.posterior.mean, root @ machine.coef_[0], atol=1e-6)


def test_dense_and_diagonal_covariance_agree():
    variances = np.array([0.5, 2.0, 1.0, 0.1, 3.0])
    mean = RNG.normal(size=5)
    for regularizer in (Hinge(0.3).reflect(1.0), Ball(Y, 3.0, C=0.5)):
        diagonal = regularize(Gaussian(mean, variances), X, regularizer)
        dense = regularize(Gaussian(mean, np.diag(variances)), X, regularizer)
        np.testing.assert_allclose(diagonal.posterior.mean, dense.posterior.mean, atol=1e-7)
        np.testing.assert_allclose(diagonal.multipliers, dense.multipliers, atol=1e-6)


def test_affine_functions_and_coefficients_agree():
    posterior = Gaussian(RNG.normal(size=5), covariance(5))
    by_array = regularize(posterior, X[:3], AtMost([0.1, 0.2, -0.3]))
    by_function = regularize(posterior, lambda w: X[:3] @ w, AtMost([0.1, 0.2, -0.3]))
    shifted = regularize(posterior, lambda w: X[:3] @ w + 5.0, AtMost([5.1, 5.2, 4.7]))
    np.testing.assert_allclose(by_function.posterior.mean, by_array.posterior.mean, atol=1e-8)
    np.testing.assert_allclose(shifted.posterior.mean, by_array.posterior.mean, atol=1e-7)
    np.testing.assert_allclose(shifted.before, by_array.before + 5.0, atol=1e-12)


def test_non_affine_function_raises_value_error():
    with pytest.raises(ValueError, match=r"must be affine.*\n?.*use Samples"):
        regularize(prior(), E(lambda w: w**2) <= 1.0)


def test_function_for_draws_on_gaussian_raises_with_explanation():
    with pytest.raises(ValueError, match=r"called with one vector of shape \(\d+,\), not with draws"):
        regularize(prior(), E(lambda draws: draws[:, 0]) <= 1.0)


def test_singular_covariance_moves_only_in_its_range():
    posterior = Gaussian(np.zeros(2), np.array([[1.0, 1.0], [1.0, 1.0]]))
    result = regularize(posterior, E(np.array([1.0, 0.0])) == 2.0)
    np.testing.assert_allclose(result.posterior.mean, [2.0, 2.0], atol=1e-8)
    with pytest.raises(InfeasibleError):
        regularize(posterior, E(np.array([1.0, -1.0])) == 2.0)


def test_sample_of_tilted_gaussian_has_its_moments():
    result = regularize(Gaussian([0.0, 1.0], [[1.0, 0.6], [0.6, 2.0]]), E(np.array([1.0, 1.0])) >= 3.0)
    draws = result.sample(np.random.default_rng(1), size=40_000)
    np.testing.assert_allclose(draws.mean(axis=0), result.posterior.mean, atol=0.04)
    np.testing.assert_allclose(np.cov(draws.T), [[1.0, 0.6], [0.6, 2.0]], atol=0.06)


def test_hard_margins_equal_hard_margin_svm():
    separable = X[np.abs(X[:, 0]) > 0.4]
    labels = np.sign(separable[:, 0])
    result = regularize(prior(), labels[:, None] * separable, Hinge(np.inf).reflect(1.0))
    w = cp.Variable(5)
    problem = cp.Problem(cp.Minimize(cp.sum_squares(w) / 2), [cp.multiply(labels, separable @ w) >= 1])
    problem.solve(solver=cp.CLARABEL, tol_gap_abs=1e-10, tol_gap_rel=1e-10, tol_feas=1e-10)
    np.testing.assert_allclose(result.posterior.mean, w.value, atol=1e-6)
    assert np.min(labels * (separable @ result.posterior.mean)) >= 1 - 1e-7
    assert result.violation <= 1e-9


def noisy(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Return samples and labels that no hyperplane separates."""
    rng = np.random.default_rng(n)
    rows = rng.normal(size=(n, 5))
    return rows, np.where(rows[:, 0] + rng.normal(size=n) > 0, 1.0, -1.0)


@pytest.mark.parametrize("C", [1e2, 1e4])
@pytest.mark.parametrize("n", [30, 60, 120])
def test_hinge_with_large_penalty_is_solved(n, C):
    """For large C the dual is close to a linear program."""
    rows, labels = noisy(n)
    result = regularize(prior(), labels[:, None] * rows, Hinge(C).reflect(1.0))
    assert result.status == "optimal"
    w = cp.Variable(5)
    objective = cp.sum_squares(w) / 2 + C * cp.sum(cp.pos(1 - cp.multiply(labels, rows @ w)))
    problem = cp.Problem(cp.Minimize(objective))
    problem.solve(solver=cp.CLARABEL)
    assert result.primal == pytest.approx(problem.value, rel=1e-6)
    assert result.gap <= 1e-9 * (1 + result.dual)


@pytest.mark.parametrize("n", [250, 1500])
def test_many_margins_agree_with_svm(n):
    """Many multipliers use another algorithm with the same solution and certificate."""
    rows, labels = noisy(n)
    result = regularize(prior(), labels[:, None] * rows, Hinge(0.5).reflect(1.0))
    machine = LinearSVC(loss="hinge", C=0.5, dual=True, **EXACT).fit(rows, labels)
    assert result.status == "optimal"
    np.testing.assert_allclose(result.posterior.mean, machine.coef_[0], atol=1e-6)
    assert result.gap <= 1e-9 * (1 + result.dual)
    with pytest.raises(InfeasibleError, match="contradict"):
        regularize(prior(), labels[:, None] * rows, Hinge(np.inf).reflect(1.0))


def test_early_stopping_does_not_report_infeasible():
    rows, labels = noisy(100)
    with pytest.warns(NotConvergedWarning):
        result = regularize(prior(), labels[:, None] * rows, Hinge(1e4).reflect(1.0), max_iter=0)
    assert result.status == "iteration_limit"


SQUARE = np.array([[1.0, 0.4], [0.4, 2.0]])


@pytest.mark.filterwarnings("ignore::regbayes.UnreliableWeightsWarning")  # 400 draws may be too few
def test_samples_converge_to_gaussian_at_monte_carlo_rate():
    mean, gaussian = np.array([0.3, -0.2]), Gaussian([0.3, -0.2], SQUARE)
    features = np.array([[1.0, 0.5], [-0.3, 1.0]])
    regularizer = AtMost([-0.4, 5.0]) + Ridge([0.0, 0.4], 0.5)
    exact = regularize(gaussian, features, regularizer)

    def error(n: int, seed: int) -> float:
        draws = np.random.default_rng(seed).multivariate_normal(mean, SQUARE, size=n)
        result = regularize(Samples(draws), lambda w: w @ features.T, regularizer)
        assert result.status == "optimal"
        return float(np.sum((result.expectation(lambda w: w) - exact.posterior.mean) ** 2))

    few, many = (np.mean([error(n, seed) for seed in range(25)]) for n in (400, 6400))
    # Sixteen times the draws: a sixteenth of the mean squared error, up to the noise of 25 repetitions.
    assert 8 < few / many < 32
    # The error is the standard error of a mean of draws, inflated by the weights (about 1.5 here).
    assert many < 4 * np.trace(SQUARE) / 6400


def test_multipliers_of_samples_converge():
    exact = regularize(Gaussian([0.0], [1.0]), E(np.array([1.0])) >= 0.5)
    draws = np.random.default_rng(3).normal(size=200_000)
    result = regularize(Samples(draws), E(lambda x: x) >= 0.5)
    assert exact.multipliers[0] == pytest.approx(0.5, abs=1e-9)
    assert result.multipliers[0] == pytest.approx(0.5, abs=5 / np.sqrt(200_000))
    assert result.kl == pytest.approx(0.125, abs=5 * 0.5 / np.sqrt(200_000))


@pytest.mark.parametrize(
    ("mean", "covariance", "message"),
    [
        ([0.0, 1.0], np.eye(3), "mean must have shape"),
        ([0.0, np.nan], np.eye(2), "must be finite"),
        ([0.0, 1.0], [[1.0, 0.0], [0.0, -1.0]], "positive semi-definite"),
        ([0.0, 1.0], [1.0, -1.0], "positive semi-definite"),
        ([0.0, 1.0], [[1.0, 0.5], [0.0, 1.0]], "symmetric"),
        ([], [], "mean must have shape"),
    ],
)
def test_invalid_gaussian_raises(mean, covariance, message):
    with pytest.raises(ValueError, match=message):
        Gaussian(mean, covariance)


@pytest.mark.parametrize("features", [np.ones((2, 4)), np.full((1, 5), np.nan), np.ones((1, 2, 5))])
def test_invalid_gaussian_features_raise(features):
    with pytest.raises(ValueError, match="features"):
        regularize(prior(), features, Hinge())


@pytest.mark.parametrize("tilt", [1e-1, 1e-3, 1e-5, 1e-7, 1e-9])
def test_nearly_equal_gaussian_features_meet_targets(tilt):
    """The difference of the two targets constrains y, with multipliers of 1 / tilt."""
    rows, aim = np.array([[1.0, 0.0], [1.0, tilt]]), np.array([0.5, 0.5 + 0.75 * tilt])
    result = regularize(Gaussian([0.0, 0.0], [1.0, 1.0]), E(rows) == aim)
    lost = np.finfo(float).eps / tilt  # relative precision lost in the second target
    assert result.status == "optimal"
    np.testing.assert_allclose(result.posterior.mean, [0.5, 0.75], atol=8 * lost)
    np.testing.assert_allclose(result.multipliers * tilt, [0.5 * tilt - 0.75, 0.75], atol=8 * lost)
    np.testing.assert_allclose([result.kl, result.dual, result.primal], 0.5 * (0.5**2 + 0.75**2), atol=8 * lost)
    assert np.max(np.abs(rows @ result.posterior.mean - aim)) <= 1e-15
