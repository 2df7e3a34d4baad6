"""Estimators on a cluster of two processes: chunks, lazy predictions and invalid input."""

from __future__ import annotations

import pickle
from functools import partial
from itertools import pairwise

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client, LocalCluster
from scipy.sparse import csr_array
from sklearn.base import clone

import regbayes
from dask_tools import cut, quiet_marks
from reference_tools import fits_its_rows
from regbayes.dask import (
    IBPFactorAnalysis,
    ILSVMClassifier,
    ILSVMRegressor,
    MedLDAClassifier,
    MedLDARegressor,
    MultiTaskILSVMClassifier,
    MultiTaskILSVMRegressor,
)
from regbayes.dask.source import DaskSource, Reader
from regbayes.engine.source import ArraySource, Samples, Strata
from regbayes.estimators._sources import code_labels

dd, pd = pytest.importorskip("dask.dataframe"), pytest.importorskip("pandas")
pytestmark = quiet_marks()

N, D, M = 900, 6, 4
CUTS = [(N,), (1, 400, 99, 0, 350, 50), (12,) * 75]  # the last has more chunks than MAX_BLOCKS
GIVEN = {"n_components": 4, "max_iter": 4, "tol": 0.0, "random_state": 0}


@pytest.fixture(scope="module")
def data():
    """Samples with classes, labels, regression targets, groups and documents."""
    rng = np.random.default_rng(0)
    on = (rng.random((N, 4)) < 0.4).astype(float)
    X = on @ rng.normal(size=(4, D)) + 0.5 * rng.normal(size=(N, D)) + 3.0
    classes = np.argmax(on @ rng.normal(size=(4, 3)) * 2 + 0.5 * rng.gumbel(size=(N, 3)), axis=1)
    numbers = 4.0 * X @ rng.normal(size=(D, M)) + 3.0 * rng.normal(size=(N, M)) + 10.0
    labels = (numbers > np.median(numbers, axis=0)).astype(float)
    own, group = numbers[:, 0].copy(), np.array([f"g{place:02}" for place in rng.integers(0, 9, N)])
    group[:3] = "late"  # a task only in the first chunks
    numbers[rng.random((N, M)) < 0.3] = labels[rng.random((N, M)) < 0.3] = np.nan
    labels[:200, 1:] = np.nan
    words, shares = rng.dirichlet(np.full(40, 0.1), 4), rng.dirichlet(np.full(4, 0.3), N)
    counts = np.array([rng.multinomial(20, share @ words) for share in shares]).astype(float)
    counts[[0, 5]] = 0  # empty documents
    return {
        "X": X,
        "classes": np.array(["red", "green", "blue"])[classes],
        "labels": labels,
        "numbers": numbers,
        "own": own,
        "group": group,
        "weights": rng.integers(0, 3, N).astype(float),
        "counts": counts,
        "topics": shares.argmax(axis=1) % 3,
        "several": (shares[:, :3] > 0.25).astype(int),
        "rating": shares @ rng.normal(size=4) * 3.0,
    }


