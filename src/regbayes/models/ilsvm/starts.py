"""Starts of a fit: directions in which the target varies and principal directions above the noise, as features.

Nothing is random, and the order of the samples does not matter. Directions are rotated to simple structure (varimax),
and each becomes a binary feature, on in the share of the samples that its skewness suggests, or with real values
two features, one for either way. Where each input has its own noise, scores are rotated to independence instead.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from scipy.linalg import eigh
from scipy.sparse.linalg import LinearOperator, eigsh

from regbayes._types import Flags, Floats, Indices, Integers
from regbayes.models.ilsvm.model import UNLABELED, Data, Params, Rows, Settings
from regbayes.models.ilsvm.slab import convert_params
from regbayes.models.indian_buffet import Sticks, prior_sticks, update_sticks

STICK_UPDATES = 5  # majorize-minimize steps of new sticks
MAX_DENSE_INPUTS = 500  # up to which eigenvectors come from the whole matrix of moments
MAX_ROTATIONS, ROTATION_TOL = 100, 1e-4  # steps of a rotation, and the largest change at which it has converged
MAX_FACTOR_STEPS, FACTOR_TOL = 50, 2e-3  # the same for the noise variances of a factor analysis
MIN_VARIANCE = 1e-3  # of whitened directions, relative to the mean variance
RELATIVE_RIDGE = 1e-8  # on correlations: an input may be a sum of others


@dataclass(frozen=True)
class StructurePolicy:
    """Decisions that change which features a fit returns.

    Sources: [A] the ablation of the structure search on 36 tables and 10 simulated families; docs/decisions.md.
    """

    sample_rows: int = 4096  # samples of which the features are learned; the final descent has all
    signal: float = 10.0  # mean squared length of a sample, in units of tempered noise, at which features are soft
    extra_directions: float = 1.5  # directions below the soft temperature, relative to those above the noise edge [A]
    heat: float = 2.0  # temperature of a start below the soft one, relative to the final temperature [A]
    cooling: float = 0.7  # factor between two temperatures [A]
    short_steps: int = 8  # descent at a temperature, and after features have gone [A]
    min_reach: float = 0.5  # part of a direction of the target within the principal ones, so that it adds no feature
    first_steps: int = 100  # descent before features are judged [A]
    tol: float = 1e-3  # gain of J per sample, in units of its loss, below which such a descent ends
    min_gain: float = 4e-3  # gain of J per sample, in the same units, that a feature must bring to stay [A]
    min_share: float = 0.05  # samples that have a feature at the start, at least
    min_noise: float = 0.05  # noise of an input, relative to its variance, where each has its own


POLICY = StructurePolicy()


def start(data: Data, settings: Settings, policy: StructurePolicy = POLICY) -> Params:
    """Return directions of the target and principal directions that stand out from the noise as features.

    Binary features take the directions of the target only where principal directions do not reach them.
    """
    X = data.X.take(None)
    if settings.noise_ratios is not None:
        return _start_per_input(X, settings, policy)
    N, D = X.totals.n_rows, X.n_inputs
    moments, directions = leading_directions(X.moment, D, min(settings.n_components, D, len(X)))
    variances = np.maximum(moments / N, 0.0)
    is_soft = not settings.slab and not is_cold(X, settings, policy)
    noise, edge = settings.noise_variance, noise_edge(X)
    if is_soft:
        total = X.totals.mean_square
        noise = max(noise_level(variances, total, D, edge), policy.min_noise * total / D)
    n = max(1, int(np.sum(variances > noise * edge)))
    if not settings.slab and not is_soft:
        rank = int(np.sum(variances > np.sqrt(np.finfo(np.float64).eps) * variances[0]))
        n = max(1, min(round(policy.extra_directions * n), rank))
    factors = varimax(np.sqrt(variances[:n, None]) * directions[:n])
    towards = target_directions(data, X, variances, directions)
    if settings.slab:
        loadings, _ = binary_loadings(X, factors, policy)
        either = [loadings] if settings.slab == "normal" else [loadings, -loadings]
        return _real_valued(X, np.vstack([towards, *either]), settings)
    towards = towards[:1] if len(towards) == 2 else towards  # two classes differ along one direction
    reached = np.square(towards @ directions[:n].T).sum(axis=1)
    scores = X.project(towards := towards[reached < policy.min_reach])
    spread = np.sqrt(X.weigh(scores**2).sum(axis=0) / N)
    loadings, shares = binary_loadings(X, np.vstack([spread[:, None] * towards, factors]), policy)
    loadings, shares = loadings[: settings.n_components], shares[: settings.n_components]
    return make_params(loadings, shares, -shares @ loadings, X, settings)


def target_directions(data: Data, X: Rows, variances: Floats, directions: Floats) -> Floats:
    """Return directions of unit length in which the target varies, shape (n, D): the means of the whitened classes.

    Directions beyond the given ones, with their principal variances, have the mean of the remaining variances.
    """
    labels = np.unique(data.labels[data.labels != UNLABELED])
    if len(labels) < 2 or not X.totals.mean_square > 0.0:
        return np.empty((0, X.n_inputs))
    indicator = X.weigh((data.labels[:, None] == labels).astype(np.float64))
    means = X.combine(indicator) / indicator.sum(axis=0)[:, None]
    total, D = X.totals.mean_square, X.n_inputs
    rest = max((total - float(variances.sum())) / max(D - len(variances), 1), MIN_VARIANCE * total / D)
    along = means @ directions.T
    means = (means - along @ directions) / np.sqrt(rest) + along / np.sqrt(np.maximum(variances, rest)) @ directions
    means = means[np.any(np.abs(means) > 1e-12, axis=1)]
    return means / np.linalg.norm(means, axis=1, keepdims=True)


def _real_valued(X: Rows, directions: Floats, settings: Settings) -> Params:
    """Return a real-valued feature for each direction, all of the same length and equally frequent."""
    directions = directions[: settings.n_components]
    lengths = np.maximum(np.linalg.norm(directions, axis=1, keepdims=True), np.finfo(np.float64).tiny)
    loadings = np.sqrt(settings.noise_variance * settings.temperature) * directions / lengths
    shares = np.full(len(loadings), settings.alpha / (settings.alpha + len(loadings)))
    return convert_params(make_params(loadings, shares, np.zeros(X.n_inputs), X, settings), settings)


def _start_per_input(X: Rows, settings: Settings, policy: StructurePolicy) -> Params:
    """Return independent scores of the samples, each decided for one of two values, as binary features."""
    assert settings.noise_ratios is not None
    scales = np.sqrt(settings.noise_ratios)
    X = X.scale(scales)
    N, D = X.totals.n_rows, X.n_inputs
    moments, directions = leading_directions(X.moment, D, min(settings.n_components, D, len(X)))
    variances = np.maximum(moments / N, 0.0)
    n = max(1, int(np.sum(variances > settings.noise_variance * noise_edge(X))))
    loadings, shares, offset = decide_scores(X, separate(X, np.sqrt(variances[:n, None]) * directions[:n]), policy)
    return make_params(scales * loadings, shares, scales * offset, X, settings)


def sample_rows(labels: Integers, rng: np.random.Generator, policy: StructurePolicy = POLICY) -> Integers | None:
    """Draw the samples of which the features are learned; None: all of them.

    Labeled and unlabeled samples get their shares of the places, labeled ones at least half of them.
    """
    if len(labels) <= 2 * policy.sample_rows:
        return None
    labeled, rest = np.flatnonzero(labels != UNLABELED), np.flatnonzero(labels == UNLABELED)
    share = max(0.5, len(labeled) / len(labels)) if len(labeled) else 0.0
    n_labeled = min(len(labeled), round(share * policy.sample_rows))
    n_rest = min(len(rest), policy.sample_rows - n_labeled)
    return np.sort(
        np.concatenate([rng.choice(labeled, n_labeled, replace=False), rng.choice(rest, n_rest, replace=False)])
    )


# --- how many directions


def noise_edge(X: Rows) -> float:
    """Return the largest principal variance of noise of unit variance, ``(1 + sqrt(D / N))^2`` (Marchenko-Pastur)."""
    return float(1.0 + np.sqrt(X.n_inputs / X.totals.n_rows)) ** 2


def noise_level(variances: Floats, total: float, D: int, edge: float) -> float:
    """Return the mean variance along the directions that do not stand out from it, at least half of them.

    Parameters
    ----------
    variances : array of shape (n,)
        The largest principal variances, falling.
    total : float
        The sum of all of them.
    D : int
        How many there are.
    edge : float
        From `noise_edge`.
    """
    n, before, level = 0, -1, total / D
    while n > before:
        before, n = n, max(n, min(int(np.sum(variances > edge * level)), D // 2))
        level = (total - float(variances[:n].sum())) / (D - n)
    return level


def soft_temperature(
    X: Rows, noise_variance: float, ratios: Floats | None = None, policy: StructurePolicy = POLICY
) -> float:
    """Return the temperature of soft features: samples have a squared length of `signal` in units of tempered noise."""
    squares = X.totals.squares if ratios is None else X.totals.squares / ratios
    return max(1.0, float(squares.sum()) / X.totals.n_rows / (policy.signal * noise_variance))


def is_cold(X: Rows, settings: Settings, policy: StructurePolicy = POLICY) -> bool:
    """Return whether features are to be colder than soft; rounding must not decide it."""
    soft = soft_temperature(X, settings.noise_variance, settings.noise_ratios, policy)
    return settings.temperature < (1.0 - 1e-6) * soft


def has_structure(data: Data) -> bool:
    """Return whether any direction stands out from noise: one of the inputs, or of the means of the classes.

    Inputs have unit variance here. Uncorrelated ones have principal variances up to ``(1 + sqrt(D / N))^2``. Class
    means of whitened samples that do not depend on the labels have up to ``(sqrt(D / N) + sqrt((L - 1) / N))^2``.
    """
    X = data.X.take(None)
    N, D = X.totals.n_rows, X.n_inputs
    correlations = X.moment(np.eye(D)) / N
    varying = np.diag(correlations) > np.finfo(np.float64).eps * np.diag(correlations).max()
    D = int(varying.sum())
    if D < 2:
        return True  # there is nothing to compare with
    spread = np.sqrt(np.diag(correlations)[varying])
    correlations = correlations[np.ix_(varying, varying)] / np.outer(spread, spread)
    values, vectors = np.linalg.eigh(correlations)
    if values[-1] > (1.0 + np.sqrt(D / N)) ** 2:
        return True
    labels = np.unique(data.labels[data.labels != UNLABELED])
    if len(labels) < 2:
        return False
    indicator = (data.labels[:, None] == labels).astype(np.float64)
    counted = X.weigh(indicator).sum(axis=0)
    means = X.combine(X.weigh(indicator))[:, varying] / spread / np.sqrt(counted * counted.sum())[:, None]
    kept = values > np.finfo(np.float64).eps * D * values[-1]
    between = np.linalg.svd(means @ vectors[:, kept] / np.sqrt(values[kept]), compute_uv=False)
    return bool(between[0] > np.sqrt(D / counted.sum()) + np.sqrt((len(labels) - 1) / counted.sum()))


def leading_directions(moment: Callable[[Floats], Floats], D: int, n: int) -> tuple[Floats, Floats]:
    """Return the largest eigenvalues (n,) of a symmetric matrix, falling, and their directions (n, D).

    The matrix is given by its products with rows of vectors, (m, D) -> (m, D). Permuting inputs permutes the result.
    """
    begin = None if D <= MAX_DENSE_INPUTS or n >= D - 1 else moment(np.ones((1, D))) + 1.0
    if begin is None or not np.any(moment(begin)):  # the second for samples that are all the same
        values, vectors = eigh(moment(np.eye(D)), subset_by_index=(D - n, D - 1))
    else:
        operator = LinearOperator((D, D), matvec=lambda v: moment(v.reshape(1, D))[0], dtype=np.float64)
        values, vectors = eigsh(operator, n, v0=begin[0], tol=ROTATION_TOL)
    order = np.argsort(-values, kind="stable")
    return values[order], vectors[:, order].T


# --- from directions to features


def varimax(loadings: Floats) -> Floats:
    """Rotate loadings (K, D) so that each has few inputs (Kaiser 1958), by projected gradients on the rotations."""
    rotation = np.eye(len(loadings))
    for _ in range(MAX_ROTATIONS):
        turned = rotation @ loadings
        slope = (turned**3 - turned * np.mean(turned**2, axis=1, keepdims=True)) @ loadings.T
        left, _, right = np.linalg.svd(slope)
        before, rotation = rotation, left @ right
        if np.abs(rotation - before).max() < ROTATION_TOL:
            break
    return rotation @ loadings


def separate(X: Rows, loadings: Floats) -> Floats:
    """Rotate loadings (K, D) of uncorrelated scores so that the scores of the samples are independent of each other.

    Fixed-point steps (Hyvarinen 1999) on the sum of ``skewness^2 / 12 + kurtosis^2 / 48``, which approximates how far
    scores are from normal ones. Binary features have one or the other, whatever their share of the samples.
    """
    squares = np.einsum("kd,kd->k", loadings, loadings)
    if not np.all(squares > 0):
        return loadings
    scores = X.project(loadings / squares[:, None])
    weighed = X.weigh(scores) / X.totals.n_rows
    rotation = np.eye(len(loadings))
    for _ in range(MAX_ROTATIONS):
        turned = scores @ rotation.T
        by_skewness = (turned**2).T @ weighed
        by_kurtosis = (turned**3).T @ weighed - 3.0 * rotation
        skewness = np.einsum("kj,kj->k", by_skewness, rotation)
        kurtosis = np.einsum("kj,kj->k", by_kurtosis, rotation)
        slope = skewness[:, None] * by_skewness / 2.0 + kurtosis[:, None] * by_kurtosis / 6.0
        left, _, right = np.linalg.svd(slope)
        before, rotation = rotation, left @ right
        if np.abs(np.abs(np.einsum("kj,kj->k", rotation, before)) - 1.0).max() < ROTATION_TOL:
            break
    return rotation @ loadings


def binary_shares(skewness: Floats, policy: StructurePolicy) -> Floats:
    """Return the shares of the samples that have binary features, at most one half, by the skewness of their scores.

    A feature that is on in a share p of the samples varies by ``p (1 - p)`` and has a skewness of
    ``(1 - 2 p) / sqrt(p (1 - p))``.
    """
    return np.clip(0.5 * (1.0 - np.abs(skewness) / np.sqrt(skewness**2 + 4.0)), policy.min_share, 0.5)


def binary_loadings(X: Rows, loadings: Floats, policy: StructurePolicy = POLICY) -> tuple[Floats, Floats]:
    """Turn loadings of scores of unit variance into those of binary features, the largest first, and their shares."""
    squares = np.einsum("kd,kd->k", loadings, loadings)
    loadings = loadings[np.argsort(-squares, kind="stable")]
    scores, N = X.project(loadings), X.totals.n_rows
    spread = np.sqrt(X.weigh(scores**2).sum(axis=0) / N)
    third = X.weigh(scores**3).sum(axis=0) / N
    skewness = np.divide(third, spread**3, out=np.zeros_like(third), where=spread > 0)
    shares = binary_shares(skewness, policy)
    signs = np.where(skewness < 0, -1.0, 1.0)
    return loadings * (signs / np.sqrt(shares * (1.0 - shares)))[:, None], shares


def decide_scores(X: Rows, loadings: Floats, policy: StructurePolicy = POLICY) -> tuple[Floats, Floats, Floats]:
    """Decide independent scores for one of two values each; return loadings, shares and offset by least squares.

    The two values are ``-sqrt(p / (1 - p))`` and ``sqrt((1 - p) / p)``, with the share p that the skewness suggests.
    Noise does not shorten loadings that are fitted to decided features.
    """
    squares = np.einsum("kd,kd->k", loadings, loadings)
    loadings = loadings[np.argsort(-squares, kind="stable")]
    N = X.totals.n_rows
    scores = X.project(np.asarray(np.linalg.pinv(loadings), dtype=np.float64).T)
    skewness = X.weigh(scores**3).sum(axis=0) / N
    shares = binary_shares(skewness, policy)
    middle = (0.5 - shares) / np.sqrt(shares * (1.0 - shares))
    decided: Flags = np.where(skewness < 0, -scores, scores) > middle
    design = np.column_stack([decided, np.ones(len(scores))])
    weighed = X.weigh(design)
    found: Floats = np.linalg.lstsq(design.T @ weighed, X.combine(weighed), rcond=None)[0].astype(np.float64)
    return found[:-1], weighed[:, :-1].sum(axis=0) / N, found[-1]


def find_input_noise(X: Rows, settings: Settings, policy: StructurePolicy = POLICY) -> Settings:
    """Return settings with the noise variance of each input, by a factor analysis of the samples."""
    noise = analyze_noise(X, settings.n_components, policy)
    return settings.with_noise(float(np.exp(np.mean(np.log(noise)))), noise)


def analyze_noise(X: Rows, n_components: int, policy: StructurePolicy = POLICY) -> Floats:
    """Return the noise variance of each input by a factor analysis, shape (D,).

    Principal factors of the correlations, in units of the noise of the last iteration. The factors are those above the
    noise edge, at most as many as correlations identify (Ledermann 1937). Constant inputs have the geometric mean.
    """
    N, D = X.totals.n_rows, X.n_inputs
    moments = X.moment(np.eye(D)) / N
    total = np.diag(moments)
    varying = total > np.finfo(np.float64).eps * total.max()
    spread = np.sqrt(total[varying])
    correlations = moments[np.ix_(varying, varying)] / np.outer(spread, spread)
    d = len(correlations)
    identified = max(d // 2, int(0.5 * (2 * d + 1 - np.sqrt(8 * d + 1))))
    most = max(1, min(n_components, identified))
    shares = 1.0 / np.diag(np.linalg.inv(correlations + RELATIVE_RIDGE * np.eye(d)))  # not predicted by other inputs
    shares = np.clip(shares, policy.min_noise, 1.0)
    for _ in range(MAX_FACTOR_STEPS):
        scale = np.sqrt(shares)
        values, vectors = np.linalg.eigh(correlations / np.outer(scale, scale))
        K = int(np.clip(np.sum(values > (1.0 + np.sqrt(d / N)) ** 2), 1, most))
        explained = np.square(vectors[:, -K:]) @ np.maximum(values[-K:] - 1.0, 0.0)
        before, shares = shares, np.clip(1.0 - shares * explained, policy.min_noise, 1.0)
        if np.abs(shares - before).max() < FACTOR_TOL:
            break
    noise = np.full(D, np.exp(np.mean(np.log(shares * spread**2))))
    noise[varying] = shares * spread**2
    return noise


# --- parameters


def random_params(X: Rows, settings: Settings, rng: np.random.Generator, n_rows: int = 1000) -> Params:
    """Return random combinations of samples, each on in half of them and no colder than soft (Algorithm 3's start)."""
    if is_cold(X, settings):
        settings = replace(settings, temperature=soft_temperature(X, settings.noise_variance))
    chosen, K = rng.choice(len(X), min(len(X), n_rows), replace=False), settings.n_components
    rows = X.take(chosen).array()
    directions = rng.standard_normal((K, len(rows))) @ rows
    empty = ~np.any(directions, axis=1)
    directions[empty] = rng.standard_normal((int(empty.sum()), X.n_inputs))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    # Each logit varies by about one over the samples; longer loadings than these would start out off in all of them.
    precision = 1.0 / (settings.noise_variance * settings.temperature)
    with np.errstate(divide="ignore"):
        lengths = np.minimum(1.0 / (precision * (rows @ directions.T).std(axis=0)), np.sqrt(2.0 / precision))
    return make_params(directions * lengths[:, None], np.full(K, 0.5), np.zeros(X.n_inputs), X, settings)


def make_params(loadings: Floats, shares: Floats, offset: Floats, X: Rows, settings: Settings) -> Params:
    """Return parameters with sticks and variances as if each feature were on in its share of the samples."""
    N, K = X.totals.n_rows, len(loadings)
    params = Params(
        loadings=loadings,
        offset=offset,
        variances=1.0 / (1.0 / settings.prior_variance + shares * N / settings.noise_variance),
        sticks=prior_sticks(settings.alpha, K),
        noise_variance=settings.noise_variance,
        prior_variance=settings.prior_variance,
        temperature=settings.temperature,
        n_sweeps=settings.n_sweeps,
        noise_ratios=settings.noise_ratios,
    )
    return settle_sticks(params, shares * N, N, settings.alpha)


def drop_empty(params: Params) -> Params:
    """Return the model without the features that have no loadings, unless none has."""
    kept = np.flatnonzero(np.any(params.loadings != 0.0, axis=1))
    return params if len(kept) == 0 else take_features(params, kept)


def take_features(params: Params, kept: Indices) -> Params:
    """Return the model of some features alone, their sticks as they are."""
    sticks = Sticks(params.sticks.first[kept], params.sticks.second[kept])
    return replace(params, loadings=params.loadings[kept], variances=params.variances[kept], sticks=sticks)


def settle_sticks(params: Params, counts: Floats, n_rows: float, alpha: float) -> Params:
    """Return the model with sticks that fit the number of samples that have each feature."""
    sticks = params.sticks
    for _ in range(STICK_UPDATES):
        sticks = update_sticks(sticks, counts, n_rows, alpha)
    return replace(params, sticks=sticks)


def pad(params: Params, n_components: int, alpha: float) -> Params:
    """Return the model with features without loadings behind its own, up to a number of them.

    Sticks depend on those before them alone: nothing changes for the other features.
    """
    missing = n_components - len(params.loadings)
    prior = prior_sticks(alpha, missing)
    return replace(
        params,
        loadings=np.vstack([params.loadings, np.zeros((missing, params.loadings.shape[1]))]),
        variances=np.concatenate([params.variances, np.full(missing, params.prior_variance)]),
        sticks=Sticks(
            np.concatenate([params.sticks.first, prior.first]), np.concatenate([params.sticks.second, prior.second])
        ),
    )
