"""iLSVM of the paper (section 4.2, appendix D.2, Algorithm 3), with corrected equations.

    x_n ~ N(W z_n, noise_n I),  z_nk ~ Bernoulli(pi_k),  W_k ~ N(0, s0 I),  eta_y ~ N(0, I)

and the multi-class hinge of ``f(y, x_n) = E[eta_y]' E[z_n]``. Each sample has its own noise variance. The model has no
temperature, no intercept and a generative weight of one. Corrections: the margin term in the update of Z includes the
multipliers, precisions are ``1 / s0`` instead of 1, and ``D s_k`` is counted once. Noise variances have a lower bound,
because that of a sample that is reconstructed exactly would be zero.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import expit, xlogy
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from regbayes_paper._types import Floats, Integers
from regbayes_paper.classes import ClassScores
from regbayes_paper.descent import alternate
from regbayes_paper.indian_buffet import Sticks
from regbayes_paper.svm import class_losses, solve_classes

INNER = (10, 1e-3)  # inner loop of Algorithm 3: iterations, and the relative change at which to stop
OUTER = (20, 1e-4)
START_DEVIATION = np.sqrt(1e-3)  # standard deviation of the initial psi around one half
CLASSIFIER_TOL = 1e-3  # relative duality gap of the classifier
CLASSIFIER_EPOCHS = 30  # epochs of the classifier's solver in each outer iteration
NOISE_FLOOR = 1e-3  # lower bound on noise variances, in units of the variance of the inputs


@dataclass(frozen=True)
class State:
    """The variational posterior and the variances."""

    psi: Floats  # (N, K): q(z = 1)
    sticks: Sticks
    means: Floats  # (K, D): means of W
    spread: Floats  # (K,): variance of W_k in each input
    prior_variance: float  # s0
    noise: Floats  # (N,)
    classifier: Floats  # (L, K): means of eta
    multipliers: Floats  # (N, L): negative derivatives of the losses with respect to the scores


@dataclass(frozen=True)
class Problem:
    """Data and settings of a fit; samples with ``C = 0`` have no margins."""

    X: Floats  # (N, D)
    labels: Integers  # (N,)
    n_classes: int
    C: Floats  # (N,)
    alpha: float
    floor: float  # lower bound on noise variances

    def start(self, n_components: int, kind: str, rng: Any) -> State:
        """Return the initial state of Algorithm 3, or one with exponentially decaying psi (section 5.1)."""
        N, D, K = *self.X.shape, n_components
        level = np.full(K, 0.5) if kind == "half" else (self.alpha / (1.0 + self.alpha)) ** np.arange(1, K + 1)
        psi = np.clip(level + START_DEVIATION * rng.standard_normal((N, K)), 0.0, 1.0)
        noise = np.full(N, max(float(self.X.var(axis=0).mean()), self.floor))
        zeros = np.zeros((N, self.n_classes))
        sticks = Sticks.of_prior(self.alpha, K)
        return State(psi, sticks, np.zeros((K, D)), np.ones(K), 1.0, noise, np.zeros((self.n_classes, K)), zeros)

    def update_sticks(self, state: State) -> State:
        """Update q(nu)."""
        return replace(state, sticks=state.sticks.update(state.psi.sum(axis=0), len(self.X), self.alpha))

    def update_weights(self, state: State) -> State:
        """Update q(W), one feature after the other."""
        means, weighted = state.means.copy(), state.psi / state.noise[:, None]
        spread = 1.0 / (1.0 / state.prior_variance + weighted.sum(axis=0))
        gram, linear = weighted.T @ state.psi, weighted.T @ self.X
        for k in range(len(means)):
            means[k] = spread[k] * (linear[k] - gram[k] @ means + gram[k, k] * means[k])
        return replace(state, means=means, spread=spread)

    def update_features(self, state: State) -> State:
        """Update q(Z), one feature after the other; unlabeled samples have no margin term."""
        reward = state.multipliers @ state.classifier
        psi, log_odds, gram = state.psi.copy(), state.sticks.log_odds, state.means @ state.means.T
        fit = self.X @ state.means.T - 0.5 * (self.X.shape[1] * state.spread + np.diag(gram))
        for k in range(psi.shape[1]):
            others = psi @ gram[:, k] - psi[:, k] * gram[k, k]
            psi[:, k] = expit(log_odds[k] + (fit[:, k] - others) / state.noise + reward[:, k])
        return replace(state, psi=psi)

    def update_classifier(
        self, state: State, tol: float = CLASSIFIER_TOL, max_epochs: int = CLASSIFIER_EPOCHS
    ) -> State:
        """Update q(eta) and the multipliers."""
        options = {"start": state.multipliers, "tol": tol, "max_epochs": max_epochs}
        found = solve_classes(state.psi, self.labels, self.n_classes, self.C, **options)
        return replace(state, classifier=found.weights, multipliers=found.multipliers)

    def update_prior_variance(self, state: State) -> State:
        """Update s0."""
        K, D = state.means.shape
        return replace(state, prior_variance=float((D * state.spread.sum() + np.sum(state.means**2)) / (K * D)))

    def update_noise(self, state: State) -> State:
        """Update the noise variance of each sample."""
        return replace(state, noise=np.maximum(self.errors(state) / self.X.shape[1], self.floor))

    def errors(self, state: State) -> Floats:
        """Return ``E |x - W z|^2`` of each sample, (N,)."""
        psi, squares = state.psi, np.sum(state.means**2, axis=1)
        rest = np.sum((self.X - psi @ state.means) ** 2, axis=1)
        return rest + (psi * (1.0 - psi)) @ squares + self.X.shape[1] * (psi @ state.spread)

    def free_energy(self, state: State) -> float:
        """Return the KL divergences minus the expected log-likelihood, including constants."""
        psi, (K, D), s0 = state.psi, state.means.shape, state.prior_variance
        cost = state.sticks.kl(self.alpha) + state.sticks.cost(psi.sum(axis=0), len(psi))
        cost += float(np.sum(xlogy(psi, psi) + xlogy(1.0 - psi, 1.0 - psi)))
        cost += 0.5 * float((D * state.spread.sum() + np.sum(state.means**2)) / s0 - D * K)
        cost -= 0.5 * D * float(np.sum(np.log(state.spread / s0)))
        return cost + 0.5 * float(np.sum(D * np.log(2 * np.pi * state.noise) + self.errors(state) / state.noise))

    def lagrangian(self, state: State) -> float:
        """Return the free energy minus the margin terms at fixed multipliers."""
        return self.free_energy(state) - float(np.vdot(state.psi, state.multipliers @ state.classifier))

    def objective(self, state: State) -> float:
        """Return the objective of the paper: free energy, KL divergence of eta and hinge losses."""
        losses = class_losses(state.psi @ state.classifier.T, self.labels, self.C, squared=False)
        return self.free_energy(state) + 0.5 * float(np.sum(state.classifier**2)) + float(losses.sum())

    def infer(self, state: State) -> State:
        """Run the inner loop of Algorithm 3 at fixed multipliers."""

        def step(state: State) -> tuple[State, float]:
            state = self.update_features(self.update_weights(self.update_sticks(state)))
            return state, self.lagrangian(state)

        return alternate(step, state, *INNER)[0]

    def step(self, state: State) -> tuple[State, float]:
        """Run an iteration of the outer loop."""
        state = self.update_classifier(self.infer(state))
        state = self.update_noise(self.update_prior_variance(state))
        return state, self.objective(state)


@dataclass(eq=False, repr=False)
class PrintedILSVMClassifier(ClassScores, TransformerMixin, BaseEstimator):
    """iLSVM by Algorithm 3 of the paper, which predicts with q(eta) of the training fit.

    Parameters
    ----------
    n_components : int, default=50
        Truncation level.
    alpha : float, default=2.0
        Concentration of the Indian buffet process.
    C : float, default=1.0
        Penalty on a margin violation.
    start : {"half", "decaying"}, default="half"
        Initial psi: around one half, as in Algorithm 3, or exponentially decaying over the features.
    unlabeled : object, default=None
        Value of y that marks samples without margins, as for the test samples in the paper (transductive).
    random_state : int, RandomState instance or None, default=None
        Seeds the initialization.
    """

    n_components: int = 50
    _: KW_ONLY
    alpha: float = 2.0
    C: float = 1.0
    start: Literal["half", "decaying"] = "half"
    unlabeled: Any = None
    random_state: Any = None

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Run Algorithm 3 on the inputs as given."""
        found: tuple[Floats, Any] = validate_data(self, X, y, dtype=np.float64, ensure_min_samples=2)
        rows, targets = found
        check_classification_targets(targets)
        labeled = np.ones(len(rows), dtype=bool) if self.unlabeled is None else targets != self.unlabeled
        self.classes_ = np.unique(targets[labeled])
        labels = np.searchsorted(self.classes_, np.where(labeled, targets, self.classes_[0]))
        self._floor = max(NOISE_FLOOR * float(rows.var(axis=0).mean()), np.finfo(np.float64).tiny)
        C = np.where(labeled, float(self.C), 0.0)
        problem = Problem(rows, labels, len(self.classes_), C, float(self.alpha), self._floor)
        state = problem.start(int(self.n_components), self.start, check_random_state(self.random_state))
        self.state_, self.objectives_ = alternate(problem.step, state, *OUTER)
        self.n_components_ = int(np.sum(np.ptp(self.state_.psi, axis=0) > 0.1))
        return self

    def transform(self, X: ArrayLike) -> Floats:
        """Return psi of new samples, inferred without margins at the fitted q(nu) and q(W)."""
        check_is_fitted(self)
        rows = validate_data(self, X, dtype=np.float64, reset=False)
        N, L = len(rows), len(self.classes_)
        problem = Problem(rows, np.zeros(N, dtype=np.int64), L, np.zeros(N), float(self.alpha), self._floor)
        psi = np.full((N, len(self.state_.means)), 0.5)
        noise = np.full(N, float(np.median(self.state_.noise)))
        state = replace(self.state_, psi=psi, noise=noise, multipliers=np.zeros((N, L)))
        for _ in range(INNER[0]):
            state = problem.update_noise(problem.update_features(state))
        return state.psi

    def _class_scores(self, X: ArrayLike) -> Floats:
        return self.transform(X) @ self.state_.classifier.T


def sample_at_multipliers(problem: Problem, state: State, log_odds: Floats, n_draws: int, rng: Any) -> Any:
    """Iterate over Gibbs draws of Z, W and eta at the multipliers and variances of a state (section 4.4).

    The prior log-odds (K,) of the features are those at given sticks.
    """
    X, noise, s0, tilt = problem.X, state.noise[:, None], state.prior_variance, state.multipliers
    Z, (K, D) = (rng.random(state.psi.shape) < 0.5).astype(np.float64), state.means.shape
    for _ in range(n_draws):
        root = np.linalg.cholesky(np.eye(K) / s0 + Z.T @ (Z / noise))
        W = np.linalg.solve(root.T, np.linalg.solve(root, Z.T @ (X / noise)) + rng.standard_normal((K, D)))
        eta = tilt.T @ Z + rng.standard_normal((tilt.shape[1], K))
        for k in range(K):
            rest = X - Z @ W + np.outer(Z[:, k], W[k])
            fit = (rest @ W[k] - 0.5 * W[k] @ W[k]) / noise[:, 0]
            Z[:, k] = rng.random(len(X)) < expit(log_odds[k] + fit + tilt @ eta[:, k])
        yield Z.copy(), W, eta
