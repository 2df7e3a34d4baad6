"""Dual forms: conjugates written as numbers, which is all that a solver for large margins sees of a loss.

The conjugate's domain *is* the constraint on the multipliers, so no solver hears the name of a loss: the hinge, the
squared hinge, the epsilon-insensitive loss and every hard bound are one box with other numbers, and the multi-class
hinges are one scaled simplex for each row. A conjugate determines its function, so losses and their derivatives at
given points are here too.

A regularizer has a dual form where it can be written as one (`Regularizer.dual_form`). Those of the losses of data sets
are functions here, which the targets of rows call (`regbayes.margins.targets`) and the regularizers of the same names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np

from regbayes._types import Flags, Floats, Indices


@dataclass(frozen=True)
class BoxDual:
    """``g*(u) = sum_i linear_i u_i + absolute_i |u_i| + ridge_i u_i^2 / 2`` on ``lower <= u <= upper``.

    Infinite bounds are allowed. All fields have shape (n,).
    """

    linear: Floats
    absolute: Floats
    ridge: Floats
    lower: Floats
    upper: Floats

    def __len__(self) -> int:
        return len(self.linear)

    def take(self, index: Any) -> BoxDual:
        """Return the conjugate of some of the coordinates."""
        return BoxDual(
            self.linear[index], self.absolute[index], self.ridge[index], self.lower[index], self.upper[index]
        )

    @cached_property
    def is_free(self) -> Flags:
        """Whether the conjugate is smooth in each coordinate: no bound, no kink."""
        return np.isinf(self.lower) & np.isinf(self.upper) & (self.absolute == 0.0)

    @cached_property
    def is_smooth(self) -> bool:
        """Whether the conjugate is smooth everywhere."""
        return bool(self.is_free.all())

    @cached_property
    def is_linear(self) -> bool:
        """Whether the conjugate is linear: equalities."""
        return self.is_smooth and not self.ridge.any()

    def domain(self) -> tuple[Floats, Floats]:
        """Return the ends of g's domain, one for each coordinate: finite where a multiplier may grow without limit."""
        if self.is_linear:
            return self.linear, self.linear
        free_below, free_above = (np.isinf(b) & (self.ridge == 0.0) for b in (self.lower, self.upper))
        lowest = np.where(free_below, self.linear - self.absolute, -np.inf)
        return lowest, np.where(free_above, self.linear + self.absolute, np.inf)

    def conjugate(self, u: Floats) -> float:
        """Return ``g*(u)``, ``inf`` outside the box."""
        if self.is_linear:
            return float(self.linear @ u)
        if np.any((u < self.lower) | (u > self.upper)):
            return np.inf
        return float(self.linear @ u + self.absolute @ np.abs(u) + 0.5 * (self.ridge @ np.square(u)))

    def derivatives(self, x: Floats) -> Floats:
        """Return ``g'(x)`` of each coordinate: the u that maximises ``u x - g*(u)``, zero wherever that is one."""
        away = x - self.linear
        slope = np.sign(away) * np.maximum(np.abs(away) - self.absolute, 0.0)
        with np.errstate(divide="ignore", invalid="ignore"):
            free = np.where(slope == 0.0, 0.0, slope / self.ridge)  # without a ridge, a bound
        return np.clip(free, self.lower, self.upper)

    def curvatures(self, x: Floats) -> Floats:
        """Return ``g''(x)`` of each coordinate, from one side at a kink of ``g'``; every ridge is positive."""
        u = self.derivatives(x)
        is_curved = (u > self.lower) & (u < self.upper) & ((self.absolute == 0.0) | (u != 0.0))
        return np.where(is_curved, 1.0 / self.ridge, 0.0)

    def values(self, x: Floats) -> Floats:
        """Return ``g(x)`` of each coordinate, ``inf`` off its domain."""
        u = self.derivatives(x)
        away = x - self.linear
        finite = np.where(np.isinf(u), 0.0, u)
        values = finite * away - self.absolute * np.abs(finite) - 0.5 * self.ridge * np.square(finite)
        return np.where(np.isinf(u), np.inf, values)


