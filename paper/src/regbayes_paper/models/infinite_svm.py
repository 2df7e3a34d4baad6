"""The infinite SVM: a Dirichlet-process mixture of Gaussian components, each with a large-margin classifier.

Exact coordinate descent, docs/math.md section 7. A round goes through responsibilities, sticks, components and
classifiers, each at its best for the others, so that the objective never rises: responsibilities and classifiers, which
are found to a tolerance, are kept where they would raise it.

A row of weight w counts w times: in the mixture, in the margins, and in what everything starts from.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.special import softmax, xlogy

from regbayes._registry import persistable
from regbayes._types import Floats, Integers
from regbayes.engine import AbsoluteChange, FitResult, Progress, StepResult, row_blocks, run
from regbayes.margins.head import FittedHead, MarginHead, Tolerance, design, score_multipliers, simplex_multipliers
from regbayes.margins.targets import Classes
from regbayes.regularization.dual_forms import SimplexDual
from regbayes_paper.models.assignments import solve_assignments
from regbayes_paper.priors import dirichlet_process, normal_gamma
from regbayes_paper.priors.dirichlet_process import Sticks, best_order, kl_sticks, log_weights, update_sticks
from regbayes_paper.priors.normal_gamma import (
    Components,
    NormalGammaPrior,
    kl_components,
    log_likelihoods,
    update_components,
)

ROUND = Tolerance(gap=1e-4, max_epochs=200.0)  # of the classifiers in a round
FINAL = Tolerance(gap=1e-6, max_epochs=2000.0)  # of those that are kept
PATIENCE = 3  # small changes in a row that count as settled
NEGLIGIBLE = 1e-12  # largest responsibility of a component that gets no weights
ROW_GAP = 1e-7  # duality gap of a row's problem, in units of its C times one plus its loss
ROW_STEPS = 100  # pairs of classes at most, for a row

KMEANS_SWEEPS = 20  # it is only a start
MERGE_ROUNDS = 10  # of coordinate descent before two components are merged
EMPTY = 1e-6  # expected number of rows of a component that need not be merged


@dataclass(frozen=True)
class Settings:
    """How to fit. Everything is a number."""

    n_components: int  # T
    alpha: float  # concentration of the Dirichlet process
    prior: NormalGammaPrior
    squared: bool  # squared hinge, or hinge
    generative_weight: float  # r
    fit_intercept: bool
    merge: bool  # whether components of the start are merged
    refit: bool  # whether the last classifiers are those of the responsibilities that prediction sees
    max_iter: int
    tol: float


@dataclass(frozen=True)
class Data:
    """Rows and their labels."""

    X: Floats  # (N, D)
    weights: Floats  # (N,): how often each row counts, positive
    targets: Classes  # C has the factor of the row's weight; all zero leaves the mixture without labels


@persistable(name="regbayes.infinite_svm.Params")
@dataclass(frozen=True)
class Params:
    """What the responsibilities of a row need to know."""

    sticks: Sticks
    components: Components


@persistable(name="regbayes.infinite_svm.Classifiers")
@dataclass(frozen=True)
class Classifiers:
    """Expected weights of the classes, component by component."""

    weights: Floats  # (T, classes, D [+ 1]): mu
    centre: Floats  # (D,): taken off the inputs first; zero without intercept
    fit_intercept: bool  # whether a constant input comes last

    def see(self, X: Floats) -> Floats:
        """Return what the classifiers see of rows, shape (n, D [+ 1])."""
        return design(X, self.centre, None, self.fit_intercept)

    def component_scores(self, X: Floats) -> Floats:
        """Return the score of every class by every component, shape (n, T, classes)."""
        T, classes, d = self.weights.shape
        return (self.see(X) @ self.weights.reshape(T * classes, d).T).reshape(len(X), T, classes)

    def scores(self, X: Floats, q: Floats) -> Floats:
        """Return the score of every class, components weighed by responsibility, shape (n, classes)."""
        found = np.empty((len(X), self.weights.shape[1]))
        for rows in row_blocks(len(X)):
            np.einsum("nk,nka->na", q[rows], self.component_scores(X[rows]), out=found[rows])
        return found

    @property
    def kl_weights(self) -> float:
        """``KL(q(eta) || p(eta))`` but for a constant: covariances stay those of the prior."""
        return 0.5 * float(np.vdot(self.weights, self.weights))


@persistable(name="regbayes.infinite_svm.State")
@dataclass(frozen=True)
class State:
    """A fitted model."""

    params: Params
    classifiers: Classifiers
    responsibilities: Floats  # (N, T): q(z_n) of the training rows, which knows their labels
    multipliers: Floats | None  # (N, classes): of the scores; None without margins


# --- The mixture


def logits(X: Floats, params: Params) -> Floats:
    """Return what the model says of a row's component without its label, docs/math.md eq. (99), shape (n, T)."""
    return log_weights(params.sticks) + log_likelihoods(X, params.components)


