"""Documents on the command line: what is read, which words are kept, and topics that predict."""

from __future__ import annotations

import csv
import io
import unicodedata

import numpy as np
import pytest
from scipy.sparse import csr_array
from sklearn.datasets import dump_svmlight_file, load_files, load_svmlight_file
from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS, CountVectorizer

from cli_tools import run_here
from regbayes.cli.documents import read_documents
from regbayes.cli.errors import BadDataError, StoppedError, UserError
from regbayes.cli.modelfile import load_model
from regbayes.cli.output import Output
from regbayes.cli.search import FitSettings, fit_model
from regbayes.cli.tables import Table, read_table
from regbayes.cli.topics import TopicProblem
from regbayes.cli.words import LONGEST_WORD, TOKEN, WordSchema, WordWishes, learn_words

SPORT = ["ball", "goal", "match", "team", "player", "coach"]
LAW = ["court", "judge", "vote", "party", "senate", "law"]
PRAISE, BLAME = ["superb", "moving", "charming", "witty"], ["dull", "boring", "awful", "tedious"]
QUICK = ("--no-cv", "--n-components", 3, "--max-iter", 15)


def document(words: list[str], rng: np.random.Generator, length: int = 12) -> str:
    return " ".join(["the", "of", "and", "is", *rng.choice(words, length)])


def reviews(n: int = 40, seed: int = 0) -> str:
    """A CSV table of reviews: their subject, and stars that follow from the share of praise."""
    rng = np.random.default_rng(seed)
    lines = ["id,review,subject,stars"]
    for i in range(n):
        share = rng.uniform()
        tone = np.where(rng.uniform(size=14) < share, rng.choice(PRAISE, 14), rng.choice(BLAME, 14))
        subject = ("sport", "law")[i % 2]
        text = document(SPORT if i % 2 == 0 else LAW, rng) + " " + " ".join(tone)
        lines.append(f"r{i},{text},{subject},{1 + 4 * share:.2f}")
    return "\n".join(lines) + "\n"


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with two tables and a model of the first one's subjects."""
    place = tmp_path_factory.mktemp("documents")
    (place / "reviews.csv").write_text(reviews())
    (place / "new.csv").write_text(reviews(20, seed=1))
    for subject, words in (("sport", SPORT), ("law", LAW)):
        (place / "mails" / subject).mkdir(parents=True)
        for i in range(8):
            text = document(words, np.random.default_rng(i))
            (place / "mails" / subject / f"{i}.txt").write_text(text)
    done = run_here("fit", place / "reviews.csv", "--text", "review", "-t", "subject", "-o", place / "m", *QUICK)
    assert done.code == 0, done.err
    return place


def table_of(texts: list[str | None], **columns: list) -> Table:
    named = {"text": texts, **columns}
    arrays = [np.array(values, dtype=object) for values in named.values()]
    return Table(tuple(named), tuple(arrays), "t.csv")


# What is read


def test_a_folder_is_read_as_scikit_learn_reads_it(folder):
    (folder / "mails" / ".hidden").write_text("not a document")
    table = read_documents(str(folder / "mails"))
    theirs = load_files(folder / "mails", encoding="utf-8", shuffle=False)
    assert table.column("text").tolist() == theirs.data
    assert table.column("class").tolist() == [theirs.target_names[code] for code in theirs.target]
    assert table.column("file")[0] == "law/0.txt"
    assert table.targets == ("class",)
    flat = read_documents(str(folder / "mails" / "law"))  # documents whose class is not known
    assert flat.targets == ()
    assert flat.n_rows == 8


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "has no text files"),
        ({"a/1.txt": b"words", "loose.txt": b"words"}, "beside folders"),
        ({"a/1.txt": b"fine", "a/2.txt": b"one\ntwo\xff"}, r"2\.txt, line 2: not text in UTF-8 \(byte 0xff\)"),
        ({"a/1.png": b"\x00\x01"}, "null characters"),
    ],
)
def test_a_folder_that_cannot_be_read_is_refused(tmp_path, files, message):
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    with pytest.raises(BadDataError, match=message):
        read_documents(str(tmp_path))


