"""Losses of large-margin learning: hinges of any power, multi-class hinges, the epsilon-insensitive loss.

Prices may differ from coordinate to coordinate, or from row to row, so that one object is the loss of a data set. A
penalty of zero asks for nothing.
"""

from __future__ import annotations

from typing import final

import numpy as np
from numpy.typing import ArrayLike

from regbayes._registry import persistable
from regbayes._types import Floats, Indices, Reals
from regbayes.regularization.dual_forms import BoxDual, SimplexDual, classes_form, hinge_form, tube_form
from regbayes.regularization.regularizers.base import (
    Regularizer,
    add,
    as_floats,
    check_penalties,
    check_positive,
    check_target,
    common_size,
    diagonal_blocks,
    dot,
    hard_excess,
    like,
    size_of,
)
from regbayes.regularization.regularizers.projections import project_rows_to_simplex, simplex_projection_jacobian


@final
@persistable
class Hinge(Regularizer):
    """``sum_i C_i max(0, x_i)^power``: a soft ``x <= 0``; ``C = inf`` is the hard margin.

    Parameters
    ----------
    C : float or array of shape (m,), default=1.0
        Penalty on a violation; one for each coordinate, or one for all.
    power : float, default=1.0
        1 is the hinge, 2 the squared hinge; any number >= 1.
    """

    def __init__(self, C: ArrayLike = 1.0, power: float = 1.0) -> None:
        self.C = check_penalties("C", C)
        self.power = check_positive("power", power)
        if self.power < 1:
            raise ValueError(f"power must be at least 1, got {power!r}")

    @property
    def size(self) -> int | None:
        return None if isinstance(self.C, float) else self.C.size

    def value(self, x: ArrayLike) -> float:
        excess = np.maximum(as_floats(x), 0.0).astype(np.float64)
        return dot(self.C, excess**self.power)

    def conjugate(self, u: ArrayLike) -> float:
        u = as_floats(u).astype(np.float64)
        C = np.broadcast_to(self.C, u.shape)
        if np.any(u < 0) or np.any(u[C == 0] > 0):
            return np.inf
        if self.power == 1:
            return np.inf if np.any(u > C) else 0.0
        k, soft = self.power, (C > 0) & np.isfinite(C)
        with np.errstate(over="ignore"):  # a power close to 1 has a conjugate that overflows to its limit, inf
            return float(np.sum((k - 1) * C[soft] * (u[soft] / (k * C[soft])) ** (k / (k - 1))))

    def prox(self, x: ArrayLike, step: ArrayLike = 1.0) -> Reals:
        x = as_floats(x)
        weight = self.C * np.asarray(step)
        if self.power == 1:
            above = np.maximum(x - weight, 0.0)
        elif self.power == 2:
            above = x / (1 + 2 * weight)
        else:
            hard = np.isinf(weight)
            above = np.where(hard, 0.0, _power_prox(np.maximum(x, 0.0), np.where(hard, 1.0, weight), self.power))
        return like(np.where(x > 0, above, x), x)

    def prox_jacobian(self, x: ArrayLike, step: ArrayLike = 1.0) -> Floats:
        x = as_floats(x).astype(np.float64)
        weight = np.broadcast_to(self.C * np.asarray(step, dtype=np.float64), x.shape)
        if self.power == 1:
            return diagonal_blocks((x < 0) | (x >= weight), x)
        k, v = self.power, np.maximum(self.prox(x, step), 0.0)
        # v^(k - 2) is infinite at zero for k < 2, and the derivative zero; without a penalty there is no curvature.
        with np.errstate(divide="ignore", invalid="ignore"):
            curvature = np.where(weight > 0, weight * k * (k - 1) * v ** (k - 2), 0.0)
        return diagonal_blocks(
            np.where((x < 0) | (weight == 0), 1.0, np.where(np.isinf(weight), 0.0, 1 / (1 + curvature))), x
        )

    def clip_dual(self, u: Floats) -> Floats:
        return np.clip(u, 0.0, self.C if self.power == 1 else np.where(np.asarray(self.C) > 0, np.inf, 0.0))

    def slack(self, x: ArrayLike) -> Floats:
        return -as_floats(x).astype(np.float64)

    def dual_form(self, size: int) -> BoxDual | None:
        if self.power not in (1, 2) and np.any(np.isfinite(self.C)):
            return None
        return hinge_form(np.broadcast_to(self.C, size).astype(np.float64), self.power != 1)


def _power_prox(x: Reals, weight: Reals, power: float) -> Floats:
    """Solve ``v + weight power v^(power - 1) = x`` on [0, x] by bisection: monotone, so it cannot fail."""
    low, high = np.zeros_like(x, dtype=np.float64), np.asarray(x, dtype=np.float64).copy()
    with np.errstate(over="ignore"):  # what overflows is above x
        for _ in range(80):
            middle = 0.5 * (low + high)
            above = middle + weight * power * middle ** (power - 1) > x
            high = np.where(above, middle, high)
            low = np.where(above, low, middle)
    return 0.5 * (low + high)


