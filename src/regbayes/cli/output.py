"""Printed and written output of the commands.

Results go to stdout, everything else to stderr. Files are replaced atomically and never overwrite an input of the same
command. If the disk is full, a model is saved in another folder.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regbayes.cli.errors import UserError, need

if TYPE_CHECKING:
    from regbayes.cli.modelfile import ModelFile

QUIET_SECONDS = 15.0  # seconds between progress lines without a terminal


def called_as() -> str:
    """Return the command that runs regbayes here, for suggested next commands."""
    if shutil.which("regbayes") is not None:
        return "regbayes"
    own = Path(sys.argv[0])  # may belong to a virtual environment that is not activated
    return str(own) if own.stem == "regbayes" else "python -m regbayes"


class Output:
    """Printer of messages and results of a command.

    Parameters
    ----------
    json : bool
        Whether to print the result as one JSON object instead of text and tables.
    quiet : bool
        Whether to print only the result, warnings and errors.
    """

    def __init__(self, *, json: bool = False, quiet: bool = False) -> None:
        self.json = json
        self.quiet = quiet
        self.warnings: list[str] = []
        self._printed = time.monotonic()

    def say(self, text: str) -> None:
        """Print a status message on stderr."""
        if not self.quiet:
            _print(sys.stderr, text)

    def progress(self, text: str) -> None:
        """Print progress: one updated line in a terminal (cleared by an empty text), occasional lines otherwise."""
        if sys.stderr.isatty() and not self.quiet:
            sys.stderr.write(f"\r\033[K{text}")
            sys.stderr.flush()
        elif text and time.monotonic() - self._printed >= QUIET_SECONDS:
            self._printed = time.monotonic()
            self.say(text)

    def warn(self, text: str) -> None:
        """Print a warning on stderr, once."""
        if text not in self.warnings:
            self.warnings.append(text)
            _print(sys.stderr, text, "warning: ", "yellow")

    def line(self, text: str = "") -> None:
        """Print a line of the result, unless the result is JSON."""
        if not self.json:
            _print(sys.stdout, text)

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: bool = True) -> None:
        """Print a table of the result, unless the result is JSON; with `numbers`, all columns but the first are."""
        if self.json:
            return
        from rich import box
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        self.line(title)
        shown = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for i, column in enumerate(columns):
            shown.add_column(Text(column), justify="right" if i and numbers else "left", overflow="fold")
        for row in rows:
            shown.add_row(*(Text(str(cell)) for cell in row))
        Console(file=sys.stdout, width=None if sys.stdout.isatty() else 140).print(shown)

    def banner(self, text: str) -> None:
        """Print an important message on stderr in a frame."""
        from rich.console import Console
        from rich.panel import Panel
        from rich.text import Text

        self.warnings.append(text)
        Console(file=sys.stderr).print(Panel(Text(text), border_style="bold red"))

    def facts(self, facts: Mapping[str, str]) -> None:
        """Print names and values, unless the result is JSON."""
        width = max(len(name) for name in facts)
        for name, value in facts.items():
            self.line(f"{name:<{width}}  {value}")

    def result(self, payload: Mapping[str, Any]) -> None:
        """Print the result as JSON if ``--json`` was given."""
        if self.json:
            sys.stdout.write(json.dumps(jsonable({**payload, "warnings": self.warnings}), allow_nan=False) + "\n")

    @contextmanager
    def catch_warnings(self, *ignored: type[Warning]) -> Iterator[None]:
        """Collect Python warnings and print them at the end of the block."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("default")
            for category in (DeprecationWarning, PendingDeprecationWarning, FutureWarning, ResourceWarning, *ignored):
                warnings.simplefilter("ignore", category)
            for said in ("The number of unique classes", "The least populated class"):  # `fit` reports these itself
                warnings.filterwarnings("ignore", said)
            try:
                yield
            finally:
                for found in caught:
                    self.warn(str(found.message))


