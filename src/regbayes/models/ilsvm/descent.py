"""Descent on J over the loadings: L-BFGS with the exact gradient and a backtracking line search, so J never rises.

Margins act on the loadings through the label-free inference, docs/math.md eq. (30)-(34). Every evaluation runs the
inference, solves the large-margin problem from the last accepted multipliers and goes back through the inference.
Sticks and loading variances move in closed form every few steps, and only where that does not raise J.

The features of all rows are the largest arrays there are. They are needed from an evaluation to its gradient and no
longer, so no state holds them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from regbayes._types import Floats
from regbayes.engine import Status, StepResult
from regbayes.framework.margin_accuracy import Accuracy, AccuracyRule
from regbayes.joint import quasi_newton
from regbayes.joint.quasi_newton import Moves
from regbayes.models.ilsvm.inference import Stats, infer_all, reverse_all
from regbayes.models.ilsvm.margins import Dual, Margins, margin_slopes, solve_margins
from regbayes.models.ilsvm.objective import generative_terms, second_moment
from regbayes.models.ilsvm.state import Data, Globals, Settings
from regbayes.models.ilsvm.updates import update_prior_blocks, update_variances

MAX_TRIALS = 8
FIRST_MOVE = 0.1  # length of the first step, relative to the loadings
BLOCKS_EVERY = 10  # steps between updates of the sticks and variances
FIRST = Accuracy(gap=1e-2, max_epochs=3.0)  # of the large-margin step
RULE = AccuracyRule(gap_share=0.3, gap_range=(1e-6, 1e-2), epoch_range=(3.0, 10.0))
PATIENCE = 3  # small changes in a row that count as settled


@dataclass(frozen=True)
class Problem:
    """What stays the same through a fit."""

    data: Data
    settings: Settings
    dual: Dual | None  # None for the unsupervised model

    @property
    def unit(self) -> float:
        """What one unit of every labelled row's loss is worth in J, or one nat of every row if that is more."""
        settings, data = self.settings, self.data
        nat = settings.generative_weight / settings.temperature * len(data.X)
        return max(nat, settings.C * float(data.weights[data.labeled].sum()))


@dataclass(frozen=True)
class Evaluation:
    """J at some globals, and what was computed on the way."""

    globals: Globals
    stats: Stats
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
    gradient: Floats  # (K, D)
    moves: Moves = ()  # (change of loadings, change of gradient)
    n_steps: int = 0
    accuracy: Accuracy = FIRST


def evaluate(problem: Problem, g: Globals, warm_start: Floats | None, accuracy: Accuracy) -> tuple[Evaluation, Floats]:
    """Compute J: inference, statistics, large-margin step. Return it with the features, (N, K)."""
    psi, stats = infer_all(problem.data.X, g, problem.settings.n_threads)
    return evaluate_at(problem, g, psi, stats, warm_start, accuracy), psi


def evaluate_at(
    problem: Problem, g: Globals, psi: Floats, stats: Stats, warm_start: Floats | None, accuracy: Accuracy
) -> Evaluation:
    """Compute J at given features and their statistics: large-margin step and terms."""
    settings = problem.settings
    terms = generative_terms(stats, g, settings.alpha, settings.generative_weight)
    margins = None
    if problem.dual is not None:
        margins = solve_margins(problem.data, psi, problem.dual, settings, warm_start, accuracy)
        terms |= margins.terms
    return Evaluation(g, stats, margins, terms)


def gradient(problem: Problem, at: Evaluation, psi: Floats) -> Floats:
    """Gradient of J with respect to the loadings, docs/math.md eq. (34), shape (K, D)."""
    g, r = at.globals, problem.settings.generative_weight
    slopes = (
        (lambda rows: np.zeros_like(psi[rows]))
        if at.margins is None
        else margin_slopes(problem.data, at.margins, problem.settings.one_vs_rest)
    )
    sums = reverse_all(problem.data.X, psi, slopes, g, r, problem.settings.n_threads)
    couplings = sums.coupling + sums.coupling.T + r * second_moment(at.stats)
    through = sums.cross - sums.theta[:, None] * g.loadings + couplings @ g.loadings
    return np.asarray(g.precision * through + (r / (g.temperature * g.prior_variance)) * g.loadings)


def start(problem: Problem, g: Globals, warm_start: Floats | None) -> Search:
    """Evaluate the start."""
    at, psi = evaluate(problem, g, warm_start, FIRST)
    return Search(at, gradient(problem, at, psi))


