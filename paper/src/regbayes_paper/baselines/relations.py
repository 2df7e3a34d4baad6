"""MTRL: task relationship learning, a convex problem in weights and covariance of the tasks (Zhang and Yeung 2010)."""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils._param_validation import StrOptions

from regbayes._registry import persistable
from regbayes._types import Floats
from regbayes.estimators._bases import NOT_NEGATIVE, POSITIVE
from regbayes.estimators._labels import TaskClassifier
from regbayes.estimators._task_bases import TaskModel, TaskProblem, TaskRegressor
from regbayes_paper.baselines._linear_tasks import (
    ITERATION_CONSTRAINTS,
    LABEL_CONSTRAINTS,
    TASK_CONSTRAINTS,
    LinearScores,
    document,
    linear_attributes,
    linear_problem,
)
from regbayes_paper.models.linear_tasks import relations
from regbayes_paper.models.linear_tasks.problem import Loss
from regbayes_paper.models.linear_tasks.relations import Relations, RelationSettings

WORDS = {
    "model": """\
The weight vectors of the tasks and a covariance between tasks are learned together from one convex problem
(Zhang and Yeung 2010): half the $loss, plus ``alpha / 2`` times the squared weights, plus
``relation_alpha / 2`` times their squared length in the metric of the covariance, whose trace is the number of weight
vectors. Tasks may be related positively, negatively, or not at all.""",
    "first": """\
Parameters to turn first: ``relation_alpha`` and ``alpha``. Then ``balance_tasks``, for tasks of different sizes, and
``intercept_scaling``; the others seldom matter.""",
    "parameters": """\
alpha : float, default=0.0
    Penalty on squared weights.
relation_alpha : float, default=1.0
    Penalty on weights that the relations between tasks do not explain.
task_covariance : "learn" or array-like of shape (n_outputs, n_outputs), default="learn"
    The covariance of the rows of ``coef_``, where it is known. The identity makes every one a linear model of its own.
balance_tasks : bool, default=True
    Whether tasks count alike, as in the paper, or every target does. What tasks have in common is shrunk towards
    zero too, most for tasks that count little: on ragged tasks of different sizes balance matters.
fit_intercept : bool, default=True
    Whether each task has an intercept. It is the weight of a constant input, and shared like the others.
intercept_scaling : float, default=1.0
    Size of the constant input. Large values set the intercepts free.
$scale_inputs
max_iter : int, default=200
    Alternations at most.
tol : float, default=1e-5
    Relative change of the objective at which to stop.""",
    "attributes": """\
task_covariance_, task_correlation_ : array of shape (n_outputs, n_outputs)
    How the rows of ``coef_`` are related.""",
    "reference": """\
Y. Zhang and D.-Y. Yeung (2010). A convex formulation for learning task relationships in multi-task learning. UAI.""",
}


class _RelatedTasks(LinearScores, TaskModel):
    """What the regressor and the classifier have in common: all but the loss."""

    _loss: ClassVar[Loss]
    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **TASK_CONSTRAINTS,
        **ITERATION_CONSTRAINTS,
        "alpha": [NOT_NEGATIVE],
        "relation_alpha": [POSITIVE],
        "task_covariance": [StrOptions({"learn"}), "array-like"],
        "balance_tasks": ["boolean"],
        "fit_intercept": ["boolean"],
        "intercept_scaling": [POSITIVE],
    }

    def __init__(
        self,
        alpha: float = 0.0,
        relation_alpha: float = 1.0,
        *,
        task_covariance: ArrayLike = "learn",
        balance_tasks: bool = True,
        fit_intercept: bool = True,
        intercept_scaling: float = 1.0,
        scale_inputs: bool = True,
        max_iter: int = 200,
        tol: float = 1e-5,
    ) -> None:
        self.alpha = alpha
        self.relation_alpha = relation_alpha
        self.task_covariance = task_covariance
        self.balance_tasks = balance_tasks
        self.fit_intercept = fit_intercept
        self.intercept_scaling = intercept_scaling
        self.scale_inputs = scale_inputs
        self.max_iter = max_iter
        self.tol = tol

    def _learn(self, problem: TaskProblem) -> None:
        constant = float(self.intercept_scaling) if self.fit_intercept else 0.0
        settings = RelationSettings(
            alpha=float(self.alpha),
            beta=float(self.relation_alpha),
            covariance=self._read_covariance(problem.n_outputs),
            max_iter=int(self.max_iter),
            tol=float(self.tol),
        )
        linear = linear_problem(problem, self._loss, constant, balanced=bool(self.balance_tasks))
        with self._fitting(partial(_attributes, constant=constant), settings.max_iter, problem.data) as reporter:
            reporter.result = relations.fit(linear, settings, [reporter])

    def _read_covariance(self, n_outputs: int) -> Floats | None:
        """Return the covariance that the user gave, None if there is none."""
        if isinstance(self.task_covariance, str):
            return None
        given = np.asarray(self.task_covariance, dtype=np.float64)
        if given.shape != (n_outputs, n_outputs):
            raise ValueError(
                f"task_covariance must have shape ({n_outputs}, {n_outputs}), a row per output; got {given.shape}"
            )
        if not np.all(np.isfinite(given)) or not np.allclose(given, given.T):
            raise ValueError("task_covariance must be finite and symmetric")
        lowest = float(np.linalg.eigvalsh(given)[0])
        if lowest <= 0.0:
            raise ValueError(f"task_covariance must be positive definite; its lowest eigenvalue is {lowest:.3g}")
        return given


