"""What a fit takes for each row and step as rows grow, and the large-margin step over blocks against one array.

    python benchmarks/bench_scale.py             # 10^4, 10^5 and 10^6 rows: some ten minutes
    python benchmarks/bench_scale.py --smoke

The curve is of fits with 30 inputs and 20 features. A row's time of a step is that of the descent's own clock, between
its first step and its last of ``--steps``: start and warm-up, which see as many rows however many there are, are in
the seconds of the whole fit alone. The goal was that it grows by a fifth at most from 10^4 rows to 10^6. Then the
large-margin step of MT-iLSVM at 10^5 rows and 20 tasks, cold and from the weights at features that lay elsewhere by a
hundredth, with its gap: rows in blocks against one array. Times are CPU seconds of all threads, so they can be compared
on a machine that does other things, and say nothing about how many threads had work; ``--jobs`` adds seconds on the
clock.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from regbayes import ILSVMClassifier, MultiTaskILSVMClassifier, MultiTaskILSVMRegressor
from regbayes.engine import loop

N_INPUTS, N_FEATURES, N_TASKS = 30, 20, 20


def draw(n: int, n_tasks: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Correlated inputs, and a score of every row for every task; tasks follow similar laws, whatever n."""
    world, rng = np.random.default_rng(12345), np.random.default_rng(seed)
    mixing, common = world.standard_normal((5, N_INPUTS)), world.standard_normal((N_INPUTS, 1))
    slopes = common + world.standard_normal((N_INPUTS, n_tasks))
    X = rng.standard_normal((n, 5)) @ mixing
    X += rng.standard_normal((n, N_INPUTS))
    return X, X @ slopes + 5.0 * rng.standard_normal((n, n_tasks))


def fits(n: int, steps: int, jobs: int) -> dict[str, Callable[[], Any]]:
    """Return fits to n rows, by name."""
    X, scores = draw(n, N_TASKS)
    task = np.arange(n) % N_TASKS
    own = scores[np.arange(n), task]
    given = {"n_components": N_FEATURES, "max_iter": steps, "tol": 0.0, "random_state": 0, "n_jobs": jobs}
    return {
        "iLSVM, 10 classes": lambda: ILSVMClassifier(**given).fit(X, scores[:, :10].argmax(axis=1)),
        "iLSVM, one-vs-rest": lambda: ILSVMClassifier(multi_class="ovr", **given).fit(X, scores[:, :10].argmax(axis=1)),
        "MT-iLSVM, labels": lambda: MultiTaskILSVMClassifier(**given).fit(X, (scores > 0).astype(int)),
        "MT-iLSVM, numbers": lambda: MultiTaskILSVMRegressor(**given).fit(X, scores),
        "MT-iLSVM, a label a row": lambda: MultiTaskILSVMClassifier(**given).fit(X, (own > 0).astype(int), task=task),
        "MT-iLSVM, a number a row": lambda: MultiTaskILSVMRegressor(**given).fit(X, own, task=task),
    }


def curve(sizes: list[int], steps: int, jobs: int, only: str) -> None:
    """Print the time of a row and step for every number of rows, and how it grows from the first to the last."""
    first: dict[str, float] = {}
    # What a trace calls elapsed are CPU seconds here.
    loop.time = SimpleNamespace(perf_counter=time.process_time)
    for n in sizes:
        for name, work in fits(n, steps, jobs).items():
            if not name.startswith(only):
                continue
            clock, start = time.perf_counter(), time.process_time()
            fitted = work()
            seconds, clock = time.process_time() - start, time.perf_counter() - clock
            elapsed, iterations = fitted.trace_.elapsed, fitted.trace_.iterations
            each = 1e6 * (elapsed[-1] - elapsed[0]) / (n * max(iterations[-1] - iterations[0], 1))
            grown = each / first.setdefault(name, each)
            on_clock = f", {clock:.1f} s on the clock" if jobs > 1 else ""
            print(
                f"{n:8d} rows, {name:25} {seconds:8.2f} s, {fitted.n_iter_:2d} steps, {each:6.2f} us a row and step, "
                f"{grown:5.2f} of the first{on_clock}",
                flush=True,
            )


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--rows", type=int, nargs="*", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--only", default="", help="how the names of the fits begin")
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # fits are cut short
    for work in fits(200, 1, 1).values():
        work()  # compile before anything is timed
    curve(
        [500, 5_000] if options.smoke else options.rows,
        2 if options.smoke else options.steps,
        options.jobs,
        options.only,
    )


if __name__ == "__main__":
    main()
