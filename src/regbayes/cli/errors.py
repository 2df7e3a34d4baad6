"""Errors of the command line and their exit codes."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from difflib import get_close_matches
from enum import IntEnum
from typing import Any


class ExitCode(IntEnum):
    """Exit codes; docs/command_line.md explains them."""

    OK = 0
    BUG = 1
    USAGE = 2
    DATA = 3
    MODEL = 4
    MISSING = 5
    INTERRUPTED = 130


class UserError(Exception):
    """An error that the user can correct; shown without a traceback."""

    exit_code = ExitCode.USAGE


class BadDataError(UserError, ValueError):
    """Data that cannot be read or do not match the model."""

    exit_code = ExitCode.DATA


class BadModelError(UserError):
    """A model file that cannot be read, trusted or used by the command."""

    exit_code = ExitCode.MODEL


class MissingPieceError(UserError):
    """An optional package that is not installed."""

    exit_code = ExitCode.MISSING


class StoppedError(UserError):
    """Ctrl-C before there was a result to save."""

    exit_code = ExitCode.INTERRUPTED


def listed(names: Sequence[str], most: int = 8) -> str:
    """Join names for a message, abbreviating long lists."""
    most += len(names) == most + 1  # "and 1 more" would not be shorter
    shown = ", ".join(repr(str(name)) for name in names[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown


def not_among(name: str, names: Sequence[str]) -> str:
    """Return a message about an unknown name with the closest match and the known names."""
    folded = {str(other).strip().casefold(): str(other) for other in reversed(names)}
    found = get_close_matches(name.strip().casefold(), folded, n=1, cutoff=0.75)
    meant = f". Did you mean {folded[found[0]]!r}?" if found else ""
    return f"it has {listed(names)}{meant}"


def plural(number: int, noun: str) -> str:
    """Return a noun, in the plural unless the number is 1."""
    return noun if number == 1 else f"{noun}{'es' if noun.endswith('s') else 's'}"


def counted(number: int, noun: str) -> str:
    """Return a number and its noun."""
    return f"{number} {plural(number, noun)}"


def need(module: str, what: str) -> Any:
    """Import an optional package; the error explains how to install it."""
    try:
        return importlib.import_module(module)
    except ImportError:
        package = module.partition(".")[0]
        raise MissingPieceError(f"{what} needs {package}: pip install {package}") from None
