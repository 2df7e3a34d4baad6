"""Few on/off features by enumeration: the exact posterior of every row, and its reverse, on any array library.

What a row has on is one of ``2^m`` states s, with probability proportional to ``exp(theta' s - s' A s / 2)``, where the
diagonal of the coupling A is not used. Features that are coupled to no other are independent and not enumerated.
Mean field (`kernels.sweeps`) approximates this; it errs where two features explain the same inputs.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from regbayes._types import Flags, Floats
from regbayes.kernels.arrays import DeviceArray, gather, multiply_rows, namespace_of, pieces, sum_of, to_device

ROOM = 1 << 20  # probabilities of states that are held at a time
MOST_COUPLED = 16  # features that can be enumerated


class Enumerated(NamedTuple):
    """The posterior of rows, in expectations."""

    psi: DeviceArray
    """(n, k): probabilities that features are on."""
    log_partitions: DeviceArray
    """(n,): log of what the states' weights sum to."""
    entropies: DeviceArray
    """(n,)"""
    second_moment: Floats
    """(k, k): sum of E[z z'] over rows, each as often as it counts."""


class EnumeratedGradient(NamedTuple):
    """Gradients of a function of the probabilities."""

    theta: DeviceArray
    """(n, k)"""
    coupling: Floats
    """(k, k), summed over rows, as a function of a coupling that need not be symmetric; its diagonal is zero."""


def enumerate_features(theta: DeviceArray, coupling: Floats, weights: Floats | None = None) -> Enumerated:
    """Return the exact posterior of on/off features.

    Parameters
    ----------
    theta : (n, k)
        Log-odds of features where no other is on.
    coupling : (k, k), on the host
        Symmetric.
    weights : (n,), on the host, default=None
        How often each row counts in sums; once by default.
    """
    xp, (n, k), plan = namespace_of(theta), theta.shape, _Plan.of(coupling, theta)
    found: list[tuple[DeviceArray, DeviceArray, DeviceArray]] = []
    moments = np.zeros((k, k))
    for rows in plan.pieces(n):
        mine, own = theta[rows, :], None if weights is None else to_device(weights[rows], theta)
        logits, P, log_z = plan.weigh_states(mine)
        psi, _ = _infer_alone(mine)
        partition = xp.where(mine > 0, mine, 0.0 * mine) + xp.log1p(xp.exp(-xp.abs(mine)))
        entropy = xp.sum((partition - psi * mine) * plan.alone, axis=1) + log_z - xp.sum(P * logits, axis=1)
        psi = xp.clip(psi * plan.alone + P @ plan.states, 0.0, 1.0)  # sums of shares that are one but for rounding
        found.append((psi, xp.sum(partition * plan.alone, axis=1) + log_z, entropy))
        counted = psi if own is None else psi * own[:, None]
        by_state = sum_of(P if own is None else P * own[:, None], axis=0)
        gram, sums, by_state = gather(multiply_rows(counted.T, psi.T), sum_of(counted, axis=0), by_state)
        gram = np.where(plan.pairs, (plan.host_states.T * by_state) @ plan.host_states, gram)
        np.fill_diagonal(gram, sums)
        moments += gram
    psi, log_partitions, entropies = (xp.concat(list(parts)) for parts in zip(*found, strict=True))
    return Enumerated(psi, log_partitions, entropies, moments)


def reverse_enumerated(grad: DeviceArray, theta: DeviceArray, coupling: Floats) -> EnumeratedGradient:
    """Differentiate a function of the probabilities that `enumerate_features` finds.

    Parameters
    ----------
    grad : (n, k)
        Its gradient with respect to them.
    theta, coupling
        As given to `enumerate_features`.
    """
    xp, plan, k = namespace_of(theta), _Plan.of(coupling, theta), theta.shape[1]
    found, by_state, apart = [], np.zeros(len(plan.host_states)), np.zeros((k, k))
    for rows in plan.pieces(theta.shape[0]):
        mine, slope = theta[rows, :], grad[rows, :]
        P, (psi, alone) = plan.weigh_states(mine)[1], _infer_alone(mine)
        # The gradient by theta is the covariance of the states with what the function says of them.
        said = slope @ plan.states.T
        moved = P * (said - xp.sum(P * said, axis=1)[:, None])
        found.append(slope * alone * plan.alone + moved @ plan.states)
        psi = psi * plan.alone + P @ plan.states
        parts = gather(sum_of(moved, axis=0), multiply_rows(found[-1].T, psi.T))
        by_state, apart = by_state + parts[0], apart + parts[1]
    # Of two features that are independent, the covariance of their product is that of each times the other's mean.
    together = (plan.host_states.T * by_state) @ plan.host_states
    by_coupling = -0.5 * np.where(plan.pairs, together, apart + apart.T)
    np.fill_diagonal(by_coupling, 0.0)
    return EnumeratedGradient(xp.concat(found), by_coupling)


class _Plan(NamedTuple):
    """The states of m features that are coupled, and where they are among k; the others are off in all of them."""

    host_states: Floats  # (2^m, k)
    pairs: Flags  # (k, k): whether both are enumerated
    states: DeviceArray  # (2^m, k)
    energies: DeviceArray  # (2^m,): what the coupling costs a state
    alone: DeviceArray  # (k,): one for features that are not enumerated, else zero

    @classmethod
    def of(cls, coupling: Floats, like: DeviceArray) -> _Plan:
        """Plan for a coupling, on the host, and rows that lie where ``like`` does."""
        off_diagonal = coupling - np.diag(np.diag(coupling))
        is_coupled = np.any(off_diagonal != 0.0, axis=1)
        m = int(is_coupled.sum())
        if m > MOST_COUPLED:
            raise ValueError(f"at most {MOST_COUPLED} features that are coupled can be enumerated, got {m}")
        states = np.zeros((1 << m, len(coupling)))
        states[:, is_coupled] = list_states(m)
        energies = 0.5 * np.einsum("sk,sk->s", states @ off_diagonal, states)
        return cls(
            states,
            np.outer(is_coupled, is_coupled),
            *(to_device(values, like) for values in (states, energies, 1.0 - is_coupled)),
        )

    def pieces(self, n_rows: int) -> list[slice]:
        """Return rows in pieces whose states are not too many."""
        return pieces(n_rows, max(1, ROOM // len(self.host_states)))

    def weigh_states(self, theta: DeviceArray) -> tuple[DeviceArray, DeviceArray, DeviceArray]:
        """Return logits and probabilities of the states, (n, 2^m), and the log of what their weights sum to, (n,)."""
        xp = namespace_of(theta)
        logits = theta @ self.states.T - self.energies
        highest = xp.max(logits, axis=1)
        weights = xp.exp(logits - highest[:, None])
        total = xp.sum(weights, axis=1)
        return logits, weights / total[:, None], highest + xp.log(total)


def _infer_alone(theta: DeviceArray) -> tuple[DeviceArray, DeviceArray]:
    """Return sigmoids and their slopes; nothing overflows."""
    xp = namespace_of(theta)
    small = xp.exp(-xp.abs(theta))
    likely = 1.0 / (1.0 + small)
    return xp.where(theta >= 0, likely, small * likely), small * likely * likely


@lru_cache(maxsize=MOST_COUPLED + 1)
def list_states(n_features: int) -> Floats:
    """Return all states of some features, shape (2^m, m)."""
    numbers = np.arange(1 << n_features)
    states = ((numbers[:, None] >> np.arange(n_features)) & 1).astype(np.float64)
    states.flags.writeable = False
    return states
