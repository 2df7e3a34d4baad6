"""Other ways to the optimum, for where Newton's method gives up.

Weights that span many nats are approached from flatter ones, large penalties from smaller ones, and equalities that are
nearly combinations of others are replaced by what is left of them.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import scipy.linalg

from regbayes._types import Floats
from regbayes.engine import Status
from regbayes.regularization.composite import Stack
from regbayes.regularization.dual.newton import find_equalities, run_newton
from regbayes.regularization.dual.problem import Dual, DualSolution
from regbayes.regularization.dual_forms import BoxDual
from regbayes.regularization.log_partition import WeightedAtoms

TEMPERED_NATS = 30.0  # log-weights that span less than this are not flattened
SMALLEST, SMALLER_STEP, LEAST_STEP = (
    1e-8,
    10.0,
    1.05,
)  # penalties in units of those asked for, and the steps on the way back
STAGE_TOLERANCE = 1e-8  # of stages on that way: what the next one is extrapolated from
LEAST_NATS = 0.01
FIRST_NATS, MOST_STAGES = 5.0, 100  # of the way back from even weights: its first stage, and how many at most
COLLINEAR = 1e-3  # standard deviation of a feature given others, in its own: below it they are taken apart
REDUNDANT = 1e-13  # below it nothing is left to take apart


def take_apart(problem: Dual, partition: WeightedAtoms, max_iter: int, stalled: DualSolution) -> DualSolution | None:
    """Solve with equalities that are nearly combinations of others replaced by uncorrelated combinations of them.

    Two features that agree to eight digits have a covariance in which their difference is rounding; the difference of
    their values is not. An equality's multiplier may have any sign, so combinations of equalities are equalities.
    """
    box = problem.stack.box
    if box is None or len(problem.stack) != problem.stack.n_features:
        return None
    equal = find_equalities(box)
    if int(equal.sum()) < 2:
        return None
    # About medians: one atom far out takes the mean with it, and what is left of the others' differences is rounding.
    features, unit = partition.features[:, equal], partition.unit[equal]
    center = np.median(features, axis=0)
    scaled = (features - center) / unit
    # Where a few atoms have all the weight, what the others would say of the features counts too.
    flatter = partition.log_weights * min(1.0, TEMPERED_NATS / max(float(np.ptp(partition.log_weights)), 1.0))
    roots = np.exp(0.5 * (flatter - np.logaddexp.reduce(flatter)))
    triangle, order = scipy.linalg.qr(scaled * roots[:, None], mode="r", pivoting=True, check_finite=False)
    sizes = np.abs(np.diag(triangle))
    if np.min(sizes) >= COLLINEAR * sizes[0]:
        return None
    order = order[: int(np.sum(sizes > REDUNDANT * sizes[0]))]
    triangle = triangle[: len(order), : len(order)]
    apart = scipy.linalg.solve_triangular(triangle, scaled[:, order].T, trans="T", check_finite=False).T
    aim = ((box.linear[equal] - center) / unit)[order]
    aim = scipy.linalg.solve_triangular(triangle, aim, trans="T", check_finite=False)
    others, k = box.take(~equal), len(order)
    none, free = np.zeros(k), np.full(k, np.inf)
    names = ("linear", "absolute", "ridge", "lower", "upper")
    both = zip((aim, none, none, -free, free), (getattr(others, name) for name in names), strict=True)
    mapped = WeightedAtoms(np.hstack([apart, partition.features[:, ~equal]]), partition.log_weights)
    stage = Dual(mapped, Stack.of_box(BoxDual(*(np.concatenate(pair) for pair in both))), problem.tol)
    solution = run_newton(stage, stage.stack.start(), max_iter, watch=False)
    if solution.status is Status.STALLED:
        solution = start_from_flatter_weights(stage, mapped, max_iter, solution) or solution
    stacked, expectation = np.zeros(len(equal)), np.empty(len(equal))
    stacked[np.flatnonzero(equal)[order]] = (
        scipy.linalg.solve_triangular(triangle, solution.stacked[:k], check_finite=False) / unit[order]
    )
    log_weights = mapped.tilted_log_weights(solution.multipliers, solution.log_partition)
    expectation[equal] = center + unit * (np.exp(log_weights) @ scaled)
    stacked[~equal], expectation[~equal] = solution.stacked[k:], solution.expectation[k:]
    dropped = np.abs(expectation - box.linear)[equal] / unit
    if np.max(dropped) > problem.most_violation + problem.rounding(problem.at(stacked)).violation:
        return None  # an equality that says the same as others, and asks for something else
    return replace(
        solution,
        stacked=stacked,
        multipliers=-stacked,
        expectation=expectation,
        log_partition=solution.log_partition - float(stacked[equal] @ center),
        violation=max(solution.violation, float(np.max(dropped))),
        log_weights=log_weights,
        n_iter=min(stalled.n_iter + solution.n_iter, max_iter),
    )


def start_from_smaller_penalties(
    problem: Dual, partition: WeightedAtoms, max_iter: int, stalled: DualSolution
) -> DualSolution | None:
    """Approach large penalties from smaller ones: multipliers grow with them where these cannot get what they ask.

    Once it is settled which atoms have mass, multipliers are linear in the penalties but for terms of one over them.
    """
    box = problem.stack.box
    if box is not None and not np.any(np.isfinite(box.lower * box.upper) & (box.lower < box.upper) | (box.ridge > 0)):
        return None  # all penalties are infinite
    known: list[tuple[float, Floats]] = []
    factor, ratio, n_iter = SMALLEST, SMALLER_STEP, stalled.n_iter
    for _ in range(MOST_STAGES):
        stack = problem.stack.scaled(factor) if factor < 1 else problem.stack
        stage = Dual(partition, stack, problem.tol if factor == 1 else STAGE_TOLERANCE)
        begin = _extrapolate(known, factor, stack)
        if len(known) == 1:
            begin = stack.clip(known[0][1] * (factor / known[0][0]))
        solution = run_newton(stage, stage.enter_domain(begin), 60, watch=False)
        n_iter += solution.n_iter
        if solution.status is Status.CONVERGED:
            if factor == 1:
                return replace(solution, n_iter=min(n_iter, max_iter))
            known = [*known[-1:], (factor, solution.stacked)]
            ratio = min(ratio**1.5, SMALLER_STEP)
        else:
            ratio = ratio**0.5
        if not known or ratio < LEAST_STEP:
            return None
        factor = min(1.0, known[-1][0] * ratio)
    return None


def start_from_flatter_weights(
    problem: Dual, partition: WeightedAtoms, max_iter: int, stalled: DualSolution
) -> DualSolution | None:
    """Approach weights that span many nats from even ones, whose solutions lead to each other.

    The multipliers at weights ``w^t`` are nearly linear in t once a few atoms have all the mass, so two solutions
    tell where the next will be.
    """
    spread = float(np.ptp(partition.log_weights))
    if spread < TEMPERED_NATS:
        return None
    known: list[tuple[float, Floats]] = []
    temperature, width = 0.0, FIRST_NATS / spread
    for _ in range(MOST_STAGES):
        log_weights = temperature * partition.log_weights
        flatter = WeightedAtoms(partition.features, log_weights - np.logaddexp.reduce(log_weights))
        stage = Dual(flatter, problem.stack, problem.tol if temperature == 1 else 1e-6)
        solution = run_newton(
            stage, stage.enter_domain(_extrapolate(known, temperature, problem.stack)), 40, watch=False
        )
        if solution.status is Status.CONVERGED:
            if temperature == 1:
                return replace(solution, n_iter=min(stalled.n_iter + solution.n_iter, max_iter))
            known = [*known[-1:], (temperature, solution.stacked)]
            width *= 2.0 if solution.n_iter <= 6 else 1.0
        elif known:
            width *= 0.25
        else:
            return None
        if width * spread < LEAST_NATS:
            return None
        temperature = min(1.0, known[-1][0] + width)
    return None


def _extrapolate(known: list[tuple[float, Floats]], temperature: float, stack: Stack) -> Floats:
    if not known:
        return stack.start()
    if len(known) == 1:
        return known[0][1]
    (before, u_before), (last, u_last) = known
    return stack.clip(u_last + (u_last - u_before) * ((temperature - last) / (last - before)))
