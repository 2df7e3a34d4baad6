"""MT-iLSVM of the paper (section 4.3, appendix D.1, Algorithm 2), with corrected equations.

    x_mn ~ N(Z w_mn, noise_mn I),  z_dk ~ Bernoulli(pi_k),  w_mn ~ N(0, s0_m I),  eta_m ~ N(0, I)

and the hinge of ``E[eta_m]' E[Z]' x_mn``. Each sample has a noise variance, and each task a prior variance. The model
has no temperature and no intercept, and tasks share only Z. A sample with several targets counts once for each target.
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
from regbayes_paper.printed_ilsvm import INNER, NOISE_FLOOR, OUTER, START_DEVIATION
from regbayes_paper.svm import Boxes, solve_boxes
from regbayes_paper.tasks import TaskClassifier, TaskProblem


@dataclass(frozen=True)
class State:
    """The variational posterior and the variances; n is the number of targets."""

    psi: Floats  # (D, K): q(z = 1)
    sticks: Sticks
    means: Floats  # (n, K): means of w
    spread: Floats  # (n,): variance of each entry of w
    prior_variance: Floats  # (M,): s0
    noise: Floats  # (n,)
    classifier: Floats  # (M, K): means of eta
    multipliers: Floats  # (n,): y omega


@dataclass(frozen=True)
class Problem:
    """Data and settings of a fit."""

    tasks: TaskProblem
    C: float
    alpha: float

    @property
    def inputs(self) -> Floats:
        """The inputs of each target, (n, D)."""
        return self.tasks.X[self.tasks.rows]

    def start(self, n_components: int, rng: Any) -> State:
        """Return the initial state of Algorithm 2."""
        n, D, M, K = len(self.tasks.rows), self.tasks.X.shape[1], self.tasks.n_outputs, n_components
        psi = np.clip(0.5 + START_DEVIATION * rng.standard_normal((D, K)), 0.0, 1.0)
        noise = np.full(n, float(self.tasks.X.var(axis=0).mean()))
        zeros = np.zeros((M, K))
        return State(
            psi, Sticks.of_prior(self.alpha, K), np.zeros((n, K)), np.ones(n), np.ones(M), noise, zeros, np.zeros(n)
        )

    def second_moment(self, psi: Floats) -> Floats:
        """Return ``E[Z'Z]``, (K, K)."""
        return psi.T @ psi + np.diag(np.sum(psi * (1.0 - psi), axis=0))

    def update_sticks(self, state: State) -> State:
        """Update q(nu)."""
        return replace(state, sticks=state.sticks.update(state.psi.sum(axis=0), len(state.psi), self.alpha))

    def update_weights(self, state: State) -> State:
        """Update q(w) of every target by a linear system, whose solution is the fixed point of the printed updates."""
        values, vectors = np.linalg.eigh(self.second_moment(state.psi))
        prior = 1.0 / state.prior_variance[self.tasks.outputs]
        right = (self.inputs @ state.psi) @ vectors / state.noise[:, None]
        means = (right / (prior[:, None] + values / state.noise[:, None])) @ vectors.T
        return replace(state, means=means, spread=1.0 / (prior + values.sum() / (len(values) * state.noise)))

    def update_features(self, state: State) -> State:
        """Update q(Z), one feature after the other."""
        weighted, psi = state.means / state.noise[:, None], state.psi.copy()
        gram, linear = weighted.T @ state.means, self.inputs.T @ weighted
        margin = self.inputs.T @ (state.multipliers[:, None] * state.classifier[self.tasks.outputs])
        spread, log_odds = float(np.sum(state.spread / state.noise)), state.sticks.log_odds
        for k in range(psi.shape[1]):
            others = psi @ gram[:, k] - psi[:, k] * gram[k, k]
            psi[:, k] = expit(log_odds[k] - 0.5 * (spread + gram[k, k]) + linear[:, k] - others + margin[:, k])
        return replace(state, psi=psi)

    def update_classifier(self, state: State) -> State:
        """Update q(eta) and the multipliers of every task."""
        weights, multipliers = np.empty_like(state.classifier), np.empty_like(state.multipliers)
        features = self.inputs @ state.psi
        for m, part in enumerate(self.tasks.slices):
            targets = self.tasks.targets[part]
            boxes = Boxes(targets, np.full(len(targets), self.C), one_sided=True)
            found = solve_boxes(features[part], boxes, start=state.multipliers[part], tol=1e-4, max_epochs=200)
            weights[m], multipliers[part] = found.weights[0], found.multipliers[:, 0]
        return replace(state, classifier=weights, multipliers=multipliers)

    def update_variances(self, state: State) -> State:
        """Update the variances of tasks and of samples."""
        K, counts = state.psi.shape[1], np.bincount(self.tasks.outputs)
        squares = K * state.spread + np.sum(state.means**2, axis=1)
        floor = NOISE_FLOOR * float(self.tasks.X.var())
        noise = np.maximum(self.errors(state) / len(state.psi), floor)
        return replace(state, prior_variance=np.bincount(self.tasks.outputs, squares) / (K * counts), noise=noise)

    def errors(self, state: State) -> Floats:
        """Return ``E |x - Z w|^2`` of every target, (n,)."""
        moment = self.second_moment(state.psi)
        fitted = np.sum((self.inputs @ state.psi) * state.means, axis=1)
        explained = np.einsum("nk,nk->n", state.means @ moment, state.means) + state.spread * np.trace(moment)
        return np.sum(self.inputs**2, axis=1) - 2.0 * fitted + explained

    def free_energy(self, state: State) -> float:
        """Return the KL divergences minus the expected log-likelihood, including constants."""
        psi, (D, K), s0 = state.psi, state.psi.shape, state.prior_variance[self.tasks.outputs]
        cost = state.sticks.kl(self.alpha) + state.sticks.cost(psi.sum(axis=0), D)
        cost += float(np.sum(xlogy(psi, psi) + xlogy(1.0 - psi, 1.0 - psi)))
        squares = K * state.spread + np.sum(state.means**2, axis=1)
        cost += 0.5 * float(np.sum(squares / s0 - K - K * np.log(state.spread / s0)))
        return cost + 0.5 * float(np.sum(D * np.log(2 * np.pi * state.noise) + self.errors(state) / state.noise))

    def scores(self, state: State) -> Floats:
        """Return the score of every target, (n,)."""
        return np.sum((self.inputs @ state.psi) * state.classifier[self.tasks.outputs], axis=1)

    def lagrangian(self, state: State) -> float:
        """Return the free energy minus the margin terms at fixed multipliers."""
        return self.free_energy(state) - float(state.multipliers @ self.scores(state))

    def objective(self, state: State) -> float:
        """Return the objective of the paper."""
        hinges = np.maximum(1.0 - self.tasks.targets * self.scores(state), 0.0)
        return self.free_energy(state) + 0.5 * float(np.sum(state.classifier**2)) + self.C * float(hinges.sum())

    def step(self, state: State) -> tuple[State, float]:
        """Run an outer iteration: the inner loop, the classifiers and the variances."""

        def inner(state: State) -> tuple[State, float]:
            state = self.update_features(self.update_weights(self.update_sticks(state)))
            return state, self.lagrangian(state)

        state = self.update_variances(self.update_classifier(alternate(inner, state, *INNER)[0]))
        return state, self.objective(state)


@dataclass(eq=False, repr=False)
class PrintedMTILSVMClassifier(TaskClassifier):
    """MT-iLSVM for labels by Algorithm 2 of the paper, without scaling of inputs.

    With the paper's initialization all features can become inactive; then all scores are zero.

    Parameters
    ----------
    n_components : int, default=50
        Truncation level.
    alpha : float, default=2.0
        Concentration of the Indian buffet process.
    C : float, default=1.0
        Penalty on a margin violation.
    random_state : int, RandomState instance or None, default=None
        Seeds the initialization.
    """

    center_inputs = scale_inputs = False

    n_components: int = 50
    _: KW_ONLY
    alpha: float = 2.0
    C: float = 1.0
    random_state: Any = None

    def _learn(self, problem: TaskProblem) -> None:
        posed = Problem(problem, float(self.C), float(self.alpha))
        first = posed.start(int(self.n_components), check_random_state(self.random_state))
        self.state_, self.objectives_ = alternate(posed.step, first, *OUTER)
        self.coef_, self.intercept_ = self.state_.classifier @ self.state_.psi.T, np.zeros(problem.n_outputs)
        self.n_components_ = int(np.sum(self.state_.psi.max(axis=0) > 0.5))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.poor_score = True  # all features can become inactive
        return tags
