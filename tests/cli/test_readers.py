"""Reading of files as tables: column names, types and messages."""

from __future__ import annotations

import gzip
import io

import numpy as np
import pandas as pd
import pytest
from scipy.sparse import csr_array
from sklearn.datasets import dump_svmlight_file

from cli_tools import write_mails
from regbayes.cli.errors import BadDataError, MissingPieceError
from regbayes.cli.read import Table, read_table


def write(tmp_path, content, name="data.csv"):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


def read(tmp_path, content, name="data.csv", **options) -> Table:
    return read_table(write(tmp_path, content, name), **options)


@pytest.mark.parametrize(
    ("text", "name", "options"),
    [
        ("a,b\n1.5,x\n2,y\n", "t.csv", {}),
        ('"a" , "b"\r\n1.5, "x"\r\n\r\n2, y \r\n', "t.csv", {}),
        ("\ufeffa,b\n1.5,x\n2,y", "t.txt", {}),
        ("a\tb\n1.5\tx\n2\ty\n", "t.tsv", {}),
        ("a;b\n1,5;x\n2;y\n", "t.csv", {"delimiter": ";", "decimal": ","}),
        (gzip.compress(b"a,b\n1.5,x\n2,y\n"), "t.csv.gz", {}),
        ("a,b\n1.5,x\n2,y\n".encode("utf-16"), "t.csv", {"encoding": "utf-16"}),
    ],
    ids=["plain", "quotes and Windows", "byte order mark", "tabs", "decimal commas", "gzip", "UTF-16"],
)
def test_read_csv_supports_options(tmp_path, text, name, options):
    table = read(tmp_path, text, name, **options)
    assert table.names == ("a", "b")
    assert table.column("a").tolist() == [1.5, 2]
    assert table.column("b").tolist() == ["x", "y"]
    assert table.notes == ()


def test_columns_keep_text_and_large_integers(tmp_path):
    text = "id,flag,name,code\n9007199254740993,true,NA,07\n9007199254740995,false,?,x\n1,true,-,7\n"
    table = read(tmp_path, text, missing=("-",))
    assert table.column("id").tolist() == ["9007199254740993", "9007199254740995", "1"]
    assert table.column("flag").tolist() == ["True", "False", "True"]
    assert np.isnan(table.column("name")).all()
    assert table.column("code").tolist() == ["07", "x", "7"]


@pytest.mark.parametrize(("header", "begin"), [("", 0), ("Unnamed: 0", 1)])
def test_unnamed_index_is_not_an_input(tmp_path, header, begin):
    table = read(tmp_path, f"{header},a\n{begin},5\n{begin + 1},6\n")
    assert table.inputs == ("a",)
    assert "numbers the rows" in table.notes[0]
    assert read(tmp_path, f"{header},a\n3,5\n1,6\n").inputs is None
    assert read(tmp_path, "k,a\n0,5\n1,6\n").inputs is None


def test_csv_without_header_gets_column_numbers(tmp_path):
    table = read(tmp_path, "1,x\n2,y\n", header=False)
    assert table.names == ("column1", "column2")
    assert table.n_rows == 2
    assert "looks like data" in read(tmp_path, "1,2\n3,4\n").notes[0]


def test_mostly_numeric_text_column_gets_a_note(tmp_path):
    rows = "\n".join(["a,b", *(f"{i},0" for i in range(30)), "odd!,0"])
    assert "except 'odd!' and the like in 1 of 31 rows" in read(tmp_path, rows).notes[0]
    assert "--missing 'odd!'" in read(tmp_path, rows).notes[0]
    assert read(tmp_path, rows, missing=("odd!",)).column("a")[-1] != 0
    assert "--decimal ," in read(tmp_path, 'a,b\n"1,5",x\n"2,5",y\n').notes[0]
    assert "--delimiter ';'" in read(tmp_path, "a;b\n1;2\n").notes[0]


def test_parquet_matches_csv(tmp_path):
    frame = pd.DataFrame({"a": [1.5, None], "n": [1, 2], "b": ["x", None], "day": pd.to_datetime(["2020-01-31"] * 2)})
    frame.index = pd.Index([5, 7], name="key")
    frame.to_parquet(tmp_path / "t.parquet")
    table = read_table(str(tmp_path / "t.parquet"))
    assert table.names == ("key", "a", "n", "b", "day")
    assert table.column("b").tolist() == ["x", None]
    assert table.column("key").tolist() == [5, 7]
    assert table.column("day")[0].startswith("2020-01-31")


