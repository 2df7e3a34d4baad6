"""One reader per format, each from a path to a `Table`: pandas, NumPy and scikit-learn read, this looks at types."""

from __future__ import annotations

import csv
import gzip
import io
import re
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from regbayes.cli.errors import BadDataError, need
from regbayes.cli.tables import MAX_CELLS, Table, check_size, make_frame

__all__ = ["DENSE", "SPARSE", "decoded", "read_csv", "read_libsvm", "read_npy", "read_npz", "read_parquet"]

MISSING = ("", "NA", "N/A", "n/a", "NaN", "nan", "NAN", "null", "NULL", "None", "?")
DELIMITERS = (",", ";", "\t", "|")
LONGEST_FIELD = 2**31 - 1  # characters; Python's own limit is short of a long document
EXACT = 2.0**53  # from where on not every whole number is a double
MONEY = r"(?:[$€£¥]|USD|EUR|GBP)?"


def _make_number_pattern(thousands: str, point: str) -> re.Pattern[str]:
    """Return what numbers look like with signs around them: money, percent, brackets for a loss."""
    whole = rf"(?P<whole>\d{{1,3}}(?:{thousands}\d{{3}})+|\d+)(?P<rest>{point}\d+)?"
    signs = r"(?P<open>\()?(?P<sign>[-+−])?\s*" + MONEY + r"\s*(?P<inner>[-+−])?"
    return re.compile(rf"{signs}{whole}\s*(?:%|{MONEY})(?P<close>\))?", re.ASCII)


DECORATED = {".": _make_number_pattern(",", r"\."), ",": _make_number_pattern(r"[.'\s]", ",")}
PACKED = 20  # times that text may be shorter in a .gz file, and hardly more
COMMA_IS_DECIMAL = re.compile(r"\.\d{3},\d|,\d{1,2}\s*[€%]|[€]\s*\d+,\d{1,2}$")  # 1.234,5 or 2,50 €: nothing else
MOSTLY = 0.9  # share of numbers above which a text column was probably meant to be one of numbers


def read_csv(
    path: str,
    *,
    delimiter: str | None = None,
    header: bool = True,
    missing: tuple[str, ...] = (),
    encoding: str = "utf-8",
) -> Table:
    """Read text with a delimiter; types are found by looking at all rows.

    Parameters
    ----------
    path : str
        ``-`` is stdin.
    delimiter : str, optional
        What separates fields, if not what the first line has most of.
    header : bool
        Whether the first line has names.
    missing : tuple of str
        Texts that mark a missing value, beside the usual ones.
    encoding : str
    """
    source = "stdin" if path == "-" else path
    _check_text_size(path)
    notes: list[str] = []
    remarks: list[str] = []
    text, told = _without_comments(decoded(_read_bytes(path), source, encoding), source, remarks)
    delimiter = delimiter or told or ("\t" if ".tsv" in Path(path).suffixes else _delimiter(text))
    quoting = _has_quoted_fields(text, delimiter, source, notes)
    # All fields as text: pandas would make true and false of words, and names like a.1 of names that occur twice.
    fields = pd.read_csv(
        io.StringIO(text), sep=delimiter, quoting=quoting, header=None, dtype=str, na_filter=False, low_memory=False
    )
    fields = fields.apply(lambda column: column.str.strip())
    names = [f"column{i + 1}" for i in range(fields.shape[1])]
    if header:
        names = [name or default for name, default in zip(fields.iloc[0], names, strict=True)]
        fields = fields.iloc[1:]
    check_size(fields.shape, source)
    marks, decimal = [*MISSING, *missing], "," if delimiter == ";" else "."
    columns = [(name, _parse_column(fields[i], name, marks, decimal, notes, remarks)) for i, name in enumerate(names)]
    if header and len(fields) and all(_is_number(name) for name in names):
        notes.append(f"the first line of {source} looks like data, not like names of columns; use --no-header if it is")
    inputs = None
    if header and _is_index(text, columns[0][1], delimiter):
        inputs = tuple(names[1:])
        notes.append(f"the first column of {source} has no name and numbers the rows, so it is no input")
    return Table(make_frame(columns), source, inputs, notes=tuple(notes), remarks=tuple(remarks))


