"""Prediction: features of new rows without labels, scores of answers, and the held-out bound."""

from __future__ import annotations

import numpy as np
from scipy.special import entr

from regbayes._types import Floats
from regbayes.models.ilsvm.inference import infer
from regbayes.models.ilsvm.margins import design
from regbayes.models.ilsvm.rows import Rows
from regbayes.models.ilsvm.state import Classifier, Globals
from regbayes.priors.indian_buffet import stick_expectations


def features(X: Rows, g: Globals, n_threads: int = 1) -> Floats:
    """Return psi of rows, shape (n, K)."""
    return infer(X, g, n_threads)


def decide(X: Rows, psi: Floats, classifier: Classifier) -> Floats:
    """Return the score of each answer, shape (n, answers)."""
    rows = design(X, psi, classifier.centre, classifier.input_scale, classifier.fit_intercept)
    return np.asarray(rows @ classifier.weights.T)


def reconstruct(psi: Floats, g: Globals) -> Floats:
    """Return the expected rows given their features, shape (n, D)."""
    return np.asarray(psi @ g.loadings)


def row_bounds(X: Rows, g: Globals, n_threads: int = 1) -> Floats:
    """Lower bound on each row's log-density at fixed global parameters, shape (n,).

    The bound is the ordinary one, at temperature one, for the features that tempered inference found.
    """
    psi = features(X, g, n_threads)
    expected = stick_expectations(g.sticks)
    squares = np.einsum("kd,kd->k", g.loadings, g.loadings)
    # E||x - W z||^2 is the squared distance from the expected row plus the variance around it, eq. (25).
    spread = psi * (1.0 - psi) @ squares + X.n_inputs * (psi @ g.variances)
    residual = np.square(X.array() - reconstruct(psi, g)).sum(axis=1) + spread
    log_prior = psi @ expected.log_use + (1.0 - psi) @ expected.log_rest
    entropies = entr(psi).sum(axis=1) + entr(1.0 - psi).sum(axis=1)
    normaliser = 0.5 * X.n_inputs * np.log(2.0 * np.pi * g.noise_variance)
    return np.asarray(entropies + log_prior - 0.5 * residual / g.noise_variance - normaliser)
