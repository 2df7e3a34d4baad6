"""Backends of the shared test suite: their estimators, arrays and predictions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.base import clone

import regbayes
from array_namespaces import Place
from regbayes.kernels.arrays import to_host


@dataclass(frozen=True)
class Backend:
    """Array library, memory-mapped files or Dask, with their conversions."""

    name: str
    package: Any  # module that exports the estimators
    place: Callable[[Any], Any]  # converts a NumPy array to this backend
    tol: float  # relative tolerance against the results of NumPy
    read: Callable[[Any], Any] = to_host  # converts an array of this backend to NumPy
    kind: type = np.ndarray  # type of predictions

    def estimator(self, model: Any) -> Any:
        """Return an unfitted copy of the estimator for this backend."""
        if self.package is regbayes:
            return clone(model)
        return getattr(self.package, type(model).__name__)(**model.get_params())

    def fit(self, model: Any, X: Any, y: Any = None, **others: Any) -> Any:
        """Fit a copy of the estimator on this backend; integer targets stay integers."""
        place = getattr(self.place, "make", self.place)
        targets = () if y is None else (place(y),)
        weights = {name: self.place(values) for name, values in others.items()}
        return self.estimator(model).fit(self.place(X), *targets, **weights)


def of_place(place: Place) -> Backend:
    """Return the backend of an array library."""
    return Backend(place.name, regbayes, place, place.tol, to_host, type(place(np.zeros(1))))


def of_files(folder: Any) -> Backend:
    """Return the backend of memory-mapped files."""

    def write(values: Any) -> Any:
        path = folder / f"{len(list(folder.iterdir()))}.npy"
        np.save(path, values)
        return np.load(path, mmap_mode="r") if np.ndim(values) > 1 else values

    return Backend("memmap", regbayes, write, 1e-12)


def of_dask() -> Backend:
    """Return the Dask backend, with chunks of different sizes, one of them empty."""
    import dask.array as da

    import regbayes.dask

    def cut(values: Any) -> Any:
        n = len(values)
        return da.from_array(values, chunks=((n // 3, 0, 1, n - n // 3 - 1), -1)[: np.ndim(values)])

    return Backend("dask", regbayes.dask, cut, 1e-12, lambda values: values.compute(), da.Array)
