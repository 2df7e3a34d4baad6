"""Large-margin solves from warm starts, at limits, and on degenerate or invalid data."""

from __future__ import annotations

import numpy as np
import pytest

from large_margin_tools import (
    BINARY,
    MULTI_CLASS,
    TIGHT,
    binary_data,
    hinge_form,
    multi_class_data,
    multi_class_form,
    multi_class_primal,
    one_task,
    solve_classes,
    solve_one_task,
    squared_hinge_form,
    tube_form,
)
from regbayes.engine import Status
from regbayes.margins.ascent import BoxAscent, SimplexAscent, TaskLayout
from regbayes.margins.targets import Classes, zero_one_cost


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.mark.parametrize("loss", MULTI_CLASS)
def test_warm_start_at_the_solution_ends_at_once(rng, loss):
    X, labels = multi_class_data(rng)
    problem = (X, labels, zero_one_cost(4), 0.3, loss)
    solution = solve_classes(*problem, tol=1e-7, max_epochs=1e5)
    again = solve_classes(*problem, tol=1e-7, warm_start=solution.dual, seed=9)
    assert again.n_epochs <= 2.0
    assert again.primal - again.gap >= solution.primal - solution.gap - 1e-12
    assert solution.n_epochs > 5.0
    form = tube_form(labels.astype(float), 0.1, 0.5)
    box = solve_one_task(X, form, tol=1e-7)
    again = solve_one_task(X, form, tol=1e-7, warm_start=box.dual, seed=9)
    assert again.n_epochs <= 2.0


@pytest.mark.parametrize("loss", MULTI_CLASS)
def test_warm_start_from_another_C_is_made_feasible(rng, loss):
    X, labels = multi_class_data(rng)
    cost = zero_one_cost(4)
    weight = np.where(np.arange(len(X)) % 5 == 0, 0.0, 0.5)  # some rows have no loss
    start = solve_classes(X, labels, cost, 0.1, loss, tol=1e-3).dual
    warm = solve_classes(X, labels, cost, weight, loss, tol=1e-9, warm_start=start, max_epochs=1e5)
    kept = weight > 0
    cold = solve_classes(X[kept], labels[kept], cost, 0.5, loss, tol=1e-9, max_epochs=1e5)
    np.testing.assert_allclose(warm.weights, cold.weights, atol=1e-3)
    assert warm.primal == pytest.approx(cold.primal, rel=1e-7)
    np.testing.assert_array_equal(warm.dual[~kept], 0.0)


def test_warm_start_outside_the_box_is_clipped(rng):
    X, signs = binary_data(rng)
    start = solve_one_task(X * signs[:, None], hinge_form(len(X), 5.0)).dual
    warm = solve_one_task(X * signs[:, None], hinge_form(len(X), 0.1), warm_start=start, tol=TIGHT)
    cold = solve_one_task(X * signs[:, None], hinge_form(len(X), 0.1), tol=TIGHT)
    np.testing.assert_allclose(warm.weights, cold.weights, atol=1e-5)


def test_zero_epochs_evaluate_the_start(rng):
    X, labels = multi_class_data(rng)
    problem = (X, labels, zero_one_cost(4), 0.3)
    solution = solve_classes(*problem, tol=1e-6)
    looked_at = solve_classes(*problem, tol=1e-9, warm_start=solution.dual, max_epochs=0)
    assert looked_at.status is Status.ITERATION_LIMIT
    assert looked_at.n_epochs == 0.0
    np.testing.assert_array_equal(looked_at.dual, solution.dual)
    assert looked_at.primal == pytest.approx(solution.primal, rel=1e-12)
    for form in BINARY.values():
        nothing = solve_one_task(X, form(len(X), 0.3), max_epochs=0)
        assert nothing.n_epochs == 0.0
        assert nothing.primal == nothing.gap == pytest.approx(0.3 * len(X))


def test_visit_limit_is_respected_and_reported(rng):
    X, labels = multi_class_data(rng)
    solution = solve_classes(X, labels, zero_one_cost(4), 10.0, tol=TIGHT, max_epochs=3)
    assert solution.status is Status.ITERATION_LIMIT
    assert 3.0 <= solution.n_epochs < 4.0
    assert solution.gap > TIGHT * solution.primal


def test_infeasible_margins_are_not_reported_as_solved(rng):
    X, signs = binary_data(rng)
    X[0] = 0.0  # no weights can give this row a margin
    solution = solve_one_task(X * signs[:, None], hinge_form(len(X), np.inf))
    assert solution.status is Status.DIVERGED
    overlapping = solve_one_task(np.array([[1.0], [-1.0]]), hinge_form(2, np.inf), max_epochs=1e4)
    assert overlapping.status is Status.DIVERGED


def test_missing_values_are_not_reported_as_solved(rng):
    X, labels = multi_class_data(rng)
    X[7, 2] = np.nan
    for loss in MULTI_CLASS:
        assert solve_classes(X, labels, zero_one_cost(4), 0.3, loss).status is Status.DIVERGED
    for form in BINARY.values():
        assert solve_one_task(X, form(len(X), 0.3)).status is Status.DIVERGED


