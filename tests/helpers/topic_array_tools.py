"""Array libraries and conversions for the tests of topic models on devices."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import pytest

from regbayes.kernels.arrays import to_host
from regbayes.kernels.meanfield import WordCounts

HAS_TORCH = importlib.util.find_spec("torch") is not None
LIBRARIES = [
    "numpy",
    pytest.param("torch", marks=pytest.mark.skipif(not HAS_TORCH, reason="needs PyTorch")),
    pytest.param("torch:cuda", marks=pytest.mark.gpu),
    pytest.param("cupy", marks=pytest.mark.gpu),
]


def place(array: Any, library: str) -> Any:
    """Convert a NumPy array to a library."""
    if library == "numpy":
        return array
    if library == "cupy":
        cupy = pytest.importorskip("cupy")
        return cupy.asarray(array)
    import torch

    return torch.asarray(array, device="cuda" if library.endswith("cuda") else "cpu")


def as_documents(counts: WordCounts, library: str) -> WordCounts:
    return WordCounts(*(place(array, library) for array in counts))


def to_numpy(array: Any) -> Any:
    return np.asarray(to_host(array))
