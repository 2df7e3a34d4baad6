"""How far a reader walks: files and functions of the package that one call passes through, and the depth of its calls.

    python benchmarks/bench_walk.py            # the table
    python benchmarks/bench_walk.py --list     # and, for each call, its files and its deepest stack: where to cut
    python benchmarks/bench_walk.py --check    # and exit status 1 where a number is above its target

Digits, the first 120 rows, 6 features or topics, max_iter=3, one thread. Every call is made once before it is counted,
so that nothing is compiled or imported on the way.
  files      of the package, in which some function ran
  functions  distinct by file and qualified name: lambdas, properties, comprehensions that have a frame (from
             Python 3.12 on only generators do) and compiled functions that Python calls; not what a dataclass generates
  depth      frames of the package on the deepest stack
  frames     all frames on the deepest stack, scikit-learn's and NumPy's among them
Behind each number is its target, where there is one.
"""

from __future__ import annotations

import argparse
import sys
import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import numpy as np
from sklearn.datasets import load_digits

import regbayes
from regbayes import ILSVMClassifier, MedLDAClassifier, MultiTaskILSVMRegressor

ROOT = Path(regbayes.__file__).parent
COLUMNS = ("files", "functions", "depth", "frames")
TARGETS: dict[str, dict[str, int]] = {
    "ILSVMClassifier.fit": {"files": 15, "functions": 100, "depth": 12},
    "ILSVMClassifier.predict": {"files": 8, "depth": 8},
    "MedLDAClassifier.fit": {"files": 14},
    "MultiTaskILSVMRegressor.fit": {"files": 14},
}
Function = tuple[str, str]  # file below the package, qualified name


@dataclass(frozen=True)
class Walk:
    """Where a call came through."""

    functions: set[Function]
    stack: list[Function]  # the deepest, outermost first, frames of the package alone
    frames: int

    @property
    def files(self) -> list[str]:
        return sorted({file for file, _ in self.functions})

    def counts(self) -> dict[str, int]:
        numbers = (len(self.files), len(self.functions), len(self.stack), self.frames)
        return dict(zip(COLUMNS, numbers, strict=True))


def own(code: CodeType) -> bool:
    """Whether code is the package's: written in it, not generated or of a library."""
    return code.co_filename.startswith(str(ROOT))


def name_of(code: CodeType) -> Function:
    return str(Path(code.co_filename).relative_to(ROOT)), code.co_qualname


def walk(call: Callable[..., Any], *arguments: Any) -> Walk:
    """Make a call twice, and watch it the second time, in every thread that it starts."""
    call(*arguments)
    seen, of_thread = set(), threading.local()
    deepest: list[CodeType] = []
    frames = 0

    def watch(frame: FrameType, event: str, _: Any) -> None:
        nonlocal deepest, frames
        code = frame.f_code
        # A stack of our own: Numba reports its functions too, but their frames do not know who called them.
        stack = of_thread.__dict__.setdefault("stack", [])
        if event == "call":
            stack.append(code)
            frames = max(frames, len(stack))
            if own(code):
                seen.add(code)
                ours = [code for code in stack if own(code)]
                deepest = ours if len(ours) > len(deepest) else deepest
        elif event == "return" and stack:
            stack.pop()

    threading.setprofile(watch)
    sys.setprofile(watch)
    try:
        call(*arguments)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return Walk({name_of(code) for code in seen}, [name_of(code) for code in deepest], frames)


def take_walks() -> dict[str, Walk]:
    """Walk through every call of the table."""
    X, y = load_digits(return_X_y=True)
    X, y = X[:120], y[:120]
    settings = {"n_components": 6, "max_iter": 3, "random_state": 0, "n_jobs": 1}
    ilsvm, medlda = ILSVMClassifier(**settings), MedLDAClassifier(**settings)
    tasks = MultiTaskILSVMRegressor(**settings)
    return {
        "ILSVMClassifier.fit": walk(ilsvm.fit, X, y),
        "ILSVMClassifier.predict": walk(ilsvm.predict, X),
        "MedLDAClassifier.fit": walk(medlda.fit, X, y),
        "MultiTaskILSVMRegressor.fit": walk(tasks.fit, X, y.astype(np.float64)),
    }


def show(walks: dict[str, Walk], listed: bool) -> bool:
    """Print the table and say whether every target is met."""
    print(f"{'call':30}" + "".join(f"{column:>14}" for column in COLUMNS))
    met = True
    for name, found in walks.items():
        row = f"{name:30}"
        for column, number in found.counts().items():
            target = TARGETS[name].get(column)
            met &= target is None or number <= target
            row += f"{number if target is None else f'{number} (<= {target})':>14}"
        print(row)
    for name, found in walks.items() if listed else ():
        print(f"\n{name}: functions by file")
        for file in found.files:
            names = sorted(function for where, function in found.functions if where == file)
            print(f"  {file:38} {len(names):3d}  {', '.join(names)}")
        print(f"{name}: the deepest stack")
        for depth, (file, function) in enumerate(found.stack, start=1):
            print(f"  {depth:3d}  {file:38} {function}")
    return met


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--smoke", action="store_true", help="no different: the calls are small")
    parser.add_argument("--list", action="store_true", help="print files, functions and the deepest stack of each call")
    parser.add_argument("--check", action="store_true", help="exit status 1 where a target is missed")
    arguments = parser.parse_args()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that max_iter was reached
        walks = take_walks()
    met = show(walks, arguments.list)
    if arguments.check and not met:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
