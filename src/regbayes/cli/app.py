"""The Typer application ``regbayes``: its commands, what they print, and the exit codes of its errors.

Heavy modules are imported inside a command, so that ``regbayes --help`` starts quickly.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regbayes.cli import interrupts
from regbayes.cli.errors import BadDataError, BadModelError, ExitCode, StoppedError, UserError, counted
from regbayes.cli.options import (
    DemoRequest,
    EvaluateRequest,
    FitRequest,
    PredictRequest,
    ReportRequest,
    make_command,
)
from regbayes.cli.output import (
    Output,
    called_as,
    check_suffix,
    check_writable,
    print_error,
    replacing,
    save_model,
    write_columns,
)

if TYPE_CHECKING:
    from regbayes.cli.modelfile import ModelFile
    from regbayes.cli.read import Table

EPILOGS = {
    "regbayes": """`regbayes demo` fits a model to handwritten digits and writes a report about it.

Exit codes: 0 done, 1 a bug, 2 wrong usage, 3 the data, 4 the model file, 5 a package is not
installed, 130 interrupted.""",
    "demo": """`regbayes demo`

`regbayes demo --output FOLDER`

First a posterior is constrained, then a model is fitted.""",
    "fit": """`regbayes fit iris.csv --target species --output iris.model`

`regbayes fit patients.parquet --target stroke --target diabetes --names id --output risk.model`

`regbayes fit pupils.csv --target score --task school --output school.model`

`regbayes fit reviews.csv --text review --target stars --output reviews.model` (topics of documents)

`regbayes fit mails/ --output mails.model` (a folder of text files for each class)

Ctrl-C ends the search; the best settings so far are fitted and saved, and the exit code is 130. --resume
continues the search.""",
    "predict": """`regbayes predict iris.model new.csv` (CSV on stdout)

`regbayes predict iris.model new.csv --keep id --scores --output predictions.csv`

`regbayes predict iris.model new.csv --probabilities`

`regbayes predict fraud.model new.csv --threshold fraud=0.1` (predicted where its probability is above 0.1)

`regbayes predict iris.model new.csv --features --output features.parquet`

`regbayes predict reviews.model new-reviews.csv --features` (topics, where the model is of documents)

`cat new.csv | regbayes predict iris.model - --json`""",
    "evaluate": """`regbayes evaluate iris.model test.csv`

`regbayes evaluate fraud.model test.csv --threshold fraud=0.1`

`regbayes evaluate iris.model test.csv --json | python -m json.tool`""",
    "report": """`regbayes report iris.model --output iris.html`

`regbayes report iris.model test.csv --output test.html`

