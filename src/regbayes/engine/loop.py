"""The model-independent training loop, ``run``.

A fit consists of a pure step from state to state, an objective with named terms, and a stopping rule. The loop returns
how it ended as a `Status`, and the caller decides whether to warn.
"""

from __future__ import annotations

import enum
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property, partial
from types import MappingProxyType
from typing import Any, Generic, Literal, TypeVar, cast

import numpy as np

from regbayes._registry import persistable
from regbayes._types import Floats, Integers

State = TypeVar("State")
Terms = Mapping[str, float]


@persistable(name="regbayes.engine.Status", aliases=["regbayes.Status"])
class Status(enum.StrEnum):
    """How a fit or a solve ended.

    Training loops end with ``converged``; solvers with a certificate end with ``optimal``, ``boundary`` or
    ``infeasible`` instead. The other values mean the same for both.
    """

    CONVERGED = "converged"
    """The stopping rule, or the step itself, found nothing left to do."""
    OPTIMAL = "optimal"
    """The certificate is within the tolerance: no better solution exists."""
    BOUNDARY = "boundary"
    """Optimal, but only in the limit of infinite multipliers; the limit is what is returned."""
    INFEASIBLE = "infeasible"
    """No solution meets the constraints."""
    NOT_ATTAINED = "not_attained"
    """Repeated sampling came no nearer to the constraints; it is not proved that they cannot be met."""
    IMPROPER = "improper"
    """The normalizing constant of the regularized posterior does not exist."""
    UNRELIABLE = "unreliable"
    """Diagnostics of the draws failed: chains that differ, divergences, or contradicted predictions."""
    STALLED = "stalled"
    """No step improves any more (a failed line search, say) and the tolerance is not reached: more would not help."""
    STOPPED = "stopped"
    """A callback asked to stop."""
    ITERATION_LIMIT = "iteration_limit"
    """The iterations ran out first."""
    INTERRUPTED = "interrupted"
    """The user interrupted (Ctrl-C)."""
    DIVERGED = "diverged"
    """The objective became NaN or infinite."""


@dataclass(frozen=True)
class StepResult(Generic[State]):
    """Result of one step, which must not modify the arrays of the previous state.

    Examples
    --------
    >>> from regbayes.engine import StepResult, run
    >>> run(lambda x: StepResult(x / 2, terms={"loss": x}), 8.0, max_iter=3).state
    1.0
    """

    state: State
    terms: Mapping[str, float] | None = None  # terms of the objective at the new state; None: the loop computes them
    diagnostics: Mapping[str, float] = field(default_factory=dict)  # additional values for the trace, such as a gap
    status: Status | None = None  # ends the fit if not None


@dataclass(frozen=True)
class Record:
    """Recorded values of one iteration."""

    iteration: int  # iterations completed: 1 after the first
    objective: float
    terms: Mapping[str, float]
    diagnostics: Mapping[str, float]
    elapsed: float  # seconds since the loop began


@dataclass(frozen=True)
class Progress(Record, Generic[State]):
    """Argument of callbacks after an iteration.

    Examples
    --------
    >>> from regbayes.engine import Progress, StepResult, run
    >>> def report(progress: Progress) -> bool:
    ...     print(progress.iteration, progress.objective)
    ...     return progress.objective < 3  # stops the loop
    >>> run(lambda x: StepResult(x / 2, terms={"loss": x}), 8.0, max_iter=9, callbacks=[report]).status
    1 8.0
    2 4.0
    3 2.0
    <Status.STOPPED: 'stopped'>
    """

    max_iter: int
    view: Callable[[], State] = field(repr=False)  # returns ``state``
    stage: str = ""  # name of the stage of the fit

    @cached_property
    def state(self) -> State:
        """The state after this iteration, computed on first use; not necessarily the best state."""
        return self.view()


