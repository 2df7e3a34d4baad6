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
from numpy.typing import ArrayLike
from scipy.sparse import issparse
from sklearn.base import ClassifierMixin, ClassNamePrefixFeaturesOutMixin, TransformerMixin, _fit_context
from sklearn.model_selection import KFold, StratifiedKFold
from sklearn.utils import check_random_state, get_tags, indexable
from sklearn.utils.validation import _check_y, _num_samples

from regbayes._registry import persistable
from regbayes._types import Floats
from regbayes.estimators._arrays import bring_here, refuse_elsewhere
from regbayes.estimators._bases import check_labels, find_labeled, find_missing, row_weights
from regbayes.estimators._folds import multitask_folds, split_rows
from regbayes.estimators._labels import read_labels
from regbayes.estimators._search import Fold, Plan, resolve_scorers, share_metadata
from regbayes.estimators._task_bases import read_targets
from regbayes.estimators.ilsvm import ILSVMClassifier
from regbayes.estimators.ilsvm_regressor import ILSVMRegressor
from regbayes.estimators.medlda import MedLDAClassifier, MedLDARegressor
from regbayes.estimators.multitask import MultiTaskILSVMClassifier, MultiTaskILSVMRegressor
from regbayes.estimators.path_search import NOT_SAVED, BaseSearch, OnResult
from regbayes.estimators.search_records import FoldRecord

SEARCH_PARAMETERS = {"cv": None, "scoring": None, "random_state": None, "n_jobs": None, "verbose": 0}
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

