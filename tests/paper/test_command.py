"""`python -m regbayes_paper` and `regbayes_paper.experiments.run`: what they print, write, return and reject."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

import regbayes_paper.experiments
from experiments_tools import Toy
from regbayes_paper.__main__ import main
from regbayes_paper.experiments import EXPERIMENTS, data, run
from regbayes_paper.experiments.store import Cell


class Broken(Toy):
    """One of its two systems raises an error."""

    def __init__(self, quick: bool = False) -> None:
        super().__init__(quick)
        self.broken = "two"


class Stopped(Toy):
    """The second measurement is interrupted."""

    def __init__(self, quick: bool = False) -> None:
        super().__init__(quick)
        self.stop_at = Cell("data", "two", "", 0)


@pytest.fixture
def made(monkeypatch):
    """Every experiment is a toy, `made.kind`; `made.names` and `made.toys` list what was run."""

    made = SimpleNamespace(kind=Toy, names=[], toys=[])

    def make(name: str, *, quick: bool = False) -> Toy:
        toy = made.kind(quick)
        toy.name = name
        made.names.append(name)
        made.toys.append(toy)
        return toy

    monkeypatch.setattr(regbayes_paper.experiments, "make", make)
    return made


def test_the_command_prints_tables_and_writes_files(made, tmp_path, capsys):
    assert main(["table1", "--quick", "--output", str(tmp_path / "new"), "--seeds", "2"]) == 0
    out, err = capsys.readouterr()
    assert "A toy table" in out
    assert "absent       not available yet" in out
    assert "[4/4]" in err
    assert (tmp_path / "new" / "table1-quick.csv").exists()
    assert len(made.toys[0].evaluated) == 4
    assert main(["table1", "--quick", "-o", str(tmp_path / "new"), "--seeds", "2", "--fresh"]) == 0
    assert len(made.toys[1].evaluated) == 4


def test_all_runs_every_experiment(made, tmp_path, capsys):
    made.kind = Broken
    assert main(["all", "--quick", "--seeds", "1", "-o", str(tmp_path)]) == 1
    assert made.names == list(EXPERIMENTS)
    assert "1 of 2 cells failed" in capsys.readouterr().err


@pytest.mark.parametrize(("kind", "code"), [(Broken, 1), (Stopped, 130)])
def test_exit_codes_of_incomplete_runs(made, tmp_path, kind, code):
    made.kind = kind
    assert main(["table1", "-o", str(tmp_path)]) == code


def test_ctrl_c_ends_all(made, tmp_path, capsys, monkeypatch):
    made.kind = Stopped
    assert main(["all", "-o", str(tmp_path)]) == 130
    assert made.names == ["table1"]
    assert "1 of 6 cells are there. The same command continues from here." in capsys.readouterr().err

    def stop(name: str, **_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(regbayes_paper.experiments, "make", stop)
    assert main(["all", "-o", str(tmp_path)]) == 130
    assert capsys.readouterr().err == "error: interrupted\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nonsense"], "invalid choice: 'nonsense' (choose from"),
        ([], "the following arguments are required: WHAT"),
        (["table1", "--seeds", "0"], "--seeds must be at least 1; got 0"),
        (["table1", "--jobs", "0"], "--jobs must be a number of processes, or -1 for one per core; got 0"),
    ],
)
def test_wrong_usage(arguments, message, capsys):
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    assert message in capsys.readouterr().err


def test_an_output_folder_that_cannot_be_made(made, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert main(["table1", "-o", str(tmp_path / "file")]) == 2
    assert f"--output {tmp_path / 'file'}: File exists" in capsys.readouterr().err


def test_a_data_folder_that_does_not_exist(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("REGBAYES_DATA", str(tmp_path / "nowhere"))
    data._read.cache_clear()
    assert main(["school", "--quick", "-o", str(tmp_path)]) == 5
    err = capsys.readouterr().err
    assert err.startswith("error: the environment variable REGBAYES_DATA names")
    assert "nowhere" in err


def test_the_package_is_a_command():
    command = [sys.executable, "-m", "regbayes_paper", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"COLUMNS": "120"}, check=True)
    assert done.stdout.startswith("usage: python -m regbayes_paper")
    assert all(name in done.stdout for name in EXPERIMENTS)


def test_bad_arguments_of_run(tmp_path):
    with pytest.raises(ValueError, match=r"name must be one of table1, .* got 'table3'"):
        run("table3", output=tmp_path)
    with pytest.raises(ValueError, match="seeds must be at least 1, got 0"):
        run("table1", output=tmp_path, seeds=0)
    with pytest.raises(ValueError, match=r"jobs must be .* got 0"):
        run("table1", output=tmp_path, jobs=0)
