"""Find the closest posterior under expectation constraints, docs/math.md eq. (1)."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from regbayes._types import Floats
from regbayes.engine import Status
from regbayes.kernels.arrays import DeviceArray, to_host
from regbayes.regularization.composite import Stack
from regbayes.regularization.constraints import UNNAMED_FEATURE, Constraint, E, MomentConstraint, inside
from regbayes.regularization.draws import has_samples, is_labelled
from regbayes.regularization.dual import solve_dual
from regbayes.regularization.dual.problem import DualSolution
from regbayes.regularization.feasibility import (
    Face,
    OutOfReach,
    Verdict,
    examine,
    find_out_of_reach,
    may_be_on_face,
)
from regbayes.regularization.features import Combination, Features, OnEvent, Picked
from regbayes.regularization.log_partition import GaussianAffine, LogPartition, WeightedAtoms
from regbayes.regularization.posteriors import Gaussian, Posterior, Samples
from regbayes.regularization.posteriors.weighted import Weighted, within_device_memory
from regbayes.regularization.regularizers import Regularizer, Separable
from regbayes.regularization.result import RESAMPLE_HINT, RegularizedPosterior

MOST_NAMED = 5  # largest number of constraints listed in an error message


class InfeasibleError(ValueError):
    """The constraints are infeasible; ``result`` is the final iterate."""

    def __init__(self, message: str, result: RegularizedPosterior) -> None:
        super().__init__(message)
        self.result = result


class NotConvergedWarning(UserWarning):
    """The solver stopped above its tolerance; see the gap and the violation."""


class UnreliableWeightsWarning(UserWarning):
    """The draws are doubtful or unreliable for these constraints; see ``diagnostics``."""


def regularize(
    posterior: Posterior | Any,
    constraints: Any,
    regularizer: Regularizer | None = None,
    *,
    tol: float = 1e-9,
    max_iter: int = 200,
    warm_start: Floats | None = None,
    raise_infeasible: bool = True,
) -> RegularizedPosterior:
    """Find the distribution closest to a posterior under constraints on expectations.

    Minimize ``KL(q || p) + g(E_q[psi])`` over all distributions q. Draws are reweighted. If reweighting is unreliable,
    `resample` samples the model under the constraints.

    Parameters
    ----------
    posterior : Finite, Gaussian, Samples, or draws
        The posterior p. A dict of arrays, NumPyro's ``MCMC``, ArviZ's InferenceData and an xarray DataTree or Dataset
        are converted to ``Samples(draws)``.
    constraints : constraint, list of constraints, or constraint functions psi
        Constraints such as ``E(psi) <= b`` or ``[E(f) == 1, (E(h) >= 0).soft(10)]``, or the constraint functions of a
        ``regularizer``.
    regularizer : Regularizer, default=None
        The function g of the expectations of the constraint functions.
    tol : float, default=1e-9
        Tolerance of the duality gap, relative to ``1 + |dual|``, and of the violation of hard constraints, in standard
        deviations. A violation above 1e-4 is never accepted.
    max_iter : int, default=200
        Maximum number of Newton steps, after which the last iterate is returned with its gap.
    warm_start : array, default=None
        ``warm_start`` of an earlier result for a similar problem.
    raise_infeasible : bool, default=True
        Whether infeasible constraints raise `InfeasibleError` or return a result with status ``infeasible``.

    Returns
    -------
    RegularizedPosterior

    Warns
    -----
    NotConvergedWarning
        If the solver stops above its tolerance: at ``max_iter``, or because no step makes progress.
    UnreliableWeightsWarning
        If reweighting is unreliable: high Pareto k-hat, low effective sample size, or a tail of the tilt heavier than
        exponential. `RegularizedPosterior.diagnostics` has the messages.

    Examples
    --------
    >>> import numpy as np
    >>> from regbayes import E, regularize
    >>> draws = {"mu": np.random.default_rng(0).normal(size=4000)}
    >>> result = regularize(draws, E("mu") >= 0.5)
    >>> result.after.round(3), result.reliability
    (array([0.5]), 'reliable')
    """
    if not isinstance(posterior, Posterior) and (
        isinstance(posterior, Mapping) or is_labelled(posterior) or has_samples(posterior)
    ):
        posterior = Samples(posterior)
    if isinstance(posterior, RegularizedPosterior):
        raise TypeError(
            "posterior is a result of regularize; give its posterior, result.posterior, to continue from it"
        )
    if not isinstance(posterior, Posterior):
        raise TypeError(
            "posterior must be a Finite, Gaussian or Samples, a dict of arrays, NumPyro's MCMC, or an ArviZ or xarray "
            f"object of draws, got {type(posterior).__name__}; write Samples(draws) for an array of draws and "
            "Finite(models) for enumerated models. To sample a model of regbayes.ppl under the constraints, call "
            "resample(model, constraints)"
        )
    if not tol > 0:
        raise ValueError(f"tol must be positive, got {tol!r}")
    if max_iter < 0:
        raise ValueError(f"max_iter must be at least 0, got {max_iter!r}")
    with within_device_memory(posterior):
        evaluated, g, labels = gather(posterior, constraints, regularizer)
        _check_events(posterior, constraints, regularizer)
        stack = Stack.of(g, len(labels))
        with np.errstate(
            over="ignore", invalid="ignore", divide="ignore"
        ):  # overflow is safe here: a non-finite gap is never certified
            problem = _Problem.of(posterior.bind(evaluated), stack)
            start = None if warm_start is None else problem.from_user(warm_start)
            outcome = _solve(problem.partition, problem.stack, tol, max_iter, start)
            result = _result(posterior, evaluated, g, labels, problem, outcome)
        lost = None
        if result.status is Status.BOUNDARY and regularizer is None:
            lost = _find_lost_event(result, as_constraints(constraints))
        if lost is not None:
            result = replace(result, status=Status.INFEASIBLE)
            if raise_infeasible:
                raise InfeasibleError(lost, result)
        elif result.status is Status.INFEASIBLE and raise_infeasible:
            pair = None
            if outcome.out_of_reach is not None:  # each constraint may be feasible alone
                pair = _find_contradiction(posterior, evaluated.values, stack)
            if pair is not None:
                low, high = (labels[i] for i in pair)
                raise InfeasibleError(f"the constraints {low} and {high} contradict each other", result)
            message = _infeasible_message(posterior, labels, problem, outcome)
            raise InfeasibleError(message + _way_out(posterior, evaluated.values, stack, outcome), result)
        _warn(result)
        return result


def _find_contradiction(posterior: Posterior, values: DeviceArray, stack: Stack) -> tuple[int, int] | None:
    """Return indices of a lower bound above an upper bound of the same feature."""
    low, high = stack.domain
    lowest, highest = np.full(stack.n_features, -np.inf), np.full(stack.n_features, np.inf)
    np.maximum.at(lowest, stack.index, low)
    np.minimum.at(highest, stack.index, high)
    crossed = np.argwhere(lowest[:, None] > highest)
    rows = to_host(values).T if isinstance(posterior, Weighted) else values
    if not hasattr(rows, "__getitem__"):  # blocks of draws
        return None
    return next(((int(i), int(j)) for i, j in crossed if i != j and np.array_equal(rows[i], rows[j])), None)


def _way_out(posterior: Posterior, values: DeviceArray, stack: Stack, outcome: _Outcome) -> str:
    """Return a remedy for infeasible constraints, if one is known."""
    asked = zip(stack.index, *stack.domain, strict=True)
    beyond = {int(i) for i, low, high in asked if low > 1 or high < 0}
    if isinstance(posterior, Weighted) and any(
        np.array_equal(np.unique(to_host(values[:, i])), (0, 1)) for i in beyond
    ):
        return "; a probability, the mean of a yes or no, lies between 0 and 1"
    if isinstance(posterior, Samples) and not (outcome.verdict is not None and outcome.verdict.constant):
        return f"; other draws may reach further. {RESAMPLE_HINT}"
    return ""


@dataclass(frozen=True)
class _Problem:
    """The problem in the solver's units: ``(psi - center) / scale``, also for targets."""

    partition: LogPartition
    stack: Stack
    center: Floats  # (m,)
    scale: Floats  # (m,)

    @classmethod
    def of(cls, partition: LogPartition, stack: Stack) -> _Problem:
        found = partition.standardized(stack.blocks)
        if found is None:
            m = len(partition.mean)
            return cls(partition, stack, np.zeros(m), np.ones(m))
        standard, center, scale = found
        return cls(standard, stack.in_units(center, scale), center, scale)

    def from_user(self, warm_start: ArrayLike) -> Floats:
        start = np.asarray(warm_start, dtype=np.float64)
        if start.shape != self.stack.index.shape:
            raise ValueError(f"warm_start must have shape {self.stack.index.shape}, got {start.shape}")
        if not np.all(np.isfinite(start)):
            raise ValueError("warm_start must be finite: give the warm_start of an earlier result")
        return start * self.scale[self.stack.index]

    def to_user(self, expectation: Floats) -> Floats:
        return self.center + self.scale * expectation


