"""`MultiTaskILSVMClassifierCV` and `MultiTaskILSVMRegressorCV`: MT-iLSVM with parameters chosen by cross-validation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import _fit_context
from sklearn.utils import check_random_state
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import validate_data

from regbayes._registry import persistable
from regbayes._types import Floats, Integers
from regbayes.estimators._arrays import bring_targets, refuse_elsewhere
from regbayes.estimators._bases import row_weights
from regbayes.estimators._calibration import log_of
from regbayes.estimators._folds import multitask_folds
from regbayes.estimators._labels import read_labels
from regbayes.estimators._list_search import ListSearch, counted_rows, keep_frame, list_constraints
from regbayes.estimators._task_bases import Targets, read_targets
from regbayes.estimators.multitask import MultiTaskILSVMClassifier, MultiTaskILSVMRegressor
from regbayes.estimators.path_search import OnResult, has_probabilities
from regbayes.estimators.search_records import FoldRecord

LISTS = {  # parameter of the estimators -> the list of its values; C goes up along a path
    "temperature": "temperatures",
    "generative_weight": "generative_weights",
    "task_sharing": "task_sharings",
    "include_inputs": "include_inputs",
    "C": "Cs",
}


class TaskSearch(ListSearch):
    """What the searches for labels and for numbers share."""

    _lists = LISTS

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
        """Try every combination on every fold, and refit the best.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        y : array-like of shape (n_samples, n_tasks) or (n_samples,)
            Labels or numbers, NaN (or None, of labels) where missing.
        task : array-like of shape (n_samples,), default=None
            The task of each row, where there is one target per row.
        sample_weight : array-like of shape (n_samples,), default=None
            How often each row counts, in the fits and in their scores.
        records, on_result
            As in `PathSearchCV.fit`: fits that need not be made again, and a function that hears of each.

        Returns
        -------
        self
        """
        refuse_elsewhere(X, type(self).__name__)
        rows = validate_data(self, X, dtype=np.float64, ensure_min_samples=2)
        y, task = bring_targets(rows, y=y, task=task)
        targets, kinds = self._read(rows, y, task)
        weights = row_weights(sample_weight, rows)
        counted = counted_rows(weights, len(rows))[targets.rows]
        values = np.asarray(y)
        n_columns = 1 if values.ndim == 1 else values.shape[1]
        if isinstance(self.scoring, str) and len(targets.rows) < n_columns * len(np.unique(targets.rows)):
            raise ValueError(
                f"scoring={self.scoring!r} cannot leave missing targets out; use None, or a callable that can"
            )
        random = check_random_state(self.random_state)
        model = self._make_model(random)
        some = replace(
            targets, rows=targets.rows[counted], tasks=targets.tasks[counted], values=targets.values[counted]
        )
        folds = multitask_folds(self.cv, rows, some, kinds[counted], random)
        metadata = {"task": None if task is None else np.asarray(task), "sample_weight": weights}
        return self._search_lists(
            model, keep_frame(X, rows), keep_frame(y, values), folds, metadata, records=records, on_result=on_result
        )

    def _read(self, X: Floats, y: Any, task: Any) -> tuple[Targets, Integers]:
        """Return the targets, and for each what must be seen in every training part."""
        raise NotImplementedError

    def predict(self, X: ArrayLike, task: ArrayLike | None = None) -> NDArray[Any]:
        """Return predictions, shape (n_samples, n_tasks) after ``fit(X, Y)`` and (n_samples,) otherwise."""
        return self._best().predict(X, task)

    def score(
        self, X: ArrayLike, y: ArrayLike, task: ArrayLike | None = None, sample_weight: ArrayLike | None = None
    ) -> float:
        """Return the accuracy, or R², over all observed targets, pooled, whatever ``scoring`` is."""
        return self._best().score(X, y, task, sample_weight)


@persistable(skip=("cv", "scoring", "scorer_", "records_"))  # the first three may be objects of any class
class MultiTaskILSVMClassifierCV(TaskSearch):
    """MT-iLSVM for labels whose parameters are chosen by cross-validation, with warm starts along the path of C.

    Every combination of the listed values is tried on every fold. For each combination of the others, C goes from its
    smallest value up, each fit starting where the last one ended. The best combination is refitted on all rows.

    Parameters
    ----------
    n_components : int, default=20
        Truncation: the most features there can be.
    Cs : sequence of float, default=(0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
        Values of C.
    temperatures : sequence of float or "auto", default=(0.01, 0.03, 0.1)
        Values of temperature.
    generative_weights : sequence of float or "auto", default=("auto",)
        Values of generative_weight.
    task_sharings : sequence of float or "auto", default=("auto",)
        Values of task_sharing.
    include_inputs : sequence of bool, default=(False, True)
        Values of include_inputs.
    cv : int, splitter or iterable, default=None
        Folds. None and a number (5 by default) make random folds that divide every task evenly, and its classes too
        where there is one label per row. Whatever the folds, rows without a label are in every training part, and so
        are rows without which a task, or a class of it, would not be seen. ``cv`` and ``scoring`` may be objects of
        any class and are not saved.
    scoring : str, callable or None, default=None
        As in scikit-learn; the accuracy over observed labels by default. A name needs every label observed. With
        ``task=`` the scorer sees an estimator that knows the tasks of the rows it is given.
    alpha, loss, cost, class_weight, fit_intercept, unseen_tasks, margins, unlabeled, scale_inputs, noise_variance, \
prior_variance, n_init, max_iter, tol
        As in `MultiTaskILSVMClassifier`.
    random_state : int, RandomState instance or None, default=None
        For the starts and the folds.
    n_jobs : int or None, default=None
        Processes over folds and paths.
    verbose : int, default=0
        Whether to show a progress bar with the time left.

    Attributes
    ----------
    best_estimator_ : MultiTaskILSVMClassifier
        Fitted to all rows; its fitted attributes are here too.
    C_, temperature_, generative_weight_, task_sharing_, include_inputs_
        The values chosen.
    best_score_ : float
        Mean score of the best combination over the folds.
    cv_results_ : dict of arrays
        One entry per combination: the parameters, ``split0_test_score`` ..., ``mean_test_score``,
        ``std_test_score``, ``rank_test_score``.
    calibration_ : Calibration or None
        How scores become probabilities, from those of the rows that each fold left out: temperatures for each column
        of y, one for all rows otherwise. None where no fold had seen all classes; then there is no `predict_proba`.

    See Also
    --------
    MultiTaskILSVMClassifier : One setting.
    MultiLabelThresholdCV : Chooses thresholds for rare labels.
    """

    _model = MultiTaskILSVMClassifier
    _parameter_constraints: ClassVar[dict[str, Any]] = list_constraints(MultiTaskILSVMClassifier, LISTS)

    def __init__(
        self,
        n_components: int = 20,
        *,
        Cs: Sequence[float] = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0),
        temperatures: Sequence[Any] = (0.01, 0.03, 0.1),
        generative_weights: Sequence[Any] = ("auto",),
        task_sharings: Sequence[Any] = ("auto",),
        include_inputs: Sequence[bool] = (False, True),
        cv: Any = None,
        scoring: Any = None,
        alpha: float = 2.0,
        loss: Literal["squared_hinge", "hinge"] = "squared_hinge",
        cost: ArrayLike | None = None,
        class_weight: Any = None,
        fit_intercept: bool = True,
        unseen_tasks: Literal["error", "shared"] = "error",
        margins: Literal["consistent", "posterior", "decoupled"] = "consistent",
        unlabeled: Any = None,
        scale_inputs: bool = True,
        noise_variance: float | Literal["auto", "estimate"] = "auto",
        prior_variance: float | Literal["auto", "estimate"] = "auto",
        n_init: int = 1,
        max_iter: int = 60,
        tol: float = 1e-4,
        random_state: Any = None,
        n_jobs: int | None = None,
        verbose: int = 0,
    ) -> None:
        self.n_components = n_components
        self.Cs = Cs
        self.temperatures = temperatures
        self.generative_weights = generative_weights
        self.task_sharings = task_sharings
        self.include_inputs = include_inputs
        self.cv = cv
        self.scoring = scoring
        self.alpha = alpha
        self.loss = loss
        self.cost = cost
        self.class_weight = class_weight
        self.fit_intercept = fit_intercept
        self.unseen_tasks = unseen_tasks
        self.margins = margins
        self.unlabeled = unlabeled
        self.scale_inputs = scale_inputs
        self.noise_variance = noise_variance
        self.prior_variance = prior_variance
        self.n_init = n_init
        self.max_iter = max_iter
        self.tol = tol
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.verbose = verbose

    def _read(self, X: Floats, y: Any, task: Any) -> tuple[Targets, Integers]:
        targets = read_targets(y, task, X, numeric=False, unlabeled=self.unlabeled)
        labels = read_labels(targets)
        first = np.concatenate([[0], np.cumsum(labels.widths)])
        return targets, first[targets.tasks] + labels.codes

    def decision_function(self, X: ArrayLike, task: ArrayLike | None = None) -> Floats | list[Floats]:
        """Return scores, as `MultiTaskILSVMClassifier.decision_function` does."""
        return self._best().decision_function(X, task)

    @available_if(has_probabilities)
    def predict_proba(self, X: ArrayLike, task: ArrayLike | None = None) -> Floats | list[Floats]:
        """Return probabilities; the most probable class is that of `predict`. See ``calibration_``.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        task : array-like of shape (n_samples,), default=None
            The task of each row, if ``fit`` was told.

        Returns
        -------
        array of shape (n_samples, n_tasks) with the probability of the second class of each task after ``fit(X, Y)``,
        or a list with an array of shape (n_samples, n_classes) per task if some have more than two classes;
        (n_samples, n_classes) after ``fit(X, y)`` and ``fit(X, y, task=...)``.
        """
        scores = self.decision_function(X, task)
        return self.calibration_.probabilities(scores)

    @available_if(has_probabilities)
    def predict_log_proba(self, X: ArrayLike, task: ArrayLike | None = None) -> Floats | list[Floats]:
        """Return the logarithms of `predict_proba`."""
        return log_of(self.predict_proba(X, task))


@persistable(skip=("cv", "scoring", "scorer_", "records_"))  # the first three may be objects of any class
class MultiTaskILSVMRegressorCV(TaskSearch):
    """MT-iLSVM for numbers whose parameters are chosen by cross-validation, with warm starts along the path of C.

    Every combination of the listed values is tried on every fold. For each combination of the others, C goes from its
    smallest value up, each fit starting where the last one ended. The best combination is refitted on all rows.

    Parameters
    ----------
    n_components : int, default=20
        Truncation: the most features there can be.
    Cs : sequence of float, default=(0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
        Values of C.
    temperatures : sequence of float or "auto", default=(0.01, 0.03, 0.1)
        Values of temperature.
    generative_weights, task_sharings : sequence of float or "auto", default=("auto",)
        Values of generative_weight and task_sharing.
    include_inputs : sequence of bool, default=(False, True)
        Values of include_inputs.
    cv : int, splitter or iterable, default=None
        Folds, as in `MultiTaskILSVMClassifierCV`; not saved either.
    scoring : str, callable or None, default=None
        As in scikit-learn; pooled R² over observed targets by default. A name needs every target observed. With
        ``task=`` the scorer sees an estimator that knows the tasks of the rows it is given.
    alpha, loss, epsilon, fit_intercept, unseen_tasks, margins, scale_inputs, scale_targets, noise_variance, \
prior_variance, n_init, max_iter, tol
        As in `MultiTaskILSVMRegressor`.
    random_state : int, RandomState instance or None, default=None
        For the starts and the folds.
    n_jobs : int or None, default=None
        Processes over folds and paths.
    verbose : int, default=0
        Whether to show a progress bar with the time left.

    Attributes
    ----------
    best_estimator_ : MultiTaskILSVMRegressor
        Fitted to all rows; its fitted attributes are here too.
    C_, temperature_, generative_weight_, task_sharing_, include_inputs_, best_score_, cv_results_
        As in `MultiTaskILSVMClassifierCV`.

    See Also
    --------
    MultiTaskILSVMRegressor : One setting.
    """

    _model = MultiTaskILSVMRegressor
    _parameter_constraints: ClassVar[dict[str, Any]] = list_constraints(MultiTaskILSVMRegressor, LISTS)

    def __init__(
        self,
        n_components: int = 20,
        *,
        Cs: Sequence[float] = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0),
        temperatures: Sequence[Any] = (0.01, 0.03, 0.1),
        generative_weights: Sequence[Any] = ("auto",),
        task_sharings: Sequence[Any] = ("auto",),
        include_inputs: Sequence[bool] = (False, True),
        cv: Any = None,
        scoring: Any = None,
        alpha: float = 2.0,
        loss: Literal["squared_epsilon_insensitive", "epsilon_insensitive"] = "squared_epsilon_insensitive",
        epsilon: float = 0.0,
        fit_intercept: bool = True,
        unseen_tasks: Literal["error", "shared"] = "error",
        margins: Literal["consistent", "posterior", "decoupled"] = "consistent",
        scale_inputs: bool = True,
        scale_targets: Literal["auto", "task", "pooled"] | bool = "auto",
        noise_variance: float | Literal["auto", "estimate"] = "auto",
        prior_variance: float | Literal["auto", "estimate"] = "auto",
        n_init: int = 1,
        max_iter: int = 60,
        tol: float = 1e-4,
        random_state: Any = None,
        n_jobs: int | None = None,
        verbose: int = 0,
    ) -> None:
        self.n_components = n_components
        self.Cs = Cs
        self.temperatures = temperatures
        self.generative_weights = generative_weights
        self.task_sharings = task_sharings
        self.include_inputs = include_inputs
        self.cv = cv
        self.scoring = scoring
        self.alpha = alpha
        self.loss = loss
        self.epsilon = epsilon
        self.fit_intercept = fit_intercept
        self.unseen_tasks = unseen_tasks
        self.margins = margins
        self.scale_inputs = scale_inputs
        self.scale_targets = scale_targets
        self.noise_variance = noise_variance
        self.prior_variance = prior_variance
        self.n_init = n_init
        self.max_iter = max_iter
        self.tol = tol
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.verbose = verbose

    def _read(self, X: Floats, y: Any, task: Any) -> tuple[Targets, Integers]:
        targets = read_targets(y, task, X, numeric=True)
        return targets, targets.tasks
