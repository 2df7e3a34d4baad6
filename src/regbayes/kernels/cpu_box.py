"""Compiled dual coordinate ascent on a box: binary margins, epsilon-insensitive regression, hard bounds, coupled tasks.

The method is that of LIBLINEAR (Hsieh et al., ICML 2008; Ho and Lin, JMLR 2012): a closed-form step per multiplier,
and rows that cannot move are set aside.
"""

from __future__ import annotations

import numpy as np

from regbayes._types import Floats, Indices, Reals
from regbayes.kernels._compile import compiled, compiled_inline
from regbayes.kernels._prefetch import AHEAD, prefetch_row
from regbayes.kernels.types import BoxRows, BoxState, MarginCheck, Progress

_SATISFIED = 1e-12  # reference_margins.SATISFIED


@compiled_inline
def _score(features: Reals, f: int, weights: Floats, t: int, sharing: float, common: Floats, g: int) -> float:
    """Return ``<features[f], weights[t] + sharing * common[g]>``."""
    own, shared = 0.0, 0.0
    if sharing == 0.0:
        for k in range(features.shape[1]):
            own += features[f, k] * weights[t, k]
        return own
    for k in range(features.shape[1]):
        own += features[f, k] * weights[t, k]
        shared += features[f, k] * common[g, k]
    return own + sharing * shared


@compiled_inline
def _best(
    linear: float, absolute: float, curvature: float, lower: float, upper: float, penalty: float, keep: float
) -> float:
    """Return the u in the box that maximises ``-linear u - absolute |u| - curvature u^2 / 2``; ``keep`` if any does.

    Without curvature the answer is a bound; an infinite one counts as ``penalty``.
    """
    pull = max(-linear - absolute, 0.0) - max(linear - absolute, 0.0)
    if curvature > 0.0:
        return min(max(pull / curvature, lower), upper)
    if pull == 0.0:
        return keep
    if pull < 0.0:
        return -penalty if np.isinf(lower) else lower
    return penalty if np.isinf(upper) else upper


@compiled_inline
def _loss_and_gap(
    linear: float, absolute: float, ridge: float, lower: float, upper: float, penalty: float, u: float
) -> tuple[float, float]:
    """Return the row's loss and its part of the duality gap; ``linear`` includes the score."""
    best = _best(linear, absolute, ridge, lower, upper, penalty, min(max(0.0, lower), upper))
    loss = -linear * best - absolute * abs(best) - 0.5 * ridge * best * best
    return loss, loss + linear * u + absolute * abs(u) + 0.5 * ridge * u * u


@compiled
def _visit_rows(rows: BoxRows, order: Indices, restart: bool, state: BoxState) -> tuple[float, float, float]:
    # Fields are unpacked once: reading one from a record inside the loop costs two atomic operations.
    features, norms, feature_row, task, group, linears, absolutes, ridges, lowers, uppers, sharing, penalty = rows
    dual, weights, common, active = state
    violation, gap, loss = 0.0, 0.0, 0.0
    for visit in range(order.size):
        if visit + AHEAD < order.size:
            prefetch_row(features, feature_row[order[visit + AHEAD]])
        i = order[visit]
        if not (restart or active[i]):
            continue
        f, t, u, absolute, ridge = feature_row[i], task[i], dual[i], absolutes[i], ridges[i]
        linear = _score(features, f, weights, t, sharing, common, group[t]) + linears[i]
        row_loss, row_gap = _loss_and_gap(linear, absolute, ridge, lowers[i], uppers[i], penalty, u)
        if restart:
            loss += row_loss
        gap += row_gap
        slope = linear + ridge * u
        left = -np.inf if u <= lowers[i] else slope + (absolute if u > 0.0 else -absolute)
        right = np.inf if u >= uppers[i] else slope + (absolute if u >= 0.0 else -absolute)
        active[i] = left >= 0.0 or right <= 0.0
        row_violation = max(left, -right)
        if row_violation <= _SATISFIED:
            continue
        curvature = (1.0 + sharing) * norms[f]
        best = _best(linear - curvature * u, absolute, curvature + ridge, lowers[i], uppers[i], np.inf, u)
        if np.isinf(best):
            violation = np.inf
            continue
        violation = max(violation, row_violation)
        dual[i] = best
        change = best - u
        for k in range(features.shape[1]):
            weights[t, k] += change * features[f, k]
        if sharing != 0.0:
            for k in range(features.shape[1]):
                common[group[t], k] += change * features[f, k]
    return violation, gap, loss


@compiled
def _check_rows(rows: BoxRows, state: BoxState) -> tuple[float, float]:
    features, _norms, feature_row, task, group, linears, absolutes, ridges, lowers, uppers, sharing, penalty = rows
    dual, weights, common, _active = state
    loss, gap = 0.0, 0.0
    for i in range(task.size):
        t = task[i]
        linear = _score(features, feature_row[i], weights, t, sharing, common, group[t]) + linears[i]
        row_loss, row_gap = _loss_and_gap(linear, absolutes[i], ridges[i], lowers[i], uppers[i], penalty, dual[i])
        loss += row_loss
        gap += row_gap
    return loss, gap


@compiled
def _score_rows(features: Reals, feature_row: Indices, task: Indices, weights: Floats, scores: Floats) -> None:
    for i in range(task.size):
        score = 0.0  # not summed in the array: the order would depend on where that lies in memory
        for k in range(features.shape[1]):
            score += features[feature_row[i], k] * weights[task[i], k]
        scores[i] = score


@compiled
def _sum_weights(features: Reals, feature_row: Indices, task: Indices, dual: Floats, weights: Floats) -> None:
    for i in range(task.size):
        u, t, f = dual[i], task[i], feature_row[i]
        if u != 0.0:
            for k in range(features.shape[1]):
                weights[t, k] += u * features[f, k]


def box_epoch(rows: BoxRows, order: Indices, restart: bool, state: BoxState) -> Progress:
    """Compiled twin of ``reference.box_epoch``."""
    return Progress(*_visit_rows(rows, order, restart, state))


def box_check(rows: BoxRows, state: BoxState) -> MarginCheck:
    """Compiled twin of ``reference.box_check``."""
    return MarginCheck(*_check_rows(rows, state))


def box_weights(rows: BoxRows, dual: Floats) -> Floats:
    """Compiled twin of ``reference.box_weights``."""
    weights = np.zeros((rows.group.size, rows.features.shape[1]))
    _sum_weights(rows.features, rows.feature_row, rows.task, dual, weights)
    return weights


def box_scores(rows: BoxRows, weights: Floats) -> Floats:
    """Compiled twin of ``reference.box_scores``."""
    scores = np.empty(rows.task.size)
    _score_rows(rows.features, rows.feature_row, rows.task, weights, scores)
    return scores
