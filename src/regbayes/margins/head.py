"""A linear head under margins: from features of rows to weights, their value, and the gradient they send back.

One convention of signs: a multiplier phi is positive where it pushes a score up. Weights are sums of ``phi_i x_i``, and
the derivative of the value by a score is minus its multiplier.

What the head sees of a row are its features, inputs beside them if there are any, and a constant if there is to be an
intercept. The intercept is the weight of that constant and is penalised as others are, so features can be centred
first: it should not have to make up for features that are far from zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from scipy.sparse import csr_matrix

from regbayes._registry import persistable
from regbayes._types import Floats, Integers, Reals
from regbayes.engine import Status
from regbayes.framework.coordinate_ascent import SimplexAscent, TaskLayout, ascend, sum_by_group
from regbayes.framework.dual_forms import BoxDual, SimplexDual
from regbayes.framework.solvers import solve_tasks
from regbayes.margins.targets import Classes, Loss, Observations, Outputs, Targets, layout_of

SMALLEST_GAP = 1e-8  # beyond this a verdict on a step is not worth waiting for
PATIENT_EPOCHS = 300.0
TIGHTEN = 0.1  # factor on the gap where no step seemed to lower the objective


@dataclass(frozen=True)
class Tolerance:
    """When a large-margin step is good enough."""

    gap: float  # duality gap, relative to the value
    max_epochs: float  # passes over the rows

    def tighten(self) -> Tolerance | None:
        """Return the tolerance to look again with where no step lowers the objective; None where that is hopeless."""
        return Tolerance(max(TIGHTEN * self.gap, SMALLEST_GAP), PATIENT_EPOCHS) if self.gap > SMALLEST_GAP else None


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

    form: BoxDual | SimplexDual = field(init=False)
    """Conjugate of the loss: of differences to the true class's score, or of minus the scores."""

    def __post_init__(self) -> None:
        # Built here and not when it is first needed: a descent solves for the head a thousand times.
        form = self.targets.loss(self.squared).dual_form(len(self.targets) * self.targets.n_outputs)
        assert form is not None
        object.__setattr__(self, "form", form.reflect() if isinstance(form, BoxDual) else form)

    @cached_property
    def layout(self) -> TaskLayout:
        """Of the scores, row by row."""
        return layout_of(len(self.targets), self.targets.n_outputs)

    def solve(self, features: Reals, warm_start: Floats | None, tolerance: Tolerance) -> FittedHead:
        """Solve for the weights at the features of all rows (N, K), from the multipliers of an earlier solve.

        Columns are multiplied by the standard deviation of the weights a priori, so that weights are standard normal.
        """
        form, targets, n_rows = self.form, self.targets, len(features)
        if self.rows is not None:
            features = features[self.rows]
        centre, scale = np.zeros(features.shape[1]), float(np.sqrt(self.weight_variance))
        if self.fit_intercept and self.centred and len(features):
            weights = self.row_weights
            centre = features.mean(axis=0, dtype=np.float64) if weights is None else weights @ features / weights.sum()
        columns = design(features, centre, self.inputs, self.fit_intercept)
        if scale != 1.0:
            columns *= scale
        if isinstance(form, SimplexDual):
            assert isinstance(targets, Classes)
            start = None if warm_start is None else simplex_multipliers(warm_start, targets.labels, form)
            problem = SimplexAscent(columns, form, targets.labels, start)
            found = problem.solution(ascend(problem, tolerance.gap, tolerance.max_epochs, seed=0))
            phi = score_multipliers(found.dual, targets.labels)
        else:
            shape = len(targets), targets.n_outputs
            start = None if warm_start is None else warm_start.ravel()
            found = solve_tasks(
                columns, form, self.layout, warm_start=start, tol=tolerance.gap, max_epochs=tolerance.max_epochs
            )
            phi = found.dual.reshape(shape)
        penalty = 0.5 * float(np.vdot(found.weights, found.weights))
        return FittedHead(
            head=LinearHead(scale * found.weights, centre, self.fit_intercept),
            multipliers=phi,
            kl_weights=penalty,
            margin=found.primal - penalty,
            gap=found.gap,
            status=found.status,
            problem=self,
            n_rows=n_rows,
        )

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


@persistable(name="regbayes.LinearHead")
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
    def warm_start(self) -> Floats:
        """What the next solve may start from."""
        return self.multipliers

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


@persistable(name="regbayes.MultiTaskWeights")
@dataclass(frozen=True)
class TaskWeights:
    """Weights of the outputs of several tasks, and the multipliers that they come from.

    M outputs in G groups, which see P columns: features, inputs if they are beside them, the constant if there is one.
    """

    weights: Floats  # (M, P): the mean weights of each output
    shared: Floats  # (G, P): the part of them that the outputs of a group have in common
    groups: Integers  # (M,): the group of each output
    multipliers: Floats  # (n,): phi of the observations


