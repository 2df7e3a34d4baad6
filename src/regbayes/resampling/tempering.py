"""Tempering: sample the model again under a tilt, run by run, until its own draws satisfy the constraints.

The sought phi is the one for which ``q ∝ p exp<phi, psi>`` solves docs/math.md eq. (1), where draws of p are too far
from q to be reweighted. A sampler can draw from the tilt at any phi, so:

1. A short run draws p itself.
2. The draws of all runs are one pool that stands for p (`pool`), and the dual is solved on it.
3. If the pool's weights are reliable at that solution, the next run is made there, a long one. Otherwise a short run is
   made in the direction of the Newton step from the last run, as far as the weights are reliable.
4. A long run is the solution when its own draws, reweighted a little, meet the constraints, when it agrees with the
   pool's prediction, and when nothing speaks against its chains (`checks`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.special import logsumexp

from regbayes._types import Array, Floats
from regbayes.engine import Callback, Status, StepResult, run
from regbayes.regularization.composite import Stack
from regbayes.regularization.draws import as_draws
from regbayes.regularization.dual import DualSolution, solve_dual
from regbayes.regularization.feasibility import examine
from regbayes.regularization.features import evaluate_features
from regbayes.regularization.log_partition import GaussianAffine, WeightedAtoms
from regbayes.resampling.checks import (
    check_chains,
    describe_contradiction,
    find_ascent,
    find_constant,
    find_escape,
    find_missed,
    find_worst_r_hat,
    measure_discrepancy,
)
from regbayes.resampling.policy import TemperingPolicy
from regbayes.resampling.pool import Pool, TemperedRun, pool_runs
from regbayes.resampling.sampler import Run, Sampler, Start, Tilt, shrunken_covariance

MAX_HALVINGS = 12


@dataclass(frozen=True, eq=False)
class Problem:
    """The constraints and the model that is sampled under them."""

    sampler: Sampler
    functions: tuple[Any, ...]  # as the user wrote them, one entry per constraint
    stack: Stack
    labels: tuple[str, ...]  # (m,): each expectation under its constraint, as users read it
    n_draws: int  # of each chain of a final run
    accuracy: float | None  # nats; None is what n_draws give
    seed: int

    def tilt(self, phi: Floats) -> Tilt:
        """The factor that a run at these multipliers has."""
        return Tilt(self.functions, phi)

    def evaluate(self, found: Run) -> Floats:
        """The constrained functions of a run's draws, shape (n_chains, n_draws, m)."""
        draws = as_draws(found.variables, chains=True)
        values = np.concatenate([evaluate_features(draws, part).values for part in self.functions], axis=1)
        if values.shape[1] != self.stack.n_features:
            raise ValueError(
                f"The functions returned {self.stack.n_features} columns at first and {values.shape[1]} now."
            )
        return values.reshape(draws.n_chains, draws.n_draws, -1)

    def find_rough(self, found: Run | None) -> tuple[int, ...]:
        """Functions without a gradient that the sampler could follow."""
        smooth = self.sampler.find_smooth(self.tilt(np.zeros(self.stack.n_features)), found)
        return () if smooth is None else tuple(int(i) for i in np.flatnonzero(~smooth))


@dataclass(frozen=True, eq=False)
class Plan:
    """The next run."""

    phi: Floats  # (m,)
    n_draws: int
    stacked: Floats  # (M,): phi as the solver has it, one entry per elementary regularizer's coordinate
    is_final: bool = False

    @property
    def is_first(self) -> bool:
        """Whether this run draws the posterior itself, and begins anew."""
        return not self.is_final and not np.any(self.phi)


@dataclass(frozen=True, eq=False)
class Ending:
    """Why tempering is over."""

    status: Status
    reasons: tuple[str, ...] = ()
    solution: DualSolution | None = None  # on the draws of the last run, if that is returned
    is_refusal: bool = False  # no result can be used: an error


