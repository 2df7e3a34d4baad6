"""ASO: a subspace of weights that tasks share, by alternating structure optimisation (Ando and Zhang 2005).

    min  loss(W) + alpha/2 sum_m ||w_m - Θᵀ Θ w_m||² + beta/2 sum_m ||Θ w_m||²   subject to  Θ Θᵀ = I

Weights inside the subspace, the span of the rows of Θ, cost less than what lies outside: beta < alpha. The paper has
beta = 0, which lets weights grow without end where the classes can be separated inside the subspace. The intercept goes
free. For given weights the best subspace is that of their largest singular vectors; for a given subspace the weights
are one ridge problem per output. The problem is not convex, and the objective never rises.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from regbayes._types import Floats
from regbayes.engine import FitResult, Progress, RelativeChange, StepResult, run
from regbayes_paper.models.linear_tasks.problem import ColumnPrior, LinearTasks, find_weights

Callback = Callable[[Progress[Any]], bool | None]


@dataclass(frozen=True)
class Structure:
    """Weights and the subspace that they share."""

    weights: Floats  # (M, d): the last column belongs to the constant, if there is one
    subspace: Floats  # (h, inputs): orthonormal rows


@dataclass(frozen=True)
class StructureSettings:
    """What is minimised, and how long."""

    n_components: int
    alpha: float
    beta: float
    n_inputs: int  # columns of X that are not the constant
    max_iter: int
    tol: float


def fit(problem: LinearTasks, settings: StructureSettings, callbacks: Sequence[Callback]) -> FitResult[Structure]:
    """Alternate between weights and subspace, from the weights of every output by itself."""

    def step(state: Structure) -> StepResult[Structure]:
        weights = update_weights(problem, state, settings)
        after = Structure(weights, best_subspace(weights, settings))
        return StepResult(after, objective(problem, after, settings))

    alone = Structure(np.zeros((problem.n_outputs, problem.X.shape[1])), np.zeros((0, settings.n_inputs)))
    weights = update_weights(problem, alone, settings)
    return run(
        step,
        Structure(weights, best_subspace(weights, settings)),
        max_iter=settings.max_iter,
        objective=lambda state: objective(problem, state, settings),
        stop=RelativeChange(settings.tol),
        callbacks=callbacks,
    )


def update_weights(problem: LinearTasks, state: Structure, settings: StructureSettings) -> Floats:
    """Return the best weights for a subspace, in coordinates of which the first span it."""
    h, d = state.subspace.shape
    turn = np.eye(problem.X.shape[1])
    # a full set of right singular vectors: first those that span the subspace, then the rest
    turn[:d, :d] = np.linalg.svd(state.subspace)[2].T
    columns = np.zeros(problem.X.shape[1])
    columns[:h], columns[h:d] = settings.beta, settings.alpha
    found = find_weights(replace(problem, X=problem.X @ turn), ColumnPrior(columns), state.weights @ turn)
    return found.weights @ turn.T


def best_subspace(weights: Floats, settings: StructureSettings) -> Floats:
    """Return the largest singular vectors of weights."""
    vectors = np.linalg.svd(weights[:, : settings.n_inputs], full_matrices=False)[2]
    return vectors[: settings.n_components]


def objective(problem: LinearTasks, state: Structure, settings: StructureSettings) -> dict[str, float]:
    """Return the terms: the loss, and what weights outside and inside the subspace cost."""
    weights = state.weights[:, : settings.n_inputs]
    inside = weights @ state.subspace.T
    outside = weights - inside @ state.subspace
    return {
        "margin": problem.value(state.weights),
        "kl_outside": 0.5 * settings.alpha * float(np.sum(outside**2)),
        "kl_inside": 0.5 * settings.beta * float(np.sum(inside**2)),
    }
