"""Dual forms: conjugates given by arrays of numbers.

A closed convex function is determined by its conjugate, and the conjugate's domain constrains the multipliers. The
hinge, the squared hinge, the epsilon-insensitive loss and every hard bound are a box with different numbers
(`BoxDual`). The multi-class hinges are a scaled simplex per row (`SimplexDual`). Solvers depend on the form only.

`Regularizer.dual_form` returns the form. The functions here build the forms of losses; `regbayes.margins.targets` and
the regularizers share them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from regbayes._types import Flags, Floats, Indices
from regbayes.regularization.projections import project_rows_to_simplex, simplex_projection_jacobian


def dot(u: ArrayLike, c: ArrayLike) -> float:
    """Return ``sum u_i c_i`` with 0 * inf = 0 and inf - inf = inf."""
    u, c = np.broadcast_arrays(np.asarray(u, dtype=np.float64), np.asarray(c, dtype=np.float64))
    used = (u != 0) & (c != 0)
    terms = u[used] * c[used]
    return np.inf if np.any(terms == np.inf) else float(np.sum(terms))


def add(*terms: float) -> float:
    """Return the sum of extended real numbers with inf - inf = inf."""
    return np.inf if np.inf in terms else float(sum(terms))


@dataclass(frozen=True)
class BoxDual:
    """Separable conjugate on a box.

    ``g*(u) = sum_i max(low_i u_i, high_i u_i) + ridge_i u_i^2 / 2`` on ``lower <= u <= upper``. If the box
    contains zero, g is zero between ``low`` and ``high``. Outside, its slope grows by ``1 / ridge`` up to the bound of
    the box. Infinite bounds are allowed. All fields have shape (n,).
    """

    low: Floats
    high: Floats
    ridge: Floats
    lower: Floats
    upper: Floats

    @classmethod
    def of(
        cls,
        size: int,
        low: ArrayLike,
        high: ArrayLike,
        *,
        ridge: ArrayLike = 0.0,
        lower: ArrayLike = -np.inf,
        upper: ArrayLike = np.inf,
    ) -> BoxDual:
        """Return the form with all fields broadcast to n coordinates."""
        zeros = np.zeros(size)
        return cls(*(zeros + np.asarray(field) for field in (low, high, ridge, lower, upper)))

    def __len__(self) -> int:
        return len(self.low)

    @property
    def linear(self) -> Floats:
        """Midpoint of ``low`` and ``high``, the linear coefficient of g*."""
        return self.low + self.absolute

    @property
    def absolute(self) -> Floats:
        """Half the distance between ``low`` and ``high``."""
        return 0.5 * (self.high - self.low)

    def take(self, index: Any) -> BoxDual:
        """Return the conjugate of some coordinates."""
        return BoxDual(*(getattr(self, field.name)[index] for field in fields(self)))

    @cached_property
    def is_smooth(self) -> bool:
        """Whether the conjugate is smooth everywhere: no bound, no kink."""
        return bool((np.isinf(self.lower) & np.isinf(self.upper) & (self.low == self.high)).all())

    @cached_property
    def is_linear(self) -> bool:
        """Whether the conjugate is linear: equalities."""
        return self.is_smooth and not self.ridge.any()

    def domain(self) -> tuple[Floats, Floats]:
        """Return the domain of g per coordinate; multipliers may diverge at a finite end."""
        hard = self.ridge == 0.0
        lowest = np.where(np.isinf(self.lower) & hard, self.low, -np.inf)
        return lowest, np.where(np.isinf(self.upper) & hard, self.high, np.inf)

    def conjugate(self, u: Floats) -> float:
        """Return ``g*(u)``, ``inf`` outside the box."""
        if self.is_linear:
            total = float(self.low @ u)
        elif np.any((u < self.lower) | (u > self.upper)):
            return np.inf
        else:
            total = float(np.where(u > 0, self.high, self.low) @ u + 0.5 * (self.ridge @ np.square(u)))
        if math.isnan(total):  # an infinite multiplier times zero
            return add(dot(np.where(u > 0, self.high, self.low), u), 0.5 * dot(self.ridge, np.square(u)))
        return total

    def derivatives(self, x: Floats) -> Floats:
        """Return ``g'(x)``, the u that maximizes ``u x - g*(u)``; zero if zero does."""
        away = x - np.clip(x, self.low, self.high)
        with np.errstate(divide="ignore", invalid="ignore"):
            free = np.where(away == 0.0, 0.0, away / self.ridge)  # infinite without a ridge
        return np.clip(free, self.lower, self.upper)

    def values(self, x: Floats) -> Floats:
        """Return ``g(x)`` of each coordinate, ``inf`` off its domain."""
        u, away = self.derivatives(x), x - np.clip(x, self.low, self.high)
        with np.errstate(invalid="ignore"):
            values = np.where(u == 0.0, 0.0, u * away - 0.5 * self.ridge * np.square(u))
        return np.where(np.isinf(u), np.inf, values)

    def prox(self, x: Floats, step: Floats | float) -> Floats:
        """Return the proximal map of g, which is exact on hard bounds."""
        near, _, ratio, slope, u = self._prox(x, step)
        return np.where(u == slope, near + ratio * (x - near), x - step * u)

    def prox_jacobian(self, x: Floats, step: Floats | float) -> Floats:
        """Return the derivative of `prox` in each coordinate, shape (n, 1, 1)."""
        _, inside, ratio, slope, u = self._prox(x, step)
        return np.where(inside | (u != slope), 1.0, ratio).reshape(-1, 1, 1)

    def _prox(self, x: Floats, step: Floats | float) -> tuple[Floats, Flags, Floats, Floats, Floats]:
        near, total = np.clip(x, self.low, self.high), self.ridge + step
        slope = (x - near) / total
        inside = (x > self.low) & (x < self.high)
        return near, inside, self.ridge / total, slope, np.clip(slope, self.lower, self.upper)

    def prox_dual(self, v: Floats, step: Floats | float) -> Floats:
        """Return the proximal map of the conjugate."""
        return self.clip((v - np.clip(v, step * self.low, step * self.high)) / (1 + step * self.ridge))

    def clip(self, u: Floats) -> Floats:
        """Return the nearest point of the box."""
        return np.clip(u, self.lower, self.upper)

    def start(self) -> Floats:
        """Return a point of the box to start from."""
        return self.clip(np.zeros(len(self)))

    def slack(self, x: Floats) -> Floats:
        """Return how far each coordinate lies inside the unpenalized range."""
        below = np.where(self.upper > 0, self.high - x, np.inf)
        return np.minimum(below, np.where(self.lower < 0, x - self.low, np.inf))


