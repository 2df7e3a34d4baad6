"""The memory of a device: how much of it is free, and what is said where it does not do."""

from __future__ import annotations

import gc
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from regbayes.kernels.arrays import DeviceArray, is_plain


@contextmanager
def within_memory(X: Any, describe: Callable[[], str]) -> Iterator[None]:
    """Say what fits where the memory of a device does not hold what is made of an array there.

    The error that is the cause would keep the arrays of all the calls that it went through, and with them the memory,
    for as long as someone looks at it: they are let go first.
    """
    try:
        yield
    except Exception as error:
        if is_plain(X) or not is_out_of_memory(error):
            raise
        traceback.clear_frames(error.__traceback__)
        gc.collect()  # problems refer to themselves
        raise MemoryError(describe()) from error


def is_out_of_memory(error: Exception) -> bool:
    """Whether a device is out of memory: PyTorch and CuPy have a name for it, and NVIDIA's libraries have their own."""
    said = str(error)
    return "OutOfMemory" in type(error).__name__ or "out of memory" in said or "ALLOC_FAILED" in said


def free_bytes(X: DeviceArray) -> int | None:
    """Return the free memory of the device that an array lies on, that which its library holds back among it."""
    library = type(X).__module__.partition(".")[0]
    if library == "torch" and "cuda" in str(X.device):
        import torch

        kept = torch.cuda.memory_reserved(X.device) - torch.cuda.memory_allocated(X.device)
        return int(torch.cuda.mem_get_info(X.device)[0] + kept)
    if library == "cupy":
        import cupy

        return int(cupy.cuda.runtime.memGetInfo()[0] + cupy.get_default_memory_pool().free_bytes())
    return None
