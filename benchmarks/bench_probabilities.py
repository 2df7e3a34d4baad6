"""How good are the probabilities of a search? Log-loss and calibration error on held-out halves, beside scikit-learn's.

    python benchmarks/bench_probabilities.py                                    # all sets, 10 halves each
    python benchmarks/bench_probabilities.py --sets digits --halves 5 --folds 3
    python benchmarks/bench_probabilities.py --sets newsgroups --rows 3000 --output probabilities.jsonl
    python benchmarks/bench_probabilities.py --smoke

Each time the rows are cut into random halves (stratified where there is one label per row), and a search with one
setting, the estimator's defaults, is fitted to one of them; the other is new to everything. Columns:
  search      predict_proba of the search, fitted to the scores of the rows that its folds left out
  sigmoid     ``CalibratedClassifierCV(ensemble=False)`` around the same estimator with the same seed and the same
              folds: a sigmoid for each class against the others, made to sum to one. Of several labels (yeast): one
              sigmoid with slope and intercept for each label, fitted to the same out-of-fold scores
  loss        mean of -log p of the true class, or over all labels of all rows
  error       expected calibration error in ten bins of equal width: of the probability of the answer, or of yes
A difference is search less sigmoid, half by half: its mean and standard error over the halves. "holds" says whether it
is not above one standard error.

Data: scikit-learn has digits; scene15, 20newsgroups_bydate and yeast are read from the folder REGBAYES_DATA. What is
missing is skipped and said.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.calibration import CalibratedClassifierCV, _SigmoidCalibration
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import log_loss
from sklearn.model_selection import KFold, StratifiedKFold, train_test_split
from sklearn.preprocessing import FunctionTransformer, StandardScaler

from regbayes import ILSVMClassifierCV, MedLDAClassifierCV, MultiTaskILSVMClassifierCV
from regbayes_paper.data import DataError, load_20newsgroups, load_scene15, load_yeast

SETS = ("digits", "scene15", "newsgroups", "yeast")


def read(name: str) -> tuple[Any, Any]:
    """Return rows and targets."""
    if name == "digits":
        X, y = load_digits(return_X_y=True)
        return X / 16.0, y
    load = {"scene15": load_scene15, "newsgroups": load_20newsgroups, "yeast": load_yeast}[name]
    return load(return_X_y=True, download_if_missing=False)


def calibration_error(probabilities: Any, right: Any) -> float:
    """Return the expected calibration error in ten bins of equal width."""
    place = np.minimum((10 * probabilities).astype(int), 9)
    return float(np.abs(np.bincount(place, right - probabilities, 10)).sum() / len(place))


def judge_classes(probabilities: Any, y: Any, classes: Any) -> dict[str, float]:
    """Return log-loss and calibration error of one label per row."""
    answer = np.asarray(classes)[np.argmax(probabilities, axis=1)]
    return {
        "loss": float(log_loss(y, probabilities, labels=classes)),
        "error": calibration_error(probabilities.max(axis=1), answer == y),
        "accuracy": float(np.mean(answer == y)),
    }


def judge_labels(probabilities: Any, Y: Any) -> dict[str, float]:
    """Return log-loss and calibration error of several labels."""
    p, yes = np.ravel(probabilities), np.ravel(Y) > 0
    return {
        "loss": float(log_loss(yes, p)),
        "error": calibration_error(p, yes),
        "accuracy": float(np.mean((p > 0.5) == yes)),
    }


def compare_classes(name: str, X: Any, y: Any, seed: int, folds: int, size: dict[str, Any]) -> dict[str, Any]:
    """Fit to one half and judge on the other: one label per row."""
    train, test = train_test_split(np.arange(len(y)), test_size=0.5, stratify=y, random_state=seed)
    cut = list(StratifiedKFold(folds, shuffle=True, random_state=seed).split(train, y[train]))
    make = MedLDAClassifierCV if name == "newsgroups" else ILSVMClassifierCV
    search = make(size["n_components"], Cs=(1.0,), cv=cut, max_iter=size["max_iter"], random_state=seed)
    scale = StandardScaler() if name == "scene15" else FunctionTransformer()
    rows, new = scale.fit_transform(X[train]), scale.transform(X[test])
    search.fit(rows, y[train])
    other = CalibratedClassifierCV(search.best_estimator_, ensemble=False, cv=cut).fit(rows, y[train])
    return {
        "search": judge_classes(search.predict_proba(new), y[test], search.classes_),
        "sigmoid": judge_classes(other.predict_proba(new), y[test], other.classes_),
    }


def compare_labels(_: str, X: Any, Y: Any, seed: int, folds: int, size: dict[str, Any]) -> dict[str, Any]:
    """Fit to one half and judge on the other: several labels."""
    train, test = train_test_split(np.arange(len(Y)), test_size=0.5, random_state=seed)
    cut = KFold(folds, shuffle=True, random_state=seed)
    search = MultiTaskILSVMClassifierCV(
        size["n_components"],
        Cs=(0.03,),
        temperatures=(0.1,),
        include_inputs=(False,),
        cv=cut,
        max_iter=size["max_iter"],
        random_state=seed,
    ).fit(X[train], Y[train])
    seen, scores = search.out_of_fold_, search.decision_function(X[test])
    by_label = np.column_stack(
        [
            _SigmoidCalibration().fit(seen.decisions[:, j], Y[train][seen.rows, j]).predict(scores[:, j])
            for j in range(Y.shape[1])
        ]
    )
    return {
        "search": judge_labels(search.predict_proba(X[test]), Y[test]),
        "sigmoid": judge_labels(by_label, Y[test]),
    }


def summarize(name: str, found: list[dict[str, Any]]) -> str:
    """Return a line for each measure."""
    lines = []
    for measure in ("loss", "error"):
        ours, theirs = (np.array([one[who][measure] for one in found]) for who in ("search", "sigmoid"))
        gap = ours - theirs
        error = gap.std(ddof=1) / np.sqrt(len(gap)) if len(gap) > 1 else np.nan
        holds = "" if np.isnan(error) else "holds" if gap.mean() <= error else "does not hold"
        means = f"{ours.mean():8.4f} {theirs.mean():8.4f}"
        lines.append(f"{name:11s} {measure:6s} {means} {gap.mean():+10.5f} ± {error:.5f}  {holds}")
    return "\n".join(lines)


def main() -> None:
    """Run what is asked for and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", nargs="+", default=SETS, choices=SETS)
    parser.add_argument("--halves", type=int, default=10)
    parser.add_argument("--first", type=int, default=0, help="the seed of the first pair of halves")
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--rows", type=int, help="at most so many, drawn anew for each pair of halves")
    parser.add_argument("--n-components", type=int, default=None)
    parser.add_argument("--max-iter", type=int, default=None)
    parser.add_argument("--output", type=Path, help="a file of JSON lines to append to")
    parser.add_argument("--smoke", action="store_true", help="digits and few rows, to see that it runs")
    given = parser.parse_args()
    if given.smoke:
        given.sets, given.halves, given.folds, given.rows, given.max_iter = ("digits",), 2, 2, 300, 10
    print(f"{'set':11s} {'':6s} {'search':>8s} {'sigmoid':>8s} {'difference':>10s}")
    for name in given.sets:
        found = list(runs(name, given))
        if found:
            print(summarize(name, found), flush=True)


def runs(name: str, given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield what each pair of halves gives."""
    try:
        X, y = read(name)
    except DataError as error:
        print(f"{name:11s} skipped: {error}")
        return
    size = {"n_components": given.n_components or (20 if name == "yeast" else 50), "max_iter": given.max_iter or 60}
    compare: Callable[..., dict[str, Any]] = compare_labels if name == "yeast" else compare_classes
    for seed in range(given.first, given.first + given.halves):
        rows = np.arange(len(y))
        if given.rows is not None and given.rows < len(y):
            labels = None if y.ndim == 2 else y
            rows = train_test_split(rows, train_size=given.rows, stratify=labels, random_state=seed)[0]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            found = compare(name, X[rows], y[rows], seed, given.folds, size)
        if given.output is not None:
            with given.output.open("a") as file:
                file.write(
                    json.dumps({"set": name, "seed": seed, "rows": len(rows), "folds": given.folds, **found}) + "\n"
                )
        yield found


if __name__ == "__main__":
    main()
