"""Compare fits of `IBPFactorAnalysis` on two Dask workers and on two threads.

Prints elapsed and CPU seconds (workers included) of both, and their ratios. Both fits use the same samples and the same
warm start, so they take the same steps. ``--keep-memory`` raises malloc's thresholds (docs/scale.md).

    python benchmarks/bench_dask.py            # 400,000 samples, 200 columns, 30 features
    python benchmarks/bench_dask.py --keep-memory
    python benchmarks/bench_dask.py --smoke
"""

from __future__ import annotations

import argparse
import os
import time
import warnings

import dask
import dask.array as da
import numpy as np
from distributed import Client, LocalCluster
from sklearn.exceptions import ConvergenceWarning

import regbayes
import regbayes.dask

N_BLOCKS = 8
KEEP_MEMORY = {"MALLOC_TRIM_THRESHOLD_": 2**30, "MALLOC_MMAP_THRESHOLD_": 2**30, "OMP_NUM_THREADS": 1}


def make_block(seed: int, n_rows: int, n_columns: int) -> np.ndarray:
    loadings, rng = np.random.default_rng(0).normal(size=(12, n_columns)), np.random.default_rng([1, seed])
    return (rng.random((n_rows, 12)) < 0.3) @ loadings + 0.7 * rng.normal(size=(n_rows, n_columns))


def cpu_seconds(client: Client) -> float:
    return time.process_time() + sum(client.run(time.process_time).values())


def measure(client: Client, model, X) -> tuple[float, float, float]:
    """Return seconds, CPU seconds and the objective of a fit."""
    began, before = time.perf_counter(), cpu_seconds(client)
    model.fit(X)
    return time.perf_counter() - began, cpu_seconds(client) - before, float(model.trace_.objective[-1])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--keep-memory", action="store_true")
    parser.add_argument("--rows", type=int, default=400_000)
    given = parser.parse_args()
    n_rows, n_columns, K = (8_000, 20, 5) if given.smoke else (given.rows, 200, 30)
    warnings.simplefilter("ignore", ConvergenceWarning)
    size = n_rows // N_BLOCKS
    lazy = da.concatenate(
        [
            da.from_delayed(dask.delayed(make_block)(seed, size, n_columns), (size, n_columns), float)
            for seed in range(N_BLOCKS)
        ]
    )
    options = {"n_components": K, "max_iter": 8, "tol": 0.0, "n_sweeps": 1, "random_state": 0}
    if given.keep_memory:
        dask.config.set({"distributed.nanny.pre-spawn-environ": KEEP_MEMORY})
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        start = regbayes.IBPFactorAnalysis(**options).fit(make_block(0, min(size, 4000), n_columns))
        remote = regbayes.dask.IBPFactorAnalysis(**options, warm_start=True)
        local = regbayes.IBPFactorAnalysis(**options, n_jobs=2, warm_start=True)
        X, kept = lazy.compute(), lazy.persist()
        rows = []
        for _ in range(3):
            for model in (local, remote):
                vars(model).update({name: value for name, value in vars(start).items() if name.endswith("_state")})
            rows.append((*measure(client, local, X), *measure(client, remote, kept)))
    threads, threads_cpu, J, workers, workers_cpu, J_there = np.median(rows, axis=0)
    print(
        f"samples {n_rows}, columns {n_columns}, features {K}; load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    )
    print(f"two threads {threads:.2f} s, {threads_cpu:.2f} CPU s; two workers {workers:.2f} s, {workers_cpu:.2f} CPU s")
    print(f"ratio workers / threads: {workers / threads:.2f}; of CPU seconds {workers_cpu / threads_cpu:.2f}")
    print(f"J: {J:.6f} and {J_there:.6f}")


if __name__ == "__main__":
    main()
