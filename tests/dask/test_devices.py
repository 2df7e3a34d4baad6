"""Blocks of PyTorch's arrays on the workers of a cluster: they stay where they lie, and the fit is that of one process.

The device is the processor: what is tested is that nothing but sums and samples is read to NumPy.
"""

from __future__ import annotations

from functools import partial

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client, LocalCluster
from sklearn.base import clone

from dask_tools import count_bytes, cut, fit_here, quiet_marks
from regbayes.dask import (
    IBPFactorAnalysis,
    ILSVMClassifier,
    MedLDAClassifier,
    MedLDARegressor,
    MultiTaskILSVMClassifier,
    MultiTaskILSVMRegressor,
)
from regbayes.dask.blocks import _visit_block
from regbayes.dask.rows import READ_ROWS
from regbayes.dask.tasks import judge
from regbayes.joint.problem import RowBlock
from regbayes.kernels.arrays import to_host
from regbayes.margins.targets import observe_classes
from regbayes.models.ilsvm.model import BinaryFeatures
from regbayes.models.ilsvm.slab import SlabParams
from regbayes.models.medlda.meanfield import LabelFreeTopics
from regbayes.models.mt_ilsvm.device import DeviceTaskModel
from regbayes.models.mt_ilsvm.fit import prepare, start_latent
from regbayes.models.mt_ilsvm.model import Settings

torch = pytest.importorskip("torch")
pytest.importorskip("array_api_compat")

SIZES = (700, 1, 0, 1300, 1000)
N, D = sum(SIZES), 12

pytestmark = quiet_marks()


def draw():
    rng = np.random.default_rng(0)
    X = (rng.random((N, 4)) < 0.4) @ (2.0 * rng.normal(size=(4, D))) + 0.5 * rng.normal(size=(N, D))
    return X, np.argmax(X[:, :3] + 0.5 * rng.normal(size=(N, 3)), axis=1)


def there(array, dtype=None):
    return torch.asarray(np.ascontiguousarray(array), dtype=dtype)


def cut_there(array, dtype=None, others=(), sizes=SIZES):
    """The blocks of an array as tensors, which are made on the workers; of some something else is made."""

    def make(block, block_info=None):
        place = block_info[0]["chunk-location"][0]
        return dict(others).get(place, lambda tensor: tensor)(there(block, dtype))

    return cut(array, sizes).map_blocks(make, dtype=array.dtype, meta=array[:0])


def make(kind, **options):
    given = {"max_iter": 4, "tol": 1e-9, "random_state": 0} | options
    if kind == "features":
        return IBPFactorAnalysis(5, slab=None, **given)
    return ILSVMClassifier(5, multi_class=kind, **given)


def state_of(model):
    names = ("components_", "coef_features_", "intercept_", "coef_inputs_", "offset_")
    return np.concatenate([np.ravel(getattr(model, name)) for name in names if hasattr(model, name)])


CASES = [("ovr", {}), ("ovr", {"include_inputs": True}), ("crammer_singer", {}), ("features", {})]


@pytest.mark.parametrize(("kind", "options"), CASES)
def test_a_fit_on_workers_is_that_of_one_process(client, monkeypatch, kind, options):
    X, y = draw()
    given = [cut_there(X)] if kind == "features" else [cut_there(X), cut_there(y)]
    found = make(kind, **options).fit(*given)
    looks, infer = [], BinaryFeatures.infer

    def look(model, rows, params):
        looks.extend([] if rows.is_host else [rows.X])  # the structure search has its sample in host memory
        return infer(model, rows, params)

    with monkeypatch.context() as patch:
        patch.setattr(BinaryFeatures, "infer", look)
        alone = fit_here(monkeypatch, make(kind, **options), *given)
    assert looks
    assert all(map(torch.is_tensor, looks))
    scale = np.abs(state_of(alone)).max()
    np.testing.assert_allclose(state_of(found), state_of(alone), rtol=1e-10, atol=1e-10 * scale)
    on_host = [cut(part, SIZES) for part in ((X,) if kind == "features" else (X, y))]
    expected = fit_here(monkeypatch, make(kind, **options), *on_host)
    np.testing.assert_allclose(state_of(found), state_of(expected), rtol=1e-5, atol=1e-5 * scale)
    assert found.n_components_ == expected.n_components_


