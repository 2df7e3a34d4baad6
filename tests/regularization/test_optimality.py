"""Optimality: primal equals dual, CVXPY agrees, multipliers are subgradients."""

from __future__ import annotations

import numpy as np
import pytest

import cvxpy_oracle
from regbayes import E, Finite, regularize
from regbayes.regularizers import (
    KL,
    AtLeast,
    AtMost,
    Ball,
    EpsilonInsensitive,
    Equal,
    Hinge,
    MultiClassHinge,
    Ridge,
    Separable,
)
from regularizer_cases import COMBINED, ELEMENTARY, SUMS

CASES = ELEMENTARY | COMBINED | SUMS
# Terms with opposing directions and very different strengths.
CASES |= {
    "sum of a hinge and a stiff ridge": (Hinge(5.0) + Ridge(0.3, 1e-4), 2),
    "sum of a steep hinge and a stiffer ridge": (Hinge(50.0) + Ridge(0.3, 1e-6), 2),
    "sum of a tube, a ridge and a squared hinge": (
        EpsilonInsensitive(0.1, 0.05, 20.0) + Ridge(0.3, 1e-3) + Hinge(3.0, power=2),
        2,
    ),
    "sum of a ball and a stiff ridge": (Ball([0.1, 0.2], 0.1, C=30.0) + Ridge(0.3, 1e-3), 2),
}


def problem(name: str, seed: int):
    """Return a posterior over 60 models, features and a feasible regularizer."""
    regularizer, size = CASES[name]
    rng = np.random.default_rng([seed, size])
    draw = rng.exponential if "KL" in name and "reflected" not in name else rng.normal
    width = 5.0 if "multi-class" in name and "hard" in name else 1.5
    features = width * draw(size=(60, size))
    return Finite(features, probabilities=rng.dirichlet(np.full(60, 5.0))), features, regularizer


