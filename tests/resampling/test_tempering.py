"""`resample` against closed forms and sums, with exact samplers."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from scipy.special import expit

import regbayes
from exact_samplers import ExactGaussian, ExactGrid, StuckGrid
from regbayes import (
    E,
    Finite,
    Gaussian,
    InfeasibleError,
    NotConvergedWarning,
    Samples,
    SamplingError,
    UnreliableWeightsWarning,
    regularize,
    resample,
)
from regbayes.ppl import Run, Sampler, Start, Tilt
from regbayes.resampling.checks import find_escape
from regbayes.resampling.pool import TemperedRun, pool_runs

GRID = np.linspace(-12, 12, 4801)


def standard(x: np.ndarray) -> np.ndarray:
    return -0.5 * x**2


def gaussian_problem(seed: int = 3) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(5, 5))
    return rng.normal(size=5), root @ root.T + np.eye(5), rng.normal(size=(3, 5))


def gaussian_constraints(parts: Any, mean: np.ndarray, covariance: np.ndarray, slopes: np.ndarray) -> list[Any]:
    spread, at = np.sqrt(np.diag(slopes @ covariance @ slopes.T)), slopes @ mean
    return [E(parts[0]) == at[0] + 5 * spread[0], E(parts[1]) >= at[1] + 2 * spread[1], E(parts[2]) <= at[2]]


def nats_off(found: Any, exact: Any) -> float:
    """KL divergence from the result to the exact solution, to second order."""
    values, away = exact.features.values, found.multipliers - exact.multipliers
    weights = exact.posterior.weights
    centred = values - weights @ values
    return 0.5 * float(weights @ (centred @ away) ** 2)


def test_resample_gaussian_matches_closed_form():
    mean, covariance, slopes = gaussian_problem()
    exact = regularize(Gaussian(mean, covariance), gaussian_constraints(slopes, mean, covariance, slopes))
    assert exact.kl > 10  # too far for reweighting draws of the posterior
    functions = [lambda v, k=k: v.x @ slopes[k] for k in range(3)]
    asked = gaussian_constraints(functions, mean, covariance, slopes)
    hessian = slopes @ covariance @ slopes.T
    errors, moved = [], []
    for seed in range(8):
        found = resample(ExactGaussian(mean, covariance), asked, seed=seed)
        assert found.status == "optimal"
        assert found.diagnostics == ()
        assert len(found.runs) <= 3 + np.sqrt(2 * exact.kl)
        away = found.multipliers - exact.multipliers
        errors.append(0.5 * away @ hessian @ away / found.kl_mc_error)
        assert np.all(np.abs(away) <= 4 * found.multipliers_mcse + 1e-12)
        np.testing.assert_allclose(found.after[:2], exact.after[:2], rtol=1e-6)
        moved.append((found.kl - exact.kl) / found.kl_mcse)
        assert found.posterior.n_atoms == 3000
    assert np.mean(errors) < 2.5
    assert 0.3 < np.sqrt(np.mean(np.square(moved))) < 1.8  # the standard error of KL is one


GRID_PROBLEMS = {
    "a probability": [E(expit, name="p") == 0.99],
    "a larger spread": [E(lambda x: x**2, name="square") >= 4],
    "a smaller spread": [E(lambda x: x**2, name="square") <= 0.01],
    "two moments": [E("x") == 4, E(lambda x: x**2, name="square") <= 16.2],
    "two modes with mixing chains": [E(np.abs, name="size") == 4],
    "between": [E("x").between(3, 4)],
    "a ball": [E(lambda x: np.column_stack([x, np.tanh(x)]), name="f").within(0.1, of=[3, 0.9])],
}


@pytest.mark.parametrize("name", GRID_PROBLEMS)
def test_resample_grid_matches_sums(name):
    asked = GRID_PROBLEMS[name]
    exact = regularize(Finite({"x": GRID}, log_weights=standard(GRID)), asked)
    found = [resample(ExactGrid(GRID, standard), asked, seed=seed) for seed in range(3)]
    for result in found:
        assert result.status == "optimal"
        assert len(result.runs) <= 3 + np.sqrt(2 * exact.kl)
        assert abs(result.kl - exact.kl) < 5 * result.kl_mcse
        assert np.all(np.abs(result.multipliers - exact.multipliers) <= 5 * result.multipliers_mcse + 1e-9)
    assert np.mean([nats_off(result, exact) / result.kl_mc_error for result in found]) < 6


def test_resample_soft_constraint_has_penalty_as_multiplier():
    asked = (E("x") >= 5).soft(3)
    found = resample(ExactGrid(GRID, standard), asked)
    assert found.status == "optimal"
    np.testing.assert_allclose(found.multipliers, 3)
    assert abs(found.after[0] - 3) < 5 * found.after_mcse[0]
    assert found.after_mcse[0] > 0


def test_resample_satisfied_constraint_has_zero_multiplier():
    found = resample(ExactGrid(GRID, standard), E("x") <= 1)
    assert found.status == "optimal"
    assert len(found.runs) == 2
    assert found.multipliers[0] == 0
    assert found.kl == 0


def test_resample_takes_functions_and_regularizer():
    sampler = ExactGrid(GRID, standard)
    asked = resample(sampler, E("x") >= 3, seed=4)
    given = resample(sampler, "x", regbayes.regularizers.AtLeast(3.0), seed=4)
    np.testing.assert_array_equal(asked.multipliers, given.multipliers)


def test_resample_depends_on_seed_alone():
    first, again, other = (resample(ExactGrid(GRID, standard), E("x") == 4, seed=seed) for seed in (7, 7, 8))
    np.testing.assert_array_equal(first.multipliers, again.multipliers)
    np.testing.assert_array_equal(first.posterior.draws.variables["x"], again.posterior.draws.variables["x"])
    assert first.multipliers[0] != other.multipliers[0]


def test_runs_start_near_their_tilt():
    mean, covariance, slopes = gaussian_problem()
    sampler = ExactGaussian(mean, covariance)
    result = resample(sampler, E(lambda v: v.x @ slopes[0], name="f") == slopes[0] @ mean + 20)
    assert sampler.starts[1] is None  # the first run after the example
    for start, found in zip(sampler.starts[2:], result.runs[1:], strict=True):
        assert start.positions.shape == (4, 5)
        np.testing.assert_array_equal(start.positions, start.variables["x"])
        np.testing.assert_allclose(np.diag(start.covariance), np.diag(covariance), rtol=0.6)
        spread = np.sqrt(slopes[0] @ covariance @ slopes[0])
        assert np.all(np.abs(start.positions @ slopes[0] - found.expectation[0]) < 6 * spread)


def test_accuracy_is_met_by_longer_runs_or_refused():
    sampler = ExactGrid(GRID, standard)
    fine = resample(sampler, E("x") == 3, accuracy=3e-5)
    assert fine.status == "optimal"
    assert fine.kl_mc_error <= 3e-5
    assert fine.posterior.n_atoms > 3000
    with pytest.warns(NotConvergedWarning, match="would take about"):
        hopeless = resample(sampler, E("x") == 3, accuracy=1e-9)
    assert hopeless.status == "iteration_limit"


# --- status codes


def test_contradiction_is_infeasible_after_first_run():
    said = r"E\(x\) >= 1 and E\(double\) <= 0 cannot be met: a combination of their functions is 0 for all"
    with pytest.raises(InfeasibleError, match=said) as caught:
        resample(ExactGrid(GRID, standard), [E("x") >= 1, E(lambda x: 2 * x, name="double") <= 0])
    assert len(caught.value.result.runs) == 1
    assert caught.value.result.status == "infeasible"


def test_constant_function_is_infeasible_unless_soft():
    def one(x: np.ndarray) -> np.ndarray:
        return np.cos(x) ** 2 + np.sin(x) ** 2  # constant up to rounding

    with pytest.raises(
        InfeasibleError, match=r"E\(one\) == 2 cannot be met: its function is 1 for all 400 draws, .* 2\."
    ):
        resample(ExactGrid(GRID, standard), E(one, name="one") == 2)
    beside = resample(ExactGrid(GRID, standard), [E(one) <= 2, E("x") == 1])
    assert beside.status == "optimal"
    assert abs(beside.multipliers[1] - 1) < 4 * beside.multipliers_mcse[1]
    # The multiplier of a soft constraint that cannot be met is the whole penalty.
    paid = resample(ExactGrid(GRID, standard), (E(one) == 2).soft(3.0))
    assert paid.status == "optimal"
    np.testing.assert_allclose(paid.multipliers, 3.0)


UNREACHABLE = {
    "outside of the range": (E(expit, name="p") >= 1.2, 0.98),
    "limit of the range": (E(expit, name="p") == 1, 0.98),
    "no such moments": ([E("x") == 2, E(lambda x: x**2) == 3], 1.5),
}


@pytest.mark.parametrize("name", UNREACHABLE)
@pytest.mark.parametrize("seed", range(3))
def test_unreachable_constraint_is_not_attained(name, seed):
    """No distribution has these expectations; few runs detect that progress stopped."""
    constraints, reached = UNREACHABLE[name]
    with pytest.warns(NotConvergedWarning, match="came no nearer"):
        result = resample(ExactGrid(GRID, standard), constraints, seed=seed)
    assert result.status == "not_attained"
    assert len(result.runs) <= 8
    assert max(run.expectation[0] for run in result.runs) > reached


def test_max_iter_returns_nearest_run():
    with pytest.warns(NotConvergedWarning, match="Raise max_iter"):
        result = resample(ExactGrid(GRID, standard), E("x") == 8, max_iter=3)
    assert result.status == "iteration_limit"
    assert len(result.runs) == 3
    assert 1 < result.after[0] < 8
    assert result.violation > 1
    # An intermediate run is returned with its own expectation and error, and with the multipliers it used.
    last = result.runs[result.returned]
    np.testing.assert_allclose(result.after_mcse, last.mcse)
    assert result.after_mcse[0] == pytest.approx(last.n_chains**-0.5 * last.n_draws**-0.5, rel=0.3)
    assert result.multipliers_mcse[0] == 0


def two_far_modes(x: np.ndarray) -> np.ndarray:
    return np.logaddexp(-0.5 * (x - 6) ** 2, -0.5 * (x + 6) ** 2)


def test_chains_in_different_modes_raise():
    sampler = StuckGrid(GRID, two_far_modes, [1, 1, 1, -1])
    with pytest.raises(SamplingError, match="do not converge even without a tilt: R-hat") as caught:
        resample(sampler, E("x") == 1)
    assert caught.value.result.status == "unreliable"
    assert caught.value.runs[-1].run.variables["x"].shape == (4, 750)
    assert quietly(sampler, E("x") == 1).status == "unreliable"


class SeenGrid(StuckGrid):
    """Chains that all miss one mode, of a sampler with a known density."""

    def draw(self, tilt: Tilt, n_draws: int, *, seed: int, start: Start | None, final: bool) -> Run:
        found = super().draw(tilt, n_draws, seed=seed, start=start, final=final)
        return Run(found.variables, positions=found.variables["x"][..., None])

    def log_density(self, tilt: Tilt, positions: np.ndarray) -> np.ndarray:
        return self.plain(positions[:, 0]) + (tilt({"x": positions[:, 0]}) if tilt.features else 0.0)


def heavy(x: np.ndarray) -> np.ndarray:
    return np.where(x > 0, -2 * np.log1p(x**2 / 3), -np.inf)


def test_heavy_tail_is_improper():
    wide = np.sinh(np.linspace(1e-3, 8, 4001))

    class Heavy(SeenGrid):
        def log_weights(self, tilt: Tilt) -> np.ndarray:
            logs = super().log_weights(tilt) + np.log(np.gradient(self.grid))  # the grid is not uniform
            return logs - np.logaddexp.reduce(logs)

    with pytest.raises(SamplingError, match="no normalizing constant") as caught:
        resample(Heavy(wide, heavy, [1, 1, 1, 1]), E("x") >= 3)
    assert caught.value.result.status == "improper"
    # In the other direction the tilt exists and is found.
    positive = resample(Heavy(wide, heavy, [1, 1, 1, 1]), E("x") <= 0.5)
    assert positive.status == "optimal"


class ScaleMixture(Sampler):
    """``x ~ N(0, s²)`` with a lognormal scale s; its coordinates are log s and x."""

    def draw(self, tilt: Tilt, n_draws: int, *, seed: int, start: Start | None, final: bool) -> Run:
        rng = np.random.default_rng(seed)
        log_scale = 0.5 * rng.normal(size=(4, n_draws))
        x = np.exp(log_scale) * rng.normal(size=(4, n_draws))
        return Run({"s": np.exp(log_scale), "x": x}, positions=np.stack([log_scale, x], axis=2))

    def plain(self, positions: np.ndarray) -> np.ndarray:
        log_scale, x = positions.T
        return -2 * log_scale**2 - log_scale - 0.5 * (x * np.exp(-log_scale)) ** 2

    def log_density(self, tilt: Tilt, positions: np.ndarray) -> np.ndarray:
        with np.errstate(all="ignore"):
            return self.plain(positions) + tilt({"s": np.exp(positions[:, 0]), "x": positions[:, 1]})


def test_find_escape_climbs_where_axes_miss_growth():
    """E exp(phi² s² / 2) is infinite, but the density falls along s and x."""
    sampler = ScaleMixture()
    run = sampler.draw(Tilt((), np.zeros(0)), 100, seed=0, start=None, final=False)

    def looked(feature: Any, phi: float) -> tuple[str | None, str | None]:
        tilt = Tilt((feature,), np.array([phi]))
        return find_escape(sampler, tilt, run), find_escape(sampler, tilt, run, climbs=True)

    along, climbed = looked("x", 3.0)
    assert along is None
    assert "without end" in climbed
    # Bounded features and the logarithm of the scale have tilts for any multiplier.
    assert looked(lambda v: np.tanh(v.x), 30.0) == (None, None)
    assert looked(lambda v: np.log(v.s), 5.0) == (None, None)
    # Messages name the variable, not the sampler's coordinate.
    assert looked("s", 3.0)[0] == "its density grows without end along s"


class Overflowing(ScaleMixture):
    """The tilt by log s computed by tracing, in which log(exp(800)) is infinite."""

    def log_density(self, tilt: Tilt, positions: np.ndarray) -> np.ndarray:
        with np.errstate(all="ignore"):
            return self.plain(positions) + tilt.multipliers.sum() * np.log(np.exp(positions[:, 0]))


def test_find_escape_ignores_overflow():
    sampler, tilt = Overflowing(), Tilt((lambda v: np.log(v.s),), np.array([2.0]))
    run = sampler.draw(tilt, 100, seed=0, start=None, final=False)
    assert np.isinf(sampler.log_density(tilt, np.array([[800.0, 0.0]]))[0])
    assert find_escape(sampler, tilt, run) is None


def test_run_beyond_existing_tilts_is_discarded():
    """Squares of normals have tilts below 1/2 only; the sampler has no density."""
    wide, asked = np.linspace(-60, 60, 6001), E(lambda x: x**2, name="square") == 4
    result = quietly(ExactGrid(wide, standard), asked, seed=0)
    strayed = [r.is_discarded for r in result.runs]
    assert sum(strayed) == 1
    assert result.runs[strayed.index(True)].multipliers[0] > 0.5
    assert "x discarded" in result.runs_table()
    assert result.status == "optimal"
    exact = regularize(Finite({"x": wide}, log_weights=standard(wide)), asked)
    assert abs(result.multipliers[0] - exact.multipliers[0]) < 4 * result.multipliers_mcse[0]
    assert abs(result.kl - exact.kl) < 5 * result.kl_mcse


class Transformed(ExactGrid):
    """A function of the position, drawn on a grid of positions with known density."""

    def __init__(self, grid: Any, log_density: Any, transform: Any) -> None:
        super().__init__(grid, log_density)
        self.transform = transform

    def log_density(self, tilt: Tilt, positions: np.ndarray) -> np.ndarray:
        with np.errstate(over="ignore", invalid="ignore"):
            x = self.transform(positions[:, 0])
            return self.plain(positions[:, 0]) + (tilt({"x": x}) if tilt.features else 0.0)

    def draw(self, tilt: Tilt, n_draws: int, *, seed: int, start: Start | None, final: bool) -> Run:
        logs = self.log_density(tilt, self.grid[:, None]) + np.log(np.gradient(self.grid))
        weights = np.exp(logs - logs.max())
        rng = np.random.default_rng(seed)
        u = rng.choice(self.grid, size=(self.n_chains, n_draws), p=weights / weights.sum())
        return Run({"x": self.transform(u)}, positions=u[..., None])


def lognormal() -> Transformed:
    return Transformed(np.linspace(-7, 7, 4001), standard, np.exp)


def cauchy() -> Transformed:
    return Transformed(np.sinh(np.linspace(-12, 12, 6001)), lambda x: -np.log1p(x**2), lambda x: x)


NO_TILTS = {
    "lognormal, up": (lognormal, E("x") >= 10),
    "lognormal, squares up": (lognormal, E(lambda x: x**2, name="square") >= 50),
    "Cauchy, mean": (cauchy, E("x") == 1),
    "Cauchy, absolute value": (cauchy, E(np.abs, name="size") >= 30),
    "Cauchy, two moments": (cauchy, [E("x") == 0, E(lambda x: x**2, name="square") == 1e7]),
}


@pytest.mark.parametrize("name", NO_TILTS)
@pytest.mark.parametrize("seed", range(2))
def test_constraint_on_missing_moment_is_improper(name, seed):
    build, asked = NO_TILTS[name]
    result = quietly(build(), asked, seed=seed)
    assert result.status == "improper"
    assert "no normalizing constant" in result.diagnostics[0]


def test_lighter_tailed_function_of_same_variable_is_optimal():
    assert quietly(lognormal(), E("x") <= 0.7).status == "optimal"
    assert quietly(lognormal(), E(np.log) == 3).status == "optimal"
    assert quietly(cauchy(), E(np.arctan, name="angle") == 0.8).status == "optimal"


class Cautious(ExactGrid):
    """A sampler that reports smooth features and the divergences set by the test."""

    smooth = True
    diverging = 0.0

    def draw(self, tilt: Tilt, n_draws: int, *, seed: int, start: Start | None, final: bool) -> Run:
        found = super().draw(tilt, n_draws, seed=seed, start=start, final=final)
        diverging = np.random.default_rng(seed).random((self.n_chains, n_draws)) < self.diverging
        return Run(found.variables, statistics={"diverging": diverging})

    def find_smooth(self, tilt: Tilt) -> np.ndarray:
        return np.array([self.smooth])


def test_function_without_gradient_is_reweighted():
    sampler = Cautious(GRID, standard)
    sampler.smooth = False
    positive = E(lambda x: x > 0, name="positive") == 0.7
    result = resample(sampler, positive)
    assert result.status == "optimal"
    assert not isinstance(result, regbayes.ResampledPosterior)  # the sampler never followed the gradient
    assert abs(result.multipliers[0] - np.log(7 / 3)) < 5 * result.multipliers_mcse[0]
    with pytest.raises(SamplingError, match=r"no gradient .* smooth approximation"):
        resample(sampler, E(lambda x: x > 3.2, name="large") == 0.9)
    sure = resample(sampler, E(lambda x: x > 0, name="positive") == 1)
    assert sure.status == "boundary"


class OneSided(ExactGrid):
    """Short runs visit both signs, long ones only one, which an even feature misses."""

    one_sided = True

    def draw(self, tilt: Tilt, n_draws: int, *, seed: int, start: Start | None, final: bool) -> Run:
        found = super().draw(tilt, n_draws, seed=seed, start=start, final=final)
        return Run({"x": np.abs(found.variables["x"])}) if final and self.one_sided else found


def test_final_run_that_missed_a_region_is_unreliable():
    sampler = OneSided(GRID, standard)
    asked = E(lambda x: x**2, name="square") == 4
    with pytest.warns(UnreliableWeightsWarning, match=r"missed a region .*values of x"):
        assert resample(sampler, asked).status == "unreliable"
    sampler.one_sided = False
    assert resample(sampler, asked).status == "optimal"


class Ratio(Sampler):
    """Two normal variables, whose ratio has no mean and no gradient at its pole."""

    def draw(self, tilt: Tilt, n_draws: int, *, seed: int, start: Start | None, final: bool) -> Run:
        a, b = np.random.default_rng(seed).normal(size=(2, 4, n_draws))
        return Run({"a": a, "b": b})

    def find_smooth(self, tilt: Tilt) -> np.ndarray:
        return np.array([False])


@pytest.mark.parametrize("seed", range(5))
def test_ratio_without_mean_raises(seed):
    with pytest.raises(SamplingError, match="may have no mean") as caught:
        resample(Ratio(), E(lambda v: v.a / v.b, name="ratio") == 0.0, seed=seed)
    assert caught.value.runs
    assert caught.value.result.status == "unreliable"
    bounded = resample(Ratio(), E(lambda v: np.arctan(v.a / v.b) > 0, name="positive") == 0.6, seed=seed)
    assert bounded.status == "optimal"
    steps = resample(Ratio(), E(lambda v: np.floor(3 * v.a) + 0.01 * v.b, name="steps") == 0.3, seed=seed)
    assert steps.status == "optimal"  # discrete values, whose tails have irregular shapes


def test_given_event_is_reweighted_or_raises():
    sampler = Cautious(GRID, standard)
    sampler.smooth = False
    result = resample(sampler, E("x").given(lambda x: x > 1.5) == 2.0)
    assert result.status == "optimal"
    inside = result.posterior.expectation(lambda x: (x > 1.5) * (x - 2.0))
    assert abs(float(inside)) < 1e-6
    with pytest.raises(SamplingError, match="No draw of the posterior is in it") as caught:
        resample(sampler, E("x").given(lambda x: x > 20) == 21)
    assert caught.value.runs


def test_divergences_are_unreliable():
    sampler = Cautious(GRID, standard)
    sampler.diverging = 0.02
    with pytest.warns(UnreliableWeightsWarning, match="diverged"):
        result = resample(sampler, E("x") == 3)
    assert result.status == "unreliable"
    assert result.divergences > 20
    assert "Reparametrize" in str(result)


class Forgetful(ExactGrid):
    """Long runs are shifted against short ones, like those of a broken sampler."""

    def draw(self, tilt: Tilt, n_draws: int, *, seed: int, start: Start | None, final: bool) -> Run:
        found = super().draw(tilt, n_draws, seed=seed, start=start, final=final)
        return Run({"x": found.variables["x"] + 0.5 * final})


def test_final_run_against_its_prediction_is_unreliable():
    result = quietly(Forgetful(GRID, standard), E("x") == 3)
    assert result.status == "unreliable"
    assert "contradicts" in result.diagnostics[0]


# --- intermediate runs


class Failing(ExactGrid):
    error: BaseException = ValueError("the log-density is NaN")
    calls = 0

    def draw(self, tilt: Tilt, n_draws: int, *, seed: int, start: Start | None, final: bool) -> Run:
        self.calls += 1
        if self.calls == 4:
            raise self.error
        return super().draw(tilt, n_draws, seed=seed, start=start, final=final)


def test_sampler_error_keeps_earlier_runs():
    with pytest.raises(SamplingError, match="failed in run 2: the log-density is NaN") as caught:
        resample(Failing(GRID, standard), E("x") == 6)
    assert [stage.run.variables["x"].shape for stage in caught.value.runs] == [(4, 100)] * 2
    assert isinstance(caught.value.__cause__, ValueError)


def test_interrupt_returns_nearest_run():
    sampler = Failing(GRID, standard)
    sampler.error = KeyboardInterrupt()
    with pytest.warns(NotConvergedWarning, match="Interrupted"):
        result = resample(sampler, E("x") == 6)
    assert result.status == "interrupted"
    assert len(result.runs) == 2
    assert 0.5 < result.after[0] < 6


def test_callback_is_called_per_run_and_may_stop():
    heard: list[int] = []

    def stop_after_two(progress: Any) -> bool:
        heard.append(progress.iteration)
        return len(progress.state.runs) == 2

    with pytest.warns(NotConvergedWarning, match="Stopped by a callback"):
        result = resample(ExactGrid(GRID, standard), E("x") == 6, progress=stop_after_two)
    assert heard == [1, 2]
    assert result.status == "stopped"


# --- regularized draws as the first run


def test_draws_replace_first_run():
    rng = np.random.default_rng(0)
    draws = Samples({"x": rng.standard_normal((4, 500))}, chains=True)
    with pytest.raises(InfeasibleError, match="resample"):
        regularize(draws, E("x") == 6)
    sampler = Failing(GRID, standard)
    sampler.calls = 100  # does not fail
    result = resample(sampler, E("x") == 6, draws=draws)
    assert result.status == "optimal"
    assert sampler.calls == 100 + len(result.runs)  # the example, and every run but the first
    assert result.runs[0].n_draws == 500
    assert abs(result.multipliers[0] - 6) < 5 * result.multipliers_mcse[0]


def test_unreliable_weights_warning_names_resample():
    draws = Samples({"x": np.random.default_rng(0).standard_normal((4, 500))}, chains=True)
    with pytest.warns(UnreliableWeightsWarning, match="resample"):
        regularize(draws, E("x") == 2.6)


# --- results


@pytest.fixture(scope="module")
def answer() -> Any:
    return resample(ExactGaussian([0.0, 1.0], [[1.0, 0.5], [0.5, 2.0]]), E("x[0]") == 4)


def test_result_is_regularized_posterior_with_errors(answer):
    assert isinstance(answer, regbayes.RegularizedPosterior)
    assert abs(answer.multipliers[0] - 4) < 5 * answer.multipliers_mcse[0]
    assert answer.after_mcse[0] == pytest.approx(0, abs=1e-9)
    assert abs(answer.kl - 8) < 5 * answer.kl_mcse
    other = answer.expectation("x[1]")  # 1 + 0.5 * 4
    assert abs(float(other) - 3) < 5 * float(answer.mcse("x[1]")[0])
    assert answer.r_hat < 1.02
    assert "optimal:" in str(answer)
    assert "4x750" in answer.runs_table()
    assert answer.to_arviz is not None


def test_to_arviz_keeps_chains(answer):
    pytest.importorskip("arviz")
    tree = answer.to_arviz()
    posterior = tree["posterior"]
    np.testing.assert_array_equal(posterior["x"].values, answer.posterior.draws.variables["x"].reshape(4, 750, 2))
    weights = np.exp(tree["importance_weights"]["log_weight"].values)
    np.testing.assert_allclose(np.sum(weights * posterior["x"].values[..., 0]), 4)


def test_result_survives_saving(answer, tmp_path):
    answer.save(tmp_path / "answer")
    loaded = regbayes.load(tmp_path / "answer")
    np.testing.assert_array_equal(loaded.multipliers, answer.multipliers)
    assert loaded.runs_table() == answer.runs_table()
    assert str(loaded) == str(answer)
    with pytest.raises(AttributeError, match="no model"):
        loaded.to_model()


# --- pooling


def test_pool_finds_log_partitions_of_gaussians():
    rng = np.random.default_rng(0)
    phis = np.array([0.0, 1.0, 2.0, 3.2])
    runs = [TemperedRun.of(phi + rng.standard_normal((4, 500, 1)), np.array([phi]), Run({})) for phi in phis]
    pool = pool_runs(runs)
    for phi, found in zip(phis, pool.log_partitions, strict=True):
        error = pool.error_of_log_partition(np.array([phi]))
        assert abs(found - 0.5 * phi**2) <= 4 * error + 1e-12
        assert error <= 0.06
    there = pool.reweight(np.array([2.5]))
    assert abs(there.log_partition - 3.125) < 5 * pool.error_of_log_partition(np.array([2.5]))
    assert abs(there.expectation[0] - 2.5) < 5 * np.sqrt(pool.error_of_expectation(there)[0, 0])


@pytest.mark.parametrize("step", [1.0, 2.0, 4.0])
def test_pool_is_self_consistent_if_runs_hardly_overlap(step):
    """Reweighting to the multipliers of a run returns its log-partition, also from a guess far away."""
    rng = np.random.default_rng(3)
    phis = step * np.arange(12.0)[:, None] * [0.6, 0.8]
    runs = [TemperedRun.of(phi + rng.standard_t(4, (4, 100, 2)), phi, Run({})) for phi in phis]
    pool = pool_runs(runs)
    found = [pool.reweight(phi).log_partition for phi in phis]
    np.testing.assert_allclose(found, pool.log_partitions, atol=1e-6)


def test_pool_error_matches_repetition():
    rng = np.random.default_rng(1)
    found, errors = [], []
    for _ in range(60):
        runs = [
            TemperedRun.of(phi + rng.standard_normal((4, 100, 1)), np.array([phi]), Run({})) for phi in (0.0, 1.1, 2.2)
        ]
        pool = pool_runs(runs)
        found.append(pool.reweight(np.array([2.2])).log_partition)
        errors.append(pool.error_of_log_partition(np.array([2.2])))
    assert 0.75 < np.std(found) / np.mean(errors) < 1.3


# --- invalid input


def test_resample_bad_input_raises():
    sampler = ExactGrid(GRID, standard)
    with pytest.raises(ValueError, match="no variable 'nothing'; available: x"):
        resample(sampler, E("nothing") == 1)
    with pytest.raises(TypeError, match="got an array"):
        resample(sampler, E(np.zeros(400)) == 1)
    with pytest.raises(ValueError, match="shape"):
        resample(sampler, E(lambda x: x[:3]) == 1)
    with pytest.raises(ValueError, match="`accuracy` must be a positive"):
        resample(sampler, E("x") == 1, accuracy=0)
    with pytest.raises(ValueError, match="`n_draws` must be an integer of at least 20"):
        resample(sampler, E("x") == 1, n_draws=3)
    with pytest.raises(TypeError, match=r"`model` must be .* For draws call regularize"):
        resample(Samples(np.zeros(100)), E("x") == 1)
    with pytest.raises(TypeError, match=r"call resample\(model, constraints\)"):
        regularize(sampler, E("x") == 1)
    with pytest.raises(TypeError, match="draws must be Samples"):
        resample(sampler, E("x") == 1, draws=Gaussian([0.0], [1.0]))
    with pytest.raises(ValueError, match="unequal weights"):
        resample(sampler, E("x") == 1, draws=Samples(np.zeros(3), log_weights=[-1.0, 0, 0]))


def test_tilt_of_overflow_is_nan():
    tilt = Tilt((lambda x: x**2, "x"), np.array([1.0, 2.0]))
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(tilt({"x": np.array([3.0, np.inf, 1e300, -1.0])}), [15, np.nan, np.nan, -1])


def test_observed_variable_cannot_be_constrained():
    class WithData(ExactGrid):
        observed = ("y",)

    for asked, error in ((E("y[0]") == 1, ValueError), (E(lambda v: v.y) == 1, AttributeError)):
        with pytest.raises(error) as caught:
            resample(WithData(GRID, standard), asked)
        assert any("y is observed" in note for note in caught.value.__notes__)


def quietly(sampler: Sampler, asked: Any, **options: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return resample(sampler, asked, **options)
        except (InfeasibleError, SamplingError) as error:
            return error.result
