"""Test iLSVM regression and multi-label classification against oracles."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.datasets import make_friedman1, make_multilabel_classification
from sklearn.linear_model import Ridge
from sklearn.metrics import r2_score
from sklearn.model_selection import LeaveOneOut, cross_val_predict
from sklearn.svm import LinearSVC

from regbayes import ILSVMClassifier, ILSVMClassifierCV, ILSVMRegressor, ILSVMRegressorCV
from regbayes.estimators.ilsvm_regressor import RIDGE_PENALTIES, ridge_residual
from regbayes.margins.targets import Numbers, Signs
from regbayes.models.ilsvm import starts
from regbayes.models.ilsvm.model import Data, centre_rows

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

X, y = make_friedman1(300, noise=0.5, random_state=0)
SLABS = [None, "half-normal", "normal"]


def two_outputs():
    return np.column_stack([y, np.sin(3.0 * X[:, 5]) + X[:, 6]])


def labels(n=300):
    return make_multilabel_classification(n, n_features=12, n_classes=4, n_labels=2, random_state=0)


def data_of(values, weights=None):
    prices = ~np.isnan(values) * (1.0 if weights is None else weights[:, None])
    return Data(centre_rows(X[: len(values)], weights=weights), Numbers(np.nan_to_num(values), prices))


# --- the head


@pytest.mark.parametrize("slab", SLABS)
def test_regressor_weights_match_ridge_on_features(slab):
    """The intercept is penalized, too, but nearly zero for standardized targets."""
    model = ILSVMRegressor(10, C=0.4, temperature=0.2, slab=slab, max_iter=5).fit(X, two_outputs())
    C = 0.4 if slab is None else 0.4 * 0.2 * 10 / 3
    Y = (two_outputs() - two_outputs().mean(axis=0)) / two_outputs().std(axis=0)
    design = np.column_stack([model.embedding_ - model.embedding_.mean(axis=0), np.ones(len(X))])
    oracle = Ridge(alpha=1.0 / (2.0 * C), fit_intercept=False).fit(design, Y)
    scaled = model.coef_features_ / two_outputs().std(axis=0)[:, None]
    rounding = 1e-6 if slab is None else 0.05  # unused features vary by at most 0.1
    np.testing.assert_allclose(scaled, oracle.coef_[:, :-1], atol=rounding * np.abs(oracle.coef_).max())
    lowest, highest = model.target_range_
    scores = model.transform(X) @ model.coef_features_.T + model.intercept_
    np.testing.assert_allclose(model.predict(X), np.clip(scores, lowest, highest), rtol=rounding)


def test_label_weights_match_binary_classifiers():
    """Features are centered on the samples with at least one observed label."""
    X, Y = labels()
    known = Y.astype(float)
    known[:40, 1], known[30:50] = np.nan, np.nan
    model = ILSVMClassifier(8, C=0.5, max_iter=5).fit(X, known)
    seen = ~np.isnan(known)
    centered = model.embedding_ - model.embedding_[seen.any(axis=1)].mean(axis=0)
    for k in range(4):
        rows = seen[:, k]
        oracle = LinearSVC(C=0.5, tol=1e-10, max_iter=100_000).fit(centered[rows], Y[rows, k])
        np.testing.assert_allclose(model.coef_features_[k], oracle.coef_[0], atol=1e-2)
    np.testing.assert_array_equal(model.predict(X), model.decision_function(X) > 0)


# --- initialization


def test_explained_by_inputs_matches_quadratic_regression():
    weights = np.random.default_rng(0).integers(1, 4, 60).astype(float)
    data = data_of(two_outputs()[:60], weights)
    found = starts.explained_by_inputs(data.X, starts.contrast_targets(data))
    for j in range(X.shape[1]):
        design = np.column_stack([np.ones(60), X[:60, j], X[:60, j] ** 2]) * np.sqrt(weights)[:, None]
        target = two_outputs()[:60] * np.sqrt(weights)[:, None]
        fitted = design @ np.linalg.lstsq(design, target, rcond=None)[0] / np.sqrt(weights)[:, None]
        assert found[j] == pytest.approx(r2_score(two_outputs()[:60], fitted, sample_weight=weights), abs=1e-9)


def test_regressor_fits_square_of_input():
    rng = np.random.default_rng(1)
    Z = rng.standard_normal((600, 8))
    target = Z[:, 3] ** 2 + 0.1 * rng.standard_normal(600)
    assert ILSVMRegressor().fit(Z[:400], target[:400]).score(Z[400:], target[400:]) > 0.5


def test_label_contrasts_are_differences_of_class_means():
    X, Y = labels()
    prices = np.ones(Y.shape)
    data = Data(centre_rows(X), Signs(2 * Y - 1, prices))
    sums = data.X.combine(starts.contrast_targets(data))
    for k in range(4):
        difference = X[Y[:, k] == 1].mean(axis=0) - X[Y[:, k] == 0].mean(axis=0)
        assert np.corrcoef(sums[k], difference)[0, 1] == pytest.approx(1.0)
        np.testing.assert_allclose(sums[k] / np.linalg.norm(sums[k]), difference / np.linalg.norm(difference))


# --- the rule for C


@pytest.mark.parametrize("n_rows", [40, 8])
def test_ridge_residual_matches_leave_one_out_error(n_rows):
    x = (X[:n_rows] - X[:n_rows].mean(axis=0)) / X[:n_rows].std(axis=0)
    target = two_outputs()[:n_rows]
    errors = []
    for penalty in RIDGE_PENALTIES:
        predicted = cross_val_predict(Ridge(alpha=penalty * n_rows), x, target, cv=LeaveOneOut())
        errors.append(np.mean(np.mean((target - predicted) ** 2, axis=0) / target.var(axis=0)))
    assert ridge_residual(data_of(target)) == pytest.approx(min(errors), rel=0.2)


def test_ridge_residual_sample_weights_match_copies():
    times = np.random.default_rng(0).integers(1, 4, 60)
    weighted = ridge_residual(data_of(two_outputs()[:60], times.astype(float)))
    rows = np.repeat(np.arange(60), times)
    repeated = Data(centre_rows(X[rows]), Numbers(two_outputs()[rows], np.ones((len(rows), 2))))
    assert weighted == pytest.approx(ridge_residual(repeated), rel=1e-9)


# --- invariances


@pytest.mark.parametrize("slab", SLABS)
def test_regressor_does_not_depend_on_units(slab):
    model = ILSVMRegressor(10, slab=slab, max_iter=20)
    plain = model.fit(X, y).predict(X)
    scales = np.logspace(-3, 3, X.shape[1])
    other = model.fit(X * scales + 5.0, 100.0 * y - 7.0).predict(X * scales + 5.0)
    np.testing.assert_allclose(other, 100.0 * plain - 7.0, rtol=1e-4)


def test_regressor_predicts_within_range_of_targets():
    model = ILSVMRegressor(slab="half-normal").fit(X, y)
    far = model.predict(1e6 * np.random.default_rng(0).standard_normal((50, X.shape[1])))
    assert y.min() <= far.min() <= far.max() <= y.max()


def test_regressor_ignores_missing_targets():
    Y = two_outputs()
    Y[:100, 1], Y[250:] = np.nan, np.nan
    model = ILSVMRegressor(C=1.0).fit(X, Y)
    assert r2_score(two_outputs()[250:, 0], model.predict(X[250:])[:, 0]) > 0.8
    with pytest.raises(ValueError, match="without any observed target"):
        ILSVMRegressor().fit(X, np.column_stack([y, np.full(len(y), np.nan)]))


# --- mini-batches and memory-mapped files


def test_regressor_partial_fit_approaches_fit():
    Z, target = make_friedman1(3000, noise=0.5, random_state=1)
    model = ILSVMRegressor(random_state=0)
    for first in range(0, 2000, 500):
        model.partial_fit(Z[first : first + 500], target[first : first + 500])
    model.fit_weights(Z[:2000], target[:2000])
    whole = ILSVMRegressor(random_state=0).fit(Z[:2000], target[:2000])
    assert model.score(Z[2000:], target[2000:]) > whole.score(Z[2000:], target[2000:]) - 0.05
    assert model.n_samples_seen_ == 2000
    with pytest.raises(ValueError, match="`y` has 2 outputs, but earlier samples had 1"):
        model.partial_fit(Z[:50], np.column_stack([target, target])[:50])


def test_multilabel_partial_fit_approaches_fit():
    X, Y = labels(1500)
    model = ILSVMClassifier(random_state=0)
    for first in (0, 500):
        model.partial_fit(X[first : first + 500], Y[first : first + 500])
    model.fit_weights(X[:1000], Y[:1000])
    whole = ILSVMClassifier(random_state=0).fit(X[:1000], Y[:1000])
    right = [np.mean(one.predict(X[1000:]) == Y[1000:]) for one in (model, whole)]
    assert right[0] > right[1] - 0.03


def test_regressor_fit_of_memory_map_matches_array(tmp_path):
    np.save(tmp_path / "X.npy", X)
    mapped = np.load(tmp_path / "X.npy", mmap_mode="r")
    plain = ILSVMRegressor(8, max_iter=5).fit(X, y)
    np.testing.assert_allclose(
        ILSVMRegressor(8, max_iter=5).fit(mapped, y).predict(mapped), plain.predict(X), rtol=1e-9
    )


# --- searches, invalid input


def test_search_supports_numbers_and_labels():
    found = ILSVMRegressorCV(10, Cs=(0.01, 1.0), cv=3, max_iter=10).fit(X, y)
    assert found.C_ == 1.0
    Z, Y = labels()
    known = Y.astype(float)
    known[:20, 0], known[:5] = np.nan, np.nan
    search = ILSVMClassifierCV(6, Cs=(0.001, 1.0), cv=3, max_iter=10).fit(Z, known)
    assert search.predict(Z).shape == Y.shape
    assert search.predict_proba(Z).shape == Y.shape


@pytest.mark.parametrize(
    ("options", "label", "message"),
    [
        ({"cost": np.ones((4, 4)) - np.eye(4)}, 0, "`cost` is for classes"),
        ({"class_weight": "balanced"}, 0, "`class_weight` is for classes"),
        ({"multi_class": "crammer_singer"}, 0, "Several labels require"),
        ({"transductive": True}, 0, "Several labels require"),
        ({}, 2, "must be labels: 0, 1, or NaN where missing; got 2"),
    ],
    ids=["cost", "class_weight", "multi_class", "transductive", "other classes"],
)
def test_multilabel_fit_with_class_options_raises(options, label, message):
    X, Y = labels()
    Y[0, 0] = label
    with pytest.raises(ValueError, match=message):
        ILSVMClassifier(**options).fit(X, Y)
