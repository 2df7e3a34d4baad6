"""Give the package random wrong input in a subprocess, and check how it fails.

    python tools/fuzz.py --count 100 --seed 0                # of every kind, in .ci/run
    python tools/fuzz.py files --count 20000 --seed 1        # one kind

files
    Mutate one value of the JSON header or of an array of a saved model or a checkpoint, or the shape or type of an
    array, and recompute the checksums. Only the validation of the package protects compiled code then. Loading may
    raise an error, or succeed with any predictions.
arrays
    Fit and predict with X, y or weights of another type, shape, order or scale, with missing or infinite values.
tables
    `regbayes fit` and `regbayes predict` on mutated CSV files.
commands
    Command lines of random options and values.
regularize
    `regularize` with draws, constraints and regularizers of unusual values.

In all but the first kind a result must be finite, and an error must be a ValueError or a TypeError that the package or
scikit-learn raises on purpose; an error from inside NumPy or SciPy is a failure. A process that ends by a signal, that
takes more than ten seconds or 4 GB, or that indexes outside an array in compiled code is a failure of every kind (Numba
checks bounds here, unlike in normal use). The exit status is 1 after a failure. Each failure prints its number;
`--only NUMBER` repeats it.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import linecache
import os
import random
import resource
import select
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse
from sklearn.exceptions import NotFittedError
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import regbayes
from regbayes.estimators.checkpoint import CheckpointFile
from regbayes.persistence import PersistenceError, load, save

CACHE = Path(__file__).parents[1] / "build" / "numba-bounds"  # cache of kernels compiled with bounds checks
TIME_LIMIT_S, MEMORY_LIMIT_BYTES = 10.0, 4 << 30
NUMBERS = [0, -1, 1, 2, 7, 2**15, 2**24, 2**31 - 1, -(2**31), 2**32, 2**62, 0.5, -1.0, 1e-300, 1e30, 1e300]
VALUES = [*NUMBERS, None, True, "", "x", [], {"dict": {}}, {"float": "7ff8000000000000"}, {"float": "7ff0000000000000"}]
DTYPES = ["<f8", "<f4", "<i8", "<i4", "|b1", ">f8", "<c16", "<U2"]


def simulate(seed: int = 0) -> dict[str, Any]:
    """Simulate data for every kind of model."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((60, 6)) + 2.0 * rng.integers(0, 2, (60, 1))
    counts = scipy.sparse.csr_array(rng.poisson(0.6, (60, 20)))
    texts = [" ".join(rng.choice(["good", "bad", "room", "sea", "noise"], 6)) for _ in range(60)]
    return {
        "X": X,
        "y": np.arange(60) % 3,
        "Y": X[:, :2] > 0,
        "numbers": X @ rng.random((6, 2)),
        "counts": counts,
        "texts": texts,
    }


def make_models(data: dict[str, Any]) -> dict[str, Any]:
    """Fit a small model of every persistable class."""
    X, y, counts = data["X"], data["y"], data["counts"]
    draws = regbayes.Samples({"a": X[:, 0], "b": X[:, 1]})
    return {
        "ilsvm": regbayes.ILSVMClassifier(5, random_state=0).fit(X, y),
        "ilsvm slab": regbayes.ILSVMClassifier(5, slab="half-normal", random_state=0).fit(X, y),
        "ilsvm batches": regbayes.ILSVMClassifier(5, random_state=0).partial_fit(X, y, classes=[0, 1, 2]),
        "ibp": regbayes.IBPFactorAnalysis(5, random_state=0).fit(X),
        "tasks": regbayes.MultiTaskILSVMClassifier(4, random_state=0).fit(X, data["Y"]),
        "task numbers": regbayes.MultiTaskILSVMRegressor(4, random_state=0).fit(X, data["numbers"]),
        "topics": regbayes.MedLDAClassifier(3, inference="gibbs", n_sweeps=10, random_state=0).fit(counts, y),
        "topics by mean field": regbayes.MedLDAClassifier(3, inference="variational", random_state=0).fit(counts, y),
        "topic numbers": regbayes.MedLDARegressor(3, n_sweeps=10, random_state=0).fit(counts, data["numbers"][:, 0]),
        "pipeline": make_pipeline(StandardScaler(), regbayes.ILSVMClassifier(5, random_state=0)).fit(X, y),
        "texts": make_pipeline(CountVectorizer(), regbayes.MedLDAClassifier(3, inference="gibbs", n_sweeps=10)).fit(
            data["texts"], y
        ),
        "posterior": regbayes.regularize(draws, regbayes.E("a") == 0.9),
        "gaussian": regbayes.regularize(regbayes.Gaussian(np.zeros(2), np.eye(2)), regbayes.E(np.ones(2)) >= 1),
    }


