"""One reader per format, each from a path to a `Table`."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regbayes.cli.errors import BadDataError
from regbayes.cli.tables import ReadOptions, Table, check_size, need, read_bytes

__all__ = ["BY_FORMAT", "decoded", "read_arff_table", "read_csv", "read_libsvm", "read_npz_table", "read_parquet"]

MISSING = frozenset({"", "NA", "N/A", "n/a", "NaN", "nan", "NAN", "null", "NULL", "None", "?"})
DELIMITERS = (",", ";", "\t", "|")
PANDAS_INDEX = r"__index_level_\d+__"  # what pandas calls an index without a name, which says nothing of a row
LONGEST_FIELD = 2**31 - 1  # characters; Python's own limit is short of a long document
MOSTLY = 0.9  # share of numbers above which a text column was probably meant to be one of numbers


def read_csv(path: str, options: ReadOptions) -> Table:
    """Read text with a delimiter, by default with a header; types are found by looking at all rows."""
    source = "stdin" if path == "-" else path
    text = decoded(read_bytes(path), source, options.encoding)
    delimiter = options.delimiter or ("\t" if ".tsv" in Path(path).suffixes else _delimiter(text))
    notes: list[str] = []
    try:
        header, rows = _split(text, delimiter, source, options.header)
    except BadDataError as error:
        if delimiter != "\t" or '"' not in text:
            raise
        try:  # many programs write tabs between fields without quoting any
            header, rows = _split(text, delimiter, source, options.header, csv.QUOTE_NONE)
        except BadDataError:
            raise error from None
        notes.append(f"quotation marks in {source} do not enclose whole fields, so they are taken as they stand")
    check_size(len(rows), len(header), source)
    missing = MISSING | set(options.missing) if options.missing else MISSING
    values = list(zip(*rows, strict=True)) if rows else [()] * len(header)
    columns = [
        _typed(column, name, missing, delimiter == ";", notes) for name, column in zip(header, values, strict=True)
    ]
    if options.header and rows and all(_is_number(name) for name in header):
        notes.append(f"the first line of {source} looks like data, not like names of columns; use --no-header if it is")
    inputs = None
    if options.header and _is_index(text, columns[0], delimiter):
        inputs = tuple(header[1:])
        notes.append(f"the first column of {source} has no name and numbers the rows, so it is no input")
    return Table(tuple(header), tuple(columns), source, inputs, notes=tuple(notes))


def _is_index(text: str, first: NDArray[Any], delimiter: str) -> bool:
    """Whether the first column is an index that a program wrote: without a name, or pandas' for none, counting rows."""
    start = text.lstrip("\r\n ")
    nameless = start.startswith((delimiter, f'""{delimiter}', f"Unnamed: 0{delimiter}"))
    if not nameless or first.dtype == object:
        return False
    return any(np.array_equal(first, np.arange(len(first)) + begin) for begin in (0, 1))


def decoded(content: bytes, source: str, encoding: str = "utf-8") -> str:
    """Return the text of a file; an error that names the line where it is not in its encoding."""
    plain = encoding.lower().replace("_", "-") in ("utf-8", "utf8")
    try:
        text = content.decode("utf-8-sig" if plain else encoding)
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        wide = plain and content[:2] in (b"\xff\xfe", b"\xfe\xff")
        raise BadDataError(
            f"{source}, line {line}: not text in {encoding.upper()} (byte {content[error.start]:#04x}). Save it as "
            f"UTF-8, or say what it is with --encoding, {'utf-16' if wide else 'latin-1 or cp1252'} for instance"
        ) from None
    if "\0" in text:
        raise BadDataError(f"{source} is not a text file: it has null characters")
    return text


def _delimiter(text: str) -> str:
    """Return the delimiter that occurs most often in the first line, outside quotes."""
    first = next((line for line in text.splitlines() if line.strip()), "")
    bare = re.sub(r'"[^"]*"', "", first)
    return max(DELIMITERS, key=bare.count)


