"""``regbayes demo``: a constrained posterior, and a model of handwritten digits, within a minute."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from regbayes.cli.errors import UserError
from regbayes.cli.options import FitRequest, Request, option
from regbayes.cli.output import Output, called_as

__all__ = ["EPILOG", "DemoRequest", "demo"]

EPILOG = """**Examples**

`regbayes demo`

`regbayes demo --output elsewhere`

First a posterior is constrained, then a model is fitted."""

SIDE = 8  # pixels


@dataclass(frozen=True, kw_only=True)
class DemoRequest(Request):
    """Options of the demonstration."""

    output: str = option("regbayes-demo", "--output -o", None, "Folder to write to.")


def demo(request: DemoRequest) -> None:
    """Constrain a posterior; fit a model to handwritten digits, compare it, and write a page about it."""
    out = Output(json=request.json, quiet=request.quiet)
    folder = Path(request.output)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--output {request.output}: {error.strerror or error}") from None
    posterior = _constrain(out)
    found = _run_demo(folder, out)
    out.table(
        f"{found['test_rows']} new digits, {found['training_rows']} to learn from",
        ["", "numbers per digit", "accuracy"],
        [[row["what"], str(row["numbers"]), f"{row['accuracy']:.3f}"] for row in found["comparison"]],
    )
    out.line("iLSVM describes a digit by ten features, which it learned together with the classifier on them.")
    out.line()
    regbayes = called_as()
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


def _run_demo(folder: Path, out: Output) -> dict[str, Any]:
    """Write the digits as two CSV files, fit a model to the first, and judge it by the second."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    from regbayes.cli.context import prepare
    from regbayes.cli.files import replacing, save_model
    from regbayes.cli.pages import collect_page
    from regbayes.cli.readers import read_table
    from regbayes.cli.training import train
    from regbayes.report import render

    digits = load_digits(as_frame=True)
    names = [f"row{r}column{c}" for r in range(SIDE) for c in range(SIDE)]
    frame = digits.data.set_axis(names, axis=1).astype(int).assign(digit=digits.target)
    parts = train_test_split(frame, test_size=0.5, stratify=frame["digit"], random_state=0)
    paths = [str(folder / f"digits-{name}.csv") for name in ("train", "test")]
    for part, path in zip(parts, paths, strict=True):
        with replacing(path) as place:
            part.to_csv(place, index=False)
    out.say(f"fitting ten features to {paths[0]}")
    model_path, page = str(folder / "digits.model"), str(folder / "digits.html")
    data: dict[str, Any] = {"data": paths[0], "target": ["digit"], "image": f"{SIDE}x{SIDE}", "output": model_path}
    context = prepare(FitRequest(**data, n_components=[10], cv=False), out)
    fitted, test = train(context), read_table(paths[1])
    model = replace(fitted, report=collect_page(fitted, test, out))
    with replacing(page) as place:
        place.write_text(render(model.report), encoding="utf-8")
    return {
        "model": save_model(model, model_path, out),
        "page": page,
        "train": paths[0],
        "test": paths[1],
        "training_rows": len(context.y),
        "test_rows": test.n_rows,
        "comparison": _compare(model, context, test),
    }


def _compare(model: Any, context: Any, test: Any) -> list[dict[str, Any]]:
    """Judge the model beside classifiers on the pixels, and on features that were found without the labels.

    Their C is chosen by cross-validation on the training digits; the model has its defaults.
    """
    import numpy as np
    from sklearn.model_selection import GridSearchCV
    from sklearn.svm import SVC, LinearSVC

    from regbayes import IBPFactorAnalysis

    X, y, X_test, y_test = context.X, context.y, model.encode(test), test.column("digit")
    n = model.estimator.n_components
    linear = GridSearchCV(LinearSVC(random_state=0), {"C": [0.001, 0.01, 0.1, 1.0, 10.0]}, cv=3)
    kernel = GridSearchCV(SVC(), {"C": [0.1, 1.0, 10.0, 100.0]}, cv=3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they are about the systems compared with
        # Soft features serve a linear classifier better, so the temperature is higher than the default.
        unlabeled = IBPFactorAnalysis(n, slab=None, transform_temperature=0.3, random_state=0).fit(X)
        found = {
            "linear classifier on the pixels": (X.shape[1], linear.fit(X, y).predict(X_test)),
            "SVM with an RBF kernel on the pixels": (X.shape[1], kernel.fit(X, y).predict(X_test)),
            "features without labels, then a classifier": (
                n,
                linear.fit(unlabeled.transform(X), y).predict(unlabeled.transform(X_test)),
            ),
            "iLSVM: features and classifier together": (n, model.predict(test)),
        }
    return [
        {"what": what, "numbers": numbers, "accuracy": float(np.mean(predicted == y_test))}
        for what, (numbers, predicted) in found.items()
    ]
