"""
A model of your own
===================

Supervised probabilistic principal components. The model has features ``z ~ N(0, I)`` and samples
``x ~ N(W z, sigma² I)``; its loadings ``W`` are learned together with a max-margin classifier on the expected features.
:doc:`/adding_a_model` explains it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, TransformerMixin, _fit_context
from sklearn.callback import CallbackSupportMixin, with_callbacks
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from sklearn.pipeline import make_pipeline
from sklearn.svm import LinearSVC
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from regbayes._registry import Saveable
from regbayes._types import Floats, Reals
from regbayes.engine import AbsoluteChange, FitResult
from regbayes.engine.source import ArraySource, Samples, Source
from regbayes.estimators._bases import (
    NOT_NEGATIVE,
    POSITIVE,
    FitReporter,
    LatentModel,
    encode_classes,
    generator,
    pick_classes,
    warn_of_status,
)
from regbayes.joint.descent import DescentOptions, fit_joint
from regbayes.joint.model import Inferred, JointModel, RowSums
from regbayes.joint.problem import JointProblem
from regbayes.kernels.arrays import gather, sum_products, to_device
from regbayes.margins.head import Head, LinearHead, Tolerance
from regbayes.margins.targets import Classes, zero_one_cost
from regbayes.persistence import persistable

# --- the model: parameters, sums over samples, and the methods of a joint model


@persistable(name="new_model.Params")
@dataclass(frozen=True)
class Params:
    """What is learned, and what inference needs in addition."""

    loadings: Floats  # (D, K): W
    noise_variance: float  # sigma²

    @property
    def precision(self) -> Floats:
        """``M = W'W + sigma² I``: times 1 / sigma², the posterior precision of a row's features, shape (K, K)."""
        return self.loadings.T @ self.loadings + self.noise_variance * np.eye(self.loadings.shape[1])


@dataclass(frozen=True)
class Stats(RowSums):
    """Sums over rows that the likelihood is made of."""

    n_rows: float
    squares: float  # of |x|²
    explained: float  # of x'W M^-1 W'x


@dataclass(frozen=True)
class Pulled(RowSums):
    """Sums over rows that the gradient is made of; h is the gradient of J by W'x, M held fixed."""

    cross: Floats  # (D, K): of x h'
    inner: Floats  # (K, K): of z h' + h z', the likelihood's part once


@dataclass(frozen=True)
class PredictivePCA(JointModel[Any, Params, Stats, Pulled]):
    """The likelihood of centered samples, as a term of J with a weight. Descent moves the loadings."""

    weight: float

    def infer(self, rows: Any, params: Params) -> Inferred[Stats]:
        projected = rows @ to_device(params.loadings, rows)
        features = projected @ to_device(np.linalg.inv(params.precision), rows)
        sums = sum_products(rows, rows), sum_products(projected, features)
        return Inferred(features, Stats(rows.shape[0], *map(float, sums)))

    def pull_back(self, rows: Any, params: Params, inferred: Inferred[Stats], gradient: Any) -> Pulled:
        z = inferred.features
        own = -self.weight / params.noise_variance * z
        if gradient is None:
            return Pulled(*gather(rows.T @ own, z.T @ own))
        h = gradient @ to_device(np.linalg.inv(params.precision), rows)
        return Pulled(*gather(rows.T @ (own + h), z.T @ own + z.T @ h + h.T @ z))

    def terms(self, params: Params, stats: Stats) -> dict[str, float]:
        (D, K), noise = params.loadings.shape, params.noise_variance
        log_det = np.linalg.slogdet(params.precision)[1] + (D - K) * np.log(noise)
        cost = 0.5 * stats.n_rows * (D * np.log(2 * np.pi) + log_det) + 0.5 * (stats.squares - stats.explained) / noise
        return {"likelihood": self.weight * float(cost)}

    def gradient(self, params: Params, stats: Stats, pulled: Pulled) -> Floats:
        determinant = self.weight * stats.n_rows * np.linalg.inv(params.precision)
        return pulled.cross + params.loadings @ (determinant - pulled.inner)

    def position(self, params: Params) -> Floats:
        return params.loadings

    def move(self, params: Params, position: Reals) -> Params:
        return replace(params, loadings=position)


# --- the fit: a classifier head on the features, and the optimization that all models share


@persistable(name="new_model.State")
@dataclass(frozen=True)
class State:
    """State of a fit."""

    params: Params
    head: LinearHead | None  # None without margins


def class_head(block: Samples, n_classes: int, C: float) -> Head:
    """Return the head of a block of samples, whose targets are numbers of classes."""
    assert block.y is not None
    return Head(Classes(block.y, zero_one_cost(n_classes), np.full(len(block), C)), squared=True)


