"""Joint models in JAX: objective, gradients, noise and invalid input."""

from __future__ import annotations

import pickle
import re
from pathlib import Path

import numpy as np
import pytest

from own_model_tools import (
    DECAY,
    WEIGHT,
    D,
    K,
    check_finite_differences,
    check_same_problem,
    make_data,
    pose,
    some_params,
)
from regbayes.adapters import fit, from_jax
from regbayes.margins.targets import Classes, zero_one_cost

pytestmark = pytest.mark.numpyro


@pytest.fixture(autouse=True)
def jnp():
    jax = pytest.importorskip("jax")
    with jax.enable_x64(True):
        yield jax.numpy


def encode(params, rows):
    return rows @ params["a"].T


def linear_loss(params, rows, z):
    return 0.5 * ((rows - z @ params["b"].T) ** 2).sum(1)


def linear_params():
    flat = some_params()
    return {"a": flat[: K * D].reshape(K, D), "b": flat[K * D :].reshape(D, K)}


def vae_encode(params, rows):
    import jax.numpy as jnp

    hidden = jnp.tanh(rows @ params["hidden"])
    return hidden @ params["mean"], hidden @ params["log_variance"]


def vae_loss(params, rows, mean, log_variance, key):
    import jax
    import jax.numpy as jnp

    z = mean + jnp.exp(0.5 * log_variance) * jax.random.normal(key, mean.shape)
    divergence = 0.5 * (mean**2 + jnp.exp(log_variance) - log_variance - 1).sum(1)
    return 0.5 * ((rows - jnp.tanh(z @ params["decode"]) @ params["out"]) ** 2).sum(1) + divergence


def vae_params(H=6):
    rng = np.random.default_rng(0)
    shapes = {"hidden": (D, H), "mean": (H, K), "log_variance": (H, K), "decode": (K, H), "out": (H, D)}
    return {name: 0.4 * rng.standard_normal(shape) for name, shape in shapes.items()}


def test_linear_autoencoder_matches_numpy():
    X, y = make_data()
    model = from_jax(encode, linear_loss, linear_params(), weight=WEIGHT, prior=DECAY)
    np.testing.assert_array_equal(model.start, some_params())
    check_same_problem(model, X, y, some_params(2))
    own = from_jax(
        encode,
        linear_loss,
        linear_params(),
        weight=WEIGHT,
        prior=lambda p: 0.5 * DECAY * ((p["a"] ** 2).sum() + (p["b"] ** 2).sum()),
    )
    check_same_problem(own, X, y, some_params(2))


def test_pull_back_matches_finite_differences():
    X, y = make_data()
    model = from_jax(vae_encode, vae_loss, vae_params(), weight=0.2, prior=0.1)
    check_finite_differences(pose(model, model.blocks(X), y), model.start, np.random.default_rng(0))


def test_fit_descends_and_returns_the_tree():
    X, y = make_data()
    model = from_jax(vae_encode, vae_loss, vae_params(), weight=0.1)
    targets = Classes(y, zero_one_cost(3), np.full(len(y), 0.5))
    result = fit(model, X, targets, max_iter=40)
    assert result.trace.rises.count == 0
    assert result.trace.objective[-1] < result.trace.objective[0] - 5.0
    tree = model.tree(result.state.params)
    assert set(tree) == set(vae_params())
    features = vae_encode(tree, X)[0]
    assert np.mean(result.state.head.scores(np.asarray(features)).argmax(1) == y) > 0.9
    np.testing.assert_array_equal(model.from_state_dict(model.state_dict(result.state.params)), result.state.params)
    batches = fit(model, X, targets, max_iter=2, batch_size=20)
    assert np.all(np.isfinite(batches.state.params))


def test_documentation_example_runs():
    import jax.numpy as jnp

    page = (Path(__file__).parents[2] / "docs" / "own_model.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```python\n(.*?)```", page.partition("## In JAX")[2].partition("## In")[0], re.DOTALL)
    rng = np.random.default_rng(0)
    names = {"jnp": jnp, "params": {"encode": rng.standard_normal((D, K)), "decode": rng.standard_normal((K, D))}}
    exec(block, names)
    assert len(names["model"].blocks(make_data()[0])) == 1


def noisy(params, rows, key):
    import jax

    return encode(params, rows if key is None else rows * jax.random.bernoulli(key, 0.5, rows.shape))


def test_encoder_has_no_key_in_predictions():
    X, y = make_data()
    model = from_jax(noisy, linear_loss, linear_params(), weight=0.1)
    plain = from_jax(encode, linear_loss, linear_params(), weight=0.1)
    assert model.has_noise(X)
    assert not plain.has_noise(X)
    np.testing.assert_allclose(model.encode(X, model.start), plain.encode(X, plain.start))
    first, again, other = (model.infer(model.blocks(X, seed)[0], model.start).features for seed in (3, 3, 4))
    np.testing.assert_array_equal(first, again)
    assert np.any(first != other)
    targets = Classes(y, zero_one_cost(3), np.ones(len(y)))
    assert fit(model, X, targets, max_iter=2, batch_size=20).state.head.weights.shape == (3, K + 1)


def test_encoder_that_needs_a_key_raises_with_note():
    import jax

    def careless(params, rows, key):
        return encode(params, rows * jax.random.bernoulli(key, 0.5, rows.shape))

    with pytest.raises(TypeError) as caught:
        from_jax(careless, linear_loss, linear_params()).blocks(make_data()[0])
    assert "It gets no labels" in caught.value.__notes__[0]


def test_model_pickles():
    X, _ = make_data()
    model = from_jax(vae_encode, vae_loss, vae_params(), weight=0.1)
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.encode(X, again.start), model.encode(X, model.start))
    assert again.weight == 0.1


REFUSED = {
    "rows that are mixed": (lambda p, rows: encode(p, rows - rows.mean(0)), linear_loss, "mixes rows"),
    "wrong features": (lambda p, rows: encode(p, rows).ravel(), linear_loss, "shape"),
    "one number for all rows": (encode, lambda p, rows, z: linear_loss(p, rows, z).sum(), "each row"),
    "no gradient": (lambda p, rows: rows[:, :K], linear_loss, "no gradient"),
    "NaN": (encode, lambda p, rows, z: (0 * z / (0 * z)).sum(1), "NaN"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_invalid_model_raises(what):
    encoder, loss, message = REFUSED[what]
    with pytest.raises(ValueError, match=message):
        from_jax(encoder, loss, linear_params()).blocks(make_data()[0])


def test_invalid_params_raise():
    with pytest.raises(ValueError, match="at least one array"):
        from_jax(encode, linear_loss, {})
    with pytest.raises(ValueError, match=r"one type.*float64, int64"):
        from_jax(encode, linear_loss, {"a": np.ones((K, D)), "b": np.ones((D, K), dtype=np.int64)})
    with pytest.raises(ValueError, match="got float16"):
        from_jax(encode, linear_loss, {"a": np.ones((K, D), dtype=np.float16)})
    with pytest.raises(ValueError, match=r"`prior` must return a scalar; got shape \(5,\)"):
        from_jax(encode, linear_loss, linear_params(), prior=lambda params: params["a"].sum(0)).blocks(make_data()[0])
    with pytest.raises(ValueError, match="in the file"):
        from_jax(encode, linear_loss, linear_params()).from_state_dict({"['a']": np.zeros(2)})
