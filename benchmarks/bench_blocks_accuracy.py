"""What weights over blocks of rows cost in accuracy: whole fits of iLSVM, beside those by coordinate ascent.

    python benchmarks/bench_blocks_accuracy.py                        # ten halves of digits and scene15
    python benchmarks/bench_blocks_accuracy.py --jobs 16 --seed 40    # others, by sixteen processes
    python benchmarks/bench_blocks_accuracy.py --folds                # thirds of the training halves: to choose by
    python benchmarks/bench_blocks_accuracy.py --smoke

Both sets are small enough for coordinate ascent over one array; blocks are made to take them. Pairs have the same rows
and the same seed. A row of the table says the mean accuracy of both, the difference in points with its standard error,
and the CPU seconds of the fits. Settings are chosen with ``--folds``, which leaves the test halves unseen.
"""

from __future__ import annotations

import argparse
import time
import warnings
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from itertools import product

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler

from regbayes import ILSVMClassifier
from regbayes.margins import head
from regbayes_paper.data import DataError, load_scene15

FEATURES = 20
SETS = {"digits": load_digits, "scene15": load_scene15}
MARGINS = {"multi-class": "crammer_singer", "one-vs-rest": "ovr"}
Pair = tuple[tuple[float, float], tuple[float, float]]


@cache
def load(name: str) -> tuple[np.ndarray, np.ndarray]:
    X, y = SETS[name](return_X_y=True)
    return np.asarray(X, np.float64), np.asarray(y)


def split(name: str, seed: int, folds: bool, most: int | None) -> list[np.ndarray]:
    """Return rows to learn from and rows to judge by, standardised, and their classes; a half, or parts of one."""
    X, y = load(name)
    rows = np.random.default_rng(seed).permutation(len(y))[:most]
    learned, judged = train_test_split(rows, test_size=0.5, stratify=y[rows], random_state=seed)
    if folds:
        learned, judged = train_test_split(learned, test_size=1 / 3, stratify=y[learned], random_state=seed)
    scale = StandardScaler().fit(X[learned])
    return [scale.transform(X[learned]), scale.transform(X[judged]), y[learned], y[judged]]


def compare(task: tuple[str, str, int, bool, int | None, int]) -> Pair:
    """Return accuracy and CPU seconds of a fit by coordinate ascent, and of one over blocks."""
    name, margins, seed, folds, most, steps = task
    X, fresh, y, truth = split(name, seed, folds, most)
    found = []
    for few in (len(y) + 1, 1):  # rows that are too few for blocks
        head.MIN_BLOCK_ROWS, default = few, head.MIN_BLOCK_ROWS
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # all features are in use, and steps are cut short by --smoke
                began = time.process_time()
                model = ILSVMClassifier(FEATURES, multi_class=MARGINS[margins], max_iter=steps, random_state=seed)
                model.fit(X, y)
                found.append((float(model.score(fresh, truth)), time.process_time() - began))
        finally:
            head.MIN_BLOCK_ROWS = default
    return found[0], found[1]


def describe(pairs: list[Pair]) -> str:
    """Return a row of the table."""
    (ascent, its_time), (blocks, their_time) = np.moveaxis(np.array(pairs), 0, -1)
    points = 100.0 * (blocks - ascent)
    error = points.std(ddof=1) / np.sqrt(len(points))
    return (
        f"{ascent.mean():8.4f} {blocks.mean():8.4f} {points.mean():+8.3f} ± {error:.3f}"
        f" {its_time.mean():9.2f} {their_time.mean():7.2f}"
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--smoke", action="store_true", help="two halves of 300 digits, three steps")
    parser.add_argument("--folds", action="store_true", help="learn from two thirds of a half, judge by the rest")
    parser.add_argument("--halves", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0, help="of the first half")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    given = parser.parse_args()
    names = ["digits"] if given.smoke else list(SETS)
    try:
        for name in names:
            load(name)  # before processes are started
    except DataError as error:
        raise SystemExit(str(error)) from error
    seeds = range(given.seed, given.seed + (2 if given.smoke else given.halves))
    most, steps = (300, 3) if given.smoke else (None, 200)
    cases = list(product(names, MARGINS))
    tasks = [(*case, seed, given.folds, most, steps) for case in cases for seed in seeds]
    tasks.sort(key=lambda task: task[:2] == ("scene15", "multi-class"), reverse=True)  # the longest first
    print(f"{'':24} {'ascent':>8} {'blocks':>8} {'points':>16} {'seconds':>9} {'blocks':>7}", flush=True)
    with ProcessPoolExecutor(given.jobs) as pool:
        answers = dict(zip(tasks, pool.map(compare, tasks), strict=True))
    for case in cases:
        print(f"{', '.join(case):24} {describe([answers[task] for task in tasks if task[:2] == case])}", flush=True)


if __name__ == "__main__":
    main()
