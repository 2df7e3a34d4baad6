"""Test that untrusted files run no code and need little memory to reject."""

from __future__ import annotations

import io
import os
import sys
import time
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
from sklearn.decomposition import PCA

from persistence_tools import assert_same, content_of, craft, entry, first_line, load_bytes
from regbayes.persistence import PersistenceError, files, load, save
from regbayes.persistence import tree as tree_module


class Payload:
    """Object whose unpickling creates a folder."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self):
        return (os.mkdir, (str(self.path),))


@pytest.mark.parametrize(
    "claim", ["|O", "|O8", "O", "|V8", "<U0", "<i3", "<M8[qq]", "f8,O", "(2,)f8", "object", None, 8, ["<f8"]]
)
def test_load_does_not_unpickle_arrays(claim, tmp_path):
    mark = tmp_path / "the payload ran"
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, np.array([Payload(mark), None, None], dtype=object))
    content = buffer.getvalue()
    np.load(io.BytesIO(content), allow_pickle=True)
    assert mark.exists()  # the payload works if unpickled
    mark.rmdir()
    craft(tmp_path / "file", {"array": 0}, [(content, entry(content, dtype=claim))])
    with pytest.raises(PersistenceError, match="not allowed"):
        load(tmp_path / "file")
    assert not mark.exists()


@pytest.mark.parametrize("tag", ["object", "enum"])
@pytest.mark.parametrize("name", ["stranger.Thing", "stranger", "os.system", "builtins.eval", "numpy.ndarray", 7, None])
def test_load_does_not_import_unknown_types(tag, name, tmp_path, monkeypatch):
    mark = tmp_path / "the module ran"
    (tmp_path / "stranger.py").write_text(f"open({str(mark)!r}, 'w')\nclass Thing: pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    craft(tmp_path / "file", {tag: [name, {} if tag == "object" else "A"]})
    with pytest.raises(PersistenceError, match="unknown type"):
        load(tmp_path / "file")
    assert "stranger" not in sys.modules
    assert not mark.exists()


def test_load_with_missing_or_extra_arrays_raises(tmp_path):
    content = content_of(np.arange(3.0))
    craft(tmp_path / "file", None, [(b"", entry(content))])
    with pytest.raises(PersistenceError, match="its arrays need 24 bytes, and it has 0"):
        load(tmp_path / "file")
    craft(tmp_path / "file", None, [(content, entry(content)), (content, {})], arrays=[entry(content)])
    with pytest.raises(PersistenceError, match="its arrays need 24 bytes, and it has 48"):
        load(tmp_path / "file")


def peak_of_refusal(path: Path, message: str) -> int:
    """Return the peak memory of a failing `load`, in bytes."""
    tracemalloc.start()
    try:
        with pytest.raises(PersistenceError, match=message):
            load(path)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_load_of_zip_archive_raises_without_unpacking(tmp_path):
    """Format 1 was a zip archive; zip bombs must not be unpacked."""
    for name in ("arrays/0.npy", "manifest.json"):
        with zipfile.ZipFile(tmp_path / "file", "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(name, b'{"manifest": {"format": "regbayes"' + bytes(20_000_000))
        assert (tmp_path / "file").stat().st_size < 100_000
        assert peak_of_refusal(tmp_path / "file", "it is not a regbayes file") < 1_000_000


def test_load_with_overlapping_arrays_raises(tmp_path):
    content = content_of(np.zeros(100_000))
    described = entry(content, shape=[100_000])
    craft(tmp_path / "file", None, [(content, described)], arrays=[described] * 200)
    assert peak_of_refusal(tmp_path / "file", "its arrays need 160000000 bytes, and it has 800000") < 5_000_000


@pytest.mark.parametrize("size", [10**12, 2**62, 10**30])
@pytest.mark.parametrize("shape", [lambda n: [n], lambda n: [1, n, 2], lambda n: [0, n]], ids=["1-d", "3-d", "empty"])
def test_load_of_huge_shape_raises_before_allocation(size, shape, tmp_path):
    shape = shape(size)
    craft(tmp_path / "file", {"array": 0}, [(b"", entry(b"", shape=shape))])
    if size == 10**12 and shape[0] == 0:
        assert load(tmp_path / "file").shape == (0, 10**12)  # valid, because the array is empty
    else:
        message = "its arrays need|is not the shape of an array|malformed"
        assert peak_of_refusal(tmp_path / "file", message) < 5_000_000


@pytest.mark.parametrize("shape", [[-1], [3.0], [True], "3", None, [[3]], {"0": 3}, [1] * 65, [2**63]])
def test_load_of_invalid_shape_raises(shape, tmp_path):
    content = content_of(np.arange(3.0))
    craft(tmp_path / "file", {"array": 0}, [(content, entry(content, shape=shape))])
    with pytest.raises(PersistenceError, match="is not the shape of an array"):
        load(tmp_path / "file")


def test_load_above_max_bytes_raises(tmp_path):
    save(np.zeros(1000), tmp_path / "file")
    size = (tmp_path / "file").stat().st_size
    assert load(tmp_path / "file", max_bytes=size).shape == (1000,)
    with pytest.raises(PersistenceError, match=f"it has {size} bytes, more than max_bytes={size - 1}"):
        load(tmp_path / "file", max_bytes=size - 1)


@pytest.mark.parametrize(
    ("array", "bad"),
    [
        (np.array([True, False]), b"\x02\x00"),
        (np.array(["a"]), b"\xff\xff\xff\xff"),
        (np.array(["a"], dtype=">U1"), b"\x00\x11\x00\x00"),
    ],
    ids=["bool", "text", "big-endian text"],
)
def test_load_of_invalid_array_contents_raises(array, bad, tmp_path):
    described = entry(bad, dtype=array.dtype.str, shape=list(array.shape))
    craft(tmp_path / "file", {"array": 0}, [(bad, described)])
    with pytest.raises(PersistenceError, match="holds bytes that are not"):
        load(tmp_path / "file")


@pytest.mark.parametrize(
    ("indices", "indptr"),
    [([0, 7], [0, 1, 2]), ([0, -1], [0, 1, 2]), ([0, 1], [0, 2, 1]), ([0, 1], [0, 1, 9]), ([0, 1], [0, 1])],
)
def test_load_of_sparse_matrix_with_invalid_indices_raises(indices, indptr, tmp_path):
    matrix = scipy.sparse.csr_matrix(np.eye(2))
    matrix.indices, matrix.indptr = np.array(indices, np.int32), np.array(indptr, np.int32)
    save(matrix, tmp_path / "file")
    with pytest.raises(PersistenceError, match="malformed"):
        load(tmp_path / "file")


def seconds_to_refuse(path: Path, message: str) -> float:
    start = time.thread_time()
    with pytest.raises(PersistenceError, match=message):
        load(path)
    return time.thread_time() - start


PRIME = 2**61 - 1  # modulus of Python's hash of integers


@pytest.mark.parametrize("wide", [int, float])
def test_colliding_keys_do_not_slow_down_load(wide, tmp_path):
    keys = [wide(PRIME) * index for index in range(1, 40_000)]
    craft(tmp_path / "file", {"items": [[key, 0] for key in keys]})
    assert (tmp_path / "file").stat().st_size > 380_000
    if wide is int:
        assert len({hash(key) for key in keys}) == 1
        assert seconds_to_refuse(tmp_path / "file", "malformed at the object") < 1.0
    else:
        assert max(np.unique([hash(key) for key in keys], return_counts=True)[1]) < 300
        start = time.thread_time()
        assert len(load(tmp_path / "file")) == len(keys)
        assert time.thread_time() - start < 3.0


@pytest.mark.parametrize("kind", ["<f16", "<c8", "<c16", "<M8[s]", "<m8[s]"])
def test_load_of_key_wider_than_64_bits_raises(kind, tmp_path):
    zero = np.zeros(1, kind)[0]
    key = {"scalar": f"{zero.dtype.str} {zero.tobytes().hex()}"}
    assert_same(load(craft(tmp_path / "file", [key])), [zero])
    with pytest.raises(PersistenceError, match="malformed"):
        load(craft(tmp_path / "file", {"items": [[key, 0]]}))


@pytest.mark.parametrize("text", ["[],", "{},", "0,", '"",', '{"a":0},', "[[[]]],"])
def test_header_with_too_many_values_raises_before_parsing(text, tmp_path):
    size = 30_000_000
    craft(tmp_path / "file", b"[" + text.encode() * (size // len(text)) + b"0]")
    assert peak_of_refusal(tmp_path / "file", "its header has more than 2000000 values") < 2 * size


HEAVY = {"lists": "[],", "tuples": '{"tuple":[]},', "numbers": "1000,", "keys": '{"dict":{"%d":0}},'}


@pytest.mark.parametrize("text", HEAVY.values(), ids=HEAVY)
def test_load_memory_is_bounded_by_number_of_values(text, tmp_path, monkeypatch):
    limit = 50_000
    monkeypatch.setattr(files, "MAX_VALUES", limit)
    count = (limit - 100) // sum(text.count(mark) for mark in ",:[{")
    many = "".join(text % index if "%" in text else text for index in range(count))
    craft(tmp_path / "file", b"[" + many.encode() + b"0]")
    tracemalloc.start()
    try:
        assert len(load(tmp_path / "file")) == count + 1
        assert tracemalloc.get_traced_memory()[1] < 200 * limit
    finally:
        tracemalloc.stop()


def test_defaults_of_empty_objects_count_as_values(tmp_path, monkeypatch):
    empty = {"object": ["sklearn.PCA", {}]}
    n_parameters = len(PCA().get_params())
    monkeypatch.setattr(tree_module, "MAX_VALUES", 100 * n_parameters)
    found = load(craft(tmp_path / "file", [empty] * 100))
    assert found[99].get_params() == PCA().get_params()
    with pytest.raises(PersistenceError, match=r"malformed at the object\[100\]"):
        load(craft(tmp_path / "file", [empty] * 101))


MALFORMED = {
    "nesting": b"[" * 100_000 + b"]" * 100_000,
    "moderate nesting": b"[" * 80 + b"]" * 80,
    "a wide integer": 2**64,
    "not JSON": b"[1,",
    "two tags": {"tuple": [], "slice": [None, None, None]},
    "no tag": {},
    "tag of the wrong kind": {"tuple": 1},
    "bad float": {"float": "00"},
    "bad slice": {"slice": []},
    "unhashable key": {"items": [[[1], 2]]},
    "key twice": {"items": [[1, 2], [1, 3]]},
    "key twice by value": {"items": [[1, 2], [{"scalar": "<f8 000000000000f03f"}, 3]]},
    "items of a mapping": {"items": {"a": 1}},
    "unpaired item": {"items": [[1]]},
    "array that is not there": {"array": 0},
    "scalar of the wrong size": {"scalar": "<f8 00"},
    "text scalar": {"scalar": "<U1 ffffffff"},
    "truth beyond one": {"scalar": "|b1 02"},
    "scalar without content": {"scalar": "<f8"},
    "scalar by list": {"scalar": ["<f8", "00"]},
    "text of a list": {"str": []},
    "slice of a number": {"slice": 3},
    "structured dtype": {"dtype": "<f8,<f8"},
    "type that is code": {"type": "builtins.eval"},
    "type of objects": {"type": "numpy.object_"},
    "objects of the wrong number": {"objects": [[3], ["a"]]},
    "objects without shape": {"objects": [["a"]]},
    "objects of lists": {"objects": [[1], [["a"]]]},
    "sparse of an unknown type": {"sparse": ["os.system", [1, 1], 0, 0, 0]},
    "sparse of lists": {"sparse": ["csr_matrix", [1, 1], [], [], [0]]},
    "sparse without arrays": {"sparse": ["csr_matrix", [1, 1], 0, 0, 0]},
    "object without state": {"object": ["regbayes.Finite"]},
    "state that is a list": {"object": ["regbayes.Finite", []]},
    "huge number": b"9" * 10_000,
}


@pytest.mark.parametrize("tree", MALFORMED.values(), ids=MALFORMED)
def test_load_of_malformed_tree_raises(tree, tmp_path):
    with pytest.raises(PersistenceError):
        load(craft(tmp_path / "file", tree))


@pytest.mark.parametrize("arrays", [None, 3, {}, [None], [{}], [[]], "a"])
def test_load_of_malformed_list_of_arrays_raises(arrays, tmp_path):
    craft(tmp_path / "file", {"array": 0}, arrays=arrays)
    with pytest.raises(PersistenceError, match="malformed"):
        load(tmp_path / "file")


@pytest.mark.parametrize(
    "header", [b"[]", b"{}", b'{"object": 1}', b'{"arrays": []}', b"null", b"", b"\xff", b'{"arrays": [']
)
def test_load_of_malformed_header_raises(header, tmp_path):
    with pytest.raises(PersistenceError, match="malformed"):
        load_bytes(first_line(header) + header, tmp_path)
