"""Rows of a mapped file, standardised when they are looked at."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regbayes._types import Floats, Integers
from regbayes.engine.executor import row_blocks


@dataclass(frozen=True, eq=False)
class StandardRows:
    """Stands where an array of standardised rows would: parts of it are made when they are used, and forgotten.

    As an array all rows would be in memory, and the file would have been mapped for nothing.
    """

    source: NDArray[Any]  # (N, D): as the file has them, in 32 or 64 bits
    mean: Floats  # (D,)
    scale: Floats  # (D,)
    places: Integers | None = None  # (n,): of the rows that are meant; None: all, in their order

    def __len__(self) -> int:
        return len(self.source) if self.places is None else len(self.places)

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return len(self), int(self.source.shape[1])

    def __getitem__(self, rows: Any) -> StandardRows:
        """Return some of the rows; nothing is read."""
        if self.places is not None:
            return replace(self, places=self.places[rows])
        if isinstance(rows, slice):
            return replace(self, source=self.source[rows])
        return replace(self, places=np.arange(len(self))[rows])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Floats:
        """Read the rows."""
        found = np.array(self.source if self.places is None else self.source[self.places], dtype=np.float64, order="C")
        found -= self.mean
        found /= self.scale
        return found

    @property
    def T(self) -> Floats:  # noqa: N802
        """The rows as columns."""
        return np.asarray(self).T

    def __matmul__(self, weights: Floats) -> Floats:
        found = np.empty((len(self), *weights.shape[1:]))
        for rows in row_blocks(len(self)):
            found[rows] = np.asarray(self[rows]) @ weights
        return found