def _check_text_size(path: str) -> None:
    """Refuse what would not fit into memory before it is read: as text it takes many times its size there."""
    if path == "-":
        return
    packed = path.endswith(".gz")
    if Path(path).stat().st_size <= MAX_CELLS // (PACKED if packed else 1):  # a cell takes a character at least
        return
    n_rows, n_columns = 0, 0
    try:
        with gzip.open(path) if packed else open(path, "rb") as file:
            while chunk := file.read(1 << 20):
                if not n_columns:
                    first = chunk.lstrip().split(b"\n")[0].decode("latin-1")
                    n_columns = 1 + max(first.count(delimiter) for delimiter in DELIMITERS)
                n_rows += chunk.count(b"\n")
    except (gzip.BadGzipFile, EOFError, zlib.error):
        return  # whoever reads it says so
    check_size((n_rows, n_columns), path)


def _read_bytes(path: str) -> bytes:
    """Return the content of a file or of stdin, unpacked if its name ends in .gz."""
    if path == "-":
        return sys.stdin.buffer.read()
    content = Path(path).read_bytes()
    if not path.endswith(".gz"):
        return content
    try:
        return gzip.decompress(content)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise BadDataError(f"{path!r} is not a whole gzip file: {error}") from None


def decoded(content: bytes, source: str, encoding: str = "utf-8") -> str:
    """Return the text of a file; an error that names the line where it is not in its encoding."""
    plain = encoding.lower().replace("_", "-") in ("utf-8", "utf8")
    if plain and content[:2] in (b"\xff\xfe", b"\xfe\xff"):  # how UTF-16 begins, and UTF-8 never does
        plain, encoding = False, "utf-16"
    try:
        text = content.decode("utf-8-sig" if plain else encoding)
    except UnicodeDecodeError as error:
        if plain and b"\0" in content:
            raise BadDataError(f"{source} is not a text file: it has null characters") from None
        line = content.count(b"\n", 0, error.start) + 1
        raise BadDataError(
            f"{source}, line {line}: not text in {encoding.upper()} (byte {content[error.start]:#04x}). Save it as "
            "UTF-8, or say what it is with --encoding, latin-1 or cp1252 for instance"
        ) from None
    if "\0" in text:
        raise BadDataError(f"{source} is not a text file: it has null characters")
    return text


def _delimiter(text: str) -> str:
    """Return the delimiter that occurs most often in the first line, outside quotes."""
    first = next((line for line in text.splitlines() if line.strip()), "")
    bare = re.sub(r'"[^"]*"', "", first)
    return max(DELIMITERS, key=bare.count)


def _has_quoted_fields(text: str, delimiter: str, source: str, notes: list[str]) -> Any:
    """Return whether quotation marks enclose fields; many programs write tabs between fields without quoting any."""
    try:
        _check_rows(text, delimiter, source, csv.QUOTE_MINIMAL)
    except BadDataError as error:
        if delimiter != "\t" or '"' not in text:
            raise
        try:
            _check_rows(text, delimiter, source, csv.QUOTE_NONE)
        except BadDataError:
            raise error from None
        notes.append(f"quotation marks in {source} do not enclose whole fields, so they are taken as they stand")
        return csv.QUOTE_NONE
    return csv.QUOTE_MINIMAL


def _explain(error: csv.Error) -> str:
    if "unexpected end" in str(error):
        return "a quotation mark opens a field that is never closed"
    if "expected after" in str(error):
        return "a quotation mark closes a field that goes on; inside a quoted field they are written twice"
    return str(error)


