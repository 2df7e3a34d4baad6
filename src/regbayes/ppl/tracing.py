"""Tracing of constraint functions by JAX or PyTensor, and detection of jumps."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from regbayes._types import Array, Floats
from regbayes.regularization.draws import Draws, as_draws
from regbayes.regularization.features import Combination, OnEvent, Picked, call_feature, columns_of, pick_columns

ROUNDING = 1e-5  # relative rounding error of functions in single precision
N_PIECES = 64  # initial pieces of a line


def trace_features(features: Sequence[Any], variables: Mapping[str, Any], namespace: Any, short_name: str) -> Any:
    """Trace the constraint functions of one draw, shape (m,).

    Parameters
    ----------
    features : sequence
        The user's functions, names of variables or lists of these.
    variables : mapping
        Traced values of one draw, each with a leading axis of length one.
    namespace : module
        ``jax.numpy`` or ``pytensor.tensor``.
    short_name : str
        Alias of the module in error messages: ``"jnp"`` or ``"pt"``.
    """
    places: dict[str, Any] = {}
    for name, value in variables.items():
        shape = _static_shape(value)[1:]
        places[name] = np.arange(math.prod(shape)).reshape(1, *shape)  # indices of scalars, for their names
    layout = as_draws(places, chains=False)
    traced = Draws(dict(variables), 1, 1, {}, {}, "dict")

    def trace(feature: Any) -> tuple[Any, tuple[str, ...]]:
        """Return the columns (1, k) of a function and their names."""
        if isinstance(feature, list | tuple):
            parts = [trace(item) for item in feature]
            joined = namespace.concatenate([values for values, _ in parts], axis=1)
            return joined, tuple(name for _, names in parts for name in names)
        if isinstance(feature, Picked):
            values, names = trace(feature.features)
            chosen = pick_columns(names, feature.index)
            return values[:, chosen], tuple(names[i] for i in chosen)
        if isinstance(feature, Combination):
            parts = [trace(part) for part in feature.parts]
            return feature.combine([values for values, _ in parts]), feature.name([names for _, names in parts])
        if isinstance(feature, str):
            at, found = columns_of(layout, feature, "features")
            whole: Any = traced.variables[feature.partition("[")[0]]
            return whole.reshape((1, -1))[:, np.ravel(at)], tuple(found)
        try:
            values = call_feature(feature, traced, "features")[0].reshape((1, -1))
        except Exception as error:
            raise _untraceable(feature, short_name) from error
        if isinstance(values, np.ndarray):
            raise _untraceable(feature, short_name)
        return values, tuple(f"psi[{i}]" for i in range(_static_shape(values)[1]))

    return namespace.concatenate([trace(part)[0] for part in features], axis=1)[0]


def _static_shape(value: Any) -> tuple[int, ...]:
    return value.shape if isinstance(value.shape, tuple) else tuple(int(n) for n in value.shape.eval())


def _untraceable(feature: Any, short_name: str) -> TypeError:
    name = getattr(feature, "__name__", repr(feature))
    return TypeError(
        f"The function {name} could not be traced for its gradient. Write it with `{short_name}` in place of NumPy."
    )


def is_conditional(part: Any) -> bool:
    """Whether a constraint conditions on an event."""
    if isinstance(part, Combination):
        return any(is_conditional(inner) for inner in part.parts)
    return isinstance(part, OnEvent)


def has_jump(evaluate: Callable[[Floats], Array], column: int, first: Floats, last: Floats) -> bool:
    """Return whether a function has a jump or pole on a line between two positions.

    On each line, the piece with the largest change of the function is bisected repeatedly. The change of a smooth
    function shrinks with the piece, and that of a jump or pole does not. Rounding errors do not shrink either, but they
    are equally large in neighboring pieces.

    Parameters
    ----------
    evaluate : callable
        Maps positions (n, d) to values of functions (n, k).
    column : int
        Index of the function.
    first, last : array of shape (n_lines, d)
        End points of each line.
    """
    n_lines = len(first)

    def look(at: Floats) -> Floats:
        """Evaluate the function at fractions ``at`` (n_lines, k) of the lines."""
        points = first[:, None] + at[..., None] * (last - first)[:, None]
        return np.asarray(evaluate(points.reshape(-1, points.shape[2]))[:, column].reshape(at.shape))

    def change(one: Floats, other: Floats) -> Floats:
        difference = np.abs(one - other)
        return np.where(np.isfinite(difference), difference, 0.0)

    values = look(np.broadcast_to(np.linspace(0.0, 1.0, N_PIECES + 1), (n_lines, N_PIECES + 1)))
    lines, piece = np.arange(n_lines), np.argmax(change(values[:, 1:], values[:, :-1]), axis=1)
    low, high = piece / N_PIECES, (piece + 1) / N_PIECES
    at_low, at_high = values[lines, piece], values[lines, piece + 1]
    changes = []
    for _ in range(14):
        middle = 0.5 * (low + high)
        at_middle = look(middle[:, None])[:, 0]
        is_lower = change(at_middle, at_low) >= change(at_high, at_middle)
        low, high = np.where(is_lower, low, middle), np.where(is_lower, middle, high)
        at_low, at_high = np.where(is_lower, at_low, at_middle), np.where(is_lower, at_middle, at_high)
        changes.append(change(at_high, at_low))
    before, after = changes[-6], changes[-1]  # changes before and after five bisections, a factor of 32
    steps = (high - low)[:, None] * np.arange(N_PIECES // 8)
    nearby = [look(low[:, None] - steps), look(high[:, None] + steps)]
    around = np.max([change(side[:, 1:], side[:, :-1]).max(axis=1) for side in nearby], axis=0)
    size = np.max(np.abs(values), initial=0.0, where=np.isfinite(values))
    return bool(np.any((after > 0.5 * before) & (after > 1.5 * around) & (after > ROUNDING * size)))