CASES = {
    "ilsvm": (ILSVMClassifier(**GIVEN, multi_class="ovr"), "X", "classes", {}),
    "ilsvm half-normal": (ILSVMClassifier(**GIVEN, slab="half-normal", class_weight="balanced"), "X", "classes", {}),
    "crammer-singer": (
        ILSVMClassifier(**GIVEN, multi_class="crammer_singer", include_inputs=True),
        "X",
        "classes",
        {"sample_weight": "weights"},
    ),
    "ilsvm matrix": (ILSVMClassifier(**GIVEN), "X", "labels", {"sample_weight": "weights"}),
    "ilsvm regression": (ILSVMRegressor(**GIVEN), "X", "numbers", {}),
    "ibp": (IBPFactorAnalysis(**GIVEN), "X", None, {"sample_weight": "weights"}),
    "labels": (MultiTaskILSVMClassifier(**GIVEN), "X", "labels", {"sample_weight": "weights"}),
    "shared labels": (
        MultiTaskILSVMClassifier(**GIVEN, task_sharing=0.7, include_inputs=True, class_weight="balanced"),
        "X",
        "labels",
        {},
    ),
    "numbers": (MultiTaskILSVMRegressor(**GIVEN, epsilon=0.1), "X", "numbers", {"sample_weight": "weights"}),
    "alternation": (
        MultiTaskILSVMRegressor(**GIVEN, margins="posterior", noise_variance="estimate"),
        "X",
        "numbers",
        {},
    ),
    "ragged numbers": (MultiTaskILSVMRegressor(**GIVEN), "X", "own", {"task": "group", "sample_weight": "weights"}),
    "ragged labels": (MultiTaskILSVMClassifier(**GIVEN), "X", "classes", {"task": "group"}),
    "medlda": (MedLDAClassifier(**GIVEN, class_weight="balanced"), "counts", "topics", {"sample_weight": "weights"}),
    "medlda labels": (MedLDAClassifier(**GIVEN), "counts", "several", {}),
    "medlda numbers": (MedLDARegressor(**GIVEN), "counts", "rating", {}),
}


def fit(name, data, cut_one):
    """Fit the estimator of a case to chunked data."""
    model, X, y, others = CASES[name]
    given = [cut_one(data[part]) for part in (X, y) if part is not None]
    return clone(model).fit(*given, **{key: cut_one(data[part]) for key, part in others.items()})


@pytest.fixture(scope="module")
def whole(data, dask_cluster):
    """Fits of each case to a single chunk."""
    with Client(dask_cluster):
        return {name: fit(name, data, partial(cut, sizes=CUTS[0])) for name in CASES}


@pytest.mark.parametrize("sizes", CUTS[1:], ids=len)
@pytest.mark.parametrize("name", CASES)
def test_fit_does_not_depend_on_the_chunks(client, data, whole, name, sizes):
    """Only the order of sums differs; MedLDA uses single precision for word-topic tables."""
    found, expected = fit(name, data, partial(cut, sizes=sizes)), whole[name]
    for attribute in ("components_", "coef_features_", "intercept_", "mean_", "scale_"):
        if hasattr(expected, attribute) and not (attribute == "components_" and "medlda" in name):
            one, other = np.asarray(getattr(found, attribute)), np.asarray(getattr(expected, attribute))
            tol = 2e-3 if "medlda" in name else 1e-8
            np.testing.assert_allclose(one, other, rtol=0, atol=tol * max(1.0, np.abs(other).max()))
    assert found.trace_.objective[-1] == pytest.approx(expected.trace_.objective[-1], rel=1e-5)
    assert name == "alternation" or np.all(np.diff(found.trace_.objective) <= 1e-12)


@pytest.mark.parametrize("name", [name for name in CASES if "labels" in name or "numbers" in name or name[0] == "a"])
def test_fit_matches_plain_estimator(data, whole, name):
    """Initializations are equal; a relative gap of 1e-12 gives weights accurate to 1e-6."""
    _, X, y, others = CASES[name]
    plain = type(whole[name].to_local())(**whole[name].get_params())
    plain.fit(data[X], data[y], **{key: data[part] for key, part in others.items()})
    for attribute in ("mean_", "scale_", "noise_variance_", "prior_variance_", "generative_weight_"):
        if hasattr(plain, attribute):
            rtol = 1e-6 if name == "alternation" else 1e-10  # it also estimates variances
            np.testing.assert_allclose(getattr(whole[name], attribute), getattr(plain, attribute), rtol=rtol)
    rel = 2e-2 if "medlda" in name else 1e-4
    assert whole[name].trace_.objective[-1] == pytest.approx(plain.trace_.objective[-1], rel=rel)
    if hasattr(plain, "tasks_"):
        assert whole[name].tasks_.tolist() == plain.tasks_.tolist()


