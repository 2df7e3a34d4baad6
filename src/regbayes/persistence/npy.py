"""One array as one npy member: NumPy's own format, version 1.0, for plain fixed-width types.

Reading does not use ``numpy.load``. The manifest says what type and shape the array has, so the member's header is
compared with the header of such an array and never evaluated, and its size must fit before memory is taken.
"""

from __future__ import annotations

import hashlib
import math
import re
from contextlib import suppress
from typing import IO, Any, Literal

import numpy as np
from numpy.typing import NDArray

from regbayes.persistence.errors import PersistenceError

__all__ = ["KINDS", "check_shape", "parse_dtype", "read_npy", "write_npy"]

# bool, integers, floats, complex, bytes, text, timedelta64, datetime64: fixed-width and free of pointers.
KINDS = "biufcSUmM"

_DTYPE = re.compile(rf"[<>|][{KINDS}][0-9]{{1,9}}(\[[0-9]*[a-zA-Z]{{1,2}}\])?")
_MAGIC = b"\x93NUMPY\x01\x00"
_CHUNK = 1 << 20


class _HashingWriter:
    """A file to write to that also keeps the digest and the size."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.digest = hashlib.sha256()
        self.size = 0

    def write(self, content: bytes) -> int:
        self.digest.update(content)
        self.size += len(content)
        return self._file.write(content)


def write_npy(file: IO[bytes], array: NDArray[Any]) -> dict[str, Any]:
    """Write an array and return its entry in the manifest."""
    writer = _HashingWriter(file)
    np.lib.format.write_array(writer, array, version=(1, 0), allow_pickle=False)
    return {
        "dtype": array.dtype.str,
        "shape": list(array.shape),
        "fortran_order": np.lib.format.header_data_from_array_1_0(array)["fortran_order"],
        "writeable": array.flags.writeable,
        "bytes": writer.size,
        "sha256": writer.digest.hexdigest(),
    }


def read_npy(file: IO[bytes], size: int, entry: dict[str, Any], name: str) -> NDArray[Any]:
    """Read an array of `size` bytes, header included, that must be what its entry in the manifest says.

    Raises
    ------
    PersistenceError
        If type, shape, header, size, checksum or content are not in order.
    """
    dtype, shape = parse_dtype(entry["dtype"]), check_shape(entry["shape"])
    order: Literal["C", "F"] = "F" if entry["fortran_order"] else "C"
    header = _read_header(file, name)
    expected = f"{{'descr': {dtype.str!r}, 'fortran_order': {order == 'F'}, 'shape': {shape!r}, }}"
    if header[len(_MAGIC) + 2 :].rstrip() != expected.encode("ascii"):
        raise PersistenceError(f"the header of the member {name!r} does not match the manifest")
    if size != entry["bytes"] or size != len(header) + math.prod(shape) * dtype.itemsize:
        raise PersistenceError(f"the size of the member {name!r} does not match the manifest")
    try:
        array: NDArray[Any] = np.empty(shape, dtype, order=order)
    except MemoryError as error:
        raise PersistenceError(f"there is not enough memory for the member {name!r}: {error}") from error
    digest = hashlib.sha256(header)
    _fill(array.reshape(-1, order=order).view(np.uint8), file, digest)
    if digest.hexdigest() != entry["sha256"]:
        raise PersistenceError(f"the checksum of the member {name!r} does not match")
    _check_content(array, name)
    array.flags.writeable = bool(entry["writeable"])
    return array


def parse_dtype(text: Any) -> np.dtype[Any]:
    """Return the dtype for text such as ``"<f8"``, and refuse everything that is not a plain fixed-width type."""
    if isinstance(text, str) and _DTYPE.fullmatch(text):
        with suppress(TypeError):  # no such width or unit, on this machine at least
            dtype = np.dtype(text)
            if dtype.str == text and dtype.itemsize > 0:
                return dtype
    raise PersistenceError(f"arrays of type {text!r} are not allowed")


def check_shape(shape: Any) -> tuple[int, ...]:
    """Return the shape from a file as a tuple, if it is one."""
    if not isinstance(shape, list) or not all(type(length) is int and length >= 0 for length in shape):
        raise PersistenceError(f"{shape!r} is not the shape of an array")
    return tuple(shape)


def _read_header(file: IO[bytes], name: str) -> bytes:
    """Return the bytes before the data: magic, length and text."""
    start = file.read(len(_MAGIC) + 2)
    if not start.startswith(_MAGIC):
        raise PersistenceError(f"the member {name!r} is not an array")
    return start + file.read(int.from_bytes(start[len(_MAGIC) :], "little"))


def _fill(flat: NDArray[np.uint8], file: IO[bytes], digest: Any) -> None:
    buffer = flat.data
    for start in range(0, len(buffer), _CHUNK):
        chunk = file.read(min(_CHUNK, len(buffer) - start))
        buffer[start : start + _CHUNK] = chunk
        digest.update(chunk)


def _check_content(array: NDArray[Any], name: str) -> None:
    """Refuse bytes that are no value of the type: truth values beyond 1, text beyond Unicode."""
    if array.dtype.kind == "b":
        worst, allowed = array.view(np.uint8).max(initial=0), 1
    elif array.dtype.kind == "U":
        codes = np.frombuffer(array.tobytes(), np.dtype(np.uint32).newbyteorder(array.dtype.byteorder))
        worst, allowed = codes.max(initial=0), 0x10FFFF
    else:
        return
    if worst > allowed:
        raise PersistenceError(f"the member {name!r} holds bytes that are not {array.dtype} values")
