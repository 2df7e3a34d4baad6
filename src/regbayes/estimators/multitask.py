"""MT-iLSVM: `MultiTaskILSVMClassifier` and `MultiTaskILSVMRegressor`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, replace
from numbers import Integral
from typing import Any, ClassVar, Literal, Self

import numpy as np
from joblib import effective_n_jobs
from numpy.typing import ArrayLike, NDArray
from sklearn.base import ClassifierMixin, RegressorMixin, _fit_context
from sklearn.callback import with_callbacks
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted

from regbayes._types import Floats, Integers
from regbayes.engine import make_executor
from regbayes.engine.mapped import StandardRows
from regbayes.estimators._arrays import answer_beside, bring_targets, on_host
from regbayes.estimators._bases import (
    NOT_NEGATIVE,
    POSITIVE,
    LatentModel,
    check_features_in_use,
    drop_weightless,
    fit_beside,
    fit_data,
    generator,
    has_weight,
    keep_on_failure,
    one_blas_thread,
    public_estimator,
    read_rows,
    room_for,
    warn_of_no_features,
    warn_of_truncation,
)
from regbayes.estimators._calibration import NoProbabilities
from regbayes.estimators._labels import (
    class_factors,
    labels_of_tasks,
    observe_label_matrix,
    observe_labels,
    read_labels,
    scores_of_tasks,
)
from regbayes.estimators._task_bases import (
    Layout,
    TargetMatrix,
    Targets,
    TaskProblem,
    check_no_empty_task,
    in_order_of_tasks,
    known_codes,
    measure_targets,
    read_matrix,
    read_targets,
    standardized,
)
from regbayes.estimators.metrics import explained_variance_pooled, subset_accuracy
from regbayes.kernels.arrays import is_mapped, is_plain, take_columns, to_device, to_host
from regbayes.margins.targets import Observations, ObservedMatrix, Outputs, fill_matrix, observe_numbers
from regbayes.models.ilsvm.starts import POLICY, StructurePolicy
from regbayes.models.indian_buffet import stick_weights
from regbayes.models.mt_ilsvm.fit import CUT_SHORT, Problem, fit, prepare, stages_of
from regbayes.models.mt_ilsvm.model import Settings, State, decision, features, input_factor

RAGGED_SHARING = 1.0
"""Default of rho for ragged tasks, one question asked of many groups: half of a weight's prior variance is common."""
SHARE = "set `task_sharing` and `unseen_tasks='shared'` to predict with the weights that all tasks share."


