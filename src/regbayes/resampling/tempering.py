"""The ladder: draw again, round by round, until the tilted posterior is the one that was asked for.

Wanted is the phi for which ``q ∝ p exp<phi, psi>`` solves docs/math.md eq. (1), where draws of p are too far from q to
be reweighted. A sampler can draw from the tilt at any phi, so:

1. A short run draws p itself.
2. The draws of all rounds are one pool that stands for p (`pool`), and the dual is solved on it.
3. If the pool's weights carry that solution, the next run is made there, a long one. Otherwise a short run is made in
   the direction of the Newton step from the last round, as far as the weights carry.
4. A long run ends it when its own draws, reweighted a little, meet what was asked, when it shows what the pool had
   predicted of it, and when nothing speaks against its chains (`checks`).

All of it knows a sampler only as `Sampler`, and draws no random numbers of its own beyond the seeds it hands down.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from scipy.special import logsumexp

from regbayes._types import Array, Floats
from regbayes.engine import Callback, Status, StepResult, run
from regbayes.regularization.composite import Stack
from regbayes.regularization.diagnostics import pareto_k
from regbayes.regularization.draws import as_draws
from regbayes.regularization.dual import DualSolution, solve_dual
from regbayes.regularization.feasibility import examine
from regbayes.regularization.features import evaluate_features
from regbayes.regularization.log_partition import GaussianAffine, WeightedAtoms
from regbayes.regularization.redundant import Redundancy, find_redundancy
from regbayes.resampling.checks import (
    R_HAT_SHORT,
    agrees_with_care,
    can_look,
    describe_contradiction,
    find_ascent,
    find_constant,
    find_doubts,
    find_escape,
    find_limit,
    find_missed,
    find_other_mode,
    has_heavy_tail,
    measure_surprise,
    worst_r_hat,
)
from regbayes.resampling.pool import Pool, Rung, Tilted, kish, pool_rungs
from regbayes.resampling.sampler import Run, Sampler, Start, Tilt, shrunken_covariance

FIRST_EFFECTIVE = 25.0  # draws that weights must leave at the least, wherever they lead
LONGEST = 3.0  # Newton steps that are made at once where what is asked lies beyond all draws
CARRIED = 0.25  # share of a short round's draws that weights must leave
K_STEP, K_FINAL = 0.7, 0.5  # k-hat up to which weights show the way, and up to which they are an answer
KISH_FINAL = 0.5  # share of a final run's draws that its last reweighting must leave
MILD = 0.95  # a share from which on no weight is large, and k-hat has no say
CONTRADICTED, FLATLY = 2.0, 4.0  # surprise from which on a run is made again, and from which on nothing is believed
AGREED = 1.0  # surprise up to which two long runs agree: what chance does in all but one of a thousand
ABSURD, MOST_ABSURD = 10.0, 2  # surprise that no chance explains, and how many runs in the pool may show it
RUNAWAY, MOST_RUNAWAYS = 10.0, 3  # standard deviations off its prediction at which a short run is left out; how many
KNOWN = 100.0  # effective draws by which the pool may contradict such a run
MOST_FINALS = 3
MOST_NEWTON = 60  # steps of the dual on the pool
MOST_SHRINKS = 12  # halvings of a step
RISES = 5  # rounds in a row that come no nearer, in standard deviations, until it is called out of reach
FAR_OFF = 10.0  # standard deviations that are left then
MOST_DRAWS = 50_000  # in a chain of a final run, whatever accuracy is asked for


@dataclass(frozen=True)
class LadderSettings:
    """How long runs are and when to stop."""

    n_draws: int = 750  # of each chain of a final run
    n_short: int = 100  # of each chain on the way
    max_iter: int = 40
    accuracy: float | None = None  # nats; None is what n_draws give
    seed: int = 0


@dataclass(frozen=True, eq=False)
class Problem:
    """What is asked of which sampler."""

    sampler: Sampler
    features: tuple[Any, ...]  # as the user wrote them, one entry per constraint
    stack: Stack
    labels: tuple[str, ...]  # (m,): each expectation under its constraint, as users read it

    def tilt(self, phi: Floats) -> Tilt:
        """The factor that a run at these multipliers has."""
        return Tilt(self.features, phi)

    def evaluate(self, found: Run) -> Floats:
        """Features of a run's draws, shape (n_chains, n_draws, m)."""
        draws = as_draws(found.variables, chains=True)
        values = np.concatenate([evaluate_features(draws, part).values for part in self.features], axis=1)
        return values.reshape(found.n_chains, found.n_draws, -1)


