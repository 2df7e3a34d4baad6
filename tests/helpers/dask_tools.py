"""What tests of estimators on a Dask cluster share."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import dask.array as da
import pytest


def quiet_marks():
    """Return marks for tests in which fits are cut short, and processes come and go."""
    named = "sklearn.exceptions.ConvergenceWarning", "ResourceWarning", "DeprecationWarning:distributed"
    return [pytest.mark.filterwarnings(f"ignore::{name}") for name in named]


def cut(array, sizes):
    """Return an array in chunks along its first axis."""
    return da.from_array(array, chunks=(sizes, -1)[: array.ndim])


class AfterIteration:
    """A callback of scikit-learn that does something once, after an iteration of a fit."""

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
    """Send a signal to worker processes, by default to all of them; return their numbers."""
    pids = sorted(client.run(os.getpid).values())[:n_workers]
    for pid in pids:
        os.kill(pid, number)
    return pids


def kill_workers(client: Any, n_workers: int | None = None) -> list[int]:
    """Kill worker processes, by default all of them."""
    return signal_workers(client, signal.SIGKILL, n_workers)


def hears_interrupts() -> bool:
    """Return whether this process handles Ctrl-C."""
    return signal.getsignal(signal.SIGINT) is not signal.SIG_IGN
