"""Speedup of computations over blocks of samples with one thread, four, and all.

    python benchmarks/bench_threads.py                # 10^5 rows, 20 classes; a minute or two
    python benchmarks/bench_threads.py --smoke        # small, for continuous integration
    python benchmarks/bench_threads.py --threads 1 2  # other numbers of threads

Times are elapsed seconds, the best of several alternating calls, so the machine should be idle. The computations are
the SVM subproblem of one-vs-rest classes, single passes of MT-iLSVM's head (gradients and curvature), its whole solve,
and MedLDA's mean-field inference with its reverse pass.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from operator import methodcaller
from typing import Any

import numpy as np
from scipy.special import expit
from threadpoolctl import threadpool_limits

from regbayes.engine import make_executor, row_blocks
from regbayes.kernels.meanfield import WordCounts
from regbayes.margins.head import Head, Tolerance
from regbayes.margins.targets import Cells, Classes, observe_classes, zero_one_cost
from regbayes.models.medlda.meanfield import LabelFreeTopics, make_topics, select_documents

Work = Callable[[Any], object]  # function of an executor


def best_seconds(calls: Sequence[Callable[[], object]], repetitions: int) -> list[float]:
    """Return the shortest time of each of several alternating calls."""
    seconds = np.full((repetitions, len(calls)), np.inf)
    for turn in seconds:
        for column, call in enumerate(calls):
            start = time.perf_counter()
            call()
            turn[column] = time.perf_counter() - start
    return list(seconds.min(axis=0))


def compare(name: str, work: Work, threads: Sequence[int], repetitions: int) -> list[float]:
    """Print a row with the seconds for each number of threads and the speedup of the last."""
    work(make_executor(threads[-1]))  # compiles, and fills caches
    found = best_seconds([partial(work, make_executor(n)) for n in threads], repetitions)
    print(f"{name:42}" + "".join(f"{one:9.3f}" for one in found) + f"{found[0] / found[-1]:8.1f} x", flush=True)
    return found


def latent_features(n: int, k: int, n_classes: int, spread: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return features in [0, 1] whose distribution depends on the class, and the classes."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(n_classes, k))
    labels = rng.integers(n_classes, size=n)
    return expit(centres[labels] + spread * rng.normal(size=(n, k))), labels


def margin_step(n: int, k: int, n_classes: int, threads: Sequence[int], repetitions: int) -> None:
    """Time one-vs-rest classes, by Newton's method."""
    H, labels = latent_features(n, k, n_classes, 3.0)
    head = Head(Classes(labels, zero_one_cost(n_classes), np.full(n, 0.1)).one_vs_rest(), squared=True)
    blocks, goal = [H[rows] for rows in row_blocks(n)], Tolerance(1e-4, 1000.0)
    compare("margin step", lambda executor: head.minimize(blocks, None, goal, executor), threads, repetitions)


def task_margins(n: int, k: int, n_tasks: int, threads: Sequence[int], repetitions: int) -> None:
    """Time labels of several tasks with 30% missing: gradients, curvature and the whole solve."""
    rng = np.random.default_rng(0)
    H = rng.standard_normal((n, k))
    scores = H @ rng.standard_normal((k, n_tasks)) + 3.0 * rng.standard_normal((n, n_tasks))
    rows, tasks = np.nonzero(rng.random((n, n_tasks)) < 0.7)
    labels = (scores[rows, tasks] > 0).astype(np.int64)
    observed, outputs = observe_classes(rows, tasks, labels, np.full(n_tasks, 2))
    cells = Cells(observed, n, n_tasks, 0.01, None)
    head = Head(cells, squared=True, centred=False, groups=outputs.groups, sharing=1.0)
    places, goal = row_blocks(n, wide=True), Tolerance(1e-4, 1000.0)
    blocks = [H[place] for place in places]
    solved = head.minimize(blocks, None, goal, make_executor(threads[-1]))
    weights, pairs = solved.slope.weights, list(zip(places, blocks, strict=True))
    parts = head.blocks(tuple(map(len, blocks)))
    seen = [part.see(block, solved.slope.view) for part, block in zip(parts, blocks, strict=True)]
    works = {
        "gradient by the weights": lambda e: e.map_reduce(methodcaller("sums", weights), seen),
        "gradient by the features": lambda e: e.map(lambda pair: solved.gradient(*pair), pairs),
        "curvature of all rows": lambda e: e.map_reduce(methodcaller("curvature", weights), seen),
        "whole solve": lambda e: head.minimize(blocks, None, goal, e),
    }
    for name, work in works.items():
        compare(f"tasks: {name}", work, threads, repetitions)


def reverse_sweep(n: int, n_words: int, k: int, threads: Sequence[int], repetitions: int) -> None:
    """Time inference and its reverse pass on documents of about a hundred words."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(50, 150, size=n)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    words = rng.zipf(1.3, size=starts[-1]) % n_words
    counts = WordCounts(words.astype(np.int32), np.ones(starts[-1], dtype=np.float32), starts.astype(np.int64))
    documents, _ = select_documents(counts, None, None)
    model = LabelFreeTopics(np.full(k, 0.1), 0.01, 5)
    topics = make_topics(rng.standard_normal((n_words, k)).astype(np.float32))
    blocks = [documents.rows(rows) for rows in documents.cut(n_words)]
    inferred = [model.infer(block, topics) for block in blocks]
    gradients = [rng.standard_normal(one.features.shape) for one in inferred]
    numbered = list(range(len(blocks)))

    def infer(executor: Any) -> object:
        return executor.map(lambda block: model.infer(block, topics).stats, blocks)

    def reverse(executor: Any) -> object:
        return executor.map_reduce(lambda i: model.pull_back(blocks[i], topics, inferred[i], gradients[i]), numbered)

    print(f"    {n} documents, {starts[-1]} words, vocabulary {n_words}, {k} topics: {len(blocks)} blocks")
    compare("MedLDA: inference", infer, threads, repetitions)
    compare("MedLDA: reverse sweep", reverse, threads, repetitions)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="small problems that take seconds")
    parser.add_argument("--threads", type=int, nargs="+", default=None)
    options = parser.parse_args()
    n_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads = options.threads or sorted({1, min(4, n_cores), n_cores})
    smoke, repetitions = options.smoke, 1 if options.smoke else 3
    n = 4_000 if smoke else 100_000
    print(f"{n_cores} cores; {n} rows")
    print(f"{'threads':42}" + "".join(f"{one:9d}" for one in threads) + "   last against first")
    with threadpool_limits(1):
        reverse_sweep(n // 2, 2_000 if smoke else 20_000, 40, threads, repetitions)
        task_margins(n, 50, 20, threads, repetitions)
        margin_step(n, 50, 20, threads, repetitions)


if __name__ == "__main__":
    main()
