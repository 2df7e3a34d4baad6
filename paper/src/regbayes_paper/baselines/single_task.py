"""Single-task learning (STL): every task by itself, the row of the tables that multi-task learning must beat."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from sklearn.linear_model import Ridge

from regbayes._registry import persistable
from regbayes.estimators._bases import NOT_NEGATIVE, POSITIVE, FitReporter
from regbayes.estimators._labels import TaskClassifier
from regbayes.estimators._task_bases import TaskProblem, TaskRegressor
from regbayes.margins.coordinate_ascent import TaskLayout
from regbayes.margins.head import solve_tasks
from regbayes_paper.baselines._linear_tasks import (
    LABEL_CONSTRAINTS,
    TASK_CONSTRAINTS,
    LinearScores,
    document,
    linear_attributes,
    linear_problem,
)

TOL = 1e-12  # duality gap, relative to the objective
MAX_EPOCHS = 10_000.0


@persistable(skip=("_skl_callbacks",))
@document()
class SingleTaskRegressor(LinearScores, TaskRegressor):
    """One ridge regression per task.

    $of_numbers

    Parameter to turn first: ``alpha``.

    Parameters
    ----------
    alpha : float, default=1.0
        Penalty on squared weights, as in scikit-learn's `Ridge`, on standardised inputs. The intercept is free.
    fit_intercept : bool, default=True
        Whether each task has an intercept.
    $scale_inputs

    Attributes
    ----------
    $tasks
    $weights_of_numbers
    $target_units
    $inputs

    Examples
    --------
    >>> import numpy as np
    >>> from regbayes_paper.baselines import SingleTaskRegressor
    >>> X, group = np.arange(12.0)[:, None], np.arange(12) % 3
    >>> model = SingleTaskRegressor(alpha=0.001).fit(X, X[:, 0] * (1 + group), task=group)
    >>> model.predict([[2.0], [2.0]], task=[0, 2]).round(1)
    array([2., 6.])
    """

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **TASK_CONSTRAINTS,
        "alpha": [NOT_NEGATIVE],
        "fit_intercept": ["boolean"],
    }

    def __init__(self, alpha: float = 1.0, *, fit_intercept: bool = True, scale_inputs: bool = True) -> None:
        self.alpha = alpha
        self.fit_intercept = fit_intercept
        self.scale_inputs = scale_inputs

    def _learn(self, problem: TaskProblem) -> None:
        with FitReporter(self, problem.n_outputs, problem.data, dict):
            linear = linear_problem(problem, "squared", 0.0)
            fitted = []
            for here in linear.slices:
                model, seen = Ridge(self.alpha, fit_intercept=self.fit_intercept), problem.counted
                rows = problem.X[seen.rows[here]]
                fitted.append(model.fit(rows, seen.targets[here], sample_weight=seen.weights[here]))
            self.coef_ = np.stack([model.coef_ for model in fitted])
            self.intercept_ = np.array([float(model.intercept_) for model in fitted])


@persistable(skip=("_skl_callbacks",))
@document()
class SingleTaskClassifier(LinearScores, TaskClassifier):
    """One linear support vector machine per task.

    $of_labels

    Parameter to turn first: ``C``.

    Parameters
    ----------
    C : float, default=1.0
        Penalty on a squared margin violation, as in scikit-learn's `LinearSVC`.
    fit_intercept : bool, default=True
        Whether each task has a (penalised) intercept.
    $label_parameters
    $scale_inputs

    Attributes
    ----------
    $tasks
    $classes
    $weights_of_labels
    $units
    $inputs

    Examples
    --------
    >>> from sklearn.datasets import make_multilabel_classification
    >>> from regbayes_paper.baselines import SingleTaskClassifier
    >>> X, Y = make_multilabel_classification(300, n_classes=4, random_state=0)
    >>> SingleTaskClassifier(C=0.01).fit(X[::2], Y[::2]).score(X[1::2], Y[1::2]) > 0.75
    True
    """

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **TASK_CONSTRAINTS,
        **LABEL_CONSTRAINTS,
        "C": [POSITIVE],
        "fit_intercept": ["boolean"],
    }

    def __init__(
        self,
        C: float = 1.0,
        *,
        fit_intercept: bool = True,
        class_weight: Any = None,
        unlabeled: Any = None,
        scale_inputs: bool = True,
    ) -> None:
        self.C = C
        self.fit_intercept = fit_intercept
        self.class_weight = class_weight
        self.unlabeled = unlabeled
        self.scale_inputs = scale_inputs

    def _learn(self, problem: TaskProblem) -> None:
        with FitReporter(self, problem.n_outputs, problem.data, dict):
            constant = 1.0 if self.fit_intercept else 0.0
            linear, seen = linear_problem(problem, "squared_hinge", constant), problem.counted
            form = seen.dual_form("squared_hinge", float(self.C))
            layout = TaskLayout(seen.rows, seen.outputs, np.arange(problem.n_outputs))
            found = solve_tasks(linear.X, form, layout, tol=TOL, max_epochs=MAX_EPOCHS)
            attributes = linear_attributes(found.weights, constant)
            self.coef_, self.intercept_ = attributes["coef_"].copy(), attributes["intercept_"].copy()
            for m, here in enumerate(linear.slices):
                signs = seen.targets[here]
                if len(np.unique(signs)) < 2:  # one class throughout (or weights of 0): that class, whatever the inputs
                    self.coef_[m], self.intercept_[m] = 0.0, float(signs[:1].sum())