@dataclass(frozen=True, eq=False)
class Tempering:
    """The runs so far and the next."""

    plan: Plan
    runs: tuple[TemperedRun, ...] = ()
    pool: Pool | None = None  # of the runs that were not discarded
    rough: tuple[int, ...] = ()  # functions without a gradient: only draws of the posterior itself can be made
    reasons: tuple[str, ...] = ()  # objections to the last final run
    ending: Ending | None = None

    def end(self, status: Status, *reasons: str, solution: DualSolution | None = None) -> Tempering:
        """The end with a status and its reasons."""
        return replace(self, ending=Ending(status, reasons, solution))

    @property
    def nearest(self) -> int:
        """The run nearest to the constraints; later ones before earlier ones."""
        known = [(tempered.remaining_kl, -i) for i, tempered in enumerate(self.runs)]
        known = [(kl, i) for kl, i in known if not math.isnan(kl)]
        return -min(known)[1] if known else len(self.runs) - 1

    @property
    def returned(self) -> int:
        """The run whose draws are returned: the last if it has a solution."""
        solved = self.ending is not None and self.ending.solution is not None
        return len(self.runs) - 1 if solved else self.nearest


class BackendError(Exception):
    """A sampler raised; what was drawn before is kept."""

    def __init__(self, state: Tempering) -> None:
        super().__init__("the sampler failed")
        self.state = state


def temper(
    problem: Problem,
    max_iter: int,
    policy: TemperingPolicy,
    given: Run | None = None,
    callbacks: Sequence[Callback] = (),
) -> Tempering:
    """Sample until the constraints are met, or it is known why not. The state returned has an ending.

    Parameters
    ----------
    problem : Problem
    max_iter : int
    policy : TemperingPolicy
    given : Run, default=None
        Draws of the posterior that replace the first run.
    callbacks : sequence of callable
        Each is called after every run with `engine.Progress`, whose state is the `Tempering`.
    """
    rough = problem.find_rough(None)
    n_first = problem.n_draws if rough else policy.short_draws
    start = Tempering(Plan(np.zeros(problem.stack.n_features), n_first, np.zeros(len(problem.stack))), rough=rough)
    if given is not None:
        start = decide(problem, policy, add(problem, policy, start, given))
        if start.ending is not None:
            return start

    def step(state: Tempering) -> StepResult[Tempering]:
        try:
            state = decide(problem, policy, add(problem, policy, state, draw(problem, state)))
        except Exception as error:
            raise BackendError(state) from error
        remaining = state.runs[-1].remaining_kl
        terms = {"remaining_kl": remaining if math.isfinite(remaining) else 0.0}
        return StepResult(state, terms, status=None if state.ending is None else state.ending.status)

    result = run(step, start, max_iter=max_iter, callbacks=callbacks, keep="last", stage="runs")
    state = result.state
    if state.ending is not None:
        return state
    if not state.runs:
        raise KeyboardInterrupt
    if result.status is Status.ITERATION_LIMIT:
        reason = (
            f"The constraints are about {state.runs[-1].remaining_kl:.3g} nats away after {len(state.runs)} runs. "
            "Raise max_iter, or soften the constraints: (E(f) == b).soft(penalty)."
        )
        return state.end(Status.ITERATION_LIMIT, *state.reasons, reason)
    how = "Interrupted" if result.status is Status.INTERRUPTED else "Stopped by a callback"
    return state.end(result.status, f"{how}: the draws are those of the run nearest to the constraints.")


def draw(problem: Problem, state: Tempering) -> Run:
    """Make the planned run."""
    seeds = np.random.SeedSequence([problem.seed, len(state.runs)]).generate_state(2)
    plan = state.plan
    start = None if plan.is_first else _find_start(problem.sampler, state, np.random.default_rng(seeds[0]))
    tilt = problem.tilt(plan.phi)
    return problem.sampler.draw(tilt, plan.n_draws, seed=int(seeds[1]), start=start, final=plan.is_final)


