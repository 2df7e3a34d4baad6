"""From the columns of a table to the numbers a model is fitted to, and the same again for new tables.

Numbers are standardised; where some were missing they take the median, and a column says which. Text becomes a column
of zeros and ones per category. Columns that say nothing (constant, empty, or a different text in every row) are left
out. All of it is learned from the training table and kept in the model's file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regbayes._registry import persistable
from regbayes._types import Floats
from regbayes.cli.errors import BadDataError, counted, listed
from regbayes.cli.tables import Table

__all__ = ["LARGEST", "CategoryColumn", "NumberColumn", "Schema", "learn_schema", "text_of"]

Say = Callable[[str], None]

MAX_CATEGORIES = 50
LARGEST = 1e100  # squares of larger numbers, summed, are infinite
DOCUMENT_LENGTH = 40  # characters on average, above which text is documents rather than names
FEW_ROWS = 10  # below which whole numbers may rise from row to row by chance
IDENTIFIER_SHARE = 0.5  # of rows with a text of their own, above which a column names rows and does not group them


@persistable(name="regbayes.cli.NumberColumn")
@dataclass(frozen=True)
class NumberColumn:
    """A column of numbers."""

    name: str
    fill: float  # in place of a missing value: the median
    mean: float
    scale: float
    flag_missing: bool  # whether a further column says where values are missing

    @property
    def encoded_names(self) -> list[str]:
        """Names of the columns that it becomes."""
        return [self.name, f"{self.name} is missing"] if self.flag_missing else [self.name]

    def encode(self, column: NDArray[Any], say: Say) -> Floats:
        """Return the encoded columns."""
        if column.dtype == object:
            column = _numbers(column, self.name)
        missing = ~np.isfinite(column)
        if np.isinf(column).any():
            say(f"column {self.name!r}: {int(np.isinf(column).sum())} infinite values count as missing")
        scaled = (np.where(missing, self.fill, column) - self.mean) / self.scale
        return np.column_stack([scaled, missing]) if self.flag_missing else scaled[:, None]


@persistable(name="regbayes.cli.CategoryColumn")
@dataclass(frozen=True)
class CategoryColumn:
    """A column of text with few different values. Other values have a zero for every category."""

    name: str
    categories: tuple[str, ...]  # that have a column
    others: tuple[str, ...]  # that were seen and have none: one of two, or the rare ones of many
    flag_missing: bool

    @property
    def encoded_names(self) -> list[str]:
        """Names of the columns that it becomes."""
        names = [f"{self.name}={category}" for category in self.categories]
        return [*names, f"{self.name} is missing"] if self.flag_missing else names

    def encode(self, column: NDArray[Any], say: Say) -> Floats:
        """Return the encoded columns."""
        texts = text_of(column)
        known = set(self.categories) | set(self.others)
        unknown = [text for text in texts if text is not None and text not in known]
        if unknown:
            say(
                f"column {self.name!r}: categories that were not there in training "
                f"({listed(sorted(set(unknown)), 3)}) in {counted(len(unknown), 'row')} count as none of the known ones"
            )
        encoded = [[text == category for category in self.categories] for text in texts]
        if self.flag_missing:
            encoded = [[*row, text is None] for row, text in zip(encoded, texts, strict=True)]
        return np.array(encoded, dtype=np.float64)


@persistable(name="regbayes.cli.Schema")
@dataclass(frozen=True)
class Schema:
    """All columns that a model sees, in order."""

    columns: tuple[NumberColumn | CategoryColumn, ...]

    @property
    def names(self) -> list[str]:
        """Columns of the table that are needed."""
        return [column.name for column in self.columns]

    @property
    def encoded_names(self) -> list[str]:
        """Names of the model's inputs."""
        return [name for column in self.columns for name in column.encoded_names]

    def encode(self, table: Table, say: Say) -> Floats:
        """Return the model's inputs of a table; ``say`` hears of values that could not be used as they are."""
        absent = [name for name in self.names if name not in table and not table.absent_is_zero]
        if absent:
            raise BadDataError(
                f"{table.source} lacks columns that the model was fitted to: {listed(absent)}. It has "
                f"{listed(table.names)}"
            )
        return np.column_stack([column.encode(table.column(column.name), say) for column in self.columns])


