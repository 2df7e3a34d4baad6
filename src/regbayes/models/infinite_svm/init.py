"""Where a fit starts: rows in the component of their nearest centre, and components merged that are better as one.

The centres are those of k-means in standardised columns. As many of them as the truncation allows are usually too many,
and coordinate descent hardly ever joins two halves of a cluster; whole components are cheap to join beforehand.
"""

from __future__ import annotations

import numpy as np
from scipy.special import xlogy

from regbayes._types import Floats, Integers
from regbayes.models.infinite_svm.state import Settings
from regbayes.models.infinite_svm.updates import label_free, update_globals
from regbayes.priors import dirichlet_process, normal_gamma
from regbayes.priors.dirichlet_process import best_order
from regbayes.priors.normal_gamma import sums

SWEEPS = 20  # of k-means: it is only a start
ROUNDS = 10  # of coordinate descent before two components are merged
EMPTY = 1e-6  # expected number of rows of a component that need not be merged


def initial_responsibilities(X: Floats, settings: Settings, rng: np.random.Generator) -> Floats:
    """Return responsibilities without labels, shape (N, T), components in order of size; unused ones come last."""
    q = np.zeros((len(X), settings.n_components))
    q[np.arange(len(X)), nearest_centres(X, settings.n_components, rng)] = 1.0
    if not settings.merge:
        return q[:, best_order(q.sum(axis=0))]
    for _ in range(settings.n_components):
        q = _relaxed(X, q, settings)
        gains, pairs = merge_gains(X, q, settings)
        if not len(gains) or gains.max() <= 0:
            break
        first, second = pairs[np.argmax(gains)]
        q[:, first] += q[:, second]
        q[:, second] = 0.0
    return q


def _relaxed(X: Floats, q: Floats, settings: Settings) -> Floats:
    """Rounds of coordinate descent without labels."""
    for _ in range(ROUNDS):
        q = label_free(X, update_globals(X, q[:, best_order(q.sum(axis=0))], settings))
    return np.ascontiguousarray(q[:, best_order(q.sum(axis=0))])


def merge_gains(X: Floats, q: Floats, settings: Settings) -> tuple[Floats, Integers]:
    """What the bound gains when two components become one, all else at its best, eq. (104); and the pairs, (P, 2)."""
    counts = q.sum(axis=0)
    used = np.flatnonzero(counts > EMPTY)
    i, j = used[np.array(np.triu_indices(len(used), 1))]
    parts = sums(X, q, settings.prior)
    alone = normal_gamma.log_evidence(parts, settings.prior)
    gains = normal_gamma.log_evidence(parts[i] + parts[j], settings.prior) - alone[i] - alone[j]
    after = np.repeat(counts[None], len(i), axis=0)
    after[np.arange(len(i)), i] += after[np.arange(len(i)), j]
    after[np.arange(len(i)), j] = 0.0
    gains += dirichlet_process.log_evidence(-np.sort(-after, axis=1), settings.alpha)
    gains -= dirichlet_process.log_evidence(-np.sort(-counts), settings.alpha)
    entropies = xlogy(q, q).sum(axis=0)
    for pair, (first, second) in enumerate(zip(i, j, strict=True)):
        both = q[:, first] + q[:, second]
        gains[pair] += entropies[first] + entropies[second] - xlogy(both, both).sum()
    return gains, np.column_stack([i, j])


def nearest_centres(X: Floats, k: int, rng: np.random.Generator) -> Integers:
    """Run k-means in standardised columns; return the number of each row's centre."""
    scale = X.std(axis=0)
    rows = (X - X.mean(axis=0)) / np.where(scale > 0, scale, 1.0)
    centres = _spread_out(rows, k, rng)
    nearest = _nearest(rows, centres)
    for _ in range(SWEEPS):
        counts = np.bincount(nearest, minlength=len(centres))
        totals = np.zeros_like(centres)
        np.add.at(totals, nearest, rows)
        used = counts > 0
        centres[used] = totals[used] / counts[used, None]
        before, nearest = nearest, _nearest(rows, centres)
        if np.array_equal(before, nearest):
            break
    return nearest


def _spread_out(rows: Floats, k: int, rng: np.random.Generator) -> Floats:
    """Rows far from each other, at most k: drawn by squared distance to those before (k-means++)."""
    chosen = [int(rng.integers(len(rows)))]
    distance = np.square(rows - rows[chosen[0]]).sum(axis=1)
    while len(chosen) < k and distance.max() > 0:
        chosen.append(int(rng.choice(len(rows), p=distance / distance.sum())))
        distance = np.minimum(distance, np.square(rows - rows[chosen[-1]]).sum(axis=1))
    return rows[chosen].copy()


def _nearest(rows: Floats, centres: Floats) -> Integers:
    return np.asarray(np.argmin(np.square(centres).sum(axis=1) - 2.0 * rows @ centres.T, axis=1))
