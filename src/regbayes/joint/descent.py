"""Descent on J: L-BFGS with the exact gradient and a backtracking line search, so that J never rises.

Every evaluation runs the inference of all rows, solves for the head from the last accepted multipliers, and the
gradient goes back through the inference. The head is solved to a duality gap only, which follows what steps gain; where
no step seems to lower J, what looked like a rise may have been the gap, and the head is solved more accurately before
the descent gives up.

The features of all rows are the largest arrays there are. They are needed from an evaluation to its gradient and no
longer, so no state holds them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Generic, TypeVar

import numpy as np

from regbayes._types import Floats, Reals
from regbayes.engine import Status, StepResult
from regbayes.engine.executor import Executor, Serial
from regbayes.joint import quasi_newton
from regbayes.joint.model import Inferred, JointModel, Params, Stats
from regbayes.joint.quasi_newton import Moves
from regbayes.margins.head import FittedHead, MarginHead
from regbayes.margins.tolerance import DEFAULT_SCHEDULE, Tolerance, ToleranceSchedule

Block = TypeVar("Block")


@dataclass(frozen=True)
class DescentOptions:
    """How to descend. Everything is a number."""

    tolerance: ToleranceSchedule = DEFAULT_SCHEDULE  # of the head
    max_trials: int = 10  # lengths that a line search tries
    memory: int = quasi_newton.MEMORY  # pairs that L-BFGS remembers
    blocks_every: int = 0  # steps between updates in closed form; 0: never
    blocks_below: float = -np.inf  # a gain so small asks for them as well
    flat: float = 0.0  # norm of the gradient at which nothing is left to do


@dataclass(frozen=True)
class JointProblem(Generic[Block, Params, Stats]):
    """What stays the same through a descent."""

    model: JointModel[Block, Params, Stats, Any]
    blocks: Sequence[Block]  # of rows, in order
    head: MarginHead | None  # None: nothing but the generative model
    options: DescentOptions
    executor: Executor = field(default_factory=Serial)


@dataclass(frozen=True)
class Evaluation(Generic[Params, Stats]):
    """J at some parameters, and what was computed on the way."""

    params: Params
    stats: Stats
    head: FittedHead | None
    terms: Mapping[str, float]

    @property
    def objective(self) -> float:
        """The sum of the terms."""
        return sum(self.terms.values())

    @property
    def gap(self) -> float:
        """Duality gap of the head: J is above its minimum over heads by at most this."""
        return 0.0 if self.head is None else self.head.gap

    @property
    def multipliers(self) -> Floats | None:
        """Multipliers to start the next solve from."""
        return None if self.head is None else self.head.multipliers


@dataclass(frozen=True)
class Search(Generic[Params, Stats]):
    """An accepted point, its gradient, and what L-BFGS remembers."""

    at: Evaluation[Params, Stats]
    gradient: Reals
    tolerance: Tolerance  # to which the head is solved next
    moves: Moves = ()  # (change of position, change of gradient)
    n_steps: int = 0


Inference = list[Inferred[Stats]]


def evaluate(
    problem: JointProblem[Block, Params, Stats], params: Params, warm_start: Floats | None, tolerance: Tolerance
) -> tuple[Evaluation[Params, Stats], Inference[Stats]]:
    """Compute J: inference, statistics, terms, head. Return it with what inference found, block by block."""
    model = problem.model
    inferred = problem.executor.map(lambda rows: model.infer(rows, params), problem.blocks)
    stats = inferred[0].stats
    for part in inferred[1:]:
        stats = stats + part.stats
    terms = model.terms(params, stats)
    if problem.head is None or not np.isfinite(sum(terms.values())):
        return Evaluation(params, stats, None, terms), inferred
    features = gather([part.features for part in inferred])
    ends = np.cumsum([0, *(len(part.features) for part in inferred)])
    # Parts of the one array, so that features are not held twice.
    inferred = [replace(part, features=features[a:b]) for part, (a, b) in zip(inferred, pairwise(ends), strict=True)]
    head = problem.head.solve(features, warm_start, tolerance)
    return Evaluation(params, stats, head, {**terms, **head.terms}), inferred


def gather(parts: Sequence[Reals]) -> Reals:
    """Return the features of all rows in one array, shape (N, K): coordinate ascent needs them so."""
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def gradient(
    problem: JointProblem[Block, Params, Stats], at: Evaluation[Params, Stats], inferred: Inference[Stats]
) -> Reals:
    """Return the gradient of J with respect to the model's position, at what an evaluation found."""
    ends = np.cumsum([0, *(len(part.features) for part in inferred)])

    def pull_back(index: int) -> Any:
        rows = slice(int(ends[index]), int(ends[index + 1]))
        by_features = None if at.head is None else at.head.gradient(rows)
        return problem.model.pull_back(problem.blocks[index], at.params, inferred[index], by_features)

    pulled = problem.executor.map_reduce(pull_back, range(len(inferred)))
    return problem.model.gradient(at.params, at.stats, pulled)


