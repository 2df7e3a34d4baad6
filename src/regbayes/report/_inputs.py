"""The inputs as the user gave them, and how they become those of the model: scaled, encoded, or as they are."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from regbayes._types import Floats, Integers
from regbayes.report._examples import dense_rows
from regbayes.report.data import Cell

MAX_CATEGORIES = 20  # of one column that are compared
MAX_KINDS = 200  # different texts in a column, above which it is no category
MISSING = "(missing)"


Edit = tuple[int, Any, Any]  # a column, places among the rows, and the values that they get


@dataclass(frozen=True)
class Columns:
    """Rows of named columns, of numbers and of categories, and how to make of them what the user's model takes."""

    raw: list[NDArray[Any]]  # (columns,) of (rows,): as they were given, missing values too
    names: list[str]
    make: Callable[[list[NDArray[Any]]], Any]

    @staticmethod
    def read(X: Any, names: Sequence[str] | None, unnamed: str = "input ") -> Columns | None:
        """Return the columns of what was given; None where it is no dense table, documents for instance.

        Columns without names are numbered, behind the word `unnamed`.
        """
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
            make = _object_rows if table.dtype == object else _number_rows
        if names is None or len(names) != len(raw):
            names = shorten_names([str(name) for name in own])
        return Columns(raw, [str(name) for name in names], make)

    def __len__(self) -> int:
        return len(self.raw[0])

    def column(self, place: int) -> NDArray[Any]:
        """Return a column: numbers as floats, NaN where infinite; or objects with None where they are missing."""
        column = self.raw[place]
        if column.dtype.kind in "iuf":
            numbers = column.astype(np.float64)
            return np.where(np.isinf(numbers), np.nan, numbers)
        return _as_objects(column)

    def take(self, rows: Integers, edits: Sequence[Edit] = ()) -> Any:
        """Return some rows as the model takes them, with other values in some places."""
        arrays = [column[rows] for column in self.raw]
        for place, where, values in edits:
            if arrays[place].dtype.kind in "biu":
                arrays[place] = arrays[place].astype(object if arrays[place].dtype.kind == "b" else np.float64)
            arrays[place][where] = values
        return self.make(arrays)

    def cells(self, rows: Integers, places: Sequence[int]) -> tuple[tuple[Cell, ...], ...]:
        """Return values of some rows and columns: numbers, and categories as text."""
        columns = [[_cell(value) for value in self.column(place)[rows].tolist()] for place in places]
        return tuple(tuple(row) for row in zip(*columns, strict=True)) if columns else ((),) * len(rows)

    def categories(self, place: int) -> list[Any]:
        """Return the values of a column of categories, the most frequent first; none where there are too many."""
        counts = Counter(value for value in self.column(place).tolist() if value is not None)
        if len(counts) > MAX_KINDS:
            return []
        return sorted(counts, key=lambda value: (-counts[value], str(value)))[:MAX_CATEGORIES]

    def typical(self) -> Columns:
        """Return one row: medians of numbers, and the most frequent categories."""
        found = []
        for place, raw in enumerate(self.raw):
            column = self.column(place)
            if column.dtype == object:
                usual = self.categories(place)[:1] or raw[:1].tolist()
                found.append(_objects(usual) if raw.dtype.kind in "OUSb" else np.array(usual, dtype=raw.dtype))
            else:
                finite = column[np.isfinite(column)]
                found.append(np.array([np.median(finite) if len(finite) else np.nan]))
        return Columns(found, self.names, self.make)

    def deviations(self) -> Floats:
        """Return standard deviations of the numbers; NaN of other columns."""
        found = np.full(len(self.names), np.nan)
        for place in range(len(self.names)):
            column = self.column(place)
            if column.dtype != object and np.isfinite(column).any():
                found[place] = float(np.std(column[np.isfinite(column)]))
        return found


def _raw_column(series: Any) -> NDArray[Any]:
    """Return a column as it is; of pandas' own types numbers as floats, and others with None where they are missing."""
    if isinstance(series.dtype, np.dtype):
        return np.asarray(series)
    if series.dtype.kind in "iuf":
        return np.asarray(series.to_numpy(dtype=np.float64, na_value=np.nan))
    return np.asarray(series.to_numpy(dtype=object, na_value=None))


