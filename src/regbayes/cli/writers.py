"""Writing columns to a file, in the format that its name asks for, or as CSV to stdout."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from regbayes.cli.errors import UserError, need

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["write_columns", "writer_for"]

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
