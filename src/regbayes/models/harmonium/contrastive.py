"""Contrastive divergence: sweeps over batches of rows, with margins at the classifier of the sweep's beginning.

The direction of a step is an estimate, and contrastive divergence is the gradient of no function: the objective that is
recorded, the cost of reconstructing each row from its hidden units and the margins, is for watching.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from regbayes._types import Floats, Integers
from regbayes.engine import StepResult
from regbayes.framework.margin_accuracy import Accuracy
from regbayes.models.harmonium.descent import Evaluation, Problem
from regbayes.models.harmonium.margins import margin_gradient, solve_margins
from regbayes.models.harmonium.objective import reconstruction_costs
from regbayes.models.harmonium.state import Globals
from regbayes.models.harmonium.updates import clip_weights, contrast

ACCURACY = Accuracy(gap=1e-3, max_epochs=20.0)
DECAY = 10.0  # sweeps after which steps are half as long
LONGEST_MOVE = 0.1  # of the weights in one step, relative to them


@dataclass(frozen=True)
class Chain:
    """Where the sweeps are."""

    at: Evaluation
    seed: int  # of all sweeps; each has a generator of its own
    n_sweeps: int = 0


def evaluate(problem: Problem, g: Globals, warm_start: Floats | None) -> Evaluation:
    """Compute what is watched at some parameters, and solve for the classifier."""
    data, settings = problem.data, problem.settings
    hidden = data.statistics @ g.weights
    cost = float(reconstruction_costs(data.X, data.statistics, g, problem.visible).sum())
    terms = {"reconstruction": settings.generative_weight * cost}
    if problem.dual is None:
        return Evaluation(g, hidden, None, terms)
    margins = solve_margins(hidden, problem.dual, settings.fit_intercept, warm_start, ACCURACY)
    return Evaluation(g, hidden, margins, terms | margins.terms)


def start(problem: Problem, g: Globals, warm_start: Floats | None, seed: int) -> Chain:
    """Evaluate the start."""
    return Chain(evaluate(problem, g, warm_start), seed)


def step(problem: Problem, chain: Chain) -> StepResult[Chain]:
    """One sweep over the rows."""
    settings, at = problem.settings, chain.at
    rng = np.random.default_rng([chain.seed, chain.n_sweeps])
    slopes = None
    if at.margins is not None:
        slopes = margin_gradient(problem.data, at.margins, at.hidden.shape[1])
    order = rng.permutation(len(at.hidden))
    g = at.globals
    for first in range(0, len(order), settings.batch_size):
        g = _move(problem, g, order[first : first + settings.batch_size], slopes, chain.n_sweeps, rng)
    after = evaluate(problem, g, at.multipliers)
    return StepResult(Chain(after, chain.seed, chain.n_sweeps + 1), after.terms, {"gap": after.gap})


def _move(
    problem: Problem,
    g: Globals,
    batch: Integers,
    slopes: Floats | None,
    n_sweeps: int,
    rng: np.random.Generator,
) -> Globals:
    """Step against the estimated gradient of J per row, in units of its generative part."""
    settings, X, statistics = problem.settings, problem.data.X[batch], problem.data.statistics[batch]
    estimate = contrast(X, statistics, g, problem.visible, settings.n_gibbs, rng)
    direction = estimate.weights
    if slopes is not None:
        direction = direction + statistics.T @ slopes[batch] / (settings.generative_weight * len(batch))
    rate = settings.learning_rate / ((1.0 + n_sweeps / DECAY) * max(problem.largest_eigenvalue, 1.0))
    move = rate * direction
    length, limit = float(np.linalg.norm(move)), LONGEST_MOVE * max(float(np.linalg.norm(g.weights)), LONGEST_MOVE)
    if length > limit:
        move *= limit / length
    moved = replace(g, weights=g.weights - move, biases=g.biases - rate * estimate.biases)
    return clip_weights(moved, problem.visible.unbounded)
