"""Compiled dual coordinate ascent for multi-class margins: one simplex of multipliers per row.

Each row's subproblem is solved exactly (Crammer and Singer, JMLR 2001); the threshold is found by Newton's method on a
convex piecewise linear function, which ends after a few passes over the answers. Answers that cannot take part are set
aside row by row, as in LIBLINEAR (Keerthi et al., KDD 2008).
"""

from __future__ import annotations

import numpy as np

from regbayes._types import Floats, Indices, Reals
from regbayes.kernels._compile import compiled, compiled_inline
from regbayes.kernels._prefetch import AHEAD, prefetch_row
from regbayes.kernels.types import Counts, MarginCheck, Progress, SimplexRows, SimplexState

_SATISFIED = 1e-12  # reference_margins.SATISFIED


@compiled_inline
def _score_answers(weights: Floats, features: Reals, i: int, answers: Counts, m: int, out: Floats) -> None:
    """Write ``out[a] = <weights[c], features[i]>`` for the first ``m`` answers c of row i."""
    n_features = features.shape[1]
    a = 0
    while a + 4 <= m:
        c0, c1, c2, c3 = answers[i, a], answers[i, a + 1], answers[i, a + 2], answers[i, a + 3]
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
        c0, c1 = answers[i, a], answers[i, a + 1]
        s0, s1 = 0.0, 0.0
        for k in range(n_features):
            value = features[i, k]
            s0 += weights[c0, k] * value
            s1 += weights[c1, k] * value
        out[a], out[a + 1] = s0, s1
        a += 2
    if a < m:
        c0 = answers[i, a]
        s0 = 0.0
        for k in range(n_features):
            s0 += weights[c0, k] * features[i, k]
        out[a] = s0


@compiled_inline
def _threshold(values: Floats, m: int, slope: float, level: float) -> float:
    """Return tau with ``sum_a max(0, values[a] - tau) = slope * tau + level``; there must be a positive term.

    The left side is convex, so Newton's method started left of the root climbs to it in finitely many steps; the
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
    answers: Counts,
    m: int,
    gradient: Floats,
) -> tuple[float, float, float, float]:
    """Write the dual's gradient for the first ``m`` answers; return its extremes, the mass and the true score.

    The lower extreme is over answers that carry weight: one without weight and a gradient below it stays so. With a
    free total zero is among the values compared, since the total can shrink.
    """
    _score_answers(weights, features, i, answers, m, gradient)
    true_score, shift, mass = 0.0, 0.0, 0.0
    if not is_fixed:
        for a in range(m):
            mass += omega[i, answers[i, a]]
        for k in range(features.shape[1]):
            true_score += weights[label, k] * features[i, k]
        shift = true_score + ridge * mass
    top, low = -np.inf, np.inf
    for a in range(m):
        c = answers[i, a]
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
def _complementarity(i: int, omega: Floats, answers: Counts, m: int, gradient: Floats, top: float) -> float:
    """Return ``sum_a omega_a (top - gradient_a)``, a sum of terms that are not negative."""
    gap = 0.0
    for a in range(m):
        gap += omega[i, answers[i, a]] * (top - gradient[a])
    return gap


@compiled_inline
def _row_loss(
    total: float, ridge: float, penalty: float, top: float, mass: float, true_score: float
) -> tuple[float, float]:
    """Return the row's loss and what its part of the duality gap has beside the complementarity."""
    if not np.isinf(total):
        return total * (top - true_score), 0.0
    slack = top + ridge * mass
    if ridge > 0.0:
        return slack * slack / (2.0 * ridge), top * top / (2.0 * ridge)
    return penalty * slack, (penalty - mass) * slack


@compiled_inline
def _restart_row(label: int, total: float, ridge: float, i: int, answers: Counts) -> int:
    """Bring all answers of row i back into play and return how many there are; none if the row has no weight."""
    last = int(answers.shape[1]) - 1
    if total == 0.0 or np.isinf(ridge):
        return 0
    if not np.isinf(total):
        return last + 1
    for a in range(last):  # with a free total the true answer takes part only through the others
        if answers[i, a] == label:
            answers[i, a] = answers[i, last]
            answers[i, last] = label
    return last


