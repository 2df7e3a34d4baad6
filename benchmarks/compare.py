"""Compare this tree with the first edition (commit 3cac0be): quality, counts, CPU time and memory, on the same splits.

    REGBAYES_DATA=folder python benchmarks/compare.py                       # all rows: hours, but it can be interrupted
    python benchmarks/compare.py --rows "digits" "stability, wine" --splits 0 1 2  # rows whose names begin like this
    python benchmarks/compare.py --parts regularize resampling --write      # and renew these rows of compare.json
    python benchmarks/compare.py --python .venv/bin/python                  # without an environment of its own
    python benchmarks/compare.py --smoke                                    # seconds, no history, no network

The first edition is unpacked into build/first-edition, with an environment of its own in which packages have the
versions of the running one. Each tree has one process for each row, with one BLAS thread and one Numba thread, and the
trees take turns split by split. A process prints which package it imported, and ends if that is the other tree's.
Every result is appended to the file `--records` under a digest of the tree's sources and the row's settings, and is not
measured again, so that the same command resumes an interrupted run. Seconds and memory are compared only between
results of one run: name a new file of records to measure them again.

Protocol. Settings are the defaults where ROWS has none. The number of a split seeds the split and the fit.
fits        Ten splits. digits, scene15: stratified halves. yeast, scene: as many training samples as the published
            split has, drawn again; accuracy over all labels. school: 75% of each task for training; pooled R2.
            20 Newsgroups: 8,000 documents of the by-date training part, and its whole test part. movie reviews:
            halves, R2.
stability   Ten splits, 70% for training. Two fits to random 90% of these, with samples and columns in another order and
            other seeds. "match" is the median absolute correlation of their features on the other 30%, matched one to
            one. "planted" is a new simulated data set for each split, and "truth" the match with its features.
regularize  2,000 random problems from each of three seeds; a split is a block of 100. The problems, the references and
            the verdicts are those of this tree's tests/regularization/battery.
resampling  The models of bench_resample.py; a split is a model, resampled from several seeds. "wrong" is a solution off
            by more than four standard errors, a solution denied, or one claimed where there is none.
dask        Three simulated data sets: seconds of two Dask workers over those of two threads, and the accuracy of both.
memory      Three simulated data sets, mapped from files: the peak of allocated memory over their size in 64-bit floats.

Each line has the number of splits, the mean of each tree (counts: the total; seconds and memory: the median), and the
paired difference, now - first edition, with its standard error (seconds and memory: the median of paired ratios). It
ends in "worse" if the difference is beyond two standard errors in the wrong direction, or the ratio above 1.10.
compare.json has quality and counts only: seconds and memory of another day or machine cannot be compared.
"""

from __future__ import annotations

import argparse
import atexit
import hashlib
import importlib
import importlib.util
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import tracemalloc
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from scipy.optimize import linear_sum_assignment
from scipy.sparse import csr_matrix
from sklearn.datasets import load_digits, load_wine
from sklearn.model_selection import train_test_split

COMMIT = "3cac0be"
ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "build" / "first-edition"
RESULTS = Path(__file__).with_name("compare.json")
FIRST, NOW = LABELS = ("first edition", "now")
PROTOCOL = 1  # raise it when a row measures something else: earlier records do not count then

# Today's name -> the first edition's. Modules (those that are imported, not their package), classes and functions have
# their full name; parameters, their values and attributes of results have their name alone. None drops a parameter.
FIRST_EDITION_NAMES: dict[str, str | None] = {
    "kl_mc_error": "floor",
    "regbayes.ppl.CallableSampler": "regbayes.ppl.FunctionModel",
    "regbayes.regularization.regularize": "regbayes.framework.regularize",
}

SCORES = ("accuracy, %", "R2, %")
COUNTS = ("right", "wrong", "failed", "given up", "with an optimum")
COSTS = ("CPU, s", "elapsed, s", "Dask / threads, s", "peak / samples")  # compared within a run, never committed
BETTER = {"features": 0, "with an optimum": 0, **dict.fromkeys(("wrong", "failed", "given up", *COSTS), -1)}  # or 1
MAX_RATIO = 1.10  # of costs; more is marked as worse
MAX_ERROR = 16.0  # of a solution, over its Monte Carlo error, in nats: four standard errors of one multiplier

