"""Rows that do not fit into the memory of a worker lie in a file of its own, which is mapped.

A task on blocks has all of them in memory, so Dask's own way, to spill what was not used for a while, does not help.
Files are in the worker's local directory; they are nameless from the moment they are mapped, so that nothing is left
behind by a worker that is killed. Pages are given back after every block: a worker's limit counts them.
"""

from __future__ import annotations

import mmap
import tempfile
from typing import Any
from weakref import WeakSet

import numpy as np
from distributed import get_worker
from numpy.typing import NDArray
from scipy.sparse import csr_array, issparse

SHARE = 0.4  # of a worker's memory that may be taken before rows go to a file: features and work arrays need some too

_mapped: WeakSet[mmap.mmap] = WeakSet()


def settle(X: Any) -> Any:
    """Return rows where they can stay: in memory as long as there is room, and in a file beyond."""
    try:
        worker = get_worker()
    except ValueError:  # nobody's task
        return X
    limit = worker.memory_manager.memory_limit
    if limit is None or worker.monitor.get_process_memory() <= SHARE * limit:
        return X
    if issparse(X):
        parts = (_map(part, worker.local_directory) for part in (X.data, X.indices))
        return csr_array((*parts, X.indptr), shape=X.shape)
    return _map(X, worker.local_directory)


def _map(array: NDArray[Any], folder: str) -> NDArray[Any]:
    """Write an array to a file without a name, and map it."""
    if array.size == 0:
        return array
    with tempfile.TemporaryFile(dir=folder, prefix="regbayes-") as file:
        np.ascontiguousarray(array).tofile(file)
        file.flush()
        mapped = np.memmap(file, dtype=array.dtype, mode="r", shape=array.shape)
    _mapped.add(mapped._mmap)  # type: ignore[attr-defined]
    return mapped


def give_pages_back() -> None:
    """Take the pages of mapped rows out of this process; those that are needed again come back from the file."""
    for pages in list(_mapped):
        if hasattr(mmap, "MADV_DONTNEED"):
            pages.madvise(mmap.MADV_DONTNEED)
