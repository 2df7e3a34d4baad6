"""Descent on J: L-BFGS with the exact gradient and a backtracking line search, so that J never rises.

Every evaluation infers the features of all samples and solves for the head from the last accepted multipliers; the
gradient goes back through the inference. The head is solved to a duality gap that follows what steps gain. If no step
lowers J, the gap may have hidden the gain, and the head is solved more accurately before the descent ends.

Features are the largest arrays. They are needed from an evaluation to its gradient only, so they stay with the blocks
of samples (`regbayes.joint.problem.RowBlock`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from typing import Any, Generic, NamedTuple

import numpy as np

from regbayes._types import Reals
from regbayes.engine import FitResult, Progress, Status, StepResult, backtrack, run
from regbayes.joint.model import Params, Stats
from regbayes.joint.problem import Evaluation, Inference, JointProblem
from regbayes.kernels.arrays import sum_of
from regbayes.margins.head import Tolerance

History = tuple[tuple[Reals, Reals], ...]  # (change of position, change of gradient), the oldest first

MEMORY = 10  # pairs that L-BFGS remembers
CURVED = 1e-10  # cosine between a move and the change of the gradient, at least, for the pair to be kept
LONGER, SHORTER = 2.0, 0.7  # factors on the passes, if the gap was larger than the gain and if not


@dataclass(frozen=True)
class ToleranceSchedule:
    """How accurately the head is solved, following what steps gain.

    J is too high by the duality gap of the head at most. A gap well below what a step gains suffices to judge the step.
    """

    first: Tolerance
    gap_share: float  # of what the last step gained: the gap that the next one is judged with
    gap_range: tuple[float, float]  # relative to the value
    epoch_range: tuple[float, float]

    def after(self, before: Tolerance, gained: float, value: float, gap: float) -> Tolerance:
        """Return the tolerance for the step after one that gained so much, and whose solution has a value and a gap."""
        smallest, largest = self.gap_range
        epochs = before.max_epochs * (LONGER if gap > gained else SHORTER)
        wide = self.gap_share * gained >= largest * value  # also where nothing is left to be paid
        relative = largest if wide else max(self.gap_share * (gained / value), smallest)
        return Tolerance(relative, float(np.clip(epochs, *self.epoch_range)))


DEFAULT_SCHEDULE = ToleranceSchedule(
    first=Tolerance(gap=1e-3, max_epochs=20.0), gap_share=0.1, gap_range=(1e-7, 1e-3), epoch_range=(5.0, 40.0)
)


@dataclass(frozen=True)
class DescentOptions:
    """How to descend. Everything is a number."""

    tolerance: ToleranceSchedule = DEFAULT_SCHEDULE  # of the head
    max_trials: int = 10  # lengths that a line search tries
    memory: int = MEMORY  # pairs that L-BFGS remembers
    blocks_every: int = 0  # steps between updates in closed form; 0: never
    blocks_below: float = -np.inf  # a gain so small asks for them as well
    flat: float = 0.0  # norm of the gradient at which nothing is left to do


@dataclass(frozen=True)
class Search(Generic[Params, Stats]):
    """An accepted point, its gradient, and what L-BFGS remembers."""

    at: Evaluation[Params, Stats]
    gradient: Reals
    tolerance: Tolerance  # to which the head is solved next
    history: History = ()
    n_steps: int = 0


def start(problem: JointProblem[Any, Params, Stats], params: Params, warm_start: Any = None) -> Search[Params, Stats]:
    """Evaluate the start, from the warm start of an earlier fit on the same rows if there is one."""
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
    """Learn features under a head: descend from given parameters until J converges; J never rises.

    Parameters
    ----------
    problem : JointProblem
    start_at : Params
    max_iter, stop, callbacks, view, stage
        As in `regbayes.engine.run`.
    warm_start : optional
        What the head's first solve may start from.
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
    """Take one L-BFGS step and, now and then, update the blocks that have closed forms.

    Where no step lowers J, try once more without memory, then with a head that is solved more accurately.
    """
    options, model, found = problem.options, problem.model, None
    while found is None and np.sqrt(dot(search.gradient, search.gradient)) > options.flat:
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
    if moved.head is not None:  # gaps shall not hide what is gained
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
    """Solve for the head more accurately: what looked like a rise may have been the gap."""
    at, inferred = problem.evaluate(search.at.params, search.at.warm_start, tolerance)
    tighter = replace(search, tolerance=tolerance, gradient=problem.gradient(at, inferred))
    # A smaller gap can come with a slightly higher primal value. The lower value is kept, with the better gradient.
    return tighter if at.objective > search.at.objective else replace(tighter, at=at)


def _update_blocks(problem: JointProblem[Any, Params, Stats], search: Search[Params, Stats]) -> Search[Params, Stats]:
    """Update blocks in closed form at the current features; keep them only where J, inference rerun, did not rise."""
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
    """Return the inner product of two arrays, wherever they lie."""
    return float(np.vdot(a, b)) if isinstance(a, np.ndarray) else float(sum_of(a * b))


def update_history(history: History, move: Reals, change: Reals, memory: int = MEMORY) -> History:
    """Return the pairs with one more: a move, and the change of the gradient along it, if it shows curvature."""
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
        The oldest first, from `update_history`.
    first_length : float, default=None
        Length of the direction where there is no history. By default it is that of the preconditioned gradient.
    precondition : callable, default=None
        First guess at the inverse curvature: takes an array like the gradient and returns a new one, linear, symmetric
        and positive definite, scaled to the curvature along the last move where there is one. By default the identity.
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