def infer_responsibilities(X: Floats, params: Params) -> Floats:
    """Return ``q(z)`` of rows whose labels are not known, shape (n, T)."""
    return softmax(logits(X, params), axis=1)


def update_params(data: Data, q: Floats, settings: Settings) -> Params:
    """Return the best sticks and components for responsibilities."""
    counted = data.weights[:, None] * q
    return Params(
        update_sticks(counted.sum(axis=0), settings.alpha), update_components(data.X, counted, settings.prior)
    )


def generative_terms(data: Data, q: Floats, params: Params, settings: Settings) -> dict[str, float]:
    """``r F`` term by term, eq. (100)."""
    r, counted = settings.generative_weight, data.weights[:, None] * q
    expected = counted.sum(axis=0) @ log_weights(params.sticks)
    return {
        "likelihood": -r * float(np.vdot(counted, log_likelihoods(data.X, params.components))),
        "kl_assignments": r * float(data.weights @ xlogy(q, q).sum(axis=1) - expected),
        "kl_sticks": r * kl_sticks(params.sticks, settings.alpha),
        "kl_components": r * kl_components(params.components, settings.prior),
    }


# --- The classifiers at given responsibilities


@dataclass(frozen=True)
class Margins:
    """Classifiers at given responsibilities, and what they cost."""

    classifiers: Classifiers
    multipliers: Floats  # (N, classes): of the scores
    loss: float  # of all rows, C included
    gap: float  # at most so much dearer than the best classifiers

    @property
    def terms(self) -> dict[str, float]:
        """The terms of the objective."""
        return {"kl_weights": self.classifiers.kl_weights, "margin": self.loss}

    @property
    def value(self) -> float:
        """Their sum."""
        return sum(self.terms.values())


def make_head(data: Data, settings: Settings) -> MarginHead | None:
    """Return the margins that labels ask for, if they cost anything. Intercepts are among the components' inputs."""
    if not np.any(data.targets.C > 0):
        return None
    return MarginHead(data.targets, settings.squared, fit_intercept=False, in_blocks=False)


def make_blank(data: Data, settings: Settings) -> Classifiers:
    """Return classifiers that say nothing."""
    D = data.X.shape[1]
    centre = data.weights @ data.X / data.weights.sum() if settings.fit_intercept else np.zeros(D)
    weights = np.zeros((settings.n_components, data.targets.n_outputs, D + int(settings.fit_intercept)))
    return Classifiers(weights, centre, settings.fit_intercept)


def solve_classifiers(
    data: Data, q: Floats, head: MarginHead, blank: Classifiers, warm_start: Floats | None, tolerance: Tolerance
) -> Margins:
    """Fit all classifiers at once: one machine on rows repeated once per component, docs/math.md eq. (101)."""
    used = np.flatnonzero(q.max(axis=0) > NEGLIGIBLE)
    features = (q[:, used, None] * blank.see(data.X)[:, None, :]).reshape(len(q), -1)
    found = head.solve(features, warm_start, tolerance)
    assert isinstance(found, FittedHead)
    weights = np.zeros_like(blank.weights)
    weights[used] = found.head.weights.reshape(weights.shape[1], len(used), -1).transpose(1, 0, 2)
    return Margins(replace(blank, weights=weights), found.multipliers, found.terms["margin"], found.gap)


