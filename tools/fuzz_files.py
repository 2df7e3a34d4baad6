"""Mutate saved models, then load and use them in a subprocess.

    python tools/fuzz_files.py --count 300 --seed 0           # in .ci/run
    python tools/fuzz_files.py --count 20000 --seed 1         # make fuzz

A mutation changes one value of the JSON header or of an array, or the shape or type of an array. It then recomputes the
checksums, so only the validation of the package protects compiled code. Loading may raise an error, or succeed with any
predictions. A failure is a process that ends by a signal, takes more than ten seconds or 4 GB, or indexes outside an
array in compiled code (Numba checks bounds here, unlike in normal use). The exit status is 1 after a failure. Each
failure prints its number; `--only NUMBER` repeats it.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import random
import resource
import select
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import regbayes
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


def uses(model: Any, data: dict[str, Any]) -> Iterator[Callable[[], Any]]:
    """Yield functions that use a model and may raise."""
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


# --- worker process and its supervisor


def work() -> None:
    """Load and use each file named on standard input; print one line for each."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT_BYTES, MEMORY_LIMIT_BYTES))
    data = simulate()
    warnings.simplefilter("ignore")
    for line in sys.stdin:
        try:
            model = load(line.rstrip("\n"))
        except PersistenceError:
            print("refused", flush=True)
            continue
        raised, outside = 0, False
        for use in uses(model, data):
            try:
                use()
            except Exception as error:  # a mutated model may raise any error
                raised += 1
                outside |= isinstance(error, IndexError) and str(error) == "index is out of bounds"  # Numba's message
        print("OUTSIDE an array" if outside else "raised" if raised else "used", flush=True)


class Worker:
    """A worker process that is restarted after it ends."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[str] | None = None

    def run(self, path: Path, limit_s: float = TIME_LIMIT_S) -> str:
        """Return the outcome for a file."""
        if self.process is None or self.process.poll() is not None:
            command = [sys.executable, __file__, "--work"]
            environment = os.environ | {"OMP_NUM_THREADS": "1", "NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": str(CACHE)}
            self.process = subprocess.Popen(
                command,
                stdin=-1,
                stdout=-1,
                stderr=None if "--only" in sys.argv else subprocess.DEVNULL,
                text=True,
                env=environment,
            )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{path}\n")
        self.process.stdin.flush()
        ready, _, _ = select.select([self.process.stdout], [], [], limit_s)
        answer = self.process.stdout.readline().strip() if ready else ""
        if answer:
            return answer
        if ready:
            return f"ENDED with status {self.process.wait()}"
        self.process.kill()
        self.process.wait()
        return f"HUNG for {limit_s:g} s"


def main() -> int:
    """Run the mutations and print counts."""
    parser = argparse.ArgumentParser(description="Mutate saved models, load them in a subprocess, and use what loads.")
    parser.add_argument("--count", type=int, default=300, metavar="N", help="Number of files (default: 300).")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="Seed of the mutations (default: 0).")
    parser.add_argument("--only", type=int, metavar="N", help="Run one file, and print what was changed.")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work()
        return 0
    started, counts, failures = time.perf_counter(), Counter[str](), 0
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(action="ignore"):
        intact = {}
        worker, mutant = Worker(), Path(folder) / "mutant"
        for name, model in make_models(simulate()).items():
            intact[name] = Path(folder) / name.replace(" ", "_")
            save(model, intact[name])
            answer = worker.run(intact[name], 600.0)  # the first use compiles
            if answer != "used":
                raise RuntimeError(f"the intact model {name!r} {answer}")
        numbers = range(options.count) if options.only is None else [options.only]
        for number in numbers:
            rng = random.Random(f"{options.seed} {number}")
            name = rng.choice(list(intact))
            header, contents = read_file(intact[name])
            change = mutate(header, contents, rng)
            write_file(mutant, header, contents)
            answer = worker.run(mutant)
            if answer.startswith("HUNG"):  # it may have compiled a kernel that the intact models do not use
                answer = worker.run(mutant, 6 * TIME_LIMIT_S)
            counts[answer.split()[0]] += 1
            failed = answer.startswith(("ENDED", "HUNG", "OUTSIDE"))
            failures += failed
            if failed or options.only is not None:
                print(f"file {number} ({name}; {change}): {answer}")
    print(
        ", ".join(f"{n} {answer}" for answer, n in sorted(counts.items())), f"in {time.perf_counter() - started:.0f} s"
    )
    return int(failures > 0)


if __name__ == "__main__":
    raise SystemExit(main())
