"""Measure the share of seeded mutants that the tests of a package detect.

    python tools/mutants.py --jobs 2 --json build/mutants.json

A mutant is a copy of the project with one small change in ``src``. It is detected if the tests in
``tests/<package>`` fail in the copy or exceed the time limit. Nothing is written to the checkout.

A site is a place in the source to which a mutation operator applies. Mutants are drawn uniformly from the sites of a
package, so the same seed on the same tree gives the same mutants. The operators are

* comparison: a comparison is negated (``<`` becomes ``>=``, ``==`` becomes ``!=``, ``in`` becomes ``not in``);
* arithmetic: ``+`` and ``-``, ``*`` and ``/`` are exchanged, ``//``, ``%`` and ``**`` become ``*``, a minus is removed;
* logic: ``and`` and ``or``, ``True`` and ``False`` are exchanged, ``not`` is removed;
* number: an integer is increased by one, a float is doubled (0.0 becomes 1.0);
* return: a function returns ``None``;
* keyword: one keyword argument of a call is removed.

Annotations, decorators, messages, ``raise``, ``assert``, ``__all__`` and ``TYPE_CHECKING`` blocks have no sites. Some
mutants are equivalent to the original, so no test suite detects all of them. Compare shares instead of aiming at 100%.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import hashlib
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("kernels", "regularization", "margins", "models", "persistence")
COPIED = ("src", "paper", "tests", "examples", "pyproject.toml")
MARKERS = ("data", "slow", "browser", "gpu", "numpyro", "pymc", "blackjax")
MEMORY_BYTES = 16 << 30  # bytes of address space of a process, since a mutant may allocate any amount of memory
NEGATED = {
    ast.Lt: ast.GtE, ast.GtE: ast.Lt, ast.Gt: ast.LtE, ast.LtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
EXCHANGED = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult, ast.Pow: ast.Mult,
}  # fmt: skip
SKIPPED = (ast.Raise, ast.Assert, ast.JoinedStr)
SKIPPED_FIELDS = ("annotation", "returns", "decorator_list")
SKIPPED_CALLS = ("warn", "TypeVar", "NewType")
EQUIVALENT_KEYWORDS = ("dtype", "copy", "order", "strict", "stacklevel")  # their removal is usually equivalent
WAIT = 10  # largest ratio of elapsed to CPU seconds; on a busy machine waiting is not an endless loop
RUNNING: set[int] = set()  # process groups of running tests


@dataclass(frozen=True)
class Mutant:
    """One change: the bytes ``start:end`` of the file at ``path`` become ``after``."""

    package: str
    path: str
    line: int
    start: int
    end: int
    operator: str
    before: str
    after: str


@dataclass(frozen=True)
class Outcome:
    """Exit status of the tests (None if they were stopped), their seconds, and what failed, or the last line."""

    status: int | None
    seconds: float
    summary: str


def children(node: ast.AST) -> Iterator[ast.AST]:
    """Walk over the nodes that may be mutated, in source order."""
    for field, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or isinstance(child, SKIPPED) or field in SKIPPED_FIELDS:
                continue
            if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                continue
            if isinstance(child, ast.Assign) and ast.unparse(child.targets[0]) == "__all__":
                continue
            if isinstance(child, ast.Call) and ast.unparse(child.func).split(".")[-1] in SKIPPED_CALLS:
                continue
            yield child
            yield from children(child)


def other_value(value: float) -> float:
    if isinstance(value, bool):
        return not value
    return value + 1 if isinstance(value, int) else 2.0 * value or 1.0


def is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def changes(node: ast.AST) -> Iterator[tuple[str, ast.AST, str]]:
    """Yield an operator's name, the node that is replaced, and its new source."""
    match node:
        case ast.Compare(left, operations, comparators):
            for i, operation in enumerate(operations):
                changed = [*operations[:i], NEGATED[type(operation)](), *operations[i + 1 :]]
                yield "comparison", node, f"({ast.unparse(ast.Compare(left, changed, comparators))})"
        case ast.BinOp(left, operation, right) if type(operation) in EXCHANGED and not (
            is_text(left) or is_text(right)
        ):
            yield "arithmetic", node, f"({ast.unparse(ast.BinOp(left, EXCHANGED[type(operation)](), right))})"
        case ast.AugAssign(target, operation, value) if type(operation) in EXCHANGED and not is_text(value):
            yield "arithmetic", node, ast.unparse(ast.AugAssign(target, EXCHANGED[type(operation)](), value))
        case ast.UnaryOp(ast.USub() | ast.Not() as operation, operand):
            yield "arithmetic" if isinstance(operation, ast.USub) else "logic", node, f"({ast.unparse(operand)})"
        case ast.BoolOp(operation, values):
            other = ast.Or() if isinstance(operation, ast.And) else ast.And()
            yield "logic", node, f"({ast.unparse(ast.BoolOp(other, values))})"
        case ast.Constant(bool() | int() | float() as value):
            yield "logic" if isinstance(value, bool) else "number", node, repr(other_value(value))
        case ast.Return(ast.expr() as value) if not (isinstance(value, ast.Constant) and value.value is None):
            yield "return", value, "None"
        case ast.Call(function, arguments, keywords):
            for i, keyword in enumerate(keywords):
                if keyword.arg is not None and keyword.arg not in EQUIVALENT_KEYWORDS:
                    rest = [*keywords[:i], *keywords[i + 1 :]]
                    yield "keyword", node, ast.unparse(ast.Call(function, arguments, rest))


