"""The start-up of a fit: first steps, cooling, the removal of features that do not pay for themselves, and new ones.

What happens here changes the objective itself (its temperature, the number of features), so that its values cannot be
compared. The descent that follows has one objective, which never rises.

The start-up is a chain of legs, each of them some steps of descent on one objective. `step` takes one step, and where
a leg is over decides on the next one; `regbayes.engine.run` repeats it. So progress is seen, and a fit that is
interrupted here keeps what it has.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from regbayes._types import Floats, Indices
from regbayes.engine import AbsoluteChange, Status, StepResult
from regbayes.models.ilsvm import descent
from regbayes.models.ilsvm.descent import PATIENCE, Problem, Search
from regbayes.models.ilsvm.inference import infer
from regbayes.models.ilsvm.init import ROUNDING, START_ROWS, graded_temperature, random_loadings
from regbayes.models.ilsvm.objective import kl_of_each_loading
from regbayes.models.ilsvm.rows import Rows
from regbayes.models.ilsvm.state import Globals
from regbayes.priors.indian_buffet import Sticks, prior_sticks, update_sticks

STEPS = 40  # of descent before features are judged
TOL = 1e-3  # gain per row, in units of its loss, below which they are judged earlier
COOLING = 0.9  # factor between the temperatures of two legs
COOLING_STEPS = 8  # of descent in a leg
COOLING_TOL = 1e-4  # the same as TOL for legs of cooling: what is not learned warm is not learned cold
TRIAL_STEPS = 8  # of descent that a model with fewer features gets before it is compared
WEAK = 0.5  # squared length of loadings, in units of the tempered noise: longer ones are not judged
STICK_ROUNDS = 5
GROWTH_ROUNDS = 6  # times that features are added, at most
GROWTH_STEPS = 16  # of descent that they get before they are judged
LEAST_GROWTH = 4  # features that are added at once, or half of those there are
NEW_SHARE = 0.25  # of the rows that are taken to have a new feature


@dataclass(frozen=True)
class Plan:
    """What stays the same through a start-up."""

    problem: Problem  # the rows that it is content with, at the wanted temperature
    whole: Problem  # all rows
    seed: int  # of the features that are added; each time has a generator of its own
    is_new: bool = True  # an earlier fit had its first steps, and its features were judged: it is cooled only

    @property
    def share(self) -> float:
        """Share of the rows: what features are worth grows with the rows, their price does not."""
        return len(self.problem.data.X) / len(self.whole.data.X)


@dataclass(frozen=True)
class Leg:
    """Some steps of descent on one objective, fewer if they gain little, and no more than a fit may have."""

    problem: Problem
    search: Search
    n_steps: int
    tol: float
    objectives: tuple[float, ...]  # at its start and after each step
    is_over: bool = False

    @classmethod
    def of(cls, problem: Problem, search: Search, n_steps: int, tol: float = TOL) -> Leg:
        """Return a leg at its start."""
        return cls(problem, search, min(n_steps, problem.settings.max_iter), tol, (search.at.objective,))

    def step(self) -> StepResult[Leg]:
        """Take one step."""
        result = descent.step(self.problem, self.search)
        objectives = (*self.objectives, result.state.at.objective)
        small = AbsoluteChange(self.tol * self.problem.unit, PATIENCE)(objectives) is not None
        over = result.status is not None or small or len(objectives) > self.n_steps
        moved = replace(self, search=result.state, objectives=objectives, is_over=over)
        return StepResult(moved, result.terms, result.diagnostics)


@dataclass(frozen=True)
class Trial:
    """A model with fewer features, on its way to be compared with the one that has them."""

    leg: Leg
    n_removed: int
    limit: float  # the objective that it must reach

    @property
    def pays(self) -> bool:
        """Whether the features that it lacks are not worth what they cost."""
        return self.leg.search.at.objective <= self.limit


@dataclass(frozen=True)
class StartUp:
    """Where the start-up has got to. While features are on trial the model still has them."""

    leg: Leg
    trial: Trial | None = None
    before: Leg | None = None  # the model without the features that were added last
    n_growths: int = 0

    @property
    def search(self) -> Search:
        """The model, as far as it has got."""
        return self.leg.search


def begin(plan: Plan, start: Globals, multipliers: Floats | None) -> StartUp:
    """Return the start-up before its first step: at the temperature of the start, or the wanted one if that is more."""
    temperature = max(start.temperature, plan.problem.settings.temperature)
    if not plan.is_new:  # an earlier fit at more heat, which has had its first steps
        temperature = _cooler(plan, temperature)
    n_steps, tol = (STEPS, TOL) if plan.is_new else (COOLING_STEPS, COOLING_TOL)
    return StartUp(_leg_at(plan, start, multipliers, temperature, n_steps, tol))


def step(plan: Plan, at: StartUp) -> StepResult[StartUp]:
    """Take one step of descent; where that ends a leg, go on to the next one, or end the start-up."""
    result = (at.leg if at.trial is None else at.trial.leg).step()
    moved = result.state
    after = replace(at, leg=moved) if at.trial is None else replace(at, trial=replace(at.trial, leg=moved))
    status = None
    if moved.is_over:
        following = _after_leg(plan, after)
        after, status = (_handed_over(plan, after), Status.CONVERGED) if following is None else (following, None)
    return StepResult(after, result.terms, result.diagnostics, status)


def most_steps(plan: Plan, start: Globals) -> int:
    """Return a bound on the steps of a start-up: first steps, legs of cooling, trials of features."""
    wanted = plan.problem.settings.temperature
    n_coolings = int(np.ceil(max(0.0, np.log(start.temperature / wanted)) / -np.log(COOLING))) + 1
    # A batch that is removed doubles the next one and a batch that is not halves it, down to a single feature.
    n_trials = 2 * len(start.loadings) + 2 * int(np.ceil(np.log2(len(start.loadings) + 1)))
    n_judgements = 1 + GROWTH_ROUNDS
    return STEPS + COOLING_STEPS * n_coolings + GROWTH_ROUNDS * GROWTH_STEPS + n_judgements * TRIAL_STEPS * n_trials


def _after_leg(plan: Plan, at: StartUp) -> StartUp | None:
    """Return the start-up at the beginning of its next leg, or None where there is none."""
    if at.trial is None:
        g = at.search.at.globals
        if g.temperature > plan.problem.settings.temperature:
            temperature = _cooler(plan, g.temperature)
            return StartUp(_leg_at(plan, g, at.search.at.multipliers, temperature, COOLING_STEPS, COOLING_TOL))
        if not plan.is_new:
            return None
        leg, batch = at.leg, len(g.loadings)
    elif at.trial.pays:
        leg, batch = at.trial.leg, 2 * at.trial.n_removed
    else:
        leg, batch = at.leg, at.trial.n_removed // 2
    trial = _next_trial(plan, leg, batch)
    return _grown(plan, replace(at, leg=leg, trial=None)) if trial is None else replace(at, leg=leg, trial=trial)


def _found(at: StartUp) -> Leg:
    """Return the model that the start-up would end with."""
    leg = at.trial.leg if at.trial is not None and at.trial.pays else at.leg
    is_worse = at.before is not None and leg.search.at.objective >= at.before.search.at.objective
    return at.before if at.before is not None and is_worse else leg


def _grown(plan: Plan, at: StartUp) -> StartUp | None:
    """Add features, or None where there is no place for them or the last ones were not worth it.

    Heat melts features that explain little. When it is gone they would be worth having, but without loadings they do
    not find back: new ones start from what the others leave unexplained. Where the wanted features are graded, nothing
    has melted that would not melt again.
    """
    problem, leg = plan.problem, at.leg
    settings, g = problem.settings, leg.search.at.globals
    K = len(g.loadings)
    room = min(settings.n_components - K, max(LEAST_GROWTH, K // 2))
    graded = graded_temperature(problem.data.X, g.noise_variance)
    is_cold = graded > (1.0 + ROUNDING) * settings.temperature
    if room <= 0 or not is_cold or at.n_growths == GROWTH_ROUNDS or _found(at) is not leg:
        return None
    larger = _with_new(problem, leg, room, np.random.default_rng([plan.seed, at.n_growths]))
    search = descent.start(problem, larger, leg.search.at.multipliers)
    return StartUp(Leg.of(problem, search, GROWTH_STEPS), None, leg, at.n_growths + 1)


def _with_new(problem: Problem, leg: Leg, n_new: int, rng: np.random.Generator) -> Globals:
    """Return the model with new features, random combinations of what its own leave unexplained of some rows."""
    settings, at = problem.settings, leg.search.at
    g, n_rows = at.globals, at.stats.n_rows
    X = problem.data.X
    some = X.take(np.sort(rng.choice(len(X), min(len(X), START_ROWS), replace=False)))
    rest = Rows.centred(some.array() - infer(some, g, settings.n_threads) @ g.loadings)
    new = random_loadings(rest, replace(settings, n_components=n_new), rng)
    counts = np.concatenate([at.stats.counts, np.full(n_new, NEW_SHARE * n_rows)])
    prior = prior_sticks(settings.alpha, n_new)
    variance = 1.0 / (1.0 / g.prior_variance + NEW_SHARE * n_rows / g.noise_variance)
    joined = replace(
        g,
        loadings=np.vstack([g.loadings, new]),
        variances=np.concatenate([g.variances, np.full(n_new, variance)]),
        sticks=Sticks(np.concatenate([g.sticks.first, prior.first]), np.concatenate([g.sticks.second, prior.second])),
    )
    return select(joined, np.arange(len(counts)), counts, n_rows, settings.alpha)


def _handed_over(plan: Plan, at: StartUp) -> StartUp:
    """Return the start-up with the model that it found evaluated on all rows."""
    search = _found(at).search
    if plan.problem.data is not plan.whole.data:
        search = descent.start(plan.whole, search.at.globals, None)
    return StartUp(Leg.of(plan.whole, search, 0))


def _cooler(plan: Plan, temperature: float) -> float:
    return max(COOLING * temperature, plan.problem.settings.temperature)


def _leg_at(plan: Plan, g: Globals, multipliers: Floats | None, temperature: float, n_steps: int, tol: float) -> Leg:
    """Return a leg at a temperature that may not be the final one.

    The generative part is divided by the temperature; on the way its weight is larger by the square root of it.
    """
    settings = plan.problem.settings
    weight = settings.generative_weight * float(np.sqrt(temperature / settings.temperature))
    here = replace(plan.problem, settings=replace(settings, temperature=temperature, generative_weight=weight))
    return Leg.of(here, descent.start(here, replace(g, temperature=temperature), multipliers), n_steps, tol)


def _next_trial(plan: Plan, leg: Leg, batch: int) -> Trial | None:
    """Put weak features on trial, several at once; None where there are none, or a single one was worth its price.

    A feature whose loadings are zero is the same for all rows. It still pays the divergence of its loadings from their
    prior, which a model without the feature does not: that is its price. And it earns by being undecided, the more the
    higher the temperature; but so would any number of features that do nothing. Here the tempered prior counts as
    normalised, and that earns nothing.
    """
    g = leg.search.at.globals
    strength = g.precision * np.einsum("kd,kd->k", g.loadings, g.loadings)
    weak = np.argsort(strength, kind="stable")[: int(np.sum(strength < WEAK))]
    batch = min(batch, len(weak), len(strength) - 1)
    return _trial_without(plan, leg, weak[:batch]) if batch > 0 else None


def _trial_without(plan: Plan, leg: Leg, removed: Indices) -> Trial:
    """Return the model without some features, and the objective that it must reach."""
    problem, at = leg.problem, leg.search.at
    g, settings = at.globals, problem.settings
    loadings = g.loadings.copy()
    loadings[removed] = 0.0
    empty = replace(g, loadings=loadings)
    weight = plan.share * settings.generative_weight / g.temperature
    limit = at.objective + weight * float(kl_of_each_loading(empty)[removed].sum())
    zeroed, _ = descent.evaluate(problem, empty, at.multipliers, leg.search.accuracy)
    kept = np.setdiff1d(np.arange(len(loadings)), removed)
    smaller = select(g, kept, at.stats.counts, at.stats.n_rows, settings.alpha)
    start = descent.start(problem, smaller, zeroed.multipliers)
    constant = zeroed.objective - start.at.objective  # what the features say about themselves: the same at any loadings
    return Trial(Leg.of(problem, start, TRIAL_STEPS), len(removed), limit - constant)


def without_empty(g: Globals) -> Globals:
    """Return the model without the features that an earlier fit left out, unless it left out all."""
    kept = np.flatnonzero(np.any(g.loadings != 0.0, axis=1))
    if len(kept) == 0:
        return g
    sticks = Sticks(g.sticks.first[kept], g.sticks.second[kept])
    return replace(g, loadings=g.loadings[kept], variances=g.variances[kept], sticks=sticks)


def select(g: Globals, kept: Indices, counts: Floats, n_rows: float, alpha: float) -> Globals:
    """Return the model of some features alone, the most used first, as the sticks expect them."""
    kept = kept[np.argsort(-counts[kept], kind="stable")]
    sticks = Sticks(g.sticks.first[kept], g.sticks.second[kept])
    for _ in range(STICK_ROUNDS):
        sticks = update_sticks(sticks, counts[kept], n_rows, alpha)
    return replace(g, loadings=g.loadings[kept], variances=g.variances[kept], sticks=sticks)


def pad(g: Globals, n_components: int, alpha: float) -> Globals:
    """Return the model with features that have no loadings behind its own, up to a number of them.

    Sticks depend on those before them alone: nothing changes for the features that were there.
    """
    missing = n_components - len(g.loadings)
    prior = prior_sticks(alpha, missing)
    return replace(
        g,
        loadings=np.vstack([g.loadings, np.zeros((missing, g.loadings.shape[1]))]),
        variances=np.concatenate([g.variances, np.full(missing, g.prior_variance)]),
        sticks=Sticks(np.concatenate([g.sticks.first, prior.first]), np.concatenate([g.sticks.second, prior.second])),
    )
