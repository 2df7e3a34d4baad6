"""Files to tables: every format, and what is wrong with a file is said with its line."""

from __future__ import annotations

import gzip
import io

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_matrix
from sklearn.datasets import dump_svmlight_file

from regbayes.cli.errors import BadDataError, MissingPieceError, UserError, listed
from regbayes.cli.tables import Table, check_size, format_of, read_table
from regbayes.cli.targets import choose_targets

FIELDS = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.text(alphabet='ab,"; \n', max_size=5).map(str.strip),
)


def write(tmp_path, content, name="data.csv"):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


def read(tmp_path, content, name="data.csv", **options) -> Table:
    return read_table(write(tmp_path, content, name), **options)


@settings(max_examples=40)
@given(rows=st.lists(st.tuples(st.integers(-5, 5), FIELDS), min_size=1, max_size=8))
def test_csv_reads_as_pandas_reads_it(tmp_path_factory, rows):
    frame = pd.DataFrame(rows, columns=["number", "anything"])
    text = frame.to_csv(index=False)
    theirs = pd.read_csv(io.StringIO(text), keep_default_na=False, na_values=[""], dtype={"anything": str})
    ours = read(tmp_path_factory.mktemp("csv"), text)
    np.testing.assert_array_equal(ours.column("number"), theirs["number"])
    column = ours.column("anything")
    wanted = [None if isinstance(value, float) else value.strip() or None for value in theirs["anything"]]
    if column.dtype == object:
        assert column.tolist() == wanted
    else:
        np.testing.assert_array_equal(column, [np.nan if value is None else float(value) for value in wanted])


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("a;b\n1,5;x\n2;y\n", {}),
        ("a\tb\n1.5\tx\n2\ty\n", {}),
        ("a|b\n1.5|x\n2|y\n", {}),
        ('"a","b"\r\n1.5,"x"\r\n\r\n2,y\r\n', {}),
        ("\ufeffa,b\n1.5,x\n2,y", {}),
        ("a:b\n1.5:x\n2:y\n", {"delimiter": ":"}),
    ],
    ids=["semicolons and decimal commas", "tabs", "bars", "quotes and Windows", "byte order mark", "told"],
)
def test_delimiters(tmp_path, text, options):
    table = read(tmp_path, text, **options)
    assert table.names == ("a", "b")
    assert table.column("a").tolist() == [1.5, 2.0]
    assert table.column("b").tolist() == ["x", "y"]


def test_missing_values_and_columns_without_a_name(tmp_path):
    table = read(tmp_path, "a,,c\n1,NA,\n?,x,unknown\n3,,y\n", missing=("unknown",))
    assert table.names == ("a", "column2", "c")
    np.testing.assert_array_equal(table.column("a"), [1, np.nan, 3])
    assert table.column("column2").tolist() == [None, "x", None]
    assert table.column("c").tolist() == [None, None, "y"]


@pytest.mark.parametrize("header", [",a", '"",a', "Unnamed: 0,a"])
@pytest.mark.parametrize("begin", [0, 1])
def test_an_index_without_a_name_is_no_input(tmp_path, header, begin):
    rows = "".join(f"{begin + i},{i % 3}\n" for i in range(5))
    table = read(tmp_path, f"{header}\n{rows}")
    assert table.inputs == ("a",)
    assert "has no name and numbers the rows" in table.notes[0]
    assert table.column(table.names[0]).tolist() == [begin + i for i in range(5)]  # to be kept, or to name rows


@pytest.mark.parametrize("text", [",a\n3,1\n1,2\n", ",a\nx,1\ny,2\n", "id,a\n0,1\n1,2\n", "a,\n5,0\n7,1\n"])
def test_other_columns_are_inputs_with_or_without_a_name(tmp_path, text):
    assert read(tmp_path, text).inputs is None


def test_a_file_without_a_header(tmp_path):
    table = read(tmp_path, "1,2\n3,4\n", header=False)
    assert table.names == ("column1", "column2")
    assert table.column("column1").tolist() == [1, 3]
    assert "use --no-header" in read(tmp_path, "1,2\n3,4\n").notes[0]


def test_a_number_column_with_a_few_odd_texts_is_pointed_out(tmp_path):
    text = "a,b\n" + "".join(f"{i},{i}\n" for i in range(30)) + "30,none\n"
    table = read(tmp_path, text)
    assert table.column("b").dtype == object
    assert table.notes == (
        "column 'b' holds numbers, except 'none' and the like in 1 of 31 rows, so it counts as text. If that marks a "
        "missing value: --missing 'none'",
    )


