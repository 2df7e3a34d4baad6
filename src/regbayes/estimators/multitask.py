"""`MultiTaskILSVMClassifier`: many related labels, one shared set of latent features."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Self

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
from sklearn.utils._param_validation import StrOptions
from sklearn.utils.validation import check_is_fitted, validate_data

from regbayes._registry import Saveable, persistable
from regbayes._types import Floats
from regbayes.estimators._labels import labels_of_tasks, observe_labels, read_labels, scores_of_tasks
from regbayes.estimators._multitask import (
    MULTITASK_CONSTRAINTS,
    check_task_given,
    check_tasks,
    choose_sharing,
    fit_data,
    latent_attributes,
    make_settings,
    run_fit,
    standardized,
)
from regbayes.estimators._tasks import in_order_of_tasks, known_codes, read_targets, take_weighted_rows
from regbayes.estimators.metrics import task_accuracy
from regbayes.models.mt_ilsvm.model import decision, features


@persistable(skip=("_skl_callbacks",))
class MultiTaskILSVMClassifier(
    Saveable,
    CallbackSupportMixin,
    ClassNamePrefixFeaturesOutMixin,
    TransformerMixin,
    ClassifierMixin,
    BaseEstimator,
):
    """Multi-task infinite latent support vector machine: labels of many tasks from one shared set of features.

    A feature is a set of input columns, on or off for each, under an Indian buffet prior; all tasks see an example
    through the same features, and a task's weights and the features are learned together for large margins.

    Tasks are given in one of two ways. ``fit(X, Y)`` takes a matrix with a column per task and NaN where a label is
    missing: labels of one example, several outcomes. ``fit(X, y, task=ids)`` takes one label per row and the task that
    it belongs to: one question asked in many groups. Columns of X are standardised inside.

    Parameters
    ----------
    n_components : int, default=20
        Truncation: the most features there can be. Features are tempered by default and then all of them are used,
        so this is a budget; at ``temperature=0`` their number follows the data.
    alpha : float, default=2.0
        Concentration of the Indian buffet process: larger values expect more features.
    C : float, default=0.01
        What one unit of loss costs.
    loss : {"squared_hinge", "hinge"}, default="squared_hinge"
        Loss of a margin. A task with more than two classes has a margin for each ("this class or another?").
    cost : array-like of shape (n_classes, n_classes), default=None
        ``cost[true, predicted]`` of a wrong class, with a zero diagonal, for tasks that all have the same classes, in
        the order of ``classes_``. It multiplies C where a row of one class scores too high for another; where it
        scores too low for its own, the mean over wrong classes does. 1 by default.
    class_weight : dict, list of dict, "balanced" or None, default=None
        Factors on C by class; a list has a dict for each task. "balanced" balances the classes within each task.
    fit_intercept : bool, default=True
        Whether each task has a (penalised) intercept.
    include_inputs : bool, default=False
        Whether tasks see the inputs beside the latent features.
    task_sharing : float or "auto", default="auto"
        How much tasks with the same classes have in common: a task's weights are its own plus this times common ones.
        0 leaves only the features in common, which is the paper's model. "auto" is 1 with ``task=``, 0 otherwise.
    unseen_tasks : {"error", "shared"}, default="error"
        What is done about a task without any observed label, in training or when predicting: refuse it, or serve it
        with the weights that tasks have in common.
    temperature : float or "auto", default="auto"
        Temperature of the features per observed label. 0 is the plain posterior: on/off features, as many as the data
        ask for. At higher ones features are soft and predict a little better. "auto" is high for the data at hand.
    generative_weight : float or "auto", default="auto"
        Weight of explaining a row of X beside predicting one label. "auto" follows C, ``temperature``
        and ``n_components``.
    margins : {"consistent", "posterior", "decoupled"}, default="consistent"
        Descent on the objective; the paper's alternation, which may raise it; or features found without the labels
        and then one large-margin step, for comparison (the paper's MT-IBP+SVM).
    unlabeled : object, default=None
        A value of y that marks a missing label beside NaN and None, -1 for instance.
    scale_inputs : bool, default=True
        Whether columns of X are scaled to unit variance inside. They are always centred.
    noise_variance, prior_variance : float, "auto" or "estimate", default="auto"
        Variances of the noise and of a row's weights for the features. "auto" estimates them once, before the margins
        act; "estimate" to the end.
    max_iter : int, default=60
        Steps at most.
    tol : float, default=1e-4
        Change of the objective, per label and in units of loss, at which to stop. The large-margin problems are solved
        to a relative duality gap of ten times this, and of 0.001 at most; 0 solves them exactly.
    warm_start : bool, default=False
        Whether ``fit`` goes on from the last solution.
    random_state : int, RandomState instance or None, default=None
        For the start.
    n_jobs : int or None, default=None
        Threads. The result does not depend on it.
    verbose : int, default=0
        Whether to show a progress bar.

    Attributes
    ----------
    tasks_ : array of shape (n_tasks,)
        The tasks: what ``task`` held, the columns of Y (their names, if it was a data frame), or one for a vector y.
    classes_ : array of shape (n_classes,), or list of such arrays
        The classes; those of each task, if the columns of Y have different ones.
    n_components_ : int
        Features in use: on for some input (above .5) and not the same for all (range above .1).
    components_ : array of shape (n_components, n_features)
        Probability that a feature has an input column.
    coef_ : array of shape (n_outputs, n_components)
        Weights of the features: a row per task, in the order of ``tasks_``, or a row per class for a task with more
        than two. ``decision_function`` is ``transform(X) @ coef_.T + intercept_``, plus
        ``(X - mean_) / scale_ @ coef_inputs_.T`` if inputs are included.
    intercept_ : array of shape (n_outputs,)
    coef_inputs_ : array of shape (n_outputs, n_features)
        Weights of the standardised inputs, where they are included.
    stick_weights_ : array of shape (n_components,)
        Share of columns that the prior expects in each feature.
    mean_, scale_ : array of shape (n_features,)
        What X is centred and divided by.
    noise_variance_, prior_variance_ : float
    temperature_, generative_weight_ : float
        What was used, also where "auto" chose it.
    trace_ : Trace
        History of the objective and its named terms.
    n_iter_ : int
    n_features_in_, feature_names_in_
        As in scikit-learn.

    See Also
    --------
    MultiTaskILSVMRegressor : The same for numbers.
    MultiTaskILSVMClassifierCV : Chooses the parameters by cross-validation.
    MultiLabelThresholdCV : Chooses thresholds for rare labels.

    Examples
    --------
    >>> from sklearn.datasets import make_multilabel_classification
    >>> from regbayes import MultiTaskILSVMClassifier
    >>> X, Y = make_multilabel_classification(300, n_classes=4, random_state=0)
    >>> model = MultiTaskILSVMClassifier(n_components=8, random_state=0).fit(X[::2], Y[::2])
    >>> model.predict(X[1::2]).shape
    (150, 4)
    >>> model.score(X[1::2], Y[1::2]) > 0.75
    True
    """

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **MULTITASK_CONSTRAINTS,
        "loss": [StrOptions({"squared_hinge", "hinge"})],
        "cost": ["array-like", None],
        "class_weight": [dict, list, StrOptions({"balanced"}), None],
        "unlabeled": "no_validation",
    }

    def __init__(
        self,
        n_components: int = 20,
        *,
        alpha: float = 2.0,
        C: float = 0.01,
        loss: Literal["squared_hinge", "hinge"] = "squared_hinge",
        cost: ArrayLike | None = None,
        class_weight: Any = None,
        fit_intercept: bool = True,
        include_inputs: bool = False,
        task_sharing: float | Literal["auto"] = "auto",
        unseen_tasks: Literal["error", "shared"] = "error",
        temperature: float | Literal["auto"] = "auto",
        generative_weight: float | Literal["auto"] = "auto",
        margins: Literal["consistent", "posterior", "decoupled"] = "consistent",
        unlabeled: Any = None,
        scale_inputs: bool = True,
        noise_variance: float | Literal["auto", "estimate"] = "auto",
        prior_variance: float | Literal["auto", "estimate"] = "auto",
        max_iter: int = 60,
        tol: float = 1e-4,
        warm_start: bool = False,
        random_state: Any = None,
        n_jobs: int | None = None,
        verbose: int = 0,
    ) -> None:
        self.n_components = n_components
        self.alpha = alpha
        self.C = C
        self.loss = loss
        self.cost = cost
        self.class_weight = class_weight
        self.fit_intercept = fit_intercept
        self.include_inputs = include_inputs
        self.task_sharing = task_sharing
        self.unseen_tasks = unseen_tasks
        self.temperature = temperature
        self.generative_weight = generative_weight
        self.margins = margins
        self.unlabeled = unlabeled
        self.scale_inputs = scale_inputs
        self.noise_variance = noise_variance
        self.prior_variance = prior_variance
        self.max_iter = max_iter
        self.tol = tol
        self.warm_start = warm_start
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.verbose = verbose

    @with_callbacks
    @_fit_context(prefer_skip_nested_validation=True)
    def fit(
        self, X: ArrayLike, y: ArrayLike, task: ArrayLike | None = None, sample_weight: ArrayLike | None = None
    ) -> Self:
        """Learn features and the tasks' weights together.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows without any label are welcome: they shape the features.
        y : array-like of shape (n_samples, n_tasks) or (n_samples,)
            Labels, NaN or None where missing: a column per task, or with ``task`` one per row. A vector without
            ``task`` is one task.
        task : array-like of shape (n_samples,), default=None
            The task of each row.
        sample_weight : array-like of shape (n_samples,), default=None
            How often each row counts, in all that is learned: 2 is the row twice, 0 is the row left out.

        Returns
        -------
        self
        """
        X = validate_data(self, X, dtype=np.float64, ensure_min_samples=2)
        data = fit_data(X, y, task, sample_weight)
        X, y, task, weights = take_weighted_rows(X, y, task, sample_weight)
        targets = read_targets(y, task, X, numeric=False, unlabeled=self.unlabeled)
        sharing = choose_sharing(self.task_sharing, targets.layout)
        check_tasks(targets, sharing, self.unseen_tasks)
        labels = read_labels(targets)
        targets, order = in_order_of_tasks(targets, len(X))
        centred, self.mean_, self.scale_ = standardized(X, self.scale_inputs, order, weights)
        weights = weights if weights is None or order is None else weights[order]
        observations, outputs = observe_labels(targets, labels, self.class_weight, self.cost, weights)
        self.tasks_, self._layout, self._outputs = targets.ids, targets.layout, outputs
        self.classes_ = labels.common_classes
        settings = make_settings(self.get_params(deep=False), sharing)
        run_fit(
            self,
            centred,
            (observations, outputs),
            settings,
            sample_weight=weights,
            data=data,
            attributes=latent_attributes,
        )
        return self

    def transform(self, X: ArrayLike) -> Floats:
        """Return the latent features of rows, shape (n_samples, n_components).

        A feature is the sum of the standardised inputs that have it, weighted by their probabilities, in a unit that
        does not depend on their number.
        """
        return features(self._checked(X), self._state)

    def decision_function(self, X: ArrayLike, task: ArrayLike | None = None) -> Floats | list[Floats]:
        """Return scores: above zero for the second of two classes; a column for each of more.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        task : array-like of shape (n_samples,), default=None
            The task of each row, if ``fit`` was told.

        Returns
        -------
        array of shape (n_samples, n_tasks) after ``fit(X, Y)``, or a list with an entry per task if some have more
        than two classes; (n_samples,) or (n_samples, n_classes) after ``fit(X, y)`` and ``fit(X, y, task=...)``.
        """
        X = self._checked(X)
        check_task_given(type(self).__name__, self._layout, task)
        if self._layout == "ragged":
            return self._ragged_scores(X, task)
        return scores_of_tasks(decision(X, self._state), self._layout, self._outputs)

    def _ragged_scores(self, X: Floats, task: ArrayLike | None) -> Floats:
        codes = known_codes(self.tasks_, task, len(X), allow_unseen=self.unseen_tasks == "shared")
        n_outputs = 1 if len(self.classes_) == 2 else len(self.classes_)
        place = np.arange(n_outputs)
        shared = -1 - self._outputs.groups[:n_outputs]  # a task that was not seen has the weights of its class's group
        outputs = np.where(codes[:, None] >= 0, codes[:, None] * n_outputs + place, shared)
        scores = decision(X, self._state, outputs)
        return scores[:, 0] if n_outputs == 1 else scores

    def predict(self, X: ArrayLike, task: ArrayLike | None = None) -> NDArray[Any]:
        """Return classes, shape (n_samples, n_tasks) after ``fit(X, Y)`` and (n_samples,) otherwise.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        task : array-like of shape (n_samples,), default=None
            The task of each row, if ``fit`` was told.
        """
        return labels_of_tasks(self.decision_function(X, task), self._layout, self.classes_)

    def score(
        self, X: ArrayLike, y: ArrayLike, task: ArrayLike | None = None, sample_weight: ArrayLike | None = None
    ) -> float:
        """Return the accuracy over all observed labels; of an indicator matrix, 1 less the Hamming loss.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        y : array-like of shape (n_samples, n_tasks) or (n_samples,)
            Labels, missing ones left out of the average.
        task : array-like of shape (n_samples,), default=None
            The task of each row, if ``fit`` was told.
        sample_weight : array-like of shape (n_samples,), default=None
            How much the labels of each row count.
        """
        return task_accuracy(y, self.predict(X, task), unlabeled=self.unlabeled, sample_weight=sample_weight)

    def _checked(self, X: ArrayLike) -> Floats:
        check_is_fitted(self, "components_")
        X = validate_data(self, X, dtype=np.float64, reset=False)
        return np.asarray((X - self.mean_) / self.scale_)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        tags.classifier_tags.multi_label = True
        return tags

    @property
    def _n_features_out(self) -> int:
        return len(self.components_)
