"""Rows that do not fit into the memory of a worker lie in a file of its own, which is mapped.

A task on blocks has all of them in memory, so Dask's own way, to spill what was not used for a while, does not help.
Files are in the worker's local directory; they are nameless from the moment they are mapped, so that nothing is left
behind by a worker that is killed. Pages are given back after every block: a worker's limit counts them.
"""

from __future__ import annotations

import mmap
import tempfile
from threading import Lock
from typing import Any
from weakref import WeakSet, finalize

import numpy as np
from distributed import get_worker
from numpy.typing import NDArray
from scipy.sparse import csr_array, issparse

SHARE = 0.3  # of a worker's memory that rows may take; features of rows and work arrays need some too

_held = 0  # bytes of rows in the memory of this process
_lock = Lock()
_mapped: WeakSet[mmap.mmap] = WeakSet()


def settle(X: Any) -> Any:
    """Return rows where they can stay: in memory as long as there is room, and in a file beyond."""
    try:
        worker = get_worker()
    except ValueError:  # nobody's task
        return X
    limit, folder = worker.memory_manager.memory_limit, worker.local_directory
    if issparse(X):
        return csr_array((_settle(X.data, limit, folder), _settle(X.indices, limit, folder), X.indptr), shape=X.shape)
    return _settle(X, limit, folder)


def _settle(array: NDArray[Any], limit: int | None, folder: str) -> NDArray[Any]:
    global _held  # noqa: PLW0603
    if limit is None or array.size == 0:
        return array
    with _lock:
        fits = _held + array.nbytes <= SHARE * limit
        _held += array.nbytes if fits else 0
    if fits:
        finalize(array, _release, array.nbytes)
        return array
    with tempfile.TemporaryFile(dir=folder, prefix="regbayes-") as file:
        np.ascontiguousarray(array).tofile(file)
        file.flush()
        mapped = np.memmap(file, dtype=array.dtype, mode="r", shape=array.shape)
    _mapped.add(mapped._mmap)  # type: ignore[attr-defined]
    return mapped


def _release(n_bytes: int) -> None:
    global _held  # noqa: PLW0603
    with _lock:
        _held -= n_bytes


def give_pages_back() -> None:
    """Take the pages of mapped rows out of this process; those that are needed again come back from the file."""
    for pages in list(_mapped):
        if hasattr(mmap, "MADV_DONTNEED"):
            pages.madvise(mmap.MADV_DONTNEED)
