"""``fit``: from data and settings to a fitted model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import numpy as np
from scipy.special import expit

from regbayes._types import Floats, Integers
from regbayes.engine import AbsoluteChange, FitResult, Progress, Status, Trace, run
from regbayes.framework.margin_accuracy import Accuracy
from regbayes.models.ilsvm import alternation, descent, startup
from regbayes.models.ilsvm.descent import PATIENCE, Evaluation, Problem, Search
from regbayes.models.ilsvm.inference import infer
from regbayes.models.ilsvm.margins import build_dual, solve_margins
from regbayes.models.ilsvm.predict import decide
from regbayes.models.ilsvm.state import UNLABELED, Classifier, Data, Globals, Settings, State

Callback = Callable[[Progress[Callable[[], State]]], bool | None]
MarginKind = Literal["consistent", "posterior"]

FINAL = Accuracy(gap=1e-4, max_epochs=300.0)  # of the large-margin step once the features stand
AS_IT_IS = Accuracy(gap=1.0, max_epochs=0.0)
TRANSDUCTIVE_WEIGHTS = (0.01, 0.1, 0.3, 1.0)  # of unlabelled rows' margins, in turn (Joachims 1999)
CUT_SHORT = (Status.STOPPED, Status.INTERRUPTED)
START_UP = "start-up"  # the stages of a fit, as callbacks see them
STAGES: dict[MarginKind, str] = {"consistent": "descent", "posterior": "alternation"}


def fit(
    data: Data,
    settings: Settings,
    start: Globals | State,
    *,
    margins: MarginKind = "consistent",
    early_rows: Integers | None = None,
    seed: int = 0,
    callbacks: Sequence[Callback] = (),
    stage: str | None = None,
) -> FitResult[State]:
    """Fit the model.

    Parameters
    ----------
    data : Data
    settings : Settings
    start : Globals or State
        A new start, from `init.initial_globals`; or an earlier fit to go on from, which has its start-up behind it:
        the features that it has are not judged again. Where its temperature was higher, it is cooled in steps.
    margins : {"consistent", "posterior"}
        Whether margins act on the features that prediction infers, through the loadings, or on the posterior of the
        training rows (the paper).
    early_rows : array of int, default=None
        Rows that the start-up is content with, in order; all of them by default. `init.draw_early_rows` draws them.
    seed : int, default=0
        For the features that the start-up adds to those of the start.
    callbacks : sequence of callable
        Each sees the `Progress` of every iteration, those of the start-up too. Its ``stage`` says which they are, and
        its ``state`` is a function that returns the `State` of a fit that ends there: rows are inferred for it.
    stage : str, default=None
        Name of the iterations after the start-up: "descent" or "alternation", as the margins are, unless given.

    Returns
    -------
    FitResult
        Its trace begins after the start-up. With consistent margins the objective never rises in it. A fit that is
        stopped or interrupted in the start-up ends there, with no iteration, and the trace has its end alone.
    """
    problem = _problem(data, settings)
    halted: Status | None = None
    step: Any
    state: Any
    if margins == "posterior":
        step, state = alternation.step, _alternating(problem, start)
    else:
        step = descent.step
        state, halted = _started(problem, start, early_rows, seed, callbacks)
    result: FitResult[Any] = run(
        lambda at: step(problem, at),
        state,
        max_iter=0 if halted else settings.max_iter,
        objective=lambda at: at.at.terms,
        stop=AbsoluteChange(settings.tol * problem.unit, PATIENCE),
        callbacks=_watching(callbacks, problem, stage or STAGES[margins]),
    )
    final, cut = _ended(problem, result.state.at)
    return replace(result, state=final, status=cut or halted or result.status)


def fit_transductive(
    data: Data,
    settings: Settings,
    start: Globals | State,
    *,
    margins: MarginKind = "consistent",
    early_rows: Integers | None = None,
    seed: int = 0,
    callbacks: Sequence[Callback] = (),
) -> FitResult[State]:
    """Fit with margins on unlabelled rows too: guess their labels, and let the guesses count more and more.

    Every round is a fit that goes on from the last one, with new guesses, which weigh a share of what labelled rows of
    their class do. A stop or an interrupt ends the rounds. The
    trace is that of all rounds, and iterations count on; the one at which a round ends and the next begins is there
    twice, with the objectives of both.
    """
    results = [fit(data, settings, start, margins=margins, early_rows=early_rows, seed=seed, callbacks=callbacks)]
    guessed, by_class = np.flatnonzero(data.labels == UNLABELED), _weights_by_class(data)
    for weight in TRANSDUCTIVE_WEIGHTS if len(guessed) else ():
        last = results[-1]
        if last.status in CUT_SHORT or last.state.classifier is None:
            break
        labels, weights = data.labels.copy(), data.weights.copy()
        scores = decide(data.X.take(guessed), last.state.embedding[guessed], last.state.classifier)
        labels[guessed] = np.argmax(scores, axis=1)
        weights[guessed] = weight * by_class[labels[guessed]]
        full = replace(data, labels=labels, weights=weights)
        stage = guesses_at(weight)
        results.append(fit(full, settings, last.state, margins=margins, callbacks=callbacks, stage=stage))
    *earlier, last = results
    n_before = sum(result.n_iter for result in earlier)
    return replace(
        last,
        trace=Trace.joined([result.trace for result in results]),
        n_iter=n_before + last.n_iter,
        kept_iteration=n_before + last.kept_iteration,
    )


def _weights_by_class(data: Data) -> Floats:
    """Return the mean weight of the labelled rows of each class, shape (answers,)."""
    labels = data.labels[data.labeled]
    counts = np.bincount(labels, minlength=len(data.cost))
    sums = np.bincount(labels, data.weights[data.labeled], minlength=len(data.cost))
    return np.asarray(sums / np.maximum(counts, 1))


def stages_of(margins: MarginKind, transductive: bool, max_iter: int) -> dict[str, int | None]:
    """Return the stages that a fit can have, in their order, and the most iterations of each, where that is known."""
    rounds = [guesses_at(weight) for weight in TRANSDUCTIVE_WEIGHTS] if transductive else []
    start_up: dict[str, int | None] = {START_UP: None} if margins == "consistent" else {}
    return start_up | dict.fromkeys([STAGES[margins], *rounds], max_iter)


def guesses_at(weight: float) -> str:
    """Return the stage of a round with guessed labels."""
    return f"guesses at weight {weight:g}"


def _problem(data: Data, settings: Settings) -> Problem:
    supervised = settings.C > 0 and len(data.labeled) > 0
    return Problem(data, settings, build_dual(data, settings) if supervised else None)


def _alternating(problem: Problem, start: Globals | State) -> alternation.Round:
    g = _resumed(start.globals, problem.settings) if isinstance(start, State) else start
    multipliers = _known_multipliers(problem, start)
    return alternation.start(problem, _at_temperature(g, problem.settings), multipliers)


def _started(
    problem: Problem, start: Globals | State, early_rows: Integers | None, seed: int, callbacks: Sequence[Callback]
) -> tuple[Search, Status | None]:
    """Run the start-up, on some of the rows if there are many, and evaluate where it ended on all of them.

    Return the status too if the fit shall not go on.
    """
    settings, resumed = problem.settings, isinstance(start, State)
    g = startup.without_empty(_resumed(start.globals, settings)) if isinstance(start, State) else start
    multipliers = _known_multipliers(problem, start)
    if settings.max_iter == 0 or (resumed and g.temperature == settings.temperature):
        return descent.start(problem, _at_temperature(g, settings), multipliers), None
    # Variances estimated while the features are still warm put everything down to noise, and no feature is left.
    fixed = replace(settings, estimate_noise=False, estimate_prior=False)
    whole = replace(problem, settings=fixed)
    some = whole if early_rows is None or resumed else _problem(problem.data.rows(early_rows), fixed)
    plan = startup.Plan(some, whole, seed, is_new=not resumed)
    result = run(
        partial(startup.step, plan),
        startup.begin(plan, g, multipliers),
        max_iter=startup.most_steps(plan, g),
        callbacks=_watching(callbacks, problem, START_UP),
        keep="last",
    )
    found = result.state.search
    if result.status is Status.CONVERGED:
        return found, None
    return descent.start(problem, _at_temperature(found.at.globals, settings), multipliers), result.status


def _at_temperature(g: Globals, settings: Settings) -> Globals:
    return replace(g, temperature=settings.temperature)


def _resumed(previous: Globals, settings: Settings) -> Globals:
    """Return the parameters of an earlier fit as the start of one with other settings, cooled later where warmer."""
    return replace(
        previous,
        noise_variance=previous.noise_variance if settings.estimate_noise else settings.noise_variance,
        prior_variance=previous.prior_variance if settings.estimate_prior else settings.prior_variance,
        temperature=max(previous.temperature, settings.temperature),
        n_sweeps=settings.n_sweeps,
    )


def _known_multipliers(problem: Problem, start: Globals | State | Evaluation) -> Floats | None:
    """Return the multipliers that came with a start, unless they are those of other rows or answers."""
    known = None if isinstance(start, Globals) else start.multipliers
    shape = (len(problem.data.labeled), len(problem.data.cost))
    return known if problem.dual is not None and known is not None and known.shape == shape else None


def _watching(callbacks: Sequence[Callback], problem: Problem, stage: str) -> list[Callable[[Progress[Any]], Any]]:
    """Return the callbacks as the engine calls them."""

    def watch(callback: Callback, progress: Progress[Any]) -> bool | None:
        at = progress.state.search.at if stage == START_UP else progress.state.at
        return callback(replace(progress, stage=stage, view=lambda: partial(_finished, problem, at, FINAL)))

    return [partial(watch, callback) for callback in callbacks]


def _ended(problem: Problem, at: Evaluation) -> tuple[State, Status | None]:
    """Return the fitted model; interrupted now, it has the classifier that is there, and a status that says so."""
    try:
        return _finished(problem, at, FINAL), None
    except KeyboardInterrupt:
        return _finished(problem, at, AS_IT_IS), Status.INTERRUPTED


def _finished(problem: Problem, at: Evaluation, accuracy: Accuracy) -> State:
    """Infer the training rows as prediction does, and solve the classifier there."""
    settings = problem.settings
    g = _at_temperature(at.globals, settings)  # a callback may look during the start-up, when it is warmer
    psi = infer(problem.data.X, g, settings.n_threads)
    if problem.dual is None:
        return _padded(State(g, psi, None, None), settings)
    multipliers = _known_multipliers(problem, at)
    margins = solve_margins(problem.data, psi, problem.dual, settings, multipliers, accuracy)
    return _padded(State(g, psi, margins.classifier, margins.solution.dual), settings)


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