@dataclass(frozen=True)
class _Move:
    """A step that lowers J enough."""

    at: Evaluation
    gradient: Floats  # (K, D)
    length: float


def step(problem: Problem, search: Search) -> StepResult[Search]:
    """One L-BFGS step and, every few steps, the closed-form blocks."""
    search, move = _downhill(problem, search)
    if move is None:
        return StepResult(search, search.at.terms, {"step": 0.0, "gap": search.at.gap}, Status.CONVERGED)
    moves = quasi_newton.remember(
        search.moves, move.at.globals.loadings - search.at.globals.loadings, move.gradient - search.gradient
    )
    after = Search(move.at, move.gradient, moves, search.n_steps + 1, _accuracy_after(search, move.at))
    if after.n_steps % BLOCKS_EVERY == 0 or _is_late(problem, search.at.objective - move.at.objective):
        after = _update_blocks(problem, after)
    return StepResult(after, after.at.terms, {"step": move.length, "gap": after.at.gap})


def _is_late(problem: Problem, gained: float) -> bool:
    """Whether so little is gained that the fit would be over, with variances that were to be estimated."""
    settings = problem.settings
    return (settings.estimate_noise or settings.estimate_prior) and gained <= settings.tol * problem.unit


def _accuracy_after(search: Search, moved: Evaluation) -> Accuracy:
    """Return how accurate the next large-margin steps should be, for gaps not to hide what is gained."""
    if moved.margins is None:
        return search.accuracy
    return RULE.after(search.accuracy, search.at.objective - moved.objective, moved.margins.solution)


def _downhill(problem: Problem, search: Search) -> tuple[Search, _Move | None]:
    """Find a step that lowers J; where there is none, try once more without memory, then with a smaller gap."""
    while True:
        move = _line_search(problem, search)
        if move is not None:
            return search, move
        sharper = None if search.at.margins is None else search.accuracy.sharper()
        if search.moves:
            search = replace(search, moves=())
        elif sharper is not None:
            search = _sharpened(problem, search, sharper)
        else:
            return search, None


def _sharpened(problem: Problem, search: Search, accuracy: Accuracy) -> Search:
    """Solve for the classifier more accurately: what looked like a rise may have been the gap."""
    at, psi = evaluate(problem, search.at.globals, search.at.multipliers, accuracy)
    sharper = replace(search, accuracy=accuracy, gradient=gradient(problem, at, psi))
    # A smaller gap can come with a slightly higher primal value. What was reached is not given back; the gradient that
    # belongs to the better multipliers is worth having all the same.
    return sharper if at.objective > search.at.objective else replace(sharper, at=at)


@dataclass(frozen=True)
class _Trial:
    """J at the end of a step, with the features, in case the gradient is wanted."""

    at: Evaluation
    psi: Floats  # (N, K)

    @property
    def objective(self) -> float:
        return self.at.objective


def _line_search(problem: Problem, search: Search) -> _Move | None:
    """Backtrack along the L-BFGS direction until J falls enough."""
    at = search.at
    direction = _direction(search)

    def trial(length: float) -> _Trial:
        g = replace(at.globals, loadings=at.globals.loadings + length * direction)
        return _Trial(*evaluate(problem, g, at.multipliers, search.accuracy))

    slope = quasi_newton.dot(search.gradient, direction)
    found = quasi_newton.backtrack(trial, at.objective, slope, MAX_TRIALS)
    if found is None:
        return None
    moved, length = found
    return _Move(moved.at, gradient(problem, moved.at, moved.psi), length)


def _direction(search: Search) -> Floats:
    """The quasi-Newton direction; the first guess at the curvature is ``E[z z']``, plus a ridge.

    That is the curvature of the generative part at fixed features.
    """
    stats = search.at.stats
    factor = cho_factor(second_moment(stats) / stats.n_rows + np.eye(len(stats.counts)))
    first = FIRST_MOVE * float(np.linalg.norm(search.at.globals.loadings))
    return np.asarray(
        quasi_newton.direction(search.gradient, search.moves, first, lambda q: np.asarray(cho_solve(factor, q)))
    )


def _update_blocks(problem: Problem, search: Search) -> Search:
    """Sticks and variances in closed form at the current features; kept only where J, inference rerun, did not rise."""
    at = search.at
    g = update_prior_blocks(at.globals, at.stats, problem.settings.alpha)
    g = update_variances(g, at.stats, problem.settings)
    trial, psi = evaluate(problem, g, at.multipliers, search.accuracy)
    if not trial.objective <= at.objective:
        return search
    return replace(search, at=trial, gradient=gradient(problem, trial, psi))
