"""The infinite predictor subspace model: weights of tasks in a sparse basis under an Indian buffet prior.

Rai and Daumé (2010). The weights of output m are ``w_m = Z a_m``, with loadings ``a_m ~ N(0, I)`` and a basis
``z_dk = b_dk v_dk`` of D inputs by K directions, where b is binary under an Indian buffet process over the inputs and
``v_dk ~ N(0, variance)``. Labels are logistic, with an intercept of each output's own. The *augmented* model explains
the inputs with the same basis, ``x_n = Z s_n + noise`` and ``s_n ~ N(0, I)``, so that rows without labels help too.

Mean field, with q(b, v) joint in each entry and the quadratic bound on the logistic function. Every update is exact for
its block but that of the sticks, which is a majorise-minimise step; so the bound never falls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.special import expit, xlogy

from regbayes._types import Floats
from regbayes.engine import FitResult, Progress, RelativeChange, StepResult, run
from regbayes.models.indian_buffet import (
    Sticks,
    cross_entropy_features,
    kl_sticks,
    prior_sticks,
    stick_expectations,
    update_sticks,
)
from regbayes_paper.models.linear_tasks.logistic import QuadraticBound, quadratic_bound
from regbayes_paper.models.linear_tasks.problem import LinearTasks

Callback = Callable[[Progress[Any]], bool | None]

INTERCEPT_VARIANCE = 10.0


@dataclass(frozen=True)
class Basis:
    """q(Z): a spike at zero and a Gaussian slab for each entry."""

    probability: Floats  # (D, K): that b is 1
    mean: Floats  # (D, K): of v, if b is 1
    spread: Floats  # (D, K): its variance
    variance: float  # of the prior of v

    @property
    def expected(self) -> Floats:
        """``E[z]``."""
        return self.probability * self.mean

    @property
    def square(self) -> Floats:
        """``E[z²]``."""
        return self.probability * (self.mean**2 + self.spread)


@dataclass(frozen=True)
class Inputs:
    """q(s) of all rows, which have one covariance, and the noise of the inputs."""

    row_weights: Floats  # (N,): how often each row counts
    means: Floats  # (N, K)
    covariance: Floats  # (K, K)
    noise_variance: float

    @property
    def second_moment(self) -> Floats:
        """``sum_n E[s sᵀ]``, (K, K)."""
        return self.weigh(self.means).T @ self.means + self.row_weights.sum() * self.covariance

    def weigh(self, values: Floats) -> Floats:
        """Return values of the rows (N, k), each as often as its row counts."""
        return self.row_weights[:, None] * values


@dataclass(frozen=True)
class Subspace:
    """The variational posterior."""

    basis: Basis
    sticks: Sticks
    loadings: Floats  # (M, K + 1): means of a_m, the intercept last
    covariances: Floats  # (M, K + 1, K + 1)
    xi: Floats  # (n,): of the bound on each label
    inputs: Inputs | None  # in the augmented model

    @property
    def weights(self) -> Floats:
        """Expected weights, (M, D + 1), the intercept last."""
        return np.column_stack([self.loadings[:, :-1] @ self.basis.expected.T, self.loadings[:, -1]])

    @property
    def loading_moments(self) -> Floats:
        """``E[a aᵀ]`` with the intercept, (M, K + 1, K + 1)."""
        return self.covariances + self.loadings[:, :, None] * self.loadings[:, None, :]

    @property
    def second_moments(self) -> Floats:
        """``E[w wᵀ]`` with the intercept, (M, D + 1, D + 1)."""
        turned, moments = _turn(self.basis), self.loading_moments
        found = turned @ moments @ turned.T
        extra = self.basis.square - self.basis.expected**2
        d = np.arange(len(extra))
        found[:, d, d] += np.einsum("mkk,dk->md", moments[:, :-1, :-1], extra)
        return found


@dataclass(frozen=True)
class SubspaceSettings:
    """Sizes, and how long."""

    n_components: int
    alpha: float
    augmented: bool
    max_iter: int
    tol: float


def _turn(basis: Basis) -> Floats:
    """Return the expected basis with the constant's own direction, (D + 1, K + 1)."""
    D, K = basis.mean.shape
    turned = np.zeros((D + 1, K + 1))
    turned[:D, :K], turned[D, K] = basis.expected, 1.0
    return turned


def fit(
    problem: LinearTasks, settings: SubspaceSettings, rng: np.random.Generator, callbacks: Sequence[Callback]
) -> FitResult[Subspace]:
    """Maximise the bound on the evidence; the last column of X is the constant."""

    def step(state: Subspace) -> StepResult[Subspace]:
        bound, after = update(problem, state, settings)
        return StepResult(after, objective(problem, bound, after, settings))

    state = start(problem, settings, rng)
    rule = RelativeChange(settings.tol, patience=2)
    return run(step, state, max_iter=settings.max_iter, stop=rule, callbacks=callbacks)


