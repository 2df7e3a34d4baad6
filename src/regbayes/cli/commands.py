"""The commands of ``regbayes``.

Heavy modules are imported inside a command, so that ``regbayes --help`` starts quickly.
"""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from regbayes.cli import interrupts
from regbayes.cli.errors import BadModelError, ExitCode, UserError, counted
from regbayes.cli.options import DemoRequest, EvaluateRequest, FitRequest, PredictRequest, ReportRequest
from regbayes.cli.output import Output, called_as, check_suffix, check_writable, replacing, save_model, write_columns

if TYPE_CHECKING:
    from regbayes.cli.modelfile import ModelFile
    from regbayes.cli.read import Table

__all__ = ["COMMANDS", "EPILOGS"]

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


def fit(request: FitRequest) -> None:
    """Fit a model to a file or to documents, and save it.

    The target decides between a classifier, a multi-label classifier and a regressor. Settings are chosen by
    cross-validation. Missing values are imputed, text columns are encoded and uninformative columns are dropped. With
    --text or a folder, rows are documents and the model finds topics.
    """
    from regbayes.cli.context import prepare
    from regbayes.cli.fit import fit as fit_model
    from regbayes.cli.fit import train
    from regbayes.cli.summaries import show_model, summary

    out = Output(json=request.json, quiet=request.quiet)
    context = prepare(request, out)
    with interrupts.protect():
        fitted = fit_model(context)
        model = train(context, fitted)
        path = save_model(model, request.output, out)
        if fitted.file is not None and fitted.kept is None:
            fitted.file.remove()
        show_model(model, path, out)
        out.result({"command": "fit", "model": path, **summary(model)})
        if path != request.output:
            raise typer.Exit(ExitCode.USAGE)
        if model.facts["interrupted"] or (model.facts["comparison"] or {}).get("interrupted"):
            raise typer.Exit(ExitCode.INTERRUPTED)


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
        from regbayes.cli.pages import collect_new_page

        model, table = open_model(request, out)
        with out.catch_warnings():
            shown = collect_new_page(model, table, out)
    else:
        shown = load_model(request.model).report
    if shown is None:
        raise BadModelError(f"{request.model!r} holds no report; fit the model again to get one")
    size = _write_page(shown, request.output)
    out.line(f"{request.output} ({size / 1e6:.1f} MB): open it in a browser")
    made = {"command": "report", "model": request.model, "data": request.data or None, "output": request.output}
    out.result({**made, "bytes": size})


def _write_page(shown: Any, path: str) -> int:
    """Write a report and return its size in bytes."""
    from regbayes.report import render

    content = render(shown).encode()
    with replacing(path) as temporary:
        temporary.write_bytes(content)
    return len(content)


# --- the demonstration


def demo(request: DemoRequest) -> None:
    """Constrain a posterior, then fit, compare and report a model of digits."""
    out = Output(json=request.json, quiet=request.quiet)
    folder = Path(request.output)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--output {request.output}: {error.strerror or error}") from None
    posterior = _constrain(out)
    found = _fit_digits(folder, out)
    out.table(
        f"{found['test_rows']} new digits, {found['training_rows']} to learn from",
        ["", "numbers per digit", "accuracy"],
        [[row["what"], str(row["numbers"]), f"{row['accuracy']:.3f}"] for row in found["comparison"]],
    )
    regbayes = called_as()
    out.line("iLSVM describes a digit by ten features, which it learned together with the classifier on them.")
    out.line()
    out.line(f"Look at them:     open {found['page']} in a browser")
    out.line(f"Try it yourself:  {regbayes} evaluate {found['model']} {found['test']}")
    out.line(f"                  {regbayes} predict {found['model']} {found['test']} --features")
    out.line(f"Your own data:    {regbayes} fit YOUR.csv --target COLUMN --output YOUR.model")
    out.line(f"Your own texts:   {regbayes} fit YOUR.csv --text COLUMN --target COLUMN --output YOUR.model")
    out.line("In Python:        from regbayes import ILSVMClassifier")
    out.result({"command": "demo", "posterior": posterior, **found})


