"""Ctrl-C, and SIGTERM, which ``kill`` and batch systems send: a KeyboardInterrupt both, but not at a bad moment."""

from __future__ import annotations

import math
import signal
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

__all__ = ["catch_signals", "forget", "held", "ignore", "is_interrupt"]

ALARM = getattr(signal, "SIGALRM", None)  # there is none on Windows
GRACE = 1.0  # seconds after a signal in which the next one waits: what the first one ended is put away meanwhile


@dataclass
class State:
    """What this process has heard."""

    holds: int = 0  # blocks of `held` that are open
    pending: bool = False  # whether a signal came meanwhile
    last: float = -math.inf  # when a signal was heard


_state = State()


def _on_signal(number: int, _frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt, now or later."""
    wait = _state.last + GRACE - time.monotonic()
    if _state.holds:
        _state.pending = True
    elif wait > 0 and number != ALARM and ALARM is not None:
        signal.setitimer(signal.ITIMER_REAL, wait)
    else:
        _state.last = time.monotonic()
        raise KeyboardInterrupt


@contextmanager
def catch_signals() -> Iterator[None]:
    """Hear both signals in this block; a process that was told to ignore one goes on ignoring it."""
    if threading.current_thread() is not threading.main_thread():  # others may not say who hears a signal
        yield
        return
    _state.last = -math.inf
    numbers = [number for number in (signal.SIGINT, signal.SIGTERM, ALARM) if number is not None]
    before = {number: signal.getsignal(number) for number in numbers}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, _on_signal)
    try:
        yield
    finally:
        forget()
        for number, handler in before.items():
            signal.signal(number, handler)


def is_interrupt(found: warnings.WarningMessage) -> bool:
    """Whether a warning says that Ctrl-C ended something."""
    from regbayes.estimators._bases import InterruptedWarning

    return issubclass(found.category, InterruptedWarning)


def forget() -> None:
    """Forget a signal that waits: what it was about is done."""
    _state.pending = False
    if ALARM is not None:
        signal.setitimer(signal.ITIMER_REAL, 0.0)


@contextmanager
def held() -> Iterator[None]:
    """Let nothing interrupt this block; a signal that comes in it counts when it has ended."""
    _state.holds += 1
    try:
        yield
    finally:
        _state.holds -= 1
    if _state.pending and not _state.holds:
        _state.pending = False
        raise KeyboardInterrupt


def ignore() -> None:
    """Hear no signal any more: everything is done, and the process ends."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
