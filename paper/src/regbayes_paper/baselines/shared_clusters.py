"""Multi-task logistic regression with a Dirichlet process over the tasks' weights (Xue et al. 2007)."""

from __future__ import annotations

from numbers import Integral
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike
from scipy.spatial.distance import pdist, squareform
from sklearn.utils import check_array
from sklearn.utils._param_validation import Interval

from regbayes._registry import persistable
from regbayes._types import Floats
from regbayes.estimators._bases import POSITIVE, generator
from regbayes.estimators._labels import TaskClassifier
from regbayes.estimators._task_bases import TaskProblem
from regbayes_paper.baselines._linear_tasks import (
    ITERATION_CONSTRAINTS,
    LABEL_CONSTRAINTS,
    TASK_CONSTRAINTS,
    LinearScores,
    document,
    linear_attributes,
    linear_problem,
)
from regbayes_paper.models.linear_tasks import shared_clusters
from regbayes_paper.models.linear_tasks.shared_clusters import Clusters, ClusterSettings

CONSTANT = 1.0
A_TASK = 0.5  # expected number of tasks that makes a cluster one that is in use
FARTHEST = 1e100  # distance in widths of the kernel: all beyond are as far


@persistable(skip=("_skl_callbacks",))
@document()
class DirichletProcessTaskClassifier(LinearScores, TaskClassifier):
    """Logistic regressions under a Dirichlet process: tasks fall into clusters, and those of one share their weights.

    How many clusters there are comes from the data. Tasks of a cluster learn from all of its labels; the others learn
    nothing from it. With ``kernel_width`` tasks have places, and those that are near each other are more likely to be
    of one cluster (kernel stick-breaking, Dunson and Park 2008). Inference is mean field over stick-breaking weights,
    with a quadratic bound on the logistic function.

    A task with more than two classes has weights for each ("this class or another?"), each with a cluster. Columns of X
    are standardised inside.

    Parameters to turn first: ``alpha``, and ``kernel_width`` where tasks have places; ``n_clusters`` only has to be
    large enough.

    Parameters
    ----------
    n_clusters : int, default=20
        Truncation: the most clusters there can be. No more are made than there are weight vectors.
    alpha : float, default=1.0
        Concentration of the Dirichlet process: larger values expect more clusters.
    kernel_width : float or None, default=None
        How far a cluster reaches, in units of the median distance between tasks: the share of a cluster falls with the
        squared exponential of the distance from its centre, which is one of the tasks. None is no limit, the plain
        process.
    task_locations : array-like of shape (n_outputs, n_coordinates) or None, default=None
        Where the tasks are, in the order of ``tasks_``; a task with more than two classes has a row for each. None is
        the mean of the standardised inputs of the rows that have the label (the second of two classes). Not
        used without ``kernel_width``.
    $label_parameters
    $scale_inputs
    max_iter : int, default=100
        Iterations at most.
    tol : float, default=1e-4
        Relative change of the bound on the evidence, twice in a row, at which to stop.
    random_state : int, RandomState instance or None, default=None
        For the start, where tasks are more than clusters.

    Attributes
    ----------
    n_clusters_ : int
        Clusters in use.
    memberships_ : array of shape (n_outputs, n_clusters)
        Probability that a row of ``coef_`` belongs to a cluster.
    centres_ : array of shape (n_clusters,) or None
        The rows of ``coef_`` at whose places the clusters are, with ``kernel_width``.
    prior_variance_ : float
        Of the clusters' weights.
    $fitted_to_labels

    References
    ----------
    Y. Xue, X. Liao, L. Carin and B. Krishnapuram (2007). Multi-task learning for classification with Dirichlet process
    priors. JMLR 8.

    D. B. Dunson and J.-H. Park (2008). Kernel stick-breaking processes. Biometrika 95, 307-323.

    Examples
    --------
    >>> import numpy as np
    >>> from regbayes_paper.baselines import DirichletProcessTaskClassifier
    >>> rng = np.random.default_rng(0)
    >>> X, group = rng.standard_normal((600, 3)), np.arange(600) % 6
    >>> weights = np.array([[3.0, 0.0, 0.0], [0.0, -3.0, 3.0]])[group % 2]
    >>> y = np.sum(X * weights, axis=1) + rng.logistic(size=600) > 0
    >>> model = DirichletProcessTaskClassifier(random_state=0).fit(X, y, task=group)
    >>> model.n_clusters_
    2
    """

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **TASK_CONSTRAINTS,
        **LABEL_CONSTRAINTS,
        **ITERATION_CONSTRAINTS,
        "n_clusters": [Interval(Integral, 1, None, closed="left")],
        "alpha": [POSITIVE],
        "kernel_width": [POSITIVE, None],
        "task_locations": ["array-like", None],
        "random_state": ["random_state"],
    }

    def __init__(
        self,
        n_clusters: int = 20,
        *,
        alpha: float = 1.0,
        kernel_width: float | None = None,
        task_locations: ArrayLike | None = None,
        class_weight: Any = None,
        unlabeled: Any = None,
        scale_inputs: bool = True,
        max_iter: int = 100,
        tol: float = 1e-4,
        random_state: Any = None,
    ) -> None:
        self.n_clusters = n_clusters
        self.alpha = alpha
        self.kernel_width = kernel_width
        self.task_locations = task_locations
        self.class_weight = class_weight
        self.unlabeled = unlabeled
        self.scale_inputs = scale_inputs
        self.max_iter = max_iter
        self.tol = tol
        self.random_state = random_state

    def _learn(self, problem: TaskProblem) -> None:
        kernel = None if self.kernel_width is None else self._log_kernel(problem)
        settings = ClusterSettings(
            n_clusters=min(int(self.n_clusters), problem.n_outputs),
            alpha=float(self.alpha),
            max_iter=int(self.max_iter),
            tol=float(self.tol),
            log_kernel=kernel,
        )
        linear, rng = linear_problem(problem, "logistic", CONSTANT), generator(self.random_state)

        def attributes(state: Clusters) -> dict[str, Any]:
            return _attributes(state) | {"centres_": None if kernel is None else state.centres}

        with self._fitting(attributes, settings.max_iter, problem.data) as reporter:
            reporter.result = shared_clusters.fit(linear, settings, rng, [reporter])

    def _log_kernel(self, problem: TaskProblem) -> Floats:
        """Logarithm of the kernel between every two outputs."""
        places = _places(problem) if self.task_locations is None else self._read_places(problem.n_outputs)
        peak = float(np.abs(places).max())
        apart = pdist(places / peak if peak > 0 else places)  # of order one: squares do not overflow
        unit = float(np.median(apart[apart > 0])) if np.any(apart > 0) else 1.0
        with np.errstate(over="ignore"):  # of narrow kernels
            widths = np.minimum(squareform(apart) / unit / float(self.kernel_width), FARTHEST)
        return -0.5 * widths**2

    def _read_places(self, n_outputs: int) -> Floats:
        places = check_array(self.task_locations, dtype=np.float64, input_name="task_locations")
        if len(places) != n_outputs:
            raise ValueError(
                f"task_locations has {len(places)} rows; there must be one for each of the {n_outputs} rows of coef_, "
                "in the order of tasks_"
            )
        return places


def _places(problem: TaskProblem) -> Floats:
    """Mean inputs of the rows that have the label, for each output."""
    seen, counts = problem.observations, problem.counts
    yes = seen.targets > 0
    rows, outputs = seen.rows[yes], seen.outputs[yes]
    sums = np.zeros((problem.n_outputs, problem.X.shape[1]))
    np.add.at(sums, outputs, counts[rows, None] * problem.X[rows])
    totals = np.bincount(outputs, counts[rows], minlength=problem.n_outputs)
    return sums / np.where(totals > 0, totals, 1.0)[:, None]


def _attributes(state: Clusters) -> dict[str, Any]:
    return {
        **linear_attributes(state.memberships @ state.means, CONSTANT),
        "memberships_": state.memberships,
        "n_clusters_": int(np.sum(state.memberships.sum(axis=0) > A_TASK)),
        "prior_variance_": state.variance,
    }
