"""Take a registered object apart into named attributes, and put it together again without running its code.

One rule covers frozen dataclasses and scikit-learn estimators (whose parameters and fitted attributes are all in
``vars``): the attributes are the object. They are read from and written to the instance's dictionary directly, so
neither ``__init__`` nor a property nor ``__setattr__`` runs on data from a file.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from typing import Any

import numpy as np

from regbayes._registry import Registration
from regbayes.persistence.errors import PersistenceError, Walk

__all__ = ["get_attributes", "set_attributes"]


def get_attributes(value: Any, registration: Registration, walk: Walk) -> dict[str, Any]:
    """Return the attributes to save.

    Cached properties are left out, since they are computed again, and so are those registered under ``skip``. A random
    generator becomes None: what draws from it is `fit`, and its state is not worth the trust it would need.
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
    """Fill an object made by ``object.__new__``; what is not in the file (skipped, or newer) takes its default."""
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
    """Refuse an attribute that would hide a method, that a dataclass does not have, or whose value is not allowed."""
    cls, fields = registration.cls, _fields(registration.cls)
    for name in state:
        if not name.isidentifier() or (name.startswith("__") and name.endswith("__")):
            raise PersistenceError(f"{walk.here}: {name!r:.60} is not the name of an attribute that can be saved")
        if dataclasses.is_dataclass(cls):
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
    """Return the defaults of an estimator's parameters, each of which it stores under its own name."""
    parameters = inspect.signature(cls).parameters.values() if hasattr(cls, "get_params") else ()
    return {parameter.name: parameter.default for parameter in parameters if parameter.default is not parameter.empty}


def _fields(cls: type) -> dict[str, dataclasses.Field[Any]]:
    return {field.name: field for field in dataclasses.fields(cls)} if dataclasses.is_dataclass(cls) else {}


def _default(field: dataclasses.Field[Any]) -> Any:
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def _class_attribute(cls: type, name: str) -> Any:
    """Look a name up on the class without running descriptors."""
    return next((vars(base)[name] for base in cls.__mro__ if name in vars(base)), None)
