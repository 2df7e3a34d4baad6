"""Mean field: descent on J over the weights, by L-BFGS with the exact gradient and a backtracking line search.

Every evaluation solves the large-margin problem at the expected hidden units, from the last accepted multipliers, and
the gradient goes back through them, docs/math.md eq. (90)-(92). J never rises.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from regbayes._types import Floats
from regbayes.engine import Status, StepResult
from regbayes.framework.large_margin import MultiClassDual
from regbayes.framework.margin_accuracy import Accuracy, AccuracyRule
from regbayes.joint import quasi_newton
from regbayes.joint.quasi_newton import Moves
from regbayes.models.harmonium.margins import Margins, margin_gradient, solve_margins
from regbayes.models.harmonium.objective import log_normaliser, normaliser_gradient
from regbayes.models.harmonium.state import Data, Globals, Settings
from regbayes.models.harmonium.units import Visible

MAX_TRIALS = 12
FLAT = 1e-10  # gradient per row, relative to the statistics, at which nothing is left to do
FIRST = Accuracy(gap=1e-3, max_epochs=20.0)  # of the large-margin step
RULE = AccuracyRule(gap_share=0.1, gap_range=(1e-7, 1e-3), epoch_range=(5.0, 40.0))


@dataclass(frozen=True)
class Problem:
    """What stays the same through a fit."""

    data: Data
    settings: Settings
    visible: Visible
    dual: MultiClassDual | None  # None for the unsupervised model
    base_cost: float  # of the rows when there are no hidden units: a constant of the likelihood
    largest_eigenvalue: float  # of the statistics' second moment

    @property
    def unit(self) -> float:
        """What one nat of every row, or one unit of every row's loss, is worth in J: whichever is more."""
        settings, data = self.settings, self.data
        return max(settings.generative_weight * len(data.X), settings.C * float(data.weights.sum()))


@dataclass(frozen=True)
class Evaluation:
    """J at some parameters, and what was computed on the way."""

    globals: Globals
    hidden: Floats  # (N, K): expected hidden units
    margins: Margins | None
    terms: dict[str, float]

    @property
    def objective(self) -> float:
        """J."""
        return sum(self.terms.values())

    @property
    def gap(self) -> float:
        """Duality gap of the large-margin step: J is above its minimum over classifiers by at most this."""
        return 0.0 if self.margins is None else self.margins.solution.gap

    @property
    def multipliers(self) -> Floats | None:
        """Multipliers to start the next large-margin solve from."""
        return None if self.margins is None else self.margins.solution.dual


@dataclass(frozen=True)
class Search:
    """An accepted point, its gradient, and what L-BFGS remembers."""

    at: Evaluation
    gradient: Floats  # (D, K)
    moves: Moves = ()  # (change of weights, change of gradient)
    accuracy: Accuracy = FIRST


def evaluate(problem: Problem, g: Globals, warm_start: Floats | None, accuracy: Accuracy) -> Evaluation:
    """Compute J at some weights; infinite, without a solve, where the mean field is unstable."""
    data, r = problem.data, problem.settings.generative_weight
    hidden = data.statistics @ g.weights
    normaliser = log_normaliser(g.weights)
    terms = {"likelihood": r * (problem.base_cost - 0.5 * float(np.vdot(hidden, hidden)) + len(hidden) * normaliser)}
    if problem.dual is None or not np.isfinite(normaliser):
        return Evaluation(g, hidden, None, terms)
    margins = solve_margins(hidden, problem.dual, problem.settings.fit_intercept, warm_start, accuracy)
    return Evaluation(g, hidden, margins, terms | margins.terms)


def gradient(problem: Problem, at: Evaluation) -> Floats:
    """Gradient of J with respect to the weights, docs/math.md eq. (92), shape (D, K)."""
    data, r = problem.data, problem.settings.generative_weight
    pull = -r * at.hidden
    if at.margins is not None:
        pull = pull + margin_gradient(data, at.margins, at.hidden.shape[1])
    return np.asarray(data.statistics.T @ pull + r * len(pull) * normaliser_gradient(at.globals.weights))


def start(problem: Problem, g: Globals, warm_start: Floats | None) -> Search:
    """Evaluate the start."""
    at = evaluate(problem, g, warm_start, FIRST)
    return Search(at, gradient(problem, at))


def step(problem: Problem, search: Search) -> StepResult[Search]:
    """One L-BFGS step."""
    search, moved, length = _downhill(problem, search)
    if moved is None:
        return StepResult(search, search.at.terms, {"step": 0.0, "gap": search.at.gap}, Status.CONVERGED)
    slope = gradient(problem, moved)
    change = moved.globals.weights - search.at.globals.weights
    moves = quasi_newton.remember(search.moves, change, slope - search.gradient)
    after = Search(moved, slope, moves, _accuracy_after(search, moved))
    return StepResult(after, moved.terms, {"step": length, "gap": moved.gap})


def _accuracy_after(search: Search, moved: Evaluation) -> Accuracy:
    """Return how accurate the next large-margin steps should be, for gaps not to hide what is gained."""
    if moved.margins is None:
        return search.accuracy
    return RULE.after(search.accuracy, search.at.objective - moved.objective, moved.margins.solution)


def _downhill(problem: Problem, search: Search) -> tuple[Search, Evaluation | None, float]:
    """Find a step that lowers J; where there is none, try once more without memory, then with a smaller gap."""
    flat = FLAT * problem.unit * problem.largest_eigenvalue
    while float(np.linalg.norm(search.gradient)) > flat:
        found = _line_search(problem, search)
        if found is not None:
            return search, *found
        sharper = None if search.at.margins is None else search.accuracy.sharper()
        if search.moves:
            search = replace(search, moves=())
        elif sharper is not None:
            search = _sharpened(problem, search, sharper)
        else:
            break
    return search, None, 0.0


def _sharpened(problem: Problem, search: Search, accuracy: Accuracy) -> Search:
    """Solve for the classifier more accurately: what looked like a rise may have been the gap."""
    at = evaluate(problem, search.at.globals, search.at.multipliers, accuracy)
    slope = gradient(problem, at)
    if at.objective > search.at.objective:  # a smaller gap can come with a slightly higher value: keep the lower one
        at = search.at
    return Search(at, slope, (), accuracy)


def _line_search(problem: Problem, search: Search) -> tuple[Evaluation, float] | None:
    """Backtrack along the L-BFGS direction until J falls enough.

    The first guess at the inverse curvature is that of ``log Z`` around the weights, ``(I - W'W) / N``.
    """
    at = search.at
    weights = at.globals.weights
    rest = (np.eye(weights.shape[1]) - weights.T @ weights) / problem.unit
    direction = quasi_newton.direction(search.gradient, search.moves, precondition=lambda q: q @ rest)

    def trial(length: float) -> Evaluation:
        g = replace(at.globals, weights=weights + length * direction)
        return evaluate(problem, g, at.multipliers, search.accuracy)

    slope = quasi_newton.dot(search.gradient, direction)
    return quasi_newton.backtrack(trial, at.objective, slope, MAX_TRIALS)
