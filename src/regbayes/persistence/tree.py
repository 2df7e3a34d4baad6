"""Objects to JSON and back, for a closed set of types.

JSON's own values stand for themselves; everything else is an object with one key, the tag, that says how to read
the rest: ``{"tuple": [...]}``, ``{"array": "arrays/0.npy"}``, ``{"object": {"type": "regbayes.Finite", ...}}``.
Types are compared exactly, so that what comes back has the type that went in; a subclass of ``dict`` or ``float``
is either registered or refused, never silently flattened.
"""

from __future__ import annotations

import base64
import json
import math
import struct
from collections.abc import Callable
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regbayes._registry import Registration, class_named, registration_of
from regbayes.persistence import array_leaves
from regbayes.persistence.attributes import get_attributes, set_attributes
from regbayes.persistence.errors import PersistenceError, malformed

__all__ = ["Decoder", "Encoder"]

Node = Any  # what the json module reads and writes
MAX_DEPTH = 64  # levels of containers and objects; far above any model, far below the interpreter's stack
_LEAF_DEPTH = 4  # levels that one leaf adds to the JSON
_EXACT_INTEGERS = 2**53  # larger ones are written in hexadecimal, which other JSON readers do not round


class Encoder:
    """Turns one object into JSON, and collects its arrays under the names of their members."""

    def __init__(self) -> None:
        self.arrays: dict[str, NDArray[Any]] = {}
        self._array_names: dict[int, str] = {}
        self._object_ids: dict[int, int] = {}
        self._open: list[int] = []  # the containers around the value being encoded
        self._objects: list[Any] = []  # kept alive: an id means something only while its object lives

    def encode(self, value: Any, path: str) -> Node:
        """Return the JSON for a value; `path` says where it is, for the error message."""
        cls = type(value)
        if value is None or cls is bool or cls is str:
            return value
        encode = _ENCODERS.get(cls) or array_leaves.ENCODERS.get(cls)
        if encode is not None:
            return encode(self, value, path)
        if isinstance(value, np.generic):
            return array_leaves.encode_scalar(self, value, path)
        registration = registration_of(cls)
        if registration is None:
            raise PersistenceError(_why_not(value, path))
        if isinstance(value, Enum):
            return self._encode_member(value, registration, path)
        return self._encode_object(value, registration, path)

    def encode_items(self, values: Any, path: str) -> list[Node]:
        """Encode the elements of a container, watching for one that contains itself."""
        self._enter(values, path)
        nodes = [self.encode(element, f"{path}[{index}]") for index, element in enumerate(values)]
        self._open.pop()
        return nodes

    def encode_mapping(self, values: dict[Any, Any], path: str) -> dict[str, Node]:
        """Encode the values of a dictionary whose keys are all strings."""
        self._enter(values, path)
        nodes = {key: self.encode(content, f"{path}[{key!r}]") for key, content in values.items()}
        self._open.pop()
        return nodes

    def encode_pairs(self, values: dict[Any, Any], path: str) -> list[list[Node]]:
        """Encode a dictionary with any keys."""
        self._enter(values, path)
        nodes = [
            [self.encode(key, f"key {key!r} of {path}"), self.encode(content, f"{path}[{key!r}]")]
            for key, content in values.items()
        ]
        self._open.pop()
        return nodes

    def encode_array(self, array: NDArray[Any]) -> Node:
        """Give an array a member of the file; an array met twice is written once."""
        if id(array) not in self._array_names:
            name = f"arrays/{len(self.arrays)}.npy"
            self._array_names[id(array)] = name
            self.arrays[name] = array
        return {"array": self._array_names[id(array)]}

    def _encode_member(self, value: Enum, registration: Registration, path: str) -> Node:
        if value.name not in type(value).__members__:
            raise PersistenceError(f"{path} is {value!r}, a combination of flags without a name")
        return {"enum": {"type": registration.name, "member": value.name}}

    def _encode_object(self, value: Any, registration: Registration, path: str) -> Node:
        if id(value) in self._object_ids:
            return {"ref": self._object_ids[id(value)]}
        number = self._object_ids[id(value)] = len(self._objects)
        self._objects.append(value)
        self._enter(value, path)
        state = {
            name: self.encode(content, f"{path}.{name}")
            for name, content in get_attributes(value, registration, path).items()
        }
        self._open.pop()
        return {"object": {"id": number, "type": registration.name, "state": state}}

    def _enter(self, container: Any, path: str) -> None:
        if id(container) in self._open:
            raise PersistenceError(f"{path} contains itself, which cannot be saved")
        if len(self._open) >= MAX_DEPTH:
            raise PersistenceError(f"{path} is nested more than {MAX_DEPTH} levels deep")
        self._open.append(id(container))


