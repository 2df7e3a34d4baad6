"""Parquet files that are too large for memory: settings are chosen on a sample, and all rows are fitted in blocks.

A prediction reads them in batches, and writes the answers to one before it reads the next.

What a target asks for is decided by all rows, whose targets alone are read. A sample of them goes the way of any table:
which columns are inputs, the search, the comparison and the page. Then all rows are encoded, batch by batch, into a
file that is mapped, and the settings that were chosen are fitted to them.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from regbayes._types import Flags, Floats, Integers
from regbayes.cli import Format
from regbayes.cli.errors import BadDataError, UserError, counted, listed, need
from regbayes.cli.inputs import TableInputs
from regbayes.cli.options import FitRequest, ModelRequest
from regbayes.cli.output import Output
from regbayes.cli.tables import MAX_CELLS, Table, format_of
from regbayes.cli.targets import (
    TargetSpec,
    as_labels,
    choose_targets,
    decide,
    observed_rows,
    row_weights,
    shown_label,
    target_values,
    task_values,
)

if TYPE_CHECKING:
    from regbayes.cli.modelfile import ModelFile

__all__ = ["BigTable", "WholeFile", "find_big", "read_for_model"]

SAMPLE_ROWS = 10_000  # that settings are chosen on
FEWEST_OF_A_CLASS = 50  # in the sample, where there are so many
BATCH_ROWS = 65_536  # read at once
BLOCK_BYTES = 1 << 26  # of rows that a worker reads at once


@dataclass(frozen=True)
class BigTable:
    """A Parquet file that is read in batches of rows."""

    path: str
    n_rows: int
    names: tuple[str, ...]

    @property
    def gigabytes(self) -> float:
        """What its cells take as numbers in memory."""
        return 8e-9 * self.n_rows * len(self.names)

    def batches(self, columns: Sequence[str] | None = None) -> Iterator[Table]:
        """Read some columns, or all, of the rows in their order."""
        from regbayes.cli.readers import read_parquet_batches

        for frame in read_parquet_batches(self.path, columns, BATCH_ROWS):
            yield Table(frame, self.path)

    def read(self, columns: Sequence[str]) -> Table:
        """Read some columns of all rows."""
        import pandas as pd

        frames = [table.frame for table in self.batches(columns)]
        return Table(pd.concat(frames, ignore_index=True), self.path)

    def take(self, rows: Integers) -> Table:
        """Read some rows, which ascend, of all columns."""
        import pandas as pd

        frames, first = [], 0
        for table in self.batches():
            begin, end = np.searchsorted(rows, [first, first + table.n_rows])
            frames.append(table.frame.iloc[rows[begin:end] - first])
            first += table.n_rows
        return Table(pd.concat(frames, ignore_index=True), self.path)


def find_big(path: str, format: Format | None = None) -> BigTable | None:  # noqa: A002
    """Return the file if it is Parquet and has more cells than are read into memory."""
    if path == "-" or not Path(path).is_file() or (format or format_of(path)) != "parquet":
        return None
    from regbayes.cli.readers import parquet_shape

    n_rows, names = parquet_shape(path)
    return BigTable(path, n_rows, names) if n_rows * len(names) > MAX_CELLS else None


def read_for_model(
    model: ModelFile, table: BigTable, request: ModelRequest, beside: Sequence[str], out: Output
) -> Iterator[Table]:
    """Read what a model needs of a large file, and some columns beside it, in batches; say once what looks odd."""
    if model.of_documents:
        raise UserError(f"{table.path} is too large to read its documents at once: give parts of it")
    if request.text:
        raise UserError(f"--text {request.text[0]}: this model was not fitted to documents")
    out.say(f"{table.path} has {table.n_rows} rows, {table.gigabytes:.1f} GB as numbers; {BATCH_ROWS} are read at once")
    wanted = [*model.inputs.columns_, *beside, *filter(None, [model.target.task])]
    columns = list(dict.fromkeys(wanted)) if set(wanted) <= set(table.names) else None  # None: all, for the message
    doubts: list[str] = []
    for batch in table.batches(columns):
        if not doubts:  # they count rows: one batch is enough to say what is odd
            doubts = model.doubts(batch)
            for doubt in doubts:
                out.warn(f"in one batch of {batch.n_rows} rows, the first to show it: {doubt}")
        yield batch


@dataclass(frozen=True)
class WholeFile:
    """All rows of a large file, and the sample that stands for them until settings are chosen."""

    table: BigTable
    spec: TargetSpec
    why: str
    y: NDArray[Any]  # of the rows that are fitted
    task: NDArray[Any] | None
    weights: Floats | None
    kept: Flags  # (rows of the file,): those that are fitted
    drawn: Integers  # rows of the file that are the sample, ascending

    @classmethod
    def of(cls, table: BigTable, request: FitRequest, output: Output) -> WholeFile:
        """Read the targets of all rows, decide what they ask for, and draw a sample."""
        output.say(
            f"{table.path} has {table.n_rows} rows and {counted(len(table.names), 'column')}, {table.gigabytes:.1f} GB "
            f"as numbers; more than {MAX_CELLS:,} cells are not read into memory. Settings are chosen on a sample of "
            f"{SAMPLE_ROWS} rows, and then all rows are fitted in blocks from a file in {tempfile.gettempdir()}"
        )
        wanted = [*request.target, *filter(None, (request.task, request.weight))]
        absent = [name for name in wanted if name not in table.names]
        if absent:
            raise BadDataError(f"{table.path} has no column {absent[0]!r}; it has {listed(table.names)}")
        narrow = table.read(list(dict.fromkeys(wanted or table.names[:1])))
        spec, why = decide(narrow, choose_targets(narrow, request.target), request.kind, request.task)
        y = target_values(narrow, spec)
        kept = observed_rows(y)
        weights = None
        if request.weight is not None:
            weights = row_weights(narrow, request.weight)
            kept &= weights > 0
        task = None if spec.task is None else task_values(narrow, spec)
        labels = as_labels(y[kept]) if spec.kind == "classifier" else y[kept]
        drawn = np.flatnonzero(kept)[
            _draw(labels if spec.kind == "classifier" else None, int(kept.sum()), request.seed)
        ]
        return cls(
            table,
            spec,
            why,
            labels,
            None if task is None else task[kept],
            None if weights is None else weights[kept],
            kept,
            drawn,
        )

    def sample(self) -> Table:
        """Return the sample as a table."""
        return self.table.take(self.drawn)

    @property
    def told(self) -> str:
        """What the page says."""
        return (
            f"Settings were chosen on a sample of {len(self.drawn)} rows, and scores, probabilities and what this page "
            f"shows of rows are those of the sample. The model was then fitted to all {len(self.y)} rows."
        )

    @contextmanager
    def encoded(self, inputs: TableInputs, output: Output) -> Iterator[Floats]:
        """Encode all rows into a file that is there as long as the context, and map it."""
        shape = len(self.y), len(inputs.get_feature_names_out())
        size, free = 8 * shape[0] * shape[1], shutil.disk_usage(tempfile.gettempdir()).free
        if size > 0.9 * free:
            raise BadDataError(
                f"all rows as numbers take {size / 1e9:.1f} GB, and {tempfile.gettempdir()} has {free / 1e9:.1f} GB: "
                "set TMPDIR to a folder with more room"
            )
        with tempfile.TemporaryDirectory(prefix="regbayes-") as folder:
            path = Path(folder) / "rows.npy"
            X = np.lib.format.open_memmap(path, mode="w+", dtype=np.float64, shape=shape)
            first = written = 0
            with output.catch_warnings():
                for table in self.table.batches(inputs.columns_):
                    rows = inputs.encode(table.take(self.kept[first : first + table.n_rows]))
                    X[written : written + len(rows)] = rows
                    first, written = first + table.n_rows, written + len(rows)
            X.flush()
            del X
            yield np.load(path, mmap_mode="r")

    def refit(self, estimator: Any, inputs: TableInputs, request: FitRequest, output: Output) -> tuple[Any, bool]:
        """Fit all rows with the settings of an estimator, from where it is; return the fit and whether it was ended.

        The estimator itself stays as it is.
        """
        from regbayes.cli.search import fit_alone

        self._check_classes(estimator)
        given = {"task": self.task, "sample_weight": self.weights}
        metadata = {name: values for name, values in given.items() if values is not None}
        with self.encoded(inputs, output) as X:
            output.say(f"a fit to all {counted(len(X), 'row')}, in blocks")
            if estimator.include_inputs or not hasattr(estimator, "partial_fit"):  # in memory inputs would be copied
                return self._fit_on_workers(estimator, X, metadata, request, output)
            own = copy(estimator).set_params(warm_start=True)
            found, facts = fit_alone(own, request, X, self.y, metadata, output)
            return _forget_rows(found.set_params(warm_start=False)), facts["interrupted"]

    def _check_classes(self, estimator: Any) -> None:
        if self.spec.kind != "classifier":
            return
        absent = [label for label in np.unique(self.y).tolist() if label not in set(estimator.classes_.tolist())]
        if absent:
            raise BadDataError(
                f"the class {shown_label(absent[0])} is not in the sample that settings were chosen on; leave it out, "
                "or fit a part of the file"
            )

    def _fit_on_workers(
        self, estimator: Any, X: Floats, metadata: dict[str, Any], request: FitRequest, output: Output
    ) -> tuple[Any, bool]:
        """Fit on workers of this machine, which put what does not fit into their memory into files."""
        need("distributed", "dask", "fitting several targets, or inputs beside features, to a file of this size")
        import dask.array as da
        from distributed import Client, LocalCluster
        from joblib import effective_n_jobs

        from regbayes import dask as on_cluster
        from regbayes.cli.interrupts import is_interrupt

        rows = max(1, BLOCK_BYTES // (8 * X.shape[1]))
        model = getattr(on_cluster, type(estimator).__name__)(**estimator.get_params())
        vars(model).update({name: value for name, value in vars(estimator).items() if name not in vars(model)})
        lazy = {name: da.from_array(values, chunks=rows) for name, values in metadata.items()}
        n_workers = effective_n_jobs(request.jobs)
        with (
            output.catch_warnings() as heard,
            LocalCluster(n_workers=n_workers, threads_per_worker=1, dashboard_address=":0") as cluster,
            Client(cluster) as client,
        ):
            y = da.from_array(self.y, chunks=(rows, *self.y.shape[1:]))
            model.set_params(warm_start=True).fit(_read_blocks(X, rows), y, client=client, **lazy)
        return model.set_params(warm_start=False).to_local(), any(map(is_interrupt, heard))


def _forget_rows(estimator: Any) -> Any:
    """Take features of all rows out of a model, which would make its file as large as they are."""
    state = estimator._state
    estimator.n_samples_seen_ = len(state.embedding)  # what further batches are weighed against
    estimator._state = replace(
        state,
        embedding=state.embedding[:0],
        probabilities=None if state.probabilities is None else state.probabilities[:0],
    )
    for name in {"embedding_", "probabilities_"} & vars(estimator).keys():
        delattr(estimator, name)
    return estimator


def _read_blocks(X: Any, rows: int) -> Any:
    """Return a mapped file as an array whose blocks workers read from it."""
    import dask
    import dask.array as da

    read = dask.delayed(_read_rows)
    edges = [*range(0, len(X), rows), len(X)]
    parts = [
        da.from_delayed(read(str(X.filename), first, end), (end - first, X.shape[1]), np.float64)
        for first, end in pairwise(edges)
    ]
    return da.concatenate(parts)


def _read_rows(path: str, first: int, end: int) -> Floats:
    return np.array(np.load(path, mmap_mode="r")[first:end])


def _draw(labels: NDArray[Any] | None, n_rows: int, seed: int | None) -> Integers:
    """Draw rows for the sample: their share of each class, and of a rare one some at least. They ascend."""
    order = np.random.default_rng(seed).permutation(n_rows)
    if n_rows <= SAMPLE_ROWS:
        return np.sort(order)
    if labels is None:
        return np.sort(order[:SAMPLE_ROWS])
    _, codes, counts = np.unique(labels[order], return_inverse=True, return_counts=True)
    wanted = np.minimum(counts, np.maximum(np.ceil(counts * (SAMPLE_ROWS / n_rows)), FEWEST_OF_A_CLASS))
    by_class = np.argsort(codes, kind="stable")
    place = np.empty(n_rows, dtype=np.int64)
    place[by_class] = np.arange(n_rows) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.sort(order[place < wanted[codes]])
