"""Mean-field stick-breaking of the Indian buffet process (Doshi-Velez et al. 2009; appendix D).

``nu_k ~ Beta(alpha, 1)``, ``pi_k = nu_1 ... nu_k``, binary features ``z_nk ~ Bernoulli(pi_k)``, and
``q(nu_k) = Beta(first_k, second_k)``. ``E[log(1 - pi_k)]`` has no closed form. Its multinomial lower bound L_k is
tightest at the distribution ``q_km = exp(t_m - L_k)`` over m <= k, where it is a running logsumexp of t.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import betaln, digamma

from regbayes_paper._types import Floats


@dataclass(frozen=True)
class Sticks:
    """Independent Beta distributions of the sticks."""

    first: Floats  # (K,)
    second: Floats  # (K,)

    @classmethod
    def of_prior(cls, alpha: float, n_components: int) -> Sticks:
        """Return the prior distribution of the sticks."""
        return cls(np.full(n_components, float(alpha)), np.ones(n_components))

    @property
    def log_on(self) -> Floats:
        """``E[log pi_k]``, (K,)."""
        return np.cumsum(digamma(self.first) - digamma(self.first + self.second))

    @property
    def terms(self) -> Floats:
        """The exponents t of the bound, (K,)."""
        passed = digamma(self.first)
        both = np.cumsum(digamma(self.first + self.second))
        return digamma(self.second) + np.cumsum(passed) - passed - both

    @property
    def log_off(self) -> Floats:
        """The bound L on ``E[log(1 - pi_k)]``, (K,)."""
        return np.logaddexp.accumulate(self.terms)

    @property
    def log_odds(self) -> Floats:
        """``E[log pi_k] - L_k``, (K,)."""
        return self.log_on - self.log_off

    def update(self, counts: Floats, n_rows: int, alpha: float) -> Sticks:
        """Return the optimal sticks for expected counts (K,) at the current q_km (a majorize-minimize step)."""
        t, L, off = self.terms, self.log_off, n_rows - counts
        beyond = np.triu(1.0 - np.exp(np.minimum(L[:, None] - L[None, :], 0.0)), 1) @ off
        first = alpha + np.cumsum(counts[::-1])[::-1] + beyond
        shares = np.exp(np.minimum(t[:, None] - L[None, :], 0.0))
        return Sticks(first, 1.0 + np.triu(shares) @ off)

    def cost(self, counts: Floats, n_rows: int) -> float:
        """Return ``-E[log p(Z | nu)]``, by the bound."""
        return -float(counts @ self.log_on + (n_rows - counts) @ self.log_off)

    def kl(self, alpha: float) -> float:
        """Return the KL divergence from the prior."""
        both = digamma(self.first + self.second)
        on, rest = digamma(self.first) - both, digamma(self.second) - both
        terms = (self.first - alpha) * on + (self.second - 1.0) * rest - betaln(self.first, self.second)
        return float(np.sum(terms - np.log(alpha)))
