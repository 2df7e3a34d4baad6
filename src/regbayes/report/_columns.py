"""Columns of the user's table and their encoding as model inputs."""

from __future__ import annotations

import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from regbayes._types import Floats, Integers
from regbayes.report.data import LIMITS, Cell

MISSING = "(missing)"

Edit = tuple[int, Any, Any]  # column, indices of rows and their new values


@dataclass(frozen=True)
class Columns:
    """Named columns of the user's table."""

    table: Any  # a data frame, or an array of shape (rows, columns)
    names: list[str]

    @staticmethod
    def read(X: Any, names: Sequence[str] | None, unnamed: str = "input ") -> Columns | None:
        """Return the columns of a dense table, or None; `unnamed` is a prefix of numbers."""
        if scipy.sparse.issparse(X) or isinstance(X, str):
            return None
        if hasattr(X, "iloc") and hasattr(X, "columns"):
            own = shorten_names(X.columns)
        else:
            X = np.asarray(X)
            if X.ndim != 2:
                return None
            X = X.astype(object) if X.dtype.kind in "US" else X
            own = [f"{unnamed}{place}" for place in range(X.shape[1])]
        return Columns(X, own if names is None or len(names) != len(own) else [str(name) for name in names])

    def __len__(self) -> int:
        return len(self.table)

    def values(self, place: int) -> NDArray[Any]:
        """Return a column as an array: pandas extension numbers as floats, others with None for missing values."""
        if isinstance(self.table, np.ndarray):
            return self.table[:, place]
        series = self.table.iloc[:, place]
        if isinstance(series.dtype, np.dtype):
            return np.asarray(series)
        if series.dtype.kind in "iuf":
            return np.asarray(series.to_numpy(dtype=np.float64, na_value=np.nan))
        return np.asarray(series.to_numpy(dtype=object, na_value=None))

    def column(self, place: int) -> NDArray[Any]:
        """Return a column as finite floats with NaN, or as objects with None."""
        column = self.values(place)
        if column.dtype.kind in "iuf":
            numbers = column.astype(np.float64)
            return np.where(np.isinf(numbers), np.nan, numbers)
        found = np.empty(len(column), dtype=object)
        found[:] = [
            None if value is None or value != value else value for value in column.tolist()
        ]  # NaN is not itself
        return found

    def take(self, rows: Integers, edits: Iterable[Edit] = ()) -> Any:
        """Return rows in the user's input type, with some values edited."""
        if isinstance(self.table, np.ndarray):
            return _edit(self.table[rows], [((where, place), values) for place, where, values in edits])
        import pandas as pd

        found, by_place = self.table.iloc[rows].reset_index(drop=True), defaultdict(list)
        for place, where, values in edits:
            by_place[place].append((where, values))
        for place, some in by_place.items():
            dtype, values = self.table.dtypes.iloc[place], _edit(self.values(place)[rows], some)
            keeps = (
                not isinstance(dtype, np.dtype) and dtype.kind not in "iuf"
            )  # a step of an integer may be fractional
            found.isetitem(place, pd.Series(values, dtype=dtype if keeps else values.dtype))
        return found

    def cells(self, rows: Integers, places: Sequence[int]) -> tuple[tuple[Cell, ...], ...]:
        """Return values of some rows and columns, with categories as text."""
        columns = [[_cell(value) for value in self.column(place)[rows].tolist()] for place in places]
        return tuple(zip(*columns, strict=True)) if columns else ((),) * len(rows)

    def categories(self, place: int) -> list[Any]:
        """Return the categories of a column by frequency, or none if there are too many."""
        counts = Counter(value for value in self.column(place).tolist() if value is not None)
        if len(counts) > LIMITS.distinct_texts:
            return []
        return sorted(counts, key=lambda value: (-counts[value], str(value)))[: LIMITS.categories]

    def deviations(self) -> Floats:
        """Return standard deviations of numeric columns, and NaN for others."""
        columns = (self.column(place) for place in range(len(self.names)))
        known = ((column.dtype != object and np.isfinite(column).any(), column) for column in columns)
        return np.array([float(np.nanstd(column)) if is_number else np.nan for is_number, column in known])


