"""Helpers of the tests of estimators on a Dask cluster."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import dask.array as da
import pytest


def quiet_marks():
    """Return marks that silence warnings of interrupted fits and restarted workers."""
    named = "sklearn.exceptions.ConvergenceWarning", "ResourceWarning", "DeprecationWarning:distributed"
    return [pytest.mark.filterwarnings(f"ignore::{name}") for name in named]


def cut(array, sizes):
    """Return a Dask array with chunks along the first axis."""
    return da.from_array(array, chunks=(sizes, -1)[: array.ndim])


class AfterIteration:
    """Callback that runs an action once, after the given iteration of a fit."""

    def __init__(self, action: Callable[[], Any], iteration: int = 1, stage: str = "descent") -> None:
        self.action, self.remaining, self.stage = action, iteration, stage

    def setup(self, estimator: Any, context: Any) -> None: ...

    def teardown(self, estimator: Any, context: Any) -> None: ...

    def on_fit_task_begin(self, estimator: Any, context: Any) -> None: ...

    def on_fit_task_end(self, estimator: Any, context: Any, **given: Any) -> None:
        if context.task_name == "iteration" and self.stage in (context.parent.task_name, ""):
            self.remaining -= 1
            if self.remaining == 0:
                self.action()


def signal_workers(client: Any, number: signal.Signals, n_workers: int | None = None) -> list[int]:
    """Send a signal to worker processes, by default to all of them; return their PIDs."""
    pids = sorted(client.run(os.getpid).values())[:n_workers]
    for pid in pids:
        os.kill(pid, number)
    return pids


def kill_workers(client: Any, n_workers: int | None = None) -> list[int]:
    """Kill worker processes, by default all of them; return their PIDs."""
    return signal_workers(client, signal.SIGKILL, n_workers)


def hears_interrupts() -> bool:
    """Return whether this process handles Ctrl-C."""
    return signal.getsignal(signal.SIGINT) is not signal.SIG_IGN
