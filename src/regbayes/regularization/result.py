"""What `regularize` returns: the regularized posterior with its multipliers, its certificate and Monte Carlo errors."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from regbayes._registry import Saveable, persistable
from regbayes._types import Floats
from regbayes.engine import Status
from regbayes.kernels.arrays import DeviceArray, find_ranges, sum_squares, to_host
from regbayes.regularization.constraints import Conditional, E
from regbayes.regularization.diagnostics import autocorrelation_time, reliable_threshold, score_tail
from regbayes.regularization.features import Features
from regbayes.regularization.monte_carlo import Influences, find_errors, find_influences
from regbayes.regularization.posteriors import Posterior, Samples
from regbayes.regularization.regularizers import Regularizer

FEW_DRAWS = 100  # effective ones below which errors of errors are large too, unless few draws were given
EVEN_SHARES = 4.0  # no draw has more times its share than this: the variance of averages is bounded by as much
HEAVY_TAIL = 0.05  # shape of a score's tail, two standard errors taken off, above which it is called heavy
WILD = 0.5  # shape of a tail from which on a mean has no variance
LARGEST = 0.05  # share of all squares that one draw has then; clumps of values have odd shapes, but no such draw
STRONG_TILT = 1.0  # nats between the top score and the average one; below, the tail has no say
DRAW_AGAIN = (
    "Draw more, or sample the model again under the constraints: resample(model, constraints), where model is the one "
    "behind the draws, as a NumPyroModel, PyMCModel or BlackJAXModel of regbayes.ppl, or a sampler of your own."
)


@persistable
@dataclass(frozen=True, eq=False)
class RegularizedPosterior(Saveable):
    """The closest posterior for which the constraints hold, with its certificate.

    ``q ∝ p exp<multipliers, psi>``: a multiplier is what its constraint cost, and the factor to add to the model's
    log-density for the same effect. ``dual`` is a lower bound of the optimum wherever the solver stopped. ``primal`` is
    ``dual + gap``: an upper bound where ``violation`` is zero; where hard constraints are violated it charges what the
    multipliers ask for the way to them, and is an estimate. Under importance weights ``before`` and ``kl`` are only as
    good as the weights, also where the tilt is harmless.

    Where the posterior was known by draws (`Samples`), other draws would have given another answer. ``before_mcse``,
    ``after_mcse``, ``multipliers_mcse`` and ``kl_mcse`` are the Monte Carlo standard errors, docs/math.md eq. (16) to
    (18), and ``mcse(features)`` that of any other expectation. They are zero for posteriors that are known exactly, and
    NaN for draws in blocks on a cluster, for which they are not estimated.
    """

    posterior: Posterior  # the tilted one
    base: Posterior  # the one that was given
    regularizer: Regularizer
    labels: tuple[str, ...]  # (m,): one per constrained expectation
    multipliers: Floats  # (m,): phi; infinite where the status is boundary
    before: Floats  # (m,): E_p[psi]
    after: Floats  # (m,): E_q[psi]
    slack: Floats  # (m,): how far inside each constraint; negative is outside
    primal: float
    dual: float
    gap: float
    violation: float  # of hard constraints, in standard deviations of the features: rounding, when optimal
    kl: float  # KL(q || p): how far the posterior moved
    status: Status  # optimal, boundary, infeasible, stalled or iteration_limit
    n_iter: int
    warm_start: Floats = field(repr=False)  # pass it to the next call on a similar problem
    features: Features = field(repr=False)  # the constrained ones, evaluated

    def expectation(self, features: Any) -> Floats:
        """Return expectations of any features under the regularized posterior, shape (m,).

        A single one is a number too, ``float(result.expectation("tau"))``; ``E(f).given(event)`` has a conditional one.
        """
        if isinstance(features, Conditional):
            return self.posterior.expectation(features.on_event(0.0)) / self._probability(features)
        return self.posterior.expectation(_inside(features))

    def _probability(self, conditional: Conditional) -> float:
        probability = float(self.posterior.expectation(conditional.event))
        if probability <= 0:
            raise ValueError(f"{conditional!r} is not defined: the event has probability 0")
        return probability

    def sd(self, features: Any) -> Floats:
        """Return standard deviations of any features under the regularized posterior, shape (m,)."""
        return self.posterior.sd(_inside(features))

    def quantile(self, features: Any, probabilities: ArrayLike) -> Floats:
        """Return quantiles of any features, shape (m,) for one probability and (m, k) for k; nothing is resampled."""
        return self.posterior.quantile(_inside(features), probabilities)

    def interval(self, features: Any, probability: float = 0.94) -> Floats:
        """Return the equal-tailed interval of any features, shape (m, 2). Nothing is resampled."""
        return self.posterior.interval(_inside(features), probability)

    def mcse(self, features: Any) -> Floats:
        """Return Monte Carlo standard errors of `expectation`, shape (m,), docs/math.md eq. (18).

        They count that the multipliers were found on the same draws, and that draws of a chain repeat each other.
        """
        if isinstance(features, Conditional):
            on_event = features.on_event(self.expectation(features))
            return self.mcse(on_event) / self._probability(features)
        values = self.posterior.evaluate(_inside(features))
        if self._influences is None:
            return self._no_errors(len(values.names))
        return find_errors(self._influences.of_features(to_host(values.values)))

    def ess(self, features: Any) -> Floats:
        """Return how many independent draws would know each expectation as well, shape (m,) (`Samples` only)."""
        return self._samples("ess").ess(_inside(features))

    def sample(self, rng: np.random.Generator | int | None = None, size: int = 1) -> Any:
        """Draw from the regularized posterior; ``rng`` is a generator or a seed, ``size`` the number of draws."""
        return self.posterior.sample(rng, size)

    @cached_property
    def before_mcse(self) -> Floats:
        """Monte Carlo standard errors of ``before``, shape (m,)."""
        return self.base.mcse(self.features) if isinstance(self.base, Samples) else self._no_errors(len(self.labels))

    @cached_property
    def after_mcse(self) -> Floats:
        """Monte Carlo standard errors of ``after``, shape (m,): zero where a constraint holds the expectation."""
        if self._influences is None:
            return self._no_errors(len(self.labels))
        errors = find_errors(self._influences.of_expectations())
        return np.where(errors <= 1e-7 * self.before_mcse, 0.0, errors)

    @cached_property
    def multipliers_mcse(self) -> Floats:
        """Monte Carlo standard errors of ``multipliers``, shape (m,); NaN where they are infinite."""
        if self._influences is None:
            return self._no_errors(len(self.labels))
        errors = find_errors(self._influences.of_multipliers())
        errors = np.where(errors * self.base.sd(self.features) < 1e-10, 0.0, errors)
        return np.where(np.isfinite(self.multipliers), errors, math.nan)

    @cached_property
    def kl_mcse(self) -> float:
        """Monte Carlo standard error of ``kl``, to first order: it says little where ``kl`` is nearly zero."""
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
        """Effective number of draws: the least that weights and chains leave for a constrained expectation.

        `Samples` only.
        """
        samples = self._samples("effective_sample_size")
        return float(np.nanmin([samples.effective_sample_size, *samples.ess(self.features)]))

    @property
    def pareto_k(self) -> float:
        """Pareto k-hat of the tilted weights (`Samples` only); above 0.7 do not trust the result."""
        return self._samples("pareto_k").pareto_k

    @cached_property
    def doubts(self) -> tuple[str, ...]:
        """What speaks against the draws, in sentences; empty where they can carry the tilt.

        A heavy tail is found by extrapolating from the largest draws. That it is not found proves nothing: draws do not
        show what lies beyond them.
        """
        if not self.posterior.is_drawn:
            return ()
        effective = self.posterior.effective_sample_size  # type: ignore[attr-defined]
        if (
            isinstance(self.posterior, Samples) and effective < self.posterior.n_atoms / 2
        ):  # otherwise the weights are mild, and each feature is not asked for
            effective = self.effective_sample_size
        doubts = _doubts(self.posterior, self.base, effective)
        if isinstance(self.posterior, Samples):
            wild = find_wild_mean(self.posterior, self.features.values, self.after, self.labels)
            doubts += [] if wild is None else [wild]
        return tuple(doubts)

    def to_arviz(self, rng: np.random.Generator | int | None = None) -> Any:
        """Return the regularized posterior as an ArviZ object (`Samples` only); ``rng`` is a generator or a seed."""
        return self._samples("to_arviz").to_arviz(rng)

    def _samples(self, what: str) -> Samples:
        if not isinstance(self.posterior, Samples):
            raise AttributeError(f"{what} is for posteriors given as Samples, this one is {self.posterior!r}")
        return self.posterior

    def summary(self) -> str:
        """Return a table of the constraints: expectations before and after, multiplier, slack; errors where drawn."""
        columns, rows = self._table()
        width = max(len(label) for label in self.labels)
        widths = [max(11, len(column)) if column != "±" else 8 for column in columns]
        lines = [self._headline(), _row("", columns, width, widths)]
        lines += [_row(label, row, width, widths) for label, row in zip(self.labels, rows, strict=True)]
        return "\n".join(lines)

    def _headline(self) -> str:
        head = f"{self.status}: gap {self.gap:.1e} in {self.n_iter} iterations, moved {self.kl:.4g}"
        if isinstance(self.posterior, Samples) and self.kl > 0 and math.isfinite(self.kl_mcse):
            head += f" ± {self.kl_mcse:.1g}"
        head += " nats"
        if self.violation > 1e-6:
            head += f", violation {self.violation:.1e} standard deviations"
        if isinstance(self.posterior, Samples):
            head += f", effective draws {self.effective_sample_size:.0f} of {self.posterior.n_atoms}"
            head += f", {_k_hat_in_words(self.pareto_k)}"
        return head

    def _table(self) -> tuple[list[str], list[list[str]]]:
        """Headings and cells, with a column of errors after each estimate where there are any."""
        drawn = isinstance(self.posterior, Samples)
        columns: list[tuple[str, list[str]]] = []
        for name, values, errors in (
            ("before", [f"{b:.5g}" for b in self.before], self.before_mcse),
            ("after", [f"{_tidy(a, b):.5g}" for a, b in zip(self.after, self.before, strict=True)], self.after_mcse),
            ("multiplier", [f"{phi + 0.0:.4g}" for phi in self.multipliers], self.multipliers_mcse),
        ):
            columns.append((name, values))
            if drawn:
                columns.append(("±", [_error_in_words(error) for error in errors]))
        columns.append(("slack", [f"{_tidy(s, b):.3g}" for s, b in zip(self.slack, self.before, strict=True)]))
        return [name for name, _ in columns], [list(row) for row in zip(*(cells for _, cells in columns), strict=True)]

    def _repr_html_(self) -> str:
        """Show the table in a notebook."""
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
        notes = "".join(f"<p><b>Doubt:</b> {html.escape(doubt)}</p>" for doubt in self.doubts)
        return (
            f"<div><p>{html.escape(self._headline())}</p>{notes}"
            f"<table><thead><tr><th></th>{cells}</tr></thead><tbody>{body}</tbody></table></div>"
        )

    def __str__(self) -> str:
        return self.summary()


def _tidy(value: float, beside: float) -> float:
    """Return zero for what is rounding beside the number it is to be compared with, and never minus zero."""
    return 0.0 if abs(value) <= 1e-7 * abs(beside) else float(value)


def _inside(features: Any) -> Any:
    """Return what stands inside E(...)."""
    return features.features if isinstance(features, E) else features


def _row(label: str, cells: list[str], width: int, widths: list[int]) -> str:
    return f"{label:{width}}  " + " ".join(f"{cell:>{w}}" for cell, w in zip(cells, widths, strict=True))


def _error_in_words(error: float) -> str:
    return "" if math.isnan(error) else f"{error:.2g}"


def _k_hat_in_words(k_hat: float) -> str:
    if k_hat == -math.inf:
        return "no tail of large weights"
    return "k-hat unknown (too few large weights)" if k_hat == math.inf else f"k-hat {k_hat:.2f}"


def _doubts(samples: Any, base: Posterior, effective: float) -> list[str]:
    doubts: list[str] = []
    n = samples.n_atoms
    # Weights that are all about even have no tail whose shape could matter.
    even = n >= FEW_DRAWS and float(samples.log_weights.max()) + math.log(n) < math.log(EVEN_SHARES)
    k_hat = -math.inf if even else samples.pareto_k
    limit = max(reliable_threshold(n), 0.0)
    few = effective < min(FEW_DRAWS, n / 4)
    if k_hat > limit:
        reason = "too few draws have a large weight to know its tail"
        if math.isfinite(k_hat):
            reason = f"Pareto k-hat {k_hat:.2f} is above {limit:.2f}"
        doubts.append(
            f"the draws cannot carry this tilt: {reason} (effective draws {effective:.0f} of {n}). Expectations may be "
            f"far off. {DRAW_AGAIN}"
        )
    elif few:
        doubts.append(
            f"only {effective:.0f} effective draws of {n} are left by the weights and the chains: multipliers and "
            f"expectations are rough, and so are their standard errors. {DRAW_AGAIN}"
        )
    if isinstance(base, Samples) and effective < n / 2:
        alive = np.isfinite(samples.log_weights)
        scores = samples.log_weights[alive] - base.log_weights[alive]
        shape, error = score_tail(scores, samples.relative_efficiency)
        if shape - 2 * error > HEAVY_TAIL and scores.max() - scores.mean() > STRONG_TILT:
            doubts.append(
                "the tilt may not exist beyond the draws: the tail of <multipliers, psi> looks heavier than "
                f"exponential (shape {shape:.2f} ± {error:.2f}, from the largest draws). If the posterior's tail is "
                "like that, exp<multipliers, psi> has no finite mean, and the answer is made by the largest draws "
                "alone. Constrain a feature with a lighter tail, such as a logarithm or a probability."
            )
    return doubts


@np.errstate(over="ignore", invalid="ignore")
def find_wild_mean(samples: Samples, values: DeviceArray, mean: Floats, labels: Sequence[str]) -> str | None:
    """Whether the mean of a feature, (n, m), is made by a few draws, whose weights then show nothing of its tail.

    What lies between 0 and 1 at every draw is taken for a probability, which has a mean, however rarely it is large.
    """
    weights = samples.weights
    at_most, squares = _bound_squares(values, mean, weights)
    for j in map(int, np.flatnonzero(at_most > LARGEST * squares)):
        column = to_host(values[:, j]).astype(np.float64)
        centred = column - mean[j]
        is_bounded = column.min() >= 0.0 and column.max() <= 1.0
        if is_bounded or not np.max(weights * centred**2) > LARGEST * squares[j]:
            continue
        efficiency = 1 / max(1.0, autocorrelation_time(samples.by_chain(centred)))
        for side in (1.0, -1.0):
            shape, error = score_tail(side * centred[weights > 0], efficiency)
            if shape - error > WILD:
                return (
                    f"the feature in {labels[j]} may have no mean: its largest draws look like a tail without a "
                    f"variance (shape {shape:.2f} ± {error:.2f}), and a few of them make the average. A ratio whose "
                    "denominator can be zero does that. Constrain a bounded function of it, or a probability."
                )
    return None


def _bound_squares(values: DeviceArray, mean: Floats, weights: Floats) -> tuple[Floats, Floats]:
    """The largest weighted square of each feature's distance from its mean, or more, and the sum of all, (m,) both."""
    if not isinstance(values, np.ndarray):  # no copy of all draws in a device's memory
        low, high = find_ranges(values)
        return float(weights.max()) * np.maximum(high - mean, mean - low) ** 2, sum_squares(values, mean, weights)
    squares = np.subtract(values.T, mean[:, None], order="C")
    squares *= squares
    squares *= weights
    return squares.max(axis=1), squares.sum(axis=1)
