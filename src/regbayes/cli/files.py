"""Writing files: none is half-written, none is an input of its own command, and no model is lost to a full disk."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regbayes.cli.errors import UserError, need

if TYPE_CHECKING:
    from regbayes.cli.modelfile import ModelFile
    from regbayes.cli.output import Output

__all__ = ["check_writable", "replacing", "save_model", "write_columns", "writer_for"]

Columns = dict[str, list[Any]]


def check_writable(path: str, *inputs: str | None) -> None:
    """Refuse an output that cannot be written, or that is an input of the same command, before hours are spent."""
    target = os.path.realpath(path)
    folder = os.path.dirname(target)
    if not os.path.isdir(folder):
        raise UserError(f"--output {path}: there is no folder {folder}")
    if os.path.exists(target) and not os.path.isfile(target):
        raise UserError(f"--output {path} is not a regular file; name a new file or one to replace")
    if not os.access(folder, os.W_OK):
        raise UserError(f"--output {path}: you may not write in the folder {folder}")
    for given in inputs:
        if given is not None and os.path.exists(given) and os.path.exists(target) and os.path.samefile(given, target):
            raise UserError(f"--output {path} is the file that the command reads; choose another name")


@contextmanager
def replacing(path: str) -> Iterator[Path]:
    """Give a temporary name beside a file and move it there at the end, so that a failure leaves the old file whole."""
    target = Path(os.path.realpath(path))
    temporary = target.with_name(f".{os.getpid()}-{target.name}")
    try:
        yield temporary
        os.replace(temporary, target)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}") from None
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def save_model(model: ModelFile, path: str, output: Output) -> str:
    """Save a model and return where: another folder if its place cannot be written by now."""
    from regbayes.persistence import PersistenceError

    places = [path, *(os.path.join(folder, Path(path).name) for folder in (tempfile.gettempdir(), Path.home()))]
    reasons = []
    for i, place in enumerate(places):
        try:
            if i and os.path.exists(place):  # somebody else's
                place = os.path.join(tempfile.mkdtemp(prefix="regbayes-", dir=os.path.dirname(place)), Path(path).name)
            model.save(place)
        except (PersistenceError, OSError) as error:
            reasons.append(str(error))
        else:
            if i:
                output.warn(f"{reasons[0]}. The model is in {place} instead: move it when there is room")
            return place
    raise UserError(f"the model is lost: {'; '.join(reasons)}")


def write_columns(columns: Columns, path: str | None) -> None:
    """Write columns of one length to a file, or as CSV to stdout."""
    if path is None:
        sys.stdout.write(_as_csv(columns))
        sys.stdout.flush()
        return
    write = writer_for(path)
    with replacing(path) as temporary:
        write(columns, temporary)


def writer_for(path: str) -> Callable[[Columns, Path], object]:
    """Return the writer for a file name."""
    writers: dict[str, Callable[[Columns, Path], object]] = {
        ".csv": lambda columns, place: place.write_text(_as_csv(columns), encoding="utf-8", newline=""),
        ".npz": _write_npz,
        ".parquet": _write_parquet,
    }
    suffix = Path(path).suffix.lower()
    if suffix not in writers:
        raise UserError(f"--output {path}: the name should end in {', '.join(writers)}")
    return writers[suffix]


def _frame(columns: Columns) -> Any:
    """Return a data frame whose values stay as they are: whole numbers in a column with missing ones among them."""
    import pandas as pd

    return pd.DataFrame(columns, dtype=object)


def _as_csv(columns: Columns) -> str:
    return str(_frame(columns).to_csv(index=False, lineterminator="\n"))


def _write_npz(columns: Columns, place: Path) -> None:
    import numpy as np

    arrays = {name: np.array(["" if v is None else v for v in values]) for name, values in columns.items()}
    with place.open("wb") as file:  # NumPy would add a suffix to the temporary name
        np.savez_compressed(file, allow_pickle=False, **arrays)


def _write_parquet(columns: Columns, place: Path) -> None:
    need("pyarrow.parquet", "parquet", "writing Parquet")
    _frame(columns).to_parquet(place, engine="pyarrow", index=False)
