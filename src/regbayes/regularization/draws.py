"""Draws from a posterior: arrays, dicts of arrays, ArviZ and xarray objects.

All formats are converted to :class:`Draws`: named arrays with the draws of all chains along the first axis, and the
names and labels required to convert back. ArviZ and xarray are imported only for their own objects; arrays need
neither.
"""

from __future__ import annotations

import importlib
import inspect
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, cast

import numpy as np

from regbayes._registry import persistable
from regbayes._types import Array
from regbayes.kernels import arrays

Kind = Literal["array", "dict", "inferencedata", "datatree", "dataset"]

UNNAMED = "x"  # name of draws given as a plain array
SAMPLE = "sample"  # dimension of all draws, chain after chain, in xarray objects passed to feature functions
FEW = 16  # largest number of rows for which the rows of a wide array may be chains
_ACCEPTED = (
    "an array of shape (n,) or (n, d), a dict of arrays with the draws on the leading axis, NumPyro's MCMC, an ArviZ "
    "InferenceData or xarray DataTree with a posterior group, or an xarray Dataset with the dimensions chain and draw"
)


@persistable(skip=("source",))
@dataclass(frozen=True)
class Draws:
    """Draws of one or more variables, flattened over chains.

    Draw ``i`` of chain ``c`` is row ``c * n_draws + i`` of every variable. The arrays are read-only, and views of the
    original arrays if possible.
    """

    variables: dict[str, Array]  # each (n_chains * n_draws, *shape)
    n_chains: int
    n_draws: int  # per chain
    dims: dict[str, tuple[str, ...]]  # variable -> names of the axes after the draw axis
    coords: dict[str, tuple[tuple[str, ...], Array]]  # coordinate -> (its dimensions, its labels), as xarray has it
    kind: Kind  # the format that the draws were given in
    source: Any = field(default=None, repr=False, compare=False)  # the original ArviZ object; not saved

    @property
    def size(self) -> int:
        """Number of draws, over all chains."""
        return self.n_chains * self.n_draws

    @property
    def named(self) -> bool:
        """Whether the variables have names; feature functions then get a mapping."""
        return self.kind != "array"

    @property
    def labelled(self) -> bool:
        """Whether the draws have coordinates; feature functions then get xarray objects."""
        return self.kind in ("inferencedata", "datatree", "dataset")

    def view(self, labelled: bool | None = None) -> Any:
        """Return the argument of feature functions: the array, or the named variables.

        ``labelled=False`` returns plain arrays instead of xarray objects.
        """
        if not self.named:
            return self.variables[UNNAMED]
        return Variables(self, self.labelled if labelled is None else labelled)

    def data_array(self, name: str) -> Any:
        """Return a variable as a DataArray of dimensions (sample, ...)."""
        xarray = importlib.import_module("xarray")
        dims = self.dims[name]
        coords = {key: value for key, value in self.coords.items() if value[0] and set(value[0]) <= set(dims)}
        return xarray.DataArray(self.variables[name], dims=(SAMPLE, *dims), coords=coords, name=name)

    def on_host(self) -> Draws:
        """Return the same draws as NumPy arrays."""
        return replace(self, variables={name: arrays.to_host(values) for name, values in self.variables.items()})

    @property
    def groups(self) -> list[str]:
        """Names of the other groups of the source."""
        return list(group_datasets(self.source))

    def group(self, name: str, variables: Sequence[str] | None = None) -> Draws:
        """Return another group of the source, such as ``posterior_predictive``, as draws."""
        groups = group_datasets(self.source)
        if name not in groups:
            came = f"they came with {listed(groups)}" if groups else "they came without other groups, or from a file"
            raise ValueError(f"the draws have no group {name!r}; {came}.")
        found = _from_dataset(groups[name], self.kind, variables)
        if (found.n_chains, found.n_draws) != (self.n_chains, self.n_draws):
            raise ValueError(
                f"the group {name!r} has {found.n_chains} chains of {found.n_draws} draws, the posterior "
                f"{self.n_chains} of {self.n_draws}: a feature needs one value for each draw of the posterior."
            )
        return found

    def missing(self, name: str) -> str:
        """Return a message that the variable does not exist, with the available ones."""
        groups = self.groups
        others = f"; other groups: {', '.join(groups)}" if groups else ""
        return f"no variable {name!r}; available: {', '.join(self.variables)}{others}"

    def column_names(self, variable: str) -> list[str]:
        """Return the names of all scalars of a variable, in C order."""
        shape = self.variables[variable].shape[1:]
        if not shape:
            return [variable]
        axes = [self._labels(dim, size) for dim, size in zip(self.dims[variable], shape, strict=True)]
        return [f"{variable}[{', '.join(map(str, labels))}]" for labels in itertools.product(*axes)]

    def _labels(self, dim: str, size: int) -> Iterable[Any]:
        coordinate = self.coords.get(dim)
        return range(size) if coordinate is None else coordinate[1].tolist()


