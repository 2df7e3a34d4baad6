"""Adaptive tempering: sample a model under a sequence of tilts.

The goal is the phi for which ``q ∝ p exp<phi, psi>`` solves docs/math.md eq. (1), when draws of p are too far from q
for reweighting. A sampler can draw from the tilt at any phi.

1. A short run draws from p.
2. The draws of all runs are pooled by multistate reweighting (`pool`), and the dual is solved on the pool.
3. If the weights at the solution are reliable, a long run is made there. Otherwise a short run is made along the Newton
   step from the last run, as far as the weights are reliable.
4. A long run is accepted if its slightly reweighted draws satisfy the constraints, it agrees with the prediction of the
   pool, and its chains pass the diagnostics (`checks`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.special import logsumexp

from regbayes._types import Floats
from regbayes.engine import Callback, Status, StepResult, run
from regbayes.regularization.composite import Stack
from regbayes.regularization.draws import as_draws
from regbayes.regularization.dual import solve_dual
from regbayes.regularization.dual.problem import DualSolution
from regbayes.regularization.feasibility import examine
from regbayes.regularization.features import evaluate_features
from regbayes.regularization.log_partition import GaussianAffine, WeightedAtoms
from regbayes.resampling.checks import (
    check_chains,
    describe_contradiction,
    find_escape,
    find_missed,
    find_worst_r_hat,
    measure_discrepancy,
)
from regbayes.resampling.policy import TemperingPolicy
from regbayes.resampling.pool import Pool, TemperedRun, pool_runs
from regbayes.resampling.sampler import Run, Sampler, Start, Tilt, shrunken_covariance

MAX_HALVINGS = 12
MAX_DRAWS = 50_000  # maximum draws per chain, for any accuracy
NO_RUNS = Pool((), np.zeros(0), np.zeros((0, 0)), np.zeros(0), np.zeros((0, 0)))


class SamplingError(RuntimeError):
    """The model could not be sampled under the constraints.

    ``runs`` contains the tempered runs, each with ``run.variables``, ``values`` of the constrained functions and
    ``multipliers``. ``result`` is the partial result with its status, or None if the sampler failed.
    """

    def __init__(self, message: str, runs: tuple[TemperedRun, ...] = (), result: Any = None) -> None:
        super().__init__(message)
        self.runs = runs
        self.result = result


@dataclass(frozen=True, eq=False)
class Problem:
    """A model and the constraints on it."""

    sampler: Sampler
    functions: tuple[Any, ...]  # the user's functions, one entry per constraint
    stack: Stack
    labels: tuple[str, ...]  # (m,): labels of the constrained expectations
    n_draws: int  # draws per chain of a final run
    accuracy: float | None  # maximum Monte Carlo error in nats; None uses n_draws
    seed: int

    def tilt(self, phi: Floats) -> Tilt:
        """Return the tilt with the given multipliers."""
        return Tilt(self.functions, phi)

    def measure(self, phi: Floats, found: Run) -> TemperedRun:
        """Evaluate the constrained functions of a run's draws."""
        draws = as_draws(found.variables, chains=True)
        values = np.concatenate([evaluate_features(draws, part).values for part in self.functions], axis=1)
        if values.shape[1] != self.stack.n_features:
            raise ValueError(
                f"The functions returned {self.stack.n_features} columns at first and {values.shape[1]} now."
            )
        tempered = TemperedRun.of(values.reshape(draws.n_chains, draws.n_draws, -1), phi, found)
        r_hat, r_hat_of = find_worst_r_hat(found, tempered.values, self.labels)
        return replace(tempered, r_hat=r_hat, r_hat_of=r_hat_of)


@dataclass(frozen=True, eq=False)
class Plan:
    """Multipliers and length of the next run."""

    phi: Floats  # (m,)
    n_draws: int
    is_final: bool = False

    @property
    def is_first(self) -> bool:
        """Whether the run draws from the posterior without a tilt, before all others."""
        return not self.is_final and not np.any(self.phi)


@dataclass(frozen=True, eq=False)
class Tempering:
    """State of tempering: the runs so far and the next plan or the final status."""

    plan: Plan
    runs: tuple[TemperedRun, ...] = ()
    pool: Pool = NO_RUNS  # pool of the runs that were not discarded
    status: Status | None = None  # set at the end
    reasons: tuple[str, ...] = ()  # reasons for the status
    solution: DualSolution | None = None  # solution on the draws of the last run, if that is returned

    def end(self, status: Status, *reasons: str, solution: DualSolution | None = None) -> Tempering:
        """Return the final state with a status and its reasons."""
        return replace(self, status=status, reasons=reasons, solution=solution)

    def with_last(self, **changes: Any) -> Tempering:
        """Return the state with changes to the last run."""
        return replace(self, runs=(*self.runs[:-1], replace(self.runs[-1], **changes)))

    @property
    def returned(self) -> int:
        """Index of the returned run: the solution, or else the nearest to the constraints."""
        known = [] if self.solution else [(r.remaining_kl, -i) for i, r in enumerate(self.runs)]
        known = [(kl, i) for kl, i in known if not math.isnan(kl)]
        return -min(known)[1] if known else len(self.runs) - 1


