"""The paper's alternation, with margins on the posterior of the training samples.

An iteration updates the features of all samples at fixed multipliers, then the parameters in closed form, then the
head. Since multipliers are fixed while the features change, the updates descend a Lagrangian, and J can increase. The
trace records increases, and the training loop keeps the best state.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol

from regbayes._registry import persistable
from regbayes._types import Floats, Reals
from regbayes.engine import StepResult
from regbayes.joint.model import Params, Stats
from regbayes.joint.problem import Evaluation, JointProblem, RowBlock, gradients_of_all
from regbayes.margins.head import Tolerance


class AlternatingModel(Protocol):
    """Methods that alternation needs in addition to those of a `JointModel`."""

    def update_features(self, rows: Any, params: Any, features: Any, gradient: Floats | None) -> Any:
        """Return updated features of a block of samples, given the head's gradient with respect to them."""

    def summarize(self, rows: Any, features: Any) -> Any:
        """Return additive statistics of samples with given features, for the other updates."""

    def update_params(self, params: Any, summary: Any) -> tuple[Any, Any]:
        """Return the optimal parameters for the features, and the statistics at these parameters."""


@persistable(name="regbayes.joint.Round")
@dataclass(frozen=True)
class Round(Generic[Params, Stats]):
    """State after an iteration, with its objective."""

    at: Evaluation[Params, Stats]
    features: list[Reals]  # posterior of the training samples, by block


def start(
    problem: JointProblem[Any, Params, Stats], params: Params, warm_start: Any, tolerance: Tolerance
) -> Round[Params, Stats]:
    """Initialize with label-free features."""
    at, inference = problem.evaluate(params, warm_start, tolerance)
    return Round(at, problem.features(inference))


def step(
    problem: JointProblem[Any, Params, Stats], state: Round[Params, Stats], tolerance: Tolerance
) -> StepResult[Round[Params, Stats]]:
    """Run one iteration: update features, parameters and head."""
    model: Any = problem.model  # also an AlternatingModel
    at = state.at
    solved = None if at.head is None else replace(at.head, problem=problem.head)  # files have no targets

    def update(pair: tuple[RowBlock[Any], Reals]) -> Reals:
        block, features = pair
        gradient = None if solved is None else gradients_of_all(block, [features], solved)[0]
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