def test_single_precision_and_rows_without_a_label(client):
    X, y = draw()
    y = np.where(np.arange(N) % 4 == 0, -1, y)
    y[:700] = -1  # a block without any
    weights = np.random.default_rng(1).integers(0, 3, size=N).astype(float)
    wide, narrow = (
        make("ovr", unlabeled=-1).fit(cut_there(X, dtype), cut_there(y), cut_there(weights))
        for dtype in (torch.float64, torch.float32)
    )
    np.testing.assert_allclose(state_of(narrow), state_of(wide), atol=2e-3 * np.abs(state_of(wide)).max())


def test_a_block_is_neither_copied_nor_read():
    X, y = draw()
    block = READ_ROWS(there(X), there(y), None, None, 0, D)
    assert torch.is_tensor(block.X)
    assert block.X.data_ptr() == READ_ROWS(block.X, block.y, None, None, 0, D).X.data_ptr()
    assert isinstance(block.y, np.ndarray)
    part = block.take(np.array([3, 1]))
    assert torch.is_tensor(part.X)
    np.testing.assert_array_equal(to_host(part.X), X[[3, 1]])


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (torch.full((5, D), torch.nan), "in block 2 .*NaN"),
        (torch.ones((5, D), dtype=torch.int64), "in block 2 .*float32 or float64"),
        (torch.ones((5, D, 1)), "in block 2 .*dimension"),
        (torch.ones((5, D + 1)), f"in block 2 .*{D + 1} columns, but {D}"),
    ],
)
def test_blocks_that_are_no_rows_are_refused(bad, message):
    with pytest.raises((TypeError, ValueError), match=message):
        READ_ROWS(bad, np.zeros(5), None, None, 2, D)


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
@pytest.mark.parametrize("layout", [torch.sparse_csr, torch.sparse_coo])
def test_sparse_rows_are_refused(layout):
    with pytest.raises(TypeError, match=r"in block 0 .* must be dense"):
        READ_ROWS(torch.ones((5, D)).to_sparse(layout=layout), np.zeros(5), None, None, 0, D)


def test_amounts_stay_on_devices(client, monkeypatch):
    X, y = draw()
    looks, sweep = [], SlabParams.sweep
    with monkeypatch.context() as patch:
        patch.setattr(SlabParams, "sweep", lambda params, rows: looks.append(rows) or sweep(params, rows))
        found = fit_here(monkeypatch, make("ovr", slab="half-normal"), cut_there(X), cut_there(y))
    assert any(torch.is_tensor(rows.X) for rows in looks)
    expected = fit_here(monkeypatch, make("ovr", slab="half-normal"), cut(X, SIZES), cut(y, SIZES))
    np.testing.assert_allclose(state_of(found), state_of(expected), atol=1e-5 * np.abs(state_of(expected)).max())
    np.testing.assert_allclose(found.transform(cut_there(X)).compute(), expected.transform(X), atol=1e-4)
    np.testing.assert_allclose(
        found.feature_probabilities(cut_there(X)).compute(), expected.feature_probabilities(X), atol=1e-4
    )


# --- several tasks


