"""Helpers for arrays of any array API library.

PyTorch, CuPy, array-api-strict and NumPy use standard operations, so that arrays on a GPU stay there, or a library's
own operation if it takes fewer passes over memory. The modules `binary` and `slab` use them for latent features,
`losses` for large margins, `arrays_topics` for topics and `arrays_atoms` for `regularize`. Arrays with one entry per
row stay on the device of the rows. Sums over rows are returned as NumPy arrays in double precision.

Tests compare these functions with NumPy to 1e-12 in double precision and to 1e-5 in single precision. Single precision
is for storage and for arrays by row. Sums over rows use double precision, and products with sums over rows use pieces
of ``PIECE`` rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from regbayes._types import Floats

DeviceArray = Any
"""An array of any library that keeps to the array API, wherever it lies."""

PIECE = 1 << 14  # rows up to which sums may use single precision
WIDE = 1024  # numbers per reshaped row in NumPy comparisons
ROOM = 1 << 25  # maximum numbers in work arrays whose size may be limited
LIMIT = 708.0  # argument at which exp overflows in double precision; single precision overflows to inf harmlessly


# --- library detection


def is_plain(array: Any) -> bool:
    """Return whether compiled loops take an array: NumPy arrays, and objects that are not arrays.

    This is the only place that selects between kernels.
    """
    if isinstance(array, np.ndarray | np.generic | type):
        return True
    return not (hasattr(array, "__array_namespace__") or is_torch(array) or is_cupy(array))


def is_mapped(array: Any) -> bool:
    """Return whether a NumPy array is memory-mapped."""
    while isinstance(array, np.ndarray):
        if isinstance(array, np.memmap):
            return True
        array = array.base
    return False


def is_torch(array: Any) -> bool:
    """Return whether an array is PyTorch's."""
    return type(array).__module__.partition(".")[0] == "torch" and hasattr(array, "detach")


def is_cupy(array: Any) -> bool:
    """Return whether an array or sparse matrix is CuPy's."""
    return type(array).__module__.startswith("cupy")


def lies_elsewhere(array: Any) -> bool:
    """Return whether a PyTorch or CuPy array is on a device that NumPy cannot read."""
    if is_cupy(array):
        return True
    return is_torch(array) and array.device.type != "cpu"


def is_sparse(array: Any) -> bool:
    """Return whether a PyTorch or CuPy matrix is sparse."""
    return type(array).__module__.startswith("cupyx") or "sparse" in str(getattr(array, "layout", ""))


def without_graph(array: Any) -> Any:
    """Detach a PyTorch array from its graph, without a copy; return anything else unchanged."""
    return array.detach() if getattr(array, "requires_grad", False) is True else array


def namespace_of(array: DeviceArray) -> Any:
    """Return the namespace of an array's library."""
    if not is_torch(array) and not is_cupy(array):
        return array.__array_namespace__()
    try:
        from array_api_compat import array_namespace
    except ImportError:
        raise ImportError(
            "arrays of PyTorch and CuPy need the package array-api-compat: pip install array-api-compat"
        ) from None
    return array_namespace(array)


# --- transfers to and from host memory


def to_host(array: Any) -> NDArray[Any]:
    """Return an array or array-like as a NumPy array in host memory."""
    if isinstance(array, np.ndarray):
        return array
    if is_torch(array):
        return np.asarray(array.detach().cpu().numpy())
    if is_cupy(array):
        return np.asarray(array.get())
    try:
        return np.asarray(array)
    except RuntimeError:  # the array is on a device
        return np.from_dlpack(array)


def gather(*arrays: DeviceArray) -> list[Floats]:
    """Copy small arrays to host memory, in double precision and in one transfer."""
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


def to_device(values: Any, like: DeviceArray, dtype: Any = None) -> DeviceArray:
    """Copy host values to the device of another array, with its dtype by default."""
    plain, dtype = np.ascontiguousarray(values), like.dtype if dtype is None else dtype
    plain = plain if plain.flags.writeable else plain.copy()  # PyTorch does not support read-only arrays
    if is_torch(like) and lies_elsewhere(like):
        # Pageable memory is read before the call returns, so a non-blocking copy is safe.
        return like.new_empty(plain.shape, dtype=dtype).copy_(_wrap(plain), non_blocking=True)
    return namespace_of(like).asarray(plain, dtype=dtype, device=like.device)


def _wrap(plain: NDArray[Any]) -> DeviceArray:
    import torch

    return torch.from_numpy(plain)


def integers_to_device(values: Any, like: DeviceArray) -> DeviceArray:
    """Copy host integers to the device of another array."""
    return to_device(values, like, namespace_of(like).int64)


# --- parts of arrays


def join(parts: Sequence[Any], axis: int = 0) -> Any:
    """Concatenate arrays of one library."""
    return parts[0] if len(parts) == 1 else namespace_of(parts[0]).concat(list(parts), axis=axis)


def join_columns(parts: Sequence[Any]) -> Any:
    """Concatenate matrices by columns after checking that they share library and device."""
    kinds = {(type(part).__module__.partition(".")[0], str(getattr(part, "device", ""))) for part in parts}
    if len(kinds) > 1:
        found = " and ".join(f"{library} arrays on {device}" for library, device in sorted(kinds))
        raise TypeError(f"features are {found}: give all of them as arrays of one kind on one device")
    return join(parts, axis=1)


