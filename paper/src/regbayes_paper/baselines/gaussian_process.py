"""Multi-task Gaussian processes (MTGP; Bonilla, Chai and Williams 2008) with inducing inputs (Titsias 2009).

The function of task t is ``f_t = sum_r F_tr h_r + sqrt(v) g_t`` with independent processes: all tasks share
h_r, and g_t belongs to task t. The likelihood bound approximates h_r by its values at m inducing inputs Z and treats
g_t exactly. With ``B_t = v K_t + noise`` it is

    log N(y; 0, blockdiag(B_t) + F Q F') - 1/2 sum_t |F_t|^2 tr(B_t^-1 (K_t - Q_t)),    Q = K_xz K_zz^-1 K_zx

where K_t is the kernel matrix of the inputs of task t. If Z contains every input, the bound is the exact likelihood.
"""

from __future__ import annotations

import importlib.util
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
from scipy.optimize import minimize
from scipy.spatial.distance import cdist
from sklearn.utils import check_random_state

from regbayes_paper._types import Floats
from regbayes_paper.tasks import TaskProblem, TaskRegressor

JITTER = 1e-6  # added to the diagonal of the kernel matrix of the inducing inputs


@dataclass(frozen=True)
class Covariances:
    """Parameters of the covariance function."""

    factor: Floats  # (M, R): F
    own: float  # v
    length_scale: float
    noise_variance: float

    def near(self, X: Floats, Z: Floats) -> Floats:
        """Return the kernel matrix of two sets of inputs."""
        return np.exp(-0.5 * cdist(X, Z, "sqeuclidean") / self.length_scale**2)

    def pack(self) -> Floats:
        """Return the parameters as an unconstrained vector."""
        return np.append(self.factor.ravel(), np.log([self.own, self.length_scale, self.noise_variance]))

    def unpack(self, flat: Floats) -> Covariances:
        """Return the parameters from an unconstrained vector."""
        return Covariances(flat[:-3].reshape(self.factor.shape), *np.exp(flat[-3:]).tolist())


class Bound:
    """Negative bound on the log-likelihood, with its gradient by PyTorch."""

    def __init__(self, problem: TaskProblem, inducing: Floats, like: Covariances) -> None:
        import torch

        rows, self.like = problem.X[problem.rows], like
        self.targets = torch.as_tensor(problem.targets)
        self.inducing = torch.as_tensor(cdist(inducing, inducing, "sqeuclidean"))
        self.across = torch.as_tensor(cdist(inducing, rows, "sqeuclidean"))
        self.slices = problem.slices
        self.within = [torch.as_tensor(cdist(rows[part], rows[part], "sqeuclidean")) for part in self.slices]

    def evaluate(self, flat: Floats) -> tuple[float, Floats]:
        """Return the value and the gradient at packed parameters."""
        import torch

        parameters = torch.tensor(flat, requires_grad=True)
        cost = self.cost(parameters)
        cost.backward()
        return float(cost.detach()), parameters.grad.numpy()

    def cost(self, flat: Any) -> Any:
        """Return the value as a tensor."""
        import torch

        F, (own, length_scale, noise) = flat[:-3].reshape(self.like.factor.shape), torch.exp(flat[-3:])
        (m, R), rate = (len(self.inducing), F.shape[1]), -0.5 / length_scale**2
        root = torch.linalg.cholesky(torch.exp(rate * self.inducing) + JITTER * torch.eye(m, dtype=F.dtype))
        seen = torch.linalg.solve_triangular(root, torch.exp(rate * self.across), upper=False).T
        total: Any = len(self.targets) * np.log(2 * np.pi)
        joint, b = torch.eye(R * m, dtype=F.dtype), torch.zeros(R * m, dtype=F.dtype)
        for t, (part, distances) in enumerate(zip(self.slices, self.within, strict=True)):
            near = torch.exp(rate * distances)
            C = torch.linalg.cholesky(own * near + noise * torch.eye(len(near), dtype=F.dtype))
            P = torch.linalg.solve_triangular(C, seen[part], upper=False)
            q = torch.linalg.solve_triangular(C, self.targets[part, None], upper=False)[:, 0]
            unseen = torch.sum(torch.cholesky_inverse(C) * near) - torch.sum(P**2)
            total = total + 2 * torch.sum(torch.log(torch.diagonal(C))) + q @ q + torch.sum(F[t] ** 2) * unseen
            joint = joint + torch.kron(torch.outer(F[t], F[t]), P.T @ P)
            b = b + torch.kron(F[t], P.T @ q)
        G = torch.linalg.cholesky(joint)
        explained = torch.sum(torch.linalg.solve_triangular(G, b[:, None], upper=False) ** 2)
        return 0.5 * (total + 2 * torch.sum(torch.log(torch.diagonal(G))) - explained)


