"""Draws on the workers of a Dask cluster, for `regbayes.regularize`: log-partition and moments as sums over blocks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, NoReturn, final

import dask
import dask.array as da
import numpy as np
from dask.sizeof import sizeof
from numpy.typing import ArrayLike
from scipy.special import logsumexp

from regbayes._types import Floats, Indices
from regbayes.dask.blocks import DaskBlocks, find_client, wait_for
from regbayes.dask.rows import HOST, check_kinds, delay_blocks, kind_of, place_blocks, read_collections
from regbayes.engine.source import Ranges
from regbayes.kernels import arrays, arrays_atoms
from regbayes.regularization.diagnostics import pareto_k, tail_index, tail_size
from regbayes.regularization.draws import UNNAMED, as_draws
from regbayes.regularization.features import Expression, Features, evaluate_features
from regbayes.regularization.log_partition import FEW, WeightedAtoms, find_units, standardize
from regbayes.regularization.posteriors.base import Expectations, Posterior, as_features, as_multipliers

# --- what is done with a block


@dataclass(frozen=True)
class TiltSums:
    """Log of the mass of draws under a tilt, their expectations and covariance. Those of two blocks are joined."""

    value: float
    mean: Floats  # (m,)
    covariance: Floats | None  # (m, m)

    def __add__(self, other: TiltSums) -> TiltSums:
        value = float(np.logaddexp(self.value, other.value))
        share, apart = float(np.exp(other.value - value)), other.mean - self.mean
        covariance = None
        if self.covariance is not None and other.covariance is not None:
            covariance = (1.0 - share) * self.covariance + share * other.covariance
            covariance += share * (1.0 - share) * np.outer(apart, apart)
        return TiltSums(value, self.mean + share * apart, covariance)


def read_atoms(x: Any, _y: Any, log_weights: Any, _task: Any, place: int, _n_columns: int) -> WeightedAtoms | None:
    """Return the draws of a block with their features, where these lie; None where none has a weight."""
    logs = np.zeros(len(x)) if log_weights is None else arrays.to_host(log_weights).astype(np.float64)
    if np.any(np.isnan(logs)) or np.any(logs == np.inf):
        raise ValueError(f"log_weights holds NaN or +inf in block {place}; a draw without weight has log-weight -inf")
    if not np.any(logs > -np.inf):
        return None
    return WeightedAtoms(x if arrays.lies_elsewhere(x) else np.ascontiguousarray(x, dtype=np.float64), logs)


def _kind_of_atoms(atoms: WeightedAtoms | None) -> str | None:
    """Return whose arrays the features of a block are; None where no draw has a weight."""
    if atoms is None:
        return None
    return kind_of(atoms.held) if arrays.lies_elsewhere(atoms.held) else HOST


def _itself(atoms: WeightedAtoms) -> WeightedAtoms:
    return atoms


def find_extent(atoms: WeightedAtoms) -> Ranges:
    """Return how far features reach."""
    return Ranges(atoms.lowest, atoms.highest)


def sum_tilted(atoms: WeightedAtoms, phi: Floats, second: bool) -> TiltSums:
    """Return the moments of a block under a tilt."""
    value, mean = atoms.evaluate(phi, last=not second)
    return TiltSums(value, mean, atoms.covariance(phi) if second else None)


def move_atoms(atoms: WeightedAtoms, center: Floats | float, scale: Floats | float) -> WeightedAtoms:
    """Return the draws with other features: less a center, in other units."""
    return atoms.change_units(center, scale)


@sizeof.register(WeightedAtoms)
def _size_of_atoms(atoms: WeightedAtoms) -> int:
    """Return the bytes that draws take in the memory of a worker; features on a device take none, and stay there."""
    features = 0 if arrays.lies_elsewhere(atoms.held) else atoms.held.nbytes
    return int(features + atoms.log_weights.nbytes)


# --- what the dual solver sees


class BlockAtoms:
    """Weighted draws on workers as a `regbayes.regularization.log_partition.LogPartition`: a look at them is a trip."""

    def __init__(self, rows: DaskBlocks) -> None:
        self.rows = rows
        extent: Ranges = rows.map_sum(find_extent)
        self.lowest, self.highest = extent.lowest, extent.highest
        self._phi = np.zeros(len(self.lowest))
        self._base: TiltSums = rows.map_sum(sum_tilted, self._phi, True)
        self._at = replace(self._base, value=0.0)  # weights of all draws sum to one
        self.mean = self._base.mean
        assert self._base.covariance is not None
        self.base_covariance = self._base.covariance
        spread = np.sqrt(np.maximum(np.diag(self.base_covariance), 0.0))
        self.unit = find_units(spread, self.mean, self.lowest, self.highest)

    @classmethod
    def place(cls, client: Any, values: da.Array, log_weights: da.Array | None) -> BlockAtoms:
        """Have workers hold features of draws with such log-weights."""
        given = read_collections(values, sample_weight=log_weights)
        rows = place_blocks(find_client(client), given, read_atoms)
        kinds = rows.gather(_kind_of_atoms)
        if not any(kinds):
            raise ValueError("log_weights gives no draw any weight")
        check_kinds(kinds, "features")
        return cls(rows if all(kinds) else rows.change(_itself, [() if kind else None for kind in kinds]))

    def evaluate(self, phi: Floats, last: bool = False) -> tuple[float, Floats]:
        """Return ``A(phi)`` and the expectation of the features under the tilt."""
        if not np.array_equal(self._phi, phi):
            self._look(phi, len(phi) <= FEW and not last)
        return self._at.value, self._at.mean

    def covariance(self, phi: Floats) -> Floats:
        """Return the covariance of the features under the tilt, shape (m, m)."""
        if not np.array_equal(self._phi, phi) or self._at.covariance is None:
            self._look(phi, True)
        assert self._at.covariance is not None
        return self._at.covariance

    def _look(self, phi: Floats, second: bool) -> None:
        found: TiltSums = self.rows.map_sum(sum_tilted, phi, second)
        self._phi, self._at = phi, replace(found, value=found.value - self._base.value)

    def standardized(self, blocks: Indices) -> tuple[BlockAtoms, Floats, Floats] | None:
        """Return the same in the solver's own units, center and scale."""
        return standardize(self, blocks)

    def change_units(self, center: Floats | float, scale: Floats | float) -> BlockAtoms:
        """Return the same with features ``(psi - center) / scale``."""
        n_blocks = sum(len(group.blocks) for group in self.rows.groups)
        return BlockAtoms(self.rows.change(move_atoms, [(center, scale)] * n_blocks))

    def mean_about(self, center: Floats) -> Floats:
        """Return the expectation of the features less some numbers."""
        return self.change_units(center, 1.0).mean