def keep_better(found: Margins, earlier: Classifiers, data: Data, q: Floats, head: MarginHead) -> Margins:
    """Keep earlier classifiers where those found, which are good to a gap only, are dearer."""
    loss = float(head.losses(earlier.scores(data.X, q)).sum())
    saved = found.value - (earlier.kl_weights + loss)
    return found if saved <= 0 else replace(found, classifiers=earlier, loss=loss, gap=max(found.gap - saved, 0.0))


# --- The responsibilities at given classifiers


@dataclass(frozen=True)
class RowProblems:
    """The problems of some rows over their responsibilities and multipliers, in units of r times the row's weight.

    ``min_q KL(q || softmax(logits)) + C * loss(q)``, with the loss ``max_y (cost_y - sum_k q_k gain_ky)`` or its
    square, docs/math.md eq. (102)-(103). The true class has no cost and no gain.
    """

    logits: Floats  # (n, T)
    gains: Floats  # (n, T, classes)
    cost: Floats  # (n, classes)
    labels: Integers  # (n,)
    C: Floats  # (n,)
    squared: bool

    def value(self, q: Floats) -> Floats:
        """Return what is minimised, up to the normaliser of the logits, shape (n,)."""
        hinge = (self.cost - np.einsum("nka,nk->na", self.gains, q)).max(axis=1)
        loss = np.square(hinge) if self.squared else hinge
        return xlogy(q, q).sum(axis=1) - np.sum(q * self.logits, axis=1) + self.C * loss

    def solve(self, omega: Floats) -> tuple[Floats, Floats]:
        """Return responsibilities (n, T) and multipliers (n, classes), from multipliers that are feasible.

        Rows without a C are left with what their logits say.
        """
        omega, q = np.ascontiguousarray(omega).copy(), np.empty_like(self.logits)
        solve_assignments(
            np.ascontiguousarray(self.logits),
            np.ascontiguousarray(self.gains),
            np.ascontiguousarray(self.cost),
            self.labels,
            self.C,
            self.squared,
            ROW_GAP,
            ROW_STEPS,
            omega,
            q,
        )
        return q, omega


def pose_rows(data: Data, settings: Settings, params: Params, classifiers: Classifiers, rows: slice) -> RowProblems:
    """Return the problems of some rows."""
    labels = data.targets.labels[rows]
    scores = classifiers.component_scores(data.X[rows])
    return RowProblems(
        logits=logits(data.X[rows], params),
        gains=np.take_along_axis(scores, labels[:, None, None], axis=2) - scores,
        cost=data.targets.cost[labels],
        labels=labels,
        C=data.targets.C[rows] / (settings.generative_weight * data.weights[rows]),
        squared=settings.squared,
    )


def update_responsibilities(
    data: Data, settings: Settings, params: Params, margins: Margins, head: MarginHead, before: Floats
) -> tuple[Floats, Floats]:
    """Return the best responsibilities at given classifiers, and the multipliers of their margins.

    Rows whose problem could not be solved to its tolerance and that would lose keep what they had before.
    """
    labels, unit = data.targets.labels, settings.generative_weight * data.weights[:, None]
    assert isinstance(head.form, SimplexDual)  # of classes
    omega = simplex_multipliers(margins.multipliers, labels, head.form) / unit
    q = np.empty_like(before)
    for rows in row_blocks(len(q)):
        problems = pose_rows(data, settings, params, margins.classifiers, rows)
        found, omega[rows] = problems.solve(omega[rows])
        worse = problems.value(found) > problems.value(before[rows])
        q[rows] = np.where(worse[:, None], before[rows], found)
    return q, score_multipliers(omega * unit, labels)


# --- The fit


@dataclass(frozen=True)
class Problem:
    """What a fit is about."""

    data: Data
    settings: Settings
    head: MarginHead | None  # None without margins

    @classmethod
    def of(cls, data: Data, settings: Settings) -> Problem:
        """Return the problem of rows and their labels."""
        return cls(data, settings, make_head(data, settings))


