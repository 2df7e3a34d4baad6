"""Feature sweeps: the label-free mean-field inference of binary features, and its reverse.

Rows are worked on in blocks of ``BLOCK``, transposed, so that every step in the sequential index k is a short loop
over rows that the compiler vectorises; a block and its gradient stay in the nearest caches.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.special import expit

from regbayes._types import Floats, Reals
from regbayes.kernels._compile import compiled, compiled_as_written, compiled_inline, read_only

BLOCK = 64
# exp(r) = (Q(r^2) + r P(r^2)) / (Q(r^2) - r P(r^2)) for |r| <= log(2) / 2: the rational approximation of Cephes
# (Moshier, "Methods and Programs for Mathematical Functions", 1989), written so that the sigmoid needs one division.
_P0, _P1, _P2 = 1.26177193074810590878e-4, 3.02994407707441961300e-2, 9.99999999999999999910e-1
_Q0, _Q1, _Q2, _Q3 = 3.00198505138664455042e-6, 2.52448340349684104192e-3, 2.27265548208155028766e-1, 2.0
_LOG2_E = 1.4426950408889634
_LN2_HIGH, _LN2_LOW = 6.93145751953125e-1, 1.42860682030941723212e-6
_ROUND = 6755399441055744.0  # 1.5 * 2^52: adding it rounds to the nearest integer and leaves that in the low bits
_LIMIT = 708.0  # beyond it 2^n leaves the range of normal numbers; the sigmoid is 0 or 1 to 300 digits


class SweepGradient(NamedTuple):
    """What the reverse sweep returns beside the per-row gradient it writes; sums run over rows."""

    coupling: Floats
    """(k, k): gradient of the coupling matrix; its diagonal is zero."""
    theta_sum: Floats
    """(k,): the per-row gradient of theta, summed over rows."""


@compiled_as_written
def _sigmoid(x: float) -> float:
    """Return 1 / (1 + exp(-x)) to within three units in the last place; NaN stays NaN."""
    x = -x
    x = _LIMIT if x > _LIMIT else x
    x = -_LIMIT if x < -_LIMIT else x
    shifted = x * _LOG2_E + _ROUND
    n = shifted - _ROUND
    r = (x - n * _LN2_HIGH) - n * _LN2_LOW
    rr = r * r
    p = r * ((_P0 * rr + _P1) * rr + _P2)
    q = ((_Q0 * rr + _Q1) * rr + _Q2) * rr + _Q3
    bits = np.float64(shifted).view(np.int64)
    power_of_two = np.int64((bits + np.int64(1023)) << np.int64(52)).view(np.float64)
    return (q - p) / ((q - p) + power_of_two * (q + p))


@compiled_inline
def _subtract_products(target: Floats, k: int, matrix: Floats, values: Floats, first: int, last: int) -> None:
    """Write ``target[k] -= sum_{first <= j < last} matrix[k, j] values[j]`` for the rows of a block."""
    j = first
    while j + 4 <= last:
        m0, m1, m2, m3 = matrix[k, j], matrix[k, j + 1], matrix[k, j + 2], matrix[k, j + 3]
        for r in range(BLOCK):
            products = m0 * values[j, r] + m1 * values[j + 1, r] + m2 * values[j + 2, r] + m3 * values[j + 3, r]
            target[k, r] -= products
        j += 4
    while j < last:
        m0 = matrix[k, j]
        for r in range(BLOCK):
            target[k, r] -= m0 * values[j, r]
        j += 1


@compiled_inline
def _subtract_inner_products(target: Floats, k: int, left: Floats, right: Floats, first: int, last: int) -> None:
    """Write ``target[k, j] -= <left[k], right[j]>`` for ``first <= j < last``, summing over the rows of a block."""
    j = first
    while j + 4 <= last:
        s0, s1, s2, s3 = 0.0, 0.0, 0.0, 0.0
        for r in range(BLOCK):
            value = left[k, r]
            s0 += value * right[j, r]
            s1 += value * right[j + 1, r]
            s2 += value * right[j + 2, r]
            s3 += value * right[j + 3, r]
        target[k, j] -= s0
        target[k, j + 1] -= s1
        target[k, j + 2] -= s2
        target[k, j + 3] -= s3
        j += 4
    while j < last:
        s0 = 0.0
        for r in range(BLOCK):
            s0 += left[k, r] * right[j, r]
        target[k, j] -= s0
        j += 1


@compiled_inline
def _load(rows: Reals, first: int, n: int, block: Floats) -> None:
    """Write rows ``first .. first + n`` into the columns of ``block`` and zero to the rest."""
    n_features = block.shape[0]
    for r in range(n):
        for k in range(n_features):
            block[k, r] = rows[first + r, k]
    for r in range(n, BLOCK):
        for k in range(n_features):
            block[k, r] = 0.0


@compiled_inline
def _store(block: Floats, first: int, n: int, rows: Reals) -> None:
    """Write the first ``n`` columns of ``block`` to rows ``first .. first + n``."""
    n_features = block.shape[0]
    for r in range(n):
        for k in range(n_features):
            rows[first + r, k] = block[k, r]


@compiled_inline
def _load_start(start: Reals, first: int, n: int, block: Floats) -> None:
    """Write the start of the sweeps into ``block``; a start with one row is shared by all."""
    if start.shape[0] > 1:
        _load(start, first, n, block)
        return
    for k in range(block.shape[0]):
        for r in range(BLOCK):
            block[k, r] = start[0, k]


@compiled_inline
def _start_products(coupling: Floats, start: Reals) -> Floats:
    """Return ``sum_{j > k} coupling[k, j] start[0, j]``: what a shared start contributes to the first sweep."""
    n_features = coupling.shape[0]
    products = np.empty(n_features)
    for k in range(n_features):
        total = 0.0  # a sum in an array is taken in one of two orders, by where the array happens to lie in memory
        for j in range(k + 1, n_features):
            total += coupling[k, j] * start[0, j]
        products[k] = total
    return products


@compiled_inline
def _sweep_block(theta: Floats, coupling: Floats, shared: Floats, use_shared: bool, old: Floats, new: Floats) -> None:
    """Write one sweep from ``old`` to ``new``, all blocks (k, BLOCK).

    With ``use_shared`` the part of ``old`` not yet swept is replaced by its products with the coupling, ``shared``.
    """
    n_features = theta.shape[0]
    for k in range(n_features):
        constant = shared[k] if use_shared else 0.0
        for r in range(BLOCK):
            new[k, r] = theta[k, r] - constant
        _subtract_products(new, k, coupling, new, 0, k)
        if not use_shared:
            _subtract_products(new, k, coupling, old, k + 1, n_features)
        for r in range(BLOCK):
            new[k, r] = _sigmoid(new[k, r])


@compiled
def sweep_features(theta: Reals, coupling: Floats, start: Reals, n_sweeps: int, out: Reals) -> float:
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

    Returns
    -------
    float
        The absolute change in the last sweep, summed over entries.
    """
    n_rows, n_features = theta.shape
    is_shared = start.shape[0] == 1
    shared = _start_products(coupling, start)
    block_theta = np.empty((n_features, BLOCK))
    old = np.empty((n_features, BLOCK))
    new = np.empty((n_features, BLOCK))
    change = 0.0
    for first in range(0, n_rows, BLOCK):
        n = min(BLOCK, n_rows - first)
        _load(theta, first, n, block_theta)
        _load_start(start, first, n, old)
        for sweep in range(n_sweeps):
            if sweep > 0:
                old, new = new, old
            _sweep_block(block_theta, coupling, shared, is_shared and sweep == 0, old, new)
        _store(new, first, n, out)
        for k in range(n_features):
            for r in range(n):
                change += abs(new[k, r] - old[k, r])
    return change


