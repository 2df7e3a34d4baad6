"""`resample` for PyMC models: closed form of a Gaussian, and invalid input."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from regbayes import E, resample
from regbayes.ppl import PyMCModel, Tilt

pymc = pytest.importorskip("pymc", reason="needs PyMC: pip install '.[pymc]'")
pytestmark = [pytest.mark.pymc, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def model() -> Any:
    with pymc.Model(coords={"place": ["here", "there"]}) as model:
        mu = pymc.Normal("mu", 0, 1)
        scale = pymc.HalfNormal("scale", 1)
        effect = pymc.Normal("effect", mu, 1, dims="place")
        pymc.Deterministic("total", effect.sum())
        pymc.Normal("y", effect, 2 * scale + 1, observed=[0.5, -0.5], dims="place")
    return model


@pytest.fixture(scope="module")
def gaussian() -> Any:
    with pymc.Model() as model:
        a = pymc.Normal("a", 0, 1)
        pymc.Normal("b", a, 1)
    return PyMCModel(model)


def test_gaussian_model_matches_closed_form(gaussian):
    result = resample(gaussian, E("b") == 6, n_draws=200)  # b ~ N(0, 2): multiplier 3, divergence 9 nats
    assert result.status == "optimal"
    assert abs(result.multipliers[0] - 3) < 5 * result.multipliers_mcse[0]
    assert abs(result.kl - 9) < 5 * result.kl_mcse
    assert abs(float(result.expectation("a")) - 3) < 5 * float(result.mcse("a")[0])
    factor = result.to_model()
    assert factor["regularization"] is not None
    assert "regularization" not in gaussian.model.named_vars  # the user's model is not modified


def test_positions_densities_and_names_match(model):
    sampler = PyMCModel(model)
    features = (
        lambda v: pymc.math.stack([np.log1p(v.scale), v.mu**2], axis=1),
        "effect[1]",
        lambda total: total,
    )
    phi = np.array([0.5, -0.1, 1.5, 0.3])
    run = sampler.draw(Tilt(features, 0 * phi), 5, seed=0, start=None, final=False)
    points = run.positions.reshape(-1, run.positions.shape[2])
    variables = {name: values.reshape(-1, *values.shape[2:]) for name, values in run.variables.items()}
    moved = sampler.log_density(Tilt(features, phi), points) - sampler.log_density(Tilt(features, 0 * phi), points)
    np.testing.assert_allclose(moved, Tilt(features, phi)(variables), rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(sampler.find_positions(variables), points, atol=1e-8)
    assert sampler.observed == ("y",)
    assert sampler.labels[0]["effect"] == ("place",)
    rough = (lambda v: v.mu > 0, "mu", lambda v: np.floor(20 * v.mu) + 0.1 * v.mu, lambda v: np.exp(v.mu))
    assert sampler.find_smooth(Tilt(rough, np.zeros(4))).tolist() == [False, True, False, True]


def test_function_in_numpy_is_refused_with_remedy(gaussian):
    def stacked(v: Any) -> Any:
        return np.column_stack([v.a, v.b])

    with pytest.raises(TypeError, match=r"stacked could not be traced .* Write it with `pt`"):
        resample(gaussian, E(stacked) == [1, 1])


def test_bad_input_raises(gaussian):
    with pymc.Model() as discrete:
        pymc.Bernoulli("k", 0.5)
    with pytest.raises(ValueError, match=r"discrete latent variables \(k\)"):
        PyMCModel(discrete)
    with pymc.Model() as known:
        pymc.Normal("y", 0.0, 1.0, observed=np.ones(3))
    with pytest.raises(ValueError, match="must have a latent variable"):
        PyMCModel(known)
    with pytest.raises(TypeError, match=r"pymc\.Model"):
        PyMCModel(3)
    with pytest.raises(ValueError, match="no variable 'c'; available: a"):
        resample(gaussian, E("c") == 1)
