"""Joint models in PyTorch: objective, gradients, noise, mini-batches, the estimator and bad input."""

from __future__ import annotations

import copy
import pickle
import re
from functools import partial
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
    check_weights_are_copies,
    make_data,
    pose,
    some_params,
)
from reference_tools import fits_its_rows

torch = pytest.importorskip("torch", reason="needs PyTorch (the `torch` extra)")

from sklearn.base import clone  # noqa: E402
from sklearn.exceptions import NotFittedError  # noqa: E402
from sklearn.utils._param_validation import InvalidParameterError  # noqa: E402

import regbayes  # noqa: E402
from regbayes import MarginClassifier  # noqa: E402
from regbayes.adapters import fit, from_torch  # noqa: E402
from regbayes.joint.model import JointModel  # noqa: E402
from regbayes.margins.targets import Classes, zero_one_cost  # noqa: E402

nn = torch.nn
HAS_GPU = torch.cuda.is_available()
ROOT = Path(__file__).parents[2]


def linear(inputs, outputs):
    return nn.Linear(inputs, outputs, bias=False, dtype=torch.float64)


def linear_model(**options):
    encoder, decoder = linear(D, K), linear(K, D)
    return from_torch(encoder, lambda rows, z: 0.5 * ((rows - decoder(z)) ** 2).sum(1), **options)


def linear_model_on(device):
    torch.manual_seed(0)
    encoder, decoder = linear(D, K).to(device), linear(K, D).to(device)
    return from_torch(encoder, lambda rows, z: 0.5 * ((rows - decoder(z)) ** 2).sum(1))


class VAE(nn.Module):
    """VAE with smooth activations, so that finite differences are accurate."""

    def __init__(self, n_inputs=D, n_hidden=6, n_features=K):
        super().__init__()
        self.hidden, self.mean = nn.Linear(n_inputs, n_hidden), nn.Linear(n_hidden, n_features)
        self.log_variance = nn.Linear(n_hidden, n_features)
        self.decoder = nn.Sequential(nn.Linear(n_features, n_hidden), nn.Tanh(), nn.Linear(n_hidden, n_inputs))
        self.double()

    def encode(self, rows):
        hidden = torch.tanh(self.hidden(rows))
        return self.mean(hidden), self.log_variance(hidden)

    def loss(self, rows, mean, log_variance):
        z = mean + torch.exp(0.5 * log_variance) * torch.randn_like(mean)
        divergence = 0.5 * (mean**2 + log_variance.exp() - log_variance - 1).sum(1)
        return 0.5 * ((rows - self.decoder(z)) ** 2).sum(1) + divergence


@pytest.fixture
def vae():
    torch.manual_seed(0)
    return VAE()


def classes_of(y, C=0.5):
    return Classes(y, zero_one_cost(3), np.full(len(y), C))


def linear_model_with_prior():
    encoder, decoder = linear(D, K), linear(K, D)
    return from_torch(
        encoder,
        lambda rows, z: 0.5 * ((rows - decoder(z)) ** 2).sum(1),
        weight=WEIGHT,
        prior=lambda: 0.5 * DECAY * (encoder.weight.square().sum() + decoder.weight.square().sum()),
    )


def model_of_nested_modules():
    whole = Nested()
    return from_torch(whole.encoder, whole.loss, weight=WEIGHT, prior=DECAY)


def model_of_partial_functions():
    plain = Plain()
    return from_torch(plain.encode, partial(plain.loss, 1.0), weight=WEIGHT, prior=DECAY)


@pytest.mark.parametrize(
    "make",
    [
        lambda: linear_model(weight=WEIGHT, prior=DECAY),
        linear_model_with_prior,
        model_of_nested_modules,
        model_of_partial_functions,
    ],
)
def test_linear_autoencoder_matches_numpy(make):
    X, y = make_data()
    check_same_problem(make(), X, y, some_params())


def test_pull_back_matches_finite_differences(vae):
    X, y = make_data()
    model = from_torch(vae.encode, vae.loss, weight=0.2, prior=0.1)
    check_finite_differences(pose(model, model.blocks(X), y), model.start, np.random.default_rng(0))


def test_loss_depends_only_on_seed(vae):
    """The objective is a fixed function of the parameters; the global generator is unchanged."""
    X, _ = make_data()
    model = from_torch(vae.encode, vae.loss)
    assert isinstance(model, JointModel)
    before = torch.random.get_rng_state()
    first, again, other = (model.infer(model.blocks(X, seed)[0], model.start).stats.loss for seed in (3, 3, 4))
    assert first == again != other
    assert torch.equal(before, torch.random.get_rng_state())