@compiled
def _reverse_rows(
    grad: Reals,
    psi: Reals,
    theta: Reals,
    coupling: Floats,
    start: Reals,
    n_sweeps: int,
    grad_theta: Reals,
    grad_coupling: Floats,
    theta_sum: Floats,
) -> None:
    """Write ``grad_theta``; add to the two sums."""
    n_rows, n_features = psi.shape
    is_shared = start.shape[0] == 1
    shared = _start_products(coupling, start)
    transposed = coupling.T.copy()
    block_theta = np.empty((n_features, BLOCK))
    history = np.empty((n_sweeps + 1, n_features, BLOCK))
    incoming = np.empty((n_features, BLOCK))  # gradient of the state after the sweep being reversed
    outgoing = np.empty((n_features, BLOCK))  # gradient of the state before it
    delta = np.empty((n_features, BLOCK))  # gradient of the arguments of the sigmoids in it
    total = np.empty((n_features, BLOCK))
    first_sweep_sum = np.zeros(n_features)
    for first in range(0, n_rows, BLOCK):
        n = min(BLOCK, n_rows - first)
        _load_start(start, first, n, history[0])
        if n_sweeps > 1:
            _load(theta, first, n, block_theta)
            for sweep in range(n_sweeps - 1):
                use_shared = is_shared and sweep == 0
                _sweep_block(block_theta, coupling, shared, use_shared, history[sweep], history[sweep + 1])
        _load(psi, first, n, history[n_sweeps])
        _load(grad, first, n, incoming)
        total[:] = 0.0
        for sweep in range(n_sweeps, 0, -1):
            by_constant = is_shared and sweep == 1
            before, after = history[sweep - 1], history[sweep]
            for k in range(n_features - 1, -1, -1):
                _subtract_products(incoming, k, transposed, delta, k + 1, n_features)
                for r in range(BLOCK):
                    delta[k, r] = incoming[k, r] * after[k, r] * (1.0 - after[k, r])
                    total[k, r] += delta[k, r]
            for k in range(n_features):
                _subtract_inner_products(grad_coupling, k, delta, after, 0, k)
                if by_constant:
                    first_sweep_sum[k] += delta[k].sum()
                else:
                    _subtract_inner_products(grad_coupling, k, delta, before, k + 1, n_features)
                if sweep > 1:
                    outgoing[k] = 0.0
                    _subtract_products(outgoing, k, transposed, delta, 0, k)
            incoming, outgoing = outgoing, incoming
        _store(total, first, n, grad_theta)
        for k in range(n_features):
            theta_sum[k] += total[k].sum()
    if is_shared:
        for k in range(n_features):
            for j in range(k + 1, n_features):
                grad_coupling[k, j] -= first_sweep_sum[k] * start[0, j]


