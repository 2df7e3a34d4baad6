"""What `regularize` needs of a model that can be sampled: draws of ``p exp<phi, psi>`` at any multipliers phi.

A sampler is one method, `Sampler.draw`. Everything else that a `Sampler` may offer has a default, and makes the ladder
cheaper or its word surer: positions to start chains from, the log-density, whether features have gradients.
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

MOST_DENSE = 64  # coordinates up to which a whole covariance is estimated
STEP = 1e-5  # of differences, relative to positions beyond one
EXAMPLES = 8  # draws of each chain that show what there is


@dataclass(frozen=True, eq=False)
class Tilt:
    """The factor ``exp<multipliers, features>`` that a run has on top of the model.

    Called with named arrays whose leading axis counts draws, it gives ``<multipliers, features>`` of each: what a
    sampler adds to its log-density. `features` has the features as the user wrote them, one entry per constraint; it is
    the same object in every call of one `regularize`, so what is compiled from it can be kept.
    """

    features: tuple[Any, ...]
    multipliers: Floats  # (m,)

    def __call__(self, variables: Mapping[str, Array]) -> Floats:
        """Return the log-factor of each draw, shape (n,); NaN where a variable or a feature is not a finite number."""
        try:
            scores: Floats = self.evaluate(variables) @ self.multipliers
        except ValueError:  # some draw is off any scale, as proposals and ends of rays may be
            n = len(next(iter(variables.values())))
            if n == 1:
                return np.full(1, np.nan)
            return np.concatenate([self({name: x[i : i + 1] for name, x in variables.items()}) for i in range(n)])
        return scores

    def evaluate(self, variables: Mapping[str, Array]) -> Floats:
        """Return the features of each draw, shape (n, m)."""
        draws = as_draws(variables, chains=False)
        if not self.features:
            return np.zeros((draws.size, 0))
        return np.concatenate([evaluate_features(draws, part).values for part in self.features], axis=1)

    @property
    def is_none(self) -> bool:
        """Whether this is the plain posterior."""
        return not np.any(self.multipliers)


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
    def n_chains(self) -> int:
        """Number of chains."""
        return int(next(iter(self.variables.values())).shape[0])

    @property
    def n_draws(self) -> int:
        """Draws of each chain."""
        return int(next(iter(self.variables.values())).shape[1])


def shrunken_covariance(positions: Floats, weights: Floats, n_effective: float) -> Floats:
    """Return the covariance of weighted positions, (d, d), or their variances, (d,), where there are many coordinates.

    Towards the variances by as much as the draws are few for their number of coordinates, and a little towards 1e-3, as
    in Stan.
    """
    d = positions.shape[1]
    centred = positions - weights @ positions
    variance = weights @ centred**2
    variance = (n_effective * variance + 5e-3) / (n_effective + 5)
    if d > MOST_DENSE:
        return variance
    share = n_effective / (n_effective + d + 5)
    whole: Floats = share * (centred.T @ (weights[:, None] * centred))
    whole[np.diag_indices(d)] = variance
    return whole


def count_examples(variables: Mapping[str, Array]) -> int:
    """A number of draws that is no length of the variables' own axes, (n, ...) each, so that mixing them up shows."""
    lengths = {length for values in variables.values() for length in np.shape(values)[1:]}
    return next(n for n in range(2, len(lengths) + 3) if n not in lengths)


def climb_density(sampler: Sampler, tilt: Tilt, position: Floats, unit: Floats, n_steps: int) -> Floats:
    """Climb the tilted log-density of a sampler that knows it, by L-BFGS in coordinates of these units."""

    def downhill(u: Floats) -> tuple[float, Floats]:
        value, slope = sampler.log_density(tilt, (u * unit)[None]), sampler.log_density_gradient(tilt, u * unit)
        assert value is not None
        assert slope is not None
        fine = np.isfinite(value[0]) and np.all(np.isfinite(slope))
        return (-float(value[0]), -slope * unit) if fine else (np.inf, np.zeros_like(u))

    if n_steps == 0:
        return position
    options = {"maxiter": n_steps, "maxfun": 2 * n_steps}
    found: Floats = minimize(downhill, position / unit, jac=True, method="L-BFGS-B", options=options).x * unit
    return found


class Sampler(ABC):
    """A model that can be sampled under a tilt: `regularize(sampler, constraints)` draws until what is asked holds.

    A subclass writes `draw`. Draws of one chain may depend on each other; chains must not. The same seed gives the same
    draws.
    """

    n_chains: int = 4

    @abstractmethod
    def draw(self, tilt: Tilt, n_draws: int, *, seed: int, start: Start | None, final: bool) -> Run:
        """Draw from ``p exp<multipliers, features>``.

        Parameters
        ----------
        tilt : Tilt
        n_draws : int
            Draws to keep of each chain, after whatever warm-up the sampler needs.
        seed : int
        start : Start or None
            None for the first run: start anywhere, as widely spread as a first run should be.
        final : bool
            Whether these are draws to keep, worth a full adaptation, or a rung on the way.

        Returns
        -------
        Run
        """

    def example(self) -> Mapping[str, Array]:
        """Return a few draws or points of the model, (n, ...) each: which variables there are, and their shapes."""
        few = self.draw(Tilt((), np.zeros(0)), EXAMPLES, seed=0, start=None, final=False)
        return {name: values.reshape(-1, *values.shape[2:]) for name, values in few.variables.items()}

    @property
    def observed(self) -> tuple[str, ...]:
        """Names of what the model observed: data, which no constraint can move."""
        return ()

    def find_smooth(self, tilt: Tilt, run: Run) -> Flags | None:
        """Say of each feature whether it has a gradient that a sampler can follow, shape (m,); None: not known."""
        return None

    def log_density(self, tilt: Tilt, positions: Floats) -> Floats | None:
        """Return the tilted log-density in the sampler's coordinates, (n, d) -> (n,); None: not known."""
        return None

    def log_density_gradient(self, tilt: Tilt, position: Floats) -> Floats | None:
        """Return the gradient of the tilted log-density at one position, (d,) -> (d,); None: not known.

        By differences of `log_density`, unless a subclass has a better one.
        """
        h = STEP * np.maximum(1.0, np.abs(position))
        steps = np.diag(h)
        values = self.log_density(tilt, np.concatenate([position + steps, position - steps]))
        if values is None:
            return None
        gradient: Floats = (values[: len(h)] - values[len(h) :]) / (2 * h)
        return gradient

    def find_positions(self, variables: Mapping[str, Array]) -> Floats | None:
        """Return draws that came from elsewhere, (n, ...) each, in the sampler's coordinates, (n, d); None: cannot."""
        return None

    def add_factor(self, features: Sequence[Any], multipliers: Floats) -> Any:
        """Return the user's own model with ``<multipliers, features>`` added to its log-density."""
        raise NotImplementedError(
            f"{type(self).__name__} has no model to give back; add <multipliers, features> to the log-density yourself"
        )

    @property
    def labels(self) -> tuple[Mapping[str, tuple[str, ...]], Mapping[str, Any]]:
        """Names of the axes of variables, and coordinates along them, for xarray."""
        return {}, {}
