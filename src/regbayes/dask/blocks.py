"""Blocks of rows on the workers of a Dask cluster.

A trip to the rows is one task for each thread of the cluster that has blocks, a pure function of them, and what comes
back is a sum. Blocks are results of tasks, never scattered: where a worker is lost the scheduler makes its blocks again
from their recipes, and the trip that was under way ends as if nothing had happened. What inference finds is kept inside
the blocks, in the memory of their worker, and is a cache.

Which blocks are summed together depends on their sizes alone. So sums have the same bits for any number of workers,
wherever the blocks are, before and after a loss.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial, reduce
from itertools import groupby
from operator import add, itemgetter
from typing import Any
from uuid import uuid4

import numpy as np
from dask.sizeof import sizeof
from distributed import CancelledError, Client, Future, Scheduler, SchedulerPlugin, get_client, wait

from regbayes._types import Integers
from regbayes.joint.problem import RowBlock
from regbayes.kernels.arrays import is_mapped, is_plain, lies_elsewhere
from regbayes.kernels.device_memory import is_out_of_memory

PATIENCE_S = 60.0  # to wait for a worker where all are gone; those that were killed come back
MAX_UNITS = 64  # sums that return from all workers
WATCH_S = 5.0  # how often it is seen to whether there is anybody left to wait for


@dataclass
class Group:
    """Blocks that one task visits, and the worker that shall do it."""

    worker: str
    blocks: list[Future]
    units: list[int]  # of each block: blocks of a unit are summed where they are, and units on the client


class DaskBlocks:
    """Blocks on the workers of a cluster: `regbayes.engine.source.Blocks`.

    Parameters
    ----------
    client : Client
    groups : sequence of Group
        In the order of their blocks.
    """

    is_local = False

    def __init__(self, client: Client, groups: Sequence[Group]) -> None:
        self.client, self.groups = client, list(groups)
        self.n_trips = 0

    def broadcast(self, value: Any) -> Future:
        """Send a value to one worker, from which the others get it. Blocks of lost workers get a new home."""
        self._move_from_lost()
        return self.client.submit(_keep, value, key=f"regbayes-value-{uuid4().hex}", pure=False)

    def map_sum(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return the sum of ``function(block, *arguments)``, in the order of blocks, for any number of workers."""
        return reduce(add, self._visit(function, *arguments, in_units=True))

    def gather(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Return ``function(block, *arguments)`` of every block, in their order."""
        return self._visit(function, *arguments)

    def change(self, function: Callable[..., Any], arguments: Sequence[tuple[Any, ...] | None]) -> DaskBlocks:
        """Return ``function(block, *arguments)`` as new blocks in their places; arguments of None leave a block out."""
        given, workers, jobs, units = iter(arguments), [], [], []
        for group in self.groups:
            trios = [(block, unit, next(given)) for block, unit in zip(group.blocks, group.units, strict=True)]
            make = partial(self.client.submit, _visit_block, function, **_at(group.worker))
            mine = [(partial(make, block, *own), unit) for block, unit, own in trios if own is not None]
            if mine:
                workers.append(group.worker)
                jobs.append([job for job, _ in mine])
                units.append([unit for _, unit in mine])
        return DaskBlocks(self.client, list(map(Group, workers, submit_in_turn(self.client, jobs), units)))

    def _visit(self, function: Callable[..., Any], *arguments: Any, in_units: bool = False) -> list[Any]:
        self.n_trips += 1
        tasks = [
            self.client.submit(
                _visit_group,
                function,
                group.blocks,
                group.units if in_units else range(len(group.blocks)),
                *arguments,
                **_at(group.worker),
            )
            for group in self.groups
        ]
        wait_for(self.client, tasks)
        return [found for group in self.client.gather(tasks) for found in group]

    def _move_from_lost(self) -> None:
        threads = self.client.nthreads()
        if not threads:  # a task that can only be done by a worker
            wait_for(self.client, [self.client.submit(_keep, None, pure=False)])
            threads = self.client.nthreads()
        load = dict.fromkeys(threads, 0)
        for group in self.groups:
            if group.worker in load:
                load[group.worker] += 1
        for group in self.groups:
            if group.worker not in load:
                group.worker = min(load, key=lambda worker: load[worker] / threads[worker])
                load[group.worker] += 1


def wait_for(client: Client, tasks: Sequence[Future], *, first: bool = False) -> set[Future]:
    """Wait until all tasks are done, or the first one; return those that are.

    Where no worker can do anything, because all have left or all are above their limit of memory, Dask waits for ever;
    here that is an error after a while. Where the scheduler has gone it says that tasks were cancelled, and not why.
    """
    last_seen = time.monotonic()
    while True:
        try:
            return wait(tasks, timeout=WATCH_S, return_when="FIRST_COMPLETED" if first else "ALL_COMPLETED").done
        except CancelledError:
            raise RuntimeError(
                "the cluster has dropped the tasks of this fit: its scheduler was closed or started anew, or somebody "
                "cancelled them. Connect to one that runs, distributed.Client(address), and fit again"
            ) from None
        except TimeoutError:
            workers = client.scheduler_info()["workers"].values()
            if any(worker["status"] == "running" for worker in workers):
                last_seen = time.monotonic()
            elif time.monotonic() - last_seen <= PATIENCE_S:
                continue
            elif workers:
                raise MemoryError(
                    "all workers of the cluster are above the limit of memory at which Dask gives them nothing more to "
                    "do: give them more (memory_limit=), start more of them, or cut X into smaller blocks (X.rechunk)"
                ) from None
            else:
                raise RuntimeError(
                    f"all workers of the cluster have left, and none came back within {PATIENCE_S:.0f} seconds: start "
                    "some (cluster.scale(2)) and fit again"
                ) from None


class FreeTasks(SchedulerPlugin):
    """Let any worker that joins take tasks whose own worker is lost.

    Dask itself does so only while another worker is left: where all are lost at once and started again, tasks that ask
    for one of the old addresses would wait for ever.
    """

    name = "regbayes-free-tasks"
    idempotent = True  # a cluster has one, however many fits there are

    def add_worker(self, scheduler: Scheduler, worker: str) -> None:
        """Lift restrictions that are no more than preferences from the tasks that nobody can do."""
        for task in scheduler.unrunnable:
            if task.loose_restrictions:
                task.worker_restrictions = None


def submit_in_turn(client: Client, jobs: Sequence[Sequence[Callable[[], Future]]]) -> list[list[Future]]:
    """Begin the first job of every group, and its next one when one is done; return what they make, when all is done.

    Many at once would wait beside each other on a worker: blocks that are read would all be in memory before any is
    done with, and an idle worker would take tasks over, with their blocks.
    """
    made: list[list[Future]] = [[] for _ in jobs]
    owners: dict[Future, int] = {}  # of the tasks under way

    def begin(group: int) -> None:
        future = jobs[group][len(made[group])]()
        made[group].append(future)
        owners[future] = group

    for group, mine in enumerate(jobs):
        if mine:
            begin(group)
    while owners:
        for future in wait_for(client, list(owners), first=True):
            group = owners.pop(future)
            if future.status == "error":
                future.result()  # raises
            if len(made[group]) < len(jobs[group]):
                begin(group)
    return made


def find_client(client: Client | None) -> Client:
    """Return the client that is given, or the default one, having seen that there is somebody to work."""
    if client is None:
        try:
            client = get_client()
        except ValueError:
            raise ValueError(
                "there is no Dask client: start one, client = distributed.Client(), or give one with client="
            ) from None
    if not isinstance(client, Client):
        raise TypeError(
            f"client must be a distributed.Client, got {type(client).__name__}: distributed.Client(address)"
        )
    if client.asynchronous:
        raise ValueError("client is asynchronous; fit needs one that waits: distributed.Client(address)")
    if not client.nthreads():
        raise ValueError(
            "the cluster of this client has no workers: start some (cluster.scale(2)) and wait for them "
            "(client.wait_for_workers(1))"
        )
    return client


@contextmanager
def shelter_workers(client: Client) -> Iterator[None]:
    """Let workers that are lost be replaced, and Ctrl-C be for this process alone.

    In a terminal and in a notebook Ctrl-C reaches workers of the same machine too. They would end, and with them the
    rows that the best state is computed from.
    """
    here = socket.gethostname(), _process_group()
    client.register_plugin(FreeTasks())
    try:
        client.run(_ignore_interrupts, True, here, on_error="ignore")
        yield
    finally:
        with suppress(OSError):  # there may be no scheduler left
            client.run(_ignore_interrupts, False, here, on_error="ignore")


def _ignore_interrupts(begins: bool, where: tuple[str, int]) -> None:
    """Begin or cease to ignore Ctrl-C, on a worker that is a process of its own beside the one that asks."""
    if threading.current_thread() is not threading.main_thread():  # no process of its own
        return
    if where != (socket.gethostname(), _process_group()):
        return
    if begins:
        _ignored.append(signal.signal(signal.SIGINT, signal.SIG_IGN))
    elif _ignored:
        signal.signal(signal.SIGINT, _ignored.pop())


_ignored: list[Any] = []  # what heard Ctrl-C before each of the fits that go on


def _process_group() -> int:
    return os.getpgrp() if hasattr(os, "getpgrp") else 0


def plan_units(sizes: Sequence[float]) -> Integers:
    """Cut blocks of some sizes into units of neighbours, which depend on nothing else; return the unit of each."""
    if len(sizes) <= MAX_UNITS:
        return np.arange(len(sizes))
    return _cut_evenly(sizes, MAX_UNITS)


def _cut_evenly(sizes: Sequence[float], n: int) -> Integers:
    ends = np.cumsum(np.maximum(np.asarray(sizes, dtype=float), 1e-9))
    middles = ends - 0.5 * np.diff(ends, prepend=0.0)
    return np.minimum((middles / ends[-1] * n).astype(int), n - 1)


def plan_groups(client: Client, sizes: Sequence[float], where: Sequence[str | None]) -> list[tuple[str, list[int]]]:
    """Cut blocks of some sizes into groups of neighbours, one for each thread, and choose a worker for each.

    A group has whole units. ``where`` says which worker has a block already, if one has: a group goes where most of it
    lies, as far as there are threads.
    """
    threads, units = dict(sorted(client.nthreads().items())), plan_units(sizes)
    n_groups = min(sum(threads.values()), len(sizes))
    group_of = _cut_evenly(sizes, n_groups)[np.searchsorted(units, units)]
    members = [np.flatnonzero(group_of == group).tolist() for group in range(n_groups)]
    free, found = dict(threads), []
    for blocks in filter(None, members):
        there = {worker: sum(sizes[block] for block in blocks if where[block] == worker) for worker in free}
        # Among those that have as much of it, the one with the most threads left: load is spread.
        home = max(free, key=lambda worker: (free[worker] > 0, there[worker], free[worker]))
        free[home] -= 1
        found.append((home, blocks))
    return found


def _at(worker: str) -> dict[str, Any]:
    """Where to do a task: there, but anywhere if that worker is lost."""
    return {"workers": [worker], "allow_other_workers": True, "pure": False}


def _keep(value: Any) -> Any:
    return value


def _visit_group(
    function: Callable[..., Any], blocks: Sequence[Any], units: Sequence[int], *arguments: Any
) -> list[Any]:
    """Return the sum of the function's results over the blocks of each unit."""
    pairs = groupby(zip(blocks, units, strict=True), key=itemgetter(1))
    return [reduce(add, (_visit_block(function, block, *arguments) for block, _ in own)) for _, own in pairs]


def _visit_block(function: Callable[..., Any], block: Any, *arguments: Any) -> Any:
    try:
        return function(block, *arguments)
    except Exception as error:
        if is_out_of_memory(error):
            raise MemoryError(
                "the device of a worker has no room for its rows. Start more workers, each with a device of its own, "
                f"or give X as float32. ({error})"
            ) from None
        raise


@sizeof.register(RowBlock)
def _size_of_rows(rows: RowBlock[Any]) -> int:
    """Return the bytes that rows take in the memory of a worker; those in a file or on a device take none."""
    return sum(_bytes_of(piece) for piece in rows.pieces) + _bytes_of(rows.head)


def _bytes_of(thing: Any) -> int:
    if isinstance(thing, np.ndarray) or not is_plain(thing):
        return 0 if is_mapped(thing) or lies_elsewhere(thing) else int(getattr(thing, "nbytes", 0))
    parts = thing if isinstance(thing, tuple) else getattr(thing, "__dict__", {}).values()
    return sum(_bytes_of(part) for part in parts if isinstance(part, np.ndarray | tuple) or hasattr(part, "__dict__"))