class Decoder:
    """Turns the JSON of `Encoder` back into the object.

    Parameters
    ----------
    read_array : callable
        Returns the array of a member, given its name.
    """

    def __init__(self, read_array: Callable[[str], NDArray[Any]]) -> None:
        self._read_array = read_array
        self._arrays: dict[str, NDArray[Any]] = {}
        self._objects: dict[int, Any] = {}
        self._depth = 0

    def decode(self, node: Node, path: str) -> Any:
        """Return the value that a JSON node stands for."""
        if not isinstance(node, list | dict):
            return node
        if self._depth >= MAX_DEPTH + _LEAF_DEPTH:
            raise PersistenceError(f"{path} is nested more than {MAX_DEPTH} levels deep")
        self._depth += 1
        value = self.decode_items(node, path) if isinstance(node, list) else self._decode_tagged(node, path)
        self._depth -= 1
        return value

    def decode_items(self, nodes: list[Node], path: str) -> list[Any]:
        """Decode the elements of a container."""
        if not isinstance(nodes, list):
            raise malformed(path)
        return [self.decode(node, f"{path}[{index}]") for index, node in enumerate(nodes)]

    def decode_array(self, name: str) -> NDArray[Any]:
        """Return the array of a member, the same one each time."""
        if name not in self._arrays:
            self._arrays[name] = self._read_array(name)
        return self._arrays[name]

    def decode_object(self, body: Node, path: str) -> Any:
        """Make a registered object and fill it; a reference inside it may point back at it."""
        registration = find_registration(body["type"], path)
        if issubclass(registration.cls, Enum):
            raise malformed(path)
        blank = object.__new__(registration.cls)
        if self._objects.setdefault(body["id"], blank) is not blank:
            raise malformed(path)
        state = {name: self.decode(node, f"{path}.{name}") for name, node in body["state"].items()}
        set_attributes(blank, registration, state, path)
        return blank

    def decode_reference(self, body: Node, path: str) -> Any:
        """Return an object met before."""
        if body not in self._objects:
            raise malformed(path)
        return self._objects[body]

    def _decode_tagged(self, node: dict[str, Node], path: str) -> Any:
        ((tag, body),) = node.items()
        decode = _DECODERS.get(tag) or array_leaves.DECODERS.get(tag)
        if decode is None:
            raise PersistenceError(f"unknown kind of value {tag!r} at {path}")
        return decode(self, body, path)


def find_registration(name: Node, path: str) -> Registration:
    """Look up a type named in a file, in the table and nowhere else."""
    registration = class_named(name) if isinstance(name, str) else None
    if registration is None:
        raise PersistenceError(
            f"unknown type {name!r} at {path}: it is not registered in this version of regbayes; if it is a class "
            "of yours, import the module that registers it before loading"
        )
    return registration


def _why_not(value: Any, path: str) -> str:
    cls = type(value)
    if isinstance(value, type):
        return f"{path} is the class {value.__qualname__}, and code cannot be saved"
    if callable(value):
        name = getattr(value, "__qualname__", cls.__qualname__)
        return f"{path} is a callable ({name}), and code cannot be saved"
    advice = array_leaves.advice_for(value) or "register its class with regbayes.persistence.persistable, or convert it"
    return f"{path} has type {cls.__module__}.{cls.__qualname__}, which cannot be saved: {advice}"