@dataclass(frozen=True, eq=False)
class Rises:
    """Increases of the objective by iteration; only rounding in exact methods.

    Examples
    --------
    >>> from regbayes.engine import StepResult, run
    >>> rises = run(lambda x: StepResult(x + 1, terms={"loss": (x - 2) ** 2}), 0, max_iter=5).trace.rises
    >>> rises.iterations.tolist(), rises.sizes.tolist(), rises.total
    ([4, 5], [1.0, 3.0], 4.0)
    """

    iterations: Integers  # (rises,)
    sizes: Floats  # (rises,), positive

    @property
    def count(self) -> int:
        """Number of increases."""
        return int(self.sizes.size)

    @property
    def largest(self) -> float:
        """Largest increase, 0 without any."""
        return float(self.sizes.max(initial=0.0))

    @property
    def total(self) -> float:
        """Sum of all increases."""
        return float(self.sizes.sum())


@persistable(name="regbayes.engine.Trace")
@dataclass(frozen=True, eq=False)
class Trace:
    """History of a fit in read-only arrays, with one entry per iteration.

    The initial state is iteration 0 if its objective is available. If the objective function changes between two runs,
    the iteration in between has two entries.

    Examples
    --------
    >>> from regbayes.engine import StepResult, run
    >>> trace = run(lambda x: StepResult(x / 2, terms={"loss": x, "prior": 1.0}), 8.0, max_iter=3).trace
    >>> trace.objective.tolist(), trace.terms["loss"].tolist()
    ([9.0, 5.0, 3.0], [8.0, 4.0, 2.0])
    """

    iterations: Integers  # (records,)
    objective: Floats  # (records,): the sum of the terms
    terms: Mapping[str, Floats]  # name -> (records,)
    diagnostics: Mapping[str, Floats]  # name -> (records,); NaN where a step did not report it
    elapsed: Floats  # (records,): seconds since the loop began

    def __post_init__(self) -> None:
        for values in (self.iterations, self.objective, self.elapsed, *self.terms.values(), *self.diagnostics.values()):
            values.setflags(write=False)

    def __len__(self) -> int:
        return int(self.iterations.size)

    @property
    def rises(self) -> Rises:
        """Increases between consecutive finite objectives, except between two entries of one iteration."""
        with np.errstate(invalid="ignore"):  # inf - inf at an infeasible start
            change = np.diff(self.objective)
        up = np.flatnonzero(np.isfinite(change) & (change > 0) & (np.diff(self.iterations) > 0))
        return Rises(iterations=self.iterations[up + 1], sizes=change[up])

    @classmethod
    def joined(cls, traces: Sequence[Trace]) -> Trace:
        """Concatenate traces of consecutive runs, with cumulative iterations and seconds."""
        iterations, elapsed, before, began = [], [], 0, 0.0
        for trace in traces:
            iterations.append(before + trace.iterations)
            elapsed.append(began + trace.elapsed)
            if len(trace):
                before, began = int(iterations[-1][-1]), float(elapsed[-1][-1])
        names = dict.fromkeys(name for trace in traces for name in trace.diagnostics)
        return cls(
            iterations=np.concatenate(iterations),
            objective=np.concatenate([trace.objective for trace in traces]),
            terms={name: np.concatenate([trace.terms[name] for trace in traces]) for name in traces[0].terms},
            diagnostics={
                name: np.concatenate([t.diagnostics.get(name, np.full(len(t), np.nan)) for t in traces])
                for name in names
            },
            elapsed=np.concatenate(elapsed),
        )


@persistable(name="regbayes.engine.FitResult")
@dataclass(frozen=True)
class FitResult(Generic[State]):
    """Result of a fit.

    Examples
    --------
    >>> from regbayes.engine import StepResult, run
    >>> result = run(lambda x: StepResult(x - 1, terms={"loss": abs(x - 3)}), 5, max_iter=4)
    >>> result.status, result.kept_iteration, result.objective
    (<Status.ITERATION_LIMIT: 'iteration_limit'>, 3, 0.0)
    """

    state: State  # state with the lowest objective, or the last state
    trace: Trace
    status: Status  # why the loop ended
    n_iter: int
    kept_iteration: int  # iteration of ``state``; 0 is the initial state
    objective: float  # objective of ``state``; ``inf`` if none was finite


