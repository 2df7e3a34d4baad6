"""Save fitted objects to one file of arrays and JSON, without pickle.

A file consists of a line of text, a JSON header and the bytes of the arrays. The line contains the format version and
the length and SHA-256 of the header. The header contains the tree of objects, and the dtype, shape and SHA-256 of each
array. The format is simple enough to read without this package.

Loading an untrusted file cannot run code from it. Types must be registered (`persistable`), and objects are created by
``object.__new__`` and assignment of their attributes. Nothing in the file is unpickled, evaluated or imported. Arrays
cannot exceed the size of the file, and the number of values in the header is bounded. Checksums detect damage but not
forgery: a crafted file can contain wrong numbers.

The module `files` reads, writes and checks files, `arrays` encodes arrays, and `tree` maps objects to and from JSON.
"""

from __future__ import annotations

from regbayes._registry import Saveable, declare_provider, persistable
from regbayes.persistence.errors import PersistenceError
from regbayes.persistence.files import FORMAT_VERSION, load, save

__all__ = ["save", "load", "persistable", "declare_provider", "Saveable", "PersistenceError", "FORMAT_VERSION"]
