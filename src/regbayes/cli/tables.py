"""Tables: named columns of numbers and of text, whatever file they come from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from regbayes.cli.errors import BadDataError, listed, not_among

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Table", "as_column", "make_frame", "plain_number", "text_of"]

EXACT = 2**53  # from here on a whole number may not be a double


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
    counts: Any = None  # of words in rows, a sparse matrix (rows, words); None: there are columns alone
    words: tuple[str, ...] = ()  # names of the columns of `counts`
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
        """Return a column; the error for an unknown one lists the columns, and the option that named it."""
        if name in self:
            return self.frame[name].to_numpy()
        if self.absent_is_zero and (name.isdigit() or name.startswith("label=")):
            return np.zeros(self.n_rows)
        said = "" if option is None else f"{option}: "
        raise BadDataError(f"{said}{self.source} has no column {name!r}; {not_among(name, self.names)}")

    def select(self, names: Iterable[str]) -> pd.DataFrame:
        """Return the columns that a model was fitted to."""
        wanted = list(names)
        absent = [name for name in wanted if name not in self]
        if absent and not self.absent_is_zero:
            folded = {name.strip().casefold() for name in self.names}
            differ = any(name.strip().casefold() in folded for name in absent)
            hint = ". Names must agree in upper and lower case" if differ else ""
            raise BadDataError(
                f"{self.source} lacks columns that the model was fitted to: {listed(absent)}. It has "
                f"{listed(self.names)}{hint}"
            )
        return self.frame.reindex(columns=wanted, fill_value=0.0) if absent else self.frame[wanted]

    def take(self, kept: NDArray[Any]) -> Table:
        """Return some of the rows, by flags."""
        counts = None if self.counts is None else self.counts[np.flatnonzero(kept)]
        return replace(self, frame=self.frame[kept], counts=counts)


def make_frame(columns: Iterable[tuple[str, Any]]) -> pd.DataFrame:
    """Put columns together: numbers stay numbers, and text keeps None where it is missing."""
    import pandas as pd

    named = list(columns)
    kinds = [np.float64 if np.asarray(values).dtype.kind in "biuf" else object for _, values in named]
    frame = pd.DataFrame({i: pd.Series(values, dtype=kinds[i]) for i, (_, values) in enumerate(named)})
    return frame.set_axis([name for name, _ in named], axis=1)  # two columns may have one name


def as_column(values: Any, name: str = "") -> NDArray[Any]:
    """Return numbers with NaN, or text with None, where they are missing; numbers that would lose digits are text.

    Raises
    ------
    BadDataError
        If the values are complex numbers.
    """
    import pandas as pd

    series = pd.Series(values)
    types = pd.api.types
    if types.is_complex_dtype(series):
        raise BadDataError(f"column {name!r} holds complex numbers; save their real and imaginary parts as columns")
    number = types.is_numeric_dtype(series) and not types.is_bool_dtype(series)
    if number or types.infer_dtype(series, skipna=True) == "decimal":
        found = series.to_numpy(dtype=np.float64, na_value=np.nan)
        if not types.is_integer_dtype(series) or not np.any(np.abs(found) >= EXACT):
            return found
    texts = ["" if gone else str(value).strip() for value, gone in zip(series, series.isna(), strict=True)]
    return np.array([text or None for text in texts], dtype=object)


def text_of(column: NDArray[Any]) -> list[str | None]:
    """Return a column as text: whole numbers without a decimal point, None where missing."""
    if column.dtype == object:
        return [None if value is None else str(value) for value in column]
    return [None if not np.isfinite(value) else str(plain_number(value)) for value in column.tolist()]


def plain_number(value: float) -> int | float:
    """Return a whole number as an int."""
    return int(value) if float(value).is_integer() else float(value)
