"""Infinite multipliers (Remark 2 of the paper) and faces of the reachable set."""

from __future__ import annotations

import numpy as np
import pytest

import cvxpy_oracle
from regbayes import E, Finite, Samples, regularize
from regbayes.regularizers import AtLeast, AtMost, Ball, EpsilonInsensitive, Equal, Hinge, MultiClassHinge

RNG = np.random.default_rng(0)
LOG_WEIGHTS = RNG.normal(size=10)
POSTERIOR = Finite(np.arange(10.0), log_weights=LOG_WEIGHTS)


def outside(x):
    return (x > 4).astype(float)


TRUNCATED = np.where(np.arange(10) > 4, 0.0, np.exp(LOG_WEIGHTS)) / np.exp(LOG_WEIGHTS[:5]).sum()
LOG_MASS = float(np.log(np.exp(LOG_WEIGHTS[:5]).sum() / np.exp(LOG_WEIGHTS).sum()))

SPELLINGS = {
    "== 0": E(outside) == 0.0,
    "<= 0": E(outside) <= 0.0,
    "within 0 of 0": E(outside).within(0.0, of=0.0),
    "within 0 of 0, l1": E(outside).within(0.0, of=0.0, norm=1),
    "hard hinge": E(outside).regularized(Hinge(np.inf)),
    "hard tube": E(outside).regularized(EpsilonInsensitive(0.0, 0.0, np.inf)),
    "hard multi-class hinge": E(outside).regularized(MultiClassHinge(np.inf)),
    "between 0 and 0": E(outside).between(0.0, 0.0),
    "between -1 and 0": E(outside).between(-1.0, 0.0),
    "with a soft one": E(outside).regularized(Hinge(1.0) + Equal(0.0)),
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_zero_probability_constraint_is_truncated_posterior(name):
    result = regularize(POSTERIOR, SPELLINGS[name])
    assert result.status == "boundary"
    assert result.multipliers.tolist() == [-np.inf]
    np.testing.assert_allclose(result.posterior.probabilities, TRUNCATED, atol=1e-12)
    assert np.all(result.posterior.probabilities[5:] == 0)
    # The dual value is finite although its multiplier is not: it is minus the log-probability of the face.
    assert result.dual == pytest.approx(-LOG_MASS, abs=1e-10)
    assert result.primal == pytest.approx(-LOG_MASS, abs=1e-10)
    assert result.kl == pytest.approx(-LOG_MASS, abs=1e-10)
    assert result.after.tolist() == [0.0]
    assert result.gap <= 1e-9


def test_probability_one_has_positive_infinite_multiplier():
    result = regularize(POSTERIOR, E(outside) == 1.0)
    assert result.status == "boundary"
    assert result.multipliers.tolist() == [np.inf]
    assert np.all(result.posterior.probabilities[:5] == 0)


def test_zero_probability_constraint_truncates_draws():
    draws = np.random.default_rng(1).normal(size=2000)
    result = regularize(Samples(draws), E(lambda x: (x < 0).astype(float)) == 0.0)
    assert result.status == "boundary"
    assert result.expectation(lambda x: x)[0] == pytest.approx(draws[draws >= 0].mean(), abs=1e-12)
    assert result.effective_sample_size == pytest.approx(np.sum(draws >= 0), rel=1e-9)


def test_other_constraints_on_face_have_finite_multipliers():
    result = regularize(POSTERIOR, [E(outside) == 0.0, E(lambda x: x) == 1.2, (E(lambda x: x**2) <= 1.0).soft(0.1)])
    assert result.status == "boundary"
    assert result.multipliers[0] == -np.inf
    assert np.all(np.isfinite(result.multipliers[1:]))
    truncated = Finite(np.arange(5.0), log_weights=LOG_WEIGHTS[:5])
    again = regularize(truncated, [E(lambda x: x) == 1.2, (E(lambda x: x**2) <= 1.0).soft(0.1)])
    np.testing.assert_allclose(result.multipliers[1:], again.multipliers, atol=1e-6)
    np.testing.assert_allclose(result.posterior.probabilities[:5], again.posterior.probabilities, atol=1e-8)
    assert result.kl == pytest.approx(again.kl - LOG_MASS, abs=1e-8)


def test_two_boundary_constraints_select_face_of_face():
    corner = regularize(POSTERIOR, [E(outside) == 0.0, E(lambda x: (x > 1).astype(float)) <= 0.0])
    assert corner.status == "boundary"
    assert np.flatnonzero(corner.posterior.probabilities).tolist() == [0, 1]
    assert corner.multipliers.tolist() == [0.0, -np.inf] or corner.multipliers.tolist() == [-np.inf, -np.inf]


def triangle(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return models with x + y <= 1, seven of them on its edge, and a mask of these."""
    inside = np.random.default_rng(seed).normal(size=(60, 2))
    inside = inside[inside.sum(axis=1) < 0.9]
    edge = np.linspace(-2, 2, 7)
    models = np.vstack([inside, np.column_stack([edge, 1 - edge])])
    return models, np.arange(len(models)) >= len(inside)


DIAGONAL = {
    "equality": lambda a, b: Equal(a * np.array([0.3, 0.7]) + b),
    "two bounds": lambda a, b: AtLeast(a * np.array([0.3, 0.7]) + b),
    "a corner of a square": lambda a, b: Ball(a * np.array([0.8, 1.2]) + b, a * 0.5, norm=np.inf),
    "hard multi-class hinge": lambda a, b: MultiClassHinge(np.inf, a * np.array([0.3, 0.7]) + b).reflect(),
}


@pytest.mark.parametrize(("a", "b"), [(1.0, 0.0), (1e-6, 0.0), (1e6, 0.0), (1.0, 1e3)])
@pytest.mark.parametrize("name", DIAGONAL)
def test_oblique_face_is_found(name, a, b):
    models, on_edge = triangle(seed=2)
    regularizer = DIAGONAL[name](a, b)
    result = regularize(Finite(a * models + b), lambda x: x, regularizer)
    assert result.status == "boundary"
    assert result.multipliers.tolist() == [np.inf, np.inf]
    assert np.all(result.posterior.probabilities[~on_edge] == 0)
    # On the edge the problem is an ordinary one in one dimension.
    edge = Finite(models[on_edge])
    unit = DIAGONAL[name](1.0, 0.0)
    oracle = cvxpy_oracle.solve(models[on_edge], edge.probabilities, unit)
    np.testing.assert_allclose(result.posterior.probabilities[on_edge], oracle.probabilities, atol=1e-5)
    assert result.kl == pytest.approx(oracle.value + np.log(len(models) / on_edge.sum()), abs=1e-6)
    assert result.gap <= 1e-8


COIN = np.array([0.0, 1.0])


@pytest.mark.parametrize("a", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("price", [5.0, 15.0, 20.0])
def test_soft_constraint_has_finite_multiplier(price, a):
    """A finite penalty bounds the multiplier, however little mass remains."""
    result = regularize(Finite(a * COIN), (E(lambda x: x) <= 0.0).soft(price / a), tol=1e-12)
    assert result.status == "optimal"
    assert result.multipliers[0] == pytest.approx(-price / a, rel=1e-6)
    assert result.after[0] == pytest.approx(a / (1 + np.exp(price)), rel=1e-6)


@pytest.mark.parametrize("a", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("target", [1e-3, 1e-5, 1e-7])
def test_target_near_edge_is_optimal(target, a):
    result = regularize(Finite(a * COIN), E(lambda x: x) == a * target, tol=1e-12)
    assert result.status == "optimal"
    assert a * result.multipliers[0] == pytest.approx(np.log(target / (1 - target)), rel=1e-4)


def test_rounded_target_on_edge_is_not_infeasible():
    values = np.array([0.1, 0.2, 0.3])
    posterior = Finite(values)
    for target in (0.3, 0.1 + 0.2, np.nextafter(0.3, 1)):
        result = regularize(posterior, E(lambda x: x) >= target)
        assert result.status == "boundary"
        np.testing.assert_allclose(result.posterior.probabilities, [0, 0, 1], atol=1e-12)


def test_inactive_bound_has_zero_divergence():
    result = regularize(POSTERIOR, E(lambda x: x) <= 9.0)
    assert result.status == "optimal"
    assert result.multipliers.tolist() == [0.0]
    assert result.kl == pytest.approx(0.0, abs=1e-12)


def test_upper_bound_at_minimum_truncates():
    result = regularize(POSTERIOR, lambda x: x, AtMost(0.0))
    assert result.status == "boundary"
    np.testing.assert_allclose(result.posterior.probabilities, np.eye(10)[0], atol=1e-12)