@pytest.fixture(scope="module")
def many():
    """Rows, labels and numbers of four tasks with holes; a number and a group of each row, and how often it counts."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(N, D)) @ rng.normal(size=(D, D)) + 2.0
    numbers = 4.0 * X @ rng.normal(size=(D, 4)) + 3.0 * rng.normal(size=(N, 4)) + 10.0
    labels = (numbers > np.median(numbers, axis=0)).astype(float)
    own, group = numbers[:, 0].copy(), rng.integers(0, 5, N)
    numbers[rng.random((N, 4)) < 0.3] = labels[rng.random((N, 4)) < 0.3] = np.nan
    numbers[:700] = labels[:700] = np.nan  # a block without any target
    return {"X": X, "labels": labels, "numbers": numbers, "own": own, "group": group, "weights": rng.integers(0, 3, N)}


TASKS = {
    "labels": (MultiTaskILSVMClassifier, {}, ("labels", None, "weights")),
    "numbers": (MultiTaskILSVMRegressor, {"epsilon": 0.1}, ("numbers", None, None)),
    "inputs": (
        MultiTaskILSVMClassifier,
        {"task_sharing": 0.7, "include_inputs": True, "class_weight": "balanced"},
        ("labels", None, None),
    ),
    "alternation": (MultiTaskILSVMRegressor, {"margins": "posterior", "noise_variance": "estimate"}, ("numbers",)),
    "ragged": (MultiTaskILSVMRegressor, {}, ("own", "group", "weights")),
}


def tasks_of(name, many):
    kind, options, beside = TASKS[name]
    given = [many["X"], *(None if part is None else many[part].astype(float) for part in beside)]
    return kind(**{"n_components": 4, "max_iter": 3, "tol": 0.0, "random_state": 0, **options}), given


def cut_all(given, cut_one):
    return [None if part is None else cut_one(part) for part in given]


@pytest.mark.parametrize("name", TASKS)
def test_several_tasks_find_what_blocks_of_numpy_find(monkeypatch, many, name):
    model, given = tasks_of(name, many)
    expected = fit_here(monkeypatch, clone(model), *cut_all(given, partial(cut, sizes=SIZES)))
    held = []
    found = fit_here(monkeypatch, clone(model), *cut_all(given, cut_there), held=held)
    assert held
    assert all(torch.is_tensor(piece) for block in held for piece in block.pieces)
    for attribute in ("mean_", "scale_", "coef_features_", "components_", "intercept_"):
        scale = np.abs(getattr(expected, attribute)).max()
        np.testing.assert_allclose(getattr(found, attribute), getattr(expected, attribute), atol=1e-10 * scale)
    np.testing.assert_allclose(found.trace_.objective, expected.trace_.objective, rtol=1e-10)
    # Rows on a device are looked at there, and the answers come to the host.
    asked = [given[0], given[2]] if name == "ragged" else given[:1]
    with dask.config.set(scheduler="sync"):
        answers = found.predict(*cut_all(asked, cut_there)).compute()
        features = found.transform(cut_there(given[0])).compute()
        narrow = found.transform(cut_there(given[0], torch.float32)).compute()
    assert isinstance(answers, np.ndarray)
    assert narrow.dtype == features.dtype == np.float64  # as a lazy array has said
    np.testing.assert_allclose(narrow, features, atol=1e-5 * np.abs(features).max())
    np.testing.assert_allclose(answers, expected.predict(*asked), rtol=1e-10)
    np.testing.assert_allclose(features, expected.transform(given[0]), atol=1e-10)


def test_several_tasks_on_workers(client, monkeypatch, many):
    model, given = tasks_of("labels", many)
    there = clone(model).fit(*cut_all(given, cut_there))
    here = fit_here(monkeypatch, clone(model), *cut_all(given, cut_there))
    np.testing.assert_allclose(there.coef_features_, here.coef_features_, rtol=1e-10, atol=1e-10)
    narrow = fit_here(monkeypatch, model, cut_there(given[0], torch.float32), *cut_all(given[1:], cut_there))
    scale = np.abs(here.coef_features_).max()
    np.testing.assert_allclose(narrow.coef_features_, here.coef_features_, atol=1e-4 * scale)


def test_wrong_signs_weigh_the_same_there(many):
    full = ~np.isnan(many["labels"]).any(axis=1)
    X, labels = many["X"][full] - many["X"].mean(axis=0), many["labels"][full].astype(int)
    (rows, tasks), C = np.nonzero(np.ones(labels.shape)), 0.3
    observed = observe_classes(rows, tasks, labels[rows, tasks], np.full(4, 2))
    weights = np.random.default_rng(4).normal(size=(4, 5))
    found = []
    for inputs in (X, there(X)):
        problem = prepare(inputs, *observed, Settings(n_components=4, loss="squared_hinge", C=C))
        latent = start_latent(problem.moments, problem.settings, np.random.default_rng(3).normal(size=(D, 4)))
        version = problem.infer(problem.model.at(latent)).version
        block = RowBlock([inputs], (len(X),), problem.head.blocks((len(X),), inputs))
        found.append([judge(block, version, sign * weights) for sign in (1.0, -1.0)])
    for judged in found[0]:
        np.testing.assert_allclose(judged.positive, 2.0 * C * labels.sum(axis=0))
        np.testing.assert_allclose(judged.negative, 2.0 * C * (1 - labels).sum(axis=0))
    both_ways = sum(judged.wrong for judged in found[0])
    assert both_ways == pytest.approx(2.0 * C * labels.size)
    for here, elsewhere in zip(*found, strict=True):
        assert elsewhere.wrong == pytest.approx(here.wrong, rel=1e-12)
        np.testing.assert_allclose(elsewhere.positive, here.positive)
        np.testing.assert_allclose(elsewhere.negative, here.negative)


# --- documents


@pytest.fixture(scope="module")
def corpus():
    rng = np.random.default_rng(2)
    words, shares = rng.dirichlet(np.full(40, 0.1), 4), rng.dirichlet(np.full(4, 0.3), N)
    counts = np.array([rng.multinomial(20, share @ words) for share in shares]).astype(float)
    counts[[0, 5]] = 0  # empty documents
    several = (shares[:, :3] > 0.25).astype(int)
    return {
        "X": counts,
        "classes": shares.argmax(axis=1) % 3,
        "numbers": shares @ rng.normal(size=4),
        "several": several,
    }


def sparse_there(block):
    return torch.asarray(np.asarray(block)).to_sparse_csr()


TOPICS = [
    (MedLDAClassifier, "classes", {}),
    (MedLDAClassifier, "several", {"deterministic": True}),
    (MedLDARegressor, "numbers", {}),
]


@pytest.mark.parametrize(("kind", "y", "options"), TOPICS)
@pytest.mark.parametrize("layout", [torch.float64, torch.float32, "sparse"])
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
def test_topics_are_those_of_blocks_of_numpy(monkeypatch, corpus, kind, y, options, layout):
    monkeypatch.setattr("regbayes.dask._bases.START_ROWS", 300)
    model = kind(4, max_iter=3, tol=0.0, random_state=0, **options)
    weights = np.random.default_rng(3).integers(0, 3, N).astype(float)
    beside = [cut(corpus[y], SIZES), cut(weights, SIZES)]
    rows = [cut_there(corpus["X"], None if layout == "sparse" else layout), *beside]
    if layout == "sparse":
        rows[0] = cut(corpus["X"], SIZES).map_blocks(sparse_there, dtype=float, meta=corpus["X"][:0])
    expected = fit_here(monkeypatch, clone(model), cut(corpus["X"], SIZES), *beside)
    held = []
    found = fit_here(monkeypatch, clone(model), *rows, held=held)
    assert {type(piece.documents.counts.numbers) for block in held for piece in block.pieces} == {torch.Tensor}
    # Tables of words by topics are sums in single precision.
    np.testing.assert_allclose(found.coef_features_, expected.coef_features_, atol=1e-3)
    np.testing.assert_allclose(found.trace_.objective, expected.trace_.objective, rtol=1e-5)
    assert found._mean_length == pytest.approx(expected._mean_length, rel=1e-12)
    with dask.config.set(scheduler="sync"):
        shares = found.transform(rows[0]).compute()
    np.testing.assert_allclose(shares, found.to_local().transform(corpus["X"]), atol=1e-5)


def test_topics_on_workers(client, corpus):
    model = MedLDAClassifier(4, max_iter=2, tol=0.0, random_state=0)
    found = model.fit(cut_there(corpus["X"]), cut_there(corpus["classes"]))
    answers = found.predict(cut_there(corpus["X"])).compute()
    assert np.mean(answers == found.to_local().predict(corpus["X"])) > 0.999  # ties may fall otherwise
    assert np.mean(answers == corpus["classes"]) > 0.7


# --- a device for each worker


@pytest.fixture
def threads():
    """Workers in this process: what they hold can be looked at."""
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, processes=False, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        yield client


HELD = {
    ILSVMClassifier: (BinaryFeatures, lambda _, rows, *__: rows.X),
    MultiTaskILSVMClassifier: (DeviceTaskModel, lambda _, rows, *__: rows),
    MedLDAClassifier: (LabelFreeTopics, lambda _, rows, *__: rows.documents.counts.numbers),
}


@pytest.mark.parametrize("kind", HELD)
def test_rows_stay_where_they_are_and_sums_come_back(threads, monkeypatch, kind):
    """What comes back does not grow with the rows, but for a sample of them; workers look at the same memory again."""
    monkeypatch.setattr("regbayes.dask._bases.START_ROWS", 300)
    X, y = draw()
    X = np.rint(np.abs(X))
    owner, held_by = HELD[kind]
    infer, came, samples = owner.infer, [], []
    for n_times in (1, 3):
        pointers = set()

        def look(*given, pointers=pointers):
            held = held_by(*given)
            if torch.is_tensor(held):  # else it is of the sample, which is on the host
                pointers.add(held.data_ptr())
            return infer(*given)

        with monkeypatch.context() as patch:
            most = count_bytes(patch)
            patch.setattr(owner, "infer", look)
            rows, labels, sizes = np.tile(X, (n_times, 1)), np.tile(y, n_times), tuple(n_times * n for n in SIZES)
            model = kind(4, max_iter=3, tol=1e-9, random_state=0)
            model.fit(cut_there(rows, sizes=sizes), cut_there(labels, sizes=sizes))
        assert len(pointers) == sum(n > 0 for n in SIZES)  # blocks: no trip has made a copy
        samples.append(most.pop("itself"))
        came.append(most)
    assert samples[1] <= 1.5 * samples[0]
    assert came[0].keys() == came[1].keys() >= {"evaluate_rows", "pull_back"}
    curvature = 8 * (3 * (4 + 1)) ** 2  # of all classes, which comes where that of the sample does not do
    for name, n_bytes in came[1].items():
        assert n_bytes <= 1.02 * came[0][name] + 64 + (curvature if name == "evaluate_rows" else 0)
    assert max(came[1].values()) < 0.05 * X.nbytes


# --- what is refused


@pytest.mark.parametrize(
    ("others", "message"),
    [
        ([(3, to_host)], r"blocks of numpy and of torch\.float64: give all of them as arrays of one library"),
        ([(0, torch.Tensor.float)], r"blocks of torch\.float32 and of torch\.float64: .* and one type"),
        ([(4, torch.Tensor.half)], "in block 4 .*type torch.float16.*float32 or float64"),
    ],
)
@pytest.mark.parametrize("kind", [ILSVMClassifier, MultiTaskILSVMClassifier, MedLDAClassifier])
def test_blocks_of_several_kinds_are_refused(monkeypatch, kind, others, message):
    X, y = draw()
    X = np.abs(X)
    with pytest.raises(TypeError, match=message):
        fit_here(monkeypatch, kind(3), cut_there(X, others=others), cut_there(y))


def test_blocks_that_are_cut_otherwise_are_joined(monkeypatch, many):
    model, given = tasks_of("labels", many)
    expected = fit_here(monkeypatch, clone(model), *cut_all(given, cut_there))
    halves = [cut_there(given[0][:, part]) for part in (slice(0, 5), slice(5, None))]
    targets = [cut_there(given[1], sizes=(1, N - 1)), None, given[3]]  # weights in memory
    found = fit_here(monkeypatch, clone(model), da.concatenate(halves, axis=1), *targets)
    np.testing.assert_allclose(found.coef_features_, expected.coef_features_, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kind", [torch.OutOfMemoryError, RuntimeError])
def test_a_device_without_room_is_named(kind):
    def fill(block):
        raise kind("CUDA out of memory.")

    with pytest.raises(MemoryError, match="more workers, each with a device of its own, or give X as float32"):
        _visit_block(fill, None)


def test_an_empty_block_may_be_of_any_kind(monkeypatch, many):
    model, given = tasks_of("labels", many)
    found = fit_here(monkeypatch, model, cut_there(given[0], others=[(2, to_host)]), *cut_all(given[1:], cut_there))
    assert np.all(np.isfinite(found.coef_features_))
