"""End-to-end runs of fit, report, evaluate and predict for every kind of table."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import dump_svmlight_file
from sklearn.metrics import accuracy_score, f1_score

from cli_tools import LAW, PRAISE, SPORT, document, run_here
from regbayes import load
from report_tools import payload

QUICK = ("--n-components", 4, "--max-iter", 5, "--folds", 2, "--C", 1)
ONE_SETTING = ("--temperature", 0.1, "--features-only")  # one setting of MT-iLSVM
N = 60


def numbers(rng: np.random.Generator, n: int = N, d: int = 3) -> pd.DataFrame:
    return pd.DataFrame(rng.standard_normal((n, d)).round(4), columns=[f"x{i}" for i in range(d)])


def sign(values: np.ndarray) -> np.ndarray:
    return np.where(values > 0, "yes", "no")


def classes(rng):
    X = numbers(rng)
    return X.assign(kind=np.array(["rose", "lily", "aster"])[np.digitize(X["x0"] + X["x1"], [-0.7, 0.7])]), ["kind"], ()


def many_categories(rng):
    place = rng.integers(30, size=N)
    return pd.DataFrame({"place": [f"p{i}" for i in place], "kind": sign(place - 15)}), ["kind"], ()


def one_hot_columns(rng):
    place = rng.integers(6, size=N)
    return pd.get_dummies(pd.Series(place, name="place"), prefix="p").assign(kind=sign(place - 2.5)), ["kind"], ()


def dates(rng):
    days = rng.integers(0, 400, N)
    stamps, late = pd.Timestamp("2023-01-01") + pd.to_timedelta(days, unit="D"), sign(days - 200)
    late[:3] = ""  # rows are left out before the dates are split
    return numbers(rng).assign(day=stamps.strftime("%d.%m.%Y"), late=late), ["late"], ()


def missing_values(rng):
    X = numbers(rng).assign(word=rng.choice(["a", "b"], N))
    target = sign(X["x0"])
    X.loc[::5, "x0"], X.loc[::7, "word"], target[3] = np.nan, None, ""
    return X.assign(kind=target), ["kind"], ()


def survey_weights(rng):
    X = numbers(rng)
    return X.assign(kind=sign(X["x0"]), w=rng.uniform(0.1, 2, N).round(1)), ["kind"], ("--weight", "w")


def rare_class(rng):
    X = numbers(rng)
    kind = np.where(np.argsort(np.argsort(X["x0"])) < 4, "fraud", "fine")
    return X.assign(kind=kind), ["kind"], ("--balanced",)


def few_rows(rng):
    X = numbers(rng, 9)
    return X.assign(kind=["a", "b", "b"] * 3), ["kind"], ()


def many_columns(rng):
    X = numbers(rng, 30, 80)
    return X.assign(kind=sign(X["x0"])), ["kind"], ()


def several_labels(rng):
    X = numbers(rng)
    labels = {"sad": (X["x0"] > 0).astype(int), "glad": (X["x1"] > 0).astype(int)}
    return X.assign(**labels), ["sad", "glad"], ()


def one_number(rng):
    X = numbers(rng)
    return X.assign(price=(X["x0"] - X["x1"]).round(4)), ["price"], ()


def number_with_tasks(rng):
    X = numbers(rng).assign(school=[f"s{i % 3}" for i in range(N)])
    return X.assign(score=(X["x0"] + np.arange(N) % 3).round(4)), ["score"], ("--task", "school")


def several_numbers(rng):
    X = numbers(rng)
    Y = {"sum": (X["x0"] + X["x1"]).round(4), "difference": (X["x0"] - X["x1"]).round(4)}
    return X.assign(**Y), ["sum", "difference"], ()


def counts(rng):
    X = numbers(rng)
    return X.assign(visits=rng.poisson(30 + 12 * (X["x0"] > 0))), ["visits"], ()


def short_texts(rng):
    rows = [document(LAW if i % 2 else SPORT, rng, 6) for i in range(N)]
    return (
        pd.DataFrame({"text": rows, "subject": np.where(np.arange(N) % 2, "law", "sport")}),
        ["subject"],
        (*("--text", "text", "--inference", "variational"),),
    )


def constant_and_identifier_columns(rng):
    X = numbers(rng)
    return (
        X.assign(kind=sign(X["x0"]), same=1, word="w", id=[f"r{i}" for i in range(N)], row=np.arange(N)),
        ["kind"],
        ("--names", "id", "--ignore", "row"),
    )


CASES = (
    *(classes, many_categories, one_hot_columns, dates, missing_values, survey_weights, rare_class, few_rows),
    *(many_columns, several_labels, one_number, number_with_tasks, several_numbers, counts, short_texts),
    constant_and_identifier_columns,
)
KINDS = {several_labels: "multilabel"} | dict.fromkeys(
    (one_number, number_with_tasks, several_numbers, counts), "regressor"
)


def write(folder: Path, case) -> tuple[pd.DataFrame, list[str], tuple]:
    """Write a table; return it, its targets and the command that fits it."""
    frame, targets, options = case(np.random.default_rng(0))
    frame.to_csv(folder / "t.csv", index=False)
    named = [part for name in targets for part in ("--target", name)]
    return frame, targets, ("fit", folder / "t.csv", *named, "-o", folder / "m", *QUICK, *options)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_commands_run_on_every_kind_of_table(tmp_path, case):
    frame, targets, fit = write(tmp_path, case)
    path, model, page = tmp_path / "t.csv", tmp_path / "m", tmp_path / "page.html"
    done = run_here(*fit, *(ONE_SETTING if case in KINDS else ()), "--json")
    assert done.code == 0, done.err
    fitted = done.json
    assert fitted["kind"] == KINDS.get(case, "classifier")
    assert fitted["cross_validation"]["folds"] == 2
    observed = frame[frame[targets[0]] != ""]
    assert fitted["rows"] == len(observed)

    assert run_here("report", model, "-o", page).code == 0
    assert payload(page.read_text(encoding="utf-8"))["model"]["n_rows"] == len(observed)
    assert run_here("report", model, path, "-o", page).code == 0

    predicted = list(csv.DictReader(io.StringIO(run_here("predict", model, path, "--features").out)))
    assert len(predicted) == len(frame)
    judged = run_here("evaluate", model, path, "--json").json
    assert judged["rows"] == len(observed)
    pairs = [(p[name], str(t)) for name in targets for p, t in zip(predicted, frame[name], strict=True) if t != ""]
    if KINDS.get(case) == "regressor":
        found, truth = np.array(pairs, dtype=float).T
        assert np.corrcoef(found, truth)[0, 1] > 0
    else:
        accuracy = np.average([found == true for found, true in pairs], weights=observed.get("w"))
        names = ("accuracy", "accuracy over all labels")
        assert accuracy == pytest.approx(next(judged["scores"][name] for name in names if name in judged["scores"]))
    if KINDS.get(case) == "multilabel":
        truth, found = frame[targets].to_numpy(), pd.DataFrame(predicted)[targets].astype(int).to_numpy()
        assert judged["scores"]["F1, micro"] == pytest.approx(f1_score(truth, found, average="micro"))
        assert judged["scores"]["all labels of a row right"] == pytest.approx(accuracy_score(truth, found))

    loaded = load(model)
    kept = frame.drop(columns=targets)
    if "--task" not in fit:
        np.testing.assert_array_equal(loaded.predict(kept), loaded.pipeline.predict(kept))
    if case not in KINDS:
        shares = loaded.predict_proba(kept)
        assert shares.shape == (len(frame), len(loaded.estimator.classes_))
        np.testing.assert_allclose(shares.sum(axis=1), 1)


def test_fit_names_left_out_columns(tmp_path):
    *_, fit = write(tmp_path, constant_and_identifier_columns)
    said = run_here(*fit[: fit.index("--names")], "--no-cv").err
    assert "left out, constant: 'same', 'word'" in said
    assert "left out, text that is different in most rows: 'id'" in said
    assert "whole numbers that rise from row to row: 'row'. To leave them out: --ignore" in said


def test_many_integer_targets_are_regression_by_default(tmp_path):
    frame, _, fit = write(tmp_path, counts)
    assert frame["visits"].nunique() > 20
    assert run_here(*fit, "--no-cv", "--json").json["estimator"] == "ILSVMRegressor"
    assert run_here(*fit, "--no-cv", "--json", "--kind", "classifier").json["estimator"] == "ILSVMClassifier"


def test_unreadable_cells_become_missing_with_warning(tmp_path):
    """An unreadable cell must not end a prediction; it counts as missing."""
    frame, _, fit = write(tmp_path, one_number)
    assert run_here(*fit, "--no-cv").code == 0
    odd, empty = frame.astype(object), frame.astype(object)
    odd.loc[[2, 7], "x0"], empty.loc[[2, 7], "x0"] = "n.a!", None
    odd.loc[3, "price"] = "cheap"
    found = []
    for table in (odd, empty):
        table.to_csv(tmp_path / "new.csv", index=False)
        found.append(run_here("predict", tmp_path / "m", tmp_path / "new.csv", "--json").json)
    assert found[0]["columns"] == found[1]["columns"]
    said = "column 'x0' held numbers in training; 'n.a!' and the like in 2 rows count as missing"
    assert [said in one["warnings"] for one in found] == [True, False]
    odd.to_csv(tmp_path / "new.csv", index=False)
    judged = run_here("evaluate", tmp_path / "m", tmp_path / "new.csv", "--json")
    assert (judged.code, judged.json["rows"]) == (0, N - 1)
    assert any("'cheap' and the like in 1 row" in warning for warning in judged.json["warnings"])


def test_fit_names_setting_and_compares_with_other(tmp_path):
    *_, fit = write(tmp_path, classes)
    shown, model = run_here(*fit), load(tmp_path / "m")
    assert "setting   interpretable (sparse nonnegative features); soft ones: --slab none" in shown.out
    other = next(row for row in model.facts["comparison"]["systems"] if row["role"] == "predictive")
    assert "--slab none" in other["name"]
    assert 0 <= other["score"] <= 1
    assert other["name"] in model.report.comparison.names
    assert model.estimator.slab == "half-normal"
    shown = run_here(*fit, "--slab", "none", "--json").json
    assert shown["setting"] == "predictive"
    assert [row["role"] for row in shown["comparison"]["systems"]][-1] == "interpretable"


def test_stability_is_in_report_and_json(tmp_path):
    *_, fit = write(tmp_path, classes)
    done = run_here(*fit, "--no-cv", "--stability", 2, "--json")
    assert done.code == 0, done.err
    shown = load(tmp_path / "m").report.features
    returned = {row["feature"]: row["returned"] for row in done.json["stability"]["features"]}
    assert [returned[k] for k in shown.number.tolist()] == shown.returned.tolist()


def test_word_counts_are_documents_or_columns(tmp_path):
    path, y = tmp_path / "t.svm", np.arange(40) % 2
    rng = np.random.default_rng(0)
    dump_svmlight_file(rng.poisson(np.where(y[:, None] == [0, 0, 1, 1], 4.0, 0.3)), y, str(path))
    fit = ("fit", path, "-o", tmp_path / "m", *QUICK[:4], "--no-cv", "--json")
    assert run_here(*fit).json["estimator"] == "ILSVMClassifier"
    assert run_here(*fit, "--model", "medlda").json["estimator"] == "MedLDAClassifier"
    assert run_here("evaluate", tmp_path / "m", path, "--json").json["scores"]["accuracy"] > 0.5


def test_topics_support_both_inference_methods(tmp_path):
    *_, fit = write(tmp_path, short_texts)
    found = run_here(*fit[: fit.index("--inference")], "--no-compare", "--json").json
    assert {one["inference"] for one in found["cross_validation"]["candidates"]} == {"gibbs", "variational"}
    assert found["settings"]["inference"] in ("gibbs", "variational")


def test_documents_may_have_several_labels(tmp_path):
    rng = np.random.default_rng(0)
    there = np.array([[i % 2, (i // 2) % 2] for i in range(N)])
    texts = [" ".join(document(w, rng) * t for w, t in zip((SPORT, LAW), row, strict=True)) for row in there]
    frame = pd.DataFrame({"text": [f"{text} {PRAISE[0]}" for text in texts], "sport": there[:, 0], "law": there[:, 1]})
    frame.to_csv(tmp_path / "t.csv", index=False)
    fit = ("fit", tmp_path / "t.csv", "--text", "text", "-t", "sport", "-t", "law", "-o", tmp_path / "m", *QUICK[:4])
    assert run_here(*fit, "--no-cv", "--json").json["kind"] == "multilabel"
    scores = run_here("evaluate", tmp_path / "m", tmp_path / "t.csv", "--json").json["scores"]
    assert scores["F1, macro"] > 2 / 3  # score of always predicting yes
    frame.replace({"sport": {1: 2}}).to_csv(tmp_path / "t.csv", index=False)
    assert "must be 0 or 1 each; 'sport', 'law' hold '0', '1', '2'" in run_here(*fit).err
