"""Exact comparison and hand-crafted files for the tests of saving and loading."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import struct
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

from regbayes.persistence import FORMAT_VERSION, load, save

VERSION_1 = Path(__file__).parents[1] / "persistence" / "version1"  # files written by regbayes 0.1.0, one per model


def round_trip(value: Any, folder: Path) -> Any:
    save(value, folder / "object.regbayes")
    return load(folder / "object.regbayes")


def bytes_of(value: object, folder: Path) -> bytes:
    save(value, folder / "bytes_of")
    return (folder / "bytes_of").read_bytes()


def load_bytes(content: bytes, folder: Path) -> object:
    (folder / "load_bytes").write_bytes(content)
    return load(folder / "load_bytes")


def assert_same(found: Any, expected: Any) -> None:
    """Check bitwise equality, including types, dtypes, memory order and flags."""
    assert type(found) is type(expected)
    if isinstance(expected, np.ndarray):
        _assert_same_array(found, expected)
    elif scipy.sparse.issparse(expected):
        assert found.shape == expected.shape
        for part in ("data", "indices", "indptr"):
            assert_same(getattr(found, part), getattr(expected, part))
    elif isinstance(expected, np.generic):
        assert found.dtype == expected.dtype
        assert found.tobytes() == expected.tobytes()
    elif isinstance(expected, float):
        assert struct.pack("d", found) == struct.pack("d", expected)
    elif isinstance(expected, list | tuple):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)
    elif isinstance(expected, dict):
        assert_same(list(found), list(expected))
        assert_same(list(found.values()), list(expected.values()))
    elif isinstance(expected, Enum):
        assert found is expected
    elif dataclasses.is_dataclass(expected):
        for field in dataclasses.fields(expected):
            assert_same(getattr(found, field.name), getattr(expected, field.name))
    elif hasattr(expected, "__dict__"):
        assert_same(_attributes(found), _attributes(expected))
    else:
        assert found == expected


def _attributes(value: Any) -> dict[str, Any]:
    """Return the saved attributes, without cached properties."""
    cls = type(value)
    return {k: v for k, v in vars(value).items() if not isinstance(getattr(cls, k, None), functools.cached_property)}


def _assert_same_array(found: np.ndarray, expected: np.ndarray) -> None:
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    if expected.dtype == object:
        assert_same(found.ravel().tolist(), expected.ravel().tolist())
        return
    assert found.dtype.byteorder == expected.dtype.byteorder
    assert found.tobytes() == expected.tobytes()
    assert found.flags.writeable == expected.flags.writeable
    if expected.flags.c_contiguous or expected.flags.f_contiguous:
        assert found.flags.c_contiguous == expected.flags.c_contiguous
        assert found.flags.f_contiguous == expected.flags.f_contiguous


def content_of(array: np.ndarray) -> bytes:
    """Return the bytes of an array in C order, as files store them."""
    return array.tobytes()


def entry(content: bytes, **changes: Any) -> dict[str, Any]:
    """Return the header entry of an array, by default of three 64-bit floats."""
    honest = {
        "dtype": "<f8",
        "shape": [3],
        "order": "C",
        "writeable": True,
        "sha256": hashlib.sha256(content).hexdigest(),
    }
    return honest | changes


def header_bytes(tree: Any, **changes: Any) -> bytes:
    """Return a header without validation; a tree of type bytes is inserted unchanged."""
    mark = "the tree goes here"
    header = json.dumps({"arrays": [], "object": mark} | changes).encode()
    return header.replace(json.dumps(mark).encode(), tree if isinstance(tree, bytes) else json.dumps(tree).encode())


def first_line(header: bytes, version: Any = FORMAT_VERSION, writer: str = "0.2.0", **changes: Any) -> bytes:
    """Return the first line of a file, valid except for the given changes."""
    described = {"digest": hashlib.sha256(header).hexdigest(), "length": len(header)} | changes
    return f"regbayes {version} {writer} {described['digest']} {described['length']}\n".encode()


def craft(path: Path, tree: Any, contents: Sequence[tuple[bytes, dict[str, Any]]] = (), **changes: Any) -> Path:
    """Write a file that is valid except for the changed keys of its header.

    Each array is given by its bytes and its header entry.
    """
    header = header_bytes(tree, **{"arrays": [described for _, described in contents]} | changes)
    path.write_bytes(first_line(header) + header + b"".join(content for content, _ in contents))
    return path
