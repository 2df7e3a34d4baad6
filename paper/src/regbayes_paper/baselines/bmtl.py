"""BMTL: weights of tasks drawn from a Gaussian prior that is learned from all tasks (Bakker and Heskes 2003)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.cluster.vq import kmeans2
from scipy.special import logsumexp
from sklearn.utils import check_random_state

from regbayes_paper._types import Floats
from regbayes_paper.descent import alternate
from regbayes_paper.tasks import TaskProblem, TaskRegressor

PSEUDO_TASKS = 0.03  # strength of the prior of a covariance: as many tasks with covariance I / d
PSEUDO_NOISE = 1e-3  # prior of the noise variance: one target with this squared error
MEAN_PRECISION = 0.1  # of the prior of the prior means
WARM_UP_STEPS = 10  # with one cluster, before tasks are divided


@dataclass(frozen=True)
class TaskPrior:
    """What tasks have in common: a mixture of Gaussian priors of weights, and the noise."""

    shares: Floats  # (C,)
    means: Floats  # (C, d)
    covariances: Floats  # (C, d, d)
    noise_variance: float


@dataclass(frozen=True)
class TaskPosterior:
    """What is known of the tasks, given the prior and the targets."""

    memberships: Floats  # (T, C)
    weights: Floats  # (T, C, d): means, given the cluster
    covariances: Floats  # (T, C, d, d)
    log_evidence: Floats  # (T,)


@dataclass(frozen=True)
class Moments:
    """Sums over the targets of each task."""

    grams: Floats  # (T, d, d)
    sums: Floats  # (T, d)
    squares: Floats  # (T,)
    counts: Floats  # (T,)

    @classmethod
    def of(cls, problem: TaskProblem) -> Moments:
        """Sum the targets of each task."""
        once, M = np.ones(len(problem.rows)), problem.n_outputs
        squares = np.bincount(problem.outputs, problem.targets**2, minlength=M)
        counts = np.bincount(problem.outputs, minlength=M).astype(np.float64)
        return cls(problem.grams(once), problem.sums(problem.targets), squares, counts)


def infer(found: Moments, prior: TaskPrior) -> TaskPosterior:
    """Return the exact posterior of clusters and weights of every task."""
    T, C, d = len(found.counts), len(prior.shares), found.sums.shape[1]
    noise = prior.noise_variance
    weights, covariances, evidence = np.empty((T, C, d)), np.empty((T, C, d, d)), np.empty((T, C))
    for c in range(C):
        m, root = prior.means[c], np.linalg.cholesky(prior.covariances[c])
        inner = np.eye(d) + root.T @ found.grams @ root / noise
        covariances[:, c] = root @ np.linalg.solve(inner, np.broadcast_to(root.T, inner.shape))
        rest = found.sums - found.grams @ m
        shift = np.einsum("tde,te->td", covariances[:, c], rest) / noise
        weights[:, c] = m + shift
        errors = found.squares - (found.sums + rest) @ m - np.sum(rest * shift, axis=1)
        spread = found.counts * np.log(2 * np.pi * noise) + np.linalg.slogdet(inner)[1]
        evidence[:, c] = -0.5 * (spread + errors / noise)
    with np.errstate(divide="ignore"):  # a cluster without tasks
        joint = evidence + np.log(prior.shares)
    total = logsumexp(joint, axis=1)
    return TaskPosterior(np.exp(joint - total[:, None]), weights, covariances, total)


def update_spread(found: Moments, prior: TaskPrior, posterior: TaskPosterior) -> TaskPrior:
    """Return the best shares, covariances and noise for the expected weights: the M step without the means."""
    d, members, w = found.sums.shape[1], posterior.memberships, posterior.weights
    away = w - prior.means
    scatter = np.einsum("tc,tcd,tce->cde", members, away, away)
    scatter += np.einsum("tc,tcde->cde", members, posterior.covariances)
    sizes = members.sum(axis=0)
    covariances = (scatter + PSEUDO_TASKS * np.eye(d) / d) / (sizes + PSEUDO_TASKS)[:, None, None]
    explained = np.einsum("tcd,tde,tce->tc", w, found.grams, w)
    explained += np.einsum("tde,tcde->tc", found.grams, posterior.covariances)
    errors = found.squares[:, None] - 2 * np.einsum("tcd,td->tc", w, found.sums) + explained
    noise = (float(np.sum(members * errors)) + PSEUDO_NOISE) / (float(found.counts.sum()) + 1.0)
    return replace(prior, shares=sizes / sizes.sum(), covariances=covariances, noise_variance=noise)


def update_means(found: Moments, prior: TaskPrior, memberships: Floats) -> TaskPrior:
    """Return the best means with the weights integrated out, by generalized least squares."""
    d, means = found.sums.shape[1], np.empty_like(prior.means)
    for c in range(len(means)):
        # X' (X S X' + noise)^-1 = (noise + G S)^-1 X', applied to X and to y
        own = prior.noise_variance * np.eye(d) + found.grams @ prior.covariances[c]
        solved = np.linalg.solve(own, np.concatenate([found.grams, found.sums[:, :, None]], axis=2))
        joint = np.einsum("t,tde->de", memberships[:, c], solved)
        means[c] = np.linalg.solve(joint[:, :d] + MEAN_PRECISION * np.eye(d), joint[:, d])
    return replace(prior, means=means)


def update(found: Moments, prior: TaskPrior) -> TaskPrior:
    """Take one iteration of expectation maximization, in which `objective` cannot rise."""
    prior = update_spread(found, prior, infer(found, prior))
    return update_means(found, prior, infer(found, prior).memberships)


def divide(found: Moments, prior: TaskPrior, n_clusters: int, rng: Any) -> TaskPrior:
    """Cluster the tasks by their weights, and give every cluster its own prior."""
    posterior = infer(found, prior)
    weights = posterior.weights[:, 0]
    seed = np.random.default_rng(rng.randint(np.iinfo(np.int32).max))
    _, codes = kmeans2(weights, n_clusters, minit="++", missing="warn", rng=seed)
    members = np.eye(n_clusters)[codes]
    means = (members.T @ weights + prior.means) / (members.sum(axis=0)[:, None] + 1.0)
    spread = {name: np.repeat(getattr(posterior, name), n_clusters, axis=1) for name in ("weights", "covariances")}
    prior = replace(prior, means=means, covariances=np.repeat(prior.covariances, n_clusters, axis=0))
    return update_spread(found, prior, replace(posterior, memberships=members, **spread))


def objective(found: Moments, prior: TaskPrior) -> float:
    """Return minus the logarithms of the evidence and of the priors, up to constants of the latter."""
    d = prior.means.shape[1]
    inverses = np.linalg.inv(prior.covariances)
    spread = np.linalg.slogdet(prior.covariances)[1] + np.trace(inverses, axis1=1, axis2=2) / d
    noise = np.log(prior.noise_variance) + PSEUDO_NOISE / prior.noise_variance
    penalty = PSEUDO_TASKS * np.sum(spread) + MEAN_PRECISION * np.sum(prior.means**2) + noise
    return 0.5 * float(penalty) - float(infer(found, prior).log_evidence.sum())


class BMTLRegressor(TaskRegressor):
    """Bayesian multi-task learning (BMTL): task weights drawn from a Gaussian prior that is learned from all tasks.

    The prior has a mean and a full covariance. It and the noise maximize the evidence. Tasks may belong to clusters,
    each with its own prior.

    Parameters
    ----------
    n_clusters : int, default=1
        Clusters of tasks, at most as many as tasks.
    max_iter : int, default=200
    tol : float, default=1e-5
        Relative change of the objective at which to stop.
    random_state : int, RandomState instance or None, default=None
        For the start of clusters.

    Attributes
    ----------
    prior_ : TaskPrior
    posterior_ : TaskPosterior
    coef_, intercept_ : arrays of shape (n_tasks, n_features) and (n_tasks,)
        Expected weights of the standardized inputs for standardized targets.

    References
    ----------
    B. Bakker and T. Heskes (2003). Task clustering and gating for Bayesian multitask learning. JMLR 4.
    """

    def __init__(
        self, n_clusters: int = 1, *, max_iter: int = 200, tol: float = 1e-5, random_state: Any = None
    ) -> None:
        self.n_clusters = n_clusters
        self.max_iter = max_iter
        self.tol = tol
        self.random_state = random_state

    def _learn(self, problem: TaskProblem) -> None:
        found = Moments.of(problem.with_constant())
        d, n_clusters = found.sums.shape[1], min(int(self.n_clusters), problem.n_outputs)
        mean = np.linalg.solve(found.grams.sum(axis=0) + np.eye(d), found.sums.sum(axis=0))
        prior = TaskPrior(np.ones(1), mean[None], np.eye(d)[None] / d, 1.0)
        if n_clusters > 1:
            for _ in range(WARM_UP_STEPS):
                prior = update(found, prior)
            prior = divide(found, prior, n_clusters, check_random_state(self.random_state))

        def step(prior: TaskPrior) -> tuple[TaskPrior, float]:
            after = update(found, prior)
            return after, objective(found, after)

        prior, self.objectives_ = alternate(step, prior, int(self.max_iter), float(self.tol))
        self.prior_, self.posterior_ = prior, infer(found, prior)
        weights = np.einsum("tc,tcd->td", self.posterior_.memberships, self.posterior_.weights)
        self.coef_, self.intercept_ = weights[:, :-1], weights[:, -1]