@dataclass(eq=False, repr=False)
class LatentTasks(LatentModel):
    """Base of MT-iLSVM's estimators, whose tasks share latent features.

    Parameters
    ----------
    n_components : int
        Maximum number of features. The number in use is inferred.
    fit_intercept : bool
        Whether each task has a (penalized) intercept.
    include_inputs : bool
        Whether the linear models use the inputs in addition to the latent features.
    task_sharing : float or "auto"
        Controls how similar the weights of tasks with the same classes are: a task's weights are its own plus this
        factor times common weights. Larger values make tasks more similar. 0 shares only the features, as in the paper.
        "auto" is 1 with ``task=`` and 0 otherwise.
    unseen_tasks : {"error", "shared"}
        Controls what happens for a task without any observed target, in training or prediction: an error, or
        predictions from the common weights. "shared" requires a positive ``task_sharing``.
    temperature : float or "auto"
        Controls how far the features are from binary, per observed target. 0 is the untempered posterior, with binary
        features. Higher temperatures give probabilities, a predictive setting. "auto" is found from the data; see
        ``temperature_``.
    generative_weight : float or "auto"
        Controls the weight of the reconstruction of a sample relative to the loss of one target. Larger values give
        features that explain ``X``. "auto" follows ``C``, ``temperature`` and ``n_components``.
    margins : {"consistent", "posterior", "decoupled"}
        Controls the algorithm. "consistent" descends on the objective. "posterior" is the alternation of the paper,
        which may increase it. "decoupled" learns the features without targets, then the linear models (the paper's
        MT-IBP+SVM).
    scale_inputs : bool
        Whether the columns of ``X`` are scaled to unit variance. They are always centered.
    noise_variance, prior_variance : float, "auto" or "estimate"
        Control the variances of the noise and of a sample's weights for the features. "auto" estimates them during the
        initialization; "estimate" also during the joint fit.
    n_init : int
        Number of random initializations. The fit with the lowest objective is kept. A warm-started fit has one.
    max_iter : int
        Maximum number of steps.
    tol : float
        Change of the objective per target, in units of loss, at which to stop. It also bounds the relative duality gap
        of the SVM subproblems by ``10 * tol``, at most 1e-3; early steps may use a larger gap. 0 solves the subproblems
        to a gap of 1e-12.
    random_state : int, RandomState instance or None
        Controls the initialization.

    Attributes
    ----------
    tasks_ : array of shape (n_tasks,)
        The tasks: the values of ``task``, or the columns of ``Y`` (their names for a data frame).
    n_components_ : int
        Number of features in use: those with more than a hundredth of the largest weight of some task.
    components_ : array of shape ``(n_components_, n_features)``
        Probability that an input belongs to a feature.
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
    """

    n_components: int = 20
    _: KW_ONLY
    max_iter: int = 60
    tol: float = 1e-4
    C: float = 0.01
    fit_intercept: bool = True
    include_inputs: bool = False
    task_sharing: float | Literal["auto"] = "auto"
    unseen_tasks: Literal["error", "shared"] = "error"
    generative_weight: float | Literal["auto"] = "auto"
    margins: Literal["consistent", "posterior", "decoupled"] = "consistent"
    scale_inputs: bool = True
    noise_variance: float | Literal["auto", "estimate"] = "auto"
    prior_variance: float | Literal["auto", "estimate"] = "auto"
    n_init: int = 1

    _policy: ClassVar[StructurePolicy] = POLICY
    _standardizes: ClassVar[bool] = True  # standardizes the inputs, which makes a copy
    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **LatentModel._parameter_constraints,
        "temperature": [NOT_NEGATIVE, StrOptions({"auto"})],
        "C": [POSITIVE],
        "fit_intercept": ["boolean"],
        "include_inputs": ["boolean"],
        "task_sharing": [NOT_NEGATIVE, StrOptions({"auto"})],
        "unseen_tasks": [StrOptions({"error", "shared"})],
        "generative_weight": [POSITIVE, StrOptions({"auto"})],  # positive: the natural gradient is divided by it
        "margins": [StrOptions({"consistent", "posterior", "decoupled"})],
        "scale_inputs": ["boolean"],
        "noise_variance": [POSITIVE, StrOptions({"auto", "estimate"})],
        "prior_variance": [POSITIVE, StrOptions({"auto", "estimate"})],
        "n_init": [Interval(Integral, 1, None, closed="left")],
    }

    def _read_targets(self, y: Any, task: Any, X: Floats) -> Targets | TargetMatrix:
        given: dict[str, Any] = {
            "numeric": isinstance(self, RegressorMixin),
            "unlabeled": getattr(self, "unlabeled", None),
        }
        return read_matrix(y, task, X, **given) or read_targets(y, task, X, **given)

    def _observe(self, targets: Any, weights: Floats | None) -> tuple[Observations | ObservedMatrix, Outputs]:
        """Return the targets as observations without sample weights, and their outputs."""
        raise NotImplementedError

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
        """Raise an error if a task has no targets and cannot use common weights."""
        if self.unseen_tasks != "shared":
            check_no_empty_task(targets, f"Leave it out, or {SHARE}")
        elif self._sharing(targets.layout) == 0:
            raise ValueError("`unseen_tasks='shared'` requires `task_sharing` above 0, for example 1.")

    @with_callbacks
    @_fit_context(prefer_skip_nested_validation=True)
    def fit(
        self, X: ArrayLike, y: ArrayLike, task: ArrayLike | None = None, sample_weight: ArrayLike | None = None
    ) -> Self:
        """Fit all tasks.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Sparse samples become dense.
        y : array-like of shape (n_samples, n_tasks) or (n_samples,)
            Targets, NaN or None where missing: a column per task, or one per sample with ``task``. A vector without
            ``task`` is a single task.
        task : array-like of shape (n_samples,), default=None
            The task of each sample.
        sample_weight : array-like of shape (n_samples,), default=None
            How often each sample counts: 2 counts it twice, 0 leaves it out. The sum is the data's size relative to the
            prior. Divide survey weights by their mean to keep the balance of an unweighted fit.

        Returns
        -------
        self
        """
        with keep_on_failure(self), room_for(self, X), one_blas_thread():
            given = read_rows(self, X, ensure_min_samples=2)
            y, task, sample_weight = bring_targets(given, y=y, task=task, sample_weight=sample_weight)
            data = fit_data(given, y, task=task, sample_weight=sample_weight)
            rows, weights, y, task = drop_weightless(given, sample_weight, y, task)
            targets = self._read_targets(y, task, rows)
            self._check_tasks(targets)
            targets, order = in_order_of_tasks(targets, rows.shape[0])
            stays = is_mapped(rows)
            centred, self.mean_, self.scale_ = standardized(rows, self.scale_inputs, order, weights, stays)
            weights = weights if weights is None or order is None else weights[order]
            observations, self._outputs = self._observe(targets, weights)
            self.tasks_, self._layout = targets.ids, targets.layout
            del targets  # frees memory: the model has its own copy
            with fit_beside(self, given):
                self._learn(TaskProblem(centred, weights, observations, self._outputs, data))
        return self

    def _learn(self, problem: Any) -> None:
        """Fit the model and set the fitted attributes."""
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
                reporter.result = fit(prepared, start, callbacks=[reporter], policy=self._policy)
        if reporter.result.status in CUT_SHORT:  # the number of features of an unfinished fit is not meaningful
            return
        # Tempered features share the weights, so that truncating them barely affects predictions.
        if self.temperature_ == 0.0 and self.n_components_ == self.n_components > 1:
            warn_of_truncation(self.n_components_)
        if self.n_components_ == 0 and not settings.include_inputs:
            warn_of_no_features()

    def _prepare(self, problem: Any, settings: Settings) -> Problem:
        """Return the problem for the model's fit."""
        executor = make_executor(effective_n_jobs(self.n_jobs))
        return prepare(
            problem.X, problem.observations, problem.outputs, settings, problem.row_weights, executor=executor
        )

    def _attributes(self, state: State) -> dict[str, Any]:
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

    def _standard_rows(self, X: ArrayLike) -> Any:
        check_is_fitted(self, "tasks_")
        X, mean, scale = read_rows(self, X, reset=False), to_host(self.mean_), to_host(self.scale_)
        if not is_plain(X):
            return (X - to_device(mean, X)) / to_device(scale, X)
        if is_mapped(X):
            return StandardRows(X, mean, scale)
        centred = X - mean
        centred /= scale
        return centred

    def _score_rows(self, X: ArrayLike, task: ArrayLike | None) -> tuple[Floats, Integers]:
        """Return scores and tasks of samples: (n, M), or with ``task`` the scores of each sample's own task."""
        with room_for(self, X):
            rows, name = self._standard_rows(X), type(self).__name__
            (task,) = bring_targets(rows, task=task)
            if self._layout == "ragged" and task is None:
                raise ValueError(f"{name} was fitted with `task`, so prediction requires `task`.")
            if self._layout != "ragged" and task is not None:
                raise ValueError(f"{name} was fitted without `task` and predicts all tasks. Leave `task` out.")
            if self._layout != "ragged":
                return decision(rows, self._state)[:, : len(self._outputs)], np.zeros(rows.shape[0], dtype=np.int64)
            ids, shares = to_host(self.tasks_), self.unseen_tasks == "shared"
            remedy = SHARE[0].upper() + SHARE[1:]
            codes = known_codes(ids, task, rows.shape[0], allow_unseen=shares, remedy=remedy)
            n_outputs = len(self._outputs) // len(ids)
            own = codes[:, None] * n_outputs + np.arange(n_outputs)
            shared = -1 - self._outputs.groups[:n_outputs]  # an unseen task has the common score of its class's group
            return decision(rows, self._state, np.where(codes[:, None] >= 0, own, shared)), codes

    def predict(self, X: ArrayLike, task: ArrayLike | None = None) -> NDArray[Any]:
        """Return predicted classes or numbers, (n_samples, n_tasks) after ``fit(X, Y)`` or (n_samples,).

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        task : array-like of shape (n_samples,), default=None
            The task of each sample, if ``fit`` received ``task``.
        """
        predictions: NDArray[Any] = answer_beside(self._predictions(X, task), X)
        return predictions

    def _predictions(self, X: ArrayLike, task: ArrayLike | None) -> NDArray[Any]:
        """Return predictions in host memory."""
        raise NotImplementedError

    def transform(self, X: ArrayLike) -> Floats:
        """Return the latent features in use, shape ``(n_samples, n_components_)``.

        A feature is the sum of the standardized inputs, weighted by the probabilities in ``components_``. Its unit does
        not depend on the number of inputs.
        """
        with room_for(self, X):
            return take_columns(features(self._standard_rows(X), self._state), self._used)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


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


