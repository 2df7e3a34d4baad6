"""Cross-validated searches, one for each model: `ILSVMClassifierCV`, `MedLDAClassifierCV` and others.

A class defines its model, the values to try, and the folds. Its constructor has the model's parameters, with a list of
values in place of each searched one. Its docstring is generated from the model's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from inspect import Parameter, Signature, cleandoc, signature
from numbers import Integral
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin, _fit_context
from sklearn.model_selection import KFold, StratifiedKFold
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import type_of_target
from sklearn.utils.validation import check_consistent_length, column_or_1d

from regbayes._registry import persistable
from regbayes._types import Flags, Floats, Integers
from regbayes.estimators._arrays import bring_targets, refuse_elsewhere
from regbayes.estimators._bases import check_labels, find_labeled, read_rows, row_weights
from regbayes.estimators._folds import DEFAULT_FOLDS, multitask_folds, split_scored
from regbayes.estimators._labels import read_labels
from regbayes.estimators._search import Fold, Samples, accepted, check_lists, make_plan, resolve_scorers
from regbayes.estimators._task_bases import Targets, read_targets
from regbayes.estimators._topics import read_counts
from regbayes.estimators._topics import read_numbers as read_number_targets
from regbayes.estimators.ilsvm import ILSVMClassifier, is_label_matrix, read_numbers, target_shape
from regbayes.estimators.ilsvm_regressor import ILSVMRegressor
from regbayes.estimators.medlda import MedLDAClassifier, MedLDARegressor
from regbayes.estimators.multitask import MultiTaskILSVMClassifier, MultiTaskILSVMRegressor
from regbayes.estimators.path_search import NOT_SAVED, BaseSearch, OnResult, copy_tags
from regbayes.estimators.search_records import FoldRecord

OF_THE_SEARCH = {"cv": None, "scoring": None, "random_state": None, "n_jobs": None, "verbose": 0}
NOT_SEARCHED = {"warm_start", "deterministic"}  # a search sets warm starts along its paths, and runs on the CPU

DOCSTRING = """{about}

Every combination of the listed values is tried on every fold, and the best is fitted to all samples, along its path.

Parameters
----------
{lists}
{parameters}
cv : int, splitter or iterable, default=None
    Folds, as in scikit-learn; 5 by default. Samples without a target, or with a weight of zero, are never scored.
scoring : str, callable or None, default=None
    As in scikit-learn; the model's ``score`` by default. ``cv`` and ``scoring`` may be objects of any class and are
    not saved.
random_state : int, RandomState instance or None, default=None
    Controls the starts, and the folds where the search draws them.
n_jobs : int or None, default=None
    Number of processes over folds and paths, and of threads of the last fit.
verbose : int, default=0
    Whether to show a progress bar with the time left.

Attributes
----------
best_estimator_ : {model}
    Fitted to all samples; its fitted attributes are attributes of the search too.
{chosen}
    The chosen values.
best_params_, best_score_, best_index_, cv_results_, out_of_fold_, calibration_, records_, refit_time_, n_splits_
    As in `PathSearchCV`.

