"""The dual solver: maximise ``-A(phi) - g*(-phi)``, docs/math.md eq. (2).

Written in ``u = -phi``, stacked over the elementary regularizers so that a sum needs no conjugate of its own, the
dual is a smooth convex function of ``u`` plus conjugates known as a box or by their proximal maps. `newton` minimises
it; a single multiplier has a method of its own (`single`), equalities on a Gaussian too (`least_move`), and where
Newton's method gives up there are `detours`.
"""

from __future__ import annotations

import numpy as np

from regbayes._types import Floats
from regbayes.engine import Status
from regbayes.regularization.composite import Stack
from regbayes.regularization.dual.detours import start_from_flatter_weights, start_from_smaller_penalties, take_apart
from regbayes.regularization.dual.least_move import find_least_move
from regbayes.regularization.dual.newton import is_collinear, run_newton
from regbayes.regularization.dual.problem import Dual, DualSolution
from regbayes.regularization.dual.single import solve_single
from regbayes.regularization.log_partition import GaussianAffine, LogPartition, WeightedAtoms


def solve_dual(
    partition: LogPartition,
    stack: Stack,
    *,
    tol: float = 1e-9,
    max_iter: int = 200,
    warm_start: Floats | None = None,
    watch: bool = True,
) -> DualSolution:
    """Maximise the dual and return the solution with its certificate.

    Parameters
    ----------
    partition : LogPartition
        The posterior as its features see it.
    stack : Stack
        The regularizer's elementary parts.
    tol : float, default=1e-9
        Stop when the gap is below ``tol (1 + |dual|)`` and the violation below tol standard deviations.
    max_iter : int, default=200
        Newton steps at most.
    warm_start : array of shape (M,), default=None
        The ``stacked`` of an earlier solution of a problem with the same regularizer structure.
    watch : bool, default=True
        Whether to stop, DIVERGED, once multipliers have grown so far that they may have no limit.
    """
    problem = Dual(partition, stack, tol)
    start = problem.enter_domain(stack.start() if warm_start is None else warm_start)
    box = stack.box
    if len(stack) == 1 and box is not None and isinstance(partition, WeightedAtoms) and max_iter > 0:
        found = solve_single(problem, partition, box, start, max_iter)
        if found is not None:
            return found
    if isinstance(partition, GaussianAffine) and box is not None and box.is_linear and problem.whole and max_iter > 0:
        found = find_least_move(problem, partition, box)
        if found is not None:
            return found
    if problem.constant is not None and max_iter > 0:
        start = np.where(problem.constant[0], problem.constant[1], start)
    found = run_newton(problem, start, max_iter, watch)
    # What holds without a tilt, but for rounding, holds whatever the features are.
    holds = found.n_iter == 0 and found.violation <= problem.rounding(problem.at(start)).violation
    if found.status is Status.CONVERGED and not holds and is_collinear(problem):
        # What is left of a feature given others may be less than the tolerance, and its multiplier large.
        assert isinstance(partition, WeightedAtoms)
        other = take_apart(problem, partition, max_iter, found)
        return other if other is not None and other.status is Status.CONVERGED else found
    if found.status is Status.STALLED and isinstance(partition, WeightedAtoms):
        for helped in (take_apart, start_from_smaller_penalties, start_from_flatter_weights):
            other = helped(problem, partition, max_iter, found)
            if other is not None and other.status is Status.CONVERGED:
                return other
    return found