@public_estimator
class MultiTaskILSVMClassifier(ClassifierMixin, LatentTasks):
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
    C : float, default=0.01
        Controls the penalty on margin violations. Larger values fit the training labels more closely. It must be
        finite; with ``loss="hinge"`` a large value gives hard margins if the features separate the classes.
    loss : {"squared_hinge", "hinge"}, default="squared_hinge"
        Loss of a margin violation. A task with more than two classes has a one-vs-rest margin per class.
    cost : array-like of shape (n_classes, n_classes), default=None
        ``cost[true, predicted]`` of a wrong class, with a zero diagonal, in the order of ``classes_``. It multiplies
        ``C`` for too high a score of the wrong class. The mean over the wrong classes multiplies ``C`` for too low a
        score of the true class. It is 1 by default, and only valid if all tasks have the same classes.
    class_weight : dict, list of dict, "balanced" or None, default=None
        Factors on ``C`` by class; a list has a dict for each task. "balanced" balances the classes within each task.
    unlabeled : object, default=None
        Value of ``y`` that marks a missing label in addition to NaN and None, such as -1.

    Attributes
    ----------
    classes_ : array of shape (n_classes,), or list of such arrays
        The classes; a list by task if the columns of ``Y`` have different ones.
    coef_features_ : array of shape ``(n_outputs, n_components_)``
        Weights of the features in use: a row per task, in the order of ``tasks_``, or a row per class for a task with
        more than two classes. ``decision_function`` is ``transform(X) @ coef_features_.T + intercept_``, plus
        ``(X - mean_) / scale_ @ coef_inputs_.T`` with ``include_inputs=True``.

    See Also
    --------
    MultiTaskILSVMRegressor : The same features for numbers.
    MultiTaskILSVMClassifierCV : Chooses the parameters by cross-validation.
    MultiLabelThresholdCV : Chooses thresholds for rare labels.

    Notes
    -----
    Arrays of PyTorch and CuPy are supported under ``sklearn.config_context(array_api_dispatch=True)`` (:doc:`/scale`).

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

    _: KW_ONLY
    loss: Literal["squared_hinge", "hinge"] = "squared_hinge"
    cost: ArrayLike | None = None
    class_weight: Any = None
    unlabeled: Any = None

    predict_proba = NoProbabilities("MultiTaskILSVMClassifierCV")
    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **LatentTasks._parameter_constraints,
        "loss": [StrOptions({"squared_hinge", "hinge"})],
        "cost": ["array-like", None],
        "class_weight": [dict, list, StrOptions({"balanced"}), None],
        "unlabeled": "no_validation",
    }

    def _observe(self, targets: Any, weights: Floats | None) -> tuple[Observations | ObservedMatrix, Outputs]:
        if isinstance(targets, TargetMatrix):
            found, outputs, labels = observe_label_matrix(targets, self.class_weight, self.cost, weights)
            self.classes_: Any = labels.common_classes
            return found, outputs
        labels = read_labels(targets)
        self.classes_ = labels.common_classes
        factors = class_factors(self.class_weight, labels.classes, labels.count(targets, weights))
        return observe_labels(targets, labels, factors, self.cost)

    def decision_function(self, X: ArrayLike, task: ArrayLike | None = None) -> Floats | list[Floats]:
        """Return scores: positive for the second of two classes, or a column per class.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        task : array-like of shape (n_samples,), default=None
            The task of each sample, if ``fit`` received ``task``.

        Returns
        -------
        array of shape (n_samples, n_tasks) after ``fit(X, Y)``, or a list with an entry per task if some have more
        than two classes; (n_samples,) or (n_samples, n_classes) after ``fit(X, y)`` and ``fit(X, y, task=...)``.
        """
        return answer_beside(self._decide(X, task), X)

    def _decide(self, X: ArrayLike, task: ArrayLike | None) -> Floats | list[Floats]:
        scores, _ = self._score_rows(X, task)
        layout: Layout = "matrix" if self._layout == "matrix" else "single"  # with ``task`` a sample has one prediction
        return scores_of_tasks(scores, layout, self._outputs)

    def _predictions(self, X: ArrayLike, task: ArrayLike | None) -> NDArray[Any]:
        scores = self._decide(X, task)
        classes = self.classes_ if isinstance(self.classes_, list) else to_host(self.classes_)
        return labels_of_tasks(scores, self._layout, classes)

    def score(
        self, X: ArrayLike, y: ArrayLike, task: ArrayLike | None = None, sample_weight: ArrayLike | None = None
    ) -> float:
        """Return the share of samples whose observed labels are all predicted.

        `regbayes.metrics.task_accuracy` is the accuracy per label.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        y : array-like of shape (n_samples, n_tasks) or (n_samples,)
            Labels; missing ones count as correct, and samples without any label are left out.
        task : array-like of shape (n_samples,), default=None
            The task of each sample, if ``fit`` received ``task``.
        sample_weight : array-like of shape (n_samples,), default=None
            Weight of each sample.
        """
        y, predicted, sample_weight = on_host(y, self.predict(X, task), sample_weight)
        return subset_accuracy(y, predicted, unlabeled=self.unlabeled, sample_weight=sample_weight)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        return tags