def test_gzip(tmp_path):
    assert read(tmp_path, gzip.compress(b"a,b\n1,2\n"), "data.csv.gz").column("b").tolist() == [2]
    with pytest.raises(BadDataError, match="not a whole gzip file"):
        read(tmp_path, b"a,b\n", "data.csv.gz")


def test_parquet_is_the_csv_file_with_types(tmp_path):
    frame = pd.DataFrame(
        {"a": [1, 2, 3], "b": [0.5, None, 2.0], "c": ["x", None, "z"], "d": [True, False, True]}, index=[7, 8, 9]
    )
    frame.to_parquet(tmp_path / "t.parquet")
    table = read_table(str(tmp_path / "t.parquet"))
    assert table.names == ("a", "b", "c", "d")  # and not pandas' index
    np.testing.assert_array_equal(table.column("b"), [0.5, np.nan, 2.0])
    assert table.column("c").tolist() == ["x", None, "z"]
    assert table.column("d").tolist() == [1, 0, 1]


def test_parquet_without_pyarrow_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pyarrow.parquet", None)
    with pytest.raises(MissingPieceError, match=r"needs pyarrow.*pip install 'regbayes\[parquet\]'"):
        read(tmp_path, b"", "t.parquet")


def test_npz_with_inputs_targets_and_tasks(tmp_path):
    X = np.arange(6.0).reshape(3, 2)
    path = tmp_path / "t.npz"
    np.savez(path, X=X, y=np.array(["u", "v", "u"]), task=np.array([0, 1, 1]), feature_names=np.array(["p", "q"]))
    table = read_table(str(path))
    assert table.inputs == ("p", "q")
    assert table.targets == ("y",)
    assert table.column("q").tolist() == [1, 3, 5]
    assert table.column("y").tolist() == ["u", "v", "u"]
    np.savez(path, X=X, Y=np.eye(3), label_names=np.array(["l1", "l2", "l3"]))
    assert read_table(str(path)).groups == {"Y": ("l1", "l2", "l3")}
    np.savez(path, a=np.arange(3), b=np.array(["x", "", "z"]))
    assert read_table(str(path)).column("b").tolist() == ["x", None, "z"]


def test_a_sparse_npz_is_the_dense_one(tmp_path):
    X = csr_matrix(np.array([[0, 2.0], [1, 0], [0, 0]]))
    parts = {"X_data": X.data, "X_indices": X.indices, "X_indptr": X.indptr, "X_shape": np.array(X.shape)}
    np.savez(tmp_path / "t.npz", **parts, y=np.arange(3))
    table = read_table(str(tmp_path / "t.npz"))
    np.testing.assert_array_equal(np.column_stack([table.column("x0"), table.column("x1")]), X.toarray())
    np.savez(tmp_path / "t.npz", **{**parts, "X_indices": X.indices + 7})
    with pytest.raises(BadDataError, match="no sparse matrix"):
        read_table(str(tmp_path / "t.npz"))


def test_libsvm_columns_are_called_by_their_numbers(tmp_path):
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((5, 3)).round(3), np.array([1, 2, 1, 2, 1])
    dump_svmlight_file(X, y, str(tmp_path / "t.libsvm"), zero_based=False)
    table = read_table(str(tmp_path / "t.libsvm"))
    np.testing.assert_allclose(np.column_stack([table.column(str(i)) for i in (1, 2, 3)]), X)
    assert table.column("label").tolist() == y.tolist()
    assert table.column("77").tolist() == [0] * 5  # absent is zero
    several = read(tmp_path, "1,3 1:2\n 2:1\n3 1:1\n", "several.libsvm")
    assert several.targets == ("label=1", "label=3")
    assert several.column("label=3").tolist() == [1, 0, 1]
    assert several.column("label=2").tolist() == [0, 0, 0]  # no row of this file has it


def test_the_format_is_in_the_name(tmp_path):
    assert [format_of(name) for name in ("a.CSV", "b.tsv.gz", "c.pq", "d.svm", "-")] == [
        "csv",
        "csv",
        "parquet",
        "libsvm",
        "csv",
    ]
    with pytest.raises(BadDataError, match="Say it with --format"):
        format_of("table.what")
    with pytest.raises(BadDataError, match="looks like a spreadsheet"):
        format_of("table.xls")
    assert read(tmp_path, "a,b\n1,2\n", "table.xls", format="csv").names == ("a", "b")


