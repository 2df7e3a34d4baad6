"""Estimators on every source of samples fit, predict, transform and raise as on NumPy arrays."""

from __future__ import annotations

import copy

import numpy as np
import pytest

import regbayes
from backend_tools import Backend
from dask_tools import quiet_marks
from medlda_tools import draw_documents
from regbayes import (
    IBPFactorAnalysis,
    ILSVMClassifier,
    ILSVMRegressor,
    MedLDAClassifier,
    MedLDARegressor,
    MultiTaskILSVMClassifier,
    MultiTaskILSVMRegressor,
)
from regbayes.kernels.arrays import to_host

pytestmark = quiet_marks()


def draw(n: int = 240) -> dict[str, np.ndarray]:
    """Draw samples from binary features, documents from topics, and targets of both."""
    rng = np.random.default_rng(0)
    z = (rng.random((n, 3)) < 0.4).astype(float)
    X = 2.0 * z @ rng.normal(size=(3, 6)) + 0.3 * rng.normal(size=(n, 6)) + 5.0
    counts, shares, _ = draw_documents(n, n_words=40, length=30)
    labels = (X[:, :3] > X[:, :3].mean(axis=0)).astype(float)
    labels[::7, 1] = np.nan
    return {
        "X": X,
        "classes": (z[:, 0] + 2 * z[:, 1]).astype(int) % 3,
        "labels": labels,
        "numbers": X @ rng.normal(size=(6, 3)),
        "counts": counts.toarray().astype(float),
        "topics": shares[:, :3].argmax(axis=1),
        "share": shares @ [3.0, -1.0, 0.5, 0.0],
    }


GIVEN = {"n_components": 4, "max_iter": 4, "random_state": 0}
CASES = {
    "ilsvm": (ILSVMClassifier(**GIVEN, multi_class="ovr", include_inputs=True), "X", "classes"),
    "ilsvm Crammer-Singer": (ILSVMClassifier(**GIVEN, multi_class="crammer_singer"), "X", "classes"),
    "ilsvm half-normal": (ILSVMClassifier(**GIVEN, slab="half-normal"), "X", "classes"),
    "ilsvm labels": (ILSVMClassifier(**GIVEN), "X", "labels"),
    "ilsvm regression": (ILSVMRegressor(**GIVEN), "X", "numbers"),
    "ibp": (IBPFactorAnalysis(**GIVEN, slab=None), "X", None),
    "ibp half-normal": (IBPFactorAnalysis(**GIVEN, slab="half-normal"), "X", None),
    "multitask": (MultiTaskILSVMClassifier(**GIVEN, C=0.1), "X", "labels"),
    "multitask regression": (MultiTaskILSVMRegressor(**GIVEN, C=0.1), "X", "numbers"),
    "medlda": (MedLDAClassifier(**GIVEN, inference="variational"), "counts", "topics"),
    "medlda regression": (MedLDARegressor(**GIVEN, inference="variational"), "counts", "share"),
}
METHODS = ("predict", "decision_function", "transform", "feature_probabilities", "score_samples")


@pytest.fixture(params=CASES)
def case(backend: Backend, request: pytest.FixtureRequest):
    """Return an estimator, its samples and its targets."""
    model, rows, targets = CASES[request.param]
    if rows == "counts" and backend.name == "strict":
        pytest.skip("sums by word are not in the array API: PyTorch and CuPy have them")
    data = draw()
    return model, data[rows], None if targets is None else data[targets]


def test_loaded_model_predicts_and_transforms_like_numpy(backend: Backend, case, tmp_path) -> None:
    """The same parameters give the same results on every device, and results stay on the device."""
    model, X, y = case
    there = backend.fit(model, X, y)
    if backend.name == "dask":
        here = there.to_local()
    else:
        there.save(tmp_path / "model")
        here = regbayes.load(tmp_path / "model")
    single = "MedLDA" in type(model).__name__  # word probabilities are stored in single precision
    tol = 1e-4 if single else max(1e-10, 300 * backend.tol)
    for method in METHODS:
        if not hasattr(here, method):
            continue
        expected, found = getattr(here, method)(X), getattr(there, method)(backend.place(X))
        assert isinstance(found, backend.kind)
        found = np.asarray(backend.read(found))
        if expected.dtype.kind == "f" and not single:
            np.testing.assert_allclose(found, expected, rtol=0, atol=tol * max(1.0, np.abs(expected).max()))
        else:
            assert np.mean(np.isclose(found, expected, rtol=1e-3, atol=1e-3)) > 0.99  # ties may break differently


