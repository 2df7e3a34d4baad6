"""Label-free mean-field sweeps over binary features, and their reverse.

In host memory, compiled loops work on transposed blocks of samples, so that every step in the sequential index k is a
short loop that the compiler vectorizes. Arrays of other libraries use the array API.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from regbayes._types import Floats, Reals
from regbayes.kernels._compile import compiled, compiled_as_written, compiled_inline, read_only
from regbayes.kernels.arrays import (
    LIMIT,
    DeviceArray,
    add_product,
    find_entropy,
    find_sigmoid,
    gather,
    is_torch,
    multiply_rows,
    namespace_of,
    pieces,
    sum_of,
    sum_products,
    to_device,
)

BLOCK = 64  # samples per block of compiled loops
COLUMNS = 10  # features per block in loops on a device; matrix products connect blocks
MAX_SWEEPS = 10_000
# exp(r) = (Q(r^2) + r P(r^2)) / (Q(r^2) - r P(r^2)) for |r| <= log(2) / 2: the rational approximation of Cephes
# (Moshier, "Methods and Programs for Mathematical Functions", 1989), written so that the sigmoid needs one division.
_P = 1.26177193074810590878e-4, 3.02994407707441961300e-2, 9.99999999999999999910e-1
_Q = 3.00198505138664455042e-6, 2.52448340349684104192e-3, 2.27265548208155028766e-1, 2.0
# 1 / log(2), log(2) in two parts, and 1.5 * 2^52: adding it rounds and puts the integer in the low bits
_REDUCTION = 1.4426950408889634, 6.93145751953125e-1, 1.42860682030941723212e-6, 6755399441055744.0


class SweepGradient(NamedTuple):
    """Result of the reverse sweep; sums over samples are in host memory."""

    theta: Reals  # (n, k): gradient of theta
    coupling: Floats  # (k, k): gradient of the coupling matrix; its diagonal is zero
    theta_sum: Floats  # (k,): gradient of theta, summed over samples


class FeatureSums(NamedTuple):
    """Weighted sums over samples, in host memory."""

    counts: Floats  # (k,): sum of psi
    gram: Floats  # (k, k): sum of products of psi
    by_theta: float  # Sum of psi times theta
    entropy: float


@compiled_as_written
def _sigmoid(x: float) -> float:
    """Return 1 / (1 + exp(-x)) to within three units in the last place; NaN stays NaN."""
    log2_e, ln2_high, ln2_low, rounding = _REDUCTION
    x = -x
    x = LIMIT if x > LIMIT else x  # beyond it 2^n leaves the range of normal numbers
    x = -LIMIT if x < -LIMIT else x
    shifted = x * log2_e + rounding
    n = shifted - rounding
    r = (x - n * ln2_high) - n * ln2_low
    rr = r * r
    p = r * ((_P[0] * rr + _P[1]) * rr + _P[2])
    q = ((_Q[0] * rr + _Q[1]) * rr + _Q[2]) * rr + _Q[3]
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
    """Copy rows ``first .. first + n`` to the columns of ``block``, padded with zeros."""
    n_features = block.shape[0]
    for r in range(n):
        for k in range(n_features):
            block[k, r] = rows[first + r, k]
    for r in range(n, BLOCK):
        for k in range(n_features):
            block[k, r] = 0.0


@compiled_inline
def _store(block: Floats, first: int, n: int, rows: Reals) -> None:
    """Copy the first ``n`` columns of ``block`` to rows ``first .. first + n``."""
    n_features = block.shape[0]
    for r in range(n):
        for k in range(n_features):
            rows[first + r, k] = block[k, r]


@compiled_inline
def _load_start(start: Reals, first: int, n: int, block: Floats) -> None:
    """Copy the initial state of the sweeps to ``block``; a single row is shared by all samples."""
    if start.shape[0] > 1:
        _load(start, first, n, block)
        return
    for k in range(block.shape[0]):
        for r in range(BLOCK):
            block[k, r] = start[0, k]


@compiled_inline
def _start_products(coupling: Floats, start: Reals) -> Floats:
    """Return ``sum_{j > k} coupling[k, j] start[0, j]``, the contribution of a shared start to the first sweep."""
    n_features = coupling.shape[0]
    products = np.empty(n_features)
    for k in range(n_features):
        total = 0.0  # a sum in an array element has an order that depends on its address
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
def _sweep_rows(theta: Reals, coupling: Floats, start: Reals, n_sweeps: int, out: Reals) -> None:
    n_rows, n_features = theta.shape
    is_shared = start.shape[0] == 1
    shared = _start_products(coupling, start)
    block_theta = np.empty((n_features, BLOCK))
    old = np.empty((n_features, BLOCK))
    new = np.empty((n_features, BLOCK))
    for first in range(0, n_rows, BLOCK):
        n = min(BLOCK, n_rows - first)
        _load(theta, first, n, block_theta)
        _load_start(start, first, n, old)
        for sweep in range(n_sweeps):
            if sweep > 0:
                old, new = new, old
            _sweep_block(block_theta, coupling, shared, is_shared and sweep == 0, old, new)
        _store(new, first, n, out)


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
        if n_sweeps > 1:
            _load(theta, first, n, block_theta)
        for sweep in range(n_sweeps - 1):
            _sweep_block(block_theta, coupling, shared, sweep == 0, history[sweep], history[sweep + 1])
        _load(psi, first, n, history[n_sweeps])
        _load(grad, first, n, incoming)
        total[:] = 0.0
        for sweep in range(n_sweeps, 0, -1):
            before, after = history[sweep - 1], history[sweep]
            for k in range(n_features - 1, -1, -1):
                _subtract_products(incoming, k, transposed, delta, k + 1, n_features)
                for r in range(BLOCK):
                    delta[k, r] = incoming[k, r] * after[k, r] * (1.0 - after[k, r])
                    total[k, r] += delta[k, r]
            for k in range(n_features):
                _subtract_inner_products(grad_coupling, k, delta, after, 0, k)
                if sweep == 1:
                    first_sweep_sum[k] += delta[k].sum()
                else:
                    _subtract_inner_products(grad_coupling, k, delta, before, k + 1, n_features)
                    outgoing[k] = 0.0
                    _subtract_products(outgoing, k, transposed, delta, 0, k)
            incoming, outgoing = outgoing, incoming
        _store(total, first, n, grad_theta)
        for k in range(n_features):
            theta_sum[k] += total[k].sum()
    for k in range(n_features):
        for j in range(k + 1, n_features):
            grad_coupling[k, j] -= first_sweep_sum[k] * start[0, j]


# --- arrays of any library: feature-major, (k, n), so that a step in k is one operation on n neighbors


def _sweep_columns(theta: DeviceArray, coupling: Floats, start: Floats, n_sweeps: int) -> list[DeviceArray]:
    """Return the states after each sweep, (k, n), from theta (k, n) and a start (k,) in host memory."""
    later = np.triu(coupling, 1)  # coupling to later features, which have their values before the sweep
    mixing = to_device(find_mixing(coupling), theta)
    history = [_sweep_once(theta - to_device(later @ start, theta)[:, None], mixing)]
    above = to_device(later, theta) if n_sweeps > 1 else None
    for _ in range(n_sweeps - 1):
        history.append(_sweep_once(theta - above @ history[-1], mixing))
    return history


def find_mixing(coupling: Floats) -> Floats:
    """Return the weights of a feature's own logit and of preceding features in a sweep, (k, k)."""
    return np.eye(len(coupling)) - np.tril(coupling, -1)


