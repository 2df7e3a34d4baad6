"""Files made by strangers: they run nothing, import nothing, write nothing and take no memory to refuse."""

from __future__ import annotations

import io
import os
import pickle
import struct
import sys
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse

from persistence_tools import assert_same, craft, entry, load_bytes, manifest_bytes, npy
from regbayes.persistence import PersistenceError, load, save


class Payload:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self):
        return (os.mkdir, (str(self.path),))


@pytest.mark.parametrize("claim", ["|O", "|O8", "O", "<f8", "|V8", "<U0", "f8,O", "(2,)f8", "object"])
def test_pickles_in_arrays_are_never_read(claim, tmp_path):
    mark = tmp_path / "the payload ran"
    content = npy(np.array([Payload(mark), None, None], dtype=object))
    np.load(io.BytesIO(content), allow_pickle=True)
    assert mark.exists()  # so the payload works where pickles are read
    mark.rmdir()
    described = entry(content, dtype=claim)
    craft(tmp_path / "file", {"array": "arrays/0.npy"}, {"arrays/0.npy": (content, described)})
    with pytest.raises(PersistenceError, match=r"not allowed|does not match the manifest"):
        load(tmp_path / "file")
    assert not mark.exists()


def test_pickles_in_place_of_members_are_never_read(tmp_path):
    mark = tmp_path / "the payload ran"
    pickled = pickle.dumps(Payload(mark))
    content = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(pickled)) + pickled
    for member, message in ((pickled, "is not an array"), (content, "header of the member")):
        craft(tmp_path / "file", {"array": "a.npy"}, {"a.npy": (member, entry(member))})
        with pytest.raises(PersistenceError, match=message):
            load(tmp_path / "file")
    with pytest.raises(PersistenceError, match="not a regbayes file"):
        load_bytes(pickled, tmp_path)
    assert not mark.exists()


