"""Executors call a function for every block of samples: in the caller's thread, or in several threads.

Blocks do not depend on the executor and sums are taken in their order, so a result has the same bits for any number
of workers. Threads call NumPy and compiled kernels, which release the interpreter lock. Numba's own ``prange`` is not
used: two of its three threading layers fail when the caller itself uses threads or forks, as joblib and web servers do.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cache, reduce
from operator import add
from typing import Any, Protocol, Self, TypeVar

from threadpoolctl import ThreadpoolController

BLOCK_ROWS = 2048  # whatever the number of workers, so that sums over blocks do not depend on it
WIDE_ROWS, MIN_WIDE = 8192, 16  # rows of a block at most where little is done with each; blocks before they are wider
AHEAD = 2  # blocks per thread that are handed out at once: no thread waits for the next, and few results wait
NO_BLOCKS = "map_reduce needs at least one block."


class Addable(Protocol):
    """What can be summed: numbers, arrays, and dataclasses of statistics with an ``__add__``."""

    def __add__(self, other: Self, /) -> Any: ...


Block = TypeVar("Block")
Result = TypeVar("Result")
Sum = TypeVar("Sum", bound=Addable)


class Executor(Protocol):
    """Calls a function for every block."""

    def map(self, function: Callable[[Block], Result], blocks: Sequence[Block]) -> list[Result]:
        """Return the function's results, in the order of the blocks."""

    def map_reduce(self, function: Callable[[Block], Sum], blocks: Sequence[Block]) -> Sum:
        """Return ``((f(b_0) + f(b_1)) + f(b_2)) + ...``; few of the results are held at once."""


@dataclass(frozen=True)
class Serial:
    """One block after another, in the caller's thread."""

    def map(self, function: Callable[[Block], Result], blocks: Sequence[Block]) -> list[Result]:
        """Return the function's results, in the order of the blocks."""
        return list(map(function, blocks))

    def map_reduce(self, function: Callable[[Block], Sum], blocks: Sequence[Block]) -> Sum:
        """Return the sum of the function's results, added in the order of the blocks."""
        if not len(blocks):
            raise ValueError(NO_BLOCKS)
        return reduce(add, map(function, blocks))


@dataclass(frozen=True)
class Threads:
    """Several blocks at once, in threads of this process.

    The function is called concurrently, so it may write only to what belongs to its block. Threads help as far as it
    releases the interpreter's lock, as NumPy and the compiled kernels do. An exception in a block, an interrupt among
    them, is raised in the caller once the blocks that have begun are over; no further one begins.

    Parameters
    ----------
    n_threads : int
        How many; 1 is the caller's own.
    """

    n_threads: int

    def __post_init__(self) -> None:
        if self.n_threads < 1:
            raise ValueError(f"n_threads must be at least 1, got {self.n_threads!r}")

    def map(self, function: Callable[[Block], Result], blocks: Sequence[Block]) -> list[Result]:
        """Return the function's results, in the order of the blocks."""
        with closing(self._each(function, blocks)) as results:
            return list(results)

    def map_reduce(self, function: Callable[[Block], Sum], blocks: Sequence[Block]) -> Sum:
        """Return the sum of the function's results, added in the order of the blocks."""
        if not len(blocks):
            raise ValueError(NO_BLOCKS)
        with closing(self._each(function, blocks)) as results:
            return reduce(add, results)

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
    """Return who takes the blocks: the caller's thread, or several."""
    return Serial() if n_threads == 1 else Threads(n_threads)


def row_blocks(n_rows: int, wide: bool = False) -> list[slice]:
    """Return the slices, in order, that partition ``range(n_rows)``; they depend on nothing else.

    Wide ones are for work that takes a row less than a microsecond: between two blocks a thread needs the interpreter's
    lock, and many threads would wait for it.
    """
    width = max(BLOCK_ROWS, min(WIDE_ROWS, -(-n_rows // MIN_WIDE))) if wide else BLOCK_ROWS
    ends = [*range(width, n_rows, width), n_rows]
    return list(map(slice, range(0, n_rows, width), ends))


@contextmanager
def one_blas_thread() -> Iterator[int]:
    """Keep BLAS in the thread that calls it, and yield the number of threads that it would use otherwise.

    Products of blocks are shared out between threads of our own. BLAS threads on top of them gain little, and cost
    much where other processes use the same cores.
    """
    pools = _thread_pools()
    counts = [library.num_threads for library in pools.lib_controllers if library.user_api == "blas"]
    with pools.limit(limits=1, user_api="blas"):
        yield max(counts, default=1)


@cache
def _thread_pools() -> ThreadpoolController:
    return ThreadpoolController()  # looks at every loaded library, which takes milliseconds