Arrays = dict[str, Any]
Found = dict[str, float]  # quantity -> value
Measure = Callable[[int], Found]  # of the number of a split


class MissingError(Exception):
    """A row needs something that is not on this machine."""


# --- data and splits, which do not depend on the package


@dataclass(frozen=True)
class Split:
    """Arguments of `fit`, those of `predict`, and what should be predicted."""

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


SPLITS = {split.__name__: split for split in (stratified_halves, halves, published_size, within_tasks, by_date)}


def planted(n: int, n_columns: int, seed: int) -> Arrays:
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


def matched(first: np.ndarray, second: np.ndarray, surplus: bool = True) -> float:
    """Return the median absolute correlation of features matched by the Hungarian method; one without a match has 0.

    With ``surplus=False`` only features of the first count.
    """
    if not (first.shape[1] and second.shape[1]):
        return 0.0
    one, other = (values - values.mean(axis=0) for values in (first, second))
    similarity = np.abs(one.T @ other) / np.outer(np.linalg.norm(one, axis=0), np.linalg.norm(other, axis=0))
    found = similarity[linear_sum_assignment(similarity, maximize=True)]
    size = max(similarity.shape) if surplus else len(similarity)
    return float(np.median(np.append(found, np.zeros(size - len(found)))))


# --- parts: each function prepares a row in the process of a tree, and returns what measures one of its splits


def spell(value: Any) -> Any:
    """Return what this process's tree calls something."""
    return _names.get(value, value) if isinstance(value, str) else value


def make(model: str, **parameters: Any) -> Any:
    """Make an estimator with parameters as this process's tree spells them."""
    import regbayes

    spelled = {spell(name): spell(value) for name, value in parameters.items()}
    spelled.pop(None, None)
    return getattr(regbayes, model)(**spelled)


def timed(work: Callable[[], Any], clock: Callable[[], float] = time.process_time) -> tuple[Any, float]:
    start = clock()
    return work(), clock() - start


def require(package: str) -> None:
    if importlib.util.find_spec(package) is None:
        raise MissingError(f"{package} is not installed")


