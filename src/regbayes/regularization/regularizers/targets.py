"""Targets of expectations: equalities, bounds, balls, ridges, divergences."""

from __future__ import annotations

from typing import ClassVar, final

import numpy as np
from numpy.typing import ArrayLike

from regbayes._registry import persistable
from regbayes._types import Flags, Floats, Reals
from regbayes.regularization.dual_forms import BoxDual, add, dot
from regbayes.regularization.projections import ball_projection_jacobian, project_to_ball
from regbayes.regularization.regularizers.base import (
    DualFormRegularizer,
    Regularizer,
    as_floats,
    check_positive,
    check_target,
    diagonal_blocks,
    hard_excess,
    like,
)

KEEP_OFF = 0.1  # fraction of the distance to the end of a logarithm's domain that a model step keeps
DUAL_NORM = {1: np.inf, 2: 2, np.inf: 1}


@final
@persistable
class Equal(DualFormRegularizer):
    """Hard ``x == target``.

    Examples
    --------
    >>> from regbayes import Gaussian, regularize
    >>> from regbayes.regularizers import Equal
    >>> regularize(Gaussian(0.0, [1.0]), [1.0], Equal(2.0)).after.round(3)
    array([2.])
    """

    _targets = ("target",)

    def __init__(self, target: ArrayLike) -> None:
        self.target = check_target("target", target)

    def dual_form(self, size: int) -> BoxDual:
        return BoxDual.of(size, self.target, self.target)


class _Bound(DualFormRegularizer):
    """A bound on one side."""

    _targets = ("bound",)

    def __init__(self, bound: ArrayLike) -> None:
        self.bound = check_target("bound", bound)


@final
@persistable
class AtMost(_Bound):
    """Hard ``x <= bound``.

    Examples
    --------
    >>> from regbayes import Gaussian, regularize
    >>> from regbayes.regularizers import AtMost
    >>> regularize(Gaussian([1.0, 3.0], [1.0, 1.0]), [[1.0, 0.0], [0.0, 1.0]], AtMost(2.0)).after.round(3)
    array([1., 2.])
    """

    def dual_form(self, size: int) -> BoxDual:
        return BoxDual.of(size, self.bound, self.bound, lower=0.0)


@final
@persistable
class AtLeast(_Bound):
    """Hard ``x >= bound``.

    Examples
    --------
    >>> from regbayes import Gaussian, regularize
    >>> from regbayes.regularizers import AtLeast
    >>> regularize(Gaussian([1.0, 3.0], [1.0, 1.0]), [[1.0, 0.0], [0.0, 1.0]], AtLeast(2.0)).after.round(3)
    array([2., 3.])
    """

    def dual_form(self, size: int) -> BoxDual:
        return BoxDual.of(size, self.bound, self.bound, upper=0.0)


@final
@persistable
class Interval(DualFormRegularizer):
    """Hard ``low <= x <= high``.

    Parameters
    ----------
    low, high : float or array of shape (m,)
        Bounds, ``low <= high``.

    Examples
    --------
    >>> from regbayes import Gaussian, regularize
    >>> from regbayes.regularizers import Interval
    >>> regularize(Gaussian([1.0, 4.0], [1.0, 1.0]), [[1.0, 0.0], [0.0, 1.0]], Interval(2.0, 3.0)).after.round(3)
    array([2., 3.])
    """

    _targets = ("low", "high")

    def __init__(self, low: ArrayLike, high: ArrayLike) -> None:
        self.low, self.high = check_target("low", low), check_target("high", high)
        _ = self.size  # validates
        if np.any(self.low > self.high):
            raise ValueError(f"low must not exceed high, got {low!r} and {high!r}")

    def dual_form(self, size: int) -> BoxDual:
        return BoxDual.of(size, self.low, self.high)


