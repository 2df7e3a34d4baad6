"""Rows as they are given, arrays or data frames of Dask, and as workers read them: in blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
from dask.delayed import Delayed
from dask.highlevelgraph import HighLevelGraph
from dask.optimization import cull
from dask.utils import ensure_dict
from distributed import Client, Future, futures_of
from numpy.typing import NDArray
from scipy.sparse import csr_array, hstack, issparse, vstack
from sklearn.utils.validation import check_array, column_or_1d

from regbayes._types import Floats, Integers
from regbayes.dask.blocks import DaskBlocks, Group, plan_groups, plan_units, submit_in_turn
from regbayes.engine.source import Drawn, Samples, Strata, draw
from regbayes.estimators._bases import find_missing
from regbayes.estimators._topics import check_largest, numbers_of, read_device_counts
from regbayes.kernels.arrays import is_plain, join, namespace_of, to_host
from regbayes.models.medlda.topics import DeviceCorpus

HOST = "numpy"  # the kind of all rows on the host
FIX_SIZES = "X.compute_chunk_sizes() counts the rows of an array, and a data frame has X.to_dask_array(lengths=True)"


@dataclass(frozen=True)
class Given:
    """What the user gave, block by block; nothing has been computed."""

    parts: list[tuple[Delayed, Delayed | None, Delayed | None, Delayed | None]]  # rows, targets, weights, tasks
    sizes: list[float]  # rows of each block, nan where that is not known
    keys: list[Any]  # of the blocks of X, by which the cluster knows those that it has
    persisted: Any  # X: some of its blocks may be on workers already
    columns: Any  # names of the columns, None where they have none
    n_columns: int


def read_collections(X: Any, y: Any = None, sample_weight: Any = None, task: Any = None) -> Given:
    """Line up the blocks of rows, targets, weights and tasks."""
    if not is_collection(X):
        raise TypeError(
            f"X must be a dask array or DataFrame, got {type(X).__name__}. For arrays in memory there is the class of "
            "the same name in regbayes; dask.array.from_array(X, chunks=(100_000, -1)) makes blocks of one"
        )
    if X.ndim != 2:
        raise ValueError(f"X must have two dimensions, rows and columns; got {X.ndim}")
    if isinstance(X, da.Array):
        if np.isnan(X.shape[1]):
            raise ValueError(f"the number of columns of X is not known: {FIX_SIZES}")
        X = join_columns(X)
        sizes, columns = [float(size) for size in X.chunks[0]], None
    else:
        _check_columns(X)
        sizes, columns = [np.nan] * X.npartitions, np.asarray(X.columns, dtype=object)
    if not X.shape[1]:
        raise ValueError("X has no columns")
    rows, keys = delay_blocks(X), list(dask.core.flatten(X.__dask_keys__()))
    beside = {"y": y, "sample_weight": sample_weight, "task": task}
    others = [line_up(values, sizes, name) for name, values in beside.items()]
    return Given(list(zip(rows, *others, strict=True)), sizes, keys, X, columns, int(X.shape[1]))


def _check_columns(X: Any) -> None:
    """Refuse columns of a data frame that are no numbers before any is read; those of objects may be."""
    from pandas.api.types import is_bool_dtype, is_numeric_dtype, is_object_dtype

    for name, kind in X.dtypes.items():
        if not (is_numeric_dtype(kind) or is_bool_dtype(kind) or is_object_dtype(kind)):
            raise ValueError(
                f"column {name!r} of X has dtype {kind}, which is no number: leave it out, or make columns of numbers "
                "of it (dask.dataframe.get_dummies of a column that was categorized)"
            )


def join_columns(values: da.Array) -> da.Array:
    """Return an array whose blocks have all columns; Dask itself could not join those of PyTorch."""
    if values.ndim < 2 or values.numblocks[1] == 1:
        return values
    return da.blockwise(
        _join_chunks,
        "nk",
        values,
        "nd",
        new_axes={"k": values.shape[1]},
        concatenate=False,
        dtype=values.dtype,
        meta=values._meta,
    )


def _join_chunks(parts: list[Any]) -> Any:
    return hstack(parts, format="csr") if issparse(parts[0]) else join(parts, axis=1)


def is_collection(X: Any) -> bool:
    """Whether X is an array or a data frame of Dask."""
    return isinstance(X, da.Array | dd.DataFrame)


def delay_blocks(collection: Any) -> list[Delayed]:
    """Return the blocks of a collection, each with what makes it and no more.

    Those of a data frame as they are: optimised, rows and targets from the same files may be cut differently, because
    Dask joins the partitions of a table of few columns. Blocks are asked for one after another, and with each would
    go all that makes the others: a thousand blocks took minutes to name.
    """
    whole = isinstance(collection, da.Array)
    blocks = np.asarray(collection.to_delayed(optimize_graph=whole), dtype=object).ravel().tolist()
    recipes = ensure_dict(blocks[0].dask) if blocks else {}
    if blocks and blocks[0].key not in recipes:  # persisted: nothing is left to be optimised, and blocks are futures
        recipes = ensure_dict(collection.__dask_graph__())

    def alone(block: Delayed) -> Delayed:
        layer = f"block-{block.key}"
        own = HighLevelGraph.from_collections(layer, cull(recipes, block.key)[0], dependencies=())
        return Delayed(block.key, own, layer=layer)

    return list(map(alone, blocks))


def line_up(values: Any, sizes: list[float], name: str) -> list[Any]:
    """Return the blocks of what goes with rows, cut as they are."""
    if values is None:
        return [None] * len(sizes)
    known = not np.any(np.isnan(sizes))
    if not isinstance(values, da.Array | dd.Series | dd.DataFrame):
        array = np.asarray(values)
        if not known:
            raise ValueError(f"{name} is an array in memory, and the rows of X have not been counted: {FIX_SIZES}")
        _check_length(len(array), sizes, name)
        values = da.from_array(array, chunks=(tuple(map(int, sizes)), *array.shape[1:]))
    if isinstance(values, da.Array):
        values = join_columns(values)
        own = values.chunks[0]
        if known and not np.any(np.isnan(own)):
            _check_length(sum(own), sizes, name)
            if own != tuple(map(int, sizes)):
                on_host = values.map_blocks(
                    _bring_plain, dtype=values.dtype, meta=values._meta
                )  # where Dask joins them
                values = on_host.rechunk({0: tuple(map(int, sizes))})
    blocks = delay_blocks(values)
    if len(blocks) != len(sizes):
        raise ValueError(
            f"X has {len(sizes)} blocks and {name} has {len(blocks)}, and not all of their rows have been counted: "
            f"cut them alike, or count them so that they can be ({FIX_SIZES})"
        )
    return blocks


def _check_length(n_rows: float, sizes: list[float], name: str) -> None:
    if n_rows != sum(sizes):
        raise ValueError(f"X has {sum(sizes):.0f} rows, but {name} has {n_rows:.0f}")


def place_blocks(client: Client, given: Given, read: Callable[..., Any]) -> DaskBlocks:
    """Have the workers read the blocks, each in its place, and wait for them."""
    sizes = np.asarray(given.sizes)
    fills = np.where(np.isnan(sizes), np.nanmean(sizes) if not np.all(np.isnan(sizes)) else 1.0, sizes)
    has = client.who_has(futures_of(given.persisted))
    where = [next(iter(has.get(key, ())), None) for key in given.keys]
    make = dask.delayed(read, pure=False)

    def begin(place: int, worker: str) -> Future:
        recipe = make(*given.parts[place], place, given.n_columns)
        return client.compute(recipe, workers=[worker], allow_other_workers=True)

    plan = plan_groups(client, fills.tolist(), where)
    jobs = [[partial(begin, place, worker) for place in members] for worker, members in plan]
    blocks = submit_in_turn(client, jobs)
    units = plan_units(fills.tolist())
    held = [Group(worker, mine, units[own].tolist()) for (worker, own), mine in zip(plan, blocks, strict=True)]
    return DaskBlocks(client, held)


# --- on the workers


@dataclass(frozen=True)
class Reader:
    """How a worker reads a block."""

    here: Callable[[Any], Any]  # from a block of X to rows on the host
    there: Callable[[Any], Any]  # from one of PyTorch or CuPy to rows that stay where they are
    targets: Callable[[Any, str], NDArray[Any]]  # from a block of y, and where it is, in words
    __name__: ClassVar[str] = "read_block"  # as Dask names the task

    def __call__(self, x: Any, y: Any, weights: Any, task: Any, place: int, n_columns: int) -> Samples:
        """Return a block, having seen that it can be worked with. What goes with rows comes to the host."""
        named = f"in block {place} (counted from 0)"
        y, weights, task = map(_bring_plain, (y, weights, task))
        X = self._read_rows(x, named)
        n_rows = int(X.shape[0])
        if X.shape[1] != n_columns:
            raise ValueError(f"{named}, X has {X.shape[1]} columns, but {n_columns} in all")
        labels, tasks = None if y is None else self.targets(y, named), None if task is None else read_values(task)
        for name, values in {"y": labels, "task": tasks}.items():
            if values is not None and len(values) != n_rows:
                raise ValueError(f"{named}, X has {n_rows} rows and {name} has {len(values)}: cut them alike")
        if weights is None:
            return Samples(X, labels, None, tasks)
        counts = check_array(
            np.asarray(weights), dtype=np.float64, ensure_2d=False, ensure_min_samples=0, input_name="sample_weight"
        )
        if counts.ndim != 1:
            raise ValueError(f"{named}, sample_weight has the shape {counts.shape}: give one number for each row")
        if len(counts) != n_rows:
            raise ValueError(f"{named}, X has {n_rows} rows and sample_weight has {len(counts)}: cut them alike")
        if np.any(counts < 0):
            raise ValueError(f"{named}, sample_weight has negative values")
        found = Samples(X, labels, counts, tasks)
        return found if np.all(counts > 0) else found.take(np.flatnonzero(counts > 0))

    def _read_rows(self, x: Any, named: str) -> Any:
        if x.ndim != 2:
            raise ValueError(f"{named}, X has {x.ndim} dimension(s)")
        try:
            if not is_plain(x):
                return self.there(x)
            return self.here(_bring_plain(x))
        except (TypeError, ValueError) as error:
            raise type(error)(f"{named}: {error}") from None


def _bring_plain(values: Any) -> Any:
    """Return what lies on a device as it is on the host, and all else unchanged."""
    return values if is_plain(values) else to_host(values)


def check_floats(x: Any) -> Floats:
    """Return rows on the host, in double precision."""
    if issparse(x):
        raise TypeError("X is sparse, and must be dense here: X.map_blocks(lambda rows: rows.toarray()) makes it so")
    return _check_numbers(x, dtype=np.float64, order="C")


def _check_numbers(x: Any, **options: Any) -> Any:
    try:
        return check_array(x, ensure_min_samples=0, input_name="X", **options)
    except (TypeError, ValueError) as error:
        why = str(error).splitlines()[0].rstrip(".")
        remedy = "" if "NaN" in why or "infinity" in why else ". X must hold numbers in every block"
        raise type(error)(why + remedy) from None


def check_there(x: Any) -> Any:
    """Return rows on a device as they are, having seen that they are numbers that sums can be taken of."""
    if numbers_of(x) is not x or "sparse" in str(getattr(x, "layout", "")):
        raise TypeError("X is sparse, and rows that lie on a device must be dense")
    xp = namespace_of(x)
    if x.dtype not in (xp.float64, xp.float32):
        raise TypeError(f"X has type {x.dtype} on {getattr(x, 'device', 'a device')}: give it as float32 or float64")
    if not bool(xp.all(xp.isfinite(x))):
        raise ValueError("X contains NaN or infinity")
    return x


def check_counts(x: Any) -> Any:
    """Return counts of words in compressed rows, in single precision, as the model takes them."""
    counts = csr_array(_check_numbers(x, accept_sparse="csr", dtype="numeric"))
    if counts.nnz and counts.data.min() < 0:
        raise ValueError("Negative values in X, which must hold counts of words")
    check_largest(float(counts.data.max(initial=0)))
    counts.sum_duplicates()
    counts.eliminate_zeros()
    return csr_array((counts.data.astype(np.float32, copy=False), counts.indices, counts.indptr), shape=counts.shape)


def check_counts_there(x: Any) -> DeviceCorpus:
    """Return counts of words on a device as documents there."""
    return read_device_counts(x, numbers_of(x), allow_empty=True)


def read_values(values: Any) -> NDArray[Any]:
    """Return what goes with rows as an array of numbers, text or objects."""
    if issparse(values):
        values = values.toarray()
    found = values.to_numpy() if hasattr(values, "to_numpy") else np.asarray(values)
    return found if found.dtype.kind in "biufUSO" else found.astype(object)


def read_targets(y: Any, named: str) -> NDArray[Any]:
    """Return the targets of a block: a vector, or a matrix of several columns."""
    values = read_values(y)
    if values.ndim == 2 and values.shape[1] == 1:
        values = column_or_1d(values)
    if values.dtype.kind == "f" and not np.all(np.isfinite(values)):
        raise ValueError(f"{named}, y contains NaN or infinity")
    if values.dtype.kind == "O" and find_missing(values).any():
        raise ValueError(f"{named}, y has missing values: leave their rows out, or give them a label of their own")
    return values


def read_holes(y: Any, named: str) -> NDArray[Any]:
    """Return the targets of a block, of which some may be NaN."""
    values = read_values(y)
    if values.dtype.kind == "f" and np.any(np.isinf(values)):
        raise ValueError(f"{named}, y contains infinity")
    return values


READ_ROWS = Reader(check_floats, check_there, read_targets)
READ_TASKS = replace(READ_ROWS, targets=read_holes)
READ_COUNTS = Reader(check_counts, check_counts_there, read_targets)


def name_kind(block: Samples) -> str | None:
    """Return the kind of a block's rows; None of a block without any."""
    if not len(block):
        return None
    return kind_of(block.X.counts.numbers if isinstance(block.X, DeviceCorpus) else block.X)