def _sweep_once(logits: DeviceArray, mixing: DeviceArray) -> DeviceArray:
    """Overwrite logits with ``psi_k = sigmoid(logits_k - sum_{j < k} coupling_kj psi_j)`` for k in order; return them.

    When row k is updated, preceding rows contain features and row k its logits, so one product takes both.
    """
    to_probability, writes = find_sigmoid(namespace_of(logits)), is_torch(logits)
    for block in pieces(logits.shape[0], COLUMNS):
        first = block.start
        if first:
            add_product(logits[block, :], mixing[block, :first], logits[:first, :])
        for k in range(first, block.stop):
            row = logits[k, :] if k == first else mixing[k, first : k + 1] @ logits[first : k + 1, :]
            if writes:
                to_probability(row, out=logits[k, :])
            else:
                logits[k, :] = to_probability(row)
    return logits


def _reverse_columns(
    incoming: DeviceArray, history: list[DeviceArray], coupling: Floats, start: Floats
) -> SweepGradient:
    """Return the gradients, the first (k, n); ``incoming`` is overwritten."""
    psi, triangle = history[-1], np.tril(np.ones_like(coupling), -1)
    xp = namespace_of(psi)
    upper, begin = to_device(triangle.T, psi, xp.float64), to_device(start, psi, xp.float64)
    mixing, above = to_device(find_mixing(coupling), psi), to_device(np.triu(coupling, 1), psi)
    total: Any = None
    by_coupling: Any = None
    for number in reversed(range(len(history))):
        delta = _reverse_once(incoming, history[number], mixing)
        found = multiply_rows(delta, history[number]) * upper.T
        if number > 0:
            found += multiply_rows(delta, history[number - 1]) * upper
            incoming = -(above.T @ delta)
        else:
            found += sum_of(delta, axis=1)[:, None] * begin * upper
        by_coupling = -found if by_coupling is None else by_coupling - found
        total = delta if total is None else total + delta
    return SweepGradient(total, *gather(by_coupling, sum_of(total, axis=1)))


