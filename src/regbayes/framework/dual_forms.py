"""Dual forms: what a conjugate looks like to a coordinate-ascent kernel.

The conjugate's domain *is* the constraint on the multipliers, so a kernel never hears the name of a loss: the
hinge, the squared hinge, the epsilon-insensitive loss and every hard bound are the same box with other numbers,
and the multi-class hinges are the same scaled simplex.
"""

from __future__ import annotations

from dataclasses import dataclass

from regbayes._types import Floats


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


@dataclass(frozen=True)
class SimplexDual:
    """``g*(u) = <linear, u> + ridge (sum u)^2 / 2`` on ``u >= 0`` and, per block, ``sum u = total``.

    With a finite ``total`` the sum is fixed and ``ridge`` is zero (multi-class hinge, total = C). With
    ``total = inf`` the sum is free (multi-class squared hinge, ridge = 1 / (2 C)).
    """

    linear: Floats  # (answers,): minus the cost of each answer
    total: float
    ridge: float
