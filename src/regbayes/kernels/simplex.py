"""Dual coordinate ascent for multi-class margins, with one simplex per row.

Each row's subproblem is solved exactly (Crammer and Singer, JMLR 2001). Newton's method finds the threshold of a convex
piecewise linear function after a few passes over the classes. Inactive classes are skipped row by row, as in LIBLINEAR
(Keerthi et al., KDD 2008).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from regbayes._types import Floats, Indices, Reals
from regbayes.kernels._compile import compiled, compiled_inline
from regbayes.kernels.types import SATISFIED

Counts = NDArray[np.int16]
"""Classes of a row and how many of them are in play: small numbers, one set per row."""


class SimplexRows(NamedTuple):
    """Data of the multi-class dual; see `simplex_epoch`."""

    features: Reals  # (n, k)
    norms: Floats  # (n,): squared norms of the rows of ``features``
    labels: Indices  # (n,): the true classes
    cost: Floats  # (r, c): the loss of each class; that of the true one is zero
    cost_row: Indices
    """(n,): the row of ``cost`` that applies: the label for a cost matrix, the row itself for costs per row."""
    total: Floats  # (n,): what a row's multipliers sum to; infinite leaves the sum free, zero takes the row out
    ridge: Floats  # (n,): the weight of the squared sum where it is free; infinite takes the row out
    penalty: float  # The loss per unit of slack reported for rows with a free sum and no ridge: hard margins


class SimplexState(NamedTuple):
    """State of multi-class coordinate ascent, updated in place."""

    omega: Floats  # (n, c): the multipliers, none negative
    weights: Floats  # (c, k): ``sum_n sum_c omega_nc (e_label(n) - e_c) features_n'``
    classes: Counts  # (n, c): a permutation of the classes, per row; those in play come first
    in_play: Counts  # (n,): how many are in play


@compiled_inline
def _score_classes(weights: Floats, features: Reals, i: int, classes: Counts, m: int, out: Floats) -> None:
    """Write ``out[a] = <weights[c], features[i]>`` for the first ``m`` classes c of row i."""
    n_features = features.shape[1]
    a = 0
    while a + 4 <= m:
        c0, c1, c2, c3 = classes[i, a], classes[i, a + 1], classes[i, a + 2], classes[i, a + 3]
        s0, s1, s2, s3 = 0.0, 0.0, 0.0, 0.0
        for k in range(n_features):
            value = features[i, k]
            s0 += weights[c0, k] * value
            s1 += weights[c1, k] * value
            s2 += weights[c2, k] * value
            s3 += weights[c3, k] * value
        out[a], out[a + 1], out[a + 2], out[a + 3] = s0, s1, s2, s3
        a += 4
    while a + 2 <= m:
        c0, c1 = classes[i, a], classes[i, a + 1]
        s0, s1 = 0.0, 0.0
        for k in range(n_features):
            value = features[i, k]
            s0 += weights[c0, k] * value
            s1 += weights[c1, k] * value
        out[a], out[a + 1] = s0, s1
        a += 2
    if a < m:
        c0 = classes[i, a]
        s0 = 0.0
        for k in range(n_features):
            s0 += weights[c0, k] * features[i, k]
        out[a] = s0


@compiled_inline
def _threshold(values: Floats, m: int, slope: float, level: float) -> float:
    """Return tau with ``sum_a max(0, values[a] - tau) = slope * tau + level``; there must be a positive term.

    The left side is convex, so Newton's method started left of the root increases to it in finitely many steps; the
    largest value alone gives such a start.
    """
    largest = -np.inf
    for a in range(m):
        largest = max(largest, values[a])
    tau = (largest - level) / (1.0 + slope)
    count = 1
    for _ in range(m):
        above = 0
        total = 0.0
        for a in range(m):
            if values[a] > tau:
                above += 1
                total += values[a]
        if above == count:
            break
        tau = (total - level) / (above + slope)
        count = above
    return tau


@compiled_inline
def _row_gradient(
    features: Reals,
    label: int,
    cost: Floats,
    cost_row: int,
    ridge: float,
    is_fixed: bool,
    i: int,
    omega: Floats,
    weights: Floats,
    classes: Counts,
    m: int,
    gradient: Floats,
) -> tuple[float, float, float, float]:
    """Write the dual's gradient for the first ``m`` classes; return its extremes, the mass and the true score.

    The minimum is over classes with positive weight; a class without weight and with a smaller gradient stays at zero.
    With a free total, zero is also compared, since the total can shrink.
    """
    _score_classes(weights, features, i, classes, m, gradient)
    true_score, shift, mass = 0.0, 0.0, 0.0
    if not is_fixed:
        for a in range(m):
            mass += omega[i, classes[i, a]]
        for k in range(features.shape[1]):
            true_score += weights[label, k] * features[i, k]
        shift = true_score + ridge * mass
    top, low = -np.inf, np.inf
    for a in range(m):
        c = classes[i, a]
        if is_fixed and c == label:
            true_score = gradient[a]
        gradient[a] += cost[cost_row, c] - shift
        top = max(top, gradient[a])
        if omega[i, c] > 0.0:
            low = min(low, gradient[a])
    if not is_fixed:
        top, low = max(top, -ridge * mass), min(low, 0.0)
    return top, low, mass, true_score


@compiled_inline
def _complementarity(i: int, omega: Floats, classes: Counts, m: int, gradient: Floats, top: float) -> float:
    """Return ``sum_a omega_a (top - gradient_a)``, a sum of nonnegative terms."""
    gap = 0.0
    for a in range(m):
        gap += omega[i, classes[i, a]] * (top - gradient[a])
    return gap


@compiled_inline
def _row_loss(
    total: float, ridge: float, penalty: float, top: float, mass: float, true_score: float
) -> tuple[float, float]:
    """Return the row's loss and its part of the duality gap without the complementarity."""
    if not np.isinf(total):
        return total * (top - true_score), 0.0
    slack = top + ridge * mass
    if ridge > 0.0:
        return slack * slack / (2.0 * ridge), top * top / (2.0 * ridge)
    return penalty * slack, (penalty - mass) * slack


