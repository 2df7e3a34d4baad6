"""Features with amounts over rows on a device, as in `slab.py`; `regbayes.kernels.arrays_slab` has the row work."""

from __future__ import annotations

import numpy as np

from regbayes.joint.model import Inferred
from regbayes.kernels import arrays
from regbayes.kernels.arrays import DeviceArray, namespace_of, to_device
from regbayes.kernels.arrays_slab import SlabSweeps, SweptSlab
from regbayes.kernels.slab import Swept
from regbayes.models.ilsvm.device import DeviceRows, reconstruct
from regbayes.models.ilsvm.model import Pulled, Stats
from regbayes.models.ilsvm.slab import SlabParams


def sweep(rows: DeviceRows, params: SlabParams) -> tuple[Swept, DeviceArray]:
    """Return what the sweeps find for rows, and the projections that they begin with, all (n, K)."""
    (psi, amounts, squares, divergence), projections = _sweep(rows, params)
    return Swept(psi.T, amounts.T, squares.T, divergence), projections.T


def _sweep(rows: DeviceRows, params: SlabParams) -> tuple[SweptSlab, DeviceArray]:
    """Return the same, all (K, n)."""
    directions = params.mean_field.precision * params.loadings
    projections = rows.project(directions, -(directions @ params.offset)).T
    return _sweeps(params).sweep(projections), projections


def infer(rows: DeviceRows, params: SlabParams) -> Inferred[Stats]:
    """Infer the amounts of rows, and sum what the rest of the model needs."""
    swept, projections = _sweep(rows, params)
    counts = rows.counts

    def weigh(values: DeviceArray) -> DeviceArray:
        return values if counts is None else values * counts

    weighed = weigh(swept.amounts)
    sums = [arrays.sum_of(each, axis=1) for each in (weigh(swept.psi), weighed, weigh(swept.squares))]
    totals = [arrays.sum_products(weighed, projections), arrays.sum_of(weigh(swept.divergence))]
    second, on, amounts, squares, above, divergence = arrays.gather(
        arrays.multiply_rows(weighed, swept.amounts), *sums, *totals
    )
    np.fill_diagonal(second, squares)
    stats = Stats(
        n_rows=rows.totals.n_rows,
        squared_norm=float(rows.totals.squares.sum()),
        total=rows.totals.rows,
        counts=on,
        first_moment=amounts,
        second_moment=second,
        explained=float(above) / params.mean_field.precision + float(amounts @ (params.loadings @ params.offset)),
        entropy=-float(divergence),
    )
    return Inferred(swept.amounts.T, stats, projections)


def pull_back(
    rows: DeviceRows, params: SlabParams, weight: float, inferred: Inferred[Stats], gradient: DeviceArray | None
) -> Pulled:
    """Differentiate through the sweeps."""
    given = None if gradient is None else gradient.T
    found = _sweeps(params).reverse(given, inferred.cache, weight, rows.counts)
    coupled, by_precision, driving = arrays.gather(found.coupling, found.precision, found.driving)
    by_coupling = coupled + np.diag(by_precision + 0.5 * driving)
    return Pulled(by_coupling, driving, rows.combine(found.left.T))


def bound(rows: DeviceRows, params: SlabParams) -> DeviceArray:
    """Return a lower bound on each row's log-density at fixed global parameters, (n,)."""
    swept, _ = sweep(rows, params)
    xp, psi, amounts, squares = namespace_of(rows.X), swept.psi, swept.amounts, swept.squares
    expected = params.mean_field.expected
    lengths = to_device(np.einsum("kd,kd->k", params.loadings, params.loadings), psi)
    spread = (squares - amounts * amounts) @ lengths + rows.n_inputs * (squares @ to_device(params.variances, psi))
    away = rows.X - reconstruct(amounts, params, rows.mean)
    residual = xp.sum(away * away, axis=1) + spread
    prior = psi @ to_device(expected.log_use, psi) + (1.0 - psi) @ to_device(expected.log_rest, psi)
    normaliser = 0.5 * rows.n_inputs * np.log(2.0 * np.pi * params.noise_variance)
    divergence = xp.astype(swept.divergence, psi.dtype, copy=False)
    return prior - divergence - (0.5 / params.noise_variance) * residual - float(normaliser)


def _sweeps(params: SlabParams) -> SlabSweeps:
    return SlabSweeps(params.mean_field.coupling, params.amount_precisions, params.log_odds, params.n_sweeps)
