"""Joint models from code in PyTorch: the same J as by hand, gradients, noise, mini-batches, and what is refused."""

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
from sklearn.model_selection import GridSearchCV  # noqa: E402
from sklearn.utils._param_validation import InvalidParameterError  # noqa: E402

import regbayes  # noqa: E402
from regbayes import MarginClassifier  # noqa: E402
from regbayes.adapters import fit, from_torch  # noqa: E402
from regbayes.engine import Status  # noqa: E402
from regbayes.joint.descent import fit_joint  # noqa: E402
from regbayes.joint.model import JointModel  # noqa: E402
from regbayes.margins.targets import Classes, Numbers, Signs, zero_one_cost  # noqa: E402

nn = torch.nn
CARD = torch.cuda.is_available()
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
    """One hidden layer each way, ReLU free so that finite differences meet no kink."""

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


def test_a_linear_autoencoder_is_the_one_written_out_by_hand():
    X, y = make_data()
    check_same_problem(linear_model(weight=WEIGHT, prior=DECAY), X, y, some_params())


def test_a_prior_may_be_a_function():
    X, y = make_data()
    encoder, decoder = linear(D, K), linear(K, D)
    model = from_torch(
        encoder,
        lambda rows, z: 0.5 * ((rows - decoder(z)) ** 2).sum(1),
        weight=WEIGHT,
        prior=lambda: 0.5 * DECAY * (encoder.weight.square().sum() + decoder.weight.square().sum()),
    )
    check_same_problem(model, X, y, some_params())


def test_the_pull_back_is_that_of_finite_differences(vae):
    X, y = make_data()
    model = from_torch(vae.encode, vae.loss, weight=0.2, prior=0.1)
    check_finite_differences(pose(model, model.blocks(X), y), model.start, np.random.default_rng(0))


def test_blocks_of_rows_add_up():
    """The loss draws nothing here: what is drawn belongs to a block."""
    X, y = make_data()
    model = linear_model(weight=WEIGHT)
    one = model.blocks(X)
    three = [type(one[0])(model.to_rows(part), 0) for part in np.array_split(X, 3)]
    (a, found_a), (b, found_b) = (
        (problem, problem.evaluate(some_params(), None, problem.options.tolerance.first))
        for problem in (pose(model, one, y), pose(model, three, y))
    )
    assert found_a[0].objective == pytest.approx(found_b[0].objective, rel=1e-12)
    np.testing.assert_allclose(a.gradient(*found_a), b.gradient(*found_b), rtol=1e-9)


def test_what_the_loss_draws_is_a_function_of_the_seed(vae):
    """So J is one function of the parameters; and the caller's own generator is left as it was."""
    X, _ = make_data()
    model = from_torch(vae.encode, vae.loss)
    assert isinstance(model, JointModel)
    before = torch.random.get_rng_state()
    first, again, other = (model.infer(model.blocks(X, seed)[0], model.start).stats.loss for seed in (3, 3, 4))
    assert first == again != other
    assert torch.equal(before, torch.random.get_rng_state())


def test_a_fit_descends_and_leaves_the_modules_as_they_are(vae):
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
    # the head is the large-margin solution at these features: no head nearby is better
    head, targets = result.state.head, classes_of(y)
    assert np.mean(head.scores(features).argmax(1) == y) > 0.9
    assert targets.n_outputs == len(head.weights)


@pytest.mark.parametrize("kind", ["signs", "numbers"])
def test_other_targets_have_the_same_head(vae, kind):
    X, y = make_data()
    signs = np.where(np.eye(3)[y] > 0, 1.0, -1.0)
    targets = Signs(signs, np.ones_like(signs)) if kind == "signs" else Numbers(X[:, :1] ** 2, np.ones((len(X), 1)))
    result = fit(from_torch(vae.encode, vae.loss, weight=0.1), X, targets, max_iter=20)
    assert result.trace.objective[-1] < result.trace.objective[0]


