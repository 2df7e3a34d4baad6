"""Euclidean projections shared by several regularizers, with their Jacobians."""

from __future__ import annotations

import numpy as np

from regbayes._types import Flags, Floats


def project_rows_to_simplex(rows: Floats, total: Floats) -> Floats:
    """Project rows onto ``{u >= 0, sum u = total}`` (Held, Wolfe and Crowder 1974)."""
    rows = rows - rows.max(axis=1, keepdims=True)  # changes nothing, but preserves the digits of a small total
    descending = -np.sort(-rows, axis=1)
    excess = np.cumsum(descending, axis=1) - total[:, None]
    counts = np.arange(1, rows.shape[1] + 1)
    support = np.sum(descending * counts > excess, axis=1)
    support = np.maximum(support, 1)
    threshold = excess[np.arange(len(rows)), support - 1] / support
    projected: Floats = np.maximum(rows - threshold[:, None], 0.0)
    return projected


def project_to_l1_ball(x: Floats, radius: float) -> Floats:
    """Project onto ``||u||_1 <= radius``."""
    magnitude = np.abs(x)
    if magnitude.sum() <= radius:
        return x.copy()
    projected: Floats = np.sign(x) * project_rows_to_simplex(magnitude[None, :], np.array([radius]))[0]
    return projected


def project_to_ball(x: Floats, radius: float, norm: float) -> Floats:
    """Project onto the ball of the given radius in the 1-, 2- or inf-norm."""
    if norm == 1:
        return project_to_l1_ball(x, radius)
    if norm == 2:
        length = float(np.linalg.norm(x))
        return x.copy() if length <= radius else x * (radius / length)
    return np.clip(x, -radius, radius)


def simplex_projection_jacobian(used: Flags) -> Floats:
    """Jacobian of the projection onto a simplex, given its positive coordinates."""
    on = used.astype(np.float64)
    jacobian: Floats = np.eye(used.shape[1]) * on[:, None, :]
    jacobian -= on[:, :, None] * on[:, None, :] / np.maximum(on.sum(axis=1), 1.0)[:, None, None]
    return jacobian


def ball_projection_jacobian(x: Floats, radius: float, norm: float) -> Floats:
    """Generalized Jacobian of `project_to_ball` at x, shape (size, size)."""
    length = float(np.linalg.norm(x, norm))
    jacobian = np.eye(len(x))
    if length < radius:
        return jacobian
    if norm == 1:
        signs = np.sign(project_to_l1_ball(x, radius))
        jacobian = np.outer(signs, signs) * simplex_projection_jacobian(signs[None, :] != 0)[0]
    elif norm == 2 and radius > 0:
        direction = x / length
        jacobian = (radius / length) * (jacobian - np.outer(direction, direction))
    else:
        jacobian *= np.abs(x) < radius
    return jacobian
