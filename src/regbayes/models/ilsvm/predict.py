"""Prediction: features of new rows without labels, scores of answers, and the held-out bound."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from regbayes.models.ilsvm.inference import infer_all, sum_rows
from regbayes.models.ilsvm.margins import design
from regbayes.models.ilsvm.objective import expected_residual
from regbayes.models.ilsvm.state import Classifier, Globals
from regbayes.priors.indian_buffet import cross_entropy_features, stick_expectations

Floats = NDArray[np.float64]


def features(X: Floats, g: Globals, n_threads: int = 1) -> Floats:
    """Return psi of centred rows, shape (n, K)."""
    return infer_all(X, g, n_threads)[0]


def decide(X: Floats, psi: Floats, classifier: Classifier) -> Floats:
    """Return the score of each answer, shape (n, answers)."""
    rows = design(X, psi, classifier.centre, classifier.input_scale, classifier.fit_intercept)
    return np.asarray(rows @ classifier.weights.T)


def reconstruct(psi: Floats, g: Globals) -> Floats:
    """Return the expected rows given their features, shape (n, D)."""
    return np.asarray(psi @ g.loadings)


def row_bounds(X: Floats, g: Globals) -> Floats:
    """Lower bound on each row's log-density at fixed global parameters, shape (n,).

    The bound is the ordinary one, at temperature one, for the features that tempered inference found.
    """
    psi = features(X, g)
    expected = stick_expectations(g.sticks)
    bounds = np.empty(len(X))
    normaliser = 0.5 * X.shape[1] * np.log(2.0 * np.pi * g.noise_variance)
    for n in range(len(X)):
        stats = sum_rows(X[n : n + 1], psi[n : n + 1])
        prior = cross_entropy_features(expected, stats.counts, 1.0)
        bounds[n] = stats.entropy - prior - 0.5 * expected_residual(stats, g) / g.noise_variance - normaliser
    return bounds
