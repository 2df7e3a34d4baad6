"""Writing columns to a file, in the format that its name asks for, or as CSV to stdout."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from regbayes.cli.errors import UserError, need

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["write_columns", "write_in_batches", "writer_for"]

Columns = dict[str, list[Any]]


def write_columns(columns: Columns, path: str | None) -> None:
    """Write columns of one length."""
    if path is None:
        _write_csv(columns, sys.stdout)
        return
    try:
        writer_for(path)(columns, path)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}") from None


def writer_for(path: str) -> Callable[[Columns, str], None]:
    """Return the writer for a file name."""
    writers: dict[str, Callable[[Columns, str], None]] = {
        ".csv": _write_csv,
        ".npz": _write_npz,
        ".parquet": _write_parquet,
    }
    suffix = Path(path).suffix.lower()
    if suffix not in writers:
        raise UserError(f"--output {path}: the name should end in {', '.join(writers)}")
    return writers[suffix]


@contextmanager
def write_in_batches(path: str | None, kinds: Mapping[str, type]) -> Iterator[Callable[[Columns], None]]:
    """Give a function that writes columns beneath those that it wrote before; a file that fails halfway is removed.

    Parameters
    ----------
    path : str or None
        A name that ends in .csv or .parquet; None: CSV to stdout.
    kinds : mapping
        Columns whose values are all str or all float; those of others are what the first batch has.
    """
    if path is None:
        yield _csv_rows(sys.stdout)
        return
    if writer_for(path) is _write_npz:
        raise UserError(
            f"--output {path}: answers to a file of this size are written batch by batch, to .csv or .parquet"
        )
    try:
        if writer_for(path) is _write_parquet:
            with _parquet_rows(path, kinds) as write:
                yield write
        else:
            with open(path, "w", encoding="utf-8", newline="") as file:
                yield _csv_rows(file)
    except BaseException as error:
        with suppress(OSError):
            Path(path).unlink()
        if isinstance(error, OSError):
            raise UserError(f"cannot write {path}: {error.strerror or error}") from None
        raise


def _csv_rows(file: IO[str]) -> Callable[[Columns], None]:
    headers = iter([True])

    def write(columns: Columns) -> None:
        _frame(columns).to_csv(file, index=False, header=next(headers, False), lineterminator="\n")

    return write


@contextmanager
def _parquet_rows(path: str, kinds: Mapping[str, type]) -> Iterator[Callable[[Columns], None]]:
    pa, parquet = (need(module, "parquet", "writing Parquet") for module in ("pyarrow", "pyarrow.parquet"))
    types = {str: pa.string(), float: pa.float64()}
    files: list[Any] = []  # one, once the first batch has said what its columns are

    def write(columns: Columns) -> None:
        if not files:
            first = pa.Table.from_pandas(_frame(columns), preserve_index=False).schema
            fields = [field.with_type(types.get(kinds.get(field.name), field.type)) for field in first]
            files.append(parquet.ParquetWriter(path, pa.schema(fields)))
        files[0].write_table(pa.Table.from_pydict(columns, schema=files[0].schema))

    try:
        yield write
    finally:
        for file in files:
            file.close()


def _frame(columns: Columns) -> pd.DataFrame:
    """Return a data frame whose values stay what they are: whole numbers beside missing ones among them."""
    import pandas as pd

    return pd.DataFrame(columns, dtype=object)


def _write_csv(columns: Columns, path: str | IO[str]) -> None:
    _frame(columns).to_csv(path, index=False, encoding="utf-8", lineterminator="\n")


def _write_npz(columns: Columns, path: str) -> None:
    arrays = {name: np.array(["" if v is None else v for v in values]) for name, values in columns.items()}
    np.savez_compressed(path, allow_pickle=False, **arrays)


def _write_parquet(columns: Columns, path: str) -> None:
    need("pyarrow.parquet", "parquet", "writing Parquet")
    _frame(columns).to_parquet(path, engine="pyarrow", index=False)