@dataclass(frozen=True, eq=False)
class Plan:
    """The next run."""

    phi: Floats  # (m,)
    n_draws: int
    final: bool = False
    stacked: Floats | None = None  # (M,): phi as the solver has it, one entry per elementary regularizer's coordinate
    predicted: Tilted | None = None  # the pool's view of it
    error: Floats | None = None  # (m, m): of that view
    goes_on: bool = False  # whether the chains of the last run go on


@dataclass(frozen=True, eq=False)
class Stage:
    """One run with what was predicted and what it showed."""

    rung: Rung
    run: Run
    final: bool
    predicted: Floats | None  # (m,)
    surprise: float  # squared distance from the prediction over its 99.9 % quantile
    r_hat: float
    r_hat_of: str
    to_go: float = math.nan  # nats to what was asked, by the Newton step from here
    left_out: bool = False  # of the pool: a step so far beyond what the pool knew that its draws may have run away

    @property
    def features(self) -> Floats:
        """Features of the draws, shape (n_chains, n_draws, m)."""
        return self.rung.values

    @property
    def multipliers(self) -> Floats:
        """Multipliers that the draws were made at, shape (m,)."""
        return self.rung.phi

    @property
    def divergences(self) -> int:
        """Draws at which the sampler's integrator failed."""
        return int(np.sum(self.run.statistics.get("diverging", 0)))


@dataclass(frozen=True, eq=False)
class Ending:
    """Why the climb is over."""

    status: Status
    sentences: tuple[str, ...] = ()
    stage: int = -1  # whose draws are the answer
    solution: DualSolution | None = None  # on these draws, where there is one
    refused: bool = False  # no answer at all: an error
    reweight: bool = False  # whether the draws of the posterior are all that there will be


@dataclass(frozen=True, eq=False)
class Climb:
    """The rounds so far and the next."""

    plan: Plan
    stages: tuple[Stage, ...] = ()
    pool: Pool | None = None
    rough: tuple[int, ...] | None = None  # features without a gradient, once known
    redundancy: Redundancy | None = None  # features that follow from others, by all draws so far
    ending: Ending | None = None
    excuses: tuple[str, ...] = field(default=())  # what spoke against the last final run

    @property
    def n_finals(self) -> int:
        """Final runs so far, under a tilt."""
        return sum(stage.final for stage in self.stages)

    @property
    def kept(self) -> tuple[Stage, ...]:
        """The runs in the pool."""
        return tuple(stage for stage in self.stages if not stage.left_out)


class BackendError(Exception):
    """A sampler raised; the climb up to there is kept."""

    def __init__(self, climb: Climb) -> None:
        super().__init__("the sampler failed")
        self.climb = climb


