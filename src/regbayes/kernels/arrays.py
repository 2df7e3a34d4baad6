"""The row work of iLSVM, of large margins and of `regularize` for arrays of any library that keeps to the array API.

PyTorch, CuPy, array-api-strict and NumPy: operations of the standard alone, so that arrays on a graphics card are
worked on there. What a function returns of the size of the rows stays where the rows are; sums over rows come to the
host as NumPy arrays in double precision. Arrays are feature-major, (K, n): a step in the sequential index k is one
operation on n neighbours, and features are taken in blocks of ``BLOCK``, between which there are products of matrices.
On a CUDA device kernels of `cuda_rows.py` take blocks of features, and the losses of rows, in one pass over memory.

The law is the NumPy reference of each family (`sweeps.py`; `framework/newton.py` for margins): tests hold these
functions to it, to 1e-12 in double precision and to 1e-5 in single. Single precision is for storage and for what
belongs to a row: sums over rows are taken in double precision, products with sums over rows in pieces of ``PIECE``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from regbayes._types import Floats
from regbayes.kernels import cuda_rows

DeviceArray = Any
"""An array of any library that keeps to the array API, wherever it lies."""

BLOCK = 10  # features between which there is a loop; beyond, products of matrices
PIECE = 1 << 14  # rows whose sums single precision may hold
ROOM = 1 << 25  # numbers in work arrays that need not be as long as all rows and outputs together
LIMIT = 708.0  # where the exponential function leaves the numbers; single precision has infinities there, and no harm


# --- which library, and the way to the host and back


def is_plain(array: Any) -> bool:
    """Whether an array is NumPy's own, or no array at all: then the compiled loops take it.

    This is the one place where it is decided which kernels run.
    """
    if isinstance(array, np.ndarray | np.generic | type):
        return True
    return not (hasattr(array, "__array_namespace__") or _is_torch(array) or _is_cupy(array))


def is_mapped(array: Any) -> bool:
    """Whether an array of NumPy lies in a file."""
    while isinstance(array, np.ndarray):
        if isinstance(array, np.memmap):
            return True
        array = array.base
    return False


def _is_torch(array: Any) -> bool:
    return type(array).__module__.partition(".")[0] == "torch" and hasattr(array, "detach")


def _is_cupy(array: Any) -> bool:
    return type(array).__module__.startswith("cupy")


def lies_elsewhere(array: Any) -> bool:
    """Whether an array of PyTorch or CuPy lies where NumPy cannot read it."""
    if _is_cupy(array):
        return True
    return _is_torch(array) and array.device.type != "cpu"


def is_sparse(array: Any) -> bool:
    """Whether a matrix of PyTorch or CuPy is sparse."""
    return type(array).__module__.startswith("cupyx") or "sparse" in str(getattr(array, "layout", ""))


def without_graph(array: Any) -> Any:
    """Return an array of PyTorch that remembers no derivatives, with the same memory; anything else as it is."""
    return array.detach() if getattr(array, "requires_grad", False) is True else array


def namespace_of(array: DeviceArray) -> Any:
    """Return the functions of the library that an array belongs to."""
    if not _is_torch(array) and not _is_cupy(array):
        return array.__array_namespace__()
    try:
        from array_api_compat import array_namespace
    except ImportError:
        raise ImportError(
            "arrays of PyTorch and CuPy need the package array-api-compat: pip install 'regbayes[gpu]'"
        ) from None
    return array_namespace(array)


def to_host(array: Any) -> NDArray[Any]:
    """Return an array, or what NumPy takes for one, as NumPy's."""
    if isinstance(array, np.ndarray):
        return array
    if _is_torch(array):
        return np.asarray(array.detach().cpu().numpy())
    return np.asarray(array.get() if _is_cupy(array) else array)


def to_device(values: Any, like: DeviceArray, dtype: Any = None) -> DeviceArray:
    """Return numbers of the host as an array where another lies, of its type unless one is given."""
    plain, dtype = np.ascontiguousarray(values), like.dtype if dtype is None else dtype
    plain = plain if plain.flags.writeable else plain.copy()  # PyTorch would have to trust us
    if _is_torch(like) and lies_elsewhere(like):
        # What is in ordinary memory is read before the call returns: nothing but the device's own work is waited for.
        return like.new_empty(plain.shape, dtype=dtype).copy_(_wrap(plain), non_blocking=True)
    return namespace_of(like).asarray(plain, dtype=dtype, device=like.device)


