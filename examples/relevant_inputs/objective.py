"""The objective, a sum of named terms with all constants kept, so that tests and plots see each of them."""

from __future__ import annotations

import numpy as np
from scipy.special import digamma, gammaln

from relevant_inputs.state import Data, Settings, State


def terms(state: State, data: Data, settings: Settings) -> dict[str, float]:
    """``KL(q(w) q(tau) || p(w | tau) p(tau)) + C sum_n max(0, 1 - y_n <E w, x_n>)``."""
    return {
        "kl_weights": kl_weights(state),
        "kl_precisions": kl_precisions(state, settings),
        "margin": margin(state, data, settings),
    }


def kl_weights(state: State) -> float:
    """``E_q(tau) KL(q(w) || p(w | tau))``."""
    log_precision = digamma(state.shape) - np.log(state.rate)
    squares = np.square(state.mean) + state.variance
    return float(0.5 * np.sum(state.precision * squares - 1 - np.log(state.variance) - log_precision))


def kl_precisions(state: State, settings: Settings) -> float:
    """``KL(q(tau) || p(tau))`` of gamma distributions."""
    a, b, a0, b0 = state.shape, state.rate, settings.shape, settings.rate
    return float(np.sum((a - a0) * digamma(a) - gammaln(a) + gammaln(a0) + a0 * np.log(b / b0) + a * (b0 / b - 1)))


def margin(state: State, data: Data, settings: Settings) -> float:
    """The price of the margins that are not met."""
    return float(settings.C * np.maximum(0, 1 - data.signs * (data.X @ state.mean)).sum())