See Also
--------
{model} : One setting.
PathSearchCV : Other parameters, and any estimator.
"""


def _init_of(defaults: Mapping[str, Any]) -> Callable[..., None]:
    """Return a constructor that stores its arguments, with the signature that scikit-learn reads."""
    names = sorted(defaults, key=lambda name: name != "n_components")  # the only positional argument
    kinds = [Parameter.POSITIONAL_OR_KEYWORD] * 2 + [Parameter.KEYWORD_ONLY] * (len(names) - 1)
    own = Signature(
        [
            Parameter(name, kind, default=defaults.get(name, Parameter.empty))
            for name, kind in zip(("self", *names), kinds, strict=True)
        ]
    )

    def __init__(self: Any, *values: Any, **named: Any) -> None:  # noqa: N807 - it becomes one
        bound = own.bind(self, *values, **named)
        bound.apply_defaults()
        vars(self).update({name: value for name, value in bound.arguments.items() if name != "self"})

    __init__.__signature__ = own  # type: ignore[attr-defined]
    return __init__


def _describe_parameters(model: type, names: Iterable[str]) -> list[str]:
    """Return the entries of some parameters in the docstring of a model."""
    section = cleandoc(model.__doc__ or "").partition("Parameters\n----------\n")[2].partition("\n\n")[0]
    found = []
    for entry in re.split(r"\n(?=\S)", section):
        heading, _, text = entry.partition("\n")
        given, colon, kind = heading.partition(" : ")
        kept = [name for name in given.split(", ") if name in names]
        if kept:
            found.append(f"{', '.join(kept)}{colon}{kind}\n{text}")
    return found


class ModelSearch(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseSearch):
    """Base of the cross-validated searches over lists of one model's values."""

    _model: ClassVar[Any]
    _values: ClassVar[Mapping[str, tuple[str, Any]]]  # parameter -> name and default of its list of values
    _along: ClassVar[str | None] = "C"
    _descending: ClassVar[bool] = False
    _lists: ClassVar[dict[str, str]]  # parameter -> name of its list of values
    _shared: ClassVar[list[str]]  # parameters of the model that are not searched

    __metadata_request__score: ClassVar[dict[str, Any]] = {"sample_weight": None}

    def __init__(self, *values: Any, **named: Any) -> None:
        raise NotImplementedError

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "_model" not in vars(cls):
            return
        cls._lists = {name: listed for name, (listed, _) in cls._values.items()}
        given = signature(cls._model).parameters
        cls._shared = [name for name in given if name not in {*cls._lists, *OF_THE_SEARCH, *NOT_SEARCHED}]
        defaults = {
            **dict(cls._values.values()),
            **{name: given[name].default for name in cls._shared},
            **OF_THE_SEARCH,
        }
        cls.__init__ = _init_of(defaults)  # type: ignore[method-assign]
        constraints = cls._model._parameter_constraints
        cls._parameter_constraints = {
            **{name: one for name, one in constraints.items() if name in defaults},
            **{listed: ["array-like"] for listed in cls._lists.values()},
            "cv": ["cv_object"],
            "scoring": [str, callable, None],
        }
        if "n_components" in cls._lists:  # a single number is allowed too
            cls._parameter_constraints["n_components"] = ["array-like", *constraints["n_components"]]
        if cls.__doc__:
            lists = [f"{listed} : sequence, default={default!r}" for listed, default in cls._values.values()]
            texts = [f"    Values of ``{name}``." for name in cls._lists]
            cls.__doc__ = DOCSTRING.format(
                about=cleandoc(cls.__doc__),
                lists="\n".join(f"{heading}\n{text}" for heading, text in zip(lists, texts, strict=True)),
                parameters="\n".join(_describe_parameters(cls._model, cls._shared)),
                model=cls._model.__name__,
                chosen=", ".join(f"{name}_" for name in cls._lists),
            )

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        *,
        records: Iterable[FoldRecord] | None = None,
        on_result: OnResult | None = None,
    ) -> Self:
        """Fit every combination on every fold, and the best one on all samples.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            For MedLDA: word counts, which may be sparse.
        y : array-like of shape (n_samples,) or (n_samples, n_outputs)
        sample_weight : array-like of shape (n_samples,), default=None
            How often each sample counts, in the fits and in their scores.
        records, on_result
            As in `PathSearchCV.fit`: records of earlier fits, and a function that is called with each record.

        Returns
        -------
        self
        """
        refuse_elsewhere(X, type(self).__name__)
        rows, targets, labeled = self._read(X, y)
        weights = row_weights(sample_weight, rows)
        random = check_random_state(self.random_state)
        model = self._make_model(random)
        scored = labeled if weights is None else labeled & (weights > 0)
        folds = split_scored(self._splitter(targets, random), targets, scored, classifier=True)
        return self._search_lists(model, X, rows, targets, folds, {"sample_weight": weights}, records, on_result)

    def _read(self, X: Any, y: Any) -> tuple[Any, NDArray[Any], Flags]:
        """Return the validated samples and targets, and which samples have a target."""
        raise NotImplementedError

    def _splitter(self, y: NDArray[Any], random: np.random.RandomState) -> Any:
        return self.cv

    def _make_model(self, random: np.random.RandomState) -> Any:
        """Return the model with all parameters that are not searched; all fits have the same seed."""
        seed = random.randint(np.iinfo(np.int32).max)
        return self._model(random_state=seed, **{name: getattr(self, name) for name in self._shared})

    def _search_lists(
        self,
        model: Any,
        X: Any,
        rows: Any,
        y: Any,
        folds: Iterable[Fold],
        metadata: Mapping[str, Any],
        records: Iterable[FoldRecord] | None,
        on_result: OnResult | None,
    ) -> Self:
        """Try all combinations of the lists; each method receives the metadata that it accepts."""
        values = {name: getattr(self, listed) for name, listed in self._lists.items()}
        grid = {name: [value] if np.ndim(value) == 0 else value for name, value in values.items()}
        check_lists(model, grid, self._lists, self._along, caller=type(self).__name__)
        scorers = resolve_scorers(model, self.scoring)
        metadata = {name: value for name, value in metadata.items() if value is not None}
        of_score = {name: accepted(one or model.score, metadata) for name, one in scorers.items()}
        X = X if hasattr(X, "columns") else rows  # the fits read column names from a data frame
        samples = Samples(X, y, metadata, accepted(model.predict, metadata), of_score)
        plan = make_plan(model, grid, folds, scorers, along=self._along, descending=self._descending)
        return self._search(plan, samples, self._lists, records=records, on_result=on_result)

    def _searched(self) -> Any:
        return vars(self).get("best_estimator_", self._model)

    def transform(self, X: ArrayLike) -> Floats:
        """Return the features of the best estimator, in the container that ``set_output`` chooses."""
        return self._best().transform(X)

    @property
    def _n_features_out(self) -> int:
        return self.best_estimator_._n_features_out

    def __sklearn_tags__(self) -> Any:
        return copy_tags(super().__sklearn_tags__(), self._model())


