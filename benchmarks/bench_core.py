"""Quality and speed of two versions of the package in one run, paired on the same splits and seeds.

    REGBAYES_DATA=folder python benchmarks/bench_core.py --before old/src --after new/src --output core.jsonl
    REGBAYES_DATA=folder python benchmarks/bench_core.py --before old/src --only before      # records for a later run
    REGBAYES_DATA=folder python benchmarks/bench_core.py --before old/src --rows "yeast" --splits 0 1 2 --parts quality
    python benchmarks/bench_core.py --smoke

A tree is a folder that holds the package; the default of ``--after`` is the one that is installed. Each tree has a
process of its own for each row, with one thread, and the two take turns. Every fit is written to ``--output`` with a
digest of the tree's sources and its settings; what is there already is not fitted again, so that a run can be resumed.

Protocol: ten splits of each row, seeds 0 to 9, which also seed the starts; settings are fixed (the defaults, where ROWS
says nothing), and nothing is chosen on data.
  digits, scene15      stratified halves; accuracy
  yeast, scene         as many training rows as are published (1500, 1211), but drawn anew, the rest tests; share of
                       labels that are right
  school               75/25 within each school; explained variance, pooled
  20 Newsgroups        8000 posts of the by-date training part, drawn anew; all posts of its test part; accuracy
  movie reviews        halves; predictive R2
Quality is shown in points (times 100): the mean over splits of after - before, and its standard error. The mean over
all rows has the standard error of a mean of independent rows. Speed: the first split is fitted by both trees in five
turns (as often in a turn as takes a second); the median ratio of the CPU seconds of `fit`, and of its elapsed ones.
Bars: the mean difference over all rows is not below -1 standard error of its own, no row's below -2 of its own, no
median ratio of CPU seconds above 1.10. Exit status 1 where a bar is broken.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

SPLITS, TURNS, TURN_SECONDS = 10, 5, 1.0
SLOWER, TINY = 1.10, 1e-12
BEFORE, AFTER = TREES = ("before", "after")

# What each tree calls the models, parameters and values of ROWS; None leaves a parameter out.
NAMES: dict[str, dict[str, str | None]] = {
    BEFORE: {
        "iLSVM": "ILSVMClassifier",
        "MT-iLSVM": "MultiTaskILSVMClassifier",
        "MT-iLSVM regression": "MultiTaskILSVMRegressor",
        "MedLDA": "MedLDAClassifier",
        "MedLDA regression": "MedLDARegressor",
        "mean field": "variational",
    }
}
NAMES[AFTER] = {**NAMES[BEFORE]}

Arrays = dict[str, Any]
Arguments = tuple[Any, ...]


# --- data: independent of both trees


@dataclass(frozen=True)
class Split:
    """Arguments of `fit`, those of `predict`, and what should be predicted."""

    train: Arguments
    test: Arguments
    truth: np.ndarray


def load(name: str) -> Arrays | None:
    """Return a data set, or None where it is not to be had."""
    if name == "digits":
        X, y = load_digits(return_X_y=True)
        return {"X": X, "y": y}
    path = Path(os.environ.get("REGBAYES_DATA", "")) / f"{name}.npz"
    if "REGBAYES_DATA" not in os.environ or not path.exists():
        return None
    with np.load(path) as found:
        data = {key: found[key] for key in found.files}
    if "X_data" in data:
        parts = (data["X_data"].astype(np.int64), data["X_indices"], data["X_indptr"])
        data["X"] = csr_matrix(parts, shape=tuple(data["X_shape"]))
    else:
        data["X"] = data["X"].astype(np.float64)
    return data


def stratified_halves(data: Arrays, seed: int) -> Split:
    X, X_test, y, y_test = train_test_split(data["X"], data["y"], test_size=0.5, random_state=seed, stratify=data["y"])
    return Split((X, y), (X_test,), y_test)


def small_halves(data: Arrays, seed: int) -> Split:
    """For the smoke test."""
    return stratified_halves({"X": data["X"][:200], "y": data["y"][:200]}, seed)


def halves(data: Arrays, seed: int) -> Split:
    order = np.random.default_rng(seed).permutation(len(data["y"]))
    train, test = np.split(order, [len(order) // 2])
    return Split((data["X"][train], data["y"][train]), (data["X"][test],), data["y"][test])


def as_published(data: Arrays, seed: int) -> Split:
    """As many training rows as the published split has."""
    X, Y = data["X"], data["Y"].astype(int)
    train, test = np.split(np.random.default_rng(seed).permutation(len(X)), [len(data["train_idx"])])
    return Split((X[train], Y[train]), (X[test],), Y[test])


def within_tasks(data: Arrays, seed: int) -> Split:
    """Three quarters of each task's rows train."""
    X, y, task = data["X"], data["y"].astype(np.float64), data["task"]
    rng, train = np.random.default_rng(seed), np.zeros(len(y), dtype=bool)
    for one in np.unique(task):
        rows = rng.permutation(np.flatnonzero(task == one))
        train[rows[: round(0.75 * len(rows))]] = True
    return Split((X[train], y[train], task[train]), (X[~train], task[~train]), y[~train])


