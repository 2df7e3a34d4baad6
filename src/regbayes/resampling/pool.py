"""Multistate reweighting (MBAR) of the pooled draws of tempered runs.

Run k draws from ``p exp(<phi_k, psi> - A_k)``, so all draws together are a sample from a mixture. The log-partitions
``A_k`` are estimated by self-consistency of the mixture [1]. Chains are autocorrelated, so each run is weighted by its
effective sample size.

References
----------
.. [1] M. R. Shirts and J. D. Chodera (2008). Statistically optimal analysis of samples from multiple equilibrium
   states. Journal of Chemical Physics 129, 124105.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from scipy.special import logsumexp

from regbayes._registry import persistable
from regbayes._types import Floats
from regbayes.engine.line_search import backtrack
from regbayes.regularization.diagnostics import autocorrelation_time, monte_carlo_error, pareto_k
from regbayes.resampling.sampler import Run

MAX_NEWTON_STEPS = 100
EVEN_SHARES = 8.0  # k-hat is ignored if all weights are below this multiple of the mean


@persistable(skip=("values", "run"))
@dataclass(frozen=True, eq=False)
class TemperedRun:
    """One run of the sampler, with its prediction from earlier runs."""

    multipliers: Floats  # (m,): multipliers of the run's tilt
    expectation: Floats  # (m,): expectations of the constrained functions
    error: Floats  # (m, m): Monte Carlo covariance of the expectation
    effective_size: float  # of the slowest-mixing function
    n_chains: int
    n_draws: int  # draws per chain
    divergences: int = 0
    n_gradients: int = 0
    r_hat: float = math.nan  # largest R-hat over constrained functions and scalar variables
    r_hat_of: str = ""
    discrepancy: float = 0.0  # squared prediction error relative to its 99.9% Monte Carlo quantile
    remaining_kl: float = math.nan  # estimated KL divergence to the solution in nats
    is_final: bool = False
    is_discarded: bool = False  # excluded from the pool, too far from its prediction
    values: Floats = field(default_factory=lambda: np.empty((0, 0, 0)), repr=False)  # (n_chains, n_draws, m); not saved
    run: Run = field(default_factory=lambda: Run({}), repr=False)  # not saved

    @classmethod
    def of(cls, values: Floats, multipliers: Floats, run: Run) -> TemperedRun:
        """Measure the constrained functions of a run's draws, shape (n_chains, n_draws, m)."""
        n_chains, n_draws, m = values.shape
        flat = values.reshape(-1, m)
        return cls(
            multipliers=multipliers,
            expectation=flat.mean(axis=0),
            error=_error_covariance(values),
            effective_size=n_chains * n_draws / max(1.0, *(autocorrelation_time(values[..., j]) for j in range(m))),
            n_chains=n_chains,
            n_draws=n_draws,
            divergences=int(np.sum(run.statistics.get("diverging", 0))),
            n_gradients=run.n_gradients,
            values=values,
            run=run,
        )

    @property
    def mcse(self) -> Floats:
        """Monte Carlo standard errors of the expectation, shape (m,)."""
        return np.sqrt(np.maximum(np.diag(self.error), 0.0))

    @property
    def flat(self) -> Floats:
        """The constrained functions of all chains, shape (n, m)."""
        return self.values.reshape(-1, self.values.shape[2])


def _error_covariance(influence: Floats) -> Floats:
    """Monte Carlo covariance of the mean of (n_chains, n_draws, m), with autocorrelation."""
    m = influence.shape[2]
    covariance = np.cov(influence.reshape(-1, m).T).reshape(m, m)
    errors = np.array([monte_carlo_error(influence[..., j]) for j in range(m)])
    spread = np.sqrt(np.maximum(np.diag(covariance), 0.0))
    scale = np.divide(errors, spread, out=np.zeros_like(errors), where=spread > 0)
    return covariance * np.outer(scale, scale)


@dataclass(frozen=True, eq=False)
class Reweighted:
    """The pool reweighted towards some multipliers."""

    log_weights: Floats  # (n,), normalized
    log_partition: float
    expectation: Floats  # (m,)
    covariance: Floats  # (m, m)
    effective_size: float  # Kish's effective size, corrected for autocorrelation
    pareto_k: float
    largest: float  # largest weight times the effective size

    def is_reliable(self, min_ess: float, max_k_hat: float) -> bool:
        """Whether the effective size is sufficient and the weights have no heavy tail."""
        return self.effective_size >= min_ess and (self.pareto_k <= max_k_hat or self.largest < EVEN_SHARES)