# --- what users see


@final
class Samples(Posterior):
    """A posterior known by draws that lie in blocks on a cluster, for `regbayes.regularize`.

    As `regbayes.Samples`, but draws and features stay where they are, in the memory of workers or of their devices:
    what the solver needs are sums over blocks. Each draw counts as an independent one, errors of Monte Carlo are not
    estimated (they are NaN), and constraints that only a limit of tilts can meet, or that contradict each other, are
    not told from slow ones: the solver stops with a warning.

    Parameters
    ----------
    draws : dask array of shape (n,) or (n, d), or mapping of dask arrays of shape (n, ...)
    log_weights : array of shape (n,), default=None
        Log importance weights up to a constant.
    client : distributed.Client, default=None
        The default client, if none is given.

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
        variables = dict(draws) if self.named else {UNNAMED: draws}
        if not variables or not all(isinstance(values, da.Array) and values.ndim for values in variables.values()):
            kinds = ", ".join(sorted({type(values).__name__ for values in variables.values()})) or "nothing"
            raise TypeError(
                f"draws must be a dask array, or a mapping of names to dask arrays, got {kinds}. For arrays in memory "
                "there is regbayes.Samples"
            )
        first = _drop_empty(next(iter(variables.values())))
        self.variables = {name: _cut(values, first, name) for name, values in variables.items()}
        self.log_weights = None if log_weights is None else _cut(da.asarray(log_weights), first, "log_weights")
        if self.log_weights is not None and self.log_weights.ndim != 1:
            raise ValueError(f"log_weights must have one entry per draw, got shape {self.log_weights.shape}")
        self.client = client

    # A function sees one block of the draws at a time.

    def evaluate(self, features: Any) -> Features:
        """Evaluate features of every draw, lazily: functions of a block of draws, dask arrays, names, or lists."""
        lazy: list[da.Array] = []
        spec = _take_out(features, lazy, next(iter(self.variables.values())))
        parts = list(zip(*map(delay_blocks, (*self.variables.values(), *lazy)), strict=True))
        names = list(self.variables)
        try_block, evaluate = (dask.delayed(function, pure=False) for function in (_try_block, _evaluate_block))
        tried = (self._compute([try_block(list(own), names, self.named, spec)])[0] for own in parts)
        example: tuple[str, ...] | None = next(filter(None, tried), None)
        if example is None:
            raise ValueError("there are no draws: all blocks are empty")
        m = len(example)
        values = [evaluate(list(own), names, self.named, spec, m) for own in parts]
        return Features(self._gather_blocks(values, m), example)

    def _gather_blocks(self, blocks: Sequence[Any], m: int) -> da.Array:
        """Return features (n, m) of the blocks of draws as one array, which is lazy."""
        sizes = next(iter(self.variables.values())).chunks[0]
        parts = [
            da.from_delayed(own, shape=(size, m), dtype=np.float64) for own, size in zip(blocks, sizes, strict=True)
        ]
        return da.concatenate(parts, allow_unknown_chunksizes=True)

    def _compute(self, parts: Sequence[Any]) -> list[Any]:
        """Have workers compute what is small."""
        client = find_client(self.client)
        tasks = client.compute(list(parts))
        wait_for(client, tasks)
        return client.gather(tasks)

    def join(self, parts: Sequence[Features]) -> Features:
        """Put the columns of several sets of features side by side."""
        if len(parts) == 1:
            return parts[0]
        names = tuple(name for part in parts for name in part.names)
        join = dask.delayed(_join_columns, pure=False)
        blocks = zip(*(delay_blocks(part.values) for part in parts), strict=True)
        return Features(self._gather_blocks([join(list(own)) for own in blocks], len(names)), names)

    def bind(self, features: Features) -> BlockAtoms:
        """Have workers evaluate and hold the features."""
        return BlockAtoms.place(self.client, features.values, self.log_weights)

    def tilt(self, features: Any, multipliers: ArrayLike) -> Samples:
        """Return ``q ∝ p exp<multipliers, features>``: the same draws with other weights, which workers hold."""
        psi = as_features(self, features).values
        phi, beside = (
            as_multipliers(multipliers, psi.shape[1]),
            () if self.log_weights is None else (self.log_weights, "n"),
        )
        logs = da.blockwise(
            _score,
            "n",
            psi,
            "nm",
            *beside,
            phi=phi,
            align_arrays=False,
            concatenate=False,
            dtype=float,
            meta=np.empty(0),
        )
        (held,) = find_client(self.client).persist([logs])
        return self._weighted(held)

    def _weighted(self, log_weights: da.Array) -> Samples:
        other = object.__new__(type(self))
        other.__dict__.update(variables=self.variables, named=self.named, client=self.client, log_weights=log_weights)
        return other

    def expectation(self, features: Any) -> Floats:
        """Return the expectation of each feature, shape (m,)."""
        return self.bind(as_features(self, features)).mean.view(Expectations)

    def sd(self, features: Any) -> Floats:
        """Return the standard deviation of each feature, shape (m,)."""
        return np.sqrt(np.maximum(np.diag(self.bind(as_features(self, features)).base_covariance), 0.0))

    def quantile(self, features: Any, probabilities: ArrayLike) -> NoReturn:
        """Refuse: they need all draws in one place."""
        raise TypeError(
            "quantiles need all draws in one place: take some, regbayes.Samples(posterior.sample(size=100_000))"
        )

    def sample(self, rng: np.random.Generator | int | None = None, size: int = 1) -> Any:
        """Draw by the weights, with replacement, as arrays in memory."""
        rng, masses = np.random.default_rng(rng), self._masses
        numbers = rng.multinomial(
            size, np.exp([mass.log_total - logsumexp([m.log_total for m in masses]) for mass in masses])
        )
        seeds = rng.integers(0, 2**63, len(masses))
        logs = [None] * len(masses) if self.log_weights is None else delay_blocks(self.log_weights)
        blocks = [delay_blocks(values) for values in self.variables.values()]
        choose = dask.delayed(_choose, pure=False)
        chosen = [
            choose(list(own), log, int(number), int(seed))
            for *own, log, number, seed in zip(*blocks, logs, numbers, seeds, strict=True)
            if number
        ]
        parts = self._compute(chosen)
        order = rng.permutation(size)
        columns = [np.concatenate(column)[order] for column in zip(*parts, strict=True)]
        return dict(zip(self.variables, columns, strict=True)) if self.named else columns[0]

    @cached_property
    def _masses(self) -> list[Mass]:
        first = next(iter(self.variables.values()))
        logs = [None] * len(first.chunks[0]) if self.log_weights is None else delay_blocks(self.log_weights)
        weigh = dask.delayed(_weigh, pure=False)
        return self._compute([weigh(own, log) for own, log in zip(delay_blocks(first), logs, strict=True)])

    @property
    def n_atoms(self) -> int:
        """How many draws there are, those of weight zero too."""
        return sum(mass.n for mass in self._masses)

    @property
    def effective_sample_size(self) -> float:
        """Effective number of draws that the weights leave, Kish's; chains that repeat themselves are not seen."""
        totals, squares = ([getattr(m, name) for m in self._masses] for name in ("log_total", "log_squares"))
        return float(np.exp(2.0 * logsumexp(totals) - logsumexp(squares)))

    @cached_property
    def pareto_k(self) -> float:
        """The k-hat of the weights' tail: above 0.7 the draws are unreliable."""
        return -math.inf if self.log_weights is None else pareto_k(self._largest, n_draws=self.n_atoms)

    @property
    def tail_index(self) -> float:
        """Hill's tail index of the weights: above 1/3 standard errors may be too small."""
        return 0.0 if self.log_weights is None else tail_index(self._largest, n_draws=self.n_atoms)

    @cached_property
    def _largest(self) -> Floats:
        """The log-weights of the tail, and one more."""
        size = tail_size(self.n_atoms) + 1
        largest = dask.delayed(_find_largest, pure=False)
        tops = np.concatenate(self._compute([largest(logs, size) for logs in delay_blocks(self.log_weights)]))
        return _find_largest(tops, size)

    def __repr__(self) -> str:
        return f"regbayes.dask.Samples({', '.join(f'{name}: {v.shape}' for name, v in self.variables.items())})"


