"""Kernel stick-breaking: shares of components that depend on where one is (Dunson and Park 2008).

With sticks ``v_k ~ Beta(1, alpha)`` as in the Dirichlet process, a centre for every component, and a kernel K between 0
and 1 that says how near a centre is,

    share_k(x) = v_k K(x, centre_k) prod_{j<k} (1 - v_j K(x, centre_j))

A component is open to x with probability K and taken with probability v, and x belongs to the first one that is both.
For those that x passes by, whether they were taken or not open is a further variable of the mean field, and
``E[log(1 - v K)] >= log(exp E[log v] (1 - K) + exp E[log(1 - v)])`` is what its best distribution leaves. Where K is 1
everywhere this is the Dirichlet process and the bound is an equation.

Kernels are given as logarithms, a row for every x and a column for every component.
"""

from __future__ import annotations

import numpy as np

from regbayes._types import Floats, Integers
from regbayes_paper.priors.dirichlet_process import Sticks, log_sticks


def log_shares(sticks: Sticks, log_kernel: Floats) -> Floats:
    """Return the bound on ``E[log share_k(x)]``, shape (M, T)."""
    log_taken, _ = log_sticks(sticks)
    passing = log_passing(sticks, log_kernel)
    return np.asarray(log_taken + log_kernel + np.cumsum(passing, axis=1) - passing)


def log_passing(sticks: Sticks, log_kernel: Floats) -> Floats:
    """Return the bound on ``E[log(1 - v_k K)]``, shape (..., T)."""
    log_taken, log_rest = log_sticks(sticks)
    return np.asarray(np.logaddexp(log_taken + _log_closed(log_kernel), log_rest))


def update_sticks(sticks: Sticks, log_kernel: Floats, memberships: Floats, alpha: float) -> Sticks:
    """Return better sticks: the best for what passing by means under the present ones.

    Parameters
    ----------
    sticks : Sticks
        The present ones, (T,).
    log_kernel, memberships : (M, T)
    alpha : float
    """
    log_taken, _ = log_sticks(sticks)
    passed = _later(memberships)
    taken = np.exp(log_taken + _log_closed(log_kernel) - log_passing(sticks, log_kernel))
    first = 1.0 + np.sum(memberships + passed * taken, axis=0)
    return Sticks(first, alpha + np.sum(passed * (1.0 - taken), axis=0))


def best_centres(sticks: Sticks, log_kernel: Floats, memberships: Floats) -> Integers:
    """Return the best centre of every component among candidates, shape (T,).

    Parameters
    ----------
    sticks : Sticks
        (T,)
    log_kernel : (M, J)
        Of every candidate.
    memberships : (M, T)
    """
    passed = _later(memberships)
    passing = log_passing(sticks, log_kernel[:, :, None])
    values = memberships.T @ log_kernel + np.einsum("mt,mjt->tj", passed, passing)
    return np.asarray(values.argmax(axis=1))


def _log_closed(log_kernel: Floats) -> Floats:
    """``log(1 - K)``."""
    with np.errstate(divide="ignore"):  # at the centre itself
        return np.asarray(np.log(-np.expm1(log_kernel)))


def _later(memberships: Floats) -> Floats:
    """Probability of a component after each one."""
    return np.asarray(np.cumsum(memberships[:, ::-1], axis=1)[:, ::-1] - memberships)