def _check_rows(text: str, delimiter: str, source: str, quoting: Any) -> None:
    """Refuse rows that are shorter or longer than the first, and stray quotes: pandas reads them without a word."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True, quoting=quoting)
    shortest = csv.field_size_limit(LONGEST_FIELD)
    width = read = 0
    try:
        for row in reader:
            read = reader.line_num
            if not row or (len(row) == 1 and not row[0].strip()):
                continue
            width = width or len(row)
            if len(row) != width:
                raise BadDataError(
                    f"{source}, line {reader.line_num}: {len(row)} fields, but there are {width} columns "
                    f"(delimiter {delimiter!r}; another can be given with --delimiter)"
                )
    except csv.Error as error:  # the reader is where it gave up, which may be far from where the row begins
        raise BadDataError(f"{source}, line {read + 1}: {_explain(error)}") from None
    finally:
        csv.field_size_limit(shortest)
    if not width:
        raise BadDataError(f"{source} is empty")


def _without_comments(text: str, source: str, remarks: list[str]) -> tuple[str, str | None]:
    """Return the text with empty lines for comments, and the delimiter that a line ``sep=;`` tells.

    Comments begin with #. The last of them above the rows may be the names of columns, and further down one may be a
    row: they are if they have as many fields as rows have. Lines stay where they are, so that messages name the right
    ones.
    """
    lines = text.split("\n")
    tops = [i for i, line in enumerate(lines) if line.strip() and not line.startswith("#")]
    told = re.fullmatch(r'"?sep=(.)"?', lines[tops[0]].strip("\r\n")) if tops else None
    if told is not None:
        lines[tops.pop(0)] = ""
    marked = [i for i, line in enumerate(lines) if line.startswith("#")]
    if marked and tops:
        first, row = tops[0], lines[tops[0]]
        delimiter = told.group(1) if told is not None else _delimiter(row)
        names = max((i for i in marked if i < first), default=-1)
        if not any(_is_number(field) for field in row.split(delimiter)):
            names = -1  # the row has the names
        inside = '"' in text  # then a line that begins with # may be part of a field
        comments = [
            i
            for i in marked
            if (i < first and i != names) or (not inside and lines[i].count(delimiter) != row.count(delimiter))
        ]
        for i in comments:
            lines[i] = ""
        if comments:
            remarks.append(f"lines of {source} that begin with # are comments: {len(comments)} left out")
    return "\n".join(lines), None if told is None else told.group(1)


def _parse_column(
    values: pd.Series, name: str, missing: list[str], decimal: str, notes: list[str], remarks: list[str]
) -> NDArray[Any]:
    """Return a column of numbers if all its values are, else of text."""
    absent = values.isin(missing).to_numpy()
    numbers = values.mask(absent, "nan")
    if decimal == ",":
        numbers = numbers.str.replace(r"^([-+]?\d*),(\d+)$", r"\1.\2", regex=True)
    text = np.where(absent, np.array(None), values.to_numpy(dtype=object))
    try:
        found = numbers.astype(np.float64).to_numpy()
    except ValueError:
        return _hardly_numbers(numbers[~absent], text, absent, name, decimal, notes, remarks)
    example = None if absent.all() else _find_lossy(numbers[~absent], found[~absent])
    if example is not None:
        remarks.append(
            f"column {name!r} holds whole numbers of more than 15 digits, like {example}, which are taken as names: as "
            "numbers they would lose digits"
        )
        return text
    return found


def _find_lossy(texts: pd.Series, numbers: NDArray[Any]) -> str | None:
    """Return the first of whole numbers that is so long that it is not what is written any more."""
    far = np.abs(numbers) >= EXACT
    if not far.any() or not all(re.fullmatch(r"[-+]?\d+", text) for text in texts):
        return None
    pairs = zip(numbers[far], texts[far], strict=True)
    return next((text for number, text in pairs if not np.isfinite(number) or int(number) != int(text)), None)


def _hardly_numbers(
    present: pd.Series,
    text: NDArray[Any],
    absent: NDArray[Any],
    name: str,
    decimal: str,
    notes: list[str],
    remarks: list[str],
) -> NDArray[Any]:
    """Return a column whose values are not all plain numbers: $1,234 and 61.5% are, and other things are text."""
    odd: list[str] = []
    points = dict.fromkeys((decimal, "."))  # between semicolons 1,5 is a number, and so is $1,234.50
    if any(COMMA_IS_DECIMAL.search(value) for value in present):
        points[","] = None
    for point in points:
        plain = _is_number if point == decimal or point == "." else str.isdigit  # with a decimal comma 1.234 is 1234
        read = {value: value if plain(value) else _strip_signs(value, point) for value in present.unique()}
        odd = [value for value in present if read[value] is None]
        if not odd and len({value[-1:] == "%" for value in read}) == 1:
            example = next(value for value in present if not _is_number(value))
            remarks.append(f"column {name!r} is read as numbers: {example!r} is {float(str(read[example])):.12g}")
            found = np.full(len(text), np.nan)
            found[~absent] = [float(str(read[value])) for value in present]
            return found
    if odd and len(odd) <= (1 - MOSTLY) * len(present):
        notes.append(
            f"column {name!r} holds numbers, except {odd[0]!r} and the like in {len(odd)} of {len(present)} rows, so "
            f"it counts as text. If that marks a missing value: --missing {odd[0]!r}"
        )
    return text


def _strip_signs(text: str, decimal: str) -> str | None:
    """Return what is left of a number without signs of money, percent and thousands; None if it is none."""
    found = DECORATED[decimal].fullmatch(text)
    if found is None or (found["open"] is None) != (found["close"] is None):
        return None
    digits = re.sub(r"[^\d]", "", found["whole"])
    sign = (
        "-"
        if "-" in (found["sign"] or "").replace("−", "-")
        or "-" in (found["inner"] or "").replace("−", "-")
        or found["open"]
        else ""
    )
    return f"{sign}{digits}.{(found['rest'] or '')[1:] or '0'}"


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _is_index(text: str, first: NDArray[Any], delimiter: str) -> bool:
    """Whether the first column is an index that a program wrote: without a name, or pandas' for none, counting rows."""
    start = text.lstrip("\r\n ")
    nameless = start.startswith((delimiter, f'""{delimiter}', f"Unnamed: 0{delimiter}"))
    if not nameless or first.dtype == object:
        return False
    return any(np.array_equal(first, np.arange(len(first)) + begin) for begin in (0, 1))


