"""The start of a fit: data-driven loadings, and a warm-up before the descent.

The warm-up changes the objective itself (its temperature, the number of features), so that its values cannot be
compared. It is a sequence of phases, each a short descent on one objective:

1. first steps, at the temperature at which features are soft or at the wanted one if that is more;
2. cooling, down to the wanted temperature;
3. pruning: features that do not pay for themselves are taken out;
4. growth, where features are colder than soft: new ones are added and judged, while there is room for them.

A fit that is interrupted here keeps what it has. The descent that follows has one objective, which never rises.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from operator import attrgetter
from typing import Any

import numpy as np

from regbayes._types import Floats, Indices, Integers
from regbayes.engine import AbsoluteChange, Progress, Status, run
from regbayes.joint import descent
from regbayes.models.ilsvm.model import (
    PATIENCE,
    UNLABELED,
    ILSVMProblem,
    Params,
    Rows,
    Settings,
    Stats,
    infer_features,
    kl_of_each_loading,
)
from regbayes.priors.indian_buffet import Sticks, prior_sticks, update_sticks

Search = descent.Search[Params, Stats]

WARM_UP = "warm-up"  # its name, as callbacks see it

NOISE_SHARE = 0.5  # of the inputs' variance that is put down to noise when nothing is said
PRIOR_RATIO = 1 / 0.3  # prior variance of a loading, in noise variances
SIGNAL = 10.0  # mean squared length of rows in units of tempered noise where features are soft
EARLY_ROWS = 4096  # what the warm-up makes do with
START_ROWS = 1000  # whose combinations the loadings start from
STICK_ROUNDS = 5  # majorise-minimise steps for the first sticks
ROUNDING = 1e-6  # soft features are the default: rounding must not decide whether there is anything to cool down
START_SPREAD = 1.0  # standard deviation of a feature's logit over the rows at the start
START_LENGTH = 2.0  # largest squared length of a loading at the start, in units of the tempered noise

FIRST_STEPS = 40  # of descent before features are judged
TOL = 1e-3  # gain per row, in units of its loss, below which they are judged earlier
COOLING = 0.9  # factor between the temperatures of two phases
COOLING_STEPS = 8  # of descent in a phase
COOLING_TOL = 1e-4  # the same as TOL for cooling: what is not learned warm is not learned cold
TRIAL_STEPS = 8  # of descent that a model with fewer features gets before it is compared
WEAK = 0.5  # squared length of loadings, in units of the tempered noise: longer ones are not judged
GROWTH_ROUNDS = 6  # times that features are added, at most
GROWTH_STEPS = 16  # of descent that they get before they are judged
LEAST_GROWTH = 4  # features that are added at once, or half of those there are
NEW_SHARE = 0.25  # of the rows that are taken to have a new feature


def default_noise_variance(X: Rows) -> float:
    """Half of the inputs' mean square. It scales as the inputs do; only its product with the temperature matters."""
    mean_square = X.mean_square / X.n_inputs
    return NOISE_SHARE * mean_square if mean_square > 0 else 1.0


def soft_temperature(X: Rows, noise_variance: float) -> float:
    """Return the temperature at which rows have a squared length of `SIGNAL` on average, in units of tempered noise.

    Features are soft there and predict best. Training starts at it, also when colder features are wanted.
    """
    return max(1.0, X.mean_square / (SIGNAL * noise_variance))


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


def draw_seed(rng: np.random.Generator) -> int:
    """Draw the seed of the features that the warm-up adds."""
    return int(rng.integers(2**31))


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


def initial_params(X: Rows, settings: Settings, rng: np.random.Generator) -> Params:
    """Random loadings, and sticks and variances as if every feature were on in half of the rows.

    The start is never colder than the temperature at which features are soft.
    """
    soft = soft_temperature(X, settings.noise_variance)
    if soft > (1.0 + ROUNDING) * settings.temperature:
        settings = replace(settings, temperature=soft)
    K, half = settings.n_components, 0.5 * X.total_weight
    sticks = prior_sticks(settings.alpha, K)
    for _ in range(STICK_ROUNDS):
        sticks = update_sticks(sticks, np.full(K, half), X.total_weight, settings.alpha)
    variance = 1.0 / (1.0 / settings.prior_variance + half / settings.noise_variance)
    return Params(
        loadings=random_loadings(X, settings, rng),
        variances=np.full(K, variance),
        sticks=sticks,
        noise_variance=settings.noise_variance,
        prior_variance=settings.prior_variance,
        temperature=settings.temperature,
        n_sweeps=settings.n_sweeps,
    )


