"""Losses of rows at given scores, (outputs, n), over arrays of any library, as the blocks of `margins/newton.py`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, cast

from regbayes.kernels.arrays import (
    ROOM,
    DeviceArray,
    is_cupy,
    is_torch,
    join,
    multiply_rows,
    namespace_of,
    pieces,
    sum_of,
    sum_products,
)


class RowLosses(NamedTuple):
    """Losses of rows at given scores, summed, and minus their derivatives by the scores."""

    loss: DeviceArray  # smoothed, where it is
    excess: DeviceArray  # of the smoothed loss over the loss itself
    bias: DeviceArray  # what smoothing adds to the duality gap
    multipliers: DeviceArray  # (outputs, n): phi
    totals: DeviceArray  # (outputs,): the multipliers summed over rows, in double precision


class CurvatureProduct(NamedTuple):
    """Second derivatives of rows' losses by their scores, times a change of the scores."""

    coefficients: DeviceArray  # (outputs, n)
    totals: DeviceArray  # (outputs,): summed over rows, in double precision


@dataclass(frozen=True)
class HingeRows:
    """Squared hinges, ``C max(0, margin - sign score)^2``, one for each output."""

    C: DeviceArray  # (n,) or (outputs, n); 0 where nothing is asked
    labels: DeviceArray | None = None  # (n,), int64: the output whose sign is 1, where all others have -1
    signs: DeviceArray | None = None  # (outputs, n): the signs, where they are no classes; 0: none. int8 will do
    margin: float = 1.0

    def evaluate(self, scores: DeviceArray, constant: DeviceArray | None = None) -> RowLosses:
        """Evaluate rows, whose scores may be overwritten; a constant (outputs,) is added to them."""
        signs, above = self._signs(scores), _shift(scores, constant)  # few passes over memory, in place where it can be
        if self._uniform is not None:
            return self._evaluate_uniform(above, signs)
        above *= signs
        above -= self.margin
        missed = namespace_of(scores).clip(above, None, 0.0)
        missed *= signs  # minus what was missed, with its sign; 0 where there is none
        weighed = -2.0 * self.C * missed
        return _found(-0.5 * sum_products(weighed, missed), weighed)

    @cached_property
    def _uniform(self) -> float | None:
        """C, where there is one for all and PyTorch, which can multiply three numbers in a pass."""
        return float(self.C) if is_torch(self.C) and tuple(self.C.shape) == (1, 1) else None

    def _evaluate_uniform(self, scores: DeviceArray, signs: DeviceArray) -> RowLosses:
        xp, none, C = namespace_of(scores), scores.new_zeros(()), cast("float", self._uniform)
        missed = xp.addcmul(none - self.margin, scores, signs, out=scores)
        missed.clamp_(max=0.0)
        weighed = xp.addcmul(none, missed, signs, value=-2.0 * C, out=missed)
        return _found(sum_products(weighed, weighed) * (0.25 / C if C else 0.0), weighed)

    def multiply_curvature(
        self, change: DeviceArray, multipliers: DeviceArray, constant: DeviceArray | None = None
    ) -> CurvatureProduct:
        """Return second derivatives where multipliers were found, times a change of scores; it may be overwritten."""
        return _multiply_curvature(self.C, change, constant, multipliers)

    def _signs(self, scores: DeviceArray) -> DeviceArray:
        xp = namespace_of(scores)
        if self.signs is not None:
            mixes = is_torch(scores) or is_cupy(scores)  # bytes with reals; the standard does not
            return self.signs if mixes else xp.astype(self.signs, scores.dtype, copy=False)
        return 2.0 * xp.astype(true_classes(self.labels, scores), scores.dtype) - 1.0


@dataclass(frozen=True)
class TubeRows:
    """Squared distances beyond epsilon, ``C max(0, |value - score| - epsilon)^2``, one for each output."""

    C: DeviceArray  # (n,) or (outputs, n); 0 where nothing is asked
    values: DeviceArray  # (outputs, n)
    epsilon: float

    def evaluate(self, scores: DeviceArray, constant: DeviceArray | None = None) -> RowLosses:
        """Evaluate rows, whose scores may be overwritten; a constant (outputs,) is added to them."""
        xp = namespace_of(scores)
        away = self.values - _shift(scores, constant)
        if self.epsilon > 0.0:
            away -= xp.clip(away, -self.epsilon, self.epsilon)
        weighed = 2.0 * self.C * away
        return _found(0.5 * sum_products(weighed, away), weighed)

    def multiply_curvature(
        self, change: DeviceArray, multipliers: DeviceArray, constant: DeviceArray | None = None
    ) -> CurvatureProduct:
        """Return second derivatives where multipliers were found, times a change of scores; it may be overwritten."""
        return _multiply_curvature(self.C, change, constant, multipliers if self.epsilon > 0.0 else None)


