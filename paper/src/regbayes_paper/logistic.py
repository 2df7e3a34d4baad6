"""Quadratic bounds on logistic losses (Jaakkola and Jordan 2000), for Gaussian posteriors of weights.

For a label y of -1 or 1 with score f and any xi,

    log sigmoid(y f) >= log sigmoid(xi) - xi / 2 + y f / 2 - lambda(xi) (f^2 - xi^2)

with ``lambda(xi) = tanh(xi / 2) / (4 xi)``. The optimal xi is the square root of ``E[f^2]``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import log_expit

from regbayes_paper._types import Floats
from regbayes_paper.tasks import TaskProblem

SMALL = 1e-6  # xi below which lambda(xi) is replaced by its limit 1/8


@dataclass(frozen=True)
class QuadraticBound:
    """Lower bound ``constant_m + sums_m . w - 1/2 w' grams_m w`` on the log-likelihood of output m."""

    grams: Floats  # (M, d, d)
    sums: Floats  # (M, d)
    constants: Floats  # (M,)

    def expected(self, means: Floats, seconds: Floats) -> Floats:
        """Return the expected bound of each output for weights with means (M, d) and second moments (M, d, d)."""
        quadratic = np.einsum("mde,mde->m", self.grams, seconds)
        return self.constants + np.sum(self.sums * means, axis=1) - 0.5 * quadratic


def quadratic_bound(problem: TaskProblem, xi: Floats) -> QuadraticBound:
    """Return the bound for given xi of all targets."""
    bend = np.where(xi > SMALL, np.tanh(xi / 2) / (2 * np.maximum(xi, SMALL)), 0.25)
    each = log_expit(xi) - 0.5 * xi + 0.5 * bend * xi**2
    constants = np.bincount(problem.outputs, each, minlength=problem.n_outputs)
    return QuadraticBound(problem.grams(bend), problem.sums(0.5 * problem.targets), constants)


def best_xi(problem: TaskProblem, seconds: Floats) -> Floats:
    """Return the xi that make the bound tightest for weights with second moments (M, d, d)."""
    squares = np.empty(len(problem.rows))
    for second, part in zip(seconds, problem.slices, strict=True):
        rows = problem.X[problem.rows[part]]
        squares[part] = np.sum((rows @ second) * rows, axis=1)
    return np.sqrt(np.maximum(squares, 0.0))
