"""Whether features have a gradient that a sampler can follow: what they gain between draws is the integral of it.

An indicator has a gradient that is zero, a staircase on a slope one that is not; between draws both gain more than
their gradients add up to.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from regbayes._types import Array, Flags, Floats

PAIRS, NODES = 12, 64  # lines between draws, and points on each
JUMPS = 0.15  # of a difference that its gradient may leave unexplained


def check_gradients(
    positions: Floats, values: Floats, integrate: Callable[[Floats, Floats, Floats, Floats], tuple[Array, Array]]
) -> Flags:
    """Say of each feature whether its gradients explain its differences, shape (m,).

    Parameters
    ----------
    positions : array of shape (n, d)
        Draws, in the sampler's coordinates.
    values : array of shape (n, m)
        Their features.
    integrate : callable
        From the two ends of lines, (k, d) each, and nodes and weights on the unit interval to the features' gains by
        their gradients and by their values at the ends, (k, m) each.
    """
    ends = np.linspace(0, len(positions) - 1, 2 * PAIRS).astype(int)
    pairs = [(int(a), int(b)) for a, b in zip(ends[:PAIRS], ends[PAIRS:], strict=True)]
    pairs += [(int(np.argmin(column)), int(np.argmax(column))) for column in values.T]
    nodes, weights = np.polynomial.legendre.leggauss(NODES)
    first, last = positions[[a for a, _ in pairs]], positions[[b for _, b in pairs]]
    gained, ahead = integrate(first, last, 0.5 * (nodes + 1), 0.5 * weights)
    left, whole = np.abs(gained - ahead).mean(axis=0), np.abs(ahead).mean(axis=0)
    flat = (np.abs(gained).max(axis=0) == 0) & (values.std(axis=0) == 0)
    smooth: Flags = (left <= JUMPS * whole) & ~flat
    return smooth
