"""Problems of single rows in plain NumPy: one of several components for a row, and multipliers of its margins."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.optimize import brentq
from scipy.special import softmax

from regbayes._types import Floats, Indices

LONGEST = 1e6  # Newton step, where no answer loses its mass before
DAMPING = 1e-12  # added to Newton's matrix, in units of its trace
ROUNDING = 1e-14  # share of its mass that an answer which loses it all may seem to keep


class _Row(NamedTuple):
    """The problem of one row with T components and A answers."""

    logits: Floats  # (T,)
    gains: Floats  # (T, A)
    cost: Floats  # (A,)
    label: int
    price: float
    squared: bool

    def tilted(self, omega: Floats) -> Floats:
        """The distribution that belongs to multipliers, (T,)."""
        return np.asarray(softmax(self.logits + self.gains @ omega))

    def slopes(self, omega: Floats, q: Floats) -> Floats:
        """How much more of each multiplier is worth, (A,); the true one of the square stands for the mass of all."""
        slopes = np.asarray(self.cost - q @ self.gains)
        if self.squared:
            slopes[self.label] = 0.5 * omega.sum() / self.price
        return slopes

    def has_mass(self, omega: Floats) -> Floats:
        """Whether an answer can give mass away, (A,); the true one of the square always can."""
        return np.asarray((omega > 0.0) | (self.squared & (np.arange(omega.size) == self.label)))

    def relative_gap(self, omega: Floats, q: Floats) -> float:
        """Duality gap in units of the price times one plus the loss."""
        excess = self.cost - q @ self.gains
        loss = excess.max() ** 2 if self.squared else excess.max()
        conjugate = 0.25 * omega.sum() ** 2 / self.price if self.squared else 0.0
        return float((self.price * loss + conjugate - omega @ excess) / (self.price * (1.0 + loss)))


def solve_assignments(
    logits: Floats,
    gains: Floats,
    cost: Floats,
    labels: Indices,
    price: Floats,
    squared: bool,
    tol: float,
    max_steps: int,
    omega: Floats,
    q: Floats,
) -> float:
    """Solve ``min_q KL(q || softmax(logits)) + price loss(q)`` over the distributions q of every row's component.

    The loss is the multi-class hinge ``max_y (cost_y - sum_k q_k gain_ky)`` or its square. In the dual there is a
    multiplier for every answer. Steps take turns: mass moves to the answer that asks most for it, from the one that
    asks least; and between all that have any, along Newton's direction. Each goes as far as is best.

    Parameters
    ----------
    logits : (n, T)
    gains : (n, T, A)
        What a component adds to the margin over each answer; zero for the true one.
    cost : (n, A)
        Zero for the true answer.
    labels : (n,)
    price : (n,)
        Rows without a price follow their logits.
    squared : bool
        Whether the loss is the square of the hinge.
    tol : float
        Duality gap of a row to stop at, in units of its price times one plus its loss.
    max_steps : int
        Pairs at most, for a row; each is followed by a Newton step.
    omega : (n, A)
        Multipliers, written: not negative; those of the hinge sum to the price, those of its square have zero for the
        true answer.
    q : (n, T)
        Written.

    Returns
    -------
    float
        The largest gap, in the units of ``tol``.
    """
    worst = 0.0
    for i, label in enumerate(labels):
        if price[i] <= 0.0:
            omega[i], q[i] = 0.0, softmax(logits[i])
            continue
        row = _Row(logits[i], gains[i], cost[i], int(label), float(price[i]), squared)
        q[i] = row.tilted(omega[i])
        for step in range(2 * max_steps):
            if row.relative_gap(omega[i], q[i]) <= tol:
                break
            omega[i] = _pair_step(row, omega[i], q[i]) if step % 2 == 0 else _newton_step(row, omega[i], q[i])
            q[i] = row.tilted(omega[i])
        worst = max(worst, row.relative_gap(omega[i], q[i]))
    return worst


def _pair_step(row: _Row, omega: Floats, q: Floats) -> Floats:
    slopes = row.slopes(omega, q)
    move = np.zeros_like(omega)
    move[np.argmax(slopes)] += 1.0
    move[np.argmin(np.where(row.has_mass(omega), slopes, np.inf))] -= 1.0
    return _moved(row, omega, q, move)


def _newton_step(row: _Row, omega: Floats, q: Floats) -> Floats:
    """Mass between all answers that have any; one of them, or the true one, gives what the others get."""
    pivot = row.label if row.squared else int(np.argmax(omega))
    others = np.flatnonzero((omega > 0.0) & (np.arange(omega.size) != pivot))
    slopes = row.slopes(omega, q)
    relative = row.gains[:, others] - row.gains[:, [pivot]]
    centred = relative - q @ relative
    curvature = (q[:, None] * centred).T @ centred + (0.5 / row.price if row.squared else 0.0)
    curvature += (DAMPING * np.trace(curvature) + np.finfo(np.float64).tiny) * np.eye(len(others))
    move = np.zeros_like(omega)
    move[others] = np.linalg.solve(curvature, slopes[others] - slopes[pivot])
    move[pivot] = -move[others].sum()
    return _moved(row, omega, q, move)


def _moved(row: _Row, omega: Floats, q: Floats, move: Floats) -> Floats:
    """Multipliers after as much of a move as is best, and no answer has less than nothing."""
    rise = float(move @ row.slopes(omega, q))
    if not rise > 0.0:
        return omega
    bounded = move < 0.0
    ridge = 0.0
    if row.squared:
        bounded[row.label] = False
        ridge = 0.5 / row.price * move[row.label] ** 2
    most = float(np.min(-omega[bounded] / move[bounded], initial=LONGEST))
    direction = row.gains @ move

    def slope(length: float) -> float:
        pulled = softmax(row.logits + row.gains @ omega + length * direction)
        return float(rise - ridge * length - (pulled - q) @ direction)

    length = most if slope(most) >= 0.0 else float(brentq(slope, 0.0, most, xtol=1e-15))
    after = omega + length * move
    after[after <= ROUNDING * omega] = 0.0
    if row.squared:
        after[row.label] = 0.0
    return np.asarray(after)