def fit(
    source: Source,
    head_of: Callable[[Samples], Head] | None,
    start: Params,
    *,
    weight: float,
    max_iter: int,
    tol: float,
    callbacks: Sequence[Callable[[Any], bool | None]] = (),
) -> FitResult[State]:
    """Minimize J from initial loadings, until it decreases by less than ``tol`` per sample."""
    problem = JointProblem.of(PredictivePCA(weight), source, head_of, DescentOptions())
    result: FitResult[Any] = fit_joint(
        problem,
        start,
        stop=AbsoluteChange(tol * len(source), patience=3),
        max_iter=max_iter,
        callbacks=callbacks,
        view=lambda search: State(search.at.params, search.at.head and search.at.head.head),
    )
    at, fitted = result.state.at, None
    if head_of is not None:
        fitted = problem.solve(problem.infer(at.params), at.warm_start, Tolerance(gap=1e-6, max_epochs=2000.0)).head
    return replace(result, state=State(at.params, fitted))


# --- the scikit-learn estimator


@persistable(name="new_model.PredictivePCAClassifier", skip=("_skl_callbacks",))
class PredictivePCAClassifier(Saveable, CallbackSupportMixin, TransformerMixin, ClassifierMixin, BaseEstimator):
    """Linear classifier on latent features that also reconstruct X, with weight ``generative_weight``."""

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **LatentModel._parameter_constraints,
        "C": [NOT_NEGATIVE],
        "generative_weight": [POSITIVE],
        "noise_variance": [POSITIVE],
    }

    def __init__(
        self,
        n_components: int = 5,
        *,
        C: float = 0.1,
        generative_weight: float = 0.01,
        noise_variance: float = 1.0,
        max_iter: int = 200,
        tol: float = 1e-4,
        random_state: Any = None,
        verbose: int = 0,
    ) -> None:
        self.n_components = n_components
        self.C = C
        self.generative_weight = generative_weight
        self.noise_variance = noise_variance
        self.max_iter = max_iter
        self.tol = tol
        self.random_state = random_state
        self.verbose = verbose

    @with_callbacks
    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Learn loadings and classifier together."""
        X, y = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(y)
        self.classes_, codes = encode_classes(self, y)
        self.mean_ = X.mean(axis=0)
        loadings = 0.1 * generator(self.random_state).standard_normal((X.shape[1], self.n_components))
        start = Params(loadings, float(self.noise_variance))
        head_of = partial(class_head, n_classes=len(self.classes_), C=float(self.C))
        options = {"weight": self.generative_weight, "max_iter": self.max_iter, "tol": self.tol}
        with FitReporter(self, self.max_iter, {"X": X, "y": y}, self._attributes, self.verbose) as reporter:
            result = fit(ArraySource(Samples(X - self.mean_, codes)), head_of, start, **options, callbacks=[reporter])
            vars(self).update(self._attributes(result.state), trace_=result.trace, n_iter_=result.n_iter)
        warn_of_status(self, result)
        return self

    def _attributes(self, state: State) -> dict[str, Any]:
        return {"components_": state.params.loadings.T, "_state": state}

    def transform(self, X: ArrayLike) -> Floats:
        """Return the expected features of samples, shape (n_samples, n_components)."""
        check_is_fitted(self)
        X = validate_data(self, X, dtype=np.float64, reset=False)
        return PredictivePCA(self.generative_weight).infer(X - self.mean_, self._state.params).features

    def decision_function(self, X: ArrayLike) -> Floats:
        """Return the scores of all classes, or the difference between two."""
        features = self.transform(X)
        scores = self._state.head.scores(features)
        return scores[:, 1] - scores[:, 0] if scores.shape[1] == 2 else scores

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Predict the class of each sample."""
        return pick_classes(self.decision_function(X), self.classes_)


def main() -> None:
    """Compare joint and two-stage fits on half of the digits."""
    X, y = load_digits(return_X_y=True)
    X = (X - X.mean(axis=0)) / X.std()
    train, test = slice(None, None, 2), slice(1, None, 2)
    print("features  PCA, then SVM  together")
    for K in (3, 5, 10):
        two_steps = make_pipeline(PCA(K), LinearSVC(max_iter=10_000)).fit(X[train], y[train])
        model = PredictivePCAClassifier(K, noise_variance=0.5, random_state=0).fit(X[train], y[train])
        print(f"{K:8d}  {two_steps.score(X[test], y[test]):13.3f}  {model.score(X[test], y[test]):8.3f}")
    print(f"with {K} features, after {model.n_iter_} steps:")
    for name, values in model.trace_.terms.items():
        print(f"  {name:10s} {values[0]:8.1f} -> {values[-1]:8.1f}")
    print(f"  J rose {model.trace_.rises.count} times")


if __name__ == "__main__":
    main()
