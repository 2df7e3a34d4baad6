"""How MT-iLSVM is fitted: a factor analysis to start from, then the joint fit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from regbayes._types import Floats
from regbayes.engine import AbsoluteChange, FitResult, Progress, Status, StepResult, run
from regbayes.models.mt_ilsvm.cells import Cells, Outputs, box_dual
from regbayes.models.mt_ilsvm.init import (
    AUTO_HEAT,
    AUTO_TEMPERATURE,
    TEMPERATURES,
    are_melting,
    have_melted,
    resolve_scales,
    revive,
    start_latent,
)
from regbayes.models.mt_ilsvm.margins import MarginProblem, no_weights, without_targets
from regbayes.models.mt_ilsvm.rows import collect
from regbayes.models.mt_ilsvm.state import Margins, Settings, State
from regbayes.models.mt_ilsvm.steps import Point, Problem, alternate, descend, evaluate

Callback = Callable[[Progress[State]], bool | None]

PATIENCE = 2  # small changes in a row that count as settled
CUT_SHORT = (Status.STOPPED, Status.INTERRUPTED)
START_UP = "start-up"  # the stages of a fit, as callbacks see them
STAGES: dict[Margins, str] = {"consistent": "descent", "posterior": "alternation", "decoupled": START_UP}


def fit(
    X: Floats,
    cells: Cells,
    outputs: Outputs,
    settings: Settings,
    start: State | Floats,
    *,
    row_weights: Floats | None = None,
    callbacks: Sequence[Callback] = (),
) -> FitResult[State]:
    """Fit the model.

    Parameters
    ----------
    X : (N, D)
        Centred inputs, one row per example, with targets or without.
    cells, outputs
        The targets; see `regression_cells` and `classification_cells`.
    settings : Settings
    start : (D, K), or State
        Standard normal numbers for the factor analysis that starts the fit, or a state to go on from instead. With
        decoupled margins the state's q(Z) is kept as it is.
    row_weights : (N,), optional
        How often each row counts in the generative part. The cells have weights of their own.
    callbacks : sequence of callable
        Each sees the `Progress` of every iteration, those of the factor analysis too, whose states have no weights
        yet. Its ``stage`` says which they are.

    Returns
    -------
    FitResult of State
        The trace is that of the joint fit, or of the factor analysis where the margins are decoupled. A start that is
        interrupted, or that a callback stops, ends the fit: what it has found is given weights, and the trace has
        that one entry.
    """
    problem = prepare(X, cells, outputs, settings, row_weights)
    decoupled = settings.margins == "decoupled"
    tasks = no_weights(problem.margins, _n_seen(problem))
    max_iter, ended = (0 if decoupled else settings.max_iter), None
    if not isinstance(start, State):
        problem, found = find_start(problem, start, callbacks)
        point = evaluate(found.state.latent, tasks, problem)
        if decoupled:
            return _finished(replace(found, state=point), problem)
        if found.status in CUT_SHORT:
            max_iter, ended = 0, found.status
    else:
        if settings.temperature == "auto":
            problem = at_temperature(problem, start.scales.tau)
        known = start.tasks
        fits = len(known.duals) == len(tasks.duals) and known.weights.shape == tasks.weights.shape
        point = evaluate(start.latent, known if fits else tasks, problem)
    step = alternate if settings.margins == "posterior" else descend
    result = run(
        lambda at: step(at, problem),
        point,
        max_iter=max_iter,
        objective=lambda at: at.terms,
        stop=AbsoluteChange(settings.tol * settings.C * max(len(cells), 1), PATIENCE),
        callbacks=_watching(callbacks, problem, STAGES[settings.margins]),
    )
    return _finished(result if ended is None else replace(result, status=ended), problem)


def prepare(
    X: Floats, cells: Cells, outputs: Outputs, settings: Settings, row_weights: Floats | None = None
) -> Problem:
    """Gather what the steps need: statistics of all rows, and the rows that have targets."""
    stats = collect(X, row_weights, settings.n_threads)
    n_targets = float(len(cells)) if row_weights is None else float(row_weights[cells.rows].sum())
    tau = TEMPERATURES[0] if settings.temperature == "auto" else settings.temperature
    scales = resolve_scales(settings, tau, stats.n_rows, n_targets)
    has_target = np.zeros(len(X), dtype=np.bool_)
    has_target[cells.rows] = True
    kept = X
    if not has_target.all():
        kept, cells = X[has_target], replace(cells, rows=np.cumsum(has_target)[cells.rows] - 1)
    margins = MarginProblem(
        X=np.ascontiguousarray(kept, dtype=np.float64),
        cells=cells,
        outputs=outputs,
        form=box_dual(cells, settings.loss, settings.C, settings.epsilon),
        sharing=settings.task_sharing,
        input_scale=float(np.sqrt(stats.mean_square)),
        include_inputs=settings.include_inputs,
        fit_intercept=settings.fit_intercept,
    )
    return Problem(
        stats.scaled(scales.multiplicity), n_targets, scales, margins, settings, settings.variances == "always"
    )


def at_temperature(problem: Problem, tau: float) -> Problem:
    """Return the same problem at another temperature."""
    n_rows = problem.stats.n_rows / problem.scales.multiplicity
    return replace(problem, scales=resolve_scales(problem.settings, tau, n_rows, problem.n_targets))


def find_start(problem: Problem, noise: Floats, callbacks: Sequence[Callback] = ()) -> tuple[Problem, FitResult[Point]]:
    """Return a factor analysis that has found features, and the problem at the temperature of the fit itself.

    Above a temperature that depends on the inputs all features melt into 1/2 and the variances say that there is
    nothing to explain. So the start is cooled until it has features, and heated again where that is asked for. For a
    joint fit, features that it switched off are given another start: see `init.revive`.
    """
    wanted = problem.settings.temperature
    colder = TEMPERATURES if wanted == "auto" else (wanted, *(tau for tau in TEMPERATURES if tau < wanted))
    for tau in colder:
        cooled = at_temperature(problem, tau)
        found = factor_analysis(cooled, noise, callbacks, to_the_end=tau == colder[-1])
        if found.status in CUT_SHORT or not have_melted(found.state.latent):
            break
    if problem.settings.margins == "decoupled":
        return cooled, found
    heated = at_temperature(problem, max(AUTO_HEAT * tau, AUTO_TEMPERATURE) if wanted == "auto" else wanted)
    alive = revive(found.state.latent, noise, problem.settings.alpha, heated.scales.temperature > 1.0)
    return heated, replace(found, state=replace(found.state, latent=alive))


def factor_analysis(
    problem: Problem, noise: Floats, callbacks: Sequence[Callback] = (), to_the_end: bool = True
) -> FitResult[Point]:
    """Minimise the free energy at the problem's temperature, variances included, as if there were no targets.

    Unless it is to go ``to_the_end``, it gives up (STALLED) once its features are melting.
    """
    alone = replace(
        problem,
        margins=without_targets(problem.margins),
        scales=replace(problem.scales, generative=1.0),
        estimate_variances=True,
    )

    def step(at: Point) -> StepResult[Point]:
        result = alternate(at, alone)
        lost = not to_the_end and are_melting(result.state.latent)
        return replace(result, status=Status.STALLED) if lost else result

    latent = start_latent(problem.stats, problem.settings, noise)
    return run(
        step,
        evaluate(latent, no_weights(alone.margins, _n_seen(problem)), alone),
        max_iter=problem.settings.start_iter,
        objective=lambda at: at.terms,
        stop=AbsoluteChange(problem.settings.tol * latent.logits.size, PATIENCE),
        callbacks=_watching(callbacks, problem, START_UP),
    )


def stages_of(settings: Settings) -> dict[str, int | None]:
    """Return the stages that a fit can have, in their order, and the most iterations of each, where that is known."""
    last = {} if settings.margins == "decoupled" else {STAGES[settings.margins]: settings.max_iter}
    return {START_UP: None} | last


def _n_seen(problem: Problem) -> int:
    settings, n_columns = problem.settings, len(problem.stats.gram)
    return settings.n_components + settings.include_inputs * n_columns + settings.fit_intercept


def _finished(result: FitResult[Point], problem: Problem) -> FitResult[State]:
    return FitResult(_state(result.state, problem), result.trace, result.status, result.n_iter, result.kept_iteration)


def _state(point: Point, problem: Problem) -> State:
    margins = problem.margins
    return State(
        point.latent,
        point.margin.tasks,
        problem.scales,
        margins.input_scale,
        margins.include_inputs,
        margins.fit_intercept,
    )


def _watching(
    callbacks: Sequence[Callback], problem: Problem, stage: str
) -> list[Callable[[Progress[Point]], bool | None]]:
    """Show callbacks the stage, and the state instead of the point."""

    def show(callback: Callback, at: Progress[Any]) -> bool | None:
        return callback(replace(at, view=lambda: _state(at.state, problem), stage=stage))

    return [partial(show, callback) for callback in callbacks]