@dataclass(frozen=True)
class SimplexDual:
    """Conjugate on one scaled simplex per row.

    ``g*(u) = sum_n <linear_row(n), u_n> + ridge_n (sum u_n)^2 / 2`` on ``u_n >= 0`` and ``sum u_n = total_n``.
    With a finite ``total`` the sum of a row is fixed and ``ridge`` is zero (multi-class hinge, total = C). With
    ``total = inf`` it is free (multi-class squared hinge, ridge = 1 / (2 C)). A row with a total of zero or an infinite
    ridge has no effect.
    """

    linear: Floats  # (r, classes): minus the costs
    row: Indices  # (n,): the row of `linear` that applies
    total: Floats  # (n,)
    ridge: Floats  # (n,)

    def __len__(self) -> int:
        return len(self.row)

    @property
    def n_classes(self) -> int:
        """Number of coordinates of a row."""
        return int(self.linear.shape[1])

    @property
    def _is_out(self) -> Flags:
        return (self.total == 0) | np.isinf(self.ridge)

    def _rows(self, x: Floats) -> Floats:
        return x.reshape(len(self), self.n_classes)

    def domain(self) -> tuple[Floats, Floats]:
        """Return the domain of each coordinate: finite for hard classes."""
        hard = np.isinf(self.total) & (self.ridge == 0)
        high = np.where(hard[:, None], self.linear[self.row], np.inf).ravel()
        return np.full(high.size, -np.inf), high

    def conjugate(self, u: Floats) -> float:
        """Return ``g*(u)``, ``inf`` outside its domain; row sums have a tolerance of 1e-7."""
        rows = self._rows(u)
        sums, fixed = rows.sum(axis=1), np.isfinite(self.total)
        off = fixed & ~np.isclose(sums, self.total, rtol=1e-7, atol=0)
        if np.any(rows < 0) or np.any(off) or np.any(sums[self._is_out] > 0):
            return np.inf
        return add(0.5 * dot(np.where(fixed, 0.0, self.ridge), sums**2), dot(rows, self.linear[self.row]))

    def values(self, x: Floats) -> Floats:
        """Return g of each row of x, (n, classes) or (n * classes,), shape (n,)."""
        worst = (self._rows(x) - self.linear[self.row]).max(axis=1)
        u = self._weights(worst)
        with np.errstate(invalid="ignore"):
            values = np.where(u == 0.0, 0.0, u * worst - 0.5 * self.ridge * np.square(u))
        return np.where(np.isinf(u), np.inf, values)

    def _weights(self, worst: Floats) -> Floats:
        """Return the sum of each row's multipliers, given its largest coordinate."""
        excess = np.maximum(worst, 0.0)
        with np.errstate(divide="ignore", invalid="ignore"):
            free = np.where((excess == 0.0) | np.isinf(self.ridge), 0.0, excess / self.ridge)
        return np.where(np.isfinite(self.total), self.total, free)

    def prox(self, x: Floats, step: Floats | float) -> Floats:
        """Return the proximal map of g by Moreau's identity; rows share a step."""
        return x - step * self.prox_dual(x / step, 1 / np.asarray(step))

    def prox_dual(self, v: Floats, step: Floats | float) -> Floats:
        """Return the proximal map of the conjugate; steps are equal within a row."""
        t = self._steps(step)[:, None]
        lowered, fixed = self._rows(v) - t * self.linear[self.row], np.isfinite(self.total)
        found = np.maximum(lowered - t * self._level(lowered / t, 1 / t[:, 0]), 0.0)
        found[self._is_out] = 0.0
        found[fixed] = project_rows_to_simplex(lowered[fixed], self.total[fixed])
        return found.ravel()

    def prox_jacobian(self, x: Floats, step: Floats | float) -> Floats:
        """Return the Jacobian of `prox`, shape (n, classes, classes)."""
        rows, t = self._rows(x), self._steps(step)
        shifted, fixed = rows - self.linear[self.row], np.isfinite(self.total) & (self.total > 0)
        above = (shifted > self._level(shifted, t)).astype(np.float64)
        above[fixed | self._is_out] = 0.0
        # Raising a coordinate above the level raises the level by its share.
        with np.errstate(divide="ignore"):
            share = 1 / np.maximum(above.sum(axis=1) + t / self.ridge, np.finfo(np.float64).tiny)
        jacobian: Floats = np.eye(self.n_classes) * (1 - above)[:, None, :]
        jacobian += share[:, None, None] * above[:, :, None] * above[:, None, :]
        projected = project_rows_to_simplex(shifted[fixed], (self.total * t)[fixed])
        jacobian[fixed] -= simplex_projection_jacobian(projected > 0)
        return jacobian

    def _steps(self, step: Floats | float) -> Floats:
        step = np.broadcast_to(np.asarray(step, dtype=np.float64).ravel(), len(self) * self.n_classes)
        return self._rows(step)[:, 0]

    def _level(self, shifted: Floats, t: Floats) -> Floats:
        """Return the root l of ``ridge sum (shifted - l)_+ = t l`` for each row."""
        descending = -np.sort(-np.maximum(shifted, 0.0), axis=1)
        counts = np.arange(1, shifted.shape[1] + 1)  # possible numbers of coordinates above the level
        with np.errstate(divide="ignore"):
            weight = t / self.ridge
        return np.max(np.cumsum(descending, axis=1) / (counts + weight[:, None]), axis=1, keepdims=True)

    def clip(self, u: Floats) -> Floats:
        """Project u onto the conjugate's domain to remove rounding."""
        rows = np.where(self._is_out[:, None], 0.0, np.maximum(self._rows(u), 0.0))
        sums = rows.sum(axis=1)
        close = np.isfinite(self.total) & (sums > 0) & (np.abs(sums - self.total) <= 1e-3 * self.total)
        return (rows * np.divide(self.total, sums, out=np.ones(len(self)), where=close)[:, None]).ravel()

    def start(self) -> Floats:
        """Return a point of the conjugate's domain to start from."""
        return np.repeat(np.where(np.isfinite(self.total), self.total, 0.0) / self.n_classes, self.n_classes)

    def slack(self, x: Floats) -> Floats:
        """Return how far each coordinate lies inside the unpenalized range."""
        return (self.linear[self.row] - self._rows(x)).ravel()


