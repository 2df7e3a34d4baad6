"""Ctrl-C and SIGTERM: what was found so far is kept, and what is said about it is true."""

from __future__ import annotations

import os
import signal
import threading
import time

import joblib
import numpy as np
import pytest

from cli_tools import run_here
from regbayes import load
from regbayes.cli import interrupts, search
from regbayes.cli.progress import SearchWatch
from regbayes.estimators._search import _collect_records

SEARCH = ("--n-components", 3, "--max-iter", 4, "--folds", 3, "--C", 0.1, "--C", 1, "--C", 10, "--json")


@pytest.fixture
def data(tmp_path):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((90, 4))
    np.savez(tmp_path / "t.npz", X=X, y=(X[:, 0] + X[:, 1] > 0).astype(int))
    return tmp_path


@pytest.fixture(autouse=True)
def hears():
    """Let this process hear Ctrl-C, as one that a shell put into the background does not; and be as it was."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def send_after(n: int, numbers: tuple[int, ...], monkeypatch) -> list:
    """Send signals to this process when a search has told of so many fits; return the list of its records."""
    heard, records = SearchWatch.__call__, []

    def hear(watch, record):
        heard(watch, record)
        records.append(record)
        if len(records) == n:
            send_all(numbers)

    monkeypatch.setattr(SearchWatch, "__call__", hear)
    return records


def send_all(numbers: tuple[int, ...]) -> None:
    """Send signals to this process; the first one raises, and the others come all the same."""
    if numbers:
        try:
            os.kill(os.getpid(), numbers[0])
        finally:
            send_all(numbers[1:])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_search_and_keeps_the_best_settings(data, monkeypatch, number):
    handler = signal.getsignal(signal.SIGTERM)
    records = send_after(7, (number,), monkeypatch)
    done = run_here("fit", data / "t.npz", "-o", data / "m", *SEARCH)
    assert done.code == 130, done.err
    assert signal.getsignal(signal.SIGTERM) is handler
    found = done.json
    assert found["interrupted"]
    assert len(records) == 7
    everywhere = {record.params["C"] for record in records if record.fold == 2}  # the paths of two folds, and one fit
    assert {found["settings"]["C"]} == everywhere
    assert found["cross_validation"]["folds"] == 3
    assert "Interrupted after 7 of 9 fits" in found["kept"]
    assert (
        "the best of 1 setting that was tried on 3 of 3 folds; the last fit, to all rows, was finished" in found["kept"]
    )
    assert any(f"(C={found['settings']['C']})" in warning for warning in found["warnings"])
    assert [row["role"] for row in found["comparison"]["systems"]] == ["model", "baseline"]  # no more is fitted
    assert found["comparison"]["best_of"] == 1  # of three that there were to try
    assert "stopped" in repr(load(data / "m"))


def test_what_is_kept_is_named_where_no_setting_was_tried_on_every_fold(data, monkeypatch):
    records = send_after(2, (signal.SIGTERM,), monkeypatch)
    done = run_here("fit", data / "t.npz", "-o", data / "m", *SEARCH)
    best = max(records, key=lambda record: record.score)
    assert done.json["settings"] == {"C": best.params["C"]}
    assert done.json["cross_validation"]["folds"] == 1
    assert "the best of 2 settings that were tried on 1 of 3 folds" in done.json["kept"]
    assert any("the best of 2 settings on these folds" in said for said in done.json["comparison"]["messages"])


@pytest.mark.parametrize("pause", [None, 0.0, 0.05])
def test_a_second_signal_at_once_keeps_a_model_all_the_same(data, monkeypatch, pause):
    monkeypatch.setattr(interrupts, "GRACE", 0.0 if pause is None else 0.1)
    send_after(4, (signal.SIGINT,), monkeypatch)
    told = SearchWatch.tell_interrupted

    def tell(watch, *given, **named):
        told(watch, *given, **named)
        if pause is None:  # nothing is between what is told and the signal
            send_all((signal.SIGINT,))
        else:
            threading.Timer(pause, os.kill, (os.getpid(), signal.SIGINT)).start()

    monkeypatch.setattr(SearchWatch, "tell_interrupted", tell)
    long = ("--max-iter", 100_000, *SEARCH[4:], "--n-components", 30)
    done = run_here("fit", data / "t.npz", "-o", data / "m", *long)
    assert done.code == 130, done.err
    assert done.json["interrupted"]
    assert run_here("predict", data / "m", data / "t.npz").code == 0


def test_two_signals_with_two_processes_keep_the_best_state(data, monkeypatch):
    monkeypatch.setattr(interrupts, "GRACE", 0.2)
    records = send_after(1, (signal.SIGINT, signal.SIGINT), monkeypatch)
    done = run_here("fit", data / "t.npz", "-o", data / "m", "--jobs", 2, *SEARCH)
    assert done.code == 130, done.err
    assert done.json["interrupted"]
    assert len(records) >= 1
    assert f"Interrupted after {len(records)} of 9 fits" in done.json["kept"]
    assert "Traceback" not in done.err
    assert run_here("predict", data / "m", data / "t.npz").code == 0


@pytest.mark.parametrize(("name", "code"), [("fit_alone", 130), ("learn_certainty", 0)])
def test_a_signal_just_before_or_after_the_last_fit_does_not_cost_the_model(data, monkeypatch, name, code):
    meant, sent = getattr(search, name), []

    def interrupt(*given):
        sent.append(name)
        send_all((signal.SIGINT,))
        return meant(*given)

    monkeypatch.setattr(search, name, interrupt)
    small = ("--C", 0.001, "--C", 0.01)  # the best is the largest: another is tried, and fitted
    done = run_here("fit", data / "t.npz", "-o", data / "m", *SEARCH[:6], *small, "--json")
    assert (sent, done.code) == ([name], code), done.err
    assert done.json["settings"] == {"C": 0.1}
    assert run_here("predict", data / "m", data / "t.npz").code == 0


def test_records_of_other_processes_come_one_by_one_and_whole(tmp_path):
    for i in (2, 0, 1):
        joblib.dump(i, tmp_path / f"{i}.record")
        os.utime(tmp_path / f"{i}.record", (i, i))
    joblib.dump(9, tmp_path / "9.part")  # of a process that was ended while it wrote
    assert list(_collect_records(str(tmp_path))) == [0, 1, 2]
    assert list(_collect_records(str(tmp_path))) == []


def send(number: int = signal.SIGTERM, wait: float = 0.05) -> None:
    os.kill(os.getpid(), number)
    time.sleep(wait)


def test_signals_wait_while_something_must_not_be_interrupted():
    done = []

    def work():
        with interrupts.held():
            send()
            done.append("whole")

    with interrupts.catch_signals():
        with pytest.raises(KeyboardInterrupt):
            work()
        assert done == ["whole"]
        with interrupts.held():
            send()
            interrupts.forget()


def test_a_second_signal_is_heard_later(monkeypatch):
    monkeypatch.setattr(interrupts, "GRACE", 0.2)
    with interrupts.catch_signals():
        began = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            send(signal.SIGINT, 1)
        with pytest.raises(KeyboardInterrupt):
            send(signal.SIGINT, 5)
        assert 0.15 < time.monotonic() - began < 4


def test_a_process_that_ignores_a_signal_goes_on_ignoring_it():
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with interrupts.catch_signals():
            os.kill(os.getpid(), signal.SIGTERM)
            assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)
