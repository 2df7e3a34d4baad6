"""Rows that do not fit into the memory of a worker lie in a file of its own, which is mapped.

A task on blocks has all of them in memory, so Dask's own way, to spill what was not used for a while, does not help: a
block that comes back is an array in memory and no longer a mapped one. So a worker that has rows in files spills
nothing more; features of its rows go to files too where there is no room. Files are in the worker's local directory;
they are nameless from the moment they are mapped, so that nothing is left behind by a worker that is killed. Pages are
given back after every block: a worker's limit counts them.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from weakref import WeakSet, finalize

import numpy as np
from dask.utils import format_bytes
from distributed import get_worker
from numpy.typing import NDArray
from scipy.sparse import csr_array, issparse

from regbayes.joint.model import Inferred
from regbayes.kernels.arrays import is_mapped, is_plain

SHARE = 0.4  # of a worker's memory that may be taken before rows go to a file: features and work arrays need some too
FULL = 0.7  # of it, from where on no block could be read: at 0.8 Dask gives a worker nothing more to do
SMALL_BYTES = 1 << 16  # arrays that are not worth a file
ALIGNMENT = 64  # of arrays in a file
MOST_FILES = 1 << 16  # that a worker may have open, where the system lets it

_mapped: WeakSet[mmap.mmap] = WeakSet()


def settle(X: Any) -> Any:
    """Return rows where they can stay: in memory as long as there is room, and in a file beyond."""
    worker = _find_worker()
    is_sparse = issparse(X)
    if not (is_sparse or isinstance(X, np.ndarray)):  # a device has its own memory
        return X
    if worker is None or _taken(worker) <= SHARE:
        return X
    if is_sparse:
        return csr_array((*_map([X.data, X.indices], worker), X.indptr), shape=X.shape)
    return _map([X], worker)[0]


def settle_inferred(found: list[Inferred[Any]]) -> list[Inferred[Any]]:
    """Return what inference found for the pieces of a block, its arrays where they can stay."""
    worker = _find_worker()
    if worker is None or _taken(worker) <= SHARE or not is_plain(found[0].features):
        return found
    cached = [part.cache for part in found if isinstance(part.cache, np.ndarray)]
    mapped = iter(_map([*(part.features for part in found), *cached], worker))
    seen = [replace(part, features=next(mapped)) for part in found]
    return [replace(part, cache=next(mapped)) if isinstance(part.cache, np.ndarray) else part for part in seen]


def settle_fields(*owned: Any) -> None:
    """Put the larger arrays of objects, which must be the caller's own, where they can stay."""
    worker = _find_worker()
    if worker is None or _taken(worker) <= SHARE:
        return
    places = [
        (thing, name, values)
        for thing in owned
        for name, values in vars(thing).items()
        if isinstance(values, np.ndarray) and values.nbytes >= SMALL_BYTES and not is_mapped(values)
    ]
    for (thing, name, _), mapped in zip(places, _map([values for *_, values in places], worker), strict=True):
        object.__setattr__(thing, name, mapped)


def settle_again(block: Any) -> None:
    """Put the rows of a block that came from another worker, or from where Dask spilled it, where they can stay.

    Mapped arrays travel as what they hold, and arrive as arrays in memory.
    """
    pieces = getattr(block, "pieces", None)
    if pieces is None:
        settle_fields(*([block] if hasattr(block, "__dict__") else []))
        return
    head = block.head
    parts = [head, *(vars(head).get(name) for name in ("targets", "form") if head is not None)]
    settle_fields(*(part for part in (*pieces, *parts) if hasattr(part, "__dict__")))
    if isinstance(pieces[0], np.ndarray) and not is_mapped(pieces[0]):
        worker = _find_worker()
        if worker is not None and _taken(worker) > SHARE:
            block.pieces = _map(list(pieces), worker)


def check_room() -> None:
    """Refuse to read a block on a worker that has no room for one: Dask would let it wait for ever."""
    worker = _find_worker()
    if worker is not None and _taken(worker) > FULL:
        limit, taken = worker.memory_manager.memory_limit, worker.monitor.get_process_memory()
        raise MemoryError(
            f"a worker has a limit of {format_bytes(limit)}, and {format_bytes(taken)} of it are taken where a block "
            "shall be read: give workers more memory (memory_limit=), or X smaller blocks (X.rechunk)"
        )


def give_pages_back() -> None:
    """Take the pages of mapped rows out of this process; those that are needed again come back from the file."""
    for pages in list(_mapped):
        if hasattr(mmap, "MADV_DONTNEED"):
            pages.madvise(mmap.MADV_DONTNEED)


def trim_memory() -> None:
    """Give free memory back to the system, that between what is in use too."""
    trim = find_in_libc("malloc_trim")
    if trim is not None:
        trim(0)


def find_in_libc(name: str) -> Any:
    """Return a function of glibc; None elsewhere."""
    return getattr(ctypes.CDLL(None), name, None) if sys.platform.startswith("linux") else None


def _find_worker() -> Any:
    """Return the worker that does this task, if it has a limit of memory."""
    try:
        worker = get_worker()
    except ValueError:  # nobody's task
        return None
    return worker if worker.memory_manager.memory_limit else None


def _taken(worker: Any) -> float:
    """Return the share of a worker's memory that is taken, without what the allocator keeps for later."""
    limit = worker.memory_manager.memory_limit
    if worker.monitor.get_process_memory() > SHARE * limit:
        trim_memory()
    return float(worker.monitor.get_process_memory() / limit)


def _map(arrays: Sequence[NDArray[Any]], worker: Any) -> list[NDArray[Any]]:
    """Write arrays to one file without a name, and map it: a process may have so many files open, and no more."""
    if not any(array.size for array in arrays):
        return list(arrays)
    starts = np.cumsum([0, *(-(-array.nbytes // ALIGNMENT) * ALIGNMENT for array in arrays)]).tolist()
    with tempfile.TemporaryFile(dir=worker.local_directory, prefix="regbayes-") as file:
        for array, start in zip(arrays, starts, strict=False):
            file.seek(start)
            np.ascontiguousarray(array).tofile(file)
        file.truncate(starts[-1])
        file.flush()
        mapped = np.memmap(file, dtype=np.uint8, mode="r", shape=(starts[-1],))
    pages: mmap.mmap = mapped._mmap  # type: ignore[attr-defined]
    _stop_spilling(worker)
    _mapped.add(pages)
    finalize(pages, _spill_again, worker)
    return [
        mapped[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
        for array, start in zip(arrays, starts, strict=False)
    ]


def _stop_spilling(worker: Any) -> None:
    manager = worker.memory_manager
    if not hasattr(manager, "regbayes_spill_fraction"):
        manager.regbayes_spill_fraction = manager.memory_spill_fraction
        manager.memory_spill_fraction = False
        if sys.platform != "win32":  # a mapped file stays open
            import resource

            now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
            wanted = MOST_FILES if most == resource.RLIM_INFINITY else min(MOST_FILES, most)
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(now, wanted), most))


def _spill_again(worker: Any) -> None:
    """Let a worker spill as before, once it has no more rows in files."""
    manager = worker.memory_manager
    if not list(_mapped) and hasattr(manager, "regbayes_spill_fraction"):
        manager.memory_spill_fraction = manager.regbayes_spill_fraction
        del manager.regbayes_spill_fraction
