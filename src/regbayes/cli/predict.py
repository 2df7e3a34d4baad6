"""``regbayes predict``: predictions of a saved model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from regbayes.cli.errors import UserError
from regbayes.cli.options import ModelRequest, option, threshold_option
from regbayes.cli.output import Output

if TYPE_CHECKING:
    from regbayes.cli.modelfile import ModelFile
    from regbayes.cli.tables import Table

__all__ = ["EPILOG", "PredictRequest", "predict"]

EPILOG = """**Examples**

`regbayes predict iris.model new.csv` (CSV on stdout)

`regbayes predict iris.model new.csv --keep id --scores --output predictions.csv`

`regbayes predict iris.model new.csv --probabilities`

`regbayes predict fraud.model new.csv --threshold fraud=0.1` (predicted where its probability is above 0.1)

`regbayes predict iris.model new.csv --features --output features.parquet`

`regbayes predict reviews.model new-reviews.csv --features` (topics, where the model is of documents)

`cat new.csv | regbayes predict iris.model - --json`"""


@dataclass(frozen=True, kw_only=True)
class PredictRequest(ModelRequest):
    """Options of a prediction."""

    output: str | None = option(None, "--output -o", None, "A .csv, .parquet or .npz file; stdout (CSV) without it.")
    keep: list[str] = option(list, "--keep", None, "Column of DATA to copy. Repeatable.")
    scores: bool = option(False, "--scores", None, "Add the scores behind predicted classes.")
    probabilities: bool = option(False, "--probabilities", None, "Add the probabilities of classes or labels.")
    threshold: list[str] = threshold_option()
    features: bool = option(False, "--features", None, "Add the latent features of rows.")


def predict(request: PredictRequest) -> None:
    """Predict the target of new rows, one line per row in their order."""
    from regbayes.cli.files import check_writable, write_columns, writer_for
    from regbayes.cli.modelfile import open_model

    out = Output(json=request.json, quiet=request.quiet)
    if request.output is not None:
        check_writable(request.output, request.data, request.model)
        writer_for(request.output)
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


def _predict_columns(model: ModelFile, table: Table, request: PredictRequest) -> dict[str, list[Any]]:
    """Return the columns of the output: copied ones, predictions, and what else was requested."""
    kept = [*(key for key in table.keys if key not in request.keep), *request.keep]
    columns = {name: _plain(table.column(name, "--keep")) for name in kept}
    clash = [name for name in model.target.names if name in columns]
    if clash:
        raise UserError(f"--keep {clash[0]}: the prediction has this name too")
    shares = model.probabilities(table) if request.probabilities or request.threshold else []
    predicted = model.predict_at(shares, request.threshold) if request.threshold else model.predict(table)
    by_target = predicted[:, None] if predicted.ndim == 1 else predicted
    columns |= {name: _plain(by_target[:, j]) for j, name in enumerate(model.target.names)}
    more = model.scores(table) if request.scores else {}
    more |= model.name_probabilities(shares) if request.probabilities else {}
    more |= model.features(table) if request.features else {}
    return columns | {name: values.tolist() for name, values in more.items()}


def _plain(values: Any) -> list[Any]:
    """Return plain values: whole numbers as ints, None where missing."""
    from regbayes.cli.tables import plain_number

    return [
        None if value is None or value != value else plain_number(value) if isinstance(value, float) else value
        for value in values.tolist()
    ]
