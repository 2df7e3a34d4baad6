"""``regbayes evaluate``: how good a saved model is on rows whose target is known."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from regbayes.cli.errors import counted
from regbayes.cli.options import ModelRequest, Thresholds
from regbayes.cli.output import Output

__all__ = ["EPILOG", "EvaluateRequest", "evaluate"]

EPILOG = """**Examples**

`regbayes evaluate iris.model test.csv`

`regbayes evaluate genes.model test.csv --threshold f1` (labels are answered as is best for F1)

`regbayes evaluate iris.model test.csv --json | python -m json.tool`"""

SHOWN = 40  # rows of the second table


@dataclass(frozen=True, kw_only=True)
class EvaluateRequest(ModelRequest):
    """What a comparison with the truth can be asked."""

    threshold: Thresholds = field(default_factory=list)


def evaluate(request: EvaluateRequest) -> None:
    """Compare a model's predictions with the truth. Use rows that the model was not fitted to."""
    from regbayes.cli.big import find_big, read_for_model
    from regbayes.cli.modelfile import load_model, open_model
    from regbayes.cli.scores import evaluate as judge

    out = Output(json=request.json, quiet=request.quiet)
    if big := find_big(request.data, request.format):
        model = load_model(request.model)
        weight = [name for name in [model.facts.get("weight")] if name in big.names]
        batches: Any = read_for_model(model, big, request, [*model.target.names, *weight], out)
        source = big.path
    else:
        model, table = open_model(request, out)
        batches, source = [table], table.source
    found = judge(model, batches, source, out, request.threshold)
    noun = "document" if model.of_documents else "row"
    known = Path(model.facts["source"]).name == Path(source).name and model.facts["rows"] == found["rows"]
    if known and request.data != "-":
        out.warn(
            f"the model was fitted to as many {noun}s of a file of this name. If they are the same, expect less of "
            "new ones"
        )
    out.table(f"{counted(found['rows'], noun)} of {source}", ["", "score"], _rows(found["scores"]))
    details = found["details"]
    if details:
        columns = list(details[0])
        shown = [[_cell(detail.get(column)) for column in columns] for detail in details[:SHOWN]]
        out.table(f"by {columns[0]}", columns, shown)
        if len(details) > SHOWN:
            out.line(f"and {len(details) - SHOWN} more; --json has all")
    out.result({"command": "evaluate", "model": request.model, "kind": model.target.kind, **found})


def _rows(scores: dict[str, float]) -> list[list[str]]:
    return [[name, f"{value:.4g}"] for name, value in scores.items()]


def _cell(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.3f}" if isinstance(value, float) else str(value)