def _reverse_once(incoming: DeviceArray, psi: DeviceArray, mixing: DeviceArray) -> DeviceArray:
    """Overwrite the gradient by the state with that by the arguments of the sigmoids of one sweep; return it."""
    K, back = psi.shape[0], _find_sigmoid_back(psi)
    for last in range(K, 0, -COLUMNS):
        first = max(last - COLUMNS, 0)
        if last < K:
            add_product(incoming[first:last, :], mixing[last:, first:last].T, incoming[last:, :])
        for k in reversed(range(first, last)):
            row = incoming[k, :] if k + 1 == last else mixing[k:last, k] @ incoming[k:last, :]
            back(row, psi[k, :], incoming[k, :])
    return incoming


def _find_sigmoid_back(like: DeviceArray) -> Callable[[DeviceArray, DeviceArray, DeviceArray], Any]:
    """Return a function that writes ``gradient psi (1 - psi)``, in a single pass for PyTorch."""
    if is_torch(like):
        import torch

        return lambda gradient, psi, out: torch.ops.aten.sigmoid_backward.grad_input(gradient, psi, grad_input=out)

    def write(gradient: DeviceArray, psi: DeviceArray, out: DeviceArray) -> None:
        out[...] = gradient * psi * (1.0 - psi)

    return write


# --- samples in host memory or on a device


def check_sweep(samples: Any, coupling: Floats, n_sweeps: int, *vectors: Any) -> None:
    """Raise a ValueError unless shapes match, since compiled code does not check them."""
    n_features = samples.shape[1]
    fits = coupling.shape == (n_features, n_features) and all(one.shape[-1] == n_features for one in vectors)
    if not fits or not 1 <= n_sweeps <= MAX_SWEEPS:
        shapes = [tuple(one.shape) for one in (samples, coupling, *vectors)]
        raise ValueError(f"Shapes {shapes} of a sweep over features do not fit, or `n_sweeps` is {n_sweeps!r}.")


