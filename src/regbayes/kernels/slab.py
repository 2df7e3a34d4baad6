"""Label-free mean-field sweeps over spike-and-slab features.

A feature of a sample is off, or on with a value v that has a half-normal or normal prior of precision one. Given the
others, its value is normal, truncated at zero for a half-normal prior. Inference needs its moments and one logarithm,
docs/math.md eq. (121)-(124). Other features depend on its expected value ``f = psi E[v | on]``.

In host memory, compiled loops work on blocks of samples as in `binary`. Arrays of other libraries use the array API,
with double precision for each feature regardless of storage, because moments far below zero are differences of nearly
equal numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import numpy as np

from regbayes._types import Floats
from regbayes.kernels._compile import all_read_only, compiled, compiled_as_written, compiled_inline, read_only
from regbayes.kernels.arrays import (
    DeviceArray,
    add_product,
    find_sigmoid,
    gather,
    multiply_rows,
    namespace_of,
    pieces,
    to_device,
)
from regbayes.kernels.binary import (
    BLOCK,
    COLUMNS,
    _load,
    _store,
    _subtract_inner_products,
    _subtract_products,
    check_sweep,
    find_mixing,
)

MAX_HISTORY_NUMBERS = 1 << 26  # numbers that the sweeps of a piece of samples store on a device for the reverse

# (1 + 2 x) erfcx(x) for x >= 0 as a polynomial in (x - 3.75) / (x + 3.75), highest power first: the Chebyshev series of
# degree 22 (the variable is that of Schonfelder, "Chebyshev expansions for the error and related functions", 1978),
# computed in 40 digits. Relative error below 2e-15.
_ERFCX = np.array([
    -2.623107347133476e-09, -1.9551358868985616e-09, 3.1979266716668055e-08, 1.879082322370047e-08,
    -2.4857126248016745e-07, -5.0844653786873e-08, 1.7419821586224816e-06, -9.792625707303519e-07,
    -1.1438048033346895e-05, 2.2387565714911813e-05, 5.1646529741774155e-05, -0.0002901553524607766,
    0.00029371437804495796, 0.0017556261651970656, -0.009746579683265262, 0.02836227737211114,
    -0.058693398576649354, 0.09230432116428125, -0.10880393014244463, 0.08227673848999509,
    0.0035854154854790543, -0.14024059858554527, 1.2375126308378275,
])  # fmt: skip


class Swept(NamedTuple):
    """Result of the sweeps on the device of the samples; all (n, k) except the last."""

    psi: Any  # Probabilities that features are on
    amounts: Any  # ``f = psi E[v | on]``
    squares: Any  # ``psi E[v^2 | on]``
    divergence: Any  # (n,): ``psi KL(q(v) || p(v)) - H(psi)``, summed over the features of a row


class SlabGradient(NamedTuple):
    """Result of the reverse sweep; sums over samples are in host memory."""

    projections: Any  # (n, k): gradient of the projections
    coupling: Floats  # (k, k): gradient of the coupling matrix off its diagonal, which is zero
    precision: Floats  # (k,): gradient of the values' precisions


@compiled_as_written
def _scaled_erfc(x: float) -> float:
    """Return ``exp(x^2) erfc(x)`` for x >= 0."""
    t = (x - 3.75) / (x + 3.75)
    value = 0.0
    for coefficient in _ERFCX:
        value = value * t + coefficient
    return value / (1.0 + 2.0 * x)


@compiled_as_written
def _infer_amount(drive: float, deviation: float, log_scale: float, signed: bool) -> tuple[float, float, float]:
    """Return the log-odds and first two moments of the value; ``log_scale = a + log(deviation)``."""
    alpha = drive * deviation
    if signed:
        return log_scale + 0.5 * alpha * alpha, deviation * alpha, deviation * deviation * (1.0 + alpha * alpha)
    x = abs(alpha) * math.sqrt(0.5)
    tail = _scaled_erfc(x)
    if alpha > 0.0:
        density = math.exp(-x * x)
        mass = 2.0 - tail * density  # twice the normal probability above zero
        theta = log_scale + math.log(mass) + x * x
    else:
        density = 1.0  # density and mass in units of exp(-x^2)
        mass = tail
        theta = log_scale + math.log(mass)
    # Far below zero the two terms cancel to rounding: an activation is not negative.
    beyond = max(alpha + math.sqrt(2.0 / math.pi) * density / mass, 0.0)
    return theta, deviation * beyond, deviation * deviation * max(1.0 + alpha * beyond, 0.0)


@compiled_as_written
def _probability(theta: float) -> float:
    """Return the sigmoid of the log-odds."""
    odds = math.exp(-abs(theta))
    return (1.0 if theta >= 0.0 else odds) / (1.0 + odds)


@compiled_inline
def _sweep_block(
    projections: Floats,
    coupling: Floats,
    deviation: Floats,
    log_scale: Floats,
    signed: bool,
    is_first: bool,
    old: Floats,
    new: Floats,
    found: Floats,
) -> None:
    """Write one sweep from ``old`` to ``new``, blocks (k, BLOCK), and its intermediate results; start at zero.

    ``found`` is (4, k, BLOCK): the drive of a feature, its log-odds and the first two moments of its value.
    """
    n_features = projections.shape[0]
    drive = found[0]
    for k in range(n_features):
        drive[k] = projections[k]
        _subtract_products(drive, k, coupling, new, 0, k)
        if not is_first:
            _subtract_products(drive, k, coupling, old, k + 1, n_features)
        for r in range(BLOCK):
            theta, first, second = _infer_amount(drive[k, r], deviation[k], log_scale[k], signed)
            found[1, k, r], found[2, k, r], found[3, k, r] = theta, first, second
            new[k, r] = _probability(theta) * first


@compiled
def _sweep_rows(
    projections: Floats,
    coupling: Floats,
    precision: Floats,
    log_odds: Floats,
    n_sweeps: int,
    signed: bool,
    psi: Floats,
    amounts: Floats,
    squares: Floats,
    divergence: Floats,
) -> None:
    n_rows, n_features = projections.shape
    deviation = 1.0 / np.sqrt(precision)
    log_scale = log_odds + np.log(deviation)
    block = np.empty((n_features, BLOCK))
    old, new = np.empty((n_features, BLOCK)), np.empty((n_features, BLOCK))
    found = np.empty((4, n_features, BLOCK))
    for start in range(0, n_rows, BLOCK):
        n = min(BLOCK, n_rows - start)
        _load(projections, start, n, block)
        for sweep in range(n_sweeps):
            old, new = new, old
            _sweep_block(block, coupling, deviation, log_scale, signed, sweep == 0, old, new, found)
        for r in range(n):
            total = 0.0
            for k in range(n_features):
                drive, theta, first, second = found[0, k, r], found[1, k, r], found[2, k, r], found[3, k, r]
                p = _probability(theta)
                psi[start + r, k] = p
                amounts[start + r, k] = p * first
                squares[start + r, k] = p * second
                of_amount = drive * first - 0.5 * (precision[k] - 1.0) * second - (theta - log_odds[k])
                # -H = psi log psi + (1 - psi) log(1 - psi), and log(1 - psi) = min(-theta, 0) - log(1 + e^-|theta|)
                total += p * (of_amount + min(theta, 0.0)) + (1.0 - p) * min(-theta, 0.0)
                total -= math.log1p(math.exp(-abs(theta)))
            divergence[start + r] = total


@compiled
def _reverse_rows(
    grad: Floats,
    projections: Floats,
    coupling: Floats,
    precision: Floats,
    log_odds: Floats,
    n_sweeps: int,
    signed: bool,
    grad_projections: Floats,
    grad_coupling: Floats,
    grad_precision: Floats,
) -> None:
    """Write ``grad_projections``; add to the two sums."""
    n_rows, n_features = projections.shape
    deviation = 1.0 / np.sqrt(precision)
    log_scale = log_odds + np.log(deviation)
    transposed = coupling.T.copy()
    block = np.empty((n_features, BLOCK))
    history = np.zeros((n_sweeps + 1, n_features, BLOCK))
    found = np.empty((n_sweeps, 4, n_features, BLOCK))
    incoming = np.empty((n_features, BLOCK))  # gradient of the activations after the sweep being reversed
    outgoing = np.empty((n_features, BLOCK))  # gradient of those before it
    delta = np.empty((n_features, BLOCK))  # gradient of the drives
    total = np.empty((n_features, BLOCK))
    for start in range(0, n_rows, BLOCK):
        n = min(BLOCK, n_rows - start)
        _load(projections, start, n, block)
        for sweep in range(n_sweeps):
            before, after = history[sweep], history[sweep + 1]
            _sweep_block(block, coupling, deviation, log_scale, signed, sweep == 0, before, after, found[sweep])
        _load(grad, start, n, incoming)
        total[:] = 0.0
        for sweep in range(n_sweeps, 0, -1):
            before, after, of_sweep = history[sweep - 1], history[sweep], found[sweep - 1]
            for k in range(n_features - 1, -1, -1):
                _subtract_products(incoming, k, transposed, delta, k + 1, n_features)
                by_precision = 0.0
                for r in range(BLOCK):
                    drive, first, second = of_sweep[0, k, r], of_sweep[2, k, r], of_sweep[3, k, r]
                    p = _probability(of_sweep[1, k, r])
                    variance = deviation[k] * deviation[k]
                    third = variance * (drive * second + 2.0 * first)
                    delta[k, r] = incoming[k, r] * p * (second - p * first * first)
                    total[k, r] += delta[k, r]
                    by_precision += incoming[k, r] * p * (third - p * first * second)
                grad_precision[k] -= 0.5 * by_precision
            for k in range(n_features):
                _subtract_inner_products(grad_coupling, k, delta, after, 0, k)
                if sweep > 1:
                    _subtract_inner_products(grad_coupling, k, delta, before, k + 1, n_features)
                    outgoing[k] = 0.0
                    _subtract_products(outgoing, k, transposed, delta, 0, k)
            incoming, outgoing = outgoing, incoming
        _store(total, start, n, grad_projections)


# --- arrays of any library: feature-major, (k, n)


class _Value(NamedTuple):
    """Distribution of a feature given all others; all (n,), in double precision."""

    theta: DeviceArray  # log-odds of being on
    psi: DeviceArray
    first: DeviceArray  # E[v | on]
    second: DeviceArray


class _Columns(NamedTuple):
    """Sweeps over samples on a device, with parameters in host memory."""

    coupling: Floats
    precision: Floats
    log_odds: Floats
    n_sweeps: int
    signed: bool

    def sweep(self, projections: DeviceArray) -> list[DeviceArray]:
        """Return psi, activations and squares, (k, n), and the divergence, (n,)."""
        xp, amounts = namespace_of(projections), None
        for _ in range(self.n_sweeps - 1):
            amounts = self.sweep_once(projections, amounts, lambda *_: None)
        psi, squares = xp.empty_like(projections), xp.empty_like(projections)
        divergences: list[DeviceArray] = []

        def note(k: int, drive: DeviceArray, found: _Value) -> None:
            theta, on = found.theta, found.psi
            psi[k, :] = xp.astype(on, psi.dtype, copy=False)
            squares[k, :] = xp.astype(on * found.second, psi.dtype, copy=False)
            of_amount = drive * found.first - 0.5 * float(self.precision[k] - 1.0) * found.second
            of_amount -= theta - float(self.log_odds[k])
            # -H = psi min(theta, 0) + (1 - psi) min(-theta, 0) - log(1 + e^-|theta|)
            below = xp.clip(theta, None, 0.0)
            own = on * (of_amount + below) + (1.0 - on) * (below - theta) - xp.log1p(xp.exp(-xp.abs(theta)))
            divergences[:] = [divergences[0] + own] if divergences else [own]

        return [psi, self.sweep_once(projections, amounts, note), squares, divergences[0]]

    def reverse(self, left: DeviceArray, projections: DeviceArray) -> list[Floats]:
        """Overwrite the gradient by activations with that by projections, both (k, n); return the other gradients."""
        K, n = projections.shape
        places = pieces(n, max(1, MAX_HISTORY_NUMBERS // (2 * K * self.n_sweeps)))
        found = [self._reverse_piece(left[:, rows], projections[:, rows]) for rows in places]
        return gather(*(sum(parts[1:], parts[0]) for parts in zip(*found, strict=True)))

    def _reverse_piece(self, left: DeviceArray, projections: DeviceArray) -> list[DeviceArray]:
        xp, K = namespace_of(left), left.shape[0]
        history: list[DeviceArray] = []
        drives: list[DeviceArray] = []  # drives of successive sweeps
        for _ in range(self.n_sweeps):
            before = history[-1] if history else None
            history.append(self.sweep_once(projections, before, lambda _, drive, __: drives.append(drive)))
        mixing, above = to_device(find_mixing(self.coupling), left), to_device(np.triu(self.coupling, 1), left)
        below = to_device(np.tril(np.ones((K, K)), -1), left, xp.float64)
        incoming, total, by_coupling = left, None, None
        by_precision = xp.zeros((K,), dtype=xp.float64, device=left.device)
        for number in reversed(range(self.n_sweeps)):
            delta = xp.empty_like(left)
            for last in range(K, 0, -COLUMNS):
                first = max(last - COLUMNS, 0)
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
        left[...] = total
        return [by_coupling, by_precision]

    def _reverse_one(self, k: int, row: DeviceArray, drive: DeviceArray) -> tuple[DeviceArray, DeviceArray]:
        """Return the gradient by a feature's drive, (n,), and minus twice its summed gradient by the precision."""
        xp = namespace_of(row)
        flowing, drive = (xp.astype(each, xp.float64, copy=False) for each in (row, drive))
        found = self._infer_value(k, drive)
        flowing = flowing * found.psi
        third = (drive * found.second + 2.0 * found.first) / float(self.precision[k])
        by_precision = flowing @ (third - found.psi * found.first * found.second)
        return flowing * (found.second - found.psi * found.first * found.first), by_precision

    def sweep_once(
        self, projections: DeviceArray, before: DeviceArray | None, note: Callable[[int, DeviceArray, _Value], Any]
    ) -> DeviceArray:
        """Return the activations after a sweep, (k, n); they are zero before the first."""
        xp, mixing = namespace_of(projections), to_device(find_mixing(self.coupling), projections)
        if before is None:
            state = xp.asarray(projections, copy=True)
        else:
            state = projections - to_device(np.triu(self.coupling, 1), projections) @ before
        for block in pieces(state.shape[0], COLUMNS):
            first = block.start
            if first:
                add_product(state[block, :], mixing[block, :first], state[:first, :])
            for k in range(first, block.stop):
                row = state[k, :] if k == first else mixing[k, first : k + 1] @ state[first : k + 1, :]
                drive = xp.astype(row, xp.float64)
                found = self._infer_value(k, drive)
                note(k, drive, found)
                state[k, :] = xp.astype(found.psi * found.first, state.dtype, copy=False)
        return state

    def _infer_value(self, k: int, drive: DeviceArray) -> _Value:
        """Return the distribution of a feature given its drive, (n,), docs/math.md eq. (122)."""
        xp, deviation = namespace_of(drive), 1.0 / float(np.sqrt(self.precision[k]))
        alpha, log_scale = deviation * drive, float(self.log_odds[k] + np.log(deviation))
        if self.signed:
            theta = log_scale + 0.5 * alpha * alpha
            return _Value(theta, find_sigmoid(xp)(theta), deviation * alpha, deviation**2 * (1.0 + alpha * alpha))
        x = math.sqrt(0.5) * xp.abs(alpha)
        squared, ahead, tail = x * x, alpha > 0.0, find_scaled_erfc(xp)(x)
        one = xp.ones_like(x)
        density = xp.where(ahead, xp.exp(-squared), one)  # below zero, density and mass are in units of exp(-x^2)
        mass = xp.where(ahead, 2.0 - tail * density, tail)
        theta = xp.where(ahead, squared, 0.0 * one) + xp.log(mass) + log_scale
        # Far below zero the two terms cancel to rounding: a half-normal value is not negative.
        beyond = xp.clip(alpha + math.sqrt(2.0 / math.pi) * density / mass, 0.0, None)
        second = deviation**2 * xp.clip(1.0 + alpha * beyond, 0.0, None)
        return _Value(theta, find_sigmoid(xp)(theta), deviation * beyond, second)


