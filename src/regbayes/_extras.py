"""Optional packages are imported when they are used; the error about a missing one says how to install it."""

from __future__ import annotations

import importlib
from typing import Any


def import_extra(package: str, what: str) -> Any:
    """Return an optional package that ``what`` needs; an error says how to install it."""
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package.partition(".")[0]:  # it is here, and lacks something itself
            raise
        raise ModuleNotFoundError(
            f"{what} needs {package}: pip install {package.partition('.')[0]}", name=error.name
        ) from error
