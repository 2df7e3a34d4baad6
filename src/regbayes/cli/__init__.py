"""Command-line interface of regbayes.

Heavy modules are imported inside commands, so that ``regbayes --help`` starts quickly. Only the commands import
packages of the ``cli`` extra, so model files can be read without it.
"""

from __future__ import annotations

import importlib.util
import sys
from typing import Literal

__all__ = ["Format", "Kind", "main"]

Format = Literal["csv", "parquet", "npz", "npy", "libsvm"]  # file format of a table
Kind = Literal["classifier", "multilabel", "regressor"]  # kind of model for the target


def main(arguments: list[str] | None = None) -> None:
    """Run the ``regbayes`` command, or explain how to install missing packages."""
    from regbayes.cli.errors import ExitCode

    missing = [name for name in ("pandas", "rich", "typer") if importlib.util.find_spec(name) is None]
    if missing:
        print(
            f"error: the regbayes command needs {', '.join(missing)}: pip install {' '.join(missing)}",
            file=sys.stderr,
        )
        sys.exit(ExitCode.MISSING)
    from regbayes.cli import app

    app.main(arguments)
