"""Estimators over a cluster of two processes: the same fit as in one, however rows are cut, and after a loss."""

from __future__ import annotations

import os
import pickle
import signal
import time
from functools import partial, reduce
from itertools import pairwise
from operator import add

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client, LocalCluster
from distributed.diagnostics.plugin import SchedulerPlugin
from scipy.sparse import csr_array
from sklearn.base import clone

import regbayes
from dask_tools import (
    OneProcess,
    cut,
    fit_here,
    hears_interrupts,
    interfere,
    kill_one,
    quiet_marks,
)
from reference_tools import fits_its_rows
from regbayes.dask import IBPFactorAnalysis, ILSVMClassifier, MedLDAClassifier, MedLDARegressor, blocks
from regbayes.dask._bases import Labels, Moments, code_labels
from regbayes.dask.blocks import plan_groups, plan_units
from regbayes.dask.rows import DaskSource, read_collections
from regbayes.engine.source import ArraySource, Samples, Strata
from regbayes.estimators._bases import InterruptedWarning
from regbayes.models.ilsvm.model import FINAL, Data, ILSVMProblem, centre_rows
from regbayes.models.ilsvm.starts import drop_empty
from simulated_features import draw_scores, planted

dd, pd = pytest.importorskip("dask.dataframe"), pytest.importorskip("pandas")

N, D, N_CLASSES = 1500, 6, 3
CUTS = [(N,), (400, 1100), (1, 700, 99, 0, 650, 50)]  # one block, two, and five that have rows

pytestmark = quiet_marks()


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    on = (rng.random((N, 4)) < 0.4).astype(float)
    X = on @ rng.normal(size=(4, D)) + 0.5 * rng.normal(size=(N, D)) + 3.0
    labels = np.argmax(on @ rng.normal(size=(4, N_CLASSES)) * 2 + 0.5 * rng.gumbel(size=(N, N_CLASSES)), axis=1)
    return X, np.array(["red", "green", "blue"])[labels]


@pytest.fixture(scope="module")
def corpus():
    rng = np.random.default_rng(1)
    words, shares = rng.dirichlet(np.full(40, 0.1), 4), rng.dirichlet(np.full(4, 0.3), 600)
    counts = np.array([rng.multinomial(20, share @ words) for share in shares])
    counts[[0, 5]] = 0  # empty documents
    return counts, shares.argmax(axis=1) % 3, shares @ rng.normal(size=4) * 3.0


def small(**options):
    given = {"n_components": 4, "multi_class": "ovr", "max_iter": 4, "tol": 0.0, "random_state": 0}
    return ILSVMClassifier(**{**given, **options})


# --- the same as one process


@pytest.mark.parametrize("sizes", CUTS)
def test_weights_are_those_of_one_process(client, data, monkeypatch, sizes):
    X, y = data
    there = small().fit(cut(X, sizes), cut(y, sizes))
    here = fit_here(monkeypatch, small(), cut(X, (N,)), cut(y, (N,)))
    np.testing.assert_allclose(there.coef_features_, here.coef_features_, atol=1e-10)
    np.testing.assert_allclose(there.components_, here.components_, atol=1e-10)
    assert there.n_components_ == here.n_components_
    assert there.n_iter_ == 4
    assert np.all(np.diff(there.trace_.objective) <= 0)


def test_the_objective_is_that_of_all_rows(client, data):
    X, y = data
    model = small(max_iter=3).fit(cut(X, (400, 1100)), cut(y, (N,)))
    _, codes = np.unique(y, return_inverse=True)
    rows = Data(centre_rows(X), codes, np.ones(N), 1.0 - np.eye(N_CLASSES))
    settings = model._recipe(Moments.of(X, None), Labels.of(Samples(X, y, None))).settings
    problem = ILSVMProblem(rows, settings).joint
    found, _ = problem.evaluate(drop_empty(model._state.params), None, FINAL)
    above = model.trace_.objective[-1] - found.objective  # by the gap that the last step was judged with
    assert -found.gap <= above <= 0.011 * found.head.value
    np.testing.assert_allclose(model.mean_, X.mean(axis=0), rtol=1e-12)


