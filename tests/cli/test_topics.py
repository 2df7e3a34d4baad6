"""Topics on the command line: models of documents that predict, and mistakes that get one line."""

from __future__ import annotations

import csv
import io

import numpy as np
import pytest
from scipy.sparse import csr_array
from sklearn.datasets import dump_svmlight_file

from cli_tools import BLAME, LAW, PRAISE, SPORT, document, reviews, run_here, write_mails
from reference_tools import is_nearer_to
from regbayes.cli import scores
from regbayes.cli.errors import StoppedError
from regbayes.cli.modelfile import load_model
from regbayes.cli.options import FitRequest
from regbayes.cli.output import Output
from regbayes.cli.search import fit_model, make_estimator, make_search, possible_folds

QUICK = ("--no-cv", "--n-components", 3, "--max-iter", 15)


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with two tables and a model of the first one's subjects."""
    place = tmp_path_factory.mktemp("documents")
    (place / "reviews.csv").write_text(reviews())
    (place / "new.csv").write_text(reviews(20, seed=1))
    write_mails(place)
    done = run_here("fit", place / "reviews.csv", "--text", "review", "-t", "subject", "-o", place / "m", *QUICK)
    assert done.code == 0, done.err
    return place


def test_a_model_of_documents_predicts_raw_text(folder):
    done = run_here("evaluate", folder / "m", folder / "new.csv", "--json")
    assert done.json["scores"]["accuracy"] == 1.0
    answers = rows_of(run_here("predict", folder / "m", folder / "new.csv", "--keep", "id", "--features").out)
    assert [row["id"] for row in answers] == [f"r{i}" for i in range(20)]
    assert [row["subject"] for row in answers] == ["sport", "law"] * 10
    np.testing.assert_allclose([sum(float(row[f"topic{k}"]) for k in range(3)) for row in answers], 1.0, atol=1e-6)
    model = load_model(str(folder / "m"))
    assert set(model.inputs.words) == {*SPORT, *LAW, *PRAISE, *BLAME}
    page = run_here("report", folder / "m", "-o", folder / "m.html")
    assert page.code == 0
    text = (folder / "m.html").read_text(encoding="utf-8")
    assert "training documents" in text
    assert '"kind":"text"' in text


def test_fit_shows_topics_and_what_they_speak_for(folder):
    done = run_here("fit", folder / "reviews.csv", "--text", "review", "-t", "stars", "-o", folder / "stars", *QUICK)
    assert "MedLDA, regressor: 'stars' holds" in done.err
    assert "20 words of 24: English stop words left out" in done.err
    assert "weight for stars" in done.out
    lines = [line for line in done.out.splitlines() if line.strip().startswith(("+", "-"))]
    assert len(lines) == 3
    assert any(word in lines[0] for word in PRAISE)
    assert any(word in lines[-1] for word in BLAME)
    assert "topics  3, of 20 words" in done.out


def test_a_folder_is_fitted_and_predicted_with_the_names_of_its_files(folder):
    done = run_here("fit", folder / "mails", "-o", folder / "mails.model", *QUICK, "--json")
    assert done.code == 0, done.err
    assert done.json["estimator"] == "MedLDAClassifier"
    shown = run_here("fit", folder / "mails", "-o", folder / "again.model", *QUICK).out
    assert any(line.split()[:1] == ["law"] for line in shown.splitlines())  # of two classes both are named
    answers = rows_of(run_here("predict", folder / "mails.model", folder / "mails" / "law").out)
    assert answers[0] == {"file": "0.txt", "class": "law"}
    assert {row["class"] for row in answers} == {"law"}
    renamed = run_here("predict", folder / "mails.model", folder / "new.csv", "--text", "review", "--keep", "id")
    assert [row["class"] for row in rows_of(renamed.out)] == ["sport", "law"] * 10
    assert "--text" in run_here("predict", folder / "mails.model", folder / "new.csv").err