def start(problem: LinearTasks, settings: SubspaceSettings, rng: np.random.Generator) -> Subspace:
    """Start from the principal directions of ridge weights or, in the augmented model, of the inputs.

    Where these are fewer than there may be, the others start small and random.
    """
    D, K = problem.X.shape[1] - 1, settings.n_components
    mean = 0.01 * rng.standard_normal((D, K)) / np.sqrt(D)
    points, counts = _ridge_weights(problem), np.ones(problem.n_outputs)
    if settings.augmented:
        points, counts = problem.X[:, :-1], problem.row_weights
    _, sizes, directions = np.linalg.svd(np.sqrt(counts)[:, None] * points, full_matrices=False)
    found = min(K, len(sizes))
    mean[:, :found] = directions[:found].T * sizes[:found] / np.sqrt(counts.sum())
    variance = max(float(np.mean(mean**2)), np.finfo(np.float64).tiny)
    basis = Basis(np.full((D, K), 0.9), mean, np.full((D, K), 0.1 * variance), variance)
    state = Subspace(
        basis=basis,
        sticks=prior_sticks(settings.alpha, K),
        loadings=np.zeros((problem.n_outputs, K + 1)),
        covariances=np.repeat(np.eye(K + 1)[None], problem.n_outputs, axis=0),
        xi=np.ones(len(problem.observations)),
        inputs=Inputs(problem.row_weights, np.zeros((len(problem.X), K)), np.eye(K), 1.0)
        if settings.augmented
        else None,
    )
    return update_inputs(problem, update_loadings(quadratic_bound(problem, state.xi), state))


def _ridge_weights(problem: LinearTasks) -> Floats:
    """Return the weights of each output by ridge regression on its labels, (M, D)."""
    grams, sums = problem.moments()
    solved = np.linalg.solve(grams + np.eye(problem.X.shape[1]), sums[:, :, None])
    return solved[:, :-1, 0].astype(np.float64, copy=False)


def update(problem: LinearTasks, state: Subspace, settings: SubspaceSettings) -> tuple[QuadraticBound, Subspace]:
    """One iteration over all blocks; also the bound on the labels, which is most of the work."""
    state = sort_directions(state)
    counts = state.basis.probability.sum(axis=0)
    state = replace(state, sticks=update_sticks(state.sticks, counts, len(state.basis.mean), settings.alpha))
    state = replace(state, xi=update_xi(problem, state))
    bound = quadratic_bound(problem, state.xi)
    state = update_basis(problem, bound, state)
    state = update_inputs(problem, update_loadings(bound, state))
    square = float(state.basis.square.sum() / max(float(state.basis.probability.sum()), np.finfo(np.float64).tiny))
    return bound, replace(state, basis=replace(state.basis, variance=square))


def update_xi(problem: LinearTasks, state: Subspace) -> Floats:
    """Return the xi that make the bound tightest, `best_xi` by way of the directions, which are fewer than inputs."""
    moments, basis = state.loading_moments, state.basis
    turned, squared = problem.X @ _turn(basis), problem.X[:, :-1] ** 2
    extra = squared @ ((basis.square - basis.expected**2) @ np.einsum("mkk->km", moments[:, :-1, :-1]))
    squares = np.empty(len(problem.observations))
    for m, here in enumerate(problem.slices):
        rows = problem.observations.rows[here]
        squares[here] = np.sum((turned[rows] @ moments[m]) * turned[rows], axis=1) + extra[rows, m]
    return np.sqrt(np.maximum(squares, 0.0))


def sort_directions(state: Subspace) -> Subspace:
    """Put directions that have many inputs first, which the sticks prefer."""
    order = np.argsort(-state.basis.probability.sum(axis=0), kind="stable")
    basis, inputs, with_constant = state.basis, state.inputs, np.append(order, len(order))
    if inputs is not None:
        inputs = replace(inputs, means=inputs.means[:, order], covariance=inputs.covariance[np.ix_(order, order)])
    return replace(
        state,
        basis=Basis(basis.probability[:, order], basis.mean[:, order], basis.spread[:, order], basis.variance),
        loadings=state.loadings[:, with_constant],
        covariances=state.covariances[:, with_constant[:, None], with_constant],
        inputs=inputs,
    )


def update_loadings(bound: QuadraticBound, state: Subspace) -> Subspace:
    """Return the Gaussian of each output's loadings and intercept."""
    turned = _turn(state.basis)
    K = turned.shape[1] - 1
    extra = state.basis.square - state.basis.expected**2
    precisions = turned.T @ bound.grams @ turned + np.diag([*[1.0] * K, 1.0 / INTERCEPT_VARIANCE])
    k = np.arange(K)
    precisions[:, k, k] += np.einsum("mdd->md", bound.grams)[:, :-1] @ extra
    covariances = np.linalg.inv(precisions).astype(np.float64, copy=False)
    return replace(state, loadings=np.einsum("mkl,ml->mk", covariances, bound.sums @ turned), covariances=covariances)


