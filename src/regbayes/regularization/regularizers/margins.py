"""Max-margin losses: hinges, multi-class hinges, the epsilon-insensitive loss.

Penalties may differ between coordinates or rows, so that one object is the loss of a data set. A zero penalty has no
effect.
"""

from __future__ import annotations

from typing import ClassVar, final

import numpy as np
from numpy.typing import ArrayLike

from regbayes._registry import persistable
from regbayes._types import Floats, Reals
from regbayes.regularization.dual_forms import BoxDual, SimplexDual, classes_form, dot, hinge_form, tube_form
from regbayes.regularization.regularizers.base import (
    DualFormRegularizer,
    as_floats,
    check_penalties,
    check_positive,
    check_target,
    common_size,
    diagonal_blocks,
    like,
    size_of,
)


@final
@persistable
class Hinge(DualFormRegularizer):
    """Hinge penalty ``sum_i C_i max(0, x_i)^power``; a hard ``x <= 0`` if C is inf.

    Parameters
    ----------
    C : float or array of shape (m,), default=1.0
        Penalty on a violation; one for each coordinate, or one for all.
    power : float, default=1.0
        1 is the hinge, 2 the squared hinge; any number >= 1.

    Examples
    --------
    >>> from regbayes import Gaussian, regularize
    >>> from regbayes.regularizers import Hinge
    >>> regularize(Gaussian([1.0, 5.0], [1.0, 1.0]), [[1.0, 0.0], [0.0, 1.0]], Hinge(C=[0.5, 3.0])).after.round(3)
    array([0.5, 2. ])
    """

    def __init__(self, C: ArrayLike = 1.0, power: float = 1.0) -> None:
        self.C = check_penalties("C", C)
        self.power = check_positive("power", power)
        if self.power < 1:
            raise ValueError(f"power must be at least 1, got {power!r}")

    @property
    def size(self) -> int | None:
        return None if isinstance(self.C, float) else self.C.size

    @property
    def _has_form(self) -> bool:
        return self.power in (1, 2) or not np.any(np.isfinite(self.C))

    def dual_form(self, size: int) -> BoxDual | None:  # type: ignore[override]  # other powers have none
        if not self._has_form:
            return None
        return hinge_form(np.broadcast_to(self.C, size).astype(np.float64), self.power != 1)

    def value(self, x: ArrayLike) -> float:
        return dot(self.C, np.maximum(as_floats(x), 0.0).astype(np.float64) ** self.power)

    def conjugate(self, u: ArrayLike) -> float:
        if self._has_form:
            return super().conjugate(u)
        u = as_floats(u).astype(np.float64)
        C, k = np.broadcast_to(self.C, u.shape), self.power
        if np.any(u < 0) or np.any(u[C == 0] > 0):
            return np.inf
        soft = (C > 0) & np.isfinite(C)
        with np.errstate(over="ignore"):  # the conjugate of a power close to 1 overflows to its limit, inf
            return float(np.sum((k - 1) * C[soft] * (u[soft] / (k * C[soft])) ** (k / (k - 1))))

    def prox(self, x: ArrayLike, step: ArrayLike = 1.0) -> Reals:
        if self._has_form:
            return super().prox(x, step)
        x = as_floats(x)
        weight = self.C * np.asarray(step)
        hard = np.isinf(weight)
        above = np.where(hard, 0.0, _power_prox(np.maximum(x, 0.0), np.where(hard, 1.0, weight), self.power))
        return like(np.where(x > 0, above, x), x)

    def prox_jacobian(self, x: ArrayLike, step: ArrayLike = 1.0) -> Floats:
        if self._has_form:
            return super().prox_jacobian(x, step)
        x = as_floats(x).astype(np.float64)
        weight = np.broadcast_to(self.C * np.asarray(step, dtype=np.float64), x.shape)
        k, v = self.power, np.maximum(self.prox(x, step), 0.0)
        # v^(k - 2) is infinite at zero for k < 2, and the derivative zero; without a penalty the curvature is zero.
        with np.errstate(divide="ignore", invalid="ignore"):
            curvature = np.where(weight > 0, weight * k * (k - 1) * v ** (k - 2), 0.0)
        return diagonal_blocks(
            np.where((x < 0) | (weight == 0), 1.0, np.where(np.isinf(weight), 0.0, 1 / (1 + curvature))), x
        )

    def clip_dual(self, u: Floats) -> Floats:
        return np.clip(u, 0.0, self.C if self.power == 1 else np.where(np.asarray(self.C) > 0, np.inf, 0.0))

    def dual_start(self, size: int) -> Floats:
        return np.zeros(size)

    def slack(self, x: ArrayLike) -> Floats:
        return -as_floats(x).astype(np.float64)


