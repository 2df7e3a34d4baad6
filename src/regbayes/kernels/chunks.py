"""Fixed chunks of rows: the unit of parallel work.

Chunk boundaries depend on the number of rows and on nothing else, and what the chunks return is kept in their order,
so a sum over chunks is the same number for any number of threads.

Threads call compiled kernels that release the interpreter lock. Numba's own ``prange`` is not used: two of its three
threading layers fail when the caller itself uses threads or forks, as joblib and web servers do.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

CHUNK_ROWS = 2048

Result = TypeVar("Result")


def chunk_bounds(n_rows: int) -> list[tuple[int, int]]:
    """Return the half-open row ranges, in order, that partition ``range(n_rows)``."""
    return [(first, min(first + CHUNK_ROWS, n_rows)) for first in range(0, n_rows, CHUNK_ROWS)]


def map_chunks(work: Callable[[int, int, int], Result], n_rows: int, n_threads: int) -> list[Result]:
    """Call ``work(chunk, first_row, last_row)`` for every chunk and return the results in chunk order.

    With more than one thread ``work`` is called concurrently: it may write only to the rows of its own chunk and to
    slots numbered by ``chunk``.
    """
    tasks = [(chunk, first, last) for chunk, (first, last) in enumerate(chunk_bounds(n_rows))]
    return map_tasks(lambda task: work(*tasks[task]), len(tasks), n_threads)


def map_tasks(work: Callable[[int], Result], n_tasks: int, n_threads: int) -> list[Result]:
    """Call ``work(task)`` for every task and return the results in order.

    With more than one thread ``work`` is called concurrently: tasks may not write to the same memory.
    """
    return list(each_task(work, n_tasks, n_threads))


def each_task(work: Callable[[int], Result], n_tasks: int, n_threads: int) -> Iterator[Result]:
    """As `map_tasks`, one result after another: large ones need not be held all at once."""
    n_threads = min(n_threads, n_tasks)
    if n_threads <= 1:
        yield from map(work, range(n_tasks))
        return
    with ThreadPoolExecutor(n_threads) as pool:
        waiting = deque(pool.submit(work, task) for task in range(n_threads))
        for task in range(n_threads, n_tasks + n_threads):
            result = waiting.popleft().result()
            if task < n_tasks:
                waiting.append(pool.submit(work, task))
            yield result
