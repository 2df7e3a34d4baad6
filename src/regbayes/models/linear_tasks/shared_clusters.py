"""Logistic regression of tasks with a Dirichlet process: those of one cluster have the same weights (Xue et al. 2007).

    v_k ~ Beta(1, alpha),  share_k = v_k prod_{j<k} (1 - v_j),  c_m ~ share,  w_k ~ N(0, variance I),
    label of output m in row x ~ sigmoid(w_{c_m} . x)

Mean field with the quadratic bound on the logistic function, truncated at K clusters. Every update is exact for its
block, so the bound on the evidence never falls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.special import betaln, digamma, logsumexp, xlogy

from regbayes.engine import FitResult, Progress, RelativeChange, StepResult, run
from regbayes.models.linear_tasks.logistic import QuadraticBound, best_xi, quadratic_bound
from regbayes.models.linear_tasks.problem import Floats, LinearTasks

Callback = Callable[[Progress[Any]], bool | None]


@dataclass(frozen=True)
class Clusters:
    """The variational posterior."""

    memberships: Floats  # (M, K)
    means: Floats  # (K, d): of the clusters' weights
    covariances: Floats  # (K, d, d)
    sticks: Floats  # (K - 1, 2): Beta parameters of v; the last stick takes what is left
    variance: float  # of the prior of weights
    xi: Floats  # (n,): of the bound on each label

    @property
    def second_moments(self) -> Floats:
        """``E[w wᵀ]`` of every cluster, (K, d, d)."""
        return np.asarray(self.covariances + self.means[:, :, None] * self.means[:, None, :])


@dataclass(frozen=True)
class ClusterSettings:
    """Sizes, and how long."""

    n_clusters: int
    alpha: float
    max_iter: int
    tol: float


def fit(
    problem: LinearTasks, settings: ClusterSettings, rng: np.random.Generator, callbacks: Sequence[Callback]
) -> FitResult[Clusters]:
    """Maximise the bound on the evidence."""

    def step(state: Clusters) -> StepResult[Clusters]:
        bound, after = update(problem, state, settings)
        return StepResult(after, objective(bound, after, settings))

    state = initial(problem, settings, rng)
    rule = RelativeChange(settings.tol, patience=2)
    return run(step, state, max_iter=settings.max_iter, stop=rule, callbacks=callbacks)


def initial(problem: LinearTasks, settings: ClusterSettings, rng: np.random.Generator) -> Clusters:
    """Start with every output in a cluster of its own, as far as there are clusters."""
    M, d, K = problem.n_outputs, problem.X.shape[1], settings.n_clusters
    alone = np.zeros((M, K))
    alone[np.arange(M), rng.permutation(M) % K] = 1.0
    state = Clusters(
        memberships=alone,
        means=np.zeros((K, d)),
        covariances=np.repeat(np.eye(d)[None], K, axis=0),
        sticks=np.ones((K - 1, 2)),
        variance=1.0,
        xi=np.ones(len(problem.cells)),
    )
    return update_weights(quadratic_bound(problem, state.xi), update_sticks(state, settings))


def update(problem: LinearTasks, state: Clusters, settings: ClusterSettings) -> tuple[QuadraticBound, Clusters]:
    """One iteration over all blocks; also the bound on the labels, which is most of the work."""
    state = update_sticks(ordered(state), settings)
    state = update_xi(problem, state)
    bound = quadratic_bound(problem, state.xi)
    state = update_memberships(bound, state)
    state = update_weights(bound, state)
    return bound, update_variance(state)


def ordered(state: Clusters) -> Clusters:
    """Put large clusters first, which the sticks prefer."""
    order = np.argsort(-state.memberships.sum(axis=0), kind="stable")
    return replace(
        state,
        memberships=state.memberships[:, order],
        means=state.means[order],
        covariances=state.covariances[order],
    )


def update_sticks(state: Clusters, settings: ClusterSettings) -> Clusters:
    """Return the sticks for the expected sizes of the clusters."""
    sizes = state.memberships.sum(axis=0)
    after = np.cumsum(sizes[::-1])[::-1] - sizes
    return replace(state, sticks=np.stack([1.0 + sizes, settings.alpha + after], axis=1)[:-1])


def log_shares(sticks: Floats) -> Floats:
    """``E[log share_k]``, (K,)."""
    both = digamma(sticks.sum(axis=1))
    taken, rest = digamma(sticks[:, 0]) - both, digamma(sticks[:, 1]) - both
    return np.asarray(np.append(taken, 0.0) + np.concatenate([[0.0], np.cumsum(rest)]))


def update_memberships(bound: QuadraticBound, state: Clusters) -> Clusters:
    """Return how likely each output is in each cluster."""
    flat = bound.grams.reshape(len(bound.grams), -1) @ state.second_moments.reshape(len(state.means), -1).T
    fitted = bound.sums @ state.means.T - 0.5 * flat
    joint = fitted + log_shares(state.sticks)
    return replace(state, memberships=np.exp(joint - logsumexp(joint, axis=1, keepdims=True)))


def update_xi(problem: LinearTasks, state: Clusters) -> Clusters:
    """Tighten the bound on each label."""
    seconds = np.einsum("mk,kde->mde", state.memberships, state.second_moments)
    return replace(state, xi=best_xi(problem, seconds))


def update_weights(bound: QuadraticBound, state: Clusters) -> Clusters:
    """Return the Gaussian of each cluster's weights."""
    d = bound.sums.shape[1]
    precisions = np.einsum("mk,mde->kde", state.memberships, bound.grams) + np.eye(d) / state.variance
    covariances = np.linalg.inv(precisions)
    means = np.einsum("kde,ke->kd", covariances, state.memberships.T @ bound.sums)
    return replace(state, means=means, covariances=covariances)


def update_variance(state: Clusters) -> Clusters:
    """Return the variance of the prior that explains the weights best."""
    return replace(state, variance=float(np.mean(np.einsum("kdd->kd", state.second_moments))))


def objective(bound: QuadraticBound, state: Clusters, settings: ClusterSettings) -> dict[str, float]:
    """Minus the bound on the evidence, in its terms."""
    d, seconds = bound.sums.shape[1], state.second_moments
    fitted = bound.expected(state.memberships @ state.means, np.einsum("mk,kde->mde", state.memberships, seconds))
    squares = np.einsum("kdd->k", seconds) / state.variance
    spread = d * np.log(state.variance) - np.linalg.slogdet(state.covariances)[1]
    first, second = state.sticks.T
    kl_sticks = -np.log(settings.alpha) - betaln(first, second)
    kl_sticks += (first - 1) * digamma(first) + (second - settings.alpha) * digamma(second)
    kl_sticks -= (first + second - 1 - settings.alpha) * digamma(first + second)
    members = state.memberships
    return {
        "likelihood": -float(fitted.sum()),
        "kl_weights": 0.5 * float(np.sum(spread + squares - d)),
        "kl_memberships": float(np.sum(xlogy(members, members)) - np.sum(members @ log_shares(state.sticks))),
        "kl_sticks": float(np.sum(kl_sticks)),
    }
