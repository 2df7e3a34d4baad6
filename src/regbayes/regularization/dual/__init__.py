"""The dual solver: maximize ``-A(phi) - g*(-phi)``, docs/math.md eq. (2).

The variable ``u = -phi`` is stacked over the elementary regularizers, so that a sum needs no conjugate of its own. The
dual is a smooth convex function of ``u`` plus conjugates given as a box or by their proximal maps. `conditioning`
transforms nearly collinear equalities, and `newton` minimizes.
"""

from __future__ import annotations

import numpy as np

from regbayes._types import Floats
from regbayes.regularization.composite import Stack
from regbayes.regularization.dual.conditioning import condition
from regbayes.regularization.dual.newton import run_newton
from regbayes.regularization.dual.problem import Dual, DualSolution
from regbayes.regularization.log_partition import LogPartition


def solve_dual(
    partition: LogPartition,
    stack: Stack,
    *,
    tol: float = 1e-9,
    max_iter: int = 200,
    warm_start: Floats | None = None,
    watch: bool = True,
) -> DualSolution:
    """Maximize the dual and return the solution with its certificate.

    Parameters
    ----------
    partition : LogPartition
        Log-partition function of the features under the posterior.
    stack : Stack
        The regularizer's elementary parts.
    tol : float, default=1e-9
        Tolerance: the gap must be below ``tol (1 + |dual|)`` and the violation below ``tol`` standard deviations.
    max_iter : int, default=200
        Maximum number of Newton steps.
    warm_start : array of shape (M,), default=None
        The ``stacked`` of an earlier solution of a problem with the same regularizer structure.
    watch : bool, default=True
        Whether to stop with DIVERGED if multipliers grow so large that they may be unbounded.
    """
    conditioned = condition(partition, stack)
    if conditioned is not None:
        start = None if warm_start is None else conditioned.from_given(warm_start)
        problem = Dual(conditioned.partition, conditioned.stack, tol)
        found = conditioned.solution(_solve(problem, start, max_iter, watch), stack, problem.most_violation)
        if found is not None:
            return found
    return _solve(Dual(partition, stack, tol), warm_start, max_iter, watch)


def _solve(problem: Dual, warm_start: Floats | None, max_iter: int, watch: bool) -> DualSolution:
    start = problem.enter_domain(problem.stack.start() if warm_start is None else warm_start)
    if problem.constant is not None and max_iter > 0:
        start = np.where(problem.constant[0], problem.constant[1], start)
    return run_newton(problem, start, max_iter, watch)
