"""Losses of large-margin learning: hinges of any power, multi-class hinges, the epsilon-insensitive loss."""

from __future__ import annotations

from typing import final

import numpy as np
from numpy.typing import ArrayLike

from regbayes._registry import persistable
from regbayes.framework.dual_forms import BoxDual, SimplexDual
from regbayes.framework.regularizers.base import (
    AnyFloats,
    Floats,
    Regularizer,
    add,
    as_floats,
    check_positive,
    check_target,
    diagonal_blocks,
    dot,
    hard_excess,
    like,
    size_of,
)
from regbayes.framework.regularizers.projections import project_rows_to_simplex, simplex_projection_jacobian


@final
@persistable
class Hinge(Regularizer):
    """``C sum_i max(0, x_i)^power``: a soft ``x <= 0``; ``C = inf`` is the hard margin.

    Parameters
    ----------
    C : float, default=1.0
        Price of a violation.
    power : float, default=1.0
        1 is the hinge, 2 the squared hinge; any number >= 1.
    """

    def __init__(self, C: float = 1.0, power: float = 1.0) -> None:
        self.C = check_positive("C", C, allow_inf=True)
        self.power = check_positive("power", power)
        if self.power < 1:
            raise ValueError(f"power must be at least 1, got {power!r}")

    def value(self, x: ArrayLike) -> float:
        excess = np.maximum(as_floats(x), 0.0).astype(np.float64)
        return dot(np.full(excess.shape, self.C), excess**self.power)

    def conjugate(self, u: ArrayLike) -> float:
        u = as_floats(u).astype(np.float64)
        if np.any(u < 0):
            return np.inf
        if np.isinf(self.C):
            return 0.0
        if self.power == 1:
            return np.inf if np.any(u > self.C) else 0.0
        k = self.power
        with np.errstate(over="ignore"):  # a power close to 1 has a conjugate that overflows to its limit, inf
            return float(np.sum((k - 1) * self.C * (u / (k * self.C)) ** (k / (k - 1))))

    def prox(self, x: ArrayLike, step: ArrayLike = 1.0) -> AnyFloats:
        x = as_floats(x)
        if np.isinf(self.C):
            return np.minimum(x, 0.0)
        if self.power == 1:
            return like(np.where(x > 0, np.maximum(x - self.C * np.asarray(step), 0.0), x), x)
        if self.power == 2:
            return like(np.where(x > 0, x / (1 + 2 * self.C * np.asarray(step)), x), x)
        return like(np.where(x > 0, _power_prox(np.maximum(x, 0.0), self.C * as_floats(step), self.power), x), x)

    def prox_jacobian(self, x: ArrayLike, step: ArrayLike = 1.0) -> Floats:
        x = as_floats(x).astype(np.float64)
        if np.isinf(self.C):
            return diagonal_blocks(x < 0, x)
        weight = self.C * np.asarray(step, dtype=np.float64)
        if self.power == 1:
            return diagonal_blocks((x < 0) | (x >= weight), x)
        k, v = self.power, np.maximum(self.prox(x, step), 0.0)
        with np.errstate(divide="ignore"):  # v^(k - 2) is infinite at zero for k < 2, and the derivative zero
            curvature = weight * k * (k - 1) * v ** (k - 2)
        return diagonal_blocks(np.where(x < 0, 1.0, 1 / (1 + curvature)), x)

    def clip_dual(self, u: Floats) -> Floats:
        return np.clip(u, 0.0, self.C if self.power == 1 else None)

    def slack(self, x: ArrayLike) -> Floats:
        return -as_floats(x).astype(np.float64)

    def dual_form(self, size: int) -> BoxDual | None:
        if self.power not in (1, 2) and np.isfinite(self.C):
            return None
        hard = np.isinf(self.C)
        zeros = np.zeros(size)
        ridge = 0.0 if hard or self.power == 1 else 1 / (2 * self.C)
        upper = self.C if self.power == 1 else np.inf
        return BoxDual(zeros, zeros, np.full(size, ridge), zeros, np.full(size, upper))


def _power_prox(x: AnyFloats, weight: AnyFloats, power: float) -> Floats:
    """Solve ``v + weight power v^(power - 1) = x`` on [0, x] by bisection: monotone, so it cannot fail."""
    low, high = np.zeros_like(x, dtype=np.float64), np.asarray(x, dtype=np.float64).copy()
    for _ in range(80):
        middle = 0.5 * (low + high)
        above = middle + weight * power * middle ** (power - 1) > x
        high = np.where(above, middle, high)
        low = np.where(above, low, middle)
    return 0.5 * (low + high)