@dataclass(frozen=True)
class _Outcome:
    """Final iterate, its face, and the reason for infeasibility."""

    face: Face
    solution: DualSolution
    status: Status
    out_of_reach: OutOfReach | None = None
    verdict: Verdict | None = None


def gather(
    posterior: Posterior, features: Any, regularizer: Regularizer | None
) -> tuple[Features, Regularizer, tuple[str, ...]]:
    """Return evaluated features, one regularizer and labels for both forms of call."""
    if regularizer is not None:
        if isinstance(features, Constraint) or (
            isinstance(features, list) and any(isinstance(c, Constraint) for c in features)
        ):
            raise TypeError(
                "a constraint has its regularizer already; give constraints, or constraint functions and a regularizer"
            )
        if not isinstance(regularizer, Regularizer):
            raise TypeError(f"regularizer must be one of regbayes.regularizers, got {type(regularizer).__name__}")
        evaluated = posterior.evaluate(inside(features))
        _check_size(regularizer, len(evaluated.names), "regularizer")
        return evaluated, regularizer, evaluated.names
    constraints = as_constraints(features)
    parts = [posterior.evaluate(c.features) for c in constraints]
    sizes = [len(part.names) for part in parts]
    for constraint, size in zip(constraints, sizes, strict=True):
        _check_size(constraint.regularizer, size, constraint)
    labels = tuple(label for c, part in zip(constraints, parts, strict=True) for label in _labels(c, part.names))
    g = constraints[0].regularizer if len(parts) == 1 else Separable([c.regularizer for c in constraints], sizes)
    return posterior.join(parts), g, labels


