"""Samples of a memory-mapped file, standardized when they are read."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regbayes._types import Floats, Integers
from regbayes.kernels.arrays import is_plain


@dataclass(frozen=True, eq=False)
class StandardRows:
    """Array-like of standardized samples whose blocks are read on demand."""

    source: NDArray[Any]  # (N, D): values in the file, in 32 or 64 bits
    mean: Floats  # (D,)
    scale: Floats  # (D,)
    places: Integers | None = None  # (n,): indices of samples of the source; None: all in order

    def __len__(self) -> int:
        return len(self.source) if self.places is None else len(self.places)

    @property
    def shape(self) -> tuple[int, int]:
        """Number of samples and of columns."""
        return len(self), int(self.source.shape[1])

    def __getitem__(self, rows: Any) -> StandardRows:
        """Select samples without reading them."""
        if isinstance(rows, tuple):  # the column index selects all columns
            rows = rows[0]
        if self.places is not None:
            return replace(self, places=self.places[rows])
        if isinstance(rows, slice):
            return replace(self, source=self.source[rows])
        return replace(self, places=np.arange(len(self))[rows])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Floats:
        """Read the samples."""
        found = np.array(self.source if self.places is None else self.source[self.places], dtype=np.float64, order="C")
        found -= self.mean
        found /= self.scale
        return found


def as_array(rows: Any) -> Any:
    """Return samples as an array, reading those of a file."""
    return np.asarray(rows, dtype=np.float64) if is_plain(rows) else rows
