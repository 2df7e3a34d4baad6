"""Multi-task logistic regression with a Dirichlet process (Xue et al. 2007) or kernel stick-breaking.

    v_k ~ Beta(1, alpha),  share_k = v_k prod_{j<k} (1 - v_j),  c_m ~ share,  w_k ~ N(0, variance I),
    label of task m in sample x ~ sigmoid(w_{c_m} . x)

With a kernel between tasks (`regbayes_paper.dirichlet_process`) each cluster is centered at one of the tasks.

Inference is mean field with the quadratic bound on the logistic function. No update lowers the evidence bound.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from typing import Any

import numpy as np
from scipy.spatial.distance import pdist, squareform
from scipy.special import logsumexp, xlogy
from sklearn.utils import check_random_state

from regbayes_paper._types import Floats, Integers
from regbayes_paper.descent import alternate
from regbayes_paper.dirichlet_process import Sticks, best_centres, log_shares, update_sticks
from regbayes_paper.logistic import QuadraticBound, best_xi, quadratic_bound
from regbayes_paper.tasks import TaskClassifier, TaskProblem


@dataclass(frozen=True)
class Clusters:
    """The variational posterior."""

    memberships: Floats  # (M, K)
    means: Floats  # (K, d): means of the clusters' weights
    covariances: Floats  # (K, d, d)
    sticks: Sticks
    centres: Integers  # (K,): tasks at the centers of the clusters
    variance: float  # prior variance of the weights
    xi: Floats  # (n,): parameters of the bound on each label

    @property
    def seconds(self) -> Floats:
        """``E[w w']`` of each cluster, (K, d, d)."""
        return self.covariances + self.means[:, :, None] * self.means[:, None, :]

    @property
    def task_seconds(self) -> Floats:
        """``E[w w']`` of each task, (M, d, d)."""
        return np.einsum("mk,kde->mde", self.memberships, self.seconds)


@dataclass(frozen=True)
class Model:
    """Data and settings of a fit."""

    problem: TaskProblem
    alpha: float
    log_kernel: Floats  # (M, M)

    def near(self, state: Clusters) -> Floats:
        """Return the log-kernel between tasks and clusters, (M, K)."""
        return self.log_kernel[:, state.centres]

    def start(self, n_clusters: int, rng: Any) -> Clusters:
        """Initialize with each task in a separate cluster, as far as the number of clusters allows."""
        M, d, K = self.problem.n_outputs, self.problem.X.shape[1], n_clusters
        alone, order = np.zeros((M, K)), rng.permutation(M)
        alone[order, np.arange(M) % K] = 1.0
        sticks = Sticks.of(alone.sum(axis=0), self.alpha)
        eye = np.repeat(np.eye(d)[None], K, axis=0)
        xi = np.ones(len(self.problem.rows))
        state = Clusters(alone, np.zeros((K, d)), eye, sticks, order[:K].astype(np.int64), 1.0, xi)
        return self.update_weights(quadratic_bound(self.problem, xi), state)

    def update(self, state: Clusters) -> tuple[QuadraticBound, Clusters]:
        """Update all blocks once; also return the bound on the label likelihood."""
        state = self.sort(state)
        state = self.update_sticks(state)
        state = replace(state, centres=best_centres(state.sticks, self.log_kernel, state.memberships))
        state = replace(state, xi=best_xi(self.problem, state.task_seconds))
        bound = quadratic_bound(self.problem, state.xi)
        state = self.update_weights(bound, self.update_memberships(bound, state))
        return bound, replace(state, variance=float(np.mean(np.einsum("kdd->kd", state.seconds))))

    def sort(self, state: Clusters) -> Clusters:
        """Sort clusters by decreasing size if this raises the bound."""
        order = np.argsort(-state.memberships.sum(axis=0), kind="stable")
        sticks = Sticks(state.sticks.first[order], state.sticks.second[order])
        moved = replace(state, memberships=state.memberships[:, order], means=state.means[order], sticks=sticks)
        moved = replace(moved, covariances=state.covariances[order], centres=state.centres[order])
        before, after = (self.prior_cost(self.update_sticks(some)) for some in (state, moved))
        return moved if after < before else state

    def update_sticks(self, state: Clusters) -> Clusters:
        """Update the sticks."""
        return replace(state, sticks=update_sticks(state.sticks, self.near(state), state.memberships, self.alpha))

    def update_memberships(self, bound: QuadraticBound, state: Clusters) -> Clusters:
        """Update the cluster probabilities of each task."""
        fitted = bound.sums @ state.means.T - 0.5 * np.einsum("mde,kde->mk", bound.grams, state.seconds)
        joint = fitted + log_shares(state.sticks, self.near(state))
        return replace(state, memberships=np.exp(joint - logsumexp(joint, axis=1, keepdims=True)))

    def update_weights(self, bound: QuadraticBound, state: Clusters) -> Clusters:
        """Update the Gaussian of each cluster's weights."""
        eye = np.eye(bound.sums.shape[1]) / state.variance
        covariances = np.linalg.inv(np.einsum("mk,mde->kde", state.memberships, bound.grams) + eye)
        means = np.einsum("kde,ke->kd", covariances, state.memberships.T @ bound.sums)
        return replace(state, means=means, covariances=covariances)

    def objective(self, bound: QuadraticBound, state: Clusters) -> float:
        """Return the negative evidence bound, up to the constant of the uniform prior of centers."""
        d = bound.sums.shape[1]
        fitted = bound.expected(state.memberships @ state.means, state.task_seconds)
        squares = np.einsum("kdd->k", state.seconds) / state.variance
        spread = d * np.log(state.variance) - np.linalg.slogdet(state.covariances)[1]
        return 0.5 * float(np.sum(spread + squares - d)) - float(fitted.sum()) + self.prior_cost(state)

    def prior_cost(self, state: Clusters) -> float:
        """Return the KL divergences of memberships and sticks."""
        q, shares = state.memberships, log_shares(state.sticks, self.near(state))
        used = q > 0
        return float(np.sum(xlogy(q, q)) - np.sum(q[used] * shares[used])) + state.sticks.kl(self.alpha)


@dataclass(eq=False, repr=False)
class DirichletProcessTaskClassifier(TaskClassifier):
    """Multi-task logistic regression with a Dirichlet process over task clusters (YaXue).

    Parameters
    ----------
    n_clusters : int, default=20
        Maximum number of clusters, limited by the number of tasks. Tasks in a cluster share their weights.
    alpha : float, default=1.0
        Concentration of the Dirichlet process. Larger values favor more clusters.
    kernel_width : float or None, default=None
        Width of the kernel between tasks, in units of the median distance. A task is located at the mean input of its
        positive samples. None is the plain Dirichlet process.
    max_iter : int, default=100
    tol : float, default=1e-4
        Relative change of the bound at which to stop.
    random_state : int, RandomState instance or None, default=None
        Seeds the initial assignment of tasks to clusters and its order.

    Attributes
    ----------
    n_clusters_ : int
        Clusters with an expected size of at least half a task.
    memberships_ : array of shape (n_tasks, n_clusters)
    coef_, intercept_ : arrays of shape (n_tasks, n_features) and (n_tasks,)
        Posterior means of the weights, for standardized inputs.

    References
    ----------
    Y. Xue, X. Liao, L. Carin and B. Krishnapuram (2007). Multi-task learning for classification with Dirichlet process
    priors. JMLR 8.

    D. B. Dunson and J.-H. Park (2008). Kernel stick-breaking processes. Biometrika 95, 307-323.
    """

    n_clusters: int = 20
    _: KW_ONLY
    alpha: float = 1.0
    kernel_width: float | None = None
    max_iter: int = 100
    tol: float = 1e-4
    random_state: Any = None

    def _learn(self, problem: TaskProblem) -> None:
        M = problem.n_outputs
        kernel = np.zeros((M, M)) if self.kernel_width is None else self._log_kernel(problem)
        model = Model(problem.with_constant(), float(self.alpha), kernel)
        state = model.start(min(int(self.n_clusters), M), check_random_state(self.random_state))

        def step(state: Clusters) -> tuple[Clusters, float]:
            bound, after = model.update(state)
            return after, model.objective(bound, after)

        state, self.objectives_ = alternate(step, state, int(self.max_iter), float(self.tol))
        weights = state.memberships @ state.means
        self.coef_, self.intercept_ = weights[:, :-1], weights[:, -1]
        self.memberships_ = state.memberships
        self.n_clusters_ = int(np.sum(state.memberships.sum(axis=0) >= 0.5))

    def _log_kernel(self, problem: TaskProblem) -> Floats:
        """Return the logarithm of a squared exponential kernel between tasks."""
        yes = (problem.targets > 0).astype(np.float64)
        counts = np.bincount(problem.outputs, yes, minlength=problem.n_outputs)
        places = problem.sums(yes) / np.maximum(counts, 1.0)[:, None]
        apart = pdist(places)
        unit = float(np.median(apart[apart > 0])) if np.any(apart > 0) else 1.0
        return -0.5 * (squareform(apart) / unit / float(self.kernel_width)) ** 2
