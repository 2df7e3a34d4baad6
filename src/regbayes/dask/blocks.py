"""Blocks of samples on the workers of a Dask cluster.

A pass over the samples runs one task per thread of the cluster, a pure function of its blocks. Blocks are results of
tasks and are never scattered, so the scheduler recomputes the blocks of a lost worker and the pass continues.

Sums are taken in the order of blocks, which depends only on the data. They are therefore bitwise identical for any
number of workers, and before and after the loss of a worker.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import reduce
from operator import add
from typing import Any
from uuid import uuid4

import dask
from dask.sizeof import sizeof
from dask.utils import parse_timedelta
from distributed import CancelledError, Client, Future, Scheduler, SchedulerPlugin, get_client, wait

from regbayes.joint.problem import RowBlock
from regbayes.kernels.arrays import is_mapped, lies_elsewhere
from regbayes.kernels.device_memory import is_out_of_memory

NO_WORKERS_TIMEOUT = "distributed.scheduler.no-workers-timeout"  # name of Dask's setting, which has no default
WORKER_TIMEOUT_S = 60.0  # default seconds to wait for a killed worker to restart


@dataclass
class DaskBlocks:
    """Blocks on the workers of a cluster: `regbayes.engine.source.Blocks`."""

    client: Client
    blocks: list[Future]
    homes: list[str]  # address of the worker of each block
    threads: dict[str, int]  # number of threads of each worker
    is_local: bool = False

    @classmethod
    def spread(cls, client: Client, blocks: list[Future], sizes: Sequence[float]) -> DaskBlocks:
        """Return blocks on their current workers, moving some from overloaded workers."""
        held = client.who_has(blocks)
        where = [next(iter(held.get(block.key, ())), None) for block in blocks]
        threads = client.nthreads()
        return cls(client, blocks, plan_homes(threads, sizes, where), threads)

    def broadcast(self, value: Any) -> Future:
        """Send a value to one worker, from which the others copy it."""
        self.threads = self.client.nthreads()
        if not self.threads:  # waits until a worker joins
            wait_for(self.client, [self.client.submit(itself, None, pure=False)])
            self.threads = self.client.nthreads()
        if not self.threads.keys() >= set(self.homes):
            self.homes = plan_homes(self.threads, [1.0] * len(self.blocks), self.homes)
        return self.client.submit(itself, value, key=f"regbayes-value-{uuid4().hex}", pure=False)

    def map_sum(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return the sum of ``function(block, *arguments)``, in the order of blocks."""
        return reduce(add, self.gather(function, *arguments))

    def gather(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Return ``function(block, *arguments)`` for every block, in order."""
        groups = []
        for home in sorted(set(self.homes)):
            own = [place for place, worker in enumerate(self.homes) if worker == home]
            n_threads = min(self.threads.get(home, 1), len(own))
            groups += [(home, own[thread::n_threads]) for thread in range(n_threads)]
        tasks = [
            self.client.submit(_visit, function, [self.blocks[place] for place in own], *arguments, **_at(home))
            for home, own in groups
        ]
        wait_for(self.client, tasks)
        found: list[Any] = [None] * len(self.blocks)
        for (_, own), results in zip(groups, self.client.gather(tasks), strict=True):
            for place, result in zip(own, results, strict=True):
                found[place] = result
        return found

    def map(self, function: Callable[..., Any], *arguments: Any) -> DaskBlocks:
        """Return ``function(block, *arguments)`` as new blocks on the same workers.

        Arguments that are blocks or lists are passed item by item.
        """
        own = [argument.blocks if isinstance(argument, DaskBlocks) else argument for argument in arguments]
        made = [
            self.client.submit(
                _visit_block,
                function,
                block,
                *(argument[place] if isinstance(argument, list) else argument for argument in own),
                **_at(self.homes[place]),
            )
            for place, block in enumerate(self.blocks)
        ]
        wait_for(self.client, made)
        return replace(self, blocks=made)

    def keep(self, wanted: Sequence[bool]) -> DaskBlocks:
        """Return the blocks selected by a mask."""
        pairs = [pair for pair, kept in zip(zip(self.blocks, self.homes, strict=True), wanted, strict=True) if kept]
        return replace(self, blocks=[block for block, _ in pairs], homes=[home for _, home in pairs])


def plan_homes(threads: dict[str, int], sizes: Sequence[float], where: Sequence[str | None]) -> list[str]:
    """Assign blocks to their current workers, unless others have a lower load."""
    share = sum(sizes) / sum(threads.values())
    load, homes = dict.fromkeys(sorted(threads), 0.0), []
    for size, held in zip(sizes, where, strict=True):
        if held in load and load[held] + 0.5 * size <= share * threads[held]:
            home = held
        else:
            home = min(load, key=lambda worker: (load[worker] + 0.5 * size) / threads[worker])
        load[home] += size
        homes.append(home)
    return homes


def wait_for(client: Client, tasks: Sequence[Future]) -> None:
    """Wait for tasks; raise an error if no worker can run them."""
    timeout, last_seen = parse_timedelta(dask.config.get(NO_WORKERS_TIMEOUT) or WORKER_TIMEOUT_S), time.monotonic()
    while True:
        try:
            for task in wait(tasks, timeout=timeout / 10).done:
                if task.status == "error":
                    task.result()  # raises the task's error
            return
        except CancelledError:
            raise RuntimeError(
                "The cluster dropped the tasks of this fit: its scheduler was closed or restarted, or the tasks were "
                "cancelled. Connect to a running scheduler with distributed.Client(address) and fit again."
            ) from None
        except TimeoutError:
            workers = client.scheduler_info(n_workers=-1)["workers"].values()
            if any(worker["status"] == "running" for worker in workers):
                last_seen = time.monotonic()
            elif time.monotonic() - last_seen > timeout:
                if workers:
                    raise MemoryError(
                        "All workers of the cluster exceed the limit of memory at which Dask pauses them. Raise "
                        "memory_limit=, add workers, or use smaller chunks (X.rechunk)."
                    ) from None
                raise RuntimeError(
                    f"All workers of the cluster have left, and none joined within {timeout:.0f} seconds. Start "
                    f"workers (cluster.scale(2)) and fit again, or set {NO_WORKERS_TIMEOUT!r} in dask.config."
                ) from None


class FreeTasks(SchedulerPlugin):
    """Let a worker that joins run tasks whose own worker is lost.

    Dask lifts these restrictions only while another worker is left. If all workers restart at once, tasks restricted
    to an old address would wait forever.
    """

    name = "regbayes-free-tasks"
    idempotent = True  # the plugin is registered once per cluster

    def add_worker(self, scheduler: Scheduler, worker: str) -> None:
        """Lift loose restrictions of tasks that no worker can run."""
        for task in scheduler.unrunnable:
            if task.loose_restrictions:
                task.worker_restrictions = None


def find_client(client: Client | None) -> Client:
    """Return the given client or the default one; raise an error if it has no workers."""
    if client is None:
        try:
            client = get_client()
        except ValueError:
            raise ValueError(
                "No Dask client was found. Start one with distributed.Client(), or pass one as client=."
            ) from None
    if not isinstance(client, Client):
        raise TypeError(f"`client` must be a distributed.Client; got {type(client).__name__}.")
    if client.asynchronous:
        raise ValueError("`client` is asynchronous. Use a synchronous one: distributed.Client(address).")
    if not client.nthreads():
        raise ValueError(
            "The cluster of `client` has no workers. Start workers with cluster.scale(2), then call "
            "client.wait_for_workers(1)."
        )
    return client


@contextmanager
def shelter_workers(client: Client) -> Iterator[None]:
    """Replace lost workers during a fit, and let Ctrl-C interrupt only the client.

    In a terminal or a notebook, Ctrl-C also reaches the workers of a local cluster. It would end them and delete the
    samples from which the best state is computed.
    """
    here = socket.gethostname(), _process_group()
    client.register_plugin(FreeTasks())
    try:
        client.run(_ignore_interrupts, True, here, on_error="ignore")
        yield
    finally:
        with suppress(OSError):  # the scheduler may have closed
            client.run(_ignore_interrupts, False, here, on_error="ignore")


_handlers: list[Any] = []  # previous SIGINT handlers, one per running fit


def _ignore_interrupts(begins: bool, where: tuple[str, int]) -> None:
    """Start or stop ignoring Ctrl-C in a worker process of the same terminal."""
    in_process = threading.current_thread() is not threading.main_thread()
    if in_process or where != (socket.gethostname(), _process_group()):
        return
    if begins:
        _handlers.append(signal.signal(signal.SIGINT, signal.SIG_IGN))
    elif _handlers:
        signal.signal(signal.SIGINT, _handlers.pop())


def _process_group() -> int:
    return os.getpgrp() if hasattr(os, "getpgrp") else 0


def _at(worker: str) -> dict[str, Any]:
    return {"workers": [worker], "allow_other_workers": True, "pure": False}


def itself(value: Any) -> Any:
    """Return the value, as a task that keeps or copies it."""
    return value


def exists(value: Any) -> bool:
    """Return whether a value is not None."""
    return value is not None


def _visit(function: Callable[..., Any], blocks: Sequence[Any], *arguments: Any) -> list[Any]:
    return [_visit_block(function, block, *arguments) for block in blocks]


def _visit_block(function: Callable[..., Any], block: Any, *arguments: Any) -> Any:
    try:
        return function(block, *arguments)
    except Exception as error:
        if is_out_of_memory(error):
            raise MemoryError(
                "The GPU of a worker does not hold its samples. Add workers, each with a GPU of its own, or give `X` "
                f"as float32. ({error})"
            ) from None
        raise


@sizeof.register(RowBlock)
def _size_of_rows(rows: RowBlock[Any]) -> int:
    """Return the bytes of a block in CPU memory; files and GPU arrays take none."""
    return sum(map(_size_of, rows.pieces)) + _size_of(rows.head)


def _size_of(thing: Any) -> int:
    if hasattr(thing, "nbytes"):
        return 0 if is_mapped(thing) or lies_elsewhere(thing) else int(thing.nbytes)
    if isinstance(thing, list | tuple):
        return sum(map(_size_of, thing))
    return sum(_size_of(getattr(thing, part.name)) for part in fields(thing)) if is_dataclass(thing) else 0
