"""What may speak against a run, and what shows that constraints cannot be met: sentences, or None."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
from scipy.stats import chi2

from regbayes._types import Floats, Integers
from regbayes.regularization.composite import Stack
from regbayes.regularization.diagnostics import rank_r_hat, score_tail
from regbayes.resampling.pool import Pool, Rung
from regbayes.resampling.sampler import Run, Sampler, Tilt, climb_density

R_HAT_SHORT = (1.1, 1.05)  # of the plain posterior: in a short run, and in the longest
R_HAT_FINAL = 1.05
MOST_SCALARS = 500  # whose R-hat is looked at
MOST_DIVERGENCES = 0.002  # share of the draws
FEW_DIVERGENCES = 4
CAREFUL_DIVERGENCES = 0.01  # the same, where a run with smaller steps had fewer and agrees with the one before
FEWER = 0.75
SMALLER = 0.9  # the same for their step size: adaptation ends by chance within some per cent
LEAST_ENERGY = 0.2  # E-BFMI
FEWEST_EFFECTIVE = 100.0
RATIO, RATIOS, SURE = 0.8, 4, 5.0  # of gains round by round that approach a limit; how many; standard errors to it
CLEAR = 0.05  # share of the way that the limit must leave: what only a limit meets is not shown to be impossible
HEAVY_TAIL, STRONG_TILT = 0.05, 1.0  # as for reweighted draws (`result`)
RAY_STARTS, RAY_DIRECTIONS = 4, 64
RAY_LENGTHS = 2.0 ** np.arange(21)  # standard deviations, up to a million
RISEN = 10.0  # nats above its start that a ray must end with
CLIMBS = 3  # draws from which the tilted density is climbed
CLIMB_STEPS = 60  # of each of two legs
PUSHES = ((1.0, 0), (3.0, 150), (10.0, 150))  # how much stronger a tilt leads to where a climb begins, and its steps
BEYOND_SCORES = 100.0  # standard deviations of <multipliers, psi> that a leg must gain
SCAN = np.concatenate([np.linspace(0.25, 12, 48), np.geomspace(12.5, 100, 40)])  # standard deviations
VALLEY, AS_HIGH = 3.0, 5.0  # nats: how deep between two modes, and how much lower the other may be
MISSED, FEW_MISSED = 0.05, 10  # share of earlier draws where the last run has not been, and how many they must be worth
MOST_NAMED = 5  # constraints that a sentence lists
BEYOND = 2.0  # standard deviations outside all draws


def measure_surprise(rung: Rung, predicted: Floats, error: Floats) -> float:
    """Squared distance of a run's expectations from their prediction, over the 99.9 % quantile of what chance does."""
    covariance = rung.error + error
    rounding = 1e-12 * np.maximum(np.abs(rung.mean), np.abs(predicted)) + 1e-300  # features may be constants
    spread = np.maximum(np.sqrt(np.maximum(np.diag(covariance), 0.0)), rounding)
    z = (rung.mean - predicted) / spread
    correlation = covariance / np.outer(spread, spread)
    values, vectors = np.linalg.eigh(0.5 * (correlation + correlation.T))
    kept = values > 1e-6 * max(float(values[-1]), 1.0)  # features that are combinations of others say nothing new
    if not kept.any():
        return 0.0
    squared = float(np.sum((vectors[:, kept].T @ z) ** 2 / values[kept]))
    return squared / float(chi2.ppf(0.999, int(kept.sum())))


def worst_r_hat(run: Run, values: Floats, labels: Sequence[str]) -> tuple[float, str]:
    """Return the largest R-hat of features, by the labels of their constraints, and of scalars; and whose it is."""
    worst, of = 1.0, "the constrained features"

    def look(chains: Floats, name: str) -> None:
        nonlocal worst, of
        found = rank_r_hat(chains)
        if math.isnan(found):
            found = math.inf if not np.all(np.isfinite(chains)) else 1.0
        if found > worst:
            worst, of = found, name

    for j in range(values.shape[2]):
        look(values[..., j], f"the feature in {labels[j]}")
    for name, chains in _scalars(run):
        look(chains, name)
    return worst, of


