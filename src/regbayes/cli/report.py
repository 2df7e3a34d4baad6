"""``regbayes report``: the page about a saved model."""

from __future__ import annotations

from dataclasses import dataclass, field

import typer

from regbayes.cli.options import DataRequest, argument, model_argument, option
from regbayes.cli.output import Output

__all__ = ["EPILOG", "ReportRequest", "report"]

EPILOG = """**Examples**

`regbayes report iris.model --output iris.html`

`regbayes report iris.model test.csv --output test.html`

The page is one file. It needs no network and no data: what it shows was gathered when the model was fitted. With DATA
it shows the model by these rows instead: predictions, errors and examples are theirs."""


@dataclass(frozen=True, kw_only=True)
class ReportRequest(DataRequest):
    """Options of a report."""

    model: str = model_argument()
    data: str | None = argument(
        "[DATA]", "Rows with targets to judge the model by, not those of the fit.", default=None
    )
    output: str = field(metadata={"typer": typer.Option("--output", "-o", help="HTML file to write.")})
    text: list[str] = option(list, "--text", None, "Column with the text, if not that of training. Repeatable.")


def report(request: ReportRequest) -> None:
    """Write one HTML page to explore a model: what moves its predictions, its features, where it errs."""
    from regbayes.cli.errors import BadModelError
    from regbayes.cli.files import check_writable, replacing
    from regbayes.cli.modelfile import load_model, open_model

    out = Output(json=request.json, quiet=request.quiet)
    check_writable(request.output, request.data, request.model)
    if request.data is not None:
        from regbayes.cli.pages import collect_page

        fitted, table = open_model(request, out)
        with out.catch_warnings():
            shown = collect_page(fitted, table, out)
    else:
        shown = load_model(request.model).report
    if shown is None:
        raise BadModelError(f"{request.model!r} holds no report; fit the model again to get one")
    from regbayes.report import render  # after the model was found to be there: it takes a second to load

    text = render(shown)
    with replacing(request.output) as place:
        place.write_text(text, encoding="utf-8")
    out.line(f"{request.output} ({len(text) / 1e6:.1f} MB): open it in a browser")
    made = {"command": "report", "model": request.model, "data": request.data, "output": request.output}
    out.result({**made, "bytes": len(text.encode())})
