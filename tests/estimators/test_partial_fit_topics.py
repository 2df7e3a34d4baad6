"""Test `partial_fit` and `fit_weights` of MedLDA with variational inference."""

from __future__ import annotations

import pickle
import warnings

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from regbayes import MedLDAClassifier, MedLDARegressor, load
from regbayes.estimators._bases import FirstBatchWarning
from regbayes.margins.head import LinearHead
from regbayes.models.medlda.batches import unfold_intercept
from regbayes.models.medlda.meanfield import fold_intercept

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
V, CLASSES = 60, np.array(["x", "y", "z"])


def draw(n, seed):
    """Simulate documents; their topic proportions determine a class and a number."""
    world, rng = np.random.default_rng(0), np.random.default_rng(seed)
    topics, weights = world.dirichlet(np.full(V, 0.1), size=4), np.eye(4, 3)
    shares = rng.dirichlet(np.full(4, 0.3), size=n)
    counts = np.array([rng.multinomial(30, share @ topics) for share in shares])
    scores = shares @ weights
    return csr_matrix(counts), CLASSES[np.argmax(4 * scores + 0.3 * rng.gumbel(size=(n, 3)), axis=1)], scores[:, 0]


X, LABELS, NUMBERS = draw(600, 1)
MORE, MORE_LABELS, MORE_NUMBERS = draw(400, 2)


def classifier(**parameters):
    return MedLDAClassifier(**{"n_components": 4, "inference": "variational", "max_iter": 15} | parameters)


def regressor(**parameters):
    return MedLDARegressor(**{"n_components": 4, "inference": "variational", "max_iter": 15} | parameters)


KINDS = {
    "classes": (classifier, LABELS, MORE_LABELS, {"classes": CLASSES}),
    "two classes": (classifier, LABELS == "x", MORE_LABELS == "x", {"classes": [False, True]}),
    "numbers": (regressor, NUMBERS, MORE_NUMBERS, {}),
}
every = pytest.mark.parametrize(("make", "y", "more", "known"), KINDS.values(), ids=KINDS)


@every
def test_partial_fit_of_all_documents_matches_fit(make, y, more, known):
    whole, part = make(random_state=0).fit(X, y), make(random_state=0).partial_fit(X, y, **known)
    np.testing.assert_array_equal(part.components_, whole.components_)
    np.testing.assert_array_equal(part.coef_features_, whole.coef_features_)
    assert part.n_samples_seen_ == 600


@every
def test_stored_model_continues_partial_fit_identically(make, y, more, known, tmp_path):
    model = make(random_state=0).partial_fit(X, y, **known)
    size = len(pickle.dumps(model))
    model.partial_fit(MORE[:200], more[:200])
    assert len(pickle.dumps(model)) < size + 1000  # no documents are stored
    model.save(tmp_path / "model.rb")
    for stored in (pickle.loads(pickle.dumps(model)), load(tmp_path / "model.rb")):
        again = pickle.loads(pickle.dumps(model)).partial_fit(MORE[200:], more[200:])
        stored.partial_fit(MORE[200:], more[200:])
        np.testing.assert_array_equal(stored.components_, again.components_)
        np.testing.assert_array_equal(stored.coef_features_, again.coef_features_)
        assert stored.n_samples_seen_ == 1000


@every
def test_partial_fit_and_fit_weights_improve_the_model(make, y, more, known):
    rows, labels, numbers = draw(2000, 3)
    targets = {"classes": labels, "two classes": labels == "x", "numbers": numbers}
    name = next(name for name, kind in KINDS.items() if kind[1] is y)
    model = make(random_state=0).partial_fit(X[:60], y[:60], **known)
    at_first = model.score(MORE, more), model.perplexity(MORE)
    for begin in range(0, 2000, 200):
        model.partial_fit(rows[begin : begin + 200], targets[name][begin : begin + 200])
    words = model.components_
    model.fit_weights(rows, targets[name])
    np.testing.assert_array_equal(model.components_, words)
    assert model.score(MORE, more) > at_first[0] - 0.01
    assert model.perplexity(MORE) < at_first[1]


