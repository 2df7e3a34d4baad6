"""Coordinate ascent on simplexes and boxes: compiled passes match the reference and are optimal."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reference.box import reference_box_check, reference_box_epoch, reference_box_weights
from reference.simplex import reference_simplex_check, reference_simplex_epoch, reference_simplex_weights
from regbayes.kernels import box, simplex
from regbayes.kernels.box import BoxRows, BoxState
from regbayes.kernels.simplex import SimplexRows, SimplexState

SEEDS = st.integers(0, 2**32 - 1)


def simplex_problem(n, k, n_in_play, seed, free):
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(n, k)) * rng.integers(0, 2, size=(n, 1))  # includes zero rows
    labels = rng.integers(n_in_play, size=n)
    cost = rng.uniform(0.5, 2.0, size=(n_in_play, n_in_play))
    np.fill_diagonal(cost, 0.0)
    weight = rng.choice([0.0, 0.3, 2.0], size=n)
    total = np.full(n, np.inf) if free else weight
    ridge = np.divide(0.5, weight, out=np.full(n, np.inf), where=weight > 0) if free else np.zeros(n)
    norms = np.einsum("ij,ij->i", features, features)
    rows = SimplexRows(features, norms, labels, cost, labels, total, ridge, 0.0)
    return rows, [rng.permutation(n) for _ in range(6)]


def simplex_state(rows):
    n, n_in_play = rows.labels.size, rows.cost.shape[1]
    omega = np.zeros((n, n_in_play))
    is_fixed = np.isfinite(rows.total)
    omega[is_fixed, rows.labels[is_fixed]] = rows.total[is_fixed]
    classes = np.tile(np.arange(n_in_play, dtype=np.int16), (n, 1))
    weights = np.zeros((n_in_play, rows.features.shape[1]))
    return SimplexState(omega, weights, classes, np.full(n, n_in_play, dtype=np.int16))


def assert_same_answers_in_play(first, second):
    np.testing.assert_array_equal(first.in_play, second.in_play)
    for a, b, m in zip(first.classes, second.classes, first.in_play, strict=True):
        assert set(a[:m]) == set(b[:m])


@settings(max_examples=80, deadline=None)
@given(n=st.integers(0, 30), k=st.integers(1, 9), n_in_play=st.integers(1, 9), free=st.booleans(), seed=SEEDS)
def test_compiled_simplex_passes_match_the_reference(n, k, n_in_play, free, seed):
    rows, orders = simplex_problem(n, k, n_in_play, seed, free)
    expected, actual = simplex_state(rows), simplex_state(rows)
    for number, order in enumerate(orders):
        restart = number % 3 == 0
        seen = order if restart else order[actual.in_play[order] > 0]
        progress = simplex.simplex_epoch(rows, seen, restart, actual)
        expected_progress = reference_simplex_epoch(rows, seen, restart, expected)
        np.testing.assert_allclose(progress, expected_progress, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(actual.omega, expected.omega, atol=1e-10)
        np.testing.assert_allclose(actual.weights, expected.weights, atol=1e-9)
        assert_same_answers_in_play(actual, expected)
    np.testing.assert_allclose(simplex.simplex_check(rows, actual), reference_simplex_check(rows, actual), atol=1e-9)
    np.testing.assert_allclose(
        simplex.simplex_weights(rows, actual.omega), reference_simplex_weights(rows, actual.omega), atol=1e-12
    )


@settings(max_examples=60, deadline=None)
@given(n=st.integers(1, 20), k=st.integers(1, 5), n_in_play=st.integers(2, 6), free=st.booleans(), seed=SEEDS)
def test_simplex_passes_increase_the_dual_and_stay_feasible(n, k, n_in_play, free, seed):
    rows, orders = simplex_problem(n, k, n_in_play, seed, free)
    state = simplex_state(rows)
    value = simplex_dual_value(rows, state)
    for order in orders:
        simplex.simplex_epoch(rows, order, True, state)
        assert state.omega.min() >= 0.0
        if not free:
            np.testing.assert_allclose(state.omega.sum(axis=1), rows.total, atol=1e-12)
        np.testing.assert_allclose(state.weights, reference_simplex_weights(rows, state.omega), atol=1e-10)
        climbed = simplex_dual_value(rows, state)
        assert climbed >= value - 1e-10
        value = climbed
    loss, gap = simplex.simplex_check(rows, state)
    primal = 0.5 * np.sum(state.weights**2) + loss
    assert gap == pytest.approx(primal - value, abs=1e-9)
    assert gap >= 0.0


@pytest.mark.parametrize("free", [False, True])
@pytest.mark.parametrize("epoch", [simplex.simplex_epoch, reference_simplex_epoch])
def test_rows_of_small_norm_do_not_lower_the_dual(epoch, free):
    rows, orders = simplex_problem(40, 1, 3, 7, free)
    sizes = 10.0 ** -np.random.default_rng(7).uniform(0.0, 12.0, size=40)[:, None]  # norms of rows with a rare feature
    rows = rows._replace(features=sizes * rows.features, norms=rows.norms * sizes[:, 0] ** 2)
    state = simplex_state(rows)
    for order in orders:
        value = simplex_dual_value(rows, state)
        epoch(rows, order, True, state)
        assert simplex_dual_value(rows, state) >= value - 1e-12 * max(1.0, abs(value))


def simplex_dual_value(rows, state):
    squared_sums = np.where(state.omega.sum(axis=1) > 0.0, rows.ridge, 0.0) * state.omega.sum(axis=1) ** 2
    linear = np.sum(state.omega * rows.cost[rows.cost_row])
    return linear - 0.5 * np.sum(state.weights**2) - 0.5 * squared_sums.sum()


def box_problem(n, d, n_tasks, seed):
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(max(n // 2, 1), d)) * rng.integers(0, 2, size=(max(n // 2, 1), 1))
    lower = rng.choice([-np.inf, -1.0, 0.0, 0.2], size=n)
    upper = rng.choice([0.2, 0.5, np.inf], size=n)
    rows = BoxRows(
        features=features,
        norms=np.einsum("ij,ij->i", features, features),
        feature_row=rng.integers(len(features), size=n),
        task=rng.integers(n_tasks, size=n),
        group=rng.integers(2, size=n_tasks),
        linear=rng.normal(size=n),
        absolute=rng.choice([0.0, 0.3], size=n),
        ridge=rng.choice([0.0, 0.5], size=n),
        lower=lower,
        upper=upper,
        sharing=rng.choice([0.0, 2.0]),
        penalty=1e3,
    )
    return rows, [rng.permutation(n) for _ in range(6)]


def box_state(rows):
    dual = np.clip(np.zeros(rows.task.size), rows.lower, rows.upper)
    weights = reference_box_weights(rows, dual)
    common = np.zeros((2, weights.shape[1]))
    np.add.at(common, rows.group, weights)
    return BoxState(dual, weights, common, np.ones(dual.size, dtype=bool))


@settings(max_examples=80, deadline=None)
@given(n=st.integers(0, 40), d=st.integers(1, 9), n_tasks=st.integers(1, 4), seed=SEEDS)
def test_compiled_box_passes_match_the_reference(n, d, n_tasks, seed):
    rows, orders = box_problem(n, d, n_tasks, seed)
    expected, actual = box_state(rows), box_state(rows)
    for number, order in enumerate(orders):
        progress = box.box_epoch(rows, order, number % 3 == 0, actual)
        expected_progress = reference_box_epoch(rows, order, number % 3 == 0, expected)
        np.testing.assert_allclose(progress, expected_progress, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(actual.dual, expected.dual, atol=1e-9)
        np.testing.assert_allclose(actual.weights, expected.weights, atol=1e-9)
        np.testing.assert_array_equal(actual.in_play, expected.in_play)
    if rows.sharing > 0.0:
        np.testing.assert_allclose(actual.common, expected.common, atol=1e-9)
    np.testing.assert_allclose(box.box_check(rows, actual), reference_box_check(rows, actual), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(box.box_weights(rows, actual.dual), actual.weights, atol=1e-9)


def box_objective(rows, dual):
    weights = reference_box_weights(rows, dual)
    common = np.zeros((2, weights.shape[1]))
    np.add.at(common, rows.group, weights)
    quadratic = 0.5 * np.sum(weights**2) + 0.5 * rows.sharing * np.sum(common**2)
    return quadratic + np.sum(rows.linear * dual + rows.absolute * np.abs(dual) + 0.5 * rows.ridge * dual**2)


@settings(max_examples=60, deadline=None)
@given(n=st.integers(1, 12), d=st.integers(1, 5), n_tasks=st.integers(1, 4), seed=SEEDS)
def test_box_step_is_optimal_in_its_multiplier(n, d, n_tasks, seed):
    rows, _ = box_problem(n, d, n_tasks, seed)
    rng = np.random.default_rng(seed)
    state = box_state(rows)
    for i in rng.permutation(n):
        box.box_epoch(rows, np.array([i]), True, state)
        unbounded = np.isinf(rows.lower[i]) or np.isinf(rows.upper[i])
        if unbounded and rows.norms[rows.feature_row[i]] + rows.ridge[i] == 0.0:
            continue  # this multiplier is unbounded
        value = box_objective(rows, state.dual)
        low, high = np.maximum(rows.lower[i], -3.0), np.minimum(rows.upper[i], 3.0)
        for other in rng.uniform(low, high, size=20):
            changed = state.dual.copy()
            changed[i] = other
            assert box_objective(rows, changed) >= value - 1e-10