@pytest.mark.parametrize("name", CASES)
def test_lazy_predictions_match_plain_estimator(client, data, whole, name, tmp_path):
    model, (_, X, y, others) = whole[name], CASES[name]
    task = [data["group"]] if "task" in others else []
    lazy, lazy_task = cut(data[X], CUTS[1]), [cut(part, CUTS[1]) for part in task]
    assert not hasattr(model.to_local(), "embedding_")
    model.save(tmp_path / "model")
    for local in (model.to_local(), regbayes.load(tmp_path / "model"), pickle.loads(pickle.dumps(model))):
        assert (type(local) is type(model)) or type(local).__module__.startswith("regbayes.estimators")
        for method in ("predict", "decision_function", "transform", "feature_probabilities", "score_samples"):
            if hasattr(local, method):
                own = task if method in ("predict", "decision_function") else []
                expected = getattr(local, method)(data[X], *own)
                found = getattr(model, method)(lazy, *(lazy_task if own else []))
                np.testing.assert_array_equal(found.shape, np.shape(expected))
                if np.asarray(expected).dtype.kind == "f":
                    scale = max(1.0, np.nanmax(np.abs(expected)))
                    np.testing.assert_allclose(found.compute(), expected, rtol=0, atol=1e-5 * scale)
                else:
                    np.testing.assert_array_equal(found.compute(), expected)
    if y in ("classes", "topics", "rating", "numbers"):
        assert fits_its_rows(model.to_local().predict(data[X], *task), data[y]) or y == "numbers"


def test_inverse_transform_is_lazy(client, data, whole):
    model, lazy = whole["ibp"], cut(data["X"], CUTS[1])
    features = model.transform(lazy)
    expected = model.to_local().inverse_transform(features.compute())
    np.testing.assert_allclose(model.inverse_transform(features).compute(), expected, atol=1e-12)
    assert model.score(lazy) == pytest.approx(model.to_local().score(data["X"]), rel=1e-12)


def test_warm_start_resumes_a_fit(client, data, whole):
    X, y = (cut(data[name], CUTS[1]) for name in ("X", "classes"))
    again = pickle.loads(pickle.dumps(whole["ilsvm"])).set_params(warm_start=True, max_iter=1).fit(X, y)
    assert again.trace_.objective[0] <= whole["ilsvm"].trace_.objective[0]
    slab = IBPFactorAnalysis(4, slab="half-normal", max_iter=2, warm_start=True, random_state=0).fit(X)
    changed = slab.set_params(slab=None).fit(X)
    np.testing.assert_array_equal(changed.feature_probabilities(X).compute(), changed.transform(X).compute())


def test_tasks_may_have_different_classes(client, data):
    named = np.full((N, 2), None, dtype=object)
    named[:, 0] = data["classes"]
    seen = ~np.isnan(data["labels"][:, 0])
    named[seen, 1] = np.array(["no", "yes"])[data["labels"][seen, 0].astype(int)]
    model = MultiTaskILSVMClassifier(**GIVEN).fit(cut(data["X"], CUTS[1]), cut(named, CUTS[1]))
    plain = regbayes.MultiTaskILSVMClassifier(**GIVEN).fit(data["X"], named)
    assert [classes.tolist() for classes in model.classes_] == [classes.tolist() for classes in plain.classes_]
    scores = model.decision_function(cut(data["X"], CUTS[1]))
    for lazy, expected in zip(scores, plain.decision_function(data["X"]), strict=True):
        assert lazy.shape == expected.shape
        np.testing.assert_allclose(lazy.compute(), expected, atol=1e-3)


