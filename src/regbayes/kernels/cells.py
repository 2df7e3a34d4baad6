"""Squared losses of cells, which are outputs of rows: a look at them and their curvature, each in one call.

NumPy needs a dozen calls for a block of rows, and takes the interpreter's lock after each. With four threads that does
not matter, and with sixteen they mostly wait for it. Cells are a matrix, rows by outputs, or a list, output by output.
Their losses are as `regbayes.margins.cells` has it: numbers that broadcast to the matrix, or to a list that
is a column.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from regbayes._types import Floats
from regbayes.kernels._compile import compiled, compiled_inline, read_only

PIECE_ROWS = 2048  # that are looked at together


class CellForms(NamedTuple):
    """The losses of cells; each has two axes, of which either may have length one."""

    linear: NDArray[Any]
    """Minus the targets."""
    absolute: Floats
    """Half-width of the free tube."""
    stiffness: Floats
    side: NDArray[np.int8]
    """1 or -1: the sign that multipliers have; 0: there is no cell."""
    is_free: bool
    """Whether multipliers have either sign, wherever there is a cell."""


class CellSums(NamedTuple):
    """What an evaluation of cells finds, beside the multipliers that it writes."""

    loss: float
    pulled: Floats
    """(outputs, k): sums of rows with multipliers."""
    totals: Floats
    """(outputs,): sums of multipliers."""


class Listed(NamedTuple):
    """Where the cells of a list are: those of one output after another."""

    rows: NDArray[np.int32]
    """(c,)"""
    outputs: NDArray[np.int64]
    """(s,): those that any of the rows has."""
    edges: NDArray[np.int64]
    """(s + 1,): where their cells begin and end."""


def make_forms(
    linear: NDArray[Any],
    absolute: NDArray[Any],
    stiffness: NDArray[Any],
    side: NDArray[np.int8] | None,
    seen: NDArray[np.bool_] | None,
) -> CellForms:
    """Return the losses of cells as the kernels take it, without a copy of what is large."""
    whole = np.ones((1, 1), dtype=np.int8) if seen is None else seen.view(np.int8)
    return CellForms(
        read_only(_two_axes(linear)),
        read_only(_two_axes(absolute).astype(np.float64, copy=False)),
        read_only(_two_axes(stiffness).astype(np.float64, copy=False)),
        read_only(_two_axes(whole if side is None else side)),
        side is None,
    )


def _two_axes(values: NDArray[Any]) -> NDArray[Any]:
    return np.ascontiguousarray(values.reshape(-1, 1) if values.ndim < 2 else values)


@compiled_inline
def _shrink(score: float, linear: float, absolute: float, side: int, is_free: bool) -> float:
    """Return what stiffness multiplies, with its sign."""
    away = -score - linear
    if absolute > 0.0:
        away -= min(max(away, -absolute), absolute)
    if is_free:
        return away if side != 0 else 0.0
    return side * max(side * away, 0.0)


@compiled
def _evaluate(
    features: Floats,
    weights: Floats,
    constant: Floats,
    linear: NDArray[Any],
    absolute: Floats,
    stiffness: Floats,
    side: NDArray[np.int8],
    is_free: bool,
    sums: bool,
    phi: Floats,
) -> tuple[float, Floats, Floats]:
    n, m = features.shape[0], weights.shape[1]
    keeps = phi.shape[0] == n
    loss, totals = 0.0, np.zeros(m)
    pulled = np.zeros((m, features.shape[1])) if sums else np.zeros((0, 0))
    tall, wide = linear.shape[0] > 1, linear.shape[1] > 1
    absolute_tall, absolute_wide = absolute.shape[0] > 1, absolute.shape[1] > 1
    stiff_tall, stiff_wide = stiffness.shape[0] > 1, stiffness.shape[1] > 1
    side_tall, side_wide = side.shape[0] > 1, side.shape[1] > 1
    for first in range(0, n, PIECE_ROWS):  # rows that fit a cache with their losses
        x = features[first : min(first + PIECE_ROWS, n)]
        found = phi[first : first + x.shape[0]] if keeps else phi[: x.shape[0]]
        np.dot(x, weights, found)
        for place in range(x.shape[0]):
            i, row = first + place, 0.0
            for j in range(m):
                away = _shrink(
                    found[place, j] + constant[j],
                    linear[i if tall else 0, j if wide else 0],
                    absolute[i if absolute_tall else 0, j if absolute_wide else 0],
                    side[i if side_tall else 0, j if side_wide else 0],
                    is_free,
                )
                multiplier = stiffness[i if stiff_tall else 0, j if stiff_wide else 0] * away
                row += multiplier * away
                found[place, j] = multiplier
            loss += row
        if not sums:
            continue
        for j in range(m):
            total = 0.0
            for place in range(x.shape[0]):
                total += found[place, j]
            totals[j] += total
        pulled += np.dot(found.T, x)
    return 0.5 * loss, pulled, totals


@compiled
def _add_curvature(
    features: Floats,
    weights: Floats,
    linear: NDArray[Any],
    absolute: Floats,
    stiffness: Floats,
    side: NDArray[np.int8],
    is_free: bool,
    found: Floats,
) -> None:
    n, m = features.shape[0], weights.shape[1]
    room = np.empty((min(n, PIECE_ROWS), features.shape[1]))
    # Parabolas without a hole, which are the same for all outputs of a row: so is the second derivative.
    alike = is_free and side.size == 1 and absolute.size == 1 and absolute[0, 0] == 0.0 and stiffness.shape[1] == 1
    tall, wide = linear.shape[0] > 1, linear.shape[1] > 1
    absolute_tall, absolute_wide = absolute.shape[0] > 1, absolute.shape[1] > 1
    stiff_tall, stiff_wide = stiffness.shape[0] > 1, stiffness.shape[1] > 1
    side_tall, side_wide = side.shape[0] > 1, side.shape[1] > 1
    if alike and not stiff_tall:
        found += stiffness[0, 0] * abs(side[0, 0]) * np.dot(features.T, features)
        return
    for first in range(0, n, PIECE_ROWS):
        x = features[first : min(first + PIECE_ROWS, n)]
        if alike:
            for place in range(x.shape[0]):
                root = np.sqrt(stiffness[first + place, 0]) if side[0, 0] != 0 else 0.0
                for column in range(x.shape[1]):
                    room[place, column] = root * x[place, column]
            found += np.dot(room[: x.shape[0]].T, room[: x.shape[0]])
            continue
        scores = np.dot(x, weights)
        for j in range(m):
            count = 0
            for place in range(x.shape[0]):
                i = first + place
                tube = absolute[i if absolute_tall else 0, j if absolute_wide else 0]
                own = side[i if side_tall else 0, j if side_wide else 0]
                away = _shrink(scores[place, j], linear[i if tall else 0, j if wide else 0], tube, own, is_free)
                if away != 0.0 or (is_free and tube == 0.0 and own != 0):
                    root = np.sqrt(stiffness[i if stiff_tall else 0, j if stiff_wide else 0])
                    for column in range(x.shape[1]):
                        room[count, column] = root * x[place, column]
                    count += 1
            if count:
                found[j] += np.dot(room[:count].T, room[:count])


@compiled
def _evaluate_list(
    features: Floats,
    weights: Floats,
    constant: Floats,
    linear: NDArray[Any],
    absolute: Floats,
    stiffness: Floats,
    side: NDArray[np.int8],
    is_free: bool,
    rows: NDArray[np.int32],
    outputs: NDArray[np.int64],
    edges: NDArray[np.int64],
    sums: bool,
    phi: Floats,
    pulled: Floats,
    totals: Floats,
) -> float:
    loss = 0.0
    tall, absolute_tall = linear.shape[0] > 1, absolute.shape[0] > 1
    stiff_tall, side_tall = stiffness.shape[0] > 1, side.shape[0] > 1
    for s in range(outputs.size):
        output, total, part = outputs[s], 0.0, 0.0
        for c in range(edges[s], edges[s + 1]):
            i = rows[c]
            score = constant[output]
            for k in range(features.shape[1]):
                score += weights[output, k] * features[i, k]
            tube, own = absolute[c if absolute_tall else 0, 0], side[c if side_tall else 0, 0]
            away = _shrink(score, linear[c if tall else 0, 0], tube, own, is_free)
            multiplier = stiffness[c if stiff_tall else 0, 0] * away
            phi[c, 0] = multiplier
            part += multiplier * away
            total += multiplier
            if sums and multiplier != 0.0:
                for k in range(features.shape[1]):
                    pulled[output, k] += multiplier * features[i, k]
        loss += part
        totals[output] = total
    return 0.5 * loss


@compiled
def _add_list_curvature(
    features: Floats,
    weights: Floats,
    linear: NDArray[Any],
    absolute: Floats,
    stiffness: Floats,
    side: NDArray[np.int8],
    is_free: bool,
    rows: NDArray[np.int32],
    outputs: NDArray[np.int64],
    edges: NDArray[np.int64],
    found: Floats,
) -> None:
    tall, absolute_tall = linear.shape[0] > 1, absolute.shape[0] > 1
    stiff_tall, side_tall = stiffness.shape[0] > 1, side.shape[0] > 1
    longest = 0
    for s in range(outputs.size):
        longest = max(longest, edges[s + 1] - edges[s])
    room = np.empty((longest, features.shape[1]))
    for s in range(outputs.size):
        output, count = outputs[s], 0
        for c in range(edges[s], edges[s + 1]):
            i = rows[c]
            score = 0.0
            for k in range(features.shape[1]):
                score += weights[output, k] * features[i, k]
            tube, own = absolute[c if absolute_tall else 0, 0], side[c if side_tall else 0, 0]
            away = _shrink(score, linear[c if tall else 0, 0], tube, own, is_free)
            if away != 0.0 or (is_free and tube == 0.0 and own != 0):
                root = np.sqrt(stiffness[c if stiff_tall else 0, 0])
                for k in range(features.shape[1]):
                    room[count, k] = root * features[i, k]
                count += 1
        if count:
            found[output] += np.dot(room[:count].T, room[:count])


@compiled
def _pull_back_list(
    phi: Floats,
    weights: Floats,
    rows: NDArray[np.int32],
    outputs: NDArray[np.int64],
    edges: NDArray[np.int64],
    found: Floats,
) -> None:
    for s in range(outputs.size):
        for c in range(edges[s], edges[s + 1]):
            multiplier = phi[c, 0]
            if multiplier != 0.0:
                for k in range(weights.shape[1]):
                    found[rows[c], k] += multiplier * weights[outputs[s], k]


def evaluate(features: Floats, weights: Floats, constant: Floats, forms: CellForms, phi: Floats) -> CellSums:
    """Evaluate cells whose scores are ``features @ weights.T + constant``; write their multipliers, (n, outputs).

    Where ``phi`` has fewer rows, `PIECE_ROWS`, it is room to work in: it ends with the multipliers of some rows.
    """
    return CellSums(*_evaluate(read_only(features), np.ascontiguousarray(weights.T), constant, *forms, True, phi))


def find_multipliers(features: Floats, weights: Floats, constant: Floats, forms: CellForms, phi: Floats) -> None:
    """Write the multipliers of cells, as `evaluate` does, and sum nothing."""
    _evaluate(read_only(features), np.ascontiguousarray(weights.T), constant, *forms, False, phi)


def add_curvature(features: Floats, weights: Floats, forms: CellForms, found: Floats) -> None:
    """Add the second derivative of the losses in each output's weights to that of other rows, (outputs, k, k)."""
    _add_curvature(read_only(features), np.ascontiguousarray(weights.T), *forms, found)


