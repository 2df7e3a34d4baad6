"""Constraints that follow from others, but for rounding: the answer is that of the others, their multipliers are 0."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from scipy.optimize import root

from ladder_tools import ExactGaussian, ExactGrid
from regbayes import E, Finite, InfeasibleError, Samples, regularize, resample
from regbayes.ppl import Run, Start, Tilt
from regbayes.regularization.composite import Stack
from regbayes.regularization.redundant import find_redundancy
from regbayes.regularizers import Equal

SHARES = [0.35, 0.3, 0.2, 0.15]


@pytest.fixture
def shares() -> np.ndarray:
    return np.random.default_rng(0).dirichlet([13, 10, 7, 4], size=(4, 500))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_all_shares_asked_for_are_all_but_one(shares: np.ndarray, dtype: type) -> None:
    draws = Samples({"p": shares.astype(dtype)}, chains=True)
    whole = regularize(draws, E("p") == SHARES)
    free = regularize(draws, E(lambda p: p[:, :3]) == SHARES[:3])
    assert whole.status == "optimal"
    assert np.allclose(whole.multipliers[:3], free.multipliers, rtol=1e-5)
    assert whole.multipliers[3] == 0
    assert np.allclose(whole.multipliers_mcse, [*free.multipliers_mcse, 0], rtol=1e-5)
    assert np.isclose(whole.kl, free.kl, rtol=1e-6)
    assert np.allclose(whole.posterior.weights, free.posterior.weights, rtol=1e-5)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_what_does_not_agree_contradicts(shares: np.ndarray, dtype: type) -> None:
    with pytest.raises(InfeasibleError, match="contradict"):
        regularize(Samples({"p": shares.astype(dtype)}, chains=True), E("p") == [0.35, 0.3, 0.2, 0.1501])


def test_folding_keeps_the_tilt_and_its_value() -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(300, 2))
    values = np.column_stack([x, x @ [2.0, -1.0] + 5, x[:, 0] / 3])
    at = np.array([0.4, -0.2, 6.0, 0.4 / 3])
    stack = Stack.of(Equal(at), 4)
    found = find_redundancy(values, stack)
    assert found is not None
    assert list(found.features) == [2, 3]
    assert np.allclose(found.settle(values), values, atol=1e-12)
    phi = rng.normal(size=4)
    folded, stacked = found.fold(phi, -phi, stack)
    assert np.all(folded[2:] == 0)
    assert np.allclose(stack.add_up(stacked), -folded)
    away = (values - at) @ phi - (values - at) @ folded
    assert np.allclose(away, 0, atol=1e-12)  # the same tilt, at the same value <phi, b>


def test_few_models_show_no_combination() -> None:
    # Three points and three features: any of them is an affine function of the others there.
    models = Finite({"x": np.array([0.0, 1.0, 3.0])})
    stack = Stack.of(Equal(np.array([1.0, 2.0, 3.0])), 3)
    x = models.draws.variables["x"]
    assert find_redundancy(np.column_stack([x, x**2, x**3]), stack) is None


def test_bounds_are_left_alone(shares: np.ndarray) -> None:
    result = regularize(Samples({"p": shares}, chains=True), [E("p[0]") >= 0.4, E("p[0]") >= 0.42])
    assert result.status == "optimal"
    assert np.isclose(result.after[0], 0.42)


class Single(ExactGaussian):
    """Draws in single precision, as JAX has them unless told otherwise."""

    def draw(self, tilt: Tilt, n_draws: int, *, seed: int, start: Start | None, final: bool) -> Run:
        found = super().draw(tilt, n_draws, seed=seed, start=start, final=final)
        return Run({"x": found.variables["x"].astype(np.float32)}, found.positions)


def test_a_sampler_in_single_precision() -> None:
    asked = [E(lambda x: x[:, 0]) == 3, E(lambda x: x[:, 1]) == 2, E(lambda x: x[:, 0] + x[:, 1]) == 5]
    result = resample(Single(np.zeros(3), np.eye(3)), asked)
    assert result.status == "optimal"
    assert np.all(np.abs(result.multipliers[:2] - [3, 2]) <= 4 * result.multipliers_mcse[:2])
    assert result.multipliers[2] == 0
    wrong = [*asked[:2], E(lambda x: x[:, 0] + x[:, 1]) == 5.01]
    with pytest.raises(InfeasibleError, match="contradict"):
        resample(Single(np.zeros(3), np.eye(3)), wrong)


def bent(x: np.ndarray) -> np.ndarray:
    """x where the posterior is, and not where the tilt leads."""
    return x + np.maximum(x - 5, 0) - 2 * np.maximum(x - 6, 0)


def test_features_that_are_the_same_for_the_posterior_alone() -> None:
    grid = np.linspace(-14, 14, 4001)
    values = np.column_stack([grid, bent(grid)])

    def miss(phi: np.ndarray) -> np.ndarray:
        logs = values @ phi - 0.5 * grid**2
        weights = np.exp(logs - logs.max())
        return weights @ values / weights.sum() - 5

    phi = root(miss, np.array([7.0, -2.0])).x
    sampler = ExactGrid(grid, lambda x: -0.5 * x**2)
    n_optimal = 0
    for seed in range(4):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = resample(sampler, [E("x") == 5, E(bent) == 5], seed=seed)
        if result.status == "optimal":  # both were called so with the second multiplier at 0, and missed by .3
            n_optimal += 1
            assert np.allclose(result.after, 5)
            assert np.all(np.abs(result.multipliers - phi) <= 5 * result.multipliers_mcse)
    assert n_optimal > 0