def temper(
    problem: Problem,
    max_iter: int,
    policy: TemperingPolicy,
    given: Run | None = None,
    callbacks: Sequence[Callback] = (),
) -> Tempering:
    """Sample until the constraints are met or a stopping rule applies.

    ``given`` are draws of the posterior that replace the first run. Callbacks are called after every run with
    `engine.Progress`, whose state is the `Tempering`.
    """
    start = Tempering(Plan(np.zeros(problem.stack.n_features), policy.short_draws))
    if given is not None:
        start = decide(problem, policy, add(problem, policy, start, given))
        if start.status is not None:
            return start

    def step(state: Tempering) -> StepResult[Tempering]:
        try:
            state = decide(problem, policy, add(problem, policy, state, draw(problem, state)))
        except Exception as error:
            n, runs = len(state.runs), state.runs
            kept = f" The {n} earlier runs are in the attribute runs of this error." if runs else ""
            raise SamplingError(f"The sampler failed in run {n}: {str(error).rstrip('.')}.{kept}", runs) from error
        remaining = state.runs[-1].remaining_kl
        terms = {"remaining_kl": remaining if math.isfinite(remaining) else 0.0}
        return StepResult(state, terms, status=state.status)

    result = run(step, start, max_iter=max_iter, callbacks=callbacks, keep="last", stage="runs")
    state = result.state
    if state.status is not None:
        return state
    if not state.runs:
        raise KeyboardInterrupt
    reason = "Interrupted" if result.status is Status.INTERRUPTED else "Stopped by a callback"
    reason += ": the draws are those of the run nearest to the constraints."
    if result.status is Status.ITERATION_LIMIT:
        reason = (
            f"The constraints are about {state.runs[-1].remaining_kl:.3g} nats away after {len(state.runs)} runs. "
            "Raise max_iter, or soften the constraints: (E(f) == b).soft(penalty)."
        )
    return state.end(result.status, reason)


def draw(problem: Problem, state: Tempering) -> Run:
    """Draw the planned run."""
    seeds = np.random.SeedSequence([problem.seed, len(state.runs)]).generate_state(2)
    plan = state.plan
    start = None if plan.is_first else _find_start(problem.sampler, state, np.random.default_rng(seeds[0]))
    tilt = problem.tilt(plan.phi)
    return problem.sampler.draw(tilt, plan.n_draws, seed=int(seeds[1]), start=start, final=plan.is_final)


def _find_start(sampler: Sampler, state: Tempering, rng: np.random.Generator) -> Start:
    """Resample earlier draws for the next tilt and estimate their covariance under it."""
    pool = state.pool
    known = [one for one in pool.runs if one.run.positions is not None]
    if 0 < len(known) < len(pool.runs):  # external draws may have no positions
        pool = pool_runs(known)
    there = pool.reweight(state.plan.phi)
    weights = np.exp(there.log_weights)
    few = np.count_nonzero(weights) < sampler.n_chains
    chosen = rng.choice(len(weights), sampler.n_chains, replace=bool(few), p=weights)
    runs = [one.run for one in pool.runs]
    shared = [name for name in runs[0].variables if all(name in found.variables for found in runs)]
    variables = {name: np.concatenate([found.flat_variables[name] for found in runs])[chosen] for name in shared}
    if not known:
        return Start(variables, None, None, runs[-1].adaptation)
    positions = np.concatenate([found.flat_positions for found in runs])
    covariance = shrunken_covariance(positions, weights, there.effective_size)
    return Start(variables, positions[chosen], covariance, runs[-1].adaptation)


def add(problem: Problem, policy: TemperingPolicy, state: Tempering, found: Run) -> Tempering:
    """Evaluate a run, compare it with its prediction and add it to the pool."""
    phi, is_final = state.plan.phi, state.plan.is_final
    tempered = replace(problem.measure(phi, found), is_final=is_final)
    if state.plan.is_first:  # a longer run of the posterior replaces shorter ones
        earlier = tuple(replace(one, is_discarded=True) for one in state.runs)
        return replace(state, runs=(*earlier, tempered), pool=pool_runs([tempered]))
    there = state.pool.reweight(phi)
    away = np.abs(tempered.expectation - there.expectation)
    tempered = replace(
        tempered,
        discrepancy=measure_discrepancy(tempered, there.expectation, state.pool.error_of_expectation(there)),
        is_discarded=not is_final and bool(np.any(away > policy.max_shift * np.sqrt(np.diag(there.covariance)))),
    )
    state = replace(state, runs=(*state.runs, tempered))
    if tempered.is_discarded:
        return state
    guess = np.append(state.pool.log_partitions, there.log_partition)
    return replace(state, pool=pool_runs([*state.pool.runs, tempered], guess))


