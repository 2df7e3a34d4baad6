"""Values and derivatives of squared losses for arrays of any library.

A loss has a factor `C` for each cell (a sample and an output), 0 for a missing target. Multipliers are the negative
derivatives by the scores. Fields broadcast to the shape of the scores, with samples last.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple, Self

import numpy as np

from regbayes.kernels.arrays import (
    ROOM,
    DeviceArray,
    integers_to_device,
    is_cupy,
    is_torch,
    join,
    multiply_rows,
    namespace_of,
    pieces,
    sum_of,
    sum_products,
    to_device,
)


class LossSums(NamedTuple):
    """Losses summed over samples, and the multiplier of each cell."""

    loss: DeviceArray  # smoothed if the loss is smoothed
    excess: DeviceArray  # smoothed loss minus exact loss
    bias: DeviceArray  # increase of the duality gap by smoothing
    multipliers: DeviceArray  # (outputs, n)


@dataclass(frozen=True)
class Losses:
    """Base class of losses, whose fields broadcast along the samples."""

    C: DeviceArray  # (n,), (1, n), (outputs, n) or (1, 1)

    def take(self, samples: Any) -> Self:
        """Select the losses of samples by a slice or by host indices."""

        def pick(values: Any) -> Any:
            if values is None or isinstance(values, float) or values.shape[-1] == 1:
                return values
            if isinstance(samples, slice) or isinstance(values, np.ndarray):
                return values[..., samples]
            return namespace_of(values).take(values, integers_to_device(samples, values), axis=values.ndim - 1)

        own = [field.name for field in fields(self) if field.name != "cost"]  # cost is a table of classes
        return replace(self, **{name: pick(getattr(self, name)) for name in own})

    def scale(self, factor: Any) -> Self:
        """Multiply the losses by a number, or by one for each output."""
        if isinstance(factor, np.ndarray):
            factor = to_device(factor[:, None], self.C)
        return replace(self, C=self.C * factor)

    def place(self, like: DeviceArray) -> Self:
        """Move the losses to the device of an array; integers keep their dtypes."""

        def move(values: Any) -> Any:
            if values is None or isinstance(values, float):
                return values
            kept = getattr(namespace_of(like), values.dtype.name) if values.dtype.kind == "i" else None
            return to_device(values, like, kept)

        return replace(self, **{field.name: move(getattr(self, field.name)) for field in fields(self)})


@dataclass(frozen=True)
class HingeLosses(Losses):
    """Squared hinges, ``C max(0, margin - sign score)^2``, one for each output."""

    signs: DeviceArray  # (outputs, n), int8: 1, -1, or 0 for a missing target
    margin: float = 1.0

    def evaluate(self, scores: DeviceArray) -> LossSums:
        """Evaluate the losses of samples, whose scores may be overwritten."""
        xp, signs = namespace_of(scores), self.signs
        if not (isinstance(scores, np.ndarray) or is_torch(scores) or is_cupy(scores)):
            signs = xp.astype(signs, scores.dtype)  # the standard does not mix integers with reals
        scores *= signs
        scores -= self.margin
        missed = xp.clip(scores, None, 0.0)
        missed *= signs  # negative violation times the sign, 0 for a missing target
        weighed = -2.0 * self.C * missed
        return _exact(-0.5 * sum_products(weighed, missed), weighed)

    def bend(self, multipliers: DeviceArray) -> DeviceArray:
        """Return the second derivatives by the scores at given multipliers, (outputs, n)."""
        return 2.0 * self.C * namespace_of(multipliers).astype(multipliers != 0.0, multipliers.dtype)


@dataclass(frozen=True)
class TubeLosses(Losses):
    """Squared losses ``C max(0, |value - score| - epsilon)^2``, one for each output."""

    values: DeviceArray  # (outputs, n)
    epsilon: float

    @property
    def is_shared(self) -> bool:
        """Whether all outputs of a sample have the same second derivative."""
        return self.epsilon == 0.0 and (self.C.ndim == 1 or self.C.shape[0] == 1)

    def evaluate(self, scores: DeviceArray) -> LossSums:
        """Evaluate the losses of samples, whose scores may be overwritten."""
        away = self.values - scores
        if self.epsilon > 0.0:
            away -= namespace_of(scores).clip(away, -self.epsilon, self.epsilon)
        weighed = 2.0 * self.C * away
        return _exact(0.5 * sum_products(weighed, away), weighed)

    def bend(self, multipliers: DeviceArray) -> DeviceArray:
        """Return the second derivatives by the scores at given multipliers, (outputs, n)."""
        xp = namespace_of(multipliers)
        inside = multipliers == 0.0 if self.epsilon > 0.0 else xp.zeros_like(multipliers, dtype=xp.bool)
        return 2.0 * self.C * xp.astype(~inside, multipliers.dtype)


@dataclass(frozen=True)
class ClassLosses(Losses):
    """Smoothed squared hinges ``C max_c(0, cost_c + score_c - score_true)^2``.

    Multipliers of wrong classes are minus ``max(0, wanted - (1 - delta) total) / delta`` with sum ``total``. Newton's
    method on this piecewise linear equation, started from below, ends after a few steps.
    """

    labels: DeviceArray  # (n,), int64
    cost: DeviceArray  # (classes, classes): cost of predicting a class instead of each; (1, 1): shared by all
    smoothing: float  # delta

    def evaluate(self, scores: DeviceArray) -> LossSums:
        """Evaluate the losses of samples."""
        xp, delta = namespace_of(scores), self.smoothing
        truth, none = true_classes(self.labels, scores), xp.zeros((1, 1), dtype=scores.dtype, device=scores.device)
        own = xp.take_along_axis(scores, self.labels[None, :], axis=0)
        cost = self.cost if self.cost.shape[1] == 1 else xp.take(self.cost, self.labels, axis=1)
        margins = xp.where(truth, none, scores - own + cost)
        wanted = margins * (2.0 * self.C)
        total = xp.zeros_like(own[0, :])
        count: Any = None
        for _ in range(scores.shape[0]):
            inside = wanted > (1.0 - delta) * total
            number = sum_of(xp.astype(inside, xp.uint8), axis=0)
            if count is not None and bool(xp.all(number == count)):
                break
            count, total = number, xp.sum(xp.where(inside, wanted, none), axis=0)
            total = total / xp.astype(delta + (1.0 - delta) * number, scores.dtype, copy=False)
        omega = xp.clip(wanted - (1.0 - delta) * total, 0.0, None) / delta
        total, squares = xp.sum(omega, axis=0), xp.sum(omega * omega, axis=0)
        ridge = 0.5 / xp.where(self.C > 0.0, self.C, xp.ones_like(self.C))
        # The margin of a class with a multiplier is ridge (delta omega + (1 - delta) total).
        loss = 0.5 * ridge * ((1.0 - delta) * total * total + delta * squares)
        worst = xp.max(margins, axis=0)  # the margin of the true class is zero
        exact = self.C * worst * worst
        bias = exact - loss + 0.5 * ridge * delta * (total * total - squares)
        return LossSums(sum_of(loss), sum_of(loss - exact), sum_of(bias), xp.where(truth, total, -omega))

    def differentiate(self, active: DeviceArray) -> tuple[DeviceArray, DeviceArray, DeviceArray]:
        """Return two coefficients of the derivative, and the number of active classes."""
        xp, delta = namespace_of(active), self.smoothing
        count = xp.sum(xp.astype(active, self.C.dtype), axis=0)
        own = (2.0 / delta) * self.C
        return own, own * (1.0 - delta) / (delta + (1.0 - delta) * count), count

    def multiply(self, change: DeviceArray, multipliers: DeviceArray) -> DeviceArray:
        """Multiply the second derivatives at given multipliers by a change of scores, (classes, n)."""
        xp = namespace_of(change)
        truth, active = true_classes(self.labels, change), multipliers < 0.0
        own, shared, _ = self.differentiate(active)
        mine = xp.take_along_axis(change, self.labels[None, :], axis=0)
        among = xp.where(active, change - mine, xp.zeros_like(mine))
        omega = own * among - xp.where(active, shared * xp.sum(among, axis=0), xp.zeros_like(mine))
        return xp.where(truth, -xp.sum(omega, axis=0), omega)


def _exact(loss: DeviceArray, multipliers: DeviceArray) -> LossSums:
    """Return losses without smoothing."""
    return LossSums(loss, 0.0 * loss, 0.0 * loss, multipliers)


def true_classes(labels: DeviceArray, scores: DeviceArray) -> DeviceArray:
    """Return the mask of each sample's true class, (outputs, n)."""
    xp = namespace_of(scores)
    return labels[None, :] == xp.arange(scores.shape[0], dtype=labels.dtype, device=labels.device)[:, None]


def weigh_grams(columns: DeviceArray, weights: DeviceArray) -> DeviceArray:
    """Return ``sum_n weights_on columns_n columns_n'`` for each output, (outputs, d, d), from (d, n), (outputs, n)."""
    xp = namespace_of(columns)
    (d, n), n_outputs = columns.shape, weights.shape[0]
    found = []
    for outputs in pieces(n_outputs, max(1, ROOM // max(d * n, 1))):
        some = weights[outputs, :]
        scaled = xp.reshape(some[:, None, :] * columns[None, :, :], (some.shape[0] * d, n))
        found.append(xp.reshape(multiply_rows(scaled, columns), (some.shape[0], d, d)))
    return join(found)
