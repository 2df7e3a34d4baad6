"""Evaluate features of draws, given as functions, arrays or names of variables."""

from __future__ import annotations

import inspect
import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from regbayes._registry import persistable
from regbayes._types import Array, Floats
from regbayes.kernels import arrays
from regbayes.regularization.draws import (
    SAMPLE,
    UNNAMED,
    Draws,
    count_not_finite,
    described,
    is_data_array,
    listed,
    numeric_array,
)


@persistable
@dataclass(frozen=True)
class Features:
    """Features of every draw, with names."""

    values: Any  # (n, m), C-contiguous; an array on a device; blocks of draws on a cluster
    names: tuple[str, ...]  # (m,)


class Expression:
    """Features that are computed from others."""

    def map(self, change: Callable[[Any], Any]) -> Expression:
        """Return the same expression of transformed features."""
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class Picked(Expression):
    """Some of the columns of features: ``E(f)[0]``."""

    features: Any
    index: Any  # an integer, a slice, a list of integers, or a label

    def map(self, change: Callable[[Any], Any]) -> Picked:
        """Return the same expression of transformed features."""
        return Picked(change(self.features), self.index)


@dataclass(frozen=True, eq=False)
class OnEvent(Expression):
    """Features minus a level on an event, zero otherwise; see `E.given`."""

    features: Any
    event: Any
    level: Floats  # (m,) or (1,)

    def map(self, change: Callable[[Any], Any]) -> OnEvent:
        """Return the same expression of transformed features."""
        return OnEvent(change(self.features), change(self.event), self.level)


@dataclass(frozen=True, eq=False)
class Combination(Expression):
    """A linear combination of features: ``2 * E(f) - E(h) + 1``."""

    factors: tuple[float, ...]
    parts: tuple[Any, ...]
    constant: float = 0.0

    def map(self, change: Callable[[Any], Any]) -> Combination:
        """Return the same expression of transformed features."""
        return Combination(self.factors, tuple(change(part) for part in self.parts), self.constant)

    def combine(self, values: Sequence[Any]) -> Any:
        """Return the combination of values of equal shapes, or of one column with several."""
        total: Any = self.constant
        for factor, own in zip(self.factors, values, strict=True):
            total = total + factor * own
        return total

    def name(self, parts: Sequence[Sequence[str]]) -> tuple[str, ...]:
        """Return a name for each column from the names of the parts' columns."""
        sizes = {len(names) for names in parts}
        if len(sizes - {1}) > 1:
            raise ValueError(f"expectations that are combined have different numbers of features: {sorted(sizes)}")
        columns = [list(names) * (max(sizes) if len(names) == 1 else 1) for names in parts]
        return tuple(write_combination(self.factors, names, self.constant) for names in zip(*columns, strict=True))


def write_combination(factors: Sequence[float], names: Sequence[str], constant: float) -> str:
    """Return a linear combination as text."""
    terms = [
        (factor, name if abs(factor) == 1 else f"{abs(factor):g} * {name}")
        for factor, name in zip(factors, names, strict=True)
    ]
    terms += [(constant, f"{abs(constant):g}")] if constant else []
    (first, start), *rest = terms
    return ("-" if first < 0 else "") + start + "".join(f" {'-' if sign < 0 else '+'} {term}" for sign, term in rest)


def evaluate_features(draws: Draws, features: Any) -> Features:
    """Evaluate features of every draw: the psi in ``E[psi]``.

    Parameters
    ----------
    draws : Draws
    features : callable, array, str, or list of those
        A callable receives all draws at once, as an array or (named draws) as :class:`Variables`, and returns an array
        of shape (n,) or (n, m). If its arguments are names of variables, it receives those. Draws with coordinates are
        passed as xarray objects of dimensions (sample, ...), or as plain arrays if the function fails on them. An array
        of shape (n,) or (n, m) contains evaluated features; an xarray DataArray has the dimensions chain and draw. A
        string names a variable, of which all scalars are used, or one scalar, as in ``"theta[3]"``.
        ``"posterior_predictive/y"`` is a variable of another group. A list or tuple concatenates the columns of its
        items.

    Returns
    -------
    Features
        Values of shape (n, m), float64 and C-contiguous (copied only if necessary), and m names.
    """
    if isinstance(features, list | tuple):
        if not features:
            raise ValueError("features is an empty list; it may be a callable, an array, a variable's name or a list.")
        parts = [_one_feature(draws, item, f"features[{i}]", f"psi_{i}") for i, item in enumerate(features)]
        if len(parts) == 1:
            return parts[0]
        values = arrays.join_columns([part.values for part in parts])
        return Features(values, tuple(itertools.chain.from_iterable(part.names for part in parts)))
    return _one_feature(draws, features, "features", "psi")