@dataclass(frozen=True)
class Mass:
    """How many draws a block has, and the logs of the sums of their weights and of the squares of these."""

    n: int
    log_total: float
    log_squares: float


def _weigh(values: Any, logs: Any) -> Mass:
    n = len(values)
    if logs is None:
        return Mass(n, *([math.log(n)] * 2 if n else [-math.inf] * 2))
    if not n:
        return Mass(0, -math.inf, -math.inf)
    logs = arrays.to_host(logs)
    return Mass(n, float(logsumexp(logs)), float(logsumexp(2.0 * logs)))


def _find_largest(logs: Any, size: int) -> Floats:
    logs = arrays.to_host(logs)
    return logs if len(logs) <= size else np.partition(logs, len(logs) - size)[len(logs) - size :]


def _choose(values: list[Any], logs: Any, number: int, seed: int) -> list[Any]:
    n, weights = len(values[0]), None
    if logs is not None:
        logs = arrays.to_host(logs)
        weights = np.exp(logs - logsumexp(logs))
    chosen = np.random.default_rng(seed).choice(n, size=number, p=weights)
    return [own[chosen] if arrays.is_plain(own) else arrays.to_host(arrays.take_rows(own, chosen)) for own in values]


def _score(psi: list[Any], logs: Any = None, *, phi: Floats) -> Floats:
    """Return the log-weights of a block's draws under a tilt, on the host."""
    (own,) = psi  # in one chunk of columns
    scores = arrays.to_host(arrays_atoms.score_atoms(own, None, phi)) if arrays.lies_elsewhere(own) else own @ phi
    return scores if logs is None else scores + arrays.to_host(logs)


