"""Minimize ``1/2 v'Hv + c'v + sum_b g_b*(v_b)`` by proximal maps of the g_b.

This is the quadratic model of a proximal Newton step (`dual`), and the proximal map of a sum has the same form. A
semismooth Newton step on the fixed-point equation of the proximal gradient map is exact if the active pieces are
right. Otherwise, proximal points identify them. Each is the minimum of a smooth, strongly convex function with as many
variables as the rank of H. Newton's method with a line search converges on it for any H (the semismooth Newton
augmented Lagrangian method of Li, Sun and Toh, SIAM Journal on Optimization 28(1), 2018).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, pairwise

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.lapack import dpotrf, dpotrs

from regbayes._types import Floats, Indices
from regbayes.regularization.dual_forms import BoxDual, SimplexDual, join_boxes
from regbayes.regularization.regularizers.base import Atom, Regularizer
from regbayes.regularization.regularizers.targets import AtLeast, AtMost, Interval

DETOUR = 5  # consecutive Newton steps that may be worse than the best, as after a change of active pieces
MAX_ROUNDS = 50  # proximal points
MAX_FAILURES = 3  # consecutive proximal points without progress, with shorter and shorter steps


@dataclass(frozen=True)
class Piece:
    """One elementary regularizer and its slice of the stacked dual variable."""

    regularizer: Regularizer
    start: int
    stop: int

    @cached_property
    def form(self) -> BoxDual | SimplexDual | None:
        """The dual form, or None."""
        return self.regularizer.dual_form(self.stop - self.start)

    @property
    def block_size(self) -> int:
        """Length of the blocks that do not interact."""
        return self.regularizer.block_size or (self.stop - self.start)


@dataclass(frozen=True)
class Stack:
    """Elementary parts of a regularizer, concatenated; sums repeat coordinates."""

    n_features: int
    pieces: tuple[Piece, ...]
    index: NDArray[np.intp]  # (M,): expectation that each stacked coordinate refers to

    @classmethod
    def of(cls, regularizer: Regularizer, n_features: int) -> Stack:
        """Split a regularizer of this many expectations."""
        atoms = _join_bounds(regularizer.atoms(n_features))
        starts = list(accumulate((len(atom.index) for atom in atoms), initial=0))
        runs = zip(atoms, pairwise(starts), strict=True)
        pieces = tuple(Piece(atom.regularizer, start, stop) for atom, (start, stop) in runs)
        return cls(n_features, pieces, np.concatenate([atom.index for atom in atoms]))

    def __len__(self) -> int:
        return len(self.index)

    @cached_property
    def box(self) -> BoxDual | None:
        """The stacked conjugate as a box, or None if a part is not one."""
        return join_boxes([p.form for p in self.pieces])

    @cached_property
    def targets(self) -> Floats:
        """Targets of equalities, shape (M,); NaN for all other parts."""
        found = np.full(len(self), np.nan)
        for p in self.pieces:
            if isinstance(p.form, BoxDual) and p.form.is_linear:
                found[p.start : p.stop] = p.form.low
        return found

    def model(self, stacked: Floats) -> BoxDual | None:
        """Quadratic model of the stacked conjugate as a box; None if a part has none."""
        if self.box is not None:
            return self.box
        return join_boxes([p.regularizer.dual_model(stacked[p.start : p.stop]) for p in self.pieces])

    @cached_property
    def domain(self) -> tuple[Floats, Floats]:
        """Domain of each stacked coordinate; infinite if it depends on other coordinates."""
        ends = [p.regularizer.domain(p.stop - p.start) for p in self.pieces]
        return np.concatenate([low for low, _ in ends]), np.concatenate([high for _, high in ends])

    @cached_property
    def blocks(self) -> Indices:
        """Block number of each feature, shape (n_features,); a block shares a unit."""
        label = np.arange(self.n_features)
        for p in self.pieces:
            size = p.block_size
            if size > 1:
                for start in range(p.start, p.stop, size):
                    together = self.index[start : start + size]
                    label[np.isin(label, label[together])] = label[together].min()
        return label

    def add_up(self, stacked: Floats) -> Floats:
        """Sum the stacked entries of each expectation, shape (n_features,)."""
        if self.n_features == len(self.index) == 1:
            return stacked
        return np.bincount(self.index, stacked, minlength=self.n_features).astype(np.float64)

    def conjugate(self, stacked: Floats) -> float:
        """Return the conjugate of all parts."""
        return self.box.conjugate(stacked) if self.box is not None else conjugate_of(self.pieces, stacked)

    def start(self) -> Floats:
        """Return a starting point in the domain of the conjugate."""
        if self.box is not None:
            return np.clip(0.0, self.box.lower, self.box.upper)
        return np.concatenate([p.regularizer.dual_start(p.stop - p.start) for p in self.pieces])

    def clip(self, stacked: Floats) -> Floats:
        """Project u onto the conjugate's domain to remove rounding."""
        if self.box is not None:
            return stacked if self.box.is_smooth else np.clip(stacked, self.box.lower, self.box.upper)
        return clip_to_domain(self.pieces, stacked)

    def slack(self, x: Floats) -> Floats:
        """Return how far each expectation lies inside the domain, shape (n_features,)."""
        least = np.full(self.n_features, np.inf)
        for p in self.pieces:
            i = self.index[p.start : p.stop]
            np.minimum.at(least, i, p.regularizer.slack(x[i]))
        return least

    def in_units(self, center: Floats, scale: Floats) -> Stack:
        """Return the parts as functions of ``(x - center) / scale``."""
        pieces = []
        for p in self.pieces:
            i = self.index[p.start : p.stop]
            moved = p.regularizer.shift(-center[i]) if np.any(center[i]) else p.regularizer
            pieces.append(replace(p, regularizer=moved.rescale(scale[i]) if np.any(scale[i] != 1) else moved))
        return replace(self, pieces=tuple(pieces))


