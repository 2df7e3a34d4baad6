"""Test `partial_fit` and `fit_weights` of iLSVM."""

from __future__ import annotations

import pickle
import tracemalloc
from functools import partial

import numpy as np
import pytest
from sklearn.exceptions import NotFittedError
from sklearn.svm import LinearSVC

from regbayes import IBPFactorAnalysis, ILSVMClassifier, load
from regbayes.estimators._bases import FirstBatchWarning

N, D, CLASSES = 600, 12, np.array(["a", "b", "c"])


def draw(n, seed, dtype=np.float64):
    """Simulate samples with known binary features, which determine the classes."""
    world, rng = np.random.default_rng(0), np.random.default_rng(seed)
    loadings, weights = 2.0 * world.normal(size=(5, D)), 2.0 * world.normal(size=(5, 3))
    features = rng.random((n, 5)) < 0.4
    rows = features @ loadings + 0.7 * rng.normal(size=(n, D)) + 3.0
    return rows.astype(dtype), CLASSES[np.argmax(features @ weights + 0.3 * rng.gumbel(size=(n, 3)), axis=1)]


X, y = draw(N, 1)
MORE, more = draw(400, 2)


def ilsvm(**parameters):
    return ILSVMClassifier(**{"n_components": 8, "max_iter": 10, "random_state": 0} | parameters)


def ibp(**parameters):
    return IBPFactorAnalysis(**{"n_components": 8, "slab": None, "max_iter": 10, "random_state": 0} | parameters)


KNOWN = {}


def first(model, rows=X, labels=y):
    """Return a copy of the model after its first batch, which is cached."""
    key = repr(model), id(rows)
    if key not in KNOWN:
        given = {} if isinstance(model, IBPFactorAnalysis) else {"classes": CLASSES}
        KNOWN[key] = pickle.dumps(model.partial_fit(rows, labels, **given)), rows
    return pickle.loads(KNOWN[key][0])


def batches(size=100):
    return [slice(begin, begin + size) for begin in range(0, len(more), size)]


pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
both = pytest.mark.parametrize("make", [ilsvm, ibp], ids=["iLSVM", "IBP"])


kinds = pytest.mark.parametrize(
    "make",
    [ilsvm, ibp, partial(ilsvm, slab="half-normal"), partial(ibp, slab="half-normal")],
    ids=["iLSVM", "IBP", "iLSVM with slab", "IBP with slab"],
)


# --- agreement with fit


@kinds
def test_partial_fit_of_all_samples_matches_fit(make):
    whole, part = make().fit(X, y), first(make())
    for name in ("components_", "embedding_", "stick_weights_", "mean_", "coef_features_", "intercept_"):
        if hasattr(whole, name):
            np.testing.assert_array_equal(getattr(part, name), getattr(whole, name))
    assert part.n_samples_seen_ == N
    assert not hasattr(whole, "n_samples_seen_")


@kinds
def test_partial_fit_changes_features_and_stores_no_samples(make):
    model = first(make())
    before = model.components_
    size = len(pickle.dumps(model._batches))
    for batch in batches():
        model.partial_fit(MORE[batch], more[batch])
        assert len(model.embedding_) == 100
        assert len(pickle.dumps(model._batches)) <= size + 1000
    assert model.n_samples_seen_ == N + len(MORE)
    assert 0 < np.linalg.norm(model.components_ - before) < np.linalg.norm(before)
    np.testing.assert_allclose(model.embedding_, model.transform(MORE[batch]), rtol=1e-12)


@pytest.mark.parametrize("multi_class", ["crammer_singer", "ovr"])
def test_partial_fit_improves_on_small_first_batch(multi_class):
    rows, labels = draw(3000, 3)
    fresh, truth = draw(4000, 4)
    model = first(ilsvm(multi_class=multi_class, max_iter=50), rows[:100], labels[:100])
    at_first = model.score(fresh, truth)
    for _ in range(2):
        for begin in range(0, len(rows), 200):
            model.partial_fit(rows[begin : begin + 200], labels[begin : begin + 200])
    model.fit_weights(rows, labels)
    full = ilsvm(multi_class=multi_class, max_iter=50).fit(rows, labels).score(fresh, truth)
    assert model.score(fresh, truth) > at_first + 0.5 * (full - at_first)


