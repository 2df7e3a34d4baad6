"""``regbayes evaluate``: how good a saved model is on rows whose target is known."""

from __future__ import annotations

from typing import Annotated

import typer

from regbayes.cli.errors import counted
from regbayes.cli.options import (
    Delimiter,
    Encoding,
    Format,
    Header,
    Json,
    Missing,
    ModelPath,
    OtherText,
    Quiet,
    read_options,
)
from regbayes.cli.output import Output

__all__ = ["evaluate"]

EPILOG = """**Examples**

`regbayes evaluate iris.model test.csv`

`regbayes evaluate iris.model test.csv --json | python -m json.tool`"""

SHOWN = 40  # rows of the second table


def evaluate(
    model: ModelPath,
    data: Annotated[
        str, typer.Argument(metavar="DATA", help="Rows or documents with the target, as to fit; - is CSV from stdin.")
    ],
    format: Format = None,  # noqa: A002 - the option's name
    delimiter: Delimiter = None,
    header: Header = True,
    missing: Missing = None,
    encoding: Encoding = "utf-8",
    text: OtherText = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Compare a model's predictions with the truth. Use rows that the model was not fitted to."""
    from regbayes.cli.modelfile import load_model
    from regbayes.cli.scores import evaluate as judge
    from regbayes.cli.words import WordSchema

    out = Output(json=json, quiet=quiet)
    reading = read_options(format, delimiter, header, missing, encoding)
    fitted, table = load_model(model).read(data, reading, tuple(text or ()))
    found = judge(fitted, table, out.warn)
    noun = "document" if isinstance(fitted.schema, WordSchema) else "row"
    out.table(f"{counted(found['rows'], noun)} of {table.source}", ["", "score"], _rows(found["scores"]))
    details = found["details"]
    if details:
        columns = list(details[0])
        shown = [[_cell(detail.get(column)) for column in columns] for detail in details[:SHOWN]]
        out.table(f"by {columns[0]}", columns, shown)
        if len(details) > SHOWN:
            out.line(f"and {len(details) - SHOWN} more; --json has all")
    out.result({"command": "evaluate", "model": model, "kind": fitted.target.kind, **found})


def _rows(scores: dict[str, float]) -> list[list[str]]:
    return [[name, f"{value:.4g}"] for name, value in scores.items()]


def _cell(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.3f}" if isinstance(value, float) else str(value)