def test_fit_accepts_data_frames(client, data):
    frame = pd.DataFrame(data["X"], columns=list("abcdef")).join(pd.DataFrame(data["labels"], columns=list("wxyz")))
    frame = frame.assign(colour=data["classes"], group=data["group"], number=data["own"])
    table, rows = dd.from_pandas(frame, npartitions=3), list("abcdef")
    for model, y, others in [
        (ILSVMClassifier(**GIVEN), "colour", {}),
        (MultiTaskILSVMClassifier(**GIVEN), list("wxyz"), {}),
        (MultiTaskILSVMRegressor(**GIVEN), "number", {"task": "group"}),
    ]:
        model.set_params(max_iter=2).fit(table[rows], table[y], **{k: table[part] for k, part in others.items()})
        assert model.feature_names_in_.tolist() == rows
        answers = model.predict(table[rows], *(table[part] for part in others.values()))
        expected = model.to_local().predict(frame[rows], *(frame[part] for part in others.values()))
        np.testing.assert_array_equal(answers.compute(), expected)
        with pytest.raises(ValueError, match="feature names"):  # raised before any computation
            model.predict(table[list("bacdef")])
    with pytest.raises(ValueError, match="X has 3 features"):
        model.predict(cut(data["X"], CUTS[0])[:, :3], cut(data["group"], CUTS[0]))


def test_fit_does_not_depend_on_kind_of_chunks(client, data, whole):
    """Chunked columns, an empty chunk, unknown chunk sizes, arrays in memory and persisted collections."""
    lazy = da.from_array(data["X"], chunks=((300, 0, 600), (2, 4)))
    labels = cut(data["classes"], (300, 0, 600))
    unknown = lazy[lazy[:, 0] > -np.inf]
    assert np.isnan(unknown.shape[0])
    persisted = client.persist([lazy, labels])
    tables = client.persist([dd.from_dask_array(lazy), dd.from_dask_array(labels)])
    for X, y in [(lazy, data["classes"]), (unknown, labels), persisted, tables, (lazy, cut(data["classes"], CUTS[1]))]:
        found = ILSVMClassifier(**GIVEN, multi_class="ovr").fit(X, y)
        np.testing.assert_allclose(found.coef_features_, whole["ilsvm"].coef_features_, atol=1e-8)


@pytest.mark.parametrize("library", ["array_api_strict", "torch"])
@pytest.mark.parametrize("name", ["ilsvm", "ilsvm half-normal", "labels", "ragged numbers", "medlda"])
def test_fit_does_not_depend_on_array_library(data, whole, name, library):
    """Samples stay arrays of their library on the workers, here threads."""
    xp = pytest.importorskip(library)
    if name == "medlda" and library == "array_api_strict":
        pytest.skip("sums by word are not in the array API")

    def cut_there(values):
        if values.dtype.kind not in "if":
            return cut(values, CUTS[1])
        chunks = [values[first:end] for first, end in pairwise(np.cumsum((0, *CUTS[1])).tolist())]
        there = [dask.delayed(xp.asarray)(chunk.copy()) for chunk in chunks]
        return da.concatenate(
            [da.from_delayed(part, own.shape, own.dtype) for part, own in zip(there, chunks, strict=True)]
        )

    with (
        LocalCluster(n_workers=2, threads_per_worker=1, processes=False, dashboard_address=":0") as cluster,
        Client(cluster),
    ):
        found = fit(name, data, cut_there)
        features = found.transform(cut_there(data[CASES[name][1]])).compute()
    expected = whole[name].coef_features_
    tol = 2e-3 if name == "medlda" else 1e-5 if "half" in name else 1e-8
    np.testing.assert_allclose(found.coef_features_, expected, rtol=0, atol=tol * np.abs(expected).max())
    assert isinstance(features, np.ndarray)
    np.testing.assert_allclose(features, found.to_local().transform(data[CASES[name][1]]), atol=1e-5)


def test_blocks_may_lack_classes_or_labels(client, data):
    """A block may lack a class or all labels."""
    order = np.argsort(data["classes"], kind="stable")
    labels = data["classes"][order].copy()
    labels[:60] = "none"
    for margins in ("ovr", "crammer_singer"):
        one, two = (
            ILSVMClassifier(**GIVEN, multi_class=margins, unlabeled="none").fit(
                cut(data["X"][order], sizes), cut(labels, sizes)
            )
            for sizes in [(N,), (50, 850)]
        )
        assert one.classes_.tolist() == ["blue", "green", "red"]
        np.testing.assert_allclose(two.coef_features_, one.coef_features_, atol=1e-8)