def by_date(data: Arrays, seed: int) -> Split:
    """8000 posts of the training part, and the test part."""
    train = np.sort(np.random.default_rng(seed).permutation(data["train_idx"])[:8000])
    test = data["test_idx"]
    return Split((data["X"][train], data["y"][train]), (data["X"][test],), data["y"][test])


def share_right(truth: np.ndarray, predicted: np.ndarray) -> float:
    return float(np.mean(truth == predicted))


def explained(truth: np.ndarray, predicted: np.ndarray) -> float:
    return float(1.0 - np.sum((truth - predicted) ** 2) / np.sum((truth - truth.mean()) ** 2))


# --- rows of the comparison


@dataclass(frozen=True)
class Row:
    """A model on a data set."""

    data: str
    split: Callable[[Arrays, int], Split]
    model: str
    settings: dict[str, Any] = field(default_factory=dict)
    quality: Callable[[np.ndarray, np.ndarray], float] = share_right

    def key(self) -> str:
        """What must agree for an earlier record to count: everything of the row."""
        named = {name: value.__name__ if callable(value) else value for name, value in asdict(self).items()}
        return json.dumps(named, sort_keys=True)


NEWS, MOVIES = ("20newsgroups_bydate", by_date, "MedLDA"), ("movie_review_scale", halves, "MedLDA regression")
GIBBS, MEAN_FIELD = ({"n_components": 20, "inference": name} for name in ("gibbs", "mean field"))
ROWS: dict[str, Row] = {
    **{
        f"{data}, iLSVM, K = {K}": Row(data, stratified_halves, "iLSVM", {"n_components": K})
        for data in ("digits", "scene15")
        for K in (10, 20, 40)
    },
    "yeast, MT-iLSVM": Row("yeast", as_published, "MT-iLSVM", {"n_components": 20, "C": 0.01}),
    "scene, MT-iLSVM": Row("scene", as_published, "MT-iLSVM", {"n_components": 20, "C": 0.01}),
    "school, MT-iLSVM": Row(
        "school", within_tasks, "MT-iLSVM regression", {"n_components": 20, "C": 0.01}, quality=explained
    ),
    "20 Newsgroups, MedLDA, Gibbs": Row(*NEWS, GIBBS),
    "20 Newsgroups, MedLDA, mean field": Row(*NEWS, MEAN_FIELD),
    "movie reviews, MedLDA, Gibbs": Row(*MOVIES, GIBBS, quality=explained),
    "movie reviews, MedLDA, mean field": Row(*MOVIES, MEAN_FIELD, quality=explained),
}
SMOKE = {"digits, 200 rows": Row("digits", small_halves, "iLSVM", {"n_components": 6, "max_iter": 5})}


# --- a tree's process: reads requests, a line each, and answers each by a line


def build(row: Row, names: dict[str, str | None], seed: int) -> Any:
    """Make the row's model, as this tree spells it."""
    import regbayes

    spelled = {
        names.get(name, name): names.get(value, value) if isinstance(value, str) else value
        for name, value in {**row.settings, "random_state": seed, "n_jobs": 1}.items()
    }
    spelled.pop(None, None)
    return getattr(regbayes, names[row.model])(**spelled)