def find_scaled_erfc(xp: Any) -> Callable[[DeviceArray], DeviceArray]:
    """Return the function ``exp(x^2) erfc(x)`` for x >= 0, the library's own if available, such as PyTorch's."""
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


# --- samples in host memory or on a device


def sweep_slab(
    projections: Any, coupling: Floats, precision: Floats, log_odds: Floats, n_sweeps: int, signed: bool = False
) -> Swept:
    """Infer spike-and-slab features of every sample by sweeps from ``f = 0``, docs/math.md eq. (121)-(123).

    Parameters
    ----------
    projections : (n, k)
        Drives of the features when all others are off, ``c Phi_k' x_n``; in host memory or on a device.
    coupling : (k, k)
        The diagonal is ignored, and symmetry is not assumed.
    precision : (k,)
        Precision of a value given that its feature is on, including that of its prior (one).
    log_odds : (k,)
        Prior log-odds of the features.
    n_sweeps : int
        At least one.
    signed : bool, default=False
        Whether values have a normal instead of a half-normal prior.
    """
    check_sweep(projections, coupling, n_sweeps, precision, log_odds)
    if not isinstance(projections, np.ndarray):
        found = _Columns(coupling, precision, log_odds, n_sweeps, signed).sweep(projections.T)
        return Swept(found[0].T, found[1].T, found[2].T, found[3])
    shape = projections.shape
    swept = Swept(np.empty(shape), np.empty(shape), np.empty(shape), np.empty(shape[0]))
    given = all_read_only((projections, coupling, precision, log_odds))
    _sweep_rows(*given, n_sweeps, signed, *swept)
    return swept