def climb_ladder(
    problem: Problem, settings: LadderSettings, given: Run | None = None, callbacks: Sequence[Callback] = ()
) -> Climb:
    """Draw until the answer is found or a word is due. The climb returned has an ending.

    Parameters
    ----------
    problem : Problem
    settings : LadderSettings
    given : Run, default=None
        Draws of the plain posterior to go on from, in place of the first run.
    callbacks : sequence of callable
        Each hears of every round (`engine.Progress`, whose state is the `Climb`).
    """
    m = problem.stack.n_features
    start = Climb(Plan(np.zeros(m), settings.n_short))
    if given is not None:
        start = _decide(problem, settings, _add(problem, start, given))
        if start.ending is not None:
            return start

    def step(climb: Climb) -> StepResult[Climb]:
        try:
            found = _draw(problem, settings, climb)
            climb = _decide(problem, settings, _add(problem, climb, found))
        except Exception as error:
            raise BackendError(climb) from error
        to_go = climb.stages[-1].to_go
        terms = {"to_go": to_go if math.isfinite(to_go) else 0.0}
        return StepResult(climb, terms, status=climb.ending.status if climb.ending is not None else None)

    result = run(step, start, max_iter=settings.max_iter, callbacks=callbacks, keep="last", stage="rounds")
    climb = result.state
    if climb.ending is not None:
        return climb
    if not climb.stages:
        raise KeyboardInterrupt
    if result.status is Status.INTERRUPTED:
        word = (
            "interrupted: the draws are those of the round nearest to what was asked. A new call begins again; "
            "regularize(result.base, constraints, resample=model) saves its first run."
        )
        return replace(climb, ending=Ending(Status.INTERRUPTED, (word,), _nearest(climb)))
    if result.status is Status.STOPPED:
        return replace(climb, ending=Ending(Status.STOPPED, ("a callback asked to stop.",), _nearest(climb)))
    word = (
        f"{_counted(climb.stages)} made, about {climb.stages[-1].to_go:.3g} nats are left. Raise max_iter, or "
        "ask for less: a softer constraint, (E(f) == b).soft(penalty), or a bound nearer to the posterior."
    )
    status = Status.NOT_ATTAINED if _comes_no_nearer(climb) else Status.ITERATION_LIMIT
    words = (*climb.excuses, *_find_heavy_tail(problem, climb, climb.plan.phi), word)
    return replace(climb, ending=Ending(status, words, _nearest(climb)))


def _counted(stages: Sequence[Stage]) -> str:
    return "1 round was" if len(stages) == 1 else f"{len(stages)} rounds were"


def _draw(problem: Problem, settings: LadderSettings, climb: Climb) -> Run:
    plan, n_before = climb.plan, len(climb.stages)
    seeds = np.random.SeedSequence([settings.seed, n_before]).generate_state(2)
    start = find_start(problem.sampler, climb, np.random.default_rng(seeds[0])) if n_before else None
    return problem.sampler.draw(problem.tilt(plan.phi), plan.n_draws, seed=int(seeds[1]), start=start, final=plan.final)


def find_start(sampler: Sampler, climb: Climb, rng: np.random.Generator) -> Start:
    """Resample earlier draws towards the next tilt, and take the spread of the sampler's coordinates from them."""
    runs, plan = [stage.run for stage in climb.kept], climb.plan
    if plan.goes_on:
        last = runs[-1]
        ends = {name: values[:, -1] for name, values in last.variables.items()}
        return Start(ends, None if last.positions is None else last.positions[:, -1], None, last.adaptation)
    assert climb.pool is not None
    tilted = climb.pool.tilt(plan.phi)
    weights = np.exp(tilted.log_weights)
    placed = [found for found in runs if found.positions is not None]
    if 0 < len(placed) < len(runs):  # draws that came from elsewhere, and do not say where the sampler was
        of_placed = np.repeat([found.positions is not None for found in runs], [r.n_chains * r.n_draws for r in runs])
        runs, weights = placed, weights[of_placed]
    few = np.count_nonzero(weights > 0) < sampler.n_chains
    chosen = rng.choice(len(weights), sampler.n_chains, replace=bool(few), p=weights / weights.sum())

    def gather(arrays: list[Array]) -> Array:
        return np.concatenate([values.reshape(-1, *values.shape[2:]) for values in arrays])

    shared = [name for name in runs[0].variables if all(name in found.variables for found in runs)]
    variables = {name: gather([found.variables[name] for found in runs])[chosen] for name in shared}
    if not placed:
        return Start(variables, None, None, runs[-1].adaptation)
    positions = gather([np.asarray(found.positions) for found in runs])
    spread = shrunken_covariance(positions, weights / weights.sum(), tilted.effective_size)
    return Start(variables, positions[chosen], spread, runs[-1].adaptation)


