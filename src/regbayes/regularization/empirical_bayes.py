"""Empirical Bayes (paper, appendix A): alternate posterior and model parameters.

Minimize ``KL(q(M) || p(M, D | theta)) + g(E_q[psi])`` over q and theta in turn, docs/math.md eq. (8). The objective
never increases.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from regbayes._registry import Saveable, persistable
from regbayes.engine import RelativeChange, Status, StepResult, Trace, run
from regbayes.regularization.posteriors import Posterior
from regbayes.regularization.regularize import regularize
from regbayes.regularization.regularizers import Regularizer
from regbayes.regularization.result import RegularizedPosterior

Theta = TypeVar("Theta")
ROUNDING = 1e-9  # increase of the objective, relative to its size, that is attributed to rounding and the duality gap


class Model(Protocol[Theta]):
    """Interface of models: the posterior at given parameters, and their update."""

    def posterior(self, theta: Theta) -> Posterior:
        """Return the posterior given the parameters, with its ``log_evidence``."""

    def update(self, q: Posterior) -> Theta:
        """Return the parameters that maximize ``E_q[log p(M, D | theta)]``."""


@persistable
@dataclass(frozen=True, eq=False)
class EmpiricalBayesResult(Saveable, Generic[Theta]):
    """Parameters, their regularized posterior, and the history of the objective."""

    theta: Theta
    regularized: RegularizedPosterior
    trace: Trace
    status: Status
    n_iter: int


@dataclass(frozen=True)
class _State(Generic[Theta]):
    theta: Theta
    regularized: RegularizedPosterior


def empirical_bayes(
    model: Model[Theta],
    theta: Theta,
    constraints: Any,
    regularizer: Regularizer | None = None,
    *,
    tol: float = 1e-8,
    max_iter: int = 200,
) -> EmpiricalBayesResult[Theta]:
    """Fit a model's parameters jointly with its regularized posterior.

    Parameters
    ----------
    model : object with ``posterior(theta)`` and ``update(q)``
        The posterior requires a ``log_evidence``, which `Finite` has if its log-weights are the log-joint.
    theta : object
        Initial parameters.
    constraints, regularizer
        As in `regularize`.
    tol : float, default=1e-8
        Relative change of the objective below which the iteration stops.
    max_iter : int, default=200
        Maximum number of iterations.

    Returns
    -------
    EmpiricalBayesResult
        Status ``stalled`` means that ``update`` increased the objective, so that it is not a maximizer. The best
        parameters are returned.

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> from regbayes import E, Gaussian, empirical_bayes
    >>> def posterior(theta):  # of m given y = 2, where y ~ N(m, 1) and m ~ N(theta, 1)
    ...     return Gaussian((2 + theta) / 2, [0.5], log_evidence=-((2 - theta) ** 2) / 4)
    >>> model = SimpleNamespace(posterior=posterior, update=lambda q: float(q.mean[0]))
    >>> round(empirical_bayes(model, 0.0, E([1.0]) <= 1).theta, 3)
    1.0
    """

    def solve(parameters: Theta) -> _State[Theta]:
        posterior = model.posterior(parameters)
        if posterior.log_evidence is None:
            raise ValueError("posterior(theta) must carry log_evidence, or rounds cannot be compared")
        return _State(parameters, regularize(posterior, constraints, regularizer))

    def terms(state: _State[Theta]) -> dict[str, float]:
        evidence = state.regularized.base.log_evidence
        assert evidence is not None
        regularization = state.regularized.primal - state.regularized.kl
        return {"divergence": state.regularized.kl - evidence, "regularizer": regularization}

    def step(state: _State[Theta]) -> StepResult[_State[Theta]]:
        moved = solve(model.update(state.regularized.posterior))
        before, after = sum(terms(state).values()), sum(terms(moved).values())
        if after > before + ROUNDING * (1 + abs(before)):
            return StepResult(state, terms(state), status=Status.STALLED)
        return StepResult(moved, terms(moved))

    fit = run(step, solve(theta), max_iter=max_iter, objective=terms, stop=RelativeChange(tol))
    return EmpiricalBayesResult(fit.state.theta, fit.state.regularized, fit.trace, fit.status, fit.n_iter)
