"""MT-iLSVM: `MultiTaskILSVMClassifier` and `MultiTaskILSVMRegressor`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, ClassVar, Literal

import numpy as np
from joblib import effective_n_jobs
from numpy.typing import ArrayLike
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils._param_validation import StrOptions

from regbayes._registry import persistable
from regbayes._types import Floats, Integers
from regbayes.engine import make_executor
from regbayes.estimators._bases import (
    LATENT_CONSTRAINTS,
    NOT_NEGATIVE,
    POSITIVE,
    check_features_in_use,
    generator,
    has_weight,
    room_for,
    warn_of_no_features,
    warn_of_truncation,
)
from regbayes.estimators._calibration import NoProbabilities
from regbayes.estimators._labels import TaskClassifier
from regbayes.estimators._task_bases import (
    SHARE_EMPTY,
    SHARE_NEW,
    Layout,
    TargetMatrix,
    Targets,
    TaskModel,
    TaskProblem,
    TaskRegressor,
    check_no_empty_task,
)
from regbayes.kernels.arrays import take_columns
from regbayes.models.indian_buffet import stick_weights
from regbayes.models.mt_ilsvm.fit import CUT_SHORT, Problem, fit, prepare, stages_of
from regbayes.models.mt_ilsvm.model import Settings, State, decision, features, input_factor

RAGGED_SHARING = 1.0
"""Default of rho for ragged tasks, one question asked of many groups: half of a weight's prior variance is common."""

MULTITASK_CONSTRAINTS: dict[str, list[Any]] = {
    **{name: LATENT_CONSTRAINTS[name] for name in LATENT_CONSTRAINTS if name != "n_sweeps"},
    "C": [POSITIVE],
    "fit_intercept": ["boolean"],
    "include_inputs": ["boolean"],
    "task_sharing": [NOT_NEGATIVE, StrOptions({"auto"})],
    "unseen_tasks": [StrOptions({"error", "shared"})],
    "temperature": [NOT_NEGATIVE, StrOptions({"auto"})],
    "generative_weight": [POSITIVE, StrOptions({"auto"})],  # positive, because the natural gradient is divided by it
    "margins": [StrOptions({"consistent", "posterior", "decoupled"})],
    "scale_inputs": ["boolean"],
}


class LatentTasks(ClassNamePrefixFeaturesOutMixin, TransformerMixin, TaskModel):
    """Base of MT-iLSVM's estimators, whose tasks share latent features."""

    _sorts_rows = True
    _remedy = SHARE_NEW
    _takes_devices: ClassVar[bool] = True  # accepts arrays of PyTorch and CuPy on their device
    _in_blocks: ClassVar[bool] = True

    @property
    def _serves_new_tasks(self) -> bool:
        return bool(self.unseen_tasks == "shared")

    def _check_loaded(self) -> None:
        """Raise ValueError if the attributes of a loaded model do not fit each other."""
        if not hasattr(self, "_state"):
            return
        n_columns, n_components = self._state.latent.logits.shape
        if n_columns != self.n_features_in_ or not len(self.mean_) == len(self.scale_) == n_columns:
            raise ValueError("n_features_in_, mean_ and scale_ must fit the features")
        if len(self._outputs) != len(self._state.tasks.weights):
            raise ValueError("the outputs must have as many rows as the weights")
        check_features_in_use(self, n_components)

    def _sharing(self, layout: Layout) -> float:
        """Return rho, the standard deviation of the common weights relative to that of a task's own."""
        if self.task_sharing == "auto":
            return RAGGED_SHARING if layout == "ragged" else 0.0
        return float(self.task_sharing)

    def _check_tasks(self, targets: Targets | TargetMatrix) -> None:
        if not self._serves_new_tasks:
            check_no_empty_task(targets, SHARE_EMPTY)
        elif self._sharing(targets.layout) == 0:
            raise ValueError(
                "unseen_tasks='shared' needs weights that tasks share: set task_sharing to a number above 0, 1 for "
                "instance"
            )

    def _learn(self, problem: TaskProblem) -> None:
        settings = make_settings(self.get_params(deep=False), self._sharing(self._layout))
        prepared = self._prepare(problem, settings)
        n_columns = len(prepared.moments.gram)
        if not prepared.moments.squared_norm > 0:
            raise ValueError("every column of X is constant, so there is nothing that features could be about")
        previous = getattr(self, "_state", None) if self.warm_start else None
        earlier = resume(previous, settings, n_columns)

        def draw() -> Iterator[State | Floats]:
            if earlier is not None:
                yield earlier
            rng = generator(self.random_state)
            while True:
                yield rng.standard_normal((n_columns, settings.n_components))

        with self._fitting(self._attributes, stages_of(settings), problem.data, self.verbose) as reporter:
            n_init = self.n_init if earlier is None else 1
            for start in self._try_starts(reporter, draw(), n_init):
                reporter.result = fit(prepared, start, callbacks=[reporter])
        if reporter.result.status in CUT_SHORT:  # the number of features of an unfinished fit is not meaningful
            return
        # Tempered features share the weights, so that truncating them barely affects predictions.
        if self.temperature_ == 0.0 and self.n_components_ == self.n_components > 1:
            warn_of_truncation(self.n_components_)
        if self.n_components_ == 0 and not settings.include_inputs:
            warn_of_no_features()

    def _prepare(self, problem: TaskProblem, settings: Settings) -> Problem:
        """Return the problem for the model's fit."""
        executor = make_executor(effective_n_jobs(self.n_jobs))
        return prepare(
            problem.X, problem.observations, problem.outputs, settings, problem.row_weights, executor=executor
        )

    def _attributes(self, state: State) -> dict[str, Any]:
        """Return the fitted attributes."""
        return latent_attributes(state)

    def _scores(self, X: Floats) -> Floats:
        return decision(X, self._state)

    def _own_scores(self, X: Floats, outputs: Integers) -> Floats:
        return decision(X, self._state, outputs)

    def transform(self, X: ArrayLike) -> Floats:
        """Return the latent features in use, shape ``(n_samples, n_components_)``.

        A feature is the sum of the standardized inputs, weighted by the probabilities in ``components_``. Its unit does
        not depend on the number of inputs.
        """
        with room_for(self, X):
            return take_columns(features(self._standard_rows(X), self._state), self._used)

    @property
    def _n_features_out(self) -> int:
        return int(self.components_.shape[0])


