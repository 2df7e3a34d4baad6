"""The array types that kernels speak, and the small records they return."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
"""Double precision: parameters, multipliers, sums."""

Reals = NDArray[np.floating[Any]]
"""Single or double precision: per-row data. Arithmetic is in double precision whatever the storage."""

Indices = NDArray[np.int64]
Flags = NDArray[np.bool_]


class SweepGradient(NamedTuple):
    """What the reverse sweep returns beside the per-row gradient it writes; sums run over rows."""

    coupling: Floats
    """(k, k): gradient of the coupling matrix; its diagonal is zero."""
    theta_sum: Floats
    """(k,): the per-row gradient of theta, summed over rows."""
    start: Floats
    """(1, k): gradient of a start shared by all rows; (n, k): of a start per row."""
