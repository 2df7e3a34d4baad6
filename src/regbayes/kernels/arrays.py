"""Arrays of any library that keeps to the array API: which library, the way to the host and back, sums and products.

PyTorch, CuPy, array-api-strict and NumPy: operations of the standard alone, so that arrays on a GPU are
worked on there, or one operation of the library's own where that takes fewer passes over memory. Row work is written
in these terms: `binary.py` and `slab.py` for latent features, `losses.py` for large margins,
`arrays_topics.py` for topics, `arrays_atoms.py` for `regularize`. What belongs to rows stays where the rows are; sums
over rows come to the host as NumPy arrays in double precision.

Tests compare these functions with the NumPy implementations, to 1e-12 in double precision and to 1e-5 in single. Single
precision is for storage and for what belongs to a row: sums over rows are taken in double precision, products with sums
over rows in pieces of ``PIECE``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from regbayes._types import Floats

DeviceArray = Any
"""An array of any library that keeps to the array API, wherever it lies."""

PIECE = 1 << 14  # rows whose sums single precision may hold
WIDE = 1024  # numbers that NumPy compares side by side
ROOM = 1 << 25  # numbers in work arrays that need not be as long as all rows and outputs together
LIMIT = 708.0  # where the exponential function leaves the numbers; single precision has infinities there, and no harm


# --- which library


def is_plain(array: Any) -> bool:
    """Whether an array is NumPy's own, or no array at all: then the compiled loops take it.

    This is the one place where it is decided which kernels run.
    """
    if isinstance(array, np.ndarray | np.generic | type):
        return True
    return not (hasattr(array, "__array_namespace__") or is_torch(array) or is_cupy(array))


def is_mapped(array: Any) -> bool:
    """Whether an array of NumPy lies in a file."""
    while isinstance(array, np.ndarray):
        if isinstance(array, np.memmap):
            return True
        array = array.base
    return False


def is_torch(array: Any) -> bool:
    """Whether an array is PyTorch's."""
    return type(array).__module__.partition(".")[0] == "torch" and hasattr(array, "detach")


def is_cupy(array: Any) -> bool:
    """Whether an array, or a sparse matrix, is CuPy's."""
    return type(array).__module__.startswith("cupy")


def lies_elsewhere(array: Any) -> bool:
    """Whether an array of PyTorch or CuPy lies where NumPy cannot read it."""
    if is_cupy(array):
        return True
    return is_torch(array) and array.device.type != "cpu"


def is_sparse(array: Any) -> bool:
    """Whether a matrix of PyTorch or CuPy is sparse."""
    return type(array).__module__.startswith("cupyx") or "sparse" in str(getattr(array, "layout", ""))


def without_graph(array: Any) -> Any:
    """Return an array of PyTorch that remembers no derivatives, with the same memory; anything else as it is."""
    return array.detach() if getattr(array, "requires_grad", False) is True else array


def namespace_of(array: DeviceArray) -> Any:
    """Return the functions of the library that an array belongs to."""
    if not is_torch(array) and not is_cupy(array):
        return array.__array_namespace__()
    try:
        from array_api_compat import array_namespace
    except ImportError:
        raise ImportError(
            "arrays of PyTorch and CuPy need the package array-api-compat: pip install 'regbayes[gpu]'"
        ) from None
    return array_namespace(array)


# --- the way to the host and back


def to_host(array: Any) -> NDArray[Any]:
    """Return an array, or what NumPy takes for one, as NumPy's."""
    if isinstance(array, np.ndarray):
        return array
    if is_torch(array):
        return np.asarray(array.detach().cpu().numpy())
    if is_cupy(array):
        return np.asarray(array.get())
    try:
        return np.asarray(array)
    except RuntimeError:  # it lies on a device of its library
        return np.from_dlpack(array)


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


def to_device(values: Any, like: DeviceArray, dtype: Any = None) -> DeviceArray:
    """Return numbers of the host as an array where another lies, of its type unless one is given."""
    plain, dtype = np.ascontiguousarray(values), like.dtype if dtype is None else dtype
    plain = plain if plain.flags.writeable else plain.copy()  # PyTorch would have to trust us
    if is_torch(like) and lies_elsewhere(like):
        # What is in ordinary memory is read before the call returns: nothing but the device's own work is waited for.
        return like.new_empty(plain.shape, dtype=dtype).copy_(_wrap(plain), non_blocking=True)
    return namespace_of(like).asarray(plain, dtype=dtype, device=like.device)


