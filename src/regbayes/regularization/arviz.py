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
    """Choose ``size`` draws so that draw i comes ``size * w_i`` times, rounded up or down.

    Systematic resampling: one uniform offset, then steps of ``1 / size`` along the cumulated weights. It adds the
    least noise of the usual schemes, and equal weights with ``size`` = n give every draw once, in order.

    Parameters
    ----------
    log_weights : array-like of shape (n,)
        Logarithms of the weights up to a constant; ``-inf`` is a weight of zero.
    size : int
        How many draws to choose.
    rng : numpy.random.Generator, optional
        Source of the offset. Without one the offset is the middle of its range, so that nothing is random.

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
    """Give weighted draws to ArviZ: a posterior that plots and summarizes at once, and the weights.

    Parameters
    ----------
    draws : Draws
    log_weights : array-like of shape (n,)
        Logarithms of the weights up to a constant, one for each draw.
    rng : numpy.random.Generator or int, optional
        See :func:`systematic_indices`; an integer is a seed, and without one the result is the same every time.

    Returns
    -------
    arviz.InferenceData or xarray.DataTree
        The kind that the draws came in; where they came as something else, what the installed ArviZ works with:
        InferenceData before ArviZ 1, DataTree from 1 on. It has three groups of its own:

        ``posterior``
            The draws resampled by their weights, equally weighted: as many chains and draws as before, and the same
            dimensions and coordinates.
        ``sample_stats``
            For each of these, the ``source_chain`` and ``source_draw`` it was (labels of the original coordinates).
        ``importance_weights``
            ``log_weight`` of the *original* draws, normalised over all chains, for those who would rather weight than
            resample. The original draws are not repeated here.

        Other groups that the draws came with follow: those with the same chains and draws (``posterior_predictive``,
        ``predictions``, ``log_likelihood``, the rest of ``sample_stats``) are resampled alike, those without
        (``observed_data``, ``constant_data``) and those of the prior are as they were.

    Notes
    -----
    All draws are resampled together, in order, and the result is cut into chains of the original length. So a chain
    whose draws gained weight spills into its neighbours, and no chain is given more or less than its draws weigh.
    Copies of one draw stay side by side on purpose: ``arviz.ess`` takes them for autocorrelation, and reports about
    the number of draws that the weights are worth instead of the number of rows. The trace of a chain is no longer a
    path of the sampler; judge convergence on the original draws.
    """
    xarray = import_extra("xarray", "to_arviz", "ppl")
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
        arviz = import_extra("arviz", "to_arviz", "ppl")
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
