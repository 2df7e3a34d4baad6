"""Heads of several tasks over blocks of rows: against one array, CVXPY, finite differences, and any cut into blocks."""

from __future__ import annotations

from dataclasses import replace

import cvxpy as cp
import numpy as np
import pytest

from large_margin_tools import minimise
from regbayes.engine import Status, Threads
from regbayes.margins.cells import CellList, CellMatrix
from regbayes.margins.head import Tolerance
from regbayes.margins.targets import observe_classes, observe_numbers
from regbayes.margins.tasks import MIN_BLOCK_TARGETS, BlockwiseTasks, FittedTasks, TaskHead

EXACT = Tolerance(gap=1e-14, max_epochs=200.0)
N, K, TASKS = 40, 3, 4
LOSSES = ("squared_hinge", "squared_epsilon_insensitive")
OPTIONS = {
    "all": {},
    "missing": {"missing": 0.3},
    "few": {"missing": 0.85},
    "ragged": {"ragged": True},
    "shared": {"missing": 0.3, "sharing": 0.8},
    "weighted": {"missing": 0.2, "weighted": True, "sharing": 0.8},
    "inputs": {"missing": 0.2, "inputs": True, "sharing": 0.8},
    "no intercept": {"fit_intercept": False},
    "classes": {"n_classes": 3, "missing": 0.2, "sharing": 0.8, "costs": True},
    "no tube": {"epsilon": 0.0, "missing": 0.2},
}
CASES = [
    (loss, name)
    for loss in LOSSES
    for name in OPTIONS
    if not (name == "classes" and loss != "squared_hinge") and not (name == "no tube" and loss == "squared_hinge")
]


def make_head(loss, rng, *, missing=0.0, ragged=False, weighted=False, inputs=False, n_classes=2, costs=False, **given):
    """A head that takes blocks, and the features of all rows."""
    features = rng.normal(size=(N, K))
    scores = features @ rng.normal(size=(K, TASKS)) + 0.5 * rng.normal(size=(N, TASKS)) + 0.3
    there = np.arange(N)[:, None] * TASKS // N == np.arange(TASKS) if ragged else rng.random((N, TASKS)) >= missing
    there[0] = False  # a row without a target
    rows, tasks = np.nonzero(there)
    weights = (rng.integers(1, 4, N)[rows]).astype(float) if weighted else None
    if loss == "squared_hinge":
        labels = np.minimum((n_classes * (scores[there] > 0)).astype(int), n_classes - 1)
        if n_classes > 2:
            labels = rng.integers(0, n_classes, len(rows))
        tables = [rng.random((n_classes, n_classes)) for _ in range(TASKS)] if costs else None
        seen, outputs = observe_classes(rows, tasks, labels, np.full(TASKS, n_classes), weights, tables)
    else:
        seen, outputs = observe_numbers(rows, tasks, scores[there], TASKS, weights)
    chosen = {"epsilon": 0.1, "inputs": rng.normal(size=(N, 2)) if inputs else None, "input_factor": 0.7, **given}
    return TaskHead(seen, outputs, loss, 0.6, in_blocks=True, **chosen), features


def blocks_of(features, cut=(15, 0, 25)):
    return np.split(features, np.cumsum(cut)[:-1])


def gradient_of(fitted, blocks):
    ends = np.cumsum([0, *map(len, blocks)])
    parts = [fitted.gradient(slice(a, b), block) for a, b, block in zip(ends[:-1], ends[1:], blocks, strict=True)]
    return np.concatenate(parts)


@pytest.mark.parametrize(("loss", "name"), CASES)
def test_blocks_have_the_weights_that_one_array_has(loss, name):
    head, features = make_head(loss, np.random.default_rng(1), **OPTIONS[name])
    blocks = blocks_of(features)
    found = head.solve(blocks, None, EXACT)
    expected = replace(head, in_blocks=False).solve(blocks, None, Tolerance(1e-13, 2e4))
    assert isinstance(found, BlockwiseTasks)
    assert isinstance(expected, FittedTasks)
    assert found.status is Status.CONVERGED
    assert found.value == pytest.approx(expected.value, rel=1e-8)
    assert found.terms["kl_weights"] == pytest.approx(expected.terms["kl_weights"], rel=1e-6)
    np.testing.assert_allclose(found.weights.weights, expected.weights.weights, atol=1e-6)
    np.testing.assert_allclose(found.weights.shared, expected.weights.shared, atol=1e-6)
    np.testing.assert_allclose(gradient_of(found, blocks), gradient_of(expected, blocks), atol=1e-5)


