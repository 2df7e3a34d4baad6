"""Linear models of several tasks: separate (STL), related (MTRL), and with a shared subspace (ASO).

Each minimizes half the squared errors or squared hinge losses plus a quadratic penalty on the weights.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

import numpy as np
from scipy.sparse.linalg import LinearOperator, cg

from regbayes_paper._types import Floats
from regbayes_paper.descent import alternate
from regbayes_paper.tasks import TaskClassifier, TaskModel, TaskProblem, TaskRegressor

NEWTON_STEPS = 100
NEWTON_TOL = 1e-14  # predicted decrease at which Newton's method stops, relative to the objective
CG_TOL = 1e-6  # relative tolerance of conjugate gradients in a Newton step


@dataclass(frozen=True)
class LinearTasks:
    """``min 1/2 sum_n weight_n loss_n(W) + 1/2 tr V P V'``; row m of ``W = mixing V`` belongs to task m."""

    problem: TaskProblem
    hinge: bool  # squared hinge of targets -1 and 1, or squared errors
    counts: Floats  # (n,): weight of each target

    def residuals(self, weights: Floats) -> Floats:
        """Return the negative derivative of each target's loss with respect to its score."""
        short = self.problem.targets - self.problem.scores(weights)
        return np.where(self.problem.targets * short > 0, short, 0.0) if self.hinge else short

    def loss(self, weights: Floats) -> float:
        """Return the total loss."""
        return 0.5 * float(self.counts @ self.residuals(weights) ** 2)

    def minimize(self, penalty: Floats, position: Floats, mixing: Floats | None = None) -> Floats:
        """Return the optimal weights, by Newton's method from an initial V, the position.

        The mixing is a symmetric square root of the task covariance; None is the identity.
        """
        S = np.eye(len(position)) if mixing is None else mixing

        def value(V: Floats) -> float:
            return self.loss(S @ V) + 0.5 * float(np.vdot(V @ penalty, V))

        V, current = position, value(position)
        for _ in range(NEWTON_STEPS):
            residuals = self.residuals(S @ V)
            gradient = V @ penalty - S @ self.problem.sums(self.counts * residuals)
            active = self.counts * (residuals != 0) if self.hinge else self.counts
            grams = self.problem.grams(active)
            step = -(_solve_each if mixing is None else _solve_mixed)(grams, penalty, gradient, S)
            slope, length = float(np.vdot(gradient, step)), 1.0
            if -slope <= NEWTON_TOL * current:
                break
            moved = value(V + step)
            while moved > current + 1e-4 * length * slope and length > NEWTON_TOL:
                length *= 0.5
                moved = value(V + length * step)
            if moved >= current:
                break
            V, current = V + length * step, moved
        return S @ V


def _solve_each(grams: Floats, penalty: Floats, right: Floats, _: Floats) -> Floats:
    """Solve the system of each task, with the minimum-norm solution of singular systems."""
    systems = grams + penalty
    try:
        np.linalg.cholesky(systems)  # raises if a system is singular
    except np.linalg.LinAlgError:
        return np.stack([np.linalg.lstsq(a, b, rcond=None)[0] for a, b in zip(systems, right, strict=True)])
    return np.asarray(np.linalg.solve(systems, right[:, :, None])[:, :, 0], dtype=np.float64)


def _solve_mixed(grams: Floats, penalty: Floats, right: Floats, S: Floats) -> Floats:
    """Solve ``V P + S (gram_m (S V)_m) = right``, one system for all tasks, by conjugate gradients."""
    diagonal = (S**2 @ np.einsum("mjj->mj", grams) + np.diag(penalty)).ravel()

    def multiply(flat: Floats) -> Floats:
        V = flat.reshape(right.shape)
        return (V @ penalty + S @ np.einsum("mde,me->md", grams, S @ V)).ravel()

    size = right.size
    scale = LinearOperator((size, size), matvec=lambda flat: flat / diagonal)
    found, _ = cg(LinearOperator((size, size), matvec=multiply), right.ravel(), rtol=CG_TOL, M=scale)
    return found.reshape(right.shape)


class LinearTaskModel(TaskModel):
    """Base class of models with scores ``(X - mean_) / scale_ @ coef_.T + intercept_``."""

    _hinge: ClassVar[bool]

    def _pose(self, problem: TaskProblem, counts: Floats | None = None) -> LinearTasks:
        return LinearTasks(problem, self._hinge, np.ones(len(problem.rows)) if counts is None else counts)

    def _set_weights(self, weights: Floats, constant: float = 1.0) -> None:
        self.coef_, self.intercept_ = weights[:, :-1], weights[:, -1] * constant


