"""The file: its format, its versions; damage is noticed, and a failed save loses nothing."""

from __future__ import annotations

import hashlib
import io
import json
import os
import stat
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from persistence_tools import assert_same, bytes_of, craft, entry, load_bytes, manifest_bytes, npy, round_trip
from regbayes.persistence import FORMAT_VERSION, PersistenceError, container, load, save

SMALL = {"weights": np.array([0.5, -1.0, np.nan]), "labels": np.array(["κ", "b"]), "c": [1, 2.5, (None, "text")]}


def refused_or_same(content: bytes, expected: object, folder: Path) -> bool:
    """Whether the file was refused; if not, it must give the same object. Nothing else may happen."""
    try:
        found = load_bytes(content, folder)
    except PersistenceError:
        return True
    assert_same(found, expected)
    return False


# --- the format


def test_the_file_can_be_read_without_the_package(tmp_path):
    save(SMALL, tmp_path / "file")
    with zipfile.ZipFile(tmp_path / "file") as archive:
        envelope = json.loads(archive.read("manifest.json"))
        manifest = envelope["manifest"]
        assert archive.read("manifest.json").count(envelope["sha256"].encode()) == 1
        assert (manifest["format"], manifest["format_version"]) == ("regbayes", FORMAT_VERSION)
        assert manifest["arrays"].keys() == set(archive.namelist()) - {"manifest.json"}
        for name, described in manifest["arrays"].items():
            content = archive.read(name)
            assert described["sha256"] == hashlib.sha256(content).hexdigest()
            array = np.load(io.BytesIO(content), allow_pickle=False)
            assert (array.dtype.str, list(array.shape)) == (described["dtype"], described["shape"])
        np.testing.assert_array_equal(
            np.load(archive.open(manifest["object"]["dict"]["weights"]["array"])), SMALL["weights"]
        )


def test_equal_objects_give_equal_files(tmp_path):
    first, second = {0, 8}, {8, 0}
    assert list(first) != list(second)  # they collide in a table of eight, so the order of insertion shows
    assert bytes_of([SMALL, first], tmp_path) == bytes_of([SMALL, second], tmp_path)


def test_files_by_hand_are_good_when_nothing_is_wrong(tmp_path):
    content = npy(np.arange(3.0))
    found = load(craft(tmp_path / "file", [{"array": "a.npy"}, 1], {"a.npy": (content, entry(content))}))
    assert_same(found, [np.arange(3.0), 1])


# --- damage


def test_every_damaged_byte_is_noticed_or_harmless(tmp_path):
    content = bytes_of(SMALL, tmp_path)
    refused = 0
    for position in range(len(content)):
        damaged = bytearray(content)
        damaged[position] ^= 0xFF
        refused += refused_or_same(bytes(damaged), SMALL, tmp_path)
    assert refused > 0.8 * len(content)  # the rest is dates and file modes


@given(data=st.data())
def test_any_other_value_of_a_byte_is_noticed_or_harmless(data, tmp_path_factory):
    folder = tmp_path_factory.getbasetemp()
    content = bytearray(bytes_of(SMALL, folder))
    position = data.draw(st.integers(0, len(content) - 1))
    content[position] = data.draw(st.integers(0, 255))
    refused_or_same(bytes(content), SMALL, folder)


def test_truncated_files_are_refused_at_any_length(tmp_path):
    content = bytes_of(SMALL, tmp_path)
    for length in (*range(0, len(content), 7), *range(len(content) - 30, len(content))):
        with pytest.raises(PersistenceError, match=r"truncated or damaged|not a regbayes file"):
            load_bytes(content[:length], tmp_path)


@given(junk=st.binary(max_size=200))
def test_files_of_something_else_are_refused(junk, tmp_path_factory):
    for content in (junk, b"PK\x03\x04" + junk):
        with pytest.raises(PersistenceError, match=r"not a regbayes file|truncated or damaged"):
            load_bytes(content, tmp_path_factory.getbasetemp())


