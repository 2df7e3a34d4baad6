"""Time and memory of an iLSVM fit, as ratios to scikit-learn's ``NMF(50)`` + ``LinearSVC`` in the same run.

    python benchmarks/bench_ilsvm_speed.py      # 20,000 rows, 200 inputs, 50 features, 10 classes; then the curve
    python benchmarks/bench_ilsvm_speed.py --smoke

Data have planted binary features, non-negative loadings (so that NMF has something to find) and labels that depend on
the features. Accuracy on 5,000 fresh rows is printed beside the seconds: a fast fit that does not predict is no
fit. ``OMP_NUM_THREADS`` sets BLAS's threads for both; ``--jobs`` those of iLSVM.
"""

from __future__ import annotations

import argparse
import time
import tracemalloc
import warnings

import numpy as np
from sklearn.decomposition import NMF
from sklearn.pipeline import make_pipeline
from sklearn.svm import LinearSVC

from regbayes import ILSVMClassifier


def draw(n: int, D: int, K: int, classes: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Rows with planted on/off features and labels that depend on them. The planted part does not depend on n."""
    world = np.random.default_rng(12345)
    loadings = world.exponential(size=(K, D)) * (world.random((K, D)) < 0.3)
    weights = world.normal(size=(K, classes))
    use = world.beta(1.5, 3.0, size=K)
    rng = np.random.default_rng(seed)
    Z = (rng.random((n, K)) < use).astype(np.float64)
    X = Z @ loadings
    X += 0.5 * rng.standard_normal((n, D))
    scores = (Z - use) @ weights + 0.3 * rng.gumbel(size=(n, classes))
    return np.maximum(X, 0.0), scores.argmax(axis=1)


def whole_fit(n: int, D: int, K: int, classes: int, jobs: int) -> None:
    """One fit of each, with its accuracy."""
    X, y = draw(n, D, K, classes)
    fresh, truth = draw(5000, D, K, classes, seed=1)
    models = {
        "iLSVM": ILSVMClassifier(K, random_state=0, n_jobs=jobs),
        "NMF + LinearSVC": make_pipeline(NMF(K, random_state=0), LinearSVC()),
    }
    rows = []
    for name, model in models.items():
        start = time.perf_counter()
        model.fit(X, y)
        rows.append((name, time.perf_counter() - start, model.score(fresh, truth)))
    (_, ours, _), (_, theirs, _) = rows
    for name, seconds, accuracy in rows:
        print(f"{name:18} {seconds:8.2f} s   test accuracy {accuracy:.4f}")
    print(f"NMF + LinearSVC / iLSVM: {theirs / ours:.2f} (above 1: iLSVM is faster)")


def curve(sizes: list[int], D: int, K: int, classes: int, jobs: int) -> None:
    """Seconds per step and row, and peak memory, as the number of rows grows."""
    for n in sizes:
        X, y = draw(n, D, K, classes)
        model = ILSVMClassifier(K, random_state=0, n_jobs=jobs, max_iter=3, tol=0.0)
        start = time.perf_counter()
        model.fit(X, y)
        seconds = time.perf_counter() - start
        tracemalloc.start()
        ILSVMClassifier(K, random_state=0, n_jobs=jobs, max_iter=1, tol=0.0).fit(X, y)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        arrays = peak / (8 * n * K)  # X itself was there before
        per_row = 1e6 * seconds / (3 * n)
        size = f"{n:9d} rows, D = {D}, K = {K}"
        print(f"{size}: {per_row:7.2f} us per row and step; memory: X + {arrays:.1f} N x K arrays", flush=True)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--rows", type=int, nargs="*", default=[10_000, 100_000, 1_000_000])
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")  # convergence warnings: steps are cut short on purpose
    ILSVMClassifier(3, max_iter=2).fit(*draw(300, 10, 3, 3))  # compile before anything is timed
    if arguments.smoke:
        whole_fit(2000, 40, 10, 4, arguments.jobs)
        curve([1000, 4000], 40, 10, 4, arguments.jobs)
        return
    whole_fit(20_000, 200, 50, 10, arguments.jobs)
    curve([20_000], 200, 50, 10, arguments.jobs)
    curve(arguments.rows, 50, 20, 10, arguments.jobs)


if __name__ == "__main__":
    main()
