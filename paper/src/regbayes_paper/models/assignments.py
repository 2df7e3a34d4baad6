"""Problems of single rows: one of several components for a row, and multipliers of its margins.

A row's problem is ``min_q KL(q || softmax(logits)) + C loss(q)`` over distributions q of its component, with the
multi-class hinge ``max_y (cost_y - sum_k q_k gain_ky)`` or its square. In the dual there is a multiplier for every
class. Steps that move mass between two of them find out which ones matter, and Newton steps on those that have any
mass get them right: pairs alone go to and fro without end where C is large.
"""

from __future__ import annotations

import numpy as np

from regbayes._types import Floats, Indices
from regbayes.kernels._compile import compiled, compiled_inline

_LINE_STEPS = 100  # at most, for one length
_LINE_TOLERANCE = 1e-10  # relative to the length
_LONGEST = 1e6  # Newton step, where no class loses its mass before
_DAMPING = 1e-12  # added to Newton's matrix, in units of its trace
_ROUNDING = 1e-14  # share of its mass that a class which loses it all may seem to keep
_LEAST = 1e-290  # keeps Cholesky's method from dividing by zero


@compiled_inline
def _weigh(tilt: Floats, q: Floats) -> None:
    """Write softmax(tilt) to q."""
    highest = tilt[0]
    for k in range(1, tilt.size):
        highest = max(highest, tilt[k])
    total = 0.0
    for k in range(tilt.size):
        q[k] = np.exp(tilt[k] - highest)
        total += q[k]
    for k in range(tilt.size):
        q[k] /= total


@compiled_inline
def _write_excess(gains: Floats, cost: Floats, q: Floats, excess: Floats) -> None:
    """Write ``cost_y - sum_k q_k gain_ky``."""
    for a in range(cost.size):
        total = 0.0
        for k in range(q.size):
            total += q[k] * gains[k, a]
        excess[a] = cost[a] - total


@compiled_inline
def _best_length(
    tilt: Floats, direction: Floats, moved: Floats, q: Floats, offset: float, ridge: float, most: float
) -> float:
    """Root in [0, most] of ``offset - ridge t - E[direction]``, which falls, under softmax(tilt + t direction)."""
    low, high = 0.0, most
    length = most  # if even that is not too much it is the root
    for _ in range(_LINE_STEPS):
        for k in range(tilt.size):
            moved[k] = tilt[k] + length * direction[k]
        _weigh(moved, q)
        mean = 0.0
        for k in range(tilt.size):
            mean += q[k] * direction[k]
        variance = 0.0
        for k in range(tilt.size):
            variance += q[k] * (direction[k] - mean) ** 2
        slope = offset - ridge * length - mean
        if slope > 0.0:
            low = length
        else:
            high = length
        after = 0.5 * (low + high)
        curvature = ridge + variance
        if curvature > 0.0:
            newton = length + slope / curvature
            if low < newton < high:
                after = newton
        change = abs(after - length)
        length = after
        if change <= _LINE_TOLERANCE * length:
            break
    return length


@compiled_inline
def _write_tilt(logits: Floats, gains: Floats, omega: Floats, tilt: Floats) -> None:
    """Write ``logits_k + sum_y omega_y gain_ky``."""
    for k in range(tilt.size):
        total = logits[k]
        for a in range(omega.size):
            total += gains[k, a] * omega[a]
        tilt[k] = total


@compiled_inline
def _relative_gap(excess: Floats, omega: Floats, C: float, squared: bool) -> float:
    """Duality gap in units of C times one plus the loss."""
    hinge, mass, paid = -np.inf, 0.0, 0.0
    for a in range(excess.size):
        hinge = max(hinge, excess[a])
        mass += omega[a]
        paid += omega[a] * excess[a]
    loss = hinge * hinge if squared else hinge
    conjugate = 0.25 * mass * mass / C if squared else 0.0
    return (C * loss + conjugate - paid) / (C * (1.0 + loss))


@compiled_inline
def _pair_step(
    gains: Floats, excess: Floats, label: int, C: float, squared: bool, omega: Floats, q: Floats, rows: Floats
) -> None:
    """Move mass to the class that asks most for it, from the one that asks least of those that have any.

    Mass of the squared hinge is free: it comes from the true class and goes there, and more of it costs more.
    """
    tilt, direction, moved = rows[0], rows[1], rows[2]
    to, source, highest, lowest = 0, 0, -np.inf, np.inf
    for a in range(omega.size):
        free = squared and a == label
        slope = 0.5 * omega.sum() / C if free else excess[a]
        if slope > highest:
            to, highest = a, slope
        if (free or omega[a] > 0.0) and slope < lowest:
            source, lowest = a, slope
    rise, most, ridge = highest - lowest, omega[source], 0.0
    if not rise > 0.0:
        return
    if squared and (to == label or source == label):
        ridge = 0.5 / C
        most = rise / ridge if source == label else min(most, rise / ridge)
    offset = rise
    for k in range(tilt.size):
        direction[k] = gains[k, to] - gains[k, source]
        offset += q[k] * direction[k]
    length = _best_length(tilt, direction, moved, q, offset, ridge, most)
    if not (squared and to == label):
        omega[to] += length
    if not (squared and source == label):
        omega[source] = max(omega[source] - length, 0.0)