def _find_start(sampler: Sampler, state: Tempering, rng: np.random.Generator) -> Start:
    """Resample earlier draws towards the next tilt, and estimate the covariance of the sampler's coordinates there."""
    assert state.pool is not None
    there = state.pool.reweight(state.plan.phi)
    runs = [tempered.run for tempered in state.pool.runs if tempered.run is not None]
    has_positions = [found.positions is not None for found in runs]
    weights = np.exp(there.log_weights)
    if any(has_positions):  # otherwise draws that came from elsewhere may not say where the sampler was
        weights = weights[np.repeat(has_positions, [len(tempered.flat) for tempered in state.pool.runs])]
        runs = [found for found in runs if found.positions is not None]
    weights = weights / weights.sum()
    few = np.count_nonzero(weights) < sampler.n_chains
    chosen = rng.choice(len(weights), sampler.n_chains, replace=bool(few), p=weights)
    shared = [name for name in runs[0].variables if all(name in found.variables for found in runs)]
    variables: dict[str, Array] = {
        name: np.concatenate([found.flat_variables[name] for found in runs])[chosen] for name in shared
    }
    adaptation = runs[-1].adaptation
    if not any(has_positions):
        return Start(variables, None, None, adaptation)
    positions = np.concatenate([found.flat_positions for found in runs])
    covariance = shrunken_covariance(positions, weights, there.effective_size)
    return Start(variables, positions[chosen], covariance, adaptation)


def add(problem: Problem, policy: TemperingPolicy, state: Tempering, found: Run) -> Tempering:
    """Measure a run, compare it with its prediction, and put it into the pool."""
    phi, is_final = state.plan.phi, state.plan.is_final
    tempered = TemperedRun.of(problem.evaluate(found), phi, found)
    r_hat, r_hat_of = find_worst_r_hat(found, tempered.values, problem.labels)
    tempered = replace(tempered, r_hat=r_hat, r_hat_of=r_hat_of, is_final=is_final)
    if state.pool is None or state.plan.is_first:  # a longer run of the posterior replaces shorter ones
        earlier = tuple(replace(one, is_discarded=True) for one in state.runs)
        return replace(state, runs=(*earlier, tempered), pool=pool_runs([tempered]))
    there = state.pool.reweight(phi)
    away = np.abs(tempered.expectation - there.expectation)
    tempered = replace(
        tempered,
        predicted=there.expectation,
        discrepancy=measure_discrepancy(tempered, there.expectation, state.pool.error_of_expectation(there)),
        is_discarded=not is_final and bool(np.any(away > policy.max_shift * np.sqrt(np.diag(there.covariance)))),
    )
    state = replace(state, runs=(*state.runs, tempered))
    if tempered.is_discarded:
        return state
    assert state.pool is not None
    guess = np.append(state.pool.log_partitions, there.log_partition)
    return replace(state, pool=pool_runs([*state.pool.runs, tempered], guess))


def decide(problem: Problem, policy: TemperingPolicy, state: Tempering) -> Tempering:
    """Plan the next run, or end."""
    last = state.runs[-1]
    if state.plan.is_first:
        if last.r_hat > policy.max_start_r_hat or state.rough:
            return _extend_first(problem, state)
        rough = problem.find_rough(last.run)
        if rough:
            return _extend_first(problem, replace(state, rough=rough))
    if last.is_final:
        state = judge(problem, policy, state)
        if state.ending is not None or state.plan.is_final:
            return state
    if sum(one.is_discarded and bool(np.any(one.multipliers)) for one in state.runs) >= policy.max_discarded:
        assert last.run is not None
        escape = find_ascent(problem.sampler, problem.tilt(last.multipliers), last.run)
        if escape is not None:
            return state.end(Status.IMPROPER, _no_normalizer(escape))
        return state.end(
            Status.UNRELIABLE,
            "Several runs were far from what earlier ones predicted. A function's tail is too heavy for this tilt, "
            "modes appear with it, or no distribution has these expectations. Constrain a function with a lighter tail "
            "(a logarithm, a probability), or soften the constraints.",
        )
    if last.is_discarded:  # half the way again: the next run extends the pool towards it
        assert state.pool is not None
        middle = 0.5 * (state.pool.runs[-1].multipliers + last.multipliers)
        return _with_normalizer(problem, policy, state, Plan(middle, policy.short_draws, state.plan.stacked))
    return plan_next(problem, policy, state)


def _extend_first(problem: Problem, state: Tempering) -> Tempering:
    """Draw more of the posterior: its chains disagree, or its own draws are all that there can be."""
    last = state.runs[-1]
    if last.n_draws < problem.n_draws:
        return replace(state, plan=replace(state.plan, n_draws=problem.n_draws))
    if state.rough:
        return state.end(Status.OPTIMAL)
    reason = (
        f"The chains do not converge even without a tilt: R-hat of {last.r_hat_of} is {last.r_hat:.2f} in "
        f"{last.n_chains} chains of {last.n_draws} draws. They are in different modes or mix too slowly. Reparametrize "
        "the model or use stronger priors until plain sampling converges."
    )
    return replace(state, ending=Ending(Status.UNRELIABLE, (reason,), is_refusal=True))


