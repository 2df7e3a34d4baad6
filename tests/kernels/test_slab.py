"""Spike-and-slab sweeps match the reference, which matches quadrature and complex-step derivatives."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import erfcx, log_ndtr

from reference.slab import moments, reference_reverse_slab, reference_sweep_slab
from regbayes.kernels.slab import _scaled_erfc, reverse_slab, sweep_slab

SEEDS = st.integers(0, 2**32 - 1)
SWEEPS = st.sampled_from([1, 2, 4])
NODES, MASS = np.polynomial.legendre.leggauss(400)


def slab_problem(n, k, seed, symmetric=False):
    rng = np.random.default_rng(seed)
    projections = rng.normal(scale=4.0, size=(n, k))
    coupling = rng.normal(size=(k, k))
    if symmetric:
        coupling = coupling @ coupling.T / k
    precision = rng.uniform(1.1, 6.0, k)
    log_odds = rng.normal(-2.0, 1.5, k)
    return projections, coupling, precision, log_odds


SIGNED = pytest.mark.parametrize("signed", [False, True])


def value_grid(drive, precision, signed=False):
    """Return nodes and weights of a quadrature over values, wide enough for the given distribution."""
    if signed:
        return drive / precision + 12.0 / np.sqrt(precision) * NODES, 12.0 / np.sqrt(precision) * MASS
    widest = max(drive / precision, 0.0) + 12.0 / np.sqrt(precision)
    return 0.5 * widest * (NODES + 1.0), 0.5 * widest * MASS


def feature_alone(drive, precision, log_odds, signed=False):
    """Return moments of ``(z, z v, z v^2, z v^3)`` and the log-evidence of one feature by quadrature."""
    v, mass = value_grid(drive, precision, signed)
    prior = (1.0 if signed else 2.0) * np.exp(-0.5 * v**2) / np.sqrt(2.0 * np.pi)
    density = prior * np.exp(drive * v - 0.5 * (precision - 1.0) * v**2)
    on = np.exp(log_odds) * mass * density  # odds of being on
    total = 1.0 + on.sum()
    powers = np.array([on @ v**power for power in range(5)]) / total
    return powers, np.log(total)


CASES = [
    (drive, precision, odds) for drive in (-6.0, -0.5, 0.0, 2.0, 9.0) for precision, odds in ((1.0, -4.0), (3.5, 0.7))
]


@SIGNED
@pytest.mark.parametrize(("drive", "precision", "log_odds"), CASES)
def test_single_feature_agrees_with_quadrature(drive, precision, log_odds, signed):
    powers, evidence = feature_alone(drive, precision, log_odds, signed)
    one = np.array([[drive]]), np.zeros((1, 1)), np.array([precision]), np.array([log_odds])
    for found in (reference_sweep_slab(*one, 1, signed), sweep_slab(*one, 1, signed)):
        assert found.psi[0, 0] == pytest.approx(powers[0], rel=1e-10)
        assert found.amounts[0, 0] == pytest.approx(powers[1], rel=1e-10)
        assert found.squares[0, 0] == pytest.approx(powers[2], rel=1e-10)
        # Mean field is exact for one feature, so its free energy is the negative log-evidence.
        energy = 0.5 * (precision - 1.0) * found.squares - drive * found.amounts - log_odds * found.psi
        assert float(energy[0, 0] + found.divergence[0]) == pytest.approx(-evidence, rel=1e-10, abs=1e-10)


@SIGNED
@pytest.mark.parametrize(("drive", "precision", "log_odds"), CASES)
def test_derivatives_of_a_feature_are_covariances(drive, precision, log_odds, signed):
    """In the exponential family, (z v, z v^2) are the sufficient statistics of (drive, -precision / 2)."""
    powers, _ = feature_alone(drive, precision, log_odds, signed)
    by_drive = powers[2] - powers[1] ** 2
    by_precision = -0.5 * (powers[3] - powers[1] * powers[2])
    for reverse in (reference_reverse_slab, reverse_slab):
        out = np.empty((1, 1))
        one = np.array([[drive]]), np.zeros((1, 1)), np.array([precision]), np.array([log_odds])
        sums = reverse(np.ones((1, 1)), *one, 1, signed, out)
        assert out[0, 0] == pytest.approx(by_drive, rel=1e-9)
        assert sums.precision[0] == pytest.approx(by_precision, rel=1e-9)


@SIGNED
def test_third_moment_agrees_with_quadrature(signed):
    for drive, precision, log_odds in CASES:
        powers, _ = feature_alone(drive, precision, log_odds, signed)
        found = moments(np.array(drive), np.array(precision), np.array(log_odds), signed)
        assert found.third == pytest.approx(powers[3] / powers[0], rel=1e-9)


@settings(max_examples=40, deadline=None)
@given(n=st.integers(0, 150), k=st.integers(1, 9), n_sweeps=SWEEPS, signed=st.booleans(), seed=SEEDS)
def test_compiled_sweeps_match_the_reference(n, k, n_sweeps, signed, seed):
    problem = slab_problem(n, k, seed, symmetric=True)
    expected = reference_sweep_slab(*problem, n_sweeps, signed)
    for actual, there in zip(sweep_slab(*problem, n_sweeps, signed), expected, strict=True):
        np.testing.assert_allclose(actual, there, rtol=1e-9, atol=1e-11)


@settings(max_examples=40, deadline=None)
@given(n=st.integers(0, 150), k=st.integers(1, 9), n_sweeps=SWEEPS, signed=st.booleans(), seed=SEEDS)
def test_compiled_reverse_sweeps_match_the_reference(n, k, n_sweeps, signed, seed):
    problem = slab_problem(n, k, seed, symmetric=True)
    grad = np.random.default_rng(seed).normal(size=(n, k))
    expected_rows, actual_rows = np.empty((n, k)), np.empty((n, k))
    expected = reference_reverse_slab(grad, *problem, n_sweeps, signed, expected_rows)
    actual = reverse_slab(grad, *problem, n_sweeps, signed, actual_rows)
    np.testing.assert_allclose(actual_rows, expected_rows, rtol=1e-8, atol=1e-9)
    for found, there in zip(actual, expected, strict=True):
        np.testing.assert_allclose(found, there, rtol=1e-8, atol=1e-8)


def complex_sweeps(projections, coupling, precision, log_odds, n_sweeps):
    """Return the feature values by formulas that are analytic in every argument and independent of the reference."""
    amounts = np.zeros(projections.shape, dtype=complex)
    for _ in range(n_sweeps):
        for k in range(projections.shape[1]):
            others = [j for j in range(projections.shape[1]) if j != k]
            drive = projections[:, k] - sum(coupling[k, j] * amounts[:, j] for j in others)
            scaled = drive / np.sqrt(precision[k])
            tail = erfcx(-scaled / np.sqrt(2.0))  # twice the mass above zero, over the density at zero
            odds = np.exp(log_odds[k]) * tail / np.sqrt(precision[k])
            mean = (scaled + np.sqrt(2.0 / np.pi) / tail) / np.sqrt(precision[k])
            amounts[:, k] = odds / (1.0 + odds) * mean
    return amounts


@pytest.mark.parametrize("reverse", [reverse_slab, reference_reverse_slab])
@pytest.mark.parametrize("n_sweeps", [1, 2, 4])
def test_reverse_sweeps_match_complex_steps(reverse, n_sweeps):
    n, k = 4, 3
    projections, coupling, precision, log_odds = slab_problem(n, k, seed=n_sweeps)
    grad = np.random.default_rng(9).normal(size=(n, k))
    out = np.empty((n, k))
    sums = reverse(grad, projections, coupling, precision, log_odds, n_sweeps, False, out)
    exact = np.concatenate([out.ravel(), sums.coupling.ravel(), sums.precision])
    point = np.concatenate([projections.ravel(), coupling.ravel(), precision])
    step = 1e-30

    def slope(unit):
        moved = point + 1j * step * unit
        at = moved[: n * k].reshape(n, k), moved[n * k : -k].reshape(k, k), moved[-k:]
        return np.sum(grad * complex_sweeps(*at, log_odds, n_sweeps)).imag / step

    numeric = np.array([slope(unit) for unit in np.eye(point.size)])
    np.testing.assert_allclose(exact, numeric, rtol=1e-9, atol=1e-11)


def test_scaled_erfc_agrees_with_scipy():
    x = np.concatenate([np.linspace(0.0, 30.0, 3001), np.logspace(1.5, 12.0, 200)])
    found = np.array([_scaled_erfc(value) for value in x])
    np.testing.assert_allclose(found, erfcx(x), rtol=5e-15)


def test_sweeps_at_extreme_drives_are_finite_and_in_range():
    drive = np.array([[-1e8, -1e3, -40.0, 40.0, 1e3, 1e6]])
    k = drive.shape[1]
    found = sweep_slab(drive, np.zeros((k, k)), np.full(k, 2.0), np.full(k, -3.0), 1)
    for values in found:
        assert np.all(np.isfinite(values))
    assert np.all((found.psi >= 0.0) & (found.psi <= 1.0))
    assert np.all(found.amounts >= 0.0)
    assert np.all(found.squares >= 0.0)
    assert found.amounts[0, -1] == pytest.approx(5e5)
    alpha = drive[0, 2] / np.sqrt(2.0)
    theta = -3.0 + np.log(2.0 / np.sqrt(2.0)) + log_ndtr(alpha) + 0.5 * alpha**2
    assert found.psi[0, 2] == pytest.approx(1.0 / (1.0 + np.exp(-theta)), rel=1e-9)


def test_sweeps_lower_the_free_energy_bound_of_two_features():
    """Two coupled features, with both values integrated by quadrature."""
    drive, coupling = np.array([3.0, 2.0]), np.array([[2.0, 0.8], [0.8, 1.5]])
    precision, log_odds = np.diag(coupling) + 1.0, np.array([-0.5, -1.0])
    grids = [value_grid(d, p) for d, p in zip(drive, precision, strict=True)]
    weights = [
        np.exp(a) * mass * 2.0 / np.sqrt(2.0 * np.pi) * np.exp(d * v - 0.5 * p * v**2)
        for (v, mass), d, p, a in zip(grids, drive, precision, log_odds, strict=True)
    ]
    both = weights[0] @ np.exp(-coupling[0, 1] * np.outer(grids[0][0], grids[1][0])) @ weights[1]
    evidence = np.log(1.0 + weights[0].sum() + weights[1].sum() + both)
    energies = []
    for n_sweeps in (1, 2, 3, 40):
        found = sweep_slab(drive[None, :], coupling, precision, log_odds, n_sweeps)
        f = found.amounts[0]
        energy = coupling[0, 1] * f[0] * f[1] - drive @ f + found.divergence[0] - log_odds @ found.psi[0]
        energies.append(energy + 0.5 * (precision - 1.0) @ found.squares[0])
    assert np.all(np.diff(energies) <= 1e-12)
    assert -energies[-1] <= evidence
    assert -energies[-1] == pytest.approx(evidence, abs=0.1)
