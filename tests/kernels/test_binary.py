"""Sweeps over binary features match their definition, and their reverse matches complex steps."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import expit

from regbayes.kernels.binary import reverse_features, sweep_features

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
    return sweep(theta, coupling, start, n_sweeps, np.empty(theta.shape))


def complex_sweeps(theta, coupling, start, n_sweeps):
    """Return the states by a formula that is analytic in theta and the coupling."""
    psi = np.zeros(theta.shape, dtype=complex) + start
    for _ in range(n_sweeps):
        for k in range(theta.shape[1]):
            others = np.arange(theta.shape[1]) != k
            psi[:, k] = 1.0 / (1.0 + np.exp(psi[:, others] @ coupling[k, others] - theta[:, k]))
    return psi


@settings(max_examples=60, deadline=None)
@given(n=st.integers(0, 150), k=st.integers(1, 14), per_row=st.booleans(), n_sweeps=SWEEPS, seed=SEEDS)
def test_sweeps_match_their_definition(n, k, per_row, n_sweeps, seed):
    theta, coupling, start, _ = sweep_problem(n, k, per_row, seed)
    actual = swept(sweep_features, theta, coupling, start, n_sweeps)
    np.testing.assert_allclose(actual, complex_sweeps(theta, coupling, start, n_sweeps).real, rtol=1e-10, atol=1e-300)


@settings(max_examples=60, deadline=None)
@given(n=st.integers(0, 150), k=st.integers(1, 14), n_sweeps=SWEEPS, seed=SEEDS)
def test_reverse_sweeps_match_complex_steps(n, k, n_sweeps, seed):
    theta, coupling, start, grad = sweep_problem(n, k, False, seed)
    psi, rows, step = swept(sweep_features, theta, coupling, start, n_sweeps), np.empty((n, k)), 1e-30
    sums = reverse_features(grad, psi, theta, coupling, start, n_sweeps, rows)
    np.testing.assert_allclose(sums.theta_sum, rows.sum(axis=0), atol=1e-10)
    rng = np.random.default_rng(seed)
    for _ in range(3):
        moves = rng.normal(size=(n, k)), rng.normal(size=(k, k))
        moved = theta + 1j * step * moves[0], coupling + 1j * step * moves[1]
        expected = np.sum(grad * complex_sweeps(*moved, start, n_sweeps)).imag / step
        found = np.vdot(rows, moves[0]) + np.vdot(sums.coupling, moves[1])
        assert found == pytest.approx(expected, rel=1e-8, abs=1e-9)


def test_many_sweeps_reach_the_mean_field_fixed_point():
    # With a positive definite coupling each step minimizes a convex function of one psi_k, so the sweeps converge.
    theta, coupling, start, _ = sweep_problem(40, 6, False, seed=3)
    coupling = coupling @ coupling.T / 6
    psi = swept(sweep_features, theta, coupling, start, 500)
    off_diagonal = coupling - np.diag(np.diag(coupling))
    np.testing.assert_allclose(psi, expit(theta - psi @ off_diagonal), atol=1e-12)


def test_sweeps_without_coupling_are_the_sigmoid():
    theta = np.concatenate([np.linspace(-60, 60, 4001), [-1e4, -709.0, 709.0, 1e4, np.inf, -np.inf]])[:, None]
    psi = swept(sweep_features, theta, np.full((1, 1), 9.0), np.full((1, 1), 0.3), 1)
    np.testing.assert_allclose(psi, expit(theta), rtol=1e-15, atol=1e-300)
    np.testing.assert_array_equal(
        swept(sweep_features, np.full((2, 1), np.nan), np.eye(1), np.zeros((1, 1)), 1), np.nan
    )


@pytest.mark.parametrize("n_sweeps", [1, 3])
def test_rows_swept_in_parts_are_bitwise_identical(n_sweeps):
    theta, coupling, start, grad = sweep_problem(500, 9, False, seed=0)
    psi = swept(sweep_features, theta, coupling, start, n_sweeps)
    rows = np.empty(theta.shape)
    sums = reverse_features(grad, psi, theta, coupling, start, n_sweeps, rows)
    parts = [slice(0, 64), slice(64, 65), slice(65, 300), slice(300, 500)]
    sums_of_parts = []
    for part in parts:
        again = swept(sweep_features, theta[part], coupling, start, n_sweeps)
        rows_again = np.empty(again.shape)
        of_part = reverse_features(grad[part], psi[part], theta[part], coupling, start, n_sweeps, rows_again)
        np.testing.assert_array_equal(again, psi[part])
        np.testing.assert_array_equal(rows_again, rows[part])
        sums_of_parts.append(of_part)
    for whole, *pieces in zip(sums[1:], *(part[1:] for part in sums_of_parts), strict=True):
        np.testing.assert_allclose(sum(pieces), whole, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("n_sweeps", [1, 2])
def test_sweeps_may_overwrite_their_input(n_sweeps):
    theta, coupling, start, grad = sweep_problem(130, 5, False, seed=1)
    expected = sweep_features(theta, coupling, start, n_sweeps)
    expected_rows = np.empty(theta.shape)
    reverse_features(grad, expected, theta, coupling, start, n_sweeps, expected_rows)
    reverse_features(grad, expected, theta, coupling, start, n_sweeps, grad)
    np.testing.assert_array_equal(grad, expected_rows)
    starts = np.repeat(start, len(theta), axis=0)
    sweep_features(theta, coupling, starts, n_sweeps, starts)
    np.testing.assert_allclose(starts, expected, rtol=1e-12)
    sweep_features(theta, coupling, start, n_sweeps, theta)
    np.testing.assert_array_equal(theta, expected)


def test_sweeps_accept_single_precision_and_any_layout():
    theta, coupling, start, _ = sweep_problem(100, 6, False, seed=2, dtype=np.float32)
    expected = swept(sweep_features, theta.astype(np.float64), coupling, start, 2)
    out = np.empty(theta.shape, dtype=np.float32)
    sweep_features(np.asfortranarray(theta), coupling, start, 2, out)
    np.testing.assert_allclose(out, expected, atol=1e-7)
    theta.flags.writeable = False
    sweep_features(theta, coupling, start, 2, out)
    np.testing.assert_allclose(out, expected, atol=1e-7)


def test_mismatched_shapes_raise():
    theta, coupling, start, grad = sweep_problem(5, 3, False, seed=0)
    for wrong in ((theta, coupling[:2], start, 1), (theta, coupling, start[:, :2], 1), (theta, coupling, start, 0)):
        with pytest.raises(ValueError, match="do not fit"):
            sweep_features(*wrong)
    with pytest.raises(ValueError, match="must have"):
        sweep_features(theta, coupling, start, 1, np.empty((4, 3)))
    with pytest.raises(ValueError, match="theta is needed"):
        reverse_features(grad, theta, None, coupling, start, 2)
    with pytest.raises(ValueError, match="must have the shape"):
        reverse_features(grad[:4], theta, theta, coupling, start, 1)
