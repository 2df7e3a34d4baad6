"""Monte Carlo errors against finite differences, ArviZ and their coverage."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import pytest
from scipy.signal import lfilter
from scipy.stats import norm

from regbayes import E, Finite, Gaussian, Samples, UnreliableWeightsWarning, load, regularize
from regbayes.regularization.diagnostics import (
    autocorrelation_time,
    effective_sample_size,
    monte_carlo_error,
    pareto_k,
    score_tail,
    smooth_log_weights,
)
from regbayes.regularization.monte_carlo import find_influences
from regbayes.regularizers import (
    AtLeast,
    AtMost,
    Ball,
    EpsilonInsensitive,
    Equal,
    GeneralizedKL,
    Hinge,
    MultiClassHinge,
    Ridge,
)

with warnings.catch_warnings():
    warnings.simplefilter("ignore", FutureWarning)  # ArviZ before 1 announces ArviZ 1 when imported
    arviz = pytest.importorskip("arviz")

BEFORE_1 = int(arviz.__version__.split(".")[0]) < 1
needs_arviz_0 = pytest.mark.skipif(not BEFORE_1, reason="the oracle is the interface of ArviZ before 1")


def autoregressive(rng: np.random.Generator, rho: float, shape: tuple[int, int]) -> np.ndarray:
    """Stationary chains of standard normals."""
    noise = rng.normal(size=shape) * math.sqrt(1 - rho**2)
    noise[:, 0] /= math.sqrt(1 - rho**2)
    return lfilter([1.0], [1.0, -rho], noise, axis=1)


@needs_arviz_0
@pytest.mark.parametrize("rho", [0.0, 0.5, 0.9, 0.98, -0.3, -0.9])
@pytest.mark.parametrize("shape", [(4, 1000), (1, 500), (2, 333), (3, 50)])
def test_mcse_of_chains_agrees_with_arviz(rho: float, shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(0)
    for _ in range(5):
        x = autoregressive(rng, rho, shape)
        n = x.size
        assert monte_carlo_error(x) == pytest.approx(np.asarray(arviz.mcse(x, method="mean")).item(), rel=1e-9)
        assert n / autocorrelation_time(x) == pytest.approx(np.asarray(arviz.ess(x, method="mean")).item(), rel=1e-9)
        assert autocorrelation_time(1e300 * x) == pytest.approx(autocorrelation_time(x))


def test_mcse_of_long_chains_is_unchanged_by_batch_means() -> None:
    rng = np.random.default_rng(1)
    for rho in (0.0, 0.9, 0.99):
        expected = (1 + rho) / (1 - rho)  # of an autoregressive chain
        times = [autocorrelation_time(autoregressive(rng, rho, (2, 50_000))) for _ in range(5)]
        assert np.mean(times) == pytest.approx(expected, rel=0.3)


def test_short_or_constant_chains_count_every_draw() -> None:
    assert autocorrelation_time(np.random.default_rng(0).normal(size=(4, 7))) == 1.0
    assert autocorrelation_time(np.full((2, 100), 3.0)) == 1.0
    assert math.isnan(monte_carlo_error([[1.0]]))


@needs_arviz_0
@pytest.mark.parametrize("efficiency", [1.0, 0.3, 0.01])
@pytest.mark.parametrize("n", [100, 1000, 4000])
def test_smoothed_weights_agree_with_arviz(n: int, efficiency: float) -> None:
    rng = np.random.default_rng(n)
    for log_weights in (2 * rng.normal(size=n), rng.standard_t(3, size=n), 0.8 * rng.exponential(size=n)):
        with np.errstate(over="ignore"):
            expected, k_hat = arviz.psislw(log_weights.copy(), efficiency)
        smoothed, found = smooth_log_weights(log_weights, efficiency)
        np.testing.assert_allclose(smoothed, expected, atol=1e-10)
        assert found == pytest.approx(float(k_hat), rel=1e-10)
        assert pareto_k(log_weights, efficiency) == found


def test_smoothing_does_not_change_weights_without_tail() -> None:
    equal = Samples(np.arange(100.0))
    np.testing.assert_array_equal(equal.smoothed().log_weights, equal.log_weights)
    draws = np.random.default_rng(0).normal(size=2000)
    result = regularize(Samples(draws), E(lambda x: x) == 0.6)
    smoothed = result.posterior.smoothed()
    assert smoothed.weights.sum() == pytest.approx(1.0)
    assert smoothed.weights.max() <= result.posterior.weights.max() * 1.1
    assert float(smoothed.expectation(lambda x: x)) == pytest.approx(0.6, abs=0.05)


RNG = np.random.default_rng(0)
DRAWS = RNG.normal(size=(60, 2))
PSI = np.column_stack([DRAWS, DRAWS[:, 0] * DRAWS[:, 1]])
OTHER = np.sin(DRAWS[:, :1])
KINDS = {
    "equalities": Equal([0.2, 0.1, 0.0]),
    "one active bound": AtMost([0.0, 5.0, -0.1]),
    "2-norm ball": Ball([0.5, 0.5, 0.5], 0.3),
    "1-norm ball": Ball([0.5, 0.5, 0.5], 0.3, norm=1),
    "ridge": Ridge([0.5, 0.5, 0.2], 0.3),
    "hinge": Hinge(0.4),
    "between": AtLeast([0.3, -5.0, -5.0]) + AtMost([2.0, -0.2, 5.0]),
    "prices reached": EpsilonInsensitive([1.0, 1.0, 1.0], 0.1, 0.2),
    "divergence": GeneralizedKL([0.2, 0.3, 0.5], 0.3),
    "classes": MultiClassHinge(0.7, [0.5, 0.5, 0.5]),
}


@pytest.mark.filterwarnings("ignore::regbayes.UnreliableWeightsWarning")  # only sixty draws
@pytest.mark.parametrize("regularizer", KINDS.values(), ids=KINDS)
def test_influences_are_derivatives_by_draw_weight(regularizer: Any) -> None:
    """Compare with central differences of the solution in the weight of one draw."""
    base = Samples(DRAWS)
    result = regularize(base, PSI, regularizer, tol=1e-12)
    influences = find_influences(result.posterior, base, PSI, regularizer, result.warm_start)
    step, n = 1e-5, len(DRAWS)

    def solved(draw: int, sign: int) -> np.ndarray:
        log_weights = np.zeros(n)
        log_weights[draw] = np.log1p(sign * step * n)
        moved = regularize(Samples(DRAWS, log_weights), PSI, regularizer, tol=1e-13, warm_start=result.warm_start)
        return np.r_[moved.multipliers, moved.after, moved.expectation(OTHER), moved.kl]

    for draw in range(0, n, 9):
        found = [
            influences.of_multipliers()[0, draw],
            influences.of_expectations()[0, draw],
            influences.of_features(OTHER)[0, draw],
            influences.of_kl()[0, draw],
        ]
        expected = (solved(draw, 1) - solved(draw, -1)) / (2 * step)
        np.testing.assert_allclose(np.concatenate(found), expected, atol=1e-5 * (1 + np.abs(expected).max()))


@needs_arviz_0
def test_mcse_of_untilted_draws_agrees_with_arviz() -> None:
    x = autoregressive(np.random.default_rng(0), 0.6, (4, 500))
    result = regularize(Samples({"x": x}, chains=True), E("x") >= -5.0)
    expected = np.asarray(arviz.mcse(x, method="mean")).item()
    np.testing.assert_allclose([result.before_mcse[0], result.after_mcse[0], result.mcse("x")[0]], expected, rtol=2e-3)
    assert result.multipliers_mcse.tolist() == [0.0]
    assert result.kl_mcse == pytest.approx(0.0, abs=1e-12)
    assert result.ess("x")[0] == pytest.approx(np.asarray(arviz.ess(x, method="mean")).item(), rel=2e-3)
    assert result.effective_sample_size == pytest.approx(result.ess("x")[0])


@needs_arviz_0
@pytest.mark.parametrize("shape", [(1, 700), (3, 5000), (2, 1025), (1, 40_000)])
def test_mcse_of_many_features_equals_single_features(shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(5)
    n = math.prod(shape)
    values = lfilter([1.0], [1.0, -0.7], rng.normal(size=(n, 40)), axis=0)
    values *= 10.0 ** rng.integers(-200, 200, size=40)  # squares of some values overflow
    draws = Samples(np.zeros(shape), log_weights=rng.normal(size=n), chains=True)
    for column, error, count in zip(values.T, draws.mcse(values), draws.ess(values), strict=True):
        unit = np.abs(column).max()
        away = column / unit - draws.weights @ (column / unit)
        alone = n * monte_carlo_error((draws.weights * away).reshape(shape))
        assert error == pytest.approx(unit * alone, rel=1e-9)
        assert count == pytest.approx(float(draws.weights @ away**2) / alone**2, rel=1e-9)


def test_effective_sample_size_accounts_for_autocorrelation() -> None:
    x = autoregressive(np.random.default_rng(0), 0.98, (4, 1000))
    expected = np.asarray(arviz.ess(x, method="mean")).item()
    assert expected < 60
    for samples in (Samples({"x": x}, chains=True), Samples({"x": x.ravel()})):
        with pytest.warns(UnreliableWeightsWarning, match=r"only \d+ effective draws of 4000"):
            result = regularize(samples, E("x") == 0.1 + x.mean())
        assert expected / 3 < result.effective_sample_size < 3 * expected
        assert effective_sample_size(result.posterior.log_weights) > 3900  # from the weights alone


def coverage(rho: float, shape: tuple[int, int], repeats: int) -> tuple[np.ndarray, np.ndarray]:
    """Return z-scores under E(x) == 1/2: by the MCSE, and naively for iid draws."""
    rng, target = np.random.default_rng(0), 0.5
    truth = np.array([0.0, 0.5, 0.125, math.cos(0.5) * math.exp(-0.5), norm.sf(0.5)])
    stated, naive = [], []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnreliableWeightsWarning)
        for _ in range(repeats):
            draws = autoregressive(rng, rho, shape)
            other = np.column_stack([np.cos(draws.ravel()), draws.ravel() > 1])
            result = regularize(Samples(draws, chains=True), E(draws.ravel()) == target)
            estimates = np.r_[result.before, result.multipliers, result.kl, result.expectation(other)]
            errors = np.r_[result.before_mcse, result.multipliers_mcse, result.kl_mcse, result.mcse(other)]
            stated.append((estimates - truth) / errors)
            naive.append((result.before[0]) * math.sqrt(draws.size))
    return np.array(stated), np.array(naive)


@pytest.mark.parametrize(("rho", "shape"), [(0.0, (4, 100)), (0.6, (4, 400))])
def test_mcse_has_nominal_coverage(rho: float, shape: tuple[int, int]) -> None:
    repeats = 500
    stated, _ = coverage(rho, shape, repeats)
    for width in (1.0, 1.96):
        nominal = 1 - 2 * norm.sf(width)
        allowed = 3 * math.sqrt(nominal * (1 - nominal) / repeats)
        np.testing.assert_allclose((np.abs(stated) < width).mean(axis=0), nominal, atol=allowed)


def test_mcse_of_slowly_mixing_chains_is_nearly_right() -> None:
    """With thirty effective draws, 95% intervals cover somewhat less than 95%."""
    stated, naive = coverage(0.98, (4, 750), 150)
    covered = (np.abs(stated) < 1.96).mean(axis=0)
    assert np.all(covered > 0.8)
    assert np.mean(np.abs(naive) < 1.96) < 0.35  # assuming 3000 independent draws


def test_exact_posteriors_have_zero_mcse() -> None:
    for result in (
        regularize(Finite(np.arange(6.0)), E(lambda x: x) == 3.0),
        regularize(Gaussian([0.0], [1.0]), E(np.array([1.0])) == 1.0),
    ):
        zero = [result.before_mcse, result.after_mcse, result.multipliers_mcse, np.atleast_1d(result.kl_mcse)]
        assert np.concatenate(zero).tolist() == [0.0, 0.0, 0.0, 0.0]
        assert result.diagnostics == ()
        assert "±" not in result.summary()
    assert regularize(Finite(np.arange(6.0)), E(lambda x: x) == 3.0).mcse(lambda x: x**2).tolist() == [0.0]


def test_boundary_has_mcse_of_finite_quantities() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=4000)
    result = regularize(Samples({"x": x}), E(lambda v: v.x > 0, name="positive") == 1)
    assert result.status == "boundary"
    assert np.isnan(result.multipliers_mcse[0])
    half = x[x > 0]
    assert result.mcse("x")[0] == pytest.approx(half.std() / math.sqrt(half.size), rel=0.25)
    # the divergence is -log of a share of about one half, whose relative error is 1 / sqrt(n)
    assert result.kl_mcse == pytest.approx(1 / math.sqrt(4000), rel=0.25)
    assert "no tail of large weights" in result.summary()


def test_mcse_is_saved_and_loaded(tmp_path: Any) -> None:
    result = regularize(Samples({"x": np.random.default_rng(0).normal(size=(4, 200))}, chains=True), E("x") == 0.3)
    result.save(tmp_path / "result")
    found = load(tmp_path / "result")
    np.testing.assert_array_equal(found.multipliers_mcse, result.multipliers_mcse)
    assert str(found) == str(result)


@pytest.mark.parametrize("seed", [1, 4, 5])
def test_few_effective_draws_warn_despite_low_k_hat(seed: int) -> None:
    draws = np.random.default_rng(seed).normal(size=1000)
    with pytest.warns(UnreliableWeightsWarning, match=r"only \d+ effective draws of 1000 .* Draw more"):
        result = regularize(Samples(draws), E(lambda x: x) == 1.8)
    assert result.pareto_k < 0.66
    assert effective_sample_size(result.posterior.log_weights) < 100


def test_mild_tilt_of_few_draws_does_not_warn() -> None:
    result = regularize(Samples(np.random.default_rng(0).normal(size=120)), E(lambda x: x) == 0.1)
    assert result.diagnostics == ()


@pytest.mark.parametrize("seed", range(4))
def test_non_integrable_tilt_warns(seed: int) -> None:
    draws = np.exp(np.random.default_rng(seed).normal(size=20_000))
    with pytest.warns(UnreliableWeightsWarning, match="may not exist beyond the draws") as caught:
        regularize(Samples(draws), E(lambda x: x) == 5.0)
    assert len(caught) == 1  # one warning with all reasons


def test_score_tail_of_known_distributions() -> None:
    rng = np.random.default_rng(0)
    n = 40_000
    for scores, low, high in (
        (rng.normal(size=n), -0.25, 0.05),
        (rng.exponential(size=n), -0.15, 0.15),
        (rng.pareto(2.0, size=n), 0.3, 0.7),
        (rng.random(n), -1.2, -0.8),
    ):
        shape, error = score_tail(scores)
        assert low < shape < high
        assert 0 < error < 0.1
    assert score_tail(np.ones(100)) == (-math.inf, 0.0)
    assert score_tail([1.0]) == (-math.inf, 0.0)


@pytest.mark.parametrize("seed", range(4))
def test_integrable_tilt_does_not_warn(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for draws, target in ((rng.normal(size=20_000), 1.5), (rng.exponential(size=20_000), 2.0)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UnreliableWeightsWarning)
            result = regularize(Samples(draws), E(lambda x: x) == target)
        assert not any("may not exist" in doubt for doubt in result.diagnostics)


def test_infinite_k_hat_is_described_in_summary() -> None:
    with pytest.warns(UnreliableWeightsWarning, match="too few draws have a large weight to know its tail"):
        result = regularize(Samples(np.arange(15.0)), E(lambda x: x) == 8.0)
    assert result.pareto_k == math.inf
    assert "k-hat unknown (too few large weights)" in result.summary()
    assert "no tail of large weights" in regularize(Samples(np.arange(100.0)), E(lambda x: x) <= 500.0).summary()


def test_quantiles_are_weighted_quantiles_of_draws() -> None:
    rng = np.random.default_rng(0)
    result = regularize(Samples({"x": rng.normal(size=(400, 2))}), E("x[0]") == 0.4)
    values, weights = result.posterior.draws.variables["x"], result.posterior.weights
    for column in range(2):
        expected = np.quantile(values[:, column], [0.05, 0.5, 0.9], weights=weights, method="inverted_cdf")
        np.testing.assert_array_equal(result.quantile("x", [0.05, 0.5, 0.9])[column], expected)
    assert result.quantile("x", 0.5).shape == (2,)
    low, high = result.interval("x[0]", 0.9)[0]
    assert weights[(values[:, 0] >= low) & (values[:, 0] <= high)].sum() == pytest.approx(0.9, abs=0.02)
    mean = weights @ values
    np.testing.assert_allclose(result.sd("x"), np.sqrt(weights @ (values - mean) ** 2))
    with pytest.raises(ValueError, match="probabilities must be numbers from 0 to 1"):
        result.quantile("x", 1.5)
    with pytest.raises(ValueError, match="probability must lie between 0 and 1"):
        result.interval("x", 94)


def test_quantiles_of_exact_posteriors() -> None:
    die = regularize(Finite(np.arange(1, 7)), E(lambda x: x) >= 1.0)
    assert die.quantile(lambda x: x, [0.0, 0.5, 0.51, 1.0]).tolist() == [[1.0, 3.0, 4.0, 6.0]]
    gaussian = regularize(Gaussian([0.0, 0.0], [1.0, 4.0]), E(np.array([1.0, 0.0])) == 1.0)
    np.testing.assert_allclose(gaussian.interval(np.eye(2), 0.95), [[1 - 1.96, 1 + 1.96], [-3.92, 3.92]], atol=1e-3)
    np.testing.assert_allclose(gaussian.quantile(np.eye(2), 0.5), [1.0, 0.0])
    np.testing.assert_allclose(gaussian.sd(np.eye(2)), [1.0, 2.0])


@pytest.mark.parametrize("scale", [1e-150, 1e-10, 1e10, 1e150])
def test_mcse_and_summary_of_features_of_any_scale(scale: float) -> None:
    draws = np.random.default_rng(0).normal(size=1000)
    plain = regularize(Samples(draws), E(lambda x: x) <= 10.0)
    result = regularize(Samples(draws), E(lambda x: scale * x) <= 10.0 * scale)
    assert result.effective_sample_size == pytest.approx(plain.effective_sample_size)
    np.testing.assert_allclose(result.before_mcse, scale * plain.before_mcse)
    np.testing.assert_allclose(result.sd(lambda x: scale * x), scale * plain.sd(lambda x: x))
    assert "effective draws" in str(result)


@pytest.mark.parametrize("scale", [1e-300, 1e-160, 1e-20, 1e20, 1e160, 1e300])
def test_mcse_is_unit_free_if_squares_overflow(scale):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2, 4, 100))

    def errors(unit):
        result = regularize(
            Samples({"x": unit * x, "y": y}, chains=True), [E("x") == 0.1 * unit, (E("y") >= 0.2).soft(0.1)]
        )
        units = np.array([unit, 1.0])
        other = result.mcse(lambda v: v.x * v.y)[0] / unit
        return [
            *(result.before_mcse / units),
            *(result.after_mcse / units),
            *(result.multipliers_mcse * units),
            other,
            result.kl_mcse,
        ]

    np.testing.assert_allclose(errors(scale), errors(1.0), rtol=1e-7, atol=1e-12)
