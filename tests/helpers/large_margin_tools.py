"""Dual forms of losses and simulated data for the tests of the SVM solvers."""

from __future__ import annotations

import warnings

import cvxpy as cp
import numpy as np

from regbayes.margins.ascent import (
    DEFAULT_MAX_EPOCHS,
    BoxAscent,
    SimplexAscent,
    TaskLayout,
    ascend,
)
from regbayes.regularization.dual_forms import classes_form
from regbayes.regularization.regularizers import (
    Affine,
    EpsilonInsensitive,
    Hinge,
)

TIGHT, DEFAULT_TOL = 1e-12, 1e-4
LIBLINEAR = {"tol": 1e-9, "max_iter": 10_000_000, "random_state": 0}


def hinge_loss(signs, C, squared, margin=1.0):
    """Return ``sum_i C_i max(0, margin - sign_i score_i)``, or its squared form."""
    return Affine(Hinge(C, 2.0 if squared else 1.0).shift(-margin), scale=-signs)


def tube_loss(values, C, squared, epsilon=0.0):
    """Return ``sum_i C_i max(0, |score_i - value_i| - epsilon)``, or squared."""
    return EpsilonInsensitive(values, epsilon, C, 2.0 if squared else 1.0)


def box_form(loss, n):
    """Return the dual form of the loss as a function of the negative scores."""
    return loss.reflect().dual_form(n)


def signs_form(signs, C, squared=False):
    return box_form(hinge_loss(signs, np.broadcast_to(C, signs.shape), squared), signs.size)


def hinge_form(n, C):
    return signs_form(np.ones(n), C)


def squared_hinge_form(n, C):
    return signs_form(np.ones(n), C, squared=True)


def tube_form(targets, epsilon, C):
    return box_form(tube_loss(targets, np.broadcast_to(C, targets.shape), False, epsilon), targets.size)


def squared_tube_form(targets, epsilon, C):
    return box_form(tube_loss(targets, np.broadcast_to(C, targets.shape), True, epsilon), targets.size)


def multi_class_form(labels, cost, C, *, squared=False, by_row=False):
    """Return the dual form for costs by true class, or by sample (`by_row`)."""
    row = np.arange(len(labels)) if by_row else labels
    return classes_form(np.asarray(cost, dtype=float), row, np.broadcast_to(C, len(labels)).astype(float), squared)


def multi_class_squared_form(labels, cost, C, **options):
    return multi_class_form(labels, cost, C, squared=True, **options)


BINARY = {"hinge": hinge_form, "squared_hinge": squared_hinge_form}
REGRESSION = {"epsilon_insensitive": tube_form, "squared_epsilon_insensitive": squared_tube_form}
MULTI_CLASS = {"hinge": multi_class_form, "squared_hinge": multi_class_squared_form}


def one_task(n):
    return TaskLayout(np.arange(n), np.zeros(n, dtype=int), np.zeros(1, dtype=int))


def solve_tasks(features, form, layout, *, warm_start=None, tol=DEFAULT_TOL, max_epochs=DEFAULT_MAX_EPOCHS, seed=0):
    """Solve a box-constrained dual problem."""
    problem = BoxAscent(features, form, layout, warm_start)
    return ascend(problem, tol, max_epochs, seed)


def solve_one_task(features, form, **options):
    return solve_tasks(features, form, one_task(len(form)), **options)


def solve_classes(
    features,
    labels,
    cost,
    C,
    loss="hinge",
    *,
    by_row=False,
    warm_start=None,
    tol=DEFAULT_TOL,
    max_epochs=DEFAULT_MAX_EPOCHS,
    seed=0,
):
    """Solve a multi-class dual problem."""
    problem = SimplexAscent(features, MULTI_CLASS[loss](labels, cost, C, by_row=by_row), labels, warm_start)
    return ascend(problem, tol, max_epochs, seed)


def binary_data(rng, n=120, d=6):
    X = rng.normal(size=(n, d)) + 0.5
    signs = np.where(X @ rng.normal(size=d) + rng.normal(size=n) > 0, 1.0, -1.0)
    return X, signs


def multi_class_data(rng, n=90, d=5, n_classes=4, spread=1.0):
    centres = rng.normal(size=(n_classes, d))
    labels = rng.integers(n_classes, size=n)
    return centres[labels] + spread * rng.normal(size=(n, d)), labels


def multi_class_primal(X, labels, cost, C, weights, squared=False):
    scores = X @ weights.T
    rows = np.arange(len(labels))
    slack = np.max(cost[labels] + scores - scores[rows, labels][:, None], axis=1)
    return 0.5 * np.sum(weights**2) + np.sum(C * (slack**2 if squared else slack))


# --- CVXPY ------------------------------------------------------------------------------------------------------------


def minimise(objective):
    """Return CVXPY's minimum at tighter tolerances than its defaults."""
    problem = cp.Problem(cp.Minimize(objective))
    with warnings.catch_warnings():
        # The solver warns if it misses these tight tolerances; callers compare with looser ones.
        warnings.filterwarnings("ignore", message="Solution may be inaccurate")
        problem.solve(solver=cp.CLARABEL, tol_gap_abs=1e-10, tol_gap_rel=1e-10, tol_feas=1e-10)
    assert problem.status in (cp.OPTIMAL, cp.OPTIMAL_INACCURATE)
    return float(problem.value)


def missed_margins(X, labels, weights, cost):
    """Return the margin violation of each class as an expression (n, classes)."""
    scores = X @ weights.T
    own = cp.sum(cp.multiply(scores, np.eye(len(cost))[labels]), axis=1)
    return cost[labels] + scores - cp.reshape(own, (len(labels), 1), order="C")
