"""The command line: one module per command, and the plain functions that do the work beside them.

Nothing heavy is imported before a command runs, so that ``regbayes --help`` answers at once. Model files can be read
without the packages of the ``cli`` extra: what imports them is imported by commands alone.
"""

from __future__ import annotations

import gc
import importlib.util
import sys
from typing import Literal

__all__ = ["Format", "Kind", "main", "resume_collection"]

EXTRA = ("pandas", "rich", "typer")

Format = Literal["csv", "parquet", "npz", "npy", "libsvm"]  # of a table's file
Kind = Literal["classifier", "multilabel", "regressor"]  # what the target asks for


def main(arguments: list[str] | None = None) -> None:
    """Run the ``regbayes`` command; where the packages of the ``cli`` extra lack, say how to get them."""
    from regbayes.cli.errors import ExitCode

    missing = [name for name in EXTRA if importlib.util.find_spec(name) is None]
    if missing:
        print(
            f"error: the regbayes command needs {', '.join(missing)}: pip install 'regbayes[cli]'",
            file=sys.stderr,
        )
        sys.exit(ExitCode.MISSING)
    gc.disable()  # a fifth of the time that imports take is spent on looking for garbage, and there is none
    from regbayes.cli import app

    app.main(arguments)


def resume_collection() -> None:
    """Look for garbage again, now that what a command needs is imported; what is there by now stays out of it."""
    if not gc.isenabled():
        gc.freeze()
        gc.enable()
