"""Several tasks over a cluster of two processes: the fit of rows in memory, however they are cut, and after a loss."""

from __future__ import annotations

import pickle
from functools import partial

import dask.array as da
import numpy as np
import pytest
from sklearn.base import clone

import regbayes
from dask_tools import OneProcess, cut, fit_here, interfere, kill_one, quiet_marks
from regbayes.dask import MultiTaskILSVMClassifier, MultiTaskILSVMRegressor
from regbayes.dask import tasks as on_cluster
from regbayes.dask.blocks import _bytes_of
from regbayes.joint.problem import SampledHead
from regbayes.models.mt_ilsvm.fit import prepare

dd = pytest.importorskip("dask.dataframe")

N, D, M = 900, 6, 4
CUTS = [(N,), (300, 600), (1, 400, 99, 0, 350, 50)]  # one block, two, and five that have rows

pytestmark = quiet_marks()


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, D)) @ rng.normal(size=(D, D)) + 2.0
    numbers = 4.0 * X @ rng.normal(size=(D, M)) + 3.0 * rng.normal(size=(N, M)) + 10.0
    labels = (numbers > np.median(numbers, axis=0)).astype(float)
    numbers[rng.random((N, M)) < 0.3] = labels[rng.random((N, M)) < 0.3] = np.nan
    labels[:200, 1:] = np.nan  # a column that others do not go with
    return X, labels, numbers


@pytest.fixture(scope="module")
def ragged(data):
    """One number per row, three classes per row, and the group that the row belongs to; the last one is small."""
    rng = np.random.default_rng(1)
    group = np.array([f"g{place:02}" for place in rng.integers(0, 13, N)])
    group[:3] = "late"
    X = data[0]
    numbers = X @ rng.normal(size=D) + rng.normal(size=N)
    edges = np.median(numbers) + np.array([-1.0, 1.0])
    return numbers, np.array(["low", "mid", "top"])[np.digitize(numbers, edges)], group


def small(kind, **options):
    return kind(**{"n_components": 4, "max_iter": 4, "tol": 0.0, "random_state": 0, **options})


CASES = {
    "labels": (MultiTaskILSVMClassifier, {}),
    "numbers": (MultiTaskILSVMRegressor, {"epsilon": 0.1}),
    "shared": (MultiTaskILSVMClassifier, {"task_sharing": 0.7, "include_inputs": True, "class_weight": "balanced"}),
    "posterior": (MultiTaskILSVMRegressor, {"margins": "posterior", "noise_variance": "estimate"}),
}


@pytest.fixture(params=CASES)
def case(request, data):
    kind, options = CASES[request.param]
    return small(kind, **options), data[0], data[1 if kind is MultiTaskILSVMClassifier else 2]


def test_a_fit_does_not_depend_on_how_rows_are_cut(case, monkeypatch):
    model, X, Y = case
    one, *others = (fit_here(monkeypatch, clone(model), cut(X, sizes), cut(Y, sizes)) for sizes in CUTS)
    assert np.all(np.diff(one.trace_.objective) <= 1e-12) or model.margins == "posterior"
    for other in others:
        np.testing.assert_allclose(other.coef_features_, one.coef_features_, rtol=1e-10, atol=1e-10)
        np.testing.assert_allclose(other.components_, one.components_, atol=1e-10)


def test_it_is_the_fit_of_rows_in_memory(case, monkeypatch):
    model, X, Y = case
    weights = np.random.default_rng(2).integers(0, 3, N).astype(float)
    there = fit_here(monkeypatch, clone(model), cut(X, CUTS[1]), cut(Y, CUTS[1]), None, cut(weights, CUTS[1]))
    plain = model._plain(**model.get_params()).fit(X, Y, sample_weight=weights)
    for name in ("mean_", "scale_", "noise_variance_", "prior_variance_", "generative_weight_", "tasks_"):
        np.testing.assert_allclose(getattr(there, name), getattr(plain, name), rtol=1e-10)
    # A relative gap of 1e-12 leaves weights accurate to 1e-6, and steps multiply the difference.
    assert there.trace_.objective[-1] == pytest.approx(plain.trace_.objective[-1], rel=1e-4)
    np.testing.assert_allclose(there.components_, plain.components_, atol=1e-3)


