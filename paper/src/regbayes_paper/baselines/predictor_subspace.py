"""The infinite predictor subspace model: task weights in a sparse basis with an Indian buffet prior.

Rai and Daumé (2010). The weights of task m are ``w_m = Z a_m``, with loadings ``a_m ~ N(0, I)`` and a basis
``z_dk = b_dk v_dk`` of D inputs by K directions, where b is binary under an Indian buffet process over the inputs and
``v_dk ~ N(0, variance)``. Labels are logistic, with an intercept for each task. In the augmented model the same basis
also generates the inputs, ``x_n = Z s_n + noise`` with ``s_n ~ N(0, I)``.

Inference is mean field with a joint q(b, v) of each entry and the quadratic bound on the logistic function. No update
lowers the evidence bound. The last column of X is constant.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from typing import Any

import numpy as np
from scipy.special import expit, xlogy
from sklearn.utils import check_random_state

from regbayes_paper._types import Floats
from regbayes_paper.descent import alternate
from regbayes_paper.indian_buffet import Sticks
from regbayes_paper.logistic import QuadraticBound, best_xi, quadratic_bound
from regbayes_paper.tasks import TaskClassifier, TaskProblem

INTERCEPT_VARIANCE = 10.0
TINY = np.finfo(np.float64).tiny


@dataclass(frozen=True)
class Basis:
    """Posterior q(Z): a spike at zero and a Gaussian slab for each entry."""

    probability: Floats  # (D, K): probability that b is 1
    mean: Floats  # (D, K): mean of v given b = 1
    spread: Floats  # (D, K): variance of v given b = 1
    variance: float  # prior variance of v

    @property
    def expected(self) -> Floats:
        """``E[z]``."""
        return self.probability * self.mean

    @property
    def extra(self) -> Floats:
        """``E[z^2] - E[z]^2``."""
        return self.probability * (self.mean**2 + self.spread) - self.expected**2

    @property
    def moment(self) -> Floats:
        """``E[Z' Z]``, (K, K)."""
        return self.expected.T @ self.expected + np.diag(self.extra.sum(axis=0))

    @property
    def turned(self) -> Floats:
        """Expected basis with an additional direction for the intercept, (D + 1, K + 1)."""
        D, K = self.mean.shape
        found = np.zeros((D + 1, K + 1))
        found[:D, :K], found[D, K] = self.expected, 1.0
        return found


@dataclass(frozen=True)
class Inputs:
    """Posterior q(s) of all samples, with one covariance, and the noise variance of the inputs."""

    means: Floats  # (N, K)
    covariance: Floats  # (K, K)
    noise_variance: float

    @property
    def second(self) -> Floats:
        """``sum_n E[s s']``, (K, K)."""
        return self.means.T @ self.means + len(self.means) * self.covariance


@dataclass(frozen=True)
class Subspace:
    """The variational posterior."""

    basis: Basis
    sticks: Sticks
    loadings: Floats  # (M, K + 1): means of a_m, the intercept last
    covariances: Floats  # (M, K + 1, K + 1)
    xi: Floats  # (n,): parameters of the bound on each label
    inputs: Inputs | None  # None unless the model is augmented

    @property
    def weights(self) -> Floats:
        """Expected weights, (M, D + 1), the intercept last."""
        return self.loadings @ self.basis.turned.T

    @property
    def loading_seconds(self) -> Floats:
        """``E[a a']`` with the intercept, (M, K + 1, K + 1)."""
        return self.covariances + self.loadings[:, :, None] * self.loadings[:, None, :]

    @property
    def seconds(self) -> Floats:
        """``E[w w']`` with the intercept, (M, D + 1, D + 1)."""
        moments, turned = self.loading_seconds, self.basis.turned
        found = turned @ moments @ turned.T
        d = np.arange(len(turned) - 1)
        found[:, d, d] += np.einsum("mkk,dk->md", moments[:, :-1, :-1], self.basis.extra)
        return found


def start(problem: TaskProblem, n_components: int, alpha: float, augmented: bool, rng: Any) -> Subspace:
    """Initialize directions by PCA of ridge weights or, in the augmented model, of the inputs.

    Further directions have small random values.
    """
    D, K, M, N = problem.X.shape[1] - 1, n_components, problem.n_outputs, len(problem.X)
    mean = 0.01 * rng.standard_normal((D, K)) / np.sqrt(D)
    grams = problem.grams(np.ones(len(problem.rows))) + np.eye(D + 1)
    ridge = np.linalg.solve(grams, problem.sums(problem.targets)[:, :, None])[:, :-1, 0]
    points = problem.X[:, :-1] if augmented else ridge
    _, sizes, directions = np.linalg.svd(points, full_matrices=False)
    found = min(K, len(sizes))
    mean[:, :found] = directions[:found].T * sizes[:found] / np.sqrt(len(points))
    variance = max(float(np.mean(mean**2)), TINY)
    basis = Basis(np.full((D, K), 0.9), mean, np.full((D, K), 0.1 * variance), variance)
    inputs = Inputs(np.zeros((N, K)), np.eye(K), 1.0) if augmented else None
    covariances = np.repeat(np.eye(K + 1)[None], M, axis=0)
    xi = np.ones(len(problem.rows))
    state = Subspace(basis, Sticks.of_prior(alpha, K), np.zeros((M, K + 1)), covariances, xi, inputs)
    return update_inputs(problem, update_loadings(quadratic_bound(problem, xi), state))


def update(problem: TaskProblem, state: Subspace, alpha: float) -> tuple[QuadraticBound, Subspace]:
    """Update all blocks once; also return the bound on the label likelihood."""
    state = sort_directions(state)
    counts = state.basis.probability.sum(axis=0)
    state = replace(state, sticks=state.sticks.update(counts, len(state.basis.mean), alpha))
    state = replace(state, xi=best_xi(problem, state.seconds))
    bound = quadratic_bound(problem, state.xi)
    state = update_basis(problem, bound, state)
    state = update_inputs(problem, update_loadings(bound, state))
    square = state.basis.probability * (state.basis.mean**2 + state.basis.spread)
    variance = float(square.sum()) / max(float(state.basis.probability.sum()), TINY)
    return bound, replace(state, basis=replace(state.basis, variance=max(variance, TINY)))


def sort_directions(state: Subspace) -> Subspace:
    """Sort directions by decreasing number of inputs, which raises the bound of the sticks."""
    basis, inputs = state.basis, state.inputs
    order = np.argsort(-basis.probability.sum(axis=0), kind="stable")
    wide = np.append(order, len(order))
    if inputs is not None:
        inputs = replace(inputs, means=inputs.means[:, order], covariance=inputs.covariance[np.ix_(order, order)])
    basis = Basis(basis.probability[:, order], basis.mean[:, order], basis.spread[:, order], basis.variance)
    covariances = state.covariances[:, wide[:, None], wide]
    return replace(state, basis=basis, loadings=state.loadings[:, wide], covariances=covariances, inputs=inputs)


def update_loadings(bound: QuadraticBound, state: Subspace) -> Subspace:
    """Update the Gaussian of each task's loadings and intercept."""
    turned = state.basis.turned
    k = np.arange(turned.shape[1] - 1)
    precisions = turned.T @ bound.grams @ turned + np.diag([*np.ones(len(k)), 1.0 / INTERCEPT_VARIANCE])
    precisions[:, k, k] += np.einsum("mdd->md", bound.grams)[:, :-1] @ state.basis.extra
    covariances = np.linalg.inv(precisions)
    return replace(state, loadings=np.einsum("mkl,ml->mk", covariances, bound.sums @ turned), covariances=covariances)


def update_inputs(problem: TaskProblem, state: Subspace) -> Subspace:
    """Update the Gaussian of each sample's coordinates and the noise of the inputs, in the augmented model."""
    if state.inputs is None:
        return state
    X, basis, noise = problem.X[:, :-1], state.basis, state.inputs.noise_variance
    covariance = np.linalg.inv(np.eye(basis.mean.shape[1]) + basis.moment / noise)
    inputs = Inputs(X @ basis.expected @ covariance / noise, covariance, noise)
    return replace(state, inputs=replace(inputs, noise_variance=input_errors(X, basis, inputs) / X.size))


def input_errors(X: Floats, basis: Basis, inputs: Inputs) -> float:
    """Return the expected squared errors of the inputs."""
    fitted = float(np.sum(inputs.means * (X @ basis.expected)))
    return float(np.sum(X**2)) - 2 * fitted + float(np.sum(basis.moment * inputs.second))


def update_basis(problem: TaskProblem, bound: QuadraticBound, state: Subspace) -> Subspace:
    """Update the basis entry by entry."""
    basis, moments = state.basis, state.loading_seconds
    D, K = basis.mean.shape
    grams, sums, log_odds = bound.grams[:, :D, :D], bound.sums[:, :D], state.sticks.log_odds
    probability, mean, spread = basis.probability.copy(), basis.mean.copy(), basis.spread.copy()
    Z = probability * mean
    for k in range(K):
        curved = np.einsum("m,mde->de", moments[:, k, k], grams)
        others = moments[:, :-1, k].copy()
        others[:, k] = 0.0
        linear = state.loadings[:, k] @ sums - np.einsum("mde,me->d", grams, others @ Z.T)
        linear -= np.einsum("md,m->d", bound.grams[:, :D, D], moments[:, K, k])
        if state.inputs is not None:
            noise, seen = state.inputs.noise_variance, state.inputs.second
            curved += np.eye(D) * seen[k, k] / noise
            linear += (problem.X[:, :-1].T @ state.inputs.means[:, k] - Z @ seen[:, k] + Z[:, k] * seen[k, k]) / noise
        precision = np.diag(curved) + 1.0 / basis.variance
        spread[:, k] = 1.0 / precision
        for d in range(D):
            own = linear[d] - curved[d] @ Z[:, k] + curved[d, d] * Z[d, k]
            mean[d, k] = own / precision[d]
            evidence = 0.5 * (own * mean[d, k] - np.log(precision[d] * basis.variance))
            probability[d, k] = expit(log_odds[k] + evidence)
            Z[d, k] = probability[d, k] * mean[d, k]
    return replace(state, basis=Basis(probability, mean, spread, basis.variance))


def objective(problem: TaskProblem, bound: QuadraticBound, state: Subspace, alpha: float) -> float:
    """Return the negative evidence bound."""
    basis, on, off = state.basis, state.basis.probability, 1.0 - state.basis.probability
    D, K = basis.mean.shape
    slabs = np.log(basis.variance / basis.spread) + (basis.mean**2 + basis.spread) / basis.variance - 1.0
    prior = np.array([*np.ones(K), INTERCEPT_VARIANCE])
    own = np.einsum("mkk->mk", state.loading_seconds) / prior + np.log(prior) - 1.0
    cost = 0.5 * float(own.sum() - np.linalg.slogdet(state.covariances)[1].sum())
    cost += float(np.sum(xlogy(on, on) + xlogy(off, off)) + 0.5 * np.sum(on * slabs))
    cost += state.sticks.cost(on.sum(axis=0), D) + state.sticks.kl(alpha)
    cost -= float(bound.expected(state.weights, state.seconds).sum())
    if state.inputs is not None:
        X, noise, N = problem.X[:, :-1], state.inputs.noise_variance, len(problem.X)
        cost += 0.5 * (N * D * np.log(2 * np.pi * noise) + input_errors(X, basis, state.inputs) / noise)
        spread = K + np.linalg.slogdet(state.inputs.covariance)[1]
        cost += 0.5 * float(np.trace(state.inputs.second) - N * spread)
    return cost


@dataclass(eq=False, repr=False)
class PredictorSubspaceClassifier(TaskClassifier):
    """Infinite predictor subspace model: task weights in a sparse basis (Piyushrai-1, -2).

    Parameters
    ----------
    n_components : int, default=20
        Maximum number of directions. The basic model has at most as many as tasks.
    augmented : bool, default=False
        Whether the basis also generates the inputs.
    alpha : float, default=2.0
        Concentration of the Indian buffet process. Larger values favor more directions.
    max_iter : int, default=100
    tol : float, default=1e-4
        Relative change of the bound at which to stop.
    random_state : int, RandomState instance or None, default=None
        Seeds the directions that are not initialized by principal directions.

    Attributes
    ----------
    n_components_ : int
        Directions that include at least one input with probability above one half.
    components_, inclusion_ : arrays of shape (n_components, n_features)
        Expected directions, and the probability that a direction includes an input.
    coef_, intercept_ : arrays of shape (n_tasks, n_features) and (n_tasks,)
        Posterior means of the weights, for standardized inputs.

    References
    ----------
    P. Rai and H. Daumé III (2010). Infinite predictor subspace models for multitask learning. AISTATS.
    """

    n_components: int = 20
    _: KW_ONLY
    augmented: bool = False
    alpha: float = 2.0
    max_iter: int = 100
    tol: float = 1e-4
    random_state: Any = None

    def _learn(self, problem: TaskProblem) -> None:
        posed, alpha, most = problem.with_constant(), float(self.alpha), int(self.n_components)
        size = most if self.augmented else min(most, problem.n_outputs)
        state = start(posed, size, alpha, bool(self.augmented), check_random_state(self.random_state))

        def step(state: Subspace) -> tuple[Subspace, float]:
            bound, after = update(posed, state, alpha)
            return after, objective(posed, bound, after, alpha)

        state, self.objectives_ = alternate(step, state, int(self.max_iter), float(self.tol))
        self.coef_, self.intercept_ = state.weights[:, :-1], state.weights[:, -1]
        self.components_, self.inclusion_ = state.basis.expected.T, state.basis.probability.T
        self.n_components_ = int(np.sum(state.basis.probability.max(axis=0) > 0.5))