def test_counts_are_fitted_and_remember_where_columns_begin(tmp_path):
    rng = np.random.default_rng(0)
    y = np.arange(30) % 2
    X = csr_array(rng.poisson(np.where(y[:, None] == np.array([0, 0, 1, 1]), 4.0, 0.3)))
    for name, zero_based in (("one", False), ("zero", True)):
        dump_svmlight_file(X, y, str(tmp_path / f"{name}.svm"), zero_based=zero_based)
    fit = run_here("fit", tmp_path / "one.svm", "--model", "medlda", "-o", tmp_path / "m", *QUICK)
    assert "are counted from 1" in fit.err
    same = run_here("evaluate", tmp_path / "m", tmp_path / "one.svm", "--json").json
    assert is_nearer_to(1.0, 0.5, same["scores"]["accuracy"])
    assert not any("column" in each for each in same["warnings"])
    other = run_here("evaluate", tmp_path / "m", tmp_path / "zero.svm", "--json").json
    assert "has a column 0, but columns were counted from 1 in training" in other["warnings"][0]
    broken = csr_array(X.toarray() * 0.5)
    dump_svmlight_file(broken, y, str(tmp_path / "half.svm"))
    half = run_here("fit", tmp_path / "half.svm", "--model", "medlda", "-o", tmp_path / "h", *QUICK)
    assert half.code == 0
    assert "counts are not whole" in half.err
    dump_svmlight_file(csr_array(-X.toarray()), y, str(tmp_path / "minus.svm"))
    minus = run_here("fit", tmp_path / "minus.svm", "--model", "medlda", "-o", tmp_path / "h")
    assert minus.code == 3
    assert "should hold counts of words; it has the value -" in minus.err