def inducing_inputs(X: Floats, start: Covariances, n_inducing: int) -> Floats:
    """Choose inputs greedily by largest conditional variance given those already chosen."""
    unexplained, factors, chosen = np.ones(len(X)), np.zeros((min(n_inducing, len(X)), len(X))), []
    for k in range(len(factors)):
        new = int(np.argmax(unexplained))
        if unexplained[new] < JITTER:
            break
        rest = start.near(X[new : new + 1], X)[0] - factors[:k, new] @ factors[:k]
        factors[k] = rest / np.sqrt(unexplained[new])
        unexplained = np.maximum(unexplained - factors[k] ** 2, 0.0)
        chosen.append(new)
    return X[chosen]


def mean_weights(problem: TaskProblem, found: Covariances, inducing: Floats) -> tuple[Floats, Floats]:
    """Return centers (c, d) and weights (c, M) of the posterior mean, a kernel expansion over the centers."""
    rows, m, (M, R) = problem.X[problem.rows], len(inducing), found.factor.shape
    root = np.linalg.cholesky(found.near(inducing, inducing) + JITTER * np.eye(m))
    seen = np.linalg.solve(root, found.near(inducing, rows)).T
    joint, b, inverses = np.eye(R * m), np.zeros(R * m), []
    for t, part in enumerate(problem.slices):
        near = found.near(rows[part], rows[part])
        inverses.append(np.linalg.inv(found.own * near + found.noise_variance * np.eye(len(near))))
        mapped = np.kron(found.factor[t], seen[part])
        joint += mapped.T @ inverses[t] @ mapped
        b += mapped.T @ inverses[t] @ problem.targets[part]
    shared = np.linalg.solve(joint, b).reshape(R, m)
    weights = np.zeros((m + len(rows), M))
    weights[:m] = np.linalg.solve(root.T, shared.T) @ found.factor.T
    for t, part in enumerate(problem.slices):
        rest = problem.targets[part] - seen[part] @ (found.factor[t] @ shared)
        weights[m + part.start : m + part.stop, t] = found.own * (inverses[t] @ rest)
    return np.concatenate([inducing, rows]), weights


@dataclass(eq=False, repr=False)
class MTGPRegressor(TaskRegressor):
    """Multi-task Gaussian process regression (MTGP) with a covariance between tasks.

    The covariance of two targets is the covariance of their tasks times a squared exponential kernel of their inputs.
    The covariance of the tasks is a low-rank matrix plus a multiple of the identity. The parameters maximize a bound
    on the marginal likelihood. Its gradient needs PyTorch (``pip install -e './paper[gp]'``).

    Parameters
    ----------
    rank : int, default=2
        Rank of the low-rank part of the task covariance.
    n_inducing : int, default=60
        Number of inducing inputs of the shared processes. If all inputs are used, the likelihood is exact.
    max_iter : int, default=200
        Maximum number of quasi-Newton steps.
    tol : float, default=1e-6
        Relative change of the bound at which to stop.
    random_state : int, RandomState instance or None, default=None
        Seeds the initial task covariance.

    References
    ----------
    E. V. Bonilla, K. M. A. Chai and C. K. I. Williams (2008). Multi-task Gaussian process prediction. NIPS 20.
    """

    rank: int = 2
    _: KW_ONLY
    n_inducing: int = 60
    max_iter: int = 200
    tol: float = 1e-6
    random_state: Any = None

    def _learn(self, problem: TaskProblem) -> None:
        if importlib.util.find_spec("torch") is None:
            raise ModuleNotFoundError("MTGPRegressor needs PyTorch: pip install -e './paper[gp]'", name="torch")
        rng, M = check_random_state(self.random_state), problem.n_outputs
        factor = 0.1 * rng.standard_normal((M, min(int(self.rank), M)))
        factor[:, 0] = 1.0  # the first factor has the same loading for all tasks
        first = Covariances(factor, 0.2, float(np.sqrt(problem.X.shape[1])), 1.0 / 3.0)
        inducing = inducing_inputs(problem.X[problem.rows], first, int(self.n_inducing))
        bound = Bound(problem, inducing, first)
        options = {"maxiter": int(self.max_iter), "ftol": float(self.tol)}
        result = minimize(bound.evaluate, first.pack(), jac=True, method="L-BFGS-B", options=options)
        found = self.covariances_ = first.unpack(result.x)
        self.task_covariance_ = found.factor @ found.factor.T + found.own * np.eye(M)
        self.log_marginal_likelihood_, self.n_iter_ = -float(result.fun), int(result.nit)
        self.centres_, self.weights_ = mean_weights(problem, found, inducing)

    def _scores(self, X: Floats) -> Floats:
        return self.covariances_.near(X, self.centres_) @ self.weights_
