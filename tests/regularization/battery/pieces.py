"""Independent implementations of the regularizers, in extended precision.

The references use standardized features ``z = (x - centre) / unit``, which are of order one. `pieces_of` decomposes
a regularizer into pieces that are functions of z. Differences with targets are computed in extended precision, so that
an offset of 1e13 standard deviations or a unit of 1e300 loses no accuracy. A piece has

- ``cost(z)``: its value as a CVXPY expression and its hard constraints,
- ``value(z)`` and ``nearest(z)``: the value at the nearest point of its domain, and that point,
- ``dual(u)``: a point of its conjugate's domain near u and the conjugate at that point. Weak duality then gives a lower
  bound of the optimum for any u,
- ``bounds()``: the constraints ``low <= A z <= high`` of its domain if it is a polyhedron.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regbayes.regularizers import (
    KL,
    Affine,
    AtLeast,
    AtMost,
    Ball,
    EpsilonInsensitive,
    Equal,
    GeneralizedKL,
    Hinge,
    Interval,
    MultiClassHinge,
    MultiClassSquaredHinge,
    Regularizer,
    Ridge,
    Separable,
    Sum,
)

Wide = NDArray[np.longdouble]
Bounds = tuple[Wide, Wide, Wide]  # A (k, m), low (k,), high (k,)


def wide(x: Any) -> Wide:
    return np.asarray(x, dtype=np.longdouble)


def narrow(x: Any) -> NDArray[np.float64]:
    """Return float64; values outside its range become infinite or zero."""
    with np.errstate(over="ignore", under="ignore"):
        return np.asarray(x).astype(np.float64)


@dataclass(frozen=True)
class View:
    """Affine map ``x = centre + unit z`` of some features; units may be negative."""

    index: NDArray[np.intp]  # (k,)
    centre: Wide  # (k,)
    unit: Wide  # (k,), nonzero
    factor: np.longdouble  # multiplies the regularizer

    def part(self, chosen: Any) -> View:
        return View(self.index[chosen], self.centre[chosen], self.unit[chosen], self.factor)

    def target(self, x: Any) -> Wide:
        """Return the z at which the expectation is x."""
        return (wide(x) - self.centre) / self.unit


def pieces_of(g: Regularizer, view: View) -> list[Piece]:
    """Decompose a regularizer into pieces."""
    size = len(view.index)
    match g:
        case Affine():
            scale = np.broadcast_to(wide(g.scale), size)
            centre, factor = scale * view.centre + wide(g.offset), view.factor * wide(g.factor)
            return pieces_of(g.regularizer, View(view.index, centre, scale * view.unit, factor))
        case Sum():
            return [piece for part in g.parts for piece in pieces_of(part, view)]
        case Separable():
            ends = np.cumsum(g.sizes)
            runs = [view.part(slice(end - n, end)) for n, end in zip(g.sizes, ends, strict=True)]
            return [piece for part, run in zip(g.parts, runs, strict=True) for piece in pieces_of(part, run)]
        case MultiClassHinge() | MultiClassSquaredHinge():
            return _multi_class(g, view)
    return _elementary(g, view)


def _elementary(g: Regularizer, view: View) -> list[Piece]:
    size, up = len(view.index), view.unit > 0
    free = np.full(size, np.inf, dtype=np.longdouble)
    match g:
        case Equal():
            at = view.target(g.target)
            return [Box(view.index, at, at)]
        case AtMost() | AtLeast():
            at, below = view.target(g.bound), up == isinstance(g, AtMost)
            return [Box(view.index, np.where(below, -free, at), np.where(below, at, free))]
        case Interval():
            low, high = view.target(g.low), view.target(g.high)
            return [Box(view.index, np.minimum(low, high), np.maximum(low, high))]
        case Hinge():
            at = view.target(0.0)
            return _priced(view, np.where(up, -free, at), np.where(up, at, free), g.C, g.power)
        case EpsilonInsensitive():
            middle, width = view.target(g.target), wide(g.epsilon) / np.abs(view.unit)
            return _priced(view, middle - width, middle + width, g.C, g.power)
        case Ridge():
            return [Quadratic(view.index, view.target(g.target), view.factor * view.unit**2 / wide(g.scale))]
        case Ball():
            scale = np.max(np.abs(view.unit))
            price = view.factor * wide(g.C) * scale
            return [
                Norm(
                    view.index, view.target(g.target), np.abs(view.unit) / scale, wide(g.radius) / scale, g.norm, price
                )
            ]
        case KL() | GeneralizedKL():
            prices = view.factor * wide(g.weight) * wide(g.target)
            slope = view.factor * wide(g.weight) * view.unit if isinstance(g, GeneralizedKL) else 0 * view.unit
            used = prices > 0
            # weight sum p log(p / x) with x = unit (z - zero); the generalized divergence adds weight (x - p)
            constant = np.sum(prices[used] * (np.log(wide(g.target)[used]) - np.log(np.abs(view.unit[used]))))
            if isinstance(g, GeneralizedKL):
                constant += np.sum(view.factor * wide(g.weight) * (view.centre - wide(g.target)))
            return [Logarithm(view.index, view.target(0.0), np.sign(view.unit), prices, slope, constant)]
    raise TypeError(f"no reference for {type(g).__name__}")


def _priced(view: View, low: Wide, high: Wide, C: Any, power: float) -> list[Piece]:
    """Return a hard piece if the penalty is infinite, none if it is zero."""
    C = np.broadcast_to(wide(C), len(view.index))
    pieces: list[Piece] = []
    if np.any(hard := np.isinf(C)):
        pieces.append(Box(view.index[hard], low[hard], high[hard]))
    if np.any(soft := np.isfinite(C) & (C > 0)):
        prices = view.factor * C[soft] * np.abs(view.unit[soft]) ** wide(power)
        pieces.append(Excess(view.index[soft], low[soft], high[soft], prices, power))
    return pieces


def _multi_class(g: MultiClassHinge | MultiClassSquaredHinge, view: View) -> list[Piece]:
    cost = np.zeros((1, len(view.index))) if g.cost is None else np.atleast_2d(g.cost)
    cost = cost if g.labels is None else cost[g.labels]
    pieces: list[Piece] = []
    for row, C in enumerate(np.broadcast_to(wide(g.C), len(cost))):
        run = view.part(slice(row * cost.shape[1], (row + 1) * cost.shape[1]))
        scale = np.max(np.abs(run.unit))
        if np.isinf(C):
            at, up, free = run.target(-wide(cost[row])), run.unit > 0, np.longdouble(np.inf)
            pieces.append(Box(run.index, np.where(up, -free, at), np.where(up, at, free)))
        elif C > 0:
            squared = isinstance(g, MultiClassSquaredHinge)
            price = run.factor * C * scale ** (2 if squared else 1)
            pieces.append(Largest(run.index, run.unit / scale, (run.centre + wide(cost[row])) / scale, price, squared))
    return pieces


class Piece:
    """Function of some coordinates of z."""

    index: NDArray[np.intp]

    def cost(self, z: Any) -> tuple[Any, list[Any]]:
        raise NotImplementedError

    def value(self, z: Wide) -> np.longdouble:
        raise NotImplementedError

    def nearest(self, z: Wide) -> Wide:
        return z

    def snapped(self, z: Wide, within: float) -> Wide:
        """Return z moved onto nearby kinks and edges, which solvers miss slightly."""
        return self.nearest(z)

    def slope(self, z: np.longdouble) -> np.longdouble:
        """Return a subgradient at one coordinate z; infinite outside the domain."""
        raise NotImplementedError

    def dual(self, u: Wide) -> tuple[Wide, np.longdouble]:
        raise NotImplementedError

    @property
    def is_equality(self) -> bool:
        return False

    def bounds(self) -> Bounds | None:
        """Return the rows of a polyhedral domain; None for other domains."""
        k = len(self.index)
        return wide(np.zeros((0, k))), wide(np.zeros(0)), wide(np.zeros(0))


@dataclass(frozen=True)
class Box(Piece):
    """Hard bounds ``low <= z <= high``; equal bounds are an equality."""

    index: NDArray[np.intp]
    low: Wide
    high: Wide

    def cost(self, z: Any) -> tuple[Any, list[Any]]:
        low, high = narrow(self.low), narrow(self.high)
        same, below, above = low == high, np.isfinite(high), np.isfinite(low)
        below, above = below & ~same, above & ~same
        rules = []
        if np.any(same):
            rules.append(z[np.flatnonzero(same)] == low[same])
        if np.any(below):
            rules.append(z[np.flatnonzero(below)] <= high[below])
        if np.any(above):
            rules.append(z[np.flatnonzero(above)] >= low[above])
        return 0.0, rules

    @property
    def is_equality(self) -> bool:
        return bool(np.all(self.low == self.high))

    def value(self, z: Wide) -> np.longdouble:
        return np.longdouble(0)

    def nearest(self, z: Wide) -> Wide:
        return np.clip(z, self.low, self.high)

    def snapped(self, z: Wide, within: float) -> Wide:
        z = np.clip(z, self.low, self.high)
        z = np.where(np.abs(z - self.low) < within, self.low, z)
        return np.where(np.abs(z - self.high) < within, self.high, z)

    def slope(self, z: np.longdouble) -> np.longdouble:
        return np.longdouble(-np.inf if z < self.low[0] else np.inf if z > self.high[0] else 0)

    def dual(self, u: Wide) -> tuple[Wide, np.longdouble]:
        u = np.where((u > 0) & np.isinf(self.high), 0, np.where((u < 0) & np.isinf(self.low), 0, u))
        return u, np.sum(np.where(u > 0, u * _finite(self.high), u * _finite(self.low)))

    def bounds(self) -> Bounds | None:
        return wide(np.eye(len(self.index))), self.low, self.high


@dataclass(frozen=True)
class Excess(Piece):
    """Penalty ``sum C max(0, z - high, low - z)^power``."""

    index: NDArray[np.intp]
    low: Wide
    high: Wide
    prices: Wide
    power: float

    def cost(self, z: Any) -> tuple[Any, list[Any]]:
        import cvxpy as cp

        total: Any = 0.0
        for bound, side in ((self.high, 1.0), (self.low, -1.0)):
            if np.any(used := np.isfinite(bound)):
                beyond = cp.pos(side * (z[np.flatnonzero(used)] - narrow(bound[used])))
                beyond = beyond if self.power == 1 else cp.power(beyond, self.power)
                total = total + narrow(self.prices[used]) @ beyond
        return total, []

    def value(self, z: Wide) -> np.longdouble:
        beyond = np.maximum(np.maximum(z - self.high, self.low - z), 0)
        return np.sum(self.prices * beyond ** wide(self.power))

    def snapped(self, z: Wide, within: float) -> Wide:
        for edge in (self.low, self.high) if self.power == 1 else ():
            z = np.where(np.abs(z - edge) < within, edge, z)
        return z

    def slope(self, z: np.longdouble) -> np.longdouble:
        beyond = max(z - self.high[0], self.low[0] - z, np.longdouble(0))
        side = 1 if z > self.high[0] else -1 if z < self.low[0] else 0
        return side * self.prices[0] * wide(self.power) * beyond ** wide(self.power - 1)

    def dual(self, u: Wide) -> tuple[Wide, np.longdouble]:
        u, _ = Box(self.index, self.low, self.high).dual(u)
        if self.power == 1:
            u = np.clip(u, -self.prices, self.prices)
            own = np.longdouble(0)
        else:
            k = wide(self.power)
            own = np.sum((k - 1) * self.prices * (np.abs(u) / (k * self.prices)) ** (k / (k - 1)))
        return u, own + Box(self.index, self.low, self.high).dual(u)[1]


@dataclass(frozen=True)
class Quadratic(Piece):
    """Penalty ``1/2 sum weight (z - target)^2``."""

    index: NDArray[np.intp]
    target: Wide
    weights: Wide

    def cost(self, z: Any) -> tuple[Any, list[Any]]:
        import cvxpy as cp

        return 0.5 * cp.sum(cp.multiply(narrow(self.weights), cp.square(z - narrow(self.target)))), []

    def value(self, z: Wide) -> np.longdouble:
        return np.sum(self.weights * (z - self.target) ** 2) / 2

    def slope(self, z: np.longdouble) -> np.longdouble:
        return self.weights[0] * (z - self.target[0])

    def dual(self, u: Wide) -> tuple[Wide, np.longdouble]:
        return u, np.sum(u * self.target + u**2 / (2 * self.weights))


@dataclass(frozen=True)
class Norm(Piece):
    """Penalty ``C max(0, ||weights (z - target)|| - radius)``; hard if infinite."""

    index: NDArray[np.intp]
    target: Wide
    weights: Wide
    radius: np.longdouble
    norm: float
    price: np.longdouble

    def cost(self, z: Any) -> tuple[Any, list[Any]]:
        import cvxpy as cp

        away = cp.multiply(narrow(self.weights), z - narrow(self.target))
        length = cp.norm(away, "inf" if np.isinf(self.norm) else int(self.norm))
        if np.isinf(self.price):
            return 0.0, [length <= narrow(self.radius)]
        return narrow(self.price) * cp.pos(length - narrow(self.radius)), []

    def _length(self, away: Wide, norm: float) -> np.longdouble:
        if norm == 1:
            return np.sum(np.abs(away))
        return np.max(np.abs(away)) if np.isinf(norm) else np.sqrt(np.sum(away**2))

    def value(self, z: Wide) -> np.longdouble:
        if np.isinf(self.price):
            return np.longdouble(0)
        return self.price * np.maximum(self._length(self.weights * (z - self.target), self.norm) - self.radius, 0)

    def nearest(self, z: Wide) -> Wide:
        """Return a point of the ball whose distance is at most the violation."""
        length = self._length(self.weights * (z - self.target), self.norm)
        if np.isfinite(self.price) or length <= self.radius:
            return z
        return self.target + (z - self.target) * (self.radius / length)

    def slope(self, z: np.longdouble) -> np.longdouble:
        away = self.weights[0] * (z - self.target[0])
        return np.longdouble(0) if abs(away) <= self.radius else np.sign(away) * self.price * self.weights[0]

    def dual(self, u: Wide) -> tuple[Wide, np.longdouble]:
        length = self._length(u / self.weights, {1: np.inf, 2: 2, np.inf: 1}[self.norm])
        if length > self.price:
            u, length = u * (self.price / length), self.price
        return u, np.sum(u * self.target) + self.radius * length

    def bounds(self) -> Bounds | None:
        k = len(self.index)
        if np.isfinite(self.price):
            return super().bounds()
        if np.isinf(self.norm) or k == 1:
            reach = self.radius / self.weights
            return wide(np.eye(k)), self.target - reach, self.target + reach
        if self.norm == 2 or k > 10:
            return None
        signs = np.array(np.meshgrid(*[[-1.0, 1.0]] * k)).reshape(k, -1).T
        at = wide(signs) @ (self.weights * self.target)
        return wide(signs) * self.weights, wide(np.full(len(signs), -np.inf)), at + self.radius


@dataclass(frozen=True)
class Logarithm(Piece):
    """Sum of linear terms and ``-C log(side (z - zero))``."""

    index: NDArray[np.intp]
    zero: Wide
    side: Wide
    prices: Wide
    slopes: Wide
    constant: np.longdouble

    def cost(self, z: Any) -> tuple[Any, list[Any]]:
        import cvxpy as cp

        used = np.flatnonzero(self.prices > 0)
        away = cp.multiply(narrow(self.side), z - narrow(self.zero))
        total = narrow(self.constant) + narrow(self.slopes) @ z
        return total - narrow(self.prices[used]) @ cp.log(away[used]), [away >= 0]

    def value(self, z: Wide) -> np.longdouble:
        used = self.prices > 0
        away = (self.side * (z - self.zero))[used]
        if np.any(away <= 0):
            return np.longdouble(np.inf)
        return self.constant + np.sum(self.slopes * z) - np.sum(self.prices[used] * np.log(away))

    def nearest(self, z: Wide) -> Wide:
        return np.where((self.prices == 0) & (self.side * (z - self.zero) < 0), self.zero, z)

    def slope(self, z: np.longdouble) -> np.longdouble:
        if self.side[0] * (z - self.zero[0]) <= 0:
            return -self.side[0] * np.longdouble(np.inf)
        return self.slopes[0] - self.prices[0] / (z - self.zero[0])

    def dual(self, u: Wide) -> tuple[Wide, np.longdouble]:
        pull = np.minimum(self.side * (u - self.slopes), 0)  # derivative of -C log(y), y = side (z - zero)
        used = self.prices > 0
        pull = np.where(used & (pull == 0), -self.prices * np.longdouble(1e-30), pull)
        u = self.side * pull + self.slopes
        p, v = self.prices[used], -pull[used]
        own = np.sum(p * (np.log(p) - np.log(v) - 1))
        return u, own + np.sum((u - self.slopes) * self.zero) - self.constant

    def bounds(self) -> Bounds | None:
        up, free = self.side > 0, np.longdouble(np.inf)
        return wide(np.eye(len(self.index))), np.where(up, self.zero, -free), np.where(up, free, self.zero)


@dataclass(frozen=True)
class Largest(Piece):
    """Penalty ``C max_i (weight z + shift)_i``, or its positive part squared."""

    index: NDArray[np.intp]
    weights: Wide  # positive or negative
    shifts: Wide
    price: np.longdouble
    squared: bool

    def cost(self, z: Any) -> tuple[Any, list[Any]]:
        import cvxpy as cp

        worst = cp.max(cp.multiply(narrow(self.weights), z) + narrow(self.shifts))
        return narrow(self.price) * (cp.square(cp.pos(worst)) if self.squared else worst), []

    def value(self, z: Wide) -> np.longdouble:
        worst = np.max(self.weights * z + self.shifts)
        return self.price * (np.maximum(worst, 0) ** 2 if self.squared else worst)

    def slope(self, z: np.longdouble) -> np.longdouble:
        worst = self.weights[0] * z + self.shifts[0]
        return self.price * self.weights[0] * (2 * max(worst, np.longdouble(0)) if self.squared else 1)

    def dual(self, u: Wide) -> tuple[Wide, np.longdouble]:
        share = np.maximum(u / self.weights, 0)
        total = np.sum(share)
        if self.squared:
            return share * self.weights, total**2 / (4 * self.price) - np.sum(share * self.shifts)
        share = share * (self.price / total) if total > 0 else np.full(len(share), self.price / len(share))
        return share * self.weights, -np.sum(share * self.shifts)


def _finite(x: Wide) -> Wide:
    return np.where(np.isfinite(x), x, 0)
