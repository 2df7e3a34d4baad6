"""The solver: limits, certificates, warm starts and weights."""

from __future__ import annotations

import numpy as np
import pytest

from regbayes import E, Finite, Gaussian, NotConvergedWarning, Samples, UnreliableWeightsWarning, regularize
from regbayes.regularization.log_partition import WeightedAtoms
from regbayes.regularizers import AtMost, Ball, Hinge, MultiClassHinge, Regularizer, Ridge

RNG = np.random.default_rng(0)
MODELS = RNG.normal(size=(200, 4))
POSTERIOR = Finite(MODELS, probabilities=RNG.dirichlet(np.full(200, 2.0)))
REACHABLE = MODELS.T @ RNG.dirichlet(np.full(200, 0.3))

SOFT = {
    "hinge": Hinge(5.0).shift(REACHABLE - 1),
    "ridge": Ridge(REACHABLE + 1, 0.01),
    "soft ball": Ball(REACHABLE + 1, 0.1, C=3.0),
    "multi-class hinge": MultiClassHinge(4.0).shift(REACHABLE),
}


@pytest.mark.parametrize("name", SOFT)
@pytest.mark.parametrize("limit", [0, 1, 2])
def test_iteration_limit_returns_bounds_and_gap(name, limit):
    optimum = regularize(POSTERIOR, lambda x: x, SOFT[name])
    assert optimum.n_iter > 2
    with pytest.warns(NotConvergedWarning, match=r"max_iter=\d with gap .* above the tolerance. Raise max_iter"):
        result = regularize(POSTERIOR, lambda x: x, SOFT[name], max_iter=limit)
    assert result.status == "iteration_limit"
    assert result.n_iter == limit
    # The two values enclose the optimum, and the gap is their difference.
    assert result.dual < optimum.dual < result.primal
    assert result.gap == pytest.approx(result.primal - result.dual, abs=1e-12)
    q, p = result.posterior.probabilities, POSTERIOR.probabilities
    value = float(np.sum(q * np.log(q / p))) + SOFT[name].value(MODELS.T @ q)
    assert result.primal == pytest.approx(value, rel=1e-10)


class Uncertain(Regularizer):
    """A ridge with an inexact conjugate: no gap below ``off`` can be certified."""

    def __init__(self, target: np.ndarray, off: float) -> None:
        self.ridge = Ridge(target)
        self.off = off

    def value(self, x):
        return self.ridge.value(x)

    def conjugate(self, u):
        return self.ridge.conjugate(u) + self.off

    def prox(self, x, step=1.0):
        return self.ridge.prox(x, step)


def test_solver_without_progress_reports_stalled():
    uncertain = Uncertain(REACHABLE, off=1e-3)
    with pytest.warns(NotConvergedWarning, match=r"stalled after .* above the tolerance; more iterations would not"):
        result = regularize(POSTERIOR, lambda x: x, uncertain)
    assert result.status == "stalled"
    assert result.n_iter < 200
    assert result.gap == pytest.approx(1e-3, rel=1e-6)
    with pytest.warns(NotConvergedWarning, match="stalled"):
        assert regularize(POSTERIOR, lambda x: x, uncertain, max_iter=10_000).n_iter == result.n_iter
    assert regularize(POSTERIOR, lambda x: x, uncertain, tol=2e-3).status == "optimal"


def test_iteration_limit_reports_violation_of_hard_constraints():
    with pytest.warns(NotConvergedWarning):
        result = regularize(POSTERIOR, E(lambda x: x) == REACHABLE, max_iter=1)
    assert result.status == "iteration_limit"
    off = np.abs(MODELS.T @ result.posterior.probabilities - REACHABLE)
    deviation = np.sqrt(POSTERIOR.probabilities @ (MODELS - POSTERIOR.probabilities @ MODELS) ** 2)
    assert result.violation == pytest.approx(np.max(off / deviation), rel=1e-9)
    assert result.violation > 1e-3


@pytest.mark.parametrize("tol", [1e-3, 1e-6, 1e-10])
def test_gap_and_violation_are_within_tolerance(tol):
    for regularizer in SOFT.values():
        result = regularize(POSTERIOR, lambda x: x, regularizer, tol=tol)
        assert result.status == "optimal"
        assert result.gap <= tol * (1 + abs(result.dual))
    for constraint in (E(lambda x: x) == REACHABLE, E(lambda x: x).within(0.01, of=REACHABLE, norm=1)):
        result = regularize(POSTERIOR, constraint, tol=tol)
        assert result.status == "optimal"
        assert result.violation <= tol


