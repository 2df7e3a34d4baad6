"""Coordinate ascent on simplexes and boxes: passes improve the dual and certify it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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


def sum_simplexes(rows, omega):
    signed = np.eye(omega.shape[1])[rows.labels] * omega.sum(axis=1, keepdims=True) - omega
    return signed.T @ rows.features


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
        np.testing.assert_allclose(state.weights, sum_simplexes(rows, state.omega), atol=1e-10)
        climbed = simplex_dual_value(rows, state)
        assert climbed >= value - 1e-10
        value = climbed
    loss, gap = simplex.simplex_check(rows, state)
    primal = 0.5 * np.sum(state.weights**2) + loss
    assert gap == pytest.approx(primal - value, abs=1e-9)
    assert gap >= 0.0


@pytest.mark.parametrize("free", [False, True])
def test_rows_of_small_norm_do_not_lower_the_dual(free):
    rows, orders = simplex_problem(40, 1, 3, 7, free)
    sizes = 10.0 ** -np.random.default_rng(7).uniform(0.0, 12.0, size=40)[:, None]  # norms of rows with a rare feature
    rows = rows._replace(features=sizes * rows.features, norms=rows.norms * sizes[:, 0] ** 2)
    state = simplex_state(rows)
    for order in orders:
        value = simplex_dual_value(rows, state)
        simplex.simplex_epoch(rows, order, True, state)
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
    return BoxState(dual, *sum_boxes(rows, dual), np.ones(dual.size, dtype=bool))


def sum_boxes(rows, dual):
    """Return the sums of the multipliers times features by task, and by group."""
    weights, common = np.zeros((len(rows.group), rows.features.shape[1])), np.zeros((2, rows.features.shape[1]))
    np.add.at(weights, rows.task, dual[:, None] * rows.features[rows.feature_row])
    np.add.at(common, rows.group, weights)
    return weights, common


def box_objective(rows, dual):
    weights, common = sum_boxes(rows, dual)
    quadratic = 0.5 * np.sum(weights**2) + 0.5 * rows.sharing * np.sum(common**2)
    return quadratic + np.sum(rows.linear * dual + rows.absolute * np.abs(dual) + 0.5 * rows.ridge * dual**2)


@settings(max_examples=60, deadline=None)
@given(n=st.integers(1, 40), d=st.integers(1, 9), n_tasks=st.integers(1, 4), seed=SEEDS)
def test_box_passes_lower_the_dual_to_a_certified_gap(n, d, n_tasks, seed):
    rows, orders = box_problem(n, d, n_tasks, seed)
    rows = rows._replace(lower=np.maximum(rows.lower, -2.0), upper=np.minimum(rows.upper, 3.0))  # a bounded dual
    state = box_state(rows)
    value = box_objective(rows, state.dual)
    for number, order in enumerate(orders):
        box.box_epoch(rows, order, number % 3 == 0, state)
        lowered = box_objective(rows, state.dual)
        assert lowered <= value + 1e-10
        value = lowered
    weights, common = sum_boxes(rows, state.dual)
    np.testing.assert_allclose(state.weights, weights, atol=1e-9)
    loss, gap = box.box_check(rows, state)
    primal = 0.5 * np.sum(weights**2) + 0.5 * rows.sharing * np.sum(common**2) + loss
    assert gap == pytest.approx(primal + value, abs=1e-9)  # the dual is minus this value
    assert gap >= -1e-12


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