def jsonable(value: Any) -> Any:
    """Convert a value for JSON: NumPy values become numbers, non-finite ones null."""
    if isinstance(value, Mapping):
        return {str(key): jsonable(content) for key, content in value.items()}
    if isinstance(value, list | tuple):
        return [jsonable(element) for element in value]
    if hasattr(value, "tolist"):
        return jsonable(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def _print(file: Any, text: str, label: str = "", style: str = "") -> None:
    """Print text as it is, after a label in color."""
    from rich.console import Console

    console = Console(file=file)
    console.print(label, style=style, end="")
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def print_error(text: str) -> None:
    """Print an error on stderr."""
    _print(sys.stderr, text, "error: ", "bold red")


# --- files


def check_writable(path: str, *inputs: str | None) -> None:
    """Raise an error if an output is not writable or is an input of the command."""
    target = os.path.realpath(path)
    folder = os.path.dirname(target)
    if not os.path.isdir(folder):
        raise UserError(f"--output {path}: the folder {folder} does not exist")
    if os.path.exists(target) and not os.path.isfile(target):
        raise UserError(f"--output {path} is not a regular file; name a new file or one to replace")
    if not os.access(folder, os.W_OK):
        raise UserError(f"--output {path}: you may not write in the folder {folder}")
    if target in [os.path.realpath(given) for given in inputs if given]:
        raise UserError(f"--output {path} is the file that the command reads; choose another name")


@contextmanager
def replacing(path: str) -> Iterator[Path]:
    """Yield a temporary path that replaces the file only on success."""
    target = Path(os.path.realpath(path))
    temporary = target.with_name(f".{os.getpid()}-{target.name}")
    try:
        yield temporary
        os.replace(temporary, target)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}") from None
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def save_model(model: ModelFile, path: str, output: Output) -> str:
    """Save a model, if necessary in another folder, and return its path."""
    from regbayes.persistence import PersistenceError

    reasons = []
    for folder in (None, tempfile.gettempdir(), Path.home()):
        try:
            if folder is not None:  # a new folder, so that no other file is replaced
                folder = tempfile.mkdtemp(prefix="regbayes-", dir=folder)
            place = path if folder is None else os.path.join(folder, Path(path).name)
            model.save(place)
        except (PersistenceError, OSError) as error:
            reasons.append(str(error))
        else:
            if reasons:
                output.warn(f"{reasons[0]}. The model is in {place} instead: move it when the disk has space")
            return place
    raise UserError(f"the model is lost: {'; '.join(reasons)}")


def write_columns(columns: Mapping[str, Sequence[Any]], path: str | None) -> None:
    """Write columns of one length to a .csv, .npz or .parquet file, or as CSV to stdout."""
    import numpy as np
    import pandas as pd

    frame = pd.DataFrame(columns, dtype=object)  # keeps integers in columns with missing values
    if path is None:
        frame.to_csv(sys.stdout, index=False, lineterminator="\n")
        sys.stdout.flush()
        return
    suffix = check_suffix(path)
    with replacing(path) as temporary:
        if suffix == ".csv":
            frame.to_csv(temporary, index=False, lineterminator="\n")
        elif suffix == ".parquet":
            frame.to_parquet(temporary, engine="pyarrow", index=False)
        else:
            arrays = {name: np.array(["" if v is None else v for v in values]) for name, values in columns.items()}
            with temporary.open("wb") as file:  # given a path, NumPy would append a suffix
                np.savez_compressed(file, allow_pickle=False, **arrays)


def check_suffix(path: str) -> str:
    """Return the suffix of an output file; raise an error if it is not supported."""
    suffix = Path(path).suffix.lower()
    if suffix not in (".csv", ".npz", ".parquet"):
        raise UserError(f"--output {path}: the name should end in .csv, .npz or .parquet")
    if suffix == ".parquet":
        need("pyarrow.parquet", "writing Parquet")
    return suffix
