"""A linear head under margins: from features of rows to weights, their value, and the gradient they send back.

One convention of signs: a multiplier phi is positive where it pushes a score up. Weights are sums of ``phi_i x_i``, and
the derivative of the value by a score is minus its multiplier.

What the head sees of a row are its features, inputs beside them if there are any, and a constant if there is to be an
intercept. The intercept is the weight of that constant and is penalised as others are, so features can be centred
first: it should not have to make up for features that are far from zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from regbayes._types import Floats, Integers, Reals
from regbayes.engine.result import Status
from regbayes.framework.coordinate_ascent import MarginSolution, TaskLayout, solve_simplex
from regbayes.framework.dual_forms import BoxDual, SimplexDual
from regbayes.margins.solvers import solve_tasks
from regbayes.margins.targets import Classes, Targets, layout_of
from regbayes.margins.tolerance import Tolerance


@dataclass(frozen=True)
class MarginHead:
    """What rows ask for, the loss of missing it, and what a linear head sees of them.

    Parameters
    ----------
    targets : Targets
        Of the rows that have any.
    squared : bool
        Whether losses are squared.
    fit_intercept : bool, default=True
    centred : bool, default=True
        Whether features are seen less their mean over the rows with targets, where there is an intercept.
    weight_variance : float, default=1.0
        Of the weights a priori.
    inputs : (n, D), default=None
        Columns that the head sees beside the features of the rows with targets, as they are.
    rows : (n,), default=None
        Which rows have targets; all by default.
    row_weights : (n,), default=None
        How often each row with targets counts in the mean that is taken off. Its prices have the factor already.
    """

    targets: Targets
    squared: bool
    fit_intercept: bool = True
    centred: bool = True
    weight_variance: float = 1.0
    inputs: Floats | None = None
    rows: Integers | None = None
    row_weights: Floats | None = None

    @cached_property
    def form(self) -> BoxDual | SimplexDual:
        """The conjugate of the loss: of differences to the true class's score, or of minus the scores."""
        form = self.targets.loss(self.squared).dual_form(len(self.targets) * self.targets.n_outputs)
        assert form is not None
        return form.reflect() if isinstance(form, BoxDual) else form

    @cached_property
    def layout(self) -> TaskLayout:
        """Of the scores, row by row."""
        return layout_of(len(self.targets), self.targets.n_outputs)

    @property
    def scale(self) -> float:
        """Standard deviation of the weights: columns are multiplied by it, so that weights are standard normal."""
        return float(np.sqrt(self.weight_variance))

    def centre(self, features: Reals) -> Floats:
        """Return what is taken off the features of the rows with targets, shape (K,)."""
        if not (self.fit_intercept and self.centred and len(features)):
            return np.zeros(features.shape[1])
        if self.row_weights is None:
            return features.mean(axis=0, dtype=np.float64)
        return self.row_weights @ features / self.row_weights.sum()

    def solve(self, features: Reals, warm_start: Floats | None, tolerance: Tolerance) -> FittedHead:
        """Solve for the weights at the features of all rows (N, K), from the multipliers of an earlier solve."""
        n_rows = len(features)
        if self.rows is not None:
            features = features[self.rows]
        centre = self.centre(features)
        seen = design(features, centre, self.inputs, self.fit_intercept)
        if self.scale != 1.0:
            seen *= self.scale
        found, phi = self._solve(seen, warm_start, tolerance)
        penalty = 0.5 * float(np.vdot(found.weights, found.weights))
        return FittedHead(
            head=LinearHead(self.scale * found.weights, centre, self.fit_intercept),
            multipliers=phi,
            kl_weights=penalty,
            margin=found.primal - penalty,
            gap=found.gap,
            status=found.status,
            problem=self,
            n_rows=n_rows,
        )

    def _solve(self, seen: Floats, warm_start: Floats | None, tolerance: Tolerance) -> tuple[MarginSolution, Floats]:
        tol, max_epochs = tolerance.gap, tolerance.max_epochs
        if isinstance(self.form, SimplexDual):
            assert isinstance(self.targets, Classes)
            labels = self.targets.labels
            start = None if warm_start is None else simplex_multipliers(warm_start, labels, self.form)
            found = solve_simplex(seen, self.form, labels, warm_start=start, tol=tol, max_epochs=max_epochs)
            return found, score_multipliers(found.dual, labels)
        start = None if warm_start is None else warm_start.ravel()
        found = solve_tasks(seen, self.form, self.layout, warm_start=start, tol=tol, max_epochs=max_epochs)
        return found, found.dual.reshape(len(self.targets), self.targets.n_outputs)

    def losses(self, scores: Floats) -> Floats:
        """Return the loss of each row at given scores (n, outputs), shape (n,)."""
        if isinstance(self.form, SimplexDual):
            assert isinstance(self.targets, Classes)
            return self.form.values(scores - np.take_along_axis(scores, self.targets.labels[:, None], axis=1))
        return self.form.values(-scores.ravel()).reshape(scores.shape).sum(axis=1)

    def multipliers(self, scores: Floats) -> Floats:
        """Return minus the derivative of the loss by given scores, (n, outputs); at a kink, on one of its sides."""
        if isinstance(self.form, SimplexDual):
            assert isinstance(self.targets, Classes)
            labels = self.targets.labels
            omega = self.form.derivatives(scores - np.take_along_axis(scores, labels[:, None], axis=1))
            return score_multipliers(omega, labels)
        return self.form.derivatives(-scores.ravel()).reshape(scores.shape)


