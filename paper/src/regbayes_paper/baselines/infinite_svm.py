"""The infinite SVM: a Dirichlet-process mixture of Gaussians, each with a large-margin classifier.

The objective is ``F(q) + r^-1 (1/2 |mu|^2 + sum of C loss)``, times r, where F is the free energy of the mixture. The
score of class y is ``sum_k q_nk mu_ky . x_n``. An iteration updates responsibilities, then sticks and components, then
classifiers. It does not increase the objective (docs/math.md, section 7).
"""

from __future__ import annotations

import warnings
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import digamma, gammaln, log_softmax, softmax, xlogy
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import BayesianGaussianMixture
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from regbayes_paper._types import Floats, Integers
from regbayes_paper.classes import ClassScores
from regbayes_paper.descent import alternate
from regbayes_paper.dirichlet_process import Sticks
from regbayes_paper.svm import Machine, class_losses, solve_classes

SHARES = (1.0, 0.5, 0.25, 0.1, 0.03)  # step lengths toward the new responsibilities, tried in turn
PASSES = 3  # updates of the responsibilities in an iteration
FINAL_TOL = 1e-6  # relative duality gap of the final classifiers

# --- Components: normal-gamma distributions of independent columns


@dataclass(frozen=True)
class NormalGamma:
    """Columns with ``precision ~ Gamma(shape, rate)`` and ``mean ~ N(centre, 1 / (scale precision))``."""

    centre: Floats  # (..., D)
    scale: Floats  # (...)
    shape: Floats  # (...)
    rate: Floats  # (..., D)

    def given(self, counts: Floats, totals: Floats, squares: Floats) -> NormalGamma:
        """Return the posteriors for sums (..., D) of samples minus the prior's center, and of their squares."""
        scale = self.scale + counts
        shift = totals / scale[..., None]
        spread = np.maximum(squares - totals * shift, 0.0)
        return NormalGamma(self.centre + shift, scale, self.shape + 0.5 * counts, self.rate + 0.5 * spread)

    def log_likelihoods(self, X: Floats) -> Floats:
        """Return ``E[log p(x_n | component k)]``, (N, T)."""
        precision = self.shape[:, None] / self.rate
        constant = 0.5 * (digamma(self.shape)[:, None] - np.log(2.0 * np.pi * self.rate)).sum(axis=1)
        squares = [np.square(X - centre) @ own for centre, own in zip(self.centre, precision, strict=True)]
        return constant - 0.5 * X.shape[1] / self.scale - 0.5 * np.stack(squares, axis=1)

    def kl(self, prior: NormalGamma) -> float:
        """Return the KL divergence of all components from the prior."""
        a, b = self.shape[:, None], self.rate
        gammas = (a - prior.shape) * digamma(a) - gammaln(a) + gammaln(prior.shape)
        gammas = gammas + prior.shape * np.log(b / prior.rate) + a * (prior.rate / b - 1.0)
        ratio = (prior.scale / self.scale)[:, None]
        squares = prior.scale * a / b * np.square(self.centre - prior.centre)
        return float(np.sum(gammas + 0.5 * (ratio - 1.0 - np.log(ratio) + squares)))


@dataclass(frozen=True)
class Mixture:
    """Optimal sticks and components for given responsibilities."""

    sticks: Sticks
    components: NormalGamma

    @classmethod
    def of(cls, X: Floats, q: Floats, alpha: float, prior: NormalGamma) -> Mixture:
        """Compute sticks and components from responsibilities."""
        away = X - prior.centre
        return cls(Sticks.of(q.sum(axis=0), alpha), prior.given(q.sum(axis=0), q.T @ away, q.T @ away**2))

    def logits(self, X: Floats) -> Floats:
        """Return the unnormalized log-responsibilities of samples without labels, (N, T)."""
        return self.sticks.log_weights() + self.components.log_likelihoods(X)

    def free_energy(self, X: Floats, q: Floats, alpha: float, prior: NormalGamma) -> float:
        """Return the negative evidence lower bound."""
        fit = float(np.sum(xlogy(q, q)) - np.vdot(q, self.logits(X)))
        return fit + self.sticks.kl(alpha) + self.components.kl(prior)


def sorted_by_size(q: Floats) -> Floats:
    """Return responsibilities with large components first, which raises the bound of the sticks."""
    return q[:, np.argsort(-q.sum(axis=0), kind="stable")]