@dataclass(frozen=True, eq=False)
class Pool:
    """The draws of all runs with importance weights for the posterior."""

    runs: tuple[TemperedRun, ...]
    log_partitions: Floats  # (K,): A(phi_k); 0 for the first run
    values: Floats  # (n, m): constrained functions of all draws
    log_share: Floats  # (n,): log of its run's effective size over the run's number of draws
    log_joint: Floats  # (n, K): log N_k + <phi_k, psi> - A_k

    @cached_property
    def log_mixture(self) -> Floats:
        """Log-density of each draw under all runs, relative to the posterior, shape (n,)."""
        return np.asarray(logsumexp(self.log_joint, axis=1))

    @cached_property
    def log_weights(self) -> Floats:
        """Normalized log-weights towards the posterior, shape (n,)."""
        logs = self.log_share - self.log_mixture
        return logs - logsumexp(logs)

    @cached_property
    def run_probabilities(self) -> Floats:
        """Probability of each run given the draw, shape (n, K)."""
        return np.exp(self.log_joint - self.log_mixture[:, None])

    @property
    def objective(self) -> float:
        """Objective of the log-partitions, see `pool_runs`."""
        sizes = np.array([run.effective_size for run in self.runs])
        return float(np.exp(self.log_share) @ self.log_mixture + sizes @ self.log_partitions)

    @cached_property
    def hessian(self) -> Floats:
        """Hessian of the objective of `pool_runs` by the log-partitions, shape (K, K)."""
        p = self.run_probabilities
        counted = np.exp(self.log_share)[:, None] * p
        return np.diag(counted.sum(axis=0)) - p.T @ counted

    def reweight(self, phi: Floats) -> Reweighted:
        """Reweight towards ``p exp<phi, psi>``."""
        ratios = self.values @ phi - self.log_mixture
        logs = ratios + self.log_share
        log_partition = float(logsumexp(logs))
        logs = logs - log_partition
        weights = np.exp(logs)
        expectation = weights @ self.values
        centred = self.values - expectation
        size = 1 / float(np.sum(np.exp(2 * logs - self.log_share)))
        return Reweighted(
            log_weights=logs,
            log_partition=log_partition,
            expectation=expectation,
            covariance=centred.T @ (weights[:, None] * centred),
            effective_size=size,
            pareto_k=pareto_k(ratios, min(1.0, float(np.exp(self.log_share).mean()))),
            largest=size * float(np.exp(np.max(logs - self.log_share))),
        )

    def error_of_expectation(self, there: Reweighted) -> Floats:
        """Monte Carlo covariance of reweighted expectations, summed over runs, shape (m, m)."""
        influence = np.exp(there.log_weights)[:, None] * (self.values - there.expectation)
        return np.asarray(sum((own[..., 0].size ** 2) * _error_covariance(own) for own in self._split(influence)))

    def error_of_log_partition(self, phi: Floats) -> float:
        """Standard error of ``A(phi)`` at fixed phi, including the errors of all ``A_k``."""
        weights = np.exp(self.reweight(phi).log_weights)
        slope = (self.run_probabilities.T @ weights)[1:]
        response = np.append(0.0, np.linalg.lstsq(self.hessian[1:, 1:], slope, rcond=1e-12)[0])
        influence = weights + np.exp(self.log_share) * (self.run_probabilities @ response)
        pieces = self._split(influence[:, None])
        return math.sqrt(sum((own.size * monte_carlo_error(own[..., 0])) ** 2 for own in pieces))

    def _split(self, series: Floats) -> list[Floats]:
        """Split (n, k) into one array (n_chains, n_draws, k) per run."""
        parts = np.split(series, np.cumsum([len(run.flat) for run in self.runs])[:-1])
        return [part.reshape(run.n_chains, run.n_draws, -1) for part, run in zip(parts, self.runs, strict=True)]


def pool_runs(runs: Sequence[TemperedRun], guess: Floats | None = None) -> Pool:
    """Estimate the self-consistent log-partitions of all runs (MBAR).

    They minimize ``sum_i c_i log sum_k N_k exp(s_ik - f_k) + sum_k N_k f_k``, which is convex in f, with f_0 fixed at
    0. Here ``s_ik = <phi_k, psi_i>`` are the scores and c_i the weight of a draw. ``guess`` are initial values, (K,).
    """
    values = np.concatenate([run.flat for run in runs])
    sizes, lengths = np.array([run.effective_size for run in runs]), [len(run.flat) for run in runs]
    log_share = np.repeat(np.log(sizes / lengths), lengths)
    scores = np.log(sizes) + values @ np.array([run.multipliers for run in runs]).T  # (n, K)
    guess = np.zeros(len(runs)) if guess is None else guess - guess[0]

    def mix(later: Floats) -> Pool:
        f = np.append(0.0, later)
        return Pool(tuple(runs), f, values, log_share, scores - f)

    at = mix(guess[1:])
    for _ in range(MAX_NEWTON_STEPS if len(runs) > 1 else 0):
        gradient = (sizes - np.exp(log_share) @ at.run_probabilities)[1:]
        if np.all(np.abs(gradient) <= 1e-10 * sizes[1:]):
            break
        move = np.linalg.solve(at.hessian[1:, 1:] + np.diag(1e-12 * sizes[1:]), -gradient)
        found = backtrack(
            lambda length, later=at.log_partitions[1:], move=move: mix(later + length * move),  # type: ignore[misc]
            at.objective,
            float(gradient @ move),
            max_trials=MAX_NEWTON_STEPS,
            noise=1e-12 * abs(at.objective),
        )
        if found is None:
            break
        at = found[1]
    return at
