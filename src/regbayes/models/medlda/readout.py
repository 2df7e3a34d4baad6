"""Weights for prediction: large-margin training on the shares of topics that prediction will see.

The chain's topics of a training document know its response; those of a new document do not, and are less extreme. The
chain's weights then are too small for them. Solving for the weights once more, with the same losses, prices and prior,
at the shares that label-free inference finds for the training documents takes the difference away.
docs/math.md eq. (57).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from regbayes._types import Floats
from regbayes.framework.dual_forms import BoxDual
from regbayes.framework.large_margin import TaskLayout, solve_box
from regbayes.models.medlda.predict import Documents, proportions
from regbayes.models.medlda.state import Fitted, Margins, Responses, Settings, Squares

PRICE = 10.0  # of a unit of loss at C = 1: here it competes with the weights' prior alone, not with a document's words
TOL = 1e-2  # duality gap, relative to the objective: the weights are averages of noisy topics anyway
MAX_EPOCHS = 50.0


def refit(
    documents: Documents, fitted: Fitted, responses: Responses, settings: Settings, earlier: Squares | None
) -> tuple[Floats, Squares]:
    """Return the weights for prediction, shape (L, K), and what is to be remembered of these documents.

    Margins need all documents at hand. Where there are earlier ones, of which only sums are left, the weights are those
    of least squares, whose sums are all it takes.
    """
    shares = proportions(documents, fitted, settings.n_threads)
    lengths = np.add.reduceat(np.append(documents.numbers, 0.0), documents.starts[:-1]) * (
        np.diff(documents.starts) > 0
    )
    mean_length = max(lengths.sum(), 1.0) / max(np.count_nonzero(lengths), 1)
    prices = np.where(lengths[:, None] > 0, responses.prices * (PRICE / mean_length), 0.0)
    lighter = replace(responses, prices=prices)
    squares = sum_squares(shares, lighter, earlier)
    if earlier is None:
        return solve_weights(shares, lighter, settings.weight_variance), squares
    prior = np.eye(shares.shape[1]) / settings.weight_variance
    weights = np.asarray(np.linalg.solve(squares.precision + prior, squares.linear.T).T, dtype=np.float64)
    return weights, squares


def sum_squares(shares: Floats, responses: Responses, earlier: Squares | None) -> Squares:
    """Add documents to the sums; one precision serves all responses, so each document has the mean of its prices."""
    weighted = shares * responses.prices.mean(axis=1, keepdims=True)
    targets = responses.margin * responses.signs if isinstance(responses, Margins) else responses.values
    new = Squares(weighted.T @ shares, targets.T @ weighted)
    if earlier is None:
        return new
    return Squares(earlier.precision + new.precision, earlier.linear + new.linear)


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