def _one_feature(draws: Draws, feature: Any, argument: str, base: str) -> Features:
    if isinstance(feature, Picked):
        inner = evaluate_features(draws, feature.features)
        columns = pick_columns(inner.names, feature.index)
        return Features(arrays.take_columns(inner.values, columns), tuple(inner.names[i] for i in columns))
    if isinstance(feature, OnEvent):
        return _on_event(draws, feature)
    if isinstance(feature, Combination):
        parts = [evaluate_features(draws, part) for part in feature.parts]
        labels = feature.name([part.names for part in parts])
        return Features(_as_matrix(feature.combine([part.values for part in parts]), argument), labels)
    if isinstance(feature, str):
        values, names = columns_of(draws, feature, argument)
        return Features(_as_matrix(values, argument), tuple(names))
    n = draws.size
    expected = f"an array of shape ({n},) or ({n}, m): one row for each draw, one column for each feature"
    if callable(feature) and not is_data_array(feature):
        base = _own_name(feature, draws) or base
        feature, got = call_feature(feature, draws, argument)
        if type(feature).__module__.startswith("pytensor"):  # a function of a PyMC model, written with pytensor.tensor
            feature = feature.eval()
        argument, expected = f"what {argument} returned", f"{expected}; {got}"
    if is_data_array(feature):
        values, names = _flatten(draws, feature, argument, base)
        return Features(_as_matrix(values, argument), tuple(names))
    if isinstance(feature, Mapping):
        raise TypeError(f"{argument} has several variables, by name; it may be {expected}.")
    values = numeric_array(feature, argument, expected)
    if values.ndim > 2 or values.shape[0] != n or 0 in values.shape:
        raise ValueError(f"{argument} is an array of shape {values.shape}; it may be {expected}.")
    matrix = _as_matrix(values, argument)
    m = matrix.shape[1]
    return Features(matrix, (base,) if m == 1 else tuple(f"{base}[{column}]" for column in range(m)))


def pick_columns(names: Sequence[str], index: Any) -> list[int]:
    """Return columns by an integer, a slice, a list of integers, or a label."""
    m = len(names)
    if isinstance(index, str):
        found = [i for i, name in enumerate(names) if name == index or name.endswith(f"[{index}]")]
        if len(found) != 1:
            raise ValueError(f"E(f)[{index!r}] picks none or several of the features {listed(names)}.")
        return found
    if isinstance(index, slice):
        chosen = list(range(m))[index]
    else:
        wanted = np.atleast_1d(np.asarray(index))
        if wanted.dtype.kind not in "iu" or wanted.ndim != 1:
            raise TypeError(f"E(f)[{index!r}]: the index may be an integer, a slice, a list of integers or a label.")
        if np.any((wanted < -m) | (wanted >= m)):
            raise IndexError(f"E(f)[{index!r}] is out of range: there are {m} features, {listed(names)}.")
        chosen = [int(i) % m for i in wanted]
    if not chosen:
        raise IndexError(f"E(f)[{index!r}] picks none of the {m} features.")
    return chosen


