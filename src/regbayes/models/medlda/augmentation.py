"""Losses as mixtures of normals: the step that makes everything else conjugate.

``exp(-2 max(0, u))`` is the integral over lambda > 0 of ``exp(-(lambda + u)^2 / (2 lambda)) / sqrt(2 pi lambda)``
(Polson and Scott, Bayesian Analysis 2011). Given lambda the loss of a score f is a quadratic in f, here ``linear f -
quadratic f^2 / 2``, and 1 / lambda given f is inverse Gaussian. docs/math.md eq. (51), (52).
"""

from __future__ import annotations

import numpy as np

from regbayes._types import Floats
from regbayes.models.medlda.state import Margins, Responses, Targets


def n_variables(responses: Responses) -> int:
    """Return the number of augmentation variables for each response of a document."""
    return 1 if isinstance(responses, Margins) else 2


def losses(responses: Responses, scores: Floats) -> Floats:
    """Return the loss of each score, without its price, shape (N, L)."""
    if isinstance(responses, Margins):
        return np.maximum(0.0, responses.margin - responses.signs * scores)
    return np.maximum(0.0, np.abs(responses.values - scores) - responses.epsilon)


def draw_quadratics(responses: Responses, scores: Floats, normals: Floats, uniforms: Floats) -> tuple[Floats, Floats]:
    """Draw the augmentation variables given the scores; return the ``linear`` and ``quadratic`` that they stand for.

    Parameters
    ----------
    responses : Responses
    scores : (N, L)
    normals, uniforms : (variables, N, L)
        Standard normal draws, and draws from [0, 1); see `n_variables`.
    """
    c = 0.5 * responses.prices
    if isinstance(responses, Margins):
        return _margin_quadratic(
            responses, draw_inverse(c * (responses.margin - responses.signs * scores), normals[0], uniforms[0])
        )
    above = c * (responses.values - scores - responses.epsilon)
    below = c * (scores - responses.values - responses.epsilon)
    return _target_quadratic(
        responses, draw_inverse(above, normals[0], uniforms[0]), draw_inverse(below, normals[1], uniforms[1])
    )


def expected_quadratics(responses: Responses, scores: Floats) -> tuple[Floats, Floats]:
    """Return ``linear`` and ``quadratic`` with lambda at its mean given the scores, ``1 + |u|``.

    The mean of 1 / lambda itself is infinite where a score is at its margin.
    """
    c = 0.5 * responses.prices
    if isinstance(responses, Margins):
        return _margin_quadratic(responses, 1.0 / (1.0 + c * np.abs(responses.margin - responses.signs * scores)))
    above, below = (sign * (responses.values - scores) - responses.epsilon for sign in (1.0, -1.0))
    return _target_quadratic(responses, 1.0 / (1.0 + c * np.abs(above)), 1.0 / (1.0 + c * np.abs(below)))


def _margin_quadratic(responses: Margins, inverse: Floats) -> tuple[Floats, Floats]:
    c = 0.5 * responses.prices
    return c * responses.signs * (1.0 + c * responses.margin * inverse), c * c * inverse


def _target_quadratic(responses: Targets, inverse_above: Floats, inverse_below: Floats) -> tuple[Floats, Floats]:
    c = 0.5 * responses.prices
    above, below = c * c * inverse_above, c * c * inverse_below
    linear = above * (responses.values - responses.epsilon) + below * (responses.values + responses.epsilon)
    return linear, above + below


def draw_inverse(u: Floats, normals: Floats, uniforms: Floats) -> Floats:
    """Draw ``1 / lambda`` given u: inverse Gaussian with mean ``1 / |u|`` and shape 1.

    The roots of Michael, Schucany and Haas (The American Statistician 1976), written so that nothing cancels: u may
    be zero, where lambda is chi-squared with one degree of freedom.
    """
    t = np.abs(u)
    y = normals**2
    smaller = 1.0 / np.maximum(t + 0.5 * y + np.sqrt(y * (0.25 * y + t)), np.finfo(np.float64).tiny)
    ratio = smaller * t  # of the smaller root to the mean, in [0, 1]
    use_larger = uniforms * (1.0 + ratio) > 1.0
    larger = 1.0 / np.maximum(smaller * t * t, np.finfo(np.float64).tiny)
    return np.where(use_larger, larger, smaller)
