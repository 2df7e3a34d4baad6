"""Word counts of documents: vocabulary and new documents."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse import csr_array
from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS, CountVectorizer

from cli_tools import reviews, run_here, write_mails
from regbayes import load
from regbayes.cli.errors import BadDataError, UserError
from regbayes.cli.inputs import TOKEN, learn_words
from regbayes.cli.options import FitRequest
from regbayes.cli.read import Table, make_frame

TEXTS = ["Not good at all", "good, very good", "all is well", "not well", None]
QUICK = ("--n-components", 3, "--max-iter", 5, "--no-cv", "--C", 1)


def texts(*columns) -> Table:
    return Table(make_frame((f"text{i}", column) for i, column in enumerate(columns)), "t.csv")


def counted(matrix, words) -> Table:
    return Table(make_frame([]), "t.svm", (), counts=csr_array(matrix), words=tuple(words))


def learn(table: Table, **options):
    request = FitRequest(data="", output="", **options)
    words, counts, _ = learn_words(table, request)
    return words, counts


def test_vocabulary_matches_count_vectorizer():
    words, counts = learn(texts(TEXTS), text=["text0"])
    theirs = CountVectorizer(token_pattern=TOKEN)
    wanted = theirs.fit_transform([text or "" for text in TEXTS])
    assert words.words == theirs.get_feature_names_out().tolist()
    np.testing.assert_array_equal(counts.toarray(), wanted.toarray())
    assert "not" in words.words
    table = texts(["not new", "GOOD"])
    np.testing.assert_array_equal(words.encode(table).toarray(), theirs.transform(["not new", "good"]).toarray())


def test_ngrams_are_counted_in_fit_and_predict():
    words, _ = learn(texts(TEXTS), text=["text0"], ngrams=2)
    assert {"not good", "not well", "good"} <= set(words.words)
    found = words.encode(texts(["not good", "good"])).toarray()
    assert found[:, words.words.index("not good")].tolist() == [1, 0]


def test_vocabulary_options_filter_words(tmp_path):
    (tmp_path / "stop.txt").write_text("good\nWELL")
    for options, wanted in (
        ({"stop_words": "english"}, {"good"} - ENGLISH_STOP_WORDS),
        ({"stop_words": str(tmp_path / "stop.txt")}, {"all", "at", "is", "not", "very"}),
        ({"min_df": 2}, {"all", "good", "not", "well"}),
        ({"max_words": 2}, {"good", "all"}),
    ):
        words, _ = learn(texts(TEXTS), text=["text0"], **options)
        assert set(words.words) == wanted, options
    with pytest.raises(UserError, match="--stop-words must be english or a text file"):
        learn(texts(TEXTS), text=["text0"], stop_words="none")
    with pytest.raises(BadDataError, match="none of 7 words is in 9 documents or more"):
        learn(texts(TEXTS), text=["text0"], min_df=9)


def test_text_columns_are_joined():
    words, counts = learn(texts(["ball", "law"], ["court", None]), text=["text0", "text1"])
    assert counts.toarray().tolist() == [[words.words.index(w) in (0, 1) for w in ("ball", "court", "law")], [0, 0, 1]]


def test_counts_are_aligned_by_word():
    words, counts = learn(counted([[1, 0, 2], [0, 3, 0]], ["a", "b", "c"]))
    np.testing.assert_array_equal(words.encode(counted([[5, 7]], ["c", "new"])).toarray(), [[0, 0, 5]])
    assert counts.dtype == np.int32
    assert learn(counted([[0.5, 1]], ["a", "b"]))[1].dtype == np.float64


@pytest.mark.parametrize("odd", [2.0**32, 2.0**32 + 1, -1.0, np.nan, np.inf])
def test_invalid_counts_raise(odd):
    """A count of 2**32 must not overflow to zero."""
    with pytest.raises(BadDataError, match="should hold counts of words, up to 2147483647"):
        learn(counted([[1, odd]], ["a", "b"]))


def test_documents_without_known_words_warn(tmp_path):
    (tmp_path / "t.csv").write_text(reviews() + "r98,,law,3\nr99,12 34,law,2\n")
    done = run_here("fit", tmp_path / "t.csv", "--text", "review", "-t", "subject", "-o", tmp_path / "m", *QUICK)
    assert "2 of 42 documents have no words and are left out" in done.err
    (tmp_path / "new.csv").write_text("review\nunknown utterances\nball and goal\n")
    predicted = run_here("predict", tmp_path / "m", tmp_path / "new.csv")
    assert len(predicted.out.splitlines()) == 3
    assert "1 of 2 documents have no word that the model knows" in predicted.err
    (tmp_path / "none.csv").write_text("review\nlauter fremde Wörter\n")
    none = run_here("predict", tmp_path / "m", tmp_path / "none.csv")
    assert (none.code, "the model knows none of the words" in none.err) == (3, True)


def test_text_option_selects_other_column_of_new_file(tmp_path):
    done = run_here("fit", write_mails(tmp_path), "-o", tmp_path / "m", *QUICK, "--json")
    assert done.json["estimator"] == "MedLDAClassifier"
    predicted = run_here("predict", tmp_path / "m", tmp_path / "mails" / "law").out.splitlines()
    assert predicted[:2] == ["file,class", "0.txt,law"]
    (tmp_path / "new.csv").write_text(reviews(20))
    renamed = run_here("predict", tmp_path / "m", tmp_path / "new.csv", "--text", "review")
    assert renamed.out.split()[1:3] == ["sport", "law"]
    assert "--text" in run_here("predict", tmp_path / "m", tmp_path / "new.csv").err


def test_include_inputs_weighs_words_of_documents(tmp_path):
    (tmp_path / "t.csv").write_text(reviews())
    fit = ("fit", tmp_path / "t.csv", "-t", "subject", "-o", tmp_path / "m", *QUICK, "--json", "--text", "review")
    assert run_here(*fit, "--include-inputs").json["estimator"] == "MedLDAClassifier"
    assert np.any(load(tmp_path / "m").estimator.coef_inputs_ != 0)
    assert run_here("predict", tmp_path / "m", tmp_path / "t.csv").code == 0


def test_long_texts_in_table_get_a_hint(tmp_path):
    (tmp_path / "t.csv").write_text(reviews())
    fit = ("fit", tmp_path / "t.csv", "-t", "subject", "-o", tmp_path / "m", *QUICK)
    assert "--text review would find topics" in run_here(*fit).err


MISTAKES = {
    "--text body -t stars": (3, "--text: t.csv has no column 'body'"),
    "--model medlda -t stars": (2, "by --text. Text is in 'text', 'subject'"),
    "--text stars -t subject": (3, "--text stars: the column holds numbers or nothing"),
    "--text empty -t subject": (3, "--text empty: the column holds numbers or nothing"),
    "--text text -t text": (2, "--text and --target name the same column, 'text'"),
    "--text text -t subject --min-df 9": (3, "Lower --min-df"),
    "--text text -t subject --temperature 1": (2, "--temperature: not for --model medlda"),
    "--model ilsvm --text text -t stars": (2, "--text: not for --model ilsvm"),
    "-t subject --n-components 2 --n-components 3": (2, "several --n-components"),
    "--text text -t stars --kind regressor --balanced": (2, "--balanced is"),
}


@pytest.mark.parametrize("options", MISTAKES)
def test_text_option_errors_print_one_line(tmp_path, monkeypatch, options):
    monkeypatch.chdir(tmp_path)
    rows = [f"the ball and the goal {i},sport,{i},\nthe court of law {i},law,{i},\n" for i in range(4)]
    (tmp_path / "t.csv").write_text("text,subject,stars,empty\n" + "".join(rows))
    done = run_here("fit", "t.csv", *options.split(), "-o", "m")
    code, message = MISTAKES[options]
    last = done.err.strip().splitlines()[-1]
    assert (done.code, last.startswith("error: "), message in last) == (code, True, True), done.err
    assert not (tmp_path / "m").exists()
