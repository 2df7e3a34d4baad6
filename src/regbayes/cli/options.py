"""Options that several commands share, and what they mean."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from regbayes.cli.tables import ReadOptions

__all__ = [
    "Delimiter",
    "Encoding",
    "FileFormat",
    "Format",
    "Header",
    "Json",
    "Missing",
    "ModelPath",
    "OtherText",
    "Quiet",
    "read_options",
]


class FileFormat(StrEnum):
    """Formats of tables."""

    csv = "csv"
    parquet = "parquet"
    npz = "npz"
    arff = "arff"
    libsvm = "libsvm"


READING = "Reading the file"
SPEAKING = "What is shown"

Json = Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.", rich_help_panel=SPEAKING)]
Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="Show no progress, only results and warnings.", rich_help_panel=SPEAKING)
]
Format = Annotated[
    FileFormat | None, typer.Option("--format", help="The file's format, if not by its name.", rich_help_panel=READING)
]
Delimiter = Annotated[
    str | None,
    typer.Option("--delimiter", help="What separates fields of a CSV file, if not found.", rich_help_panel=READING),
]
Header = Annotated[
    bool,
    typer.Option(
        "--header/--no-header", help="Whether the first line of a CSV file has names.", rich_help_panel=READING
    ),
]
Missing = Annotated[
    list[str] | None,
    typer.Option(
        "--missing", help="A text that marks a missing value, beside NA, ? and the like.", rich_help_panel=READING
    ),
]
Encoding = Annotated[
    str, typer.Option("--encoding", help="Of a CSV file, or of files in a folder.", rich_help_panel=READING)
]
OtherText = Annotated[
    list[str] | None,
    typer.Option("--text", help="Column with the text of documents, if not that of training.", rich_help_panel=READING),
]
ModelPath = Annotated[
    str, typer.Argument(metavar="MODEL", help="A file that 'regbayes fit' wrote.", show_default=False)
]


def read_options(
    format: FileFormat | None,  # noqa: A002 - the option's name
    delimiter: str | None,
    header: bool,
    missing: list[str] | None,
    encoding: str,
) -> ReadOptions:
    """Put the options about reading together."""
    import codecs

    from regbayes.cli.errors import UserError
    from regbayes.cli.tables import ReadOptions

    if delimiter is not None:
        delimiter = {"\\t": "\t", "tab": "\t"}.get(delimiter, delimiter)
        if len(delimiter) != 1:
            raise UserError(f"--delimiter must be one character, got {delimiter!r}")
    try:
        codecs.lookup(encoding)
    except LookupError:
        raise UserError(
            f"--encoding must be one that Python knows, utf-8 or latin-1 for instance; got {encoding!r}"
        ) from None
    return ReadOptions(None if format is None else format.value, delimiter, header, tuple(missing or ()), encoding)
