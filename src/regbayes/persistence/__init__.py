"""Save and load every fitted object of the package: one file of arrays and JSON, and no pickle.

A file is a line of text, a JSON header and the bytes of the arrays, one after the other. The line has the format's
version, and the length and SHA-256 of the header; the header has the tree of objects, and for each array its type,
shape and SHA-256. A few lines of any language read it without this package.

Loading an untrusted file runs no code of it. Types are names in a closed table (`persistable`), an
object is made with ``object.__new__`` and its attributes are put back, and no byte of the file is unpickled,
evaluated or imported. Arrays are no larger than the file, and the header holds a bounded number of values. The
checksums tell damage, not forgery: a file made by hand may hold wrong numbers, as any file may, but it cannot run code.

The parts: `files` writes the file, reads it and checks it; `arrays` has the allowed arrays; `tree` turns objects into
JSON and back.
"""

from __future__ import annotations

from regbayes._registry import Saveable, declare_provider, persistable
from regbayes.persistence.errors import PersistenceError
from regbayes.persistence.files import FORMAT_VERSION, load, save

__all__ = ["save", "load", "persistable", "declare_provider", "Saveable", "PersistenceError", "FORMAT_VERSION"]