def _frame_maker(frame: Any) -> Callable[[list[NDArray[Any]]], Any]:
    """Return a function that puts columns together again, with the names and the types of a frame."""
    import pandas as pd

    kept = {
        place: dtype
        for place, dtype in enumerate(frame.dtypes)
        if not isinstance(dtype, np.dtype) and dtype.kind not in "iuf"  # a step of a whole number may be a fraction
    }
    names = frame.columns

    def make(columns: list[NDArray[Any]]) -> Any:
        if all(column.dtype == np.float64 for column in columns) and not kept:
            return pd.DataFrame(_number_rows(columns), columns=names)  # at once: there may be thousands
        made = {i: pd.Series(values, dtype=kept.get(i, values.dtype)) for i, values in enumerate(columns)}
        return pd.DataFrame(made).set_axis(names, axis=1)  # now: two columns may have one name

    return make


def _number_rows(columns: list[NDArray[Any]]) -> NDArray[Any]:
    return np.array(columns).T


def _object_rows(columns: list[NDArray[Any]]) -> NDArray[Any]:
    found = np.empty((len(columns[0]), len(columns)), dtype=object)
    for place, column in enumerate(columns):
        found[:, place] = column
    return found


def _as_objects(column: NDArray[Any]) -> NDArray[Any]:
    found = np.empty(len(column), dtype=object)
    found[:] = [None if value is None or value != value else value for value in column.tolist()]  # NaN is not itself
    return found


def _cell(value: Any) -> Cell:
    if value is None:
        return MISSING
    if isinstance(value, float | int) and not isinstance(value, bool):
        return float(value) if np.isfinite(value) else MISSING
    return str(value)


@dataclass(frozen=True)
class Encoding:
    """Where the model's inputs come from: the column of each, and what a unit of the column is worth there.

    It is found by trying: one column of a typical row is changed at a time, and what comes out is looked at.
    """

    names: list[str]  # (D,): of the model's inputs, in the user's words where they come from one column
    sources: Integers  # (D,): the column that an input comes from; -1 where there are none or several
    units: Floats  # (D,): how many units of the column are one of the input; NaN where that is not a number

    @staticmethod
    def of(columns: Columns, transform: Callable[[Any], Any], names: list[str] | None) -> Encoding:
        """Find it for the steps before a model.

        Parameters
        ----------
        columns : Columns
        transform : function
            From rows as given to rows as the model sees them.
        names : list of str or None
            What the steps call the model's inputs.
        """
        base, deviations = columns.typical(), columns.deviations()
        of, values = [-1], [""]  # of the rows that are tried: the first is as it was
        edits: list[Edit] = []
        for place in range(len(columns.names)):
            if np.isfinite(deviations[place]):
                step = deviations[place] or 1.0
                tried: list[Any] = [base.raw[place][0] + step, base.raw[place][0] - step]
            else:
                tried = columns.categories(place)[1:]
            for value in tried:
                edits.append((place, len(of), value))
                of.append(place)
                values.append(str(value))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = transform(base.take(np.zeros(len(of), dtype=np.int64), edits))
        found = dense_rows(found, np.arange(len(of))).astype(np.float64)
        difference = found - found[0]
        moved = np.abs(difference) > 1e-12 * (1.0 + np.abs(found[0]))
        D, origin = found.shape[1], np.array(of)
        sources, units = np.full(D, -1), np.full(D, np.nan)
        called = shorten_names(names) if names is not None and len(names) == D else [f"input {j}" for j in range(D)]
        for j in range(D):
            movers = np.flatnonzero(moved[:, j])
            if len(set(origin[movers])) != 1:
                continue
            place = sources[j] = int(origin[movers[0]])
            change = difference[movers, j]
            if not np.isfinite(deviations[place]):
                called[j] = _category_name(columns, place, [values[i] for i in movers], change, called[j])
            elif len(movers) == 2 and np.isclose(change[0], -change[1], rtol=1e-6):
                units[j] = (deviations[place] or 1.0) / change[0]
                called[j] = columns.names[place]
        return Encoding(called, sources, units)


def _category_name(columns: Columns, place: int, movers: list[str], change: Floats, called: str) -> str:
    """Name the input that one category turns on, or that all others turn off."""
    name, known = columns.names[place], columns.categories(place)
    if len(movers) == 1 and change[0] > 0:
        return f"{name} = {movers[0]}"
    return f"{name} = {known[0]}" if len(movers) == len(known) - 1 and np.all(change < 0) else called


def shorten_names(names: Sequence[str]) -> list[str]:
    """Return names without what pipelines put in front of them (``standardscaler__``), if they still differ."""
    short = [str(name).rsplit("__", 1)[-1] or str(name) for name in names]
    return short if len(set(short)) == len(set(names)) else [str(name) for name in names]


def _objects(values: list[Any]) -> NDArray[Any]:
    found = np.empty(len(values), dtype=object)
    found[:] = values
    return found