@persistable(skip=NOT_SAVED)
class ILSVMClassifierCV(ModelSearch):
    """Choose the parameters of `ILSVMClassifier` by cross-validation.

    Paths go from the largest C down, and each fit is warm-started from the previous one. A smaller C keeps fewer
    features, and features that a fit pruned do not return. The final fit follows the path of the best combination too.
    """

    _model = ILSVMClassifier
    _values = {  # noqa: RUF012 - constant
        "C": ("Cs", (0.1, 0.3, 1.0, 3.0)),
        "alpha": ("alphas", (2.0,)),
        "temperature": ("temperatures", ("auto",)),
        "generative_weight": ("generative_weights", ("auto",)),
        "include_inputs": ("include_inputs", (False,)),
    }
    _descending = True

    def _read(self, X: Any, y: Any) -> tuple[Any, NDArray[Any], Flags]:
        if is_label_matrix(y):
            rows = read_rows(self, X, ensure_min_samples=2)
            labels = read_numbers(y, rows)
            missing: Flags = np.isnan(labels)
            if self.unlabeled is not None:
                missing |= labels == self.unlabeled
            return rows, labels, np.asarray(~missing.all(axis=1), dtype=bool)
        rows, labels = read_rows(self, X, y, ensure_min_samples=2)
        labeled = find_labeled(labels, self.unlabeled)
        check_labels(labels[labeled])
        return rows, labels, labeled

    def _splitter(self, y: NDArray[Any], random: np.random.RandomState) -> Any:
        is_number = self.cv is None or isinstance(self.cv, Integral)
        return KFold(self.cv or DEFAULT_FOLDS) if y.ndim == 2 and is_number else self.cv

    def feature_probabilities(self, X: ArrayLike) -> Floats:
        """Return the probabilities that features are not zero, shape (n_samples, n_components)."""
        return self._best().feature_probabilities(X)