def _edit(values: NDArray[Any], edits: Sequence[tuple[Any, Any]]) -> NDArray[Any]:
    """Return an array with some entries replaced, in a type that can hold numbers and categories."""
    if edits and values.dtype.kind in "biu":
        values = values.astype(object if values.dtype.kind == "b" else np.float64)
    for where, new in edits:
        values[where] = new
    return values


def _cell(value: Any) -> Cell:
    if value is None or (isinstance(value, float) and not np.isfinite(value)):
        return MISSING
    return float(value) if isinstance(value, float | int) and not isinstance(value, bool) else str(value)


def shorten_names(names: Iterable[Any]) -> list[str]:
    """Strip prefixes such as ``standardscaler__`` from names if the rest is unique."""
    whole = [str(name) for name in names]
    short = [name.rsplit("__", 1)[-1] or name for name in whole]
    return short if len(set(short)) == len(set(whole)) else whole


def dense_rows(X: Any, rows: Integers) -> NDArray[Any]:
    """Return rows of any container as a dense array."""
    if scipy.sparse.issparse(X):
        return np.asarray(X.tocsr()[rows].toarray())
    return np.asarray(X.iloc[rows] if hasattr(X, "iloc") else np.asarray(X)[rows])


@dataclass(frozen=True)
class Encoding:
    """Names of the model's inputs and their source columns."""

    names: list[str]  # (D,)
    sources: Integers  # (D,): source column; -1 if there is none or there are several
    units: Floats  # (D,): units of the column per unit of the input; NaN if undefined

    @staticmethod
    def of(columns: Columns, transform: Callable[[Any], Any], names: list[str]) -> Encoding:
        """Match the model's inputs to columns by their names.

        An input with the name of a column is that column, possibly scaled. An input whose name begins with that of a
        column ("place_north" of an encoder) is one of its categories.
        """
        called, sources = list(names), np.full(len(names), -1)
        deviations, place_of = columns.deviations(), {name: place for place, name in enumerate(columns.names)}
        for j, name in enumerate(called):
            if name in place_of:
                sources[j] = place_of[name]
                continue
            starts = [one for one in place_of if name.startswith(one) and not name[len(one) : len(one) + 1].isalnum()]
            column = max(starts, key=len, default="")
            if column and np.isnan(deviations[place_of[column]]):
                sources[j] = place_of[column]
                called[j] = f"{column} = {name[len(column) :].lstrip('_= ')}"
        return Encoding(called, sources, _measure_units(columns, transform, called, deviations))


def _measure_units(columns: Columns, transform: Callable[[Any], Any], called: list[str], deviations: Floats) -> Floats:
    """Return the scales of inputs that are rescaled columns, from finite differences."""
    numbers = [place for place, name in enumerate(columns.names) if name in called and deviations[place] > 0]
    edits: list[Edit] = []
    for i, place in enumerate(numbers):
        middle = float(np.nanmean(columns.column(place)))
        edits += [(place, slice(None), middle), (place, 2 * i + 1, middle + deviations[place])]
        edits.append((place, 2 * i + 2, middle - deviations[place]))
    rows = np.zeros(2 * len(numbers) + 1, dtype=np.int64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = dense_rows(transform(columns.take(rows, edits)), np.arange(len(rows))).astype(np.float64)
    units = np.full(len(called), np.nan)
    for i, place in enumerate(numbers):
        j = called.index(columns.names[place])
        up, down = found[2 * i + 1, j] - found[0, j], found[0, j] - found[2 * i + 2, j]
        if up != 0 and np.isclose(up, down, rtol=1e-6):
            units[j] = deviations[place] / up
    return units
