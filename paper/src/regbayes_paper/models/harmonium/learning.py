"""``fit``: two ways to learn the weights, descent in mean field and sweeps of contrastive divergence.

Mean field is deterministic, and J never rises. The direction of a step of contrastive divergence is an estimate, and
the gradient of no function: the objective that is recorded there, the cost of reconstructing each row from its hidden
units and the margins, is for watching.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from regbayes._types import Floats, Indices
from regbayes.engine import AbsoluteChange, FitResult, Progress, StepResult, run
from regbayes.joint import descent
from regbayes.joint.descent import DEFAULT_SCHEDULE, DescentOptions
from regbayes.joint.problem import JointProblem, hold_rows
from regbayes.margins.head import FittedHead, LinearHead, MarginHead, Tolerance
from regbayes.margins.targets import Classes
from regbayes_paper.models.harmonium.model import MeanField, Params, Rows, State, Sums, start_params
from regbayes_paper.models.harmonium.units import Visible, spectrum

FINAL = Tolerance(gap=1e-6, max_epochs=2000.0)  # of the head once the weights stand
PATIENCE = 3  # small changes in a row that count as settled

MAX_TRIALS = 12
FLAT = 1e-10  # gradient per row, relative to the statistics, at which nothing is left to do

DECAY = 10.0  # sweeps of contrastive divergence after which steps are half as long
LONGEST_MOVE = 0.1  # of the weights in one of its steps, relative to them
LONGEST = 1.0 - 1e-4  # largest squared singular value that weights of unbounded units may have


@dataclass(frozen=True)
class Settings:
    """How to fit. Everything is a number."""

    n_components: int  # K
    squared: bool  # squared hinge, or hinge
    generative_weight: float  # r
    fit_intercept: bool
    max_iter: int
    tol: float
    sampling: bool  # contrastive divergence, or mean field
    learning_rate: float  # of contrastive divergence, as are the next two
    batch_size: int
    n_gibbs: int


@dataclass(frozen=True)
class Data:
    """Rows and what is asked of them."""

    X: Floats  # (N, D)
    weights: Floats  # (N,): how often each row counts
    targets: Classes | None = None  # None for the unsupervised model; C has the factor of the row's weight

    @property
    def has_margins(self) -> bool:
        """Whether labels cost anything."""
        return self.targets is not None and bool(np.any(self.targets.C > 0))


def fit(
    data: Data,
    settings: Settings,
    visible: Visible,
    rng: np.random.Generator,
    *,
    callbacks: Sequence[Callable[[Progress[State]], bool | None]] = (),
) -> FitResult[State]:
    """Fit the model.

    Parameters
    ----------
    data : Data
    settings : Settings
    visible : Visible
    rng : Generator
        For weights that no singular direction is left for, and for the draws of contrastive divergence. All other
        weights start from a singular value decomposition.
    callbacks : sequence of callable
        Each sees a `Progress` whose state is a fitted `State`.

    Returns
    -------
    FitResult
        In mean field the objective never rises. Contrastive divergence gives back the last state.
    """
    rows = Rows.of(data.X, visible, data.weights)
    found = spectrum(rows.statistics, data.weights, settings.n_components)
    largest = float(found.values[0]) if len(found.values) else 1.0
    start = start_params(found, settings.n_components, data.has_margins, rng)
    head = make_head(data, settings)
    step: Callable[[Any], StepResult[Any]]
    state: Any
    if settings.sampling:
        sampler = Sampler(data.X, rows, head, settings, visible, largest)
        step, state = sampler.step, Sweep(sampler.evaluate(start, None), int(rng.integers(2**31)))
    else:
        problem = pose_problem(data, settings, rows, largest)
        state = descent.start(problem, replace(start, biases=np.zeros_like(start.biases)))
        step = partial(descent.step, problem)
    blank = None if data.targets is None else _blank_head(data.targets.n_outputs, settings)

    def view(state: Any, tolerance: Tolerance | None = None) -> State:
        """Return the fitted model at a state, its head solved once more to a tolerance if one is given."""
        hidden, fitted = rows.statistics @ state.at.params.weights, state.at.head
        if fitted is None:
            return State(visible, state.at.params, hidden, blank, None)
        if tolerance is not None:
            fitted = fitted.problem.solve(hidden, fitted.multipliers, tolerance)
        return State(visible, state.at.params, hidden, fitted.head, fitted.multipliers)

    result: FitResult[Any] = run(
        step,
        state,
        max_iter=settings.max_iter,
        objective=lambda state: state.at.terms,
        stop=AbsoluteChange(settings.tol * worth_of_a_row(data, settings), PATIENCE),
        callbacks=callbacks,
        view=view,
        keep="last" if settings.sampling else "best",
    )
    return replace(result, state=view(result.state, FINAL))


def make_head(data: Data, settings: Settings) -> MarginHead | None:
    """Return the margins that labels ask for, if they cost anything. The hidden units are seen as they are."""
    if data.targets is None or not data.has_margins:
        return None
    return MarginHead(data.targets, settings.squared, settings.fit_intercept, centred=False, in_blocks=False)


def worth_of_a_row(data: Data, settings: Settings) -> float:
    """Return what one nat of every row, or one unit of every row's loss, is worth in J: whichever is more."""
    loss = 0.0 if data.targets is None else float(data.targets.C.sum())
    return max(settings.generative_weight * float(data.weights.sum()), loss)