def _add(problem: Problem, climb: Climb, found: Run) -> Climb:
    """Put a run into the pool."""
    plan = climb.plan
    values = problem.evaluate(found)
    if values.shape[2] != problem.stack.n_features:
        raise ValueError(f"the features were {problem.stack.n_features} and are {values.shape[2]} now")
    flat = values.reshape(-1, values.shape[2])
    if not climb.stages or plan.goes_on:
        climb = replace(climb, redundancy=find_redundancy(flat, problem.stack))
    if climb.redundancy is not None:  # features may be the same where the posterior is, and not where a tilt leads
        climb = replace(climb, redundancy=climb.redundancy.restrict(flat))
    if climb.redundancy is not None:
        values = climb.redundancy.settle(flat).reshape(values.shape)
    rung = Rung(values, plan.phi)
    surprise = 0.0
    if plan.predicted is not None and plan.error is not None:
        surprise = measure_surprise(rung, plan.predicted.expectation, plan.error)
    r_hat, of = worst_r_hat(found, values, problem.labels)
    expected = None if plan.predicted is None else plan.predicted.expectation
    stage = Stage(rung, found, plan.final, expected, surprise, r_hat, of)
    stages = climb.stages
    if plan.goes_on:  # the same chains, longer: they stand for the first ones too
        stage = replace(stage, run=replace(found, n_gradients=found.n_gradients + stages[-1].run.n_gradients))
        stages = stages[:-1]
    climb = replace(climb, stages=(*stages, stage))
    if plan.predicted is not None and not plan.final and _has_run_away(rung, plan.predicted):
        return replace(climb, stages=(*stages, replace(stage, left_out=True)))
    guess = None
    if climb.pool is not None and not plan.goes_on:
        guess = np.append(climb.pool.log_partitions, climb.pool.tilt(plan.phi).log_partition)
    return replace(climb, pool=pool_rungs([s.rung for s in climb.kept], guess))


def _has_run_away(rung: Rung, predicted: Tilted) -> bool:
    """Whether a run is off by many times a feature's own spread, whatever its chains say of their errors."""
    spread = np.sqrt(np.diag(predicted.covariance))
    return bool(np.any(np.abs(rung.mean - predicted.expectation) > RUNAWAY * spread))


def _decide(problem: Problem, settings: LadderSettings, climb: Climb) -> Climb:
    """Say what comes after the last run: another, or the end."""
    last = climb.stages[-1]
    if len(climb.stages) == 1:
        ended = _decide_first(settings, climb)
        if ended is not None:
            return ended
        if climb.rough is None:
            smooth = problem.sampler.find_smooth(problem.tilt(last.rung.phi), last.run)
            rough = () if smooth is None else tuple(int(i) for i in np.flatnonzero(~smooth))
            climb = replace(climb, rough=rough)
    if climb.rough:
        return _decide_rough(settings, climb)
    if last.final:
        judged = _judge_final(problem, settings, climb)
        if judged.ending is not None or judged.plan is not climb.plan:
            return judged
        climb = judged
        if climb.n_finals >= MOST_FINALS:
            words = (*climb.excuses, *_find_heavy_tail(problem, climb, climb.plan.phi))
            return replace(climb, ending=Ending(Status.UNRELIABLE, words, -1, _solve_on(problem, climb)))
    absurd = sum(stage.surprise > ABSURD for stage in climb.kept) >= MOST_ABSURD
    absurd |= sum(stage.left_out for stage in climb.stages) >= MOST_RUNAWAYS
    if last.left_out and not absurd:  # half the way again: the next run tells the pool more of what comes
        assert climb.pool is not None
        nearer = Plan(0.5 * (climb.kept[-1].rung.phi + last.rung.phi), settings.n_short)
        return _checked(problem, settings, climb, _predict(climb.pool, nearer))
    if absurd:
        escape = find_ascent(problem.sampler, problem.tilt(last.rung.phi), last.run)
        if escape is not None:
            return replace(climb, ending=Ending(Status.IMPROPER, (_no_tilt(escape),), _nearest(climb)))
        word = (
            "run after run contradicts what the rounds before predicted of it: the tail of a feature is too heavy for "
            "this tilt, modes come and go with it, or no distribution has these expectations together (a mean of "
            "squares below the square of the mean, say). Constrain a feature with a lighter tail (a logarithm, a "
            "probability), or ask for less."
        )
        return replace(climb, ending=Ending(Status.UNRELIABLE, (word,), _nearest(climb)))
    return _plan_next(problem, settings, climb)


