"""Time and memory of iLSVM and MT-iLSVM, by sample size and compared with other packages.

    python benchmarks/bench_speed.py                        # all parts
    REGBAYES_DATA=folder python benchmarks/bench_speed.py tasks  # yeast, scene and school
    python benchmarks/bench_speed.py --smoke

classes
    iLSVM against scikit-learn's ``NMF`` + ``LinearSVC`` on samples with binary features and nonnegative loadings.
tasks
    MT-iLSVM with 50 features against ``LinearSVC`` one-vs-rest and, on school, one ``LinearSVR`` per task, on the same
    standardized inputs. School is split 75% to 25%, yeast and scene as published.
curve
    Elapsed time per sample and step of fits to simulated data, and peak memory relative to the size of X.

Each time is shown with a test score. ``OMP_NUM_THREADS`` sets the threads of BLAS, ``--jobs`` those of regbayes.
"""

from __future__ import annotations

import argparse
import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from common import draw_classes, peak_bytes, timed
from sklearn.decomposition import NMF
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC, LinearSVR

from regbayes import ILSVMClassifier, MultiTaskILSVMClassifier, MultiTaskILSVMRegressor


def classes(smoke: bool, jobs: int) -> None:
    """Fit iLSVM and NMF + LinearSVC."""
    n, D, K, n_classes = (2000, 40, 10, 4) if smoke else (20_000, 200, 50, 10)
    X, y = draw_classes(n, D, K, n_classes)
    new, truth = draw_classes(5000, D, K, n_classes, seed=1)
    ours, our_seconds = timed(lambda: ILSVMClassifier(K, random_state=0, n_jobs=jobs).fit(X, y))
    theirs, seconds = timed(lambda: make_pipeline(NMF(K, random_state=0), LinearSVC()).fit(X, y))
    show("classes", "NMF + LinearSVC", seconds, seconds, theirs.score(new, truth))
    show("classes", f"iLSVM, K = {K}", our_seconds, seconds, ours.score(new, truth))


def tasks(smoke: bool, jobs: int) -> None:
    """Fit MT-iLSVM, and a linear SVM for each task."""
    for name in ("yeast", "scene", "school"):
        path = Path(os.environ.get("REGBAYES_DATA", "")) / f"{name}.npz"
        if smoke:
            data = draw_tasks(400, 8)
        elif path.is_file():
            with np.load(path) as file:
                data = {key: file[key] for key in file.files}
        else:
            print(f"{name}: not found; set REGBAYES_DATA to a folder that holds {name}.npz")
            continue
        (against_svrs if name == "school" else against_svms)(name, data, jobs)


def against_svms(name: str, data: dict[str, Any], jobs: int) -> None:
    train, test = data["train_idx"], data["test_idx"]
    X = StandardScaler().fit(data["X"][train].astype(float)).transform(data["X"].astype(float))
    Y = data["Y"].astype(int)
    svms, seconds = timed(lambda: OneVsRestClassifier(LinearSVC()).fit(X[train], Y[train]))
    show(name, "LinearSVC", seconds, seconds, float(np.mean(svms.predict(X[test]) == Y[test])))
    for options in ({}, {"include_inputs": True}, {"C": 1.0}):
        model = MultiTaskILSVMClassifier(50, random_state=0, n_jobs=jobs, **options)
        model, ours = timed(lambda model=model: model.fit(X[train], Y[train]))
        show(name, f"MT-iLSVM {options or ''}", ours, seconds, float(np.mean(model.predict(X[test]) == Y[test])))


