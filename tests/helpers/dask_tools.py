"""What tests of estimators over a cluster share."""

from __future__ import annotations

import os
import pickle
import signal
from contextlib import nullcontext
from functools import reduce
from operator import add

import dask.array as da
import pytest

from regbayes.dask.blocks import DaskBlocks
from regbayes.joint.problem import RowBlock


def quiet_marks():
    """Return marks for tests in which fits are cut short, and processes come and go."""
    named = "sklearn.exceptions.ConvergenceWarning", "ResourceWarning", "DeprecationWarning:distributed"
    return [pytest.mark.filterwarnings(f"ignore::{name}") for name in named]


def cut(array, sizes):
    return da.from_array(array, chunks=(sizes, -1)[: array.ndim])


class OneProcess:
    """What `DaskBlocks` does, in this process and in the order of blocks."""

    def __init__(self, blocks, held=None):
        self.blocks = blocks
        self.held = [] if held is None else held  # all row blocks that were ever made of them
        self.held.extend(block for block in blocks if isinstance(block, RowBlock))

    is_local = False

    def broadcast(self, value):
        return value

    def map_sum(self, function, *arguments):
        return reduce(add, self.gather(function, *arguments))

    def gather(self, function, *arguments):
        return [function(block, *arguments) for block in self.blocks]

    def change(self, function, arguments):
        pairs = zip(self.blocks, arguments, strict=True)
        return OneProcess([function(block, *own) for block, own in pairs if own is not None], self.held)


def fit_here(monkeypatch, model, *collections, held=None):
    """Fit without a cluster; append the blocks of rows that the fit holds to a list."""

    def place(client, given, read):
        parts = [[None if part is None else part.compute(scheduler="sync") for part in row] for row in given.parts]
        return OneProcess([read(*row, place, given.n_columns) for place, row in enumerate(parts)], held)

    with monkeypatch.context() as patch:
        patch.setattr("regbayes.dask._bases.find_client", lambda client: client)
        patch.setattr("regbayes.dask._bases.shelter_workers", nullcontext)
        patch.setattr("regbayes.dask._bases.place_blocks", place)
        return model.fit(*collections)


def hears_interrupts():
    return signal.getsignal(signal.SIGINT) is not signal.SIG_IGN


class Interfering(DaskBlocks):
    """Does something before a certain trip."""

    trip, action = 10**9, staticmethod(lambda client: None)

    def _visit(self, *arguments, **options):
        function = arguments[0]
        if self.n_trips == type(self).trip and function.__module__ == "regbayes.joint.problem":
            type(self).trip = -1  # once
            type(self).action(self.client)
        return super()._visit(*arguments, **options)


def interfere(monkeypatch, trip, action):
    """Do something before a trip to the rows as the model has them."""
    monkeypatch.setattr(Interfering, "trip", trip)
    monkeypatch.setattr(Interfering, "action", staticmethod(action))
    monkeypatch.setattr("regbayes.dask.rows.DaskBlocks", Interfering)
    monkeypatch.setattr("regbayes.dask.blocks.DaskBlocks", Interfering)


class Counting(DaskBlocks):
    """Counts the bytes that come back from each group of blocks, the most of all trips with a function."""

    most: dict[str, int]

    def _visit(self, function, *arguments, **options):
        found, name = super()._visit(function, *arguments, **options), function.__name__
        here = max(len(pickle.dumps(part)) for part in found)
        type(self).most[name] = max(type(self).most.get(name, 0), here)
        return found


def count_bytes(monkeypatch):
    """Return a dictionary that will have the bytes of trips, by function."""
    monkeypatch.setattr(Counting, "most", {}, raising=False)
    monkeypatch.setattr("regbayes.dask.rows.DaskBlocks", Counting)
    monkeypatch.setattr("regbayes.dask.blocks.DaskBlocks", Counting)
    return Counting.most


def kill_one(killed, client):
    """Kill one of the workers, and say which."""
    victim = sorted(client.run(os.getpid).values())[0]
    os.kill(victim, signal.SIGKILL)
    killed.append(victim)
