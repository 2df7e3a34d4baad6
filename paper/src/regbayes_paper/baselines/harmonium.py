"""Harmoniums with Gaussian hidden units, without labels (EFH) or with labels (MMH).

Visible units of each kind have a *base*, their distribution without hidden units. Their *statistic* t(x) has mean zero
and identity covariance under the base. Hidden units depend on x only through the statistic: ``E[h | x] = W' t(x)``. The
mean-field log-normalizer is ``-1/2 log det(I - W'W)``, exact for Gaussian units (docs/math.md, section 6).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import eigh
from scipy.special import gammaln, xlogy
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
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
    """Real-valued units."""

    mean: Floats  # (d,)
    scale: Floats  # (d,): standard deviation given the hidden units

    def statistic(self, x: Floats) -> Floats:
        """Return ``(x - mean) / scale``."""
        return (x - self.mean) / self.scale

    def log_base(self, x: Floats) -> Floats:
        """Return the log-density under independent normal distributions, (n,)."""
        constant = np.log(self.scale).sum() + 0.5 * len(self.scale) * np.log(2.0 * np.pi)
        return -0.5 * np.square(self.statistic(x)).sum(axis=1) - constant


@dataclass(frozen=True)
class BernoulliUnits:
    """Binary units."""

    mean: Floats  # (d,), between 0 and 1

    def statistic(self, x: Floats) -> Floats:
        """Return ``(x - mean) / standard deviation``."""
        return (x - self.mean) / np.sqrt(self.mean * (1.0 - self.mean))

    def log_base(self, x: Floats) -> Floats:
        """Return the log-probability under independent Bernoulli distributions, (n,)."""
        return x @ np.log(self.mean) + (1.0 - x) @ np.log1p(-self.mean)


@dataclass(frozen=True)
class PoissonUnits:
    """Counts given their total N in a sample; without conditioning on N the model has no normalizer."""

    mean: Floats  # (d,): share of each column

    def statistic(self, x: Floats) -> Floats:
        """Return ``(x - N mean) / sqrt(N mean)``, which is zero for a sample without counts."""
        roots = np.sqrt(x.sum(axis=1, keepdims=True))
        counts = np.divide(x, roots, out=np.zeros_like(x), where=roots > 0)
        return (counts - roots * self.mean) / np.sqrt(self.mean)

    def log_base(self, x: Floats) -> Floats:
        """Return the log-probability of multinomial counts, (n,)."""
        choices = gammaln(x.sum(axis=1) + 1.0) - gammaln(x + 1.0).sum(axis=1)
        return choices + xlogy(x, self.mean).sum(axis=1)


Units = GaussianUnits | BernoulliUnits | PoissonUnits


def make_units(kind: str, x: Floats, noise_variance: float | str, n_components: int) -> Units:
    """Return units of a kind with the base fitted to samples."""
    if kind == "bernoulli":
        if np.any((x != 0) & (x != 1)):
            raise ValueError("X must hold zeros and ones in the columns of bernoulli units.")
        return BernoulliUnits((x.sum(axis=0) + 1.0) / (len(x) + 2.0))
    if kind == "poisson":
        if np.any((x < 0) | (x != np.floor(x))):
            raise ValueError("X must hold counts in the columns of poisson units.")
        return PoissonUnits((x.sum(axis=0) + 1.0) / (x.sum() + x.shape[1]))
    if kind != "gaussian":
        raise ValueError(f"visible must name gaussian, bernoulli or poisson units; got {kind!r}.")
    variance = float(x.var(axis=0).mean())
    if noise_variance == "residual":  # maximum likelihood: residual variance of principal components
        rest = max(x.shape[1] - n_components, 0)
        left = variance * x.shape[1] - float(spectrum(x - x.mean(axis=0), n_components)[0].sum())
        noise = max(left / rest if rest else 0.0, NOISE_FLOOR * variance)
    else:
        noise = 0.5 * variance if noise_variance == "half" else float(noise_variance)
    return GaussianUnits(x.mean(axis=0), np.full(x.shape[1], np.sqrt(noise) if noise > 0 else 1.0))


@dataclass(frozen=True)
class Visible:
    """All visible units: one or more views, each with its own columns."""

    columns: tuple[Integers, ...]
    units: tuple[Units, ...]

    @classmethod
    def of(cls, visible: Any, X: Floats, noise_variance: float | str, n_components: int) -> Visible:
        """Read the parameter ``visible``."""
        views = [(visible, slice(None))] if isinstance(visible, str) else visible
        columns = tuple(np.arange(X.shape[1])[where] for _, where in views)
        if not np.array_equal(np.sort(np.concatenate(columns)), np.arange(X.shape[1])):
            raise ValueError("visible must put every column of X into exactly one view.")
        kinds = [kind for kind, _ in views]
        pairs = zip(kinds, columns, strict=True)
        return cls(columns, tuple(make_units(kind, X[:, c], noise_variance, n_components) for kind, c in pairs))

    def statistic(self, X: Floats) -> Floats:
        """Return ``t(x)`` of all columns, (n, D)."""
        found = np.empty_like(X)
        for columns, units in zip(self.columns, self.units, strict=True):
            found[:, columns] = units.statistic(X[:, columns])
        return found

    def log_base(self, X: Floats) -> Floats:
        """Return the log-density under the base, (n,)."""
        pairs = zip(self.columns, self.units, strict=True)
        return np.sum([units.log_base(X[:, columns]) for columns, units in pairs], axis=0)


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
    fit_intercept: bool
    generative_weight: float

    def solve(self, hidden: Floats, start: Floats | None = None, tol: float = INNER_TOL) -> Any:
        """Fit the classifier to hidden units."""
        rows = np.column_stack([hidden, np.ones(len(hidden))]) if self.fit_intercept else hidden
        cost, C = 1.0 - np.eye(self.n_classes), np.full(len(rows), self.C)
        return solve_classes(rows, self.labels, cost, C, squared=self.squared, start=start, tol=tol)

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


class _Harmonium(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Methods of both harmoniums."""

    def transform(self, X: ArrayLike) -> Floats:
        """Return the expected hidden units of samples, shape (n_samples, n_components)."""
        check_is_fitted(self)
        return self.visible_.statistic(validate_data(self, X, dtype=np.float64, reset=False)) @ self.components_.T

    def score_samples(self, X: ArrayLike) -> Floats:
        """Return the mean-field log-density of each sample, exact for Gaussian columns."""
        hidden = self.transform(X)
        base = self.visible_.log_base(np.asarray(X, dtype=np.float64))
        return base + 0.5 * np.square(hidden).sum(axis=1) - log_normalizer(self.components_.T)

    @property
    def _n_features_out(self) -> int:
        return len(self.components_)