class _MultiClass(Regularizer):
    """Blocks of answers with a cost for each: the layout that both multi-class hinges share."""

    C: float
    cost: Floats | None

    def _store(self, C: float, cost: ArrayLike | None) -> None:
        self.C = check_positive("C", C, allow_inf=True)
        self.cost = None if cost is None else np.asarray(cost, dtype=np.float64)
        if self.cost is not None:
            if self.cost.ndim not in (1, 2) or self.cost.size == 0:
                raise ValueError(f"cost must have shape (answers,) or (rows, answers), got {self.cost.shape}")
            if not np.all(np.isfinite(self.cost)):
                raise ValueError("cost must be finite")

    @property
    def size(self) -> int | None:
        return None if self.cost is None else self.cost.size

    @property
    def block_size(self) -> int | None:
        return None if self.cost is None else self.cost.shape[-1]

    def clip_dual(self, u: Floats) -> Floats:
        return np.maximum(u, 0.0)

    def slack(self, x: ArrayLike) -> Floats:
        rows = self._rows(x)
        return -(rows + self._costs(rows)).ravel()

    def _rows(self, x: ArrayLike) -> Floats:
        x = as_floats(x).astype(np.float64)
        return x.reshape(1, -1) if self.cost is None else x.reshape(-1, self.cost.shape[-1])

    def _costs(self, rows: Floats) -> Floats:
        return np.zeros_like(rows) if self.cost is None else np.broadcast_to(self.cost, rows.shape)

    def _row_step(self, rows: Floats, step: ArrayLike) -> Floats:
        return np.broadcast_to(np.asarray(step, dtype=np.float64).ravel(), rows.size).reshape(rows.shape)[:, 0]


@final
@persistable
class MultiClassHinge(_MultiClass):
    """``C sum_n max_i (cost_ni + x_ni)``: one block of answers per row; ``C = inf`` asks every answer to be <= 0.

    Parameters
    ----------
    C : float, default=1.0
        Price of a violation.
    cost : array of shape (answers,) or (rows, answers), default=None
        Cost of each answer, zero for the true one. Without it x is one block and costs are zero.
    """

    def __init__(self, C: float = 1.0, cost: ArrayLike | None = None) -> None:
        self._store(C, cost)

    def value(self, x: ArrayLike) -> float:
        rows = self._rows(x)
        worst = np.max(rows + self._costs(rows), axis=1)
        if np.isinf(self.C):
            return np.inf if np.any(worst > 0) else 0.0
        return dot(np.full(worst.shape, self.C), worst)

    def conjugate(self, u: ArrayLike) -> float:
        rows = self._rows(u)
        if np.any(rows < 0):
            return np.inf
        total = rows.sum(axis=1)
        if np.isfinite(self.C) and not np.allclose(total, self.C, rtol=1e-7, atol=0):
            return np.inf
        return dot(rows, -self._costs(rows))

    def prox(self, x: ArrayLike, step: ArrayLike = 1.0) -> AnyFloats:
        x = as_floats(x)
        rows = self._rows(x)
        shifted = rows + self._costs(rows)
        if np.isinf(self.C):
            return like((np.minimum(shifted, 0.0) - self._costs(rows)).ravel(), x)
        t = self._row_step(rows, step)
        # Moreau: subtract t times the projection of shifted / t onto the scaled simplex.
        return like((rows - project_rows_to_simplex(shifted, self.C * t)).ravel(), x)

    def prox_jacobian(self, x: ArrayLike, step: ArrayLike = 1.0) -> Floats:
        rows = self._rows(x)
        shifted = rows + self._costs(rows)
        identity = np.eye(rows.shape[1])
        if np.isinf(self.C):
            return identity * (shifted < 0)[:, None, :]
        projected = project_rows_to_simplex(shifted, self.C * self._row_step(rows, step))
        return identity - simplex_projection_jacobian(projected > 0)

    def dual_form(self, size: int) -> SimplexDual | None:
        if self.cost is not None and self.cost.ndim == 2:
            return None  # several blocks: one form each
        linear = np.zeros(size) if self.cost is None else -self.cost
        return SimplexDual(linear, self.C, 0.0) if np.isfinite(self.C) else None