def _drop_empty(values: da.Array) -> da.Array:
    """Return an array without the blocks that are known to be empty, which Dask would lose on the way."""
    filled = [place for place, size in enumerate(values.chunks[0]) if size != 0]  # NaN where a block is not counted
    return values if len(filled) in (0, len(values.chunks[0])) else values.blocks[filled]


def _cut(values: da.Array, first: da.Array, name: str) -> da.Array:
    """Return draws cut as the first variable is, and along the draws alone."""
    values = _drop_empty(values)
    alone = dict.fromkeys(range(1, values.ndim), -1)
    values = values.rechunk(alone) if values.ndim > 1 and max(values.numblocks[1:]) > 1 else values
    known = not np.any(np.isnan([*values.chunks[0], *first.chunks[0]]))
    if known and values.shape[0] != first.shape[0]:
        raise ValueError(f"{name} has {values.shape[0]} draws and others have {first.shape[0]}")
    if not known and len(values.chunks[0]) != len(first.chunks[0]):
        raise ValueError(f"{name} is cut otherwise, and draws have not been counted: compute_chunk_sizes() counts them")
    return values.rechunk({0: first.chunks[0]}) if known and values.chunks[0] != first.chunks[0] else values


@dataclass(frozen=True)
class _Place:
    """Where an array stood among features."""

    number: int


