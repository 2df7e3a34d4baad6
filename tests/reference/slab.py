"""Sweeps over spike-and-slab features and their reverse in plain NumPy, with every state kept."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from scipy.special import erfcx, expit, log_ndtr

from regbayes._types import Floats
from regbayes.kernels.slab import SlabGradient, Swept


class Moments(NamedTuple):
    """Moments of a feature given all others, for each row."""

    theta: Floats
    """Log-odds of being on."""
    first: Floats
    """``E[v | on]``, and so on."""
    second: Floats
    third: Floats


def moments(drive: Floats, precision: Floats, log_odds: Floats, signed: bool = False) -> Moments:
    """Return moments of a normal with mean ``drive / precision``, truncated at zero, docs/math.md eq. (122)."""
    deviation = 1.0 / np.sqrt(precision)
    mean = drive / precision
    alpha = mean / deviation
    if signed:
        theta = log_odds + np.log(deviation) + 0.5 * alpha**2
        return Moments(theta, mean, mean**2 + deviation**2, mean**3 + 3.0 * mean * deviation**2)
    theta = log_odds + np.log(2.0 * deviation) + log_ndtr(alpha) + 0.5 * alpha**2
    first = mean + deviation * math.sqrt(2.0 / math.pi) / erfcx(-alpha / math.sqrt(2.0))
    second = mean * first + deviation**2
    return Moments(theta, first, second, mean * second + 2.0 * deviation**2 * first)


def _sweep_history(
    projections: Floats, coupling: Floats, precision: Floats, log_odds: Floats, n_sweeps: int, signed: bool = False
) -> tuple[list[Floats], Floats]:
    """Return the values before the first sweep and after each one, and the drives of each sweep."""
    off_diagonal = coupling - np.diag(np.diag(coupling))
    history: list[Floats] = [np.zeros(projections.shape)]
    n_rows, n_features = projections.shape
    drives: Floats = np.empty((n_sweeps, n_rows, n_features))
    for drive in drives:
        amounts = history[-1].copy()
        for k in range(amounts.shape[1]):
            drive[:, k] = projections[:, k] - amounts @ off_diagonal[k]
            found = moments(drive[:, k], precision[k], log_odds[k], signed)
            amounts[:, k] = expit(found.theta) * found.first
        history.append(amounts)
    return history, drives


def reference_sweep_slab(
    projections: Floats, coupling: Floats, precision: Floats, log_odds: Floats, n_sweeps: int, signed: bool = False
) -> Swept:
    """`sweep_slab` in plain NumPy."""
    _, drives = _sweep_history(projections, coupling, precision, log_odds, n_sweeps, signed)
    found = moments(drives[-1], precision, log_odds, signed)
    psi = expit(found.theta)
    of_amounts = drives[-1] * found.first - 0.5 * (precision - 1.0) * found.second - (found.theta - log_odds)
    # psi log psi + (1 - psi) log(1 - psi) in terms of the log-odds, which is finite under rounding
    of_choices = -psi * np.logaddexp(0.0, -found.theta) - (1.0 - psi) * np.logaddexp(0.0, found.theta)
    return Swept(psi, psi * found.first, psi * found.second, (psi * of_amounts + of_choices).sum(axis=1))


def reference_reverse_slab(
    grad: Floats,
    projections: Floats,
    coupling: Floats,
    precision: Floats,
    log_odds: Floats,
    n_sweeps: int,
    signed: bool,
    grad_projections: Floats,
) -> SlabGradient:
    """`reverse_slab` in plain NumPy."""
    history, drives = _sweep_history(projections, coupling, precision, log_odds, n_sweeps, signed)
    K = projections.shape[1]
    flowing, total = grad.astype(np.float64), np.zeros(grad.shape)
    grad_coupling, grad_precision = np.zeros((K, K)), np.zeros(K)
    for before, after, drive in zip(history[-2::-1], history[:0:-1], drives[::-1], strict=True):
        for k in reversed(range(K)):
            theta, first, second, third = moments(drive[:, k], precision[k], log_odds[k], signed)
            psi = expit(theta)
            delta = flowing[:, k] * psi * (second - psi * first**2)
            grad_precision[k] -= 0.5 * flowing[:, k] @ (psi * (third - psi * first * second))
            total[:, k] += delta
            others = np.arange(K) != k
            in_force = np.hstack([after[:, :k], before[:, k:]])
            grad_coupling[k, others] -= delta @ in_force[:, others]
            flowing[:, k] = 0.0
            flowing[:, others] -= np.outer(delta, coupling[k, others])
    grad_projections[...] = total
    return SlabGradient(grad_projections, grad_coupling, grad_precision)