def _attributes(state: Relations, constant: float) -> dict[str, Any]:
    spread = np.sqrt(np.diag(state.covariance))
    spread = np.where(spread > 0, spread, 1.0)  # a task without weights is related to none
    return {
        **linear_attributes(state.weights, constant),
        "task_covariance_": state.covariance,
        "task_correlation_": state.covariance / np.outer(spread, spread),
    }


@persistable(skip=("_skl_callbacks",))
@document(WORDS, loss="squared errors")
class MTRLRegressor(_RelatedTasks, TaskRegressor):
    """Multi-task relationship learning (MTRL) for numbers: linear models, and how the tasks are related.

    $regressor

    Examples
    --------
    >>> import numpy as np
    >>> from regbayes_paper.baselines import MTRLRegressor
    >>> rng = np.random.default_rng(0)
    >>> X, w = rng.standard_normal((40, 3)), np.array([1.0, -1.0, 0.5])
    >>> Y = np.outer(X @ w, [1.0, 1.0, -1.0]) + 0.1 * rng.standard_normal((40, 3))
    >>> MTRLRegressor().fit(X, Y).task_correlation_.round(1)
    array([[ 1.,  1., -1.],
           [ 1.,  1., -1.],
           [-1., -1.,  1.]])
    """

    _loss = "squared"


@persistable(skip=("_skl_callbacks",))
@document(WORDS, loss="squared hinge losses")
class MTRLClassifier(_RelatedTasks, TaskClassifier):
    """Multi-task relationship learning (MTRL) for labels: linear classifiers, and how the tasks are related.

    $classifier

    Examples
    --------
    >>> from sklearn.datasets import make_multilabel_classification
    >>> from regbayes_paper.baselines import MTRLClassifier
    >>> X, Y = make_multilabel_classification(300, n_classes=4, random_state=0)
    >>> MTRLClassifier(relation_alpha=30.0).fit(X[::2], Y[::2]).score(X[1::2], Y[1::2]) > 0.75
    True
    """

    _loss = "squared_hinge"
    _parameter_constraints: ClassVar[dict[str, Any]] = {**_RelatedTasks._parameter_constraints, **LABEL_CONSTRAINTS}

    def __init__(
        self,
        alpha: float = 0.0,
        relation_alpha: float = 1.0,
        *,
        task_covariance: ArrayLike = "learn",
        balance_tasks: bool = True,
        fit_intercept: bool = True,
        intercept_scaling: float = 1.0,
        class_weight: Any = None,
        unlabeled: Any = None,
        scale_inputs: bool = True,
        max_iter: int = 200,
        tol: float = 1e-5,
    ) -> None:
        super().__init__(
            alpha,
            relation_alpha,
            task_covariance=task_covariance,
            balance_tasks=balance_tasks,
            fit_intercept=fit_intercept,
            intercept_scaling=intercept_scaling,
            scale_inputs=scale_inputs,
            max_iter=max_iter,
            tol=tol,
        )
        self.class_weight = class_weight
        self.unlabeled = unlabeled
