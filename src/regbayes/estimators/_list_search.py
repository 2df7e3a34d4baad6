"""Searches whose constructor has the parameters of one model, some of them as lists of values to try."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from inspect import signature
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.metaestimators import available_if

from regbayes._types import Flags, Floats
from regbayes.estimators._calibration import log_of
from regbayes.estimators._search import (
    Fold,
    Samples,
    accepted,
    check_lists,
    make_plan,
    resolve_scorers,
)
from regbayes.estimators.path_search import BaseSearch, OnResult, copy_tags, has_probabilities
from regbayes.estimators.search_records import FoldRecord, is_number

OF_THE_SEARCH = {"random_state", "n_jobs", "verbose"}  # these are the search's own where the model has them too


def list_constraints(model: Any, lists: Mapping[str, str]) -> dict[str, Any]:
    """Return the constraints on the parameters of a search: those of the model, and those that every search has."""
    own = {name: value for name, value in model._parameter_constraints.items() if name not in lists}
    own.pop("warm_start")
    every_list = {listed: ["array-like"] for listed in lists.values()}
    return {**own, **every_list, "cv": ["cv_object"], "scoring": [str, callable, None]}


def counted_rows(weights: Floats | None, n_rows: int) -> Flags:
    """Which rows count at all: a weight of zero leaves a row out, of the fits as of the scores."""
    return np.ones(n_rows, dtype=bool) if weights is None else weights > 0


def keep_frame(given: Any, values: Any) -> Any:
    """Return a data frame as it was given, because the fits learn names from it, and the checked values otherwise."""
    return given if hasattr(given, "columns") else values


class ListSearch(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseSearch):
    """A search over lists of one model's values; what a subclass adds is those lists, its folds and its methods."""

    _model: ClassVar[Any]
    _lists: ClassVar[dict[str, str]]  # parameter of the model -> the list of its values here
    _along: ClassVar[str | None] = "C"
    _descending: ClassVar[bool] = False
    _refit_path: ClassVar[bool] = False  # whether the last fit goes along the path too

    def _make_model(self, random: np.random.RandomState) -> Any:
        """Return the model with all parameters that are not searched; all fits have one seed."""
        own, seed = self.get_params(deep=False), random.randint(np.iinfo(np.int32).max)
        names = signature(self._model).parameters.keys() - self._lists.keys() - OF_THE_SEARCH
        return self._model(random_state=seed, **{name: own[name] for name in names if name in own})

    def transform(self, X: ArrayLike) -> Floats:
        """Return the latent features of rows, inferred without their targets, shape (n_samples, n_components)."""
        return self._best().transform(X)

    @property
    def _n_features_out(self) -> int:
        return self.best_estimator_._n_features_out

    def __sklearn_tags__(self) -> Any:
        return copy_tags(super().__sklearn_tags__(), self._model())

    def _search_lists(
        self,
        model: Any,
        X: Any,
        y: Any,
        folds: Iterable[Fold],
        metadata: Mapping[str, Any],
        *,
        records: Iterable[FoldRecord] | None,
        on_result: OnResult | None,
    ) -> Self:
        """Try all combinations of the lists; methods are given the metadata that they take."""
        given = {name: getattr(self, listed) for name, listed in self._lists.items()}
        grid = {name: [values] if is_number(values) else values for name, values in given.items()}
        check_lists(model, grid, self._lists, self._along, caller=type(self).__name__)
        scorers = resolve_scorers(model, self.scoring)
        metadata = {name: value for name, value in metadata.items() if value is not None}
        of_score = {name: accepted(one or model.score, metadata) for name, one in scorers.items()}
        samples = Samples(X, y, metadata, accepted(model.predict, metadata), of_score)
        plan = make_plan(model, grid, folds, scorers, along=self._along, descending=self._descending)
        return self._search(
            plan, samples, self._lists, records=records, on_result=on_result, along_path=self._refit_path
        )


class ClassifierSearch(ListSearch):
    """A search for classes, or for labels: what it says of rows beside their features."""

    def decision_function(self, X: ArrayLike) -> Floats:
        """Return the score of each class or label, shape (n_samples, n_classes), or (n_samples,) for two classes."""
        return self._best().decision_function(X)

    @available_if(has_probabilities)
    def predict_proba(self, X: ArrayLike) -> Floats:
        """Return the probability of each class or label, shape (n_samples, n_classes) or (n_samples, n_labels).

        The most probable class is that of `predict`; a label that is predicted has a probability above 1/2. See
        ``calibration_``.
        """
        scores = self.decision_function(X)
        return np.asarray(self.calibration_.probabilities(scores))  # one question, or labels of two classes

    @available_if(has_probabilities)
    def predict_log_proba(self, X: ArrayLike) -> Floats:
        """Return the logarithms of `predict_proba`."""
        return np.asarray(log_of(self.predict_proba(X)))
