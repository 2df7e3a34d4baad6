"""What a command prints: results go to stdout, everything else to stderr."""

from __future__ import annotations

import json
import math
import shutil
import sys
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

__all__ = ["Output", "called_as"]

QUIET_SECONDS = 15.0  # between lines about progress


def called_as() -> str:
    """Return how regbayes can be called again here, for lines that say what comes next."""
    if shutil.which("regbayes") is not None:
        return "regbayes"
    own = Path(sys.argv[0])  # of a virtual environment that is not activated
    return str(own) if own.stem == "regbayes" else "python -m regbayes"


class Output:
    """What a command prints.

    Parameters
    ----------
    json : bool
        Whether the result is one JSON object instead of text and tables.
    quiet : bool
        Whether to leave out everything but the result, warnings and errors.
    """

    def __init__(self, *, json: bool = False, quiet: bool = False) -> None:
        self.json = json
        self.quiet = quiet
        self.warnings: list[str] = []
        self._spoke = time.monotonic()

    def say(self, text: str) -> None:
        """Say what is being done, on stderr."""
        if not self.quiet:
            _console(sys.stderr).print(text, markup=False, highlight=False, soft_wrap=True)

    def progress(self, text: str) -> None:
        """Say how far something is: always on the same line of a terminal, and seldom elsewhere."""
        terminal = sys.stderr.isatty()
        if terminal and not self.quiet:
            sys.stderr.write(f"\r\033[K{text}")
            sys.stderr.flush()
        elif time.monotonic() - self._spoke >= QUIET_SECONDS:
            self._spoke = time.monotonic()
            self.say(text)

    def end_progress(self) -> None:
        """Clear the line of `progress`."""
        if sys.stderr.isatty() and not self.quiet:
            sys.stderr.write("\r\033[K")

    def warn(self, text: str) -> None:
        """Say what the user should know, on stderr, once."""
        if text not in self.warnings:
            self.warnings.append(text)
            console = _console(sys.stderr)
            console.print("warning: ", style="yellow", end="")
            console.print(text, markup=False, highlight=False, soft_wrap=True)

    def line(self, text: str = "") -> None:
        """Print a line of the result, unless the result is JSON."""
        if not self.json:
            _console(sys.stdout).print(text, markup=False, highlight=False, soft_wrap=True)

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: bool = True) -> None:
        """Print a table of the result, unless the result is JSON. All columns but the first are numbers, or none is."""
        if self.json:
            return
        from rich import box
        from rich.table import Table
        from rich.text import Text

        self.line(title)
        shown = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for i, column in enumerate(columns):
            shown.add_column(Text(column), justify="left" if i == 0 or not numbers else "right", overflow="fold")
        for row in rows:
            shown.add_row(*(Text(str(cell)) for cell in row))
        _console(sys.stdout).print(shown)

    def banner(self, text: str) -> None:
        """Say on stderr, in a frame, what must not be overlooked."""
        from rich.panel import Panel
        from rich.text import Text

        self.warnings.append(text)
        _console(sys.stderr).print(Panel(Text(text), border_style="bold red"))

    def facts(self, facts: Mapping[str, str]) -> None:
        """Print names and values, unless the result is JSON."""
        width = max((len(name) for name in facts), default=0)
        for name, value in facts.items():
            self.line(f"{name:<{width}}  {value}")

    def result(self, payload: Mapping[str, Any]) -> None:
        """Print the result as JSON, if it was asked for."""
        if self.json:
            sys.stdout.write(json.dumps({**jsonable(payload), "warnings": self.warnings}, allow_nan=False) + "\n")

    @contextmanager
    def catch_warnings(self, *ignored: type[Warning]) -> Iterator[list[warnings.WarningMessage]]:
        """Turn Python's warnings into lines of ours, at the end; yields the list that they are collected in."""
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("default")
            for category in (DeprecationWarning, PendingDeprecationWarning, FutureWarning, ResourceWarning, *ignored):
                warnings.simplefilter("ignore", category)
            warnings.filterwarnings("ignore", "The number of unique classes")  # `decide` has said so
            warnings.filterwarnings("ignore", "The least populated class")
            try:
                yield heard
            finally:
                for found in heard:
                    self.warn(str(found.message))


def jsonable(value: Any) -> Any:
    """Return plain Python for JSON: NumPy values as numbers, what is not finite as null."""
    if isinstance(value, Mapping):
        return {str(key): jsonable(content) for key, content in value.items()}
    if isinstance(value, list | tuple):
        return [jsonable(element) for element in value]
    if hasattr(value, "tolist"):
        return jsonable(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return str(value)


def _console(file: Any) -> Any:
    from rich.console import Console

    return Console(file=file)
