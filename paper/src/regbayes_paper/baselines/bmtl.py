"""Bayesian multi-task learning (BMTL): task weights with a learned Gaussian prior (Bakker and Heskes 2003).

All tasks share one prior: on School, two clusters of tasks, as in the original, explained less variance.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from regbayes_paper._types import Floats
from regbayes_paper.descent import alternate
from regbayes_paper.tasks import TaskProblem, TaskRegressor

PSEUDO_TASKS = 0.03  # strength of the covariance prior: number of pseudo-tasks with covariance I / d
PSEUDO_NOISE = 1e-3  # noise prior: squared error of one pseudo-target
MEAN_PRECISION = 0.1  # precision of the Gaussian prior of the prior mean


@dataclass(frozen=True)
class TaskPrior:
    """Parameters that all tasks share: the Gaussian prior of the weights, and the noise."""

    mean: Floats  # (d,)
    covariance: Floats  # (d, d)
    noise_variance: float


@dataclass(frozen=True)
class TaskPosterior:
    """Posterior of the task weights for a prior."""

    weights: Floats  # (T, d): means
    covariances: Floats  # (T, d, d)
    log_evidence: Floats  # (T,)


@dataclass(frozen=True)
class Moments:
    """Sufficient statistics of each task."""

    grams: Floats  # (T, d, d)
    sums: Floats  # (T, d)
    squares: Floats  # (T,)
    counts: Floats  # (T,)

    @classmethod
    def of(cls, problem: TaskProblem) -> Moments:
        """Compute the sums for each task."""
        once, M = np.ones(len(problem.rows)), problem.n_outputs
        squares = np.bincount(problem.outputs, problem.targets**2, minlength=M)
        counts = np.bincount(problem.outputs, minlength=M).astype(np.float64)
        return cls(problem.grams(once), problem.sums(problem.targets), squares, counts)


def infer(found: Moments, prior: TaskPrior) -> TaskPosterior:
    """Return the exact posterior of the weights of every task."""
    m, noise, root = prior.mean, prior.noise_variance, np.linalg.cholesky(prior.covariance)
    inner = np.eye(len(m)) + root.T @ found.grams @ root / noise
    covariances = root @ np.linalg.solve(inner, np.broadcast_to(root.T, inner.shape))
    rest = found.sums - found.grams @ m
    shift = np.einsum("tde,te->td", covariances, rest) / noise
    errors = found.squares - (found.sums + rest) @ m - np.sum(rest * shift, axis=1)
    spread = found.counts * np.log(2 * np.pi * noise) + np.linalg.slogdet(inner)[1]
    return TaskPosterior(m + shift, covariances, -0.5 * (spread + errors / noise))


def update(found: Moments, prior: TaskPrior) -> TaskPrior:
    """Return the prior after one EM iteration, which does not increase `objective`."""
    d, posterior = len(prior.mean), infer(found, prior)
    w, away = posterior.weights, posterior.weights - prior.mean
    scatter = away.T @ away + posterior.covariances.sum(axis=0) + PSEUDO_TASKS * np.eye(d) / d
    errors = found.squares - 2 * np.sum(w * found.sums, axis=1) + np.einsum("td,tde,te->t", w, found.grams, w)
    errors += np.einsum("tde,tde->t", found.grams, posterior.covariances)
    noise = (float(errors.sum()) + PSEUDO_NOISE) / (float(found.counts.sum()) + 1.0)
    prior = replace(prior, covariance=scatter / (len(w) + PSEUDO_TASKS), noise_variance=noise)
    # The best mean, with the weights integrated out: X' (X S X' + noise)^-1 = (noise + G S)^-1 X', applied to X and y.
    own = noise * np.eye(d) + found.grams @ prior.covariance
    joint = np.linalg.solve(own, np.concatenate([found.grams, found.sums[:, :, None]], axis=2)).sum(axis=0)
    return replace(prior, mean=np.linalg.solve(joint[:, :d] + MEAN_PRECISION * np.eye(d), joint[:, d]))


def objective(found: Moments, prior: TaskPrior) -> float:
    """Return the negative log-evidence minus the log-priors, up to constants of the priors."""
    spread = np.linalg.slogdet(prior.covariance)[1] + np.trace(np.linalg.inv(prior.covariance)) / len(prior.mean)
    noise = np.log(prior.noise_variance) + PSEUDO_NOISE / prior.noise_variance
    penalty = PSEUDO_TASKS * spread + MEAN_PRECISION * np.sum(prior.mean**2) + noise
    return 0.5 * float(penalty) - float(infer(found, prior).log_evidence.sum())


@dataclass(eq=False, repr=False, kw_only=True)
class BMTLRegressor(TaskRegressor):
    """Bayesian multi-task learning (BMTL) with a learned Gaussian prior of task weights.

    The mean and full covariance of the prior and the noise variance are fitted to all tasks by maximizing the evidence.

    Parameters
    ----------
    max_iter : int, default=200
    tol : float, default=1e-5
        Relative change of the objective at which to stop.

    Attributes
    ----------
    prior_ : TaskPrior
    posterior_ : TaskPosterior
    coef_, intercept_ : arrays of shape (n_tasks, n_features) and (n_tasks,)
        Posterior means of the weights, for standardized inputs and targets.

    References
    ----------
    B. Bakker and T. Heskes (2003). Task clustering and gating for Bayesian multitask learning. JMLR 4.
    """

    max_iter: int = 200
    tol: float = 1e-5

    def _learn(self, problem: TaskProblem) -> None:
        found = Moments.of(problem.with_constant())
        d = found.sums.shape[1]
        mean = np.linalg.solve(found.grams.sum(axis=0) + np.eye(d), found.sums.sum(axis=0))

        def step(prior: TaskPrior) -> tuple[TaskPrior, float]:
            after = update(found, prior)
            return after, objective(found, after)

        first = TaskPrior(mean, np.eye(d) / d, 1.0)
        self.prior_, self.objectives_ = alternate(step, first, int(self.max_iter), float(self.tol))
        self.posterior_ = infer(found, self.prior_)
        self.coef_, self.intercept_ = self.posterior_.weights[:, :-1], self.posterior_.weights[:, -1]