def _check_events(posterior: Posterior, features: Any, regularizer: Regularizer | None) -> None:
    """Raise if a conditional expectation has an event with probability zero."""
    for constraint in as_constraints(features) if regularizer is None else ():
        event = constraint.features.event if isinstance(constraint.features, OnEvent) else None
        if event is not None and isinstance(posterior, Weighted) and not float(posterior.expectation(event)) > 0:
            raise ValueError(
                f"{constraint!r}: the event has probability 0, so nothing can be said given that it happens"
            )


def _find_lost_event(result: RegularizedPosterior, constraints: list[Constraint]) -> str | None:
    """Return a message if the result excludes the event of a conditional constraint."""
    if not isinstance(result.posterior, Weighted):
        return None
    given = [(c, c.features.event) for c in constraints if isinstance(c.features, OnEvent)]
    lost = next((c for c, event in given if not float(result.posterior.expectation(event)) > 0), None)
    if lost is None:
        return None
    drawn = isinstance(result.posterior, Samples)
    return (
        f"the constraint {lost!r} cannot be met unless the event never happens: the {'draws' if drawn else 'models'} "
        "in it do not reach that far, or other constraints rule it out"
    ) + (f"; other draws may reach further. {RESAMPLE_HINT}" if drawn else "")


def as_constraints(given: Any) -> list[Constraint]:
    """Return the constraints of a call as a flat list."""
    if isinstance(given, Constraint):
        return [given]
    if any(isinstance(c, MomentConstraint) for c in (given if isinstance(given, list | tuple) else [given])):
        raise TypeError("variances and correlations are not linear in the posterior: call regularize_moments")
    if isinstance(given, E) or not isinstance(given, list | tuple):
        raise TypeError("give constraints such as E(psi) <= b, or constraint functions and a regularizer")
    if not given:
        raise ValueError("the list of constraints is empty")
    flat = [c for item in given for c in (item if isinstance(item, list) else [item])]  # `given(...).between`
    odd = [item for item in flat if not isinstance(item, Constraint)]
    if odd:
        raise TypeError(f"every item of a list of constraints must be one, such as E(psi) <= b; got {odd[0]!r}")
    return flat