def _join_bounds(atoms: list[Atom]) -> list[Atom]:
    """Merge a lower and an upper bound of the same expectations into one interval.

    If the bounds are close, only the difference of two multipliers would be determined.
    """
    kept: list[Atom] = []
    waiting: dict[
        tuple[type, bytes], tuple[int, Floats]
    ] = {}  # bounds, by the type and index of the bound that would complete them
    for atom in atoms:
        g, key = atom.regularizer, atom.index.tobytes()
        if isinstance(g, AtLeast | AtMost):
            place, other = waiting.pop((type(g), key), (-1, np.empty(0)))
            low, high = (other, g.bound) if isinstance(g, AtMost) else (g.bound, other)
            if place >= 0 and np.all(low <= high):
                kept[place] = Atom(Interval(low, high), atom.index)
                continue
            waiting[AtMost if isinstance(g, AtLeast) else AtLeast, key] = len(kept), g.bound
        kept.append(atom)
    return kept


def conjugate_of(pieces: Sequence[Piece], v: Floats) -> float:
    """``sum_b g_b*(v_b)``."""
    return float(sum(p.regularizer.conjugate(v[p.start : p.stop]) for p in pieces))


def prox_conjugate(pieces: Sequence[Piece], v: Floats, step: Floats) -> Floats:
    """Proximal map of the stacked conjugate, by Moreau's identity without a dual form."""
    out = np.empty_like(v)
    for p in pieces:
        s = slice(p.start, p.stop)
        if p.form is not None:
            out[s] = p.form.prox_dual(v[s], step[s])
            continue
        x = v[s] / step[s]
        # This order of operations gives exact zeros where prox does not change its argument.
        out[s] = p.regularizer.clip_dual(step[s] * (x - p.regularizer.prox(x, 1.0 / step[s])))
    return out


def clip_to_domain(pieces: Sequence[Piece], v: Floats) -> Floats:
    """Project onto the domain, which a change of units can leave by rounding."""
    return np.concatenate([p.regularizer.clip_dual(v[p.start : p.stop]) for p in pieces])


def block_scale(pieces: Sequence[Piece], diagonal: Floats) -> Floats:
    """Return one over the root of H's diagonal, constant within blocks."""
    level = np.empty(len(diagonal))
    for p in pieces:
        block = diagonal[p.start : p.stop].reshape(-1, p.block_size).mean(axis=1)
        level[p.start : p.stop] = np.repeat(np.where(block > 0, block, 1.0), p.block_size)
    scale: Floats = 1 / np.sqrt(level)
    return scale


