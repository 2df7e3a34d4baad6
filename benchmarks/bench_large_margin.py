"""Time the large-margin step against liblinear, and the feature sweeps against the matrix product they follow.

Both solvers: dual coordinate ascent with all rows at hand, and Newton's method over blocks of rows.

    python benchmarks/bench_large_margin.py            # 20,000 rows, 200 inputs, 50 features, 10 classes
    python benchmarks/bench_large_margin.py --smoke    # small, for continuous integration

Every ratio is of two times measured in this run, each the best of a few repetitions, taken in turn.

Margins: liblinear gets the loosest of its tolerances that brings its primal objective within the stated fraction of the
optimum; we stop when the *duality gap* is that small, which is never the easier target. Cold starts from nothing. Warm
starts from the multipliers of features that differed by noise of the stated standard deviation, as after a step of a
model that learns its features. Features lie in [0, 1] and are not centred.

Newton: rows in blocks, one and two threads, beside coordinate ascent at the same tolerance; the duality gap that each
ends with stands beside its time. That of several classes is smoothed, as models smooth it, and the gap includes what
this adds. Head: the step of a fit of 100,000 rows, whose
curvature comes from a sample of them (``--head`` prints it alone).
"""

from __future__ import annotations

import argparse
import os
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from scipy.special import expit
from sklearn.exceptions import ConvergenceWarning
from sklearn.svm import LinearSVC
from threadpoolctl import threadpool_limits

from regbayes.engine import Threads, make_executor, row_blocks
from regbayes.kernels.binary import reverse_features, sweep_features
from regbayes.margins.coordinate_ascent import BoxAscent, MarginSolution, SimplexAscent, TaskLayout, ascend
from regbayes.margins.head import MarginHead, Tolerance, solve_tasks
from regbayes.margins.newton import BoxBlock, NewtonSolution, SharedPrior, SimplexBlock, solve_boxes, solve_smoothed
from regbayes.margins.targets import Classes, Signs, layout_of, zero_one_cost
from regbayes.regularization.dual_forms import BoxDual, SimplexDual

TOLERANCES = [30.0, 10.0, 3.0, 1.0, 0.3, 0.1, 0.03, 0.01, 3e-3, 1e-3, 3e-4, 1e-4]
NOISE = 0.01


def best_times(functions: Sequence[Callable[[], object]], repetitions: int) -> list[float]:
    """Return the shortest time of each function, called in turn; the first round is not counted."""
    times = np.full((repetitions + 1, len(functions)), np.inf)
    for round_number in range(repetitions + 1):
        for column, function in enumerate(functions):
            start = time.perf_counter()
            function()
            times[round_number, column] = time.perf_counter() - start
    return list(times[1:].min(axis=0))


