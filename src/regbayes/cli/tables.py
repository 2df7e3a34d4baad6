"""Tables: named columns from a file, whatever its format."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from regbayes.cli.errors import BadDataError, MissingPieceError, listed

__all__ = ["Format", "ReadOptions", "Table", "format_of", "read_table"]

Format = Literal["csv", "parquet", "npz", "arff", "libsvm"]

SUFFIXES: dict[str, Format] = {
    ".csv": "csv",
    ".tsv": "csv",
    ".txt": "csv",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".npz": "npz",
    ".arff": "arff",
    ".libsvm": "libsvm",
    ".svm": "libsvm",
    ".svmlight": "libsvm",
}
MAX_CELLS = 250_000_000  # two gigabytes of numbers; the models hold inputs densely


@dataclass(frozen=True)
class ReadOptions:
    """How a file is to be read, where its name and content do not say."""

    format: Format | None = None
    delimiter: str | None = None
    header: bool = True
    missing: tuple[str, ...] = ()  # texts that mark a missing value, beside the usual ones
    encoding: str = "utf-8"


@dataclass(frozen=True)
class Table:
    """Named columns of one length: numbers (float64, NaN where missing) or text (object, None where missing)."""

    names: tuple[str, ...]
    columns: tuple[NDArray[Any], ...]
    source: str  # the file's name, for messages
    inputs: tuple[str, ...] | None = None  # the columns that may be inputs; None: all
    targets: tuple[str, ...] = ()  # what the file itself calls targets
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # names that stand for several columns
    absent_is_zero: bool = False  # whether a column that is not there is zero everywhere, as in sparse files
    notes: tuple[str, ...] = ()  # what the reader wants to tell
    first: int | None = None  # the lowest number of a column, where columns are called by numbers
    counts: Any = None  # of words in rows, a sparse matrix of shape (rows, words); None: there are columns alone
    words: tuple[str, ...] = ()  # what the columns of `counts` are called
    text: tuple[str, ...] = ()  # columns that hold the text of documents, where the source says so
    keys: tuple[str, ...] = ()  # columns that name rows

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        if self.counts is not None:
            return int(self.counts.shape[0])
        return len(self.columns[0]) if self.columns else 0

    @cached_property
    def _places(self) -> dict[str, int]:
        return {name: place for place, name in enumerate(self.names)}

    def __contains__(self, name: str) -> bool:
        return name in self._places

    def column(self, name: str) -> NDArray[Any]:
        """Return a column; an error that lists the columns if there is none of this name."""
        if name in self._places:
            return self.columns[self._places[name]]
        if self.absent_is_zero and (name.isdigit() or name.startswith("label=")):
            return np.zeros(self.n_rows)
        raise BadDataError(f"{self.source} has no column {name!r}; it has {listed(self.names)}")

    def take(self, rows: NDArray[Any]) -> Table:
        """Return some of the rows."""
        counts = None if self.counts is None else self.counts[rows]
        return replace(self, columns=tuple(column[rows] for column in self.columns), counts=counts)


def format_of(path: str) -> Format:
    """Return the format that a file's name stands for."""
    if path == "-":
        return "csv"
    suffixes = [suffix.lower() for suffix in Path(path).suffixes]
    if suffixes and suffixes[-1] == ".gz":
        suffixes.pop()
    found = SUFFIXES.get(suffixes[-1]) if suffixes else None
    if found is None:
        raise BadDataError(
            f"cannot tell the format of {path!r} from its name; known are {', '.join(SUFFIXES)}. Say it with --format, "
            f"one of {', '.join(get_args(Format))}"
        )
    return found


def read_table(path: str, options: ReadOptions | None = None) -> Table:
    """Read a table from a CSV, Parquet, NPZ, ARFF or LIBSVM file, or CSV from stdin (``-``).

    Raises
    ------
    BadDataError
        If there is no such file, it cannot be read, or it has no rows; the message says what to do.
    """
    from regbayes.cli import readers

    options = options or ReadOptions()
    if path != "-":
        if not os.path.exists(path):
            raise BadDataError(f"there is no file {path!r}")
        if os.path.isdir(path):
            raise BadDataError(f"{path!r} is a folder, not a file; a folder of documents goes with --model medlda")
    found = options.format or format_of(path)
    if path == "-" and found != "csv":
        raise BadDataError(f"only CSV is read from stdin; put the {found} into a file")
    try:
        table = readers.read_csv(path, options) if found == "csv" else readers.BY_FORMAT[found](path)
    except OSError as error:
        raise BadDataError(f"cannot read {path!r}: {error.strerror or error}") from None
    except MemoryError:
        raise BadDataError(f"{path!r} is too large for this machine's memory") from None
    return checked(table)


def checked(table: Table) -> Table:
    """Return a table that has rows, and columns of different names; raise an error otherwise."""
    if not table.names and table.counts is None:
        raise BadDataError(f"{table.source} has no columns")
    if table.n_rows == 0:
        raise BadDataError(f"{table.source} has no rows, only names of columns")
    if len(set(table.names)) < len(table.names):
        doubled = sorted(name for name, count in Counter(table.names).items() if count > 1)
        raise BadDataError(f"{table.source} has several columns of one name: {listed(doubled)}. Rename them")
    return table


def check_size(n_rows: int, n_columns: int, source: str) -> None:
    """Refuse what would not fit into memory as dense numbers."""
    if n_rows * n_columns > MAX_CELLS:
        raise BadDataError(
            f"{source} has {n_rows} rows and {n_columns} columns, which as dense numbers take "
            f"{8 * n_rows * n_columns / 1e9:.0f} GB. If they are counts of words: --model medlda keeps them sparse. "
            "Otherwise choose fewer columns first"
        )


def read_bytes(path: str) -> bytes:
    """Return the content of a file or of stdin, unpacked if its name ends in .gz."""
    if path == "-":
        return sys.stdin.buffer.read()
    content = Path(path).read_bytes()
    if not path.endswith(".gz"):
        return content
    import gzip
    import zlib

    try:
        return gzip.decompress(content)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise BadDataError(f"{path!r} is not a whole gzip file: {error}") from None


def need(module: str, extra: str, what: str) -> Any:
    """Import an optional package, or say how to install it."""
    import importlib

    try:
        return importlib.import_module(module)
    except ImportError:
        package = module.partition(".")[0]
        raise MissingPieceError(
            f"{what} needs {package}, which is not installed: pip install 'regbayes[{extra}]'"
        ) from None
