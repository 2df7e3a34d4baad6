"""Kernels: the compiled ones against the NumPy law, and the law against independent oracles."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import expit

from regbayes.kernels import cpu, reference
from regbayes.kernels.chunks import CHUNK_ROWS, chunk_bounds, map_chunks
from regbayes.kernels.dispatch import get_backend

SWEEPS = st.sampled_from([1, 2, 4])
SEEDS = st.integers(0, 2**32 - 1)


def sweep_problem(n, k, per_row, seed, dtype=np.float64):
    rng = np.random.default_rng(seed)
    theta = rng.normal(scale=2.0, size=(n, k)).astype(dtype)
    coupling = rng.normal(size=(k, k))
    start = rng.uniform(size=(n if per_row else 1, k))
    grad = rng.normal(size=(n, k))
    return theta, coupling, start, grad


def swept(kernels, theta, coupling, start, n_sweeps, n_threads=1):
    out = np.empty(theta.shape)
    change = kernels.sweep_features(theta, coupling, start, n_sweeps, out, n_threads)
    return out, change


def test_dispatch_serves_each_backend():
    assert get_backend() is cpu
    assert get_backend("cpu") is cpu
    assert get_backend("reference") is reference


@pytest.mark.parametrize("n_rows", [0, 1, CHUNK_ROWS - 1, CHUNK_ROWS, CHUNK_ROWS + 1, 5 * CHUNK_ROWS + 7])
@pytest.mark.parametrize("n_threads", [1, 3])
def test_chunks_partition_the_rows_in_order(n_rows, n_threads):
    pieces = map_chunks(lambda chunk, first, last: (chunk, list(range(first, last))), n_rows, n_threads)
    assert [chunk for chunk, _ in pieces] == list(range(len(chunk_bounds(n_rows))))
    assert [row for _, rows in pieces for row in rows] == list(range(n_rows))


@settings(max_examples=60, deadline=None)
@given(n=st.integers(0, 150), k=st.integers(1, 14), per_row=st.booleans(), n_sweeps=SWEEPS, seed=SEEDS)
def test_compiled_sweeps_match_the_reference(n, k, per_row, n_sweeps, seed):
    theta, coupling, start, _ = sweep_problem(n, k, per_row, seed)
    expected, expected_change = swept(reference, theta, coupling, start, n_sweeps)
    actual, change = swept(cpu, theta, coupling, start, n_sweeps)
    np.testing.assert_allclose(actual, expected, rtol=1e-10, atol=1e-300)
    assert change == pytest.approx(expected_change, rel=1e-10, abs=1e-12)


@settings(max_examples=60, deadline=None)
@given(n=st.integers(0, 150), k=st.integers(1, 14), per_row=st.booleans(), n_sweeps=SWEEPS, seed=SEEDS)
def test_compiled_reverse_sweeps_match_the_reference(n, k, per_row, n_sweeps, seed):
    theta, coupling, start, grad = sweep_problem(n, k, per_row, seed)
    psi, _ = swept(reference, theta, coupling, start, n_sweeps)
    expected_rows, actual_rows = np.empty((n, k)), np.empty((n, k))
    between = None if n_sweeps == 1 else theta
    expected = reference.reverse_features(grad, psi, between, coupling, start, n_sweeps, expected_rows)
    actual = cpu.reverse_features(grad, psi, between, coupling, start, n_sweeps, actual_rows)
    np.testing.assert_allclose(actual_rows, expected_rows, rtol=1e-9, atol=1e-11)
    for actual_sum, expected_sum in zip(actual, expected, strict=True):
        np.testing.assert_allclose(actual_sum, expected_sum, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("kernels", [reference, cpu], ids=["reference", "cpu"])
@pytest.mark.parametrize("n_sweeps", [1, 2, 4])
@pytest.mark.parametrize("per_row", [False, True])
def test_reverse_sweeps_match_finite_differences(kernels, n_sweeps, per_row):
    n, k = 5, 4
    theta, coupling, start, grad = sweep_problem(n, k, per_row, seed=n_sweeps)
    shapes = [theta.shape, coupling.shape, start.shape]
    splits = np.cumsum([np.prod(shape) for shape in shapes])[:-1]

    def value(flat):
        pieces = [piece.reshape(shape) for piece, shape in zip(np.split(flat, splits), shapes, strict=True)]
        return np.sum(grad * swept(kernels, *pieces, n_sweeps)[0])

    point = np.concatenate([theta.ravel(), coupling.ravel(), start.ravel()])
    step = 1e-5
    numeric = np.array(
        [(value(point + step * unit) - value(point - step * unit)) / (2 * step) for unit in np.eye(point.size)]
    )
    psi, _ = swept(kernels, theta, coupling, start, n_sweeps)
    grad_theta = np.empty((n, k))
    sums = kernels.reverse_features(grad, psi, theta, coupling, start, n_sweeps, grad_theta)
    analytic = np.concatenate([grad_theta.ravel(), sums.coupling.ravel(), sums.start.ravel()])
    np.testing.assert_allclose(analytic, numeric, atol=1e-8)
    np.testing.assert_allclose(sums.theta_sum, grad_theta.sum(axis=0), atol=1e-12)


def test_many_sweeps_reach_the_mean_field_fixed_point():
    # With a positive definite coupling each step minimises a convex function of one psi_k: the sweeps converge.
    theta, coupling, start, _ = sweep_problem(40, 6, False, seed=3)
    coupling = coupling @ coupling.T / 6
    psi, change = swept(cpu, theta, coupling, start, 500)
    off_diagonal = coupling - np.diag(np.diag(coupling))
    np.testing.assert_allclose(psi, expit(theta - psi @ off_diagonal), atol=1e-12)
    assert change < 1e-12


def test_sweeps_without_coupling_are_the_sigmoid():
    theta = np.concatenate([np.linspace(-60, 60, 4001), [-1e4, -709.0, 709.0, 1e4, np.inf, -np.inf]])[:, None]
    psi, _ = swept(cpu, theta, np.full((1, 1), 9.0), np.full((1, 1), 0.3), 1)
    np.testing.assert_allclose(psi, expit(theta), rtol=1e-15, atol=1e-300)
    np.testing.assert_array_equal(swept(cpu, np.full((2, 1), np.nan), np.eye(1), np.zeros((1, 1)), 1)[0], np.nan)


@pytest.mark.parametrize("n_sweeps", [1, 3])
def test_sweeps_do_not_depend_on_the_number_of_threads(n_sweeps):
    theta, coupling, start, grad = sweep_problem(3 * CHUNK_ROWS + 100, 9, False, seed=0)
    psi, change = swept(cpu, theta, coupling, start, n_sweeps)
    rows = np.empty(theta.shape)
    sums = cpu.reverse_features(grad, psi, theta, coupling, start, n_sweeps, rows)
    for n_threads in (2, 5):
        again, change_again = swept(cpu, theta, coupling, start, n_sweeps, n_threads)
        rows_again = np.empty(theta.shape)
        sums_again = cpu.reverse_features(grad, psi, theta, coupling, start, n_sweeps, rows_again, n_threads)
        np.testing.assert_array_equal(again, psi)
        np.testing.assert_array_equal(rows_again, rows)
        assert change_again == change
        for first, second in zip(sums, sums_again, strict=True):
            np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("n_sweeps", [1, 2])
def test_sweeps_may_overwrite_their_input(n_sweeps):
    theta, coupling, start, grad = sweep_problem(130, 5, True, seed=1)
    expected, _ = swept(cpu, theta, coupling, start, n_sweeps)
    expected_rows = np.empty(theta.shape)
    cpu.reverse_features(grad, expected, theta, coupling, start, n_sweeps, expected_rows)
    cpu.reverse_features(grad, expected, theta, coupling, start, n_sweeps, grad)
    np.testing.assert_array_equal(grad, expected_rows)
    in_start = start.copy()
    cpu.sweep_features(theta, coupling, in_start, n_sweeps, in_start)
    np.testing.assert_array_equal(in_start, expected)
    cpu.sweep_features(theta, coupling, start, n_sweeps, theta)
    np.testing.assert_array_equal(theta, expected)


def test_sweeps_accept_single_precision_and_any_layout():
    theta, coupling, start, _ = sweep_problem(100, 6, False, seed=2, dtype=np.float32)
    expected, _ = swept(reference, theta.astype(np.float64), coupling, start, 2)
    out = np.empty(theta.shape, dtype=np.float32)
    cpu.sweep_features(np.asfortranarray(theta), coupling, start, 2, out)
    np.testing.assert_allclose(out, expected, atol=1e-7)
    theta.flags.writeable = False
    cpu.sweep_features(theta, coupling, start, 2, out)
    np.testing.assert_allclose(out, expected, atol=1e-7)


@pytest.mark.parametrize("kernels", [reference, cpu], ids=["reference", "cpu"])
def test_reverse_of_several_sweeps_needs_theta(kernels):
    theta, coupling, start, grad = sweep_problem(3, 2, False, seed=0)
    with pytest.raises(ValueError, match="theta is needed"):
        kernels.reverse_features(grad, theta, None, coupling, start, 2, np.empty((3, 2)))
