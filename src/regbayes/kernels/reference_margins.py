"""Dual coordinate ascent for large margins in plain NumPy: one step per row, written to be read."""

from __future__ import annotations

import math

import numpy as np

from regbayes._types import Floats, Indices
from regbayes.kernels.types import BoxRows, BoxState, MarginCheck, Progress, SimplexRows, SimplexState

SATISFIED = 1e-12
"""A row whose optimality conditions are violated by no more is left alone: the step would be rounding noise."""


def _threshold(values: Floats, slope: float, level: float) -> float:
    """Return tau with ``sum max(0, values - tau) = slope * tau + level``, by sorting."""
    descending = np.sort(values)[::-1]
    candidates = (np.cumsum(descending) - level) / (np.arange(1, values.size + 1) + slope)
    return float(candidates[np.flatnonzero(descending > candidates)[-1]])


def _solve_row(omega: Floats, gradient: Floats, norm: float, total: float, ridge: float) -> Floats | None:
    """Return the multipliers that maximise the dual with all other rows fixed, or None if they are unbounded."""
    is_fixed = np.isfinite(total)
    if norm == 0.0:
        if not is_fixed and ridge == 0.0:
            return omega if gradient.max() <= 0.0 else None
        best = np.zeros(omega.size)
        best[gradient.argmax()] = total if is_fixed else max(0.0, omega.sum() + gradient.max() / ridge)
        return best
    values = omega + gradient / norm
    slope, level = (0.0, total) if is_fixed else (1.0 / (1.0 + ridge / norm), omega.sum())
    if slope * values.max() + level <= 0.0:
        return np.zeros(omega.size)
    best = np.maximum(0.0, values - _threshold(values, slope, level))
    if is_fixed and np.count_nonzero(best) == 1:
        best[best > 0.0] = total
    return best


def _row_terms(
    scores: Floats, label: int, costs: Floats, total: float, ridge: float, omega: Floats, members: Indices
) -> tuple[Floats, float, float]:
    """Return the dual's gradient over ``members``, its largest value and the lowest one that carries weight."""
    if np.isfinite(total):
        gradient = scores[members] + costs[members]
        return gradient, gradient.max(), gradient[omega[members] > 0.0].min(initial=np.inf)
    mass = omega[members].sum()
    gradient = scores[members] + costs[members] - scores[label] - ridge * mass
    top = max(gradient.max(initial=-np.inf), -ridge * mass)
    return gradient, top, gradient[omega[members] > 0.0].min(initial=0.0)


def _row_gap(
    gradient: Floats, top: float, true_score: float, total: float, ridge: float, penalty: float, omega: Floats
) -> tuple[float, float]:
    """Return the row's loss and its part of the duality gap."""
    complementarity = float(omega @ (top - gradient))
    if np.isfinite(total):
        return total * (top - true_score), complementarity
    slack = top + ridge * omega.sum()
    if ridge > 0.0:
        return slack**2 / (2.0 * ridge), complementarity + top**2 / (2.0 * ridge)
    return penalty * slack, complementarity + (penalty - omega.sum()) * slack


def _all_answers(n_classes: int, label: int, total: float, ridge: float) -> Indices:
    """Return the answers a row can give weight to: with a free total the true one takes part through the others."""
    if total == 0.0 or np.isinf(ridge):
        return np.empty(0, dtype=np.int64)
    answers = np.arange(n_classes)
    return answers if np.isfinite(total) else answers[answers != label]