def _wrap(plain: NDArray[Any]) -> DeviceArray:
    import torch

    return torch.from_numpy(plain)


def integers_to_device(values: Any, like: DeviceArray) -> DeviceArray:
    """Return whole numbers of the host as an array where another lies."""
    return to_device(values, like, namespace_of(like).int64)


def join(parts: Sequence[Any], axis: int = 0) -> Any:
    """Return arrays of one library end to end."""
    return parts[0] if len(parts) == 1 else namespace_of(parts[0]).concat(list(parts), axis=axis)


def join_columns(parts: Sequence[Any]) -> Any:
    """Return matrices side by side, having seen that all are of one library and on one device."""
    kinds = {(type(part).__module__.partition(".")[0], str(getattr(part, "device", ""))) for part in parts}
    if len(kinds) > 1:
        found = " and ".join(f"{library} arrays on {device}" for library, device in sorted(kinds))
        raise TypeError(f"features are {found}: give all of them as arrays of one kind on one device")
    return join(parts, axis=1)


def take_rows(array: DeviceArray, rows: Any) -> DeviceArray:
    """Return some of the rows, whose places are on the host."""
    return namespace_of(array).take(array, integers_to_device(rows, array), axis=0)


def take_columns(array: DeviceArray, columns: Sequence[int]) -> DeviceArray:
    """Return some of the columns."""
    return namespace_of(array).take(array, integers_to_device(np.asarray(columns), array), axis=1)


def append_columns(array: Any, constant: Floats) -> Any:
    """Return an array (n, k) with columns behind its own that have one number each."""
    xp = namespace_of(array)
    return join([array, xp.broadcast_to(to_device(constant, array), (array.shape[0], len(constant)))], axis=1)


