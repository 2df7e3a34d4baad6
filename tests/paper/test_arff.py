"""The ARFF reader, against SciPy's on dense files and against itself on sparse ones."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.io import arff as scipy_arff

from regbayes_paper.data import ArffError, label_names, read_arff

DENSE = """% a comment
@RELATION weather

@attribute outlook {sunny, 'partly cloudy', rainy}
@attribute temperature REAL
@attribute\thumidity numeric
@attribute 'wind speed' integer
@attribute note string
@data
sunny, 25.5, 40, 3, 'a, b'
'partly cloudy',?,1e2,-4,"it's"
% another comment
?,  -1, 0, 0, plain
"""


def write(tmp_path, text, name="data.arff"):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def test_a_dense_file_with_quotes_comments_and_missing_values(tmp_path):
    table = read_arff(write(tmp_path, DENSE))
    assert table.relation == "weather"
    assert table.names == ["outlook", "temperature", "humidity", "wind speed", "note"]
    assert table.columns[0].tolist() == ["sunny", "partly cloudy", None]
    np.testing.assert_array_equal(table.columns[1], [25.5, np.nan, -1.0])
    np.testing.assert_array_equal(table.columns[3], [3.0, -4.0, 0.0])
    assert table.columns[4].tolist() == ["a, b", "it's", "plain"]
    assert table.attributes[0].categories == ("sunny", "partly cloudy", "rainy")


@settings(max_examples=25)
@given(rows=st.lists(st.tuples(st.floats(allow_nan=False, width=32), st.sampled_from(["x", "y z"])), min_size=1))
def test_dense_files_read_as_scipy_reads_them(tmp_path_factory, rows):
    lines = "\n".join(f"{number!r},'{text}'" for number, text in rows)
    text = f"@relation r\n@attribute a numeric\n@attribute b {{x,'y z'}}\n@data\n{lines}\n"
    path = write(tmp_path_factory.mktemp("arff"), text)
    theirs, _ = scipy_arff.loadarff(path)
    ours = read_arff(path)
    np.testing.assert_array_equal(ours.columns[0], theirs["a"])
    assert ours.columns[1].tolist() == [value.decode() for value in theirs["b"]]


def test_a_sparse_file_is_the_dense_one_with_zeros_left_out(tmp_path):
    header = "@relation r\n@attribute a numeric\n@attribute b {no,yes}\n@attribute c numeric\n@data\n"
    dense = read_arff(write(tmp_path, header + "0,no,2\n1.5,yes,0\n0,no,0\n0,?,?\n", "dense.arff"))
    sparse = read_arff(write(tmp_path, header + "{2 2}\n{0 1.5, 1 yes}\n{}\n{1 ?,2 ?}\n", "sparse.arff"))
    for one, other in zip(dense.columns, sparse.columns, strict=True):
        np.testing.assert_array_equal(one, other)


def test_numbers_of_nominal_columns(tmp_path):
    table = read_arff(
        write(tmp_path, "@relation r\n@attribute a {0,1}\n@attribute b {FALSE,TRUE}\n@data\n1,TRUE\n0,?\n")
    )
    np.testing.assert_array_equal(table.numbers(["b", "a"]), [[1.0, 1.0], [np.nan, 0.0]])
    text = read_arff(write(tmp_path, "@relation r\n@attribute a string\n@data\nword\n"))
    with pytest.raises(ArffError, match="'a' holds text"):
        text.numbers(["a"])


BODY = "@attribute x numeric\n@attribute l1 {0,1}\n@attribute l2 {0,1}\n@data\n1,0,1\n"


@pytest.mark.parametrize(
    ("relation", "xml", "labels"),
    [
        ("'set: -C 1'", None, ["x"]),
        ("'set: -C -2'", None, ["l1", "l2"]),
        ("set", '<labels xmlns="http://mulan"><label name="l2"/><label name="l1"/></labels>', ["l2", "l1"]),
        ("set", None, []),
    ],
    ids=["MEKA first", "MEKA last", "Mulan", "nothing said"],
)
def test_which_attributes_are_labels(tmp_path, relation, xml, labels):
    path = write(tmp_path, f"@relation {relation}\n{BODY}", "set-train.arff")
    if xml is not None:
        (tmp_path / "set.xml").write_text(xml)
    assert label_names(read_arff(path), path) == labels


def test_an_xml_file_that_does_not_fit(tmp_path):
    path = write(tmp_path, f"@relation r\n{BODY}", "set.arff")
    (tmp_path / "set.xml").write_text('<labels><label name="nobody"/></labels>')
    with pytest.raises(ArffError, match="label 'nobody', which is no attribute"):
        label_names(read_arff(path), path)
    (tmp_path / "set.xml").write_text("<labels")
    with pytest.raises(ArffError, match="not XML"):
        label_names(read_arff(path), path)


BAD = {
    "no header": ("1,2\n", "line 1: expected @relation"),
    "no data": ("@relation r\n@attribute a numeric\n", "no @data line"),
    "no attributes": ("@relation r\n@data\n1\n", "before any @attribute"),
    "an unknown type": ("@relation r\n@attribute a relational\n@data\n", "of type 'relational'"),
    "open categories": ("@relation r\n@attribute a {x,y\n@data\n", "not closed"),
    "too many values": ("@relation r\n@attribute a numeric\n@data\n1\n1,2\n", "line 5 has 2 values"),
    "text for a number": ("@relation r\n@attribute a numeric\n@data\n1\nfoo\n", "line 5: 'foo' is not a number"),
    "an unknown category": ("@relation r\n@attribute a {x}\n@data\nx\ny\n", "line 5: 'y' is not a category"),
    "an open quote": ("@relation r\n@attribute a string\n@data\n'x\n", "a quote is not closed"),
    "an open sparse row": ("@relation r\n@attribute a numeric\n@data\n{0 1\n", "not closed by }"),
    "a sparse index too large": ("@relation r\n@attribute a numeric\n@data\n{1 1}\n", "index below 1"),
}


@pytest.mark.parametrize(("text", "message"), BAD.values(), ids=BAD)
def test_what_is_not_arff_is_refused_with_its_line(tmp_path, text, message):
    with pytest.raises(ArffError, match=message):
        read_arff(write(tmp_path, text))
