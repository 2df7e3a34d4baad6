"""The paper's alternation, corrected: margins on the posterior of the training rows, docs/math.md eq. (27)-(28).

Each block is solved exactly at the others: features by one sweep, loadings by one linear system, sticks and variances
in closed form, the classifier by its dual. With the multipliers held fixed while the features move, the blocks descend
a Lagrangian and not J, which can rise; the trace records it, and the training loop keeps the best state.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from regbayes.engine import StepResult
from regbayes.kernels.chunks import map_chunks
from regbayes.models.ilsvm.descent import Evaluation, Problem
from regbayes.models.ilsvm.inference import Stats, explain, infer_all, sum_rows
from regbayes.models.ilsvm.margins import Accuracy, Margins, margin_gradient, solve_margins
from regbayes.models.ilsvm.objective import generative_terms
from regbayes.models.ilsvm.state import Globals
from regbayes.models.ilsvm.updates import update_features, update_loadings, update_prior_blocks, update_variances

Floats = NDArray[np.float64]
ACCURACY = Accuracy(gap=1e-4, max_epochs=20.0)  # of the large-margin step in a round


@dataclass(frozen=True)
class Round:
    """The blocks after a round, with the objective there."""

    at: Evaluation


def start(problem: Problem, g: Globals, warm_start: Floats | None) -> Round:
    """Label-free features to begin with."""
    psi, stats = infer_all(problem.data.X, g, problem.settings.n_threads)
    return Round(_evaluated(problem, g, psi, stats, warm_start))


def step(problem: Problem, state: Round) -> StepResult[Round]:
    """Features, loadings, sticks, variances, classifier: one round."""
    settings, at = problem.settings, state.at
    psi = _swept(problem, at)
    stats, cross = _summed(problem, psi)
    g = update_prior_blocks(update_loadings(at.globals, stats, cross), stats, settings.alpha)
    stats = explain(stats, cross, g)
    if settings.estimate_variances:
        g = update_variances(g, stats)
    moved = _evaluated(problem, g, psi, stats, at.multipliers)
    return StepResult(Round(moved), moved.terms, {"gap": moved.gap})


def _evaluated(problem: Problem, g: Globals, psi: Floats, stats: Stats, warm_start: Floats | None) -> Evaluation:
    settings = problem.settings
    terms = generative_terms(stats, g, settings.alpha, settings.generative_weight)
    margins: Margins | None = None
    if problem.dual is not None:
        margins = solve_margins(problem.data, psi, problem.dual, settings, warm_start, ACCURACY)
        terms |= margins.terms
    return Evaluation(g, psi, stats, margins, terms)


def _swept(problem: Problem, at: Evaluation) -> Floats:
    """One sweep of all rows' features, with what their margins add to the logits."""
    X, g = problem.data.X, at.globals
    if at.margins is None:
        pull = np.zeros_like(at.psi)
    else:
        pull = -margin_gradient(problem.data, at.margins) / problem.settings.generative_weight
    psi = np.empty_like(at.psi)

    def work(_: int, first: int, last: int) -> None:
        rows = slice(first, last)
        psi[rows] = update_features(X[rows], at.psi[rows], pull[rows], g)

    map_chunks(work, len(X), problem.settings.n_threads)
    return psi


def _summed(problem: Problem, psi: Floats) -> tuple[Stats, Floats]:
    X = problem.data.X
    (total, cross), *rest = map_chunks(lambda _, a, b: sum_rows(X[a:b], psi[a:b]), len(X), problem.settings.n_threads)
    for stats, part in rest:
        total, cross = total + stats, cross + part
    return total, cross
