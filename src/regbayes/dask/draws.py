"""Draws on the workers of a Dask cluster for `regbayes.regularize`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import attrgetter
from typing import Any, ClassVar, NoReturn, final

import dask.array as da
import numpy as np
from dask.sizeof import sizeof
from numpy.typing import ArrayLike
from scipy.special import logsumexp

from regbayes._types import Floats, Indices
from regbayes.dask.blocks import DaskBlocks, exists, find_client, itself
from regbayes.dask.source import align, check_kinds, chunks_of, kind_of, place, sizes_of
from regbayes.engine.source import Ranges
from regbayes.kernels import arrays, arrays_atoms
from regbayes.regularization.diagnostics import effective_sample_size, pareto_k, tail_index
from regbayes.regularization.draws import UNNAMED, as_draws
from regbayes.regularization.features import Expression, Features, evaluate_features
from regbayes.regularization.log_partition import FEW, WeightedAtoms, find_units, standardize
from regbayes.regularization.posteriors.base import Expectations, Posterior, as_features, as_multipliers

# --- log-partition function for the dual solver


@dataclass(frozen=True)
class TiltSums:
    """Log-mass, expectations and covariance of tilted draws; the sum merges two blocks."""

    value: float
    mean: Floats  # (m,)
    covariance: Floats  # (m, m), or empty

    def __add__(self, other: TiltSums) -> TiltSums:
        value = float(np.logaddexp(self.value, other.value))
        share, apart = float(np.exp(other.value - value)), other.mean - self.mean
        covariance = (1.0 - share) * self.covariance + share * other.covariance
        if covariance.size:
            covariance += share * (1.0 - share) * np.outer(apart, apart)
        return TiltSums(value, self.mean + share * apart, covariance)


def sum_tilted(atoms: WeightedAtoms, phi: Floats, second: bool) -> TiltSums:
    """Return the moments of a block under a tilt."""
    value, mean = atoms.evaluate(phi, last=not second)
    return TiltSums(value, mean, atoms.covariance(phi) if second else np.empty((0, 0)))


def find_extent(atoms: WeightedAtoms) -> Ranges:
    """Return the ranges of the features of a block."""
    return Ranges(atoms.lowest, atoms.highest)


@sizeof.register(WeightedAtoms)
def _size_of_atoms(atoms: WeightedAtoms) -> int:
    features = 0 if arrays.lies_elsewhere(atoms.held) else atoms.held.nbytes
    return int(features + atoms.log_weights.nbytes)


class BlockAtoms:
    """`LogPartition` of `WeightedAtoms` in blocks."""

    def __init__(self, blocks: DaskBlocks) -> None:
        self.blocks = blocks
        extent: Ranges = blocks.map_sum(find_extent)
        self.lowest, self.highest = extent.lowest, extent.highest
        self._phi = np.zeros(len(self.lowest))
        self._base: TiltSums = blocks.map_sum(sum_tilted, self._phi, True)
        self._at = replace(self._base, value=0.0)  # normalizes the weights of all draws
        self.mean, self.base_covariance = self._base.mean, self._base.covariance
        spread = np.sqrt(np.maximum(np.diag(self.base_covariance), 0.0))
        self.unit = find_units(spread, self.mean, self.lowest, self.highest)

    def evaluate(self, phi: Floats, last: bool = False) -> tuple[float, Floats]:
        """Return ``A(phi)`` and the expectation of the features under the tilt."""
        if not np.array_equal(self._phi, phi):
            self._look(phi, len(phi) <= FEW and not last)
        return self._at.value, self._at.mean

    def covariance(self, phi: Floats) -> Floats:
        """Return the covariance of the features under the tilt, shape (m, m)."""
        if not (np.array_equal(self._phi, phi) and self._at.covariance.size):
            self._look(phi, True)
        return self._at.covariance

    def _look(self, phi: Floats, second: bool) -> None:
        found: TiltSums = self.blocks.map_sum(sum_tilted, phi, second)
        self._phi, self._at = phi, replace(found, value=found.value - self._base.value)

    def standardized(self, blocks: Indices) -> tuple[BlockAtoms, Floats, Floats] | None:
        """Return standardized features with center and scale."""
        return standardize(self, blocks)

    def change_units(self, center: Floats | float, scale: Floats | float) -> BlockAtoms:
        """Return the log-partition function of ``(psi - center) / scale``."""
        return BlockAtoms(self.blocks.map(WeightedAtoms.change_units, center, scale))

    def mean_about(self, center: Floats) -> Floats:
        """Return the expectation of the features minus `center`."""
        return self.change_units(center, 1.0).mean


# --- blocks of draws


@dataclass(frozen=True)
class DrawBlock:
    """A block of draws; weights are stored separately."""

    variables: list[Any]  # (n, ...) each
    place: int

    def __len__(self) -> int:
        return int(self.variables[0].shape[0])


def read_draws(rows: list[list[Any]], first: int) -> DrawBlock | None:
    """Return a block of draws; None if it is empty."""
    variables = [arrays.join([part for part in parts if len(part)] or parts[:1]) for parts in zip(*rows, strict=True)]
    return DrawBlock(variables, first) if len(variables[0]) else None


@dataclass(frozen=True)
class Spec:
    """Features and the names of their variables."""

    features: Any
    names: list[str]
    named: bool

    def evaluate(self, block: DrawBlock, columns: Sequence[Any]) -> Features:
        """Return the features of a block, given its blocks of dask arrays."""
        variables = dict(zip(self.names, block.variables, strict=True))
        draws = as_draws(variables if self.named else variables[UNNAMED], chains=False)
        return evaluate_features(draws, _put_back(self.features, columns))


def evaluate_block(block: DrawBlock, spec: Spec, *columns: DrawBlock) -> Features:
    """Return the features of a block."""
    return spec.evaluate(block, [column.variables[0] for column in columns])


def join_features(features: Features, *others: Features) -> Features:
    """Return features side by side."""
    parts = [features, *others]
    return Features(arrays.join_columns([part.values for part in parts]), sum((part.names for part in parts), ()))


def weigh_atoms(features: Features, logs: DrawBlock | None) -> WeightedAtoms | None:
    """Return features and weights of a block; None if all weights are zero."""
    x = features.values
    weights = np.zeros(len(x)) if logs is None else arrays.to_host(logs.variables[0]).astype(np.float64)
    if np.any(np.isnan(weights)) or np.any(weights == np.inf):
        raise ValueError("log_weights holds NaN or +inf in block; a draw without weight has log-weight -inf")
    if not np.any(weights > -np.inf):
        return None
    return WeightedAtoms(x if arrays.lies_elsewhere(x) else np.ascontiguousarray(x, dtype=np.float64), weights)


def kind_of_atoms(atoms: WeightedAtoms | None) -> str | None:
    """Return the array kind of a block's features; None if all weights are zero."""
    if atoms is None:
        return None
    return kind_of(atoms.held) if arrays.lies_elsewhere(atoms.held) else "numpy"


