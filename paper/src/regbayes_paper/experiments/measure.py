"""Time and memory of a piece of work, by the means of the operating system."""

from __future__ import annotations

import ctypes
import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

STATUS = Path("/proc/self/status")
CLEAR = Path("/proc/self/clear_refs")
RESET_PEAK = "5"  # what the kernel wants to hear: proc(5)


@dataclass
class Usage:
    """Filled in when the work is done."""

    seconds: float = 0.0
    memory_mb: float | None = None


@contextmanager
def measured(*, memory: bool = False) -> Iterator[Usage]:
    """Measure what happens inside: wall-clock seconds and, if asked, the peak resident memory above the start.

    Memory is that of this process. It is known on Linux, where the kernel keeps the peak and can be told to begin anew;
    elsewhere it stays None.
    """
    usage = Usage()
    before = _begin_peak() if memory else None
    started = time.perf_counter()
    try:
        yield usage
    finally:
        usage.seconds = time.perf_counter() - started
        peak = _status("VmHWM") if before is not None else None
        if peak is not None and before is not None:
            usage.memory_mb = max(0.0, peak - before)


def _begin_peak() -> float | None:
    """Let the peak begin at what is resident now, and return that in megabytes; None where that is not possible."""
    gc.collect()
    _return_free_memory()
    try:
        CLEAR.write_text(RESET_PEAK)
    except OSError:
        return None
    return _status("VmRSS")


def _return_free_memory() -> None:
    """Give freed memory back to the system, if the C library can: else what comes next would reuse it unseen."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (OSError, AttributeError, TypeError):  # not glibc
        return


def _status(field: str) -> float | None:
    try:
        lines = STATUS.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith(f"{field}:"):
            return float(line.split()[1]) / 1024
    return None