@final
@persistable
class Ball(Regularizer):
    """Ball constraint or penalty ``C max(0, ||x - target|| - radius)``.

    Parameters
    ----------
    target : float or array of shape (m,)
        Center.
    radius : float
        Largest distance of the expectations from the center.
    norm : {1, 2, inf}, default=2
        Norm of the distance.
    C : float, default=inf
        Penalty per unit outside the ball; inf is the hard ball.

    Examples
    --------
    >>> from regbayes import Gaussian, regularize
    >>> from regbayes.regularizers import Ball
    >>> posterior = Gaussian([3.0, 4.0], [1.0, 1.0])
    >>> regularize(posterior, [[1.0, 0.0], [0.0, 1.0]], Ball(0.0, radius=1.0)).after.round(3)
    array([0.6, 0.8])
    """

    _targets = ("target",)

    def __init__(self, target: ArrayLike, radius: float, norm: float = 2, C: float = np.inf) -> None:
        self.target = check_target("target", target)
        self.radius = check_positive("radius", radius, allow_zero=True)
        if norm not in DUAL_NORM:
            raise ValueError(f"norm must be 1, 2 or inf, got {norm!r}")
        self.norm = norm
        self.C = check_positive("C", C, allow_inf=True)

    @property
    def block_size(self) -> int | None:
        return None

    def _length(self, x: Reals) -> float:
        x = x.astype(np.float64)
        largest = float(np.max(np.abs(x), initial=0.0))
        if 1e-150 < largest < 1e150 or not 0 < largest < np.inf:
            return float(np.linalg.norm(x, self.norm))
        return largest * float(np.linalg.norm(x / largest, self.norm))  # avoids overflow and underflow of squares

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
            # The dual norm of the move is at most C step, and capping it is exact for all three norms.
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
        low, high = self.target - self.radius, self.target + self.radius
        return BoxDual.of(size, low, high, lower=-self.C, upper=self.C)

    def rescale(self, scale: Floats) -> Ball:
        factor = float(scale[0])
        return Ball(self.target / factor, self.radius / factor, self.norm, self.C * factor)

    def slack(self, x: ArrayLike) -> Floats:
        x = as_floats(x)
        return np.full(x.size, self.radius - self._length(x - self.target))


@final
@persistable
class Ridge(DualFormRegularizer):
    """Quadratic penalty ``||x - target||^2 / (2 scale)``, stronger for a small scale.

    Examples
    --------
    >>> from regbayes import Gaussian, regularize
    >>> from regbayes.regularizers import Ridge
    >>> regularize(Gaussian(1.0, [1.0]), [1.0], Ridge(3.0, scale=1.0)).after.round(3)
    array([2.])
    """

    _targets = ("target",)

    def __init__(self, target: ArrayLike, scale: float = 1.0) -> None:
        self.target = check_target("target", target)
        self.scale = check_positive("scale", scale)

    def dual_form(self, size: int) -> BoxDual:
        return BoxDual.of(size, self.target, self.target, ridge=self.scale)


