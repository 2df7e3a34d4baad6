"""The target: its columns, the kind of model and its values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from regbayes._registry import persistable
from regbayes._types import Flags, Floats
from regbayes.cli import Kind
from regbayes.cli.errors import BadDataError, UserError, listed, not_among
from regbayes.cli.inputs import MAX_NUMBER, as_numbers, find_dates
from regbayes.cli.read import Table, plain_number, text_of

if TYPE_CHECKING:
    from regbayes.cli.output import Output

__all__ = [
    "TargetSpec",
    "choose_targets",
    "decide",
    "observed_rows",
    "row_weights",
    "rows_with_target",
    "shown_label",
    "target_values",
    "task_values",
]

MAX_CLASSES = 20  # integral targets with at most this many distinct values are classes
MAX_RATING = 10  # targets of documents up to this absolute value are ratings
MAX_TEXT_CLASSES = 100  # limit on distinct texts, unless each occurs in three rows or more


@persistable(name="regbayes.cli.TargetSpec")
@dataclass(frozen=True)
class TargetSpec:
    """Target columns, kind of model and task column."""

    names: tuple[str, ...]
    kind: Kind
    as_text: tuple[bool, ...]  # whether the labels of each column are text
    task: str | None = None  # the column with the task of each row


def choose_targets(table: Table, wanted: Sequence[str]) -> tuple[str, ...]:
    """Return the requested target columns, or those that the file marks as targets."""
    if not wanted:
        if table.targets:
            return table.targets
        archive = '; an archive has both: numpy.savez("data.npz", X=X, y=y)' if table.source.endswith(".npy") else ""
        raise UserError(
            f"name the column to predict with --target (repeatable). {table.source} has {listed(table.names)}{archive}"
        )
    names: list[str] = []
    for name in wanted:
        found = table.groups.get(name, (name,)) if name not in table else (name,)
        for one in found:
            if one not in table:
                raise BadDataError(f"--target {one}: {table.source} has no such column; {not_among(one, table.names)}")
        names += found
    if len(set(names)) < len(names):
        raise UserError(f"--target names a column twice: {listed(names)}")
    return tuple(names)


def decide(
    table: Table, names: tuple[str, ...], kind: Kind | None = None, task: str | None = None, *, of_texts: bool = False
) -> tuple[TargetSpec, str]:
    """Return the target specification and a sentence that explains it.

    A target with at most `MAX_CLASSES` distinct integers has classes. In tables of documents (``of_texts``), integers
    near zero are ratings, which are predicted as numbers.
    """
    columns = [table.column(name) for name in names]
    for name, column in zip(names, columns, strict=True):
        if not _is_observed(column).any():
            raise BadDataError(f"the target {name!r} has no value in any row")
    if task is not None and len(names) > 1:
        raise UserError("--task goes with one --target: with several, each target is a task of its own")
    found, why = (kind, f"{kind}, by --kind") if kind is not None else _guess(names, columns, of_texts)
    texts = [name for name, column in zip(names, columns, strict=True) if column.dtype == object]
    if found == "regressor" and texts:
        raise BadDataError(f"the target {texts[0]!r} is text, which a regressor cannot predict")
    if found == "classifier" and len(names) > 1:
        raise UserError(f"--kind classifier takes one target, but there are {len(names)}; use --kind multilabel")
    if found == "multilabel" and len(names) == 1:
        raise UserError("--kind multilabel takes several targets, but there is one; use --kind classifier")
    as_text = tuple(found != "regressor" and not _whole(column) for column in columns)
    spec = TargetSpec(names, found, as_text, task)
    _check_values(spec, columns)
    return spec, why


def _guess(names: tuple[str, ...], columns: list[NDArray[Any]], of_texts: bool) -> tuple[Kind, str]:
    texts, classes, ratings = [], [], []
    for column in columns:
        n, whole = len(_distinct(column)), _whole(column)
        texts.append(column.dtype == object)
        classes.append(texts[-1] or n <= 2 or (whole and n <= MAX_CLASSES))
        ratings.append(of_texts and n > 2 and whole and np.nanmax(np.abs(column)) <= MAX_RATING)
    are_classes = all(classes) and not all(ratings)
    to_number = "" if any(texts) else " (--kind regressor if they are quantities)"
    if len(names) == 1:
        what = "texts" if texts[0] else "whole numbers" if _whole(columns[0]) else "numbers"
        found: Kind = "classifier" if are_classes else "regressor"
        change = to_number if are_classes else " (--kind classifier if not)"
        return found, f"{found}: {names[0]!r} holds {len(_distinct(columns[0]))} different {what}{change}"
    if are_classes:
        return "multilabel", f"multilabel classifier: all {len(names)} targets hold classes{to_number}"
    if not any(texts):
        return "regressor", f"regressor for {len(names)} targets: they hold numbers (--kind multilabel if not)"
    of_classes = [name for name, is_class in zip(names, classes, strict=True) if is_class]
    raise BadDataError(
        f"some targets hold classes ({listed(of_classes)}) and others numbers; one model cannot predict both. Fit one "
        "model to each kind, or give --kind multilabel"
    )


def _check_values(spec: TargetSpec, columns: list[NDArray[Any]]) -> None:
    """Raise an error for targets that no model can learn."""
    for name, column in zip(spec.names, columns, strict=True):
        if spec.kind == "regressor" and np.abs(column[np.isfinite(column)]).max() > MAX_NUMBER:
            raise BadDataError(f"the target {name!r} holds numbers beyond {MAX_NUMBER:.0e}; take their logarithm")
        n = len(_distinct(column))
        if spec.kind != "regressor" and n > MAX_TEXT_CLASSES and n > len(column) / 3:
            dates = find_dates(text_of(column)) if column.dtype == object else None
            way_out = (
                "write the days since some date into a column" if dates else "--kind regressor if it is a quantity"
            )
            raise BadDataError(
                f"the target {name!r} has {n} different values in {len(column)} rows: too many for classes; {way_out}"
            )
    counts = [len(_distinct(column)) for column in columns]
    labels = {text for column in columns for text in text_of(_distinct(column))}
    if spec.kind == "regressor" or (min(counts) > 1 or (len(columns) > 1 and max(counts) > 1 and len(labels) <= 2)):
        return
    same = [name for name, n in zip(spec.names, counts, strict=True) if n < 2]
    raise BadDataError(f"the same value in every row, so there is nothing to learn: {listed(same)}. Leave it out")


def target_values(table: Table, spec: TargetSpec) -> NDArray[Any]:
    """Return targets of shape (n,) or (n, targets), with NaN or None for missing values.

    Labels that were text in training are returned as text.
    """
    columns = []
    for name, as_text in zip(spec.names, spec.as_text, strict=True):
        column = table.column(name)
        if as_text:
            columns.append(np.array(text_of(column), dtype=object))
        elif column.dtype == object and spec.kind != "regressor":  # text in a column of numeric classes
            columns.append(np.array([_number_or_text(text) for text in text_of(column)], dtype=object))
        else:
            columns.append(as_numbers(column, name))
    if len(columns) == 1:
        return columns[0]
    if any(column.dtype == object for column in columns):
        columns = [column.astype(object) for column in columns]
    return np.column_stack(columns)


def _number_or_text(text: str | None) -> Any:
    try:
        return None if text is None else float(text)
    except ValueError:
        return text


def rows_with_target(
    table: Table, spec: TargetSpec, output: Output, *, needs_all: bool = False
) -> tuple[Table, NDArray[Any], Flags]:
    """Return the rows with a target (or all targets), their targets and the row mask."""
    with output.catch_warnings():
        y = target_values(table, spec)
    kept = observed_rows(y)
    if needs_all and y.ndim == 2:
        kept = np.all([observed_rows(column) for column in y.T], axis=0)
    if not kept.any():
        raise BadDataError(f"{table.source} has no value of the target in any row, so there is nothing to compare with")
    if not kept.all():
        output.warn(f"{int((~kept).sum())} of {len(kept)} rows have no target and are left out")
    y = y[kept]
    return table.take(kept), as_labels(y) if spec.kind == "classifier" and y.dtype != object else y, kept


def task_values(table: Table, spec: TargetSpec) -> NDArray[Any] | None:
    """Return the task of each row as text, or None without tasks."""
    if spec.task is None:
        return None
    texts = text_of(table.column(spec.task, "--task"))
    if None in texts:
        raise BadDataError(
            f"the task column {spec.task!r} is empty in row {texts.index(None) + 1}; every row needs a task"
        )
    return np.array(texts)


def row_weights(table: Table, name: str) -> Floats:
    """Return nonnegative sample weights from a column; missing weights are 0."""
    column = table.column(name, "--weight")
    if column.dtype == object:
        odd = next((value for value in column if value is not None), None)
        raise BadDataError(f"--weight {name}: the column should hold numbers, but it has {odd!r}")
    if np.any(column < 0) or np.any(np.isinf(column)):
        odd = column[(column < 0) | np.isinf(column)][0]
        raise BadDataError(f"--weight {name}: weights are numbers of 0 or more, but there is {odd:g}")
    weights = np.nan_to_num(column)
    if not np.any(weights > 0):
        raise BadDataError(f"--weight {name}: no row has a weight above 0")
    return weights


def observed_rows(y: NDArray[Any]) -> Flags:
    """Return the mask of rows with at least one observed target."""
    seen = _is_observed(y)
    return seen if seen.ndim == 1 else np.asarray(seen.any(axis=1))


def as_labels(y: NDArray[Any]) -> NDArray[Any]:
    """Return complete labels of one target as text, integers or floats."""
    if y.dtype == object:
        return np.array([str(value) for value in y])
    return y.astype(np.int64) if np.all(y == np.round(y)) else y


def _is_observed(column: NDArray[Any]) -> Flags:
    if column.dtype == object:
        flat = [value is not None and value == value for value in column.ravel()]  # NaN is not equal to itself
        return np.array(flat, dtype=bool).reshape(column.shape)
    return np.asarray(np.isfinite(column)) if column.dtype.kind == "f" else np.ones(column.shape, dtype=bool)


def _distinct(column: NDArray[Any]) -> NDArray[Any]:
    return np.unique(column[_is_observed(column)])


def _whole(column: NDArray[Any]) -> bool:
    seen = column[_is_observed(column)]
    return column.dtype != object and bool(np.all(seen == np.round(seen)) and np.all(np.abs(seen) < 2.0**53))


def shown_label(label: Any) -> str:
    """Return the text of a label in files and tables."""
    return str(label) if isinstance(label, str) else str(plain_number(float(label)))
