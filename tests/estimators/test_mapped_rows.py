"""Test fits of memory-mapped files, whose blocks are converted on access."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest

from regbayes import IBPFactorAnalysis, ILSVMClassifier, MultiTaskILSVMRegressor
from regbayes.engine import executor
from regbayes.engine.mapped import StandardRows
from regbayes.estimators import _features
from regbayes.margins import head
from regbayes.models.ilsvm.starts import POLICY

N, D, COPIES = 20_000, 6, 20
WEIGHTS = np.random.default_rng(3).integers(1, 4, size=N).astype(float)


def draw(dtype, folder, n=N):
    """Return a memory map with repeated columns, and labels of three classes."""
    rng = np.random.default_rng(0)
    loadings = 2.0 * rng.normal(size=(3, D))
    rows = (rng.random((n, 3)) < 0.4) @ loadings + 0.5 * rng.normal(size=(n, D)) + 3.0
    labels = np.argmax(rows[:, :3] + 0.5 * rng.normal(size=(n, 3)), axis=1)
    whole = np.tile(rows, COPIES)
    np.save(folder / "rows.npy", (np.round(20 * whole) if np.dtype(dtype).kind == "i" else whole).astype(dtype))
    return np.load(folder / "rows.npy", mmap_mode="r"), labels


def make(kind, **options):
    given = {"max_iter": 2, "tol": 0.1, "random_state": 0} | options
    if kind == "features":
        return IBPFactorAnalysis(4, slab=None, **given)
    return ILSVMClassifier(4, include_inputs=kind == "inputs", multi_class="ovr", **given)


@pytest.fixture
def few_copied(monkeypatch):
    """Make blocks and subsamples small, so that peaks measure copies of the data."""
    monkeypatch.setattr(executor, "BLOCK_ROWS", 512)
    monkeypatch.setattr(_features.LatentFeatures, "_policy", replace(POLICY, sample_rows=400))
    monkeypatch.setattr(head, "HEAD_POLICY", head.HeadPolicy(max_ascent_scores=1000, sample_per_weight=10))


def peak_of(call):
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        ("classes", np.float64),
        ("classes", np.float32),
        ("inputs", np.float64),
        ("inputs", np.float32),
        ("features", np.int16),
    ],
)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_fit_and_predict_need_a_third_of_the_size_of_X(kind, dtype, tmp_path, few_copied):
    X, y = draw(dtype, tmp_path, 2 * N if kind == "inputs" else N)  # the second derivatives for input weights are large
    limit = 8 * X.size / 3  # bytes: a third of X in double precision
    estimator = make(kind)
    estimator.fit(X, y)  # import and compile before measuring
    peaks = {"fit": peak_of(lambda: estimator.fit(X, y)), "transform": peak_of(lambda: estimator.transform(X))}
    if kind == "features":
        peaks["score_samples"] = peak_of(lambda: estimator.score_samples(X))
    else:
        peaks["predict"] = peak_of(lambda: estimator.predict(X))
    if kind == "classes" and dtype == np.float32:
        again = make(kind, n_init=2)  # restarts subsample half of an in-memory X
        peaks["starts"] = peak_of(lambda: again.fit(X, y))
        peaks["weights"] = peak_of(lambda: estimator.fit(X, y, sample_weight=WEIGHTS))
    assert all(peak < limit for peak in peaks.values()), {name: peak / limit for name, peak in peaks.items()}


@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["once", "weighted"])
@pytest.mark.parametrize("kind", ["classes", "inputs", "features"])
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int16])
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_fit_of_memory_map_matches_double_precision_array(kind, dtype, weights, tmp_path):
    X, y = draw(dtype, tmp_path)
    X = X[:, :D]
    here = make(kind).fit(np.array(X, dtype=np.float64), y, sample_weight=weights)
    there = make(kind).fit(X, y, sample_weight=weights)
    for name in ("components_", "mean_", "offset_", "embedding_", "coef_inputs_", "intercept_"):
        if hasattr(here, name):
            expected = getattr(here, name)
            np.testing.assert_allclose(getattr(there, name), expected, rtol=1e-7, atol=1e-7 * np.abs(expected).max())
    in_double = np.array(X, dtype=np.float64)
    np.testing.assert_allclose(there.transform(X), here.transform(in_double), rtol=1e-7, atol=1e-9)
    if kind != "features":
        np.testing.assert_allclose(there.decision_function(X), here.decision_function(in_double), atol=1e-6)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_fit_of_memory_map_with_unlabeled_matches_array(tmp_path):
    X, y = draw(np.float32, tmp_path)
    X, y = X[:, :D], np.where(np.arange(N) % 3 == 0, -1, y)
    here, there = (make("inputs", unlabeled=-1).fit(rows, y) for rows in (np.array(X, dtype=np.float64), X))
    np.testing.assert_allclose(there.coef_inputs_, here.coef_inputs_, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("estimator", [ILSVMClassifier(2), MultiTaskILSVMRegressor(2)], ids=["ilsvm", "tasks"])
def test_fit_of_memory_map_with_nan_raises(estimator, tmp_path):
    X, y = draw(np.float32, tmp_path)
    X = np.array(X[:100])
    X[7, 3] = np.nan
    np.save(tmp_path / "bad.npy", X)
    with pytest.raises(ValueError, match="NaN"):
        estimator.fit(np.load(tmp_path / "bad.npy", mmap_mode="r"), y[:100])


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_multitask_fit_of_integer_memory_map_matches_array(tmp_path):
    X, _ = draw(np.int16, tmp_path)
    X = X[:3000, :D]
    Y = X[:, :2] + np.random.default_rng(1).normal(size=(3000, 2))
    here, there = (
        MultiTaskILSVMRegressor(2, max_iter=2, random_state=0).fit(rows, Y) for rows in (np.array(X, dtype=float), X)
    )
    np.testing.assert_allclose(there.coef_features_, here.coef_features_, rtol=1e-6, atol=1e-8)


def test_standard_rows_match_standardized_array():
    rng = np.random.default_rng(2)
    X, mean, scale = rng.normal(size=(5000, 3)).astype(np.float32), rng.normal(size=3), rng.uniform(1, 2, size=3)
    whole, lazy = (X.astype(float) - mean) / scale, StandardRows(X, mean, scale)
    some = np.array([4, 2, 4999])
    weights, coefficients = rng.normal(size=(3, 2)), rng.normal(size=(2, 5000))
    np.testing.assert_array_equal(np.asarray(lazy[some][1:]), whole[some][1:])
    np.testing.assert_allclose(lazy @ weights, whole @ weights, atol=1e-12)
    np.testing.assert_allclose(coefficients @ lazy, coefficients @ whole, atol=1e-9)