@pytest.mark.parametrize("kind", [MedLDAClassifier, MedLDARegressor])
def test_topics_are_those_of_one_process(client, corpus, monkeypatch, kind):
    counts, classes, numbers = corpus
    y = classes if kind is MedLDAClassifier else numbers
    model = kind(4, max_iter=4, tol=0.0, random_state=0)
    X = cut(counts, (100, 350, 150)).map_blocks(csr_array)
    there = clone(model).fit(X, cut(y, (300, 300)))
    here = fit_here(monkeypatch, clone(model), cut(counts, (600,)), cut(y, (600,)))
    # Tables of words by topics are sums in single precision.
    np.testing.assert_allclose(there.coef_features_, here.coef_features_, atol=1e-3)
    assert there.trace_.objective[-1] == pytest.approx(here.trace_.objective[-1], rel=1e-5)
    answers = there.predict(X)
    assert answers.shape == (600,)
    np.testing.assert_array_equal(answers.compute(), there.to_local().predict(counts))
    assert fits_its_rows(there.to_local().predict(counts), y)


def test_features_without_labels(client, data, monkeypatch):
    X, _ = data
    model = IBPFactorAnalysis(4, slab=None, max_iter=3, tol=0.0, random_state=0)
    there = clone(model).fit(cut(X, CUTS[-1]))
    here = fit_here(monkeypatch, clone(model), cut(X, (N,)))
    # Sums over other blocks round otherwise, and the structure search takes a hundred steps from there.
    np.testing.assert_allclose(there.components_, here.components_, atol=1e-4)
    lazy = cut(X, (1000, 500))
    assert there.score(lazy) == pytest.approx(there.to_local().score(X), rel=1e-12)
    features = there.transform(lazy)
    rows = there.inverse_transform(features)
    np.testing.assert_allclose(rows.compute(), there.to_local().inverse_transform(features.compute()), atol=1e-12)


def test_noise_by_input_is_that_of_the_sample(client):
    rows, y, _, _ = planted(5, 2, by_input=True)
    parameters = {"noise_variance": "per_input", "temperature": 1.0, "random_state": 0}
    model = ILSVMClassifier(12, **parameters).fit(cut(rows, (100, 150)), cut(y, (250,)))
    plain = regbayes.ILSVMClassifier(12, **parameters).fit(rows, y)
    np.testing.assert_allclose(model.noise_ratios_, plain.noise_ratios_, rtol=1e-6)
    assert model._state.params.temperature == 1.0
    assert model.noise_variance_ == pytest.approx(plain.noise_variance_, rel=1e-6)
    assert model.objective_ == pytest.approx(plain.objective_, rel=1e-2)
    assert np.abs(model.transform(cut(rows, (250,))).compute() - plain.embedding_).mean() < 0.01


def test_a_warm_start_forgets_noise_that_is_given_now(monkeypatch):
    rows, _, _, _ = planted(5, 2, by_input=True)
    model = IBPFactorAnalysis(12, noise_variance="per_input", warm_start=True)
    fit_here(monkeypatch, model, cut(rows, (100, 150)))
    assert np.ptp(model.noise_ratios_) > 0.1
    model.set_params(noise_variance=2.0)
    fit_here(monkeypatch, model, cut(rows, (100, 150)))
    assert model.noise_variance_ == 2.0
    np.testing.assert_array_equal(model.noise_ratios_, 1.0)


