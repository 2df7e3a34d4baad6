"""Files of data sets: where they lie, whether they are what they should be, and the cache.

A data set on disk is a mapping from names to arrays: ``X`` (or ``X_data``, ``X_indices``, ``X_indptr`` and ``X_shape``
of a sparse matrix), ``y`` or ``Y``, and what else there is. Nothing is ever unpickled.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
import tempfile
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import arff  # type: ignore[import-untyped]
import numpy as np
from numpy.typing import NDArray

from regbayes_paper.data.catalog import Known

__all__ = [
    "Arrays",
    "ChecksumWarning",
    "DataError",
    "DataNotFoundError",
    "as_labels",
    "cache_folder",
    "data_folder",
    "find_local",
    "read_cached",
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
        return _read_npz(npz), npz
    for ends in (("-train", "-test"), ("",)):
        paths = [folder / f"{known.name}{end}.arff" for end in ends]
        if all(path.is_file() for path in paths):
            for path in paths:
                _check_digest(path, known.arff_sha256.get(path.name))
            parts = [_read_arff(known, path) for path in paths]
            return _join_parts(*parts) if len(parts) == 2 else parts[0], paths[0]
    return None


def as_labels(values: NDArray[Any], where: str) -> NDArray[np.int8]:
    """Return labels that a file writes as numbers or words as zeros and ones."""
    words = np.char.lower(values.astype(str))
    yes, no = (np.isin(words, known) for known in (("1", "1.0", "true", "yes"), ("0", "0.0", "false", "no")))
    if not (yes | no).all():
        raise DataError(f"{where}: labels should be 0 and 1, or false and true; found {str(words[~(yes | no)][0])!r}")
    return yes.astype(np.int8)


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
    return _read_npz(path), path


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


def _read_npz(path: Path) -> Arrays:
    if not zipfile.is_zipfile(path):
        raise DataError(f"{path} is not an npz file, or it was cut off")
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except (ValueError, OSError, zipfile.BadZipFile, EOFError, KeyError) as error:
        raise DataError(f"{path} cannot be read as npz: {error}") from None


def _read_arff(known: Known, path: Path) -> Arrays:
    """Read a multi-label set, whose labels have known names, or a set whose last attribute is the class."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            # liac-arff reads a space after @attribute; some programs write a tab.
            table = arff.load(re.sub(r"^(@\w+)\s+", r"\1 ", line) for line in file)
    except Exception as error:  # liac-arff raises its own errors, and those of csv and of conversions
        raise DataError(f"{path} cannot be read as ARFF: {error}") from None
    names = [name for name, _ in table["attributes"]]
    columns = dict(zip(names, np.array(table["data"], dtype=object).reshape(-1, len(names)).T, strict=True))
    if not known.labels:
        *inputs, target = names
        kind = table["attributes"][-1][1]  # the list of categories, or the name of a type
        if any(value is None for value in columns[target]):
            raise DataError(f"{path} has rows without a class")
        found = columns[target].astype(str)
        classes = np.array(kind) if isinstance(kind, list) else np.unique(found)
        y = np.argmax(found[:, None] == classes, axis=1)
        return _inputs(columns, inputs, path) | {"y": y, "class_names": classes}
    missing = [label for label in known.labels if label not in columns]
    if missing:
        raise DataError(f"{path} should have the labels {', '.join(known.labels)}; it lacks {', '.join(missing)}")
    Y = as_labels(np.stack([columns[label] for label in known.labels], axis=1), str(path))
    inputs = [name for name in names if name not in known.labels]
    return _inputs(columns, inputs, path) | {"Y": Y, "label_names": np.array(known.labels)}


def _inputs(columns: Mapping[str, NDArray[Any]], names: list[str], path: Path) -> Arrays:
    try:
        X = np.stack([columns[name].astype(np.float64) for name in names], axis=1)
    except ValueError as error:
        raise DataError(f"{path} has inputs that are not numbers: {error}") from None
    return {"X": X, "feature_names": np.array(names)}


def _join_parts(train: Arrays, test: Arrays) -> Arrays:
    """Put the training part and the test part of one set together."""
    names = {name: train[name] for name in train if name.endswith("_names")}
    for name in names:
        if not np.array_equal(train[name], test[name]):
            raise DataError(f"the training part and the test part have different {name}")
    n_train, n = len(train["X"]), len(train["X"]) + len(test["X"])
    stacked = {name: np.concatenate([train[name], test[name]]) for name in ("X", "y", "Y") if name in train}
    return stacked | names | {"train_idx": np.arange(n_train), "test_idx": np.arange(n_train, n)}