def _decide_first(settings: LadderSettings, climb: Climb) -> Climb | None:
    """Whether the plain posterior is fit to be tilted: more draws where its chains differ, then the end."""
    last = climb.stages[-1]
    enough = last.run.n_draws >= settings.n_draws
    limit = R_HAT_SHORT[1] if enough else R_HAT_SHORT[0]
    if last.r_hat <= limit:
        return None
    if enough:
        word = (
            f"the plain posterior does not converge before any tilt: R-hat {last.r_hat:.2f} of {last.r_hat_of} in "
            f"{last.run.n_chains} chains of {last.run.n_draws} draws. Its chains may sit in different modes, or move "
            "too slowly. Reparametrize the model or give it a stronger prior until plain sampling converges, then call "
            "again."
        )
        return replace(climb, ending=Ending(Status.UNRELIABLE, (word,), -1, refused=True))
    more = min(4 * last.run.n_draws, settings.n_draws)
    return replace(climb, plan=Plan(last.rung.phi, more, goes_on=True))


def _decide_rough(settings: LadderSettings, climb: Climb) -> Climb:
    """Features without a gradient: the posterior's own draws, reweighted, are all that there can be."""
    if climb.stages[-1].run.n_draws >= settings.n_draws:
        return replace(climb, ending=Ending(Status.OPTIMAL, (), -1, reweight=True))
    return replace(climb, plan=Plan(climb.stages[0].rung.phi, settings.n_draws, goes_on=True))


def _solve_on(problem: Problem, climb: Climb) -> DualSolution:
    """Solve the dual on the last run's draws alone."""
    rung = climb.stages[-1].rung
    logs = -rung.flat @ rung.phi
    atoms = WeightedAtoms(rung.flat, logs - logsumexp(logs))
    spread = rung.flat.std(axis=0)
    atoms.unit = np.where(spread > 0, spread, atoms.unit)
    stacked = climb.plan.stacked
    found = solve_dual(atoms, problem.stack, tol=1e-9, max_iter=200, warm_start=stacked, watch=False)
    return _folded(problem, climb, found)


def _folded(problem: Problem, climb: Climb, solution: DualSolution) -> DualSolution:
    """The same tilt without multipliers of features that follow from others."""
    if climb.redundancy is None:
        return solution
    phi, stacked = climb.redundancy.fold(solution.multipliers, solution.stacked, problem.stack)
    return replace(solution, multipliers=phi, stacked=stacked)