def test_data_are_not_modified(rng):
    X, labels = multi_class_data(rng)
    start = np.full((len(X), 4), 0.1)
    frozen = [X, labels, start]
    copies = [array.copy() for array in frozen]
    for array in frozen:
        array.flags.writeable = False
    solve_classes(X, labels, zero_one_cost(4), 0.4, warm_start=start)
    for form in BINARY.values():
        solve_one_task(X, form(len(X), 0.4), warm_start=start[:, 0])
    for array, copy in zip(frozen, copies, strict=True):
        np.testing.assert_array_equal(array, copy)


@pytest.mark.parametrize("convert", [np.float32, np.asfortranarray, lambda X: X[:, ::-1][:, ::-1]])
def test_storage_does_not_change_the_solution(rng, convert):
    X, labels = multi_class_data(rng)
    problem = (labels, zero_one_cost(4), 0.3)
    expected, actual = solve_classes(X, *problem, tol=1e-9), solve_classes(convert(X), *problem, tol=1e-9)
    np.testing.assert_allclose(actual.weights, expected.weights, atol=1e-4)
    assert actual.weights.dtype == np.float64
    for form in (tube_form(X[:, 0] ** 2, 0.1, 0.3), squared_hinge_form(len(X), 20.0)):
        expected, actual = solve_one_task(X, form, tol=1e-9), solve_one_task(convert(X), form, tol=1e-9)
        np.testing.assert_allclose(actual.weights, expected.weights, atol=1e-4)
        assert actual.weights.dtype == np.float64


@pytest.mark.parametrize("loss", MULTI_CLASS)
def test_degenerate_data_are_solved(rng, loss):
    X, labels = multi_class_data(rng, n=20, d=40)  # fewer rows than columns
    X[3] = 0.0
    X[5], labels[5] = X[4], (labels[4] + 1) % 4  # the same features with another class
    X[7], labels[7] = X[6], labels[6]
    X[:, 0] = 1.0  # a constant column
    X[3, 0] = 0.0
    cost = zero_one_cost(4)
    solution = solve_classes(X, labels, cost, 0.3, loss, tol=1e-8, max_epochs=1e5)
    assert solution.status is Status.CONVERGED
    slack = 1.0 if loss == "hinge" else 2.0 * 1.0  # row 3 loses 1 for any weights, so omega sums to loss'(1)
    assert solution.dual[3].sum() == pytest.approx(0.3 * slack)
    expected = multi_class_primal(X, labels, cost, 0.3, solution.weights, loss == "squared_hinge")
    assert solution.primal == pytest.approx(expected)


def test_zero_rows_give_zero_weights():
    empty = solve_classes(np.zeros((0, 3)), np.zeros(0, dtype=int), zero_one_cost(2), 1.0)
    assert empty.status is Status.CONVERGED
    np.testing.assert_array_equal(empty.weights, np.zeros((2, 3)))
    for make in BINARY.values():
        box = solve_one_task(np.zeros((0, 3)), make(3, 1.0).take(slice(0)))
        assert box.status is Status.CONVERGED
        assert box.primal == 0.0


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Classes(np.array([0, 2]), zero_one_cost(2), np.ones(2)), r"labels must lie in 0 \.\. 1"),
        (lambda: Classes(np.array([0, 1]), np.ones((2, 2)), np.ones(2)), "with zeros for the true classes"),
        (lambda: Classes(np.array([0, 1]), np.zeros((2, 3)), np.ones(2)), "cost must be a square matrix"),
        (
            lambda: SimplexAscent(np.zeros((2, 2)), multi_class_form([0, 1], np.ones((2, 2)), 1.0), [0, 1]),
            "cost of the true class must be zero",
        ),
        (
            lambda: SimplexAscent(np.zeros((2, 2)), multi_class_form([0, 1], zero_one_cost(2), 1.0), [0, 2]),
            "must have the same rows",
        ),
        (lambda: BoxAscent(np.zeros((3, 2)), hinge_form(4, 1.0), one_task(4)), "rows that fit"),
        (lambda: BoxAscent(np.zeros((3, 2)), hinge_form(4, 1.0), one_task(3)), "rows that fit"),
        (lambda: BoxAscent(np.zeros(3), hinge_form(3, 1.0), one_task(3)), "features must be a matrix"),
        (lambda: BoxAscent(np.zeros((3, 2)), hinge_form(2, 1.0), TaskLayout([0, 1], [0, 1], [0])), "rows that fit"),
        (
            lambda: solve_classes(np.zeros((1, 2)), np.array([0]), zero_one_cost(2), 1.0, warm_start=np.zeros((1, 3))),
            r"warm_start must have shape \(1, 2\)",
        ),
    ],
)
def test_mismatched_arguments_raise(build, message):
    with pytest.raises(ValueError, match=message):
        build()