def decide(problem: Problem, policy: TemperingPolicy, state: Tempering) -> Tempering:
    """Plan the next run or end with a status."""
    last = state.runs[-1]
    if state.plan.is_first and last.r_hat > policy.max_start_r_hat:
        if last.n_draws < problem.n_draws:
            return replace(state, plan=replace(state.plan, n_draws=problem.n_draws))
        return state.end(Status.UNRELIABLE, describe_bad_start(last))
    if last.is_final:
        state = judge(problem, policy, state)
        if state.status is not None or state.plan.is_final:
            return state
    state = retreat(policy, state) if last.is_discarded else plan_next(problem, policy, state)
    if state.status is not None:
        return state
    distances = [math.inf if one.is_discarded else one.remaining_kl for one in state.runs]
    distances = [distance for distance in distances if not math.isnan(distance)]
    n_stalled = max(len(distances) - 1 - int(np.argmin(distances)), distances.count(math.inf))
    if n_stalled < policy.max_stalled or distances[-1] <= 1.0:
        return adopt(problem, policy, state)
    escape = find_escape(problem.sampler, problem.tilt(last.multipliers), last.run, climbs=True)
    if escape is not None:
        return _end_improper(state, escape)
    return state.end(
        Status.NOT_ATTAINED,
        f"In {n_stalled} runs the draws came no nearer to the constraints, {min(distances):.3g} nats away. They may be "
        "outside the range of the functions, or a function's tail is too heavy for this tilt. Check that range, "
        "constrain a function with a lighter tail (a logarithm, a probability), or soften the constraints: "
        "(E(f) == b).soft(penalty).",
    )


def retreat(policy: TemperingPolicy, state: Tempering) -> Tempering:
    """Plan half of the step to a discarded run."""
    middle = 0.5 * (state.pool.runs[-1].multipliers + state.runs[-1].multipliers)
    return replace(state, plan=Plan(middle, policy.short_draws))


def describe_bad_start(first: TemperedRun) -> str:
    """Describe that the chains do not converge without a tilt."""
    return (
        f"The chains do not converge even without a tilt: R-hat of {first.r_hat_of} is {first.r_hat:.2f} in "
        f"{first.n_chains} chains of {first.n_draws} draws. They are in different modes or mix too slowly. "
        "Reparametrize the model or use stronger priors until plain sampling converges."
    )


def judge(problem: Problem, policy: TemperingPolicy, state: Tempering) -> Tempering:
    """Accept a final run as the solution, or return its failed diagnostics."""
    last, pool = state.runs[-1], state.pool
    logs = -last.flat @ last.multipliers
    atoms = WeightedAtoms(last.flat, logs - logsumexp(logs))
    solution = solve_dual(atoms, problem.stack, watch=False)
    move = solution.multipliers - last.multipliers
    state = state.with_last(remaining_kl=0.5 * float(np.mean(((last.flat - last.expectation) @ move) ** 2)))
    there = pool_runs([last]).reweight(solution.multipliers)
    is_reached = solution.status is Status.CONVERGED and there.is_reliable(policy.min_ess, policy.max_k_hat)
    tilt = problem.tilt(solution.multipliers if is_reached else last.multipliers)
    if not tilt.is_none:
        escape = find_escape(problem.sampler, tilt, last.run, climbs=True)
        if escape is not None:
            return replace(_end_improper(state, escape), solution=solution)
    if last.discrepancy > policy.max_discrepancy:
        return state.end(
            Status.UNRELIABLE,
            "The last run contradicts what earlier runs predicted of it: expectations differ by "
            f"{math.sqrt(last.discrepancy):.1f} times what Monte Carlo error explains. A mode may have been missed, or "
            "chains mix too slowly. Reparametrize the model or raise n_draws.",
            solution=solution,
        )
    again = replace(state.plan, is_final=False)  # an unreached solution is not a valid tilt for the next run
    if is_reached:
        again = Plan(solution.multipliers, problem.n_draws, is_final=True)
    objections = [*check_chains(last, last.run, policy), *find_missed(pool, policy)]
    if not is_reached:
        objections.append("The last run missed the constraints by more than its draws can be reweighted.")
    if objections and sum(tempered.is_final for tempered in state.runs) < policy.max_final_runs:
        return replace(state, plan=again)
    if objections:
        return state.end(Status.UNRELIABLE, *objections, solution=solution)
    mc_error = len(solution.multipliers) / (2 * there.effective_size)
    if problem.accuracy is None or mc_error <= problem.accuracy:
        return state.end(Status.OPTIMAL, solution=solution)
    needed = math.ceil(1.1 * last.n_draws * mc_error / problem.accuracy)
    if needed <= MAX_DRAWS:
        return replace(state, plan=replace(again, n_draws=needed))
    return state.end(
        Status.ITERATION_LIMIT,
        f"The Monte Carlo error is {mc_error:.1g} nats; accuracy={problem.accuracy:.1g} would take about {needed} "
        "draws per chain. Set n_draws to that, or raise accuracy.",
        solution=solution,
    )


