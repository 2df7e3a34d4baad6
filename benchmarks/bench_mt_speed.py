"""Time and memory of an MT-iLSVM fit: against one linear SVM per task in the same run, and as rows and tasks grow.

    python benchmarks/bench_mt_speed.py          # with REGBAYES_DATA set: Yeast, Scene and School; then the curves
    python benchmarks/bench_mt_speed.py --smoke

The peer is ``LinearSVC`` one-vs-rest, and on School one ``LinearSVR`` per school, at C = 1 and the default tolerance,
on the same standardised inputs (and targets, on School). MT-iLSVM has 50 features and is timed whole: standardising,
start-up, joint fit. Times are CPU seconds, the best of ``--repeats``. The goal was a ratio of at most ten. A test score
stands beside each, because a fast fit that does not predict is no fit. The curves are whole fits of drawn data with 30
inputs and 20 features; memory is the peak that Python's allocator saw beside X itself, in
copies of X.
"""

from __future__ import annotations

import argparse
import os
import time
import tracemalloc
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.multiclass import OneVsRestClassifier
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC, LinearSVR

from regbayes import MultiTaskILSVMClassifier, MultiTaskILSVMRegressor


def cpu_seconds(work: Callable[[], Any], repeats: int) -> tuple[float, Any]:
    """Return the least CPU seconds of several calls, and the last result."""
    times, result = [], None
    for _ in range(repeats):
        start = time.process_time()
        result = work()
        times.append(time.process_time() - start)
    return min(times), result


def load(name: str, smoke: bool) -> dict[str, np.ndarray] | None:
    """Return arrays of a data set; drawn ones of the same kind in a smoke test; None where there is none."""
    if smoke:
        X, y, task = draw(400, 8)
        labels = (X @ np.random.default_rng(0).standard_normal((X.shape[1], 5)) > 0).astype(int)
        rows = np.arange(400)
        return {"X": X, "Y": labels, "train_idx": rows[:300], "test_idx": rows[300:], "y": y, "task": task}
    file = Path(os.environ.get("REGBAYES_DATA", "")) / f"{name}.npz"
    if not file.is_file():
        return None
    with np.load(file) as found:
        return {key: found[key] for key in found.files}


def against_svms(name: str, data: dict[str, np.ndarray], repeats: int) -> None:
    """Labels: whole fits against one-vs-rest LinearSVC."""
    train, test = data["train_idx"], data["test_idx"]
    X = StandardScaler().fit(data["X"][train].astype(float)).transform(data["X"].astype(float))
    Y = data["Y"].astype(int)
    theirs, svm = cpu_seconds(lambda: OneVsRestClassifier(LinearSVC()).fit(X[train], Y[train]), repeats)
    accuracy = np.mean(svm.predict(X[test]) == Y[test])
    print(f"{name:7} LinearSVC, one per label        {theirs:7.3f} s   accuracy {accuracy:.4f}")
    for label, given in (("defaults", {}), ("with inputs", {"include_inputs": True}), ("C = 1", {"C": 1.0})):
        model = MultiTaskILSVMClassifier(50, random_state=0, **given)
        ours, fitted = cpu_seconds(lambda model=model: model.fit(X[train], Y[train]), repeats)
        print_ratio(name, label, ours, theirs, f"accuracy {fitted.score(X[test], Y[test]):.4f}")


