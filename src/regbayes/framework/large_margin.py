"""The large-margin step: dual form in, multipliers and expected weights out.

Every model whose weights are Gaussian a priori meets its margins here. The posterior mean of the weights is a sum of
features weighted by multipliers, and the multipliers solve a quadratic program over a box (binary margins,
epsilon-insensitive regression, hard bounds; one task or several that share weights) or over one simplex per row
(multi-class margins, docs/math.md eq. (26)). Both are solved by dual coordinate ascent, warm-started, until the duality
gap is small; for smooth losses over a box Newton's method helps out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from regbayes._types import Floats, Indices, Reals
from regbayes.engine import Status
from regbayes.framework.dual_ascent import Outcome, ascend
from regbayes.framework.dual_forms import BoxDual
from regbayes.framework.margin_problems import BoxAscent, SimplexAscent, solve_box_dual
from regbayes.kernels.box import BoxRows
from regbayes.kernels.simplex import SimplexRows
from regbayes.kernels.types import read_only

DEFAULT_TOL = 1e-4
DEFAULT_MAX_EPOCHS = 1000.0


@dataclass(frozen=True)
class MarginSolution:
    """The multipliers, the weights they imply and the certificate.

    Parameters
    ----------
    dual : (n,) or (n, answers)
        The multipliers: u of a box, omega of simplexes.
    weights : (answers, d) or (tasks, d)
        Posterior means of the weights.
    shared_weights : (groups, d)
        What the tasks of a group have in common, and so the expected weights of a task without data: rho times the
        mean of ``common``. ``weights`` less this is the mean of ``own``. No rows for simplexes.
    primal, dual_value, gap : float
        The two objectives and their difference; the primal one is the squared norm of the weights, halved, plus loss.
    n_epochs : float
        Row visits divided by rows; a Newton step visits all rows once.
    status : Status
        ``CONVERGED``, ``ITERATION_LIMIT``, or ``DIVERGED`` when hard margins cannot be met and the dual is unbounded.
    """

    dual: Floats
    weights: Floats
    shared_weights: Floats
    primal: float
    dual_value: float
    gap: float
    n_epochs: float
    status: Status


@dataclass(frozen=True)
class MultiClassDual:
    """The conjugate of a sum of multi-class losses: one ``SimplexDual`` per row, stacked.

    Parameters
    ----------
    labels : (n,)
        The true answers, 0 to answers - 1.
    cost : (r, answers)
        The loss of each answer; zero for the true one.
    cost_row : (n,)
        The row of ``cost`` that applies: the label when ``cost`` is a matrix of answers, the row when it has its own.
    total : (n,)
        What a row's multipliers sum to; infinite where the sum is free. Zero takes the row out.
    ridge : (n,)
        The price of half the squared sum where it is free; infinite takes the row out.
    """

    labels: Indices
    cost: Floats
    cost_row: Indices
    total: Floats
    ridge: Floats

    def __post_init__(self) -> None:
        n_rows, n_answers = self.labels.size, self.cost.shape[1]
        for name in ("cost_row", "total", "ridge"):
            if getattr(self, name).shape != (n_rows,):
                raise ValueError(f"{name} must have shape ({n_rows},), as labels has; got {getattr(self, name).shape}")
        if not 1 <= n_answers <= np.iinfo(np.int16).max:
            raise ValueError(f"cost must have between 1 and {np.iinfo(np.int16).max} columns; got {n_answers}")
        if n_rows and not (self.labels.min() >= 0 and self.labels.max() < n_answers):
            raise ValueError(f"labels must lie in 0 .. {n_answers - 1}, the columns of cost")
        if np.any(self.cost[self.cost_row, self.labels] != 0.0):
            raise ValueError("cost must be zero for the true answer")

    @classmethod
    def hinge(
        cls, labels: ArrayLike, cost: ArrayLike, C: ArrayLike, cost_row: ArrayLike | None = None
    ) -> MultiClassDual:
        """Return the dual of ``sum_n C_n max_y (cost_ny - margin_ny)``; an infinite C asks for hard margins.

        ``cost`` is (answers, answers), by true answer, unless ``cost_row`` says which of its rows applies where.
        """
        labels, cost, cost_row, weight = _answers_as_arrays(labels, cost, C, cost_row)
        return cls(labels, cost, cost_row, weight, np.zeros(labels.size))

    @classmethod
    def squared_hinge(
        cls, labels: ArrayLike, cost: ArrayLike, C: ArrayLike, cost_row: ArrayLike | None = None
    ) -> MultiClassDual:
        """Return the dual of ``sum_n C_n max(0, max_y (cost_ny - margin_ny))^2``; arguments as for ``hinge``."""
        labels, cost, cost_row, weight = _answers_as_arrays(labels, cost, C, cost_row)
        ridge = np.divide(0.5, weight, out=np.full(labels.size, np.inf), where=weight > 0.0)
        return cls(labels, cost, cost_row, np.full(labels.size, np.inf), ridge)


def zero_one_cost(n_answers: int) -> Floats:
    """Return the cost of 1 for every wrong answer."""
    return 1.0 - np.eye(n_answers)


def solve_simplex(
    features: Reals,
    dual: MultiClassDual,
    *,
    warm_start: Floats | None = None,
    tol: float = DEFAULT_TOL,
    max_epochs: float = DEFAULT_MAX_EPOCHS,
    seed: int = 0,
) -> MarginSolution:
    """Solve a multi-class large-margin problem.

    ``min_w 1/2 sum_c |w_c|^2 + sum_n loss_n``, with margins ``<w_label(n) - w_c, x_n>``: its solution is the posterior
    mean of weights that are standard normal a priori, and its dual is docs/math.md eq. (26). An intercept is a constant
    column of ``features``.

    Parameters
    ----------
    features : (n, d)
        Single or double precision.
    dual : MultiClassDual
    warm_start : (n, answers), optional
        Multipliers of an earlier solution; where they break the constraints of this one they are scaled to meet them.
    tol : float
        Stop when the duality gap is at most this fraction of the primal objective.
    max_epochs : float
        Limit on row visits, in units of n. Zero evaluates the warm start; otherwise all rows are visited at least once.
    seed : int
        For the order in which rows are visited.

    Returns
    -------
    MarginSolution
    """
    features = _as_rows(features)
    if len(features) != dual.labels.size:
        raise ValueError(f"features has {len(features)} rows and dual has {dual.labels.size}")
    rows = SimplexRows(
        features=features,
        norms=_squared_norms(features),
        labels=read_only(dual.labels),
        cost=read_only(dual.cost),
        cost_row=read_only(dual.cost_row),
        total=read_only(dual.total),
        ridge=read_only(dual.ridge),
        penalty=0.0,
    )
    problem = SimplexAscent(rows, _feasible_simplexes(dual, warm_start))
    outcome = ascend(problem, tol, max_epochs, seed)
    return _solution(problem.state.omega, problem.state.weights, np.zeros((0, features.shape[1])), outcome)


@dataclass(frozen=True)
class TaskLayout:
    """Which features and which weights belong to each multiplier of a box, when there are several tasks.

    Parameters
    ----------
    feature_row : (n,)
        The row of the features. The labels of one example share it.
    task : (n,)
        The task, 0 to tasks - 1.
    group : (tasks,)
        Tasks of one group share weights: ``w_t = own_t + sharing * common_group(t)``, all standard normal a priori.
    sharing : float
        How strongly (rho); with 0 every task stands alone.
    """

    feature_row: Indices
    task: Indices
    group: Indices
    sharing: float = 0.0


def solve_box(
    features: Reals,
    form: BoxDual,
    layout: TaskLayout | None = None,
    *,
    warm_start: Floats | None = None,
    warm_weights: Floats | None = None,
    tol: float = DEFAULT_TOL,
    max_epochs: float = DEFAULT_MAX_EPOCHS,
    seed: int = 0,
) -> MarginSolution:
    """Solve a large-margin problem whose multipliers live in a box, for one task or for several that share weights.

    For one task it is ``min_w 1/2 |w|^2 + sum_i h_i(-<x_i, w>)``, where ``form`` is the conjugate of ``sum_i h_i``.
    The dual is ``min_u 1/2 |sum_i u_i x_i|^2 + form(u)``, and ``w = sum_i u_i x_i``. The support vector machine on rows
    multiplied by their labels has ``linear = -1`` and the box [0, C].

    Parameters
    ----------
    features : (f, d)
        Single or double precision.
    form : BoxDual
        n multipliers.
    layout : TaskLayout, optional
        By default there is one task, and row i of ``features`` belongs to multiplier i.
    warm_start : (n,), optional
        Multipliers of an earlier solution; they are clipped to the box.
    warm_weights : (tasks, d), optional
        Weights of an earlier solution: a better start for Newton's method than those that multipliers imply, where
        the features have changed.
    tol, max_epochs, seed
        As in ``solve_simplex``.

    Returns
    -------
    MarginSolution
    """
    features, n = _as_rows(features), form.linear.size
    if layout is None:
        layout = TaskLayout(np.arange(n), np.zeros(n, dtype=np.int64), np.zeros(1, dtype=np.int64))
        if len(features) != n:
            raise ValueError(f"features has {len(features)} rows and form has {n} multipliers")
    group = _as_indices("group", layout.group, len(layout.group), None)
    rows = BoxRows(
        features=features,
        norms=_squared_norms(features),
        feature_row=_as_indices("feature_row", layout.feature_row, n, len(features)),
        task=_as_indices("task", layout.task, n, group.size),
        group=group,
        linear=_as_column("linear", form.linear, n),
        absolute=_as_column("absolute", form.absolute, n),
        ridge=_as_column("ridge", form.ridge, n),
        lower=_as_column("lower", form.lower, n),
        upper=_as_column("upper", form.upper, n),
        sharing=layout.sharing**2,
        penalty=0.0,
    )
    start = np.zeros(n) if warm_start is None else _as_column("warm_start", warm_start, n)
    problem = BoxAscent(rows, np.clip(start, rows.lower, rows.upper))
    if warm_weights is not None and warm_weights.shape != problem.state.weights.shape:
        raise ValueError(f"warm_weights must have shape {problem.state.weights.shape}; got {warm_weights.shape}")
    outcome = solve_box_dual(problem, tol, max_epochs, seed, warm_weights)
    shared = rows.sharing * problem.common()
    return _solution(problem.state.dual, problem.expected_weights(), shared, outcome)


def _solution(dual: Floats, weights: Floats, shared: Floats, outcome: Outcome) -> MarginSolution:
    return MarginSolution(
        dual=dual,
        weights=weights,
        shared_weights=shared,
        primal=outcome.primal,
        dual_value=outcome.primal - outcome.gap,
        gap=outcome.gap,
        n_epochs=outcome.n_epochs,
        status=outcome.status,
    )


def _feasible_simplexes(dual: MultiClassDual, warm_start: Floats | None) -> Floats:
    """Return multipliers that meet the constraints: the warm start, scaled, or all weight on the true answer."""
    n_rows, n_answers = dual.labels.size, dual.cost.shape[1]
    at_truth = np.zeros((n_rows, n_answers))
    is_fixed = np.isfinite(dual.total)
    at_truth[is_fixed, dual.labels[is_fixed]] = dual.total[is_fixed]
    if warm_start is None:
        return at_truth
    if warm_start.shape != at_truth.shape:
        raise ValueError(f"warm_start must have shape {at_truth.shape}; got {warm_start.shape}")
    omega = np.maximum(warm_start, 0.0)
    omega[~is_fixed, dual.labels[~is_fixed]] = 0.0
    omega[np.isinf(dual.ridge)] = 0.0
    sums = omega.sum(axis=1)
    fits = is_fixed & (sums > 0.0)
    off = fits & (np.abs(sums - dual.total) > 1e-12 * dual.total)
    omega[off] *= (dual.total[off] / sums[off])[:, None]
    omega[is_fixed & ~fits] = at_truth[is_fixed & ~fits]
    return omega


def _answers_as_arrays(
    labels: ArrayLike, cost: ArrayLike, C: ArrayLike, cost_row: ArrayLike | None
) -> tuple[Indices, Floats, Indices, Floats]:
    """Return labels, cost, cost_row and C as contiguous arrays, C with one value per row."""
    label_array = np.ascontiguousarray(labels, dtype=np.int64)
    weight = np.array(np.broadcast_to(np.asarray(C, dtype=np.float64), label_array.shape))
    if not np.all(weight >= 0.0):
        raise ValueError("C must not be negative")
    which = label_array if cost_row is None else np.ascontiguousarray(cost_row, dtype=np.int64)
    return label_array, np.ascontiguousarray(cost, dtype=np.float64), which, weight


def _as_rows(features: Reals) -> Reals:
    """Return a C-contiguous matrix of floats, not to be written to; single precision is kept."""
    features = np.asarray(features)
    if features.ndim != 2:
        raise ValueError(f"features must be a matrix; got {features.ndim} dimensions")
    precision = np.float32 if features.dtype == np.float32 else np.float64
    return read_only(np.ascontiguousarray(features, dtype=precision))


def _squared_norms(features: Reals) -> Floats:
    return read_only(np.asarray(np.einsum("ij,ij->i", features, features, dtype=np.float64)))


def _as_column(name: str, values: ArrayLike, n: int) -> Floats:
    column = np.ascontiguousarray(values, dtype=np.float64)
    if column.shape != (n,):
        raise ValueError(f"{name} must have shape ({n},); got {column.shape}")
    return read_only(column)


def _as_indices(name: str, values: ArrayLike, n: int, bound: int | None) -> Indices:
    indices = np.ascontiguousarray(values, dtype=np.int64)
    if indices.shape != (n,):
        raise ValueError(f"{name} must have shape ({n},); got {indices.shape}")
    if n and (indices.min() < 0 or (bound is not None and indices.max() >= bound)):
        raise ValueError(f"{name} must lie in 0 .. {'' if bound is None else bound - 1}")
    return read_only(indices)
