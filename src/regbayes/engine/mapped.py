"""Samples of a memory-mapped file, which are standardized when they are read."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regbayes._types import Floats, Integers
from regbayes.kernels.arrays import is_plain


@dataclass(frozen=True, eq=False)
class StandardRows:
    """Stands for an array of standardized samples; blocks of it are read when they are needed and not kept."""

    source: NDArray[Any]  # (N, D): as the file has them, in 32 or 64 bits
    mean: Floats  # (D,)
    scale: Floats  # (D,)
    places: Integers | None = None  # (n,): samples of the source; None: all, in their order

    def __len__(self) -> int:
        return len(self.source) if self.places is None else len(self.places)

    @property
    def shape(self) -> tuple[int, int]:
        """Number of samples and of columns."""
        return len(self), int(self.source.shape[1])

    def __getitem__(self, rows: Any) -> StandardRows:
        """Return some of the samples; nothing is read."""
        if isinstance(rows, tuple):  # all columns
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
    """Return samples as an array; those of a file are read."""
    return np.asarray(rows, dtype=np.float64) if is_plain(rows) else rows