def pose_problem(
    data: Data, settings: Settings, rows: Rows, largest_eigenvalue: float
) -> JointProblem[Rows, Params, Sums]:
    """Return the problem of mean field."""
    unit = worth_of_a_row(data, settings)
    model = MeanField(settings.generative_weight, unit)
    options = DescentOptions(max_trials=MAX_TRIALS, flat=FLAT * unit * largest_eigenvalue)
    return JointProblem(model, hold_rows(rows.blocks()), make_head(data, settings), options)


def _blank_head(n_classes: int, settings: Settings) -> LinearHead:
    """Return the head of margins that cost nothing."""
    K, fit_intercept = settings.n_components, settings.fit_intercept
    return LinearHead(np.zeros((n_classes, K + int(fit_intercept))), np.zeros(K), fit_intercept)


# --- Contrastive divergence


@dataclass(frozen=True)
class Watched:
    """What is watched at some parameters, and the head there."""

    params: Params
    head: FittedHead | None
    terms: dict[str, float]


@dataclass(frozen=True)
class Sweep:
    """Where the sweeps are."""

    at: Watched
    seed: int  # of all sweeps; each has a generator of its own
    n_sweeps: int = 0


@dataclass(frozen=True)
class Sampler:
    """Sweeps over batches of rows, with margins at the head of the sweep's beginning."""

    X: Floats  # (N, D)
    rows: Rows
    head: MarginHead | None
    settings: Settings
    visible: Visible
    largest_eigenvalue: float  # of the statistics' second moment

    def evaluate(self, params: Params, warm_start: Floats | None) -> Watched:
        """Compute the cost of reconstruction, and solve for the head."""
        costs = reconstruction_costs(self.X, self.rows, params, self.visible)
        terms = {"likelihood": self.settings.generative_weight * float(self.rows.weights @ costs)}
        if self.head is None:
            return Watched(params, None, terms)
        head = self.head.solve(self.rows.statistics @ params.weights, warm_start, DEFAULT_SCHEDULE.first)
        assert isinstance(head, FittedHead)
        return Watched(params, head, {**terms, **head.terms})

    def step(self, sweep: Sweep) -> StepResult[Sweep]:
        """Sweep over the rows once."""
        rng = np.random.default_rng([sweep.seed, sweep.n_sweeps])
        head = sweep.at.head
        gradient = None if head is None else head.gradient(slice(None))
        order, params = rng.permutation(len(self.X)), sweep.at.params
        for first in range(0, len(order), self.settings.batch_size):
            batch = order[first : first + self.settings.batch_size]
            params = self._move(params, batch, gradient, sweep.n_sweeps, rng)
        after = self.evaluate(params, None if head is None else head.multipliers)
        gap = 0.0 if after.head is None else after.head.gap
        return StepResult(Sweep(after, sweep.seed, sweep.n_sweeps + 1), after.terms, {"gap": gap})

    def _move(
        self, params: Params, batch: Indices, gradient: Floats | None, n_sweeps: int, rng: np.random.Generator
    ) -> Params:
        """Step against the estimated gradient of J per row, in units of its generative part."""
        settings, rows = self.settings, self.rows
        share = rows.weights[batch] / (len(batch) * rows.weights.mean())
        statistics = rows.statistics[batch]
        estimate = contrast(self.X[batch], statistics, share, params, self.visible, settings.n_gibbs, rng)
        direction = estimate.weights
        if gradient is not None:
            worth = settings.generative_weight * len(batch) * float(rows.weights.mean())
            direction = direction + statistics.T @ gradient[batch] / worth
        rate = settings.learning_rate / ((1.0 + n_sweeps / DECAY) * max(self.largest_eigenvalue, 1.0))
        move = rate * direction
        length = float(np.linalg.norm(move))
        limit = LONGEST_MOVE * max(float(np.linalg.norm(params.weights)), LONGEST_MOVE)
        if length > limit:
            move *= limit / length
        moved = Params(params.weights - move, params.biases - rate * estimate.biases)
        return clip_weights(moved, self.visible.unbounded)


def reconstruction_costs(X: Floats, rows: Rows, params: Params, visible: Visible) -> Floats:
    """``-log p(x | E[h | x])`` of rows, docs/math.md eq. (89), shape (n,)."""
    natural = params.biases + (rows.statistics @ params.weights) @ params.weights.T
    return rows.base_costs - np.einsum("nd,nd->n", natural, rows.statistics) + visible.log_tilt(natural, X)


def contrast(
    X: Floats,
    statistics: Floats,
    share: Floats,
    params: Params,
    visible: Visible,
    n_gibbs: int,
    rng: np.random.Generator,
) -> Params:
    """Estimate the gradient of the negative log-likelihood by contrastive divergence (Hinton 2002), eq. (88).

    Statistics of rows after some Gibbs steps, less those before, summed with the share (n,) of each row.
    """
    rows, t = X, statistics
    for _ in range(n_gibbs):
        hidden = t @ params.weights + rng.standard_normal((len(t), params.weights.shape[1]))
        rows = visible.draw(params.biases + hidden @ params.weights.T, rows, rng)
        t = visible.statistic(rows)
    after, before = ((share[:, None] * at).T @ (at @ params.weights) for at in (t, statistics))
    return Params(after - before, share @ (t - statistics))


def clip_weights(params: Params, unbounded: Indices) -> Params:
    """Shorten the weights of unbounded units where the model would have no normaliser."""
    if not len(unbounded):
        return params
    left, lengths, right = np.linalg.svd(params.weights[unbounded], full_matrices=False)
    if lengths[0] ** 2 <= LONGEST:
        return params
    weights = params.weights.copy()
    weights[unbounded] = (left * np.minimum(lengths, np.sqrt(LONGEST))) @ right
    return replace(params, weights=weights)
