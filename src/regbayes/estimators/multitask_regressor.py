"""`MultiTaskILSVMRegressor`: many related numbers, one shared set of latent features."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, RegressorMixin, TransformerMixin, _fit_context
from sklearn.callback import CallbackSupportMixin, with_callbacks
from sklearn.utils._param_validation import StrOptions
from sklearn.utils.validation import check_is_fitted, validate_data

from regbayes._registry import Saveable, persistable
from regbayes._types import Floats
from regbayes.estimators._common import NOT_NEGATIVE
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
from regbayes.estimators._tasks import Targets, in_order_of_tasks, known_codes, read_targets, take_weighted_rows
from regbayes.estimators.metrics import explained_variance_pooled
from regbayes.margins.targets import observe_numbers
from regbayes.models.mt_ilsvm.model import State, decision, features


@persistable(skip=("_skl_callbacks",))
class MultiTaskILSVMRegressor(
    Saveable,
    CallbackSupportMixin,
    ClassNamePrefixFeaturesOutMixin,
    TransformerMixin,
    RegressorMixin,
    BaseEstimator,
):
    """Multi-task infinite latent support vector regression: numbers of many tasks from one shared set of features.

    `MultiTaskILSVMClassifier` says what the features are and how tasks are given. Targets are centred and scaled
    inside, because weights, intercepts among them, have a standard normal prior.

    Parameters
    ----------
    n_components : int, default=20
        Truncation: the most features there can be.
    alpha : float, default=2.0
        Concentration of the Indian buffet process: larger values expect more features.
    C : float, default=0.01
        What one unit of loss costs.
    loss : {"squared_epsilon_insensitive", "epsilon_insensitive"}, default="squared_epsilon_insensitive"
        Loss of a residual. With ``epsilon=0`` they are the squared and the absolute residual.
    epsilon : float, default=0.0
        Residuals up to this are free, in the unit that ``scale_targets`` makes: the targets' standard deviation.
    fit_intercept, include_inputs, task_sharing, unseen_tasks, temperature, generative_weight, margins
        As in `MultiTaskILSVMClassifier`.
    scale_inputs : bool, default=True
        Whether columns of X are scaled to unit variance inside. They are always centred.
    scale_targets : {"auto", "task", "pooled"} or bool, default="auto"
        Whether targets are centred and scaled to unit variance inside, each task by itself or all of them together.
        "auto", or True, is "pooled" with ``task=``, where targets have one unit, and "task" otherwise.
    noise_variance, prior_variance, max_iter, tol, warm_start, random_state, n_jobs, verbose
        As in `MultiTaskILSVMClassifier`.

    Attributes
    ----------
    tasks_ : array of shape (n_tasks,)
        The tasks: what ``task`` held, the columns of Y (their names, if it was a data frame), or one for a vector y.
    n_components_ : int
        Features in use: on for some input (above .5) and not the same for all (range above .1).
    components_ : array of shape (n_components, n_features)
        Probability that a feature has an input column.
    coef_ : array of shape (n_tasks, n_components)
        Weights of the features, in the targets' units. The prediction is ``transform(X) @ coef_.T + intercept_``, plus
        ``(X - mean_) / scale_ @ coef_inputs_.T`` if inputs are included.
    intercept_ : array of shape (n_tasks,)
    coef_inputs_ : array of shape (n_tasks, n_features)
        Weights of the standardised inputs, where they are included.
    target_mean_, target_scale_ : array of shape (n_tasks,)
        What targets are centred and divided by.
    stick_weights_, mean_, scale_, noise_variance_, prior_variance_, temperature_, generative_weight_
        As in `MultiTaskILSVMClassifier`.
    trace_, n_iter_, n_features_in_, feature_names_in_
        As in `MultiTaskILSVMClassifier`.

    See Also
    --------
    MultiTaskILSVMRegressorCV : Chooses the parameters by cross-validation.
    regbayes.metrics.explained_variance_within_tasks : What is explained beyond the tasks' means.

    Examples
    --------
    Forty groups of ten rows that follow similar, but not the same, laws:

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
            Rows without any target are welcome: they shape the features.
        y : array-like of shape (n_samples, n_tasks) or (n_samples,)
            Numbers, NaN where missing: a column per task, or with ``task`` one per row. A vector without ``task`` is
            one task.
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
        targets = read_targets(y, task, X, numeric=True)
        sharing = choose_sharing(self.task_sharing, targets.layout)
        check_tasks(targets, sharing, self.unseen_tasks)
        targets, order = in_order_of_tasks(targets, len(X))
        centred, self.mean_, self.scale_ = standardized(X, self.scale_inputs, order, weights)
        weights = weights if weights is None or order is None else weights[order]
        self.target_mean_, self.target_scale_ = self._target_units(targets, weights)
        values = (targets.values - self.target_mean_[targets.tasks]) / self.target_scale_[targets.tasks]
        self.tasks_, self._layout = targets.ids, targets.layout
        run_fit(
            self,
            centred,
            observe_numbers(targets.rows, targets.tasks, values, len(targets.ids)),
            make_settings(self.get_params(deep=False), sharing, float(self.epsilon)),
            sample_weight=weights,
            data=data,
            attributes=self._attributes,
        )
        return self

    def _target_units(self, targets: Targets, weights: Floats | None) -> tuple[Floats, Floats]:
        """Return the mean and the scale of each task's targets, of rows that may have weights."""
        n_tasks = len(targets.ids)
        chosen = self.scale_targets
        if chosen == "auto" or chosen is True:
            chosen = "pooled" if targets.layout == "ragged" else "task"
        if not chosen:
            return np.zeros(n_tasks), np.ones(n_tasks)
        counted = None if weights is None else weights[targets.rows]
        if chosen == "pooled":
            _, mean, scale = standardized(targets.values[:, None], scaled=True, sample_weight=counted)
            return np.repeat(mean, n_tasks), np.repeat(scale, n_tasks)
        if self.unseen_tasks == "shared":
            raise ValueError(
                "unseen_tasks='shared' needs targets in one unit: set scale_targets='pooled', or False if they are "
                "scaled already"
            )
        by_task = np.split(np.argsort(targets.tasks, kind="stable"), np.cumsum(targets.counts)[:-1])
        units = [
            standardized(targets.values[here, None], True, sample_weight=None if counted is None else counted[here])[1:]
            for here in by_task
        ]
        means, scales = np.array(units)[:, :, 0].T
        return means, scales

    def _attributes(self, state: State) -> dict[str, Any]:
        """Fitted attributes, with weights in the targets' units."""
        found = latent_attributes(state)
        for name in ("coef_", "coef_inputs_"):
            if name in found:
                found[name] = found[name] * self.target_scale_[:, None]
        found["intercept_"] = found["intercept_"] * self.target_scale_ + self.target_mean_
        return found

    def transform(self, X: ArrayLike) -> Floats:
        """Return the latent features of rows, shape (n_samples, n_components).

        A feature is the sum of the standardised inputs that have it, weighted by their probabilities, in a unit that
        does not depend on their number.
        """
        return features(self._checked(X), self._state)

    def predict(self, X: ArrayLike, task: ArrayLike | None = None) -> Floats:
        """Return predictions, shape (n_samples, n_tasks) after ``fit(X, Y)`` and (n_samples,) otherwise.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        task : array-like of shape (n_samples,), default=None
            The task of each row, if ``fit`` was told.
        """
        X = self._checked(X)
        check_task_given(type(self).__name__, self._layout, task)
        if self._layout == "ragged":
            codes = known_codes(self.tasks_, task, len(X), allow_unseen=self.unseen_tasks == "shared")
            # -1, a task that was not seen, is also how the model calls the weights that tasks share.
            return decision(X, self._state, codes) * self.target_scale_[codes] + self.target_mean_[codes]
        found = decision(X, self._state) * self.target_scale_ + self.target_mean_
        return found[:, 0] if self._layout == "single" else found

    def score(
        self, X: ArrayLike, y: ArrayLike, task: ArrayLike | None = None, sample_weight: ArrayLike | None = None
    ) -> float:
        """Return R² over all observed targets, pooled: `regbayes.metrics.explained_variance_pooled`.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        y : array-like of shape (n_samples, n_tasks) or (n_samples,)
            Targets, missing ones left out.
        task : array-like of shape (n_samples,), default=None
            The task of each row, if ``fit`` was told.
        sample_weight : array-like of shape (n_samples,), default=None
            How much the targets of each row count.
        """
        return explained_variance_pooled(y, self.predict(X, task), sample_weight=sample_weight)

    def _checked(self, X: ArrayLike) -> Floats:
        check_is_fitted(self, "components_")
        X = validate_data(self, X, dtype=np.float64, reset=False)
        return np.asarray((X - self.mean_) / self.scale_)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    @property
    def _n_features_out(self) -> int:
        return len(self.components_)