@pytest.mark.parametrize("kind", [MultiTaskILSVMClassifier, MultiTaskILSVMRegressor])
def test_ragged_tasks(data, ragged, monkeypatch, kind):
    X, (numbers, classes, group) = data[0], ragged
    y = (classes if kind is MultiTaskILSVMClassifier else numbers).copy()
    if kind is MultiTaskILSVMRegressor:
        y[::7] = np.nan
    given = [[cut(part, sizes) for part in (X, y, group)] for sizes in CUTS]
    one, *others = (fit_here(monkeypatch, small(kind), *parts) for parts in given)
    for other in others:
        np.testing.assert_allclose(other.coef_features_, one.coef_features_, rtol=1e-10, atol=1e-10)
    plain = one._plain(**one.get_params()).fit(X, y, task=group)
    assert one.trace_.objective[-1] == pytest.approx(plain.trace_.objective[-1], rel=1e-6)
    assert one.tasks_.tolist() == plain.tasks_.tolist()
    X, y, group = given[1]
    answers = one.predict(X, group)
    assert answers.shape == (N,)
    np.testing.assert_array_equal(answers.compute(), one.to_local().predict(X.compute(), group.compute()))
    assert one.score(X, y, group) == pytest.approx(plain.score(*(part.compute() for part in given[1])), abs=1e-3)
    with pytest.raises(ValueError, match="task="):
        one.predict(X)


def test_the_objective_is_that_of_all_rows(data, monkeypatch):
    X, Y, _ = data
    model = fit_here(monkeypatch, small(MultiTaskILSVMClassifier), cut(X, CUTS[1]), cut(Y, CUTS[1]))
    rows, tasks = np.nonzero(~np.isnan(Y))
    cells, outputs = on_cluster.observe_labels(
        on_cluster.Targets("matrix", np.arange(M), rows, tasks, Y[rows, tasks]),
        on_cluster.Labels([np.array([0.0, 1.0])] * M, Y[rows, tasks].astype(int)),
    )
    settings = regbayes.estimators.multitask.make_settings(model.get_params(), 0.0)
    problem = prepare((X - model.mean_) / model.scale_, cells, outputs, settings)
    problem = problem.at_temperature(model.temperature_)
    found, _ = problem.evaluate(problem.model.at(model._state.latent), None, problem.tolerance)
    assert model.trace_.objective[-1] == pytest.approx(found.objective, rel=1e-8)


@pytest.mark.parametrize("margins", ["matrix", "ragged"])
def test_a_sample_of_the_curvature_leads_to_the_same_fit(data, ragged, monkeypatch, margins):
    X, _, numbers = data
    given = [cut(part, CUTS[1]) for part in ((X, numbers) if margins == "matrix" else (X, ragged[0], ragged[2]))]
    whole = fit_here(monkeypatch, small(MultiTaskILSVMRegressor), *given)
    monkeypatch.setattr(on_cluster, "SAMPLE_PER_WEIGHT", 4)
    shares = []

    def watch(problem, sample, share):
        shares.append(share)
        return SampledHead(problem, sample, share)

    monkeypatch.setattr(on_cluster, "SampledHead", watch)
    sampled = fit_here(monkeypatch, small(MultiTaskILSVMRegressor), *given)
    assert np.all(shares[0] > 0.0)
    assert np.median(shares[0]) < 0.5  # of small tasks all targets are taken
    # A relative gap of 1e-12 leaves weights, and with them steps, accurate to 1e-6.
    assert sampled.trace_.objective[-1] == pytest.approx(whole.trace_.objective[-1], rel=1e-5)
    np.testing.assert_allclose(sampled.components_, whole.components_, atol=1e-3)