class _MultiClass(Regularizer):
    """Blocks of classes with a cost for each: the layout that both multi-class hinges share."""

    C: float | Floats
    cost: Floats | None
    labels: Indices | None

    def _store(self, C: ArrayLike, cost: ArrayLike | None, labels: ArrayLike | None) -> None:
        self.C = check_penalties("C", C)
        self.cost = None if cost is None else np.asarray(cost, dtype=np.float64)
        self.labels = None if labels is None else np.asarray(labels, dtype=np.int64)
        if self.cost is not None:
            if self.cost.ndim not in (1, 2) or self.cost.size == 0:
                raise ValueError(f"cost must have shape (classes,) or (rows, classes), got {self.cost.shape}")
            if not np.all(np.isfinite(self.cost)):
                raise ValueError("cost must be finite")
        if self.labels is not None:
            if self.cost is None or self.cost.ndim != 2:
                raise ValueError("labels need cost to be a table, whose rows they choose")
            if self.labels.ndim != 1 or np.any(self.labels < 0) or np.any(self.labels >= len(self.cost)):
                raise ValueError(f"labels must be a 1-D array of numbers in 0 .. {len(self.cost) - 1}")
        if self.cost is None and not isinstance(self.C, float):
            raise ValueError("without cost there is one row, and C must be one number")
        _ = self.size  # as many penalties as rows

    @property
    def _n_rows(self) -> int | None:
        if self.labels is not None:
            return self.labels.size
        return len(self.cost) if self.cost is not None and self.cost.ndim == 2 else None

    @property
    def size(self) -> int | None:
        if self.cost is None:
            return None
        n_penalties = None if isinstance(self.C, float) else self.C.size
        return self.cost.shape[-1] * (common_size([self._n_rows, n_penalties], "cost and C") or 1)

    @property
    def block_size(self) -> int | None:
        return None if self.cost is None else self.cost.shape[-1]

    def clip_dual(self, u: Floats) -> Floats:
        rows = self._rows(np.maximum(u, 0.0))
        return np.where(self._penalties(rows)[:, None] > 0, rows, 0.0).ravel()

    def slack(self, x: ArrayLike) -> Floats:
        rows = self._rows(x)
        return -(rows + self._costs(rows)).ravel()

    def _rows(self, x: ArrayLike) -> Floats:
        x = as_floats(x).astype(np.float64)
        return x.reshape(1, -1) if self.cost is None else x.reshape(-1, self.cost.shape[-1])

    def _costs(self, rows: Floats) -> Floats:
        if self.cost is None:
            return np.zeros_like(rows)
        return np.broadcast_to(self.cost if self.labels is None else self.cost[self.labels], rows.shape)

    def _penalties(self, rows: Floats) -> Floats:
        return np.broadcast_to(np.asarray(self.C), len(rows))

    def _table(self, size: int) -> tuple[Floats, Indices, Floats]:
        """Return the costs of a dual form, which of their rows applies, and the penalties of the rows."""
        table = np.zeros((1, size)) if self.cost is None else np.atleast_2d(self.cost)
        n_rows = size // table.shape[1]
        row = self.labels if self.labels is not None else np.arange(n_rows) % len(table)
        return table, row, np.broadcast_to(np.asarray(self.C), n_rows).astype(np.float64)

    def _row_step(self, rows: Floats, step: ArrayLike) -> Floats:
        return np.broadcast_to(np.asarray(step, dtype=np.float64).ravel(), rows.size).reshape(rows.shape)[:, 0]


