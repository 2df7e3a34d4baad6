"""The scikit-learn shell: validate, delegate, unpack. In the package it would lie in ``regbayes/estimators/``."""

from __future__ import annotations

from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, _fit_context
from sklearn.callback import CallbackSupportMixin, with_callbacks
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import check_is_fitted, validate_data

from regbayes._registry import Saveable
from regbayes.estimators._classes import chosen_classes, coded_classes
from regbayes.estimators._common import LATENT_CONSTRAINTS, POSITIVE
from regbayes.estimators._reporting import FitReporter, warn_of_status
from regbayes.persistence import persistable
from relevant_inputs.fit import fit
from relevant_inputs.predict import scores
from relevant_inputs.state import Data, Floats, Settings, State


@persistable(name="relevant_inputs.RelevantInputsClassifier", skip=("_skl_callbacks",))
class RelevantInputsClassifier(Saveable, CallbackSupportMixin, ClassifierMixin, BaseEstimator):
    """Linear classifier of two classes whose inputs have precisions of their own: those that do not matter fade.

    Parameters
    ----------
    C : float, default=1.0
        Price of a margin violation.
    shape, rate : float, default=1.0 and 0.01
        Gamma prior of the weights' precisions. The smaller the rate, the closer to zero an input that does not matter.
    max_iter : int, default=100
        Iterations at most.
    tol : float, default=1e-5
        Relative change of the objective at which to stop.
    verbose : int, default=0
        Whether to show a progress bar.

    Attributes
    ----------
    coef_ : array of shape (n_features,)
        Expected weights of the inputs less their means.
    intercept_ : float
    relevance_ : array of shape (n_features,)
        Prior standard deviation of each weight as the data put it.
    classes_ : array of shape (2,)
    trace_ : Trace
        Course of the objective and its named terms.
    n_iter_ : int
    n_features_in_, feature_names_in_
        As in scikit-learn.
    """

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        "C": [POSITIVE],
        "shape": [POSITIVE],
        "rate": [POSITIVE],
        **{name: LATENT_CONSTRAINTS[name] for name in ("max_iter", "tol", "verbose")},
    }

    def __init__(
        self,
        C: float = 1.0,
        *,
        shape: float = 1.0,
        rate: float = 0.01,
        max_iter: int = 100,
        tol: float = 1e-5,
        verbose: int = 0,
    ) -> None:
        self.C = C
        self.shape = shape
        self.rate = rate
        self.max_iter = max_iter
        self.tol = tol
        self.verbose = verbose

    @with_callbacks
    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Learn which inputs matter, and how much."""
        X, y = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(y)
        self.classes_, codes = coded_classes(self, y)
        if len(self.classes_) > 2:
            raise ValueError(
                f"Only binary classification is supported. The type of the target is {type_of_target(y)}: "
                f"y has {len(self.classes_)} classes"
            )
        self._mean = X.mean(axis=0)
        data = Data(_with_constant(X - self._mean), 2.0 * codes - 1.0)
        settings = Settings(float(self.C), float(self.shape), float(self.rate))
        with FitReporter(self, self.max_iter, {"X": X, "y": y}, self._attributes, self.verbose) as reporter:
            result = fit(data, settings, max_iter=self.max_iter, tol=self.tol, callbacks=[reporter])
            vars(self).update(self._attributes(result.state), trace_=result.trace, n_iter_=result.n_iter)
        warn_of_status(self, result)
        return self

    def _attributes(self, state: State) -> dict[str, Any]:
        return {
            "_state": state,
            "coef_": state.mean[:-1],
            "intercept_": float(state.mean[-1]),
            "relevance_": 1 / np.sqrt(state.precision[:-1]),
        }

    def decision_function(self, X: ArrayLike) -> Floats:
        """Return the score of each row, shape (n_samples,); positive for the second class."""
        check_is_fitted(self)
        X = validate_data(self, X, dtype=np.float64, reset=False)
        return scores(self._state, _with_constant(X - self._mean))

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Return the class of each row."""
        return chosen_classes(self.decision_function(X), self.classes_)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        return tags


def _with_constant(X: Floats) -> Floats:
    """Rows with a constant input, whose weight is the intercept."""
    return np.column_stack([X, np.ones(len(X))])