def test_tasks_with_classes_of_their_own(data, monkeypatch):
    X, Y, numbers = data
    named = np.full((N, 2), None, dtype=object)
    named[:, 0] = np.array(["cat", "dog", "fox"])[np.digitize(np.nan_to_num(numbers[:, 0], nan=9.0), [5.0, 15.0])]
    named[~np.isnan(Y[:, 0]), 1] = np.array(["no", "yes"])[Y[~np.isnan(Y[:, 0]), 0].astype(int)]
    model = fit_here(monkeypatch, small(MultiTaskILSVMClassifier), cut(X, CUTS[2]), cut(named, CUTS[2]))
    plain = regbayes.MultiTaskILSVMClassifier(**model.get_params()).fit(X, named)
    assert [classes.tolist() for classes in model.classes_] == [classes.tolist() for classes in plain.classes_]
    scores = model.decision_function(cut(X, CUTS[1]))
    assert [part.shape for part in scores] == [(N, 3), (N,)]
    for lazy, found in zip(scores, plain.decision_function(X), strict=True):
        np.testing.assert_allclose(lazy.compute(), found, atol=1e-3)


def test_answers_that_are_worse_than_a_constant_are_noticed(data, monkeypatch):
    X, Y, _ = data
    model = small(MultiTaskILSVMClassifier, class_weight={0.0: 1.0, 1.0: 3.0})
    found = []

    def keep(self, placed, state):
        turned = state.tasks.weights.copy() * -1.0
        judge = partial(on_cluster.judge_fit, placed.prepared)
        found.append((judge(state), judge(turn(state, turned)), state))
        return ""

    def turn(state, weights):
        return on_cluster.replace(state, tasks=on_cluster.replace(state.tasks, weights=weights))

    monkeypatch.setattr(on_cluster.OnClusterTasks, "_find_fault", keep)
    fit_here(monkeypatch, model, cut(X, CUTS[2]), cut(Y, CUTS[2]))
    sound, turned, state = found[0]
    assert sound == ""
    # The plain estimator says the same, with the same numbers.
    plain = regbayes.MultiTaskILSVMClassifier(**model.get_params())
    seen = []
    monkeypatch.setattr(type(plain), "_find_fault", lambda self, problem, state: seen.append(problem) or "")
    plain.fit(X, Y)
    expected = regbayes.estimators.multitask.LatentTasks._find_fault(plain, seen[0], turn(state, -state.tasks.weights))
    assert turned == expected != ""


@pytest.mark.parametrize(("kind", "most"), [(MultiTaskILSVMClassifier, 3.5), (MultiTaskILSVMRegressor, 14.0)])
def test_targets_are_held_with_few_bytes_each(data, monkeypatch, kind, most):
    """As coordinates an observation would take 32 bytes: two places, a target and a weight."""
    X, labels, numbers = data
    Y = labels if kind is MultiTaskILSVMClassifier else numbers
    held = []
    keep = on_cluster.hold
    monkeypatch.setattr(on_cluster, "hold", lambda *given: held.append(keep(*given)) or held[-1])
    fit_here(monkeypatch, small(kind, max_iter=1), cut(X[200:], (700,)), cut(Y[200:], (700,)))
    cells = int(np.sum(~np.isnan(Y[200:])))
    assert _bytes_of(held[0].head) / cells <= most


def test_no_table_of_inputs_by_inputs_is_sent_to_rows(monkeypatch):
    rng, n_inputs = np.random.default_rng(0), 60
    X, Y = rng.normal(size=(300, n_inputs)), rng.normal(size=(300, 2))
    sent = []
    monkeypatch.setattr(OneProcess, "broadcast", lambda blocks, value: sent.append(pickle.dumps(value)) or value)
    model = fit_here(monkeypatch, small(MultiTaskILSVMRegressor), cut(X, (100, 200)), cut(Y, (100, 200)))
    assert sent
    assert max(map(len, sent)) <= 8 * model.components_.size + 4000  # logits, and some small change


# --- on the cluster