@dataclass(frozen=True)
class SimplexDual:
    """``g*(u) = sum_n <linear_row(n), u_n> + ridge_n (sum u_n)^2 / 2`` on ``u_n >= 0`` and ``sum u_n = total_n``.

    With a finite ``total`` the sum of a row is fixed and ``ridge`` is zero (multi-class hinge, total = C). With
    ``total = inf`` it is free (multi-class squared hinge, ridge = 1 / (2 C)). A total of zero, or an infinite ridge,
    takes the row out.
    """

    linear: Floats  # (r, classes): minus the costs
    row: Indices  # (n,): the row of `linear` that applies
    total: Floats  # (n,)
    ridge: Floats  # (n,)

    def __len__(self) -> int:
        return len(self.row)

    @property
    def n_classes(self) -> int:
        """Coordinates of a row."""
        return int(self.linear.shape[1])

    def take(self, rows: Any) -> SimplexDual:
        """Return the conjugate of some of the rows."""
        return SimplexDual(self.linear, self.row[rows], self.total[rows], self.ridge[rows])

    def derivatives(self, x: Floats) -> Floats:
        """Return a subgradient of each row's g at x (n, classes): everything on one of the largest coordinates."""
        against = x - self.linear[self.row]
        largest = np.argmax(against, axis=1)
        found = np.zeros_like(against)
        np.put_along_axis(found, largest[:, None], self._weights(against.max(axis=1))[:, None], axis=1)
        return found

    def values(self, x: Floats) -> Floats:
        """Return g of each row of x (n, classes), shape (n,)."""
        worst = (x - self.linear[self.row]).max(axis=1)
        u = self._weights(worst)
        finite = np.where(np.isinf(u), 0.0, u)
        ridge = np.where(np.isinf(self.ridge), 0.0, self.ridge)
        return np.where(np.isinf(u), np.inf, finite * worst - 0.5 * ridge * np.square(finite))

    def _weights(self, worst: Floats) -> Floats:
        """Return the sum of each row's multipliers where its largest coordinate is given."""
        excess = np.maximum(worst, 0.0)
        with np.errstate(divide="ignore", invalid="ignore"):
            free = np.where(excess == 0.0, 0.0, excess / self.ridge)
        return np.where(np.isfinite(self.total), self.total, free)


DualForm = BoxDual | SimplexDual


def join_boxes(forms: Sequence[DualForm | None]) -> BoxDual | None:
    """Return several conjugates side by side as one box; None where one of them is not a box."""
    boxes = [form for form in forms if isinstance(form, BoxDual)]
    if len(boxes) < len(forms):
        return None
    if len(boxes) == 1:
        return boxes[0]
    return BoxDual(*(np.concatenate([getattr(box, field.name) for box in boxes]) for field in fields(BoxDual)))


def hinge_form(C: Floats, squared: bool, signs: Floats | float = 1.0, margin: float = 0.0) -> BoxDual:
    """Return the conjugate of ``sum_i C_i max(0, margin + sign_i x_i)``, or with squares; C is (n,)."""
    reach, ridge = _reach(C, squared)
    up = np.broadcast_to(signs, len(C)) > 0
    nothing = np.zeros(len(C))
    return BoxDual(nothing - margin * signs, nothing, ridge, np.where(up, 0.0, -reach), np.where(up, reach, 0.0))


def tube_form(target: Floats, epsilon: float, C: Floats, squared: bool) -> BoxDual:
    """Return the conjugate of ``sum_i C_i max(0, |x_i - target_i| - epsilon)``, or with squares; C is (n,)."""
    reach, ridge = _reach(C, squared)
    return BoxDual(target, np.full(len(C), epsilon), ridge, -reach, reach)


def classes_form(cost: Floats, row: Indices, C: Floats, squared: bool) -> SimplexDual:
    """Return the conjugate of ``sum_n C_n max_i (cost_row(n),i + x_ni)``, or with squares; C is (n,).

    The square is that of a violation: nothing where the largest is negative.
    """
    if not squared:
        return SimplexDual(-cost, row, C, np.zeros(len(C)))
    with np.errstate(divide="ignore"):
        return SimplexDual(-cost, row, np.full(len(C), np.inf), 0.5 / C)


def _reach(C: Floats, squared: bool) -> tuple[Floats, Floats]:
    """Return how far multipliers may go, and their ridge; nowhere where C is zero."""
    if not squared:
        return C, np.zeros(len(C))
    # The ridge of a coordinate whose C is zero is of no consequence, but it keeps the others' problem smooth.
    ridge = np.divide(0.5, C, out=np.ones(len(C)), where=C > 0)
    return np.where(C > 0, np.inf, 0.0), ridge
