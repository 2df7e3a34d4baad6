"""What all experiments share: cells that are measured once, kept, and printed."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path

import pytest

import regbayes
from experiments_tools import Toy
from regbayes_paper.experiments import runner
from regbayes_paper.experiments.runner import run_experiment
from regbayes_paper.experiments.store import Cell, Record, ResultStore, fingerprint


def silent(_: str) -> None:
    pass


def run(experiment: Toy, folder: Path, **options: object) -> runner.Outcome:
    return run_experiment(experiment, folder, say=silent, show=silent, **options)


def record(seed: int = 0, mark: str = "f") -> Record:
    return Record(Cell("data", "one", "", seed), mark, {"accuracy": 0.1 + 0.2}, 1.0, 2.0, None, {"C": 1}, {"a": [1.5]})


def test_the_store_gives_back_what_was_appended(tmp_path):
    store = ResultStore(tmp_path / "deep" / "toy.jsonl")
    assert store.read() == []
    store.append(record(0))
    store.append(record(1))
    assert store.read() == [record(0), record(1)]
    assert store.find({record(0).cell: "f", record(1).cell: "other"}) == {record(0).cell: record(0)}


def test_the_last_record_of_a_cell_counts(tmp_path):
    store = ResultStore(tmp_path / "toy.jsonl")
    later = replace(record(), values={"accuracy": 0.9})
    store.append(record())
    store.append(later)
    assert store.find({record().cell: "f"}) == {record().cell: later}


@pytest.mark.parametrize("kept", [0, 1, 40, -2])
def test_a_line_cut_short_by_a_crash_loses_that_record_only(tmp_path, kept):
    path = tmp_path / "toy.jsonl"
    store = ResultStore(path)
    store.append(record(0))
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:kept])
    store.append(record(1))
    assert store.read() == [record(0), record(1)]


def test_fingerprints_do_not_depend_on_the_order_of_keys():
    assert fingerprint({"a": 1, "b": [1, 2]}) == fingerprint({"b": [1, 2], "a": 1})
    assert fingerprint({"a": 1}) != fingerprint({"a": 2})


def test_a_second_run_measures_nothing(tmp_path):
    first, second = Toy(), Toy()
    assert run(first, tmp_path).computed == 6
    outcome = run(second, tmp_path)
    assert (outcome.computed, second.evaluated) == (0, [])
    assert len(outcome.records) == 6
    assert run(Toy(), tmp_path, n_seeds=4).computed == 2


def test_an_interrupted_run_goes_on_where_it_stopped(tmp_path):
    said: list[str] = []
    first, second = Toy(), Toy()
    first.stop_at = Cell("data", "two", "", 1)
    outcome = run_experiment(first, tmp_path, say=said.append, show=said.append)
    assert outcome.interrupted
    assert [r.cell for r in outcome.records] == first.evaluated == list(first.cells(3))[:3]
    assert "2 of 3" in outcome.text  # the table of what is there
    assert any("3 of 6 cells are there" in line for line in said)
    assert run(second, tmp_path).interrupted is False
    assert second.evaluated == list(first.cells(3))[3:]


def test_fresh_measures_everything_again(tmp_path):
    run(Toy(), tmp_path)
    assert run(Toy(), tmp_path, fresh=True).computed == 6


def test_a_changed_protocol_does_not_use_old_records(tmp_path, monkeypatch):
    run(Toy(), tmp_path)
    monkeypatch.setattr(Toy, "setting", 2)
    assert run(Toy(), tmp_path).computed == 6
    monkeypatch.setattr(Toy, "setting", 1)
    assert run(Toy(), tmp_path).computed == 0  # and going back finds the old ones


def test_another_version_does_not_use_old_records(tmp_path, monkeypatch):
    run(Toy(), tmp_path)
    monkeypatch.setattr(regbayes, "__version__", "0.0.0")
    assert run(Toy(), tmp_path).computed == 6


def test_quick_and_full_runs_are_kept_apart(tmp_path):
    run(Toy(quick=True), tmp_path)
    assert run(Toy(), tmp_path).computed == 6
    assert {path.name for path in tmp_path.glob("*.jsonl")} == {"toy.jsonl", "toy-quick.jsonl"}


def test_a_system_that_fails_is_printed_and_tried_again(tmp_path):
    first, second = Toy(), Toy()
    first.broken = "one"
    outcome = run(first, tmp_path)
    assert len(outcome.failed) == 3
    assert "failed: ValueError: it is broken" in outcome.text
    assert len(outcome.records) == 3
    assert run(second, tmp_path).failed == {}
    assert {cell.row for cell in second.evaluated} == {"one"}


def test_the_table_as_printed(tmp_path):
    text = run(Toy(), tmp_path).text
    assert text == textwrap.dedent(
        """\
        data: 3 rows
        A note.
                          accuracy   explained  n  fit s  search s   MB
        ---------------------------------------------------------------
        [paper]
        one          0.600 ± 0.100  25.0 ± 0.0  3   2.00      10.0  3.0
          the paper    0.900 ± 0.1        31.7
        absent       not available yet: needs regbayes.x.Y
          the paper          0.123
        [peers]
        two          0.600 ± 0.100  25.0 ± 0.0  3   2.00      10.0  3.0"""
    )


def test_the_protocol_and_the_metrics_are_printed_first(tmp_path):
    shown: list[str] = []
    run_experiment(Toy(quick=True), tmp_path, say=silent, show=shown.append)
    assert shown[0].startswith("A toy table\n===========\n\nQuick form")
    assert "Every cell is its seed." in shown[0]
    assert "  explained  explained variance, in percent" in shown[0]
    assert (tmp_path / "toy-quick.txt").read_text().startswith(shown[0])


def test_the_files_of_a_run(tmp_path):
    outcome = run(Toy(), tmp_path)
    with open(tmp_path / "toy-cells.csv", newline="") as file:
        cells = list(csv.DictReader(file))
    assert len(cells) == 6
    assert cells[0] | {"accuracy": float(cells[0]["accuracy"])} == {
        "dataset": "data",
        "row": "one",
        "setting": "",
        "seed": "0",
        "accuracy": 0.5,
        "explained": "0.25",
        "fit_seconds": "2",
        "search_seconds": "10",
        "memory_mb": "3",
        "chosen": "C=1.0",
        "fingerprint": outcome.records[0].fingerprint,
    }
    with open(tmp_path / "toy.csv", newline="") as file:
        summary = {(row["row"], row["metric"]): row for row in csv.DictReader(file)}
    assert float(summary["one", "accuracy"]["mean"]) == pytest.approx(0.6)
    assert float(summary["one", "accuracy"]["std"]) == pytest.approx(0.1)
    assert summary["one", "explained"]["paper"] == "31.7"
    assert summary["absent", "accuracy"]["note"] == "not available yet: needs regbayes.x.Y"
    assert (tmp_path / "toy.png").read_bytes() == b"drawn from 6 records"
    assert all(path.exists() for path in outcome.files)


def test_processes_measure_what_one_process_does(tmp_path):
    alone, together = run(Toy(), tmp_path / "1"), run(Toy(), tmp_path / "2", jobs=2)
    assert together.records == alone.records


SLOW = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where the tests run in the background
sys.path.insert(0, {tests!r})
from experiments_tools import Toy
from regbayes_paper.experiments.runner import run_experiment
from pathlib import Path
class Slow(Toy):
    def evaluate(self, cell):
        if cell.seed == 1:
            print("waiting", flush=True)
            time.sleep(60)
        return super().evaluate(cell)
run_experiment(Slow(), Path({folder!r}))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["Ctrl-C", "kill"])
def test_what_was_measured_survives_the_process(tmp_path, number):
    program = SLOW.format(tests=str(Path(__file__).parent / "helpers"), folder=str(tmp_path))
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert "waiting\n" in process.stdout
            os.kill(process.pid, number)
            rest, _ = process.communicate(timeout=30)
        finally:
            process.kill()
    if number == signal.SIGINT:
        assert process.returncode == 0
        assert "1 of 3" in rest
        assert "The same command continues from here" in rest
    stored = [json.loads(line)["cell"] for line in (tmp_path / "toy.jsonl").read_text().splitlines()]
    assert stored == [{"dataset": "data", "row": row, "setting": "", "seed": 0} for row in ("one", "two")]
    later = Toy()
    run(later, tmp_path)
    assert len(later.evaluated) == 4


def test_memory_of_what_is_measured():
    from regbayes_paper.experiments.measure import STATUS, measured

    if not STATUS.exists():
        pytest.skip("the system does not tell the memory of a process")
    with measured(memory=True) as usage:
        block = bytearray(64 * 2**20)
        block[:: 2**12] = b"x" * len(block[:: 2**12])
        time.sleep(0.01)
    assert 60 < usage.memory_mb < 90
    assert usage.seconds > 0.01
    del block
    with measured(memory=True) as usage:
        pass
    assert usage.memory_mb < 10  # the peak before is not counted again
