"""Documents on the command line: what is read, and which words are kept."""

from __future__ import annotations

import unicodedata

import numpy as np
import pytest
from scipy.sparse import csr_array
from sklearn.datasets import dump_svmlight_file, load_files, load_svmlight_file
from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS, CountVectorizer

from cli_tools import LAW, SPORT, document, run_here, write_mails
from regbayes.cli.documents import read_documents
from regbayes.cli.errors import BadDataError, UserError
from regbayes.cli.output import Output
from regbayes.cli.tables import Table, make_frame, read_table
from regbayes.cli.words import LONGEST_WORD, TOKEN, WordCounts, learn_words

QUICK = ("--no-cv", "--n-components", 3, "--max-iter", 15)


def table_of(texts: list[str | None], **columns: list) -> Table:
    return Table(make_frame({"text": texts, **columns}.items()), "t.csv")


def quiet() -> Output:
    return Output(quiet=True)


def test_a_folder_is_read_as_scikit_learn_reads_it(tmp_path):
    folder = write_mails(tmp_path).parent
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


def test_quotation_marks_between_tabs_need_not_pair(tmp_path):
    (tmp_path / "t.tsv").write_text('text\ty\n"Great" film\tgood\n"a mess\tbad\nplain\tbad\n')
    table = read_table(str(tmp_path / "t.tsv"))
    assert table.column("text").tolist() == ['"Great" film', '"a mess', "plain"]
    assert "taken as they stand" in table.notes[0]
    (tmp_path / "t.tsv").write_text('text\ty\n"two\twords"\tgood\n')
    assert read_table(str(tmp_path / "t.tsv")).column("text").tolist() == ["two\twords"]
    (tmp_path / "t.tsv").write_text('text\ty\n"open\tgood\textra\n')
    with pytest.raises(BadDataError, match="line 2: a quotation mark opens a field that is never closed"):
        read_table(str(tmp_path / "t.tsv"))


def test_several_columns_of_text_are_joined():
    table = table_of(["a film", None], body=["with a plot", "a book"])
    words, counts = learn_words(table, ["text", "body"], quiet(), stop_words="none")
    assert words.words == ["book", "film", "plot", "with"]
    assert counts.toarray().tolist() == [[0, 1, 1, 1], [1, 0, 0, 0]]


def test_words_are_those_of_scikit_learns_counter(capsys):
    texts = [document(words, np.random.default_rng(i)) for i in range(60) for words in (SPORT, LAW)]
    texts[0] += " rareword 1984 " + "x" * (LONGEST_WORD + 1)
    words, counts = learn_words(table_of(texts), ["text"], Output())
    theirs = CountVectorizer(stop_words="english", min_df=3, token_pattern=TOKEN)
    expected = theirs.fit_transform(texts)
    assert words.words == theirs.get_feature_names_out().tolist()
    np.testing.assert_array_equal(counts.toarray(), expected.toarray())
    said = "12 words of 18: English stop words left out, those in fewer than 3 documents left out\n"
    assert capsys.readouterr().err == said
    np.testing.assert_array_equal(words.encode(table_of(texts)).toarray(), expected.toarray())
    np.testing.assert_array_equal(words.transform(table_of(texts).frame).toarray(), expected.toarray())


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
        words, _ = learn_words(table_of(texts), ["text"], quiet(), **wishes)
        found[name] = set(words.words)
    everything = {"haus", "und", "hof", "garten", "wald"}
    assert found["none"] == everything
    assert found["auto"] == everything - {"und", "haus"}  # in three of four documents or more
    assert found["file"] == everything - {"hof", "wald"}
    assert found["two"] == {"haus", "und"}
    assert found["often"] == {"haus", "und", "garten"}
    assert not ENGLISH_STOP_WORDS & everything
    with pytest.raises(UserError, match="--stop-words must be"):
        learn_words(table_of(texts), ["text"], quiet(), stop_words="german")


def test_text_without_spaces_is_pointed_out():
    output = quiet()
    whole, cut = ["我喜欢这个电影", "这个电影很糟糕"], ["我 喜欢 这个 电影", "这个 电影 很 糟糕"]
    for texts in (cut, whole):
        learn_words(table_of(texts), ["text"], output, stop_words="none")
    assert len(output.warnings) == 1
    assert "must be cut into words first" in output.warnings[0]


def test_a_letter_counts_in_every_form():
    words = WordCounts(["café"], ["text"])
    texts = ["CAFÉ", unicodedata.normalize("NFD", "café"), "cafe café"]
    assert words.encode(table_of(texts)).toarray().tolist() == [[1], [1], [1]]


def test_counts_are_matched_by_their_words():
    words = WordCounts(["b", "c", "a"])
    table = Table(make_frame([]), "t.npz", counts=csr_array(np.array([[1, 2, 9], [0, 3, 0]])), words=("a", "b", "x"))
    np.testing.assert_array_equal(words.encode(table).toarray(), [[2, 0, 1], [3, 0, 0]])
    with pytest.raises(UserError, match=r"say which column of t\.csv holds the text, with --text"):
        words.encode(table_of(["a b"]))
