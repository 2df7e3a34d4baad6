"""Table of the classes that may be saved and loaded, by name.

Files may be untrusted, so a name in a file is looked up here and never imported or evaluated. Classes are added by
`persistable`. Names are independent of modules, so that moving a class does not make old files unreadable. This module
imports only the standard library, so that every layer can use it.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Any

__all__ = ["Registration", "Saveable", "class_named", "declare_provider", "persistable", "registration_of"]

Only = Mapping[str, tuple[str | None, ...]]
Replace = Mapping[str, Callable[[Any], Any]]
_NOTHING: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True)
class Registration:
    """How one class is written; the fields are the parameters of `persistable`."""

    cls: type
    name: str
    skip: frozenset[str]
    only: Only
    replace: Replace
    check: Callable[[Any], None] | None


_BY_NAME: dict[str, Registration] = {}
_BY_CLASS: dict[type, Registration] = {}
_PROVIDERS: dict[str, tuple[str, ...]] = {}  # modules, and how names of classes begin that are theirs


def persistable(
    cls: type | None = None,
    /,
    *,
    name: str | None = None,
    aliases: Iterable[str] = (),
    skip: Iterable[str] = (),
    only: Only = _NOTHING,
    replace: Replace = _NOTHING,
    check: Callable[[Any], None] | None = None,
) -> Any:
    """Allow a class in saved files; a decorator, or a call for a class of another package.

    Enums are saved by member name, dataclasses by their fields, and other classes by their attributes (``vars``).
    Loading sets the attributes of ``object.__new__(cls)`` without a call of ``__init__``, ``__post_init__`` or
    ``__setstate__``. Register each subclass, too. On a dataclass this is the outermost decorator.

    Parameters
    ----------
    cls : type
        The class, when not used as ``@persistable(...)``.
    name : str, optional
        The name in files, which must never change. The default is the top package and the qualified class name,
        such as ``"regbayes.Finite"``, without the modules between.
    aliases : iterable of str
        Names that older files have for this class.
    skip : iterable of str
        Attributes that are not saved (caches, callbacks). In a dataclass they need a default.
    only : mapping from str to tuple
        The values that an attribute may have in a file, where others would be code or work like it.
    replace : mapping from str to callable
        Functions of attributes whose results are saved in their place.
    check : callable, optional
        Called with a loaded object once its attributes are set. It raises an exception if they contradict each other,
        so that compiled code never reads beyond an array. The default is the method ``_check_loaded`` of the class.

    Raises
    ------
    TypeError
        If instances cannot be rebuilt from their attributes: abstract classes, classes with slots, and subclasses of
        built-in types such as ``tuple``, ``dict`` or ``ndarray``, whose content is not in attributes.
    ValueError
        If another class has the name.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> from regbayes import load
    >>> from regbayes.persistence import persistable, save
    >>> @persistable(name="shop.Dose")
    ... @dataclass
    ... class Dose:
    ...     mg: float
    >>> save(Dose(2.5), "dose.regbayes")
    >>> load("dose.regbayes").mg
    2.5
    """
    if cls is None:
        return lambda decorated: persistable(
            decorated, name=name, aliases=aliases, skip=skip, only=only, replace=replace, check=check
        )
    _check_rebuildable(cls)
    top_package = cls.__module__.partition(".")[0]
    check = check or getattr(cls, "_check_loaded", None)
    entry = Registration(cls, name or f"{top_package}.{cls.__qualname__}", frozenset(skip), only, replace, check)
    names = (entry.name, *aliases)
    for known in names:
        holder = _BY_NAME[known].cls if known in _BY_NAME else cls
        # A class statement may run again, by a reload or in a notebook.
        if (holder.__module__, holder.__qualname__) != (cls.__module__, cls.__qualname__):
            raise ValueError(
                f"the name {known!r} is taken by {holder.__module__}.{holder.__qualname__}; "
                f"give {cls.__module__}.{cls.__qualname__} another with persistable(name=...)"
            )
    _BY_NAME.update(dict.fromkeys(names, entry))
    _BY_CLASS[cls] = entry
    return cls


def _check_rebuildable(cls: Any) -> None:
    """Raise for classes whose attributes (``vars``) are not the whole object."""
    if issubclass(cls, Enum):
        return
    try:
        object.__new__(cls)
    except TypeError as error:
        raise TypeError(f"{cls.__qualname__} cannot be rebuilt from its attributes: {error}") from None
    if any(vars(base).get("__slots__") for base in cls.__mro__):
        raise TypeError(f"{cls.__qualname__} cannot be rebuilt from its attributes: it has slots")


def declare_provider(module: str, names: Iterable[str] = ()) -> None:
    """Name a module that registers classes when it is imported.

    It is imported when a class or the name of one is not registered yet, so that a file can be loaded before anything
    else was imported, while ``import regbayes`` stays light. The names come from code, never from a file.

    Parameters
    ----------
    module : str
    names : iterable of str
        Names in files, or beginnings of them that end in a dot, for which this module is imported before others.

    Examples
    --------
    >>> from regbayes.persistence import declare_provider
    >>> declare_provider("shop.doses", ["shop."])  # doctest: +SKIP
    """
    _PROVIDERS.setdefault(module, tuple(names))


def class_named(name: str) -> Registration | None:
    """Return the registration under a name found in a file, or None."""
    failure = _import_until(_BY_NAME, name)
    if failure is not None and name not in _BY_NAME:  # perhaps it is in the module that needs an extra
        raise failure
    return _BY_NAME.get(name)


def registration_of(cls: type) -> Registration | None:
    """Return the registration of exactly this class (not of a base class), or None."""
    _import_until(_BY_CLASS, cls)
    return _BY_CLASS.get(cls)


def _import_until(table: Mapping[Any, Registration], key: Any) -> ImportError | None:
    """Import providers until the table has the key, those of the name first; return the first failure."""

    def is_other(module: str) -> bool:
        return not any(key == name or (name[-1] == "." and str(key).startswith(name)) for name in _PROVIDERS[module])

    failure = None
    for module in sorted(_PROVIDERS, key=is_other):
        if key in table:
            break
        try:
            importlib.import_module(module)
        except ImportError as error:
            failure = failure or error
    return failure


class Saveable:
    """Gives a class ``save(path)``; `regbayes.load` reads the file back.

    Examples
    --------
    >>> from regbayes import load
    >>> from regbayes.persistence import Saveable, persistable
    >>> @persistable(name="shop.Model")
    ... class Model(Saveable): ...
    >>> Model().save("shop.regbayes")
    >>> type(load("shop.regbayes")).__name__
    'Model'
    """

    __slots__ = ()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Save to one file, without pickle; `regbayes.load` reads it back.

        Parameters
        ----------
        path : str or path-like
            The file to write. An existing file is replaced only once the new one is complete.

        Raises
        ------
        regbayes.persistence.PersistenceError
            If something in the object cannot be saved (the message names the attribute) or the file cannot be
            written.

        Notes
        -----
        A random generator in an attribute, such as ``random_state``, is saved as None; predictions do not use it.
        """
        # Persistence stands above every layer that uses this class, so it is imported when it is needed.
        from regbayes.persistence import save

        save(self, path)
