"""``run``: the only training loop of the package."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, Generic, Literal, TypeVar

from regbayes.engine.result import FitResult, Progress, Status, StepResult
from regbayes.engine.trace import Record, Trace

State = TypeVar("State")
Terms = Mapping[str, float]
Callback = Callable[[Progress[Any]], bool | None]


def run(  # noqa: PLR0913 - options, all by name
    step: Callable[[State], StepResult[State]],
    state: State,
    *,
    max_iter: int,
    objective: Callable[[State], Terms] | None = None,
    stop: Callable[[Sequence[float]], Status | None] | None = None,
    callbacks: Sequence[Callback] = (),
    view: Callable[[State], Any] | None = None,
    stage: str = "",
    keep: Literal["best", "last"] = "best",
) -> FitResult[State]:
    """Repeat a step until it converges, and give back the best state seen.

    After every iteration, in this order: the objective is recorded; callbacks see it; a non-finite objective ends the
    loop (``DIVERGED``); then the step's own status, the stopping rule, a callback's wish to stop and the iteration
    limit are heard. Exceptions pass through, except ``KeyboardInterrupt``, which ends the loop (``INTERRUPTED``).

    Parameters
    ----------
    step : callable
        ``step(state) -> StepResult``. Anything random in it was drawn before and travels in the state.
    state : State
        The start.
    max_iter : int
        The iteration limit; 0 gives the start back.
    objective : callable, optional
        ``objective(state)`` gives the named terms at a state. It is called for the start, which is then recorded as
        iteration 0 and may be the best state, and after every step that reports no terms itself. Without it the start
        is kept only until the first iteration is over.
    stop : callable, optional
        Called with the objectives recorded so far; a status ends the loop. :class:`RelativeChange` is the usual one.
        None leaves the end to the step and the limit.
    callbacks : sequence of callable
        Each is called with a :class:`Progress` after every iteration and may return True to stop.
    view : callable, optional
        From a state to what callbacks see as ``Progress.state``, for instance a fitted model that may be asked to
        predict. It is called at most once an iteration, and only if a callback looks; by default they see the state.
    stage : str, default=""
        Name of the part of a fit that these iterations are, which callbacks see as ``Progress.stage``.
    keep : {"best", "last"}, default="best"
        Which state to give back: the one with the lowest objective (the latest of equals), or the last whose objective
        is finite. The last is right where objectives of different iterations cannot be compared, as in a Markov chain
        or under annealing.

    Returns
    -------
    FitResult
    """
    if max_iter < 0:
        raise ValueError(f"max_iter must be at least 0, got {max_iter!r}")
    if keep not in ("best", "last"):
        raise ValueError(f"keep must be 'best' or 'last', got {keep!r}")
    log = _Log(state, keep)
    try:
        status = _iterate(log, step, max_iter, objective, stop, _Audience(callbacks, view, stage, max_iter))
    except KeyboardInterrupt:
        status = Status.INTERRUPTED
    return log.result(status)


def _iterate(
    log: _Log[State],
    step: Callable[[State], StepResult[State]],
    max_iter: int,
    objective: Callable[[State], Terms] | None,
    stop: Callable[[Sequence[float]], Status | None] | None,
    audience: _Audience[State],
) -> Status:
    state = log.kept[1]
    if objective is not None:
        start = log.add(0, state, objective(state), {})
        # An infeasible start is worth +inf and may still be repaired; nothing good follows NaN or -inf.
        if math.isnan(start.objective) or start.objective == -math.inf:
            return Status.DIVERGED
    for iteration in range(1, max_iter + 1):
        result = step(state)
        state = result.state
        terms = result.terms
        if terms is None:
            if objective is None:
                raise ValueError("the step reported no terms and run() was given no objective to compute them")
            terms = objective(state)
        record = log.add(iteration, state, terms, result.diagnostics)
        asked_to_stop = audience.tell(record, state)
        if not math.isfinite(record.objective):
            return Status.DIVERGED
        if result.status is not None:
            return result.status
        verdict = None if stop is None else stop(log.objectives)
        if verdict is not None:
            return verdict
        if asked_to_stop:
            return Status.STOPPED
    return Status.ITERATION_LIMIT


@dataclass(frozen=True)
class _Audience(Generic[State]):
    """The callbacks, and how they see an iteration."""

    callbacks: Sequence[Callback]
    view: Callable[[State], Any] | None
    stage: str
    max_iter: int

    def tell(self, record: Record, state: State) -> bool:
        """Show an iteration to every callback; return whether one asked to stop."""
        progress = Progress(
            iteration=record.iteration,
            max_iter=self.max_iter,
            objective=record.objective,
            terms=record.terms,
            diagnostics=record.diagnostics,
            elapsed=record.elapsed,
            view=partial(self.view or _as_it_is, state),
            stage=self.stage,
        )
        # Every callback hears of every iteration, also when another one has already asked to stop.
        asked = [callback(progress) is True for callback in self.callbacks]
        return any(asked)


def _as_it_is(state: State) -> State:
    return state


class _Log(Generic[State]):
    """The loop's memory. Each field changes by a single operation, so an interrupt finds it consistent."""

    def __init__(self, start: State, keep: Literal["best", "last"]) -> None:
        self.began = time.perf_counter()
        self.keep = keep
        self.kept: tuple[int, State] = (0, start)
        self.lowest = math.inf
        self.records: list[Record] = []
        self.objectives: list[float] = []

    def add(self, iteration: int, state: State, terms: Terms, diagnostics: Mapping[str, float]) -> Record:
        """Record an iteration and decide whether its state is the one to keep."""
        if self.records and terms.keys() != self.records[0].terms.keys():
            raise ValueError(
                f"the objective's terms changed: iteration {iteration} has {sorted(terms)}, "
                f"earlier ones had {sorted(self.records[0].terms)}"
            )
        values = {name: float(value) for name, value in terms.items()}
        record = Record(
            iteration=iteration,
            objective=sum(values.values()),
            terms=MappingProxyType(values),
            diagnostics=MappingProxyType({name: float(value) for name, value in diagnostics.items()}),
            elapsed=time.perf_counter() - self.began,
        )
        self.records.append(record)
        self.objectives.append(record.objective)
        if math.isfinite(record.objective) and (self.keep == "last" or record.objective <= self.lowest):
            self.kept = (iteration, state)
            self.lowest = record.objective
        return record

    def result(self, status: Status) -> FitResult[State]:
        """Return the state that was kept, with the trace of all iterations."""
        iteration, state = self.kept
        return FitResult(
            state=state,
            trace=Trace.from_records(self.records),
            status=status,
            n_iter=self.records[-1].iteration if self.records else 0,
            kept_iteration=iteration,
        )
