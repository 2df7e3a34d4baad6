"""What the generative part keeps of the rows: their number and their second moments, and nothing else.

q(w) is available in closed form and linear in x, so every sum over rows in the objective, in its gradient and in the
updates is a function of ``X^T X`` and N. The cost of an iteration does not depend on N.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from operator import add

import numpy as np

from regbayes._types import Floats
from regbayes.kernels.chunks import map_chunks


@dataclass(frozen=True)
class RowStats:
    """Statistics that add up: those of two sets of rows are the sum of theirs."""

    gram: Floats  # (D, D): X^T X
    n_rows: float  # N, or the sum of the rows' weights

    def __add__(self, other: RowStats) -> RowStats:
        return RowStats(self.gram + other.gram, self.n_rows + other.n_rows)

    def scaled(self, factor: float) -> RowStats:
        """Count every row ``factor`` times."""
        return RowStats(factor * self.gram, factor * self.n_rows)

    @property
    def squared_norm(self) -> float:
        """The summed squares of all entries of X."""
        return float(np.trace(self.gram))

    @property
    def mean_square(self) -> float:
        """The mean of the squared entries of X: the unit of variances. 1 where all entries are zero."""
        return self.squared_norm / (self.n_rows * len(self.gram)) or 1.0


def local_step(rows: Floats, row_weights: Floats | None = None) -> RowStats:
    """Return the statistics of some rows. They do not depend on any parameter."""
    if row_weights is None:
        return RowStats(rows.T @ rows, float(len(rows)))
    return RowStats(rows.T @ (row_weights[:, None] * rows), float(row_weights.sum()))


def collect(X: Floats, row_weights: Floats | None = None, n_threads: int = 1) -> RowStats:
    """Sum the statistics of all rows, chunk by chunk and in order: the same for any number of threads."""

    def work(_chunk: int, first: int, last: int) -> RowStats:
        return local_step(X[first:last], None if row_weights is None else row_weights[first:last])

    return reduce(add, map_chunks(work, len(X), n_threads))