def _scalars(run: Run) -> Iterator[tuple[str, Floats]]:
    """The numbers in a run's variables, evenly chosen where there are many: name, (n_chains, n_draws)."""
    for name, array in run.variables.items():
        if array.dtype.kind not in "iuf" or 0 in array.shape:
            continue
        flat = np.asarray(array, dtype=np.float64).reshape(*array.shape[:2], -1)
        for i in _evenly(flat.shape[2], MOST_SCALARS):
            index = np.unravel_index(i, array.shape[2:])
            yield name + (f"[{', '.join(map(str, index))}]" if array.ndim > 2 else ""), flat[..., i]


def _evenly(n: int, at_most: int) -> Integers:
    return np.unique(np.linspace(0, n - 1, min(n, at_most)).round().astype(np.int64))


def agrees_with_care(first: Run, second: Run) -> bool:
    """Whether smaller steps made divergences fewer, and left the distribution of every variable as it was.

    What divergences hide depends on the step size: where smaller steps have fewer, and find the same distribution,
    there is no sign that they hid anything. Where the steps are not known to be smaller, fewer are chance.
    """
    sizes = [float(np.mean(run.statistics.get("step_size", math.nan))) for run in (first, second)]
    counts = [int(np.sum(run.statistics.get("diverging", 0))) for run in (first, second)]
    if not sizes[1] < SMALLER * sizes[0] or counts[1] > FEWER * counts[0]:
        return False
    n = min(first.n_draws, second.n_draws)
    known = dict(_scalars(first))
    pairs = ((known[name], chains) for name, chains in _scalars(second) if name in known)
    return all(rank_r_hat(np.concatenate([a[:, -n:], b[:, -n:]])) <= R_HAT_FINAL for a, b in pairs if np.ptp(b) > 0)


def find_doubts(run: Run, rung: Rung, r_hat: float, of: str, careful: bool = False) -> tuple[str, ...]:
    """What speaks against the chains of a final run; ``careful`` where it agrees with one of larger steps."""
    doubts = []
    n = run.n_chains * run.n_draws
    if r_hat > R_HAT_FINAL:
        doubts.append(
            f"the chains differ: R-hat {r_hat:.2f} of {of}, above {R_HAT_FINAL}. They move too slowly, or the tilted "
            "posterior has several modes. Reparametrize the model, or draw more: n_draws."
        )
    divergences = int(np.sum(run.statistics.get("diverging", 0)))
    if divergences > max(FEW_DIVERGENCES, (CAREFUL_DIVERGENCES if careful else MOST_DIVERGENCES) * n):
        doubts.append(
            f"{divergences} of {n} draws diverged: the sampler does not see all of the tilted posterior, and "
            "expectations may be off. Reparametrize the model (a non-centred one, say), or raise the target acceptance."
        )
    if "energy" in run.statistics:
        energy = np.asarray(run.statistics["energy"], dtype=np.float64)
        changes = np.mean(np.diff(energy, axis=1) ** 2, axis=1)
        spread = energy.var(axis=1)
        fraction = float(np.min(np.divide(changes, spread, out=np.ones_like(changes), where=spread > 0)))
        if fraction < LEAST_ENERGY:
            doubts.append(
                f"the chains hardly move between energies (E-BFMI {fraction:.2f}, below {LEAST_ENERGY}): tails are not "
                "seen. Reparametrize the model."
            )
    if rung.effective_size < FEWEST_EFFECTIVE:
        doubts.append(
            f"only {rung.effective_size:.0f} effective draws of {n} for the constrained features. Draw more: n_draws."
        )
    return tuple(doubts)


def has_heavy_tail(first: Rung, phi: Floats) -> str | None:
    """Whether the tail of the score looks as if its exponential had no mean, by the posterior's largest draws."""
    scores = first.flat @ phi
    shape, error = score_tail(scores, first.effective_size / len(scores))
    if shape - 2 * error > HEAVY_TAIL and scores.max() - scores.mean() > STRONG_TILT:
        return (
            "the tilt may not exist: the posterior's tail of <multipliers, psi> looks heavier than exponential (shape "
            f"{shape:.2f} ± {error:.2f}). Constrain a feature with a lighter tail: a logarithm or a probability."
        )
    return None


