"""The file: a zip archive of uncompressed members, written in one piece and checked before it is believed.

``manifest.json`` is ``{"sha256": <digest>, "manifest": <body>}``, the digest being that of the body's very bytes, so
that they are checked before they are parsed. The body lists every other member with its SHA-256, size, type and
shape; array members are in NumPy's npy format, version 1.0.

Nothing is compressed, so no member can be larger than the file, and none is read before its declared shape has
been found to fit its size.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import secrets
import shutil
import zipfile
from collections.abc import Callable, Iterator, Set
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from numpy.typing import NDArray

from regbayes.persistence.errors import PersistenceError
from regbayes.persistence.npy import read_npy, write_npy
from regbayes.persistence.tree import Decoder, Encoder

__all__ = ["FORMAT_VERSION", "load", "save"]

FORMAT_NAME = "regbayes"
FORMAT_VERSION = 1
# By format version, the function that turns a manifest of that version into one of the next.
MIGRATIONS: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {}

_MANIFEST = "manifest.json"
_ENVELOPE = (b'{"sha256": "', b'",\n"manifest": ', b"}\n")
_ZIP_MAGIC = b"PK\x03\x04"


def save(obj: Any, path: str | os.PathLike[str]) -> None:
    """Save an object to one file, without pickle.

    Parameters
    ----------
    obj : object
        An object of a registered class (every fitted object of the package), or a tree of lists, tuples,
        dictionaries, sets, numbers, strings, arrays and sparse matrices of them.
    path : str or path-like
        The file to write. It is written beside its place and moved there when it is complete, so that a failure
        leaves an existing file as it was.

    Raises
    ------
    PersistenceError
        If something in the object cannot be saved (functions, types that are not registered; the message names the
        attribute) or the file cannot be written.
    """
    encoder = Encoder()
    tree = encoder.encode(obj, type(obj).__name__)
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():
        raise PersistenceError(f"cannot save to {target}: it is not a regular file")
    if not target.parent.is_dir():
        raise PersistenceError(f"cannot save to {target}: the folder {target.parent} does not exist")
    try:
        with _replacing(target) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
            entries = {}
            for name, array in encoder.arrays.items():
                with _open_member(archive, name, array.nbytes) as member:
                    entries[name] = write_npy(member, array)
            _write_manifest(archive, tree, entries)
    except OSError as error:
        raise PersistenceError(f"cannot save to {target}: {error}") from error


def load(path: str | os.PathLike[str], *, max_bytes: int | None = None) -> Any:
    """Load what `save` wrote. A file from a stranger runs nothing.

    Parameters
    ----------
    path : str or path-like
        The file.
    max_bytes : int, optional
        Refuse a larger file before reading it. Arrays take no more memory than the file has bytes.

    Returns
    -------
    object
        An object equal to the saved one, of the same class, with the same arrays.

    Raises
    ------
    PersistenceError
        If there is no such file, or it is not one of ours, or it is truncated, damaged, altered, or written by a
        newer version of the format.
    """
    target = Path(path)
    if not target.exists():
        raise PersistenceError(f"cannot load {target}: there is no such file")
    if not target.is_file():
        raise PersistenceError(f"cannot load {target}: it is not a regular file")
    try:
        with target.open("rb") as file:
            return _load(file, max_bytes)
    except PersistenceError as error:
        raise PersistenceError(f"cannot load {target}: {error}") from error
    except OSError as error:
        raise PersistenceError(f"cannot load {target}: {error}") from error


@contextmanager
def _replacing(target: Path) -> Iterator[IO[bytes]]:
    """Open a new file in the target's folder; move it to the target at the end, or remove it on failure."""
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(8)}.tmp")
    try:
        with temporary.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if target.exists():
            shutil.copymode(target, temporary)
        os.replace(temporary, target)
    except BaseException:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def _open_member(archive: zipfile.ZipFile, name: str, size: int) -> IO[bytes]:
    info = zipfile.ZipInfo(name)  # its date is fixed, so that equal objects give equal files
    info.file_size = size  # lets zipfile choose the 64-bit layout for large arrays
    return archive.open(info, "w")


def _write_manifest(archive: zipfile.ZipFile, tree: Any, entries: dict[str, Any]) -> None:
    manifest = {
        "format": FORMAT_NAME,
        "format_version": FORMAT_VERSION,
        "regbayes_version": _package_version(),
        "arrays": entries,
        "object": tree,
    }
    body = json.dumps(manifest, allow_nan=False).encode("ascii")
    before, between, after = _ENVELOPE
    content = before + hashlib.sha256(body).hexdigest().encode("ascii") + between + body + after
    with _open_member(archive, _MANIFEST, len(content)) as file:
        file.write(content)


def _package_version() -> str:
    try:
        return importlib.metadata.version("regbayes")
    except importlib.metadata.PackageNotFoundError:  # run from a source tree
        return "unknown"


