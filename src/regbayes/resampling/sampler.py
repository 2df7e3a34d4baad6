"""Interface of samplers that draw from ``p exp<phi, psi>`` for any phi.

A subclass must implement only `Sampler.draw`. The optional methods provide initial positions, the log-density and
smoothness of functions; they make `resample` faster or its diagnostics stricter.
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

MAX_DENSE_COORDINATES = 64  # largest dimension with a dense covariance estimate
RELATIVE_STEP = 1e-5  # relative step of finite differences
N_EXAMPLES = 8  # draws per chain of `example`


@dataclass(frozen=True, eq=False)
class Tilt:
    """Exponential tilting of a model by the factor ``exp<multipliers, functions>``.

    Called with named arrays whose leading axis indexes draws, it returns ``<multipliers, functions>``, which a sampler
    adds to its log-density. `features` contains the user's functions, one entry per constraint. It is the same object
    in all calls of one `resample`, so compiled code can be cached.

    Examples
    --------
    >>> import numpy as np
    >>> from regbayes.ppl import Tilt
    >>> tilt = Tilt((lambda x: x**2,), np.array([-0.5]))
    >>> tilt({"x": np.array([1.0, 2.0])})
    array([-0.5, -2. ])
    """

    features: tuple[Any, ...]
    multipliers: Floats  # (m,)

    def __call__(self, variables: Mapping[str, Array]) -> Floats:
        """Return the log-factor of each draw, shape (n,); NaN where a variable or a function is not finite."""
        try:
            scores: Floats = self.evaluate(variables) @ self.multipliers
        except ValueError:  # a proposal or a distant point overflows
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
        """Whether all multipliers are zero."""
        return not np.any(self.multipliers)

    @property
    def none(self) -> Tilt:
        """The tilt of the same functions with zero multipliers."""
        return Tilt(self.features, np.zeros_like(self.multipliers))


@dataclass(frozen=True, eq=False)
class Start:
    """Initial draws of a run, estimated from earlier runs.

    Examples
    --------
    >>> import numpy as np
    >>> from regbayes.ppl import Start
    >>> start = Start({"x": np.array([0.5, -1.0])}, positions=None, covariance=None, adaptation=None)
    >>> start.variables["x"]  # the first point of each of two chains
    array([ 0.5, -1. ])
    """

    variables: Mapping[str, Array]  # name -> (n_chains, ...): one draw per chain, resampled for the new tilt
    positions: Floats | None  # (n_chains, d): the same in the sampler's coordinates, if available
    covariance: Floats | None  # (d, d), or (d,) for large d: covariance of coordinates under the new tilt
    adaptation: Any  # `Run.adaptation` of the last run


@dataclass(frozen=True, eq=False)
class Run:
    """Draws and statistics of one run of a sampler.

    Examples
    --------
    >>> import numpy as np
    >>> from regbayes.ppl import Run
    >>> run = Run({"x": np.array([[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]])})  # two chains of three draws
    >>> run.flat_variables["x"]
    array([0., 1., 2., 3., 4., 5.])
    """

    variables: Mapping[str, Array]  # name -> (n_chains, n_draws, ...)
    positions: Floats | None = None  # (n_chains, n_draws, d): draws in the sampler's coordinates
    statistics: Mapping[str, Array] = field(default_factory=dict)  # name -> (n_chains, n_draws); `diverging`, `energy`
    n_gradients: int = 0  # number of gradient (or density) evaluations
    adaptation: Any = None  # state for the next run, such as step size and compiled code

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
    """Return the shrunken covariance of positions, (d, d), or variances for large d.

    The covariance is shrunk towards its diagonal, more strongly for few draws, and slightly towards 1e-3 as in Stan.
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
    """Base class of models that `resample` can sample under a tilt.

    A subclass implements `draw`. Chains must be independent, and the same seed must give the same draws.

    Examples
    --------
    >>> import numpy as np
    >>> from regbayes import E, ppl, resample
    >>> class Normal(ppl.Sampler):  # N(0, 1) with the factor exp(multiplier * x)
    ...     def draw(self, tilt, n_draws, *, seed, start, final):
    ...         return ppl.Run({"x": np.random.default_rng(seed).normal(sum(tilt.multipliers), size=(4, n_draws))})
    >>> resample(Normal(), E("x") == 2, n_draws=200).after.round(3)
    array([2.])
    """

    n_chains: int = 4

    @abstractmethod
    def draw(self, tilt: Tilt, n_draws: int, *, seed: int, start: Start | None, final: bool) -> Run:
        """Draw from ``p exp<multipliers, functions>``.

        Parameters
        ----------
        tilt : Tilt
        n_draws : int
            Number of draws per chain after warm-up.
        seed : int
        start : Start or None
            Initial draws. None in the first run, whose initial points should be overdispersed.
        final : bool
            Whether the draws may be returned to the user, which justifies a full adaptation.

        Returns
        -------
        Run
        """

    def example(self) -> Mapping[str, Array]:
        """Return a few points, (n, ...) each, with names and shapes of the variables."""
        return self.draw(Tilt((), np.zeros(0)), N_EXAMPLES, seed=0, start=None, final=False).flat_variables

    @property
    def observed(self) -> tuple[str, ...]:
        """Names of the observed variables."""
        return ()

    @property
    def labels(self) -> tuple[Mapping[str, tuple[str, ...]], Mapping[str, Any]]:
        """Dimension names and coordinates of variables for xarray."""
        return {}, {}

    def find_smooth(self, tilt: Tilt) -> Flags | None:
        """Return whether each function has a useful gradient, shape (m,), or None if unknown.

        `resample` calls it once, before the first run.
        """
        return None

    def log_density(self, tilt: Tilt, positions: Floats) -> Floats | None:
        """Return the tilted log-density of positions, (n, d) -> (n,), or None if unknown."""
        return None

    def log_density_gradient(self, tilt: Tilt, position: Floats) -> Floats:
        """Return the gradient of the tilted log-density at one position, (d,) -> (d,).

        The default uses finite differences of `log_density`.
        """
        steps = np.diag(RELATIVE_STEP * np.maximum(1.0, np.abs(position)))
        values = self.log_density(tilt, np.concatenate([position + steps, position - steps]))
        assert values is not None
        gradient: Floats = (values[: len(steps)] - values[len(steps) :]) / (2 * np.diag(steps))
        return gradient

    def climb(self, tilt: Tilt, position: Floats, unit: Floats, n_steps: int) -> Floats:
        """Maximize the tilted log-density by L-BFGS, (d,) -> (d,)."""

        def downhill(u: Floats) -> tuple[float, Floats]:
            value, slope = self.log_density(tilt, (u * unit)[None]), self.log_density_gradient(tilt, u * unit)
            assert value is not None
            fine = np.isfinite(value[0]) and np.all(np.isfinite(slope))
            return (-float(value[0]), -slope * unit) if fine else (np.inf, np.zeros_like(u))

        options = {"maxiter": n_steps, "maxfun": 2 * n_steps}
        found: Floats = minimize(downhill, position / unit, jac=True, method="L-BFGS-B", options=options).x * unit
        return found

    def find_positions(self, variables: Mapping[str, Array]) -> Floats | None:
        """Convert external draws to the sampler's coordinates, (n, d), or return None."""
        return None

    def add_factor(self, features: Sequence[Any], multipliers: Floats) -> Any:
        """Return the user's model with ``<multipliers, functions>`` added to its log-density."""
        raise NotImplementedError(
            f"{type(self).__name__} does not provide to_model. Add <multipliers, functions> to your own log-density."
        )
