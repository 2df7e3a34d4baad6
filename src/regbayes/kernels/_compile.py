"""How kernels are compiled: typed decorators, so that the rest of the package never sees Numba's options.

Numba is asked to cache on disk, to release the interpreter lock (callers run fixed chunks of rows in threads) and to
divide as NumPy does, because a check for zero before every division stops a loop from being vectorised. Full
``fastmath`` would assume that NaN and infinity do not occur; both do, so only the harmless flags are set.

Sums are accumulated in a variable, never in an element of an array: where arrays might overlap, the compiler keeps a
second loop that sums in order, and takes it when they merely lie close together. The bits would depend on the
allocator, and so on threads.

The cache on disk is renewed when the file of a kernel changes, not when a helper in another file does: after editing
this module or ``_exponential``, delete ``__pycache__``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numpy as np
from numpy.typing import NDArray

Function = TypeVar("Function", bound=Callable[..., Any])

_OPTIONS: dict[str, Any] = {"cache": True, "nogil": True, "error_model": "numpy"}
_INLINE: dict[str, Any] = {**_OPTIONS, "forceinline": True}


def compiled(function: Function) -> Function:
    """Compile a kernel whose sums may be reordered (and so vectorised) by the compiler.

    A kernel returns numbers and plain tuples of them. To make a named one Numba would run Python code, which a Ctrl-C
    that came during the kernel interrupts; Numba does not look whether it succeeded, and the process dies.
    """
    return cast(Function, numba.njit(fastmath={"contract", "reassoc", "nsz"}, **_OPTIONS)(function))


def compiled_inline(function: Function) -> Function:
    """Compile a part of a kernel, to be copied into its callers: passing arrays costs more than the work.

    Every function that a kernel calls is compiled so. One that is not exists twice, by itself and inside the kernel,
    with sums in different orders: a process that compiles may call the one, a process that finds the cache the other.
    """
    return cast(Function, numba.njit(fastmath={"contract", "reassoc", "nsz"}, **_INLINE)(function))


def compiled_as_written(function: Function) -> Function:
    """Compile a part whose rounding is part of its meaning: multiply and add may fuse, nothing is reordered."""
    return cast(Function, numba.njit(fastmath={"contract"}, **_INLINE)(function))


def read_only(array: NDArray[Any]) -> NDArray[Any]:
    """Return a view that may not be written to.

    Kernels are compiled per type, and the type of an array includes whether it may be written to. What is only read may
    come from a file or another machine; handed over like this, one compilation serves all.
    """
    view = np.asarray(array).view()
    view.flags.writeable = False
    return view