def find_mutants(root: Path, package: str) -> list[Mutant]:
    """List every mutant of a package, in the order of paths and lines."""
    found = []
    for path in sorted((root / "src/regbayes" / package).rglob("*.py")):
        source = path.read_bytes()
        starts = [0]
        for line in source.splitlines(keepends=True):
            starts.append(starts[-1] + len(line))
        for node in children(ast.parse(source)):
            for operator, old, after in changes(node):
                start, end = starts[old.lineno - 1] + old.col_offset, starts[old.end_lineno - 1] + old.end_col_offset
                name, before = path.relative_to(root).as_posix(), source[start:end].decode()
                found.append(Mutant(package, name, old.lineno, start, end, operator, before, after))
    return found


def copy_tree(source: Path, target: Path, *ignored: str) -> None:
    target.mkdir(exist_ok=True)
    for name in COPIED:
        if (source / name).is_dir():
            shutil.copytree(source / name, target / name, ignore=shutil.ignore_patterns(*ignored))
        else:
            shutil.copy2(source / name, target / name)


def apply(mutant: Mutant, tree: Path) -> None:
    """Write a mutant and delete all code of the package that Python and Numba have compiled.

    Numba checks the time and size of a kernel's file only, not of other files whose functions the kernel calls.
    """
    path = tree / mutant.path
    source, modified = path.read_bytes(), path.stat().st_mtime
    path.write_bytes(source[: mutant.start] + mutant.after.encode() + source[mutant.end :])
    os.utime(path, (modified + 1000, modified + 1000))
    for cached in (tree / "src/regbayes" / mutant.package).rglob("*.nb[ic]"):
        cached.unlink()


def run_tests(tree: Path, package: str, seconds: float | None) -> Outcome:
    """Run the tests of a package in a copy of the tree."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", f"tests/{package}"]
    command += ["-m", f"not ({' or '.join(MARKERS)})"]
    threads = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL")} | {"NUMBA_NUM_THREADS": "2"}
    sources = f"{tree / 'src'}{os.pathsep}{tree / 'paper/src'}"
    environment = os.environ | threads | {"PYTHONPATH": sources, "CI": "1", "MPLBACKEND": "Agg"}
    environment.pop("NUMBA_CACHE_DIR", None)  # Numba's cache is in the tree, so copies of the tree include it
    started, limit = time.monotonic(), round(seconds) if seconds else resource.RLIM_INFINITY
    with (tree / "output.txt").open("w+") as output:
        process = subprocess.Popen(
            command,
            cwd=tree,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        resource.prlimit(process.pid, resource.RLIMIT_CPU, (limit, limit))
        RUNNING.add(process.pid)
        try:
            status = process.wait(seconds and WAIT * seconds)
        except subprocess.TimeoutExpired:
            status = None
        stop(process.pid)  # a test may have left child processes
        process.wait()
        RUNNING.remove(process.pid)
        output.seek(0)
        lines = output.read().splitlines()
    failed = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    summary = "time limit" if status is None else (failed or lines or [""])[-1]
    return Outcome(status, round(time.monotonic() - started, 1), summary[:200])


def stop(group: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def try_baseline(root: Path, package: str) -> Outcome:
    """Run the tests on an uncompiled copy of the tree."""
    tree = root.parent / package
    copy_tree(root, tree)
    return run_tests(tree, package, None)


def try_mutant(mutant: Mutant, baseline: Path, seconds: float) -> Outcome:
    """Run the tests on a copy of the baseline's tree, which includes compiled code."""
    with tempfile.TemporaryDirectory(dir=baseline.parent) as folder:
        copy_tree(baseline, Path(folder))
        apply(mutant, Path(folder))
        return run_tests(Path(folder), mutant.package, seconds)