def _load(file: IO[bytes], max_bytes: int | None) -> Any:
    file_size = file.seek(0, os.SEEK_END)
    if max_bytes is not None and file_size > max_bytes:
        raise PersistenceError(f"it has {file_size} bytes, more than max_bytes={max_bytes}")
    file.seek(0)
    if file.read(len(_ZIP_MAGIC)) != _ZIP_MAGIC:
        raise PersistenceError("it is not a regbayes file")
    # Whatever a damaged or crafted file provokes in zipfile, json or numpy is the file's fault, and is said so.
    with _blaming("the file is truncated or damaged"):
        archive = zipfile.ZipFile(file)
    with archive:
        members = _check_members(archive, file_size)
        manifest = _read_manifest(archive, members)
        with _blaming(f"{_MANIFEST} is malformed"):
            entries = manifest["arrays"]
            _check_listing(members.keys() - {_MANIFEST}, entries.keys())
            decoder = Decoder(lambda name: _read_array(archive, name, entries))
            return decoder.decode(manifest["object"], "the object")


@contextmanager
def _blaming(what: str) -> Iterator[None]:
    """Turn any exception from content that is not to be trusted into a `PersistenceError`."""
    try:
        yield
    except (PersistenceError, ImportError):  # an import fails in one of our own modules, not because of the file
        raise
    except Exception as error:
        raise PersistenceError(f"{what} ({type(error).__name__}: {error})") from error


def _check_members(archive: zipfile.ZipFile, file_size: int) -> dict[str, zipfile.ZipInfo]:
    """Return the members by name, having seen that they are plain, distinct and fit the file."""
    members: dict[str, zipfile.ZipInfo] = {}
    for info in archive.infolist():
        if info.filename in members:
            raise PersistenceError(f"the member {info.filename!r} occurs twice")
        if info.compress_type != zipfile.ZIP_STORED:
            raise PersistenceError(f"the member {info.filename!r} is compressed, which ours never are")
        members[info.filename] = info
    if sum(info.file_size for info in members.values()) > file_size:
        raise PersistenceError("its members claim more bytes than the file has")
    if _MANIFEST not in members:
        raise PersistenceError(f"it is not a regbayes file: it has no {_MANIFEST}")
    return members


def _read_manifest(archive: zipfile.ZipFile, members: dict[str, zipfile.ZipInfo]) -> dict[str, Any]:
    """Return the manifest in the present format, its digest checked before anything is parsed."""
    with _blaming(f"{_MANIFEST} is damaged"):
        content = archive.read(members[_MANIFEST])
    before, between, after = _ENVELOPE
    start = len(before) + 64
    body = content[start + len(between) : -len(after)]
    digest = hashlib.sha256(body).hexdigest().encode("ascii")
    if content != before + digest + between + body + after:
        raise PersistenceError(f"{_MANIFEST} was altered: its checksum does not match")
    with _blaming(f"{_MANIFEST} is malformed"):
        manifest = json.loads(body, object_pairs_hook=_unique_keys, parse_constant=_no_constant)
        if manifest["format"] != FORMAT_NAME:
            raise PersistenceError(f"it is not a regbayes file: its format is {manifest['format']!r}")
        return _migrate(manifest)


def _migrate(manifest: dict[str, Any]) -> dict[str, Any]:
    """Bring a manifest of an older format to the present one, a version at a time."""
    version = manifest["format_version"]
    if type(version) is not int or version < 1:
        raise PersistenceError(f"{version!r} is not a format version")
    if version > FORMAT_VERSION:
        raise PersistenceError(
            f"written by format {version}, this version reads up to {FORMAT_VERSION}: upgrade regbayes "
            f"(the file was written by regbayes {manifest.get('regbayes_version', 'unknown')})"
        )
    for older in range(version, FORMAT_VERSION):
        if older not in MIGRATIONS:
            raise PersistenceError(f"written by format {version}, which this version no longer reads")
        manifest = MIGRATIONS[older](manifest)
    return manifest


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(unique := dict(pairs)) != len(pairs):
        raise PersistenceError(f"{_MANIFEST} has a key twice")
    return unique


def _no_constant(text: str) -> Any:
    raise PersistenceError(f"{_MANIFEST} has {text}, which is not JSON")


def _check_listing(found: Set[str], listed: Set[str]) -> None:
    if missing := sorted(listed - found):
        raise PersistenceError(f"the member {missing[0]!r} is missing")
    if extra := sorted(found - listed):
        raise PersistenceError(f"the member {extra[0]!r} is not in the manifest")


def _read_array(archive: zipfile.ZipFile, name: str, entries: dict[str, Any]) -> NDArray[Any]:
    entry = entries[name]
    with _blaming(f"the member {name!r} is damaged"), archive.open(name) as file:
        return read_npy(file, archive.getinfo(name).file_size, entry, name)
