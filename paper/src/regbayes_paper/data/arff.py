"""ARFF files, dense and sparse, as columns: the format of Weka, Mulan, MEKA and OpenML.

`read_arff` keeps what the file says: numbers are floats with NaN where missing, everything else is text with None.
`label_names` knows the three ways in which multi-label files say which attributes are labels. SciPy's reader knows
neither sparse rows nor text, and the package that does (liac-arff) is no longer maintained and reads no tab after
``@attribute``; so there is one here.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from xml.etree import ElementTree as ET

import numpy as np
from numpy.typing import NDArray

from regbayes._types import Floats

__all__ = ["ArffError", "ArffTable", "Attribute", "label_names", "read_arff"]

Kind = Literal["numeric", "nominal", "text"]

_NUMERIC = {"numeric", "real", "integer"}
_TEXT = {"string", "date"}
_QUOTED = r"""'((?:[^'\\]|\\.)*)'|"((?:[^"\\]|\\.)*)\""""
_VALUE = re.compile(rf"""[ ]*(?:{_QUOTED}|(?!['"])([^,\t]*?))[ ]*([,\t]|$)""")
_ENTRY = re.compile(rf"""\s*(\d+)\s+(?:{_QUOTED}|(?!['"])([^,]*?))\s*(?:,|$)""")  # of a sparse row
_NAME = re.compile(rf"""\s*(?:{_QUOTED}|([^\s{{]+))\s*(.*)$""", re.DOTALL)
_FLAGS = {"true": 1.0, "false": 0.0, "yes": 1.0, "no": 0.0}


class ArffError(ValueError):
    """A file that is not ARFF; the message has the line."""


@dataclass(frozen=True)
class Attribute:
    """One column: its name, what it holds, and the categories of a nominal one."""

    name: str
    kind: Kind
    categories: tuple[str, ...] = ()


@dataclass(frozen=True)
class ArffTable:
    """The content of an ARFF file."""

    relation: str
    attributes: tuple[Attribute, ...]
    columns: tuple[NDArray[Any], ...]  # float64 with NaN, or object (str or None), all of one length

    @property
    def names(self) -> list[str]:
        """Names of the columns."""
        return [attribute.name for attribute in self.attributes]

    def numbers(self, names: Iterable[str]) -> Floats:
        """Return some columns as a matrix; a nominal column counts if its categories are numbers or true and false."""
        place = {name: i for i, name in enumerate(self.names)}
        return np.column_stack([_as_numbers(self.columns[place[name]], name) for name in names])


def read_arff(path: str | os.PathLike[str]) -> ArffTable:
    """Read an ARFF file with dense or sparse rows.

    Parameters
    ----------
    path : str or path-like

    Returns
    -------
    ArffTable

    Raises
    ------
    ArffError
        If the file is not ARFF, or has relational attributes; the message names the line.
    """
    with Path(path).open(encoding="utf-8", errors="replace") as file:
        lines = ((number, line.strip()) for number, line in enumerate(file, start=1))
        content = ((number, line) for number, line in lines if line and not line.startswith("%"))
        try:
            relation, attributes = _read_header(content)
            return ArffTable(relation, attributes, _read_rows(content, attributes))
        except ArffError as error:
            raise ArffError(f"{os.fspath(path)}: {error}") from None


def label_names(table: ArffTable, path: str | os.PathLike[str]) -> list[str]:
    """Return which attributes of a multi-label file are labels; empty if nothing says so.

    Mulan lists them in an XML file beside the data (``emotions.xml`` also for ``emotions-train.arff``); MEKA puts
    their number into the relation's name, ``-C 6`` for the first six and ``-C -6`` for the last.
    """
    place = Path(path)
    stem = re.sub(r"[-_]?(train|test)$", "", place.stem, flags=re.IGNORECASE)
    for candidate in (place.with_suffix(".xml"), place.with_name(f"{stem}.xml")):
        if candidate.is_file():
            return _labels_in_xml(candidate, table.names)
    option = re.search(r"-C\s+(-?\d+)", table.relation)
    if option is None:
        return []
    count = int(option[1])
    return table.names[:count] if count > 0 else table.names[count:]


def _labels_in_xml(path: Path, names: list[str]) -> list[str]:
    try:
        root = ET.parse(path).getroot()
    except ET.ParseError as error:
        raise ArffError(f"{path} is not XML: {error}") from None
    labels = [element.get("name", "") for element in root.iter() if element.tag.rpartition("}")[2] == "label"]
    unknown = [name for name in labels if name not in names]
    if unknown:
        raise ArffError(f"{path} names the label {unknown[0]!r}, which is no attribute of the data file")
    return labels


