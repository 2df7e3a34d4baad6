"""Harmoniums with Gaussian visible and hidden units, without labels (EFH) or with labels (MMH).

Visible units have a *base*, their distribution without hidden units. Their *statistic* t(x) has mean zero and identity
covariance under the base. Hidden units depend on x only through the statistic: ``E[h | x] = W' t(x)``. The
log-normalizer is ``-1/2 log det(I - W'W)`` (docs/math.md, section 6).
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import eigh
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from regbayes_paper._types import Floats, Integers
from regbayes_paper.classes import ClassScores
from regbayes_paper.descent import minimize
from regbayes_paper.svm import solve_classes

NOISE_FLOOR = 0.01  # least noise variance, as a share of the variance of a view
SHORT = 0.1  # initial norm of weights whose direction does not increase the likelihood
MARGIN_SHARE = 0.01  # `generative_weight="auto"`, in units of C
INNER_TOL = 1e-6  # relative duality gap of the classifier

# --- Visible units


@dataclass(frozen=True)
class GaussianUnits:
    """Real-valued visible units."""

    mean: Floats  # (d,)
    scale: float  # standard deviation given the hidden units

    @classmethod
    def of(cls, X: Floats, n_components: int) -> GaussianUnits:
        """Fit the base to samples; the noise is the residual variance of principal components."""
        variance, rest = float(X.var(axis=0).mean()), max(X.shape[1] - n_components, 0)
        left = variance * X.shape[1] - float(spectrum(X - X.mean(axis=0), n_components)[0].sum())
        noise = max(left / rest if rest else 0.0, NOISE_FLOOR * variance)
        return cls(X.mean(axis=0), float(np.sqrt(noise)) if noise > 0 else 1.0)

    def statistic(self, X: Floats) -> Floats:
        """Return ``(x - mean) / scale``, (n, d)."""
        return (X - self.mean) / self.scale

    def log_base(self, X: Floats) -> Floats:
        """Return the log-density under independent normal distributions, (n,)."""
        constant = X.shape[1] * (np.log(self.scale) + 0.5 * np.log(2.0 * np.pi))
        return -0.5 * np.square(self.statistic(X)).sum(axis=1) - constant


# --- Mean-field likelihood


def spectrum(rows: Floats, k: int) -> tuple[Floats, Floats]:
    """Return the k largest nonzero eigenvalues of the second-moment matrix, and their eigenvectors."""
    size = rows.shape[1]
    values, vectors = eigh(rows.T @ rows / len(rows), subset_by_index=(max(size - k, 0), size - 1))
    kept = values[::-1] > 1e-12 * max(float(values[-1]), np.finfo(np.float64).tiny)
    return values[::-1][kept], vectors[:, ::-1][:, kept]


def log_normalizer(weights: Floats) -> float:
    """Return ``-1/2 log det(I - W'W)``, or infinity if the mean field is unstable."""
    sizes = np.linalg.svd(weights, compute_uv=False) ** 2
    return float(-0.5 * np.log1p(-sizes).sum()) if sizes.max(initial=0.0) < 1.0 else np.inf


def likeliest_weights(t: Floats, n_components: int) -> Floats:
    """Return maximum-likelihood weights: principal directions of norm ``sqrt(1 - 1 / eigenvalue)``."""
    values, directions = spectrum(t, n_components)
    weights = np.zeros((t.shape[1], n_components))
    weights[:, : len(values)] = directions * np.sqrt(np.maximum(1.0 - 1.0 / values, 0.0))
    return weights


@dataclass(frozen=True)
class MarginProblem:
    """Objective ``generative_weight * cost(W) + min_eta 1/2 |eta|^2 + C sum of losses`` of the weights W."""

    t: Floats  # (N, D): statistics
    labels: Integers
    n_classes: int
    C: float
    squared: bool
    generative_weight: float

    def solve(self, hidden: Floats, start: Floats | None = None, tol: float = INNER_TOL) -> Any:
        """Fit the classifier, whose intercept is penalized, to hidden units."""
        rows = np.column_stack([hidden, np.ones(len(hidden))])
        C = np.full(len(rows), self.C)
        return solve_classes(rows, self.labels, self.n_classes, C, squared=self.squared, start=start, tol=tol)

    def evaluate(self, flat: Floats, start: Floats | None = None) -> tuple[float, Floats, Any]:
        """Return value, gradient and classifier; by Danskin's theorem the gradient treats the classifier as fixed."""
        W = flat.reshape(self.t.shape[1], -1)
        normalizer = log_normalizer(W)
        if not np.isfinite(normalizer):
            return np.inf, flat, None
        hidden, N, r = self.t @ W, len(self.t), self.generative_weight
        machine = self.solve(hidden, start)
        by_hidden = -r * hidden - machine.multipliers @ machine.weights[:, : W.shape[1]]
        gradient = self.t.T @ by_hidden + r * N * W @ np.linalg.inv(np.eye(W.shape[1]) - W.T @ W)
        value = r * (N * normalizer - 0.5 * float(np.vdot(hidden, hidden))) + machine.objective
        return value, gradient.ravel(), machine


# --- Estimators


class _Harmonium(TransformerMixin, BaseEstimator):
    """Methods of both harmoniums."""

    def transform(self, X: ArrayLike) -> Floats:
        """Return the expected hidden units of samples, shape (n_samples, n_components)."""
        check_is_fitted(self)
        return self.visible_.statistic(validate_data(self, X, dtype=np.float64, reset=False)) @ self.components_.T

    def score_samples(self, X: ArrayLike) -> Floats:
        """Return the log-density of each sample."""
        hidden = self.transform(X)
        base = self.visible_.log_base(np.asarray(X, dtype=np.float64))
        return base + 0.5 * np.square(hidden).sum(axis=1) - log_normalizer(self.components_.T)


@dataclass(eq=False, repr=False)
class ExponentialFamilyHarmonium(_Harmonium):
    """Exponential family harmonium (EFH) of real values: probabilistic principal component analysis.

    Parameters
    ----------
    n_components : int, default=50
        Number of hidden units.

    References
    ----------
    M. Welling, M. Rosen-Zvi and G. Hinton (2004). Exponential family harmoniums with an application to information
    retrieval. NIPS.
    """

    n_components: int = 50

    def fit(self, X: ArrayLike, y: Any = None) -> Self:
        """Learn the weights; y is ignored."""
        rows = validate_data(self, X, dtype=np.float64, ensure_min_samples=2)
        self.visible_ = GaussianUnits.of(rows, int(self.n_components))
        self.components_ = likeliest_weights(self.visible_.statistic(rows), int(self.n_components)).T
        return self

    def score(self, X: ArrayLike, y: Any = None) -> float:
        """Return the mean log-density of samples."""
        return float(np.mean(self.score_samples(X)))


@dataclass(eq=False, repr=False)
class MaxMarginHarmoniumClassifier(ClassScores, _Harmonium):
    """Max-margin harmonium (MMH), learned jointly with a classifier on its hidden units.

    Parameters
    ----------
    n_components : int, default=50
        Number of hidden units.
    C : float, default=0.01
        Penalty on a violated margin.
    loss : {"squared_hinge", "hinge"}, default="squared_hinge"
        Multi-class loss.
    generative_weight : float or "auto", default="auto"
        Weight of the likelihood; "auto" is 0.01 C. The original objective has weight 1 and the hinge loss.
    max_iter : int, default=200
        Maximum number of quasi-Newton steps.
    tol : float, default=1e-4
        Change of the objective per sample at which to stop, in units of the likelihood or the loss.
    random_state : int, RandomState instance or None, default=None
        Seeds the initial weights of hidden units beyond the rank of X.

    References
    ----------
    N. Chen, J. Zhu and E. P. Xing (2010). Predictive subspace learning for multi-view data: a large margin approach.
    NIPS.
    """

    n_components: int = 50
    _: KW_ONLY
    C: float = 0.01
    loss: Literal["squared_hinge", "hinge"] = "squared_hinge"
    generative_weight: float | Literal["auto"] = "auto"
    max_iter: int = 200
    tol: float = 1e-4
    random_state: Any = None

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Learn hidden units and classifier together."""
        rows, y = validate_data(self, X, y, dtype=np.float64, ensure_min_samples=2)
        check_classification_targets(y)
        self.classes_, labels = np.unique(y, return_inverse=True)
        K = int(self.n_components)
        self.visible_ = GaussianUnits.of(rows, K)
        t = self.visible_.statistic(rows)
        r = MARGIN_SHARE * self.C if self.generative_weight == "auto" else float(self.generative_weight)
        problem = MarginProblem(t, labels, len(self.classes_), float(self.C), self.loss == "squared_hinge", r)
        start = self._start(t, K)
        multipliers: list[Floats | None] = [None]  # multipliers of the previous point, for warm starts

        def evaluate(flat: Floats) -> tuple[float, Floats, Any]:
            value, gradient, machine = problem.evaluate(flat, multipliers[0])
            if machine is not None:
                multipliers[0] = machine.multipliers
            return value, gradient, machine

        unit = len(rows) * max(r, float(self.C))
        flat, machine, self.objectives_ = minimize(evaluate, start.ravel(), int(self.max_iter), self.tol * unit)
        self.n_iter_ = max(len(self.objectives_) - 1, 1)
        self.components_ = flat.reshape(start.shape).T
        self.coef_features_, self.intercept_ = machine.weights[:, :K], machine.weights[:, K]
        return self

    def _start(self, t: Floats, K: int) -> Floats:
        """Return maximum-likelihood weights, and small random ones for the remaining hidden units."""
        weights, rng = likeliest_weights(t, K), check_random_state(self.random_state)
        weak = np.flatnonzero(~np.any(weights, axis=0))
        directions = spectrum(t, K)[1]
        spare = directions[:, weak[weak < directions.shape[1]]]
        noise = rng.standard_normal((t.shape[1], len(weak) - spare.shape[1])) / np.sqrt(t.shape[1])
        weights[:, weak] = SHORT * np.hstack([spare, noise])
        largest = np.linalg.norm(weights, ord=2)
        return weights * min(1.0, np.sqrt(0.99) / max(largest, SHORT))

    def _class_scores(self, X: ArrayLike) -> Floats:
        return self.transform(X) @ self.coef_features_.T + self.intercept_