def test_negative_max_iter_raises_value_error():
    with pytest.raises(ValueError, match="max_iter must be at least 0, got -1"):
        regularize(POSTERIOR, E(lambda x: x) <= 0.0, max_iter=-1)


@pytest.mark.parametrize("tol", [0.0, -1e-9, np.nan])
def test_nonpositive_tolerance_raises_value_error(tol):
    with pytest.raises(ValueError, match="tol must be positive"):
        regularize(POSTERIOR, E(lambda x: x) <= 0.0, tol=tol)


def test_warm_start_converges_faster_to_same_solution():
    hard = [E(lambda x: x) == REACHABLE, E(lambda x: x**2) <= 1.4]
    first = regularize(POSTERIOR, hard)
    nearby = [E(lambda x: x) == REACHABLE + 1e-3, E(lambda x: x**2) <= 1.4]
    cold = regularize(POSTERIOR, nearby)
    warm = regularize(POSTERIOR, nearby, warm_start=first.warm_start)
    assert warm.n_iter < cold.n_iter
    np.testing.assert_allclose(warm.posterior.probabilities, cold.posterior.probabilities, atol=1e-8)
    assert regularize(POSTERIOR, hard, warm_start=first.warm_start).n_iter == 0


def test_distant_warm_start_converges():
    cold = regularize(POSTERIOR, lambda x: x, SOFT["hinge"])
    for start in (np.full(4, 1e3), np.full(4, -7.0), 1e-3 * np.ones(4)):
        warm = regularize(POSTERIOR, lambda x: x, SOFT["hinge"], warm_start=start)
        assert warm.status == "optimal"
        np.testing.assert_allclose(warm.posterior.probabilities, cold.posterior.probabilities, atol=1e-6)


def test_warm_start_with_wrong_shape_raises_value_error():
    with pytest.raises(ValueError, match=r"warm_start must have shape \(4,\), got \(3,\)"):
        regularize(POSTERIOR, E(lambda x: x) <= 0.0, warm_start=np.zeros(3))


@pytest.mark.filterwarnings("ignore::regbayes.UnreliableWeightsWarning")
def test_weighted_samples_equal_finite_posterior():
    log_weights = RNG.normal(size=200)
    constraints = [E(lambda x: x[:, 0]) >= 0.2, (E(lambda x: x[:, 1]) == 0.1).soft(0.3)]
    draws = regularize(Samples(MODELS, log_weights=log_weights + 17.0), constraints)
    models = regularize(Finite(MODELS, log_weights=log_weights), constraints)
    np.testing.assert_allclose(draws.posterior.weights, models.posterior.probabilities, atol=1e-13)
    np.testing.assert_allclose(draws.multipliers, models.multipliers, atol=1e-12)
    assert draws.kl == pytest.approx(models.kl, abs=1e-13)


def test_repeated_models_equal_weights():
    counts = RNG.integers(1, 4, size=200)
    repeated = regularize(Finite(np.repeat(MODELS, counts, axis=0)), E(lambda x: x) <= -0.05)
    weighted = regularize(Finite(MODELS, probabilities=counts / counts.sum()), E(lambda x: x) <= -0.05)
    np.testing.assert_allclose(repeated.multipliers, weighted.multipliers, atol=1e-8)


def test_unreliable_importance_weights_warn():
    draws = np.random.default_rng(1).normal(size=4000)
    with pytest.warns(UnreliableWeightsWarning, match=r"k-hat .* above 0\.7.*resample\(model"):
        far = regularize(Samples(draws), E(lambda x: x) == 3.2)
    assert far.status == "optimal"
    assert far.pareto_k > 0.7
    assert far.effective_sample_size < 100
    near = regularize(Samples(draws), E(lambda x: x) == 0.3)  # warnings are errors here, so this must not warn
    assert near.pareto_k < 0.7
    assert near.effective_sample_size > 2000