@persistable(name="regbayes.engine.Snapshot")
@dataclass(frozen=True)
class Snapshot(Generic[State]):
    """A run of the loop after an iteration, or at its end."""

    state: State | None  # state after the last iteration; None if the run has ended
    result: FitResult[State]  # result of the iterations so far
    has_ended: bool


class Recorder:
    """Callback that keeps snapshots of the runs of a fit, so that the same fit can continue after a crash."""

    def begin(self, state: Any) -> Snapshot[Any] | None:
        """Return where the next run of the fit continues; None: at its initial state."""
        return None

    def record(self, take_snapshot: Callable[[], Snapshot[Any]], status: Status | None = None) -> None:
        """Keep a snapshot of the run; called after every iteration, and at its end with its status."""


def find_recorder(callbacks: Sequence[Any]) -> Recorder:
    """Return the first recorder among callbacks, or one that does nothing."""
    return next((callback for callback in callbacks if isinstance(callback, Recorder)), Recorder())


class _Rule:
    """Stopping rule, with the largest small change and a number of changes as fields."""

    def __post_init__(self) -> None:
        small, span = fields(self)[:2]  # type: ignore[arg-type] # rules are dataclasses
        if not getattr(self, small.name) >= 0:
            raise ValueError(f"{small.name} must be a number >= 0, got {getattr(self, small.name)!r}")
        if getattr(self, span.name) < 1:
            raise ValueError(f"{span.name} must be at least 1, got {getattr(self, span.name)!r}")


@dataclass(frozen=True)
class AbsoluteChange(_Rule):
    """Stop once the last ``patience`` changes were all within a limit.

    Suitable for objectives with additive constants of any size, such as those of a Gaussian likelihood.

    Examples
    --------
    >>> from regbayes.engine import AbsoluteChange
    >>> AbsoluteChange(0.1)([-1000.0, -1002.0, -1002.05])
    <Status.CONVERGED: 'converged'>
    """

    limit: float  # in units of the objective; 0: no change at all
    patience: int = 1

    def limits(self, objectives: Floats) -> Floats | float:
        """Return the largest small change at each objective."""
        return self.limit

    def __call__(self, objectives: Sequence[float]) -> Status | None:
        """Return ``Status.CONVERGED`` if the objectives so far meet the rule, None if they do not."""
        recent = np.array(objectives[-self.patience - 1 :])
        # A change from an infeasible start, whose objective is +inf, is not small.
        if len(recent) <= self.patience or not np.all(np.isfinite(recent)):
            return None
        return Status.CONVERGED if np.all(np.abs(np.diff(recent)) <= self.limits(recent)) else None


@dataclass(frozen=True)
class RelativeChange(AbsoluteChange):
    """Stop once the last ``patience`` changes were all relatively small.

    A change from ``f`` to ``f'`` is small if ``|f' - f| <= limit * max(|f|, |f'|, 1)``. The floor of one nat is for
    objectives that cross zero.

    Examples
    --------
    >>> from regbayes.engine import RelativeChange, StepResult, run
    >>> run(lambda x: StepResult(x / 2, terms={"loss": x + 10}), 8.0, max_iter=99, stop=RelativeChange(0.01)).n_iter
    8
    """

    def limits(self, objectives: Floats) -> Floats | float:
        """Return the largest small change at each objective."""
        sizes = np.maximum(np.abs(objectives), 1.0)
        return self.limit * np.maximum(sizes[1:], sizes[:-1])


