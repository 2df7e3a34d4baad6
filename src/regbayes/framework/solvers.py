"""The door to the solvers: a dual form and features in, weights, multipliers and a certificate out.

Two solvers, for two kinds of problem. Dual coordinate ascent takes any loss and needs all rows in memory. Newton's
method takes smooth losses and sees sums over the rows alone. Where both would do, ascent has the first say: it is fast
where rows are few for each weight or a warm start is close, and creeps where they are many and C is large.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from regbayes._types import Floats, Reals
from regbayes.engine import Status
from regbayes.framework.coordinate_ascent import (
    DEFAULT_MAX_EPOCHS,
    DEFAULT_TOL,
    BoxAscent,
    MarginSolution,
    TaskLayout,
    ascend,
)
from regbayes.framework.dual_forms import BoxDual
from regbayes.framework.newton import BoxBlock, SharedPrior, solve_boxes

# A Newton step costs about as much as features / 16 passes of coordinate ascent, which gets the first say.
MIN_PATIENCE = 4.0
PATIENCE_PER_FEATURE = 8.0
# With so many rows for each weight the factors of the tasks cost little, and a Newton step little more than a pass.
MIN_ROWS_PER_WEIGHT = 10
# Newton steps converge quadratically: a gap far below the one asked for costs a step at most, and a descent over
# features, which the gap blurs, gains more by it.
NEWTON_SHARE = 0.01
MAX_NEWTON_SIZE = 20_000_000  # numbers in the second derivatives of all tasks


def solve_tasks(
    features: Reals,
    form: BoxDual,
    layout: TaskLayout,
    *,
    warm_start: Floats | None = None,
    warm_weights: Floats | None = None,
    tol: float = DEFAULT_TOL,
    max_epochs: float = DEFAULT_MAX_EPOCHS,
    seed: int = 0,
) -> MarginSolution:
    """Solve a large-margin problem over a box, for one task or several that share weights, by whichever is faster.

    Parameters
    ----------
    features, form, layout, warm_start, tol, max_epochs, seed
        As in `regbayes.framework.coordinate_ascent.solve_box`; a Newton step counts as one epoch.
    warm_weights : (tasks, d), optional
        Weights of an earlier solution: a better start for Newton's method than those that multipliers imply, where
        the features have changed.
    """
    n_tasks, n_features = len(layout.group), features.shape[1]
    if warm_weights is not None and warm_weights.shape != (n_tasks, n_features):
        raise ValueError(f"warm_weights must have shape {(n_tasks, n_features)}; got {warm_weights.shape}")
    is_smooth = bool(np.all(form.ridge > 0.0)) and n_tasks * n_features**2 <= MAX_NEWTON_SIZE
    patience = max(MIN_PATIENCE, n_features / PATIENCE_PER_FEATURE)
    if not is_smooth or max_epochs <= patience:
        problem = BoxAscent(features, form, layout, warm_start)
        return problem.solution(ascend(problem, tol, max_epochs, seed))
    has_many_rows = len(form) >= MIN_ROWS_PER_WEIGHT * n_tasks * n_features
    start, n_epochs = warm_weights, 0.0
    if has_many_rows and _is_quadratic(form):  # one step is exact, from anywhere
        start = np.zeros((n_tasks, n_features)) if start is None else start
    else:
        problem = BoxAscent(features, form, layout, warm_start)
        if has_many_rows and _is_worse_than_nothing(problem):
            start = problem.expected_weights() if start is None else start
        else:
            outcome = ascend(problem, tol, patience, seed)
            if outcome.status is not Status.ITERATION_LIMIT:
                return problem.solution(outcome)
            start, n_epochs = problem.expected_weights(), outcome.n_epochs
    block, prior = BoxBlock.of(features, form, layout), SharedPrior(layout.group, layout.sharing)
    # The look at the start is not counted, for ascent has had it.
    found = solve_boxes([block], prior, start, tol=NEWTON_SHARE * tol, max_passes=max_epochs - n_epochs + 1.0)
    dual, n_epochs = block.multipliers(found.weights), n_epochs + max(found.n_passes - 1, 1)
    is_close = found.gap <= tol * abs(found.value)
    if is_close or n_epochs >= max_epochs:
        status, shared = (Status.CONVERGED if is_close else Status.ITERATION_LIMIT), prior.shared(found.weights)
        return MarginSolution(dual, found.weights, shared, found.value, found.gap, n_epochs, status)
    problem = BoxAscent(features, form, layout, dual)
    last = ascend(problem, tol, max_epochs - n_epochs, seed)
    return problem.solution(replace(last, n_epochs=n_epochs + last.n_epochs))


def _is_quadratic(form: BoxDual) -> bool:
    """Whether every loss is a parabola: no tube, no bound."""
    unbounded = np.all(np.isinf(form.lower)) and np.all(np.isinf(form.upper))
    return bool(unbounded) and not form.absolute.any()


def _is_worse_than_nothing(problem: BoxAscent) -> bool:
    """Whether no multipliers at all would be a better start for ascent, which is slow to mend such.

    Those of an earlier solution are where many rows have moved, however little.
    """
    primal, gap = problem.certificate()
    return primal - gap < 0.0
