"""Test unusual and invalid input of the multi-task estimators."""

from __future__ import annotations

import tracemalloc
from functools import partial

import numpy as np
import pytest
from scipy.sparse import csr_matrix
from sklearn.base import clone

from multitask_tools import (
    classifier,
    data_for,
    every_estimator,
    labels,
    regressor,
)
from reference_tools import fits_its_rows
from regbayes import MultiTaskILSVMClassifier, MultiTaskILSVMRegressor
from regbayes.estimators import _task_bases
from regbayes.estimators._task_bases import standardized

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


@pytest.mark.parametrize("make", [classifier, regressor])
def test_fit_does_not_depend_on_array_type(make):
    X, Y = data_for(make)
    X = X.astype(np.float32).astype(np.float64)
    plain = make().fit(X, Y).predict(X)
    read_only = X.copy()
    read_only.flags.writeable = False
    for awkward in (
        X.astype(np.float32),
        np.asfortranarray(X),
        read_only,
        X.tolist(),
        np.hstack([X, X])[:, : X.shape[1]],
    ):
        np.testing.assert_allclose(make().fit(awkward, np.asfortranarray(Y)).predict(X), plain, rtol=1e-6)


@pytest.mark.parametrize("make", [classifier, regressor])
@pytest.mark.parametrize("unit", [1e-150, 1e-8, 1e8, 1e150])
def test_fit_does_not_depend_on_units(make, unit):
    X, Y = data_for(make)
    np.testing.assert_allclose(
        make(max_iter=5).fit(unit * X, Y).transform(unit * X), make(max_iter=5).fit(X, Y).transform(X), atol=1e-5
    )


def test_values_too_large_to_square_raise():
    X, Y = labels()
    with pytest.raises(ValueError, match="too large to square"):
        classifier(scale_inputs=False).fit(1e200 * X, Y)


@pytest.mark.parametrize("make", [classifier, regressor])
def test_constant_columns_and_duplicate_samples_are_supported(make):
    X, Y = data_for(make)
    X = np.column_stack([X, np.full(len(X), 0.1), np.zeros(len(X)), 1e9 * (1 + 1e-16 * np.arange(len(X)))])
    X[1], Y[1] = X[0], Y[0]
    fitted = make(20).fit(X, Y)
    assert np.all(np.isfinite(fitted.transform(X)))
    assert fitted.scale_[-3:-1].tolist() == [1.0, 1.0]
    assert fits_its_rows(fitted.predict(X), Y)
    with pytest.raises(ValueError, match="every column of X is constant"):
        make().fit(np.ones((len(X), 2)), Y)


@every_estimator
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_nonfinite_X_raises(make, bad):
    X, Y = data_for(make)
    broken = X.copy()
    broken[3, 2] = bad
    with pytest.raises(ValueError, match=r"Input X contains (NaN|infinity)"):
        make().fit(broken, Y)
    with pytest.raises(ValueError, match=r"Input X contains (NaN|infinity)"):
        make().fit(X, Y).predict(broken)


@every_estimator
def test_fit_with_invalid_y_raises(make):
    X, Y = data_for(make)
    with pytest.raises(ValueError, match="Input y contains infinity"):
        make().fit(X, np.where(np.isclose(Y, Y[0, 0]), np.inf, Y))
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        make().fit(X, Y[:-1])
    with pytest.raises(ValueError, match="y is None"):
        make().fit(X, None)


@every_estimator
def test_sparse_X_matches_dense_X(make):
    X, Y = data_for(make)
    sparse = csr_matrix(X)
    fitted = make().fit(sparse, Y)
    np.testing.assert_array_equal(fitted.predict(sparse), make().fit(X, Y).predict(X))
    sparse.indices[3] = -1
    with pytest.raises(ValueError, match="not a valid sparse matrix"):
        fitted.predict(sparse)


@pytest.mark.parametrize("layout", ["C", "F"])
def test_standardized_is_accurate_far_from_zero(layout):
    rng = np.random.default_rng(0)
    X = np.array(1e7 + rng.standard_normal((5000, 3)) * [1.0, 100.0, 0.01], order=layout)
    order = rng.permutation(len(X))
    centred, mean, scale = standardized(X, True, order)
    precise = X.astype(np.longdouble)
    np.testing.assert_allclose(mean, precise.mean(axis=0).astype(float), rtol=1e-14)
    np.testing.assert_allclose(scale, precise.std(axis=0).astype(float), rtol=1e-6)
    np.testing.assert_array_equal(centred, ((X - mean) / scale)[order])
    np.testing.assert_array_equal(standardized(X, True)[0][order], centred)
    assert centred.flags.c_contiguous


@pytest.fixture(params=[np.float64, np.float32])
def mapped(request, tmp_path):
    """Return a memory map, partly missing targets, and the task of each sample."""
    rng = np.random.default_rng(3)
    n, d = 12_000, 40
    X = (rng.random((n, 3)) < 0.4) @ rng.normal(size=(3, d)) + rng.normal(size=(n, d)) + np.linspace(-9.0, 9.0, d)
    Y = X[:, :6] + rng.normal(size=(n, 6))
    Y[rng.random(Y.shape) < 0.1] = np.nan
    Y[-50:] = np.nan  # samples without any target
    np.save(tmp_path / "rows.npy", X.astype(request.param))
    return np.load(tmp_path / "rows.npy", mmap_mode="r"), Y, rng.integers(0, 3, n)


