"""The likelihood of multi-task Gaussian processes: exact, by GPyTorch, and a bound on it for many targets.

The function of task t is ``f_t = sum_r F_tr h_r + sqrt(v) g_t`` with independent processes h_r, which the tasks share,
and g_t, of the task's own; so the covariance of tasks is ``F Fᵀ + v I``. The bound sees the shared ones through their
values at m inputs Z (Titsias 2009) and keeps the others exact. With ``B_t = v K_t + noise`` it is

    log N(y; 0, blockdiag(B_t) + F Q Fᵀ) - 1/2 sum_t |F_t|² tr(B_t^-1 (K_t - Q_t)),    Q = K_xz K_zz^-1 K_zx

where K_t is the covariance of the inputs of a task. Work grows with the cube of the targets of a task and with the
square of m, and not with the cube of all targets.

A target that counts w times has the noise over w, and its w - 1 copies add their density given it; both are exact, in
the bound too.
"""

from __future__ import annotations

import importlib
import importlib.util
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Protocol, TypeVar

import numpy as np
from scipy.spatial.distance import cdist

from regbayes._types import Floats, Integers, Reals
from regbayes.engine import FitResult, RelativeChange, Status, StepResult, run
from regbayes.joint.descent import ARMIJO, History, direction, dot, shorten, update_history

JITTER = 1e-6  # on the diagonal of the covariance at the inducing inputs, as in GPyTorch for 64-bit numbers
TRIALS = 20  # of step lengths
FIRST_STEP = 1.0  # length of the first step, in the parameters that are searched over
LONGEST_STEP = 10.0  # of all further ones: a covariance that is all but singular lies beyond


def load_gpytorch() -> Any:
    """Import GPyTorch, or say how to get it."""
    if importlib.util.find_spec("gpytorch") is None:
        raise ModuleNotFoundError("MTGPRegressor needs GPyTorch: pip install -e './paper[gp]'", name="gpytorch")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # its import uses what PyTorch is about to drop
        return importlib.import_module("gpytorch")


