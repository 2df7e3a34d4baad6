"""Equalities implied by others up to rounding have multiplier zero."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from scipy.optimize import root

from exact_samplers import ExactGaussian, ExactGrid
from regbayes import E, Finite, Gaussian, InfeasibleError, Samples, regularize, resample
from regbayes.ppl import Run, Start, Tilt

SHARES = [0.35, 0.3, 0.2, 0.15]


@pytest.fixture
def shares() -> np.ndarray:
    return np.random.default_rng(0).dirichlet([13, 10, 7, 4], size=(4, 500))


@pytest.mark.filterwarnings("ignore::regbayes.UnreliableWeightsWarning")
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_redundant_share_has_zero_multiplier(shares: np.ndarray, dtype: type) -> None:
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
def test_inconsistent_redundant_target_is_infeasible(shares: np.ndarray, dtype: type) -> None:
    with pytest.raises(InfeasibleError, match="contradict"):
        regularize(Samples({"p": shares.astype(dtype)}, chains=True), E("p") == [0.35, 0.3, 0.2, 0.1501])


@pytest.mark.parametrize("scale", [1.0, 1e-6, 1e-9, 1e-11])
def test_redundant_equalities_of_any_scale_are_met(scale: float) -> None:
    """The divergence is that of two equalities; the multipliers meet all three."""
    rng = np.random.default_rng(0)
    for _ in range(10):
        a, b = scale * rng.normal(size=1000), rng.normal(size=1000)
        features = np.column_stack([a, b, a - 2 * b])
        wanted = features[:, :2].mean(axis=0) + 0.1 * features[:, :2].std(axis=0)
        models = Finite({"a": a, "b": b})
        result = regularize(models, E(features) == [*wanted, wanted[0] - 2 * wanted[1]])
        reference = regularize(models, E(np.column_stack([a / scale, b])) == [wanted[0] / scale, wanted[1]])
        assert result.status == "optimal"
        assert np.isclose(result.kl, reference.kl, rtol=1e-9)
        again = models.tilt(features, result.multipliers).expectation(features)
        missed = (again - [*wanted, wanted[0] - 2 * wanted[1]]) / features.std(axis=0)
        assert np.max(np.abs(missed)) <= 1e-8


def test_redundant_equalities_of_gaussian_with_large_mean() -> None:
    """At mean 1e6, rounding of a target is 1e-8 standard deviations."""
    for seed in range(20):
        rng = np.random.default_rng(seed)
        posterior = Gaussian(1e6 + rng.normal(size=3), np.full(3, 1e-4))
        rows = rng.normal(size=(2, 3))
        aim = rows @ posterior.mean + [0.005, 0.003]
        result = regularize(posterior, E(np.vstack([rows, rows.sum(axis=0)])) == [*aim, aim.sum()])
        assert result.status == "optimal"
        assert result.multipliers[2] == 0
        with pytest.raises(InfeasibleError, match="contradict"):
            regularize(posterior, E(np.vstack([rows, rows.sum(axis=0)])) == [*aim, aim.sum() + 1e-7])


def test_few_models_do_not_make_equalities_redundant() -> None:
    """Any function of three points is affine in two others; targets need not be."""
    models = Finite({"x": np.array([0.0, 1.0, 3.0])})
    with pytest.raises(InfeasibleError):
        regularize(models, E(lambda v: np.column_stack([v["x"], v["x"] ** 2, v["x"] ** 3])) == [1.0, 2.0, 3.0])


def test_implied_bounds_are_kept(shares: np.ndarray) -> None:
    result = regularize(Samples({"p": shares}, chains=True), [E("p[0]") >= 0.4, E("p[0]") >= 0.42])
    assert result.status == "optimal"
    assert np.isclose(result.after[0], 0.42)


class Single(ExactGaussian):
    """Draws in single precision, JAX's default."""

    def draw(self, tilt: Tilt, n_draws: int, *, seed: int, start: Start | None, final: bool) -> Run:
        found = super().draw(tilt, n_draws, seed=seed, start=start, final=final)
        return Run({"x": found.variables["x"].astype(np.float32)}, found.positions)


def test_resample_single_precision_detects_redundant_equality() -> None:
    asked = [E(lambda x: x[:, 0]) == 3, E(lambda x: x[:, 1]) == 2, E(lambda x: x[:, 0] + x[:, 1]) == 5]
    result = resample(Single(np.zeros(3), np.eye(3)), asked)
    assert result.status == "optimal"
    assert np.all(np.abs(result.multipliers[:2] - [3, 2]) <= 4 * result.multipliers_mcse[:2])
    assert result.multipliers[2] == 0
    wrong = [*asked[:2], E(lambda x: x[:, 0] + x[:, 1]) == 5.01]
    with pytest.raises(InfeasibleError, match="cannot be met"):
        resample(Single(np.zeros(3), np.eye(3)), wrong)


def bent(x: np.ndarray) -> np.ndarray:
    """Return x where the posterior has its mass, but not where the tilt moves it."""
    return x + np.maximum(x - 5, 0) - 2 * np.maximum(x - 6, 0)


def test_features_collinear_only_on_posterior_are_both_met() -> None:
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
        if result.status == "optimal":  # a result with the second multiplier at zero would miss its target by 0.3
            n_optimal += 1
            assert np.allclose(result.after, 5)
            assert np.all(np.abs(result.multipliers - phi) <= 5 * result.multipliers_mcse)
    assert n_optimal > 0