@final
@persistable
class MultiClassHinge(_MultiClass):
    """``sum_n C_n max_i (cost_ni + x_ni)``: one block of classes per row; ``C = inf`` asks every one to be <= 0.

    Parameters
    ----------
    C : float or array of shape (rows,), default=1.0
        Penalty on a violation; one for each row, or one for all.
    cost : array of shape (classes,) or (rows, classes), default=None
        Cost of each class, zero for the true one. Without it x is one block and costs are zero.
    labels : array of shape (rows,), default=None
        The row of ``cost`` that applies to each row, where ``cost`` is a table of costs by true class.
    """

    def __init__(self, C: ArrayLike = 1.0, cost: ArrayLike | None = None, labels: ArrayLike | None = None) -> None:
        self._store(C, cost, labels)

    def value(self, x: ArrayLike) -> float:
        rows = self._rows(x)
        worst = np.max(rows + self._costs(rows), axis=1)
        hard = np.isinf(self._penalties(rows))
        if np.any(worst[hard] > 0):
            return np.inf
        return dot(self._penalties(rows)[~hard], worst[~hard])

    def conjugate(self, u: ArrayLike) -> float:
        rows = self._rows(u)
        if np.any(rows < 0):
            return np.inf
        C = self._penalties(rows)
        soft = np.isfinite(C)
        if not np.allclose(rows.sum(axis=1)[soft], C[soft], rtol=1e-7, atol=0):
            return np.inf
        return dot(rows, -self._costs(rows))

    def prox(self, x: ArrayLike, step: ArrayLike = 1.0) -> Reals:
        x = as_floats(x)
        rows = self._rows(x)
        shifted = rows + self._costs(rows)
        C, out = self._penalties(rows), rows.copy()
        hard, soft = np.isinf(C), np.isfinite(C) & (C > 0)
        out[hard] = (np.minimum(shifted, 0.0) - self._costs(rows))[hard]
        # Moreau: subtract t times the projection of shifted / t onto the scaled simplex.
        out[soft] -= project_rows_to_simplex(shifted[soft], (C * self._row_step(rows, step))[soft])
        return like(out.ravel(), x)

    def prox_jacobian(self, x: ArrayLike, step: ArrayLike = 1.0) -> Floats:
        rows = self._rows(x)
        shifted, C, identity = rows + self._costs(rows), self._penalties(rows), np.eye(rows.shape[1])
        jacobian = np.broadcast_to(identity, (*rows.shape, rows.shape[1])).copy()
        hard, soft = np.isinf(C), np.isfinite(C) & (C > 0)
        jacobian[hard] = identity * (shifted[hard] < 0)[:, None, :]
        projected = project_rows_to_simplex(shifted[soft], (C * self._row_step(rows, step))[soft])
        jacobian[soft] -= simplex_projection_jacobian(projected > 0)
        return jacobian

    def clip_dual(self, u: Floats) -> Floats:
        rows = super().clip_dual(u).reshape(self._rows(u).shape)
        C, sums = self._penalties(rows), rows.sum(axis=1)
        close = np.isfinite(C) & (sums > 0) & (np.abs(sums - C) <= 1e-3 * C)
        return (rows * np.divide(C, sums, out=np.ones(len(C)), where=close)[:, None]).ravel()

    def dual_start(self, size: int) -> Floats:
        rows = self._rows(np.zeros(size))
        C = self._penalties(rows)
        return np.repeat(np.where(np.isfinite(C), C, 0.0) / rows.shape[1], rows.shape[1])

    def dual_form(self, size: int) -> SimplexDual:
        return classes_form(*self._table(size), squared=False)


@final
@persistable
class MultiClassSquaredHinge(_MultiClass):
    """``C sum_n max(0, max_i (cost_ni + x_ni))^2``; parameters as in `MultiClassHinge`."""

    def __init__(self, C: ArrayLike = 1.0, cost: ArrayLike | None = None, labels: ArrayLike | None = None) -> None:
        self._store(C, cost, labels)

    def value(self, x: ArrayLike) -> float:
        rows = self._rows(x)
        worst = np.maximum(np.max(rows + self._costs(rows), axis=1), 0.0)
        return dot(self._penalties(rows), worst**2)

    def conjugate(self, u: ArrayLike) -> float:
        rows = self._rows(u)
        if np.any(rows < 0):
            return np.inf
        C, total = self._penalties(rows), rows.sum(axis=1)
        if np.any(total[C == 0] > 0):
            return np.inf
        squares = np.divide(total**2, 4 * C, out=np.zeros(len(C)), where=(C > 0) & np.isfinite(C))
        return add(float(np.sum(squares)), dot(rows, -self._costs(rows)))

    def prox(self, x: ArrayLike, step: ArrayLike = 1.0) -> Reals:
        x = as_floats(x)
        rows = self._rows(x)
        shifted = rows + self._costs(rows)
        lowered = np.minimum(shifted, self._level(shifted, step)) - self._costs(rows)
        return like(np.where(self._penalties(rows)[:, None] > 0, lowered, rows).ravel(), x)

    def prox_jacobian(self, x: ArrayLike, step: ArrayLike = 1.0) -> Floats:
        rows = self._rows(x)
        shifted, C, identity = rows + self._costs(rows), self._penalties(rows), np.eye(rows.shape[1])
        above = (shifted > self._level(shifted, step)).astype(np.float64)
        above[C == 0] = 0.0
        # Those above the level come down to it, and it rises by its share with each of them.
        share = 1 / np.maximum(above.sum(axis=1) + 2 * C * self._row_step(rows, step), np.finfo(np.float64).tiny)
        jacobian: Floats = identity * (1 - above)[:, None, :]
        jacobian += share[:, None, None] * above[:, :, None] * above[:, None, :]
        return jacobian

    def _level(self, shifted: Floats, step: ArrayLike) -> Floats:
        """Return the level that `prox` lowers each row to, ``sum (shifted - l)_+ = 2 C step l``, shape (rows, 1)."""
        descending = -np.sort(-np.maximum(shifted, 0.0), axis=1)
        counts = np.arange(1, shifted.shape[1] + 1)  # how many exceed the level
        weight = 2 * self._penalties(shifted) * self._row_step(shifted, step)
        return np.max(np.cumsum(descending, axis=1) / (counts + weight[:, None]), axis=1, keepdims=True)

    def dual_form(self, size: int) -> SimplexDual:
        return classes_form(*self._table(size), squared=True)