@compiled_inline
def _set_aside(low: float, i: int, omega: Floats, answers: Counts, m: int, gradient: Floats) -> int:
    """Move answers without weight and with gradient below ``low`` behind the others; return how many are left."""
    a = 0
    while a < m:
        c = answers[i, a]
        if omega[i, c] == 0.0 and gradient[a] < low:
            m -= 1
            answers[i, a] = answers[i, m]
            answers[i, m] = c
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
    answers: Counts,
    m: int,
    gradient: Floats,
    values: Floats,
) -> bool:
    """Write to ``values`` the best multipliers of row i; return False when they are unbounded.

    With a fixed total they are a projection on the simplex; with a free one every step also moves the weights of the
    true answer and pays the ridge.
    """
    is_fixed = not np.isinf(total)
    if norm == 0.0:
        largest = gradient[:m].max()
        if not is_fixed and ridge == 0.0:
            return bool(largest <= 0.0)
        left = total if is_fixed else max(0.0, mass + largest / ridge)
        for a in range(m):
            values[a] = left if gradient[a] == largest else 0.0
            left -= values[a]
        return True
    slope, level = (0.0, total) if is_fixed else (1.0 / (1.0 + ridge / norm), mass)
    tau = -np.inf
    for a in range(m):
        values[a] = omega[i, answers[i, a]] + gradient[a] / norm
        tau = max(tau, values[a])
    if slope * tau + level > 0.0:
        tau = _threshold(values, m, slope, level)
    above = 0
    for a in range(m):
        values[a] = max(0.0, values[a] - tau)
        above += values[a] > 0.0
    if is_fixed and above == 1:  # exactly the vertex, so that the row can be set aside
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
    answers: Counts,
    m: int,
    values: Floats,
) -> None:
    """Write the new multipliers of row i and their effect on the weights."""
    moved = 0.0
    for a in range(m):
        c = answers[i, a]
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
def _visit_rows(rows: SimplexRows, order: Indices, restart: bool, state: SimplexState) -> tuple[float, float, float]:
    # Fields are unpacked once: reading one from a record inside the loop costs two atomic operations.
    features, norms, labels, cost, cost_row, totals, ridges, penalty = rows
    omega, weights, answers, n_answers = state
    gradient, values = np.empty(weights.shape[0]), np.empty(weights.shape[0])
    violation, gap, loss = 0.0, 0.0, 0.0
    for visit in range(order.size):
        if visit + AHEAD < order.size:
            upcoming = order[visit + AHEAD]
            prefetch_row(features, upcoming)
            prefetch_row(omega, upcoming)
            prefetch_row(answers, upcoming)
        i = order[visit]
        label, total, ridge = labels[i], totals[i], ridges[i]
        is_fixed = not np.isinf(total)
        m = _restart_row(label, total, ridge, i, answers) if restart else int(n_answers[i])
        n_answers[i] = m
        if m == 0:
            continue
        top, low, mass, true_score = _row_gradient(
            features, label, cost, cost_row[i], ridge, is_fixed, i, omega, weights, answers, m, gradient
        )
        row_loss, row_gap = _row_loss(total, ridge, penalty, top, mass, true_score)
        if restart:
            loss += row_loss
        gap += row_gap + _complementarity(i, omega, answers, m, gradient, top)
        m = _set_aside(low, i, omega, answers, m, gradient)
        if is_fixed and m == 1:
            m = 0  # a vertex: nothing to exchange with
        n_answers[i] = m
        row_violation = (top if is_fixed else max(top, 0.0)) - low
        if m == 0 or row_violation <= _SATISFIED:
            continue
        if _solve_row(norms[i], total, ridge, mass, i, omega, answers, m, gradient, values):
            violation = max(violation, row_violation)
            _move_row(features, label, is_fixed, i, omega, weights, answers, m, values)
        else:
            violation = np.inf
    return violation, gap, loss


@compiled
def _check_rows(rows: SimplexRows, state: SimplexState) -> tuple[float, float]:
    features, _norms, labels, cost, cost_row, totals, ridges, penalty = rows
    omega, weights, answers, _n_answers = state
    gradient = np.empty(weights.shape[0])
    loss, gap = 0.0, 0.0
    for i in range(labels.size):
        is_fixed = not np.isinf(totals[i])
        m = _restart_row(labels[i], totals[i], ridges[i], i, answers)
        if m > 0:
            top, _low, mass, true_score = _row_gradient(
                features, labels[i], cost, cost_row[i], ridges[i], is_fixed, i, omega, weights, answers, m, gradient
            )
            row_loss, row_gap = _row_loss(totals[i], ridges[i], penalty, top, mass, true_score)
            loss += row_loss
            gap += row_gap + _complementarity(i, omega, answers, m, gradient, top)
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


def simplex_epoch(rows: SimplexRows, order: Indices, restart: bool, state: SimplexState) -> Progress:
    """Compiled twin of ``reference.simplex_epoch``."""
    return Progress(*_visit_rows(rows, order, restart, state))


def simplex_check(rows: SimplexRows, state: SimplexState) -> MarginCheck:
    """Compiled twin of ``reference.simplex_check``."""
    return MarginCheck(*_check_rows(rows, state))


def simplex_weights(rows: SimplexRows, omega: Floats) -> Floats:
    """Compiled twin of ``reference.simplex_weights``."""
    weights = np.zeros((omega.shape[1], rows.features.shape[1]))
    _sum_weights(rows.features, rows.labels, omega, weights)
    return weights
