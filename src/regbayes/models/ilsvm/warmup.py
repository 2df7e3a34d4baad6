"""The start of a fit, and the warm-up before the descent, which settles how many features there are.

A new fit starts from the principal directions of the rows that stand out from the noise, rotated so that each has few
inputs (varimax): they are the same for any order of the rows, and nearly the same for most of the rows. Then:

1. first steps; a start that is warmer than wanted is cooled down;
2. pruning: features whose absence the objective does not notice are taken out, one at a time;
3. growth: a feature is added where the rows and the margins ask for one, and kept if it is worth having; and so on.

Features are judged by the normalised objective, docs/math.md eq. (35): J itself cannot be compared between models with
different numbers of features. A fit that is interrupted here keeps what it has. The descent that follows has one
objective, which never rises.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, Self

import numpy as np
from scipy.linalg import eigh
from scipy.sparse.linalg import LinearOperator, eigsh

from regbayes._types import Flags, Floats, Indices, Integers
from regbayes.joint import descent
from regbayes.joint import problem as joint_problem
from regbayes.margins.head import Tolerance
from regbayes.models.ilsvm.model import (
    EXACT,
    MOST_EXACT,
    UNLABELED,
    BinaryFeatures,
    HostRows,
    ILSVMProblem,
    Params,
    Rows,
    Settings,
    Stats,
)
from regbayes.models.indian_buffet import Sticks, prior_sticks, update_sticks

Evaluation = joint_problem.Evaluation[Params, Stats]
Search = descent.Search[Params, Stats]

PRIOR_RATIO = 1 / 0.3  # prior variance of a loading, in noise variances
SIGNAL = 10.0  # mean squared length of rows in units of tempered noise where features are soft
EARLY_ROWS = 4096  # what the warm-up makes do with
START_ROWS = 1000  # whose combinations random loadings are
STICK_ROUNDS = 5  # majorise-minimise steps for the first sticks
ROUNDING = 1e-6  # soft features are the default: rounding must not decide whether there is anything to cool down
START_SPREAD = 1.0  # standard deviation of a random feature's logit over the rows
START_LENGTH = 2.0  # largest squared length of random loadings, in units of the tempered noise
RANK = 1e-10  # variance of a direction, relative to the largest, below which rows do not vary along it
FEW_INPUTS = 500  # up to which principal directions are taken from the whole matrix of moments
ROTATIONS, ROTATION_TOL = 100, 1e-4  # steps of a rotation at most, and the change at which it has settled
ROWS_PER_INPUT = 10.0  # that tell what an input shares with the others
CLEARLY_MORE = 1.25  # noise of an input, relative to the noise variance, for it to have its own
MORE = 1.5  # directions that a start may have, relative to those that stand out from the noise
RACE_STEPS = 10  # of descent, at the wanted temperature, after which rotations are compared
BETTER_ROTATION = 2e-2  # gain per row, in units of its loss, for which a rotation is taken that is not preferred, soft
LOWER_END = 1.5e-2  # share of the loss for which it is taken after its first steps, where the race was close
BETTER = 1e-2  # the same for more directions
RAREST = 0.05  # share of the rows that are taken to have a feature, at least, at the start

FIRST_STEPS = 40  # of descent before features are judged
TOL = 1e-3  # gain per row, in units of its loss, below which they are judged earlier
START_HEAT = 2.0  # temperature of a start, relative to the wanted one, where that is below soft
COOLING = 0.7  # factor between the temperatures of two phases
COOLING_STEPS = 8  # of descent in a phase
COOLING_TOL = 1e-4  # the same as TOL for cooling: what is not learned warm is not learned cold
WORTH = 2e-3  # what a feature must be worth per row, in units of its loss, to stay
BIRTH_WORTH = 4e-3  # the same for a new one where features are soft
TRIAL_STEPS = 8  # of descent that a model with one feature less gets before it is compared
TRIED = 2  # features that are put on trial for one to go
LOOKS = 8  # features that are ranked again after one has gone, at least, or half of those there are
BIRTH_STEPS = 24  # of descent that a new feature gets before it is judged
BIRTHS = 2  # directions that are tried for a new feature
LENGTHS = (0.25, 0.5, 1.0)  # of a new feature's loadings, relative to those of an on/off one
GLANCE = Tolerance(gap=1e-2, max_epochs=1.0)  # of the head where features are ranked


def soft_temperature(X: Rows, noise_variance: float, ratios: Floats | None = None) -> float:
    """Return the temperature at which rows have a squared length of `SIGNAL` on average, in units of tempered noise.

    Features are soft there and predict best.
    """
    squares = X.totals.squares if ratios is None else X.totals.squares / ratios
    return max(1.0, float(squares.sum()) / X.totals.n_rows / (SIGNAL * noise_variance))


def judging_temperature(X: Rows, settings: Settings) -> float:
    """Return the temperature at which the number of features is settled, no higher than the wanted one.

    At a temperature of one the objective's generative part is the bound on the evidence of the model itself, which asks
    for the features that rows have; above it features melt together. Soft features are judged as they are, for what
    they predict; the colder they are to be, the nearer to one.
    """
    wanted, soft = settings.temperature, soft_temperature(X, settings.noise_variance, settings.noise_ratios)
    return wanted if wanted > (1.0 - ROUNDING) * soft else min(wanted, max(1.0, wanted * np.sqrt(wanted / soft)))


def draw_early_rows(labels: Integers, rng: np.random.Generator) -> Integers | None:
    """Draw the rows for the warm-up of a fit, or None where it can have them all.

    Of rows with and without a label, each kind gets its share of the places, labelled rows at least half of them.
    """
    if len(labels) <= 2 * EARLY_ROWS:
        return None
    labeled, rest = np.flatnonzero(labels != UNLABELED), np.flatnonzero(labels == UNLABELED)
    share = max(0.5, len(labeled) / len(labels)) if len(labeled) else 0.0
    n_labeled = min(len(labeled), round(share * EARLY_ROWS))
    chosen = [rng.choice(labeled, n_labeled, replace=False), rng.choice(rest, EARLY_ROWS - n_labeled, replace=False)]
    return np.sort(np.concatenate(chosen))


# --- starts


def initial_params(X: HostRows, settings: Settings) -> list[Params]:
    """Return starts, those that are preferred first: principal directions as on/off features, and an offset to match.

    As many directions as stand out from the noise and, where features are colder than soft, half as many more; each
    number of them rotated so that each has few inputs, and so that the rows have independent scores. Of rows that are
    sums of on/off features (`on_off.find_on_off`) the scores alone are a start, of rows that are not the few inputs
    alone; both where that was not asked.
    """
    scales = np.ones(X.n_inputs)
    if settings.noise_ratios is not None:
        scales = np.sqrt(settings.noise_ratios)
        X = X.scale(scales)
    N, D = X.totals.n_rows, X.n_inputs
    most = min(settings.n_components, D, len(X))
    if settings.n_sweeps == EXACT:  # features that are to be enumerated stay few enough
        most = min(most, MOST_EXACT)
    moments, directions = leading_directions(X.moment, D, most)
    variances = np.maximum(moments / N, 0.0)
    soft = soft_temperature(X, settings.noise_variance)
    settings = replace(settings, temperature=judging_temperature(X, settings))
    warmer = max(settings.temperature, min(START_HEAT * settings.temperature, soft))
    is_cold = warmer > (1.0 + ROUNDING) * settings.temperature and settings.noise_ratios is None
    edge: float | Floats = find_noise_edge(X, settings.noise_variance)
    if is_cold:
        edge = edge * (directions**2 @ noise_ratios(X, settings.noise_variance))
    rank = max(1, int(np.sum(variances > RANK * variances[0])))
    n_clear = int(np.clip(np.sum(variances > edge), 1, rank))
    # Soft features melt together: they end as the same ones, however many there were.
    numbers = sorted({n_clear, min(round(MORE * n_clear), rank)}) if is_cold else [n_clear]
    warm = replace(settings, temperature=warmer) if is_cold else settings
    starts = []
    rotations: list[tuple[Callable[[Floats], Floats], Settings]] = []
    if settings.noise_ratios is None:
        rotations.append((varimax, warm))
    if not settings.by_degrees:  # independent scores are the features, where there are any: heat would melt them
        rotations.append((partial(separate, X), settings))
    for n in numbers:
        for rotate, heated in rotations:
            rotated = rotate(np.sqrt(variances[:n, None]) * directions[:n])
            if settings.noise_ratios is None:
                loadings, shares = on_off(X, rotated)
                offset = -shares @ loadings
            else:
                decided = decide(X, rotated)
                loadings, shares, offset = decided.loadings, decided.shares, decided.offset
            starts.append(make_params(scales * loadings, shares, scales * offset, X, heated))
    return starts


def find_noise_edge(X: Rows, noise_variance: float) -> float:
    """Return by how much rows vary at most along a direction that is noise alone (Marchenko and Pastur 1967)."""
    return noise_variance * float(1.0 + np.sqrt(X.n_inputs / X.totals.n_rows)) ** 2


def make_params(loadings: Floats, shares: Floats, offset: Floats, X: Rows, settings: Settings) -> Params:
    """Return parameters with sticks and variances as if each feature were on in its share of the rows."""
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


def noise_ratios(X: Rows, noise_variance: float) -> Floats:
    """Return the noise of each input, relative to the noise variance, where it is clearly more; else one; shape (D,).

    What the other inputs do not predict of an input, linearly, is its own: noise, as long as it is no larger a share of
    its variance than in all of them. Many inputs, or few rows, do not tell.
    """
    N, D = X.totals.n_rows, X.n_inputs
    if D > FEW_INPUTS or N < ROWS_PER_INPUT * D:
        return np.ones(D)
    moments = X.combine(X.weigh(X.project(np.eye(D)))) / (N - D)
    total = np.diag(moments)
    if not np.any(total > 0):
        return np.ones(D)
    ridge = RANK * total.mean() * np.eye(D)
    own = 1.0 / np.diag(np.linalg.inv(moments + ridge))
    ratios = np.minimum(own / noise_variance, total / total.mean())
    return np.where(ratios > CLEARLY_MORE, ratios, 1.0)


def leading_directions(moment: Callable[[Floats], Floats], D: int, n: int) -> tuple[Floats, Floats]:
    """Return the largest eigenvalues (n,) of a symmetric matrix, falling, and their directions (n, D).

    The matrix is given by its products with rows of vectors, (m, D) -> (m, D). Permuting inputs permutes the result.
    """
    start = None if D <= FEW_INPUTS or n >= D - 1 else moment(np.ones((1, D))) + 1.0
    if start is None or not np.any(moment(start)):  # the second of rows that are all the same
        values, vectors = eigh(moment(np.eye(D)), subset_by_index=(D - n, D - 1))
    else:
        operator = LinearOperator((D, D), matvec=lambda v: moment(v.reshape(1, D))[0], dtype=np.float64)
        values, vectors = eigsh(operator, n, v0=start[0], tol=1e-4)
    order = np.argsort(-values, kind="stable")
    return values[order], vectors[:, order].T


def varimax(loadings: Floats) -> Floats:
    """Rotate loadings (K, D) so that each has few inputs (Kaiser 1958), by projected gradients on the rotations."""
    rotation = np.eye(len(loadings))
    for _ in range(ROTATIONS):
        turned = rotation @ loadings
        slope = (turned**3 - turned * np.mean(turned**2, axis=1, keepdims=True)) @ loadings.T
        left, _, right = np.linalg.svd(slope)
        before, rotation = rotation, left @ right
        if np.abs(rotation - before).max() < ROTATION_TOL:
            break
    return rotation @ loadings


def separate(X: Rows, loadings: Floats) -> Floats:
    """Rotate loadings (K, D) of uncorrelated scores so that the scores of the rows are independent of each other.

    Fixed-point steps (Hyvarinen 1999) on the sum of ``skewness^2 / 12 + kurtosis^2 / 48``, which approximates how far
    scores are from normal ones. On/off features have one or the other, whatever their share of the rows.
    """
    squares = np.einsum("kd,kd->k", loadings, loadings)
    if not np.all(squares > 0):
        return loadings
    scores = X.project(loadings / squares[:, None])
    weighed = X.weigh(scores) / X.totals.n_rows
    rotation = np.eye(len(loadings))
    for _ in range(ROTATIONS):
        turned = scores @ rotation.T
        squared = turned * turned
        by_skewness = squared.T @ weighed
        squared *= turned
        by_kurtosis = squared.T @ weighed - 3.0 * rotation
        skewness = np.einsum("kj,kj->k", by_skewness, rotation)
        kurtosis = np.einsum("kj,kj->k", by_kurtosis, rotation)
        slope = 0.5 * skewness[:, None] * by_skewness + kurtosis[:, None] / 6.0 * by_kurtosis
        left, _, right = np.linalg.svd(slope)
        before, rotation = rotation, left @ right
        if np.abs(np.abs(np.einsum("kj,kj->k", rotation, before)) - 1.0).max() < ROTATION_TOL:
            break
    return rotation @ loadings


def on_off(X: Rows, loadings: Floats) -> tuple[Floats, Floats]:
    """Turn loadings of scores of unit variance into those of on/off features, the largest first.

    A feature that is on in a share p of the rows varies by ``p (1 - p)``, with a skewness of
    ``(1 - 2 p) / sqrt(p (1 - p))``: that of the rows along a direction says how rare it is, and which side of it is on.

    Returns
    -------
    loadings : array of shape (K, D)
    shares : array of shape (K,)
        Of the rows that have each feature.
    """
    squares = np.einsum("kd,kd->k", loadings, loadings)
    order = np.argsort(-squares, kind="stable")
    loadings = loadings[order]
    scores = X.project(loadings)
    spread = np.sqrt(np.mean(X.weigh(scores**2), axis=0) * len(X) / X.totals.n_rows)
    third = np.mean(X.weigh(scores**3), axis=0) * len(X) / X.totals.n_rows
    skewness = np.divide(third, spread**3, out=np.zeros_like(third), where=spread > 0)
    shares = np.clip(0.5 * (1.0 - np.abs(skewness) / np.sqrt(skewness**2 + 4.0)), RAREST, 0.5)
    signs = np.where(skewness < 0, -1.0, 1.0)
    return loadings * (signs / np.sqrt(shares * (1.0 - shares)))[:, None], shares


@dataclass(frozen=True)
class Decided:
    """On/off features of rows whose scores are decided, and the least squares of the rows on them."""

    features: Flags  # (N, K): whether rows have them
    shares: Floats  # (K,): of the rows that have each
    loadings: Floats  # (K, D), the largest first
    offset: Floats  # (D,)


def decide(X: Rows, loadings: Floats) -> Decided:
    """Turn loadings of independent scores into those of on/off features, by deciding every score.

    A score of a feature that is on in a share p of the rows, as its skewness says (`on_off`), has two values,
    ``-sqrt(p / (1 - p))`` and ``sqrt((1 - p) / p)``; nearer to the second, the feature is on. Least squares on features
    that are decided have what moments of scores have not: loadings that noise does not shorten, all at once.
    """
    squares = np.einsum("kd,kd->k", loadings, loadings)
    loadings = loadings[np.argsort(-squares, kind="stable")]
    N, inverse = X.totals.n_rows, np.asarray(np.linalg.pinv(loadings), dtype=np.float64)
    scores = X.project(inverse.T)
    skewness = X.weigh(scores**3).sum(axis=0) / N
    shares = np.clip(0.5 * (1.0 - np.abs(skewness) / np.sqrt(skewness**2 + 4.0)), RAREST, 0.5)
    middle = (0.5 - shares) / np.sqrt(shares * (1.0 - shares))
    features = np.where(skewness < 0, -scores, scores) > middle
    decided = np.column_stack([features, np.ones(len(scores))])
    weighed = X.weigh(decided)
    found: Floats = np.linalg.lstsq(decided.T @ weighed, X.combine(weighed), rcond=None)[0].astype(np.float64)
    return Decided(features, weighed[:, :-1].sum(axis=0) / N, found[:-1], found[-1])


def random_loadings(X: Rows, settings: Settings, rng: np.random.Generator) -> Floats:
    """Random combinations of rows, scaled so that every feature's logit varies by about one over the rows."""
    some = rng.choice(len(X), min(len(X), START_ROWS), replace=False)
    n, K = len(some), settings.n_components
    rows = X.take(some).array()
    directions = rng.standard_normal((K, n)) @ rows / np.sqrt(n)
    lengths = np.linalg.norm(directions, axis=1, keepdims=True)
    empty = lengths[:, 0] == 0
    directions[empty] = rng.standard_normal((int(empty.sum()), X.n_inputs))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    spread = (rows @ directions.T).std(axis=0)
    precision = 1.0 / (settings.noise_variance * settings.temperature)
    # Half the squared length is what a feature has against it: longer ones would start out off in all rows.
    longest = np.sqrt(START_LENGTH / precision)
    with np.errstate(divide="ignore"):
        lengths = np.minimum(START_SPREAD / (precision * spread), longest)
    return directions * lengths[:, None]


