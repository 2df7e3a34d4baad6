"""Minimize ``1/2 v'Hv + g*(v)`` for a box g* by an interior point method.

This is the quadratic model of a Newton step. The method takes a dozen or two steps, each with one factorization, for
any number of multipliers and any penalty. H is a matrix, or a thin factor if the features outnumber the dimensions of a
Gaussian. Finally, multipliers at a bound are set to it exactly, and an exact step on the others reduces the rounding
error: the multiplier of an inactive constraint is exactly zero.

Mehrotra's predictor and corrector: S. Mehrotra (1992), SIAM Journal on Optimization 2(4), 575-601. Thin factors:
M. C. Ferris and T. S. Munson (2002), SIAM Journal on Optimization 13(3), 783-804.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import scipy.linalg
from scipy.linalg.lapack import dpotrf, dpotrs

from regbayes._types import Flags, Floats
from regbayes.regularization.dual_forms import BoxDual

MAX_STEPS = 60
PATIENCE = 3  # steps without progress after which a nearly converged iteration stops
TO_BOUNDARY = 0.995
EXACT = 1e-15  # residual or complementarity, relative to the problem's scale, that is rounding
RUNAWAY = 1e30  # size of an iterate that indicates an unbounded problem, in units where H has unit diagonal
POLISH_ROUNDS = 8
TINY = 1e-300
MOST_DENSE = 1000  # largest number of multipliers inside their bounds for which the last step uses a dense matrix
SMALL_DIAGONAL = 1e-5  # smallest diagonal entry that a thin factor divides by, in units where H has unit diagonal


@dataclass(frozen=True)
class Curvature:
    """``H = matrix + diag(diagonal)`` or ``factor factor' + diag(diagonal)``."""

    diagonal: Floats  # (M,)
    matrix: Floats | None = None  # (M, M)
    factor: Floats | None = None  # (M, d)

    def __matmul__(self, v: Floats) -> Floats:
        if self.factor is not None:
            return np.asarray(self.factor @ (self.factor.T @ v) + self.diagonal * v)
        assert self.matrix is not None
        return np.asarray(self.matrix @ v + self.diagonal * v)

    def scaled(self, scale: Floats) -> Curvature:
        """Return ``diag(scale) H diag(scale)``."""
        diagonal = self.diagonal * scale**2
        if self.factor is not None:
            return Curvature(diagonal, factor=self.factor * scale[:, None])
        assert self.matrix is not None
        return Curvature(diagonal, matrix=self.matrix * np.outer(scale, scale))

    def take(self, among: Flags) -> Curvature:
        """Return the rows and columns of some multipliers."""
        if self.factor is not None:
            return Curvature(self.diagonal[among], factor=self.factor[among])
        assert self.matrix is not None
        return Curvature(self.diagonal[among], matrix=self.matrix[np.ix_(among, among)])

    def sizes(self) -> Floats:
        """Return the diagonal of H."""
        if self.factor is not None:
            return np.asarray(np.einsum("ij,ij->i", self.factor, self.factor) + self.diagonal)
        assert self.matrix is not None
        return np.asarray(np.diag(self.matrix) + self.diagonal)

    def solver(self, more: Floats | float, among: Flags | None = None) -> Callable[[Floats], Floats]:
        """Factor ``H + diag(more)``, or its rows and columns ``among``; return its solver."""
        extra = self.diagonal + more
        if among is not None:
            extra = extra[among]
        if self.factor is not None:
            factor = self.factor if among is None else self.factor[among]
            if 2 * factor.shape[1] < len(factor) and (among is None or len(factor) > MOST_DENSE):
                return _thin_solver(factor, extra)
            matrix = factor @ factor.T
        else:
            assert self.matrix is not None
            matrix = self.matrix.copy() if among is None else self.matrix[np.ix_(among, among)]
        matrix.ravel()[:: len(matrix) + 1] += extra
        return _dense_solver(matrix)


