"""MTGP: multi-task Gaussian processes (Bonilla, Chai and Williams 2008)."""

from __future__ import annotations

from numbers import Integral
from typing import Any, ClassVar

import numpy as np
from scipy.spatial.distance import cdist
from sklearn.utils._param_validation import Interval

from regbayes._registry import persistable
from regbayes._types import Floats
from regbayes.estimators._bases import generator
from regbayes.estimators._task_bases import TaskProblem, TaskRegressor
from regbayes_paper.baselines import _process
from regbayes_paper.baselines._linear_tasks import ITERATION_CONSTRAINTS, TASK_CONSTRAINTS, document
from regbayes_paper.baselines._process import (
    Covariances,
    ExactLikelihood,
    Likelihood,
    LikelihoodBound,
    Search,
    TaskRows,
)

ROWS_AT_ONCE = 1000  # of prediction: bounds the memory that their covariances with the centres take


@persistable(skip=("_skl_callbacks",))
@document()
class MTGPRegressor(TaskRegressor):
    """Multi-task Gaussian process (MTGP): one smooth function per task, with a covariance between tasks.

    The covariance of two targets is that of their tasks, ``task_covariance_``, times a squared exponential of the
    distance of their inputs. The covariance of tasks has low rank plus a multiple of the identity, as in the paper: a
    task's function is a combination of ``rank`` functions that all tasks share, plus one of its own. It, the length
    scale and the noise maximise the marginal likelihood. PyTorch and GPyTorch compute that (``pip install -e
    './paper[gp]'``); prediction and saved models need NumPy alone.

    $of_numbers

    Parameters to turn first: ``rank``, and ``n_inducing`` where targets are more than a few thousand.

    Parameters
    ----------
    rank : int, default=2
        Rank of the covariance of tasks, beside the multiple of the identity.
    n_inducing : int or None, default=None
        Number of inputs through which the functions that tasks share are seen (Titsias 2009); they are chosen among the
        rows, each time the one that those before explain least. The tasks' own functions stay exact. None is the exact
        process, whose time grows with the cube of the number of targets.
    $scale_inputs
    max_iter : int, default=200
        Quasi-Newton steps at most; 0 keeps the start, in which tasks are much alike, the length scale is the root of
        the number of inputs, and the noise a third of the targets' variance.
    tol : float, default=1e-5
        Relative change of the marginal likelihood, three times in a row, at which to stop.
    random_state : int, RandomState instance or None, default=None
        For the start of the covariance of tasks.

    Attributes
    ----------
    $tasks
    task_covariance_ : array of shape (n_tasks, n_tasks)
        How the tasks' functions are related, in standardised targets.
    length_scale_ : float
        In standardised inputs.
    noise_variance_ : float
        Of standardised targets.
    log_marginal_likelihood_ : float
        Of standardised targets; with ``n_inducing``, a lower bound on it.
    $target_units
    $course
    $inputs

    References
    ----------
    E. V. Bonilla, K. M. A. Chai and C. K. I. Williams (2008). Multi-task Gaussian process prediction. NIPS 20.
    """

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **TASK_CONSTRAINTS,
        **ITERATION_CONSTRAINTS,
        "rank": [Interval(Integral, 1, None, closed="left")],
        "n_inducing": [Interval(Integral, 1, None, closed="left"), None],
        "max_iter": [Interval(Integral, 0, None, closed="left")],
        "random_state": ["random_state"],
    }

    def __init__(
        self,
        rank: int = 2,
        *,
        n_inducing: int | None = None,
        scale_inputs: bool = True,
        max_iter: int = 200,
        tol: float = 1e-5,
        random_state: Any = None,
    ) -> None:
        self.rank = rank
        self.n_inducing = n_inducing
        self.scale_inputs = scale_inputs
        self.max_iter = max_iter
        self.tol = tol
        self.random_state = random_state

    def _learn(self, problem: TaskProblem) -> None:
        _process.load_gpytorch()  # or say how to get it, before any work
        seen = problem.counted
        rows = TaskRows(problem.X[seen.rows], seen.outputs, seen.targets, seen.weights, problem.n_outputs)
        start = self._start(rows)
        inducing: Floats | None = None
        likelihood: Likelihood
        if self.n_inducing is None:
            likelihood = ExactLikelihood(rows, start)
        else:
            inducing = _process.inducing_inputs(rows.X, start, int(self.n_inducing))
            likelihood = LikelihoodBound(rows, start, inducing)

        def attributes(at: Search) -> dict[str, Any]:
            found = likelihood.covariances(at.position)
            exact = inducing is None
            weights = _process.exact_weights(rows, found) if exact else _process.bound_weights(rows, found, inducing)
            return {
                "task_covariance_": found.tasks,
                "length_scale_": found.length_scale,
                "noise_variance_": found.noise_variance,
                "log_marginal_likelihood_": -at.objective,
                "_centres": weights.centres,
                "_weights": weights.weights,
            }

        steps, tol = int(self.max_iter), float(self.tol)
        with self._fitting(attributes, steps, problem.data) as reporter:
            reporter.result = _process.maximise(likelihood, steps, tol, [reporter])

    def _start(self, rows: TaskRows) -> Covariances:
        rng, M = generator(self.random_state), rows.n_tasks
        factor = 0.1 * rng.standard_normal((M, min(int(self.rank), M)))
        factor[:, 0] = 1.0  # one direction in which all tasks agree; data may turn some of them round
        return Covariances(factor, own=0.2, length_scale=float(np.sqrt(rows.X.shape[1])), noise_variance=1.0 / 3.0)

    def _scores(self, X: Floats) -> Floats:
        parts = [X[i : i + ROWS_AT_ONCE] for i in range(0, len(X), ROWS_AT_ONCE)]
        near = (np.exp(-0.5 * cdist(part, self._centres, "sqeuclidean") / self.length_scale_**2) for part in parts)
        return np.concatenate([part @ self._weights for part in near])