def _judge_final(problem: Problem, settings: LadderSettings, climb: Climb) -> Climb:
    """Take a final run for the answer, or say what speaks against it."""
    last = climb.stages[-1]
    solution = _solve_on(problem, climb)
    move = solution.multipliers - last.rung.phi
    logs = last.rung.flat @ move
    carried = kish(logs)
    k_hat = pareto_k(logs, last.rung.effective_size / len(logs)) if np.ptp(logs) > 0 else -math.inf
    # The nats from the run to what its own draws ask for.
    centred = last.rung.flat - last.rung.mean
    left = 0.5 * float(np.mean((centred @ move) ** 2))
    stage = replace(last, to_go=left)
    climb = replace(climb, stages=(*climb.stages[:-1], stage))
    missed = solution.status is not Status.CONVERGED or carried < KISH_FINAL or (carried < MILD and k_hat > K_FINAL)
    tilt = problem.tilt(last.rung.phi if missed else solution.multipliers)
    if not tilt.is_none:
        escape = find_escape(problem.sampler, tilt, stage.run) or find_ascent(problem.sampler, tilt, stage.run)
        if escape is not None:
            ending = Ending(Status.IMPROPER, (_no_tilt(escape),), -1, solution)
            return replace(climb, ending=ending)
    word = (
        "the last run contradicts what the rounds before predicted of it: expectations differ by "
        f"{math.sqrt(last.surprise):.1f} times what chance allows. A mode may have been missed, or chains may be "
        "too slow. Reparametrize, or draw more: n_draws."
    )
    if last.surprise > FLATLY:
        return replace(climb, ending=Ending(Status.UNRELIABLE, (word,), -1, solution))
    if missed:
        sentence = "The last long run missed what was asked by more than its own draws can be reweighted."
        return replace(climb, excuses=(sentence,))
    if last.surprise > CONTRADICTED:
        return replace(climb, excuses=(word,))
    longs = [s.run for s in climb.stages if s.final]
    careful = len(longs) > 1 and last.surprise <= AGREED and agrees_with_care(longs[-2], longs[-1])
    doubts = find_doubts(stage.run, stage.rung, stage.r_hat, stage.r_hat_of, careful)
    doubts += find_other_mode(problem.sampler, tilt, [s.run for s in climb.stages], stage.run)
    doubts += _find_missed(climb) + _find_contradicted(climb)
    doubts += _find_heavy_tail(problem, climb, solution.multipliers) if not tilt.is_none else ()
    ending = Ending(Status.OPTIMAL, (), -1, solution)
    if doubts:
        climb = replace(climb, excuses=doubts)
        if climb.n_finals < 2:
            return replace(climb, plan=_again(climb, solution, settings.n_draws))
        return replace(climb, ending=replace(ending, status=Status.UNRELIABLE, sentences=doubts))
    return _meet_accuracy(settings, climb, ending, solution)


def _find_heavy_tail(problem: Problem, climb: Climb, phi: Floats) -> tuple[str, ...]:
    """What the posterior's draws say of a tilt's tail, where there is no density to look at."""
    if can_look(problem.sampler, problem.tilt(phi), climb.stages[-1].run):
        return ()
    heavy = has_heavy_tail(climb.stages[0].rung, phi)
    return () if heavy is None else (heavy,)


def _find_missed(climb: Climb) -> tuple[str, ...]:
    """Whether the short rounds have been where a final run has not; an earlier final one may have missed the same."""
    assert climb.pool is not None
    before, last = [stage for stage in climb.kept if not stage.final], climb.kept[-1]
    guess = climb.pool.log_partitions[[not stage.final for stage in climb.kept]]
    weights = pool_rungs([stage.rung for stage in before], guess).count_towards(last.rung.phi)
    return find_missed([stage.run for stage in before], weights, last.run)


def _find_contradicted(climb: Climb) -> tuple[str, ...]:
    """Whether the pool carries the tilt of a run that was left out by now, and still contradicts it."""
    assert climb.pool is not None
    for stage in climb.stages:
        if not stage.left_out:
            continue
        there = climb.pool.tilt(stage.rung.phi)
        if there.carries(KNOWN, K_FINAL):
            error = climb.pool.error_of_expectation(there)
            if measure_surprise(stage.rung, there.expectation, error) > ABSURD:
                return (
                    "a run on the way contradicts what all others say of its tilt: a mode may have been missed, or "
                    "chains may be too slow. Reparametrize, or draw more: n_draws.",
                )
    return ()