def sweep_features(theta: Any, coupling: Floats, start: Reals, n_sweeps: int, out: Reals | None = None) -> Any:
    """Return the state after mean-field sweeps over the features of every sample, shape (n, k).

    A sweep sets ``psi_k = sigmoid(theta_k - sum_{j != k} coupling_kj psi_j)`` for k in order, with the current values
    of psi, docs/math.md eq. (31).

    Parameters
    ----------
    theta : (n, k)
        In host memory or on a device.
    coupling : (k, k)
        The diagonal is ignored, and symmetry is not assumed.
    start : (1, k) or (n, k)
        Initial state: one row shared by all samples or, in host memory, one row per sample.
    n_sweeps : int
        At least one.
    out : (n, k), default=None
        Output array in host memory. It may be ``theta`` or a per-sample ``start``.
    """
    check_sweep(theta, coupling, n_sweeps, start)
    if not isinstance(theta, np.ndarray):
        return _sweep_columns(theta.T, coupling, start[0], n_sweeps)[-1].T
    out = np.empty(theta.shape) if out is None else out
    if out.shape != theta.shape or len(start) not in (1, len(theta)):
        raise ValueError(f"`out` and `start` must have a row for each of {len(theta)} samples.")
    _sweep_rows(theta, coupling, start, n_sweeps, out)
    return out


def reverse_features(
    grad: Any, psi: Any, theta: Any | None, coupling: Floats, start: Reals, n_sweeps: int, grad_theta: Any = None
) -> SweepGradient:
    """Differentiate a function of the swept state with respect to theta and coupling, docs/math.md eq. (33).

    Parameters
    ----------
    grad : (n, k)
        Gradient with respect to the result of ``sweep_features``. On a device it is overwritten.
    psi : (n, k)
        Result of ``sweep_features``.
    theta : (n, k) or None
        Needed to recompute the states between sweeps; not used with a single sweep.
    coupling, n_sweeps
        As in ``sweep_features``.
    start : (1, k)
        As in ``sweep_features``.
    grad_theta : (n, k), default=None
        Output array in host memory for the gradient with respect to theta. It may be ``grad``.
    """
    check_sweep(psi, coupling, n_sweeps, grad, start)
    if theta is None and n_sweeps > 1:
        raise ValueError("theta is needed to reverse more than one sweep")
    if not isinstance(psi, np.ndarray):
        history = [] if theta is None or n_sweeps == 1 else _sweep_columns(theta.T, coupling, start[0], n_sweeps - 1)
        found = _reverse_columns(grad.T, [*history, psi.T], coupling, start[0])
        return found._replace(theta=found.theta.T)
    grad_theta = np.empty(psi.shape) if grad_theta is None else grad_theta
    theta = psi if theta is None else theta  # theta is not read with one sweep
    if not psi.shape == grad.shape == theta.shape == grad_theta.shape or len(start) != 1:
        raise ValueError(f"`grad`, `theta` and `grad_theta` must have the shape of `psi`, {psi.shape}.")
    found = SweepGradient(grad_theta, np.zeros(coupling.shape), np.zeros(len(coupling)))
    _reverse_rows(grad, read_only(psi), read_only(theta), coupling, start, n_sweeps, *found)
    return found


def sum_features(psi: Any, theta: Any, weights: Any | None) -> FeatureSums:
    """Sum statistics of the features over samples; weights (n,) are on the device of the samples."""
    xp, entropy_of = namespace_of(psi), find_entropy(namespace_of(psi))
    columns, weighed = psi.T, psi.T if weights is None else psi.T * weights
    by_theta, entropy = [], []
    for block in pieces(columns.shape[0], COLUMNS):  # work arrays have the size of a block of features
        by_theta.append(sum_products(weighed[block, :], theta.T[block, :]))
        each = entropy_of(columns[block, :])
        entropy.append(sum_of(each if weights is None else each * weights))
    sums = gather(sum_of(weighed, axis=1), multiply_rows(weighed, columns), xp.stack(by_theta), xp.stack(entropy))
    return FeatureSums(sums[0], sums[1], float(sums[2].sum()), float(sums[3].sum()))