@pytest.mark.parametrize("tag", ["object", "enum"])
@pytest.mark.parametrize("name", ["stranger.Thing", "stranger", "os.system", "builtins.eval", "numpy.ndarray", 7, None])
def test_types_in_a_file_are_never_imported(tag, name, tmp_path, monkeypatch):
    mark = tmp_path / "the module ran"
    (tmp_path / "stranger.py").write_text(f"open({str(mark)!r}, 'w')\nclass Thing: pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    craft(tmp_path / "file", {tag: {"id": 0, "type": name, "state": {}, "member": "A"}})
    with pytest.raises(PersistenceError, match="unknown type"):
        load(tmp_path / "file")
    assert "stranger" not in sys.modules
    assert not mark.exists()


@pytest.mark.parametrize("name", ["../escaped.npy", "/tmp/escaped.npy", "arrays/../../escaped.npy", "..\\escaped.npy"])
def test_members_are_never_written_to_disk(name, tmp_path):
    folder = tmp_path / "inner"
    folder.mkdir()
    content = npy(np.arange(3.0))
    craft(folder / "extra", None, extra=((name, content),))
    with pytest.raises(PersistenceError, match="is not in the manifest"):
        load(folder / "extra")
    craft(folder / "listed", {"array": name}, {name: (content, entry(content))})
    assert_same(load(folder / "listed"), np.arange(3.0))
    assert {path.name for path in tmp_path.rglob("*")} == {"inner", "extra", "listed"}


def test_missing_and_extra_members_are_named(tmp_path):
    content = npy(np.arange(3.0))
    with zipfile.ZipFile(tmp_path / "file", "w") as archive:
        archive.writestr("manifest.json", manifest_bytes(None, arrays={"arrays/5.npy": entry(content)}))
    with pytest.raises(PersistenceError, match=r"the member 'arrays/5\.npy' is missing"):
        load(tmp_path / "file")
    craft(tmp_path / "file", None, extra=(("arrays/6.npy", content),))
    with pytest.raises(PersistenceError, match=r"the member 'arrays/6\.npy' is not in the manifest"):
        load(tmp_path / "file")


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("name", ["manifest.json", "a.npy"])
def test_members_that_occur_twice_are_refused(name, tmp_path):
    content = npy(np.arange(3.0))
    craft(tmp_path / "file", {"array": "a.npy"}, {"a.npy": (content, entry(content))}, extra=((name, content),))
    with pytest.raises(PersistenceError, match=f"the member '{name}' occurs twice"):
        load(tmp_path / "file")


def peak_of_refusal(path: Path, message: str) -> int:
    """The memory that it takes to refuse a file, in bytes."""
    tracemalloc.start()
    try:
        with pytest.raises(PersistenceError, match=message):
            load(path)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_zip_bomb_is_refused_before_it_is_read(tmp_path):
    content = npy(np.zeros(2_000_000))
    described = entry(content, shape=[2_000_000])
    craft(tmp_path / "file", {"array": "a.npy"}, {"a.npy": (content, described)}, compression=zipfile.ZIP_DEFLATED)
    assert (tmp_path / "file").stat().st_size < 100_000
    assert peak_of_refusal(tmp_path / "file", "is compressed, which ours never are") < 5_000_000


def test_members_that_overlap_are_refused_before_they_are_read(tmp_path):
    content = npy(np.zeros(100_000))
    craft(tmp_path / "file", None, {f"{i:04}.npy": (content if i == 0 else b"", entry(content)) for i in range(200)})
    with zipfile.ZipFile(tmp_path / "file", "a") as archive:
        first = archive.infolist()[0]
        for info in archive.infolist()[1:200]:
            info.header_offset, info.file_size, info.compress_size = 0, first.file_size, first.file_size
        archive.comment = b"x"  # makes it write the directory again
    assert peak_of_refusal(tmp_path / "file", "claim more bytes than the file has") < 5_000_000


def bare_npy(dtype: str, shape: list[int]) -> bytes:
    """An npy file with a header and no data."""
    text = f"{{'descr': {dtype!r}, 'fortran_order': False, 'shape': {tuple(shape)!r}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


@pytest.mark.parametrize("dtype", ["<U0", "|S0", "|f8", "<i3", "<M8[qq]", "|O8", "<f8,<f8"])
def test_types_are_plain_even_where_the_header_agrees(dtype, tmp_path):
    for shape in ([0], [10**12]):
        content = bare_npy(dtype, shape)
        described = entry(content, dtype=dtype, shape=shape)
        craft(tmp_path / "file", {"array": "a.npy"}, {"a.npy": (content, described)})
        with pytest.raises(PersistenceError, match="are not allowed"):
            load(tmp_path / "file")


@pytest.mark.parametrize("size", [10**12, 2**62, 10**30])
@pytest.mark.parametrize("shape", [lambda n: [n], lambda n: [1, n, 2], lambda n: [0, n]], ids=["1-d", "3-d", "empty"])
def test_absurd_shapes_are_refused_before_memory_is_taken(size, shape, tmp_path):
    shape = shape(size)
    content = bare_npy("<f8", shape)
    for declared in (len(content), len(content) + 8 * size):
        described = entry(content, shape=shape, bytes=declared)
        craft(tmp_path / "file", {"array": "a.npy"}, {"a.npy": (content, described)})
        if size == 10**12 and shape[0] == 0 and declared == len(content):
            assert load(tmp_path / "file").shape == (0, 10**12)  # odd, but it holds nothing
        else:
            assert peak_of_refusal(tmp_path / "file", "size of the member|is damaged") < 5_000_000


@pytest.mark.parametrize("shape", [[-1], [3.0], [True], "3", None, [[3]], {"0": 3}])
def test_shapes_are_lists_of_lengths(shape, tmp_path):
    content = npy(np.arange(3.0))
    craft(tmp_path / "file", {"array": "a.npy"}, {"a.npy": (content, entry(content, shape=shape))})
    with pytest.raises(PersistenceError, match="is not the shape of an array"):
        load(tmp_path / "file")


def test_files_larger_than_the_limit_are_refused(tmp_path):
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
def test_bytes_that_are_no_values_are_refused(array, bad, tmp_path):
    content = npy(array)[: -array.nbytes] + bad
    described = entry(content, dtype=array.dtype.str, shape=list(array.shape))
    craft(tmp_path / "file", {"array": "a.npy"}, {"a.npy": (content, described)})
    with pytest.raises(PersistenceError, match="holds bytes that are not"):
        load(tmp_path / "file")


def generator_tree(name: str, **changes: object) -> tuple[dict, dict]:
    """The tree of a saved generator with its state changed, and its arrays, as `craft` takes them."""
    arrays: dict = {}

    def put(value: object) -> object:
        if isinstance(value, dict):
            return {"dict": {key: put(content) for key, content in value.items()}}
        if isinstance(value, np.ndarray):
            content = npy(value)
            arrays[f"{len(arrays)}.npy"] = (content, entry(content, dtype=value.dtype.str, shape=list(value.shape)))
            return {"array": f"{len(arrays) - 1}.npy"}
        return {"int": format(value, "x")} if isinstance(value, int) else value

    state = getattr(np.random, name)(1).state
    for key, value in changes.items():
        (state if key in state else state["state"])[key] = value
    seeds = {"entropy": 1, "spawn_key": {"tuple": []}, "pool_size": 4, "n_children_spawned": 0}
    return {"generator": {"state": put(state), "seeds": {"seed_sequence": {"dict": seeds}}}}, arrays


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("MT19937", {"pos": 625}),
        ("MT19937", {"pos": -1}),
        ("MT19937", {"key": np.zeros(3, np.uint32)}),
        ("Philox", {"buffer_pos": -1}),
        ("Philox", {"buffer_pos": 5}),
        ("Philox", {"buffer": np.zeros(1, np.uint64)}),
        ("PCG64", {"bit_generator": "system"}),
    ],
)
def test_states_of_generators_stay_in_bounds(name, changes, tmp_path):
    tree, arrays = generator_tree(name)
    expected = np.random.Generator(getattr(np.random, name)(1)).random(3)
    assert_same(load(craft(tmp_path / "file", tree, arrays)).random(3), expected)
    tree, arrays = generator_tree(name, **changes)
    with pytest.raises(PersistenceError, match="malformed"):
        load(craft(tmp_path / "file", tree, arrays))


