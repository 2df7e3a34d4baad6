"""iLSVM and factor analysis on arrays of other libraries match NumPy up to rounding."""

from __future__ import annotations

import weakref
from dataclasses import replace

import numpy as np
import pytest
import sklearn
from sklearn.utils.estimator_checks import check_array_api_input

import regbayes
from array_namespaces import Place, list_places
from regbayes import (
    IBPFactorAnalysis,
    ILSVMClassifier,
    ILSVMClassifierCV,
    ILSVMRegressor,
    MedLDAClassifier,
    MultiTaskILSVMClassifier,
    MultiTaskILSVMClassifierCV,
    MultiTaskILSVMRegressor,
)
from regbayes.engine.source import LocalBlocks
from regbayes.estimators import _features
from regbayes.joint import descent
from regbayes.joint.problem import JointProblem, RowBlock, SampledHead
from regbayes.kernels.arrays import to_host
from regbayes.margins import head as margins_head
from regbayes.margins.head import Tolerance
from regbayes.models.ilsvm import starts
from regbayes.models.ilsvm.model import (
    UNLABELED,
    Data,
    ILSVMProblem,
    Rows,
    Settings,
    centre_rows,
)
from regbayes.plots import FeatureWeightsDisplay
from regbayes.report import write_report

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

PLACES = list_places()
ELSEWHERE = [place for place in PLACES if place.name != "numpy"]
TIGHT = Tolerance(gap=1e-12, max_epochs=200.0)
WHAT_FITS = r"About \d+ of these rows fit.*rows in blocks: regbayes.dask"


@pytest.fixture(params=ELSEWHERE, ids=lambda place: place.name)
def place(request: pytest.FixtureRequest) -> Place:
    return request.param


