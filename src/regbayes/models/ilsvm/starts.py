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
from regbayes.engine import row_blocks
from regbayes.margins.targets import Classes, Numbers, Signs
from regbayes.models.ilsvm.model import Data, Params, Rows, Settings
from regbayes.models.ilsvm.slab import convert_params
from regbayes.models.indian_buffet import Sticks, prior_sticks, update_sticks

STICK_UPDATES = 5  # majorize-minimize steps of new sticks
MAX_DENSE_INPUTS = 500  # up to which eigenvectors come from the whole matrix of moments
MAX_ROTATIONS, ROTATION_TOL = 100, 1e-7  # steps of a rotation, and 1 less the cosine at which it has converged
DIRECTION_TOL = 1e-4  # relative accuracy of principal variances
MAX_FACTOR_STEPS, FACTOR_TOL = 50, 2e-3  # the same for the noise variances of a factor analysis
MIN_VARIANCE = 1e-3  # of whitened directions, relative to the mean variance
SOFT_SIGNAL = (
    10.0  # squared length of a sample over tempered noise, at the default noise and temperature: 1 / (0.5 * 0.2)
)
RELATIVE_RIDGE = 1e-8  # on correlations: an input may be a sum of others


@dataclass(frozen=True)
class StructurePolicy:
    """Decisions that change which features a fit returns.

    Sources: [A] the ablation of the structure search on 36 tables and 10 simulated families; docs/decisions.md.
    """

    sample_rows: int = 4096  # samples of which the features are learned; the final descent has all
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

    Binary features take the directions of classes and labels only where principal directions do not reach them.
    """
    X, scales = data.X.take(None), None
    if settings.per_input:
        return _start_per_input(X, settings, policy)
    is_soft = not settings.slab and not is_cold(X, settings)
    if settings.noise_ratios is not None:
        scales = np.sqrt(settings.noise_ratios)
        X = X.scale(scales)
    N, D = X.totals.n_rows, X.n_inputs
    moments, directions = leading_directions(X.moment, D, min(settings.n_components, D, len(X)))
    variances = np.maximum(moments / N, 0.0)
    noise, edge = settings.noise_variance, noise_edge(X)
    if is_soft:
        total = X.totals.mean_square
        noise = max(noise_level(variances, total, D, edge), policy.min_noise * total / D)
    n = max(1, int(np.sum(variances > noise * edge)))
    if not settings.slab and not is_soft:
        rank = int(np.sum(variances > np.sqrt(np.finfo(np.float64).eps) * variances[0]))
        n = max(1, min(round(policy.extra_directions * n), rank))
    factors = varimax(np.sqrt(variances[:n, None]) * directions[:n])
    towards, has_opposites = target_directions(data, X, variances, directions)
    if settings.slab:
        loadings, _ = binary_loadings(X, factors, policy)
        if settings.slab == "half-normal":
            loadings = np.vstack([loadings, -loadings])
            towards = _both_ways(towards) if has_opposites else towards
        params = _real_valued(X, np.vstack([towards, loadings]), settings)
    else:
        is_number = isinstance(data.targets, Numbers)
        if not is_number:
            towards = towards[np.square(towards @ directions[:n].T).sum(axis=1) < policy.min_reach]
        scores = X.project(towards)
        towards = np.sqrt(X.weigh(scores**2).sum(axis=0) / N)[:, None] * towards
        loadings, shares = binary_loadings(X, factors if is_number else np.vstack([towards, factors]), policy)
        if is_number:  # either way of an input, on in half of the samples
            towards = 2.0 * _both_ways(towards)
            loadings, shares = np.vstack([towards, loadings]), np.append(np.full(len(towards), 0.5), shares)
        loadings, shares = loadings[: settings.n_components], shares[: settings.n_components]
        params = make_params(loadings, shares, -shares @ loadings, X, settings)
    return (
        params if scales is None else replace(params, loadings=scales * params.loadings, offset=scales * params.offset)
    )


def _both_ways(directions: Floats) -> Floats:
    """Return each direction followed by its opposite, (2 n, D)."""
    return np.stack([directions, -directions], axis=1).reshape(-1, directions.shape[1])


def target_directions(data: Data, X: Rows, variances: Floats, directions: Floats) -> tuple[Floats, bool]:
    """Return directions of unit length in which the target varies, (n, D), and whether each has an opposite.

    For classes, the means of the whitened classes; for two classes and for each label, the difference of two means.
    For numbers, the inputs, in falling order of what they explain. Directions beyond the given ones, with their
    principal variances, have the mean of the remaining variances.
    """
    total, D, columns = X.totals.mean_square, X.n_inputs, contrast_targets(data)
    if columns.shape[1] == 0 or not total > 0.0:
        return np.empty((0, D)), False
    if isinstance(data.targets, Numbers):
        return np.eye(D)[np.argsort(-explained_by_inputs(X, columns), kind="stable")], True
    means = X.combine(columns)
    rest = max((total - float(variances.sum())) / max(D - len(variances), 1), MIN_VARIANCE * total / D)
    along = means @ directions.T
    means = (means - along @ directions) / np.sqrt(rest) + along / np.sqrt(np.maximum(variances, rest)) @ directions
    lengths = np.linalg.norm(means, axis=1, keepdims=True)
    found = lengths[:, 0] > 1e-12 * np.sqrt(X.totals.n_rows)
    return means[found] / lengths[found], isinstance(data.targets, Signs) or columns.shape[1] == 1


def contrast_targets(data: Data) -> Floats:
    """Return columns of weights whose sums of samples are directions of the target, (N, n), each of unit length.

    Three or more classes have an indicator each; two classes have one column, and each label and number too, less its
    mean. A column that does not vary is left out.
    """
    targets, labeled = data.targets, data.labeled
    if targets is None or len(labeled) == 0:
        return np.empty((len(data.X), 0))
    counts = (np.ones(len(data.X)) if data.X.weights is None else data.X.weights)[labeled, None]
    if isinstance(targets, Classes):
        known = np.unique(targets.labels)
        values, weights = (targets.labels[:, None] == known).astype(np.float64), counts * np.ones(len(known))
        values, weights = (values, weights) if len(known) > 2 else (values[:, :1], counts)
    else:
        given = targets.signs if isinstance(targets, Signs) else targets.values
        values, weights = given.astype(np.float64), counts * (targets.C > 0)
    if not isinstance(targets, Classes) or values.shape[1] == 1:
        total = np.maximum(weights.sum(axis=0), np.finfo(np.float64).tiny)
        values = values - (weights * values).sum(axis=0) / total
    lengths = np.sqrt((weights * values**2).sum(axis=0))
    varies = lengths > 0
    columns = np.zeros((len(data.X), int(varies.sum())))
    columns[labeled] = (weights * values)[:, varies] / lengths[varies]
    return columns


def explained_by_inputs(X: Rows, columns: Floats) -> Floats:
    """Return the share of the variance of targets that each input and its square explain together, (D,).

    Targets are the columns of `contrast_targets`. The share is that of least squares on one input and its square.
    """
    linear, square = np.zeros((2, columns.shape[1], X.n_inputs))
    second, third, fourth = np.zeros((3, X.n_inputs))
    for rows in row_blocks(len(X)):
        block = X.take(rows)
        x = block.array()
        linear += columns[rows].T @ x
        square += columns[rows].T @ x**2
        weighed = block.weigh(x)
        second, third, fourth = (
            moment + np.einsum("nd,nd->d", weighed, x**power)
            for moment, power in ((second, 1), (third, 2), (fourth, 3))
        )
    floor = np.finfo(np.float64).tiny
    skew = third / np.maximum(second, floor)
    curved = fourth - second**2 / X.totals.n_rows - skew * third  # of the squares less what inputs explain of them
    is_curved = curved > np.sqrt(np.finfo(np.float64).eps) * fourth
    bent = np.where(is_curved, (square - skew * linear) ** 2 / np.where(is_curved, curved, 1.0), 0.0)
    return (linear**2 / np.maximum(second, floor) + bent).mean(axis=0)


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


def sample_rows(data: Data, rng: np.random.Generator, policy: StructurePolicy = POLICY) -> Integers | None:
    """Draw the samples of which the features are learned; None: all of them.

    Labeled and unlabeled samples get their shares of the places, labeled ones at least half of them.
    """
    n_rows, labeled = len(data.X), data.labeled
    if n_rows <= 2 * policy.sample_rows:
        return None
    rest = np.setdiff1d(np.arange(n_rows), labeled)
    share = max(0.5, len(labeled) / n_rows) if len(labeled) else 0.0
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
    """Return the mean variance along the directions that do not stand out from it, at least half of all D.

    ``variances`` are the largest ones, falling, and ``total`` is the sum of all.
    """
    n, before, level = 0, -1, total / D
    while n > before:
        before, n = n, max(n, min(int(np.sum(variances > edge * level)), D // 2))
        level = (total - float(variances[:n].sum())) / (D - n)
    return level


def soft_temperature(X: Rows, noise_variance: float, ratios: Floats | None = None) -> float:
    """Return the temperature of soft features: samples have a squared length of ten in units of tempered noise."""
    squares = X.totals.squares if ratios is None else X.totals.squares / ratios
    return max(1.0, float(squares.sum()) / X.totals.n_rows / (SOFT_SIGNAL * noise_variance))


def is_cold(X: Rows, settings: Settings) -> bool:
    """Return whether features are to be colder than soft; rounding must not decide it."""
    soft = soft_temperature(X, settings.noise_variance, settings.noise_ratios)
    return settings.temperature < (1.0 - 1e-6) * soft


def has_structure(data: Data) -> bool:
    """Return whether any direction stands out from noise: one of the inputs, or one in which the target varies.

    Inputs have unit variance here. Uncorrelated ones have principal variances up to ``(1 + sqrt(D / N))^2``. Sums of
    whitened samples that are weighted by n orthonormal columns, independent of them, have singular values up to
    ``sqrt(D / N) + sqrt(n / N)`` over the root of N. For numbers, an input and its square may explain more than the
    best of D would by chance.
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
    columns = contrast_targets(data)
    if columns.shape[1] == 0:
        return False
    N = float(data.labeled.size if X.weights is None else X.weights[data.labeled].sum())
    if isinstance(data.targets, Numbers) and N * explained_by_inputs(X, columns).max() > 2.0 * np.log(20.0 * D):
        return True
    n_free = columns.shape[1] - int(isinstance(data.targets, Classes) and columns.shape[1] > 1)
    kept = values > np.finfo(np.float64).eps * D * values[-1]
    sums = X.combine(columns)[:, varying] / spread @ vectors[:, kept] / np.sqrt(N * values[kept])
    return bool(np.linalg.norm(sums, 2) > np.sqrt(D / N) + np.sqrt(n_free / N))


