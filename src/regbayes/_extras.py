"""Packages that some parts need and the library does not: imported when used, and named with their extra if missing."""

from __future__ import annotations

import importlib
from typing import Any


def import_extra(package: str, what: str, extra: str) -> Any:
    """Return a package that ``what`` needs; an error names the extra that brings it."""
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package.partition(".")[0]:  # it is here, and lacks something itself
            raise
        raise ModuleNotFoundError(
            f"{what} needs {package}; pip install 'regbayes[{extra}]' brings it.", name=error.name
        ) from error
