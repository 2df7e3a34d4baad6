"""Blocks of rows on the workers of a Dask cluster.

Every trip is one task for each worker that has blocks, a pure function of them, and what comes back is a sum. Blocks
are results of tasks (`submit`), never scattered: where a worker is lost the scheduler makes its blocks again from their
recipes, and the trip that was under way ends as if nothing had happened. What inference finds is kept inside the
blocks, in the memory of their worker, and is a cache.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from operator import add
from typing import Any

from distributed import Client, Future, wait

from regbayes.joint.remote import HeldRows, Version


class Workers:
    """Where the blocks lie; a `regbayes.joint.remote.Places`.

    Parameters
    ----------
    client : Client
    blocks : sequence of Future
        Of `HeldRows`, in order.
    """

    def __init__(self, client: Client, blocks: Sequence[Future]) -> None:
        self.client, self.blocks = client, list(blocks)
        self.n_trips = 0
        self.groups: list[tuple[str, list[Future]]] = []

    def share(self, version: Version) -> Future:
        """Send parameters to one worker, from which the others get them; note where the blocks are by now."""
        self.groups = self._group()
        return self.client.submit(_keep, version, key=f"regbayes-version-{id(self)}-{version.number}", pure=False)

    def sum(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return the sum of ``function(block, *arguments)``, in the order of blocks, those of one worker first."""
        self.n_trips += 1
        tasks = [
            self.client.submit(
                _sum_blocks, function, blocks, *arguments, workers=[worker], allow_other_workers=True, pure=False
            )
            for worker, blocks in self.groups or self._group()
        ]
        return reduce(add, self.client.gather(tasks))

    def _group(self) -> list[tuple[str, list[Future]]]:
        """Return the blocks by the worker that has them, each group in the order of its first block."""
        wait(self.blocks)
        where = self.client.who_has(self.blocks)
        groups: dict[str, list[Future]] = {}
        for block in self.blocks:
            found = where.get(block.key)
            groups.setdefault(min(found) if found else "", []).append(block)
        return list(groups.items())


def _keep(version: Version) -> Version:
    return version


def _sum_blocks(function: Callable[..., Any], blocks: Sequence[HeldRows[Any]], *arguments: Any) -> Any:
    return reduce(add, [function(block, *arguments) for block in blocks])