def _labels(constraint: Constraint, names: tuple[str, ...]) -> list[str]:
    """Return a label for each expectation, with the variable's own name if it has one."""
    if len(names) == 1:
        own = isinstance(constraint.features, Picked | Combination) or constraint.name == UNNAMED_FEATURE
        return [constraint.label(names[0] if own and not constraint.named else None)]
    each = [f"{constraint.name}[{i}]" for i in range(len(names))] if constraint.named else names
    return constraint.label_each(each)


def _check_size(regularizer: Regularizer, size: int, what: object) -> None:
    if regularizer.size is not None and regularizer.size != size:
        raise ValueError(
            f"{what}: the regularizer takes {regularizer.size} expectations, the constraint functions have {size}"
        )


def _solve(partition: LogPartition, stack: Stack, tol: float, max_iter: int, warm_start: Floats | None) -> _Outcome:
    """Solve the dual, on a face of the support if the constraints require one."""
    face = Face(partition, 0.0, np.zeros(stack.n_features))
    out_of_reach = find_out_of_reach(partition, stack)
    if out_of_reach is not None:
        solution = solve_dual(partition, stack, tol=tol, max_iter=0, warm_start=warm_start)
        return _Outcome(face, solution, Status.INFEASIBLE, out_of_reach=out_of_reach)
    solution = solve_dual(face.partition, stack, tol=tol, max_iter=max_iter, warm_start=warm_start)
    if solution.status is not Status.CONVERGED or may_be_on_face(face.partition, solution.multipliers):
        verdict = examine(face.partition, stack)
        if verdict.kind == "infeasible" and solution.status is not Status.CONVERGED:
            return _Outcome(face, solution, Status.INFEASIBLE, verdict=verdict)
        if verdict.keep is not None and verdict.direction is not None:
            face = face.narrow(verdict.keep, verdict.direction)
            solution = solve_dual(face.partition, stack, tol=tol, max_iter=max_iter, watch=False)
        elif solution.status is Status.DIVERGED:
            start = solution.stacked
            solution = solve_dual(face.partition, stack, tol=tol, max_iter=max_iter, warm_start=start, watch=False)
    status = Status.ITERATION_LIMIT if solution.status is Status.ITERATION_LIMIT else Status.STALLED
    if solution.status is Status.CONVERGED:
        status = Status.BOUNDARY if np.any(face.infinite) else Status.OPTIMAL
    return _Outcome(face, solution, status)