class Variables(Mapping[str, Any]):
    """Named draws for feature functions: ``v["theta"]`` or ``v.theta``.

    Draws with coordinates are xarray DataArrays of dimensions (sample, ...), so that ``v.theta.sel(school="Choate")``
    works. ``v.posterior_predictive.y`` is a variable of another group.
    """

    def __init__(self, draws: Draws, labelled: bool) -> None:
        self._draws, self._labelled = draws, labelled
        self._made: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._draws.variables:
            raise KeyError(self._draws.missing(name))
        if not self._labelled:
            return self._draws.variables[name]
        if name not in self._made:
            self._made[name] = self._draws.data_array(name)
        return self._made[name]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # copy and pickle access these before __init__ has run
            raise AttributeError(name)
        if name in self._draws.variables:
            return self[name]
        if name in self._draws.groups:
            return Variables(self._draws.group(name), self._labelled)
        raise AttributeError(self._draws.missing(name))

    def __iter__(self) -> Iterator[str]:
        return iter(self._draws.variables)

    def __len__(self) -> int:
        return len(self._draws.variables)

    def __repr__(self) -> str:
        return f"Variables({described(self._draws.variables)})"


def as_draws(draws: Any, *, variables: Sequence[str] | None = None, chains: bool | None = None) -> Draws:
    """Convert draws to :class:`Draws`, copying only where necessary.

    Parameters
    ----------
    draws : array, mapping of arrays, InferenceData, DataTree, Dataset or Draws
        An array of shape (n,) or (n, d) is one unnamed variable. A mapping has arrays of shape (n, ...), all with the
        same n. The posterior group of ArviZ and xarray objects (or the Dataset) has the dimensions ``chain`` and
        ``draw``. JAX arrays, torch tensors on the CPU and all other objects that NumPy can read are valid arrays. Torch
        tensors and CuPy arrays on a GPU stay on it.
    variables : sequence of str, optional
        The named variables to keep; all by default.
    chains : bool, default=None
        Whether arrays start with two axes, (chain, draw, ...), like those of NumPyro's
        ``get_samples(group_by_chain=True)``. Not used for ArviZ and xarray objects. None is False, but raises an error
        for arrays that appear to have chains (all start with the same two sizes, the first one small).

    Returns
    -------
    Draws

    Raises
    ------
    TypeError, ValueError
        If the object has another type, no draws or no posterior group, or if its variables have different numbers of
        draws or values that are not finite numbers.
    """
    if isinstance(draws, Draws):
        kept = {name: draws.variables[name] for name in _select(draws.variables, variables)}
        return draws if variables is None else replace(draws, variables=kept)
    if _is_a(draws, "arviz", "InferenceData") or _is_a(draws, "xarray", "DataTree"):
        dataset, kind = _posterior_group(draws)
        return replace(_from_dataset(dataset, kind, variables), source=draws)
    if _is_a(draws, "xarray", "DataArray"):
        draws = draws.to_dataset(name=draws.name or UNNAMED)
    if _is_a(draws, "xarray", "Dataset"):
        return _from_dataset(draws, "dataset", variables)
    if _is_a(draws, "pandas", "DataFrame"):
        draws = {str(name): draws[name].to_numpy() for name in draws.columns}
    if has_samples(draws):
        draws, chains = draws.get_samples(group_by_chain=True), True
    if isinstance(draws, Mapping):
        return _from_mapping(draws, variables, chains)
    return _from_array(draws, variables, chains)


def _from_array(draws: Any, names: Sequence[str] | None, chains: bool | None) -> Draws:
    if names is not None:
        raise ValueError(f"variables={list(names)!r} selects named draws, but draws is an unnamed array.")
    values = numeric_array(draws, "draws", _ACCEPTED)
    leading = 2 if chains else 1
    if values.ndim not in (leading, leading + 1):
        shapes = "(chain, draw) or (chain, draw, d)" if chains else "(n,) or (n, d)"
        hint = "; pass chains=True if its first two axes are chain and draw" if not chains and values.ndim == 3 else ""
        given = bool(chains)
        raise ValueError(f"draws is an array of shape {values.shape}; with chains={given} it may be {shapes}{hint}.")
    if chains is None and values.ndim == 2 and values.shape[0] <= FEW and values.shape[1] >= 4 * FEW:
        raise ValueError(_which(f"draws is an array of shape {values.shape}", values.shape))
    return _build({UNNAMED: values}, leading, {}, {}, "array")


