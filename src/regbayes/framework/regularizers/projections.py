"""Euclidean projections and proximal maps of norms that several regularizers share."""

from __future__ import annotations

import numpy as np

from regbayes._types import Floats


def project_rows_to_simplex(rows: Floats, total: Floats) -> Floats:
    """Project each row onto ``{u >= 0, sum u = total}`` (Held, Wolfe and Crowder 1974: sort and threshold)."""
    descending = -np.sort(-rows, axis=1)
    excess = np.cumsum(descending, axis=1) - total[:, None]
    counts = np.arange(1, rows.shape[1] + 1)
    support = np.sum(descending * counts > excess, axis=1)
    support = np.maximum(support, 1)
    threshold = excess[np.arange(len(rows)), support - 1] / support
    return np.asarray(np.maximum(rows - threshold[:, None], 0.0))


def project_to_l1_ball(x: Floats, radius: float) -> Floats:
    """Project onto ``||u||_1 <= radius``."""
    magnitude = np.abs(x)
    if magnitude.sum() <= radius:
        return x.copy()
    return np.asarray(np.sign(x) * project_rows_to_simplex(magnitude[None, :], np.array([radius]))[0])


def project_to_ball(x: Floats, radius: float, norm: float) -> Floats:
    """Project onto the ball of that radius in the 1-, 2- or inf-norm."""
    if norm == 1:
        return project_to_l1_ball(x, radius)
    if norm == 2:
        length = float(np.linalg.norm(x))
        return x.copy() if length <= radius else x * (radius / length)
    return np.clip(x, -radius, radius)