def test_fit_descends_and_leaves_modules_unchanged(vae):
    X, y = make_data()
    model = from_torch(vae.encode, vae.loss, weight=0.1)
    before = copy.deepcopy(vae.state_dict())
    result = fit(model, X, classes_of(y), max_iter=60)
    assert result.trace.rises.count == 0
    assert result.trace.objective[-1] < result.trace.objective[0] - 5.0
    assert all(torch.equal(value, before[name]) for name, value in vae.state_dict().items())
    model.load(result.state.params)
    features = vae.encode(torch.as_tensor(X))[0].detach().numpy()
    np.testing.assert_allclose(features, model.infer(model.blocks(X)[0], result.state.params).features)
    assert np.mean(result.state.head.scores(features).argmax(1) == y) > 0.9


def test_samples_with_zero_C_need_no_label():
    X, y = make_data()
    prices = np.where(np.arange(len(X)) < 30, 0.5, 0.0)
    model = linear_model(weight=0.1)
    for options in ({"max_iter": 5}, {"max_iter": 2, "batch_size": 20}):
        one, other = (
            fit(model, X, Classes(np.where(prices > 0, y, unknown), zero_one_cost(3), prices), **options)
            for unknown in (0, 2)
        )
        np.testing.assert_allclose(one.state.params, other.state.params, rtol=1e-6, atol=1e-9)
        assert np.any(one.state.params != fit(model, X[:30], classes_of(y[:30]), **options).state.params)


