"""Linear heads of several tasks that may share weights, some of whose targets are missing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.sparse import csr_matrix

from regbayes._registry import persistable
from regbayes._types import Floats, Integers, Reals
from regbayes.engine import Executor
from regbayes.framework.coordinate_ascent import sum_by_group
from regbayes.framework.dual_forms import BoxDual
from regbayes.framework.solvers import solve_tasks
from regbayes.margins.head import Tolerance, design
from regbayes.margins.targets import Loss, Observations, Outputs


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

    def gathers(self, n_features: int) -> bool:
        """Whether features of all rows are wanted in one array: `design` takes them as they come."""
        return False

    def solve(
        self,
        features: Reals | Sequence[Reals],
        warm_start: TaskWeights | None,
        tolerance: Tolerance,
        executor: Executor | None = None,
    ) -> FittedTasks:
        """Solve for the weights at features (n, K), which may come in blocks, from the weights of an earlier solve."""
        n_features = (features if isinstance(features, np.ndarray) else features[0]).shape[1]
        return self.solve_design(self.design(features), n_features, warm_start, tolerance)

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

    def gradient(self, rows: slice, features: Reals | None = None) -> Floats:
        """Return the derivative of the value by the features of some rows, by Danskin's theorem, shape (n, K)."""
        return self._by_row[rows] @ -self.weights.weights[:, : self.n_features]
