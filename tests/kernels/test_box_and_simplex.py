"""Kernels: the compiled ones against the NumPy law, and the law against independent oracles."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import expit

from regbayes.kernels import box, simplex, sweeps
from regbayes.kernels.box import BoxRows, BoxState
from regbayes.kernels.simplex import SimplexRows, SimplexState
from regbayes.kernels.sweeps import (
    reference_reverse_features,
    reference_sweep_features,
    reverse_features,
    sweep_features,
)

SWEEPS = st.sampled_from([1, 2, 4])
SEEDS = st.integers(0, 2**32 - 1)


def sweep_problem(n, k, per_row, seed, dtype=np.float64):
    rng = np.random.default_rng(seed)
    theta = rng.normal(scale=2.0, size=(n, k)).astype(dtype)
    coupling = rng.normal(size=(k, k))
    start = rng.uniform(size=(n if per_row else 1, k))
    grad = rng.normal(size=(n, k))
    return theta, coupling, start, grad


def swept(sweep, theta, coupling, start, n_sweeps):
    out = np.empty(theta.shape)
    change = sweep(theta, coupling, start, n_sweeps, out)
    return out, change


@settings(max_examples=60, deadline=None)
@given(n=st.integers(0, 150), k=st.integers(1, 14), per_row=st.booleans(), n_sweeps=SWEEPS, seed=SEEDS)
def test_compiled_sweeps_match_the_reference(n, k, per_row, n_sweeps, seed):
    theta, coupling, start, _ = sweep_problem(n, k, per_row, seed)
    expected, expected_change = swept(reference_sweep_features, theta, coupling, start, n_sweeps)
    actual, change = swept(sweep_features, theta, coupling, start, n_sweeps)
    np.testing.assert_allclose(actual, expected, rtol=1e-10, atol=1e-300)
    assert change == pytest.approx(expected_change, rel=1e-10, abs=1e-12)


@settings(max_examples=60, deadline=None)
@given(n=st.integers(0, 150), k=st.integers(1, 14), per_row=st.booleans(), n_sweeps=SWEEPS, seed=SEEDS)
def test_compiled_reverse_sweeps_match_the_reference(n, k, per_row, n_sweeps, seed):
    theta, coupling, start, grad = sweep_problem(n, k, per_row, seed)
    psi, _ = swept(reference_sweep_features, theta, coupling, start, n_sweeps)
    expected_rows, actual_rows = np.empty((n, k)), np.empty((n, k))
    between = None if n_sweeps == 1 else theta
    expected = reference_reverse_features(grad, psi, between, coupling, start, n_sweeps, expected_rows)
    actual = reverse_features(grad, psi, between, coupling, start, n_sweeps, actual_rows)
    np.testing.assert_allclose(actual_rows, expected_rows, rtol=1e-9, atol=1e-11)
    for actual_sum, expected_sum in zip(actual, expected, strict=True):
        np.testing.assert_allclose(actual_sum, expected_sum, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("prefix", ["", "reference_"], ids=["compiled", "reference"])
@pytest.mark.parametrize("n_sweeps", [1, 2, 4])
@pytest.mark.parametrize("per_row", [False, True])
def test_reverse_sweeps_match_finite_differences(prefix, n_sweeps, per_row):
    sweep, reverse = (getattr(sweeps, prefix + name) for name in ("sweep_features", "reverse_features"))
    n, k = 5, 4
    theta, coupling, start, grad = sweep_problem(n, k, per_row, seed=n_sweeps)

    def value(flat):
        at_theta, at_coupling = flat[: n * k].reshape(n, k), flat[n * k :].reshape(k, k)
        return np.sum(grad * swept(sweep, at_theta, at_coupling, start, n_sweeps)[0])

    point = np.concatenate([theta.ravel(), coupling.ravel()])
    step = 1e-5
    numeric = np.array(
        [(value(point + step * unit) - value(point - step * unit)) / (2 * step) for unit in np.eye(point.size)]
    )
    psi, _ = swept(sweep, theta, coupling, start, n_sweeps)
    grad_theta = np.empty((n, k))
    sums = reverse(grad, psi, theta, coupling, start, n_sweeps, grad_theta)
    analytic = np.concatenate([grad_theta.ravel(), sums.coupling.ravel()])
    np.testing.assert_allclose(analytic, numeric, atol=1e-8)
    np.testing.assert_allclose(sums.theta_sum, grad_theta.sum(axis=0), atol=1e-12)


def test_many_sweeps_reach_the_mean_field_fixed_point():
    # With a positive definite coupling each step minimises a convex function of one psi_k: the sweeps converge.
    theta, coupling, start, _ = sweep_problem(40, 6, False, seed=3)
    coupling = coupling @ coupling.T / 6
    psi, change = swept(sweep_features, theta, coupling, start, 500)
    off_diagonal = coupling - np.diag(np.diag(coupling))
    np.testing.assert_allclose(psi, expit(theta - psi @ off_diagonal), atol=1e-12)
    assert change < 1e-12


def test_sweeps_without_coupling_are_the_sigmoid():
    theta = np.concatenate([np.linspace(-60, 60, 4001), [-1e4, -709.0, 709.0, 1e4, np.inf, -np.inf]])[:, None]
    psi, _ = swept(sweep_features, theta, np.full((1, 1), 9.0), np.full((1, 1), 0.3), 1)
    np.testing.assert_allclose(psi, expit(theta), rtol=1e-15, atol=1e-300)
    np.testing.assert_array_equal(
        swept(sweep_features, np.full((2, 1), np.nan), np.eye(1), np.zeros((1, 1)), 1)[0], np.nan
    )


@pytest.mark.parametrize("n_sweeps", [1, 3])
def test_rows_swept_in_parts_are_the_same_bits(n_sweeps):
    theta, coupling, start, grad = sweep_problem(500, 9, False, seed=0)
    psi, change = swept(sweep_features, theta, coupling, start, n_sweeps)
    rows = np.empty(theta.shape)
    sums = reverse_features(grad, psi, theta, coupling, start, n_sweeps, rows)
    parts = [slice(0, 64), slice(64, 65), slice(65, 300), slice(300, 500)]
    changes, sums_of_parts = [], []
    for part in parts:
        again, change_of_part = swept(sweep_features, theta[part], coupling, start, n_sweeps)
        rows_again = np.empty(again.shape)
        of_part = reverse_features(grad[part], psi[part], theta[part], coupling, start, n_sweeps, rows_again)
        np.testing.assert_array_equal(again, psi[part])
        np.testing.assert_array_equal(rows_again, rows[part])
        changes.append(change_of_part)
        sums_of_parts.append(of_part)
    assert sum(changes) == pytest.approx(change, rel=1e-12)
    for whole, *pieces in zip(sums, *sums_of_parts, strict=True):
        np.testing.assert_allclose(sum(pieces), whole, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("n_sweeps", [1, 2])
def test_sweeps_may_overwrite_their_input(n_sweeps):
    theta, coupling, start, grad = sweep_problem(130, 5, True, seed=1)
    expected, _ = swept(sweep_features, theta, coupling, start, n_sweeps)
    expected_rows = np.empty(theta.shape)
    reverse_features(grad, expected, theta, coupling, start, n_sweeps, expected_rows)
    reverse_features(grad, expected, theta, coupling, start, n_sweeps, grad)
    np.testing.assert_array_equal(grad, expected_rows)
    in_start = start.copy()
    sweep_features(theta, coupling, in_start, n_sweeps, in_start)
    np.testing.assert_array_equal(in_start, expected)
    sweep_features(theta, coupling, start, n_sweeps, theta)
    np.testing.assert_array_equal(theta, expected)


def test_sweeps_accept_single_precision_and_any_layout():
    theta, coupling, start, _ = sweep_problem(100, 6, False, seed=2, dtype=np.float32)
    expected, _ = swept(reference_sweep_features, theta.astype(np.float64), coupling, start, 2)
    out = np.empty(theta.shape, dtype=np.float32)
    sweep_features(np.asfortranarray(theta), coupling, start, 2, out)
    np.testing.assert_allclose(out, expected, atol=1e-7)
    theta.flags.writeable = False
    sweep_features(theta, coupling, start, 2, out)
    np.testing.assert_allclose(out, expected, atol=1e-7)


@pytest.mark.parametrize("reverse", [reverse_features, reference_reverse_features])
def test_reverse_of_several_sweeps_needs_theta(reverse):
    theta, coupling, start, grad = sweep_problem(3, 2, False, seed=0)
    with pytest.raises(ValueError, match="theta is needed"):
        reverse(grad, theta, None, coupling, start, 2, np.empty((3, 2)))


def simplex_problem(n, k, n_in_play, seed, free):
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(n, k)) * rng.integers(0, 2, size=(n, 1))  # zero rows among them
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
        expected_progress = simplex.reference_simplex_epoch(rows, seen, restart, expected)
        np.testing.assert_allclose(progress, expected_progress, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(actual.omega, expected.omega, atol=1e-10)
        np.testing.assert_allclose(actual.weights, expected.weights, atol=1e-9)
        assert_same_answers_in_play(actual, expected)
    np.testing.assert_allclose(
        simplex.simplex_check(rows, actual), simplex.reference_simplex_check(rows, actual), atol=1e-9
    )
    np.testing.assert_allclose(
        simplex.simplex_weights(rows, actual.omega), simplex.reference_simplex_weights(rows, actual.omega), atol=1e-12
    )


@settings(max_examples=60, deadline=None)
@given(n=st.integers(1, 20), k=st.integers(1, 5), n_in_play=st.integers(2, 6), free=st.booleans(), seed=SEEDS)
def test_simplex_passes_climb_and_keep_their_invariants(n, k, n_in_play, free, seed):
    rows, orders = simplex_problem(n, k, n_in_play, seed, free)
    state = simplex_state(rows)
    value = simplex_dual_value(rows, state)
    for order in orders:
        simplex.simplex_epoch(rows, order, True, state)
        assert state.omega.min() >= 0.0
        if not free:
            np.testing.assert_allclose(state.omega.sum(axis=1), rows.total, atol=1e-12)
        np.testing.assert_allclose(state.weights, simplex.reference_simplex_weights(rows, state.omega), atol=1e-10)
        climbed = simplex_dual_value(rows, state)
        assert climbed >= value - 1e-10
        value = climbed
    loss, gap = simplex.simplex_check(rows, state)
    primal = 0.5 * np.sum(state.weights**2) + loss
    assert gap == pytest.approx(primal - value, abs=1e-9)
    assert gap >= 0.0


@pytest.mark.parametrize("free", [False, True])
@pytest.mark.parametrize("epoch", [simplex.simplex_epoch, simplex.reference_simplex_epoch])
def test_rows_of_nearly_nothing_do_not_undo_the_climb(epoch, free):
    rows, orders = simplex_problem(40, 1, 3, 7, free)
    sizes = 10.0 ** -np.random.default_rng(7).uniform(0.0, 12.0, size=40)[:, None]  # as a feature few rows have
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
    weights = box.reference_box_weights(rows, dual)
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
        expected_progress = box.reference_box_epoch(rows, order, number % 3 == 0, expected)
        np.testing.assert_allclose(progress, expected_progress, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(actual.dual, expected.dual, atol=1e-9)
        np.testing.assert_allclose(actual.weights, expected.weights, atol=1e-9)
        np.testing.assert_array_equal(actual.in_play, expected.in_play)
    if rows.sharing > 0.0:
        np.testing.assert_allclose(actual.common, expected.common, atol=1e-9)
    np.testing.assert_allclose(box.box_check(rows, actual), box.reference_box_check(rows, actual), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(box.box_weights(rows, actual.dual), actual.weights, atol=1e-9)
    np.testing.assert_allclose(
        box.box_scores(rows, actual.weights), box.reference_box_scores(rows, actual.weights), atol=1e-9
    )


def box_objective(rows, dual):
    weights = box.reference_box_weights(rows, dual)
    common = np.zeros((2, weights.shape[1]))
    np.add.at(common, rows.group, weights)
    quadratic = 0.5 * np.sum(weights**2) + 0.5 * rows.sharing * np.sum(common**2)
    return quadratic + np.sum(rows.linear * dual + rows.absolute * np.abs(dual) + 0.5 * rows.ridge * dual**2)


@settings(max_examples=60, deadline=None)
@given(n=st.integers(1, 12), d=st.integers(1, 5), n_tasks=st.integers(1, 4), seed=SEEDS)
def test_a_box_step_beats_every_other_value_of_its_multiplier(n, d, n_tasks, seed):
    rows, _ = box_problem(n, d, n_tasks, seed)
    rng = np.random.default_rng(seed)
    state = box_state(rows)
    for i in rng.permutation(n):
        box.box_epoch(rows, np.array([i]), True, state)
        unbounded = np.isinf(rows.lower[i]) or np.isinf(rows.upper[i])
        if unbounded and rows.norms[rows.feature_row[i]] + rows.ridge[i] == 0.0:
            continue  # nothing bounds this multiplier
        value = box_objective(rows, state.dual)
        low, high = np.maximum(rows.lower[i], -3.0), np.minimum(rows.upper[i], 3.0)
        for other in rng.uniform(low, high, size=20):
            changed = state.dual.copy()
            changed[i] = other
            assert box_objective(rows, changed) >= value - 1e-10
