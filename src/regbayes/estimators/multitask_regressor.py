"""`MultiTaskILSVMRegressor`: many related numbers, one shared set of latent features."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from sklearn.utils._param_validation import StrOptions

from regbayes._registry import persistable
from regbayes.estimators._bases import NOT_NEGATIVE
from regbayes.estimators._multitask import MULTITASK_CONSTRAINTS, LatentTasks
from regbayes.estimators._task_bases import TaskRegressor
from regbayes.estimators._tasks import Layout
from regbayes.models.mt_ilsvm.model import State


@persistable(skip=("_skl_callbacks",))
class MultiTaskILSVMRegressor(LatentTasks, TaskRegressor):
    """Multi-task infinite latent support vector regression: numbers of many tasks from one shared set of features.

    `MultiTaskILSVMClassifier` says what the features are and how tasks are given. Targets are centred and scaled
    inside, because weights, intercepts among them, have a standard normal prior.

    Parameters to turn first: those of the classifier; then ``epsilon``, and ``scale_targets`` where tasks with
    ``task=`` have different units.

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
    noise_variance, prior_variance, n_init, max_iter, tol, warm_start, random_state, n_jobs, verbose
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
    objective_, trace_, n_iter_, n_features_in_, feature_names_in_
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
        """Fitted attributes, with weights in the targets' units."""
        found = super()._attributes(state)
        for name in ("coef_", "coef_inputs_"):
            if name in found:
                found[name] = found[name] * self.target_scale_[:, None]
        found["intercept_"] = found["intercept_"] * self.target_scale_ + self.target_mean_
        return found