def leading_directions(moment: Callable[[Floats], Floats], D: int, n: int) -> tuple[Floats, Floats]:
    """Return the largest eigenvalues (n,) of a symmetric matrix, falling, and their directions (n, D).

    The matrix is given by its products with rows of vectors, (m, D) -> (m, D). Permuting inputs permutes the result.
    """
    begin = None if D <= MAX_DENSE_INPUTS or n >= D - 1 else moment(np.ones((1, D))) + 1.0
    if begin is None or not np.any(moment(begin)):  # the second for samples that are all the same
        values, vectors = eigh(moment(np.eye(D)), subset_by_index=(D - n, D - 1))
    else:
        operator = LinearOperator((D, D), matvec=lambda v: moment(v.reshape(1, D))[0], dtype=np.float64)
        values, vectors = eigsh(operator, n, v0=begin[0], tol=DIRECTION_TOL)
    order = np.argsort(-values, kind="stable")
    return values[order], vectors[:, order].T


# --- from directions to features


def _rotate(n: int, slope: Callable[[Floats], Floats]) -> Floats:
    """Return the rotation (n, n) that climbs to a maximum whose gradient is given, by projected gradients."""
    rotation = np.eye(n)
    for _ in range(MAX_ROTATIONS):
        left, _, right = np.linalg.svd(slope(rotation))
        before, rotation = rotation, left @ right
        if 1.0 - np.abs(np.einsum("kj,kj->k", rotation, before)).min() < ROTATION_TOL:
            break
    return rotation


