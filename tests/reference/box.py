"""Dual coordinate ascent on a box in plain NumPy, one row at a time."""

from __future__ import annotations

import math

import numpy as np

from regbayes._types import Floats, Indices
from regbayes.kernels.box import BoxRows, BoxState
from regbayes.kernels.types import SATISFIED


def _box_score(rows: BoxRows, state: BoxState, i: int) -> float:
    """Return the expected score of row i."""
    task = rows.task[i]
    effective = state.weights[task] + rows.sharing * state.common[rows.group[task]]
    return float(rows.features[rows.feature_row[i]] @ effective)


def _box_best(rows: BoxRows, i: int, linear: float, curvature: float, penalty: float, keep: float) -> float:
    """Return the u in the box that maximizes ``-linear u - absolute |u| - curvature u^2 / 2``; ``keep`` if all do.

    Without curvature the result is a bound; an infinite one counts as ``penalty``.
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
    """Return the left and right derivatives of the dual at u, infinite at a bound."""
    slope, absolute = score + rows.linear[i] + rows.ridge[i] * u, rows.absolute[i]
    left = -np.inf if u <= rows.lower[i] else slope + (absolute if u > 0.0 else -absolute)
    right = np.inf if u >= rows.upper[i] else slope + (absolute if u >= 0.0 else -absolute)
    return left, right


def reference_box_epoch(rows: BoxRows, order: Indices, restart: bool, state: BoxState) -> tuple[float, float, float]:
    """`box_epoch` in plain NumPy."""
    violation, gap, loss = 0.0, 0.0, 0.0
    for i in order:
        if not (restart or state.in_play[i]):
            continue
        u, x = float(state.dual[i]), rows.features[rows.feature_row[i]]
        score = _box_score(rows, state, i)
        row_loss, row_gap = _box_gap(rows, i, score, u)
        loss, gap = loss + row_loss * restart, gap + row_gap
        left, right = _box_slopes(rows, i, score, u)
        state.in_play[i] = left >= 0.0 or right <= 0.0
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
    return violation, gap, loss


def reference_box_check(rows: BoxRows, state: BoxState) -> tuple[float, float]:
    """`box_check` in plain NumPy."""
    loss, gap = 0.0, 0.0
    for i in range(len(rows.task)):
        row_loss, row_gap = _box_gap(rows, i, _box_score(rows, state, i), float(state.dual[i]))
        loss, gap = loss + row_loss, gap + row_gap
    return loss, gap


def reference_box_weights(rows: BoxRows, dual: Floats) -> Floats:
    """`box_weights` in plain NumPy."""
    weights = np.zeros((rows.group.size, rows.features.shape[1]))
    np.add.at(weights, rows.task, dual[:, None] * rows.features[rows.feature_row])
    return weights