@every
@pytest.mark.parametrize("inference", ["variational", "gibbs"])
def test_fit_weights_after_fit_changes_little(make, y, more, known, inference):
    model = make(random_state=0, inference=inference).fit(X, y)
    before = model.coef_features_
    model.fit_weights(X, y)
    np.testing.assert_allclose(model.coef_features_, before, atol=0.02 * np.abs(before).max())


def test_partial_fit_continues_from_fit_and_fit_resets():
    model, fitted = classifier(random_state=0).fit(X, LABELS), classifier(random_state=0).fit(X, LABELS)
    model.partial_fit(MORE, MORE_LABELS)
    assert model.n_samples_seen_ == pytest.approx(1000, rel=1e-3)
    assert model.score(MORE, MORE_LABELS) > fitted.score(MORE, MORE_LABELS) - 0.03
    model.fit(X, LABELS)
    np.testing.assert_array_equal(model.components_, fitted.components_)
    assert not hasattr(model, "n_samples_seen_")


def test_unfold_intercept_inverts_fold_intercept():
    rng = np.random.default_rng(0)
    centre = rng.dirichlet(np.ones(5))
    latent = rng.normal(size=(3, 5))
    latent -= latent.mean(axis=1, keepdims=True)
    head = LinearHead(np.column_stack([latent, rng.normal(size=3)]), centre, True)
    np.testing.assert_allclose(unfold_intercept(fold_intercept(head), centre).weights, head.weights, atol=1e-12)


def test_partial_fit_of_empty_documents_changes_no_topics():
    model = classifier(random_state=0).partial_fit(X, LABELS, classes=CLASSES)
    before = model.components_
    model.partial_fit(csr_matrix((3, V)), LABELS[:3])
    np.testing.assert_array_equal(model.components_, before)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"loss": "hinge"}, "squared loss"),
        ({"class_weight": "balanced"}, "compute_class_weight"),
    ],
)
def test_partial_fit_with_unsupported_options_raises(parameters, message):
    with pytest.raises(ValueError, match=message):
        classifier(**parameters).partial_fit(X, LABELS, classes=CLASSES)


@every
def test_partial_fit_with_zero_C_learns_topics_only(make, y, more, known):
    model = make(random_state=0, C=0.0).partial_fit(X, y, **known)
    before = model.perplexity(MORE[300:])
    for begin in (0, 100, 200):
        model.partial_fit(MORE[begin : begin + 100], more[begin : begin + 100])
    assert model.perplexity(MORE[300:]) < before
    assert not np.any(model.coef_features_)
    with pytest.raises(ValueError, match="fit_weights needs a positive C"):
        model.fit_weights(MORE, more)
    # A positive C applies from the next batch on.
    assert np.any(model.set_params(C=1.0).partial_fit(MORE, more).coef_features_)


@pytest.mark.parametrize(("n_documents", "warns"), [(499, True), (500, False)])
def test_first_batch_warns_below_500_documents(n_documents, warns):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", FirstBatchWarning)
        regressor(max_iter=1).partial_fit(X[:n_documents], NUMBERS[:n_documents])
    messages = [str(one.message) for one in caught if issubclass(one.category, FirstBatchWarning)]
    assert len(messages) == warns
    assert all("has 499 documents" in message and "begin with 500 or more" in message for message in messages)


def test_invalid_batch_leaves_model_unchanged():
    with pytest.raises(ValueError, match="needs classes="):
        classifier().partial_fit(X, LABELS)
    with pytest.warns(FirstBatchWarning):
        model = classifier(random_state=0).partial_fit(X[:90], LABELS[:90], classes=CLASSES)
    before = pickle.dumps(vars(model))
    for given, message in [
        ((MORE, np.repeat("new", 400)), "name all of them"),
        ((MORE[:, :7], MORE_LABELS), "features"),
        ((-MORE, MORE_LABELS), "[Nn]egative"),
        ((MORE, MORE_LABELS, ["x", "y"]), "first call"),
        ((MORE, [None, *MORE_LABELS[1:]]), "y has missing values"),
        ((MORE, np.array([1, *MORE_LABELS[1:]], dtype=object)), "of several types"),
    ]:
        with pytest.raises(ValueError, match=message):
            model.partial_fit(*given)
    assert pickle.dumps(vars(model)) == before
