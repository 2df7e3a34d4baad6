"""Columns of the user's table and their encoding as model inputs."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from regbayes._types import Floats, Integers
from regbayes.report.data import LIMITS, Cell

MAX_KINDS = 200  # text columns with more distinct values are not categories
MISSING = "(missing)"

Edit = tuple[int, Any, Any]  # column, indices of rows and their new values


@dataclass(frozen=True)
class Columns:
    """Named columns that can be converted back to the user's input type."""

    raw: list[NDArray[Any]]  # (columns,) of (rows,): original values, including missing ones
    names: list[str]
    make: Callable[[list[NDArray[Any]]], Any]

    @staticmethod
    def read(X: Any, names: Sequence[str] | None, unnamed: str = "input ") -> Columns | None:
        """Return the columns of a dense table, or None; `unnamed` is a prefix of numbers."""
        if scipy.sparse.issparse(X) or isinstance(X, str):
            return None
        if hasattr(X, "iloc") and hasattr(X, "columns"):
            raw = [_raw_column(X.iloc[:, place]) for place in range(X.shape[1])]
            own, make = X.columns, _frame_maker(X)
        else:
            table = np.asarray(X)
            if table.ndim != 2:
                return None
            table = table.astype(object) if table.dtype.kind in "US" else table
            raw, own = list(table.T), [f"{unnamed}{place}" for place in range(table.shape[1])]
            make = _as_rows
        if names is None or len(names) != len(raw):
            names = shorten_names(own)
        return Columns(raw, [str(name) for name in names], make)

    def __len__(self) -> int:
        return len(self.raw[0])

    def column(self, place: int) -> NDArray[Any]:
        """Return a column as finite floats with NaN, or as objects with None."""
        column = self.raw[place]
        if column.dtype.kind in "iuf":
            numbers = column.astype(np.float64)
            return np.where(np.isinf(numbers), np.nan, numbers)
        # NaN is not equal to itself.
        return _objects([None if value is None or value != value else value for value in column.tolist()])

    def take(self, rows: Integers, edits: Iterable[Edit] = ()) -> Any:
        """Return rows in the user's input type, with some values edited."""
        arrays = [column[rows] for column in self.raw]
        for place, where, values in edits:
            if arrays[place].dtype.kind in "biu":
                arrays[place] = arrays[place].astype(object if arrays[place].dtype.kind == "b" else np.float64)
            arrays[place][where] = values
        return self.make(arrays)

    def cells(self, rows: Integers, places: Sequence[int]) -> tuple[tuple[Cell, ...], ...]:
        """Return values of some rows and columns, with categories as text."""
        columns = [[_cell(value) for value in self.column(place)[rows].tolist()] for place in places]
        return tuple(zip(*columns, strict=True)) if columns else ((),) * len(rows)

    def categories(self, place: int) -> list[Any]:
        """Return the categories of a column by frequency, or none if there are too many."""
        counts = Counter(value for value in self.column(place).tolist() if value is not None)
        if len(counts) > MAX_KINDS:
            return []
        return sorted(counts, key=lambda value: (-counts[value], str(value)))[: LIMITS.categories]

    def deviations(self) -> Floats:
        """Return standard deviations of numeric columns, and NaN for others."""
        found = np.full(len(self.names), np.nan)
        for place in range(len(self.names)):
            column = self.column(place)
            if column.dtype != object and np.isfinite(column).any():
                found[place] = float(np.nanstd(column))
        return found


def _raw_column(series: Any) -> NDArray[Any]:
    """Return a column as an array: pandas extension numbers as floats, others with None for missing values."""
    if isinstance(series.dtype, np.dtype):
        return np.asarray(series)
    if series.dtype.kind in "iuf":
        return np.asarray(series.to_numpy(dtype=np.float64, na_value=np.nan))
    return np.asarray(series.to_numpy(dtype=object, na_value=None))


def _frame_maker(frame: Any) -> Callable[[list[NDArray[Any]]], Any]:
    """Return a function that rebuilds a frame with the original names and types from columns."""
    import pandas as pd

    kept = {
        place: dtype
        for place, dtype in enumerate(frame.dtypes)
        if not isinstance(dtype, np.dtype) and dtype.kind not in "iuf"  # a step of an integer column may be fractional
    }
    names = frame.columns

    def make(columns: list[NDArray[Any]]) -> Any:
        if all(column.dtype == np.float64 for column in columns) and not kept:
            return pd.DataFrame(np.array(columns).T, columns=names)  # faster than one series per column
        made = {i: pd.Series(values, dtype=kept.get(i, values.dtype)) for i, values in enumerate(columns)}
        return pd.DataFrame(made).set_axis(names, axis=1)  # set afterwards, because names may be duplicated

    return make


def _as_rows(columns: list[NDArray[Any]]) -> NDArray[Any]:
    return np.array(columns, dtype=object if any(column.dtype == object for column in columns) else None).T


def _objects(values: list[Any]) -> NDArray[Any]:
    found = np.empty(len(values), dtype=object)
    found[:] = values
    return found


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
    def of(columns: Columns, transform: Callable[[Any], Any], names: list[str] | None, n_inputs: int) -> Encoding:
        """Match the model's inputs to columns by their names.

        An input with the name of a column is that column, possibly scaled. An input whose name begins with that of a
        column ("place_north" of an encoder) is one of its categories.
        """
        if names is None or len(names) != n_inputs:
            names = [f"input {place}" for place in range(n_inputs)]
        called, sources = shorten_names(names), np.full(n_inputs, -1)
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
