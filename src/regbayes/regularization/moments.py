"""Variance and correlation constraints, solved by a sequence of linear problems.

A variance is ``min_c E[(f - c)^2]``, attained at the mean. Given the mean, it is linear in the posterior. The same
holds for a correlation given the means and the ratio of the standard deviations. Each linear problem uses these numbers
from the previous solution, until they agree, docs/math.md eq. (19).
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from regbayes._registry import Saveable, persistable
from regbayes._types import Floats
from regbayes.regularization.constraints import Constraint, E, MomentConstraint
from regbayes.regularization.draws import is_labelled
from regbayes.regularization.posteriors import Gaussian, Posterior, Samples
from regbayes.regularization.regularize import NotConvergedWarning, UnreliableWeightsWarning, regularize
from regbayes.regularization.result import RegularizedPosterior


@persistable
@dataclass(frozen=True, eq=False)
class RegularizedMoments(Saveable):
    """The posterior at the end of the sequence of linear problems, and its violation.

    Examples
    --------
    >>> import numpy as np
    >>> from regbayes import Samples, Var, regularize_moments
    >>> draws = Samples({"mu": np.random.default_rng(0).normal(size=4000)})
    >>> result = regularize_moments(draws, Var("mu") == 0.5)
    >>> result.labels, result.before.round(1), result.after.round(3), result.converged
    (('Var(mu) == 0.5',), array([1.]), array([0.5]), True)
    """

    regularized: RegularizedPosterior  # solution of the last linear problem; its gap certifies that problem
    labels: tuple[str, ...]  # (k,): one per variance or correlation
    before: Floats  # (k,): of the given posterior
    after: Floats  # (k,): of the regularized one
    violation: Floats  # (k,): violation in the units of the statistic; zero if the constraint holds
    n_rounds: int
    converged: bool

    def summary(self) -> str:
        """Return tables of the statistics and of the last linear problem."""
        state = "converged" if self.converged else "not converged"
        width = max(len(label) for label in self.labels)
        lines = [
            f"{state} after {self.n_rounds} iterations",
            f"{'':{width}}  {'before':>11} {'after':>11} {'violation':>11}",
        ]
        rows = zip(self.labels, self.before, self.after, self.violation, strict=True)
        lines += [f"{label:{width}}  {b:11.5g} {a:11.5g} {v:11.2g}" for label, b, a, v in rows]
        return "\n".join([*lines, "", self.regularized.summary()])

    def __str__(self) -> str:
        return self.summary()


def regularize_moments(
    posterior: Posterior | Any,
    constraints: Any,
    *,
    tol: float = 1e-7,
    max_rounds: int = 200,
    **options: Any,
) -> RegularizedMoments:
    """Regularize with variances and correlations among the constraints.

    Parameters
    ----------
    posterior : Samples or Finite, or an ArviZ or xarray object
    constraints : list
        ``Var(f) <= b``, ``Corr(f, h) == r`` and the like, and constraints on expectations.
    tol : float, default=1e-7
        Tolerance of the violation, relative to the variance's target (absolute for a correlation), and of the change of
        the means in the last iteration, in standard deviations.
    max_rounds : int, default=200
        Maximum number of linear problems.
    **options
        Passed to `regularize`, which solves the linear problems.

    Returns
    -------
    RegularizedMoments
        ``regularized`` is the solution of the last linear problem, with its gap. The constraints are not convex, so
        that a closer distribution may exist. The standard errors treat the means and standard deviations of the last
        iteration as fixed.

    Warns
    -----
    NotConvergedWarning
        If ``max_rounds`` is reached before the constraints hold.

    Examples
    --------
    >>> import numpy as np
    >>> from regbayes import Samples, Var, regularize_moments
    >>> draws = Samples({"mu": np.random.default_rng(0).normal(size=4000)})
    >>> result = regularize_moments(draws, Var("mu") == 0.5)
    >>> round(float(result.after[0]), 6)
    0.5
    """
    if is_labelled(posterior):
        posterior = Samples(posterior)
    if isinstance(posterior, Gaussian):
        raise TypeError("a tilt of a Gaussian by affine features keeps its covariance; draw from it and use Samples")
    given = list(constraints) if isinstance(constraints, list | tuple) else [constraints]
    moments = [_Moment.of(posterior, c) for c in given if isinstance(c, MomentConstraint)]
    others = [c for c in given if not isinstance(c, MomentConstraint)]
    if max_rounds < 1:
        raise ValueError(f"max_rounds must be at least 1, got {max_rounds!r}")
    if not moments:
        raise ValueError("the constraints contain neither a variance nor a correlation; call regularize")
    current, warm_start, step, worst = posterior, None, 1.0, np.inf
    statistics = [moment.statistics(posterior) for moment in moments]
    n_rounds, converged = 0, False
    while not converged and n_rounds < max_rounds:
        n_rounds += 1
        problem = [*others, *(m.linear(s) for m, s in zip(moments, statistics, strict=True))]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UnreliableWeightsWarning)  # warn once, for the last problem
            result = regularize(posterior, problem, warm_start=warm_start, **options)
        current, warm_start = result.posterior, result.warm_start
        found = [moment.statistics(current) for moment in moments]
        violation = np.array([moment.violation(s) for moment, s in zip(moments, found, strict=True)])
        moved = max(s.distance(f) for s, f in zip(statistics, found, strict=True))
        converged = bool(np.all(violation <= tol) and moved <= np.sqrt(tol))
        step = step / 2 if moved > worst else min(1.0, 1.2 * step)  # shorten the step after overshooting
        worst = moved
        statistics = [s.towards(f, step) for s, f in zip(statistics, found, strict=True)]
    if not converged:
        warnings.warn(
            f"regularize_moments stopped after {n_rounds} rounds with the statements met up to {violation.max():.1e}. "
            "Raise max_rounds, or tol if this is good enough.",
            NotConvergedWarning,
            stacklevel=2,
        )
    if result.diagnostics:
        warnings.warn(" ".join(result.diagnostics), UnreliableWeightsWarning, stacklevel=2)
    return RegularizedMoments(
        regularized=result,
        labels=tuple(repr(m.constraint) for m in moments),
        before=np.array([m.value(m.statistics(posterior)) for m in moments]),
        after=np.array([m.value(s) for m, s in zip(moments, found, strict=True)]),
        violation=violation * [m.unit for m in moments],
        n_rounds=n_rounds,
        converged=converged,
    )


@dataclass(frozen=True)
class _Statistics:
    """Means and covariance of the features of one constraint."""

    mean: Floats  # (1,) or (2,)
    covariance: Floats  # (1, 1) or (2, 2)

    def distance(self, other: _Statistics) -> float:
        """Return the distance of means and log-ratios of spreads, in standard deviations."""
        away = float(np.max(np.abs(self.mean - other.mean) / self.spread))
        ratios = [np.log(s.spread[0] / s.spread[-1]) for s in (self, other)]
        return max(away, abs(float(ratios[0] - ratios[1])))

    @property
    def spread(self) -> Floats:
        spread: Floats = np.sqrt(np.diag(self.covariance))
        return spread

    def towards(self, other: _Statistics, step: float) -> _Statistics:
        return _Statistics(
            self.mean + step * (other.mean - self.mean),
            self.covariance + step * (other.covariance - self.covariance),
        )


@dataclass(frozen=True)
class _Moment:
    """One constraint with its evaluated features."""

    constraint: MomentConstraint
    values: Floats  # (n, 1) or (n, 2)

    @classmethod
    def of(cls, posterior: Posterior, constraint: MomentConstraint) -> _Moment:
        columns = [posterior.evaluate(features) for features in constraint.features]
        for column in columns:
            if len(column.names) != 1:
                raise ValueError(f"{constraint!r} is about one feature, got {len(column.names)}: name one of them")
        values = np.concatenate([column.values for column in columns], axis=1)
        if np.any(np.ptp(values[posterior.weights > 0], axis=0) == 0):  # type: ignore[attr-defined]
            raise ValueError(f"{constraint!r}: the feature does not vary")
        return cls(constraint, values)

    @property
    def unit(self) -> float:
        """Return the unit of a violation: the variance target, or one."""
        return self.constraint.value if len(self.constraint.features) == 1 else 1.0

    def statistics(self, posterior: Any) -> _Statistics:
        mean = posterior.weights @ self.values
        away = self.values - mean
        return _Statistics(mean, away.T @ (posterior.weights[:, None] * away))

    def value(self, s: _Statistics) -> float:
        """Return the variance or the correlation."""
        if len(self.constraint.features) == 1:
            return float(s.covariance[0, 0])
        return float(s.covariance[0, 1] / np.prod(s.spread))

    def violation(self, s: _Statistics) -> float:
        off = (self.value(s) - self.constraint.value) / self.unit
        return {"<=": max(off, 0.0), ">=": max(-off, 0.0), "==": abs(off)}[self.constraint.sign]

    def linear(self, s: _Statistics) -> Constraint:
        """Return the constraint with means and spreads fixed: linear in the posterior."""
        if len(self.constraint.features) == 1:
            level, feature = self.constraint.value, (self.values[:, 0] - s.mean[0]) ** 2
        else:
            away = (self.values - s.mean) / s.spread
            level = 0.0
            feature = away[:, 0] * away[:, 1] - 0.5 * self.constraint.value * (away[:, 0] ** 2 + away[:, 1] ** 2)
        expectation = E(feature)
        made = {"<=": expectation <= level, ">=": expectation >= level, "==": expectation == level}
        return replace(made[self.constraint.sign], relation=f"{self.constraint!r}, linear".replace("{", "{{"))