def read_parquet(path: str) -> Table:
    """Read a Parquet file; an index that has a name is a column."""
    n_rows, names = parquet_shape(path)
    check_size((n_rows, len(names)), path)
    try:
        frame = pd.read_parquet(path, engine="pyarrow")
    except OSError:
        raise
    except Exception as error:  # pyarrow has errors of its own for every way in which a file can be broken
        raise BadDataError(f"{path} cannot be read as Parquet: {error}") from None
    return Table(_parquet_frame(frame), path)


def _parquet_frame(frame: pd.DataFrame) -> pd.DataFrame:
    named = [name for name in frame.index.names if name is not None]
    frame = pd.concat([frame.reset_index(drop=True), frame.index.to_frame(index=False)[named]], axis=1)
    return make_frame((str(name), _natural(column)) for name, column in frame.items())


def parquet_shape(path: str) -> tuple[int, tuple[str, ...]]:
    """Return the number of rows of a Parquet file, and the names of its columns; no row is read."""
    parquet = need("pyarrow.parquet", "parquet", "reading Parquet")
    try:
        with parquet.ParquetFile(path) as file:
            return file.metadata.num_rows, tuple(str(name) for name in file.schema_arrow.names)
    except OSError:
        raise
    except Exception as error:
        raise BadDataError(f"{path} cannot be read as Parquet: {error}") from None


def read_parquet_batches(path: str, columns: Sequence[str] | None, n_rows: int) -> Iterator[pd.DataFrame]:
    """Read a Parquet file in batches of rows, in the types that `read_parquet` gives columns."""
    pa, parquet = (need(module, "parquet", "reading Parquet") for module in ("pyarrow", "pyarrow.parquet"))
    with parquet.ParquetFile(path) as file:
        for batch in file.iter_batches(n_rows, columns=None if columns is None else list(columns)):
            # Whether a column of true and false is one of numbers must not hang on what a batch has of it.
            frame = batch.to_pandas(types_mapper={pa.bool_(): pd.BooleanDtype()}.get)
            yield _parquet_frame(frame.reset_index(drop=True) if columns is not None else frame)