BAD = {
    "empty": ("data.csv", "", "is empty"),
    "no rows": ("data.csv", "a,b\n", "has no rows"),
    "a short row": ("data.csv", "a,b\n1,2\n\n3\n", "line 4: 1 fields, but there are 2 columns"),
    "an open quote": ("data.csv", 'a,b\n1,2\n3,"x\n4,5\n6,7\n', "line 3: a quotation mark opens a field that is never"),
    "a quote inside": ("data.csv", 'a,b\n1,"x"y\n3,4\n', "line 2: .* inside a quoted field they are written twice"),
    "a name twice": ("data.csv", "a,b,a\n1,2,3\n", "several columns of one name: 'a'"),
    "latin-1": ("data.csv", b"a,b\n1,\xe9\n", "not text in UTF-8"),
    "many bytes": ("data.csv", b"\xa2\x00\x01\n", "not a text file: it has null characters"),
    "half of UTF-16": ("data.csv", b"\xff\xfea", "not text in UTF-16"),
    "a picture": ("data.csv", b"\x00\x01,\x02\n", "null characters"),
    "no parquet": ("data.parquet", "text", "cannot be read as Parquet"),
    "no npz": ("data.npz", "text", "not an npz file"),
    "arff": ("data.arff", "@relation r\n", "looks like ARFF, which is not read here: save the table as CSV"),
    "no libsvm": ("data.libsvm", "text here\n", "cannot be read as LIBSVM"),
}


@pytest.mark.parametrize(("name", "content", "message"), BAD.values(), ids=BAD)
def test_what_cannot_be_read_is_said(tmp_path, name, content, message):
    with pytest.raises(BadDataError, match=message):
        read(tmp_path, content, name)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_text_says_how_it_is_encoded(tmp_path, encoding):
    table = read(tmp_path, "name,größe\nKöln,1\nParis,2\n".encode(encoding))
    assert table.names == ("name", "größe")
    assert table.column("name").tolist() == ["Köln", "Paris"]


def test_a_list_of_names_ends_where_the_rest_is_longer_than_its_number():
    assert listed("abc", most=2) == "'a', 'b', 'c'"
    assert listed("abcd", most=2) == "'a', 'b' and 2 more"


def test_there_is_no_file_or_it_is_a_folder(tmp_path):
    with pytest.raises(BadDataError, match="there is no file"):
        read_table(str(tmp_path / "none.csv"))
    with pytest.raises(BadDataError, match="is a folder"):
        read_table(str(tmp_path))


def test_what_does_not_fit_into_memory_is_refused():
    with pytest.raises(BadDataError, match="as dense numbers take 80 GB"):
        check_size((10**6, 10**4), "large.libsvm")


def test_an_array_of_numpy_is_a_table(tmp_path):
    X = np.random.default_rng(0).normal(size=(20, 3))
    np.save(tmp_path / "rows.npy", X)
    table = read_table(str(tmp_path / "rows.npy"))
    assert table.names == ("x0", "x1", "x2")
    np.testing.assert_array_equal(table.column("x1"), X[:, 1])
    records = np.array([(1.5, "a"), (2.0, "b")], dtype=[("size", "f4"), ("kind", "U3")])
    np.save(tmp_path / "records.npy", records)
    table = read_table(str(tmp_path / "records.npy"))
    assert table.names == ("size", "kind")
    assert table.column("kind").tolist() == ["a", "b"]


@pytest.mark.parametrize(
    ("array", "said"),
    [
        (np.ones(4), r'shape \(4,\).*numpy.savez\("data.npz", X=X, y=y\)'),
        (np.array([{}], dtype=object), "holds Python objects, which are not read"),
    ],
)
def test_an_array_that_is_no_table_is_refused(array, said, tmp_path):
    np.save(tmp_path / "rows.npy", array)
    with pytest.raises(BadDataError, match=said):
        read_table(str(tmp_path / "rows.npy"))


def test_a_file_that_only_has_the_name_is_no_array(tmp_path):
    (tmp_path / "rows.npy").write_text("x0,x1\n1,2\n")
    with pytest.raises(BadDataError, match="is not an NPY file"):
        read_table(str(tmp_path / "rows.npy"))


def test_inputs_without_a_target_are_told_of_archives(tmp_path):
    np.save(tmp_path / "rows.npy", np.ones((4, 2)))
    with pytest.raises(UserError, match=r"numpy\.savez"):
        choose_targets(read_table(str(tmp_path / "rows.npy")), [])