def digest_tree(root: Path) -> str:
    """Return a digest of all files that a result depends on."""
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*")):
        if path.is_file():
            digest.update(path.relative_to(root).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()


def load(path: Path | None, tree: str) -> dict[Mutant, Outcome]:
    """Read the results of an earlier run on the same tree."""
    if path is None or not path.exists() or (saved := json.loads(path.read_text()))["tree"] != tree:
        return {}
    return {Mutant(**result["mutant"]): Outcome(**result["outcome"]) for result in saved["results"]}


def save(path: Path, tree: str, results: dict[Mutant, Outcome]) -> None:
    listed = [{"mutant": asdict(mutant), "outcome": asdict(outcome)} for mutant, outcome in results.items()]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"tree": tree, "results": listed}, indent=1) + "\n")


def report(mutant: Mutant, outcome: Outcome) -> None:
    verdict = "NOT DETECTED" if outcome.status == 0 else "detected"
    before, after = (" ".join(text.split())[:60] for text in (mutant.before, mutant.after))
    where = f"{mutant.path}:{mutant.line} {mutant.operator}"
    print(f"{verdict:12} {outcome.seconds:6.1f} s  {where}: {before}  ->  {after}", flush=True)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure the share of seeded mutants that tests detect.")
    parser.add_argument("--packages", nargs="+", default=PACKAGES, choices=PACKAGES, help="Packages of src/regbayes.")
    parser.add_argument("--count", type=int, default=20, metavar="N", help="Mutants per package (default: 20).")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="Seed of the draw (default: 0).")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="Number of processes (default: 1).")
    parser.add_argument("--timeout", type=float, metavar="SECONDS", help="CPU time (default: 3 times the baseline's).")
    parser.add_argument("--json", type=Path, metavar="PATH", help="Write results here, and resume from what is there.")
    return parser.parse_args()


def main() -> None:
    options = parse_arguments()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))  # inherited by the test processes
    with tempfile.TemporaryDirectory(prefix="mutants-") as work, ThreadPoolExecutor(options.jobs) as executor:
        root = Path(work, "unchanged")  # a snapshot, because the checkout may be edited meanwhile
        copy_tree(ROOT, root, "__pycache__")
        tree = digest_tree(root)
        sites = {package: find_mutants(root, package) for package in options.packages}
        drawn = [
            mutant
            for package, found in sites.items()
            for mutant in random.Random(f"{options.seed} {package}").sample(found, min(options.count, len(found)))
        ]
        results = {mutant: outcome for mutant, outcome in load(options.json, tree).items() if mutant in drawn}
        missing = [mutant for mutant in drawn if mutant not in results]
        try:
            packages = sorted({mutant.package for mutant in missing})
            baselines = {}
            outcomes = executor.map(partial(try_baseline, root), packages)
            for package, outcome in zip(packages, outcomes, strict=True):
                baselines[package] = outcome
                print(f"baseline     {outcome.seconds:6.1f} s  tests/{package}: {outcome.summary}", flush=True)
            if any(outcome.status != 0 for outcome in baselines.values()):
                raise SystemExit("Tests fail without a mutation.")
            missing.sort(key=lambda mutant: -baselines[mutant.package].seconds)  # longest packages first
            futures = {}
            for mutant in missing:
                seconds = options.timeout or 3 * baselines[mutant.package].seconds
                futures[executor.submit(try_mutant, mutant, Path(work, mutant.package), seconds)] = mutant
            for future in as_completed(futures):
                results[futures[future]] = future.result()
                report(futures[future], future.result())
                if options.json:
                    save(options.json, tree, results)
        except BaseException:
            executor.shutdown(wait=False, cancel_futures=True)
            for group in tuple(RUNNING):
                stop(group)
            raise

    print(f"\n{'package':16}{'sites':>8}{'mutants':>9}{'detected':>10}{'share':>8}")
    for package in options.packages:
        detected = [outcome.status != 0 for mutant, outcome in results.items() if mutant.package == package]
        share = sum(detected) / len(detected)
        print(f"{package:16}{len(sites[package]):8}{len(detected):9}{sum(detected):10}{share:8.0%}")


if __name__ == "__main__":
    main()