def _meet_accuracy(settings: LadderSettings, climb: Climb, ending: Ending, solution: DualSolution) -> Climb:
    """Draw more where the user asked for less error than these draws have."""
    last, m = climb.stages[-1], len(solution.multipliers)
    floor = m / (2 * last.rung.effective_size)
    if settings.accuracy is None or floor <= settings.accuracy:
        return replace(climb, ending=ending)
    needed = math.ceil(1.1 * last.run.n_draws * floor / settings.accuracy)
    if needed > MOST_DRAWS or climb.n_finals >= MOST_FINALS:
        word = (
            f"the answer is good to about {floor:.1g} nats, the Monte Carlo error of its draws; "
            f"{settings.accuracy:.1g} would take about {needed} draws in each chain. Ask for that n_draws, or for a "
            "coarser accuracy."
        )
        return replace(climb, ending=replace(ending, status=Status.ITERATION_LIMIT, sentences=(word,)))
    return replace(climb, plan=_again(climb, solution, needed))


def _again(climb: Climb, solution: DualSolution, n_draws: int) -> Plan:
    """Another final run, where the last one says."""
    assert climb.pool is not None
    return _predict(climb.pool, Plan(solution.multipliers, n_draws, True, solution.stacked))


def _no_tilt(escape: str) -> str:
    return (
        f"the tilt that is asked for does not exist: {escape}, so that p exp<multipliers, psi> has no normaliser. The "
        "posterior's tail is too heavy for this feature. Constrain a feature with a lighter tail, such as a logarithm, "
        "a probability or a bounded function of it."
    )


def _plan_next(problem: Problem, settings: LadderSettings, climb: Climb) -> Climb:
    """Choose the next run by what the pool knows."""
    pool, last = climb.pool, climb.stages[-1]  # which is in the pool
    assert pool is not None
    stuck = find_constant(pool, problem.stack, problem.labels)
    if stuck is not None:
        return replace(climb, ending=Ending(Status.INFEASIBLE, (stuck,), -1))
    atoms = WeightedAtoms(pool.values, pool.log_weights)
    stacked = np.zeros(len(problem.stack)) if climb.plan.stacked is None else climb.plan.stacked
    solution = solve_dual(atoms, problem.stack, tol=1e-8, max_iter=MOST_NEWTON, warm_start=stacked, watch=False)
    solution = _folded(problem, climb, solution)
    short = settings.n_short * problem.sampler.n_chains
    needed = max(FIRST_EFFECTIVE, CARRIED * min(last.rung.effective_size, short))
    target = _folded(problem, climb, _newton_target(problem, pool, last.rung.phi))
    here = pool.tilt(last.rung.phi)
    away = target.multipliers - last.rung.phi
    climb = _with_to_go(climb, 0.5 * float(away @ here.covariance @ away))
    if solution.status is Status.CONVERGED:
        there = pool.tilt(solution.multipliers)
        if there.carries(max(needed, CARRIED * short), K_FINAL):  # errors of fewer are not to be judged by
            plan = Plan(solution.multipliers, settings.n_draws, True, solution.stacked, there)
            return _checked(problem, settings, climb, _predict(pool, plan))
    else:
        verdict = examine(atoms, problem.stack)
        if verdict.kind == "infeasible" and verdict.proof is not None:
            found = None
            if verdict.constant:
                found = describe_contradiction(pool, problem.stack, problem.labels, verdict.proof)
            elif _comes_no_nearer(climb):
                found = find_limit([s.rung for s in climb.kept], problem.stack, problem.labels, verdict.proof)
            if found is not None:
                return replace(climb, ending=Ending(Status.INFEASIBLE, (found,), -1))
    if _comes_no_nearer(climb):
        word = (
            f"{len(climb.stages)} rounds came no nearer to what is asked: about {climb.stages[-1].to_go:.3g} nats are "
            "left, more after each round. What is asked may lie beyond what the features can reach. Check it against "
            "their range, or soften it: (E(f) == b).soft(penalty)."
        )
        return replace(climb, ending=Ending(Status.NOT_ATTAINED, (word,), -1))
    if here.effective_size < needed:
        longer = min(2 * last.run.n_draws, settings.n_draws)
        return replace(climb, plan=_predict(pool, Plan(last.rung.phi, longer, stacked=stacked)))
    share = _how_far(pool, last.rung.phi, away, needed)
    if share == 1.0:  # the step falls short of what the weights carry: the pool may know a longer one
        known = solution.status is Status.CONVERGED
        target = solution if known else target
        away = target.multipliers - last.rung.phi
        share = _how_far(pool, last.rung.phi, away, needed, 1.0 if known else LONGEST)
    ahead = stacked + share * (target.stacked - stacked)
    plan = Plan(last.rung.phi + share * away, settings.n_short, stacked=ahead)
    return _checked(problem, settings, climb, _predict(pool, plan))


