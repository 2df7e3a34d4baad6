"""Draws of many tilts as one pool that stands for the posterior: multistate reweighting.

Round k drew from ``p exp(<phi_k, psi> - A_k)``. All its draws and those of every other round are draws of a mixture,
whose density relative to p is known up to the log-partitions A_k; these are where the mixture reproduces itself [1].
Draws of a chain repeat each other, so a round counts with its effective size.

References
----------
.. [1] M. R. Shirts and J. D. Chodera (2008). Statistically optimal analysis of samples from multiple equilibrium
   states. Journal of Chemical Physics 129, 124105.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.special import logsumexp

from regbayes._types import Floats
from regbayes.regularization.diagnostics import autocorrelation_time, effective_sample_size, monte_carlo_error, pareto_k

MAX_STEPS = 100
FLAT = 8.0  # a largest weight below which it is one of many
CLOSE = 1e-10  # of a round's size: how well the mixture reproduces each round


@dataclass(frozen=True, eq=False)
class Rung:
    """The features of one run's draws, and the multipliers they were drawn at."""

    values: Floats  # (n_chains, n_draws, m)
    phi: Floats  # (m,)

    @cached_property
    def flat(self) -> Floats:
        """The features of all chains, shape (n, m)."""
        return self.values.reshape(-1, self.values.shape[2])

    @cached_property
    def effective_size(self) -> float:
        """Independent draws that these are worth, for the feature that mixed worst."""
        n = self.values.shape[0] * self.values.shape[1]
        times = [autocorrelation_time(self.values[..., j]) for j in range(self.values.shape[2])]
        return n / max(1.0, *times)

    @cached_property
    def mean(self) -> Floats:
        """Expectations, shape (m,)."""
        return self.flat.mean(axis=0)

    @cached_property
    def error(self) -> Floats:
        """Monte Carlo covariance of the means: errors along the chains, correlations of the draws; shape (m, m)."""
        return error_covariance(self.values, np.cov(self.flat.T).reshape(len(self.phi), -1))


def error_covariance(influence: Floats, covariance: Floats) -> Floats:
    """Covariance of the mean of ``influence``, (n_chains, n_draws, m), correlated as ``covariance`` is."""
    errors = np.array([monte_carlo_error(influence[..., j]) for j in range(influence.shape[2])])
    spread = np.sqrt(np.maximum(np.diag(covariance), 0.0))
    scale = np.divide(errors, spread, out=np.zeros_like(errors), where=spread > 0)
    return covariance * np.outer(scale, scale)


@dataclass(frozen=True, eq=False)
class Tilted:
    """The pool reweighted towards some multipliers."""

    log_weights: Floats  # (n,), normalised
    log_partition: float
    expectation: Floats  # (m,)
    covariance: Floats  # (m, m)
    effective_size: float  # independent draws that the weights leave: Kish's, of draws counted as the chains mixed
    pareto_k: float
    largest: float  # the largest weight, in units of one over the effective size

    def carries(self, needed: float, k_limit: float) -> bool:
        """Whether the weights leave so many draws and have no heavy tail.

        Where the largest weight is one of many (a small step, a variable with few values) the tail has no say.
        """
        return self.effective_size >= needed and (self.pareto_k <= k_limit or self.largest < FLAT)


