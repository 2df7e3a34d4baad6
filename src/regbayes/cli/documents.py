"""Documents: a text column of a table, a folder of text files, or counts of words.

Every reader gives a `Table`. Raw text is a column of it, counts are its sparse `counts`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from regbayes.cli.errors import BadDataError
from regbayes.cli.readers import decoded
from regbayes.cli.tables import Table, check_table, make_frame, read_table

__all__ = ["read_documents"]

TEXT, CLASS, FILE = "text", "class", "file"  # columns of a folder


def read_documents(path: str, **options: Any) -> Table:
    """Read documents: a folder, LIBSVM or NPZ with counts, or any table.

    Parameters
    ----------
    path : str
    **options
        Of `regbayes.cli.tables.read_table`.

    Raises
    ------
    BadDataError
        If it cannot be read, or there is nothing in it; the message says what to do.
    """
    if os.path.isdir(path):
        return check_table(_read_folder(Path(path), options.get("encoding", "utf-8")))
    return read_table(path, sparse=True, **options)


def _read_folder(folder: Path, encoding: str) -> Table:
    """Read a folder with a sub-folder of text files for each class, or text files alone, whose class is not known."""
    groups = [place for place in _list_files(folder) if place.is_dir()]
    files = [(place, group.name) for group in groups for place in _list_files(group) if place.is_file()]
    loose = [place for place in _list_files(folder) if place.is_file()]
    if loose and files:
        raise BadDataError(
            f"{str(folder)!r} has files ({loose[0].name!r}) beside folders; it should hold a folder of text files for "
            "each class, or text files alone"
        )
    if not loose and not files:
        raise BadDataError(f"{str(folder)!r} has no text files; it should hold a folder of them for each class")
    paths = loose or [path for path, _ in files]
    try:
        texts = [decoded(path.read_bytes(), str(path), encoding) for path in paths]
    except OSError as error:
        raise BadDataError(f"cannot read {error.filename!r}: {error.strerror or error}") from None
    names = [path.relative_to(folder).as_posix() for path in paths]
    columns: dict[str, list[Any]] = {FILE: names, TEXT: [text if text.strip() else None for text in texts]}
    if files:
        columns[CLASS] = [group for _, group in files]
    targets = (CLASS,) if files else ()
    return Table(make_frame(columns.items()), str(folder), (), targets, text=(TEXT,), keys=(FILE,))


def _list_files(folder: Path) -> list[Path]:
    return sorted(place for place in folder.iterdir() if not place.name.startswith("."))
