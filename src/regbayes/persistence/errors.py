"""The one error of saving and loading, and where in an object it happened."""

from __future__ import annotations

from typing import Any

__all__ = ["PersistenceError", "Place", "Walk"]

Place = str | tuple[Any]  # one step down: ".attribute", or an index or a key in a tuple


class PersistenceError(ValueError):
    """An object that cannot be saved, or a file that cannot be written, read or trusted."""


class Walk:
    """A walk through an object, which knows where it is."""

    def __init__(self, start: str) -> None:
        self._start = start
        self._place: list[Place] = []

    @property
    def here(self) -> str:
        """The place in words. It is asked for by messages alone: keys in a file may be very long."""
        steps = (step if isinstance(step, str) else f"[{step[0]!r:.60}]" for step in self._place)
        return self._start + "".join(steps)
