"""Time the large-margin step against liblinear, and the feature sweeps against the matrix product they follow.

    python benchmarks/bench_large_margin.py            # 20,000 rows, 200 inputs, 50 features, 10 classes
    python benchmarks/bench_large_margin.py --smoke    # small, for continuous integration

Every ratio is of two times measured in this run, each the best of a few repetitions, taken in turn.

Margins: liblinear gets the loosest of its tolerances that brings its primal objective within the stated fraction of the
optimum; we stop when the *duality gap* is that small, which is never the easier target. Cold starts from nothing. Warm
starts from the multipliers of features that differed by noise of the stated standard deviation, as after a step of a
model that learns its features. Features lie in [0, 1] and are not centred.
"""

from __future__ import annotations

import argparse
import os
import time
import warnings
from collections.abc import Callable, Sequence

import numpy as np
from scipy.special import expit
from sklearn.exceptions import ConvergenceWarning
from sklearn.svm import LinearSVC
from threadpoolctl import threadpool_limits

from regbayes.framework.dual_forms import BoxDual
from regbayes.framework.large_margin import MultiClassDual, TaskLayout, solve_box, solve_simplex, zero_one_cost
from regbayes.kernels.chunks import map_chunks
from regbayes.kernels.sweeps import reverse_features, sweep_features

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

                def sweep(_: int, first: int, last: int) -> None:
                    sweep_features(theta[first:last], coupling, start, n_sweeps, psi[first:last])

                map_chunks(sweep, n, threads)

            def both(threads: int = threads, n_sweeps: int = n_sweeps) -> None:
                forward(threads, n_sweeps)

                def reverse(_: int, first: int, last: int) -> None:
                    rows = slice(first, last)
                    reverse_features(grad[rows], psi[rows], theta[rows], coupling, start, n_sweeps, grad_theta[rows])

                map_chunks(reverse, n, threads)

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


def bench_multi_class(n: int, k: int, n_classes: int, spread: float, fractions: Sequence[float], reps: int) -> None:
    """Crammer-Singer against liblinear's."""
    H, labels = latent_features(n, k, n_classes, spread)
    moved = H + NOISE * np.random.default_rng(1).normal(size=H.shape)
    rows = np.arange(n)
    for C in (0.01, 0.1, 1.0):
        dual = MultiClassDual.hinge(labels, zero_one_cost(n_classes), C)
        optimum = solve_simplex(H, dual, tol=0.03 * min(fractions)).dual_value

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
            start = solve_simplex(moved, dual, tol=fraction).dual

            def cold(dual: MultiClassDual = dual, fraction: float = fraction) -> float:
                return solve_simplex(H, dual, tol=fraction).n_epochs

            def warm(dual: MultiClassDual = dual, fraction: float = fraction, start: np.ndarray = start) -> float:
                return solve_simplex(H, dual, tol=fraction, warm_start=start).n_epochs

            times = best_times([lambda t=tolerance: fit(t), cold, warm], reps)
            report((f"multi-class, spread {spread:g}", C, fraction), times, (cold(), warm()), tolerance)


def bench_binary(n: int, k: int, loss: str, fractions: Sequence[float], reps: int) -> None:
    """A binary machine against liblinear's."""
    H, labels = latent_features(n, k, 2, 3.0)
    signs = np.where(labels == 1, 1.0, -1.0)
    moved = H + NOISE * np.random.default_rng(1).normal(size=H.shape)
    zeros, ones = np.zeros(n), np.ones(n)
    for C in (0.01, 1.0):
        form = BoxDual(-ones, zeros, zeros, zeros, C * ones)
        if loss == "squared_hinge":
            form = BoxDual(-ones, zeros, ones / (2.0 * C), zeros, np.full(n, np.inf))
        optimum = solve_box(H * signs[:, None], form, tol=0.03 * min(fractions)).dual_value

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
            start = solve_box(moved * signs[:, None], form, tol=fraction).dual

            def cold(form: BoxDual = form, fraction: float = fraction) -> float:
                return solve_box(H * signs[:, None], form, tol=fraction).n_epochs

            def warm(form: BoxDual = form, fraction: float = fraction, start: np.ndarray = start) -> float:
                return solve_box(H * signs[:, None], form, tol=fraction, warm_start=start).n_epochs

            times = best_times([lambda t=tolerance: fit(t), cold, warm], reps)
            report((f"binary, {loss}", C, fraction), times, (cold(), warm()), tolerance)


def bench_labels(n: int, k: int, n_labels: int, reps: int) -> None:
    """Many labels of the same rows, squared hinge, against liblinear's own choice of solver label by label."""
    rng = np.random.default_rng(0)
    H = rng.normal(size=(n, k))
    Y = np.where(H @ rng.normal(size=(k, n_labels)) + 3.0 * rng.normal(size=(n, n_labels)) > 2.0, 1.0, -1.0)
    row, label = (grid.ravel() for grid in np.meshgrid(np.arange(n), np.arange(n_labels)))
    signs, zeros, infinity = Y[row, label], np.zeros(row.size), np.full(row.size, np.inf)
    lower, upper = np.where(signs > 0, zeros, -infinity), np.where(signs > 0, infinity, zeros)
    print(f"\nLabels: n = {n}, features = {k}, labels = {n_labels}, gap 1e-4; liblinear at its default tolerance")
    print("     C  rho  liblinear s    ours s   ratio   epochs")
    for C in (0.01, 1.0):
        form = BoxDual(-signs, zeros, np.full(row.size, 0.5 / C), lower, upper)
        for rho in (0.0, 1.0):
            layout = TaskLayout(row, label, np.zeros(n_labels, dtype=np.int64), rho)

            def theirs(C: float = C) -> None:
                for column in Y.T:
                    LinearSVC(C=C, fit_intercept=False).fit(H, column)

            def ours(form: BoxDual = form, layout: TaskLayout = layout) -> float:
                return solve_box(H, form, layout, tol=1e-4).n_epochs

            base, mine = best_times([theirs, ours], reps)
            print(f"{C:6g} {rho:4g} {base:12.3f} {mine:9.3f} {base / mine:6.1f}x {ours():8.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="a small problem that takes seconds")
    smoke = parser.parse_args().smoke
    warnings.simplefilter("ignore", ConvergenceWarning)
    n, d, k, n_classes, repetitions = (2000, 30, 10, 4, 1) if smoke else (20_000, 200, 50, 10, 3)
    fractions = (1e-2,) if smoke else (1e-2, 1e-3, 1e-4)
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


if __name__ == "__main__":
    main()
