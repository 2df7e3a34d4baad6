"""Minimise ``1/2 v'Hv + c'v + sum_b g_b*(v_b)``: a small quadratic and conjugates known by their proximal maps.

This is the model that a proximal Newton step minimises (`dual`) and what the proximal map of a sum comes down to.
Two methods share the work. ADMM, on one eigendecomposition, always makes progress, however ill-conditioned H is; a
semismooth Newton step on the fixed-point equation of the proximal gradient map finishes in a few iterations once the
active pieces are right. A Newton step is taken only when it shrinks the residual, so it can do no harm.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from regbayes.framework.regularizers.base import Atom, Regularizer

Floats = NDArray[np.float64]

ADMM_ITERATIONS_PER_ROUND = 20
OVER_RELAXATION = 1.6
DETOUR = 5  # Newton steps that may be worse than the best so far: a step that changes the active pieces often is
PATIENCE = 15  # rounds that may pass without progress


@dataclass(frozen=True)
class Piece:
    """One elementary regularizer and its slice of the stacked dual variable."""

    regularizer: Regularizer
    start: int
    stop: int

    @property
    def block_size(self) -> int:
        """Length of the blocks that do not interact."""
        return self.regularizer.block_size or (self.stop - self.start)


def stack_pieces(atoms: Sequence[Atom]) -> tuple[list[Piece], NDArray[np.intp]]:
    """Lay the atoms end to end; return the pieces and the expectation coordinate of each stacked one."""
    pieces, start = [], 0
    for atom in atoms:
        pieces.append(Piece(atom.regularizer, start, start + len(atom.index)))
        start += len(atom.index)
    return pieces, np.concatenate([atom.index for atom in atoms])


def conjugate_of(pieces: Sequence[Piece], v: Floats) -> float:
    """``sum_b g_b*(v_b)``."""
    return float(sum(p.regularizer.conjugate(v[p.start : p.stop]) for p in pieces))


def prox_conjugate(pieces: Sequence[Piece], v: Floats, step: Floats) -> Floats:
    """Proximal map of the stacked conjugate, through Moreau's identity."""
    out = np.empty_like(v)
    for p in pieces:
        s = slice(p.start, p.stop)
        moved = v[s] - step[s] * p.regularizer.prox(v[s] / step[s], 1.0 / step[s])
        out[s] = p.regularizer.clip_dual(moved)
    return out


def clip_to_domain(pieces: Sequence[Piece], v: Floats) -> Floats:
    """Undo the rounding of a change of units, which can leave a bound by the last digit."""
    return np.concatenate([p.regularizer.clip_dual(v[p.start : p.stop]) for p in pieces])


def block_scale(pieces: Sequence[Piece], diagonal: Floats) -> Floats:
    """One over the root of H's diagonal, made constant within blocks, so that no feature's unit matters."""
    logs = 0.5 * np.log(np.where(diagonal > 0, diagonal, 1.0))
    for p in pieces:
        part = logs[p.start : p.stop].reshape(-1, p.block_size)
        logs[p.start : p.stop] = np.repeat(part.mean(axis=1), p.block_size)
    return np.exp(-logs)


class _Scaled:
    """The problem in units where H has about unit diagonal."""

    def __init__(self, hessian: Floats, linear: Floats, pieces: Sequence[Piece]) -> None:
        self.pieces = pieces
        self.scale = block_scale(pieces, np.diag(hessian).copy())
        self.hessian = hessian * np.outer(self.scale, self.scale)
        self.linear = linear * self.scale

    def gradient(self, v: Floats) -> Floats:
        return self.hessian @ v + self.linear

    def prox(self, v: Floats, step: float) -> Floats:
        return prox_conjugate(self.pieces, self.scale * v, step * self.scale**2) / self.scale

    def forward_backward(self, v: Floats) -> Floats:
        return self.prox(v - self.gradient(v), 1.0)

    def prox_jacobian(self, v: Floats, at: Floats) -> Floats:
        """Derivative of the unit proximal map at v, by differences: block-diagonal, one pass per place in a block."""
        jacobian = np.zeros((len(v), len(v)))
        width = 1e-7 * (1.0 + np.abs(v))
        for p in self.pieces:
            b = p.block_size
            places = np.arange(p.start, p.stop).reshape(-1, b)
            part, scale = Piece(p.regularizer, 0, p.stop - p.start), self.scale[p.start : p.stop]
            for j in range(b):
                moved = v[p.start : p.stop].copy()
                moved[j::b] += width[places[:, j]]
                image = prox_conjugate([part], scale * moved, scale**2) / scale
                change = (image - at[p.start : p.stop]).reshape(-1, b) / width[places[:, j], None]
                jacobian[places, places[:, [j]]] = change
        return jacobian


