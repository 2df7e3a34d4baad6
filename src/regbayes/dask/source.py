"""Samples in Dask arrays or data frames, as a `regbayes.engine.source.Source`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
from dask.delayed import Delayed
from dask.sizeof import sizeof
from distributed import Client
from numpy.typing import NDArray
from scipy.sparse import csr_array, issparse
from scipy.sparse import hstack as hstack_sparse
from sklearn.utils.validation import check_array, column_or_1d

from regbayes._types import Floats, Integers
from regbayes.dask.blocks import DaskBlocks, exists, itself, wait_for
from regbayes.engine.source import Drawn, Samples, Strata, draw, join_samples
from regbayes.estimators._bases import find_missing
from regbayes.estimators._topics import check_range, numbers_of, read_device_counts
from regbayes.kernels.arrays import is_plain, join, namespace_of, to_host
from regbayes.models.medlda.topics import DeviceCorpus

MAX_BLOCKS = 64  # maximum number of blocks; more chunks are joined
COUNT_ROWS = "X.compute_chunk_sizes() counts the rows of an array; a data frame has X.to_dask_array(lengths=True)"


# --- chunks of collections


def is_collection(X: Any) -> bool:
    """Return whether X is an array or a data frame of Dask."""
    return isinstance(X, da.Array | dd.DataFrame)


def check_columns(X: Any) -> Any:
    """Return samples with all columns in each chunk; raise an error for invalid collections."""
    if not is_collection(X):
        raise TypeError(
            f"`X` must be a dask array or DataFrame; got {type(X).__name__}. Use the class of the same name in "
            "regbayes for arrays in memory, or dask.array.from_array(X, chunks=(100_000, -1))."
        )
    if X.ndim != 2:
        raise ValueError(f"`X` must have two dimensions; got {X.ndim}.")
    if not isinstance(X, da.Array):
        from pandas.api.types import is_bool_dtype, is_numeric_dtype, is_object_dtype

        for name, kind in X.dtypes.items():
            if not (is_numeric_dtype(kind) or is_bool_dtype(kind) or is_object_dtype(kind)):
                raise ValueError(
                    f"Column {name!r} of `X` has dtype {kind}, which is not numeric. Drop the column or encode it, "
                    "for example with dask.dataframe.get_dummies."
                )
    elif np.isnan(X.shape[1]):
        raise ValueError(f"The number of columns of `X` is not known. {COUNT_ROWS}.")
    if not X.shape[1]:
        raise ValueError("`X` has no columns.")
    return join_columns(X)


def join_columns(values: Any) -> Any:
    """Return an array with all columns in each chunk, also for PyTorch chunks."""
    if not isinstance(values, da.Array) or values.ndim < 2 or values.numblocks[1] == 1:
        return values
    axes = {"new_axes": {"k": values.shape[1]}, "concatenate": False}
    return da.blockwise(_join_chunks, "nk", values, "nd", **axes, dtype=values.dtype, meta=values._meta)


def _join_chunks(parts: list[Any]) -> Any:
    return hstack_sparse(parts, format="csr") if issparse(parts[0]) else join(parts, axis=1)


def sizes_of(X: Any) -> list[float]:
    """Return the number of rows of each chunk, NaN if unknown."""
    return [float(size) for size in X.chunks[0]] if isinstance(X, da.Array) else [np.nan] * X.npartitions


def chunks_of(values: Any) -> list[Delayed]:
    """Return the chunks of a collection, unoptimized to keep the partitions."""
    return np.asarray(values.to_delayed(optimize_graph=isinstance(values, da.Array)), dtype=object).ravel().tolist()


def align(values: Any, sizes: list[float], name: str) -> Any:
    """Return targets, weights or tasks with the same chunks as the samples."""
    known = not np.any(np.isnan(sizes))
    if not isinstance(values, da.Array | dd.Series | dd.DataFrame):
        array = np.asarray(values)
        if not known:
            raise ValueError(f"`{name}` is in memory, and the rows of `X` have not been counted. {COUNT_ROWS}.")
        _check_length(len(array), sizes, name)
        return da.from_array(array, chunks=(tuple(map(int, sizes)), *array.shape[1:]))
    values = join_columns(values)
    own = sizes_of(values)
    if known and not np.any(np.isnan(own)):
        _check_length(sum(own), sizes, name)
        if own != sizes:
            here = values.map_blocks(read_plain, dtype=values.dtype, meta=values._meta)  # Dask cannot join others
            return here.rechunk({0: tuple(map(int, sizes))})
    if len(own) != len(sizes):
        raise ValueError(
            f"`X` has {len(sizes)} chunks and `{name}` has {len(own)}, and not all of their rows have been counted. "
            f"Cut them alike, or count them: {COUNT_ROWS}."
        )
    return values


def _check_length(n_rows: float, sizes: list[float], name: str) -> None:
    if n_rows != sum(sizes):
        raise ValueError(f"X has {sum(sizes):.0f} rows, but {name} has {n_rows:.0f}")


def place(client: Client, columns: list[list[Delayed | None]], sizes: list[float], read: Callable[..., Any]) -> Any:
    """Return ``read(rows, place)`` of every chunk as `DaskBlocks`.

    ``columns`` contains the chunks of each collection and ``rows`` those of one block.
    """
    known = np.where(np.isnan(sizes), 1.0, sizes)
    middles = np.cumsum(known) - 0.5 * known
    block = np.minimum((middles / max(known.sum(), 1.0) * MAX_BLOCKS).astype(int), MAX_BLOCKS - 1)
    block = np.arange(len(sizes)) if len(sizes) <= MAX_BLOCKS else np.unique(block, return_inverse=True)[1]
    edges = np.searchsorted(block, np.arange(block[-1] + 2)).tolist()
    make, rows = dask.delayed(read, pure=False), [list(row) for row in zip(*columns, strict=True)]
    futures = client.compute([make(rows[first:end], first) for first, end in pairwise(edges)])
    wait_for(client, futures)
    return DaskBlocks.spread(client, futures, np.add.reduceat(known, edges[:-1]).tolist())


# --- on the workers


def _check_weights(weights: Any) -> Floats:
    options = {"ensure_2d": False, "ensure_min_samples": 0, "input_name": "sample_weight"}
    counts: Floats = check_array(np.asarray(weights), dtype=np.float64, **options)
    if np.any(counts < 0):
        raise ValueError("sample_weight has negative values")
    if counts.ndim != 1:
        raise ValueError(f"sample_weight has the shape {counts.shape}; it must have one number for each row")
    return counts


def read_plain(values: Any) -> Any:
    """Convert GPU arrays to NumPy, and return other values unchanged."""
    return values if is_plain(values) else to_host(values)


def check_floats(x: Any) -> Floats:
    """Return samples in CPU memory and double precision."""
    if issparse(x):
        raise TypeError("X is sparse, and must be dense here: use X.map_blocks(lambda rows: rows.toarray())")
    return _check_numbers(x, dtype=np.float64, order="C")


def _check_numbers(x: Any, **options: Any) -> Any:
    try:
        return check_array(x, ensure_min_samples=0, input_name="X", **options)
    except (TypeError, ValueError) as error:
        why = str(error).splitlines()[0].rstrip(".")
        remedy = "" if "NaN" in why or "infinity" in why else ". X must hold numbers in every block"
        raise type(error)(why + remedy) from None


def check_there(x: Any) -> Any:
    """Return samples on their device; raise an error if they are not finite floats."""
    if numbers_of(x) is not x or "sparse" in str(getattr(x, "layout", "")):
        raise TypeError("X is sparse, and samples on a device must be dense")
    xp = namespace_of(x)
    if x.dtype not in (xp.float64, xp.float32):
        raise TypeError(f"X has type {x.dtype} on {getattr(x, 'device', 'a device')}: give it as float32 or float64")
    if not bool(xp.all(xp.isfinite(x))):
        raise ValueError("X contains NaN or infinity")
    return x


def check_counts(x: Any) -> Any:
    """Return word counts as a CSR matrix in single precision."""
    counts = csr_array(_check_numbers(x, accept_sparse="csr", dtype="numeric"))
    if counts.nnz and counts.data.min() < 0:
        raise ValueError("Negative values in X, which must hold counts of words")
    counts.sum_duplicates()
    counts.eliminate_zeros()
    check_range(float(counts.data.min(initial=1)), float(counts.data.max(initial=0)))
    return csr_array((counts.data.astype(np.float32, copy=False), counts.indices, counts.indptr), shape=counts.shape)


def check_counts_there(x: Any) -> DeviceCorpus:
    """Return word counts on a device as documents on the same device."""
    return read_device_counts(x, numbers_of(x), allow_empty=True)


def read_values(values: Any) -> NDArray[Any]:
    """Return targets, weights or tasks as a NumPy array."""
    if issparse(values):
        values = values.toarray()
    found = values.to_numpy() if hasattr(values, "to_numpy") else np.asarray(values)
    return found if found.dtype.kind in "biufUSO" else found.astype(object)


def read_targets(y: Any) -> NDArray[Any]:
    """Return the targets of a chunk: a vector, or a matrix of several columns."""
    values = read_values(y)
    if values.ndim == 2 and values.shape[1] == 1:
        values = column_or_1d(values)
    if values.dtype.kind == "f" and not np.all(np.isfinite(values)):
        raise ValueError("y contains NaN or infinity")
    if values.dtype.kind == "O" and find_missing(values).any():
        raise ValueError("y has missing values: drop these samples, or give them a label of their own")
    return values


def read_missing(y: Any) -> NDArray[Any]:
    """Return the targets of a chunk, allowing missing values."""
    values = read_values(y)
    if values.dtype.kind == "f" and np.any(np.isinf(values)):
        raise ValueError("y contains infinity")
    return values


@dataclass(frozen=True)
class Reader:
    """Callable that validates a chunk on a worker."""

    n_columns: int
    here: Callable[[Any], Any] = check_floats  # validates a chunk of `X` in CPU memory
    there: Callable[[Any], Any] = check_there  # validates a chunk of PyTorch or CuPy on its device
    targets: Callable[[Any], NDArray[Any]] = read_targets  # reads a chunk of `y`
    __name__ = "read_samples"  # task name shown by Dask

    def __call__(self, rows: list[list[Any]], first: int) -> Samples:
        """Return a block of validated samples; targets, weights and tasks are copied to the CPU."""
        return join_samples([self._read_chunk(first + place, *row) for place, row in enumerate(rows)])

    def _read_chunk(self, place: int, x: Any, y: Any, weights: Any, task: Any) -> Samples:
        try:
            if x.ndim != 2:
                raise ValueError(f"X has {x.ndim} dimension(s)")
            X = self.here(x) if is_plain(x) else self.there(x)
            if X.shape[1] != self.n_columns:
                raise ValueError(f"X has {X.shape[1]} columns, but {self.n_columns} in all")
            y, weights, task = map(read_plain, (y, weights, task))
            counts = None if weights is None else _check_weights(weights)
            found = Samples(
                X, None if y is None else self.targets(y), counts, None if task is None else read_values(task)
            )
            for name, values in {"y": found.y, "task": found.task, "sample_weight": counts}.items():
                if values is not None and len(values) != len(found):
                    raise ValueError(f"X has {len(found)} rows and {name} has {len(values)}: cut them alike")
        except (TypeError, ValueError) as error:
            raise type(error)(f"in block {place} (counted from 0): {error}") from None
        return found if counts is None or np.all(counts > 0) else found.take(np.flatnonzero(counts > 0))


def kind_of(numbers: Any) -> str:
    """Return library and type of an array; all CPU arrays have the same kind."""
    if is_plain(numbers):
        return "numpy"
    return f"{type(numbers).__module__.partition('.')[0]}.{str(numbers.dtype).rpartition('.')[2]}"


def check_kinds(kinds: Iterable[str | None], name: str) -> None:
    """Raise an error for blocks of several libraries or types; None marks an empty block."""
    different = sorted({kind for kind in kinds if kind is not None})
    if len(different) > 1:
        raise TypeError(
            f"{name} has blocks of {' and of '.join(different)}: give all of them as arrays of one library and one "
            "type, with map_blocks"
        )


# --- the source


class DaskSource:
    """Samples on the workers of a cluster.

    Parameters
    ----------
    client : Client
    X : dask array or DataFrame of shape (n_samples, n_features)
    read : Reader
    y, sample_weight, task : collection or array of length n_samples, default=None
    """

    def __init__(
        self, client: Client, X: Any, read: Reader, y: Any = None, sample_weight: Any = None, task: Any = None
    ) -> None:
        sizes, columns = sizes_of(X), [chunks_of(X)]
        for name, values in {"y": y, "sample_weight": sample_weight, "task": task}.items():
            columns.append([None] * len(sizes) if values is None else chunks_of(align(values, sizes, name)))
        blocks = place(client, columns, sizes, read)
        kinds, lengths = zip(*blocks.gather(_describe), strict=True)
        check_kinds(kinds, "X")
        filled = [n > 0 for n in lengths] if any(lengths) else [True] + [False] * (len(lengths) - 1)
        self.lengths = [n for n, kept in zip(lengths, filled, strict=True) if kept]
        kept = blocks.keep(filled)
        self.blocks = DaskBlocks.spread(client, kept.blocks, self.lengths)

    def __len__(self) -> int:
        return sum(self.lengths)

    def summarize(self, measure: Callable[..., Any], *arguments: Any) -> Any:
        """Return the sum of ``measure(samples, *arguments)`` over blocks of samples, in their order."""
        return self.blocks.map_sum(measure, *arguments)

    def sample(self, n_samples: int, strata: Strata) -> Samples:
        """Return about `n_samples` random samples in local memory, in random order."""
        parts = self.draw(strata.of, strata.limits(n_samples))
        return join_samples([part.samples for part in parts]).take(strata.select(parts, n_samples))

    def draw(self, kinds_of: Callable[[Samples], Integers], limits: Floats) -> list[Drawn]:
        """Draw a fraction of the samples of each kind into local memory."""
        firsts = np.concatenate([[0], np.cumsum(self.lengths)[:-1]]).tolist()
        parts: list[Drawn] = self.blocks.map(_draw_block, firsts, kinds_of, limits).gather(itself)
        return [part for part in parts if len(part.kinds)] or parts[:1]

    def persist(self, make: Callable[..., Any], *arguments: Any) -> DaskBlocks:
        """Return ``make(samples, *arguments)`` of every block, without those that are None.

        The samples are released; workers read them again only if the results are lost.
        """
        made = self.blocks.map(make, *arguments)
        self.blocks = self.blocks.keep([False] * len(self.lengths))
        return made.keep(made.gather(exists))


@sizeof.register(Samples)
def _size_of_samples(block: Samples) -> int:
    """Return the bytes of samples in the memory of a worker."""
    return sum(map(sizeof, (block.X, block.y, block.weights, block.task)))


def _describe(block: Samples) -> tuple[str | None, int]:
    numbers = block.X.counts.numbers if isinstance(block.X, DeviceCorpus) else block.X
    return kind_of(numbers) if len(block) else None, len(block)


def _draw_block(block: Samples, first: int, kinds_of: Callable[[Samples], Integers], limits: Floats) -> Drawn:
    """Draw samples from a block into CPU memory."""
    drawn = draw(block, first, kinds_of, limits)
    X = drawn.samples.X
    if isinstance(X, DeviceCorpus):
        words, numbers, starts = X.on_host()
        X = check_counts(csr_array((numbers, words, starts), shape=X.shape))
    return replace(drawn, samples=replace(drawn.samples, X=X if is_plain(X) else to_host(X).astype(np.float64)))