def find_escape(sampler: Sampler, tilt: Tilt, run: Run) -> str | None:
    """Look along rays for a tilted density that rises without end although the posterior's does not."""
    starts = _ray_starts(sampler, tilt, run)
    if starts is None:
        return None
    origins, directions = starts
    for direction, name in directions:
        for origin in origins:
            points = origin + np.concatenate([[0.0], RAY_LENGTHS])[:, None] * direction
            tilted = sampler.log_density(tilt, points)
            assert tilted is not None
            if not _rises(tilted):
                continue
            plain = sampler.log_density(Tilt(tilt.features, np.zeros_like(tilt.multipliers)), points)
            assert plain is not None
            if not _rises(plain):
                return f"along {name}, its density grows without end"
    return None


def find_ascent(sampler: Sampler, tilt: Tilt, run: Run) -> str | None:
    """Climb the tilted density from a few draws, and see whether it grows without end against the posterior's.

    Rays see what one coordinate does. Here several move together: the scale of a Gaussian process rises, its length
    falls, and the values at the data stay where they are. Between the draws and that rise there may be a valley, in
    which chains sit for long: some climbs begin further out, where a stronger tilt leads. Each has two legs, and both
    must leave what was before far behind: one that comes back, or ends in another mode, does not.
    """
    if run.positions is None or not can_look(sampler, tilt, run):
        return None
    positions = run.positions.reshape(-1, run.positions.shape[2])
    scores = tilt({name: values.reshape(-1, *values.shape[2:]) for name, values in run.variables.items()})
    spread = np.maximum(positions.std(axis=0), 1e-12)
    far = BEYOND_SCORES * float(np.nanstd(scores))
    ranked = np.argsort(np.nan_to_num(scores, nan=-np.inf))
    for origin in positions[ranked[[-1 - (i * (len(ranked) - 1)) // CLIMBS for i in range(CLIMBS)]]]:
        for push, n_steps in PUSHES:
            at = climb_density(sampler, Tilt(tilt.features, push * tilt.multipliers), origin, spread, n_steps)
            if _leaves_for_good(sampler, tilt, at, spread, far):
                return "climbing from a draw, its density grows without end"
    return None


def _leaves_for_good(sampler: Sampler, tilt: Tilt, at: Floats, spread: Floats, far: float) -> bool:
    """Whether two climbs in a row gain nats, and much of <multipliers, psi>, at the posterior's expense."""

    def look(at: Floats) -> tuple[float, float]:
        tilted = sampler.log_density(tilt, at[None])
        plain = sampler.log_density(Tilt(tilt.features, np.zeros_like(tilt.multipliers)), at[None])
        assert tilted is not None
        assert plain is not None
        return float(tilted[0]), float(plain[0])

    before = look(at)
    for _ in range(2):
        at = climb_density(sampler, tilt, at, spread, CLIMB_STEPS)
        tilted, plain = look(at)
        if not (tilted > before[0] + RISEN and tilted - plain > before[0] - before[1] + far and plain < before[1]):
            return False
        before = tilted, plain
    return True


def _rises(values: Floats) -> bool:
    """Whether the last numbers along a ray that are numbers go up, past where it began."""
    known = values[np.isfinite(values)]  # an infinite one may be the overflow of a feature that does not grow like that
    return bool(np.isfinite(values[0]) and len(known) >= 4 and known[-1] > known[-2] and known[-1] > values[0] + RISEN)


def can_look(sampler: Sampler, tilt: Tilt, run: Run) -> bool:
    """Whether the sampler gives positions and its density at any."""
    return run.positions is not None and sampler.log_density(tilt, run.positions[:1, 0]) is not None


def _ray_starts(sampler: Sampler, tilt: Tilt, run: Run) -> tuple[Floats, list[tuple[Floats, str]]] | None:
    if run.positions is None or not can_look(sampler, tilt, run):
        return None
    positions = run.positions.reshape(-1, run.positions.shape[2])
    spread = positions.std(axis=0)
    origins = positions[_evenly(len(positions), RAY_STARTS)]
    directions: list[tuple[Floats, str]] = []
    scalars = list(_scalars(run))
    for i in _evenly(positions.shape[1], RAY_DIRECTIONS):
        unit = np.zeros(positions.shape[1])
        unit[i] = spread[i]
        rising, falling = _name_ray(positions[:, i], i, scalars)
        directions += [(unit, rising), (-unit, falling)]
    variables = {name: values.reshape(-1, *values.shape[2:]) for name, values in run.variables.items()}
    score = tilt(variables)
    slope = (score - score.mean()) @ (positions - positions.mean(axis=0))
    length = float(np.linalg.norm(np.divide(slope, spread, out=np.zeros_like(slope), where=spread > 0)))
    if length > 0:
        directions.append((slope / length, "the direction of the features"))
    return origins, directions


def _name_ray(coordinate: Floats, i: int, scalars: Sequence[tuple[str, Floats]]) -> tuple[str, str]:
    """What users know a coordinate as, upwards and downwards: a variable that is a monotone function of it."""
    order = np.argsort(coordinate, kind="stable")
    for name, values in scalars:
        steps = np.diff(values.reshape(-1)[order])
        if np.any(steps != 0) and (np.all(steps >= 0) or np.all(steps <= 0)):
            ways = (f"{name}, upwards", f"{name}, downwards")
            return ways if np.all(steps >= 0) else ways[::-1]
    return f"coordinate {i} of the sampler, upwards", f"coordinate {i} of the sampler, downwards"


def find_other_mode(sampler: Sampler, tilt: Tilt, runs: Sequence[Run], run: Run) -> tuple[str, ...]:
    """Look along coordinates, beyond all draws, for a density as high as at the draws, behind a valley."""
    starts = _ray_starts(sampler, tilt, run)
    if starts is None or any(found.positions is None for found in runs):
        return ()
    origins, directions = starts
    seen = np.concatenate([np.asarray(found.positions).reshape(-1, origins.shape[1]) for found in runs])
    low, high = seen.min(axis=0), seen.max(axis=0)
    for direction, name in directions[:-1]:
        axis = int(np.flatnonzero(direction)[0]) if np.any(direction) else 0
        hits = 0
        for origin in origins:
            points = origin + np.concatenate([[0.0], SCAN])[:, None] * direction
            values = sampler.log_density(tilt, points)
            assert values is not None
            margin = BEYOND * abs(direction[axis])
            beyond = (points[:, axis] < low[axis] - margin) | (points[:, axis] > high[axis] + margin)
            lowest = np.minimum.accumulate(np.where(np.isnan(values), np.inf, values))
            with np.errstate(invalid="ignore"):
                hits += bool(np.any(beyond & (values > lowest + VALLEY) & (values > values[0] - AS_HIGH)))
        if hits >= max(2, len(origins) // 2):
            return (
                f"along {name}, beyond all draws, the tilted density is as high again: there is another mode that no "
                "chain visited. Start chains there, or use a sampler for several modes.",
            )
    return ()


def find_missed(before: Sequence[Run], weights: Floats, run: Run) -> tuple[str, ...]:
    """Whether earlier runs, reweighted to the last one's tilt, have been where it has not: beyond all its draws.

    Features may be the same in two modes; what differs between them then is some other variable.
    """
    earlier = [dict(_scalars(found)) for found in before]
    for name, chains in _scalars(run):
        if not all(name in scalars for scalars in earlier):
            continue
        values = np.concatenate([scalars[name].ravel() for scalars in earlier])
        margin = float(chains.std())
        outside = weights[(values < chains.min() - margin) | (values > chains.max() + margin)]
        share = float(outside.sum())
        if share > MISSED and share**2 > FEW_MISSED * float(np.sum(outside**2)):
            return (
                f"the last run has not been where earlier ones were: under its tilt, {share:.0%} of their draws have "
                f"values of {name} beyond all of its own. The tilted posterior has another mode, or chains move too "
                "slowly. Reparametrize the model, or draw more: n_draws.",
            )
    return ()


def find_constant(pool: Pool, stack: Stack, labels: Sequence[str]) -> str | None:
    """Whether a feature is the same for all draws, and not what is asked: no tilt moves it."""
    low, high = stack.domain
    for i, low_i, high_i in zip(stack.index, low, high, strict=True):
        values = pool.values[:, i]
        value, slack = float(values[0]), 1e-6 * abs(float(values[0]))
        if np.ptp(values) <= 1e-12 * abs(value) and not low_i - slack <= value <= high_i + slack:
            return (
                f"the constraint {labels[i]} cannot be met: its feature is {value:.6g} for all {len(values)} draws, "
                "and no tilt moves it. Check the feature, or soften the constraint: (E(f) == b).soft(penalty)."
            )
    return None


def describe_contradiction(pool: Pool, stack: Stack, labels: Sequence[str], proof: Floats) -> str:
    """Say why constraints contradict each other: what would have to move is the same for all draws."""
    proof = proof / np.abs(proof).max()
    combined = _combine(pool.values, stack, proof)
    needed = _needed(stack, proof)
    named = _name_parts(stack, labels, proof)
    whole = combined.mean() if abs(combined.mean()) > 1e-9 * np.abs(combined).max(initial=abs(needed)) else 0.0
    return (
        f"the constraints {_listed(named)} contradict each other: a combination of their features is the same for all "
        f"{len(combined)} draws ({whole:.6g}), and they ask for {needed:.6g}. Take one out, or soften it: "
        "(E(f) == b).soft(penalty)."
    )


def _name_parts(stack: Stack, labels: Sequence[str], proof: Floats) -> list[str]:
    """The constraints that a combination is made of, each once."""
    used = np.abs(proof) > 1e-9 * np.abs(proof).max()
    return list(dict.fromkeys(labels[i] for i in stack.index[used]))


def _slope(stack: Stack, proof: Floats) -> float:
    """The factor of the one feature that a combination is made of, so that it can be told in its own units."""
    return float(proof[stack.index == stack.index[int(np.argmax(np.abs(proof)))]].sum())


def _listed(named: Sequence[str]) -> str:
    shown = [*named[:MOST_NAMED], f"{len(named) - MOST_NAMED} more"] if len(named) > MOST_NAMED else list(named)
    return " and ".join(filter(None, [", ".join(shown[:-1]), shown[-1]]))


def find_limit(rungs: Sequence[Rung], stack: Stack, labels: Sequence[str], proof: Floats) -> str | None:
    """Whether what would have to move approaches a limit short of what is asked, by gains that fall geometrically."""
    proof = proof / np.abs(proof).max()
    needed = _needed(stack, proof)
    if not math.isfinite(needed):
        return None
    reached = [float(_combine(rung.mean[None], stack, proof)[0]) for rung in rungs]
    gains = np.diff(reached)[-RATIOS - 1 :]
    if len(gains) < RATIOS + 1 or np.any(gains <= 0):
        return None
    ratios = gains[1:] / gains[:-1]
    if np.max(ratios) > RATIO:
        return None
    limit = reached[-1] + gains[-1] * RATIO / (1 - RATIO)
    spread = float(_combine(rungs[-1].flat, stack, proof).std())
    if needed - limit < max(SURE * spread, CLEAR * (needed - reached[0])):
        return None
    named = _name_parts(stack, labels, proof)
    if len(named) == 1:
        slope = _slope(stack, proof)
        reached, limit, needed = [x / slope for x in reached], limit / slope, needed / slope
        head = f"the constraint {named[0]} cannot be met: round by round its expectation came to"
    else:
        head = (
            f"the constraints {_listed(named)} cannot be met together: round by round the combination of features that "
            "they need came to"
        )
    return (
        f"{head} {reached[-1]:.6g} by ever smaller gains, towards {limit:.6g} at most, and {needed:.6g} is asked. Ask "
        "for what the features can reach, or soften it: (E(f) == b).soft(penalty)."
    )


def _combine(values: Floats, stack: Stack, proof: Floats) -> Floats:
    return values[:, stack.index] @ proof


def _needed(stack: Stack, proof: Floats) -> float:
    low, high = stack.domain
    ends = np.where(proof > 0, low, high)
    used = proof != 0
    return float(proof[used] @ ends[used])