def test_rows_whose_price_is_zero_need_no_label():
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


def test_without_targets_it_is_the_generative_model_alone():
    """A linear autoencoder of rows with K directions of variance explains them exactly."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((50, K)) @ rng.standard_normal((K, D))
    result = fit(linear_model(), X, None, max_iter=500, tol=1e-9)
    assert result.state.head is None
    assert result.trace.objective[-1] < 1e-4 * result.trace.objective[0]


def test_mini_batches_reach_what_all_rows_reach():
    """Learned in batches of 40, J over all rows ends close to where L-BFGS on all rows ends."""
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


def test_a_fit_in_batches_is_a_function_of_its_seed(vae):
    X, y = make_data()
    model = from_torch(vae.encode, vae.loss, weight=0.1)
    first, again = (fit(model, X, classes_of(y), max_iter=3, batch_size=16) for _ in range(2))
    np.testing.assert_array_equal(first.state.params, again.state.params)
    assert first.status is Status.ITERATION_LIMIT


def test_parameters_that_were_loaded_are_no_start():
    """Or a fold of a cross-validation would begin with what was learned from its held-out rows."""
    X, y = make_data()
    whole = Nested()
    model = from_torch(whole.encoder, whole.loss, weight=0.1)
    with torch.no_grad():
        whole.encoder.weight.mul_(0.5)  # before a fit they are the user's to set
    start = model.start
    np.testing.assert_array_equal(start[: K * D], whole.encoder.weight.detach().numpy().ravel())
    first = fit(model, X, classes_of(y), max_iter=5)
    model.load(first.state.params)
    assert np.any(whole.encoder.weight.detach().numpy().ravel() != start[: K * D])
    for again in (model, pickle.loads(pickle.dumps(model))):
        np.testing.assert_array_equal(again.start, start)


def test_parameters_are_found_wherever_functions_refer_to_them(vae):
    decoder = linear(K, D)
    encoder = linear(D, K)
    assert from_torch(vae.encode, vae.loss).start.size == sum(p.numel() for p in vae.parameters())
    assert from_torch(encoder, lambda rows, z: (decoder(z) - rows).sum(1)).start.size == 2 * D * K
    for p in decoder.parameters():
        p.requires_grad_(False)
    assert from_torch(encoder, lambda rows, z: (decoder(z) - rows).sum(1)).start.size == D * K


def test_parameters_come_back_from_arrays_by_name(vae):
    model = from_torch(vae.encode, vae.loss)
    arrays = model.state_dict(model.start)
    assert all(type(array) is np.ndarray for array in arrays.values())
    np.testing.assert_array_equal(model.from_state_dict(arrays), model.start)
    name = next(iter(arrays))
    with pytest.raises(ValueError, match="in the file"):
        model.from_state_dict({**arrays, name: np.zeros(3)})


def test_weights_of_rows_are_copies_of_them():
    check_weights_are_copies(linear_model(weight=WEIGHT, prior=DECAY))


class Nested(nn.Module):
    """The encoder is a part of the module whose method the loss is, so its parameters can be reached by two names."""

    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = linear(D, K), linear(K, D)

    def loss(self, rows, z):
        return 0.5 * ((rows - self.decoder(z)) ** 2).sum(1)


def test_a_module_inside_another_is_given_back_as_it_was():
    X, y = make_data()
    whole = Nested()
    parameters, before = dict(whole.named_parameters()), copy.deepcopy(whole.state_dict())
    model = from_torch(whole.encoder, whole.loss, weight=0.1)
    result = fit(model, X, classes_of(y), max_iter=5)
    assert all(p is parameters[name] for name, p in whole.named_parameters())
    assert all(torch.equal(value, before[name]) for name, value in whole.state_dict().items())
    model.load(result.state.params)
    features = whole.encoder(torch.as_tensor(X)).detach().numpy()
    np.testing.assert_allclose(features, model.encode(X, result.state.params))
    check_same_problem(from_torch(whole.encoder, whole.loss, weight=WEIGHT, prior=DECAY), X, y, some_params())


class Scale(nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def forward(self, rows):
        return rows * self.factor


def test_a_parameter_that_two_modules_share_is_one():
    """It moves in both: the gradient is that of finite differences."""
    X, y = make_data()
    encoder = nn.Sequential(linear(D, K), Scale(nn.Parameter(torch.ones(K, dtype=torch.float64))))
    decoder = nn.Sequential(Scale(encoder[1].factor), linear(K, D))
    model = from_torch(encoder, lambda rows, z: 0.5 * ((rows - decoder(z)) ** 2).sum(1), weight=0.2)
    assert model.start.size == 2 * D * K + K
    check_finite_differences(pose(model, model.blocks(X), y), model.start, np.random.default_rng(0))
    assert encoder[1].factor is decoder[0].factor


class Plain:
    """No module, but it has some."""

    def __init__(self):
        self.encoder, self.decoder = linear(D, K), linear(K, D)

    def encode(self, rows):
        return self.encoder(rows)

    def loss(self, weight, rows, z):
        return weight * 0.5 * ((rows - self.decoder(z)) ** 2).sum(1)


def test_modules_of_objects_and_of_partial_functions_are_found():
    X, y = make_data()
    plain = Plain()
    model = from_torch(plain.encode, partial(plain.loss, 1.0), weight=WEIGHT, prior=DECAY)
    check_same_problem(model, X, y, some_params())


# --- noise while parameters are learned


def dropping():
    torch.manual_seed(0)
    encoder, decoder = nn.Sequential(linear(D, K), nn.Dropout(0.5)), linear(K, D)
    return encoder, from_torch(encoder, lambda rows, z: 0.5 * ((rows - decoder(z)) ** 2).sum(1), weight=0.1)


def test_dropout_is_drawn_for_learning_alone():
    """J is one function of the parameters for a seed; predictions are those of evaluation mode; modes stay."""
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


def test_dropout_is_drawn_anew_for_every_batch():
    """The batch of each pass is all rows, and two passes leave out different features of them."""
    X, y = make_data()
    model = dropping()[1]
    seen = []
    forward = model.forward
    model.forward = lambda block, params: (seen.append(forward(block, params)[0] == 0.0), forward(block, params))[1]
    fit(model, X, classes_of(y), max_iter=2, batch_size=60)
    passes = [mask for mask in seen if len(mask) == 60]
    assert len(passes) == 2
    assert np.any(passes[0] != passes[1])


def test_noise_that_is_drawn_once_is_warned_of():
    X, y = make_data()
    model = dropping()[1]
    with pytest.warns(UserWarning, match="Set batch_size"):
        classifier = MarginClassifier(model, max_iter=100, tol=1e-2, random_state=0).fit(X, y)
    assert classifier.trace_.rises.count == 0


# --- what is refused


def squares(rows, z):
    return (z**2).sum(1)


def mixing(module):
    return nn.Sequential(linear(D, K), module.double())


class CentresRows(nn.Module):
    def __init__(self):
        super().__init__()
        self.weights = linear(D, K)

    def forward(self, rows):
        return self.weights(rows - rows.mean(0))


class AlwaysDropout(nn.Module):
    def forward(self, rows):
        return nn.functional.dropout(rows, 0.5)


class ReturnsDict(nn.Module):
    def __init__(self):
        super().__init__()
        self.weights = linear(D, K)

    def forward(self, rows):
        return {"z": self.weights(rows)}


own_decoder = linear(K, D)


def decoded(rows, z):
    return ((rows - own_decoder(z)) ** 2).sum(1)


BY_PLACE = torch.arange(100.0, dtype=torch.float64)[:, None]


class LooksAtLabels(nn.Module):
    def __init__(self):
        super().__init__()
        self.weights = linear(D, K)

    def forward(self, rows):
        return self.weights(rows) + BY_PLACE[: len(rows)]


class WithLabels(nn.Module):
    def __init__(self):
        super().__init__()
        self.weights = linear(D, K)

    def forward(self, rows, labels):
        return self.weights(rows) + labels


class Detached(nn.Module):
    def __init__(self):
        super().__init__()
        self.weights = linear(D, K)

    def forward(self, rows):
        return self.weights(rows).detach()


class Undefined(nn.Module):
    def __init__(self):
        super().__init__()
        self.weights = linear(D, K)

    def forward(self, rows):
        return torch.log(self.weights(rows) - 1e6)


hidden_away = [linear(K, D)]

REFUSED = {
    "batch norm in training": (lambda: mixing(nn.BatchNorm1d(K)), squares, "mixes rows while.*evaluation mode"),
    "batch norm behind dropout": (
        lambda: nn.Sequential(nn.Dropout(0.3), mixing(nn.BatchNorm1d(K))),
        squares,
        "mixes rows while",
    ),
    "rows that are mixed in predictions": (CentresRows, squares, "other features when it stands alone"),
    "dropout in evaluation mode too": (
        lambda: nn.Sequential(linear(D, K), AlwaysDropout()),
        squares,
        "draws at random where predictions are made",
    ),
    "features by place": (LooksAtLabels, squares, "labels"),
    "a flat vector of features": (lambda: nn.Sequential(linear(D, K), nn.Flatten(0)), squares, "shape"),
    "one number for all rows": (lambda: linear(D, K), lambda rows, z: (z**2).mean(), "each row"),
    "losses of each feature": (lambda: linear(D, K), lambda rows, z: z**2, "each row"),
    "no gradient of the features": (Detached, lambda rows, z: z.sum(1), "no gradient"),
    "no gradient of the loss": (lambda: linear(D, K), lambda rows, z: z.detach().sum(1), "no gradient"),
    "frozen features": (lambda: linear(D, K).requires_grad_(False), decoded, "requires_grad=False"),
    "features in a dictionary": (ReturnsDict, squares, "got dict"),
    "no losses": (lambda: linear(D, K), lambda rows, z: None, "got NoneType"),
    "NaN features": (Undefined, squares, "NaN"),
    "NaN losses": (lambda: linear(D, K), lambda rows, z: torch.log(-1 - z**2).sum(1), "NaN"),
    "parameters out of sight": (
        lambda: linear(D, K),
        lambda rows, z: ((rows - hidden_away[0](z)) ** 2).sum(1),
        "would not be learned",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_clear_errors(what):
    make, loss, message = REFUSED[what]
    torch.manual_seed(0)
    with pytest.raises(ValueError, match=message):
        fit(from_torch(make(), loss), *[make_data()[0], None])


def test_rows_that_lie_together_may_be_alike():
    """Mixing shows where rows differ: rows from all over the data are tried."""
    X = np.repeat(make_data()[0], 20, axis=0)
    with pytest.raises(ValueError, match="mixes rows while"):
        from_torch(mixing(nn.BatchNorm1d(K)), squares).blocks(X)


def test_features_of_predictions_are_looked_at_too():
    """A variance of minus one, which batch normalisation uses in evaluation mode alone."""
    norm = nn.BatchNorm1d(K)
    norm.running_var.fill_(-1.0)
    encoder = nn.Sequential(linear(D, K), nn.Dropout(0.5), norm.double())
    with pytest.raises(ValueError, match="as predictions see them, have NaN"):
        from_torch(encoder, squares).blocks(make_data()[0])


def test_batch_norm_in_evaluation_mode_is_fine():
    X, _ = make_data()
    assert len(from_torch(mixing(nn.BatchNorm1d(K)).eval(), squares).blocks(X)) == 1


def test_an_encoder_gets_no_labels():
    with pytest.raises(TypeError) as caught:
        from_torch(WithLabels(), squares).blocks(make_data()[0])
    assert "without them" in caught.value.__notes__[0]


RAISED = {
    "rows of another width": (lambda: linear(D + 1, K), squares, "Raised by the encoder.*rows of shape \\(8, 5\\)"),
    "a loss of rows alone": (
        lambda: linear(D, K),
        lambda rows: rows.sum(1),
        "Raised by generative_loss.*\\(8, 5\\), \\(8, 2\\)",
    ),
}


@pytest.mark.parametrize("what", RAISED)
def test_errors_in_the_code_of_users_say_what_was_called(what):
    make, loss, note = RAISED[what]
    with pytest.raises((RuntimeError, TypeError)) as caught:
        from_torch(make(), loss).blocks(make_data()[0])
    assert re.search(note, caught.value.__notes__[0])


PRIORS = {
    "a vector": (lambda: own_decoder.weight.sum(0), ValueError, "scalar"),
    "no tensor": (lambda: 3.0, ValueError, "got float"),
    "not finite": (lambda: (own_decoder.weight.square().sum() + 1.0).mul(-1.0).log(), ValueError, "not finite"),
    "a function of parameters": (lambda weights: weights.sum(), TypeError, "weights"),
}


@pytest.mark.parametrize("what", PRIORS)
def test_a_prior_is_a_scalar_function_without_arguments(what):
    prior, error, message = PRIORS[what]
    with pytest.raises(error, match=message):
        from_torch(linear(D, K), decoded, prior=prior).blocks(make_data()[0])


def test_numbers_and_functions_are_looked_at_before_anything_runs():
    for options in ({"weight": -1.0}, {"weight": np.nan}, {"prior": -1.0}, {"prior": np.inf}):
        with pytest.raises(ValueError, match=f"{next(iter(options))} must be"):
            from_torch(linear(D, K), squares, **options)
    with pytest.raises(TypeError, match="the class Nested"):
        from_torch(Nested, squares)
    with pytest.raises(TypeError, match="generative_loss must be callable"):
        from_torch(linear(D, K), None)
    with pytest.raises(ValueError, match="float32 or float64"):
        from_torch(linear(D, K).half(), squares)


def test_rows_that_may_not_be_written_are_taken():
    X, _ = make_data()
    X.flags.writeable = False
    assert len(linear_model().blocks(X)) == 1


def test_something_to_learn_is_needed():
    with pytest.raises(ValueError, match="no parameters"):
        from_torch(lambda rows: rows, squares)
    with pytest.raises(TypeError, match="callable"):
        from_torch(3, squares)
    mixed = nn.Sequential(linear(D, K), nn.Linear(K, K))
    with pytest.raises(ValueError, match="one type"):
        from_torch(mixed, squares)


def test_where_the_loss_is_infinite_the_line_search_backs_off():
    """A loss with a wall: J stays finite all the way down."""
    X, y = make_data()
    encoder = linear(D, K)
    wall = from_torch(encoder, lambda rows, z: -torch.log(9.0 - (z**2).sum(1)) + 0.1 * ((rows - 1) ** 2).sum(1))
    with torch.no_grad():
        encoder.weight.mul_(0.1)
    problem = pose(wall, wall.blocks(X), y)
    result = fit_joint(problem, wall.start, max_iter=30, stop=None)
    assert np.all(np.isfinite(result.trace.objective))


# --- the page


def test_the_page_shows_the_example(tmp_path):
    """Blocks of Python in the part on PyTorch are parts of the script, but for the last, which runs here."""
    page = (ROOT / "docs" / "own_model.md").read_text(encoding="utf-8")
    part = page.partition("## In PyTorch")[2].partition("## In JAX")[0]
    *of_script, below = re.findall(r"```python\n(.*?)```", part, re.DOTALL)
    # The script is indented, so a line may be broken there that is none on the page.
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


def test_the_classifier_is_the_fit_below_it(fitted):
    model, X, y, classifier = fitted
    assert classifier.transform(X).shape == (len(X), K)
    np.testing.assert_allclose(classifier.transform(X), model.encode(X, classifier.params_))
    np.testing.assert_allclose(classifier.decision_function(X), classifier.head_.scores(classifier.transform(X)))
    assert set(classifier.predict(X)) <= {"a", "b", "c"}
    assert fits_its_rows(classifier.predict(X), y)
    assert classifier.trace_.rises.count == 0
    assert list(classifier.get_feature_names_out()) == ["marginclassifier0", "marginclassifier1"]


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not CARD, reason="no card"))])
def test_rows_and_modules_may_lie_anywhere(device):
    """Tensors, with a graph or without, and modules on a card: answers are those of NumPy's rows, and on the host."""
    X, y = make_data()
    rows, labels = torch.asarray(X, device=device).requires_grad_(), torch.asarray(y, device=device)
    model = MarginClassifier(linear_model_on(device), max_iter=20, tol=1e-2, random_state=0)
    expected = model.fit(X, y).decision_function(X)
    np.testing.assert_allclose(model.fit(rows, labels).decision_function(rows), expected)
    assert isinstance(model.predict(rows), np.ndarray)


