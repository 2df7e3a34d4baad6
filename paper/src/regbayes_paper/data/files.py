"""Files of data sets: where they lie, whether they are what they should be, and the cache.

A data set on disk is a mapping from names to arrays: ``X`` (or ``X_data``, ``X_indices``, ``X_indptr`` and ``X_shape``
of a sparse matrix), ``y`` or ``Y``, and what else there is. Nothing is ever unpickled.
"""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regbayes_paper.data.arff import ArffTable, label_names, read_arff
from regbayes_paper.data.catalog import Known

__all__ = [
    "Arrays",
    "ChecksumWarning",
    "DataError",
    "DataNotFoundError",
    "cache_folder",
    "data_folder",
    "find_local",
    "read_cached",
    "read_npz",
    "write_cached",
]

Arrays = dict[str, NDArray[Any]]


class DataError(ValueError):
    """A file of data that cannot be used; the message says which and why."""


class DataNotFoundError(FileNotFoundError):
    """A data set that is nowhere to be found; the message says where it was looked for and what to do."""


class ChecksumWarning(UserWarning):
    """A file that loads well, but is not byte for byte the one whose checksum is recorded."""


def data_folder(folder: str | os.PathLike[str] | None = None) -> Path | None:
    """Return the folder of data sets: the one given, or the one that REGBAYES_DATA names, or None."""
    named = os.fspath(folder) if folder is not None else os.environ.get("REGBAYES_DATA")
    if not named:
        return None
    place = Path(named).expanduser()
    if not place.is_dir():
        source = "folder" if folder is not None else "the environment variable REGBAYES_DATA"
        raise DataNotFoundError(f"{source} names {named!r}, which is not a folder")
    return place


def cache_folder() -> Path:
    """Return the folder where downloads are kept: REGBAYES_CACHE, or the platform's place for caches."""
    named = os.environ.get("REGBAYES_CACHE")
    if named:
        return Path(named).expanduser()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "regbayes"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "regbayes" / "Cache"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "regbayes"


def find_local(known: Known, folder: Path) -> tuple[Arrays, Path] | None:
    """Read a data set from a folder, as npz or as ARFF; None if it is not there."""
    npz = folder / f"{known.name}.npz"
    if npz.is_file():
        _check_digest(npz, known.npz_sha256)
        return read_npz(npz), npz
    train, test = folder / f"{known.name}-train.arff", folder / f"{known.name}-test.arff"
    if train.is_file() and test.is_file():
        parts = [_read_known_arff(known, path) for path in (train, test)]
        return _join_parts(parts), train
    whole = folder / f"{known.name}.arff"
    return (_read_known_arff(known, whole), whole) if whole.is_file() else None


def read_npz(path: Path) -> Arrays:
    """Read all arrays of an npz file, none of them pickled."""
    if not zipfile.is_zipfile(path):
        raise DataError(f"{path} is not an npz file, or it was cut off")
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except (ValueError, OSError, zipfile.BadZipFile, EOFError, KeyError) as error:
        if "allow_pickle" in str(error):
            raise DataError(
                f"{path} holds pickled objects, which could run code and are never read; save plain arrays "
                "of numbers or strings"
            ) from None
        raise DataError(f"{path} cannot be read as npz: {error}") from None


def read_cached(name: str) -> tuple[Arrays, Path] | None:
    """Read what `write_cached` kept; None if it is not there, an error if it is damaged."""
    path = cache_folder() / f"{name}.npz"
    record = path.with_suffix(".npz.sha256")
    if not path.is_file() or not record.is_file():
        return None
    if _digest(path) != record.read_text(encoding="ascii").strip():
        raise DataError(
            f"{path} is damaged: its checksum is not the one recorded beside it. Delete it to fetch it anew"
        )
    return read_npz(path), path


def write_cached(name: str, arrays: Mapping[str, NDArray[Any]]) -> Path | None:
    """Keep arrays in the cache, with a checksum; None, and a warning, if it cannot be written."""
    folder = cache_folder()
    path = folder / f"{name}.npz"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, suffix=".tmp", delete=False) as file:
            np.savez_compressed(file, allow_pickle=False, **dict(arrays))
        digest = _digest(Path(file.name))
        os.replace(file.name, path)
        path.with_suffix(".npz.sha256").write_text(f"{digest}\n", encoding="ascii")
    except OSError as error:
        warnings.warn(
            f"{name} was fetched but cannot be kept in {folder} ({error}); set REGBAYES_CACHE to a folder that can be "
            "written, or it will be fetched every time",
            stacklevel=4,
        )
        return None
    return path


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _check_digest(path: Path, expected: str | None) -> None:
    """Warn, not more: whoever made the file anew has the same arrays in other bytes, and shapes are checked anyway."""
    if expected is not None and (found := _digest(path)) != expected:
        warnings.warn(
            f"{path} is not the file whose checksum is recorded (sha256 {found[:12]}..., recorded {expected[:12]}...). "
            "It is used all the same; numbers may differ from published ones",
            ChecksumWarning,
            stacklevel=5,
        )


def _read_known_arff(known: Known, path: Path) -> Arrays:
    _check_digest(path, known.arff_sha256.get(path.name))
    table = read_arff(path)
    if not known.labels:
        return _class_last(table)
    labels = label_names(table, path) or [name for name in table.names if name in known.labels]
    if sorted(labels) != sorted(known.labels):
        raise DataError(
            f"{path} should have the labels {', '.join(known.labels)}; found {', '.join(labels) or 'none of them'}"
        )
    inputs = [name for name in table.names if name not in known.labels]
    return {
        "X": table.numbers(inputs),
        "Y": table.numbers(known.labels).astype(np.int8),
        "feature_names": np.array(inputs),
        "label_names": np.array(known.labels),
    }


def _class_last(table: ArffTable) -> Arrays:
    inputs = table.names[:-1]
    column = table.columns[-1]
    classes = table.attributes[-1].categories or tuple(sorted({str(value) for value in column}))
    code = {label: i for i, label in enumerate(classes)}
    return {
        "X": table.numbers(inputs),
        "y": np.array([code[str(value)] for value in column]),
        "feature_names": np.array(inputs),
        "class_names": np.array(classes),
    }


def _join_parts(parts: list[Arrays]) -> Arrays:
    """Put the training part and the test part of one set together."""
    train, test = parts
    if train["X"].shape[1] != test["X"].shape[1]:
        raise DataError(f"the two parts have {train['X'].shape[1]} and {test['X'].shape[1]} inputs")
    n_train, n = len(train["X"]), len(train["X"]) + len(test["X"])
    stacked = {name: np.concatenate([train[name], test[name]]) for name in ("X", "y", "Y") if name in train}
    names = {name: train[name] for name in train if name.endswith("_names")}
    return stacked | names | {"train_idx": np.arange(n_train), "test_idx": np.arange(n_train, n)}