@pytest.mark.parametrize(
    ("indices", "indptr"),
    [([0, 7], [0, 1, 2]), ([0, -1], [0, 1, 2]), ([0, 1], [0, 2, 1]), ([0, 1], [0, 1, 9]), ([0, 1], [0, 1])],
)
def test_indices_of_sparse_matrices_stay_in_bounds(indices, indptr, tmp_path):
    matrix = scipy.sparse.csr_matrix(np.eye(2))
    matrix.indices, matrix.indptr = np.array(indices, np.int32), np.array(indptr, np.int32)
    save(matrix, tmp_path / "file")
    with pytest.raises(PersistenceError, match="malformed"):
        load(tmp_path / "file")


def test_indices_of_sparse_matrices_are_integers(tmp_path):
    matrix = scipy.sparse.csr_matrix(np.eye(2))
    matrix.indices = matrix.indices.astype(float)
    save(matrix, tmp_path / "file")
    with pytest.raises(PersistenceError, match="malformed at the object"):
        load(tmp_path / "file")


def test_pools_of_seeds_are_small(tmp_path):
    def seeds(pool_size: int) -> dict:
        state = {"entropy": 1, "spawn_key": {"tuple": []}, "pool_size": pool_size, "n_children_spawned": 0}
        return {"seed_sequence": {"dict": state}}

    found = load(craft(tmp_path / "file", seeds(4)))
    assert_same(found.generate_state(4), np.random.SeedSequence(1).generate_state(4))
    with pytest.raises(PersistenceError, match="malformed at the object"):
        load(craft(tmp_path / "file", seeds(2000)))


MALFORMED = {
    "nesting": b"[" * 100_000 + b"]" * 100_000,
    "moderate nesting": b"[" * 80 + b"]" * 80,
    "a key twice": b'{"dict": {"a": 1, "a": 2}}',
    "a constant": b"NaN",
    "not JSON": b"[1,",
    "two tags": {"int": "1", "float": "1"},
    "no tag": {},
    "unknown tag": {"pickle": "gASVBQ=="},
    "tag of the wrong kind": {"tuple": 1},
    "text for a tuple": {"tuple": "ab"},
    "bad integer": {"int": "xyz"},
    "bad float": {"float": "00"},
    "bad bytes": {"bytes": "%%%"},
    "bad complex": {"complex": [1, 2, 3]},
    "bad slice": {"slice": []},
    "unhashable element": {"set": [[1]]},
    "unhashable key": {"items": [[[1], 2]]},
    "key twice": {"items": [[1, 2], [1, 3]]},
    "unpaired item": {"items": [[1]]},
    "array that is not there": {"array": "nothing.npy"},
    "array by number": {"array": 0},
    "array by list": {"array": []},
    "scalar of the wrong size": {"scalar": ["<f8", "00"]},
    "scalar of objects": {"scalar": ["|O", "0000000000000000"]},
    "text scalar": {"scalar": ["<U1", "ffffffff"]},
    "objects of the wrong number": {"objects": {"shape": [3], "items": ["a"]}},
    "objects without shape": {"objects": {"items": ["a"]}},
    "sparse of an unknown type": {"sparse": {"type": "os.system", "shape": [1, 1]}},
    "sparse of lists": {"sparse": {"type": "csr_matrix", "shape": [1, 1], "data": [], "indices": [], "indptr": [0]}},
    "object without state": {"object": {"id": 0, "type": "regbayes.Nothing"}},
    "objects that are lists": {"object": []},
    "huge number": b"9" * 10_000,
}


@pytest.mark.parametrize("tree", MALFORMED.values(), ids=MALFORMED)
def test_malformed_trees_are_refused(tree, tmp_path):
    with pytest.raises(PersistenceError):
        load(craft(tmp_path / "file", tree))


@pytest.mark.parametrize("arrays", [[], None, 3, {"a.npy": None}, {"a.npy": {}}])
def test_malformed_lists_of_arrays_are_refused(arrays, tmp_path):
    craft(tmp_path / "file", {"array": "a.npy"}, extra=(("a.npy", npy(np.arange(3.0))),), arrays=arrays)
    with pytest.raises(PersistenceError, match=r"malformed|is damaged|not in the manifest"):
        load(tmp_path / "file")


@pytest.mark.parametrize("change", [{"format": "other"}, {"format": None}])
def test_manifests_of_something_else_are_refused(change, tmp_path):
    with pytest.raises(PersistenceError, match="it is not a regbayes file: its format is"):
        load(craft(tmp_path / "file", None, **change))