@final
@persistable
class EpsilonInsensitive(Regularizer):
    """``sum_i C_i max(0, |x_i - target_i| - epsilon)^power``: a soft ``x == target``; ``C = inf`` is the hard tube.

    Parameters
    ----------
    target : float or array of shape (m,)
        Where the expectations should lie.
    epsilon : float, default=0.0
        Half-width of the free tube.
    C : float or array of shape (m,), default=1.0
        Penalty on a violation; one for each coordinate, or one for all.
    power : {1, 2}, default=1
        2 charges the squared violation.
    """

    def __init__(self, target: ArrayLike, epsilon: float = 0.0, C: ArrayLike = 1.0, power: float = 1.0) -> None:
        self.target = check_target("target", target)
        self.epsilon = check_positive("epsilon", epsilon, allow_zero=True)
        self.C = check_penalties("C", C)
        self.power = check_positive("power", power)
        if self.power not in (1, 2):
            raise ValueError(f"power must be 1 or 2, got {power!r}")
        common_size([size_of(self.target), None if isinstance(self.C, float) else self.C.size], "target and C")

    @property
    def size(self) -> int | None:
        return size_of(self.target) if isinstance(self.C, float) else self.C.size

    def value(self, x: ArrayLike) -> float:
        away = np.abs(as_floats(x) - self.target)
        excess = np.maximum(away - self.epsilon, 0.0)
        hard = np.isinf(self.C)
        excess = np.where(hard, hard_excess(excess, np.abs(self.target) + self.epsilon), excess)
        return dot(self.C, excess**self.power)

    def conjugate(self, u: ArrayLike) -> float:
        u = as_floats(u).astype(np.float64)
        C = np.broadcast_to(self.C, u.shape)
        linear = dot(np.abs(u), np.sign(u) * self.target + self.epsilon)
        if self.power == 1:
            return np.inf if np.any(np.abs(u) > C) else linear
        if np.any(u[C == 0] != 0):
            return np.inf
        soft = (C > 0) & np.isfinite(C)
        return add(linear, float(np.sum(np.divide(u**2, 4 * C, out=np.zeros(u.shape), where=soft))))

    def prox(self, x: ArrayLike, step: ArrayLike = 1.0) -> Reals:
        x = as_floats(x)
        away = x - self.target
        side, excess, reach = np.sign(away), np.abs(away) - self.epsilon, self.C * np.asarray(step)
        edge = self.target + side * self.epsilon
        if self.power == 1:
            outside = np.where(excess <= reach, edge, x - side * np.minimum(excess, reach))
        else:
            outside = edge + side * np.maximum(excess, 0.0) / (1 + 2 * reach)
        return like(np.where((excess > 0) & (reach > 0), outside, x), x)

    def prox_jacobian(self, x: ArrayLike, step: ArrayLike = 1.0) -> Floats:
        x = as_floats(x).astype(np.float64)
        excess = np.abs(x - self.target) - self.epsilon
        reach = self.C * np.asarray(step, dtype=np.float64)
        if self.power == 1:
            return diagonal_blocks(~((excess >= 0) & (excess < reach)), x)
        return diagonal_blocks(np.where(excess < 0, 1.0, 1 / (1 + 2 * reach)), x)

    def clip_dual(self, u: Floats) -> Floats:
        reach = self.C if self.power == 1 else np.where(np.asarray(self.C) > 0, np.inf, 0.0)
        return np.clip(u, -np.asarray(reach), reach)

    def shift(self, by: float | Floats) -> EpsilonInsensitive:
        return EpsilonInsensitive(self.target + by, self.epsilon, self.C, self.power)

    def slack(self, x: ArrayLike) -> Floats:
        return np.asarray(self.epsilon - np.abs(as_floats(x) - self.target), dtype=np.float64)

    def dual_form(self, size: int) -> BoxDual:
        target, C = (np.broadcast_to(values, size).astype(np.float64) for values in (self.target, self.C))
        return tube_form(target, self.epsilon, C, self.power != 1)
