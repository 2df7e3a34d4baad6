"""Dual coordinate ascent on a box, for binary margins, regression and bounds.

The method is that of LIBLINEAR (Hsieh et al., ICML 2008; Ho and Lin, JMLR 2012), with a closed-form step per multiplier
and shrinking: rows whose multipliers cannot change are skipped.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from regbayes._types import Flags, Floats, Indices, Reals
from regbayes.kernels._compile import compiled, compiled_inline, read_only
from regbayes.kernels.types import SATISFIED


class BoxRows(NamedTuple):
    """Data of the box dual with one multiplier per row; see `box_epoch`."""

    features: Reals  # (f, d): rows may share features, as the labels of one example do
    norms: Floats  # (f,): squared norms of the rows of ``features``
    feature_row: Indices  # (n,): the row of ``features`` that belongs to each row
    task: Indices  # (n,): the task whose weights it meets
    group: Indices  # (tasks,): tasks of one group share weights
    linear: Floats  # (n,)
    absolute: Floats  # (n,): not negative
    ridge: Floats  # (n,): not negative
    lower: Floats  # (n,): may be -inf
    upper: Floats  # (n,): may be inf
    sharing: float  # The square of rho: how strongly the tasks of a group share weights; 0 for not at all
    penalty: float  # The loss per unit of violation reported for an infinite bound without ridge: hard constraints


class BoxState(NamedTuple):
    """State of coordinate ascent on the box dual, updated in place."""

    dual: Floats  # (n,): the multipliers u
    weights: Floats  # (tasks, d): per task, the sum of ``u_i x_i``
    common: Floats
    """(groups, d): the weights summed over the tasks of a group; not kept up to date when ``sharing`` is zero."""
    in_play: Flags  # (n,): False for rows left out


@compiled_inline
def _score(features: Reals, f: int, weights: Floats, t: int, sharing: float, common: Floats, g: int) -> float:
    """Return ``<features[f], weights[t] + sharing * common[g]>``."""
    own, shared = 0.0, 0.0
    if sharing == 0.0:
        for k in range(features.shape[1]):
            own += features[f, k] * weights[t, k]
        return own
    for k in range(features.shape[1]):
        own += features[f, k] * weights[t, k]
        shared += features[f, k] * common[g, k]
    return own + sharing * shared


@compiled_inline
def _best(
    linear: float, absolute: float, curvature: float, lower: float, upper: float, penalty: float, keep: float
) -> float:
    """Return the u in the box that maximizes ``-linear u - absolute |u| - curvature u^2 / 2``; ``keep`` if all do.

    Without curvature the result is a bound; an infinite one counts as ``penalty``.
    """
    pull = max(-linear - absolute, 0.0) - max(linear - absolute, 0.0)
    if curvature > 0.0:
        return min(max(pull / curvature, lower), upper)
    if pull == 0.0:
        return keep
    if pull < 0.0:
        return -penalty if np.isinf(lower) else lower
    return penalty if np.isinf(upper) else upper


@compiled_inline
def _loss_and_gap(
    linear: float, absolute: float, ridge: float, lower: float, upper: float, penalty: float, u: float
) -> tuple[float, float]:
    """Return the row's loss and its part of the duality gap; ``linear`` includes the score."""
    best = _best(linear, absolute, ridge, lower, upper, penalty, min(max(0.0, lower), upper))
    loss = -linear * best - absolute * abs(best) - 0.5 * ridge * best * best
    return loss, loss + linear * u + absolute * abs(u) + 0.5 * ridge * u * u


