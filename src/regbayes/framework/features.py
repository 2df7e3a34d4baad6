"""Features of draws: from functions, arrays or names of variables to one matrix with a name for every column."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from regbayes._registry import persistable
from regbayes._types import Array, Floats
from regbayes.framework.draws import UNNAMED, Draws, count_not_finite, described, listed, numeric_array


@persistable
@dataclass(frozen=True)
class Features:
    """Features of every draw, and a name for each."""

    values: Floats  # (n, m), C-contiguous
    names: tuple[str, ...]  # (m,)


def evaluate_features(draws: Draws, features: Any) -> Features:
    """Evaluate features of every draw: the psi in ``E[psi]``.

    Parameters
    ----------
    draws : Draws
    features : callable, array, str, or list of those
        A callable gets all draws at once, the array or (named draws) the :class:`Variables`, and returns an array of
        shape (n,) or (n, m). An array of shape (n,) or (n, m) holds values already evaluated. A string is the name of
        a variable, all of whose scalars are taken, or of one scalar, as in ``"theta[3]"``. A list or tuple puts the
        columns of its items side by side.

    Returns
    -------
    Features
        Values of shape (n, m), float64 and C-contiguous, and m names. An array that is so already is not copied.
    """
    if isinstance(features, list | tuple):
        if not features:
            raise ValueError("features is an empty list; it may be a callable, an array, a variable's name or a list.")
        parts = [_one_feature(draws, item, f"features[{i}]", f"psi_{i}") for i, item in enumerate(features)]
        if len(parts) == 1:
            return parts[0]
        values = np.concatenate([part.values for part in parts], axis=1)
        return Features(values, tuple(itertools.chain.from_iterable(part.names for part in parts)))
    return _one_feature(draws, features, "features", "psi")


def _one_feature(draws: Draws, feature: Any, argument: str, base: str) -> Features:
    if isinstance(feature, str):
        values, names = _columns_of(draws, feature, argument)
        return Features(_as_matrix(values, argument), tuple(names))
    n = draws.size
    expected = f"an array of shape ({n},) or ({n}, m): one row for each draw, one column for each feature"
    if callable(feature):
        received = described(draws.variables) if draws.named else f"an array of shape {draws.variables[UNNAMED].shape}"
        got = f"it was called with all {n} draws at once ({received})"
        base = _own_name(feature) or base
        feature = _called(feature, draws, f"Raised by the callable passed as {argument}; {got}.")
        argument, expected = f"what {argument} returned", f"{expected}; {got}"
    values = numeric_array(feature, argument, expected)
    if values.ndim > 2 or values.shape[0] != n or values.size == 0:
        raise ValueError(f"{argument} is an array of shape {values.shape}; it may be {expected}.")
    matrix = _as_matrix(values, argument)
    m = matrix.shape[1]
    return Features(matrix, (base,) if m == 1 else tuple(f"{base}[{column}]" for column in range(m)))


def _own_name(function: Callable[[Any], Any]) -> str | None:
    name: str | None = getattr(function, "__name__", None)
    return None if name == "<lambda>" else name


def _called(function: Callable[[Any], Any], draws: Draws, note: str) -> Any:
    try:
        return function(draws.view())
    except Exception as error:
        error.add_note(note)
        raise


def _columns_of(draws: Draws, name: str, argument: str) -> tuple[Array, list[str]]:
    if name in draws.variables:
        names = draws.column_names(name)
        if not names:
            raise ValueError(
                f"{argument} is {name!r}, which has shape {draws.variables[name].shape}: no scalars in it."
            )
        return draws.variables[name].reshape(draws.size, -1), names
    variable = name.partition("[")[0]
    if variable in draws.variables and name != variable:
        names = draws.column_names(variable)
        if name in names:
            column = names.index(name)
            return draws.variables[variable].reshape(draws.size, -1)[:, column], [name]
        raise ValueError(f"{argument} is {name!r}, but the scalars in {variable!r} are {listed(names)}.")
    raise ValueError(f"{argument} is {name!r}, but the draws have the variables {listed(draws.variables)}.")


def _as_matrix(values: Array, argument: str) -> Floats:
    matrix = np.ascontiguousarray(values, dtype=np.float64).reshape(values.shape[0], -1)
    n_bad = count_not_finite(matrix)
    if n_bad:
        bad = np.flatnonzero(~np.isfinite(matrix).all(axis=1))
        raise ValueError(
            f"{argument} has {n_bad} NaN or infinite values among {matrix.size}, at {bad.size} draws "
            f"(the first is draw {bad[0]}); all features must be finite."
        )
    return matrix