@dataclass(frozen=True, eq=False)
class Pool:
    """All rounds' draws with weights that make them stand for the posterior."""

    rungs: tuple[Rung, ...]
    log_partitions: Floats  # (K,): A(phi_k); 0 for the first round, which drew the posterior itself
    values: Floats  # (n, m): features of all draws
    log_share: Floats  # (n,): log of what each counts, its round's effective size over its size
    log_mixture: Floats  # (n,): log sum_k N_k exp(<phi_k, psi> - A_k)

    @cached_property
    def log_weights(self) -> Floats:
        """Normalised log-weights towards the posterior, shape (n,)."""
        logs = self.log_share - self.log_mixture
        return logs - logsumexp(logs)

    def scores(self, phi: Floats) -> Floats:
        """Log importance ratios of the draws towards a tilt, shape (n,)."""
        return self.values @ phi - self.log_mixture

    def tilt(self, phi: Floats) -> Tilted:
        """Reweight towards ``p exp<phi, psi>``."""
        ratios = self.scores(phi)
        logs = ratios + self.log_share
        log_partition = float(logsumexp(logs))
        logs = logs - log_partition
        weights = np.exp(logs)
        expectation = weights @ self.values
        centred = self.values - expectation
        size = 1 / float(np.sum(np.exp(2 * logs - self.log_share)))
        efficiency = min(1.0, float(np.exp(self.log_share).mean()))
        return Tilted(
            log_weights=logs,
            log_partition=log_partition,
            expectation=expectation,
            covariance=centred.T @ (weights[:, None] * centred),
            effective_size=size,
            pareto_k=pareto_k(ratios, efficiency),
            largest=size * float(np.exp(np.max(logs - self.log_share))),
        )

    def count_towards(self, phi: Floats) -> Floats:
        """Weights towards a tilt with every draw counted as one, however slowly its chain moved, shape (n,).

        They say less of how much mass a region has than `tilt` does, and more of whether it has any: a round that
        hardly moves between two modes counts little there, though it is the one that was in both.
        """
        phis = np.array([rung.phi for rung in self.rungs])
        sizes = np.log([len(rung.flat) for rung in self.rungs])
        logs = self.values @ phi - logsumexp(self.values @ phis.T + (sizes - self.log_partitions), axis=1)
        weights: Floats = np.exp(logs - logsumexp(logs))
        return weights

    def error_of_expectation(self, tilted: Tilted) -> Floats:
        """Monte Carlo covariance of reweighted expectations, round by round along the chains, shape (m, m)."""
        total = np.zeros_like(tilted.covariance)
        weights = np.exp(tilted.log_weights)
        influence = weights[:, None] * (self.values - tilted.expectation)
        for rung, own in zip(self.rungs, self._by_round(influence), strict=True):
            n = own.shape[0] * own.shape[1]
            flat = own.reshape(n, -1)
            total += n**2 * error_covariance(own, np.cov(flat.T).reshape(len(rung.phi), -1))
        return total

    def error_of_log_partition(self, phi: Floats) -> float:
        """Standard error of ``A(phi)`` at fixed phi: what each draw does to all A_k and to this one."""
        shares = np.exp(self.log_share)
        sizes = np.log([rung.effective_size for rung in self.rungs])
        states = self.values @ np.array([rung.phi for rung in self.rungs]).T + (sizes - self.log_partitions)
        p = np.exp(states - self.log_mixture[:, None])  # (n, K): which round a draw belongs to
        counted = shares[:, None] * p
        hessian = np.diag(counted.sum(axis=0)) - p.T @ counted
        weights = np.exp(self.tilt(phi).log_weights)
        slope = p.T @ weights  # of A(phi) by each A_k
        response = np.zeros(len(self.rungs))
        if len(self.rungs) > 1:
            response[1:] = np.linalg.lstsq(hessian[1:, 1:], slope[1:], rcond=1e-12)[0]
        influence = counted @ response + weights
        pieces = (own for own in self._by_round(influence[:, None]))
        return math.sqrt(sum((own.size * monte_carlo_error(own[..., 0])) ** 2 for own in pieces))

    def _by_round(self, series: Floats) -> list[Floats]:
        """Numbers per draw, (n, k), as one array (n_chains, n_draws, k) for each round."""
        ends = np.cumsum([rung.values.shape[0] * rung.values.shape[1] for rung in self.rungs])
        parts = np.split(series, ends[:-1])
        return [part.reshape(*rung.values.shape[:2], -1) for part, rung in zip(parts, self.rungs, strict=True)]


def pool_rungs(rungs: Sequence[Rung], guess: Floats | None = None) -> Pool:
    """Find the log-partitions at which the mixture of all rounds reproduces itself.

    Parameters
    ----------
    rungs : sequence of Rung
        The first drew the posterior itself, phi = 0.
    guess : array of shape (K,), default=None
        Log-partitions to start from.
    """
    values = np.concatenate([rung.flat for rung in rungs])
    sizes = np.array([rung.effective_size for rung in rungs])
    log_share = np.concatenate(
        [np.full(len(rung.flat), math.log(size / len(rung.flat))) for rung, size in zip(rungs, sizes, strict=True)]
    )
    scores = values @ np.array([rung.phi for rung in rungs]).T  # (n, K)
    f = np.zeros(len(rungs)) if guess is None else guess - guess[0]
    if guess is None:
        for k in range(1, len(rungs)):
            f[k] = _log_partition_of(scores[:, k], _log_mixture(scores[:, :k], sizes[:k], f[:k]), log_share)
    f = _solve_log_partitions(scores, sizes, np.exp(log_share), f)
    return Pool(tuple(rungs), f, values, log_share, _log_mixture(scores, sizes, f))


def _log_mixture(scores: Floats, sizes: Floats, f: Floats) -> Floats:
    return np.asarray(logsumexp(scores + (np.log(sizes) - f), axis=1))


def _log_partition_of(score: Floats, log_mixture: Floats, log_share: Floats) -> float:
    return float(logsumexp(score - log_mixture + log_share))


def _solve_log_partitions(scores: Floats, sizes: Floats, shares: Floats, f: Floats) -> Floats:
    """Minimise ``sum_i c_i log sum_k N_k exp(s_ik - f_k) + sum_k N_k f_k``, convex in f, with f_0 held at 0."""
    if len(f) == 1:
        return np.zeros(1)

    def objective(at: Floats) -> float:
        return float(shares @ _log_mixture(scores, sizes, at) + sizes @ at)

    value = objective(f)
    for _ in range(MAX_STEPS):
        p = np.exp(scores + (np.log(sizes) - f) - _log_mixture(scores, sizes, f)[:, None])
        counted = shares[:, None] * p
        gradient = (sizes - counted.sum(axis=0))[1:]
        if np.all(np.abs(gradient) <= CLOSE * sizes[1:]):
            break
        hessian = (np.diag(counted.sum(axis=0)) - p.T @ counted)[1:, 1:]
        hessian[np.diag_indices_from(hessian)] += 1e-12 * sizes[1:]
        move = np.linalg.solve(hessian, -gradient)
        step, slope = 1.0, float(gradient @ move)
        while step > 1e-8:
            trial = f.copy()
            trial[1:] += step * move
            found = objective(trial)
            if found <= value + 1e-4 * step * slope + 1e-12 * abs(value):
                break
            step /= 2
        f, value = trial, found
    return f


def kish(log_weights: Floats) -> float:
    """Share of the draws that weights leave."""
    return effective_sample_size(log_weights) / len(log_weights)
