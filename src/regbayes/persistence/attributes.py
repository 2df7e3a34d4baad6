"""Take a registered object apart into named attributes, and put it together again without running its code.

One rule covers frozen dataclasses, classes with slots and scikit-learn estimators (whose parameters and fitted
attributes are all in ``vars``): the attributes are the object. They are read from and written to the instance's
dictionary and slots directly, so neither ``__init__`` nor a property nor ``__setattr__`` runs on data from a file.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import types
from contextlib import suppress
from typing import Any

from regbayes._registry import Registration
from regbayes.persistence.errors import PersistenceError

__all__ = ["get_attributes", "set_attributes"]


def get_attributes(value: Any, registration: Registration, path: str) -> dict[str, Any]:
    """Return the attributes to save.

    Cached properties are left out, since they are computed again, and so are those registered under ``skip``.
    """
    cls = registration.cls
    found = dict(getattr(value, "__dict__", {}))
    for name, slot in _slots(cls).items():
        with suppress(AttributeError):  # an empty slot
            found[name] = slot.__get__(value)
    cached = {name for name in found if isinstance(_class_attribute(cls, name), functools.cached_property)}
    state = {name: found[name] for name in found if name not in registration.skip and name not in cached}
    for name in state:
        _check_name(cls, name, path)
    fields = _fields(cls)
    if fields is not None:
        for name, field in fields.items():
            if name not in state and not _has_default(field):
                raise PersistenceError(f"{path}.{name} is a field without a default, so it cannot be left out")
    return state


def set_attributes(blank: Any, registration: Registration, state: dict[str, Any], path: str) -> None:
    """Fill an object made by ``object.__new__``; what an older file lacks takes its default.

    Raises
    ------
    PersistenceError
        If the file has an attribute that the class cannot have, or lacks one without a default.
    """
    cls = registration.cls
    for name in state:
        _check_name(cls, name, path)
    slots = _slots(cls)
    for name, content in {**_defaults(cls, state, path), **state}.items():
        if name in slots:
            slots[name].__set__(blank, content)
        else:
            blank.__dict__[name] = content


def _check_name(cls: type, name: str, path: str) -> None:
    """Refuse an attribute that would hide a method, or that the class has no room for."""
    if not name.isidentifier() or (name.startswith("__") and name.endswith("__")):
        raise PersistenceError(f"{path}: {name!r} is not the name of an attribute that can be saved")
    fields = _fields(cls)
    if fields is not None:
        if name not in fields:
            raise PersistenceError(
                f"{path}.{name} is not a field of the dataclass {cls.__qualname__}: declare it with "
                "field(init=False), or leave it out with persistable(skip=...)"
            )
        return
    if name in _slots(cls):
        return
    if hasattr(type(_class_attribute(cls, name)), "__get__"):
        raise PersistenceError(f"{path}.{name} would hide a method or property of {cls.__qualname__}")
    if "__dict__" not in {key for base in cls.__mro__ for key in vars(base)}:
        raise PersistenceError(f"{path}.{name} is not a slot of {cls.__qualname__}")


def _defaults(cls: type, state: dict[str, Any], path: str) -> dict[str, Any]:
    """Return values for attributes that are not in the file: skipped, or newer than the file."""
    fields = _fields(cls)
    if fields is None:
        return _parameter_defaults(cls, state)
    filled = {}
    for name, field in fields.items():
        if name in state:
            continue
        if field.default is not dataclasses.MISSING:
            filled[name] = field.default
        elif field.default_factory is not dataclasses.MISSING:
            filled[name] = field.default_factory()
        else:
            raise PersistenceError(f"the file lacks {path}.{name}, which {cls.__qualname__} needs")
    return filled


def _parameter_defaults(cls: type, state: dict[str, Any]) -> dict[str, Any]:
    """Return the constructor's defaults for estimators, which store every parameter under its own name."""
    if not hasattr(cls, "get_params"):
        return {}
    parameters = inspect.signature(cls).parameters.values()
    return {p.name: p.default for p in parameters if p.name not in state and p.default is not p.empty}


def _fields(cls: type) -> dict[str, dataclasses.Field[Any]] | None:
    if not dataclasses.is_dataclass(cls):
        return None
    return {field.name: field for field in dataclasses.fields(cls)}


def _has_default(field: dataclasses.Field[Any]) -> bool:
    return field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING


def _slots(cls: type) -> dict[str, types.MemberDescriptorType]:
    """Return the slots of a class and its bases by (mangled) name."""
    return {
        name: member
        for base in reversed(cls.__mro__)
        for name, member in vars(base).items()
        if isinstance(member, types.MemberDescriptorType)
    }


def _class_attribute(cls: type, name: str) -> Any:
    """Look a name up on the class without running descriptors."""
    return next((vars(base)[name] for base in cls.__mro__ if name in vars(base)), None)