def test_counts_stay_sparse_and_say_where_columns_begin(tmp_path):
    X = csr_array(np.array([[0, 2, 0], [1, 0, 0], [0, 0, 3]]))
    for zero_based in (True, False):
        dump_svmlight_file(X, [0, 1, 1], str(tmp_path / "x.svm"), zero_based=zero_based)
        table = read_documents(str(tmp_path / "x.svm"))
        theirs, _ = load_svmlight_file(str(tmp_path / "x.svm"), zero_based="auto")
        assert table.first == 1 - zero_based
        assert table.words == (("0", "1", "2") if zero_based else ("1", "2", "3"))
        np.testing.assert_array_equal(table.counts.toarray(), theirs.toarray())
        dense = read_table(str(tmp_path / "x.svm"))
        assert dense.inputs == table.words
        np.testing.assert_array_equal(dense.column(table.words[0]), [0, 1, 0])


def test_an_npz_of_counts_names_its_classes(tmp_path):
    X = csr_array(np.array([[0, 2], [1, 0], [0, 3]]))
    parts = {f"X_{part}": getattr(X, part) for part in ("data", "indices", "indptr", "shape")}
    np.savez(tmp_path / "x.npz", y=np.array([0, 1, 0]), class_names=["no", "yes"], vocabulary=["a", "b"], **parts)
    table = read_documents(str(tmp_path / "x.npz"))
    assert table.column("y").tolist() == ["no", "yes", "no"]
    assert table.words == ("a", "b")
    np.testing.assert_array_equal(table.take(np.array([2, 0])).counts.toarray(), [[0, 3], [0, 2]])


def test_text_sets_are_known_by_name(tmp_path, monkeypatch):
    X = csr_array(np.arange(6).reshape(3, 2) + 1)
    parts = {f"X_{part}": getattr(X, part) for part in ("data", "indices", "indptr", "shape")}
    words = {"vocabulary": np.array(["film", "plot"]), "doc_ids": np.array(["a", "b", "c"])}
    rating = np.array([0.1, 0.5, 0.9])
    ratings = {"y": rating, "y_class3": np.arange(3), "y_class4": np.arange(3)}
    np.savez(tmp_path / "movie_review_scale.npz", **parts, **words, **ratings)
    split = {"train_idx": [0, 2], "test_idx": [1], "class_names": ["u", "v"], "y": np.array([0, 1, 1])}
    np.savez(tmp_path / "20newsgroups_bydate.npz", **parts, **words, **split)
    monkeypatch.setenv("REGBAYES_DATA", str(tmp_path))
    monkeypatch.setattr("regbayes.datasets.loaders._checked", lambda known, arrays, path: (_joined(arrays), str(path)))
    monkeypatch.setattr("regbayes.datasets._files._check_digest", lambda *_: None)
    posts = read_documents("20newsgroups:test")
    assert posts.column("group").tolist() == ["v"]
    assert posts.column("document").tolist() == ["b"]
    np.testing.assert_array_equal(posts.counts.toarray(), [[3, 4]])
    movies = read_documents("movie-reviews")
    assert movies.targets == ("rating",)
    assert movies.column("class3").tolist() == [0, 1, 2]
    with pytest.raises(BadDataError, match="no part 'test'; its parts: none"):
        read_documents("movie-reviews:test")
    with pytest.raises(BadDataError, match="its parts: 20newsgroups:train and 20newsgroups:test"):
        read_documents("20newsgroups:valid")


def _joined(arrays):
    from regbayes.datasets.loaders import _with_matrix

    return _with_matrix(arrays, "here")


def test_long_documents_and_other_encodings_are_read(tmp_path):
    long = "word " * 50_000
    (tmp_path / "t.csv").write_text(f'text,y\n"{long}",1\nshort,2\n')
    assert len(read_table(str(tmp_path / "t.csv")).column("text")[0]) == len(long.strip())
    (tmp_path / "t.csv").write_bytes("text,y\nfine,1\ncafé,2\n".encode("latin-1"))
    done = run_here("fit", tmp_path / "t.csv", "--text", "text", "-t", "y", "-o", tmp_path / "m")
    assert done.code == 3
    assert "line 3: not text in UTF-8 (byte 0xe9)" in done.err
    assert "--encoding" in done.err
    done = run_here(
        *("fit", tmp_path / "t.csv", "--text", "text", "-t", "y", "-o", tmp_path / "m", *QUICK),
        *("--encoding", "latin-1", "--json"),
    )
    assert done.code == 0, done.err
    assert {word for topic in done.json["topics"] for word in topic["words"]} == {"fine", "café"}