def _split(
    text: str, delimiter: str, source: str, has_header: bool, quoting: Any = csv.QUOTE_MINIMAL
) -> tuple[list[str], list[list[str]]]:
    """Return the names and the fields of all rows, each as long as the first."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True, quoting=quoting)
    rows: list[list[str]] = []
    header: list[str] | None = None
    shortest = csv.field_size_limit(LONGEST_FIELD)
    try:
        for row in reader:
            if not row or (len(row) == 1 and not row[0].strip()):
                continue
            if header is None:
                header = _names(row) if has_header else [f"column{i + 1}" for i in range(len(row))]
                if has_header:
                    continue
            if len(row) != len(header):
                raise BadDataError(
                    f"{source}, line {reader.line_num}: {len(row)} fields, but there are {len(header)} columns "
                    f"(delimiter {delimiter!r}; another can be given with --delimiter)"
                )
            rows.append(row)
    except csv.Error as error:
        raise BadDataError(f"{source}, line {reader.line_num}: {error}") from None
    finally:
        csv.field_size_limit(shortest)
    if header is None:
        raise BadDataError(f"{source} is empty")
    return header, rows


def _names(row: Sequence[str]) -> list[str]:
    return [name.strip() or f"column{i + 1}" for i, name in enumerate(row)]


def _typed(
    values: Sequence[str], name: str, missing: frozenset[str], decimal_comma: bool, notes: list[str]
) -> NDArray[Any]:
    """Return a column of numbers if all its values are, else of text."""
    if missing is MISSING:  # most columns are plain numbers: try that first
        with suppress(ValueError):
            return np.array(values, dtype=np.float64)
    stripped = [value.strip() for value in values]
    absent = [value in missing for value in stripped]
    numbers = ["nan" if gone else value for value, gone in zip(stripped, absent, strict=True)]
    if decimal_comma:
        numbers = [value.replace(",", ".") if re.fullmatch(r"[-+]?\d*,\d+", value) else value for value in numbers]
    try:
        return np.array(numbers, dtype=np.float64)
    except ValueError:
        _note_odd_ones(numbers, name, notes)
    column = np.empty(len(stripped), dtype=object)
    column[:] = [None if gone else value for value, gone in zip(stripped, absent, strict=True)]
    return column


def _note_odd_ones(values: list[str], name: str, notes: list[str]) -> None:
    odd = [value for value in values if not _is_number(value)]
    if 0 < len(odd) <= (1 - MOSTLY) * len(values):
        notes.append(
            f"column {name!r} holds numbers, except {odd[0]!r} and the like in {len(odd)} of {len(values)} rows, so it "
            f"counts as text. If that marks a missing value: --missing {odd[0]!r}"
        )


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def read_parquet(path: str) -> Table:
    """Read a Parquet file, with pyarrow."""
    if path == "-":
        raise BadDataError("Parquet cannot be read from stdin; name a file")
    parquet = need("pyarrow.parquet", "parquet", "reading Parquet")
    try:
        found = parquet.read_table(path)
    except OSError:
        raise
    except Exception as error:  # pyarrow has errors of its own for every way in which a file can be broken
        raise BadDataError(f"{path} cannot be read as Parquet: {error}") from None
    check_size(found.num_rows, found.num_columns, path)
    places = [i for i, name in enumerate(found.column_names) if not re.fullmatch(PANDAS_INDEX, str(name))]
    columns = tuple(_from_arrow(found.column(i)) for i in places)
    return Table(tuple(str(found.column_names[i]) for i in places), columns, path)


def _from_arrow(column: Any) -> NDArray[Any]:
    types = need("pyarrow", "parquet", "reading Parquet").types
    kind = column.type
    numeric = types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)
    if numeric or types.is_decimal(kind):
        values = [np.nan if value is None else float(value) for value in column.to_pylist()]
        return np.array(values, dtype=np.float64)
    return _text_column(column.to_pylist())


def read_npz_table(path: str, *, sparse: bool = False) -> Table:
    """Read an NPZ archive: inputs ``X``, targets ``y`` or ``Y``, ``task``, names; or one array per column.

    Where there is an ``X`` (or the parts of a sparse one), only its columns are inputs. ``Y`` stands for all of its
    columns, whose names are ``label_names``. With ``sparse``, X is the table's counts, and ``class_names`` name the
    classes of y.
    """
    from regbayes.datasets._files import DataError, read_npz  # brings scikit-learn, which CSV files do without

    try:
        arrays = read_npz(Path(path))
    except DataError as error:
        raise BadDataError(str(error)) from None
    X = _npz_inputs(arrays, path, sparse)
    n_rows = X.shape[0] if X is not None else max((len(a) for a in arrays.values() if a.ndim == 1), default=0)
    inputs = None if X is None else _npz_input_names(arrays, X.shape[1], path)
    names: list[str] = []
    columns: list[NDArray[Any]] = []
    if X is not None and not sparse:
        names, columns = list(inputs or ()), [_natural(X[:, i]) for i in range(X.shape[1])]
    labels = _npz_labels(arrays, n_rows, path)
    names += list(labels)
    columns += list(labels.values())
    for name, array in arrays.items():
        if name not in ("X", "Y") and array.ndim == 1 and len(array) == n_rows and not name.endswith("_names"):
            names.append(name)
            columns.append(_named_classes(arrays) if sparse and name == "y" else _natural(array))
    targets = ("y",) if "y" in names else tuple(labels)
    groups = {"Y": tuple(labels)} if labels else {}
    found = Table(tuple(names), tuple(columns), path, inputs, targets, groups)
    if X is None or not sparse:
        return found
    return replace(found, inputs=(), counts=X, words=inputs, keys=("doc_ids",) if "doc_ids" in names else ())


def _npz_input_names(arrays: dict[str, NDArray[Any]], n_inputs: int, path: str) -> tuple[str, ...]:
    given = arrays.get("feature_names", arrays.get("vocabulary"))
    names = tuple(map(str, given)) if given is not None else tuple(f"x{i}" for i in range(n_inputs))
    if len(names) != n_inputs:
        raise BadDataError(f"{path}: X has {n_inputs} columns, but there are {len(names)} feature_names")
    return names


def _named_classes(arrays: dict[str, NDArray[Any]]) -> NDArray[Any]:
    """Return y, as names where it holds numbers of classes that have names."""
    y, names = arrays["y"], arrays.get("class_names")
    if names is None or y.dtype.kind not in "iu" or len(y) == 0 or not (y.min() >= 0 and y.max() < len(names)):
        return _natural(y)
    return _text_column(names[y].tolist())


def _npz_inputs(arrays: dict[str, NDArray[Any]], path: str, sparse: bool) -> Any:
    """Return X, dense or sparse as it is wanted; None if there is none."""
    from scipy.sparse import csr_array

    if "X_data" in arrays:
        try:
            shape = tuple(int(n) for n in arrays["X_shape"])
            if not sparse:
                check_size(shape[0], shape[1], path)
            matrix = csr_array((arrays["X_data"], arrays["X_indices"], arrays["X_indptr"]), shape=shape)
            matrix.check_format(full_check=True)
        except (KeyError, ValueError, IndexError) as error:
            raise BadDataError(f"{path}: X_data, X_indices, X_indptr, X_shape are no sparse matrix: {error}") from None
        return matrix if sparse else np.asarray(matrix.toarray(), dtype=np.float64)
    if "X" not in arrays:
        return None
    X = arrays["X"]
    if X.ndim != 2:
        raise BadDataError(f"{path}: X should have rows and columns; its shape is {X.shape}")
    check_size(X.shape[0], X.shape[1], path)
    if sparse and X.dtype.kind not in "biuf":
        raise BadDataError(f"{path}: X should hold counts; it holds {X.dtype}")
    return csr_array(X) if sparse else X


def _npz_labels(arrays: dict[str, NDArray[Any]], n_rows: int, path: str) -> dict[str, NDArray[Any]]:
    if "Y" not in arrays:
        return {}
    Y = arrays["Y"]
    if Y.ndim != 2 or len(Y) != n_rows:
        raise BadDataError(f"{path}: Y should have {n_rows} rows and a column per target; its shape is {Y.shape}")
    given = arrays.get("label_names")
    names = map(str, given) if given is not None and len(given) == Y.shape[1] else (f"Y{i}" for i in range(Y.shape[1]))
    return {name: _natural(Y[:, i]) for i, name in enumerate(names)}


def read_arff_table(path: str) -> Table:
    """Read an ARFF file; a multi-label one says by itself which attributes are targets."""
    from regbayes.datasets.arff import ArffError, label_names, read_arff

    try:
        found = read_arff(path)
        labels = tuple(label_names(found, path))
    except ArffError as error:
        raise BadDataError(str(error)) from None
    check_size(len(found.columns[0]) if found.columns else 0, len(found.columns), path)
    groups = {"labels": labels} if labels else {}
    return Table(tuple(found.names), found.columns, path, targets=labels, groups=groups)


def read_libsvm(path: str, *, sparse: bool = False) -> Table:
    """Read a LIBSVM file: columns are called by their numbers in the file, the target is ``label``.

    Several labels separated by commas become a column of zeros and ones for each, ``label=1`` and so on. The columns
    begin at 0 or 1: at 1 if no row has a column 0. With ``sparse`` they are the table's counts.
    """
    from sklearn.datasets import load_svmlight_file

    content = read_bytes(path)
    several = any(b"," in line.split(b" ", 1)[0] for line in content.splitlines() if not line.startswith(b"#"))
    try:
        X, y = load_svmlight_file(io.BytesIO(content), zero_based=True, multilabel=several)
    except (ValueError, IndexError) as error:
        raise BadDataError(f"{path} cannot be read as LIBSVM: {error}") from None
    first = 0 if X.shape[1] == 0 or np.any(X.indices == 0) else 1
    inputs = tuple(str(i) for i in range(first, X.shape[1]))
    columns: list[NDArray[Any]] = []
    if not sparse:
        check_size(X.shape[0], X.shape[1], path)
        columns = list(np.asarray(X.toarray(), dtype=np.float64).T[first:])
    if several:
        seen = sorted({label for labels in y for label in labels})
        targets = tuple(f"label={label:g}" for label in seen)
        columns += [np.array([float(label in labels) for labels in y]) for label in seen]
    else:
        targets = ("label",)
        columns.append(np.asarray(y, dtype=np.float64))
    groups = {"label": targets} if several else {}
    names = targets if sparse else (*inputs, *targets)
    found = Table(names, tuple(columns), path, inputs, targets, groups, absent_is_zero=True, first=first)
    return replace(found, inputs=(), counts=X[:, first:], words=inputs) if sparse else found


def _natural(column: NDArray[Any]) -> NDArray[Any]:
    """Return a column of an array as numbers or as text."""
    return np.asarray(column, dtype=np.float64) if column.dtype.kind in "biuf" else _text_column(column.tolist())


def _text_column(values: Sequence[Any]) -> NDArray[Any]:
    column = np.empty(len(values), dtype=object)
    column[:] = [None if value is None or str(value) in MISSING else str(value) for value in values]
    return column


BY_FORMAT: dict[str, Callable[[str], Table]] = {
    "parquet": read_parquet,
    "npz": read_npz_table,
    "arff": read_arff_table,
    "libsvm": read_libsvm,
}