def make_settings(parameters: Mapping[str, Any], sharing: float) -> Settings:
    """Turn an estimator's parameters into the model's settings."""
    given = dict(parameters)
    noise, prior, max_iter = given["noise_variance"], given["prior_variance"], int(given["max_iter"])
    # A decoupled fit has only the factor analysis of the initialization, so max_iter limits that.
    steps = {"start_iter": max_iter} if given["margins"] == "decoupled" else {}
    return Settings(
        n_components=int(given["n_components"]),
        alpha=float(given["alpha"]),
        loss=given["loss"],
        C=float(given["C"]),
        epsilon=float(given.get("epsilon", 0.0)),
        task_sharing=sharing,
        temperature=given["temperature"],
        generative_weight=given["generative_weight"],
        margins=given["margins"],
        fit_intercept=bool(given["fit_intercept"]),
        include_inputs=bool(given["include_inputs"]),
        noise_variance=None if isinstance(noise, str) else float(noise),
        weight_variance=None if isinstance(prior, str) else float(prior),
        variances="always" if "estimate" in (noise, prior) else "start",
        max_iter=max_iter,
        tol=float(given["tol"]),
        **steps,
    )


def resume(previous: State | None, settings: Settings, n_columns: int) -> State | None:
    """Return the state of an earlier fit for a warm start; None if its shape differs.

    A decoupled fit has a cold start, because its q(Z) does not depend on the targets.
    """
    if previous is None or settings.margins == "decoupled":
        return None
    latent = previous.latent
    if len(latent.logits) != n_columns or latent.logits.shape[1] > settings.n_components:
        return None
    if settings.noise_variance is not None:
        latent = replace(latent, noise_variance=settings.noise_variance)
    if settings.weight_variance is not None:
        latent = replace(latent, weight_variance=settings.weight_variance)
    return replace(previous, latent=latent)


def latent_attributes(state: State) -> dict[str, Any]:
    """Return the fitted attributes of the features and of the tasks' weights, in the model's units."""
    latent, weights = state.latent, state.tasks.weights
    n_columns, n_features = latent.logits.shape
    used = np.flatnonzero(has_weight(weights[:, :n_features]))
    attributes = {
        "_used": list(map(int, used)),
        "components_": latent.psi.T[used],
        "n_components_": len(used),
        "stick_weights_": stick_weights(latent.sticks)[used],
        "noise_variance_": latent.noise_variance,
        "prior_variance_": latent.weight_variance,
        "temperature_": state.scales.tau,
        "generative_weight_": state.scales.generative_weight,
        "coef_features_": weights[:, used],
        "intercept_": weights[:, -1] if state.fit_intercept else np.zeros(len(weights)),
        "_state": state,
    }
    if state.include_inputs:
        inputs = slice(n_features, n_features + n_columns)
        attributes["coef_inputs_"] = weights[:, inputs] * input_factor(n_columns, state.input_scale)
    return attributes


