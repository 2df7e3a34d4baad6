"""Logistic losses as quadratic bounds, so that Gaussian posteriors of weights stay Gaussian (Jaakkola and Jordan 2000).

For a label y of -1 or 1 with score f and any xi,

    log sigmoid(y f) >= log sigmoid(xi) - xi / 2 + y f / 2 - lambda(xi) (f² - xi²),   lambda(xi) = tanh(xi / 2) / (4 xi)

and the best xi is the root of E[f²]. A label's weight counts how often it was seen.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import log_expit

from regbayes._types import Floats
from regbayes_paper.models.linear_tasks.problem import LinearTasks

SMALL = 1e-6  # below it lambda is its limit, 1/8


@dataclass(frozen=True)
class QuadraticBound:
    """``constant_m + sums_m . w - 1/2 wᵀ grams_m w``: a lower bound on the log-likelihood of each output's labels."""

    grams: Floats  # (M, d, d)
    sums: Floats  # (M, d)
    constants: Floats  # (M,)

    def expected(self, means: Floats, seconds: Floats) -> Floats:
        """Return the bound for weights with means (M, d) and second moments (M, d, d), for each output."""
        quadratic = np.einsum("mde,mde->m", self.grams, seconds)
        return self.constants + np.sum(self.sums * means, axis=1) - 0.5 * quadratic


def curvature(xi: Floats) -> Floats:
    """``2 lambda(xi)``."""
    return np.where(xi > SMALL, np.tanh(xi / 2) / (2 * np.maximum(xi, SMALL)), 0.25)


def quadratic_bound(problem: LinearTasks, xi: Floats) -> QuadraticBound:
    """Return the bound at xi, one for each observation."""
    d, seen, bend = problem.X.shape[1], problem.observations, curvature(xi)
    grams, sums = np.zeros((problem.n_outputs, d, d)), np.zeros((problem.n_outputs, d))
    each = seen.weights * (log_expit(xi) - 0.5 * xi + 0.5 * bend * xi**2)
    constants = np.zeros(problem.n_outputs)
    for m, here in enumerate(problem.slices):
        rows, weights = problem.X[seen.rows[here]], seen.weights[here]
        grams[m] = rows.T @ (rows * (weights * bend[here])[:, None])
        sums[m] = 0.5 * (weights * seen.targets[here]) @ rows
        constants[m] = float(each[here].sum())
    return QuadraticBound(grams, sums, constants)


def best_xi(problem: LinearTasks, seconds: Floats) -> Floats:
    """Return the xi that make the bound tightest for weights with second moments (M, d, d)."""
    squares = np.empty(len(problem.observations))
    for m, here in enumerate(problem.slices):
        rows = problem.X[problem.observations.rows[here]]
        squares[here] = np.sum((rows @ seconds[m]) * rows, axis=1)
    return np.sqrt(np.maximum(squares, 0.0))
