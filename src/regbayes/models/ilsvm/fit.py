"""``fit``: from data and settings to a fitted model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from regbayes.engine import FitResult, Progress, run
from regbayes.models.ilsvm import alternation, descent, startup
from regbayes.models.ilsvm.descent import Evaluation, Problem, Search, settled
from regbayes.models.ilsvm.inference import infer_all
from regbayes.models.ilsvm.margins import Accuracy, build_dual, solve_margins
from regbayes.models.ilsvm.predict import decide
from regbayes.models.ilsvm.state import UNLABELED, Classifier, Data, Globals, Integers, Settings, State

Floats = NDArray[np.float64]
Callback = Callable[[Progress[State]], bool | None]

FINAL = Accuracy(gap=1e-4, max_epochs=300.0)  # of the large-margin step once the features stand
TRANSDUCTIVE_WEIGHTS = (0.01, 0.1, 0.3, 1.0)  # of unlabelled rows' margins, in turn (Joachims 1999)


def fit(
    data: Data,
    settings: Settings,
    start: Globals,
    *,
    margins: Literal["consistent", "posterior"] = "consistent",
    warm_start: Floats | None = None,
    early_rows: Integers | None = None,
    callbacks: Sequence[Callback] = (),
) -> FitResult[State]:
    """Fit the model.

    Parameters
    ----------
    data : Data
    settings : Settings
    start : Globals
        From `init.initial_globals`, or of an earlier fit. Where its temperature is above that of the settings, the
        start-up cools it down.
    margins : {"consistent", "posterior"}
        Whether margins act on the features that prediction infers, through the loadings, or on the posterior of the
        training rows (the paper).
    warm_start : array of shape (n_labeled, answers), default=None
        Multipliers of an earlier fit on the same rows.
    early_rows : array of int, default=None
        Rows that the start-up is content with, in order; all of them by default. `init.draw_early_rows` draws them.
    callbacks : sequence of callable
        Each sees a `Progress` whose state is a fitted `State`.

    Returns
    -------
    FitResult
        Its trace begins after the start-up. With consistent margins the objective never rises in it.
    """
    problem = _problem(data, settings)
    step: Any
    state: Any
    if margins == "posterior":
        step, state = alternation.step, alternation.start(problem, _at_temperature(start, settings), warm_start)
    else:
        step, state = descent.step, _started(problem, start, warm_start, early_rows)
    result: FitResult[Any] = run(
        lambda at: step(problem, at),
        state,
        max_iter=settings.max_iter,
        objective=lambda at: at.at.terms,
        stop=settled(settings.tol * problem.unit),
        callbacks=[_seeing_states(callback, settings) for callback in callbacks],
    )
    return replace(result, state=_padded(_finished(problem, result.state.at), settings))


def fit_transductive(
    data: Data,
    settings: Settings,
    start: Globals,
    *,
    margins: Literal["consistent", "posterior"] = "consistent",
    early_rows: Integers | None = None,
    callbacks: Sequence[Callback] = (),
) -> FitResult[State]:
    """Fit with margins on unlabelled rows too: guess their labels, and let the guesses count more and more."""
    result = fit(data, settings, start, margins=margins, early_rows=early_rows, callbacks=callbacks)
    guessed = np.flatnonzero(data.labels == UNLABELED)
    if not len(guessed) or result.state.classifier is None:
        return result
    for weight in TRANSDUCTIVE_WEIGHTS:
        labels, weights = data.labels.copy(), data.weights.copy()
        scores = decide(data.X[guessed], result.state.embedding[guessed], result.state.classifier)
        labels[guessed] = np.argmax(scores, axis=1)
        weights[guessed] = weight
        full = replace(data, labels=labels, weights=weights)
        result = fit(full, settings, result.state.globals, margins=margins, early_rows=early_rows, callbacks=callbacks)
    return result


def _problem(data: Data, settings: Settings) -> Problem:
    supervised = settings.C > 0 and len(data.labeled) > 0
    return Problem(data, settings, build_dual(data, settings) if supervised else None)


def _started(problem: Problem, start: Globals, multipliers: Floats | None, early_rows: Integers | None) -> Search:
    """Run the start-up, on some of the rows if there are many, and evaluate where it ended on all of them."""
    settings, data = problem.settings, problem.data
    if settings.max_iter == 0:
        return descent.start(problem, _at_temperature(start, settings), multipliers)
    start = startup.without_empty(start)
    # Variances estimated while the features are still warm put everything down to noise, and no feature is left.
    settings = replace(settings, estimate_variances=False)
    if early_rows is None:
        return startup.start_up(replace(problem, settings=settings), start, multipliers)
    some = _problem(data.rows(early_rows), settings)  # multipliers belong to all rows
    found = startup.start_up(some, start, None, share=len(early_rows) / len(data.X))
    return descent.start(problem, found.at.globals, multipliers)


def _at_temperature(start: Globals, settings: Settings) -> Globals:
    return replace(start, temperature=settings.temperature)


def _seeing_states(callback: Callback, settings: Settings) -> Callable[[Progress[Any]], bool | None]:
    return lambda progress: callback(replace(progress, state=_padded(progress.state.at.state(), settings)))


def _finished(problem: Problem, at: Evaluation) -> State:
    """Infer the training rows as prediction does, and solve the classifier there to the full accuracy."""
    psi, _ = infer_all(problem.data.X, at.globals, problem.settings.n_threads)
    if problem.dual is None:
        return State(at.globals, psi, None, None)
    margins = solve_margins(problem.data, psi, problem.dual, problem.settings, at.multipliers, FINAL)
    return State(at.globals, psi, margins.classifier, margins.solution.dual)


def _padded(state: State, settings: Settings) -> State:
    """Give the features that were left out their places again, behind the others: no loadings, no weights."""
    n_kept = len(state.globals.loadings)
    missing = settings.n_components - n_kept
    if missing == 0:
        return state
    g = startup.pad(state.globals, settings.n_components, settings.alpha)
    constant = expit(g.log_odds[n_kept:] - 0.5 * g.precision * g.loadings.shape[1] * g.variances[n_kept:])
    embedding = np.hstack([state.embedding, np.broadcast_to(constant, (len(state.embedding), missing))])
    classifier = state.classifier
    if classifier is not None:
        latent, rest = np.split(classifier.weights, [n_kept], axis=1)
        weights = np.hstack([latent, np.zeros((len(latent), missing)), rest])
        centre = np.concatenate([classifier.centre, constant if classifier.fit_intercept else np.zeros(missing)])
        classifier = Classifier(weights, centre, classifier.input_scale, classifier.fit_intercept)
    return State(g, embedding, classifier, state.multipliers)
