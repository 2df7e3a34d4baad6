"""Invariance to units, offsets and numbers of draws and constraints."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regbayes import E, Finite, Gaussian, regularize
from regbayes._types import Floats
from regbayes.regularizers import (
    Affine,
    AtLeast,
    AtMost,
    Ball,
    EpsilonInsensitive,
    Equal,
    Hinge,
    MultiClassHinge,
    MultiClassSquaredHinge,
    Regularizer,
    Ridge,
    Separable,
)

# name -> a regularizer of the expectations of a psi + b, equivalent to one of those of psi; x is attainable
FAMILIES: dict[str, Callable[[Floats, float, Floats], Regularizer]] = {
    "equal": lambda x, a, b: Equal(a * x + b),
    "at most": lambda x, a, b: AtMost(a * x + b),
    "at least": lambda x, a, b: AtLeast(a * x + b),
    "interval": lambda x, a, b: AtMost(a * (x + 0.1) + b) + AtLeast(a * x + b),
    "hinge": lambda x, a, b: Hinge(0.7 / a).shift(a * x + b),
    "steep hinge": lambda x, a, b: Hinge(10 / a).shift(a * x + b),
    "hinge^1.5": lambda x, a, b: Hinge(2.0 / a**1.5, power=1.5).shift(a * x + b),
    "squared hinge": lambda x, a, b: Hinge(2.0 / a**2, power=2).shift(a * x + b),
    "tube": lambda x, a, b: EpsilonInsensitive(a * x + b, a * 0.1, 0.7 / a),
    "ridge": lambda x, a, b: Ridge(a * x + b, a**2 * 0.01),
    "ball in 1": lambda x, a, b: Ball(a * x + b, a * 0.1, norm=1),
    "ball in 2": lambda x, a, b: Ball(a * x + b, a * 0.1, norm=2),
    "ball in inf": lambda x, a, b: Ball(a * x + b, a * 0.1, norm=np.inf),
    "soft ball": lambda x, a, b: Ball(a * x + b, a * 0.1, C=2.0 / a),
    "multi-class hinge": lambda x, a, b: MultiClassHinge(2.0 / a).shift(a * x + b),
    "multi-class squared hinge": lambda x, a, b: MultiClassSquaredHinge(2.0 / a**2).shift(a * x + b),
    "bound and pull": lambda x, a, b: AtMost(a * x + b) + Ridge(a * (x - 1) + b, a**2),
}


def draw_problem(seed: int, n: int, m: int) -> tuple[Floats, Floats, Floats]:
    """Return features of n models, probabilities and attainable targets."""
    rng = np.random.default_rng([seed, n, m])
    features = rng.normal(size=(n, m))
    return features, rng.dirichlet(np.full(n, 3.0)), features.T @ rng.dirichlet(np.full(n, 3.0))


@settings(max_examples=60)
@given(
    name=st.sampled_from(sorted(FAMILIES)),
    n=st.integers(8, 40),
    m=st.integers(1, 4),
    seed=st.integers(0, 1000),
    log_scale=st.integers(-6, 6),
    offset=st.sampled_from([0.0, 1.0, -30.0, 1e3, -1e6]),
)
def test_solution_does_not_depend_on_units(name, n, m, seed, log_scale, offset):
    features, probabilities, reachable = draw_problem(seed, n, m)
    a = 10.0**log_scale
    b = a * offset * np.ones(m)
    plain = regularize(
        Finite(features, probabilities=probabilities), lambda x: x, FAMILIES[name](reachable, 1.0, 0 * b)
    )
    other = regularize(
        Finite(a * features + b, probabilities=probabilities), lambda x: x, FAMILIES[name](reachable, a, b)
    )
    assert plain.status == other.status == "optimal"
    np.testing.assert_allclose(other.posterior.probabilities, plain.posterior.probabilities, atol=2e-5)
    np.testing.assert_allclose((other.after - b) / a, plain.after, atol=2e-5)
    assert other.primal == pytest.approx(plain.primal, abs=1e-7, rel=1e-7)
    assert other.gap <= 1e-8 * (1 + abs(other.dual))


@settings(max_examples=30)
@given(
    m=st.integers(1, 5),
    seed=st.integers(0, 1000),
    log_scales=st.lists(st.integers(-6, 6), min_size=5, max_size=5),
    kind=st.sampled_from(["equal", "at most", "hinge", "ridge"]),
)
def test_solution_does_not_depend_on_units_of_each_feature(m, seed, log_scales, kind):
    features, probabilities, reachable = draw_problem(seed, 30, m)
    a = 10.0 ** np.array(log_scales[:m])

    def solve(a: Floats):
        parts = [FAMILIES[kind](reachable[[j]], a[j], np.zeros(1)) for j in range(m)]
        return regularize(Finite(a * features, probabilities=probabilities), lambda x: x, Separable(parts, [1] * m))

    plain, other = solve(np.ones(m)), solve(a)
    assert plain.status == other.status == "optimal"
    np.testing.assert_allclose(other.posterior.probabilities, plain.posterior.probabilities, atol=2e-5)
    np.testing.assert_allclose(other.multipliers * a, plain.multipliers, atol=1e-4, rtol=1e-4)


@settings(max_examples=25)
@given(d=st.integers(1, 6), m=st.integers(1, 8), seed=st.integers(0, 1000), log_scale=st.integers(-6, 6))
def test_gaussian_solution_does_not_depend_on_units(d, m, seed, log_scale):
    rng = np.random.default_rng([seed, d, m])
    rows, bounds, a = rng.normal(size=(m, d)), rng.normal(size=m), 10.0**log_scale
    plain = regularize(Gaussian(np.zeros(d), np.ones(d)), rows, Hinge(0.8).reflect(bounds))
    features = regularize(Gaussian(np.zeros(d), np.ones(d)), a * rows, Hinge(0.8 / a).reflect(a * bounds))
    variable = regularize(Gaussian(np.zeros(d), np.full(d, a**2)), rows / a, Hinge(0.8).reflect(bounds))
    assert plain.status == features.status == variable.status == "optimal"
    np.testing.assert_allclose(features.posterior.mean, plain.posterior.mean, atol=5e-5)
    np.testing.assert_allclose(variable.posterior.mean / a, plain.posterior.mean, atol=5e-5)


@settings(max_examples=30)
@given(n=st.integers(1, 12), m=st.integers(1, 30), seed=st.integers(0, 1000))
def test_any_shape_with_attainable_targets_is_optimal(n, m, seed):
    """From one model to many, from one constraint to more constraints than models."""
    features, probabilities, reachable = draw_problem(seed, n, m)
    result = regularize(Finite(features, probabilities=probabilities), E(lambda x: x) == reachable)
    assert result.status == "optimal"
    np.testing.assert_allclose(result.after, reachable, atol=1e-7)
    assert result.gap <= 1e-8 * (1 + abs(result.dual))


def test_enough_equalities_determine_the_distribution():
    features, probabilities, _ = draw_problem(0, 6, 20)
    wanted = np.random.default_rng(1).dirichlet(np.full(6, 3.0))
    result = regularize(Finite(features, probabilities=probabilities), E(lambda x: x) == features.T @ wanted)
    np.testing.assert_allclose(result.posterior.probabilities, wanted, atol=1e-7)


def test_single_model():
    alone = Finite(np.array([[3.0, -1.0]]))
    result = regularize(alone, E(lambda x: x) == [3.0, -1.0])
    assert result.status == "optimal"
    assert result.posterior.probabilities.tolist() == [1.0]
    assert result.kl == 0.0
    soft = regularize(alone, (E(lambda x: x) <= 0.0).soft(2.0))
    assert soft.status == "optimal"
    assert soft.primal == pytest.approx(6.0)


def test_constant_features_change_only_the_objective():
    features, probabilities, reachable = draw_problem(0, 20, 1)
    posterior = Finite(features, probabilities=probabilities)
    alone = regularize(posterior, E(lambda x: x) == reachable)
    for constraint, price in (
        (E(np.full(20, 7.0)) == 7.0, 0.0),
        (E(np.full(20, 7.0)) <= 7.5, 0.0),
        ((E(np.full(20, 7.0)) <= 5.0).soft(3.0), 6.0),
        (E(np.zeros(20)) == 0.0, 0.0),
        ((E(np.full(20, 1e6)) == 1e6 - 1).soft(2.0), 2.0),
    ):
        result = regularize(posterior, [E(lambda x: x) == reachable, constraint])
        assert result.status == "optimal"
        np.testing.assert_allclose(result.posterior.probabilities, alone.posterior.probabilities, atol=1e-8)
        assert result.primal == pytest.approx(alone.primal + price, abs=1e-8)


@pytest.mark.parametrize("copies", [2, 5])
def test_duplicate_constraints_do_not_change_the_solution(copies):
    features, probabilities, reachable = draw_problem(3, 25, 2)
    posterior = Finite(features, probabilities=probabilities)
    for constraint in (
        E(lambda x: x) == reachable,
        E(lambda x: x) <= reachable,
        E(lambda x: x).within(0.05, of=reachable),
    ):
        once = regularize(posterior, constraint)
        often = regularize(posterior, [constraint] * copies)
        assert often.status == "optimal"
        np.testing.assert_allclose(often.posterior.probabilities, once.posterior.probabilities, atol=1e-6)
        # How the copies share a multiplier is arbitrary, but their sum is not.
        np.testing.assert_allclose(often.multipliers.reshape(copies, 2).sum(axis=0), once.multipliers, atol=1e-5)


def test_implied_constraints_do_not_change_the_solution():
    features, probabilities, reachable = draw_problem(4, 25, 2)
    posterior = Finite(features, probabilities=probabilities)
    once = regularize(posterior, E(lambda x: x) == reachable)
    total = E(lambda x: x.sum(axis=1)) == float(reachable.sum())
    ratio = E(lambda x: 1e4 * x[:, 0] - 3 * x[:, 1]) == float(1e4 * reachable[0] - 3 * reachable[1])
    implied = regularize(posterior, [E(lambda x: x) == reachable, total, ratio, E(lambda x: x[:, 0]) <= 10.0])
    assert implied.status == "optimal"
    np.testing.assert_allclose(implied.posterior.probabilities, once.posterior.probabilities, atol=1e-6)
    assert implied.multipliers[-1] == 0.0


def test_models_with_zero_probability_are_ignored():
    features, probabilities, reachable = draw_problem(5, 25, 2)
    with_ghosts = np.vstack([features, [[100.0, 100.0], [-100.0, 50.0]]])
    ghosts = Finite(with_ghosts, probabilities=np.append(probabilities, [0.0, 0.0]))
    plain = regularize(Finite(features, probabilities=probabilities), E(lambda x: x) == reachable)
    result = regularize(ghosts, E(lambda x: x) == reachable)
    np.testing.assert_allclose(result.posterior.probabilities[:25], plain.posterior.probabilities, atol=1e-10)
    assert result.posterior.probabilities[25:].tolist() == [0.0, 0.0]
    np.testing.assert_allclose(result.multipliers, plain.multipliers, atol=1e-8)


def test_solution_does_not_depend_on_order():
    features, probabilities, reachable = draw_problem(6, 25, 3)
    rng = np.random.default_rng(0)
    rows, columns = rng.permutation(25), rng.permutation(3)
    plain = regularize(Finite(features, probabilities=probabilities), lambda x: x, Ball(reachable, 0.1))
    shuffled = Finite(features[rows][:, columns], probabilities=probabilities[rows])
    result = regularize(shuffled, lambda x: x, Ball(reachable[columns], 0.1))
    np.testing.assert_allclose(result.posterior.probabilities, plain.posterior.probabilities[rows], atol=1e-7)
    np.testing.assert_allclose(result.multipliers, plain.multipliers[columns], atol=1e-6)


def test_shift_of_nested_affine_maps_loses_no_precision():
    """The target 1e16 is shifted first; added to x, it would cancel all digits of x."""
    target = 8.544915763429083e15
    assert Affine(Hinge(2.0).shift(target)).shift(-target).value([0.25]) == 0.5
