"""The large-margin step of variational MedLDA: from shares of topics to weights, their value, and what they send back.

Weights are N(0, weight_variance) a priori. With an intercept, which has the same prior, shares are centred first: it
should not have to make up for shares that are far from zero. Several classes meet in one margin each (Crammer and
Singer); labels and numbers have a box of multipliers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from regbayes._types import Floats, Integers
from regbayes.framework.dual_forms import BoxDual
from regbayes.framework.large_margin import MarginSolution, MultiClassDual, TaskLayout, solve_box, solve_simplex
from regbayes.framework.margin_accuracy import Accuracy
from regbayes.models.medlda.state import Margins, Targets


@dataclass(frozen=True)
class Classes:
    """One of several classes per document, each asking to score above the others by their cost."""

    labels: Integers  # (N,)
    cost: Floats  # (L, L): cost[true, answer], the margins asked for
    prices: Floats  # (N,)


Supervision = Classes | Margins | Targets


@dataclass(frozen=True)
class Readout:
    """The solved large-margin problem at given shares."""

    solution: MarginSolution
    weights: Floats  # (L, K)
    intercepts: Floats  # (L,)
    centre: Floats  # (K,)
    pull: Floats  # (N, L): minus the derivative of the value by the scores
    centred: bool

    @property
    def folded(self) -> Floats:
        """Weights with the intercept inside, for shares that sum to one, shape (L, K)."""
        return np.asarray(self.weights + (self.intercepts - self.weights @ self.centre)[:, None])

    def slopes(self) -> Floats:
        """Return the derivative of the value by the shares, shape (N, K)."""
        found = -self.pull @ self.weights
        return np.asarray(found - found.mean(axis=0) if self.centred else found)


@dataclass(frozen=True)
class Dual:
    """The conjugate of all documents' losses."""

    form: MultiClassDual | BoxDual
    n_responses: int
    weight_variance: float
    intercept: bool
    layout: TaskLayout | None  # of a box
    supervision: Supervision
    squared: bool

    def losses(self, scores: Floats) -> Floats:
        """Return each document's loss at given scores (N, L), prices included, shape (N,)."""
        excess, prices, _ = self._violations(scores)
        return np.asarray(np.sum(prices * (excess**2 if self.squared else excess), axis=1))

    def pulls(self, scores: Floats) -> Floats:
        """Return minus the derivative of the losses by the scores, shape (N, L); at a kink, on one of its sides."""
        excess, prices, way = self._violations(scores)
        return np.asarray(prices * (2.0 * excess if self.squared else (excess > 0)) * way)

    def _violations(self, scores: Floats) -> tuple[Floats, Floats, Floats]:
        """Return by how much margins are missed, at which price, and which way scores would have to go."""
        asked = self.supervision
        if not isinstance(asked, Classes):
            if isinstance(asked, Margins):
                missed, way = asked.margin - asked.signs * scores, asked.signs
            else:
                residual = asked.values - scores
                missed, way = np.abs(residual) - asked.epsilon, np.sign(residual)
            return np.maximum(missed, 0.0), asked.prices, way
        row = np.arange(len(scores))
        against = asked.cost[asked.labels] + scores
        answer = np.argmax(against, axis=1)
        missed = against[row, answer] - scores[row, asked.labels]
        way = np.zeros_like(scores)
        way[row, answer] = -1.0
        way[row, asked.labels] += 1.0
        return missed[:, None], asked.prices[:, None], way

    @property
    def scale(self) -> float:
        """Standard deviation of weights: shares are multiplied by it, so that weights are standard normal."""
        return float(np.sqrt(self.weight_variance))


def build_dual(supervision: Supervision, weight_variance: float, squared: bool, intercept: bool) -> Dual:
    """Return the conjugate of the losses, or of their squares."""
    if isinstance(supervision, Classes):
        make = MultiClassDual.squared_hinge if squared else MultiClassDual.hinge
        simplexes = make(supervision.labels, supervision.cost, supervision.prices)
        return Dual(simplexes, len(supervision.cost), weight_variance, intercept, None, supervision, squared)
    n, n_responses = supervision.prices.shape
    layout = TaskLayout(
        np.repeat(np.arange(n), n_responses), np.tile(np.arange(n_responses), n), np.arange(n_responses)
    )
    price = supervision.prices.ravel()
    out = price == 0.0
    ridge = np.divide(0.5, price, out=np.ones_like(price), where=~out) if squared else np.zeros_like(price)
    most = np.where(out, 0.0, np.inf) if squared else price
    if isinstance(supervision, Margins):
        signs = supervision.signs.ravel()
        linear, absolute = -supervision.margin * signs, np.zeros_like(price)
        lower, upper = np.where(signs > 0, 0.0, -most), np.where(signs > 0, most, 0.0)
    else:
        linear, absolute = -supervision.values.ravel(), np.full(len(price), supervision.epsilon)
        lower, upper = -most, most
    form = BoxDual(linear, absolute, ridge, lower, upper)
    return Dual(form, n_responses, weight_variance, intercept, layout, supervision, squared)


def solve_readout(shares: Floats, dual: Dual, warm_start: Floats | None, accuracy: Accuracy) -> Readout:
    """Solve for weights and intercepts at given shares, from the multipliers of an earlier solve."""
    n, K = shares.shape
    centre = shares.mean(axis=0) if dual.intercept else np.zeros(K)
    features = np.full((n, K + int(dual.intercept)), dual.scale)
    np.subtract(shares, centre, out=features[:, :K])
    features[:, :K] *= dual.scale
    options: dict[str, Any] = {"warm_start": warm_start, "tol": accuracy.gap, "max_epochs": accuracy.max_epochs}
    if isinstance(dual.form, MultiClassDual):
        solution = solve_simplex(features, dual.form, **options)
        pull = -solution.dual
        pull[np.arange(n), dual.form.labels] += solution.dual.sum(axis=1)
    else:
        solution = solve_box(features, dual.form, dual.layout, **options)
        pull = solution.dual.reshape(n, dual.n_responses)
    weights = dual.scale * solution.weights
    intercepts = weights[:, K] if dual.intercept else np.zeros(len(weights))
    return Readout(solution, weights[:, :K], intercepts, centre, pull, dual.intercept)