def latent_features(n: int, k: int, n_classes: int, spread: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return features in [0, 1] whose distribution depends on the class, and the classes."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(n_classes, k))
    labels = rng.integers(n_classes, size=n)
    return expit(centres[labels] + spread * rng.normal(size=(n, k))), labels


def bench_sweeps(n: int, d: int, k: int, repetitions: int) -> None:
    """Compare the product X Phi' with the product followed by a sweep, and with the reverse sweep."""
    rng = np.random.default_rng(0)
    X, Phi = rng.normal(size=(n, d)), rng.normal(size=(k, d)) / np.sqrt(d)
    coupling, start = Phi @ Phi.T, np.full((1, k), 0.5)
    theta, psi, grad, grad_theta = (np.empty((n, k)) for _ in range(4))
    grad[:] = rng.normal(size=(n, k))
    print(f"\nFeature sweeps: n = {n}, inputs = {d}, features = {k}")
    print("threads  sweeps   product ms   product + sweep   + reverse")
    for threads in sorted({1, os.cpu_count() or 1}):
        for n_sweeps in (1, 2, 4):

            def product() -> None:
                np.matmul(X, Phi.T, out=theta)

            def forward(threads: int = threads, n_sweeps: int = n_sweeps) -> None:
                product()

                def sweep(rows: slice) -> None:
                    sweep_features(theta[rows], coupling, start, n_sweeps, psi[rows])

                make_executor(threads).map(sweep, row_blocks(n))

            def both(threads: int = threads, n_sweeps: int = n_sweeps) -> None:
                forward(threads, n_sweeps)

                def reverse(rows: slice) -> None:
                    reverse_features(grad[rows], psi[rows], theta[rows], coupling, start, n_sweeps, grad_theta[rows])

                make_executor(threads).map(reverse, row_blocks(n))

            with threadpool_limits(threads):
                base, swept, reversed_too = best_times([product, forward, both], repetitions)
            print(f"{threads:7d} {n_sweeps:7d} {1e3 * base:12.2f} {swept / base:16.2f}x {reversed_too / base:10.2f}x")


def loosest(fit: Callable[[float], float], optimum: float, fraction: float) -> float | None:
    """Return the first tolerance whose primal objective is within ``fraction`` of the optimum."""
    for tolerance in TOLERANCES:
        if fit(tolerance) - optimum <= fraction * optimum:
            return tolerance
    return None


def report(
    names: tuple[str, float, float], times: Sequence[float], epochs: tuple[float, float], tolerance: float
) -> None:
    """Print one line of the comparison with liblinear."""
    problem, C, fraction = names
    theirs, cold, warm = times
    print(
        f"{problem:24s} {C:6g} {fraction:8.0e} {tolerance:10g} {theirs:9.3f} {cold:9.3f} {warm:9.3f}"
        f" {theirs / cold:9.1f}x {theirs / warm:8.1f}x   {epochs[0]:.1f} / {epochs[1]:.1f}"
    )


def class_form(labels: np.ndarray, n_classes: int, C: float, squared: bool) -> SimplexDual:
    """Return what a solver sees of the multi-class hinge or its square."""
    return Classes(labels, zero_one_cost(n_classes), np.full(labels.size, C)).dual_form(squared)


def sign_form(signs: np.ndarray, C: float, squared: bool) -> BoxDual:
    """Return what a solver sees of the hinge or its square, cells row by row."""
    return Signs(signs, np.full(signs.shape, C)).dual_form(squared)


def ascend_classes(
    H: np.ndarray, form: SimplexDual, labels: np.ndarray, tol: float, warm_start: np.ndarray | None = None
) -> MarginSolution:
    """Solve as `MarginHead` does over one array."""
    problem = SimplexAscent(H, form, labels, warm_start)
    return problem.solution(ascend(problem, tol, 1000.0, seed=0))


def bench_multi_class(n: int, k: int, n_classes: int, spread: float, fractions: Sequence[float], reps: int) -> None:
    """Crammer-Singer against liblinear's."""
    H, labels = latent_features(n, k, n_classes, spread)
    moved = H + NOISE * np.random.default_rng(1).normal(size=H.shape)
    rows = np.arange(n)
    for C in (0.01, 0.1, 1.0):
        form = class_form(labels, n_classes, C, squared=False)
        best = ascend_classes(H, form, labels, 0.03 * min(fractions))
        optimum = best.primal - best.gap

        def fit(tolerance: float, C: float = C) -> float:
            model = LinearSVC(
                C=C, multi_class="crammer_singer", fit_intercept=False, tol=tolerance, max_iter=100_000, random_state=0
            )
            weights = model.fit(H, labels).coef_
            scores = H @ weights.T
            slack = np.max(scores + 1.0 - np.eye(n_classes)[labels], axis=1) - scores[rows, labels]
            return float(0.5 * np.sum(weights**2) + C * np.sum(slack))

        for fraction in fractions:
            tolerance = loosest(fit, optimum, fraction)
            if tolerance is None:
                print(f"{'multi-class':24s} {C:6g} {fraction:8.0e}   liblinear does not get there")
                continue
            start = ascend_classes(moved, form, labels, fraction).dual

            def cold(form: SimplexDual = form, fraction: float = fraction) -> float:
                return ascend_classes(H, form, labels, fraction).n_epochs

            def warm(form: SimplexDual = form, fraction: float = fraction, start: np.ndarray = start) -> float:
                return ascend_classes(H, form, labels, fraction, start).n_epochs

            times = best_times([lambda t=tolerance: fit(t), cold, warm], reps)
            report((f"multi-class, spread {spread:g}", C, fraction), times, (cold(), warm()), tolerance)


def bench_binary(n: int, k: int, loss: str, fractions: Sequence[float], reps: int) -> None:
    """A binary machine against liblinear's."""
    H, labels = latent_features(n, k, 2, 3.0)
    signs = np.where(labels == 1, 1.0, -1.0)
    moved = H + NOISE * np.random.default_rng(1).normal(size=H.shape)
    layout = layout_of(n, 1)
    for C in (0.01, 1.0):
        form = sign_form(signs[:, None], C, squared=loss == "squared_hinge")
        best = solve_tasks(H, form, layout, tol=0.03 * min(fractions))
        optimum = best.primal - best.gap

        def fit(tolerance: float, C: float = C) -> float:
            model = LinearSVC(
                C=C, loss=loss, dual=True, fit_intercept=False, tol=tolerance, max_iter=100_000, random_state=0
            )
            weights = model.fit(H, signs).coef_[0]
            slack = np.maximum(0.0, 1.0 - signs * (H @ weights))
            return float(0.5 * np.sum(weights**2) + C * np.sum(slack**2 if loss == "squared_hinge" else slack))

        for fraction in fractions:
            tolerance = loosest(fit, optimum, fraction)
            if tolerance is None:
                print(f"{loss:24s} {C:6g} {fraction:8.0e}   liblinear does not get there")
                continue
            start = solve_tasks(moved, form, layout, tol=fraction).dual

            def cold(form: BoxDual = form, fraction: float = fraction) -> float:
                return solve_tasks(H, form, layout, tol=fraction).n_epochs

            def warm(form: BoxDual = form, fraction: float = fraction, start: np.ndarray = start) -> float:
                return solve_tasks(H, form, layout, tol=fraction, warm_start=start).n_epochs

            times = best_times([lambda t=tolerance: fit(t), cold, warm], reps)
            report((f"binary, {loss}", C, fraction), times, (cold(), warm()), tolerance)


def bench_labels(n: int, k: int, n_labels: int, reps: int) -> None:
    """Many labels of the same rows, squared hinge, against liblinear's own choice of solver label by label."""
    rng = np.random.default_rng(0)
    H = rng.normal(size=(n, k))
    Y = np.where(H @ rng.normal(size=(k, n_labels)) + 3.0 * rng.normal(size=(n, n_labels)) > 2.0, 1.0, -1.0)
    print(f"\nLabels: n = {n}, features = {k}, labels = {n_labels}, gap 1e-4; liblinear at its default tolerance")
    print("     C  rho  liblinear s    ours s   ratio   epochs")
    for C in (0.01, 1.0):
        form = sign_form(Y, C, squared=True)
        for rho in (0.0, 1.0):
            layout = replace(layout_of(n, n_labels), group=np.zeros(n_labels, dtype=np.int64), sharing=rho)

            def theirs(C: float = C) -> None:
                for column in Y.T:
                    LinearSVC(C=C, fit_intercept=False).fit(H, column)

            def ours(form: BoxDual = form, layout: TaskLayout = layout) -> float:
                return solve_tasks(H, form, layout, tol=1e-4).n_epochs

            base, mine = best_times([theirs, ours], reps)
            print(f"{C:6g} {rho:4g} {base:12.3f} {mine:9.3f} {base / mine:6.1f}x {ours():8.1f}")


def bench_newton(n: int, k: int, n_classes: int, tol: float, reps: int) -> None:
    """Newton's method over blocks of rows beside coordinate ascent, both from nothing and both to the same gap."""
    H, labels = latent_features(n, k, n_classes, 3.0)
    signs = np.where(np.eye(n_classes)[labels] > 0, 1.0, -1.0)
    slices, start = row_blocks(n), np.zeros((n_classes, k))
    print(f"\nNewton: n = {n} in {len(slices)} blocks, features = {k}, classes = {n_classes}, gap asked for {tol:g}")
    print("problem          C   ascent s      gap  epochs   1 thread s   2 threads s      gap  passes")
    for C in (0.01, 1.0):
        boxes = sign_form(signs, C, squared=True)
        cells = [
            BoxBlock.of(H[rows], take_rows(boxes, rows, n_classes), layout_of(rows.stop - rows.start, n_classes))
            for rows in slices
        ]
        classes = class_form(labels, n_classes, C, squared=True)
        rows_of_classes = [SimplexBlock(H[rows], classes.take(rows), labels[rows]) for rows in slices]

        def newton_boxes(threads: int, blocks: Sequence[BoxBlock] = cells) -> NewtonSolution:
            prior = SharedPrior(np.arange(n_classes))
            return solve_boxes(blocks, prior, start, tol=tol, executor=Threads(threads))

        def newton_classes(threads: int, blocks: Sequence[SimplexBlock] = rows_of_classes) -> NewtonSolution:
            return solve_smoothed(blocks, start, tol=tol, executor=Threads(threads))

        def climb_boxes(form: BoxDual = boxes) -> MarginSolution:
            problem = BoxAscent(H, form, layout_of(n, n_classes))
            return problem.solution(ascend(problem, tol, 1000.0, seed=0))

        def climb_classes(form: SimplexDual = classes) -> MarginSolution:
            return ascend_classes(H, form, labels, tol)

        for name, climb, newton in (
            ("one-vs-rest", climb_boxes, newton_boxes),
            ("multi-class", climb_classes, newton_classes),
        ):
            runs = [climb, *(lambda t=threads, solve=newton: solve(t) for threads in (1, 2))]
            by_ascent, one, two = best_times(runs, reps)
            climbed, found = climb(), newton(2)
            print(
                f"{name:12s} {C:5g} {by_ascent:10.3f} {climbed.gap / climbed.primal:8.1e} {climbed.n_epochs:7.1f}"
                f" {one:12.3f} {two:13.3f} {found.gap / found.value:8.1e} {found.n_passes:7d}"
            )


def bench_head(n: int, k: int, n_classes: int, reps: int) -> None:
    """The step as the models take it, over blocks with the curvature of a sample, beside one array by ascent."""
    H, labels = latent_features(n, k, n_classes, 3.0)
    moved = H + 0.01 * np.random.default_rng(1).standard_normal(H.shape)
    classes = Classes(labels, zero_one_cost(n_classes), np.full(n, 0.1))
    print(f"\nHead: n = {n}, features = {k}, classes = {n_classes}; passes asked for: 12 cold, 4 (5) warm")
    print("problem         tol   ascent s      gap   1 thread s   2 threads s      gap  cold / warm passes")
    for name, targets, tol in (("one-vs-rest", classes.one_vs_rest(), 1e-4), ("multi-class", classes, 1e-3)):
        array, blocks = (MarginHead(targets, squared=True, in_blocks=kind) for kind in (False, True))
        cold, warm = ([at[rows] for rows in row_blocks(n)] for at in (H, moved))
        tolerance = Tolerance(tol, 1000.0)

        def solve(threads: int, head: MarginHead = blocks, at: list = cold, goal: Tolerance = tolerance) -> object:
            return head.solve(at, None, goal, Threads(threads))

        def climb(head: MarginHead = array, at: np.ndarray = H, goal: Tolerance = tolerance) -> object:
            return head.solve(at, None, goal)

        by_ascent, one, two = best_times([climb, partial(solve, 1), partial(solve, 2)], reps)
        climbed, found = climb(), solve(2)
        again = blocks.solve(warm, found.warm_start, tolerance)
        print(
            f"{name:12s} {tol:6g} {by_ascent:10.3f} {climbed.gap / climbed.value:8.1e} {one:12.3f} {two:13.3f} "
            f"{found.gap / found.value:8.1e} {found.n_passes:6d} / {again.n_passes}",
            flush=True,
        )


def take_rows(form: BoxDual, rows: slice, n_outputs: int) -> BoxDual:
    """Return the cells of some rows, laid out row by row."""
    return form.take(slice(rows.start * n_outputs, rows.stop * n_outputs))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="a small problem that takes seconds")
    parser.add_argument("--head", action="store_true", help="the last table alone")
    options = parser.parse_args()
    smoke = options.smoke
    warnings.simplefilter("ignore", ConvergenceWarning)
    n, d, k, n_classes, repetitions = (2000, 30, 10, 4, 1) if smoke else (20_000, 200, 50, 10, 3)
    fractions = (1e-2,) if smoke else (1e-2, 1e-3, 1e-4)
    if options.head:
        with threadpool_limits(1):
            bench_head(100_000, k, n_classes, 1)
        return
    bench_sweeps(n, d, k, repetitions if smoke else 20)
    print(
        f"\nMargins: n = {n}, features = {k}, classes = {n_classes}, one thread; times in seconds, ratios to liblinear"
    )
    print(
        "problem                       C      gap  their tol liblinear      cold      warm      cold      warm   epochs"
    )
    with threadpool_limits(1):
        for spread in (3.0, 1.5):
            bench_multi_class(n, k, n_classes, spread, fractions, repetitions)
        for loss in ("hinge", "squared_hinge"):
            bench_binary(n, k, loss, fractions, repetitions)
        bench_labels(n // 10, k, n_classes, repetitions)
        bench_newton(n, k, n_classes, 1e-3, repetitions)
        bench_head(n if smoke else 100_000, k, n_classes, 1)


if __name__ == "__main__":
    main()
