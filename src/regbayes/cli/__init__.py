"""The command line: the commands, and the functions that do their work.

Nothing heavy is imported before a command runs, so that ``regbayes --help`` starts quickly. Model files can be read
without the packages of the ``cli`` extra: what imports them is imported by commands alone.
"""

from __future__ import annotations

import importlib.util
import sys
from typing import Literal

__all__ = ["Format", "Kind", "main"]

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
    from regbayes.cli import app

    app.main(arguments)
