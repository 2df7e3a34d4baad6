"""Initialization of iLSVM from target directions and principal directions.

It is deterministic and does not depend on the order of the samples. Directions are rotated to simple structure
(varimax). Each becomes a binary feature whose initial frequency follows from its skewness, or two real-valued features,
one per sign. If each input has its own noise variance, scores are rotated to independence instead.
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

STICK_UPDATES = 5  # majorize-minimize steps for new sticks
MAX_DENSE_INPUTS = 500  # number of columns up to which the full moment matrix is decomposed
MAX_ROTATIONS, ROTATION_TOL = 100, 1e-7  # maximum steps of a rotation, and 1 - cosine at convergence
DIRECTION_TOL = 1e-4  # relative accuracy of principal variances
MAX_FACTOR_STEPS, FACTOR_TOL = 50, 2e-3  # maximum steps and relative tolerance of a factor analysis
MIN_VARIANCE = 1e-3  # floor on the variance of whitened directions, relative to the mean variance
SOFT_SIGNAL = 10.0  # squared norm of a sample over the tempered noise variance, at the defaults 1 / (0.5 * 0.2)
RELATIVE_RIDGE = 1e-8  # ridge on correlations, in case columns are collinear


@dataclass(frozen=True)
class StructurePolicy:
    """Constants of the structure search that determine the features of a fit.

    Sources: [A] the ablation of the structure search on 36 tables and 10 simulated families; docs/decisions.md.
    """

    sample_rows: int = 4096  # samples used to learn the features; the final descent uses all
    extra_directions: float = 1.5  # directions below the soft temperature, relative to those above the noise edge [A]
    heat: float = 2.0  # temperature of a start below the soft one, relative to the final temperature [A]
    cooling: float = 0.7  # factor between two temperatures [A]
    short_steps: int = 8  # descent steps at each temperature, and after pruning [A]
    min_reach: float = 0.5  # share of a target direction within the principal ones above which it is not added
    first_steps: int = 100  # descent steps before pruning [A]
    tol: float = 1e-3  # gain of J per sample, in units of its loss, at which these descents stop
    min_gain: float = 4e-3  # minimum gain of J per sample from a feature, in the same units [A]
    max_error: float = 0.25  # maximum error of J where features are judged, relative to `min_gain`
    min_share: float = 0.05  # minimum initial share of samples that have a feature
    min_noise: float = 0.05  # minimum noise variance of an input relative to its variance, if estimated per input


POLICY = StructurePolicy()


def start(data: Data, settings: Settings, policy: StructurePolicy = POLICY) -> Params:
    """Initialize features from target directions and from principal directions above the noise edge.

    Binary features include target directions only if the principal directions do not span them.
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
        if is_number:  # both signs of an input, each on in half of the samples
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
    """Return unit target directions (n, D), and whether each has an opposite.

    For classes, these are the means of the whitened classes; for two classes and for each label, the difference of two
    means. For numbers, they are the inputs in decreasing order of explained variance. Outside the given directions,
    whitening uses the mean of the remaining variances.
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
    """Return unit-norm columns of weights whose sums over samples are target directions, shape (N, n).

    Three or more classes have one indicator each. Two classes share one centered column, and each label and number has
    its own. Constant columns are dropped.
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
    """Return the share of target variance that each input explains with a quadratic fit, shape (D,).

    Targets are the columns of `contrast_targets`. The fit is least squares on an input and its square.
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
    curved = fourth - second**2 / X.totals.n_rows - skew * third  # residual squares given the inputs
    is_curved = curved > np.sqrt(np.finfo(np.float64).eps) * fourth
    bent = np.where(is_curved, (square - skew * linear) ** 2 / np.where(is_curved, curved, 1.0), 0.0)
    return (linear**2 / np.maximum(second, floor) + bent).mean(axis=0)


def _real_valued(X: Rows, directions: Floats, settings: Settings) -> Params:
    """Return a real-valued feature for each direction, with equal lengths and frequencies."""
    directions = directions[: settings.n_components]
    lengths = np.maximum(np.linalg.norm(directions, axis=1, keepdims=True), np.finfo(np.float64).tiny)
    loadings = np.sqrt(settings.noise_variance * settings.temperature) * directions / lengths
    shares = np.full(len(loadings), settings.alpha / (settings.alpha + len(loadings)))
    return convert_params(make_params(loadings, shares, np.zeros(X.n_inputs), X, settings), settings)


def _start_per_input(X: Rows, settings: Settings, policy: StructurePolicy) -> Params:
    """Return binary features from independent scores of the samples, each thresholded to two values."""
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
    """Draw the samples used to learn the features; None: all of them.

    Sampling is stratified by whether samples are labeled; at least half of the drawn samples are labeled if possible.
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


