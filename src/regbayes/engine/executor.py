"""Serial and threaded execution of a function on blocks of samples.

Blocks do not depend on the executor and sums are taken in block order, so results are bitwise identical for any number
of workers. Threads call NumPy and compiled kernels, which release the interpreter lock. Numba's ``prange`` is not used
because two of its three threading layers fail if the caller uses threads or forks, as joblib and web servers do.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cache, reduce
from operator import add
from typing import TypeVar

from threadpoolctl import ThreadpoolController

BLOCK_ROWS = 2048  # rows per block for any number of workers, so that sums do not depend on it
WIDE_ROWS, MIN_WIDE = 8192, 16  # maximum rows of a block for cheap work per row, and minimum number of such blocks
AHEAD = 2  # blocks per thread submitted ahead, to keep threads busy with few pending results


Block = TypeVar("Block")
Result = TypeVar("Result")
Sum = TypeVar("Sum")  # numbers, arrays and dataclasses of statistics with an ``__add__``


class Executor(ABC):
    """Calls a function for every block.

    Examples
    --------
    >>> from regbayes.engine import make_executor
    >>> make_executor(2).map_reduce(sum, [[1, 2], [3, 4]])
    10
    """

    def map(self, function: Callable[[Block], Result], blocks: Sequence[Block]) -> list[Result]:
        """Return the function's results, in the order of the blocks."""
        with closing(self._each(function, blocks)) as results:
            return list(results)

    def map_reduce(self, function: Callable[[Block], Sum], blocks: Sequence[Block]) -> Sum:
        """Return ``((f(b_0) + f(b_1)) + f(b_2)) + ...`` with few results in memory at once."""
        with closing(self._each(function, blocks)) as results:
            return reduce(add, results)

    @abstractmethod
    def _each(self, function: Callable[[Block], Result], blocks: Sequence[Block]) -> Generator[Result, None, None]:
        """Yield the function's results, in the order of the blocks."""


@dataclass(frozen=True)
class Serial(Executor):
    """Process one block after another in the caller's thread.

    Examples
    --------
    >>> from regbayes.engine import Serial
    >>> Serial().map(sum, [[1, 2], [3, 4]])
    [3, 7]
    """

    def _each(self, function: Callable[[Block], Result], blocks: Sequence[Block]) -> Generator[Result, None, None]:
        yield from map(function, blocks)


@dataclass(frozen=True)
class Threads(Executor):
    """Process several blocks at once in threads of this process.

    The function is called concurrently, so it may write only to data of its block. Threads speed it up as far as it
    releases the interpreter lock, as NumPy and the compiled kernels do. An exception in a block, including an
    interrupt, stops submission and is raised in the caller once the running blocks have finished.

    Parameters
    ----------
    n_threads : int
        Number of threads; 1 uses the caller's thread.

    Examples
    --------
    >>> from regbayes.engine import Threads
    >>> Threads(2).map(sum, [[1, 2], [3, 4]])
    [3, 7]
    """

    n_threads: int

    def __post_init__(self) -> None:
        if self.n_threads < 1:
            raise ValueError(f"n_threads must be at least 1, got {self.n_threads!r}")

    def _each(self, function: Callable[[Block], Result], blocks: Sequence[Block]) -> Generator[Result, None, None]:
        n_threads = min(self.n_threads, len(blocks))
        if n_threads <= 1:
            yield from map(function, blocks)
            return
        pool = ThreadPoolExecutor(n_threads)
        try:
            pending = deque(pool.submit(function, block) for block in blocks[: AHEAD * n_threads])
            for block in blocks[AHEAD * n_threads :]:
                yield pending.popleft().result()
                pending.append(pool.submit(function, block))
            while pending:
                yield pending.popleft().result()
        finally:
            pool.shutdown(cancel_futures=True)


def make_executor(n_threads: int) -> Executor:
    """Return a serial or threaded executor.

    Examples
    --------
    >>> from regbayes.engine import make_executor
    >>> make_executor(1), make_executor(4)
    (Serial(), Threads(n_threads=4))
    """
    return Serial() if n_threads == 1 else Threads(n_threads)


def row_blocks(n_rows: int, wide: bool = False) -> list[slice]:
    """Partition ``range(n_rows)`` into ordered slices that depend on the arguments only.

    Wide slices are for work of less than a microsecond per row. Threads need the interpreter lock between blocks, so
    many threads would wait for it with small blocks.

    Examples
    --------
    >>> from regbayes.engine import row_blocks
    >>> row_blocks(3000)
    [slice(0, 2048, None), slice(2048, 3000, None)]
    """
    width = max(BLOCK_ROWS, min(WIDE_ROWS, -(-n_rows // MIN_WIDE))) if wide else BLOCK_ROWS
    ends = [*range(width, n_rows, width), n_rows]
    return list(map(slice, range(0, n_rows, width), ends))


@contextmanager
def one_blas_thread() -> Iterator[int]:
    """Limit BLAS to one thread, and yield the number of threads that it would use otherwise.

    Block products already run in our own threads. Additional BLAS threads gain little and cost much if other processes
    use the same cores.
    """
    pools = _thread_pools()
    counts = [library.num_threads for library in pools.lib_controllers if library.user_api == "blas"]
    with pools.limit(limits=1, user_api="blas"):
        yield max(counts, default=1)


@cache
def _thread_pools() -> ThreadpoolController:
    return ThreadpoolController()  # cached because inspecting all loaded libraries takes milliseconds