def make_data(n: int = 300, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    z = rng.random((n, 3)) < 0.4
    X = 2.0 * z @ rng.normal(size=(3, 6)) + 0.3 * rng.normal(size=(n, 6)) + 5.0
    return X, (z[:, 0] + 2 * z[:, 1]) % 3


def make_settings(**changed) -> Settings:
    settings = Settings(
        n_components=5, alpha=2.0, C=1.0, squared=True, one_vs_rest=False, temperature=1.2, generative_weight=0.3,
        noise_variance=1.0, prior_variance=3.0, estimate_noise=False, estimate_prior=False, fit_intercept=True,
        input_scale=0.0, n_sweeps=1, max_iter=30, tol=1e-6, n_threads=1,
    )  # fmt: skip
    return replace(settings, **changed)


@pytest.fixture(autouse=True)
def one_solver(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the solver of device arrays for NumPy arrays."""
    monkeypatch.setattr(margins_head, "HEAD_POLICY", margins_head.HeadPolicy(max_ascent_scores=0))


def make_problems(place: Place, settings: Settings, weighted: bool) -> tuple[ILSVMProblem, ILSVMProblem, object]:
    """Return the problem on NumPy arrays and on the device, with parameters to compare them."""
    X, labels = make_data()
    weights = np.random.default_rng(1).random(len(X)) + 0.5 if weighted else None
    if weighted:
        labels = np.where(np.arange(len(X)) % 7 == 0, UNLABELED, labels)
    prices = np.ones(len(X)) if weights is None else weights
    cost = 1.0 - np.eye(3)
    here, there = (Data.of_classes(centre_rows(x, weights=weights), labels, prices, cost) for x in (X, place(X)))
    params = starts.start(here, settings)
    return ILSVMProblem(here, settings), ILSVMProblem(there, settings), params


def assert_close(found, expected, tol: float) -> None:
    found, expected = np.asarray(to_host(found)), np.asarray(expected)
    assert np.abs(found - expected).max(initial=0.0) <= tol * max(1.0, np.abs(expected).max(initial=0.0))


@pytest.mark.parametrize("one_vs_rest", [False, True])
def test_descent_with_subsampled_curvature_never_increases(
    place: Place, one_vs_rest: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(margins_head, "HEAD_POLICY", margins_head.HeadPolicy(sample_per_weight=3))
    _, problem, params = make_problems(place, make_settings(one_vs_rest=one_vs_rest), weighted=False)
    search = descent.start(problem.joint, params)
    first = search.at.objective
    for _ in range(8):
        after = descent.step(problem.joint, search).state
        assert after.at.objective <= search.at.objective
        search = after
    assert search.at.objective < first
    assert any("sample" in key for key in problem.head._kept)  # the curvature came from a subsample


def test_rows_on_a_device_work_in_a_remote_problem(place: Place) -> None:
    """The sums of one worker with a device and one without match those of a single process."""
    settings = make_settings(one_vs_rest=True)
    local, _, params = make_problems(place, settings, weighted=False)
    first, second = (ILSVMProblem(local.data.take(np.arange(*ends)), settings) for ends in ((0, 150), (150, 300)))
    X = centre_rows(place(make_data()[0][:150]), local.data.X.mean)
    there = ILSVMProblem(replace(first.data, X=X), settings)
    held = [RowBlock(p.data.X.blocks, (150,), p.head.blocks((150,), p.data.X.X)) for p in (there, second)]
    sample = RowBlock(local.data.X.blocks, (300,))
    head = SampledHead(local.head, sample, 1.0)
    remote = JointProblem(local.joint.model, LocalBlocks(held), head, local.joint.options)
    tolerance = TIGHT if place.tol < 1e-8 else Tolerance(1e-6, 50.0)
    tol = place.tol if place.tol > 1e-8 else 1e-9
    expected, inferred = local.joint.evaluate(params, None, tolerance)
    found, shared = remote.evaluate(params, None, tolerance)
    assert found.objective == pytest.approx(expected.objective, rel=tol)
    assert_close(remote.gradient(found, shared), local.joint.gradient(expected, inferred), 1000 * tol)


# --- estimators


@pytest.fixture
def in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the solver and the warm-up of device arrays for NumPy arrays, so that the two fits match."""
    monkeypatch.setattr(margins_head, "HEAD_POLICY", margins_head.HeadPolicy(max_ascent_scores=0))
    monkeypatch.setattr(_features.LatentFeatures, "_policy", replace(starts.POLICY, sample_rows=100))


@pytest.mark.usefixtures("dispatch")
def test_class_names_are_predicted_in_numpy(place: Place) -> None:
    """Other libraries do not support strings."""
    X, y = make_data()
    named = ILSVMClassifier(n_components=5, max_iter=2, tol=1.0).fit(place(X), np.array(["a", "b", "c"])[y])
    assert isinstance(named.predict(place(X)), np.ndarray)
    assert set(named.predict(place(X))) <= {"a", "b", "c"}


@pytest.mark.usefixtures("dispatch", "in_blocks")
def test_warm_start_is_cooled_on_the_device_of_its_rows(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = make_data(150)
    model = ILSVMClassifier(n_components=3, max_iter=2, tol=1e-1, temperature=0.4, warm_start=True, random_state=0)
    model.fit(place(X), place.make(y))

    def count(rows: Rows, chosen: object) -> Rows:
        taken.append(len(rows) if chosen is None else len(chosen))
        return take(rows, chosen)

    taken, take = [], Rows.take
    monkeypatch.setattr(Rows, "take", count)
    monkeypatch.setattr(_features.LatentFeatures, "_policy", replace(starts.POLICY, sample_rows=50))
    model.set_params(temperature=0.1).fit(place(X), place.make(y))
    assert max(taken, default=0) <= 50
    assert np.isfinite(model.objective_)


@pytest.mark.usefixtures("dispatch", "in_blocks")
@pytest.mark.parametrize("slab", [None, "half-normal"])
def test_fit_copies_few_rows_to_the_host(slab: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    n, moved, cpu = 1200, [], torch.Tensor.cpu
    monkeypatch.setattr(torch.Tensor, "cpu", lambda array: moved.append(array.numel()) or cpu(array))
    X, y = make_data(n)
    model = ILSVMClassifier(n_components=4, slab=slab, max_iter=2, tol=1e-1, random_state=0)
    model.fit(torch.asarray(X), torch.asarray(y))
    # Labels and predictions of all rows are copied, but inputs only of the rows in the warm-up.
    assert 100 * X.shape[1] <= max(moved) <= n


@pytest.mark.usefixtures("dispatch")
def test_model_saved_on_the_host_loads_on_any_device(place: Place, tmp_path) -> None:
    X, y = make_data()
    model = ILSVMClassifier(n_components=5, max_iter=3, tol=1e-1).fit(place(X), place.make(y))
    model.save(tmp_path / "model")
    loaded = regbayes.load(tmp_path / "model")
    assert isinstance(loaded.components_, np.ndarray)
    assert isinstance(loaded.embedding_, np.ndarray)
    assert_close(
        loaded.decision_function(X), to_host(model.decision_function(place(X))), 1e-10 if place.tol < 1e-8 else 1e-3
    )
    assert isinstance(loaded.predict(place(X)), type(place(X)))  # predictions are on the device of their input
    again = model.fit(place(X), place.make(y))
    assert again.objective_ == model.objective_


def test_model_fitted_on_a_device_works_on_the_host(place: Place, tmp_path) -> None:
    X, y = make_data(120)
    with pytest.MonkeyPatch.context() as patch, sklearn.config_context():
        patch.setenv("SCIPY_ARRAY_API", "1")  # required by scikit-learn's array API dispatch
        sklearn.set_config(array_api_dispatch=True)
        model = ILSVMClassifier(n_components=3, max_iter=2, tol=1e-1, random_state=0).fit(place(X), place.make(y))
        several = MultiTaskILSVMRegressor(3, max_iter=2).fit(place(X), place(X[:, :2]))
        answers = to_host(model.predict(place(X)))
    found = model.predict(X)
    assert isinstance(found, np.ndarray)
    assert np.mean(found == answers) > 0.98
    assert isinstance(several.predict(X), np.ndarray)
    for one, targets in ((model, y), (several, X[:, :2])):
        FeatureWeightsDisplay.from_estimator(one)
        assert write_report(one, X, targets, tmp_path / "page.html").exists()
    assert isinstance(model.components_, type(place(X)))
    assert not isinstance(model.components_, np.ndarray)  # plots do not move the model, but fitting does
    model.fit_weights(X, y)
    model.partial_fit(X, y)
    assert isinstance(model.components_, np.ndarray)
    assert isinstance(model.classes_, np.ndarray)


@pytest.mark.usefixtures("dispatch")
@pytest.mark.parametrize(
    ("options", "named"),
    [({"loss": "hinge"}, "loss"), ({"margins": "posterior"}, "margins"), ({"transductive": True}, "transductive")],
)
def test_options_that_need_the_host_raise(place: Place, options: dict, named: str) -> None:
    X, y = make_data()
    model = ILSVMClassifier(unlabeled=-1, **options)
    with pytest.raises(ValueError, match=f"{named}=.*host"):
        model.fit(place(X), place.make(y))
    assert not hasattr(model, "_state")
    assert not hasattr(model, "classes_")


@pytest.mark.parametrize("library", ["array_api_strict", "torch"])
@pytest.mark.parametrize(
    "kind", [ILSVMClassifier, ILSVMRegressor, IBPFactorAnalysis, MultiTaskILSVMClassifier, MultiTaskILSVMRegressor]
)
def test_check_array_api_input_passes(kind: type, library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip(library)
    monkeypatch.setenv("SCIPY_ARRAY_API", "1")
    options = {"device_name": "cpu", "dtype_name": "float64"} if library == "torch" else {}
    check_array_api_input(kind.__name__, kind(n_components=3, max_iter=3), library, **options)


@pytest.mark.usefixtures("dispatch")
def test_mixed_arrays_raise(place: Place) -> None:
    X, y = make_data()
    with pytest.raises(TypeError, match="y is a numpy array"):
        ILSVMClassifier().fit(place(X), y)
    with pytest.raises(TypeError, match="sample_weight is a numpy array"):
        ILSVMClassifier().fit(place(X), place.make(y), sample_weight=np.ones(len(X)))
    with pytest.raises(TypeError, match="partial_fit works on the host"):
        ILSVMClassifier().partial_fit(place(X), place.make(y), classes=[0, 1, 2])
    with pytest.raises(ValueError, match="requires y"):
        ILSVMClassifier().fit(place(X), None)
    for model in (ILSVMClassifier(), ILSVMClassifierCV(), MultiTaskILSVMClassifier(), MultiTaskILSVMClassifierCV()):
        with pytest.raises(TypeError, match=r"X is on the host and y is a (?!numpy)"):
            model.fit(X, place.make(y))
    with pytest.raises(TypeError, match=r"X is on the host and sample_weight is a (?!numpy)"):
        IBPFactorAnalysis().fit(X, sample_weight=place(np.ones(len(X))))


def test_torch_arrays_on_cpu_are_array_likes_without_dispatch() -> None:
    torch = pytest.importorskip("torch")
    X, y = make_data(60)
    model = ILSVMClassifier(n_components=3, max_iter=1, tol=1.0, random_state=0)
    here = sklearn.clone(model).fit(X, y, sample_weight=np.full(60, 2.0))
    there = sklearn.clone(model).fit(X, torch.asarray(y), sample_weight=torch.full((60,), 2.0))
    assert np.array_equal(here.components_, there.components_)
    with pytest.raises(TypeError, match="X is on the host and y is a torch array on meta"):
        model.fit(X, torch.empty(60, device="meta"))


@pytest.mark.usefixtures("dispatch")
@pytest.mark.parametrize(
    "model",
    [
        ILSVMClassifier(3, max_iter=1, tol=1.0),
        IBPFactorAnalysis(3, slab=None, max_iter=1),
        MultiTaskILSVMClassifier(3, max_iter=1),
        MedLDAClassifier(3, inference="variational", max_iter=1),
    ],
    ids=lambda model: type(model).__name__,
)
def test_sparse_and_complex_torch_tensors_raise(model) -> None:
    """Sparse and complex tensors raise; tensors with a graph are detached."""
    torch = pytest.importorskip("torch")
    X, y = make_data(60)
    X, y = torch.asarray(np.abs(np.rint(X))), torch.asarray(y)
    with pytest.raises(ValueError, match="Complex data not supported"):
        model.fit(X.to(torch.complex128), y)
    with pytest.raises((TypeError, ValueError), match=r"sparse.*takes dense|dense or CSR"):
        model.fit(X.to_sparse(), y)
    answer = model.fit(X.clone().requires_grad_(), y).transform(X.clone().requires_grad_())
    assert not answer.requires_grad
    assert torch.equal(answer, model.transform(X))


@pytest.mark.usefixtures("dispatch")
def test_half_precision_and_devices_without_dispatch_raise(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    X, y = make_data()
    with pytest.raises(TypeError, match="float16: give it as float32 or float64"):
        ILSVMClassifier().fit(torch.asarray(X, dtype=torch.float16), torch.asarray(y))
    with pytest.raises(TypeError, match="ILSVMClassifierCV works on the host"):
        regbayes.ILSVMClassifierCV().fit(torch.asarray(X), torch.asarray(y))
    somewhere = torch.empty((4, 3), device="meta")  # NumPy cannot read this device
    with sklearn.config_context(array_api_dispatch=False), pytest.raises(TypeError, match="array_api_dispatch is off"):
        ILSVMClassifier().fit(somewhere, [0, 1, 0, 1])


@pytest.mark.usefixtures("dispatch")
@pytest.mark.parametrize(
    ("model", "failing"),
    [
        (ILSVMClassifier(5, max_iter=2, tol=1.0), "regbayes.estimators._arrays.validate_data"),
        (ILSVMClassifier(5, max_iter=2, tol=1.0), "regbayes.models.ilsvm.model.Rows.project"),
        (MultiTaskILSVMClassifier(5, max_iter=2), "regbayes.estimators._task_bases.sum_squares"),
    ],
)
def test_out_of_memory_in_any_step_names_what_fits(model, failing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Covers reading, standardizing and learning; memory is released."""
    torch = pytest.importorskip("torch")
    X, y = make_data()
    held = []

    def fail(*_: object, **__: object) -> None:
        array = torch.ones(3)
        held.append(weakref.ref(array))
        raise RuntimeError("CUDA error: out of memory")

    monkeypatch.setattr("regbayes.estimators._arrays.free_bytes", lambda _: 10_000)
    before = dict(vars(model))
    monkeypatch.setattr(failing, fail)
    with pytest.raises(MemoryError, match=WHAT_FITS) as raised:
        model.fit(torch.asarray(X), torch.asarray(y))
    assert vars(model) == before
    assert isinstance(raised.value.__cause__, RuntimeError)
    assert [ref() for ref in held] == [None] * len(held)
