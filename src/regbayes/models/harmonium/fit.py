"""``fit``: from data and settings to a fitted model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from regbayes._types import Floats
from regbayes.engine import AbsoluteChange, FitResult, Progress, run
from regbayes.framework.margin_accuracy import Accuracy
from regbayes.models.harmonium import contrastive, descent
from regbayes.models.harmonium.descent import Evaluation, Problem
from regbayes.models.harmonium.init import initial_globals
from regbayes.models.harmonium.margins import build_dual, solve_margins
from regbayes.models.harmonium.objective import log_normaliser
from regbayes.models.harmonium.state import Classifier, Data, Globals, Settings, State
from regbayes.models.harmonium.units import Visible
from regbayes.models.harmonium.updates import spectrum

Callback = Callable[[Progress[State]], bool | None]

FINAL = Accuracy(gap=1e-6, max_epochs=2000.0)  # of the large-margin step once the weights stand
PATIENCE = 3  # small changes in a row that count as settled


def fit(
    data: Data,
    settings: Settings,
    visible: Visible,
    rng: np.random.Generator,
    *,
    start: Globals | None = None,
    warm_start: Floats | None = None,
    callbacks: Sequence[Callback] = (),
) -> FitResult[State]:
    """Fit the model.

    Parameters
    ----------
    data : Data
    settings : Settings
    visible : Visible
    rng : Generator
        For weights that no singular direction is left for, and for the draws of contrastive divergence.
    start : Globals, default=None
        Of an earlier fit. By default, and where the mean field of the given ones is unstable, weights start from a
        singular value decomposition.
    warm_start : array of shape (N, answers), default=None
        Multipliers of an earlier fit on the same rows.
    callbacks : sequence of callable
        Each sees a `Progress` whose state is a fitted `State`.

    Returns
    -------
    FitResult
        In mean field the objective never rises. Contrastive divergence gives back the last state.
    """
    found = spectrum(data.statistics, settings.n_components)
    problem = Problem(
        data=data,
        settings=settings,
        visible=visible,
        dual=build_dual(data, settings) if settings.C > 0 and len(data.cost) > 1 else None,
        base_cost=-float(visible.log_base(data.X).sum()),
        largest_eigenvalue=float(found.values[0]) if len(found.values) else 1.0,
    )
    if start is None or (not settings.sampling and np.isinf(log_normaliser(start.weights))):
        start = initial_globals(data, settings, found, rng)
    step: Any
    state: Any
    if settings.sampling:
        step, state = contrastive.step, contrastive.start(problem, start, warm_start, int(rng.integers(2**31)))
    else:
        start = replace(start, biases=np.zeros_like(start.biases))
        step, state = descent.step, descent.start(problem, start, warm_start)
    result: FitResult[Any] = run(
        lambda at: step(problem, at),
        state,
        max_iter=settings.max_iter,
        objective=lambda at: at.at.terms,
        stop=AbsoluteChange(settings.tol * problem.unit, PATIENCE),
        callbacks=[_seeing_states(callback, problem) for callback in callbacks],
        keep="last" if settings.sampling else "best",
    )
    return replace(result, state=_finished(problem, result.state.at))


def _seeing_states(callback: Callback, problem: Problem) -> Callable[[Progress[Any]], bool | None]:
    return lambda progress: callback(replace(progress, view=lambda: _state(problem, progress.state.at)))


def _state(problem: Problem, at: Evaluation) -> State:
    """The fitted model that an evaluation describes. A classifier that costs nothing has no weights."""
    if at.margins is not None:
        return State(problem.visible, at.globals, at.hidden, at.margins.classifier, at.multipliers)
    n_answers, fit_intercept = len(problem.data.cost), problem.settings.fit_intercept
    zero = Classifier(np.zeros((n_answers, at.hidden.shape[1] + int(fit_intercept))), fit_intercept)
    return State(problem.visible, at.globals, at.hidden, zero if n_answers > 1 else None, None)


def _finished(problem: Problem, at: Evaluation) -> State:
    """Solve for the classifier to the full accuracy where the weights ended."""
    if problem.dual is not None:
        margins = solve_margins(at.hidden, problem.dual, problem.settings.fit_intercept, at.multipliers, FINAL)
        at = replace(at, margins=margins)
    return _state(problem, at)