def update_inputs(problem: LinearTasks, state: Subspace) -> Subspace:
    """Return the Gaussian of each row's coordinates and the noise of the inputs, in the augmented model."""
    if state.inputs is None:
        return state
    X, Z, noise = problem.X[:, :-1], state.basis.expected, state.inputs.noise_variance
    precision = np.eye(Z.shape[1]) + _basis_moment(state.basis) / noise
    covariance = np.linalg.inv(precision).astype(np.float64, copy=False)
    inputs = replace(state.inputs, means=X @ Z @ covariance / noise, covariance=covariance)
    size = float(inputs.row_weights.sum()) * X.shape[1]
    return replace(state, inputs=replace(inputs, noise_variance=_input_errors(X, state.basis, inputs) / size))


def _basis_moment(basis: Basis) -> Floats:
    """``E[Zᵀ Z]``, (K, K)."""
    Z = basis.expected
    return Z.T @ Z + np.diag(np.sum(basis.square - Z**2, axis=0))


def _input_errors(X: Floats, basis: Basis, inputs: Inputs) -> float:
    """Expected squared errors of the inputs."""
    explained = float(np.sum(_basis_moment(basis) * inputs.second_moment))
    fitted = np.sum(inputs.weigh(inputs.means) * (X @ basis.expected))
    return float(np.sum(inputs.weigh(X**2)) - 2 * fitted) + explained


def update_basis(problem: LinearTasks, bound: QuadraticBound, state: Subspace) -> Subspace:
    """Return every entry of the basis in turn, direction by direction."""
    basis, moments = state.basis, state.loading_moments
    D, K = basis.mean.shape
    grams, sums = bound.grams[:, :D, :D], bound.sums[:, :D]
    log_odds = stick_expectations(state.sticks).log_odds
    probability, mean, spread = basis.probability.copy(), basis.mean.copy(), basis.spread.copy()
    Z = probability * mean
    if state.inputs is not None:
        projected, seen = problem.X[:, :-1].T @ state.inputs.weigh(state.inputs.means), state.inputs.second_moment
    for k in range(K):
        curved = np.einsum("m,mde->de", moments[:, k, k], grams)
        others = moments[:, :-1, k].copy()
        others[:, k] = 0.0
        linear = state.loadings[:, k] @ sums - np.einsum("mde,me->d", grams, others @ Z.T)
        linear -= np.einsum("md,m->d", bound.grams[:, :D, D], moments[:, K, k])
        if state.inputs is not None:
            noise = state.inputs.noise_variance
            curved[np.diag_indices(D)] += seen[k, k] / noise
            linear += (projected[:, k] - Z @ seen[:, k] + Z[:, k] * seen[k, k]) / noise
        _update_direction(k, curved, linear, log_odds[k], basis.variance, (probability, mean, spread, Z))
    return replace(state, basis=Basis(probability, mean, spread, basis.variance))


def _update_direction(
    k: int, curved: Floats, linear: Floats, log_odds: float, variance: float, arrays: tuple[Floats, ...]
) -> None:
    """Update the entries of one direction in place, each given the others."""
    probability, mean, spread, Z = arrays
    column = Z[:, k].copy()
    precision = np.diag(curved) + 1.0 / variance
    for d in range(len(column)):
        own = linear[d] - curved[d] @ column + curved[d, d] * column[d]
        mean[d, k] = own / precision[d]
        evidence = 0.5 * (own * mean[d, k] - np.log(precision[d] * variance))
        probability[d, k] = expit(log_odds + evidence)
        column[d] = probability[d, k] * mean[d, k]
    spread[:, k], Z[:, k] = 1.0 / precision, column


def objective(
    problem: LinearTasks, bound: QuadraticBound, state: Subspace, settings: SubspaceSettings
) -> dict[str, float]:
    """Minus the bound on the evidence, in its terms."""
    basis = state.basis
    D, K = basis.mean.shape
    on, off = basis.probability, 1.0 - basis.probability
    slabs = np.log(basis.variance / basis.spread) + (basis.mean**2 + basis.spread) / basis.variance - 1.0
    counts = on.sum(axis=0)
    prior = np.array([*[1.0] * K, INTERCEPT_VARIANCE])
    own = np.einsum("mkk->mk", state.loading_moments) / prior + np.log(prior) - 1.0
    loadings = np.sum(own, axis=1) - np.linalg.slogdet(state.covariances)[1]
    terms = {
        "likelihood": -float(bound.expected(state.weights, state.second_moments).sum()),
        "kl_loadings": 0.5 * float(loadings.sum()),
        "kl_basis": float(np.sum(xlogy(on, on) + xlogy(off, off)) + 0.5 * np.sum(on * slabs))
        + cross_entropy_features(stick_expectations(state.sticks), counts, D),
        "kl_sticks": kl_sticks(state.sticks, settings.alpha),
    }
    if state.inputs is not None:
        X, noise = problem.X[:, :-1], state.inputs.noise_variance
        errors = _input_errors(X, basis, state.inputs) / noise
        n_rows = float(state.inputs.row_weights.sum())
        rows = float(np.trace(state.inputs.second_moment)) - n_rows * (
            K + float(np.linalg.slogdet(state.inputs.covariance)[1])
        )
        terms["likelihood_inputs"] = 0.5 * (n_rows * D * float(np.log(2 * np.pi * noise)) + errors)
        terms["kl_inputs"] = 0.5 * rows
    return terms
