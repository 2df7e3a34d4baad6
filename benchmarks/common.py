"""Time and memory of a call, and simulated data for several benchmarks."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np


def timed(work: Callable[[], Any], repeats: int = 1, clock: Callable[[], float] = time.process_time) -> Any:
    """Return the last result of several calls and the shortest time, in CPU seconds by default."""
    seconds = np.inf
    for _ in range(repeats):
        start = clock()
        result = work()
        seconds = min(seconds, clock() - start)
    return result, seconds


def peak_bytes(work: Callable[[], Any]) -> int:
    """Return the peak memory allocated by Python and NumPy during a call."""
    tracemalloc.start()
    work()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def draw_classes(n: int, D: int, K: int, classes: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Draw nonnegative samples with binary features and dependent classes.

    The distribution does not depend on n and seed.
    """
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