class _Divergence(Regularizer):
    """Divergence ``weight sum_i target_i log(target_i / x_i) + slope (x_i - target_i)``."""

    _slope: ClassVar[float]

    def __init__(self, target: ArrayLike, weight: float = 1.0) -> None:
        self.target = check_target("target", target)
        if np.any(self.target < 0) or not np.any(self.target > 0):
            raise ValueError(f"target must be non-negative with at least one positive entry, got {target!r}")
        self.weight = check_positive("weight", weight)

    @property
    def size(self) -> int | None:
        return self.target.size

    def slack(self, x: ArrayLike) -> Floats:
        return -np.abs(as_floats(x) - self.target).astype(np.float64)

    @property
    def _used(self) -> Flags:
        return self.target > 0

    def domain(self, size: int) -> tuple[Floats, Floats]:
        return np.where(self._used, np.finfo(np.float64).smallest_subnormal, 0.0), np.full(size, np.inf)

    def value(self, x: ArrayLike) -> float:
        x = as_floats(x).astype(np.float64)
        used, p = self._used, self.target[self._used]
        if np.any(x < 0) or np.any(x[used] == 0) or (self._slope and np.any(x == np.inf)):
            return np.inf
        logarithms = float(np.sum(p * (np.log(p) - np.log(x[used]))))
        return self.weight * (logarithms + self._slope * float(np.sum(x - self.target) if self._slope else 0.0))

    def _room(self, u: Floats) -> Floats:
        """Return the distance of each multiplier from the end of the conjugate's domain."""
        return self.weight * self._slope - u

    def conjugate(self, u: ArrayLike) -> float:
        room, used = self._room(as_floats(u).astype(np.float64)) / self.weight, self._used
        if np.any(room < 0) or np.any(room[used] == 0):
            return np.inf
        p = self.target[used]
        return -self.weight * float(np.sum(p * (1 - self._slope + np.log(room[used]))))

    def prox(self, x: ArrayLike, step: ArrayLike = 1.0) -> Reals:
        x, t = as_floats(x), self.weight * np.asarray(step)
        return like(_positive_root(x.astype(np.float64) - self._slope * t, t * self.target), x)

    def prox_jacobian(self, x: ArrayLike, step: ArrayLike = 1.0) -> Floats:
        x, t = as_floats(x).astype(np.float64), self.weight * np.asarray(step)
        return diagonal_blocks(_slope_of_root(x - self._slope * t, t * self.target), x)

    def clip_dual(self, u: Floats) -> Floats:
        end = self.weight * self._slope
        inside = np.nextafter(end, 0.0) if end else -np.finfo(np.float64).tiny
        return np.minimum(u, np.where(self._used, inside, end))

    def dual_model(self, u: Floats) -> BoxDual:
        room = self._room(u)
        slope = np.divide(self.weight * self.target, room, out=np.zeros(len(u)), where=self._used)
        curvature = np.divide(slope, room, out=np.zeros(len(u)), where=self._used)
        edge, end = slope - curvature * u, self.weight * self._slope
        return BoxDual.of(len(u), edge, edge, ridge=curvature, upper=end - np.where(self._used, KEEP_OFF * room, 0.0))

    def fenchel_young(self, x: Floats, u: Floats) -> float:
        used, room = self._used, self._room(u)
        if np.isinf(self.value(x)) or np.isinf(self.conjugate(u)):
            return np.inf
        known = self.weight * self.target[used]
        away = room[used] * x[used] / known - 1
        return float(known @ np.maximum(away - np.log1p(away), 0.0) + room[~used] @ x[~used])


@final
@persistable
class KL(_Divergence):
    """KL divergence of known proportions from expectations.

    ``weight sum_i target_i log(target_i / x_i)``. With class indicators as features this is label regularization, and
    the target is the vector of known class proportions.

    Parameters
    ----------
    target : array of shape (m,)
        Known proportions, nonnegative.
    weight : float, default=1.0
        Weight of the penalty.

    Examples
    --------
    >>> import numpy as np
    >>> from regbayes import Finite, regularize
    >>> from regbayes.regularizers import KL
    >>> classes = Finite([0, 1], probabilities=[0.5, 0.5])
    >>> regularize(classes, lambda k: np.eye(2)[k], KL([0.8, 0.2], weight=10.0)).after.round(3)
    array([0.778, 0.222])
    """

    _slope = 0.0

    def dual_start(self, size: int) -> Floats:
        return np.where(self._used, -self.weight, 0.0)  # the gradient at the target


@final
@persistable
class GeneralizedKL(_Divergence):
    """Generalized KL divergence, for expectations that need not sum to one.

    ``weight sum_i target_i log(target_i / x_i) - target_i + x_i``. Parameters as in `KL`.

    Examples
    --------
    >>> from regbayes import Finite, regularize
    >>> from regbayes.regularizers import GeneralizedKL
    >>> counts = Finite(range(6))
    >>> regularize(counts, lambda n: n, GeneralizedKL([4.0], weight=10.0)).after.round(3)
    array([3.804])
    """

    _slope = 1.0


def _positive_root(b: Floats, c: Floats) -> Floats:
    """Nonnegative root of ``v^2 - b v - c``, without cancellation for negative b."""
    root = np.hypot(b, 2 * np.sqrt(c))
    with np.errstate(divide="ignore", invalid="ignore"):
        small = np.where(c > 0, 2 * c / (root - b), 0.0)
    return np.where(b >= 0, 0.5 * (b + root), small)


def _slope_of_root(b: Floats, c: Floats) -> Floats:
    """Derivative of `_positive_root` by b; one at the kink ``b = 0`` if c is zero."""
    root = np.hypot(b, 2 * np.sqrt(c))
    return np.where(root > 0, _positive_root(b, c) / np.where(root > 0, root, 1.0), 1.0)
