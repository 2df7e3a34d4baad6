"""``regbayes demo``: a model of handwritten digits, from the data that scikit-learn carries, within a minute."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from regbayes.cli import resume_collection
from regbayes.cli.errors import UserError
from regbayes.cli.options import FitRequest, Request
from regbayes.cli.output import Output, called_as

__all__ = ["EPILOG", "DemoRequest", "demo"]

EPILOG = """**Examples**

`regbayes demo`

`regbayes demo --output elsewhere`"""

SIDE = 8  # pixels


@dataclass(frozen=True, kw_only=True)
class DemoRequest(Request):
    """What the demonstration can be asked."""

    output: Annotated[str, typer.Option("--output", "-o", help="The folder to write to.")] = "regbayes-demo"


def demo(request: DemoRequest) -> None:
    """Fit a model to handwritten digits, compare it, and write a page about it."""
    resume_collection()
    out = Output(json=request.json, quiet=request.quiet)
    folder = Path(request.output)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--output {request.output}: {error.strerror or error}") from None
    found = _run_demo(folder, out)
    out.table(
        f"{found['test_rows']} new digits, {found['training_rows']} to learn from",
        ["", "numbers per digit", "accuracy"],
        [[row["what"], str(row["numbers"]), f"{row['accuracy']:.3f}"] for row in found["comparison"]],
    )
    out.line("iLSVM describes a digit by ten features, which it learned together with the classifier on them.")
    out.line()
    out.line("Look at them:     open " + str(found["page"]) + " in a browser")
    regbayes = called_as()
    out.line(f"Try it yourself:  {regbayes} evaluate {found['model']} {found['test']}")
    out.line(f"                  {regbayes} predict {found['model']} {found['test']} --features")
    out.line(f"Your own data:    {regbayes} fit YOUR.csv --target COLUMN --output YOUR.model")
    out.line(f"Your own texts:   {regbayes} fit YOUR.csv --text COLUMN --target COLUMN --output YOUR.model")
    out.line("In Python:        from regbayes import ILSVMClassifier")
    out.result({"command": "demo", **found})


def _run_demo(folder: Path, out: Output) -> dict[str, Any]:
    """Write the digits as two CSV files, fit a model to the first, and judge it by the second."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    from regbayes.cli.tables import read_table
    from regbayes.cli.training import train
    from regbayes.report import render

    digits = load_digits()
    train_rows, test_rows = train_test_split(
        range(len(digits.target)), test_size=0.5, stratify=digits.target, random_state=0
    )
    paths = {"train": folder / "digits-train.csv", "test": folder / "digits-test.csv"}
    for path, rows in zip(paths.values(), (train_rows, test_rows), strict=True):
        _write_digits(path, digits.data[rows], digits.target[rows])
    out.say(f"fitting ten features to {paths['train']}")
    model_path, page = folder / "digits.model", folder / "digits.html"
    data = {"data": str(paths["train"]), "target": ["digit"], "image": f"{SIDE}x{SIDE}", "output": str(model_path)}
    model = train(FitRequest(**data, n_components=[10], cv=False), out)
    table, test = (read_table(str(path)) for path in paths.values())
    model = replace(model, report=_report(model, test))
    model.save(model_path)
    page.write_text(render(model.report), encoding="utf-8")
    return {
        "model": str(model_path),
        "page": str(page),
        "train": str(paths["train"]),
        "test": str(paths["test"]),
        "training_rows": len(train_rows),
        "test_rows": len(test_rows),
        "comparison": _compare(model, test, table),
    }


def _report(model: Any, test: Any) -> Any:
    """Gather what the page shows from digits that the model was not fitted to."""
    from regbayes.report import collect

    X, y = model.encode(test), test.column("digit").astype(int)
    return collect(
        model.estimator,
        X,
        y,
        feature_names=model.inputs.get_feature_names_out().tolist(),
        image_shape=(SIDE, SIDE),
        data_name="new digits",
        fitted_to=False,
        prediction_note="These digits were not there when the model was fitted.",
        title="Handwritten digits",
    )


def _write_digits(path: Path, pixels: Any, labels: Any) -> None:
    import pandas as pd

    names = [f"row{r}column{c}" for r in range(SIDE) for c in range(SIDE)]
    pd.DataFrame(pixels.astype(int), columns=names).assign(digit=labels).to_csv(path, index=False)


def _compare(model: Any, test: Any, training: Any) -> list[dict[str, Any]]:
    """Judge the model beside linear classifiers on the pixels, and on features that were found without the labels.

    Their C is chosen by cross-validation on the training digits; the model has its defaults.
    """
    import numpy as np
    from sklearn.model_selection import GridSearchCV
    from sklearn.svm import LinearSVC

    from regbayes import IBPFactorAnalysis

    X, y = model.encode(training), training.column("digit")
    X_test, y_test = model.encode(test), test.column("digit")
    linear = GridSearchCV(LinearSVC(random_state=0), {"C": [0.001, 0.01, 0.1, 1.0, 10.0]}, cv=3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they are about the systems compared with
        # At a higher temperature: soft features serve a linear classifier better, so this is the pipeline at its best.
        unlabelled = IBPFactorAnalysis(
            model.estimator.n_components, slab=None, transform_temperature=0.3, random_state=0
        ).fit(X)
        answers = {
            "linear classifier on the pixels": (X.shape[1], linear.fit(X, y).predict(X_test)),
            "features without labels, then a classifier": (
                unlabelled.n_components,
                linear.fit(unlabelled.transform(X), y).predict(unlabelled.transform(X_test)),
            ),
            "iLSVM: features and classifier together": (model.estimator.n_components, model.predict(test)),
        }
    return [
        {"what": what, "numbers": numbers, "accuracy": float(np.mean(answer == y_test))}
        for what, (numbers, answer) in answers.items()
    ]