def _constrain(out: Output) -> dict[str, Any]:
    """Regularize the posterior of three dose effects, which experts expect to rise with the dose."""
    import numpy as np

    from regbayes import E, Samples, regularize

    doses = ("5 mg", "10 mg", "20 mg")
    draws = np.random.default_rng(0).normal([0.1, 0.4, 0.3], [0.1, 0.15, 0.15], size=(4000, 3))
    result = regularize(Samples(draws), E(np.diff, name="next dose") >= 0)
    means = [draws.mean(axis=0), result.expectation(lambda x: x)]
    rows = [[dose, f"{before:.3f}", f"{after:.3f}"] for dose, before, after in zip(doses, *means, strict=True)]
    out.table("The mean effects of three doses, which should not fall", ["", "posterior", "constrained"], rows)
    out.line(f"KL divergence {result.kl:.3f} nats, solver {result.status}; in Python: regularize(draws, E(f) >= 0)")
    out.line()
    return {"kl": result.kl, "before": means[0].tolist(), "after": means[1].tolist()}


def _fit_digits(folder: Path, out: Output) -> dict[str, Any]:
    """Fit a model to one CSV file of digits and compare it with baselines on another."""
    import numpy as np
    from sklearn.datasets import load_digits
    from sklearn.model_selection import GridSearchCV, train_test_split
    from sklearn.svm import SVC, LinearSVC

    from regbayes import IBPFactorAnalysis
    from regbayes.cli.context import prepare
    from regbayes.cli.fit import fit as fit_model
    from regbayes.cli.fit import train
    from regbayes.cli.pages import collect_new_page
    from regbayes.cli.read import read_table

    digits = load_digits(as_frame=True)
    names = [f"row{r}column{c}" for r in range(8) for c in range(8)]
    frame = digits.data.set_axis(names, axis=1).astype(int).assign(digit=digits.target)
    parts = train_test_split(frame, test_size=0.5, stratify=frame["digit"], random_state=0)
    paths = [str(folder / f"digits-{name}.csv") for name in ("train", "test")]
    for part, path in zip(parts, paths, strict=True):
        with replacing(path) as place:
            part.to_csv(place, index=False)
    out.say(f"fitting ten features to {paths[0]}")
    model_path, page = str(folder / "digits.model"), str(folder / "digits.html")
    data: dict[str, Any] = {"data": paths[0], "target": ["digit"], "image": "8x8", "output": model_path}
    context = prepare(FitRequest(**data, n_components=[10], cv=False), out)
    model, test = train(context, fit_model(context)), read_table(paths[1])
    model = replace(model, report=collect_new_page(model, test, out))
    _write_page(model.report, page)
    X, y, X_test = context.X, context.y, model.encode(test)
    linear = GridSearchCV(LinearSVC(random_state=0), {"C": [0.001, 0.01, 0.1, 1.0, 10.0]}, cv=3)
    kernel = GridSearchCV(SVC(), {"C": [0.1, 1.0, 10.0, 100.0]}, cv=3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the warnings concern only the baselines
        # A linear classifier predicts better from a high-temperature posterior.
        unlabeled = IBPFactorAnalysis(10, slab=None, transform_temperature=0.3, random_state=0).fit(X)
        features, new_features = unlabeled.transform(X), unlabeled.transform(X_test)
        systems = {
            "linear classifier on the pixels": (64, linear.fit(X, y).predict(X_test)),
            "SVM with an RBF kernel on the pixels": (64, kernel.fit(X, y).predict(X_test)),
            "features without labels, then a classifier": (10, linear.fit(features, y).predict(new_features)),
            "iLSVM: features and classifier together": (10, model.predict(test)),
        }
    truth = test.column("digit")
    return {
        "model": save_model(model, model_path, out),
        "page": page,
        "train": paths[0],
        "test": paths[1],
        "training_rows": len(y),
        "test_rows": test.n_rows,
        "comparison": [
            {"what": what, "numbers": numbers, "accuracy": float(np.mean(predicted == truth))}
            for what, (numbers, predicted) in systems.items()
        ],
    }


COMMANDS = {  # in the order shown by the help
    "demo": (demo, DemoRequest),
    "fit": (fit, FitRequest),
    "predict": (predict, PredictRequest),
    "evaluate": (evaluate, EvaluateRequest),
    "report": (report, ReportRequest),
}