def test_parquet_without_pyarrow_says_how_to_install_it(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pyarrow.parquet", None)
    with pytest.raises(MissingPieceError, match="pip install pyarrow"):
        read(tmp_path, b"PAR1", "t.parquet")


def test_npz_contains_inputs_targets_tasks_and_names(tmp_path):
    arrays = {"X": np.eye(3), "y": [0, 1, 1], "task": ["a", "b", ""], "feature_names": ["p", "q", "r"]}
    np.savez(tmp_path / "t.npz", **arrays)
    table = read_table(str(tmp_path / "t.npz"))
    assert (table.inputs, table.targets) == (("p", "q", "r"), ("y",))
    assert table.column("task").tolist() == ["a", "b", None]
    np.savez(tmp_path / "t.npz", X=np.eye(3), Y=np.eye(3)[:, :2], label_names=["u", "v"])
    table = read_table(str(tmp_path / "t.npz"))
    assert table.targets == table.groups["Y"] == ("u", "v")
    np.savez(tmp_path / "t.npz", a=[1, 2], b=["x", "y"])
    assert read_table(str(tmp_path / "t.npz")).names == ("a", "b")


def test_sparse_npz_matches_dense_npz(tmp_path):
    dense = np.array([[0, 2, 0], [1, 0, 0]])
    X = csr_array(dense)
    parts = {"X_data": X.data, "X_indices": X.indices, "X_indptr": X.indptr, "X_shape": X.shape, "y": [0, 1]}
    np.savez(tmp_path / "t.npz", vocabulary=["a", "b", "c"], **parts)
    table = read_table(str(tmp_path / "t.npz"))
    np.testing.assert_array_equal(table.frame[["a", "b", "c"]], dense)
    table = read_table(str(tmp_path / "t.npz"), sparse=True)
    np.testing.assert_array_equal(table.counts.toarray(), dense)
    assert table.words == ("a", "b", "c")


@pytest.mark.parametrize("zero_based", [True, False])
def test_libsvm_columns_are_numbered(tmp_path, zero_based):
    X = np.array([[1.0, 0, 2], [3, 4, 0]])
    dump_svmlight_file(X, [1, 0], str(tmp_path / "t.svm"), zero_based=zero_based)
    table = read_table(str(tmp_path / "t.svm"))
    names = [str(i + (not zero_based)) for i in range(3)]
    np.testing.assert_array_equal(table.frame[names], X)
    assert table.targets == ("label",)
    np.testing.assert_array_equal(table.select([*names, "9"])["9"], [0, 0])
    table = read(tmp_path, "1,3 1:1\n2 2:1\n", "t.libsvm")
    assert table.groups["label"] == table.targets == ("label=1", "label=2", "label=3")


def test_npy_array_is_a_table(tmp_path):
    np.save(tmp_path / "t.npy", np.eye(2))
    assert read_table(str(tmp_path / "t.npy")).names == ("x0", "x1")
    np.save(tmp_path / "t.npy", np.array([(1, "u")], dtype=[("a", int), ("b", "U1")]))
    assert read_table(str(tmp_path / "t.npy")).column("b").tolist() == ["u"]


def test_folder_matches_load_files(tmp_path):
    from sklearn.datasets import load_files

    folder = write_mails(tmp_path)
    table = read_table(str(folder), sparse=True)
    theirs = load_files(folder, encoding="utf-8", shuffle=False)
    wanted = {text: theirs.target_names[k] for text, k in zip(theirs.data, theirs.target, strict=True)}
    assert dict(zip(table.column("text"), table.column("class"), strict=True)) == wanted
    assert (table.text, table.targets, table.key) == (("text",), ("class",), "file")
    alone = read_table(str(folder / "law"), sparse=True)
    assert alone.targets == ()
    (folder / "odd.txt").write_text("loose")
    with pytest.raises(BadDataError, match="a folder of text files for each class"):
        read_table(str(folder), sparse=True)


def npz(**arrays) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def npy(array) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=True)
    return file.getvalue()


UNREADABLE = {
    "empty": ("t.csv", "", "is empty"),
    "header alone": ("t.csv", "a,b\n", "has no rows"),
    "long row": ("t.csv", "a,b\n1,2\n3,4,5\n", "cannot be read as csv"),
    "all rows long": ("t.csv", "a,b\n1,2,3\n3,4,5\n", "have more fields than its first line"),
    "open quote": ("t.csv", 'a,b\n"1,2\n3,4\n', "cannot be read as csv"),
    "two columns of a name": ("t.csv", "a,a\n1,2\n", "several columns of one name: 'a'"),
    "encoding": ("t.csv", b"a,b\n1,\xe4\n", "is not text in UTF-8"),
    "cut gzip": ("t.csv.gz", gzip.compress(b"a,b\n1,2\n" * 99)[:-20], "cannot be read as csv"),
    "spreadsheet": ("t.xlsx", "", "a spreadsheet as CSV"),
    "unknown": ("t.json", "{}", "cannot tell the format"),
    "damaged parquet": ("t.parquet", b"PAR1 damaged PAR1", "cannot be read as parquet"),
    "damaged npz": ("t.npz", npz(X=np.eye(9))[:200], "cannot be read as npz"),
    "pickle in npz": ("t.npz", npz(a=np.array([{}], dtype=object)), "cannot be read as npz"),
    "pickle": ("t.npy", npy(np.array([{}], dtype=object)), "cannot be read as npy"),
    "not npy": ("t.npy", "a,b\n1,2\n", "cannot be read as npy"),
    "a vector": ("t.npy", npy(np.ones(3)), "a table has rows and columns"),
    "complex": ("t.npz", npz(X=np.eye(2) * 1j, y=[0, 1]), "holds complex numbers"),
    "wrong names": ("t.npz", npz(X=np.eye(2), feature_names=["a"]), "X has 2 columns, but there are 1 names"),
    "NUL in a name": ("t.csv", "a,b\0,c\n1,2,3\n2,3,4\n", "name contains a NUL character"),
    "libsvm index": ("t.svm", "1 1000000000000:1\n0 1:1\n", "t.svm"),
    "libsvm text": ("t.svm", "one a:b\n", "cannot be read as libsvm"),
}


@pytest.mark.parametrize(("name", "content", "message"), UNREADABLE.values(), ids=UNREADABLE)
def test_unreadable_file_raises_bad_data_error(tmp_path, name, content, message):
    with pytest.raises(BadDataError, match=message):
        read(tmp_path, content, name)


def test_missing_file_or_folder_raises(tmp_path):
    with pytest.raises(BadDataError, match="does not exist"):
        read_table(str(tmp_path / "none.csv"))
    with pytest.raises(BadDataError, match="a folder of documents goes with --model medlda"):
        read_table(str(tmp_path))