@dataclass(frozen=True)
class Round:
    """All blocks, and the objective there."""

    responsibilities: Floats  # (N, T)
    params: Params
    margins: Margins | None
    terms: dict[str, float]


def fit(
    data: Data,
    settings: Settings,
    start: Floats,
    *,
    callbacks: Sequence[Callable[[Progress[State]], bool | None]] = (),
) -> FitResult[State]:
    """Fit the model.

    Parameters
    ----------
    data : Data
    settings : Settings
    start : array of shape (N, T)
        Responsibilities to begin with.
    callbacks : sequence of callable
        Each sees a `Progress` whose state is a fitted `State`.

    Returns
    -------
    FitResult
    """
    problem = Problem.of(data, settings)
    unit = float(data.weights.sum()) * settings.generative_weight
    result: FitResult[Any] = run(
        lambda at: step(problem, at),
        evaluate(problem, start, None),
        max_iter=settings.max_iter,
        objective=lambda at: at.terms,
        stop=AbsoluteChange(settings.tol * unit, PATIENCE),
        callbacks=callbacks,
        view=lambda at: show(problem, at),
    )
    return replace(result, state=finish(problem, result.state))


def step(problem: Problem, at: Round) -> StepResult[Round]:
    """Go over all blocks once."""
    data, settings, margins, head = problem.data, problem.settings, at.margins, problem.head
    if margins is None or head is None:
        q = infer_responsibilities(data.X, at.params)
        moved = evaluate(problem, q[:, best_order(data.weights @ q)], None)
        return StepResult(moved, moved.terms, {"gap": 0.0})
    q, multipliers = update_responsibilities(data, settings, at.params, margins, head, at.responsibilities)
    order = best_order(data.weights @ q)
    q, classifiers = q[:, order], replace(margins.classifiers, weights=margins.classifiers.weights[order])
    moved = evaluate(problem, q, multipliers)
    assert moved.margins is not None
    better = keep_better(moved.margins, classifiers, data, q, head)
    moved = replace(moved, margins=better, terms=moved.terms | better.terms)
    return StepResult(moved, moved.terms, {"gap": better.gap})


def evaluate(problem: Problem, q: Floats, warm_start: Floats | None) -> Round:
    """Return all other blocks at their best for responsibilities."""
    data, settings = problem.data, problem.settings
    params = update_params(data, q, settings)
    terms = generative_terms(data, q, params, settings)
    if problem.head is None:
        return Round(q, params, None, terms | {"kl_weights": 0.0, "margin": 0.0})
    margins = solve_classifiers(data, q, problem.head, make_blank(data, settings), warm_start, ROUND)
    return Round(q, params, margins, terms | margins.terms)


def show(problem: Problem, at: Round) -> State:
    """Return the fitted model that a round describes. Classifiers that cost nothing have no weights."""
    if at.margins is None:
        return State(at.params, make_blank(problem.data, problem.settings), at.responsibilities, None)
    return State(at.params, at.margins.classifiers, at.responsibilities, at.margins.multipliers)


def finish(problem: Problem, at: Round) -> State:
    """Solve for the classifiers to the last tolerance, at the responsibilities that prediction sees if wanted."""
    state, data = show(problem, at), problem.data
    if problem.head is None:
        return state
    q = infer_responsibilities(data.X, at.params) if problem.settings.refit else at.responsibilities
    margins = solve_classifiers(data, q, problem.head, state.classifiers, state.multipliers, FINAL)
    return replace(state, classifiers=margins.classifiers)


def score(X: Floats, state: State) -> Floats:
    """Return the score of each class for new rows, that of the components weighed by responsibility (n, classes)."""
    return state.classifiers.scores(X, infer_responsibilities(X, state.params))


# --- The start