def sweep_features_in_numpy(theta: Reals, coupling: Floats, start: Reals, n_sweeps: int, out: Reals) -> float:
    """`sweep_features` for a few rows, before the process has loaded the compiled function."""
    off_diagonal = coupling - np.diag(np.diag(coupling))
    psi = np.broadcast_to(start, theta.shape).astype(np.float64)
    for _ in range(n_sweeps):
        before = psi.copy()
        for k in range(psi.shape[1]):
            psi[:, k] = expit(theta[:, k] - psi @ off_diagonal[k])
    out[...] = psi
    return float(np.abs(psi - before).sum())


def sweeps_are_loaded() -> bool:
    """Whether this process has loaded the compiled sweeps, which takes a third of a second."""
    return bool(getattr(sweep_features, "signatures", True))


def reverse_features(
    grad: Reals,
    psi: Reals,
    theta: Reals | None,
    coupling: Floats,
    start: Reals,
    n_sweeps: int,
    grad_theta: Reals,
) -> SweepGradient:
    """Differentiate a function of the swept state with respect to theta and coupling, docs/math.md eq. (33).

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

    Returns
    -------
    SweepGradient
    """
    if theta is None and n_sweeps > 1:
        raise ValueError("theta is needed to reverse more than one sweep")
    n_features, psi = psi.shape[1], read_only(psi)  # which may have lain on another machine
    grad_coupling, theta_sum = np.zeros((n_features, n_features)), np.zeros(n_features)
    _reverse_rows(
        grad,
        psi,
        psi if theta is None else theta,  # with one sweep theta is not read
        coupling,
        start,
        n_sweeps,
        grad_theta,
        grad_coupling,
        theta_sum,
    )
    return SweepGradient(grad_coupling, theta_sum)