def varimax(loadings: Floats) -> Floats:
    """Rotate loadings (K, D) so that each has few inputs (Kaiser 1958)."""

    def slope(rotation: Floats) -> Floats:
        turned = rotation @ loadings
        found: Floats = (turned**3 - turned * np.mean(turned**2, axis=1, keepdims=True)) @ loadings.T
        return found

    return _rotate(len(loadings), slope) @ loadings


def separate(X: Rows, loadings: Floats) -> Floats:
    """Rotate loadings (K, D) of uncorrelated scores so that the scores of the samples are independent of each other.

    Maximizes the sum of ``skewness^2 / 12 + kurtosis^2 / 48`` (Hyvarinen 1999), which approximates how far scores are
    from normal ones. Binary features have one or the other, whatever their share of the samples.
    """
    squares = np.einsum("kd,kd->k", loadings, loadings)
    if not np.all(squares > 0):
        return loadings
    scores = X.project(loadings / squares[:, None])
    weighed = X.weigh(scores) / X.totals.n_rows

    def slope(rotation: Floats) -> Floats:
        turned = scores @ rotation.T
        by_skewness = (turned**2).T @ weighed
        by_kurtosis = (turned**3).T @ weighed - 3.0 * rotation
        skewness, kurtosis = (np.einsum("kj,kj->k", by, rotation)[:, None] for by in (by_skewness, by_kurtosis))
        return skewness * by_skewness / 2.0 + kurtosis * by_kurtosis / 6.0

    return _rotate(len(loadings), slope) @ loadings


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