def against_svrs(name: str, data: dict[str, Any], jobs: int) -> None:
    task, train = data["task"], np.random.default_rng(0).random(len(data["task"])) < 0.75
    X = StandardScaler().fit(data["X"][train].astype(float)).transform(data["X"].astype(float))
    y = (data["y"] - data["y"][train].mean()) / data["y"][train].std()
    groups = [np.flatnonzero(train & (task == t)) for t in np.unique(task)]
    svrs, seconds = timed(lambda: [LinearSVR().fit(X[rows], y[rows]) for rows in groups])
    new = [~train & (task == t) for t in np.unique(task)]
    predicted = np.concatenate([svr.predict(X[rows]) for rows, svr in zip(new, svrs, strict=True)])
    truth = np.concatenate([y[rows] for rows in new])
    r2 = 1 - np.sum((truth - predicted) ** 2) / np.sum((truth - truth.mean()) ** 2)
    show(name, "LinearSVR", seconds, seconds, float(r2))
    for options in ({}, {"include_inputs": True}, {"C": 0.1}):
        model = MultiTaskILSVMRegressor(50, random_state=0, n_jobs=jobs, **options)
        model, ours = timed(lambda model=model: model.fit(X[train], y[train], task=task[train]))
        show(name, f"MT-iLSVM {options or ''}", ours, seconds, model.score(X[~train], y[~train], task=task[~train]))


def show(data: str, model: str, seconds: float, theirs: float, score: float) -> None:
    print(f"{data:8} {model:35} {seconds:8.3f} s {seconds / theirs:7.2f} times   score {score:.4f}", flush=True)


def draw_tasks(n: int, n_tasks: int) -> dict[str, Any]:
    """Draw correlated inputs, and labels and numbers of related tasks."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, 5)) @ rng.standard_normal((5, 30)) + rng.standard_normal((n, 30))
    slopes = rng.standard_normal((30, 1)) + 0.3 * rng.standard_normal((30, n_tasks))
    scores = X @ slopes + 5.0 * rng.standard_normal((n, n_tasks))
    task, rows = np.arange(n) % n_tasks, np.arange(n)
    halves = {"train_idx": rows[: n // 2], "test_idx": rows[n // 2 :]}
    return {"X": X, "Y": (scores > 0).astype(int), "y": scores[rows, task], "task": task, "scores": scores, **halves}


def curve(smoke: bool, jobs: int) -> None:
    """Time a few steps on data of increasing size."""
    steps = 2 if smoke else 10
    for n in (500, 2000) if smoke else (10_000, 100_000, 1_000_000):
        data = draw_tasks(n, 20)
        X, y, task = data["X"], data["y"], data["task"]
        given = {"n_components": 20, "tol": 0.0, "random_state": 0, "n_jobs": jobs}
        best = data["scores"][:, :10].argmax(axis=1)
        fits = {
            "iLSVM, 10 classes": (ILSVMClassifier(**given), (X, best), {}),
            "iLSVM, one-vs-rest": (ILSVMClassifier(multi_class="ovr", **given), (X, best), {}),
            "MT-iLSVM, 20 labels": (MultiTaskILSVMClassifier(**given), (X, data["Y"]), {}),
            "MT-iLSVM, 20 numbers": (MultiTaskILSVMRegressor(**given), (X, data["scores"]), {}),
            "MT-iLSVM, one label": (MultiTaskILSVMClassifier(**given), (X, (y > 0).astype(int)), {"task": task}),
            "MT-iLSVM, one number": (MultiTaskILSVMRegressor(**given), (X, y), {"task": task}),
        }
        for name, (model, arguments, named) in fits.items():
            peak = peak_bytes(lambda: model.set_params(max_iter=1).fit(*arguments, **named))  # noqa: B023
            trace = model.set_params(max_iter=steps).fit(*arguments, **named).trace_
            seconds = (trace.elapsed[-1] - trace.elapsed[0]) / max(trace.iterations[-1] - trace.iterations[0], 1)
            each = 1e6 * seconds / n
            memory = f"memory {peak / X.nbytes:5.1f} times X"
            print(f"{n:8d} samples, {name:21} {each:7.2f} us per sample and step; {memory}", flush=True)


PARTS = {"classes": classes, "tasks": tasks, "curve": curve}


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", nargs="*", choices=[*PARTS, []], default=[])
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # fits reach max_iter
    data = draw_tasks(200, 4)  # compile before timing
    ILSVMClassifier(3, max_iter=2).fit(*draw_classes(300, 10, 3, 3))
    MultiTaskILSVMRegressor(3, max_iter=2).fit(data["X"], data["y"], task=data["task"])
    for name in options.part or PARTS:
        PARTS[name](options.smoke, options.jobs)


if __name__ == "__main__":
    main()
