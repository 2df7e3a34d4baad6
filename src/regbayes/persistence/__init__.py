"""Save and load every fitted object of the package: one file of arrays and JSON, and no pickle.

A file is a zip archive (of uncompressed members) with one ``.npy`` member per array and ``manifest.json``, which
holds the format version, the tree of objects, and for each array its type, shape, size and SHA-256. Anything that
reads zip, JSON and npy can read it without this package.

Loading a file from a stranger runs nothing from it. Types are names in a closed table (`persistable`), an
object is made with ``object.__new__`` and its attributes are put back, and no byte of the file is unpickled,
evaluated or imported. No array is larger than the file. The checksums tell damage, not forgery: a file made by hand
may hold wrong numbers, as any file may, but it cannot run code.

The parts: `container` writes the archive, reads it and checks it; `npy` does so for one array; `tree` turns objects
into JSON and back; `array_leaves` does so for what belongs to NumPy and SciPy; `attributes` takes registered objects
apart.
"""

from __future__ import annotations

from regbayes._registry import Saveable, declare_provider, persistable
from regbayes.persistence.container import FORMAT_VERSION, load, save
from regbayes.persistence.errors import PersistenceError

__all__ = ["save", "load", "persistable", "declare_provider", "Saveable", "PersistenceError", "FORMAT_VERSION"]