def fits(data: str, split: str, model: str, parameters: dict[str, Any]) -> Measure:
    loaded, parameters = load(data), {**parameters, "n_jobs": 1}
    name, score = ("accuracy, %", accuracy) if model.endswith("Classifier") else ("R2, %", explained)

    def measure(seed: int) -> Found:
        drawn, estimator = SPLITS[split](loaded, seed), make(model, random_state=seed, **parameters)
        _, cpu = timed(lambda: estimator.fit(*drawn.train))
        found = {name: score(drawn.truth, estimator.predict(*drawn.test)), "CPU, s": cpu}
        return {**found, "features": float(estimator.n_components_)} if "ILSVM" in model else found

    few = slice(None, None, max(1, loaded["X"].shape[0] // 400))  # compile before anything is timed
    make(model, random_state=0, **parameters).fit(*(part[few] for part in SPLITS[split](loaded, 0).train))
    return measure


def stability(data: str, model: str, parameters: dict[str, Any]) -> Measure:
    loaded, parameters = None if data == "planted" else load(data), {**parameters, "n_jobs": 1}

    def draw(seed: int) -> tuple[Arrays, Arrays]:
        whole = planted(1000, 40, seed) if loaded is None else loaded
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
        found = {"match": matched(*features), "features": float(np.mean([values.shape[1] for values in features]))}
        if "Z" in new:
            found["truth"] = float(np.mean([matched(new["Z"], values, surplus=False) for values in features]))
        return {**found, "CPU, s": seconds}

    few = take(draw(0)[0], slice(None, None, 4))  # compile before anything is timed
    make(model, **{**parameters, "max_iter": 2}).fit(few["X"], few["y"])
    return measure


def regularize(seed: int, problems: int) -> Measure:
    require("cvxpy")
    if np.finfo(np.longdouble).eps > 2e-19:
        raise MissingError("the references need extended precision, which this processor lacks")
    sys.path.insert(0, str(ROOT / "tests" / "regularization"))
    from battery.verdicts import given_up, judge_drawn

    def measure(block: int) -> Found:
        verdicts = [judge_drawn(seed, number) for number in range(block * problems, (block + 1) * problems)]
        abandoned, solvable = given_up(verdicts)
        return {
            "wrong": sum(bool(verdict.wrong) for verdict in verdicts),
            "given up": len(abandoned),
            "with an optimum": solvable,
            "elapsed, s": sum(verdict.seconds for verdict in verdicts),
        }

    for number in range(5):  # compile before anything is timed
        judge_drawn(0, number)
    return measure


def resampling(models: str, n_models: int, seeds: int) -> Measure:
    if models != "exact samplers":
        require("numpyro")
    import bench_resample

    if models == "NUTS, further models":  # made when they are measured: references take minutes
        from resample_families import FAMILIES, family_pathologies
        from resample_models import WELL_POSED, pathologies

        names = [build.__name__.replace("_", " ") for build in WELL_POSED + FAMILIES]
        names += [name for name, *_ in pathologies() + family_pathologies()]
        cases = [lambda name=name: bench_resample.fresh_cases(name) for name in names]
    else:
        good, bad = bench_resample.exact_cases() if models == "exact samplers" else bench_resample.numpyro_cases()
        names = [case.name for case in good + bad]
        cases = [lambda: (good, bad)] * len(names)
    if len(names) != n_models:
        raise SystemExit(f"bench_resample.py has {len(names)} models ({models}), and the row in ROWS {n_models}.")

    def measure(number: int) -> Found:
        good, bad = cases[number]()
        case = next(case for case in good + bad if case.name == names[number])
        results, cpu = timed(lambda: [bench_resample.solve(case.sampler, case.asked, seed) for seed in range(seeds)])
        bench_resample.forget_compiled()
        words = [judge(case, result) for result in results]
        return {**{word: words.count(word) for word in ("right", "wrong", "failed")}, "CPU, s": cpu}

    return measure


def judge(case: Any, result: Any) -> str:
    """Say whether a solution of a model is right, wrong or failed; `case.phi` is None if it has none."""
    status = str(getattr(result, "status", "failed"))
    if case.phi is None:
        return "wrong" if status == "optimal" else "right"
    if status == "optimal":
        away = result.multipliers - case.phi
        error = getattr(result, spell("kl_mc_error"))
        return "right" if 0.5 * away @ case.covariance @ away <= MAX_ERROR * error else "wrong"
    return "wrong" if status in ("infeasible", "boundary") else "failed"


def dask(n: int, n_columns: int, steps: int) -> Measure:
    require("distributed")
    import dask.array as da
    from distributed import Client

    import regbayes.dask

    client = Client(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0")
    atexit.register(client.shutdown)
    parameters = {"n_components": 20, "multi_class": "ovr", "max_iter": steps, "tol": 0.0}

    def measure(seed: int, n: int = n) -> Found:
        data = planted(n + 5000, n_columns, seed)
        train, new = take(data, slice(n)), take(data, slice(n, None))
        local = make("ILSVMClassifier", random_state=seed, n_jobs=2, **parameters)
        _, threads = timed(lambda: local.fit(train["X"], train["y"]), time.perf_counter)
        X, y = client.persist([da.from_array(train[name], chunks=(n // 8, -1)[: train[name].ndim]) for name in "Xy"])
        remote = regbayes.dask.ILSVMClassifier(**{**local.get_params(), "n_jobs": None})
        _, workers = timed(lambda: remote.fit(X, y, client=client), time.perf_counter)
        return {
            "accuracy, %": accuracy(new["y"], local.predict(new["X"])),
            "accuracy with Dask, %": accuracy(new["y"], remote.to_local().predict(new["X"])),
            "Dask / threads, s": workers / threads,
        }

    measure(0, 1000)  # compile before anything is timed
    return measure


def memory(n: int, n_columns: int) -> Measure:
    parameters = {"n_components": 10, "multi_class": "ovr", "max_iter": 5, "tol": 0.0, "n_jobs": 1}

    def measure(seed: int) -> Found:
        data = planted(n + 5000, n_columns, seed)
        with tempfile.TemporaryDirectory() as folder:
            np.save(Path(folder) / "X.npy", data["X"][:n].astype(np.float32))
            X, y, new = np.load(Path(folder) / "X.npy", mmap_mode="r"), data["y"][:n], take(data, slice(n, None))
            tracemalloc.start()
            model = make("ILSVMClassifier", random_state=seed, **parameters).fit(X, y)
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            return {"accuracy, %": accuracy(new["y"], model.predict(new["X"])), "peak / samples": peak / (8 * X.size)}

    few = planted(1000, n_columns, 0)  # compile before anything is traced
    make("ILSVMClassifier", random_state=0, **parameters).fit(few["X"].astype(np.float32), few["y"])
    return measure


# --- rows


@dataclass(frozen=True)
class Row:
    """A row of the comparison: the part that prepares it, with what, and how many splits it has."""

    prepare: Callable[..., Measure]
    settings: dict[str, Any]
    splits: int = 10
    files: tuple[str, ...] = ()  # of this tree, on which the results depend too

    def key(self) -> str:
        """Return a digest of everything but the package that a result depends on."""
        about = json.dumps([self.prepare.__name__, self.settings, PROTOCOL], sort_keys=True)
        return digest(about, ROOT, (path for name in self.files for path in ROOT.glob(name)))


def digest(about: str, folder: Path, files: Iterable[Path]) -> str:
    found = hashlib.sha256(about.encode())
    for path in sorted(files):
        found.update(f"{path.relative_to(folder)}\0".encode() + path.read_bytes() + b"\0")
    return found.hexdigest()[:16]


def fit_row(data: str, split: Callable[..., Split], model: str, **parameters: Any) -> Row:
    return Row(fits, {"data": data, "split": split.__name__, "model": model, "parameters": parameters})


MULTITASK = {"n_components": 20, "C": 0.01}
ILSVM_MODES = {"": {}, ", temperature 0.02": {"temperature": 0.02}, ", half-normal": {"slab": "half-normal"}}
FEATURES = {f"iLSVM{mode}": ("ILSVMClassifier", parameters) for mode, parameters in ILSVM_MODES.items()}
FEATURES |= {
    "IBP": ("IBPFactorAnalysis", {"slab": None}),
    "IBP, half-normal": ("IBPFactorAnalysis", ILSVM_MODES[", half-normal"]),
}
BATTERY, RESAMPLING_FILES = ("tests/**/battery/*.py",), ("benchmarks/resample_*.py", "tests/**/exact_samplers.py")
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
        for data in ("wine", "digits", "planted")
        for name, (model, parameters) in FEATURES.items()
    },
    **{
        f"regularize, seed {seed}": Row(regularize, {"seed": seed, "problems": 100}, splits=20, files=BATTERY)
        for seed in (101, 102, 103)
    },
    **{
        f"resampling, {models}": Row(resampling, {"models": models, "n_models": n, "seeds": seeds}, n, RESAMPLING_FILES)
        for models, n, seeds in (("exact samplers", 14, 10), ("NUTS", 9, 5), ("NUTS, further models", 62, 3))
    },
    "Dask and two threads": Row(dask, {"n": 100_000, "n_columns": 100, "steps": 10}, splits=3),
    "memory-mapped fit": Row(memory, {"n": 200_000, "n_columns": 100}, splits=3),
}
SMOKE = {
    "smoke, iLSVM": fit_row("smoke", stratified_halves, "ILSVMClassifier", n_components=6, max_iter=5),
    "smoke, MT-iLSVM": fit_row("smoke", published_size, "MultiTaskILSVMClassifier", n_components=4, max_iter=3),
    "smoke, MedLDA": fit_row("smoke", halves, "MedLDARegressor", n_components=4, max_iter=3),
    "smoke, stability": Row(stability, {"data": "wine", "model": "ILSVMClassifier", "parameters": {"max_iter": 5}}),
    "smoke, regularize": Row(regularize, {"seed": 101, "problems": 10}),
    "smoke, resampling": Row(resampling, {"models": "exact samplers", "n_models": 14, "seeds": 1}),
    "smoke, memory": Row(memory, {"n": 2000, "n_columns": 10}),
}


# --- the process of a tree, for one row

_names: dict[str, str | None] = {}  # FIRST_EDITION_NAMES in a process of the first edition


def serve(name: str, folder: str, edition: str) -> None:
    """Read the number of a split from each line of stdin, and print its result as a line."""
    import regbayes

    if Path(folder).resolve() not in Path(regbayes.__file__).resolve().parents:
        raise SystemExit(f"The package must come from {folder}; got {regbayes.__file__}.")
    print(f"[{name}: imported {regbayes.__file__}]", file=sys.stderr, flush=True)
    warnings.simplefilter("ignore")  # fits that reach max_iter
    answers, sys.stdout = sys.stdout, sys.stderr
    if edition == FIRST:
        use_first_edition_names()
    row = {**ROWS, **SMOKE}[name]
    try:
        measure, missing = row.prepare(**row.settings), None
    except MissingError as error:
        missing = str(error)
    print(json.dumps(missing), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(measure(json.loads(line))), file=answers, flush=True)


def use_first_edition_names() -> None:
    """Let today's names find what the first edition has."""
    _names.update(FIRST_EDITION_NAMES)
    for name, earlier in FIRST_EDITION_NAMES.items():
        if earlier is None or not name.startswith("regbayes."):
            continue
        try:
            found = importlib.import_module(earlier)
        except ModuleNotFoundError:
            home, _, last = earlier.rpartition(".")
            found = getattr(importlib.import_module(home), last)
        if isinstance(found, ModuleType):
            sys.modules[name] = found
        else:
            home, _, last = name.rpartition(".")
            setattr(importlib.import_module(home), last, found)


# --- the trees


@dataclass(frozen=True)
class Tree:
    """A package, and the interpreter that runs it."""

    label: str
    folder: Path  # holds the package's folder
    python: str
    edition: str  # whose names it has

    def digest(self) -> str:
        return digest("", self.folder, (self.folder / "regbayes").rglob("*.py"))


def installed(label: str) -> Tree:
    spec = importlib.util.find_spec("regbayes")
    if spec is None or spec.origin is None:
        raise SystemExit("regbayes is not installed in this environment; run `make setup`.")
    return Tree(label, Path(spec.origin).resolve().parents[1], sys.executable, NOW)


def first_edition(python: str | None) -> Tree:
    """Unpack the first edition and make its environment, unless that was done before."""
    if not FOLDER.exists():
        git = ["git", "-C", str(ROOT), "archive", "--format=tar", COMMIT]
        archived = subprocess.run(git, capture_output=True, check=False)
        if archived.returncode:
            raise SystemExit(
                f"The first edition (commit {COMMIT}) is not in this checkout: {archived.stderr.decode().strip()}\n"
                "In a shallow clone, run `git fetch --unshallow` first."
            )
        partial = FOLDER.with_suffix(".partial")
        shutil.rmtree(partial, ignore_errors=True)
        with tarfile.open(fileobj=io.BytesIO(archived.stdout)) as archive:
            archive.extractall(partial, filter="data")
        partial.rename(FOLDER)
    return Tree(FIRST, FOLDER / "src", python or environment(FOLDER), FIRST)


def environment(folder: Path) -> str:
    """Install what the first edition needs, in the versions of the running environment; return its interpreter."""
    home = folder / ".venv"
    python, installed = str(home / "bin" / "python"), home / "installed"
    if not installed.exists():
        print(f"installing into {home}", flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", "--without-pip", str(home)], check=True)
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
        versions = subprocess.run([*pip, "freeze", "--exclude-editable"], check=True, capture_output=True, text=True)
        constraints = home / "constraints.txt"
        constraints.write_text("\n".join(line for line in versions.stdout.splitlines() if "==" in line))
        extras = "dask,ppl,numpyro" if importlib.util.find_spec("numpyro") else "dask,ppl"
        wanted = ["--constraint", str(constraints), "--editable", f"{folder}[{extras}]", "cvxpy"]
        subprocess.run([*pip, "--python", python, "install", "-qq", *wanted], check=True)
        installed.touch()
    return python


class Worker:
    """A tree's process for one row, started when it is first asked."""

    def __init__(self, name: str, tree: Tree, sources: str) -> None:
        self.name, self.tree, self.sources = name, tree, sources
        self.process: subprocess.Popen[str] | None = None

    def ask(self, split: int) -> Found:
        if self.process is None:
            if self.tree.digest() != self.sources:
                raise SystemExit(f"The sources in {self.tree.folder} changed during this run; start it again.")
            command = [self.tree.python, __file__, "--worker", self.name, str(self.tree.folder), self.tree.edition]
            threads = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
            path = os.pathsep.join(filter(None, [str(self.tree.folder), os.environ.get("PYTHONPATH")]))
            variables = {**os.environ, **dict.fromkeys(threads, "1"), "PYTHONPATH": path}
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
            self.process = subprocess.Popen(command, env=variables, **pipes)
            if (missing := self.read()) is not None:
                raise MissingError(missing)
        self.process.stdin.write(f"{split}\n")
        self.process.stdin.flush()
        return self.read()

    def read(self) -> Any:
        answer = self.process.stdout.readline()
        if not answer:
            raise SystemExit(f"{self.name}: the process of {self.tree.folder} ended with {self.process.wait()}.")
        return json.loads(answer)

    def close(self) -> None:
        if self.process is not None:
            self.process.stdin.close()
            self.process.wait()


# --- records, and the table


@dataclass
class Records:
    """What was measured: a JSON object a line, found again by everything that it depends on."""

    path: Path | None
    run: float = field(default_factory=time.time)
    found: dict[tuple[Any, ...], dict[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.path is not None and self.path.exists():
            for line in self.path.read_text().splitlines():
                record = json.loads(line)
                self.found[tuple(record["about"])] = record

    def get(self, about: tuple[Any, ...], measure: Callable[[], Found]) -> dict[str, Any]:
        if about not in self.found:
            self.found[about] = {"about": about, "run": self.run, "found": measure()}
            if self.path is not None:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                with self.path.open("a") as file:
                    file.write(json.dumps(self.found[about]) + "\n")
        return self.found[about]


def measure_row(name: str, row: Row, splits: list[int], trees: dict[Tree, str], records: Records) -> list[Any]:
    """Measure the splits of a row by each tree in turn; return for each split the records of the trees by label."""
    key, workers, pairs = row.key(), {tree: Worker(name, tree, code) for tree, code in trees.items()}, []
    try:
        for split in splits:
            pair = {}
            for tree in list(trees)[:: 1 if split % 2 == 0 else -1]:
                about = (name, key, tree.label, trees[tree], split)
                pair[tree.label] = records.get(about, lambda worker=workers[tree], split=split: worker.ask(split))
            pairs.append(pair)
    finally:
        for worker in workers.values():
            worker.close()
    return pairs


def compare_values(quantity: str, first: np.ndarray, now: np.ndarray) -> dict[str, Any]:
    """Print the line of a quantity from its values, split by split, and return its numbers."""
    n, better = len(first), BETTER.get(quantity, 1)
    if quantity in COSTS:
        values, change = (np.median(first), np.median(now)), float(np.median(now / np.maximum(first, 1e-9)))
        text, worse, error = f"x {change:.3f}", change > MAX_RATIO, None
    else:
        scale = n if quantity in COUNTS else 1
        values, change = (scale * first.mean(), scale * now.mean()), scale * float(np.mean(now - first))
        error = scale * float(np.std(now - first, ddof=1)) / np.sqrt(n) if n > 1 else None
        text = f"{change:+.3f}" + ("" if error is None else f" +- {error:.3f}")
        worse = better * change < -2 * (error or 0.0) - 1e-9
    print(f"  {quantity:24}{n:4}{values[0]:14.3f}{values[1]:12.3f}{text:>20}{'  worse' if worse else ''}", flush=True)
    numbers = {FIRST: values[0], NOW: values[1], "difference": change, "standard error": error}
    return {name: None if value is None else round(float(value), 4) for name, value in numbers.items()}


def compare(rows: dict[str, Row], trees: list[Tree], records: Records, splits: list[int] | None) -> dict[str, Any]:
    """Measure and print row by row; return what compare.json has of each."""
    sources, results, scores = {tree: tree.digest() for tree in trees}, {}, []
    print(f"{'':26}{'n':>4}{FIRST:>14}{NOW:>12}{'difference +- se':>20}")
    for name, row in rows.items():
        chosen = [split for split in range(row.splits) if splits is None or split in splits]
        try:
            pairs = measure_row(name, row, chosen, sources, records)
        except MissingError as error:
            print(f"{name}: skipped; {error}")
            continue
        print(name)
        kept = {}
        for quantity in pairs[0][NOW]["found"] if pairs else ():
            is_cost = quantity in COSTS
            used = [pair for pair in pairs if not is_cost or pair[FIRST]["run"] == pair[NOW]["run"]]
            if used:
                values = (np.array([pair[label]["found"][quantity] for pair in used]) for label in LABELS)
                found = compare_values(quantity, *values)
                kept |= {} if is_cost else {quantity: found}
                if row.prepare is fits and quantity in SCORES:
                    scores.append((found["difference"], found["standard error"] or 0.0))
        about = {"sources": {tree.label: code for tree, code in sources.items()}, "splits": chosen, "of": row.splits}
        results[name] = {**about, "results": kept}
    if len(scores) > 1:
        means, errors = np.array(scores).T
        total = np.sqrt(np.sum(errors**2)) / len(errors)
        print(f"accuracy and R2 of all {len(means)} fits: {means.mean():+.4f} +- {total:.4f} points")
    return results


def write(results: dict[str, Any]) -> None:
    """Renew these rows of the committed results, a line each, and keep the others that are still rows."""
    earlier = json.loads(RESULTS.read_text())["rows"] if RESULTS.exists() else {}
    rows = {name: {**earlier, **results}[name] for name in ROWS if name in earlier or name in results}
    note = f"Made by `python benchmarks/compare.py --write` (first edition: {COMMIT}). Rows not listed were not run."
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(row)}" for name, row in rows.items())
    RESULTS.write_text(f'{{\n "note": {json.dumps(note)},\n "rows": {{\n{lines}\n }}\n}}\n')


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--smoke", action="store_true", help="small rows, the installed package against itself")
    parser.add_argument("--rows", nargs="*", default=[""], help="rows whose names begin with one of these")
    parser.add_argument("--parts", nargs="*", choices=sorted({row.prepare.__name__ for row in ROWS.values()}))
    parser.add_argument("--splits", nargs="*", type=int, help="numbers of splits; all by default")
    parser.add_argument("--records", type=Path, default=ROOT / "build" / "compare.jsonl", help="file of all results")
    parser.add_argument("--python", help="interpreter for the first edition, instead of an environment of its own")
    parser.add_argument("--write", action="store_true", help=f"renew {RESULTS.name} with these rows")
    parser.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        serve(*options.worker)
        return
    if options.smoke:
        for name, row in compare(SMOKE, [installed(FIRST), installed(NOW)], Records(None), [5]).items():
            if differing := [quantity for quantity, found in row["results"].items() if found["difference"]]:
                raise SystemExit(f"{name}: the tree differs from itself in {', '.join(differing)}.")
        return
    rows = {name: row for name, row in ROWS.items() if name.startswith(tuple(options.rows))}
    rows = {name: row for name, row in rows.items() if options.parts is None or row.prepare.__name__ in options.parts}
    if not rows:
        parser.error(f"no row has such a name and part; rows: {'; '.join(ROWS)}")
    trees = [first_edition(options.python), installed(NOW)]
    results = compare(rows, trees, Records(options.records), options.splits)
    if options.write:
        write(results)


if __name__ == "__main__":
    main()
