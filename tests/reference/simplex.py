"""Dual coordinate ascent for multi-class margins in plain NumPy, with thresholds found by sorting."""

from __future__ import annotations

import numpy as np

from regbayes._types import Floats, Indices
from regbayes.kernels.simplex import SimplexRows, SimplexState
from regbayes.kernels.types import SATISFIED


def _threshold(values: Floats, slope: float, level: float) -> float:
    """Return tau with ``sum max(0, values - tau) = slope * tau + level``, by sorting."""
    descending = np.sort(values)[::-1]
    candidates = (np.cumsum(descending) - level) / (np.arange(1, values.size + 1) + slope)
    return float(candidates[np.flatnonzero(descending > candidates)[-1]])


def _solve_row(omega: Floats, gradient: Floats, norm: float, total: float, ridge: float) -> Floats | None:
    """Return the multipliers that maximize the dual with other rows fixed, or None if unbounded."""
    is_fixed = np.isfinite(total)
    if norm == 0.0:
        if not is_fixed and ridge == 0.0:
            return omega if gradient.max() <= 0.0 else None
        best = np.zeros(omega.size)
        best[gradient.argmax()] = total if is_fixed else max(0.0, omega.sum() + gradient.max() / ridge)
        return best
    top = gradient.max()
    values = omega + (gradient - top) / norm
    slope, level = (0.0, total) if is_fixed else (1.0 / (1.0 + ridge / norm), omega.sum() + top / (norm + ridge))
    if slope * values.max() + level <= 0.0:
        return np.zeros(omega.size)
    best = np.maximum(0.0, values - _threshold(values, slope, level))
    if is_fixed and np.count_nonzero(best) == 1:
        best[best > 0.0] = total
    return best


def _row_terms(
    scores: Floats, label: int, costs: Floats, total: float, ridge: float, omega: Floats, members: Indices
) -> tuple[Floats, float, float]:
    """Return the dual's gradient over ``members``, its maximum, and its minimum over classes with weight."""
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


def _list_classes(n_classes: int, label: int, total: float, ridge: float) -> Indices:
    """Return the classes with multipliers; with a free total the true class has none of its own."""
    if total == 0.0 or np.isinf(ridge):
        return np.empty(0, dtype=np.int64)
    classes = np.arange(n_classes)
    return classes if np.isfinite(total) else classes[classes != label]


def reference_simplex_epoch(
    rows: SimplexRows, order: Indices, restart: bool, state: SimplexState
) -> tuple[float, float, float]:
    """`simplex_epoch` in plain NumPy."""
    omega, weights, classes, n_in_play = state
    violation, gap, loss = 0.0, 0.0, 0.0
    for i in order:
        total, ridge, label, x = float(rows.total[i]), float(rows.ridge[i]), int(rows.labels[i]), rows.features[i]
        in_play = classes[i, : n_in_play[i]].astype(np.int64)
        members = _list_classes(len(weights), label, total, ridge) if restart else in_play
        n_in_play[i] = members.size
        if members.size == 0:
            continue
        scores = weights @ x
        gradient, top, low = _row_terms(scores, label, rows.cost[rows.cost_row[i]], total, ridge, omega[i], members)
        row_loss, row_gap = _row_gap(gradient, top, scores[label], total, ridge, rows.penalty, omega[i, members])
        loss, gap = loss + row_loss * restart, gap + row_gap
        stays = (omega[i, members] > 0.0) | (gradient >= low)
        members, gradient = members[stays], gradient[stays]
        classes[i] = np.concatenate([members, np.setdiff1d(np.arange(len(weights)), members)])
        n_in_play[i] = 0 if members.size == int(np.isfinite(total)) else members.size
        row_violation = (top if np.isfinite(total) else max(top, 0.0)) - low
        if n_in_play[i] == 0 or row_violation <= SATISFIED:
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
    return violation, gap, loss


def reference_simplex_check(rows: SimplexRows, state: SimplexState) -> tuple[float, float]:
    """`simplex_check` in plain NumPy."""
    omega, weights = state.omega, state.weights
    loss, gap = 0.0, 0.0
    for i, label in enumerate(rows.labels):
        total, ridge = float(rows.total[i]), float(rows.ridge[i])
        members = _list_classes(len(weights), label, total, ridge)
        if members.size == 0:
            continue
        scores = weights @ rows.features[i]
        gradient, top, _ = _row_terms(scores, label, rows.cost[rows.cost_row[i]], total, ridge, omega[i], members)
        row_loss, row_gap = _row_gap(gradient, top, scores[label], total, ridge, rows.penalty, omega[i, members])
        loss, gap = loss + row_loss, gap + row_gap
    return loss, gap


def reference_simplex_weights(rows: SimplexRows, omega: Floats) -> Floats:
    """`simplex_weights` in plain NumPy."""
    signed = -omega.astype(np.float64)
    row = np.arange(len(rows.labels))
    signed[row, rows.labels] = 0.0
    signed[row, rows.labels] = -signed.sum(axis=1)
    weights: Floats = signed.T @ rows.features
    return weights