def sum_squares(array: DeviceArray, about: Floats, weights: Floats | None) -> Floats:
    """Return the sum of squares of each column less a number, rows as often as weights on the host say, (k,)."""
    xp, found, (n, k) = namespace_of(array), [], array.shape
    for rows in pieces(n, max(1, ROOM // k)):
        away = xp.astype(array[rows, :], xp.float64, copy=False) - to_device(about, array, xp.float64)
        away *= away
        some = to_device(np.ones(away.shape[0]) if weights is None else weights[rows], array, xp.float64)
        found.append(some @ away)
    return np.add.reduce(gather(*found))


def count_not_finite(array: DeviceArray) -> int:
    """Count the NaN and infinite values."""
    xp = namespace_of(array)
    if not xp.isdtype(array.dtype, "real floating"):
        return 0
    return int(xp.sum(xp.astype(~xp.isfinite(array), xp.int64)))


def find_ranges(array: Any) -> tuple[Floats, Floats]:
    """Return the smallest and the largest number of each column, (k,) both, on the host."""
    xp = namespace_of(array)
    lowest, highest = gather(xp.min(array, axis=0), xp.max(array, axis=0))
    return lowest, highest


def gather(*arrays: DeviceArray) -> list[Floats]:
    """Bring small arrays to the host, in double precision and in one transfer."""
    xp = namespace_of(arrays[0])
    if len(arrays) == 1:
        return [np.array(to_host(arrays[0]), dtype=np.float64)]
    flat = xp.concat([xp.astype(xp.reshape(array, (-1,)), xp.float64, copy=False) for array in arrays])
    found, first, host = [], 0, to_host(flat)
    for array in arrays:
        size = int(np.prod(array.shape))
        found.append(np.array(host[first : first + size], dtype=np.float64).reshape(array.shape))
        first += size
    return found


def pieces(n: int, size: int) -> list[slice]:
    """Return the slices of a length in pieces; the standard says nothing of slices that end beyond an array."""
    return [slice(first, min(first + size, n)) for first in range(0, max(n, 1), size)]


def sum_of(array: DeviceArray, axis: int | None = None) -> DeviceArray:
    """Return sums in double precision."""
    xp = namespace_of(array)
    return xp.sum(array, axis=axis, dtype=xp.float64)


def multiply_rows(left: DeviceArray, right: DeviceArray) -> DeviceArray:
    """Return ``left @ right'`` of (a, n) and (b, n), a sum over rows, in double precision.

    Inputs come first, (D, n): on an H200 that took 2.5 ms where features first took 2.8.
    """
    xp = namespace_of(left)
    if left.dtype == xp.float64:
        return left @ right.T
    n_pieces, a, b = left.shape[1] // PIECE, left.shape[0], right.shape[0]
    end = n_pieces * PIECE
    found = xp.astype(left[:, end:] @ right[:, end:].T, xp.float64)
    for some in pieces(n_pieces, max(1, ROOM // (a * b))) if n_pieces else []:  # side by side: one operation for many
        rows = slice(some.start * PIECE, some.stop * PIECE)
        mine = xp.permute_dims(xp.reshape(left[:, rows], (a, -1, PIECE)), (1, 0, 2))
        other = xp.permute_dims(xp.reshape(right[:, rows], (b, -1, PIECE)), (1, 2, 0))
        found += sum_of(mine @ other, axis=0)
    return found


def find_sigmoid(xp: Any) -> Callable[..., DeviceArray]:
    """Return the function 1 / (1 + exp(-x)): the library's own where it has one, as PyTorch, which takes one pass."""
    if hasattr(xp, "sigmoid"):
        return cast("Callable[..., DeviceArray]", xp.sigmoid)
    return lambda x: 1.0 / (1.0 + xp.exp(-xp.clip(x, -LIMIT, LIMIT)))


def find_entropy(xp: Any) -> Callable[[DeviceArray], DeviceArray]:
    """Return the function -x log(x) - (1 - x) log(1 - x), 0 at 0 and 1; PyTorch has one that takes one pass.

    That one stops the process, on a device, at what is no number, as a step too far may give: it sees 0 instead. Other
    sums of the same rows say that there are no numbers.
    """
    if hasattr(xp, "nn"):

        def cross(x: DeviceArray) -> DeviceArray:
            known = xp.nan_to_num(x, nan=0.0)
            return xp.nn.functional.binary_cross_entropy(known, known, reduction="none")

        return cross

    def entropy(x: DeviceArray) -> DeviceArray:
        least, other = float(xp.finfo(x.dtype).smallest_normal), 1.0 - x
        found = x * xp.log(xp.clip(x, least, 1.0))
        found += other * xp.log(xp.clip(other, least, 1.0))
        return -found

    return entropy


def multiply_into(one: DeviceArray, other: DeviceArray, out: DeviceArray) -> None:
    """Write the products of elements of (a, 1, n) and (1, b, n) as (a b, n): in one pass where the library can."""
    xp, shape = namespace_of(out), (one.shape[0], other.shape[1], out.shape[1])
    if _is_torch(out):
        xp.mul(one, other, out=out.view(shape))
    else:
        out[...] = xp.reshape(one * other, out.shape)


def add_product(total: DeviceArray, left: DeviceArray, right: DeviceArray) -> None:
    """Add a product of matrices to an array in place: in one pass over it where the library can."""
    if _is_torch(total):
        total.addmm_(left, right)
    else:
        total += left @ right


# --- binary features: sweeps of mean field, and their reverse


@dataclass(frozen=True)
class Swept:
    """Features of rows after sweeps, and what is known of them."""

    history: list[DeviceArray]  # the states after each sweep, (K, n)
    theta: DeviceArray | None  # (K, n); None: there are sums
    sums: list[DeviceArray]  # (2,) each, of blocks of features: psi times logits, and entropies, over rows with weights


def sweep_features(
    products: DeviceArray,
    constant: Floats,
    coupling: Floats,
    start: Floats,
    n_sweeps: int,
    weights: DeviceArray | None = None,
) -> Swept:
    """Sweep over the features of rows; `regbayes.kernels.sweeps.sweep_features` has the law.

    Parameters
    ----------
    products : (K, n)
        They are overwritten.
    constant : (K,), on the host
        Added to the products, which makes theta.
    coupling : (K, K), on the host
        Its diagonal is not used.
    start : (K,), on the host
        Where the first sweep starts, in all rows.
    n_sweeps : int
        At least one.
    weights : (n,), default=None
        How often rows count in sums.
    """
    later = np.triu(coupling, 1)  # what a feature sees of those after it, as they were
    if cuda_rows.takes(products, weights):
        return _launch_sweeps(products, constant, coupling, later, start, n_sweeps, weights)
    theta, mixing = products, to_device(find_mixing(coupling), products)
    theta += to_device(constant, products)[:, None]
    history = [_sweep(theta - to_device(later @ start, theta)[:, None], mixing)]
    if n_sweeps > 1:
        above = to_device(later, theta)
    for _ in range(n_sweeps - 1):
        history.append(_sweep(theta - above @ history[-1], mixing))
    return Swept(history, theta, [])


def _launch_sweeps(
    products: DeviceArray,
    constant: Floats,
    coupling: Floats,
    later: Floats,
    start: Floats,
    n_sweeps: int,
    weights: DeviceArray | None,
) -> Swept:
    """Sweep by kernels: a block of features at a time, between which there are products of matrices."""
    xp = namespace_of(products)
    history: list[DeviceArray] = []
    sums: list[DeviceArray] = []
    for number in range(n_sweeps):
        psi = products if number + 1 == n_sweeps else xp.empty_like(products)
        sums = []
        for block in cuda_rows.find_blocks(len(coupling)):
            own, given = constant[block], products[block, :]
            if number == 0:
                own = own - later[block] @ start
            else:
                given = given - to_device(later[block], psi) @ history[-1]
            if block.start:
                given = given - to_device(coupling[block, : block.start], psi) @ psi[: block.start, :]
            table = to_device(cuda_rows.lay_out(coupling[block, block], own), psi)
            sums.append(cuda_rows.sweep(given, table, weights, psi[block, :]))
        history.append(psi)
    return Swept(history, None, sums)


def find_mixing(coupling: Floats) -> Floats:
    """Return what a feature sees of itself and of those before it in a sweep, (K, K): 1, and minus the coupling."""
    return np.eye(len(coupling)) - np.tril(coupling, -1)


def _sweep(logits: DeviceArray, mixing: DeviceArray) -> DeviceArray:
    """Write ``psi_k = sigmoid(logits_k - sum_{j < k} coupling_kj psi_j)`` for k in order over the logits; return them.

    Rows before k have features by then, and row k has its logits: one product takes both.
    """
    to_probability, writes = find_sigmoid(namespace_of(logits)), _is_torch(logits)
    for block in pieces(logits.shape[0], BLOCK):
        first = block.start
        if first:
            add_product(logits[block, :], mixing[block, :first], logits[:first, :])
        for k in range(first, block.stop):
            row = logits[k, :] if k == first else mixing[k, first : k + 1] @ logits[first : k + 1, :]
            if writes:
                to_probability(row, out=logits[k, :])
            else:
                logits[k, :] = to_probability(row)
    return logits


class FeatureSums(NamedTuple):
    """What inference leaves of rows beside their features, each row as often as it counts."""

    counts: Floats  # (K,): sum of psi_n
    gram: Floats  # (K, K): sum of psi_n psi_n'
    by_theta: float  # sum of psi_n' theta_n
    entropy: float


def sum_features(swept: Swept, coupling: Floats, start: Floats, weights: DeviceArray | None) -> FeatureSums:
    """Sum what the objective needs to know of the features of rows; weights (n,) say how often each counts.

    The work arrays are a block of features long.
    """
    psi, theta = swept.history[-1], swept.theta
    xp = namespace_of(psi)
    weighed = psi if weights is None else psi * weights
    gram, counts = multiply_rows(weighed, psi), sum_of(weighed, axis=1)
    if theta is None:  # theta is the logits and what they left of it: psi' theta = psi' logits + psi' coupling psi
        before = swept.history[-2:-1]
        found = gather(counts, gram, *swept.sums, *(multiply_rows(weighed, other) for other in before))
        beside = found[-1] if before else found[0][:, None] * start
        inside = np.sum(np.tril(coupling, -1) * found[1]) + np.sum(np.triu(coupling, 1) * beside)
        by_logits, by_row = np.add.reduce(found[2 : 2 + len(swept.sums)])
        return FeatureSums(found[0], found[1], float(by_logits + inside), float(by_row))
    entropy_of = find_entropy(xp)
    by_theta, entropy = [], []
    for block in pieces(psi.shape[0], BLOCK):
        some = psi[block, :]
        by_theta.append(sum_products(weighed[block, :], theta[block, :]))
        each = entropy_of(some)
        entropy.append(sum_of(each if weights is None else each * weights))
    found = gather(counts, gram, xp.stack(by_theta), xp.stack(entropy))
    return FeatureSums(found[0], found[1], float(found[2].sum()), float(found[3].sum()))


def reverse_features(
    gradient: DeviceArray | None,
    history: Sequence[DeviceArray],
    coupling: Floats,
    start: Floats,
    weight: float = 0.0,
    weights: DeviceArray | None = None,
    moments: tuple[Floats, Floats] | None = None,
) -> tuple[DeviceArray, DeviceArray, DeviceArray]:
    """Differentiate a function of the swept state, and the rows' own terms, with respect to theta and coupling.

    `regbayes.kernels.sweeps.reverse_features` has the law; `regbayes.models.ilsvm.model.HostRows.pull_back` says what
    the terms of rows with a weight add: ``weight L' (psi - before)`` to the gradient, where L is the coupling below its
    diagonal and the state is that before the last sweep, and ``-weight psi`` to the result.

    Parameters
    ----------
    gradient : (K, n) or None
        With respect to the last state. It is overwritten.
    history : sequence of (K, n)
        The states after each sweep.
    coupling, start
        As in `sweep_features`.
    weight : float
        Of the rows' own terms.
    weights : (n,), default=None
        How often rows count in them.
    moments : (K,) and (K, K), on the host
        The sums of psi and of psi psi' over rows with weights, where there is a weight.

    Returns
    -------
    left : (K, n)
        The gradient by theta, less weight psi.
    by_coupling : (K, K)
    left_sum : (K,)
        The first summed over rows.
    """
    psi, triangle = history[-1], np.tril(np.ones_like(coupling), -1)
    xp = namespace_of(psi)
    launches = cuda_rows.takes(psi, weights) and (gradient is None or cuda_rows.takes(gradient, psi))
    if launches and len(history) == 1:
        left = _launch_reverse(gradient, psi, coupling, weight * (start @ np.tril(coupling, -1)), weight, weights)
        by_coupling, left_sum = multiply_rows(left, psi), sum_of(left, axis=1)
        # The gradient by theta is what is left and weight psi, whose sums over rows are known.
        known = np.zeros_like(coupling)
        if weight:
            assert moments is not None
            known = -weight * (triangle * moments[1] + triangle.T * moments[0][:, None] * start)
        factors = to_device(np.stack([known, -triangle, -triangle.T * start]), psi, xp.float64)
        by_coupling = factors[0, ...] + by_coupling * factors[1, ...] + left_sum[:, None] * factors[2, ...]
        return left, by_coupling, left_sum
    upper, begin = to_device(triangle.T, psi, xp.float64), to_device(start, psi, xp.float64)
    incoming = gradient
    if weight:
        below, before = to_device(weight * np.tril(coupling, -1).T, psi), None if len(history) == 1 else history[-2]
        moved = psi - (to_device(start, psi)[:, None] if before is None else before)
        if weights is not None:
            moved *= weights
        if incoming is None:
            incoming = below @ moved
        else:
            add_product(incoming, below, moved)
    elif incoming is None:
        incoming = xp.zeros_like(psi)
    total, by_coupling = None, None
    mixing, above = to_device(find_mixing(coupling), psi), to_device(np.triu(coupling, 1), psi)
    for number in reversed(range(len(history))):
        if launches:
            delta = _launch_reverse(incoming, history[number], coupling, np.zeros(len(coupling)), 0.0, None)
        else:
            delta = _reverse_sweep(incoming, history[number], mixing)
        found = multiply_rows(delta, history[number]) * upper.T
        if number > 0:
            found += multiply_rows(delta, history[number - 1]) * upper
            incoming = -(above.T @ delta)
        else:
            found += sum_of(delta, axis=1)[:, None] * begin * upper
        by_coupling = -found if by_coupling is None else by_coupling - found
        total = delta if total is None else total + delta
    if weight:
        _add_scaled(total, psi if weights is None else psi * weights, -weight)
    return total, by_coupling, sum_of(total, axis=1)


def _add_scaled(total: DeviceArray, other: DeviceArray, factor: float) -> None:
    """Add a multiple of an array to another in place: in one pass where the library can."""
    if _is_torch(total):
        total.add_(other, alpha=factor)
    else:
        total += factor * other


def _launch_reverse(
    gradient: DeviceArray | None,
    psi: DeviceArray,
    coupling: Floats,
    constant: Floats,
    weight: float,
    weights: DeviceArray | None,
) -> DeviceArray:
    """Reverse one sweep by kernels, from the last block of features to the first; the gradient is overwritten."""
    left, K = namespace_of(psi).empty_like(psi) if gradient is None else gradient, len(coupling)
    for block in reversed(cuda_rows.find_blocks(K)):
        incoming = None if gradient is None else gradient[block, :]
        if block.stop < K:
            sent = to_device(-coupling[block.stop :, block].T, psi) @ left[block.stop :, :]
            incoming = sent if incoming is None else incoming + sent
        table = to_device(cuda_rows.lay_out(coupling[block, block][::-1, ::-1].T, constant[block][::-1]), psi)
        cuda_rows.reverse(incoming, psi[block, :], table, weights, weight, left[block, :])
    return left


def _reverse_sweep(incoming: DeviceArray, psi: DeviceArray, mixing: DeviceArray) -> DeviceArray:
    """Write the gradient by the arguments of one sweep's sigmoids over the one by its state; return it."""
    K, back = psi.shape[0], _find_sigmoid_back(psi)
    for last in range(K, 0, -BLOCK):
        first = max(last - BLOCK, 0)
        if last < K:
            add_product(incoming[first:last, :], mixing[last:, first:last].T, incoming[last:, :])
        for k in reversed(range(first, last)):
            row = incoming[k, :] if k + 1 == last else mixing[k:last, k] @ incoming[k:last, :]
            back(row, psi[k, :], incoming[k, :])
    return incoming


def _find_sigmoid_back(like: DeviceArray) -> Callable[[DeviceArray, DeviceArray, DeviceArray], Any]:
    """Return the function that writes ``gradient psi (1 - psi)``; PyTorch has one that takes one pass."""
    if _is_torch(like):
        import torch

        return lambda gradient, psi, out: torch.ops.aten.sigmoid_backward.grad_input(gradient, psi, grad_input=out)

    def write(gradient: DeviceArray, psi: DeviceArray, out: DeviceArray) -> None:
        out[...] = gradient * psi * (1.0 - psi)

    return write


# --- margins: what rows say at given scores, (outputs, n)


class RowLosses(NamedTuple):
    """Losses of rows at given scores, summed, and minus their derivatives by the scores."""

    loss: DeviceArray  # smoothed, where it is
    excess: DeviceArray  # of the smoothed loss over the loss itself
    bias: DeviceArray  # what smoothing adds to the duality gap
    multipliers: DeviceArray  # (outputs, n): phi
    totals: DeviceArray  # (outputs,): the multipliers summed over rows, in double precision


class Bent(NamedTuple):
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

    def look(self, scores: DeviceArray, constant: DeviceArray | None = None) -> RowLosses:
        """Look at rows, whose scores may be overwritten; a constant (outputs,) is added to them."""
        targets, kind = self.labels, cuda_rows.LABELS
        if self.signs is not None:
            targets, kind = self.signs, cuda_rows.BYTES if self._has_gaps(scores) else cuda_rows.SIGNS
        if cuda_rows.takes(scores, constant, self.C, targets if kind == cuda_rows.SIGNS else None, whole=targets):
            return _launch_boxes(scores, constant, self.C, targets, self.margin, kind)
        signs, above = self._signs(scores), _shift(scores, constant)  # few passes over memory, in place where it can be
        if self._price is not None:
            return self._look_at_one_price(above, signs)
        above *= signs
        above -= self.margin
        missed = namespace_of(scores).clip(above, None, 0.0)
        missed *= signs  # minus what was missed, with its sign; 0 where there is none
        weighed = -2.0 * self.C * missed
        return _found(-0.5 * sum_products(weighed, missed), weighed)

    @cached_property
    def _price(self) -> float | None:
        """The price, where there is one for all and PyTorch, which can multiply three numbers in a pass."""
        return float(self.C) if _is_torch(self.C) and tuple(self.C.shape) == (1, 1) else None

    def _look_at_one_price(self, scores: DeviceArray, signs: DeviceArray) -> RowLosses:
        xp, none, price = namespace_of(scores), scores.new_zeros(()), cast("float", self._price)
        missed = xp.addcmul(none - self.margin, scores, signs, out=scores)
        missed.clamp_(max=0.0)
        weighed = xp.addcmul(none, missed, signs, value=-2.0 * price, out=missed)
        return _found(sum_products(weighed, weighed) * (0.25 / price if price else 0.0), weighed)

    def bend(self, change: DeviceArray, multipliers: DeviceArray, constant: DeviceArray | None = None) -> Bent:
        """Return second derivatives where multipliers were found, times a change of scores; it may be overwritten."""
        return _bend(self.C, change, constant, multipliers)

    def _signs(self, scores: DeviceArray) -> DeviceArray:
        xp = namespace_of(scores)
        if self.signs is not None:
            mixes = _is_torch(scores) or _is_cupy(scores)  # bytes with reals; the standard does not
            return self.signs if mixes else xp.astype(self.signs, scores.dtype, copy=False)
        return 2.0 * xp.astype(true_classes(self.labels, scores), scores.dtype) - 1.0

    def _has_gaps(self, scores: DeviceArray) -> bool:
        """Whether signs may be zero where the price is not."""
        return self.signs is not None and self.signs.dtype == namespace_of(scores).int8


@dataclass(frozen=True)
class TubeRows:
    """Squared distances beyond epsilon, ``C max(0, |value - score| - epsilon)^2``, one for each output."""

    C: DeviceArray  # (n,) or (outputs, n); 0 where nothing is asked
    values: DeviceArray  # (outputs, n)
    epsilon: float

    def look(self, scores: DeviceArray, constant: DeviceArray | None = None) -> RowLosses:
        """Look at rows, whose scores may be overwritten; a constant (outputs,) is added to them."""
        if cuda_rows.takes(scores, constant, self.C, self.values):
            return _launch_boxes(scores, constant, self.C, self.values, self.epsilon, cuda_rows.TUBE)
        xp = namespace_of(scores)
        away = self.values - _shift(scores, constant)
        if self.epsilon > 0.0:
            away -= xp.clip(away, -self.epsilon, self.epsilon)
        weighed = 2.0 * self.C * away
        return _found(0.5 * sum_products(weighed, away), weighed)

    def bend(self, change: DeviceArray, multipliers: DeviceArray, constant: DeviceArray | None = None) -> Bent:
        """Return second derivatives where multipliers were found, times a change of scores; it may be overwritten."""
        return _bend(self.C, change, constant, multipliers if self.epsilon > 0.0 else None)


@dataclass(frozen=True)
class ClassRows:
    """Squared multi-class hinges, ``C max_c(0, cost_c + score_c - score_true)^2``, smoothed inside each row.

    `regbayes.framework.newton.SimplexBlock` has the law. Multipliers are ``max(0, wanted - (1 - delta) total) / delta``
    and their sum is ``total``: it is found without sorting, by Newton's method from below, which for a function in
    pieces ends after a few steps.
    """

    C: DeviceArray  # (n,)
    labels: DeviceArray  # (n,), int64
    cost: DeviceArray | None  # (classes, n): of each wrong class; None: 1
    smoothing: float  # delta

    def look(self, scores: DeviceArray, constant: DeviceArray | None = None) -> RowLosses:
        """Look at rows, whose scores may be overwritten; a constant (outputs,) is added to them."""
        xp, delta = namespace_of(scores), self.smoothing
        if cuda_rows.takes(scores, constant, self.C, self.cost, whole=self.labels, n_classes=scores.shape[0]):
            sums = cuda_rows.look_at_classes(scores, constant, self.C, self.labels, self.cost, delta, bent=False)
            return RowLosses(sums[0], sums[1], sums[2], scores, sums[3:])
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

    def bend(self, change: DeviceArray, multipliers: DeviceArray, constant: DeviceArray | None = None) -> Bent:
        """Return second derivatives where multipliers were found, times a change of scores; it may be overwritten."""
        if cuda_rows.takes(change, constant, self.C, multipliers, whole=self.labels, n_classes=change.shape[0]):
            sums = cuda_rows.look_at_classes(
                change, constant, self.C, self.labels, multipliers, self.smoothing, bent=True
            )
            return Bent(change, sums[3:])
        xp, change = namespace_of(change), _shift(change, constant)
        truth, active = true_classes(self.labels, change), multipliers < 0.0
        own, shared, _ = self.slopes(active)
        mine = xp.take_along_axis(change, self.labels[None, :], axis=0)
        among = xp.where(active, change - mine, xp.zeros_like(mine))
        omega = own * among - xp.where(active, shared * xp.sum(among, axis=0), xp.zeros_like(mine))
        found = xp.where(truth, -xp.sum(omega, axis=0), omega)
        return Bent(found, sum_of(found, axis=1))

    def slopes(self, active: DeviceArray) -> tuple[DeviceArray, DeviceArray, DeviceArray]:
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


def sum_products(one: DeviceArray, other: DeviceArray) -> DeviceArray:
    """Return the sum of the products of two arrays' elements, in double precision."""
    xp = namespace_of(one)
    if one.dtype == xp.float64:
        return xp.reshape(one, (-1,)) @ xp.reshape(other, (-1,))
    return sum_of(one * other)


def _launch_boxes(
    scores: DeviceArray, constant: DeviceArray | None, C: DeviceArray, targets: DeviceArray, margin: float, kind: int
) -> RowLosses:
    losses, totals = cuda_rows.look_at_boxes(scores, constant, C, targets, margin, kind)
    loss = sum_of(losses)
    none = 0.0 * loss
    return RowLosses(loss, none, none, scores, totals)


def _bend(C: DeviceArray, change: DeviceArray, constant: DeviceArray | None, multipliers: DeviceArray | None) -> Bent:
    """Return ``2 C`` times a change where there are multipliers; None: everywhere."""
    if cuda_rows.takes(change, constant, C, multipliers):
        kind = cuda_rows.ALL_BENT if multipliers is None else cuda_rows.BENT
        return Bent(change, cuda_rows.look_at_boxes(change, constant, C, multipliers, 0.0, kind)[1])
    found = 2.0 * C * _shift(change, constant)
    if multipliers is not None:
        found *= namespace_of(change).astype(multipliers != 0.0, change.dtype)
    return Bent(found, sum_of(found, axis=1))


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


# --- weighted atoms


class AtomSums(NamedTuple):
    """What atoms add to the partition function, relative to their largest score."""

    top: float
    total: float
    first: Floats  # (m,), about a reference point
    second: Floats | None  # (m, m), the same


def sum_atoms(
    features: DeviceArray, log_weights: DeviceArray, phi: Floats, reference: Floats, second: bool
) -> AtomSums:
    """Sum tilted weights of atoms, and with them features (n, m) less a reference, in double precision."""
    xp = namespace_of(features)
    scores = score_atoms(features, log_weights, phi)
    top = xp.max(scores)
    weights = xp.exp(scores - top)
    total = xp.sum(weights)
    about = to_device(reference, features, xp.float64)
    first, moments, (n, m) = None, None, features.shape
    for rows in pieces(n, max(1, ROOM // m)):
        some, here = xp.astype(features[rows, :], xp.float64, copy=False), weights[rows]
        if second:
            some = some - about
        found = here @ some
        first = found if first is None else first + found
        if second:
            some *= xp.sqrt(here)[:, None]
            found = some.T @ some
            moments = found if moments is None else moments + found
    if not second:
        first = first - total * about
    host = gather(top, total, first, moments) if second else gather(top, total, first)
    return AtomSums(float(host[0]), float(host[1]), host[2], host[3] if second else None)


def score_atoms(features: DeviceArray, log_weights: DeviceArray | None, phi: Floats) -> DeviceArray:
    """Return ``features @ phi + log_weights``, (n,), in double precision whatever the features are stored in."""
    xp = namespace_of(features)
    along = to_device(phi, features, xp.float64)
    if features.dtype == xp.float64:
        scores = features @ along
    else:
        n, m = features.shape
        scores = join(
            [xp.astype(features[rows, :], xp.float64, copy=False) @ along for rows in pieces(n, max(1, ROOM // m))]
        )
    return scores if log_weights is None else scores + log_weights
