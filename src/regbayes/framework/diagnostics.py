"""Can these draws carry this tilt? Effective sample size and the Pareto k-hat of importance weights.

Reweighting draws of ``p`` towards ``q ∝ p exp<phi, psi>`` gives weights whose right tail decides whether averages under
``q`` can be trusted. The effective sample size says how many equally weighted draws the weights amount to *if* their
variance is finite; k-hat says whether it is. Both work on log weights, unnormalised, so nothing overflows.

References
----------
.. [1] L. Kish (1965). Survey Sampling. Wiley.
.. [2] A. Vehtari, D. Simpson, A. Gelman, Y. Yao and J. Gabry (2024). Pareto smoothed importance sampling.
   Journal of Machine Learning Research 25(72), 1-58.
.. [3] J. Zhang and M. A. Stephens (2009). A new and efficient estimation method for the generalized Pareto
   distribution. Technometrics 51(3), 316-325.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from regbayes._types import Floats

MIN_TAIL = 5  # a generalised Pareto distribution is not fitted to fewer exceedances than this [2]
_LOG_TINY = math.log(np.finfo(np.float64).tiny)


def effective_sample_size(log_weights: ArrayLike) -> float:
    """Kish's effective sample size ``(sum w)^2 / sum w^2`` of importance weights [1].

    It counts what the *weights* cost and nothing else: for draws from a Markov chain it is relative to the effective
    sample size that the chain itself had. It is optimistic when the weights have a heavy tail; read it together with
    :func:`pareto_k`.

    Parameters
    ----------
    log_weights : array-like of shape (n,)
        Logarithms of the weights up to a constant; ``-inf`` is a weight of zero.

    Returns
    -------
    float
        Between 1 (one draw has all the weight) and n (all weights are equal).
    """
    logs = _checked(log_weights)
    weights = np.exp(logs - logs.max())
    return float(weights.sum() ** 2 / (weights @ weights))


def pareto_k(log_weights: ArrayLike) -> float:
    """Shape k-hat of a generalised Pareto distribution fitted to the largest weights [2].

    The weights have ``1 / k`` finite moments. Below :func:`reliable_threshold` averages over the weighted draws can
    be trusted; above 0.7 the draws cannot carry the tilt, and above 1 more draws would not help.

    Parameters
    ----------
    log_weights : array-like of shape (n,)
        Logarithms of the weights up to a constant; ``-inf`` is a weight of zero.

    Returns
    -------
    float
        k-hat. ``-inf`` where the largest weights are all equal, so that there is no tail at all (all weights equal, or
        a posterior cut to a region that holds a good part of the draws). ``inf`` where fewer than five draws exceed
        the tail's threshold (always so with 20 draws or fewer): then nothing is known, and the draws should not be
        trusted.

    Notes
    -----
    The tail is the largest ``min(0.2 n, 3 sqrt(n))`` weights; ties with the threshold and weights below the smallest
    positive double (relative to the largest) are left out. The fit is that of Zhang and Stephens [3], with the weak
    prior of [2] that is worth ten observations at k = 0.5.
    """
    weights = _checked(log_weights)
    n = weights.size
    weights = weights - weights.max()
    if weights.min() == 0.0:
        return -math.inf
    tail_size = math.ceil(min(0.2 * n, 3.0 * math.sqrt(n)))
    top = np.sort(np.partition(weights, n - tail_size - 1)[n - tail_size - 1 :])
    cutoff = max(float(top[0]), _LOG_TINY)
    if cutoff == 0.0:
        return -math.inf if tail_size >= MIN_TAIL else math.inf
    tail = top[top > cutoff]
    if tail.size < MIN_TAIL:
        return math.inf
    # exp(tail) - exp(cutoff), without cancellation where the weights are nearly equal
    return _generalized_pareto_shape(-np.exp(tail) * np.expm1(cutoff - tail))


def reliable_threshold(n_draws: int) -> float:
    """Largest k-hat at which ``n_draws`` weighted draws are reliable: ``min(1 - 1 / log10(n_draws), 0.7)`` [2]."""
    if n_draws < 1:
        raise ValueError(f"n_draws must be at least 1, got {n_draws}.")
    if n_draws == 1:
        return -math.inf
    return min(1.0 - 1.0 / math.log10(n_draws), 0.7)


def _generalized_pareto_shape(exceedances: Floats) -> float:
    """Posterior-mean estimate of the shape from sorted positive exceedances over the threshold [3, 2]."""
    n = exceedances.size
    n_grid = 30 + int(math.sqrt(n))
    quartile, largest = exceedances[int(n / 4 + 0.5) - 1], exceedances[-1]
    if not quartile > 0.0:  # underflow: the exceedances span more than the range of a double
        return math.inf
    # b = -k / sigma on the quantiles of its prior; every b is below 1 / largest, where the likelihood ends
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        grid = 1.0 / largest + (1.0 - np.sqrt(n_grid / (np.arange(n_grid) + 0.5))) / (3.0 * quartile)
        shapes = np.log1p(-np.outer(grid, exceedances)).mean(axis=1)
        # at b = 0 the distribution is exponential: -b / k(b) tends to 1 / mean
        inverse_scale = np.where(shapes == 0.0, 1.0 / exceedances.mean(), -grid / shapes)
        profile = n * (np.log(inverse_scale) - shapes - 1.0)
    usable = np.isfinite(profile)
    if not usable.any():
        return math.inf
    grid, profile = grid[usable], profile[usable]
    posterior = np.exp(profile - profile.max())
    posterior /= posterior.sum()
    posterior[posterior < 10.0 * np.finfo(np.float64).eps] = 0.0
    b = float(posterior @ grid / posterior.sum())
    shape = float(np.log1p(-b * exceedances).mean())
    prior_count, prior_shape = 10.0, 0.5
    return (n * shape + prior_count * prior_shape) / (n + prior_count)


def _checked(log_weights: ArrayLike) -> Floats:
    weights = np.asarray(log_weights, dtype=np.float64)
    if weights.ndim != 1 or weights.size == 0:
        raise ValueError(f"log_weights must be one-dimensional and not empty, got an array of shape {weights.shape}.")
    n_bad = int(np.count_nonzero(np.isnan(weights) | (weights == np.inf)))
    if n_bad:
        raise ValueError(
            f"log_weights has {n_bad} NaN or +inf values among {weights.size}; they may be finite, or -inf for a "
            "weight of zero."
        )
    if weights.max() == -np.inf:
        raise ValueError("log_weights are all -inf: at least one draw must have a positive weight.")
    return weights
