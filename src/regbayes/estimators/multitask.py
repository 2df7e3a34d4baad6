"""`MultiTaskILSVMClassifier`: many related labels, one shared set of latent features."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from numpy.typing import ArrayLike
from sklearn.utils._param_validation import StrOptions

from regbayes._registry import persistable
from regbayes.estimators._multitask import MULTITASK_CONSTRAINTS, LatentTasks
from regbayes.estimators._task_bases import TaskClassifier


@persistable(skip=("_skl_callbacks",))
class MultiTaskILSVMClassifier(LatentTasks, TaskClassifier):
    """Multi-task infinite latent support vector machine: labels of many tasks from one shared set of features.

    A feature is a set of input columns, on or off for each, under an Indian buffet prior; all tasks see an example
    through the same features, and a task's weights and the features are learned together for large margins.

    Tasks are given in one of two ways. ``fit(X, Y)`` takes a matrix with a column per task and NaN where a label is
    missing: labels of one example, several outcomes. ``fit(X, y, task=ids)`` takes one label per row and the task that
    it belongs to: one question asked in many groups. Rows without any label are welcome: they shape the features.
    Columns of X are standardised inside.

    Parameters to turn first: ``C``, ``n_components`` and ``include_inputs``, and ``task_sharing`` with ``task=``; then
    ``temperature`` (0 to read the features) and ``generative_weight``. ``loss``, ``cost``, ``class_weight``,
    ``fit_intercept`` and ``unlabeled`` are about labels; ``alpha``, ``noise_variance``, ``prior_variance`` and
    ``margins`` about the model; ``unseen_tasks`` and ``scale_inputs`` about what is given; the rest about how it is
    fitted.

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
    n_init : int, default=1
        Starts, of which the fit with the lowest objective is kept; one where ``warm_start`` goes on from a fit. A fit
        that does worse on its training rows than the most frequent answer of each task has one start more in any case,
        and a `PoorFitWarning` if that does not help.
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
    objective_ : float
        Objective of the fit, by which starts are compared: lower is better.
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
        n_init: int = 1,
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
        self.n_init = n_init
        self.max_iter = max_iter
        self.tol = tol
        self.warm_start = warm_start
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.verbose = verbose
