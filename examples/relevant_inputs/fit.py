"""The step, put together and handed to the one training loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from regbayes.engine import FitResult, RelativeChange, StepResult, run
from relevant_inputs.init import initial_state
from relevant_inputs.objective import terms
from relevant_inputs.state import Data, Settings, State
from relevant_inputs.updates import update_precisions, update_weights


def fit(
    data: Data,
    settings: Settings,
    *,
    max_iter: int,
    tol: float,
    callbacks: Sequence[Callable[[Any], bool | None]] = (),
) -> FitResult[State]:
    """Update the blocks in turn until the objective settles."""

    def step(state: State) -> StepResult[State]:
        return StepResult(update_precisions(update_weights(state, data, settings), settings))

    return run(
        step,
        initial_state(data, settings),
        objective=lambda state: terms(state, data, settings),
        stop=RelativeChange(tol, patience=2),
        max_iter=max_iter,
        callbacks=callbacks,
    )
