"""Reading of data files as tables with named numeric and text columns.

pandas, NumPy and scikit-learn parse the files; this module assigns column names and types.
"""

from __future__ import annotations

import io
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
from numpy.typing import NDArray

from regbayes.cli import Format
from regbayes.cli.errors import BadDataError, UserError, listed, need, not_among

if TYPE_CHECKING:
    import pandas as pd

MAX_CELLS = 250_000_000  # limit of dense inputs, 2 GB of float64
SUFFIXES: dict[str, Format] = {
    **dict.fromkeys((".csv", ".tsv", ".txt"), "csv"),
    **dict.fromkeys((".parquet", ".pq"), "parquet"),
    **dict.fromkeys((".libsvm", ".svm", ".svmlight"), "libsvm"),
    ".npz": "npz",
    ".npy": "npy",
}


@dataclass(frozen=True, eq=False)
class Table:
    """Rows of a file and metadata of its columns."""

    frame: pd.DataFrame  # float64 columns (NaN if missing) and text columns (object, None if missing)
    source: str  # the file's name, for messages
    inputs: tuple[str, ...] | None = None  # columns that may be inputs; None means all
    targets: tuple[str, ...] = ()  # targets that the file format marks as such
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # names of groups of columns
    absent_is_zero: bool = False  # whether absent columns are zero, as in sparse files
    notes: tuple[str, ...] = ()  # warnings about the content of the file
    counts: Any = None  # sparse word counts (rows, words) or None
    words: tuple[str, ...] = ()  # names of the columns of `counts`
    text: tuple[str, ...] = ()  # columns with the text of documents, if the format marks them
    key: str | None = None  # column with the names of rows

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
        """Return a column; the error for an unknown name lists the columns and the option."""
        if name in self:
            return self.frame[name].to_numpy()
        if self.absent_is_zero and (name.isdigit() or name.startswith("label=")):
            return np.zeros(self.n_rows)
        said = "" if option is None else f"{option}: "
        raise BadDataError(f"{said}{self.source} has no column {name!r}; {not_among(name, self.names)}")

    def select(self, names: Iterable[str]) -> pd.DataFrame:
        """Return the given columns; absent columns of sparse files are zero."""
        wanted = list(names)
        absent = [name for name in wanted if name not in self]
        if absent and not self.absent_is_zero:
            raise BadDataError(
                f"{self.source} lacks columns that the model was fitted to: {listed(absent)}; "
                f"{not_among(absent[0], self.names)}"
            )
        return self.frame.reindex(columns=wanted, fill_value=0.0) if absent else self.frame[wanted]

    def take(self, kept: NDArray[Any]) -> Table:
        """Return the rows selected by a Boolean mask or by their numbers."""
        rows = np.arange(self.n_rows)[kept]
        return replace(self, frame=self.frame.iloc[rows], counts=None if self.counts is None else self.counts[rows])


def make_frame(columns: Iterable[tuple[str, Any]]) -> pd.DataFrame:
    """Build a data frame of float64 columns and object columns with None for missing text."""
    import pandas as pd

    named = list(columns)
    kinds = [np.float64 if np.asarray(values).dtype.kind in "biuf" else object for _, values in named]
    frame = pd.DataFrame({i: pd.Series(values, dtype=kinds[i]) for i, (_, values) in enumerate(named)})
    return frame.set_axis([name for name, _ in named], axis=1)  # column names may be duplicated