def kind_of(numbers: Any) -> str:
    """Return whose array it is and of which type; all on the host are of one kind."""
    if is_plain(numbers):
        return HOST
    return f"{type(numbers).__module__.partition('.')[0]}.{str(numbers.dtype).rpartition('.')[2]}"


def check_kinds(kinds: Iterable[str | None], name: str) -> str:
    """Return the kind of all blocks, having seen that it is one."""
    different = sorted({kind for kind in kinds if kind is not None})
    if len(different) > 1:
        raise TypeError(
            f"{name} has blocks of {' and of '.join(different)}: give all of them as arrays of one library and one "
            "type (map_blocks changes them)"
        )
    return different[0] if different else HOST


# --- a sample


def draw_block(block: Samples, first: int, kinds_of: Callable[[Samples], Integers], limits: Floats) -> Drawn:
    """Draw samples from a block, which come to the host."""
    drawn = draw(block, first, kinds_of, limits)
    return replace(drawn, samples=replace(drawn.samples, X=_bring_here(drawn.samples.X)))


def _bring_here(X: Any) -> Any:
    """Return rows as they are on the host, where a sample lies."""
    if isinstance(X, DeviceCorpus):
        words, numbers, starts = X.on_host()
        return check_counts(csr_array((numbers, words, starts), shape=X.shape))
    return X if is_plain(X) else to_host(X).astype(np.float64)