@persistable(skip=("_skl_callbacks",))
class MultiTaskILSVMClassifier(LatentTasks, TaskClassifier):
    """Multi-task max-margin classifier on latent features that all tasks share.

    The multi-task infinite latent support vector machine (MT-iLSVM) jointly learns features and a linear classifier for
    each task. A feature is a subset of the inputs, with an Indian buffet process prior.

    Pass tasks in one of two ways. ``fit(X, Y)`` takes a matrix with a column per task and NaN where a label is missing,
    for several outcomes of a sample. ``fit(X, y, task=ids)`` takes one label per sample and its task, for one outcome
    in many groups. Samples without any label contribute to the features. The columns of ``X`` are standardized inside.

    Tune ``C``, ``n_components`` and ``include_inputs`` first, and ``task_sharing`` with ``task=``. Then tune
    ``temperature`` (0 to interpret the features) and ``generative_weight``.

    Parameters
    ----------
    n_components : int, default=20
        Maximum number of features. The number in use is inferred.
    alpha : float, default=2.0
        Controls the prior number of features (concentration of the Indian buffet process). Larger values expect more.
    C : float, default=0.01
        Controls the penalty on margin violations. Larger values fit the training labels more closely.
    loss : {"squared_hinge", "hinge"}, default="squared_hinge"
        Loss of a margin violation. A task with more than two classes has a one-vs-rest margin per class.
    cost : array-like of shape (n_classes, n_classes), default=None
        ``cost[true, predicted]`` of a wrong class, with a zero diagonal, in the order of ``classes_``. It multiplies
        ``C`` for too high a score of the wrong class. The mean over the wrong classes multiplies ``C`` for too low a
        score of the true class. It is 1 by default, and only valid if all tasks have the same classes.
    class_weight : dict, list of dict, "balanced" or None, default=None
        Factors on ``C`` by class; a list has a dict for each task. "balanced" balances the classes within each task.
    fit_intercept : bool, default=True
        Whether each task has a (penalized) intercept.
    include_inputs : bool, default=False
        Whether the classifiers use the inputs in addition to the latent features.
    task_sharing : float or "auto", default="auto"
        Controls how similar the weights of tasks with the same classes are: a task's weights are its own plus this
        factor times common weights. Larger values make tasks more similar. 0 shares only the features, as in the paper.
        "auto" is 1 with ``task=`` and 0 otherwise.
    unseen_tasks : {"error", "shared"}, default="error"
        Controls what happens for a task without any observed label, in training or prediction: an error, or predictions
        from the common weights. "shared" requires a positive ``task_sharing``.
    temperature : float or "auto", default="auto"
        Controls how far the features are from binary, per observed label. 0 is the untempered posterior, with binary
        features. Higher temperatures give probabilities, a predictive setting. "auto" is
        found from the data; see ``temperature_``.
    generative_weight : float or "auto", default="auto"
        Controls the weight of the reconstruction of a sample relative to the loss of one label. Larger values give
        features that explain ``X``. "auto" follows ``C``, ``temperature`` and ``n_components``.
    margins : {"consistent", "posterior", "decoupled"}, default="consistent"
        Controls the algorithm. "consistent" descends on the objective. "posterior" is the alternation of the paper,
        which may increase it. "decoupled" learns the features without labels, then the classifiers (the paper's
        MT-IBP+SVM).
    unlabeled : object, default=None
        Value of ``y`` that marks a missing label in addition to NaN and None, such as -1.
    scale_inputs : bool, default=True
        Whether the columns of ``X`` are scaled to unit variance. They are always centered.
    noise_variance, prior_variance : float, "auto" or "estimate", default="auto"
        Control the variances of the noise and of a sample's weights for the features. "auto" estimates them during the
        initialization; "estimate" also during the joint fit.
    n_init : int, default=1
        Number of random initializations. The fit with the lowest objective is kept. A warm-started fit has one.
    max_iter : int, default=60
        Maximum number of steps.
    tol : float, default=1e-4
        Change of the objective per label, in units of loss, at which to stop. It also bounds the relative duality gap
        of the SVM subproblems by ``10 * tol``, at most 1e-3; early steps may use a larger gap. 0 solves the subproblems
        to a gap of 1e-12.
    warm_start : bool, default=False
        Whether ``fit`` continues from the last solution.
    random_state : int, RandomState instance or None, default=None
        Controls the initialization.
    n_jobs : int or None, default=None
        Number of threads. The result does not depend on it.
    verbose : int, default=0
        Whether to show a progress bar.

    Attributes
    ----------
    tasks_ : array of shape (n_tasks,)
        The tasks: the values of ``task``, or the columns of ``Y`` (their names for a data frame).
    classes_ : array of shape (n_classes,), or list of such arrays
        The classes; a list by task if the columns of ``Y`` have different ones.
    n_components_ : int
        Number of features in use: those with more than a hundredth of the largest weight of some task.
    components_ : array of shape ``(n_components_, n_features)``
        Probability that an input belongs to a feature.
    coef_features_ : array of shape ``(n_outputs, n_components_)``
        Weights of the features in use: a row per task, in the order of ``tasks_``, or a row per class for a task with
        more than two classes. ``decision_function`` is ``transform(X) @ coef_features_.T + intercept_``, plus
        ``(X - mean_) / scale_ @ coef_inputs_.T`` with ``include_inputs=True``.
    intercept_ : array of shape (n_outputs,)
    coef_inputs_ : array of shape (n_outputs, n_features)
        Weights of the standardized inputs, with ``include_inputs=True``.
    stick_weights_ : array of shape ``(n_components_,)``
        Prior probability that an input belongs to a feature.
    mean_, scale_ : array of shape (n_features,)
        Mean and scale by which ``X`` is standardized.
    noise_variance_, prior_variance_ : float
    temperature_, generative_weight_ : float
        The values of the fit.
    objective_ : float
        Objective of the fit; lower is better.
    trace_ : Trace
        History of the objective and its named terms.
    n_iter_ : int
    n_features_in_, feature_names_in_
        As in scikit-learn.

    See Also
    --------
    MultiTaskILSVMRegressor : The same features for numbers.
    MultiTaskILSVMClassifierCV : Chooses the parameters by cross-validation.
    MultiLabelThresholdCV : Chooses thresholds for rare labels.

    Notes
    -----
    Arrays of PyTorch and CuPy are supported under ``sklearn.config_context(array_api_dispatch=True)``: docs/scale.md.

    Examples
    --------
    >>> from sklearn.datasets import make_multilabel_classification
    >>> from regbayes import MultiTaskILSVMClassifier
    >>> X, Y = make_multilabel_classification(300, n_classes=4, random_state=0)
    >>> model = MultiTaskILSVMClassifier(n_components=8, random_state=0).fit(X[::2], Y[::2])
    >>> model.predict(X[1::2]).shape
    (150, 4)
    >>> from regbayes.metrics import task_accuracy
    >>> bool(task_accuracy(Y[1::2], model.predict(X[1::2])) > 0.75)
    True
    """

    predict_proba = NoProbabilities("MultiTaskILSVMClassifierCV")
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


