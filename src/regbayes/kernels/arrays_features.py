"""Binary features over arrays of any library: sweeps of mean field, and their reverse, as `sweeps.py` defines them.

Arrays are feature-major, (K, n): a step in the sequential index k is one operation on n neighbours, and features are
taken in blocks of ``BLOCK``, between which there are products of matrices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from regbayes._types import Floats
from regbayes.kernels.arrays import (
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

BLOCK = 10  # features between which there is a loop; beyond, products of matrices


@dataclass(frozen=True)
class Swept:
    """Features of rows after sweeps, and what is known of them."""

    history: list[DeviceArray]  # the states after each sweep, (K, n)
    theta: DeviceArray  # (K, n)


def sweep_features(
    products: DeviceArray,
    constant: Floats,
    coupling: Floats,
    start: Floats,
    n_sweeps: int,
) -> Swept:
    """Sweep over the features of rows, as `regbayes.kernels.sweeps.sweep_features` does.

    Parameters
    ----------
    products : (K, n)
        They are overwritten.
    constant : (K,), on the host
        Added to the products, which makes theta.
    coupling : (K, K), on the host
        Its diagonal is not used.
    start : (K,), on the host
        Where the first sweep starts, in all rows.
    n_sweeps : int
        At least one.
    """
    later = np.triu(coupling, 1)  # what a feature sees of those after it, as they were
    theta, mixing = products, to_device(find_mixing(coupling), products)
    theta += to_device(constant, products)[:, None]
    history = [_sweep(theta - to_device(later @ start, theta)[:, None], mixing)]
    if n_sweeps > 1:
        above = to_device(later, theta)
    for _ in range(n_sweeps - 1):
        history.append(_sweep(theta - above @ history[-1], mixing))
    return Swept(history, theta)


def find_mixing(coupling: Floats) -> Floats:
    """Return what a feature sees of itself and of those before it in a sweep, (K, K): 1, and minus the coupling."""
    return np.eye(len(coupling)) - np.tril(coupling, -1)


def _sweep(logits: DeviceArray, mixing: DeviceArray) -> DeviceArray:
    """Write ``psi_k = sigmoid(logits_k - sum_{j < k} coupling_kj psi_j)`` for k in order over the logits; return them.

    Rows before k have features by then, and row k has its logits: one product takes both.
    """
    to_probability, writes = find_sigmoid(namespace_of(logits)), is_torch(logits)
    for block in pieces(logits.shape[0], BLOCK):
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


class FeatureSums(NamedTuple):
    """What inference leaves of rows beside their features, each row as often as it counts."""

    counts: Floats  # (K,): sum of psi_n
    gram: Floats  # (K, K): sum of psi_n psi_n'
    by_theta: float  # sum of psi_n' theta_n
    entropy: float


def sum_features(swept: Swept, weights: DeviceArray | None) -> FeatureSums:
    """Sum what the objective needs to know of the features of rows; weights (n,) say how often each counts.

    The work arrays are a block of features long.
    """
    psi, theta = swept.history[-1], swept.theta
    xp = namespace_of(psi)
    weighed = psi if weights is None else psi * weights
    gram, counts = multiply_rows(weighed, psi), sum_of(weighed, axis=1)
    entropy_of = find_entropy(xp)
    by_theta, entropy = [], []
    for block in pieces(psi.shape[0], BLOCK):
        some = psi[block, :]
        by_theta.append(sum_products(weighed[block, :], theta[block, :]))
        each = entropy_of(some)
        entropy.append(sum_of(each if weights is None else each * weights))
    found = gather(counts, gram, xp.stack(by_theta), xp.stack(entropy))
    return FeatureSums(found[0], found[1], float(found[2].sum()), float(found[3].sum()))


def reverse_features(
    gradient: DeviceArray | None,
    history: Sequence[DeviceArray],
    coupling: Floats,
    start: Floats,
    weight: float = 0.0,
    weights: DeviceArray | None = None,
) -> tuple[DeviceArray, DeviceArray, DeviceArray]:
    """Differentiate a function of the swept state, and the rows' own terms, with respect to theta and coupling.

    The first is what `regbayes.kernels.sweeps.reverse_features` does. The rows' own terms, those of
    `regbayes.models.ilsvm.model.HostRows.pull_back`, add ``weight L' (psi - before)`` to the gradient, where L is the
    coupling below its diagonal and ``before`` the state before the last sweep, and ``-weight psi`` to the result.

    Parameters
    ----------
    gradient : (K, n) or None
        With respect to the last state. It is overwritten.
    history : sequence of (K, n)
        The states after each sweep.
    coupling, start
        As in `sweep_features`.
    weight : float
        Of the rows' own terms.
    weights : (n,), default=None
        How often rows count in them.

    Returns
    -------
    left : (K, n)
        The gradient by theta, less weight psi.
    by_coupling : (K, K)
    left_sum : (K,)
        The first summed over rows.
    """
    psi, triangle = history[-1], np.tril(np.ones_like(coupling), -1)
    xp = namespace_of(psi)
    upper, begin = to_device(triangle.T, psi, xp.float64), to_device(start, psi, xp.float64)
    incoming = gradient
    if weight:
        below, before = to_device(weight * np.tril(coupling, -1).T, psi), None if len(history) == 1 else history[-2]
        moved = psi - (to_device(start, psi)[:, None] if before is None else before)
        if weights is not None:
            moved *= weights
        if incoming is None:
            incoming = below @ moved
        else:
            add_product(incoming, below, moved)
    elif incoming is None:
        incoming = xp.zeros_like(psi)
    total, by_coupling = None, None
    mixing, above = to_device(find_mixing(coupling), psi), to_device(np.triu(coupling, 1), psi)
    for number in reversed(range(len(history))):
        delta = _reverse_sweep(incoming, history[number], mixing)
        found = multiply_rows(delta, history[number]) * upper.T
        if number > 0:
            found += multiply_rows(delta, history[number - 1]) * upper
            incoming = -(above.T @ delta)
        else:
            found += sum_of(delta, axis=1)[:, None] * begin * upper
        by_coupling = -found if by_coupling is None else by_coupling - found
        total = delta if total is None else total + delta
    if weight:
        _add_scaled(total, psi if weights is None else psi * weights, -weight)
    return total, by_coupling, sum_of(total, axis=1)


def _add_scaled(total: DeviceArray, other: DeviceArray, factor: float) -> None:
    """Add a multiple of an array to another in place: in one pass where the library can."""
    if is_torch(total):
        total.add_(other, alpha=factor)
    else:
        total += factor * other


def _reverse_sweep(incoming: DeviceArray, psi: DeviceArray, mixing: DeviceArray) -> DeviceArray:
    """Write the gradient by the arguments of one sweep's sigmoids over the one by its state; return it."""
    K, back = psi.shape[0], _find_sigmoid_back(psi)
    for last in range(K, 0, -BLOCK):
        first = max(last - BLOCK, 0)
        if last < K:
            add_product(incoming[first:last, :], mixing[last:, first:last].T, incoming[last:, :])
        for k in reversed(range(first, last)):
            row = incoming[k, :] if k + 1 == last else mixing[k:last, k] @ incoming[k:last, :]
            back(row, psi[k, :], incoming[k, :])
    return incoming


def _find_sigmoid_back(like: DeviceArray) -> Callable[[DeviceArray, DeviceArray, DeviceArray], Any]:
    """Return the function that writes ``gradient psi (1 - psi)``; PyTorch has one that takes one pass."""
    if is_torch(like):
        import torch

        return lambda gradient, psi, out: torch.ops.aten.sigmoid_backward.grad_input(gradient, psi, grad_input=out)

    def write(gradient: DeviceArray, psi: DeviceArray, out: DeviceArray) -> None:
        out[...] = gradient * psi * (1.0 - psi)

    return write
