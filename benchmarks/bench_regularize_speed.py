"""Time `regularize` at typical problem sizes, and alternative solvers.

    python benchmarks/bench_regularize_speed.py            # minutes
    python benchmarks/bench_regularize_speed.py --smoke    # small, for continuous integration

Times are medians of alternating calls to `regularize` and a baseline: ``np.exp`` over the draws (the time of a call in
passes of exp), the package ``entropy-pooling`` (skipped if it is not installed), or CVXPY.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from unittest.mock import patch

import cvxpy as cp
import numpy as np

from regbayes import E, Finite, Gaussian, Samples, regularize
from regbayes.regularizers import Hinge


def alternate(*calls: Callable[[], object], repeat: int) -> list[float]:
    """Return the median seconds of each of several alternating calls."""
    seconds: list[list[float]] = [[] for _ in calls]
    for _ in range(repeat):
        for call, taken in zip(calls, seconds, strict=True):
            start = time.perf_counter()
            call()
            taken.append(time.perf_counter() - start)
    return [float(np.median(taken)) for taken in seconds]


def show(name: str, seconds: float, peer: str = "", ratio: float | None = None) -> None:
    """Print a row."""
    beside = "" if ratio is None else f"{ratio:9.2f} x {peer}"
    print(f"{name:44} {1e3 * seconds:11.3f} ms {beside}", flush=True)


def count_exponentials(call: Callable[[], object]) -> int:
    """Return the number of elements on which a call evaluates exp."""
    exp, counted = np.exp, 0

    def counting(x: np.ndarray, *args: object, **kwargs: object) -> np.ndarray:
        nonlocal counted
        counted += np.size(x)
        return exp(x, *args, **kwargs)

    with patch.object(np, "exp", counting):
        call()
    return counted


def one_constraint(n: int) -> None:
    """Compare one bound on draws with passes of exp."""
    draws = np.random.default_rng(0).normal(size=n)
    posterior, constraint = Samples({"mu": draws}), E("mu") >= 0.5
    ours, once = alternate(lambda: regularize(posterior, constraint), lambda: np.exp(draws), repeat=41)
    show(f"{n} draws, one constraint", ours, "the time of np.exp over the draws", ours / once)
    passes = count_exponentials(lambda: regularize(posterior, constraint)) / n
    print(f"{'':44} {passes:11.1f} passes of exp over the draws", flush=True)


def equalities(n: int, m: int, repeat: int) -> None:
    """Compare equalities on draws with entropy pooling."""
    features = np.random.default_rng(0).normal(size=(n, m))
    posterior, wanted = Samples(np.zeros(n)), features.mean(axis=0) + 0.1
    constraint = E(features) == wanted
    try:
        from entropy_pooling import ep
    except ImportError:
        (ours,) = alternate(lambda: regularize(posterior, constraint), repeat=repeat)
        show(f"{n} draws x {m} equalities", ours)
        return
    prior, lines = np.full((n, 1), 1 / n), np.vstack([np.ones(n), features.T])
    right = np.append(1.0, wanted)[:, None]
    ours, theirs = alternate(lambda: regularize(posterior, constraint), lambda: ep(prior, lines, right), repeat=repeat)
    show(f"{n} draws x {m} equalities", ours, "faster than entropy-pooling", theirs / ours)


def soft_bounds(n: int, m: int) -> None:
    """Compare soft bounds on draws with CVXPY."""
    features = np.random.default_rng(0).normal(size=(n, m))
    posterior, constraints = Finite(features), [(E(features[:, i]) >= 0.1).soft(1.0) for i in range(m)]

    def by_cvxpy() -> None:
        u = cp.Variable(m)
        value = cp.log_sum_exp(-features @ u) - np.log(n) + 0.1 * cp.sum(u)
        cp.Problem(cp.Minimize(value), [u <= 0, u >= -1]).solve()

    ours, theirs = alternate(lambda: regularize(posterior, constraints), by_cvxpy, repeat=3)
    show(f"{m} soft bounds, {n} draws", ours, "faster than CVXPY", theirs / ours)


def hinges(n: int, d: int) -> None:
    """Time margins on a Gaussian with a dense covariance."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(n, d))
    labels = np.sign(rows[:, 0] + rng.normal(size=n))
    root = rng.normal(size=(d, d)) / np.sqrt(d)
    posterior, margins = Gaussian(np.zeros(d), root @ root.T + np.eye(d)), labels[:, None] * rows
    (ours,) = alternate(lambda: regularize(posterior, margins, Hinge(1.0).reflect(1.0)), repeat=3)
    show(f"{n} hinges on a Gaussian, d = {d}", ours)


def infeasible(n: int, m: int) -> None:
    """Time equalities outside the convex hull; print the median over targets."""
    rng = np.random.default_rng(0)
    features = rng.normal(size=(n, m))
    posterior, taken = Finite(features), []
    for _ in range(15):
        direction = rng.normal(size=m)
        wanted = 1.05 * features[np.argmax(features @ direction)]
        taken += alternate(lambda w=wanted: regularize(posterior, E(features) == w, raise_infeasible=False), repeat=1)
    show(f"infeasible, {n} models x {m} equalities", float(np.median(taken)))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--smoke", action="store_true", help="small problems, seconds")
    smoke = parser.parse_args().smoke
    warnings.simplefilter("ignore")  # k-hat warnings
    one_constraint(10_000)
    small = [(1_000, 5), (1_000, 8), (1_000, 20), (1_000, 30), (3_000, 10), (3_000, 20)]
    middle = [(10_000, 5), (10_000, 12), (10_000, 20), (10_000, 50), (100_000, 5), (100_000, 50)]
    large = [(1_000_000, 8), (1_000_000, 100)]
    for n, m in small[:2] if smoke else [*small, *middle, *large]:
        equalities(n, m, repeat=3 if n * m > 5_000_000 else 7 if n * m > 100_000 else 31)
    soft_bounds(*((100, 20) if smoke else (800, 200)))
    hinges(*((500, 10) if smoke else (10_000, 30)))
    for n, m in [(100, 3)] if smoke else [(100, 3), (1_000, 5), (10_000, 10)]:
        infeasible(n, m)


if __name__ == "__main__":
    main()
