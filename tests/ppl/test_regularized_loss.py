"""Gradient and closed form of the loss in examples/regularized_elbo.py."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from regbayes import E, Gaussian, regularize
from regbayes.regularizers import KL, Ball, Hinge, MultiClassHinge, Ridge

pytestmark = pytest.mark.numpyro

MEAN = np.array([1.0, -1.0, 0.5])
COVARIANCE = np.array([[1.5, 0.4, -0.3], [0.4, 1.0, 0.2], [-0.3, 0.2, 0.8]])


@pytest.fixture(scope="module")
def example():
    path = Path(__file__).parents[2] / "examples" / "extending" / "regularized_elbo.py"
    spec = importlib.util.spec_from_file_location("regularized_elbo", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    "regularizer",
    [
        Hinge(0.7),
        Hinge(0.7, 1.5).shift(-1.0),
        Ridge(0.3, 2.0),
        Ball([0.1, 0.2, 0.3], 0.1, 1, C=2.0),
        2.0 * KL([0.2, 0.3, 0.5]) + Hinge(0.1),
        MultiClassHinge(0.5, np.array([0.0, 1.0, 1.0])),
    ],
    ids=repr,
)
def test_envelope_has_value_and_gradient_of_regularizer(example, regularizer):
    import jax

    for x in np.random.default_rng(0).dirichlet(np.ones(3), 5).astype(np.float32) + 0.05:
        value, slope = jax.jit(jax.value_and_grad(lambda x: example.envelope(regularizer, x)))(x)
        point, width = x.astype(float), 1e-4
        ends = [[regularizer.value(point + s * width * e) for s in (1, -1)] for e in np.eye(3)]
        assert value == pytest.approx(regularizer.value(point), abs=1e-3)
        np.testing.assert_allclose(slope, -np.diff(ends)[:, 0] / (2 * width), atol=1e-2)


def test_gaussian_model_and_guide_match_regularize(example):
    """The regularized posterior is Gaussian, so that the guide contains it."""
    import jax
    import jax.numpy as jnp
    import numpyro
    from numpyro.infer import SVI
    from numpyro.infer.autoguide import AutoMultivariateNormal

    functions = np.array([[1.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    bound, pull = Hinge([3.0, 0.0]).shift([-1.0, 0.0]), Ridge([0.0, 1.5], 0.2)
    exact = regularize(Gaussian(MEAN, COVARIANCE), [E(functions).regularized(bound), E(functions).regularized(pull)])

    def model():
        numpyro.sample("theta", numpyro.distributions.MultivariateNormal(MEAN, COVARIANCE))

    def pair(v):
        return jnp.asarray(functions) @ v["theta"]

    loss = example.RegularizedLoss([(pair, bound), (pair, pull)])
    guide = AutoMultivariateNormal(model)
    adam = numpyro.optim.Adam(lambda step: 0.05 * (1 - step / 1000))
    params = SVI(model, guide, adam, loss).run(jax.random.key(0), 1000, progress_bar=False).params
    found = guide.get_posterior(params)
    np.testing.assert_allclose(found.mean, exact.posterior.mean, atol=0.05)
    np.testing.assert_allclose(found.covariance_matrix, COVARIANCE, atol=0.15)
    value = loss.loss(jax.random.key(1), params, model, guide)
    assert value == pytest.approx(exact.primal, abs=0.1)
