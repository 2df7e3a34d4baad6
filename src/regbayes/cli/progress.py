"""How far a search is, and the time left: a bar in a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from regbayes.cli.output import Output

__all__ = ["shown_progress"]

PLAIN_SECONDS = 15.0  # between lines where there is no terminal


@contextmanager
def shown_progress(count: Callable[[], int], total: int, output: Output) -> Iterator[None]:
    """Show how many of so many fits are done, while something runs; one more fit, to all rows, comes after them."""
    if output.quiet:
        yield
        return
    stop = threading.Event()
    watch = _watch_bar if sys.stderr.isatty() else _watch_lines
    watcher = threading.Thread(target=watch, args=(count, total, stop, output), daemon=True)
    watcher.start()
    try:
        yield
    finally:
        stop.set()
        watcher.join()


def _watch_lines(count: Callable[[], int], total: int, stop: threading.Event, output: Output) -> None:
    began = time.perf_counter()
    last, last_at = 0, 0.0  # how many were done when one was last found to be done
    while not stop.wait(PLAIN_SECONDS):
        done, spent = count(), time.perf_counter() - began
        if done > last:
            last, last_at = done, spent
        left = last_at / done * (total + 1 - done) - (spent - last_at) if done else 0.0
        output.say(f"{done} of {total} fits" + (f", about {left:.0f} s left" if left > 0 else ""))


def _watch_bar(count: Callable[[], int], total: int, stop: threading.Event, _: Output) -> None:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(file=sys.stderr), transient=True) as bar:
        task = bar.add_task("fits", total=total + 1)
        while not stop.wait(0.2):
            done = count()
            bar.update(task, completed=done, description="fits" if done < total else "all rows")