def divergence(q: np.ndarray, p: np.ndarray) -> float:
    return float(np.sum(q[q > 0] * np.log(q[q > 0] / p[q > 0])))


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name", CASES)
def test_regularize_agrees_with_cvxpy(name, seed):
    posterior, features, regularizer = problem(name, seed)
    result = regularize(posterior, lambda x: x, regularizer)
    oracle = cvxpy_oracle.solve(features, posterior.probabilities, regularizer)
    assert oracle.status in ("optimal", "optimal_inaccurate")
    assert result.status == "optimal"
    assert result.primal == pytest.approx(oracle.value, rel=1e-6, abs=1e-6)
    np.testing.assert_allclose(result.posterior.probabilities, oracle.probabilities, atol=2e-5)
    assert result.kl == pytest.approx(divergence(oracle.probabilities, posterior.probabilities), rel=1e-3, abs=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_primal_equals_dual(name):
    posterior, features, regularizer = problem(name, seed=2)
    result = regularize(posterior, lambda x: x, regularizer)
    q = result.posterior.probabilities
    expectation = features.T @ q
    # Hard constraints hold up to rounding; the regularizer is evaluated at the nearest point of its domain.
    nearest = np.asarray(regularizer.prox(expectation, 1e-18))
    np.testing.assert_allclose(nearest, expectation, atol=1e-8)
    value = regularizer.value(nearest if np.isinf(regularizer.value(expectation)) else expectation)
    primal = divergence(q, posterior.probabilities) + value
    phi = result.multipliers
    log_partition = np.log(posterior.probabilities @ np.exp(features @ phi))
    dual = -log_partition - regularizer.conjugate(-phi)
    assert abs(primal - dual) <= 1e-8 * (1 + abs(dual))
    assert abs(result.primal - primal) <= 1e-8 * (1 + abs(primal))
    assert abs(result.dual - dual) <= 1e-8 * (1 + abs(dual))
    assert 0 <= result.gap <= 1e-8 * (1 + abs(dual))


@pytest.mark.parametrize("name", CASES)
def test_result_attributes_match_their_definitions(name):
    posterior, features, regularizer = problem(name, seed=3)
    result = regularize(posterior, lambda x: x, regularizer)
    q, p = result.posterior.probabilities, posterior.probabilities
    tilted = p * np.exp(features @ result.multipliers)
    np.testing.assert_allclose(q, tilted / tilted.sum(), atol=1e-12)
    np.testing.assert_allclose(result.before, features.T @ p, atol=1e-12)
    np.testing.assert_allclose(result.after, features.T @ q, atol=1e-12)
    np.testing.assert_allclose(result.slack, regularizer.slack(result.after), atol=1e-15)
    assert result.kl == pytest.approx(divergence(q, p), abs=1e-10)
    assert result.primal == pytest.approx(result.dual, abs=1e-7)


SOFT = [name for name in CASES if np.isfinite(CASES[name][0].value(np.full(CASES[name][1], 0.3)))]


@pytest.mark.parametrize("name", SOFT)
def test_random_distributions_have_larger_objective(name):
    posterior, features, regularizer = problem(name, seed=4)
    result = regularize(posterior, lambda x: x, regularizer)
    q, p = result.posterior.probabilities, posterior.probabilities
    rng = np.random.default_rng(0)
    for width in (1e-4, 1e-2, 1.0):
        other = q * np.exp(width * rng.normal(size=q.size))
        other /= other.sum()
        # By convexity, the objective exceeds its optimum by at least the divergence between the two.
        objective = divergence(other, p) + regularizer.value(features.T @ other)
        assert objective >= result.primal + divergence(other, q) - 1e-8 * (1 + abs(objective))


def test_jaynes_die():
    die = Finite(np.arange(1, 7))
    loaded = regularize(die, E(lambda face: face) == 4.5)
    np.testing.assert_allclose(
        loaded.posterior.probabilities, [0.05435, 0.07877, 0.11416, 0.16545, 0.23977, 0.34749], atol=5e-6
    )


def test_two_models_match_closed_form():
    # On psi in {0, 1}, q = sigmoid(phi). E == b gives phi = logit(b); a hinge with penalty C has phi >= -C.
    coin = Finite(np.array([0.0, 1.0]))
    equal = regularize(coin, E(lambda x: x) == 0.2)
    assert equal.multipliers[0] == pytest.approx(np.log(0.2 / 0.8), abs=1e-7)
    assert equal.kl == pytest.approx(np.log(2) + 0.2 * np.log(0.2) + 0.8 * np.log(0.8), abs=1e-9)
    cheap = regularize(coin, (E(lambda x: x) <= 0.2).soft(0.5))
    assert cheap.multipliers[0] == pytest.approx(-0.5, abs=1e-10)
    dear = regularize(coin, (E(lambda x: x) <= 0.2).soft(50.0))
    assert dear.multipliers[0] == pytest.approx(np.log(0.2 / 0.8), abs=1e-7)
    assert regularize(coin, E(lambda x: x) <= 0.7).multipliers[0] == 0.0


def f(x):
    return x[:, 0]


def h(x):
    return x[:, 1:]


LISTS = {
    "equality and bounds": (
        [E(f) == 0.2, E(h) <= [0.1, -0.1]],
        Separable([Equal(0.2), AtMost([0.1, -0.1])], [1, 2]),
    ),
    "hard and soft": (
        [E(f) >= 0.4, (E(h) == [0.2, 0.3]).soft(0.7)],
        Separable([AtLeast(0.4), EpsilonInsensitive([0.2, 0.3], 0.0, 0.7)], [1, 2]),
    ),
    "soft and squared": (
        [(E(f) >= 0.4).soft(3.0, power=2), (E(h) == [0.2, 0.3]).soft(0.7, power=2)],
        Separable([Hinge(3.0, power=2).reflect(0.4), Ridge([0.2, 0.3], 1 / 1.4)], [1, 2]),
    ),
    "balls": (
        [E(h).within(0.1, of=[0.4, -0.4]), E(f).within(0.2, of=0.5, norm=1), E(h).within(0.5, of=0.1, norm=np.inf)],
        Separable([Ball([0.4, -0.4], 0.1), Ball(0.5, 0.2), Ball([0.1, 0.1], 0.5, norm=np.inf)], [2, 1, 2]),
    ),
    "soft ball": (
        [E(h).within(0.1, of=[0.4, -0.4]).soft(1.5), E(f) <= 0.0],
        Separable([Ball([0.4, -0.4], 0.1, C=1.5), AtMost(0.0)], [2, 1]),
    ),
    "intervals": (
        [E(h).between([0.1, -0.3], [0.2, -0.2]), E(f).between(0.1, 0.1)],
        Separable([AtLeast([0.1, -0.3]) + AtMost([0.2, -0.2]), Equal(0.1)], [2, 1]),
    ),
    "soft interval": (
        [E(h).between([0.3, -0.6], [0.4, -0.5]).soft(0.8)],
        Hinge(0.8).reflect([0.3, -0.6]) + Hinge(0.8).shift([0.4, -0.5]),
    ),
    "any regularizer": (
        [E(np.exp).regularized(KL([0.2, 0.3, 0.5])), E(h).regularized(MultiClassHinge(2.0, [0.0, 1.0]))],
        Separable([KL([0.2, 0.3, 0.5]), MultiClassHinge(2.0, [0.0, 1.0])]),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LISTS)
def test_lists_of_constraints_agree_with_cvxpy(name):
    constraints, written_out = LISTS[name]
    rng = np.random.default_rng(5)
    models = rng.normal(size=(50, 3))
    posterior = Finite(models, probabilities=rng.dirichlet(np.full(50, 5.0)))
    result = regularize(posterior, constraints)
    features = np.column_stack([posterior.evaluate(c.features).values for c in constraints])
    oracle = cvxpy_oracle.solve(features, posterior.probabilities, written_out)
    assert result.status == "optimal"
    assert result.primal == pytest.approx(oracle.value, rel=1e-6, abs=1e-6)
    np.testing.assert_allclose(result.posterior.probabilities, oracle.probabilities, atol=2e-5)