@dataclass(eq=False, repr=False)
class ExponentialFamilyHarmonium(_Harmonium):
    """Exponential family harmonium (EFH), fitted by mean field.

    With Gaussian columns only, the model is probabilistic principal component analysis.

    Parameters
    ----------
    n_components : int, default=50
        Number of hidden units.
    visible : {"gaussian", "bernoulli", "poisson"} or sequence of (kind, columns), default="gaussian"
        Kind of the columns of X: real values, binary values or counts. Pass pairs if views have different kinds.
    noise_variance : float, "residual" or "half", default="residual"
        Variance of Gaussian columns given the hidden units: that of the PCA residuals, or half of the variance.

    References
    ----------
    M. Welling, M. Rosen-Zvi and G. Hinton (2004). Exponential family harmoniums with an application to information
    retrieval. NIPS.
    """

    n_components: int = 50
    _: KW_ONLY
    visible: Any = "gaussian"
    noise_variance: float | str = "residual"

    def fit(self, X: ArrayLike, y: Any = None) -> Self:
        """Learn the weights; y is ignored."""
        rows = validate_data(self, X, dtype=np.float64, ensure_min_samples=2)
        self.visible_ = Visible.of(self.visible, rows, self.noise_variance, int(self.n_components))
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
    fit_intercept : bool, default=True
        Whether to fit an intercept, which is penalized.
    visible
        As in `ExponentialFamilyHarmonium`.
    noise_variance : float, "half" or "residual", default="half"
        As in `ExponentialFamilyHarmonium`.
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
    fit_intercept: bool = True
    visible: str | Sequence[tuple[str, Any]] = "gaussian"
    noise_variance: float | str = "half"
    max_iter: int = 200
    tol: float = 1e-4
    random_state: Any = None

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Learn hidden units and classifier together."""
        rows, y = validate_data(self, X, y, dtype=np.float64, ensure_min_samples=2)
        check_classification_targets(y)
        self.classes_, labels = np.unique(y, return_inverse=True)
        K = int(self.n_components)
        self.visible_ = Visible.of(self.visible, rows, self.noise_variance, K)
        t = self.visible_.statistic(rows)
        r = MARGIN_SHARE * self.C if self.generative_weight == "auto" else float(self.generative_weight)
        squared, intercept = self.loss == "squared_hinge", bool(self.fit_intercept)
        problem = MarginProblem(t, labels, len(self.classes_), float(self.C), squared, intercept, r)
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
        self.coef_features_ = machine.weights[:, :K]
        self.intercept_ = machine.weights[:, K] if self.fit_intercept else np.zeros(len(self.classes_))
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