DualForm = BoxDual | SimplexDual


def join_boxes(forms: Sequence[DualForm | None]) -> BoxDual | None:
    """Return the conjugates side by side as one box; None if one of them is not a box."""
    boxes = [form for form in forms if isinstance(form, BoxDual)]
    if len(boxes) < len(forms):
        return None
    if len(boxes) == 1:
        return boxes[0]
    return BoxDual(*(np.concatenate([getattr(box, field.name) for box in boxes]) for field in fields(BoxDual)))


def hinge_form(C: Floats, squared: bool, signs: Floats | float = 1.0, margin: float = 0.0) -> BoxDual:
    """Return the conjugate of ``sum_i C_i max(0, margin + sign_i x_i)`` or squares."""
    reach, ridge = _reach(C, squared)
    up, edge = np.broadcast_to(signs, len(C)) > 0, 0.0 - margin * np.asarray(signs)
    return BoxDual.of(len(C), edge, edge, ridge=ridge, lower=np.where(up, 0.0, -reach), upper=np.where(up, reach, 0.0))


def tube_form(target: Floats, epsilon: float, C: Floats, squared: bool) -> BoxDual:
    """Return the conjugate of the epsilon-insensitive loss or its square."""
    reach, ridge = _reach(C, squared)
    return BoxDual.of(len(C), target - epsilon, target + epsilon, ridge=ridge, lower=-reach, upper=reach)


def classes_form(cost: Floats, row: Indices, C: Floats, squared: bool) -> SimplexDual:
    """Return the conjugate of ``sum_n C_n max_i (cost_row(n),i + x_ni)`` or squares.

    The square is that of the positive part. C has shape (n,).
    """
    if not squared:
        return SimplexDual(-cost, row, C, np.zeros(len(C)))
    with np.errstate(divide="ignore"):
        return SimplexDual(-cost, row, np.full(len(C), np.inf), 0.5 / C)


def _reach(C: Floats, squared: bool) -> tuple[Floats, Floats]:
    """Return the largest multipliers and the ridge; a zero C has multiplier zero."""
    if not squared:
        return C, np.zeros(len(C))
    # The ridge of a coordinate with C = 0 has no effect, but a positive one keeps the problem smooth.
    ridge = np.divide(0.5, C, out=np.ones(len(C)), where=C > 0)
    return np.where(C > 0, np.inf, 0.0), ridge