def learn_schema(
    table: Table, inputs: Sequence[str], say: Say, *, standardize: bool = True, categorical: Sequence[str] = ()
) -> Schema:
    """Look at the columns that are to be inputs, and decide how each is encoded.

    Parameters
    ----------
    say : callable
        Hears which columns are left out, and why.
    standardize : bool
        Whether numbers are scaled to unit variance. Without it they are taken as they are, constant columns too.
    categorical : sequence of str
        Columns of numbers that are names of categories.
    """
    found: list[NumberColumn | CategoryColumn] = []
    left_out: dict[str, list[str]] = {}
    for name in inputs:
        column = table.column(name)
        text = column.dtype == object or name in categorical
        learned = _learn_categories(name, column) if text else _learn_numbers(name, column, standardize)
        if isinstance(learned, str):
            left_out.setdefault(learned, []).append(name)
        else:
            found.append(learned)
    for why, names in left_out.items():
        say(f"left out, {why}: {listed(names)}")
    counters = [name for name in inputs if name not in categorical and _counts_rows(table.column(name))]
    if counters:
        say(f"whole numbers that rise from row to row: {listed(counters)}. If they only number the rows: --ignore them")
    documents = [name for names in left_out.values() for name in names if _holds_documents(table.column(name))]
    hint = f"--text {documents[0]} would find topics in what is written there" if documents else ""
    if not found:
        more = f"; {hint}" if hint else ""
        raise BadDataError(f"{table.source} has no column left that could be an input{more}")
    if hint:
        say(hint)
    return Schema(tuple(found))


def _holds_documents(column: NDArray[Any]) -> bool:
    """Whether a column of text is so long that it was written to be read."""
    if column.dtype != object:
        return False
    lengths = [len(value) for value in column if value is not None]
    return bool(lengths) and float(np.mean(lengths)) > DOCUMENT_LENGTH


def _learn_numbers(name: str, column: Floats, standardize: bool) -> NumberColumn | str:
    finite = column[np.isfinite(column)]
    if len(finite) == 0:
        return "without a single value"
    fill = float(np.median(finite))
    flag = len(finite) < len(column)
    if not standardize:
        return NumberColumn(name, fill, 0.0, 1.0, flag)
    if np.abs(finite).max() > LARGEST:
        return f"with numbers beyond {LARGEST:.0e}"
    filled = np.where(np.isfinite(column), column, fill)
    spread = float(filled.std())
    if spread == 0:
        return "constant"
    return NumberColumn(name, fill, float(filled.mean()), spread, flag)


def _counts_rows(column: NDArray[Any]) -> bool:
    """Whether a column may be a number of the rows, which rows that are sorted by their target make a telling one."""
    if column.dtype == object or len(column) < FEW_ROWS or not np.isfinite(column).all():
        return False
    return bool(np.all(column == np.round(column)) and np.all(np.diff(column) > 0))


def _learn_categories(name: str, column: NDArray[Any]) -> CategoryColumn | str:
    texts = text_of(column)
    counts = Counter(text for text in texts if text is not None)
    if not counts:
        return "without a single value"
    flag = sum(counts.values()) < len(texts)
    if len(counts) == 1 and not flag:
        return "constant"
    if len(counts) > max(MAX_CATEGORIES, 2) and len(counts) > IDENTIFIER_SHARE * len(texts):
        return "text that is different in most rows"
    if len(counts) == len(texts) > 2:
        return "text that is different in every row"
    by_use = [text for text, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0]))]
    if len(counts) <= 2:  # one column says it all
        ordered = sorted(counts)
        return CategoryColumn(name, tuple(ordered[1:] or ordered), tuple(ordered[:1] if ordered[1:] else ()), flag)
    return CategoryColumn(name, tuple(sorted(by_use[:MAX_CATEGORIES])), tuple(by_use[MAX_CATEGORIES:]), flag)


def text_of(column: NDArray[Any]) -> list[str | None]:
    """Return a column as text: whole numbers without a decimal point, None where missing."""
    if column.dtype == object:
        return column.tolist()
    return [None if not np.isfinite(value) else str(plain_number(value)) for value in column.tolist()]


def plain_number(value: float) -> int | float:
    """Return a whole number as an int."""
    return int(value) if float(value).is_integer() else float(value)


def _numbers(column: NDArray[Any], name: str) -> Floats:
    numbers = np.empty(len(column))
    for i, value in enumerate(column):
        try:
            numbers[i] = np.nan if value is None else float(value)
        except ValueError:
            raise BadDataError(
                f"column {name!r} held numbers in training, but row {i + 1} holds {value!r}. If that marks a missing "
                f"value: --missing {value!r}"
            ) from None
    return numbers