@compiled_inline
def _solve_positive(matrix: Floats, vector: Floats, size: int) -> None:
    """Solve a positive definite system by Cholesky's method, in place; a small multiple of the trace is added."""
    trace = 0.0
    for i in range(size):
        trace += matrix[i, i]
    for i in range(size):
        matrix[i, i] += _DAMPING * trace + _LEAST
    for j in range(size):
        for i in range(j, size):
            total = matrix[i, j]
            for k in range(j):
                total -= matrix[i, k] * matrix[j, k]
            matrix[i, j] = np.sqrt(max(total, _LEAST)) if i == j else total / matrix[j, j]
    for i in range(size):
        total = vector[i]
        for k in range(i):
            total -= matrix[i, k] * vector[k]
        vector[i] = total / matrix[i, i]
    for i in range(size - 1, -1, -1):
        total = vector[i]
        for k in range(i + 1, size):
            total -= matrix[k, i] * vector[k]
        vector[i] = total / matrix[i, i]


@compiled_inline
def _write_newton_system(
    gains: Floats, q: Floats, pivot: int, classes: Indices, ridge: float, mean: Floats, matrix: Floats
) -> None:
    """Write the curvature of the dual, mass moving between each of some classes and the pivot (lower triangle)."""
    for i in range(classes.size):
        total = 0.0
        for k in range(q.size):
            total += q[k] * (gains[k, classes[i]] - gains[k, pivot])
        mean[i] = total
        for j in range(i + 1):
            total = ridge
            for k in range(q.size):
                left = gains[k, classes[i]] - gains[k, pivot] - mean[i]
                total += q[k] * left * (gains[k, classes[j]] - gains[k, pivot] - mean[j])
            matrix[i, j] = total


@compiled_inline
def _newton_step(
    gains: Floats,
    excess: Floats,
    label: int,
    C: float,
    squared: bool,
    omega: Floats,
    q: Floats,
    rows: Floats,
    matrix: Floats,
    step: Floats,
    classes: Indices,
) -> None:
    """Move mass between all classes that have any, along Newton's direction, as far as is best and none is lost."""
    T, gradient = q.size, rows[4]
    tilt, direction, moved = rows[0, :T], rows[1, :T], rows[2, :T]
    pivot = label if squared else int(np.argmax(omega))  # gives what the others get
    size = 0
    for a in range(omega.size):
        if a != pivot and omega[a] > 0.0:
            classes[size] = a
            size += 1
    ridge = 0.5 / C if squared else 0.0
    base = ridge * omega.sum() if squared else excess[pivot]
    for i in range(size):
        gradient[i] = step[i] = excess[classes[i]] - base
    _write_newton_system(gains, q, pivot, classes[:size], ridge, rows[3], matrix)
    _solve_positive(matrix, step, size)
    rise, together, most = 0.0, 0.0, _LONGEST
    for i in range(size):
        rise += step[i] * gradient[i]
        together += step[i]
        if step[i] < 0.0:
            most = min(most, -omega[classes[i]] / step[i])
    if together > 0.0 and not squared:
        most = min(most, omega[pivot] / together)
    if not rise > 0.0:
        return
    offset = rise
    for k in range(T):
        total = 0.0
        for i in range(size):
            total += step[i] * (gains[k, classes[i]] - gains[k, pivot])
        direction[k] = total
        offset += q[k] * total
    length = _best_length(tilt, direction, moved, q, offset, ridge * together * together, most)
    for i in range(size):
        after = omega[classes[i]] + length * step[i]
        omega[classes[i]] = after if after > _ROUNDING * omega[classes[i]] else 0.0
    if not squared:
        omega[pivot] = max(omega[pivot] - length * together, 0.0)


@compiled
def solve_assignments(
    logits: Floats,
    gains: Floats,
    cost: Floats,
    labels: Indices,
    C: Floats,
    squared: bool,
    tol: float,
    max_steps: int,
    omega: Floats,
    q: Floats,
) -> float:
    """Solve ``min_q KL(q || softmax(logits)) + C loss(q)`` over the distributions q of every row's component.

    The loss is the multi-class hinge ``max_y (cost_y - sum_k q_k gain_ky)`` or its square. In the dual there is a
    multiplier for every class. Steps take turns: mass moves to the class that asks most for it, from the one that
    asks least; and between all that have any, along Newton's direction. Each goes as far as is best.

    Parameters
    ----------
    logits : (n, T)
    gains : (n, T, A)
        What a component adds to the margin over each class; zero for the true one.
    cost : (n, A)
        Zero for the true class.
    labels : (n,)
    C : (n,)
        Rows without a C follow their logits.
    squared : bool
        Whether the loss is the square of the hinge.
    tol : float
        Duality gap of a row to stop at, in units of its C times one plus its loss.
    max_steps : int
        Pairs at most, for a row; each is followed by a Newton step.
    omega : (n, A)
        Multipliers, written: not negative; those of the hinge sum to C, those of its square have zero for the
        true class.
    q : (n, T)
        Written.

    Returns
    -------
    float
        The largest gap, in the units of ``tol``.
    """
    n, T = logits.shape
    A = cost.shape[1]
    rows = np.empty((5, max(T, A)))
    excess, matrix, vector, classes = np.empty(A), np.empty((A, A)), np.empty(A), np.empty(A, dtype=np.int64)
    worst = 0.0
    for i in range(n):
        if C[i] <= 0.0:
            omega[i, :] = 0.0
            _weigh(logits[i], q[i])
            continue
        for step in range(2 * max_steps + 1):
            _write_tilt(logits[i], gains[i], omega[i], rows[0, :T])
            _weigh(rows[0, :T], q[i])
            _write_excess(gains[i], cost[i], q[i], excess)
            gap = _relative_gap(excess, omega[i], C[i], squared)
            if gap <= tol or step == 2 * max_steps:
                worst = max(worst, gap)
                break
            if step % 2 == 0:
                _pair_step(gains[i], excess, labels[i], C[i], squared, omega[i], q[i], rows[:, :T])
            else:
                _newton_step(gains[i], excess, labels[i], C[i], squared, omega[i], q[i], rows, matrix, vector, classes)
    return worst