@compiled
def box_epoch(rows: BoxRows, order: Indices, restart: bool, state: BoxState) -> tuple[float, float, float]:
    """Visit rows once, minimizing the box dual exactly over each multiplier.

    The dual over ``lower <= u <= upper`` is ``1/2 sum_t |weights_t|^2 + sharing / 2 sum_g |common_g|^2`` plus
    ``sum_i linear_i u_i + absolute_i |u_i| + ridge_i u_i^2 / 2``, where ``weights_t`` sums ``u_i x_i`` over the rows of
    task t, ``x_i = features[feature_row_i]``, and ``common_g`` sums the weights of the tasks of group g.

    Parameters
    ----------
    rows : BoxRows
    order : (v,)
        The rows to visit.
    restart : bool
        Whether to visit rows that were skipped too.
    state : BoxState
        Updated in place. A row is skipped if both directions away from its multiplier increase the dual.

    Returns
    -------
    violation, gap, loss : float
        The largest violation of a row's optimality conditions, infinite if the dual is unbounded; the part of the
        duality gap of the visited rows; and their loss after a restart, otherwise zero. Each row is evaluated just
        before its step.
    """
    # Fields are unpacked once: reading one from a record inside the loop costs two atomic operations.
    features, norms, feature_row, task, group, linears, absolutes, ridges, lowers, uppers, sharing, penalty = rows
    dual, weights, common, active = state
    violation, gap, loss = 0.0, 0.0, 0.0
    for i in order:
        if not (restart or active[i]):
            continue
        f, t, u, absolute, ridge = feature_row[i], task[i], dual[i], absolutes[i], ridges[i]
        linear = _score(features, f, weights, t, sharing, common, group[t]) + linears[i]
        row_loss, row_gap = _loss_and_gap(linear, absolute, ridge, lowers[i], uppers[i], penalty, u)
        if restart:
            loss += row_loss
        gap += row_gap
        slope = linear + ridge * u
        left = -np.inf if u <= lowers[i] else slope + (absolute if u > 0.0 else -absolute)
        right = np.inf if u >= uppers[i] else slope + (absolute if u >= 0.0 else -absolute)
        active[i] = left >= 0.0 or right <= 0.0
        row_violation = max(left, -right)
        if row_violation <= SATISFIED:
            continue
        curvature = (1.0 + sharing) * norms[f]
        best = _best(linear - curvature * u, absolute, curvature + ridge, lowers[i], uppers[i], np.inf, u)
        if np.isinf(best):
            violation = np.inf
            continue
        violation = max(violation, row_violation)
        dual[i] = best
        change = best - u
        for k in range(features.shape[1]):
            weights[t, k] += change * features[f, k]
        if sharing != 0.0:
            for k in range(features.shape[1]):
                common[group[t], k] += change * features[f, k]
    return violation, gap, loss


@compiled
def box_check(rows: BoxRows, state: BoxState) -> tuple[float, float]:
    """Return the loss and the duality gap at the state's multipliers and weights, without changes.

    The primal objective is ``1/2 sum_t |weights_t|^2 + sharing / 2 sum_g |common_g|^2`` plus the loss.
    """
    features, _norms, feature_row, task, group, linears, absolutes, ridges, lowers, uppers, sharing, penalty = rows
    dual, weights, common, _active = state
    loss, gap = 0.0, 0.0
    for i in range(task.size):
        t = task[i]
        linear = _score(features, feature_row[i], weights, t, sharing, common, group[t]) + linears[i]
        row_loss, row_gap = _loss_and_gap(linear, absolutes[i], ridges[i], lowers[i], uppers[i], penalty, dual[i])
        loss += row_loss
        gap += row_gap
    return loss, gap


# --- cells: pairs of sample and output


@compiled
def _score_cells(columns: Reals, rows: Indices, outputs: Indices, weights: Floats, scores: Floats) -> None:
    for i in range(rows.size):
        scores[i] = _score(columns, rows[i], weights, outputs[i], 0.0, weights, 0)


@compiled
def _sum_cells(columns: Reals, rows: Indices, outputs: Indices, values: Floats, total: Floats) -> None:
    for i in range(rows.size):
        value, t, f = values[i], outputs[i], rows[i]
        if value != 0.0:
            for k in range(columns.shape[1]):
                total[t, k] += value * columns[f, k]


def score_cells(columns: Reals, rows: Indices, outputs: Indices, weights: Floats, scores: Floats) -> None:
    """Write ``scores_i = <columns[rows_i], weights[outputs_i]>``."""
    _score_cells(read_only(columns), read_only(rows), read_only(outputs), read_only(weights), scores)


def sum_cells(columns: Reals, rows: Indices, outputs: Indices, values: Floats, total: Floats) -> None:
    """Add ``values_i columns[rows_i]`` to ``total[outputs_i]``."""
    _sum_cells(read_only(columns), read_only(rows), read_only(outputs), read_only(values), total)


def box_weights(rows: BoxRows, dual: Floats) -> Floats:
    """Return, per task, ``sum_i dual_i x_i``, (tasks, d)."""
    weights = np.zeros((rows.group.size, rows.features.shape[1]))
    sum_cells(rows.features, rows.feature_row, rows.task, dual, weights)
    return weights
