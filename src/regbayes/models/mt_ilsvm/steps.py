"""The two ways to move: natural-gradient descent on the objective, and the paper's alternation.

The objective J is docs/math.md eq. (45). q(w) is always the optimal one, so J is a function of the logits of Z,
the sticks, the variances and the tasks' weights. A step of `descend` is taken only if J at the *weights found* is no
higher than before; the duality gap delays a verdict but never excuses a rise.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from regbayes._types import Floats
from regbayes.engine import Status, StepResult
from regbayes.models.mt_ilsvm.margins import MarginPart, MarginProblem, margin_bound, margin_pull, solve_margins
from regbayes.models.mt_ilsvm.objective import generative_terms
from regbayes.models.mt_ilsvm.predict import seen_features
from regbayes.models.mt_ilsvm.rows import RowStats
from regbayes.models.mt_ilsvm.state import Factors, Latent, Scales, Settings, TaskWeights
from regbayes.models.mt_ilsvm.updates import (
    feature_logits,
    update_factors,
    update_features,
    update_noise_variance,
    update_sticks,
    update_weight_variance,
)

FIRST_STEP = 0.3
SHRINK, GROW = 0.5, 1.2
MAX_HALVINGS = 20
TIGHTER_GAPS = (1.0, 0.1, 0.01)
"""How the duality gap is tightened while it leaves open whether a step lowers the objective."""


@dataclass(frozen=True)
class Problem:
    """All that a step needs beside the point."""

    stats: RowStats  # every row counted ``scales.multiplicity`` times
    n_targets: float
    scales: Scales
    margins: MarginProblem
    settings: Settings
    estimate_variances: bool


@dataclass(frozen=True)
class Point:
    """Where a fit is, with what is known there: the state of the training loop."""

    latent: Latent
    factors: Factors
    margin: MarginPart
    generative: dict[str, float]  # the terms of r F_T / T
    step_length: float = FIRST_STEP  # gamma, the step to try next

    @property
    def terms(self) -> dict[str, float]:
        """The named terms of J."""
        return {**self.generative, "kl_weights": self.margin.kl_weights, "margin": self.margin.loss}

    @property
    def objective(self) -> float:
        """J at the weights found, which is above the minimum over weights by at most the gap."""
        return sum(self.terms.values())


def see(latent: Latent, problem: MarginProblem) -> Floats:
    """Return the columns that outputs see of the rows with targets."""
    return seen_features(problem.X, latent.psi, problem.input_scale, problem.include_inputs, problem.fit_intercept)


def scaled_terms(latent: Latent, factors: Factors, problem: Problem) -> dict[str, float]:
    """Return the named terms of ``r F_T / T``."""
    T, scale = problem.scales.temperature, problem.scales.generative / problem.scales.temperature
    terms = generative_terms(latent, factors, problem.stats, problem.settings.alpha, T)
    return {name: scale * value for name, value in terms.items()}


def evaluate(latent: Latent, tasks: TaskWeights, problem: Problem) -> Point:
    """Return the point of a q(Z), with weights solved for from those given."""
    factors = update_factors(latent, problem.stats, problem.settings.covariance)
    margin = solve_margins(problem.margins, see(latent, problem.margins), tasks, problem.settings.gap_tol)
    return Point(latent, factors, margin, scaled_terms(latent, factors, problem))


def descend(point: Point, problem: Problem) -> StepResult[Point]:
    """One natural-gradient step on the logits of Z, docs/math.md eq. (48), halved until J does not rise.

    ``A <- A + gamma (target + pull / r - A)``; gamma = 1 is the paper's update of q(Z) at temperature T, for all
    features at once.
    """
    point = _update_small_blocks(point, problem)
    direction = _wanted(point, problem) - point.latent.logits
    ceiling, length = point.objective, point.step_length
    for _ in range(MAX_HALVINGS):
        latent = replace(point.latent, logits=point.latent.logits + length * direction)
        new = _if_no_higher(latent, point, problem, ceiling)
        if new is not None:
            new = replace(new, step_length=min(1.0, GROW * length))
            return StepResult(new, new.terms, {"step_length": length, "gap": new.margin.gap})
        length *= SHRINK
    return StepResult(point, point.terms, {"step_length": 0.0, "gap": point.margin.gap}, Status.STALLED)


def alternate(point: Point, problem: Problem) -> StepResult[Point]:
    """One round of the paper's alternation: q(Z), q(nu), the variances, q(w), then the weights, each exact.

    q(Z) is updated for fixed multipliers, which lowers a Lagrangian and not the objective: J may rise.
    """
    pull = margin_pull(problem.margins, point.margin.tasks, point.latent.logits.shape[1]) / problem.scales.generative
    latent = update_features(point.latent, point.factors, problem.scales.temperature, pull)
    moved = _update_small_blocks(replace(point, latent=latent), problem)
    new = evaluate(moved.latent, point.margin.tasks, problem)
    return StepResult(new, new.terms, {"gap": new.margin.gap})


def _wanted(point: Point, problem: Problem) -> Floats:
    """Return the logits at which the gradient of J, all else as it is, would vanish."""
    wanted = feature_logits(point.latent, point.factors, problem.scales.temperature)
    if len(problem.margins.cells) == 0:
        return wanted
    pull = margin_pull(problem.margins, point.margin.tasks, wanted.shape[1])
    return wanted + pull / problem.scales.generative


def _update_small_blocks(point: Point, problem: Problem) -> Point:
    """Update the sticks and, if asked, the variances. Neither can raise J."""
    latent, factors, settings = update_sticks(point.latent, problem.settings.alpha), point.factors, problem.settings
    if problem.estimate_variances:
        if settings.noise_variance is None:
            latent = update_noise_variance(latent, factors, problem.stats)
        if settings.weight_variance is None:
            latent = update_weight_variance(latent, factors, problem.stats)
        factors = update_factors(latent, problem.stats, settings.covariance)
    return replace(point, latent=latent, factors=factors, generative=scaled_terms(latent, factors, problem))


def _if_no_higher(latent: Latent, point: Point, problem: Problem, ceiling: float) -> Point | None:
    """Return the point of a q(Z) if its objective is at most the ceiling, None otherwise.

    The dual value is a lower bound, so most bad steps are refused without solving for the weights.
    """
    factors = update_factors(latent, problem.stats, problem.settings.covariance)
    generative = scaled_terms(latent, factors, problem)
    room = ceiling - sum(generative.values())
    if room < 0:
        return None
    if len(problem.margins.cells) == 0:
        return replace(point, latent=latent, factors=factors, generative=generative)
    seen = see(latent, problem.margins)
    if margin_bound(problem.margins, seen, point.margin.tasks.duals) > room:
        return None
    tasks = point.margin.tasks
    for tighter in TIGHTER_GAPS:
        margin = solve_margins(problem.margins, seen, tasks, tighter * problem.settings.gap_tol)
        if margin.value <= room:
            return replace(point, latent=latent, factors=factors, generative=generative, margin=margin)
        if margin.value - margin.gap > room:
            return None
        tasks = margin.tasks
    return None
