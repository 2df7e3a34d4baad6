"""Tables: named columns from a file, whatever its format, in a data frame."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
from numpy.typing import NDArray

from regbayes.cli import Format
from regbayes.cli.errors import BadDataError, listed, not_among

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Table", "check_size", "check_table", "format_of", "make_frame", "read_table", "text_of"]

SUFFIXES: dict[str, Format] = {
    ".csv": "csv",
    ".tsv": "csv",
    ".txt": "csv",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".npz": "npz",
    ".npy": "npy",
    ".libsvm": "libsvm",
    ".svm": "libsvm",
    ".svmlight": "libsvm",
}
ELSEWHERE = {  # tables that people have, and other programs write out as CSV
    **dict.fromkeys((".xlsx", ".xls", ".xlsm", ".ods"), "a spreadsheet"),
    **dict.fromkeys((".json", ".jsonl"), "JSON"),
    ".arff": "ARFF",
    **dict.fromkeys((".pkl", ".pickle"), "a pickle"),
    **dict.fromkeys((".sav", ".dta", ".sas7bdat", ".rds", ".rdata"), "a file of a statistics program"),
    **dict.fromkeys((".feather", ".h5", ".hdf5", ".db", ".sqlite"), "a database or binary table"),
}
MAX_CELLS = 250_000_000  # two gigabytes of numbers; the models hold inputs densely


@dataclass(frozen=True, eq=False)
class Table:
    """Rows of a file, and what the file says about its columns."""

    frame: pd.DataFrame  # columns of numbers (float64, NaN where missing) and of text (object, None where missing)
    source: str  # the file's name, for messages
    inputs: tuple[str, ...] | None = None  # the columns that may be inputs; None: all
    targets: tuple[str, ...] = ()  # what the file itself calls targets
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # names that stand for several columns
    absent_is_zero: bool = False  # whether a column that is not there is zero everywhere, as in sparse files
    notes: tuple[str, ...] = ()  # what looks wrong to the reader
    remarks: tuple[str, ...] = ()  # how it read columns, where that is not plain to see
    first: int | None = None  # the lowest number of a column, where columns are called by numbers
    counts: Any = None  # of words in rows, a sparse matrix of shape (rows, words); None: there are columns alone
    words: tuple[str, ...] = ()  # what the columns of `counts` are called
    text: tuple[str, ...] = ()  # columns that hold the text of documents, where the source says so
    keys: tuple[str, ...] = ()  # columns that name rows

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns."""
        return tuple(self.frame.columns)

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return len(self.frame) if self.counts is None else int(self.counts.shape[0])

    def __contains__(self, name: str) -> bool:
        return name in self.frame

    def column(self, name: str, option: str | None = None) -> NDArray[Any]:
        """Return a column; an error that lists the columns, and the option that named it, if there is none."""
        if name in self:
            return self.frame[name].to_numpy()
        if self.absent_is_zero and (name.isdigit() or name.startswith("label=")):
            return np.zeros(self.n_rows)
        said = "" if option is None else f"{option}: "
        raise BadDataError(f"{said}{self.source} has no column {name!r}; {not_among(name, self.names)}")

    def select(self, names: Iterable[str]) -> pd.DataFrame:
        """Return the columns that a model was fitted to; an error that lists those that lack."""
        wanted = list(names)
        absent = [name for name in wanted if name not in self]
        if absent and not self.absent_is_zero:
            raise BadDataError(
                f"{self.source} lacks columns that the model was fitted to: {listed(absent)}. It has "
                f"{listed(self.names)}{self._other_names(absent)}"
            )
        return self.frame.reindex(columns=wanted, fill_value=0.0) if absent else self.frame[wanted]

    def _other_names(self, absent: list[str]) -> str:
        """Say of columns that lack which are there by names that differ in case or spaces alone."""
        here = {name.strip().casefold(): name for name in self.names}
        found = [here[name.strip().casefold()] for name in absent if name.strip().casefold() in here]
        if not found:
            return ""
        return f". Names must be the same, upper and lower case too: rename {listed(found)}"

    def take(self, rows: NDArray[Any]) -> Table:
        """Return some of the rows, by their places or by flags."""
        places = np.flatnonzero(rows) if rows.dtype == bool else rows
        return replace(self, frame=self.frame.iloc[places], counts=None if self.counts is None else self.counts[places])


