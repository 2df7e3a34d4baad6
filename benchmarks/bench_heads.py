"""Time both solvers of the classifier head, cold and warm-started, and print their duality gaps.

A ratio below 1 means that Newton's method is faster than coordinate ascent. Warm starts follow a change of the
features. The limits in `regbayes.margins.head.Head.prefers_ascent` are based on this table.

    python benchmarks/bench_heads.py [--smoke] [--sizes 500x20 5000x50 20000x50] [--jobs 1]
"""

from __future__ import annotations

import argparse
import time
from functools import partial

import numpy as np
from common import timed

from regbayes.engine.executor import make_executor, row_blocks
from regbayes.margins.head import Head, Tolerance
from regbayes.margins.targets import Cells, Classes, Signs, observe_classes, zero_one_cost

N_OUTPUTS = {"binary": 1, "one-vs-rest": 10, "Crammer-Singer": 10, "tasks": 5, "ragged tasks": 20}
TOLERANCES = {"rough": Tolerance(1e-2, 5.0), "fair": Tolerance(1e-3, 20.0), "tight": Tolerance(1e-6, 300.0)}


def make(kind: str, n: int, d: int) -> tuple[Head, np.ndarray]:
    """Return a head and sparse nonnegative features."""
    rng, n_outputs = np.random.default_rng(0), N_OUTPUTS[kind]
    features = rng.random((n, d)) * (rng.random((n, d)) < 0.4)
    scores = 3.0 * features @ rng.normal(size=(d, n_outputs)) + rng.gumbel(size=(n, n_outputs))
    if kind in ("one-vs-rest", "Crammer-Singer"):
        classes = Classes(scores.argmax(axis=1), zero_one_cost(n_outputs), np.ones(n))
        return Head(classes.one_vs_rest() if kind == "one-vs-rest" else classes, squared=True), features
    positive = scores > np.median(scores)
    if kind == "binary":
        return Head(Signs(np.where(positive, 1, -1), np.ones((n, 1))), squared=True), features
    seen = rng.random((n, n_outputs)) < 0.7
    if kind == "ragged tasks":
        seen = np.arange(n)[:, None] * n_outputs // n == np.arange(n_outputs)
    rows, tasks = np.nonzero(seen)
    observed, outputs = observe_classes(rows, tasks, positive[seen].astype(np.int64), np.full(n_outputs, 2))
    cells = Cells(observed, n, n_outputs, 1.0, None)
    return Head(cells, squared=True, centred=False, groups=outputs.groups, sharing=0.5), features


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--sizes", nargs="*", default=["500x20", "5000x50", "20000x50"])
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    executor, repetitions = make_executor(options.jobs), 1 if options.smoke else 4
    print("Newton / ascent: cold, warm; gaps of ascent and Newton, cold and warm")
    for size in ["200x5"] if options.smoke else options.sizes:
        n, d = map(int, size.split("x"))
        for kind in N_OUTPUTS:
            head, features = make(kind, n, d)
            moved = features + 0.02 * np.random.default_rng(1).normal(size=features.shape)
            cold, warm = ([at[rows] for rows in row_blocks(n)] for at in (features, moved))
            for name, goal in TOLERANCES.items():
                times, gaps = [], []
                for solve in (head.ascend, lambda *given, head=head: head.minimize(*given, executor)):
                    start = solve(cold, None, Tolerance(1e-3, 50.0)).warm_start
                    for blocks, known in ((cold, None), (warm, start)):
                        found, seconds = timed(partial(solve, blocks, known, goal), repetitions, time.perf_counter)
                        times.append(seconds)
                        gaps.append(found.gap / max(found.value, 1e-300))
                ratios = f"{times[2] / times[0]:6.2f} {times[3] / times[1]:6.2f}"
                print(f"{size:9} {kind:15} {name:6} {ratios}   " + " ".join(f"{gap:.0e}" for gap in gaps), flush=True)


if __name__ == "__main__":
    main()
