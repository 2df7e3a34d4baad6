"""Columns of a linear head: centered features, optional inputs, and a constant.

Nothing is copied: scores and sums are products with the features and inputs on their device. All array libraries use
one code path, and arrays of the size of the weights are returned in host memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from regbayes._types import Floats
from regbayes.kernels import arrays
from regbayes.kernels.arrays import DeviceArray, namespace_of, to_device


@dataclass(frozen=True)
class Inputs:
    """Additional input columns of a head: centered samples times a factor."""

    X: Any  # (n, D): array of any library, or samples of a file
    mean: Floats | None = None  # (D,)
    factor: float = 1.0

    @property
    def n_columns(self) -> int:
        """Number of input columns."""
        return int(self.X.shape[1])

    def __getitem__(self, rows: Any) -> Inputs:
        return replace(self, X=_take(self.X, rows))

    def look(self) -> Any:
        """Return the samples as an array, in double precision if NumPy's."""
        return _floats(self.X)


@dataclass(frozen=True)
class Design:
    """Matrix ``[features - centre, factor (inputs - mean), 1]`` times a scale."""

    features: DeviceArray  # (n, K)
    centre: Floats | None = None  # (K,)
    inputs: Inputs | None = None
    fit_intercept: bool = False
    scale: float = 1.0

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of samples and columns."""
        n_inputs = 0 if self.inputs is None else self.inputs.n_columns
        return int(self.features.shape[0]), int(self.features.shape[1]) + n_inputs + int(self.fit_intercept)

    def __getitem__(self, rows: Any) -> Design:
        """Select samples by a slice or by indices."""
        inputs = None if self.inputs is None else self.inputs[rows]
        return replace(self, features=_take(self.features, rows), inputs=inputs)

    def scores(self, weights: Floats) -> DeviceArray:
        """Multiply the columns by weights (outputs, d), shape (outputs, n)."""
        features, scaled = _floats(self.features), self.scale * weights
        K = features.shape[1]
        constant = scaled[:, -1].copy() if self.fit_intercept else np.zeros(len(scaled))
        if self.centre is not None:
            constant -= scaled[:, :K] @ self.centre
        found = to_device(scaled[:, :K], features) @ features.T
        if self.inputs is not None:
            own = self.inputs.factor * scaled[:, K : K + self.inputs.n_columns]
            if self.inputs.mean is not None:
                constant -= own @ self.inputs.mean
            found += to_device(own, features) @ self.inputs.look().T
        if constant.any():
            found += to_device(constant[:, None], features)
        return found

    def combine(self, coefficients: DeviceArray) -> Floats:
        """Sum the samples with coefficients (outputs, n), shape (outputs, d), in host memory."""
        features, inputs = _floats(self.features), self.inputs
        parts = [arrays.sum_of(coefficients, axis=1), arrays.multiply_rows(coefficients, features.T)]
        if inputs is not None:
            parts.append(arrays.multiply_rows(coefficients, inputs.look().T))
        totals, sums, *rest = arrays.gather(*parts)
        columns = [sums if self.centre is None else sums - totals[:, None] * self.centre]
        if inputs is not None:
            about = 0.0 if inputs.mean is None else totals[:, None] * inputs.mean
            columns.append(inputs.factor * (rest[0] - about))
        if self.fit_intercept:
            columns.append(totals[:, None])
        found = columns[0] if len(columns) == 1 else np.hstack(columns)
        return found if self.scale == 1.0 else self.scale * found

    def array(self) -> DeviceArray:
        """Return the columns as an array of the features' library, (n, d)."""
        features = _floats(self.features)
        if self.shape[1] == features.shape[1] and self.centre is None and self.scale == 1.0:
            return features
        xp = namespace_of(features)
        parts = [features if self.centre is None else features - to_device(self.centre, features)]
        if self.inputs is not None:
            X = self.inputs.look()
            about = X if self.inputs.mean is None else X - to_device(self.inputs.mean, features)
            parts.append(about * float(self.inputs.factor))
        if self.fit_intercept:
            parts.append(xp.ones((features.shape[0], 1), dtype=features.dtype, device=features.device))
        found = arrays.join(parts, axis=1)
        return found if self.scale == 1.0 else self.scale * found


def stack_designs(designs: Sequence[Design]) -> DeviceArray:
    """Stack the columns of several blocks in one array (n, d), without a second copy in host memory."""
    if not arrays.is_plain(designs[0].features):
        return arrays.join([design.array() for design in designs])
    lengths = [design.shape[0] for design in designs]
    found, end = np.empty((sum(lengths), designs[0].shape[1])), 0
    for design, n_rows in zip(designs, lengths, strict=True):
        end += n_rows
        found[end - n_rows : end] = design.array()
    return found


def _take(values: Any, rows: Any) -> Any:
    """Select samples by a slice or by host indices."""
    if isinstance(rows, slice):
        if rows == slice(None):
            return values
        return values[rows] if arrays.is_plain(values) else values[rows, :]
    return values[rows] if arrays.is_plain(values) else arrays.take_rows(values, rows)


def _floats(values: Any) -> Any:
    """Return an array, in double precision if it is NumPy's or from a file."""
    return np.asarray(values, dtype=np.float64) if arrays.is_plain(values) else values
