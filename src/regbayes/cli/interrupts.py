"""Handling of Ctrl-C (SIGINT) and SIGTERM, which ``kill`` and batch systems send.

Before the first fit, a signal raises KeyboardInterrupt and ends the command. After `protect`, a signal raises only
within `run_stoppable`. At other times it stays pending and interrupts the next call of `run_stoppable`.
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

SAME_SECONDS = 1.0  # seconds within which repeated signals count as one


@dataclass
class State:
    """Received signals and how to handle the next one."""

    protected: bool = False
    stoppable: bool = False  # whether a signal raises after `protect`
    pending: bool = False  # whether a signal has not interrupted anything yet
    last: float = -math.inf  # time of the last signal in seconds

    def hear(self, _number: int, _frame: FrameType | None) -> None:
        """Raise KeyboardInterrupt now, or mark the signal as pending."""
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
    """Handle both signals in this block, except those that the process already ignores."""
    if threading.current_thread() is not threading.main_thread():  # only the main thread can set handlers
        yield
        return
    _state.__init__()  # type: ignore[misc]  # reset the state for each command
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, _state.hear)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def protect() -> None:
    """Let signals raise only in the work of `run_stoppable`, until the command ends."""
    _state.protected = True


def run_stoppable(work: Callable[[], Any]) -> tuple[Any, bool]:
    """Run `work`; return its result (None if interrupted) and whether a signal came.

    A pending signal interrupts it at once. An error after a signal is treated as an interruption, because the signal
    may have ended worker processes.
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
    """Raise KeyboardInterrupt for a pending signal, which a library may have swallowed."""
    if _state.pending:
        raise KeyboardInterrupt


def ignore() -> None:
    """Ignore both signals while the process exits."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