def test_regularize_is_deterministic():
    one, two = (regularize(POSTERIOR, lambda x: x, SOFT["soft ball"]) for _ in range(2))
    assert np.array_equal(one.multipliers, two.multipliers)
    assert one.primal == two.primal


def test_regularize_does_not_modify_arguments():
    before, weights = MODELS.copy(), POSTERIOR.log_weights.copy()
    start = np.zeros(4)
    regularize(POSTERIOR, lambda x: x, AtMost(REACHABLE), warm_start=start)
    assert np.array_equal(MODELS, before)
    assert np.array_equal(POSTERIOR.log_weights, weights)
    assert not np.any(start)


def test_regularizing_a_result_combines_the_tilts():
    first = regularize(POSTERIOR, E(lambda x: x[:, 0]) == 0.2)
    second = regularize(first.posterior, E(lambda x: x[:, 1]) == 0.1)
    direct = POSTERIOR.tilt(lambda x: x[:, :2], [first.multipliers[0], second.multipliers[0]])
    np.testing.assert_allclose(second.posterior.probabilities, direct.probabilities, atol=1e-12)
    with pytest.raises(TypeError, match=r"result\.posterior"):
        regularize(first, E(lambda x: x[:, 1]) == 0.1)


def test_log_partition_is_cumulant_generating_function():
    phi = np.array([0.3, -0.2, 0.1, 0.4])
    exact = np.log(POSTERIOR.probabilities @ np.exp(MODELS @ phi))
    assert POSTERIOR.log_partition(lambda x: x, phi) == pytest.approx(exact, rel=1e-12)
    gaussian = Gaussian(RNG.normal(size=4), np.diag([1.0, 2.0, 0.5, 0.1]))
    assert gaussian.log_partition(np.eye(4), phi) == pytest.approx(
        phi @ gaussian.mean + 0.5 * phi @ gaussian.covariance @ phi
    )
    with pytest.raises(ValueError, match=r"multipliers must have one entry per feature"):
        POSTERIOR.log_partition(lambda x: x, [1.0])


@pytest.mark.parametrize(("n", "m"), [(50, 3), (1000, 8), (1000, 20), (9000, 3), (9000, 20), (30_000, 40)])
@pytest.mark.parametrize("even", [True, False])
def test_moments_are_accurate_for_any_offset(n, m, even):
    """Features may be centered, offset, rare, nearly sure or constant."""
    rng = np.random.default_rng(0)
    features = rng.normal(size=(n, m))
    features[:, 0] += 1000
    features[:, 1] = rng.random(n) < 0.98
    features[:, 2] = 7.0 if m > 3 else np.exp(features[:, 2])
    logs = np.zeros(n) if even else rng.normal(size=n)
    weights = np.exp(logs) / np.exp(logs).sum()
    atoms = WeightedAtoms(features, np.log(weights))
    phi = 0.3 * rng.normal(size=m) / np.sqrt(m)
    for tilt in (np.zeros(m), phi):
        q = weights * np.exp((features - features.mean(axis=0)) @ tilt)
        q /= q.sum()
        centred = features - q @ features
        expected, scale = (centred.T * q) @ centred, centred.std(axis=0) + 1e-3
        value, mean = atoms.evaluate(tilt)
        np.testing.assert_allclose(mean, q @ features, rtol=1e-13, atol=1e-13)
        aside = np.log(weights @ np.exp(features @ tilt - 1000 * tilt[0]))
        np.testing.assert_allclose(value, aside + 1000 * tilt[0], rtol=1e-12, atol=1e-12)
        found = atoms.covariance(tilt)
        assert np.max(np.abs(found - expected) / np.outer(scale, scale)) < 1e-9
    assert np.array_equal(atoms.lowest, features.min(axis=0))
    assert np.array_equal(atoms.highest, features.max(axis=0))


def test_huge_log_weights_do_not_overflow():
    shifted = Finite(MODELS, log_weights=POSTERIOR.log_weights - 1e5)
    result = regularize(shifted, E(lambda x: x) == REACHABLE)
    plain = regularize(POSTERIOR, E(lambda x: x) == REACHABLE)
    np.testing.assert_allclose(result.posterior.probabilities, plain.posterior.probabilities, atol=1e-8)
    assert shifted.log_evidence == pytest.approx(-1e5, rel=1e-12)
