"""``regbayes fit --resume``: a killed search continues to the result of an uninterrupted one."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from cli_tools import run_here
from regbayes import load
from regbayes.search import read_records

FIT = ("--n-components", 3, "--max-iter", 5, "--folds", 3, "--no-compare", "--json")
GRID = [part for i in range(8) for part in ("--C", 0.01 * 2**i)]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Folder with a table and a model fitted without interruption."""
    folder = tmp_path_factory.mktemp("resume")
    X = np.random.default_rng(0).standard_normal((120, 5))
    np.savez(folder / "t.npz", X=X, y=(X[:, 0] + X[:, 1] * X[:, 2] > 0).astype(int))
    assert run_here("fit", folder / "t.npz", "-o", folder / "whole", *FIT, *GRID).code == 0
    return folder


def records_of(model: Path) -> list[Path]:
    return sorted(model.parent.glob(f"{model.name}.*.records"))


def assert_same_model(one: Path, other: Path) -> None:
    """Assert bitwise identical models, except for seconds and messages about records."""
    models = [load(path) for path in (one, other)]
    facts = [
        {name: value for name, value in model.facts.items() if name not in ("seconds", "comparison", "warnings")}
        for model in models
    ]
    assert facts[0] == facts[1]
    for name in ("coef_features_", "components_", "intercept_"):
        np.testing.assert_array_equal(*(getattr(model.estimator, name) for model in models))
    for name in ("temperatures", "biases"):
        np.testing.assert_array_equal(*(getattr(model.calibration, name) for model in models))


def kill_while_searching(place: Path, model: Path, delay: float) -> int:
    """Kill a fit `delay` seconds after its first record; return the number of records."""
    arguments = ("fit", place / "t.npz", "-o", model, *FIT, *GRID, "--resume")
    command = [sys.executable, "-m", "regbayes", *map(str, arguments)]
    process = subprocess.Popen(command, cwd=place, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    before = [path.stat().st_size for path in records_of(model)]
    while process.poll() is None and [path.stat().st_size for path in records_of(model)] == before:
        time.sleep(0.002)
    time.sleep(delay)
    process.kill()
    process.communicate()
    return sum(len(read_records(path)) for path in records_of(model))


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 20))])
def test_killed_search_resumes_to_same_model(place, seed):
    """The search is killed twice at random times; the second run must use the records of the first."""
    random, model, left = np.random.default_rng(seed), place / f"killed{seed}", [0]
    while len(left) < 3 and not model.exists():  # on a fast machine the fit may end before it is killed
        left.append(kill_while_searching(place, model, random.uniform(0, 0.4)))
    if not model.exists():
        assert 0 < left[1] <= left[2]
        done = run_here("fit", place / "t.npz", "-o", model, *FIT, *GRID, "--resume")
        assert done.code == 0, done.err
        assert re.search(rf"{left[2]} fits? of \S+ need not be made again", done.err)
        assert records_of(model) == []
    assert_same_model(model, place / "whole")


def test_resume_after_ctrl_c_finishes_search(place, monkeypatch):
    from regbayes.cli.fit import SearchWatch

    before, model = SearchWatch.__call__, place / "stopped"

    def stop(watch, record):
        if len(watch.records) == 6:
            signal.raise_signal(signal.SIGTERM)
        before(watch, record)

    with monkeypatch.context() as patched:
        patched.setattr(SearchWatch, "__call__", stop)
        done = run_here("fit", place / "t.npz", "-o", model, *FIT, *GRID)
    assert done.code == 130
    assert "--resume continues the search" in done.json["kept"]
    assert [len(read_records(path)) for path in records_of(model)] == [6]
    assert run_here("fit", place / "t.npz", "-o", model, *FIT, *GRID, "--resume").code == 0
    assert_same_model(model, place / "whole")


@pytest.fixture(scope="module")
def killed(place):
    """Record file of a killed search."""
    kill_while_searching(place, place / "begun", 0.0)
    return records_of(place / "begun")[0]


def begin(killed: Path, name: str) -> Path:
    """Copy the records of the killed search to a new model name and return it."""
    shutil.copy(killed, killed.with_name(killed.name.replace("begun", name)))
    return killed.with_name(name)


def test_resume_ignores_records_of_other_data_or_settings(place, killed):
    model = begin(killed, "other")
    done = run_here("fit", place / "t.npz", "-o", model, *FIT, *GRID, "--resume", "--seed", 1)
    assert any("found no unfinished search of these data and settings" in said for said in done.json["warnings"])
    assert len(records_of(model)) == 1  # the record of the first search
    again = run_here("fit", place / "t.npz", "-o", model, *FIT, *GRID)
    assert "--resume would continue it" in again.err
    assert records_of(model) == []
    assert_same_model(model, place / "whole")


@pytest.mark.parametrize(
    ("added", "code"), [(b'{"params": {"C"', 0), (b"x\n", 2), (b"\x80\x04\n", 2)], ids=["cut short", "text", "pickle"]
)
def test_damaged_records_raise_except_truncated_last_line(place, killed, added, code):
    model = begin(killed, f"damaged{len(added)}")
    (path,) = records_of(model)
    path.write_bytes(path.read_bytes() + added)
    done = run_here("fit", place / "t.npz", "-o", model, *FIT, *GRID, "--resume")
    assert (done.code, "delete it to begin again" in done.err) == (code, code == 2)


def test_full_disk_loses_records_but_not_search(place, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("regbayes.search.write_records", full)
    done = run_here("fit", place / "t.npz", "-o", place / "full", *FIT, *GRID)
    assert done.code == 0, done.err
    assert sum("No space left on device" in said for said in done.json["warnings"]) == 1
