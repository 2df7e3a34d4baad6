"""Typed decorators that compile kernels with Numba.

Kernels are cached on disk, release the interpreter lock (callers process blocks of rows in threads) and divide like
NumPy, because a zero check before every division prevents vectorization. Full ``fastmath`` would assume that NaN and
infinity do not occur. Both do, so only the harmless flags are set.

Sums are accumulated in a variable, never in an array element. If arrays might overlap, the compiler adds a second loop
that sums in order and uses it for arrays that are close in memory. Rounding would then depend on the allocator, and
thus on threads.

The disk cache is invalidated when the file of a kernel changes, but not when a helper in another file changes. Delete
``__pycache__`` after editing this module or ``_exponential``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numpy as np
from numpy.typing import NDArray

Function = TypeVar("Function", bound=Callable[..., Any])
Arrays = TypeVar("Arrays", bound=tuple[Any, ...])

_OPTIONS: dict[str, Any] = {"cache": True, "nogil": True, "error_model": "numpy"}
_INLINE: dict[str, Any] = {**_OPTIONS, "forceinline": True}


def compiled(function: Function) -> Function:
    """Compile a kernel whose sums the compiler may reorder and vectorize.

    A kernel returns numbers and plain tuples of them. Creating a named tuple makes Numba run Python code, which fails
    if Ctrl-C arrives during the kernel. Numba does not check this, and the process crashes.
    """
    return cast(Function, numba.njit(fastmath={"contract", "reassoc", "nsz"}, **_OPTIONS)(function))


def compiled_inline(function: Function) -> Function:
    """Compile a part of a kernel that is inlined in its callers.

    Every function that a kernel calls is compiled in this way. Otherwise it would exist separately and inside the
    kernel, with different summation orders, and the cache would determine which one a process calls.
    """
    return cast(Function, numba.njit(fastmath={"contract", "reassoc", "nsz"}, **_INLINE)(function))


def compiled_as_written(function: Function) -> Function:
    """Compile without reordering operations, for code that depends on rounding; multiply and add may fuse."""
    return cast(Function, numba.njit(fastmath={"contract"}, **_INLINE)(function))


def read_only(array: NDArray[Any]) -> NDArray[Any]:
    """Return a read-only view.

    Kernels are compiled per type, and the type of an array includes whether it is writable. Inputs may be read-only if
    they come from a file or another machine, so passing all as read-only requires one compilation only.
    """
    view = np.asarray(array).view()
    view.flags.writeable = False
    return view


def all_read_only(arrays: Arrays) -> Arrays:
    """Return read-only views of a tuple of arrays."""
    return cast(Arrays, tuple(map(read_only, arrays)))
