"""Result of `regularize`: posterior, multipliers, certificate, Monte Carlo errors."""

from __future__ import annotations

import html
import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from regbayes._registry import Saveable, persistable
from regbayes._types import Floats
from regbayes.engine import Status
from regbayes.kernels.arrays import to_host
from regbayes.regularization.constraints import Conditional, inside
from regbayes.regularization.diagnostics import find_heavy_tail, find_wild_mean, judge_weights
from regbayes.regularization.features import Features
from regbayes.regularization.monte_carlo import Influences, find_errors, find_influences
from regbayes.regularization.posteriors import Posterior, Samples
from regbayes.regularization.regularizers import Regularizer

Reliability = Literal["reliable", "doubtful", "unreliable"]
RESAMPLE_HINT = (
    "Draw more, or sample the model again under the constraints: resample(model, constraints), where model is the one "
    "behind the draws, as a NumPyroModel, PyMCModel or BlackJAXModel of regbayes.ppl, or a sampler of your own."
)


@persistable
@dataclass(frozen=True, eq=False)
class RegularizedPosterior(Saveable):
    """The closest posterior under the constraints, with its certificate.

    The posterior is ``q ∝ p exp<multipliers, psi>``: adding ``<multipliers, psi>`` to the model's log-density has the
    same effect. ``dual`` is a lower bound of the optimum at any iterate. ``primal`` is ``dual + gap``, an upper bound
    if ``violation`` is zero. For violated hard constraints it includes the estimated cost of meeting them. With
    importance weights, ``before`` and ``kl`` are only as reliable as the weights.

    For draws (`Samples`), the solution has a Monte Carlo error. ``before_mcse``, ``after_mcse``, ``multipliers_mcse``
    and ``kl_mcse`` are the standard errors, docs/math.md eq. (16) to (18), and ``mcse(features)`` those of other
    expectations. They are zero for exact posteriors, and NaN (not estimated) for draws in blocks on a cluster.

    Examples
    --------
    >>> from regbayes import E, Gaussian, regularize
    >>> result = regularize(Gaussian(0.0, [1.0]), E([1.0]) >= 2)
    >>> round(result.kl, 3), result.multipliers.round(3), str(result.status)
    (2.0, array([2.]), 'optimal')
    >>> result.interval([1.0], 0.95).round(2)
    array([[0.04, 3.96]])
    """

    posterior: Posterior  # the regularized posterior
    base: Posterior  # the original posterior
    regularizer: Regularizer
    labels: tuple[str, ...]  # (m,): one per constrained expectation
    multipliers: Floats  # (m,): phi; infinite for some if the status is boundary
    before: Floats  # (m,): E_p[psi]
    after: Floats  # (m,): E_q[psi]
    slack: Floats  # (m,): distance inside each constraint; negative if violated, see `miss`
    primal: float
    dual: float
    gap: float
    violation: float  # of hard constraints, in standard deviations of the features; rounding error if optimal
    kl: float  # KL(q || p), the divergence from the original posterior
    status: Status  # of the solver: optimal, boundary, infeasible, stalled or iteration_limit; see `reliability`
    n_iter: int
    warm_start: Floats = field(repr=False)  # pass it to the next call on a similar problem
    features: Features = field(repr=False)  # the constrained features, evaluated

    def expectation(self, features: Any) -> Floats:
        """Return expectations of any features under the regularized posterior, shape (m,).

        A single expectation converts to a float, as in ``float(result.expectation("tau"))``.
        ``E(f).given(event)`` has a conditional expectation.
        """
        if isinstance(features, Conditional):
            return self.posterior.expectation(features.on_event(0.0)) / self._probability(features)
        return self.posterior.expectation(inside(features))

    def _probability(self, conditional: Conditional) -> float:
        probability = float(self.posterior.expectation(conditional.event))
        if probability <= 0:
            raise ValueError(f"{conditional!r} is not defined: the event has probability 0")
        return probability

    def sd(self, features: Any) -> Floats:
        """Return standard deviations of any features, shape (m,)."""
        return self.posterior.sd(inside(features))

    def quantile(self, features: Any, probabilities: ArrayLike) -> Floats:
        """Return quantiles of features, shape (m,) for one probability, (m, k) for k."""
        return self.posterior.quantile(inside(features), probabilities)

    def interval(self, features: Any, probability: float = 0.94) -> Floats:
        """Return the equal-tailed interval of any features, shape (m, 2)."""
        return self.posterior.interval(inside(features), probability)

    def mcse(self, features: Any) -> Floats:
        """Return Monte Carlo standard errors of `expectation`, docs/math.md eq. (18).

        They account for the estimation of the multipliers from the same draws, and for autocorrelation.
        """
        if isinstance(features, Conditional):
            on_event = features.on_event(self.expectation(features))
            return self.mcse(on_event) / self._probability(features)
        values = self.posterior.evaluate(inside(features))
        if self._influences is None:
            return self._no_errors(len(values.names))
        return find_errors(self._influences.of_features(to_host(values.values)))

    def ess(self, features: Any) -> Floats:
        """Return the effective sample size for each expectation (`Samples` only)."""
        return self._samples("ess").ess(inside(features))

    def sample(self, rng: np.random.Generator | int | None = None, size: int = 1) -> Any:
        """Draw ``size`` samples from the posterior; ``rng`` is a generator or a seed."""
        return self.posterior.sample(rng, size)

    @cached_property
    def before_mcse(self) -> Floats:
        """Monte Carlo standard errors of ``before``, shape (m,)."""
        return self.base.mcse(self.features) if isinstance(self.base, Samples) else self._no_errors(len(self.labels))

    @cached_property
    def after_mcse(self) -> Floats:
        """Monte Carlo standard errors of ``after``; zero for active hard constraints."""
        if self._influences is None:
            return self._no_errors(len(self.labels))
        errors = find_errors(self._influences.of_expectations())
        return np.where(errors <= 1e-7 * self.before_mcse, 0.0, errors)

    @cached_property
    def multipliers_mcse(self) -> Floats:
        """Monte Carlo standard errors of ``multipliers``, shape (m,); NaN if infinite."""
        if self._influences is None:
            return self._no_errors(len(self.labels))
        errors = find_errors(self._influences.of_multipliers())
        errors = np.where(errors * self.base.sd(self.features) < 1e-10, 0.0, errors)
        return np.where(np.isfinite(self.multipliers), errors, math.nan)

    @cached_property
    def kl_mcse(self) -> float:
        """Monte Carlo standard error of ``kl`` to first order; unreliable near zero."""
        found = self._no_errors(1) if self._influences is None else find_errors(self._influences.of_kl())
        return float(found[0])

    def _no_errors(self, n: int) -> Floats:
        return np.full(n, math.nan if self.base.is_drawn else 0.0)

    @cached_property
    def _influences(self) -> Influences | None:
        if not (isinstance(self.posterior, Samples) and isinstance(self.base, Samples)):
            return None
        return find_influences(
            self.posterior, self.base, to_host(self.features.values), self.regularizer, self.warm_start
        )

    @cached_property
    def effective_sample_size(self) -> float:
        """Smallest effective sample size of the constrained expectations (`Samples` only)."""
        samples = self._samples("effective_sample_size")
        return float(np.nanmin([samples.effective_sample_size, *samples.ess(self.features)]))

    @property
    def pareto_k(self) -> float:
        """Pareto k-hat of the tilted weights (`Samples` only); unreliable above 0.7."""
        return self._samples("pareto_k").pareto_k

    @cached_property
    def _verdict(self) -> tuple[Reliability, tuple[str, ...]]:
        """Reliability of the draws, with reasons and remedies."""
        if not self.posterior.is_drawn:
            return "reliable", ()
        n_chains = self.posterior.draws.n_chains if isinstance(self.posterior, Samples) else 1
        effective = self.posterior.effective_sample_size  # type: ignore[attr-defined]
        mild = effective >= self.posterior.n_atoms / 2  # type: ignore[attr-defined]
        if isinstance(self.posterior, Samples) and not mild:  # mild weights matter little
            effective = self.effective_sample_size
        verdict, reason = judge_weights(self.posterior, effective, n_chains)
        messages = [f"The draws are {verdict}: {reason} {RESAMPLE_HINT}"] if reason else []
        if isinstance(self.posterior, Samples):
            heavy = None if mild or not isinstance(self.base, Samples) else find_heavy_tail(self.posterior, self.base)
            wild = find_wild_mean(self.posterior, self.features.values, self.after, self.labels)
            messages += [message for message in (heavy, wild) if message is not None]
        return ("doubtful" if messages and verdict == "reliable" else verdict), tuple(messages)

    @property
    def reliability(self) -> Reliability:
        """Reliability of the draws for these constraints; see ``diagnostics``.

        One of "reliable", "doubtful" and "unreliable"; exact posteriors are reliable. ``status`` is about the
        solver alone.
        """
        return self._verdict[0]

    @property
    def diagnostics(self) -> tuple[str, ...]:
        """Messages about problems with the draws, with remedies; empty if there are none.

        Heavy tails are detected by extrapolation from the largest draws, so that they can be missed.
        """
        return self._verdict[1]

    def to_arviz(self, rng: np.random.Generator | int | None = None) -> Any:
        """Return an ArviZ object (`Samples` only); ``rng`` is a generator or a seed."""
        return self._samples("to_arviz").to_arviz(rng)

    def _samples(self, what: str) -> Samples:
        if not isinstance(self.posterior, Samples):
            raise AttributeError(f"{what} is for posteriors given as Samples, this one is {self.posterior!r}")
        return self.posterior

    def summary(self) -> str:
        """Return reliability, diagnostics and a table of the constraints as text."""
        columns, rows = self._table()
        width = max(len(label) for label in self.labels)
        widths = [max(11, len(column)) if column != "±" else 8 for column in columns]
        lines = [
            f"{label:{width}}  " + " ".join(f"{cell:>{w}}" for cell, w in zip(cells, widths, strict=True))
            for label, cells in (("", columns), *zip(self.labels, rows, strict=True))
        ]
        return "\n".join([self._headline(), *self.diagnostics, *lines])

    def _headline(self) -> str:
        drawn = isinstance(self.posterior, Samples)
        head = f"draws {self.reliability}, " if self.posterior.is_drawn else ""
        head += f"solver {self.status}: KL {self.kl:.4g}"
        if drawn and self.kl > 0 and math.isfinite(self.kl_mcse):
            head += f" ± {self.kl_mcse:.1g}"
        head += f" nats, gap {self.gap:.1e} after {self.n_iter} iteration{'s' if self.n_iter != 1 else ''}"
        if self.violation > 1e-6:
            head += f", violation {self.violation:.1e} standard deviations"
        if drawn:
            effective, n_atoms = self.effective_sample_size, self._samples("summary").n_atoms
            head += f", effective draws {effective:.0f} of {n_atoms}, {_k_hat_in_words(self.pareto_k)}"
        return head

    def _table(self) -> tuple[list[str], list[list[str]]]:
        """Return headings and cells, with a column of errors after each estimate of draws."""
        drawn = isinstance(self.posterior, Samples)
        columns: list[tuple[str, list[str]]] = []
        for name, values, errors in (
            ("before", [f"{b:.5g}" for b in self.before], self.before_mcse),
            ("after", [f"{_tidy(a, b):.5g}" for a, b in zip(self.after, self.before, strict=True)], self.after_mcse),
            ("multiplier", [f"{phi + 0.0:.4g}" for phi in self.multipliers], self.multipliers_mcse),
        ):
            columns.append((name, values))
            if drawn:
                columns.append(("±", ["" if math.isnan(error) else f"{error:.2g}" for error in errors]))
        slacks = [_tidy(s, b) for s, b in zip(self.slack, self.before, strict=True)]
        columns.append(("slack", [f"{s:.3g}" if s >= 0 else "" for s in slacks]))
        if any(s < 0 for s in slacks):
            columns.append(("miss", [f"{-s:.3g}" if s < 0 else "" for s in slacks]))
        return [name for name, _ in columns], [list(row) for row in zip(*(cells for _, cells in columns), strict=True)]

    @property
    def miss(self) -> Floats:
        """Violation of each soft constraint, shape (m,); zero if the constraint holds.

        For targets without tolerance (equality, ridge, divergence), it is the distance from the target.
        """
        return np.maximum(-self.slack, 0.0)

    def _repr_html_(self) -> str:
        """Show the reliability and the table in a notebook."""
        columns, rows = self._table()
        right = ' style="text-align:right"'
        left = ' style="text-align:left"'
        cells = "".join(f"<th{right}>{html.escape(column)}</th>" for column in columns)
        body = "".join(
            f"<tr><th{left}>{html.escape(label)}</th>"
            + "".join(f"<td{right}>{html.escape(cell)}</td>" for cell in row)
            + "</tr>"
            for label, row in zip(self.labels, rows, strict=True)
        )
        notes = "".join(f"<p>{html.escape(message)}</p>" for message in self.diagnostics)
        return (
            f"<div><p><b>{html.escape(self._headline())}</b></p>{notes}"
            f"<table><thead><tr><th></th>{cells}</tr></thead><tbody>{body}</tbody></table></div>"
        )

    def __str__(self) -> str:
        return self.summary()


def _tidy(value: float, compared: float) -> float:
    """Return zero for values within rounding of the compared number."""
    return 0.0 if abs(value) <= 1e-7 * abs(compared) else float(value)


def _k_hat_in_words(k_hat: float) -> str:
    if k_hat == -math.inf:
        return "no tail of large weights"
    return "k-hat unknown (too few large weights)" if k_hat == math.inf else f"k-hat {k_hat:.2f}"