@kinds
def test_partial_fit_sample_weights_match_copies(make):
    weighed, twice = first(make()), first(make())
    weighed.partial_fit(MORE[:100], more[:100], sample_weight=np.full(100, 2.0))
    twice.partial_fit(np.vstack([MORE[:100]] * 2), np.tile(more[:100], 2))
    np.testing.assert_allclose(weighed.components_, twice.components_, rtol=1e-8, atol=1e-10)
    assert weighed.n_samples_seen_ == twice.n_samples_seen_
    if hasattr(weighed, "coef_features_"):
        np.testing.assert_allclose(weighed.coef_features_, twice.coef_features_, rtol=1e-6, atol=1e-9)


@kinds
@pytest.mark.parametrize("how", ["pickle", "file"])
def test_stored_model_continues_partial_fit_identically(make, how, tmp_path):
    model = first(make())
    model.partial_fit(MORE[:100], more[:100])
    if how == "pickle":
        stored = pickle.loads(pickle.dumps(model))
    else:
        model.save(tmp_path / "model.rb")
        stored = load(tmp_path / "model.rb")
    for batch in batches()[1:]:
        model.partial_fit(MORE[batch], more[batch])
        stored.partial_fit(MORE[batch], more[batch])
    np.testing.assert_array_equal(model.transform(X), stored.transform(X))
    assert model.n_samples_seen_ == stored.n_samples_seen_
    if hasattr(model, "coef_features_"):
        np.testing.assert_array_equal(model.decision_function(X), stored.decision_function(X))


@both
def test_partial_fit_continues_from_fit_and_fit_resets(make):
    model, fitted = make().fit(X, y), make().fit(X, y)
    model.partial_fit(MORE[:100], more[:100])
    assert model.n_samples_seen_ == N + 100
    moved = np.linalg.norm(model.components_ - fitted.components_)
    assert 0 < moved < 0.3 * np.linalg.norm(fitted.components_)
    if make is ilsvm:
        assert model.score(MORE, more) > fitted.score(MORE, more) - 0.03
    model.fit(X, y)
    np.testing.assert_array_equal(model.components_, fitted.components_)
    assert not hasattr(model, "n_samples_seen_")
    assert not hasattr(model, "_batches")


def test_unlabeled_batch_changes_features_only():
    labels = more.astype(object)
    labels[::2] = "?"
    model = first(ilsvm(unlabeled="?"))
    model.partial_fit(MORE[:100], labels[:100])
    before, weights = model.components_, model.coef_features_
    model.partial_fit(MORE[:100], np.repeat("?", 100))
    assert not np.array_equal(model.components_, before)
    np.testing.assert_array_equal(model.coef_features_, weights)


# --- fit_weights


def test_fit_weights_matches_linear_svc_on_features():
    model = first(ilsvm(multi_class="ovr"))
    for batch in batches():
        model.partial_fit(MORE[batch], more[batch])
    components = model.components_
    model.fit_weights(X, y)
    np.testing.assert_array_equal(model.components_, components)
    psi = model.transform(X)
    svm = LinearSVC(C=1.0, loss="squared_hinge", tol=1e-10, max_iter=100_000).fit(psi - psi.mean(axis=0), y)
    scores = (psi - psi.mean(axis=0)) @ svm.coef_.T + svm.intercept_
    np.testing.assert_allclose(model.decision_function(X), scores, atol=0.02 * np.abs(scores).max())

    def cost(scores):
        """Return the one-vs-rest squared hinge loss."""
        signs = np.where(y[:, None] == CLASSES, 1.0, -1.0)
        return np.sum(np.maximum(1.0 - signs * scores, 0.0) ** 2)

    ours = cost(model.decision_function(X)) + 0.5 * np.sum(model._state.head.weights**2)
    theirs = cost(scores) + 0.5 * np.sum(svm.coef_**2) + 0.5 * np.sum(svm.intercept_**2)
    assert ours == pytest.approx(theirs, rel=2e-4)


@pytest.mark.parametrize("multi_class", ["crammer_singer", "ovr"])
def test_fit_weights_after_fit_changes_little(multi_class):
    model = ilsvm(multi_class=multi_class).fit(X, y)
    scores = model.decision_function(X)
    model.fit_weights(X, y)
    np.testing.assert_allclose(model.decision_function(X), scores, atol=0.05 * np.abs(scores).max())


def test_fit_weights_of_memory_map_matches_array(tmp_path):
    rows, labels = draw(5000, 5, np.float32)
    model = first(ilsvm())
    path = tmp_path / "rows.npy"
    np.save(path, rows)
    stored = pickle.loads(pickle.dumps(model))
    model.fit_weights(rows, labels)
    stored.fit_weights(np.load(path, mmap_mode="r"), labels)
    np.testing.assert_array_equal(model.coef_features_, stored.coef_features_)
    threads = pickle.loads(pickle.dumps(model)).set_params(n_jobs=2)
    threads.fit_weights(rows, labels)
    np.testing.assert_allclose(
        threads.coef_features_, model.coef_features_, atol=1e-3 * np.abs(model.coef_features_).max()
    )


