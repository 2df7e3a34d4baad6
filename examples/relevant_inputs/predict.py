"""What a fitted state says about new rows."""

from __future__ import annotations

import numpy as np

from relevant_inputs.state import Floats, State


def scores(state: State, X: Floats) -> Floats:
    """``<E w, x_n>``, shape (n,)."""
    return np.asarray(X @ state.mean)
