"""Gaussian components with independent columns and unknown mean and precision: the normal-gamma distribution.

``precision_kd ~ Gamma(shape, rate_d)`` and ``mean_kd ~ N(centre_d, 1 / (scale precision_kd))``; posteriors are of the
same kind, docs/math.md eq. (96)-(98).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import digamma, gammaln

from regbayes._registry import persistable
from regbayes._types import Floats


@persistable(name="regbayes.normal_gamma.NormalGammaPrior")
@dataclass(frozen=True)
class NormalGammaPrior:
    """What is believed of every component."""

    centre: Floats  # (D,): m_0
    scale: float  # kappa_0: how many rows the belief in the centre is worth
    shape: float  # a_0: half the number of rows that the belief in the variance is worth
    rate: Floats  # (D,): b_0; shape times the believed variance


@persistable(name="regbayes.normal_gamma.Components")
@dataclass(frozen=True)
class Components:
    """Variational posterior of means and precisions."""

    centre: Floats  # (T, D)
    scale: Floats  # (T,)
    shape: Floats  # (T,)
    rate: Floats  # (T, D)

    @property
    def precision(self) -> Floats:
        """Expected precisions, shape (T, D)."""
        return np.asarray(self.shape[:, None] / self.rate)


def update_components(X: Floats, responsibilities: Floats, prior: NormalGammaPrior) -> Components:
    """The best components for rows that belong to them in part, eq. (97)."""
    return components_from(sums(X, responsibilities, prior), prior)


@dataclass(frozen=True)
class Sums:
    """What components need to know of their rows; two components with the rows of both have the sums of both."""

    counts: Floats  # (..., T)
    total: Floats  # (..., T, D): of rows less the prior's centre, because squares of what is far off would cancel
    squares: Floats  # (..., T, D)

    def __add__(self, other: Sums) -> Sums:
        return Sums(self.counts + other.counts, self.total + other.total, self.squares + other.squares)

    def __getitem__(self, index: Any) -> Sums:
        return Sums(self.counts[index], self.total[index], self.squares[index])


def sums(X: Floats, responsibilities: Floats, prior: NormalGammaPrior) -> Sums:
    """Sum rows by responsibility."""
    offset = X - prior.centre
    return Sums(responsibilities.sum(axis=0), responsibilities.T @ offset, responsibilities.T @ np.square(offset))


def components_from(sums: Sums, prior: NormalGammaPrior) -> Components:
    """The posterior of components given the sums of their rows."""
    scale = prior.scale + sums.counts
    shift = sums.total / scale[..., None]
    spread = np.maximum(sums.squares - sums.total * shift, 0.0)
    return Components(prior.centre + shift, scale, prior.shape + 0.5 * sums.counts, prior.rate + 0.5 * spread)


def log_evidence(sums: Sums, prior: NormalGammaPrior) -> Floats:
    """Log-density of the rows of each component, its mean and precision integrated out, eq. (104), shape (..., T)."""
    found = components_from(sums, prior)
    by_column = prior.shape * np.log(prior.rate) - found.shape[..., None] * np.log(found.rate)
    common = gammaln(found.shape) - gammaln(prior.shape) + 0.5 * np.log(prior.scale / found.scale)
    common = common - 0.5 * sums.counts * np.log(2.0 * np.pi)
    return np.asarray(by_column.sum(axis=-1) + by_column.shape[-1] * common)


def log_likelihoods(X: Floats, components: Components) -> Floats:
    """``E[log p(x_n | component k)]``, eq. (96), shape (n, T)."""
    precision = components.precision
    constant = 0.5 * (digamma(components.shape)[:, None] - np.log(2.0 * np.pi * components.rate)).sum(axis=1)
    constant -= 0.5 * X.shape[1] / components.scale
    found = np.empty((len(X), len(precision)))
    for k, centre in enumerate(components.centre):
        found[:, k] = constant[k] - 0.5 * np.square(X - centre) @ precision[k]
    return found


def kl_components(components: Components, prior: NormalGammaPrior) -> float:
    """``KL(q || p)`` of means and precisions, eq. (98), constants kept."""
    shape, rate = components.shape[:, None], components.rate
    gammas = (shape - prior.shape) * digamma(shape) - gammaln(shape) + gammaln(prior.shape)
    gammas = gammas + prior.shape * np.log(rate / prior.rate) + shape * (prior.rate / rate - 1.0)
    ratio = (prior.scale / components.scale)[:, None]
    squares = prior.scale * components.precision * np.square(components.centre - prior.centre)
    return float(np.sum(gammas + 0.5 * (ratio - 1.0 - np.log(ratio) + squares)))