def start_responsibilities(X: Floats, n_components: int, alpha: float, seed: int) -> Floats:
    """Return the responsibilities of scikit-learn's mixture on standardized columns."""
    scaled = (X - X.mean(axis=0)) / np.where(np.ptp(X, axis=0) > 0, X.std(axis=0), 1.0)
    size = min(n_components, len(np.unique(scaled, axis=0)))
    mixture = BayesianGaussianMixture(
        n_components=size, covariance_type="diag", weight_concentration_prior=alpha, max_iter=500, random_state=seed
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        q = mixture.fit(scaled).predict_proba(scaled)
    return sorted_by_size(np.pad(q, ((0, 0), (0, n_components - size))))


# --- The fit


@dataclass(frozen=True)
class Round:
    """Values of all blocks after an iteration."""

    q: Floats  # (N, T): responsibilities of the training samples
    mixture: Mixture
    machine: Machine  # fitted to samples repeated once per component


@dataclass(frozen=True)
class Problem:
    """Data and settings of a fit."""

    X: Floats  # (N, D)
    inputs: Floats  # (N, d): input features of the classifiers
    labels: Integers
    n_classes: int
    C: float
    squared: bool
    alpha: float
    prior: NormalGamma
    generative_weight: float

    def losses(self, scores: Floats) -> Floats:
        """Return the loss of each sample, (N,)."""
        return class_losses(scores, self.labels, np.full(len(self.X), self.C), self.squared)

    def solve(self, q: Floats, start: Floats | None) -> Machine:
        """Fit the classifiers of all components for given responsibilities."""
        options = {"squared": self.squared, "start": start, "tol": FINAL_TOL}
        C = np.full(len(q), self.C)
        return solve_classes(spread(q, self.inputs), self.labels, self.n_classes, C, **options)

    def component_scores(self, machine: Machine, T: int) -> Floats:
        """Return the scores of all classes in each component, (N, T, classes)."""
        weights = machine.weights.reshape(self.n_classes, T, -1)
        return np.einsum("nd,atd->nta", self.inputs, weights)

    def conclude(self, q: Floats, earlier: Machine | None = None) -> tuple[Round, float]:
        """Return the optimal other blocks for given responsibilities, and the objective."""
        mixture = Mixture.of(self.X, q, self.alpha, self.prior)
        machine = self.solve(q, None if earlier is None else earlier.multipliers)
        if earlier is not None:  # the solver is inexact, so the previous classifiers can be better
            loss = float(self.losses(spread(q, self.inputs) @ earlier.weights.T).sum())
            kept = replace(earlier, loss=loss)
            machine = kept if kept.objective < machine.objective else machine
        energy = mixture.free_energy(self.X, q, self.alpha, self.prior)
        return Round(q, mixture, machine), self.generative_weight * energy + machine.objective

    def step(self, at: Round) -> tuple[Round, float]:
        """Update all blocks once."""
        q = self.update_responsibilities(at)
        order = np.argsort(-q.sum(axis=0), kind="stable")
        weights = at.machine.weights.reshape(self.n_classes, q.shape[1], -1)[:, order]
        machine = replace(at.machine, weights=weights.reshape(self.n_classes, -1))
        return self.conclude(q[:, order], machine)

    def update_responsibilities(self, at: Round) -> Floats:
        """Update responsibilities with a line search for each sample.

        A full step is the update of the original. Later passes use the multipliers at the new scores.
        """
        q, logits = at.q, log_softmax(at.mixture.logits(self.X), axis=1)
        by_component = self.component_scores(at.machine, q.shape[1])

        def values(q: Floats) -> Floats:
            losses = self.losses(np.einsum("nt,nta->na", q, by_component))
            return xlogy(q, q).sum(axis=1) - np.sum(q * logits, axis=1) + losses / self.generative_weight

        multipliers, best = at.machine.multipliers, values(q)
        for _ in range(PASSES):
            reward = np.einsum("nta,na->nt", by_component, multipliers) / self.generative_weight
            wanted = log_softmax(logits + reward, axis=1)
            before, open_rows = np.log(np.maximum(q, np.finfo(np.float64).tiny)), np.ones(len(q), dtype=bool)
            q = q.copy()
            for share in SHARES:
                tried = softmax((1.0 - share) * before + share * wanted, axis=1)
                found = values(tried)
                better = open_rows & (found < best)
                q[better], best[better] = tried[better], found[better]
                open_rows &= ~better
            multipliers = self.score_multipliers(np.einsum("nt,nta->na", q, by_component))
        return q

    def score_multipliers(self, scores: Floats) -> Floats:
        """Return the negative subgradient of each sample's loss with respect to its scores."""
        rows, labels, found = np.arange(len(scores)), self.labels, np.zeros_like(scores)
        margins = 1.0 - np.eye(self.n_classes)[labels] - scores[rows, labels][:, None] + scores
        worst = margins.argmax(axis=1)
        size = 2.0 * self.C * margins[rows, worst] if self.squared else self.C
        found[rows, labels] += size
        found[rows, worst] -= size
        return found


def spread(q: Floats, inputs: Floats) -> Floats:
    """Return inputs repeated for each component and multiplied by the responsibilities, (N, T d)."""
    return (q[:, :, None] * inputs[:, None, :]).reshape(len(q), -1)


@dataclass(eq=False, repr=False)
class InfiniteSVMClassifier(ClassScores, TransformerMixin, BaseEstimator):
    """Infinite SVM (iSVM): a Dirichlet-process mixture of large-margin classifiers.

    Gaussian components and their linear classifiers are learned jointly. The score of a class is the average of the
    components' scores, weighted by responsibilities, which are inferred without labels for new samples.

    Parameters
    ----------
    n_components : int, default=10
        Maximum number of components.
    alpha : float, default=1.0
        Concentration of the Dirichlet process. Larger values favor more components.
    C : float, default=1.0
        Penalty on a margin violation.
    loss : {"squared_hinge", "hinge"}, default="squared_hinge"
        Multi-class loss; the original uses the hinge.
    generative_weight : float, default=1.0
        Weight of the mixture; the original uses 1.
    refit_classifiers : bool, default=True
        Whether to refit the final classifiers to label-free responsibilities, as used in prediction. The original
        keeps the classifiers of the training posterior, which uses the labels.
    max_iter : int, default=200
    tol : float, default=1e-5
        Relative change of the objective at which to stop.
    random_state : int, RandomState instance or None, default=None
        Seeds the initialization.

    Attributes
    ----------
    n_components_ : int
        Number of components that are the most probable one of at least one training sample.
    coef_ : array of shape (n_components, n_classes, n_features + 1)
        Weights of the centered inputs and of a constant for each component.

    References
    ----------
    J. Zhu, N. Chen and E. P. Xing (2011). Infinite SVM: a Dirichlet process mixture of large-margin kernel machines.
    ICML.
    """

    n_components: int = 10
    _: KW_ONLY
    alpha: float = 1.0
    C: float = 1.0
    loss: Literal["squared_hinge", "hinge"] = "squared_hinge"
    generative_weight: float = 1.0
    refit_classifiers: bool = True
    max_iter: int = 200
    tol: float = 1e-5
    random_state: Any = None

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Learn components and classifiers jointly."""
        rows, y = validate_data(self, X, y, dtype=np.float64, ensure_min_samples=2)
        check_classification_targets(y)
        self.classes_, labels = np.unique(y, return_inverse=True)
        self._mean = rows.mean(axis=0)
        variance = np.where(np.ptp(rows, axis=0) > 0, rows.var(axis=0), 1.0)
        # The prior mean counts like a tenth of a sample, and the prior variance like two samples.
        prior = NormalGamma(self._mean, np.array(0.1), np.array(1.0), variance)
        alpha, T = float(self.alpha), int(self.n_components)
        seed = check_random_state(self.random_state).randint(np.iinfo(np.int32).max)
        q = start_responsibilities(rows, T, alpha, seed)
        squared, r = self.loss == "squared_hinge", float(self.generative_weight)
        inputs = self._inputs(rows)
        problem = Problem(rows, inputs, labels, len(self.classes_), float(self.C), squared, alpha, prior, r)
        first, _ = problem.conclude(q)
        at, self.objectives_ = alternate(problem.step, first, int(self.max_iter), float(self.tol))
        self.n_iter_ = len(self.objectives_)
        self.mixture_, machine = at.mixture, at.machine
        if self.refit_classifiers:
            machine = problem.solve(softmax(at.mixture.logits(rows), axis=1), machine.multipliers)
        self.coef_ = machine.weights.reshape(len(self.classes_), T, -1).transpose(1, 0, 2)
        self.n_components_ = len(np.unique(at.q.argmax(axis=1)))
        return self

    def _inputs(self, X: Floats) -> Floats:
        return np.column_stack([X - self._mean, np.ones(len(X))])

    def transform(self, X: ArrayLike) -> Floats:
        """Return label-free responsibilities of samples, (n_samples, n_components)."""
        check_is_fitted(self)
        return softmax(self.mixture_.logits(validate_data(self, X, dtype=np.float64, reset=False)), axis=1)

    def _class_scores(self, X: ArrayLike) -> Floats:
        q = self.transform(X)
        inputs = self._inputs(np.asarray(X, dtype=np.float64))
        return np.einsum("nt,nd,tad->na", q, inputs, self.coef_, optimize=True)