def simplex_epoch(rows: SimplexRows, order: Indices, restart: bool, state: SimplexState) -> Progress:
    """Visit rows once, maximising the multi-class dual exactly over each row's multipliers.

    The dual is ``-1/2 sum_c |weights_c|^2 + sum_n sum_c omega_nc cost_nc - ridge_n (sum_c omega_nc)^2 / 2`` with
    ``weights = sum_n sum_c omega_nc (e_label(n) - e_c) features_n'`` and ``omega >= 0``.

    Parameters
    ----------
    rows : SimplexRows
    order : (v,)
        The rows to visit.
    restart : bool
        Consider all answers of the visited rows, not only those still in play.
    state : SimplexState
        Written. Answers leave play when they carry no weight and lag behind all that do; a row with nothing left to
        exchange has none in play.

    Returns
    -------
    Progress
    """
    omega, weights, answers, n_answers = state
    violation, gap, loss = 0.0, 0.0, 0.0
    for i in order:
        total, ridge, label, x = float(rows.total[i]), float(rows.ridge[i]), int(rows.labels[i]), rows.features[i]
        in_play = answers[i, : n_answers[i]].astype(np.int64)
        members = _all_answers(len(weights), label, total, ridge) if restart else in_play
        n_answers[i] = members.size
        if members.size == 0:
            continue
        scores = weights @ x
        gradient, top, low = _row_terms(scores, label, rows.cost[rows.cost_row[i]], total, ridge, omega[i], members)
        row_loss, row_gap = _row_gap(gradient, top, scores[label], total, ridge, rows.penalty, omega[i, members])
        loss, gap = loss + row_loss * restart, gap + row_gap
        stays = (omega[i, members] > 0.0) | (gradient >= low)
        members, gradient = members[stays], gradient[stays]
        answers[i] = np.concatenate([members, np.setdiff1d(np.arange(len(weights)), members)])
        n_answers[i] = 0 if members.size == int(np.isfinite(total)) else members.size
        row_violation = (top if np.isfinite(total) else max(top, 0.0)) - low
        if n_answers[i] == 0 or row_violation <= SATISFIED:
            continue
        best = _solve_row(omega[i, members], gradient, float(rows.norms[i]), total, ridge)
        if best is None:
            violation = np.inf
            continue
        violation = max(violation, row_violation)
        change = best - omega[i, members]
        omega[i, members] = best
        weights[members] -= np.outer(change, x)
        if np.isinf(total):
            weights[label] += change.sum() * x
    return Progress(violation, gap, loss)


def simplex_check(rows: SimplexRows, state: SimplexState) -> MarginCheck:
    """Return the loss and the duality gap at the state's multipliers and weights.

    The primal objective is ``1/2 sum_c |weights_c|^2`` plus the loss. Multipliers and weights are not written.
    """
    omega, weights = state.omega, state.weights
    loss, gap = 0.0, 0.0
    for i, label in enumerate(rows.labels):
        total, ridge = float(rows.total[i]), float(rows.ridge[i])
        members = _all_answers(len(weights), label, total, ridge)
        if members.size == 0:
            continue
        scores = weights @ rows.features[i]
        gradient, top, _ = _row_terms(scores, label, rows.cost[rows.cost_row[i]], total, ridge, omega[i], members)
        row_loss, row_gap = _row_gap(gradient, top, scores[label], total, ridge, rows.penalty, omega[i, members])
        loss, gap = loss + row_loss, gap + row_gap
    return MarginCheck(loss, gap)


def simplex_weights(rows: SimplexRows, omega: Floats) -> Floats:
    """Return ``sum_n sum_c omega_nc (e_label(n) - e_c) features_n'``, (c, k)."""
    signed = -omega.astype(np.float64)
    row = np.arange(len(rows.labels))
    signed[row, rows.labels] = 0.0
    signed[row, rows.labels] = -signed.sum(axis=1)
    return np.asarray(signed.T @ rows.features, dtype=np.float64)


def _box_score(rows: BoxRows, state: BoxState, i: int) -> float:
    """Return the expected score of row i: its features times its task's weights and the common ones."""
    task = rows.task[i]
    effective = state.weights[task] + rows.sharing * state.common[rows.group[task]]
    return float(rows.features[rows.feature_row[i]] @ effective)


def _box_best(rows: BoxRows, i: int, linear: float, curvature: float, penalty: float, keep: float) -> float:
    """Return the u in the box that maximises ``-linear u - absolute |u| - curvature u^2 / 2``; ``keep`` if any does.

    Without curvature the answer is a bound; an infinite one counts as ``penalty``.
    """
    pull = np.sign(linear) * -max(abs(linear) - rows.absolute[i], 0.0)
    if curvature > 0.0:
        return float(np.clip(pull / curvature, rows.lower[i], rows.upper[i]))
    if pull == 0.0:
        return keep
    bound = float(rows.lower[i] if pull < 0.0 else rows.upper[i])
    return bound if np.isfinite(bound) else math.copysign(penalty, pull)


