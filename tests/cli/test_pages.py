"""Reports written by the command line, on training rows or new rows."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, confusion_matrix

from cli_tools import flowers, reviews, run_here
from regbayes.cli.modelfile import load_model
from regbayes.cli.read import read_table
from report_tools import payload

QUICK = ("--n-components", 4, "--max-iter", 8, "--folds", 2, "--seed", 1, "--quiet")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("pages")
    (place / "flowers.csv").write_text(flowers())
    (place / "new.csv").write_text(flowers(40, seed=5))
    done = run_here("fit", place / "flowers.csv", "-t", "kind", "-o", place / "flowers.model", "--C", 1, *QUICK)
    assert done.code == 0, done.err
    return place


def page_of(folder, *arguments):
    done = run_here("report", *arguments, "--output", folder / "page.html", "--json")
    assert done.code == 0, done.err
    return payload((folder / "page.html").read_text(encoding="utf-8")), done


def test_date_effects_are_those_of_date_parts(tmp_path):
    rng = np.random.default_rng(0)
    size, days = rng.normal(size=90), rng.integers(0, 90, 90)
    dates = np.datetime64("2024-01-01") + days
    kinds = np.where(size + (days > 58) > 0.5, "rose", "lily")
    lines = [f"{a:.3f},{b},{c}" for a, b, c in zip(size, dates, kinds, strict=True)]
    (tmp_path / "days.csv").write_text("\n".join(["size,day,kind", *lines]))
    done = run_here("fit", tmp_path / "days.csv", "-t", "kind", "-o", tmp_path / "m", "--C", 1, "--no-cv", *QUICK)
    assert done.code == 0, done.err
    effects = load_model(str(tmp_path / "m")).report.effects
    assert set(effects.names) == {"size", "day: month", "day: weekday", "day: elapsed"}  # the year is constant
    assert set(effects.categories[effects.names.index("day: month")]) == {"January", "February", "March"}
    assert effects.kinds[effects.names.index("day: elapsed")] == "number"
    page, _ = page_of(tmp_path, tmp_path / "m", tmp_path / "days.csv")
    assert set(page["effects"]["names"]) == set(effects.names)


def test_report_has_one_cv_accuracy_with_deviation(folder):
    model = load_model(str(folder / "flowers.model"))
    shown, found = model.report.model, model.facts["cross_validation"]
    (place,) = (i for i, (name, _, _) in enumerate(shown.scores) if "accuracy" in name)
    assert shown.scores[place][1] == pytest.approx(found["mean"])
    assert shown.deviations[place] == pytest.approx(found["std"])
    assert shown.sample == "cross-validated"
    assert (model.report.title, shown.target_name) == ("Predicting kind from flowers.csv", "kind")
    assert shown.name == "ILSVMClassifier"
    assert "margin" in model.report.worst.size_name
    assert np.all(np.diff(model.report.worst.sizes) >= 0)


def test_scores_without_cv_are_labeled_as_training_scores(folder):
    run_here("fit", folder / "flowers.csv", "-t", "kind", "-o", folder / "plain.model", "--no-cv", *QUICK)
    assert load_model(str(folder / "plain.model")).report.model.sample == "training"


def test_report_on_new_rows_scores_new_rows(folder):
    shown, done = page_of(folder, folder / "flowers.model", folder / "new.csv")
    assert done.json["data"] == str(folder / "new.csv")
    model, table = load_model(str(folder / "flowers.model")), read_table(str(folder / "new.csv"))
    truth, predicted = table.column("kind").astype(str), model.predict(table)
    assert shown["confusion"]["counts"] == confusion_matrix(truth, predicted).tolist()
    scores_of = {name: value for name, value, _ in shown["model"]["scores"]}
    assert scores_of["accuracy"] == pytest.approx(accuracy_score(truth, predicted), rel=1e-4)
    cross_validated = model.facts["cross_validation"]["mean"]
    assert scores_of["accuracy in cross-validation"] == pytest.approx(cross_validated, rel=1e-4)
    assert shown["model"]["sample"] == "new"
    assert shown["model"]["n_rows"] == 40
    assert page_of(folder, folder / "flowers.model")[0]["model"]["n_rows"] == 90


def test_report_on_new_documents_shows_texts(folder):
    (folder / "reviews.csv").write_text(reviews())
    options = ("--text", "review", "-t", "stars", "--no-cv", "--n-components", 3, "--max-iter", 5, "--quiet")
    done = run_here("fit", folder / "reviews.csv", "-o", folder / "reviews.model", *options)
    assert done.code == 0, done.err
    shown, _ = page_of(folder, folder / "reviews.model", folder / "reviews.csv")
    assert all(shown["examples"]["texts"])
    assert shown["effects"]["kinds"][0] == "word"
    assert shown["model"]["target_name"] == "stars"


def test_report_shows_warnings_of_fit(folder):
    options = ("--no-cv", "--n-components", 4, "--max-iter", 1, "--json")
    done = run_here("fit", folder / "flowers.csv", "-t", "kind", "-o", folder / "short.model", *options)
    (warning,) = done.json["warnings"]
    assert "stopped at max_iter=1" in warning
    model = load_model(str(folder / "short.model"))
    assert model.facts["warnings"] == [warning]
    for data in ((), (folder / "new.csv",)):
        assert page_of(folder, folder / "short.model", *data)[0]["model"]["notices"] == [["warning", warning]]
