"""ASO: alternating structure optimisation, a subspace of weights that the tasks share (Ando and Zhang 2005)."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any, ClassVar

from sklearn.utils._param_validation import Interval

from regbayes._registry import persistable
from regbayes.baselines._linear_tasks import (
    ITERATION_CONSTRAINTS,
    LABEL_CONSTRAINTS,
    TASK_CONSTRAINTS,
    LinearScores,
    TaskClassifier,
    TaskModel,
    TaskProblem,
    TaskRegressor,
    linear_attributes,
)
from regbayes.estimators._common import POSITIVE
from regbayes.models.linear_tasks import structure
from regbayes.models.linear_tasks.problem import Loss
from regbayes.models.linear_tasks.structure import Structure, StructureSettings

STRUCTURE_CONSTRAINTS: dict[str, list[Any]] = {
    **TASK_CONSTRAINTS,
    **ITERATION_CONSTRAINTS,
    "n_components": [Interval(Integral, 1, None, closed="left")],
    "alpha": [POSITIVE],
    "shared_price": [Interval(Real, 0, 1, closed="both")],
    "fit_intercept": ["boolean"],
}


class _StructuredTasks(LinearScores, TaskModel):
    """What the regressor and the classifier have in common: all but the loss."""

    _loss: ClassVar[Loss]

    def _learn(self, problem: TaskProblem) -> None:
        constant = 1.0 if self.fit_intercept else 0.0
        n_inputs = problem.X.shape[1]
        settings = StructureSettings(
            n_components=min(int(self.n_components), problem.n_outputs - 1, n_inputs),
            alpha=float(self.alpha),
            beta=float(self.shared_price * self.alpha),
            n_inputs=n_inputs,
            max_iter=int(self.max_iter),
            tol=float(self.tol),
        )
        linear = problem.linear(self._loss, constant)
        self._run(
            problem,
            lambda callbacks: structure.fit(linear, settings, callbacks),
            lambda state: _attributes(state, constant),
        )


def _attributes(state: Structure, constant: float) -> dict[str, Any]:
    return {**linear_attributes(state.weights, constant), "components_": state.subspace}


@persistable(skip=("_skl_callbacks",))
class ASORegressor(_StructuredTasks, TaskRegressor):
    """Alternating structure optimisation (ASO) for numbers: tasks share a subspace in which weights are cheap.

    Half the squared errors, plus ``alpha / 2`` times the squared part of the weights outside a subspace of
    ``n_components`` dimensions, plus ``shared_price`` times that for the part inside. Weights and subspace are found in
    turn; the best subspace is that of the largest singular vectors of all tasks' weights. Intercepts are free.

    Columns of X are standardised inside, and so are targets: those of all tasks together with ``task=``, those of each
    column of Y by itself otherwise.

    Parameters
    ----------
    n_components : int, default=2
        Dimensions of the subspace. No more are used than there are inputs, or one less than tasks: in as many
        dimensions as there are tasks all of their weights would be cheap.
    alpha : float, default=1.0
        Price of squared weights outside the subspace.
    shared_price : float, default=0.01
        Price of squared weights inside the subspace, as a share of alpha, from 0 to 1. The paper has 0, with which
        weights may grow without end where labels can be separated.
    fit_intercept : bool, default=True
        Whether each task has an intercept.
    scale_inputs : bool, default=True
        Whether columns of X are scaled to unit variance inside. They are always centred.
    max_iter : int, default=200
        Alternations at most.
    tol : float, default=1e-5
        Relative change of the objective at which to stop.
    verbose : int, default=0
        Whether to show a progress bar.

    Attributes
    ----------
    tasks_ : array of shape (n_tasks,)
        The tasks: what ``task`` held, the columns of Y (their names, if it was a data frame), or one for a vector y.
    components_ : array of shape (n_components, n_features)
        Orthonormal directions of the subspace, in standardised inputs.
    coef_ : array of shape (n_tasks, n_features)
        Weights of the standardised inputs for standardised targets: predictions are
        ``((X - mean_) / scale_ @ coef_.T + intercept_) * target_scale_ + target_mean_``.
    intercept_ : array of shape (n_tasks,)
    mean_, scale_ : array of shape (n_features,)
        What X is centred and divided by.
    target_mean_, target_scale_ : array of shape (n_tasks,)
        Likewise the targets.
    trace_ : Trace
        Course of the objective and its named terms.
    n_iter_ : int
    n_features_in_, feature_names_in_
        As in scikit-learn.

    References
    ----------
    R. K. Ando and T. Zhang (2005). A framework for learning predictive structures from multiple tasks and unlabeled
    data. JMLR 6.

    Examples
    --------
    >>> import numpy as np
    >>> from regbayes.baselines import ASORegressor
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((50, 10))
    >>> Y = X @ rng.standard_normal((10, 1)) @ rng.standard_normal((1, 8)) + rng.standard_normal((50, 8))
    >>> ASORegressor(1, alpha=100.0).fit(X, Y).components_.shape
    (1, 10)
    """

    _loss = "squared"
    _parameter_constraints: ClassVar[dict[str, Any]] = STRUCTURE_CONSTRAINTS

    def __init__(
        self,
        n_components: int = 2,
        *,
        alpha: float = 1.0,
        shared_price: float = 0.01,
        fit_intercept: bool = True,
        scale_inputs: bool = True,
        max_iter: int = 200,
        tol: float = 1e-5,
        verbose: int = 0,
    ) -> None:
        self.n_components = n_components
        self.alpha = alpha
        self.shared_price = shared_price
        self.fit_intercept = fit_intercept
        self.scale_inputs = scale_inputs
        self.max_iter = max_iter
        self.tol = tol
        self.verbose = verbose


@persistable(skip=("_skl_callbacks",))
class ASOClassifier(_StructuredTasks, TaskClassifier):
    """Alternating structure optimisation (ASO) for labels: tasks share a subspace in which weights are cheap.

    As `ASORegressor`, with half the squared hinge loss in the place of half the squared errors. A task with more than
    two classes has a weight vector for each ("this class or another?").

    Parameters
    ----------
    n_components : int, default=2
        Dimensions of the subspace. No more are used than there are inputs, or one less than weight vectors.
    alpha : float, default=1.0
        Price of squared weights outside the subspace.
    shared_price : float, default=0.01
        Price of squared weights inside the subspace, as a share of alpha, from 0 to 1. The paper has 0, with which
        weights may grow without end where labels can be separated.
    fit_intercept : bool, default=True
        Whether each task has an intercept.
    class_weight : dict, list of dict, "balanced" or None, default=None
        Factors on the loss by class; a list has a dict for each task. "balanced" balances the classes within each task.
    unlabeled : object, default=None
        A value of y that marks a missing label beside NaN and None, -1 for instance.
    scale_inputs : bool, default=True
        Whether columns of X are scaled to unit variance inside. They are always centred.
    max_iter : int, default=200
        Alternations at most.
    tol : float, default=1e-5
        Relative change of the objective at which to stop.
    verbose : int, default=0
        Whether to show a progress bar.

    Attributes
    ----------
    tasks_ : array of shape (n_tasks,)
        The tasks: what ``task`` held, the columns of Y (their names, if it was a data frame), or one for a vector y.
    classes_ : array of shape (n_classes,), or list of such arrays
        The classes; those of each task, if the columns of Y have different ones.
    components_ : array of shape (n_components, n_features)
        Orthonormal directions of the subspace, in standardised inputs.
    coef_ : array of shape (n_outputs, n_features)
        Weights of the standardised inputs: a row per task, or a row per class for a task with more than two.
        ``decision_function`` is ``(X - mean_) / scale_ @ coef_.T + intercept_``.
    intercept_ : array of shape (n_outputs,)
    mean_, scale_ : array of shape (n_features,)
        What X is centred and divided by.
    trace_ : Trace
        Course of the objective and its named terms.
    n_iter_ : int
    n_features_in_, feature_names_in_
        As in scikit-learn.

    References
    ----------
    R. K. Ando and T. Zhang (2005). A framework for learning predictive structures from multiple tasks and unlabeled
    data. JMLR 6.

    Examples
    --------
    >>> from sklearn.datasets import make_multilabel_classification
    >>> from regbayes.baselines import ASOClassifier
    >>> X, Y = make_multilabel_classification(300, n_classes=4, random_state=0)
    >>> ASOClassifier(2, alpha=100.0).fit(X[::2], Y[::2]).score(X[1::2], Y[1::2]) > 0.75
    True
    """

    _loss = "squared_hinge"
    _parameter_constraints: ClassVar[dict[str, Any]] = {**STRUCTURE_CONSTRAINTS, **LABEL_CONSTRAINTS}

    def __init__(
        self,
        n_components: int = 2,
        *,
        alpha: float = 1.0,
        shared_price: float = 0.01,
        fit_intercept: bool = True,
        class_weight: Any = None,
        unlabeled: Any = None,
        scale_inputs: bool = True,
        max_iter: int = 200,
        tol: float = 1e-5,
        verbose: int = 0,
    ) -> None:
        self.n_components = n_components
        self.alpha = alpha
        self.shared_price = shared_price
        self.fit_intercept = fit_intercept
        self.class_weight = class_weight
        self.unlabeled = unlabeled
        self.scale_inputs = scale_inputs
        self.max_iter = max_iter
        self.tol = tol
        self.verbose = verbose
