"""The paper's alternation, corrected: margins on the posterior of the training rows, docs/math.md eq. (27)-(28).

Each block is solved exactly at the others: features by one sweep, loadings by one linear system, sticks and variances
in closed form, the classifier by its dual. With the multipliers held fixed while the features move, the blocks descend
a Lagrangian and not J, which can rise; the trace records it, and the training loop keeps the best state.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from regbayes._types import Floats
from regbayes.engine import StepResult
from regbayes.framework.margin_accuracy import Accuracy
from regbayes.kernels.chunks import map_chunks
from regbayes.models.ilsvm.descent import Evaluation, Problem, evaluate, evaluate_at
from regbayes.models.ilsvm.inference import Stats, explain, sum_rows
from regbayes.models.ilsvm.margins import margin_slopes
from regbayes.models.ilsvm.state import Globals
from regbayes.models.ilsvm.updates import update_features, update_loadings, update_prior_blocks, update_variances

ACCURACY = Accuracy(gap=1e-4, max_epochs=20.0)  # of the large-margin step in a round


@dataclass(frozen=True)
class Round:
    """The blocks after a round, with the objective there."""

    at: Evaluation
    psi: Floats  # (N, K): the posterior of the training rows


def start(problem: Problem, g: Globals, warm_start: Floats | None) -> Round:
    """Label-free features to begin with."""
    return Round(*evaluate(problem, g, warm_start, ACCURACY))


def step(problem: Problem, state: Round) -> StepResult[Round]:
    """Features, loadings, sticks, variances, classifier: one round."""
    at = state.at
    psi = _swept(problem, state)
    stats, cross = _summed(problem, psi)
    g = update_prior_blocks(update_loadings(at.globals, stats, cross), stats, problem.settings.alpha)
    stats = explain(stats, cross, g)
    g = update_variances(g, stats, problem.settings)
    moved = evaluate_at(problem, g, psi, stats, at.multipliers, ACCURACY)
    return StepResult(Round(moved, psi), moved.terms, {"gap": moved.gap})


def _swept(problem: Problem, state: Round) -> Floats:
    """One sweep of all rows' features, with what their margins add to the logits."""
    X, g, margins = problem.data.X, state.at.globals, state.at.margins
    slopes = None if margins is None else margin_slopes(problem.data, margins, problem.settings.one_vs_rest)
    psi = np.empty_like(state.psi)

    def work(_: int, first: int, last: int) -> None:
        rows = slice(first, last)
        before = state.psi[rows]
        pull = np.zeros_like(before) if slopes is None else slopes(rows) / -problem.settings.generative_weight
        psi[rows] = update_features(X.take(rows), before, pull, g)

    map_chunks(work, len(X), problem.settings.n_threads)
    return psi


def _summed(problem: Problem, psi: Floats) -> tuple[Stats, Floats]:
    X = problem.data.X

    def work(_: int, first: int, last: int) -> tuple[Stats, Floats]:
        return sum_rows(X.take(slice(first, last)), psi[first:last])

    (total, cross), *rest = map_chunks(work, len(X), problem.settings.n_threads)
    for stats, part in rest:
        total, cross = total + stats, cross + part
    return total, cross