def start(
    problem: JointProblem[Block, Params, Stats], params: Params, warm_start: Floats | None = None
) -> Search[Params, Stats]:
    """Evaluate the start, from the multipliers of an earlier fit on the same rows if there are any."""
    at, inferred = evaluate(problem, params, warm_start, problem.options.tolerance.first)
    return Search(at, gradient(problem, at, inferred), problem.options.tolerance.first)


def step(
    problem: JointProblem[Block, Params, Stats], search: Search[Params, Stats]
) -> StepResult[Search[Params, Stats]]:
    """Take one L-BFGS step and, now and then, update the blocks that have closed forms."""
    search, found = _descend(problem, search)
    if found is None:
        return StepResult(search, search.at.terms, {"step": 0.0, "gap": search.at.gap}, Status.CONVERGED)
    options, model = problem.options, problem.model
    change = model.position(found.at.params) - model.position(search.at.params)
    moves = quasi_newton.remember(search.moves, change, found.gradient - search.gradient, options.memory)
    gained = search.at.objective - found.at.objective
    after = Search(found.at, found.gradient, _next_tolerance(problem, search, found.at), moves, search.n_steps + 1)
    due = options.blocks_every > 0 and after.n_steps % options.blocks_every == 0
    if due or gained <= options.blocks_below:
        after = _update_blocks(problem, after)
    return StepResult(after, after.at.terms, {"step": found.length, "gap": after.at.gap})


@dataclass(frozen=True)
class _Found(Generic[Params, Stats]):
    """The end of a step that lowers J enough."""

    at: Evaluation[Params, Stats]
    gradient: Reals
    length: float


@dataclass(frozen=True)
class _Trial(Generic[Params, Stats]):
    """J at the end of a step, with the features, in case the gradient is wanted."""

    at: Evaluation[Params, Stats]
    inferred: Inference[Stats]

    @property
    def objective(self) -> float:
        return self.at.objective


def _next_tolerance(
    problem: JointProblem[Block, Params, Stats], search: Search[Params, Stats], moved: Evaluation[Params, Stats]
) -> Tolerance:
    """Return how accurately the head is solved next, for gaps not to hide what is gained."""
    if moved.head is None:
        return search.tolerance
    gained = search.at.objective - moved.objective
    return problem.options.tolerance.after(search.tolerance, gained, moved.head.value, moved.head.gap)


def _descend(
    problem: JointProblem[Block, Params, Stats], search: Search[Params, Stats]
) -> tuple[Search[Params, Stats], _Found[Params, Stats] | None]:
    """Find a step that lowers J; where there is none, try once more without memory, then with a smaller gap."""
    while float(np.linalg.norm(search.gradient)) > problem.options.flat:
        found = _line_search(problem, search)
        if found is not None:
            return search, found
        tighter = None if search.at.head is None else search.tolerance.tighten()
        if search.moves:
            search = replace(search, moves=())
        elif tighter is not None:
            search = _tighten(problem, search, tighter)
        else:
            break
    return search, None


def _tighten(
    problem: JointProblem[Block, Params, Stats], search: Search[Params, Stats], tolerance: Tolerance
) -> Search[Params, Stats]:
    """Solve for the head more accurately: what looked like a rise may have been the gap."""
    at, inferred = evaluate(problem, search.at.params, search.at.multipliers, tolerance)
    tighter = replace(search, tolerance=tolerance, gradient=gradient(problem, at, inferred))
    # A smaller gap can come with a slightly higher primal value. What was reached is not given back; the gradient that
    # belongs to the better multipliers is worth having all the same.
    return tighter if at.objective > search.at.objective else replace(tighter, at=at)


def _line_search(
    problem: JointProblem[Block, Params, Stats], search: Search[Params, Stats]
) -> _Found[Params, Stats] | None:
    """Backtrack along the L-BFGS direction until J falls enough."""
    model, at = problem.model, search.at
    position = model.position(at.params)
    direction = quasi_newton.direction(
        search.gradient, search.moves, model.first_length(at.params), model.precondition(at.params, at.stats)
    )

    def trial(length: float) -> _Trial[Params, Stats]:
        params = model.move(at.params, position + position.dtype.type(length) * direction)
        return _Trial(*evaluate(problem, params, at.multipliers, search.tolerance))

    slope = quasi_newton.dot(search.gradient, direction)
    found = quasi_newton.backtrack(trial, at.objective, slope, problem.options.max_trials)
    if found is None:
        return None
    moved, length = found
    return _Found(moved.at, gradient(problem, moved.at, moved.inferred), length)


def _update_blocks(problem: JointProblem[Block, Params, Stats], search: Search[Params, Stats]) -> Search[Params, Stats]:
    """Update blocks in closed form at the current features; keep them only where J, inference rerun, did not rise."""
    at = search.at
    params = problem.model.update_blocks(at.params, at.stats)
    if params is None:
        return search
    trial, inferred = evaluate(problem, params, at.multipliers, search.tolerance)
    if not trial.objective <= at.objective:
        return search
    return replace(search, at=trial, gradient=gradient(problem, trial, inferred))