def tilt_weights(features: Features, phi: Floats, logs: DrawBlock | None) -> DrawBlock:
    """Return the log-weights of a block under a tilt, in CPU memory."""
    psi = features.values
    there = arrays.lies_elsewhere(psi)
    scores = arrays.to_host(arrays_atoms.score_atoms(psi, phi)) if there else psi @ phi
    return DrawBlock([scores if logs is None else scores + arrays.to_host(logs.variables[0])], 0)


def read_weights(block: DrawBlock, logs: DrawBlock | None) -> Floats:
    """Return the log-weights of a block in CPU memory."""
    return np.zeros(len(block)) if logs is None else arrays.to_host(logs.variables[0])


def take_draws(block: DrawBlock, chosen: Indices) -> list[Any]:
    """Return draws of a block in CPU memory."""
    return [arrays.to_host(arrays.take_rows(values, chosen)) for values in block.variables]


# --- public class


@final
class Samples(Posterior):
    """Posterior draws on the workers of a Dask cluster, for `regbayes.regularize`.

    Draws are computed once and stored by the workers in CPU or GPU memory. Features are functions of a block of draws.
    Draws are treated as independent, and Monte Carlo errors are NaN. Contradictory constraints, and those that only a
    limit of tilts satisfies, end with a warning that the solver did not converge. Diagnostics of the weights copy them
    to the client, 8 bytes per draw.

    Parameters
    ----------
    draws : dask array of shape (n,) or (n, d), or mapping of dask arrays of shape (n, ...)
    log_weights : array of shape (n,), default=None
        Log importance weights up to a constant.
    client : distributed.Client, default=None
        Dask client; by default the current one.

    Examples
    --------
    >>> import dask.array as da
    >>> from regbayes import E, regularize
    >>> from regbayes.dask import Samples
    >>> draws = Samples({"mu": da.random.normal(size=10_000_000, chunks=1_000_000)})  # doctest: +SKIP
    >>> regularize(draws, E("mu") >= 0.5).multipliers  # doctest: +SKIP
    """

    is_drawn: ClassVar[bool] = True

    def __init__(self, draws: Any, log_weights: Any = None, *, client: Any = None) -> None:
        self.named = isinstance(draws, Mapping)
        self.variables = dict(draws) if self.named else {UNNAMED: draws}
        given = self.variables.values()
        if not self.variables or not all(isinstance(values, da.Array) and values.ndim for values in given):
            kinds = ", ".join(sorted({type(values).__name__ for values in given})) or "nothing"
            raise TypeError(
                f"`draws` must be a dask array, or a mapping of names to dask arrays; got {kinds}. Use "
                "regbayes.Samples for arrays in memory."
            )
        self._client, self._sizes = find_client(client), sizes_of(next(iter(given)))
        blocks = self._place(self.variables)
        self._filled = blocks.gather(exists)
        if not any(self._filled):
            raise ValueError("`draws` is empty.")
        self.blocks, self._weights = blocks.keep(self._filled), None
        if log_weights is not None:
            if np.ndim(log_weights) != 1:
                raise ValueError(f"log_weights must have one entry per draw, got shape {np.shape(log_weights)}")
            self._weights = self._place({"log_weights": log_weights}).keep(self._filled)

    def _place(self, given: Mapping[str, Any]) -> DaskBlocks:
        """Return blocks of arrays with the chunks of the draws."""
        columns = [chunks_of(_whole(align(values, self._sizes, name))) for name, values in given.items()]
        return place(self._client, columns, self._sizes, read_draws)

    def evaluate(self, features: Any) -> Features:
        """Evaluate functions of blocks, dask arrays, names or lists of these."""
        lazy: list[da.Array] = []
        spec = Spec(_take_out(features, lazy), list(self.variables), self.named)
        columns = [self._place({"a feature": values}).keep(self._filled) for values in lazy]
        values = self.blocks.map(evaluate_block, spec, *columns)
        return Features(values, values.gather(attrgetter("names"))[0])

    def join(self, parts: Sequence[Features]) -> Features:
        """Concatenate the columns of several sets of features."""
        first, *others = parts
        values = first.values.map(join_features, *(part.values for part in others)) if others else first.values
        return Features(values, sum((part.names for part in parts), ()))

    def bind(self, features: Features) -> BlockAtoms:
        """Return the log-partition function of evaluated features."""
        atoms = features.values.map(weigh_atoms, self._weights)
        kinds = atoms.gather(kind_of_atoms)
        if not any(kinds):
            raise ValueError("log_weights gives no draw any weight")
        check_kinds(kinds, "features")
        return BlockAtoms(atoms.keep([kind is not None for kind in kinds]))

    def tilt(self, features: Any, multipliers: ArrayLike) -> Samples:
        """Return ``q ∝ p exp<multipliers, features>``: the same draws, reweighted."""
        evaluated = as_features(self, features)
        phi = as_multipliers(multipliers, len(evaluated.names))
        other = object.__new__(type(self))
        known = {name: value for name, value in vars(self).items() if name not in ("_logs", "pareto_k")}
        vars(other).update(known, _weights=evaluated.values.map(tilt_weights, phi, self._weights))
        return other

    def expectation(self, features: Any) -> Floats:
        """Return the expectation of each feature, shape (m,)."""
        return self.bind(as_features(self, features)).mean.view(Expectations)

    def sd(self, features: Any) -> Floats:
        """Return the standard deviation of each feature, shape (m,)."""
        return np.sqrt(np.maximum(np.diag(self.bind(as_features(self, features)).base_covariance), 0.0))

    def quantile(self, features: Any, probabilities: ArrayLike) -> NoReturn:
        """Raise TypeError, because quantiles need all draws in one process."""
        raise TypeError(
            "quantiles need all draws in one place: take some, regbayes.Samples(posterior.sample(size=100_000))"
        )

    def sample(self, rng: np.random.Generator | int | None = None, size: int = 1) -> Any:
        """Resample draws by their weights, with replacement, as arrays in memory."""
        rng, totals = np.random.default_rng(rng), [logsumexp(own) for own in self._logs]
        numbers = rng.multinomial(size, np.exp(totals - logsumexp(totals))).tolist()
        chosen = [
            rng.choice(len(own), number, p=np.exp(own - total)) if number else np.zeros(0, dtype=np.int64)
            for own, total, number in zip(self._logs, totals, numbers, strict=True)
        ]
        parts, order = self.blocks.map(take_draws, chosen).gather(itself), rng.permutation(size)
        columns = [np.concatenate(column)[order] for column in zip(*parts, strict=True)]
        return dict(zip(self.variables, columns, strict=True)) if self.named else columns[0]

    @cached_property
    def _logs(self) -> list[Floats]:
        """Log-weights of each block, in the memory of the client."""
        return self.blocks.map(read_weights, self._weights).gather(itself)

    @property
    def log_weights(self) -> Floats:
        """Normalized log-weights of all draws, (n,)."""
        logs = np.concatenate(self._logs)
        return logs - logsumexp(logs)

    @property
    def n_atoms(self) -> int:
        """Number of draws, including those of weight zero."""
        return sum(map(len, self._logs))

    @property
    def effective_sample_size(self) -> float:
        """Kish's effective number of draws; autocorrelation within chains is not counted."""
        return effective_sample_size(self.log_weights)

    @cached_property
    def pareto_k(self) -> float:
        """Pareto k-hat of the weights; above 0.7 the draws are unreliable."""
        return pareto_k(self.log_weights)

    @property
    def tail_index(self) -> float:
        """Hill's tail index of the weights; above 1/3 standard errors may be too small."""
        return tail_index(self.log_weights)

    def __repr__(self) -> str:
        return f"regbayes.dask.Samples({', '.join(f'{name}: {v.shape}' for name, v in self.variables.items())})"


def _whole(values: da.Array) -> da.Array:
    """Return draws chunked only along the first axis."""
    return (
        values.rechunk(dict.fromkeys(range(1, values.ndim), -1)) if max(values.numblocks[1:], default=1) > 1 else values
    )


# --- dask arrays among features


@dataclass(frozen=True)
class _Column:
    """Placeholder for a dask array among features."""

    number: int


def _take_out(features: Any, found: list[da.Array]) -> Any:
    """Return features with placeholders for dask arrays, which are appended to a list."""
    if isinstance(features, da.Array):
        found.append(features)
        return _Column(len(found) - 1)
    return _rebuild(features, lambda part: _take_out(part, found))


def _put_back(spec: Any, values: Sequence[Any]) -> Any:
    return values[spec.number] if isinstance(spec, _Column) else _rebuild(spec, lambda part: _put_back(part, values))


def _rebuild(spec: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(spec, list | tuple):
        return [change(part) for part in spec]
    return spec.map(change) if isinstance(spec, Expression) else spec
