"""Array libraries and devices that are available for tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Place:
    """Array library, device and precision; ``place(x)`` converts NumPy arrays."""

    name: str
    make: Callable[[Any], Any]
    tol: float  # relative tolerance against the results of NumPy

    def __call__(self, values: Any) -> Any:
        values = np.ascontiguousarray(values)
        if values.dtype == np.float64 and self.tol > 1e-8:
            values = values.astype(np.float32)
        return self.make(values)


def list_places() -> list[Place]:
    """List NumPy and array-api-strict, and PyTorch and CuPy if they are installed."""
    import array_api_strict

    # This device simulates a GPU: NumPy cannot read its arrays, and they do not mix with those of other devices.
    elsewhere = partial(array_api_strict.asarray, device=array_api_strict.Device("device1"))
    places = [Place("numpy", np.asarray, 1e-12), Place("strict", elsewhere, 1e-12)]
    try:
        import torch
    except ImportError:
        torch = None
    if torch is not None:
        for device in ["cpu"] + ["cuda"] * torch.cuda.is_available():
            make = lambda x, device=device: torch.asarray(x, device=device)  # noqa: E731
            places += [Place(f"torch-{device}", make, 1e-12), Place(f"torch-{device}-single", make, 1e-5)]
    try:
        import cupy

        if cupy.cuda.runtime.getDeviceCount() > 0:
            places += [Place("cupy", cupy.asarray, 1e-12), Place("cupy-single", cupy.asarray, 1e-5)]
    except Exception:  # CuPy is not installed or finds no device
        pass
    return places
