"""Sweeps over binary features and their reverse in plain NumPy, with every state kept."""

from __future__ import annotations

import numpy as np
from scipy.special import expit

from regbayes._types import Floats, Reals
from regbayes.kernels.binary import SweepGradient


def _sweep_history(theta: Reals, coupling: Floats, start: Reals, n_sweeps: int) -> list[Floats]:
    """Return the state before the first sweep and after each one, every one (n, k)."""
    off_diagonal = coupling - np.diag(np.diag(coupling))
    history = [np.broadcast_to(start, theta.shape).astype(np.float64)]
    for _ in range(n_sweeps):
        psi = history[-1].copy()
        for k in range(psi.shape[1]):
            psi[:, k] = expit(theta[:, k] - psi @ off_diagonal[k])
        history.append(psi)
    return history


def reference_sweep_features(theta: Reals, coupling: Floats, start: Reals, n_sweeps: int, out: Reals) -> Reals:
    """`sweep_features` in plain NumPy."""
    out[...] = _sweep_history(theta, coupling, start, n_sweeps)[-1]
    return out


def reference_reverse_features(
    grad: Reals,
    psi: Reals,
    theta: Reals,
    coupling: Floats,
    start: Reals,
    n_sweeps: int,
    grad_theta: Reals,
) -> SweepGradient:
    """`reverse_features` in plain NumPy."""
    history = _sweep_history(theta, coupling, start, n_sweeps - 1)
    history.append(psi.astype(np.float64))
    flowing = grad.astype(np.float64)
    total = np.zeros(psi.shape)
    grad_coupling = np.zeros(coupling.shape)
    for before, after in zip(history[-2::-1], history[:0:-1], strict=True):
        for k in reversed(range(psi.shape[1])):
            in_force = np.hstack([after[:, :k], before[:, k:]])
            delta = flowing[:, k] * after[:, k] * (1.0 - after[:, k])
            total[:, k] += delta
            others = np.arange(psi.shape[1]) != k
            grad_coupling[k, others] -= delta @ in_force[:, others]
            flowing[:, k] = 0.0
            flowing[:, others] -= np.outer(delta, coupling[k, others])
    grad_theta[...] = total
    return SweepGradient(grad_theta, grad_coupling, total.sum(axis=0))
