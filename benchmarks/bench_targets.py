"""iLSVM for numbers and for several labels, compared with other models.

    python benchmarks/bench_targets.py --jobs 4

Numbers: R² on held-out samples, the number K of features in use, and CPU seconds of a fit. Parameters of ridge, the RBF
SVMs and MT-iLSVM are chosen by cross-validation on the training part; "rule" is `ILSVMRegressor` with its defaults.
Labels: accuracy over all labels, F1-micro and F1-macro on the published split. Data sets that scikit-learn does not
include are read from the folder REGBAYES_DATA. "yeast expression" and "wine alcohol" predict a column from the others.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from cells import mean_and_error, parse, run_cells
from sklearn import datasets
from sklearn.compose import TransformedTargetRegressor
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import RidgeCV
from sklearn.metrics import f1_score
from sklearn.model_selection import GridSearchCV, ShuffleSplit
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, SVR

import regbayes

FOLDER, MAX_SAMPLES = Path(os.environ.get("REGBAYES_DATA", ".")), 2000


def column(X: np.ndarray, j: int) -> tuple[np.ndarray, np.ndarray]:
    return np.delete(X, j, axis=1), X[:, j]


def read(name: str) -> dict[str, np.ndarray]:
    with np.load(FOLDER / f"{name}.npz") as found:
        return {key: found[key] for key in found.files}


NUMBERS: dict[str, Callable[[], tuple[np.ndarray, np.ndarray]]] = {
    "diabetes": lambda: datasets.load_diabetes(return_X_y=True),
    "friedman 1": lambda: datasets.make_friedman1(600, noise=1.0, random_state=0),
    "friedman 2": lambda: datasets.make_friedman2(600, noise=125.0, random_state=0),
    "friedman 3": lambda: datasets.make_friedman3(600, noise=0.1, random_state=0),
    "wine alcohol": lambda: column(datasets.load_wine().data, 0),
    "wine color": lambda: column(datasets.load_wine().data, 9),
    "wine flavanoids": lambda: column(datasets.load_wine().data, 6),
    "iris width": lambda: column(datasets.load_iris().data, 1),
    "cancer smoothness": lambda: column(datasets.load_breast_cancer().data, 4),
    "cancer fractal": lambda: column(datasets.load_breast_cancer().data, 9),
    "cancer fractal error": lambda: column(datasets.load_breast_cancer().data, 19),
    "school": lambda: (read("school")["X"].astype(float), read("school")["y"]),
    "yeast expression": lambda: column(read("yeast")["X"], 50),
    "emotions rhythm": lambda: column(read("emotions")["X"], 0),
    "emotions timbre": lambda: column(read("emotions")["X"], 30),
    "scene color": lambda: column(read("scene")["X"][:, ::4], 0),
}
LABELS = ("emotions", "scene", "yeast")


def scaled(model: Any) -> Any:
    return TransformedTargetRegressor(make_pipeline(StandardScaler(), model), transformer=StandardScaler())


def tuned(model: Any, **grid: Any) -> Any:
    return scaled(GridSearchCV(model, grid, cv=3))


REGRESSORS: dict[str, Callable[[], Any]] = {
    "ridge": lambda: scaled(RidgeCV(np.logspace(-3, 3, 13))),
    "MT-iLSVM": lambda: regbayes.MultiTaskILSVMRegressorCV(cv=3, temperatures=(0.03,), random_state=0),
    "boosting": lambda: HistGradientBoostingRegressor(random_state=0),
    "SVR": lambda: tuned(SVR(), C=[0.3, 1.0, 3.0, 10.0], gamma=["scale", 0.01, 0.1], epsilon=[0.1, 0.3]),
    "kernel ridge": lambda: tuned(KernelRidge(kernel="rbf"), alpha=[0.003, 0.03, 0.3], gamma=[0.003, 0.01, 0.03, 0.1]),
    "rule": lambda: regbayes.ILSVMRegressor(random_state=0),
    "CV": lambda: regbayes.ILSVMRegressorCV(cv=3, random_state=0),
    "slab": lambda: regbayes.ILSVMRegressor(slab="half-normal", random_state=0),
}
CLASSIFIERS: dict[str, Callable[[], Any]] = {
    "MT-iLSVM": lambda: regbayes.MultiTaskILSVMClassifier(C=0.03, random_state=0),
    "RBF": lambda: OneVsRestClassifier(GridSearchCV(SVC(), {"C": [1.0, 3.0, 10.0]}, cv=3)),
    "soft": lambda: regbayes.ILSVMClassifier(random_state=0),
    "slab": lambda: regbayes.ILSVMClassifier(slab="half-normal", random_state=0),
}


def measure(kind: str, name: str, split: int, model: str) -> list[float]:
    began = time.process_time()
    if kind == "labels":
        data = read(name)
        train, test = data["train_idx"], data["test_idx"]
        scaler = StandardScaler().fit(data["X"][train])
        X, Y = scaler.transform(data["X"]), data["Y"].astype(np.int64)
        fitted = CLASSIFIERS[model]().fit(X[train], Y[train])
        spent, predicted = time.process_time() - began, fitted.predict(X[test])
        scores = [f1_score(Y[test], predicted, average=average, zero_division=0) for average in ("micro", "macro")]
        return [float(np.mean(predicted == Y[test])), *scores, getattr(fitted, "n_components_", np.nan), spent]
    X, y = NUMBERS[name]()
    train, test = next(ShuffleSplit(1, train_size=min(MAX_SAMPLES, int(0.7 * len(y))), random_state=split).split(X))
    fitted = REGRESSORS[model]().fit(X[train], y[train])
    spent = time.process_time() - began
    return [float(fitted.score(X[test], y[test])), getattr(fitted, "n_components_", np.nan), spent]


if __name__ == "__main__":
    options = parse(__doc__, 3, "bench_targets.jsonl", "iris width")
    sets = [name for name in NUMBERS if options.sets is None or name in options.sets]
    splits = range(options.splits)
    cells = [("numbers", name, split, model) for name in sets for split in splits for model in REGRESSORS]
    cells += [("labels", name, 0, model) for name in LABELS if options.sets is None for model in CLASSIFIERS]
    found = run_cells(measure, cells, options)
    scores = {m: [np.mean([found["numbers", n, s, m][0] for s in splits]) for n in sets] for m in REGRESSORS}
    print(f"{'R²':20}", *(f"{model:>12}" for model in REGRESSORS))
    for i, name in enumerate(sets):
        print(f"{name:20}", *(f"{scores[model][i]:12.3f}" for model in REGRESSORS))
    for model in REGRESSORS:
        of_model = np.array([found[cell][1:] for cell in cells if cell[0] == "numbers" and cell[3] == model])
        gain = mean_and_error(np.subtract(scores["CV"], scores[model]))
        print(f"CV against {model:14} {gain}   K {np.nanmean(of_model[:, 0]):5.1f}  {np.mean(of_model[:, 1]):6.2f} s")
    for kind, name, _, model in (cell for cell in cells if cell[0] == "labels"):
        accuracy, micro, macro, K, spent = found[kind, name, 0, model]
        print(f"{name:10} {model:10} {accuracy:.3f} / {micro:.3f} / {macro:.3f}  K {K:4.0f}  {spent:6.1f} s")
