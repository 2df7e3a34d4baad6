"""MTGP: multi-task Gaussian processes (Bonilla, Chai and Williams 2008), fitted by GPyTorch."""

from __future__ import annotations

import importlib
import importlib.util
import warnings
from numbers import Integral
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.spatial.distance import cdist
from sklearn.utils._param_validation import Interval

from regbayes._registry import persistable
from regbayes.baselines._linear_tasks import TASK_CONSTRAINTS, TaskProblem, TaskRegressor
from regbayes.estimators._common import NOT_NEGATIVE, generator
from regbayes.estimators._reporting import FitReporter

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@persistable(skip=("_skl_callbacks",))
class MTGPRegressor(TaskRegressor):
    """Multi-task Gaussian process (MTGP): one smooth function per task, with a covariance between tasks.

    The covariance of two targets is that of their tasks, ``task_covariance_``, times a squared exponential of the
    distance of their inputs. The covariance of tasks has low rank plus a diagonal; it, the length scale and the noise
    maximise the marginal likelihood. GPyTorch computes that (``pip install 'regbayes[gp]'``); prediction and saved
    models need NumPy alone.

    Columns of X are standardised inside, and so are targets: those of all tasks together with ``task=``, those of each
    column of Y by itself otherwise.

    Parameters
    ----------
    rank : int, default=2
        Rank of the covariance of tasks, beside its diagonal.
    n_inducing : int or None, default=None
        Number of training targets through which all others are seen (Titsias 2009), drawn at random. None is the exact
        process, whose time grows with the cube of the number of targets.
    scale_inputs : bool, default=True
        Whether columns of X are scaled to unit variance inside. They are always centred.
    max_iter : int, default=50
        Steps of L-BFGS at most; 0 keeps the start: tasks somewhat related, a length scale of the root of the number of
        inputs, and noise of a tenth of the targets' variance.
    tol : float, default=1e-5
        Relative change of the marginal likelihood at which to stop.
    random_state : int, RandomState instance or None, default=None
        For the start of the covariance of tasks, and the inducing targets.

    Attributes
    ----------
    tasks_ : array of shape (n_tasks,)
        The tasks: what ``task`` held, the columns of Y (their names, if it was a data frame), or one for a vector y.
    task_covariance_ : array of shape (n_tasks, n_tasks)
        How the tasks' functions are related, in standardised targets.
    length_scale_ : float
        In standardised inputs.
    noise_variance_ : float
        Of standardised targets.
    log_marginal_likelihood_ : float
        Of standardised targets; with inducing targets, a lower bound on it.
    mean_, scale_ : array of shape (n_features,)
        What X is centred and divided by.
    target_mean_, target_scale_ : array of shape (n_tasks,)
        Likewise the targets.
    n_iter_ : int
    n_features_in_, feature_names_in_
        As in scikit-learn.

    References
    ----------
    E. V. Bonilla, K. M. A. Chai and C. K. I. Williams (2008). Multi-task Gaussian process prediction. NIPS 20.
    """

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **TASK_CONSTRAINTS,
        "rank": [Interval(Integral, 1, None, closed="left")],
        "n_inducing": [Interval(Integral, 1, None, closed="left"), None],
        "max_iter": [Interval(Integral, 0, None, closed="left")],
        "tol": [NOT_NEGATIVE],
        "random_state": ["random_state"],
    }

    def __init__(
        self,
        rank: int = 2,
        *,
        n_inducing: int | None = None,
        scale_inputs: bool = True,
        max_iter: int = 50,
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
        load_gpytorch()  # before any work
        rng, cells = generator(self.random_state), problem.cells
        X, tasks = problem.X[cells.rows], cells.outputs
        factor = 0.1 * rng.standard_normal((problem.n_outputs, min(int(self.rank), problem.n_outputs)))
        factor[:, 0] = 0.5  # one direction in which all tasks agree; data may turn some of them round
        chosen = np.arange(len(cells))
        if self.n_inducing is not None and self.n_inducing < len(cells):
            chosen = np.sort(rng.permutation(len(cells))[: self.n_inducing])
        with FitReporter(self, 1, problem.data, dict):
            found = _Likelihood(X, tasks, cells.targets, chosen, factor)
            self.n_iter_ = found.maximise(int(self.max_iter), float(self.tol))
            self.task_covariance_, self.length_scale_, self.noise_variance_ = found.parameters()
            self.log_marginal_likelihood_ = found.value()
            self._centres, self._centre_tasks = X[chosen], tasks[chosen]
            self._dual = self._dual_weights(X, tasks, cells.targets, exact=len(chosen) == len(cells))

    def _dual_weights(self, X: Floats, tasks: Integers, y: Floats, exact: bool) -> Floats:
        """Return what predictions are sums of covariances with the centres times."""
        own = self._covariance(self._centres, self._centre_tasks, self._centres, self._centre_tasks)
        own[np.diag_indices_from(own)] += JITTER
        if exact:
            own[np.diag_indices_from(own)] += self.noise_variance_ - JITTER
            return np.asarray(np.linalg.solve(own, y))
        across = self._covariance(self._centres, self._centre_tasks, X, tasks)
        return np.asarray(np.linalg.solve(self.noise_variance_ * own + across @ across.T, across @ y))

    def _covariance(self, X: Floats, tasks: Integers, Z: Floats, others: Integers) -> Floats:
        near = np.exp(-0.5 * cdist(X, Z, "sqeuclidean") / self.length_scale_**2)
        return np.asarray(near * self.task_covariance_[np.ix_(tasks, others)])

    def _scores(self, X: Floats) -> Floats:
        near = np.exp(-0.5 * cdist(X, self._centres, "sqeuclidean") / self.length_scale_**2)
        return np.asarray((near * self._dual) @ self.task_covariance_[self._centre_tasks])


JITTER = 1e-6  # on the diagonal of the covariance of the inducing targets, as in GPyTorch for 64-bit numbers


def load_gpytorch() -> Any:
    """Import GPyTorch, or say how to get it."""
    if importlib.util.find_spec("gpytorch") is None:
        raise ModuleNotFoundError("MTGPRegressor needs GPyTorch: pip install 'regbayes[gp]'", name="gpytorch")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # its import uses what PyTorch is about to drop
        return importlib.import_module("gpytorch")


class _Likelihood:
    """GPyTorch's marginal likelihood of targets, with the parameters in it."""

    def __init__(self, X: Floats, tasks: Integers, y: Floats, chosen: Integers, factor: Floats) -> None:
        import torch

        gpytorch = load_gpytorch()
        points = torch.as_tensor(np.column_stack([X, tasks.astype(np.float64)]))
        self.points, self.targets = points, torch.as_tensor(y)
        self.noise = gpytorch.likelihoods.GaussianLikelihood().double()
        d, (n_tasks, rank) = X.shape[1], factor.shape
        near = gpytorch.kernels.RBFKernel(active_dims=tuple(range(d)))
        related = gpytorch.kernels.IndexKernel(num_tasks=n_tasks, rank=rank, active_dims=(d,))
        self.near, self.related = near.double(), related.double()
        kernel = self.near * self.related
        if len(chosen) < len(y):
            kernel = gpytorch.kernels.InducingPointKernel(kernel, points[chosen], self.noise)
            kernel.inducing_points.requires_grad_(False)
        self.model = _exact_process(points, self.targets, self.noise, kernel)
        self.likelihood = gpytorch.mlls.ExactMarginalLogLikelihood(self.noise, self.model)
        near.lengthscale, self.noise.noise = float(np.sqrt(d)), 0.1
        related.covar_factor.data, related.var = torch.as_tensor(factor), torch.ones(n_tasks, dtype=torch.double)
        self.free = [p for p in self.likelihood.parameters() if p.requires_grad]

    def value(self) -> float:
        """The logarithm of the marginal likelihood."""
        return -self._cost(self._flat())[0] * len(self.targets)

    def maximise(self, max_iter: int, tol: float) -> int:
        """Find the best parameters; return the number of steps."""
        if max_iter == 0:
            return 0
        start = self._flat()
        options = {"maxiter": max_iter, "ftol": tol}
        found = minimize(self._cost, start, jac=True, method="L-BFGS-B", options=options)
        self._set(found.x if found.fun <= self._cost(start)[0] else start)
        return int(found.nit)

    def parameters(self) -> tuple[Floats, float, float]:
        """Return the covariance of tasks, the length scale and the noise variance."""
        covariance = self.related.covar_matrix.to_dense().detach().numpy().copy()
        return covariance, float(self.near.lengthscale.detach()), float(self.noise.noise.detach())

    def _cost(self, flat: Floats) -> tuple[float, Floats]:
        self._set(flat)
        self.model.train()
        self.likelihood.zero_grad()
        exact = load_gpytorch().settings.max_cholesky_size(len(self.targets) + 1)  # no stochastic estimates
        with exact, warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Sparse invariant checks", UserWarning)  # of PyTorch, to GPyTorch
            cost = -self.likelihood(self.model(self.points), self.targets)
            cost.backward()
        return float(cost.detach()), np.concatenate([p.grad.numpy().ravel() for p in self.free])

    def _flat(self) -> Floats:
        return np.concatenate([p.detach().numpy().ravel() for p in self.free])

    def _set(self, flat: Floats) -> None:
        import torch

        place = 0
        for p in self.free:
            p.data = torch.as_tensor(flat[place : place + p.numel()].reshape(tuple(p.shape)).copy())
            place += p.numel()


def _exact_process(points: Any, targets: Any, noise: Any, kernel: Any) -> Any:
    """Return GPyTorch's model of a kernel, with mean zero."""
    gpytorch = load_gpytorch()

    class Process(gpytorch.models.ExactGP):  # type: ignore[name-defined]
        def __init__(self) -> None:
            super().__init__(points, targets, noise)
            self.mean, self.kernel = gpytorch.means.ZeroMean(), kernel

        def forward(self, rows: Any) -> Any:
            return gpytorch.distributions.MultivariateNormal(self.mean(rows), self.kernel(rows))

    return Process().double()