def _on_event(draws: Draws, given: OnEvent) -> Features:
    inner, event = evaluate_features(draws, given.features), evaluate_features(draws, given.event)
    holds = arrays.to_host(event.values)
    if holds.shape[1] != 1 or not np.all((holds == 0) | (holds == 1)):
        raise ValueError(
            "given(event): the event must be one true or false for each draw, such as lambda v: v.tau > 1; "
            f"it has {holds.shape[1]} columns and values from {holds.min():g} to {holds.max():g}."
        )
    if given.level.size not in (1, len(inner.names)):
        raise ValueError(
            f"given(event) is compared with {given.level.size} numbers, the features are {len(inner.names)}."
        )
    level: Any = given.level
    if arrays.lies_elsewhere(inner.values):
        level = arrays.to_device(level, inner.values)
    return Features((inner.values - level) * event.values, inner.names)


def _own_name(function: Callable[..., Any], draws: Draws) -> str | None:
    """Return a function's name; for a lambda, the variables that it uses."""
    name: str | None = getattr(function, "__name__", None)
    if name != "<lambda>":
        return name
    code = getattr(function, "__code__", None)
    if code is None or not draws.named:
        return None
    words = {*code.co_varnames[: code.co_argcount], *code.co_names, *(c for c in code.co_consts if isinstance(c, str))}
    used = [name for name in draws.variables if name in words]
    return f"f({', '.join(used)})" if used else None


def call_feature(function: Callable[..., Any], draws: Draws, argument: str) -> tuple[Any, str]:
    """Call a feature function, and add a note about its arguments to exceptions."""
    names = _variables_asked_for(function, draws)
    if names is not None:
        received = described({name: draws.variables[name] for name in names})
    else:
        received = described(draws.variables) if draws.named else f"an array of shape {draws.variables[UNNAMED].shape}"
    got = f"it was called with all {draws.size} draws at once ({received})"
    alone = _required_arguments(function)
    if names is None and draws.named and len(alone) == 1:  # a misspelled name, or lambda v: v.mu
        one = f"lambda {alone[0]}: {alone[0]}.{next(iter(draws.variables))}"
        got += f" as {alone[0]!r}, as in {one}: {draws.missing(alone[0])}"

    def call(view: Any) -> Any:
        return function(view) if names is None else function(*(view[name] for name in names))

    try:
        return call(draws.view()), got
    except Exception as error:
        # The function may expect plain arrays, as in v.mu[:, None] or another library. The first error is reported.
        with suppress(Exception):
            if draws.labelled:
                return call(draws.view(labelled=False)), got
        # Or its one argument is all draws and shares its name with a variable by chance: lambda x: x["theta"].
        with suppress(Exception):
            if names is not None and len(names) == 1:
                return function(draws.view()), got
        error.add_note(f"Raised by the callable passed as {argument}; {got}.")
        raise


def _variables_asked_for(function: Callable[..., Any], draws: Draws) -> list[str] | None:
    """Return the variables that a function's arguments name; None for all draws."""
    if not draws.named:
        return None
    asked = _required_arguments(function)
    if len(asked) == 1:
        return asked if asked[0] in draws.variables else None
    unknown = [name for name in asked if name not in draws.variables]
    if asked and unknown:
        raise ValueError(
            f"A feature function has the arguments {', '.join(asked)}: {draws.missing(unknown[0])}. Its arguments may "
            "be names of variables, or one argument, as in lambda v: v.mu, that gets all of them."
        )
    return asked or None


def _required_arguments(function: Callable[..., Any]) -> list[str]:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # implemented in C
        return []
    return [
        p.name for p in parameters if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]


def _flatten(draws: Draws, array: Any, argument: str, base: str) -> tuple[Array, list[str]]:
    """Return a DataArray with one row per draw, and names from its coordinates."""
    if SAMPLE in array.dims and "chain" in array.coords and array.coords["chain"].dims == (SAMPLE,):
        array = array.unstack(SAMPLE) if SAMPLE in array.indexes else array
    if SAMPLE in array.dims:
        array = array.transpose(SAMPLE, ...)
        n, rest = array.sizes[SAMPLE], array.dims[1:]
    elif {"chain", "draw"} <= set(array.dims):
        array = array.transpose("chain", "draw", ...)
        n, rest = array.sizes["chain"] * array.sizes["draw"], array.dims[2:]
        _check_same_draws(draws, array, argument)
    else:
        raise ValueError(
            f"{argument} has the dimensions {tuple(array.dims)}; chain and draw, or {SAMPLE}, must be among them: one "
            "value for each draw."
        )
    values = numeric_array(array.values, argument).reshape(n, -1)
    if n != draws.size or values.shape[1] == 0:
        raise ValueError(f"{argument} has the sizes {dict(array.sizes)}; there are {draws.size} draws.")
    # not the array's own name, since xarray keeps theta's for theta**2 and theta.mean("school")
    axes = [array.coords[dim].values.tolist() if dim in array.coords else range(array.sizes[dim]) for dim in rest]
    labels = [f"{base}[{', '.join(map(str, label))}]" for label in itertools.product(*axes)]
    return values, labels if rest else [base]


