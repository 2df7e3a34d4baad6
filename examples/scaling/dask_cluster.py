"""
iLSVM on a Dask cluster
=======================

Fit an iLSVM to a Parquet folder whose partitions stay on the workers. Here the cluster is two processes of this
machine; with your own cluster, use ``Client("tcp://scheduler:8786")``.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import dask.dataframe as dd
import numpy as np
import pandas as pd
from distributed import Client, LocalCluster

import regbayes
from regbayes.dask import ILSVMClassifier

COLUMNS = [f"x{column}" for column in range(12)]


def write_part(folder: Path, part: int, n_rows: int) -> None:
    """Write a file of samples with six binary causes, three of which determine the class."""
    common, rng = np.random.default_rng(0), np.random.default_rng([1, part])
    on = rng.random((n_rows, 6)) < 0.4
    X = on @ common.normal(size=(6, 12)) + 0.5 * rng.normal(size=(n_rows, 12))
    classes = np.array(["none", "one", "several"])[np.minimum(on[:, :3].sum(axis=1), 2)]
    pd.DataFrame(X, columns=COLUMNS).assign(label=classes).to_parquet(folder / f"{part}.parquet")


def main() -> None:
    with (
        tempfile.TemporaryDirectory() as name,
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster,
        Client(cluster),
    ):
        folder = Path(name)
        for part in range(4):
            write_part(folder, part, 5000)

        # --- fit on the workers
        table = dd.read_parquet(folder)
        model = ILSVMClassifier(n_components=12, random_state=0).fit(table[COLUMNS], table["label"])
        print(f"features in use: {model.n_components_}; steps over all rows: {model.n_iter_}")

        # --- predictions are lazy
        answers = model.predict(table[COLUMNS])
        print(f"predict gives {type(answers).__name__} of {answers.npartitions} blocks")
        print(f"accuracy: {np.mean(answers.compute() == table['label'].compute().to_numpy()):.2f}")

        # --- convert to the plain estimator, to use and save without Dask
        model.to_local().save(folder / "model.regbayes")
        loaded = regbayes.load(folder / "model.regbayes")
        same = np.array_equal(loaded.predict(table[COLUMNS].compute()), answers.compute())
        print(f"the same predictions from a file: {same}")


if __name__ == "__main__":  # worker processes import this file
    main()