class QuadraticModel:
    """``1/2 v'Hv + c'v`` plus conjugates, in units where H has approximately unit diagonal."""

    def __init__(self, hessian: Floats | None, root: Floats | None, linear: Floats, pieces: Sequence[Piece]) -> None:
        self.pieces, self.hessian, self.root = pieces, hessian, root
        if root is not None:
            self.scale = block_scale(pieces, np.einsum("ij,ij->i", root, root))
            self.root = root * self.scale[:, None]
        else:
            assert hessian is not None
            self.scale = block_scale(pieces, hessian.diagonal())
            self.hessian = hessian * np.outer(self.scale, self.scale)
        self.linear = linear * self.scale
        self.rounding = 1e-15 * float(np.max(np.abs(self.linear), initial=0.0))

    def find_root(self) -> Floats:
        """Return F with F F' = H."""
        if self.root is None:
            assert self.hessian is not None
            values, vectors = np.linalg.eigh(self.hessian)
            used = values > 1e-15 * max(float(values[-1]), 0.0)
            self.root = vectors[:, used] * np.sqrt(values[used])
        return self.root

    def solved(self, v: Floats, residual: float, tol: float) -> bool:
        """Whether the residual at v is below the tolerance or rounding."""
        return residual <= tol + self.rounding + 1e-14 * float(np.max(np.abs(v), initial=0.0))

    def gradient(self, v: Floats) -> Floats:
        """Return ``Hv + c``."""
        if self.hessian is None:
            return self.find_root() @ (self.find_root().T @ v) + self.linear
        return self.hessian @ v + self.linear

    def prox(self, v: Floats, step: float) -> Floats:
        """Return the proximal map of the conjugates."""
        return prox_conjugate(self.pieces, self.scale * v, step * self.scale**2) / self.scale

    def forward_backward(self, v: Floats) -> Floats:
        """Return a proximal gradient step of length one, whose fixed points are the solutions."""
        return self.prox(v - self.gradient(v), 1.0)

    def residual(self, v: Floats) -> float:
        """Return the distance from the next proximal gradient step."""
        return float(np.max(np.abs(v - self.forward_backward(v)), initial=0.0))

    def conjugate(self, v: Floats) -> float:
        """Return the conjugates at v, moved into their domain."""
        return conjugate_of(self.pieces, clip_to_domain(self.pieces, self.scale * v))

    def value(self, v: Floats) -> float:
        """Return the objective."""
        return 0.5 * float(v @ (self.gradient(v) + self.linear)) + self.conjugate(v)

    def multiply_jacobian(self, v: Floats, step: float, matrix: Floats) -> Floats:
        """Multiply (M, k) by the generalized Jacobian of the proximal map at v.

        By Moreau's identity it is one minus that of the regularizer's proximal map, block-diagonal. Units are equal
        within blocks and cancel.
        """
        product = matrix.copy()
        for p in self.pieces:
            s = slice(p.start, p.stop)
            blocks = p.regularizer.prox_jacobian(v[s] / (step * self.scale[s]), 1 / (step * self.scale[s] ** 2))
            rows = matrix[s].reshape(len(blocks), blocks.shape[1], -1)
            product[s] -= (blocks * rows if blocks.shape[1] == 1 else blocks @ rows).reshape(matrix[s].shape)
        return product


def minimize_composite(
    hessian: Floats | None,
    linear: Floats,
    pieces: Sequence[Piece],
    start: Floats,
    tol: float = 1e-12,
    root: Floats | None = None,
) -> tuple[Floats, float]:
    """Return a minimizer in the conjugates' domain, and its scaled residual.

    Parameters
    ----------
    hessian : array of shape (M, M)
        Positive semi-definite; it may be singular. None if ``root`` is given.
    linear : array of shape (M,)
    pieces : sequence of Piece
    start : array of shape (M,)
    tol : float
        Tolerance of the residual of the fixed-point equation, up to rounding.
    root : array of shape (M, d)
        Thin factor of the Hessian, which is then never formed.
    """
    problem = QuadraticModel(hessian, root, linear, pieces)
    v = problem.forward_backward(start / problem.scale)
    residual, failures = problem.residual(v), 0
    step = 1 + float(np.max(np.abs(v), initial=0.0))
    for _ in range(MAX_ROUNDS):
        v, residual = _newton(problem, v, residual, tol)
        if problem.solved(v, residual, tol) or failures > MAX_FAILURES:
            break
        near = _proximal_point(problem, v, step)
        near_residual = problem.residual(near)
        if near_residual < residual or problem.value(near) < problem.value(v):
            v, residual, failures = near, near_residual, 0
            step = min(10 * step, 1e6 * (1 + float(np.max(np.abs(v), initial=0.0))))
        else:
            step, failures = 0.01 * step, failures + 1
    return clip_to_domain(pieces, v * problem.scale), residual


