"""MTRL: the weights of the tasks and the covariance of the tasks, learned in turn (Zhang and Yeung 2010).

The problem is convex in weights W (a row per output) and covariance Ω together:

    min  loss(W) + alpha/2 ||W||² + beta/2 tr(Wᵀ Ω⁻¹ W)   subject to  Ω >= 0,  tr Ω = M

For given weights, ``Ω = M (W Wᵀ)^(1/2) / tr (W Wᵀ)^(1/2)``, and the last term is ``beta / (2 M)`` times the squared
trace norm of W. The paper has tr Ω = 1; with M, the number of outputs, unrelated tasks of one size have the identity,
and beta is in the unit of alpha.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from regbayes._types import Floats
from regbayes.engine import FitResult, Progress, RelativeChange, Status, StepResult, run
from regbayes_paper.models.linear_tasks.problem import LinearTasks, MixedPrior, find_weights

Callback = Callable[[Progress[Any]], bool | None]


@dataclass(frozen=True)
class Relations:
    """Weights and the covariance of the outputs."""

    weights: Floats  # (M, d)
    covariance: Floats  # (M, M)


@dataclass(frozen=True)
class RelationSettings:
    """What is minimised, and how long."""

    alpha: float
    beta: float
    covariance: Floats | None  # (M, M) where it is given; None learns it
    max_iter: int
    tol: float


def fit(problem: LinearTasks, settings: RelationSettings, callbacks: Sequence[Callback]) -> FitResult[Relations]:
    """Alternate between weights and covariance; with a covariance that is given there is nothing to alternate."""
    M, d = problem.n_outputs, problem.X.shape[1]
    start = Relations(np.zeros((M, d)), np.eye(M) if settings.covariance is None else settings.covariance)

    def step(state: Relations) -> StepResult[Relations]:
        weights, gap = update_weights(problem, state, settings)
        covariance = update_covariance(weights, state.covariance) if settings.covariance is None else state.covariance
        status = Status.CONVERGED if settings.covariance is not None else None
        after = Relations(weights, covariance)
        return StepResult(after, objective(problem, weights, settings), {"gap": gap}, status)

    return run(step, start, max_iter=settings.max_iter, stop=RelativeChange(settings.tol), callbacks=callbacks)


def update_weights(problem: LinearTasks, state: Relations, settings: RelationSettings) -> tuple[Floats, float]:
    """Return the best weights for a covariance, which may be singular, and their duality gap.

    ``W = (alpha + beta Ω⁻¹)^(-1/2) V``, with standard normal V.
    """
    values, vectors = np.linalg.eigh(state.covariance)
    values = np.maximum(values, 0.0)
    roots = np.sqrt(values / (settings.alpha * values + settings.beta))
    mixing = (vectors * roots) @ vectors.T
    known = roots > roots.max() * np.sqrt(np.finfo(np.float64).eps)
    inverse = np.where(known, 1.0 / np.where(known, roots, 1.0), 0.0)
    start = (vectors * inverse) @ (vectors.T @ state.weights)
    found = find_weights(problem, MixedPrior(mixing), start)
    return found.weights, found.gap


def update_covariance(weights: Floats, previous: Floats) -> Floats:
    """Return the best covariance for weights; where all are zero, every one is."""
    vectors, sizes, _ = np.linalg.svd(weights, full_matrices=False)
    total = float(sizes.sum())
    return previous if total == 0.0 else (vectors * (len(weights) * sizes / total)) @ vectors.T


def objective(problem: LinearTasks, weights: Floats, settings: RelationSettings) -> dict[str, float]:
    """Return the terms at weights, with the covariance at its best if it is learned."""
    if settings.covariance is None:
        related = float(np.linalg.svd(weights, compute_uv=False).sum()) ** 2 / len(weights)
    else:
        related = float(np.sum(weights * np.linalg.lstsq(settings.covariance, weights, rcond=None)[0]))
    return {
        "margin": problem.value(weights),
        "kl_weights": 0.5 * settings.alpha * float(np.sum(weights**2)),
        "kl_relations": 0.5 * settings.beta * related,
    }