def _fix(listed: Listed) -> Listed:
    return Listed(read_only(listed.rows), read_only(listed.outputs), read_only(listed.edges))


def evaluate_list(
    features: Floats,
    weights: Floats,
    constant: Floats,
    forms: CellForms,
    listed: Listed,
    phi: Floats,
    sums: bool = True,
) -> CellSums:
    """Evaluate listed cells and write their multipliers, (c, 1); without sums those of rows are zero."""
    pulled, totals = np.zeros(weights.shape), np.zeros(len(weights))
    own = np.ascontiguousarray(weights)
    loss = _evaluate_list(read_only(features), own, constant, *forms, *_fix(listed), sums, phi, pulled, totals)
    return CellSums(loss, pulled, totals)


def add_list_curvature(features: Floats, weights: Floats, forms: CellForms, listed: Listed, found: Floats) -> None:
    """Add the second derivative of the losses of listed cells to that of other rows, (outputs, k, k)."""
    _add_list_curvature(read_only(features), np.ascontiguousarray(weights), *forms, *_fix(listed), found)


def pull_back_list(phi: Floats, weights: Floats, listed: Listed, found: Floats) -> None:
    """Add the weights of each row's outputs, times their multipliers (c, 1), to what rows have, (n, k)."""
    _pull_back_list(read_only(phi), np.ascontiguousarray(weights), *_fix(listed), found)
