"""Diagnostics of weighted draws: autocorrelation, effective sample size and tails.

Reweighting draws of ``p`` to ``q ∝ p exp<phi, psi>`` is reliable if the right tail of the weights is light. The
effective sample size assumes that the variance of the weights is finite, and k-hat checks this. Both use unnormalized
log-weights to avoid overflow. `autocorrelation_time` corrects the number of draws of Markov chains.

References
----------
.. [1] L. Kish (1965). Survey Sampling. Wiley.
.. [2] A. Vehtari, D. Simpson, A. Gelman, Y. Yao and J. Gabry (2024). Pareto smoothed importance sampling.
   Journal of Machine Learning Research 25(72), 1-58.
.. [3] J. Zhang and M. A. Stephens (2009). A new and efficient estimation method for the generalized Pareto
   distribution. Technometrics 51(3), 316-325.
.. [4] A. Vehtari, A. Gelman, D. Simpson, B. Carpenter and P.-C. Bürkner (2021). Rank-normalization, folding, and
   localization: an improved R-hat for assessing convergence of MCMC. Bayesian Analysis 16(2), 667-718.
.. [5] C.-G. Esseen (1942). On the Liapunoff limit of error in the theory of probability. Arkiv för matematik A28.
.. [6] B. M. Hill (1975). A simple general approach to inference about the tail of a distribution. Annals of Statistics
   3(5), 1163-1174.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.fft import irfft, rfft
from numpy.typing import ArrayLike
from scipy.fft import next_fast_len
from scipy.special import logsumexp, ndtri
from scipy.stats import rankdata

from regbayes._types import Floats
from regbayes.kernels.arrays import DeviceArray, find_ranges, sum_squares, to_host

if TYPE_CHECKING:
    from regbayes.regularization.posteriors import Samples

MIN_TAIL = 5  # smallest number of exceedances to which a generalized Pareto distribution is fitted [2]
MIN_DRAWS = 8  # smallest chain length for which autocorrelation is estimated
MAX_LENGTH = 1024  # largest chain length; longer chains are averaged in batches, which keeps the error of the mean
MIN_EFFECTIVE_DRAWS = 100  # per chain; with fewer, Monte Carlo errors are rough themselves [4]
MAX_TAIL_INDEX = 1 / 3  # largest index with a third moment of the weights, which normal errors require [5]
EVEN_SHARES = 4.0  # largest weight relative to uniform at which weights count as even and need no tail check
HEAVY_TAIL = 0.05  # shape of a score's tail, minus two standard errors, above which it is reported
NO_VARIANCE = 0.5  # shape of a tail above which its variance is infinite
LARGEST_SHARE = 0.05  # share of the sum of squares above which one draw may indicate an infinite variance
FIRST_DRAWS = 10_000  # draws that suffice to exclude such a share for most features
STRONG_TILT = 1.0  # nats between the largest and the mean score; for smaller tilts the tail does not matter


def autocorrelation_time(chains: ArrayLike) -> float:
    """Number of draws of the chains that equal one independent draw for their mean.

    ``n / autocorrelation_time`` is the effective sample size for the mean of [4] and ArviZ's ``ess(method="mean")``.
    Chains are split into halves, so that a drift is a difference between chains. Autocorrelations are summed until they
    are noise (Geyer's initial monotone sequence).

    Parameters
    ----------
    chains : array-like of shape (n_chains, n_draws)

    Returns
    -------
    float
        At least ``1 / log10(n)``, and below 1 for antithetic draws. 1 if the values are constant or chains have fewer
        than eight draws.
    """
    values = np.asarray(chains, dtype=np.float64)
    highest, lowest = float(values.max()), float(values.min())
    largest = max(highest, -lowest)
    if values.shape[1] < MIN_DRAWS or highest - lowest <= 1e-15 * largest:
        return 1.0
    if not 1e-100 < largest < 1e100:  # squares must not overflow or underflow
        values = values / largest
    if values.shape[1] > MAX_LENGTH:
        means = average_batches(values)
        return autocorrelation_time(means) * float(means.var() / values.var()) * (values.shape[1] // means.shape[1])
    half = values.shape[1] // 2
    halves = np.concatenate([values[:, :half], values[:, -half:]])
    means = np.add.reduce(halves, axis=1) / half
    halves -= means[:, None]
    apart = means - np.add.reduce(means) / len(means)
    between = float(apart @ apart) / (len(means) - 1)
    length = next_fast_len(2 * half, real=True)
    spectrum = rfft(halves, n=length)
    covariance = irfft((spectrum * spectrum.conj()).real.mean(axis=0), n=length)[:half] / half
    within = covariance[0] * half / (half - 1)
    correlation = 1 - (within - covariance) / (covariance[0] + between)
    correlation[0] = 1.0
    # Geyer's initial monotone sequence [4]
    n_pairs = (half - 1) // 2
    pairs = correlation[: 2 * n_pairs].reshape(-1, 2).sum(axis=1)
    negative = np.flatnonzero(pairs < 0)
    kept = max(int(negative[0]) if negative.size else n_pairs - 1, 1)
    last = max(float(correlation[2 * kept]), 0.0)  # the even lag of the pair at which the sum stops, if positive
    time = -1.0 + 2.0 * float(np.minimum.accumulate(pairs[:kept]).sum()) + last
    return max(time, 1.0 / math.log10(halves.size)) * values.size / halves.size


def rank_r_hat(chains: ArrayLike) -> float:
    """Rank-normalized split R-hat of [4]: the larger one of bulk and folded draws.

    Parameters
    ----------
    chains : array-like of shape (n_chains, n_draws)

    Returns
    -------
    float
        1 for constant values; NaN if a value is not finite or halves have fewer than four draws.
    """
    values = np.asarray(chains, dtype=np.float64)
    half = values.shape[1] // 2
    if half < MIN_DRAWS // 2 or not np.all(np.isfinite(values)):
        return math.nan
    if values.max() == values.min():
        return 1.0
    halves = np.concatenate([values[:, :half], values[:, -half:]])
    return max(_r_hat_of_ranks(halves), _r_hat_of_ranks(np.abs(halves - np.median(halves))))


def _r_hat_of_ranks(halves: Floats) -> float:
    ranks = rankdata(halves).reshape(halves.shape)
    scores = ndtri((ranks - 0.375) / (halves.size + 0.25))
    within, between = float(scores.var(axis=1, ddof=1).mean()), float(scores.mean(axis=1).var(ddof=1))
    if within == 0:
        return math.inf if between > 0 else 1.0
    n = halves.shape[1]
    return math.sqrt((n - 1) / n + between / within)


def batch_length(n_draws: int) -> int:
    """Return the number of consecutive draws that are averaged."""
    return -(-n_draws // MAX_LENGTH)


def average_batches(series: Floats) -> Floats:
    """Average long chains, (n_chains, n_draws, ...), in batches."""
    batch = batch_length(series.shape[1])
    if batch == 1:
        return series
    kept = series[:, : series.shape[1] // batch * batch]
    batches = kept.reshape(len(series), -1, batch, *series.shape[2:])
    return batches @ np.full(batch, 1 / batch) if series.ndim == 2 else batches.mean(axis=2)


def monte_carlo_error(chains: ArrayLike) -> float:
    """Monte Carlo standard error of a mean, as ArviZ's ``mcse(method="mean")``."""
    values = average_batches(np.asarray(chains, dtype=np.float64))
    if values.size < 2 or not np.all(np.isfinite(values)):
        return math.nan
    return float(values.std(ddof=1)) * math.sqrt(autocorrelation_time(values) / values.size)


def effective_sample_size(log_weights: ArrayLike) -> float:
    """Kish's effective sample size ``(sum w)^2 / sum w^2`` of importance weights [1].

    It accounts for the weights only. For draws from a Markov chain it is relative to the effective sample size of the
    chain. It is optimistic for weights with a heavy tail; check :func:`pareto_k` too.

    Parameters
    ----------
    log_weights : array-like of shape (n,)
        Logarithms of the weights up to a constant; ``-inf`` is a weight of zero.

    Returns
    -------
    float
        Between 1 (one draw has all the weight) and n (all weights are equal).
    """
    logs = _check_log_weights(log_weights)
    weights = np.exp(logs - logs.max())
    return float(weights.sum() ** 2 / (weights @ weights))


def pareto_k(log_weights: ArrayLike, relative_efficiency: float = 1.0) -> float:
    """Pareto k-hat, the shape of the tail of importance weights [2].

    The weights have ``1 / k`` finite moments. Importance reweighting is reliable below :func:`reliable_threshold` and
    unreliable above 0.7. Above 1, more draws do not help.

    Parameters
    ----------
    log_weights : array-like of shape (n,)
        Logarithms of the weights up to a constant; ``-inf`` is a weight of zero.
    relative_efficiency : float, default=1.0
        Effective sample size of the weights as a series, divided by their number (ArviZ's ``reff``). The tail is longer
        for autocorrelated draws.

    Returns
    -------
    float
        k-hat. ``-inf`` if the largest weights are all equal, as for a posterior truncated to a region with many draws.
        ``inf`` if fewer than five draws exceed the tail's threshold, as with 20 draws or fewer: the tail is unknown,
        and the draws are unreliable.

    Notes
    -----
    The tail is the largest ``min(0.2 n, 3 sqrt(n / relative_efficiency))`` weights. It excludes ties with the threshold
    and weights below the smallest positive float64 (relative to the largest). The fit is that of Zhang and Stephens
    [3], with the weak prior of [2]: ten observations at k = 0.5.
    """
    weights = _check_log_weights(log_weights)
    alive = weights[weights > -np.inf]
    if alive.size < min(weights.size, MIN_TAIL):
        return math.inf
    return _fit_tail(alive - alive.max(), relative_efficiency)[0]


def smooth_log_weights(log_weights: ArrayLike, relative_efficiency: float = 1.0) -> tuple[Floats, float]:
    """Pareto smoothed importance weights [2].

    The largest weights are replaced by quantiles of the fitted tail, and truncated at the largest. This reduces their
    variance at the cost of a small bias.

    Parameters
    ----------
    log_weights : array-like of shape (n,)
        Logarithms of the weights up to a constant; ``-inf`` is a weight of zero.
    relative_efficiency : float, default=1.0
        See `pareto_k`.

    Returns
    -------
    log_weights : array of shape (n,)
        Normalized; not smoothed if no tail can be fitted.
    pareto_k : float
    """
    weights = _check_log_weights(log_weights)
    weights = weights - weights.max()
    k, scale, cutoff = _fit_tail(weights, relative_efficiency)
    if math.isfinite(k):
        (tail,) = np.nonzero(weights > cutoff)
        ranked = tail[np.argsort(weights[tail])]
        p = (np.arange(len(tail)) + 0.5) / len(tail)
        excess = -np.log1p(-p) if k == 0 else np.expm1(-k * np.log1p(-p)) / k
        weights[ranked] = np.minimum(np.log(scale * excess + math.exp(cutoff)), 0.0)
    smoothed: Floats = weights - logsumexp(weights)
    return smoothed, k


def tail_index(log_weights: ArrayLike) -> float:
    """Hill's estimate of the tail index: mean excess of the largest log-weights [6].

    Its standard error is ``index / sqrt(tail_size(n))``, about four times smaller than that of `pareto_k`. It is
    biased upward for tails lighter than a power law.

    Parameters
    ----------
    log_weights : array-like of shape (n,)
        Logarithms of the weights up to a constant.
    """
    weights = _check_log_weights(log_weights)
    alive = weights[weights > -np.inf]
    size = tail_size(alive.size)
    if size < 1:
        return math.inf
    top = np.partition(alive, alive.size - size - 1)[alive.size - size - 1 :]
    return float(top.sum() - top[0]) / size - float(top[0])


def tail_size(n_draws: int, relative_efficiency: float = 1.0) -> int:
    """Return the number of largest weights in the tail."""
    return min(math.ceil(min(0.2 * n_draws, 3.0 * math.sqrt(n_draws / relative_efficiency))), n_draws - 1)


def _fit_tail(weights: Floats, relative_efficiency: float) -> tuple[float, float, float]:
    """Fit shape (-inf: no tail, inf: unknown), scale and threshold of log-weights."""
    if weights.min() == 0.0:
        return -math.inf, math.nan, 0.0
    n = tail_size(weights.size, relative_efficiency)
    top = np.sort(np.partition(weights, weights.size - n - 1)[weights.size - n - 1 :])
    cutoff = max(float(top[0]), math.log(np.finfo(np.float64).tiny))
    if cutoff == 0.0:
        return (-math.inf if n >= MIN_TAIL else math.inf), math.nan, cutoff
    tail = top[top > cutoff]
    if tail.size < MIN_TAIL:
        return math.inf, math.nan, cutoff
    # exp(tail) - exp(cutoff), without cancellation for nearly equal weights
    shape, scale = _fit_generalized_pareto(-np.exp(tail) * np.expm1(cutoff - tail))
    prior_count, prior_shape = 10.0, 0.5
    return (tail.size * shape + prior_count * prior_shape) / (tail.size + prior_count), scale, cutoff


def score_tail(scores: ArrayLike, relative_efficiency: float = 1.0) -> tuple[float, float]:
    """Shape of the upper tail of ``<phi, psi>`` and its standard error.

    A normal tail has a shape below 0, an exponential one 0. A positive shape extrapolates to a tail that is heavier
    than exponential. Then ``E_p exp<phi, psi>`` is infinite for any phi, so that the *posterior* has no tilt although
    its draws do.

    Parameters
    ----------
    scores : array-like of shape (n,)
        Scores of the draws with positive weight.
    relative_efficiency : float, default=1.0
        See `pareto_k`.

    Returns
    -------
    shape, error : float
        (-inf, 0) if no tail can be fitted.
    """
    values = np.asarray(scores, dtype=np.float64)
    size = math.ceil(min(0.2 * values.size, 3.0 * math.sqrt(values.size)))
    if size >= values.size:
        return -math.inf, 0.0
    top = np.sort(np.partition(values, values.size - size - 1)[values.size - size - 1 :])
    tail = top[top > top[0]] - top[0]
    if tail.size < MIN_TAIL:
        return -math.inf, 0.0
    shape, _ = _fit_generalized_pareto(tail)
    return shape, (1 + abs(shape)) / math.sqrt(tail.size * min(relative_efficiency, 1.0))


def reliable_threshold(n_draws: int) -> float:
    """Largest reliable k-hat for n_draws: ``min(1 - 1 / log10(n_draws), 0.7)`` [2]."""
    if n_draws < 1:
        raise ValueError(f"n_draws must be at least 1, got {n_draws}.")
    if n_draws == 1:
        return -math.inf
    return min(1.0 - 1.0 / math.log10(n_draws), 0.7)


def _fit_generalized_pareto(exceedances: Floats) -> tuple[float, float]:
    """Posterior mean of shape and scale for sorted exceedances over the threshold [3]."""
    n = exceedances.size
    n_grid = 30 + int(math.sqrt(n))
    quartile, largest = exceedances[int(n / 4 + 0.5) - 1], exceedances[-1]
    if not quartile > 0.0:  # underflow: the exceedances exceed the range of float64
        return math.inf, math.nan
    # b = -k / sigma at the quantiles of its prior; the likelihood is zero for b above 1 / largest
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        grid = 1.0 / largest + (1.0 - np.sqrt(n_grid / (np.arange(n_grid) + 0.5))) / (3.0 * quartile)
        shapes = np.log1p(-np.outer(grid, exceedances)).mean(axis=1)
        # at b = 0 the distribution is exponential: -b / k(b) tends to 1 / mean
        inverse_scale = np.where(shapes == 0.0, 1.0 / exceedances.mean(), -grid / shapes)
        profile = n * (np.log(inverse_scale) - shapes - 1.0)
    usable = np.isfinite(profile)
    if not usable.any():
        return math.inf, math.nan
    grid, profile = grid[usable], profile[usable]
    posterior = np.exp(profile - profile.max())
    posterior /= posterior.sum()
    posterior[posterior < 10.0 * np.finfo(np.float64).eps] = 0.0
    b = float(posterior @ grid / posterior.sum())
    shape = float(np.log1p(-b * exceedances).mean())
    return shape, float(exceedances.mean()) if b == 0 else -shape / b


def _check_log_weights(log_weights: ArrayLike) -> Floats:
    weights = np.asarray(log_weights, dtype=np.float64)
    if weights.ndim != 1 or weights.size == 0:
        raise ValueError(f"log_weights must be one-dimensional and not empty, got an array of shape {weights.shape}.")
    highest = weights.max()  # NaN if any weight is NaN
    if not highest < np.inf:
        n_bad = int(np.count_nonzero(np.isnan(weights) | (weights == np.inf)))
        raise ValueError(
            f"log_weights has {n_bad} NaN or +inf values among {weights.size}; they may be finite, or -inf for a "
            "weight of zero."
        )
    if highest == -np.inf:
        raise ValueError("log_weights are all -inf: at least one draw must have a positive weight.")
    return weights


def judge_weights(
    samples: Any, effective: float, n_chains: int
) -> tuple[Literal["reliable", "doubtful", "unreliable"], str]:
    """Return the reliability of weighted draws, and the reason.

    ``effective`` is the smallest effective sample size of the expectations.
    """
    n, logs = samples.n_atoms, samples.log_weights
    alive = int(np.count_nonzero(np.isfinite(logs)))
    # Nearly equal weights have no relevant tail.
    even = alive >= MIN_EFFECTIVE_DRAWS and float(logs.max()) + math.log(alive) < math.log(EVEN_SHARES)
    k_hat = -math.inf if even else samples.pareto_k
    limit = max(reliable_threshold(alive), 0.0)
    of_all = f"{effective:.0f} effective draws of {n}"
    if k_hat > limit:
        tail = "too few draws have a large weight to know its tail"
        if math.isfinite(k_hat):
            tail = f"Pareto k-hat {k_hat:.2f} is above {limit:.2f}"
        return "unreliable", f"{tail} ({of_all}). Expectations may be far off."
    if effective < min(MIN_EFFECTIVE_DRAWS * n_chains, n / 4):
        return "doubtful", f"only {of_all} are left, so estimates and their standard errors are rough."
    index = 0.0 if even else samples.tail_index
    error = index / math.sqrt(tail_size(alive))
    if index + 2 * error > MAX_TAIL_INDEX:
        above = f"the tail index of the weights, {index:.2f} ± {error:.2f}, is not clearly below {MAX_TAIL_INDEX:.2f}"
        return "doubtful", f"{above} ({of_all}). Standard errors may be too small."
    return "reliable", ""


def find_heavy_tail(samples: Samples, base: Samples) -> str | None:
    """Return a message if ``exp<multipliers, psi>`` may have no mean."""
    alive = np.isfinite(samples.log_weights)
    scores = samples.log_weights[alive] - base.log_weights[alive]
    shape, error = score_tail(scores, samples.relative_efficiency)
    if shape - 2 * error <= HEAVY_TAIL or scores.max() - scores.mean() <= STRONG_TILT:
        return None
    return (
        "The regularized posterior may not exist beyond the draws: the tail of <multipliers, psi> looks heavier than "
        f"exponential (shape {shape:.2f} ± {error:.2f}, from the largest draws). If the posterior's tail is like "
        "that, exp<multipliers, psi> has no finite mean, and the solution depends on the largest draws alone. "
        "Constrain a function with a lighter tail, such as a logarithm or a probability."
    )


@np.errstate(over="ignore", invalid="ignore")
def find_wild_mean(samples: Samples, values: DeviceArray, mean: Floats, labels: Sequence[str]) -> str | None:
    """Return a message if a few draws determine the mean of a feature, (n, m).

    A feature between 0 and 1 at every draw is treated as a probability, which has a mean.
    """
    weights = samples.weights
    low, high = find_ranges(values)
    at_most = float(weights.max()) * np.maximum(high - mean, mean - low) ** 2
    few = slice(0, min(len(weights), FIRST_DRAWS))
    some = sum_squares(values[few, :], mean, weights[few])  # a lower bound of the sum over all draws
    for j in map(int, np.flatnonzero(at_most > LARGEST_SHARE * some)):
        centered = to_host(values[:, j]).astype(np.float64) - mean[j]
        squares = weights * centered**2
        is_bounded = low[j] >= 0.0 and high[j] <= 1.0
        if is_bounded or not squares.max() > LARGEST_SHARE * squares.sum():
            continue
        efficiency = 1 / max(1.0, autocorrelation_time(samples.by_chain(centered)))
        for side in (1.0, -1.0):
            shape, error = score_tail(side * centered[weights > 0], efficiency)
            if shape - error > NO_VARIANCE:
                return (
                    f"The feature in {labels[j]} may have no mean: its largest draws look like a tail without a "
                    f"variance (shape {shape:.2f} ± {error:.2f}), and a few of them make the average. A ratio whose "
                    "denominator can be zero does that. Constrain a bounded function of it, or a probability."
                )
    return None
