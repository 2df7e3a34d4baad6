"""Sweeps over spike-and-slab features: label-free mean-field inference of features that are off or on by an amount.

A feature of a row is off, or on by an amount v >= 0 with a half-normal prior of precision one. Given the others, its
amount is a normal distribution cut off at zero, and everything that is needed of it are moments of that and one
logarithm: docs/math.md eq. (121)-(124). What other features see of it is its expected amount ``f = psi E[v | on]``.

Rows are worked on in blocks as in `sweeps`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from regbayes._types import Floats
from regbayes.kernels._compile import compiled, compiled_as_written, compiled_inline, read_only
from regbayes.kernels.sweeps import BLOCK, _load, _store, _subtract_inner_products, _subtract_products

_SQRT_HALF = math.sqrt(0.5)
_SQRT_2_OVER_PI = math.sqrt(2.0 / math.pi)

# (1 + 2 x) erfcx(x) for x >= 0 as a polynomial in (x - 3.75) / (x + 3.75), highest power first: the Chebyshev series of
# degree 22 (the variable is that of Schonfelder, "Chebyshev expansions for the error and related functions", 1978),
# computed in 40 digits. Relative error below 2e-15.
_ERFCX = np.array([
    -2.623107347133476e-09, -1.9551358868985616e-09, 3.1979266716668055e-08, 1.879082322370047e-08,
    -2.4857126248016745e-07, -5.0844653786873e-08, 1.7419821586224816e-06, -9.792625707303519e-07,
    -1.1438048033346895e-05, 2.2387565714911813e-05, 5.1646529741774155e-05, -0.0002901553524607766,
    0.00029371437804495796, 0.0017556261651970656, -0.009746579683265262, 0.02836227737211114,
    -0.058693398576649354, 0.09230432116428125, -0.10880393014244463, 0.08227673848999509,
    0.0035854154854790543, -0.14024059858554527, 1.2375126308378275,
])  # fmt: skip


class Swept(NamedTuple):
    """What the sweeps find, all (n, k) but the last."""

    psi: Floats
    """Probabilities that features are on."""
    amounts: Floats
    """``f = psi E[v | on]``."""
    squares: Floats
    """``psi E[v^2 | on]``."""
    divergence: Floats
    """(n,): ``psi KL(q(v) || p(v)) - H(psi)``, summed over the features of a row."""


class SlabGradient(NamedTuple):
    """What the reverse sweep returns beside the per-row gradient it writes; sums run over rows."""

    coupling: Floats
    """(k, k): gradient of the coupling matrix off its diagonal, which is zero."""
    precision: Floats
    """(k,): gradient of the amounts' precisions."""


@compiled_as_written
def _scaled_erfc(x: float) -> float:
    """Return ``exp(x^2) erfc(x)`` for x >= 0."""
    t = (x - 3.75) / (x + 3.75)
    value = 0.0
    for coefficient in _ERFCX:
        value = value * t + coefficient
    return value / (1.0 + 2.0 * x)


@compiled_as_written
def _infer_amount(drive: float, deviation: float, log_scale: float) -> tuple[float, float, float]:
    """Return the log-odds of being on and the first two moments of the amount; ``log_scale = a + log(deviation)``."""
    alpha = drive * deviation
    x = abs(alpha) * _SQRT_HALF
    tail = _scaled_erfc(x)
    if alpha > 0.0:
        density = math.exp(-x * x)
        mass = 2.0 - tail * density  # twice the normal probability above zero
        theta = log_scale + math.log(mass) + x * x
    else:
        density = 1.0  # both in units of exp(-x^2)
        mass = tail
        theta = log_scale + math.log(mass)
    # Far below zero the two terms cancel to rounding: an amount is not negative.
    beyond = max(alpha + _SQRT_2_OVER_PI * density / mass, 0.0)
    return theta, deviation * beyond, deviation * deviation * max(1.0 + alpha * beyond, 0.0)


@compiled_as_written
def _probability(theta: float) -> float:
    """Return the sigmoid of the log-odds."""
    odds = math.exp(-abs(theta))
    return (1.0 if theta >= 0.0 else odds) / (1.0 + odds)


@compiled_inline
def _sweep_block(
    projections: Floats,
    coupling: Floats,
    deviation: Floats,
    log_scale: Floats,
    is_first: bool,
    old: Floats,
    new: Floats,
    found: Floats,
) -> None:
    """Write one sweep from ``old`` to ``new``, blocks (k, BLOCK), and what it found. The first sweep starts at zero.

    ``found`` is (4, k, BLOCK): what drove a feature, its log-odds and the first two moments of its amount.
    """
    n_features = projections.shape[0]
    drive = found[0]
    for k in range(n_features):
        drive[k] = projections[k]
        _subtract_products(drive, k, coupling, new, 0, k)
        if not is_first:
            _subtract_products(drive, k, coupling, old, k + 1, n_features)
        for r in range(BLOCK):
            theta, first, second = _infer_amount(drive[k, r], deviation[k], log_scale[k])
            found[1, k, r], found[2, k, r], found[3, k, r] = theta, first, second
            new[k, r] = _probability(theta) * first