def _result(
    base: Posterior,
    evaluated: Features,
    g: Regularizer,
    labels: tuple[str, ...],
    problem: _Problem,
    outcome: _Outcome,
) -> RegularizedPosterior:
    face, solution, scale = outcome.face, outcome.solution, problem.scale
    multipliers = solution.multipliers / scale
    tilted: Posterior
    if isinstance(base, Weighted) and isinstance(face.partition, WeightedAtoms):
        log_weights, kl = solution.log_weights, solution.kl
        if log_weights is None or kl is None:
            log_weights, kl = face.partition.tilt(solution.multipliers)
        tilted, kl = base.reweight(face.partition.of_all(log_weights)), kl - face.log_mass
    elif isinstance(base, Gaussian) and isinstance(face.partition, GaussianAffine):
        move = face.partition.factor.T @ solution.multipliers if solution.move is None else solution.move
        tilted, kl = base.shift(move), 0.5 * float(move @ move)
    else:
        tilted = base.tilt(evaluated, multipliers)
        kl = float(solution.multipliers @ solution.expectation) - solution.log_partition
    after = problem.to_user(solution.expectation)
    return RegularizedPosterior(
        posterior=tilted,
        base=base,
        regularizer=g,
        labels=labels,
        multipliers=np.where(face.infinite != 0, face.infinite, multipliers),
        before=problem.to_user(problem.partition.mean),
        after=after,
        slack=problem.stack.slack(solution.expectation) * scale,
        primal=solution.primal - face.log_mass,
        dual=solution.dual - face.log_mass,
        gap=solution.gap,
        violation=solution.violation,
        kl=max(kl, 0.0),
        status=outcome.status,
        n_iter=solution.n_iter,
        warm_start=solution.stacked / scale[problem.stack.index],
        features=evaluated,
    )


def _infeasible_message(posterior: Posterior, labels: tuple[str, ...], problem: _Problem, outcome: _Outcome) -> str:
    drawn = isinstance(posterior, Samples)
    unreachable = outcome.out_of_reach
    if unreachable is not None:
        i = unreachable.feature
        needed, reachable = (
            problem.center[i] + problem.scale[i] * x for x in (unreachable.needed, unreachable.reachable)
        )
        label, off = labels[i], abs(unreachable.needed - unreachable.reachable) * problem.scale[i]
        reach = f"{'these draws reach' if drawn else 'the constraint functions reach'} only {reachable:.6g}"
        if off < 1e-300:  # an open domain, such as x > 0 of KL
            return f"the constraint {label} cannot be met: {reach}, on the edge of where it is defined"
        return f"the constraint {label} cannot be met: it needs {needed:.6g}, and {reach}, off by {off:.6g}"
    verdict = outcome.verdict
    assert verdict is not None
    assert verdict.repair is not None
    assert verdict.proof is not None
    missed: dict[str, float] = {}
    for i, amount in zip(problem.stack.index, np.abs(verdict.repair), strict=True):
        missed[labels[i]] = max(missed.get(labels[i], 0.0), float(amount * problem.scale[i]))
    worst = max(missed.values())
    by_size = sorted(missed.items(), key=lambda item: -item[1])
    named = [f"{label} (off by {amount:.4g})" for label, amount in by_size if amount > 1e-3 * worst]
    named = [*named[:MOST_NAMED], f"and {len(named) - MOST_NAMED} more"] if len(named) > MOST_NAMED else named
    other = " or what these draws can reach" if drawn else " or the posterior"
    if verdict.constant:
        other = f": a combination of their functions is the same for all {'draws' if drawn else 'models'}"
    return f"the constraints contradict each other{other}; at the least violation: " + "; ".join(named)


def _warn(result: RegularizedPosterior) -> None:
    left = f"with gap {result.gap:.1e} and violation {result.violation:.1e} standard deviations, above the tolerance"
    if result.status is Status.ITERATION_LIMIT:
        message = (
            f"regularize stopped at max_iter={result.n_iter} {left}. Raise max_iter, or tol if this is good enough."
        )
        warnings.warn(message, NotConvergedWarning, stacklevel=3)
    elif result.status is Status.STALLED:
        message = (
            f"regularize stalled after {result.n_iter} iterations {left}; more iterations would not help. Raise tol "
            "if this is good enough. Otherwise soften a hard constraint, (E(f) == b).soft(penalty), leave out "
            "constraint functions that are nearly combinations of others, or lower very large penalties and weights."
        )
        warnings.warn(message, NotConvergedWarning, stacklevel=3)
    if result.diagnostics:
        warnings.warn(" ".join(result.diagnostics), UnreliableWeightsWarning, stacklevel=3)
