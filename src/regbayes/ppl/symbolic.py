"""Features of a draw that is not there yet: the functions of named draws that users write, traced inside a model.

The same function that gets arrays of many draws gets the variables of one draw here, as values that JAX or PyTensor
trace. Functions written with NumPy work too: NumPy hands its functions over to `Traced`, which looks them up by name.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from regbayes.regularization.draws import Draws, as_draws
from regbayes.regularization.features import OnEvent, Picked, call_feature, columns_of, pick_columns

ALIASES = {
    "absolute": ("abs",),
    "true_divide": ("divide", "true_div"),
    "divide": ("true_div",),
    "power": ("pow",),
    "square": ("sqr",),
    "negative": ("neg",),
    "concatenate": ("concat",),
    "expit": ("sigmoid",),
}
BINARY = ("add", "sub", "mul", "truediv", "pow", "matmul", "mod", "floordiv")
COMPARED = ("lt", "le", "gt", "ge", "eq", "ne", "and_", "or_")


class Traced:
    """A traced value under NumPy's functions: they are looked up by name in the namespaces of the tracer."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, value: Any, namespaces: Sequence[Any]) -> None:
        self._value, self._namespaces = value, namespaces

    def __jax_array__(self) -> Any:
        return self._value

    def _find(self, name: str) -> Callable[..., Any]:
        for known in (name, *ALIASES.get(name, ())):
            for space in self._namespaces:
                if hasattr(space, known):
                    return getattr(space, known)
        if name == "column_stack":
            return self._column_stack
        raise TypeError(f"the function {name} cannot be traced; write the feature with the model's own library")

    def _column_stack(self, arrays: Sequence[Any]) -> Any:
        columns = [array[:, None] if array.ndim == 1 else array for array in arrays]
        return self._namespaces[0].concatenate(columns, axis=1)

    def _wrap(self, value: Any) -> Any:
        return Traced(value, self._namespaces)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        if method != "__call__":
            raise TypeError(f"{ufunc.__name__}.{method} cannot be traced")
        return self._wrap(self._find(ufunc.__name__)(*map(unwrapped, inputs), **options))

    def __array_function__(self, function: Any, types: Any, inputs: Any, options: Any) -> Any:
        found = self._find(function.__name__)
        return self._wrap(found(*unwrapped(inputs), **{k: unwrapped(v) for k, v in options.items()}))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        found = getattr(self._value, name)
        if name in ("shape", "ndim", "dtype", "size"):
            return found
        if callable(found):
            return lambda *a, **k: self._wrap(found(*unwrapped(a), **{n: unwrapped(v) for n, v in k.items()}))
        return self._wrap(found)

    def __getitem__(self, index: Any) -> Any:
        return self._wrap(self._value[unwrapped(index)])

    def __len__(self) -> int:
        return len(self._value)

    def __neg__(self) -> Any:
        return self._wrap(-self._value)

    def __abs__(self) -> Any:
        return self._wrap(abs(self._value))


def _operators() -> None:
    """Give `Traced` the operators of what it holds."""

    def forward(name: str) -> Any:
        apply = getattr(operator, name)
        return lambda self, other: self._wrap(apply(self._value, unwrapped(other)))

    def backward(name: str) -> Any:
        apply = getattr(operator, name)
        return lambda self, other: self._wrap(apply(unwrapped(other), self._value))

    for name in (*BINARY, *COMPARED):
        setattr(Traced, f"__{name.strip('_')}__", forward(name))
    for name in BINARY:
        setattr(Traced, f"__r{name}__", backward(name))


_operators()


def unwrapped(value: Any) -> Any:
    """Return what a `Traced` holds, also inside lists and tuples."""
    if isinstance(value, Traced):
        return value._value
    if isinstance(value, list | tuple):
        return type(value)(unwrapped(item) for item in value)
    return value


def trace_features(features: Sequence[Any], variables: Mapping[str, Any], namespaces: Sequence[Any]) -> Any:
    """Return the features of one draw, shape (m,), traced.

    Parameters
    ----------
    features : sequence
        As users write them: functions, names of variables, lists of those.
    variables : mapping
        Traced values of one draw, each with a leading axis of length one.
    namespaces : sequence of modules
        Where functions are found by name: ``jax.numpy`` and such; the first has ``concatenate`` and ``reshape``.
    """
    places: dict[str, Any] = {}
    for name, value in variables.items():
        shape = value.shape[1:] if isinstance(value.shape, tuple) else tuple(int(n) for n in value.shape[1:].eval())
        places[name] = np.arange(math.prod(shape)).reshape(1, *shape)  # of scalars in their variable, to read names by
    under_numpy: dict[str, Any] = {name: Traced(value, namespaces) for name, value in variables.items()}
    named = _Named(
        as_draws(places, chains=False), _as_one_draw(dict(variables)), _as_one_draw(under_numpy), namespaces[0]
    )
    return namespaces[0].concatenate([_trace(part, named)[0] for part in features], axis=1)[0]


@dataclass(frozen=True)
class _Named:
    """The variables of one draw: where their scalars are, as they are traced, and as NumPy's functions take them."""

    places: Draws
    traced: Draws
    under_numpy: Draws
    namespace: Any


def _as_one_draw(variables: dict[str, Any]) -> Draws:
    return Draws(variables, 1, 1, {}, {}, "dict")


def _trace(feature: Any, named: _Named) -> tuple[Any, tuple[str, ...]]:
    """One feature as columns (1, k), and their names."""
    if isinstance(feature, list | tuple):
        parts = [_trace(item, named) for item in feature]
        joined = named.namespace.concatenate([values for values, _ in parts], axis=1)
        return joined, tuple(name for _, names in parts for name in names)
    if isinstance(feature, Picked):
        values, names = _trace(feature.features, named)
        chosen = pick_columns(names, feature.index)
        return values[:, chosen], tuple(names[i] for i in chosen)
    if isinstance(feature, OnEvent):
        raise TypeError("given(event) jumps where the event begins, and has no gradient there")
    if isinstance(feature, str):
        at, found = columns_of(named.places, feature, "features")
        whole: Any = named.traced.variables[feature.partition("[")[0]]
        return whole.reshape((1, -1))[:, np.ravel(at)], tuple(found)
    # A function written with NumPy does not take traced values, or makes an array of objects of them.
    result: Any = None
    with suppress(Exception):
        result = unwrapped(call_feature(feature, named.traced, "features")[0])
    if result is None or isinstance(result, np.ndarray):
        result = unwrapped(call_feature(feature, named.under_numpy, "features")[0])
    values = result.reshape((1, -1))
    width = values.shape[1] if isinstance(values.shape, tuple) else values.shape[1].eval()
    return values, tuple(f"psi[{i}]" for i in range(int(width)))