def take_rows(array: DeviceArray, rows: Any) -> DeviceArray:
    """Select rows by host indices."""
    return namespace_of(array).take(array, integers_to_device(rows, array), axis=0)


def take_columns(array: DeviceArray, columns: Sequence[int]) -> DeviceArray:
    """Select columns."""
    return namespace_of(array).take(array, integers_to_device(np.asarray(columns), array), axis=1)


def pieces(n: int, size: int) -> list[slice]:
    """Split a length into slices within its bounds, since the standard does not define slices beyond an array."""
    return [slice(first, min(first + size, n)) for first in range(0, max(n, 1), size)]


# --- sums over rows


def sum_of(array: DeviceArray, axis: int | None = None) -> DeviceArray:
    """Return sums in double precision."""
    xp = namespace_of(array)
    return xp.sum(array, axis=axis, dtype=xp.float64)


def sum_squares(array: DeviceArray, about: Floats, weights: Floats | None) -> Floats:
    """Return the sum of squares of each column minus a number, weighted by host weights, (k,)."""
    xp, found, (n, k) = namespace_of(array), [], array.shape
    for rows in pieces(n, max(1, ROOM // k)):
        away = xp.astype(array[rows, :], xp.float64, copy=False) - to_device(about, array, xp.float64)
        away *= away
        some = to_device(np.ones(away.shape[0]) if weights is None else weights[rows], array, xp.float64)
        found.append(some @ away)
    return np.add.reduce(gather(*found))


def sum_products(one: DeviceArray, other: DeviceArray) -> DeviceArray:
    """Return the sum of the elementwise product of two arrays, in double precision."""
    xp = namespace_of(one)
    if one.dtype == xp.float64:
        return xp.reshape(one, (-1,)) @ xp.reshape(other, (-1,))
    return sum_of(one * other)


def multiply_rows(left: DeviceArray, right: DeviceArray) -> DeviceArray:
    """Return ``left @ right'`` of (a, n) and (b, n), a sum over rows, in double precision.

    Passing the inputs (D, n) first was faster on an H200.
    """
    xp = namespace_of(left)
    if left.dtype == xp.float64:
        return left @ right.T
    n_pieces, a, b = left.shape[1] // PIECE, left.shape[0], right.shape[0]
    end = n_pieces * PIECE
    found = xp.astype(left[:, end:] @ right[:, end:].T, xp.float64)
    for some in pieces(n_pieces, max(1, ROOM // (a * b))) if n_pieces else []:  # batched in one operation
        rows = slice(some.start * PIECE, some.stop * PIECE)
        mine = xp.permute_dims(xp.reshape(left[:, rows], (a, -1, PIECE)), (1, 0, 2))
        other = xp.permute_dims(xp.reshape(right[:, rows], (b, -1, PIECE)), (1, 2, 0))
        found += sum_of(mine @ other, axis=0)
    return found


def count_not_finite(array: DeviceArray) -> int:
    """Count NaN and infinite values by pieces, to limit the memory for flags and integers."""
    xp, n_bad = namespace_of(array), 0
    if not xp.isdtype(array.dtype, "real floating"):
        return 0
    width = max(1, int(np.prod(array.shape[1:])))
    for rows in pieces(array.shape[0], max(1, ROOM // width)):
        n_bad += int(xp.sum(xp.astype(~xp.isfinite(array[rows, ...]), xp.int64)))
    return n_bad


def find_ranges(array: Any) -> tuple[Floats, Floats]:
    """Return the minimum and maximum of each column, (k,) each, in host memory."""
    xp, (n, k) = namespace_of(array), array.shape
    wide = max(1, WIDE // max(k, 1))  # rows compared together, since NumPy is slow on short rows
    if isinstance(array, np.ndarray) and array.flags.c_contiguous and n > wide > 1:
        even = n // wide * wide
        blocks, rest = array[:even].reshape(-1, wide * k), array[even:]
        low, high = (np.concatenate([end(axis=0).reshape(-1, k), rest]) for end in (blocks.min, blocks.max))
        return low.min(axis=0), high.max(axis=0)
    lowest, highest = gather(xp.min(array, axis=0), xp.max(array, axis=0))
    return lowest, highest


# --- single-pass operations, if the library has them


def find_sigmoid(xp: Any) -> Callable[..., DeviceArray]:
    """Return the sigmoid function, the library's own if available, such as PyTorch's single-pass one."""
    if hasattr(xp, "sigmoid"):
        return cast("Callable[..., DeviceArray]", xp.sigmoid)
    return lambda x: 1.0 / (1.0 + xp.exp(-xp.clip(x, -LIMIT, LIMIT)))


def find_entropy(xp: Any) -> Callable[[DeviceArray], DeviceArray]:
    """Return the function -x log(x) - (1 - x) log(1 - x), 0 at 0 and 1, in a single pass for PyTorch.

    PyTorch's function ends the process at NaN on a device, so NaN counts as 0. Other sums of the samples are NaN then.
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


def add_product(total: DeviceArray, left: DeviceArray, right: DeviceArray) -> None:
    """Add a matrix product to an array in place, in a single pass if the library supports it."""
    if is_torch(total):
        total.addmm_(left, right)
    else:
        total += left @ right