def as_column(values: Any, name: str = "") -> NDArray[Any]:
    """Return a column as float64 with NaN, or as text with None, for missing values.

    Integers of 2**53 or more become text, because float64 would round them.

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
        if not types.is_integer_dtype(series) or not np.any(np.abs(found) >= 2.0**53):
            return found
    texts = ["" if gone else str(value).strip() for value, gone in zip(series, series.isna(), strict=True)]
    return np.array([text or None for text in texts], dtype=object)


def text_of(column: NDArray[Any]) -> list[str | None]:
    """Return a column as text, with integral numbers as "1" and missing values as None."""
    if column.dtype == object:
        return [None if value is None else str(value) for value in column]
    return [None if not np.isfinite(value) else str(plain_number(value)) for value in column.tolist()]


def plain_number(value: float) -> int | float:
    """Return an integral float as an int, and any other as a float."""
    return int(value) if float(value).is_integer() else float(value)


# --- files


def read_table(path: str, *, format: Format | None = None, sparse: bool = False, **csv: Any) -> Table:  # noqa: A002
    """Read a CSV, Parquet, NPZ, NPY or LIBSVM file, stdin or a folder of documents.

    With `sparse`, the inputs of NPZ and LIBSVM files are sparse word counts of documents. Further options are passed
    to `read_csv`.
    """
    if path != "-" and not os.path.exists(path):
        raise BadDataError(f"the file {path!r} does not exist")
    folder = os.path.isdir(path)
    if folder and not sparse:
        raise BadDataError(f"{path!r} is a folder, not a file; a folder of documents goes with --model medlda")
    suffix = Path(path.lower().removesuffix(".gz")).suffix
    found = "folder" if folder else format or ("csv" if path == "-" else SUFFIXES.get(suffix))
    if found is None:
        raise BadDataError(
            f"cannot tell the format of {path!r} from its name; known are {', '.join(SUFFIXES)}. Save the table as "
            f"one of them, a spreadsheet as CSV, or give --format, one of {', '.join(get_args(Format))}"
        )
    if path == "-" and found != "csv":
        raise BadDataError(f"only CSV is read from stdin; put the {found} into a file")
    readers: dict[str, Callable[[], Table]] = {
        "csv": lambda: read_csv(path, **csv),
        "parquet": lambda: _read_parquet(path),
        "npz": lambda: _read_npz(path, sparse),
        "npy": lambda: _read_npy(path),
        "libsvm": lambda: _read_libsvm(path, sparse),
        "folder": lambda: _read_folder(Path(path), csv.get("encoding", "utf-8")),
    }
    try:
        table = readers[found]()
    except UserError:
        raise
    except MemoryError:
        raise BadDataError(f"{path!r} is too large for this machine's memory; see docs/scale.md") from None
    except UnicodeError as error:
        raise BadDataError(
            f"{path!r} is not text in {csv.get('encoding', 'utf-8').upper()} ({error}). Save it as UTF-8, or give its "
            "--encoding, latin-1 or cp1252 for instance"
        ) from None
    except Exception as error:  # libraries raise many exception types for damaged files
        hint = " (--delimiter, --no-header)" if found == "csv" else ""
        raise BadDataError(
            f"{path!r} cannot be read as {found}: {getattr(error, 'strerror', None) or str(error).strip()}{hint}"
        ) from None
    _require_rows_and_columns(table)
    return table


def _require_rows_and_columns(table: Table) -> None:
    """Raise an error for a table without rows or columns, or with column names that cannot be used."""
    if not table.names and table.counts is None:
        raise BadDataError(f"{table.source} has no columns")
    if table.n_rows == 0:
        raise BadDataError(f"{table.source} has no rows")
    if any("\0" in str(name) for name in table.names):
        raise BadDataError(f"{table.source} has a column whose name contains a NUL character")
    doubled = table.frame.columns.duplicated()
    if doubled.any():
        names = sorted(set(table.frame.columns[doubled]))
        raise BadDataError(f"{table.source} has several columns of one name: {listed(names)}. Rename them")


def read_csv(
    path: str,
    *,
    delimiter: str | None = None,
    decimal: str = ".",
    header: bool = True,
    missing: tuple[str, ...] = (),
    encoding: str = "utf-8",
) -> Table:
    """Read delimited text with `pandas.read_csv`; ``-`` is stdin.

    The default delimiter is a tab for .tsv files and a comma otherwise. `missing` adds markers of missing values to
    "?" and those of pandas.
    """
    import pandas as pd

    source = "stdin" if path == "-" else path
    content = sys.stdin.buffer.read() if path == "-" else None
    delimiter = delimiter or ("\t" if ".tsv" in Path(path).suffixes else ",")

    def read(**options: Any) -> pd.DataFrame:
        file = path if content is None else io.BytesIO(content)
        return pd.read_csv(file, sep=delimiter, encoding=encoding, skipinitialspace=True, **options)

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)  # else extra fields would be lost
            first = read(header=None, nrows=1, dtype=str, keep_default_na=False)
            types = {"index_col": False, "low_memory": False, "decimal": decimal, "na_values": ["?", *missing]}
            frame = read(header=0 if header else None, **types)
    except pd.errors.EmptyDataError:
        raise BadDataError(f"{source} is empty") from None
    except pd.errors.ParserWarning:
        raise BadDataError(f"rows of {source} have more fields than its first line (--delimiter)") from None
    given = [str(name).strip() if header else "" for name in first.iloc[0]]
    names = [name or f"column{i + 1}" for i, name in enumerate(given)]
    columns = [as_column(frame.iloc[:, i], name) for i, name in enumerate(names)]
    notes = [note for name, column in zip(names, columns, strict=True) for note in _doubt(name, column)]
    if header and len(frame) and all(_is_number(name) for name in names):
        notes.append(f"the first line of {source} looks like data, not like names of columns; use --no-header if it is")
    if len(names) == 1 and (others := [mark for mark in (";", "\t", "|") if mark in names[0]]):
        notes.append(f"{source} has one column; if fields are separated by {others[0]!r}: --delimiter {others[0]!r}")
    inputs, numbers = None, np.arange(len(frame))
    if header and given[0] in ("", "Unnamed: 0") and any(np.array_equal(columns[0], numbers + i) for i in (0, 1)):
        inputs = tuple(names[1:])
        notes.append(f"the first column of {source} has no name and numbers the rows, so it is not an input")
    return Table(make_frame(zip(names, columns, strict=True)), source, inputs, notes=tuple(notes))


def _doubt(name: str, column: NDArray[Any]) -> list[str]:
    """Return notes about a text column that is probably numeric."""
    seen = [value for value in column if value is not None] if column.dtype == object else []
    odd = [value for value in seen if not _is_number(value)]
    if odd and len(odd) <= len(seen) / 10:
        return [
            f"column {name!r} holds numbers, except {odd[0]!r} and the like in {len(odd)} of {len(seen)} rows, so it "
            f"counts as text. If that marks a missing value: --missing {odd[0]!r}"
        ]
    if odd and all(_is_number(value.replace(",", ".", 1)) for value in seen):
        return [f"column {name!r} counts as text; if {odd[0]!r} is a number with a decimal comma: --decimal ,"]
    return []


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _check_size(shape: tuple[int, ...], source: str) -> None:
    """Raise a `BadDataError` for data that are too large as a dense array."""
    if shape[0] * shape[1] > MAX_CELLS:
        raise BadDataError(
            f"{source} has {shape[0]} rows and {shape[1]} columns, which as dense numbers take "
            f"{8 * shape[0] * shape[1] / 1e9:.0f} GB. If they are counts of words: --model medlda keeps them sparse. "
            "Otherwise take fewer rows or columns, or fit in Python as docs/scale.md says"
        )


def _columns_of(matrix: Any, names: Iterable[str], source: str) -> list[tuple[str, NDArray[Any]]]:
    """Return the columns of a matrix with their names."""
    _check_size(matrix.shape, source)
    dense = matrix.toarray() if hasattr(matrix, "toarray") else matrix
    return [(name, as_column(dense[:, i], name)) for i, name in enumerate(names)]


def _read_parquet(path: str) -> Table:
    """Read a Parquet file; a named index becomes a column."""
    import pandas as pd

    parquet = need("pyarrow.parquet", "reading Parquet")
    metadata = parquet.read_metadata(path)
    _check_size((metadata.num_rows, metadata.num_columns), path)
    frame = pd.read_parquet(path, engine="pyarrow")
    frame = frame.reset_index(drop=list(frame.index.names) == [None])
    return Table(make_frame((str(name), as_column(column, str(name))) for name, column in frame.items()), path)


def _read_npy(path: str) -> Table:
    """Read an array: a matrix with columns x0, x1, ... or records with named fields."""
    array = np.load(path, mmap_mode="r", allow_pickle=False)
    if array.dtype.names is not None and array.ndim == 1:
        return Table(make_frame((name, as_column(array[name], name)) for name in array.dtype.names), path)
    if array.ndim != 2:
        raise BadDataError(
            f"{path} holds an array of shape {array.shape}, and a table has rows and columns. Inputs and targets go "
            'into one archive: numpy.savez("data.npz", X=X, y=y)'
        )
    return Table(make_frame(_columns_of(array, [f"x{i}" for i in range(array.shape[1])], path)), path)


def _read_npz(path: str, sparse: bool) -> Table:
    """Read an NPZ archive with ``X``, ``y`` or ``Y``, ``task`` and names, or with one array per column.

    If there is an ``X`` (dense or sparse), only its columns are inputs. ``Y`` is a group of columns named by
    ``label_names``. With ``sparse``, ``X`` contains word counts.
    """
    from scipy.sparse import csr_array

    with open(path, "rb") as file, np.load(file, allow_pickle=False) as archive:
        arrays = {name: archive[name] for name in archive.files}
    if "X_data" in arrays:
        shape = tuple(int(n) for n in arrays["X_shape"])
        arrays["X"] = csr_array((arrays["X_data"], arrays["X_indices"], arrays["X_indptr"]), shape=shape)
        arrays["X"].check_format(full_check=True)
    X = arrays.get("X")
    n_rows = max((len(array) for array in arrays.values() if array.ndim == 1), default=0) if X is None else X.shape[0]
    columns: list[tuple[str, Any]] = []
    names: dict[str, tuple[str, ...]] = {}
    for key, given in (("X", arrays.get("feature_names", arrays.get("vocabulary"))), ("Y", arrays.get("label_names"))):
        matrix = arrays.get(key)
        if matrix is None:
            continue
        if matrix.ndim != 2 or matrix.shape[0] != n_rows:
            raise BadDataError(f"{path}: {key} should have {n_rows} rows and columns; its shape is {matrix.shape}")
        numbered = [f"{key.lower() if key == 'X' else key}{i}" for i in range(matrix.shape[1])]
        names[key] = tuple(numbered if given is None else (str(name) for name in given))
        if len(names[key]) != matrix.shape[1]:
            raise BadDataError(f"{path}: {key} has {matrix.shape[1]} columns, but there are {len(names[key])} names")
        columns += [] if sparse and key == "X" else _columns_of(matrix, names[key], path)
    for name, array in arrays.items():
        if array.shape == (n_rows,) and not name.startswith("X") and not name.endswith("_names"):
            columns.append((name, as_column(array, name)))
    labels = names.get("Y", ())
    targets = ("y",) if "y" in arrays else labels
    found = Table(make_frame(columns), path, names.get("X"), targets, {"Y": labels} if labels else {})
    if X is None or not sparse:
        return found
    if X.dtype.kind not in "biuf":
        raise BadDataError(f"{path}: X should hold counts; it holds {X.dtype}")
    return replace(found, inputs=(), counts=csr_array(X), words=names["X"])


def _read_libsvm(path: str, sparse: bool) -> Table:
    """Read a LIBSVM file with numbered columns and the target ``label``.

    Comma-separated labels become indicator columns ``label=1`` etc. With ``sparse``, the inputs are word counts.
    """
    import pandas as pd
    from sklearn.datasets import load_svmlight_file

    with pd.io.common.get_handle(path, "rb", compression="infer", is_text=False) as opened:
        content = opened.handle.read()
    several = any(b"," in line.split(b" ", 1)[0] for line in content.splitlines() if not line.startswith(b"#"))
    X, y = load_svmlight_file(io.BytesIO(content), zero_based=True, multilabel=several)
    first = 0 if X.shape[1] == 0 or np.any(X.indices == 0) else 1
    X, inputs = X[:, first:], tuple(str(i) for i in range(first, X.shape[1]))
    targets: list[tuple[str, Any]] = [("label", y)]
    if several:
        seen = sorted({label for labels in y for label in labels})
        targets = [(f"label={label:g}", np.array([float(label in labels) for labels in y])) for label in seen]
    names = tuple(name for name, _ in targets)
    groups = {"label": names} if several else {}
    if sparse:
        return Table(make_frame(targets), path, (), names, groups, absent_is_zero=True, counts=X, words=inputs)
    frame = make_frame([*_columns_of(X, inputs, path), *targets])
    return Table(frame, path, inputs, names, groups, absent_is_zero=True)


def _read_folder(folder: Path, encoding: str) -> Table:
    """Read a folder of text files, or of one sub-folder of text files per class."""
    entries = sorted(entry for entry in folder.rglob("*") if entry.is_file() and not entry.name.startswith("."))
    names = [entry.relative_to(folder) for entry in entries]
    depths = {len(name.parts) for name in names}
    if depths not in ({1}, {2}):
        raise BadDataError(
            f"{str(folder)!r} should hold a folder of text files for each class, or text files alone; it has "
            f"{listed([name.as_posix() for name in names], 3) if names else 'no files'}"
        )
    texts = []
    for entry in entries:
        try:
            texts.append(entry.read_text(encoding=encoding))
        except UnicodeError as error:
            raise BadDataError(f"{entry} is not text in {encoding.upper()} ({error}); give its --encoding") from None
    columns = [("file", [name.as_posix() for name in names]), ("text", as_column(texts))]
    targets = () if depths == {1} else ("class",)
    columns += [(target, [name.parts[0] for name in names]) for target in targets]
    return Table(make_frame(columns), str(folder), (), targets, text=("text",), key="file")
