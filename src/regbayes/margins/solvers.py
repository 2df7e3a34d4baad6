"""The door to the solvers: a dual form and features in, weights, multipliers and a certificate out.

Two solvers, for two kinds of problem. Dual coordinate ascent takes any loss and needs all rows in memory. Newton's
method takes smooth losses and sees sums over the rows alone. Where both would do, ascent has the first say: it is fast
where rows are few for each weight or a warm start is close, and creeps where they are many and C is large.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from regbayes._types import Floats, Reals
from regbayes.engine.result import Status
from regbayes.framework.coordinate_ascent import (
    DEFAULT_MAX_EPOCHS,
    DEFAULT_TOL,
    BoxAscent,
    MarginSolution,
    TaskLayout,
    ascend,
)
from regbayes.framework.dual_forms import BoxDual
from regbayes.margins.newton import BoxBlock, SharedPrior, solve_boxes

# A Newton step costs about as much as features / 16 passes of coordinate ascent, which gets the first say.
MIN_PATIENCE = 4.0
PATIENCE_PER_FEATURE = 8.0
# With so many rows for each weight the factors of the tasks cost little, and a Newton step little more than a pass.
MIN_ROWS_PER_WEIGHT = 10
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
    problem = BoxAscent.of(features, form, layout, warm_start)
    n_tasks, n_features = problem.state.weights.shape
    if warm_weights is not None and warm_weights.shape != (n_tasks, n_features):
        raise ValueError(f"warm_weights must have shape {(n_tasks, n_features)}; got {warm_weights.shape}")
    is_smooth = bool(np.all(form.ridge > 0.0)) and n_tasks * n_features**2 <= MAX_NEWTON_SIZE
    patience = max(MIN_PATIENCE, n_features / PATIENCE_PER_FEATURE)
    if not is_smooth or max_epochs <= patience:
        return problem.solution(ascend(problem, tol, max_epochs, seed))
    n_epochs = 0.0
    if problem.n_rows >= MIN_ROWS_PER_WEIGHT * n_tasks * n_features and _is_far(problem, form):
        start = problem.expected_weights() if warm_weights is None else warm_weights
    else:
        outcome = ascend(problem, tol, patience, seed)
        if outcome.status is not Status.ITERATION_LIMIT:
            return problem.solution(outcome)
        start, n_epochs = problem.expected_weights(), outcome.n_epochs
    found = _newton(problem.rows.features, form, layout, start, tol, max_epochs - n_epochs)
    n_epochs += found.n_epochs
    if found.status is Status.CONVERGED or n_epochs >= max_epochs:
        return replace(found, n_epochs=n_epochs)
    problem.replace_dual(found.dual)
    last = ascend(problem, tol, max_epochs - n_epochs, seed)
    return problem.solution(replace(last, n_epochs=n_epochs + last.n_epochs))


def _is_far(problem: BoxAscent, form: BoxDual) -> bool:
    """Whether Newton's method would arrive before coordinate ascent.

    One step is exact for quadratic losses; and ascent is slow to mend multipliers that are worse than none, as those of
    an earlier solution are where many rows have moved, however little.
    """
    unbounded = np.all(np.isinf(form.lower)) and np.all(np.isinf(form.upper))
    if unbounded and not form.absolute.any():
        return True
    primal, gap = problem.certificate()
    return primal - gap < 0.0


def _newton(
    features: Reals, form: BoxDual, layout: TaskLayout, start: Floats, tol: float, max_epochs: float
) -> MarginSolution:
    """Take Newton steps from given weights. The look at the start is not counted where a step follows it."""
    block, prior = BoxBlock.of(features, form, layout), SharedPrior(layout.group, layout.sharing)
    found = solve_boxes([block], prior, start, tol=tol, max_passes=max_epochs + 1.0)
    return MarginSolution(
        dual=block.multipliers(found.weights),
        weights=found.weights,
        shared_weights=prior.shared(found.weights),
        primal=found.value,
        gap=found.gap,
        n_epochs=float(max(found.n_passes - 1, 1)),
        status=found.status,
    )