@public_estimator
class MultiTaskILSVMRegressor(RegressorMixin, LatentTasks):
    """Multi-task max-margin regression on latent features that all tasks share.

    Features and tasks are those of `MultiTaskILSVMClassifier`. Targets are standardized inside, because the weights and
    intercepts have a standard normal prior.

    Tune the parameters of the classifier first, then ``epsilon``. Set ``scale_targets`` if the tasks of ``task=`` have
    different units.

    Parameters
    ----------
    C : float, default=0.01
        Controls the penalty on residuals. Larger values fit the training targets more closely.
    loss : {"squared_epsilon_insensitive", "epsilon_insensitive"}, default="squared_epsilon_insensitive"
        Loss of a residual. With ``epsilon=0`` these are the squared and the absolute error.
    epsilon : float, default=0.0
        Controls the size up to which residuals have no loss, in units of the scaled targets.
    scale_targets : {"auto", "task", "pooled"} or bool, default="auto"
        Controls how targets are centered and scaled to unit variance: "task" by task, "pooled" all together, and False
        not at all. "auto" and True are "pooled" with ``task=`` and "task" otherwise. "task" is not valid with
        ``unseen_tasks="shared"``.

    Attributes
    ----------
    coef_features_ : array of shape ``(n_tasks, n_components_)``
        Weights of the features in use, in units of the targets. The prediction is
        ``transform(X) @ coef_features_.T + intercept_``, plus ``(X - mean_) / scale_ @ coef_inputs_.T`` with
        ``include_inputs=True``.
    target_mean_, target_scale_ : array of shape (n_tasks,)
        Mean and scale by which the targets are standardized.

    See Also
    --------
    MultiTaskILSVMRegressorCV : Chooses the parameters by cross-validation.
    regbayes.metrics.explained_variance_within_tasks : Share of the variance within tasks that is explained.

    Notes
    -----
    Arrays of PyTorch and CuPy are supported under ``sklearn.config_context(array_api_dispatch=True)`` (:doc:`/scale`).

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

    _: KW_ONLY
    loss: Literal["squared_epsilon_insensitive", "epsilon_insensitive"] = "squared_epsilon_insensitive"
    epsilon: float = 0.0
    scale_targets: Literal["auto", "task", "pooled"] | bool = "auto"

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **LatentTasks._parameter_constraints,
        "loss": [StrOptions({"squared_epsilon_insensitive", "epsilon_insensitive"})],
        "epsilon": [NOT_NEGATIVE],
        "scale_targets": [StrOptions({"auto", "task", "pooled"}), "boolean"],
    }

    def _target_units(self, layout: Layout) -> Literal["task", "pooled"] | None:
        """Return whether targets are standardized by task, all together, or not at all."""
        chosen: Any = self.scale_targets
        if chosen == "auto" or chosen is True:
            chosen = "pooled" if layout == "ragged" else "task"
        if chosen == "task" and self.unseen_tasks == "shared":
            raise ValueError(
                "`unseen_tasks='shared'` requires targets in one unit. Set `scale_targets='pooled'`, or False if they "
                "are scaled already."
            )
        return chosen or None

    def _observe(self, targets: Any, weights: Floats | None) -> tuple[Observations | ObservedMatrix, Outputs]:
        units = self._target_units(targets.layout)
        if isinstance(targets, TargetMatrix):
            return self._observe_matrix(targets, weights, units)
        self.target_mean_, self.target_scale_ = measure_targets(targets, weights, units)
        values = (targets.values - self.target_mean_[targets.tasks]) / self.target_scale_[targets.tasks]
        return observe_numbers(targets.rows, targets.tasks, values, len(targets.ids))

    def _observe_matrix(
        self, targets: TargetMatrix, weights: Floats | None, units: Literal["task", "pooled"] | None
    ) -> tuple[ObservedMatrix, Outputs]:
        n_rows, n_tasks = targets.values.shape
        self.target_mean_, self.target_scale_ = np.zeros(n_tasks), np.ones(n_tasks)

        def observe(task: int) -> tuple[int, Observations]:
            own, here = targets.column(task), slice(task, task + 1)
            self.target_mean_[here], self.target_scale_[here] = measure_targets(own, weights, units)
            values = (own.values - self.target_mean_[task]) / self.target_scale_[task]
            return task, observe_numbers(own.rows, own.tasks, values, 1)[0]

        nothing = np.zeros(0, dtype=np.int64)
        outputs = observe_numbers(nothing, nothing, np.zeros(0), n_tasks)[1]
        return fill_matrix(map(observe, range(n_tasks)), n_tasks, n_rows, numbers=True), outputs

    def _predictions(self, X: ArrayLike, task: ArrayLike | None) -> Floats:
        scores, tasks = self._score_rows(X, task)
        scale, mean = to_host(self.target_scale_), to_host(self.target_mean_)
        if self._layout == "matrix":
            return scores * scale + mean
        # An unseen task, -1, uses the scale of the last task: unseen tasks require one scale for all.
        return scores[:, 0] * scale[tasks] + mean[tasks]

    def score(
        self, X: ArrayLike, y: ArrayLike, task: ArrayLike | None = None, sample_weight: ArrayLike | None = None
    ) -> float:
        """Return R² over all observed targets, pooled.

        It is `regbayes.metrics.explained_variance_pooled`. Use it for targets of one unit. With several units,
        differences between the means of tasks count as explained variance, so the score is near 1 for any model.
        `sklearn.metrics.r2_score` (``scoring="r2"``) averages over targets.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        y : array-like of shape (n_samples, n_tasks) or (n_samples,)
            Targets; missing ones are left out.
        task : array-like of shape (n_samples,), default=None
            The task of each sample, if ``fit`` received ``task``.
        sample_weight : array-like of shape (n_samples,), default=None
            Weight of each sample's targets.
        """
        y, predicted, sample_weight = on_host(y, self.predict(X, task), sample_weight)
        return explained_variance_pooled(y, predicted, sample_weight=sample_weight)

    def _attributes(self, state: State) -> dict[str, Any]:
        """Return the fitted attributes, with weights in units of the targets."""
        found = super()._attributes(state)
        for name in ("coef_features_", "coef_inputs_"):
            if name in found:
                found[name] = found[name] * self.target_scale_[:, None]
        found["intercept_"] = found["intercept_"] * self.target_scale_ + self.target_mean_
        return found
