"""The arrays that functions of the package take and return, by what they hold."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
"""Of any kind."""

Floats = NDArray[np.float64]
"""Double precision: parameters, multipliers, sums."""

Singles = NDArray[np.float32]
"""Single precision: tables as large as a corpus."""

Reals = NDArray[np.floating[Any]]
"""Single or double precision: data by row. Kernels compute in double precision whatever the storage."""

Integers = NDArray[np.int64]
"""Whole numbers: counts, labels."""

Indices = NDArray[np.int64]
"""Places in another array."""

Flags = NDArray[np.bool_]
