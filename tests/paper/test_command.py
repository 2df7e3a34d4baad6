"""`regbayes reproduce` and `regbayes_paper.experiments.run`: what they print, write, return and refuse."""

from __future__ import annotations

import json
from typing import get_args

import pytest

import regbayes_paper.experiments
from experiments_tools import Toy
from regbayes.cli.app import main
from regbayes.cli.reproduce import What
from regbayes_paper.experiments import EXPERIMENTS, data, run
from regbayes_paper.experiments.store import Cell


@pytest.fixture
def toy_command(monkeypatch):
    """The command runs the toy experiment in the place of Table 1."""
    toys: list[Toy] = []

    def made(name: str, *, quick: bool = False) -> Toy:
        toys.append(Toy(quick))
        return toys[-1]

    monkeypatch.setattr(regbayes_paper.experiments, "make", made)
    return toys


def command(*arguments: str) -> int:
    with pytest.raises(SystemExit) as stop:
        main(["reproduce", *arguments])
    return int(stop.value.code or 0)


def test_the_command_prints_tables_and_writes_files(toy_command, tmp_path, capsys):
    assert command("table1", "--quick", "--output", str(tmp_path / "new"), "--seeds", "2") == 0
    out, err = capsys.readouterr()
    assert "A toy table" in out
    assert "absent       not available yet" in out
    assert "[4/4]" in err
    assert (tmp_path / "new" / "toy-quick.csv").exists()
    assert len(toy_command[0].evaluated) == 4


def test_the_command_as_json(toy_command, tmp_path, capsys):
    assert command("table1", "-o", str(tmp_path), "--json", "--quiet") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["computed"] == len(found["cells"]) == 6
    assert found["cells"][0]["values"] == {"accuracy": 0.5, "explained": 0.25}


def test_exit_codes(monkeypatch, tmp_path, capsys):
    class Broken(Toy):
        def __init__(self, quick: bool = False) -> None:
            super().__init__(quick)
            self.broken = "two"

    class Stopped(Toy):
        def __init__(self, quick: bool = False) -> None:
            super().__init__(quick)
            self.stop_at = Cell("data", "two", "", 0)

    for experiment, code in ((Broken, 1), (Stopped, 130)):
        monkeypatch.setattr(regbayes_paper.experiments, "make", lambda name, quick, made=experiment: made(quick))
        assert command("table1", "-o", str(tmp_path / experiment.__name__)) == code
    assert command("nonsense") == 2
    assert command("table1", "--seeds", "0") == 2
    assert command("table1", "--jobs", "0", "-o", str(tmp_path)) == 2
    (tmp_path / "file").write_text("")
    assert command("table1", "-o", str(tmp_path / "file")) == 2
    monkeypatch.undo()
    monkeypatch.setenv("REGBAYES_DATA", str(tmp_path / "nowhere"))
    data._read.cache_clear()
    assert command("school", "--quick", "-o", str(tmp_path)) == 5
    assert "nowhere" in capsys.readouterr().err


def test_bad_arguments_of_run(tmp_path):
    with pytest.raises(ValueError, match=r"name must be one of table1, .* got 'table3'"):
        run("table3", output=tmp_path)
    with pytest.raises(ValueError, match="seeds must be at least 1, got 0"):
        run("table1", output=tmp_path, seeds=0)
    with pytest.raises(ValueError, match=r"jobs must be .* got 0"):
        run("table1", output=tmp_path, jobs=0)


def test_the_command_knows_every_experiment():
    assert get_args(What) == tuple(EXPERIMENTS)