def plan_next(problem: Problem, policy: TemperingPolicy, state: Tempering) -> Tempering:
    """Plan a final run at the solution on the pool if that is reliable, or a step towards it."""
    pool, last = state.pool, state.runs[-1]
    atoms = WeightedAtoms(pool.values, pool.log_weights)
    solution = solve_dual(atoms, problem.stack, tol=1e-8, watch=False)
    is_solved = solution.status is Status.CONVERGED
    away = _newton_target(problem, pool, last.multipliers) - last.multipliers
    here = pool.reweight(last.multipliers)
    if math.isnan(last.remaining_kl):
        state = state.with_last(remaining_kl=0.5 * float(away @ here.covariance @ away))
    if is_solved and pool.reweight(solution.multipliers).is_reliable(policy.min_ess, policy.max_k_hat):
        return replace(state, plan=Plan(solution.multipliers, problem.n_draws, is_final=True))
    if not is_solved:
        verdict = examine(atoms, problem.stack)
        if verdict.proof is not None:
            values = pool.values[:, problem.stack.index[verdict.proof != 0]]
            if verdict.constant or np.all(np.ptp(values, axis=0) <= 1e-12 * np.abs(values[0])):
                reason = describe_contradiction(pool, problem.stack, problem.labels, verdict.proof)
                return state.end(Status.INFEASIBLE, reason)
    if here.effective_size < policy.min_step_ess:
        return replace(state, plan=Plan(last.multipliers, min(2 * last.n_draws, problem.n_draws)))
    share = _find_share(pool, last.multipliers, away, policy)
    return replace(state, plan=Plan(last.multipliers + share * away, policy.short_draws))


def _newton_target(problem: Problem, pool: Pool, phi: Floats) -> Floats:
    """Solve the dual for Gaussian functions with the moments at phi."""
    here = pool.reweight(phi)
    covariance = here.covariance + np.diag(1e-8 * np.diag(here.covariance) + 1e-300)
    values, vectors = np.linalg.eigh(covariance)
    factor = vectors * np.sqrt(np.maximum(values, 0.0))
    mean = here.expectation - covariance @ phi
    affine = GaussianAffine(mean, factor, np.finfo(np.float64).eps * np.abs(mean))
    return solve_dual(affine, problem.stack, tol=1e-8, watch=False).multipliers


def _find_share(pool: Pool, phi: Floats, away: Floats, policy: TemperingPolicy) -> float:
    """Find the largest fraction of a step with reliable weights by bisection."""

    def is_reliable(share: float) -> bool:
        return pool.reweight(phi + share * away).is_reliable(policy.min_step_ess, policy.max_k_hat)

    if is_reliable(1.0):
        return 1.0
    low, high = 0.0, 1.0
    for _ in range(MAX_HALVINGS):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if is_reliable(middle) else (low, middle)
    return low or high


def adopt(problem: Problem, policy: TemperingPolicy, state: Tempering) -> Tempering:
    """Halve the planned step until its tilt has a normalizing constant."""
    last, plan, escape = state.pool.runs[-1], state.plan, None
    for _ in range(MAX_HALVINGS):
        escape = find_escape(problem.sampler, problem.tilt(plan.phi), last.run) if np.any(plan.phi) else None
        if escape is None:
            return replace(state, plan=plan)
        plan = Plan(0.5 * (last.multipliers + plan.phi), policy.short_draws)
    return _end_improper(state, escape)


def _end_improper(state: Tempering, escape: str | None) -> Tempering:
    return state.end(
        Status.IMPROPER,
        f"The regularized posterior p exp<multipliers, psi> has no normalizing constant: {escape}. The tail of a "
        "function is too heavy. Constrain one with a lighter tail, such as a logarithm or a probability.",
    )