def judge(problem: Problem, policy: TemperingPolicy, state: Tempering) -> Tempering:
    """Take a final run for the solution, or say what speaks against it."""
    last, pool = state.runs[-1], state.pool
    assert pool is not None
    assert last.run is not None
    logs = -last.flat @ last.multipliers
    atoms = WeightedAtoms(last.flat, logs - logsumexp(logs))
    spread = last.flat.std(axis=0)
    atoms.unit = np.where(spread > 0, spread, atoms.unit)
    solution = solve_dual(atoms, problem.stack, warm_start=state.plan.stacked, watch=False)
    move = solution.multipliers - last.multipliers
    remaining = 0.5 * float(np.mean(((last.flat - last.expectation) @ move) ** 2))
    state = replace(state, runs=(*state.runs[:-1], replace(last, remaining_kl=remaining)))
    there = pool_runs([last]).reweight(solution.multipliers)
    is_reached = solution.status is Status.CONVERGED and there.is_reliable(
        policy.min_final_share * last.effective_size, policy.final_k_hat
    )
    tilt = problem.tilt(solution.multipliers if is_reached else last.multipliers)
    if not tilt.is_none:
        escape = find_escape(problem.sampler, tilt, last.run) or find_ascent(problem.sampler, tilt, last.run)
        if escape is not None:
            return state.end(Status.IMPROPER, _no_normalizer(escape), solution=solution)
    if last.discrepancy > policy.max_discrepancy:
        return state.end(
            Status.UNRELIABLE,
            "The last run contradicts what earlier runs predicted of it: expectations differ by "
            f"{math.sqrt(last.discrepancy):.1f} times what Monte Carlo error explains. A mode may have been missed, or "
            "chains mix too slowly. Reparametrize the model or raise n_draws.",
            solution=solution,
        )
    n_finals = sum(tempered.is_final for tempered in state.runs)
    if not is_reached:
        reason = "The last run missed the constraints by more than its draws can be reweighted."
        if n_finals >= policy.max_final_runs:
            return state.end(Status.UNRELIABLE, *state.reasons, reason, solution=solution)
        return replace(state, plan=replace(state.plan, is_final=False))
    again = Plan(solution.multipliers, problem.n_draws, solution.stacked, is_final=True)
    reasons = (*check_chains(last, last.run, policy), *find_missed(pool, policy))
    if reasons and n_finals == 1:
        return replace(state, plan=again, reasons=reasons)
    if reasons:
        return state.end(Status.UNRELIABLE, *reasons, solution=solution)
    mc_error = len(solution.multipliers) / (2 * last.effective_size)
    if problem.accuracy is None or mc_error <= problem.accuracy:
        return state.end(Status.OPTIMAL, solution=solution)
    needed = math.ceil(1.1 * last.n_draws * mc_error / problem.accuracy)
    if needed <= policy.max_draws and n_finals < policy.max_final_runs:
        return replace(state, plan=replace(again, n_draws=needed))
    return state.end(
        Status.ITERATION_LIMIT,
        f"The Monte Carlo error is {mc_error:.1g} nats; accuracy={problem.accuracy:.1g} would take about {needed} "
        "draws per chain. Set n_draws to that, or raise accuracy.",
        solution=solution,
    )


