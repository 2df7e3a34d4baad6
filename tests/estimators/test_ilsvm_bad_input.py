"""Test unusual and invalid input of iLSVM's estimators."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from sklearn.exceptions import ConvergenceWarning

from ilsvm_estimator_tools import digits, ibp, ilsvm, ilsvm_cv

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

X, y = digits()
EVERY = {"iLSVM": ilsvm, "iLSVM CV": ilsvm_cv, "IBP": ibp}
CLASSIFIERS = {"iLSVM": ilsvm, "iLSVM CV": ilsvm_cv}
every_estimator = pytest.mark.parametrize("make", EVERY.values(), ids=EVERY.keys())
every_classifier = pytest.mark.parametrize("make", CLASSIFIERS.values(), ids=CLASSIFIERS.keys())


def with_one(value):
    broken = X.copy()
    broken[3, 5] = value
    return broken


# --- X


@every_estimator
@pytest.mark.parametrize(
    ("rows", "error", "message"),
    [
        (with_one(np.nan), ValueError, "contains NaN"),
        (with_one(np.inf), ValueError, "contains infinity"),
        (X.astype("datetime64[D]"), TypeError, "has dates"),
        (pd.DataFrame(X).assign(day=pd.Timedelta(1, "D")), TypeError, "has dates"),
        (X[:, :0], ValueError, r"0 feature\(s\)"),
        (X[:, 0], ValueError, "Expected 2D array"),
        (X[:, :, None], ValueError, "dim 3"),
        (1e200 * X, ValueError, "X is too large"),
        (1e-200 * X, ValueError, "X is too small"),
    ],
    ids=["nan", "inf", "dates", "durations", "no columns", "1d", "3d", "overflow", "underflow"],
)
def test_fit_with_invalid_X_raises(make, rows, error, message):
    with pytest.raises(error, match=message):
        make().fit(rows, y)


@every_estimator
def test_sparse_X_matches_dense_X(make):
    sparse = scipy.sparse.csr_array(X)
    fitted, dense = make(max_iter=3).fit(sparse, y), make(max_iter=3).fit(X, y)
    np.testing.assert_array_equal(fitted.transform(sparse), dense.transform(X))
    sparse.indices[5] = 10**7  # compiled code would read out of bounds
    for method in (lambda: make().fit(sparse, y), lambda: fitted.transform(sparse)):
        with pytest.raises(ValueError, match="not a valid sparse matrix"):
            method()


@every_estimator
@pytest.mark.parametrize("rows", [with_one(np.nan), with_one(np.inf), X[:, 1:]], ids=["nan", "inf", "narrow"])
def test_transform_with_invalid_X_raises(make, rows):
    fitted = make(max_iter=1).fit(X, y)
    with pytest.raises(ValueError, match=r"contains|expecting 64 features"):
        fitted.transform(rows)


@every_estimator
@pytest.mark.parametrize(
    "change",
    [
        lambda X: X.astype(np.int64),
        lambda X: X.astype(np.float32),
        lambda X: X.astype(np.uint8),
        np.asfortranarray,
        lambda X: X.astype(object),
        lambda X: np.frombuffer(X.tobytes()).reshape(X.shape),
        lambda X: np.repeat(X, 2, axis=1)[:, ::2],
        lambda X: X.tolist(),
    ],
    ids=["int", "float32", "uint8", "F-order", "object", "read-only", "strided", "list"],
)
def test_fit_does_not_depend_on_array_type(make, change):
    """Digits are integers, which every dtype represents exactly."""
    fitted, other = make().fit(X, y), make().fit(change(X), y)
    np.testing.assert_allclose(other.components_, fitted.components_, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(other.transform(change(X)), fitted.transform(X), rtol=1e-6, atol=1e-8)


@every_estimator
def test_fit_does_not_modify_input(make):
    rows, labels = X.copy(), y.copy()
    make().fit(rows, labels).transform(rows)
    np.testing.assert_array_equal(rows, X)
    np.testing.assert_array_equal(labels, y)


@every_estimator
@pytest.mark.parametrize(
    "rows",
    [
        np.column_stack([X, np.full(len(X), 3.0)]),
        np.column_stack([X, X[:, 30]]),
        np.repeat(X[::2], 2, axis=0),
        X + 1e6,
        X[:, 30:31],
    ],
    ids=["constant column", "equal columns", "equal rows", "far from zero", "one column"],
)
def test_fit_with_unusual_X_descends(make, rows):
    fitted = make().fit(rows, y)
    assert np.all(np.isfinite(fitted.components_))
    assert np.all(np.isfinite(fitted.transform(rows)))
    assert fitted.n_components_ > 0
    assert np.all(np.diff(fitted.trace_.objective) <= 1e-9 * np.abs(fitted.trace_.objective[0]))


def test_constant_column_has_zero_loadings():
    fitted = ilsvm(max_iter=40).fit(np.column_stack([X, np.full(len(X), 3.0)]), y)
    assert np.abs(fitted.components_[:, -1]).max() < 1e-6 * np.abs(fitted.components_).max()


@pytest.mark.parametrize(
    "rows", [np.zeros((20, 3)), np.full((20, 3), 0.1), np.ones((20, 600))], ids=["zeros", "constant", "many inputs"]
)
def test_constant_X_warns(rows):
    labels = np.arange(20) % 2
    for make in (ilsvm, ibp):
        with pytest.warns(ConvergenceWarning, match="No feature is in use.* check that `X` varies"):
            fitted = make().fit(rows, labels)
        assert np.all(np.isfinite(fitted.components_))
    assert ilsvm().fit(rows, labels > 0).score(rows, labels) == 0.5


def test_two_distinct_samples_are_classified():
    kinds = np.array([[0.0, 0.0, 0.0, 0.0, 1.0], [1.0, 1.0, 2.0, 3.0, 4.0]])
    labels = np.arange(200) // 100
    assert ilsvm().fit(kinds[labels], labels).score(kinds, [0, 1]) == 1.0


@every_classifier
@pytest.mark.parametrize("n_rows", [4, 8])
def test_fit_with_fewer_samples_than_features(make, n_rows):
    X, y = digits(2, 40)
    rows = np.concatenate([np.flatnonzero(y == label)[: n_rows // 2] for label in (0, 1)])
    fitted = make(20).fit(X[rows], y[rows])
    assert fitted.score(X[rows], y[rows]) == 1.0


def test_fit_needs_two_samples():
    rows = [0, 1]
    assert ilsvm().fit(X[rows], y[rows]).score(X[rows], y[rows]) == 1.0
    assert len(ibp().fit(X[rows]).transform(X)) == 160
    for make in (ilsvm, ibp):
        with pytest.raises(ValueError, match="minimum of 2 is required"):
            make().fit(X[:1], y[:1])


# --- labels


def text_and_numbers(first):
    labels = np.full(160, "a", dtype=object)
    labels[y == y[0] if first == "number" else y != y[0]] = 1
    return labels


def test_unlabeled_marker_may_have_another_type():
    labels = np.where(y % 2 == 0, "even", "odd").astype(object)
    labels[::5] = -1
    assert ilsvm(unlabeled=-1).fit(X, labels).classes_.tolist() == ["even", "odd"]


@every_classifier
@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (np.zeros(160), "at least 2 classes, got 1"),
        (X @ np.linspace(0, 1, 64), "Unknown label type: continuous"),
        (y[:-1], "inconsistent numbers of samples"),
        (np.where(y == 0, np.nan, y), "contains NaN"),
        (None, "requires y to be passed"),
        (text_and_numbers(first="text"), r"of several types \('a', 1\): give all of them as text, or as numbers"),
        (text_and_numbers(first="number"), r"of several types \('a', 1\): give all of them as text, or as numbers"),
    ],
    ids=["one class", "regression", "short", "nan", "none", "text first", "number first"],
)
def test_fit_with_invalid_y_raises(make, labels, message):
    with pytest.raises(ValueError, match=message):
        make().fit(X, labels)


@every_classifier
def test_fit_with_too_few_labels_raises(make):
    with pytest.raises(ValueError, match="no row has a label: all of y is -1"):
        make(unlabeled=-1).fit(X, np.full(160, -1))
    with pytest.raises(ValueError, match="at least 2 classes, got 1"):
        make(unlabeled=-1).fit(X, np.where(y == 2, 2, -1))


# --- parameters


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"cost": np.ones((3, 3))}, r"cost must have shape \(4, 4\), a row per true class; got \(3, 3\)"),
        ({"cost": [1.0, 2.0]}, r"cost must have shape \(4, 4\), a row per true class; got \(2,\)"),
        ({"cost": np.ones((4, 4))}, "zero diagonal"),
        ({"cost": np.eye(4) - 1.0}, "non-negative"),
        ({"cost": np.where(np.eye(4), 0.0, np.nan)}, "cost contains NaN"),
        ({"cost": 1.0 - np.eye(4), "multi_class": "ovr"}, '`cost` requires `multi_class="crammer_singer"`'),
        ({"class_weight": {0: -1.0}}, "class_weight must be finite and not negative"),
        ({"class_weight": {0: np.nan}}, "class_weight must be finite and not negative"),
        ({"class_weight": {"zero": 2.0}}, "not in class_weight"),
        ({"margins": "posterior", "generative_weight": 0.0}, "`generative_weight` must be positive"),
        ({"unlabeled": [1, 2]}, r"unlabeled must be one value, .* got \[1, 2\]"),
        ({"temperature": 0.0}, "'temperature' parameter"),
        ({"C": 0.0}, "'C' parameter"),
        ({"loss": "log"}, "'loss' parameter"),
    ],
    ids=str,
)
def test_invalid_parameter_raises(parameters, message):
    with pytest.raises(ValueError, match=message):
        ilsvm(**parameters).fit(X, y)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"Cs": ()}, "parameter 'C' need to be a non-empty sequence"),
        ({"Cs": ("auto", 1.0)}, "The values of C must be numbers"),
        ({"Cs": (1.0, -2.0)}, "'C' parameter of ILSVMClassifier must be .* Got -2.0"),
        ({"Cs": 1.0}, "'Cs' parameter .* array-like"),
        ({"temperatures": (0.1, "hot")}, "'temperature' parameter of ILSVMClassifier must be .* Got 'hot'"),
        ({"include_inputs": True}, "'include_inputs' parameter .* array-like"),
        ({"scoring": "nope"}, "'nope' is not a valid scoring value"),
        ({"cv": 1}, "'cv' parameter"),
    ],
    ids=str,
)
def test_search_checks_lists_before_fits(parameters, message):
    with pytest.raises(ValueError, match=message):
        ilsvm_cv(**parameters).fit(X, y)


@pytest.mark.parametrize("parameters", [{"C": 1e-8}, {"C": 1e6}, {"temperature": 1e-4}, {"alpha": 1e3}], ids=str)
def test_extreme_parameters_give_finite_decisions(parameters):
    fitted = ilsvm(**parameters, max_iter=3).fit(X, y)
    assert np.all(np.isfinite(fitted.decision_function(X)))
