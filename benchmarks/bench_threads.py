"""How far threads carry the work that goes over blocks of rows: the same calls with one thread, four, and all.

    python benchmarks/bench_threads.py                # 10^5 rows, 20 classes; a minute or two
    python benchmarks/bench_threads.py --smoke        # small, for continuous integration
    python benchmarks/bench_threads.py --threads 1 2  # other numbers of threads

Seconds on the clock, so the machine should have nothing else to do; the best of a few calls, by turns. First the
large-margin step of one-vs-rest classes, beside coordinate ascent over one array (the solver that there was before rows
came in blocks, to the same tolerance) and beside what such arrays are solved by today; blocks are asked for a gap that
is no worse than either's. Then single passes: gradient and curvature of MT-iLSVM's margins,
and MedLDA's inference with its reverse sweep.
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
from bench_large_margin import latent_features
from threadpoolctl import threadpool_limits

from regbayes.engine import make_executor, row_blocks
from regbayes.kernels.meanfield import WordCounts
from regbayes.margins.cells import runs_of, sampled_cells
from regbayes.margins.coordinate_ascent import BoxAscent, ascend
from regbayes.margins.head import SAMPLE_PER_WEIGHT, MarginHead, Tolerance, design
from regbayes.margins.targets import Classes, layout_of, observe_classes, zero_one_cost
from regbayes.margins.tasks import TaskHead
from regbayes.models.medlda.meanfield import LabelFreeTopics, make_topics, select_documents

Work = Callable[[Any], object]  # of an executor


def best_seconds(calls: Sequence[Callable[[], object]], repetitions: int) -> list[float]:
    """Return the shortest time of each call, made by turns."""
    seconds = np.full((repetitions, len(calls)), np.inf)
    for turn in seconds:
        for column, call in enumerate(calls):
            start = time.perf_counter()
            call()
            turn[column] = time.perf_counter() - start
    return list(seconds.min(axis=0))


def compare(name: str, work: Work, threads: Sequence[int], repetitions: int) -> list[float]:
    """Print a row: seconds with each number of threads, and how many times as fast the last is."""
    work(make_executor(threads[-1]))  # compiles, and settles what is kept
    found = best_seconds([partial(work, make_executor(n)) for n in threads], repetitions)
    print(f"{name:42}" + "".join(f"{one:9.3f}" for one in found) + f"{found[0] / found[-1]:8.1f} x", flush=True)
    return found


def margin_step(n: int, k: int, n_classes: int, threads: Sequence[int], repetitions: int) -> None:
    """One-vs-rest classes: blocks, at no worse gap than coordinate ascent over one array."""
    H, labels = latent_features(n, k, n_classes, 3.0)
    targets = Classes(labels, zero_one_cost(n_classes), np.full(n, 0.1)).one_vs_rest()
    blocks = [H[rows] for rows in row_blocks(n)]
    array, head = (MarginHead(targets, squared=True, in_blocks=kind) for kind in (False, True))
    goal = Tolerance(1e-4, 1000.0)
    few = slice(0, 2000)  # compiles
    small = Classes(labels[few], zero_one_cost(n_classes), np.full(2000, 0.1)).one_vs_rest()
    MarginHead(small, squared=True, in_blocks=False).solve(H[few], None, goal)
    start = time.perf_counter()
    by_array = array.solve(H, None, goal)
    seconds_array, start = time.perf_counter() - start, time.perf_counter()
    columns = design(H, H.mean(axis=0), None, True)
    climbed = ascend(BoxAscent(columns, array.form, layout_of(n, n_classes)), goal.gap, goal.max_epochs, seed=0)
    seconds_ascent = time.perf_counter() - start
    gaps = {"array": by_array.gap / by_array.value, "ascent": climbed.gap / climbed.primal}
    seconds = {"array": seconds_array, "ascent": seconds_ascent}
    print(f"one array as today {seconds_array:.2f} s, gap {gaps['array']:.1e}; coordinate ascent alone ", end="")
    print(f"{seconds_ascent:.2f} s, gap {gaps['ascent']:.1e}, {climbed.n_epochs:.0f} epochs", flush=True)
    for name, gap in gaps.items():
        asked = Tolerance(max(gap, 1e-12), 1000.0)
        solve = partial(lambda executor, tolerance: head.solve(blocks, None, tolerance, executor), tolerance=asked)
        found = compare(f"margin step, blocks to the gap of {name}", solve, threads, repetitions)
        solved = head.solve(blocks, None, asked, make_executor(threads[-1]))
        print(
            f"    gap {solved.gap / solved.value:.1e}, {solved.n_passes} passes; {name} / blocks: "
            + ", ".join(f"{seconds[name] / one:.1f}" for one in found),
            flush=True,
        )


def task_margins(n: int, k: int, n_tasks: int, threads: Sequence[int], repetitions: int) -> None:
    """Labels of several tasks, 30 % missing: gradient by weights and by features, curvature, and the whole solve."""
    rng = np.random.default_rng(0)
    H = rng.standard_normal((n, k))
    scores = H @ rng.standard_normal((k, n_tasks)) + 3.0 * rng.standard_normal((n, n_tasks))
    rows, tasks = np.nonzero(rng.random((n, n_tasks)) < 0.7)
    observed = observe_classes(rows, tasks, (scores[rows, tasks] > 0).astype(np.int64), np.full(n_tasks, 2))
    head = TaskHead(*observed, "squared_hinge", 0.01, sharing=1.0, in_blocks=True)
    places = row_blocks(n, wide=True)
    blocks = [H[place] for place in places]
    goal = Tolerance(1e-4, 1000.0)
    solved = head.solve(blocks, None, goal, make_executor(threads[-1]))
    weights = solved.weights.weights
    parts = head.parts(tuple(map(len, blocks)), make_executor(1))
    seen = runs_of([part.targets.bind(part.columns(block)) for part, block in zip(parts, blocks, strict=True)])
    pairs = list(zip(places, blocks, strict=True))

    def pull(executor: Any) -> object:
        return executor.map(lambda pair: solved.gradient(*pair), pairs)

    compare(
        "tasks: gradient by the weights",
        lambda e: e.map_reduce(methodcaller("sums", weights), seen),
        threads,
        repetitions,
    )
    compare("tasks: gradient by the features", pull, threads, repetitions)
    compare(
        "tasks: curvature of all rows", lambda e: e.map_reduce(methodcaller("curvature", weights), seen), threads, 1
    )
    draw = head._draw(SAMPLE_PER_WEIGHT * (k + 1))
    if draw is not None:
        drawn = sampled_cells(design(H[draw.rows], None, None, True), draw.form, draw.places)
        compare(
            "tasks: curvature of a sample",
            lambda e: e.map_reduce(methodcaller("curvature", weights), drawn),
            threads,
            repetitions,
        )
    compare("tasks: solved from nothing", lambda e: head.solve(blocks, None, goal, e), threads, repetitions)


def reverse_sweep(n: int, n_words: int, k: int, threads: Sequence[int], repetitions: int) -> None:
    """Documents of about a hundred words: inference, and its reverse."""
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
