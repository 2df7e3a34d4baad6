"""Spike-and-slab features over arrays of any library, as `arrays_features.py` has binary ones.

The functions are those of `slab.py`. Arrays are feature-major, (K, n). What belongs to one feature is in double
precision whatever is stored: far below zero the moments of an amount are differences of nearly equal numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import numpy as np

from regbayes._types import Floats
from regbayes.kernels.arrays import (
    DeviceArray,
    add_product,
    find_sigmoid,
    multiply_rows,
    namespace_of,
    pieces,
    sum_of,
    to_device,
)
from regbayes.kernels.arrays_features import BLOCK, find_mixing
from regbayes.kernels.slab import _ERFCX, _SQRT_2_OVER_PI, _SQRT_HALF

ROOM = 1 << 26  # numbers that the sweeps of a piece of the rows leave for the way back: few pieces, as launches cost


class SweptSlab(NamedTuple):
    """What the sweeps find, (K, n), or (n,) the last: `regbayes.kernels.slab.Swept`."""

    psi: DeviceArray
    amounts: DeviceArray
    squares: DeviceArray
    divergence: DeviceArray  # in double precision


@dataclass(frozen=True)
class _Amounts:
    """A feature given all others, of each row; all (n,), in double precision."""

    theta: DeviceArray  # log-odds of being on
    psi: DeviceArray
    first: DeviceArray  # E[v | on]
    second: DeviceArray


@dataclass(frozen=True)
class SlabSweeps:
    """What sweeps over rows are given, on the host."""

    coupling: Floats  # (K, K); its diagonal is not used
    precision: Floats  # (K,)
    log_odds: Floats  # (K,)
    n_sweeps: int

    def sweep(self, projections: DeviceArray) -> SweptSlab:
        """Sweep over the features of rows, whose projections are (K, n); `regbayes.kernels.slab.sweep_slab`."""
        xp, amounts = namespace_of(projections), None
        for _ in range(self.n_sweeps - 1):
            amounts = self._sweep_once(projections, amounts, lambda *_: None)
        psi, squares = xp.empty_like(projections), xp.empty_like(projections)
        divergences: list[DeviceArray] = []

        def note(k: int, drive: DeviceArray, found: _Amounts) -> None:
            theta, on = found.theta, found.psi
            psi[k, :] = xp.astype(on, psi.dtype, copy=False)
            squares[k, :] = xp.astype(on * found.second, psi.dtype, copy=False)
            of_amount = drive * found.first - 0.5 * float(self.precision[k] - 1.0) * found.second
            of_amount -= theta - float(self.log_odds[k])
            # -H = psi min(theta, 0) + (1 - psi) min(-theta, 0) - log(1 + e^-|theta|)
            below = xp.clip(theta, None, 0.0)
            own = on * (of_amount + below) + (1.0 - on) * (below - theta) - xp.log1p(xp.exp(-xp.abs(theta)))
            divergences[:] = [divergences[0] + own] if divergences else [own]

        amounts = self._sweep_once(projections, amounts, note)
        return SweptSlab(psi, amounts, squares, divergences[0])

    def reverse(
        self,
        gradient: DeviceArray | None,
        projections: DeviceArray,
        weight: float = 0.0,
        weights: DeviceArray | None = None,
    ) -> SlabPulled:
        """Differentiate a function of the swept amounts, and the rows' own terms, by what the sweeps were given.

        The first is what `regbayes.kernels.slab.reverse_slab` does. The rows' own terms, those of
        `regbayes.models.ilsvm.slab.SlabFeatures.pull_back`, add ``weight L' (amounts - before)`` to the gradient, where
        L is the coupling below its diagonal and ``before`` the amounts one sweep earlier, and ``-weight amounts`` to
        the result.

        Parameters
        ----------
        gradient : (K, n) or None
            With respect to the amounts. It is overwritten.
        projections : (K, n)
        weight : float
            Of the rows' own terms.
        weights : (n,), default=None
            How often rows count in them.
        """
        K, n = projections.shape
        left = namespace_of(projections).zeros_like(projections) if gradient is None else gradient
        found: list[tuple[DeviceArray, ...]] = []
        for rows in pieces(n, max(1, ROOM // (2 * K * self.n_sweeps))):
            counts = None if weights is None else weights[rows]
            found.append(self._reverse_piece(left[:, rows], projections[:, rows], weight, counts))
        sums = found[0]
        for more in found[1:]:
            sums = tuple(one + other for one, other in zip(sums, more, strict=True))
        return SlabPulled(left, *sums)

    def _reverse_piece(
        self, left: DeviceArray, projections: DeviceArray, weight: float, weights: DeviceArray | None
    ) -> tuple[DeviceArray, ...]:
        """Write the gradient by projections, less the amounts with their weight; return sums."""
        xp, K = namespace_of(left), left.shape[0]
        history: list[DeviceArray] = []
        drives: list[DeviceArray] = []  # of sweep after sweep
        for _ in range(self.n_sweeps):
            before = history[-1] if history else None
            history.append(self._sweep_once(projections, before, lambda _, drive, __: drives.append(drive)))
        if weight:
            moved = history[-1] if self.n_sweeps == 1 else history[-1] - history[-2]
            moved = moved if weights is None else moved * weights
            left += to_device(weight * np.tril(self.coupling, -1).T, left) @ moved
        mixing, above = to_device(find_mixing(self.coupling), left), to_device(np.triu(self.coupling, 1), left)
        below = to_device(np.tril(np.ones((K, K)), -1), left, xp.float64)
        incoming, total, by_coupling = left, None, None
        by_precision = xp.zeros((K,), dtype=xp.float64, device=left.device)
        for number in reversed(range(self.n_sweeps)):
            delta = xp.empty_like(left)
            for last in range(K, 0, -BLOCK):
                first = max(last - BLOCK, 0)
                if last < K:
                    add_product(incoming[first:last, :], mixing[last:, first:last].T, delta[last:, :])
                for k in reversed(range(first, last)):
                    row = incoming[k, :]
                    if k + 1 < last:
                        row = row + mixing[k + 1 : last, k] @ delta[k + 1 : last, :]
                    own, precise = self._reverse_one(k, row, drives[number * K + k])
                    delta[k, :] = xp.astype(own, left.dtype, copy=False)
                    by_precision[k] -= 0.5 * precise
            found = multiply_rows(delta, history[number]) * below
            if number > 0:
                found += multiply_rows(delta, history[number - 1]) * below.T
                incoming = -(above.T @ delta)
            by_coupling = -found if by_coupling is None else by_coupling - found
            total = delta if total is None else total + delta
        driving = sum_of(total, axis=1)
        if weight:
            total = total - weight * (history[-1] if weights is None else history[-1] * weights)
        left[...] = total
        return by_coupling, by_precision, driving

    def _reverse_one(self, k: int, row: DeviceArray, drive: DeviceArray) -> tuple[DeviceArray, DeviceArray]:
        """Return the gradient by what drove a feature, (n,), and the sum of what its precision is told, twice."""
        xp = namespace_of(row)
        flowing, drive = (xp.astype(each, xp.float64, copy=False) for each in (row, drive))
        found = self._infer_amounts(k, drive)
        flowing = flowing * found.psi
        third = (drive * found.second + 2.0 * found.first) / float(self.precision[k])
        by_precision = flowing @ (third - found.psi * found.first * found.second)
        return flowing * (found.second - found.psi * found.first * found.first), by_precision

    def _sweep_once(
        self, projections: DeviceArray, before: DeviceArray | None, note: Callable[[int, DeviceArray, _Amounts], Any]
    ) -> DeviceArray:
        """Return the amounts after a sweep, (K, n); before the first one all are zero."""
        xp, mixing = namespace_of(projections), to_device(find_mixing(self.coupling), projections)
        if before is None:
            state = xp.asarray(projections, copy=True)
        else:
            state = projections - to_device(np.triu(self.coupling, 1), projections) @ before
        for block in pieces(state.shape[0], BLOCK):
            first = block.start
            if first:
                add_product(state[block, :], mixing[block, :first], state[:first, :])
            for k in range(first, block.stop):
                row = state[k, :] if k == first else mixing[k, first : k + 1] @ state[first : k + 1, :]
                drive = xp.astype(row, xp.float64)
                found = self._infer_amounts(k, drive)
                note(k, drive, found)
                state[k, :] = xp.astype(found.psi * found.first, state.dtype, copy=False)
        return state

    def _infer_amounts(self, k: int, drive: DeviceArray) -> _Amounts:
        """Return what is known of a feature from what drives it, (n,): docs/math.md eq. (122)."""
        xp, deviation = namespace_of(drive), 1.0 / float(np.sqrt(self.precision[k]))
        alpha = deviation * drive
        x = _SQRT_HALF * xp.abs(alpha)
        squared, ahead, tail = x * x, alpha > 0.0, find_scaled_erfc(xp)(x)
        one = xp.ones_like(x)
        density = xp.where(ahead, xp.exp(-squared), one)  # below zero, both in units of exp(-x^2)
        mass = xp.where(ahead, 2.0 - tail * density, tail)
        theta = xp.where(ahead, squared, 0.0 * one) + xp.log(mass) + float(self.log_odds[k] + np.log(deviation))
        # Far below zero the two terms cancel to rounding: an amount is not negative.
        beyond = xp.clip(alpha + _SQRT_2_OVER_PI * density / mass, 0.0, None)
        second = deviation**2 * xp.clip(1.0 + alpha * beyond, 0.0, None)
        return _Amounts(theta, find_sigmoid(xp)(theta), deviation * beyond, second)


class SlabPulled(NamedTuple):
    """What the way back finds; sums over rows are in double precision."""

    left: DeviceArray  # (K, n): the gradient by projections, less weight amounts
    coupling: DeviceArray  # (K, K), zero on its diagonal
    precision: DeviceArray  # (K,)
    driving: DeviceArray  # (K,): the gradient by projections summed over rows


def find_scaled_erfc(xp: Any) -> Callable[[DeviceArray], DeviceArray]:
    """Return the function ``exp(x^2) erfc(x)`` for x >= 0: the library's own where it has one, as PyTorch."""
    if hasattr(xp, "special") and hasattr(xp.special, "erfcx"):
        return cast("Callable[[DeviceArray], DeviceArray]", xp.special.erfcx)

    def evaluate(x: DeviceArray) -> DeviceArray:
        t = (x - 3.75) / (x + 3.75)
        value = xp.full_like(x, float(_ERFCX[0]))
        for coefficient in _ERFCX[1:]:
            value *= t
            value += float(coefficient)
        return value / (1.0 + 2.0 * x)

    return evaluate