def test_fit_objective_decreases_to_numpy_value(backend: Backend, case) -> None:
    model, X, y = case
    here, there = copy.deepcopy(model).fit(X, y), backend.fit(model, X, y)
    assert np.all(np.diff(there.trace_.objective) <= 0)
    ends = there.trace_.objective[-1], here.trace_.objective[-1]
    assert ends[0] <= ends[1] + 0.1 * abs(ends[1])
    if backend.name == "memmap":
        np.testing.assert_allclose(there.components_, here.components_, atol=1e-10)
    if y is not None:
        apart = np.abs(np.asarray(backend.read(there.predict(backend.place(X)))) - here.predict(X))
        assert apart.mean() <= 0.2 * np.nanstd(y, axis=0).max()


@pytest.mark.parametrize("slab", [None, "half-normal"])
def test_warm_start_without_labels_takes_the_steps_of_numpy(backend: Backend, slab) -> None:
    """Without a classifier the sources differ by rounding only, since no solver has a gap."""
    if backend.name == "dask":
        pytest.skip("an estimator of Dask does not start from one of NumPy")
    X, model = draw()["X"], IBPFactorAnalysis(**GIVEN, slab=slab, warm_start=True).fit(draw()["X"])
    here, there = copy.deepcopy(model).fit(X), copy.deepcopy(model).fit(backend.place(X))
    tol = max(1e-10, 100 * backend.tol)
    assert there.objective_ == pytest.approx(here.objective_, rel=tol)
    np.testing.assert_allclose(to_host(there.components_), here.components_, rtol=0, atol=10 * tol)


def test_fit_is_bitwise_identical_for_any_number_of_workers(backend: Backend, case) -> None:
    model, X, y = copy.deepcopy(case[0]), *case[1:]
    if "deterministic" in model.get_params():
        model.set_params(deterministic=True)
    first = backend.fit(model, X, y)
    if backend.name == "dask":
        from distributed import Client, LocalCluster

        quiet = {"processes": False, "dashboard_address": ":0"}
        with LocalCluster(n_workers=1, threads_per_worker=1, **quiet) as cluster, Client(cluster):
            second = backend.fit(model, X, y)
    else:
        second = backend.fit(model.set_params(n_jobs=2) if "n_jobs" in model.get_params() else model, X, y)
    for name in ("components_", "coef_features_"):
        if hasattr(first, name):
            np.testing.assert_array_equal(to_host(getattr(first, name)), to_host(getattr(second, name)))


def test_weights_and_unlabeled_samples_match_numpy(backend: Backend) -> None:
    data, rng = draw(), np.random.default_rng(1)
    weights = rng.integers(0, 3, len(data["X"])).astype(float)
    y = np.where(np.arange(len(weights)) % 5 == 0, -1, data["classes"])
    model = ILSVMClassifier(**GIVEN, unlabeled=-1)
    here = copy.deepcopy(model).fit(data["X"], y, sample_weight=weights)
    there = backend.fit(model, data["X"], y, sample_weight=weights)
    assert there.objective_ <= here.objective_ + 0.1 * abs(here.objective_)
    np.testing.assert_allclose(to_host(there.mean_), here.mean_, rtol=max(1e-12, 10 * backend.tol))


def test_partial_fit_continues_a_fit(backend: Backend) -> None:
    """Batches of file and Dask fits are learned in memory; batches on a device raise an error."""
    data = draw()
    model = backend.fit(ILSVMClassifier(**GIVEN), data["X"], data["classes"])
    if backend.name not in ("memmap", "dask"):
        with pytest.raises(TypeError, match="partial_fit works on the host"):
            model.partial_fit(backend.place(data["X"]), backend.place.make(data["classes"]))
        return
    local = model.to_local() if backend.name == "dask" else model
    before = local.components_.copy()
    local.partial_fit(data["X"][:60], data["classes"][:60])
    assert np.abs(local.components_ - before).max() > 0


@pytest.mark.parametrize(
    ("model", "y"),
    [
        (ILSVMClassifier(loss="hinge"), "classes"),
        (ILSVMClassifier(margins="posterior"), "classes"),
        (ILSVMClassifier(transductive=True, unlabeled=-1), "classes"),
        (MultiTaskILSVMRegressor(loss="epsilon_insensitive"), "numbers"),
    ],
    ids=["loss", "margins", "transductive", "loss of numbers"],
)
def test_options_that_need_local_samples_raise(backend: Backend, model, y) -> None:
    if backend.name == "memmap":
        pytest.skip("a file is local memory")
    data = draw()
    with pytest.raises(ValueError, match=r"loss|margins|transductive"):
        backend.fit(model, data["X"], data[y])