def minimize_composite(
    hessian: Floats,
    linear: Floats,
    pieces: Sequence[Piece],
    start: Floats,
    tol: float = 1e-12,
    max_rounds: int = 50,
) -> tuple[Floats, float]:
    """Return a minimiser in the domain of the conjugates and its fixed-point residual (scaled units).

    Parameters
    ----------
    hessian : array of shape (M, M)
        Positive semi-definite; it may be singular.
    linear : array of shape (M,)
    pieces : sequence of Piece
    start : array of shape (M,)
    tol : float
        Stop when the residual of the fixed-point equation is below ``tol (1 + max |v|)``.
    max_rounds : int
        Each round is at most a few Newton steps and twenty ADMM iterations.
    """
    problem = _Scaled(hessian, linear, pieces)
    spectrum: tuple[Floats, Floats] | None = None  # for ADMM, which is seldom needed
    best = problem.forward_backward(start / problem.scale)
    best_residual = _residual(problem, best)
    z, w = best.copy(), -problem.gradient(best)
    rho = 1.0
    w /= rho
    residuals: list[float] = []
    for rounds in range(1, max_rounds + 1):
        detour = DETOUR if rounds & (rounds - 1) == 0 else 0  # ever more seldom: each costs a few linear systems
        best, best_residual = _newton(problem, best, best_residual, tol, detour)
        residuals.append(best_residual)
        if len(residuals) > PATIENCE and best_residual > 0.9 * residuals[-PATIENCE]:
            break  # as far as rounding lets it go
        if best_residual <= tol + 1e-14 * np.max(np.abs(best), initial=0.0):
            break
        if spectrum is None:
            eigenvalues, vectors = np.linalg.eigh(problem.hessian)
            spectrum = np.maximum(eigenvalues, 0.0), vectors
        z, w, rho = _admm(problem, spectrum, z, w, rho)
        residual = _residual(problem, z)
        if residual < best_residual:
            best, best_residual = z, residual
    return clip_to_domain(pieces, best * problem.scale), best_residual


def _residual(problem: _Scaled, v: Floats) -> float:
    return float(np.max(np.abs(v - problem.forward_backward(v)), initial=0.0))


def _newton(problem: _Scaled, v: Floats, residual: float, tol: float, detour: int) -> tuple[Floats, float]:
    """Semismooth Newton steps; the best point is returned, also when a step on the way to it was worse."""
    identity = np.eye(len(v))
    best, best_residual, since_best = v, residual, 0
    for _ in range(30):
        if best_residual <= tol + 1e-14 * np.max(np.abs(best), initial=0.0) or since_best > detour:
            break
        forward = v - problem.gradient(v)
        image = problem.prox(forward, 1.0)
        jacobian = problem.prox_jacobian(forward, image)
        system = identity - jacobian + jacobian @ problem.hessian
        v = problem.forward_backward(v + _solve_linear(system, image - v))
        residual = _residual(problem, v)
        if not residual < np.inf:
            break
        since_best += 1
        if residual < 0.5 * best_residual:
            best, best_residual, since_best = v, residual, 0
    return best, best_residual


def _solve_linear(system: Floats, right: Floats) -> Floats:
    """Solve, in the least-squares sense where the system is singular (redundant constraints)."""
    try:
        step = np.linalg.solve(system, right)
    except np.linalg.LinAlgError:
        step = None
    if step is None or not np.max(np.abs(step), initial=0.0) < 1e10 * (1 + np.max(np.abs(right), initial=0.0)):
        return np.asarray(np.linalg.lstsq(system, right, rcond=1e-13)[0])
    return np.asarray(step)


def _admm(
    problem: _Scaled, spectrum: tuple[Floats, Floats], z: Floats, w: Floats, rho: float
) -> tuple[Floats, Floats, float]:
    eigenvalues, vectors = spectrum
    for _ in range(ADMM_ITERATIONS_PER_ROUND):
        v = vectors @ ((vectors.T @ (rho * (z - w) - problem.linear)) / (eigenvalues + rho))
        relaxed = OVER_RELAXATION * v + (1 - OVER_RELAXATION) * z
        z_new = problem.prox(relaxed + w, 1.0 / rho)
        w = w + relaxed - z_new
        primal = float(np.linalg.norm(v - z_new))
        dual = rho * float(np.linalg.norm(z_new - z))
        z = z_new
    # Balance the two residuals once a round; the eigendecomposition makes a new rho free.
    if primal > 0 and dual > 0:
        factor = float(np.clip(np.sqrt(primal / dual), 0.1, 10.0))
        if factor > 2 or factor < 0.5:
            rho, w = rho * factor, w / factor
    return z, w, rho
