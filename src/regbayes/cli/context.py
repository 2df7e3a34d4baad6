"""Turn a request into the columns, rows, inputs and targets of one `FitContext`."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regbayes._types import Floats, Integers
from regbayes.cli import Kind
from regbayes.cli.errors import BadDataError, UserError, counted, listed
from regbayes.cli.inputs import TableInputs, WordCounts, learn_words, show_documents
from regbayes.cli.options import FitRequest
from regbayes.cli.output import Output
from regbayes.cli.read import Table, read_table, text_of
from regbayes.cli.targets import (
    TargetSpec,
    as_labels,
    choose_targets,
    decide,
    metric_name,
    row_weights,
    rows_with_target,
    score_of,
    shown_label,
    task_values,
)


@dataclass(frozen=True, eq=False)
class FitContext:
    """A fit request and its data, shared by all steps of a fit."""

    request: FitRequest
    output: Output
    table: Table  # the training rows
    spec: TargetSpec
    inputs: TableInputs | WordCounts
    X: Any  # (n, inputs): numbers, or sparse counts of words
    y: NDArray[Any]  # (n,) or (n, targets), with missing values
    row_names: NDArray[Any]  # (n,)
    task: NDArray[Any] | None = None  # (n,)
    weights: Floats | None = None  # (n,): sample weights
    texts: NDArray[Any] | None = None  # (n,): texts of the documents

    @property
    def kind(self) -> Kind:
        """Kind of model."""
        return self.spec.kind

    @property
    def of_documents(self) -> bool:
        """Whether rows are documents."""
        return self.texts is not None

    @property
    def targets(self) -> NDArray[Any]:
        """The targets as a matrix with one column each."""
        return self.y.reshape(len(self.y), -1)

    @property
    def metadata(self) -> dict[str, NDArray[Any]]:
        """Keyword arguments of `fit` in addition to inputs and targets."""
        given = {"task": self.task, "sample_weight": self.weights}
        return {name: values for name, values in given.items() if values is not None}

    @property
    def metric(self) -> str:
        """Name of the score."""
        return metric_name(self.kind, len(self.spec.names), balanced=self.request.balanced)

    def take(self, rows: Integers) -> FitContext:
        """Return the context of the selected rows."""
        arrays = {name: getattr(self, name) for name in ("X", "y", "row_names", "task", "weights", "texts")}
        chosen = {name: values if values is None else values[rows] for name, values in arrays.items()}
        return replace(self, table=self.table.take(rows), **chosen)

    def score(self, predicted: NDArray[Any], rows: Integers) -> float:
        """Return the score of predictions for the given rows."""
        weights = None if self.weights is None else self.weights[rows]
        return score_of(self.kind, self.y[rows], predicted, balanced=self.request.balanced, weights=weights)


def prepare(request: FitRequest, output: Output) -> FitContext:
    """Read the data, choose the kind of model, and encode columns as inputs.

    Raises
    ------
    UserError
        If the data or the request are invalid.
    """
    by_itself = "medlda" if request.text or os.path.isdir(request.data) else "ilsvm"
    documents = (request.model or by_itself) == "medlda"
    request.check("medlda" if documents else "ilsvm")
    table = read_table(request.data, sparse=documents, **request.reading())
    for note in table.notes:
        output.warn(note)
    names = choose_targets(table, request.target)
    spec, why = decide(table, names, request.kind, request.task, of_texts=documents and table.counts is None)
    output.say(f"MedLDA, {why}" if documents else why)
    _check_columns(table, spec, request, documents)
    rows = _rows_to_fit(table, spec, request, output, needs_all=documents)
    return _of_documents(rows) if documents else _of_columns(rows)


def _check_columns(table: Table, spec: TargetSpec, request: FitRequest, documents: bool) -> None:
    """Raise a `UserError` for unknown columns and for columns with two roles."""
    for option, columns in (("--ignore", request.ignore), ("--categorical", request.categorical)):
        for name in columns:
            table.column(name, option)
    roles = [("--task", spec.task), ("--weight", request.weight), *(("--text", name) for name in request.text)]
    for option, column in roles:
        if column in spec.names:
            raise UserError(f"{option} and --target name the same column, {column!r}")
    if request.balanced and (spec.kind == "regressor" or (documents and spec.kind == "multilabel")):
        raise UserError(f"--balanced is about classes, and this target is for a {spec.kind}")


def _rows_to_fit(table: Table, spec: TargetSpec, request: FitRequest, output: Output, *, needs_all: bool) -> FitContext:
    """Drop rows with missing targets or zero weight; `needs_all` drops rows that lack any target."""
    key = request.names or table.key
    given = [None] * table.n_rows if key is None else text_of(table.column(key, "--names"))
    row_names = np.array([name or f"row {i + 1}" for i, name in enumerate(given)], dtype=object)
    weights = None if request.weight is None else row_weights(table, request.weight)
    with output.catch_warnings():
        table, y, kept = rows_with_target(table, spec, needs_all=needs_all)
    context = FitContext(request, output, table, spec, TableInputs(), None, y, row_names[kept])
    if weights is not None:
        context = replace(context, weights=weights[kept])
        counting = np.flatnonzero(weights[kept] > 0)
        if len(counting) < len(y):
            output.say(f"{len(y) - len(counting)} of {len(kept)} rows have no weight and are left out")
            context = context.take(counting)
    if len(context.y) < 2:
        raise BadDataError(f"{table.source} has {len(context.y)} rows with a target; at least 2 are needed")
    return replace(context, y=as_labels(context.y)) if spec.kind == "classifier" else context


def _of_columns(rows: FitContext) -> FitContext:
    """Encode the input columns and report the columns that are left out."""
    table, spec, request, output = rows.table, rows.spec, rows.request, rows.output
    used = {*spec.names, *table.targets, *request.ignore, spec.task, request.names, request.weight}
    possible = table.names if table.inputs is None else table.inputs
    inputs = TableInputs(request.standardize and request.image is None, request.categorical)
    inputs.fit(table.frame[[name for name in possible if name not in used]])
    for reason, names in inputs.left_out_.items():
        output.say(f"left out, {reason}: {listed(names)}")
    for remark in inputs.remarks_:
        output.say(remark)
    if not inputs.columns_:
        raise BadDataError(f"{table.source} has no column left that could be an input")
    with output.catch_warnings():
        X = inputs.encode(table)
    pixels = request.image_shape
    if pixels is not None and np.prod(pixels) != X.shape[1]:
        raise UserError(f"--image {request.image} needs {np.prod(pixels)} inputs, but there are {X.shape[1]}")
    task = task_values(table, spec)
    tasks = "" if task is None else f", {counted(len(np.unique(task)), 'task')}"
    columns = counted(len(inputs.columns_), "column")
    output.say(f"{counted(len(X), 'row')}, {counted(X.shape[1], 'input')} from {columns}{tasks}")
    return replace(rows, inputs=inputs, X=X, task=task)


def _of_documents(rows: FitContext) -> FitContext:
    """Choose the vocabulary and drop documents without any of its words."""
    spec, y, output = rows.spec, rows.y, rows.output
    words, X, said = learn_words(rows.table, rows.request)
    output.say(said)
    if rows.kind == "multilabel":
        values = sorted({shown_label(value) for value in y.flat})
        if not {*values} <= {"0", "1"}:
            raise BadDataError(
                f"several targets of documents must be 0 or 1 each; {listed(spec.names)} hold {listed(values)}"
            )
        y = y.astype(np.int64)
    texts = np.array(show_documents(rows.table, words, X), dtype=object)
    context = replace(rows, inputs=words, X=X, y=y, texts=texts)
    full = np.flatnonzero(np.diff(X.indptr))
    if len(full) < len(y):
        output.say(f"{len(y) - len(full)} of {len(y)} documents have no words and are left out")
        context = context.take(full)
    if len(context.y) < 2 or (rows.kind == "classifier" and len(np.unique(context.y)) < 2):
        raise BadDataError("the documents with words are of one class, or there is only one: nothing to learn")
    n, n_words = context.X.shape
    output.say(f"{counted(n, 'document')} with {context.X.sum():.0f} words, {n_words} different ones")
    return context