def reverse_slab(
    grad: Any,
    projections: Any,
    coupling: Floats,
    precision: Floats,
    log_odds: Floats,
    n_sweeps: int,
    signed: bool = False,
    grad_projections: Floats | None = None,
) -> SlabGradient:
    """Differentiate a function of the activations by the inputs of the sweeps, docs/math.md eq. (125)-(126).

    Parameters
    ----------
    grad : (n, k)
        Gradient with respect to the activations from `sweep_slab`. On a device it is overwritten.
    projections, coupling, precision, log_odds, n_sweeps, signed
        As in `sweep_slab`.
    grad_projections : (n, k), default=None
        Output array in host memory for the gradient with respect to the projections. It may be ``grad``.
    """
    check_sweep(projections, coupling, n_sweeps, precision, log_odds, grad)
    if not isinstance(projections, np.ndarray):
        sums = _Columns(coupling, precision, log_odds, n_sweeps, signed).reverse(grad.T, projections.T)
        return SlabGradient(grad, *sums)
    out = np.empty(projections.shape) if grad_projections is None else grad_projections
    if not grad.shape == projections.shape == out.shape:
        raise ValueError(f"`grad` and `grad_projections` must have the shape of `projections`, {projections.shape}.")
    found = SlabGradient(out, np.zeros(coupling.shape), np.zeros(len(coupling)))
    given = all_read_only((projections, coupling, precision, log_odds))
    _reverse_rows(read_only(grad), *given, n_sweeps, signed, *found)
    return found