@pytest.mark.parametrize(("loss", "name"), [("squared_hinge", "weighted"), ("squared_epsilon_insensitive", "inputs")])
def test_the_value_is_the_optimum_that_cvxpy_finds(loss, name):
    head, features = make_head(loss, np.random.default_rng(2), **OPTIONS[name])
    found = head.solve(blocks_of(features), None, EXACT)
    seen, cells = head.design(features), head.observations
    own, common = cp.Variable(found.weights.weights.shape), cp.Variable((1, seen.shape[1]))
    weights = own + head.sharing * np.ones((TASKS, 1)) @ common
    scores = cp.sum(cp.multiply(seen[cells.rows], np.eye(TASKS)[cells.outputs] @ weights), axis=1)
    if loss == "squared_hinge":
        missed = cp.pos(1.0 - cp.multiply(cells.targets, scores))
    else:
        missed = cp.pos(cp.abs(cells.targets - scores) - head.epsilon)
    losses = head.C * cells.weights @ cp.square(missed)
    optimum = minimise(0.5 * cp.sum_squares(own) + 0.5 * cp.sum_squares(common) + losses)
    assert found.value == pytest.approx(optimum, rel=1e-8)


@pytest.mark.parametrize(("loss", "name"), CASES)
def test_the_gradient_is_the_derivative_of_the_value_by_features(loss, name):
    rng = np.random.default_rng(3)
    head, features = make_head(loss, rng, **OPTIONS[name])
    fitted = head.solve(blocks_of(features), None, EXACT)
    gradient = gradient_of(fitted, blocks_of(features))
    assert gradient.shape == (N, K)
    for _ in range(3):
        step = 1e-5 * rng.normal(size=features.shape)
        ahead, behind = (
            head.solve(blocks_of(features + side * step), fitted.warm_start, EXACT).value for side in (1, -1)
        )
        assert 0.5 * (ahead - behind) == pytest.approx(np.vdot(gradient, step), rel=1e-4, abs=1e-9)


