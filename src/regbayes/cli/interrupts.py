"""Ctrl-C, and SIGTERM, which ``kill`` and batch systems send.

Until a model is fitted, a signal raises KeyboardInterrupt and ends the command. In `protect`, which begins before the
first fit and ends after the model is written, it raises in the work of `run_stoppable` alone, which returns what there
is; everywhere else it is remembered and ends the next such work.
"""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

__all__ = ["catch_signals", "check", "ignore", "protect", "run_stoppable"]

SAME_SECONDS = 1.0  # after a signal in which another one counts as the same


@dataclass
class State:
    """The signals that came, and what another one may do."""

    protected: bool = False
    stoppable: bool = False  # whether a signal may raise though protected
    pending: bool = False  # whether a signal came that has not ended anything
    last: float = -math.inf  # when the last signal came

    def hear(self, _number: int, _frame: FrameType | None) -> None:
        """Raise KeyboardInterrupt, now or in the next stoppable work."""
        now = time.monotonic()
        if now - self.last < SAME_SECONDS:
            return
        self.last, self.pending = now, True
        if self.stoppable or not self.protected:
            self.stoppable = False
            raise KeyboardInterrupt


_state = State()


@contextmanager
def catch_signals() -> Iterator[None]:
    """Handle both signals in this block; a process that ignored one before still ignores it."""
    if threading.current_thread() is not threading.main_thread():  # others may not set handlers
        yield
        return
    _state.__init__()  # type: ignore[misc]  # a new state for each command
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, _state.hear)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def protect() -> Iterator[None]:
    """Let signals raise only in the work of `run_stoppable`."""
    before, _state.protected = _state.protected, True
    try:
        yield
    finally:
        _state.protected = before


def run_stoppable(work: Callable[[], Any]) -> tuple[Any, bool]:
    """Return what some work returns, None where a signal ended it before, and whether a signal came.

    A signal that came before ends it at once. An error after a signal counts as its consequence: the signal may
    have ended processes of the work.
    """
    result = None
    try:
        _state.stoppable = True
        check()
        result = work()
        _state.stoppable = False
    except KeyboardInterrupt:
        _state.pending = True
    except Exception:
        if not _state.pending:
            raise
    _state.stoppable = False
    stopped, _state.pending = _state.pending, False
    return result, stopped


def check() -> None:
    """Raise if a signal came that has not ended anything, which a library may have swallowed."""
    if _state.pending:
        raise KeyboardInterrupt


def ignore() -> None:
    """Ignore both signals: everything is done, and the process ends."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