@dataclass(eq=False, repr=False)
class SingleTaskRegressor(TaskRegressor, LinearTaskModel):
    """One ridge regression per task (STL).

    Parameters
    ----------
    alpha : float, default=1.0
        Penalty on squared weights of standardized inputs, as in scikit-learn's `Ridge`. Intercepts are unpenalized.

    Examples
    --------
    >>> import numpy as np
    >>> from regbayes_paper.baselines import SingleTaskRegressor
    >>> X, group = np.arange(12.0)[:, None], np.arange(12) % 3
    >>> model = SingleTaskRegressor(alpha=0.001).fit(X, X[:, 0] * (1 + group), task=group)
    >>> model.predict([[2.0], [2.0]], task=[0, 2]).round(1)
    array([2., 6.])
    """

    _hinge = False

    alpha: float = 1.0

    def _learn(self, problem: TaskProblem) -> None:
        linear = self._pose(problem.with_constant())
        penalty = np.diag([*np.full(problem.X.shape[1], float(self.alpha)), 0.0])
        self._set_weights(linear.minimize(penalty, np.zeros((problem.n_outputs, len(penalty)))))


@dataclass(eq=False, repr=False)
class SingleTaskClassifier(TaskClassifier, LinearTaskModel):
    """One linear support vector machine with a squared hinge per task (STL).

    Parameters
    ----------
    C : float, default=1.0
        Penalty on a squared margin violation, as in scikit-learn's `LinearSVC`. Intercepts are penalized too.
    """

    _hinge = True

    C: float = 1.0

    def _learn(self, problem: TaskProblem) -> None:
        linear = self._pose(problem.with_constant())
        penalty = np.eye(linear.problem.X.shape[1]) / (2.0 * self.C)
        self._set_weights(linear.minimize(penalty, np.zeros((problem.n_outputs, len(penalty)))))


@dataclass(eq=False, repr=False)
class _RelatedTasks(LinearTaskModel):
    """Base class of the MTRL estimators."""

    relation_alpha: float = 1.0
    _: KW_ONLY
    balance_tasks: bool = True
    intercept_scaling: float = 1.0
    max_iter: int = 200
    tol: float = 1e-5

    def _learn(self, problem: TaskProblem) -> None:
        posed = problem.with_constant(float(self.intercept_scaling))
        counts = np.ones(len(problem.rows))
        if self.balance_tasks:
            sizes = np.bincount(problem.outputs)
            counts = (sizes.sum() / (len(sizes) * sizes))[problem.outputs]
        linear = self._pose(posed, counts)
        M, alpha = problem.n_outputs, float(self.relation_alpha)

        def step(state: tuple[Floats, Floats]) -> tuple[tuple[Floats, Floats], float]:
            covariance, weights = state
            weights = related_weights(linear, covariance, weights, alpha)
            left, sizes, _ = np.linalg.svd(weights, full_matrices=False)
            if sizes.sum() > 0:  # optimal covariance with trace M
                covariance = (left * (M * sizes / sizes.sum())) @ left.T
            return (covariance, weights), linear.loss(weights) + 0.5 * alpha * float(sizes.sum()) ** 2 / M

        first = (np.eye(M), np.zeros((M, posed.X.shape[1])))
        (covariance, weights), self.objectives_ = alternate(step, first, int(self.max_iter), float(self.tol))
        self._set_weights(weights, float(self.intercept_scaling))
        self.task_covariance_ = covariance


def related_weights(linear: LinearTasks, covariance: Floats, start: Floats, alpha: float) -> Floats:
    """Return the best weights for the penalty ``alpha tr(W' covariance^-1 W) / 2``."""
    values, vectors = np.linalg.eigh(covariance)
    roots = np.sqrt(np.maximum(values, 0.0) / alpha)
    known = roots > roots.max() * np.sqrt(np.finfo(np.float64).eps)
    inverse = np.divide(1.0, roots, out=np.zeros_like(roots), where=known)
    position = (vectors * inverse) @ (vectors.T @ start)
    return linear.minimize(np.eye(start.shape[1]), position, (vectors * roots) @ vectors.T)