@pytest.mark.parametrize(("first", "second"), [(None, "half-normal"), ("half-normal", None)])
def test_warm_start_takes_the_slab_that_is_set_now(monkeypatch, first, second):
    X = cut(draw_scores("amounts")[0], (250, 350))
    model = fit_here(monkeypatch, IBPFactorAnalysis(12, slab=first, max_iter=3, warm_start=True, random_state=0), X)
    fit_here(monkeypatch, model.set_params(slab=second), X)
    assert model._state.params.temperature == pytest.approx((0.05 if second else 0.01) * X.shape[1])
    probabilities = model.feature_probabilities(X).compute()
    np.testing.assert_allclose(probabilities, model.to_local().feature_probabilities(X.compute()), atol=1e-12)
    assert np.array_equal(probabilities, model.transform(X).compute()) == (second is None)


def test_features_with_amounts(client, data):
    X, y = data
    model = small(slab="half-normal", max_iter=2).fit(cut(X, (400, 1100)), cut(y, (N,)))
    lazy = model.feature_probabilities(cut(X, (1000, 500))).compute()
    np.testing.assert_allclose(lazy, model.to_local().feature_probabilities(X), atol=1e-12)
    assert model.n_components_ == np.sum(np.ptp(lazy, axis=0) > 0.1)


# --- a worker is lost; the user interrupts


def test_a_killed_worker_costs_time_and_nothing_else(client, data, monkeypatch):
    X, y = (cut(part, (400, 400, 700)) for part in data)
    expected = small().fit(X, y)
    killed = []
    interfere(monkeypatch, 12, partial(kill_one, killed))
    found = small().fit(X, y)
    assert len(killed) == 1
    np.testing.assert_allclose(found.coef_features_, expected.coef_features_, atol=1e-10)
    np.testing.assert_allclose(found.components_, expected.components_, atol=1e-10)


def leave(client):
    client.cluster.scale(0)
    while client.nthreads():
        time.sleep(0.05)


def plan_and_leave(client, *given):
    found = plan_groups(client, *given)
    leave(client)
    return found