def test_samples_with_zero_weight_are_ignored(client, data):
    X, y, weights = data["X"], data["classes"], (np.arange(N) % 3 > 0).astype(float)
    model = ILSVMClassifier(**GIVEN, multi_class="ovr", class_weight="balanced")
    weighted = clone(model).fit(cut(X, (400, 500)), cut(y, (N,)), cut(weights, (N,)))
    alone = clone(model).fit(cut(X[weights > 0], (300, 300)), cut(y[weights > 0], (600,)))
    np.testing.assert_allclose(weighted.coef_features_, alone.coef_features_, atol=1e-8)


def test_fit_supports_fewer_samples_than_workers(client, data):
    few = ILSVMClassifier(4, max_iter=1).fit(cut(data["X"][:3], (1, 1, 1)), cut(np.array([0, 1, 1]), (3,)))
    assert few.predict(cut(data["X"], (N,))).shape == (N,)


def test_partial_fit_resumes_a_fit(client, data, whole):
    X, y, model = data["X"], data["classes"], pickle.loads(pickle.dumps(whole["ilsvm"]))
    for method in (model.partial_fit, model.fit_weights):
        with pytest.raises(TypeError, match="takes samples in memory"):
            method(cut(X, (N,)), cut(y, (N,)))
    assert model.partial_fit(X[:70], y[:70]).n_samples_seen_ == N + 70


# --- invalid input


def text_later(block, block_info=None):
    return block if block_info[0]["chunk-location"][0] == 0 else block.astype(str)


BAD = {
    "missing X": (lambda X, y: (cut(np.where(X > 5.0, np.nan, X), (N,)), y), "block 0 .*NaN"),
    "X in memory": (lambda X, y: (X, y), "dask array or DataFrame"),
    "short y": (lambda X, y: (cut(X, (N,)), cut(y, (N,))[:800]), "X has 900 rows, but y has 800"),
    "one class": (lambda X, y: (cut(X, (N,)), cut(np.full(N, "red"), (N,))), "at least 2 classes"),
    "no y": (lambda X, y: (cut(X, (N,)), None), "requires y"),
    "rows not counted": (lambda X, y: (cut(X, (N,))[cut(X[:, 0], (N,)) > -9], y), "compute_chunk_sizes"),
    "numbers": (lambda X, y: (cut(X, (N,)), cut(X[:, 0], (N,))), "continuous"),
    "text": (
        lambda X, y: (cut(X, (400, 500)).map_blocks(lambda x: x.astype(str) + "a", dtype=float), y),
        "string to float.* X must hold numbers",
    ),
    "complex": (lambda X, y: (cut(X, (N,)) * 1j, y), "Complex data not supported. X must hold numbers"),
    "category": (
        lambda X, y: (dd.from_pandas(pd.DataFrame({"x": X[:, 0], "g": "a"}), npartitions=2), cut(y, (450, 450))),
        "Column 'g' of `X` has dtype",
    ),
    "sparse": (lambda X, y: (cut(X, (N,)).map_blocks(csr_array), y), "X is sparse, and must be dense here"),
    "no columns": (lambda X, y: (cut(X, (N,))[:, :0], y), "`X` has no columns"),
    "missing y": (lambda X, y: (cut(X, (N,)), np.where(y == "red", None, y.astype(object))), "y has missing values"),
    "two types": (lambda X, y: (cut(X, (N,)), np.where(y == "red", 1, y.astype(object))), "of several types"),
    "two kinds of y": (
        lambda X, y: (cut(X, (450, 450)), cut(np.arange(N) % 2, (450, 450)).map_blocks(text_later, dtype=object)),
        "text in some blocks and numbers in others",
    ),
    "negative weights": (lambda X, y: (cut(X, (N,)), y, -np.ones(N)), "[Nn]egative"),
}