@dataclass(frozen=True)
class ClassRows:
    """Squared multi-class hinges, ``C max_c(0, cost_c + score_c - score_true)^2``, smoothed inside each row.

    The losses are those of `regbayes.margins.newton.SimplexBlock`. Multipliers are
    ``max(0, wanted - (1 - delta) total) / delta`` and their sum is ``total``: it is found without sorting, by Newton's
    method from below, which for a function in pieces ends after a few steps.
    """

    C: DeviceArray  # (n,)
    labels: DeviceArray  # (n,), int64
    cost: DeviceArray | None  # (classes, n): of each wrong class; None: 1
    smoothing: float  # delta

    def evaluate(self, scores: DeviceArray, constant: DeviceArray | None = None) -> RowLosses:
        """Evaluate rows, whose scores may be overwritten; a constant (outputs,) is added to them."""
        xp, delta = namespace_of(scores), self.smoothing
        omega, margins, truth = self._solve(_shift(scores, constant))
        total = xp.sum(omega, axis=0)
        squares = xp.sum(omega * omega, axis=0)
        ridge = 0.5 / xp.where(self.C > 0.0, self.C, xp.ones_like(self.C))
        # Where a class has a multiplier its margin is ridge (delta omega + (1 - delta) total).
        loss = 0.5 * ridge * ((1.0 - delta) * total * total + delta * squares)
        worst = xp.max(margins, axis=0)  # that of the true class is zero
        exact = self.C * worst * worst
        bias = exact - loss + 0.5 * ridge * delta * (total * total - squares)
        phi = xp.where(truth, total, -omega)
        return RowLosses(sum_of(loss), sum_of(loss - exact), sum_of(bias), phi, sum_of(phi, axis=1))

    def multiply_curvature(
        self, change: DeviceArray, multipliers: DeviceArray, constant: DeviceArray | None = None
    ) -> CurvatureProduct:
        """Return second derivatives where multipliers were found, times a change of scores; it may be overwritten."""
        xp, change = namespace_of(change), _shift(change, constant)
        truth, active = true_classes(self.labels, change), multipliers < 0.0
        own, shared, _ = self.differentiate(active)
        mine = xp.take_along_axis(change, self.labels[None, :], axis=0)
        among = xp.where(active, change - mine, xp.zeros_like(mine))
        omega = own * among - xp.where(active, shared * xp.sum(among, axis=0), xp.zeros_like(mine))
        found = xp.where(truth, -xp.sum(omega, axis=0), omega)
        return CurvatureProduct(found, sum_of(found, axis=1))

    def differentiate(self, active: DeviceArray) -> tuple[DeviceArray, DeviceArray, DeviceArray]:
        """Return how multipliers follow margins: ``own`` times each less ``shared`` times the sum; and their number."""
        xp, delta = namespace_of(active), self.smoothing
        count = xp.sum(xp.astype(active, self.C.dtype), axis=0)
        own = (2.0 / delta) * self.C
        return own, own * (1.0 - delta) / (delta + (1.0 - delta) * count), count

    def _solve(self, scores: DeviceArray) -> tuple[DeviceArray, DeviceArray, DeviceArray]:
        """Return each row's multipliers, the margins that its classes miss (0 of the true one), and which is true."""
        xp, delta = namespace_of(scores), self.smoothing
        truth = true_classes(self.labels, scores)
        own = xp.take_along_axis(scores, self.labels[None, :], axis=0)
        none = xp.zeros((1, 1), dtype=scores.dtype, device=scores.device)
        margins = scores - (own - 1.0) if self.cost is None else scores - own + self.cost
        margins = xp.where(truth, none, margins)
        wanted = margins * (2.0 * self.C)
        total, count = xp.zeros_like(own[0, :]), None
        for _ in range(scores.shape[0]):
            inside = wanted > (1.0 - delta) * total
            number = sum_of(xp.astype(inside, xp.uint8), axis=0)
            if count is not None and bool(xp.all(number == count)):
                break
            total, count = xp.sum(xp.where(inside, wanted, none), axis=0), number
            total = total / xp.astype(delta + (1.0 - delta) * number, scores.dtype, copy=False)
        return _positive(wanted - (1.0 - delta) * total) / delta, margins, truth


def _found(loss: DeviceArray, multipliers: DeviceArray) -> RowLosses:
    """Return losses that are not smoothed."""
    none = 0.0 * loss
    return RowLosses(loss, none, none, multipliers, sum_of(multipliers, axis=1))


def _multiply_curvature(
    C: DeviceArray, change: DeviceArray, constant: DeviceArray | None, multipliers: DeviceArray | None
) -> CurvatureProduct:
    """Return ``2 C`` times a change where there are multipliers; None: everywhere."""
    found = 2.0 * C * _shift(change, constant)
    if multipliers is not None:
        found *= namespace_of(change).astype(multipliers != 0.0, change.dtype)
    return CurvatureProduct(found, sum_of(found, axis=1))


def _shift(scores: DeviceArray, constant: DeviceArray | None) -> DeviceArray:
    """Add a constant (outputs,) to scores, in place."""
    if constant is not None:
        scores += constant[:, None]
    return scores


def true_classes(labels: DeviceArray, scores: DeviceArray) -> DeviceArray:
    """Return which output is each row's own, (outputs, n)."""
    xp = namespace_of(scores)
    return labels[None, :] == xp.arange(scores.shape[0], dtype=labels.dtype, device=labels.device)[:, None]


def _positive(x: DeviceArray) -> DeviceArray:
    return namespace_of(x).clip(x, 0.0, None)


def weigh_grams(columns: DeviceArray, weights: DeviceArray) -> DeviceArray:
    """Return ``sum_n weights_on columns_n columns_n'`` of each output, (outputs, d, d), from (d, n), (outputs, n)."""
    xp = namespace_of(columns)
    (d, n), n_outputs = columns.shape, weights.shape[0]
    found = []
    for outputs in pieces(n_outputs, max(1, ROOM // max(d * n, 1))):
        some = weights[outputs, :]
        scaled = xp.reshape(some[:, None, :] * columns[None, :, :], (some.shape[0] * d, n))
        found.append(xp.reshape(multiply_rows(scaled, columns), (some.shape[0], d, d)))
    return join(found)
