"""Ctrl-C and SIGTERM: no result is lost after the first fit of a search."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import regbayes
from cli_tools import Run, run_here
from regbayes import load
from regbayes.cli import interrupts
from regbayes.cli.fit import SearchWatch
from regbayes.search import FoldRecord

SEARCH = ("--n-components", 3, "--max-iter", 4, "--folds", 3, "--C", 0.1, "--C", 1, "--C", 10, "--json")
SMALL = ("--n-components", 2, "--max-iter", 2, "--folds", 2, "--C", 0.3, "--C", 1, "--json")
PACKAGE = Path(regbayes.__file__).parent
TRACED = tuple(str(PACKAGE / place) for place in ("cli", "estimators/path_search", "estimators/_search"))

Line = tuple[str, int]


def write_table(folder: Path, n: int, d: int) -> Path:
    X = np.random.default_rng(0).standard_normal((n, d))
    np.savez(folder / "t.npz", X=X, y=(X[:, 0] + X[:, 1] > 0).astype(int))
    return folder


@pytest.fixture
def data(tmp_path):
    return write_table(tmp_path, 90, 4)


@pytest.fixture(autouse=True)
def hears():
    """Enable Ctrl-C, which background processes of a shell ignore, and restore the handler."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


class Lines:
    """Tracer that sends a signal when a line is first executed after the first record of a fit."""

    def __init__(self, at: Line | None = None, number: signal.Signals = signal.SIGINT) -> None:
        self.at = at
        self.number = number
        self.seen: dict[Line, None] = {}
        self.armed = False
        self.sent = False

    def __call__(self, frame, event, _arg) -> Callable | None:
        """Trace calls of functions in the traced files."""
        return self.trace if frame.f_code.co_filename.startswith(TRACED) else None

    def trace(self, frame, event, _arg) -> Callable:
        name = frame.f_code.co_name
        if event == "return" and name == "__call__" and isinstance(frame.f_locals.get("self"), SearchWatch):
            self.armed = True
        if event == "return" and name == "fit" and frame.f_code.co_filename.endswith("cli/app.py"):
            self.armed = False  # all files are written
        if event == "line" and self.armed:
            line = (frame.f_code.co_filename, frame.f_lineno)
            self.seen[line] = None
            if line == self.at and not self.sent:
                self.sent = True
                signal.raise_signal(self.number)
        return self.trace


def fit_traced(data: Path, lines: Lines) -> Run:
    """Run a fit with traced lines."""
    before = sys.gettrace()
    sys.settrace(lines)
    try:
        return run_here("fit", data / "t.npz", "-o", data / "m", *SMALL)
    finally:
        sys.settrace(before)


@pytest.fixture(scope="module")
def all_lines(tmp_path_factory) -> list[Line]:
    """Lines that a fit executes after its first record, in order."""
    lines = Lines()
    assert fit_traced(write_table(tmp_path_factory.mktemp("lines"), 40, 2), lines).code == 0
    assert len(lines.seen) > 200
    return list(lines.seen)


def check_injection(all_lines: list[Line], data: Path, places: list[int], number: signal.Signals) -> None:
    write_table(data, 40, 2)
    lost = []
    for place in places:
        (data / "m").unlink(missing_ok=True)
        lines = Lines(all_lines[place], number)
        done = fit_traced(data, lines)
        assert lines.sent
        whole = done.code in (0, 130) and (data / "m").exists() and "Traceback" not in done.err
        if not whole or (done.code == 130) != (done.json["interrupted"] or done.json["comparison"]["interrupted"]):
            lost.append((all_lines[place], done.code, done.err))
    assert not lost, f"{len(lost)} of {len(places)}: {lost[0]}"
    assert run_here("predict", data / "m", data / "t.npz").code == 0


def test_interrupt_at_sampled_line_leaves_a_model(all_lines, data):
    places = np.linspace(0, len(all_lines) - 1, 20).astype(int).tolist()
    check_injection(all_lines, data, places[::2], signal.SIGINT)
    check_injection(all_lines, data, places[1::2], signal.SIGTERM)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(8))