def _proximal_point(problem: QuadraticModel, start: Floats, step: float) -> Floats:
    """Minimize the problem plus ``||v - start||^2 / (2 step)`` in the range of H.

    With ``1/2 v'Hv = max_w <w, F'v> - 1/2 w'w``, the minimum over v is a proximal map. The remaining function of w is
    smooth and strongly convex, so that a semismooth Newton method with a line search converges.
    """
    root = problem.find_root()

    def at(w: Floats) -> tuple[float, Floats, Floats]:
        slope = root @ w + problem.linear
        forward = start - step * slope
        v = problem.prox(forward, step)
        moved = v - start
        inner = float(slope @ v) + problem.conjugate(v) + float(moved @ moved) / (2 * step)
        return 0.5 * float(w @ w) - inner, v, forward

    w = root.T @ start
    value, v, forward = at(w)
    for _ in range(30):
        gradient = w - root.T @ v
        if np.max(np.abs(gradient), initial=0.0) <= 1e-14 * (1 + np.max(np.abs(w), initial=0.0)):
            break
        system = np.eye(len(w)) + step * root.T @ problem.multiply_jacobian(forward, step, root)
        direction = -_solve_linear(system, gradient)
        slope = float(gradient @ direction)
        length = 1.0
        for _ in range(15):
            trial_value, trial_v, trial_forward = at(w + length * direction)
            if trial_value <= value + 1e-4 * length * slope + 1e-14 * (1 + abs(value)):
                break
            length *= 0.5
        else:
            break
        w, value, v, forward = w + length * direction, trial_value, trial_v, trial_forward
        if -slope <= 1e-15 * (1 + abs(value)):
            break
    return v


def _newton(problem: QuadraticModel, v: Floats, residual: float, tol: float) -> tuple[Floats, float]:
    """Take semismooth Newton steps on the fixed-point equation; return the best point."""
    best, best_residual, since_best = v, residual, 0
    if problem.hessian is None:
        return best, best_residual
    while since_best <= DETOUR and best_residual > 0:
        forward = v - problem.gradient(v)
        v = problem.forward_backward(v + _newton_direction(problem, forward, problem.prox(forward, 1.0) - v))
        residual, since_best = problem.residual(v), since_best + 1
        if residual < 0.5 * best_residual:
            best, best_residual, since_best = v, residual, 0
        elif problem.solved(best, best_residual, tol) or not residual < np.inf:
            break
    return best, best_residual


def _newton_direction(problem: QuadraticModel, forward: Floats, residual: Floats) -> Floats:
    """Solve ``(I - J + J H) d = residual``, symmetrically if the Jacobian J is diagonal."""
    n, hessian = len(forward), problem.hessian
    assert hessian is not None
    if any(p.block_size > 1 for p in problem.pieces):
        return _solve_linear(np.eye(n) - problem.multiply_jacobian(forward, 1.0, np.eye(n) - hessian), residual)
    diagonal = problem.multiply_jacobian(forward, 1.0, np.ones((n, 1)))[:, 0]
    free, direction = diagonal > 0, residual.copy()
    if free.any():
        right = (residual / np.where(free, diagonal, 1.0) - hessian @ np.where(free, 0.0, residual))[free]
        direction[free] = solve_symmetric(hessian[np.ix_(free, free)] + np.diag(1 / diagonal[free] - 1), right)
    return direction


def _solve_linear(system: Floats, right: Floats) -> Floats:
    """Solve; in the least-squares sense if singular (redundant constraints)."""
    if not np.all(np.isfinite(system)):  # overflow
        return np.full_like(right, np.nan)
    try:
        step = np.linalg.solve(system, right)
    except np.linalg.LinAlgError:
        step = None
    if step is None or not np.max(np.abs(step), initial=0.0) < 1e10 * (1 + np.max(np.abs(right), initial=0.0)):
        return np.asarray(np.linalg.lstsq(system, right, rcond=1e-13)[0])
    return np.asarray(step)


def solve_symmetric(matrix: Floats, right: Floats) -> Floats:
    """Solve a positive semi-definite system by Cholesky in units with unit diagonal, or by its pseudo-inverse."""
    tiny = np.finfo(np.float64).tiny
    size = np.sqrt(np.maximum(matrix.diagonal(), tiny))
    scaled = matrix / size / size[:, None]
    root, failed = dpotrf(scaled, lower=1, clean=0)
    if failed == 0 and root.diagonal().min(initial=1.0) > 1e-7:
        return np.asarray(dpotrs(root, right / size, lower=1)[0] / size)
    if not np.all(np.isfinite(scaled)):  # overflow
        return np.full_like(right, np.nan)
    values, vectors = np.linalg.eigh(scaled)
    coefficients = vectors.T @ (right / size)
    # Drop directions below rounding, unless the solution lies in them.
    for least in (1e-11, 1e-15 * len(values)):
        used = values > least * max(float(values[-1]), tiny)
        found = vectors[:, used] @ (coefficients[used] / values[used])
        if np.linalg.norm(coefficients[~used]) <= 1e-12 * np.linalg.norm(coefficients):
            break
    return np.asarray(found) / size