def _thin_solver(factor: Floats, diagonal: Floats) -> Callable[[Floats], Floats]:
    """Solve with ``F F' + D`` by the Sherman-Morrison-Woodbury formula.

    Entries of D vanish for multipliers strictly inside their bounds. They are eliminated as a dense matrix, since
    dividing by them would cancel all digits. There are about as many of them as columns of F.
    """
    small = diagonal < SMALL_DIAGONAL
    if int(small.sum()) > MOST_DENSE:
        small, diagonal = np.zeros(len(diagonal), dtype=np.bool_), np.maximum(diagonal, SMALL_DIAGONAL)
    large = ~small
    outer, weights, inside = factor[large], 1 / diagonal[large], factor[small]
    inner = (outer * weights[:, None]).T @ outer
    inner[np.diag_indices_from(inner)] += 1.0
    root = np.linalg.cholesky(inner)
    thin = scipy.linalg.solve_triangular(root, inside.T, lower=True, check_finite=False)  # (d, small)
    block = thin.T @ thin
    block[np.diag_indices_from(block)] += diagonal[small]
    solve_block = _dense_solver(block) if block.size else None

    def solve(right: Floats) -> Floats:
        found = np.empty_like(right)
        moved = outer.T @ (weights * right[large])
        if solve_block is not None:
            half = scipy.linalg.solve_triangular(root, moved, lower=True, check_finite=False)
            found[small] = solve_block(right[small] - thin.T @ half)
            moved = moved + inside.T @ found[small]
        weight_space = scipy.linalg.cho_solve((root, True), moved, check_finite=False)
        found[large] = weights * (right[large] - outer @ weight_space)
        return found

    return solve


def _dense_solver(matrix: Floats) -> Callable[[Floats], Floats]:
    """Cholesky in units with unit diagonal; pseudo-inverse if it fails."""
    size = np.sqrt(np.maximum(matrix.diagonal(), TINY))
    scaled = matrix / size / size[:, None]
    root, failed = dpotrf(scaled, lower=1, clean=0)
    if failed == 0 and root.diagonal().min(initial=1.0) > 1e-7:

        def solve(right: Floats) -> Floats:
            return np.asarray(dpotrs(root, right / size, lower=1)[0] / size)

        return solve
    if not np.all(np.isfinite(scaled)):  # an interior point that has overflowed
        return lambda right: np.full_like(right, np.nan)
    values, vectors = np.linalg.eigh(scaled)
    most = max(float(values[-1]), TINY)

    def solve_singular(right: Floats) -> Floats:
        # Drop directions below rounding, unless the solution lies in them.
        coefficients = vectors.T @ (right / size)
        for least in (1e-11, 1e-15 * len(values)):
            used = values > least * most
            found = vectors[:, used] @ (coefficients[used] / values[used])
            if np.linalg.norm(coefficients[~used]) <= 1e-12 * np.linalg.norm(coefficients):
                break
        return np.asarray(found) / size

    return solve_singular


class _Split:
    """The box in variables between bounds; a coordinate with a kink is split in two."""

    def __init__(self, form: BoxDual) -> None:
        n = len(form)
        both = form.has_kink & (form.lower < 0) & (form.upper > 0)
        self.parent = np.concatenate([np.arange(n), np.flatnonzero(both)])
        self.sign = np.concatenate([np.ones(n), -np.ones(int(both.sum()))])
        self.lower = np.concatenate([np.where(both, 0.0, form.lower), np.zeros(int(both.sum()))])
        self.upper = np.concatenate([form.upper, -form.lower[both]])
        self.cost = np.concatenate([np.where(form.upper <= 0, form.low, form.high), -form.low[both]])
        self.has_lower, self.has_upper = np.isfinite(self.lower), np.isfinite(self.upper)
        self.n = n

    def joined(self, w: Floats) -> Floats:
        return np.bincount(self.parent, self.sign * w, minlength=self.n).astype(np.float64)

    def interior(self, start: Floats, room: float) -> Floats:
        """Return a point well inside the bounds near a start."""
        w = np.maximum(self.sign * start[self.parent], np.where(self.sign < 0, 0.0, -np.inf))
        width = self.upper - self.lower
        inset = np.minimum(room, 0.3 * width)
        return np.clip(w, self.lower + inset, self.upper - inset)


