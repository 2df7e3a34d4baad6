"""One pure function per block, named after it: the best block when the others stay as they are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from regbayes.framework.large_margin import solve_box
from regbayes.regularizers import Hinge, Shifted
from relevant_inputs.state import Data, Settings, State


def update_weights(state: State, data: Data, settings: Settings, tol: float = 1e-6) -> State:
    """``q(w)``: a support vector machine on inputs divided by the roots of their precisions.

    Divided so, weights are standard normal a priori, which is what the large-margin step asks for. The margins pull on
    means alone, so the variances are those of the prior.
    """
    root = np.sqrt(state.precision)
    rows = data.signs[:, None] * data.X / root
    loss = Shifted(Hinge(settings.C), by=-1.0)  # of minus the scores: C max(0, 1 - score)
    solution = solve_box(rows, loss.dual_form(len(rows)), warm_start=state.multipliers, tol=tol)
    return replace(state, mean=solution.weights[0] / root, variance=1 / root**2, multipliers=solution.dual)


def update_precisions(state: State, settings: Settings) -> State:
    """``q(tau)``: the gamma prior, and one squared weight for each precision."""
    squares = np.square(state.mean) + state.variance
    return replace(state, shape=np.full(len(squares), settings.shape + 0.5), rate=settings.rate + 0.5 * squares)
