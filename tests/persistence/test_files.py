"""Test the file format and its versions, detection of damage, and failed saves."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from persistence_tools import (
    VERSION_1,
    assert_same,
    bytes_of,
    content_of,
    craft,
    entry,
    first_line,
    header_bytes,
    load_bytes,
)
from regbayes import __version__
from regbayes.persistence import FORMAT_VERSION, PersistenceError, load, save

SMALL = {"weights": np.array([0.5, -1.0, np.nan]), "labels": np.array(["κ", "b"]), "c": [1, 2.5, (None, "text")]}


def refused_or_same(content: bytes, expected: object, folder: Path) -> bool:
    """Return whether `load` raises; if not, check the loaded object."""
    try:
        found = load_bytes(content, folder)
    except PersistenceError:
        return True
    assert_same(found, expected)
    return False


# --- the format


def test_file_can_be_read_without_the_package(tmp_path):
    save(SMALL, tmp_path / "file")
    with (tmp_path / "file").open("rb") as file:
        name, version, _, digest, length = file.readline().split()
        header = file.read(int(length))
        assert (name, int(version)) == (b"regbayes", FORMAT_VERSION)
        assert hashlib.sha256(header).hexdigest() == digest.decode()
        manifest = json.loads(header)
        arrays = [
            np.fromfile(file, entry["dtype"], int(np.prod(entry["shape"]))).reshape(
                entry["shape"], order=entry["order"]
            )
            for entry in manifest["arrays"]
        ]
        assert file.read() == b""
    np.testing.assert_array_equal(arrays[manifest["object"]["dict"]["weights"]["array"]], SMALL["weights"])
    np.testing.assert_array_equal(arrays[manifest["object"]["dict"]["labels"]["array"]], SMALL["labels"])


def test_crafted_file_loads(tmp_path):
    content = content_of(np.arange(3.0))
    found = load(craft(tmp_path / "file", [{"array": 0}, 1], [(content, entry(content))]))
    assert_same(found, [np.arange(3.0), 1])


# --- damage


def test_load_detects_every_harmful_damaged_byte(tmp_path):
    content = bytes_of(SMALL, tmp_path)
    refused = 0
    for position in range(len(content)):
        damaged = bytearray(content)
        damaged[position] ^= 0xFF
        refused += refused_or_same(bytes(damaged), SMALL, tmp_path)
    assert refused > 0.95 * len(content)  # the other bytes are the version of the writer


def test_load_of_truncated_or_extended_file_raises(tmp_path):
    content = bytes_of(SMALL, tmp_path)
    for length in (*range(0, len(content), 7), *range(len(content) - 30, len(content))):
        with pytest.raises(PersistenceError, match=r"truncated or damaged|not a regbayes file"):
            load_bytes(content[:length], tmp_path)
    for more in (b"\0", b"more"):
        with pytest.raises(
            PersistenceError, match=r"its arrays need \d+ bytes, and it has \d+: it is truncated or damaged"
        ):
            load_bytes(content + more, tmp_path)


@given(junk=st.binary(max_size=200))
def test_load_of_another_format_raises(junk, tmp_path_factory):
    for content in (junk, b"PK\x03\x04" + junk, b"regbayes " + junk, b"regbayes 2 0.2.0 " + junk):
        with pytest.raises(PersistenceError, match=r"not a regbayes file|truncated or damaged|written by format"):
            load_bytes(content, tmp_path_factory.getbasetemp())


def test_load_of_damaged_array_names_it(tmp_path):
    content = bytes_of(SMALL, tmp_path)
    position = content.index(SMALL["weights"].tobytes())
    damaged = content[:position] + b"\x01" + content[position + 1 :]
    with pytest.raises(PersistenceError, match=r"array 0 is damaged or was altered: its checksum does not match"):
        load_bytes(damaged, tmp_path)


def test_load_of_altered_header_raises(tmp_path):
    header = header_bytes(["honest"])
    assert load_bytes(first_line(header) + header, tmp_path) == ["honest"]
    with pytest.raises(PersistenceError, match="its header is damaged or was altered: its checksum does not match"):
        load_bytes(first_line(header) + header.replace(b"honest", b"forged"), tmp_path)


@pytest.mark.parametrize(
    "change", [{"length": 10**14}, {"length": 0}, {"length": -1}, {"digest": "0" * 63}, {"digest": ""}]
)
def test_load_of_altered_first_line_raises(change, tmp_path):
    header = header_bytes(["honest"])
    with pytest.raises(PersistenceError, match=r"truncated or damaged|not a regbayes file|was altered"):
        load_bytes(first_line(header, **change) + header, tmp_path)


# --- versions


@pytest.mark.parametrize("rest", [b"", b" abc 7", b' {"another": "layout"}'])
def test_load_of_newer_format_advises_upgrade(rest, tmp_path):
    message = r"written by format 3, this version reads format 2: upgrade regbayes \(.*written by regbayes 9\.9\)"
    with pytest.raises(PersistenceError, match=message):
        load_bytes(b"regbayes 3 9.9" + rest + b"\n[]", tmp_path)


def test_load_of_unreadable_version_advises_refit(tmp_path):
    header = header_bytes({"a kind of object": "that this version does not know"})
    with pytest.raises(PersistenceError, match=r"; regbayes 0\.1\.0 wrote it: fit the model again$"):
        load_bytes(first_line(header, writer="0.1.0") + header, tmp_path)
    with pytest.raises(PersistenceError, match=r"^(?!.*fit the model again)"):
        load_bytes(first_line(header, writer=__version__) + header, tmp_path)


@pytest.mark.parametrize("path", sorted(VERSION_1.iterdir()), ids=lambda path: path.stem)
def test_load_of_version_1_advises_refit(path):
    with pytest.raises(PersistenceError, match=rf"cannot load .*{path.name}: .*made by regbayes 0\.1: fit again$"):
        load(path)


# --- paths, and saving over an existing file


def test_path_of_directory_or_pipe_raises(tmp_path):
    with pytest.raises(PersistenceError, match="there is no such file"):
        load(tmp_path / "nothing")
    with pytest.raises(PersistenceError, match="it is not a regular file"):
        load(tmp_path)
    with pytest.raises(PersistenceError, match="it is not a regular file"):
        save(1, tmp_path)
    with pytest.raises(PersistenceError, match=r"the folder .* does not exist"):
        save(1, tmp_path / "no such folder" / "file")
    os.mkfifo(tmp_path / "pipe")
    for use in (load, lambda path: save(1, path)):
        with pytest.raises(PersistenceError, match="it is not a regular file"):
            use(tmp_path / "pipe")


@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt(), MemoryError()], ids=repr)
@pytest.mark.parametrize("place", ["shutil.copymode", "os.fsync", "os.replace"])
def test_failed_save_keeps_old_file(error, place, tmp_path, monkeypatch):
    save("old", tmp_path / "file")
    before = (tmp_path / "file").read_bytes()

    def fail(*_):
        raise error

    monkeypatch.setattr(place, fail)
    expected = PersistenceError if isinstance(error, OSError) else type(error)
    with pytest.raises(expected):
        save([np.arange(3), np.arange(4)], tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_save_of_unsupported_object_keeps_old_file(tmp_path):
    save("old", tmp_path / "file")
    with pytest.raises(PersistenceError, match="code cannot be saved"):
        save([np.arange(3), print], tmp_path / "file")
    assert load(tmp_path / "file") == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_save_sets_default_mode_and_keeps_existing_mode(tmp_path):
    (tmp_path / "usual").touch()
    save(1, tmp_path / "file")
    assert (tmp_path / "file").stat().st_mode == (tmp_path / "usual").stat().st_mode
    (tmp_path / "file").chmod(0o600)
    save(2, tmp_path / "file")
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o600


def test_save_follows_symbolic_link(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "file")
    save(1, tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert load(tmp_path / "file") == 1
