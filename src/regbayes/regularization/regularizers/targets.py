"""Targets for expectations: equalities, bounds, balls, a quadratic pull, and divergences to known proportions."""

from __future__ import annotations

from typing import ClassVar, final

import numpy as np
from numpy.typing import ArrayLike

from regbayes._registry import persistable
from regbayes._types import Floats, Reals
from regbayes.regularization.dual_forms import BoxDual
from regbayes.regularization.regularizers.base import (
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
from regbayes.regularization.regularizers.projections import ball_projection_jacobian, project_to_ball

KEEP_OFF = 0.1  # of the way to where a logarithm ends: a step of its quadratic model leaves this much
DUAL_NORM = {1: np.inf, 2: 2, np.inf: 1}


def _hard_form(size: int, linear: Floats, lower: float, upper: float) -> BoxDual:
    zeros = np.zeros(size)
    return BoxDual(np.broadcast_to(linear, size).copy(), zeros, zeros, np.full(size, lower), np.full(size, upper))


class _Targeted(Regularizer):
    """A distance from a target, where the value is least."""

    target: Floats

    @property
    def size(self) -> int | None:
        return size_of(self.target)

    def slack(self, x: ArrayLike) -> Floats:
        return -np.abs(as_floats(x) - self.target).astype(np.float64)


@final
@persistable
class Equal(_Targeted):
    """Hard ``x == target``."""

    def __init__(self, target: ArrayLike) -> None:
        self.target = check_target("target", target)

    def value(self, x: ArrayLike) -> float:
        return 0.0 if np.all(as_floats(x) == self.target) else np.inf

    def conjugate(self, u: ArrayLike) -> float:
        return dot(as_floats(u), self.target)

    def prox(self, x: ArrayLike, step: ArrayLike = 1.0) -> Reals:
        x = as_floats(x)
        return like(np.broadcast_to(self.target, x.shape).copy(), x)

    def prox_jacobian(self, x: ArrayLike, step: ArrayLike = 1.0) -> Floats:
        return diagonal_blocks(0.0, as_floats(x))

    def dual_form(self, size: int) -> BoxDual:
        return _hard_form(size, self.target, -np.inf, np.inf)

    def shift(self, by: float | Floats) -> Equal:
        return Equal(self.target + by)


class _Bound(Regularizer):
    """A bound on one side."""

    _side: ClassVar[float]  # 1 where what is above the bound is outside

    def __init__(self, bound: ArrayLike) -> None:
        self.bound = check_target("bound", bound)

    @property
    def size(self) -> int | None:
        return size_of(self.bound)

    def value(self, x: ArrayLike) -> float:
        return 0.0 if np.all(self.slack(x) >= 0) else np.inf

    def conjugate(self, u: ArrayLike) -> float:
        u = as_floats(u)
        return np.inf if np.any(self._side * u < 0) else dot(u, self.bound)

    def prox(self, x: ArrayLike, step: ArrayLike = 1.0) -> Reals:
        x = as_floats(x)
        return like(np.where(self.slack(x) >= 0, x, self.bound), x)

    def prox_jacobian(self, x: ArrayLike, step: ArrayLike = 1.0) -> Floats:
        x = as_floats(x)
        return diagonal_blocks(self.slack(x) > 0, x)

    def clip_dual(self, u: Floats) -> Floats:
        return self._side * np.maximum(self._side * u, 0.0)

    def dual_form(self, size: int) -> BoxDual:
        return _hard_form(size, self.bound, min(0.0, self._side * np.inf), max(0.0, self._side * np.inf))

    def shift(self, by: ArrayLike) -> Regularizer:
        return type(self)(self.bound + np.asarray(by))

    def slack(self, x: ArrayLike) -> Floats:
        return np.asarray(self._side * (self.bound - as_floats(x)), dtype=np.float64)


@final
@persistable
class AtMost(_Bound):
    """Hard ``x <= bound``."""

    _side = 1.0


@final
@persistable
class AtLeast(_Bound):
    """Hard ``x >= bound``."""

    _side = -1.0


@final
class Interval(Regularizer):
    """Hard ``low <= x <= high``: `AtLeast` and `AtMost` of the same expectations as the solver sees them.

    One multiplier with a kink at zero takes the place of two, whose difference alone would be determined.
    """

    def __init__(self, low: Floats, high: Floats) -> None:
        self.low, self.high = low, high

    @property
    def size(self) -> int | None:
        return self.low.size

    def value(self, x: ArrayLike) -> float:
        x = as_floats(x)
        return 0.0 if np.all((x >= self.low) & (x <= self.high)) else np.inf

    def conjugate(self, u: ArrayLike) -> float:
        u = as_floats(u)
        return dot(u, np.where(u > 0, self.high, self.low))

    def prox(self, x: ArrayLike, step: ArrayLike = 1.0) -> Reals:
        x = as_floats(x)
        return like(np.clip(x, self.low, self.high), x)

    def prox_jacobian(self, x: ArrayLike, step: ArrayLike = 1.0) -> Floats:
        x = as_floats(x)
        return diagonal_blocks((x > self.low) & (x < self.high), x)

    def dual_form(self, size: int) -> BoxDual:
        middle, free = self.low + 0.5 * (self.high - self.low), np.full(size, np.inf)
        return BoxDual(middle, 0.5 * (self.high - self.low), np.zeros(size), -free, free)

    def domain(self, size: int) -> tuple[Floats, Floats]:
        return self.low, self.high  # middle and half the width give them up to rounding alone

    def shift(self, by: float | Floats) -> Interval:
        return Interval(self.low + by, self.high + by)

    def slack(self, x: ArrayLike) -> Floats:
        x = as_floats(x)
        return np.minimum(x - self.low, self.high - x).astype(np.float64)


@final
@persistable
class Ball(Regularizer):
    """``C max(0, ||x - target|| - radius)`` in the 1-, 2- or inf-norm; ``C = inf`` (default) is the hard ball.

    Parameters
    ----------
    target : float or array of shape (m,)
        Centre.
    radius : float
        How far the expectations may lie from it.
    norm : {1, 2, inf}, default=2
        In which norm.
    C : float, default=inf
        Price per unit outside the ball.
    """

    def __init__(self, target: ArrayLike, radius: float, norm: float = 2, C: float = np.inf) -> None:
        self.target = check_target("target", target)
        self.radius = check_positive("radius", radius, allow_zero=True)
        if norm not in DUAL_NORM:
            raise ValueError(f"norm must be 1, 2 or inf, got {norm!r}")
        self.norm = norm
        self.C = check_positive("C", C, allow_inf=True)

    @property
    def size(self) -> int | None:
        return size_of(self.target)

    @property
    def block_size(self) -> int | None:
        return None

    def _length(self, x: Reals) -> float:
        x = x.astype(np.float64)
        largest = float(np.max(np.abs(x), initial=0.0))
        if 1e-150 < largest < 1e150 or not 0 < largest < np.inf:
            return float(np.linalg.norm(x, self.norm))
        return largest * float(np.linalg.norm(x / largest, self.norm))  # squares would be no numbers

    def value(self, x: ArrayLike) -> float:
        x = as_floats(x)
        excess = np.maximum(self._length(x - self.target) - self.radius, 0.0)
        if np.isinf(self.C):
            excess = hard_excess(excess, self.radius + self._length(np.broadcast_to(self.target, x.shape)))
        return dot([self.C], [excess])

    def conjugate(self, u: ArrayLike) -> float:
        u = as_floats(u).astype(np.float64)
        length = float(np.linalg.norm(u, DUAL_NORM[self.norm]))
        if length > self.C * (1 + 1e-12):
            return np.inf
        return add(dot(u, self.target), dot([self.radius], [length]))

    def clip_dual(self, u: Floats) -> Floats:
        length = float(np.linalg.norm(u, DUAL_NORM[self.norm]))
        return u * (self.C / length) if length > self.C else u

    def prox(self, x: ArrayLike, step: ArrayLike = 1.0) -> Reals:
        x = as_floats(x)
        away = (x - self.target).astype(np.float64)
        inside = project_to_ball(away, self.radius, self.norm)
        if np.isfinite(self.C):
            # The dual norm of the move is at most C step; capping it is exact for each of the three norms.
            cap = self._cap(step)
            if np.linalg.norm(away - inside, DUAL_NORM[self.norm]) > cap:
                return like(x - project_to_ball(away, cap, DUAL_NORM[self.norm]), x)
        return like(np.where(inside == away, x, self.target + inside), x)

    def prox_jacobian(self, x: ArrayLike, step: ArrayLike = 1.0) -> Floats:
        away = (as_floats(x) - self.target).astype(np.float64)
        inside, cap = project_to_ball(away, self.radius, self.norm), self._cap(step)
        if np.linalg.norm(away - inside, DUAL_NORM[self.norm]) > cap:
            return (np.eye(len(away)) - ball_projection_jacobian(away, cap, DUAL_NORM[self.norm]))[None]
        return ball_projection_jacobian(away, self.radius, self.norm)[None]

    def _cap(self, step: ArrayLike) -> float:
        return self.C * float(np.asarray(step, dtype=np.float64).ravel()[0])

    def dual_form(self, size: int) -> BoxDual | None:
        if size > 1 and (self.norm != np.inf or np.isfinite(self.C)):
            return None
        linear, reach = np.broadcast_to(self.target, size).copy(), np.full(size, self.C)
        return BoxDual(linear, np.full(size, self.radius), np.zeros(size), -reach, reach)

    def shift(self, by: float | Floats) -> Ball:
        return Ball(self.target + by, self.radius, self.norm, self.C)

    def rescale(self, scale: Floats) -> Ball:
        factor = float(scale[0])
        return Ball(self.target / factor, self.radius / factor, self.norm, self.C * factor)

    def slack(self, x: ArrayLike) -> Floats:
        x = as_floats(x)
        return np.full(x.size, self.radius - self._length(x - self.target))


@final
@persistable
class Ridge(_Targeted):
    """``||x - target||^2 / (2 scale)``: a quadratic pull; the smaller the scale the harder."""

    def __init__(self, target: ArrayLike, scale: float = 1.0) -> None:
        self.target = check_target("target", target)
        self.scale = check_positive("scale", scale)

    def value(self, x: ArrayLike) -> float:
        return float(np.sum((as_floats(x) - self.target) ** 2)) / (2 * self.scale)

    def conjugate(self, u: ArrayLike) -> float:
        u = as_floats(u).astype(np.float64)
        return add(dot(u, self.target), self.scale * float(np.sum(u**2)) / 2)

    def prox(self, x: ArrayLike, step: ArrayLike = 1.0) -> Reals:
        x = as_floats(x)
        step = np.asarray(step)
        return like((self.scale * x + step * self.target) / (self.scale + step), x)

    def prox_jacobian(self, x: ArrayLike, step: ArrayLike = 1.0) -> Floats:
        return diagonal_blocks(self.scale / (self.scale + np.asarray(step, dtype=np.float64)), as_floats(x))

    def dual_form(self, size: int) -> BoxDual:
        bound = np.full(size, np.inf)
        linear = np.broadcast_to(self.target, size).copy()
        return BoxDual(linear, np.zeros(size), np.full(size, self.scale), -bound, bound)

    def shift(self, by: float | Floats) -> Ridge:
        return Ridge(self.target + by, self.scale)


class _Divergence(_Targeted):
    """A divergence of expectations, which are positive where the target is, from proportions."""

    def __init__(self, target: ArrayLike, weight: float = 1.0) -> None:
        self.target = check_target("target", target)
        if np.any(self.target < 0) or not np.any(self.target > 0):
            raise ValueError(f"target must be non-negative with at least one positive entry, got {target!r}")
        self.weight = check_positive("weight", weight)

    @property
    def size(self) -> int | None:
        return self.target.size

    def domain(self, size: int) -> tuple[Floats, Floats]:
        return np.where(self.target > 0, np.finfo(np.float64).smallest_subnormal, 0.0), np.full(size, np.inf)


@final
@persistable
class KL(_Divergence):
    """``weight sum_i target_i log(target_i / x_i)``: the divergence of expectations from known proportions.

    With class indicators as features this is label regularization: the target is the known class proportions.

    Parameters
    ----------
    target : array of shape (m,)
        Known proportions, non-negative.
    weight : float, default=1.0
        How strongly to pull.
    """

    def value(self, x: ArrayLike) -> float:
        x = as_floats(x).astype(np.float64)
        used = self.target > 0
        if np.any(x < 0) or np.any(x[used] == 0):
            return np.inf
        p = self.target[used]
        return self.weight * float(np.sum(p * (np.log(p) - np.log(x[used]))))

    def conjugate(self, u: ArrayLike) -> float:
        u = as_floats(u).astype(np.float64) / self.weight
        used = self.target > 0
        if np.any(u > 0) or np.any(u[used] == 0):
            return np.inf
        return -self.weight * float(np.sum(self.target[used] * (1 + np.log(-u[used]))))

    def prox(self, x: ArrayLike, step: ArrayLike = 1.0) -> Reals:
        x = as_floats(x)
        return like(_positive_root(x.astype(np.float64), self.weight * np.asarray(step) * self.target), x)

    def prox_jacobian(self, x: ArrayLike, step: ArrayLike = 1.0) -> Floats:
        x = as_floats(x).astype(np.float64)
        return diagonal_blocks(_slope_of_root(x, self.weight * np.asarray(step) * self.target), x)

    def clip_dual(self, u: Floats) -> Floats:
        return np.minimum(u, np.where(self.target > 0, -np.finfo(np.float64).tiny, 0.0))

    def dual_start(self, size: int) -> Floats:
        return np.where(self.target > 0, -self.weight, 0.0)  # the gradient at the target

    def dual_model(self, u: Floats) -> BoxDual:
        used = self.target > 0
        slope = np.divide(self.weight * self.target, -u, out=np.zeros(len(u)), where=used)
        curvature = np.divide(slope, -u, out=np.zeros(len(u)), where=used)
        below = np.full(len(u), -np.inf)
        return BoxDual(slope - curvature * u, np.zeros(len(u)), curvature, below, np.where(used, KEEP_OFF * u, 0.0))

    def fenchel_young(self, x: Floats, u: Floats) -> float:
        used = self.target > 0
        if np.isinf(self.value(x)) or np.isinf(self.conjugate(u)):
            return np.inf
        known = self.weight * self.target[used]
        return float(known @ _excess(-u[used] * x[used] / known) - u[~used] @ x[~used])


@final
@persistable
class GeneralizedKL(_Divergence):
    """``weight sum_i target_i log(target_i / x_i) - target_i + x_i``: for expectations that need not sum to one."""

    def value(self, x: ArrayLike) -> float:
        x = as_floats(x).astype(np.float64)
        if np.any(x == np.inf):
            return np.inf
        return add(KL(self.target, self.weight).value(x), self.weight * float(np.sum(x - self.target)))

    def conjugate(self, u: ArrayLike) -> float:
        u = as_floats(u).astype(np.float64) / self.weight
        used = self.target > 0
        if np.any(u > 1) or np.any(u[used] == 1):
            return np.inf
        return -self.weight * float(np.sum(self.target[used] * np.log1p(-u[used])))

    def prox(self, x: ArrayLike, step: ArrayLike = 1.0) -> Reals:
        x = as_floats(x)
        t = self.weight * np.asarray(step)
        return like(_positive_root(x.astype(np.float64) - t, t * self.target), x)

    def prox_jacobian(self, x: ArrayLike, step: ArrayLike = 1.0) -> Floats:
        x, t = as_floats(x).astype(np.float64), self.weight * np.asarray(step)
        return diagonal_blocks(_slope_of_root(x - t, t * self.target), x)

    def clip_dual(self, u: Floats) -> Floats:
        return np.minimum(u, np.where(self.target > 0, np.nextafter(self.weight, 0.0), self.weight))

    def dual_model(self, u: Floats) -> BoxDual:
        room = self.weight - u
        slope = np.divide(self.weight * self.target, room, out=np.zeros(len(u)), where=self.target > 0)
        curvature = np.divide(slope, room, out=np.zeros(len(u)), where=self.target > 0)
        above = np.where(self.target > 0, self.weight - KEEP_OFF * room, self.weight)
        return BoxDual(slope - curvature * u, np.zeros(len(u)), curvature, np.full(len(u), -np.inf), above)

    def fenchel_young(self, x: Floats, u: Floats) -> float:
        used = self.target > 0
        if np.isinf(self.value(x)) or np.isinf(self.conjugate(u)):
            return np.inf
        known, room = self.weight * self.target[used], self.weight - u
        return float(known @ _excess(room[used] * x[used] / known) + room[~used] @ x[~used])


def _excess(ratio: Floats) -> Floats:
    """``r - 1 - log r``, not less than zero."""
    away = ratio - 1
    return np.maximum(away - np.log1p(away), 0.0)


def _positive_root(b: Floats, c: Floats) -> Floats:
    """The non-negative root of ``v^2 - b v - c``, without cancellation for negative b."""
    root = np.hypot(b, 2 * np.sqrt(c))
    with np.errstate(divide="ignore", invalid="ignore"):
        small = np.where(c > 0, 2 * c / (root - b), 0.0)
    return np.where(b >= 0, 0.5 * (b + root), small)


def _slope_of_root(b: Floats, c: Floats) -> Floats:
    """The derivative of `_positive_root` by b; one at the kink of ``max(b, 0)``, where c is zero."""
    root = np.hypot(b, 2 * np.sqrt(c))
    return np.where(root > 0, _positive_root(b, c) / np.where(root > 0, root, 1.0), 1.0)
