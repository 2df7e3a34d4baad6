"""Constraint functions of one draw, traced by JAX or PyTensor, and whether they have gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from regbayes._types import Array, Flags, Floats
from regbayes.regularization.draws import Draws, as_draws
from regbayes.regularization.features import Combination, OnEvent, Picked, call_feature, columns_of, pick_columns

N_LINES, N_NODES = 12, 64  # lines between points along which gradients are integrated, and nodes on each
MAX_UNEXPLAINED = 0.15  # share of a function's difference that its gradient may leave unexplained
FAR = 10.0  # times the points to start from: jumps may be outside of these


def trace_features(features: Sequence[Any], variables: Mapping[str, Any], namespace: Any, short_name: str) -> Any:
    """Return the constraint functions of one draw, shape (m,), traced.

    Parameters
    ----------
    features : sequence
        As users write them: functions, names of variables, lists of those.
    variables : mapping
        Traced values of one draw, each with a leading axis of length one.
    namespace : module
        ``jax.numpy`` or ``pytensor.tensor``.
    short_name : str
        What users call that module: ``"jnp"`` or ``"pt"``.
    """
    places: dict[str, Any] = {}
    for name, value in variables.items():
        shape = _static_shape(value)[1:]
        places[name] = np.arange(math.prod(shape)).reshape(1, *shape)  # of scalars in their variable, to find names
    layout = as_draws(places, chains=False)
    traced = Draws(dict(variables), 1, 1, {}, {}, "dict")

    def trace(feature: Any) -> tuple[Any, tuple[str, ...]]:
        """One function as columns (1, k), and their names."""
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


def jumps(part: Any) -> bool:
    """Whether a constraint function jumps by construction: ``given(event)``, where the event begins."""
    if isinstance(part, Combination):
        return any(jumps(inner) for inner in part.parts)
    return isinstance(part, OnEvent)


def check_gradients(
    points: Floats, integrate: Callable[[Floats, Floats, Floats, Floats], tuple[Array, Array]], are_draws: bool
) -> Flags:
    """Say of each function whether its gradients explain its differences between points, shape (m,).

    An indicator has a gradient that is zero, a staircase on a slope one that is not; between points both gain more than
    their gradients add up to. Points that are no draws may lie so far apart that a smooth function looks like a
    staircase: there only gradients of exactly zero count.

    Parameters
    ----------
    points : array of shape (n, d)
        In the sampler's coordinates.
    integrate : callable
        From the two ends of lines, (k, d) each, and nodes and weights on the unit interval to the functions' gains by
        their gradients and by their values at the ends, (k, m) each.
    are_draws : bool
    """
    ends = np.linspace(0, len(points) - 1, 2 * N_LINES).astype(int)
    nodes, weights = np.polynomial.legendre.leggauss(N_NODES)
    gained, ahead = integrate(points[ends[:N_LINES]], points[ends[N_LINES:]], 0.5 * (nodes + 1), 0.5 * weights)
    known = np.isfinite(gained) & np.isfinite(ahead)
    gained, ahead = np.where(known, gained, 0.0), np.where(known, ahead, 0.0)
    smooth: Flags = ~np.any(ahead, axis=0) | np.any(gained, axis=0)
    if are_draws:
        smooth &= np.abs(gained - ahead).mean(axis=0) <= MAX_UNEXPLAINED * np.abs(ahead).mean(axis=0)
    return smooth


def count_examples(variables: Mapping[str, Array]) -> int:
    """A number of draws that is no length of the variables' own axes, (n, ...) each, so that mixing them up shows."""
    lengths = {length for values in variables.values() for length in np.shape(values)[1:]}
    return next(n for n in range(2, len(lengths) + 3) if n not in lengths)