The report is one file. It needs no network and no data: what it shows was gathered when the model was fitted. With DATA
it shows the model by these rows instead: predictions, errors and examples are theirs.""",
}


# --- fit


def fit(request: FitRequest) -> None:
    """Fit a model to a file or to documents, and save it.

    The target decides between a classifier, a multi-label classifier and a regressor. Settings are chosen by
    cross-validation. Missing values are imputed, text columns are encoded and uninformative columns are dropped. With
    --text or a folder, rows are documents and the model finds topics.
    """
    from regbayes.cli import fit as fits
    from regbayes.cli.context import prepare

    out = Output(json=request.json, quiet=request.quiet)
    context = prepare(request, out)
    interrupts.protect()
    fitted = fits.fit(context)
    model = fits.train(context, fitted)
    path = save_model(model, request.output, out)
    if fitted.path is not None and fitted.kept is None and os.path.exists(fitted.path):
        os.remove(fitted.path)
    facts = {name: value for name, value in model.facts.items() if name not in ("source", "metric", "warnings")}
    if model.of_documents:
        facts["topics"] = _topics_of(model)
    _show_model(model, facts, path, out)
    out.result({"command": "fit", "model": path, **facts})
    if path != request.output:
        raise typer.Exit(ExitCode.USAGE)
    if facts["interrupted"] or (facts["comparison"] or {}).get("interrupted"):
        raise typer.Exit(ExitCode.INTERRUPTED)


def _show_model(model: ModelFile, facts: dict[str, Any], path: str, out: Output) -> None:
    """Print the summary of a model, the comparison and suggested next commands."""
    settings = ", ".join(f"{name}={value}" for name, value in facts["settings"].items())
    shown = {"model": f"{facts['estimator']}, {settings}"}
    if facts["setting"] == "interpretable":
        shown["setting"] = "interpretable (sparse nonnegative features); soft ones: --slab none"
    elif facts["setting"] == "predictive":
        shown["setting"] = "predictive (soft features); sparse ones, easier to interpret: --slab half-normal"
    nothing = "the mean" if model.target.kind == "regressor" else "the most frequent class"
    baseline, metric = f"always {nothing}: {facts['baseline_score']:.3f}", model.facts["metric"]
    shown["score"] = f"not cross-validated ({metric} of {baseline})"
    if (cv := facts["cross_validation"]) is not None:
        score = f"{metric} {cv['pooled']:.3f} ± {cv['std']:.3f}"
        shown["score"] = f"{score} over {counted(cv['folds'], 'fold')} ({baseline})"
    if model.of_documents:
        shown["topics"] = f"{facts['n_components']}, of {counted(facts['inputs'], 'word')}"
        _show_topics(model, facts["topics"], out)
    else:
        shown["features"] = f"{facts['n_components_in_use']} of {facts['n_components']} in use"
    shown["time"] = f"{facts['seconds']:.1f} s"
    if facts["kept"] is not None:
        shown["stopped"] = facts["kept"]
    shown["saved"], comparison = path, facts["comparison"]
    if not facts["no_better_than_baseline"]:
        shown["next"] = f"{called_as()} report {path} --output report.html"
        shown[""] = f"{called_as()} predict {path} NEW_DATA"
    if comparison is not None:
        rows = [
            [
                row["name"],
                "–" if row["score"] is None else f"{row['score']:.3f}",
                "" if row["std"] is None else f"± {row['std']:.3f}",
                row["note"] or f"{row['size']} {row['size_unit']}",
                f"{row['seconds']:.1f}",
            ]
            for row in comparison["systems"]
        ]
        title = f"Comparison with baselines, on the held-out rows of {counted(comparison['folds'], 'fold')}"
        out.table(title, ["", comparison["metric"], "", "size", "seconds"], rows)
        for sentence in comparison["messages"][int(comparison["no_better_than_baseline"]) :]:
            out.line(sentence)
    out.facts(shown)
    if facts["no_better_than_baseline"]:
        advice = "More rows, other inputs or another target may help."
        if metric == "accuracy":
            advice += " Where one class is rare: --balanced."
        if facts["weight"]:
            advice += " Where rows are cells of a table of counts, folds leave out whole cells: use --no-cv."
        out.banner(f"{comparison['messages'][0]} It is saved all the same. {advice}")


def _topics_of(model: ModelFile) -> list[dict[str, Any]]:
    """Return the topics with their top words and weights, those with the most influence on the scores first."""
    import numpy as np

    if model.report is None:
        return []
    features = model.report.features
    weights = np.asarray(features.weights)
    return [
        {
            "topic": int(features.number[place]),
            "share": float(features.mean[place]),
            "weights": dict(zip(features.output_names, weights[place].tolist(), strict=True)),
            "words": list(features.distinctive[place]),
        }
        for place in np.argsort(-np.asarray(features.influence), kind="stable").tolist()
    ]


def _show_topics(model: ModelFile, topics: list[dict[str, Any]], out: Output, most: int = 12, n_words: int = 7) -> None:
    """Print the most important topics with their weights and words."""
    rows = []
    for topic in topics[:most]:
        weights: dict[str, float] = topic["weights"]
        name, weight = max(weights.items(), key=lambda item: item[1])
        if len(weights) == 1:  # a binary target has one weight, that of the second class
            classes = model.report.features.group_names
            name = f"{weight:+.3g}" if model.target.kind == "regressor" else classes[int(weight > 0)]
        rows.append([name, ", ".join(topic["words"][:n_words])])
    if topics:
        some = "" if len(rows) == len(topics) else f" ({len(rows)} of {len(topics)}; the page has all)"
        out.table(f"topics{some}", ["highest weight", "words that distinguish it"], rows, numbers=False)


# --- predict, evaluate and report


def predict(request: PredictRequest) -> None:
    """Predict the target of new rows, one line per row in their order."""
    from regbayes.cli.modelfile import open_model

    out = Output(json=request.json, quiet=request.quiet)
    if request.output is not None:
        check_writable(request.output, request.data, request.model)
        check_suffix(request.output)
    model, table = open_model(request, out)
    with out.catch_warnings():
        columns = _predict_columns(model, table, request)
    result = {"command": "predict", "rows": table.n_rows}
    if request.output is not None:
        write_columns(columns, request.output)
        out.say(f"{table.n_rows} predictions written to {request.output}")
        out.result({**result, "output": request.output})
    elif request.json:
        out.result({**result, "columns": columns})
    else:
        write_columns(columns, None)


def _predict_columns(model: ModelFile, table: Table, request: PredictRequest) -> dict[str, list[Any]]:
    """Return the output columns: copied columns, predictions and other requested values."""
    from regbayes.cli.read import plain_number

    def plain(values: Any) -> list[Any]:
        """Return values as plain Python: integral numbers as int, missing ones as None."""
        return [
            None if value is None or value != value else plain_number(value) if isinstance(value, float) else value
            for value in values.tolist()
        ]

    kept = list(dict.fromkeys([*([table.key] if table.key else []), *request.keep]))
    columns = {name: plain(table.column(name, "--keep")) for name in kept}
    clash = [name for name in model.target.names if name in columns]
    if clash:
        raise UserError(f"--keep {clash[0]}: the prediction has this name too")
    shares = model.probabilities(table) if request.probabilities or request.threshold else []
    predicted = model.predict_at(shares, request.threshold) if request.threshold else model.predict(table)
    by_target = predicted[:, None] if predicted.ndim == 1 else predicted
    columns |= {name: plain(by_target[:, j]) for j, name in enumerate(model.target.names)}
    more = model.score_columns(table) if request.scores else {}
    more |= model.probability_columns(shares) if request.probabilities else {}
    more |= model.feature_columns(table) if request.features else {}
    return columns | {name: values.tolist() for name, values in more.items()}


def evaluate(request: EvaluateRequest) -> None:
    """Compare a model's predictions with the true targets of held-out rows."""
    from regbayes.cli.modelfile import open_model
    from regbayes.cli.targets import evaluate as judge

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
    scores = [[name, f"{value:.4g}"] for name, value in found["scores"].items()]
    out.table(f"{counted(found['rows'], noun)} of {table.source}", ["", "score"], scores)
    details, most = found["details"], 40
    if details:
        columns = list(details[0])
        cells = [[detail.get(column, "") for column in columns] for detail in details[:most]]
        shown = [[f"{cell:.3f}" if isinstance(cell, float) else str(cell) for cell in row] for row in cells]
        out.table(f"by {columns[0]}", columns, shown)
        if len(details) > most:
            out.line(f"and {len(details) - most} more; --json has all")
    out.result({"command": "evaluate", "model": request.model, "kind": model.target.kind, **found})


