"""Newton's method over rows of other array libraries: its systems, its curvature and its pieces, held to NumPy's."""

from __future__ import annotations

import numpy as np
import pytest

from array_namespaces import Place, list_places
from regbayes.kernels.arrays import to_host
from regbayes.kernels.arrays_losses import ClassRows, HingeRows, TubeRows
from regbayes.margins import device
from regbayes.margins.device import DeviceBlock, DeviceColumns, DevicePrior
from regbayes.margins.device_tasks import lay_out_targets
from regbayes.margins.head import MarginHead
from regbayes.margins.newton import MAX_DENSE, BoxBlock, SharedPrior, SimplexBlock
from regbayes.margins.targets import (
    Classes,
    Numbers,
    Signs,
    layout_of,
    observe_classes,
    observe_numbers,
    zero_one_cost,
)
from regbayes.margins.tasks import TaskHead


@pytest.fixture(params=list_places(), ids=lambda place: place.name)
def place(request: pytest.FixtureRequest) -> Place:
    return request.param


@pytest.mark.parametrize("sharing", [0.0, 0.7])
def test_a_system_for_each_task_is_solved_as_on_the_host(place: Place, sharing: float) -> None:
    rng = np.random.default_rng(0)
    roots, right, group = rng.normal(size=(5, 4, 9)), rng.normal(size=(5, 4)), np.array([0, 1, 0, 1, 1])
    curvature = roots @ roots.transpose(0, 2, 1)
    expected = SharedPrior(group, sharing).solve(curvature, right)
    found = DevicePrior(group, sharing).solve(place(curvature), right)
    assert isinstance(found, np.ndarray)
    np.testing.assert_allclose(found, expected, rtol=0, atol=100 * place.tol * np.abs(expected).max())


def test_one_system_of_all_weights_is_solved_as_on_the_host(place: Place) -> None:
    rng = np.random.default_rng(1)
    root, right, prior = rng.normal(size=(12, 20)), rng.normal(size=(3, 4)), SharedPrior(np.arange(3))
    curvature = (root @ root.T).reshape(3, 4, 3, 4)
    expected = prior.solve(curvature, right)
    np.testing.assert_allclose(
        curvature.reshape(12, 12) @ expected.ravel() + expected.ravel(), right.ravel(), atol=1e-12
    )
    found = DevicePrior(np.arange(3)).solve(place(curvature), right)
    np.testing.assert_allclose(found, expected, rtol=0, atol=100 * place.tol * np.abs(expected).max())