def test_fit_without_targets_reconstructs_low_rank_data():
    """A linear autoencoder reconstructs data of rank K exactly."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((50, K)) @ rng.standard_normal((K, D))
    result = fit(linear_model(), X, None, max_iter=500, tol=1e-9)
    assert result.state.head is None
    assert result.trace.objective[-1] < 1e-4 * result.trace.objective[0]


def test_mini_batches_reach_the_objective_of_full_batches():
    X, y = make_data(160)
    torch.manual_seed(0)
    model = linear_model(weight=WEIGHT, prior=DECAY)
    problem, targets = pose(model, model.blocks(X), y), classes_of(y)
    full = fit(model, X, targets, max_iter=300, tol=1e-7).state
    batches = fit(model, X, targets, max_iter=80, batch_size=40, learning_rate=0.03).state
    first, best, found = (
        problem.evaluate(params, None, problem.options.tolerance.first)[0].objective
        for params in (model.start, full.params, batches.params)
    )
    assert found - best < 0.01 * (first - best)


def test_load_does_not_change_the_start():
    """Cross-validation must not start from parameters fitted to held-out samples."""
    X, y = make_data()
    whole = Nested()
    model = from_torch(whole.encoder, whole.loss, weight=0.1)
    with torch.no_grad():
        whole.encoder.weight.mul_(0.5)
    start = model.start
    np.testing.assert_array_equal(start[: K * D], whole.encoder.weight.detach().numpy().ravel())
    first = fit(model, X, classes_of(y), max_iter=5)
    model.load(first.state.params)
    assert np.any(whole.encoder.weight.detach().numpy().ravel() != start[: K * D])
    for again in (model, pickle.loads(pickle.dumps(model))):
        np.testing.assert_array_equal(again.start, start)


def test_parameters_are_found_in_methods_and_functions(vae):
    decoder = linear(K, D)
    encoder = linear(D, K)
    assert from_torch(vae.encode, vae.loss).start.size == sum(p.numel() for p in vae.parameters())
    assert from_torch(encoder, lambda rows, z: (decoder(z) - rows).sum(1)).start.size == 2 * D * K
    for p in decoder.parameters():
        p.requires_grad_(False)
    assert from_torch(encoder, lambda rows, z: (decoder(z) - rows).sum(1)).start.size == D * K


def test_sample_weights_match_copies():
    check_weights_are_copies(linear_model(weight=WEIGHT, prior=DECAY))


class Nested(nn.Module):
    """Module with an encoder part and a loss method, so that parameters have two names."""

    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = linear(D, K), linear(K, D)

    def loss(self, rows, z):
        return 0.5 * ((rows - self.decoder(z)) ** 2).sum(1)


class Scale(nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def forward(self, rows):
        return rows * self.factor


def test_shared_parameter_moves_in_both_modules():
    X, y = make_data()
    encoder = nn.Sequential(linear(D, K), Scale(nn.Parameter(torch.ones(K, dtype=torch.float64))))
    decoder = nn.Sequential(Scale(encoder[1].factor), linear(K, D))
    model = from_torch(encoder, lambda rows, z: 0.5 * ((rows - decoder(z)) ** 2).sum(1), weight=0.2)
    assert model.start.size == 2 * D * K + K
    check_finite_differences(pose(model, model.blocks(X), y), model.start, np.random.default_rng(0))
    assert encoder[1].factor is decoder[0].factor


class Plain:
    """Object with modules as attributes that is not a module."""

    def __init__(self):
        self.encoder, self.decoder = linear(D, K), linear(K, D)

    def encode(self, rows):
        return self.encoder(rows)

    def loss(self, weight, rows, z):
        return weight * 0.5 * ((rows - self.decoder(z)) ** 2).sum(1)


# --- noise during training


def dropping():
    torch.manual_seed(0)
    encoder, decoder = nn.Sequential(linear(D, K), nn.Dropout(0.5)), linear(K, D)
    return encoder, from_torch(encoder, lambda rows, z: 0.5 * ((rows - decoder(z)) ** 2).sum(1), weight=0.1)


def test_dropout_is_off_in_predictions():
    X, y = make_data()
    encoder, model = dropping()
    first, again, other = (model.infer(model.blocks(X, seed)[0], model.start).features for seed in (3, 3, 4))
    np.testing.assert_array_equal(first, again)
    assert np.any(first != other)
    assert np.mean(first == 0.0) > 0.2
    assert model.has_noise(X)
    classifier = MarginClassifier(model, batch_size=20, max_iter=3, random_state=0).fit(X, y)
    assert encoder[1].training
    model.load(classifier.params_)
    np.testing.assert_array_equal(classifier.transform(X), encoder[0](torch.as_tensor(X)).detach().numpy())


def test_dropout_without_batches_warns():
    X, y = make_data()
    model = dropping()[1]
    with pytest.warns(UserWarning, match="Set batch_size"):
        classifier = MarginClassifier(model, max_iter=100, tol=1e-2, random_state=0).fit(X, y)
    assert classifier.trace_.rises.count == 0


# --- invalid input


class Changed(nn.Module):
    """Linear encoder with a function applied to its rows or features."""

    def __init__(self, before=lambda rows: rows, after=lambda features, *others: features):
        super().__init__()
        self.weights, self.before, self.after = linear(D, K), before, after

    def forward(self, rows):
        return self.after(self.weights(self.before(rows)))


def squares(rows, z):
    return (z**2).sum(1)


own_decoder = linear(K, D)
hidden_away = [linear(K, D)]
BY_PLACE = torch.arange(100.0, dtype=torch.float64)[:, None]


def decoded(rows, z):
    return ((rows - own_decoder(z)) ** 2).sum(1)


def with_norm(*before):
    return nn.Sequential(*before, linear(D, K), nn.BatchNorm1d(K).double())


def with_negative_variance():
    """Return batch normalization that is invalid only in evaluation mode."""
    encoder = with_norm()
    encoder[1].running_var.fill_(-1.0)
    return nn.Sequential(encoder, nn.Dropout(0.5))


REFUSED = {
    "batch norm in training": (with_norm, squares, "mixes rows while.*evaluation mode"),
    "mixed rows in predictions": (
        lambda: Changed(before=lambda rows: rows - rows.mean(0)),
        squares,
        "other features when it stands alone",
    ),
    "dropout in evaluation mode": (
        lambda: Changed(after=lambda z: nn.functional.dropout(z, 0.5)),
        squares,
        "draws at random in predictions",
    ),
    "features by place": (lambda: Changed(after=lambda z: z + BY_PLACE[: len(z)]), squares, "labels"),
    "one loss for all rows": (lambda: linear(D, K), lambda rows, z: (z**2).mean(), "each row"),
    "no gradient of features": (lambda: Changed(after=torch.detach), lambda rows, z: z.sum(1), "no gradient"),
    "no gradient of the loss": (lambda: linear(D, K), lambda rows, z: z.detach().sum(1), "no gradient"),
    "frozen features": (lambda: linear(D, K).requires_grad_(False), decoded, "requires_grad=False"),
    "features in a dictionary": (lambda: Changed(after=lambda z: {"z": z}), squares, "got dict"),
    "NaN features in predictions": (with_negative_variance, squares, "for predictions have NaN"),
    "parameters out of sight": (
        lambda: linear(D, K),
        lambda rows, z: ((rows - hidden_away[0](z)) ** 2).sum(1),
        "would not be learned",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_invalid_model_raises(what):
    make, loss, message = REFUSED[what]
    torch.manual_seed(0)
    with pytest.raises(ValueError, match=message):
        fit(from_torch(make(), loss), make_data()[0], None)


def test_batch_norm_in_evaluation_mode_is_accepted():
    X, _ = make_data()
    X.flags.writeable = False
    assert len(from_torch(with_norm().eval(), squares).blocks(X)) == 1


RAISED = {
    "wrong width": (lambda: linear(D + 1, K), squares, "Raised by the encoder.*rows of shape \\(8, 5\\)"),
    "an encoder with labels": (lambda: nn.Bilinear(D, 1, K), squares, "without them"),
    "a loss of rows alone": (lambda: linear(D, K), lambda rows: rows.sum(1), "generative_loss.*\\(8, 5\\), \\(8, 2\\)"),
}


@pytest.mark.parametrize("what", RAISED)
def test_errors_in_user_code_have_a_note(what):
    make, loss, note = RAISED[what]
    with pytest.raises((RuntimeError, TypeError)) as caught:
        from_torch(make(), loss).blocks(make_data()[0])
    assert re.search(note, caught.value.__notes__[0])


PRIORS = {
    "a vector": (lambda: own_decoder.weight.sum(0), ValueError, "scalar"),
    "a float": (lambda: 3.0, ValueError, "got float"),
    "not finite": (lambda: (own_decoder.weight.square().sum() + 1.0).mul(-1.0).log(), ValueError, "must be finite"),
    "a function of parameters": (lambda weights: weights.sum(), TypeError, "weights"),
}


@pytest.mark.parametrize("what", PRIORS)
def test_invalid_prior_raises(what):
    prior, error, message = PRIORS[what]
    with pytest.raises(error, match=message):
        from_torch(linear(D, K), decoded, prior=prior).blocks(make_data()[0])


def test_invalid_options_raise():
    for options in ({"weight": -1.0}, {"weight": np.nan}, {"prior": -1.0}, {"prior": np.inf}):
        with pytest.raises(ValueError, match=f"`{next(iter(options))}` must be"):
            from_torch(linear(D, K), squares, **options)
    with pytest.raises(TypeError, match="the class Nested"):
        from_torch(Nested, squares)
    with pytest.raises(TypeError, match="`generative_loss` must be callable"):
        from_torch(linear(D, K), None)
    with pytest.raises(ValueError, match="no parameters"):
        from_torch(lambda rows: rows, squares)
    for encoder in (linear(D, K).half(), nn.Sequential(linear(D, K), nn.Linear(K, K))):
        with pytest.raises(ValueError, match="must have one type, float32 or float64"):
            from_torch(encoder, squares)


# --- documentation


def test_documentation_shows_the_example(tmp_path):
    """Python blocks about PyTorch are parts of the script, except the last, which runs here."""
    page = (ROOT / "docs" / "own_model.md").read_text(encoding="utf-8")
    part = page.partition("## In PyTorch")[2].partition("## In JAX")[0]
    *of_script, below = re.findall(r"```python\n(.*?)```", part, re.DOTALL)
    # The script is indented, so its line breaks may differ from the page.
    script = "".join((ROOT / "examples" / "extending" / "vae_margins.py").read_text(encoding="utf-8").split())
    for block in of_script:
        assert "".join(block.split()) in script
    X, _ = make_data()
    names = {"np": np, "model": linear_model(), "X": X, "prices": X[:, 0]}
    exec(below, names)
    assert names["result"].state.head.weights.shape == (1, K + 1)


# --- the estimator


@pytest.fixture(scope="module")
def fitted():
    torch.manual_seed(0)
    X, y = make_data()
    vae = VAE()
    model = from_torch(vae.encode, vae.loss, weight=0.1)
    names = np.array(["a", "b", "c"])[y]
    return model, X, names, MarginClassifier(model, max_iter=150, tol=1e-3, random_state=0).fit(X, names)


def test_classifier_uses_the_fitted_model(fitted):
    model, X, y, classifier = fitted
    assert classifier.transform(X).shape == (len(X), K)
    np.testing.assert_allclose(classifier.transform(X), model.encode(X, classifier.params_))
    np.testing.assert_allclose(classifier.decision_function(X), classifier.head_.scores(classifier.transform(X)))
    assert set(classifier.predict(X)) <= {"a", "b", "c"}
    assert fits_its_rows(classifier.predict(X), y)
    assert classifier.trace_.rises.count == 0
    assert list(classifier.get_feature_names_out()) == ["marginclassifier0", "marginclassifier1"]


@pytest.mark.parametrize(
    "device", ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not HAS_GPU, reason="needs a GPU"))]
)
def test_tensors_and_devices_match_numpy(device):
    X, y = make_data()
    rows, labels = torch.asarray(X, device=device).requires_grad_(), torch.asarray(y, device=device)
    model = MarginClassifier(linear_model_on(device), max_iter=20, tol=1e-2, random_state=0)
    expected = model.fit(X, y).decision_function(X)
    np.testing.assert_allclose(model.fit(rows, labels).decision_function(rows), expected)
    assert isinstance(model.predict(rows), np.ndarray)


def test_saved_classifier_predicts_after_set_params(fitted, tmp_path):
    model, X, _, classifier = fitted
    classifier.save(tmp_path / "model")
    loaded = regbayes.load(tmp_path / "model")
    with pytest.raises(ValueError, match="set_params"):
        loaded.predict(X)
    loaded.set_params(model=model)
    np.testing.assert_array_equal(loaded.decision_function(X), classifier.decision_function(X))
    other = VAE(n_hidden=5)
    with pytest.raises(ValueError, match="in the file"):
        loaded.set_params(model=from_torch(other.encode, other.loss)).predict(X)


def test_classifier_without_model_or_fit_raises():
    X, y = make_data()
    with pytest.raises(InvalidParameterError, match="model"):
        MarginClassifier().fit(X, y)
    with pytest.raises(NotFittedError):
        MarginClassifier(linear_model()).predict(X)


class Images(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv2d(1, 2, 2), nn.Flatten(), nn.Linear(8, K))
        self.decoder = nn.Linear(K, 9)

    def loss(self, rows, z):
        return ((rows.flatten(1) - self.decoder(z)) ** 2).sum(1)


def test_classifier_of_images_saves_and_checks_shapes(tmp_path):
    torch.manual_seed(0)
    X, y = np.random.default_rng(0).standard_normal((40, 1, 3, 3)), np.arange(40) % 2
    X[y == 1, 0, 0, 0] += 4.0
    images = Images()
    model = from_torch(images.encoder, images.loss, weight=0.1)
    classifier = MarginClassifier(model, batch_size=20, max_iter=10, learning_rate=0.01, random_state=0).fit(X, y)
    classifier.save(tmp_path / "images")
    loaded = regbayes.load(tmp_path / "images").set_params(model=model)
    np.testing.assert_array_equal(loaded.predict(X), classifier.predict(X))
    assert classifier.transform(X).shape == (40, K)
    for wrong in (X[0], X.reshape(40, 9)):
        with pytest.raises(ValueError, match=r"rows of shape \(1, 3, 3\), as in fit"):
            loaded.predict(wrong)


def test_classifier_sample_weights():
    """Samples with zero weight are dropped; weights multiply the loss and C."""
    X, y = make_data()
    model = linear_model(weight=0.1)
    for options in ({"tol": 1e-2}, {"batch_size": 20, "max_iter": 3}):
        classifier = MarginClassifier(model, random_state=0, **options)
        weights = np.where(np.arange(len(X)) < 40, 1.0, 0.0)
        dropped, fewer = clone(classifier).fit(X, y, sample_weight=weights), clone(classifier).fit(X[:40], y[:40])
        np.testing.assert_allclose(dropped.params_, fewer.params_, rtol=1e-5, atol=1e-7)
    weights = 1.0 + np.arange(len(X)) % 3
    weighted = MarginClassifier(model, C=0.5, tol=1e-2, random_state=0).fit(X, y, sample_weight=weights)
    below = fit(model, X, Classes(y, zero_one_cost(3), 0.5 * weights), tol=1e-2, weights=weights)
    np.testing.assert_array_equal(weighted.params_, below.state.params)
    with pytest.raises(ValueError, match="non-zero"):
        MarginClassifier(model).fit(X, y, sample_weight=np.zeros(len(X)))
