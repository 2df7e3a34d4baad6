"""``regbayes fit``: a model from a file, or from documents."""

from __future__ import annotations

import typer

from regbayes.cli import interrupts
from regbayes.cli.errors import ExitCode
from regbayes.cli.options import FitRequest
from regbayes.cli.output import Output

__all__ = ["EPILOG", "fit"]

EPILOG = """**Examples**

`regbayes fit iris.csv --target species --output iris.model`

`regbayes fit patients.parquet --target stroke --target diabetes --names id --output risk.model`

`regbayes fit pupils.csv --target score --task school --output school.model`

`regbayes fit reviews.csv --text review --target stars --output reviews.model` (topics of documents)

`regbayes fit mails/ --output mails.model` (a folder of text files for each class)

Ctrl-C ends the search; the best settings so far are fitted and saved, and the exit code is 130."""


def fit(request: FitRequest) -> None:
    """Fit a model to a file or to documents, and save it.

    The target decides between a classifier, a multi-label classifier and a regressor. Settings are chosen by
    cross-validation. Missing values, text columns and columns without information are taken care of. With --text or
    a folder the rows are documents, and the model finds topics in them.
    """
    from regbayes.cli.context import prepare
    from regbayes.cli.files import save_model
    from regbayes.cli.summaries import show_model, summary
    from regbayes.cli.training import train

    out = Output(json=request.json, quiet=request.quiet)
    context = prepare(request, out)
    with interrupts.protect():
        fitted = train(context)
        place = save_model(fitted, request.output, out)
        show_model(fitted, place, out)
        out.result({"command": "fit", "model": place, **summary(fitted)})
        if place != request.output:
            raise typer.Exit(ExitCode.USAGE)
        if fitted.facts["interrupted"] or (fitted.facts["comparison"] or {}).get("interrupted"):
            raise typer.Exit(ExitCode.INTERRUPTED)