def _natural(column: Any) -> NDArray[Any]:
    """Return values as numbers, true and false among them, or as text."""
    if isinstance(column, np.ndarray) and column.dtype.kind in "biuf":
        return column.astype(np.float64)
    values = pd.Series(column)
    decimal = pd.api.types.infer_dtype(values, skipna=True) == "decimal"
    if decimal or pd.api.types.is_numeric_dtype(values):
        return values.to_numpy(dtype=np.float64, na_value=np.nan)
    text = [None if gone else str(value) for value, gone in zip(values, values.isna(), strict=True)]
    return np.array([None if value in MISSING else value for value in text], dtype=object)


def read_npz(path: str, *, sparse: bool = False) -> Table:
    """Read an NPZ archive: inputs ``X``, targets ``y`` or ``Y``, ``task``, names; or one array per column.

    Where there is an ``X`` (or the parts of a sparse one), only its columns are inputs. ``Y`` stands for all of its
    columns, whose names are ``label_names``. With ``sparse``, X is the table's counts, and ``class_names`` name the
    classes of y.
    """
    arrays = _read_arrays(path)
    X = _npz_inputs(arrays, path, sparse)
    n_rows = X.shape[0] if X is not None else max((len(a) for a in arrays.values() if a.ndim == 1), default=0)
    inputs = None if X is None else _npz_input_names(arrays, X.shape[1], path)
    labels = _npz_labels(arrays, n_rows, path)
    columns = [] if X is None or sparse else [(name, _natural(X[:, i])) for i, name in enumerate(inputs or ())]
    columns += labels.items()
    for name, array in arrays.items():
        if name not in ("X", "Y") and array.ndim == 1 and len(array) == n_rows and not name.endswith("_names"):
            columns.append((name, _name_classes(arrays) if sparse and name == "y" else _natural(array)))
    groups = {"Y": tuple(labels)} if labels else {}
    targets = ("y",) if "y" in arrays else tuple(labels)
    found = Table(make_frame(columns), path, inputs, targets, groups)
    if X is None or not sparse:
        return found
    return replace(found, inputs=(), counts=X, words=inputs, keys=("doc_ids",) if "doc_ids" in found else ())


def _read_arrays(path: str) -> dict[str, NDArray[Any]]:
    """Read all arrays of an NPZ archive; pickled ones are an error, because reading them could run code."""
    if not zipfile.is_zipfile(path):
        raise BadDataError(f"{path} is not an npz file, or it was cut off")
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except (ValueError, OSError, zipfile.BadZipFile, EOFError, KeyError) as error:
        if "allow_pickle" in str(error):
            raise BadDataError(
                f"{path} holds pickled objects, which could run code and are never read; save plain arrays of numbers "
                "or strings"
            ) from None
        raise BadDataError(f"{path} cannot be read as npz: {error}") from None


def read_npy(path: str) -> Table:
    """Read one array: a matrix, whose columns are called x0, x1 and so on as those of an NPZ archive, or records."""
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except ValueError as error:
        with Path(path).open("rb") as file:
            is_npy = file.read(6) == b"\x93NUMPY"
        if not is_npy:
            raise BadDataError(f"{path} is not an NPY file, as numpy.save writes them") from None
        if "object" in str(error):  # NumPy would have to run what the file says to read them
            raise BadDataError(f"{path} holds Python objects, which are not read: save numbers or texts") from None
        raise BadDataError(f"{path} cannot be read as NPY: {error}") from None
    if array.dtype.names is not None and array.ndim == 1:
        check_size((len(array), len(array.dtype.names)), path)
        return Table(make_frame((name, _natural(np.asarray(array[name]))) for name in array.dtype.names), path)
    if array.ndim != 2:
        raise BadDataError(
            f"{path} holds an array of shape {array.shape}, and a table has rows and columns. Inputs and targets go "
            'into one archive: numpy.savez("data.npz", X=X, y=y)'
        )
    check_size(array.shape, path)
    return Table(make_frame((f"x{i}", _natural(np.asarray(array[:, i]))) for i in range(array.shape[1])), path)


