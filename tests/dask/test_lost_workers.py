"""Workers that are lost all at once: a fit continues when they come back, and ends with an error when they do not."""

from __future__ import annotations

import os
import signal

import dask.array as da
import numpy as np
import pytest
from distributed import Client, LocalCluster

from dask_tools import quiet_marks
from regbayes.dask import ILSVMClassifier

pytestmark = quiet_marks()


class KillAll:
    """A callback that kills every worker at the end of one task of a fit."""

    def __init__(self, client, task):
        self.client, self.remaining = client, task

    def setup(self, estimator, context): ...

    def teardown(self, estimator, context): ...

    def on_fit_task_begin(self, estimator, context): ...

    def on_fit_task_end(self, estimator, context, **given):
        if context.task_name == "iteration" and context.parent.task_name == "descent":
            self.remaining -= 1
            if self.remaining == 0:
                for pid in self.client.run(os.getpid).values():
                    os.kill(pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    X = (rng.random((1500, 4)) < 0.4) @ rng.normal(size=(4, 12)) + 0.5 * rng.normal(size=(1500, 12))
    return da.from_array(X, chunks=(400, -1)), da.from_array((X[:, 0] > X[:, 1]).astype(int), chunks=400)


def model():
    return ILSVMClassifier(4, multi_class="ovr", max_iter=4, tol=0.0, random_state=0)


@pytest.mark.parametrize("iteration", [1, *(pytest.param(i, marks=pytest.mark.slow) for i in (2, 3, 4))])
def test_fit_with_all_workers_killed_continues_when_they_restart(data, iteration):
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        expected = model().fit(*data, client=client)
        killer = KillAll(client, iteration)
        found = model().set_callbacks(killer).fit(*data, client=client)
    assert killer.remaining <= 0
    np.testing.assert_allclose(found.coef_features_, expected.coef_features_, atol=1e-10)
