"""Compare mini-batch fits of iLSVM with full fits: test accuracy, seconds and memory.

    python benchmarks/bench_partial_fit.py              # 100,000 rows, five seeds; then memory at two sizes
    python benchmarks/bench_partial_fit.py --smoke

A run fits the first 2,000 samples, makes two passes over all samples in random batches of 500, and solves for the
weights with `fit_weights`. Accuracy is on 10,000 new samples; "points" is the loss against the full fit. Memory is
the peak of NumPy's allocations without the samples, which are in a file (`numpy.memmap`).
"""

from __future__ import annotations

import argparse
import tempfile
import time
import tracemalloc
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from common import draw_classes as draw

from regbayes import ILSVMClassifier


def learn_in_batches(
    model: Any, X: Any, y: np.ndarray, first: int, batch: int, passes: int, seed: int
) -> Iterator[str]:
    """Learn from batches; yield the model after the first batch, each pass and the final weights."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(y))
    model.partial_fit(X[order[:first]], y[order[:first]], classes=np.unique(y))
    yield "first batch"
    for number in range(passes):
        for begin in range(0, len(y), batch):
            rows = np.sort(order[begin : begin + batch])
            model.partial_fit(X[rows], y[rows])
        order = rng.permutation(len(y))
        yield f"pass {number + 1}"
    model.fit_weights(X, y)
    yield "weights"


def compare(n: int, D: int, K: int, classes: int, seeds: int, first: int, batch: int, multi_class: str) -> None:
    """Print accuracies of the full fit and of the mini-batch fit at each stage."""
    lost = []
    for seed in range(seeds):
        X, y = draw(n, D, K, classes, seed=seed)
        fresh, truth = draw(10_000, D, K, classes, seed=1000 + seed)
        start = time.perf_counter()
        full = ILSVMClassifier(K, multi_class=multi_class, random_state=seed).fit(X, y)
        seconds = time.perf_counter() - start
        best = full.score(fresh, truth)
        model = ILSVMClassifier(K, multi_class=multi_class, random_state=seed)
        start, stages = time.perf_counter(), learn_in_batches(model, X, y, first, batch, 2, seed)
        course = [f"{stage} {model.score(fresh, truth):.4f}" for stage in stages]
        ratio = (time.perf_counter() - start) / seconds
        lost.append(100 * (best - model.score(fresh, truth)))
        print(f"seed {seed}: full {best:.4f}; {', '.join(course)}; time / full fit {ratio:.2f}", flush=True)
    print(f"{multi_class}, {n} rows: batches lose {np.mean(lost):.2f} points on average, {max(lost):.2f} at most")


def measure_memory(sizes: list[int], D: int, K: int, classes: int) -> None:
    """Print the peak memory of two passes and of the final weights, for samples in a file."""
    with tempfile.TemporaryDirectory() as folder:
        for n in sizes:
            path = Path(folder) / f"{n}.npy"
            X, y = draw(n, D, K, classes)
            np.save(path, X)
            del X
            rows = np.load(path, mmap_mode="r")
            model = ILSVMClassifier(K, random_state=0, max_iter=3)
            tracemalloc.start()
            for _ in learn_in_batches(model, rows, y, 2000, 500, 1, 0):
                pass
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            print(f"{n:9d} rows in a file of {rows.nbytes / 2**20:.0f} MB: peak {peak / 2**20:.0f} MB", flush=True)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--inputs", type=int, default=100)
    parser.add_argument("--components", type=int, default=30)
    parser.add_argument("--multi-class", nargs="*", default=["crammer_singer", "ovr"])
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    ILSVMClassifier(3, max_iter=2).fit(*draw(300, 10, 3, 3))  # compile before timing
    if arguments.smoke:
        compare(3000, 30, 8, 3, 1, 500, 200, "ovr")
        measure_memory([3000, 6000], 30, 8, 3)
        return
    for multi_class in arguments.multi_class:
        compare(arguments.rows, arguments.inputs, arguments.components, 10, arguments.seeds, 2000, 500, multi_class)
    measure_memory([25_000, 100_000], 200, 20, 5)


if __name__ == "__main__":
    main()
