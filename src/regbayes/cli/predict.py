"""``regbayes predict``: predictions of a saved model."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regbayes.cli.errors import UserError
from regbayes.cli.options import ModelRequest, Thresholds, check_writable
from regbayes.cli.output import Output

if TYPE_CHECKING:
    from regbayes.cli.big import BigTable
    from regbayes.cli.modelfile import ModelFile
    from regbayes.cli.tables import Table

__all__ = ["EPILOG", "PredictRequest", "predict"]

EPILOG = """**Examples**

`regbayes predict iris.model new.csv` (CSV on stdout)

`regbayes predict iris.model new.csv --keep id --scores --output predictions.csv`

`regbayes predict iris.model new.csv --probabilities`

`regbayes predict fraud.model new.csv --threshold fraud=0.1` (answered where its probability is above 0.1)

`regbayes predict iris.model new.csv --features --output features.parquet`

`regbayes predict reviews.model new-reviews.csv --features` (topics, where the model is of documents)

`cat new.csv | regbayes predict iris.model - --json`"""


@dataclass(frozen=True, kw_only=True)
class PredictRequest(ModelRequest):
    """What a prediction can be asked."""

    output: Annotated[
        str | None,
        typer.Option(
            "--output", "-o", help="A .csv, .parquet or .npz file; stdout (CSV) without it.", show_default=False
        ),
    ] = None
    keep: Annotated[list[str], typer.Option("--keep", help="Column of DATA to copy.")] = field(default_factory=list)
    scores: Annotated[bool, typer.Option("--scores", help="Add the scores behind predicted classes.")] = False
    probabilities: Annotated[
        bool, typer.Option("--probabilities", help="Add the probability of each class, or of each label.")
    ] = False
    threshold: Thresholds = field(default_factory=list)
    features: Annotated[bool, typer.Option("--features", help="Add the latent features of rows.")] = False


def predict(request: PredictRequest) -> None:
    """Predict the target of new rows, one line per row in their order."""
    from regbayes.cli.big import find_big
    from regbayes.cli.modelfile import load_model, open_model
    from regbayes.cli.writers import write_columns, writer_for

    out = Output(json=request.json, quiet=request.quiet)
    if request.output is not None:
        check_writable(request.output)
        writer_for(request.output)
    if big := find_big(request.data, request.format):
        _predict_in_batches(load_model(request.model), big, request, out)
        return
    model, table = open_model(request, out)
    with out.catch_warnings():
        columns = _predict_columns(model, table, request)
    if request.output is not None:
        write_columns(columns, request.output)
        out.say(f"{table.n_rows} predictions written to {request.output}")
        out.result({"command": "predict", "rows": table.n_rows, "output": request.output})
    elif request.json:
        out.result({"command": "predict", "rows": table.n_rows, "columns": columns})
    else:
        write_columns(columns, None)


def _predict_in_batches(model: ModelFile, table: BigTable, request: PredictRequest, out: Output) -> None:
    """Answer a file that is too large for memory: a batch of its rows is read, answered and written at a time."""
    from regbayes.cli.big import read_for_model
    from regbayes.cli.writers import write_in_batches

    if request.json and request.output is None:
        raise UserError(f"answers to {table.n_rows} rows are too many for one line of JSON: give --output")
    batches = read_for_model(model, table, request, request.keep, out)
    first = next(batches)
    kinds = {name: str if first.column(name).dtype == object else float for name in request.keep}
    kinds |= dict.fromkeys(model.target.names, float) if model.target.kind == "regressor" else {}
    with out.catch_warnings(), write_in_batches(request.output, kinds) as write:
        for batch in chain([first], batches):
            write(_predict_columns(model, batch, request))
    if request.output is not None:
        out.say(f"{table.n_rows} predictions written to {request.output}")
        out.result({"command": "predict", "rows": table.n_rows, "output": request.output})


def _predict_columns(model: ModelFile, table: Table, request: PredictRequest) -> dict[str, list[Any]]:
    """Return the columns of the answer: copied ones, predictions, and what else was asked for."""
    from regbayes.cli.modelfile import name_probabilities

    kept = [*(key for key in table.keys if key not in request.keep), *request.keep]  # an answer says whose it is
    columns = {name: _plain(table.column(name)) for name in kept}
    clash = [name for name in model.target.names if name in columns]
    if clash:
        raise UserError(f"--keep {clash[0]}: the prediction has this name; it cannot be kept beside it")
    shares = model.probabilities(table) if request.probabilities or request.threshold else []
    predicted = model.answer(shares, request.threshold) if request.threshold else model.predict(table)
    by_target = predicted[:, None] if predicted.ndim == 1 else predicted
    columns |= {name: _plain(by_target[:, j]) for j, name in enumerate(model.target.names)}
    if request.scores:
        columns |= {name: values.tolist() for name, values in model.scores(table).items()}
    if request.probabilities:
        found = name_probabilities(shares, model.estimator, model.target.names)
        columns |= {name: values.tolist() for name, values in found.items()}
    if request.features:
        columns |= {name: values.tolist() for name, values in model.features(table).items()}
    return columns


def _plain(values: Any) -> list[Any]:
    """Return plain values: whole numbers as ints, None where missing."""
    from regbayes.cli.tables import plain_number

    plain = values.tolist()
    return [
        None if value is None or value != value else plain_number(value) if isinstance(value, float) else value
        for value in plain
    ]