@dataclass(frozen=True)
class TaskHead:
    """What rows of several tasks ask for, some of it missing, and what the linear heads of their outputs see of them.

    Weights are ``own + sharing * common``, all standard normal a priori; outputs of one group have `common` in common.

    Parameters
    ----------
    observations : Observations
        At least one; its rows are those of the features.
    outputs : Outputs
    loss : {"hinge", "squared_hinge", "epsilon_insensitive", "squared_epsilon_insensitive"}
    C : float
        Price of one unit of loss; the observations have weights on top of it.
    epsilon : float, default=0.0
        Half-width of the free tube around numbers.
    sharing : float, default=0.0
    fit_intercept : bool, default=True
        Whether outputs see a constant, whose weight is penalised as others are.
    inputs : (n, D), default=None
        What outputs see beside the features.
    input_factor : float, default=1.0
        What the inputs are multiplied by.
    """

    observations: Observations
    outputs: Outputs
    loss: Loss
    C: float
    epsilon: float = 0.0
    sharing: float = 0.0
    fit_intercept: bool = True
    inputs: Floats | None = None
    input_factor: float = 1.0

    @cached_property
    def form(self) -> BoxDual:
        """The conjugate of the loss as a function of minus the scores: docs/math.md eq. (44)."""
        form = self.observations.loss(self.loss, self.C, self.epsilon).dual_form(len(self.observations))
        assert isinstance(form, BoxDual)
        return form.reflect()

    def design(self, features: Reals | Sequence[Reals]) -> Floats:
        """Return what outputs see of the rows, shape (n, P), from their features, which may come in blocks."""
        return design(features, None, self.inputs, self.fit_intercept, self.input_factor)

    def solve(self, features: Reals, warm_start: TaskWeights | None, tolerance: Tolerance) -> FittedTasks:
        """Solve for the weights at features (n, K), from the weights of an earlier solve."""
        return self.solve_design(self.design(features), features.shape[1], warm_start, tolerance)

    def solve_design(
        self, columns: Floats, n_features: int, warm_start: TaskWeights | None, tolerance: Tolerance
    ) -> FittedTasks:
        """Solve for the weights at what outputs see of the rows, of which the first columns are features."""
        found = solve_tasks(
            columns,
            self.form,
            self.observations.layout(self.outputs, self.sharing),
            warm_start=None if warm_start is None else warm_start.multipliers,
            warm_weights=None if warm_start is None else warm_start.weights,
            tol=tolerance.gap,
            max_epochs=tolerance.max_epochs,
        )
        own = found.weights - found.shared_weights[self.outputs.groups]
        penalty = 0.5 * float(np.vdot(own, own))
        if self.sharing > 0:
            penalty += 0.5 * float(np.vdot(found.shared_weights, found.shared_weights)) / self.sharing**2
        return FittedTasks(
            weights=TaskWeights(found.weights, found.shared_weights, self.outputs.groups, found.dual),
            kl_weights=penalty,
            margin=found.primal - penalty,
            gap=found.gap,
            problem=self,
            n_rows=len(columns),
            n_features=n_features,
        )

    def bound(self, columns: Floats, multipliers: Floats) -> float:
        """Return the dual value at given multipliers: at what outputs see of the rows no weights can cost less."""
        form, phi = self.form, multipliers
        sums = self.lay_out(phi, len(columns)) @ columns
        penalty = 0.5 * float(np.vdot(sums, sums))
        if self.sharing > 0:
            by_group = sum_by_group(sums, self.outputs.groups)
            penalty += 0.5 * self.sharing**2 * float(np.vdot(by_group, by_group))
        return -penalty - float(form.linear @ phi + form.absolute @ np.abs(phi) + 0.5 * form.ridge @ np.square(phi))

    def lay_out(self, values: Floats, n_rows: int) -> Floats | csr_matrix:
        """Return values of the observations as a matrix (M, n_rows), a dense one where every row has every output."""
        if len(values) == len(self.outputs) * n_rows:
            return values.reshape(len(self.outputs), n_rows)
        return self.observations.matrix(values, len(self.outputs), n_rows)


@dataclass(frozen=True)
class FittedTasks:
    """The solved large-margin problem of several tasks at given features."""

    weights: TaskWeights
    kl_weights: float  # divergence of the weights from their prior, |own|^2 / 2 + |common|^2 / 2
    margin: float  # the loss, prices included
    gap: float  # the sum of both is above its minimum by this at most
    problem: TaskHead
    n_rows: int
    n_features: int

    @property
    def warm_start(self) -> TaskWeights:
        """What the next solve may start from."""
        return self.weights

    @property
    def terms(self) -> dict[str, float]:
        """The terms of the objective."""
        return {"kl_weights": self.kl_weights, "margin": self.margin}

    @property
    def value(self) -> float:
        """Their sum."""
        return self.kl_weights + self.margin

    @cached_property
    def _by_row(self) -> Floats | csr_matrix:
        """The multipliers, shape (n_rows, M)."""
        found = self.problem.lay_out(self.weights.multipliers, self.n_rows).T
        return found if isinstance(found, np.ndarray) else found.tocsr()

    def gradient(self, rows: slice) -> Floats:
        """Return the derivative of the value by the features of some rows, by Danskin's theorem, shape (n, K)."""
        return self._by_row[rows] @ -self.weights.weights[:, : self.n_features]


def design(
    features: Reals | Sequence[Reals],
    centre: Floats | None,
    inputs: Floats | None,
    fit_intercept: bool,
    input_factor: float = 1.0,
) -> Floats:
    """Return what a linear head sees of rows: centred features, inputs if there are any, a constant if wanted.

    Features may come in blocks of rows, which saves a copy of them all.
    """
    blocks = [features] if isinstance(features, np.ndarray) else features
    n, K = sum(map(len, blocks)), blocks[0].shape[1]
    n_inputs = 0 if inputs is None else inputs.shape[1]
    columns = np.empty((n, K + n_inputs + int(fit_intercept)))
    first = 0
    for block in blocks:
        out = columns[first : first + len(block), :K]
        if centre is None:
            out[...] = block
        else:
            np.subtract(block, centre, out=out)
        first += len(block)
    if inputs is not None:
        np.multiply(inputs, input_factor, out=columns[:, K : K + n_inputs])
    if fit_intercept:
        columns[:, -1] = 1.0
    return columns


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
