"""Feature sweeps and their reverse in plain NumPy."""

from __future__ import annotations

import numpy as np
from scipy.special import expit

from regbayes._types import Floats, Reals
from regbayes.kernels.types import SweepGradient


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


def sweep_features(
    theta: Reals, coupling: Floats, start: Reals, n_sweeps: int, out: Reals, n_threads: int = 1
) -> float:
    """Write the state after ``n_sweeps`` mean-field sweeps over the features of every row.

    A sweep sets ``psi_k = sigmoid(theta_k - sum_{j != k} coupling_kj psi_j)`` for k in order, with the values of psi
    in force at that moment, docs/math.md eq. (31).

    Parameters
    ----------
    theta : (n, k)
    coupling : (k, k)
        Its diagonal is not used; symmetry is not assumed.
    start : (1, k) or (n, k)
        Where the sweeps start: one row shared by all, or one per row.
    n_sweeps : int
        At least one.
    out : (n, k)
        Written. It may be ``theta`` or a per-row ``start``.
    n_threads : int
        Does not change the result.

    Returns
    -------
    float
        The absolute change in the last sweep, summed over entries.
    """
    del n_threads
    history = _sweep_history(theta, coupling, start, n_sweeps)
    out[...] = history[-1]
    return float(np.abs(history[-1] - history[-2]).sum())


def reverse_features(
    grad: Reals,
    psi: Reals,
    theta: Reals | None,
    coupling: Floats,
    start: Reals,
    n_sweeps: int,
    grad_theta: Reals,
    n_threads: int = 1,
) -> SweepGradient:
    """Differentiate a function of the swept state with respect to everything the sweeps read, docs/math.md eq. (33).

    Parameters
    ----------
    grad : (n, k)
        The gradient with respect to the state that ``sweep_features`` wrote.
    psi : (n, k)
        That state.
    theta : (n, k) or None
        Needed to recompute the states between sweeps; with a single sweep there are none and None will do.
    coupling, start, n_sweeps
        As given to ``sweep_features``.
    grad_theta : (n, k)
        Written: the gradient with respect to theta. It may be ``grad``.
    n_threads : int
        Does not change the result.

    Returns
    -------
    SweepGradient
    """
    del n_threads
    if theta is None and n_sweeps > 1:
        raise ValueError("theta is needed to reverse more than one sweep")
    if theta is None:
        history = [np.broadcast_to(start, psi.shape).astype(np.float64)]
    else:
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
    grad_start = flowing.sum(axis=0, keepdims=True) if start.shape[0] == 1 else flowing
    return SweepGradient(grad_coupling, total.sum(axis=0), grad_start)