def _which(what: str, shape: tuple[int, ...]) -> str:
    return (
        f"{what}: pass chains=True if these are {shape[0]} chains of {shape[1]} draws, "
        f"chains=False if they are {shape[0]} draws."
    )


def _from_mapping(draws: Mapping[Any, Any], names: Sequence[str] | None, chains: bool | None) -> Draws:
    if not draws:
        raise ValueError(f"draws is an empty mapping; it may be {_ACCEPTED}.")
    odd = [name for name in draws if not isinstance(name, str)]
    if odd:
        raise TypeError(f"draws has the key {odd[0]!r}; the keys must be strings, the names of the variables.")
    leading = 2 if chains else 1
    given = {name: numeric_array(draws[name], f"draws[{name!r}]") for name in _select(draws, names)}
    for name, values in given.items():
        if values.ndim < leading:
            axes = "(chain, draw, ...)" if chains else "(n, ...)"
            raise ValueError(f"draws[{name!r}] has shape {values.shape}; with chains={bool(chains)} it may be {axes}.")
    size, *others = {values.shape[:2] for values in given.values()}
    wide = not others and len(size) == 2 and 0 < size[0] < size[1]
    if chains is None and wide and (len(given) > 1 or size[0] <= FEW):
        raise ValueError(_which(f"all arrays in draws start with the sizes {size}", size))
    return _build(given, leading, {}, {}, "dict")


def _posterior_group(tree: Any) -> tuple[Any, Kind]:
    """Return the posterior's Dataset and the format of ``tree``."""
    if _is_a(tree, "arviz", "InferenceData"):
        groups = list(tree.groups())
        if "posterior" in groups:
            return tree["posterior"], "inferencedata"
    else:
        groups = list(tree.children)
        if "posterior" in groups:
            return tree["posterior"].to_dataset(), "datatree"
        if {"chain", "draw"} <= set(tree.dims):  # the posterior node itself
            return tree.to_dataset(), "datatree"
    raise ValueError(f"draws ({type(tree).__name__}) has no group named 'posterior'; its groups are {listed(groups)}.")


def group_datasets(source: Any) -> dict[str, Any]:
    """Return the groups of an ArviZ object except the posterior, as Datasets by name."""
    if source is None:
        return {}
    if _is_a(source, "arviz", "InferenceData"):
        return {name: source[name] for name in source.groups() if name != "posterior"}
    return {name: node.to_dataset() for name, node in source.children.items() if name != "posterior"}


def _from_dataset(dataset: Any, kind: Kind, names: Sequence[str] | None) -> Draws:
    selected = _select({str(name): None for name in dataset.data_vars}, names)
    if not selected:
        raise ValueError("draws has no variables in its posterior.")
    given: dict[str, Array] = {}
    dims: dict[str, tuple[str, ...]] = {}
    for name in selected:
        variable = dataset[name]
        if not {"chain", "draw"} <= set(variable.dims):
            raise ValueError(
                f"draws[{name!r}] has the dimensions {tuple(variable.dims)}; chain and draw must be among them "
                "(what arviz.extract has stacked, unstack('sample') gives back)."
            )
        variable = variable.transpose("chain", "draw", ...)
        given[name] = numeric_array(variable.values, f"draws[{name!r}]")
        dims[name] = tuple(str(dim) for dim in variable.dims[2:])
    used = {"chain", "draw", *itertools.chain.from_iterable(dims.values())}
    coords = {}
    for name, coordinate in dataset.coords.items():
        labels = _plain_labels(np.asarray(coordinate.values))
        if labels is not None and set(coordinate.dims) <= used:
            coords[str(name)] = (tuple(str(dim) for dim in coordinate.dims), labels)
    return _build(given, 2, dims, coords, kind)


def _plain_labels(labels: Array) -> Array | None:
    """Return labels storable without pickle, or None for others such as a MultiIndex."""
    if labels.dtype.kind != "O":
        return labels
    return labels.astype(str) if all(isinstance(label, str) for label in labels.flat) else None


def _select(available: Iterable[str], names: Sequence[str] | None) -> list[str]:
    available = list(available)
    if names is None:
        return available
    if isinstance(names, str) or not names:
        raise ValueError(f"variables={names!r} may be None or a list of one or more of {listed(available)}.")
    unknown = [name for name in names if name not in available]
    if unknown:
        raise ValueError(f"variables names {unknown[0]!r}, but the draws have {listed(available)}.")
    return list(names)