@persistable(skip=NOT_SAVED)
class ILSVMRegressorCV(ModelSearch):
    """Choose the parameters of `ILSVMRegressor` by cross-validation.

    Paths are as in `ILSVMClassifierCV`. Folds are random by default.
    """

    _model = ILSVMRegressor
    _values = {  # noqa: RUF012 - constant
        "C": ("Cs", (0.1, 0.3, 1.0, 3.0)),
        "generative_weight": ("generative_weights", ("auto", 0.03, 0.1)),
        "temperature": ("temperatures", ("auto",)),
    }
    _descending = True

    def _read(self, X: Any, y: Any) -> tuple[Any, NDArray[Any], Flags]:
        rows = read_rows(self, X, ensure_min_samples=2)
        values = read_numbers(y, rows)
        labeled = np.asarray(~np.isnan(values).all(axis=1), dtype=bool)
        return rows, values[:, 0] if len(target_shape(y)) == 1 else values, labeled

    def _splitter(self, y: NDArray[Any], random: np.random.RandomState) -> Any:
        if self.cv is not None and not isinstance(self.cv, Integral):
            return self.cv
        return KFold(self.cv or DEFAULT_FOLDS, shuffle=True, random_state=random.randint(np.iinfo(np.int32).max))

    def feature_probabilities(self, X: ArrayLike) -> Floats:
        """Return the probabilities that features are not zero, shape (n_samples, n_components)."""
        return self._best().feature_probabilities(X)


class TopicSearch(ModelSearch):
    """Base of the searches of MedLDA, whose fits are cold starts."""

    _along = None

    def _read(self, X: Any, y: Any) -> tuple[Any, NDArray[Any], Flags]:
        counts = read_counts(self, X, reset=True, whole=self.inference == "gibbs")
        targets = self._read_targets(y)
        check_consistent_length(counts, targets)
        return counts, targets, np.ones(len(targets), dtype=bool)

    def _read_targets(self, y: Any) -> NDArray[Any]:
        raise NotImplementedError

    def _splitter(self, y: NDArray[Any], random: np.random.RandomState) -> Any:
        """Return ``cv``, or random folds, stratified by class, if it is a number or None."""
        if self.cv is not None and not isinstance(self.cv, Integral):
            return self.cv
        kind = StratifiedKFold if self._model is MedLDAClassifier and y.ndim == 1 else KFold
        return kind(self.cv or DEFAULT_FOLDS, shuffle=True, random_state=random.randint(np.iinfo(np.int32).max))


@persistable(skip=NOT_SAVED)
class MedLDAClassifierCV(TopicSearch):
    """Choose the number of topics and C of `MedLDAClassifier` by cross-validation.

    List at least as many topics as classes. By default folds are random, and stratified for classes.
    """

    _model = MedLDAClassifier
    _values = {"n_components": ("n_components", (10, 20, 40)), "C": ("Cs", (0.3, 1.0))}  # noqa: RUF012

    def _read_targets(self, y: Any) -> NDArray[Any]:
        check_labels(y)
        if type_of_target(y) == "multilabel-indicator":
            return y.toarray() if hasattr(y, "toarray") else np.asarray(y)
        return column_or_1d(y, warn=True)


@persistable(skip=NOT_SAVED)
class MedLDARegressorCV(TopicSearch):
    """Choose the number of topics and C of `MedLDARegressor` by cross-validation.

    Folds are random by default.
    """

    _model = MedLDARegressor
    _values = {"n_components": ("n_components", (10, 20, 40)), "C": ("Cs", (1.0, 3.0))}  # noqa: RUF012

    def _read_targets(self, y: Any) -> NDArray[Any]:
        return read_number_targets(self, y)


