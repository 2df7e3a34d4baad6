"""Posteriors of weighted atoms: enumerated models and draws."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property, partial
from typing import Any, ClassVar, cast, final

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import logsumexp

from regbayes._registry import persistable
from regbayes._types import Flags, Floats
from regbayes.kernels import arrays
from regbayes.kernels.arrays_atoms import score_atoms
from regbayes.kernels.device_memory import free_bytes, within_memory
from regbayes.regularization.arviz import to_arviz
from regbayes.regularization.diagnostics import (
    autocorrelation_time,
    batch_length,
    monte_carlo_error,
    pareto_k,
    smooth_log_weights,
    tail_index,
)
from regbayes.regularization.draws import Draws, as_draws
from regbayes.regularization.features import Expression, Features, evaluate_features
from regbayes.regularization.log_partition import CHUNK_BYTES, WeightedAtoms
from regbayes.regularization.posteriors.base import (
    Expectations,
    Posterior,
    as_features,
    as_multipliers,
    as_probabilities,
)
from regbayes.regularization.regularizers.base import FAR

SUM_TOLERANCE = 1e-5  # tolerance of the sum of probabilities, which covers long sums in single precision


def _normalise(log_weights: ArrayLike | None, n: int, name: str) -> Floats:
    if log_weights is None:
        return np.full(n, -np.log(n))
    try:
        given = np.asarray(arrays.to_host(log_weights), dtype=np.float64)
    except (TypeError, ValueError):
        raise TypeError(f"{name} must be a 1-D array of numbers") from None
    if given.shape != (n,):
        raise ValueError(f"{name} must have one entry for each draw or model, shape ({n},), got {given.shape}")
    if np.any(np.isnan(given)) or np.any(given == np.inf):
        raise ValueError(f"{name} holds NaN or +inf; a draw or model without weight has log-weight -inf")
    if not np.any(given > -np.inf):
        raise ValueError(f"{name} gives no draw or model any weight")
    if name == "log_weights" and n > 1 and given.min() >= 0 and abs(given.sum() - 1) < SUM_TOLERANCE:
        raise ValueError(
            "log_weights are non-negative and sum to one, as weights do and logarithms of weights hardly ever: pass "
            "np.log(weights), or add a constant, which changes nothing, if they are logarithms"
        )
    normalised: Floats = given - logsumexp(given)
    return normalised


def _centre(column: Floats, weights: Floats) -> tuple[Floats, float]:
    """Return a centered feature in units of its largest distance, and the unit."""
    column = np.ascontiguousarray(column)
    with np.errstate(over="ignore"):
        away = column - weights @ column
    unit = max(float(away.max()), -float(away.min()))
    unit = unit if 0 < unit < np.inf else 1.0
    away /= unit
    return away, unit


class Weighted(Posterior):
    """Weighted atoms, the base class of enumerated models and draws."""

    draws: Draws
    log_weights: Floats  # (n,), normalized

    @property
    def n_atoms(self) -> int:
        """Number of models or draws, including those with zero weight."""
        return len(self.log_weights)

    @property
    def weights(self) -> Floats:
        """Normalized weights, shape (n,)."""
        return np.exp(self.log_weights)

    def reweight(self, log_weights: Floats) -> Weighted:
        """Return the same atoms with other, normalized log-weights."""
        other = object.__new__(type(self))
        kept = {k: v for k, v in vars(self).items() if not isinstance(getattr(type(self), k, None), cached_property)}
        other.__dict__.update(kept, log_weights=log_weights, log_evidence=None)
        return other

    def evaluate(self, features: Any) -> Features:
        """Evaluate features of every atom: functions, arrays, names or a list of these."""
        return evaluate_features(self.draws, features)

    def bind(self, features: Features) -> WeightedAtoms:
        """Return the log-sum-exp log-partition function of evaluated features."""
        return WeightedAtoms(features.values, self.log_weights)

    def tilt(self, features: Any, multipliers: ArrayLike) -> Weighted:
        """Return ``q ∝ p exp<multipliers, features>``: the same atoms with other weights."""
        psi = as_features(self, features).values
        phi = as_multipliers(multipliers, psi.shape[1])
        scores = self.log_weights + arrays.to_host(score_atoms(psi, phi))
        return self.reweight(scores - logsumexp(scores))

    def restrict(self, keep: Flags) -> Weighted:
        """Condition on a subset of the atoms."""
        scores = np.where(keep, self.log_weights, -np.inf)
        return self.reweight(scores - logsumexp(scores))

    def expectation(self, features: Any) -> Floats:
        """Return the expectation of each feature, shape (m,)."""
        values = as_features(self, features).values
        if arrays.lies_elsewhere(values):
            return WeightedAtoms(values, self.log_weights).mean.view(Expectations)
        return (self.weights @ values).view(Expectations)

    def sd(self, features: Any) -> Floats:
        """Return the standard deviation of each feature, shape (m,)."""
        weights = self.weights

        def spread(column: Floats) -> float:
            away, unit = _centre(column, weights)
            return unit * float(np.sqrt(weights @ away**2))

        return np.array([spread(column) for column in arrays.to_host(as_features(self, features).values).T])

    def quantile(self, features: Any, probabilities: ArrayLike) -> Floats:
        """Return weighted quantiles (inverse of the cumulative distribution).

        Parameters
        ----------
        features : as in `evaluate`
        probabilities : float or array of shape (k,)

        Returns
        -------
        array of shape (m,) or (m, k)
        """
        values, wanted = arrays.to_host(as_features(self, features).values), as_probabilities(probabilities)
        weights = self.weights
        out = np.empty((values.shape[1], wanted.size))
        for column, row in zip(values.T, out, strict=True):
            order = np.argsort(column, kind="stable")
            order = order[weights[order] > 0]
            cumulated = np.cumsum(weights[order])
            places = np.searchsorted(cumulated, wanted.ravel() * cumulated[-1] * (1 - 1e-12))
            row[:] = column[order[np.minimum(places, len(order) - 1)]]
        return out.reshape(values.shape[1], *wanted.shape)

    def _choose(self, rng: np.random.Generator | int | None, size: int) -> NDArray[np.intp]:
        return np.random.default_rng(rng).choice(self.n_atoms, size=size, p=self.weights)


@final
@persistable
class Finite(Weighted):
    """A posterior over finitely many models with given probabilities.

    Parameters
    ----------
    models : array of shape (n, ...), mapping of such arrays, or sequence of any n objects
        The models. Feature functions receive arrays and mappings at once, and other objects one at a time.
    log_weights : array of shape (n,), default=None
        Log-probabilities up to a constant; uniform by default. When they are the log-joint ``log p(M, D)``, their
        log-sum is kept as ``log_evidence``.
    probabilities : array of shape (n,), default=None
        Probabilities, which sum to one, as an alternative to ``log_weights``.

    Examples
    --------
    >>> import numpy as np
    >>> from regbayes import Finite
    >>> die = Finite(np.arange(1, 7))
    >>> float(die.expectation(lambda face: face)[0])
    3.5
    """

    def __init__(
        self,
        models: ArrayLike | Mapping[str, ArrayLike] | Sequence[Any],
        *,
        log_weights: ArrayLike | None = None,
        probabilities: ArrayLike | None = None,
    ) -> None:
        if log_weights is not None and probabilities is not None:
            raise ValueError("give log_weights or probabilities, not both")
        self.objects = _plain_objects(models)
        self.draws = as_draws(np.arange(len(self.objects)) if self.objects is not None else models, chains=False)
        if probabilities is not None:
            given = np.asarray(arrays.to_host(probabilities), dtype=np.float64)
            if np.any(given < 0) or not np.all(np.isfinite(given)):
                raise ValueError("probabilities must be finite and non-negative")
            if given.shape == (self.draws.size,) and given.sum() > 0 and abs(given.sum() - 1) > SUM_TOLERANCE:
                raise ValueError(f"probabilities must sum to one, got {given.sum():.6g}; divide them by their sum")
            with np.errstate(divide="ignore"):
                log_weights = np.log(given)
        name = "log_weights" if probabilities is None else "probabilities"
        self.log_weights = _normalise(log_weights, self.draws.size, name)
        if log_weights is not None:
            self.log_evidence = float(logsumexp(arrays.to_host(log_weights)))

    @property
    def probabilities(self) -> Floats:
        """Probability of each model, shape (n,)."""
        return self.weights

    def evaluate(self, features: Any) -> Features:
        """Evaluate functions of the models, or accept an array of shape (n,) or (n, m)."""
        if self.objects is not None:
            features = _one_at_a_time(features, self.objects)
        return super().evaluate(features)

    def sample(self, rng: np.random.Generator | int | None = None, size: int = 1) -> Any:
        """Draw models, in the form in which they were given."""
        chosen = self._choose(rng, size)
        if self.objects is not None:
            return [self.objects[i] for i in chosen]
        return _take(self.draws, chosen)

    def __repr__(self) -> str:
        return f"Finite({self.n_atoms} models)"


def _plain_objects(models: Any) -> list[Any] | None:
    """Return the models as a list unless they are a numeric array or a mapping."""
    if isinstance(models, Mapping) or hasattr(models, "__array__") or not isinstance(models, Sequence):
        return None
    if models and all(isinstance(model, int | float | np.number) for model in models):
        return None
    return list(models)


def _one_at_a_time(features: Any, objects: list[Any]) -> Any:
    """Convert functions of one object to functions of all."""
    if isinstance(features, list | tuple):
        return [_one_at_a_time(feature, objects) for feature in features]
    if isinstance(features, Expression):
        return features.map(partial(_one_at_a_time, objects=objects))
    if not callable(features):
        return features
    function: Callable[[Any], Any] = features

    def of_all(_: Any) -> Any:
        return np.asarray([function(model) for model in objects], dtype=np.float64)

    of_all.__name__ = getattr(function, "__name__", "psi")
    return of_all


def _take(draws: Draws, chosen: NDArray[np.intp]) -> Any:
    taken = {name: arrays.take_rows(values, chosen) for name, values in draws.variables.items()}
    return taken if draws.named else next(iter(taken.values()))


@final
@persistable
class Samples(Weighted):
    """A posterior represented by draws from any sampler.

    Parameters
    ----------
    draws : array, mapping of arrays, ArviZ InferenceData, xarray DataTree or Dataset
        An array of shape (n,) or (n, d); a mapping of arrays of shape (n, ...); or a posterior group with the
        dimensions ``chain`` and ``draw``.
    log_weights : array of shape (n,), default=None
        Log importance weights up to a constant, for draws from another distribution.
    variables : sequence of str, default=None
        The named variables to keep; all by default.
    chains : bool, default=None
        Whether arrays have the two leading axes (chain, draw). None is False, but raises an error for arrays that
        appear to have chains.

    Examples
    --------
    >>> import numpy as np
    >>> from regbayes import E, Samples, regularize
    >>> posterior = Samples({"mu": np.random.default_rng(0).normal(size=4000)})
    >>> result = regularize(posterior, E("mu") >= 0.5)
    >>> round(float(result.expectation("mu")[0]), 6)
    0.5
    """

    is_drawn: ClassVar[bool] = True

    def __init__(
        self,
        draws: Any,
        log_weights: ArrayLike | None = None,
        *,
        variables: Sequence[str] | None = None,
        chains: bool | None = None,
    ) -> None:
        self.draws = as_draws(draws, variables=variables, chains=chains)
        self.log_weights = _normalise(log_weights, self.draws.size, "log_weights")

    def by_chain(self, series: Floats) -> Floats:
        """Return numbers per draw, (n, ...), as (n_chains, n_draws, ...)."""
        return series.reshape(self.draws.n_chains, self.draws.n_draws, *series.shape[1:])

    @cached_property
    def _counts(self) -> tuple[float, float]:
        """Kish's effective sample size and the efficiency of the chains."""
        weights = self.weights
        kish = float(weights.sum() ** 2 / (weights @ weights))
        return kish, min(1.0, 1 / autocorrelation_time(self.by_chain(weights)))

    @property
    def relative_efficiency(self) -> float:
        """Effective sample size of the weights as a series, divided by n; at most 1."""
        return self._counts[1]

    @property
    def effective_sample_size(self) -> float:
        """Effective sample size of the draws: Kish's, times the efficiency of the chains."""
        return math.prod(self._counts)

    @cached_property
    def pareto_k(self) -> float:
        """Pareto k-hat of the weights; above 0.7 the draws are unreliable."""
        return pareto_k(self.log_weights, self.relative_efficiency)

    @cached_property
    def tail_index(self) -> float:
        """Hill's tail index of the weights; above 1/3 standard errors may be too small."""
        return tail_index(self.log_weights)

    def mcse(self, features: Any) -> Floats:
        """Return the Monte Carlo standard error of each expectation, shape (m,)."""
        return np.array([unit * error for error, _, unit in self._errors(features)])

    def ess(self, features: Any) -> Floats:
        """Return the effective sample size for each expectation, shape (m,).

        It accounts for autocorrelation and unequal weights. NaN for a constant feature.
        """
        return np.array([variance / error**2 if error > 0 else np.nan for error, variance, _ in self._errors(features)])

    def _errors(self, features: Any) -> list[tuple[float, float, float]]:
        """Return the Monte Carlo errors of expectations, the variances, and their units.

        All columns are processed together, which is faster. Columns whose squares overflow or underflow are processed
        alone.
        """
        values, weights = arrays.to_host(as_features(self, features).values), self.weights

        def alone(column: Floats) -> tuple[float, float, float]:
            away, unit = _centre(column, weights)
            return self.n_atoms * monte_carlo_error(self.by_chain(weights * away)), float(weights @ away**2), unit

        with np.errstate(over="ignore", invalid="ignore"):
            batches, variances = self._in_batches(values, weights)
        return [
            (self.n_atoms * monte_carlo_error(batches[..., j]), float(variance), 1.0)
            if 1 / FAR < variance < FAR  # so that squares neither overflow nor underflow
            else alone(values[:, j])
            for j, variance in enumerate(variances)
        ]

    def _in_batches(self, values: Floats, weights: Floats) -> tuple[Floats, Floats]:
        """Return centered, weighted features in batches along chains, and variances."""
        m, n_draws, center = values.shape[1], self.draws.n_draws, weights @ values
        batch = batch_length(n_draws)
        batches, variances = np.empty((self.draws.n_chains, n_draws // batch, m)), np.zeros(m)
        together = max(1, CHUNK_BYTES // (8 * m * batch))  # batches that fit into the cache
        room = np.empty((min(together * batch, n_draws), m))
        for own, chain_weights, chain in zip(batches, self.by_chain(weights), self.by_chain(values), strict=True):
            for first in range(0, -(-n_draws // batch), together):
                part = slice(first * batch, min((first + together) * batch, n_draws))
                away = np.subtract(chain[part], center, out=room[: part.stop - part.start])
                into = own[first : first + together]  # drops an incomplete last batch
                whole = away[: len(into) * batch].reshape(len(into), batch, m)
                own_weights = chain_weights[part]
                shares = own_weights[: len(into) * batch].reshape(len(into), 1, batch)
                np.divide(np.matmul(shares, whole)[:, 0], batch, out=into)
                variances += own_weights @ np.square(away, out=away)
        return batches, variances

    def smoothed(self) -> Samples:
        """Return the same draws with Pareto smoothed weights.

        Smoothing reduces the variance at the cost of a small bias. The constraints then hold only approximately.
        """
        return cast("Samples", self.reweight(smooth_log_weights(self.log_weights, self.relative_efficiency)[0]))

    def sample(self, rng: np.random.Generator | int | None = None, size: int = 1) -> Any:
        """Draw by the weights, in the form in which the draws were given."""
        return _take(self.draws, self._choose(rng, size))

    def to_arviz(self, rng: np.random.Generator | int | None = None) -> Any:
        """Return an ArviZ object with resampled draws, weights and other groups."""
        return to_arviz(self.draws.on_host(), self.log_weights, rng)

    def __repr__(self) -> str:
        return f"Samples({self.n_atoms} draws of {', '.join(self.draws.variables)})"


def within_device_memory(posterior: Posterior) -> AbstractContextManager[None]:
    """Add the number of draws that fit to an out-of-memory error of a device."""
    if not isinstance(posterior, Weighted):
        return nullcontext()
    there = [values for values in posterior.draws.variables.values() if arrays.lies_elsewhere(values)]
    if not there:
        return nullcontext()
    n_bytes = sum(math.prod(values.shape) * (4 if "32" in str(values.dtype) else 8) for values in there)
    return within_memory(there[0], partial(_describe_room, there[0], posterior.n_atoms, n_bytes))


def _describe_room(there: Any, n_draws: int, n_bytes: int) -> str:
    """Describe how many draws fit; features are stored twice, in two units."""
    free, fits = free_bytes(there), ""
    if free is not None:
        fits = (
            f" About {(free + n_bytes) * n_draws // (3 * n_bytes):,} such draws fit with as many features as numbers."
        )
    return (
        f"the memory of the device does not hold {n_draws:,} draws ({n_bytes / 1e9:.2g} GB) and features of them."
        f"{fits} Give every second draw, only the variables=[...] that are needed, or float32; or copy them to the host"
    )
