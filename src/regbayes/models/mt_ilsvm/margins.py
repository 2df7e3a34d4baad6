"""The large-margin part, docs/math.md eq. (43): weights, multipliers and their certificate for given features.

This is the one place that needs the rows. What comes back carries its certificate, the duality gap, and its value is
that of the primal at the weights returned: an upper bound, never an estimate.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from regbayes._types import Floats
from regbayes.framework.dual_forms import BoxDual
from regbayes.framework.large_margin import TaskLayout, solve_box
from regbayes.models.mt_ilsvm.cells import Cells, Outputs
from regbayes.models.mt_ilsvm.state import TaskWeights


@dataclass(frozen=True)
class MarginProblem:
    """Targets and their losses, on the rows that have any."""

    X: Floats  # (n_labelled, D)
    cells: Cells  # rows index into X
    outputs: Outputs
    form: BoxDual
    sharing: float  # rho
    input_scale: float
    include_inputs: bool
    fit_intercept: bool

    @property
    def n_outputs(self) -> int:
        """M, the number of outputs."""
        return len(self.outputs.tasks)


@dataclass(frozen=True)
class MarginPart:
    """The solution for one q(Z)."""

    tasks: TaskWeights
    kl_weights: float  # |own|^2 / 2 + |common|^2 / 2
    loss: float  # C times the losses
    gap: float  # how far their sum may be above the minimum

    @property
    def value(self) -> float:
        """The primal value."""
        return self.kl_weights + self.loss


def no_weights(problem: MarginProblem, n_seen: int) -> TaskWeights:
    """Return the start: no multipliers, no weights."""
    return TaskWeights(
        weights=np.zeros((problem.n_outputs, n_seen)),
        shared=np.zeros((problem.outputs.n_groups, n_seen)),
        groups=problem.outputs.groups,
        duals=np.zeros(len(problem.cells)),
    )


def solve_margins(problem: MarginProblem, seen: Floats, start: TaskWeights, tol: float) -> MarginPart:
    """Solve for the weights, from those of ``start``, to a duality gap of ``tol`` times the value."""
    if len(problem.cells) == 0:
        return MarginPart(no_weights(problem, seen.shape[1]), 0.0, 0.0, 0.0)
    layout = TaskLayout(problem.cells.rows, problem.cells.outputs, problem.outputs.groups, problem.sharing)
    found = solve_box(seen, problem.form, layout, warm_start=start.duals, warm_weights=start.weights, tol=tol)
    tasks = TaskWeights(found.weights, found.shared_weights, problem.outputs.groups, found.dual)
    kl_weights = weights_penalty(tasks, problem.sharing)
    return MarginPart(tasks, kl_weights, found.primal - kl_weights, found.gap)


def weights_penalty(tasks: TaskWeights, sharing: float) -> float:
    """Return ``KL(q(eta) || p(eta)) = |own|^2 / 2 + |common|^2 / 2``, where ``shared = sharing * common``."""
    own = tasks.weights - tasks.shared[tasks.groups]
    penalty = 0.5 * float(np.vdot(own, own))
    if sharing > 0:
        penalty += 0.5 * float(np.vdot(tasks.shared, tasks.shared)) / sharing**2
    return penalty


def margin_bound(problem: MarginProblem, seen: Floats, duals: Floats) -> float:
    """Return the dual value at the multipliers as they are: no weights can cost less."""
    form, u, groups = problem.form, duals, problem.outputs.groups
    sums = problem.cells.matrix(u, problem.n_outputs, len(seen)) @ seen  # (M, P)
    by_group = np.zeros((problem.outputs.n_groups, seen.shape[1]))
    np.add.at(by_group, groups, sums)
    penalty = 0.5 * float(np.vdot(sums, sums)) + 0.5 * problem.sharing**2 * float(np.vdot(by_group, by_group))
    return -penalty - float(form.linear @ u + form.absolute @ np.abs(u) + 0.5 * form.ridge @ u**2)


def margin_pull(problem: MarginProblem, tasks: TaskWeights, n_features: int) -> Floats:
    """Return minus the derivative of the margin part with respect to psi, (D, K).

    Delta of docs/math.md eq. (46). By Danskin's theorem the derivative is that of the Lagrangian at the solution.
    """
    n_rows, n_columns = problem.X.shape
    per_output = problem.cells.matrix(tasks.duals, problem.n_outputs, n_rows) @ problem.X  # (M, D)
    return np.asarray(per_output.T @ tasks.weights[:, :n_features] / (problem.input_scale * np.sqrt(n_columns)))


def without_targets(problem: MarginProblem) -> MarginProblem:
    """Return the same problem with no target observed."""
    nothing = np.zeros(0)
    cells = Cells(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), nothing, nothing)
    return replace(problem, X=problem.X[:0], cells=cells, form=BoxDual(nothing, nothing, nothing, nothing, nothing))
