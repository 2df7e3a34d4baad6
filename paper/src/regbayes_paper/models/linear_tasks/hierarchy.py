"""BMTL: weights of tasks drawn from a common prior that is learned from all of them (Bakker and Heskes 2003).

A task t belongs to a cluster c with probability pi_c, has weights ``w_t ~ N(m_c, S_c)`` with a full covariance, and
targets ``y ~ N(w_t . h(x), sigma²)``. The features h(x) are the inputs, or hidden units ``tanh(U x)`` that all tasks
share. With the weights integrated out, pi, m, S, sigma² and U maximise the evidence times weak priors, which keep the
problem proper where tasks or rows are few.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.cluster.vq import kmeans2
from scipy.optimize import minimize
from scipy.special import logsumexp

from regbayes._types import Floats
from regbayes.engine import FitResult, Progress, RelativeChange, Status, StepResult, run
from regbayes_paper.models.linear_tasks.problem import LinearTasks

Callback = Callable[[Progress[Any]], bool | None]

PSEUDO_TASKS = 0.03  # strength of the prior of a covariance: as many tasks with covariance I / p
PSEUDO_NOISE = 1e-3  # prior of the noise variance: one target with this squared error
MEAN_PRECISION = 0.1  # of the prior of the prior means
HIDDEN_PRECISION = 0.1  # of the prior of the weights of hidden units
HIDDEN_STEPS = 10  # of L-BFGS in each iteration
WARM_UP_STEPS = 10  # with one cluster, before there are several
WARM_UP, CLUSTERS = "warm-up", "clusters"  # the stages of a fit with several, as callbacks see them


@dataclass(frozen=True)
class TaskPrior:
    """What tasks have in common."""

    shares: Floats  # (C,): pi
    means: Floats  # (C, p): m
    covariances: Floats  # (C, p, p): S
    noise_variance: float
    hidden: Floats | None  # (H, d): U, where there are hidden units


@dataclass(frozen=True)
class TaskPosterior:
    """What is known of the tasks, given the prior and the targets."""

    memberships: Floats  # (T, C)
    weights: Floats  # (T, C, p): means, given the cluster
    covariances: Floats  # (T, C, p, p)
    log_evidence: Floats  # (T,)

    @property
    def mean_weights(self) -> Floats:
        """Expected weights of each task, (T, p)."""
        return np.einsum("tc,tcp->tp", self.memberships, self.weights)


@dataclass(frozen=True)
class Hierarchy:
    """A prior and the posterior that goes with it."""

    prior: TaskPrior
    posterior: TaskPosterior


@dataclass(frozen=True)
class HierarchySettings:
    """Sizes, and how long."""

    n_clusters: int
    n_hidden: int | None
    max_iter: int
    tol: float


@dataclass(frozen=True)
class Moments:
    """Sums over the targets of each task."""

    grams: Floats  # (T, p, p): sum h hᵀ
    sums: Floats  # (T, p): sum h y
    squares: Floats  # (T,): sum y²
    counts: Floats  # (T,): of targets, each as often as it counts


def hidden_features(X: Floats, hidden: Floats | None) -> Floats:
    """Return h(x) of rows whose last column is constant: the rows themselves, or hidden units and the constant."""
    return X if hidden is None else np.column_stack([np.tanh(X @ hidden.T), X[:, -1]])


def moments(problem: LinearTasks, hidden: Floats | None) -> Moments:
    """Sum up the targets of each task."""
    grams, sums = replace(problem, X=hidden_features(problem.X, hidden)).moments()
    seen = problem.observations
    squares = [float(seen.weights[here] @ seen.targets[here] ** 2) for here in problem.slices]
    counts = [float(seen.weights[here].sum()) for here in problem.slices]
    return Moments(grams, sums, np.array(squares), np.array(counts))


def fit(
    problem: LinearTasks, settings: HierarchySettings, rng: np.random.Generator, callbacks: Sequence[Callback]
) -> FitResult[Hierarchy]:
    """Maximise the evidence; where there are clusters, after a warm-up with a single one, whose weights say which."""

    def step(state: Hierarchy) -> StepResult[Hierarchy]:
        after = update(problem, state)
        return StepResult(after, objective(after))

    state, max_iter, ended = start(problem, settings, rng), settings.max_iter, None
    rule, stage = RelativeChange(settings.tol), ""
    if settings.n_clusters > 1:
        warm = run(step, state, max_iter=WARM_UP_STEPS, objective=objective, callbacks=callbacks, stage=WARM_UP)
        state, stage = divide(problem, warm.state, settings.n_clusters, rng), CLUSTERS
        if warm.status in (Status.STOPPED, Status.INTERRUPTED):
            max_iter, ended = 0, warm.status
    found = run(step, state, max_iter=max_iter, objective=objective, stop=rule, callbacks=callbacks, stage=stage)
    return found if ended is None else replace(found, status=ended)


def list_stages(n_clusters: int, max_iter: int) -> int | dict[str, int | None]:
    """Return the most iterations of a fit, or of each of its stages where it has any."""
    return max_iter if n_clusters == 1 else {WARM_UP: WARM_UP_STEPS, CLUSTERS: max_iter}


def start(problem: LinearTasks, settings: HierarchySettings, rng: np.random.Generator) -> Hierarchy:
    """Start from one ridge regression for all tasks."""
    hidden = None
    if settings.n_hidden is not None:
        hidden = rng.standard_normal((settings.n_hidden, problem.X.shape[1])) / np.sqrt(problem.X.shape[1])
    found = moments(problem, hidden)
    p = found.sums.shape[1]
    mean = np.linalg.solve(found.grams.sum(axis=0) + np.eye(p), found.sums.sum(axis=0))
    prior = TaskPrior(np.ones(1), mean[None], np.eye(p)[None] / p, 1.0, hidden)
    return Hierarchy(prior, infer(found, prior))


def divide(problem: LinearTasks, state: Hierarchy, n_clusters: int, rng: np.random.Generator) -> Hierarchy:
    """Cluster the tasks by their weights, and give every cluster its own prior."""
    found = state.posterior.weights[:, 0]
    _, codes = kmeans2(found, n_clusters, minit="++", missing="warn", rng=rng)
    members = np.eye(n_clusters)[codes]
    posterior = replace(
        state.posterior,
        memberships=members,
        weights=np.repeat(state.posterior.weights, n_clusters, axis=1),
        covariances=np.repeat(state.posterior.covariances, n_clusters, axis=1),
    )
    sizes = members.sum(axis=0)
    means = (members.T @ found + state.prior.means) / (sizes[:, None] + 1.0)
    prior = replace(state.prior, means=means, covariances=np.repeat(state.prior.covariances, n_clusters, axis=0))
    prior = update_spread(moments(problem, prior.hidden), prior, posterior)
    return Hierarchy(prior, infer(moments(problem, prior.hidden), prior))


def update(problem: LinearTasks, state: Hierarchy) -> Hierarchy:
    """Take one iteration, in which the evidence times priors cannot fall.

    Shares, covariances, noise and hidden units follow from the expected weights of the tasks; then the means, with the
    weights integrated out, which is much quicker than from expected weights.
    """
    found = moments(problem, state.prior.hidden)
    prior = update_spread(found, state.prior, state.posterior)
    if prior.hidden is not None:
        prior = replace(prior, hidden=_update_hidden(problem, prior, state.posterior))
        found = moments(problem, prior.hidden)
    prior = replace(prior, means=_update_means(found, prior, infer(found, prior).memberships))
    return Hierarchy(prior, infer(found, prior))


def infer(found: Moments, prior: TaskPrior) -> TaskPosterior:
    """Return the exact posterior of clusters and weights of every task."""
    T, C, p = len(found.counts), len(prior.shares), found.sums.shape[1]
    noise = prior.noise_variance
    weights, covariances, evidence = np.empty((T, C, p)), np.empty((T, C, p, p)), np.empty((T, C))
    for c in range(C):
        m, root = prior.means[c], np.linalg.cholesky(prior.covariances[c])
        inner = np.eye(p) + root.T @ found.grams @ root / noise
        covariances[:, c] = root @ np.linalg.solve(inner, np.broadcast_to(root.T, inner.shape))
        rest = found.sums - found.grams @ m
        shift = np.einsum("tpq,tq->tp", covariances[:, c], rest) / noise
        weights[:, c] = m + shift
        errors = found.squares - (found.sums + rest) @ m
        fit_terms = (errors - np.sum(rest * shift, axis=1)) / noise
        evidence[:, c] = -0.5 * (found.counts * np.log(2 * np.pi * noise) + np.linalg.slogdet(inner)[1] + fit_terms)
    with np.errstate(divide="ignore"):  # a cluster without tasks
        joint = evidence + np.log(prior.shares)
    total = logsumexp(joint, axis=1)
    return TaskPosterior(np.exp(joint - total[:, None]), weights, covariances, total)


def update_spread(found: Moments, prior: TaskPrior, posterior: TaskPosterior) -> TaskPrior:
    """Return shares, covariances and noise from the expected weights."""
    p = found.sums.shape[1]
    members = posterior.memberships
    away = posterior.weights - prior.means
    scatter = np.einsum("tc,tcp,tcq->cpq", members, away, away) + np.einsum(
        "tc,tcpq->cpq", members, posterior.covariances
    )
    sizes = members.sum(axis=0)
    covariances = (scatter + PSEUDO_TASKS * np.eye(p) / p) / (sizes + PSEUDO_TASKS)[:, None, None]
    errors = _expect_errors(found, posterior)
    noise = (float(np.sum(members * errors)) + PSEUDO_NOISE) / (float(found.counts.sum()) + 1.0)
    return replace(prior, shares=sizes / sizes.sum(), covariances=covariances, noise_variance=noise)


def _expect_errors(found: Moments, posterior: TaskPosterior) -> Floats:
    """Expected squared errors of each task in each cluster, (T, C)."""
    w = posterior.weights
    explained = np.einsum("tcp,tpq,tcq->tc", w, found.grams, w) + np.einsum(
        "tpq,tcpq->tc", found.grams, posterior.covariances
    )
    return np.maximum(found.squares[:, None] - 2 * np.einsum("tcp,tp->tc", w, found.sums) + explained, 0.0)


def _update_means(found: Moments, prior: TaskPrior, memberships: Floats) -> Floats:
    """Return the means by generalised least squares: targets of a task are correlated through its weights."""
    p = found.sums.shape[1]
    means = np.empty_like(prior.means)
    for c in range(len(means)):
        # H' (H S H' + noise)^-1 = (noise + G S)^-1 H', applied to H and to y
        own = prior.noise_variance * np.eye(p) + found.grams @ prior.covariances[c]
        solved = np.linalg.solve(own, np.concatenate([found.grams, found.sums[:, :, None]], axis=2))
        joint = np.einsum("t,tpq->pq", memberships[:, c], solved)
        means[c] = np.linalg.solve(joint[:, :p] + MEAN_PRECISION * np.eye(p), joint[:, p])
    return means


def _update_hidden(problem: LinearTasks, prior: TaskPrior, posterior: TaskPosterior) -> Floats:
    """Return better weights of the hidden units, for the expected weights of the tasks."""
    assert prior.hidden is not None
    shape, seen = prior.hidden.shape, problem.observations
    rows, constant = problem.X[seen.rows], problem.X[seen.rows][:, -1]
    w = posterior.mean_weights
    second = np.einsum("tc,tcp,tcq->tpq", posterior.memberships, posterior.weights, posterior.weights)
    second += np.einsum("tc,tcpq->tpq", posterior.memberships, posterior.covariances)

    def cost(flat: Floats) -> tuple[float, Floats]:
        U = flat.reshape(shape)
        units = np.tanh(rows @ U.T)
        h = np.column_stack([units, constant])
        spread, slope = np.empty_like(h), np.empty_like(h)
        for t, here in enumerate(problem.slices):
            spread[here], slope[here] = h[here] @ second[t], np.outer(seen.targets[here], w[t])
        value = 0.5 * float(seen.weights @ np.sum(h * (spread - 2 * slope), axis=1)) / prior.noise_variance
        by_units = seen.weights[:, None] * (spread - slope)[:, :-1] * (1.0 - units**2)
        total = value + 0.5 * HIDDEN_PRECISION * float(np.sum(U**2))
        return total, (by_units.T @ rows / prior.noise_variance + HIDDEN_PRECISION * U).ravel()

    # A smooth function of few parameters, another one in every iteration, and a few steps are enough: SciPy's case.
    start = prior.hidden.ravel()
    found = minimize(cost, start, jac=True, method="L-BFGS-B", options={"maxiter": HIDDEN_STEPS})
    return (found.x if found.fun <= cost(start)[0] else start).reshape(shape)


def objective(state: Hierarchy) -> dict[str, float]:
    """Return minus the logarithms of the evidence and of the priors, up to constants of the latter."""
    prior = state.prior
    p = prior.means.shape[1]
    spread = np.linalg.slogdet(prior.covariances)[1] + np.trace(np.linalg.inv(prior.covariances), axis1=1, axis2=2) / p
    noise = np.log(prior.noise_variance) + PSEUDO_NOISE / prior.noise_variance
    hidden = 0.0 if prior.hidden is None else 0.5 * HIDDEN_PRECISION * float(np.sum(prior.hidden**2))
    return {
        "likelihood": -float(state.posterior.log_evidence.sum()),
        "prior_covariances": 0.5 * PSEUDO_TASKS * float(np.sum(spread)),
        "prior_means": 0.5 * MEAN_PRECISION * float(np.sum(prior.means**2)),
        "prior_noise": 0.5 * float(noise),
        "prior_hidden": hidden,
    }