@pytest.mark.parametrize("when", ["reading", "solving"])
def test_workers_that_all_leave_end_a_fit_that_would_wait_for_ever(data, monkeypatch, when):
    X, y = (cut(part, (400, 400, 700)) for part in data)
    monkeypatch.setattr(blocks, "PATIENCE_S", 0.5)
    monkeypatch.setattr(blocks, "WATCH_S", 0.1)
    with (
        LocalCluster(n_workers=1, threads_per_worker=1, processes=False, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        if when == "reading":
            monkeypatch.setattr("regbayes.dask.rows.plan_groups", plan_and_leave)
        else:
            interfere(monkeypatch, 12, leave)
        with pytest.raises(RuntimeError, match="all workers of the cluster have left"):
            small().fit(X, y, client=client)


def test_a_scheduler_that_drops_tasks_is_named(client):
    task = client.submit(time.sleep, 0, workers=["tcp://127.0.0.1:1"])  # where nobody is: it is never done
    client.cancel([task], force=True)
    with pytest.raises(RuntimeError, match="has dropped the tasks of this fit"):
        blocks.wait_for(client, [task])


@pytest.mark.parametrize("trip", [1, 25])
def test_an_interrupt_ends_with_the_best_state(client, data, monkeypatch, trip):
    X, y = (cut(part, (400, 1100)) for part in data)
    before, heard = client.run(os.getpid), client.run(hears_interrupts)

    def interrupt(client):
        for worker in client.run(os.getpid).values():  # a terminal interrupts all processes of a group
            os.kill(worker, signal.SIGINT)
        raise KeyboardInterrupt

    interfere(monkeypatch, trip, interrupt)
    with pytest.warns(InterruptedWarning, match="interrupted after" if trip > 1 else "during its warm-up"):
        model = small(max_iter=50).fit(X, y)
    assert (0 if trip == 1 else 1) <= model.n_iter_ < 50
    assert np.mean(model.predict(X).compute() == data[1]) > 0.6
    assert client.run(os.getpid) == before
    assert client.run(hears_interrupts) == heard


class CountTasks(SchedulerPlugin):
    n_tasks = 0

    def update_graph(self, scheduler, *, tasks, **rest):
        self.n_tasks += len(tasks)


def test_an_iteration_takes_few_tasks(client, dask_cluster, data):
    X, y = (cut(part, (100,) * 15) for part in data)
    counter = CountTasks()
    n_tasks = []
    for max_iter in (2, 6):
        dask_cluster.scheduler.add_plugin(counter, name="count")
        before = counter.n_tasks
        small(max_iter=max_iter).fit(X, y)
        n_tasks.append(counter.n_tasks - before)
        dask_cluster.scheduler.remove_plugin(name="count")
    per_iteration = (n_tasks[1] - n_tasks[0]) / 4
    assert 0 < per_iteration <= 200  # two for each trip, and none for each block


# --- what is given


def test_data_frames(client, data):
    pd = pytest.importorskip("pandas")
    X, y = data
    frame = pd.DataFrame(X, columns=list("abcdef")).assign(y=y)
    table = dd.from_pandas(frame, npartitions=3)
    model = small(max_iter=2).fit(table[list("abcdef")], table["y"])
    assert model.feature_names_in_.tolist() == list("abcdef")
    answers = model.predict(table[list("abcdef")]).compute()
    np.testing.assert_array_equal(answers, model.to_local().predict(frame[list("abcdef")]))
    with pytest.raises(ValueError, match="feature names"):  # before anything is computed
        model.predict(table[list("bacdef")])


def test_awkward_blocks(client, data):
    X, y = data
    expected = small(max_iter=2).fit(cut(X, (N,)), cut(y, (N,)))
    lazy = da.from_array(X, chunks=((700, 0, 800), (2, 4)))  # columns in chunks, an empty block
    mixed = da.concatenate([lazy[:700].astype(np.float32).astype(float), lazy[700:]])
    unknown = lazy[lazy[:, 0] > -np.inf]
    assert np.isnan(unknown.shape[0])
    labels = cut(y, (700, 0, 800))
    for rows in (lazy, unknown, da.asarray(mixed)):
        model = small(max_iter=2).fit(rows, labels)
        np.testing.assert_allclose(model.coef_features_, expected.coef_features_, atol=1e-4)
    np.testing.assert_allclose(
        small(max_iter=2).fit(lazy, y).coef_features_, expected.coef_features_, atol=1e-10
    )  # y in memory


def test_a_class_missing_in_a_block_and_rows_without_a_label(client, data):
    X, y = data
    order = np.argsort(y, kind="stable")
    labels = y[order].copy()
    labels[::5] = "none"
    model = small(max_iter=2, unlabeled="none").fit(cut(X[order], (500, 500, 500)), cut(labels, (500, 500, 500)))
    assert model.classes_.tolist() == ["blue", "green", "red"]
    labels[:400] = "none"  # a block without any label
    for margins in ("ovr", "crammer_singer"):
        one, two = (
            small(max_iter=2, multi_class=margins, unlabeled="none").fit(cut(X[order], sizes), cut(labels, sizes))
            for sizes in [(N,), (400, 1100)]
        )
        np.testing.assert_allclose(two.coef_features_, one.coef_features_, atol=1e-8)


def test_fewer_rows_than_workers_and_crammer_singer(client, data):
    X, y = data
    few = small(max_iter=1, multi_class="crammer_singer").fit(cut(X[:3], (1, 1, 1)), cut(np.array([0, 1, 1]), (3,)))
    assert few.predict(cut(X, (N,))).shape == (N,)
    model = small(max_iter=3, multi_class="crammer_singer", include_inputs=True).fit(cut(X, (N,)), cut(y, (N,)))
    assert np.mean(model.predict(X) == y) > 0.6
    assert model.coef_inputs_.shape == (3, D)


def test_weights_count_rows(client, data):
    X, y = data
    weights = np.ones(N)
    weights[::3] = 0.0
    kept = weights > 0
    weighed = small(class_weight="balanced").fit(cut(X, (400, 1100)), cut(y, (N,)), cut(weights, (N,)))
    alone = small(class_weight="balanced").fit(cut(X[kept], (500, 500)), cut(y[kept], (1000,)))
    np.testing.assert_allclose(weighed.coef_features_, alone.coef_features_, atol=1e-8)


def test_the_plain_estimator_comes_back(client, data, tmp_path):
    X, y = data
    lazy = cut(X, (700, 0, 800))
    model = small().fit(lazy, cut(y, (N,)))
    local = model.to_local()
    assert type(local) is regbayes.ILSVMClassifier
    assert not hasattr(local, "embedding_")
    np.testing.assert_array_equal(model.predict(lazy).compute(), local.predict(X))
    np.testing.assert_allclose(model.decision_function(lazy).compute(), local.decision_function(X), atol=1e-12)
    np.testing.assert_allclose(model.transform(lazy).compute(), local.transform(X), atol=1e-12)
    model.save(tmp_path / "model")
    np.testing.assert_array_equal(regbayes.load(tmp_path / "model").predict(X), local.predict(X))
    assert pickle.loads(pickle.dumps(model)).predict(X[:3]).tolist() == local.predict(X[:3]).tolist()
    again = model.set_params(warm_start=True, max_iter=1).fit(lazy, cut(y, (N,)))
    assert again.trace_.objective[0] <= model.trace_.objective[0]


def wrong(X, y, change):
    """Return collections that something is wrong with, and the message it shall have."""
    dX, dy = cut(X, (400, 1100)), cut(y, (400, 1100))
    bad = X.copy()
    bad[5, 0] = np.nan
    unknown = dX[dX[:, 0] > -np.inf]
    return {
        "nan": (cut(bad, (400, 1100)), dy, "block 0 .*NaN"),
        "array": (X, dy, "dask array or DataFrame"),
        "short y": (dX, dy[:1200], "X has 1500 rows, but y has 1200"),
        "one class": (dX, cut(np.full(N, "red"), (N,)), "at least 2 classes"),
        "no y": (dX, None, "requires y"),
        "unknown": (unknown, cut(y, (500, 500, 500)), "compute_chunk_sizes"),
        "unknown, other rows": (unknown, cut(y, (500, 1000)), "cut them alike"),
        "numbers": (dX, cut(np.random.default_rng(0).random(N), (N,)), "continuous"),
        "text": (
            dX.map_blocks(text_later, dtype=float),
            dy,
            "block 1 .*string to float.* X must hold numbers",
        ),
        "complex": (dX * 1j, dy, "^in block [01] .* Complex data not supported. X must hold numbers in every block$"),
        "names": (
            dd.from_pandas(pd.DataFrame({"x": X[:, 0], "g": "a"}), npartitions=2),
            dy,
            "column 'g' of X has dtype",
        ),
        "sparse": (dX.map_blocks(csr_array), dy, "X is sparse, and must be dense here"),
        "no columns": (dX[:, :0], dy, "X has no columns"),
        "a hole in y": (dX, cut(np.where(y == "red", None, y.astype(object)), (400, 1100)), "y has missing values"),
        "text and numbers": (dX, cut(np.where(y == "red", 1, y.astype(object)), (400, 1100)), "of several types"),
        "two kinds": (dX, dy.map_blocks(number_later, dtype=y.dtype), "text in some blocks and numbers in others"),
    }[change]


def text_later(rows, block_info=None):
    return rows if block_info[0]["chunk-location"][0] == 0 else np.full(rows.shape, "a")


def number_later(labels, block_info=None):
    return labels if block_info[0]["chunk-location"][0] == 0 else np.arange(len(labels)) % 2


@pytest.mark.parametrize(
    "change",
    [
        "nan",
        "array",
        "short y",
        "one class",
        "no y",
        "unknown",
        "unknown, other rows",
        "numbers",
        "two kinds",
        "text",
        "complex",
        "names",
        "sparse",
        "no columns",
        "a hole in y",
        "text and numbers",
    ],
)
def test_bad_input_is_named(client, data, change):
    X, y, message = wrong(*data, change)
    with pytest.raises((ValueError, TypeError), match=message):
        small().fit(X, y)


@pytest.mark.parametrize(
    "model",
    [
        small(loss="hinge"),
        small(margins="posterior"),
        small(transductive=True),
        MedLDAClassifier(inference="gibbs"),
        MedLDAClassifier(loss="hinge"),
        MedLDARegressor(loss="epsilon_insensitive"),
    ],
)
def test_options_that_keep_a_result_per_sample_raise(client, data, model):
    X, y = (cut(part, (N,)) for part in data)
    with pytest.raises(ValueError, match="keeps a result for every sample"):
        model.fit(X, y)


def test_batches_go_on_from_a_fit_of_a_cluster(client, data):
    X, y = data
    model = small(max_iter=20).fit(cut(X, (700, 800)), cut(y, (700, 800)))
    for method in (model.partial_fit, model.fit_weights):
        with pytest.raises(TypeError, match="takes rows in memory"):
            method(cut(X, (N,)), cut(y, (N,)))
    before, local = model.to_local().score(X, y), model.to_local()
    local.partial_fit(X[:70], y[:70])
    assert local.n_samples_seen_ == N + 70  # what the cluster saw counts too
    assert local.score(X, y) > before - 0.03
    assert model.partial_fit(X[:70], y[:70]).n_samples_seen_ == N + 70


def test_a_cluster_is_needed(data):
    X, y = (cut(part, (N,)) for part in data)
    with pytest.raises(ValueError, match="no Dask client"):
        small().fit(X, y)
    with (
        LocalCluster(n_workers=0, dashboard_address=":0", processes=False) as empty,
        Client(empty) as idle,
        pytest.raises(ValueError, match="has no workers"),
    ):
        small().fit(X, y, client=idle)
    with pytest.raises(TypeError, match=r"must be a distributed\.Client, got str"):
        small().fit(X, y, client="tcp://127.0.0.1:8786")


def test_other_columns_are_refused_before_anything_is_computed(client, data):
    X, y = (cut(part, (N,)) for part in data)
    model = small(max_iter=1).fit(X, y)
    with pytest.raises(ValueError, match="X has 3 features"):
        model.predict(X[:, :3])


# --- parts


def test_a_sample_is_that_of_local_memory_however_rows_are_cut():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(20_000, 2)), rng.choice(4, 20_000, p=[0.7, 0.2, 0.095, 0.005])
    strata = Strata(np.bincount(y), partial(code_labels, classes=np.arange(4), unlabeled=None, rest=0))
    expected = ArraySource(Samples(X, y)).sample(2000, strata)
    for cuts in [(20_000,), (1, 499, 19_500)]:
        ends = np.cumsum(cuts)
        blocks = [Samples(X[end - n : end], y[end - n : end]) for n, end in zip(cuts, ends, strict=True)]
        found = DaskSource(OneProcess(blocks)).sample(2000, strata)
        np.testing.assert_array_equal(found.X, expected.X)
        np.testing.assert_array_equal(found.y, expected.y)


def test_moments_of_blocks_are_those_of_all_rows():
    rng = np.random.default_rng(0)
    X, weights = rng.normal(size=(50, 3)) + 1e6, rng.uniform(0.5, 2.0, 50)
    joined = reduce(add, [Moments.of(X[a:b], weights[a:b]) for a, b in [(0, 0), (0, 7), (7, 50)]])
    mean = np.average(X, axis=0, weights=weights)
    np.testing.assert_allclose(joined.mean, mean, rtol=1e-14)
    np.testing.assert_allclose(joined.squares, weights @ (X - mean) ** 2, rtol=1e-9)


class Threads:
    def __init__(self, threads):
        self.threads = threads

    def nthreads(self):
        return self.threads


def test_groups_are_neighbours_of_equal_size_where_they_lie():
    groups = plan_groups(Threads({"a": 1, "b": 1}), [10, 10, 10, 30], ["b", "b", "b", "a"])
    assert groups == [("b", [0, 1, 2]), ("a", [3])]
    groups = plan_groups(Threads({"a": 2, "b": 2}), [1.0] * 8, [None] * 8)
    assert [blocks for _, blocks in groups] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert sorted(worker for worker, _ in groups) == ["a", "a", "b", "b"]
    assert plan_groups(Threads({"a": 1, "b": 1}), [5.0], [None]) == [("a", [0])]


def test_units_of_blocks_depend_on_their_sizes_alone():
    """So do sums: they have the same bits for any number of workers."""
    sizes, found = np.random.default_rng(0).integers(0, 9, 300), []
    for threads in ({"a": 1}, {"a": 2, "b": 1}, {"a": 8, "b": 8}):
        groups = plan_groups(Threads(threads), sizes, [None] * 300)
        units = plan_units(sizes)
        assert sorted(block for _, own in groups for block in own) == list(range(300))
        found.append([units[own].tolist() for _, own in groups])
        assert not any(set(one) & set(other) for one, other in pairwise(found[-1]))  # none is in two groups
    assert len(np.unique(plan_units(sizes))) <= 64


def test_collections_are_cut_alike(data):
    X, y = data
    given = read_collections(cut(X, (400, 1100)), cut(y, (1000, 500)))
    labels = [part.compute(scheduler="sync") for _, part, *_ in given.parts]
    np.testing.assert_array_equal(np.concatenate(labels), y)
    assert [len(part) for part in labels] == [400, 1100]


@pytest.mark.parametrize("kind", ["array", "table"])
def test_a_block_goes_to_the_cluster_without_what_makes_the_others(data, kind):
    X = cut(data[0], (100,) * 15)
    y = (X[:, 0] > 0).astype(int)
    if kind == "table":
        table = dd.from_dask_array(X)
        X, y = table, table[0]
    given = read_collections(X, y)
    assert len(given.parts) == 15
    assert max(len(dict(part.dask)) for row in given.parts for part in row[:2]) <= 6
    np.testing.assert_array_equal(np.asarray(given.parts[7][0].compute(scheduler="sync")), data[0][700:800])


@pytest.mark.parametrize("kind", ["array", "table"])
def test_what_workers_have_already_is_taken_from_there(client, data, kind):
    X, y = (cut(part, (400, 1100)) for part in data)
    expected = small(max_iter=2).fit(X, y).coef_features_
    if kind == "table":
        X, y = dd.from_dask_array(X), dd.from_dask_array(y)
    X, y = client.persist([X, y])
    np.testing.assert_allclose(small(max_iter=2).fit(X, y).coef_features_, expected, rtol=1e-9, atol=1e-12)
    assert small(max_iter=2).fit(X, y).predict(X).compute().shape == (N,)


def test_blocks_of_other_libraries_find_what_blocks_of_numpy_find(data, monkeypatch):
    strict = pytest.importorskip("array_api_strict")
    X, y = data
    edges = [0, 400, N]
    rows, labels = (
        da.concatenate(
            [
                da.from_delayed(dask.delayed(strict.asarray)(part[a:b]), (b - a, *part.shape[1:]), part.dtype)
                for a, b in pairwise(edges)
            ]
        )
        for part in (X, np.unique(y, return_inverse=True)[1])
    )
    expected = fit_here(monkeypatch, small(max_iter=2), cut(X, (400, 1100)), cut(y, (400, 1100)))
    found = fit_here(monkeypatch, small(max_iter=2), rows, labels)
    np.testing.assert_allclose(found.coef_features_, expected.coef_features_, rtol=1e-9, atol=1e-12)
    with dask.config.set(scheduler="sync"):
        seen = found.transform(rows).compute()
    np.testing.assert_allclose(seen, expected.transform(X), rtol=1e-9, atol=1e-12)