class DaskSource:
    """Samples on the workers of a cluster: `regbayes.engine.source.Source`.

    Parameters
    ----------
    rows : DaskBlocks
        Of `Samples`, as workers have read them.
    """

    is_local = False

    def __init__(self, rows: DaskBlocks) -> None:
        kinds, lengths = zip(*rows.gather(_describe), strict=True)
        self.rows, self.lengths, self.kind = rows, lengths, check_kinds(kinds, "X")

    def __len__(self) -> int:
        return sum(self.lengths)

    def summarize(self, measure: Callable[..., Any], *arguments: Any) -> Any:
        """Return the sum of ``measure(samples, *arguments)`` over blocks of samples, in their order."""
        return self.rows.map_sum(measure, *arguments)

    def sample(self, n_samples: int, strata: Strata) -> Samples:
        """Bring about so many samples here, in an order of which every beginning is a sample."""
        parts = self._bring_shares(strata.of, strata.limits(n_samples))
        return _join_drawn(parts, strata.select(parts, n_samples))

    def share(self, kinds_of: Callable[[Samples], Integers], limits: Floats) -> Drawn:
        """Bring a share of the samples of each kind here, as `draw_block` draws them."""
        parts = self._bring_shares(kinds_of, limits)
        kinds, keys = (np.concatenate([getattr(part, name) for part in parts]) for name in ("kinds", "keys"))
        return Drawn(_join_drawn(parts, np.arange(len(kinds))), kinds, keys)

    def persist(self, make: Callable[..., Any], *arguments: Any) -> DaskBlocks:
        """Return ``make(samples, *arguments)`` of every block, kept where the block is; None leaves a block out."""
        made = self.rows.change(make, [arguments if n else None for n in self.lengths])
        kept = made.gather(_exists)
        return made if all(kept) else made.change(itself, [() if one else None for one in kept])

    def _bring_shares(self, kinds_of: Callable[[Samples], Integers], limits: Floats) -> list[Drawn]:
        firsts = np.concatenate([[0], np.cumsum(self.lengths)[:-1]])
        there = self.rows.change(draw_block, [(int(first), kinds_of, limits) for first in firsts])
        return [part for part in there.gather(itself) if len(part.kinds)]


def _describe(block: Samples) -> tuple[str | None, int]:
    return name_kind(block), len(block)


def _exists(made: Any) -> bool:
    return made is not None


def _join_drawn(parts: list[Drawn], order: Integers) -> Samples:
    """Return rows of several parts, numbered one part after another, in some order.

    The parts are forgotten as it goes: a sample may have a quarter of a gigabyte, and is here once.
    """
    beside = [
        None
        if getattr(parts[0].samples, name) is None
        else np.concatenate([getattr(p.samples, name) for p in parts])[order]
        for name in ("y", "weights", "task")
    ]
    if issparse(parts[0].samples.X):
        return Samples(vstack([part.samples.X for part in parts], format="csr")[order], *beside)
    X, first = np.empty((len(order), parts[0].samples.X.shape[1])), 0
    parts.reverse()
    while parts:
        own = parts.pop().samples.X
        mine = np.flatnonzero((order >= first) & (order < first + len(own)))
        X[mine] = own[order[mine] - first]
        first += len(own)
    return Samples(X, *beside)


def itself(block: Any) -> Any:
    """Return what stays where a block is."""
    return block
