"""Lost workers: a fit continues if they restart and raises an error otherwise."""

from __future__ import annotations

import signal
import threading
import time
from functools import partial

import dask
import numpy as np
import pytest
from distributed import Client, LocalCluster

from dask_tools import AfterIteration, cut, hears_interrupts, kill_workers, quiet_marks, signal_workers
from regbayes.dask import ILSVMClassifier, MultiTaskILSVMRegressor
from regbayes.estimators._bases import InterruptedWarning

pytestmark = quiet_marks()
SIZES = (400, 400, 700)


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    X = (rng.random((1500, 4)) < 0.4) @ rng.normal(size=(4, 12)) + 0.5 * rng.normal(size=(1500, 12))
    return cut(X, SIZES), cut((X[:, 0] > X[:, 1]).astype(int), SIZES)


def model(**options):
    return ILSVMClassifier(4, multi_class="ovr", **{"max_iter": 4, "tol": 0.0, "random_state": 0, **options})


def assert_same_fit(found, expected):
    for name in ("coef_features_", "components_"):
        np.testing.assert_allclose(getattr(found, name), getattr(expected, name), rtol=1e-10, atol=1e-10)


@pytest.fixture
def workers():
    """Two worker processes that restart when killed."""
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster, Client(cluster) as client:
        yield client


@pytest.mark.parametrize(
    ("kind", "stage"), [(model, "descent"), (partial(MultiTaskILSVMRegressor, 4, max_iter=3, tol=0.0), "descent")]
)
def test_fit_with_killed_worker_is_unchanged(client, data, kind, stage):
    expected, killed = kind(random_state=0).fit(*data), []
    killer = AfterIteration(lambda: killed.extend(kill_workers(client, 1)), 2, stage)
    found = kind(random_state=0).set_callbacks(killer).fit(*data)
    assert len(killed) == 1
    assert_same_fit(found, expected)


def test_fit_continues_after_all_workers_restart(workers, data):
    expected = model().fit(*data, client=workers)
    killer = AfterIteration(partial(kill_workers, workers), 2)
    found = model().set_callbacks(killer).fit(*data, client=workers)
    assert killer.remaining <= 0
    assert_same_fit(found, expected)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_randomly_killed_workers_raise_or_leave_fit_unchanged(workers, data, seed):
    """Dask gives up on a task after several workers died with it; then the fit raises an error."""
    began = time.monotonic()
    expected = model().fit(*data, client=workers)
    moment = (time.monotonic() - began) * np.random.default_rng(seed).random()
    killer = threading.Timer(moment, kill_workers, [workers])
    killer.start()
    try:
        found = model().fit(*data, client=workers)
    except (OSError, RuntimeError):  # raised by Dask
        pass
    else:
        assert_same_fit(found, expected)
    finally:
        killer.join()


@pytest.mark.parametrize("moment", ["before the fit", "in the fit"])
def test_fit_raises_if_workers_do_not_return(data, moment):
    quiet = {"processes": False, "dashboard_address": ":0"}
    with (
        dask.config.set({"distributed.scheduler.no-workers-timeout": "2s"}),
        LocalCluster(n_workers=1, threads_per_worker=1, **quiet) as cluster,
        Client(cluster) as client,
    ):

        def leave():
            cluster.scale(0)
            while client.nthreads():
                time.sleep(0.05)

        if moment == "before the fit":
            leave()
            with pytest.raises(ValueError, match="has no workers"):
                model().fit(*data, client=client)
        else:
            with pytest.raises(Exception, match=r"have left|timed out|no workers"):  # ours, or that of the scheduler
                model().set_callbacks(AfterIteration(leave)).fit(*data, client=client)


def test_interrupt_keeps_best_state(client, data):
    """In a terminal, Ctrl-C reaches all processes of the group; workers ignore it."""
    before = client.run(hears_interrupts)

    def interrupt():
        signal_workers(client, signal.SIGINT)
        raise KeyboardInterrupt

    with pytest.warns(InterruptedWarning, match="interrupted after"):
        found = model(max_iter=50).set_callbacks(AfterIteration(interrupt, 2)).fit(*data)
    assert found.n_iter_ < 50
    assert np.mean(found.predict(data[0]).compute() == data[1].compute()) > 0.6
    assert client.run(hears_interrupts) == before