def plan_next(problem: Problem, policy: TemperingPolicy, state: Tempering) -> Tempering:
    """Choose the next run by what the pool knows."""
    pool, last, stacked = state.pool, state.runs[-1], state.plan.stacked
    assert pool is not None
    atoms = WeightedAtoms(pool.values, pool.log_weights)
    solution = solve_dual(atoms, problem.stack, tol=1e-8, warm_start=stacked, watch=False)
    is_solved = solution.status is Status.CONVERGED
    target = _newton_target(problem, pool, last.multipliers)
    away = target.multipliers - last.multipliers
    here = pool.reweight(last.multipliers)
    state = _note_remaining(state, 0.5 * float(away @ here.covariance @ away))
    if is_solved and pool.reweight(solution.multipliers).is_reliable(policy.min_ess, policy.final_k_hat):
        plan = Plan(solution.multipliers, problem.n_draws, solution.stacked, is_final=True)
        return _with_normalizer(problem, policy, state, plan)
    if not is_solved:
        verdict = examine(atoms, problem.stack)
        proof = verdict.proof if verdict.constant else find_constant(pool, problem.stack)
        if proof is not None:
            return state.end(Status.INFEASIBLE, describe_contradiction(pool, problem.stack, problem.labels, proof))
    remaining = [tempered.remaining_kl for tempered in state.runs if not math.isnan(tempered.remaining_kl)]
    if len(remaining) - 1 - int(np.argmin(remaining)) >= policy.max_stalled and remaining[-1] > 1.0:
        return state.end(
            Status.NOT_ATTAINED,
            f"The last {policy.max_stalled} runs came no nearer to the constraints, {remaining[-1]:.3g} nats away. "
            "They may be outside the range of the functions. Check that range, or soften the constraints: "
            "(E(f) == b).soft(penalty).",
        )
    if here.effective_size < policy.min_step_ess:
        return replace(state, plan=Plan(last.multipliers, min(2 * last.n_draws, problem.n_draws), stacked))
    share = _find_share(pool, last.multipliers, away, policy)
    if share == 1.0 and is_solved:  # the Newton step falls short of what the weights allow
        target, away = solution, solution.multipliers - last.multipliers
        share = _find_share(pool, last.multipliers, away, policy)
    ahead = stacked + share * (target.stacked - stacked)
    plan = Plan(last.multipliers + share * away, policy.short_draws, ahead)
    return _with_normalizer(problem, policy, state, plan)


def _newton_target(problem: Problem, pool: Pool, phi: Floats) -> DualSolution:
    """Solve the dual as if the functions were Gaussian with the moments that they have at phi."""
    here = pool.reweight(phi)
    covariance = here.covariance + np.diag(1e-8 * np.diag(here.covariance) + 1e-300)
    values, vectors = np.linalg.eigh(covariance)
    factor = vectors * np.sqrt(np.maximum(values, 0.0))
    mean = here.expectation - covariance @ phi
    affine = GaussianAffine(mean, factor, np.finfo(np.float64).eps * np.abs(mean))
    return solve_dual(affine, problem.stack, tol=1e-8, watch=False)


def _find_share(pool: Pool, phi: Floats, away: Floats, policy: TemperingPolicy) -> float:
    """The share of a step up to which the pool's weights are reliable, by bisection."""

    def is_reliable(share: float) -> bool:
        return pool.reweight(phi + share * away).is_reliable(policy.min_step_ess, policy.max_k_hat)

    if is_reliable(1.0):
        return 1.0
    low, high = 0.0, 1.0
    for _ in range(MAX_HALVINGS):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if is_reliable(middle) else (low, middle)
    return low or high


def _with_normalizer(problem: Problem, policy: TemperingPolicy, state: Tempering, plan: Plan) -> Tempering:
    """Take the plan where its tilt has a normalizing constant, and a shorter step otherwise."""
    assert state.pool is not None
    last = state.pool.runs[-1]
    assert last.run is not None
    escape = None
    for _ in range(MAX_HALVINGS):
        escape = find_escape(problem.sampler, problem.tilt(plan.phi), last.run) if np.any(plan.phi) else None
        if escape is None:
            return replace(state, plan=plan)
        plan = Plan(0.5 * (last.multipliers + plan.phi), policy.short_draws, state.plan.stacked)
    return state.end(Status.IMPROPER, _no_normalizer(escape or ""))


def _no_normalizer(escape: str) -> str:
    return (
        f"The regularized posterior p exp<multipliers, psi> has no normalizing constant: {escape}. The tail of a "
        "function is too heavy. Constrain one with a lighter tail, such as a logarithm or a probability."
    )


def _note_remaining(state: Tempering, nats: float) -> Tempering:
    if not math.isnan(state.runs[-1].remaining_kl):
        return state
    return replace(state, runs=(*state.runs[:-1], replace(state.runs[-1], remaining_kl=nats)))