def test_interrupt_at_every_third_line_leaves_a_model(all_lines, data, part):
    check_injection(all_lines, data, list(range(3 * part, len(all_lines), 24)), signal.SIGINT)


def send_after(n: int, numbers: tuple[int, ...], monkeypatch) -> list[FoldRecord]:
    """Send signals after `n` fits of a search; return the list of its records."""
    heard, records = SearchWatch.__call__, []

    def hear(watch, record):
        records.append(record)
        if len(records) == n:
            watch.records.append(record)
            for number in numbers:
                signal.raise_signal(number)
        heard(watch, record)

    monkeypatch.setattr(SearchWatch, "__call__", hear)
    return records


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_ends_search_and_keeps_best_settings(data, monkeypatch, number):
    handler = signal.getsignal(signal.SIGTERM)
    records = send_after(7, (number,), monkeypatch)
    done = run_here("fit", data / "t.npz", "-o", data / "m", *SEARCH)
    assert done.code == 130, done.err
    assert signal.getsignal(signal.SIGTERM) is handler
    found = done.json
    everywhere = {record.params["C"] for record in records if record.fold == 2}  # two full folds and one fit
    assert {found["settings"]["C"]} == everywhere
    assert found["cross_validation"]["folds"] == 3
    assert "Interrupted after 7 of 9 fits: the best of 1 setting tried on 3 of 3 folds is kept" in found["kept"]
    assert "the last fit, to all rows, was finished" in found["kept"]
    assert any(f"(C={found['settings']['C']})" in warning for warning in found["warnings"])
    assert [row["role"] for row in found["comparison"]["systems"]] == ["model", "baseline"]  # the others are skipped
    model = load(data / "m")
    assert "stopped" in repr(model)
    level, said = model.report.model.notices[0]
    assert (level, found["kept"] in said) == ("warning", True)


def test_signal_before_full_folds_keeps_best_tried_setting(data, monkeypatch):
    records = send_after(2, (signal.SIGTERM,), monkeypatch)
    found = run_here("fit", data / "t.npz", "-o", data / "m", *SEARCH).json
    best = max(records, key=lambda record: record.score)
    assert found["settings"] == {"C": best.params["C"]}
    assert "the best of 2 settings tried on 1 of 3 folds" in found["kept"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_ends_search_with_two_processes(data, monkeypatch, number):
    records = send_after(1, (number, number), monkeypatch)
    done = run_here("fit", data / "t.npz", "-o", data / "m", "--jobs", 2, *SEARCH)
    assert done.code == 130, done.err
    assert len(records) >= 1
    assert f"Interrupted after {len(records)} of 9 fits" in done.json["kept"]
    assert "Traceback" not in done.err
    assert run_here("predict", data / "m", data / "t.npz").code == 0


def test_signal_before_first_fit_writes_nothing(data, monkeypatch):
    before = SearchWatch.__init__

    def interrupt(watch, *given):
        before(watch, *given)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(SearchWatch, "__init__", interrupt)
    done = run_here("fit", data / "t.npz", "-o", data / "m", *SEARCH)
    assert (done.code, (data / "m").exists()) == (130, False)
    assert "nothing was written" in done.err


def test_seconds_left_uses_median_fit_time():
    """The first fit includes compilation and is not representative."""
    from regbayes.cli.output import Output

    watch = SearchWatch(10, 1, Output(quiet=True))
    for seconds in (3600.0, 2.0, 2.0, 3.0):
        watch(FoldRecord({}, 0, {"score": 1.0}, seconds, 0.0, None, np.arange(2), None, None))
    assert watch.seconds_left() == pytest.approx(2.5 * 7)


def test_ignored_signal_stays_ignored():
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with interrupts.catch_signals():
            signal.raise_signal(signal.SIGTERM)
            time.sleep(0.01)
            assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)
