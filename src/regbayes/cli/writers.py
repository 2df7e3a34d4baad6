"""Writing columns to a file, in the format that its name asks for, or as CSV to stdout."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from regbayes.cli.errors import UserError
from regbayes.cli.tables import need

__all__ = ["write_columns", "writer_for"]

Columns = dict[str, list[Any]]


def write_columns(columns: Columns, path: str | None) -> None:
    """Write columns of one length."""
    if path is None:
        sys.stdout.write(_csv_text(columns))
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


def _csv_text(columns: Columns) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    rows = zip(*columns.values(), strict=True)
    writer.writerows(["" if value is None else value for value in row] for row in rows)
    return text.getvalue()


def _write_csv(columns: Columns, path: str) -> None:
    Path(path).write_text(_csv_text(columns), encoding="utf-8")


def _write_npz(columns: Columns, path: str) -> None:
    arrays = {name: np.array(["" if v is None else v for v in values]) for name, values in columns.items()}
    np.savez_compressed(path, allow_pickle=False, **arrays)


def _write_parquet(columns: Columns, path: str) -> None:
    parquet = need("pyarrow.parquet", "parquet", "writing Parquet")
    parquet.write_table(need("pyarrow", "parquet", "writing Parquet").table(columns), path)
