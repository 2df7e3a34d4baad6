"""Sums over weighted atoms, draws or enumerated models, over arrays of any library: what `regularize` asks of them."""

from __future__ import annotations

from typing import NamedTuple

from regbayes._types import Floats
from regbayes.kernels.arrays import ROOM, DeviceArray, gather, join, namespace_of, pieces, to_device


class AtomSums(NamedTuple):
    """What atoms add to the partition function, relative to their largest score."""

    top: float
    total: float
    first: Floats  # (m,), about a reference point
    second: Floats | None  # (m, m), the same


def sum_atoms(
    features: DeviceArray, log_weights: DeviceArray, phi: Floats, reference: Floats, second: bool
) -> AtomSums:
    """Sum tilted weights of atoms, and with them features (n, m) less a reference, in double precision."""
    xp = namespace_of(features)
    scores = score_atoms(features, log_weights, phi)
    top = xp.max(scores)
    weights = xp.exp(scores - top)
    total = xp.sum(weights)
    about = to_device(reference, features, xp.float64)
    first, moments, (n, m) = None, None, features.shape
    for rows in pieces(n, max(1, ROOM // m)):
        some, here = xp.astype(features[rows, :], xp.float64, copy=False), weights[rows]
        if second:
            some = some - about
        found = here @ some
        first = found if first is None else first + found
        if second:
            some *= xp.sqrt(here)[:, None]
            found = some.T @ some
            moments = found if moments is None else moments + found
    if not second:
        first = first - total * about
    host = gather(top, total, first, moments) if second else gather(top, total, first)
    return AtomSums(float(host[0]), float(host[1]), host[2], host[3] if second else None)


def score_atoms(features: DeviceArray, log_weights: DeviceArray | None, phi: Floats) -> DeviceArray:
    """Return ``features @ phi + log_weights``, (n,), in double precision whatever the features are stored in."""
    xp = namespace_of(features)
    along = to_device(phi, features, xp.float64)
    if features.dtype == xp.float64:
        scores = features @ along
    else:
        n, m = features.shape
        scores = join(
            [xp.astype(features[rows, :], xp.float64, copy=False) @ along for rows in pieces(n, max(1, ROOM // m))]
        )
    return scores if log_weights is None else scores + log_weights