def _read_header(content: Iterator[tuple[int, str]]) -> tuple[str, tuple[Attribute, ...]]:
    relation = ""
    attributes: list[Attribute] = []
    for number, line in content:
        keyword, *rest = line.split(maxsplit=1)
        text = rest[0] if rest else ""
        if keyword.lower() == "@relation":
            relation = _split_name(text, number)[0]
        elif keyword.lower() == "@attribute":
            attributes.append(_read_attribute(text, number))
        elif keyword.lower() == "@data":
            if not attributes:
                raise ArffError(f"line {number}: @data comes before any @attribute")
            return relation, tuple(attributes)
        else:
            raise ArffError(f"line {number}: expected @relation, @attribute or @data, found {_shorten(line)}")
    raise ArffError("there is no @data line, so this is not an ARFF file or it was cut off")


def _read_attribute(text: str, number: int) -> Attribute:
    name, rest = _split_name(text, number)
    if rest.startswith("{"):
        if not rest.endswith("}"):
            raise ArffError(f"line {number}: the categories of {name!r} are not closed by }}")
        return Attribute(name, "nominal", tuple(value or "" for value in _split_values(rest[1:-1])))
    kind = rest.split()[0].lower() if rest else ""
    if kind not in _NUMERIC | _TEXT:
        raise ArffError(
            f"line {number}: the attribute {name!r} is of type {kind!r}; numeric, nominal and string are read"
        )
    return Attribute(name, "numeric" if kind in _NUMERIC else "text")


def _split_name(text: str, number: int) -> tuple[str, str]:
    found = _NAME.match(text)
    if found is None:
        raise ArffError(f"line {number}: a name is missing")
    *name, rest = found.groups()
    return _plain(*name) or "", rest.strip()


def _split_values(text: str) -> list[str | None]:
    """Split a row at commas; None is a missing value (a bare question mark)."""
    if "'" not in text and '"' not in text and "\t" not in text:
        return [None if part == "?" else part for part in map(str.strip, text.split(","))]
    found: list[str | None] = []
    place, separator = 0, ","
    while separator:
        match = _VALUE.match(text, place)
        if match is None:
            raise ArffError(f"cannot split {_shorten(text[place:])}: a quote is not closed")
        *value, separator = match.groups()
        found.append(_plain(*value))
        place = match.end()
    return found


def _split_entries(line: str, zero: list[str]) -> list[str | None]:
    """Return the values of a sparse row; what it leaves out is zero, or the first category of a nominal attribute."""
    if not line.endswith("}"):
        raise ArffError("a sparse row is not closed by }")
    row: list[str | None] = list(zero)
    body, place = line[1:-1].strip(), 0
    while place < len(body):
        match = _ENTRY.match(body, place)
        if match is None or int(match[1]) >= len(zero):
            raise ArffError(f"{_shorten(body[place:])} is not 'index value' with an index below {len(zero)}")
        row[int(match[1])] = _plain(*match.groups()[1:])
        place = match.end()
    return row


def _plain(single: str | None, double: str | None, bare: str | None) -> str | None:
    """Return the one of three that was found, without the marks of quoting."""
    if bare is not None:
        return None if bare == "?" else bare
    return re.sub(r"\\(.)", r"\1", single if single is not None else double or "")


def _read_rows(content: Iterator[tuple[int, str]], attributes: tuple[Attribute, ...]) -> tuple[NDArray[Any], ...]:
    by_kind = {"numeric": "0", "text": ""}
    zero = [by_kind.get(a.kind) or next(iter(a.categories), "") for a in attributes]
    rows: list[list[str | None]] = []
    numbers: list[int] = []
    for number, line in content:
        try:
            row = _split_entries(line, zero) if line.startswith("{") else _split_values(line)
        except ArffError as error:
            raise ArffError(f"line {number}: {error}") from None
        if len(row) != len(attributes):
            raise ArffError(f"line {number} has {len(row)} values, but there are {len(attributes)} attributes")
        rows.append(row)
        numbers.append(number)
    columns = zip(*rows, strict=True) if rows else [()] * len(attributes)
    return tuple(_column(values, a, numbers) for values, a in zip(columns, attributes, strict=True))


def _column(values: Sequence[str | None], attribute: Attribute, numbers: list[int]) -> NDArray[Any]:
    if attribute.kind == "numeric":
        try:
            return np.array(["nan" if value is None else value for value in values], dtype=np.float64)
        except ValueError:
            odd = next(i for i, value in enumerate(values) if value is not None and not _is_number(value))
        what = f"is not a number, but {attribute.name!r} is numeric"
        raise ArffError(f"line {numbers[odd]}: {values[odd]!r} {what}")
    if attribute.kind == "nominal" and (unknown := set(values) - {None} - set(attribute.categories)):
        odd = next(i for i, value in enumerate(values) if value in unknown)
        raise ArffError(f"line {numbers[odd]}: {values[odd]!r} is not a category of {attribute.name!r}")
    column = np.empty(len(values), dtype=object)
    column[:] = values
    return column


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _as_numbers(column: NDArray[Any], name: str) -> Floats:
    if column.dtype != object:
        return np.asarray(column, dtype=np.float64)
    try:
        return np.array(
            [np.nan if value is None else _FLAGS.get(value.lower(), value) for value in column], dtype=float
        )
    except ValueError:
        raise ArffError(f"the column {name!r} holds text, not numbers") from None


def _shorten(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:37]}...")