# Which words are kept


def test_words_are_those_of_scikit_learns_counter():
    texts = [document(words, np.random.default_rng(i)) for i in range(60) for words in (SPORT, LAW)]
    texts[0] += " rareword 1984 " + "x" * (LONGEST_WORD + 1)
    said: list[str] = []
    schema, counts = learn_words(table_of(texts), WordWishes(("text",)), said.append, pytest.fail)
    theirs = CountVectorizer(stop_words="english", min_df=3, token_pattern=TOKEN)
    expected = theirs.fit_transform(texts)
    assert schema.words == tuple(theirs.get_feature_names_out())
    np.testing.assert_array_equal(counts.toarray(), expected.toarray())
    assert said == ["12 words of 18: English stop words left out, those in fewer than 3 documents left out"]
    np.testing.assert_array_equal(schema.encode(table_of(texts), pytest.fail).toarray(), expected.toarray())


def test_words_can_be_chosen_otherwise(tmp_path):
    texts = ["Haus und Hof", "Haus und Garten", "Garten und Wald", "und Haus"]
    found = {}
    (tmp_path / "stop.txt").write_text("hof\nwald\n")
    for name, wishes in {
        "auto": {},
        "none": {"stop_words": "none"},
        "file": {"stop_words": str(tmp_path / "stop.txt")},
        "two": {"stop_words": "none", "max_words": 2},
        "often": {"stop_words": "none", "min_df": 2},
    }.items():
        schema, _ = learn_words(table_of(texts), WordWishes(("text",), **wishes), lambda _: None, pytest.fail)
        found[name] = set(schema.words)
    everything = {"haus", "und", "hof", "garten", "wald"}
    assert found["none"] == everything
    assert found["auto"] == everything - {"und", "haus"}  # in three of four documents or more
    assert found["file"] == everything - {"hof", "wald"}
    assert found["two"] == {"haus", "und"}
    assert found["often"] == {"haus", "und", "garten"}
    assert not ENGLISH_STOP_WORDS & everything
    with pytest.raises(UserError, match="--stop-words must be"):
        learn_words(table_of(texts), WordWishes(("text",), stop_words="german"), pytest.fail, pytest.fail)


def test_text_without_spaces_is_pointed_out():
    heard: list[str] = []
    whole, cut = ["我喜欢这个电影", "这个电影很糟糕"], ["我 喜欢 这个 电影", "这个 电影 很 糟糕"]
    for texts in (cut, whole):
        learn_words(table_of(texts), WordWishes(("text",), stop_words="none"), lambda _: None, heard.append)
    assert len(heard) == 1
    assert "must be cut into words first" in heard[0]


def test_a_letter_counts_in_every_form():
    schema = WordSchema(("text",), ("café",))
    texts = ["CAFÉ", unicodedata.normalize("NFD", "café"), "cafe café"]
    assert schema.encode(table_of(texts), pytest.fail).toarray().tolist() == [[1], [1], [1]]


def test_counts_are_matched_by_their_words():
    schema = WordSchema((), ("b", "c", "a"))
    table = Table((), (), "t.npz", counts=csr_array(np.array([[1, 2, 9], [0, 3, 0]])), words=("a", "b", "x"))
    np.testing.assert_array_equal(schema.encode(table, pytest.fail).toarray(), [[2, 0, 1], [3, 0, 0]])
    with pytest.raises(UserError, match=r"say which column of t\.csv holds the text, with --text"):
        schema.encode(table_of(["a b"]), pytest.fail)


# Topics that predict