def test_a_saved_classifier_predicts_as_before_once_it_has_its_code(fitted, tmp_path):
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


def test_copies_and_searches_work_as_with_any_classifier(fitted):
    model, X, y, classifier = fitted
    copied = clone(classifier)
    assert copied.model is model
    assert not hasattr(copied, "head_")
    quick = clone(classifier).set_params(max_iter=3, batch_size=20)
    search = GridSearchCV(quick, {"C": [0.01, 1.0]}, cv=2).fit(X, y)
    assert search.best_params_["C"] in (0.01, 1.0)
    two = clone(quick).fit(X, y == "a")
    assert two.decision_function(X).shape == (len(X),)


def test_the_classifier_says_what_it_needs():
    X, y = make_data()
    with pytest.raises(InvalidParameterError, match="model"):
        MarginClassifier().fit(X, y)


def test_an_unfitted_classifier_says_so():
    with pytest.raises(NotFittedError):
        MarginClassifier(linear_model()).predict(make_data()[0])


class Images(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv2d(1, 2, 2), nn.Flatten(), nn.Linear(8, K))
        self.decoder = nn.Linear(K, 9)

    def loss(self, rows, z):
        return ((rows.flatten(1) - self.decoder(z)) ** 2).sum(1)


def test_rows_may_be_images(tmp_path):
    """Float32, a file, and rows that have lost an axis."""
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


def test_weights_of_rows_in_the_classifier():
    """A row without weight is not there; others have it in the loss and in the price of their margin."""
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


def test_margins_against_the_rest_are_those_of_signs():
    X, y = make_data()
    model = linear_model(weight=0.1)
    classifier = MarginClassifier(model, C=0.5, multi_class="ovr", tol=1e-2, random_state=0).fit(X, y)
    signs = np.where(np.eye(3)[y] > 0, 1.0, -1.0)
    below = fit(model, X, Signs(signs, np.full(signs.shape, 0.5)), tol=1e-2)
    np.testing.assert_array_equal(classifier.params_, below.state.params)
    np.testing.assert_array_equal(classifier.head_.weights, below.state.head.weights)
    two = clone(classifier).fit(X, y == 0)
    assert two.decision_function(X).shape == (len(X),)


def test_a_classifier_whose_code_is_importable_can_be_pickled(fitted):
    _, X, _, classifier = fitted
    again = pickle.loads(pickle.dumps(classifier))
    np.testing.assert_array_equal(again.decision_function(X), classifier.decision_function(X))
    assert "VAE.encode" in repr(again)
