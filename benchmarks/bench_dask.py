"""Two Dask workers against two threads: one evaluation of J and its gradient, over the same rows and blocks.

Prints the ratio of the two, measured by turns in one run, in seconds and in CPU seconds (which other processes on the
machine disturb less), and the trips and bytes that an evaluation takes. Workers have the environment that Dask gives
them. Below about half a second of work for an evaluation Dask does not pay.

    python benchmarks/bench_dask.py            # 500 000 rows, 200 columns, 30 features, 10 classes
    python benchmarks/bench_dask.py --smoke
"""

from __future__ import annotations

import argparse
import os
import pickle
import time
from dataclasses import replace

import dask
import dask.array as da
import numpy as np
from distributed import Client, LocalCluster

from regbayes.dask import latent
from regbayes.dask._bases import Labels, Moments
from regbayes.dask.blocks import DaskBlocks
from regbayes.dask.latent import Recipe, hold
from regbayes.dask.rows import READ_ROWS, DaskSource, place_blocks, read_collections
from regbayes.engine import make_executor
from regbayes.engine.source import Samples, order_sample
from regbayes.joint.descent import DescentOptions
from regbayes.joint.problem import JointProblem, SampledHead, hold_rows
from regbayes.models.ilsvm.model import SCHEDULE, BinaryFeatures, Params, build_head, centre_rows
from regbayes.models.indian_buffet import prior_sticks

N_CLASSES, N_BLOCKS = 10, 8


def make_block(seed: int, n_rows: int, n_columns: int) -> tuple[np.ndarray, np.ndarray]:
    common, rng = np.random.default_rng(0), np.random.default_rng([1, seed])
    loadings, weights = common.normal(size=(12, n_columns)), 2.0 * common.normal(size=(12, N_CLASSES))
    on = (rng.random((n_rows, 12)) < 0.3).astype(float)
    X = on @ loadings
    X += 0.7 * rng.normal(size=X.shape)
    return X, np.argmax(on @ weights + rng.gumbel(size=(n_rows, N_CLASSES)), axis=1)


def collections(n_rows: int, n_columns: int) -> tuple[da.Array, da.Array]:
    """Rows that workers make themselves: nothing travels."""
    size = n_rows // N_BLOCKS
    pairs = [dask.delayed(make_block, nout=2)(seed, size, n_columns) for seed in range(N_BLOCKS)]
    X = da.concatenate([da.from_delayed(x, (size, n_columns), float) for x, _ in pairs])
    return X, da.concatenate([da.from_delayed(y, (size,), np.int64) for _, y in pairs])


class CountingBlocks(DaskBlocks):
    """Counts the bytes that go to workers and come back, as they are pickled."""

    sent = received = 0

    def broadcast(self, value):
        self.sent += len(pickle.dumps(value)) * len(self.groups)
        return super().broadcast(value)

    def _visit(self, function, *arguments, **options):
        plain = [given for given in arguments if not hasattr(given, "key")]
        self.sent += len(pickle.dumps(plain)) * len(self.groups)
        found = super()._visit(function, *arguments, **options)
        self.received += sum(len(pickle.dumps(part)) for part in found)
        return found


def look(problem, params, warm_start, client):
    """Return seconds and CPU seconds, of workers too, and what was found."""
    began, before = time.perf_counter(), cpu_seconds(client)
    at, inferred = problem.evaluate(params, warm_start, SCHEDULE.first)
    problem.gradient(at, inferred)
    return time.perf_counter() - began, cpu_seconds(client) - before, at


def cpu_seconds(client) -> float:
    return time.process_time() + sum(client.run(time.process_time).values())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", type=int, default=500_000)
    given = parser.parse_args()
    n_rows, n_columns, K = (8_000, 20, 5) if given.smoke else (given.rows, 200, 30)
    rounds = 2 if given.smoke else given.rounds

    parts = [make_block(seed, n_rows // N_BLOCKS, n_columns) for seed in range(N_BLOCKS)]
    X, y = (np.concatenate(part) for part in zip(*parts, strict=True))
    model = latent.ILSVMClassifier(K, multi_class="ovr")
    block = Samples(X, y)
    recipe: Recipe = model._recipe(Moments.of(X, None), Labels.of(block))
    settings, rng = recipe.settings, np.random.default_rng(0)
    params = Params(
        loadings=0.3 * rng.normal(size=(K, n_columns)),
        offset=np.zeros(n_columns),
        variances=np.full(K, 0.01),
        sticks=prior_sticks(2.0, K),
        noise_variance=settings.noise_variance,
        prior_variance=settings.prior_variance,
        temperature=settings.temperature,
        n_sweeps=1,
    )
    moved = [replace(params, loadings=params.loadings * (1.0 + 0.01 * step)) for step in range(rounds + 1)]
    binary, options = BinaryFeatures(2.0, settings.generative_weight), DescentOptions(SCHEDULE)

    data = recipe.data(block)
    head = build_head(data, settings)
    local = JointProblem(binary, hold_rows(centre_rows(X, recipe.mean).blocks(), make_executor(2)), head, options)
    drawn = block.take(order_sample(y, n_rows)[: max(10_000, 100 * (K + 1)) if not given.smoke else 1000])

    with (
        LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        source = DaskSource(place_blocks(client, read_collections(*collections(n_rows, n_columns)), READ_ROWS))
        places = CountingBlocks(client, source.persist(hold, recipe).groups)
        del source
        few = build_head(recipe.data(drawn), settings)
        remote = JointProblem(binary, places, SampledHead(few, hold(drawn, recipe), len(drawn) / n_rows), options)
        *_, here = look(local, moved[0], None, client)
        *_, there = look(remote, moved[0], None, client)
        before = places.n_trips, places.sent, places.received
        seconds = []
        for step in moved[1:]:
            *mine, here = look(local, step, here.warm_start, client)
            *its, there = look(remote, step, there.warm_start, client)
            seconds.append((*mine, *its))
        trips, sent, received = (np.array([places.n_trips, places.sent, places.received]) - before) / rounds
    threads, threads_cpu, workers, workers_cpu = np.median(seconds, axis=0)
    print(f"rows {n_rows}, columns {n_columns}, features {K}; load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    print(f"an evaluation with its gradient: two threads {threads:.3f} s, two workers {workers:.3f} s")
    print(f"ratio workers / threads: {workers / threads:.2f}; of CPU seconds {workers_cpu / threads_cpu:.2f}")
    print(f"trips {trips:.1f}; to each worker {sent / 2e6:.3f} MB, from each {received / 2e6:.3f} MB")
    print(f"J: {here.objective:.6f} and {there.objective:.6f}")


if __name__ == "__main__":
    main()
