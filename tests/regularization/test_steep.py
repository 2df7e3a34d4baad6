"""Large penalties, simplexes, narrow intervals and many atoms."""

from __future__ import annotations

import numpy as np
import pytest

from regbayes import E, Finite, Gaussian, Samples, regularize
from regbayes.regularization.log_partition import WeightedAtoms
from regbayes.regularizers import Ball, Equal, Interval, MultiClassHinge, MultiClassSquaredHinge, Regularizer


def bounds_of(features: np.ndarray, log_weights: np.ndarray, g: Regularizer, result) -> tuple[float, float]:
    """Compute the dual at the multipliers and the primal at the weights."""
    logs = log_weights - np.logaddexp.reduce(log_weights)
    dual = -np.logaddexp.reduce(logs + features @ result.multipliers) - g.conjugate(-result.multipliers)
    log_q = result.posterior.log_weights
    q = np.exp(log_q)
    kl = float(q[q > 0] @ (log_q - logs)[q > 0])
    return dual, kl + g.value(q @ features)


# Simplexes in the model of a Newton step


@pytest.mark.parametrize("kind", [MultiClassHinge, MultiClassSquaredHinge])
@pytest.mark.parametrize("price", [1e-2, 1.0, 1e3, 1e6])
@pytest.mark.parametrize("nats", [0.0, 80.0])
def test_multi_class_hinge_with_any_penalty_closes_gap(kind, price, nats):
    rng = np.random.default_rng(5)
    features = rng.gamma(0.5, size=(30, 4)) * [1.0, 3.0, 0.2, 1.0]
    log_weights = np.where(np.arange(30) == 3, nats, rng.normal(size=30))
    g = kind(price, [0.5, 0.1, 0.0, 0.3])
    result = regularize(Finite(np.arange(30), log_weights=log_weights), features, g)
    dual, primal = bounds_of(features, log_weights, g, result)
    assert result.status == "optimal"
    assert primal - dual <= 1e-7 * (1 + abs(dual))
    np.testing.assert_allclose(result.dual, dual, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("norm", [1, 2, np.inf])
@pytest.mark.parametrize("price", [1e2, 1e7])
def test_ball_with_large_penalty_equals_hard_ball(norm, price):
    """The penalty exceeds the dual norm of the multipliers, so that it is exact."""
    features = np.random.default_rng(1).normal(size=(400, 6))
    target = features.mean(axis=0) + 0.2
    steep, hard = (regularize(Finite(features), features, Ball(target, 0.1, norm, C)) for C in (price, np.inf))
    assert steep.status == hard.status == "optimal"
    np.testing.assert_allclose(steep.dual, hard.dual, rtol=1e-7)


def test_gaussian_with_more_features_than_dimensions():
    """Multipliers of 1e8 cancel each other, which limits the precision of the value."""
    rng = np.random.default_rng(3)
    rows = rng.normal(size=(8, 2))
    result = regularize(Gaussian(np.zeros(2), np.eye(2)), rows, Ball(rng.normal(size=8), 0.1, 1, 1e4))
    assert result.status == "optimal"
    assert result.gap <= 2e-8 * (1 + abs(result.dual))


# Intervals


@pytest.mark.parametrize("width", [0.0, 1e-9, 1e-6, 1.0])
def test_interval_on_gaussian_equals_nearest_bound(width):
    low = np.array([300.0, -7.0])
    posterior = Gaussian([10.0, 0.0], np.diag([0.25, 4.0]))
    result = regularize(posterior, np.eye(2), Interval(low, low + width))
    d = np.array([(300 - 10) / 0.5, min(-7 + width, 0) / 2])
    assert result.status == "optimal"
    np.testing.assert_allclose(result.kl, 0.5 * d @ d, rtol=1e-12)
    assert result.warm_start.shape == (2,)


def test_interval_has_multiplier_of_active_bound():
    draws = np.random.default_rng(0).normal(size=500)
    posterior = Finite(draws)
    both, one = (regularize(posterior, c) for c in (E(draws).between(0.2, 0.5), E(draws) >= 0.2))
    np.testing.assert_allclose(both.multipliers, one.multipliers, rtol=1e-8)
    other = regularize(posterior, E(draws).between(-0.5, -0.2))
    np.testing.assert_allclose(other.after, -0.2, rtol=1e-8)
    assert regularize(posterior, E(draws).between(-0.5, 0.5)).kl == 0


# Nearly collinear equalities with one dominant atom


@pytest.mark.parametrize("width", [1e-3, 1e-5])
def test_nearly_collinear_equalities_with_dominant_atom(width):
    """Compare with a lower bound and the value of feasible weights."""
    rng = np.random.default_rng(8)
    z, e = rng.normal(size=(2, 50))
    features = np.column_stack([z, z + width * e])
    logs = np.where(np.arange(50) == 7, 0.0, -60 - rng.exponential(size=50)).astype(np.longdouble)
    logs -= np.log(np.sum(np.exp(logs)))
    away = features.astype(np.longdouble) - features[7]
    # The targets are expectations of weights without the dominant atom's lead, tilted along both features.
    scores = logs - np.where(np.arange(50) == 7, np.longdouble(60), 0)
    scores += 0.3 * away[:, 0] + 0.2 * (away[:, 1] - away[:, 0]) / width
    q = np.exp(scores - scores.max())
    q /= q.sum()
    target = (q @ away + features[7]).astype(np.float64)
    result = regularize(Finite(np.arange(50), log_weights=logs.astype(np.float64)), features, Equal(target))
    assert result.status == "optimal"
    np.testing.assert_allclose(result.expectation(features), target, rtol=0, atol=1e-9)
    feasible = float(np.sum(q[q > 0] * (np.log(q[q > 0]) - logs[q > 0])))  # q meets the constraints: an upper bound
    dual = -float(np.log(np.sum(np.exp(logs + away @ result.multipliers)))) + float(
        result.multipliers @ (target - features[7])
    )
    assert dual <= feasible
    np.testing.assert_allclose(result.kl, dual, rtol=1e-6)


# Passes over the atoms


@pytest.mark.parametrize(("n", "m"), [(1, 1), (7, 3), (5000, 1), (3000, 8), (20_000, 9), (30_000, 17), (9000, 60)])
@pytest.mark.parametrize("even", [True, False])
def test_atoms_moments_and_ranges_match_definitions(n, m, even):
    rng = np.random.default_rng(m)
    features, logs = rng.normal(size=(n, m)) + 0.5, np.zeros(n) if even else rng.normal(size=n)
    logs -= np.logaddexp.reduce(logs)
    atoms = WeightedAtoms(features, logs)
    np.testing.assert_array_equal(atoms.lowest, features.min(axis=0))
    np.testing.assert_array_equal(atoms.highest, features.max(axis=0))
    for atom, value in zip(atoms.find_ends(), (atoms.lowest, atoms.highest), strict=True):
        np.testing.assert_array_equal(features[atom, np.arange(m)], value)
    centred = features - np.exp(logs) @ features
    base = (np.exp(logs)[:, None] * centred).T @ centred
    np.testing.assert_allclose(atoms.base_covariance, base, rtol=1e-9, atol=1e-12)
    phi = 0.1 * rng.normal(size=m)
    scores = logs + features @ phi
    value = np.logaddexp.reduce(scores)
    q = np.exp(scores - value)
    mean = q @ features
    for last in (True, False):
        found = WeightedAtoms(features, logs)
        got = found.evaluate(phi, last)
        np.testing.assert_allclose(got[0], value, rtol=1e-12, atol=1e-13)
        np.testing.assert_allclose(got[1], mean, rtol=1e-11, atol=1e-13)
        for at in (phi, 2 * phi):  # the point of the last evaluation, and another one
            np.testing.assert_allclose(found.span(at), np.ptp(features @ at), rtol=1e-12, atol=1e-13)
            tilted, divergence = found.tilt(at)
            expected = logs + features @ at - np.logaddexp.reduce(logs + features @ at)
            np.testing.assert_allclose(tilted, expected, rtol=1e-12, atol=1e-12)
            np.testing.assert_allclose(divergence, np.exp(expected) @ (expected - logs), rtol=1e-9, atol=1e-13)
        centred = features - mean
        np.testing.assert_allclose(found.covariance(phi), (q[:, None] * centred).T @ centred, rtol=1e-9, atol=1e-12)


@pytest.mark.filterwarnings("ignore::regbayes.UnreliableWeightsWarning")
@pytest.mark.parametrize("away", [0.02, 0.1, 0.25])
def test_many_equalities_are_met_by_exponential_tilt(away):
    """There are more features than the number with a precomputed covariance."""
    features = np.random.default_rng(2).normal(size=(4000, 30))
    wanted = features.mean(axis=0) + away
    result = regularize(Samples(features), E(features) == wanted)
    assert result.status == "optimal"
    np.testing.assert_allclose(result.expectation(features), wanted, atol=1e-8)
    log_q = result.posterior.log_weights
    np.testing.assert_allclose(log_q - log_q[0], (features - features[0]) @ result.multipliers, atol=1e-9)


@pytest.mark.parametrize("nats", [0.0, 1.0, 200.0])
@pytest.mark.parametrize("n", [100, 70_000])
def test_single_multiplier_of_many_atoms(n, nats):
    """The equality holds in extended precision, and the weights match the multiplier."""
    rng = np.random.default_rng(3)
    x, logs = rng.normal(size=n), nats * rng.normal(size=n)
    posterior = Finite(x, log_weights=logs)
    wanted = 0.9 * float(posterior.weights @ x) + 0.03
    result = regularize(posterior, E(x) == wanted)
    assert result.status == "optimal"
    scores = (logs + result.multipliers[0] * x).astype(np.longdouble)
    q = np.exp(scores - scores.max())
    q /= q.sum()
    np.testing.assert_allclose(float(q @ x), wanted, rtol=0, atol=1e-8)
    np.testing.assert_allclose(result.posterior.weights, q.astype(float), rtol=1e-6, atol=1e-12)