def _power_prox(x: Reals, weight: Reals, power: float) -> Floats:
    """Solve ``v + weight power v^(power - 1) = x`` on [0, x].

    In v, or in ``v^(power - 1)`` for powers below 2, this function is convex and increasing, so that Newton's
    method from above converges. The smaller solution of the two terms alone is a start within a factor of two.
    """
    bend, steep, flat = (power - 1, weight * power, 1.0) if power >= 2 else (1 / (power - 1), 1.0, weight * power)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        s = np.fmin(x / flat, (x / steep) ** (1 / bend))
        for _ in range(12):
            s = s - np.nan_to_num((steep * s**bend + flat * s - x) / (steep * bend * s ** (bend - 1) + flat))
    return np.asarray(s if power >= 2 else s**bend, dtype=np.float64)


class _MultiClass(DualFormRegularizer):
    """A hinge of the largest coordinate in each row of classes."""

    _squared: ClassVar[bool]

    def __init__(self, C: ArrayLike = 1.0, cost: ArrayLike | None = None, labels: ArrayLike | None = None) -> None:
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
        _ = self.size  # validates the number of penalties

    @property
    def size(self) -> int | None:
        if self.cost is None:
            return None
        n_rows = len(self.cost) if self.cost.ndim == 2 else None
        n_rows = n_rows if self.labels is None else self.labels.size
        n_penalties = None if isinstance(self.C, float) else self.C.size
        return self.cost.shape[-1] * (common_size([n_rows, n_penalties], "cost and C") or 1)

    @property
    def block_size(self) -> int | None:
        if np.all(np.isinf(self.C)):
            return 1
        return None if self.cost is None else self.cost.shape[-1]

    def dual_form(self, size: int) -> BoxDual | SimplexDual:
        table = np.zeros((1, size)) if self.cost is None else np.atleast_2d(self.cost)
        n_rows = size // table.shape[1]
        row = self.labels if self.labels is not None else np.arange(n_rows) % len(table)
        if np.all(np.isinf(self.C)):  # independent hard bounds
            return BoxDual.of(size, -table[row].ravel(), -table[row].ravel(), lower=0.0)
        return classes_form(table, row, np.broadcast_to(self.C, n_rows).astype(np.float64), self._squared)


@final
@persistable
class MultiClassHinge(_MultiClass):
    """Multi-class hinge ``sum_n C_n max_i (cost_ni + x_ni)``.

    x has one block of classes per row. ``C = inf`` requires ``cost_ni + x_ni <= 0`` for every class.

    Parameters
    ----------
    C : float or array of shape (rows,), default=1.0
        Penalty on a violation; one for each row, or one for all.
    cost : array of shape (classes,) or (rows, classes), default=None
        Cost of each class, zero for the true one. Without it x is one block and costs are zero.
    labels : array of shape (rows,), default=None
        The row of ``cost`` that applies to each row, where ``cost`` is a table of costs by true class.

    Examples
    --------
    A prior of weights ``w``, and a sample with the score ``w[i]`` for class i. The true class is 0:

    >>> from regbayes import Gaussian, regularize
    >>> from regbayes.regularizers import MultiClassHinge
    >>> score_differences = [[0.0, 0.0], [-1.0, 1.0]]  # to the true class
    >>> hinge = MultiClassHinge(C=1.0, cost=[0.0, 1.0])
    >>> regularize(Gaussian([0.0, 0.0], [1.0, 1.0]), score_differences, hinge).posterior.mean.round(3)
    array([ 0.5, -0.5])
    """

    _squared = False


@final
@persistable
class MultiClassSquaredHinge(_MultiClass):
    """Squared `MultiClassHinge`: ``sum_n C_n max(0, max_i (cost_ni + x_ni))^2``.

    Examples
    --------
    >>> from regbayes.regularizers import MultiClassSquaredHinge
    >>> MultiClassSquaredHinge(C=2.0, cost=[0.0, 1.0]).value([0.0, 0.5])
    4.5
    """

    _squared = True


@final
@persistable
class EpsilonInsensitive(DualFormRegularizer):
    """Epsilon-insensitive loss, a soft ``x == target``; hard if C is inf.

    The loss is ``sum_i C_i max(0, |x_i - target_i| - epsilon)^power``.

    Parameters
    ----------
    target : float or array of shape (m,)
        Target of the expectations.
    epsilon : float, default=0.0
        Half-width of the unpenalized tube.
    C : float or array of shape (m,), default=1.0
        Penalty on a violation; one for each coordinate, or one for all.
    power : {1, 2}, default=1
        2 penalizes the squared violation.

    Examples
    --------
    >>> from regbayes import Gaussian, regularize
    >>> from regbayes.regularizers import EpsilonInsensitive
    >>> regularize(Gaussian(5.0, [1.0]), [1.0], EpsilonInsensitive(2.0, epsilon=0.5, C=10.0)).after.round(3)
    array([2.5])
    """

    _targets = ("target",)

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

    def dual_form(self, size: int) -> BoxDual:
        target, C = (np.broadcast_to(values, size).astype(np.float64) for values in (self.target, self.C))
        return tube_form(target, self.epsilon, C, self.power != 1)