def test_a_model_of_documents_predicts_raw_text(folder):
    done = run_here("evaluate", folder / "m", folder / "new.csv", "--json")
    assert done.json["scores"]["accuracy"] == 1.0
    answers = rows_of(run_here("predict", folder / "m", folder / "new.csv", "--keep", "id", "--features").out)
    assert [row["id"] for row in answers] == [f"r{i}" for i in range(20)]
    assert [row["subject"] for row in answers] == ["sport", "law"] * 10
    np.testing.assert_allclose([sum(float(row[f"topic{k}"]) for k in range(3)) for row in answers], 1.0, atol=1e-6)
    model = load_model(str(folder / "m"))
    assert set(model.schema.words) == {*SPORT, *LAW, *PRAISE, *BLAME}
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
    assert same["scores"]["accuracy"] > 0.9
    assert same["warnings"] == []
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
    assert found["scores"]["F1, macro"] > 0.8
    assert [detail["target"] for detail in found["details"]] == ["sport", "law", "film"]
    scores = rows_of(run_here("predict", tmp_path / "m", tmp_path / "t.csv", "--scores").out)
    assert set(scores[0]) >= {"sport", "law", "film", "sport score", "film score"}
    report = load_model(str(tmp_path / "m")).report
    assert report.tasks.names == ("sport", "law", "film")
    assert "F1-macro" in {name for name, *_ in report.model.scores}  # so each label has two classes
    (tmp_path / "t.csv").write_text((tmp_path / "t.csv").read_text().replace(",1,1", ",2,1"))
    assert "must be 0 or 1 each; 'sport', 'law', 'film' hold '0', '1', '2'" in run_here(*arguments).err


@pytest.fixture(scope="module")
def problem() -> TopicProblem:
    rng = np.random.default_rng(0)
    y = np.array(["a", "b", "c"])[np.arange(30) % 3]
    profile = np.where(np.arange(30)[:, None] % 3 == np.arange(6) // 2, 3.0, 0.2)
    X = csr_array(rng.poisson(profile))
    return TopicProblem(X, y, "classifier", None, FitSettings(n_components=(2, 4), C=(1.0,), max_iter=8, folds=3))


def test_a_search_tries_all_settings_and_predicts_unseen_documents(problem):
    fitted = fit_model(problem, Output(quiet=True))
    assert [candidate["n_components"] for candidate in fitted.search.candidates] == [2, 4]
    assert fitted.estimator.n_components == fitted.search.chosen["n_components"]
    assert fitted.search.n_folds == 3
    score = np.mean(fitted.predictions == problem.y)
    # Folds are of one size, so the accuracy over all documents is the mean of the folds' accuracies.
    assert score == pytest.approx(fitted.search.mean[fitted.search.best])
    assert fitted.estimator.get_params()["n_jobs"] is None


def test_default_settings_have_more_topics_than_classes(problem):
    from dataclasses import replace

    many = replace(problem, y=np.array([f"c{i}" for i in range(30)]), settings=FitSettings())
    assert many.grid()["n_components"] == (30, 60, 120)
    assert many.possible_folds() == 1  # every class has one document
    few = replace(problem, settings=FitSettings())
    assert few.grid()["n_components"] == (10, 20, 40)
    numbers = replace(problem, y=np.arange(30.0), kind="regressor", settings=FitSettings())
    assert type(numbers.estimator()).__name__ == "MedLDARegressor"
    assert numbers.grid()["n_components"] == (10, 20, 40)


def test_ctrl_c_keeps_the_best_topics_so_far(problem, monkeypatch):
    from regbayes.cli import journal

    real = journal.JournalScorer.__call__

    def stop_after(n):
        done = []

        def score(self, *arguments):
            if len(done) == n:
                raise KeyboardInterrupt
            done.append(1)
            return real(self, *arguments)

        return score

    monkeypatch.setattr(journal.JournalScorer, "__call__", stop_after(3))
    output = Output(quiet=True)
    fitted = fit_model(problem, output)
    assert fitted.interrupted
    assert fitted.estimator.predict(problem.X).shape == (30,)
    assert "interrupted after 3 fits" in output.warnings[0]
    monkeypatch.setattr(journal.JournalScorer, "__call__", stop_after(0))
    with pytest.raises(StoppedError):
        fit_model(problem, Output(quiet=True))


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
