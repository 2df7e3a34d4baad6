"""Test that values of every supported type round-trip bitwise."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from persistence_tools import assert_same, round_trip
from regbayes.persistence import PersistenceError, files, load, save

LEAVES = {
    "None": None,
    "True": True,
    "False": False,
    "zero": 0,
    "negative": -7,
    "beyond 53 bits": 2**53 + 1,
    "64 bits": [2**64 - 1, -(2**63)],
    "float": 0.1,
    "smallest float": 5e-324,
    "largest float": 1.7976931348623157e308,
    "negative zero": -0.0,
    "nan": math.nan,
    "negative nan": math.copysign(math.nan, -1.0),
    "inf": math.inf,
    "negative inf": -math.inf,
    "text": 'naïve "κ" \\ \x00 🂡',
    "lone surrogate": "\ud800",
    "list": [1, [2.0, []]],
    "tuple": (1, (), ("a",)),
    "dict": {"a": 1, "": {"array": 2}},
    "dict that looks like a tag": {"tuple": [1, 2]},
    "dict of labels": {1: "a", 2.5: "b", None: "c", False: "d", "e": 1, np.int64(9): 3, np.str_("κ"): 4, -(2**63): 5},
    "empty dict": {},
    "slice": slice(1, None, -2),
    "numpy bool": np.bool_(True),
    "numpy int8": np.int8(-3),
    "numpy uint64": np.uint64(2**64 - 1),
    "numpy float16": np.float16(0.1),
    "numpy float32": np.float32(0.1),
    "numpy float64": np.float64(0.1),
    "numpy longdouble": np.longdouble("0.1"),
    "numpy complex64": np.complex64(1 - 2j),
    "numpy datetime": np.datetime64("2020-02-29T12:00", "ns"),
    "numpy timedelta": np.timedelta64(-3, "D"),
    "numpy not a time": np.datetime64("NaT"),
    "numpy str": np.str_("κ\x00"),
    "dtypes": [np.dtype("<f8"), np.dtype(">i2"), np.dtype("<U3"), np.dtype(object)],
    "number types": [bool, int, float, np.bool_, np.int8, np.int64, np.uint64, np.float32, np.float64],
    "object array of labels": np.array(["cat", "dog", "a longer one"], dtype=object),
    "object array of everything": np.array([["a", None], [1.5, True], [np.float32(2), math.nan]], dtype=object),
    "empty object array": np.empty((0, 2), dtype=object),
    "0-d object array": np.array("label", dtype=object),
    "read-only array": np.broadcast_to(np.arange(3.0), (2, 3)),
    "reversed array": np.arange(6)[::-2],
    "csr matrix": scipy.sparse.csr_matrix(np.diag([1.0, 0.0, 2.0])),
    "csr array": scipy.sparse.csr_array(np.eye(2, 3, dtype=bool)),
    "1-d csr array": scipy.sparse.csr_array(np.array([0.0, 3.0, 0.0])),
}


@pytest.mark.parametrize("value", LEAVES.values(), ids=LEAVES)
def test_leaf_round_trips(value, tmp_path):
    assert_same(round_trip(value, tmp_path), value)
    assert_same(round_trip({"in": [value, (value,)]}, tmp_path), {"in": [value, (value,)]})


def arrays(dtypes: st.SearchStrategy) -> st.SearchStrategy:
    shapes = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)
    return st.builds(lay_out, hnp.arrays(dtypes, shapes), st.sampled_from(["C", "F", "strided"]), st.booleans())


def lay_out(array, layout, writeable):
    """Return the array in another memory layout."""
    if layout == "strided" and array.ndim:
        array = np.repeat(array, 2, axis=-1)[..., ::2]
    else:
        array = array.copy(order="F" if layout == "F" else "C")
    array.flags.writeable = writeable
    return array


DTYPES = st.one_of(
    hnp.scalar_dtypes(),
    hnp.unicode_string_dtypes(max_len=5),
    hnp.byte_string_dtypes(max_len=5),
)


@given(array=arrays(DTYPES))
def test_array_of_any_dtype_shape_and_order_round_trips(array, tmp_path_factory):
    assert_same(round_trip(array, tmp_path_factory.getbasetemp()), array)


LABELS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(),
    st.text(st.characters(exclude_categories=())),
)
TREES = st.recursive(
    st.one_of(LABELS, arrays(hnp.floating_dtypes())),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.tuples(inner, inner),
        st.dictionaries(st.text(max_size=5), inner, max_size=4),
        st.dictionaries(LABELS, inner, max_size=4),
    ),
    max_leaves=15,
)


@given(tree=TREES)
def test_nested_containers_round_trip(tree, tmp_path_factory):
    assert_same(round_trip(tree, tmp_path_factory.getbasetemp()), tree)


def test_sparse_matrix_keeps_64_bit_indices(tmp_path):
    matrix = scipy.sparse.csr_matrix(np.eye(3))
    matrix.indices, matrix.indptr = matrix.indices.astype(np.int64), matrix.indptr.astype(np.int64)
    assert_same(round_trip(matrix, tmp_path), matrix)


def test_shared_array_is_saved_once_and_stays_shared(tmp_path):
    array = np.random.default_rng(0).normal(size=10_000)
    found = round_trip([array, {"again": array}], tmp_path)
    assert found[0] is found[1]["again"]
    assert (tmp_path / "object.regbayes").stat().st_size < 1.1 * array.nbytes


def test_memory_map_loads_as_array(tmp_path):
    np.save(tmp_path / "array.npy", np.arange(4.0))
    found = round_trip(np.load(tmp_path / "array.npy", mmap_mode="r"), tmp_path)
    assert type(found) is np.ndarray
    np.testing.assert_array_equal(found, np.arange(4.0))


class Unregistered:
    pass


class HasMethod:
    def method(self):
        return 1


def sparse_objects():
    matrix = scipy.sparse.csr_matrix(np.eye(2))
    matrix.data = matrix.data.astype(object)
    return matrix


REFUSED = {
    "lambda": (lambda: 1, r"dict\['here'\]\[0\] is a callable .*code cannot be saved"),
    "method": (HasMethod().method, r"is a callable \(HasMethod.method\)"),
    "class": (Unregistered, "is the class Unregistered, and code cannot be saved"),
    "unregistered": (Unregistered(), r"has type .*\.Unregistered, which cannot be saved: register its class"),
    "coo matrix": (scipy.sparse.coo_matrix((2, 2)), r"convert it with \.tocsr\(\)"),
    "masked array": (np.ma.masked_array([1.0], [True]), "convert it to a plain numpy.ndarray"),
    "structured array": (np.zeros(2, dtype=[("a", "f8")]), r"is an array of type \[\('a', '<f8'\)\]"),
    "object array of lists": (np.array([None, [1]], dtype=object), "element 1 has type list"),
    "sparse matrix of objects": (sparse_objects(), "is an array of type object"),
    "65 bits": (2**64, "is an integer of more than 64 bits"),
    "bytes": (b"a", "has type builtins.bytes, which cannot be saved"),
    "set": ({1}, "convert it to a list"),
    "dict of tuples": ({(1, 2): 3}, "a key of .* has type tuple; it may be a string, a number or None"),
    "dict of wide integers": ({2**64: 3}, "a key of .* has type int"),
    "structured dtype": (np.dtype([("a", "f8")]), "is the dtype"),
    "type of objects": (np.object_, "is the class object_, and code cannot be saved"),
    "generator outside an attribute": (np.random.default_rng(0), "Generator, which cannot be saved"),
}


@pytest.mark.parametrize(("value", "message"), REFUSED.values(), ids=REFUSED)
def test_save_of_unsupported_value_names_its_place(value, message, tmp_path):
    with pytest.raises(PersistenceError, match=message) as raised:
        save({"here": [value]}, tmp_path / "object.regbayes")
    assert "dict['here'][0]" in str(raised.value)
    assert list(tmp_path.iterdir()) == []


def test_save_of_recursive_container_raises(tmp_path):
    loop: list = [1]
    loop.append({"back": loop})
    with pytest.raises(PersistenceError, match=r"list\[1\]\['back'\] contains itself"):
        save(loop, tmp_path / "object.regbayes")
    other: dict = {}
    other[1] = other
    with pytest.raises(PersistenceError, match=r"dict\[1\] contains itself"):
        save(other, tmp_path / "object.regbayes")


def nest(levels: int, innermost: object) -> object:
    return innermost if levels == 0 else [nest(levels - 1, innermost)]


CSR = scipy.sparse.csr_matrix(np.eye(2))


def test_saved_values_load_at_any_depth(tmp_path):
    for innermost in (None, "a", 7, math.nan, np.str_("a"), np.array(1.0), np.array(["a"], dtype=object), CSR):
        assert_same(round_trip(nest(62, innermost), tmp_path), nest(62, innermost))
        for levels in range(62, 66):
            try:
                save(nest(levels, innermost), tmp_path / "object.regbayes")
            except PersistenceError:
                continue
            assert_same(load(tmp_path / "object.regbayes"), nest(levels, innermost))
    with pytest.raises(PersistenceError, match="nested more than 64 levels deep"):
        save(nest(65, None), tmp_path / "object.regbayes")


def test_save_of_too_many_values_raises(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "MAX_VALUES", 1000)
    save([0] * 990, tmp_path / "file")
    with pytest.raises(PersistenceError, match="list has more than 1000 values outside arrays"):
        save([0] * 1000, tmp_path / "file")
    assert len(load(tmp_path / "file")) == 990