def start_responsibilities(data: Data, settings: Settings, rng: np.random.Generator) -> Floats:
    """Return responsibilities without labels, shape (N, T), components in order of size; unused ones come last.

    Rows start in the component of their nearest centre, by k-means in standardised columns. As many centres as the
    truncation allows are usually too many, and coordinate descent hardly ever joins two halves of a cluster; whole
    components are cheap to join beforehand.
    """
    q = np.zeros((len(data.X), settings.n_components))
    q[np.arange(len(q)), assign_to_centres(data, settings.n_components, rng)] = 1.0
    q = q[:, best_order(data.weights @ q)]
    if not settings.merge:
        return q
    for _ in range(settings.n_components):
        q = _descend_without_labels(data, q, settings)
        gains, pairs = merge_gains(data, q, settings)
        if not len(gains) or gains.max() <= 0:
            break
        first, second = pairs[np.argmax(gains)]
        q[:, first] += q[:, second]
        q[:, second] = 0.0
    return q


def _descend_without_labels(data: Data, q: Floats, settings: Settings) -> Floats:
    for _ in range(MERGE_ROUNDS):
        params = update_params(data, q[:, best_order(data.weights @ q)], settings)
        q = infer_responsibilities(data.X, params)
    return np.ascontiguousarray(q[:, best_order(data.weights @ q)])


def merge_gains(data: Data, q: Floats, settings: Settings) -> tuple[Floats, Integers]:
    """Return what the bound gains when two components become one, all else at its best, eq. (104); and pairs (P, 2)."""
    counts = data.weights @ q
    used = np.flatnonzero(counts > EMPTY)
    i, j = used[np.array(np.triu_indices(len(used), 1))]
    parts = normal_gamma.sums(data.X, data.weights[:, None] * q, settings.prior)
    alone = normal_gamma.log_evidence(parts, settings.prior)
    gains = normal_gamma.log_evidence(parts[i] + parts[j], settings.prior) - alone[i] - alone[j]
    after = np.repeat(counts[None], len(i), axis=0)
    after[np.arange(len(i)), i] += after[np.arange(len(i)), j]
    after[np.arange(len(i)), j] = 0.0
    gains += dirichlet_process.log_evidence(-np.sort(-after, axis=1), settings.alpha)
    gains -= dirichlet_process.log_evidence(-np.sort(-counts), settings.alpha)
    entropies = data.weights @ xlogy(q, q)
    for pair, (first, second) in enumerate(zip(i, j, strict=True)):
        both = q[:, first] + q[:, second]
        gains[pair] += entropies[first] + entropies[second] - data.weights @ xlogy(both, both)
    return gains, np.column_stack([i, j])


def assign_to_centres(data: Data, k: int, rng: np.random.Generator) -> Integers:
    """Run k-means in standardised columns; return the number of each row's centre."""
    shift = data.X - data.weights @ data.X / data.weights.sum()
    scale = np.sqrt(data.weights @ np.square(shift) / data.weights.sum())
    rows = shift / np.where(scale > 0, scale, 1.0)
    centres = _spread_out(rows, data.weights, k, rng)
    nearest = _find_nearest(rows, centres)
    for _ in range(KMEANS_SWEEPS):
        counts = np.bincount(nearest, data.weights, minlength=len(centres))
        totals = np.zeros_like(centres)
        np.add.at(totals, nearest, data.weights[:, None] * rows)
        used = counts > 0
        centres[used] = totals[used] / counts[used, None]
        before, nearest = nearest, _find_nearest(rows, centres)
        if np.array_equal(before, nearest):
            break
    return nearest


def _spread_out(rows: Floats, weights: Floats, k: int, rng: np.random.Generator) -> Floats:
    """Return rows far from each other, at most k: drawn by squared distance to those before (k-means++)."""
    chosen = [int(rng.integers(len(rows)))]
    distance = weights * np.square(rows - rows[chosen[0]]).sum(axis=1)
    while len(chosen) < k and distance.max() > 0:
        chosen.append(int(rng.choice(len(rows), p=distance / distance.sum())))
        distance = np.minimum(distance, weights * np.square(rows - rows[chosen[-1]]).sum(axis=1))
    return rows[chosen].copy()


def _find_nearest(rows: Floats, centres: Floats) -> Integers:
    return np.argmin(np.square(centres).sum(axis=1) - 2.0 * rows @ centres.T, axis=1)
