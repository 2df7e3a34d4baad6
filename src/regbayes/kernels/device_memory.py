"""Free memory of a device, and error messages when it is insufficient."""

from __future__ import annotations

import gc
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from regbayes.kernels.arrays import DeviceArray, is_plain


@contextmanager
def within_memory(X: Any, describe: Callable[[], str]) -> Iterator[None]:
    """Raise an informative error if work on an array runs out of device memory.

    The original error would keep the arrays of all calls in its traceback, and thus the memory, alive. It is therefore
    released first.
    """
    try:
        yield
    except Exception as error:
        if is_plain(X) or not is_out_of_memory(error):
            raise
        traceback.clear_frames(error.__traceback__)
        gc.collect()  # problems contain reference cycles
        raise MemoryError(describe()) from error


def is_out_of_memory(error: Exception) -> bool:
    """Return whether an error of PyTorch, CuPy or NVIDIA's libraries means that a device is out of memory."""
    said = str(error)
    return "OutOfMemory" in type(error).__name__ or "out of memory" in said or "ALLOC_FAILED" in said


def free_bytes(X: DeviceArray) -> int | None:
    """Return the free memory of an array's device, including memory cached by its library."""
    library = type(X).__module__.partition(".")[0]
    if library == "torch" and "cuda" in str(X.device):
        import torch

        kept = torch.cuda.memory_reserved(X.device) - torch.cuda.memory_allocated(X.device)
        return int(torch.cuda.mem_get_info(X.device)[0] + kept)
    if library == "cupy":
        import cupy

        return int(cupy.cuda.runtime.memGetInfo()[0] + cupy.get_default_memory_pool().free_bytes())
    return None