def _npz_input_names(arrays: dict[str, NDArray[Any]], n_inputs: int, path: str) -> tuple[str, ...]:
    given = arrays.get("feature_names", arrays.get("vocabulary"))
    names = tuple(map(str, given)) if given is not None else tuple(f"x{i}" for i in range(n_inputs))
    if len(names) != n_inputs:
        raise BadDataError(f"{path}: X has {n_inputs} columns, but there are {len(names)} feature_names")
    return names


def _name_classes(arrays: dict[str, NDArray[Any]]) -> NDArray[Any]:
    """Return y, as names where it holds numbers of classes that have names."""
    y, names = arrays["y"], arrays.get("class_names")
    if names is None or y.dtype.kind not in "iu" or len(y) == 0 or not (y.min() >= 0 and y.max() < len(names)):
        return _natural(y)
    return _natural(names[y])


def _npz_inputs(arrays: dict[str, NDArray[Any]], path: str, sparse: bool) -> Any:
    """Return X, dense or sparse as it is wanted; None if there is none."""
    from scipy.sparse import csr_array

    if "X_data" in arrays:
        try:
            shape = tuple(int(n) for n in arrays["X_shape"])
            if not sparse:
                check_size(shape, path)
            matrix = csr_array((arrays["X_data"], arrays["X_indices"], arrays["X_indptr"]), shape=shape)
            matrix.check_format(full_check=True)
        except BadDataError:
            raise
        except (KeyError, ValueError, IndexError) as error:
            raise BadDataError(f"{path}: X_data, X_indices, X_indptr, X_shape are no sparse matrix: {error}") from None
        return matrix if sparse else np.asarray(matrix.toarray(), dtype=np.float64)
    if "X" not in arrays:
        return None
    X = arrays["X"]
    if X.ndim != 2:
        raise BadDataError(f"{path}: X should have rows and columns; its shape is {X.shape}")
    check_size(X.shape, path)
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


def read_libsvm(path: str, *, sparse: bool = False) -> Table:
    """Read a LIBSVM file: columns are called by their numbers in the file, the target is ``label``.

    Several labels separated by commas become a column of zeros and ones for each, ``label=1`` and so on. The columns
    begin at 0 or 1: at 1 if no row has a column 0. With ``sparse`` they are the table's counts.
    """
    from sklearn.datasets import load_svmlight_file

    content = _read_bytes(path)
    several = any(b"," in line.split(b" ", 1)[0] for line in content.splitlines() if not line.startswith(b"#"))
    try:
        X, y = load_svmlight_file(io.BytesIO(content), zero_based=True, multilabel=several)
    except (ValueError, IndexError) as error:
        raise BadDataError(f"{path} cannot be read as LIBSVM: {error}") from None
    first = 0 if X.shape[1] == 0 or np.any(X.indices == 0) else 1
    X, inputs = X[:, first:], tuple(str(i) for i in range(first, X.shape[1]))
    if several:
        seen = sorted({label for labels in y for label in labels})
        targets = make_frame((f"label={label:g}", [float(label in labels) for labels in y]) for label in seen)
    else:
        targets = make_frame([("label", y)])
    names = tuple(targets.columns)
    found = Table(targets, path, inputs, names, {"label": names} if several else {}, absent_is_zero=True, first=first)
    if sparse:
        return replace(found, inputs=(), counts=X, words=inputs)
    check_size(X.shape, path)
    return replace(found, frame=pd.concat([pd.DataFrame(X.toarray(), columns=list(inputs)), targets], axis=1))


SPARSE: dict[str, Callable[..., Table]] = {"npz": read_npz, "libsvm": read_libsvm}
DENSE: dict[str, Callable[[str], Table]] = {"parquet": read_parquet, "npy": read_npy}
