"""Diagnostics of tempered runs: chains, predictions, missed modes and improper tilts."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np
from scipy.stats import chi2

from regbayes._types import Floats, Integers
from regbayes.regularization.composite import Stack
from regbayes.regularization.diagnostics import rank_r_hat
from regbayes.resampling.policy import TemperingPolicy
from regbayes.resampling.pool import Pool, TemperedRun
from regbayes.resampling.sampler import Run, Sampler, Tilt

MAX_SCALARS = 500  # maximum number of entries per variable whose R-hat is computed
RAY_STARTS, MAX_RAYS = 4, 64
RAY_LENGTHS = np.append(0.0, 2.0 ** np.arange(21))  # points on a ray, in standard deviations
RISE_NATS = 10.0  # minimum increase of the log-density of an unbounded density
ASCENT_STARTS, ASCENT_STEPS = 3, 60  # number of starting draws; L-BFGS steps of each of two parts
PUSHES = ((1.0, 0), (3.0, 150), (10.0, 150))  # multiplier scale and L-BFGS steps before an ascent
FAR_SCORES = 100.0  # minimum gain of each part, in standard deviations of <multipliers, psi>
MIN_MISSED_DRAWS = 10  # minimum effective draws of earlier runs in a missed region


def measure_discrepancy(run: TemperedRun, predicted: Floats, error: Floats) -> float:
    """Squared prediction error relative to its 99.9% Monte Carlo quantile."""
    covariance = run.error + error
    rounding = 1e-12 * np.maximum(np.abs(run.expectation), np.abs(predicted)) + 1e-300  # functions may be constant
    spread = np.maximum(np.sqrt(np.maximum(np.diag(covariance), 0.0)), rounding)
    z = (run.expectation - predicted) / spread
    correlation = covariance / np.outer(spread, spread)
    values, vectors = np.linalg.eigh(0.5 * (correlation + correlation.T))
    kept = values > 1e-6 * max(float(values[-1]), 1.0)  # drops linearly dependent functions
    if not kept.any():
        return 0.0
    squared = float(np.sum((vectors[:, kept].T @ z) ** 2 / values[kept]))
    return squared / float(chi2.ppf(0.999, int(kept.sum())))


def find_worst_r_hat(run: Run, values: Floats, labels: Sequence[str]) -> tuple[float, str]:
    """Return the largest R-hat of constrained functions and scalars, and its name."""
    worst, worst_name = 1.0, "the constrained functions"
    functions = ((f"the function in {label}", values[..., j]) for j, label in enumerate(labels))
    for name, chains in (*functions, *_scalars(run)):
        r_hat = rank_r_hat(chains)
        if math.isnan(r_hat):
            r_hat = 1.0 if np.all(np.isfinite(chains)) else math.inf
        if r_hat > worst:
            worst, worst_name = r_hat, name
    return worst, worst_name


def _scalars(run: Run) -> Iterator[tuple[str, Floats]]:
    """Yield name and draws (n_chains, n_draws) of scalars in the variables, evenly thinned if many."""
    for name, array in run.variables.items():
        if array.dtype.kind not in "iuf" or 0 in array.shape:
            continue
        flat = np.asarray(array, dtype=np.float64).reshape(*array.shape[:2], -1)
        for i in _evenly(flat.shape[2], MAX_SCALARS):
            index = np.unravel_index(i, array.shape[2:])
            yield name + (f"[{', '.join(map(str, index))}]" if array.ndim > 2 else ""), flat[..., i]


def _evenly(n: int, at_most: int) -> Integers:
    return np.unique(np.linspace(0, n - 1, min(n, at_most)).round().astype(np.int64))


def check_chains(tempered: TemperedRun, run: Run, policy: TemperingPolicy) -> list[str]:
    """Return messages about failed chain diagnostics of a final run."""
    messages = []
    n = tempered.n_chains * tempered.n_draws
    if tempered.r_hat > policy.max_r_hat:
        messages.append(
            f"R-hat of {tempered.r_hat_of} is {tempered.r_hat:.2f}, above {policy.max_r_hat}: the chains mix too "
            "slowly or are in different modes. Reparametrize the model or raise n_draws."
        )
    if tempered.divergences > policy.max_divergences * n:
        messages.append(
            f"{tempered.divergences} of {n} draws diverged, so expectations may be biased. Reparametrize the model, "
            "for example with a non-centered parametrization."
        )
    if "energy" in run.statistics:
        energy = np.asarray(run.statistics["energy"], dtype=np.float64)
        changes, spread = np.mean(np.diff(energy, axis=1) ** 2, axis=1), energy.var(axis=1)
        e_bfmi = float(np.min(np.divide(changes, spread, out=np.ones_like(changes), where=spread > 0)))
        if e_bfmi < policy.min_e_bfmi:
            messages.append(
                f"E-BFMI is {e_bfmi:.2f}, below {policy.min_e_bfmi}: the chains explore the tails too slowly. "
                "Reparametrize the model."
            )
    if tempered.effective_size < policy.min_ess:
        messages.append(
            f"Only {tempered.effective_size:.0f} effective draws of {n} for the constrained functions. Raise n_draws."
        )
    return messages


def find_missed(pool: Pool, policy: TemperingPolicy) -> list[str]:
    """Return a message if short runs visited a region missed by the last run.

    All scalar variables are compared, because constrained functions may be equal in two modes.
    """
    last = pool.runs[-1]
    is_short = np.repeat([not run.is_final for run in pool.runs], [len(run.flat) for run in pool.runs])
    weights = np.exp(pool.reweight(last.multipliers).log_weights)[is_short]
    weights = weights / weights.sum()
    earlier = [dict(_scalars(run.run)) for run in pool.runs if not run.is_final]
    for name, chains in _scalars(last.run):
        if not all(name in scalars for scalars in earlier):
            continue
        values, margin = np.concatenate([scalars[name].ravel() for scalars in earlier]), float(chains.std())
        outside = weights[(values < chains.min() - margin) | (values > chains.max() + margin)]
        share = float(outside.sum())
        if share > policy.max_missed and share**2 > MIN_MISSED_DRAWS * float(np.sum(outside**2)):
            return [
                f"The last run missed a region that earlier runs visited: under its tilt, {share:.0%} of their draws "
                f"have values of {name} outside the range of its own. The regularized posterior has another mode, or "
                "chains mix too slowly. Reparametrize the model or raise n_draws."
            ]
    return []


def find_escape(sampler: Sampler, tilt: Tilt, run: Run, climbs: bool = False) -> str | None:
    """Search along coordinates for an unbounded tilted density, and if ``climbs`` uphill from a few draws."""
    if run.positions is None or sampler.log_density(tilt, run.positions[:1, 0]) is None:
        return None

    def grows(factor: Tilt, points: Floats) -> bool:
        """Whether the last finite values increase far above the first one."""
        values = sampler.log_density(factor, points)
        assert values is not None
        known = values[np.isfinite(values)]
        return bool(np.isfinite(values[0]) and len(known) >= 4 and known[-1] > max(known[-2], values[0] + RISE_NATS))

    positions = run.flat_positions
    origins = positions[_evenly(len(positions), RAY_STARTS)]
    for i in _evenly(positions.shape[1], MAX_RAYS):
        unit = np.zeros(positions.shape[1])
        unit[i] = positions[:, i].std()
        for direction, origin in itertools.product((unit, -unit), origins):
            points = origin + RAY_LENGTHS[:, None] * direction
            if grows(tilt, points) and not grows(tilt.none, points):
                return f"its density grows without end along {_name_coordinate(positions[:, i], i, run)}"
    if climbs and _has_ascent(sampler, tilt, run):
        return "its density grows without end on a path uphill from a draw"
    return None


def _name_coordinate(coordinate: Floats, i: int, run: Run) -> str:
    """Name a variable that is a monotone function of the given coordinate."""
    order = np.argsort(coordinate, kind="stable")
    for name, values in _scalars(run):
        steps = np.diff(values.reshape(-1)[order])
        if np.any(steps != 0) and (np.all(steps >= 0) or np.all(steps <= 0)):
            return name
    return f"coordinate {i} of the sampler"


def _has_ascent(sampler: Sampler, tilt: Tilt, run: Run) -> bool:
    """Maximize the tilted density from a few draws to detect that it is unbounded.

    Unlike rays, ascents move several coordinates together, for example the scale and length of a Gaussian process. Some
    ascents start from the maximizer of a stronger tilt, to cross valleys of the density. Each ascent has two parts, and
    the density must increase far in both while the posterior's decreases.
    """
    positions, scores = run.flat_positions, np.nan_to_num(tilt(run.flat_variables), nan=-np.inf)
    spread = np.maximum(positions.std(axis=0), 1e-12)
    far = FAR_SCORES * float(np.std(scores[np.isfinite(scores)]))

    def look(position: Floats) -> Floats:
        return np.ravel([sampler.log_density(factor, position[None]) for factor in (tilt, tilt.none)])

    def leaves_for_good(position: Floats) -> bool:
        tilted, plain = look(position)
        for _ in range(2):
            position = sampler.climb(tilt, position, spread, ASCENT_STEPS)
            before, (tilted, plain) = (tilted, plain), look(position)
            rises = tilted > before[0] + RISE_NATS and plain < before[1]
            if not (rises and tilted - plain > before[0] - before[1] + far):
                return False
        return True

    ranked = positions[np.argsort(scores)[::-1]]
    for origin in ranked[[(i * (len(ranked) - 1)) // ASCENT_STARTS for i in range(ASCENT_STARTS)]]:
        for push, n_steps in PUSHES:
            stronger = Tilt(tilt.features, push * tilt.multipliers)
            if leaves_for_good(sampler.climb(stronger, origin, spread, n_steps) if n_steps else origin):
                return True
    return False


def describe_contradiction(pool: Pool, stack: Stack, labels: Sequence[str], proof: Floats) -> str:
    """Describe infeasible constraints whose combination is constant over draws."""
    unit, used = proof[np.argmax(np.abs(proof))], np.abs(proof) > 1e-9 * np.abs(proof).max()
    combined = pool.values[:, stack.index] @ (proof / unit)
    required = float(proof[used] @ np.where(proof > 0, *stack.domain)[used]) / unit
    constant = combined.mean() if abs(combined.mean()) > 1e-9 * np.abs(combined).max(initial=abs(required)) else 0.0
    names = list(dict.fromkeys(labels[i] for i in stack.index[used]))
    what = "its function" if len(names) == 1 else "a combination of their functions"
    return (
        f"{' and '.join(names)} cannot be met: {what} is {constant:.6g} for all {len(combined)} draws, and would have "
        f"to be {required:.6g}. Remove a constraint, or soften it: (E(f) == b).soft(penalty)."
    )
