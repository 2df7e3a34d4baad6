"""Bases of the estimators: a fit that reports what it does, latent features of rows, and classifiers on them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import (
    BaseEstimator,
    ClassifierMixin,
    ClassNamePrefixFeaturesOutMixin,
    TransformerMixin,
    _fit_context,
)
from sklearn.callback import CallbackSupportMixin, with_callbacks
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_array, check_is_fitted, validate_data

from regbayes._registry import Saveable
from regbayes._types import Floats, Integers
from regbayes.engine import FitResult
from regbayes.estimators._classes import chosen_classes, coded_classes, cost_matrix, weights_by_class
from regbayes.estimators._common import drop_weightless, labeled_rows, one_blas_thread, row_weights
from regbayes.estimators._reporting import FitReporter, warn_of_status
from regbayes.margins.targets import Classes
from regbayes.models.ilsvm.model import UNLABELED

OPTIONAL_ATTRIBUTES = ("coef_inputs_", "probabilities_", "response_variance_")  # that not every fit has


class IterativeEstimator(Saveable, CallbackSupportMixin, BaseEstimator):
    """An estimator whose fit is a run of the engine."""

    def _run(
        self,
        fit: Callable[..., FitResult[Any]],
        attributes: Callable[[Any], dict[str, Any]],
        max_iter: int | Mapping[str, int | None],
        data: Mapping[str, Any],
        verbose: int = 0,
    ) -> FitResult[Any]:
        """Run a fit with the callbacks it is given; set the fitted attributes and warn of what the user should know.

        Parameters
        ----------
        fit : callable
            Takes the engine's ``callbacks`` by that name, and returns the result.
        attributes : callable
            From the engine's state to fitted attributes.
        max_iter, data, verbose
            As in `FitReporter`.
        """
        with one_blas_thread(), FitReporter(self, max_iter, data, attributes, verbose) as reporter:
            result = fit(callbacks=[reporter])
            self._set_fitted(attributes(result.state), result)
        warn_of_status(self, result)
        return result

    def _set_fitted(self, attributes: Mapping[str, Any], result: FitResult[Any]) -> None:
        """Set the fitted attributes and the history, and take away attributes that only an earlier fit had."""
        for name in OPTIONAL_ATTRIBUTES:
            if name not in attributes and hasattr(self, name):
                delattr(self, name)
        for name, value in attributes.items():
            setattr(self, name, value)
        self.trace_, self.n_iter_ = result.trace, result.n_iter


def fit_data(X: Any, y: Any = None, **metadata: Any) -> dict[str, Any]:
    """Return what callbacks may ask for."""
    given = {name: value for name, value in metadata.items() if value is not None}
    found = {"X": X, "y": y, "metadata": given or None}
    return {name: value for name, value in found.items() if value is not None}


class LatentModel(ClassNamePrefixFeaturesOutMixin, TransformerMixin, IterativeEstimator):
    """Latent features of rows; the state of the fitted model is in ``_state``."""

    def _valid_rows(self, X: ArrayLike) -> Floats:
        check_is_fitted(self, "_state")
        return validate_data(self, X, dtype=np.float64, reset=False)

    def _valid_features(self, X: ArrayLike) -> Floats:
        check_is_fitted(self, "_state")
        features: Floats = check_array(X, dtype=np.float64)
        if features.shape[1] != self._n_features_out:
            raise ValueError(f"X has {features.shape[1]} features, but inverse_transform takes {self._n_features_out}")
        return features

    @property
    def _n_features_out(self) -> int:
        return len(self.components_)


class UnsupervisedFeatures(LatentModel):
    """Latent features that are learned without labels."""

    @abstractmethod
    def _learn(self, X: Floats, weights: Floats | None, given: Floats, data: dict[str, Any]) -> None:
        """Set the fitted attributes, from the rows that count; ``given`` are all of them, ``data`` is for callbacks."""

    @with_callbacks
    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: ArrayLike, y: Any = None, sample_weight: ArrayLike | None = None) -> Self:
        """Learn the features of rows.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        y : ignored
        sample_weight : array-like of shape (n_samples,), default=None
            How often each row counts: 2 is the row twice, 0 is the row left out.

        Returns
        -------
        self
        """
        given = validate_data(self, X, dtype=np.float64, ensure_min_samples=2)
        rows, _, weights = drop_weightless(given, None, row_weights(sample_weight, given))
        self._learn(rows, weights, given, fit_data(given, sample_weight=sample_weight))
        return self


@dataclass(frozen=True)
class LabeledRows:
    """What a classifier learns from: the rows that count, and their classes as numbers."""

    X: Floats  # (n, d)
    codes: Integers  # (n,): UNLABELED where there is none
    cost: Floats  # (n_classes, n_classes): of a wrong class, a row per true one
    row_weights: Floats | None  # (n,): how often each row counts; None where all count once
    label_weights: Floats  # (n,): factors on C; those of the rows are in them
    given: Floats  # all rows, those that do not count among them
    data: dict[str, Any]  # what the user gave, for callbacks

    @property
    def counts(self) -> Floats:
        """How often each row counts, (n,)."""
        return np.ones(len(self.X)) if self.row_weights is None else self.row_weights

    def targets(self, C: float) -> Classes:
        """Return the margins of rows that all have a label."""
        return Classes(self.codes, self.cost, C * self.label_weights)


class LatentClassifier(ClassifierMixin, LatentModel):
    """A large-margin classifier that is learned together with what it sees of rows."""

    unlabeled: Any = None  # no value of y stands for "no label"

    @abstractmethod
    def _learn(self, rows: LabeledRows) -> None:
        """Set the fitted attributes."""

    @abstractmethod
    def _class_scores(self, X: ArrayLike) -> Floats:
        """Return a score for every class, (n, n_classes)."""

    @with_callbacks
    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Learn what is latent and the classifier together.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        y : array-like of shape (n_samples,)
            Labels.
        sample_weight : array-like of shape (n_samples,), default=None
            How often each row counts, in all that is learned: 2 is the row twice, 0 is the row left out.

        Returns
        -------
        self
        """
        given, y = validate_data(self, X, y, dtype=np.float64, ensure_min_samples=2)
        rows, labels, weights = drop_weightless(given, y, row_weights(sample_weight, given))
        check_classification_targets(labels)
        labeled = labeled_rows(labels, self.unlabeled)
        self.classes_, found = coded_classes(self, labels[labeled])
        codes = np.full(len(labels), UNLABELED, dtype=np.int64)
        codes[labeled] = found
        by_class = weights_by_class(
            self.class_weight, self.classes_, found, None if weights is None else weights[labeled]
        )
        label_weights = np.ones(len(rows)) if weights is None else weights.copy()
        label_weights[labeled] *= by_class[found]
        cost = cost_matrix(self.cost, len(self.classes_))
        data = fit_data(given, y, sample_weight=sample_weight)
        self._learn(LabeledRows(rows, codes, cost, weights, label_weights, given, data))
        return self

    def decision_function(self, X: ArrayLike) -> Floats:
        """Return the score of each class, shape (n_samples, n_classes), or (n_samples,) for two classes."""
        scores = self._class_scores(X)
        return scores[:, 1] - scores[:, 0] if len(self.classes_) == 2 else scores

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Return the class of each row, shape (n_samples,)."""
        return chosen_classes(self.decision_function(X), self.classes_)


def binary_difference(attributes: dict[str, Any]) -> dict[str, Any]:
    """Return weights of classes, which are their first axis; those of two classes as one difference."""
    return {name: values[1:] - values[:1] if len(values) == 2 else values for name, values in attributes.items()}
