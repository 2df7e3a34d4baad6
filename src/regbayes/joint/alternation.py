"""The paper's alternation: margins on the posterior of the training rows, each block solved at the others.

A round updates the features of all rows, tilted by the multipliers; then the parameters in closed form; then the head.
With the multipliers held fixed while the features move, the blocks descend a Lagrangian and not J, which can rise; the
trace records it, and the training loop keeps the best state.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, Protocol

from regbayes._types import Floats, Reals
from regbayes.engine import StepResult
from regbayes.joint.model import Params, Stats
from regbayes.joint.problem import Evaluation, HeadOfAll, JointProblem, RowBlock
from regbayes.margins.head import Tolerance


class AlternatingModel(Protocol):
    """What a `JointModel` has in addition to be fitted by alternation."""

    def update_features(self, rows: Any, params: Any, features: Any, gradient: Floats | None) -> Any:
        """Return better features of a block of rows, given the gradient of the head's value by them."""

    def summarize(self, rows: Any, features: Any) -> Any:
        """Sum what the other blocks need to know of rows whose features are given; sums add up."""

    def update_params(self, params: Any, summary: Any) -> tuple[Any, Any]:
        """Return the parameters that fit the features best, and the statistics at these parameters."""


@dataclass(frozen=True)
class Round(Generic[Params, Stats]):
    """The blocks after a round, with the objective there."""

    at: Evaluation[Params, Stats]
    features: list[Reals]  # of the training rows, block by block: their posterior


def start(
    problem: JointProblem[Any, Params, Stats], params: Params, warm_start: Any, tolerance: Tolerance
) -> Round[Params, Stats]:
    """Begin with the features that are inferred without labels."""
    at, inference = problem.evaluate(params, warm_start, tolerance)
    return Round(at, problem.features(inference))


def step(
    problem: JointProblem[Any, Params, Stats], state: Round[Params, Stats], tolerance: Tolerance
) -> StepResult[Round[Params, Stats]]:
    """Update features, parameters and head: one round."""
    model: Any = problem.model  # an AlternatingModel as well
    at = state.at

    def update(pair: tuple[RowBlock[Any], Reals]) -> Reals:
        block, features = pair
        gradient = None if at.head is None else HeadOfAll(at.head)(block, [features])[0]
        return model.update_features(block.pieces[0], at.params, features, gradient)

    def summarize(pair: tuple[RowBlock[Any], Reals]) -> Any:
        return model.summarize(pair[0].pieces[0], pair[1])

    blocks, executor = problem.blocks.gather(_itself), problem.executor
    features = executor.map(update, list(zip(blocks, state.features, strict=True)))
    summary = executor.map_reduce(summarize, list(zip(blocks, features, strict=True)))
    params, stats = model.update_params(at.params, summary)
    head = None
    if problem.head is not None:
        head = problem.head.solve(features, at.warm_start, tolerance, executor)
    moved = Evaluation.of(params, stats, model.terms(params, stats), head)
    return StepResult(Round(moved, features), moved.terms, {"gap": moved.gap})


def _itself(block: RowBlock[Any]) -> RowBlock[Any]:
    return block
