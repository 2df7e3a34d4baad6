"""Systematic resampling of weighted draws, and conversion to ArviZ."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import logsumexp

from regbayes._extras import import_extra
from regbayes._types import Integers
from regbayes.regularization.draws import Draws, group_datasets


def systematic_indices(log_weights: ArrayLike, size: int, rng: np.random.Generator | None = None) -> Integers:
    """Select ``size`` draws by systematic resampling.

    Draw i is selected ``size * w_i`` times, rounded up or down: at a uniform offset plus steps of ``1 / size`` along
    the cumulative weights. Equal weights with ``size`` = n select every draw once, in order.

    Parameters
    ----------
    log_weights : array-like of shape (n,)
        Logarithms of the weights up to a constant; ``-inf`` is a weight of zero.
    size : int
        Number of draws to select.
    rng : numpy.random.Generator, optional
        Source of the offset. By default the offset is the middle of its range, and the result is deterministic.

    Returns
    -------
    ndarray of shape (size,)
        Indices into the draws, in ascending order.
    """
    weights = np.asarray(log_weights, dtype=np.float64)
    cumulated = np.cumsum(np.exp(weights - weights.max()))
    offset = 0.5 if rng is None else rng.random()
    targets = (np.arange(size) + offset) * (cumulated[-1] / size)
    # Rounding may put the last target at the total, which selects the last draw with positive weight.
    last = np.flatnonzero(weights > -np.inf)[-1]
    indices: Integers = np.minimum(np.searchsorted(cumulated, targets, side="right"), last)
    return indices


def to_arviz(draws: Draws, log_weights: ArrayLike, rng: np.random.Generator | int | None = None) -> Any:
    """Convert weighted draws to ArviZ: an equally weighted posterior, and the weights.

    Parameters
    ----------
    draws : Draws
    log_weights : array-like of shape (n,)
        Logarithms of the weights up to a constant, one for each draw.
    rng : numpy.random.Generator or int, optional
        See :func:`systematic_indices`; an integer is a seed. By default the result is deterministic.

    Returns
    -------
    arviz.InferenceData or xarray.DataTree
        The type of the original ArviZ object. For draws in other formats, the type of the installed ArviZ:
        InferenceData before ArviZ 1, DataTree from 1 on. It has three groups:

        ``posterior``
            The draws resampled by their weights, with the original numbers of chains and draws, dimensions and
            coordinates.
        ``sample_stats``
            ``source_chain`` and ``source_draw`` of each resampled draw (labels of the original coordinates).
        ``importance_weights``
            ``log_weight`` of the *original* draws, normalized over all chains. The original draws are not repeated.

        Other groups of the original object are included. Those with the same chains and draws
        (``posterior_predictive``, ``predictions``, ``log_likelihood``, the rest of ``sample_stats``) are resampled
        too. Those without (``observed_data``, ``constant_data``) and those of the prior are unchanged.

    Notes
    -----
    All draws are resampled together, in order, and the result is split into chains of the original length. A chain
    whose draws gain weight thus extends into the next one. Copies of a draw are adjacent, so that ``arviz.ess`` treats
    them as autocorrelated and reports about the effective sample size of the weights. The trace of a chain is no longer
    a path of the sampler; check convergence on the original draws.
    """
    xarray = import_extra("xarray", "to_arviz")
    weights = np.asarray(log_weights, dtype=np.float64)
    if weights.shape != (draws.size,):
        raise ValueError(f"log_weights has shape {weights.shape}; with {draws.size} draws it may be ({draws.size},).")
    clash = {"chain", "draw"} & set(draws.variables)
    if clash:
        raise ValueError(f"a variable is named {clash.pop()!r}, which ArviZ needs for a dimension; rename it.")
    if not (rng is None or isinstance(rng, np.random.Generator)):
        if isinstance(rng, bool) or not isinstance(rng, int | np.integer):
            raise TypeError(f"rng must be a numpy.random.Generator, an integer seed or None, got {rng!r}")
        rng = np.random.default_rng(rng)
    indices = systematic_indices(weights, draws.size, rng)
    grid = (draws.n_chains, draws.n_draws)
    coords = {dim: ((dim,), np.arange(size)) for dim, size in zip(("chain", "draw"), grid, strict=True)} | draws.coords
    sampled = {dim: coords[dim] for dim in ("chain", "draw")}
    chain, draw = np.unravel_index(indices, grid)
    posterior = {
        name: (("chain", "draw", *draws.dims[name]), values[indices].reshape(*grid, *values.shape[1:]))
        for name, values in draws.variables.items()
    }
    statistics = {
        "source_chain": (("chain", "draw"), coords["chain"][1][chain].reshape(grid)),
        "source_draw": (("chain", "draw"), coords["draw"][1][draw].reshape(grid)),
    }
    kept = {"log_weight": (("chain", "draw"), (weights - logsumexp(weights)).reshape(grid))}
    groups = {
        "posterior": xarray.Dataset(posterior, coords),
        "sample_stats": xarray.Dataset(statistics, sampled),
        "importance_weights": xarray.Dataset(kept, sampled),
    }
    for name, group in group_datasets(draws.source).items():
        own = name.startswith(("prior", "warmup"))
        followed = group if own else _resample_group(group, indices, grid, sampled)
        if name == "sample_stats" and {"chain", "draw"} <= set(followed.dims):
            groups[name] = followed.assign(groups[name].data_vars)
        else:
            groups.setdefault(name, followed)
    if draws.kind != "datatree":
        arviz = import_extra("arviz", "to_arviz")
        if int(arviz.__version__.split(".")[0]) < 1:
            return arviz.InferenceData(**groups)
    return xarray.DataTree.from_dict(groups)


def _resample_group(group: Any, indices: Integers, grid: tuple[int, int], sampled: dict[str, Any]) -> Any:
    """Return a group with the chosen draws, or unchanged if it has other draws."""
    if (group.sizes.get("chain"), group.sizes.get("draw")) != grid:
        return group
    chain, draw = np.unravel_index(indices, grid)
    variables = {}
    for name, variable in group.variables.items():
        if {"chain", "draw"} <= set(variable.dims):
            ordered = variable.transpose("chain", "draw", ...)
            taken = ordered.values[chain, draw].reshape(*grid, *ordered.shape[2:])
            variables[name] = (ordered.dims, taken, ordered.attrs)
        elif not {"chain", "draw"} & set(variable.dims):
            variables[name] = variable
    return type(group)(
        {name: variables[name] for name in group.data_vars if name in variables},
        coords=sampled | {name: variables[name] for name in group.coords if name in variables},
        attrs=group.attrs,
    )
