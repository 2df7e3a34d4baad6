"""ASO: alternating structure optimisation, a subspace of weights that the tasks share (Ando and Zhang 2005)."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any, ClassVar

from sklearn.utils._param_validation import Interval

from regbayes._registry import persistable
from regbayes.estimators._bases import POSITIVE
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
from regbayes_paper.models.linear_tasks import structure
from regbayes_paper.models.linear_tasks.problem import Loss
from regbayes_paper.models.linear_tasks.structure import StructureSettings

WORDS = {
    "model": """\
Half the $loss, plus ``alpha / 2`` times the squared part of the weights outside a subspace of
``n_components`` dimensions, plus ``shared_alpha`` times that for the part inside. Weights and subspace are found in
turn; the best subspace is that of the largest singular vectors of all tasks' weights. Intercepts are free.""",
    "first": """\
Parameters to turn first: ``n_components`` and ``alpha``. Then ``shared_alpha``; the others seldom matter.""",
    "parameters": """\
n_components : int, default=2
    Dimensions of the subspace. No more are used than there are inputs, or one less than weight vectors: in as many
    dimensions as there are weight vectors all of them would be cheap.
alpha : float, default=1.0
    Penalty on squared weights outside the subspace.
shared_alpha : float, default=0.01
    Penalty on squared weights inside the subspace, as a share of alpha, from 0 to 1. The paper has 0, with which
    weights may grow without end where labels can be separated.
fit_intercept : bool, default=True
    Whether each task has an intercept.
$scale_inputs
max_iter : int, default=200
    Alternations at most.
tol : float, default=1e-5
    Relative change of the objective at which to stop.""",
    "attributes": """\
components_ : array of shape (n_components, n_features)
    Orthonormal directions of the subspace, in standardised inputs.""",
    "reference": """\
R. K. Ando and T. Zhang (2005). A framework for learning predictive structures from multiple tasks and unlabeled
data. JMLR 6.""",
}


class _StructuredTasks(LinearScores, TaskModel):
    """What the regressor and the classifier have in common: all but the loss."""

    _loss: ClassVar[Loss]
    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **TASK_CONSTRAINTS,
        **ITERATION_CONSTRAINTS,
        "n_components": [Interval(Integral, 1, None, closed="left")],
        "alpha": [POSITIVE],
        "shared_alpha": [Interval(Real, 0, 1, closed="both")],
        "fit_intercept": ["boolean"],
    }

    def __init__(
        self,
        n_components: int = 2,
        *,
        alpha: float = 1.0,
        shared_alpha: float = 0.01,
        fit_intercept: bool = True,
        scale_inputs: bool = True,
        max_iter: int = 200,
        tol: float = 1e-5,
    ) -> None:
        self.n_components = n_components
        self.alpha = alpha
        self.shared_alpha = shared_alpha
        self.fit_intercept = fit_intercept
        self.scale_inputs = scale_inputs
        self.max_iter = max_iter
        self.tol = tol

    def _learn(self, problem: TaskProblem) -> None:
        constant = 1.0 if self.fit_intercept else 0.0
        n_inputs = problem.X.shape[1]
        settings = StructureSettings(
            n_components=min(int(self.n_components), problem.n_outputs - 1, n_inputs),
            alpha=float(self.alpha),
            beta=float(self.shared_alpha * self.alpha),
            n_inputs=n_inputs,
            max_iter=int(self.max_iter),
            tol=float(self.tol),
        )
        linear = linear_problem(problem, self._loss, constant)

        def attributes(state: Any) -> dict[str, Any]:
            return {**linear_attributes(state.weights, constant), "components_": state.subspace}

        with self._fitting(attributes, settings.max_iter, problem.data) as reporter:
            reporter.result = structure.fit(linear, settings, [reporter])


@persistable(skip=("_skl_callbacks",))
@document(WORDS, loss="squared errors")
class ASORegressor(_StructuredTasks, TaskRegressor):
    """Alternating structure optimisation (ASO) for numbers: tasks share a subspace in which weights are cheap.

    $regressor

    Examples
    --------
    >>> import numpy as np
    >>> from regbayes_paper.baselines import ASORegressor
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((50, 10))
    >>> Y = X @ rng.standard_normal((10, 1)) @ rng.standard_normal((1, 8)) + rng.standard_normal((50, 8))
    >>> ASORegressor(1, alpha=100.0).fit(X, Y).components_.shape
    (1, 10)
    """

    _loss = "squared"


@persistable(skip=("_skl_callbacks",))
@document(WORDS, loss="squared hinge losses")
class ASOClassifier(_StructuredTasks, TaskClassifier):
    """Alternating structure optimisation (ASO) for labels: tasks share a subspace in which weights are cheap.

    $classifier

    Examples
    --------
    >>> from sklearn.datasets import make_multilabel_classification
    >>> from regbayes_paper.baselines import ASOClassifier
    >>> X, Y = make_multilabel_classification(300, n_classes=4, random_state=0)
    >>> ASOClassifier(2, alpha=100.0).fit(X[::2], Y[::2]).score(X[1::2], Y[1::2]) > 0.75
    True
    """

    _loss = "squared_hinge"
    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **_StructuredTasks._parameter_constraints,
        **LABEL_CONSTRAINTS,
    }

    def __init__(
        self,
        n_components: int = 2,
        *,
        alpha: float = 1.0,
        shared_alpha: float = 0.01,
        fit_intercept: bool = True,
        class_weight: Any = None,
        unlabeled: Any = None,
        scale_inputs: bool = True,
        max_iter: int = 200,
        tol: float = 1e-5,
    ) -> None:
        super().__init__(
            n_components,
            alpha=alpha,
            shared_alpha=shared_alpha,
            fit_intercept=fit_intercept,
            scale_inputs=scale_inputs,
            max_iter=max_iter,
            tol=tol,
        )
        self.class_weight = class_weight
        self.unlabeled = unlabeled
