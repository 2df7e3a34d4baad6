"""Log-loss and calibration error of a search's probabilities, compared with scikit-learn's.

    python benchmarks/bench_probabilities.py                       # all sets, 10 halves each
    python benchmarks/bench_probabilities.py --sets digits --halves 5
    python benchmarks/bench_probabilities.py --smoke

Samples are split into random halves, stratified if there is one label per sample. A search with one setting (the
estimator's defaults) is fitted to one half, and scored on the other. Columns:
  search      predict_proba of the search, fitted to its out-of-fold scores
  sigmoid     ``CalibratedClassifierCV(ensemble=False)`` around the same estimator with the same seed and folds: one
              sigmoid per class, made to sum to one. Of several labels (yeast): one sigmoid with slope and intercept per
              label, fitted to the same out-of-fold scores
  loss        mean of -log p of the true class, or over all labels of all samples
  error       expected calibration error in ten bins of equal width: of the predicted class, or of the label
Differences are search minus sigmoid, paired by half: mean and standard error.

Data: scikit-learn has digits; scene15, 20newsgroups_bydate and yeast are read from the folder REGBAYES_DATA.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable
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
    """Return samples and targets."""
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
    """Return log-loss and calibration error of one label per sample."""
    predicted = np.asarray(classes)[np.argmax(probabilities, axis=1)]
    return {
        "loss": float(log_loss(y, probabilities, labels=classes)),
        "error": calibration_error(probabilities.max(axis=1), predicted == y),
        "accuracy": float(np.mean(predicted == y)),
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
    """Fit to one half and score on the other, with one label per sample."""
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
    """Fit to one half and score on the other, with several labels."""
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


def measure(name: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the results of all pairs of halves."""
    X, y = read(name)
    compare: Callable[..., dict[str, Any]] = compare_labels if name == "yeast" else compare_classes
    size = {"n_components": 20 if name == "yeast" else 50, "max_iter": 10 if options.smoke else 60}
    found = []
    for seed in range(options.first, options.first + options.halves):
        rows = np.arange(len(y))
        if options.smoke:
            rows = train_test_split(rows, train_size=300, stratify=y, random_state=seed)[0]
        found.append(compare(name, X[rows], y[rows], seed, options.folds, size))
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", nargs="+", default=SETS, choices=SETS)
    parser.add_argument("--halves", type=int, default=10)
    parser.add_argument("--first", type=int, default=0, help="the seed of the first pair of halves")
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--smoke", action="store_true", help="300 digits")
    options = parser.parse_args()
    if options.smoke:
        options.sets, options.halves, options.folds = ("digits",), 2, 2
    warnings.simplefilter("ignore", ConvergenceWarning)
    print(f"{'set':11s} {'':6s} {'search':>8s} {'sigmoid':>8s} {'difference':>10s}")
    for name in options.sets:
        try:
            found = measure(name, options)
        except DataError as error:
            print(f"{name:11s} skipped: {error}")
            continue
        for quantity in ("loss", "error", "accuracy"):
            ours, theirs = (np.array([one[who][quantity] for one in found]) for who in ("search", "sigmoid"))
            gap = ours - theirs
            error = gap.std(ddof=1) / np.sqrt(len(gap)) if len(gap) > 1 else np.nan
            means = f"{ours.mean():8.4f} {theirs.mean():8.4f} {gap.mean():+10.5f} ± {error:.5f}"
            print(f"{name:11s} {quantity:8s} {means}", flush=True)


if __name__ == "__main__":
    main()