class MTRLRegressor(TaskRegressor, _RelatedTasks):
    """Multi-task relationship learning (MTRL) for numbers.

    Weights and task covariance are learned jointly (Zhang and Yeung 2010). The convex objective is half the squared
    errors plus ``relation_alpha / 2`` times ``tr(W' covariance^-1 W)``. The trace of the covariance is the number of
    tasks. The two blocks are minimized alternately.

    Parameters
    ----------
    relation_alpha : float, default=1.0
        Penalty on weights that the relations between tasks do not explain.
    balance_tasks : bool, default=True
        Whether all tasks have equal weight, as in the original, or all targets have.
    intercept_scaling : float, default=1.0
        Value of the constant input of the intercepts. Larger values penalize intercepts less.
    max_iter : int, default=200
    tol : float, default=1e-5
        Relative change of the objective at which to stop.

    References
    ----------
    Y. Zhang and D.-Y. Yeung (2010). A convex formulation for learning task relationships in multi-task learning. UAI.

    Examples
    --------
    >>> import numpy as np
    >>> from regbayes_paper.baselines import MTRLRegressor
    >>> rng = np.random.default_rng(0)
    >>> X, w = rng.standard_normal((40, 3)), np.array([1.0, -1.0, 0.5])
    >>> Y = np.outer(X @ w, [1.0, 1.0, -1.0]) + 0.1 * rng.standard_normal((40, 3))
    >>> np.sign(MTRLRegressor().fit(X, Y).task_covariance_[0])
    array([ 1.,  1., -1.])
    """

    _hinge = False


class MTRLClassifier(TaskClassifier, _RelatedTasks):
    """Multi-task relationship learning (MTRL) for labels, with squared hinge losses; see `MTRLRegressor`."""

    _hinge = True


@dataclass(eq=False, repr=False)
class _SharedSubspace(LinearTaskModel):
    """Base class of the ASO estimators."""

    n_components: int = 2
    _: KW_ONLY
    alpha: float = 1.0
    shared_alpha: float = 0.01
    max_iter: int = 200
    tol: float = 1e-5

    def _learn(self, problem: TaskProblem) -> None:
        linear, d = self._pose(problem.with_constant()), problem.X.shape[1]
        # A subspace with one dimension per task would contain all weights.
        size = min(int(self.n_components), max(problem.n_outputs - 1, 0), d)

        def step(state: tuple[Floats, Floats]) -> tuple[tuple[Floats, Floats], float]:
            directions, weights = state
            penalty = np.zeros((d + 1, d + 1))
            penalty[:d, :d] = self.alpha * (np.eye(d) - (1.0 - self.shared_alpha) * directions.T @ directions)
            weights = linear.minimize(penalty, weights)
            directions = np.linalg.svd(weights[:, :d], full_matrices=False)[2][:size]
            inside = float(np.sum((weights[:, :d] @ directions.T) ** 2))
            outside = float(np.sum(weights[:, :d] ** 2)) - inside
            cost = 0.5 * self.alpha * (outside + self.shared_alpha * inside)
            return (directions, weights), linear.loss(weights) + cost

        first = (np.zeros((0, d)), np.zeros((problem.n_outputs, d + 1)))
        (directions, weights), self.objectives_ = alternate(step, first, int(self.max_iter), float(self.tol))
        self._set_weights(weights)
        self.components_ = directions


class ASORegressor(TaskRegressor, _SharedSubspace):
    """Alternating structure optimization (ASO) for numbers: tasks share a subspace.

    Weights inside a shared subspace of ``n_components`` dimensions have a smaller penalty. The objective is half the
    squared errors plus ``alpha / 2`` times the squared weights outside the subspace plus ``alpha * shared_alpha / 2``
    times those inside. The leading singular vectors of the weights span the subspace.

    Parameters
    ----------
    n_components : int, default=2
        Dimension of the subspace, less than the number of tasks.
    alpha : float, default=1.0
        Penalty on squared weights outside the subspace.
    shared_alpha : float, default=0.01
        Penalty inside the subspace, as a multiple of alpha. The original uses 0, for which weights can diverge.
    max_iter : int, default=200
    tol : float, default=1e-5
        Relative change of the objective at which to stop.

    References
    ----------
    R. K. Ando and T. Zhang (2005). A framework for learning predictive structures from multiple tasks and unlabeled
    data. JMLR 6.
    """

    _hinge = False


class ASOClassifier(TaskClassifier, _SharedSubspace):
    """Alternating structure optimization (ASO) for labels, with squared hinge losses; see `ASORegressor`."""

    _hinge = True
