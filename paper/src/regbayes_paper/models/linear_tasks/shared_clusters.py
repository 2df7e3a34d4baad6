"""Logistic regression of tasks with a Dirichlet process: those of one cluster have the same weights (Xue et al. 2007).

    v_k ~ Beta(1, alpha),  share_k = v_k prod_{j<k} (1 - v_j),  c_m ~ share,  w_k ~ N(0, variance I),
    label of output m in row x ~ sigmoid(w_{c_m} . x)

With a kernel between outputs, shares are those of `regbayes_paper.priors.kernel_sticks`, and every cluster has its
centre at one of the outputs: outputs that are near each other tend to share a cluster.

Mean field with the quadratic bound on the logistic function; q has K clusters, the process any number. Every update is
exact for its block, but for sticks with a kernel, whose update is the best for the present auxiliary variables; so the
bound on the evidence never falls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.special import logsumexp, xlogy

from regbayes._types import Floats, Integers
from regbayes.engine import FitResult, Progress, RelativeChange, StepResult, run
from regbayes_paper.models.linear_tasks.logistic import QuadraticBound, best_xi, quadratic_bound
from regbayes_paper.models.linear_tasks.problem import LinearTasks
from regbayes_paper.priors import dirichlet_process, kernel_sticks
from regbayes_paper.priors.dirichlet_process import Sticks

Callback = Callable[[Progress[Any]], bool | None]


@dataclass(frozen=True)
class Clusters:
    """The variational posterior."""

    memberships: Floats  # (M, K)
    means: Floats  # (K, d): of the clusters' weights
    covariances: Floats  # (K, d, d)
    sticks: Sticks  # (K,)
    centres: Integers  # (K,): outputs at which the clusters are; of no consequence without a kernel
    variance: float  # of the prior of weights
    xi: Floats  # (n,): of the bound on each label

    @property
    def second_moments(self) -> Floats:
        """``E[w wᵀ]`` of every cluster, (K, d, d)."""
        return self.covariances + self.means[:, :, None] * self.means[:, None, :]


@dataclass(frozen=True)
class ClusterSettings:
    """Sizes, and how long."""

    n_clusters: int
    alpha: float
    max_iter: int
    tol: float
    log_kernel: Floats | None = None  # (M, M): of every two outputs; None is 0 throughout, the plain process


def fit(
    problem: LinearTasks, settings: ClusterSettings, rng: np.random.Generator, callbacks: Sequence[Callback]
) -> FitResult[Clusters]:
    """Maximise the bound on the evidence."""

    def step(state: Clusters) -> StepResult[Clusters]:
        bound, after = update(problem, state, settings)
        return StepResult(after, objective(bound, after, settings))

    state = start(problem, settings, rng)
    rule = RelativeChange(settings.tol, patience=2)
    return run(step, state, max_iter=settings.max_iter, stop=rule, callbacks=callbacks)


def start(problem: LinearTasks, settings: ClusterSettings, rng: np.random.Generator) -> Clusters:
    """Start with every output in a cluster of its own, as far as there are clusters."""
    M, d, K = problem.n_outputs, problem.X.shape[1], settings.n_clusters
    alone, order = np.zeros((M, K)), rng.permutation(M)
    alone[order, np.arange(M) % K] = 1.0
    state = Clusters(
        memberships=alone,
        means=np.zeros((K, d)),
        covariances=np.repeat(np.eye(d)[None], K, axis=0),
        sticks=dirichlet_process.update_sticks(alone.sum(axis=0), settings.alpha),
        centres=order[:K].astype(np.int64),
        variance=1.0,
        xi=np.ones(len(problem.observations)),
    )
    return update_weights(quadratic_bound(problem, state.xi), state)


def update(problem: LinearTasks, state: Clusters, settings: ClusterSettings) -> tuple[QuadraticBound, Clusters]:
    """One iteration over all blocks; also the bound on the labels, which is most of the work."""
    state = update_sticks(sort_clusters(state, settings), settings)
    state = update_centres(state, settings)
    state = update_xi(problem, state)
    bound = quadratic_bound(problem, state.xi)
    state = update_memberships(bound, state, settings)
    state = update_weights(bound, state)
    return bound, update_variance(state)


def sort_clusters(state: Clusters, settings: ClusterSettings) -> Clusters:
    """Put large clusters first, which the plain process prefers; with a kernel only where the bound does, too."""
    order = dirichlet_process.best_order(state.memberships.sum(axis=0))
    moved = replace(
        state,
        memberships=state.memberships[:, order],
        means=state.means[order],
        covariances=state.covariances[order],
        sticks=Sticks(state.sticks.first[order], state.sticks.second[order]),
        centres=state.centres[order],
    )
    if settings.log_kernel is None:
        return moved
    before, after = (sum(prior_terms(update_sticks(s, settings), settings).values()) for s in (state, moved))
    return moved if after < before else state


def update_sticks(state: Clusters, settings: ClusterSettings) -> Clusters:
    """Return the sticks for the expected sizes of the clusters."""
    if settings.log_kernel is None:
        sticks = dirichlet_process.update_sticks(state.memberships.sum(axis=0), settings.alpha)
    else:
        near = settings.log_kernel[:, state.centres]
        sticks = kernel_sticks.update_sticks(state.sticks, near, state.memberships, settings.alpha)
    return replace(state, sticks=sticks)


def update_centres(state: Clusters, settings: ClusterSettings) -> Clusters:
    """Return the best centres, where there is a kernel."""
    if settings.log_kernel is None:
        return state
    return replace(state, centres=kernel_sticks.best_centres(state.sticks, settings.log_kernel, state.memberships))


def log_shares(state: Clusters, settings: ClusterSettings) -> Floats:
    """``E[log share]`` of every cluster for every output, or the bound on it, (M, K)."""
    if settings.log_kernel is None:
        return np.broadcast_to(dirichlet_process.log_weights(state.sticks), state.memberships.shape)
    return kernel_sticks.log_shares(state.sticks, settings.log_kernel[:, state.centres])


def update_memberships(bound: QuadraticBound, state: Clusters, settings: ClusterSettings) -> Clusters:
    """Return how likely each output is in each cluster."""
    flat = bound.grams.reshape(len(bound.grams), -1) @ state.second_moments.reshape(len(state.means), -1).T
    fitted = bound.sums @ state.means.T - 0.5 * flat
    joint = fitted + log_shares(state, settings)
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
    return {
        "likelihood": -float(fitted.sum()),
        "kl_weights": 0.5 * float(np.sum(spread + squares - d)),
        **prior_terms(state, settings),
    }


def prior_terms(state: Clusters, settings: ClusterSettings) -> dict[str, float]:
    """The terms of sticks and memberships; the prior of the centres is uniform, and its constant left out."""
    members, shares = state.memberships, log_shares(state, settings)
    return {
        "kl_memberships": float(np.sum(xlogy(members, members)) - np.sum(members[members > 0] * shares[members > 0])),
        "kl_sticks": dirichlet_process.kl_sticks(state.sticks, settings.alpha),
    }