def test_partial_fit_memory_does_not_grow_with_file(tmp_path):
    peaks = []
    for n in (6000, 24_000):
        rows, labels = draw(n, 6)
        rows = np.tile(rows, 10)
        np.save(tmp_path / "rows.npy", rows)
        del rows
        rows = np.load(tmp_path / "rows.npy", mmap_mode="r")
        model = first(ilsvm(), rows[:500], labels[:500])
        tracemalloc.start()
        for begin in range(0, n, 500):
            model.partial_fit(rows[begin : begin + 500], labels[begin : begin + 500])
        model.fit_weights(rows, labels)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    file = 8 * 24_000 * 10 * D
    assert peaks[1] < 0.5 * file
    assert peaks[1] - peaks[0] < 100 * 18_000  # bytes: labels, codes, weights and order, without X and features


# --- invalid input


def state_of(model):
    return pickle.dumps({name: value for name, value in vars(model).items() if name != "_skl_callbacks"})


def nan_rows():
    rows = MORE[:100].copy()
    rows[3, 4] = np.nan
    return rows


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((MORE[:100], np.repeat("new", 100)), r"y has \['new'\].*name all of them with classes="),
        ((MORE[:100], more[:100], ["a", "b"]), "not what it was in the first call"),
        ((MORE[:100, :5], more[:100]), "5 features"),
        ((MORE[:100], None), "requires y"),
        ((MORE[:100], [None, *more[1:100]]), "y has missing values"),
        ((MORE[:100], np.array([1, *more[1:100]], dtype=object)), r"of several types \('[abc]', 1\)"),
        ((nan_rows(), more[:100]), "NaN"),
        ((1e200 * MORE[:100], more[:100]), "too large to square"),
        ((MORE[:100], more[:99]), "inconsistent"),
        ((MORE[:100], more[:100], None, np.zeros(100)), "at least one non-zero"),
        ((np.full((100, D), "x"), more[:100]), "could not convert"),
    ],
)
def test_invalid_batch_leaves_model_unchanged(given, message):
    model = first(ilsvm())
    model.partial_fit(MORE[:100], more[:100])
    before = state_of(model)
    with pytest.raises(ValueError, match=message):
        model.partial_fit(*given)
    assert state_of(model) == before


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"loss": "hinge"}, 'requires loss="squared_hinge"'),
        ({"margins": "posterior"}, 'requires `margins="consistent"`'),
        ({"transductive": True}, "`transductive=False`"),
        ({"class_weight": "balanced"}, "compute_class_weight"),
        ({"n_components": 700, "multi_class": "crammer_singer"}, 'multi_class="ovr"'),
    ],
)
def test_partial_fit_with_unsupported_options_raises(parameters, message):
    with pytest.raises(ValueError, match=message):
        first(ilsvm(**parameters))


def test_first_partial_fit_needs_classes():
    with pytest.raises(ValueError, match="first call of `partial_fit` requires `classes`"):
        ilsvm().partial_fit(X, y)
    with pytest.raises(ValueError, match="at least 2 classes"):
        ilsvm().partial_fit(X, y, classes=["a"])
    with pytest.raises(ValueError, match=r"y has \['c'\]"):
        ilsvm().partial_fit(X, y, classes=["a", "b"])


def test_class_may_be_missing_from_first_batch():
    model = first(ilsvm(), X[y != "c"], y[y != "c"])
    assert model.coef_features_.shape[0] == 3
    for _ in range(5):
        for batch in batches():
            model.partial_fit(MORE[batch], more[batch])
    model.fit_weights(MORE, more)
    assert np.mean(model.predict(MORE)[more == "c"] == "c") > 0.3


@both
def test_small_first_batch_warns(make):
    with pytest.warns(FirstBatchWarning, match="first batch has 100 samples"):
        first(make(), X[:100], y[:100])


def test_fit_weights_with_invalid_model_or_classes_raises():
    with pytest.raises(NotFittedError):
        ilsvm().fit_weights(X, y)
    with pytest.raises(ValueError, match="squared_hinge"):
        ilsvm(loss="hinge").fit(X, y).fit_weights(X, y)
    model = first(ilsvm())
    before = state_of(model)
    with pytest.raises(ValueError, match=r"y has \['new'\]"):
        model.fit_weights(X, np.repeat("new", N))
    with pytest.raises(ValueError, match="y has missing values"):
        model.fit_weights(X, [None, *y[1:]])
    assert state_of(model) == before