def test_a_killed_worker_costs_time_and_nothing_else(client, data, monkeypatch):
    X, labels, numbers = (cut(part, (300, 300, 300)) for part in data)
    for kind, Y in [(MultiTaskILSVMClassifier, labels), (MultiTaskILSVMRegressor, numbers)]:
        client.wait_for_workers(2)
        expected, killed = fit_here(monkeypatch, small(kind, max_iter=2), X, Y), []
        with monkeypatch.context() as patch:
            interfere(patch, 3, partial(kill_one, killed))
            found = small(kind, max_iter=2).fit(X, Y)
        assert len(killed) == 1
        np.testing.assert_allclose(found.coef_features_, expected.coef_features_, rtol=1e-10, atol=1e-10)
        np.testing.assert_allclose(found.components_, expected.components_, atol=1e-10)


def test_over_a_cluster_it_is_the_fit_of_one_process(client, data, ragged, monkeypatch):
    X, labels, numbers = data
    for kind, given in [
        (MultiTaskILSVMClassifier, (X, labels)),
        (MultiTaskILSVMRegressor, (X, numbers)),
        (MultiTaskILSVMRegressor, (X, ragged[0], ragged[2])),
    ]:
        there = small(kind).fit(*(cut(part, CUTS[2]) for part in given))
        here = fit_here(monkeypatch, small(kind), *(cut(part, (N,)) for part in given))
        np.testing.assert_allclose(there.coef_features_, here.coef_features_, rtol=1e-10, atol=1e-10)
        np.testing.assert_allclose(there.components_, here.components_, atol=1e-10)


def test_data_frames(client, data, ragged):
    pd = pytest.importorskip("pandas")
    X, labels, _ = data
    frame = pd.DataFrame(X, columns=list("abcdef")).join(pd.DataFrame(labels, columns=list("wxyz")))
    frame["group"], frame["number"] = ragged[2], ragged[0]
    table = dd.from_pandas(frame, npartitions=3)
    model = small(MultiTaskILSVMClassifier, max_iter=2).fit(table[list("abcdef")], table[list("wxyz")])
    assert model.tasks_.tolist() == list("wxyz")
    assert model.feature_names_in_.tolist() == list("abcdef")
    answers = model.predict(table[list("abcdef")]).compute()
    np.testing.assert_array_equal(answers, model.to_local().predict(frame[list("abcdef")]))
    groups = small(MultiTaskILSVMRegressor, max_iter=2)
    groups.fit(table[list("abcdef")], table["number"], task=table["group"])
    answers = groups.predict(table[list("abcdef")], table["group"]).compute()
    np.testing.assert_array_equal(answers, groups.to_local().predict(frame[list("abcdef")], frame["group"]))
    features = groups.transform(table[list("abcdef")]).compute()
    np.testing.assert_allclose(features, groups.to_local().transform(frame[list("abcdef")]), atol=1e-12)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"loss": "hinge"}, "keeps a result for every sample"),
        ({"unseen_tasks": "shared"}, "task_sharing"),
        ({"class_weight": {5.0: 1.0}}, "class of no task"),
    ],
)
def test_what_cannot_be_fitted_is_refused(data, monkeypatch, change, message):
    with pytest.raises(ValueError, match=message):
        fit_here(monkeypatch, small(MultiTaskILSVMClassifier, **change), *(cut(part, CUTS[1]) for part in data[:2]))


def test_bad_targets_are_named(data, monkeypatch):
    X, Y = (cut(part, CUTS[1]) for part in data[:2])
    nothing = da.full((N, M), np.nan, chunks=(CUTS[1], -1))
    empty_task = da.concatenate([Y, nothing[:, :1]], axis=1)
    two_kinds = da.from_array(np.repeat([1, 2], N // 2), chunks=(CUTS[1],)).map_blocks(text_later, dtype=object)
    for y, task, message in [
        (nothing, None, "no observed target"),
        (empty_task, None, "no target is observed for task 4"),
        (Y, Y[:, 0], "one target per row"),
        (Y[:, 0], two_kinds, "text in some blocks and numbers in others"),
        (Y[:, 0], Y[:, 0], "task contains NaN"),
        (Y + np.inf, None, "infinity"),
    ]:
        with pytest.raises(ValueError, match=message):
            fit_here(monkeypatch, small(MultiTaskILSVMClassifier), X, y, task)


def text_later(numbers, block_info=None):
    return numbers if block_info[0]["chunk-location"][0] == 0 else numbers.astype(str)