@compiled_inline
def _restart_row(label: int, total: float, ridge: float, i: int, classes: Counts) -> int:
    """Activate all classes of row i and return their number; none if the row has no weight."""
    last = int(classes.shape[1]) - 1
    if total == 0.0 or np.isinf(ridge):
        return 0
    if not np.isinf(total):
        return last + 1
    for a in range(last):  # with a free total the true class has no multiplier of its own
        if classes[i, a] == label:
            classes[i, a] = classes[i, last]
            classes[i, last] = label
    return last


@compiled_inline
def _set_aside(low: float, i: int, omega: Floats, classes: Counts, m: int, gradient: Floats) -> int:
    """Move inactive classes to the end, and return the number of active ones."""
    a = 0
    while a < m:
        c = classes[i, a]
        if omega[i, c] == 0.0 and gradient[a] < low:
            m -= 1
            classes[i, a] = classes[i, m]
            classes[i, m] = c
            gradient[a] = gradient[m]
        else:
            a += 1
    return m


@compiled_inline
def _solve_row(
    norm: float,
    total: float,
    ridge: float,
    mass: float,
    i: int,
    omega: Floats,
    classes: Counts,
    m: int,
    gradient: Floats,
    values: Floats,
) -> bool:
    """Write the optimal multipliers of row i to ``values``; return False if they are unbounded.

    With a fixed total they are a projection on the simplex. With a free total every step also changes the weights of
    the true class and the ridge term. Gradients are relative to the largest, since division by a tiny row norm would
    otherwise lose all digits of the multipliers.
    """
    is_fixed = not np.isinf(total)
    largest = gradient[:m].max()
    if norm == 0.0:
        if not is_fixed and ridge == 0.0:
            return bool(largest <= 0.0)
        left = total if is_fixed else max(0.0, mass + largest / ridge)
        for a in range(m):
            values[a] = left if gradient[a] == largest else 0.0
            left -= values[a]
        return True
    slope, level = (0.0, total) if is_fixed else (1.0 / (1.0 + ridge / norm), mass + largest / (norm + ridge))
    tau = -np.inf
    for a in range(m):
        values[a] = omega[i, classes[i, a]] + (gradient[a] - largest) / norm
        tau = max(tau, values[a])
    if slope * tau + level > 0.0:
        tau = _threshold(values, m, slope, level)
    above = 0
    for a in range(m):
        values[a] = max(0.0, values[a] - tau)
        above += values[a] > 0.0
    if is_fixed and above == 1:  # exactly at the vertex, so that the row can be skipped
        for a in range(m):
            if values[a] > 0.0:
                values[a] = total
    return True


@compiled_inline
def _move_row(
    features: Reals,
    label: int,
    is_fixed: bool,
    i: int,
    omega: Floats,
    weights: Floats,
    classes: Counts,
    m: int,
    values: Floats,
) -> None:
    """Write the new multipliers of row i and update the weights."""
    moved = 0.0
    for a in range(m):
        c = classes[i, a]
        change = omega[i, c] - values[a]
        if change != 0.0:
            omega[i, c] = values[a]
            moved -= change
            for k in range(features.shape[1]):
                weights[c, k] += change * features[i, k]
    if not is_fixed and moved != 0.0:
        for k in range(features.shape[1]):
            weights[label, k] += moved * features[i, k]


