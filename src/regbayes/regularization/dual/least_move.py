"""Equalities on a Gaussian: the least move that meets them, in closed form."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import scipy.linalg

from regbayes._types import Floats
from regbayes.engine import Status
from regbayes.regularization.dual.problem import Certificate, Dual, DualSolution, Point, as_solution
from regbayes.regularization.dual_forms import BoxDual
from regbayes.regularization.log_partition import GaussianAffine

REDUNDANT = 1e-13  # of the first one: a pivot below it is rounding, and its equality says what others say
TRUSTED = 1e-10  # of the first one: pivots between the two leave too few digits


def find_least_move(problem: Dual, partition: GaussianAffine, box: BoxDual) -> DualSolution | None:
    """Solve for equalities alone, by a factorisation of the features and not of their covariance.

    With ``psi = F w`` of a standard normal ``w`` the answer moves its mean by the shortest ``v`` with ``F v = target``,
    and ``v = F' phi``. Where features are nearly combinations of others, the covariance ``F F'`` has lost twice as many
    digits as F has. None where rounding decides whether the equalities agree with each other.
    """
    rows = partition.factor / problem.unit[:, None]
    aim = (box.linear - partition.mean) / problem.unit
    if not np.all(np.isfinite(rows)):
        return None
    basis, triangle, order = scipy.linalg.qr(rows.T, mode="economic", pivoting=True, check_finite=False)
    pivots = np.abs(np.diag(triangle))
    rank = int(np.sum(pivots > REDUNDANT * pivots[0]))
    if rank == 0 or pivots[rank - 1] < TRUSTED * pivots[0]:
        return None
    triangle, kept = triangle[:rank, :rank], order[:rank]
    along = scipy.linalg.solve_triangular(triangle, aim[kept], trans="T", check_finite=False)
    move = basis[:, :rank] @ along
    phi = np.zeros(len(aim))
    phi[kept] = scipy.linalg.solve_triangular(triangle, along, check_finite=False)
    return _certify(problem, partition, box, phi / problem.unit, move)


def _certify(problem: Dual, partition: GaussianAffine, box: BoxDual, phi: Floats, move: Floats) -> DualSolution | None:
    """Write down the move with its certificate; None where it does not meet the equalities."""
    expectation = partition.mean + partition.factor @ move
    away = np.abs(partition.factor @ move - (box.linear - partition.mean))
    off = away / problem.unit
    found = Certificate(float(np.abs(phi) @ away + 0.5 * (off @ off)), float(off.max()))
    cost = 0.5 * float(move @ move)
    point = Point(-phi, phi, float(phi @ partition.mean) + cost, expectation, -cost)
    if not problem.converged(point, found):
        return None
    return replace(as_solution(point, found, Status.CONVERGED, 1), move=move)
