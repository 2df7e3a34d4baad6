"""What a fitted state says about rows: expected hidden units, scores of answers, expected rows, log-densities."""

from __future__ import annotations

import numpy as np

from regbayes._types import Floats
from regbayes.models.harmonium.margins import design
from regbayes.models.harmonium.objective import row_log_densities
from regbayes.models.harmonium.state import Classifier, State


def features(X: Floats, state: State) -> Floats:
    """Return the expected hidden units of rows, docs/math.md eq. (82), shape (n, K)."""
    return np.asarray(state.visible.statistic(X) @ state.globals.weights)


def decide(hidden: Floats, classifier: Classifier) -> Floats:
    """Return the score of each answer, shape (n, answers)."""
    return np.asarray(design(hidden, classifier.fit_intercept) @ classifier.weights.T)


def reconstruct(hidden: Floats, state: State) -> Floats:
    """Return the expected rows given hidden units, shape (n, D)."""
    return state.visible.expect(state.globals.biases + hidden @ state.globals.weights.T)


def log_densities(X: Floats, state: State) -> Floats:
    """Return the log-density of rows, its normaliser in mean field, shape (n,)."""
    return row_log_densities(X, state.visible.statistic(X), state.globals, state.visible)
