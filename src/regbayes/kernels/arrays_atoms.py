"""Sums over weighted atoms (draws or enumerated models) for arrays of any library."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from regbayes._types import Floats
from regbayes.kernels.arrays import ROOM, DeviceArray, gather, join, namespace_of, pieces, to_device

NARROW = 16  # number of columns up to which NumPy is slow along the last axis


class AtomSums(NamedTuple):
    """Sums over atoms for the partition function, relative to their largest score."""

    top: float
    total: float
    first: Floats  # (m,): first moments about a reference point
    second: Floats | None  # (m, m): second moments about the reference point
    scores: DeviceArray  # (n,): <phi, psi>


def sum_atoms(
    features: DeviceArray, log_weights: DeviceArray, phi: Floats, reference: Floats, second: bool
) -> AtomSums:
    """Sum reweighted atoms and their features (n, m) minus a reference, in double precision."""
    xp, moments = namespace_of(features), []
    part = xp.astype(features, xp.float64, copy=False)
    scores = part @ to_device(phi, part) if phi.any() else xp.zeros_like(log_weights)
    weights = scores + log_weights
    top = xp.max(weights)
    weights = xp.exp(weights - top)
    total = xp.sum(weights)
    if not second:
        first = weights @ part - total * to_device(reference, part)
    else:
        away = part - to_device(reference, part) if reference.any() else part
        first = weights @ away
        if xp is np and away.shape[1] <= NARROW:
            moments = [np.multiply(away.T, weights, order="C") @ away]
        else:
            away = away * xp.sqrt(weights)[:, None]
            moments = [away.T @ away]
    if xp is np:
        return AtomSums(float(top), float(total), first, moments[0] if second else None, scores)
    host = gather(top, total, first, *moments)
    return AtomSums(float(host[0]), float(host[1]), host[2], host[3] if second else None, scores)


def score_atoms(features: DeviceArray, phi: Floats) -> DeviceArray:
    """Return ``features @ phi``, (n,), in double precision for any storage dtype."""
    xp, (n, m) = namespace_of(features), features.shape
    along = to_device(phi, features, xp.float64)
    if features.dtype == xp.float64:
        return features @ along
    return join([xp.astype(features[rows, :], xp.float64) @ along for rows in pieces(n, max(1, ROOM // m))])