def test_a_curvature_of_many_classes_is_held_as_a_whole_on_the_device(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(2)
    n, d, L = 300, 40, 26
    assert L * d > MAX_DENSE
    monkeypatch.setattr(device, "SQUARE_ROOM", 100 * (d * (d + 1) + L * (L + 1)) // 2)  # three pieces
    features, labels, C = rng.normal(size=(n, d)), rng.integers(L, size=n), rng.random(n)
    C[:10] = 0.0
    weights, direction = 0.3 * rng.normal(size=(2, L, d))
    host = SimplexBlock(features, MarginHead(Classes(labels, zero_one_cost(L), C), squared=True).form, labels, 0.1)
    rows = ClassRows(place(C), place.make(labels), None, 0.1)
    block = DeviceBlock(DeviceColumns(place(features.T), np.zeros(d)), rows, keeps_curvature=True)
    curvature = block.curvature(weights)
    assert type(curvature) is type(place(features))
    expected = host.product(weights, direction)
    found = np.tensordot(to_host(curvature).astype(np.float64), direction, 2)
    np.testing.assert_allclose(found, expected, rtol=0, atol=100 * place.tol * np.abs(expected).max())


@pytest.mark.parametrize("rows_per_piece", [40, 101])
@pytest.mark.parametrize("kind", ["signs", "numbers", "classes"])
def test_rows_in_pieces_are_all_rows(
    place: Place, kind: str, rows_per_piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(3)
    n, d, M = 101, 5, 7
    features, C, weights = rng.normal(size=(n, d)), rng.random(n) + 0.5, rng.normal(size=(M, d))
    targets = {
        "signs": Signs(np.sign(rng.normal(size=(n, M))), np.outer(C, np.ones(M))),
        "numbers": Numbers(rng.normal(size=(n, M)), np.outer(C, np.ones(M)), 0.1),
        "classes": Classes(rng.integers(M, size=n), zero_one_cost(M), C),
    }[kind]
    form = MarginHead(targets, squared=True).form
    if kind == "classes":
        host = SimplexBlock(features, form, targets.labels, 0.1)
        rows = ClassRows(place(C), place.make(targets.labels), None, 0.1)
    elif kind == "signs":
        host = BoxBlock.of(features, form, layout_of(n, M))
        rows = HingeRows(place(C), signs=place.make(targets.signs.T.astype(np.int8)))
    else:
        host = BoxBlock.of(features, form, layout_of(n, M))
        rows = TubeRows(place(C), place(targets.values.T), 0.1)
    block = DeviceBlock(DeviceColumns(place(features.T), np.zeros(d)), rows)
    monkeypatch.setattr(device, "PASS_ROOM", 30 * M)
    assert len(list(block.evaluate(weights))) == 4
    expected, found = host.sums(weights), block.sums(weights)
    tol = 100 * place.tol
    for name in ("loss", "excess", "bias"):
        assert getattr(found, name) == pytest.approx(getattr(expected, name), abs=tol * abs(expected.loss))
    np.testing.assert_allclose(found.pulled, expected.pulled, rtol=0, atol=tol * np.abs(expected.pulled).max())
    phi, matrix = host.multipliers(weights).reshape(n, M), rng.normal(size=(2, M))
    np.testing.assert_allclose(to_host(block.multipliers(weights)), phi.T, rtol=0, atol=tol * np.abs(phi).max())
    np.testing.assert_allclose(
        to_host(block.pull_back(weights, matrix)), matrix @ phi.T, rtol=0, atol=tol * np.abs(phi).max() * M
    )
    monkeypatch.setattr(device, "SQUARE_ROOM", rows_per_piece * d * (d + 1) // 2)
    for at in (weights, 2.0 * weights):  # what is kept of the first is of use for the second
        curvature = host.curvature(at)
        np.testing.assert_allclose(block.curvature(at), curvature, rtol=0, atol=tol * np.abs(curvature).max())


@pytest.mark.parametrize("weighted", ["no", "rows", "cells"])
@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("loss", ["squared_hinge", "squared_epsilon_insensitive"])
def test_targets_that_are_laid_out_ask_for_what_was_observed(
    place: Place, loss: str, missing: bool, weighted: str
) -> None:
    rng = np.random.default_rng(4)
    n, M, d = 40, 3, 4
    seen = rng.random((n, M)) > (0.4 if missing else -1.0)
    rows, tasks = np.nonzero(seen)
    values = rng.normal(size=len(rows))
    if loss == "squared_hinge":
        observed, outputs = observe_classes(rows, tasks, (values > 0).astype(int), np.full(M, 2))
    else:
        observed, outputs = observe_numbers(rows, tasks, values, M)
    if weighted != "no":
        own = rng.integers(1, 4, size=n) if weighted == "rows" else None
        weights = own[observed.rows] * 1.0 if own is not None else rng.random(len(observed)) + 0.5
        observed = observed.__class__(observed.rows, observed.outputs, observed.targets, weights)
    head = TaskHead(observed, outputs, loss, 0.3, epsilon=0.1, fit_intercept=False)
    X, w = rng.normal(size=(n, d)), rng.normal(size=(M, d))
    laid_out = lay_out_targets(head, n, place(X))
    if loss == "squared_hinge":
        assert str(laid_out.signs.dtype).endswith("int8")
        assert laid_out.C.ndim == (2 if weighted != "rows" else 1)
    found = DeviceBlock(DeviceColumns(place(X.T), np.zeros(d)), laid_out).sums(w)
    expected = BoxBlock.of(X, head.form, observed.layout(outputs, 0.0)).sums(w)
    assert found.loss == pytest.approx(expected.loss, rel=100 * place.tol)
    np.testing.assert_allclose(
        found.pulled, expected.pulled, rtol=0, atol=100 * place.tol * np.abs(expected.pulled).max()
    )
