"""Error of saving and loading, and the position in an object at which it occurred."""

from __future__ import annotations

from typing import Any

__all__ = ["PersistenceError", "Place", "Walk"]

Place = str | tuple[Any]  # one step into an object: ".attribute", or a 1-tuple of an index or key


class PersistenceError(ValueError):
    """Raised if an object cannot be saved, or a file cannot be written or loaded."""


class Walk:
    """Traversal of an object that keeps track of its position for error messages."""

    def __init__(self, start: str) -> None:
        self._start = start
        self._place: list[Place] = []

    @property
    def here(self) -> str:
        """Text of the current position, with long keys truncated."""
        steps = (step if isinstance(step, str) else f"[{step[0]!r:.60}]" for step in self._place)
        return self._start + "".join(steps)