@persistable(skip=("_skl_callbacks",))
class MultiTaskILSVMRegressor(LatentTasks, TaskRegressor):
    """Multi-task max-margin regression on latent features that all tasks share.

    Features and tasks are those of `MultiTaskILSVMClassifier`. Targets are standardized inside, because the weights and
    intercepts have a standard normal prior.

    Tune the parameters of the classifier first, then ``epsilon``. Set ``scale_targets`` if the tasks of ``task=`` have
    different units.

    Parameters
    ----------
    n_components : int, default=20
        Maximum number of features.
    alpha : float, default=2.0
        Controls the prior number of features (concentration of the Indian buffet process). Larger values expect more.
    C : float, default=0.01
        Controls the penalty on residuals. Larger values fit the training targets more closely.
    loss : {"squared_epsilon_insensitive", "epsilon_insensitive"}, default="squared_epsilon_insensitive"
        Loss of a residual. With ``epsilon=0`` these are the squared and the absolute error.
    epsilon : float, default=0.0
        Controls the size up to which residuals have no loss, in units of the scaled targets.
    fit_intercept, include_inputs, task_sharing, unseen_tasks, temperature, generative_weight, margins
        As in `MultiTaskILSVMClassifier`.
    scale_inputs : bool, default=True
        Whether the columns of ``X`` are scaled to unit variance. They are always centered.
    scale_targets : {"auto", "task", "pooled"} or bool, default="auto"
        Controls how targets are centered and scaled to unit variance: "task" by task, "pooled" all together, and False
        not at all. "auto" and True are "pooled" with ``task=`` and "task" otherwise. "task" is not valid with
        ``unseen_tasks="shared"``.
    noise_variance, prior_variance, n_init, max_iter, tol, warm_start, random_state, n_jobs, verbose
        As in `MultiTaskILSVMClassifier`.

    Attributes
    ----------
    tasks_ : array of shape (n_tasks,)
        The tasks: the values of ``task``, or the columns of ``Y`` (their names for a data frame).
    n_components_ : int
        Number of features in use: those with more than a hundredth of the largest weight of some task.
    components_ : array of shape ``(n_components_, n_features)``
        Probability that an input belongs to a feature.
    coef_features_ : array of shape ``(n_tasks, n_components_)``
        Weights of the features in use, in units of the targets. The prediction is
        ``transform(X) @ coef_features_.T + intercept_``, plus ``(X - mean_) / scale_ @ coef_inputs_.T`` with
        ``include_inputs=True``.
    intercept_ : array of shape (n_tasks,)
    coef_inputs_ : array of shape (n_tasks, n_features)
        Weights of the standardized inputs, with ``include_inputs=True``.
    target_mean_, target_scale_ : array of shape (n_tasks,)
        Mean and scale by which the targets are standardized.
    stick_weights_, mean_, scale_, noise_variance_, prior_variance_, temperature_, generative_weight_
        As in `MultiTaskILSVMClassifier`.
    objective_, trace_, n_iter_, n_features_in_, feature_names_in_
        As in `MultiTaskILSVMClassifier`.

    See Also
    --------
    MultiTaskILSVMRegressorCV : Chooses the parameters by cross-validation.
    regbayes.metrics.explained_variance_within_tasks : Share of the variance within tasks that is explained.

    Notes
    -----
    Arrays of PyTorch and CuPy are supported under ``sklearn.config_context(array_api_dispatch=True)``: docs/scale.md.

    Examples
    --------
    Forty groups of samples with similar coefficients:

    >>> import numpy as np
    >>> from regbayes import MultiTaskILSVMRegressor
    >>> rng = np.random.default_rng(0)
    >>> X, group = rng.standard_normal((800, 6)), np.repeat(np.arange(40), 20)
    >>> slopes = rng.standard_normal(6) + 0.3 * rng.standard_normal((40, 6))
    >>> y = np.sum(X * slopes[group], axis=1) + 0.5 * rng.standard_normal(800)
    >>> model = MultiTaskILSVMRegressor(random_state=0).fit(X[::2], y[::2], task=group[::2])
    >>> model.score(X[1::2], y[1::2], task=group[1::2]) > 0.8
    True
    """

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **MULTITASK_CONSTRAINTS,
        "loss": [StrOptions({"squared_epsilon_insensitive", "epsilon_insensitive"})],
        "epsilon": [NOT_NEGATIVE],
        "scale_targets": [StrOptions({"auto", "task", "pooled"}), "boolean"],
    }

    def __init__(
        self,
        n_components: int = 20,
        *,
        alpha: float = 2.0,
        C: float = 0.01,
        loss: Literal["squared_epsilon_insensitive", "epsilon_insensitive"] = "squared_epsilon_insensitive",
        epsilon: float = 0.0,
        fit_intercept: bool = True,
        include_inputs: bool = False,
        task_sharing: float | Literal["auto"] = "auto",
        unseen_tasks: Literal["error", "shared"] = "error",
        temperature: float | Literal["auto"] = "auto",
        generative_weight: float | Literal["auto"] = "auto",
        margins: Literal["consistent", "posterior", "decoupled"] = "consistent",
        scale_inputs: bool = True,
        scale_targets: Literal["auto", "task", "pooled"] | bool = "auto",
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
        self.epsilon = epsilon
        self.fit_intercept = fit_intercept
        self.include_inputs = include_inputs
        self.task_sharing = task_sharing
        self.unseen_tasks = unseen_tasks
        self.temperature = temperature
        self.generative_weight = generative_weight
        self.margins = margins
        self.scale_inputs = scale_inputs
        self.scale_targets = scale_targets
        self.noise_variance = noise_variance
        self.prior_variance = prior_variance
        self.n_init = n_init
        self.max_iter = max_iter
        self.tol = tol
        self.warm_start = warm_start
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.verbose = verbose

    def _target_units(self, layout: Layout) -> Literal["task", "pooled"] | None:
        chosen: Any = self.scale_targets
        if chosen == "auto" or chosen is True:
            chosen = super()._target_units(layout)
        if chosen == "task" and self.unseen_tasks == "shared":
            raise ValueError(
                "unseen_tasks='shared' needs targets in one unit: set scale_targets='pooled', or False if they are "
                "scaled already"
            )
        return chosen or None

    def _attributes(self, state: State) -> dict[str, Any]:
        """Return the fitted attributes, with weights in units of the targets."""
        found = super()._attributes(state)
        for name in ("coef_features_", "coef_inputs_"):
            if name in found:
                found[name] = found[name] * self.target_scale_[:, None]
        found["intercept_"] = found["intercept_"] * self.target_scale_ + self.target_mean_
        return found
