"""Components of rows under multi-class margins in plain NumPy, with step lengths found by SciPy."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.optimize import brentq
from scipy.special import softmax

from regbayes._types import Flags, Floats, Indices

_LONGEST = 1e6  # maximum length of a Newton step if no class reaches zero mass
_DAMPING = 1e-12  # damping of Newton's matrix, relative to its trace
_ROUNDING = 1e-14  # share of a class's mass that counts as zero


class _Row(NamedTuple):
    """Problem of one row with T components and A classes."""

    logits: Floats  # (T,)
    gains: Floats  # (T, A)
    cost: Floats  # (A,)
    label: int
    C: float
    squared: bool

    def tilt(self, omega: Floats) -> Floats:
        """Return the distribution for given multipliers, (T,)."""
        return softmax(self.logits + self.gains @ omega)

    def gradient(self, omega: Floats, q: Floats) -> Floats:
        """Return the gradient by each multiplier, (A,); the true class of the square is the total mass."""
        gradient = self.cost - q @ self.gains
        if self.squared:
            gradient[self.label] = 0.5 * omega.sum() / self.C
        return gradient

    def has_mass(self, omega: Floats) -> Flags:
        """Return whether a class can give mass away, (A,); the true class of the square always can."""
        return (omega > 0.0) | (self.squared & (np.arange(omega.size) == self.label))

    def relative_gap(self, omega: Floats, q: Floats) -> float:
        """Return the duality gap in units of C times one plus the loss."""
        excess = self.cost - q @ self.gains
        loss = excess.max() ** 2 if self.squared else excess.max()
        conjugate = 0.25 * omega.sum() ** 2 / self.C if self.squared else 0.0
        return float((self.C * loss + conjugate - omega @ excess) / (self.C * (1.0 + loss)))


def reference_solve_assignments(
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
    """`solve_assignments` in plain NumPy."""
    worst = 0.0
    for i, label in enumerate(labels):
        if C[i] <= 0.0:
            omega[i], q[i] = 0.0, softmax(logits[i])
            continue
        row = _Row(logits[i], gains[i], cost[i], int(label), float(C[i]), squared)
        q[i] = row.tilt(omega[i])
        for step in range(2 * max_steps):
            if row.relative_gap(omega[i], q[i]) <= tol:
                break
            omega[i] = _pair_step(row, omega[i], q[i]) if step % 2 == 0 else _newton_step(row, omega[i], q[i])
            q[i] = row.tilt(omega[i])
        worst = max(worst, row.relative_gap(omega[i], q[i]))
    return worst


def _pair_step(row: _Row, omega: Floats, q: Floats) -> Floats:
    gradient = row.gradient(omega, q)
    move = np.zeros_like(omega)
    move[np.argmax(gradient)] += 1.0
    move[np.argmin(np.where(row.has_mass(omega), gradient, np.inf))] -= 1.0
    return _move(row, omega, q, move)


def _newton_step(row: _Row, omega: Floats, q: Floats) -> Floats:
    """Move mass between all classes that have any; one of them or the true class balances the changes."""
    pivot = row.label if row.squared else int(np.argmax(omega))
    others = np.flatnonzero((omega > 0.0) & (np.arange(omega.size) != pivot))
    gradient = row.gradient(omega, q)
    relative = row.gains[:, others] - row.gains[:, [pivot]]
    centred = relative - q @ relative
    curvature = (q[:, None] * centred).T @ centred + (0.5 / row.C if row.squared else 0.0)
    curvature += (_DAMPING * np.trace(curvature) + np.finfo(np.float64).tiny) * np.eye(len(others))
    move = np.zeros_like(omega)
    move[others] = np.linalg.solve(curvature, gradient[others] - gradient[pivot])
    move[pivot] = -move[others].sum()
    return _move(row, omega, q, move)


def _move(row: _Row, omega: Floats, q: Floats, move: Floats) -> Floats:
    """Return multipliers after the best feasible fraction of a move."""
    rise = float(move @ row.gradient(omega, q))
    if not rise > 0.0:
        return omega
    bounded = move < 0.0
    ridge = 0.0
    if row.squared:
        bounded[row.label] = False
        ridge = 0.5 / row.C * move[row.label] ** 2
    most = float(np.min(-omega[bounded] / move[bounded], initial=_LONGEST))
    direction = row.gains @ move

    def slope(length: float) -> float:
        after = softmax(row.logits + row.gains @ omega + length * direction)
        return float(rise - ridge * length - (after - q) @ direction)

    length = most if slope(most) >= 0.0 else float(brentq(slope, 0.0, most, xtol=1e-15))
    after = omega + length * move
    after[after <= _ROUNDING * omega] = 0.0
    if row.squared:
        after[row.label] = 0.0
    return after