@dataclass
class WarmUp:
    """The phases before the descent, on the rows that they are content with.

    Parameters
    ----------
    problem : ILSVMProblem
        At the wanted temperature.
    share : float
        Of all rows that these are: what features are worth grows with the rows, their price does not.
    seed : int
        Of the features that are added; each time has a generator of its own.
    callbacks : sequence of callable
    view : callable
        From a `Search` to what callbacks see.
    """

    problem: ILSVMProblem
    share: float
    seed: int
    callbacks: Sequence[Callable[[Progress[Any]], bool | None]]
    view: Callable[[Search], Any]
    latest: Search | None = field(default=None, init=False)  # the model, as far as it has got

    @classmethod
    def of(
        cls,
        problem: ILSVMProblem,
        early_rows: Integers | None,
        seed: int,
        callbacks: Sequence[Callable[[Progress[Any]], bool | None]],
        view: Callable[[Search], Any],
    ) -> WarmUp:
        """Return the warm-up of a fit, on some of its rows where these are given."""
        # Variances estimated while the features are still warm put everything down to noise, and no feature is left.
        fixed = replace(problem.settings, estimate_noise=False, estimate_prior=False)
        if early_rows is None:
            return cls(problem.at_settings(fixed), 1.0, seed, callbacks, view)
        part = ILSVMProblem.of(problem.data.take(early_rows), fixed, problem.features)
        return cls(part, part.data.X.total_weight / problem.data.X.total_weight, seed, callbacks, view)

    def run(self, start: Params, multipliers: Floats | None, is_new: bool) -> tuple[Search, Status]:
        """Go through the phases; an earlier fit had its first steps and its features were judged: it is cooled only.

        Return the model, and CONVERGED, or STOPPED or INTERRUPTED with what there is.
        """
        wanted = self.problem.settings.temperature
        temperature = max(start.temperature, wanted)
        n_steps, tol = FIRST_STEPS, TOL
        if not is_new:  # an earlier fit at a higher temperature, which has had its first steps
            temperature, n_steps, tol = max(COOLING * temperature, wanted), COOLING_STEPS, COOLING_TOL
        try:
            while True:
                problem = self._at(temperature)
                search = descent.start(problem.joint, replace(start, temperature=temperature), multipliers)
                search = self.latest = self._run_phase(problem, search, n_steps, tol)
                if temperature == wanted:
                    return (self._prune_and_grow(search) if is_new else search), Status.CONVERGED
                start, multipliers = search.at.params, search.at.multipliers
                temperature, n_steps, tol = max(COOLING * temperature, wanted), COOLING_STEPS, COOLING_TOL
        except CutShortError as cut:
            return cut.search, cut.status
        except KeyboardInterrupt:  # between two phases
            if self.latest is None:
                raise  # nothing was learned yet
            return self.latest, Status.INTERRUPTED

    def _at(self, temperature: float) -> ILSVMProblem:
        """Return the problem at a temperature that may not be the final one.

        The generative part is divided by the temperature; on the way its weight is larger by the square root of it.
        """
        settings = self.problem.settings
        weight = settings.generative_weight * float(np.sqrt(temperature / settings.temperature))
        return self.problem.at_settings(replace(settings, temperature=temperature, generative_weight=weight))

    def _run_phase(
        self, problem: ILSVMProblem, search: Search, n_steps: int, tol: float, keep: Search | None = None
    ) -> Search:
        """Take some steps of descent on one objective, fewer if they gain little, and no more than a fit may have.

        A model on trial is given up where the fit is cut short: the one to ``keep`` is kept.
        """
        result = run(
            partial(descent.step, problem.joint),
            search,
            max_iter=min(n_steps, problem.settings.max_iter),
            objective=attrgetter("at.terms"),
            stop=AbsoluteChange(tol * problem.unit, PATIENCE),
            callbacks=self.callbacks,
            view=self.view if keep is None else lambda _: self.view(keep),
            stage=WARM_UP,
        )
        if result.status in (Status.STOPPED, Status.INTERRUPTED):
            raise CutShortError(keep or result.state, result.status)
        return result.state

    def _prune_and_grow(self, search: Search) -> Search:
        """Take out features that do not pay; add new ones and take out again, while that lowers the objective.

        A high temperature collapses features that explain little. At a low one they would be worth having, but without
        loadings they do not find back: new ones start from what the others leave unexplained. Where the wanted features
        are soft, nothing has collapsed that would not collapse again.
        """
        settings, before = self.problem.settings, None
        for n_growths in range(GROWTH_ROUNDS + 1):
            search = self._prune(search)
            if before is not None and search.at.objective >= before.at.objective:
                return before
            params = search.at.params
            K = len(params.loadings)
            room = min(settings.n_components - K, max(LEAST_GROWTH, K // 2))
            soft = soft_temperature(self.problem.data.X, params.noise_variance)
            is_cold = soft > (1.0 + ROUNDING) * settings.temperature
            if room <= 0 or not is_cold or n_growths == GROWTH_ROUNDS:
                return search
            before = search
            larger = self._add_features(search, room, np.random.default_rng([self.seed, n_growths]))
            search = descent.start(self.problem.joint, larger, search.at.multipliers)
            search = self.latest = self._run_phase(self.problem, search, GROWTH_STEPS, TOL)
        return search

    def _prune(self, search: Search) -> Search:
        """Put weak features on trial, several at once, until a single one is worth its price.

        A feature whose loadings are zero is the same for all rows. It still pays the divergence of its loadings from
        their prior, which a model without the feature does not: that is its price. And it earns by being undecided, the
        more the higher the temperature; but so would any number of features that do nothing. Here the tempered prior
        counts as normalised, and that earns nothing.
        """
        n_removed = len(search.at.params.loadings)
        while True:
            weak = self._rank_weak(search)
            n_removed = min(n_removed, len(weak), len(search.at.params.loadings) - 1)
            if n_removed <= 0:
                return search
            trial, limit = self._remove_features(search, weak[:n_removed])
            trial = self._run_phase(self.problem, trial, TRIAL_STEPS, TOL, keep=search)
            if trial.at.objective <= limit:
                self.latest = search = trial
                n_removed *= 2
            else:
                n_removed //= 2

    def _rank_weak(self, search: Search) -> Indices:
        """Return the features that are put on trial, the weakest first."""
        params = search.at.params
        strength = params.precision * np.einsum("kd,kd->k", params.loadings, params.loadings)
        return np.argsort(strength, kind="stable")[: int(np.sum(strength < WEAK))]

    def _remove_features(self, search: Search, removed: Indices) -> tuple[Search, float]:
        """Return the model without some features, and the objective that it must reach for them not to be worth it."""
        problem, at = self.problem, search.at
        params, settings = at.params, problem.settings
        loadings = params.loadings.copy()
        loadings[removed] = 0.0
        empty = replace(params, loadings=loadings)
        weight = self.share * settings.generative_weight / params.temperature
        limit = at.objective + weight * float(kl_of_each_loading(empty)[removed].sum())
        zeroed, _ = descent.evaluate(problem.joint, empty, at.multipliers, search.tolerance)
        kept = np.setdiff1d(np.arange(len(loadings)), removed)
        smaller = select(params, kept, at.stats.counts, at.stats.n_rows, settings.alpha)
        start = descent.start(problem.joint, smaller, zeroed.multipliers)
        constant = zeroed.objective - start.at.objective  # what features say about themselves: the same at any loadings
        return start, limit - constant

    def _add_features(self, search: Search, n_new: int, rng: np.random.Generator) -> Params:
        """Return the model with new features, random combinations of what its own leave unexplained of some rows."""
        settings, at = self.problem.settings, search.at
        params, n_rows = at.params, at.stats.n_rows
        X = self.problem.data.X
        some = X.take(np.sort(rng.choice(len(X), min(len(X), START_ROWS), replace=False)))
        rest = Rows.centre(some.array() - infer_features(some, params) @ params.loadings)
        new = random_loadings(rest, replace(settings, n_components=n_new), rng)
        counts = np.concatenate([at.stats.counts, np.full(n_new, NEW_SHARE * n_rows)])
        prior = prior_sticks(settings.alpha, n_new)
        variance = 1.0 / (1.0 / params.prior_variance + NEW_SHARE * n_rows / params.noise_variance)
        joined = replace(
            params,
            loadings=np.vstack([params.loadings, new]),
            variances=np.concatenate([params.variances, np.full(n_new, variance)]),
            sticks=Sticks(
                np.concatenate([params.sticks.first, prior.first]),
                np.concatenate([params.sticks.second, prior.second]),
            ),
        )
        return select(joined, np.arange(len(counts)), counts, n_rows, settings.alpha)


class CutShortError(Exception):
    """A phase was stopped or interrupted."""

    def __init__(self, search: Search, status: Status) -> None:
        super().__init__(status)
        self.search, self.status = search, status


def drop_empty(params: Params) -> Params:
    """Return the model without the features that an earlier fit left out, unless it left out all."""
    kept = np.flatnonzero(np.any(params.loadings != 0.0, axis=1))
    if len(kept) == 0:
        return params
    sticks = Sticks(params.sticks.first[kept], params.sticks.second[kept])
    return replace(params, loadings=params.loadings[kept], variances=params.variances[kept], sticks=sticks)


def select(params: Params, kept: Indices, counts: Floats, n_rows: float, alpha: float) -> Params:
    """Return the model of some features alone, the most used first, as the sticks expect them."""
    kept = kept[np.argsort(-counts[kept], kind="stable")]
    sticks = Sticks(params.sticks.first[kept], params.sticks.second[kept])
    for _ in range(STICK_ROUNDS):
        sticks = update_sticks(sticks, counts[kept], n_rows, alpha)
    return replace(params, loadings=params.loadings[kept], variances=params.variances[kept], sticks=sticks)


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
