"""CVXPY formulation of ``min KL(q || p) + g(E_q[psi])`` over a simplex.

Each regularizer is written from its definition, which makes this an independent oracle for values and expectations.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import cvxpy as cp
import numpy as np
from numpy.typing import NDArray

from regbayes.regularizers import (
    KL,
    Affine,
    AtLeast,
    AtMost,
    Ball,
    EpsilonInsensitive,
    Equal,
    GeneralizedKL,
    Hinge,
    Interval,
    MultiClassHinge,
    MultiClassSquaredHinge,
    Regularizer,
    Ridge,
    Separable,
    Sum,
)

Term = tuple[cp.Expression | float, list[cp.Constraint]]


@dataclass(frozen=True)
class Answer:
    value: float  # optimal value of KL + g
    probabilities: NDArray[np.float64]  # (n,)
    status: str


def solve(features: NDArray[np.float64], probabilities: NDArray[np.float64], regularizer: Regularizer) -> Answer:
    """Minimize over the simplex with the interior-point solver Clarabel."""
    features = np.atleast_2d(features.T).T
    q = cp.Variable(len(probabilities), nonneg=True)
    penalty, constraints = term(regularizer, features.T @ q)
    # kl_div(a, b) = a log(a / b) - a + b, whose sum is KL(q || p) because both sum to one
    problem = cp.Problem(cp.Minimize(cp.sum(cp.kl_div(q, probabilities)) + penalty), [cp.sum(q) == 1, *constraints])
    with warnings.catch_warnings():
        # The solver warns if it misses these tight tolerances; callers compare with looser ones.
        warnings.filterwarnings("ignore", message="Solution may be inaccurate")
        problem.solve(solver=cp.CLARABEL, tol_gap_abs=1e-9, tol_gap_rel=1e-9, tol_feas=1e-9)
    values = np.full(len(probabilities), np.nan) if q.value is None else q.value
    return Answer(float(problem.value), values, problem.status)


def term(g: Regularizer, x: cp.Expression) -> Term:
    """Return the regularizer as a cost and hard constraints."""
    match g:
        case Affine():
            inner = cp.multiply(np.broadcast_to(g.scale, x.size), x) + g.offset
            cost, constraints = term(g.regularizer, inner)
            return g.factor * cost, constraints
        case Sum():
            return _total([term(part, x) for part in g.parts])
        case Separable():
            ends = np.cumsum(g.sizes)
            return _total([term(part, x[end - n : end]) for part, n, end in zip(g.parts, g.sizes, ends, strict=True)])
        case MultiClassHinge() | MultiClassSquaredHinge():
            return _multi_class(g, x)
    return _elementary(g, x)


def _total(terms: list[Term]) -> Term:
    return sum(cost for cost, _ in terms), [constraint for _, constraints in terms for constraint in constraints]


def _multi_class(g: MultiClassHinge | MultiClassSquaredHinge, x: cp.Expression) -> Term:
    cost = np.zeros((1, x.size)) if g.cost is None else np.atleast_2d(g.cost)
    cost = cost if g.labels is None else cost[g.labels]
    prices = np.broadcast_to(g.C, len(cost))
    n_classes = cost.shape[1]
    costs: list[cp.Expression] = []
    constraints: list[cp.Constraint] = []
    for row, (own, price) in enumerate(zip(cost, prices, strict=True)):
        shifted = x[row * n_classes : (row + 1) * n_classes] + own
        if np.isinf(price):
            constraints.append(shifted <= 0)
        elif isinstance(g, MultiClassHinge):
            costs.append(price * cp.max(shifted))
        else:
            costs.append(price * cp.square(cp.pos(cp.max(shifted))))
    return sum(costs), constraints


def _priced(C: float | NDArray[np.float64], losses: cp.Expression, beyond: cp.Expression) -> Term:
    """Return losses weighted by C; an infinite C gives the constraint ``beyond <= 0``."""
    prices = np.broadcast_to(C, losses.size)
    soft, hard = np.isfinite(prices), np.flatnonzero(np.isinf(prices))
    cost = cp.sum(cp.multiply(np.where(soft, prices, 0.0), losses))
    return cost, [beyond[hard] <= 0] if hard.size else []


def _elementary(g: Regularizer, x: cp.Expression) -> Term:
    match g:
        case Hinge():
            excess = cp.power(cp.pos(x), g.power) if g.power != 1 else cp.pos(x)
            return _priced(g.C, excess, x)
        case EpsilonInsensitive():
            beyond = cp.abs(x - g.target) - g.epsilon
            return _priced(g.C, cp.square(cp.pos(beyond)) if g.power == 2 else cp.pos(beyond), beyond)
        case Ridge():
            return cp.sum_squares(x - g.target) / (2 * g.scale), []
        case Equal():
            return 0.0, [x == g.target]
        case AtMost():
            return 0.0, [x <= g.bound]
        case AtLeast():
            return 0.0, [x >= g.bound]
        case Interval():
            return 0.0, [x >= g.low, x <= g.high]
        case Ball() if np.isinf(g.C):
            return 0.0, [_norm(x - g.target, g.norm) <= g.radius]
        case Ball():
            return g.C * cp.pos(_norm(x - g.target, g.norm) - g.radius), []
        case KL():
            used = np.flatnonzero(g.target)
            p = g.target[used]
            return g.weight * (np.sum(p * np.log(p)) - p @ cp.log(x[used])), [x >= 0]
        case GeneralizedKL():
            cost, constraints = _elementary(KL(g.target, g.weight), x)
            return cost + g.weight * (cp.sum(x) - np.sum(g.target)), constraints
    raise TypeError(f"no CVXPY spelling for {type(g).__name__}")


def _norm(x: cp.Expression, norm: float) -> cp.Expression:
    return cp.norm(x, "inf" if np.isinf(norm) else int(norm))
