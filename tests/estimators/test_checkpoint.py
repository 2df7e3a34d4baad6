"""Test that a fit with a checkpoint continues after a crash and gives the same result bit by bit."""

from __future__ import annotations

import os
import pickle
import random
import re
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import regbayes
from checkpoint_tools import MODELS, make
from regbayes import Checkpoint
from regbayes.persistence import PersistenceError, load, save

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


class CrashError(Exception):
    """The fit crashed."""


class CrashAt:
    """Callback that raises after some iterations."""

    def __init__(self, n_iterations):
        self.left = n_iterations

    def setup(self, estimator, context): ...

    def teardown(self, estimator, context): ...

    def on_fit_task_begin(self, estimator, context): ...

    def on_fit_task_end(self, estimator, context):
        self.left -= context.task_name == "iteration"
        if self.left == 0:
            raise CrashError


def crash(name, path, n_iterations):
    model, X, y = make(name)
    with pytest.raises(CrashError):
        model.set_callbacks(Checkpoint(path, seconds=0), CrashAt(n_iterations)).fit(X, y)


def fit(name, path=None):
    model, X, y = make(name)
    if path is not None:
        model.set_callbacks(Checkpoint(path, seconds=0))
    return model.fit(X, y)


def read_result(model, path):
    """Return a file with all attributes of a model except the seconds of its iterations."""
    model.trace_ = replace(model.trace_, elapsed=np.zeros(len(model.trace_)))
    save(model, path)
    return path.read_bytes()


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """Return a function of a name that returns the result of an uninterrupted fit."""
    results = {}

    def find(name):
        if name not in results:
            results[name] = read_result(fit(name), tmp_path_factory.mktemp("results") / "model")
        return results[name]

    return find


@pytest.mark.parametrize("name", MODELS)
def test_resumed_fit_equals_uninterrupted_fit(name, tmp_path, uninterrupted):
    path = tmp_path / "fit.checkpoint"
    for n_iterations in (2, 5):
        crash(name, path, n_iterations)
        assert path.exists()
    assert read_result(fit(name, path), tmp_path / "model") == uninterrupted(name)
    assert not path.exists()


KILLED = list(MODELS)[:4]
FEW = [pytest.param(n, marks=() if n < 2 else pytest.mark.slow) for n in range(20)]


@pytest.mark.parametrize("number", FEW)
def test_fit_killed_at_random_moment_is_resumed(number, tmp_path, uninterrupted):
    name, path = KILLED[number % len(KILLED)], tmp_path / "fit.checkpoint"
    uninterrupted(name)  # compiles
    script = Path(__file__).parents[1] / "helpers" / "checkpoint_tools.py"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, script, name, path], stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout.readline() == b"ready\n"
        time.sleep(random.Random(number).uniform(0.02, 1.0))
        process.kill()
        process.wait()
    assert read_result(fit(name, path), tmp_path / "model") == uninterrupted(name)


def test_stopped_fit_keeps_its_checkpoint(tmp_path, uninterrupted):
    class Stop(CrashAt):
        def on_fit_task_end(self, estimator, context):
            self.left -= context.task_name == "iteration"
            return self.left <= 0

    (model, X, y), path = make("iLSVM"), tmp_path / "fit.checkpoint"
    model.set_callbacks(Checkpoint(path, seconds=0), Stop(4)).fit(X, y)
    assert path.exists()
    assert read_result(fit("iLSVM", path), tmp_path / "model") == uninterrupted("iLSVM")


def test_checkpoint_writes_at_most_every_interval(tmp_path):
    (model, X, y), path = make("iLSVM"), tmp_path / "fit.checkpoint"
    with pytest.raises(CrashError):
        model.set_callbacks(Checkpoint(path), CrashAt(5)).fit(X, y)
    assert not path.exists()


def test_partial_fit_ignores_checkpoint(tmp_path):
    for name in ("iLSVM", "MedLDA by Gibbs"):
        model, X, y = make(name)
        model.set_params(random_state=None)  # not valid for a fit with a checkpoint
        callbacks = [Checkpoint(tmp_path / "c", seconds=0), CrashAt(2)]
        with pytest.raises(CrashError):
            model.set_callbacks(*callbacks).partial_fit(X, y, classes=np.unique(y))
    assert not list(tmp_path.iterdir())


def test_checkpoint_keeps_no_snapshots_after_a_fit(tmp_path):
    (model, X, y), checkpoint = make("iLSVM"), Checkpoint(tmp_path / "c", seconds=0)
    model.set_callbacks(checkpoint)
    size = len(pickle.dumps(checkpoint))
    model.fit(X, y)
    assert len(pickle.dumps(checkpoint)) < size + 500


def test_damaged_or_foreign_checkpoint_raises(tmp_path):
    path = tmp_path / "fit.checkpoint"
    crash("MedLDA by Gibbs", path, 5)
    intact = path.read_bytes()
    for place in random.Random(0).sample(range(len(intact)), 20):
        path.write_bytes(intact[:place] + bytes([intact[place] ^ 16]) + intact[place + 1 :])
        with pytest.raises(PersistenceError, match=re.escape(f"cannot load {path}")):
            fit("MedLDA by Gibbs", path)
    path.write_bytes(intact)
    (model, X, y), file = make("MedLDA by Gibbs"), load(path)
    model.set_callbacks(Checkpoint(path))
    for parameters, rows in (({"C": 2.0}, slice(None)), ({}, slice(100))):
        with pytest.raises(ValueError, match="is the checkpoint of another fit"):
            model.set_params(**parameters).fit(X[rows], y[rows])
        model.set_params(C=1.0)
    file.runs[0].state.counts.topics[0] = 1000
    save(file, path)
    with pytest.raises(PersistenceError, match="topics and counts are out of range"):
        model.fit(X, y)
    save(regbayes.ILSVMClassifier(), path)
    with pytest.raises(PersistenceError, match="it is not a checkpoint"):
        model.fit(X, y)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"random_state": None}, "`random_state` must be an integer"),
        ({"warm_start": True}, "`warm_start` must be False"),
    ],
)
def test_fit_that_cannot_be_repeated_raises(parameters, message, tmp_path):
    model, X, y = make("iLSVM")
    with pytest.raises(ValueError, match=message):
        model.set_params(**parameters).set_callbacks(Checkpoint(tmp_path / "c")).fit(X, y)
    with pytest.raises(ValueError, match="`seconds` must be"):
        Checkpoint(tmp_path / "c", seconds=-1.0)
