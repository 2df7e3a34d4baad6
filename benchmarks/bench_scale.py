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
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from regbayes import ILSVMClassifier, MultiTaskILSVMClassifier, MultiTaskILSVMRegressor
from regbayes.engine import loop, make_executor, row_blocks
from regbayes.margins.head import Tolerance
from regbayes.margins.targets import observe_classes, observe_numbers
from regbayes.margins.tasks import TaskHead

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


def margin_step(n: int, jobs: int) -> None:
    """Print the large-margin step over blocks against one array."""
    rng = np.random.default_rng(1)
    X, scores = draw(n, N_TASKS)
    features = X @ (rng.random((N_INPUTS, N_FEATURES)) < 0.3) / np.sqrt(N_INPUTS * np.mean(np.square(X)))
    rows, tasks = (index.ravel() for index in np.indices(scores.shape))
    two, scaled = np.full(N_TASKS, 2), scores.ravel() / scores.std()
    problems = {
        "labels": ("squared_hinge", observe_classes(rows, tasks, (scaled > 0).astype(np.int64), two)),
        "numbers": ("squared_epsilon_insensitive", observe_numbers(rows, tasks, scaled, N_TASKS)),
    }
    places, tolerance, executor = row_blocks(n, wide=True), Tolerance(1e-3, 1000.0), make_executor(jobs)
    moved = features + 0.01 * rng.standard_normal(features.shape)
    for name, (loss, observed) in problems.items():
        for sharing in (0.0, 1.0):
            head = TaskHead(*observed, loss, 0.01, epsilon=0.1, sharing=sharing)
            times: dict[bool, list[float]] = {}
            for in_blocks in (False, True):
                solver, found, times[in_blocks] = replace(head, in_blocks=in_blocks), None, []
                for at in (features, moved):
                    start = time.process_time()
                    found = solver.solve(
                        [at[place] for place in places], found and found.warm_start, tolerance, executor
                    )
                    times[in_blocks].append(time.process_time() - start)
                kind = "blocks" if in_blocks else "array"
                print(f"{name:8} rho = {sharing:g}: {kind:6} gap {found.gap / found.value:.1e}")
            cold, warm = (one / blocks for one, blocks in zip(times[False], times[True], strict=True))
            print(f"{name:8} rho = {sharing:g}: one array / blocks {cold:.1f} cold, {warm:.1f} warm", flush=True)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--rows", type=int, nargs="*", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--only", default="", help="how the names of the fits begin")
    parser.add_argument("--curve", action="store_true", help="the first table alone")
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
    if not options.curve:
        margin_step(5_000 if options.smoke else 100_000, options.jobs)


if __name__ == "__main__":
    main()
