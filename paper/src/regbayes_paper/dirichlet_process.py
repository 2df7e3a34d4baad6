"""Mean-field stick-breaking of the Dirichlet process, optionally with a kernel.

``v_k ~ Beta(1, alpha)`` and ``share_k = v_k prod_{j<k} (1 - v_j)``. In kernel stick-breaking (Dunson and Park 2008) the
share of cluster k at location m is ``v_k K_mk prod_{j<k} (1 - v_j K_mj)``, where the kernel K_mk is between 0 and 1. In
mean field ``E[log(1 - v K)] >= log(exp E[log v] (1 - K) + exp E[log(1 - v)])``. A kernel of 1 is the plain process.

Log-kernels have a row for each location and a column for each cluster.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import betaln, digamma

from regbayes_paper._types import Floats, Integers


@dataclass(frozen=True)
class Sticks:
    """Variational posterior of the sticks: independent Beta distributions."""

    first: Floats  # (K,)
    second: Floats  # (K,)

    @classmethod
    def of(cls, counts: Floats, alpha: float) -> Sticks:
        """Return the optimal sticks of the plain process for expected cluster sizes."""
        return cls(1.0 + counts, alpha + later(counts[None])[0])

    def logs(self) -> tuple[Floats, Floats]:
        """Return ``E[log v_k]`` and ``E[log(1 - v_k)]``."""
        both = digamma(self.first + self.second)
        return digamma(self.first) - both, digamma(self.second) - both

    def log_weights(self) -> Floats:
        """Return ``E[log share_k]`` of the plain process."""
        return log_shares(self, np.zeros((1, len(self.first))))[0]

    def kl(self, alpha: float) -> float:
        """Return the KL divergence from Beta(1, alpha)."""
        log_v, log_rest = self.logs()
        terms = (self.first - 1.0) * log_v + (self.second - alpha) * log_rest - betaln(self.first, self.second)
        return float(np.sum(terms - np.log(alpha)))


def log_closed(log_kernel: Floats) -> Floats:
    """Return ``log(1 - K)``."""
    with np.errstate(divide="ignore"):  # log(0) at the center itself
        return np.log(-np.expm1(log_kernel))


def log_passing(sticks: Sticks, log_kernel: Floats) -> Floats:
    """Return the bound on ``E[log(1 - v_k K)]``, with the shape of the kernel (..., K)."""
    log_v, log_rest = sticks.logs()
    return np.logaddexp(log_v + log_closed(log_kernel), log_rest)


def log_shares(sticks: Sticks, log_kernel: Floats) -> Floats:
    """Return the bound on ``E[log share_k]`` at each location, (M, K)."""
    passing = log_passing(sticks, log_kernel)
    return sticks.logs()[0] + log_kernel + np.cumsum(passing, axis=1) - passing


def later(memberships: Floats) -> Floats:
    """Return the probability of all clusters after each cluster."""
    return np.cumsum(memberships[:, ::-1], axis=1)[:, ::-1] - memberships


def update_sticks(sticks: Sticks, log_kernel: Floats, memberships: Floats, alpha: float) -> Sticks:
    """Return the optimal sticks given the bound at the current ones (a majorize-minimize step)."""
    passed = later(memberships)
    taken = np.exp(sticks.logs()[0] + log_closed(log_kernel) - log_passing(sticks, log_kernel))
    first = 1.0 + np.sum(memberships + passed * taken, axis=0)
    return Sticks(first, alpha + np.sum(passed * (1.0 - taken), axis=0))


def best_centres(sticks: Sticks, log_kernel: Floats, memberships: Floats) -> Integers:
    """Return the best center of each cluster; column j of the kernel (M, J) belongs to candidate j."""
    passing = log_passing(sticks, log_kernel[:, :, None])
    return (memberships.T @ log_kernel + np.einsum("mk,mjk->kj", later(memberships), passing)).argmax(axis=1)
