"""The protocol of a model that can be sampled under exponential tilting: draws of ``p exp<phi, psi>`` at any phi.

A sampler writes one method, `Sampler.draw`. Everything else that a `Sampler` may offer has a default, and makes
`resample` faster or its checks stricter: positions to start chains from, the log-density, whether functions have
gradients.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.optimize import minimize

from regbayes._types import Array, Flags, Floats
from regbayes.regularization.draws import as_draws
from regbayes.regularization.features import evaluate_features

MAX_DENSE_COORDINATES = 64  # up to which a whole covariance is estimated
RELATIVE_STEP = 1e-5  # of finite differences
N_EXAMPLES = 8  # draws of each chain that show which variables there are


@dataclass(frozen=True, eq=False)
class Tilt:
    """The factor ``exp<multipliers, functions>`` that a run has on top of the model (exponential tilting).

    Called with named arrays whose leading axis counts draws, it gives ``<multipliers, functions>`` of each: what a
    sampler adds to its log-density. `features` has the functions as the user wrote them, one entry per constraint. It
    is the same object in every call of one `resample`, so code that was compiled from it can be kept.
    """

    features: tuple[Any, ...]
    multipliers: Floats  # (m,)

    def __call__(self, variables: Mapping[str, Array]) -> Floats:
        """Return the log-factor of each draw, shape (n,); NaN where a variable or a function is not finite."""
        try:
            scores: Floats = self.evaluate(variables) @ self.multipliers
        except ValueError:  # some draw overflows, as proposals and ends of rays may
            n = len(next(iter(variables.values())))
            if n == 1:
                return np.full(1, np.nan)
            return np.concatenate([self({name: x[i : i + 1] for name, x in variables.items()}) for i in range(n)])
        return scores

    def evaluate(self, variables: Mapping[str, Array]) -> Floats:
        """Return the functions of each draw, shape (n, m)."""
        draws = as_draws(variables, chains=False)
        if not self.features:
            return np.zeros((draws.size, 0))
        return np.concatenate([evaluate_features(draws, part).values for part in self.features], axis=1)

    @property
    def is_none(self) -> bool:
        """Whether this is the posterior without a tilt."""
        return not np.any(self.multipliers)

    @property
    def none(self) -> Tilt:
        """The same functions with multipliers of zero."""
        return Tilt(self.features, np.zeros_like(self.multipliers))


@dataclass(frozen=True, eq=False)
class Start:
    """Where a run may start: near its own distribution, by what earlier runs know of it."""

    variables: Mapping[str, Array]  # name -> (n_chains, ...): one draw for each chain, resampled towards the new tilt
    positions: Floats | None  # (n_chains, d): the same in the sampler's own coordinates, where it gave them
    covariance: Floats | None  # (d, d) or, where d is large, (d,): of the sampler's coordinates under the new tilt
    adaptation: Any  # what the last run left as its `Run.adaptation`


@dataclass(frozen=True, eq=False)
class Run:
    """What a sampler gives back."""

    variables: Mapping[str, Array]  # name -> (n_chains, n_draws, ...)
    positions: Floats | None = None  # (n_chains, n_draws, d): in coordinates that the sampler moves in
    statistics: Mapping[str, Array] = field(default_factory=dict)  # name -> (n_chains, n_draws); `diverging`, `energy`
    n_gradients: int = 0  # evaluations of the gradient (or of the density) that it took
    adaptation: Any = None  # handed to the next run as `Start.adaptation`: step size, what was compiled

    @property
    def flat_variables(self) -> dict[str, Array]:
        """The variables of all chains, (n, ...) each."""
        return {name: values.reshape(-1, *values.shape[2:]) for name, values in self.variables.items()}

    @property
    def flat_positions(self) -> Floats:
        """The positions of all chains, shape (n, d)."""
        assert self.positions is not None
        return self.positions.reshape(-1, self.positions.shape[2])


def shrunken_covariance(positions: Floats, weights: Floats, n_effective: float) -> Floats:
    """Return the covariance of weighted positions, (d, d), or their variances, (d,), where there are many coordinates.

    It is shrunk towards the variances the fewer draws there are for the number of coordinates, and a little towards
    1e-3, as in Stan.
    """
    d = positions.shape[1]
    centred = positions - weights @ positions
    variance = (n_effective * (weights @ centred**2) + 5e-3) / (n_effective + 5)
    if d > MAX_DENSE_COORDINATES:
        return variance
    share = n_effective / (n_effective + d + 5)
    whole: Floats = share * (centred.T @ (weights[:, None] * centred))
    whole[np.diag_indices(d)] = variance
    return whole


class Sampler(ABC):
    """A model that can be sampled under a tilt: `resample(sampler, constraints)`.

    A subclass writes `draw`. Draws of one chain may depend on each other; chains must not. The same seed gives the same
    draws.
    """

    n_chains: int = 4

    @abstractmethod
    def draw(self, tilt: Tilt, n_draws: int, *, seed: int, start: Start | None, final: bool) -> Run:
        """Draw from ``p exp<multipliers, functions>``.

        Parameters
        ----------
        tilt : Tilt
        n_draws : int
            Draws to keep of each chain, after the sampler's warm-up.
        seed : int
        start : Start or None
            None for the first run: start anywhere, as widely spread as a first run should be.
        final : bool
            Whether these draws may be returned to the user, and are worth a full adaptation.

        Returns
        -------
        Run
        """

    def example(self) -> Mapping[str, Array]:
        """Return a few draws or points of the model, (n, ...) each: which variables there are, and their shapes."""
        return self.draw(Tilt((), np.zeros(0)), N_EXAMPLES, seed=0, start=None, final=False).flat_variables

    @property
    def observed(self) -> tuple[str, ...]:
        """Names of what the model observed: data, which constraints do not affect."""
        return ()

    @property
    def labels(self) -> tuple[Mapping[str, tuple[str, ...]], Mapping[str, Any]]:
        """Names of the axes of variables, and coordinates along them, for xarray."""
        return {}, {}

    def find_smooth(self, tilt: Tilt) -> Flags | None:
        """Say of each function whether it has a gradient that a sampler can follow, shape (m,); None: not known.

        `resample` calls it once, before the first run.
        """
        return None

    def log_density(self, tilt: Tilt, positions: Floats) -> Floats | None:
        """Return the tilted log-density in the sampler's coordinates, (n, d) -> (n,); None: not known."""
        return None

    def log_density_gradient(self, tilt: Tilt, position: Floats) -> Floats:
        """Return the gradient of the tilted log-density at one position, (d,) -> (d,), where `log_density` is known.

        The default takes differences of `log_density`.
        """
        steps = np.diag(RELATIVE_STEP * np.maximum(1.0, np.abs(position)))
        values = self.log_density(tilt, np.concatenate([position + steps, position - steps]))
        assert values is not None
        gradient: Floats = (values[: len(steps)] - values[len(steps) :]) / (2 * np.diag(steps))
        return gradient

    def climb(self, tilt: Tilt, position: Floats, unit: Floats, n_steps: int) -> Floats:
        """Maximize the tilted log-density by L-BFGS in coordinates of these units, (d,) -> (d,)."""

        def downhill(u: Floats) -> tuple[float, Floats]:
            value, slope = self.log_density(tilt, (u * unit)[None]), self.log_density_gradient(tilt, u * unit)
            assert value is not None
            fine = np.isfinite(value[0]) and np.all(np.isfinite(slope))
            return (-float(value[0]), -slope * unit) if fine else (np.inf, np.zeros_like(u))

        options = {"maxiter": n_steps, "maxfun": 2 * n_steps}
        found: Floats = minimize(downhill, position / unit, jac=True, method="L-BFGS-B", options=options).x * unit
        return found

    def find_positions(self, variables: Mapping[str, Array]) -> Floats | None:
        """Return draws of another program, (n, ...) each, in the sampler's coordinates, (n, d); None: not possible."""
        return None

    def add_factor(self, features: Sequence[Any], multipliers: Floats) -> Any:
        """Return the user's own model with ``<multipliers, functions>`` added to its log-density."""
        raise NotImplementedError(
            f"{type(self).__name__} does not provide to_model. Add <multipliers, functions> to your own log-density."
        )