@compiled
def _sweep_rows(
    projections: Floats,
    coupling: Floats,
    precision: Floats,
    log_odds: Floats,
    n_sweeps: int,
    psi: Floats,
    amounts: Floats,
    squares: Floats,
    divergence: Floats,
) -> None:
    n_rows, n_features = projections.shape
    deviation = 1.0 / np.sqrt(precision)
    log_scale = log_odds + np.log(deviation)
    block = np.empty((n_features, BLOCK))
    old, new = np.empty((n_features, BLOCK)), np.empty((n_features, BLOCK))
    found = np.empty((4, n_features, BLOCK))
    for start in range(0, n_rows, BLOCK):
        n = min(BLOCK, n_rows - start)
        _load(projections, start, n, block)
        for sweep in range(n_sweeps):
            old, new = new, old
            _sweep_block(block, coupling, deviation, log_scale, sweep == 0, old, new, found)
        for r in range(n):
            total = 0.0
            for k in range(n_features):
                drive, theta, first, second = found[0, k, r], found[1, k, r], found[2, k, r], found[3, k, r]
                p = _probability(theta)
                psi[start + r, k] = p
                amounts[start + r, k] = p * first
                squares[start + r, k] = p * second
                of_amount = drive * first - 0.5 * (precision[k] - 1.0) * second - (theta - log_odds[k])
                # -H = psi log psi + (1 - psi) log(1 - psi), and log(1 - psi) = min(-theta, 0) - log(1 + e^-|theta|)
                total += p * (of_amount + min(theta, 0.0)) + (1.0 - p) * min(-theta, 0.0)
                total -= math.log1p(math.exp(-abs(theta)))
            divergence[start + r] = total


@compiled
def _reverse_rows(
    grad: Floats,
    projections: Floats,
    coupling: Floats,
    precision: Floats,
    log_odds: Floats,
    n_sweeps: int,
    grad_projections: Floats,
    grad_coupling: Floats,
    grad_precision: Floats,
) -> None:
    """Write ``grad_projections``; add to the two sums."""
    n_rows, n_features = projections.shape
    deviation = 1.0 / np.sqrt(precision)
    log_scale = log_odds + np.log(deviation)
    transposed = coupling.T.copy()
    block = np.empty((n_features, BLOCK))
    history = np.zeros((n_sweeps + 1, n_features, BLOCK))
    found = np.empty((n_sweeps, 4, n_features, BLOCK))
    incoming = np.empty((n_features, BLOCK))  # gradient of the amounts after the sweep being reversed
    outgoing = np.empty((n_features, BLOCK))  # gradient of those before it
    delta = np.empty((n_features, BLOCK))  # gradient of what drove it
    total = np.empty((n_features, BLOCK))
    for start in range(0, n_rows, BLOCK):
        n = min(BLOCK, n_rows - start)
        _load(projections, start, n, block)
        for sweep in range(n_sweeps):
            before, after = history[sweep], history[sweep + 1]
            _sweep_block(block, coupling, deviation, log_scale, sweep == 0, before, after, found[sweep])
        _load(grad, start, n, incoming)
        total[:] = 0.0
        for sweep in range(n_sweeps, 0, -1):
            before, after, of_sweep = history[sweep - 1], history[sweep], found[sweep - 1]
            for k in range(n_features - 1, -1, -1):
                _subtract_products(incoming, k, transposed, delta, k + 1, n_features)
                by_precision = 0.0
                for r in range(BLOCK):
                    drive, first, second = of_sweep[0, k, r], of_sweep[2, k, r], of_sweep[3, k, r]
                    p = _probability(of_sweep[1, k, r])
                    variance = deviation[k] * deviation[k]
                    third = variance * (drive * second + 2.0 * first)
                    delta[k, r] = incoming[k, r] * p * (second - p * first * first)
                    total[k, r] += delta[k, r]
                    by_precision += incoming[k, r] * p * (third - p * first * second)
                grad_precision[k] -= 0.5 * by_precision
            for k in range(n_features):
                _subtract_inner_products(grad_coupling, k, delta, after, 0, k)
                if sweep > 1:
                    _subtract_inner_products(grad_coupling, k, delta, before, k + 1, n_features)
                    outgoing[k] = 0.0
                    _subtract_products(outgoing, k, transposed, delta, 0, k)
            incoming, outgoing = outgoing, incoming
        _store(total, start, n, grad_projections)


def sweep_slab(projections: Floats, coupling: Floats, precision: Floats, log_odds: Floats, n_sweeps: int) -> Swept:
    """Infer spike-and-slab features of every row by mean-field sweeps from ``f = 0``, docs/math.md eq. (121)-(123).

    Parameters
    ----------
    projections : (n, k)
        What drives the features where all others are off, ``c Phi_k' x_n``.
    coupling : (k, k)
        Its diagonal is not used; symmetry is not assumed.
    precision : (k,)
        Of an amount given that its feature is on, that of its prior (one) included.
    log_odds : (k,)
        Of the features being on, a priori.
    n_sweeps : int
        At least one.
    """
    shape = projections.shape
    found = Swept(np.empty(shape), np.empty(shape), np.empty(shape), np.empty(shape[0]))
    given = read_only(projections), read_only(coupling), read_only(precision), read_only(log_odds)
    _sweep_rows(*given, n_sweeps, *found)
    return found


def reverse_slab(
    grad: Floats,
    projections: Floats,
    coupling: Floats,
    precision: Floats,
    log_odds: Floats,
    n_sweeps: int,
    grad_projections: Floats,
) -> SlabGradient:
    """Differentiate a function of the swept amounts by what the sweeps were given, docs/math.md eq. (125)-(126).

    Parameters
    ----------
    grad : (n, k)
        The gradient with respect to the amounts that `sweep_slab` returned.
    projections, coupling, precision, log_odds, n_sweeps
        As given to `sweep_slab`.
    grad_projections : (n, k)
        Written: the gradient with respect to the projections. It may be ``grad``.
    """
    n_features = projections.shape[1]
    sums = SlabGradient(np.zeros((n_features, n_features)), np.zeros(n_features))
    given = read_only(projections), read_only(coupling), read_only(precision), read_only(log_odds)
    _reverse_rows(read_only(grad), *given, n_sweeps, grad_projections, *sums)
    return sums
