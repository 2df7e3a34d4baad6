"""The start. Randomness, where a model needs any, is drawn above and handed in."""

from __future__ import annotations

import numpy as np

from relevant_inputs.state import Data, Settings, State


def initial_state(data: Data, settings: Settings) -> State:
    """Weights at their prior mean, with unit precisions: the first step is an ordinary support vector machine."""
    n, D = data.X.shape
    shape = np.full(D, settings.shape + 0.5)
    return State(np.zeros(D), np.ones(D), np.zeros(n), shape, rate=shape.copy())