@dataclass(frozen=True)
class LinearHead:
    """Weights of outputs on features, inputs beside them and a constant: all that prediction needs."""

    weights: Floats  # (outputs, K [+ D] [+ 1])
    centre: Floats  # (K,): taken off the features
    fit_intercept: bool  # whether the last weight is that of a constant

    def scores(self, features: Reals, inputs: Floats | None = None) -> Floats:
        """Return the scores of rows, shape (n, outputs)."""
        return design(features, self.centre, inputs, self.fit_intercept) @ self.weights.T

    @property
    def feature_weights(self) -> Floats:
        """Weights of the features, shape (outputs, K)."""
        return self.weights[:, : len(self.centre)]


@dataclass(frozen=True)
class FittedHead:
    """The solved large-margin problem at given features: the head, its certificate, and what it sends back."""

    head: LinearHead
    multipliers: Floats  # (n, outputs): phi of the rows with targets
    kl_weights: float  # divergence of the weights from their prior: half their squared norm, in its units
    margin: float  # the loss, prices included
    gap: float  # the sum of both is above its minimum by this at most
    status: Status
    problem: MarginHead
    n_rows: int  # all rows, with targets or without

    @property
    def terms(self) -> dict[str, float]:
        """The terms of the objective."""
        return {"kl_weights": self.kl_weights, "margin": self.margin}

    @property
    def value(self) -> float:
        """Their sum."""
        return self.kl_weights + self.margin

    @cached_property
    def _of_all_rows(self) -> tuple[Floats, Floats | None]:
        """Multipliers of all rows, zero without targets, (N, outputs); and the share of each in the mean, (N, 1)."""
        problem, phi, n = self.problem, self.multipliers, max(len(self.multipliers), 1)
        centred = self.head.fit_intercept and problem.centred
        shares = np.full((len(phi), 1), 1.0 / n) if centred else None
        if shares is not None and problem.row_weights is not None:
            shares = problem.row_weights[:, None] / problem.row_weights.sum()
        if problem.rows is None:
            return phi, shares
        spread = np.zeros((self.n_rows, phi.shape[1]))
        spread[problem.rows] = phi
        if shares is None:
            return spread, None
        spread_shares = np.zeros((self.n_rows, 1))
        spread_shares[problem.rows] = shares
        return spread, spread_shares

    def gradient(self, rows: slice) -> Floats:
        """Return the derivative of the value by the features of some rows, by Danskin's theorem, shape (n, K).

        Features that are centred are so on their own mean: what a row gains all rows with targets share.
        """
        weights, (phi, shares) = -self.head.feature_weights, self._of_all_rows
        found = phi[rows] @ weights
        if shares is not None:
            found -= shares[rows] * (self.multipliers.sum(axis=0) @ weights)
        return found


def design(features: Reals, centre: Floats, inputs: Floats | None, fit_intercept: bool) -> Floats:
    """Return what a linear head sees of rows: centred features, inputs if there are any, a constant if wanted."""
    n, K = features.shape
    n_inputs = 0 if inputs is None else inputs.shape[1]
    seen = np.empty((n, K + n_inputs + int(fit_intercept)))
    np.subtract(features, centre, out=seen[:, :K])
    if inputs is not None:
        seen[:, K : K + n_inputs] = inputs
    if fit_intercept:
        seen[:, -1] = 1.0
    return seen


def score_multipliers(omega: Floats, labels: Integers) -> Floats:
    """Return multipliers of scores from those of a simplex: they push the true class's score up, and others' down."""
    phi = -omega
    phi[np.arange(len(phi)), labels] += omega.sum(axis=1)
    return phi


def simplex_multipliers(phi: Floats, labels: Integers, form: SimplexDual) -> Floats:
    """Return multipliers of a simplex from those of scores; where their sum is fixed the true class has the rest."""
    omega = np.maximum(-phi, 0.0)
    rows = np.arange(len(phi))
    omega[rows, labels] = 0.0
    rest = np.maximum(form.total - omega.sum(axis=1), 0.0)
    omega[rows, labels] = np.where(np.isfinite(form.total), rest, 0.0)
    return omega