def test_several_labels_of_documents(tmp_path):
    rng = np.random.default_rng(0)
    lines = ["text,sport,law,film"]
    for i in range(48):
        there = [i % 2, (i // 2) % 2, (i // 4) % 2]
        words = [document(list(of), rng) * is_there for of, is_there in zip((SPORT, LAW, PRAISE), there, strict=True)]
        lines.append(f"{' '.join(words)} {' '.join(BLAME)},{','.join(map(str, there))}")
    (tmp_path / "t.csv").write_text("\n".join([*lines, "ball,,1,0"]) + "\n")
    targets = ("-t", "sport", "-t", "law", "-t", "film")
    arguments = ("fit", tmp_path / "t.csv", "--text", "text", *targets, "-o", tmp_path / "m", *QUICK)
    done = run_here(*arguments)
    assert "multi-label classifier" in done.err
    assert "1 of 49 rows lack a target and are left out" in done.err
    found = run_here("evaluate", tmp_path / "m", tmp_path / "t.csv", "--json").json
    assert found["scores"]["F1, macro"] > 2 / 3  # of an answer that is always yes
    assert [detail["target"] for detail in found["details"]] == ["sport", "law", "film"]
    scores = rows_of(run_here("predict", tmp_path / "m", tmp_path / "t.csv", "--scores").out)
    assert set(scores[0]) >= {"sport", "law", "film", "sport=1 score", "film=1 score"}
    report = load_model(str(tmp_path / "m")).report
    assert report.tasks.names == ("sport", "law", "film")
    assert "F1-macro" in {name for name, *_ in report.model.scores}  # so each label has two classes
    (tmp_path / "t.csv").write_text((tmp_path / "t.csv").read_text().replace(",1,1", ",2,1"))
    assert "must be 0 or 1 each; 'sport', 'law', 'film' hold '0', '1', '2'" in run_here(*arguments).err


def request(**options) -> FitRequest:
    return FitRequest(data="", output="", **options)


TRIED = request(n_components=[2, 4], C=[1.0], max_iter=8, folds=3)


@pytest.fixture(scope="module")
def counts():
    rng = np.random.default_rng(0)
    y = np.array(["a", "b", "c"])[np.arange(30) % 3]
    profile = np.where(np.arange(30)[:, None] % 3 == np.arange(6) // 2, 3.0, 0.2)
    return csr_array(rng.poisson(profile)), y


def test_a_search_tries_all_settings_and_predicts_unseen_documents(counts):
    X, y = counts
    estimator, predictions, facts = fit_model(TRIED, "classifier", X, y, None, Output(quiet=True))
    found = facts["cross_validation"]
    tried = [candidate["n_components"] for candidate in found["candidates"]]
    assert tried[:2] == [2, 4]
    assert tried[2:] in ([], [8])  # one beyond, where the best is the last
    assert estimator.n_components == facts["settings"]["n_components"]
    assert found["folds"] == 3
    # Folds are of one size, so the accuracy over all documents is the mean of the folds' accuracies.
    assert np.mean(predictions == y) == pytest.approx(found["mean"])
    assert estimator.get_params()["n_jobs"] is None


def test_default_settings_have_more_topics_than_classes(counts):
    X, y = counts
    many = np.array([f"c{i}" for i in range(30)])
    assert make_search(request(), "classifier", X, many, {}, 2).param_grid["n_components"] == [30, 60, 120]
    assert possible_folds(request(), "classifier", X, many, {}) == 1  # every class has one document
    assert make_search(request(), "classifier", X, y, {}, 2).param_grid["n_components"] == [10, 20, 40]
    assert type(make_estimator(request(), "regressor", X, np.arange(30.0), {})).__name__ == "MedLDARegressor"
    assert make_search(request(), "regressor", X, np.arange(30.0), {}, 2).param_grid["n_components"] == [10, 20, 40]


def test_ctrl_c_keeps_the_best_topics_so_far(counts, monkeypatch):
    X, y = counts
    done = []

    def score(estimator, X, y, *, kind, balanced):
        if len(done) == 4:
            raise KeyboardInterrupt
        done.append(1)
        return scores.score_of(kind, y, estimator.predict(X), balanced=balanced)

    monkeypatch.setattr("regbayes.cli.search.score_fit", score)
    output = Output(quiet=True)
    estimator, _, facts = fit_model(TRIED, "classifier", X, y, None, output)
    assert facts["interrupted"]
    assert estimator.predict(X).shape == (30,)
    assert "interrupted after 4 fits" in output.warnings[0]
    assert len(facts["cross_validation"]["candidates"]) == 2
    assert facts["cross_validation"]["folds"] == 3  # of those that were tried on every fold, there is one
    done[:] = [1] * 4
    with pytest.raises(StoppedError):
        fit_model(TRIED, "classifier", X, y, None, Output(quiet=True))


def test_stars_are_a_number_beside_texts_and_the_option_says_otherwise(folder, tmp_path):
    lines = (folder / "reviews.csv").read_text().splitlines()
    whole = [",".join([*line.split(",")[:-1], str(round(float(line.rpartition(",")[2])))]) for line in lines[1:]]
    (tmp_path / "t.csv").write_text("\n".join([lines[0], *whole]) + "\n")
    arguments = ("fit", tmp_path / "t.csv", "-t", "stars", "-o", tmp_path / "m", *QUICK, "--json")
    texts = run_here(*arguments, "--text", "review")
    assert texts.json["estimator"] == "MedLDARegressor"
    assert "whole numbers, read as a rating (--kind classifier if they are classes)" in texts.err
    assert run_here(*arguments, "--text", "review", "--kind", "classifier").json["estimator"] == "MedLDAClassifier"
    table = run_here(*arguments, "--ignore", "review", "--ignore", "id")
    assert table.json["estimator"] == "ILSVMClassifier"
    assert "whole numbers (--kind regressor if they are amounts)" in table.err


# Mistakes


MISTAKES = {
    "no such column": (("--text", "body", "-t", "stars"), 3, "--text body: t.csv has no such column; it has 'text'"),
    "which column": (("--model", "medlda", "-t", "stars"), 2, "with --text. Text is in 'text', 'subject'"),
    "numbers": (("--text", "stars", "-t", "subject"), 3, "--text stars: the column holds numbers, not text"),
    "empty column": (("--text", "empty", "-t", "subject"), 3, "--text empty: the column is empty"),
    "one column twice": (("--text", "text", "-t", "text"), 2, "--text and --target name the same column, 'text'"),
    "no target": (("--text", "text"), 2, "say which column to predict, with --target"),
    "no words left": (("--text", "text", "-t", "subject", "--min-df", 9), 3, "no word is left of"),
    "another model": (("--text", "text", "-t", "subject", "--temperature", 1), 2, "--temperature: nothing for MedLDA"),
    "not this model": (("--model", "ilsvm", "--text", "text", "-t", "stars"), 2, "--text: nothing for iLSVM"),
    "values to try": (("-t", "subject", "--n-components", 2, "--n-components", 3), 2, "several --n-components"),
    "an encoding": (("--text", "text", "-t", "subject", "--encoding", "latin9000"), 2, "--encoding must be one"),
    "balanced numbers": (("--text", "text", "-t", "stars", "--kind", "regressor", "--balanced"), 2, "--balanced is"),
}


@pytest.mark.parametrize(("options", "code", "message"), MISTAKES.values(), ids=MISTAKES)
def test_mistakes_get_one_line(tmp_path, monkeypatch, options, code, message):
    monkeypatch.chdir(tmp_path)
    rows = [f"the ball and the goal {i},sport,{i},\nthe court of law {i},law,{i},\n" for i in range(4)]
    (tmp_path / "t.csv").write_text("text,subject,stars,empty\n" + "".join(rows))
    done = run_here("fit", "t.csv", *options, "-o", "m")
    assert done.code == code, done.err
    last = done.err.strip().splitlines()[-1]
    assert last.startswith("error: ")
    assert message in last
    assert not (tmp_path / "m").exists()


def test_documents_that_were_not_asked_for_are_pointed_out(folder, tmp_path):
    arguments = ("fit", folder / "reviews.csv", "-t", "subject", "-o", tmp_path / "m", "--no-cv", "--max-iter", 3)
    assert "--text review would find topics" in run_here(*arguments, "--n-components", 3).err
    alone = run_here(*arguments, "--ignore", "id", "--ignore", "stars")
    assert alone.code == 3
    assert "no column left that could be an input; --text review would find topics" in alone.err


def test_documents_without_words_are_left_out_in_training_and_answered_later(folder, tmp_path):
    text = (folder / "reviews.csv").read_text() + "r98,,law,3\nr99,12 34,law,2\n"
    (tmp_path / "t.csv").write_text(text)
    done = run_here("fit", tmp_path / "t.csv", "--text", "review", "-t", "subject", "-o", tmp_path / "m", *QUICK)
    assert "2 of 42 documents have no words and are left out" in done.err
    (tmp_path / "new.csv").write_text("review\nunknown words\nball and goal\n\n")
    predicted = run_here("predict", tmp_path / "m", tmp_path / "new.csv")
    assert len(rows_of(predicted.out)) == 2
    assert "1 of 2 documents have no word that the model knows" in predicted.err
    (tmp_path / "none.csv").write_text("review\nlauter fremde Wörter\n")
    none = run_here("predict", tmp_path / "m", tmp_path / "none.csv")
    assert none.code == 3
    assert "the model knows none of the words" in none.err
    (tmp_path / "other.csv").write_text("body\nball\n")
    other = run_here("predict", tmp_path / "m", tmp_path / "other.csv")
    assert other.code == 3
    assert "--text review: " in other.err


def test_a_class_with_one_document_is_pointed_out(folder, tmp_path):
    (tmp_path / "t.csv").write_text((folder / "reviews.csv").read_text() + "r99,superb charming witty,film,5\n")
    done = run_here(
        *("fit", tmp_path / "t.csv", "--text", "review", "-t", "subject", "-o", tmp_path / "m", "--json"),
        *("--n-components", 3, "--C", 1, "--max-iter", 10, "--folds", 2),
    )
    assert done.code == 0, done.err
    assert "fewer documents than folds ('film'; the smallest has 1)" in done.json["warnings"][0]
    assert done.json["cross_validation"]["folds"] == 2
