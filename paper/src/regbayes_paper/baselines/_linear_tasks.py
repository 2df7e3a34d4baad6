"""What the multi-task baselines share beyond the bases of all task models: linear scores, and words about them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from numbers import Integral
from string import Template
from typing import Any, TypeVar

import numpy as np
from sklearn.utils._param_validation import Interval, StrOptions

from regbayes._types import Floats
from regbayes.estimators._bases import NOT_NEGATIVE
from regbayes.estimators._task_bases import TaskProblem
from regbayes_paper.models.linear_tasks.problem import LinearTasks, Loss

AnyClass = TypeVar("AnyClass", bound=type)

TASK_CONSTRAINTS: dict[str, list[Any]] = {"scale_inputs": ["boolean"]}
ITERATION_CONSTRAINTS: dict[str, list[Any]] = {
    "max_iter": [Interval(Integral, 1, None, closed="left")],
    "tol": [NOT_NEGATIVE],
}
LABEL_CONSTRAINTS: dict[str, Any] = {
    "class_weight": [dict, list, StrOptions({"balanced"}), None],
    "unlabeled": "no_validation",
}

WORDS = {
    "of_numbers": """\
Columns of X are standardised inside, and so are targets: those of all tasks together with ``task=``, those of each
column of Y by itself otherwise.""",
    "of_labels": """\
A task with more than two classes has weights for each ("this class or another?"). Columns of X are standardised
inside.""",
    "label_parameters": """\
class_weight : dict, list of dict, "balanced" or None, default=None
    Factors on the loss by class; a list has a dict for each task. "balanced" balances the classes within each task.
unlabeled : object, default=None
    A value of y that marks a missing label beside NaN and None, -1 for instance.""",
    "scale_inputs": """\
scale_inputs : bool, default=True
    Whether columns of X are scaled to unit variance inside. They are always centred.""",
    "tasks": """\
tasks_ : array of shape (n_tasks,)
    The tasks: what ``task`` held, the columns of Y (their names, if it was a data frame), or one for a vector y.""",
    "classes": """\
classes_ : array of shape (n_classes,), or list of such arrays
    The classes; those of each task, if the columns of Y have different ones.""",
    "weights_of_numbers": """\
coef_ : array of shape (n_tasks, n_features)
    Weights of the standardised inputs for standardised targets: predictions are
    ``((X - mean_) / scale_ @ coef_.T + intercept_) * target_scale_ + target_mean_``.
intercept_ : array of shape (n_tasks,)""",
    "weights_of_labels": """\
coef_ : array of shape (n_outputs, n_features)
    Weights of the standardised inputs: a row per task, or a row per class for a task with more than two.
    ``decision_function`` is ``(X - mean_) / scale_ @ coef_.T + intercept_``.
intercept_ : array of shape (n_outputs,)""",
    "units": """\
mean_, scale_ : array of shape (n_features,)
    What X is centred and divided by.""",
    "target_units": """\
mean_, scale_ : array of shape (n_features,)
    What X is centred and divided by.
target_mean_, target_scale_ : array of shape (n_tasks,)
    Likewise the targets.""",
    "course": """\
trace_ : Trace
    History of the objective and its named terms.
n_iter_ : int""",
    "inputs": """\
n_features_in_, feature_names_in_
    As in scikit-learn.""",
    "fitted_to_numbers": "$tasks\n$weights_of_numbers\n$target_units\n$course\n$inputs",
    "fitted_to_labels": "$tasks\n$classes\n$weights_of_labels\n$units\n$course\n$inputs",
    "regressor": """\
$model

$of_numbers

$first

Parameters
----------
$parameters

Attributes
----------
$attributes
$fitted_to_numbers

References
----------
$reference""",
    "classifier": """\
$model

$of_labels

$first

Parameters
----------
$parameters
$label_parameters

Attributes
----------
$attributes
$fitted_to_labels

References
----------
$reference""",
}
"""Pieces of docstrings that several classes have, by what stands for them there; one may have others in it."""


def document(words: Mapping[str, str] | None = None, **more: str) -> Callable[[AnyClass], AnyClass]:
    """Return a decorator that puts pieces of text where ``$name`` stands for them in a class's docstring.

    Pieces are `WORDS`, which all baselines have, and what is given.
    """
    pieces = {**WORDS, **(words or {}), **more}

    def fill(cls: AnyClass) -> AnyClass:
        text = inspect.cleandoc(cls.__doc__ or "")
        while "$" in text:
            text = Template(text).substitute(pieces)
        cls.__doc__ = text
        return cls

    return fill


class LinearScores:
    """Scores that are linear in the standardised rows: ``(X - mean_) / scale_ @ coef_.T + intercept_``."""

    coef_: Floats
    intercept_: Floats

    def _scores(self, X: Floats) -> Floats:
        return X @ self.coef_.T + self.intercept_


def linear_problem(problem: TaskProblem, loss: Loss, constant: float, balanced: bool = False) -> LinearTasks:
    """Return the problem of linear scores.

    A constant above 0 is the column that carries the intercepts. Balanced outputs count alike, however many targets
    they have: weights are 1 on average.
    """
    X = np.column_stack([problem.X, np.full(len(problem.X), constant)]) if constant else problem.X
    seen, M = problem.counted, problem.n_outputs
    if balanced:
        counts = np.bincount(seen.outputs, problem.counts[seen.rows], minlength=M)
        share = counts.sum() / (M * np.where(counts > 0, counts, 1.0))
        seen = replace(seen, weights=seen.weights * share[seen.outputs])
    return LinearTasks(X, seen, M, loss, problem.counts)


def linear_attributes(weights: Floats, constant: float) -> dict[str, Any]:
    """Return the coefficients and intercepts of weights whose last column belongs to the constant, if there is one."""
    if not constant:
        return {"coef_": weights, "intercept_": np.zeros(len(weights))}
    return {"coef_": weights[:, :-1], "intercept_": weights[:, -1] * constant}