def test_an_npz_file_is_not_ours(tmp_path):
    np.savez(tmp_path / "file.npz", a=np.arange(3))
    with pytest.raises(PersistenceError, match=r"it is not a regbayes file: it has no manifest\.json"):
        load(tmp_path / "file.npz")


def test_damage_in_an_array_names_the_member(tmp_path):
    content = bytes_of(SMALL, tmp_path)
    position = content.index(SMALL["weights"].tobytes())
    damaged = content[:position] + b"\x01" + content[position + 1 :]
    with pytest.raises(PersistenceError, match=r"the member 'arrays/0\.npy' is damaged \(BadZipFile: Bad CRC"):
        load_bytes(damaged, tmp_path)


def test_an_altered_array_names_the_member(tmp_path):
    content, altered = npy(np.arange(3.0)), npy(np.arange(1.0, 4.0))
    craft(tmp_path / "file", {"array": "arrays/0.npy"}, {"arrays/0.npy": (altered, entry(content))})
    with pytest.raises(PersistenceError, match=r"the checksum of the member 'arrays/0\.npy' does not match"):
        load(tmp_path / "file")


def test_an_altered_manifest_is_noticed(tmp_path):
    with zipfile.ZipFile(tmp_path / "file", "w") as archive:
        archive.writestr("manifest.json", manifest_bytes(["honest"]).replace(b"honest", b"forged"))
    with pytest.raises(PersistenceError, match=r"manifest\.json was altered: its checksum does not match"):
        load(tmp_path / "file")


# --- versions


def test_a_newer_format_says_what_to_do(tmp_path):
    craft(tmp_path / "file", None, format_version=3, regbayes_version="9.9")
    message = r"written by format 3, this version reads up to 1: upgrade regbayes \(.*written by regbayes 9\.9\)"
    with pytest.raises(PersistenceError, match=message):
        load(tmp_path / "file")


@pytest.mark.parametrize("version", [0, -1, True, 1.0, "1", None])
def test_a_format_version_is_a_positive_integer(version, tmp_path):
    with pytest.raises(PersistenceError, match="is not a format version"):
        load(craft(tmp_path / "file", None, format_version=version))


def test_older_formats_are_migrated_a_version_at_a_time(tmp_path, monkeypatch):
    save({"old": 1}, tmp_path / "file")
    monkeypatch.setattr(container, "FORMAT_VERSION", 3)
    monkeypatch.setitem(container.MIGRATIONS, 1, lambda manifest: manifest | {"object": [manifest["object"]]})
    with pytest.raises(PersistenceError, match="written by format 1, which this version no longer reads"):
        load(tmp_path / "file")
    monkeypatch.setitem(container.MIGRATIONS, 2, lambda manifest: manifest | {"object": {"tuple": manifest["object"]}})
    assert_same(load(tmp_path / "file"), ({"old": 1},))
    assert_same(round_trip({"new": 1}, tmp_path), {"new": 1})


# --- paths, and saving over an existing file


def test_paths_that_are_no_files_are_refused(tmp_path):
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


def test_text_paths_work(tmp_path):
    save([1], str(tmp_path / "file"))
    assert load(str(tmp_path / "file")) == [1]


@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt(), MemoryError()], ids=repr)
@pytest.mark.parametrize("place", ["regbayes.persistence.container.write_npy", "os.fsync", "os.replace"])
def test_a_save_that_fails_leaves_the_old_file(error, place, tmp_path, monkeypatch):
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


def test_an_object_that_cannot_be_saved_leaves_the_old_file(tmp_path):
    save("old", tmp_path / "file")
    with pytest.raises(PersistenceError, match="code cannot be saved"):
        save([np.arange(3), print], tmp_path / "file")
    assert load(tmp_path / "file") == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_new_file_has_the_usual_mode_and_an_old_one_keeps_its_own(tmp_path):
    (tmp_path / "usual").touch()
    save(1, tmp_path / "file")
    assert (tmp_path / "file").stat().st_mode == (tmp_path / "usual").stat().st_mode
    (tmp_path / "file").chmod(0o600)
    save(2, tmp_path / "file")
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o600


def test_a_link_is_written_through(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "file")
    save(1, tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert load(tmp_path / "file") == 1