@dataclass(frozen=True)
class DiminishingReturns(_Rule):
    """Stop once ``window`` iterations achieve a small share of the total decrease.

    Suitable for objectives that decrease quickly at first and slowly later, with any additive constants.

    Examples
    --------
    >>> from regbayes.engine import DiminishingReturns
    >>> DiminishingReturns(tol=0.01, window=2)([100.0, 20.0, 10.0, 9.8, 9.7])
    <Status.CONVERGED: 'converged'>
    """

    tol: float  # largest small share; 0 disables the rule
    window: int = 5
    least: float = 1e-6  # relative decrease of a window that counts as zero, for starts near the optimum

    def __call__(self, objectives: Sequence[float]) -> Status | None:
        """Return ``Status.CONVERGED`` if the objectives so far meet the rule, None if they do not."""
        if self.tol == 0 or len(objectives) <= self.window:
            return None
        first, before, now = objectives[0], objectives[-1 - self.window], objectives[-1]
        if not math.isfinite(before):
            return None
        small = max(self.tol * (first - now), self.least * abs(now)) if math.isfinite(first) else self.least * abs(now)
        return Status.CONVERGED if before - now <= small else None


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
    """Repeat a step until it converges, and return the best state.

    After every iteration the objective is recorded and callbacks are called. The loop ends, in this order of priority,
    at a non-finite objective (``DIVERGED``), the step's own status, the stopping rule, a callback that returns True, or
    the iteration limit. ``KeyboardInterrupt`` ends the loop (``INTERRUPTED``); other exceptions propagate.

    Parameters
    ----------
    step : callable
        ``step(state) -> StepResult``. It must be deterministic: random numbers are drawn before and are in the state.
    state : State
        Initial state.
    max_iter : int
        Iteration limit; 0 returns the initial state.
    objective : callable, optional
        ``objective(state)`` returns the named terms at a state. It is called for the initial state, which is then
        iteration 0 and a candidate for the best state, and after every step without terms. Without it, the initial
        state is returned only if no iteration completes.
    stop : callable, optional
        Called with the objectives so far; a status ends the loop. :class:`RelativeChange` is the usual choice. With
        None only the step, a callback or the iteration limit ends the loop.
    callbacks : sequence of callable
        Each is called with a :class:`Progress` after every iteration and may return True to stop the loop. The first
        `Recorder` among them can restore an earlier run.
    view : callable, optional
        Maps a state to ``Progress.state``, for example a fitted model; called only if a callback uses it.
    stage : str, default=""
        Name of the stage, available as ``Progress.stage``.
    keep : {"best", "last"}, default="best"
        Whether to return the state with the lowest objective or the last state with a finite one. Use "last" if
        objectives of iterations cannot be compared, as in a Markov chain.

    Returns
    -------
    FitResult

    Examples
    --------
    Gradient descent on ``(x - 3) ** 2``:

    >>> from regbayes.engine import AbsoluteChange, StepResult, run
    >>> def step(x: float) -> StepResult:
    ...     return StepResult(x - 0.4 * (x - 3))
    >>> result = run(step, 0.0, max_iter=99, objective=lambda x: {"loss": (x - 3) ** 2}, stop=AbsoluteChange(1e-6))
    >>> result.status, round(result.state, 2)
    (<Status.CONVERGED: 'converged'>, 3.0)
    """
    if max_iter < 0:
        raise ValueError(f"max_iter must be at least 0, got {max_iter!r}")
    if keep not in ("best", "last"):
        raise ValueError(f"keep must be 'best' or 'last', got {keep!r}")
    log, recorder = _Log(keep, (0, state)), find_recorder(callbacks)
    known = recorder.begin(state)
    if known is not None and known.has_ended:
        return known.result
    status, state = Status.ITERATION_LIMIT, log.restore(known, state)
    try:
        if objective is not None and not log.records:
            start = log.add(0, state, objective(state), {})
            # An infeasible start has objective +inf and may become feasible; NaN or -inf cannot recover.
            if math.isnan(start.objective) or start.objective == -math.inf:
                return log.result(Status.DIVERGED)
        for iteration in range(log.n_iter + 1, max_iter + 1):
            result = step(state)
            state, terms = result.state, result.terms
            if terms is None:
                if objective is None:
                    raise ValueError("the step reported no terms and run() was given no objective to compute them")
                terms = objective(state)
            record = log.add(iteration, state, terms, result.diagnostics)
            progress = Progress(**vars(record), max_iter=max_iter, view=partial(view or _show, state), stage=stage)
            asked = False
            for callback in callbacks:  # every callback is called, even if an earlier one requests a stop
                asked |= callback(progress) is True
            ended = result.status if math.isfinite(record.objective) else Status.DIVERGED
            ended = stop(log.objectives) if ended is None and stop is not None else ended
            if ended is not None or asked:
                status = ended or Status.STOPPED
                break
            recorder.record(partial(log.snapshot, state))
        recorder.record(partial(log.snapshot, None, status), status)
    except KeyboardInterrupt:
        status = Status.INTERRUPTED
    return log.result(status)