def _build(
    given: dict[str, Array],
    n_leading: int,
    dims: dict[str, tuple[str, ...]],
    coords: dict[str, tuple[tuple[str, ...], Array]],
    kind: Kind,
) -> Draws:
    """Validate the variables and flatten the chains."""
    first, *_ = given
    leading = given[first].shape[:n_leading]
    label = "draws" if kind == "array" else f"draws[{first!r}]"
    if 0 in leading:
        raise ValueError(f"{label} is empty: its shape is {given[first].shape}, and there must be at least one draw.")
    flat: dict[str, Array] = {}
    for name, values in given.items():
        if values.shape[:n_leading] != leading:
            axes = "(chain, draw)" if n_leading == 2 else "draws"
            raise ValueError(
                f"draws[{name!r}] has shape {values.shape} and draws[{first!r}] has shape {given[first].shape}: "
                f"the leading sizes, {axes}, must be the same for all variables."
            )
        n_bad = count_not_finite(values)
        if n_bad:
            where = "draws" if kind == "array" else f"draws[{name!r}]"
            hint = "; variables=[...] leaves out what is not needed" if len(given) > 1 else ""
            raise ValueError(
                f"{where} has {n_bad} NaN or infinite values among {math.prod(values.shape)}; all must be finite{hint}."
            )
        flat[name] = arrays.namespace_of(values).reshape(values, (math.prod(leading), *values.shape[n_leading:]))
        if not arrays.lies_elsewhere(values):
            flat[name] = flat[name].view()
            flat[name].flags.writeable = False
        dims.setdefault(name, tuple(f"{name}_dim_{axis}" for axis in range(values.ndim - n_leading)))
    n_chains, n_draws = leading if n_leading == 2 else (1, leading[0])
    return Draws(flat, n_chains, n_draws, dims, coords, kind)


def numeric_array(values: Any, argument: str, accepted: str = "an array of numbers") -> Array:
    """Return booleans, integers or floats; device arrays stay on the device."""
    values = arrays.without_graph(values)
    if arrays.is_sparse(values):
        raise TypeError(f"{argument} is sparse; give it as a dense array.")
    if arrays.lies_elsewhere(values):
        kind = str(values.dtype).rpartition(".")[2]
        if kind in ("float16", "bfloat16") or kind.startswith("complex"):
            raise TypeError(
                f"{argument} is an array of dtype {kind} on {values.device}; give it as float32 or float64."
            )
        if values.ndim == 0:
            raise TypeError(f"{argument} is a single number on {values.device}; it may be {accepted}.")
        return cast("Array", values)
    try:
        array = np.asarray(values)
    except ValueError as error:  # NumPy's message for ragged lists is "inhomogeneous shape"
        raise ValueError(f"{argument} cannot be read as an array ({error}); it may be {accepted}.") from error
    if array.dtype.kind not in "biuf" or array.ndim == 0:
        what = f"of type {type(values).__name__}" if array.ndim == 0 else f"an array of dtype {array.dtype}"
        raise TypeError(f"{argument} is {what}; it may be {accepted}.")
    return array


def count_not_finite(values: Array) -> int:
    """Count the NaN and infinite values."""
    if arrays.lies_elsewhere(values):
        return arrays.count_not_finite(values)
    # The sum of squares is NaN or infinite if any number is, which takes one pass without a mask. It may overflow
    # for finite numbers, hence the count.
    if values.dtype.kind != "f":
        return 0
    flat = values.ravel(order="K")
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(flat @ flat):
            return 0
    return int(np.count_nonzero(~np.isfinite(values)))


def is_labelled(draws: Any) -> bool:
    """Whether these are draws in an ArviZ or xarray object."""
    return _is_a(draws, "arviz", "InferenceData") or any(
        _is_a(draws, "xarray", name) for name in ("DataTree", "Dataset", "DataArray")
    )


def has_samples(draws: Any) -> bool:
    """Whether this is a sampler with draws by chain, like NumPyro's ``MCMC``."""
    return hasattr(draws, "get_samples") and "group_by_chain" in inspect.signature(draws.get_samples).parameters


def is_data_array(value: Any) -> bool:
    """Whether this is an xarray DataArray."""
    return _is_a(value, "xarray", "DataArray")


def _is_a(value: Any, package: str, name: str) -> bool:
    """Whether ``value`` is an instance of a package's class, without importing it."""
    return any(cls.__name__ == name and cls.__module__.split(".")[0] == package for cls in type(value).__mro__)


def described(variables: Mapping[str, Array]) -> str:
    """Return names and shapes, for messages."""
    return ", ".join(f"{name}: {values.shape}" for name, values in variables.items())


def listed(names: Iterable[Any], at_most: int = 12) -> str:
    """Quote the first names for a message."""
    names = [repr(name) for name in names]
    if not names:
        return "none"
    more = f" and {len(names) - at_most} more" if len(names) > at_most else ""
    return ", ".join(names[:at_most]) + more
