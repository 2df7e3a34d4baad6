"""Spike-and-slab sweeps match quadrature, and their reverse matches complex-step derivatives."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import erfcx, log_ndtr

from regbayes.kernels.slab import _scaled_erfc, reverse_slab, sweep_slab

NODES, MASS = np.polynomial.legendre.leggauss(400)


def slab_problem(n, k, seed):
    rng = np.random.default_rng(seed)
    projections, coupling = rng.normal(scale=4.0, size=(n, k)), rng.normal(size=(k, k))
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
    found = sweep_slab(*one, 1, signed)
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
    one = np.array([[drive]]), np.zeros((1, 1)), np.array([precision]), np.array([log_odds])
    sums = reverse_slab(np.ones((1, 1)), *one, 1, signed)
    assert sums.projections[0, 0] == pytest.approx(by_drive, rel=1e-9)
    assert sums.precision[0] == pytest.approx(by_precision, rel=1e-9)


def complex_sweeps(projections, coupling, precision, log_odds, n_sweeps, signed):
    """Return the feature values by formulas that are analytic in every argument."""
    amounts = np.zeros(projections.shape, dtype=complex)
    for _ in range(n_sweeps):
        for k in range(projections.shape[1]):
            others = [j for j in range(projections.shape[1]) if j != k]
            drive = projections[:, k] - sum(coupling[k, j] * amounts[:, j] for j in others)
            scaled = drive / np.sqrt(precision[k])
            tail = erfcx(-scaled / np.sqrt(2.0))  # twice the mass above zero, over the density at zero
            evidence, mean = tail, scaled + np.sqrt(2.0 / np.pi) / tail
            if signed:
                evidence, mean = np.exp(0.5 * scaled**2), scaled
            odds = np.exp(log_odds[k]) * evidence / np.sqrt(precision[k])
            amounts[:, k] = odds / (1.0 + odds) * mean / np.sqrt(precision[k])
    return amounts


@SIGNED
@pytest.mark.parametrize("n_sweeps", [1, 2, 4])
@pytest.mark.parametrize(("n", "k"), [(4, 3), (70, 9)])  # the second has several blocks of rows and of features
def test_sweeps_and_their_reverse_match_complex_steps(n, k, n_sweeps, signed):
    projections, coupling, precision, log_odds = slab_problem(n, k, seed=n_sweeps)
    projections = projections / (3.0 if signed else 1.0)  # the analytic formula overflows at large drives
    given = coupling / k, precision, log_odds, n_sweeps, signed
    amounts = complex_sweeps(projections, *given)
    np.testing.assert_allclose(sweep_slab(projections, *given).amounts, amounts.real, rtol=1e-9, atol=1e-11)
    rng, step = np.random.default_rng(9), 1e-30
    grad = rng.normal(size=(n, k))
    sums = reverse_slab(grad, projections, *given)
    for _ in range(20):
        moves = rng.normal(size=(n, k)), rng.normal(size=(k, k)), rng.normal(size=k)
        moved = [part + 1j * step * move for part, move in zip((projections, *given[:2]), moves, strict=True)]
        expected = np.sum(grad * complex_sweeps(*moved, *given[2:])).imag / step
        found = sum(np.vdot(slope, move) for slope, move in zip(sums, moves, strict=True))
        assert found == pytest.approx(expected, rel=1e-8, abs=1e-9)


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
