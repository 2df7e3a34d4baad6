"""Convert objects of supported types to JSON and back.

None, booleans, numbers, strings and lists are plain JSON. All other values are JSON objects with one key, a tag that
names the type: ``{"tuple": [...]}``, ``{"array": 0}``, ``{"object": ["regbayes.Finite", {...}]}``. Types are compared
exactly, so that a subclass of ``dict`` or ``float`` raises unless it is registered.

Attributes of registered objects are read from and written to ``vars`` directly: ``__init__``, properties and
``__setattr__`` never run on data from a file.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
import struct
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from regbayes._registry import Registration, class_named, registration_of
from regbayes.kernels.arrays import is_plain, to_host
from regbayes.persistence.arrays import KINDS, check_shape, parse_dtype
from regbayes.persistence.errors import PersistenceError, Place, Walk

__all__ = ["MAX_VALUES", "Decoder", "Encoder"]

Node = Any  # value that the json module reads and writes

MAX_DEPTH = 64  # levels of nesting; far above any model, far below Python's recursion limit
MAX_VALUES = 2_000_000  # values outside arrays in a file, at roughly 100 bytes of memory each

_SPARSE = {cls.__name__: cls for cls in (scipy.sparse.csr_matrix, scipy.sparse.csr_array)}
# Types of numbers may be saved, because encoders and vectorizers have a parameter `dtype`.
_NUMBERS: tuple[type, ...] = (bool, int, float, np.bool_, *(np.dtype(code).type for code in "bhilqBHILQefd"))
_NUMBER_TYPES = {f"{cls.__module__}.{cls.__name__}": cls for cls in _NUMBERS}


def get_attributes(value: Any, registration: Registration, walk: Walk) -> dict[str, Any]:
    """Return the attributes to save, without cached properties and ``skip``.

    Random generators are replaced by None, because only `fit` uses them.
    """
    cls = registration.cls
    state = {}
    for name, content in vars(value).items():
        cached = isinstance(_class_attribute(cls, name), functools.cached_property)
        if cached or name in registration.skip:
            continue
        if name in registration.replace:
            content = registration.replace[name](content)
        state[name] = None if isinstance(content, np.random.RandomState | np.random.Generator) else content
    _check(registration, state, walk)
    for name, field in _fields(cls).items():
        if name not in state and _default(field) is dataclasses.MISSING:
            raise PersistenceError(f"{walk.here}.{name} is a field without a default, so it cannot be left out")
    return state


def set_attributes(blank: Any, registration: Registration, state: dict[str, Any], walk: Walk) -> None:
    """Set the attributes of a blank object, or defaults if missing in the file."""
    cls = registration.cls
    _check(registration, state, walk)
    for name, field in _fields(cls).items():
        if name not in state:
            default = _default(field)
            if default is dataclasses.MISSING:
                raise PersistenceError(f"the file lacks {walk.here}.{name}, which {cls.__qualname__} needs")
            blank.__dict__[name] = default
    blank.__dict__.update(_get_parameters(cls))
    blank.__dict__.update(state)


def _check(registration: Registration, state: dict[str, Any], walk: Walk) -> None:
    """Raise for attributes with invalid names or forbidden values."""
    cls, fields = registration.cls, _fields(registration.cls)
    for name in state:
        if not name.isidentifier() or (name.startswith("__") and name.endswith("__")):
            raise PersistenceError(f"{walk.here}: {name!r:.60} is not the name of an attribute that can be saved")
        if fields:
            if name not in fields:
                raise PersistenceError(
                    f"{walk.here}.{name} is not a field of the dataclass {cls.__qualname__}: declare it with "
                    "field(init=False), or leave it out with persistable(skip=...)"
                )
        elif hasattr(type(_class_attribute(cls, name)), "__get__"):
            raise PersistenceError(f"{walk.here}.{name} would hide a method or property of {cls.__qualname__}")
    for name, allowed in registration.only.items():
        content = state.get(name, allowed[0])
        if not (content is None or isinstance(content, str)) or content not in allowed:
            raise PersistenceError(
                f"{walk.here}.{name} may be {' or '.join(map(repr, allowed))} in a file, not {content!r:.100}"
            )


@functools.cache
def _get_parameters(cls: type) -> dict[str, Any]:
    """Return the default parameters of a class if it is an estimator."""
    parameters = inspect.signature(cls).parameters.values() if hasattr(cls, "get_params") else ()
    return {parameter.name: parameter.default for parameter in parameters if parameter.default is not parameter.empty}


def _fields(cls: type) -> dict[str, dataclasses.Field[Any]]:
    """Return the fields of a dataclass; none of an estimator, whose fitted attributes are not fields."""
    is_record = dataclasses.is_dataclass(cls) and not hasattr(cls, "get_params")
    return {field.name: field for field in dataclasses.fields(cls)} if is_record else {}


def _default(field: dataclasses.Field[Any]) -> Any:
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def _class_attribute(cls: type, name: str) -> Any:
    """Look a name up on the class without running descriptors."""
    return next((vars(base)[name] for base in cls.__mro__ if name in vars(base)), None)


class Encoder(Walk):
    """Converts one object to JSON and collects its arrays."""

    def __init__(self, start: str) -> None:
        super().__init__(start)
        self.arrays: list[NDArray[Any]] = []
        self._objects: list[Any] = []  # encoded objects, kept alive because ids are reused after deletion
        self._numbers: dict[int, int] = {}  # id of an encoded array or object -> its number in the file
        self._open: list[int] = []  # ids of the values that contain the current one

    def encode(self, value: Any) -> Node:
        """Return the JSON for a value."""
        cls = type(value)
        if value is None or cls is bool or cls is str:
            return value
        if id(value) in self._open:
            raise PersistenceError(f"{self.here} contains itself, which cannot be saved")
        if len(self._open) >= MAX_DEPTH:
            raise PersistenceError(f"{self.here} is nested more than {MAX_DEPTH} levels deep")
        self._open.append(id(value))
        node = (_ENCODERS.get(cls) or _find_encoder(value))(self, value)
        self._open.pop()
        return node

    def encode_at(self, place: Place, value: Any) -> Node:
        """Encode a part of the current value."""
        self._place.append(place)
        node = self.encode(value)
        self._place.pop()
        return node

    def encode_items(self, values: Iterable[Any]) -> list[Node]:
        """Encode the elements of a container."""
        return [self.encode_at((index,), element) for index, element in enumerate(values)]

    def add_array(self, array: NDArray[Any]) -> int:
        """Add an array to the file unless it is already there, and return its number."""
        if array.dtype.kind not in KINDS or array.dtype.itemsize == 0:
            raise PersistenceError(f"{self.here} is an array of type {array.dtype}, which cannot be saved")
        if id(array) not in self._numbers:
            self._numbers[id(array)] = len(self.arrays)
            self.arrays.append(array)
        return self._numbers[id(array)]

    def encode_object(self, value: Any) -> Node:
        """Encode an object of a registered class; later occurrences refer to the first."""
        if id(value) in self._numbers:
            return {"ref": self._numbers[id(value)]}
        registration = registration_of(type(value))
        if registration is None:
            raise PersistenceError(f"{self.here} {_why_not(value)}")
        state = get_attributes(value, registration, self)
        node = {"object": [registration.name, {name: self.encode_at(f".{name}", state[name]) for name in state}]}
        self._numbers[id(value)] = len(self._objects)
        self._objects.append(value)
        return node


def _find_encoder(value: Any) -> Callable[[Encoder, Any], Node]:
    """Return the encoder of a value whose exact type is not in the table."""
    if isinstance(value, np.generic):
        return _encode_scalar
    if isinstance(value, np.dtype):
        return _encode_dtype
    if isinstance(value, np.ndarray) and type(value).__module__.startswith("regbayes."):  # expectations
        return lambda encoder, array: _encode_array(encoder, np.asarray(array))
    if not is_plain(value):  # PyTorch and CuPy arrays are saved as NumPy arrays
        return lambda encoder, array: _encode_array(encoder, to_host(array))
    if isinstance(value, Enum):
        return _encode_enum
    if isinstance(value, type) and value in _NUMBER_TYPES.values():
        return lambda _, cls: {"type": f"{cls.__module__}.{cls.__name__}"}
    return Encoder.encode_object


def _why_not(value: Any) -> str:
    cls = type(value)
    if isinstance(value, type):
        return f"is the class {value.__qualname__}, and code cannot be saved"
    if callable(value):
        return f"is a callable ({getattr(value, '__qualname__', cls.__qualname__)}), and code cannot be saved"
    advice = "register its class with regbayes.persistence.persistable, or convert it"
    if scipy.sparse.issparse(value):
        advice = "convert it with .tocsr()"
    elif isinstance(value, np.ndarray):
        advice = "convert it to a plain numpy.ndarray"
    elif isinstance(value, set | frozenset):
        advice = "convert it to a list"
    return f"has type {cls.__module__}.{cls.__qualname__}, which cannot be saved: {advice}"


def _encode_int(encoder: Encoder, value: int) -> Node:
    if not _fits(value):
        raise PersistenceError(f"{encoder.here} is an integer of more than 64 bits, which cannot be saved")
    return value


def _fits(value: int) -> bool:
    return -(2**63) <= value < 2**64


def _encode_float(_: Encoder, value: float) -> Node:
    # JSON round-trips finite numbers exactly; the bits keep the sign and payload of a NaN.
    return value if math.isfinite(value) else {"float": struct.pack(">d", value).hex()}


def _encode_dict(encoder: Encoder, value: dict[Any, Any]) -> Node:
    nodes = [(key, encoder.encode_at((key,), content)) for key, content in value.items()]
    if all(type(key) is str for key in value):
        return {"dict": dict(nodes)}
    for key in value:
        if not _is_label(key):
            raise PersistenceError(
                f"a key of {encoder.here} has type {type(key).__name__}; it may be a string, a number or None"
            )
    return {"items": [[encoder.encode_at((key,), key), node] for key, node in nodes]}


def _is_label(value: Any) -> bool:
    """Return whether a value may be a dictionary key or an element of an object array.

    At most a few hundred of these numbers share a hash, and hashes of strings are randomized per process. A crafted
    file can therefore not slow down dictionaries.
    """
    if isinstance(value, np.generic):
        return type(value) is np.str_ or (value.dtype.kind in "biuf" and value.dtype.itemsize <= 8)
    return value is None or type(value) in (bool, float, str) or (type(value) is int and _fits(value))


def _encode_array(encoder: Encoder, value: NDArray[Any]) -> Node:
    if value.dtype.kind != "O":
        return {"array": encoder.add_array(value)}
    elements = value.ravel().tolist()
    for index, element in enumerate(elements):
        if not _is_label(element):
            raise PersistenceError(
                f"{encoder.here} is an object array, and element {index} has type {type(element).__name__}; only "
                "strings, numbers and None can be saved in one"
            )
    return {"objects": [list(value.shape), encoder.encode_items(elements)]}


def _encode_scalar(encoder: Encoder, value: np.generic) -> Node:
    if isinstance(value, np.str_):
        return {"str": value[:]}  # str(value) strips trailing null characters
    if value.dtype.kind not in KINDS or value.dtype.kind == "S":
        raise PersistenceError(f"{encoder.here} is a NumPy scalar of type {value.dtype}, which cannot be saved")
    return {"scalar": f"{value.dtype.str} {value.tobytes().hex()}"}


def _encode_dtype(encoder: Encoder, value: np.dtype[Any]) -> Node:
    if value.kind not in KINDS + "O":
        raise PersistenceError(f"{encoder.here} is the dtype {value}, which cannot be saved")
    return {"dtype": value.str}


def _encode_sparse(encoder: Encoder, value: Any) -> Node:
    parts = [encoder.add_array(part) for part in (value.data, value.indices, value.indptr)]
    return {"sparse": [type(value).__name__, [int(length) for length in value.shape], *parts]}


def _encode_enum(encoder: Encoder, value: Enum) -> Node:
    registration = registration_of(type(value))
    if registration is None or value.name not in type(value).__members__:
        raise PersistenceError(f"{encoder.here} is {value!r}, which is not a member of a registered enumeration")
    return {"enum": [registration.name, value.name]}


_ENCODERS: dict[type, Callable[[Encoder, Any], Node]] = {
    int: _encode_int,
    float: _encode_float,
    list: Encoder.encode_items,
    tuple: lambda encoder, value: {"tuple": encoder.encode_items(value)},
    slice: lambda encoder, value: {"slice": encoder.encode_items((value.start, value.stop, value.step))},
    dict: _encode_dict,
    np.ndarray: _encode_array,
    np.memmap: lambda encoder, value: _encode_array(encoder, np.asarray(value)),
}
_ENCODERS.update(dict.fromkeys(_SPARSE.values(), _encode_sparse))


class Decoder(Walk):
    """Converts the JSON of `Encoder` and the arrays back to the object."""

    def __init__(self, arrays: list[NDArray[Any]]) -> None:
        super().__init__("the object")
        self.arrays = arrays
        self.objects: list[Any] = []  # decoded so far
        self._depth = 0
        self._filled = 0

    def malformed(self) -> PersistenceError:
        """Return the error for a malformed header."""
        return PersistenceError(f"the header is malformed at {self.here}")

    def decode(self, node: Node) -> Any:
        """Return the value of a JSON node."""
        if not isinstance(node, list | dict):
            if type(node) is int and not _fits(node):
                raise self.malformed()
            return node
        if self._depth >= MAX_DEPTH:
            raise PersistenceError(f"{self.here} is nested more than {MAX_DEPTH} levels deep")
        self._depth += 1
        if isinstance(node, list):
            value = self.decode_items(node)
        else:
            ((tag, body),) = node.items()
            if tag not in _DECODERS:
                raise PersistenceError(f"unknown kind of value {tag!r:.60} at {self.here}")
            value = _DECODERS[tag](self, body)
        self._depth -= 1
        return value

    def decode_at(self, place: Place, node: Node) -> Any:
        """Decode a part of the current value."""
        self._place.append(place)
        value = self.decode(node)
        self._place.pop()
        return value

    def decode_items(self, nodes: list[Node]) -> list[Any]:
        """Decode the elements of a container."""
        if not isinstance(nodes, list):
            raise self.malformed()
        return [self.decode_at((index,), node) for index, node in enumerate(nodes)]

    def pick(self, known: list[Any], number: Node) -> Any:
        """Return an array or an already decoded object by its number."""
        if type(number) is not int or not 0 <= number < len(known):
            raise self.malformed()
        return known[number]

    def decode_object(self, body: Node) -> Any:
        """Create a registered object and set its attributes."""
        name, nodes = body
        registration = self.find_registration(name)
        if issubclass(registration.cls, Enum):
            raise self.malformed()
        state = {name: self.decode_at(f".{name}", node) for name, node in nodes.items()}
        value = object.__new__(registration.cls)
        set_attributes(value, registration, state, self)
        if registration.check is not None:
            try:
                registration.check(value)
            except Exception as error:  # attributes from a file may have any type and raise any exception
                raise PersistenceError(f"{self.here} contradicts itself: {error}") from error
        self.objects.append(value)
        self._filled += len(vars(value)) - len(state)
        if self._filled > MAX_VALUES:  # defaults need memory although they are not in the file
            raise self.malformed()
        return value

    def find_registration(self, name: Node) -> Registration:
        """Return the registration of a type name from a file; raise if it is unknown."""
        registration = class_named(name) if isinstance(name, str) else None
        if registration is None:
            raise PersistenceError(
                f"unknown type {name!r:.200} at {self.here}: it is not registered in this version of regbayes; if "
                "it is a class of yours, import the module that registers it before loading"
            )
        return registration


def _decode_dict(decoder: Decoder, body: Node) -> dict[str, Any]:
    return {key: decoder.decode_at((key,), node) for key, node in body.items()}


def _decode_items(decoder: Decoder, body: Node) -> dict[Any, Any]:
    decoded: dict[Any, Any] = {}
    for key_node, node in body:
        key = decoder.decode(key_node)
        if not _is_label(key) or key in decoded:
            raise decoder.malformed()
        decoded[key] = decoder.decode_at((key,), node)
    return decoded


def _decode_objects(decoder: Decoder, body: Node) -> NDArray[Any]:
    shape, nodes = body
    elements = decoder.decode_items(nodes)
    if not all(map(_is_label, elements)):
        raise decoder.malformed()
    return np.array([*elements, None], dtype=object)[:-1].reshape(check_shape(shape))


def _decode_scalar(decoder: Decoder, body: Node) -> Any:
    text, content = body.split(" ")
    dtype, raw = parse_dtype(text), bytes.fromhex(content)
    if len(raw) != dtype.itemsize or dtype.kind in "SU" or (dtype.kind == "b" and raw > b"\x01"):
        raise decoder.malformed()
    return np.frombuffer(raw, dtype)[0]


def _decode_sparse(decoder: Decoder, body: Node) -> Any:
    name, shape, *parts = body
    data, indices, indptr = (decoder.pick(decoder.arrays, part) for part in parts)
    # SciPy's compiled code does not check bounds, so invalid indices must raise here.
    if (indices.dtype.kind, indptr.dtype.kind) != ("i", "i") or data.dtype.kind not in "biufc":
        raise decoder.malformed()
    matrix = _SPARSE[name]((data, indices, indptr), shape=check_shape(shape))
    matrix.check_format(full_check=True)
    matrix.data, matrix.indices, matrix.indptr = data, indices, indptr  # SciPy may narrow 64-bit indices
    return matrix


def _decode_enum(decoder: Decoder, body: Node) -> Enum:
    name, member = body
    cls = decoder.find_registration(name).cls
    if not issubclass(cls, Enum) or member not in cls.__members__:
        raise PersistenceError(f"unknown member {member!r:.60} of {name!r} at {decoder.here}")
    return cls.__members__[member]


_DECODERS: dict[str, Callable[[Decoder, Node], Any]] = {
    "float": lambda _, body: struct.unpack(">d", bytes.fromhex(body))[0],
    "tuple": lambda decoder, body: tuple(decoder.decode_items(body)),
    "slice": lambda decoder, body: slice(*decoder.decode_items(body)),
    "dict": _decode_dict,
    "items": _decode_items,
    "array": lambda decoder, body: decoder.pick(decoder.arrays, body),
    "objects": _decode_objects,
    "str": lambda _, body: np.str_("" + body),
    "scalar": _decode_scalar,
    "dtype": lambda _, body: np.dtype(object) if body == "|O" else parse_dtype(body),
    "type": lambda _, body: _NUMBER_TYPES[body],
    "sparse": _decode_sparse,
    "enum": _decode_enum,
    "object": Decoder.decode_object,
    "ref": lambda decoder, body: decoder.pick(decoder.objects, body),
}
