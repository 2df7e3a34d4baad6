"""Weights for prediction: large-margin training on the shares of topics that prediction will see.

The chain's topics of a training document know its response; those of a new document do not, and are less extreme. The
chain's weights then are too small for them. Solving for the weights once more, with the same losses, prices and prior,
at the shares that label-free inference finds for the training documents takes the difference away.
docs/math.md eq. (57).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from regbayes.framework.dual_forms import BoxDual
from regbayes.framework.large_margin import TaskLayout, solve_box
from regbayes.models.medlda.state import Margins, Responses

Floats = NDArray[np.float64]

PRICE = 10.0  # of a unit of loss at C = 1: here it competes with the weights' prior alone, not with a document's words
TOL = 1e-2  # duality gap, relative to the objective: the weights are averages of noisy topics anyway
MAX_EPOCHS = 50.0


def solve_weights(shares: Floats, responses: Responses, weight_variance: float, tol: float = TOL) -> Floats:
    """Return the weights that minimise ``|w|^2 / (2 weight_variance)`` plus prices times losses, shape (L, K).

    Parameters
    ----------
    shares : (N, K)
        Topics' shares in the documents.
    responses : Responses
        In the same order.
    weight_variance : float
    tol : float
        Relative duality gap.
    """
    row, response = np.nonzero(responses.prices > 0)
    prices = responses.prices[row, response]
    zeros = np.zeros(len(row))
    if isinstance(responses, Margins):
        signs = responses.signs[row, response]
        form = BoxDual(
            -responses.margin * signs, zeros, zeros, np.where(signs > 0, 0.0, -prices), np.where(signs > 0, prices, 0.0)
        )
    else:
        form = BoxDual(-responses.values[row, response], np.full(len(row), responses.epsilon), zeros, -prices, prices)
    n_responses = responses.prices.shape[1]
    scale = np.sqrt(weight_variance)
    layout = TaskLayout(row, response, np.arange(n_responses))
    solution = solve_box(scale * shares, form, layout, tol=tol, max_epochs=MAX_EPOCHS)
    return np.asarray(scale * solution.weights)