def _show(state: State) -> State:
    return state


@dataclass
class _Log(Generic[State]):
    """Log of the loop, updated atomically to be consistent after an interrupt."""

    keep: Literal["best", "last"]
    kept: tuple[int, State]  # iteration and state that would be returned
    objective: float = math.inf  # of that state
    records: list[Record] = field(default_factory=list)
    objectives: list[float] = field(default_factory=list)
    began: float = field(default_factory=time.perf_counter)

    def add(self, iteration: int, state: State, terms: Terms, diagnostics: Mapping[str, float]) -> Record:
        """Record an iteration and decide whether to keep its state."""
        if self.records and terms.keys() != self.records[0].terms.keys():
            raise ValueError(
                f"the objective's terms changed: iteration {iteration} has {sorted(terms)}, "
                f"earlier ones had {sorted(self.records[0].terms)}"
            )
        values = dict(zip(terms, map(float, terms.values()), strict=True))
        extra = dict(zip(diagnostics, map(float, diagnostics.values()), strict=True))
        record = Record(
            iteration=iteration,
            objective=sum(values.values()),
            terms=MappingProxyType(values),
            diagnostics=MappingProxyType(extra),
            elapsed=time.perf_counter() - self.began,
        )
        self.records.append(record)
        self.objectives.append(record.objective)
        if math.isfinite(record.objective) and (self.keep == "last" or record.objective <= self.objective):
            self.kept = (iteration, state)
            self.objective = record.objective
        return record

    @property
    def n_iter(self) -> int:
        """Number of iterations."""
        return self.records[-1].iteration if self.records else 0

    def restore(self, known: Snapshot[State] | None, state: State) -> State:
        """Restore the log of a snapshot; return its state, or the given one without a snapshot."""
        if known is None:
            return state
        result, trace = known.result, known.result.trace
        for place, iteration in enumerate(trace.iterations):
            terms = {name: float(values[place]) for name, values in trace.terms.items()}
            diagnostics = {name: float(values[place]) for name, values in trace.diagnostics.items()}
            objective, elapsed = float(trace.objective[place]), float(trace.elapsed[place])
            self.records.append(Record(int(iteration), objective, terms, diagnostics, elapsed))
            self.objectives.append(objective)
            self.began = time.perf_counter() - elapsed
        self.kept, self.objective = (result.kept_iteration, result.state), result.objective
        return cast(State, known.state)

    def snapshot(self, state: State | None, status: Status | None = None) -> Snapshot[State]:
        """Return the run after an iteration, or at its end if it has a status."""
        return Snapshot(state, self.result(status or Status.ITERATION_LIMIT), status is not None)

    def result(self, status: Status) -> FitResult[State]:
        """Return the kept state with the trace of all iterations."""
        n = len(self.records)
        iterations, objective, elapsed = np.empty(n, dtype=np.int64), np.empty(n), np.empty(n)
        terms: dict[str, Floats] = {}
        diagnostics: dict[str, Floats] = {}
        for place, record in enumerate(self.records):
            iterations[place], objective[place], elapsed[place] = record.iteration, record.objective, record.elapsed
            for columns, values in ((terms, record.terms), (diagnostics, record.diagnostics)):
                for name, value in values.items():  # steps may omit diagnostics
                    columns.setdefault(name, np.full(n, np.nan))[place] = value
        kept_iteration, state = self.kept
        return FitResult(
            state=state,
            trace=Trace(iterations, objective, terms, diagnostics, elapsed),
            status=status,
            n_iter=self.n_iter,
            kept_iteration=kept_iteration,
            objective=self.objective,
        )
