"""Whether rows are sums of on/off features and noise, and how much noise each input has. No label is looked at.

A factor analysis says how much of each input is its own: noise, whatever the others have in common. If on/off features
leave hardly more of the rows than that, the rows are what the model says, and the model is taken at its word: noise of
each input's own size, no temperature, and a generative part that labels do not bend. Of rows that vary by degrees,
on/off features leave a sixth of the signal or more; independent scores are no start there.

Where few features are found (`Enumeration`), mean field gives way to the exact posterior of the rows, and the noise to
what these features leave of each input: two features that explain the same inputs are told apart by it. Where mean
field is far from it at the start (`are_tangled`), it does so before the rows are asked.

Where features with amounts may be had instead (`Settings.amounts`), independent scores of the rows are decided for one
of two values each, and rows whose signal that leaves much of vary by degrees (`decide_rows`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from regbayes._types import Flags, Floats
from regbayes.joint import descent
from regbayes.models.ilsvm.model import (
    EXACT,
    MOST_EXACT,
    UNLABELED,
    Data,
    HostRows,
    ILSVMProblem,
    Params,
    Rows,
    Settings,
    Stats,
    expected_residual,
)
from regbayes.models.ilsvm.warmup import (
    FEW_INPUTS,
    ROUNDING,
    Evaluation,
    Phase,
    Phases,
    Search,
    WarmUp,
    decide,
    initial_params,
    leading_directions,
    separate,
    settle_sticks,
)

FEWEST_INPUTS = 4  # whose noise can be told
ROWS_PER_INPUT = 5.0  # that tell it, at least
MOST_ROWS = 2000  # that are asked
ITERATIONS, SETTLED = 50, 2e-3  # of the factor analysis, and the change of a noise share at which it has settled
COUNT_EVERY = 5  # iterations between two counts of the factors
RIDGE = 1e-8  # on the correlations: inputs may be sums of others
LEAST_NOISE = 0.05  # of an input's variance, that features are looked for with: with less, sweeps end where they began
NO_NOISE = 1e-4  # of an input's variance: inputs may determine each other
LEAST_SIGNAL = 0.1  # of the noise: less is chance
STEPS = 6  # of descent before features are compared with the factors
HOPELESS = 0.3  # share of the signal left by a start that no descent makes good
LEFT = 0.08  # share of the signal that on/off features may leave
MISSED = 0.15  # the same where one feature more is looked for: the rarest may not stand out from the noise
SKEWED = 0.5  # skewness of what is left of an input, above which it is not noise alone
TWO_VALUED = 0.5  # share of the inputs that are on or off themselves, from which on what is left may be skewed
DENSER_LARGER = 0.09  # nats per row and feature by which on/off features have to beat as many factors after `MISSED`
DENSER = 0.05  # the same for features that mean field cannot tell apart
UNDECIDED = 0.1  # share of the probabilities between a tenth and nine tenths that there may be then
TAKEN = 0.04  # share of the signal that they may take from the noise: of inputs that are on or off it is taken whole
MOST_ENUMERATED = 8  # features whose posterior is exact in the end: a row has one of 256 states
TANGLED = 0.25  # nats per row between mean field and the posterior, above which it is exact from the start on
COMPARED_ROWS = 250  # by which that is told
ROUNDS, ROUND_STEPS, ROUND_TOL = 6, 8, 1e-3  # of descent under the exact posterior, with new noise before each
DENSITY_ROUNDS = 3  # the same before densities are compared
SETTLED_NOISE = 1e-2  # relative change of an input's noise at which the rounds end


def find_on_off(X: HostRows, settings: Settings) -> Settings:
    """Return the settings for rows that are sums of on/off features, with their noise, or that vary by degrees.

    Many inputs or very few, and few rows for each, tell neither; as many factors as can be told, or as there may be
    features, do not tell whether rows are such sums. Settings are as they were then.
    """
    D, asks = X.n_inputs, settings.on_off is not None or settings.amounts is not None
    if not asks or not FEWEST_INPUTS <= D <= FEW_INPUTS or X.totals.n_rows < ROWS_PER_INPUT * D:
        return settings
    some = X.take(slice(None, None, -(-len(X) // MOST_ROWS)))
    n_varying = int(find_varying(some.totals.squares).sum())
    if n_varying < FEWEST_INPUTS:
        return settings
    asked = settings if settings.on_off is None else _recognise(some, settings, n_varying)
    return _ask_for_amounts(some, settings, recognised=asked.noise_ratios is not None) or asked


def _recognise(X: HostRows, settings: Settings, n_varying: int) -> Settings:
    """Return the settings for rows that are sums of on/off features, or that are not, as far as factors tell."""
    noise, n_factors = analyse_noise(X, settings.n_components)
    if n_factors >= min(settings.n_components, count_factors(n_varying)):
        return settings
    variance = float(np.exp(np.mean(np.log(noise))))
    told = settings.with_noise(variance, noise / variance)
    start = initial_params(X, replace(told, temperature=1.0))[0]
    if are_tangled(X, start):
        told, start = replace(told, n_sweeps=EXACT), replace(start, n_sweeps=EXACT)
    if _are_explained(X, told, start):
        return told
    return replace(settings, by_degrees=True) if n_factors < n_varying // 2 else settings


def _ask_for_amounts(X: HostRows, settings: Settings, recognised: bool) -> Settings | None:
    """Return the settings of features with amounts, where they may be had and rows vary by degrees, or nothing.

    Rows do not vary by degrees if their decided scores leave little, or on/off features do (``recognised``: a rare one
    that does not stand out leaves some of the signal), and what is left is normal noise. What is left of inputs that
    are on or off themselves is not; they have on/off features if little is left.
    """
    if settings.amounts is None:
        return None
    rest = decide_rows(X)
    two_valued = find_two_valued(X.array())[find_varying(X.totals.squares)]
    leaves_little, is_noise = rest.share <= LEFT, rest.skewness <= SKEWED
    if (is_noise and recognised) or (leaves_little and (is_noise or two_valued.mean() >= TWO_VALUED)):
        return None
    return settings.amounts


def find_two_valued(columns: Floats) -> Flags:
    """Return which columns have no more than two values, shape (D,)."""
    return np.all((columns == columns.min(axis=0)) | (columns == columns.max(axis=0)), axis=0)


@dataclass(frozen=True)
class Rest:
    """What is left of rows when their independent scores are decided."""

    share: float  # of the signal, docs/math.md eq. (129)
    skewness: float  # of what is left of an input, its mean size: normal noise has none


def decide_rows(X: HostRows) -> Rest:
    """Decide independent scores of rows, each for one of two values, and say what that leaves of the rows.

    Scores of sums of on/off features have two values each: they leave hardly more than noise does, also where mean
    field cannot tell the features apart and where inputs are on or off themselves. Scores that vary by degrees lose a
    tenth of the signal or more. No feature is fitted, and how many there may be does not matter.
    """
    noise, n_factors = analyse_noise(X, X.n_inputs)
    own, _ = analyse_noise(X, n_factors, NO_NOISE)
    scaled, varies = X.scale(np.sqrt(noise)), find_varying(X.totals.squares)
    N, squares = scaled.totals.n_rows, float(scaled.totals.squares.sum())
    noises = N * float(np.sum((own / noise)[varies]))
    if squares < (1.0 + LEAST_SIGNAL) * noises:
        return Rest(0.0, 0.0)  # there is no signal that could be left
    moments, directions = leading_directions(scaled.moment, X.n_inputs, n_factors)
    factors = np.sqrt(np.maximum(moments / N, 0.0))[:, None] * directions
    found = decide(scaled, separate(scaled, factors))
    left = scaled.array()[:, varies] - found.features @ found.loadings[:, varies] - found.offset[varies]
    second, third = (scaled.weigh(left**power).sum(axis=0) / N for power in (2, 3))
    is_left = second > NO_NOISE * scaled.totals.squares[varies] / N  # less is rounding
    skewness = np.divide(third, second**1.5, out=np.zeros_like(third), where=is_left)
    return Rest((N * float(second.sum()) - noises) / (squares - noises), float(np.abs(skewness).mean()))


def are_tangled(X: HostRows, params: Params) -> bool:
    """Return whether mean field is far from the posterior of the rows, under parameters at a temperature of one.

    The bounds on the rows' densities differ by its divergence from the posterior. Features that all explain the same
    inputs, as nonnegative loadings do, are not told apart by sweeps; many cannot be enumerated.
    """
    if len(params.loadings) > MOST_EXACT:
        return False
    some = X.take(slice(None, None, -(-len(X) // COMPARED_ROWS)))
    apart = replace(params, n_sweeps=EXACT).bound(some) - params.bound(some)
    return float(some.weigh(apart[:, None]).sum()) > TANGLED * some.totals.n_rows


def find_varying(squares: Floats) -> Flags:
    """Return which inputs vary, by the sums of their squares or their variances, shape (D,)."""
    return squares > np.finfo(np.float64).eps * squares.max()


def count_factors(n_inputs: int) -> int:
    """Return how many factors are looked for at most: as many as correlations can tell from the inputs' own noise.

    More of them and the noise of each input are more numbers than there are correlations (Ledermann 1937). Of four
    inputs that is one factor, and two are looked for all the same, half as many as there are inputs.
    """
    return max(n_inputs // 2, int(0.5 * (2 * n_inputs + 1 - np.sqrt(8 * n_inputs + 1))))


def analyse_noise(X: HostRows, n_components: int, least: float = LEAST_NOISE) -> tuple[Floats, int]:
    """Return the noise variance of each input by a factor analysis, and the number of its factors.

    Principal factors of the correlations, in units of the noise of the last iteration; at first that is what the other
    inputs do not predict of an input, linearly, which is too much. Those count that vary by more than noise alone does
    (Marchenko and Pastur 1967), and no more than can be told (`count_factors`). Inputs that do not vary have the
    geometric mean of the others.

    Parameters
    ----------
    X : HostRows
    n_components : int
        Factors at most.
    least : float
        Share of an input's variance that is noise at least.

    Returns
    -------
    noise : array of shape (D,)
    n_factors : int
    """
    N, D = X.totals.n_rows, X.n_inputs
    moments = X.moment(np.eye(D)) / N
    varies = find_varying(np.diag(moments))
    spread = np.sqrt(np.diag(moments)[varies])
    correlations = moments[np.ix_(varies, varies)] / np.outer(spread, spread)
    d = len(correlations)
    edge, most = (1.0 + np.sqrt(d / N)) ** 2, max(1, min(n_components, count_factors(d)))
    shares = 1.0 / np.diag(np.linalg.inv(correlations + RIDGE * np.eye(d)))  # what the other inputs do not predict
    shares = np.clip(shares, least, 1.0)
    K = 0
    for iteration in range(ITERATIONS):
        scale = np.sqrt(shares)
        values, vectors = np.linalg.eigh(correlations / np.outer(scale, scale))
        if iteration % COUNT_EVERY == 0:
            K = int(np.clip(np.sum(values > edge), 1, most))
        explained = np.square(vectors[:, -K:]) @ np.maximum(values[-K:] - 1.0, 0.0)
        before, shares = shares, np.clip(1.0 - shares * explained, least, 1.0)
        if np.abs(shares - before).max() < SETTLED:
            break
    noise = np.full(D, np.exp(np.mean(np.log(shares * spread**2))))
    noise[varies] = shares * spread**2
    return noise, K


def _are_explained(X: HostRows, settings: Settings, start: Params) -> bool:
    """Return whether on/off features, at a temperature of one, leave hardly more of the rows than their noise."""
    unlabeled = Data(X, np.full(len(X), UNLABELED), np.ones(len(X)), np.zeros((1, 1)))
    problem = ILSVMProblem(unlabeled, replace(settings, temperature=1.0, C=0.0, generative_weight=1.0))
    search = descent.start(problem.joint, start)
    noise = settings.noise_variance * X.totals.n_rows * X.n_inputs

    def left(search: Search) -> float:
        residual = expected_residual(search.at.stats, search.at.params)
        return (residual - noise) / (search.at.stats.squared_norm - noise)

    if search.at.stats.squared_norm < (1.0 + LEAST_SIGNAL) * noise or left(search) > HOPELESS:
        return False
    search = _descend(problem, search, STEPS)
    told, least = noise_of_inputs(start), LEAST_NOISE * X.totals.squares / X.totals.n_rows
    if left(search) <= MISSED and np.any(told <= (1.0 + ROUNDING) * least):  # there may be less noise to leave
        own, _ = analyse_noise(X, settings.n_components, NO_NOISE)
        noise = X.totals.n_rows * float(np.sum(own / start.mean_field.ratios))
    if left(search) <= LEFT or len(search.at.params.loadings) >= MOST_ENUMERATED:
        # Sums of scores by degrees are sums of on/off features, too, where all of them explain the same inputs.
        is_left = -TAKEN <= left(search) <= LEFT
        return is_left and (start.n_sweeps != EXACT or _are_denser(problem, search, DENSER))
    if left(search) > MISSED:
        return False
    trial = next(Enumeration.of(problem, None, is_new=True).add_feature(search), None)
    if trial is None or not isinstance(trial.start, Params):
        return False  # there may be no more
    search = _descend(problem, descent.start(problem.joint, replace(trial.start, n_sweeps=EXACT)), STEPS)
    return _are_denser(problem, search, DENSER_LARGER, UNDECIDED)


def _are_denser(problem: ILSVMProblem, search: Search, gain: float, undecided: float = 1.0) -> bool:
    """Return whether rows are likelier under few on/off features than under as many factors, and features decided.

    Rows that vary by degrees can use one more on/off feature as well as others: what they leave of the rows does not
    tell then, but densities do (of the on/off features, their bound under the exact posterior).
    """
    X, alpha = problem.data.X.take(None), problem.settings.alpha
    for _ in range(DENSITY_ROUNDS):
        search = _descend(problem, descent.start(problem.joint, renew_noise(search.at, X, alpha)), STEPS)
    params = search.at.params
    psi, K = params.infer(X), len(params.loadings)
    weights = X.weigh(np.ones((len(X), 1)))[:, 0]
    certain = replace(params, variances=np.full(K, np.finfo(np.float64).tiny))  # loadings as they are, as the factors'
    gained = float(weights @ certain.bound(X)) / X.totals.n_rows - score_factors(X, noise_of_inputs(params), K)
    unsure = float(weights @ np.mean((psi > 0.1) & (psi < 0.9), axis=1)) / X.totals.n_rows
    return gained >= gain * K and unsure <= undecided


def score_factors(X: HostRows, noise: Floats, n_factors: int) -> float:
    """Return the mean log-density of rows under the factor analysis with so many factors; ``noise`` is a first guess.

    Its maximum likelihood is where the noise is what factors leave of each input (Joreskog 1967): principal factors in
    units of the noise, again and again.
    """
    D = X.n_inputs
    moments = X.moment(np.eye(D)) / X.totals.n_rows
    total, scored = np.diag(moments), -np.inf
    varies = find_varying(total)
    for _ in range(ITERATIONS):
        scale = np.sqrt(noise)
        values, vectors = np.linalg.eigh(moments / np.outer(scale, scale))
        factors, rest = np.maximum(values[-n_factors:], 1.0), values[:-n_factors]
        beyond = np.sum(values[-n_factors:] / factors)
        score = -0.5 * (np.sum(np.log(2.0 * np.pi * noise)) + np.sum(np.log(factors)) + beyond + rest.sum())
        scored = max(scored, float(score))
        explained = np.square(vectors[:, -n_factors:]) @ (factors - 1.0)
        noise = np.where(varies, np.clip(total - noise * explained, NO_NOISE * total, total), noise)
    return scored


def _descend(problem: ILSVMProblem, search: Search, n_steps: int) -> Search:
    """Take some steps."""
    for _ in range(n_steps):
        search = descent.step(problem.joint, search).state
    return search


class Enumeration(WarmUp):
    """The phases before the descent where rows are sums of on/off features: few features are inferred exactly."""

    add_feature = WarmUp._add_feature

    def run(self, starts: Sequence[Params], multipliers: Any, is_new: bool) -> Phases:
        """Go through the phases of any warm-up; then descend under the exact posterior, with new noise in rounds."""
        search = yield from super().run(starts, multipliers, is_new)
        params = search.at.params
        if not is_new or (len(params.loadings) > MOST_ENUMERATED and params.n_sweeps != EXACT):
            return search
        wanted = self.wanted  # features may have been judged at another temperature, and with another weight
        X, alpha = wanted.data.X, wanted.settings.alpha
        search = descent.start(wanted.joint, replace(params, n_sweeps=EXACT), search.at.warm_start)
        for _ in range(ROUNDS):
            at, params = search.at, renew_noise(search.at, X, alpha)
            before, noise = noise_of_inputs(at.params), noise_of_inputs(params)
            self.latest = search = yield Phase(wanted, params, ROUND_STEPS, ROUND_TOL, at.warm_start)
            if np.abs(noise / before - 1.0).max() < SETTLED_NOISE:
                break
        return search


def noise_of_inputs(params: Params) -> Floats:
    """Return the noise variance of each input, shape (D,)."""
    return params.noise_variance * (
        np.ones(params.loadings.shape[1]) if params.noise_ratios is None else params.noise_ratios
    )


def renew_noise(at: Evaluation, X: Rows, alpha: float) -> Params:
    """Return the model with the noise and the sticks that fit its features of the rows."""
    params, stats = at.params, at.stats
    params = update_noise(params, stats, X.combine(X.weigh(params.infer(X))), X.totals.squares)
    return settle_sticks(params, stats.counts, stats.n_rows, alpha)


def update_noise(params: Params, stats: Stats, cross: Floats, squares: Floats) -> Params:
    """Return the model with the noise of each input that minimises the objective at fixed features and loadings.

    The prior of the loadings and their variances are relative to it and stay so. Inputs that do not vary keep theirs.

    Parameters
    ----------
    params : Params
    stats : Stats
    cross : array of shape (K, D)
        Sum of ``E[z_n] x_n'``.
    squares : array of shape (D,)
        Sum of the squares of each input.
    """
    loadings, offset, ratio = params.loadings, params.offset, params.prior_variance / params.noise_variance
    explained = 2.0 * np.einsum("kd,kd->d", loadings, cross)
    products = np.einsum("kd,kd->d", loadings, stats.second_moment @ loadings)
    above = offset * (stats.n_rows * offset - 2.0 * (stats.total - stats.first_moment @ loadings))
    residuals = squares - explained + products + above + np.square(loadings).sum(axis=0) / ratio
    noise = np.maximum(residuals, NO_NOISE * squares) / stats.n_rows
    noise = np.where(find_varying(squares), noise, noise_of_inputs(params))
    variance = float(np.exp(np.mean(np.log(noise))))
    factor = variance / params.noise_variance
    return replace(
        params,
        noise_variance=variance,
        noise_ratios=noise / variance,
        prior_variance=factor * params.prior_variance,
        variances=factor * params.variances,
    )