def _box_gap(rows: BoxRows, i: int, score: float, u: float) -> tuple[float, float]:
    """Return the row's loss, ``sup_v -(score + linear) v - absolute |v| - ridge v^2 / 2``, and its part of the gap."""
    linear, absolute, ridge = score + rows.linear[i], rows.absolute[i], rows.ridge[i]
    best = _box_best(rows, i, linear, ridge, rows.penalty, np.clip(0.0, rows.lower[i], rows.upper[i]))
    loss = -linear * best - absolute * abs(best) - 0.5 * ridge * best**2
    return loss, loss + linear * u + absolute * abs(u) + 0.5 * ridge * u**2


def _box_slopes(rows: BoxRows, i: int, score: float, u: float) -> tuple[float, float]:
    """Return the left and right derivatives at u of what is minimised; a bound blocks with an infinite slope."""
    slope, absolute = score + rows.linear[i] + rows.ridge[i] * u, rows.absolute[i]
    left = -np.inf if u <= rows.lower[i] else slope + (absolute if u > 0.0 else -absolute)
    right = np.inf if u >= rows.upper[i] else slope + (absolute if u >= 0.0 else -absolute)
    return left, right


def box_epoch(rows: BoxRows, order: Indices, restart: bool, state: BoxState) -> Progress:
    """Visit rows once, minimising the box dual exactly over each multiplier.

    What is minimised over ``lower <= u <= upper`` is ``1/2 sum_t |weights_t|^2 + sharing / 2 sum_g |common_g|^2`` plus
    ``sum_i linear_i u_i + absolute_i |u_i| + ridge_i u_i^2 / 2``, where ``weights_t`` sums ``u_i x_i`` over the rows of
    task t, ``x_i = features[feature_row_i]``, and ``common_g`` sums the weights of the tasks of group g.

    Parameters
    ----------
    rows : BoxRows
    order : (v,)
        The rows to visit.
    restart : bool
        Visit rows that were set aside too.
    state : BoxState
        Written. A row is set aside when both directions away from its multiplier lose.

    Returns
    -------
    Progress
    """
    violation, gap, loss = 0.0, 0.0, 0.0
    for i in order:
        if not (restart or state.active[i]):
            continue
        u, x = float(state.dual[i]), rows.features[rows.feature_row[i]]
        score = _box_score(rows, state, i)
        row_loss, row_gap = _box_gap(rows, i, score, u)
        loss, gap = loss + row_loss * restart, gap + row_gap
        left, right = _box_slopes(rows, i, score, u)
        state.active[i] = left >= 0.0 or right <= 0.0
        row_violation = max(left, -right, 0.0)
        if row_violation <= SATISFIED:
            continue
        curvature = (1.0 + rows.sharing) * rows.norms[rows.feature_row[i]]
        linear = score + rows.linear[i] - curvature * u
        best = _box_best(rows, i, linear, curvature + rows.ridge[i], np.inf, u)
        if np.isinf(best):
            violation = np.inf
            continue
        violation = max(violation, row_violation)
        state.dual[i] = best
        task = rows.task[i]
        state.weights[task] += (best - u) * x
        state.common[rows.group[task]] += (best - u) * x
    return Progress(violation, gap, loss)


def box_check(rows: BoxRows, state: BoxState) -> MarginCheck:
    """Return the loss and the duality gap at the state's multipliers and weights; nothing is written.

    The primal objective is ``1/2 sum_t |weights_t|^2 + sharing / 2 sum_g |common_g|^2`` plus the loss.
    """
    loss, gap = 0.0, 0.0
    for i in range(len(rows.task)):
        row_loss, row_gap = _box_gap(rows, i, _box_score(rows, state, i), float(state.dual[i]))
        loss, gap = loss + row_loss, gap + row_gap
    return MarginCheck(loss, gap)


def box_weights(rows: BoxRows, dual: Floats) -> Floats:
    """Return, per task, ``sum_i dual_i x_i``, (tasks, d)."""
    weights = np.zeros((rows.group.size, rows.features.shape[1]))
    np.add.at(weights, rows.task, dual[:, None] * rows.features[rows.feature_row])
    return weights


def box_scores(rows: BoxRows, weights: Floats) -> Floats:
    """Return ``<x_i, weights[task_i]>`` for every row, (n,)."""
    return np.asarray(np.einsum("ij,ij->i", rows.features[rows.feature_row], weights[rows.task]))
