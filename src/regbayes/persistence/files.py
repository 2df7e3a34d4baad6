"""Write files atomically; read and check them.

The first line is ``regbayes 2 VERSION DIGEST LENGTH``: the format, the version of the package that wrote it, and the
SHA-256 and length of the header. The header is ``{"arrays": [...], "object": ...}``. The bytes of the arrays follow in
this order without gaps, so that arrays cannot overlap or exceed the file. Nothing is compressed.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import shutil
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from regbayes.persistence.arrays import describe, get_content, read_arrays
from regbayes.persistence.errors import PersistenceError
from regbayes.persistence.tree import MAX_VALUES, Decoder, Encoder

__all__ = ["FORMAT_VERSION", "load", "save"]

FORMAT_VERSION = 2

_LINE = re.compile(rb"regbayes ([0-9]{1,9}) (\S{1,60})(?: ([0-9a-f]{64}) ([0-9]{1,15})\n)?")
_LONGEST_LINE = 200


def save(obj: Any, path: str | os.PathLike[str]) -> None:
    """Save an object to one file, without pickle.

    Parameters
    ----------
    obj : object
        An object of a registered class, such as a fitted estimator. Numbers, strings and arrays, and lists, tuples
        and dictionaries of supported objects can be saved, too. A random generator in an attribute (``random_state``)
        is saved as None, because predictions do not use it.
    path : str or path-like
        The file to write. An existing file is replaced only after the new one is complete.

    Raises
    ------
    PersistenceError
        If the object contains a function or a type that is not registered, or the file cannot be written. The message
        names the attribute.

    Examples
    --------
    >>> from regbayes import load
    >>> from regbayes.persistence import save
    >>> save({"C": 1.0, "classes": ("no", "yes")}, "settings.regbayes")
    >>> load("settings.regbayes")
    {'C': 1.0, 'classes': ('no', 'yes')}
    """
    encoder = Encoder(type(obj).__name__)
    tree = encoder.encode(obj)
    contents = [get_content(array) for array in encoder.arrays]
    entries = [describe(array, content) for array, content in zip(encoder.arrays, contents, strict=True)]
    header = json.dumps({"arrays": entries, "object": tree}, allow_nan=False).encode("ascii")
    if _count_values(header) > MAX_VALUES:
        raise PersistenceError(
            f"{type(obj).__name__} has more than {MAX_VALUES} values outside arrays, which is more than a file may hold"
        )
    line = f"regbayes {FORMAT_VERSION} {package_version()} {hashlib.sha256(header).hexdigest()} {len(header)}\n"
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():
        raise PersistenceError(f"cannot save to {target}: it is not a regular file")
    if not target.parent.is_dir():
        raise PersistenceError(f"cannot save to {target}: the folder {target.parent} does not exist")
    try:
        _write(target, [line.encode("ascii"), header, *contents])
    except OSError as error:
        raise PersistenceError(f"cannot save to {target}: {error}") from error


def load(path: str | os.PathLike[str], *, max_bytes: int | None = None) -> Any:
    """Load an object from a file written by `save`; untrusted files cannot run code.

    Parameters
    ----------
    path : str or path-like
        The file.
    max_bytes : int, optional
        Maximum size of the file in bytes; larger files raise unread. Arrays need no more memory than the file's size.

    Returns
    -------
    object
        An object equal to the saved one, of the same class, with the same arrays.

    Raises
    ------
    PersistenceError
        If the file does not exist, has another format or an unsupported version of this format, or is truncated,
        damaged or altered.

    Examples
    --------
    >>> from regbayes import ILSVMClassifier, load
    >>> from regbayes.datasets import make_ibp_classification
    >>> data = make_ibp_classification(100, 10, n_components=4, random_state=0)
    >>> ILSVMClassifier(8, tol=1e-2, random_state=0).fit(data.data, data.target).save("model.regbayes")
    >>> load("model.regbayes").predict(data.data[:5]).shape
    (5,)
    """
    target = Path(path)
    if not target.exists():
        raise PersistenceError(f"cannot load {target}: there is no such file")
    if not target.is_file():
        raise PersistenceError(f"cannot load {target}: it is not a regular file")
    try:
        with target.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if max_bytes is not None and size > max_bytes:
                raise PersistenceError(f"it has {size} bytes, more than max_bytes={max_bytes}")
            return _read(file, size)
    except (PersistenceError, OSError) as error:
        raise PersistenceError(f"cannot load {target}: {error}") from error


def _write(target: Path, parts: list[Any]) -> None:
    """Write a temporary file and rename it, or remove it on failure."""
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(8)}.tmp")
    try:
        with temporary.open("xb") as file:
            for part in parts:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
        if target.exists():
            shutil.copymode(target, temporary)
        os.replace(temporary, target)
    except BaseException:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def package_version() -> str:
    """Return the version of the package."""
    from regbayes import __version__  # a circular import at module level

    return __version__


def _read(file: IO[bytes], size: int) -> Any:
    line = file.readline(_LONGEST_LINE)
    found = _LINE.match(line)
    if line.startswith(b"PK"):
        raise PersistenceError("it is not a regbayes file, or one made by regbayes 0.1: fit again")
    if found is None or int(found[1]) < FORMAT_VERSION:
        raise PersistenceError("it is not a regbayes file, or it is damaged")
    writer = found[2].decode("ascii", "replace")
    if int(found[1]) > FORMAT_VERSION:
        raise PersistenceError(
            f"written by format {int(found[1])}, this version reads format {FORMAT_VERSION}: upgrade regbayes "
            f"(the file was written by regbayes {writer})"
        )
    if found[3] is None:
        raise PersistenceError("it is not a regbayes file, or it is damaged")
    length = int(found[4])
    header = file.read(min(length, size))
    if len(header) != length:
        raise PersistenceError("it is truncated or damaged")
    if hashlib.sha256(header).hexdigest() != found[3].decode("ascii"):
        raise PersistenceError("its header is damaged or was altered: its checksum does not match")
    if _count_values(header) > MAX_VALUES:
        raise PersistenceError(f"its header has more than {MAX_VALUES} values")
    try:
        manifest = json.loads(header)
        arrays = read_arrays(file, manifest["arrays"], size - file.tell())
        return Decoder(arrays).decode(manifest["object"])
    except ImportError:  # imports fail in modules of the package, not because of the file
        raise
    except PersistenceError as error:
        remedy = "" if writer == package_version() else f"; regbayes {writer} wrote it: fit the model again"
        raise PersistenceError(f"{error}{remedy}") from error
    except Exception as error:  # a crafted header can raise any exception in json, NumPy or SciPy
        raise PersistenceError(f"the header is malformed ({type(error).__name__}: {error!s:.200})") from error


def _count_values(header: bytes) -> int:
    """Return an upper bound on the number of values in JSON."""
    return sum(header.count(mark) for mark in (b",", b":", b"[", b"{"))  # a mark precedes every value
