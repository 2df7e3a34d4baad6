"""`resample` for NumPyro models: eight schools against quadrature, and errors."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

from eight_schools import EFFECTS, STANDARD_ERRORS, TARGET, exact_answer, mean_effect, schools
from regbayes import E, Samples, SamplingError, resample
from regbayes.ppl import NumPyroModel

pytestmark = pytest.mark.numpyro


@pytest.fixture(scope="module", autouse=True)
def quiet_imports() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # import warnings of NumPyro and JAX are not ours
        import numpyro  # noqa: F401


@pytest.fixture(scope="module")
def model() -> NumPyroModel:
    return NumPyroModel(schools, EFFECTS, errors=STANDARD_ERRORS)


@pytest.fixture(scope="module")
def answer(model: NumPyroModel) -> Any:
    return resample(model, E(mean_effect) == TARGET, n_draws=400)


def test_eight_schools_match_quadrature(answer):
    phi, kl = exact_answer()
    assert kl > 9
    assert answer.status == "optimal"
    assert len(answer.runs) <= 3 + np.sqrt(2 * kl)
    assert abs(answer.multipliers[0] - phi) < 4 * answer.multipliers_mcse[0]
    assert abs(answer.kl - kl) < 5 * answer.kl_mcse
    np.testing.assert_allclose(answer.after, TARGET, rtol=1e-6)


def test_to_arviz_has_chains_statistics_and_plates(answer):
    pytest.importorskip("arviz")
    tree = answer.to_arviz()
    assert dict(tree["posterior"].sizes)["chain"] == 4
    assert tree["posterior"]["theta"].dims == ("chain", "draw", "school")
    assert set(tree["sample_stats"].data_vars) >= {"diverging", "energy", "n_steps", "step_size"}


def test_to_model_adds_the_factor(answer):
    import jax
    from numpyro import handlers
    from numpyro.infer.util import log_density

    sites = {"mu": 3.0, "tau": 2.0, "standard": np.linspace(-1, 1, 8)}
    values = {name: jax.numpy.asarray(value) for name, value in sites.items()}
    arguments = ((EFFECTS,), {"errors": STANDARD_ERRORS})
    plain, _ = log_density(schools, *arguments, values)
    tilted, _ = log_density(answer.to_model(), *arguments, values)
    assert float(tilted - plain) == pytest.approx(3.0 * answer.multipliers[0], rel=1e-4)  # its mean is 0
    assert "regularization" in handlers.trace(handlers.seed(answer.to_model(), jax.random.PRNGKey(0))).get_trace(
        *arguments[0], **arguments[1]
    )


def test_draws_replace_first_run(model, answer):
    first = answer.runs[0].run.variables
    draws = Samples({name: first[name] for name in ("mu", "tau", "standard", "theta")}, chains=True)
    positions = model.find_positions(dict(draws.draws.variables))
    np.testing.assert_allclose(
        positions.reshape(answer.runs[0].run.positions.shape), answer.runs[0].run.positions, atol=1e-3
    )
    result = resample(model, E(mean_effect) == 10, draws=draws, n_draws=200, seed=1)
    assert result.status in ("optimal", "unreliable")  # few draws, but the multiplier is found
    assert result.runs[0].n_chains == 8
    assert abs(result.after[0] - 10) < 1e-4


def test_tilted_density_adds_multipliers_times_functions(model):
    from jax import numpy as jnp

    from regbayes.ppl import Tilt

    combined = (E("theta[1]") - 2 * E("theta[2]") == 0).features
    features = (lambda v: jnp.column_stack([jnp.log1p(v.tau), v.mu**2]), "theta[3]", [lambda mu: mu / 3], combined)
    points = model.starts(3, 5)
    phi = np.array([0.5, -0.1, 0.2, 1.5, -0.4])
    moved = model.log_density(Tilt(features, phi), points) - model.log_density(Tilt(features, 0 * phi), points)
    variables = model.variables_at(points)
    np.testing.assert_allclose(moved, Tilt(features, phi)(variables), rtol=1e-3, atol=1e-3)


def test_function_in_numpy_is_refused_with_remedy(model):
    def log_tau(v: Any) -> Any:
        return np.log(np.asarray(v.tau))

    with pytest.raises(TypeError, match=r"log_tau could not be traced .* Write it with `jnp`"):
        resample(model, E(log_tau) == 1)


def test_find_smooth_finds_jumps(model):
    """Kinks and steep sigmoids are continuous; a jump has a misleading gradient."""
    from regbayes.ppl import Tilt

    features = (
        "mu",
        lambda v: v.mu > 5,
        lambda v: (v.mu > 5) * v.mu,
        lambda v: abs(v.mu - 5),
        E("mu").given(lambda v: v.tau > 1).on_event(0.0),
        lambda v: 1 / (1 + 2.718 ** (-(v.mu - 5) / 0.05)),
    )
    assert model.find_smooth(Tilt(features, np.zeros(6))).tolist() == [True, False, False, True, False, True]


def test_function_without_gradient_takes_one_run(model):
    with pytest.raises(SamplingError, match="no gradient") as caught:
        resample(model, E(lambda v: v.mu > 15, name="large") == 0.9, n_draws=100)
    assert len(caught.value.runs) == 1


def test_tilt_without_normalizer_is_improper(model):
    with pytest.raises(SamplingError, match="no normalizing constant") as caught:
        resample(model, E(lambda v: v.tau**3, name="cube") >= 4e4, n_draws=100)
    assert caught.value.result.status == "improper"


def test_bad_models_raise():
    import numpyro
    from numpyro import distributions as dist

    def discrete() -> None:
        numpyro.sample("k", dist.Bernoulli(0.5))

    def nowhere() -> None:
        numpyro.factor("f", numpyro.sample("x", dist.Normal(0, 1)) * np.nan)

    with pytest.raises(ValueError, match=r"discrete latent variables \(k\)"):
        NumPyroModel(discrete)
    with pytest.raises(ValueError, match="NaN or infinite"):
        NumPyroModel(nowhere)
    model = NumPyroModel(schools, EFFECTS, STANDARD_ERRORS)
    with pytest.raises(ValueError, match="y is observed"):
        resample(model, E("y") == 1)
    with pytest.raises(ValueError, match=r"no variable 'sigma'; available: .*mu"):
        resample(model, E("sigma") == 1)

    def pair() -> None:
        numpyro.sample("x", dist.Normal(0, 1).expand([2]))

    with pytest.raises(ValueError, match=r"shape \(2,\); it may be .* \(3,\)"):  # for a single draw
        resample(NumPyroModel(pair), E(lambda v: v.x[0]) == 1)


def test_infinite_function_does_not_affect_untilted_run():
    """log(exp(w) - 1) is infinite for w < 0, and zero times infinity would be NaN."""
    import numpyro
    from jax import numpy as jnp
    from numpyro import distributions as dist

    from regbayes.ppl import Tilt

    def model() -> None:
        numpyro.sample("w", dist.Normal(0.0, 1.0))

    def logarithm(v: Any) -> Any:
        return jnp.log(jnp.expm1(v.w))

    run = NumPyroModel(model).draw(Tilt((logarithm,), np.zeros(1)), 100, seed=0, start=None, final=False)
    assert run.statistics["diverging"].sum() == 0
    assert abs(run.variables["w"].mean()) < 0.2


def test_chain_with_huge_initial_gradient_recovers():
    """One start has a gradient above 1e5, and its chain once diverged at every step."""
    import numpyro
    from jax import numpy as jnp
    from numpyro import distributions as dist

    from regbayes.ppl import Tilt

    times = np.linspace(0.2, 2.5, 40)

    def weibull() -> None:
        shape = numpyro.sample("shape", dist.LogNormal(0, 0.5))
        scale = numpyro.sample("scale", dist.LogNormal(0, 1))
        hazard = jnp.log(shape) - shape * jnp.log(scale) + (shape - 1) * jnp.log(times)
        numpyro.factor("times", jnp.sum(hazard - (times / scale) ** shape))

    model = NumPyroModel(weibull)
    starts = np.tile([0.3, 0.5], (8, 1))  # log scale, log shape
    starts[4] = [-1.9, 1.8]
    slope = model.log_density_gradient(Tilt((), np.zeros(0)), starts[4])
    assert np.abs(slope).max() > 1e5
    model.starts = lambda seed, n: starts[:n]
    run = model.draw(Tilt((), np.zeros(0)), 50, seed=0, start=None, final=False)
    assert run.statistics["diverging"].mean(axis=1).max() < 0.2
