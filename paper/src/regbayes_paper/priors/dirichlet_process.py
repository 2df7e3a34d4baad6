"""The Dirichlet process in its stick-breaking form, truncated: classes of rows, as many as the data ask for.

``v_k ~ Beta(1, alpha)``, ``pi_k = v_k (1 - v_1) ... (1 - v_{k-1})``, ``z_n ~ Categorical(pi)``, and the variational
sticks ``q(v_k) = Beta(first_k, second_k)``. The truncation is one of the posterior and not of the process: rows have
components beyond the T-th with probability zero, docs/math.md eq. (93)-(95).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import betaln, digamma

from regbayes._registry import persistable
from regbayes._types import Floats, Integers


@persistable(name="regbayes.dirichlet_process.Sticks")
@dataclass(frozen=True)
class Sticks:
    """Variational posterior of the sticks: independent Beta distributions."""

    first: Floats  # (T,)
    second: Floats  # (T,)


def update_sticks(counts: Floats, alpha: float) -> Sticks:
    """The best sticks for expected numbers of rows in each component, eq. (94)."""
    return Sticks(1.0 + counts, alpha + _later(counts))


def log_sticks(sticks: Sticks) -> tuple[Floats, Floats]:
    """``E[log v_k]`` and ``E[log(1 - v_k)]``, each of shape (T,)."""
    both = digamma(sticks.first + sticks.second)
    return np.asarray(digamma(sticks.first) - both), np.asarray(digamma(sticks.second) - both)


def log_weights(sticks: Sticks) -> Floats:
    """``E[log pi_k]``, eq. (93), shape (T,)."""
    log_taken, log_rest = log_sticks(sticks)
    return np.asarray(log_taken + np.cumsum(log_rest) - log_rest)


def expected_weights(sticks: Sticks) -> Floats:
    """``E[pi_k]``, shape (T,); what is missing to one belongs to components beyond the truncation."""
    share = sticks.first / (sticks.first + sticks.second)
    before = np.concatenate([[1.0], np.cumprod(1.0 - share)[:-1]])
    return np.asarray(share * before)


def kl_sticks(sticks: Sticks, alpha: float) -> float:
    """``KL(q(v) || p(v))``, constants kept."""
    a, b = sticks.first, sticks.second
    both = digamma(a + b)
    terms = -np.log(alpha) - betaln(a, b) + (a - 1.0) * (digamma(a) - both) + (b - alpha) * (digamma(b) - both)
    return float(np.sum(terms))


def log_evidence(counts: Floats, alpha: float) -> Floats:
    """Log-probability of assignments with such counts, the sticks integrated out, eq. (95), shape (...).

    With fractional counts it is what the bound has at the best sticks, beside the entropy of the assignments.
    """
    return np.asarray(np.sum(betaln(1.0 + counts, alpha + _later(counts)) + np.log(alpha), axis=-1))


def best_order(counts: Floats) -> Integers:
    """The order of components that the prior likes best, that of falling counts, eq. (95); ties stay as they are."""
    return np.argsort(-counts, kind="stable")


def _later(counts: Floats) -> Floats:
    """Sum of the counts of all later components."""
    return np.asarray(np.cumsum(counts[..., ::-1], axis=-1)[..., ::-1] - counts)
