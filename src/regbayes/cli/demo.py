"""The demonstration ``regbayes demo``: a constrained posterior, then a model of handwritten digits."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.svm import SVC, LinearSVC

from regbayes import E, IBPFactorAnalysis, Samples, regularize
from regbayes.cli.app import collect_new_page, write_page
from regbayes.cli.context import prepare
from regbayes.cli.errors import UserError
from regbayes.cli.fit import fit, train
from regbayes.cli.options import DemoRequest, FitRequest
from regbayes.cli.output import Output, called_as, replacing, save_model
from regbayes.cli.read import read_table


def run(request: DemoRequest) -> None:
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
    model, test = train(context, fit(context)), read_table(paths[1])
    model = replace(model, report=collect_new_page(model, test))
    write_page(model.report, page)
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
