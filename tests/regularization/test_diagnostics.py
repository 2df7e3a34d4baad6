"""Diagnostics of importance weights against ArviZ, known tails and edge cases."""

from __future__ import annotations

import importlib
import math
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from regbayes.regularization.diagnostics import (
    effective_sample_size,
    pareto_k,
    reliable_threshold,
    tail_index,
    tail_size,
)


def arviz_pareto_k(log_weights: np.ndarray) -> float:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # ArviZ before 1 announces ArviZ 1 when imported
        arviz = pytest.importorskip("arviz", reason="the oracle for k-hat is ArviZ's psislw")
    with np.errstate(over="ignore"):
        if int(arviz.__version__.split(".")[0]) < 1:
            return float(arviz.psislw(log_weights.copy())[1])
        n = log_weights.size
        if n < 100 or math.isqrt(n) ** 2 != n or np.unique(log_weights).size < n:
            pytest.skip(
                "ArviZ 1 rounds the size of the tail down, counts ties with its threshold and fits no tail of 5"
            )
        psislw = importlib.import_module("arviz_stats.base").array_stats.psislw
        return float(psislw(-log_weights)[1])  # ArviZ expects log-likelihoods, whose negatives are the log-weights


def log_weight_families(seed: int, n: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        "normal": rng.normal(size=n) * rng.uniform(0.1, 3.0),
        "student": rng.standard_t(3, size=n),
        "pareto": rng.exponential(size=n) * rng.uniform(0.1, 1.5),  # weights whose shape k is the scale
        "bounded": np.log(rng.uniform(0.2, 1.0, size=n)),
        "huge": 1e4 + 30.0 * rng.normal(size=n),
        "half zero": np.where(rng.random(n) < 0.5, -800.0, rng.normal(size=n)),
        "rounded": np.round(rng.normal(size=n), 1),  # many ties
    }


