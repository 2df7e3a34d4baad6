"""The leaves that belong to NumPy and SciPy: arrays, scalars, sparse matrices and random generators.

What is rebuilt here goes to compiled code that trusts it, so the invariants are checked first: indices of a sparse
matrix lie inside it, and the position of a random generator lies inside its buffer.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from regbayes.persistence.errors import PersistenceError, malformed
from regbayes.persistence.npy import KINDS, check_shape, parse_dtype

if TYPE_CHECKING:
    from regbayes.persistence.tree import Decoder, Encoder

__all__ = ["DECODERS", "ENCODERS", "advice_for", "encode_scalar"]

Node = Any

_MAX_POOL = 1024  # words of entropy pool in a seed sequence; NumPy's default is 4

_SPARSE = {cls.__name__: cls for cls in (scipy.sparse.csr_matrix, scipy.sparse.csc_matrix)}
_SPARSE |= {cls.__name__: cls for cls in (scipy.sparse.csr_array, scipy.sparse.csc_array)}

_BIT_GENERATORS: dict[str, type[np.random.BitGenerator]] = {
    cls.__name__: cls
    for cls in (np.random.MT19937, np.random.PCG64, np.random.PCG64DXSM, np.random.Philox, np.random.SFC64)
}


def advice_for(value: Any) -> str | None:
    """Return what to do about a NumPy or SciPy object that cannot be saved, or None."""
    if scipy.sparse.issparse(value):
        return "convert it with .tocsr()"
    if isinstance(value, np.ndarray):
        return "convert it to a plain numpy.ndarray"
    return None


def encode_scalar(_: Encoder, value: np.generic, path: str) -> Node:
    """Encode a NumPy scalar by its type and bytes."""
    if isinstance(value, np.str_):
        return {"numpy_str": value[:]}  # str(value) would strip trailing null characters
    if isinstance(value, np.bytes_):
        return {"numpy_bytes": base64.b64encode(value).decode("ascii")}
    if value.dtype.kind not in KINDS:
        raise PersistenceError(f"{path} is a NumPy scalar of type {value.dtype}, which cannot be saved")
    return {"scalar": [value.dtype.str, value.tobytes().hex()]}


def _decode_scalar(_: Decoder, body: Node, path: str) -> Any:
    text, content = body
    dtype = parse_dtype(text)
    raw = bytes.fromhex(content)
    if len(raw) != dtype.itemsize:
        raise malformed(path)
    return np.frombuffer(raw, dtype)[0]


def _encode_array(encoder: Encoder, value: NDArray[Any], path: str) -> Node:
    if value.dtype.kind == "O":
        return _encode_objects(encoder, value, path)
    if value.dtype.kind not in KINDS or value.dtype.itemsize == 0:
        raise PersistenceError(f"{path} is an array of type {value.dtype}, which cannot be saved")
    return encoder.encode_array(value)


def _encode_objects(encoder: Encoder, value: NDArray[Any], path: str) -> Node:
    """Write an object array (class labels, feature names) element by element."""
    elements = value.ravel().tolist()
    for index, element in enumerate(elements):
        if not (element is None or isinstance(element, bool | int | float | complex | str | bytes | np.generic)):
            raise PersistenceError(
                f"{path} is an object array, and element {index} has type {type(element).__name__}; only strings, "
                "numbers and None can be saved in one"
            )
    return {"objects": {"shape": list(value.shape), "items": encoder.encode_items(elements, path)}}


def _decode_objects(decoder: Decoder, body: Node, path: str) -> NDArray[Any]:
    shape = check_shape(body["shape"])
    elements = decoder.decode_items(body["items"], path)
    flat = np.empty(len(elements), dtype=object)
    for index, element in enumerate(elements):
        flat[index] = element
    return flat.reshape(shape)


def _encode_sparse(encoder: Encoder, value: Any, path: str) -> Node:
    if value.dtype.kind not in KINDS:
        raise PersistenceError(f"{path} is a sparse matrix of type {value.dtype}, which cannot be saved")
    parts = {name: encoder.encode_array(getattr(value, name)) for name in ("data", "indices", "indptr")}
    return {"sparse": {"type": type(value).__name__, "shape": [int(length) for length in value.shape], **parts}}


def _decode_sparse(decoder: Decoder, body: Node, path: str) -> Any:
    if body["type"] not in _SPARSE:
        raise malformed(path)
    data, indices, indptr = (decoder.decode(body[name], f"{path}.{name}") for name in ("data", "indices", "indptr"))
    if not all(isinstance(part, np.ndarray) and part.dtype.kind == "i" for part in (indices, indptr)):
        raise malformed(path)
    matrix = _SPARSE[body["type"]]((data, indices, indptr), shape=check_shape(body["shape"]))
    matrix.check_format(full_check=True)
    matrix.data, matrix.indices, matrix.indptr = data, indices, indptr  # SciPy narrows 64-bit indices; they come back
    return matrix


def _encode_seeds(encoder: Encoder, value: np.random.SeedSequence, path: str) -> Node:
    return {"seed_sequence": encoder.encode(value.state, path)}


def _decode_seeds(decoder: Decoder, body: Node, path: str) -> np.random.SeedSequence:
    state = decoder.decode(body, path)
    if type(state["pool_size"]) is not int or state["pool_size"] > _MAX_POOL:
        raise malformed(path)
    return np.random.SeedSequence(**state)


def _encode_generator(encoder: Encoder, value: np.random.Generator, path: str) -> Node:
    bits = value.bit_generator
    seeds = bits.seed_seq
    if type(bits) not in _BIT_GENERATORS.values() or type(seeds) is not np.random.SeedSequence:
        raise PersistenceError(f"{path} is a random generator of a kind that cannot be saved: {bits!r} from {seeds!r}")
    return {
        "generator": {
            "state": encoder.encode(bits.state, path),
            "seeds": encoder.encode(seeds, path),
        }
    }


def _decode_generator(decoder: Decoder, body: Node, path: str) -> np.random.Generator:
    seeds = decoder.decode(body["seeds"], path)
    state = decoder.decode(body["state"], path)
    if not isinstance(seeds, np.random.SeedSequence):
        raise malformed(path)
    bits = _bit_generator(state, seeds, path)
    bits.state = state
    return np.random.Generator(bits)


def _encode_random_state(encoder: Encoder, value: np.random.RandomState, path: str) -> Node:
    state = value.get_state(legacy=False)
    if state["bit_generator"] not in _BIT_GENERATORS:
        raise PersistenceError(f"{path} is a RandomState of a kind that cannot be saved: {state['bit_generator']}")
    return {"random_state": encoder.encode(state, path)}


def _decode_random_state(decoder: Decoder, body: Node, path: str) -> np.random.RandomState:
    state = decoder.decode(body, path)
    random_state = np.random.RandomState(_bit_generator(state, 0, path))
    random_state.set_state(state)
    return random_state


def _bit_generator(state: Any, seed: Any, path: str) -> np.random.BitGenerator:
    """Return a bit generator of the kind that a state is for, having checked that the state stays in bounds."""
    name = state["bit_generator"]
    # NumPy takes these positions as given, and would read beyond its buffer.
    if name == "MT19937" and not 0 <= state["state"]["pos"] <= 624:
        raise malformed(path)
    if name == "Philox" and not 0 <= state["buffer_pos"] <= 4:
        raise malformed(path)
    if name not in _BIT_GENERATORS:
        raise malformed(path)
    return _BIT_GENERATORS[name](seed)


ENCODERS: dict[type, Callable[[Encoder, Any, str], Node]] = {
    np.ndarray: _encode_array,
    np.memmap: lambda encoder, value, path: _encode_array(encoder, np.asarray(value), path),
    np.random.SeedSequence: _encode_seeds,
    np.random.Generator: _encode_generator,
    np.random.RandomState: _encode_random_state,
} | dict.fromkeys(_SPARSE.values(), _encode_sparse)

DECODERS: dict[str, Callable[[Decoder, Node, str], Any]] = {
    "scalar": _decode_scalar,
    "numpy_str": lambda _, body, __: np.str_(body),
    "numpy_bytes": lambda _, body, __: np.bytes_(base64.b64decode(body, validate=True)),
    "objects": _decode_objects,
    "sparse": _decode_sparse,
    "seed_sequence": _decode_seeds,
    "generator": _decode_generator,
    "random_state": _decode_random_state,
}