def _newton_target(problem: Problem, pool: Pool, phi: Floats) -> DualSolution:
    """Solve the dual as if the features were Gaussian with the moments that they have at phi."""
    here = pool.tilt(phi)
    covariance = here.covariance + np.diag(1e-8 * np.diag(here.covariance) + 1e-300)
    values, vectors = np.linalg.eigh(covariance)
    factor = vectors * np.sqrt(np.maximum(values, 0.0))
    mean = here.expectation - covariance @ phi
    affine = GaussianAffine(mean, factor, np.finfo(np.float64).eps * np.abs(mean))
    return solve_dual(affine, problem.stack, tol=1e-8, max_iter=200, watch=False)


def _how_far(pool: Pool, phi: Floats, away: Floats, needed: float, most: float = 1.0) -> float:
    """The share of a step that the pool's weights carry, by bisection."""

    def carries(share: float) -> bool:
        return pool.tilt(phi + share * away).carries(needed, K_STEP)

    if carries(most):
        return most
    high = most
    while not carries(high) and high > 1e-9:
        high /= 2
    low, high = high, 2 * high
    for _ in range(MOST_SHRINKS // 2):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if carries(middle) else (low, middle)
    return low


def _predict(pool: Pool, plan: Plan) -> Plan:
    """Write down what the pool expects of a run."""
    there = pool.tilt(plan.phi)
    return replace(plan, predicted=there, error=pool.error_of_expectation(there))


def _checked(problem: Problem, settings: LadderSettings, climb: Climb, plan: Plan) -> Climb:
    """Take the plan where its tilt has a normaliser, and a shorter step otherwise."""
    last = climb.kept[-1]
    for _ in range(MOST_SHRINKS):
        escape = find_escape(problem.sampler, problem.tilt(plan.phi), last.run) if np.any(plan.phi) else None
        if escape is None:
            return replace(climb, plan=plan)
        assert climb.pool is not None
        nearer = Plan(0.5 * (last.rung.phi + plan.phi), settings.n_short)
        plan = _predict(climb.pool, nearer)
    return replace(climb, ending=Ending(Status.IMPROPER, (_no_tilt(escape or ""),), _nearest(climb)))


def _with_to_go(climb: Climb, nats: float) -> Climb:
    stages = climb.stages
    if math.isnan(stages[-1].to_go):
        stages = (*stages[:-1], replace(stages[-1], to_go=nats))
    return replace(climb, stages=stages)


def _comes_no_nearer(climb: Climb) -> bool:
    """Whether the distance in standard deviations grew in each of the last rounds and is long."""
    distances = [math.sqrt(2 * max(stage.to_go, 0.0)) for stage in climb.stages if not math.isnan(stage.to_go)]
    recent = distances[-RISES - 1 :]
    rises = len(recent) == RISES + 1 and all(b > a for a, b in itertools.pairwise(recent))
    return rises and recent[-1] > max(FAR_OFF, 2 * min(distances))


def _nearest(climb: Climb) -> int:
    """The round nearest to what was asked; later ones before earlier ones."""
    known = [(stage.to_go, -i) for i, stage in enumerate(climb.stages) if not math.isnan(stage.to_go)]
    return -min(known)[1] if known else len(climb.stages) - 1
