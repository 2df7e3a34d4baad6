"""``regbayes predict``: predictions of a saved model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from regbayes.cli.errors import UserError
from regbayes.cli.fit import check_writable
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

if TYPE_CHECKING:
    from regbayes.cli.modelfile import ModelFile
    from regbayes.cli.tables import Table

__all__ = ["predict", "predicted_columns"]

EPILOG = """**Examples**

`regbayes predict iris.model new.csv` (CSV on stdout)

`regbayes predict iris.model new.csv --keep id --scores --output predictions.csv`

`regbayes predict iris.model new.csv --features --output features.parquet`

`regbayes predict reviews.model new-reviews.csv --features` (topics, where the model is of documents)

`cat new.csv | regbayes predict iris.model - --json`"""


def predict(
    model: ModelPath,
    data: Annotated[
        str, typer.Argument(metavar="DATA", help="Rows or documents to predict, as to fit; - is CSV from stdin.")
    ],
    output: Annotated[
        str | None,
        typer.Option(
            "--output", "-o", help="A .csv, .parquet or .npz file; stdout (CSV) without it.", show_default=False
        ),
    ] = None,
    keep: Annotated[list[str] | None, typer.Option("--keep", help="Column of DATA to copy.")] = None,
    scores: Annotated[bool, typer.Option("--scores", help="Add the scores behind predicted classes.")] = False,
    features: Annotated[bool, typer.Option("--features", help="Add the latent features of rows.")] = False,
    format: Format = None,  # noqa: A002 - the option's name
    delimiter: Delimiter = None,
    header: Header = True,
    missing: Missing = None,
    encoding: Encoding = "utf-8",
    text: OtherText = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Predict the target of new rows, one line per row in their order."""
    from regbayes.cli.modelfile import load_model
    from regbayes.cli.writers import write_columns, writer_for

    out = Output(json=json, quiet=quiet)
    if output is not None:
        check_writable(output)
        writer_for(output)
    reading = read_options(format, delimiter, header, missing, encoding)
    fitted, table = load_model(model).read(data, reading, tuple(text or ()))
    kept = [*(key for key in table.keys if key not in (keep or ())), *(keep or ())]  # an answer says whose it is
    columns = predicted_columns(fitted, table, out, kept, scores=scores, features=features)
    if output is not None:
        write_columns(columns, output)
        out.say(f"{table.n_rows} predictions written to {output}")
        out.result({"command": "predict", "rows": table.n_rows, "output": output})
    elif json:
        out.result({"command": "predict", "rows": table.n_rows, "columns": columns})
    else:
        write_columns(columns, None)


def predicted_columns(
    model: ModelFile, table: Table, out: Output, keep: list[str], *, scores: bool = False, features: bool = False
) -> dict[str, list[Any]]:
    """Return the columns of the answer: copied ones, predictions, and what else was asked for."""
    columns = {name: _plain(table.column(name)) for name in keep}
    clash = [name for name in model.target.names if name in columns]
    if clash:
        raise UserError(f"--keep {clash[0]}: the prediction has this name; it cannot be kept beside it")
    predicted = model.predict(table, out.warn)
    by_target = predicted[:, None] if predicted.ndim == 1 else predicted
    for j, name in enumerate(model.target.names):
        columns[name] = _plain(by_target[:, j])
    if scores:
        columns |= {name: values.tolist() for name, values in model.scores(table, out.warn).items()}
    if features:
        columns |= {name: values.tolist() for name, values in model.features(table, out.warn).items()}
    return columns


def _plain(values: Any) -> list[Any]:
    """Return plain values: whole numbers as ints, None where missing."""
    from regbayes.cli.schema import plain_number

    plain = values.tolist()
    return [
        None if value is None or value != value else plain_number(value) if isinstance(value, float) else value
        for value in plain
    ]