@contextmanager
def one_torch_thread() -> Iterator[None]:
    """Let PyTorch compute in one thread: matrices here are small, and threads that wait for each other cost more."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@dataclass(frozen=True)
class TaskRows:
    """Targets with their inputs, those of a task in one place."""

    X: Floats  # (n, d)
    tasks: Integers  # (n,): in ascending order
    targets: Floats  # (n,)
    weights: Floats  # (n,): how often each target counts
    n_tasks: int

    def slices(self) -> list[slice]:
        """The targets of each task."""
        starts = np.searchsorted(self.tasks, np.arange(self.n_tasks + 1)).tolist()
        return [slice(a, b) for a, b in pairwise(starts)]


@dataclass(frozen=True)
class Covariances:
    """The parameters."""

    factor: Floats  # (M, R): F
    own: float  # v
    length_scale: float
    noise_variance: float

    @property
    def tasks(self) -> Floats:
        """Covariance of the tasks, (M, M)."""
        return self.factor @ self.factor.T + self.own * np.eye(len(self.factor))

    def near(self, X: Floats, Z: Floats) -> Floats:
        """Covariance of inputs."""
        return np.exp(-0.5 * cdist(X, Z, "sqeuclidean") / self.length_scale**2)


class Likelihood(ABC):
    """Minus the logarithm of the marginal likelihood, or a bound on it, as a function of free parameters."""

    def __init__(self, rows: TaskRows, start: Covariances) -> None:
        import torch

        self.rows, self.targets, self.weights = rows, torch.as_tensor(rows.targets), torch.as_tensor(rows.weights)
        logs = np.log([start.own, start.length_scale, start.noise_variance])
        self.factor, self.logs = torch.as_tensor(start.factor.copy()), torch.as_tensor(logs)
        self.free = [self.factor.requires_grad_(), self.logs.requires_grad_()]

    @abstractmethod
    def cost(self) -> Any:
        """Return the value at the present parameters, a tensor with gradients."""

    def copies(self) -> Any:
        """Return minus the log-density of the copies of targets that count more than once."""
        import torch

        noise = torch.exp(self.logs[2])
        return 0.5 * torch.sum((self.weights - 1.0) * torch.log(2 * np.pi * noise) + torch.log(self.weights))

    def evaluate(self, flat: Floats) -> tuple[float, Floats]:
        """Return the value and the gradient; infinite where a covariance is not positive definite."""
        import torch

        self._set(flat)
        for p in self.free:
            p.grad = None
        try:
            with one_torch_thread():
                cost = self.cost() + self.copies()
                cost.backward()
        except (torch.linalg.LinAlgError, load_gpytorch().utils.errors.NotPSDError):
            return np.inf, np.zeros_like(flat)
        return float(cost.detach()), np.concatenate([p.grad.numpy().ravel() for p in self.free])

    def flat(self) -> Floats:
        """The present parameters."""
        return np.concatenate([p.detach().numpy().ravel() for p in self.free])

    def covariances(self, flat: Floats) -> Covariances:
        """The same in units that mean something."""
        size = flat.size - 3
        own, length_scale, noise_variance = np.exp(flat[size:]).tolist()
        return Covariances(flat[:size].reshape(tuple(self.factor.shape)), own, length_scale, noise_variance)

    def _set(self, flat: Floats) -> None:
        import torch

        place = 0
        for p in self.free:
            p.data = torch.as_tensor(flat[place : place + p.numel()].reshape(tuple(p.shape)).copy())
            place += p.numel()


class ExactLikelihood(Likelihood):
    """By a covariance of all targets, in GPyTorch."""

    def __init__(self, rows: TaskRows, start: Covariances) -> None:
        import torch

        super().__init__(rows, start)
        self.squared = torch.as_tensor(cdist(rows.X, rows.X, "sqeuclidean"))
        self.codes = torch.as_tensor(rows.tasks)

    def cost(self) -> Any:
        """Return the value but for copies."""
        import torch

        gpytorch = load_gpytorch()
        own, length_scale, noise = torch.exp(self.logs)
        M = len(self.factor)
        related = self.factor @ self.factor.T + own * torch.eye(M, dtype=self.factor.dtype)
        near = torch.exp(-0.5 * self.squared / length_scale**2)
        joint = near * related[self.codes][:, self.codes] + torch.diag(noise / self.weights)
        with gpytorch.settings.max_cholesky_size(len(joint) + 1):  # no stochastic estimates
            process = gpytorch.distributions.MultivariateNormal(torch.zeros_like(self.targets), joint)
            return -process.log_prob(self.targets)


class LikelihoodBound(Likelihood):
    """Through inducing inputs."""

    def __init__(self, rows: TaskRows, start: Covariances, inducing: Floats) -> None:
        import torch

        super().__init__(rows, start)
        self.inducing = torch.as_tensor(cdist(inducing, inducing, "sqeuclidean"))
        self.across = torch.as_tensor(cdist(inducing, rows.X, "sqeuclidean"))
        self.within = [
            torch.as_tensor(cdist(rows.X[here], rows.X[here], "sqeuclidean")) if here.stop > here.start else None
            for here in rows.slices()
        ]

    def cost(self) -> Any:
        """Return the value but for copies."""
        import torch

        F, (own, length_scale, noise) = self.factor, torch.exp(self.logs)
        m, R, rate = len(self.inducing), F.shape[1], -0.5 / length_scale**2
        root = torch.linalg.cholesky(torch.exp(rate * self.inducing) + JITTER * torch.eye(m, dtype=F.dtype))
        seen = torch.linalg.solve_triangular(root, torch.exp(rate * self.across), upper=False).T
        total = len(self.targets) * np.log(2 * np.pi) + torch.zeros((), dtype=F.dtype)
        grams, sums = [], []
        for t, (here, distances) in enumerate(zip(self.rows.slices(), self.within, strict=True)):
            if distances is None:
                grams.append(torch.zeros((m, m), dtype=F.dtype))
                sums.append(torch.zeros(m, dtype=F.dtype))
                continue
            near = torch.exp(rate * distances)
            C = torch.linalg.cholesky(own * near + torch.diag(noise / self.weights[here]))
            right = torch.cat([seen[here], self.targets[here, None]], dim=1)
            solved = torch.linalg.solve_triangular(C, right, upper=False)
            P, q = solved[:, :m], solved[:, m]
            unseen = torch.sum(torch.cholesky_inverse(C) * near) - torch.sum(P**2)
            total = total + 2 * torch.sum(torch.log(torch.diagonal(C))) + q @ q + torch.sum(F[t] ** 2) * unseen
            grams.append(P.T @ P)
            sums.append(P.T @ q)
        joint = torch.einsum("tr,ts,tij->risj", F, F, torch.stack(grams)).reshape(R * m, R * m)
        G = torch.linalg.cholesky(joint + torch.eye(R * m, dtype=F.dtype))
        b = torch.einsum("tr,ti->ri", F, torch.stack(sums)).reshape(R * m, 1)
        explained = torch.sum(torch.linalg.solve_triangular(G, b, upper=False) ** 2)
        return 0.5 * (total + 2 * torch.sum(torch.log(torch.diagonal(G))) - explained)


def inducing_inputs(X: Floats, start: Covariances, n_inducing: int) -> Floats:
    """Choose inputs one after the other, each time the one that those before explain least."""
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


class HasObjective(Protocol):
    """A point whose objective is known."""

    @property
    def objective(self) -> float:
        """The objective."""


Point = TypeVar("Point", bound=HasObjective)


def backtrack(
    evaluate: Callable[[float], Point], objective: float, slope: float, max_trials: int
) -> tuple[Point, float] | None:
    """Shorten a step until the objective falls enough (Armijo's rule); return the point and the length, or None.

    Parameters
    ----------
    evaluate : callable
        From a length to the point there.
    objective, slope : float
        At length zero.
    max_trials : int
    """
    if not slope < 0:
        return None
    length = 1.0
    for _ in range(max_trials):
        moved = evaluate(length)
        rise = moved.objective - objective
        if rise <= ARMIJO * length * slope:
            return moved, length
        del moved  # the next trial needs the room
        length = shorten(length, rise, slope)
    return None


@dataclass(frozen=True)
class Search:
    """A point of a plain function of numbers, its gradient, and what is remembered."""

    position: Reals
    objective: float
    gradient: Reals
    history: History = ()


def descend(
    function: Callable[[Reals], tuple[float, Reals]],
    search: Search,
    *,
    first_length: float | None = None,
    longest: float = np.inf,
    max_trials: int = 20,
) -> Search | None:
    """Take one step down a function that returns its value and gradient; None where no step lowers it.

    Parameters
    ----------
    function : callable
    search : Search
    first_length : float, default=None
        Length of a step where nothing is remembered. By default it is that of the gradient.
    longest : float, default=inf
        Length of any step at most.
    max_trials : int, default=20
    """

    def evaluate(position: Reals) -> Search:
        return Search(position, *function(position))

    step = direction(search.gradient, search.history, first_length)
    step *= min(1.0, longest / max(float(np.linalg.norm(step)), np.finfo(np.float64).tiny))
    slope = dot(search.gradient, step)
    found = backtrack(lambda length: evaluate(search.position + length * step), search.objective, slope, max_trials)
    if found is not None:
        after = found[0]
        change = after.gradient - search.gradient
        return replace(after, history=update_history(search.history, after.position - search.position, change))
    if not search.history:
        return None
    # What is remembered of the curvature misleads: begin anew from the gradient.
    anew = replace(search, history=())
    return descend(function, anew, first_length=first_length, longest=longest, max_trials=max_trials)


def maximise(
    likelihood: Likelihood, max_iter: int, tol: float, callbacks: Sequence[Callable[[Any], bool | None]]
) -> FitResult[Search]:
    """Find the parameters of the largest likelihood."""

    def step(search: Search) -> StepResult[Search]:
        after = descend(likelihood.evaluate, search, first_length=FIRST_STEP, longest=LONGEST_STEP, max_trials=TRIALS)
        if after is None:
            status = Status.STALLED if np.any(search.gradient) else Status.CONVERGED
            return StepResult(search, _terms(search), status=status)
        return StepResult(after, _terms(after))

    first = likelihood.flat()
    return run(
        step,
        Search(first, *likelihood.evaluate(first)),
        max_iter=max_iter,
        objective=_terms,
        stop=RelativeChange(tol, patience=3),
        callbacks=callbacks,
    )


def _terms(search: Search) -> dict[str, float]:
    return {"likelihood": search.objective}


@dataclass(frozen=True)
class Weights:
    """What scores are made of: covariances with centres times weights."""

    centres: Floats  # (c, d)
    weights: Floats  # (c, M)


def exact_weights(rows: TaskRows, found: Covariances) -> Weights:
    """Return the weights of the posterior mean."""
    covariance = found.tasks
    joint = found.near(rows.X, rows.X) * covariance[np.ix_(rows.tasks, rows.tasks)]
    joint[np.diag_indices_from(joint)] += found.noise_variance / rows.weights
    return Weights(rows.X, np.linalg.solve(joint, rows.targets)[:, None] * covariance[rows.tasks])


def bound_weights(rows: TaskRows, found: Covariances, inducing: Floats) -> Weights:
    """Return the weights of the mean under the bound: of inducing inputs for all tasks, of targets for their own."""
    m, (M, R) = len(inducing), found.factor.shape
    root = np.linalg.cholesky(found.near(inducing, inducing) + JITTER * np.eye(m))
    seen = np.linalg.solve(root, found.near(inducing, rows.X)).T
    joint, b, inverses = np.eye(R * m), np.zeros(R * m), []
    for t, here in enumerate(rows.slices()):
        near = found.near(rows.X[here], rows.X[here])
        inverses.append(np.linalg.inv(found.own * near + np.diag(found.noise_variance / rows.weights[here])))
        mapped = np.kron(found.factor[t], seen[here])
        weighted = mapped.T @ inverses[t]
        joint += weighted @ mapped
        b += weighted @ rows.targets[here]
    shared = np.linalg.solve(joint, b).reshape(R, m)
    weights = np.zeros((m + len(rows.X), M))
    weights[:m] = np.linalg.solve(root.T, shared.T) @ found.factor.T
    for t, here in enumerate(rows.slices()):
        rest = rows.targets[here] - seen[here] @ (found.factor[t] @ shared)
        weights[m + here.start : m + here.stop, t] = found.own * (inverses[t] @ rest)
    return Weights(np.concatenate([inducing, rows.X]), weights)
