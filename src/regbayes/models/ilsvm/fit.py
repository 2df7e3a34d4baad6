"""``fit``: from data and settings to a fitted model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from regbayes.engine import FitResult, Progress, RelativeChange, run
from regbayes.models.ilsvm import alternation, descent
from regbayes.models.ilsvm.descent import Evaluation, Problem
from regbayes.models.ilsvm.inference import infer_all
from regbayes.models.ilsvm.margins import Accuracy, build_dual, solve_margins
from regbayes.models.ilsvm.predict import decide
from regbayes.models.ilsvm.state import UNLABELED, Data, Globals, Settings, State

Floats = NDArray[np.float64]
Callback = Callable[[Progress[State]], bool | None]

PATIENCE = 3  # small changes in a row that count as settled
FINAL = Accuracy(gap=1e-4, max_epochs=300.0)  # of the large-margin step once the features stand
TRANSDUCTIVE_WEIGHTS = (0.01, 0.1, 0.3, 1.0)  # of unlabelled rows' margins, in turn (Joachims 1999)


def fit(
    data: Data,
    settings: Settings,
    start: Globals,
    *,
    margins: Literal["consistent", "posterior"] = "consistent",
    warm_start: Floats | None = None,
    callbacks: Sequence[Callback] = (),
) -> FitResult[State]:
    """Fit the model.

    Parameters
    ----------
    data : Data
    settings : Settings
    start : Globals
        From `init.initial_globals`, or of an earlier fit.
    margins : {"consistent", "posterior"}
        Whether margins act on the features that prediction infers, through the loadings, or on the posterior of the
        training rows (the paper).
    warm_start : array of shape (n_labeled, answers), default=None
        Multipliers of an earlier fit on the same rows.
    callbacks : sequence of callable
        Each sees a `Progress` whose state is a fitted `State`.

    Returns
    -------
    FitResult
    """
    supervised = settings.C > 0 and len(data.labeled) > 0
    problem = Problem(data, settings, build_dual(data, settings) if supervised else None)
    method: Any = descent if margins == "consistent" else alternation
    result: FitResult[Any] = run(
        lambda state: method.step(problem, state),
        method.start(problem, start, warm_start),
        max_iter=settings.max_iter,
        objective=lambda state: state.at.terms,
        stop=RelativeChange(settings.tol, PATIENCE),
        callbacks=[_seeing_states(callback) for callback in callbacks],
    )
    return replace(result, state=_finished(problem, result.state.at))


def fit_transductive(
    data: Data,
    settings: Settings,
    start: Globals,
    *,
    margins: Literal["consistent", "posterior"] = "consistent",
    callbacks: Sequence[Callback] = (),
) -> FitResult[State]:
    """Fit with margins on unlabelled rows too: guess their labels, and let the guesses count more and more."""
    result = fit(data, settings, start, margins=margins, callbacks=callbacks)
    guessed = np.flatnonzero(data.labels == UNLABELED)
    if not len(guessed) or result.state.classifier is None:
        return result
    for weight in TRANSDUCTIVE_WEIGHTS:
        labels, weights = data.labels.copy(), data.weights.copy()
        scores = decide(data.X[guessed], result.state.embedding[guessed], result.state.classifier)
        labels[guessed] = np.argmax(scores, axis=1)
        weights[guessed] = weight
        full = replace(data, labels=labels, weights=weights)
        result = fit(full, settings, result.state.globals, margins=margins, callbacks=callbacks)
    return result


def _seeing_states(callback: Callback) -> Callable[[Progress[Any]], bool | None]:
    return lambda progress: callback(replace(progress, state=progress.state.at.state()))


def _finished(problem: Problem, at: Evaluation) -> State:
    """Infer the training rows as prediction does, and solve the classifier there to the full accuracy."""
    if problem.dual is None:
        return at.state()
    psi, _ = infer_all(problem.data.X, at.globals, problem.settings.n_threads)
    margins = solve_margins(problem.data, psi, problem.dual, problem.settings, at.multipliers, FINAL)
    return State(at.globals, psi, margins.classifier, margins.solution.dual)
