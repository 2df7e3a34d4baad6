"""The one error of saving and loading."""

from __future__ import annotations

__all__ = ["PersistenceError", "malformed"]


class PersistenceError(ValueError):
    """An object that cannot be saved, or a file that cannot be written, read or trusted."""


def malformed(path: str) -> PersistenceError:
    """Return the error for a manifest that no version of this package writes."""
    return PersistenceError(f"the manifest is malformed at {path}")
