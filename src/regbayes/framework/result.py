"""What `regularize` returns: the regularized posterior with its multipliers and its certificate."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from regbayes._registry import Saveable, persistable
from regbayes._types import Floats
from regbayes.engine import Status
from regbayes.framework.constraints import E
from regbayes.framework.posteriors import Posterior, Samples
from regbayes.framework.regularizers import Regularizer


@persistable
@dataclass(frozen=True, eq=False)
class RegularizedPosterior(Saveable):
    """The closest posterior for which the constraints hold, with its certificate.

    ``q ∝ p exp<multipliers, psi>``: a multiplier is what its constraint cost, and the factor to add to the model's
    log-density for the same effect. ``primal`` and ``dual`` enclose the optimum; ``gap`` is their difference. Under
    importance weights ``before`` and ``kl`` are only as good as the weights, also where the tilt is harmless.
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

    def expectation(self, features: Any) -> Floats:
        """Return expectations of any features under the regularized posterior, shape (m,)."""
        return self.posterior.expectation(features.features if isinstance(features, E) else features)

    def sample(self, rng: np.random.Generator | int | None = None, size: int = 1) -> Any:
        """Draw from the regularized posterior; ``rng`` is a generator or a seed, ``size`` the number of draws."""
        return self.posterior.sample(rng, size)

    @property
    def effective_sample_size(self) -> float:
        """Effective number of draws left by the tilt (`Samples` only)."""
        return self._samples("effective_sample_size").effective_sample_size

    @property
    def pareto_k(self) -> float:
        """Pareto k-hat of the tilted weights (`Samples` only); above 0.7 do not trust the result."""
        return self._samples("pareto_k").pareto_k

    def to_arviz(self, rng: np.random.Generator | None = None) -> Any:
        """Return the regularized posterior as an ArviZ object (`Samples` only)."""
        return self._samples("to_arviz").to_arviz(rng)

    def _samples(self, what: str) -> Samples:
        if not isinstance(self.posterior, Samples):
            raise AttributeError(f"{what} is for posteriors given as Samples, this one is {self.posterior!r}")
        return self.posterior

    def summary(self) -> str:
        """Return a table of the constraints: expectations before and after, multiplier, slack."""
        head = f"{self.status}: gap {self.gap:.1e} in {self.n_iter} iterations, moved {self.kl:.4g} nats"
        if self.violation > 1e-6:
            head += f", violation {self.violation:.1e} standard deviations"
        if isinstance(self.posterior, Samples):
            head += f", effective draws {self.effective_sample_size:.0f} of {self.posterior.n_atoms}"
            head += f", k-hat {self.pareto_k:.2f}"
        width = max(len(label) for label in self.labels)
        lines = [head, f"{'':{width}}  {'before':>11} {'after':>11} {'multiplier':>11} {'slack':>11}"]
        rows = zip(self.labels, self.before, self.after, self.multipliers, self.slack, strict=True)
        lines += [
            f"{label:{width}}  {b:11.5g} {_tidy(a, b):11.5g} {phi + 0.0:11.4g} {_tidy(slack, b):11.3g}"
            for label, b, a, phi, slack in rows
        ]
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.summary()


def _tidy(value: float, beside: float) -> float:
    """Return zero for what is rounding beside the number it is to be compared with, and never minus zero."""
    return 0.0 if abs(value) <= 1e-7 * abs(beside) else float(value)