@np.errstate(over="ignore", invalid="ignore", divide="ignore")  # a NaN iterate is never accepted
def minimize_box_quadratic(hessian: Curvature, form: BoxDual, start: Floats) -> Floats:
    """Minimize ``1/2 v'Hv + form*(v)``.

    Parameters
    ----------
    hessian : Curvature
        Positive semi-definite.
    form : BoxDual
    start : array of shape (M,)
        Initial point, not necessarily in the box.
    """
    fixed = form.lower == form.upper
    if np.any(fixed):
        v, free = np.where(fixed, form.lower, 0.0), ~fixed
        if np.any(free):
            moved = form.moved(hessian @ v).take(free)
            v[free] = minimize_box_quadratic(hessian.take(free), moved, start[free])
        return v
    whole = Curvature(hessian.diagonal + form.ridge, hessian.matrix, hessian.factor)
    scale = 1 / np.sqrt(np.maximum(whole.sizes(), TINY))
    # In these units H has unit diagonal, so that units of features do not matter. Bounds are rescaled accordingly.
    problem = _Model(
        whole.scaled(scale),
        BoxDual(form.low * scale, form.high * scale, form.ridge, form.lower / scale, form.upper / scale),
    )
    size = 1 + float(np.max(np.abs([problem.box.low, problem.box.high]), initial=0.0))
    found, error = start / scale, np.inf
    if len(form) <= MOST_DENSE:
        # The previous step often has the same active bounds, so that one or two linear systems suffice.
        found = _polish(problem, found, problem.forward_backward(found))
        error = problem.residual(found)
        if error <= EXACT * size:
            return np.clip(found * scale, form.lower, form.upper)
    v = _polish(problem, *_interior_point(problem, start / scale))
    found = v if problem.residual(v) < error else found
    return form.clip(found * scale)


@dataclass(frozen=True)
class _Model:
    """The problem in units where H has approximately unit diagonal."""

    hessian: Curvature
    box: BoxDual

    def forward_backward(self, v: Floats) -> Floats:
        """A proximal gradient step of length one, whose fixed points are the solutions."""
        forward = v - self.hessian @ v
        shrunk = forward - np.clip(forward, self.box.low, self.box.high)
        return self.box.clip(shrunk)

    def residual(self, v: Floats) -> float:
        return float(np.max(np.abs(v - self.forward_backward(v)), initial=0.0))


def _interior_point(problem: _Model, start: Floats) -> tuple[Floats, Floats]:
    """Return a point near the solution, and the same with exact active bounds."""
    hessian, box = problem.hessian, problem.box
    split = _Split(box)
    if not np.any(split.has_lower | split.has_upper):
        v, solve = start, hessian.solver(0.0)
        for _ in range(3):  # iterative refinement
            v = v - solve(hessian @ v + box.low)
        return v, v
    inner = _Interior(problem, split, start)
    best = snapped = split.joined(inner.w)
    best_error, since_best = np.inf, 0
    for _ in range(MAX_STEPS):
        error = inner.evaluate()
        if not (np.isfinite(error) and np.max(np.abs(inner.w)) < RUNAWAY * inner.size):
            break  # unbounded
        since_best += 1
        if error < best_error:
            best, snapped, best_error, since_best = split.joined(inner.w), inner.snapped(), error, 0
        if error <= EXACT or (best_error < 1e-6 and since_best >= PATIENCE):
            break
        inner.step()
    return best, snapped


