"""Dual coordinate ascent for large-margin problems.

It solves the large-margin problem for weights with a standard normal prior. Their posterior mean is a sum of features
weighted by multipliers, which solve a quadratic program. Constraints are a box (binary margins, epsilon-insensitive
regression, hard bounds; one task or several that share weights) or one simplex per row (multi-class margins,
docs/math.md eq. (26)).

A pass over all rows finds those whose multipliers can still change. Cheap passes over those rows follow until their
part of the gap has decreased enough, then another pass over all rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from regbayes._types import Floats, Indices, Reals
from regbayes.engine import Status
from regbayes.kernels._compile import read_only
from regbayes.kernels.box import BoxRows, BoxState, box_check, box_epoch, box_weights
from regbayes.kernels.simplex import SimplexRows, SimplexState, simplex_check, simplex_epoch, simplex_weights
from regbayes.regularization.dual_forms import BoxDual, SimplexDual

DEFAULT_MAX_EPOCHS = 1000.0
# Factor on the gap at which passes over active samples end, and maximum number of these passes.
SHRINK_FACTOR, MAX_SHORT_PASSES = 0.2, 100
CHECK_FACTOR = 3.0  # multiple of the target gap below which the current gap is computed exactly
CACHED_ROWS, BLOCK_ROWS = 30_000, 32  # rows that a CPU cache holds, and rows of a random block beyond that
# The loss of an unmet hard margin is infinite. Its gap is measured with a penalty per unit of violation, a multiple of
# the largest multiplier: any penalty above the largest has the same solution.
PENALTY_FACTOR = 10.0
MIN_MARGIN = 1e-4  # margin relative to the norm of a row below which hard margins count as infeasible


@dataclass(frozen=True)
class MarginSolution:
    """Multipliers, weights and certificate."""

    dual: Floats  # (n,) or (n, classes): u of a box, omega of simplexes
    weights: Floats  # (tasks, d) or (classes, d): posterior means of the weights
    primal: float  # half the squared norm of the weights, plus loss
    gap: float  # upper bound on the primal objective minus its minimum
    n_epochs: float  # row visits divided by rows
    status: Status  # CONVERGED, ITERATION_LIMIT, or DIVERGED: infeasible hard margins


@dataclass(frozen=True)
class TaskLayout:
    """Sample and task of each multiplier of a box."""

    feature_row: Indices  # (n,): the row of the features; the labels of one sample share it
    task: Indices  # (n,)
    group: Indices  # (tasks,): group of each task; weights are ``own_t + sharing * common_group(t)``
    sharing: float = 0.0  # rho; own and common weights have standard normal priors


class _Ascent:
    """A problem with the state of its multipliers and weights."""

    epoch: ClassVar[Callable[..., Any]]
    check: ClassVar[Callable[..., Any]]
    rows: Any
    state: Any
    n_rows: int
    has_hard_rows: bool

    @property
    def dual(self) -> Floats:
        """The multipliers: u of a box, (n,), or omega of simplexes, (n, classes)."""
        found: Floats = self.state[0]
        return found

    def expected_weights(self) -> Floats:
        """Return the posterior mean weights of the outputs, including shared weights, (outputs, d)."""
        found: Floats = self.state.weights
        return found

    def norms(self) -> Floats:
        """Return the squared norm of the features of each multiplier, or of each row of multipliers."""
        found: Floats = self.rows.norms
        return found

    def squared_norm(self) -> float:
        """Return twice the primal objective without the loss."""
        return float(np.vdot(self.state.weights, self.expected_weights()))

    def certificate(self) -> tuple[float, float]:
        """Return the primal objective and the duality gap."""
        if self.has_hard_rows:
            self.rows = self.rows._replace(penalty=PENALTY_FACTOR * float(self._masses().max(initial=0.0)))
        loss, gap = self.check(self.rows, self.state)
        return 0.5 * self.squared_norm() + loss, max(gap, 0.0)

    def is_infeasible(self) -> bool:
        """Return whether hard margins cannot be met: multipliers grow, and their contributions to weights cancel."""
        apart = float(self._masses() @ np.sqrt(self.norms())) if self.has_hard_rows else 0.0
        return bool(np.sqrt(self.squared_norm()) < MIN_MARGIN * apart)

    def _masses(self) -> Floats:
        return np.abs(self.dual).reshape(self.n_rows, -1).sum(axis=1)


class SimplexAscent(_Ascent):
    """A multi-class large-margin problem with a simplex of multipliers per row.

    ``min_w 1/2 sum_c |w_c|^2 + sum_n h_n(x_n)``, with ``x_nc = <w_c - w_label(n), features_n>`` and ``form`` the
    conjugate of ``sum_n h_n``; its dual is docs/math.md eq. (26).

    Parameters
    ----------
    features : (n, d)
        Single or double precision.
    form : SimplexDual
    labels : (n,)
        The true classes.
    warm_start : (n, classes), optional
        Multipliers of an earlier solution, scaled if necessary to meet the constraints.
    """

    epoch, check = staticmethod(simplex_epoch), staticmethod(simplex_check)

    def __init__(self, features: Reals, form: SimplexDual, labels: Indices, warm_start: Floats | None = None) -> None:
        features, labels = _as_rows(features), np.ascontiguousarray(labels, dtype=np.int64)
        n_rows, n_classes = labels.size, int(form.linear.shape[1])
        lengths = {len(features), n_rows, len(form.row), len(form.total), len(form.ridge)}
        if len(lengths) > 1 or not 1 <= n_classes <= np.iinfo(np.int16).max or not _are_below(labels, n_classes):
            raise ValueError("`features`, `form` and `labels` must have the same rows, and labels must be classes.")
        if np.any(form.linear[form.row, labels] != 0.0):
            raise ValueError("The cost of the true class must be zero.")
        self.rows = SimplexRows(
            features=features,
            norms=np.einsum("ij,ij->i", features, features, dtype=np.float64),
            labels=labels,
            cost=np.ascontiguousarray(0.0 - form.linear),
            cost_row=np.ascontiguousarray(form.row, dtype=np.int64),
            total=np.ascontiguousarray(form.total, dtype=np.float64),
            ridge=np.ascontiguousarray(form.ridge, dtype=np.float64),
            penalty=0.0,
        )
        omega = _feasible_simplexes(form, labels, warm_start)
        classes = np.tile(np.arange(n_classes, dtype=np.int16), (n_rows, 1))
        in_play = np.full(n_rows, n_classes, dtype=np.int16)
        self.n_rows = n_rows
        self.state = SimplexState(omega, simplex_weights(self.rows, omega), classes, in_play)
        self.has_hard_rows = bool(np.any(np.isinf(form.total) & (form.ridge == 0.0)))


class BoxAscent(_Ascent):
    """A large-margin problem over a box, for one task or several that share weights.

    For one task it is ``min_w 1/2 |w|^2 + sum_i h_i(-<x_i, w>)``, where ``form`` is the conjugate of ``sum_i h_i``.
    The dual is ``min_u 1/2 |sum_i u_i x_i|^2 + form(u)``, and ``w = sum_i u_i x_i``.

    Parameters
    ----------
    features : (f, d)
        Single or double precision.
    form : BoxDual
        n multipliers.
    layout : TaskLayout
    warm_start : (n,), optional
        Multipliers of an earlier solution, clipped to the box.
    """

    epoch, check = staticmethod(box_epoch), staticmethod(box_check)

    def __init__(self, features: Reals, form: BoxDual, layout: TaskLayout, warm_start: Floats | None = None) -> None:
        features, n = _as_rows(features), len(form.linear)
        start = np.zeros(n) if warm_start is None else warm_start
        rows, task, group = (
            np.ascontiguousarray(index, dtype=np.int64) for index in (layout.feature_row, layout.task, layout.group)
        )
        linear, absolute, ridge, lower, upper, start = (
            np.ascontiguousarray(column, dtype=np.float64)
            for column in (form.linear, form.absolute, form.ridge, form.lower, form.upper, start)
        )
        fits = all(column.shape == (n,) for column in (rows, task, absolute, ridge, lower, upper, start))
        if not (fits and _are_below(rows, len(features)) and _are_below(task, len(group))):
            raise ValueError("`features`, `form`, `layout` and `warm_start` must have rows that fit each other.")
        norms = np.einsum("ij,ij->i", features, features, dtype=np.float64)
        sharing = layout.sharing**2
        self.rows = BoxRows(
            features, norms, rows, task, group, linear, absolute, ridge, lower, upper, sharing, penalty=0.0
        )
        self.n_rows = n
        self.has_hard_rows = bool(np.any((np.isinf(lower) | np.isinf(upper)) & (ridge == 0.0)))
        dual = np.clip(start, lower, upper)
        weights = box_weights(self.rows, dual)
        self.state = BoxState(dual, weights, sum_by_group(weights, group), np.ones(n, dtype=np.bool_))

    def expected_weights(self) -> Floats:
        """Return the posterior mean weights of the outputs, including shared weights, (outputs, d)."""
        if self.rows.sharing == 0.0:
            return super().expected_weights()
        common = sum_by_group(self.state.weights, self.rows.group)
        return self.state.weights + (self.rows.sharing * common)[self.rows.group]

    def norms(self) -> Floats:
        """Return the squared norm of the features of each multiplier."""
        return super().norms()[self.rows.feature_row]


def ascend(problem: SimplexAscent | BoxAscent, tol: float, max_epochs: float, seed: int) -> MarginSolution:
    """Maximize the dual until the duality gap is at most ``tol`` times the primal objective.

    Parameters
    ----------
    problem : SimplexAscent or BoxAscent
        Its multipliers are updated in place.
    tol : float
        Bound on the gap relative to the primal objective.
    max_epochs : float
        Maximum row visits in units of the number of rows. Zero makes no update; otherwise at least one pass over all
        rows is made.
    seed : int
        Seed of the random order of visits in each pass.
    """
    rng, everything = np.random.default_rng(seed), np.arange(problem.n_rows)
    limit, n_visits = max_epochs * problem.n_rows, 0

    def stop_at(status: Status | None) -> MarginSolution | None:
        primal, gap = problem.certificate()
        status = Status.CONVERGED if gap <= tol * abs(primal) else status
        if status is None:
            return None
        n_epochs = n_visits / max(problem.n_rows, 1)
        return MarginSolution(problem.dual, problem.expected_weights(), primal, gap, n_epochs, status)

    found = stop_at(Status.ITERATION_LIMIT) if max_epochs <= 0.0 else None
    while found is None:
        order = shuffled(everything, rng)
        violation, seen, loss = problem.epoch(problem.rows, order, True, problem.state)
        n_visits += order.size
        target = tol * abs(0.5 * problem.squared_norm() + loss)
        level = SHRINK_FACTOR * max(seen, target)
        for short_pass in range(MAX_SHORT_PASSES + 1):
            status = Status.ITERATION_LIMIT if n_visits >= limit else None
            if np.isinf(violation) or np.isnan(seen) or (short_pass == 0 and problem.is_infeasible()):
                status = Status.DIVERGED
            is_last = short_pass == MAX_SHORT_PASSES or seen <= level
            if status is not None or (seen <= CHECK_FACTOR * target and (short_pass == 0 or is_last)):
                found = stop_at(status)
            if found is not None or is_last:
                break
            order = shuffled(order[problem.state.in_play[order] > 0], rng)
            violation, seen, _ = problem.epoch(problem.rows, order, False, problem.state)
            n_visits += order.size
    return found


def shuffled(rows: Indices, rng: np.random.Generator) -> Indices:
    """Shuffle rows; large sets are shuffled by blocks, and within each block.

    Memory is then read block by block. Neighbors in ``rows`` stay close, also in passes over fewer rows.
    """
    if rows.size <= CACHED_ROWS:
        return rng.permutation(rows)
    n_even = rows.size - rows.size % BLOCK_ROWS
    blocks = rng.permuted(rows[:n_even].reshape(-1, BLOCK_ROWS), axis=1)
    return np.concatenate([rng.permutation(blocks).ravel(), rng.permutation(rows[n_even:])])


def sum_by_group(weights: Floats, group: Indices) -> Floats:
    """Return the rows of ``weights`` summed by group."""
    common = np.zeros((int(group.max(initial=-1)) + 1, weights.shape[1]))
    np.add.at(common, group, weights)
    return common


def _feasible_simplexes(form: SimplexDual, labels: Indices, warm_start: Floats | None) -> Floats:
    """Return feasible multipliers: the scaled warm start, or all weight on the true class."""
    shape = labels.size, form.linear.shape[1]
    is_fixed = np.isfinite(form.total)
    if warm_start is None:
        omega = np.zeros(shape)
        omega[is_fixed, labels[is_fixed]] = form.total[is_fixed]
        return omega
    if warm_start.shape != shape:
        raise ValueError(f"warm_start must have shape {shape}; got {warm_start.shape}")
    omega = np.maximum(warm_start, 0.0)
    if not is_fixed.all():
        omega[~is_fixed, labels[~is_fixed]] = 0.0
        omega[np.isinf(form.ridge)] = 0.0
    sums = omega.sum(axis=1)
    off = np.flatnonzero(is_fixed & (np.abs(sums - form.total) > 1e-12 * form.total))
    if off.size:
        omega[off] = np.where(sums[off, None] > 0.0, omega[off], np.eye(form.n_classes)[labels[off]])
        omega[off] *= (form.total[off] / np.where(sums[off] > 0.0, sums[off], 1.0))[:, None]
    return omega


def _as_rows(features: Reals) -> Reals:
    """Return a read-only C-contiguous matrix of floats, keeping single precision."""
    features = np.asarray(features)
    if features.ndim != 2:
        raise ValueError(f"features must be a matrix; got {features.ndim} dimensions")
    precision = np.float32 if features.dtype == np.float32 else np.float64
    return read_only(np.ascontiguousarray(features, dtype=precision))


def _are_below(index: Indices, bound: int) -> bool:
    """Return whether all indices are within bounds, since compiled code does not check them."""
    return not index.size or bool(index.min() >= 0 and index.max() < bound)
