"""``regbayes report``: the page about a saved model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from regbayes.cli.options import ModelPath, Request, check_writable
from regbayes.cli.output import Output

__all__ = ["EPILOG", "ReportRequest", "report"]

EPILOG = """**Examples**

`regbayes report iris.model --output iris.html`

The page is one file. It needs no network and no data: what it shows was gathered when the model was fitted."""


@dataclass(frozen=True, kw_only=True)
class ReportRequest(Request):
    """What a page can be asked."""

    model: ModelPath
    output: Annotated[str, typer.Option("--output", "-o", help="The HTML file to write.", show_default=False)]


def report(request: ReportRequest) -> None:
    """Write one HTML page to explore a model: its features, what they are made of, where it errs."""
    from regbayes.cli.errors import BadModelError, UserError
    from regbayes.cli.modelfile import load_model

    model, output = request.model, request.output
    out = Output(json=request.json, quiet=request.quiet)
    check_writable(output)
    fitted = load_model(model)
    if fitted.report is None:
        raise BadModelError(f"{model!r} holds no report; fit the model again to get one")
    from regbayes.report import render  # after the model was found to be there: it takes a second to load

    text = render(fitted.report)
    try:
        Path(output).write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write {output}: {error.strerror or error}") from None
    out.line(f"{output} ({len(text) / 1e6:.1f} MB): open it in a browser")
    out.result({"command": "report", "model": model, "output": output, "bytes": len(text.encode())})
