"""Probabilities on the command line: columns, thresholds, log loss and reliability."""

from __future__ import annotations

import csv
import io
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.datasets import make_multilabel_classification
from sklearn.metrics import log_loss

from cli_tools import flowers, reviews, run_here
from regbayes.cli.modelfile import load_model, predict_at

QUICK = ("--folds", 2, "--max-iter", 5, "--no-compare", "--quiet")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("probabilities")
    (folder / "flowers.csv").write_text(flowers())
    (folder / "reviews.csv").write_text(reviews(60))
    X, Y = make_multilabel_classification(160, n_features=5, n_classes=3, n_labels=1, random_state=0)
    lines = ["a,b,c,d,e,sad,glad,mad"] + [",".join(map(str, [*x, *labels])) for x, labels in zip(X, Y, strict=True)]
    (folder / "moods.csv").write_text("\n".join(lines[:81]))
    (folder / "new_moods.csv").write_text("\n".join([lines[0], *lines[81:]]))
    return folder


@pytest.fixture(scope="module")
def flower_model(place):
    path = place / "flowers.model"
    run = run_here("fit", place / "flowers.csv", "--target", "kind", "-o", path, "--n-components", 4, "--C", 1, *QUICK)
    assert run.code == 0, run.err
    return path


@pytest.fixture(scope="module")
def mood_model(place):
    path = place / "moods.model"
    targets = [part for name in ("sad", "glad", "mad") for part in ("--target", name)]
    options = ("--n-components", 4, "--C", 0.1, "--temperature", 0.1)
    run = run_here("fit", place / "moods.csv", *targets, "-o", path, *options, *QUICK)
    assert run.code == 0, run.err
    return path


def columns(text: str) -> dict[str, list[str]]:
    rows = list(csv.reader(io.StringIO(text)))
    return {name: [row[j] for row in rows[1:]] for j, name in enumerate(rows[0])}


def test_probability_columns_are_named_by_class(flower_model, place):
    found = columns(run_here("predict", flower_model, place / "flowers.csv", "--probabilities").out)
    classes = sorted(set(found["kind"]))
    names = [f"kind={label} probability" for label in classes]
    assert list(found) == ["kind", *names]
    shares = np.array([found[name] for name in names], dtype=float).T
    assert_allclose(shares.sum(axis=1), 1)
    assert [classes[k] for k in shares.argmax(axis=1)] == found["kind"]


def test_evaluate_reports_log_loss(flower_model, place):
    given = place / "flowers.csv"
    found = columns(run_here("predict", flower_model, given, "--probabilities").out)
    truth = columns(given.read_text())["kind"]
    shares = np.array([values for name, values in found.items() if name.endswith("probability")], dtype=float).T
    scores = json.loads(run_here("evaluate", flower_model, given, "--json").out)["scores"]
    assert_allclose(scores["log-loss"], log_loss(truth, shares))


def test_threshold_predicts_rare_class(flower_model, place):
    data = place / "flowers.csv"
    plain = columns(run_here("predict", flower_model, data, "--probabilities").out)
    rare = plain["kind"][-1]
    share = np.array(plain[f"kind={rare} probability"], dtype=float)
    cut = float(np.median(share))
    found = columns(run_here("predict", flower_model, data, "--threshold", f"{rare}={cut}").out)["kind"]
    assert_array_equal(np.array(found) == rare, share > cut)
    for text, message in (
        ("0.3", "give NAME=number, where NAME is one of"),
        ("nothing=0.3", "give NAME=number"),
        (f"{rare}=1.3", "between 0 and 1"),
        ("best", "between 0 and 1"),
    ):
        run = run_here("predict", flower_model, data, "--threshold", text)
        assert run.code == 2
        assert message in run.err


def test_threshold_applies_to_each_label(mood_model, place):
    data = place / "new_moods.csv"
    plain = columns(run_here("predict", mood_model, data, "--probabilities").out)
    names = ("sad", "glad", "mad")
    assert list(plain) == [*names, *(f"{name}=1 probability" for name in names)]
    shares = {name: np.array(plain[f"{name}=1 probability"], dtype=float) for name in names}
    for name in names:
        assert_array_equal(np.array(plain[name]) == "1", shares[name] > 0.5)
    cut = columns(run_here("predict", mood_model, data, "--threshold", 0.2, "--threshold", "mad=0.7").out)
    for name, at in zip(names, (0.2, 0.2, 0.7), strict=True):
        assert_array_equal(np.array(cut[name]) == "1", shares[name] > at)
    at_cut = json.loads(run_here("evaluate", mood_model, data, "--threshold", 0.2, "--json").out)["scores"]
    as_it_is = json.loads(run_here("evaluate", mood_model, data, "--json").out)["scores"]
    assert at_cut["log-loss"] == as_it_is["log-loss"]
    assert at_cut["F1, macro"] != as_it_is["F1, macro"]


def test_document_probabilities_need_cross_validation(place):
    path, data = place / "reviews.model", place / "reviews.csv"
    fit = ("fit", data, "--text", "review", "--target", "subject", "-o", path, "--n-components", 5, *QUICK)
    assert run_here(*fit, "--C", 1).code == 0
    found = columns(run_here("predict", path, data, "--probabilities").out)
    assert list(found)[1:] == ["subject=law probability", "subject=sport probability"]
    assert run_here(*fit, "--no-cv").code == 0
    run = run_here("predict", path, data, "--probabilities")
    assert (run.code, "no probabilities" in run.err) == (4, True)
    assert "log-loss" not in run_here("evaluate", path, data).out


def test_report_shows_reliability(mood_model, place):
    model = load_model(str(mood_model))
    bins = model.report.reliability
    assert bins.counts.sum() == 80 * 3
    assert np.all((bins.probability >= 0.5) & (bins.probability <= 1))
    assert "held-out rows" in bins.note
    page = place / "page.html"
    assert run_here("report", mood_model, place / "new_moods.csv", "-o", page).code == 0
    assert "Of new rows. Probability and share differ by" in page.read_text()


@settings(deadline=None)
@given(st.lists(st.floats(0.01, 1), min_size=3, max_size=3), st.floats(0.05, 0.95))
def test_predict_at_needs_probability_above_threshold(weights, threshold):
    shares = np.array([weights]) / np.sum(weights)
    (found,) = predict_at(shares, np.array([np.nan, threshold, np.nan]))
    assert (found == 1) == (shares[0, 1] > threshold)
    if found != 1:
        assert shares[0, found] == max(shares[0, 0], shares[0, 2])
    (free,) = predict_at(shares, np.full(3, np.nan))
    assert free == shares.argmax()
    (even,) = predict_at(shares, np.full(3, threshold))  # equal thresholds have no effect
    assert shares[0, even] == shares.max()