@pytest.mark.parametrize("name", BAD)
def test_invalid_input_raises(client, data, name):
    make, message = BAD[name]
    with pytest.raises((ValueError, TypeError), match=message):
        ILSVMClassifier(**GIVEN).fit(*make(data["X"], data["classes"]))


def test_invalid_task_targets_raise(client, data):
    X, Y = (cut(data[name], CUTS[1]) for name in ("X", "labels"))
    nothing = da.full((N, M), np.nan, chunks=(CUTS[1], -1))
    kinds = cut(np.repeat([1, 2], N // 2), CUTS[1]).map_blocks(text_later, dtype=object)
    for y, task, message, options in [
        (nothing, None, "no observed target", {}),
        (da.concatenate([Y, nothing[:, :1]], axis=1), None, "no target is observed for task 4", {}),
        (Y, Y[:, 0], "one target per row", {}),
        (Y[:, 0], kinds, "text in some blocks and numbers in others", {}),
        (Y[:, 0], Y[:, 1], "task contains NaN", {}),
        (Y + np.inf, None, "infinity", {}),
        (Y, None, "task_sharing", {"unseen_tasks": "shared"}),
        (Y, None, "class of no task", {"class_weight": {5.0: 1.0}}),
    ]:
        with pytest.raises(ValueError, match=message):
            MultiTaskILSVMClassifier(**GIVEN, **options).fit(X, y, task)


@pytest.mark.parametrize(
    "model",
    [
        ILSVMClassifier(loss="hinge"),
        ILSVMClassifier(margins="posterior"),
        ILSVMClassifier(transductive=True),
        MultiTaskILSVMClassifier(loss="hinge"),
        MultiTaskILSVMRegressor(loss="epsilon_insensitive"),
        MedLDAClassifier(inference="gibbs"),
        MedLDAClassifier(loss="hinge"),
        MedLDARegressor(loss="epsilon_insensitive"),
    ],
)
def test_options_with_per_sample_state_raise(client, data, model):
    with pytest.raises(ValueError, match="keeps a result for every sample"):
        model.fit(cut(data["X"], (N,)), cut(data["classes"], (N,)))


def test_fit_without_cluster_raises(data):
    X, y = (cut(data[name], (N,)) for name in ("X", "classes"))
    with pytest.raises(ValueError, match="No Dask client"):
        ILSVMClassifier().fit(X, y)
    with pytest.raises(TypeError, match=r"must be a distributed\.Client; got str"):
        ILSVMClassifier().fit(X, y, client="tcp://127.0.0.1:8786")


def test_models_with_equal_parameters_have_different_tasks(data):
    X, y = data["X"][:200], data["own"][:200] > np.median(data["own"][:200])
    models = [regbayes.ILSVMClassifier(**GIVEN).fit(X, labels) for labels in (y, ~y)]
    blocks = cut(X, (120, 80))
    lazy = [blocks.map_blocks(model.predict, drop_axis=1, dtype=bool) for model in models]
    for found, model in zip(dask.compute(*lazy, scheduler="sync"), models, strict=True):
        np.testing.assert_array_equal(found, model.predict(X))
    assert dask.base.tokenize(models[0]) == dask.base.tokenize(pickle.loads(pickle.dumps(models[0])))


# --- components


def test_sample_matches_local_source_for_any_chunks(client):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(20_000, 2)), rng.choice(4, 20_000, p=[0.7, 0.2, 0.095, 0.005])
    strata = Strata(np.bincount(y), partial(code_labels, classes=np.arange(4), unlabeled=None, rest=0))
    expected = ArraySource(Samples(X, y)).sample(2000, strata)
    for sizes in [(20_000,), (1, 499, 19_500)]:
        found = DaskSource(client, cut(X, sizes), Reader(2), cut(y, sizes)).sample(2000, strata)
        np.testing.assert_array_equal(found.X, expected.X)
        np.testing.assert_array_equal(found.y, expected.y)