def make_frame(columns: Iterable[tuple[str, Any]]) -> pd.DataFrame:
    """Put columns together: numbers stay numbers, and text keeps None where it is missing."""
    import pandas as pd

    named = list(columns)
    frame = pd.DataFrame({i: pd.Series(values, dtype=_kind_of(values)) for i, (_, values) in enumerate(named)})
    return frame.set_axis([name for name, _ in named], axis=1)  # now: two columns may have one name


def _kind_of(values: Any) -> type:
    return np.float64 if np.asarray(values).dtype.kind in "biuf" else object


def text_of(column: NDArray[Any]) -> list[str | None]:
    """Return a column as text: whole numbers without a decimal point, None where missing."""
    if column.dtype == object:
        return [None if value is None else str(value) for value in column]
    return [None if not np.isfinite(value) else str(plain_number(value)) for value in column.tolist()]


def plain_number(value: float) -> int | float:
    """Return a whole number as an int."""
    return int(value) if float(value).is_integer() else float(value)


def format_of(path: str) -> Format:
    """Return the format that a file's name stands for."""
    if path == "-":
        return "csv"
    suffixes = [suffix.lower() for suffix in Path(path).suffixes]
    if suffixes and suffixes[-1] == ".gz":
        suffixes.pop()
    found = SUFFIXES.get(suffixes[-1]) if suffixes else None
    if suffixes and suffixes[-1] in ELSEWHERE:
        raise BadDataError(
            f"{path!r} looks like {ELSEWHERE[suffixes[-1]]}, which is not read here: save the table as CSV or Parquet"
        )
    if found is None:
        raise BadDataError(
            f"cannot tell the format of {path!r} from its name; known are {', '.join(SUFFIXES)}. Say it with --format, "
            f"one of {', '.join(get_args(Format))}"
        )
    return found


def read_table(path: str, *, format: Format | None = None, sparse: bool = False, **csv: Any) -> Table:  # noqa: A002
    """Read a table from a CSV, Parquet, NPZ, NPY or LIBSVM file, or CSV from stdin (``-``).

    Parameters
    ----------
    path : str
    format : str, optional
        The file's format, where its name does not say it.
    sparse : bool
        Whether the inputs of NPZ and LIBSVM files are counts of words, which stay sparse.
    **csv
        Options of `regbayes.cli.readers.read_csv`; other formats need none.

    Raises
    ------
    BadDataError
        If there is no such file, it cannot be read, or it has no rows; the message says what to do.
    """
    from regbayes.cli import readers

    if path != "-" and not os.path.exists(path):
        raise BadDataError(f"there is no file {path!r}")
    if os.path.isdir(path):
        raise BadDataError(f"{path!r} is a folder, not a file; a folder of documents goes with --model medlda")
    found = format or format_of(path)
    if path == "-" and found != "csv":
        raise BadDataError(f"only CSV is read from stdin; put the {found} into a file")
    try:
        if found == "csv":
            return check_table(readers.read_csv(path, **csv))
        if found in readers.SPARSE:
            return check_table(readers.SPARSE[found](path, sparse=sparse))
        return check_table(readers.DENSE[found](path))
    except OSError as error:
        raise BadDataError(f"cannot read {path!r}: {error.strerror or error}") from None
    except MemoryError:
        raise BadDataError(f"{path!r} is too large for this machine's memory") from None


def check_table(table: Table) -> Table:
    """Return a table that has rows, and columns of different names; raise an error otherwise."""
    if not table.names and table.counts is None:
        raise BadDataError(f"{table.source} has no columns")
    if table.n_rows == 0:
        raise BadDataError(f"{table.source} has no rows, only names of columns")
    doubled = table.frame.columns.duplicated()
    if doubled.any():
        names = sorted(set(table.frame.columns[doubled]))
        raise BadDataError(f"{table.source} has several columns of one name: {listed(names)}. Rename them")
    return table


def check_size(shape: tuple[int, ...], source: str) -> None:
    """Refuse what would not fit into memory as dense numbers."""
    n_rows, n_columns = shape
    if n_rows * n_columns > MAX_CELLS:
        raise BadDataError(
            f"{source} has {n_rows} rows and {n_columns} columns, which as dense numbers take "
            f"{8 * n_rows * n_columns / 1e9:.0f} GB. If they are counts of words: --model medlda keeps them sparse. "
            "Otherwise choose fewer rows or columns, or save it as Parquet, which fit, predict and evaluate read in "
            "blocks"
        )
