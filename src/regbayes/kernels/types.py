"""The array types that kernels speak, and the small records they return."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from regbayes._types import Flags, Floats, Indices, Reals

Counts = NDArray[np.int16]
"""Answers of a row and how many of them are in play: small numbers, one set per row."""


Array = TypeVar("Array", bound=NDArray[Any])


def read_only(array: Array) -> Array:
    """Return a view that cannot be written to.

    Kernels are compiled per type and the type includes this flag, so inputs that may or may not be writable are best
    handed over as views that are not: one compilation serves both.
    """
    view = array.view()
    view.flags.writeable = False
    return view


class SweepGradient(NamedTuple):
    """What the reverse sweep returns beside the per-row gradient it writes; sums run over rows."""

    coupling: Floats
    """(k, k): gradient of the coupling matrix; its diagonal is zero."""
    theta_sum: Floats
    """(k,): the per-row gradient of theta, summed over rows."""
    start: Floats
    """(1, k): gradient of a start shared by all rows; (n, k): of a start per row."""


class BoxRows(NamedTuple):
    """The box dual as data; see ``reference_margins.box_epoch``. There are n rows, one multiplier each."""

    features: Reals
    """(f, d): rows may share features, as the labels of one example do."""
    norms: Floats
    """(f,): squared norms of the rows of ``features``."""
    feature_row: Indices
    """(n,): the row of ``features`` that belongs to each row."""
    task: Indices
    """(n,): the task whose weights it meets."""
    group: Indices
    """(tasks,): tasks of one group share weights."""
    linear: Floats
    """(n,)"""
    absolute: Floats
    """(n,): not negative."""
    ridge: Floats
    """(n,): not negative."""
    lower: Floats
    """(n,): may be -inf."""
    upper: Floats
    """(n,): may be inf."""
    sharing: float
    """The square of rho: how strongly the tasks of a group share weights; 0 for not at all."""
    penalty: float
    """The loss per unit of violation reported for an infinite bound without ridge: hard constraints."""


class BoxState(NamedTuple):
    """What coordinate ascent on the box dual writes."""

    dual: Floats
    """(n,): the multipliers u."""
    weights: Floats
    """(tasks, d): per task, the sum of ``u_i x_i``."""
    common: Floats
    """(groups, d): the weights summed over the tasks of a group; not kept up to date when ``sharing`` is zero."""
    active: Flags
    """(n,): False for rows set aside."""


class SimplexRows(NamedTuple):
    """The multi-class dual as data; see ``reference_margins.simplex_epoch``."""

    features: Reals
    """(n, k)"""
    norms: Floats
    """(n,): squared norms of the rows of ``features``."""
    labels: Indices
    """(n,): the true answers."""
    cost: Floats
    """(r, c): the loss of each answer; that of the true one is zero."""
    cost_row: Indices
    """(n,): the row of ``cost`` that applies: the label for a cost matrix, the row itself for costs per row."""
    total: Floats
    """(n,): what a row's multipliers sum to; infinite leaves the sum free, zero takes the row out."""
    ridge: Floats
    """(n,): the price of the squared sum where it is free; infinite takes the row out."""
    penalty: float
    """The loss per unit of slack reported for rows with a free sum and no ridge: hard margins."""


class SimplexState(NamedTuple):
    """What multi-class coordinate ascent writes."""

    omega: Floats
    """(n, c): the multipliers, none negative."""
    weights: Floats
    """(c, k): ``sum_n sum_c omega_nc (e_label(n) - e_c) features_n'``."""
    answers: Counts
    """(n, c): a permutation of the answers, per row; those in play come first."""
    n_answers: Counts
    """(n,): how many are in play."""


class Progress(NamedTuple):
    """What one pass of coordinate ascent saw, each row as it was found, just before its step."""

    violation: float
    """The largest violation of a row's optimality conditions; infinite when the dual is unbounded."""
    gap: float
    """The visited rows' part of the duality gap."""
    loss: float
    """The visited rows' loss, after a restart; otherwise zero, since answers set aside are not looked at."""


class MarginCheck(NamedTuple):
    """The loss over all rows and the duality gap, at fixed multipliers and weights."""

    loss: float
    gap: float
