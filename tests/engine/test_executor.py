"""Executors return the same results in the same order for any number of workers."""

from __future__ import annotations

import signal
import threading
import time
from dataclasses import dataclass

import numpy as np
import pytest

from regbayes.engine import BLOCK_ROWS, Executor, Serial, Threads, row_blocks

EXECUTORS: list[Executor] = [Serial(), Threads(1), Threads(2), Threads(5)]
every_executor = pytest.mark.parametrize("executor", EXECUTORS, ids=repr)


@dataclass(frozen=True)
class Stats:
    total: np.ndarray  # (d,)
    outer: np.ndarray  # (d, d)

    def __add__(self, other: Stats) -> Stats:
        return Stats(self.total + other.total, self.outer + other.outer)


@pytest.fixture
def X():
    # With columns of different scales, the rounding of sums depends on their order.
    return np.random.default_rng(0).normal(size=(20_000, 4)) * 10.0 ** np.arange(-3, 5, 2)


@every_executor
def test_sums_are_bitwise_identical_for_any_number_of_workers(X, executor):
    def statistics(rows: slice) -> Stats:
        time.sleep(0.002 * (rows.start % 3))  # later blocks end earlier
        return Stats(X[rows].sum(axis=0), X[rows].T @ X[rows])

    blocks = row_blocks(len(X))
    assert len(blocks) == 10
    found = executor.map_reduce(statistics, blocks)
    total, outer = np.zeros(4), np.zeros((4, 4))
    for rows in blocks:
        total, outer = total + X[rows].sum(axis=0), outer + X[rows].T @ X[rows]
    assert np.array_equal(found.total, total)
    assert np.array_equal(found.outer, outer)
    assert not np.array_equal(total, sum(X[rows].sum(axis=0) for rows in reversed(blocks)))  # order matters here


@every_executor
def test_map_keeps_the_order_of_arbitrary_blocks(executor):
    def slow_for_early_ones(name: str) -> str:
        time.sleep(0.01 if name < "e" else 0.0)
        return name.upper()

    names = [chr(ord("a") + i) for i in range(26)]
    assert executor.map(slow_for_early_ones, names) == [name.upper() for name in names]
    assert executor.map_reduce(slow_for_early_ones, names) == "".join(names).upper()


@every_executor
def test_map_reduce_of_one_block_is_its_result(executor):
    assert executor.map_reduce(lambda block: block, [7]) == 7
    assert executor.map(lambda block: block, []) == []


def test_threads_run_blocks_in_parallel():
    together = threading.Barrier(3, timeout=30)
    assert sorted(Threads(3).map(lambda block: together.wait(), range(3))) == [0, 1, 2]


def test_map_reduce_keeps_few_results_in_memory():
    begun: list[int] = []

    class Counted(int):
        def __add__(self, other):
            assert len(begun) <= int(other) + 1 + 2 * 2  # the block being added, and the blocks submitted ahead
            return Counted(other)

    assert Threads(2).map_reduce(lambda block: begun.append(block) or Counted(block), range(100)) == 99


@every_executor
@pytest.mark.parametrize("error", [KeyError, KeyboardInterrupt], ids=["error", "interrupt"])
@pytest.mark.parametrize("method", ["map", "map_reduce"])
def test_exception_in_a_block_is_raised_and_stops_later_blocks(executor, error, method):
    begun: list[int] = []

    def fail_at_three(block: int) -> int:
        begun.append(block)
        time.sleep(0.002)
        if block == 3:
            raise error("block three")
        return block

    before = set(threading.enumerate())
    with pytest.raises(error, match="block three"):
        getattr(executor, method)(fail_at_three, range(1000))
    assert max(begun) <= 3 + 2 * 5
    assert set(threading.enumerate()) <= before


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="needs signals")
def test_interrupt_of_the_caller_stops_the_work():
    usual = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    begun: list[int] = []
    main = threading.get_ident()

    def work(block: int) -> int:
        begun.append(block)
        if block == 4:
            signal.pthread_kill(main, signal.SIGINT)
        time.sleep(0.01)
        return block

    before = set(threading.enumerate())
    try:
        with pytest.raises(KeyboardInterrupt):
            Threads(2).map_reduce(work, range(10_000))
    finally:
        signal.signal(signal.SIGINT, usual)
    assert len(begun) < 100
    assert set(threading.enumerate()) <= before


@pytest.mark.parametrize("n_rows", [0, 1, 2047, 2048, 2049, 10_000])
def test_row_blocks_partition_the_rows_in_order(n_rows):
    blocks = row_blocks(n_rows)
    rows = np.arange(n_rows)
    assert np.array_equal(np.concatenate([rows[:0], *(rows[block] for block in blocks)]), rows)
    sizes = [block.stop - block.start for block in blocks]
    assert all(size == BLOCK_ROWS for size in sizes[:-1])
    assert all(0 < size <= BLOCK_ROWS for size in sizes)


def test_wide_blocks_are_wider_and_enough_for_many_threads():
    for n_rows in (0, 1, 2048, 30_000, 100_000, 1_000_000):
        blocks = row_blocks(n_rows, wide=True)
        assert [block.start for block in blocks[1:]] == [block.stop for block in blocks[:-1]]
        assert sum(block.stop - block.start for block in blocks) == n_rows
        assert all(block.stop - block.start >= BLOCK_ROWS for block in blocks[:-1])
        assert len(blocks) >= min(16, len(row_blocks(n_rows)))  # enough blocks for many threads if there are many rows
    assert len(row_blocks(1_000_000, wide=True)) < len(row_blocks(1_000_000)) / 3


def test_zero_threads_raise():
    with pytest.raises(ValueError, match="n_threads must be at least 1, got 0"):
        Threads(0)