@compiled
def simplex_epoch(rows: SimplexRows, order: Indices, restart: bool, state: SimplexState) -> tuple[float, float, float]:
    """Visit rows once, maximizing the multi-class dual exactly over each row's multipliers.

    The dual is ``-1/2 sum_c |weights_c|^2 + sum_n sum_c omega_nc cost_nc - ridge_n (sum_c omega_nc)^2 / 2`` with
    ``weights = sum_n sum_c omega_nc (e_label(n) - e_c) features_n'`` and ``omega >= 0``.

    Parameters
    ----------
    rows : SimplexRows
    order : (v,)
        The rows to visit.
    restart : bool
        Whether to consider all classes of the visited rows instead of the active ones only.
    state : SimplexState
        Updated in place. Classes become inactive if they have no weight and smaller gradients than all classes with
        weight. Rows whose multipliers cannot change have no active classes.

    Returns
    -------
    violation, gap, loss : float
        The largest violation of a row's optimality conditions, infinite if the dual is unbounded; the part of the
        duality gap of the visited rows; and their loss after a restart, otherwise zero. Each row is evaluated just
        before its step.
    """
    # Fields are unpacked once: reading one from a record inside the loop costs two atomic operations.
    features, norms, labels, cost, cost_row, totals, ridges, penalty = rows
    omega, weights, classes, n_in_play = state
    gradient, values = np.empty(weights.shape[0]), np.empty(weights.shape[0])
    violation, gap, loss = 0.0, 0.0, 0.0
    for i in order:
        label, total, ridge = labels[i], totals[i], ridges[i]
        is_fixed = not np.isinf(total)
        m = _restart_row(label, total, ridge, i, classes) if restart else int(n_in_play[i])
        n_in_play[i] = m
        if m == 0:
            continue
        top, low, mass, true_score = _row_gradient(
            features, label, cost, cost_row[i], ridge, is_fixed, i, omega, weights, classes, m, gradient
        )
        row_loss, row_gap = _row_loss(total, ridge, penalty, top, mass, true_score)
        if restart:
            loss += row_loss
        gap += row_gap + _complementarity(i, omega, classes, m, gradient, top)
        m = _set_aside(low, i, omega, classes, m, gradient)
        if is_fixed and m == 1:
            m = 0  # at a vertex, where multipliers cannot change
        n_in_play[i] = m
        row_violation = (top if is_fixed else max(top, 0.0)) - low
        if m == 0 or row_violation <= SATISFIED:
            continue
        if _solve_row(norms[i], total, ridge, mass, i, omega, classes, m, gradient, values):
            violation = max(violation, row_violation)
            _move_row(features, label, is_fixed, i, omega, weights, classes, m, values)
        else:
            violation = np.inf
    return violation, gap, loss


@compiled
def simplex_check(rows: SimplexRows, state: SimplexState) -> tuple[float, float]:
    """Return the loss and the duality gap at the state's multipliers and weights.

    The primal objective is ``1/2 sum_c |weights_c|^2`` plus the loss. Multipliers and weights do not change.
    """
    features, _norms, labels, cost, cost_row, totals, ridges, penalty = rows
    omega, weights, classes, _n_answers = state
    gradient = np.empty(weights.shape[0])
    loss, gap = 0.0, 0.0
    for i in range(labels.size):
        is_fixed = not np.isinf(totals[i])
        m = _restart_row(labels[i], totals[i], ridges[i], i, classes)
        if m > 0:
            top, _low, mass, true_score = _row_gradient(
                features, labels[i], cost, cost_row[i], ridges[i], is_fixed, i, omega, weights, classes, m, gradient
            )
            row_loss, row_gap = _row_loss(totals[i], ridges[i], penalty, top, mass, true_score)
            loss += row_loss
            gap += row_gap + _complementarity(i, omega, classes, m, gradient, top)
    return loss, gap


@compiled
def _sum_weights(features: Reals, labels: Indices, omega: Floats, weights: Floats) -> None:
    n_classes, n_features = weights.shape
    for i in range(labels.size):
        label = labels[i]
        mass = 0.0
        for c in range(n_classes):
            amount = omega[i, c]
            if amount != 0.0 and c != label:
                mass += amount
                for k in range(n_features):
                    weights[c, k] -= amount * features[i, k]
        if mass != 0.0:
            for k in range(n_features):
                weights[label, k] += mass * features[i, k]


def simplex_weights(rows: SimplexRows, omega: Floats) -> Floats:
    """Return ``sum_n sum_c omega_nc (e_label(n) - e_c) features_n'``, (c, k)."""
    weights = np.zeros((omega.shape[1], rows.features.shape[1]))
    _sum_weights(rows.features, rows.labels, omega, weights)
    return weights
