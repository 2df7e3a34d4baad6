"""``regbayes evaluate``: how good a saved model is on rows whose target is known."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from regbayes.cli.errors import counted
from regbayes.cli.options import ModelRequest, threshold_option
from regbayes.cli.output import Output

__all__ = ["EPILOG", "EvaluateRequest", "evaluate"]

EPILOG = """**Examples**

`regbayes evaluate iris.model test.csv`

`regbayes evaluate genes.model test.csv --threshold f1` (labels at the thresholds that are best for F1)

`regbayes evaluate iris.model test.csv --json | python -m json.tool`"""

SHOWN = 40  # rows of the second table


@dataclass(frozen=True, kw_only=True)
class EvaluateRequest(ModelRequest):
    """Options of an evaluation."""

    threshold: list[str] = threshold_option()


def evaluate(request: EvaluateRequest) -> None:
    """Compare a model's predictions with the truth. Use rows that the model was not fitted to."""
    from regbayes.cli.modelfile import open_model
    from regbayes.cli.scores import evaluate as judge

    out = Output(json=request.json, quiet=request.quiet)
    model, table = open_model(request, out)
    found = judge(model, table, out, request.threshold)
    noun = "document" if model.of_documents else "row"
    known = Path(model.facts["source"]).name == Path(table.source).name and model.facts["rows"] == found["rows"]
    if known and request.data != "-":
        out.warn(
            f"the model was fitted to as many {noun}s of a file of this name. If they are the same, expect less of "
            "new ones"
        )
    out.table(
        f"{counted(found['rows'], noun)} of {table.source}",
        ["", "score"],
        [[name, f"{value:.4g}"] for name, value in found["scores"].items()],
    )
    details = found["details"]
    if details:
        columns = list(details[0])
        shown = [[_cell(detail.get(column)) for column in columns] for detail in details[:SHOWN]]
        out.table(f"by {columns[0]}", columns, shown)
        if len(details) > SHOWN:
            out.line(f"and {len(details) - SHOWN} more; --json has all")
    out.result({"command": "evaluate", "model": request.model, "kind": model.target.kind, **found})


def _cell(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.3f}" if isinstance(value, float) else str(value)
