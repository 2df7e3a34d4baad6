"""Simulated data with known latent features, and matching of estimated features."""

from __future__ import annotations

import numpy as np
from scipy.optimize import linear_sum_assignment


def planted(K, seed, n_new=500, by_input=False):
    """Simulate binary features at signal-to-noise one; return training and new data.

    There are four inputs and fifty samples per feature. The noise variance is the same for all inputs or, ``by_input``,
    equal to the signal variance of each.
    """
    rng = np.random.default_rng(seed)
    n = 50 * K + n_new
    Z = (rng.random((n, K)) < rng.uniform(0.1, 0.5, K)).astype(float)
    signal = Z @ rng.standard_normal((K, 4 * K))
    variances = signal.var(axis=0)
    X = signal + np.sqrt(variances if by_input else variances.mean()) * rng.standard_normal(signal.shape)
    scores = (Z - Z.mean(axis=0)) @ rng.standard_normal((K, 3))
    return X[:-n_new], np.argmax(scores, axis=1)[:-n_new], X[-n_new:], Z[-n_new:]


def matched(A, B):
    """Return absolute correlations of optimally matched columns, or zero."""
    corr = np.abs(np.corrcoef(A.T, B.T)[: A.shape[1], A.shape[1] :])
    found = np.zeros(max(corr.shape))
    rows, columns = linear_sum_assignment(-corr)
    found[: len(rows)] = corr[rows, columns]
    return found


def loaded(model):
    return np.any(model.components_ != 0.0, axis=1)


def with_rare_feature():
    """Simulate five binary features, one hard to recover; return X and loadings."""
    rng, shares = np.random.default_rng(221), np.linspace(0.1, 0.5, 5)
    signal = (rng.random((850, 5)) < shares) @ (loadings := rng.standard_normal((5, 20)))
    return (signal + signal.std(axis=0) * rng.standard_normal(signal.shape))[:250], loadings


def draw_scores(kind, K=6, n=600, noise=0.5, nonnegative=False, seed=0):
    """Simulate a noisy linear factor model with scores of the given distribution."""
    rng = np.random.default_rng(seed)
    on = rng.random((n, K)) < np.linspace(0.15, 0.5, K)
    scores = {
        "on/off": on.astype(float),
        "amounts": on * np.abs(rng.standard_normal((n, K))),
        "normal": rng.standard_normal((n, K)),
        "uniform": rng.random((n, K)),
        "exponential": rng.exponential(size=(n, K)),
    }[kind]
    loadings = rng.standard_normal((K, 4 * K))
    signal = scores @ (np.abs(loadings) if nonnegative else loadings)
    return signal + noise * signal.std(axis=0) * rng.standard_normal(signal.shape), scores
