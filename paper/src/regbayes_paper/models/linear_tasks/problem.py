"""Weight vectors of several outputs: the losses of observed targets, and the priors under which weights are found.

An output is a number of a task, or the score of a class. The losses are quadratic, or quadratic up to a margin, so
weights under a Gaussian prior are found by Newton's method (`regbayes.margins.newton`): one step, or a few.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Literal

import numpy as np
from scipy.linalg import lapack
from scipy.sparse.linalg import LinearOperator, cg

from regbayes._types import Floats
from regbayes.margins.newton import BoxBlock, NewtonSolution, Prior, solve_boxes
from regbayes.margins.targets import Observations

Loss = Literal["squared", "squared_hinge", "logistic"]  # of the last, logistic.py has the bounds

TOL = 1e-20  # duality gap relative to the objective, the square of what weights are off by; steps square it too
STEP_TOL = 1e-4  # of the system that a Newton step solves: a step leaves its square of the gap
NEARLY_SINGULAR = 1e-5  # ratio of pivots in a Cholesky factor, the root of that in the system


@dataclass(frozen=True)
class LinearTasks:
    """Inputs, observed targets and their loss.

    The loss of a target is ``weight / 2 (target - score)²``, for a squared hinge only where the margin is violated.
    """

    X: Floats  # (N, d): standardised; a constant last column carries the intercepts, if there are any
    observations: Observations
    n_outputs: int
    loss: Loss
    row_weights: Floats  # (N,): how often each row counts, which the observations' weights have already

    @cached_property
    def slices(self) -> list[slice]:
        """The observations of each output."""
        starts = np.searchsorted(self.observations.outputs, np.arange(self.n_outputs + 1))
        return [slice(a, b) for a, b in pairwise(starts.tolist())]

    @cached_property
    def block(self) -> BoxBlock:
        """All rows with the conjugate of their losses, as Newton's method sees them."""
        seen = self.observations
        form = seen.dual_form("squared_hinge" if self.loss == "squared_hinge" else "squared_epsilon_insensitive", 0.5)
        return BoxBlock(self.X, form, tuple((seen.rows[here], here) for here in self.slices))

    def scores(self, weights: Floats) -> Floats:
        """Return the score of every observation for weights (M, d)."""
        found = np.empty(len(self.observations))
        for m, here in enumerate(self.slices):
            found[here] = self.X[self.observations.rows[here]] @ weights[m]
        return found

    def value(self, weights: Floats) -> float:
        """Return the loss of weights (M, d)."""
        return float(self.block.form.values(-self.scores(weights)).sum())

    def moments(self) -> tuple[Floats, Floats]:
        """Return ``sum weight x xᵀ`` (M, d, d) and ``sum weight x target`` (M, d) of each output's observations."""
        d, seen = self.X.shape[1], self.observations
        grams, sums = np.zeros((self.n_outputs, d, d)), np.zeros((self.n_outputs, d))
        for m, here in enumerate(self.slices):
            rows = self.X[seen.rows[here]]
            weighted = rows * seen.weights[here, None]
            grams[m], sums[m] = rows.T @ weighted, weighted.T @ seen.targets[here]
        return grams, sums


def find_weights(problem: LinearTasks, prior: Prior, start: Floats) -> NewtonSolution:
    """Minimise loss plus penalty, from a position in the prior's coordinates."""
    return solve_boxes([problem.block], prior, start, tol=TOL)


@dataclass(frozen=True)
class ColumnPrior:
    """``1/2 sum_mj columns_j w_mj²``: every output by itself. Columns whose factor is 0 go free."""

    columns: Floats  # (d,)

    def weights(self, position: Floats) -> Floats:
        """Return the weights themselves."""
        return position

    def pull_back(self, gradient: Floats) -> Floats:
        """Return the gradient by the weights as it is."""
        return gradient

    def precision(self, position: Floats) -> Floats:
        """Return the prior precision times weights."""
        return self.columns * position

    def covariance(self, gradient: Floats) -> Floats | None:
        """Return the prior covariance times a gradient, unless there are free columns."""
        return gradient / self.columns if np.all(self.columns > 0.0) else None

    def solve(self, curvature: Floats, right: Floats) -> Floats:
        """Solve the system of each output."""
        systems = curvature + np.diag(self.columns)
        return np.stack([_solve_shortest(a, b) for a, b in zip(systems, right, strict=True)])


@dataclass(frozen=True)
class MixedPrior:
    """Weights ``W = mixing V`` of all outputs, with V standard normal: ``mixing`` is a root of the outputs' covariance.

    Positions are V, so the covariance may be singular.
    """

    mixing: Floats  # (M, M), symmetric

    def weights(self, position: Floats) -> Floats:
        """Return W."""
        return self.mixing @ position

    def pull_back(self, gradient: Floats) -> Floats:
        """Return the gradient by V."""
        return self.mixing @ gradient

    def precision(self, position: Floats) -> Floats:
        """Return V: its precision is the identity."""
        return position

    def covariance(self, gradient: Floats) -> Floats:
        """Return the gradient."""
        return gradient

    def solve(self, curvature: Floats, right: Floats) -> Floats:
        """Solve ``x + mixing (curvature_m (mixing x)_m) = right`` by conjugate gradients.

        It is one system, too large to write down where outputs are many; products with it are cheap.
        """
        S, shape, size = self.mixing, right.shape, right.size

        def multiply(flat: Floats) -> Floats:
            mixed = (S @ flat.reshape(shape))[:, :, None]
            return (S @ (curvature @ mixed)[:, :, 0]).ravel() + flat

        diagonal = (S**2 @ np.einsum("mjj->mj", curvature) + 1.0).ravel()
        scale = LinearOperator((size, size), matvec=lambda flat: flat / diagonal)
        found, _ = cg(LinearOperator((size, size), matvec=multiply), right.ravel(), rtol=STEP_TOL, M=scale)
        return found.reshape(shape)


def _solve_shortest(system: Floats, right: Floats) -> Floats:
    """Solve a system that may be singular; of several solutions, where free columns leave some, the shortest.

    A step is what is solved for, so what no target asks for stays as it was.
    """
    root, failed = lapack.dpotrf(system, lower=True, clean=False)
    sizes = np.diag(root)
    if failed or sizes.min(initial=1.0) < NEARLY_SINGULAR * sizes.max(initial=1.0):
        return np.linalg.lstsq(system, right, rcond=None)[0].astype(np.float64, copy=False)
    return lapack.dpotrs(root, right, lower=True)[0]