def _wrap(plain: NDArray[Any]) -> DeviceArray:
    import torch

    return torch.from_numpy(plain)


def integers_to_device(values: Any, like: DeviceArray) -> DeviceArray:
    """Return whole numbers of the host as an array where another lies."""
    return to_device(values, like, namespace_of(like).int64)


# --- parts of arrays


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


def pieces(n: int, size: int) -> list[slice]:
    """Return the slices of a length in pieces; the standard says nothing of slices that end beyond an array."""
    return [slice(first, min(first + size, n)) for first in range(0, max(n, 1), size)]


# --- sums over rows


def sum_of(array: DeviceArray, axis: int | None = None) -> DeviceArray:
    """Return sums in double precision."""
    xp = namespace_of(array)
    return xp.sum(array, axis=axis, dtype=xp.float64)


def sum_squares(array: DeviceArray, about: Floats, weights: Floats | None) -> Floats:
    """Return the sum of squares of each column less a number, rows as often as weights on the host say, (k,)."""
    xp, found, (n, k) = namespace_of(array), [], array.shape
    for rows in pieces(n, max(1, ROOM // k)):
        away = xp.astype(array[rows, :], xp.float64, copy=False) - to_device(about, array, xp.float64)
        away *= away
        some = to_device(np.ones(away.shape[0]) if weights is None else weights[rows], array, xp.float64)
        found.append(some @ away)
    return np.add.reduce(gather(*found))


def sum_products(one: DeviceArray, other: DeviceArray) -> DeviceArray:
    """Return the sum of the products of two arrays' elements, in double precision."""
    xp = namespace_of(one)
    if one.dtype == xp.float64:
        return xp.reshape(one, (-1,)) @ xp.reshape(other, (-1,))
    return sum_of(one * other)


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


def count_not_finite(array: DeviceArray) -> int:
    """Count the NaN and infinite values, by pieces: flags and integers of all at once would be as much memory again."""
    xp, n_bad = namespace_of(array), 0
    if not xp.isdtype(array.dtype, "real floating"):
        return 0
    width = max(1, int(np.prod(array.shape[1:])))
    for rows in pieces(array.shape[0], max(1, ROOM // width)):
        n_bad += int(xp.sum(xp.astype(~xp.isfinite(array[rows, ...]), xp.int64)))
    return n_bad


def find_ranges(array: Any) -> tuple[Floats, Floats]:
    """Return the smallest and the largest number of each column, (k,) both, on the host."""
    xp, (n, k) = namespace_of(array), array.shape
    wide = max(1, WIDE // max(k, 1))  # rows side by side: NumPy is slow to compare short rows
    if isinstance(array, np.ndarray) and array.flags.c_contiguous and n > wide > 1:
        even = n // wide * wide
        blocks, rest = array[:even].reshape(-1, wide * k), array[even:]
        low, high = (np.concatenate([end(axis=0).reshape(-1, k), rest]) for end in (blocks.min, blocks.max))
        return low.min(axis=0), high.max(axis=0)
    lowest, highest = gather(xp.min(array, axis=0), xp.max(array, axis=0))
    return lowest, highest


# --- one pass over memory, where the library can


def find_sigmoid(xp: Any) -> Callable[..., DeviceArray]:
    """Return the function 1 / (1 + exp(-x)): the library's own where it has one, as PyTorch, which takes one pass."""
    if hasattr(xp, "sigmoid"):
        return cast("Callable[..., DeviceArray]", xp.sigmoid)
    return lambda x: 1.0 / (1.0 + xp.exp(-xp.clip(x, -LIMIT, LIMIT)))


def find_entropy(xp: Any) -> Callable[[DeviceArray], DeviceArray]:
    """Return the function -x log(x) - (1 - x) log(1 - x), 0 at 0 and 1; PyTorch has one that takes one pass.

    PyTorch's ends the process at NaN on a device, so NaN counts as 0 there. Other sums of the samples are NaN then.
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
    """Add a product of matrices to an array in place: in one pass over it where the library can."""
    if is_torch(total):
        total.addmm_(left, right)
    else:
        total += left @ right