Examples
--------
{examples}
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
    _shuffled: ClassVar[bool] = True  # whether default folds are random
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
        cls._shared = [name for name in given if name not in {*cls._lists, *SEARCH_PARAMETERS, *NOT_SEARCHED}]
        defaults = dict(cls._values.values()) | {name: given[name].default for name in cls._shared} | SEARCH_PARAMETERS
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
            lists = [
                f"{listed} : sequence, default={default!r}\n    Values of ``{name}``."
                for name, (listed, default) in cls._values.items()
            ]
            about, _, examples = cleandoc(cls.__doc__).partition("\n\nExamples\n--------\n")
            cls.__doc__ = DOCSTRING.format(
                about=about,
                examples=examples,
                lists="\n".join(lists),
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
        return self._fit(X, y, None, sample_weight, records, on_result)

    def _fit(
        self,
        X: Any,
        y: Any,
        task: Any,
        sample_weight: Any,
        records: Iterable[FoldRecord] | None,
        on_result: OnResult | None,
    ) -> Self:
        """Try all combinations of the lists; each method receives the metadata that it accepts."""
        name = type(self).__name__
        if y is None:
            raise ValueError(f"{name} requires y to be passed, but the target y is None")
        refuse_elsewhere(X, name)
        X, y, task = (bring_here(values, what) for values, what in ((X, "X"), (y, "y"), (task, "task")))
        X, y = indexable(X, y)
        rows = np.empty((_num_samples(X), 0))
        weights = row_weights(sample_weight, rows)
        random = check_random_state(self.random_state)
        shared = {name: getattr(self, name) for name in self._shared}
        model = self._model(random_state=random.randint(np.iinfo(np.int32).max), **shared)
        folds = self._split(rows, y, task, weights, random)
        values = {name: getattr(self, listed) for name, listed in self._lists.items()}
        grid = {name: [value] if np.ndim(value) == 0 else value for name, value in values.items()}
        scorers = resolve_scorers(model, self.scoring)
        given = {"task": None if task is None else np.asarray(task), "sample_weight": weights}
        metadata = {name: value for name, value in given.items() if value is not None}
        samples = share_metadata(X, y, model, scorers, metadata)
        plan = Plan.make(model, grid, folds, scorers, along=self._along, descending=self._descending)
        return self._search(plan, samples, records, on_result)

    def _split(
        self, rows: Floats, y: Any, task: Any, weights: Floats | None, random: np.random.RandomState
    ) -> Iterable[Fold]:
        """Return the folds; samples that cannot be scored are in every training part."""
        targets, unlabeled = np.zeros(y.shape) if issparse(y) else np.asarray(y), getattr(self, "unlabeled", None)
        of_classes = issubclass(self._model, ClassifierMixin) and targets.size == len(rows)
        if of_classes:
            targets = _check_y(targets, estimator=self)
            scored = find_labeled(targets, unlabeled)
            check_labels(targets[scored])
        else:
            observed = ~find_missing(targets) & (True if unlabeled is None else targets != unlabeled)
            scored = np.asarray(observed.reshape(len(rows), -1).any(axis=1))
        if weights is not None:
            scored = scored & (weights > 0)
        cv = self.cv
        if cv is None or isinstance(cv, Integral):
            seed = random.randint(np.iinfo(np.int32).max) if self._shuffled else None
            kind = StratifiedKFold if of_classes else KFold
            cv = kind(cv or 5, shuffle=self._shuffled, random_state=seed)
        rest = np.flatnonzero(~scored)
        found = split_rows(cv, np.flatnonzero(scored), targets)
        return [(np.sort(np.concatenate([train, rest])), test) for train, test in found]

    def _searched(self) -> Any:
        return vars(self).get("best_estimator_", self._model)

    def _name_list(self, parameter: str) -> str:
        return self._lists[parameter]

    def transform(self, X: ArrayLike) -> Floats:
        """Return the features of the best estimator, in the container that ``set_output`` chooses."""
        return self._best().transform(X)

    @property
    def _n_features_out(self) -> int:
        return self.best_estimator_._n_features_out

    def __sklearn_tags__(self) -> Any:
        return get_tags(self._model())


class LatentSearch(ModelSearch):
    """Base of the searches of iLSVM."""

    _descending = True

    def feature_probabilities(self, X: ArrayLike) -> Floats:
        """Return the probabilities that features are not zero, shape (n_samples, n_components)."""
        return self._best().feature_probabilities(X)


@persistable(skip=NOT_SAVED)
class ILSVMClassifierCV(LatentSearch):
    """Choose the parameters of `ILSVMClassifier` by cross-validation.

    Paths go from the largest C down, and each fit is warm-started from the previous one. A smaller C keeps fewer
    features, and features that a fit pruned do not return. The final fit follows the path of the best combination too.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from regbayes import ILSVMClassifierCV
    >>> X, y = load_iris(return_X_y=True)
    >>> search = ILSVMClassifierCV(8, Cs=[1.0], include_inputs=[False, True], cv=2, tol=1e-2, random_state=0)
    >>> search.fit(X[::2], y[::2]).predict_proba(X[1::2]).shape  # calibrated on the folds
    (75, 3)
    """

    _model = ILSVMClassifier
    _values = {  # noqa: RUF012 - constant
        "C": ("Cs", (0.3, 1.0, 3.0, 10.0)),
        "alpha": ("alphas", (2.0,)),
        "temperature": ("temperatures", ("auto",)),
        "generative_weight": ("generative_weights", ("auto",)),
        "include_inputs": ("include_inputs", (False,)),
    }
    _shuffled = False


@persistable(skip=NOT_SAVED)
class ILSVMRegressorCV(LatentSearch):
    """Choose the parameters of `ILSVMRegressor` by cross-validation.

    Paths are as in `ILSVMClassifierCV`. Folds are random by default.

    Examples
    --------
    >>> from sklearn.datasets import make_friedman1
    >>> from regbayes import ILSVMRegressorCV
    >>> X, y = make_friedman1(100, noise=1.0, random_state=0)
    >>> search = ILSVMRegressorCV(8, Cs=[0.01, 1.0, 100.0], generative_weights=["auto"], cv=2, tol=1e-2, random_state=0)
    >>> search.fit(X, y).C_
    1.0
    """

    _model = ILSVMRegressor
    _values = {  # noqa: RUF012 - constant
        "C": ("Cs", (0.1, 0.3, 1.0, 3.0)),
        "generative_weight": ("generative_weights", ("auto", 0.03, 0.1)),
        "temperature": ("temperatures", ("auto",)),
    }


class TopicSearch(ModelSearch):
    """Base of the searches of MedLDA."""

    _values = {  # noqa: RUF012 - constant
        "n_components": ("n_components", (10, 20, 40)),
        "C": ("Cs", (0.3, 1.0, 3.0)),
        "include_inputs": ("include_inputs", (False,)),
    }
    _along = None


@persistable(skip=NOT_SAVED)
class MedLDAClassifierCV(TopicSearch):
    """Choose the number of topics and C of `MedLDAClassifier` by cross-validation.

    List at least as many topics as classes. By default folds are random, and stratified for classes.

    Examples
    --------
    >>> from sklearn.feature_extraction.text import CountVectorizer
    >>> from regbayes import MedLDAClassifierCV
    >>> texts = ["ball goal match", "goal team ball", "vote law party", "law vote court"] * 5
    >>> X = CountVectorizer().fit_transform(texts)
    >>> search = MedLDAClassifierCV([2, 4], Cs=[1.0], cv=2, random_state=0)
    >>> search.fit(X, ["sport", "sport", "politics", "politics"] * 5).best_score_
    1.0
    """

    _model = MedLDAClassifier


@persistable(skip=NOT_SAVED)
class MedLDARegressorCV(TopicSearch):
    """Choose the number of topics and C of `MedLDARegressor` by cross-validation.

    Folds are random by default.

    Examples
    --------
    >>> from sklearn.feature_extraction.text import CountVectorizer
    >>> from regbayes import MedLDARegressorCV
    >>> texts = ["good film great cast", "great story good", "dull film poor cast", "poor story dull"] * 5
    >>> X = CountVectorizer().fit_transform(texts)
    >>> search = MedLDARegressorCV(2, Cs=[1.0], include_inputs=[False, True], cv=2, random_state=0)
    >>> search.fit(X, [5, 4, 1, 2] * 5).include_inputs_
    True
    """

    _model = MedLDARegressor


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
    def fit(  # `task` is third, as in the model
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
        sample_weight, records, on_result
            As in `ILSVMClassifierCV.fit`.

        Returns
        -------
        self
        """
        return self._fit(X, y, task, sample_weight, records, on_result)

    def _split(
        self, rows: Floats, y: Any, task: Any, weights: Floats | None, random: np.random.RandomState
    ) -> Iterable[Fold]:
        numeric = not issubclass(self._model, ClassifierMixin)
        targets = read_targets(y, task, rows, numeric=numeric, unlabeled=None if numeric else self.unlabeled)
        kinds = targets.tasks if numeric else read_labels(targets).places(targets.tasks)
        n_columns = int(np.prod(np.shape(y)[1:]))
        if isinstance(self.scoring, str) and len(targets.rows) < n_columns * len(np.unique(targets.rows)):
            raise ValueError(
                f"scoring={self.scoring!r} does not support missing targets. Use None, or a callable that does."
            )
        if weights is not None:
            counted = weights[targets.rows] > 0
            kept = {name: getattr(targets, name)[counted] for name in ("rows", "tasks", "values")}
            targets, kinds = replace(targets, **kept), kinds[counted]
        return multitask_folds(self.cv, len(rows), targets, kinds, random)


@persistable(skip=NOT_SAVED)
class MultiTaskILSVMClassifierCV(TaskSearch):
    """Choose the parameters of `MultiTaskILSVMClassifier` by cross-validation.

    Paths go from the smallest C up, and each fit is warm-started from the previous one. Features that a fit dropped do
    not return.

    By default folds are random, and stratified by task and class if there is one label per sample. Samples without a
    label are in every training part, and so are samples that are needed to represent a task or a class. A ``scoring``
    name requires all labels to be observed. With ``task=`` a scorer receives an estimator that already has the tasks.
    For rare labels, see `MultiLabelThresholdCV`.

    Examples
    --------
    >>> from sklearn.datasets import make_multilabel_classification
    >>> from regbayes import MultiTaskILSVMClassifierCV
    >>> X, Y = make_multilabel_classification(100, n_classes=3, random_state=0)
    >>> lists = {"Cs": [1e-3, 1.0, 1e3], "temperatures": [0.1], "include_inputs": [False]}
    >>> MultiTaskILSVMClassifierCV(8, **lists, cv=2, tol=1e-2, random_state=0).fit(X, Y).C_
    1.0
    """

    _model = MultiTaskILSVMClassifier


@persistable(skip=NOT_SAVED)
class MultiTaskILSVMRegressorCV(TaskSearch):
    """Choose the parameters of `MultiTaskILSVMRegressor` by cross-validation.

    Paths, folds and ``scoring`` are as in `MultiTaskILSVMClassifierCV`.

    Examples
    --------
    >>> from sklearn.datasets import make_regression
    >>> from regbayes import MultiTaskILSVMRegressorCV
    >>> X, Y = make_regression(100, 8, n_targets=3, noise=100.0, random_state=0)
    >>> lists = {"Cs": [1e-3, 0.1, 10.0], "temperatures": [0.1], "include_inputs": [False]}
    >>> MultiTaskILSVMRegressorCV(8, **lists, cv=2, tol=1e-2, random_state=0).fit(X, Y).C_
    0.1
    """

    _model = MultiTaskILSVMRegressor