class TaskSearch(ModelSearch):
    """Base of the searches of MT-iLSVM."""

    _values = {  # noqa: RUF012
        "C": ("Cs", (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)),
        "temperature": ("temperatures", (0.01, 0.03, 0.1)),
        "generative_weight": ("generative_weights", ("auto",)),
        "task_sharing": ("task_sharings", ("auto",)),
        "include_inputs": ("include_inputs", (False, True)),
    }

    __metadata_request__predict: ClassVar[dict[str, Any]] = {"task": None}
    __metadata_request__score: ClassVar[dict[str, Any]] = {"task": None, "sample_weight": None}

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        task: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
        *,
        records: Iterable[FoldRecord] | None = None,
        on_result: OnResult | None = None,
    ) -> Self:
        """Fit every combination on every fold, and the best one on all samples.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        y : array-like of shape (n_samples, n_tasks) or (n_samples,)
            Labels or numbers, NaN where missing (labels may also be None).
        task : array-like of shape (n_samples,), default=None
            The task of each sample, if there is one target per sample.
        sample_weight : array-like of shape (n_samples,), default=None
            How often each sample counts, in the fits and in their scores.
        records, on_result
            As in `PathSearchCV.fit`: records of earlier fits, and a function that is called with each record.

        Returns
        -------
        self
        """
        refuse_elsewhere(X, type(self).__name__)
        rows = read_rows(self, X, ensure_min_samples=2)
        values, task = bring_targets(rows, y=y, task=task)
        targets, kinds = self._read_tasks(rows, values, task)
        weights = row_weights(sample_weight, rows)
        values = np.asarray(values)
        n_columns = 1 if values.ndim == 1 else values.shape[1]
        if isinstance(self.scoring, str) and len(targets.rows) < n_columns * len(np.unique(targets.rows)):
            raise ValueError(
                f"scoring={self.scoring!r} cannot leave missing targets out; use None, or a callable that can"
            )
        if weights is not None:
            counted = weights[targets.rows] > 0
            kept = {name: getattr(targets, name)[counted] for name in ("rows", "tasks", "values")}
            targets, kinds = replace(targets, **kept), kinds[counted]
        random = check_random_state(self.random_state)
        model = self._make_model(random)
        folds = multitask_folds(self.cv, rows, targets, kinds, random)
        metadata = {"task": None if task is None else np.asarray(task), "sample_weight": weights}
        values = y if hasattr(y, "columns") else values
        return self._search_lists(model, X, rows, values, folds, metadata, records, on_result)

    def _read_tasks(self, X: Floats, y: Any, task: Any) -> tuple[Targets, Integers]:
        """Return the targets, and for each the task or class that every training part must contain."""
        raise NotImplementedError


@persistable(skip=NOT_SAVED)
class MultiTaskILSVMClassifierCV(TaskSearch):
    """Choose the parameters of `MultiTaskILSVMClassifier` by cross-validation.

    Paths go from the smallest C up, and each fit is warm-started from the previous one.

    By default folds are random, and stratified by task and class if there is one label per sample. Samples without a
    label are in every training part, and so are samples that are needed to represent a task or a class. A ``scoring``
    name requires all labels to be observed. With ``task=`` a scorer receives an estimator that already has the tasks.
    For rare labels, see `MultiLabelThresholdCV`.
    """

    _model = MultiTaskILSVMClassifier

    def _read_tasks(self, X: Floats, y: Any, task: Any) -> tuple[Targets, Integers]:
        targets = read_targets(y, task, X, numeric=False, unlabeled=self.unlabeled)
        labels = read_labels(targets)
        first = np.concatenate([[0], np.cumsum(labels.widths)])
        return targets, first[targets.tasks] + labels.codes


@persistable(skip=NOT_SAVED)
class MultiTaskILSVMRegressorCV(TaskSearch):
    """Choose the parameters of `MultiTaskILSVMRegressor` by cross-validation.

    Paths, folds and ``scoring`` are as in `MultiTaskILSVMClassifierCV`.
    """

    _model = MultiTaskILSVMRegressor

    def _read_tasks(self, X: Floats, y: Any, task: Any) -> tuple[Targets, Integers]:
        targets = read_targets(y, task, X, numeric=True)
        return targets, targets.tasks