def _take_out(features: Any, found: list[da.Array], first: da.Array) -> Any:
    """Return features with places where dask arrays were, which are put into a list."""
    if isinstance(features, da.Array):
        found.append(_cut(features, first, "a feature"))
        return _Place(len(found) - 1)
    return _rebuild(features, lambda part: _take_out(part, found, first))


def _put_back(spec: Any, values: Sequence[Any]) -> Any:
    return values[spec.number] if isinstance(spec, _Place) else _rebuild(spec, lambda part: _put_back(part, values))


def _rebuild(spec: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(spec, list | tuple):
        return [change(part) for part in spec]
    if isinstance(spec, Expression):
        return spec.map(change)
    return spec


def _evaluate(parts: Sequence[Any], names: list[str], named: bool, spec: Any) -> Features:
    variables = dict(zip(names, parts[: len(names)], strict=True))
    draws = as_draws(variables if named else variables[UNNAMED], chains=False)
    return evaluate_features(draws, _put_back(spec, parts[len(names) :]))


def _evaluate_block(parts: list[Any], names: list[str], named: bool, spec: Any, m: int) -> Any:
    return _evaluate(parts, names, named, spec).values if len(parts[0]) else np.empty((0, m))


def _join_columns(parts: list[Any]) -> Any:
    return arrays.join_columns(parts) if len(parts[0]) else np.empty((0, sum(part.shape[1] for part in parts)))


def _try_block(parts: list[Any], names: list[str], named: bool, spec: Any) -> tuple[str, ...]:
    """Return the names of the features, from two draws; nothing where a block is empty."""
    return _evaluate([part[:2] for part in parts], names, named, spec).names if len(parts[0]) else ()
