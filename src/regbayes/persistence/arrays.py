"""Arrays in a file: contiguous bytes of plain fixed-width dtypes."""

from __future__ import annotations

import hashlib
import math
import re
from contextlib import suppress
from typing import IO, Any, Literal

import numpy as np
from numpy.typing import NDArray

from regbayes.persistence.errors import PersistenceError

__all__ = ["KINDS", "check_shape", "describe", "get_content", "parse_dtype", "read_arrays"]

# Kinds of dtypes with a fixed width and without pointers, from bool to datetime64.
KINDS = "biufcSUmM"
_DTYPE = re.compile(rf"[<>|][{KINDS}][0-9]{{1,9}}(\[[0-9]*[a-zA-Z]{{1,2}}\])?")
_MAX_DIMENSIONS = 64  # the limit of NumPy

Order = Literal["C", "F"]


def get_content(array: NDArray[Any]) -> memoryview:
    """Return the bytes of an array, in Fortran order if only that is contiguous."""
    order = _order(array)
    return np.asarray(array, order=order).reshape(-1, order=order).view(np.uint8).data


def describe(array: NDArray[Any], content: memoryview) -> dict[str, Any]:
    """Return the header entry of an array."""
    return {
        "dtype": array.dtype.str,
        "shape": list(array.shape),
        "order": _order(array),
        "writeable": array.flags.writeable,
        "sha256": hashlib.sha256(content).hexdigest(),
    }


def _order(array: NDArray[Any]) -> Order:
    return "F" if array.flags.f_contiguous and not array.flags.c_contiguous else "C"


def read_arrays(file: IO[bytes], entries: list[dict[str, Any]], available: int) -> list[NDArray[Any]]:
    """Read the arrays described by a header from the current position of the file."""
    plans = [(parse_dtype(entry["dtype"]), check_shape(entry["shape"])) for entry in entries]
    claimed = sum(math.prod(shape) * dtype.itemsize for dtype, shape in plans)
    if claimed != available:
        raise PersistenceError(f"its arrays need {claimed} bytes, and it has {available}: it is truncated or damaged")
    arrays = []
    for index, (entry, (dtype, shape)) in enumerate(zip(entries, plans, strict=True)):
        array = np.empty(shape, dtype, order=entry["order"])
        content = get_content(array)
        file.readinto(content)  # type: ignore[attr-defined]
        if hashlib.sha256(content).hexdigest() != entry["sha256"]:
            raise PersistenceError(f"array {index} is damaged or was altered: its checksum does not match")
        _check_content(array, index)
        array.flags.writeable = bool(entry["writeable"])
        arrays.append(array)
    return arrays


def parse_dtype(text: Any) -> np.dtype[Any]:
    """Return the plain fixed-width dtype of text such as ``"<f8"``, or raise."""
    if isinstance(text, str) and _DTYPE.fullmatch(text):
        with suppress(TypeError):  # NumPy does not support this width or unit on this platform
            dtype = np.dtype(text)
            if dtype.str == text and dtype.itemsize > 0:
                return dtype
    raise PersistenceError(f"arrays of type {text!r} are not allowed")


def check_shape(shape: Any) -> tuple[int, ...]:
    """Return a shape from a file as a tuple; raise if it is invalid."""
    lengths = shape if isinstance(shape, list) and len(shape) <= _MAX_DIMENSIONS else [None]
    if not all(type(length) is int and 0 <= length < 2**63 for length in lengths):
        raise PersistenceError(f"{shape!r:.100} is not the shape of an array")
    return tuple(lengths)


def _check_content(array: NDArray[Any], index: int) -> None:
    """Raise PersistenceError for booleans above 1 and for text beyond Unicode."""
    if array.dtype.kind == "b":
        worst, allowed = array.view(np.uint8).max(initial=0), 1
    elif array.dtype.kind == "U":
        codes = np.frombuffer(get_content(array), np.dtype(np.uint32).newbyteorder(array.dtype.byteorder))
        worst, allowed = codes.max(initial=0), 0x10FFFF
    else:
        return
    if worst > allowed:
        raise PersistenceError(f"array {index} holds bytes that are not {array.dtype} values")