@pytest.mark.parametrize("family", list(log_weight_families(0, 1)))
@pytest.mark.parametrize("n", [25, 26, 100, 333, 900, 2500, 4000, 22_500])
def test_pareto_k_agrees_with_arviz(n: int, family: str) -> None:
    for seed in range(5):
        log_weights = log_weight_families(seed, n)[family]
        assert pareto_k(log_weights) == pytest.approx(arviz_pareto_k(log_weights), rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("shape", [-0.5, 0.0, 0.3, 0.7, 1.2])
def test_pareto_k_recovers_known_tail_shape(shape: float) -> None:
    rng = np.random.default_rng(0)
    uniform = rng.random((20, 40_000))
    weights = 1.0 - np.log(uniform) if shape == 0.0 else 1.0 + (uniform**-shape - 1.0) / shape
    estimates = np.array([pareto_k(row) for row in np.log(weights)])
    # a tail of 600 draws: the standard error is about (1 + k) / sqrt(600), and the prior adds a small bias
    standard_error = (1.0 + shape) / math.sqrt(600)
    pull = 10 / 610 * abs(0.5 - shape)
    assert abs(estimates.mean() - shape) < 4.0 * standard_error / math.sqrt(20) + pull + 0.02


def test_pareto_k_increases_with_exponential_tilt() -> None:
    draws = np.random.default_rng(1).standard_normal(10_000)
    estimates = [pareto_k(phi * draws) for phi in (0.1, 0.5, 1.0, 2.0, 4.0)]
    assert np.all(np.diff(estimates) > 0)
    assert estimates[0] < 0.2
    assert estimates[-1] > reliable_threshold(10_000)


finite_log_weights = hnp.arrays(
    np.float64, st.integers(1, 80), elements=st.floats(-50, 50) | st.just(-math.inf)
).filter(lambda values: values.max() > -math.inf)


@settings(deadline=None)
@given(finite_log_weights, st.floats(-1e3, 1e3))
def test_diagnostics_are_invariant_to_shift_and_permutation(log_weights: np.ndarray, constant: float) -> None:
    size, k = effective_sample_size(log_weights), pareto_k(log_weights)
    assert 1.0 - 1e-9 <= size <= log_weights.size * (1 + 1e-9)
    assert not math.isnan(k)
    assert effective_sample_size(log_weights[::-1]) == pytest.approx(size)
    assert pareto_k(log_weights[::-1]) == k
    assert effective_sample_size(log_weights + constant) == pytest.approx(size, rel=1e-6)


def test_effective_sample_size_of_known_weights() -> None:
    assert effective_sample_size(np.full(50, -1234.5)) == pytest.approx(50)
    assert effective_sample_size([0.0, 0.0, -math.inf, -math.inf]) == pytest.approx(2)
    assert effective_sample_size(np.log([3.0, 1.0])) == pytest.approx(16 / 10)
    assert effective_sample_size([1e6, 0.0, -1e6]) == pytest.approx(1)


def test_pareto_k_edge_cases() -> None:
    assert pareto_k(np.zeros(1000)) == -math.inf
    assert pareto_k(np.full(3, 7.0)) == -math.inf
    assert pareto_k([2.0]) == -math.inf
    half = np.where(np.arange(1000) % 2, 0.0, -math.inf)
    assert pareto_k(half) == -math.inf  # half of the draws with equal weights: no tail
    assert pareto_k(np.where(np.arange(1000) < 3, 0.0, -5.0)) == math.inf  # three heavy draws are too few
    assert pareto_k(np.random.default_rng(0).normal(size=20)) == math.inf
    assert pareto_k(np.r_[0.0, np.full(999, -math.inf)]) == math.inf
    assert pareto_k(np.r_[0.0, 0.0, 0.0, np.full(7, -math.inf)]) == math.inf
    nearly_constant = 1e-17 * np.arange(1000) + 1e-13 * np.random.default_rng(0).random(1000)
    assert math.isfinite(pareto_k(nearly_constant))


@pytest.mark.parametrize("n", [5, 20, 92, 300])
def test_pareto_k_ignores_zero_weights(n: int) -> None:
    logs = np.random.default_rng(n).normal(size=n)
    assert pareto_k(np.r_[logs, np.full(4000, -math.inf)]) == pareto_k(logs)


def test_pareto_k_of_weights_over_full_double_range() -> None:
    steep = -np.linspace(0.0, 705.0 * 5, 100)  # a tail of 20 weights from 1 down to the smallest doubles
    assert pareto_k(steep) > 1.0
    assert pareto_k(-np.linspace(0.0, 1e6, 1000)) == math.inf


def test_reliable_threshold() -> None:
    assert reliable_threshold(100) == pytest.approx(0.5)
    assert reliable_threshold(1000) == pytest.approx(2 / 3)
    assert reliable_threshold(10**6) == 0.7
    assert reliable_threshold(10) == pytest.approx(0.0)
    assert reliable_threshold(1) == -math.inf
    with pytest.raises(ValueError, match="n_draws must be at least 1, got 0"):
        reliable_threshold(0)


@pytest.mark.parametrize("function", [effective_sample_size, pareto_k])
@pytest.mark.parametrize(
    ("log_weights", "message"),
    [
        ([], "not empty"),
        ([[0.0, 1.0]], r"shape \(1, 2\)"),
        ([0.0, math.nan, math.inf], "2 NaN or \\+inf values among 3"),
        ([-math.inf, -math.inf], "all -inf"),
    ],
)
def test_invalid_weights_raise_value_error(function: object, log_weights: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        function(log_weights)  # type: ignore[operator]


@pytest.mark.parametrize("index", [0.2, 0.5])
def test_tail_index_of_pareto_weights_recovers_index(index):
    """Log excesses of Pareto weights are exponential with mean the index (Hill 1975)."""
    logs = index * np.random.default_rng(0).exponential(size=100_000)
    error = index / np.sqrt(tail_size(len(logs)))
    assert abs(tail_index(logs) - index) < 4 * error
    assert tail_index(np.append(logs, np.full(9, -np.inf)) + 700.0) == pytest.approx(tail_index(logs), rel=1e-3)