def random_params(X: Rows, settings: Settings, rng: np.random.Generator) -> Params:
    """Random loadings of as many features as there may be, each on in half of the rows, never colder than soft."""
    soft = soft_temperature(X, settings.noise_variance)
    if soft > (1.0 + ROUNDING) * settings.temperature:
        settings = replace(settings, temperature=soft)
    loadings = random_loadings(X, settings, rng)
    return make_params(loadings, np.full(len(loadings), 0.5), np.zeros(X.n_inputs), X, settings)


# --- the warm-up


@dataclass(frozen=True, eq=False)
class NoisyInputs:
    """Inputs that have more noise than the model says, M of them."""

    inputs: HostRows  # (N, M)
    columns: Integers  # (M,)
    excess: Floats  # (M,): share of what is left of them that noise of their own size would not cost

    @classmethod
    def of(cls, X: Rows, noise_variance: float) -> NoisyInputs | None:
        """Return those of some rows, or None."""
        ratios = noise_ratios(X, noise_variance)
        columns = np.flatnonzero(ratios > 1.0)
        if len(columns) == 0:
            return None
        centred = X.project(np.eye(X.n_inputs)[columns])
        return cls(HostRows(centred, np.zeros(len(columns)), X.weights), columns, 1.0 - 1.0 / ratios[columns])

    def expected_residuals(self, psi: Floats, at: Evaluation) -> Floats:
        """``sum_n E(x_nd - b_d - W_d' z_n)^2`` for each of the inputs, docs/math.md eq. (25), shape (M,)."""
        params, stats, inputs = at.params, at.stats, self.inputs
        loadings, offset = params.loadings[:, self.columns], params.offset[self.columns]
        explained = np.einsum("kd,kd->d", loadings, inputs.combine(inputs.weigh(psi)))
        products = np.einsum("kd,kd->d", loadings, stats.second_moment @ loadings)
        spread = float(np.diag(stats.second_moment) @ params.variances)
        left = inputs.totals.rows - stats.first_moment @ loadings
        squares = inputs.totals.squares - 2.0 * explained + products + spread
        return squares + offset * (stats.n_rows * offset - 2.0 * left)