@pytest.mark.parametrize(("loss", "name"), CASES)
def test_any_cut_into_blocks_and_any_number_of_threads_ends_at_the_same_weights(loss, name):
    head, features = make_head(loss, np.random.default_rng(4), **OPTIONS[name])
    blocks = blocks_of(features)
    first = head.solve(blocks, None, EXACT)
    for cut in ([N], [1, 3, 36], [N // 4] * 4, [1] * N):
        other = head.solve(blocks_of(features, cut), None, EXACT)
        np.testing.assert_allclose(other.weights.weights, first.weights.weights, atol=1e-10)
        np.testing.assert_allclose(
            gradient_of(other, blocks_of(features, cut)), gradient_of(first, blocks), rtol=0, atol=1e-9
        )
    for n_threads in (2, 5):
        other = replace(head, C=head.C).solve(blocks, None, EXACT, Threads(n_threads))
        np.testing.assert_array_equal(other.weights.weights, first.weights.weights)
        np.testing.assert_array_equal(gradient_of(other, blocks), gradient_of(first, blocks))


def test_cells_are_a_matrix_where_most_exist_and_take_few_bytes():
    rng = np.random.default_rng(5)
    kinds, sizes = {}, {}
    for name in ("all", "missing", "few", "ragged", "weighted"):
        head, features = make_head("squared_hinge", rng, **OPTIONS[name])
        (part,) = head.parts((N,), Threads(1))
        kinds[name] = type(part.targets.bind(features))
        losses = part.targets.losses
        sizes[name] = sum(a.nbytes for a in vars(losses).values() if a is not None) / len(head.observations)
    assert kinds.pop("few") is kinds.pop("ragged") is CellList
    assert set(kinds.values()) == {CellMatrix}
    assert sizes["all"] <= 2.2  # a sign, and minus the sign; the rest once
    assert sizes["weighted"] <= 6.0  # and the weights once for each row
    ragged, features = make_head("squared_hinge", rng, **OPTIONS["ragged"])
    blocks = [part.targets.bind(features) for part in ragged.parts((N // 4,) * 4, Threads(1))]
    assert [block.outputs.tolist() for block in blocks] == [[0], [1], [2], [3]]  # no products with what is not there


# --- many rows: the curvature of a sample -----------------------------------------------------------------------------


def many_rows(loss, layout, rng, n=12_000, n_features=5, n_tasks=4):
    features = rng.random((n, n_features)) * (rng.random((n, n_features)) < 0.4)
    scores = 3.0 * features @ rng.normal(size=(n_features, n_tasks)) + rng.normal(size=(n, n_tasks))
    if layout == "ragged":
        there = np.arange(n)[:, None] * n_tasks // n == np.arange(n_tasks)
    elif layout == "complete":
        there = np.full((n, n_tasks), True)
    else:
        there = rng.random((n, n_tasks)) < np.array([0.9, 0.9, 0.8, 0.01])  # the last task is rare
    rows, tasks = np.nonzero(there)
    if loss == "squared_hinge":
        seen = observe_classes(rows, tasks, (scores[there] > 0.5).astype(int), np.full(n_tasks, 2))
    else:
        seen = observe_numbers(rows, tasks, scores[there], n_tasks)
    head = TaskHead(*seen, loss, 0.5, epsilon=0.2, sharing=0.7, in_blocks=True)
    return head, [features[:7000], features[7000:]]


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("layout", ["matrix", "ragged"])
def test_few_passes_solve_many_rows_to_a_certified_gap(loss, layout):
    rng = np.random.default_rng(6)
    head, blocks = many_rows(loss, layout, rng)
    assert head._draw(50 * 6) is not None  # it is a sample that the curvature comes from
    found = head.solve(blocks, None, Tolerance(1e-4, 12.0))
    exact = head.solve(blocks, found.warm_start, EXACT)
    assert found.n_passes <= 12
    assert found.gap <= 1e-4 * found.value
    assert 0.0 <= found.value - exact.value <= found.gap * (1.0 + 1e-9)  # the certificate
    moved = [block + 0.01 * rng.normal(size=block.shape) for block in blocks]
    again = head.solve(moved, found.warm_start, Tolerance(1e-4, 12.0))
    assert again.n_passes <= 4
    assert again.gap <= 1e-4 * again.value


@pytest.mark.parametrize("layout", ["complete", "ragged"])
def test_one_step_solves_parabolas_of_many_rows_where_a_small_gap_is_asked_for(layout):
    head, blocks = many_rows("squared_epsilon_insensitive", layout, np.random.default_rng(6))
    head = replace(head, epsilon=0.0)
    found = head.solve(blocks, None, Tolerance(1e-11, 12.0), Threads(2))
    assert found.n_passes <= 3  # two looks, and one more where the last bits ask for it
    assert found.gap <= 1e-11 * found.value
    sampled = head.solve(blocks, None, Tolerance(1e-2, 12.0))
    assert sampled.value - sampled.gap <= found.value <= sampled.value  # both certificates hold
    array = replace(head, in_blocks=False).solve(blocks, None, Tolerance(1e-11, 1000.0))
    np.testing.assert_allclose(found.weights.weights, array.weights.weights, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("layout", ["matrix", "ragged"])
def test_a_sample_stands_for_all_observations_of_every_output(layout):
    head, _ = many_rows("squared_hinge", layout, np.random.default_rng(7))
    draw, observed = head._draw(300), head.observations
    counts, edges = np.bincount(observed.outputs), np.cumsum([0, *map(len, draw.places)])
    prices = 0.5 / draw.form.ridge
    for output, places in enumerate(draw.places):
        rows = draw.rows[places]
        assert len(np.unique(rows)) == len(rows)
        assert np.isin(rows, observed.rows[observed.outputs == output]).all()
        assert len(rows) == pytest.approx(min(300, counts[output]), rel=0.2)
        mine = prices[edges[output] : edges[output + 1]]
        assert mine.sum() == pytest.approx(head.C * counts[output], rel=1e-12)  # what all of them cost
    if layout == "matrix":  # outputs that most rows have were drawn together
        assert len(draw.rows) <= 300 / 0.8 + np.sum(counts[counts <= 300]) + 1
    assert head._draw(6000) is None  # more than half of the observations


def test_rows_stay_in_blocks_where_observations_are_many_and_the_loss_is_smooth():
    n = MIN_BLOCK_TARGETS // 2
    rows, tasks = np.repeat(np.arange(n), 2), np.tile([0, 1], n)
    seen, outputs = observe_numbers(rows, tasks, np.zeros(2 * n), 2)
    head = TaskHead(seen, outputs, "squared_epsilon_insensitive", 1.0)
    assert head.takes_blocks(10)
    assert not replace(head, loss="epsilon_insensitive").takes_blocks(10)  # no curvature
    assert not replace(head, observations=seen.take(slice(2 * n - 1))).takes_blocks(10)
    assert not head.takes_blocks(n // 10)  # few observations for each weight


def test_weights_of_one_array_are_a_start_for_blocks_and_the_other_way_round():
    head, features = make_head("squared_hinge", np.random.default_rng(8), **OPTIONS["shared"])
    over_one_array = replace(head, in_blocks=False)
    expected = over_one_array.solve(features, None, Tolerance(1e-13, 2e4))
    found = head.solve([features], expected.warm_start, Tolerance(1e-8, 200.0))
    assert found.n_passes == 1
    assert found.value == pytest.approx(expected.value, rel=1e-8)
    again = over_one_array.solve(features, found.warm_start, Tolerance(1e-8, 200.0))
    assert again.value == pytest.approx(expected.value, rel=1e-7)