def _encode_int(_: Encoder, value: int, __: str) -> Node:
    return value if abs(value) <= _EXACT_INTEGERS else {"int": format(value, "x")}


def _encode_float(_: Encoder, value: float, __: str) -> Node:
    # repr round-trips every finite number; the bits keep the sign and payload of a NaN.
    return value if math.isfinite(value) else {"float": struct.pack(">d", value).hex()}


def _encode_dict(encoder: Encoder, value: dict[Any, Any], path: str) -> Node:
    if all(type(key) is str for key in value):
        return {"dict": encoder.encode_mapping(value, path)}
    return {"items": encoder.encode_pairs(value, path)}


def _encode_set(tag: str) -> Callable[[Encoder, Any, str], Node]:
    # Sets have no order, and strings hash differently in every process: sort, so that equal objects give equal files.
    def encode(encoder: Encoder, value: Any, path: str) -> Node:
        return {tag: sorted(encoder.encode_items(value, path), key=lambda node: json.dumps(node, sort_keys=True))}

    return encode


def _encode_slice(encoder: Encoder, value: slice, path: str) -> Node:
    return {"slice": encoder.encode_items([value.start, value.stop, value.step], path)}


def _decode_dict(decoder: Decoder, body: Node, path: str) -> dict[Any, Any]:
    return {key: decoder.decode(node, f"{path}[{key!r}]") for key, node in body.items()}


def _decode_items(decoder: Decoder, body: Node, path: str) -> dict[Any, Any]:
    pairs = [(decoder.decode(key, path), decoder.decode(node, path)) for key, node in body]
    if len(decoded := dict(pairs)) != len(pairs):
        raise malformed(path)
    return decoded


def _decode_enum(_: Decoder, body: Node, path: str) -> Enum:
    cls = find_registration(body["type"], path).cls
    if not issubclass(cls, Enum) or body["member"] not in cls.__members__:
        raise PersistenceError(f"unknown member {body['member']!r} of {body['type']!r} at {path}")
    return cls.__members__[body["member"]]


_ENCODERS: dict[type, Callable[[Encoder, Any, str], Node]] = {
    int: _encode_int,
    float: _encode_float,
    complex: lambda encoder, value, path: {"complex": encoder.encode_items([value.real, value.imag], path)},
    bytes: lambda _, value, __: {"bytes": base64.b64encode(value).decode("ascii")},
    list: lambda encoder, value, path: encoder.encode_items(value, path),
    tuple: lambda encoder, value, path: {"tuple": encoder.encode_items(value, path)},
    dict: _encode_dict,
    set: _encode_set("set"),
    frozenset: _encode_set("frozenset"),
    slice: _encode_slice,
}

_DECODERS: dict[str, Callable[[Decoder, Node, str], Any]] = {
    "int": lambda _, body, __: int(body, 16),
    "float": lambda _, body, __: struct.unpack(">d", bytes.fromhex(body))[0],
    "complex": lambda decoder, body, path: complex(*decoder.decode_items(body, path)),
    "bytes": lambda _, body, __: base64.b64decode(body, validate=True),
    "tuple": lambda decoder, body, path: tuple(decoder.decode_items(body, path)),
    "dict": _decode_dict,
    "items": _decode_items,
    "set": lambda decoder, body, path: set(decoder.decode_items(body, path)),
    "frozenset": lambda decoder, body, path: frozenset(decoder.decode_items(body, path)),
    "slice": lambda decoder, body, path: slice(*decoder.decode_items(body, path)),
    "array": lambda decoder, body, _: decoder.decode_array(body),
    "object": Decoder.decode_object,
    "ref": Decoder.decode_reference,
    "enum": _decode_enum,
}