def against_svrs(name: str, data: dict[str, np.ndarray], repeats: int) -> None:
    """Numbers of many small groups: whole fits against one LinearSVR per group."""
    task, train = data["task"], np.random.default_rng(0).random(len(data["task"])) < 0.75
    X = StandardScaler().fit(data["X"][train].astype(float)).transform(data["X"].astype(float))
    y = (data["y"] - data["y"][train].mean()) / data["y"][train].std()
    groups = [np.flatnonzero(train & (task == t)) for t in np.unique(task)]
    theirs, svrs = cpu_seconds(lambda: [LinearSVR().fit(X[rows], y[rows]) for rows in groups], repeats)
    given = np.concatenate([svr.predict(X[~train & (task == t)]) for t, svr in zip(np.unique(task), svrs, strict=True)])
    truth = np.concatenate([y[~train & (task == t)] for t in np.unique(task)])
    explained = 1 - np.sum((truth - given) ** 2) / np.sum((truth - truth.mean()) ** 2)
    print(f"{name:7} LinearSVR, one per school       {theirs:7.3f} s   explained variance {explained:.4f}")
    for label, options in (("defaults", {}), ("with inputs", {"include_inputs": True}), ("C = 0.1", {"C": 0.1})):
        model = MultiTaskILSVMRegressor(50, random_state=0, **options)
        ours, fitted = cpu_seconds(lambda model=model: model.fit(X[train], y[train], task=task[train]), repeats)
        score = fitted.score(X[~train], y[~train], task=task[~train])
        print_ratio(name, label, ours, theirs, f"explained variance {score:.4f}")


def print_ratio(name: str, label: str, ours: float, theirs: float, score: str) -> None:
    print(f"{name:7} MT-iLSVM, K = 50, {label:14}{ours:7.3f} s   {score}   {ours / theirs:5.2f} times", flush=True)


def draw(n: int, tasks: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Thirty correlated inputs, and numbers that follow similar laws in all tasks."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, 5)) @ rng.standard_normal((5, 30))
    X += rng.standard_normal((n, 30))
    slopes = rng.standard_normal(30) + 0.3 * rng.standard_normal((tasks, 30))
    task = np.arange(n) % tasks
    return X, np.einsum("nd,nd->n", X, slopes[task]) + 5.0 * rng.standard_normal(n), task


def curve(sizes: list[tuple[int, int]], repeats: int) -> None:
    """Whole fits as rows and tasks grow."""
    for n, tasks in sizes:
        X, y, task = draw(n, tasks)
        for kind, model, target in (
            ("numbers", MultiTaskILSVMRegressor(random_state=0), y),
            ("labels", MultiTaskILSVMClassifier(random_state=0), (y > 0).astype(int)),
        ):
            seconds, fitted = cpu_seconds(lambda m=model, t=target: m.fit(X, t, task=task), repeats)  # noqa: B023
            steps = fitted.n_iter_
            tracemalloc.start()
            model.set_params(max_iter=2).fit(X, target, task=task)
            peak = tracemalloc.get_traced_memory()[1] / n
            tracemalloc.stop()
            print(
                f"{n:8d} rows, {tasks:5d} tasks, {kind:7}: {seconds:7.2f} s, {steps:2d} steps, "
                f"{1e6 * seconds / (n * max(steps, 1)):6.2f} us a row and step; {peak / (8 * X.shape[1]):4.1f} times X",
                flush=True,
            )


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rows", type=int, nargs="*", default=[1_000, 10_000, 100_000, 1_000_000])
    parser.add_argument("--tasks", type=int, nargs="*", default=[10, 100, 1_000])
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # convergence warnings of the peers, and of fits that are cut short
    X, y, task = draw(200, 4)
    MultiTaskILSVMRegressor(3, max_iter=2).fit(X, y, task=task)  # compile before anything is timed
    MultiTaskILSVMClassifier(3, max_iter=2).fit(X, (y > 0).astype(int), task=task)
    for name in ("yeast", "scene", "school"):
        data = load(name, options.smoke)
        if data is None:
            print(f"{name}: not found; set REGBAYES_DATA to a folder that holds {name}.npz")
        else:
            (against_svrs if name == "school" else against_svms)(name, data, 1 if options.smoke else options.repeats)
    rows, tasks = ([500, 1_000], [5, 10]) if options.smoke else (options.rows, options.tasks)
    curve([(n, min(tasks)) for n in rows], 1)
    curve([(20 * max(tasks), t) for t in tasks], 1)


if __name__ == "__main__":
    main()
