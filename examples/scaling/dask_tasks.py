"""
Several tasks on a Dask cluster
===============================

Fit several outcomes with missing values, and constrain draws of a posterior, on the workers of a Dask cluster. Here
the cluster is two processes of this machine.
"""

from __future__ import annotations

import dask.array as da
import numpy as np
from distributed import Client, LocalCluster

from regbayes import E, MultiTaskILSVMRegressor, regularize
from regbayes import dask as on_cluster

N_ROWS, N_COLUMNS, N_TASKS = 8_000, 15, 8


def make_rows() -> tuple[np.ndarray, np.ndarray]:
    """Simulate samples with five latent causes and eight outcomes, a third of which are missing."""
    rng = np.random.default_rng(0)
    causes = rng.normal(size=(N_ROWS, 5))
    X = causes @ rng.normal(size=(5, N_COLUMNS)) + rng.normal(size=(N_ROWS, N_COLUMNS))
    Y = causes @ rng.normal(size=(5, N_TASKS)) + rng.normal(size=(N_ROWS, N_TASKS))
    Y[rng.random(Y.shape) < 1 / 3] = np.nan
    return X, Y


def main() -> None:
    X, Y = make_rows()
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster, Client(cluster):
        # --- tasks: samples and targets in blocks, with NaN for missing targets
        lazy_X, lazy_Y = (da.from_array(part, chunks=(2000, -1)) for part in (X, Y))
        model = on_cluster.MultiTaskILSVMRegressor(10, max_iter=20, random_state=0).fit(lazy_X, lazy_Y)
        plain = MultiTaskILSVMRegressor(10, max_iter=20, random_state=0).fit(X, Y)
        apart = np.max(np.abs(model.predict(lazy_X).compute() - plain.predict(X))) / np.nanstd(Y)
        print(f"R² of observed targets: {model.score(lazy_X, lazy_Y):.3f}, in one process {plain.score(X, Y):.3f}")
        print(f"largest difference of predictions, in standard deviations: {apart:.3f}")

        # --- draws stay on the workers, and only sums over blocks are sent
        draws = da.random.default_rng(0).normal(size=(200_000, 2), chunks=(50_000, 2))
        result = regularize(on_cluster.Samples(draws), [E(lambda x: x[:, 0]) >= 0.5, E(lambda x: x[:, 1] ** 2) <= 0.8])
        print(f"multipliers: {np.round(result.multipliers, 2)}; expectations after: {np.round(result.after, 3)}")


if __name__ == "__main__":  # worker processes import this file
    main()