# --- number of directions


def noise_edge(X: Rows) -> float:
    """Return the Marchenko-Pastur noise edge ``(1 + sqrt(D / N))^2``."""
    return float(1.0 + np.sqrt(X.n_inputs / X.totals.n_rows)) ** 2


def noise_level(variances: Floats, total: float, D: int, edge: float) -> float:
    """Return the mean variance along the directions below the noise edge, at least half of all D.

    ``variances`` are the largest ones in decreasing order, and ``total`` is the sum of all.
    """
    n, before, level = 0, -1, total / D
    while n > before:
        before, n = n, max(n, min(int(np.sum(variances > edge * level)), D // 2))
        level = (total - float(variances[:n].sum())) / (D - n)
    return level


def soft_temperature(X: Rows, noise_variance: float, ratios: Floats | None = None) -> float:
    """Return the temperature at which the squared norm of samples is ten times the tempered noise variance."""
    squares = X.totals.squares if ratios is None else X.totals.squares / ratios
    return max(1.0, float(squares.sum()) / X.totals.n_rows / (SOFT_SIGNAL * noise_variance))


def is_cold(X: Rows, settings: Settings) -> bool:
    """Return whether the temperature is below the soft temperature by more than rounding."""
    soft = soft_temperature(X, settings.noise_variance, settings.noise_ratios)
    return settings.temperature < (1.0 - 1e-6) * soft


def has_structure(data: Data) -> bool:
    """Return whether any principal or target direction is above the noise level.

    Inputs must have unit variance. Uncorrelated inputs have principal variances up to ``(1 + sqrt(D / N))^2``. Sums of
    whitened samples weighted by n independent orthonormal columns have singular values up to
    ``sqrt(D / N) + sqrt(n / N)`` over the root of N. For numbers, the threshold is the best of D quadratic fits by
    chance.
    """
    X = data.X.take(None)
    N, D = X.totals.n_rows, X.n_inputs
    correlations = X.moment(np.eye(D)) / N
    varying = np.diag(correlations) > np.finfo(np.float64).eps * np.diag(correlations).max()
    D = int(varying.sum())
    if D < 2:
        return True  # too small to estimate a noise level
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
    """Return the n largest eigenvalues of a symmetric matrix in decreasing order, and their directions (n, D).

    ``moment`` multiplies rows of vectors by the matrix, (m, D) -> (m, D). The result is equivariant to permutations.
    """
    begin = None if D <= MAX_DENSE_INPUTS or n >= D - 1 else moment(np.ones((1, D))) + 1.0
    if begin is None or not np.any(moment(begin)):  # or all samples are equal
        values, vectors = eigh(moment(np.eye(D)), subset_by_index=(D - n, D - 1))
    else:
        operator = LinearOperator((D, D), matvec=lambda v: moment(v.reshape(1, D))[0], dtype=np.float64)
        values, vectors = eigsh(operator, n, v0=begin[0], tol=DIRECTION_TOL)
    order = np.argsort(-values, kind="stable")
    return values[order], vectors[:, order].T


# --- from directions to features


def _rotate(n: int, slope: Callable[[Floats], Floats]) -> Floats:
    """Return the rotation (n, n) that maximizes a criterion with gradient ``slope``, by projected gradients."""
    rotation = np.eye(n)
    for _ in range(MAX_ROTATIONS):
        left, _, right = np.linalg.svd(slope(rotation))
        before, rotation = rotation, left @ right
        if 1.0 - np.abs(np.einsum("kj,kj->k", rotation, before)).min() < ROTATION_TOL:
            break
    return rotation


def varimax(loadings: Floats) -> Floats:
    """Rotate loadings (K, D) to simple structure with few inputs each (Kaiser 1958)."""

    def slope(rotation: Floats) -> Floats:
        turned = rotation @ loadings
        found: Floats = (turned**3 - turned * np.mean(turned**2, axis=1, keepdims=True)) @ loadings.T
        return found

    return _rotate(len(loadings), slope) @ loadings


def separate(X: Rows, loadings: Floats) -> Floats:
    """Rotate loadings (K, D) of uncorrelated scores so that the scores of the samples are independent.

    Maximizes the sum of ``skewness^2 / 12 + kurtosis^2 / 48`` (Hyvarinen 1999), which approximates the non-normality of
    scores. Binary features have nonzero skewness or kurtosis at any frequency.
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
    """Return the frequencies of binary features, at most one half, from the skewness of their scores.

    A feature with frequency p has variance ``p (1 - p)`` and skewness ``(1 - 2 p) / sqrt(p (1 - p))``.
    """
    return np.clip(0.5 * (1.0 - np.abs(skewness) / np.sqrt(skewness**2 + 4.0)), policy.min_share, 0.5)


def binary_loadings(X: Rows, loadings: Floats, policy: StructurePolicy = POLICY) -> tuple[Floats, Floats]:
    """Return sorted loadings and frequencies of binary features from scores."""
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
    """Return loadings, frequencies and offset by thresholding independent scores.

    The values are ``-sqrt(p / (1 - p))`` and ``sqrt((1 - p) / p)`` for the frequency p implied by the skewness. Fitting
    loadings to thresholded features avoids shrinkage by noise.
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
    """Return the settings with the noise variance of each input, estimated by factor analysis."""
    noise = analyze_noise(X, settings.n_components, policy)
    return settings.with_noise(float(np.exp(np.mean(np.log(noise)))), noise)


def analyze_noise(X: Rows, n_components: int, policy: StructurePolicy = POLICY) -> Floats:
    """Estimate the noise variance of each input by factor analysis, shape (D,).

    Iterates principal factors of the correlations in units of the current noise. The factors are those above the noise
    edge, at most as many as correlations identify (Ledermann 1937). Constant inputs get the geometric mean.
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
    shares = 1.0 / np.diag(np.linalg.inv(correlations + RELATIVE_RIDGE * np.eye(d)))  # unexplained by other inputs
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
    """Return random combinations of samples as features on in half of them, at least at the soft temperature."""
    if is_cold(X, settings):
        settings = replace(settings, temperature=soft_temperature(X, settings.noise_variance))
    chosen, K = rng.choice(len(X), min(len(X), n_rows), replace=False), settings.n_components
    rows = X.take(chosen).array()
    directions = rng.standard_normal((K, len(rows))) @ rows
    empty = ~np.any(directions, axis=1)
    directions[empty] = rng.standard_normal((int(empty.sum()), X.n_inputs))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    # Scale the logits to a standard deviation of about one; features with longer loadings would start off everywhere.
    precision = 1.0 / (settings.noise_variance * settings.temperature)
    with np.errstate(divide="ignore"):
        lengths = np.minimum(1.0 / (precision * (rows @ directions.T).std(axis=0)), np.sqrt(2.0 / precision))
    return make_params(directions * lengths[:, None], np.full(K, 0.5), np.zeros(X.n_inputs), X, settings)


def make_params(loadings: Floats, shares: Floats, offset: Floats, X: Rows, settings: Settings) -> Params:
    """Return parameters with sticks and variances for features with the given frequencies."""
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
    """Return the parameters of selected features, with their sticks unchanged."""
    sticks = Sticks(params.sticks.first[kept], params.sticks.second[kept])
    return replace(params, loadings=params.loadings[kept], variances=params.variances[kept], sticks=sticks)


def settle_sticks(params: Params, counts: Floats, n_rows: float, alpha: float) -> Params:
    """Return the parameters with sticks fitted to the number of samples that have each feature."""
    sticks = params.sticks
    for _ in range(STICK_UPDATES):
        sticks = update_sticks(sticks, counts, n_rows, alpha)
    return replace(params, sticks=sticks)
