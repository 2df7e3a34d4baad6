"""``regbayes report``: the page about a saved model."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from regbayes.cli.options import DataRequest, ModelPath, check_writable
from regbayes.cli.output import Output

__all__ = ["EPILOG", "ReportRequest", "report"]

EPILOG = """**Examples**

`regbayes report iris.model --output iris.html`

`regbayes report iris.model test.csv --output test.html`

The page is one file. It needs no network and no data: what it shows was gathered when the model was fitted. With DATA
it shows the model by these rows instead: predictions, errors and examples are theirs."""


@dataclass(frozen=True, kw_only=True)
class ReportRequest(DataRequest):
    """What a page can be asked."""

    model: ModelPath
    data: Annotated[
        str | None,
        typer.Argument(metavar="[DATA]", help="Rows with targets to judge the model by, not those of the fit."),
    ] = None
    output: Annotated[str, typer.Option("--output", "-o", help="The HTML file to write.", show_default=False)]
    text: Annotated[
        list[str],
        typer.Option("--text", help="Column with the text of documents, if not that of training.", show_default=False),
    ] = field(default_factory=list)


def report(request: ReportRequest) -> None:
    """Write one HTML page to explore a model: what moves its answers, its features, where it errs."""
    from regbayes.cli.errors import BadModelError, UserError
    from regbayes.cli.modelfile import load_model

    model, output = request.model, request.output
    out = Output(json=request.json, quiet=request.quiet)
    check_writable(output)
    fitted = load_model(model)
    if request.data is not None:
        from regbayes.cli.pages import collect_page

        fitted, table = fitted.read(request.data, request.text, **request.reading())
        for doubt in fitted.doubts(table):
            out.warn(doubt)
        with out.catch_warnings():
            shown = collect_page(fitted, table, out)
    else:
        shown = fitted.report
    if shown is None:
        raise BadModelError(f"{model!r} holds no report; fit the model again to get one")
    from regbayes.report import render  # after the model was found to be there: it takes a second to load

    text = render(shown)
    try:
        Path(output).write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write {output}: {error.strerror or error}") from None
    out.line(f"{output} ({len(text) / 1e6:.1f} MB): open it in a browser")
    out.result(
        {"command": "report", "model": model, "data": request.data, "output": output, "bytes": len(text.encode())}
    )