class _Interior:
    """A point between the bounds with multipliers, and Mehrotra's step."""

    def __init__(self, problem: _Model, split: _Split, start: Floats) -> None:
        self.hessian, self.split = problem.hessian, split
        self.low, self.high = split.has_lower, split.has_upper
        self.free = ~(self.low | self.high)
        self.bounded = int(self.low.sum() + self.high.sum())
        size = self.size = 1 + float(np.max(np.abs(split.cost), initial=0.0))
        self.w = split.interior(np.clip(start, -size, size), 0.1 * size)
        self.to_low = np.where(self.low, self.w - split.lower, 1.0)
        self.to_high = np.where(self.high, split.upper - self.w, 1.0)
        # Products of distances and multipliers start equal, for near and distant bounds.
        level = 0.1 * size * size
        self.z_low = self.low * level / self.to_low
        self.z_high = self.high * level / self.to_high

    def evaluate(self) -> float:
        """Compute slopes and complementarity; return the error."""
        split = self.split
        slope = self.hessian @ split.joined(self.w)
        self.slope = split.sign * slope[split.parent] + split.cost
        residual = self.slope - self.z_low + self.z_high
        self.mu = float(self.z_low @ self.to_low + self.z_high @ self.to_high) / self.bounded
        return max(float(np.max(np.abs(residual))) / self.size, self.mu / self.size / self.size)

    def snapped(self) -> Floats:
        """Return the point with a bound active if its multiplier exceeds the distance."""
        at_high = np.where(self.z_high > self.to_high, self.split.upper, self.w)
        return self.split.joined(np.where(self.z_low > self.to_low, self.split.lower, at_high))

    def step(self) -> None:
        """Take a predictor step without complementarity, then a corrector step."""
        low, high, parent, n = self.low, self.high, self.split.parent, self.split.n
        barrier = self.z_low / self.to_low + self.z_high / self.to_high
        self.inverse = np.where(self.free, 1.0, 1 / np.maximum(barrier, TINY))
        self.stiffness = 1 / np.bincount(parent, self.inverse, minlength=n)
        self.stiffness[parent[self.free]] = 0.0
        self.solve = self.hessian.solver(self.stiffness)
        none = np.zeros(len(self.w))
        dw, dz_low, dz_high = self._direction(none, none)
        length_w, length_z = self._lengths(dw, dz_low, dz_high)
        after = float(
            (self.z_low + length_z * dz_low)[low] @ (self.to_low + length_w * dw)[low]
            + (self.z_high + length_z * dz_high)[high] @ (self.to_high - length_w * dw)[high]
        )
        target = self.mu * (max(after, 0.0) / self.bounded / max(self.mu, TINY)) ** 3
        dw, dz_low, dz_high = self._direction(
            np.where(low, target - dw * dz_low, 0.0), np.where(high, target + dw * dz_high, 0.0)
        )
        length_w, length_z = self._lengths(dw, dz_low, dz_high, TO_BOUNDARY)
        self.w = self.w + length_w * dw
        self.z_low, self.z_high = self.z_low + length_z * dz_low, self.z_high + length_z * dz_high
        self.to_low = np.where(low, np.maximum(self.to_low + length_w * dw, TINY), 1.0)
        self.to_high = np.where(high, np.maximum(self.to_high - length_w * dw, TINY), 1.0)

    def _direction(self, push_low: Floats, push_high: Floats) -> tuple[Floats, Floats, Floats]:
        """Return Newton's direction to products of distance and multiplier."""
        parent, sign, n = self.split.parent, self.split.sign, self.split.n
        rho = self.slope - push_low / self.to_low + push_high / self.to_high
        right = np.bincount(parent, sign * rho * self.inverse, minlength=n)
        one = np.bincount(parent[self.free], rho[self.free], minlength=n)
        dv = self.solve(-np.where(self.stiffness > 0, self.stiffness * right, one))
        curve = (self.hessian @ dv)[parent]
        dw = np.where(self.free, dv[parent], -(rho + sign * curve) * self.inverse)
        dz_low = np.where(self.low, (push_low - self.z_low * dw) / self.to_low - self.z_low, 0.0)
        dz_high = np.where(self.high, (push_high + self.z_high * dw) / self.to_high - self.z_high, 0.0)
        return dw, dz_low, dz_high

    def _lengths(self, dw: Floats, dz_low: Floats, dz_high: Floats, share: float = 1.0) -> tuple[float, float]:
        along_w = min(_reach(self.to_low, dw, self.low), _reach(self.to_high, -dw, self.high))
        along_z = min(_reach(self.z_low, dz_low, self.low), _reach(self.z_high, dz_high, self.high))
        return min(1.0, share * along_w), min(1.0, share * along_z)


def _reach(value: Floats, change: Floats, used: Flags) -> float:
    """Return how far a change can go until a positive value reaches zero."""
    falls = used & (change < 0)
    return float(np.min(-value[falls] / change[falls], initial=np.inf))


def _polish(problem: _Model, v: Floats, snapped: Floats) -> Floats:
    """Solve exactly for coordinates not on a bound or kink; return the better of both."""
    hessian, box = problem.hessian, problem.box
    error = problem.residual(v)
    guess = snapped
    for _ in range(POLISH_ROUNDS):
        fixed = (guess <= box.lower) | (guess >= box.upper) | (box.has_kink & (guess == 0))
        trial, among = guess.copy(), ~fixed
        if np.any(among):
            slope = hessian @ trial + np.where(guess > 0, box.high, box.low)
            trial[among] -= hessian.solver(np.zeros(len(v)), among)(slope[among])
        trial = np.clip(trial, box.lower, box.upper)
        trial_error = problem.residual(trial)
        if trial_error < error:
            v, error = trial, trial_error
        elif guess is not snapped:
            break
        guess = problem.forward_backward(v)
    return v
