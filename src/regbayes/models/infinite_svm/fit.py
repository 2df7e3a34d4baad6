"""``fit``: from data and settings to a fitted model, by exact coordinate descent.

A round goes through responsibilities, sticks, components and classifiers, each at its best for the others, so that the
objective never rises: responsibilities and classifiers, which are found to an accuracy, are kept where they would.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from regbayes._types import Floats
from regbayes.engine import AbsoluteChange, FitResult, Progress, StepResult, run
from regbayes.framework.large_margin import MultiClassDual
from regbayes.framework.margin_accuracy import Accuracy
from regbayes.models.infinite_svm.margins import Margins, build_dual, keep_better, no_weights, solve_margins
from regbayes.models.infinite_svm.objective import generative_terms
from regbayes.models.infinite_svm.state import Data, Globals, Settings, State
from regbayes.models.infinite_svm.updates import label_free, update_globals, update_responsibilities
from regbayes.priors.dirichlet_process import best_order

Callback = Callable[[Progress[State]], bool | None]

ROUND = Accuracy(gap=1e-4, max_epochs=200.0)  # of the large-margin step in a round
FINAL = Accuracy(gap=1e-6, max_epochs=2000.0)  # of the one that is kept
PATIENCE = 3  # small changes in a row that count as settled


@dataclass(frozen=True)
class Problem:
    """What a fit is about."""

    data: Data
    settings: Settings
    dual: MultiClassDual | None  # None without margins


@dataclass(frozen=True)
class Round:
    """All blocks, and the objective there."""

    responsibilities: Floats  # (N, T)
    globals: Globals
    margins: Margins | None
    terms: dict[str, float]


def fit(
    data: Data,
    settings: Settings,
    start: Floats,
    *,
    warm_start: Floats | None = None,
    callbacks: Sequence[Callback] = (),
) -> FitResult[State]:
    """Fit the model.

    Parameters
    ----------
    data : Data
    settings : Settings
    start : array of shape (N, T)
        Responsibilities to begin with.
    warm_start : array of shape (N, answers), default=None
        Multipliers of an earlier fit on the same rows.
    callbacks : sequence of callable
        Each sees a `Progress` whose state is a fitted `State`.

    Returns
    -------
    FitResult
    """
    problem = Problem(data, settings, build_dual(data, settings) if settings.C > 0 else None)
    first = evaluated(problem, start, warm_start)
    unit = len(data.X) * settings.generative_weight
    result: FitResult[Any] = run(
        lambda at: step(problem, at),
        first,
        max_iter=settings.max_iter,
        objective=lambda at: at.terms,
        stop=AbsoluteChange(settings.tol * unit, PATIENCE),
        callbacks=[_seeing_states(callback, problem) for callback in callbacks],
    )
    return replace(result, state=_finished(problem, result.state))


def step(problem: Problem, at: Round) -> StepResult[Round]:
    """One round over all blocks."""
    data, settings, margins = problem.data, problem.settings, at.margins
    if margins is None:
        q = label_free(data.X, at.globals)
        moved = evaluated(problem, q[:, best_order(q.sum(axis=0))], None)
        return StepResult(moved, moved.terms, {"gap": 0.0})
    q, omega = update_responsibilities(
        data, settings, at.globals, margins.classifier, margins.multipliers, at.responsibilities
    )
    order = best_order(q.sum(axis=0))
    q, classifier = q[:, order], replace(margins.classifier, weights=margins.classifier.weights[order])
    moved = evaluated(problem, q, omega)
    assert moved.margins is not None
    better = keep_better(moved.margins, classifier, data, q, settings)
    moved = replace(moved, margins=better, terms=moved.terms | better.terms)
    return StepResult(moved, moved.terms, {"gap": better.gap})


def evaluated(problem: Problem, q: Floats, warm_start: Floats | None) -> Round:
    """All other blocks at their best for responsibilities."""
    data, settings = problem.data, problem.settings
    g = update_globals(data.X, q, settings)
    terms = generative_terms(data.X, q, g, settings)
    if problem.dual is None:
        return Round(q, g, None, terms | {"kl_weights": 0.0, "margin": 0.0})
    margins = solve_margins(data, q, problem.dual, settings, warm_start, ROUND)
    return Round(q, g, margins, terms | margins.terms)


def _state(problem: Problem, at: Round) -> State:
    """The fitted model that a round describes. Classifiers that cost nothing have no weights."""
    if at.margins is None:
        return State(at.globals, no_weights(problem.data, problem.settings), at.responsibilities, None)
    return State(at.globals, at.margins.classifier, at.responsibilities, at.margins.multipliers)


def _finished(problem: Problem, at: Round) -> State:
    """Solve for the classifiers to the full accuracy, at the responsibilities that prediction sees if wanted."""
    state = _state(problem, at)
    if problem.dual is None:
        return state
    data, settings = problem.data, problem.settings
    q = label_free(data.X, at.globals) if settings.refit else at.responsibilities
    margins = solve_margins(data, q, problem.dual, settings, state.multipliers, FINAL)
    return replace(state, classifier=margins.classifier)


def _seeing_states(callback: Callback, problem: Problem) -> Callable[[Progress[Any]], bool | None]:
    return lambda progress: callback(replace(progress, view=lambda: _state(problem, progress.state)))
