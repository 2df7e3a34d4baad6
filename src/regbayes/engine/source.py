"""Sources of samples: arrays in memory, in a file or on a device.

A fit computes statistics of all samples (`Source.summarize`), copies a subsample to local memory (`Source.sample`), and
converts the blocks in place to the form that the model takes (`Source.persist`). Every further pass over all samples
sums a function of blocks (`Blocks.map_sum`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import issparse, vstack

from regbayes._types import Floats, Integers
from regbayes.engine.executor import Executor, Serial, row_blocks
from regbayes.kernels.arrays import find_ranges, is_plain, join, pieces, take_rows, to_host

DEVICE_BLOCK_ROWS = 1 << 20  # samples per block on a device, where few large operations are faster


class Blocks(Protocol):
    """Blocks of samples that stay on their device or worker."""

    @property
    def is_local(self) -> bool:
        """Whether results of the size of the samples may be gathered."""

    def broadcast(self, value: Any) -> Any:
        """Return a handle of a value for the arguments of several calls, so that it is sent only once."""

    def map_sum(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return the sum of ``function(block, *arguments)`` in block order, for any number of workers."""

    def gather(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Return ``function(block, *arguments)`` of every block, in order."""


class Source(Protocol):
    """Samples on any device or worker."""

    def __len__(self) -> int: ...

    def summarize(self, measure: Callable[..., Any], *arguments: Any) -> Any:
        """Return the sum of ``measure(samples, *arguments)`` over blocks of samples, in order."""

    def sample(self, n_samples: int, strata: Strata) -> Samples:
        """Return about ``n_samples`` samples in local memory, ordered so that every prefix is a sample."""

    def persist(self, make: Callable[..., Any], *arguments: Any) -> Blocks:
        """Return the blocks ``make(samples, *arguments)``, kept on the device or worker of each block."""


@dataclass(frozen=True)
class Samples:
    """A block of samples."""

    X: Any  # (n, D), dense or sparse, in memory, in a mapped file or on a device
    y: NDArray[Any] | None = None  # (n,) or (n, outputs)
    weights: Floats | None = None  # (n,), positive
    task: NDArray[Any] | None = None  # (n,): the task of each sample in multi-task data

    def __len__(self) -> int:
        return int(self.X.shape[0])

    def take(self, rows: Any) -> Samples:
        """Return selected samples."""
        if is_plain(self.X):
            X = self.X[rows]
        else:
            X = self.X[rows, :] if isinstance(rows, slice) else take_rows(self.X, rows)
        return Samples(X, *(None if part is None else part[rows] for part in (self.y, self.weights, self.task)))


def join_samples(parts: Sequence[Samples]) -> Samples:
    """Concatenate samples whose arrays are of one library."""
    parts = [part for part in parts if len(part)] or parts[:1]
    if len(parts) == 1:
        return parts[0]
    arrays = [part.X for part in parts]
    if hasattr(arrays[0], "concat"):  # only documents on a device have this method
        X = arrays[0].concat(arrays)
    else:
        X = vstack(arrays, format="csr") if issparse(arrays[0]) else join(arrays)
    columns = zip(*((part.y, part.weights, part.task) for part in parts), strict=True)
    return Samples(X, *(None if column[0] is None else np.concatenate(column) for column in columns))


@dataclass(frozen=True)
class LocalBlocks:
    """Blocks in this process.

    Parameters
    ----------
    blocks : sequence
    executor : Executor, default=Serial()
    make : callable, default=None
        Converts an item of ``blocks``, such as a slice of a file, to the block that functions receive, in each call. By
        default blocks are passed directly.

    Examples
    --------
    >>> import numpy as np
    >>> from regbayes.engine import LocalBlocks, row_blocks
    >>> X = np.ones((3000, 2))
    >>> LocalBlocks(row_blocks(len(X)), make=lambda rows: X[rows]).map_sum(np.sum, 0)
    array([3000., 3000.])
    """

    blocks: Sequence[Any]
    executor: Executor = field(default_factory=Serial)
    make: Callable[[Any], Any] | None = None
    is_local: bool = True

    def broadcast(self, value: Any) -> Any:
        """Return the value."""
        return value

    def map_sum(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return the sum of ``function(block, *arguments)`` in the order of blocks."""
        return self.executor.map_reduce(lambda block: function(self._made(block), *arguments), self.blocks)

    def gather(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Return ``function(block, *arguments)`` of every block."""
        return self.executor.map(lambda block: function(self._made(block), *arguments), self.blocks)

    def _made(self, block: Any) -> Any:
        return block if self.make is None else self.make(block)


def cut_rows(X: Any, wide: bool = False) -> list[slice]:
    """Return the slices of blocks of samples, which depend on their number and device only."""
    n = int(X.shape[0])
    return row_blocks(n, wide) if is_plain(X) else pieces(n, DEVICE_BLOCK_ROWS)


@dataclass(frozen=True)
class ArraySource:
    """Samples as arrays in memory, in a mapped file, or on a device."""

    samples: Samples
    executor: Executor = field(default_factory=Serial)

    def __len__(self) -> int:
        return len(self.samples)

    def blocks(self) -> list[Samples]:
        """Return the samples in blocks of fixed size, without copies."""
        return list(map(self.samples.take, cut_rows(self.samples.X)))

    def summarize(self, measure: Callable[..., Any], *arguments: Any) -> Any:
        """Return the sum of ``measure(samples, *arguments)`` over blocks of samples."""
        return LocalBlocks(self.blocks(), self.executor).map_sum(measure, *arguments)

    def sample(self, n_samples: int, strata: Strata) -> Samples:
        """Return about ``n_samples`` samples, ordered so that every prefix is a sample."""
        drawn = draw(self.samples, 0, strata.of, strata.limits(n_samples))
        found = drawn.samples.take(strata.select([drawn], n_samples))
        return found if is_plain(found.X) else replace(found, X=to_host(found.X).astype(np.float64))

    def persist(self, make: Callable[..., Any], *arguments: Any) -> LocalBlocks:
        """Return ``make(samples, *arguments)`` of every block."""
        blocks = LocalBlocks(self.blocks(), self.executor)
        return replace(blocks, blocks=blocks.gather(make, *arguments))


@dataclass(frozen=True)
class Ranges:
    """Minimum and maximum of every column."""

    lowest: Floats  # (k,)
    highest: Floats  # (k,)

    def __add__(self, other: Ranges) -> Ranges:
        return Ranges(np.minimum(self.lowest, other.lowest), np.maximum(self.highest, other.highest))

    def array(self) -> Floats:
        """Return two rows with these ranges, (2, k)."""
        return np.stack([self.lowest, self.highest])

    @classmethod
    def of(cls, parts: Sequence[Any]) -> Ranges:
        """Return the ranges over nonempty arrays (n, k) of any library."""
        plain = isinstance(parts[0], np.ndarray)
        lowest, highest = zip(
            *((part.min(axis=0), part.max(axis=0)) if plain else find_ranges(part) for part in parts), strict=True
        )
        return cls(np.min(lowest, axis=0), np.max(highest, axis=0))


# --- subsamples that do not depend on the blocks


@dataclass(frozen=True)
class Strata:
    """Strata of the samples, sampled in proportion to their sizes."""

    sizes: Integers  # (kinds,): number of samples of each stratum
    of: Callable[[Samples], Integers]  # returns the stratum of each sample of a block

    @classmethod
    def alone(cls, n_samples: int) -> Strata:
        """Return a single stratum."""
        return cls(np.array([n_samples]), same_stratum)

    def wanted(self, n_samples: int) -> Integers:
        """Return the target number of samples of each stratum, (kinds,), at least one."""
        n_all = max(int(self.sizes.sum()), 1)
        return np.minimum(np.ceil(self.sizes * min(1.0, n_samples / n_all)), self.sizes).astype(np.int64)

    def limits(self, n_samples: int) -> Floats:
        """Return the fraction of each stratum to draw, (kinds,), larger than needed to allow for chance."""
        wanted = self.wanted(n_samples)
        return (wanted + 5.0 * np.sqrt(wanted) + 10.0) / np.maximum(self.sizes, 1)

    def select(self, drawn: Sequence[Drawn], n_samples: int) -> Integers:
        """Select from the drawn samples, ordered so that every prefix is a sample."""
        kinds, keys = np.concatenate([part.kinds for part in drawn]), np.concatenate([part.keys for part in drawn])
        order, wanted = np.lexsort((keys, kinds)), self.wanted(n_samples)
        starts = np.searchsorted(kinds[order], np.arange(len(self.sizes)))
        kept = np.sort(order[np.arange(len(order)) - starts[kinds[order]] < wanted[kinds[order]]])
        return kept[order_sample(kinds[kept], len(kept))]


@dataclass(frozen=True)
class Drawn:
    """Samples drawn from a block."""

    samples: Samples
    kinds: Integers  # (n,)
    keys: Floats  # (n,): uniform in [0, 1)


def draw(block: Samples, first: int, kinds_of: Callable[[Samples], Integers], limits: Floats) -> Drawn:
    """Draw a fraction of each stratum by hashing the sample numbers, which begin at ``first``."""
    keys, kinds = uniform(np.arange(first, first + len(block))), kinds_of(block)
    drawn = np.flatnonzero(keys < limits[kinds])
    return Drawn(block.take(drawn), kinds[drawn], keys[drawn])


def uniform(numbers: Integers) -> Floats:
    """Hash sample numbers to [0, 1) with the finalizer of SplitMix64."""
    mixed = (numbers.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    return (mixed ^ (mixed >> np.uint64(31))).astype(np.float64) / 2.0**64


def same_stratum(block: Samples) -> Integers:
    """Return zero for every sample of a single stratum."""
    return np.zeros(len(block), dtype=np.int64)


def order_sample(kinds: Integers | None, n_rows: int) -> Integers:
    """Return an order of the rows in which every prefix is stratified, shape (n,)."""
    shuffled = np.random.default_rng(0).permutation(n_rows)
    if kinds is None:
        return shuffled
    by_kind = shuffled[np.argsort(kinds[shuffled], kind="stable")]
    sizes = np.unique(kinds, return_counts=True)[1]
    rank = np.arange(n_rows) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return by_kind[np.argsort((rank + 0.5) / np.repeat(sizes, sizes), kind="stable")]
