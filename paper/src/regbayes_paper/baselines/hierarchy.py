"""BMTL: Bayesian multi-task learning with a prior that the tasks share (Bakker and Heskes 2003)."""

from __future__ import annotations

from numbers import Integral
from typing import Any, ClassVar, Literal

import numpy as np
from sklearn.utils._param_validation import Interval, StrOptions

from regbayes._registry import persistable
from regbayes._types import Floats
from regbayes.estimators._bases import generator
from regbayes.estimators._task_bases import TaskProblem, TaskRegressor
from regbayes_paper.baselines._linear_tasks import ITERATION_CONSTRAINTS, TASK_CONSTRAINTS, document, linear_problem
from regbayes_paper.models.linear_tasks import hierarchy
from regbayes_paper.models.linear_tasks.hierarchy import Hierarchy, HierarchySettings

CONSTANT = 1.0


@persistable(skip=("_skl_callbacks",))
@document()
class BMTLRegressor(TaskRegressor):
    """Bayesian multi-task learning (BMTL): task weights drawn from a Gaussian prior that is learned from all tasks.

    The prior has a mean and a full covariance, so it knows on which inputs tasks agree, on which they differ, and which
    differences go together; a task with few targets is drawn towards the mean, one with many goes its own way. The
    prior and the noise maximise the evidence, by expectation maximisation; nothing is left to cross-validation. Tasks
    may fall into clusters with a prior each, and share hidden units in the place of the inputs.

    $of_numbers

    Parameters to turn first: none is needed; ``n_clusters`` where tasks fall into groups, ``n_hidden`` for curves.

    Parameters
    ----------
    n_clusters : int, default=1
        Clusters of tasks; no more than there are tasks are made.
    n_hidden : int or None, default=None
        Hidden units, ``tanh`` of linear functions of the inputs that all tasks share. None is a linear model.
    unseen_tasks : {"error", "shared"}, default="error"
        What is done about a task without any target, with ``task=``: refuse it, or serve it with the mean of the prior.
    $scale_inputs
    max_iter : int, default=200
        Iterations at most.
    tol : float, default=1e-5
        Relative change of the objective at which to stop.
    random_state : int, RandomState instance or None, default=None
        For the start of clusters and hidden units.

    Attributes
    ----------
    $tasks
    coef_ : array of shape (n_tasks, n_features) or (n_tasks, n_hidden)
        Expected weights of the standardised inputs, or of the hidden units, for standardised targets.
    intercept_ : array of shape (n_tasks,)
    hidden_coef_ : array of shape (n_hidden, n_features + 1) or None
        Weights of the hidden units for the standardised inputs and a constant.
    prior_mean_ : array of shape (n_clusters, n_weights)
        Means of the weights, the intercept last.
    prior_covariance_ : array of shape (n_clusters, n_weights, n_weights)
    cluster_weights_ : array of shape (n_clusters,)
    memberships_ : array of shape (n_tasks, n_clusters)
        Probability that a task belongs to a cluster.
    noise_variance_ : float
        Of standardised targets.
    log_evidence_ : float
        Logarithm of the density of standardised targets with the weights integrated out.
    $target_units
    $course
    $inputs

    References
    ----------
    B. Bakker and T. Heskes (2003). Task clustering and gating for Bayesian multitask learning. JMLR 4.

    Examples
    --------
    >>> import numpy as np
    >>> from regbayes_paper.baselines import BMTLRegressor
    >>> rng = np.random.default_rng(0)
    >>> X, group = rng.standard_normal((800, 6)), np.repeat(np.arange(40), 20)
    >>> slopes = rng.standard_normal(6) + 0.3 * rng.standard_normal((40, 6))
    >>> y = np.sum(X * slopes[group], axis=1) + 0.5 * rng.standard_normal(800)
    >>> model = BMTLRegressor().fit(X[::2], y[::2], task=group[::2])
    >>> model.score(X[1::2], y[1::2], task=group[1::2]) > 0.8
    True
    """

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **TASK_CONSTRAINTS,
        **ITERATION_CONSTRAINTS,
        "n_clusters": [Interval(Integral, 1, None, closed="left")],
        "n_hidden": [Interval(Integral, 1, None, closed="left"), None],
        "unseen_tasks": [StrOptions({"error", "shared"})],
        "random_state": ["random_state"],
    }

    _remedy = "Set unseen_tasks='shared' to serve it with the mean of the prior."

    def __init__(
        self,
        n_clusters: int = 1,
        *,
        n_hidden: int | None = None,
        unseen_tasks: Literal["error", "shared"] = "error",
        scale_inputs: bool = True,
        max_iter: int = 200,
        tol: float = 1e-5,
        random_state: Any = None,
    ) -> None:
        self.n_clusters = n_clusters
        self.n_hidden = n_hidden
        self.unseen_tasks = unseen_tasks
        self.scale_inputs = scale_inputs
        self.max_iter = max_iter
        self.tol = tol
        self.random_state = random_state

    @property
    def _serves_new_tasks(self) -> bool:
        return bool(self.unseen_tasks == "shared")

    def _learn(self, problem: TaskProblem) -> None:
        n_clusters = min(int(self.n_clusters), problem.n_outputs)
        settings = HierarchySettings(n_clusters, self.n_hidden, int(self.max_iter), float(self.tol))
        linear, rng = linear_problem(problem, "squared", CONSTANT), generator(self.random_state)
        stages = hierarchy.list_stages(n_clusters, settings.max_iter)
        with self._fitting(_attributes, stages, problem.data) as reporter:
            reporter.result = hierarchy.fit(linear, settings, rng, [reporter])

    def _scores(self, X: Floats) -> Floats:
        rows = np.column_stack([X, np.full(len(X), CONSTANT)])
        features = hierarchy.hidden_features(rows, self.hidden_coef_)
        shared = self.cluster_weights_ @ self.prior_mean_
        own = np.column_stack([self.coef_, self.intercept_])
        return features @ np.vstack([own, shared]).T


def _attributes(state: Hierarchy) -> dict[str, Any]:
    prior, weights = state.prior, state.posterior.mean_weights
    return {
        "coef_": weights[:, :-1],
        "intercept_": weights[:, -1],
        "hidden_coef_": prior.hidden,
        "prior_mean_": prior.means,
        "prior_covariance_": prior.covariances,
        "cluster_weights_": prior.shares,
        "memberships_": state.posterior.memberships,
        "noise_variance_": prior.noise_variance,
        "log_evidence_": float(state.posterior.log_evidence.sum()),
    }