@pytest.mark.parametrize("layout", ["matrix", "ragged", "weighted"])
@pytest.mark.parametrize("inputs", [False, True])
def test_fit_of_memory_map_matches_array(mapped, layout, inputs):
    X, Y, task = mapped
    model = MultiTaskILSVMRegressor(3, include_inputs=inputs, max_iter=3, random_state=0)
    y, given = (Y[:, 0], {"task": task}) if layout == "ragged" else (Y, {})
    asked = given if layout == "ragged" else {}
    given = given | ({"sample_weight": 1.0 + task} if layout == "weighted" else {})
    here, there = (clone(model).fit(rows, y, **given) for rows in (np.array(X, dtype=np.float64), X))
    np.testing.assert_allclose(there.coef_features_, here.coef_features_, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(there.mean_, here.mean_, rtol=1e-12)
    expected = here.predict(np.array(X, dtype=np.float64), **asked)
    np.testing.assert_allclose(there.predict(X, **asked), expected, rtol=1e-7, atol=1e-8)
    np.testing.assert_allclose(there.transform(X), here.transform(np.array(X)), rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("inputs", [False, True])
def test_fit_of_memory_map_does_not_load_X(mapped, inputs):
    X, Y, _ = mapped
    shape, size = (5 * len(X), 3 * X.shape[1]), 8 * 15 * X.size
    large, targets = np.lib.format.open_memmap(f"{X.filename}.large", "w+", X.dtype, shape), np.tile(Y[:, :2], (5, 1))
    for first in range(0, len(large), len(X)):
        large[first : first + len(X)] = np.tile(X, 3)
    model = MultiTaskILSVMRegressor(3, include_inputs=inputs, max_iter=1, tol=0.1, random_state=0)
    model.fit(large, targets)  # import and compile before measuring
    for look in (partial(model.fit, y=targets), model.predict, model.transform):
        tracemalloc.start()
        look(large)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 0.8 * size, f"{peak / size:.2f} of the rows"


def targets_of(kind, n=9000, seed=5):
    rng = np.random.default_rng(seed)
    X = (rng.random((n, 3)) < 0.4) @ rng.normal(size=(3, 12)) + rng.normal(size=(n, 12))
    Y = X[:, :8] + rng.normal(size=(n, 8))
    if kind != "numbers":
        Y = np.digitize(Y, [0.0] if kind == "labels" else [-0.5, 0.5]).astype(float)
    Y[rng.random(Y.shape) < 0.2] = np.nan
    Y[:20] = np.nan
    return X, Y, 1.0 + rng.integers(0, 3, n)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("numbers", {}),
        ("numbers", {"loss": "epsilon_insensitive", "max_iter": 2}),
        ("labels", {"class_weight": "balanced", "task_sharing": 1.0}),
        ("labels", {"class_weight": {0.0: 0.0, 1.0: 2.0}}),
        ("three", {"cost": [[0, 1, 3], [1, 0, 1], [2, 1, 0]]}),
        ("three", {"class_weight": {1.0: 3.0}}),
    ],
)
@pytest.mark.parametrize("weighted", [False, True])
def test_matrix_and_list_of_targets_give_same_fit(monkeypatch, kind, options, weighted):
    X, Y, counts = targets_of(kind)
    kind_of = MultiTaskILSVMRegressor if kind == "numbers" else MultiTaskILSVMClassifier
    model = kind_of(**{"n_components": 3, "max_iter": 4, "random_state": 0} | options)
    fitted = {}
    for many in (10**9, 1000):
        monkeypatch.setattr(_task_bases, "MANY", many)
        fitted[many] = clone(model).fit(X, Y, sample_weight=counts if weighted else None)
    one, other = fitted.values()
    np.testing.assert_allclose(other.coef_features_, one.coef_features_, rtol=1e-9, atol=1e-12)
    np.testing.assert_array_equal(other.predict(X), one.predict(X))
    np.testing.assert_array_equal(other._outputs.groups, one._outputs.groups)


@pytest.mark.parametrize(("kind", "most"), [("labels", 16), ("numbers", 40)])
def test_fit_needs_few_bytes_per_target(kind, most):
    X, Y, _ = targets_of(kind, n=30_000)
    X, Y = X[:, :4].copy(), np.tile(Y, 4)
    if kind == "labels":
        Y = np.where(np.isnan(Y), -1, Y).astype(np.int8)
    kind_of = MultiTaskILSVMRegressor if kind == "numbers" else partial(MultiTaskILSVMClassifier, unlabeled=-1)
    model = kind_of(n_components=2, max_iter=1, tol=0.1, random_state=0)
    model.fit(X, Y)  # import and compile before measuring
    tracemalloc.start()
    model.fit(X, Y)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak / Y.size < most, f"{peak / Y.size:.1f} bytes"  # a list of targets needs 32 bytes each, 64 at its peak