@dataclass(frozen=True)
class Phase:
    """Some steps of descent on one objective, fewer if they gain little."""

    problem: ILSVMProblem
    start: Params | Search  # where they begin, or go on
    n_steps: int
    tol: float  # gain per row, in units of its loss, below which they end
    warm_start: Any = None  # of the head, at parameters
    keep: Search | None = None  # what is kept where the fit is cut short, for a model on trial is given up then


Phases = Generator[Phase, Search, Search]  # gives phases to whoever makes them, and hears where each of them ended


def change_temperature(problem: ILSVMProblem, temperature: float) -> ILSVMProblem:
    """Return a problem at a temperature that may not be the final one.

    The generative part is divided by the temperature; on the way its weight is larger by the square root of it.
    """
    settings = problem.settings
    weight = settings.generative_weight * float(np.sqrt(temperature / settings.temperature))
    settings = replace(settings, temperature=temperature, generative_weight=weight)
    return ILSVMProblem(problem.data, settings, like=problem)


@dataclass
class WarmUp:
    """The phases before the descent, on the rows that they are content with.

    Parameters
    ----------
    wanted : ILSVMProblem
        At the wanted temperature.
    problem : ILSVMProblem
        At the temperature at which features are judged.
    share : float
        Of all rows that these are: what features are worth grows with the rows, their price does not.
    spread : float
        How far apart objectives are, relative to those of soft features: the generative part is divided by T.
    noisy : NoisyInputs or None
        The inputs that have more noise than the model says, for features that are colder than soft.
    """

    wanted: ILSVMProblem
    problem: ILSVMProblem
    share: float
    spread: float = 1.0
    noisy: NoisyInputs | None = None
    worth: ClassVar[float] = WORTH
    latest: Search | None = field(default=None, init=False)  # the model, as far as it has got

    @classmethod
    def of(cls, problem: ILSVMProblem, early_rows: Integers | None, is_new: bool) -> Self:
        """Return the warm-up of a new fit, on some of its rows where these are given; or of an earlier one, on all."""
        # Variances estimated while the features are still warm put everything down to noise, and no feature is left.
        fixed = replace(problem.settings, estimate_noise=False, estimate_prior=False)
        data = problem.data.take(early_rows) if is_new else problem.data
        X, like = data.X, problem if data is problem.data else None
        wanted = judging = ILSVMProblem(data, fixed, problem.features, like)
        share = X.totals.n_rows / problem.data.X.totals.n_rows
        if fixed.slab or not is_new:
            return cls(wanted, wanted, share)
        T, soft = judging_temperature(X, fixed), soft_temperature(X, fixed.noise_variance, fixed.noise_ratios)
        if fixed.temperature > T:
            judging = change_temperature(wanted, T)
        noisy = None
        if fixed.noise_ratios is None and (1.0 - ROUNDING) * soft >= T:
            noisy = NoisyInputs.of(X, fixed.noise_variance)
        return cls(wanted, judging, share, float(np.sqrt(max(1.0, soft / T))), noisy)

    def run(self, starts: Sequence[Params], multipliers: Any, is_new: bool) -> Phases:
        """Go through the phases; an earlier fit had its first steps and its features were judged: it is cooled only."""
        if not is_new:
            return (yield from self._cool(starts[0], multipliers))
        # Take out features that are not worth having, then add some while they are.
        search = self.latest = yield from self._choose_start(starts)
        search = yield from self._prune(search)
        before = len(search.at.params.loadings)
        while (larger := (yield from self._add_feature(search))) is not None:
            search = self.latest = larger
        if len(search.at.params.loadings) > before:
            search = yield from self._prune(search)
        if self.problem is not self.wanted:
            params = replace(search.at.params, temperature=self.wanted.settings.temperature)
            search = descent.start(self.wanted.joint, params, search.at.warm_start)
        return search

    def _choose_start(self, starts: Sequence[Params]) -> Phases:
        """Return the best start after its first steps: the rotation is decided first, then the number of directions.

        The first steps of a start that is warmer than wanted are taken at its temperature, and then it is cooled down.
        """
        wanted, K = self.problem.settings.temperature, len(starts[0].loadings)
        n_rotations = 1
        while n_rotations < len(starts) and len(starts[n_rotations].loadings) == K:
            n_rotations += 1
        kind, raced = 0, None
        if n_rotations > 1:
            kind, raced = yield from self._race(starts[:n_rotations])
        best: Search | None = None
        for start in starts[kind::n_rotations]:
            problem = change_temperature(self.problem, max(start.temperature, wanted))
            trial, raced = raced, None
            if trial is None or problem.settings.temperature > wanted:
                begin = replace(start, temperature=problem.settings.temperature)
                trial = yield Phase(problem, begin, FIRST_STEPS, TOL, keep=best)
            if best is None:
                self.latest = trial
            trial = yield from self._cool(trial.at.params, trial.at.warm_start, trial, best)
            if best is None or self._judge(trial.at) < self._judge(best.at) - BETTER * self.spread * self.problem.unit:
                best = trial
        assert best is not None
        return best

    def _race(self, starts: Sequence[Params]) -> Generator[Phase, Search, tuple[int, Search]]:
        """Return which rotation to take, the first unless another is ahead, and how far its first steps came.

        A few steps tell apart rotations that end far from each other; many would bring them together. Where a few do
        not tell, all take their first steps, and the end counts. A start that is to be heated has its own to take.
        """
        problem, runners = self.problem, list[Search]()
        for start in starts:
            cold = replace(start, temperature=problem.settings.temperature)
            runners.append((yield Phase(problem, cold, RACE_STEPS, TOL, keep=self.latest)))
            self.latest = runners[0]
        values = np.array([self._judge(runner.at) for runner in runners])
        far = BETTER_ROTATION * self.spread * problem.unit
        kind = int(np.argmax(values <= values.min() + far))
        if starts[kind].temperature > problem.settings.temperature:
            return kind, runners[kind]
        if np.ptp(values) > far:
            return kind, (yield Phase(problem, runners[kind], FIRST_STEPS - runners[kind].n_steps, TOL))
        kind, runners = yield from self._go_on(runners, TOL)
        # One that gains little by little is behind where it has stopped: it has to be so after all first steps as well.
        if kind > 0 and (yield from self._go_on(runners, 0.0))[0] == 0:
            kind = 0
        return kind, runners[kind]

    def _go_on(self, runners: Sequence[Search], tol: float) -> Generator[Phase, Search, tuple[int, list[Search]]]:
        """Let all take their first steps; return which to take, the first unless another ends lower, and the ends."""
        ends: list[Search] = []
        for runner in runners:
            keep = ends[0] if ends else None
            ends.append((yield Phase(self.problem, runner, FIRST_STEPS - runner.n_steps, tol, keep=keep)))
        values = np.array([self._judge(end.at) for end in ends])
        # Less what the units of the inputs add to every objective: a share of that would mean nothing.
        settings, totals = self.problem.settings, self.problem.data.X.totals
        units = 0.5 * totals.n_rows * len(totals.rows) * np.log(2.0 * np.pi * settings.noise_variance)
        loss = values.min() - settings.generative_weight / settings.temperature * units
        return int(np.argmax(values <= values.min() + LOWER_END * abs(loss))), ends

    def _cool(
        self, params: Params, multipliers: Any, search: Search | None = None, keep: Search | None = None
    ) -> Phases:
        """Lower the temperature to the wanted one in phases; a model that is there is returned as it came."""
        wanted = self.problem.settings.temperature
        while params.temperature > wanted or search is None:
            problem = change_temperature(self.problem, max(COOLING * params.temperature, wanted))
            cooler = replace(params, temperature=problem.settings.temperature)
            search = yield Phase(problem, cooler, COOLING_STEPS, COOLING_TOL, multipliers, keep)
            if keep is None:
                self.latest = search
            params, multipliers = search.at.params, search.at.warm_start
        return search

    def _judge(self, at: Evaluation) -> float:
        """Return the normalised objective; of some rows, as large as their share in that of all of them."""
        model = self.problem.joint.model
        assert isinstance(model, BinaryFeatures)
        price = at.terms["kl_loadings"] + at.terms["kl_sticks"]
        value = model.normalise(at.objective, at.params, at.stats.n_rows) - (1.0 - self.share) * price
        noisy, params = self.noisy, at.params
        if noisy is None:
            return value
        # By the objective alone a feature would be worth having that explains nothing but the noise of an input.
        left = noisy.expected_residuals(params.infer(self.problem.data.X), at)
        return value - 0.5 * model.weight * params.mean_field.precision * float(noisy.excess @ left)

    def _prune(self, search: Search) -> Phases:
        """Take out features that are not worth having, in turn those whose absence seems to matter least.

        Where the objective is lower without several of them, each taken out alone, half of these go at once. After a
        feature has gone, those that seemed to matter least are looked at again; all of them before the end.
        """
        rises: Floats | None = None  # of the objective without each feature, where it was looked at earlier
        failed: list[int] = []  # trials since a feature has gone
        while len(search.at.params.loadings) > 1:
            at, K = search.at, len(search.at.params.loadings)
            value = self._judge(at)
            looked = np.arange(K) if rises is None else np.argsort(rises, kind="stable")[: max(LOOKS, K // 2)]
            judged = np.empty(K) if rises is None else value + rises
            for k in looked:
                seen = self.problem.joint.evaluate(self._without(at, [k]), at.warm_start, GLANCE)[0]
                judged[k] = self._judge(seen)
            order = np.argsort(judged, kind="stable")
            n_clear = int(np.sum(judged <= value))
            together = [order[: n_clear // 2]] if n_clear > 3 and not failed else []
            least = order[:TRIED]
            for leaving in [*together, *least[~np.isin(least, failed), None]]:
                smaller = self._without(at, leaving)
                trial = yield Phase(self.problem, smaller, TRIAL_STEPS, TOL, at.warm_start, keep=search)
                if self._judge(trial.at) <= min(
                    value + self.worth * self.problem.unit, judged[leaving[0]] if len(leaving) > 1 else np.inf
                ):
                    search = self.latest = trial
                    rises, failed = np.delete(judged - value, leaving), []
                    break
                failed += [int(leaving[0])] if len(leaving) == 1 else []
            else:
                if len(looked) == K:
                    return search
                rises = None
        return search

    def _without(self, at: Evaluation, leaving: Sequence[int] | Indices) -> Params:
        """Return the model without some features; the offset has what they gave to the rows on average."""
        params, stats = at.params, at.stats
        kept = np.delete(np.arange(len(params.loadings)), leaving)
        offset = params.offset + stats.first_moment[leaving] / stats.n_rows @ params.loadings[leaving]
        smaller = replace(take_features(params, kept), offset=offset)
        return settle_sticks(smaller, stats.counts[kept], stats.n_rows, self.problem.settings.alpha)

    def _add_feature(self, search: Search) -> Generator[Phase, Search, Search | None]:
        """Return the model with one more feature that is worth having, or None."""
        at, most = search.at, self.problem.settings.n_components
        if len(at.params.loadings) >= (most if at.params.n_sweeps != EXACT else min(most, MOST_EXACT)):
            return None
        # New features that are colder than soft learn labels by heart: they have to be worth more, and that in X.
        worth = BIRTH_WORTH * self.problem.unit * self.spread ** (1 if self.problem.head is None else 2)
        by_heart = 1.0 - 1.0 / self.spread**2  # share of what margins gain
        for direction in self._ask_for_features(at):
            best, lowest = at.params, np.inf
            for larger in self._with(at, direction):
                value = self._judge(self.problem.joint.evaluate(larger, at.warm_start, GLANCE)[0])
                if value < lowest:
                    best, lowest = larger, value
            trial = yield Phase(self.problem, best, BIRTH_STEPS, TOL, at.warm_start, keep=search)
            gained = self._judge(at) - self._judge(trial.at)
            by_margins = at.head.value - trial.at.head.value if at.head and trial.at.head else 0.0
            if gained - by_heart * by_margins >= worth:
                return trial
        return None

    def _ask_for_features(self, at: Evaluation) -> Floats:
        """Return directions in which a small feature would lower the objective most, docs/math.md eq. (36), (n, D).

        They are those of the inputs in units of their noise.
        """
        data, params, r = self.problem.data, at.params, self.problem.settings.generative_weight
        # What the model leaves of the rows is X less these features times what they say, the offset among them.
        features = np.hstack([params.infer(data.X), np.ones((len(data.X), 1))])
        said, scales = np.vstack([params.loadings, params.offset]), np.sqrt(params.mean_field.ratios)
        multipliers = np.zeros((len(data.X), 1))
        phi: Floats | None = None if at.head is None else at.head.multipliers
        if phi is not None:
            multipliers = np.zeros((len(data.X), phi.shape[1]))
            multipliers[data.labeled] = phi - phi.mean(axis=0)
        margins = data.X.combine(multipliers) - (multipliers.T @ features) @ said

        def moment(V: Floats) -> Floats:
            V = V / scales
            left = data.X.weigh(data.X.project(V) - features @ (said @ V.T))
            explained = data.X.combine(left) - (left.T @ features) @ said
            return (r * explained + 0.25 * (V @ margins.T) @ margins) / scales

        n_tried = min(BIRTHS, data.X.n_inputs)
        return leading_directions(moment, data.X.n_inputs, n_tried)[1]

    def _with(self, at: Evaluation, direction: Floats) -> list[Params]:
        """Return models with one more feature behind the others, along what they leave of the rows, of all lengths."""
        params, X, alpha = at.params, self.problem.data.X, self.problem.settings.alpha
        scales = np.sqrt(params.mean_field.ratios)
        along = direction / scales
        left = X.project(along[None, :])[:, 0] - along @ params.offset
        left -= params.infer(X) @ (params.loadings @ along)
        score = HostRows.centre(left[:, None], weights=X.weights)
        spread = np.sqrt(score.totals.mean_square)
        loading, share = on_off(score, np.full((1, 1), spread))
        counts = np.append(at.stats.counts, share * at.stats.n_rows)
        variance = 1.0 / (1.0 / params.prior_variance + counts[-1] / params.noise_variance)
        room, found = pad(params, len(params.loadings) + 1, alpha), []
        for length in LENGTHS:
            new = length * loading[0, 0] * (direction * scales)
            larger = replace(
                room,
                loadings=np.vstack([params.loadings, new]),
                offset=params.offset - share[0] * new,
                variances=np.append(params.variances, variance),
            )
            found.append(settle_sticks(larger, counts, at.stats.n_rows, alpha))
        return found


def drop_empty(params: Params) -> Params:
    """Return the model without the features that an earlier fit left out, unless it left out all."""
    kept = np.flatnonzero(np.any(params.loadings != 0.0, axis=1))
    return params if len(kept) == 0 else take_features(params, kept)


def take_features(params: Params, kept: Indices) -> Params:
    """Return the model of some features alone, their sticks as they are."""
    sticks = Sticks(params.sticks.first[kept], params.sticks.second[kept])
    return replace(params, loadings=params.loadings[kept], variances=params.variances[kept], sticks=sticks)


def settle_sticks(params: Params, counts: Floats, n_rows: float, alpha: float) -> Params:
    """Return the model with sticks that fit the number of rows that have each feature."""
    sticks = params.sticks
    for _ in range(STICK_ROUNDS):
        sticks = update_sticks(sticks, counts, n_rows, alpha)
    return replace(params, sticks=sticks)


def pad(params: Params, n_components: int, alpha: float) -> Params:
    """Return the model with features that have no loadings behind its own, up to a number of them.

    Sticks depend on those before them alone: nothing changes for the features that were there.
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