def has(model: Any, name: str) -> bool:
    """Return whether a model has a method; attributes of a mutated model may raise any error."""
    with contextlib.suppress(Exception):
        return hasattr(model, name)
    return False


class Crash:
    """Callback that ends a fit after some iterations, so that its checkpoint remains."""

    def __init__(self, n_iterations: int) -> None:
        self.left = n_iterations

    def setup(self, estimator: Any, context: Any) -> None:
        """Do nothing."""

    teardown = on_fit_task_begin = setup

    def on_fit_task_end(self, estimator: Any, context: Any) -> None:
        """Count iterations."""
        self.left -= context.task_name == "iteration"
        if self.left == 0:
            raise StopIteration


def checkpointed(data: dict[str, Any]) -> dict[str, Any]:
    """Return fits with checkpoints: estimator, samples and targets."""
    X, y, counts = data["X"], data["y"], data["counts"]
    return {
        "checkpoint ilsvm": (regbayes.ILSVMClassifier(5, tol=0, max_iter=9, random_state=0), X, y),
        "checkpoint tasks": (regbayes.MultiTaskILSVMClassifier(4, tol=0, max_iter=9, random_state=0), X, data["Y"]),
        "checkpoint topics": (
            regbayes.MedLDAClassifier(3, inference="gibbs", max_iter=9, random_state=0),
            counts,
            y,
        ),
    }


def resume(model: Any, X: Any, y: Any) -> None:
    """Continue a fit, if the checkpoint is that of this fit."""
    try:
        model.fit(X, y)
    except ValueError as error:
        if "is the checkpoint of another fit" not in str(error):
            raise


def uses(model: Any, data: dict[str, Any], path: str) -> Iterator[Callable[[], Any]]:
    """Yield functions that use a model and may raise."""
    if isinstance(model, CheckpointFile):
        for fitted, X, y in checkpointed(data).values():
            yield partial(resume, fitted.set_callbacks(regbayes.Checkpoint(path)), X, y)
        return
    name = type(model).__name__
    with contextlib.suppress(Exception):
        name = "texts" if "vectorizer" in model.steps[0][0] else name
    X = data["counts"] if "MedLDA" in name else data["texts" if name == "texts" else "X"]
    y = {"MultiTaskILSVMClassifier": data["Y"], "MultiTaskILSVMRegressor": data["numbers"]}.get(name, data["y"])
    for method in ("predict", "transform", "decision_function", "score_samples", "top_words", "perplexity"):
        if has(model, method):
            arguments = () if method == "top_words" else (X,)
            yield lambda method=method, arguments=arguments: getattr(model, method)(*arguments)
    if has(model, "partial_fit"):
        arguments = (X,) if name == "IBPFactorAnalysis" else (X, y)
        yield lambda: model.partial_fit(*arguments)
    if has(model, "expectation"):
        yield lambda: model.expectation("a" if hasattr(model.posterior, "weights") else np.ones(2))
        yield lambda: model.sample(0, 10)
        yield lambda: str(model)


# --- mutations