def serve(name: str, tree: str) -> None:
    """Fit what is asked for."""
    import regbayes

    folder = Path(os.environ["PYTHONPATH"]).resolve()
    if folder not in Path(regbayes.__file__).resolve().parents:
        raise SystemExit(f"the package should come from {folder}, got {regbayes.__file__}")
    warnings.simplefilter("ignore")  # that max_iter was reached
    answers, sys.stdout = sys.stdout, sys.stderr
    row, names = {**ROWS, **SMOKE}[name], NAMES[tree]
    data = load(row.data)
    some = slice(None, None, max(1, data["X"].shape[0] // 400))
    build(row, names, 0).fit(*(part[some] for part in row.split(data, 0).train))  # compile before anything is timed
    for line in sys.stdin:
        seed, repeats = json.loads(line)
        split = row.split(data, seed)
        start, cpu = time.perf_counter(), time.process_time()
        for _ in range(repeats):
            model = build(row, names, seed).fit(*split.train)
        seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
        quality = row.quality(split.truth, model.predict(*split.test))
        print(json.dumps({"quality": quality, "seconds": seconds, "cpu": cpu}), file=answers, flush=True)


class Worker:
    """A tree's process for one row, started when it is first asked."""

    def __init__(self, name: str, tree: str, folder: Path) -> None:
        self.command = [sys.executable, __file__, "--worker", name, tree]
        threads = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
        self.environment = {**os.environ, **dict.fromkeys(threads, "1"), "PYTHONPATH": str(folder)}
        self.process: subprocess.Popen[str] | None = None

    def ask(self, seed: int, repeats: int = 1) -> dict[str, float]:
        if self.process is None:
            self.process = subprocess.Popen(
                self.command, env=self.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
        self.process.stdin.write(json.dumps([seed, repeats]) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise SystemExit(f"{' '.join(self.command[1:])} ended with status {self.process.wait()}")
        return json.loads(answer)

    def close(self) -> None:
        if self.process is not None:
            self.process.stdin.close()
            self.process.wait()


# --- records


class Records:
    """What was measured, a JSON object a line, found again by everything that it depends on."""

    KEY = ("kind", "row", "tree", "code", "number")

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.found: dict[tuple[Any, ...], dict[str, Any]] = {}
        if path is not None and path.exists():
            for line in path.read_text().splitlines():
                self._remember(json.loads(line))

    def _remember(self, record: dict[str, Any]) -> None:
        self.found[tuple(record[part] for part in self.KEY)] = record

    def get(self, about: dict[str, Any]) -> dict[str, Any] | None:
        return self.found.get(tuple(about[part] for part in self.KEY))

    def add(self, record: dict[str, Any]) -> dict[str, Any]:
        self._remember(record)
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a") as file:
                file.write(json.dumps(record) + "\n")
        return record


def digest_of(folder: Path) -> str:
    """Digest of a tree's sources."""
    sources = sorted((folder / "regbayes").rglob("*.py"))
    if not sources:
        raise SystemExit(f"{folder} should hold the package, the folder regbayes; it does not")
    found = hashlib.sha256()
    for path in sources:
        found.update(f"{path.relative_to(folder)}\0".encode() + path.read_bytes() + b"\0")
    return found.hexdigest()[:16]


def installed() -> Path:
    """Return the folder of the package that `import regbayes` finds."""
    spec = importlib.util.find_spec("regbayes")
    if spec is None or spec.origin is None:
        raise SystemExit("regbayes is not installed; name a folder with --after")
    return Path(spec.origin).parent.parent


# --- measuring


def measure_quality(
    name: str, row: Row, workers: dict[str, Worker], codes: dict[str, str], records: Records, splits: Iterable[int]
) -> dict[str, list[dict[str, Any]]]:
    """Fit each split by each tree in turn, unless it is recorded."""
    found: dict[str, list[dict[str, Any]]] = {tree: [] for tree in workers}
    for split in splits:
        for tree, worker in workers.items():
            about = {"kind": "quality", "tree": tree, "code": codes[tree], "number": split}
            about |= {"name": name, "row": row.key()}
            record = records.get(about) or records.add({**about, **worker.ask(split)})
            found[tree].append(record)
    return found


def measure_speed(
    name: str, row: Row, workers: dict[str, Worker], codes: dict[str, str], records: Records, turns: int
) -> list[dict[str, Any]]:
    """Fit the first split by both trees in turns; a record is of a pair, so that both are of the same minute."""
    found, repeats = [], None
    for turn in range(turns):
        about = {"kind": "speed", "tree": "both", "code": f"{codes[BEFORE]} {codes[AFTER]}", "number": turn}
        about |= {"name": name, "row": row.key()}
        record = records.get(about)
        if record is None:
            if repeats is None:
                slowest = max(worker.ask(0)["seconds"] for worker in workers.values())
                repeats = max(1, round(TURN_SECONDS / slowest))
            record = {**about, "repeats": repeats}
            for tree, worker in workers.items():
                answer = worker.ask(0, repeats)
                record[tree], record[f"{tree} cpu"] = answer["seconds"] / repeats, answer["cpu"] / repeats
            records.add(record)
        found.append(record)
    return found


# --- the table


def mean_and_error(values: np.ndarray) -> tuple[float, float]:
    """Mean and its standard error; that of a single value is not known, and taken for nothing."""
    return float(values.mean()), float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else 0.0


def below(mean: float, error: float, times: float) -> bool:
    return mean < -times * error - TINY


class Table:
    """Prints a row when it is measured, and the verdict in the end."""

    def __init__(self) -> None:
        self.differences: list[tuple[float, float]] = []
        self.broken: list[str] = []

    def header(self, trees: Iterable[str]) -> None:
        print(f"{'row':36}" + "".join(f"{tree + ' +- sd':>16}{'cpu s':>7}" for tree in trees), end="")
        print(f"{'difference +- se':>20}{'/ se':>7}{'cpu':>7}{'time':>7}" if len(set(trees)) == 2 else "")

    def row(self, name: str, quality: dict[str, list[dict[str, Any]]], speed: list[dict[str, Any]]) -> None:
        line, values = f"{name:36}", {}
        for tree, records in quality.items():
            if records:
                values[tree] = 100 * np.array([record["quality"] for record in records])
                seconds = np.median([record["cpu"] for record in records])
                line += f"{f'{values[tree].mean():.2f} +- {values[tree].std():.2f}':>16}{seconds:7.2f}"
        if len(values) == 2:
            mean, error = mean_and_error(values[AFTER] - values[BEFORE])
            self.differences.append((mean, error))
            line += f"{f'{mean:+.3f} +- {error:.3f}':>20}{mean / error if error else 0.0:+7.2f}"
            if below(mean, error, 2.0):
                self.broken.append(f"{name}: {mean:+.3f} points, standard error {error:.3f}")
        if speed:
            cpu, elapsed = (
                np.median([record[AFTER + clock] / record[BEFORE + clock] for record in speed])
                for clock in (" cpu", "")
            )
            line += f"{cpu:7.3f}{elapsed:7.3f}"
            if cpu > SLOWER:  # what others do on the machine is in the elapsed seconds only
                self.broken.append(f"{name}: {cpu:.3f} times the CPU seconds")
        print(line, flush=True)

    def verdict(self) -> None:
        if self.differences:
            means, errors = np.array(self.differences).T
            mean, error = float(means.mean()), float(np.sqrt(np.sum(errors**2)) / len(errors))
            print(f"all {len(means)} rows: difference {mean:+.4f} +- {error:.4f} points")
            if below(mean, error, 1.0):
                self.broken.append(f"all rows: {mean:+.4f} points, standard error {error:.4f}")
        for line in self.broken:
            print(f"bar broken: {line}")


def compare(rows: dict[str, Row], trees: dict[str, Path], records: Records, options: argparse.Namespace) -> Table:
    """Measure row by row."""
    codes = {tree: digest_of(folder) for tree, folder in trees.items()}
    for tree, folder in trees.items():
        print(f"{tree}: {folder}, sources {codes[tree]}")
    table = Table()
    table.header(trees)
    for name, row in rows.items():
        if load(row.data) is None:
            print(f"{name:36} skipped: set REGBAYES_DATA to a folder that holds {row.data}.npz")
            continue
        workers = {tree: Worker(name, tree, folder) for tree, folder in trees.items()}
        try:
            wanted = options.splits if "quality" in options.parts else []
            quality = measure_quality(name, row, workers, codes, records, wanted)
            timed = "speed" in options.parts and len(trees) == 2
            speed = measure_speed(name, row, workers, codes, records, options.turns) if timed else []
        finally:
            for worker in workers.values():
                worker.close()
        table.row(name, quality, speed)
    table.verdict()
    return table


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--smoke", action="store_true", help="a small row, the installed package against itself")
    parser.add_argument("--before", type=Path, help="folder that holds the earlier package")
    parser.add_argument("--after", type=Path, help="folder that holds the later one; by default what is installed")
    parser.add_argument("--only", choices=TREES, help="records of one tree alone, without a comparison")
    parser.add_argument("--parts", nargs="*", default=["quality", "speed"], choices=["quality", "speed"])
    parser.add_argument("--rows", nargs="*", default=[""], help="rows whose name begins with one of these")
    parser.add_argument("--splits", nargs="*", type=int, default=list(range(SPLITS)), help="their numbers")
    parser.add_argument("--turns", type=int, default=TURNS, help="of each tree, for speed")
    parser.add_argument("--output", type=Path, help="file of records; what it has is not measured again")
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        serve(*options.worker)
        return
    if options.smoke:
        options.splits, options.turns = [0, 1], 2
        table = compare(SMOKE, dict.fromkeys(TREES, installed()), Records(None), options)
        if table.differences != [(0.0, 0.0)]:
            raise SystemExit("a tree differs from itself")
        return
    if options.before is None and options.only != AFTER:
        parser.error("--before should name the folder that holds the earlier package")
    trees = {BEFORE: options.before, AFTER: options.after or installed()}
    kept = {tree: trees[tree].resolve() for tree in ([options.only] if options.only else TREES)}
    rows = {name: row for name, row in ROWS.items() if name.startswith(tuple(options.rows))}
    table = compare(rows, kept, Records(options.output), options)
    raise SystemExit(1 if table.broken else 0)


if __name__ == "__main__":
    main()