def report(request: ReportRequest) -> None:
    """Write an HTML report about a model: effects of inputs, features and errors."""
    from regbayes.cli.modelfile import load_model, open_model

    out = Output(json=request.json, quiet=request.quiet)
    check_writable(request.output, request.data, request.model)
    if request.data:
        model, table = open_model(request, out)
        with out.catch_warnings():
            shown = collect_new_page(model, table)
    else:
        shown = load_model(request.model).report
    if shown is None:
        raise BadModelError(f"{request.model!r} holds no report; fit the model again to get one")
    size = write_page(shown, request.output)
    out.line(f"{request.output} ({size / 1e6:.1f} MB): open it in a browser")
    made = {"command": "report", "model": request.model, "data": request.data or None, "output": request.output}
    out.result({**made, "bytes": size})


def collect_new_page(model: ModelFile, table: Table) -> Any:
    """Return the `ReportData` of a model on new rows."""
    from dataclasses import replace

    import numpy as np

    from regbayes.cli import modelfile
    from regbayes.cli.inputs import WordCounts, show_documents
    from regbayes.cli.read import text_of
    from regbayes.cli.targets import as_labels, codes_by_text, rows_with_target

    spec, noun = model.target, model.noun
    table, y, kept = rows_with_target(table, spec, needs_all=model.of_documents)
    y = as_labels(y) if spec.kind == "classifier" else y
    if model.of_documents and spec.kind == "multilabel":
        y = y.astype(np.int64)
    X = model.encode(table)
    numbered = [f"row {i + 1}" for i in np.flatnonzero(kept)]
    shown: dict[str, Any] = {
        "row_names": numbered if table.key is None else text_of(table.column(table.key)),
        "data_name": f"new {noun}s of {Path(table.source).name}",
        "prediction_note": f"Predictions of the fitted model for {noun}s that it was not fitted to.",
        "fitted_to": False,
        "scores": modelfile.score_for_page(model, " in cross-validation"),
    }
    if isinstance(model.inputs, WordCounts):
        shown["texts"] = show_documents(table, model.inputs, X)
    if model.calibration is not None:
        columns = zip(y.reshape(len(y), -1).T, model.classes, strict=True)
        codes = np.column_stack([codes_by_text(*pair) for pair in columns])
        shown["reliability"] = modelfile.reliability_of(model.probabilities(table), codes, None, f"Of new {noun}s.")
    if model.report is not None:
        shown |= {"image_shape": model.report.image_shape or None, "comparison": model.report.comparison}
    try:
        page = modelfile.collect_page(model, table, X, y, shown)
    except ValueError as error:
        raise BadDataError(str(error)) from None
    if model.report is None or model.report.features.returned is None:
        return page
    fitted, recurrence = model.report.features, {}  # only the fit computes which features recur
    for name in ("returned", "similarity"):
        of_all = np.full(fitted.n_in_use, np.nan)
        of_all[fitted.number] = getattr(fitted, name)
        recurrence[name] = of_all[page.features.number]
    return replace(page, features=replace(page.features, **recurrence, returned_note=fitted.returned_note))


