"""Documents: a text column of a table, a folder of text files, counts of words, or a text set that has a loader.

Every reader gives a `Table`. Raw text is a column of it, counts are its sparse `counts`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from regbayes.cli.errors import BadDataError, MissingPieceError
from regbayes.cli.readers import decoded
from regbayes.cli.tables import Table, check_table, make_frame, read_table

__all__ = ["BUILT_IN", "is_documents", "read_documents"]

TEXT, CLASS, FILE = "text", "class", "file"  # columns of a folder
PARTS = ("train", "test")


def is_documents(path: str) -> bool:
    """Whether a name stands for documents by itself: a folder, or a text set that has a loader."""
    return os.path.isdir(path) or (not os.path.exists(path) and path.partition(":")[0] in BUILT_IN)


def read_documents(path: str, **options: Any) -> Table:
    """Read documents: a folder, a set by its name, LIBSVM or NPZ with counts, or any table.

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
    return check_table(_read_built_in(path)) if is_documents(path) else read_table(path, sparse=True, **options)


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


def _read_built_in(path: str) -> Table:
    from regbayes_paper.data import DataError, DataNotFoundError

    name, _, part = path.partition(":")
    try:
        table, rows = BUILT_IN[name]()
    except DataNotFoundError as error:
        raise MissingPieceError(str(error).removesuffix(", or pass folder=.")) from None
    except DataError as error:
        raise BadDataError(str(error)) from None
    if not part:
        return replace(table, source=path)
    if part not in PARTS or part not in rows:
        parts = " and ".join(f"{name}:{known}" for known in rows) or "none"
        raise BadDataError(f"{path!r}: {name} has no part {part!r}; its parts: {parts}")
    return replace(table.take(rows[part]), source=path)


def _newsgroups() -> tuple[Table, dict[str, NDArray[Any]]]:
    from regbayes_paper.data import load_20newsgroups

    found = load_20newsgroups()
    columns = {"group": found.target_names[found.target]}
    return _join_counts(found, columns, ("group",)), {part: found[part] for part in PARTS if part in found}


def _reviews() -> tuple[Table, dict[str, NDArray[Any]]]:
    from regbayes_paper.data import load_movie_reviews

    found = load_movie_reviews()
    columns: dict[str, NDArray[Any]] = {"rating": found.target}
    for name in ("class3", "class4"):
        columns[name] = load_movie_reviews(target=name, return_X_y=True)[1]
    if "author_names" in found:
        columns["author"] = found.author_names[found.author]
    return _join_counts(found, columns, ("rating",)), {}


def _join_counts(found: Any, columns: dict[str, NDArray[Any]], targets: tuple[str, ...]) -> Table:
    """Put a table together from a set of counts."""
    if "doc_ids" in found:
        columns["document"] = found.doc_ids
    return Table(
        make_frame(columns.items()),
        source="",
        inputs=(),
        targets=targets,
        counts=found.data,
        words=tuple(map(str, found.feature_names)),
        keys=("document",) if "document" in columns else (),
    )


BUILT_IN: dict[str, Callable[[], tuple[Table, dict[str, NDArray[Any]]]]] = {
    "20newsgroups": _newsgroups,
    "movie-reviews": _reviews,
}
