"""Truncated stick-breaking representation of the Indian buffet process.

``nu_k ~ Beta(alpha, 1)``, ``pi_k = nu_1 ... nu_k``, ``z_rk ~ Bernoulli(pi_k)`` for R exchangeable samples, with
variational sticks ``q(nu_k) = Beta(first_k, second_k)``. docs/math.md eq. (20)-(24). The sticks order the features, so
permuting features changes the objective.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import betaln, digamma

from regbayes._registry import persistable
from regbayes._types import Floats, Indices, check_arrays


@persistable
@dataclass(frozen=True)
class Sticks:
    """Variational posterior of the sticks: independent Beta distributions."""

    first: Floats  # (K,)
    second: Floats  # (K,)

    def _check_loaded(self) -> None:
        check_arrays(self, first="K", second="K")


@dataclass(frozen=True)
class StickExpectations:
    """Expectations of the sticks that the feature updates use."""

    log_use: Floats  # (K,): E[log pi_k]
    log_rest: Floats  # (K,): L_k, the tightest multinomial bound on E[log(1 - pi_k)]
    log_parts: Floats  # (K,): t_m, whose running log-sum-exp is L
    log_odds: Floats  # (K,): prior log-odds of each feature, log_use - log_rest


def prior_sticks(alpha: float, n_features: int) -> Sticks:
    """Return the prior as a variational posterior."""
    return Sticks(np.full(n_features, float(alpha)), np.ones(n_features))


def stick_expectations(sticks: Sticks) -> StickExpectations:
    """Evaluate the expectations, docs/math.md eq. (21)-(22), in O(K)."""
    g1, g2 = sticks.first, sticks.second
    digamma_first, digamma_both = digamma(g1), digamma(g1 + g2)
    before = np.concatenate([[0.0], np.cumsum(digamma_first)[:-1]])
    t = digamma(g2) + before - np.cumsum(digamma_both)
    log_use, log_rest = np.cumsum(digamma_first - digamma_both), np.logaddexp.accumulate(t)
    return StickExpectations(log_use, log_rest, t, log_use - log_rest)


def update_sticks(sticks: Sticks, counts: Floats, n_rows: float, alpha: float) -> Sticks:
    """Take one majorize-minimize step, docs/math.md eq. (23).

    Parameters
    ----------
    sticks : Sticks
    counts : array of shape (K,)
        Expected number of samples that have each feature.
    n_rows : float
        R, the number of samples.
    alpha : float
        Concentration of the process.
    """
    expected = stick_expectations(sticks)
    t, L = expected.log_parts, expected.log_rest
    rest = np.maximum(n_rows - counts, 0.0)
    with np.errstate(divide="ignore"):
        log_rest_over = np.log(rest) - L  # log(r_m exp(-L_m))
    from_here = np.logaddexp.accumulate(log_rest_over[::-1])[::-1]
    after = np.concatenate([from_here[1:], [-np.inf]])
    rest_after = np.concatenate([np.cumsum(rest[::-1])[::-1][1:], [0.0]])
    used = np.cumsum(counts[::-1])[::-1]
    shared = np.maximum(rest_after - np.exp(L + after), 0.0)
    return Sticks(alpha + used + shared, 1.0 + np.exp(t + from_here))


def kl_sticks(sticks: Sticks, alpha: float) -> float:
    """Return ``KL(q(nu) || p(nu))``, including constants."""
    g1, g2 = sticks.first, sticks.second
    both = digamma(g1 + g2)
    terms = -np.log(alpha) - betaln(g1, g2)
    terms += (g1 - alpha) * (digamma(g1) - both) + (g2 - 1.0) * (digamma(g2) - both)
    return float(np.sum(terms))


def cross_entropy_features(expected: StickExpectations, counts: Floats, n_rows: float) -> float:
    """Return the bound on ``-E[log p(Z | nu)]``, docs/math.md eq. (24)."""
    return -float(counts @ expected.log_use + (n_rows - counts) @ expected.log_rest)


def find_idle(value: float, without: Floats, min_gain: float) -> Indices:
    """Return the features to drop next: half of those that improve the normalized objective by at most ``min_gain``.

    ``value`` is that objective with all features, and ``without`` (K,) are its values without each of them.
    """
    n_idle = int(np.sum(without <= value + min_gain))
    return np.argsort(without, kind="stable")[: max(1, n_idle // 2) if n_idle else 0]


def stick_weights(sticks: Sticks) -> Floats:
    """Return ``E[pi_k]``, the prior expected frequency of each feature, in decreasing order."""
    return np.asarray(np.cumprod(sticks.first / (sticks.first + sticks.second)))
