"""Label-free inference of the features of rows, and the way back: pure functions whose statistics add up.

``local_step(rows, globals) -> (psi, Stats)`` is all that the generative part ever does with rows, docs/math.md
eq. (31). Rows are taken in chunks of fixed size and the sums in their order, so that the result is the same for any
number of threads, and chunks could as well live on other machines.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import TypeVar

import numpy as np
from scipy.special import expit

from regbayes._types import Floats
from regbayes.kernels.chunks import map_chunks
from regbayes.kernels.sweeps import reverse_features, sweep_features
from regbayes.models.ilsvm.rows import Rows
from regbayes.models.ilsvm.state import Globals

Summed = TypeVar("Summed", bound="_Sums")


@dataclass(frozen=True)
class _Sums:
    """Sums over rows: two of them can be added."""

    def __add__(self: Summed, other: Summed) -> Summed:
        return type(self)(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))


@dataclass(frozen=True)
class Stats(_Sums):
    """What the objective and the global updates need to know of rows."""

    n_rows: float
    squared_norm: float  # sum of ||x_n||^2
    counts: Floats  # (K,): sum of psi_n
    gram: Floats  # (K, K): sum of psi_n psi_n'
    explained: float  # sum of psi_n' Phi x_n, at the loadings in force
    entropy: float  # sum of H(q(z_n))


@dataclass(frozen=True)
class GradientStats(_Sums):
    """What the gradient of the loadings needs to know of rows, docs/math.md eq. (33)-(34)."""

    coupling: Floats  # (K, K)
    theta: Floats  # (K,): summed gradient of theta
    cross: Floats  # (K, D): sum of (gradient of theta_n - r psi_n) x_n'


def local_step(X: Rows, g: Globals) -> tuple[Floats, Stats]:
    """Infer the features of rows without their labels, and sum what the rest of the model needs."""
    theta = base_logits(X, g)
    psi = _sweep(theta, g, g.n_sweeps)
    counts = psi.sum(axis=0)
    # theta is c Phi x plus a constant for each feature, so the product with X need not be formed again.
    explained = (float(np.vdot(psi, theta)) - float(counts @ _constant_logits(g))) / g.precision
    return psi, Stats(float(len(X)), float(X.squared_norms.sum()), counts, psi.T @ psi, explained, entropy(psi))


def sum_rows(X: Rows, psi: Floats) -> tuple[Stats, Floats]:
    """Return the statistics of rows whose features are given, and the sum of ``psi_n x_n'``, shape (K, D).

    What is explained depends on the loadings; `explain` says how much, and it is left at zero here.
    """
    squared_norm = float(X.squared_norms.sum())
    stats = Stats(float(len(X)), squared_norm, psi.sum(axis=0), psi.T @ psi, 0.0, entropy(psi))
    return stats, X.combine(psi)


def explain(stats: Stats, cross: Floats, g: Globals) -> Stats:
    """Return the statistics with what the loadings explain, from the sum of ``psi_n x_n'``."""
    return replace(stats, explained=float(np.vdot(cross, g.loadings)))


def entropy(psi: Floats) -> float:
    """Summed entropy of independent binary features."""
    rest = 1.0 - psi
    tiny = np.finfo(np.float64).tiny  # 0 log 0 = 0
    return -float(np.vdot(psi, np.log(np.maximum(psi, tiny))) + np.vdot(rest, np.log(np.maximum(rest, tiny))))


def reverse_step(X: Rows, psi: Floats, gradient: Floats, g: Globals, weight: float) -> GradientStats:
    """Differentiate through the inference: from a gradient with respect to psi to one of the global parameters.

    Parameters
    ----------
    X : Rows
        n of them.
    psi : array of shape (n, K)
        What `local_step` returned for these rows.
    gradient : array of shape (n, K)
        Gradient of the margin part with respect to psi. It is overwritten.
    g : Globals
    weight : float
        Weight r of the generative part, whose own gradient with respect to psi is added, docs/math.md eq. (32).
    """
    coupling = g.coupling
    start = expit(g.log_odds)[None, :]
    theta = None if g.n_sweeps == 1 else base_logits(X, g)
    before = start if theta is None else _sweep(theta, g, g.n_sweeps - 1)
    # logit(psi_k) has seen the features after k as they were one sweep earlier; that is all it differs by from theta
    # less the couplings, and it is zero once the sweeps have converged.
    gradient += weight * ((psi - before) @ np.tril(coupling, -1))
    sums = reverse_features(gradient, psi, theta, coupling, start, g.n_sweeps, gradient)
    gradient -= weight * psi
    return GradientStats(sums.coupling, sums.theta_sum, X.combine(gradient))


def infer(X: Rows, g: Globals, n_threads: int) -> Floats:
    """Return psi of all rows, chunk by chunk, as `local_step` does, shape (N, K): what prediction needs."""
    psi = np.empty((len(X), len(g.loadings)))

    def work(_: int, first: int, last: int) -> None:
        psi[first:last] = _sweep(base_logits(X.take(slice(first, last)), g), g, g.n_sweeps)

    map_chunks(work, len(X), n_threads)
    return psi


def infer_all(X: Rows, g: Globals, n_threads: int) -> tuple[Floats, Stats]:
    """`local_step` over all rows, chunk by chunk."""
    psi = np.empty((len(X), len(g.loadings)))

    def work(_: int, first: int, last: int) -> Stats:
        psi[first:last], stats = local_step(X.take(slice(first, last)), g)
        return stats

    return psi, _total(map_chunks(work, len(X), n_threads))


def reverse_all(
    X: Rows, psi: Floats, slopes: Callable[[slice], Floats], g: Globals, weight: float, n_threads: int
) -> GradientStats:
    """`reverse_step` over all rows, chunk by chunk; ``slopes`` returns the gradient with respect to psi of a chunk."""

    def work(_: int, first: int, last: int) -> GradientStats:
        rows = slice(first, last)
        return reverse_step(X.take(rows), psi[rows], slopes(rows), g, weight)

    return _total(map_chunks(work, len(X), n_threads))


def _total(parts: list[Summed]) -> Summed:
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def base_logits(X: Rows, g: Globals) -> Floats:
    """Return theta, the part of the logits that does not depend on other features, docs/math.md eq. (31)."""
    theta = X.project(g.precision * g.loadings)
    theta += _constant_logits(g)
    return theta


def _constant_logits(g: Globals) -> Floats:
    """Return the part of theta that is the same for all rows, shape (K,)."""
    squares = np.einsum("kd,kd->k", g.loadings, g.loadings)
    return np.asarray(g.log_odds - 0.5 * g.precision * (squares + g.loadings.shape[1] * g.variances))


def _sweep(theta: Floats, g: Globals, n_sweeps: int) -> Floats:
    psi = np.empty_like(theta)
    sweep_features(theta, g.coupling, expit(g.log_odds)[None, :], n_sweeps, psi)
    return psi
