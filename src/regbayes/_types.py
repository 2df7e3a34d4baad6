"""The arrays that functions of the package take and return, by what they hold, and a check of their shapes."""

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


def check_arrays(owner: Any, **shapes: str) -> dict[str, int]:
    """Raise ValueError unless attributes are arrays of finite numbers whose shapes fit each other.

    Parameters
    ----------
    owner : object
    **shapes : str
        For each attribute a letter for each axis, such as ``table="VK", totals="K"``. Axes of one letter have the same
        length.

    Returns
    -------
    dict
        The length of the axes of each letter.
    """
    sizes: dict[str, int] = {}
    for name, axes in shapes.items():
        array = getattr(owner, name)
        if not isinstance(array, np.ndarray) or array.dtype.kind not in "biuf":
            raise ValueError(f"{name} must be an array of numbers; got {type(array).__name__}")
        expected = tuple(sizes.get(axis, length) for axis, length in zip(axes, array.shape, strict=False))
        if array.ndim != len(axes) or array.shape != expected:
            raise ValueError(f"{name} has shape {array.shape}, which does not fit the other arrays")
        sizes.update(zip(axes, array.shape, strict=True))
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise ValueError(f"{name} must be finite")
    return sizes
