"""Test iLSVM's estimators: shapes, labels, decisions and reproducibility."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.exceptions import NotFittedError
from sklearn.svm import LinearSVC
from threadpoolctl import threadpool_limits

from ilsvm_estimator_tools import digits, ibp, ilsvm, ilsvm_cv, overlapping

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

X, y = digits()
MAKERS = {"iLSVM": ilsvm, "iLSVM CV": ilsvm_cv, "IBP": ibp}
every_estimator = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS.keys())


# --- features


@every_estimator
def test_fit_transform_and_embedding_match_transform(make):
    fitted = make().fit(X, y)
    np.testing.assert_array_equal(make().fit_transform(X, y), fitted.transform(X))
    np.testing.assert_allclose(fitted.embedding_, fitted.transform(X), rtol=1e-14)
    assert fitted.embedding_.shape == (len(X), fitted.n_components_)
    assert np.all((fitted.embedding_ >= 0) & (fitted.embedding_ <= 1))


@pytest.mark.parametrize("options", [{"margins": "posterior"}, {"n_sweeps": 2}, {"include_inputs": True}], ids=str)
def test_embedding_does_not_use_labels(options):
    fitted = ilsvm(**options).fit(X, y)
    np.testing.assert_allclose(fitted.embedding_, fitted.transform(X), rtol=1e-14)


def test_transform_treats_samples_independently():
    fitted = ilsvm().fit(X, y)
    order = np.random.default_rng(0).permutation(len(X))
    np.testing.assert_allclose(fitted.transform(X[order]), fitted.transform(X)[order], rtol=1e-12)
    np.testing.assert_allclose(fitted.transform(X[:1]), fitted.transform(X)[:1], rtol=1e-12)


def test_failed_fit_leaves_estimator_unfitted():
    model = ilsvm(cost=np.zeros((2, 2)))
    with pytest.raises(ValueError, match="cost"):
        model.fit(X, y)
    with pytest.raises(NotFittedError):
        model.predict(X)


# --- the classifier


@pytest.mark.parametrize("n_classes", [2, 4])
@pytest.mark.parametrize("include_inputs", [False, True])
@pytest.mark.parametrize("fit_intercept", [False, True])
def test_decision_function_is_linear_in_features(n_classes, include_inputs, fit_intercept):
    X, y = digits(n_classes, 100)
    fitted = ilsvm(include_inputs=include_inputs, fit_intercept=fit_intercept, max_iter=5).fit(X, y)
    rows = 1 if n_classes == 2 else n_classes
    assert fitted.coef_features_.shape == (rows, fitted.n_components_)
    assert fitted.intercept_.shape == (rows,)
    scores = fitted.transform(X) @ fitted.coef_features_.T + fitted.intercept_
    if include_inputs:
        assert fitted.coef_inputs_.shape == (rows, X.shape[1])
        scores += (X - fitted.mean_) @ fitted.coef_inputs_.T
    else:
        assert not hasattr(fitted, "coef_inputs_")
    decisions = fitted.decision_function(X)
    assert decisions.shape == ((len(X),) if n_classes == 2 else (len(X), n_classes))
    unused = 0.0 if fit_intercept else 0.05  # unused features vary by at most 0.1
    np.testing.assert_allclose(decisions, scores[:, 0] if n_classes == 2 else scores, rtol=1e-9, atol=1e-9 + unused)
    best = (decisions > 0).astype(int) if n_classes == 2 else decisions.argmax(axis=1)
    np.testing.assert_array_equal(fitted.predict(X), fitted.classes_[best])


def crammer_singer_value(weights, rows, y, C):
    """Return the primal value of a Crammer-Singer SVM without intercept."""
    scores = rows @ weights.T
    right = scores[np.arange(len(y)), y]
    worst = np.max(scores + 1.0 - np.eye(weights.shape[0])[y], axis=1)
    return 0.5 * np.sum(weights**2) + C * np.sum(worst - right)


@pytest.mark.parametrize("C", [0.05, 1.0])
@pytest.mark.parametrize("n_hidden", [0, 100])
def test_classifier_on_features_matches_liblinear(C, n_hidden):
    X, y = overlapping()
    fitted = ilsvm(loss="hinge", C=C, tol=1e-4, unlabeled=-1).fit(X, np.where(np.arange(300) < n_hidden, -1, y))
    features, y = fitted.embedding_[n_hidden:], y[n_hidden:]  # unlabeled samples have no margin
    centre = features.mean(axis=0)
    rows = np.column_stack([features - centre, np.ones(len(y))])
    oracle = LinearSVC(multi_class="crammer_singer", C=C, fit_intercept=False, tol=1e-6, max_iter=100_000).fit(rows, y)
    # The intercept refers to uncentered features, the oracle's to centered ones.
    own = np.column_stack([fitted.coef_features_, fitted.intercept_ + fitted.coef_features_ @ centre])
    best = crammer_singer_value(oracle.coef_, rows, y, C)
    assert best <= crammer_singer_value(own, rows, y, C) * (1 + 1e-6) <= best * (1 + 1e-3)
    scores = rows @ oracle.coef_.T
    assert np.abs(rows @ own.T - scores).max() < 0.05 * np.abs(scores).max()


def test_large_C_with_hinge_loss_gives_hard_margins():
    """The hinge is an exact penalty: above the largest multiplier, C has no effect and no margin is violated."""
    X, y = digits(3, 90)
    options = {"loss": "hinge", "generative_weight": 1.0, "max_iter": 20, "tol": 1e-5}
    fits = [ilsvm(C=C, **options).fit(X, y) for C in (1e3, 1e6)]
    for fitted in fits:
        scores = fitted.decision_function(X)
        own = scores[np.arange(len(y)), y]
        scores[np.arange(len(y)), y] = -np.inf
        assert np.min(own - scores.max(axis=1)) > 0.95
    assert fits[0].objective_ == pytest.approx(fits[1].objective_, rel=1e-2)
    with pytest.raises(ValueError, match="'C' parameter"):
        ilsvm(C=np.inf, loss="hinge").fit(X, y)


@pytest.mark.parametrize(
    "names",
    [np.array(["zero", "one"]), np.array([7, -3]), np.array([True, False]), np.array(["a", "b"], dtype=object)],
    ids=["str", "int", "bool", "object"],
)
def test_predict_returns_labels_of_original_type(names):
    X, y = digits(2, 80)
    fitted = ilsvm(max_iter=4).fit(X, names[y])
    assert fitted.classes_.dtype == names.dtype
    np.testing.assert_array_equal(fitted.classes_, np.unique(names))
    assert set(fitted.predict(X)) == set(names)
    assert fitted.score(X, names[y]) == 1.0


def test_fit_does_not_depend_on_class_names():
    rename = np.array(["d", "b", "a", "c"])
    fitted, renamed = ilsvm().fit(X, y), ilsvm().fit(X, rename[y])
    np.testing.assert_allclose(renamed.components_, fitted.components_, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(renamed.coef_features_, fitted.coef_features_[np.argsort(rename)], rtol=1e-3, atol=1e-4)
    np.testing.assert_array_equal(renamed.predict(X), rename[fitted.predict(X)])


# --- reproducible


def everything(fitted):
    names = ["components_", "embedding_", "stick_weights_", "coef_features_", "intercept_"]
    return [getattr(fitted, name) for name in names if hasattr(fitted, name)]


@pytest.mark.parametrize("make", [ilsvm, ibp], ids=["iLSVM", "IBP"])
def test_fit_is_bitwise_identical_for_any_n_jobs(make):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((5000, 4))  # more samples than one block
    y = (X[:, 0] > X[:, 1]).astype(int) + (X[:, 2] > 0)
    with threadpool_limits(2, user_api="blas"):
        several = everything(make(4, max_iter=3, n_jobs=3).fit(X, y))
    with threadpool_limits(1, user_api="blas"):
        one = everything(make(4, max_iter=3, n_jobs=1).fit(X, y))
    for left, right in zip(several, one, strict=True):
        np.testing.assert_array_equal(left, right)


def test_transform_with_threads_is_bitwise_reproducible():
    """Threads change the memory alignment of arrays, which must not affect sums."""
    X = np.random.default_rng(0).standard_normal((6000, 50))
    fitted = ibp(23, max_iter=0, n_jobs=1).fit(X[:200])
    expected = fitted.transform(X)
    fitted.set_params(n_jobs=2)
    assert all(np.array_equal(fitted.transform(X), expected) for _ in range(100))


@every_estimator
def test_seed_has_no_effect_without_subsampling(make):
    first, other = (make(random_state=seed).fit(X, y) for seed in (3, 4))
    np.testing.assert_array_equal(first.components_, other.components_)


def test_seed_sets_initialization_of_posterior_margins():
    first, again, other = (ilsvm(margins="posterior", random_state=seed).fit(X, y) for seed in (3, 3, 4))
    np.testing.assert_array_equal(first.components_, again.components_)
    assert not np.allclose(first.components_, other.components_)