def _check_same_draws(draws: Draws, array: Any, argument: str) -> None:
    """Raise unless an array has the posterior's chains and draws in the same order."""
    sizes = (array.sizes["chain"], array.sizes["draw"])
    if sizes != (draws.n_chains, draws.n_draws) and (draws.labelled or draws.n_chains > 1):
        raise ValueError(
            f"{argument} has {sizes[0]} chains of {sizes[1]} draws, the posterior {draws.n_chains} of {draws.n_draws}: "
            "take it from the same draws."
        )
    for dim in ("chain", "draw"):
        if dim in draws.coords and dim in array.coords:
            own, others = draws.coords[dim][1], array.coords[dim].values
            if not np.array_equal(own, others):
                raise ValueError(
                    f"{argument} has other labels of {dim} than the posterior: take it from the same draws."
                )


def columns_of(draws: Draws, name: str, argument: str) -> tuple[Array, list[str]]:
    """Return the scalars that a name denotes, one column each, and their names."""
    group, slash, rest = name.partition("/")
    if slash and name.partition("[")[0] not in draws.variables:
        values, names = columns_of(draws.group(group, [rest.partition("[")[0]]), rest, argument)
        return values, [f"{group}/{column}" for column in names]
    if name in draws.variables:
        names = draws.column_names(name)
        if not names:
            raise ValueError(
                f"{argument} is {name!r}, which has shape {draws.variables[name].shape}: no scalars in it."
            )
        return _flat(draws, name), names
    variable = name.partition("[")[0]
    if variable in draws.variables and name != variable:
        names = draws.column_names(variable)
        meant = [i for i, known in enumerate(names) if _without_spaces(known) == _without_spaces(name)]
        if meant:
            return _flat(draws, variable)[:, meant[0]], [names[meant[0]]]
        raise ValueError(f"{argument} is {name!r}, but the scalars in {variable!r} are {listed(names)}.")
    group, dot, rest = name.partition(".")
    hint = f"; write {f'{group}/{rest}'!r} for a variable of another group" if dot and group in draws.groups else ""
    raise ValueError(f"{draws.missing(name)}{hint}.")


def _flat(draws: Draws, name: str) -> Array:
    """Return all scalars of a variable as columns."""
    values = draws.variables[name]
    return cast("Array", arrays.namespace_of(values).reshape(values, (draws.size, -1)))


def _without_spaces(name: str) -> str:
    """Remove spaces, so that ``L[0, 1]`` and ``L[0,1]`` are the same name."""
    return re.sub(r"\s*,\s*", ",", name)


def _as_matrix(values: Any, argument: str) -> Any:
    """Return features as a finite float matrix; device arrays keep single precision."""
    xp, there = arrays.namespace_of(values), arrays.lies_elsewhere(values)
    if not there:
        values = np.ascontiguousarray(values, dtype=np.float64)
    elif not xp.isdtype(values.dtype, "real floating"):
        values = xp.astype(values, xp.float64)
    matrix = xp.reshape(values, (values.shape[0], -1))
    n_bad = count_not_finite(matrix)
    if n_bad:
        bad = np.flatnonzero(~np.isfinite(arrays.to_host(matrix)).all(axis=1))
        raise ValueError(
            f"{argument} has {n_bad} NaN or infinite values among {matrix.shape[0] * matrix.shape[1]}, at {bad.size} "
            f"draws (the first is draw {bad[0]}); all features must be finite."
        )
    return matrix
