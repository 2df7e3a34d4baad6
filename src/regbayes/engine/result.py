"""What goes in and out of the training loop: a step's result, the progress shown to callbacks, the fit's result."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Generic, TypeVar

from regbayes._registry import persistable
from regbayes.engine.trace import Trace

State = TypeVar("State")


@persistable(name="regbayes.engine.Status", aliases=["regbayes.Status"])
class Status(enum.StrEnum):
    """How a fit or a solve ended; every part of the package says it with these words.

    A training loop converges, a convex problem has an optimum: solvers with a certificate that their caller sees say
    ``optimal``, ``boundary`` or ``infeasible`` where a loop says ``converged``. The other words mean the same for both.
    """

    CONVERGED = "converged"
    """The stopping rule, or the step itself, found nothing left to do."""
    OPTIMAL = "optimal"
    """The certificate is within the tolerance: no better solution exists."""
    BOUNDARY = "boundary"
    """Optimal, but only in the limit of infinite multipliers; the limit is what is returned."""
    INFEASIBLE = "infeasible"
    """No solution meets the constraints."""
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
    """What one step did.

    Parameters
    ----------
    state : State
        The new state. The step must not write into the arrays of the state it was given: the loop may still hold it
        as the best one.
    terms : mapping of str to float, optional
        The named terms of the objective *at the new state*. Their sum is the objective. None asks the loop to call
        its ``objective`` instead.
    diagnostics : mapping of str to float
        Further numbers worth a trace (a duality gap, a step length). They are no part of the objective.
    status : Status, optional
        Set by a step that knows that the fit is over, usually ``CONVERGED`` or ``STALLED``.
    """

    state: State
    terms: Mapping[str, float] | None = None
    diagnostics: Mapping[str, float] = field(default_factory=dict)
    status: Status | None = None


@dataclass(frozen=True)
class Progress(Generic[State]):
    """What a callback sees after an iteration. Reading is all that it can do with it.

    Parameters
    ----------
    iteration : int
        Iterations completed, so 1 after the first.
    max_iter : int
        The iteration limit.
    objective : float
        The objective after this iteration.
    terms, diagnostics : mapping of str to float
        What the step reported, read-only.
    elapsed : float
        Seconds since the loop began.
    view : callable
        Returns ``state``.
    stage : str
        Which part of the fit this is an iteration of, where a fit has several; as :func:`run` was told.
    """

    iteration: int
    max_iter: int
    objective: float
    terms: Mapping[str, float]
    diagnostics: Mapping[str, float]
    elapsed: float
    view: Callable[[], State] = field(repr=False)
    stage: str = ""

    @cached_property
    def state(self) -> State:
        """The state after this iteration, which need not be the best one, as the loop's ``view`` shows it.

        It is made when it is first looked at, and only once: most callbacks look at the numbers alone.
        """
        return self.view()


@dataclass(frozen=True)
class FitResult(Generic[State]):
    """A fit: the state that was kept, the trace, and how the fit ended.

    Parameters
    ----------
    state : State
        The state kept: the one with the lowest objective, or the last, as the loop was asked.
    trace : Trace
        The objective's terms, iteration by iteration.
    status : Status
        Why the loop ended.
    n_iter : int
        Iterations completed.
    kept_iteration : int
        The iteration that ``state`` comes from; 0 is the start.
    """

    state: State
    trace: Trace
    status: Status
    n_iter: int
    kept_iteration: int
