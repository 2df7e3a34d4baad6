"""Compare quality and CPU time of this tree and the first edition (commit 3cac0be).

    git worktree add build/first-edition 3cac0be
    REGBAYES_DATA=folder python benchmarks/compare.py                           # all rows: hours
    python benchmarks/compare.py --rows "digits" "stability, wine" --splits 0 1  # rows by prefix of the name
    python benchmarks/compare.py --records build/compare.jsonl                  # resume an interrupted run
    python benchmarks/compare.py --smoke                                        # seconds, this tree against itself

Both trees use the interpreter of this process, or that of `--python` for the first edition. Each tree has one process
per row with one BLAS thread and one Numba thread, and the trees alternate split by split. A process fails if it imports
the package of another tree. Results in the file `--records` are not measured again; use a new file after changing the
sources. Seconds are compared only between results of the same run.

Settings are the defaults unless ROWS has others. The number of a split seeds the split and the fit.

fits
    digits, scene15: stratified halves. yeast, scene: random splits with the published number of training samples;
    accuracy over all labels. school: 75% of each task for training; pooled R2. 20 Newsgroups: 8,000 documents of the
    by-date training part, and its whole test part. movie reviews: halves, R2.
stability
    Two fits to random 90% of a training part (70%), with different seeds and orders of samples and columns. "match" is
    the median absolute correlation of matched features on the other 30%. "simulated" draws a new data set for each
    split, and "truth" is the match with its true features.
Each line has the number of splits, the mean of each tree, and the paired difference (now - first edition) with its
standard error. For seconds it has medians and the median of paired ratios. The line ends in "worse" if the
difference is worse by more than two standard errors, or the ratio is above MAX_RATIO.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import linear_sum_assignment
from scipy.sparse import csr_matrix
from sklearn.datasets import load_digits, load_wine
from sklearn.model_selection import train_test_split

ROOT = Path(__file__).resolve().parents[1]
FIRST, NOW = "first edition", "now"
COSTS = ("CPU, s",)
MAX_RATIO = 1.10  # largest ratio of seconds that is not marked as worse

Arrays = dict[str, Any]
Found = dict[str, float]  # quantity -> value
Measure = Callable[[int], Found]  # function of the split number


class MissingError(Exception):
    """Error for a row whose data or packages are not installed."""


# --- data and splits


@dataclass(frozen=True)
class Split:
    """Arguments of `fit`, those of `predict`, and the targets to predict."""

    train: tuple[Any, ...]
    test: tuple[Any, ...]
    truth: np.ndarray


def load(name: str) -> Arrays:
    if name in ("digits", "wine", "smoke"):
        X, y = (load_wine if name == "wine" else load_digits)(return_X_y=True)
        if name == "wine":
            X = (X - X.mean(axis=0)) / X.std(axis=0)
        n = 200 if name == "smoke" else len(X)
        return {"X": X[:n], "y": y[:n], "Y": y[:n, None] > [2, 5], "train_idx": np.arange(n // 2)}
    path = Path(os.environ.get("REGBAYES_DATA", "")) / f"{name}.npz"
    if "REGBAYES_DATA" not in os.environ or not path.exists():
        raise MissingError(f"set REGBAYES_DATA to a folder that holds {name}.npz")
    with np.load(path) as file:
        data = {key: file[key] for key in file.files}
    if "X_data" in data:
        parts = (data["X_data"].astype(np.int64), data["X_indices"], data["X_indptr"])
        data["X"] = csr_matrix(parts, shape=tuple(data["X_shape"]))
    else:
        data["X"] = data["X"].astype(np.float64)
    return data


def stratified_halves(data: Arrays, seed: int) -> Split:
    X, X_test, y, y_test = train_test_split(data["X"], data["y"], test_size=0.5, random_state=seed, stratify=data["y"])
    return Split((X, y), (X_test,), y_test)


def halves(data: Arrays, seed: int) -> Split:
    order = np.random.default_rng(seed).permutation(len(data["y"]))
    train, test = np.split(order, [len(order) // 2])
    return Split((data["X"][train], data["y"][train]), (data["X"][test],), data["y"][test])


def published_size(data: Arrays, seed: int) -> Split:
    X, Y = data["X"], data["Y"].astype(int)
    train, test = np.split(np.random.default_rng(seed).permutation(len(X)), [len(data["train_idx"])])
    return Split((X[train], Y[train]), (X[test],), Y[test])


def within_tasks(data: Arrays, seed: int) -> Split:
    X, y, task = data["X"], data["y"].astype(np.float64), data["task"]
    rng, train = np.random.default_rng(seed), np.zeros(len(y), dtype=bool)
    for one in np.unique(task):
        members = rng.permutation(np.flatnonzero(task == one))
        train[members[: round(0.75 * len(members))]] = True
    return Split((X[train], y[train], task[train]), (X[~train], task[~train]), y[~train])


def by_date(data: Arrays, seed: int) -> Split:
    train = np.sort(np.random.default_rng(seed).permutation(data["train_idx"])[:8000])
    test = data["test_idx"]
    return Split((data["X"][train], data["y"][train]), (data["X"][test],), data["y"][test])


def simulate(n: int, n_columns: int, seed: int) -> Arrays:
    """Simulate samples with ten binary features, a signal-to-noise ratio of 1 in each column, and three classes."""
    rng, use = np.random.default_rng(seed), np.tile(np.linspace(0.1, 0.5, 5), 2)
    Z = (rng.random((n, 10)) < use).astype(np.float64)
    signal, scores = Z @ rng.standard_normal((10, n_columns)), (Z - use) @ rng.standard_normal((10, 3))
    X = signal + signal.std(axis=0) * rng.standard_normal(signal.shape)
    return {"X": X, "y": np.argmax(scores + 0.1 * scores.std() * rng.standard_normal(scores.shape), axis=1), "Z": Z}


def take(data: Arrays, samples: Any) -> Arrays:
    return {name: data[name][samples] for name in ("X", "y", "Z") if name in data}


def accuracy(truth: np.ndarray, predicted: np.ndarray) -> float:
    return 100.0 * float(np.mean(truth == predicted))


def explained(truth: np.ndarray, predicted: np.ndarray) -> float:
    return 100.0 * float(1.0 - np.sum((truth - predicted) ** 2) / np.sum((truth - truth.mean()) ** 2))


def match(first: np.ndarray, second: np.ndarray, surplus: bool = True) -> float:
    """Return the median absolute correlation of features matched by the Hungarian method.

    Unmatched features count as 0; with ``surplus=False`` only those of the first fit do.
    """
    if not (first.shape[1] and second.shape[1]):
        return 0.0
    one, other = (values - values.mean(axis=0) for values in (first, second))
    similarity = np.abs(one.T @ other) / np.outer(np.linalg.norm(one, axis=0), np.linalg.norm(other, axis=0))
    found = similarity[linear_sum_assignment(similarity, maximize=True)]
    size = max(similarity.shape) if surplus else len(similarity)
    return float(np.median(np.append(found, np.zeros(size - len(found)))))


# --- parts: each function prepares a row in the process of a tree, and returns a function that measures a split


def make(model: str, **parameters: Any) -> Any:
    import regbayes

    return getattr(regbayes, model)(**parameters)


def timed(work: Callable[[], Any], clock: Callable[[], float] = time.process_time) -> tuple[Any, float]:
    start = clock()
    return work(), clock() - start


def fits(data: str, split: Callable[..., Split], model: str, parameters: dict[str, Any]) -> Measure:
    loaded, parameters = load(data), {**parameters, "n_jobs": 1}
    name, score = ("accuracy, %", accuracy) if model.endswith("Classifier") else ("R2, %", explained)

    def measure(seed: int) -> Found:
        drawn, estimator = split(loaded, seed), make(model, random_state=seed, **parameters)
        _, cpu = timed(lambda: estimator.fit(*drawn.train))
        found = {name: score(drawn.truth, estimator.predict(*drawn.test)), "CPU, s": cpu}
        return {**found, "features": float(estimator.n_components_)} if "ILSVM" in model else found

    few = slice(None, None, max(1, loaded["X"].shape[0] // 400))  # compile before timing
    make(model, random_state=0, **parameters).fit(*(part[few] for part in split(loaded, 0).train))
    return measure


def stability(data: str, model: str, parameters: dict[str, Any]) -> Measure:
    loaded, parameters = None if data == "simulated" else load(data), {**parameters, "n_jobs": 1}

    def draw(seed: int) -> tuple[Arrays, Arrays]:
        whole = simulate(1000, 40, seed) if loaded is None else loaded
        n = len(whole["y"])
        train, new = train_test_split(np.arange(n), test_size=0.3, random_state=seed, stratify=whole["y"])
        return take(whole, train), take(whole, new)

    def measure(seed: int) -> Found:
        (train, new), rng = draw(seed), np.random.default_rng([seed, 1])
        features, seconds = [], 0.0
        for start in (2 * seed, 2 * seed + 1):
            n, n_columns = train["X"].shape
            samples, columns = rng.permutation(n)[: round(0.9 * n)], rng.permutation(n_columns)
            estimator, part = make(model, random_state=start, **parameters), take(train, samples)
            _, cpu = timed(lambda e=estimator, p=part, c=columns: e.fit(p["X"][:, c], p["y"]))
            values = np.asarray(estimator.transform(new["X"][:, columns]), dtype=np.float64)
            features.append(values[:, values.std(axis=0) > 1e-3 * values.std(axis=0).max()])
            seconds += cpu
        found = {"match": match(*features), "features": float(np.mean([values.shape[1] for values in features]))}
        if "Z" in new:
            found["truth"] = float(np.mean([match(new["Z"], values, surplus=False) for values in features]))
        return {**found, "CPU, s": seconds}

    few = take(draw(0)[0], slice(None, None, 4))  # compile before timing
    make(model, **{**parameters, "max_iter": 2}).fit(few["X"], few["y"])
    return measure


# --- rows


@dataclass(frozen=True)
class Row:
    """A row of the comparison: the function that prepares it, its arguments, and the number of splits."""

    prepare: Callable[..., Measure]
    settings: dict[str, Any]
    splits: int = 10


def fit_row(data: str, split: Callable[..., Split], model: str, **parameters: Any) -> Row:
    return Row(fits, {"data": data, "split": split, "model": model, "parameters": parameters})


MULTITASK = {"n_components": 20, "C": 0.01}
HALF_NORMAL = {"slab": "half-normal"}
ILSVM_MODES = {"": {}, ", temperature 0.02": {"temperature": 0.02}, ", half-normal": HALF_NORMAL}
FEATURES = {f"iLSVM{mode}": ("ILSVMClassifier", parameters) for mode, parameters in ILSVM_MODES.items()}
FEATURES |= {"IBP": ("IBPFactorAnalysis", {"slab": None}), "IBP, half-normal": ("IBPFactorAnalysis", HALF_NORMAL)}
ROWS = {
    **{
        f"{data}, iLSVM{mode}": fit_row(data, stratified_halves, "ILSVMClassifier", **parameters)
        for data in ("digits", "scene15")
        for mode, parameters in ILSVM_MODES.items()
    },
    "yeast, MT-iLSVM": fit_row("yeast", published_size, "MultiTaskILSVMClassifier", **MULTITASK),
    "scene, MT-iLSVM": fit_row("scene", published_size, "MultiTaskILSVMClassifier", **MULTITASK),
    "school, MT-iLSVM": fit_row("school", within_tasks, "MultiTaskILSVMRegressor", **MULTITASK),
    **{
        f"{name}, MedLDA, {inference}": fit_row(data, split, model, n_components=20, inference=inference)
        for name, data, split, model in (
            ("20 Newsgroups", "20newsgroups_bydate", by_date, "MedLDAClassifier"),
            ("movie reviews", "movie_review_scale", halves, "MedLDARegressor"),
        )
        for inference in ("gibbs", "variational")
    },
    **{
        f"stability, {data}, {name}": Row(stability, {"data": data, "model": model, "parameters": parameters})
        for data in ("wine", "digits", "simulated")
        for name, (model, parameters) in FEATURES.items()
    },
}
SMOKE = {
    "smoke, iLSVM": fit_row("smoke", stratified_halves, "ILSVMClassifier", n_components=6, max_iter=5),
    "smoke, MT-iLSVM": fit_row("smoke", published_size, "MultiTaskILSVMClassifier", n_components=4, max_iter=3),
    "smoke, MedLDA": fit_row("smoke", halves, "MedLDARegressor", n_components=4, max_iter=3),
    "smoke, stability": Row(stability, {"data": "wine", "model": "ILSVMClassifier", "parameters": {"max_iter": 5}}),
}


# --- the processes of the trees


def serve(name: str, folder: str) -> None:
    """Read the number of a split from each line of stdin, and print its result as a line."""
    import regbayes

    if Path(folder).resolve() not in Path(regbayes.__file__).resolve().parents:
        raise SystemExit(f"The package must come from {folder}; got {regbayes.__file__}.")
    warnings.simplefilter("ignore")  # warnings of fits that reach max_iter
    results, sys.stdout = sys.stdout, sys.stderr
    row = {**ROWS, **SMOKE}[name]
    try:
        measure, missing = row.prepare(**row.settings), None
    except MissingError as error:
        missing = str(error)
    print(json.dumps(missing), file=results, flush=True)
    for line in sys.stdin:
        print(json.dumps(measure(json.loads(line))), file=results, flush=True)


class Worker:
    """The process of a tree for one row, started for its first split."""

    def __init__(self, name: str, folder: Path, python: str) -> None:
        self.name, self.folder, self.python = name, folder, python
        self.process: subprocess.Popen[str] | None = None

    def ask(self, split: int) -> Found:
        if self.process is None:
            command = [self.python, __file__, "--worker", self.name, str(self.folder)]
            threads = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
            path = os.pathsep.join(filter(None, [str(self.folder), os.environ.get("PYTHONPATH")]))
            variables = {**os.environ, **dict.fromkeys(threads, "1"), "PYTHONPATH": path}
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
            self.process = subprocess.Popen(command, env=variables, **pipes)
            if (missing := self.read()) is not None:
                raise MissingError(missing)
        self.process.stdin.write(f"{split}\n")
        self.process.stdin.flush()
        return self.read()

    def read(self) -> Any:
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name}: the process of {self.folder} ended with {self.process.wait()}.")
        return json.loads(line)

    def close(self) -> None:
        if self.process is not None:
            self.process.stdin.close()
            self.process.wait()


class Records:
    """Results in a JSON Lines file, which are not measured again."""

    def __init__(self, path: Path | None) -> None:
        self.path, self.run = path, time.time()
        lines = path.read_text().splitlines() if path is not None and path.exists() else []
        self.found = {tuple(record["about"]): record for record in map(json.loads, lines)}

    def get(self, about: tuple[Any, ...], measure: Callable[[], Found]) -> dict[str, Any]:
        if about not in self.found:
            self.found[about] = {"about": about, "run": self.run, "found": measure()}
            if self.path is not None:
                with self.path.open("a") as file:
                    file.write(json.dumps(self.found[about]) + "\n")
        return self.found[about]


# --- the table


def compare_values(quantity: str, first: np.ndarray, now: np.ndarray) -> float:
    """Print the line of a quantity from its values by split, and return the mean difference."""
    n, change = len(first), float(np.mean(now - first))
    if quantity in COSTS:
        ratio = float(np.median(now / first))
        values, text, worse = (np.median(first), np.median(now)), f"x {ratio:.3f}", ratio > MAX_RATIO
    else:
        error = float(np.std(now - first, ddof=1)) / np.sqrt(n) if n > 1 else 0.0
        values, text = (first.mean(), now.mean()), f"{change:+.3f}" + (f" +- {error:.3f}" if n > 1 else "")
        worse = quantity != "features" and change < -2 * error - 1e-9
    print(f"  {quantity:24}{n:4}{values[0]:14.3f}{values[1]:12.3f}{text:>20}{'  worse' if worse else ''}", flush=True)
    return change


def measure_row(
    name: str, splits: list[int], trees: dict[str, tuple[Path, str]], records: Records
) -> list[dict[str, Any]]:
    """Measure splits alternately with each tree; return the records by split and tree."""
    workers, pairs = {label: Worker(name, *tree) for label, tree in trees.items()}, []
    try:
        for split in splits:
            pair = {}
            for label in list(trees)[:: 1 if split % 2 == 0 else -1]:
                pair[label] = records.get((name, label, split), lambda of=workers[label], split=split: of.ask(split))
            pairs.append(pair)
    finally:
        for worker in workers.values():
            worker.close()
    return pairs


def compare(
    rows: dict[str, Row], trees: dict[str, tuple[Path, str]], records: Records, splits: list[int] | None
) -> dict[str, Found]:
    """Measure and print row by row; return the differences of all quantities except costs, by row."""
    results: dict[str, Found] = {}
    print(f"{'':26}{'n':>4}{FIRST:>14}{NOW:>12}{'difference +- se':>20}")
    for name, row in rows.items():
        try:
            pairs = measure_row(name, list(range(row.splits)) if splits is None else splits, trees, records)
        except MissingError as error:
            print(f"{name}: skipped; {error}")
            continue
        print(name)
        results[name] = {}
        for quantity in pairs[0][NOW]["found"]:
            is_cost = quantity in COSTS
            used = [pair for pair in pairs if not is_cost or pair[FIRST]["run"] == pair[NOW]["run"]]
            if used:
                first, now = (np.array([pair[label]["found"][quantity] for pair in used]) for label in (FIRST, NOW))
                found = compare_values(quantity, first, now)
                results[name] |= {} if is_cost else {quantity: found}
    return results


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--smoke", action="store_true", help="small rows, this tree against itself")
    parser.add_argument("--rows", nargs="*", default=[""], help="rows whose names begin with one of these")
    parser.add_argument("--splits", nargs="*", type=int, help="numbers of splits; all by default")
    parser.add_argument("--first", type=Path, default=ROOT / "build" / "first-edition", help="the first edition's tree")
    parser.add_argument("--now", type=Path, default=ROOT, help="the tree that it is compared with; this one by default")
    parser.add_argument("--python", default=sys.executable, help="interpreter for the first edition")
    parser.add_argument("--records", type=Path, help="file of results, which are not measured again")
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        serve(*options.worker)
        return
    now = options.now / "src", sys.executable
    if options.smoke:
        for name, row in compare(SMOKE, {FIRST: now, NOW: now}, Records(None), [5]).items():
            if differing := [quantity for quantity, difference in row.items() if difference]:
                raise SystemExit(f"{name}: the tree differs from itself in {', '.join(differing)}.")
        return
    rows = {name: row for name, row in ROWS.items() if name.startswith(tuple(options.rows))}
    if not rows:
        parser.error(f"no row has such a name; rows: {'; '.join(ROWS)}")
    if not options.first.exists():
        parser.error(f"{options.first} does not exist; run `git worktree add {options.first} 3cac0be`.")
    trees = {FIRST: (options.first / "src", options.python), NOW: now}
    compare(rows, trees, Records(options.records), options.splits)


if __name__ == "__main__":
    main()