@final
@persistable
class MultiClassSquaredHinge(_MultiClass):
    """``C sum_n max(0, max_i (cost_ni + x_ni))^2``; parameters as in `MultiClassHinge`."""

    def __init__(self, C: float = 1.0, cost: ArrayLike | None = None) -> None:
        self._store(C, cost)

    def value(self, x: ArrayLike) -> float:
        rows = self._rows(x)
        worst = np.maximum(np.max(rows + self._costs(rows), axis=1), 0.0)
        return dot(np.full(worst.shape, self.C), worst**2)

    def conjugate(self, u: ArrayLike) -> float:
        rows = self._rows(u)
        if np.any(rows < 0):
            return np.inf
        square = 0.0 if np.isinf(self.C) else float(np.sum(rows.sum(axis=1) ** 2)) / (4 * self.C)
        return add(square, dot(rows, -self._costs(rows)))

    def prox(self, x: ArrayLike, step: ArrayLike = 1.0) -> AnyFloats:
        x = as_floats(x)
        rows = self._rows(x)
        shifted = rows + self._costs(rows)
        return like((np.minimum(shifted, self._level(shifted, step)) - self._costs(rows)).ravel(), x)

    def prox_jacobian(self, x: ArrayLike, step: ArrayLike = 1.0) -> Floats:
        rows = self._rows(x)
        shifted = rows + self._costs(rows)
        identity = np.eye(rows.shape[1])
        if np.isinf(self.C):
            return identity * (shifted < 0)[:, None, :]
        above = (shifted > self._level(shifted, step)).astype(np.float64)
        # Those above the level come down to it, and it rises by its share with each of them.
        share = 1 / (above.sum(axis=1) + 2 * self.C * self._row_step(rows, step))
        jacobian: Floats = identity * (1 - above)[:, None, :]
        jacobian += share[:, None, None] * above[:, :, None] * above[:, None, :]
        return jacobian

    def _level(self, shifted: Floats, step: ArrayLike) -> Floats:
        """Return the level that `prox` lowers each row to, ``sum (shifted - l)_+ = 2 C step l``, shape (rows, 1)."""
        if np.isinf(self.C):
            return np.zeros((len(shifted), 1))
        descending = -np.sort(-np.maximum(shifted, 0.0), axis=1)
        counts = np.arange(1, shifted.shape[1] + 1)  # how many exceed the level
        levels = np.cumsum(descending, axis=1) / (counts + 2 * self.C * self._row_step(shifted, step)[:, None])
        level: Floats = np.max(levels, axis=1, keepdims=True)
        return level

    def dual_form(self, size: int) -> SimplexDual | None:
        if self.cost is not None and self.cost.ndim == 2:
            return None
        linear = np.zeros(size) if self.cost is None else -self.cost
        return SimplexDual(linear, np.inf, 0.0 if np.isinf(self.C) else 1 / (2 * self.C))


@final
@persistable
class EpsilonInsensitive(Regularizer):
    """``C sum_i max(0, |x_i - target_i| - epsilon)``: a soft ``x == target``; ``C = inf`` is the hard tube.

    Parameters
    ----------
    target : float or array of shape (m,)
        Where the expectations should lie.
    epsilon : float, default=0.0
        Half-width of the free tube.
    C : float, default=1.0
        Price of a violation.
    """

    def __init__(self, target: ArrayLike, epsilon: float = 0.0, C: float = 1.0) -> None:
        self.target = check_target("target", target)
        self.epsilon = check_positive("epsilon", epsilon, allow_zero=True)
        self.C = check_positive("C", C, allow_inf=True)

    @property
    def size(self) -> int | None:
        return size_of(self.target)

    def value(self, x: ArrayLike) -> float:
        away = np.abs(as_floats(x) - self.target)
        excess = np.maximum(away - self.epsilon, 0.0)
        if np.isinf(self.C):
            excess = hard_excess(excess, np.abs(self.target) + self.epsilon)
        return dot(np.full(excess.shape, self.C), excess)

    def conjugate(self, u: ArrayLike) -> float:
        u = as_floats(u).astype(np.float64)
        if np.any(np.abs(u) > self.C):
            return np.inf
        return dot(np.abs(u), np.sign(u) * self.target + self.epsilon)

    def prox(self, x: ArrayLike, step: ArrayLike = 1.0) -> AnyFloats:
        x = as_floats(x)
        away = x - self.target
        side, excess, reach = np.sign(away), np.abs(away) - self.epsilon, self.C * np.asarray(step)
        outside = np.where(excess <= reach, self.target + side * self.epsilon, x - side * np.minimum(excess, reach))
        return like(np.where(excess > 0, outside, x), x)

    def prox_jacobian(self, x: ArrayLike, step: ArrayLike = 1.0) -> Floats:
        x = as_floats(x).astype(np.float64)
        excess = np.abs(x - self.target) - self.epsilon
        onto_edge = (excess >= 0) & (excess < self.C * np.asarray(step, dtype=np.float64))
        return diagonal_blocks(~onto_edge, x)

    def clip_dual(self, u: Floats) -> Floats:
        return np.clip(u, -self.C, self.C)

    def slack(self, x: ArrayLike) -> Floats:
        return np.asarray(self.epsilon - np.abs(as_floats(x) - self.target), dtype=np.float64)

    def dual_form(self, size: int) -> BoxDual:
        bound = np.full(size, self.C)
        return BoxDual(
            np.broadcast_to(self.target, size).copy(), np.full(size, self.epsilon), np.zeros(size), -bound, bound
        )