def write_page(shown: Any, path: str) -> int:
    """Write a report and return its size in bytes."""
    from regbayes.report import render

    content = render(shown).encode()
    with replacing(path) as temporary:
        temporary.write_bytes(content)
    return len(content)


# --- the application


def demo(request: DemoRequest) -> None:
    """Constrain a posterior, then fit, compare and report a model of digits."""
    from regbayes.cli.demo import run

    run(request)


def make_app() -> typer.Typer:
    """Return the Typer application with all commands; Ctrl-C in one raises `StoppedError`."""
    app = typer.Typer(
        name="regbayes",
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode="markdown",
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    requests = (DemoRequest, FitRequest, PredictRequest, EvaluateRequest, ReportRequest)
    for run, request in zip((demo, fit, predict, evaluate, report), requests, strict=True):  # the order in the help
        app.command(epilog=f"**Examples**\n\n{EPILOGS[run.__name__]}")(make_command(request, _guard(run)))
    app.callback(epilog=f"**Where to start**\n\n{EPILOGS['regbayes']}")(_regbayes)
    return app


def _guard(run: Callable[..., None]) -> Callable[..., None]:
    """Turn Ctrl-C in a command into a `StoppedError`, because Typer would exit without a message."""

    @wraps(run)
    def guarded(request: Any) -> None:
        try:
            with interrupts.catch_signals():
                run(request)
        except KeyboardInterrupt:
            raise StoppedError("interrupted") from None

    return guarded


def _print_version(wanted: bool) -> None:
    if wanted:
        from regbayes import __version__

        print(f"regbayes {__version__}")
        raise typer.Exit


def _regbayes(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Learn latent features of rows, or topics of documents, that predict a target."""


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit with its code; user errors have no traceback."""
    own_process, message = arguments is None, None
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        code, message = _run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:  # the process that reads stdout has exited, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 128 + 13
    except Exception as error:
        code, message = _explain(error)
        print_error(message)
    if message is not None and "--json" in arguments:
        print(json.dumps({"error": message, "exit_code": code}))
    if own_process and code == ExitCode.INTERRUPTED:
        interrupts.ignore()
    sys.exit(code)


def _run(arguments: list[str]) -> tuple[int, str | None]:
    """Run the command line; return its exit code and the message of a usage error, which Typer has printed."""
    try:
        return int(make_app()(args=arguments, prog_name="regbayes", standalone_mode=True) or 0), None
    except SystemExit as stop:
        message = getattr(stop.__context__, "format_message", lambda: None)
        return int(stop.code or 0), message()


def _explain(error: Exception) -> tuple[int, str]:
    """Return the exit code and the message of an error; one of unknown cause is reported as a bug."""
    if os.environ.get("REGBAYES_TRACEBACK"):
        raise error
    if isinstance(error, UserError):
        return int(error.exit_code), str(error)
    if isinstance(error, MemoryError):
        return int(ExitCode.DATA), f"out of memory: {error}. Use fewer rows, columns or features"
    if isinstance(error, OSError):  # such as a full disk or a deleted file
        if error.filename is None:  # stdout failed, so flushing it at exit would fail too
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return int(ExitCode.USAGE), f"{error.filename or 'the output'}: {error.strerror or error}"
    what = f"{type(error).__name__}: {error}"
    return int(ExitCode.BUG), f"{what}. This is a bug in regbayes; REGBAYES_TRACEBACK=1 shows where"
