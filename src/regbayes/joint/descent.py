"""Monotone descent on J with L-BFGS, exact gradients and a line search.

Every evaluation infers the features of all samples and solves for the head from the last accepted multipliers. The
gradient is backpropagated through the inference. The head's duality gap is tied to the gain of recent steps. If no step
lowers J, the head is solved more accurately before the descent ends, since the gap may have hidden a gain.

Features are the largest arrays and are needed only from an evaluation to its gradient, so they stay with the blocks of
samples (`regbayes.joint.problem.RowBlock`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from typing import Any, Generic, NamedTuple

import numpy as np

from regbayes._registry import persistable
from regbayes._types import Reals
from regbayes.engine import FitResult, Progress, Status, StepResult, backtrack, run
from regbayes.joint.model import Params, Stats
from regbayes.joint.problem import Evaluation, Inference, JointProblem
from regbayes.kernels.arrays import sum_of
from regbayes.margins.head import Tolerance

History = tuple[tuple[Reals, Reals], ...]  # pairs (change of position, change of gradient), oldest first

MEMORY = 10  # number of pairs that L-BFGS stores
CURVED = 1e-10  # minimum cosine between the changes of position and gradient of a stored pair
LONGER, SHORTER = 2.0, 0.7  # factors on the maximum passes if the gap was larger than the gain, and if not


@dataclass(frozen=True)
class ToleranceSchedule:
    """Accuracy of the head as a function of the gain of recent steps.

    J exceeds its minimum over heads by at most the duality gap, so a gap well below the gain suffices to judge a step.
    """

    first: Tolerance
    gap_share: float  # gap for the next step, relative to the gain of the last one
    gap_range: tuple[float, float]  # minimum and maximum gap relative to the value
    epoch_range: tuple[float, float]

    def after(self, before: Tolerance, gained: float, value: float, gap: float) -> Tolerance:
        """Return the tolerance after a step with this gain and with this value and gap of its head."""
        smallest, largest = self.gap_range
        epochs = before.max_epochs * (LONGER if gap > gained else SHORTER)
        wide = self.gap_share * gained >= largest * value  # also if the value is zero
        relative = largest if wide else max(self.gap_share * (gained / value), smallest)
        return Tolerance(relative, float(np.clip(epochs, *self.epoch_range)))


DEFAULT_SCHEDULE = ToleranceSchedule(
    first=Tolerance(gap=1e-3, max_epochs=20.0), gap_share=0.1, gap_range=(1e-7, 1e-3), epoch_range=(5.0, 40.0)
)


@dataclass(frozen=True)
class DescentOptions:
    """Options of the descent."""

    tolerance: ToleranceSchedule = DEFAULT_SCHEDULE  # accuracy of the head
    max_trials: int = 10  # maximum step lengths that a line search tries
    memory: int = MEMORY  # number of pairs that L-BFGS stores
    blocks_every: int = 0  # steps between closed-form updates; 0: never
    blocks_below: float = -np.inf  # gain of a step at which closed-form updates are also tried


@persistable(name="regbayes.joint.Search")
@dataclass(frozen=True)
class Search(Generic[Params, Stats]):
    """An accepted point, its gradient, and the history of L-BFGS."""

    at: Evaluation[Params, Stats]
    gradient: Reals
    tolerance: Tolerance  # accuracy of the next head
    history: History = ()
    n_steps: int = 0


def start(problem: JointProblem[Any, Params, Stats], params: Params, warm_start: Any = None) -> Search[Params, Stats]:
    """Evaluate the initial parameters, optionally with the warm start of an earlier fit on the same samples."""
    at, inferred = problem.evaluate(params, warm_start, problem.options.tolerance.first)
    return Search(at, problem.gradient(at, inferred), problem.options.tolerance.first)


def fit_joint(
    problem: JointProblem[Any, Params, Stats],
    start_at: Params,
    *,
    max_iter: int,
    stop: Callable[[Sequence[float]], Status | None] | None,
    warm_start: Any = None,
    callbacks: Sequence[Callable[[Progress[Any]], bool | None]] = (),
    view: Callable[[Search[Params, Stats]], Any] | None = None,
    stage: str = "",
) -> FitResult[Search[Params, Stats]]:
    """Learn features under a head by descent from given parameters until J converges.

    Parameters
    ----------
    problem : JointProblem
    start_at : Params
    max_iter, stop, callbacks, view, stage
        As in `regbayes.engine.run`.
    warm_start : optional
        Warm start for the first solve of the head.
    """
    return run(
        partial(step, problem),
        start(problem, start_at, warm_start),
        max_iter=max_iter,
        objective=attrgetter("at.terms"),
        stop=stop,
        callbacks=callbacks,
        view=view,
        stage=stage,
    )


def step(problem: JointProblem[Any, Params, Stats], search: Search[Params, Stats]) -> StepResult[Search[Params, Stats]]:
    """Take one L-BFGS step and periodically update the blocks with closed forms.

    If no step lowers J, it first clears the L-BFGS history and then solves the head more accurately.
    """
    options, model, found = problem.options, problem.model, None
    while found is None and dot(search.gradient, search.gradient) > 0.0:
        at, position = search.at, model.position(search.at.params)
        towards = direction(
            search.gradient, search.history, model.first_length(at.params), model.precondition(at.params, at.stats)
        )
        slope = dot(search.gradient, towards)
        tries = partial(_try, problem, search, position, towards)
        found = backtrack(tries, at.objective, slope, max_trials=options.max_trials if slope < 0 else 0)
        if found is None:
            tighter = None if at.head is None else search.tolerance.tighten()
            if search.history:
                search = replace(search, history=())
            elif tighter is not None:
                search = _tighten(problem, search, tighter)
            else:
                break
    if found is None:
        return StepResult(search, search.at.terms, {"step": 0.0, "gap": search.at.gap}, Status.CONVERGED)
    length, (moved, inferred, _) = found
    gradient = problem.gradient(moved, inferred)
    change = model.position(moved.params) - position
    history = update_history(search.history, change, gradient - search.gradient, options.memory)
    gained, tolerance = search.at.objective - moved.objective, search.tolerance
    if moved.head is not None:  # tighten the gap as gains decrease
        tolerance = options.tolerance.after(tolerance, gained, moved.head.value, moved.head.gap)
    after = Search(moved, gradient, tolerance, history, search.n_steps + 1)
    due = options.blocks_every > 0 and after.n_steps % options.blocks_every == 0
    if due or gained <= options.blocks_below:
        after = _update_blocks(problem, after)
    return StepResult(after, after.at.terms, {"step": length, "gap": after.at.gap})


class Trial(NamedTuple):
    """A point of a line search."""

    at: Evaluation[Any, Any]
    inferred: Inference
    objective: float


def _try(
    problem: JointProblem[Any, Params, Stats], search: Search[Params, Stats], position: Any, towards: Any, length: float
) -> Trial:
    params = problem.model.move(search.at.params, position + length * towards)
    at, inferred = problem.evaluate(params, search.at.warm_start, search.tolerance)
    return Trial(at, inferred, at.objective)


def _tighten(
    problem: JointProblem[Any, Params, Stats], search: Search[Params, Stats], tolerance: Tolerance
) -> Search[Params, Stats]:
    """Solve for the head more accurately, since the gap may have looked like an increase."""
    at, inferred = problem.evaluate(search.at.params, search.at.warm_start, tolerance)
    tighter = replace(search, tolerance=tolerance, gradient=problem.gradient(at, inferred))
    # A smaller gap can have a slightly higher primal value. Keep the lower value with the more accurate gradient.
    return tighter if at.objective > search.at.objective else replace(tighter, at=at)


def _update_blocks(problem: JointProblem[Any, Params, Stats], search: Search[Params, Stats]) -> Search[Params, Stats]:
    """Update blocks in closed form, and keep them only if J does not increase."""
    at = search.at
    params = problem.model.update_blocks(at.params, at.stats)
    if params is None:
        return search
    trial, inferred = problem.evaluate(params, at.warm_start, search.tolerance)
    if not trial.objective <= at.objective:
        return search
    return replace(search, at=trial, gradient=problem.gradient(trial, inferred))


# --- L-BFGS, as functions of arrays


def dot(a: Any, b: Any) -> float:
    """Return the inner product of two arrays on any device."""
    return float(np.vdot(a, b)) if isinstance(a, np.ndarray) else float(sum_of(a * b))


def update_history(history: History, move: Reals, change: Reals, memory: int = MEMORY) -> History:
    """Append a change of position and the change of the gradient along it, if its curvature is positive."""
    lengths = np.sqrt(dot(move, move)) * np.sqrt(dot(change, change))
    return (*history, (move, change))[-memory:] if dot(move, change) > CURVED * lengths else history


def direction(
    gradient: Reals,
    history: Sequence[tuple[Reals, Reals]],
    first_length: float | None = None,
    precondition: Callable[[Reals], Reals] | None = None,
) -> Reals:
    """Return minus the gradient times the inverse curvature of the history (Nocedal and Wright, 7.4).

    Parameters
    ----------
    gradient : array
    history : sequence of (move, change of the gradient)
        Pairs from `update_history`, oldest first.
    first_length : float, default=None
        Length of the direction without a history. By default it is that of the preconditioned gradient.
    precondition : callable, default=None
        Initial inverse curvature: maps an array like the gradient to a new one; linear, symmetric and positive
        definite. It is scaled to the curvature along the last move, if any. By default the identity.
    """
    q, shares = gradient, []
    for move, change in reversed(history):
        shares.append(dot(move, q) / dot(move, change))
        q = q - shares[-1] * change
    if precondition is not None:
        q = precondition(q)
    if history:
        move, change = history[-1]
        guess = change if precondition is None else precondition(change)
        q = q * (dot(move, change) / dot(change, guess))
    elif first_length is not None and (length := float(np.sqrt(dot(q, q)))) > 0.0:
        q = q * (first_length / length)
    for (move, change), share in zip(history, reversed(shares), strict=True):
        q = q + (share - dot(change, q) / dot(move, change)) * move
    return -q