def read_file(path: Path) -> tuple[dict[str, Any], list[bytes]]:
    """Return the header and the arrays as bytes."""
    line, _, rest = path.read_bytes().partition(b"\n")
    length = int(line.split()[-1])
    header, contents, position = json.loads(rest[:length]), [], length
    for entry in header["arrays"]:
        size = int(np.prod(entry["shape"], dtype=np.int64)) * np.dtype(entry["dtype"]).itemsize
        contents.append(rest[position : position + size])
        position += size
    return header, contents


def write_file(path: Path, header: dict[str, Any], contents: list[bytes]) -> None:
    """Write a file with valid checksums."""
    for entry, content in zip(header["arrays"], contents, strict=True):
        entry["sha256"] = hashlib.sha256(content).hexdigest()
    text = json.dumps(header).encode("ascii")
    line = f"regbayes 2 {regbayes.__version__} {hashlib.sha256(text).hexdigest()} {len(text)}\n".encode("ascii")
    path.write_bytes(line + text + b"".join(contents))


def leaves(node: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the paths of the leaves of a JSON tree."""
    parts = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, part in parts:
        yield from leaves(part, (*path, key))
    if not isinstance(node, dict | list):
        yield path


def mutate(header: dict[str, Any], contents: list[bytes], rng: random.Random) -> str:
    """Apply one mutation in place; return its description."""
    if not contents or rng.random() < 0.5:
        *parents, last = rng.choice(list(leaves(header["object"])))
        node = header["object"]
        for key in parents:
            node = node[key]
        before, node[last] = node[last], rng.choice(VALUES)
        return f"{'.'.join(map(str, [*parents, last]))}: {before!r} -> {node[last]!r}"
    index = rng.randrange(len(contents))
    entry = header["arrays"][index]
    array = np.frombuffer(contents[index], entry["dtype"]).copy()
    kind = rng.choice(["value", "value", "value", "shorter", "longer", "axes", "type"])
    if kind == "value" and array.size and array.dtype.kind in "biuf":
        place, value = rng.randrange(array.size), rng.choice([*NUMBERS, float("nan"), float("inf")])
        with np.errstate(all="ignore"), contextlib.suppress(OverflowError, ValueError):
            array[place] = value if array.dtype.kind == "f" else int(value)
        contents[index] = array.tobytes()
        return f"array {index}: element {place} -> {value!r}"
    shape = list(entry["shape"])
    if kind in ("shorter", "longer") and shape and shape[0] > 1:
        rows = array.reshape(shape[0], -1)
        rows = rows[:-1] if kind == "shorter" else np.vstack([rows, rows[:1]])
        entry["shape"], contents[index] = [len(rows), *shape[1:]], rows.tobytes()
    elif kind == "axes":
        entry["shape"] = shape[::-1] if len(shape) > 1 else [*shape, 1]
    else:
        with np.errstate(all="ignore"), warnings.catch_warnings(action="ignore"):
            array = array.astype(rng.choice(DTYPES))
        entry["dtype"], contents[index] = array.dtype.str, array.tobytes()
    return f"array {index}: {kind}, now {entry['dtype']} {entry['shape']}"


# --- arrays


def make_estimators() -> dict[str, Any]:
    """Return a quick estimator of every public class, by the kind of its targets."""
    quick = {"max_iter": 3, "random_state": 0}
    return {
        "ILSVM": (regbayes.ILSVMClassifier(3, **quick), "X", "y"),
        "ILSVM slab": (regbayes.ILSVMClassifier(3, slab="half-normal", **quick), "X", "y"),
        "ILSVM regressor": (regbayes.ILSVMRegressor(3, **quick), "X", "numbers"),
        "IBP": (regbayes.IBPFactorAnalysis(3, **quick), "X", None),
        "tasks": (regbayes.MultiTaskILSVMClassifier(3, **quick), "X", "Y"),
        "task numbers": (regbayes.MultiTaskILSVMRegressor(3, **quick), "X", "numbers"),
        "Gibbs": (regbayes.MedLDAClassifier(3, inference="gibbs", **quick), "counts", "y"),
        "mean field": (regbayes.MedLDAClassifier(3, inference="variational", **quick), "counts", "y"),
        "Gibbs numbers": (regbayes.MedLDARegressor(3, inference="gibbs", **quick), "counts", "number"),
        "mean field numbers": (regbayes.MedLDARegressor(3, inference="variational", **quick), "counts", "number"),
    }


def set_some(value: Any) -> Callable[[Any, random.Random], Any]:
    """Return a mutation that sets one entry."""

    def mutate(array: Any, rng: random.Random) -> Any:
        array = np.array(array, dtype=object if isinstance(value, str | None) else np.float64)
        array.flat[rng.randrange(array.size)] = value
        return array

    return mutate


def scale_by(factor: float) -> Callable[[Any, random.Random], Any]:
    """Return a mutation that multiplies all entries."""
    return lambda array, _: array * factor


def convert_to(dtype: Any) -> Callable[[Any, random.Random], Any]:
    """Return a mutation that changes the type."""
    return lambda array, _: np.abs(array * 100).astype("i8").astype(dtype)


MUTATIONS: dict[str, Callable[[Any, random.Random], Any]] = {
    **{f"an entry {value!r}": set_some(value) for value in (np.nan, np.inf, -np.inf, 1e300, -1.0, 0.5, None, "a", "")},
    **{f"times {factor:g}": scale_by(factor) for factor in (0.0, 1e-300, 1e-30, 1e30, 1e160, 1e300, -1.0)},
    **{
        name: convert_to(name)
        for name in ("f2", "f4", "f16", "i1", "u1", "?", "c16", "U3", "S3", "M8[s]", "m8[s]", "O", ">f8")
    },
    "structured": lambda array, _: np.zeros(len(array), [("a", "f8"), ("b", "i4")]),
    "Fortran order": lambda array, _: np.asfortranarray(array),
    "strided": lambda array, _: np.repeat(np.asarray(array), 2, axis=0)[::2],
    "reversed": lambda array, _: np.asarray(array)[::-1],
    "read-only": lambda array, _: np.frombuffer(array.tobytes(), array.dtype).reshape(array.shape),
    "masked": lambda array, _: np.ma.masked_greater(array, 1),
    "list": lambda array, _: array.tolist(),
    "ragged": lambda array, _: [[1.0], [1.0, 2.0]] * (len(array) // 2),
    "one row": lambda array, _: array[:1],
    "no row": lambda array, _: array[:0],
    "fewer rows": lambda array, rng: array[: rng.randrange(2, len(array))],
    "no column": lambda array, _: array.reshape(len(array), -1)[:, :0],
    "one column": lambda array, _: array.reshape(len(array), -1)[:, :1],
    "one dimension": lambda array, _: array.reshape(len(array), -1)[:, 0],
    "three dimensions": lambda array, _: np.asarray(array)[..., None, None],
    "scalar": lambda *_: 1.0,
    "None": lambda *_: None,
    "constant": lambda array, _: np.ones_like(array),
    "CSR": lambda array, _: scipy.sparse.csr_array(np.atleast_2d(np.asarray(array, dtype=np.float64))),
    "COO matrix": lambda array, _: scipy.sparse.coo_matrix(np.atleast_2d(np.asarray(array, dtype=np.float64))),
}


def give_arrays(data: dict[str, Any], rng: random.Random) -> tuple[str, Callable[[], Any]]:
    """Return a description and a fit with a mutated argument, followed by predictions."""
    name, (model, *names) = rng.choice(list(make_estimators().items()))
    given = {"X": data[names[0]], "y": None if names[1] is None else data[names[1]], "sample_weight": None}
    given = {key: value.toarray() if scipy.sparse.issparse(value) else value for key, value in given.items()}
    places = [key for key in ("X", "X", "y", "sample_weight", "new X") if key != "y" or given["y"] is not None]
    place, change = rng.choice(places), rng.choice(list(MUTATIONS))
    clean = given["X"]
    source = {"sample_weight": np.ones(len(clean)), "new X": clean}.get(place, given.get(place))
    changed = MUTATIONS[change](np.array(source, copy=True), rng)
    new = changed if place in ("X", "new X") else clean
    if place != "new X":
        given[place] = changed

    def use() -> Iterator[Any]:
        yield model.fit(**given).trace_.objective
        for method in ("predict", "transform", "decision_function", "score_samples"):
            if hasattr(model, method):
                result = getattr(model, method)(new)
                # A log-density below the smallest number is minus infinity.
                yield np.maximum(result, np.finfo(np.float64).min) if method == "score_samples" else result

    return f"{name}, {place}: {change}", lambda: list(use())


# --- regularize


def give_constraints(rng: random.Random) -> tuple[str, Callable[[], Any]]:
    """Return a description and a call of `regularize` with unusual values."""
    E, unusual = regbayes.E, [0.0, 1e-300, 1e300, -1e30, np.nan, np.inf, 1e8, 0.5, 1.0, "x", None, [1.0, 2.0], 1j]
    draws = np.random.default_rng(rng.randrange(10)).standard_normal((200, 2))
    change, place = rng.choice(list(MUTATIONS)), rng.choice(["draws", "bound", "bound", "weights", "name", "soft"])
    value, other = rng.choice(unusual), rng.choice(unusual)
    samples: Any = {"a": draws[:, 0], "b": draws[:, 1]}
    function, bound = "a", 0.3
    if place == "draws":
        value = change
        samples["a"] = MUTATIONS[change](samples["a"].copy(), rng)
    if place == "bound":
        bound = value
    if place == "name":
        function = rng.choice(["c", "", "a[0]", 3, None, np.ones(2), lambda _: np.ones(3), lambda _: np.nan])
        value = repr(function)
    kind = rng.choice(["==", "<=", ">=", "between", "within"])

    def use() -> Any:
        expectation = E(function)
        if kind == "between":
            constraint = expectation.between(bound, other)
        elif kind == "within":
            constraint = expectation.within(bound, of=other)
        else:
            constraint = {"==": expectation.__eq__, "<=": expectation.__le__, ">=": expectation.__ge__}[kind](bound)
        if place == "soft":
            constraint = constraint.soft(value)
        weights = {"log_weights": MUTATIONS[change](np.ones(200), rng)} if place == "weights" else {}
        result = regbayes.regularize(regbayes.Samples(samples, **weights), constraint)
        return [result.expectation("a"), result.multipliers, result.kl, str(result)]

    return f"{place}: {value!r:.60} {kind} {other!r}", use


# --- tables and command lines


def write_table(path: Path, rng: random.Random) -> str:
    """Write a mutated CSV file; return its description."""
    rows = [["size", "width", "place", "kind", "number"]]
    for i in range(40):
        place = rng.choice(["field", "wood", "shore"])
        rows.append([f"{rng.gauss(i % 2, 1):.3f}", f"{rng.gauss(0, 1):.3f}", place, "ab"[i % 2], f"{rng.random():.3f}"])
    cells = [
        "",
        "nan",
        "inf",
        "-1e308",
        "1e400",
        "é",
        "\0",
        '"',
        "a,b",
        "2020-01-01",
        "True",
        "1_000",
        "0x10",
        " ",
        "=1",
    ]
    changes = []
    for _ in range(rng.choice([1, 1, 3])):
        row, column, cell = rng.randrange(len(rows)), rng.randrange(5), rng.choice(cells)
        kind = rng.choice(["cell", "column", "name", "short", "long", "rows", "constant"])
        changes.append(f"{kind} {row} {column} {cell!r}")
        if kind == "cell":
            rows[row][min(column, len(rows[row]) - 1)] = cell
        elif kind in ("column", "constant"):
            for line in rows[1:]:
                line[min(column, len(line) - 1)] = cell if kind == "column" else "1"
        elif kind == "name":
            rows[0][column] = rng.choice([cell, "size", "kind"])
        elif kind in ("short", "long"):
            rows[row] = rows[row][:column] if kind == "short" and column else [*rows[row], cell]
        else:
            rows = rows[: rng.choice([1, 2, 3, 6, 20])]
    content = "\n".join(",".join(line) for line in rows).encode()
    if rng.random() < 0.3:
        place = rng.randrange(len(content))
        content = content[:place] + bytes([rng.randrange(256)]) + content[place + rng.randrange(2) :]
        changes.append(f"byte {place}")
    path.write_bytes(content)
    return ", ".join(changes)


def run_command(arguments: list[str]) -> tuple[int, str]:
    """Return the exit status of a command and its output."""
    from regbayes.cli.app import main as run

    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(io.StringIO()) as errors:
        try:
            run(arguments)
        except SystemExit as stop:
            return int(stop.code or 0), errors.getvalue() or output.getvalue()
    return 0, output.getvalue()


def check_commands(*commands: list[str]) -> None:
    """Run commands until one fails; raise an error for a bug or for predictions that are not finite."""
    for arguments in commands:
        code, output = run_command(arguments)
        if code not in (0, 2, 3, 4, 5):
            raise AssertionError(f"exit status {code}: {output[-300:]}")
        if code == 0 and arguments[0] == "predict" and any(word in output for word in (",nan", ",inf", ",-inf")):
            raise AssertionError("predictions are not finite")
        if code:
            raise ValueError(output[-300:])


FAST = ["--no-cv", "--max-iter", "2", "-q"]


def give_table(folder: Path, rng: random.Random) -> tuple[str, Callable[[], Any]]:
    """Return a description and commands that fit a mutated table and predict for another one."""
    table, other, model = folder / "table.csv", folder / "other.csv", folder / "model.regbayes"
    target = rng.choice(["kind", "number", "place"])
    text = ["--text", "place"] if target != "place" and rng.random() < 0.2 else []
    changes = write_table(table, rng), write_table(other, rng)
    fit = ["fit", str(table), "--target", target, *text, "-o", str(model), *FAST]
    return f"{target} {text}; {changes}", lambda: check_commands(fit, ["predict", str(model), str(other)])


def give_command(folder: Path, rng: random.Random) -> tuple[str, Callable[[], Any]]:
    """Return a description and a command line of random options and values."""
    table, model = folder / "good.csv", folder / "good.regbayes"
    if not model.exists():
        lines = [f"{i % 7},{(i * 5) % 11},{'ab'[i % 2]}" for i in range(40)]
        table.write_text("\n".join(["size,width,kind", *lines]))
        check_commands(["fit", str(table), "-t", "kind", "-o", str(model), *FAST])
    values = [
        "",
        "0",
        "-1",
        "1",
        "3",
        "nan",
        "inf",
        "1e999",
        "kind",
        "size",
        "nothing",
        str(table),
        str(folder),
        "-",
        "é",
        "a" * 500,
    ]
    options = {
        "fit": [
            "--target",
            "--kind",
            "--model",
            "--task",
            "--ignore",
            "--categorical",
            "--names",
            "--weight",
            "--text",
            "--ngrams",
            "--min-df",
            "--max-words",
            "--folds",
            "--n-components",
            "--temperature",
            "--slab",
            "--seed",
            "--delimiter",
            "--decimal",
            "--missing",
            "--encoding",
            "--format",
            "--image",
            "--balanced",
            "--json",
            "-C",
        ],
        "predict": ["--keep", "--scores", "--probabilities", "--features", "--threshold", "--output", "--delimiter"],
        "evaluate": ["--threshold", "--json", "--text", "--decimal"],
        "report": ["--output"],
    }
    command = rng.choice(["fit", "fit", "predict", "evaluate", "report", "nothing"])
    arguments = [command]
    if command != "fit":
        arguments.append(str(rng.choice([model, model, model, table, folder])))
    arguments.append(str(rng.choice([table, table, table, model, folder, "missing.csv"])))
    arguments += ["-o", str(folder / "out"), "-t", "kind", *FAST] if command == "fit" else []
    for _ in range(rng.choice([1, 1, 2, 3])):
        arguments.append(rng.choice(options.get(command, ["--help"])))
        if rng.random() < 0.8:
            arguments.append(rng.choice(values))
    return repr(arguments)[:300], lambda: check_commands(arguments)


# --- verdicts


def is_deliberate(error: Exception) -> bool:
    """Return whether an error was raised on purpose by the package, or by the validation of scikit-learn."""
    if not isinstance(error, ValueError | TypeError | NotFittedError | PersistenceError):
        return False
    frames = traceback.extract_tb(error.__traceback__)
    if any("sklearn/utils" in frame.filename or "sklearn/base" in frame.filename for frame in frames[-6:]):
        return True
    line = linecache.getline(frames[-1].filename, frames[-1].lineno or 0).strip()
    return line.startswith("raise ") and ("regbayes" in frames[-1].filename or frames[-1].filename == __file__)


def is_finite(result: Any) -> bool:
    """Return whether all numbers in a result are finite."""
    if isinstance(result, list | tuple):
        return all(map(is_finite, result))
    kind = np.asarray(result).dtype.kind
    return kind not in "fc" or bool(np.isfinite(result).all())


def judge(use: Callable[[], Any]) -> str:
    """Return the outcome of a case."""
    try:
        result = use()
    except Exception as error:  # any error is judged
        if is_deliberate(error):
            return "raised"
        frame = traceback.extract_tb(error.__traceback__)[-1]
        place = next(
            (f for f in reversed(traceback.extract_tb(error.__traceback__)) if "/regbayes/" in f.filename), frame
        )
        if "--only" in sys.argv:
            traceback.print_exc()
        return f"UNEXPECTED {type(error).__name__}: {str(error)!r:.200} at {Path(place.filename).name}:{place.lineno}"
    return "used" if is_finite(result) else "NONFINITE result"


# --- worker process and its supervisor


def use_file(path: str, data: dict[str, Any]) -> str:
    """Load and use a mutated file."""
    try:
        model = load(path)
    except PersistenceError:
        return "refused"
    raised, outside = 0, False
    for use in uses(model, data, path):
        try:
            use()
        except Exception as error:  # a mutated model may raise any error
            raised += 1
            outside |= isinstance(error, IndexError) and str(error) == "index is out of bounds"  # Numba's message
    return "OUTSIDE an array" if outside else "raised" if raised else "used"


def work(folder: Path) -> None:
    """Run the case named on each line of standard input; print its outcome and description."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT_BYTES, MEMORY_LIMIT_BYTES))
    data = simulate()
    data["number"] = data["numbers"][:, 0]
    warnings.simplefilter("ignore")
    results, sys.stdout = sys.stdout, sys.stderr
    for line in sys.stdin:
        kind, seed, path = line.rstrip("\n").split("\t")
        rng = random.Random(seed)
        if kind == "files":
            answer, description = use_file(path, data), ""
        else:
            give = {
                "arrays": partial(give_arrays, data),
                "tables": partial(give_table, folder),
                "commands": partial(give_command, folder),
                "regularize": give_constraints,
            }[kind]
            with np.errstate(all="ignore"):
                try:
                    description, use = give(rng)
                except (ValueError, TypeError, OverflowError):  # the mutation does not apply
                    description, use = "", lambda: None
                answer = judge(use)
        print(json.dumps([answer, description]), file=results, flush=True)


class Worker:
    """A worker process that is restarted after it ends."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.process: subprocess.Popen[str] | None = None

    def run(self, kind: str, seed: str, path: str = "", limit_s: float = TIME_LIMIT_S) -> tuple[str, str]:
        """Return the outcome and the description of a case."""
        if self.process is None or self.process.poll() is not None:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    __file__,
                    "--work",
                    str(self.folder),
                    *(["--only", "0"] if "--only" in sys.argv else []),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=None if "--only" in sys.argv else subprocess.DEVNULL,
                text=True,
                cwd=self.folder,
                env=os.environ | {"OMP_NUM_THREADS": "1", "NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": str(CACHE)},
            )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{kind}\t{seed}\t{path}\n")
        self.process.stdin.flush()
        ready, _, _ = select.select([self.process.stdout], [], [], limit_s)
        line = self.process.stdout.readline() if ready else ""
        if line:
            answer, description = json.loads(line)
            return answer, description
        if ready:
            return f"ENDED with status {self.process.wait()}", ""
        self.process.kill()
        self.process.wait()
        return f"HUNG for {limit_s:g} s", ""


KINDS = ["files", "arrays", "tables", "commands", "regularize"]
FAILURES = ("ENDED", "HUNG", "OUTSIDE", "UNEXPECTED", "NONFINITE")


def save_intact(folder: Path, worker: Worker) -> dict[str, Path]:
    """Save the models and check that the worker can use them, which compiles."""
    intact = {}
    for name, model in make_models(simulate()).items():
        intact[name] = folder / name.replace(" ", "_")
        save(model, intact[name])
    for name, (model, X, y) in checkpointed(simulate()).items():
        intact[name] = folder / name.replace(" ", "_")
        with contextlib.suppress(StopIteration):
            model.set_callbacks(regbayes.Checkpoint(intact[name], seconds=0), Crash(4)).fit(X, y)
    for name, path in intact.items():
        shutil.copy(path, folder / "copy")
        answer, _ = worker.run("files", "", str(folder / "copy"), 600.0)
        if answer != "used":
            raise RuntimeError(f"the intact model {name!r} {answer}")
    return intact


def main() -> int:
    """Run the cases and print counts."""
    parser = argparse.ArgumentParser(description="Give the package random wrong input in a subprocess.")
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=f"Kinds of input: {', '.join(KINDS)} (default: all).")
    parser.add_argument(
        "--count", type=int, default=100, metavar="N", help="Number of cases of each kind (default: 100)."
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="Seed of the cases (default: 0).")
    parser.add_argument("--only", type=int, metavar="N", help="Run one case, and print it.")
    parser.add_argument("--work", metavar="FOLDER", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work(options.work)
        return 0
    if unknown := set(options.kinds) - set(KINDS):
        parser.error(f"unknown kind {unknown.pop()!r}; kinds are {', '.join(KINDS)}")
    failures = 0
    for kind in options.kinds or KINDS:
        started, counts = time.perf_counter(), Counter[str]()
        with tempfile.TemporaryDirectory() as name, warnings.catch_warnings(action="ignore"):
            folder = Path(name)
            worker, mutant = Worker(folder), folder / "mutant"
            intact = save_intact(folder, worker) if kind == "files" else {}
            numbers = range(options.count) if options.only is None else [options.only]
            for number in numbers:
                seed, about = f"{options.seed} {number}", ""
                if kind == "files":
                    rng = random.Random(seed)
                    chosen = rng.choice(list(intact))
                    header, contents = read_file(intact[chosen])
                    about = f"{chosen}; {mutate(header, contents, rng)}"
                    write_file(mutant, header, contents)
                answer, description = worker.run(kind, seed, str(mutant))
                if answer.startswith("HUNG"):  # it may have compiled a kernel for the first time
                    if kind == "files":
                        write_file(mutant, header, contents)
                    answer, description = worker.run(kind, seed, str(mutant), 6 * TIME_LIMIT_S)
                counts[answer.split()[0]] += 1
                failed = answer.startswith(FAILURES)
                failures += failed
                if failed or options.only is not None:
                    print(f"{kind} {number} ({about or description}): {answer}", flush=True)
            if worker.process is not None:
                worker.process.kill()
        found = ", ".join(f"{n} {answer}" for answer, n in sorted(counts.items()))
        print(f"{kind}: {found} in {time.perf_counter() - started:.0f} s", flush=True)
    return int(failures > 0)


if __name__ == "__main__":
    raise SystemExit(main())
