"""What the tests of saving and loading share: exact comparison, and files made by hand."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import struct
import zipfile
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

from regbayes.persistence import load, save


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
    """Compare exactly: types, bits of floats (NaN and signed zero among them), dtypes, memory order, flags."""
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
    elif isinstance(expected, complex):
        assert_same([found.real, found.imag], [expected.real, expected.imag])
    elif isinstance(expected, list | tuple):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)
    elif isinstance(expected, dict):
        assert_same(list(found), list(expected))
        assert_same(list(found.values()), list(expected.values()))
    elif isinstance(expected, np.random.Generator):
        assert_same(found.bit_generator.state, expected.bit_generator.state)
    elif isinstance(expected, np.random.RandomState):
        assert_same(found.get_state(legacy=False), expected.get_state(legacy=False))
    elif isinstance(expected, Enum):
        assert found is expected
    elif dataclasses.is_dataclass(expected):
        for field in dataclasses.fields(expected):
            assert_same(getattr(found, field.name), getattr(expected, field.name))
    elif hasattr(expected, "__dict__"):
        assert_same(vars(found), vars(expected))
    else:
        assert found == expected


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


def npy(array: np.ndarray) -> bytes:
    """The bytes of an npy file, pickles allowed."""
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, array, version=(1, 0))
    return buffer.getvalue()


def entry(content: bytes, **changes: Any) -> dict[str, Any]:
    """A manifest's entry for a member, by default for three 64-bit floats."""
    honest = {
        "dtype": "<f8",
        "shape": [3],
        "fortran_order": False,
        "writeable": True,
        "bytes": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
    }
    return honest | changes


def manifest_bytes(tree: Any, **changes: Any) -> bytes:
    """A manifest whose checksum is right, whatever it says. A tree given as bytes is put in as it is."""
    mark = "the tree goes here"
    manifest = {"format": "regbayes", "format_version": 1, "regbayes_version": "0.1.0", "arrays": {}}
    body = json.dumps(manifest | {"object": mark} | changes).encode()
    text = tree if isinstance(tree, bytes) else json.dumps(tree).encode()
    body = body.replace(json.dumps(mark).encode(), text)
    digest = hashlib.sha256(body).hexdigest().encode()
    return b'{"sha256": "' + digest + b'",\n"manifest": ' + body + b"}\n"


def craft(
    path: Path,
    tree: Any,
    members: dict[str, tuple[bytes, dict[str, Any]]] | None = None,
    *,
    extra: tuple[tuple[str, bytes], ...] = (),
    compression: int = zipfile.ZIP_STORED,
    **changes: Any,
) -> Path:
    """Write a file by hand that is consistent in everything but what the caller makes wrong.

    Members are given as their content and their entry in the manifest; changes are to the manifest's own keys.
    """
    members = members or {}
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, (content, _) in members.items():
            archive.writestr(name, content)
        for name, content in extra:
            archive.writestr(name, content)
        entries = {name: described for name, (_, described) in members.items()}
        archive.writestr("manifest.json", manifest_bytes(tree, **{"arrays": entries} | changes))
    return path
