"""Proximal Newton steps on the dual.

`composite` minimizes the quadratic model, a line search ensures descent, and the duality gap is the
stopping criterion. Each iteration computes one covariance of the features, evaluates the dual at the line search's
points, and minimizes the quadratic model.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from regbayes._types import Floats
from regbayes.engine import Status
from regbayes.regularization.composite import Piece, minimize_composite, solve_symmetric
from regbayes.regularization.dual.problem import MOST_VIOLATION, Certificate, Dual, DualSolution, Point
from regbayes.regularization.log_partition import GaussianAffine, WeightedAtoms
from regbayes.regularization.regularizers.base import FromDual

ARMIJO = 1e-4
MAX_HALVINGS = 60
MAX_SHORTENED = 20  # halvings of a step by the conjugates alone, before A is evaluated
MIN_DAMPING = 1e-20  # in variances before the tilt; a Gaussian needs no damping
DIVERGING_NATS = 60.0  # span of a tilt, in addition to that of the weights, above which divergence is checked
MIN_STEPS = 4  # smallest number of steps before that check
PATIENCE = 25  # steps without progress before stalling: the curvature vanishes between atoms of very different mass
ARRIVES = 0.3  # ratio of successive violations below which the iteration converges
LAST_STEP = 1e-4  # error below which the next step, with about its square as error, is probably the last
SLOW_LOOK = 20  # steps after which a remaining violation is always checked


def run_newton(problem: Dual, start: Floats, max_iter: int, watch: bool) -> DualSolution:
    """Iterate until the certificate is within the tolerance or progress stops."""
    point = problem.at(start)
    damping = least_damping = 0.0 if isinstance(problem.partition, GaussianAffine) else MIN_DAMPING
    certificates: list[Certificate] = []
    objectives: list[float] = []
    reached: DualSolution | None = None  # within the tolerance, but `is_settled` is false
    best: DualSolution | None = None  # `is_settled` is true, with a gap that may become smaller
    for n_iter in range(max_iter + 1):
        found = problem.certificate(point)
        certificates.append(found)
        objectives.append(point.objective)
        if problem.converged(point, found):
            reached = problem.as_solution(point, found, Status.CONVERGED, n_iter)
            if n_iter == max_iter or problem.is_settled(point):
                close = found.bound <= problem.tol * (1 + abs(point.objective))
                if close or (best is not None and found.bound > 0.5 * best.gap):
                    return reached if best is None or reached.gap < best.gap else best
                best = reached
            reached = best or reached
        if _stalls(objectives, certificates):
            status = Status.STALLED
            break
        if watch and reached is None and n_iter >= MIN_STEPS and _diverges(problem, point, certificates):
            status = Status.DIVERGED
            break
        if n_iter == max_iter:
            status = Status.ITERATION_LIMIT
            break
        error = min(1e-3, max(found.violation, found.gap / (1 + abs(point.objective))))
        unit = problem.unit  # keeps the unit of a feature that has become constant under the tilt
        if reached is not None:  # an outlier that has lost its mass would make the remaining step appear small
            variances = problem.partition.covariance(point.phi).diagonal()[problem.index]
            unit = np.sqrt(np.where(variances > 0, variances, np.square(unit)))
        accepted, damping = _newton_step(problem, point, damping, unit, error)
        damping = max(damping, least_damping)
        if accepted is None:
            status = Status.STALLED
            break
        point = accepted
    return reached or problem.as_solution(point, found, status, n_iter)


def _diverges(problem: Dual, point: Point, certificates: list[Certificate]) -> bool:
    """Whether the tilt spans so many nats that the multipliers may diverge.

    A heavy tail spans many nats too, but its violation decreases quickly in the last steps. Multipliers that diverge
    grow by about a nat per step, and the violation falls by a factor of e only.
    """
    partition, violation, n_iter = problem.partition, certificates[-1].violation, len(certificates) - 1
    if not isinstance(partition, WeightedAtoms):
        return violation > MOST_VIOLATION  # one step solves a Gaussian with feasible equalities or bounds
    if n_iter == SLOW_LOOK and violation > MOST_VIOLATION:
        return True
    if violation < ARRIVES * certificates[-2].violation:
        return False
    reach = np.abs(point.phi) @ (partition.highest - partition.lowest)
    if reach < DIVERGING_NATS:
        return False
    most = DIVERGING_NATS + float(np.ptp(partition.log_weights))
    return bool(reach > most and partition.span(point.phi) > most)


def _stalls(objectives: list[float], certificates: list[Certificate]) -> bool:
    """Whether the last steps made no progress in the objective and the gap."""
    if len(objectives) <= PATIENCE:
        return False
    gap, before = certificates[-1].gap, min(found.gap for found in certificates[:-PATIENCE])
    return objectives[-1 - PATIENCE] - objectives[-1] < 1e-3 * gap < np.inf and gap > 0.5 * before


def _model_minimum(problem: Dual, point: Point, damping: float, unit: Floats, error: float) -> Floats:
    """Minimize the damped quadratic model of A plus the conjugates."""
    index, partition, stack = problem.index, problem.partition, problem.stack
    x, box, floor = problem.seen(point), stack.model(point.u), damping * unit**2
    tol = max(1e-14, 1e-4 * error**2)
    if box is not None and problem.smooth and problem.constant is None:
        slope = box.low + box.ridge * point.u - x
        covariance = problem.covariance(point, slope)
        hessian = covariance if problem.whole else covariance[np.ix_(index, index)]
        return point.u - solve_symmetric(hessian + np.diag(floor + box.ridge), slope)
    pieces: Sequence[Piece] = stack.pieces
    if box is not None:
        pieces = [Piece(FromDual(problem.pinned(box)), 0, len(box))]
        if isinstance(partition, GaussianAffine) and 2 * partition.factor.shape[1] < len(index):
            root = partition.factor[index]
            linear = -x - root @ (root.T @ point.u)
            return minimize_composite(None, linear, pieces, point.u, tol, root=root)[0]
    covariance = partition.covariance(point.phi)
    hessian = (covariance if problem.whole else covariance[np.ix_(index, index)]) + np.diag(floor)
    return minimize_composite(hessian, -x - hessian @ point.u, pieces, point.u, tol)[0]


def _newton_step(problem: Dual, point: Point, damping: float, unit: Floats, error: float) -> tuple[Point | None, float]:
    """One proximal Newton step with backtracking; None if no step descends."""
    target = _model_minimum(problem, point, damping, unit, error)
    noise = 4e-15 * (1 + abs(point.objective)) + 2 * problem.rounding(point).gap
    direction = target - point.u
    predicted = _predict_change(problem, point, target)
    if problem.stack.box is None and not predicted < noise:
        # The quadratic model of a logarithm is invalid outside its domain: shorten while the conjugates decrease.
        for _ in range(MAX_SHORTENED):
            shorter = point.u + 0.5 * direction
            change = _predict_change(problem, point, shorter)
            if np.isfinite(change) and not change < predicted:
                break
            direction, target, predicted = 0.5 * direction, shorter, change
    if not predicted < -noise:
        # The decrease is below the objective's rounding; compare the certificates instead.
        trial = problem.at(target, last=True)
        if 0.98 * max(problem.certificate(point)) > max(problem.certificate(trial)):
            return trial, damping / 10
        return (None, damping) if damping > 1e-2 else (point, max(damping * 100, 1e-8))
    length = 1.0
    for halvings in range(MAX_HALVINGS):
        trial = problem.at(problem.stack.clip(point.u + length * direction), last=error < LAST_STEP)
        if trial.objective <= point.objective + ARMIJO * length * predicted + noise:
            if length < 0.25:
                trial = _lengthen(problem, point, direction, length, trial)
            return trial, damping / 10 if length == 1.0 else min(max(damping, MIN_DAMPING) * 10, 1.0)
        length = min(0.5 * length, _careful_length(problem, direction)) if halvings == 0 else 0.5 * length
    return None, damping


def _predict_change(problem: Dual, point: Point, target: Floats) -> float:
    """Return the change of the objective for a linear A."""
    here, there = point.objective - point.log_partition, problem.stack.conjugate(target)
    return there - here - float(problem.seen(point) @ (target - point.u))


def _lengthen(problem: Dual, point: Point, direction: Floats, length: float, trial: Point) -> Point:
    """Double the step while the objective falls, after a step that was too careful.

    If one atom has all the mass, the curvature vanishes although the next atom may be thousands of nats away.
    """
    while 2 * length < 1:
        length *= 2
        farther = problem.at(problem.stack.clip(point.u + length * direction))
        if not farther.objective < trial.objective:
            break
        trial = farther
    return trial


def _careful_length(problem: Dual, direction: Floats) -> float:
    """Return a step length for which the log-partition's curvature is informative.

    The curvature of a log-sum-exp can change by a factor of e per nat. If one atom leads by hundreds of nats, the
    curvature there is e^-100, and a Newton step is too long by many orders of magnitude.
    """
    if not isinstance(problem.partition, WeightedAtoms):
        return 0.5
    with np.errstate(over="ignore", invalid="ignore"):
        nats = problem.partition.span(problem.stack.add_up(direction))
    if not np.isfinite(nats):
        return 1e-30
    return 2 * float(np.log1p(nats)) / nats if nats > 1 else 0.5
