"""Rows beyond the memory of workers: a fit takes a quarter of what they would take there, and less than its limit."""

from __future__ import annotations

import gc
import os
import shutil
import time
from functools import partial
from itertools import pairwise

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client, LocalCluster, wait

from dask_tools import quiet_marks, set_share
from regbayes.dask import ILSVMClassifier, MultiTaskILSVMRegressor, storage

N, D, N_BLOCKS = 480_000, 64, 60  # 240 MB, 120 for each worker
MB = 2**20

pytestmark = [
    *quiet_marks(),
    pytest.mark.skipif(not os.path.exists("/proc/self/clear_refs"), reason="needs Linux's count of peak memory"),
]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = str(tmp_path_factory.mktemp("rows") / "rows.npy")
    rng = np.random.default_rng(0)
    X = np.lib.format.open_memmap(path, mode="w+", dtype=np.float64, shape=(N, D))
    loadings = rng.normal(size=(4, D))
    for first in range(0, N, 20_000):
        on = (rng.random((20_000, 4)) < 0.4).astype(float)
        X[first : first + 20_000] = on @ loadings + rng.normal(size=(20_000, D))
    X.flush()
    return path


def read(path, first, end):
    return np.array(np.load(path, mmap_mode="r")[first:end])


def collections(path, n_rows):
    edges = np.linspace(0, n_rows, N_BLOCKS + 1).astype(int)
    parts = [da.from_delayed(dask.delayed(read)(path, a, b), (b - a, D), float) for a, b in pairwise(edges)]
    X = da.concatenate(parts)
    return X, (X[:, 0] > 0).astype(int), X[:, :2].copy()


def memory(name):
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith(name))


def reset_peak():
    storage.trim_memory()
    with open("/proc/self/clear_refs", "w") as refs:
        refs.write("5")


@pytest.mark.parametrize("kind", ["features", "tasks"])
def test_a_fit_takes_a_quarter_of_what_its_rows_take(client, path, kind):
    inputs_too = partial(ILSVMClassifier, multi_class="ovr", include_inputs=True)
    make = inputs_too if kind == "features" else MultiTaskILSVMRegressor
    model = make(n_components=4, max_iter=1, tol=0.1, random_state=0)
    which = 2 if kind == "tasks" else 1
    client.run(set_share, 0.0)  # nothing has room
    try:
        small = collections(path, 6000)
        model.fit(small[0], small[which])  # all that a worker has to load
        client.run(reset_peak)
        before = client.run(memory, "VmRSS")
        given = collections(path, N)
        model.fit(given[0], given[which])
        after = client.run(memory, "VmHWM")
    finally:
        client.run(set_share, 0.4)
    assert before.keys() == after.keys()  # no worker was restarted
    grown = [after[worker] - before[worker] for worker in before]
    assert max(grown) <= N * D * 8 / len(grown) / 4, [f"{n / MB:.0f} MB" for n in grown]


LIMIT = 560 * MB  # of each of two workers; a worker takes half of it before it has seen a row
WIDE = 512  # columns: a row of features is small beside one of inputs
BLOCK_ROWS = 4096


@pytest.mark.slow
def test_rows_of_four_times_the_memory_of_a_cluster_are_fitted_within_its_limits(tmp_path):
    n_rows = 4 * 2 * LIMIT // (8 * WIDE)
    if shutil.disk_usage(tmp_path).free < 3 * 8 * n_rows * WIDE:
        pytest.skip(f"needs {3 * 8 * n_rows * WIDE / 1e9:.0f} GB of room for files")
    path, labels = str(tmp_path / "rows.npy"), write_rows(tmp_path / "rows.npy", n_rows)
    model = ILSVMClassifier(4, multi_class="ovr", max_iter=1, tol=0.1, random_state=0)
    options = {"threads_per_worker": 1, "memory_limit": LIMIT, "dashboard_address": None}
    reset_peak()
    before = memory("VmRSS")
    with (
        dask.config.set({"temporary-directory": str(tmp_path)}),
        LocalCluster(n_workers=2, **options) as cluster,
        Client(cluster) as client,
    ):
        client.wait_for_workers(2)
        processes = client.run(os.getpid)
        edges = [*range(0, n_rows, BLOCK_ROWS), n_rows]
        make = dask.delayed(read)
        X = da.concatenate([da.from_delayed(make(path, a, b), (b - a, WIDE), float) for a, b in pairwise(edges)])
        model.fit(X, da.from_array(labels, chunks=BLOCK_ROWS), client=client)
        assert client.run(os.getpid) == processes  # no worker was restarted
        peaks = list(client.run(memory, "VmHWM").values())
    grown = memory("VmHWM") - before  # here are the scheduler, the client and a sample of the rows
    assert max(*peaks, grown) <= LIMIT, [f"{n / MB:.0f} MB" for n in (*peaks, grown)]


def write_rows(path, n_rows):
    """Write the same few thousand rows over and over; return labels of all."""
    rng = np.random.default_rng(0)
    rows = (rng.random((BLOCK_ROWS, 4)) < 0.4) @ rng.normal(size=(4, WIDE)) + rng.normal(size=(BLOCK_ROWS, WIDE))
    with open(path, "wb") as file:
        header = {"descr": "<f8", "fortran_order": False, "shape": (n_rows, WIDE)}
        np.lib.format.write_array_header_1_0(file, header)
        for first in range(0, n_rows, BLOCK_ROWS):
            file.write(rows[: n_rows - first].data)
    return np.resize((rows[:, 0] > 0).astype(int), n_rows)


def test_spilling_stops_while_rows_lie_in_files_and_no_longer(client):
    assert all(wait_for_spilling(client))
    client.run(set_share, 0.0)
    try:
        future = client.submit(settle_here, pure=False)
        wait(future)
        assert spill_fractions(client).count(False) == 1
        del future
    finally:
        client.run(set_share, 0.4)
    assert all(wait_for_spilling(client))


def spill_fractions(client):
    return list(client.run(lambda dask_worker: dask_worker.memory_manager.memory_spill_fraction).values())


def wait_for_spilling(client):
    """Wait until workers have let go of what they no longer need."""
    deadline = time.monotonic() + 30.0
    while not all(found := spill_fractions(client)) and time.monotonic() < deadline:
        time.sleep(0.1)
        client.run(gc.collect)
    return found


def settle_here():
    return storage.settle(np.ones((1000, 100)))


def test_a_worker_without_room_says_so(client, path):
    client.run(set_full, 0.0)
    try:
        X, y, _ = collections(path, 6000)
        with pytest.raises(MemoryError, match="give workers more memory"):
            ILSVMClassifier(4).fit(X, y)
    finally:
        client.run(set_full, 0.7)


def set_full(share):
    storage.FULL = share
